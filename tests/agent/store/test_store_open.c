/* What store_open does with a database that is new, of another build, or damaged. */
#include "tests/agent/store/store_test.h"

#include <errno.h>
#include <time.h>

#include "agent/store/store.h"

static void in_state(const Scratch *scratch, const char *command) {
        char text[PATH_MAX + 4096];
        (void)snprintf(text, sizeof text, "cd '%s/state' && { %s; }", scratch->path, command);
        assert_int_equal(system(text), 0);
}

/* A closed database with `n` bundles b0, b1, … */
static void make_database(const Scratch *scratch, unsigned n) {
        Store *s = open_store(scratch);
        assert_int_equal(store_begin(s), 0);
        for (unsigned i = 0; i < n; i++) {
                char id[16];
                (void)snprintf(id, sizeof id, "b%u", i);
                BundleRecord b = simple_record(id, BUNDLE_READY, i);
                assert_int_equal(store_add(s, &b), 0);
                bundle_record_done(&b);
        }
        assert_int_equal(store_commit(s), 0);
        store_close(s);
}

static Store *open_any(const Scratch *scratch, char **ret_aside) {
        char path[PATH_MAX + 8];
        Store *s = NULL;
        pid_t pid = 0;

        *ret_aside = NULL;
        (void)snprintf(path, sizeof path, "%s/state", scratch->path);
        assert_int_equal(store_open(&s, path, ret_aside, &pid), 0);
        return s;
}

/* Opens one that cannot be used: it is put aside, reported, and a new one works in its place.
 * @return where it went; the caller's */
static char *assert_put_aside_as(const Scratch *scratch, const char *prefix) {
        StoreCounts counts;
        struct stat st;
        char *aside, path[PATH_MAX];
        Store *s = open_any(scratch, &aside);

        assert_non_null(aside);
        assert_int_equal(strncmp(aside, prefix, strlen(prefix)), 0);
        assert_int_equal(store_is_of_other_build(aside), strstr(prefix, "build") != NULL);
        (void)snprintf(path, sizeof path, "state/%s", aside);
        assert_int_equal(fstatat(scratch->fd, path, &st, AT_SYMLINK_NOFOLLOW), 0);

        store_counts(s, &counts);
        for (unsigned i = 0; i < N_BUNDLE_STATES; i++)
                assert_int_equal(counts.bundles[i], 0);
        BundleRecord b = simple_record("after", BUNDLE_SETTLING, 1);
        assert_int_equal(store_add(s, &b), 0);
        bundle_record_done(&b);
        assert_sqlite3(scratch, "SELECT id FROM bundles; PRAGMA integrity_check", "after\nok");
        store_close(s);
        s = open_store(scratch); /* nothing more to put aside */
        store_close(s);
        return aside;
}

static char *assert_put_aside(const Scratch *scratch) {
        return assert_put_aside_as(scratch, "state.db.corrupt-");
}

/* The file has blocks ahead, which hold nothing; what follows of the last page is in bytes. */
#define CUT_AT_LAST_PAGE(bytes)                                                                    \
        "truncate -s $(($(sqlite3 state.db 'PRAGMA page_count') * 4096 - 4096 + " #bytes           \
        ")) state.db"

static void whatever_is_no_sound_database_is_put_aside(void **state) {
        static const char *const damages[] = {
                "printf 'this is no database, but it is long enough to be one, at least to "
                "look at' > state.db",
                "head -c 65536 /dev/urandom > state.db",
                "head -c 100 state.db > x && mv x state.db",
                "truncate -s 4096 state.db",
                CUT_AT_LAST_PAGE(0),
                CUT_AT_LAST_PAGE(3000),
                "printf 'X' | dd of=state.db bs=1 seek=3 conv=notrunc status=none", /* the magic
                                                                                       word */
                "head -c 4096 /dev/zero | dd of=state.db bs=4096 seek=1 conv=notrunc "
                "status=none",
                "head -c 4096 /dev/urandom | dd of=state.db bs=4096 seek=2 conv=notrunc "
                "status=none",
                "head -c 20 /dev/urandom | dd of=state.db bs=1 seek=8192 conv=notrunc "
                "status=none", /* a page's header */
                "sqlite3 state.db 'DROP TABLE deliveries'",
                "sqlite3 state.db 'ALTER TABLE bundles DROP COLUMN n_files'",
                "sqlite3 state.db 'PRAGMA user_version=0'", /* it has tables already */
                "sqlite3 state.db \"UPDATE bundles SET state = 'ready', kind = 'unknown'\"",
                "sqlite3 state.db \"UPDATE bundles SET state = 'unknown'\"",
                "rm state.db && mkdir state.db && touch state.db/file",
                "rm state.db && mkfifo state.db",
                "mv state.db elsewhere && ln -s elsewhere state.db",
                "rm state.db && ln -s /nonexistent/target state.db",
                "mkdir state.db-wal",
                "ln -s /etc/passwd state.db-shm",
        };

        for (size_t i = 0; i < ELEMENTSOF(damages); i++) {
                const Scratch *scratch = *state;
                print_message("# %s\n", damages[i]);
                make_database(scratch, 60);
                /* The log has copies of the last pages, which would repair some of these. */
                in_state(scratch, "rm state.db-wal");
                in_state(scratch, damages[i]);
                free(assert_put_aside(scratch));
                in_state(scratch, "rm -r ../state");
        }
}

/* Of the reserve, whose pages hold zeros, every 64th. */
static void every_page_that_is_wiped_is_noticed_at_open(void **state) {
        const Scratch *scratch = *state;
        unsigned n = 0;

        make_database(scratch, 600);
        in_state(scratch, "cp state.db ../good");
        char *pages = ask_sqlite3(scratch, "state.db",
                                  "SELECT pageno - 1 FROM dbstat WHERE name <> 'reserve' OR pageno "
                                  "% 64 = 0");
        for (char *at = pages, *page; (page = strsep(&at, "\n")); n++) {
                char command[256];
                (void)snprintf(command, sizeof command,
                               "rm -f state.db*; cp ../good state.db; "
                               "head -c 4096 /dev/zero | tr '\\0' '\\377' | dd of=state.db bs=4096 "
                               "seek=%s conv=notrunc status=none",
                               page);
                in_state(scratch, command);
                char *aside;
                Store *s = open_any(scratch, &aside);
                if (!aside)
                        print_error("page %s\n", page);
                assert_non_null(aside);
                free(aside);
                store_close(s);
        }
        assert_true(n > 40);
        free(pages);
}

static void what_is_put_aside_is_unchanged_and_readable(void **state) {
        const Scratch *scratch = *state;

        make_database(scratch, 3);
        in_state(scratch, "sqlite3 state.db 'ALTER TABLE bundles DROP COLUMN n_files'; cp state.db "
                          "../before");
        char *aside = assert_put_aside(scratch);
        char command[256];
        (void)snprintf(command, sizeof command, "cmp '%s' ../before", aside);
        in_state(scratch, command);
        char *ids = ask_sqlite3(scratch, aside, "SELECT group_concat(id) FROM bundles");
        assert_string_equal(ids, "b0,b1,b2");
        free(ids);
        free(aside);
}

/* An older one, newer ones, one of the same number and other tables, and other programs'. */
static void a_database_of_another_build_is_put_aside_unchanged(void **state) {
        static const char *const changes[] = {
                "PRAGMA user_version=11; PRAGMA application_id=0",
                "PRAGMA user_version=2",
                "PRAGMA user_version=-3",
                "PRAGMA user_version=99; CREATE TABLE later (x)",
                "PRAGMA application_id=1",
                "PRAGMA application_id=0x47504B47; PRAGMA user_version=10400", /* "GPKG" */
                "DROP TABLE deliveries; PRAGMA user_version=3",
        };
        const Scratch *scratch = *state;

        for (size_t i = 0; i < ELEMENTSOF(changes); i++) {
                char command[256];
                print_message("# %s\n", changes[i]);
                make_database(scratch, 3);
                (void)snprintf(command, sizeof command,
                               "sqlite3 state.db '%s'; cp state.db ../before", changes[i]);
                in_state(scratch, command);
                char *aside = assert_put_aside_as(scratch, "state.db.other-build-");
                (void)snprintf(command, sizeof command, "cmp '%s' ../before", aside);
                in_state(scratch, command);
                char *ids = ask_sqlite3(scratch, aside, "SELECT group_concat(id) FROM bundles");
                assert_string_equal(ids, "b0,b1,b2");
                free(ids);
                free(aside);
                in_state(scratch, "rm -r ../state");
        }
}

static void a_database_of_another_build_keeps_what_is_only_in_its_log(void **state) {
        const Scratch *scratch = *state;
        char command[256];

        /* Another build's agent was killed: its rows are in -wal alone. */
        make_database(scratch, 1);
        in_state(scratch, "sqlite3 state.db '.dbconfig no_ckpt_on_close on' 'PRAGMA "
                          "wal_autocheckpoint=0' 'PRAGMA user_version=99' "
                          "\"UPDATE bundles SET id = 'newer'\" > /dev/null; test -s state.db-wal; "
                          "cp state.db ../db; cp state.db-wal ../wal");
        char *aside = assert_put_aside_as(scratch, "state.db.other-build-");
        (void)snprintf(command, sizeof command, "cmp '%s' ../db && cmp '%s-wal' ../wal", aside,
                       aside);
        in_state(scratch, command);
        free(aside);
}

static void several_are_put_aside_in_one_second_under_different_names(void **state) {
        const Scratch *scratch = *state;
        char *names[4];

        for (size_t i = 0; i < ELEMENTSOF(names); i++) {
                Store *s = open_store(scratch);
                store_close(s);
                in_state(scratch, "echo garbage > state.db");
                s = open_any(scratch, &names[i]);
                assert_non_null(names[i]);
                for (size_t j = 0; j < i; j++)
                        assert_string_not_equal(names[i], names[j]);
                store_close(s);
        }
        in_state(scratch, "test $(ls -d state.db.corrupt-* | grep -vc -e -wal -e -shm) = 4");
        for (size_t i = 0; i < ELEMENTSOF(names); i++)
                free(names[i]);
}

static void an_empty_file_is_a_new_database(void **state) {
        const Scratch *scratch = *state;

        make_database(scratch, 0);
        in_state(scratch, "rm state.db; touch state.db; chmod 644 state.db");
        Store *s = open_store(scratch);
        store_close(s);
        in_state(scratch, "test $(stat -c %a state.db) = 600");
}

static void a_log_without_its_database_is_of_no_use_and_no_harm(void **state) {
        const Scratch *scratch = *state;

        make_database(scratch, 1);
        in_state(scratch, "cp state.db x; sqlite3 state.db '.dbconfig no_ckpt_on_close on' 'CREATE "
                          "TABLE y (z)' > /dev/null;"
                          "test -s state.db-wal; rm -f state.db x");
        Store *s = open_store(scratch);
        assert_sqlite3(scratch, "SELECT count(*) FROM bundles; PRAGMA integrity_check", "0\nok");
        store_close(s);
}

/* Of a table that nothing reads at a start. */
static void damage_an_index(const Scratch *scratch) {
        in_state(scratch, "n=$(sqlite3 'file:state.db?immutable=1' \"SELECT rootpage FROM "
                          "sqlite_schema WHERE name = 'jobs_by_age'\");"
                          "dd if=/dev/urandom of=state.db bs=4096 count=1 seek=$((n - 1)) "
                          "conv=notrunc status=none");
}

static void every_page_is_checked_at_a_start(void **state) {
        make_database(*state, 2);
        damage_an_index(*state);
        free(assert_put_aside(*state));
}

static void a_large_database_is_checked_when_damage_was_met(void **state) {
        const Scratch *scratch = *state;
        const StoredJob job = { .pid = 1, .start_ticks = 1, .document = (char *)"{}" };
        char *aside;

        make_database(scratch, 2);
        in_state(scratch, "sqlite3 state.db 'INSERT INTO reserve VALUES (zeroblob(40 << 20))'");
        damage_an_index(scratch);
        for (int i = 0; i < 2; i++) { /* nobody has met it */
                store_close(open_any(scratch, &aside));
                assert_null(aside);
        }
        Store *s = open_any(scratch, &aside);
        assert_int_equal(store_job_put(s, &job), -EUCLEAN);
        store_close(s);
        free(assert_put_aside(scratch));
        store_close(open_store(scratch));
}

static void a_database_without_a_number_gets_the_tables(void **state) {
        const Scratch *scratch = *state;

        make_database(scratch, 0);
        in_state(scratch, "rm state.db; sqlite3 state.db 'CREATE TABLE memos (text); INSERT INTO "
                          "memos VALUES (7)'");
        Store *s = open_store(scratch);
        BundleRecord b = simple_record("a", BUNDLE_READY, 1);
        assert_int_equal(store_add(s, &b), 0);
        bundle_record_done(&b);
        assert_sqlite3(scratch,
                       "PRAGMA user_version; SELECT text FROM memos; SELECT id FROM bundles",
                       "1\n7\na");
        store_close(s);
}

/* Trouble that is not the database's */

static void a_directory_that_cannot_be_made_is_an_error_not_damage(void **state) {
        const Scratch *scratch = *state;
        char path[PATH_MAX + 16];
        Store *s = NULL;
        char *aside = NULL;
        pid_t pid = 0;

        assert_int_equal(scratch_write(scratch, "file", "x"), 0);
        (void)snprintf(path, sizeof path, "%s/file/state", scratch->path);
        assert_int_equal(store_open(&s, path, &aside, &pid), -ENOTDIR);
        (void)snprintf(path, sizeof path, "%s/file", scratch->path);
        assert_int_equal(store_open(&s, path, &aside, &pid), -ENOTDIR);
        assert_null(s);
        assert_null(aside);
}

static void a_lock_that_is_a_symlink_is_refused(void **state) {
        const Scratch *scratch = *state;
        char path[PATH_MAX + 16];
        Store *s = NULL;
        pid_t pid = 0;

        make_database(scratch, 0);
        in_state(scratch, "rm lock; echo precious > ../target; ln -s ../target lock");
        (void)snprintf(path, sizeof path, "%s/state", scratch->path);
        assert_int_equal(store_open(&s, path, NULL, &pid), -ELOOP);
        in_state(scratch, "test $(cat ../target) = precious");
}

static void a_hundred_thousand_bundles_are_opened_at_once(void **state) {
        const Scratch *scratch = *state;
        Store *s = open_store(scratch);
        struct timespec before, after;
        StoreCounts counts;
        char *aside;

        assert_int_equal(store_begin(s), 0);
        for (unsigned i = 0; i < 100000; i++) {
                DeliveryRecord d = {
                        .destination = (char *)"archive",
                        .state = DELIVERY_DONE,
                        .object = (char *)"/fsx/neuron/20260527-052135-0123456789abcdef/"
                                          "i-0123456789abcdef0/"
                                          "neuron-core-dump-20260527T052135-0123456789ab.tar.zst"
                };
                BundleRecord b = { .source = (char *)"core-dumps",
                                   .path = (char *)"/tmp/neuron-core-dump/"
                                                   "dt-20260527-052135-cid-0123456789abcdef",
                                   .state = BUNDLE_DELIVERED,
                                   .bytes = i,
                                   .first_seen_usec = i,
                                   .deliveries = &d,
                                   .n_deliveries = 1 };
                (void)snprintf(b.id, sizeof b.id, "neuron-core-dump-20260527T052135-%012x",
                               i * 2654435761U);
                assert_int_equal(store_add(s, &b), 0);
        }
        assert_int_equal(store_commit(s), 0);
        store_close(s);

        (void)clock_gettime(CLOCK_MONOTONIC, &before);
        s = open_any(scratch, &aside);
        (void)clock_gettime(CLOCK_MONOTONIC, &after);
        assert_null(aside);
        store_counts(s, &counts);
        assert_int_equal(counts.bundles[BUNDLE_DELIVERED], 100000);
        store_close(s);
        double seconds = (double)(after.tv_sec - before.tv_sec) +
                         (double)(after.tv_nsec - before.tv_nsec) / 1e9;
        print_message("# opened in %.3f s\n", seconds);
        assert_true(seconds <
                    3); /* must be below 1; 0.1 here. Generous, since this is no benchmark */
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(whatever_is_no_sound_database_is_put_aside),
                TEST(every_page_that_is_wiped_is_noticed_at_open),
                TEST(what_is_put_aside_is_unchanged_and_readable),
                TEST(a_database_of_another_build_is_put_aside_unchanged),
                TEST(a_database_of_another_build_keeps_what_is_only_in_its_log),
                TEST(several_are_put_aside_in_one_second_under_different_names),
                TEST(an_empty_file_is_a_new_database),
                TEST(a_log_without_its_database_is_of_no_use_and_no_harm),
                TEST(every_page_is_checked_at_a_start),
                TEST(a_large_database_is_checked_when_damage_was_met),
                TEST(a_database_without_a_number_gets_the_tables),
                TEST(a_directory_that_cannot_be_made_is_an_error_not_damage),
                TEST(a_lock_that_is_a_symlink_is_refused),
                TEST(a_hundred_thousand_bundles_are_opened_at_once),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
