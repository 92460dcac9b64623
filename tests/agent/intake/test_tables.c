/* The two small containers of intake. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <errno.h>

#include "agent/intake/intake_private.h"

static void what_was_put_is_found_with_its_last_value(void **state) {
        (void)state;
        UnitTable t = { 0 };
        uint64_t digest = 0;
        assert_false(unit_table_get(&t, 1, &digest));
        for (uint64_t k = 1; k <= 100000; k++)
                assert_int_equal(unit_table_put(&t, k * UINT64_C(0x9e3779b97f4a7c15), k), 0);
        assert_int_equal(unit_table_put(&t, UINT64_C(0x9e3779b97f4a7c15), 77), 0);
        assert_int_equal(t.n, 100000);
        for (uint64_t k = 2; k <= 100000; k++) {
                assert_true(unit_table_get(&t, k * UINT64_C(0x9e3779b97f4a7c15), &digest));
                assert_int_equal(digest, k);
        }
        assert_true(unit_table_get(&t, UINT64_C(0x9e3779b97f4a7c15), &digest));
        assert_int_equal(digest, 77);
        assert_false(unit_table_get(&t, 12345, &digest));
        unit_table_done(&t);
}

static void keys_of_different_paths_differ_and_are_never_zero(void **state) {
        (void)state;
        assert_int_not_equal(unit_table_key("a"), unit_table_key("b"));
        assert_int_not_equal(unit_table_key(""), 0);
        assert_int_equal(unit_table_key("a/b"), unit_table_key("a/b"));
}

static void paths_are_popped_in_order_and_once(void **state) {
        (void)state;
        Pending p;
        pending_init(&p);
        assert_true(pending_is_empty(&p));
        const char *in[] = { "b", "a", "b", "c", "a", "" };
        for (size_t i = 0; i < 6; i++)
                assert_int_equal(pending_add(&p, in[i]), 0);
        const char *out[] = { "b", "a", "c", "" };
        for (size_t i = 0; i < 4; i++) {
                char *path = pending_pop(&p);
                assert_string_equal(path, out[i]);
                free(path);
        }
        assert_true(pending_is_empty(&p));
        pending_done(&p);
}

static void too_many_paths_are_all_dropped_and_reported(void **state) {
        (void)state;
        Pending p;
        pending_init(&p);
        char name[32];
        for (int i = 0; i < PENDING_MAX; i++) {
                snprintf(name, sizeof name, "%d", i);
                assert_int_equal(pending_add(&p, name), 0);
        }
        assert_int_equal(pending_add(&p, "7"), 0); /* it is there already */
        assert_int_equal(pending_add(&p, "one more"), -E2BIG);
        assert_true(pending_is_empty(&p));
        pending_done(&p);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(what_was_put_is_found_with_its_last_value),
                cmocka_unit_test(keys_of_different_paths_differ_and_are_never_zero),
                cmocka_unit_test(paths_are_popped_in_order_and_once),
                cmocka_unit_test(too_many_paths_are_all_dropped_and_reported),
        };
        return cmocka_run_group_tests_name("agent/tables", tests, NULL, NULL);
}
