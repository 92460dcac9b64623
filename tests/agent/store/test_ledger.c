/* The ledger of uploads: what is put comes back, moves are whole, and it stays small and quick. */
#include "tests/agent/store/ledger_test.h"
#include "tests/agent/store/store_sql.h"

#include <errno.h>
#include <time.h>

static void an_upload_comes_back_as_it_was_begun(void **state) {
        Store *s = open_store(*state);
        LedgerUpload u = intent("k\xff with 'quotes'", 77), got;

        add_bundle(s, "a");
        assert_int_equal(store_ledger_get(s, "a", "archive", &got), STORE_E_NOT_FOUND);
        assert_int_equal(store_ledger_begin(s, "a", "archive", &u), 0);
        assert_int_equal(store_ledger_get(s, "a", "archive", &got), 0);
        assert_string_equal(got.key, u.key);
        assert_null(got.upload_id);
        assert_memory_equal(got.plan, u.plan, sizeof u.plan);
        assert_string_equal(got.packer, PACKER);
        assert_int_equal(got.created_usec, 77);
        ledger_upload_done(&got);
        assert_null(got.key);

        assert_int_equal(store_ledger_set_upload_id(s, "a", "archive", "2~id"), 0);
        store_close(s);
        s = open_store(*state);
        assert_int_equal(store_ledger_get(s, "a", "archive", &got), 0);
        assert_string_equal(got.upload_id, "2~id");
        ledger_upload_done(&got);
        store_close(s);
}

static void what_is_not_underway_is_not_found(void **state) {
        Store *s = open_store(*state);
        LedgerUpload u = intent(NULL, 1);
        LedgerPart p = some_part(1, 2, 3);

        assert_int_equal(store_ledger_begin(s, "nobody", "archive", &u), STORE_E_NOT_FOUND);
        add_bundle(s, "a");
        assert_int_equal(store_ledger_begin(s, "a", "archive", &u), 0);
        assert_int_equal(store_ledger_set_upload_id(s, "a", "other", "x"), STORE_E_NOT_FOUND);
        assert_int_equal(store_ledger_set_upload_id(s, "b", "archive", "x"), STORE_E_NOT_FOUND);
        assert_int_equal(store_ledger_set_upload_id(s, "a", "archive", ""), -EINVAL);
        assert_int_equal(store_ledger_put_part(s, "a", "other", &p), STORE_E_NOT_FOUND);
        assert_int_equal(
                store_ledger_set_etag(s, "a", "archive", &(LedgerPart){ .number = 1, .etag = "e" }),
                STORE_E_NOT_FOUND);
        p.number = 0;
        assert_int_equal(store_ledger_put_part(s, "a", "archive", &p), -EINVAL);
        assert_int_equal(store_ledger_end(s, "a", "other"), 0);
        assert_int_equal(store_ledger_abandon(s, "b", "archive"), 0);
        assert_int_equal(store_abort_done(s, 12345), 0);
        assert_int_equal(parts_of(s, "a", "other"), 0);
        assert_int_equal(store_abort_count(s, NULL, false), 0);
        store_close(s);
}

static int compare_part(const LedgerPart *p, void *userdata) {
        unsigned *next = userdata;
        char etag[32];
        LedgerPart expected = some_part(*next, *next % 5, *next * 11);

        (void)snprintf(etag, sizeof etag, "\"%u-etag\"", *next);
        expected.etag = *next % 3 == 0 ? etag : NULL;
        assert_same_part(p, &expected);
        (*next)++;
        return 0;
}

static void parts_come_back_in_order_with_all_they_had(void **state) {
        Store *s = open_store(*state);
        LedgerUpload u = intent(NULL, 1);
        unsigned next = 1;

        add_bundle(s, "a");
        assert_int_equal(store_ledger_begin(s, "a", "archive", &u), 0);
        assert_int_equal(store_ledger_begin(s, "a", "copy", &u), 0);
        for (unsigned i = 40; i > 0; i--) { /* put backwards: the order is theirs, not ours */
                LedgerPart p = some_part(i, i % 5, i * 11);
                char etag[32];
                assert_int_equal(store_ledger_put_part(s, "a", "archive", &p), 0);
                (void)snprintf(etag, sizeof etag, "\"%u-etag\"", i);
                if (i % 3 == 0)
                        assert_int_equal(
                                store_ledger_set_etag(s, "a", "archive",
                                                      &(LedgerPart){ .number = i, .etag = etag }),
                                0);
        }
        store_close(s);
        s = open_store(*state);
        assert_int_equal(
                store_ledger_parts(s, "a", "archive", &(LedgerReader){ compare_part, &next }), 0);
        assert_int_equal(next, 41);
        assert_int_equal(parts_of(s, "a", "copy"), 0);
        store_close(s);
}

static int only_part(const LedgerPart *p, void *userdata) {
        assert_same_part(p, userdata);
        return 0;
}

static void a_part_put_again_replaces_the_earlier_one_and_its_etag(void **state) {
        Store *s = open_store(*state);
        LedgerUpload u = intent(NULL, 1);

        add_bundle(s, "a");
        assert_int_equal(store_ledger_begin(s, "a", "archive", &u), 0);
        LedgerPart p = some_part(3, 9, 5000);
        assert_int_equal(store_ledger_put_part(s, "a", "archive", &p), 0);
        assert_int_equal(store_ledger_set_etag(s, "a", "archive",
                                               &(LedgerPart){ .number = 3, .etag = "old" }),
                         0);
        p = some_part(3, 1, 0);
        assert_int_equal(store_ledger_put_part(s, "a", "archive", &p), 0);
        assert_int_equal(store_ledger_parts(s, "a", "archive", &(LedgerReader){ only_part, &p }),
                         0);
        p.etag = "given with it";
        assert_int_equal(store_ledger_put_part(s, "a", "archive", &p), 0);
        assert_int_equal(store_ledger_parts(s, "a", "archive", &(LedgerReader){ only_part, &p }),
                         0);
        assert_int_equal(parts_of(s, "a", "archive"), 1);
        store_close(s);
}

typedef struct Meddler {
        Store *store;
        unsigned n, stop_at;
        int answer;
} Meddler;

static int meddle(const LedgerPart *p, void *userdata) {
        Meddler *m = userdata;
        unsigned number = p->number;

        m->n++;
        assert_int_equal(store_ledger_set_etag(m->store, "a", "archive",
                                               &(LedgerPart){ .number = number, .etag = "e" }),
                         0);
        (void)parts_of(m->store, "a", "archive"); /* a list within a list */
        assert_int_equal(p->number, number);
        assert_null(p->etag); /* the part is a copy of what was */
        return m->n == m->stop_at ? m->answer : 0;
}

static void who_lists_parts_may_use_the_store_and_stop(void **state) {
        Store *s = open_store(*state);
        LedgerUpload u = intent(NULL, 1);
        static const int answers[] = { -ECANCELED, 5 }, expected[] = { -ECANCELED, 0 };

        add_bundle(s, "a");
        for (size_t i = 0; i < ELEMENTSOF(answers); i++) {
                Meddler m = { .store = s, .stop_at = 3, .answer = answers[i] };
                assert_int_equal(store_ledger_begin(s, "a", "archive", &u), 0);
                for (unsigned j = 1; j <= 5; j++) {
                        LedgerPart p = some_part(j, 2, 20);
                        assert_int_equal(store_ledger_put_part(s, "a", "archive", &p), 0);
                }
                assert_int_equal(
                        store_ledger_parts(s, "a", "archive", &(LedgerReader){ meddle, &m }),
                        expected[i]);
                assert_int_equal(m.n, 3);
        }
        store_close(s);
}

static void a_part_whose_frames_do_not_add_up_is_reported_not_believed(void **state) {
        static const char *const damages[] = {
                "UPDATE upload_parts SET n_frames = 3",
                "UPDATE upload_parts SET n_frames = -1",
                "UPDATE upload_parts SET frame_bytes = x'010203'",
                "UPDATE upload_parts SET number = 0",
                "UPDATE upload_parts SET sha256 = x'01'",
        };
        const Scratch *scratch = *state;

        for (size_t i = 0; i < ELEMENTSOF(damages); i++) {
                Store *s = open_store(scratch);
                LedgerUpload u = intent(NULL, 1);
                LedgerPart p = some_part(1, 2, 4);
                unsigned n = 0;

                if (i == 0)
                        add_bundle(s, "a");
                assert_int_equal(store_ledger_begin(s, "a", "archive", &u), 0);
                assert_int_equal(store_ledger_put_part(s, "a", "archive", &p), 0);
                free(sql_in_store(s, damages[i]));
                int r = store_ledger_parts(s, "a", "archive", &(LedgerReader){ count_part, &n });
                if (strstr(damages[i], "number = 0"))
                        assert_int_equal(r, 0); /* parts begin at 1: it is none */
                else
                        assert_int_equal(r, -EUCLEAN);
                assert_int_equal(n, 0);
                store_close(s);
        }
}

/* Moves */

typedef struct Aborts {
        char text[1024];
        int64_t ids[16];
        size_t n;
} Aborts;

static Aborts aborts_of(Store *s, const char *destination) {
        Aborts all = { .n = 0 };
        int64_t after = 0;
        int r = 0;
        while (r == 0) {
                LedgerAbort next = { 0 };
                r = store_abort_next(s, destination, after, &next);
                if (r == 0) {
                        size_t n = strlen(all.text);
                        assert_true(all.n < ELEMENTSOF(all.ids));
                        all.ids[all.n++] = after = next.id;
                        (void)snprintf(all.text + n, sizeof all.text - n, "%s %s %s %" PRIu64 "\n",
                                       next.destination, next.key,
                                       next.upload_id ? next.upload_id : "-", next.since_usec);
                }
                ledger_abort_done(&next);
        }
        assert_int_equal(r, STORE_E_NOT_FOUND);
        return all;
}

static void an_abandoned_upload_is_to_be_aborted_and_its_parts_are_gone(void **state) {
        const Scratch *scratch = *state;
        Store *s = open_store(scratch);
        LedgerUpload u = intent("k", 5), got;
        LedgerPart p = some_part(1, 2, 3);

        add_bundle(s, "a");
        assert_int_equal(store_ledger_begin(s, "a", "archive", &u), 0);
        assert_int_equal(store_ledger_set_upload_id(s, "a", "archive", "id1"), 0);
        assert_int_equal(store_ledger_put_part(s, "a", "archive", &p), 0);
        assert_int_equal(store_ledger_abandon(s, "a", "archive"), 0);
        assert_int_equal(store_ledger_abandon(s, "a", "archive"), 0);
        assert_int_equal(store_ledger_get(s, "a", "archive", &got), STORE_E_NOT_FOUND);
        assert_string_equal(aborts_of(s, "archive").text, "archive k id1 5\n");
        assert_string_equal(aborts_of(s, "other").text, "");
        assert_sqlite3(scratch, "SELECT count(*) FROM upload_parts", "0");
        store_close(s);
}

static void at_the_start_what_ended_bundles_left_is_to_be_aborted(void **state) {
        Store *s = open_store(*state);
        LedgerUpload u = intent(NULL, 1), got;
        static const char *const ids[] = { "a", "b", "c" };
        static const BundleState states[] = { BUNDLE_READY, BUNDLE_CANCELLED, BUNDLE_QUARANTINED };
        for (size_t i = 0; i < ELEMENTSOF(ids); i++) {
                BundleRecord b;
                add_bundle(s, ids[i]);
                assert_int_equal(store_ledger_begin(s, ids[i], "archive", &u), 0);
                assert_int_equal(store_get(s, ids[i], &b), 0);
                b.state = states[i];
                assert_int_equal(store_update(s, &b), 0);
                bundle_record_done(&b);
        }
        assert_int_equal(store_ledger_abandon_idle(s), 0);
        assert_int_equal(store_ledger_get(s, "a", "archive", &got), 0);
        ledger_upload_done(&got);
        assert_int_equal(store_ledger_get(s, "b", "archive", &got), STORE_E_NOT_FOUND);
        assert_int_equal(store_ledger_get(s, "c", "archive", &got), STORE_E_NOT_FOUND);
        assert_in_range(store_abort_count(s, NULL, false), 1,
                        2); /* the same key twice is one abort */
        store_close(s);
}

static void beginning_anew_leaves_the_earlier_upload_to_be_aborted(void **state) {
        const Scratch *scratch = *state;
        Store *s = open_store(scratch);
        LedgerUpload first = intent("k1", 5), second = intent("k2", 6), got;
        LedgerPart p = some_part(1, 2, 3);

        add_bundle(s, "a");
        assert_int_equal(store_ledger_begin(s, "a", "archive", &first), 0);
        assert_int_equal(store_ledger_put_part(s, "a", "archive", &p), 0);
        assert_int_equal(store_ledger_begin(s, "a", "archive", &second), 0);
        assert_int_equal(parts_of(s, "a", "archive"), 0);
        assert_int_equal(store_ledger_get(s, "a", "archive", &got), 0);
        assert_string_equal(got.key, "k2");
        ledger_upload_done(&got);
        /* It had no id: all uploads of that key. */
        assert_string_equal(aborts_of(s, "archive").text, "archive k1 - 5\n");
        assert_int_equal(store_abort_count(s, NULL, false), 1);
        store_close(s);
}

static void a_beginning_that_fails_leaves_the_earlier_upload_as_it_was(void **state) {
        const Scratch *scratch = *state;
        Store *s = open_store(scratch);
        LedgerUpload first = intent("k1", 5), second = intent("k2", 6);
        LedgerPart p = some_part(1, 2, 3);

        add_bundle(s, "a");
        assert_int_equal(store_ledger_begin(s, "a", "archive", &first), 0);
        assert_int_equal(store_ledger_set_upload_id(s, "a", "archive", "id1"), 0);
        assert_int_equal(store_ledger_put_part(s, "a", "archive", &p), 0);
        second.key = NULL; /* refused by the table, when the first one was moved already */
        assert_int_equal(store_ledger_begin(s, "a", "archive", &second), -EINVAL);
        assert_sqlite3(scratch,
                       "SELECT CAST(key AS TEXT), CAST(upload_id AS TEXT),"
                       " (SELECT count(*) FROM upload_parts), (SELECT count(*) FROM aborts)"
                       " FROM uploads",
                       "k1|id1|1|0");
        store_close(s);
}

static void an_upload_that_ended_leaves_nothing(void **state) {
        const Scratch *scratch = *state;
        Store *s = open_store(scratch);
        LedgerUpload u = intent(NULL, 5);
        LedgerPart p = some_part(1, 2, 3);

        add_bundle(s, "a");
        assert_int_equal(store_ledger_begin(s, "a", "archive", &u), 0);
        assert_int_equal(store_ledger_begin(s, "a", "copy", &u), 0);
        assert_int_equal(store_ledger_put_part(s, "a", "archive", &p), 0);
        assert_int_equal(store_ledger_put_part(s, "a", "copy", &p), 0);
        assert_int_equal(store_ledger_end(s, "a", "archive"), 0);
        assert_int_equal(store_ledger_end(s, "a", "archive"), 0);
        assert_sqlite3(scratch,
                       "SELECT destination, (SELECT count(*) FROM upload_parts),"
                       " (SELECT count(*) FROM aborts) FROM uploads",
                       "copy|1|0");
        store_close(s);
}

static void a_bundle_that_goes_removes_its_uploads(void **state) {
        const Scratch *scratch = *state;
        Store *s = open_store(scratch);
        LedgerUpload u = intent(NULL, 5);
        LedgerPart p = some_part(1, 2, 3);

        add_bundle(s, "a");
        add_bundle(s, "b");
        assert_int_equal(store_ledger_begin(s, "a", "archive", &u), 0);
        assert_int_equal(store_ledger_put_part(s, "a", "archive", &p), 0);
        assert_int_equal(store_ledger_begin(s, "b", "archive", &u), 0);
        free(sql_in_store(s, "DELETE FROM bundles WHERE id = 'a'"));
        assert_sqlite3(scratch,
                       "SELECT (SELECT count(*) FROM uploads), (SELECT count(*) FROM upload_parts)",
                       "1|0");
        store_close(s);
}

static void updating_a_bundle_leaves_its_ledger_alone(void **state) {
        Store *s = open_store(*state);
        LedgerUpload u = intent(NULL, 5);
        LedgerPart p = some_part(1, 2, 3);
        BundleRecord b;

        add_bundle(s, "a");
        assert_int_equal(store_ledger_begin(s, "a", "archive", &u), 0);
        assert_int_equal(store_ledger_put_part(s, "a", "archive", &p), 0);
        assert_int_equal(store_get(s, "a", &b), 0);
        b.attempts = 3;
        assert_int_equal(store_update(s, &b), 0);
        bundle_record_done(&b);
        assert_int_equal(parts_of(s, "a", "archive"), 1);
        store_close(s);
}

static void an_upload_underway_is_known_by_key_and_id(void **state) {
        Store *s = open_store(*state);
        LedgerUpload u = intent("k", 5);

        add_bundle(s, "a");
        add_bundle(s, "b");
        assert_false(store_ledger_knows(s, "k", "id"));
        assert_int_equal(store_ledger_begin(s, "a", "archive", &u), 0);
        assert_true(store_ledger_knows(s, "k", "any: its Create may just be answered"));
        assert_int_equal(store_ledger_set_upload_id(s, "a", "archive", "id"), 0);
        assert_int_equal(store_ledger_begin(s, "b", "archive", &u), 0);
        assert_int_equal(store_ledger_set_upload_id(s, "b", "archive", "id2"), 0);
        assert_true(store_ledger_knows(s, "k", "id"));
        assert_true(store_ledger_knows(s, "k", "id2"));
        assert_false(store_ledger_knows(s, "k", "id3"));
        assert_false(store_ledger_knows(s, "K", "id"));
        assert_int_equal(store_ledger_abandon(s, "a", "archive"), 0);
        assert_false(store_ledger_knows(s, "k", "id"));
        store_close(s);
}

/* Aborts */

static void aborts_are_listed_oldest_first_and_struck_out_one_by_one(void **state) {
        Store *s = open_store(*state);
        int64_t id = 0;

        assert_int_equal(store_abort_add(s,
                                         &(LedgerAbort){ .destination = "archive",
                                                         .key = "k1",
                                                         .upload_id = "i1",
                                                         .since_usec = 10 },
                                         &id),
                         0);
        assert_true(store_abort_knows(s, "k1", "i1"));
        assert_false(store_abort_knows(s, "k1", "i2"));
        assert_int_equal(
                store_abort_add(
                        s,
                        &(LedgerAbort){ .destination = "archive", .key = "k1", .since_usec = 11 },
                        NULL),
                0);
        assert_true(store_abort_knows(s, "k1", "i2"));
        assert_false(store_abort_knows(s, "k0", "i1"));
        assert_int_equal(store_abort_add(s,
                                         &(LedgerAbort){ .destination = "copy",
                                                         .key = "k1",
                                                         .upload_id = "i1",
                                                         .since_usec = 12 },
                                         NULL),
                         0);
        assert_int_equal(store_abort_add(s,
                                         &(LedgerAbort){ .destination = "archive",
                                                         .key = "k2",
                                                         .upload_id = "i1",
                                                         .since_usec = 13 },
                                         NULL),
                         0);
        assert_int_equal(store_abort_count(s, NULL, false), 4);
        assert_string_equal(aborts_of(s, "archive").text,
                            "archive k1 i1 10\narchive k1 - 11\narchive k2 i1 13\n");
        assert_int_equal(aborts_of(s, "archive").ids[0], id);
        assert_int_equal(store_abort_done(s, id), 0);
        assert_int_equal(store_abort_done(s, id), 0);
        assert_string_equal(aborts_of(s, "archive").text, "archive k1 - 11\narchive k2 i1 13\n");
        assert_string_equal(aborts_of(s, "copy").text, "copy k1 i1 12\n");
        store_close(s);
}

static void what_is_to_be_aborted_at_a_removed_destination_is_forgotten_when_it_is_old(
        void **state) {
        Store *s = open_store(*state);
        static const LedgerAbort rows[] = {
                { .destination = "archive", .key = "k", .since_usec = 10 },
                { .destination = "arch", .key = "k", .since_usec = 10 },
                { .destination = "copy", .key = "k", .since_usec = 10 },
                { .destination = "copy", .key = "new", .since_usec = 20 },
        };
        for (size_t i = 0; i < ELEMENTSOF(rows); i++)
                assert_int_equal(store_abort_add(s, &rows[i], NULL), 0);
        assert_int_equal(store_abort_drop_former(s, "\narchive\nother\n", 20), 0);
        assert_string_equal(aborts_of(s, "archive").text, "archive k - 10\n");
        assert_string_equal(aborts_of(s, "copy").text, "copy new - 20\n");
        assert_int_equal(store_abort_count(s, NULL, false), 2);
        assert_int_equal(store_abort_drop_former(s, "\n", 21), 0); /* all are removed */
        assert_int_equal(store_abort_drop_former(s, "\n", 21), 0); /* there are none */
        assert_int_equal(store_abort_count(s, NULL, false), 0);
        store_close(s);
}

static void the_same_abort_again_keeps_its_age_and_gets_a_new_id(void **state) {
        static const char *const ids[] = { NULL, "i1" };
        Store *s = open_store(*state);

        add_bundle(s, "a");
        for (size_t i = 0; i < ELEMENTSOF(ids); i++) {
                LedgerUpload u = intent("k", 30);
                int64_t old = 0, new = 0;
                assert_int_equal(store_abort_add(s,
                                                 &(LedgerAbort){ .destination = "archive",
                                                                 .key = "k",
                                                                 .upload_id = ids[i],
                                                                 .since_usec = 10 },
                                                 &old),
                                 0);
                assert_int_equal(store_abort_add(s,
                                                 &(LedgerAbort){ .destination = "archive",
                                                                 .key = "k",
                                                                 .upload_id = ids[i],
                                                                 .since_usec = 20 },
                                                 &new),
                                 0);
                assert_int_not_equal(old, new);
                assert_int_equal(store_abort_done(s, old), 0); /* by who began with the old one */
                assert_int_equal(store_abort_count(s, NULL, false), 1);
                u.upload_id = (char *)ids[i];
                assert_int_equal(store_ledger_begin(s, "a", "archive", &u), 0);
                assert_int_equal(store_ledger_abandon(s, "a", "archive"), 0);
                assert_int_equal(store_abort_done(s, new), 0);
                Aborts all = aborts_of(s, "archive");
                assert_string_equal(all.text, i == 0 ? "archive k - 10\n" : "archive k i1 10\n");
                assert_int_equal(store_abort_done(s, all.ids[0]), 0);
                assert_int_equal(store_abort_add(s,
                                                 &(LedgerAbort){ .destination = "archive",
                                                                 .key = "k",
                                                                 .upload_id = ids[i],
                                                                 .since_usec = 40 },
                                                 &old),
                                 0);
                assert_true(old > all.ids[0]); /* never used again, also when the table was empty */
                assert_int_equal(store_abort_done(s, old), 0);
        }
        store_close(s);
}

/* Size and time */

static off_t state_bytes(const Scratch *scratch) {
        static const char *const names[] = { "state/state.db", "state/state.db-wal" };
        struct stat st;
        off_t all = 0;

        for (size_t i = 0; i < ELEMENTSOF(names); i++) {
                assert_int_equal(fstatat(scratch->fd, names[i], &st, 0), 0);
                all += st.st_size;
        }
        return all;
}

static void put_parts(Store *s, unsigned n, unsigned n_frames, size_t state_size) {
        for (unsigned i = 1; i <= n; i++) {
                LedgerPart p = some_part(i, n_frames, state_size);
                assert_int_equal(store_ledger_put_part(s, "a", "archive", &p), 0);
                assert_int_equal(
                        store_ledger_set_etag(
                                s, "a", "archive",
                                &(LedgerPart){ .number = i,
                                               .etag = "\"9bb58f26192e4ba00f01e2e7b136bbd8\"" }),
                        0);
        }
}

/* Sizes of state: 150 bytes is an open member's digest with its head; 60 more for each member that
 * ended in the part. */
static void the_ledger_of_a_4_gib_dump_needs_less_than_8_mib(void **state) {
        static const struct {
                unsigned n_parts, n_frames;
                size_t state_size, max_mib;
        } cases[] = {
                { 512, 4, 150, 2 },         /* one big core */
                { 512, 4, 150 + 3600, 8 },  /* 30,000 small files in it */
                { 10000, 4, 150, 8 },       /* 80 GiB */
                { 100, MAX_FRAMES, 150, 8 } /* all but empty frames */
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                const Scratch *scratch = *state;
                Store *s = open_store(scratch);
                LedgerUpload u = intent(NULL, 1);
                char command[PATH_MAX + 32];

                add_bundle(s, "a");
                assert_int_equal(store_ledger_begin(s, "a", "archive", &u), 0);
                put_parts(s, cases[i].n_parts, cases[i].n_frames, cases[i].state_size);
                off_t full = state_bytes(scratch);
                print_message("# %u parts of %u frames, state %zu: %.2f MiB\n", cases[i].n_parts,
                              cases[i].n_frames, cases[i].state_size, (double)full / (double)MIB);
                assert_true(full <= (off_t)(RESERVED_BYTES + cases[i].max_mib * MIB));
                /* What ended gives its room to the next one. */
                assert_int_equal(store_ledger_end(s, "a", "archive"), 0);
                assert_int_equal(store_ledger_begin(s, "a", "archive", &u), 0);
                put_parts(s, cases[i].n_parts, cases[i].n_frames, cases[i].state_size);
                assert_true(state_bytes(scratch) <= full + (off_t)(2 * MIB));
                store_close(s);
                (void)snprintf(command, sizeof command, "rm -r '%s/state'", scratch->path);
                assert_int_equal(system(command), 0);
        }
}

static int compare_doubles(const void *a, const void *b) {
        double x = *(const double *)a, y = *(const double *)b;
        return x < y ? -1 : x > y;
}

static double seconds_now(void) {
        struct timespec now;
        (void)clock_gettime(CLOCK_MONOTONIC, &now);
        return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

#define N_TIMED 200

static void the_two_commits_of_a_part_are_cheap(void **state) {
        static const size_t sizes[] = { 150, 20000, MAX_STATE };
        Store *s = open_store(*state);
        LedgerUpload u = intent(NULL, 1);

        add_bundle(s, "a");
        for (size_t size = 0; size < ELEMENTSOF(sizes); size++) {
                double put[N_TIMED], etag[N_TIMED];
                assert_int_equal(store_ledger_begin(s, "a", "archive", &u), 0);
                for (unsigned i = 0; i < N_TIMED; i++) {
                        LedgerPart p = some_part(i + 1, 4, sizes[size]);
                        double t0 = seconds_now();
                        assert_int_equal(store_ledger_put_part(s, "a", "archive", &p), 0);
                        double t1 = seconds_now();
                        assert_int_equal(store_ledger_set_etag(s, "a", "archive",
                                                               &(LedgerPart){ .number = i + 1,
                                                                              .etag = "\"etag\"" }),
                                         0);
                        etag[i] = seconds_now() - t1;
                        put[i] = t1 - t0;
                }
                qsort(put, N_TIMED, sizeof *put, compare_doubles);
                qsort(etag, N_TIMED, sizeof *etag, compare_doubles);
                print_message("# state of %zu bytes: put %.2f ms (p99 %.2f), etag %.2f ms (p99 "
                              "%.2f)\n",
                              sizes[size], put[N_TIMED / 2] * 1e3, put[N_TIMED * 99 / 100] * 1e3,
                              etag[N_TIMED / 2] * 1e3, etag[N_TIMED * 99 / 100] * 1e3);
                /* Below 1 ms here for the first; generous, since this is no benchmark. */
                if (size == 0)
                        assert_true(put[N_TIMED / 2] + etag[N_TIMED / 2] < 0.1);
        }
        double before = seconds_now();
        assert_int_equal(store_ledger_abandon(s, "a", "archive"), 0);
        print_message("# abandon of %d parts of %d bytes: %.2f ms\n", N_TIMED, MAX_STATE,
                      (seconds_now() - before) * 1e3);
        store_close(s);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(an_upload_comes_back_as_it_was_begun),
                TEST(what_is_not_underway_is_not_found),
                TEST(parts_come_back_in_order_with_all_they_had),
                TEST(a_part_put_again_replaces_the_earlier_one_and_its_etag),
                TEST(who_lists_parts_may_use_the_store_and_stop),
                TEST(a_part_whose_frames_do_not_add_up_is_reported_not_believed),
                TEST(an_abandoned_upload_is_to_be_aborted_and_its_parts_are_gone),
                TEST(at_the_start_what_ended_bundles_left_is_to_be_aborted),
                TEST(beginning_anew_leaves_the_earlier_upload_to_be_aborted),
                TEST(a_beginning_that_fails_leaves_the_earlier_upload_as_it_was),
                TEST(an_upload_that_ended_leaves_nothing),
                TEST(a_bundle_that_goes_removes_its_uploads),
                TEST(updating_a_bundle_leaves_its_ledger_alone),
                TEST(an_upload_underway_is_known_by_key_and_id),
                TEST(aborts_are_listed_oldest_first_and_struck_out_one_by_one),
                TEST(what_is_to_be_aborted_at_a_removed_destination_is_forgotten_when_it_is_old),
                TEST(the_same_abort_again_keeps_its_age_and_gets_a_new_id),
                TEST(the_ledger_of_a_4_gib_dump_needs_less_than_8_mib),
                TEST(the_two_commits_of_a_part_are_cheap),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
