/* The signature of a report is read from a text of any content. */
#include "tests/harness/unit.h"

#include <stdlib.h>
#include <string.h>

#include "agent/crashes/crash_reports.h"

static const char *find(const char *json) {
        static char ret[STORE_SIGNATURE_SIZE];
        return crash_signature_find(json, strlen(json), ret) ? ret : "none";
}

static void the_signature_of_the_report_is_found_and_no_other(void **state) {
        (void)state;
        assert_string_equal(
                find("{\"a\":[{\"id\":\"no\"}],\"signature\":{\"text\":\"\\\"id\\\":\",\"id\":"
                     "\"0123456789abcdef\",\"seen\":null},\"id\":\"feedfeedfeedfeed\"}"),
                "0123456789abcdef");
        assert_string_equal(find("{\"x\":{\"signature\":{\"id\":\"0123456789abcdef\"}}}"), "none");
        assert_string_equal(find("{\"signature\":{\"x\":{\"id\":\"0123456789abcdef\"}}}"), "none");
        assert_string_equal(find("{\"id\":\"0123456789abcdef\"}"), "none");
}

static void what_is_no_signature_is_none(void **state) {
        (void)state;
        assert_string_equal(find("{\"signature\":{\"id\":\"0123'; DROP TABLE\"}}"), "none");
        assert_string_equal(find("{\"signature\":{\"id\":\"0123\"}}"), "none");
        assert_string_equal(find("{\"signature\":{\"id\":null,\"b\":\"0123456789abcdef\"}}"),
                            "none");
        assert_string_equal(find("{\"signature\":{\"id\":\"0123456789abcdef"), "none");
        assert_string_equal(find("{\"signature\\"), "none");
        assert_string_equal(find(""), "none");
}

static void a_million_levels_are_read(void **state) {
        size_t n = 1 << 20;
        char *text = malloc(n), ret[STORE_SIGNATURE_SIZE];
        (void)state;
        assert_non_null(text);
        memset(text, '[', n);
        assert_false(crash_signature_find(text, n, ret));
        free(text);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(the_signature_of_the_report_is_found_and_no_other),
                cmocka_unit_test(what_is_no_signature_is_none),
                cmocka_unit_test(a_million_levels_are_read),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
