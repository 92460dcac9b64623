/* What the API shows, as JSON. Keys are fixed by docs/API.md; docs/API.md tells them all. */
#include "agent/api/view_json.h"

#include <stdint.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/path.h"

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

json_t *view_text_json(const char *s) {
        json_t *v = s ? json_string(s) : json_null();

        return v ? v : escaped(s); /* not UTF-8: a file name in a message */
}

static json_t *text_or_null(const char *s) {
        return s && s[0] != '\0' ? view_text_json(s) : json_null();
}

static json_t *moment(uint64_t realtime_usec) {
        char buf[CLOCK_ISO_SIZE];

        return realtime_usec == 0 ? json_null() : json_string(clock_format_iso(buf, realtime_usec));
}

static json_t *bundle_counts(const AgentView *v) {
        _cleanup_(json_decrefp) json_t *o = json_object();
        uint64_t discovered = (uint64_t)v->unaccounted;

        for (BundleState s = 0; s < N_BUNDLE_STATES; s++)
                discovered += v->bundles[s];
        if (!o || json_object_set_new(o, "discovered", number(discovered)) < 0)
                return NULL;
        for (BundleState s = 0; s < N_BUNDLE_STATES; s++)
                if (json_object_set_new(o, bundle_state_name(s), number(v->bundles[s])) < 0)
                        return NULL;
        return TAKE_PTR(o);
}

static json_t *bytes_by_state(const AgentView *v) {
        _cleanup_(json_decrefp) json_t *o = json_object();

        for (BundleState s = 0; o && s < N_BUNDLE_STATES; s++)
                if (json_object_set_new(o, bundle_state_name(s), number(v->bytes_by_state[s])) < 0)
                        return NULL;
        return TAKE_PTR(o);
}

static json_t *destination_json(const DestinationView *d) {
        return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}",             /* */
                         "name", view_text_json(d->name),              /* */
                         "type", view_text_json(d->type),              /* */
                         "state", view_text_json(d->state),            /* */
                         "last_error", view_text_json(d->last_error),  /* */
                         "last_success", moment(d->last_success_usec), /* */
                         "bytes_delivered", number(d->bytes_delivered));
}

static json_t *shipping_json(const ShippingView *s) {
        return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o}",         /* */
                         "id", view_text_json(s->id),                   /* */
                         "destination", view_text_json(s->destination), /* */
                         "sent_bytes", number(s->sent_bytes),           /* */
                         "done_bytes", number(s->done_bytes),           /* */
                         "total_bytes", number(s->total_bytes),         /* */
                         "rate", number(s->rate),                       /* */
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
                         "note", view_text_json(s->retention_note));
}

static json_t *limits_json(const LimitsView *l) {
        return json_pack("{s:o, s:o, s:o}",                      /* */
                         "upload_rate", number(l->upload_rate),  /* */
                         "work_share", json_real(l->work_share), /* */
                         "note", view_text_json(l->note));
}

static json_t *source_json(const SourceView *s) {
        return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", /* */
                         "name", view_text_json(s->name),                 /* */
                         "kind", view_text_json(s->kind),                 /* */
                         "path", escaped(s->path),                        /* */
                         "watch", view_text_json(s->watch),               /* */
                         "note", view_text_json(s->note),                 /* */
                         "watches", number(s->n_watches),                 /* */
                         "overflows", number(s->n_overflows),             /* */
                         "retention", retention_json(s),                  /* */
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
        return json_pack("{s:o, s:o, s:o, s:o, s:o}",                   /* */
                         "version", view_text_json(v->version),         /* */
                         "pid", number((uint64_t)v->pid),               /* */
                         "instance_id", view_text_json(v->instance_id), /* */
                         "started", moment(v->started_usec),            /* */
                         "state", view_text_json(v->state));
}

static json_t *config_json(const AgentView *v) {
        return json_pack("{s:o, s:o, s:o, s:o}",                             /* */
                         "file", escaped(v->config_file),                    /* */
                         "loaded", moment(v->config_loaded_usec),            /* */
                         "last_error", view_text_json(v->config_last_error), /* */
                         "pending_restart", view_text_json(v->config_pending_restart));
}

static json_t *drain_json(const DrainView *d) {
        if (!d->is_draining)
                return json_null();
        return json_pack("{s:o, s:o, s:o, s:b, s:o}",             /* */
                         "since", moment(d->since_usec),          /* */
                         "reason", view_text_json(d->reason),     /* */
                         "deadline", moment(d->deadline_usec),    /* */
                         "safe_to_terminate", d->is_safe ? 1 : 0, /* */
                         "missing", view_text_json(d->is_safe ? NULL : d->missing));
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
                         "trouble", view_text_json(h->trouble));
}

json_t *view_status_json(const AgentView *v) {
        return json_pack(
                "{s:o, s:o, s:b, s:b, s:o, s:o, s:b, s:o, s:o, s:{s:o, s:o, s:o}, s:o, s:o, "
                "s:o, s:o, s:o}",                                                     /* */
                "agent", agent_json(v),                                               /* */
                "config", config_json(v),                                             /* */
                "idle", v->idle ? 1 : 0,                                              /* */
                "ready", v->ready ? 1 : 0,                                            /* */
                "ready_note", view_text_json(v->ready_note),                          /* */
                "drain", drain_json(&v->drain),                                       /* */
                "accounting_ok", v->unaccounted == 0 ? 1 : 0,                         /* */
                "bundles", bundle_counts(v),                                          /* */
                "bytes_by_state", bytes_by_state(v),                                  /* */
                "bytes",                                                              /* */
                "delivered", number(v->bytes_delivered),                              /* */
                "sent", number(v->bytes_sent),                                        /* */
                "read", number(v->bytes_read),                                        /* */
                "limits", limits_json(&v->limits),                                    /* */
                "hook", hook_json(&v->hook),                                          /* */
                "destinations", destination_list(v->destinations, v->n_destinations), /* */
                "shipping", shipping_list(v->shipping, v->n_shipping),                /* */
                "sources", source_list(v->sources, v->n_sources));
}

/* @return how far it is, NULL when it is not under way */
static const ShippingView *find_shipping(const BundleRecord *b, const DeliveryRecord *d,
                                         const AgentView *v) {
        for (size_t i = 0; d->state != DELIVERY_DONE && i < v->n_shipping; i++)
                if (strcmp(v->shipping[i].id, b->id) == 0 &&
                    strcmp(v->shipping[i].destination, d->destination) == 0)
                        return &v->shipping[i];
        return NULL;
}

static json_t *delivery_json(const BundleRecord *b, const DeliveryRecord *d, const AgentView *v) {
        const ShippingView *way = find_shipping(b, d, v);
        uint64_t sent = d->state == DELIVERY_DONE ? d->bytes : way ? way->sent_bytes : 0;
        _cleanup_(json_decrefp) json_t *progress = way ? shipping_json(way) : NULL;
        return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:O*, s:O*, s:O*, s:O*, s:o, s:o, s:o}",
                         "destination", view_text_json(d->destination),          /* */
                         "state", view_text_json(delivery_state_name(d->state)), /* */
                         "proof", view_text_json(proof_name(d->proof)),          /* */
                         "object", escaped(d->object),                           /* */
                         "bytes", number(d->bytes),                              /* */
                         "sent_bytes", number(sent),                             /* */
                         "done_bytes", json_object_get(progress, "done_bytes"), /* while shipping */
                         "total_bytes", json_object_get(progress, "total_bytes"), "rate",
                         json_object_get(progress, "rate"), /* */
                         "eta_seconds", json_object_get(progress, "eta_seconds"), "attempts",
                         number(d->attempts),                         /* */
                         "last_error", view_text_json(d->last_error), /* */
                         "next_try", moment(d->next_try_usec));
}

static json_t *delivery_list(const BundleRecord *b, const AgentView *v) {
        _cleanup_(json_decrefp) json_t *list = json_array();

        for (size_t i = 0; list && i < b->n_deliveries; i++)
                if (json_array_append_new(list, delivery_json(b, &b->deliveries[i], v)) < 0)
                        return NULL;
        return TAKE_PTR(list);
}

/* The store keeps the reasons as JSON; what is no array is shown as the one reason rather than
 * lost. */
static json_t *reasons_json(const char *text) {
        json_t *v;

        if (!text || text[0] == '\0')
                return json_array();
        v = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
        if (json_is_array(v))
                return v;
        json_decref(v);
        return json_pack("[o]", view_text_json(text));
}

json_t *view_bundle_json(const BundleRecord *b, const AgentView *v, const char *explain) {
        _cleanup_(json_decrefp) json_t *o =
                json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:o, "
                          "s:o, s:o, s:b, s:b, s:o}",                           /* */
                          "id", view_text_json(b->id),                          /* */
                          "source", view_text_json(b->source),                  /* */
                          "kind", view_text_json(source_kind_name(b->kind)),    /* */
                          "path", escaped(b->path),                             /* */
                          "state", view_text_json(bundle_state_name(b->state)), /* */
                          "reason", view_text_json(b->reason),                  /* */
                          "complete", b->complete ? 1 : 0,                      /* */
                          "incomplete", reasons_json(b->incomplete),            /* */
                          "date_time", text_or_null(b->date_time),              /* */
                          "cluster_id", text_or_null(b->cluster_id),            /* */
                          "supplement_of", text_or_null(b->supplement_of),      /* */
                          "files", number(b->n_files),                          /* */
                          "bytes", number(b->bytes),                            /* */
                          "first_seen", moment(b->first_seen_usec),             /* */
                          "changed", moment(b->changed_usec),                   /* */
                          "attempts", number(b->attempts),                      /* */
                          "pinned", b->pinned ? 1 : 0,                          /* */
                          "links_held", b->links_held ? 1 : 0,                  /* */
                          "deliveries", delivery_list(b, v));

        if (o && explain && json_object_set_new(o, "explain", view_text_json(explain)) < 0)
                return NULL;
        return TAKE_PTR(o);
}
