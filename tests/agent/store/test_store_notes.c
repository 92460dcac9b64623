/* Notes and jobs in the store: durable, once each, bounded. */
#include "tests/agent/store/store_sql.h"
#include "tests/agent/store/store_test.h"

#include <errno.h>
#include <stdio.h>

#include "agent/store/store.h"

#define DOCUMENT "{\"schema\":\"neuron-collectd/hook-note/1\"}"

static char *id_of(unsigned n) {
        static char id[33];
        (void)snprintf(id, sizeof id, "%032x", n);
        return id;
}

static int add_with(Store *s, unsigned n, uid_t uid, uint64_t finished_usec) {
        const StoredNote note = { .id = id_of(n),
                                  .uid = uid,
                                  .received_usec = n,
                                  .finished_usec = finished_usec,
                                  .document = (char *)DOCUMENT };
        return store_note_add(s, &note);
}

static int see_one(const StoredNote *n, void *userdata) {
        StoredNote *seen = userdata;

        *seen = *n;
        seen->id = strdup(n->id);
        seen->source = n->source ? strdup(n->source) : NULL;
        seen->unit_path = n->unit_path ? strdup(n->unit_path) : NULL;
        seen->s3_prefix = n->s3_prefix ? strdup(n->s3_prefix) : NULL;
        seen->refused = n->refused ? strdup(n->refused) : NULL;
        seen->container = n->container ? strdup(n->container) : NULL;
        seen->document = strdup(n->document);
        return 1;
}

static int count_one(const StoredNote *n, void *userdata) {
        (void)n;
        (*(unsigned *)userdata)++;
        return 0;
}

static void a_note_is_read_back_as_it_was_put_also_after_a_restart(void **state) {
        const StoredNote note = { .id = id_of(7),
                                  .received_usec = 1234,
                                  .uid = 4000000000u,
                                  .pid = 4711,
                                  .start_ticks = UINT64_MAX,
                                  .by_mailbox = true,
                                  .source = (char *)"dumps",
                                  .unit_path = (char *)"/tmp/\xff/dt-1",
                                  .s3_prefix = (char *)"s3://b/p",
                                  .refused = (char *)"because",
                                  .container = (char *)"abc",
                                  .document = (char *)DOCUMENT };
        Store *s = open_store(*state);
        assert_int_equal(store_note_add(s, &note), 0);
        store_close(s);

        s = open_store(*state);
        StoredNote seen = { 0 };
        assert_int_equal(
                store_note_list(s, &(StoredUnit){ "dumps", "/tmp/\xff/dt-1" }, see_one, &seen), 0);
        assert_string_equal(seen.id, note.id);
        assert_true(seen.received_usec == 1234 && seen.uid == 4000000000u && seen.pid == 4711);
        assert_true(seen.start_ticks == UINT64_MAX && seen.by_mailbox && seen.finished_usec == 0);
        assert_string_equal(seen.source, "dumps");
        assert_string_equal(seen.unit_path, "/tmp/\xff/dt-1");
        assert_string_equal(seen.s3_prefix, "s3://b/p");
        assert_string_equal(seen.refused, "because");
        assert_string_equal(seen.container, "abc");
        assert_string_equal(seen.document, DOCUMENT);
        stored_note_done(&seen);
        assert_sqlite3(*state, "SELECT via, pid FROM notes", "mailbox|4711");
        store_close(s);
}

static void the_same_note_is_accepted_once(void **state) {
        Store *s = open_store(*state);
        assert_int_equal(add_with(s, 1, 5, 0), 0);
        assert_int_equal(add_with(s, 1, 5, 0), STORE_E_NOTE_TWICE);
        assert_int_equal(add_with(s, 1, 6, 9), STORE_E_NOTE_TWICE);
        assert_sqlite3(*state, "SELECT count(*) FROM notes", "1");
        store_close(s);
}

static void notes_of_a_unit_come_in_their_order_and_no_others(void **state) {
        static const char *const paths[] = { "/a", "/b", "/a", NULL };
        Store *s = open_store(*state);
        unsigned n = 0;
        for (unsigned i = 0; i < 4; i++) {
                const StoredNote note = { .id = id_of(9 - i),
                                          .source = (char *)(paths[i] ? "s" : NULL),
                                          .unit_path = (char *)paths[i],
                                          .document = (char *)DOCUMENT };
                assert_int_equal(store_note_add(s, &note), 0);
        }
        assert_int_equal(store_note_list(s, &(StoredUnit){ "s", "/a" }, count_one, &n), 0);
        assert_int_equal(n, 2);
        StoredNote first = { 0 };
        assert_int_equal(store_note_list(s, &(StoredUnit){ "s", "/a" }, see_one, &first), 0);
        assert_string_equal(first.id, id_of(9));
        stored_note_done(&first);
        n = 0;
        assert_int_equal(store_note_list(s, &(StoredUnit){ "t", "/a" }, count_one, &n), 0);
        assert_int_equal(n, 0);
        store_close(s);
}

static void a_finished_note_is_no_longer_open_and_its_time_stays(void **state) {
        Store *s = open_store(*state);
        unsigned n = 0;
        for (unsigned i = 0; i < 3; i++)
                assert_int_equal(add_with(s, i, 5, 0), 0);
        assert_int_equal(store_note_finish(s, id_of(1), 100), 0);
        assert_int_equal(store_note_finish(s, id_of(1), 200), 0);
        assert_int_equal(store_note_finish(s, id_of(77), 100), STORE_E_NOT_FOUND);
        assert_int_equal(store_note_list_open(s, count_one, &n), 0);
        assert_int_equal(n, 2);
        assert_sqlite3(*state, "SELECT finished_usec FROM notes WHERE finished_usec <> 0", "100");
        assert_int_equal(store_note_set_process(s, &(StoredNote){ .id = id_of(2),
                                                                  .pid = 12,
                                                                  .start_ticks = 13,
                                                                  .container = (char *)"c" }),
                         0);
        assert_int_equal(store_note_set_process(s, &(StoredNote){ .id = id_of(77),
                                                                  .pid = 12,
                                                                  .start_ticks = 13,
                                                                  .container = (char *)"c" }),
                         STORE_E_NOT_FOUND);
        assert_sqlite3(*state, "SELECT pid, start_ticks, container FROM notes WHERE pid > 0",
                       "12|13|c");
        assert_int_equal(store_note_set_process(
                                 s, &(StoredNote){ .id = id_of(2), .pid = 14, .start_ticks = 15 }),
                         0);
        assert_sqlite3(*state, "SELECT pid, start_ticks, container FROM notes WHERE pid > 0",
                       "14|15|c");
        store_close(s);
}

static void one_user_has_room_for_a_thousand_and_the_oldest_finished_one_goes(void **state) {
        Store *s = open_store(*state);
        assert_int_equal(store_begin(s), 0);
        for (unsigned i = 0; i < STORE_NOTES_MAX_OF_OWNER; i++)
                assert_int_equal(add_with(s, i, 5, 0), 0);
        assert_int_equal(add_with(s, 5000, 5, 0), STORE_E_NOTES_FULL); /* all are unfinished */
        assert_int_equal(add_with(s, 5001, 6, 0), 0);                  /* another has room */
        assert_int_equal(store_note_finish(s, id_of(3), 1), 0);
        assert_int_equal(store_note_finish(s, id_of(8), 1), 0);
        assert_int_equal(add_with(s, 5002, 5, 0), 0);
        assert_int_equal(store_commit(s), 0);
        assert_sqlite3(*state,
                       "SELECT count(*) FROM notes WHERE uid = 5; SELECT count(*) FROM notes WHERE "
                       "finished_usec <> 0; SELECT received_usec FROM notes WHERE finished_usec <> "
                       "0; SELECT notes FROM note_counts WHERE uid = -1",
                       "1000\n1\n8\n1001");
        store_close(s);
}

static int add_of_container(Store *s, unsigned n, const char *container) {
        const StoredNote note = { .id = id_of(n),
                                  .finished_usec = 1,
                                  .container = (char *)container,
                                  .document = (char *)DOCUMENT };
        return store_note_add(s, &note);
}

static void root_of_a_container_does_not_remove_the_notes_of_the_hosts_root_or_of_another(
        void **state) {
        Store *s = open_store(*state);
        assert_int_equal(store_begin(s), 0);
        assert_int_equal(add_of_container(s, 1, NULL), 0);
        assert_int_equal(add_of_container(s, 2, "victim"), 0);
        for (unsigned i = 0; i < STORE_NOTES_MAX_OF_OWNER + 5; i++)
                assert_int_equal(add_of_container(s, 10 + i, "attacker"), 0);
        assert_int_equal(store_note_set_process(s, &(StoredNote){ .id = id_of(20),
                                                                  .container = (char *)"victim" }),
                         0); /* found out later: it counts as it was added */
        assert_int_equal(store_commit(s), 0);
        assert_sqlite3(*state,
                       "SELECT count(*) FROM notes WHERE container IS NULL;"
                       "SELECT notes FROM note_counts WHERE uid = 0;"
                       "SELECT notes FROM note_counts WHERE uid > 0 ORDER BY notes",
                       "1\n1\n1\n1000");
        store_close(s);
}

static void all_users_together_have_room_for_ten_thousand(void **state) {
        Store *s = open_store(*state);
        assert_int_equal(store_begin(s), 0);
        for (unsigned i = 0; i < STORE_NOTES_MAX; i++)
                assert_int_equal(add_with(s, i, 100 + i / 500, i == 700), 0);
        assert_int_equal(add_with(s, 20000, 5, 0), 0); /* 700 goes, another's, and finished */
        assert_int_equal(add_with(s, 20001, 5, 0), STORE_E_NOTES_FULL);
        assert_int_equal(store_commit(s), 0);
        assert_sqlite3(*state, "SELECT count(*) FROM notes", "10000");
        assert_sqlite3(*state, "SELECT count(*) FROM notes WHERE received_usec = 700", "0");
        store_close(s);
}

/* A bundle of one unit, in a state. */
static void put_bundle(Store *s, const char *path, const char *base, BundleState state) {
        static unsigned n;
        char id[BUNDLE_ID_SIZE], source[] = "dumps";
        (void)snprintf(id, sizeof id, "b-%u", n++);
        BundleRecord rec = { .source = source, .path = (char *)path, .state = state };
        (void)snprintf(rec.id, sizeof rec.id, "%s", id);
        (void)snprintf(rec.supplement_of, sizeof rec.supplement_of, "%s", base);
        assert_int_equal(store_add(s, &rec), 0);
}

static int add_of_unit(Store *s, unsigned n, uid_t uid, const char *path) {
        const StoredNote note = { .id = id_of(n),
                                  .uid = uid,
                                  .received_usec = n,
                                  .finished_usec = 1,
                                  .source = (char *)"dumps",
                                  .unit_path = (char *)path,
                                  .document = (char *)DOCUMENT };
        return store_note_add(s, &note);
}

static void who_has_most_notes_makes_room_and_not_who_came_first(void **state) {
        Store *s = open_store(*state);
        assert_int_equal(store_begin(s), 0);
        assert_int_equal(add_with(s, 0, 3000, 1), 0); /* the oldest of all */
        for (unsigned uid = 0; uid < 21; uid++)
                for (unsigned i = 0; i < 512; i++)
                        assert_int_equal(add_with(s, 1 + uid * 512 + i, 100000 + uid, 1), 0);
        assert_int_equal(store_commit(s), 0);
        assert_sqlite3(*state,
                       "SELECT count(*) FROM notes; SELECT count(*) FROM notes WHERE uid = 3000;"
                       "SELECT max(notes) - min(notes) <= 1 FROM note_counts WHERE uid > 3000",
                       "10000\n1\n1");
        store_close(s);
}

static void of_users_with_as_many_notes_the_one_with_the_highest_uid_makes_room(void **state) {
        Store *s = open_store(*state);
        assert_int_equal(store_begin(s), 0);
        for (unsigned i = 0; i < STORE_NOTES_MAX + 2; i++) /* one each */
                assert_int_equal(add_with(s, i, 1000 + i, 1), 0);
        assert_int_equal(store_commit(s), 0);
        assert_sqlite3(*state,
                       "SELECT count(*) FROM notes WHERE uid < 1000 + 9999; SELECT max(uid) FROM "
                       "notes",
                       "9999\n11001");
        store_close(s);
}

/* @return 64 KiB with their NUL, the caller's */
static char *big_document(void) {
        char *big = malloc(64 * 1024);
        assert_non_null(big);
        memset(big, 'x', 64 * 1024 - 1);
        big[64 * 1024 - 1] = '\0';
        return big;
}

static void who_has_most_bytes_makes_room_where_bytes_are_short(void **state) {
        Store *s = open_store(*state);
        char *big = big_document();
        assert_int_equal(store_begin(s), 0);
        for (unsigned i = 0; i < 600; i++) /* more notes than anybody, and few bytes */
                assert_int_equal(add_with(s, i, 5, 1), 0);
        for (unsigned i = 0; i < 6 * 200; i++) {
                const StoredNote note = { .id = id_of(1000 + i),
                                          .uid = 100 + i / 200,
                                          .finished_usec = 1,
                                          .document = big };
                assert_int_equal(store_note_add(s, &note), 0);
        }
        assert_int_equal(store_commit(s), 0);
        free(big);
        assert_sqlite3(*state,
                       "SELECT count(*) FROM notes WHERE uid = 5; SELECT bytes <= 64 << 20 FROM "
                       "note_counts WHERE uid = -1",
                       "600\n1");
        store_close(s);
}

static void a_note_whose_bundle_is_underway_goes_behind_those_that_no_bundle_needs(void **state) {
        Store *s = open_store(*state);
        assert_int_equal(store_begin(s), 0);
        put_bundle(s, "/d/live", "", BUNDLE_SETTLING);
        put_bundle(s, "/d/kept", "", BUNDLE_QUARANTINED);
        put_bundle(s, "/d/over", "", BUNDLE_DELIVERED);
        BundleRecord base = { 0 };
        put_bundle(s, "/d/more", "", BUNDLE_DELIVERED);
        assert_int_equal(store_find_unit(s, "dumps", "/d/more", &base), 0);
        put_bundle(s, "/d/more", base.id, BUNDLE_SHIPPING);
        bundle_record_done(&base);
        assert_int_equal(add_of_unit(s, 0, 5, "/d/live"), 0);
        assert_int_equal(add_of_unit(s, 1, 5, "/d/kept"), 0);
        assert_int_equal(add_of_unit(s, 2, 5, "/d/more"), 0);
        assert_int_equal(add_of_unit(s, 3, 5, "/d/over"), 0);
        for (unsigned i = 4; i < 1000; i++)
                assert_int_equal(add_with(s, i, 5, i < 6), 0); /* 4, 5 are finished, of no unit */
        for (unsigned i = 0; i < 3; i++)
                assert_int_equal(add_with(s, 2000 + i, 5, 0), 0); /* 3, 4, 5 go */
        assert_int_equal(store_commit(s), 0);
        assert_sqlite3(*state, "SELECT received_usec FROM notes WHERE finished_usec <> 0",
                       "0\n1\n2");
        assert_int_equal(add_with(s, 2003, 5, 0), 0); /* there are no others */
        assert_sqlite3(*state, "SELECT received_usec FROM notes WHERE finished_usec <> 0", "1\n2");
        store_close(s);
}

static void the_bytes_of_one_user_are_bounded_too(void **state) {
        Store *s = open_store(*state);
        char *big = big_document();
        assert_int_equal(store_begin(s), 0);
        for (unsigned i = 0; i < 300; i++) {
                const StoredNote note = {
                        .id = id_of(i), .uid = 5, .finished_usec = 1, .document = big
                };
                assert_int_equal(store_note_add(s, &note), 0);
        }
        assert_int_equal(store_commit(s), 0);
        free(big);
        assert_sqlite3(*state, "SELECT count(*) FROM notes", "256"); /* 16 MiB */
        store_close(s);
}

static void a_note_that_cannot_be_written_is_not_there_and_it_is_reported(void **state) {
        Store *s = open_store(*state);
        unsigned n = 0;
        assert_int_equal(add_with(s, 1, 5, 0), 0);
        free(sql_in_store(s, "DROP TABLE notes")); /* as damaged as can be */
        assert_true(add_with(s, 2, 5, 0) < 0);
        assert_true(store_note_list_open(s, count_one, &n) < 0);
        store_close(s);
}

static void jobs_are_bounded_and_the_one_not_seen_for_longest_goes(void **state) {
        Store *s = open_store(*state);
        StoredJob j;
        assert_int_equal(store_begin(s), 0);
        for (unsigned i = 0; i < STORE_JOBS_MAX + 2; i++) {
                const StoredJob job = { .pid = (pid_t)i + 1,
                                        .start_ticks = 10,
                                        .uid = 5,
                                        .seen_usec = i == 0 ? 1000000 : i,
                                        .document = (char *)"{}" };
                assert_int_equal(store_job_put(s, &job), 0);
        }
        assert_int_equal(store_commit(s), 0);
        assert_sqlite3(*state, "SELECT count(*) FROM jobs", "4096");
        assert_int_equal(store_job_find(s, 1, 10, &j), 0);
        stored_job_done(&j);
        assert_int_equal(store_job_find(s, 2, 10, &j), STORE_E_NOT_FOUND);
        store_close(s);
}

static void a_pid_that_came_again_is_another_job(void **state) {
        const StoredJob
                old = { .pid = 7, .start_ticks = 1, .seen_usec = 5, .document = (char *)"1" },
                new = { .pid = 7, .start_ticks = 2, .seen_usec = 6, .document = (char *)"2" };
        Store *s = open_store(*state);
        StoredJob j;
        assert_int_equal(store_job_put(s, &old), 0);
        assert_int_equal(store_job_put(s, &new), 0);
        assert_int_equal(store_job_find(s, 7, 1, &j), 0);
        assert_string_equal(j.document, "1");
        stored_job_done(&j);
        assert_int_equal(store_job_find(s, 7, 0, &j), 0);
        assert_string_equal(j.document, "2");
        stored_job_done(&j);
        assert_int_equal(store_job_find(s, 7, 3, &j), STORE_E_NOT_FOUND);
        StoredJob list[2] = { { 0 } };
        assert_int_equal(store_job_list(s, old.uid + 1, 2, list), 0);
        assert_int_equal(store_job_list(s, old.uid, 1, list), 1);
        assert_int_equal(list[0].start_ticks, 2); /* the last seen */
        stored_job_done(&list[0]);
        store_close(s);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(a_note_is_read_back_as_it_was_put_also_after_a_restart),
                TEST(the_same_note_is_accepted_once),
                TEST(notes_of_a_unit_come_in_their_order_and_no_others),
                TEST(a_finished_note_is_no_longer_open_and_its_time_stays),
                TEST(one_user_has_room_for_a_thousand_and_the_oldest_finished_one_goes),
                TEST(root_of_a_container_does_not_remove_the_notes_of_the_hosts_root_or_of_another),
                TEST(all_users_together_have_room_for_ten_thousand),
                TEST(who_has_most_notes_makes_room_and_not_who_came_first),
                TEST(of_users_with_as_many_notes_the_one_with_the_highest_uid_makes_room),
                TEST(who_has_most_bytes_makes_room_where_bytes_are_short),
                TEST(a_note_whose_bundle_is_underway_goes_behind_those_that_no_bundle_needs),
                TEST(the_bytes_of_one_user_are_bounded_too),
                TEST(a_note_that_cannot_be_written_is_not_there_and_it_is_reported),
                TEST(jobs_are_bounded_and_the_one_not_seen_for_longest_goes),
                TEST(a_pid_that_came_again_is_another_job),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
