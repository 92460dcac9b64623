/* Records made by chance, and a store in a temporary directory. */
#pragma once

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/unit.h"

#include "agent/store/store.h"
#include "lib/base/cleanup.h"
#include "tests/lib/base/scratch.h"

/* What the store takes before the first bundle: the reserve, the log, and the blocks ahead. */
#define RESERVED_BYTES ((4 + 4 + 3) * MIB)

/* xorshift64*: the same numbers on every run. */
static inline uint64_t next_random(uint64_t *seed) {
        *seed ^= *seed >> 12;
        *seed ^= *seed << 25;
        *seed ^= *seed >> 27;
        return *seed * UINT64_C(2685821657736338717);
}

/* Bytes that a path may hold: everything but NUL; sometimes NULL when that is allowed. */
static inline char *random_bytes(uint64_t *seed, bool may_be_null) {
        size_t n = next_random(seed) % 40;
        char *s;

        if (may_be_null && next_random(seed) % 4 == 0)
                return NULL;
        s = malloc(n + 1);
        assert_non_null(s);
        for (size_t i = 0; i < n; i++)
                s[i] = (char)(1 + next_random(seed) % 255);
        s[n] = '\0';
        return s;
}

static inline void random_delivery(uint64_t *seed, DeliveryRecord *d) {
        *d = (DeliveryRecord){
                .destination = random_bytes(seed, false),
                .state = (DeliveryState)(next_random(seed) % N_DELIVERY_STATES),
                .proof = (Proof)(next_random(seed) % N_PROOFS),
                .object = random_bytes(seed, true),
                .bytes = next_random(seed),
                .attempts = (unsigned)next_random(seed),
                .last_error = random_bytes(seed, true),
                .next_try_usec = next_random(seed),
                .done_usec = next_random(seed),
        };
}

static inline void random_name(uint64_t *seed, FailureName *n) {
        static const char *const agreed[] = { "", "store", "bus", "alone" };
        (void)strcpy(n->agreed, agreed[next_random(seed) % ELEMENTSOF(agreed)]);
        (void)snprintf(n->cluster_id, sizeof n->cluster_id, "%016" PRIx64, next_random(seed));
        (void)snprintf(n->date_time, sizeof n->date_time, "%" PRIx64, next_random(seed));
        (void)snprintf(n->key, sizeof n->key, "%016" PRIx64, next_random(seed));
        n->derived = next_random(seed) & 1;
        n->n = (uint32_t)next_random(seed);
}

/* Fills what store_update may change. Frees nothing: for a fresh record. */
static inline void random_fields(uint64_t *seed, BundleRecord *b) {
        b->state = (BundleState)(next_random(seed) % N_BUNDLE_STATES);
        b->reason = random_bytes(seed, true);
        b->complete = next_random(seed) & 1;
        b->incomplete = random_bytes(seed, true);
        (void)snprintf(b->date_time, sizeof b->date_time, "%" PRIx64, next_random(seed));
        (void)snprintf(b->cluster_id, sizeof b->cluster_id, "%016" PRIx64 "%016" PRIx64,
                       next_random(seed), next_random(seed));
        b->n_supplements = (unsigned)next_random(seed);
        b->uid = (uid_t)next_random(seed);
        b->unit_dev = next_random(seed);
        b->unit_ino = next_random(seed);
        b->unit_born_usec = next_random(seed);
        b->n_files = next_random(seed);
        b->bytes = next_random(seed) >> 24;
        b->oldest_mtime_usec = next_random(seed);
        b->digest = next_random(seed);
        b->changed_usec = next_random(seed);
        b->attempts = (unsigned)next_random(seed);
        b->pinned = next_random(seed) & 1;
        b->links_held = next_random(seed) & 1;
        b->s3_prefix = random_bytes(seed, true);
        b->origin = (Origin)(next_random(seed) % N_ORIGINS);
        b->failure = random_bytes(seed, true);
        b->about = random_bytes(seed, true);
        (void)snprintf(b->subject, sizeof b->subject, "%016" PRIx64, next_random(seed));
        random_name(seed, &b->name);
        b->n_deliveries = next_random(seed) % 4;
        b->deliveries = b->n_deliveries > 0 ? calloc(b->n_deliveries, sizeof *b->deliveries) : NULL;
        for (size_t i = 0; i < b->n_deliveries; i++)
                random_delivery(seed, &b->deliveries[i]);
}

static inline BundleRecord random_record(uint64_t *seed, unsigned number) {
        BundleRecord b = {
                .source = random_bytes(seed, false),
                .kind = (SourceKind)(next_random(seed) % N_SOURCE_KINDS),
                .path = random_bytes(seed, false),
                .first_seen_usec = next_random(seed) >> 1,
        };
        (void)snprintf(b.id, sizeof b.id, "directory-20260527T052135-%012x", number);
        if (next_random(seed) & 1)
                (void)snprintf(b.supplement_of, sizeof b.supplement_of,
                               "directory-20260527T052135-%012" PRIx64, next_random(seed) >> 16);
        random_fields(seed, &b);
        return b;
}

/* A plain one, for tests where most fields do not matter. To be bundle_record_done(). */
static inline BundleRecord simple_record(const char *id, BundleState state,
                                         uint64_t first_seen_usec) {
        BundleRecord b = {
                .source = strdup("dumps"),
                .path = strdup("/tmp/neuron-core-dump/x"),
                .state = state,
                .bytes = 1000,
                .first_seen_usec = first_seen_usec,
        };
        (void)snprintf(b.id, sizeof b.id, "%s", id);
        return b;
}

static inline void assert_same_text(const char *a, const char *b) {
        if (!a || !b)
                assert_ptr_equal(a, b);
        else
                assert_string_equal(a, b);
}

static inline void assert_same_record(const BundleRecord *a, const BundleRecord *b) {
        assert_string_equal(a->id, b->id);
        assert_string_equal(a->source, b->source);
        assert_int_equal(a->kind, b->kind);
        assert_string_equal(a->path, b->path);
        assert_int_equal(a->state, b->state);
        assert_same_text(a->reason, b->reason);
        assert_int_equal(a->complete, b->complete);
        assert_same_text(a->incomplete, b->incomplete);
        assert_string_equal(a->date_time, b->date_time);
        assert_string_equal(a->cluster_id, b->cluster_id);
        assert_string_equal(a->supplement_of, b->supplement_of);
        assert_int_equal(a->n_supplements, b->n_supplements);
        assert_int_equal(a->uid, b->uid);
        assert_true(a->unit_dev == b->unit_dev && a->unit_ino == b->unit_ino &&
                    a->unit_born_usec == b->unit_born_usec);
        assert_true(a->n_files == b->n_files && a->bytes == b->bytes);
        assert_true(a->oldest_mtime_usec == b->oldest_mtime_usec && a->digest == b->digest);
        assert_true(a->first_seen_usec == b->first_seen_usec && a->changed_usec == b->changed_usec);
        assert_int_equal(a->attempts, b->attempts);
        assert_int_equal(a->pinned, b->pinned);
        assert_int_equal(a->links_held, b->links_held);
        assert_same_text(a->s3_prefix, b->s3_prefix);
        assert_int_equal(a->origin, b->origin);
        assert_same_text(a->failure, b->failure);
        assert_same_text(a->about, b->about);
        assert_string_equal(a->subject, b->subject);
        assert_string_equal(a->name.agreed, b->name.agreed);
        assert_string_equal(a->name.cluster_id, b->name.cluster_id);
        assert_string_equal(a->name.date_time, b->name.date_time);
        assert_string_equal(a->name.key, b->name.key);
        assert_int_equal(a->name.derived, b->name.derived);
        assert_int_equal(a->name.n, b->name.n);
        assert_int_equal(a->n_deliveries, b->n_deliveries);
        for (size_t i = 0; i < a->n_deliveries; i++) {
                const DeliveryRecord *x = &a->deliveries[i], *y = &b->deliveries[i];
                assert_string_equal(x->destination, y->destination);
                assert_int_equal(x->state, y->state);
                assert_int_equal(x->proof, y->proof);
                assert_same_text(x->object, y->object);
                assert_true(x->bytes == y->bytes && x->next_try_usec == y->next_try_usec);
                assert_true(x->done_usec == y->done_usec && x->attempts == y->attempts);
                assert_same_text(x->last_error, y->last_error);
        }
}

/* The directory is `<scratch>/state`; made by the store. */
static inline Store *open_store(const Scratch *scratch) {
        char path[PATH_MAX + 8];
        Store *s = NULL;
        char *aside = NULL;
        pid_t pid = -1;

        (void)snprintf(path, sizeof path, "%s/state", scratch->path);
        assert_int_equal(store_open(&s, path, &aside, &pid), 0);
        assert_null(aside);
        return s;
}

/* Asks the sqlite3 program, that is another process and another library, about a copy: an open
 * store locks its database. @return its output without the last newline; the caller's */
static inline char *ask_sqlite3(const Scratch *scratch, const char *database, const char *sql) {
        char command[2 * PATH_MAX + 2048], text[65536];
        (void)snprintf(command, sizeof command,
                       "cd '%s/state' && d=$(mktemp -d) && for f in '%s' '%s-wal'; do "
                       "[ ! -e \"$f\" ] || cp \"$f\" \"$d\"; done; "
                       "sqlite3 \"$d/%s\" \"%s\" 2>&1; rm -rf \"$d\"",
                       scratch->path, database, database, database, sql);
        FILE *f = popen(command, "re");
        assert_non_null(f);
        size_t n = fread(text, 1, sizeof text - 1, f);
        (void)pclose(f);
        text[n] = '\0';
        if (n > 0 && text[n - 1] == '\n')
                text[n - 1] = '\0';
        char *copy = strdup(text);
        assert_non_null(copy);
        return copy;
}

static inline void assert_sqlite3(const Scratch *scratch, const char *sql, const char *expected) {
        char *text = ask_sqlite3(scratch, "state.db", sql);
        assert_string_equal(text, expected);
        free(text);
}
