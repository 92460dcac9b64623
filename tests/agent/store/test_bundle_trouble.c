/* agent/bundle while the state directory is full: bundles are worked on without rows, nothing is finished on the strength of that, and what
 * is shown adds up at every moment. */
#include "tests/agent/store/bundle_fixture.h"

#include <errno.h>
#include <sys/mount.h>

#include "lib/base/log.h"
#include "tests/harness/mounts.h"
#include "tests/harness/skip.h"

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
                if (!bundle_state_is_final(CONTAINER_OF(l, Bundle, link)->rec.state))
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

static void a_bundle_without_a_row_is_worked_on_but_finished_only_when_it_has_one(void **state) {
        Fixture *f = *state;
        disk_error = -ENOSPC;
        Bundle *b = add(f, 1, BUNDLE_SETTLING);
        char id[BUNDLE_ID_SIZE];
        strcpy(id, b->rec.id);
        assert_true(b->rowless && b->unsaved);
        assert_int_equal(state_in_store(f, id), -1);
        assert_int_equal(bundle_table_store_error(f->table), -ENOSPC);
        assert_non_null(strstr(bundle_table_note(f->table), "full"));
        assert_true(f->n_store_errors > 0);
        assert_ptr_equal(bundle_table_find_unit(f->table, "odd", "/tmp/1"), b);

        static const BundleState way[] = { BUNDLE_READY, BUNDLE_SHIPPING, BUNDLE_DELIVERED };
        for (size_t i = 0; i < ELEMENTSOF(way); i++) {
                assert_int_equal(bundle_set_state(f->table, b, way[i], NULL), 0);
                StoreCounts counts = counts_of(f);
                assert_int_equal(counts.discovered, 1);
                assert_int_equal(counts.bundles[way[i]], 1);
                assert_int_equal(counts.bytes[way[i]], 11);
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
        assert_int_equal(counts_of(f).discovered, 1);
        assert_null(bundle_table_note(f->table));
}

static void a_crash_forgets_what_has_no_row(void **state) {
        Fixture *f = *state;
        Bundle *b = add(f, 1, BUNDLE_SHIPPING);
        disk_error = -EIO;
        (void)add(f, 2, BUNDLE_SHIPPING);
        assert_int_equal(bundle_set_state(f->table, b, BUNDLE_DELIVERED, NULL), 0);
        close_table(f);
        disk_error = 0;
        open_table(f);
        assert_int_equal(f->n_final, 0);
        assert_int_equal(bundle_table_n(f->table), 1);
        assert_int_equal(counts_of(f).discovered, 1);
        (void)add(f, 2, BUNDLE_SETTLING); /* found again */
        assert_int_equal(counts_of(f).discovered, 2);
}

static void in_state(const Fixture *f, const char *command) {
        char text[PATH_MAX + 256];
        (void)snprintf(text, sizeof text, "cd '%s/state' && { %s; } > /dev/null 2>&1",
                       f->scratch->path, command);
        (void)!system(text); /* filling a disk fails in the end, as it should */
}

/* The disk is full for a moment, between one change and the next. */
static void a_row_is_not_written_before_what_was_put_off_of_it(void **state) {
        Fixture *f = *state;
        char path[PATH_MAX + 8], id[BUNDLE_ID_SIZE];
        static const uint64_t shipped[] = { 1, 2 };
        _cleanup_free_ uint64_t *prints = NULL;
        size_t n = 0;
        if (!mounts_allowed())
                SKIP_BECAUSE("only root may mount");
        close_table(f);
        (void)snprintf(path, sizeof path, "%s/state", f->scratch->path);
        assert_int_equal(mount("tmpfs", path, "tmpfs", 0, "size=2m"), 0);
        open_table(f);
        Bundle *b = add(f, 1, BUNDLE_SHIPPING);
        strcpy(id, b->rec.id);
        in_state(f,
                 "sqlite3 state.db 'PRAGMA wal_checkpoint(TRUNCATE)'; dd if=/dev/zero of=filler");
        assert_int_equal(store_put_prints(f->store, id, shipped, ELEMENTSOF(shipped)), 0);
        assert_int_equal(store_trouble(f->store), -ENOSPC);
        in_state(f, "rm filler");
        assert_int_equal(bundle_set_state(f->table, b, BUNDLE_DELIVERED, NULL), 0);
        assert_int_equal(state_in_store(f, id), BUNDLE_SHIPPING);
        assert_int_equal(counts_of(f).bundles[BUNDLE_DELIVERED], 1);
        assert_true(bundle_table_retry(f->table));
        assert_int_equal(state_in_store(f, id), BUNDLE_DELIVERED);
        close_table(f);
        open_table(f);
        assert_int_equal(store_get_own_prints(f->store, id, &prints, &n), 0);
        assert_int_equal(n, ELEMENTSOF(shipped));
        close_table(f);
        assert_int_equal(umount2(path, MNT_DETACH), 0);
        open_table(f);
}

static void only_so_many_are_worked_on_without_a_row(void **state) {
        Fixture *f = *state;
        Bundle *b;
        disk_error = -ENOSPC;
        for (unsigned i = 0; i < BUNDLE_ROWLESS_MAX; i++)
                (void)add(f, i, BUNDLE_SHIPPING);
        assert_int_equal(try_add(f, 5000, BUNDLE_SETTLING, &b), -ENOSPC);
        assert_int_equal(bundle_table_n(f->table), BUNDLE_ROWLESS_MAX);
        assert_int_equal(counts_of(f).discovered, BUNDLE_ROWLESS_MAX);
        b = CONTAINER_OF(bundle_table_all(f->table)->next, Bundle, link);
        assert_int_equal(bundle_set_state(f->table, b, BUNDLE_CANCELLED, NULL), 0);
        assert_int_equal(try_add(f, 5000, BUNDLE_SETTLING, &b), -ENOSPC); /* it is there still */

        disk_error = 0;
        assert_true(bundle_table_retry(f->table));
        assert_int_equal(f->n_final, 1);
        assert_int_equal(bundle_table_n(f->table), BUNDLE_ROWLESS_MAX - 1);
        disk_error = -ENOSPC;
        (void)add(f, 5000, BUNDLE_SETTLING);
        disk_error = 0;
        StoreCounts counts;
        assert_true(bundle_table_retry(f->table));
        store_counts(f->store, &counts);
        assert_int_equal(counts.discovered, BUNDLE_ROWLESS_MAX + 1);
}

static void another_failure_is_told_and_nothing_is_taken(void **state) {
        Fixture *f = *state;
        Bundle *b;
        disk_error = -EBUSY;
        assert_int_equal(try_add(f, 1, BUNDLE_SETTLING, &b), -EBUSY);
        assert_int_equal(bundle_table_n(f->table), 0);
        assert_int_equal(bundle_table_store_error(f->table), -EBUSY);
        disk_error = 0;
        assert_true(bundle_table_retry(f->table));
        assert_int_equal(bundle_table_store_error(f->table), 0);
}

static void what_a_failed_transaction_would_have_added_is_kept_without_rows(void **state) {
        Fixture *f = *state;
        assert_int_equal(store_begin(f->store), 0);
        Bundle *a = add(f, 1, BUNDLE_SETTLING), *b = add(f, 2, BUNDLE_SETTLING);
        store_rollback(f->store);
        assert_false(bundle_table_keep_rowless(f->table, a, -EBUSY));
        bundle_table_forget(f->table, a);
        assert_true(bundle_table_keep_rowless(f->table, b, -ENOSPC));
        assert_int_equal(counts_of(f).discovered, 1);
        assert_true(bundle_table_retry(f->table));
        assert_false(b->rowless);
        assert_int_equal(state_in_store(f, b->rec.id), BUNDLE_SETTLING);
        assert_int_equal(counts_of(f).discovered, 1);
}

static void what_is_told_of_one_may_save_others(void **state) {
        Fixture *f = *state;
        disk_error = -ENOSPC;
        for (unsigned i = 0; i < 600; i++) {
                Bundle *b = add(f, i, BUNDLE_SHIPPING);
                if (i % 3 == 0)
                        assert_int_equal(bundle_set_state(f->table, b, BUNDLE_QUARANTINED, NULL),
                                         0);
        }
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

typedef struct Listed {
        char text[256];
        char last[BUNDLE_ID_SIZE];
} Listed;

static int note_listed(const BundleRecord *b, void *userdata) {
        Listed *l = userdata;
        size_t n = strlen(l->text);
        (void)snprintf(l->text + n, sizeof l->text - n, "%lu:%c ",
                       strtoul(strrchr(b->id, '-') + 1, NULL, 10), bundle_state_name(b->state)[1]);
        strcpy(l->last, b->id);
        return 0;
}

static void assert_listed(Fixture *f, const StoreFilter *filter, const char *expected) {
        Listed l = { 0 };
        assert_int_equal(bundle_table_list(f->table, filter, note_listed, &l), 0);
        assert_string_equal(l.text, expected);
}

static void what_is_listed_is_what_is_known_here(void **state) {
        Fixture *f = *state;
        Bundle *b[6];
        for (unsigned i = 0; i < 3; i++)
                b[i] = add(f, i, BUNDLE_SHIPPING);
        disk_error = -ENOSPC;
        for (unsigned i = 3; i < 6; i++)
                b[i] = add(f, i, BUNDLE_SETTLING);
        assert_int_equal(bundle_set_state(f->table, b[1], BUNDLE_DELIVERED, NULL), 0);

        assert_listed(f, &(StoreFilter){ .state = -1 }, "0:h 2:h 3:e 4:e 5:e 1:e ");
        assert_listed(f, &(StoreFilter){ .state = BUNDLE_SHIPPING }, "0:h 2:h ");
        assert_listed(f, &(StoreFilter){ .state = BUNDLE_DELIVERED }, "1:e ");
        assert_listed(f, &(StoreFilter){ .state = -1, .source = "odd" }, "3:e 5:e 1:e ");
        assert_int_equal(bundle_table_list(f->table,
                                           &(StoreFilter){ .state = -1, .after = "nobody" },
                                           note_listed, &(Listed){ 0 }),
                         STORE_E_NOT_FOUND);

        /* Page by page: each once, whatever the size of a page. */
        for (unsigned limit = 1; limit <= 7; limit++) {
                Listed all = { 0 };
                for (;;) {
                        size_t before = strlen(all.text);
                        StoreFilter page = { .state = -1,
                                             .after = before ? strdup(all.last) : NULL,
                                             .limit = limit };
                        assert_int_equal(bundle_table_list(f->table, &page, note_listed, &all), 0);
                        free((char *)page.after);
                        if (strlen(all.text) < before + 4 * limit)
                                break;
                }
                assert_string_equal(all.text, "0:h 2:h 3:e 4:e 5:e 1:e ");
        }
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
                        return bundle_state_is_final(b->rec.state) ? NULL : b;
        }
        return NULL;
}

static void what_is_shown_adds_up_whatever_fails_and_whenever(void **state) {
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
                                if (bundle_state_may_follow(b->rec.state, to))
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
                TEST(a_bundle_without_a_row_is_worked_on_but_finished_only_when_it_has_one),
                TEST(a_crash_forgets_what_has_no_row),
                TEST(a_row_is_not_written_before_what_was_put_off_of_it),
                TEST(only_so_many_are_worked_on_without_a_row),
                TEST(another_failure_is_told_and_nothing_is_taken),
                TEST(what_a_failed_transaction_would_have_added_is_kept_without_rows),
                TEST(what_is_told_of_one_may_save_others),
                TEST(what_is_listed_is_what_is_known_here),
                TEST(what_is_shown_adds_up_whatever_fails_and_whenever),
        };
        (void)mounts_allowed(); /* before any directory is opened: descriptors keep the mounts they were opened in */
        log_setup(LOG_FORMAT_TEXT, LOG_CRIT); /* errors are what is provoked here */
        return cmocka_run_group_tests_name("agent/bundle, trouble", tests, NULL, NULL);
}
