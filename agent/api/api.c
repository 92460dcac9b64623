/* The routes of the HTTP API: what is asked is checked here, answered by the AgentBackend, and shown by view_json and metrics. */
#include "agent/api/api.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "agent/api/metrics.h"
#include "agent/api/view_json.h"
#include "lib/base/cleanup.h"
#include "lib/base/json_out.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"
#include "lib/base/utf8.h"
#include "lib/dump/ids.h"

#define LIMIT_DEFAULT 100
#define LIMIT_MAX 1000
#define SOURCE_NAME_MAX 255
#define BUNDLES_PATH "/v1/bundles"
#define SNAPSHOTS_PATH "/v1/snapshots"

struct Api {
        MhdLoop *http; /* NULL in tests */
        const AgentBackend *backend;
        bool read_only;
};

typedef struct Call {
        const AgentBackend *backend;
        const HttpRequest *request;
        HttpResponse *response;
        const char *id, *action; /* from the path, where the route has them */
} Call;

/* Spells what a stranger sent so that it can be shown: bounded, no control characters, UTF-8. */
static const char *quote(const char *s, char *buf, size_t size) {
        size_t n = strlen(s), used = 0;

        while (n > 0) {
                char one[UTF8_SPELL_SIZE];
                size_t bytes = utf8_spell(s, n, one), spelled = strlen(one);

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

/* ── answers ───────────────────────────────────────────────────────────────────────────────────────────────── */

static void answer_text(Call *c, unsigned status, const char *content_type,
                        char *text /* taken over */) {
        *c->response =
                (HttpResponse){ .status = status, .content_type = content_type, .body = text };
        if (text)
                c->response->body_bytes = strlen(text);
        else
                c->response->status = 500; /* no memory */
}

static void answer_json(Call *c, unsigned status, json_t *v /* taken over */) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        _cleanup_free_ char *text = v ? json_dumps(v, JSON_INDENT(2)) : NULL;

        json_decref(v);
        if (text) {
                strbuf_add(&b, text);
                strbuf_add(&b, "\n");
        }
        answer_text(c, status, "application/json", text ? strbuf_take(&b) : NULL);
}

static void answer_error(Call *c, unsigned status, const char *code, const char *fmt, ...)
        _printf_(4, 5);
static void answer_error(Call *c, unsigned status, const char *code, const char *fmt, ...) {
        _cleanup_free_ char *message = NULL;
        va_list args;
        int n;

        va_start(args, fmt);
        n = vasprintf(&message, fmt, args);
        va_end(args);
        if (n < 0)
                message = NULL;
        answer_json(c, status,
                    json_pack("{s:{s:s, s:o}}", "error", "code", code, "message",
                              view_text_json(message ? message : "no memory")));
}

/* The method is not one that the route has. `allow` goes into the header. */
static void answer_method(Call *c, const char *allow) {
        char method[64];

        answer_error(c, 405, "method_not_allowed", "'%s' is not possible here; use %s",
                     quote(c->request->method, method, sizeof method), allow);
        c->response->allow = allow;
}

static void answer_failure(Call *c, int error) {
        answer_error(c, 500, "internal", "the agent could not answer: %s; see its log",
                     strerror(-error));
}

/* ── queries ───────────────────────────────────────────────────────────────────────────────────────────────── */

static bool refuse_query(Call *c, const HttpQuery *q, const char *remedy) {
        char name[128], value[128];

        answer_error(c, 400, "bad_request", "query parameter '%s': '%s' %s",
                     quote(q->name, name, sizeof name), quote(q->value, value, sizeof value),
                     remedy);
        return false;
}

static bool refuse_any_query(Call *c) {
        return c->request->n_queries == 0 ||
               refuse_query(c, &c->request->queries[0], "is not taken here; leave it out");
}

static bool take_query(Call *c, const HttpQuery *q, ViewFilter *f) {
        BundleState state;
        uint64_t limit;

        if (strcmp(q->name, "state") == 0) {
                if (bundle_state_parse(q->value, &state) < 0)
                        return refuse_query(
                                c, q,
                                "is no state; use settling, ready, shipping, delivered, "
                                "quarantined, evicted, cancelled or vanished");
                f->state = (int)state;
        } else if (strcmp(q->name, "source") == 0) {
                if (q->value[0] == '\0' || strlen(q->value) > SOURCE_NAME_MAX)
                        return refuse_query(c, q,
                                            "is no source; use a name from the configuration");
                f->source = q->value;
        } else if (strcmp(q->name, "limit") == 0) {
                if (parse_u64_range(q->value, 1, LIMIT_MAX, &limit) < 0)
                        return refuse_query(c, q, "is no limit; use a number from 1 to 1000");
                f->limit = (unsigned)limit;
        } else if (strcmp(q->name, "after") == 0) {
                if (!bundle_id_is_valid(q->value))
                        return refuse_query(c, q, "is no bundle id; use 'next' of the page before");
                f->after = q->value;
        } else
                return refuse_query(c, q, "is not known; use state, source, limit or after");
        return true;
}

static bool take_filter(Call *c, ViewFilter *ret) {
        *ret = (ViewFilter){ .state = -1, .limit = LIMIT_DEFAULT };
        for (size_t i = 0; i < c->request->n_queries; i++) {
                const HttpQuery *q = &c->request->queries[i];

                for (size_t j = 0; j < i; j++)
                        if (strcmp(c->request->queries[j].name, q->name) == 0)
                                return refuse_query(c, q,
                                                    "is the second of this name; give each once");
                if (!take_query(c, q, ret))
                        return false;
        }
        return true;
}

/* ── routes ────────────────────────────────────────────────────────────────────────────────────────────────── */

static void get_status(Call *c) {
        AgentView v = { 0 };

        if (!refuse_any_query(c))
                return;
        c->backend->view(&v, c->backend->userdata);
        answer_json(c, 200, view_status_json(&v));
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

static void list_bundles(Call *c) {
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
                answer_failure(c, r);
                return;
        }
        answer_json(c, 200,
                    json_pack("{s:O, s:o}", "bundles", bundles, "next",
                              page.has_more ? json_string(page.last) : json_null()));
}

static void answer_no_bundle(Call *c) {
        char id[128];

        answer_error(c, 404, "not_found", "no bundle '%s'; see the list of bundles",
                     quote(c->id, id, sizeof id));
}

static void get_bundle(Call *c) {
        _cleanup_free_ char *explain = NULL;
        _cleanup_(bundle_record_done) BundleRecord b = { 0 };
        AgentView v = { 0 };
        int r;

        if (!refuse_any_query(c))
                return;
        r = c->backend->get(c->id, &b, &explain, c->backend->userdata);
        if (r == -ENOENT) {
                answer_no_bundle(c);
                return;
        }
        if (r < 0) {
                answer_failure(c, r);
                return;
        }
        c->backend->view(&v, c->backend->userdata);
        answer_json(c, 200, view_bundle_json(&b, &v, explain ? explain : ""));
}

static void post_action(Call *c) {
        _cleanup_free_ char *message = NULL;
        int r;

        if (!refuse_any_query(c))
                return;
        r = c->backend->act(c->id, c->action, &message, c->backend->userdata);
        if (r == -ENOENT)
                answer_no_bundle(c);
        else if (r == -EPERM)
                answer_error(c, 409, "not_possible", "%s",
                             message ? message : "not possible in the bundle's state");
        else if (r < 0)
                answer_failure(c, r);
        else
                answer_json(c, 200,
                            json_pack("{s:s, s:s, s:o}", "id", c->id, "action", c->action,
                                      "message", view_text_json(message)));
}

/* What became of something that is asked of the whole agent. */
static void answer_action(Call *c, const char *action, int r, const char *message) {
        if (r == -EPERM)
                answer_error(c, 409, "not_possible", "%s", message ? message : "not possible now");
        else if (r < 0)
                answer_failure(c, r);
        else
                answer_json(c, 200,
                            json_pack("{s:s, s:o}", "action", action, "message",
                                      view_text_json(message)));
}

/* @param settle  what is found still waits for `settle` */
static void look_now(Call *c, const char *action, bool settle) {
        _cleanup_free_ char *message = NULL;

        if (!refuse_any_query(c))
                return;
        int r = c->backend->flush(settle, &message, c->backend->userdata);
        answer_action(c, action, r, message);
}

static void post_flush(Call *c) {
        look_now(c, "flush", false);
}

static void post_scan(Call *c) {
        look_now(c, "scan", true);
}

static void set_drain(Call *c, const char *action, bool on) {
        _cleanup_free_ char *message = NULL;

        if (!refuse_any_query(c))
                return;
        int r = c->backend->drain(on, &message, c->backend->userdata);
        answer_action(c, action, r, message);
}

static void post_drain(Call *c) {
        set_drain(c, "drain", true);
}

static void post_resume(Call *c) {
        set_drain(c, "resume", false);
}

static bool is_get(const char *method) {
        return strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
}

/* ── snapshots ─────────────────────────────────────────────────────────────────────────────────────────────── */

static void post_snapshot(Call *c) {
        _cleanup_free_ char *message = NULL;
        char name[SNAPSHOT_NAME_SIZE];
        int r;

        if (!refuse_any_query(c))
                return;
        r = c->backend->snapshot(name, &message, c->backend->userdata);
        if (r == -EPERM)
                answer_error(c, 409, "not_possible", "%s", message ? message : "not possible now");
        else if (r < 0)
                answer_failure(c, r);
        else
                answer_json(c, 202, json_pack("{s:s}", "name", name));
}

static void snapshot_answer_done(SnapshotAnswer *a) {
        for (char **f = a->files; f && *f; f++)
                free(*f);
        free(a->files);
        free(a->directory);
        free(a->data);
}

/* The document is JSON already, and may be large: it goes into the answer as it is. */
static void answer_snapshot(Call *c, const SnapshotAnswer *a) {
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
        answer_text(c, 200, "application/json", strbuf_take(&b));
}

/* @param c  id: the snapshot's name; action: one of its files, or NULL */
static void get_snapshot(Call *c) {
        _cleanup_(snapshot_answer_done) SnapshotAnswer a = { 0 };
        char name[128];
        int r;

        if (!refuse_any_query(c))
                return;
        r = c->backend->get_snapshot(c->id, c->action, &a, c->backend->userdata);
        if (r == -ENOENT)
                answer_error(c, 404, "not_found", "no snapshot '%s', or no such file in it",
                             quote(c->id, name, sizeof name));
        else if (r < 0)
                answer_failure(c, r);
        else if (!c->action)
                answer_snapshot(c, &a);
        else
                *c->response = (HttpResponse){ .status = 200,
                                               .content_type = "application/octet-stream",
                                               .body = TAKE_PTR(a.data),
                                               .body_bytes = a.n_data };
}

/* `/v1/snapshots/NAME` and `/v1/snapshots/NAME/FILE`. @return whether it was one */
static bool route_snapshot(Call *c) {
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
        if (is_get(c->request->method))
                get_snapshot(c);
        else
                answer_method(c, "GET, HEAD");
        return true;
}

/* Scrapers and probes may add parameters of their own: they change nothing here. */
static void get_metrics(Call *c) {
        AgentView v = { 0 };

        c->backend->view(&v, c->backend->userdata);
        answer_text(c, 200, "text/plain; version=0.0.4; charset=utf-8", metrics_text(&v));
}

static void get_healthz(Call *c) {
        answer_text(c, 200, "text/plain; charset=utf-8", strdup("ok\n"));
}

static void get_readyz(Call *c) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        AgentView v = { 0 };

        c->backend->view(&v, c->backend->userdata);
        if (v.ready)
                strbuf_add(&b, "ready\n");
        else
                strbuf_addf(&b, "not ready: %s\n", v.ready_note ? v.ready_note : "no reason given");
        answer_text(c, v.ready ? 200 : 503, "text/plain; charset=utf-8", strbuf_take(&b));
}

typedef struct Route {
        const char *path; /* of a bundle: what follows its id */
        bool of_bundle, is_post;
        void (*answer)(Call *c);
} Route;

/* clang-format off */
static const Route routes[] = {
        { "/v1/status",   false, false, get_status },
        { BUNDLES_PATH,   false, false, list_bundles },
        { "/v1/flush",    false, true,  post_flush },
        { "/v1/scan",     false, true,  post_scan },
        { "/v1/drain",    false, true,  post_drain },
        { "/v1/resume",   false, true,  post_resume },
        { "/v1/snapshot", false, true,  post_snapshot },
        { "/metrics",     false, false, get_metrics },
        { "/healthz",     false, false, get_healthz },
        { "/readyz",      false, false, get_readyz },
        { "",             true,  false, get_bundle },
        { "/retry",       true,  true,  post_action },
        { "/cancel",      true,  true,  post_action },
        { "/pin",         true,  true,  post_action },
        { "/unpin",       true,  true,  post_action },
};
/* clang-format on */

/* Finds the route. For one bundle's, *ret_id gets the id as the path spells it. */
static const Route *find_route(const char *path, char ret_id[static BUNDLE_ID_SIZE]) {
        const char *rest = NULL;

        if (strncmp(path, BUNDLES_PATH "/", strlen(BUNDLES_PATH "/")) == 0) {
                const char *id = path + strlen(BUNDLES_PATH "/");
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
        Call c = { .backend = a->backend, .request = request, .response = ret };
        char id[BUNDLE_ID_SIZE], path[256];
        const Route *route = find_route(request->path, id);

        /* What snapshots hold of processes is not for the open listener. */
        if (!a->read_only && route_snapshot(&c))
                return;
        if (a->read_only && !is_get(request->method))
                answer_method(&c, "GET, HEAD");
        else if (!route || (a->read_only && route->is_post))
                answer_error(&c, 404, "not_found", "no such path: '%s'",
                             quote(request->path, path, sizeof path));
        else if (!route->is_post && !is_get(request->method))
                answer_method(&c, "GET, HEAD");
        else if (route->is_post && strcmp(request->method, "POST") != 0)
                answer_method(&c, "POST");
        else {
                if (route->of_bundle) {
                        c.id = id;
                        c.action = route->path[0] == '/' ? route->path + 1 : NULL;
                        if (!bundle_id_is_valid(id)) {
                                answer_no_bundle(&c);
                                return;
                        }
                }
                route->answer(&c);
        }
}

/* ── life ──────────────────────────────────────────────────────────────────────────────────────────────────── */

int api_new_for_test(Api **ret, bool read_only, const AgentBackend *backend) {
        Api *a = calloc(1, sizeof *a);

        if (!a)
                return -ENOMEM;
        *a = (Api){ .backend = backend, .read_only = read_only };
        *ret = a;
        return 0;
}

DEFINE_CLEANUP(Api, api_free);

int api_new(Api **ret, sd_event *event, int fd, bool read_only, const AgentBackend *backend) {
        _cleanup_(api_freep) Api *a = NULL;
        int r;

        r = api_new_for_test(&a, read_only, backend);
        if (r < 0)
                return r;
        r = mhd_loop_new(&a->http, event, fd, api_handle, a);
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
