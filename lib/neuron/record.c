/* Rows of bundles and deliveries in memory: the texts of their enums (kind, state, proof), which
 * state may follow which, and freeing a row. agent/ decides when a bundle changes its state. */
#include "lib/neuron/record.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/parse.h"

static const char *const source_kinds[N_SOURCE_KINDS] = {
        [SOURCE_NEURON_CORE_DUMP] = "neuron-core-dump",
        [SOURCE_NEURON_PROFILE] = "neuron-profile",
        [SOURCE_PROCESS_CORE] = "process-core",
        [SOURCE_DIRECTORY] = "directory",
        [SOURCE_SNAPSHOT] = "snapshot",
        [SOURCE_CRASH_REPORT] = "crash-report",
        [SOURCE_OOM] = "oom",
};

static const char *const bundle_states[N_BUNDLE_STATES] = {
        [BUNDLE_SETTLING] = "settling",       [BUNDLE_READY] = "ready",
        [BUNDLE_SHIPPING] = "shipping",       [BUNDLE_DELIVERED] = "delivered",
        [BUNDLE_QUARANTINED] = "quarantined", [BUNDLE_EVICTED] = "evicted",
        [BUNDLE_CANCELLED] = "cancelled",     [BUNDLE_VANISHED] = "vanished",
};

static const char *const origins[N_ORIGINS] = {
        [ORIGIN_FOUND] = "found",
        [ORIGIN_SUPPLEMENT] = "supplement",
        [ORIGIN_LINKS] = "links",
        [ORIGIN_REDELIVERY] = "redelivery",
};

static const char *const delivery_states[N_DELIVERY_STATES] = {
        [DELIVERY_PENDING] = "pending",
        [DELIVERY_SHIPPING] = "shipping",
        [DELIVERY_DONE] = "delivered",
};

static const char *const proofs[N_PROOFS] = {
        [PROOF_NONE] = NULL,
        [PROOF_HEAD] = "head",
        [PROOF_RESPONSE] = "response",
        [PROOF_READBACK] = "readback",
};

DEFINE_WORDS(source_kind, SourceKind, source_kinds);
DEFINE_WORDS(bundle_state, BundleState, bundle_states);
DEFINE_WORDS(origin, Origin, origins);
DEFINE_WORDS(delivery_state, DeliveryState, delivery_states);

bool source_kind_has_incident(SourceKind k) {
        return k == SOURCE_NEURON_CORE_DUMP;
}

bool source_kind_is_own(SourceKind k) {
        return k == SOURCE_SNAPSHOT || k == SOURCE_CRASH_REPORT || k == SOURCE_OOM;
}

#define TO(s) (1u << BUNDLE_##s)
/* clang-format off */
static const unsigned bundle_moves[N_BUNDLE_STATES] = {
        [BUNDLE_SETTLING]    = TO(READY) | TO(VANISHED) | TO(CANCELLED) | TO(EVICTED),
        /* back to settling: the source changed before it was delivered */
        [BUNDLE_READY]       = TO(SHIPPING) | TO(SETTLING) | TO(CANCELLED) | TO(EVICTED) |
                               TO(VANISHED),
        /* back to ready: try again later */
        [BUNDLE_SHIPPING]    = TO(DELIVERED) | TO(READY) | TO(SETTLING) | TO(QUARANTINED) |
                               TO(CANCELLED) | TO(VANISHED),
        [BUNDLE_QUARANTINED] = TO(READY) | TO(CANCELLED) | TO(EVICTED),
        /* to ready: it goes to destinations that were added */
        [BUNDLE_DELIVERED]   = TO(READY),
        /* evicted, cancelled, vanished: nothing follows */
};
/* clang-format on */
const StateTable bundle_state_table = { "bundle", bundle_states, bundle_moves, N_BUNDLE_STATES };

static const unsigned delivery_moves[N_DELIVERY_STATES] = {
        [DELIVERY_PENDING] = 1u << DELIVERY_SHIPPING,
        /* back to pending: try again later */
        [DELIVERY_SHIPPING] = 1u << DELIVERY_DONE | 1u << DELIVERY_PENDING,
};
const StateTable delivery_state_table = { "delivery", delivery_states, delivery_moves,
                                          N_DELIVERY_STATES };

bool bundle_state_is_inactive(BundleState s) {
        /* A quarantined bundle waits for the operator: nothing happens to it by itself. */
        return s != BUNDLE_SETTLING && s != BUNDLE_READY && s != BUNDLE_SHIPPING;
}

bool bundle_state_is_terminal(BundleState s) {
        return bundle_state_is_inactive(s) && s != BUNDLE_QUARANTINED;
}

const char *proof_name(Proof p) {
        return (size_t)p < N_PROOFS ? proofs[p] : NULL;
}

int proof_parse(const char *s, Proof *ret) {
        const int i = s && s[0] != '\0' ? parse_word(s, proofs, N_PROOFS) : PROOF_NONE;

        if (i < 0)
                return i;
        *ret = (Proof)i;
        return 0;
}

void delivery_record_done(DeliveryRecord *d) {
        free(d->destination);
        free(d->object);
        free(d->last_error);
        *d = (DeliveryRecord){ 0 };
}

void bundle_record_done(BundleRecord *b) {
        for (size_t i = 0; i < b->n_deliveries; i++)
                delivery_record_done(&b->deliveries[i]);
        free(b->deliveries);
        free(b->source);
        free(b->path);
        free(b->reason);
        free(b->incomplete);
        free(b->s3_prefix);
        free(b->failure);
        free(b->about);
        *b = (BundleRecord){ 0 };
}

bool bundle_record_has_failure(const BundleRecord *b) {
        return source_kind_has_incident(b->kind) ||
               (source_kind_is_own(b->kind) &&
                (b->name.cluster_id[0] || b->cluster_id[0] || b->date_time[0]));
}

bool bundle_record_has_destination(const BundleRecord *b, const char *name) {
        for (size_t i = 0; i < b->n_deliveries; i++)
                if (strcmp(b->deliveries[i].destination, name) == 0)
                        return true;
        return false;
}

/* Replaces borrowed strings by copies. A string that cannot be copied becomes NULL, so that nothing
 * borrowed is freed. */
static bool own_strings(char **const *strings, size_t n) {
        bool ok = true;
        for (size_t i = 0; i < n; i++)
                if (*strings[i])
                        ok = (*strings[i] = strdup(*strings[i])) && ok;
        return ok;
}

static bool copy_delivery(DeliveryRecord *to, const DeliveryRecord *from) {
        *to = *from;
        char **const strings[] = { &to->destination, &to->object, &to->last_error };
        return own_strings(strings, ELEMENTSOF(strings));
}

int bundle_record_copy(BundleRecord *to, const BundleRecord *from) {
        BundleRecord copy = *from;
        char **const strings[] = { &copy.source,  &copy.path,      &copy.reason, &copy.incomplete,
                                   &copy.failure, &copy.s3_prefix, &copy.about };

        copy.n_deliveries = 0;
        copy.deliveries = calloc(MAX(from->n_deliveries, (size_t)1), sizeof *copy.deliveries);
        bool ok = own_strings(strings, ELEMENTSOF(strings)) && copy.deliveries;
        for (size_t i = 0; ok && i < from->n_deliveries; i++)
                ok = copy_delivery(&copy.deliveries[copy.n_deliveries++], &from->deliveries[i]);
        if (!ok) {
                bundle_record_done(&copy);
                return -ENOMEM;
        }
        *to = copy;
        return 0;
}
