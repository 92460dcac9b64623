/* unit_table, path_queue, promised_files: what is found in them, and what a full queue drops. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/unit.h"
#include <errno.h>

#include "agent/intake/path_queue.h"
#include "agent/intake/promised_files.h"
#include "agent/intake/unit_table.h"

static const char *path_of(unsigned k) {
        static char path[32];
        snprintf(path, sizeof path, "unit-%u", k);
        return path;
}

static void what_was_put_is_found_with_its_last_value(void **state) {
        UnitTable t = { 0 };
        assert_false(unit_table_has(&t, path_of(1), 1));
        for (unsigned k = 1; k <= 100000; k++)
                assert_int_equal(unit_table_put(&t, path_of(k), k), 0);
        assert_int_equal(unit_table_put(&t, path_of(1), 77), 0);
        assert_int_equal(t.n, 100000);
        for (unsigned k = 2; k <= 100000; k++) {
                assert_true(unit_table_has(&t, path_of(k), k));
                assert_false(unit_table_has(&t, path_of(k), k - 1));
        }
        assert_true(unit_table_has(&t, path_of(1), 77));
        assert_false(unit_table_has(&t, path_of(1), 1));
        assert_false(unit_table_has(&t, path_of(100001), 0));
        unit_table_done(&t);
}

static void different_paths_have_places_of_their_own(void **state) {
        const char *paths[] = { "a", "b", "", "a/b" };
        UnitTable t = { 0 };
        for (unsigned k = 0; k < 4; k++)
                assert_int_equal(unit_table_put(&t, paths[k], k), 0);
        for (unsigned k = 0; k < 4; k++)
                assert_true(unit_table_has(&t, paths[k], k));
        assert_int_equal(t.n, 4);
        unit_table_done(&t);
}

static const Owner one = { .uid = 1 }, other = { .uid = 2 };

static void paths_are_popped_in_order_and_once(void **state) {
        PathQueue q;
        path_queue_init(&q, PATH_QUEUE_MAX_OF_OWNER, NULL);
        assert_true(path_queue_is_empty(&q));
        const char *in[] = { "b", "a", "b", "c", "a", "" };
        for (size_t i = 0; i < 6; i++)
                assert_int_equal(path_queue_add(&q, in[i], &one), 0);
        const char *out[] = { "b", "a", "c", "" };
        for (size_t i = 0; i < 4; i++) {
                char *path = path_queue_pop(&q);
                assert_string_equal(path, out[i]);
                free(path);
        }
        assert_true(path_queue_is_empty(&q));
        path_queue_done(&q);
}

static void of_one_owner_too_many_paths_are_refused_and_others_wait_on(void **state) {
        PathQueue q;
        path_queue_init(&q, PATH_QUEUE_MAX_OF_OWNER, NULL);
        char name[32];
        for (int i = 0; i < PATH_QUEUE_MAX_OF_OWNER; i++) {
                snprintf(name, sizeof name, "%d", i);
                assert_int_equal(path_queue_add(&q, name, &one), 0);
        }
        assert_int_equal(path_queue_add(&q, "7", &other), 0); /* it is there already */
        assert_int_equal(path_queue_add(&q, "one more", &one), -E2BIG);
        assert_false(path_queue_has(&q, "one more"));
        assert_int_equal(path_queue_add(&q, "another", &other), 0);
        assert_true(path_queue_has(&q, "another") && path_queue_has(&q, "0"));
        assert_true(path_queue_has(&q, name));
        free(path_queue_pop(&q));
        assert_int_equal(path_queue_add(&q, "one more", &one), 0);
        assert_int_equal(q.bound.total, PATH_QUEUE_MAX_OF_OWNER + 1);
        path_queue_done(&q);
}

static void a_promised_file_is_there_once_until_it_is_removed(void **state) {
        PromisedFiles p = { 0 };
        const char *names[] = { "a", "b", "a", "c" };
        for (size_t i = 0; i < 4; i++)
                assert_int_equal(promised_files_add(&p, names[i]), 0);
        assert_int_equal(p.n, 3);
        promised_files_mark(&p, "b");
        promised_files_mark(&p, "unknown");
        for (size_t i = 0; i < p.n; i++)
                assert_int_equal(p.items[i].is_seen, strcmp(p.items[i].name, "b") == 0);
        promised_files_remove(&p, "a");
        promised_files_remove(&p, "a");
        assert_int_equal(p.n, 2);
        promised_files_done(&p);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(what_was_put_is_found_with_its_last_value),
                cmocka_unit_test(different_paths_have_places_of_their_own),
                cmocka_unit_test(paths_are_popped_in_order_and_once),
                cmocka_unit_test(of_one_owner_too_many_paths_are_refused_and_others_wait_on),
                cmocka_unit_test(a_promised_file_is_there_once_until_it_is_removed),
        };
        return cmocka_run_group_tests_name("agent/tables", tests, NULL, NULL);
}
