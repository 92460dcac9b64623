/* Faults in a file: all of them, in order, one line each. */
#include "lib/base/diag.h"

#include <string.h>

#include "tests/harness/unit.h"

#include "lib/base/strbuf.h"

static char *printed(const Diags *d) {
        char *text = NULL;
        size_t n = 0;
        FILE *f = open_memstream(&text, &n);

        assert_non_null(f);
        diag_print(d, f);
        assert_int_equal(fclose(f), 0);
        return text;
}

static void a_fault_names_file_line_key_and_remedy(void **state) {
        _cleanup_(diag_done) Diags d = { 0 };
        _cleanup_free_ char *text = NULL;

        diag_add(&d, (DiagLocation){ "n.yaml", 14, "destinations[0].part_size" },
                 "use 5MiB or more", "'%s' is below 5MiB", "1MiB");
        text = diag_format(&d.items[0]);
        assert_string_equal(text, "n.yaml:14: destinations[0].part_size: '1MiB' is below 5MiB; "
                                  "use 5MiB or more");
}

static void what_is_not_there_is_skipped(void **state) {
        _cleanup_(diag_done) Diags d = { 0 };
        _cleanup_free_ char *text = NULL;

        diag_add(&d, (DiagLocation){ "n.yaml", 0, NULL }, NULL, "is empty");
        diag_add(&d, (DiagLocation){ NULL, 0, "a" }, NULL, "is odd");
        text = printed(&d);
        assert_string_equal(text, "n.yaml: is empty\na: is odd\n");
}

static void faults_come_by_line_and_within_a_line_as_found(void **state) {
        _cleanup_(diag_done) Diags d = { 0 };
        _cleanup_(strbuf_done) StrBuf expected = STRBUF_INIT;
        _cleanup_free_ char *text = NULL;

        /* Enough of them for the list to grow and for a sort that is not stable to show it. */
        for (unsigned i = 0; i < 100; i++)
                diag_add(&d, (DiagLocation){ "f", 10 - i % 10, NULL }, NULL, "%u", i);
        diag_add(&d, (DiagLocation){ "f", 0, NULL }, NULL, "whole");
        assert_int_equal(d.n, 101);
        strbuf_add(&expected, "f: whole\n");
        for (unsigned line = 1; line <= 10; line++)
                for (unsigned i = 10 - line; i < 100; i += 10)
                        strbuf_addf(&expected, "f:%u: %u\n", line, i);
        text = printed(&d);
        assert_string_equal(text, expected.text);
}

static void a_value_with_a_newline_stays_on_its_line(void **state) {
        _cleanup_(diag_done) Diags d = { 0 };
        _cleanup_free_ char *text = NULL;

        diag_add(&d, (DiagLocation){ "f", 1, "k\n" }, "re\tm", "'%s' is bad",
                 "x\nf:2: forged\033[31m\xff ü");
        text = printed(&d);
        assert_string_equal(text,
                            "f:1: k\\x0a: 'x\\x0af:2: forged\\x1b[31m\\xff ü' is bad; re\\x09m\n");
}

static void the_list_owns_copies(void **state) {
        _cleanup_(diag_done) Diags d = { 0 };
        char file[] = "f", key[] = "k", remedy[] = "r";

        diag_add(&d, (DiagLocation){ file, 1, key }, remedy, "x");
        file[0] = key[0] = remedy[0] = '#';
        assert_string_equal(d.items[0].file, "f");
        assert_string_equal(d.items[0].key, "k");
        assert_string_equal(d.items[0].remedy, "r");
}

static void done_leaves_a_list_that_can_be_used_again(void **state) {
        Diags d = { 0 };

        diag_done(&d);
        diag_add(&d, (DiagLocation){ "f", 1, NULL }, NULL, "x");
        diag_done(&d);
        assert_int_equal(d.n, 0);
        assert_null(d.items);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_fault_names_file_line_key_and_remedy),
                cmocka_unit_test(what_is_not_there_is_skipped),
                cmocka_unit_test(faults_come_by_line_and_within_a_line_as_found),
                cmocka_unit_test(a_value_with_a_newline_stays_on_its_line),
                cmocka_unit_test(the_list_owns_copies),
                cmocka_unit_test(done_leaves_a_list_that_can_be_used_again),
        };

        return cmocka_run_group_tests_name("base/diag", tests, NULL, NULL);
}
