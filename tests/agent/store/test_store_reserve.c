/* A state directory whose disk is full: the store works on with the space that it has reserved, and
 * refuses new bundles before that ends. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include "agent/store/store.h"
#include "tests/agent/store/ledger_test.h"
#include "tests/agent/store/store_sql.h"
#include "tests/harness/mounts.h"
#include "tests/harness/skip.h"

#define N_PROMISED 1000
#define RESERVE "SELECT count(*) FROM reserve"

typedef struct Reported {
        unsigned n;
        int error;
} Reported;

static void on_trouble(int error, void *userdata) {
        Reported *reported = userdata;
        reported->n++;
        reported->error = error;
}

static bool in_scratch(const Scratch *scratch, const char *command) {
        char text[PATH_MAX + 512];
        (void)snprintf(text, sizeof text, "cd '%s' && { %s; } > /dev/null 2>&1", scratch->path,
                       command);
        return system(text) == 0;
}

static bool mount_tmpfs(const Scratch *scratch) {
        return in_scratch(scratch, "mkdir state && mount -t tmpfs -o size=24m tmpfs state");
}

/* Blocks that are allocated and not yet written, and metadata that needs space of its own. */
static bool mount_ext4(const Scratch *scratch) {
        return in_scratch(scratch,
                          "command -v mkfs.ext4 && mkdir state && truncate -s 40M image && "
                          "mkfs.ext4 -q image && mount -o loop image state");
}

static void fill(const Scratch *scratch) {
        (void)in_scratch(scratch, "dd if=/dev/zero of=state/filler bs=64k; "
                                  "dd if=/dev/zero of=state/filler2 bs=512; sync state/filler");
        assert_false(in_scratch(scratch, "dd if=/dev/zero of=state/filler3 bs=4096 count=1"));
}

static void free_space(const Scratch *scratch) {
        assert_true(in_scratch(scratch, "rm state/filler*"));
}

/* A name and a path as long as those of a fleet are. */
static BundleRecord record(unsigned number) {
        BundleRecord b = { .source = strdup("core-dumps"),
                           .kind = SOURCE_NEURON_CORE_DUMP,
                           .bytes = 1000,
                           .first_seen_usec = number + 1 };
        (void)snprintf(b.id, sizeof b.id, "neuron-core-dump-20260527T052135-%012u", number);
        assert_true(asprintf(&b.path,
                             "/tmp/neuron-core-dump/dt-20260527-052135-cid-%016u"
                             "/i-0123456789abcdef0-pid-%u",
                             number, number) > 0);
        return b;
}

static int add(Store *s, unsigned number) {
        BundleRecord b = record(number);
        int r = store_add(s, &b);
        bundle_record_done(&b);
        return r;
}

/* The rest of a bundle's life: an upload with a part, fingerprints, and two destinations that have
 * it. */
static void deliver(Store *s, unsigned number) {
        static const BundleState states[] = { BUNDLE_READY, BUNDLE_SHIPPING, BUNDLE_DELIVERED };
        uint64_t prints[20];
        LedgerUpload u = intent("id", number);
        LedgerPart p = some_part(1, 4, 300);
        BundleRecord b = record(number);

        b.deliveries = calloc(2, sizeof *b.deliveries);
        assert_non_null(b.deliveries);
        b.n_deliveries = 2;
        for (size_t i = 0; i < 2; i++) {
                b.deliveries[i].destination = strdup(i ? "archive" : "s3");
                assert_true(asprintf(&b.deliveries[i].object, "prefix/2026/05/27/%s.tar.zst",
                                     b.id) > 0);
        }
        for (size_t i = 0; i < ELEMENTSOF(prints); i++)
                prints[i] = number * UINT64_C(1000) + i;
        for (size_t i = 0; i < ELEMENTSOF(states); i++) {
                b.state = states[i];
                if (b.state == BUNDLE_DELIVERED)
                        assert_int_equal(store_set_prints(s, b.id, prints, ELEMENTSOF(prints)), 0);
                assert_int_equal(store_update(s, &b), 0);
        }
        assert_int_equal(store_ledger_begin(s, b.id, "s3", &u), 0);
        assert_int_equal(store_ledger_put_part(s, b.id, "s3", &p), 0);
        assert_int_equal(store_ledger_end(s, b.id, "s3"), 0);
        assert_int_equal(store_counter_add(s, "bytes_delivered:s3", 1000), 0);
        bundle_record_done(&b);
}

static void assert_all_delivered(Store *s, const Scratch *scratch, unsigned n) {
        StoreCounts counts;
        char expected[64];

        store_counts(s, &counts);
        assert_int_equal(counts.discovered, n);
        assert_int_equal(counts.bundles[BUNDLE_DELIVERED], n);
        assert_int_equal(store_counts_difference(&counts), 0);
        assert_int_equal(store_counter(s, "bytes_delivered:s3"), n * UINT64_C(1000));
        (void)snprintf(expected, sizeof expected, "%u|%u\nok", n, 2 * n);
        assert_sqlite3(scratch,
                       "SELECT count(*), (SELECT count(*) FROM deliveries) FROM bundles;"
                       "PRAGMA integrity_check",
                       expected);
}

static void the_reserve_is_enough(const Scratch *scratch, bool (*mount_disk)(const Scratch *)) {
        const StoredNote note = { .id = (char *)"00112233445566778899aabbccddeeff",
                                  .document = (char *)"{}" };
        Reported reported = { 0 };
        unsigned n = 0;

        if (!mounts_allowed())
                SKIP_BECAUSE("only root may mount");
        if (!mount_disk(scratch))
                SKIP_BECAUSE("no such file system here");
        Store *s = open_store(scratch);
        assert_sqlite3(scratch, RESERVE, "4");
        fill(scratch);
        for (; n < N_PROMISED / 2; n++) {
                assert_int_equal(add(s, n), 0);
                deliver(s, n);
        }
        store_close(s);
        s = open_store(scratch); /* on a disk that is still full */
        store_on_trouble(s, on_trouble, &reported);
        for (; n < N_PROMISED; n++) {
                assert_int_equal(add(s, n), 0);
                deliver(s, n);
        }
        assert_int_equal(store_last_error(s), 0);
        assert_all_delivered(s, scratch, n);

        unsigned first = n;
        while (add(s, n) == 0)
                n++;
        assert_int_equal(add(s, n), -ENOSPC);
        assert_int_equal(store_last_error(s), -ENOSPC);
        assert_int_equal(store_recover(s), -ENOSPC);
        assert_true(reported.n == 1 && reported.error == -ENOSPC);
        assert_int_equal(store_note_add(s, &note), -ENOSPC);
        assert_sqlite3(scratch, RESERVE, "0");
        for (unsigned i = first; i < MIN(n, first + 300); i++)
                deliver(s, i); /* what is known can be finished */
        store_close(s);

        s = open_store(scratch);
        for (unsigned i = first + 300; i < n; i++)
                assert_int_equal(store_counter_add(s, "bytes_delivered:s3", 0), 0);
        assert_int_equal(add(s, n), -ENOSPC);
        free_space(scratch);
        assert_int_equal(store_recover(s), 0);
        assert_int_equal(store_last_error(s), 0);
        assert_sqlite3(scratch, RESERVE, "4");
        assert_int_equal(add(s, n), 0);
        for (unsigned i = MIN(n, first + 300); i <= n; i++)
                deliver(s, i);
        assert_int_equal(store_note_add(s, &note), 0);
        assert_all_delivered(s, scratch, n + 1);
        store_close(s);
        assert_true(in_scratch(scratch, "umount state"));
}

static void a_thousand_bundles_are_delivered_on_a_full_tmpfs_then_new_ones_pause(void **state) {
        the_reserve_is_enough(*state, mount_tmpfs);
}

static void a_thousand_bundles_are_delivered_on_a_full_ext4_then_new_ones_pause(void **state) {
        the_reserve_is_enough(*state, mount_ext4);
}

static void a_kill_on_a_full_disk_keeps_the_reserve(void **state) {
        const Scratch *scratch = *state;
        unsigned n = 0;

        if (!mounts_allowed())
                SKIP_BECAUSE("only root may mount");
        assert_true(mount_tmpfs(scratch));
        store_close(open_store(scratch));
        fill(scratch);
        for (unsigned round = 0; round < 10; round++) {
                pid_t child = fork();
                if (child == 0) {
                        Store *s = open_store(scratch);
                        for (unsigned i = n; i < n + N_PROMISED / 10; i++)
                                if (add(s, i) != 0)
                                        _exit(1);
                        (void)raise(SIGKILL);
                }
                int status;
                assert_int_equal(waitpid(child, &status, 0), child);
                assert_true(WIFSIGNALED(status));
                n += N_PROMISED / 10;
        }
        Store *s = open_store(scratch);
        for (unsigned i = 0; i < n; i++)
                deliver(s, i);
        assert_all_delivered(s, scratch, n);
        store_close(s);
        assert_true(in_scratch(scratch, "umount state"));
}

static void a_disk_too_small_for_the_reserve_pauses_new_bundles(void **state) {
        const Scratch *scratch = *state;

        if (!mounts_allowed())
                SKIP_BECAUSE("only root may mount");
        assert_true(in_scratch(scratch, "mkdir state && mount -t tmpfs -o size=1m tmpfs state"));
        Store *s = open_store(scratch);
        assert_int_equal(add(s, 1), -ENOSPC);
        assert_int_equal(store_last_error(s), -ENOSPC);
        assert_true(in_scratch(scratch, "mount -o remount,size=24m state"));
        assert_int_equal(store_recover(s), 0);
        assert_int_equal(add(s, 1), 0);
        deliver(s, 1);
        store_close(s);
        assert_true(in_scratch(scratch, "umount state"));
}

static void a_large_change_and_a_large_transaction_grow_the_database(void **state) {
        const Scratch *scratch = *state;
        Store *s = open_store(scratch);
        size_t n = 200 * 1000;
        _cleanup_free_ uint64_t *prints = calloc(n, sizeof *prints);

        assert_non_null(prints);
        for (size_t i = 0; i < n; i++)
                prints[i] = i;
        assert_int_equal(store_begin(s), 0);
        for (unsigned i = 0; i < 8000; i++)
                assert_int_equal(add(s, i), 0);
        assert_int_equal(store_commit(s), 0);
        BundleRecord b = record(7);
        assert_int_equal(store_set_prints(s, b.id, prints, n), 0);
        bundle_record_done(&b);
        assert_int_equal(store_last_error(s), 0);
        assert_sqlite3(scratch, "SELECT count(*) FROM bundles; SELECT count(*) FROM reserve",
                       "8000\n4");
        store_close(s);
}

static void a_reserve_that_was_used_is_filled_up_at_the_next_change(void **state) {
        const Scratch *scratch = *state;
        Store *s = open_store(scratch);

        free(sql_in_store(s, "DELETE FROM reserve"));
        assert_sqlite3(scratch, RESERVE, "0");
        assert_int_equal(store_begin(s), 0);
        assert_int_equal(store_counter_add(s, "x", 1), 0);
        assert_int_equal(store_commit(s), 0);
        assert_sqlite3(scratch, RESERVE, "4");
        store_close(s);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(a_thousand_bundles_are_delivered_on_a_full_tmpfs_then_new_ones_pause),
                TEST(a_thousand_bundles_are_delivered_on_a_full_ext4_then_new_ones_pause),
                TEST(a_kill_on_a_full_disk_keeps_the_reserve),
                TEST(a_disk_too_small_for_the_reserve_pauses_new_bundles),
                TEST(a_large_change_and_a_large_transaction_grow_the_database),
                TEST(a_reserve_that_was_used_is_filled_up_at_the_next_change),
        };
        (void)mounts_allowed(); /* before any directory is opened: descriptors keep their mounts */
        return cmocka_run_group_tests(tests, NULL, NULL);
}
