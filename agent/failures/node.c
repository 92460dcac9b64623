#include "agent/failures/node.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"

/* ---- bounds ---- */

typedef struct Bound {
        size_t n_max, n_of_owner_max;
        bool (*is_settled)(const Node *n, const Owned *o);
        void (*free)(Node *n, Owned *o);
} Bound;

/* Nothing of it is about to change, and its claim is known to the agreement. */
static bool process_is_settled(const Node *n, const Owned *o) {
        const Process *p = CONTAINER_OF(o, Process, owned);
        (void)n;
        return !(p->unit && p->unit->bundle[0]) && p->claim.state != CLAIM_ALIVE &&
               (p->is_placed || p->claim.state == CLAIM_ENDED);
}

static bool key_is_settled(const Node *n, const Owned *o) {
        FOREACH_PROCESS (p, n)
                if (&p->key->owned == o && !process_is_settled(n, &p->owned))
                        return false;
        return true;
}

/* When all that there may be is there, or all that one user may have, the oldest gives way that is
 * settled: anybody's, or his. Root has no bound of its own. */
static bool make_space(Node *n, ListLink *all, const Bound *b, uid_t uid) {
        size_t n_all = 0, n_own = 0;
        LIST_FOREACH_ITEM (Owned, o, link, all) {
                n_all++;
                n_own += o->uid == uid;
        }
        bool has_share = uid != 0 && n_own >= b->n_of_owner_max;
        if (!has_share && n_all < b->n_max)
                return true;
        LIST_FOREACH_ITEM (Owned, o, link, all)
                if ((!has_share || o->uid == uid) && b->is_settled(n, o)) {
                        b->free(n, o);
                        return true;
                }
        n->n_dropped++;
        return false;
}

/* ---- units ---- */

Unit *node_find_unit(const Node *n, const char *source, const char *path) {
        FOREACH_UNIT (u, n)
                if (strcmp(u->path, path) == 0 && strcmp(u->source, source) == 0)
                        return u;
        return NULL;
}

Unit *node_get_unit(Node *n, const char *source, const char *path) {
        Unit *u = node_find_unit(n, source, path);
        if (u || !(u = calloc(1, sizeof *u)))
                return u;
        u->failures = n->failures;
        u->source = strdup(source);
        u->path = strdup(path);
        list_append(&n->units, &u->link);
        if (u->source && u->path)
                return u;
        node_free_unit(n, u);
        return NULL;
}

void node_free_unit(Node *n, Unit *u) {
        FOREACH_PROCESS (p, n)
                if (p->unit == u)
                        p->unit = NULL;
        Bundle *b = u->bundle[0] ? bundle_table_find(n->bundles, u->bundle) : NULL;
        if (b)
                b->failure_unit = NULL;
        object_call_cancel(u->search);
        list_remove(&u->link);
        free(u->source);
        free(u->path);
        free(u);
}

static void leave_unit(Node *n, Process *p) {
        Unit *u = p->unit;
        p->unit = NULL;
        if (!u || u->first != p)
                return;
        u->first = NULL;
        FOREACH_PROCESS (other, n)
                if (!u->first && other->unit == u)
                        u->first = other;
        if (!u->first && !u->bundle[0])
                node_free_unit(n, u);
}

void node_join_unit(Node *n, Unit *u, Process *p) {
        if (p->unit == u)
                return;
        leave_unit(n, p);
        p->unit = u;
        if (!u->first)
                u->first = p;
}

void node_expel_strangers(Node *n, Unit *u, const FileOwners *owners) {
        FOREACH_PROCESS (p, n) {
                if (p->unit != u || uid_may_annotate(owners, p->note_uid))
                        continue;
                p->claim.bundle[0] = '\0';
                p->claim.bundle_state = CLAIM_BUNDLE_NONE;
                leave_unit(n, p);
        }
}

/* ---- processes ---- */

static Process *find_process(const Node *n, const Claim *c) {
        FOREACH_PROCESS (p, n)
                if (claim_compare_process(&p->claim, c) == 0)
                        return p;
        return NULL;
}

void node_free_process(Node *n, Process *p) {
        leave_unit(n, p);
        rank_watch_free(p->watch);
        p->key->n_processes--;
        list_remove(&p->owned.link);
        free(p);
}

static void free_process(Node *n, Owned *o) {
        node_free_process(n, CONTAINER_OF(o, Process, owned));
}

Process *node_get_process(Node *n, Key *k, const Claim *c, uid_t uid) {
        static const Bound bound = { PROCESSES_MAX, PROCESSES_OF_OWNER_MAX, process_is_settled,
                                     free_process };
        Process *p = find_process(n, c);
        if (p)
                return p->key == k ? p : NULL;
        p = make_space(n, &n->processes, &bound, uid) ? calloc(1, sizeof *p) : NULL;
        if (!p)
                return NULL;
        k->n_processes++;
        p->failures = n->failures;
        p->key = k;
        p->claim = *c;
        p->owned.uid = uid;
        list_append(&n->processes, &p->owned.link);
        return p;
}

size_t node_count_ranks(const Node *n, const Key *k) {
        bool is_seen[PROCESSES_MAX] = { false };
        int64_t launch_usec = INT64_MIN; /* what ended before was another one, with other ranks */
        size_t n_ranks = 0;
        FOREACH_PROCESS (p, n)
                if (p->key == k)
                        launch_usec = MAX(launch_usec, p->claim.started_usec);
        FOREACH_PROCESS (p, n) {
                const Claim *c = &p->claim;
                if (p->key != k || c->rank < 0 || c->rank >= PROCESSES_MAX ||
                    (c->state != CLAIM_ALIVE && c->event_usec < launch_usec))
                        continue;
                n_ranks += !is_seen[c->rank];
                is_seen[c->rank] = true;
        }
        return n_ranks;
}

const Process *node_find_rank(const Node *n, const Key *k, int64_t rank) {
        const Process *last = NULL;
        FOREACH_PROCESS (p, n)
                if (p->key == k && rank >= 0 && p->claim.rank == rank &&
                    p->claim.state != CLAIM_FAILED)
                        last = p;
        return last;
}

bool node_has_live_rank(const Node *n, const Key *k, const uid_t *uid) {
        FOREACH_PROCESS (p, n)
                if (p->key == k && p->watch && (!uid || p->owned.uid == *uid))
                        return true;
        return false;
}

/* ---- keys ---- */

Key *node_find_key(const Node *n, const char *key) {
        FOREACH_KEY (k, n)
                if (strcmp(k->key, key) == 0)
                        return k;
        return NULL;
}

static void free_key(Node *n, Owned *o) {
        Key *k = CONTAINER_OF(o, Key, owned);
        LIST_FOREACH_ITEM_SAFE (Process, p, owned.link, &n->processes)
                if (p->key == k)
                        node_free_process(n, p);
        agreement_forget(n->agreement, k->key);
        arbiter_free(k->arbiter);
        list_remove(&o->link);
        free(k->source);
        free(k);
}

Key *node_get_key(Node *n, const char *key, uid_t uid) {
        static const Bound bound = { AGREEMENT_KEYS_MAX, KEYS_OF_OWNER_MAX, key_is_settled,
                                     free_key };
        Key *k = node_find_key(n, key);
        if (!k && make_space(n, &n->keys, &bound, uid) && (k = calloc(1, sizeof *k))) {
                (void)strcpy(k->key, key); /* as long as this, by claim_key_build() */
                list_append(&n->keys, &k->owned.link);
        }
        if (k && k->owned.uid == 0) /* it is new, or was restored */
                k->owned.uid = uid;
        return k;
}

Key *node_find_job_of_user(const Node *n, uid_t uid, int64_t since_usec) {
        Key *only = NULL;
        FOREACH_PROCESS (p, n) {
                bool was_here = p->claim.rank >= 0 && (p->claim.state == CLAIM_ALIVE ||
                                                       p->claim.event_usec >= since_usec);
                if (!was_here || p->key == only || p->key->owned.uid != uid || !p->key->job.key[0])
                        continue;
                if (only)
                        return NULL;
                only = p->key;
        }
        return only;
}

/* ---- life ---- */

void node_init(Node *n, BundleTable *bundles, struct Failures *failures) {
        *n = (Node){ .bundles = bundles, .failures = failures };
        list_init(&n->keys);
        list_init(&n->processes);
        list_init(&n->units);
}

void node_done(Node *n) {
        LIST_FOREACH_ITEM_SAFE (Key, k, owned.link, &n->keys)
                free_key(n, &k->owned);
        LIST_FOREACH_ITEM_SAFE (Unit, u, link, &n->units)
                node_free_unit(n, u);
}

void node_prune(Node *n, int64_t now_usec) {
        LIST_FOREACH_ITEM_SAFE (Process, p, owned.link, &n->processes) {
                int64_t keep_usec = p->is_placed ? AGREEMENT_KEEP_USEC : (int64_t)USEC_PER_HOUR;
                if (!(p->unit && p->unit->bundle[0]) && p->claim.state != CLAIM_ALIVE &&
                    now_usec - p->changed_usec > keep_usec)
                        node_free_process(n, p);
        }
        LIST_FOREACH_ITEM_SAFE (Key, k, owned.link, &n->keys)
                if (k->n_processes == 0)
                        free_key(n, &k->owned);
}
