/* The routes of docs/API.md, on top of lib/http/mhd_loop: one call, its answer or error. */
#include "agent/api/api.h"

#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/api/metrics.h"
#include "agent/api/view.h"
#include "agent/api/view_json.h"
#include "lib/base/cleanup.h"
#include "lib/base/json_out.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"
#include "lib/http/mhd_loop.h"
#include "lib/neuron/ids.h"

typedef struct ApiCall { /* all borrowed */
        const AgentBackend *backend;
        const HttpRequest *request;
        HttpResponse *response;
        const char *id, *action; /* from the path, where the route has them */
} ApiCall;

/* api_bundles.c */
#define API_BUNDLES_PATH "/v1/bundles"
static const char *api_quote(const char *s, char *buf, size_t size) {
        size_t n = strlen(s), used = 0;

        while (n > 0) {
                char one[UTF8_ESCAPE_SIZE];
                size_t bytes = utf8_escape(s, n, one), spelled = strlen(one);

                if (used + spelled + sizeof "…" > size) {
                        memcpy(buf + used, "…", sizeof "…");
                        return buf;
                }
                memcpy(buf + used, one, spelled);
                used += spelled;
                s += bytes;
                n -= bytes;
        }
        buf[used] = '\0';
        return buf;
}

static void api_answer_text(ApiCall *c, unsigned status, const char *content_type, char *text) {
        *c->response =
                (HttpResponse){ .status = status, .content_type = content_type, .body = text };
        if (text)
                c->response->body_bytes = strlen(text);
        else
                c->response->status = 500; /* no memory */
}

static void api_answer_json(ApiCall *c, unsigned status, json_t *v) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        _cleanup_free_ char *text = v ? json_dumps(v, JSON_INDENT(2)) : NULL;

        json_decref(v);
        if (text) {
                strbuf_add(&b, text);
                strbuf_add(&b, "\n");
        }
        api_answer_text(c, status, "application/json", text ? strbuf_detach(&b) : NULL);
}

__attribute__((format(printf, 4, 5))) static void api_answer_error(ApiCall *c, unsigned status,
                                                                   const char *code,
                                                                   const char *fmt, ...) {
        _cleanup_free_ char *message = NULL;
        va_list args;
        int n;

        va_start(args, fmt);
        n = vasprintf(&message, fmt, args);
        va_end(args);
        if (n < 0)
                message = NULL;
        api_answer_json(c, status,
                        json_pack("{s:{s:s, s:o}}", "error", "code", code, "message",
                                  view_text_json(message ? message : "no memory")));
}

static void api_refuse_method(ApiCall *c, const char *allow) {
        char method[64];

        api_answer_error(c, 405, "method_not_allowed", "'%s' is not possible here; use %s",
                         api_quote(c->request->method, method, sizeof method), allow);
        c->response->allow = allow;
}

static void api_answer_failure(ApiCall *c, int error) {
        api_answer_error(c, 500, "internal", "the agent could not answer: %s; see its log",
                         strerror(-error));
}

static bool api_answer_fault(ApiCall *c, int r, const char *message) {
        if (r == -EPERM)
                api_answer_error(c, 409, "not_possible", "%s",
                                 message ? message : "not possible now");
        else if (r < 0)
                api_answer_failure(c, r);
        return r < 0;
}

static bool api_refuse_query(ApiCall *c, const HttpQuery *q, const char *remedy) {
        char name[128], value[128];

        api_answer_error(c, 400, "bad_request", "query parameter '%s': '%s' %s",
                         api_quote(q->name, name, sizeof name),
                         api_quote(q->value, value, sizeof value), remedy);
        return false;
}

static bool api_refuse_any_query(ApiCall *c) {
        return c->request->n_queries == 0 ||
               api_refuse_query(c, &c->request->queries[0], "is not taken here; leave it out");
}

static bool api_is_get(const char *method) {
        return strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
}

/* What is asked of bundles: the list and its filter, one bundle, and what people do with one. */

#define LIMIT_DEFAULT 100
#define LIMIT_MAX 1000
#define SOURCE_NAME_MAX 255
static bool parse_query(ApiCall *c, const HttpQuery *q, ViewFilter *f) {
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

static bool parse_filter(ApiCall *c, ViewFilter *ret) {
        *ret = (ViewFilter){ .state = -1, .limit = LIMIT_DEFAULT };
        for (size_t i = 0; i < c->request->n_queries; i++) {
                const HttpQuery *q = &c->request->queries[i];

                for (size_t j = 0; j < i; j++)
                        if (strcmp(c->request->queries[j].name, q->name) == 0)
                                return api_refuse_query(
                                        c, q, "is the second of this name; give each once");
                if (!parse_query(c, q, ret))
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

static void api_list_bundles(ApiCall *c) {
        _cleanup_(json_decrefp) json_t *bundles = json_array();
        AgentView v = { 0 };
        Page page = { .bundles = bundles, .view = &v };
        ViewFilter f;
        int r;

        if (!parse_filter(c, &f))
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

static void api_no_bundle(ApiCall *c) {
        char id[128];

        api_answer_error(c, 404, "not_found", "no bundle '%s'; see the list of bundles",
                         api_quote(c->id, id, sizeof id));
}

static void api_get_bundle(ApiCall *c) {
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

static void api_post_bundle(ApiCall *c) {
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

/* What is asked of snapshots: to take one, what one holds, and its files. */

#define SNAPSHOTS_PATH "/v1/snapshots"
static void api_post_snapshot(ApiCall *c) {
        _cleanup_free_ char *message = NULL;
        char name[SNAPSHOT_NAME_SIZE];
        int r;

        if (!api_refuse_any_query(c))
                return;
        r = c->backend->snapshot(name, &message, c->backend->userdata);
        if (!api_answer_fault(c, r, message))
                api_answer_json(c, 202, json_pack("{s:s}", "name", name));
}

static void snapshot_answer_done(SnapshotAnswer *a) {
        for (char **f = a->files; f && *f; f++)
                free(*f);
        free(a->files);
        free(a->directory);
        free(a->data);
}

/* The document is JSON already, and may be large: it goes into the answer as it is. */
static void answer_snapshot(ApiCall *c, const SnapshotAnswer *a) {
        StrBuf b = STRBUF_INIT;

        json_out_object(&b, NULL);
        json_out_string(&b, "name", c->id);
        json_out_bool(&b, "done", a->done);
        json_out_path(&b, "directory", a->directory ? a->directory : "");
        json_out_array(&b, "files");
        for (char **f = a->files; f && *f; f++)
                json_out_path(&b, NULL, *f);
        json_out_end_array(&b);
        json_out_raw(&b, "document", a->data ? a->data : "null");
        json_out_end_object(&b);
        strbuf_add(&b, "\n");
        api_answer_text(c, 200, "application/json", strbuf_detach(&b));
}

/* @param c  id: the snapshot's name; action: one of its files, or NULL */
static void get_snapshot(ApiCall *c) {
        _cleanup_(snapshot_answer_done) SnapshotAnswer a = { 0 };
        char name[128];
        int r;

        if (!api_refuse_any_query(c))
                return;
        r = c->backend->get_snapshot(c->id, c->action, &a, c->backend->userdata);
        if (r == -ENOENT)
                api_answer_error(c, 404, "not_found", "no snapshot '%s', or no such file in it",
                                 api_quote(c->id, name, sizeof name));
        else if (r < 0)
                api_answer_failure(c, r);
        else if (!c->action)
                answer_snapshot(c, &a);
        else
                *c->response = (HttpResponse){ .status = 200,
                                               .content_type = "application/octet-stream",
                                               .body = TAKE_PTR(a.data),
                                               .body_bytes = a.n_data };
}

static bool api_route_snapshot(ApiCall *c) {
        char name[SNAPSHOT_NAME_SIZE];
        const char *rest = c->request->path + strlen(SNAPSHOTS_PATH "/");
        size_t n;

        if (strncmp(c->request->path, SNAPSHOTS_PATH "/", strlen(SNAPSHOTS_PATH "/")) != 0)
                return false;
        n = strcspn(rest, "/");
        if (n == 0 || n >= sizeof name)
                return false;
        memcpy(name, rest, n);
        name[n] = '\0';
        c->id = name;
        c->action = rest[n] == '/' ? rest + n + 1 : NULL;
        if (api_is_get(c->request->method))
                get_snapshot(c);
        else
                api_refuse_method(c, "GET, HEAD");
        c->id = NULL; /* it was ours */
        return true;
}

/* The routes of the HTTP API: what is asked is checked here, answered by the AgentBackend, and
 * shown by view_json and metrics. */

struct Api {
        MhdLoop *http; /* NULL in tests */
        const AgentBackend *backend;
        bool read_only;
};

/* ── routes ── */

static void get_status(ApiCall *c) {
        AgentView v = { 0 };

        if (!api_refuse_any_query(c))
                return;
        c->backend->view(&v, c->backend->userdata);
        api_answer_json(c, 200, view_status_json(&v));
}

/* What became of something that is asked of the whole agent. */
static void answer_action(ApiCall *c, const char *action, int r, const char *message) {
        if (!api_answer_fault(c, r, message))
                api_answer_json(c, 200,
                                json_pack("{s:s, s:o}", "action", action, "message",
                                          view_text_json(message)));
}

/* @param settle  what is found still waits for `settle` */
static void check_now(ApiCall *c, const char *action, bool settle) {
        _cleanup_free_ char *message = NULL;

        if (!api_refuse_any_query(c))
                return;
        int r = c->backend->flush(settle, &message, c->backend->userdata);
        answer_action(c, action, r, message);
}

static void post_flush(ApiCall *c) {
        check_now(c, "flush", false);
}

static void post_scan(ApiCall *c) {
        check_now(c, "scan", true);
}

static void set_drain(ApiCall *c, const char *action, bool on) {
        _cleanup_free_ char *message = NULL;

        if (!api_refuse_any_query(c))
                return;
        int r = c->backend->drain(on, &message, c->backend->userdata);
        answer_action(c, action, r, message);
}

static void post_drain(ApiCall *c) {
        set_drain(c, "drain", true);
}

static void post_resume(ApiCall *c) {
        set_drain(c, "resume", false);
}

/* Scrapers and probes may add parameters of their own: they change nothing here. */
static void get_metrics(ApiCall *c) {
        AgentView v = { 0 };

        c->backend->view(&v, c->backend->userdata);
        api_answer_text(c, 200, "text/plain; version=0.0.4; charset=utf-8", metrics_text(&v));
}

static void get_healthz(ApiCall *c) {
        api_answer_text(c, 200, "text/plain; charset=utf-8", strdup("ok\n"));
}

static void get_readyz(ApiCall *c) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        AgentView v = { 0 };

        c->backend->view(&v, c->backend->userdata);
        if (v.ready)
                strbuf_add(&b, "ready\n");
        else
                strbuf_addf(&b, "not ready: %s\n", v.ready_note ? v.ready_note : "no reason given");
        api_answer_text(c, v.ready ? 200 : 503, "text/plain; charset=utf-8", strbuf_detach(&b));
}

typedef struct Route {
        const char *path; /* of a bundle: what follows its id */
        bool of_bundle, is_post;
        void (*answer)(ApiCall *c);
} Route;

/* clang-format off */
static const Route routes[] = {
        { "/v1/status",   false, false, get_status },
        { API_BUNDLES_PATH,   false, false, api_list_bundles },
        { "/v1/flush",    false, true,  post_flush },
        { "/v1/scan",     false, true,  post_scan },
        { "/v1/drain",    false, true,  post_drain },
        { "/v1/resume",   false, true,  post_resume },
        { "/v1/snapshot", false, true,  api_post_snapshot },
        { "/metrics",     false, false, get_metrics },
        { "/healthz",     false, false, get_healthz },
        { "/readyz",      false, false, get_readyz },
        { "",             true,  false, api_get_bundle },
        { "/retry",       true,  true,  api_post_bundle },
        { "/cancel",      true,  true,  api_post_bundle },
        { "/pin",         true,  true,  api_post_bundle },
        { "/unpin",       true,  true,  api_post_bundle },
};

/* clang-format on */

/* Finds the route. For one bundle's, *ret_id gets the id as the path spells it. */
static const Route *find_route(const char *path, char ret_id[static BUNDLE_ID_SIZE]) {
        const char *rest = NULL;

        if (strncmp(path, API_BUNDLES_PATH "/", strlen(API_BUNDLES_PATH "/")) == 0) {
                const char *id = path + strlen(API_BUNDLES_PATH "/");
                size_t n = strcspn(id, "/");

                if (n == 0 || n >= BUNDLE_ID_SIZE)
                        return NULL;
                memcpy(ret_id, id, n);
                ret_id[n] = '\0';
                rest = id + n;
        }
        for (size_t i = 0; i < ELEMENTSOF(routes); i++)
                if (routes[i].of_bundle == (rest != NULL) &&
                    strcmp(routes[i].path, rest ? rest : path) == 0)
                        return &routes[i];
        return NULL;
}

void api_handle(const HttpRequest *request, HttpResponse *ret, void *api) {
        const Api *a = api;
        ApiCall c = { .backend = a->backend, .request = request, .response = ret };
        char id[BUNDLE_ID_SIZE], path[256];
        const Route *route = find_route(request->path, id);

        /* What snapshots hold of processes is not for the open listener. */
        if (!a->read_only && api_route_snapshot(&c))
                return;
        if (a->read_only && !api_is_get(request->method))
                api_refuse_method(&c, "GET, HEAD");
        else if (!route || (a->read_only && route->is_post))
                api_answer_error(&c, 404, "not_found", "no such path: '%s'",
                                 api_quote(request->path, path, sizeof path));
        else if (!route->is_post && !api_is_get(request->method))
                api_refuse_method(&c, "GET, HEAD");
        else if (route->is_post && strcmp(request->method, "POST") != 0)
                api_refuse_method(&c, "POST");
        else {
                if (route->of_bundle) {
                        c.id = id;
                        c.action = route->path[0] == '/' ? route->path + 1 : NULL;
                        if (!bundle_id_is_valid(id)) {
                                api_no_bundle(&c);
                                return;
                        }
                }
                route->answer(&c);
        }
}

/* ── life ── */

int api_new_for_test(Api **ret, bool read_only, const AgentBackend *backend) {
        Api *a = calloc(1, sizeof *a);

        if (!a)
                return -ENOMEM;
        *a = (Api){ .backend = backend, .read_only = read_only };
        *ret = a;
        return 0;
}

DEFINE_CLEANUP(Api, api_free);

int api_new(Api **ret, sd_event *event, const ApiListener *l) {
        _cleanup_(api_freep) Api *a = NULL;
        int r;

        r = api_new_for_test(&a, l->read_only, l->backend);
        if (r < 0)
                return r;
        r = mhd_loop_new(&a->http, event, l->fd, api_handle, a);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(a);
        return 0;
}

Api *api_free(Api *a) {
        if (!a)
                return NULL;
        mhd_loop_free(a->http);
        free(a);
        return NULL;
}
