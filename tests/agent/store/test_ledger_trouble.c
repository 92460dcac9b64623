/* The ledger among crashes, full disks and failing disks: each change is there whole or not at all.
 */
#include "tests/agent/store/ledger_test.h"
#include "tests/agent/store/store_sql.h"

#include <errno.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include "tests/harness/mounts.h"
#include "tests/harness/skip.h"

/* All that the ledger holds, as SQL sees it. */
#define WHOLE                                                                                      \
        "SELECT destination, CAST(key AS TEXT), CAST(upload_id AS TEXT), created_usec FROM "       \
        "uploads ORDER BY 1, 2;"                                                                   \
        "SELECT '-', upload, number, bytes, CAST(etag AS TEXT), length(state) FROM upload_parts "  \
        "ORDER BY 2, 3;"                                                                           \
        "SELECT '=', CAST(key AS TEXT), CAST(upload_id AS TEXT), since_usec FROM aborts ORDER BY " \
        "abort"

static Store *open_at(const char *path) {
        Store *s = NULL;
        char *aside = NULL;
        pid_t pid;
        return store_open(&s, path, &aside, &pid) == 0 && !aside ? s : NULL;
}

/* Crashes */

#define PARTS_A_ROUND 6
#define STEPS_A_ROUND (2 + 2 * PARTS_A_ROUND)

/* Step `i` of an endless upload that is begun again and again: begin, its id, then a part and
 * its ETag, and so on. */
static int do_step(Store *s, uint32_t i) {
        uint32_t round = i / STEPS_A_ROUND, step = i % STEPS_A_ROUND;
        char text[32];

        (void)snprintf(text, sizeof text, "r%08u", round);
        if (step == 0) {
                LedgerUpload u = intent(text, round + 1);
                return store_ledger_begin(s, "a", "archive", &u);
        }
        if (step == 1)
                return store_ledger_set_upload_id(s, "a", "archive", text);
        if (step % 2 == 1)
                return store_ledger_set_etag(s, "a", "archive",
                                             &(LedgerPart){ .number = step / 2, .etag = text });
        LedgerPart p = some_part(step / 2, 3, 3000);
        return store_ledger_put_part(s, "a", "archive", &p);
}

/* Says each step only after it was answered with 0. */
static void upload_and_report(const char *path, int tell_fd) {
        Store *s = open_at(path);
        BundleRecord b = simple_record("a", BUNDLE_SHIPPING, 1);

        if (!s || store_add(s, &b) < 0)
                _exit(1);
        for (uint32_t i = 0;; i++)
                if (do_step(s, i) != 0 || write(tell_fd, &i, sizeof i) != sizeof i)
                        _exit(2);
}

/* What the database shows after step `i`. */
static void expect_after(uint32_t i, char *ret, size_t size) {
        uint32_t round = i / STEPS_A_ROUND, step = i % STEPS_A_ROUND;
        char id[32] = "";

        if (step > 0)
                (void)snprintf(id, sizeof id, "r%08u", round);
        (void)snprintf(ret, size, "r%08u|%s|%u|%u\n%u|%u", round, id, step / 2,
                       step > 1 ? (step - 1) / 2 : 0, round, round);
}

static void what_was_reported_of_an_upload_is_there_after_a_kill_at_any_moment(void **state) {
        const Scratch *scratch = *state;
        char path[PATH_MAX + 8], command[PATH_MAX + 32];

        (void)snprintf(path, sizeof path, "%s/state", scratch->path);
        for (unsigned run = 1; run <= 12; run++) {
                uint32_t told = 0, more;
                int fds[2];
                assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
                pid_t child = fork();
                if (child == 0)
                        upload_and_report(path, fds[1]);
                (void)close(fds[1]);
                for (unsigned i = 0; i < 5 * run; i++)
                        assert_int_equal(read(fds[0], &told, sizeof told), sizeof told);
                assert_int_equal(kill(child, SIGKILL), 0);
                while (read(fds[0], &more, sizeof more) == sizeof more)
                        told = more;
                (void)close(fds[0]);
                assert_int_equal(waitpid(child, NULL, 0), child);

                char as_told[128], one_more[128];
                expect_after(told, as_told, sizeof as_told);
                expect_after(told + 1, one_more, sizeof one_more); /* committed but not told */
                store_close(open_store(scratch));
                char *seen = ask_sqlite3(
                        scratch, "state.db",
                        "SELECT CAST(key AS TEXT), CAST(upload_id AS TEXT),"
                        " (SELECT count(*) FROM upload_parts), (SELECT count(etag) FROM "
                        "upload_parts)"
                        " FROM uploads;"
                        "SELECT count(*), count(upload_id) FROM aborts WHERE key = upload_id");
                if (strcmp(seen, as_told) != 0)
                        assert_string_equal(seen, one_more);
                free(seen);
                assert_sqlite3(scratch, "PRAGMA integrity_check; PRAGMA foreign_key_check", "ok");
                (void)snprintf(command, sizeof command, "rm -r '%s'", path);
                assert_int_equal(system(command), 0);
        }
}

/* Disks */

/* Each change once: the database stays as it was. */
static void assert_nothing_changes(Store *s, int error) {
        LedgerUpload u = intent("another", 9);
        LedgerPart p = some_part(2, 4000, MAX_STATE);
        LedgerAbort a = { .destination = "archive", .key = "k", .since_usec = 1 };
        char *before = sql_in_store(s, WHOLE);

        assert_int_equal(store_ledger_begin(s, "a", "archive", &u), error);
        assert_int_equal(store_last_error(s), error);
        assert_int_equal(store_ledger_set_upload_id(s, "a", "archive", "other"), error);
        assert_int_equal(store_ledger_put_part(s, "a", "archive", &p), error);
        assert_int_equal(store_ledger_set_etag(s, "a", "archive",
                                               &(LedgerPart){ .number = 1, .etag = "etag" }),
                         error);
        assert_int_equal(store_ledger_end(s, "a", "archive"), error);
        assert_int_equal(store_ledger_abandon(s, "a", "archive"), error);
        assert_int_equal(store_abort_add(s, &a, NULL), error);
        assert_true(store_ledger_knows(s, KEY, "id"));
        assert_int_equal(store_abort_count(s, NULL, false), 0);
        assert_int_equal(parts_of(s, "a", "archive"), 1);
        assert_sql_in_store(s, WHOLE, before);
        free(before);
}

static void begin_upload(Store *s) {
        LedgerUpload u = intent(NULL, 1);
        LedgerPart p = some_part(1, 2, 3000);

        add_bundle(s, "a");
        assert_int_equal(store_ledger_begin(s, "a", "archive", &u), 0);
        assert_int_equal(store_ledger_set_upload_id(s, "a", "archive", "id"), 0);
        assert_int_equal(store_ledger_put_part(s, "a", "archive", &p), 0);
}

static void a_full_disk_ends_with_a_part_that_is_not_there_and_the_others_are(void **state) {
        const Scratch *scratch = *state;
        char path[PATH_MAX + 8], command[PATH_MAX + 64];
        unsigned n = 1;
        int r = 0;

        if (!mounts_allowed())
                SKIP_BECAUSE("only root may mount");
        (void)snprintf(path, sizeof path, "%s/state", scratch->path);
        assert_int_equal(mkdir(path, 0711), 0);
        assert_int_equal(mount("tmpfs", path, "tmpfs", 0, "size=24m"), 0);
        Store *s = open_store(scratch);
        begin_upload(s);
        (void)snprintf(command, sizeof command, "dd if=/dev/zero of='%s/filler' 2>/dev/null", path);
        (void)!system(command); /* fails when the disk is full, as it should */
        while (r == 0 && n < 10000) {
                LedgerPart p = some_part(n + 1, 20, 5000);
                r = store_ledger_put_part(s, "a", "archive", &p);
                n += r == 0;
        }
        assert_int_equal(r, -ENOSPC);
        assert_int_equal(store_last_error(s), -ENOSPC);
        assert_true(n > 500);
        assert_int_equal(parts_of(s, "a", "archive"), n);
        store_close(s); /* a crash: what is written is true, and can be continued */
        s = open_store(scratch);
        assert_int_equal(parts_of(s, "a", "archive"), n);

        /* A part and its ETag in one transaction are not there at all. */
        LedgerPart big = some_part(n + 1, 4000, MAX_STATE);
        assert_int_equal(store_begin(s), 0);
        (void)store_ledger_set_etag(s, "a", "archive",
                                    &(LedgerPart){ .number = 1, .etag = "early" });
        assert_int_equal(store_ledger_put_part(s, "a", "archive", &big), -ENOSPC);
        r = store_commit(s);
        assert_true(r == -ENOSPC || r == 0);
        assert_int_equal(parts_of(s, "a", "archive"), n);
        assert_sqlite3(scratch, "SELECT count(etag) FROM upload_parts", r == 0 ? "1" : "0");

        (void)snprintf(command, sizeof command, "rm '%s/filler'", path);
        assert_int_equal(system(command), 0);
        assert_int_equal(store_ledger_put_part(s, "a", "archive", &big), 0);
        assert_int_equal(store_ledger_abandon(s, "a", "archive"), 0);
        assert_int_equal(parts_of(s, "a", "archive"), 0);
        assert_sqlite3(scratch, "SELECT count(*) FROM aborts; PRAGMA integrity_check", "1\nok");
        store_close(s);
        assert_int_equal(umount2(path, MNT_DETACH), 0);
}

static void a_failing_disk_leaves_the_ledger_as_it_was(void **state) {
        static const char *const rules[] = { "fsync EIO 0 -wal", "write EIO 0 -wal",
                                             "write ENOSPC 0 -wal", "write EROFS 0 -wal" };
        static const int errors[] = { -EIO, -EIO, -ENOSPC, -EROFS };
        const Scratch *scratch = *state;
        char path[PATH_MAX + 32];
        FaultFs f;

        if (!faultfs_start(&f, scratch->path)) {
                faultfs_stop(&f);
                SKIP_BECAUSE("no /dev/fuse, no libfuse3-dev, or not root");
        }
        (void)snprintf(path, sizeof path, "%s/state", f.mount);
        Store *s = open_at(path);
        assert_non_null(s);
        begin_upload(s);
        for (size_t i = 0; i < ELEMENTSOF(rules); i++) {
                assert_true(faultfs_rule(&f, rules[i]));
                assert_nothing_changes(s, errors[i]);
                assert_true(faultfs_rule(&f, "clear"));
                assert_int_equal(store_recover(s), 0);
                assert_int_equal(store_last_error(s), 0);
                assert_int_equal(
                        store_ledger_set_etag(s, "a", "archive",
                                              &(LedgerPart){ .number = 1, .etag = rules[i] }),
                        0);
        }
        assert_sql_in_store(s, WHOLE,
                            "archive|" KEY "|id|1\n-|1|1|5368709119|write EROFS 0 -wal|3000");
        store_close(s);
        faultfs_stop(&f);
}

static void what_cannot_be_asked_counts_as_underway(void **state) {
        Store *s = open_store(*state);

        assert_false(store_ledger_knows(s, "k", "id"));
        free(sql_in_store(s, "DROP TABLE upload_parts; DROP TABLE uploads"));
        assert_true(store_ledger_knows(s, "k", "id"));
        store_close(s);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(what_was_reported_of_an_upload_is_there_after_a_kill_at_any_moment),
                TEST(a_full_disk_ends_with_a_part_that_is_not_there_and_the_others_are),
                TEST(a_failing_disk_leaves_the_ledger_as_it_was),
                TEST(what_cannot_be_asked_counts_as_underway),
        };
        (void)mounts_allowed(); /* before any directory is opened: descriptors keep the mounts they
                                   were opened in */
        return cmocka_run_group_tests(tests, NULL, NULL);
}
