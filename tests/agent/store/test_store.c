/* The store as its header promises it: records, lists, sums, transactions, the lock. Damage is
 * test_store_open.c's, crashes and full disks test_store_trouble.c's. */
#include "tests/agent/store/store_test.h"

#include <errno.h>
#include <sys/wait.h>

#define N_MODEL 200

typedef struct Model {
        BundleRecord records[N_MODEL]; /* in the order of lists */
        size_t n;
} Model;

static int compare_records(const void *a, const void *b) {
        const BundleRecord *x = a, *y = b;
        if (x->first_seen_usec != y->first_seen_usec)
                return x->first_seen_usec < y->first_seen_usec ? -1 : 1;
        return strcmp(x->id, y->id);
}

static void every_field_of_a_bundle_comes_back(void **state) {
        Store *s = open_store(*state);
        uint64_t seed = 1;

        for (unsigned i = 0; i < 100; i++) {
                BundleRecord b = random_record(&seed, i), back = { 0 };
                assert_int_equal(store_add(s, &b), 0);
                assert_int_equal(store_get(s, b.id, &back), 0);
                assert_same_record(&b, &back);
                bundle_record_done(&back);

                /* And from the file, not from a cache. */
                if (i % 10 == 0) {
                        store_close(s);
                        s = open_store(*state);
                }
                assert_int_equal(store_get(s, b.id, &back), 0);
                assert_same_record(&b, &back);
                bundle_record_done(&back);
                bundle_record_done(&b);
        }
        store_close(s);
}

static void an_update_changes_all_but_what_the_bundle_is(void **state) {
        Store *s = open_store(*state);
        uint64_t seed = 2;

        for (unsigned i = 0; i < 100; i++) {
                BundleRecord b = random_record(&seed, i), other = random_record(&seed, i),
                             back = { 0 };
                assert_int_equal(store_add(s, &b), 0);
                assert_int_equal(store_update(s, &other), 0);
                assert_int_equal(store_get(s, b.id, &back), 0);

                free(other.source);
                free(other.path);
                other.source = strdup(b.source);
                other.path = strdup(b.path);
                other.kind = b.kind;
                other.first_seen_usec = b.first_seen_usec;
                other.n_supplements = MAX(other.n_supplements, b.n_supplements); /* used up */
                memcpy(other.supplement_of, b.supplement_of, sizeof b.supplement_of);
                assert_same_record(&other, &back);
                bundle_record_done(&back);
                bundle_record_done(&other);
                bundle_record_done(&b);
        }
        store_close(s);
}

static void an_id_is_added_once_and_an_unknown_one_is_not_found(void **state) {
        Store *s = open_store(*state);
        BundleRecord b = simple_record("a", BUNDLE_SETTLING, 1), back = { 0 };

        assert_int_equal(store_get(s, "a", &back), STORE_E_NOT_FOUND);
        assert_int_equal(store_update(s, &b), STORE_E_NOT_FOUND);
        assert_int_equal(store_add(s, &b), 0);
        assert_int_equal(store_add(s, &b), -EEXIST);
        assert_int_equal(store_update(s, &b), 0);
        assert_sqlite3(*state, "SELECT count(*), id FROM bundles", "1|a");
        bundle_record_done(&b);
        store_close(s);
}

/* Lists */

typedef struct Seen {
        const BundleRecord *expected[N_MODEL];
        size_t n_expected, n_seen;
} Seen;

static int on_expected(BundleRecord *b, void *userdata) {
        Seen *seen = userdata;
        assert_true(seen->n_seen < seen->n_expected);
        assert_same_record(seen->expected[seen->n_seen++], b);
        return 0;
}

static bool filter_accepts(const StoreFilter *f, const BundleRecord *b) {
        if (f->state >= 0 && b->state != (BundleState)f->state)
                return false;
        if (f->active_only && b->state > BUNDLE_SHIPPING)
                return false;
        return !f->source || strcmp(f->source, b->source) == 0;
}

static void check_list(Store *s, const Model *m, const StoreFilter *f) {
        Seen seen = { .n_expected = 0 };
        bool after = f->after == NULL;

        for (size_t i = 0; i < m->n; i++) {
                const BundleRecord *b = &m->records[i];
                if (after && filter_accepts(f, b) && (f->limit == 0 || seen.n_expected < f->limit))
                        seen.expected[seen.n_expected++] = b;
                if (f->after && strcmp(b->id, f->after) == 0)
                        after = true;
        }
        assert_int_equal(store_list(s, f, on_expected, &seen), 0);
        assert_int_equal(seen.n_seen, seen.n_expected);
}

static void make_model(Store *s, Model *m, uint64_t seed) {
        assert_int_equal(store_begin(s), 0);
        for (m->n = 0; m->n < N_MODEL; m->n++) {
                BundleRecord *b = &m->records[m->n];
                *b = random_record(&seed, (unsigned)m->n);
                b->first_seen_usec %= 20; /* many of one moment: then the id decides */
                free(b->source);
                b->source = strdup(next_random(&seed) & 1 ? "dumps" : "profiles");
                assert_int_equal(store_add(s, b), 0);
        }
        assert_int_equal(store_commit(s), 0);
        qsort(m->records, m->n, sizeof m->records[0], compare_records);
}

static void lists_obey_every_filter_and_page(void **state) {
        static const unsigned limits[] = { 0, 1, 7, 32, 33, 64, 1000 };
        static const char *const sources[] = { NULL, "dumps", "profiles", "nobody" };
        static Model m;
        Store *s = open_store(*state);

        make_model(s, &m, 3);
        for (int of_state = -1; of_state < N_BUNDLE_STATES; of_state++)
                for (size_t i = 0; i < ELEMENTSOF(sources); i++)
                        for (size_t j = 0; j < ELEMENTSOF(limits); j++)
                                for (size_t k = 0; k < m.n + 1; k += 67) {
                                        StoreFilter f = { .state = of_state,
                                                          .source = sources[i],
                                                          .limit = limits[j] };
                                        f.after = k > 0 ? m.records[k - 1].id : NULL;
                                        check_list(s, &m, &f);
                                        f.active_only = of_state < 0;
                                        check_list(s, &m, &f);
                                }
        for (size_t i = 0; i < m.n; i++)
                bundle_record_done(&m.records[i]);
        store_close(s);
}

static void a_list_after_an_unknown_id_is_not_found(void **state) {
        Store *s = open_store(*state);
        StoreFilter f = { .state = -1, .after = "nobody" };

        assert_int_equal(store_list(s, &f, on_expected, NULL), STORE_E_NOT_FOUND);
        store_close(s);
}

typedef struct Changer {
        Store *store;
        unsigned n, stop_at;
        int stop_with;
} Changer;

/* Settles what it is shown, lists within the list, and stops when told. */
static int change_it(BundleRecord *b, void *userdata) {
        Changer *c = userdata;
        Seen none = { .n_expected = 0 };
        StoreFilter f = { .state = BUNDLE_EVICTED };
        BundleRecord mine = *b;

        *b = (BundleRecord){ 0 };
        mine.state = BUNDLE_CANCELLED;
        assert_int_equal(store_update(c->store, &mine), 0);
        assert_int_equal(store_list(c->store, &f, on_expected, &none), 0);
        bundle_record_done(&mine);
        return ++c->n == c->stop_at ? c->stop_with : 0;
}

static void a_list_shows_each_once_to_a_callback_that_changes_them(void **state) {
        Store *s = open_store(*state);
        Changer c = { .store = s };
        StoreFilter f = { .state = -1, .active_only = true };
        StoreCounts counts;

        for (unsigned i = 0; i < 100; i++) {
                char id[16];
                (void)snprintf(id, sizeof id, "b%03u", i);
                BundleRecord b = simple_record(id, BUNDLE_READY, 100 - i);
                assert_int_equal(store_add(s, &b), 0);
                bundle_record_done(&b);
        }
        c.stop_at = 40;
        c.stop_with = -ECANCELED;
        assert_int_equal(store_list(s, &f, change_it, &c), -ECANCELED);
        assert_int_equal(c.n, 40);
        c.stop_at = 50;
        c.stop_with = 1;
        assert_int_equal(store_list(s, &f, change_it, &c), 0);
        assert_int_equal(c.n, 50);
        assert_int_equal(store_list(s, &f, change_it, &c), 0);
        assert_int_equal(c.n, 100);
        store_counts(s, &counts);
        assert_int_equal(counts.bundles[BUNDLE_CANCELLED], 100);
        store_close(s);
}

static void a_unit_is_found_by_its_newest_base_bundle(void **state) {
        static const struct {
                const char *id, *source, *path, *supplement_of;
                uint64_t first_seen_usec;
        } rows[] = {
                { "old", "dumps", "/d/\xff", "", 1 },
                { "new", "dumps", "/d/\xff", "", 3 },
                { "new-s1", "dumps", "/d/\xff", "new", 4 },
                { "elsewhere", "dumps", "/d/x", "", 9 },
                { "stranger", "profiles", "/d/\xff", "", 9 },
        };
        Store *s = open_store(*state);
        BundleRecord found = { 0 };

        for (size_t i = 0; i < ELEMENTSOF(rows); i++) {
                BundleRecord b = { .source = strdup(rows[i].source),
                                   .path = strdup(rows[i].path),
                                   .first_seen_usec = rows[i].first_seen_usec };
                (void)snprintf(b.id, sizeof b.id, "%s", rows[i].id);
                (void)snprintf(b.supplement_of, sizeof b.supplement_of, "%s",
                               rows[i].supplement_of);
                assert_int_equal(store_add(s, &b), 0);
                bundle_record_done(&b);
        }
        assert_int_equal(store_find_unit(s, "dumps", "/d/\xff", &found), 0);
        assert_string_equal(found.id, "new");
        bundle_record_done(&found);
        assert_int_equal(store_find_unit(s, "dumps", "/d/", &found), STORE_E_NOT_FOUND);
        assert_int_equal(store_find_unit(s, "nobody", "/d/x", &found), STORE_E_NOT_FOUND);
        store_close(s);
}

/* Sums and prints */

static void counters_add_up_and_live_as_long_as_the_state(void **state) {
        Store *s = open_store(*state);

        assert_int_equal(store_counter(s, "bytes_sent"), 0);
        assert_int_equal(store_counter_add(s, "bytes_sent", 5), 0);
        assert_int_equal(store_counter_add(s, "bytes_sent", UINT64_C(1) << 40), 0);
        assert_int_equal(store_counter_add(s, "bytes_read", 7), 0);
        assert_int_equal(store_counter_add(s, "bytes_read", UINT64_MAX), -ERANGE);
        store_close(s);
        s = open_store(*state);
        assert_true(store_counter(s, "bytes_sent") == (UINT64_C(1) << 40) + 5);
        assert_int_equal(store_counter(s, "bytes_read"), 7);
        store_close(s);
        assert_sqlite3(*state, "SELECT * FROM counters WHERE name LIKE 'bytes%%' ORDER BY name",
                       "bytes_read|7\nbytes_sent|1099511627781");
}

static void note_counter(const char *name, uint64_t value, void *userdata) {
        char *text = userdata;
        size_t n = strlen(text);
        (void)snprintf(text + n, 128 - n, "%s=%" PRIu64 " ", name, value);
}

static void counters_are_listed_by_the_beginning_of_their_name(void **state) {
        static const char *const names[] = { "discard:too-many", "bytes_sent", "discard:",
                                             "discard:%",        "discard",    "discarded" };
        Store *s = open_store(*state);
        char text[128] = "";

        for (size_t i = 0; i < ELEMENTSOF(names); i++)
                assert_int_equal(store_counter_add(s, names[i], i), 0);
        store_close(s);
        s = open_store(*state);
        assert_int_equal(store_counter_list(s, "discard:", note_counter, text), 0);
        assert_string_equal(text, "discard:=2 discard:%=3 discard:too-many=0 ");
        text[0] = '\0';
        assert_int_equal(store_counter_list(s, "z", note_counter, text), 0);
        assert_string_equal(text, "");
        store_close(s);
}

static void add_ended(Store *s, const char *id, const char *base, BundleState state, uint64_t at) {
        BundleRecord b = simple_record(id, state, at);
        free(b.path);
        assert_true(asprintf(&b.path, "/tmp/%c", id[0]) > 0); /* a unit for each letter */
        (void)snprintf(b.supplement_of, sizeof b.supplement_of, "%s", base);
        b.changed_usec = at;
        b.n_deliveries = 1;
        b.deliveries = calloc(1, sizeof *b.deliveries);
        assert_non_null(b.deliveries);
        b.deliveries->destination = strdup("archive");
        b.pinned = strstr(id, "pinned");
        b.links_held = strstr(id, "held");
        assert_int_equal(store_add(s, &b), 0);
        assert_int_equal(store_set_prints(s, id, &at, 1), 0);
        bundle_record_done(&b);
}

static int append_id(BundleRecord *b, void *userdata) {
        strcat(strcat(userdata, b->id), " ");
        return 0;
}

static void assert_ended(Store *s, uint64_t before_usec, uint64_t surplus_usec, const char *ids) {
        char text[256] = "";
        const StoreFilter f = { .state = -1,
                                .ended_before_usec = before_usec,
                                .surplus_usec = surplus_usec };
        assert_int_equal(store_list(s, &f, append_id, text), 0);
        assert_string_equal(text, ids);
}

static void add_linked(Store *s, const char *id, const char *subject, uint32_t n) {
        BundleRecord b = simple_record(id, BUNDLE_DELIVERED, 1);
        free(b.path);
        assert_true(asprintf(&b.path, "/tmp/%s", id) > 0);
        (void)snprintf(b.subject, sizeof b.subject, "%s", subject);
        if (n > 0)
                b.name = (FailureName){ .agreed = "store", .key = "00112233445566aa", .n = n };
        assert_int_equal(store_add(s, &b), 0);
        bundle_record_done(&b);
}

static void assert_listed(Store *s, StoreFilter f, const char *ids) {
        char text[256] = "";
        assert_int_equal(store_list(s, &f, append_id, text), 0);
        assert_string_equal(text, ids);
}

static void bundles_of_a_failure_and_those_about_another_are_listed(void **state) {
        Store *s = open_store(*state);
        add_linked(s, "core", "", 0);
        add_linked(s, "dump", "", 1);
        add_linked(s, "other", "", 2);
        add_linked(s, "report", "core", 0);
        add_linked(s, "snapshot", "dump", 1);
        assert_listed(s, (StoreFilter){ .state = -1, .subject = "core" }, "report ");
        assert_listed(s, (StoreFilter){ .state = -1, .subject = "dump" }, "snapshot ");
        assert_listed(s, (StoreFilter){ .state = BUNDLE_READY, .subject = "dump" }, "");
        assert_listed(s, (StoreFilter){ .state = -1, .subject = "" }, "");
        add_ended(s, "core-s1", "core", BUNDLE_DELIVERED, 1);
        add_ended(s, "core-s2", "core", BUNDLE_CANCELLED, 1);
        assert_listed(s, (StoreFilter){ .state = -1, .base = "core" }, "core-s1 core-s2 ");
        assert_listed(s, (StoreFilter){ .state = BUNDLE_CANCELLED, .base = "core" }, "core-s2 ");
        assert_listed(s, (StoreFilter){ .state = -1, .base = "" }, "");
        assert_listed(
                s, (StoreFilter){ .state = -1, .failure_key = "00112233445566aa", .failure_n = 1 },
                "dump snapshot ");
        assert_listed(
                s, (StoreFilter){ .state = -1, .failure_key = "00112233445566ab", .failure_n = 1 },
                "");
        store_close(s);
}

static void what_ended_before_a_time_or_is_too_much_is_listed(void **state) {
        Store *s = open_store(*state);
        add_ended(s, "a", "", BUNDLE_DELIVERED, 1);
        add_ended(s, "b", "", BUNDLE_DELIVERED, 2);
        add_ended(s, "b-s1", "b", BUNDLE_DELIVERED, 7);
        add_ended(s, "c", "", BUNDLE_QUARANTINED, 3);
        add_ended(s, "d", "", BUNDLE_SHIPPING, 4);
        add_ended(s, "e", "", BUNDLE_VANISHED, 5);
        add_ended(s, "f", "", BUNDLE_EVICTED, 6);
        assert_ended(s, 6, 0, "a e ");     /* b has a newer supplement */
        assert_ended(s, 8, 0, "a b e f "); /* nobody has to decide about them */
        assert_ended(s, 1, 2, "a b ");
        assert_int_equal(store_nth_seen_usec(s, 0), 7);
        assert_int_equal(store_nth_seen_usec(s, 5), 2);
        assert_int_equal(store_nth_seen_usec(s, 7), 0);
        store_close(s);
}

static void rows_of_what_is_gone_are_deleted_and_still_count(void **state) {
        static const char *const stay[] = { "b", "c-pinned", "d-held", "e", "f", "g" };
        Store *s = open_store(*state);
        StoreCounts before, after;
        add_ended(s, "a", "", BUNDLE_DELIVERED, 1);
        add_ended(s, "a-s1", "a", BUNDLE_EVICTED, 2);
        add_ended(s, "b", "", BUNDLE_DELIVERED, 3);
        add_ended(s, "b-s1", "b", BUNDLE_SETTLING, 4);
        add_ended(s, "c-pinned", "", BUNDLE_DELIVERED, 5);
        add_ended(s, "d-held", "", BUNDLE_DELIVERED, 6);
        add_ended(s, "e", "", BUNDLE_DELIVERED, 7);
        add_ended(s, "e-s1-held", "e", BUNDLE_DELIVERED, 8);
        add_ended(s, "f", "", BUNDLE_QUARANTINED, 9);
        add_ended(s, "g", "", BUNDLE_READY, 10);
        add_ended(s, "h1", "", BUNDLE_VANISHED, 11);
        add_ended(s, "h2", "", BUNDLE_CANCELLED, 12);
        store_counts(s, &before);

        assert_int_equal(store_drop_ended(s, "a", false), STORE_E_NOT_FOUND); /* it is there */
        assert_int_equal(store_drop_ended(s, "a", true), 0);
        assert_int_equal(store_drop_ended(s, "a", true), STORE_E_NOT_FOUND);
        for (size_t i = 0; i < ELEMENTSOF(stay); i++)
                assert_int_equal(store_drop_ended(s, stay[i], true), STORE_E_NOT_FOUND);
        assert_int_equal(store_drop_ended(s, "h2", false), STORE_E_NOT_FOUND);
        assert_int_equal(store_drop_ended(s, "h1", false), 0); /* its unit has a newer one */
        for (unsigned i = 0; i < 2; i++) {
                store_counts(s, &after);
                assert_memory_equal(&before, &after, sizeof before);
                assert_int_equal(store_counts_difference(&after), 0);
                store_close(s);
                s = open_store(*state);
        }
        assert_sqlite3(*state,
                       "SELECT count(*) FROM bundles; SELECT count(*) FROM deliveries; SELECT "
                       "count(*) FROM prints",
                       "9\n9\n9");
        store_close(s);
}

static void what_was_discovered_is_counted_apart_from_what_became_of_it(void **state) {
        Store *s = open_store(*state);
        StoreCounts counts;

        for (unsigned i = 0; i < 5; i++) {
                char id[16];
                (void)snprintf(id, sizeof id, "b%u", i);
                BundleRecord b = simple_record(id, BUNDLE_SETTLING, i);
                assert_int_equal(store_add(s, &b), 0);
                assert_int_equal(store_add(s, &b), -EEXIST); /* that was none */
                b.state = i % 2 ? BUNDLE_DELIVERED : BUNDLE_VANISHED;
                assert_int_equal(store_update(s, &b), 0);
                bundle_record_done(&b);
        }
        assert_int_equal(store_begin(s), 0);
        BundleRecord b = simple_record("undone", BUNDLE_SETTLING, 9);
        assert_int_equal(store_add(s, &b), 0);
        store_rollback(s);
        bundle_record_done(&b);
        store_counts(s, &counts);
        assert_int_equal(counts.discovered, 5);
        assert_int_equal(store_counts_difference(&counts), 0);
        store_close(s);

        /* Somebody takes a row away: that shows. */
        const Scratch *scratch = *state;
        char command[PATH_MAX + 128];
        (void)snprintf(command, sizeof command,
                       "sqlite3 '%s/state/state.db' \"DELETE FROM bundles WHERE id = 'b3'\"",
                       scratch->path);
        assert_int_equal(system(command), 0);
        s = open_store(*state);
        store_counts(s, &counts);
        assert_int_equal(counts.bundles[BUNDLE_VANISHED], 3);
        assert_int_equal(store_counts_difference(&counts), 1);
        store_close(s);
}

static void a_bundle_of_absurd_size_does_not_spoil_the_sum(void **state) {
        Store *s = open_store(*state);
        StoreCounts counts;

        for (unsigned i = 0; i < 3; i++) {
                BundleRecord b = simple_record(i == 0 ? "a" : i == 1 ? "b" : "c", BUNDLE_READY, i);
                b.bytes = i == 0 ? 7 : i == 1 ? UINT64_MAX : INT64_MAX;
                assert_int_equal(store_add(s, &b), 0);
                bundle_record_done(&b);
        }
        store_counts(s, &counts);
        assert_true(counts.bytes[BUNDLE_READY] == 7 + 2 * (UINT64_C(1) << 48));
        for (unsigned i = 1; i < 3; i++) {
                BundleRecord b = simple_record(i == 1 ? "b" : "c", BUNDLE_CANCELLED, i);
                assert_int_equal(store_update(s, &b), 0);
                bundle_record_done(&b);
        }
        store_counts(s, &counts);
        assert_int_equal(counts.bytes[BUNDLE_READY], 7);
        assert_int_equal(counts.bytes[BUNDLE_CANCELLED], 2000);
        store_close(s);
}

static void prints_are_united_over_a_bundle_and_its_supplements(void **state) {
        static const uint64_t base[] = { 9, 1, UINT64_MAX, 1 }, first[] = { 5, 9 },
                              foreign[] = { 77 };
        static const uint64_t all[] = { 1, 5, 9, UINT64_MAX };
        static const char *const ids[] = { "a", "a-s1", "b" };
        Store *s = open_store(*state);
        uint64_t *got = NULL;
        size_t n = 99;

        for (size_t i = 0; i < ELEMENTSOF(ids); i++) {
                BundleRecord b = simple_record(ids[i], BUNDLE_DELIVERED, i);
                if (i == 1)
                        (void)strcpy(b.supplement_of, "a");
                assert_int_equal(store_add(s, &b), 0);
                bundle_record_done(&b);
        }
        assert_int_equal(store_get_prints(s, "a", &got, &n), 0);
        assert_int_equal(n, 0);
        assert_null(got);
        assert_int_equal(store_set_prints(s, "nobody", base, 4), STORE_E_NOT_FOUND);
        assert_int_equal(store_set_prints(s, "a", foreign, 1), 0);
        assert_int_equal(store_set_prints(s, "a", base, 4), 0); /* replaces */
        assert_int_equal(store_set_prints(s, "a-s1", first, 2), 0);
        assert_int_equal(store_set_prints(s, "b", foreign, 1), 0);
        assert_int_equal(store_get_prints(s, "a", &got, &n), 0);
        assert_int_equal(n, ELEMENTSOF(all));
        assert_memory_equal(got, all, sizeof all);
        free(got);
        got = NULL;
        assert_int_equal(store_set_prints(s, "b", NULL, 0), 0);
        assert_int_equal(store_get_prints(s, "b", &got, &n), 0);
        assert_int_equal(n, 0);
        free(got);
        assert_sqlite3(
                *state,
                "SELECT hex(prints) FROM prints JOIN bundles ON bundle = row WHERE id = 'a-s1'",
                "05000000000000000900000000000000");
        store_close(s);
}

/* Transactions */

static void a_transaction_is_committed_as_one_or_not_at_all(void **state) {
        Store *s = open_store(*state);
        BundleRecord a = simple_record("a", BUNDLE_READY, 1),
                     b = simple_record("b", BUNDLE_READY, 2), back;

        assert_int_equal(store_begin(s), 0);
        assert_int_equal(store_begin(s), -EALREADY);
        assert_int_equal(store_add(s, &a), 0);
        assert_int_equal(store_add(s, &b), 0);
        assert_int_equal(store_add(s, &b), -EEXIST); /* undoes itself only */
        assert_sqlite3(*state, "SELECT count(*) FROM bundles", "0");
        assert_int_equal(store_commit(s), 0);
        assert_sqlite3(*state, "SELECT count(*) FROM bundles", "2");
        assert_int_equal(store_commit(s), -EINVAL);

        assert_int_equal(store_begin(s), 0);
        a.state = BUNDLE_CANCELLED;
        assert_int_equal(store_update(s, &a), 0);
        assert_int_equal(store_counter_add(s, "x", 1), 0);
        store_rollback(s);
        assert_int_equal(store_get(s, "a", &back), 0);
        assert_int_equal(back.state, BUNDLE_READY);
        bundle_record_done(&back);
        assert_int_equal(store_counter(s, "x"), 0);
        assert_int_equal(store_begin(s), 0); /* closing gives up what is open */
        assert_int_equal(store_update(s, &a), 0);
        store_close(s);
        assert_sqlite3(*state, "SELECT state, bundles FROM counts WHERE bundles > 0", "ready|2");
        bundle_record_done(&a);
        bundle_record_done(&b);
}

static void a_change_that_fails_halfway_is_undone(void **state) {
        Store *s = open_store(*state);
        BundleRecord good = simple_record("good", BUNDLE_READY, 1),
                     bad = simple_record("bad", BUNDLE_READY, 2);
        StoreCounts counts;

        bad.n_deliveries = 5000; /* the bundle's own row is written before they are refused */
        bad.deliveries = calloc(bad.n_deliveries, sizeof *bad.deliveries);
        assert_non_null(bad.deliveries);
        for (unsigned inside = 0; inside < 2; inside++) {
                if (inside)
                        assert_int_equal(store_begin(s), 0);
                assert_int_equal(inside ? store_update(s, &good) : store_add(s, &good), 0);
                assert_int_equal(store_add(s, &bad), -E2BIG);
                (void)strcpy(bad.id, "good");
                bad.state = BUNDLE_CANCELLED;
                assert_int_equal(store_update(s, &bad), -E2BIG);
                (void)strcpy(bad.id, "bad");
                if (inside)
                        assert_int_equal(store_commit(s), 0);
                assert_sqlite3(*state, "SELECT id, state FROM bundles", "good|ready");
                store_counts(s, &counts);
                assert_int_equal(counts.bundles[BUNDLE_READY], 1);
                assert_int_equal(counts.bundles[BUNDLE_CANCELLED], 0);
        }
        bundle_record_done(&good);
        bundle_record_done(&bad);
        store_close(s);
}

/* Counts stay what a SELECT says, whatever is done. */
static void assert_counts_are_true(Store *s, const Scratch *scratch) {
        static const BundleState by_name[] = { BUNDLE_CANCELLED, BUNDLE_DELIVERED,
                                               BUNDLE_EVICTED,   BUNDLE_QUARANTINED,
                                               BUNDLE_READY,     BUNDLE_SETTLING,
                                               BUNDLE_SHIPPING,  BUNDLE_VANISHED };
        StoreCounts counts;
        char expected[1024] = "";
        size_t n = 0;

        store_counts(s, &counts);
        for (size_t i = 0; i < ELEMENTSOF(by_name); i++) {
                BundleState k = by_name[i];
                if (counts.bundles[k] > 0)
                        n += (size_t)snprintf(expected + n, sizeof expected - n,
                                              "%s%s|%" PRIu64 "|%" PRIu64, n > 0 ? "\n" : "",
                                              bundle_state_name(k), counts.bundles[k],
                                              counts.bytes[k]);
                else
                        assert_int_equal(counts.bytes[k], 0);
        }
        assert_sqlite3(
                scratch,
                "SELECT state, count(*), sum(bytes) FROM bundles GROUP BY state ORDER BY state",
                expected);
        assert_int_equal(store_counts_difference(&counts), 0);
}

static void counts_equal_a_select_after_any_sequence(void **state) {
        Store *s = open_store(*state);
        uint64_t seed = 42;
        unsigned n = 0;
        bool inside = false;

        for (unsigned step = 0; step < 600; step++) {
                uint64_t dice = next_random(&seed) % 20;
                if (dice < 6) {
                        BundleRecord b = random_record(&seed, n);
                        if (store_add(s, &b) == 0)
                                n++;
                        bundle_record_done(&b);
                } else if (dice < 16 && n > 0) {
                        BundleRecord b = random_record(&seed, (unsigned)(next_random(&seed) % n));
                        int r = store_update(s, &b);
                        assert_true(r == 0 || r == STORE_E_NOT_FOUND); /* rolled back earlier */
                        bundle_record_done(&b);
                } else if (dice == 16 && !inside) {
                        assert_int_equal(store_begin(s), 0);
                        inside = true;
                } else if (dice >= 17 && inside) {
                        if (dice == 19)
                                store_rollback(s);
                        else
                                assert_int_equal(store_commit(s), 0);
                        inside = false;
                } else if (dice == 19) {
                        store_close(s);
                        s = open_store(*state);
                }
                if (!inside && step % 25 == 0)
                        assert_counts_are_true(s, *state);
        }
        if (inside)
                assert_int_equal(store_commit(s), 0);
        assert_counts_are_true(s, *state);
        store_close(s);
}

/* The directory */

static unsigned mode_of(const Scratch *scratch, const char *name) {
        struct stat st;
        assert_int_equal(fstatat(scratch->fd, name, &st, AT_SYMLINK_NOFOLLOW), 0);
        return st.st_mode & 07777;
}

static void the_modes_do_not_depend_on_the_umask(void **state) {
        static const mode_t umasks[] = { 0, 077 };

        for (size_t i = 0; i < ELEMENTSOF(umasks); i++) {
                mode_t before = umask(umasks[i]);
                Store *s = open_store(*state);
                BundleRecord b = simple_record("a", BUNDLE_READY, 1);
                assert_int_equal(store_add(s, &b), 0);
                bundle_record_done(&b);
                umask(before);
                assert_int_equal(mode_of(*state, "state"), 0711);
                assert_int_equal(mode_of(*state, "state/state.db"), 0600);
                assert_int_equal(mode_of(*state, "state/state.db-wal"), 0600);
                assert_int_equal(mode_of(*state, "state/lock"), 0600);
                store_close(s);
                const Scratch *scratch = *state;
                char command[PATH_MAX + 32];
                (void)snprintf(command, sizeof command, "rm -r '%s/state'", scratch->path);
                assert_int_equal(system(command), 0);
        }
}

static void a_second_agent_learns_who_has_the_directory(void **state) {
        const Scratch *scratch = *state;
        char path[PATH_MAX + 8];
        Store *s = open_store(*state), *second = NULL;
        pid_t pid = 0;
        int fds[2], answer;

        (void)snprintf(path, sizeof path, "%s/state", scratch->path);
        assert_int_equal(store_open(&second, path, NULL, &pid), STORE_E_LOCKED);
        assert_null(second);
        assert_int_equal(pid, getpid());
        assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
        pid_t child = fork();
        if (child == 0) {
                Store *third;
                int r = store_open(&third, path, NULL, &pid);
                (void)!write(fds[1], &r, sizeof r); /* the parent misses it */
                (void)!write(fds[1], &pid, sizeof pid);
                _exit(0);
        }
        assert_int_equal(read(fds[0], &answer, sizeof answer), sizeof answer);
        assert_int_equal(answer, STORE_E_LOCKED);
        assert_int_equal(read(fds[0], &answer, sizeof answer), sizeof answer);
        assert_int_equal(answer, getpid());
        assert_int_equal(waitpid(child, NULL, 0), child);
        (void)close(fds[0]);
        (void)close(fds[1]);
        store_close(s);
        assert_int_equal(store_open(&second, path, NULL, &pid), 0);
        store_close(second);
}

static void another_process_reads_the_open_database(void **state) {
        Store *s = open_store(*state);
        BundleRecord b = simple_record("a", BUNDLE_SHIPPING, 7);

        assert_int_equal(store_add(s, &b), 0);
        bundle_record_done(&b);
        assert_sqlite3(*state, "SELECT id, state, path FROM bundles",
                       "a|shipping|/tmp/neuron-core-dump/x");
        assert_sqlite3(*state, "PRAGMA journal_mode", "wal");
        assert_sqlite3(*state, "PRAGMA user_version", "1");
        assert_sqlite3(*state, "PRAGMA integrity_check", "ok");
        assert_sqlite3(*state, "PRAGMA foreign_key_check", "");
        store_close(s);
}

static void add_unit(Store *s, const char *id, uint64_t ino, uint64_t born_usec, bool pinned) {
        BundleRecord b = simple_record(id, BUNDLE_DELIVERED, 1);
        b.unit_dev = 7;
        b.unit_ino = ino;
        b.unit_born_usec = born_usec;
        b.pinned = pinned;
        assert_int_equal(store_add(s, &b), 0);
        bundle_record_done(&b);
}

static int unit_is_pinned(Store *s, const char *id) {
        _cleanup_(bundle_record_done) BundleRecord b = { 0 };
        assert_int_equal(store_get(s, id, &b), 0);
        return store_unit_is_pinned(s, &b);
}

static void a_pin_protects_its_unit_and_no_other(void **state) {
        Store *s = open_store(*state);
        add_unit(s, "pinned", 11, 100, true);
        add_unit(s, "same", 11, 100, false);
        add_unit(s, "of-earlier-agent", 11, 0, false); /* it does not know when that was made */
        add_unit(s, "inode-again", 11, 200, false);
        add_unit(s, "another", 12, 100, false);
        add_unit(s, "pinned-links", 0, 0, true);
        add_unit(s, "links", 0, 0, false); /* two supplements of links are not one unit */
        assert_int_equal(unit_is_pinned(s, "pinned"), 1);
        assert_int_equal(unit_is_pinned(s, "same"), 1);
        assert_int_equal(unit_is_pinned(s, "of-earlier-agent"), 1);
        assert_int_equal(unit_is_pinned(s, "inode-again"), 0);
        assert_int_equal(unit_is_pinned(s, "another"), 0);
        assert_int_equal(unit_is_pinned(s, "pinned-links"), 1);
        assert_int_equal(unit_is_pinned(s, "links"), 0);
        store_close(s);
}

static uint64_t bytes_of(const Scratch *scratch, const char *name) {
        struct stat st;
        return fstatat(scratch->fd, name, &st, 0) < 0 ? 0 : (uint64_t)st.st_size;
}

static void a_busy_month_needs_less_than_7_mib(void **state) {
        static uint64_t prints[20000];
        Store *s = open_store(*state);
        uint64_t seed = 5, most = 0;

        for (unsigned i = 0; i < 120; i++) {
                BundleRecord b = random_record(&seed, i);
                assert_int_equal(store_add(s, &b), 0);
                for (unsigned j = 0; j < 5; j++)
                        assert_int_equal(store_update(s, &b), 0);
                for (size_t j = 0; j < ELEMENTSOF(prints); j++)
                        prints[j] = next_random(&seed);
                assert_int_equal(
                        store_set_prints(s, b.id, prints, i % 12 == 0 ? ELEMENTSOF(prints) : 50),
                        0);
                bundle_record_done(&b);
                most = MAX(most, bytes_of(*state, "state/state.db") +
                                         bytes_of(*state, "state/state.db-wal"));
        }
        assert_true(most > 1 * MIB);                   /* it was looked at */
        assert_true(most <= RESERVED_BYTES + 7 * MIB); /* whose log counts above */
        store_close(s);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(every_field_of_a_bundle_comes_back),
                TEST(an_update_changes_all_but_what_the_bundle_is),
                TEST(an_id_is_added_once_and_an_unknown_one_is_not_found),
                TEST(lists_obey_every_filter_and_page),
                TEST(a_list_after_an_unknown_id_is_not_found),
                TEST(a_list_shows_each_once_to_a_callback_that_changes_them),
                TEST(a_unit_is_found_by_its_newest_base_bundle),
                TEST(counters_add_up_and_live_as_long_as_the_state),
                TEST(counters_are_listed_by_the_beginning_of_their_name),
                TEST(what_was_discovered_is_counted_apart_from_what_became_of_it),
                TEST(bundles_of_a_failure_and_those_about_another_are_listed),
                TEST(what_ended_before_a_time_or_is_too_much_is_listed),
                TEST(rows_of_what_is_gone_are_deleted_and_still_count),
                TEST(a_bundle_of_absurd_size_does_not_spoil_the_sum),
                TEST(prints_are_united_over_a_bundle_and_its_supplements),
                TEST(a_pin_protects_its_unit_and_no_other),
                TEST(a_transaction_is_committed_as_one_or_not_at_all),
                TEST(a_change_that_fails_halfway_is_undone),
                TEST(counts_equal_a_select_after_any_sequence),
                TEST(the_modes_do_not_depend_on_the_umask),
                TEST(a_second_agent_learns_who_has_the_directory),
                TEST(another_process_reads_the_open_database),
                TEST(a_busy_month_needs_less_than_7_mib),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
