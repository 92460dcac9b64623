/* What is asked of bundles: the list and its filter, one bundle, and what people do with one. */
#include <errno.h>
#include <string.h>

#include "agent/api/api_call.h"
#include "agent/api/view_json.h"
#include "lib/base/parse.h"
#include "lib/neuron/ids.h"

#define LIMIT_DEFAULT 100
#define LIMIT_MAX 1000
#define SOURCE_NAME_MAX 255

static bool take_query(ApiCall *c, const HttpQuery *q, ViewFilter *f) {
        BundleState state;
        uint64_t limit;

        if (strcmp(q->name, "state") == 0) {
                if (bundle_state_parse(q->value, &state) < 0)
                        return api_refuse_query(
                                c, q,
                                "is no state; use settling, ready, shipping, delivered, "
                                "quarantined, evicted, cancelled or vanished");
                f->state = (int)state;
        } else if (strcmp(q->name, "source") == 0) {
                if (q->value[0] == '\0' || strlen(q->value) > SOURCE_NAME_MAX)
                        return api_refuse_query(c, q,
                                                "is no source; use a name from the configuration");
                f->source = q->value;
        } else if (strcmp(q->name, "limit") == 0) {
                if (parse_u64_range(q->value, 1, LIMIT_MAX, &limit) < 0)
                        return api_refuse_query(c, q, "is no limit; use a number from 1 to 1000");
                f->limit = (unsigned)limit;
        } else if (strcmp(q->name, "after") == 0) {
                if (!bundle_id_is_valid(q->value))
                        return api_refuse_query(c, q,
                                                "is no bundle id; use 'next' of the page before");
                f->after = q->value;
        } else
                return api_refuse_query(c, q, "is not known; use state, source, limit or after");
        return true;
}

static bool take_filter(ApiCall *c, ViewFilter *ret) {
        *ret = (ViewFilter){ .state = -1, .limit = LIMIT_DEFAULT };
        for (size_t i = 0; i < c->request->n_queries; i++) {
                const HttpQuery *q = &c->request->queries[i];

                for (size_t j = 0; j < i; j++)
                        if (strcmp(c->request->queries[j].name, q->name) == 0)
                                return api_refuse_query(
                                        c, q, "is the second of this name; give each once");
                if (!take_query(c, q, ret))
                        return false;
        }
        return true;
}

typedef struct Page {
        json_t *bundles;
        const AgentView *view;
        unsigned limit, n;
        char last[BUNDLE_ID_SIZE];
        bool has_more;
} Page;

static int page_add(const BundleRecord *b, void *userdata) {
        Page *p = userdata;

        if (p->n == p->limit) {
                p->has_more = true;
                return 0;
        }
        if (json_array_append_new(p->bundles, view_bundle_json(b, p->view, NULL)) < 0)
                return -ENOMEM;
        memcpy(p->last, b->id, sizeof p->last);
        p->n++;
        return 0;
}

void api_list_bundles(ApiCall *c) {
        _cleanup_(json_decrefp) json_t *bundles = json_array();
        AgentView v = { 0 };
        Page page = { .bundles = bundles, .view = &v };
        ViewFilter f;
        int r;

        if (!take_filter(c, &f))
                return;
        page.limit = f.limit;
        f.limit++; /* one more tells whether there is a next page */
        c->backend->view(&v, c->backend->userdata);
        r = bundles ? c->backend->list(&f, page_add, &page, c->backend->userdata) : -ENOMEM;
        if (r < 0) {
                api_answer_failure(c, r);
                return;
        }
        api_answer_json(c, 200,
                        json_pack("{s:O, s:o}", "bundles", bundles, "next",
                                  page.has_more ? json_string(page.last) : json_null()));
}

void api_no_bundle(ApiCall *c) {
        char id[128];

        api_answer_error(c, 404, "not_found", "no bundle '%s'; see the list of bundles",
                         api_quote(c->id, id, sizeof id));
}

void api_get_bundle(ApiCall *c) {
        _cleanup_free_ char *explain = NULL;
        _cleanup_(bundle_record_done) BundleRecord b = { 0 };
        AgentView v = { 0 };
        int r;

        if (!api_refuse_any_query(c))
                return;
        r = c->backend->get(c->id, &b, &explain, c->backend->userdata);
        if (r == -ENOENT) {
                api_no_bundle(c);
                return;
        }
        if (r < 0) {
                api_answer_failure(c, r);
                return;
        }
        c->backend->view(&v, c->backend->userdata);
        api_answer_json(c, 200, view_bundle_json(&b, &v, explain ? explain : ""));
}

void api_post_bundle(ApiCall *c) {
        _cleanup_free_ char *message = NULL;
        int r;

        if (!api_refuse_any_query(c))
                return;
        r = c->backend->act(c->id, c->action, &message, c->backend->userdata);
        if (r == -ENOENT)
                api_no_bundle(c);
        else if (!api_answer_fault(c, r, message ? message : "not possible in the bundle's state"))
                api_answer_json(c, 200,
                                json_pack("{s:s, s:s, s:o}", "id", c->id, "action", c->action,
                                          "message", view_text_json(message)));
}
