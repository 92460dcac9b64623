/* The keys, processes and units of this node, and how they hang together:
 *
 *     key 1 --- n process n --- 0..1 unit 1 --- 0..1 bundle
 *
 * A process is of one key for its whole life, and in one unit at a time: the last one that a note
 * named for it. A unit is a path; it outlives its bundle while a process is in it, since its next
 * bundle, a supplement, is of the same processes. A key and a process whose claim the agreement
 * knows and of which nothing is about to change are settled, and give way when a table is full.
 *
 * This file knows nothing of when claims change and what they mean (failures_claims.c,
 * failures_reports.c). Lists are searched from their beginning; the bounds keep that quick enough.
 */
#include "agent/failures/failure_table.h"

#include <stdlib.h>
#include <string.h>

#include "agent/store/bundle.h"

void failure_table_init(FailureTable *t) {
        list_init(&t->keys);
        list_init(&t->processes);
        list_init(&t->units);
}

/* ---- bounds ---- */

typedef struct FailureBound {
        size_t n_max, n_of_owner_max;
        bool (*is_settled)(const FailureTable *t, const OwnedEntry *o);
        void (*free)(FailureTable *t, OwnedEntry *o);
} FailureBound;

/* @return whether nothing of a process is about to change, and the agreement knows its claim */
static bool process_is_settled(const FailureTable *t, const OwnedEntry *o) {
        const FailureProcess *p = CONTAINER_OF(o, FailureProcess, entry);
        (void)t;
        return !(p->unit && p->unit->bundle[0]) && p->claim.state != CLAIM_ALIVE &&
               (p->is_placed || p->claim.state == CLAIM_ENDED);
}

static bool key_is_settled(const FailureTable *t, const OwnedEntry *o) {
        FAILURE_TABLE_FOREACH_PROCESS(p, t)
        if (&p->key->entry == o && !process_is_settled(t, &p->entry))
                return false;
        return true;
}

/* Makes space for an entry of a user. At the limit for all, the oldest settled entry is freed; at
 * the user's own limit, the user's oldest settled one. Root has no limit of its own.
 * @return false: there is no space */
static bool make_space(FailureTable *t, ListLink *all, const FailureBound *b, uid_t uid) {
        size_t n_all = 0, n_own = 0;
        LIST_FOREACH_ITEM (OwnedEntry, o, link, all) {
                n_all++;
                n_own += o->uid == uid;
        }
        bool has_share = uid != 0 && n_own >= b->n_of_owner_max;
        if (!has_share && n_all < b->n_max)
                return true;
        LIST_FOREACH_ITEM (OwnedEntry, o, link, all)
                if ((!has_share || o->uid == uid) && b->is_settled(t, o)) {
                        b->free(t, o);
                        return true;
                }
        t->n_dropped++;
        return false;
}

/* ---- units ---- */

FailureUnit *failure_table_find_unit(const FailureTable *t, const char *source, const char *path) {
        FAILURE_TABLE_FOREACH_UNIT(u, t)
        if (strcmp(u->path, path) == 0 && strcmp(u->source, source) == 0)
                return u;
        return NULL;
}

void failure_table_end_bundle(FailureTable *t, FailureUnit *u) {
        Bundle *b = u->bundle[0] ? bundle_table_find(t->bundles, u->bundle) : NULL;
        if (b)
                b->failure_unit = NULL;
        u->bundle[0] = '\0';
        u->due_usec = u->ready_usec = 0;
        u->search = object_call_cancel(u->search);
        u->is_searched = false;
        u->found = (FailureName){ 0 };
}

void failure_table_free_unit(FailureTable *t, FailureUnit *u) {
        FAILURE_TABLE_FOREACH_PROCESS(p, t)
        if (p->unit == u)
                p->unit = NULL;
        failure_table_end_bundle(t, u);
        list_remove(&u->link);
        free(u->source);
        free(u->path);
        free(u);
}

FailureUnit *failure_table_get_unit(FailureTable *t, const char *source, const char *path) {
        FailureUnit *u = failure_table_find_unit(t, source, path);
        if (u || !(u = calloc(1, sizeof *u)))
                return u;
        u->failures = t->failures;
        u->source = strdup(source);
        u->path = strdup(path);
        list_append(&t->units, &u->link);
        if (u->source && u->path)
                return u;
        failure_table_free_unit(t, u);
        return NULL;
}

static void leave_unit(FailureTable *t, FailureProcess *p) {
        FailureUnit *u = p->unit;
        p->unit = NULL;
        if (!u || u->first != p)
                return;
        u->first = NULL;
        FAILURE_TABLE_FOREACH_PROCESS(other, t)
        if (!u->first && other->unit == u)
                u->first = other;
        if (!u->first && !u->bundle[0])
                failure_table_free_unit(t, u);
}

void failure_table_join_unit(FailureTable *t, FailureUnit *u, FailureProcess *p) {
        if (p->unit == u)
                return;
        leave_unit(t, p);
        p->unit = u;
        if (!u->first)
                u->first = p;
}

void failure_table_remove_strangers(FailureTable *t, FailureUnit *u, const FileOwners *owners) {
        FAILURE_TABLE_FOREACH_PROCESS(p, t) {
                if (p->unit != u || uid_may_annotate(owners, p->note_uid))
                        continue;
                p->claim.bundle[0] = '\0';
                p->claim.bundle_state = CLAIM_BUNDLE_NONE;
                leave_unit(t, p);
        }
}

/* ---- processes ---- */

FailureProcess *failure_table_find_process(const FailureTable *t, const Claim *c) {
        FAILURE_TABLE_FOREACH_PROCESS(p, t)
        if (claim_compare_process(&p->claim, c) == 0)
                return p;
        return NULL;
}

void failure_table_free_process(FailureTable *t, FailureProcess *p) {
        leave_unit(t, p);
        rank_watch_free(p->watch);
        p->key->n_processes--;
        list_remove(&p->entry.link);
        free(p);
}

static void free_process(FailureTable *t, OwnedEntry *o) {
        failure_table_free_process(t, CONTAINER_OF(o, FailureProcess, entry));
}

FailureProcess *failure_table_get_process(FailureTable *t, FailureKey *k, const Claim *c,
                                          uid_t uid) {
        static const FailureBound bound = { FAILURE_PROCESSES_MAX, FAILURE_PROCESSES_OF_OWNER_MAX,
                                            process_is_settled, free_process };
        FailureProcess *p = failure_table_find_process(t, c);
        if (p)
                return p->key == k ? p : NULL;
        p = make_space(t, &t->processes, &bound, uid) ? calloc(1, sizeof *p) : NULL;
        if (!p)
                return NULL;
        k->n_processes++;
        p->failures = t->failures;
        p->key = k;
        p->claim = *c;
        p->entry.uid = uid;
        list_append(&t->processes, &p->entry.link);
        return p;
}

size_t failure_table_count_ranks(const FailureTable *t, const FailureKey *k) {
        bool is_seen[FAILURE_PROCESSES_MAX] = { false };
        int64_t launch_usec = INT64_MIN; /* a rank that ended before was of an earlier launch */
        size_t n_ranks = 0;
        FAILURE_TABLE_FOREACH_PROCESS(p, t)
        if (p->key == k)
                launch_usec = MAX(launch_usec, p->claim.started_usec);
        FAILURE_TABLE_FOREACH_PROCESS(p, t) {
                const Claim *c = &p->claim;
                if (p->key != k || c->rank < 0 || c->rank >= FAILURE_PROCESSES_MAX ||
                    (c->state != CLAIM_ALIVE && c->event_usec < launch_usec))
                        continue;
                n_ranks += !is_seen[c->rank];
                is_seen[c->rank] = true;
        }
        return n_ranks;
}

const FailureProcess *failure_table_find_rank(const FailureTable *t, const FailureKey *k,
                                              int64_t rank) {
        const FailureProcess *last = NULL;
        FAILURE_TABLE_FOREACH_PROCESS(p, t)
        if (p->key == k && rank >= 0 && p->claim.rank == rank && p->claim.state != CLAIM_FAILED)
                last = p;
        return last;
}

bool failure_table_has_live_rank(const FailureTable *t, const FailureKey *k, const uid_t *uid) {
        FAILURE_TABLE_FOREACH_PROCESS(p, t)
        if (p->key == k && p->watch && (!uid || p->entry.uid == *uid))
                return true;
        return false;
}

/* ---- keys ---- */

FailureKey *failure_table_find_key(const FailureTable *t, const char *key) {
        FAILURE_TABLE_FOREACH_KEY(k, t)
        if (strcmp(k->key, key) == 0)
                return k;
        return NULL;
}

static void free_key(FailureTable *t, OwnedEntry *o) {
        FailureKey *k = CONTAINER_OF(o, FailureKey, entry);
        LIST_FOREACH_ITEM_SAFE (FailureProcess, p, entry.link, &t->processes)
                if (p->key == k)
                        failure_table_free_process(t, p);
        agreement_forget(t->agreement, k->key);
        arbiter_free(k->arbiter);
        list_remove(&o->link);
        free(k->source);
        free(k);
}

FailureKey *failure_table_get_key(FailureTable *t, const char *key, uid_t uid) {
        static const FailureBound bound = { AGREEMENT_KEYS_MAX, FAILURE_KEYS_OF_OWNER_MAX,
                                            key_is_settled, free_key };
        FailureKey *k = failure_table_find_key(t, key);
        if (!k && make_space(t, &t->keys, &bound, uid) && (k = calloc(1, sizeof *k))) {
                (void)strcpy(k->key, key); /* claim_key_build() makes none that is longer */
                list_append(&t->keys, &k->entry.link);
        }
        if (k && k->entry.uid == 0) /* it is new, or was restored */
                k->entry.uid = uid;
        return k;
}

FailureKey *failure_table_find_job(const FailureTable *t, uid_t uid, int64_t since_usec) {
        FailureKey *only = NULL;
        FAILURE_TABLE_FOREACH_PROCESS(p, t) {
                bool was_here = p->claim.rank >= 0 && (p->claim.state == CLAIM_ALIVE ||
                                                       p->claim.event_usec >= since_usec);
                if (!was_here || p->key == only || p->key->entry.uid != uid || !p->key->job.key[0])
                        continue;
                if (only)
                        return NULL;
                only = p->key;
        }
        return only;
}

void failure_table_free_empty_keys(FailureTable *t) {
        LIST_FOREACH_ITEM_SAFE (FailureKey, k, entry.link, &t->keys)
                if (k->n_processes == 0)
                        free_key(t, &k->entry);
}

void failure_table_done(FailureTable *t) {
        LIST_FOREACH_ITEM_SAFE (FailureKey, k, entry.link, &t->keys)
                free_key(t, &k->entry);
        LIST_FOREACH_ITEM_SAFE (FailureUnit, u, link, &t->units)
                failure_table_free_unit(t, u);
}
