/* agent/bundle: the table of bundles over a real store. Nothing is finished before its row is on
 * disk. */
#include "tests/agent/store/bundle_fixture.h"

#include <errno.h>

#include "lib/base/log.h"
#include "lib/base/transition.h"

static char *state_dir(const Fixture *f, const char *name) {
        char *path = NULL;
        assert_true(asprintf(&path, "%s/%s", f->scratch->path, name) > 0);
        return path;
}

/* What a crash at this moment would leave: the files of the database as they are, opened somewhere
 * else. */
static BundleState state_after_crash(const Fixture *f, const char *id) {
        _cleanup_free_ char *image = state_dir(f, "image"), *from = state_dir(f, "state");
        _cleanup_free_ char *command = NULL;
        assert_true(asprintf(&command, "rm -rf '%s' && mkdir '%s' && cp '%s'/state.db* '%s'/",
                             image, image, from, image) > 0);
        assert_int_equal(system(command), 0);
        Store *s = open_store(image);
        BundleRecord rec = { 0 };
        BundleState state = store_get(s, id, &rec) == 0 ? rec.state : N_BUNDLE_STATES;
        bundle_record_done(&rec);
        store_close(s);
        return state;
}

static void on_final(Bundle *b, void *userdata) {
        Fixture *f = userdata;
        f->n_final++;
        strcpy(f->final_id, b->rec.id);
        f->final_state = b->rec.state;
        f->state_on_disk = state_after_crash(f, b->rec.id);
        assert_ptr_equal(bundle_table_find(f->table, b->rec.id), b); /* gone only afterwards */
}

/* @return a record with two deliveries, to be given away or bundle_record_done() */
static BundleRecord record(const char *id, const char *path, BundleState state) {
        BundleRecord r = { .source = strdup("dumps"),
                           .path = strdup(path),
                           .kind = SOURCE_DIRECTORY,
                           .state = state,
                           .bytes = 7,
                           .deliveries = calloc(2, sizeof *r.deliveries),
                           .n_deliveries = 2 };
        assert_non_null(r.deliveries);
        (void)snprintf(r.id, sizeof r.id, "directory-20260527T052135-%s", id);
        r.deliveries[0].destination = strdup("fsx");
        r.deliveries[1].destination = strdup("backup");
        return r;
}

static Bundle *add(Fixture *f, const char *id, const char *path, BundleState state) {
        BundleRecord r = record(id, path, state);
        Bundle *b = NULL;
        assert_int_equal(bundle_table_add(f->table, &r, NULL, &b), 0);
        assert_null(r.path); /* taken */
        bundle_record_done(&r);
        return b;
}

#define ID(hex) "directory-20260527T052135-" hex
#define ID1 ID("000000000001")
#define ID2 ID("000000000002")
#define ID3 ID("000000000003")

static void a_new_bundle_is_durable_when_add_returns_and_found_by_id_and_unit(void **state) {
        Fixture *f = *state;
        Bundle *b = add(f, "000000000001", "/tmp/a", BUNDLE_SETTLING);
        assert_int_equal(state_after_crash(f, ID1), BUNDLE_SETTLING);
        assert_int_equal(bundle_table_n(f->table), 1);
        assert_ptr_equal(bundle_table_find(f->table, ID1), b);
        assert_ptr_equal(bundle_table_find_unit(f->table, "dumps", "/tmp/a"), b);
        assert_int_equal(b->rec.first_seen_usec, T0);
        assert_int_equal(b->rec.changed_usec, T0);
        assert_null(bundle_table_find(f->table, ID2));
        assert_null(bundle_table_find(f->table, ""));
        assert_null(bundle_table_find_unit(f->table, "dumps", "/tmp/b"));
        assert_null(bundle_table_find_unit(f->table, "cores", "/tmp/a"));
        char too_long[2 * BUNDLE_ID_SIZE];
        memset(too_long, 'a', sizeof too_long);
        too_long[sizeof too_long - 1] = '\0';
        assert_null(bundle_table_find(f->table, too_long));
}

static void an_id_is_accepted_once(void **state) {
        Fixture *f = *state;
        Bundle *b = add(f, "000000000001", "/tmp/a", BUNDLE_SETTLING), *second = NULL;
        BundleRecord r = record("000000000001", "/tmp/other", BUNDLE_SETTLING);
        assert_int_equal(bundle_table_add(f->table, &r, NULL, &second), -EEXIST);
        bundle_record_done(&r);
        assert_null(second);
        assert_int_equal(bundle_table_n(f->table), 1);
        assert_int_equal(bundle_table_store_error(f->table), 0);
        assert_string_equal(b->rec.path, "/tmp/a");
        assert_null(bundle_table_find_unit(f->table, "dumps", "/tmp/other"));
}

static void a_forbidden_move_changes_nothing(void **state) {
        Fixture *f = *state;
        static const BundleState begin[] = { BUNDLE_SETTLING, BUNDLE_READY, BUNDLE_SHIPPING };
        unsigned n_refused = 0;
        transition_set_abort(false);
        for (size_t i = 0; i < ELEMENTSOF(begin); i++) {
                char hex[16], path[32];
                (void)snprintf(hex, sizeof hex, "%012zu", i);
                (void)snprintf(path, sizeof path, "/tmp/%zu", i);
                Bundle *b = add(f, hex, path, begin[i]);
                for (BundleState to = 0; to < N_BUNDLE_STATES; to++) {
                        if (transition_is_legal(&bundle_state_table, begin[i], to))
                                continue;
                        fake_clock_advance(&f->clock, USEC_PER_SEC);
                        assert_int_equal(bundle_set_state(f->table, b, to, "no"), -EPERM);
                        assert_int_equal(b->rec.state, begin[i]);
                        assert_null(b->rec.reason);
                        assert_true(b->rec.changed_usec < f->clock.now_realtime_usec);
                        assert_int_equal(state_after_crash(f, b->rec.id), begin[i]);
                        n_refused++;
                }
        }
        assert_true(n_refused >= 6);
        assert_int_equal(f->n_final, 0);
        assert_int_equal(bundle_table_n(f->table), 3);
}

static void a_move_is_written_with_its_reason_and_its_time(void **state) {
        Fixture *f = *state;
        Bundle *b = add(f, "000000000001", "/tmp/a", BUNDLE_SETTLING);
        fake_clock_advance(&f->clock, USEC_PER_MINUTE);
        assert_int_equal(bundle_set_state(f->table, b, BUNDLE_READY, "it is whole"), 0);
        BundleRecord rec = { 0 };
        assert_int_equal(store_get(f->store, ID1, &rec), 0);
        assert_int_equal(rec.state, BUNDLE_READY);
        assert_string_equal(rec.reason, "it is whole");
        assert_int_equal(rec.changed_usec, T0 + USEC_PER_MINUTE);
        assert_int_equal(rec.first_seen_usec, T0);
        bundle_record_done(&rec);
        assert_int_equal(bundle_set_state(f->table, b, BUNDLE_SHIPPING, NULL), 0);
        assert_int_equal(store_get(f->store, ID1, &rec), 0);
        assert_null(rec.reason);
        bundle_record_done(&rec);
        assert_int_equal(f->n_final, 0);
}

static void what_is_final_is_reported_after_its_row_is_durable_and_then_forgotten(void **state) {
        Fixture *f = *state;
        static const BundleState ends[] = { BUNDLE_DELIVERED, BUNDLE_QUARANTINED, BUNDLE_CANCELLED,
                                            BUNDLE_VANISHED };
        for (size_t i = 0; i < ELEMENTSOF(ends); i++) {
                char hex[16];
                (void)snprintf(hex, sizeof hex, "%012zu", i);
                Bundle *b = add(f, hex, "/tmp/a", BUNDLE_SHIPPING);
                char id[BUNDLE_ID_SIZE];
                strcpy(id, b->rec.id);
                assert_int_equal(bundle_set_state(f->table, b, ends[i], "over"), 0);
                assert_int_equal(f->n_final, i + 1);
                assert_string_equal(f->final_id, id);
                assert_int_equal(f->final_state, ends[i]);
                assert_int_equal(f->state_on_disk, ends[i]);
                assert_int_equal(bundle_table_n(f->table), 0);
                assert_null(bundle_table_find(f->table, id));
                assert_null(bundle_table_find_unit(f->table, "dumps", "/tmp/a"));
        }
        close_table(f); /* and after a stop */
        open_table(f);
        assert_int_equal(bundle_table_n(f->table), 0);
        BundleRecord rec = { 0 };
        assert_int_equal(store_get(f->store, ID("000000000000"), &rec), 0);
        assert_int_equal(rec.state, BUNDLE_DELIVERED);
        bundle_record_done(&rec);
}

static void what_cannot_be_written_is_not_finished_before_a_retry_writes_it(void **state) {
        Fixture *f = *state;
        Bundle *b = add(f, "000000000001", "/tmp/a", BUNDLE_SHIPPING);
        disk_error = -ENOSPC;
        assert_int_equal(bundle_set_state(f->table, b, BUNDLE_DELIVERED, "proven"), 0);
        assert_int_equal(f->n_store_errors, 1);
        assert_int_equal(f->n_final, 0);
        assert_int_equal(b->rec.state, BUNDLE_DELIVERED);
        assert_ptr_equal(bundle_table_find(f->table, ID1), b);
        assert_int_equal(bundle_table_store_error(f->table), -ENOSPC);
        assert_int_equal(state_after_crash(f, ID1), BUNDLE_SHIPPING);

        disk_error = -EIO;
        assert_false(bundle_table_retry(f->table));
        assert_int_equal(f->n_final, 0);
        assert_int_equal(bundle_table_store_error(f->table), -EIO);
        assert_ptr_equal(bundle_table_find(f->table, ID1), b);

        disk_error = 0;
        assert_true(bundle_table_retry(f->table));
        assert_int_equal(f->n_final, 1);
        assert_int_equal(f->final_state, BUNDLE_DELIVERED);
        assert_int_equal(f->state_on_disk, BUNDLE_DELIVERED);
        assert_null(bundle_table_find(f->table, ID1));
        assert_int_equal(bundle_table_store_error(f->table), 0);
        assert_true(bundle_table_retry(f->table)); /* nothing is told twice */
        assert_int_equal(f->n_final, 1);
}

static void a_retry_writes_everything_that_is_behind(void **state) {
        Fixture *f = *state;
        Bundle *settling = add(f, "000000000001", "/tmp/a", BUNDLE_SETTLING);
        Bundle *shipping = add(f, "000000000002", "/tmp/b", BUNDLE_SHIPPING);
        Bundle *other = add(f, "000000000003", "/tmp/c", BUNDLE_SHIPPING);
        disk_error = -ENOSPC;
        assert_int_equal(bundle_set_state(f->table, settling, BUNDLE_READY, NULL), 0);
        assert_int_equal(bundle_set_state(f->table, shipping, BUNDLE_QUARANTINED, "no good"), 0);
        other->rec.pinned = true;
        bundle_save(f->table, other);
        assert_int_equal(f->n_store_errors, 3);
        assert_int_equal(state_after_crash(f, ID1), BUNDLE_SETTLING);

        disk_error = 0;
        assert_true(bundle_table_retry(f->table));
        assert_int_equal(state_after_crash(f, ID1), BUNDLE_READY);
        assert_int_equal(f->n_final, 1);
        assert_string_equal(f->final_id, ID2);
        BundleRecord rec = { 0 };
        assert_int_equal(store_get(f->store, ID3, &rec), 0);
        assert_true(rec.pinned);
        bundle_record_done(&rec);
        assert_int_equal(bundle_table_n(f->table), 2);
}

static void a_crash_before_the_retry_leaves_a_bundle_that_is_shipped_again(void **state) {
        Fixture *f = *state;
        Bundle *b = add(f, "000000000001", "/tmp/a", BUNDLE_SHIPPING);
        disk_error = -EIO;
        assert_int_equal(bundle_set_state(f->table, b, BUNDLE_DELIVERED, NULL), 0);
        close_table(f);
        disk_error = 0;
        open_table(f);
        b = bundle_table_find(f->table, ID1);
        assert_non_null(b);
        assert_int_equal(b->rec.state, BUNDLE_READY);
        assert_int_equal(f->n_final, 0);
}

static void after_a_restart_what_was_being_shipped_waits_again(void **state) {
        Fixture *f = *state;
        Bundle *b = add(f, "000000000001", "/tmp/a", BUNDLE_SHIPPING);
        b->rec.deliveries[0].state = DELIVERY_DONE;
        b->rec.deliveries[0].proof = PROOF_READBACK;
        b->rec.deliveries[1].state = DELIVERY_SHIPPING;
        b->rec.deliveries[1].attempts = 3;
        bundle_save(f->table, b);
        (void)add(f, "000000000002", "/tmp/b", BUNDLE_SETTLING);
        close_table(f);

        open_table(f);
        assert_int_equal(bundle_table_n(f->table), 2);
        b = bundle_table_find_unit(f->table, "dumps", "/tmp/a");
        assert_non_null(b);
        assert_int_equal(b->rec.state, BUNDLE_READY);
        assert_int_equal(b->rec.n_deliveries, 2);
        assert_int_equal(b->rec.deliveries[0].state, DELIVERY_DONE);
        assert_int_equal(b->rec.deliveries[0].proof, PROOF_READBACK);
        assert_int_equal(b->rec.deliveries[1].state, DELIVERY_PENDING);
        assert_int_equal(b->rec.deliveries[1].attempts, 3);
        assert_int_equal(bundle_table_find(f->table, ID2)->rec.state, BUNDLE_SETTLING);
}

static void a_delivery_goes_from_pending_by_shipping_to_done_and_stays_there(void **state) {
        /* rows: from; columns: to; pending, shipping, done */
        static const char moves[N_DELIVERY_STATES][N_DELIVERY_STATES + 1] = { ".x.", "x.x", "..." };
        Fixture *f = *state;
        Bundle *b = add(f, "000000000001", "/tmp/a", BUNDLE_SHIPPING);
        transition_set_abort(false);
        for (DeliveryState from = 0; from < N_DELIVERY_STATES; from++)
                for (DeliveryState to = 0; to < N_DELIVERY_STATES; to++) {
                        DeliveryRecord *d = &b->rec.deliveries[0];
                        bool allowed = moves[from][to] == 'x';
                        d->state = from;
                        assert_int_equal(bundle_set_delivery_state(b, d, to), allowed ? 0 : -EPERM);
                        assert_int_equal(d->state, allowed ? to : from);
                }
        assert_false(
                transition_is_legal(&delivery_state_table, N_DELIVERY_STATES, DELIVERY_PENDING));
        assert_false(
                transition_is_legal(&delivery_state_table, DELIVERY_PENDING, N_DELIVERY_STATES));
}

static void assert_order(const Fixture *f, const char *const *ids, size_t n) {
        size_t i = 0;
        LIST_FOREACH (l, bundle_table_all(f->table)) {
                assert_true(i < n);
                assert_string_equal(CONTAINER_OF(l, Bundle, link)->rec.id, ids[i]);
                i++;
        }
        assert_int_equal(i, n);
}

static void the_oldest_comes_first_before_and_after_a_restart(void **state) {
        Fixture *f = *state;
        static const char *const hex[] = { "000000000003", "000000000001", "000000000002" };
        for (size_t i = 0; i < ELEMENTSOF(hex); i++) {
                char path[32];
                (void)snprintf(path, sizeof path, "/tmp/%zu", i);
                (void)add(f, hex[i], path, BUNDLE_SETTLING);
                fake_clock_advance(&f->clock, USEC_PER_SEC);
        }
        static const char *const all[] = { ID3, ID1, ID2 };
        assert_order(f, all, 3);
        close_table(f);
        open_table(f);
        assert_order(f, all, 3);
        Bundle *first = bundle_table_find(f->table, ID3);
        assert_int_equal(bundle_set_state(f->table, first, BUNDLE_CANCELLED, NULL), 0);
        assert_order(f, all + 1, 2);
}

static void only_what_is_quarantined_in_the_store_can_be_revived_and_goes_on(void **state) {
        Fixture *f = *state;
        Bundle *b = add(f, "000000000001", "/tmp/a", BUNDLE_SHIPPING), *revived = NULL;
        assert_int_equal(bundle_set_state(f->table, b, BUNDLE_QUARANTINED, "20 failures"), 0);
        assert_int_equal(bundle_table_revive(f->table, ID2, NULL, &revived), -ENOENT);

        /* its unit is being worked on under another name */
        b = add(f, "000000000002", "/tmp/a", BUNDLE_SETTLING);
        assert_int_equal(bundle_table_revive(f->table, ID1, NULL, &revived), -EEXIST);
        assert_ptr_equal(bundle_table_find_unit(f->table, "dumps", "/tmp/a"), b);
        assert_int_equal(bundle_set_state(f->table, b, BUNDLE_CANCELLED, NULL), 0);

        assert_int_equal(bundle_table_revive(f->table, ID1, NULL, &revived), 0);
        assert_int_equal(revived->rec.state, BUNDLE_QUARANTINED);
        assert_string_equal(revived->rec.reason, "20 failures");
        assert_ptr_equal(bundle_table_find(f->table, ID1), revived);
        assert_int_equal(bundle_set_state(f->table, revived, BUNDLE_READY, "brought back"), 0);
        assert_int_equal(state_after_crash(f, ID1), BUNDLE_READY);
        assert_int_equal(bundle_table_revive(f->table, ID1, NULL, &revived), -EEXIST);
}

static void after_a_redelivery_a_bundle_has_the_origin_that_it_had(void **state) {
        static const struct {
                const char *supplement_of;
                uint64_t unit_ino;
                Origin origin;
        } cases[] = {
                { "", 7, ORIGIN_FOUND },
                { ID3, 7, ORIGIN_SUPPLEMENT },
                { ID3, 0, ORIGIN_LINKS },
        };
        Fixture *f = *state;
        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                static const char *const ids[] = { "000000000001", "000000000002", "000000000004" };
                BundleRecord rec = record(ids[i], "/tmp/a", BUNDLE_SHIPPING), stored = { 0 };
                char id[BUNDLE_ID_SIZE];
                Bundle *b = NULL;
                (void)strcpy(id, rec.id);
                (void)strcpy(rec.supplement_of, cases[i].supplement_of);
                rec.unit_ino = cases[i].unit_ino;
                rec.origin = cases[i].origin;
                assert_int_equal(bundle_table_add(f->table, &rec, NULL, &b), 0);
                assert_int_equal(bundle_set_state(f->table, b, BUNDLE_DELIVERED, NULL), 0);
                char *more[] = { (char *)"second", NULL };
                assert_int_equal(bundle_table_redeliver(f->table, id, NULL, more), 0);
                b = bundle_table_find(f->table, id);
                assert_int_equal(b->rec.origin, ORIGIN_REDELIVERY);
                assert_int_equal(bundle_set_state(f->table, b, BUNDLE_CANCELLED, NULL), 0);
                assert_int_equal(store_get(f->store, id, &stored), 0);
                assert_int_equal(stored.origin, cases[i].origin);
                bundle_record_done(&stored);
        }
}

static void held_descriptors_are_closed_with_the_bundle(void **state) {
        Fixture *f = *state;
        Bundle *b = add(f, "000000000001", "/tmp/a", BUNDLE_SHIPPING);
        int fd = open(f->scratch->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_true(fd >= 0);
        b->unit.held.items = calloc(1, sizeof *b->unit.held.items);
        assert_non_null(b->unit.held.items);
        b->unit.held.items[0] = (HeldFile){ .path = strdup("x"), .fd = fd };
        b->unit.held.n = 1;
        assert_int_equal(bundle_set_state(f->table, b, BUNDLE_DELIVERED, NULL), 0);
        assert_int_equal(fcntl(fd, F_GETFD), -1);
        assert_int_equal(errno, EBADF);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        const struct CMUnitTest tests[] = {
                TEST(a_new_bundle_is_durable_when_add_returns_and_found_by_id_and_unit),
                TEST(an_id_is_accepted_once),
                TEST(a_forbidden_move_changes_nothing),
                TEST(a_move_is_written_with_its_reason_and_its_time),
                TEST(what_is_final_is_reported_after_its_row_is_durable_and_then_forgotten),
                TEST(what_cannot_be_written_is_not_finished_before_a_retry_writes_it),
                TEST(a_retry_writes_everything_that_is_behind),
                TEST(a_crash_before_the_retry_leaves_a_bundle_that_is_shipped_again),
                TEST(after_a_restart_what_was_being_shipped_waits_again),
                TEST(a_delivery_goes_from_pending_by_shipping_to_done_and_stays_there),
                TEST(the_oldest_comes_first_before_and_after_a_restart),
                TEST(only_what_is_quarantined_in_the_store_can_be_revived_and_goes_on),
                TEST(after_a_redelivery_a_bundle_has_the_origin_that_it_had),
                TEST(held_descriptors_are_closed_with_the_bundle),
        };
        log_setup(LOG_FORMAT_TEXT, LOG_CRIT); /* errors are what is provoked here */
        return cmocka_run_group_tests_name("agent/bundle", tests, NULL, NULL);
}
