/* Claims and their sets: merging is a union by process, the higher revision wins. Decisions. */
#include "agent/peers/claim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/digest.h"
#include "lib/base/parse.h"
#include "lib/neuron/names.h"

static const char *const states[N_CLAIM_STATES] = {
        [CLAIM_ALIVE] = "alive",
        [CLAIM_ENDED] = "ended",
        [CLAIM_FAILED] = "failed",
};
DEFINE_WORDS(claim_state, ClaimState, states);

static const char *const bundles[N_CLAIM_BUNDLES] = {
        [CLAIM_BUNDLE_NONE] = "none",
        [CLAIM_BUNDLE_EMPTY] = "empty",
        [CLAIM_BUNDLE_PENDING] = "pending",
        [CLAIM_BUNDLE_DELIVERED] = "delivered",
};
DEFINE_WORDS(claim_bundle, ClaimBundle, bundles);

bool claim_key_build(const char *job_key, const char *cluster_id, char ret[CLAIM_KEY_SIZE]) {
        const char *text = job_key && *job_key ? job_key : cluster_id;
        uint8_t digest[SHA256_SIZE];

        if (!text || !*text || (text == cluster_id && !cluster_id_is_set(cluster_id)))
                return false;
        sha256_of(text, strlen(text), digest);
        digest_hex(digest, (CLAIM_KEY_SIZE - 1) / 2, ret);
        return true;
}

bool claim_key_is_valid(const char *key) {
        return strlen(key) == CLAIM_KEY_SIZE - 1 &&
               strspn(key, "0123456789abcdef") == CLAIM_KEY_SIZE - 1;
}

void claim_bound_ranks(Claim *c) {
        if (c->rank < 0 || c->rank >= CLAIM_RANKS_MAX)
                c->rank = -1;
        if (c->world_size < 1 || c->world_size > CLAIM_RANKS_MAX)
                c->world_size = -1;
}

#define COMPARE(a, b) (((a) > (b)) - ((a) < (b)))

int claim_compare_process(const Claim *a, const Claim *b) {
        const int r = strcmp(a->boot_id, b->boot_id);
        if (r != 0)
                return r;
        if (a->pid != b->pid)
                return COMPARE(a->pid, b->pid);
        return COMPARE(a->start_ticks, b->start_ticks);
}

/* Of equal revisions any order does, as long as it is always the same one. */
static bool is_newer(const Claim *c, const Claim *old) {
        if (c->revision != old->revision)
                return c->revision > old->revision;
        return memcmp(c, old, sizeof *c) > 0;
}

void claim_set_done(ClaimSet *s) {
        free(s->items);
        *s = (ClaimSet){ 0 };
}

/* @return the index of the first claim that is not before the process */
static size_t lower_bound(const ClaimSet *s, const Claim *process) {
        size_t from = 0, to = s->n;
        while (from < to) {
                const size_t middle = from + (to - from) / 2;
                if (claim_compare_process(&s->items[middle], process) < 0)
                        from = middle + 1;
                else
                        to = middle;
        }
        return from;
}

Claim *claim_set_find(const ClaimSet *s, const Claim *process) {
        const size_t i = lower_bound(s, process);
        return i < s->n && claim_compare_process(&s->items[i], process) == 0 ? &s->items[i] : NULL;
}

int claim_set_add(ClaimSet *s, const Claim *c) {
        const size_t i = lower_bound(s, c);
        if (i < s->n && claim_compare_process(&s->items[i], c) == 0) {
                if (!is_newer(c, &s->items[i]))
                        return 0;
                s->items[i] = *c;
                return 1;
        }
        const int r = s->n < CLAIMS_MAX ? array_grow(&s->items, s->n, sizeof *c) : -ENOSPC;
        if (r < 0)
                return r;
        memmove(&s->items[i + 1], &s->items[i], (s->n - i) * sizeof *s->items);
        s->items[i] = *c;
        s->n++;
        return 1;
}

int claim_set_merge(ClaimSet *to, const ClaimSet *from) {
        int changed = 0;
        for (size_t i = 0; i < from->n; i++) {
                const int r = claim_set_add(to, &from->items[i]);
                if (r < 0)
                        return r;
                changed |= r;
        }
        return changed;
}

/* ---- decisions ---- */

static const char *const agreed_words[N_AGREED] = {
        [AGREED_ALONE] = "alone",
        [AGREED_BUS] = "bus",
        [AGREED_STORE] = "store",
};
DEFINE_WORDS(agreed, Agreed, agreed_words);

bool decision_name_is_valid(const Decision *d) {
        static const char allowed[] = "0123456789"
                                      "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                      "abcdefghijklmnopqrstuvwxyz_-";
        uint64_t usec;

        return cluster_id_is_set(d->cluster_id) &&
               d->cluster_id[strspn(d->cluster_id, allowed)] == '\0' &&
               date_time_parse(d->date_time, &usec) == 0;
}

void claim_shift(Claim *c, int64_t offset_usec) {
        int64_t *const times[] = { &c->started_usec, &c->event_usec };
        for (size_t i = 0; i < ELEMENTSOF(times); i++)
                if (*times[i] != INT64_MIN &&
                    __builtin_add_overflow(*times[i], offset_usec, times[i]))
                        *times[i] = offset_usec > 0 ? INT64_MAX : INT64_MIN + 1;
}
