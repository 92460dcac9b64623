/* The JSON of docs/API.md: the document of a status and that of a bundle, from the view and the
 * row. Requests and their routes are in api.c. A text that is not UTF-8, such as a path, is
 * escaped. */
#include "agent/api/api_json.h"

#include <stdbool.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/json_text.h"
#include "lib/base/path.h"
#include "lib/neuron/bundle_name.h"

/* json_pack() with "o" takes the references over, fails as a whole when one of them is NULL, and
 * then drops the others. */

json_t *api_json_number(uint64_t n) {
        return json_integer((json_int_t)MIN(n, (uint64_t)INT64_MAX));
}

static json_t *escaped(const char *s) {
        _cleanup_free_ char *text = s ? path_escape(s) : NULL;

        if (!s)
                return json_null();
        return text ? json_string(text) : NULL;
}

json_t *api_json_text(const char *s) {
        json_t *v = s ? json_string(s) : json_null();

        return v ? v : escaped(s); /* not UTF-8: a file name in a message */
}

static json_t *text_or_null(const char *s) {
        return s && s[0] != '\0' ? api_json_text(s) : json_null();
}

static json_t *moment(uint64_t realtime_usec) {
        char buf[CLOCK_ISO_SIZE];

        return realtime_usec == 0 ? json_null() : json_string(clock_format_iso(buf, realtime_usec));
}

/* @param o  taken over: gets a member for each state; NULL: no memory */
static json_t *add_states(json_t *o, const uint64_t numbers[static N_BUNDLE_STATES]) {
        for (BundleState s = 0; o && s < N_BUNDLE_STATES; s++)
                if (json_object_set_new(o, bundle_state_name(s), api_json_number(numbers[s])) < 0) {
                        json_decref(o);
                        return NULL;
                }
        return o;
}

static json_t *bundle_counts(const AgentView *v) {
        json_t *o = json_pack("{s:o}", "discovered", api_json_number(agent_view_discovered(v)));
        return add_states(o, v->bundles);
}

static json_t *destination_json(const DestinationView *d) {
        return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o}",        /* */
                         "name", api_json_text(d->name),               /* */
                         "type", api_json_text(d->type),               /* */
                         "state", api_json_text(d->state),             /* */
                         "last_error", api_json_text(d->last_error),   /* */
                         "last_success", moment(d->last_success_usec), /* */
                         "bytes_delivered", api_json_number(d->bytes_delivered), "lacking",
                         api_json_number(d->n_lacking));
}

static json_t *shipping_json(const ShippingView *s) {
        return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o}",          /* */
                         "id", api_json_text(s->id),                     /* */
                         "destination", api_json_text(s->destination),   /* */
                         "sent_bytes", api_json_number(s->sent_bytes),   /* */
                         "done_bytes", api_json_number(s->done_bytes),   /* */
                         "total_bytes", api_json_number(s->total_bytes), /* */
                         "rate", api_json_number(s->rate),               /* */
                         "eta_seconds",
                         s->eta_seconds == UINT64_MAX ? json_null()
                                                      : api_json_number(s->eta_seconds));
}

static json_t *retention_json(const SourceView *s) {
        return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o}",                  /* */
                         "used_bytes", api_json_number(s->used_bytes),           /* */
                         "max_use_bytes", api_json_number(s->max_use_bytes),     /* */
                         "free_bytes", api_json_number(s->free_bytes),           /* */
                         "keep_free_bytes", api_json_number(s->keep_free_bytes), /* */
                         "held", api_json_number(s->n_held),                     /* */
                         "unheld", api_json_number(s->n_unheld),                 /* */
                         "note", api_json_text(s->retention_note));
}

static json_t *limits_json(const LimitsView *l) {
        return json_pack("{s:o, s:o, s:o}",                              /* */
                         "upload_rate", api_json_number(l->upload_rate), /* */
                         "work_share", json_real(l->work_share),         /* */
                         "note", api_json_text(l->note));
}

static json_t *others_json(const SourceView *s) {
        return json_pack("{s:o, s:o, s:o, s:o}",                                      /* */
                         "units", api_json_number(s->n_others),                       /* */
                         "nodes", api_json_number(s->n_other_nodes),                  /* */
                         "oldest_seconds", api_json_number(s->others_oldest_seconds), /* */
                         "dead_links", api_json_number(s->n_dead_links));
}

static json_t *source_json(const SourceView *s) {
        return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", /* */
                         "name", api_json_text(s->name),                            /* */
                         "kind", api_json_text(s->kind),                            /* */
                         "path", escaped(s->path),                                  /* */
                         "watch", api_json_text(s->watch),                          /* */
                         "note", api_json_text(s->note),                            /* */
                         "unseen", api_json_text(s->unseen),                        /* */
                         "watches", api_json_number(s->n_watches),                  /* */
                         "overflows", api_json_number(s->n_overflows),              /* */
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
        return json_pack("{s:o, s:o, s:o, s:o, s:o}",                  /* */
                         "version", api_json_text(v->version),         /* */
                         "pid", api_json_number((uint64_t)v->pid),     /* */
                         "instance_id", api_json_text(v->instance_id), /* */
                         "started", moment(v->started_usec),           /* */
                         "state", api_json_text(v->state));
}

static json_t *config_json(const AgentView *v) {
        return json_pack("{s:o, s:o, s:o, s:o}",                            /* */
                         "file", escaped(v->config_file),                   /* */
                         "loaded", moment(v->config_loaded_usec),           /* */
                         "last_error", api_json_text(v->config_last_error), /* */
                         "pending_restart", api_json_text(v->config_pending_restart));
}

static json_t *drain_json(const DrainView *d) {
        if (!d->is_draining)
                return json_null();
        return json_pack("{s:o, s:o, s:o, s:b, s:o}",             /* */
                         "since", moment(d->since_usec),          /* */
                         "reason", api_json_text(d->reason),      /* */
                         "deadline", moment(d->deadline_usec),    /* */
                         "safe_to_terminate", d->is_safe ? 1 : 0, /* */
                         "missing", api_json_text(d->is_safe ? NULL : d->missing));
}

static json_t *snapshots_json(const HookView *h) {
        return json_pack("{s:o, s:o, s:o}",                                  /* */
                         "taken", api_json_number(h->n_snapshots),           /* */
                         "dropped", api_json_number(h->n_snapshots_dropped), /* */
                         "underway", api_json_number(h->n_snapshots_underway));
}

static json_t *hook_json(const HookView *h) {
        return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", /* */
                         "socket", escaped(h->socket),                         /* */
                         "mailbox", escaped(h->mailbox),                       /* */
                         "notes", api_json_number(h->n_socket + h->n_mailbox), /* */
                         "refused", api_json_number(h->n_refused),             /* */
                         "twice", api_json_number(h->n_twice),                 /* */
                         "unseen", api_json_number(h->n_unseen),               /* */
                         "open", api_json_number(h->n_open),                   /* */
                         "awaited", api_json_number(h->n_awaited),             /* */
                         "snapshots", snapshots_json(h),                       /* */
                         "trouble", api_json_text(h->trouble));
}

static json_t *cap_json(uint64_t max) {
        return max == UINT64_MAX ? json_null() : api_json_number(max);
}

static json_t *bound_json(const BoundView *b) {
        char owner[OWNER_TEXT_SIZE];
        return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o}",         /* */
                         "what", b->what,                          /* */
                         "max", cap_json(b->max),                  /* */
                         "max_each", cap_json(b->max_each),        /* */
                         "total", api_json_number(b->total),       /* */
                         "refused", api_json_number(b->n_refused), /* */
                         "last_refused",
                         b->has_owner ? json_string(owner_text(&b->last_refused, owner))
                                      : json_null());
}

DEFINE_LIST(bound_list, BoundView, bound_json);

/* What another module has written. */
static json_t *written_json(const char *text) {
        json_t *v = text ? json_loads(text, JSON_REJECT_DUPLICATES, NULL) : NULL;
        return v ? v : json_null();
}

json_t *api_json_status(const AgentView *v) {
        return json_pack(
                "{s:o, s:o, s:b, s:b, s:o, s:o, s:b, s:o, s:o, s:{s:o, s:o, s:o}, s:o, s:o, "
                "s:o, s:o, s:o, s:o, s:o}",                                           /* */
                "agent", agent_json(v),                                               /* */
                "config", config_json(v),                                             /* */
                "idle", v->idle ? 1 : 0,                                              /* */
                "ready", v->ready ? 1 : 0,                                            /* */
                "ready_note", api_json_text(v->ready_note),                           /* */
                "drain", drain_json(&v->drain),                                       /* */
                "accounting_ok", v->unaccounted == 0 ? 1 : 0,                         /* */
                "bundles", bundle_counts(v),                                          /* */
                "bytes_by_state", add_states(json_object(), v->bytes_by_state),       /* */
                "bytes",                                                              /* */
                "delivered", api_json_number(v->bytes_delivered),                     /* */
                "sent", api_json_number(v->bytes_sent),                               /* */
                "read", api_json_number(v->bytes_read),                               /* */
                "limits", limits_json(&v->limits),                                    /* */
                "hook", hook_json(&v->hook),                                          /* */
                "agreement", written_json(v->agreement),                              /* */
                "destinations", destination_list(v->destinations, v->n_destinations), /* */
                "shipping", shipping_list(v->shipping, v->n_shipping),                /* */
                "sources", source_list(v->sources, v->n_sources), "bounded",
                bound_list(v->bounded, v->n_bounded));
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
                         "destination", api_json_text(d->destination),          /* */
                         "state", api_json_text(delivery_state_name(d->state)), /* */
                         "proof", api_json_text(proof_name(d->proof)),          /* */
                         "object", escaped(d->object),                          /* */
                         "bytes", api_json_number(d->bytes),                    /* */
                         "sent_bytes", api_json_number(sent),                   /* */
                         "done_bytes", json_object_get(progress, "done_bytes"), /* while shipping */
                         "total_bytes", json_object_get(progress, "total_bytes"), "rate",
                         json_object_get(progress, "rate"), /* */
                         "eta_seconds", json_object_get(progress, "eta_seconds"), "attempts",
                         api_json_number(d->attempts),               /* */
                         "last_error", api_json_text(d->last_error), /* */
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
        return json_pack("[o]", api_json_text(text));
}

/* The kind of a bundle is what its id begins with. */
static json_t *related_json(const char *about) {
        json_t *list = json_array(), *v = about ? json_loads(about, 0, NULL) : NULL;
        const json_t *item;
        size_t i;
        json_array_foreach(json_object_get(v, "related"), i, item) {
                const char *id = json_string_value(item);
                const char *kind = id ? bundle_id_kind_name(id) : NULL;
                if (kind)
                        (void)json_array_append_new(
                                list, json_pack("{s:s, s:s}", "kind", kind, "id", id));
        }
        json_decref(v);
        return list;
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
                         "n", n->n ? api_json_number(n->n) : json_null());
}

json_t *api_json_bundle(const BundleRecord *b, const AgentView *v, const char *explain) {
        _cleanup_(json_decrefp) json_t *o =
                json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:o, s:o, s:o, s:s, s:o, s:o, s:o, "
                          "s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:b, s:o}",      /* */
                          "id", api_json_text(b->id),                          /* */
                          "source", api_json_text(b->source),                  /* */
                          "kind", api_json_text(source_kind_name(b->kind)),    /* */
                          "path", escaped(b->path),                            /* */
                          "state", api_json_text(bundle_state_name(b->state)), /* */
                          "reason", api_json_text(b->reason),                  /* */
                          "complete", b->complete ? 1 : 0,                     /* */
                          "incomplete", reasons_json(b->incomplete),           /* */
                          "date_time", text_or_null(b->date_time),             /* */
                          "cluster_id", text_or_null(b->cluster_id),           /* */
                          "origin", origin_name(b->origin),                    /* */
                          "supplement_of", text_or_null(b->supplement_of),     /* */
                          "related", related_json(b->about),                   /* */
                          "failure", written_json(b->failure),                 /* */
                          "incident", incident_json(b),                        /* */
                          "files", api_json_number(b->n_files),                /* */
                          "bytes", api_json_number(b->bytes),                  /* */
                          "first_seen", moment(b->first_seen_usec),            /* */
                          "changed", moment(b->changed_usec),                  /* */
                          "attempts", api_json_number(b->attempts),            /* */
                          "pinned", b->pinned ? 1 : 0,                         /* */
                          "links_held", b->links_held ? 1 : 0,                 /* */
                          "deliveries", delivery_list(b, v));

        if (o && explain && json_object_set_new(o, "explain", api_json_text(explain)) < 0)
                return NULL;
        return TAKE_PTR(o);
}
