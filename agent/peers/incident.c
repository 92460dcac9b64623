/* Writes incident.json (`neuron-collectd/incident/1`), the document about a failure for readers
 * outside, and finds this node's record in one. */
#include "agent/peers/incident.h"

#include <stdlib.h>
#include <string.h>

#include "agent/peers/document.h"
#include "lib/base/cleanup.h"
#include "lib/base/json_out.h"
#include "lib/base/parse.h"
#include "lib/neuron/bundle_name.h"
#include "lib/neuron/nrt_status.h"

#define INCIDENT_SCHEMA "neuron-collectd/incident/1"
/* Beyond this size no further bundle is listed: the document may have 4 MiB, and must have the
 * ranks and the nodes. */
#define BUNDLES_END_BYTES ((size_t)7 << 19)

static const char *const state_words[N_RANK_STATES] = {
        [RANK_PRESENT] = "present",
        [RANK_LATE] = "late",
        [RANK_MISSING] = "missing",
};

static const char *const reason_words[N_MISSING_REASONS] = {
        [MISSING_UNREACHABLE] = "unreachable",
        [MISSING_NO_DUMP] = "no_dump",
        [MISSING_EMPTY] = "empty",
        [MISSING_UNDELIVERED] = "undelivered",
};

static void add_process(StrBuf *b, const RosterRank *row) {
        document_add_number(b, "rank", row->rank);
        json_out_string(b, "instance_id", row->claim ? row->claim->instance_id : NULL);
        document_add_number(
                b, "pid",
                row->claim && row->claim->pid < CLAIM_PID_UNKNOWN ? (int64_t)row->claim->pid : -1);
}

static void add_row(StrBuf *b, const RosterRank *row) {
        const Claim *c = row->claim;
        json_out_object(b, NULL);
        add_process(b, row);
        json_out_string(b, "state", state_words[row->state]);
        json_out_string(b, "reason", reason_words[row->reason]);
        document_add_error(b, c);
        document_add_text(b, "error_location", c ? c->error_location : "");
        document_add_time(b, "first_seen", c ? c->event_usec : INT64_MIN);
        document_add_text(b, "bundle", c ? c->bundle : "");
        json_out_end_object(b);
}

static void add_first_failure(StrBuf *b, const Roster *r) {
        const Claim *c = r->first_failure ? r->first_failure->claim : NULL;
        if (!c) {
                json_out_null(b, "first_failure");
                return;
        }
        json_out_object(b, "first_failure");
        add_process(b, r->first_failure);
        document_add_error(b, c);
        json_out_string(b, "error_name", c->has_error ? nrt_status_name(c->error_code) : NULL);
        document_add_text(b, "error_location", c->error_location);
        document_add_time(b, "time", c->event_usec);
        json_out_u64(b, "uncertainty_ms", document_usec_to_msec(r->uncertainty_usec));
        json_out_end_object(b);
}

static void add_decision(StrBuf *b, const Decision *d, const char *job_key) {
        json_out_string(b, "schema", INCIDENT_SCHEMA);
        json_out_string(b, "cluster_id", d->cluster_id);
        json_out_string(b, "date_time", d->date_time);
        json_out_bool(b, "derived", d->derived);
        document_add_text(b, "job", job_key);
        json_out_string(b, "key", d->key);
        json_out_u64(b, "n", d->n);
        json_out_string(b, "decided_by", d->created_by);
        document_add_time(b, "decided_at", d->opened_usec);
        json_out_string(b, "agreed", agreed_name(d->agreed));
}

static void add_bundles(StrBuf *b, const NodeBundles *bundles) {
        size_t n = 0;
        json_out_array(b, "bundles");
        for (; n < bundles->n && b->n < BUNDLES_END_BYTES; n++) {
                const NodeBundle *x = &bundles->items[n];
                json_out_object(b, NULL);
                json_out_string(b, "id", x->id);
                json_out_string(b, "kind", bundle_id_kind_name(x->id));
                json_out_string(b, "state", bundle_state_name(x->state));
                json_out_string(b, "object", x->object);
                json_out_end_object(b);
        }
        json_out_end_array(b);
        json_out_u64(b, "bundles_left_out", bundles->n_left_out + (bundles->n - n));
}

static void add_nodes(StrBuf *b, const Roster *r) {
        json_out_array(b, "nodes");
        for (size_t i = 0; i < r->n_nodes; i++) {
                json_out_object(b, NULL); /* incident_has_record() relies on these bytes */
                json_out_string(b, "instance_id", r->nodes[i].instance_id);
                json_out_u64(b, "revision", r->nodes[i].revision);
                add_bundles(b, &r->nodes[i].bundles);
                json_out_end_object(b);
        }
        json_out_end_array(b);
}

char *incident_format(const Roster *r, const char *job_key, size_t *ret_n) {
        StrBuf b = STRBUF_INIT;
        json_out_object(&b, NULL);
        add_decision(&b, &r->decision, job_key);
        document_add_number(&b, "world_size", r->world_size);
        if (r->is_cut)
                json_out_bool(&b, "cut", true);
        json_out_array(&b, "ranks");
        for (size_t i = 0; i < r->n_ranks; i++)
                add_row(&b, &r->ranks[i]);
        json_out_end_array(&b);
        add_first_failure(&b, r);
        json_out_array(&b, "suspects");
        for (const RosterRank *row = r->ranks; row < r->ranks + r->n_ranks; row++)
                if (row->is_suspect) {
                        json_out_object(&b, NULL);
                        add_process(&b, row);
                        document_add_time(&b, "ended", row->claim->event_usec);
                        json_out_end_object(&b);
                }
        json_out_end_array(&b);
        add_nodes(&b, r);
        return document_detach(&b, ret_n);
}

/* Looks for the bytes of add_nodes(), which cannot stand inside a string: a document of 16,384
 * ranks need not become a tree for it. */
bool incident_has_record(const char *text, size_t n_text, const char *instance_id,
                         uint64_t revision) {
        _cleanup_free_ char *wanted =
                strbuf_format("{\"instance_id\":\"%s\",\"revision\":", instance_id);
        const char *found = wanted ? memmem(text, n_text, wanted, strlen(wanted)) : NULL;
        if (!found)
                return false;
        const char *number = found + strlen(wanted);
        uint64_t listed;
        return parse_u64_prefix(&number, text + n_text, &listed) && listed >= revision;
}
