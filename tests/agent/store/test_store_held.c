/* What retention asks the store: whose links are still held, and what was shipped in a bundle
 * itself. */
#include <errno.h>

#include "tests/agent/store/store_test.h"

static int add_id(BundleRecord *b, void *userdata) {
        char *text = userdata;
        size_t n = strlen(text);
        (void)snprintf(text + n, 256 - n, "%s ", b->id);
        return 0;
}

static void assert_listed(Store *s, const StoreFilter *f, const char *expected) {
        char text[256] = "";
        assert_int_equal(store_list(s, f, add_id, text), 0);
        assert_string_equal(text, expected);
}

static void only_what_has_ended_and_is_held_is_listed_oldest_first(void **state) {
        static const struct {
                const char *id;
                BundleState state;
                bool held;
        } rows[] = { { "d1", BUNDLE_DELIVERED, true },  { "d2", BUNDLE_DELIVERED, false },
                     { "d0", BUNDLE_DELIVERED, true },  { "r", BUNDLE_READY, true },
                     { "e1", BUNDLE_EVICTED, true },    { "e2", BUNDLE_EVICTED, false },
                     { "q", BUNDLE_QUARANTINED, true }, { "c", BUNDLE_CANCELLED, true } };
        Store *s = open_store(*state);
        for (size_t i = 0; i < ELEMENTSOF(rows); i++) {
                BundleRecord b = simple_record(rows[i].id, rows[i].state, i);
                b.links_held = rows[i].held;
                assert_int_equal(store_add(s, &b), 0);
                bundle_record_done(&b);
        }
        StoreFilter f = { .state = BUNDLE_DELIVERED, .held_only = true };
        assert_listed(s, &f, "d1 d0 ");
        f.source = "dumps";
        assert_listed(s, &f, "d1 d0 ");
        f.after = "d1";
        assert_listed(s, &f, "d0 ");
        f.source = "others";
        assert_listed(s, &f, "");
        f = (StoreFilter){ .state = BUNDLE_EVICTED, .held_only = true };
        assert_listed(s, &f, "e1 ");
        f.state = BUNDLE_READY;
        assert_int_equal(store_list(s, &f, add_id, NULL), -EINVAL);
        f.state = -1;
        assert_int_equal(store_list(s, &f, add_id, NULL), -EINVAL);
        store_close(s);
}

static void the_list_of_held_ones_does_not_go_through_all_delivered(void **state) {
        store_close(open_store(*state));
        char *plan = ask_sqlite3(*state, "state.db",
                                 "EXPLAIN QUERY PLAN SELECT * FROM bundles WHERE state = "
                                 "'delivered' AND links_held = 1 ORDER BY first_seen_usec, id");
        assert_non_null(strstr(plan, "bundles_held"));
        free(plan);
}

static void own_prints_are_without_those_of_supplements(void **state) {
        static const uint64_t base[] = { 9, 1, 1 }, first[] = { 5, 9 }, own[] = { 1, 9 };
        Store *s = open_store(*state);
        uint64_t *got = NULL;
        size_t n = 99;
        BundleRecord a = simple_record("a", BUNDLE_DELIVERED, 1),
                     b = simple_record("a-s1", BUNDLE_READY, 2);
        (void)strcpy(b.supplement_of, "a");
        assert_int_equal(store_add(s, &a), 0);
        assert_int_equal(store_add(s, &b), 0);
        bundle_record_done(&a);
        bundle_record_done(&b);
        assert_int_equal(store_get_own_prints(s, "a", &got, &n), 0);
        assert_int_equal(n, 0);
        assert_null(got);
        assert_int_equal(store_set_prints(s, "a", base, 3), 0);
        assert_int_equal(store_set_prints(s, "a-s1", first, 2), 0);
        assert_int_equal(store_get_own_prints(s, "a", &got, &n), 0);
        assert_int_equal(n, 2);
        assert_memory_equal(got, own, sizeof own);
        free(got);
        store_close(s);
}

int main(void) {
        const struct CMUnitTest tests[] = {
#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)
                TEST(only_what_has_ended_and_is_held_is_listed_oldest_first),
                TEST(the_list_of_held_ones_does_not_go_through_all_delivered),
                TEST(own_prints_are_without_those_of_supplements),
        };
        return cmocka_run_group_tests_name("store_held", tests, NULL, NULL);
}
