/* The table of bundles while the state directory fails: what has no row is not there, nothing is
 * finished before its row says so, and the counts add up at every moment. */
#include "tests/agent/store/bundle_fixture.h"

#include <errno.h>

#include "lib/base/log.h"

int __real_store_add(Store *s, const BundleRecord *b);
int __wrap_store_add(Store *s, const BundleRecord *b);
int __wrap_store_add(Store *s, const BundleRecord *b) {
        return disk_error < 0 ? disk_error : __real_store_add(s, b);
}

int __real_store_commit(Store *s);
int __wrap_store_commit(Store *s);
int __wrap_store_commit(Store *s) {
        if (disk_error == 0)
                return __real_store_commit(s);
        store_rollback(s);
        return disk_error;
}

static int state_in_store(const Fixture *f, const char *id) {
        BundleRecord rec = { 0 };
        int state = store_get(f->store, id, &rec) == 0 ? (int)rec.state : -1;
        bundle_record_done(&rec);
        return state;
}

static void on_final(Bundle *b, void *userdata) {
        Fixture *f = userdata;
        f->n_final++;
        f->was_durable = f->was_durable && state_in_store(f, b->rec.id) == (int)b->rec.state;
        if (!f->saves_others)
                return;
        LIST_FOREACH (l, bundle_table_all(f->table))
                if (!bundle_state_is_inactive(CONTAINER_OF(l, Bundle, link)->rec.state))
                        bundle_save(f->table, CONTAINER_OF(l, Bundle, link));
}

static BundleRecord record(unsigned number, BundleState state) {
        BundleRecord r = { .source = strdup(number % 2 ? "odd" : "even"),
                           .kind = SOURCE_DIRECTORY,
                           .state = state,
                           .bytes = 10 + number };
        assert_true(asprintf(&r.path, "/tmp/%u", number) > 0);
        (void)snprintf(r.id, sizeof r.id, "directory-20260527T052135-%012u", number);
        return r;
}

/* @return what bundle_table_add() does */
static int try_add(Fixture *f, unsigned number, BundleState state, Bundle **ret) {
        BundleRecord r = record(number, state);
        int error = bundle_table_add(f->table, &r, NULL, ret);
        bundle_record_done(&r);
        return error;
}

static Bundle *add(Fixture *f, unsigned number, BundleState state) {
        Bundle *b = NULL;
        assert_int_equal(try_add(f, number, state, &b), 0);
        return b;
}

static StoreCounts counts_of(Fixture *f) {
        StoreCounts counts;
        bundle_table_counts(f->table, &counts);
        assert_int_equal(store_counts_difference(&counts), 0);
        return counts;
}

static void a_bundle_that_cannot_be_written_is_not_there(void **state) {
        static const int errors[] = { -ENOSPC, -EIO, -EROFS, -EBUSY };
        Fixture *f = *state;
        Bundle *b = NULL;
        for (size_t i = 0; i < ELEMENTSOF(errors); i++) {
                disk_error = errors[i];
                assert_int_equal(try_add(f, 1, BUNDLE_SETTLING, &b), errors[i]);
                assert_null(b);
                assert_int_equal(bundle_table_store_error(f->table), errors[i]);
                assert_non_null(strstr(bundle_table_note(f->table), "no new bundle is accepted"));
                assert_true(f->n_store_errors > i);
                assert_null(bundle_table_find_unit(f->table, "odd", "/tmp/1"));
                assert_int_equal(counts_of(f).discovered, 0);
                disk_error = 0;
                assert_true(bundle_table_retry(f->table));
                assert_null(bundle_table_note(f->table));
        }
        (void)add(f, 1, BUNDLE_SETTLING); /* found again */
        assert_int_equal(counts_of(f).discovered, 1);
}

static void what_ends_while_its_row_cannot_be_written_is_finished_when_it_is(void **state) {
        Fixture *f = *state;
        Bundle *b = add(f, 1, BUNDLE_SETTLING);
        char id[BUNDLE_ID_SIZE];
        strcpy(id, b->rec.id);
        disk_error = -EIO;
        static const BundleState way[] = { BUNDLE_READY, BUNDLE_SHIPPING, BUNDLE_DELIVERED };
        for (size_t i = 0; i < ELEMENTSOF(way); i++) {
                assert_int_equal(bundle_set_state(f->table, b, way[i], NULL), 0);
                assert_false(bundle_is_written(b));
                StoreCounts counts = counts_of(f); /* as the rows have it */
                assert_int_equal(counts.discovered, 1);
                assert_int_equal(counts.bundles[BUNDLE_SETTLING], 1);
        }
        assert_false(bundle_table_retry(f->table));
        assert_int_equal(f->n_final, 0); /* its links are still there */
        assert_int_equal(bundle_table_n(f->table), 1);
        assert_int_equal(bundle_table_n_open(f->table), 0);

        disk_error = 0;
        assert_true(bundle_table_retry(f->table));
        assert_int_equal(f->n_final, 1);
        assert_true(f->was_durable);
        assert_int_equal(state_in_store(f, id), BUNDLE_DELIVERED);
        assert_int_equal(bundle_table_n(f->table), 0);
        assert_int_equal(counts_of(f).bundles[BUNDLE_DELIVERED], 1);
        assert_null(bundle_table_note(f->table));
}

static void a_crash_forgets_what_is_not_written(void **state) {
        Fixture *f = *state;
        Bundle *b = add(f, 1, BUNDLE_SHIPPING);
        disk_error = -EIO;
        assert_int_equal(bundle_set_state(f->table, b, BUNDLE_DELIVERED, NULL), 0);
        close_table(f);
        disk_error = 0;
        open_table(f);
        assert_int_equal(f->n_final, 0);
        assert_int_equal(bundle_table_n(f->table), 1); /* it is delivered again, and found there */
        assert_int_equal(counts_of(f).discovered, 1);
}

static void the_end_of_one_may_save_others(void **state) {
        Fixture *f = *state;
        Bundle *b[600];
        for (unsigned i = 0; i < ELEMENTSOF(b); i++)
                b[i] = add(f, i, BUNDLE_SHIPPING);
        disk_error = -ENOSPC;
        for (unsigned i = 0; i < ELEMENTSOF(b); i++)
                if (i % 3 == 0)
                        assert_int_equal(bundle_set_state(f->table, b[i], BUNDLE_QUARANTINED, NULL),
                                         0);
                else
                        bundle_save(f->table, b[i]);
        disk_error = 0;
        f->saves_others = true;
        assert_true(bundle_table_retry(f->table));
        assert_int_equal(f->n_final, 200);
        assert_true(f->was_durable);
        StoreCounts counts;
        store_counts(f->store, &counts);
        assert_int_equal(counts.bundles[BUNDLE_SHIPPING], 400);
        assert_int_equal(counts.bundles[BUNDLE_QUARANTINED], 200);
}

static uint64_t next_random(uint64_t *seed) {
        *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        return *seed >> 33;
}

/* @return a bundle that may still move; NULL = none was met */
static Bundle *any_open(Fixture *f, uint64_t *seed) {
        uint64_t n = bundle_table_n(f->table), at = n ? next_random(seed) % n : 0;
        LIST_FOREACH (l, bundle_table_all(f->table)) {
                Bundle *b = CONTAINER_OF(l, Bundle, link);
                if (at-- == 0)
                        return bundle_state_is_inactive(b->rec.state) ? NULL : b;
        }
        return NULL;
}

static void the_counts_add_up_whatever_fails_and_whenever(void **state) {
        static const int errors[] = { 0, 0, 0, -ENOSPC, -EIO, -EBUSY, -EROFS };
        Fixture *f = *state;
        for (uint64_t round = 1; round <= 20; round++) {
                uint64_t seed = round, n_known = counts_of(f).discovered;
                print_message("# seed %u\n", (unsigned)round);
                for (unsigned step = 0; step < 300; step++) {
                        uint64_t dice = next_random(&seed) % 12;
                        Bundle *b = NULL;
                        if (dice < 4) {
                                unsigned number = (unsigned)(round * 1000 + step);
                                n_known += try_add(f, number, BUNDLE_SETTLING, &b) == 0;
                        } else if (dice < 9 && (b = any_open(f, &seed))) {
                                BundleState to =
                                        (BundleState)(next_random(&seed) % N_BUNDLE_STATES);
                                b->rec.bytes += next_random(&seed) % 1000;
                                if (transition_is_legal(&bundle_state_table, b->rec.state, to))
                                        (void)bundle_set_state(f->table, b, to, NULL);
                                else
                                        bundle_save(f->table, b);
                        } else if (dice == 9)
                                disk_error = errors[next_random(&seed) % ELEMENTSOF(errors)];
                        else if (dice == 10)
                                (void)bundle_table_retry(f->table);
                        assert_int_equal(counts_of(f).discovered, n_known);
                }
                disk_error = 0;
                assert_true(bundle_table_retry(f->table));
                StoreCounts shown = counts_of(f), stored;
                store_counts(f->store, &stored);
                assert_memory_equal(&shown, &stored, sizeof shown);
                close_table(f);
                open_table(f);
        }
        assert_true(f->n_final > 100);
        assert_true(f->was_durable);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        const struct CMUnitTest tests[] = {
                TEST(a_bundle_that_cannot_be_written_is_not_there),
                TEST(what_ends_while_its_row_cannot_be_written_is_finished_when_it_is),
                TEST(a_crash_forgets_what_is_not_written),
                TEST(the_end_of_one_may_save_others),
                TEST(the_counts_add_up_whatever_fails_and_whenever),
        };
        log_setup(LOG_FORMAT_TEXT, LOG_CRIT); /* errors are what is provoked here */
        return cmocka_run_group_tests_name("agent/bundle, trouble", tests, NULL, NULL);
}
