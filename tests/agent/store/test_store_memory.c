/* A state directory that is full: what the store then keeps in memory, and what becomes of it. */
#include <errno.h>
#include <inttypes.h>
#include <sys/mount.h>

#include "tests/agent/store/ledger_test.h"
#include "tests/harness/mounts.h"
#include "tests/harness/skip.h"

typedef struct Told {
        unsigned n;
        int error;
} Told;

static void on_trouble(int error, void *userdata) {
        Told *told = userdata;
        told->n++;
        told->error = error;
}

/* A store on a disk of its own, with one bundle "a". */
static Store *open_on_disk(const Scratch *scratch) {
        char path[PATH_MAX + 8];
        (void)snprintf(path, sizeof path, "%s/state", scratch->path);
        assert_int_equal(mkdir(path, 0711), 0);
        assert_int_equal(mount("tmpfs", path, "tmpfs", 0, "size=2m"), 0);
        Store *s = open_store(scratch);
        add_bundle(s, "a");
        return s;
}

static void in_state(const Scratch *scratch, const char *command) {
        char text[PATH_MAX + 256];
        (void)snprintf(text, sizeof text, "cd '%s/state' && { %s; } 2>/dev/null", scratch->path,
                       command);
        (void)!system(text); /* filling a disk fails in the end, as it should */
}

/* The log's pages that are there already can be written over: it is carried over and cut first. */
static void fill(const Scratch *scratch) {
        in_state(scratch, "sqlite3 state.db 'PRAGMA wal_checkpoint(TRUNCATE)' > /dev/null; "
                          "dd if=/dev/zero of=filler bs=4096");
}

static void make_room(const Scratch *scratch) {
        in_state(scratch, "rm filler");
}

static void close_disk(const Scratch *scratch, Store *s) {
        char path[PATH_MAX + 8];
        store_close(s);
        (void)snprintf(path, sizeof path, "%s/state", scratch->path);
        assert_int_equal(umount2(path, MNT_DETACH), 0);
}

#define NEEDS_MOUNTS()                                                                             \
        do {                                                                                       \
                if (!mounts_allowed())                                                             \
                        SKIP_BECAUSE("only root may mount");                                       \
        } while (false)

static void trouble_is_told_once_and_is_over_when_all_is_written(void **state) {
        const Scratch *scratch = *state;
        BundleRecord b = simple_record("b", BUNDLE_READY, 1);
        Told told = { 0 };

        NEEDS_MOUNTS();
        Store *s = open_on_disk(scratch);
        store_on_trouble(s, on_trouble, &told);
        assert_int_equal(store_trouble(s), 0);
        fill(scratch);
        for (unsigned i = 0; i < 3; i++)
                assert_int_equal(store_add(s, &b), -ENOSPC);
        assert_int_equal(told.n, 1);
        assert_int_equal(told.error, -ENOSPC);
        assert_int_equal(store_trouble(s), -ENOSPC);
        assert_int_equal(store_recover(s), -ENOSPC);
        make_room(scratch);
        assert_int_equal(store_add(s, &b), 0);
        assert_int_equal(store_trouble(s), -ENOSPC); /* until everything is written */
        assert_int_equal(store_recover(s), 0);
        assert_int_equal(store_trouble(s), 0);
        bundle_record_done(&b);
        fill(scratch);
        assert_int_equal(store_put_prints(s, "nobody", NULL, 0), STORE_E_NOT_FOUND);
        assert_int_equal(store_counter_add(s, "x", 1), 0);
        assert_int_equal(told.n, 2);
        close_disk(scratch, s);
}

static void other_failures_are_no_trouble(void **state) {
        Store *s = open_store(*state);
        BundleRecord b = simple_record("a", BUNDLE_READY, 1);

        assert_int_equal(store_add(s, &b), 0);
        assert_int_equal(store_add(s, &b), -EEXIST);
        assert_int_equal(store_begin(s), 0);
        assert_int_equal(store_begin(s), -EALREADY);
        store_rollback(s);
        assert_int_equal(store_trouble(s), 0);
        assert_false(store_is_trouble(-EBUSY) || store_is_trouble(-ENOMEM) || store_is_trouble(0));
        bundle_record_done(&b);
        store_close(s);
}

static void figures_go_on_in_memory_and_are_written_when_there_is_room(void **state) {
        const Scratch *scratch = *state;
        StoreCounts counts;

        NEEDS_MOUNTS();
        Store *s = open_on_disk(scratch);
        assert_int_equal(store_counter_add(s, "bytes_sent", 5), 0);
        fill(scratch);
        for (unsigned i = 0; i < 10; i++)
                assert_int_equal(store_counter_add(s, "bytes_sent", 100), 0);
        assert_int_equal(store_counter_add(s, "discard:symlink", 7), 0);
        assert_int_equal(store_counter(s, "bytes_sent"), 1005);
        assert_sqlite3(scratch, "SELECT value FROM counters WHERE name = 'bytes_sent'", "5");
        make_room(scratch);
        assert_int_equal(store_recover(s), 0);
        assert_int_equal(store_counter(s, "bytes_sent"), 1005);
        assert_int_equal(store_counter(s, "discard:symlink"), 7);
        assert_sqlite3(scratch,
                       "SELECT value FROM counters WHERE name IN ('bytes_sent', "
                       "'discard:symlink') ORDER BY name",
                       "1005\n7");
        assert_int_equal(store_recover(s), 0);
        assert_int_equal(store_counter(s, "bytes_sent"), 1005); /* not once more */
        store_counts(s, &counts);
        assert_int_equal(counts.discovered, 1);
        close_disk(scratch, s);
}

static void prints_wait_in_memory_for_the_row_of_their_bundle(void **state) {
        const Scratch *scratch = *state;
        static const uint64_t prints[] = { 3, 1, 2 };
        static const char *const ids[] = { "a", "rowless" };

        NEEDS_MOUNTS();
        Store *s = open_on_disk(scratch);
        fill(scratch);
        assert_int_equal(store_counter_add(s, "x", 1), 0); /* trouble is known */
        for (size_t i = 0; i < ELEMENTSOF(ids); i++)
                assert_int_equal(store_put_prints(s, ids[i], prints, ELEMENTSOF(prints)), 0);
        make_room(scratch);
        add_bundle(s, "rowless");
        for (size_t i = 0; i < ELEMENTSOF(ids); i++) {
                assert_int_equal(store_recover_bundle(s, ids[i]), 0);
                store_recovered_bundle(s, ids[i]);
        }
        assert_sqlite3(scratch, "SELECT count(*) FROM prints", "2");
        for (size_t i = 0; i < ELEMENTSOF(ids); i++) {
                uint64_t *got;
                size_t n;
                assert_int_equal(store_get_prints(s, ids[i], &got, &n), 0);
                assert_int_equal(n, 3);
                assert_true(got[0] == 1 && got[1] == 2 && got[2] == 3);
                free(got);
                /* Nothing is put off any more: what is newer stays. */
                assert_int_equal(store_put_prints(s, ids[i], prints, 1), 0);
                assert_int_equal(store_recover_bundle(s, ids[i]), 0);
                assert_int_equal(store_get_prints(s, ids[i], &got, &n), 0);
                assert_int_equal(n, 1);
                free(got);
        }
        close_disk(scratch, s);
}

static void assert_prints(int r, uint64_t *got, size_t n, const char *wanted) {
        char text[64] = "";
        assert_int_equal(r, 0);
        for (size_t i = 0; i < n; i++)
                (void)snprintf(text + strlen(text), sizeof text - strlen(text), "%" PRIu64, got[i]);
        assert_string_equal(text, wanted);
        free(got);
}

#define ASSERT_PRINTS(f, s, of, wanted)                                                            \
        do {                                                                                       \
                uint64_t *got_ = NULL;                                                             \
                size_t n_ = 0;                                                                     \
                int r_ = f(s, of, &got_, &n_);                                                     \
                assert_prints(r_, got_, n_, wanted);                                               \
        } while (false)

static void prints_in_memory_are_read_instead_of_the_bundles_older_ones(void **state) {
        const Scratch *scratch = *state;
        BundleRecord supplement = simple_record("a2", BUNDLE_READY, 1);

        NEEDS_MOUNTS();
        Store *s = open_on_disk(scratch);
        strcpy(supplement.supplement_of, "a");
        assert_int_equal(store_add(s, &supplement), 0);
        assert_int_equal(store_put_prints(s, "a", (uint64_t[]){ 1, 2 }, 2), 0);
        fill(scratch);
        assert_int_equal(store_counter_add(s, "x", 1), 0); /* trouble is known */
        assert_int_equal(store_put_prints(s, "rowless", (uint64_t[]){ 9, 8 }, 2), 0);
        ASSERT_PRINTS(store_get_prints, s, "rowless", "89");
        ASSERT_PRINTS(store_get_own_prints, s, "rowless", "89");
        ASSERT_PRINTS(store_get_prints, s, "a", "12"); /* has none in memory */
        assert_int_equal(store_put_prints(s, "a", (uint64_t[]){ 2, 3 }, 2), 0);
        assert_int_equal(store_put_prints(s, "a2", (uint64_t[]){ 5, 3 }, 2), 0);
        ASSERT_PRINTS(store_get_own_prints, s, "a", "23");
        ASSERT_PRINTS(store_get_prints, s, "a", "235");
        ASSERT_PRINTS(store_get_earlier_prints, s, &supplement, "23");
        assert_int_equal(store_put_prints(s, "a2", NULL, 0), 0); /* of none, there too */
        ASSERT_PRINTS(store_get_prints, s, "a", "23");
        make_room(scratch);
        /* What is written meanwhile is newer than what waits. */
        assert_int_equal(store_put_prints(s, "a", (uint64_t[]){ 7 }, 1), 0);
        ASSERT_PRINTS(store_get_own_prints, s, "a", "7");
        assert_int_equal(store_recover_bundle(s, "a"), 0);
        store_recovered_bundle(s, "a");
        ASSERT_PRINTS(store_get_own_prints, s, "a", "7");
        bundle_record_done(&supplement);
        close_disk(scratch, s);
}

static void an_upload_begun_in_memory_is_gone_on_with_there(void **state) {
        const Scratch *scratch = *state;
        LedgerUpload u = intent(NULL, 1), got = { 0 };

        NEEDS_MOUNTS();
        Store *s = open_on_disk(scratch);
        fill(scratch);
        assert_int_equal(store_ledger_begin(s, "rowless", "archive", &u), STORE_E_NOT_FOUND);
        assert_int_equal(store_ledger_begin_in_memory(s, "rowless", "archive", &u), 0);
        assert_true(store_ledger_knows(s, KEY, "just created"));
        assert_int_equal(store_ledger_set_upload_id(s, "rowless", "archive", "id"), 0);
        for (unsigned i = 1; i <= 3; i++) {
                LedgerPart p = some_part(i, 3, 1000);
                assert_int_equal(store_ledger_put_part(s, "rowless", "archive", &p), 0);
                assert_int_equal(store_ledger_set_etag(s, "rowless", "archive",
                                                       &(LedgerPart){ .number = i, .etag = "e" }),
                                 0);
        }
        make_room(scratch);
        assert_int_equal(store_recover(s), 0);
        assert_int_equal(store_ledger_get(s, "rowless", "archive", &got), 0);
        assert_string_equal(got.upload_id, "id");
        ledger_upload_done(&got);
        assert_int_equal(parts_of(s, "rowless", "archive"), 3);
        assert_true(store_ledger_knows(s, KEY, "id"));
        assert_false(store_ledger_knows(s, KEY, "other"));
        assert_int_equal(store_ledger_end(s, "rowless", "archive"), 0);
        assert_false(store_ledger_knows(s, KEY, "id"));
        assert_int_equal(store_abort_count(s), 0);
        close_disk(scratch, s);
}

static void beginning_durably_again_leaves_what_is_in_memory_to_be_aborted(void **state) {
        const Scratch *scratch = *state;
        LedgerUpload u = intent(NULL, 1);

        NEEDS_MOUNTS();
        Store *s = open_on_disk(scratch);
        fill(scratch);
        assert_int_equal(store_ledger_begin_in_memory(s, "a", "archive", &u), 0);
        assert_int_equal(store_ledger_set_upload_id(s, "a", "archive", "first"), 0);
        make_room(scratch);
        assert_int_equal(store_ledger_begin(s, "a", "archive", &u), 0);
        assert_int_equal(store_ledger_set_upload_id(s, "a", "archive", "second"), 0);
        assert_sqlite3(scratch, "SELECT CAST(upload_id AS TEXT) FROM uploads", "second");
        assert_true(store_abort_knows(s, KEY, "first"));
        assert_false(store_abort_knows(s, KEY, "second"));
        close_disk(scratch, s);
}

typedef struct Listed {
        int64_t ids[8];
        char keys[64];
        size_t n;
} Listed;

static int note_abort(const LedgerAbort *a, void *userdata) {
        Listed *l = userdata;
        l->ids[l->n++] = a->id;
        strcat(l->keys, a->key);
        return 0;
}

static void aborts_in_memory_are_listed_behind_the_others_and_struck_out(void **state) {
        const Scratch *scratch = *state;
        Listed l = { 0 };

        NEEDS_MOUNTS();
        Store *s = open_on_disk(scratch);
        assert_int_equal(
                store_abort_add(
                        s, &(LedgerAbort){ .destination = "archive", .key = "1", .since_usec = 1 },
                        NULL),
                0);
        assert_int_equal(store_abort_add(s,
                                         &(LedgerAbort){ .destination = "archive",
                                                         .key = "2",
                                                         .upload_id = "id",
                                                         .since_usec = 2 },
                                         NULL),
                         0);
        fill(scratch);
        assert_int_equal(store_abort_add(s,
                                         &(LedgerAbort){ .destination = "archive",
                                                         .key = "3",
                                                         .upload_id = "id",
                                                         .since_usec = 3 },
                                         NULL),
                         0);
        assert_int_equal(
                store_abort_add(
                        s, &(LedgerAbort){ .destination = "archive", .key = "4", .since_usec = 4 },
                        NULL),
                0);
        assert_int_equal(
                store_abort_add(
                        s, &(LedgerAbort){ .destination = "other", .key = "5", .since_usec = 5 },
                        NULL),
                0);
        assert_int_equal(store_abort_list(s, "archive", note_abort, &l), 0);
        assert_string_equal(l.keys, "1234");
        for (size_t i = 1; i < l.n; i++)
                assert_true(l.ids[i - 1] < l.ids[i]);
        assert_int_equal(store_abort_count(s), 5);
        assert_int_equal(store_abort_done(s, l.ids[2]), 0);
        assert_int_equal(store_abort_done(s, l.ids[1]), -ENOSPC);
        make_room(scratch);
        assert_int_equal(store_abort_done(s, l.ids[1]), 0);
        l = (Listed){ 0 };
        assert_int_equal(store_abort_list(s, "archive", note_abort, &l), 0);
        assert_string_equal(l.keys, "14");
        close_disk(scratch, s);
}

/* What is kept in memory is bounded: the rest is made again after a cut. */
static void memory_has_an_end_and_the_upload_goes_on(void **state) {
        const Scratch *scratch = *state;
        LedgerUpload u = intent(NULL, 1);

        NEEDS_MOUNTS();
        Store *s = open_on_disk(scratch);
        fill(scratch);
        assert_int_equal(store_ledger_begin_in_memory(s, "a", "archive", &u), 0);
        for (unsigned i = 1; i <= 40; i++) {
                LedgerPart p = some_part(i, 10, MAX_STATE);
                assert_int_equal(store_ledger_put_part(s, "a", "archive", &p), 0);
                assert_int_equal(store_ledger_set_etag(s, "a", "archive",
                                                       &(LedgerPart){ .number = i, .etag = "e" }),
                                 0);
        }
        unsigned n = parts_of(s, "a", "archive");
        assert_true(n >= 10 && n < 20);
        assert_int_equal(store_ledger_abandon(s, "a", "archive"), 0);
        assert_int_equal(parts_of(s, "a", "archive"), 0);
        assert_int_equal(store_abort_count(s), 1);
        close_disk(scratch, s);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(trouble_is_told_once_and_is_over_when_all_is_written),
                TEST(other_failures_are_no_trouble),
                TEST(figures_go_on_in_memory_and_are_written_when_there_is_room),
                TEST(prints_wait_in_memory_for_the_row_of_their_bundle),
                TEST(prints_in_memory_are_read_instead_of_the_bundles_older_ones),
                TEST(an_upload_begun_in_memory_is_gone_on_with_there),
                TEST(beginning_durably_again_leaves_what_is_in_memory_to_be_aborted),
                TEST(aborts_in_memory_are_listed_behind_the_others_and_struck_out),
                TEST(memory_has_an_end_and_the_upload_goes_on),
        };
        (void)mounts_allowed(); /* before any directory is opened: descriptors keep the mounts they were opened in */
        return cmocka_run_group_tests(tests, NULL, NULL);
}
