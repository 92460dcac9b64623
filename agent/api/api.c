/* The routes of docs/API.md, on top of lib/http/mhd_loop: one call, its answer or error. */
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

#include "agent/api/metrics.h"
#include "agent/api/view.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/json_out.h"
#include "lib/base/json_text.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/http/mhd_loop.h"
#include "lib/http/url.h"
#include "lib/neuron/bundle_name.h"
#include "lib/neuron/ids.h"

/* ---- JSON ---- */

/* json_pack() with "o" takes the references over, fails as a whole when one of them is NULL, and
 * then drops the others. */

static json_t *number(uint64_t n) {
        return json_integer((json_int_t)MIN(n, (uint64_t)INT64_MAX));
}

static json_t *escaped(const char *s) {
        _cleanup_free_ char *text = s ? path_escape(s) : NULL;

        if (!s)
                return json_null();
        return text ? json_string(text) : NULL;
}

/* @return null for NULL; escaped where it is not UTF-8; NULL: no memory */
static json_t *text_json(const char *s) {
        json_t *v = s ? json_string(s) : json_null();

        return v ? v : escaped(s); /* not UTF-8: a file name in a message */
}

static json_t *text_or_null(const char *s) {
        return s && s[0] != '\0' ? text_json(s) : json_null();
}

static json_t *moment(uint64_t realtime_usec) {
        char buf[CLOCK_ISO_SIZE];

        return realtime_usec == 0 ? json_null() : json_string(clock_format_iso(buf, realtime_usec));
}

/* @param o  taken over: gets a member for each state; NULL: no memory */
static json_t *add_states(json_t *o, const uint64_t numbers[static N_BUNDLE_STATES]) {
        for (BundleState s = 0; o && s < N_BUNDLE_STATES; s++)
                if (json_object_set_new(o, bundle_state_name(s), number(numbers[s])) < 0) {
                        json_decref(o);
                        return NULL;
                }
        return o;
}

static json_t *bundle_counts(const AgentView *v) {
        json_t *o = json_pack("{s:o}", "discovered", number(agent_view_discovered(v)));
        return add_states(o, v->bundles);
}

static json_t *destination_json(const DestinationView *d) {
        return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o}",        /* */
                         "name", text_json(d->name),                   /* */
                         "type", text_json(d->type),                   /* */
                         "state", text_json(d->state),                 /* */
                         "last_error", text_json(d->last_error),       /* */
                         "last_success", moment(d->last_success_usec), /* */
                         "bytes_delivered", number(d->bytes_delivered), "lacking",
                         number(d->n_lacking));
}

static json_t *shipping_json(const ShippingView *s) {
        return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o}",    /* */
                         "id", text_json(s->id),                   /* */
                         "destination", text_json(s->destination), /* */
                         "sent_bytes", number(s->sent_bytes),      /* */
                         "done_bytes", number(s->done_bytes),      /* */
                         "total_bytes", number(s->total_bytes),    /* */
                         "rate", number(s->rate),                  /* */
                         "eta_seconds",
                         s->eta_seconds == UINT64_MAX ? json_null() : number(s->eta_seconds));
}

static json_t *retention_json(const SourceView *s) {
        return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o}",         /* */
                         "used_bytes", number(s->used_bytes),           /* */
                         "max_use_bytes", number(s->max_use_bytes),     /* */
                         "free_bytes", number(s->free_bytes),           /* */
                         "keep_free_bytes", number(s->keep_free_bytes), /* */
                         "held", number(s->n_held),                     /* */
                         "unheld", number(s->n_unheld),                 /* */
                         "note", text_json(s->retention_note));
}

static json_t *limits_json(const LimitsView *l) {
        return json_pack("{s:o, s:o, s:o}",                      /* */
                         "upload_rate", number(l->upload_rate),  /* */
                         "work_share", json_real(l->work_share), /* */
                         "note", text_json(l->note));
}

static json_t *others_json(const SourceView *s) {
        return json_pack("{s:o, s:o, s:o, s:o}",                             /* */
                         "units", number(s->n_others),                       /* */
                         "nodes", number(s->n_other_nodes),                  /* */
                         "oldest_seconds", number(s->others_oldest_seconds), /* */
                         "dead_links", number(s->n_dead_links));
}

static json_t *source_json(const SourceView *s) {
        return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", /* */
                         "name", text_json(s->name),                                /* */
                         "kind", text_json(s->kind),                                /* */
                         "path", escaped(s->path),                                  /* */
                         "watch", text_json(s->watch),                              /* */
                         "note", text_json(s->note),                                /* */
                         "unseen", text_json(s->unseen),                            /* */
                         "watches", number(s->n_watches),                           /* */
                         "overflows", number(s->n_overflows),                       /* */
                         "others", others_json(s),                                  /* */
                         "retention", retention_json(s),                            /* */
                         "last_scan_seconds", json_real(s->last_scan_seconds));
}

#define DEFINE_LIST(name, type, one)                                                               \
        static json_t *name(const type *items, size_t n) {                                         \
                _cleanup_(json_decrefp) json_t *list = json_array();                               \
                                                                                                   \
                for (size_t i = 0; list && i < n; i++)                                             \
                        if (json_array_append_new(list, one(&items[i])) < 0)                       \
                                return NULL;                                                       \
                return TAKE_PTR(list);                                                             \
        }                                                                                          \
        struct list_needs_a_semicolon

DEFINE_LIST(destination_list, DestinationView, destination_json);

DEFINE_LIST(shipping_list, ShippingView, shipping_json);

DEFINE_LIST(source_list, SourceView, source_json);

static json_t *agent_json(const AgentView *v) {
        return json_pack("{s:o, s:o, s:o, s:o, s:o}",              /* */
                         "version", text_json(v->version),         /* */
                         "pid", number((uint64_t)v->pid),          /* */
                         "instance_id", text_json(v->instance_id), /* */
                         "started", moment(v->started_usec),       /* */
                         "state", text_json(v->state));
}

static json_t *config_json(const AgentView *v) {
        return json_pack("{s:o, s:o, s:o, s:o}",                        /* */
                         "file", escaped(v->config_file),               /* */
                         "loaded", moment(v->config_loaded_usec),       /* */
                         "last_error", text_json(v->config_last_error), /* */
                         "pending_restart", text_json(v->config_pending_restart));
}

static json_t *drain_json(const DrainView *d) {
        if (!d->is_draining)
                return json_null();
        return json_pack("{s:o, s:o, s:o, s:b, s:o}",             /* */
                         "since", moment(d->since_usec),          /* */
                         "reason", text_json(d->reason),          /* */
                         "deadline", moment(d->deadline_usec),    /* */
                         "safe_to_terminate", d->is_safe ? 1 : 0, /* */
                         "missing", text_json(d->is_safe ? NULL : d->missing));
}

static json_t *snapshots_json(const HookView *h) {
        return json_pack("{s:o, s:o, s:o}",                         /* */
                         "taken", number(h->n_snapshots),           /* */
                         "dropped", number(h->n_snapshots_dropped), /* */
                         "underway", number(h->n_snapshots_underway));
}

static json_t *hook_json(const HookView *h) {
        return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", /* */
                         "socket", escaped(h->socket),                         /* */
                         "mailbox", escaped(h->mailbox),                       /* */
                         "notes", number(h->n_socket + h->n_mailbox),          /* */
                         "refused", number(h->n_refused),                      /* */
                         "twice", number(h->n_twice),                          /* */
                         "unseen", number(h->n_unseen),                        /* */
                         "open", number(h->n_open),                            /* */
                         "awaited", number(h->n_awaited),                      /* */
                         "snapshots", snapshots_json(h),                       /* */
                         "trouble", text_json(h->trouble));
}

static json_t *bounded_json(const Owners *const *bounded) {
        const Owners *o = *bounded;
        return json_pack("{s:s, s:o, s:o, s:o}",         /* */
                         "what", o->what,                /* */
                         "max", number(owners_bound(o)), /* */
                         "total", number(o->total),      /* */
                         "refused", number(o->n_refused));
}

DEFINE_LIST(bounded_list, Owners *const, bounded_json);

/* What another module has written. */
static json_t *written_json(const char *text) {
        json_t *v = text ? json_loads(text, JSON_REJECT_DUPLICATES, NULL) : NULL;
        return v ? v : json_null();
}

static json_t *status_json(const AgentView *v) {
        return json_pack(
                "{s:o, s:o, s:b, s:b, s:o, s:o, s:b, s:o, s:o, s:{s:o, s:o, s:o}, s:o, s:o, "
                "s:o, s:o, s:o, s:o, s:o}",                                           /* */
                "agent", agent_json(v),                                               /* */
                "config", config_json(v),                                             /* */
                "idle", v->idle ? 1 : 0,                                              /* */
                "ready", v->ready ? 1 : 0,                                            /* */
                "ready_note", text_json(v->ready_note),                               /* */
                "drain", drain_json(&v->drain),                                       /* */
                "accounting_ok", v->unaccounted == 0 ? 1 : 0,                         /* */
                "bundles", bundle_counts(v),                                          /* */
                "bytes_by_state", add_states(json_object(), v->bytes_by_state),       /* */
                "bytes",                                                              /* */
                "delivered", number(v->bytes_delivered),                              /* */
                "sent", number(v->bytes_sent),                                        /* */
                "read", number(v->bytes_read),                                        /* */
                "limits", limits_json(&v->limits),                                    /* */
                "hook", hook_json(&v->hook),                                          /* */
                "agreement", written_json(v->agreement),                              /* */
                "destinations", destination_list(v->destinations, v->n_destinations), /* */
                "shipping", shipping_list(v->shipping, v->n_shipping),                /* */
                "sources", source_list(v->sources, v->n_sources), "bounded",
                bounded_list(v->bounded, v->n_bounded));
}

/* @return its progress, NULL when it is not underway */
static const ShippingView *find_shipping(const BundleRecord *b, const DeliveryRecord *d,
                                         const AgentView *v) {
        for (size_t i = 0; d->state != DELIVERY_DONE && i < v->n_shipping; i++)
                if (strcmp(v->shipping[i].id, b->id) == 0 &&
                    strcmp(v->shipping[i].destination, d->destination) == 0)
                        return &v->shipping[i];
        return NULL;
}

static json_t *delivery_json(const BundleRecord *b, const DeliveryRecord *d, const AgentView *v) {
        const ShippingView *shipping = find_shipping(b, d, v);
        uint64_t sent = d->state == DELIVERY_DONE ? d->bytes : shipping ? shipping->sent_bytes : 0;
        _cleanup_(json_decrefp) json_t *progress = shipping ? shipping_json(shipping) : NULL;
        return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:O*, s:O*, s:O*, s:O*, s:o, s:o, s:o}",
                         "destination", text_json(d->destination),              /* */
                         "state", text_json(delivery_state_name(d->state)),     /* */
                         "proof", text_json(proof_name(d->proof)),              /* */
                         "object", escaped(d->object),                          /* */
                         "bytes", number(d->bytes),                             /* */
                         "sent_bytes", number(sent),                            /* */
                         "done_bytes", json_object_get(progress, "done_bytes"), /* while shipping */
                         "total_bytes", json_object_get(progress, "total_bytes"), "rate",
                         json_object_get(progress, "rate"), /* */
                         "eta_seconds", json_object_get(progress, "eta_seconds"), "attempts",
                         number(d->attempts),                    /* */
                         "last_error", text_json(d->last_error), /* */
                         "next_try", moment(d->next_try_usec));
}

static json_t *delivery_list(const BundleRecord *b, const AgentView *v) {
        _cleanup_(json_decrefp) json_t *list = json_array();

        for (size_t i = 0; list && i < b->n_deliveries; i++)
                if (json_array_append_new(list, delivery_json(b, &b->deliveries[i], v)) < 0)
                        return NULL;
        return TAKE_PTR(list);
}

/* The store keeps the reasons as a JSON array; anything else is shown as one reason. */
static json_t *reasons_json(const char *text) {
        if (!text || text[0] == '\0')
                return json_array();
        json_t *v = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
        if (json_is_array(v))
                return v;
        json_decref(v);
        return json_pack("[o]", text_json(text));
}

static json_t *incident_json(const BundleRecord *b) {
        const FailureName *n = &b->name;
        if (n->agreed[0] == '\0')
                return json_null();
        return json_pack("{s:o, s:o, s:b, s:s, s:o, s:o}",                        /* */
                         "cluster_id", text_or_null(bundle_record_cluster_id(b)), /* */
                         "date_time", text_or_null(bundle_record_date_time(b)),   /* */
                         "derived", n->derived ? 1 : 0,                           /* */
                         "agreed", n->agreed,                                     /* */
                         "key", text_or_null(n->key),                             /* */
                         "n", n->n ? number(n->n) : json_null());
}

/* @param v  has the progress of a delivery that is underway @param explain  NULL = without it */
static json_t *bundle_json(const BundleRecord *b, const AgentView *v, const char *explain) {
        _cleanup_(json_decrefp) json_t *o =
                json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:o, "
                          "s:o, s:o, s:o, s:o, s:b, s:b, s:o}",            /* */
                          "id", text_json(b->id),                          /* */
                          "source", text_json(b->source),                  /* */
                          "kind", text_json(source_kind_name(b->kind)),    /* */
                          "path", escaped(b->path),                        /* */
                          "state", text_json(bundle_state_name(b->state)), /* */
                          "reason", text_json(b->reason),                  /* */
                          "complete", b->complete ? 1 : 0,                 /* */
                          "incomplete", reasons_json(b->incomplete),       /* */
                          "date_time", text_or_null(b->date_time),         /* */
                          "cluster_id", text_or_null(b->cluster_id),       /* */
                          "supplement_of", text_or_null(b->supplement_of), /* */
                          "failure", written_json(b->failure),             /* */
                          "incident", incident_json(b),                    /* */
                          "files", number(b->n_files),                     /* */
                          "bytes", number(b->bytes),                       /* */
                          "first_seen", moment(b->first_seen_usec),        /* */
                          "changed", moment(b->changed_usec),              /* */
                          "attempts", number(b->attempts),                 /* */
                          "pinned", b->pinned ? 1 : 0,                     /* */
                          "links_held", b->links_held ? 1 : 0,             /* */
                          "deliveries", delivery_list(b, v));

        if (o && explain && json_object_set_new(o, "explain", text_json(explain)) < 0)
                return NULL;
        return TAKE_PTR(o);
}

typedef struct ApiCall { /* all borrowed */
        const AgentBackend *backend;
        const HttpRequest *request;
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
                              text_json(message ? message : "no memory")));
}

static void refuse_method(ApiCall *c, const char *allow) {
        char method[64];

        answer_error(c, 405, "method_not_allowed", "'%s' is not possible here; use %s",
                     quote(c->request->method, method, sizeof method), allow);
        c->response->allow = allow;
}

/* @return whether it is one, and answered. @param message  of -EPERM; NULL */
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
        } else if (strcmp(q->name, "after") == 0) {
                if (!bundle_id_is_valid(q->value))
                        return refuse_query(c, q,
                                            "invalid bundle id; use 'next' of the page before");
                f->after = q->value;
        } else
                return refuse_query(c, q, "is not known; use state, source, limit or after");
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
        if (json_array_append_new(p->bundles, bundle_json(b, p->view, NULL)) < 0)
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
                answer_json(c, 200, bundle_json(&b, &v, explain ? explain : ""));
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
                                      "message", text_json(message)));
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
        answer_json(c, 200, status_json(&v));
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
                answer_json(
                        c, 200,
                        json_pack("{s:s, s:o}", "action", action, "message", text_json(message)));
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
                                      number(n), "more", has_more));
}

/* Scrapers and probes may add parameters of their own: they change nothing here. */
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

void api_handle(const HttpRequest *request, HttpResponse *ret, void *api) {
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
