/* Agreement: one Key holds the claims of a job and the failures that they have been placed in. What
 * is not placed yet makes the key ask: a listing of the arbiter, decisions that are read, one that
 * is created; or the centre of the bus decides. See agreement.h. */
#include "agent/peers/agreement.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/digest.h"
#include "lib/neuron/names.h"

#define MSEC INT64_C(1000)
#define SEC INT64_C(1000000)
#define HOUR (3600 * SEC)
#define BACKOFF_MIN SEC
#define BACKOFF_MAX (30 * SEC)
#define EXISTS_MAX 5
#define OLDER_SLACK (5 * SEC) /* of claims against the opening and the settling before it */
#define LEAF_WAIT SEC         /* after the centre, and up to three times as much */
#define SEARCH_FIRST (10 * SEC)
#define RECORD_WAIT SEC
#define RECORD_GAP_MIN (2 * SEC)
#define RECORD_GAP_MAX (30 * SEC)
#define PUBLISH_STAND_IN (75 * SEC) /* by then the creator has published, unless it is dead */
#define PUBLISH_SPREAD (60 * SEC)
#define NEWS_GAP (200 * MSEC)
#define CANDIDATES_MAX 3
#define FAILURES_OF_KEY_MAX 32         /* placing a claim looks at each */
#define NOT_LISTED INT64_MIN           /* opened_usec of a candidate that could not be created */
#define NUMBER_MAX (UINT32_C(1) << 30) /* a larger one is nonsense, and its successor */
/* Times of peers and stores beyond this are not true; sums of a few below it do not overflow. */
#define TIME_MAX (INT64_MAX / 8)

static const int64_t publish_steps[] = { 2 * SEC, 15 * SEC, 60 * SEC };
static const int64_t send_steps[] = { 0, 300 * MSEC, SEC, 3 * SEC, 6 * SEC, 12 * SEC, 30 * SEC };
#define SEND_STEP_SLOW 3

typedef struct Failure {
        Decision d;
        ClaimSet claims;
        int64_t newest_usec; /* of its failed claims and of its records; INT64_MIN: none is known */
        int64_t changed_usec;
        uint64_t changes, n_recorded; /* of this node's claims; how many of them are recorded */
        int64_t record_usec, record_gap_usec; /* the next record not before, and the one after it */
        int64_t publish_usec;                 /* AGREEMENT_NEVER: nothing to publish */
        bool has_news; /* the centre's leaves have not heard of it, or asked again */
} Failure;

typedef struct Key {
        char key[CLAIM_KEY_SIZE];
        Role role;
        bool has_arbiter, is_unable; /* it may be asked; it has answered that it cannot decide */
        ClaimSet claims;             /* of this node; at the centre of all nodes */
        Failure **failures;          /* by n; those without a number come last */
        size_t n_failures;
        unsigned n_named;   /* by this node alone */
        uint32_t n_decided; /* the highest number that the bus gave, also when that failure was
                               dropped at the limit: a number has one name */

        /* What wants a decision: refresh_key(). */
        int64_t first_usec;      /* since when; AGREEMENT_NEVER: nothing */
        int64_t cluster_id_usec; /* since when there is one with a cluster id: it does not settle */
        int64_t leaf_wait_usec;
        int64_t ended_usec; /* the last rank that ended and belongs to no failure; INT64_MIN */
        int64_t search_usec, search_gap_usec;

        /* One action of the store at a time. */
        ActionKind in_flight;
        uint32_t in_flight_n;
        uint64_t in_flight_changes;
        ActionKind question; /* the next one: LIST at first; READ, CREATE: at once */
        bool is_listed; /* for the moment: there is no earlier failure that claims could be in */
        int64_t retry_usec;
        ListedFailure candidates[CANDIDATES_MAX];
        size_t n_candidates;
        Decision proposal;
        uint32_t highest;
        unsigned n_exists, n_errors;

        /* The bus. */
        int64_t send_usec, sent_usec;  /* a leaf's claims: next, last */
        size_t send_step, send_at;     /* send_at: own claims that were sent in this step */
        uint64_t heard_revisions;      /* what the centre has of this node */
        Heard acks[MESSAGE_HEARD_MAX]; /* the centre's, of who is to be told what was heard */
        size_t n_acks;
        int64_t news_usec; /* the centre's news: not before */
} Key;

struct Agreement {
        char instance_id[INSTANCE_ID_SIZE];
        uint64_t node;
        int64_t settle_usec, window_usec;
        uint64_t random;
        bool hurry;
        Key *keys[AGREEMENT_KEYS_MAX];
        size_t n_keys, n_failures;
        int64_t now_usec; /* of the last event */
        Message message;
};

/* ---- small things ---- */

/* splitmix64 */
static uint64_t next_random(Agreement *a) {
        uint64_t z = a->random += UINT64_C(0x9e3779b97f4a7c15);
        z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
        return z ^ (z >> 31);
}

static int64_t jitter(Agreement *a, int64_t from, int64_t to) {
        return from + (int64_t)(next_random(a) % (uint64_t)(to - from + 1));
}

/* @param n_errors  in a row, this one included */
static int64_t backoff(Agreement *a, unsigned n_errors) {
        const int64_t delay = n_errors > 5 ? BACKOFF_MAX : BACKOFF_MIN << (n_errors - 1);
        return jitter(a, delay / 2, MIN(delay, BACKOFF_MAX));
}

static bool time_is_sane(int64_t t) {
        return t > -TIME_MAX && t < TIME_MAX;
}

static bool is_own(const Agreement *a, const Claim *c) {
        return strcmp(c->instance_id, a->instance_id) == 0;
}

/* @return false: it could neither be placed nor named; else its times are possible ones */
static bool claim_normalize(Claim *c, int64_t now) {
        uint64_t usec;

        claim_bound_ranks(c);
        c->event_usec = MIN(c->event_usec, now);
        c->started_usec = MIN(c->started_usec, c->event_usec);
        return time_is_sane(c->event_usec) &&
               (c->started_usec == INT64_MIN || time_is_sane(c->started_usec)) &&
               (!claim_is_failure(c) || date_time_parse(c->date_time, &usec) == 0);
}

static bool decision_is_usable(const Decision *d, const char *key) {
        return strcmp(d->key, key) == 0 && d->n <= NUMBER_MAX && d->agreed > AGREED_NOT &&
               d->agreed < N_AGREED && time_is_sane(d->opened_usec) && d->settle_usec >= 0 &&
               d->settle_usec < TIME_MAX && decision_name_is_valid(d);
}

static bool is_in_store(const Decision *d) {
        return d->n > 0 && d->agreed != AGREED_BUS;
}

static bool can_query(const Key *k) {
        return k->has_arbiter && !k->is_unable;
}

static bool is_ours(const Agreement *a, const Decision *d) {
        return strcmp(d->created_by, a->instance_id) == 0;
}

/* @return when its creator publishes it next, from a time on; AGREEMENT_NEVER */
static int64_t publishing_time(const Agreement *a, const Decision *d, int64_t from) {
        for (size_t i = 0; is_in_store(d) && is_ours(a, d) && i < ELEMENTSOF(publish_steps); i++)
                if (d->opened_usec + publish_steps[i] >= from)
                        return d->opened_usec + publish_steps[i];
        return AGREEMENT_NEVER;
}

static Key *find_key(const Agreement *a, const char *key) {
        for (size_t i = 0; i < a->n_keys; i++)
                if (strcmp(a->keys[i]->key, key) == 0)
                        return a->keys[i];
        return NULL;
}

/* @param n  0: the first one that has no number yet */
static Failure *find_failure(const Key *k, uint32_t n) {
        for (size_t i = 0; k && i < k->n_failures; i++)
                if (k->failures[i]->d.n == n)
                        return k->failures[i];
        return NULL;
}

/* @return the failure that the process failed or ended in */
static Failure *find_placed(const Key *k, const Claim *process) {
        for (size_t i = 0; i < k->n_failures; i++) {
                const Claim *c = claim_set_find(&k->failures[i]->claims, process);
                if (c && c->state != CLAIM_ALIVE)
                        return k->failures[i];
        }
        return NULL;
}

/* ---- memory and its bounds ---- */

static void failure_free(Failure *f) {
        claim_set_done(&f->claims);
        free(f);
}

static void remove_key(Agreement *a, size_t i) {
        Key *k = a->keys[i];
        for (size_t j = 0; j < k->n_failures; j++)
                failure_free(k->failures[j]);
        a->n_failures -= k->n_failures;
        a->keys[i] = a->keys[--a->n_keys];
        claim_set_done(&k->claims);
        free(k->failures);
        free(k);
}

/* Forgets the claims that ended in a failure too, else they would want another decision. */
static void remove_failure(Agreement *a, Key *k, size_t i) {
        Failure *f = k->failures[i];
        size_t n = 0;

        for (size_t j = 0; j < k->claims.n; j++)
                if (find_placed(k, &k->claims.items[j]) != f)
                        k->claims.items[n++] = k->claims.items[j];
        k->claims.n = n;
        memmove(&k->failures[i], &k->failures[i + 1], (--k->n_failures - i) * sizeof(Failure *));
        a->n_failures--;
        failure_free(f);
}

/* It ended so long ago that it belongs to no failure that is to come. */
static bool ended_long_ago(const Agreement *a, const Claim *c) {
        return c->state == CLAIM_ENDED && c->event_usec + a->window_usec < a->now_usec;
}

static void remove_oldest_failure(Agreement *a, Key *k) {
        size_t oldest = 0;
        for (size_t i = 1; i < k->n_failures; i++)
                if (k->failures[i]->changed_usec < k->failures[oldest]->changed_usec)
                        oldest = i;
        remove_failure(a, k, oldest);
}

/* Of this key, or of the one that has most. */
static void make_room_for_failure(Agreement *a, Key *key) {
        if (key->n_failures < FAILURES_OF_KEY_MAX) {
                if (a->n_failures < AGREEMENT_FAILURES_MAX)
                        return;
                for (size_t i = 0; i < a->n_keys; i++)
                        if (a->keys[i]->n_failures > key->n_failures)
                                key = a->keys[i];
        }
        remove_oldest_failure(a, key);
}

/* Keys stay until agreement_forget(). */
static void expire(Agreement *a, int64_t now) {
        for (size_t i = 0; i < a->n_keys; i++)
                for (size_t j = a->keys[i]->n_failures; j-- > 0;)
                        if (a->keys[i]->failures[j]->changed_usec < now - AGREEMENT_KEEP_USEC)
                                remove_failure(a, a->keys[i], j);
}

static int add_key(Agreement *a, const char *key, Key **ret) {
        Key *k = find_key(a, key);
        if (!claim_key_is_valid(key))
                return -EINVAL;
        if (!k) {
                if (a->n_keys == AGREEMENT_KEYS_MAX)
                        return -ENOSPC;
                if (!(k = calloc(1, sizeof *k)))
                        return -ENOMEM;
                memcpy(k->key, key, sizeof k->key);
                k->question = ACTION_LIST;
                k->first_usec = k->cluster_id_usec = AGREEMENT_NEVER;
                k->search_usec = k->send_usec = AGREEMENT_NEVER;
                k->retry_usec = k->sent_usec = k->news_usec = -TIME_MAX;
                k->ended_usec = INT64_MIN;
                a->keys[a->n_keys++] = k;
        }
        *ret = k;
        return 0;
}

/* Keeps them by n; 0, not numbered yet, comes last. */
static void sort_failure(Key *k, size_t i) {
        Failure *f = k->failures[i];
        for (; i > 0 && k->failures[i - 1]->d.n - 1 > f->d.n - 1; i--)
                k->failures[i] = k->failures[i - 1];
        k->failures[i] = f;
}

static int add_failure(Agreement *a, Key *k, const Decision *d, int64_t now, Failure **ret) {
        make_room_for_failure(a, k);
        Failure *f = NULL;
        if (array_grow(&k->failures, k->n_failures, sizeof f) < 0 || !(f = calloc(1, sizeof *f)))
                return -ENOMEM;
        *f = (Failure){ .d = *d,
                        .newest_usec = INT64_MIN,
                        .changed_usec = now,
                        .record_usec = -TIME_MAX,
                        .record_gap_usec = RECORD_GAP_MIN,
                        .publish_usec = publishing_time(a, d, now),
                        .has_news = true };
        k->failures[k->n_failures++] = f;
        sort_failure(k, k->n_failures - 1);
        a->n_failures++;
        *ret = f;
        return 0;
}

/* ---- which failure a claim belongs to ---- */

static bool belongs(const Agreement *a, const Decision *d, int64_t newest_usec, const Claim *c) {
        if (cluster_id_is_set(c->cluster_id) && strcmp(c->cluster_id, d->cluster_id) == 0)
                return true;
        if (c->started_usec > d->opened_usec + AGREEMENT_START_SLACK_USEC)
                return false;
        if (newest_usec == INT64_MIN)
                newest_usec = d->opened_usec;
        return c->state == CLAIM_ALIVE || c->event_usec <= newest_usec + a->window_usec;
}

/* A claim that is older than a failure may belong to the one before: when that is not known, only a
 * listing tells. */
static bool may_join(const Agreement *a, const Key *k, const Decision *d, int64_t newest_usec,
                     const Claim *c) {
        return belongs(a, d, newest_usec, c) &&
               (d->n <= 1 || k->is_listed || c->state == CLAIM_ALIVE || find_failure(k, d->n - 1) ||
                strcmp(c->cluster_id, d->cluster_id) == 0 ||
                c->event_usec >= d->opened_usec - d->settle_usec - OLDER_SLACK);
}

static bool counts(const Agreement *a, const Key *k, const Claim *c) {
        return k->role == ROLE_CENTRE || is_own(a, c);
}

/* As the centre counts them too: it has no claims of a node that this does not have. */
static uint64_t sum_revisions(const Key *k, const char *instance_id) {
        uint64_t sum = 0;
        for (size_t i = 0; i < k->claims.n; i++)
                if (strcmp(k->claims.items[i].instance_id, instance_id) == 0)
                        sum += k->claims.items[i].revision;
        return sum;
}

static bool is_heard(const Agreement *a, const Key *k) {
        return k->heard_revisions >= sum_revisions(k, a->instance_id);
}

static void send_soon(Key *k, int64_t now) {
        if (k->role != ROLE_LEAF)
                return;
        k->send_step = k->send_at = 0;
        k->send_usec = MAX(now, k->sent_usec + send_steps[1]);
}

/* @return whether its window has moved, so that other claims may belong to it now */
static bool add_to_failure(Agreement *a, Key *k, Failure *f, const Claim *c, int64_t now) {
        if (claim_set_add(&f->claims, c) <= 0)
                return false; /* as before, or without memory: the next change tries again */
        f->changed_usec = now;
        if (is_own(a, c)) {
                if (f->changes++ == f->n_recorded)
                        f->record_usec = MAX(f->record_usec, now + jitter(a, 0, RECORD_WAIT));
                if (k->role == ROLE_LEAF && !is_heard(a, k))
                        send_soon(k, now);
        }
        if (!claim_is_failure(c) || c->event_usec <= f->newest_usec)
                return false;
        f->newest_usec = c->event_usec;
        return true;
}

static bool place_claim(Agreement *a, Key *k, const Claim *c, int64_t now) {
        Failure *f = find_placed(k, c);

        for (size_t i = 0; !f && i < k->n_failures; i++) {
                Failure *candidate = k->failures[i];
                if (!may_join(a, k, &candidate->d, candidate->newest_usec, c))
                        continue;
                if (c->state == CLAIM_ALIVE) /* in each failure that it lives through */
                        (void)add_to_failure(a, k, candidate, c, now);
                else
                        f = candidate;
        }
        return f && add_to_failure(a, k, f, c, now);
}

static void schedule_search(Key *k, int64_t ended_usec, int64_t now) {
        if (ended_usec == INT64_MIN)
                k->search_usec = AGREEMENT_NEVER;
        else if (ended_usec > k->ended_usec) {
                k->search_usec = MAX(now, ended_usec + SEARCH_FIRST);
                k->search_gap_usec = SEARCH_FIRST;
        }
        k->ended_usec = ended_usec;
}

/* Places what belongs to a known failure, and finds out what still wants a decision. */
static void refresh_key(Agreement *a, Key *k, int64_t now) {
        int64_t ended_usec = INT64_MIN;
        bool moved, is_open = false, has_cluster_id = false;

        do {
                moved = false;
                for (size_t i = 0; i < k->claims.n; i++)
                        moved |= place_claim(a, k, &k->claims.items[i], now);
        } while (moved);
        for (size_t i = 0; i < k->claims.n; i++) {
                const Claim *c = &k->claims.items[i];
                if (c->state == CLAIM_ALIVE || !counts(a, k, c) || find_placed(k, c))
                        continue;
                if (claim_is_failure(c)) {
                        is_open = true;
                        has_cluster_id |= cluster_id_is_set(c->cluster_id);
                } else if (is_own(a, c) && !ended_long_ago(a, c))
                        ended_usec = MAX(ended_usec, c->event_usec);
        }
        schedule_search(k, ended_usec, now);
        k->cluster_id_usec = has_cluster_id ? MIN(k->cluster_id_usec, now) : AGREEMENT_NEVER;
        if (is_open && k->first_usec == AGREEMENT_NEVER) {
                k->first_usec = now;
                k->leaf_wait_usec = jitter(a, LEAF_WAIT, 3 * LEAF_WAIT);
                k->n_exists = 0;
        } else if (!is_open)
                k->first_usec = AGREEMENT_NEVER;
}

/* @return when what is open may be decided */
static int64_t open_time(const Agreement *a, const Key *k) {
        if (k->first_usec == AGREEMENT_NEVER || a->hurry)
                return k->first_usec;
        return MIN(k->first_usec + a->settle_usec, k->cluster_id_usec) +
               (k->role == ROLE_LEAF ? k->leaf_wait_usec : 0);
}

static int64_t query_time(const Agreement *a, const Key *k) {
        if (k->question != ACTION_LIST)
                return -TIME_MAX; /* at once, before records */
        int64_t t = MIN(open_time(a, k), k->search_usec);
        const Failure *f = find_failure(k, 0);
        if (f)
                t = MIN(t, f->d.opened_usec);
        return t == AGREEMENT_NEVER ? t : MAX(t, k->retry_usec);
}

/* ---- deciding ---- */

static bool is_open_claim(const Agreement *a, const Key *k, const Claim *c) {
        return claim_is_failure(c) && counts(a, k, c) && !find_placed(k, c);
}

/* @return the earlier one of two; either may be NULL */
static const Claim *earlier_claim(const Claim *a, const Claim *b) {
        return !a || (b && b->event_usec < a->event_usec) ? b : a;
}

/* @return whether the runtime's names of a claim can be a failure's, and them */
static bool set_name(Decision *d, const Claim *c) {
        memcpy(d->cluster_id, c->cluster_id, sizeof d->cluster_id);
        memcpy(d->date_time, c->date_time, sizeof d->date_time);
        return decision_name_is_valid(d);
}

void decision_derive_cluster_id(const char *key, uint32_t n, char ret[CLUSTER_ID_SIZE]) {
        char text[CLAIM_KEY_SIZE + 16];
        uint8_t digest[SHA256_SIZE];

        snprintf(text, sizeof text, "%s/%u", key, n);
        sha256_of(text, strlen(text), digest);
        digest_hex(digest, 8, ret);
}

/* An elastic job starts again with another number of ranks: that of the last launch before the
 * failure counts.
 * @param first  the failure's first claim @return -1: not known */
static int64_t launch_world_size(const Key *k, const Claim *first) {
        int64_t size = -1, started_usec = INT64_MIN;
        for (size_t i = 0; i < k->claims.n; i++) {
                const Claim *c = &k->claims.items[i];
                if (c->world_size <= 0 || c->started_usec < started_usec ||
                    c->started_usec > first->event_usec + AGREEMENT_START_SLACK_USEC)
                        continue;
                size = c->started_usec > started_usec ? c->world_size : MAX(size, c->world_size);
                started_usec = c->started_usec;
        }
        return size;
}

/* Names a failure after the claims that are open: the earliest one that has a name, unless that is
 * not within the window of the earliest one of all.
 * @param n_derived  what a derived cluster id is made of
 * @return the earliest one; NULL: there is none */
static const Claim *name_failure(const Agreement *a, const Key *k, uint32_t n_derived, int64_t now,
                                 Decision *ret) {
        const Claim *first = NULL, *named = NULL;
        Decision d = { .settle_usec = a->settle_usec, .opened_usec = now };

        memcpy(d.key, k->key, sizeof d.key);
        memcpy(d.created_by, a->instance_id, sizeof d.created_by);
        for (size_t i = 0; i < k->claims.n; i++) {
                const Claim *c = &k->claims.items[i];
                if (!is_open_claim(a, k, c))
                        continue;
                first = earlier_claim(first, c);
                if (set_name(&d, c))
                        named = earlier_claim(named, c);
        }
        if (!first)
                return NULL;
        d.world_size = launch_world_size(k, first);
        d.derived = !named || named->event_usec > first->event_usec + a->window_usec;
        (void)set_name(&d, d.derived ? first : named);
        if (d.derived)
                decision_derive_cluster_id(k->key, n_derived, d.cluster_id);
        *ret = d;
        return first;
}

static uint32_t highest_known(const Key *k) {
        uint32_t n = k->n_decided;
        for (size_t i = 0; i < k->n_failures; i++)
                n = MAX(n, k->failures[i]->d.n);
        return n;
}

/* Keeps a failure that this node has made. Its first claim is in it whatever the clocks say, else
 * it would want another one. */
static int found_failure(Agreement *a, Key *k, const Decision *d, const Claim *first, int64_t now) {
        const Claim copy = *first; /* room is made by moving claims */
        Failure *f;
        const int r = add_failure(a, k, d, now, &f);
        if (r < 0) {
                k->retry_usec = now + backoff(a, ++k->n_errors);
                return r;
        }
        (void)add_to_failure(a, k, f, &copy, now);
        refresh_key(a, k, now);
        return 0;
}

/* Without asking anybody. */
static void decide_alone(Agreement *a, Key *k, Agreed agreed, int64_t now) {
        const uint32_t n = agreed == AGREED_BUS ? highest_known(k) + 1 : 0;
        Decision d;

        const Claim *first = name_failure(a, k, n > 0 ? n : k->n_named + 1, now, &d);
        if (!first) {
                k->first_usec = AGREEMENT_NEVER;
                return;
        }
        d.agreed = agreed;
        d.n = n;
        if (n == 0) /* as nobody was waited for: what started afterwards is another launch */
                d.opened_usec = first->event_usec;
        int r = found_failure(a, k, &d, first, now);
        k->n_named += r == 0 && n == 0;
        k->n_decided = r == 0 ? MAX(k->n_decided, n) : k->n_decided;
}

/* A failure that this node named alone is the one with this number from now on. */
static void number_failure(Agreement *a, Key *k, Failure *f, const Decision *d, int64_t now) {
        size_t i = 0;

        while (k->failures[i] != f)
                i++;
        f->d.n = d->n;
        f->changed_usec = now;
        f->publish_usec = publishing_time(a, &f->d, now);
        sort_failure(k, i);
}

static bool has_same_name(const Decision *a, const Decision *b) {
        return strcmp(a->cluster_id, b->cluster_id) == 0 && strcmp(a->date_time, b->date_time) == 0;
}

/* @return the failure without a number that this decision of this node is about */
static Failure *find_same_name(const Agreement *a, const Key *k, const Decision *d) {
        for (size_t i = 0; i < k->n_failures; i++) {
                Failure *f = k->failures[i];
                if (f->d.n == 0 && is_ours(a, d) && has_same_name(&f->d, d))
                        return f;
        }
        return NULL;
}

/* Keeps a decision that was read, created or heard when claims belong to it.
 * @param newest_usec  of its records; INT64_MIN */
static int adopt_decision(Agreement *a, Key *k, const Decision *d, int64_t newest_usec,
                          int64_t now) {
        Failure *f = find_failure(k, d->n);

        if (f) { /* a decision never changes, whatever else is said */
                if (has_same_name(&f->d, d) && newest_usec > f->newest_usec) {
                        f->newest_usec = newest_usec;
                        refresh_key(a, k, now);
                }
                return 0;
        }
        if ((f = find_same_name(a, k, d))) {
                number_failure(a, k, f, d, now);
                return 0;
        }
        for (size_t i = 0; i < k->claims.n; i++) {
                const Claim *c = &k->claims.items[i];
                if (!counts(a, k, c) || find_placed(k, c) || !may_join(a, k, d, newest_usec, c))
                        continue;
                const int r = add_failure(a, k, d, now, &f);
                if (r < 0)
                        return r;
                f->newest_usec = newest_usec;
                refresh_key(a, k, now);
                return 0;
        }
        return 0;
}

/* ---- construction, configuration ---- */

static uint64_t node_of(const char *instance_id) {
        uint8_t digest[SHA256_SIZE];
        uint64_t node = 0;

        sha256_of(instance_id, strlen(instance_id), digest);
        for (size_t i = 0; i < sizeof node; i++)
                node = node << 8 | digest[i];
        return node;
}

int agreement_new(Agreement **ret, const AgreementOptions *options) {
        Agreement *a = calloc(1, sizeof *a);

        if (!a)
                return -ENOMEM;
        strncpy(a->instance_id, options->instance_id, sizeof a->instance_id - 1);
        a->node = node_of(a->instance_id);
        agreement_set_times(a, options->settle_usec, options->window_usec);
        a->random = options->seed;
        *ret = a;
        return 0;
}

Agreement *agreement_free(Agreement *a) {
        if (!a)
                return NULL;
        while (a->n_keys > 0)
                remove_key(a, a->n_keys - 1);
        free(a);
        return NULL;
}

void agreement_set_times(Agreement *a, int64_t settle_usec, int64_t window_usec) {
        a->settle_usec = MIN(settle_usec, TIME_MAX);
        a->window_usec = MIN(window_usec, TIME_MAX);
}

int agreement_set_arbiter(Agreement *a, const char *key, bool has_arbiter) {
        Key *k;
        const int r = add_key(a, key, &k);
        if (r < 0)
                return r;
        if (k->has_arbiter != has_arbiter)
                k->question = ACTION_LIST; /* it starts with a listing */
        k->has_arbiter = has_arbiter;
        k->is_unable = k->is_unable && has_arbiter;
        return 0;
}

int agreement_set_role(Agreement *a, const char *key, Role role) {
        Key *k;
        const int r = add_key(a, key, &k);
        if (r < 0 || k->role == role)
                return r;
        k->role = role;
        k->send_usec = AGREEMENT_NEVER;
        if (k->n_failures > 0 || k->first_usec != AGREEMENT_NEVER)
                send_soon(k, a->now_usec);
        refresh_key(a, k, a->now_usec);
        return 0;
}

void agreement_hurry(Agreement *a, bool on) {
        a->hurry = on;
}

void agreement_forget(Agreement *a, const char *key) {
        for (size_t i = 0; i < a->n_keys; i++)
                if (strcmp(a->keys[i]->key, key) == 0) {
                        remove_key(a, i);
                        return;
                }
}

/* ---- claims ---- */

/* Makes room by what ended long ago without a failure, else by what belongs to the oldest one. */
static int add_claim(Agreement *a, Key *k, const Claim *c) {
        size_t n = 0, n_before = k->claims.n;
        const int r = claim_set_add(&k->claims, c);
        if (r != -ENOSPC)
                return r;
        for (size_t i = 0; i < n_before; i++) {
                const Claim *old = &k->claims.items[i];
                if (!ended_long_ago(a, old) || find_placed(k, old))
                        k->claims.items[n++] = *old;
        }
        k->claims.n = n;
        if (n == n_before && k->n_failures > 0)
                remove_oldest_failure(a, k);
        return claim_set_add(&k->claims, c);
}

/* @return 1: it is new in the key; 0; -errno */
static int add_own_claim(Agreement *a, const char *key, Claim *c, int64_t now, Key **ret) {
        a->now_usec = now;
        if (!claim_normalize(c, now))
                return -EINVAL;
        const int r = add_key(a, key, ret);
        memcpy(c->instance_id, a->instance_id, sizeof c->instance_id);
        return r < 0 ? r : add_claim(a, *ret, c);
}

int agreement_claim(Agreement *a, const char *key, const Claim *c, bool is_local, int64_t now) {
        Claim own = *c;
        Key *k;

        const int r = add_own_claim(a, key, &own, now, &k);
        if (r <= 0)
                return r;
        refresh_key(a, k, now);
        if (claim_is_failure(&own) || k->n_failures > 0)
                send_soon(k, now);
        if (is_local && claim_is_failure(&own) && !find_placed(k, &own))
                decide_alone(a, k, AGREED_ALONE, now);
        return 0;
}

int agreement_restore(Agreement *a, const Decision *d, const Claim *c, int64_t now) {
        Claim own = *c;
        Key *k;

        if (!decision_is_usable(d, d->key) || (d->n == 0 && d->agreed != AGREED_ALONE))
                return -EINVAL;
        int r = add_own_claim(a, d->key, &own, now, &k);
        if (r < 0)
                return r;
        Failure *f = d->n > 0 ? find_failure(k, d->n) : find_same_name(a, k, d);
        if (!f) {
                r = add_failure(a, k, d, now, &f);
                if (r < 0)
                        return r;
                k->n_named += d->agreed == AGREED_ALONE;
        }
        (void)add_to_failure(a, k, f, &own, now);
        refresh_key(a, k, now);
        return 0;
}

const Decision *agreement_find(const Agreement *a, const char *key, const Claim *process) {
        const Key *k = find_key(a, key);
        if (!k)
                return NULL;
        const Failure *f = find_placed(k, process);
        const Claim *c = claim_set_find(&k->claims, process);
        for (size_t i = k->n_failures; !f && c && c->state == CLAIM_ALIVE && i-- > 0;)
                if (claim_set_find(&k->failures[i]->claims, process))
                        f = k->failures[i]; /* the last one */
        return f ? &f->d : NULL;
}

bool agreement_is_pending(const Agreement *a, const char *key, const Claim *process) {
        const Key *k = find_key(a, key);
        const Claim *c = k ? claim_set_find(&k->claims, process) : NULL;
        return c && is_open_claim(a, k, c) && (can_query(k) || k->role != ROLE_NONE);
}

bool agreement_is_asking(const Agreement *a, const char *key, int64_t now) {
        const Key *k = find_key(a, key);
        return k && can_query(k) &&
               (k->in_flight != ACTION_NONE || k->question != ACTION_LIST || k->retry_usec > now);
}

/* ---- the arbiter ---- */

/* What an action may end with, beside OK, and not be tried again. */
static const StoreOutcome final_outcomes[N_ACTION_KINDS] = {
        [ACTION_LIST] = STORE_OUTCOME_NOT_FOUND, [ACTION_READ] = STORE_OUTCOME_NOT_FOUND,
        [ACTION_CREATE] = STORE_OUTCOME_EXISTS,  [ACTION_RECORD] = STORE_OUTCOME_UNABLE,
        [ACTION_PUBLISH] = STORE_OUTCOME_UNABLE,
};

/* What has failed is tried again, less and less often; a key that asks begins again then.
 * @return whether there is an outcome to be handled */
static bool end_action(Agreement *a, Key *k, StoreOutcome outcome, int64_t now) {
        const StoreOutcome final = final_outcomes[k->in_flight];

        k->in_flight = ACTION_NONE;
        if (outcome == STORE_OUTCOME_OK || outcome == final) {
                k->n_errors = 0;
                return true;
        }
        if (outcome == STORE_OUTCOME_UNABLE)
                k->is_unable = true;
        else
                k->retry_usec = now + backoff(a, ++k->n_errors);
        k->question = ACTION_LIST;
        return false;
}

/* The listing is fresh: continues to what is to be read, then to what is to be created. */
static void advance(Agreement *a, Key *k, int64_t now) {
        const Failure *unnumbered = find_failure(k, 0);
        const uint32_t highest = MAX(k->highest, highest_known(k)), n = highest + 1;

        k->question = ACTION_LIST;
        if (!unnumbered && k->first_usec == AGREEMENT_NEVER && k->search_usec == AGREEMENT_NEVER)
                return;
        if (k->n_candidates > 0) {
                k->question = ACTION_READ;
                return;
        }
        k->is_listed = k->highest == highest; /* else it does not show what the bus has decided */
        refresh_key(a, k, now);
        k->is_listed = false;
        if (k->search_usec <= now) {
                k->search_usec = now + k->search_gap_usec;
                k->search_gap_usec = MIN(2 * k->search_gap_usec, HOUR);
        }
        if (highest > NUMBER_MAX) { /* somebody has written nonsense there */
                k->is_unable = true;
                return;
        }
        if (unnumbered)
                k->proposal = unnumbered->d;
        else if (open_time(a, k) <= now && name_failure(a, k, n, now, &k->proposal))
                k->proposal.agreed = AGREED_STORE;
        else
                return;
        k->proposal.n = n;
        k->question = ACTION_CREATE;
}

/* @return whether a claim that has no number yet may belong to what the listing shows */
static bool is_candidate(const Agreement *a, const Key *k, const ListedFailure *l) {
        const Decision d = { .opened_usec = l->opened_usec };

        for (size_t i = 0; i < k->claims.n; i++) {
                const Claim *c = &k->claims.items[i];
                if (c->state == CLAIM_ALIVE || !counts(a, k, c))
                        continue;
                const Failure *f = find_placed(k, c);
                if ((!f || f->d.n == 0) && belongs(a, &d, l->newest_usec, c))
                        return true;
        }
        return false;
}

static void handle_listed(Agreement *a, Key *k, uint32_t n, const StoreResult *r, int64_t now) {
        (void)n;
        k->highest = 0;
        k->n_candidates = 0;
        for (size_t i = 0; i < r->n_listed; i++) {
                Failure *f = find_failure(k, r->listed[i].n);
                k->highest = MAX(k->highest, r->listed[i].n);
                if (f)
                        f->newest_usec = MAX(f->newest_usec, MIN(r->listed[i].newest_usec, now));
        }
        refresh_key(a, k, now);
        for (size_t i = 0; i < r->n_listed; i++) {
                ListedFailure l = r->listed[i];
                l.newest_usec = MIN(l.newest_usec, now);
                if (!l.has_decision || !time_is_sane(l.opened_usec) || find_failure(k, l.n) ||
                    (l.n != k->highest && !is_candidate(a, k, &l)))
                        continue;
                /* The first ones count, and the highest. */
                k->n_candidates = MIN(k->n_candidates + 1, (size_t)CANDIDATES_MAX);
                k->candidates[k->n_candidates - 1] = l;
        }
        advance(a, k, now);
}

static void handle_read(Agreement *a, Key *k, uint32_t n, const StoreResult *r, int64_t now) {
        const bool is_ok = r->outcome == STORE_OUTCOME_OK;

        if (k->question != ACTION_READ)
                return;
        const int64_t newest_usec = k->candidates[0].newest_usec;
        if (!is_ok && k->candidates[0].opened_usec == NOT_LISTED) {
                k->question = ACTION_LIST; /* it was just being written, or is invalid */
                k->retry_usec = now + jitter(a, 100 * MSEC, SEC);
                return;
        }
        memmove(k->candidates, k->candidates + 1, --k->n_candidates * sizeof *k->candidates);
        if (is_ok && r->decision->n == n && decision_is_usable(r->decision, k->key)) {
                k->is_listed = true; /* those before it have been read */
                const int error = adopt_decision(a, k, r->decision, newest_usec, now);
                k->is_listed = false;
                if (error < 0) {
                        k->retry_usec = now + backoff(a, ++k->n_errors);
                        k->question = ACTION_LIST;
                        return;
                }
        }
        advance(a, k, now);
}

static void handle_created(Agreement *a, Key *k, uint32_t n, const StoreResult *r, int64_t now) {
        Failure *f;
        Decision d;

        k->question = ACTION_LIST;
        if (r->outcome ==
            STORE_OUTCOME_EXISTS) { /* without another listing: this is what it shows */
                if (++k->n_exists > EXISTS_MAX) {
                        k->retry_usec = now + backoff(a, k->n_exists - EXISTS_MAX);
                        return;
                }
                k->highest = n;
                k->candidates[0] = (ListedFailure){ n, true, NOT_LISTED, INT64_MIN };
                k->n_candidates = 1;
                k->question = ACTION_READ;
                return;
        }
        k->n_exists = 0;
        k->proposal.opened_usec = time_is_sane(r->opened_usec) ? r->opened_usec : now;
        if ((f = find_same_name(a, k, &k->proposal))) {
                number_failure(a, k, f, &k->proposal, now);
                return;
        }
        /* What is open has hardly changed since; were it all placed by a peer's news, the number
         * stays for those that are to come. Without memory a listing shows it again. */
        const Claim *first = name_failure(a, k, n, now, &d);
        if (first && !find_failure(k, n))
                (void)found_failure(a, k, &k->proposal, first, now);
}

/* ---- records and incident.json ---- */

static void handle_recorded(Agreement *a, Key *k, uint32_t n, const StoreResult *r, int64_t now) {
        Failure *f = find_failure(k, n);

        (void)r;
        if (!f)
                return;
        f->n_recorded = k->in_flight_changes;
        f->record_usec = now + f->record_gap_usec;
        f->record_gap_usec = MIN(2 * f->record_gap_usec, RECORD_GAP_MAX);
        if (f->publish_usec != AGREEMENT_NEVER)
                return; /* that one sees this record as well */
        f->publish_usec =
                MAX(now, f->d.opened_usec + PUBLISH_STAND_IN) + jitter(a, 0, PUBLISH_SPREAD);
}

static void handle_published(Agreement *a, Key *k, uint32_t n, const StoreResult *r, int64_t now) {
        Failure *f = find_failure(k, n);

        (void)r;
        if (f)
                f->publish_usec = publishing_time(a, &f->d, now + 1);
}

void agreement_on_done(Agreement *a, const char *key, ActionKind kind, uint32_t n,
                       const StoreResult *r, int64_t now) {
        static void (*const handlers[N_ACTION_KINDS])(Agreement * a, Key * k, uint32_t n,
                                                      const StoreResult *r, int64_t now) = {
                [ACTION_LIST] = handle_listed,       [ACTION_READ] = handle_read,
                [ACTION_CREATE] = handle_created,    [ACTION_RECORD] = handle_recorded,
                [ACTION_PUBLISH] = handle_published,
        };
        Key *k = find_key(a, key);

        a->now_usec = now;
        /* Nobody waits for that of a key that was forgotten meanwhile. */
        if (k && k->in_flight == kind && k->in_flight_n == n && handlers[kind] &&
            end_action(a, k, r->outcome, now))
                handlers[kind](a, k, n, r, now);
}

/* ---- the bus ---- */

/* Tells a leaf with the next news what is here of it. It sends again when there are too many. */
static void acknowledge(Key *k, const char *instance_id) {
        const Heard heard = { node_of(instance_id), sum_revisions(k, instance_id) };
        size_t i = 0;

        while (i < k->n_acks && k->acks[i].node != heard.node)
                i++;
        if (i == MESSAGE_HEARD_MAX)
                return;
        k->acks[i] = heard;
        k->n_acks = MAX(k->n_acks, i + 1);
}

/* A peer's claims, at the centre. Their senders hear of the failures that these belong to, also
 * when nothing is new: they have missed the last news. */
static int hear_claims(Agreement *a, Key *k, const Message *m, int64_t now) {
        for (size_t i = 0; i < m->n_claims; i++) {
                Claim c = m->claims[i];
                const Claim *old = claim_set_find(&k->claims, &c);
                if (strcmp(c.instance_id, m->sender) != 0 || !claim_normalize(&c, now) ||
                    (old && strcmp(old->instance_id, m->sender) != 0))
                        continue;
                const int r = add_claim(a, k, &c);
                if (r < 0)
                        return r;
        }
        refresh_key(a, k, now);
        for (size_t i = 0; i < m->n_claims; i++) {
                Failure *f = find_placed(k, &m->claims[i]);
                if (f)
                        f->has_news = true;
        }
        acknowledge(k, m->sender);
        return 0;
}

/* @return whether the news says what the centre has of this node */
static bool handle_heard(const Agreement *a, Key *k, const Message *m) {
        for (size_t i = 0; i < m->n_heard; i++)
                if (m->heard[i].node == a->node) {
                        k->heard_revisions = m->heard[i].revisions;
                        return true;
                }
        return false;
}

/* What is still undecided is sent now and then all the same, when it should have been decided: the
 * centre may have forgotten it, or its news was lost. */
static void send_less(const Agreement *a, Key *k, bool is_mentioned, int64_t now) {
        if (!is_heard(a, k))
                return;
        if (k->first_usec == AGREEMENT_NEVER)
                k->send_usec = AGREEMENT_NEVER;
        else if (is_mentioned && k->send_step < SEND_STEP_SLOW) {
                k->send_step = SEND_STEP_SLOW;
                k->send_usec = MAX(now + send_steps[SEND_STEP_SLOW], open_time(a, k));
        }
}

/* @return the failed claim whose event is the newest; NULL */
static const Claim *find_newest(const Claim *claims, size_t n) {
        const Claim *newest = NULL;
        for (const Claim *c = claims; c < claims + n; c++)
                if (claim_is_failure(c) && (!newest || c->event_usec > newest->event_usec))
                        newest = c;
        return newest;
}

int agreement_hear(Agreement *a, const Message *m, int64_t now) {
        Key *k = find_key(a, m->key);
        int r = 0;

        a->now_usec = now;
        if (!k || k->role == ROLE_NONE || strcmp(m->sender, a->instance_id) == 0 ||
            (m->kind == MESSAGE_CLAIMS && k->role != ROLE_CENTRE))
                return 0;
        const bool is_leaf = m->kind == MESSAGE_NEWS && k->role == ROLE_LEAF;
        const bool is_mentioned = is_leaf && handle_heard(a, k, m);
        if (m->kind == MESSAGE_CLAIMS)
                r = hear_claims(a, k, m, now);
        if (r == 0 && m->has_decision && m->decision.n > 0 &&
            decision_is_usable(&m->decision, k->key) && m->decision.agreed != AGREED_ALONE) {
                /* When the centre has heard all claims of this node in one message, its news begins
                 * with the first failure that they are in. */
                k->is_listed = is_mentioned && is_heard(a, k) && k->claims.n <= MESSAGE_CLAIMS_MAX;
                const Claim *newest =
                        m->kind == MESSAGE_NEWS ? find_newest(m->claims, m->n_claims) : NULL;
                r = adopt_decision(a, k, &m->decision,
                                   newest ? MIN(newest->event_usec, now) : INT64_MIN, now);
                k->is_listed = false;
        }
        if (is_leaf)
                send_less(a, k, is_mentioned, now);
        return r;
}

static void write_claims(const Agreement *a, Key *k, Message *m, int64_t now) {
        size_t n_own = 0;

        for (size_t i = 0; i < k->claims.n; i++)
                if (is_own(a, &k->claims.items[i]) && n_own++ >= k->send_at &&
                    m->n_claims < MESSAGE_CLAIMS_MAX)
                        m->claims[m->n_claims++] = k->claims.items[i];
        for (size_t i = 0; i < k->n_failures; i++)
                if (k->failures[i]->d.agreed != AGREED_ALONE) {
                        m->decision = k->failures[i]->d;
                        m->has_decision = true;
                }
        k->sent_usec = now;
        k->send_at += m->n_claims;
        if (k->send_at < n_own)
                return;
        k->send_at = 0;
        k->send_step = MIN(k->send_step + 1, ELEMENTSOF(send_steps) - 1);
        k->send_usec = now + send_steps[k->send_step];
}

static Failure *find_news(const Key *k) {
        for (size_t i = 0; i < k->n_failures; i++)
                if (k->failures[i]->has_news && k->failures[i]->d.n > 0)
                        return k->failures[i];
        return NULL;
}

static void write_news(Key *k, Message *m, int64_t now) {
        Failure *f = find_news(k);

        if (f) {
                m->decision = f->d;
                m->has_decision = true;
                const Claim *newest = find_newest(f->claims.items, f->claims.n);
                if (newest) /* so that a leaf knows how long the window is open */
                        m->claims[m->n_claims++] = *newest;
                f->has_news = false;
        }
        while (k->n_acks > 0)
                m->heard[m->n_heard++] = k->acks[--k->n_acks];
        k->news_usec = now + NEWS_GAP;
}

static const Message *write_message(Agreement *a, Key *k, int64_t now) {
        Message *m = &a->message;

        *m = (Message){ .kind = k->role == ROLE_LEAF ? MESSAGE_CLAIMS : MESSAGE_NEWS };
        memcpy(m->sender, a->instance_id, sizeof m->sender);
        memcpy(m->key, k->key, sizeof m->key);
        if (k->role == ROLE_LEAF)
                write_claims(a, k, m, now);
        else
                write_news(k, m, now);
        return m;
}

/* ---- what is due ---- */

typedef struct Due {
        int64_t at; /* AGREEMENT_NEVER: nothing */
        ActionKind kind;
        Failure *failure; /* RECORD, PUBLISH */
} Due;

static void add_due(Due *due, int64_t at, ActionKind kind, Failure *f) {
        if (at < due->at)
                *due = (Due){ at, kind, f };
}

/* @return the earliest action of a key */
static Due find_due(const Agreement *a, const Key *k) {
        Due due = { .at = AGREEMENT_NEVER };

        if (k->role == ROLE_LEAF)
                add_due(&due, k->send_usec, ACTION_SEND, NULL);
        else if (k->role == ROLE_CENTRE && (k->n_acks > 0 || find_news(k)))
                add_due(&due, k->news_usec, ACTION_SEND, NULL);
        if (!can_query(k) || k->in_flight != ACTION_NONE)
                return due;
        add_due(&due, query_time(a, k), k->question, NULL);
        for (size_t i = 0; i < k->n_failures; i++) {
                Failure *f = k->failures[i];
                if (!is_in_store(&f->d))
                        continue;
                if (f->changes != f->n_recorded)
                        add_due(&due, MAX(f->record_usec, k->retry_usec), ACTION_RECORD, f);
                add_due(&due, MAX(f->publish_usec, k->retry_usec), ACTION_PUBLISH, f);
        }
        return due;
}

/* @return when the centre decides by itself; AGREEMENT_NEVER */
static int64_t decide_time(const Agreement *a, const Key *k) {
        return k->role == ROLE_CENTRE && !can_query(k) ? MAX(open_time(a, k), k->retry_usec)
                                                       : AGREEMENT_NEVER;
}

static void start_action(Agreement *a, Key *k, const Due *due, int64_t now, Action *ret) {
        const Failure *f = due->failure;

        *ret = (Action){ .kind = due->kind };
        memcpy(ret->key, k->key, sizeof ret->key);
        if (due->kind == ACTION_SEND) {
                ret->message = write_message(a, k, now);
                return;
        }
        if (due->kind == ACTION_READ)
                ret->n = k->candidates[0].n;
        else if (due->kind != ACTION_LIST) {
                ret->decision = f ? f->d : k->proposal;
                ret->n = ret->decision.n;
        }
        if (due->kind == ACTION_PUBLISH) /* its creator's are those at fixed times */
                ret->unless_listed = f->publish_usec >= f->d.opened_usec + PUBLISH_STAND_IN;
        k->in_flight = due->kind;
        k->in_flight_n = ret->n;
        k->in_flight_changes = f ? f->changes : 0;
}

ActionKind agreement_next_action(Agreement *a, int64_t now, Action *ret) {
        a->now_usec = now;
        expire(a, now);
        *ret = (Action){ .kind = ACTION_NONE };
        for (size_t i = 0; i < a->n_keys && ret->kind == ACTION_NONE; i++) {
                Key *k = a->keys[i];
                if (decide_time(a, k) <= now)
                        decide_alone(a, k, AGREED_BUS, now); /* the next one in the next turn */
                const Due due = find_due(a, k);
                if (due.at <= now)
                        start_action(a, k, &due, now, ret);
        }
        return ret->kind;
}

int64_t agreement_next_time(const Agreement *a) {
        int64_t t = AGREEMENT_NEVER;
        for (size_t i = 0; i < a->n_keys; i++) {
                t = MIN(t, find_due(a, a->keys[i]).at);
                t = MIN(t, decide_time(a, a->keys[i]));
        }
        return t;
}

/* ---- views ---- */

const ClaimSet *agreement_claims(const Agreement *a, const char *key, uint32_t n) {
        const Failure *f = find_failure(find_key(a, key), n);
        return f ? &f->claims : NULL;
}

bool agreement_failure(const Agreement *a, size_t i, AgreementFailure *ret) {
        for (size_t j = 0; j < a->n_keys; j++) {
                const Key *k = a->keys[j];
                if (i < k->n_failures) {
                        *ret = (AgreementFailure){ &k->failures[i]->d, &k->failures[i]->claims };
                        return true;
                }
                i -= k->n_failures;
        }
        return false;
}
