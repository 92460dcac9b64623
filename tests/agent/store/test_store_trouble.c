/* The store among crashes, full disks, failing disks and other programs. */
#include "tests/agent/store/store_sql.h"
#include "tests/agent/store/store_test.h"

#include <errno.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include "tests/harness/mounts.h"
#include "tests/harness/skip.h"

#define N_DELIVERIES 3

static BundleRecord record_with_deliveries(const char *id) {
        BundleRecord b = simple_record(id, BUNDLE_READY, 1);
        b.deliveries = calloc(N_DELIVERIES, sizeof *b.deliveries);
        assert_non_null(b.deliveries);
        b.n_deliveries = N_DELIVERIES;
        for (size_t i = 0; i < N_DELIVERIES; i++)
                b.deliveries[i].destination = strdup("archive");
        return b;
}

static Store *open_at(const char *path) {
        Store *s = NULL;
        char *aside = NULL;
        pid_t pid;
        return store_open(&s, path, &aside, &pid) == 0 && !aside ? s : NULL;
}

/* Crashes */

typedef enum Moment { BEFORE_COMMIT, AFTER_COMMIT, WITHIN_UPDATE, N_MOMENTS } Moment;

/* In a child: no assertions, only the way to the moment. */
static void die_at(const char *path, Moment moment) {
        Store *s = open_at(path);
        BundleRecord b = record_with_deliveries("dying");

        if (!s)
                _exit(1);
        if (store_begin(s) < 0 || store_add(s, &b) < 0 || store_counter_add(s, "deaths", 1) < 0)
                _exit(2);
        if (moment != BEFORE_COMMIT && store_commit(s) < 0)
                _exit(3);
        b.state = BUNDLE_SHIPPING;
        if (moment == WITHIN_UPDATE && (store_begin(s) < 0 || store_update(s, &b) < 0))
                _exit(4);
        (void)raise(SIGKILL);
}

static void a_kill_leaves_a_change_done_or_not_begun(void **state) {
        static const char *const expected[] = { "0|0|0", "1|3|1", "1|3|1" };

        for (Moment moment = 0; moment < N_MOMENTS; moment++) {
                const Scratch *scratch = *state;
                char path[PATH_MAX + 8], command[PATH_MAX + 32];
                int status;

                (void)snprintf(path, sizeof path, "%s/state", scratch->path);
                pid_t child = fork();
                if (child == 0)
                        die_at(path, moment);
                assert_int_equal(waitpid(child, &status, 0), child);
                assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);

                Store *s = open_store(scratch);
                assert_sqlite3(
                        scratch,
                        "SELECT (SELECT count(*) FROM bundles WHERE state = 'ready'), "
                        "(SELECT count(*) FROM deliveries),"
                        " (SELECT count(*) FROM counters WHERE name = 'deaths' AND value = 1)",
                        expected[moment]);
                assert_sqlite3(scratch, "PRAGMA integrity_check", "ok");
                store_close(s);
                (void)snprintf(command, sizeof command, "rm -r '%s'", path);
                assert_int_equal(system(command), 0);
        }
}

/* Adds for ever; says each number only after it is committed. */
static void add_and_report(const char *path, int tell_fd) {
        Store *s = open_at(path);

        for (uint32_t i = 0; s; i++) {
                char id[32];
                (void)snprintf(id, sizeof id, "b%08u", i);
                BundleRecord b = record_with_deliveries(id);
                if (store_add(s, &b) < 0 || write(tell_fd, &i, sizeof i) != sizeof i)
                        break;
                bundle_record_done(&b);
        }
        _exit(1);
}

static void what_was_reported_is_there_after_a_kill_at_any_moment(void **state) {
        const Scratch *scratch = *state;
        char path[PATH_MAX + 8];
        uint32_t told = 0, more;

        (void)snprintf(path, sizeof path, "%s/state", scratch->path);
        for (unsigned round = 1; round <= 8; round++) {
                int fds[2];
                assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
                pid_t child = fork();
                if (child == 0)
                        add_and_report(path, fds[1]);
                (void)close(fds[1]);
                for (unsigned i = 0; i < 7 * round; i++)
                        assert_int_equal(read(fds[0], &told, sizeof told), sizeof told);
                assert_int_equal(kill(child, SIGKILL), 0);
                while (read(fds[0], &more, sizeof more) == sizeof more)
                        told = more;
                (void)close(fds[0]);
                assert_int_equal(waitpid(child, NULL, 0), child);

                Store *s = open_store(scratch);
                StoreCounts counts;
                store_counts(s, &counts);
                uint64_t n = counts.bundles[BUNDLE_READY];
                assert_true(n == told + 1 ||
                            n == told + 2); /* at most one was committed but not told */
                char expected[128];
                (void)snprintf(expected, sizeof expected,
                               "%" PRIu64 "|%" PRIu64 "|b%08" PRIu64 "\n0", n, n * N_DELIVERIES,
                               n - 1);
                assert_sqlite3(
                        scratch,
                        "SELECT count(*), (SELECT count(*) FROM deliveries), max(id) FROM bundles;"
                        "SELECT count(*) FROM bundles WHERE (SELECT count(*) FROM deliveries WHERE "
                        "bundle = row) <> 3",
                        expected);
                store_close(s);
                char command[PATH_MAX + 32];
                (void)snprintf(command, sizeof command, "rm -r '%s'", path);
                assert_int_equal(system(command), 0);
        }
}

/* Disks */

static unsigned add_until(Store *s, int error, unsigned at) {
        int r = 0;
        for (unsigned i = at; i < at + 10000 && r == 0; i++) {
                char id[32];
                (void)snprintf(id, sizeof id, "b%08u", i);
                BundleRecord b = record_with_deliveries(id);
                r = store_add(s, &b);
                bundle_record_done(&b);
                if (r == error)
                        return i;
                assert_int_equal(r, 0);
        }
        fail_msg("the error did not come");
        return 0;
}

static void assert_store_has(Store *s, unsigned n) {
        StoreCounts counts;
        char expected[64];

        store_counts(s, &counts);
        assert_int_equal(counts.bundles[BUNDLE_READY], n);
        (void)snprintf(expected, sizeof expected, "%u|%u", n, n * N_DELIVERIES);
        assert_sql_in_store(s, "SELECT count(*), (SELECT count(*) FROM deliveries) FROM bundles",
                            expected);
}

static void a_full_disk_changes_nothing_and_is_survived(void **state) {
        const Scratch *scratch = *state;
        char path[PATH_MAX + 8];

        if (!mounts_allowed())
                SKIP_BECAUSE("only root may mount");
        (void)snprintf(path, sizeof path, "%s/state", scratch->path);
        assert_int_equal(mkdir(path, 0711), 0);
        assert_int_equal(mount("tmpfs", path, "tmpfs", 0, "size=10m"), 0);
        Store *s = open_store(scratch);
        unsigned n = add_until(s, -ENOSPC, 0);
        assert_true(n > 10);
        assert_store_has(s, n);

        /* A transaction that does not fit is not there at all. */
        BundleRecord b = record_with_deliveries("big");
        b.reason = malloc(600000);
        assert_non_null(b.reason);
        memset(b.reason, 'x', 599999);
        b.reason[599999] = '\0';
        assert_int_equal(store_begin(s), 0);
        int r = store_add(s, &b);
        assert_true(r == 0 || r == -ENOSPC);
        r = store_add(s, &b); /* nothing of it is there, nor of what was before it */
        assert_true(r == -EEXIST || r == -ENOSPC);
        r = store_commit(s);
        assert_true(r == 0 || r == -ENOSPC);
        assert_store_has(s, n);

        assert_int_equal(mount("none", path, "none", MS_REMOUNT, "size=100m"), 0);
        assert_int_equal(store_add(s, &b), 0);
        assert_store_has(s, n + 1);
        bundle_record_done(&b);
        store_close(s);
        s = open_store(scratch);
        assert_store_has(s, n + 1);
        store_close(s);
        assert_int_equal(umount2(path, MNT_DETACH), 0);
}

static void a_failing_disk_changes_nothing_and_is_survived(void **state) {
        static const char *const rules[] = { "fsync EIO 0 -wal",    "write EIO 0 -wal",
                                             "write EIO 8192 -wal", "write ENOSPC 0 -wal",
                                             "write EDQUOT 0 -wal", "write EROFS 0 -wal" };
        static const int errors[] = { -EIO, -EIO, -EIO, -ENOSPC, -ENOSPC, -EROFS };
        const Scratch *scratch = *state;
        char path[PATH_MAX + 32], command[2 * PATH_MAX + 64];
        FaultFs f;

        if (!faultfs_start(&f, scratch->path)) {
                faultfs_stop(&f);
                SKIP_BECAUSE("no /dev/fuse, no libfuse3-dev, or not root");
        }
        (void)snprintf(path, sizeof path, "%s/state", f.mount);
        for (size_t i = 0; i < ELEMENTSOF(rules); i++) {
                Store *s = open_at(path);
                assert_non_null(s);
                unsigned n = 5 + (unsigned)i;
                for (unsigned j = i == 0 ? 0 : n - 1; j < n; j++) {
                        char id[32];
                        (void)snprintf(id, sizeof id, "c%08u", j);
                        BundleRecord b = record_with_deliveries(id);
                        assert_int_equal(store_add(s, &b), 0);
                        bundle_record_done(&b);
                }
                assert_true(faultfs_rule(&f, rules[i]));
                BundleRecord b = record_with_deliveries("failing");
                assert_int_equal(store_add(s, &b), errors[i]);
                assert_int_equal(store_begin(s), 0);
                (void)store_add(s, &b);
                assert_int_equal(store_commit(s), errors[i]);
                assert_true(faultfs_rule(&f, "clear"));
                assert_store_has(s, n);
                b.state = BUNDLE_CANCELLED;
                assert_int_equal(store_add(s, &b), 0);
                bundle_record_done(&b);
                store_close(s);
                (void)snprintf(command, sizeof command,
                               "sqlite3 '%s/state.db' \"PRAGMA foreign_keys=on; DELETE FROM "
                               "bundles WHERE id = 'failing'\"",
                               path);
                assert_int_equal(system(command), 0);
        }
        faultfs_stop(&f);
}

static void a_read_only_directory_is_called_that(void **state) {
        const Scratch *scratch = *state;
        char path[PATH_MAX + 8], *aside = NULL;
        Store *s;
        pid_t pid;

        if (!mounts_allowed())
                SKIP_BECAUSE("only root may mount");
        store_close(open_store(scratch));
        (void)snprintf(path, sizeof path, "%s/state", scratch->path);
        assert_int_equal(mount(path, path, "none", MS_BIND, NULL), 0);
        assert_int_equal(mount("none", path, "none", MS_REMOUNT | MS_BIND | MS_RDONLY, NULL), 0);
        assert_int_equal(store_open(&s, path, &aside, &pid), -EROFS);
        assert_null(aside);
        assert_int_equal(umount2(path, MNT_DETACH), 0);
        store_close(open_store(scratch));
}

static void another_program_that_has_it_open_is_waited_for_and_then_reported(void **state) {
        const Scratch *scratch = *state;
        char path[PATH_MAX + 16], *aside = NULL;
        sqlite3 *other = NULL;
        pid_t pid;
        Store *s = open_store(scratch);

        store_close(s);
        (void)snprintf(path, sizeof path, "%s/state/state.db", scratch->path);
        assert_int_equal(sqlite3_open(path, &other), SQLITE_OK);
        assert_int_equal(sqlite3_exec(other, "SELECT * FROM bundles", NULL, NULL, NULL), SQLITE_OK);
        (void)snprintf(path, sizeof path, "%s/state", scratch->path);
        assert_int_equal(store_open(&s, path, &aside, &pid), -EBUSY);
        assert_null(aside);
        assert_int_equal(sqlite3_close(other), SQLITE_OK);
        store_close(open_store(scratch));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(a_kill_leaves_a_change_done_or_not_begun),
                TEST(what_was_reported_is_there_after_a_kill_at_any_moment),
                TEST(a_full_disk_changes_nothing_and_is_survived),
                TEST(a_failing_disk_changes_nothing_and_is_survived),
                TEST(a_read_only_directory_is_called_that),
                TEST(another_program_that_has_it_open_is_waited_for_and_then_reported),
        };
        (void)mounts_allowed(); /* before any directory is opened: descriptors keep the mounts they
                                   were opened in */
        return cmocka_run_group_tests(tests, NULL, NULL);
}
