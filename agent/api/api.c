/* The routes of the HTTP API: what is asked is checked here, answered by the AgentBackend, and shown by view_json and metrics. */
#include "agent/api/api.h"

#include <errno.h>
#include <string.h>

#include "agent/api/api_call.h"
#include "agent/api/metrics.h"
#include "agent/api/view_json.h"
#include "lib/base/cleanup.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/ids.h"

struct Api {
        MhdLoop *http; /* NULL in tests */
        const AgentBackend *backend;
        bool read_only;
};

/* ── routes ────────────────────────────────────────────────────────────────────────────────────────────────── */

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
static void look_now(ApiCall *c, const char *action, bool settle) {
        _cleanup_free_ char *message = NULL;

        if (!api_refuse_any_query(c))
                return;
        int r = c->backend->flush(settle, &message, c->backend->userdata);
        answer_action(c, action, r, message);
}

static void post_flush(ApiCall *c) {
        look_now(c, "flush", false);
}

static void post_scan(ApiCall *c) {
        look_now(c, "scan", true);
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
        api_answer_text(c, v.ready ? 200 : 503, "text/plain; charset=utf-8", strbuf_take(&b));
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
