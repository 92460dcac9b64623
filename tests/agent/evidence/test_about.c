/* The document that says what a bundle of the agent's own is about. */
#include "agent/evidence/about.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/harness/unit.h"

#define DUMP "neuron-core-dump-20260527T051233-0123456789ab"
#define CORE "process-core-20260527T051233-0123456789ab"

static void what_was_written_is_read_again(void **state) {
        _cleanup_(about_done) About a = { .owner = { .uid = 1000 } }, b = { 0 };
        memset(a.owner.container, 'c', sizeof a.owner.container - 1);
        assert_int_equal(about_add_related(&a, DUMP), 0);
        assert_int_equal(about_add_related(&a, CORE), 0);
        assert_int_equal(about_add_process(&a, 4711, 123456), 0);
        _cleanup_free_ char *text = about_format(&a);
        assert_non_null(text);
        assert_int_equal(about_parse(text, strlen(text), &b), 0);
        assert_true(owner_is_same(&a.owner, &b.owner));
        assert_int_equal(b.n_related, 2);
        assert_string_equal(b.related[0], DUMP);
        assert_string_equal(b.related[1], CORE);
        assert_int_equal(b.n_processes, 1);
        assert_int_equal(b.processes[0].pid, 4711);
        assert_int_equal(b.processes[0].start_ticks, 123456);
}

static void nothing_is_in_it_twice_and_what_is_no_id_is_not(void **state) {
        _cleanup_(about_done) About a = { 0 };
        assert_int_equal(about_add_related(&a, DUMP), 0);
        assert_int_equal(about_add_related(&a, DUMP), 1);
        assert_int_equal(about_add_related(&a, ""), 1);
        assert_int_equal(about_add_related(&a, "../x"), 1);
        assert_int_equal(about_add_process(&a, 0, 1), 1);
        assert_int_equal(about_add_process(&a, 1, 1), 0);
        assert_int_equal(about_add_process(&a, 1, 1), 1);
        assert_int_equal(about_add_process(&a, 1, 2), 0);
        assert_int_equal(a.n_related, 1);
        assert_int_equal(a.n_processes, 2);
}

static void the_lists_are_bounded(void **state) {
        _cleanup_(about_done) About a = { 0 };
        for (int i = 0; i < 2 * ABOUT_RELATED_MAX; i++) {
                char id[BUNDLE_ID_SIZE];
                (void)snprintf(id, sizeof id, "directory-20260527T051233-%012x", i);
                assert_int_equal(about_add_related(&a, id), i >= ABOUT_RELATED_MAX);
                assert_int_equal(about_add_process(&a, i + 1, 1), i >= ABOUT_PROCESSES_MAX);
        }
        _cleanup_free_ char *text = about_format(&a);
        assert_true(strlen(text) < ABOUT_BYTES_MAX);
}

static void processes_of_another_boot_are_left_out(void **state) {
        static const char text[] = "{\"uid\": 7, \"related\": [\"" DUMP "\"], \"boot\": \"x\","
                                   " \"processes\": [{\"pid\": 1, \"start_ticks\": 1}]}";
        _cleanup_(about_done) About a = { 0 };
        assert_int_equal(about_parse(text, strlen(text), &a), 0);
        assert_int_equal(a.owner.uid, 7);
        assert_int_equal(a.n_related, 1);
        assert_int_equal(a.n_processes, 0);
}

static void what_is_none_is_refused(void **state) {
        static const char *const texts[] = { "", "x", "[]", "7", "{\"uid\": 7" };
        _cleanup_(about_done) About a = { 0 };
        for (size_t i = 0; i < ELEMENTSOF(texts); i++)
                assert_int_equal(about_parse(texts[i], strlen(texts[i]), &a), -EINVAL);
        assert_int_equal(about_parse("{}", 2, &a), 0);
        assert_int_equal(a.n_related, 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(what_was_written_is_read_again),
                cmocka_unit_test(nothing_is_in_it_twice_and_what_is_no_id_is_not),
                cmocka_unit_test(the_lists_are_bounded),
                cmocka_unit_test(processes_of_another_boot_are_left_out),
                cmocka_unit_test(what_is_none_is_refused),
        };
        return cmocka_run_group_tests_name("about", tests, NULL, NULL);
}
