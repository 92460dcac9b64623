/* The routes of docs/API.md, on top of lib/http/mhd_loop: a request is checked (method, path,
 * query, Host), performed by the AgentBackend, and answered, or refused with an error. The
 * documents of the answers are in api_json.c, the metrics in metrics.c. */
#include "agent/api/api.h"

#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "agent/api/api_json.h"
#include "agent/api/metrics.h"
#include "agent/api/view.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/json_out.h"
#include "lib/base/json_text.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"
#include "lib/http/mhd_loop.h"
#include "lib/http/url.h"
#include "lib/neuron/bundle_name.h"
#include "lib/neuron/ids.h"

typedef struct ApiCall { /* all borrowed */
        const AgentBackend *backend;
        const MhdRequest *request;
        HttpResponse *response;
        const char *id, *action; /* from the path, where the route has them */
} ApiCall;

#define BUNDLES_PATH "/v1/bundles"
static const char *quote(const char *s, char *buf, size_t size) {
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

static void answer_text(ApiCall *c, unsigned status, const char *content_type, char *text) {
        *c->response =
                (HttpResponse){ .status = status, .content_type = content_type, .body = text };
        if (text)
                c->response->body_bytes = strlen(text);
        else
                c->response->status = 500; /* no memory */
}

static void answer_json(ApiCall *c, unsigned status, json_t *v) {
        _cleanup_free_ char *text = v ? json_text(v, JSON_INDENT(2)) : NULL;

        json_decref(v);
        answer_text(c, status, "application/json", text ? strbuf_format("%s\n", text) : NULL);
}

static _printf_(4, 5) void answer_error(ApiCall *c, unsigned status, const char *code,
                                        const char *fmt, ...) {
        va_list args;

        va_start(args, fmt);
        _cleanup_free_ char *message = strbuf_vformat(fmt, args);
        va_end(args);
        answer_json(c, status,
                    json_pack("{s:{s:s, s:o}}", "error", "code", code, "message",
                              api_json_text(message ? message : "no memory")));
}

static void refuse_method(ApiCall *c, const char *allow) {
        char method[64];

        answer_error(c, 405, "method_not_allowed", "'%s' is not possible here; use %s",
                     quote(c->request->method, method, sizeof method), allow);
        c->response->allow = allow;
}

/* @return whether r is a failure, which is then answered  @param message  of -EPERM; NULL */
static bool answer_fault(ApiCall *c, int r, const char *message) {
        if (r == -EPERM)
                answer_error(c, 409, "not_possible", "%s", message ? message : "not possible now");
        else if (r < 0)
                answer_error(c, 500, "internal", "the agent could not answer: %s; see its log",
                             strerror(-r));
        return r < 0;
}

static bool refuse_query(ApiCall *c, const HttpQuery *q, const char *remedy) {
        char name[128], value[128];

        answer_error(c, 400, "bad_request", "query parameter '%s': '%s' %s",
                     quote(q->name, name, sizeof name), quote(q->value, value, sizeof value),
                     remedy);
        return false;
}

static bool refuse_any_query(ApiCall *c) {
        return c->request->n_queries == 0 ||
               refuse_query(c, &c->request->queries[0], "is not supported here; leave it out");
}

static bool is_get(const char *method) {
        return strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
}

/* ---- bundles ---- */

#define LIMIT_DEFAULT 100
#define LIMIT_MAX 1000
#define SOURCE_NAME_MAX 255
/* `KEY/N`, as in the row of a bundle. */
static bool parse_failure(const char *text, ViewFilter *f) {
        size_t n = strspn(text, "0123456789abcdef");
        uint64_t number;
        if (n != sizeof f->failure_key - 1 || text[n] != '/' ||
            parse_u64_range(text + n + 1, 1, UINT32_MAX, &number) < 0)
                return false;
        memcpy(f->failure_key, text, n);
        f->failure_n = (uint32_t)number;
        return true;
}

static bool parse_query(ApiCall *c, const HttpQuery *q, ViewFilter *f) {
        BundleState state;
        uint64_t limit;

        if (strcmp(q->name, "state") == 0) {
                if (bundle_state_parse(q->value, &state) < 0)
                        return refuse_query(
                                c, q,
                                "invalid state; use settling, ready, shipping, delivered, "
                                "quarantined, evicted, cancelled or vanished");
                f->state = (int)state;
        } else if (strcmp(q->name, "source") == 0) {
                if (q->value[0] == '\0' || strlen(q->value) > SOURCE_NAME_MAX)
                        return refuse_query(c, q,
                                            "unknown source; use a name from the configuration");
                f->source = q->value;
        } else if (strcmp(q->name, "limit") == 0) {
                if (parse_u64_range(q->value, 1, LIMIT_MAX, &limit) < 0)
                        return refuse_query(c, q, "invalid limit; use a number from 1 to 1000");
                f->limit = (unsigned)limit;
        } else if (strcmp(q->name, "about") == 0) {
                if (!bundle_id_is_valid(q->value))
                        return refuse_query(c, q, "invalid bundle id");
                f->about = q->value;
        } else if (strcmp(q->name, "failure") == 0) {
                if (!parse_failure(q->value, f))
                        return refuse_query(c, q, "invalid failure; use KEY/N of a bundle");
        } else if (strcmp(q->name, "after") == 0) {
                if (!bundle_id_is_valid(q->value))
                        return refuse_query(c, q,
                                            "invalid bundle id; use 'next' of the page before");
                f->after = q->value;
        } else
                return refuse_query(
                        c, q, "is not known; use state, source, about, failure, limit or after");
        return true;
}

static bool parse_filter(ApiCall *c, ViewFilter *ret) {
        *ret = (ViewFilter){ .state = -1, .limit = LIMIT_DEFAULT };
        for (size_t i = 0; i < c->request->n_queries; i++) {
                const HttpQuery *q = &c->request->queries[i];

                for (size_t j = 0; j < i; j++)
                        if (strcmp(c->request->queries[j].name, q->name) == 0)
                                return refuse_query(c, q,
                                                    "is the second of this name; give each once");
                if (!parse_query(c, q, ret))
                        return false;
        }
        return true;
}

typedef struct ListPage {
        json_t *bundles;
        const AgentView *view;
        unsigned limit, n;
        char last[BUNDLE_ID_SIZE];
        bool has_more;
} ListPage;

static int page_add(const BundleRecord *b, void *userdata) {
        ListPage *p = userdata;

        if (p->n == p->limit) {
                p->has_more = true;
                return 0;
        }
        if (json_array_append_new(p->bundles, api_json_bundle(b, p->view, NULL)) < 0)
                return -ENOMEM;
        memcpy(p->last, b->id, sizeof p->last);
        p->n++;
        return 0;
}

static void list_bundles(ApiCall *c) {
        _cleanup_(json_decrefp) json_t *bundles = json_array();
        AgentView v = { 0 };
        ListPage page = { .bundles = bundles, .view = &v };
        ViewFilter f;

        if (!parse_filter(c, &f))
                return;
        page.limit = f.limit;
        f.limit++; /* one more shows whether there is a next page */
        c->backend->view(&v, c->backend->userdata);
        int r = bundles ? c->backend->list(&f, page_add, &page, c->backend->userdata) : -ENOMEM;
        if (!answer_fault(c, r, NULL))
                answer_json(c, 200,
                            json_pack("{s:O, s:o}", "bundles", bundles, "next",
                                      page.has_more ? json_string(page.last) : json_null()));
}

static void answer_no_bundle(ApiCall *c) {
        char id[128];

        answer_error(c, 404, "not_found",
                     "no bundle '%s'; see the list of bundles (a row "
                     "goes some time after its source: retention.history)",
                     quote(c->id, id, sizeof id));
}

static void get_bundle(ApiCall *c) {
        _cleanup_free_ char *explain = NULL;
        _cleanup_(bundle_record_done) BundleRecord b = { 0 };
        AgentView v = { 0 };

        if (!refuse_any_query(c))
                return;
        int r = c->backend->get(c->id, &b, &explain, c->backend->userdata);
        if (r == -ENOENT)
                answer_no_bundle(c);
        else if (!answer_fault(c, r, NULL)) {
                c->backend->view(&v, c->backend->userdata);
                answer_json(c, 200, api_json_bundle(&b, &v, explain ? explain : ""));
        }
}

static void post_bundle(ApiCall *c) {
        _cleanup_free_ char *message = NULL;

        if (!refuse_any_query(c))
                return;
        int r = c->backend->act(c->id, c->action, &message, c->backend->userdata);
        if (r == -ENOENT)
                answer_no_bundle(c);
        else if (!answer_fault(c, r, message ? message : "not possible in the bundle's state"))
                answer_json(c, 200,
                            json_pack("{s:s, s:s, s:o}", "id", c->id, "action", c->action,
                                      "message", api_json_text(message)));
}

/* ---- snapshots ---- */

#define SNAPSHOTS_PATH "/v1/snapshots"
static void post_snapshot(ApiCall *c) {
        _cleanup_free_ char *message = NULL;
        char name[SNAPSHOT_NAME_SIZE];

        if (!refuse_any_query(c))
                return;
        int r = c->backend->snapshot(name, &message, c->backend->userdata);
        if (!answer_fault(c, r, message))
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
        answer_text(c, 200, "application/json", strbuf_detach(&b));
}

/* @param c  id: the snapshot's name; action: one of its files, or NULL */
static void get_snapshot(ApiCall *c) {
        _cleanup_(snapshot_answer_done) SnapshotAnswer a = { 0 };
        char name[128];

        if (!refuse_any_query(c))
                return;
        int r = c->backend->get_snapshot(c->id, c->action, &a, c->backend->userdata);
        if (r == -ENOENT)
                answer_error(c, 404, "not_found", "no snapshot '%s', or no such file in it",
                             quote(c->id, name, sizeof name));
        else if (!answer_fault(c, r, NULL) && !c->action)
                answer_snapshot(c, &a);
        else if (r == 0)
                *c->response = (HttpResponse){ .status = 200,
                                               .content_type = "application/octet-stream",
                                               .body = TAKE_PTR(a.data),
                                               .body_bytes = a.n_data };
}

static bool route_snapshot(ApiCall *c) {
        char name[SNAPSHOT_NAME_SIZE];
        const char *rest = c->request->path + strlen(SNAPSHOTS_PATH "/");

        if (strncmp(c->request->path, SNAPSHOTS_PATH "/", strlen(SNAPSHOTS_PATH "/")) != 0)
                return false;
        size_t n = strcspn(rest, "/");
        if (n == 0 || n >= sizeof name)
                return false;
        memcpy(name, rest, n);
        name[n] = '\0';
        c->id = name;
        c->action = rest[n] == '/' ? rest + n + 1 : NULL;
        if (is_get(c->request->method))
                get_snapshot(c);
        else
                refuse_method(c, "GET, HEAD");
        c->id = NULL; /* a local variable */
        return true;
}

struct Api {
        MhdLoop *http; /* NULL in tests */
        const AgentBackend *backend;
        const char *hostname; /* borrowed; NULL */
        bool read_only;
};

/* @param host  of the request, perhaps with a port */
static bool is_our_host(const Api *a, const char *host) {
        _cleanup_(url_done) Url url = { 0 };
        char text[512];

        return (size_t)snprintf(text, sizeof text, "http://%s", host) < sizeof text &&
               url_parse(&url, text) == 0 && url.is_origin &&
               (url.is_address || strcmp(url.host, "localhost") == 0 ||
                (a->hostname && strcasecmp(url.host, a->hostname) == 0));
}

/* ---- routes ---- */

static void get_status(ApiCall *c) {
        AgentView v = { 0 };

        if (!refuse_any_query(c))
                return;
        c->backend->view(&v, c->backend->userdata);
        answer_json(c, 200, api_json_status(&v));
}

/* `/v1/flush`, `/v1/scan` (what is found still waits for `settle`), `/v1/drain`, `/v1/resume` */
static void post_action(ApiCall *c) {
        _cleanup_free_ char *message = NULL;
        const char *action = c->request->path + strlen("/v1/");
        bool is_drain = strcmp(action, "drain") == 0, is_scan = strcmp(action, "scan") == 0;

        if (!refuse_any_query(c))
                return;
        int r = is_drain || strcmp(action, "resume") == 0
                        ? c->backend->drain(is_drain, &message, c->backend->userdata)
                        : c->backend->flush(is_scan, &message, c->backend->userdata);
        if (!answer_fault(c, r, message))
                answer_json(c, 200,
                            json_pack("{s:s, s:o}", "action", action, "message",
                                      api_json_text(message)));
}

static void post_redeliver(ApiCall *c) {
        _cleanup_free_ char *message = NULL;
        const char *destination = NULL;
        uint64_t n = 0, since = 0;
        bool has_more = false;

        for (size_t i = 0; i < c->request->n_queries; i++) {
                const HttpQuery *q = &c->request->queries[i];
                if (strcmp(q->name, "destination") == 0)
                        destination = q->value;
                else if (strcmp(q->name, "since") != 0) {
                        refuse_query(c, q, "is not known; use destination or since");
                        return;
                } else if (parse_u64_range(q->value, 0, UINT64_MAX / USEC_PER_SEC, &since) < 0) {
                        refuse_query(c, q, "invalid time; use seconds since 1970");
                        return;
                }
        }
        int r = c->backend->redeliver(destination, since * USEC_PER_SEC, &n, &has_more, &message,
                                      c->backend->userdata);
        if (!answer_fault(c, r, message))
                answer_json(c, 200,
                            json_pack("{s:s, s:o, s:b}", "action", "redeliver", "bundles",
                                      api_json_number(n), "more", has_more));
}

/* Scrapers and probes may add parameters of their own, which are ignored. */
static void get_metrics(ApiCall *c) {
        AgentView v = { 0 };

        c->backend->view(&v, c->backend->userdata);
        answer_text(c, 200, "text/plain; version=0.0.4; charset=utf-8", metrics_text(&v));
}

static void get_healthz(ApiCall *c) {
        answer_text(c, 200, "text/plain; charset=utf-8", strdup("ok\n"));
}

static void get_readyz(ApiCall *c) {
        AgentView v = { 0 };

        c->backend->view(&v, c->backend->userdata);
        answer_text(c, v.ready ? 200 : 503, "text/plain; charset=utf-8",
                    v.ready ? strdup("ready\n")
                            : strbuf_format("not ready: %s\n",
                                            v.ready_note ? v.ready_note : "no reason given"));
}

typedef struct Route {
        const char *path; /* of a bundle: what follows its id */
        bool of_bundle, is_post;
        void (*answer)(ApiCall *c);
} Route;

/* clang-format off */
static const Route routes[] = {
        { "/v1/status",   false, false, get_status },
        { BUNDLES_PATH,   false, false, list_bundles },
        { "/v1/flush",    false, true,  post_action },
        { "/v1/scan",     false, true,  post_action },
        { "/v1/redeliver", false, true, post_redeliver },
        { "/v1/drain",    false, true,  post_action },
        { "/v1/resume",   false, true,  post_action },
        { "/v1/snapshot", false, true,  post_snapshot },
        { "/metrics",     false, false, get_metrics },
        { "/healthz",     false, false, get_healthz },
        { "/readyz",      false, false, get_readyz },
        { "",             true,  false, get_bundle },
        { "/retry",       true,  true,  post_bundle },
        { "/cancel",      true,  true,  post_bundle },
        { "/pin",         true,  true,  post_bundle },
        { "/unpin",       true,  true,  post_bundle },
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

void api_handle(const MhdRequest *request, HttpResponse *ret, void *api) {
        const Api *a = api;
        ApiCall c = { .backend = a->backend, .request = request, .response = ret };
        char id[BUNDLE_ID_SIZE], path[256];
        const Route *route = find_route(request->path, id);

        /* Snapshots describe processes: not for the read-only listener, which anybody may reach. */
        if (!a->read_only && route_snapshot(&c))
                return;
        if (a->read_only && request->host && !is_our_host(a, request->host))
                answer_error(&c, 421, "misdirected",
                             "unknown host '%s'; use this node's address, `localhost` or '%s'",
                             quote(request->host, path, sizeof path),
                             a->hostname ? a->hostname : "127.0.0.1");
        else if (a->read_only && !is_get(request->method))
                refuse_method(&c, "GET, HEAD");
        else if (!route || (a->read_only && route->is_post))
                answer_error(&c, 404, "not_found", "no such path: '%s'",
                             quote(request->path, path, sizeof path));
        else if (!route->is_post && !is_get(request->method))
                refuse_method(&c, "GET, HEAD");
        else if (route->is_post && strcmp(request->method, "POST") != 0)
                refuse_method(&c, "POST");
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

/* ---- life ---- */

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

        int r = api_new_for_test(&a, l->read_only, l->backend);
        if (r < 0)
                return r;
        a->hostname = l->hostname;
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
