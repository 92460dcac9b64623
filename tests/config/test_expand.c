
#include "tests/harness/unit.h"

#include <stdlib.h>
#include <string.h>

#include "config/read.h"

static char *const environment[] = {
        "A=one", "B_2=${A}", "EMPTY=", "AB=longer", "LATIN=\xe4", NULL
};

static void variables_are_replaced_once(void **state) {
        static const char *const pairs[][2] = {
                { "", "" },
                { "plain", "plain" },
                { "${A}", "one" },
                { "x${A}y${AB}z", "xoneylongerz" },
                { "${EMPTY}", "" },
                { "${B_2}", "${A}" }, /* what is put in is not checked again */
                { "$A $ $$ {A}", "$A $ $$ {A}" },
                { "$${A}", "${A}" },
                { "$$${A}", "$${A}" },
                { "a$", "a$" },
                { "${A}${A}", "oneone" },
                { "$${", "${" },
        };

        for (size_t i = 0; i < ELEMENTSOF(pairs); i++) {
                _cleanup_(strbuf_done) StrBuf fault = STRBUF_INIT;
                _cleanup_free_ char *text = NULL;
                assert_int_equal(expand(pairs[i][0], environment, &text, &fault), 0);
                assert_string_equal(text, pairs[i][1]);
        }
}

static void what_is_no_defined_variable_is_a_fault(void **state) {
        static const char *const texts[] = { "${C}",  "${",    "${}",   "${A",      "${A-x}",
                                             "${1A}", "${ A}", "x${a}", "${LATIN}", "${A}${" };

        for (size_t i = 0; i < ELEMENTSOF(texts); i++) {
                _cleanup_(strbuf_done) StrBuf fault = STRBUF_INIT;
                char *text = NULL;
                assert_int_equal(expand(texts[i], environment, &text, &fault), EXPAND_E_FAULTY);
                assert_null(text);
                assert_true(fault.n > 0);
        }
}

static void without_an_environment_nothing_is_defined(void **state) {
        _cleanup_(strbuf_done) StrBuf fault = STRBUF_INIT;
        _cleanup_free_ char *text = NULL;

        assert_int_equal(expand("${A}", NULL, &text, &fault), EXPAND_E_FAULTY);
        assert_string_equal(fault.text, "the environment variable 'A' is not defined");
        assert_int_equal(expand("a", NULL, &text, &fault), 0);
        assert_string_equal(text, "a");
}

static void a_value_does_not_grow_without_bound(void **state) {
        _cleanup_free_ char *big = calloc(1, 4003), *text = NULL;
        char *const env[] = { big, NULL };
        _cleanup_(strbuf_done) StrBuf many = STRBUF_INIT, fault = STRBUF_INIT;

        memset(big, 'x', 4002);
        memcpy(big, "B=", 2);
        for (int i = 0; i < 100; i++)
                strbuf_add(&many, "${B}");
        assert_int_equal(expand(many.text, env, &text, &fault), EXPAND_E_FAULTY);
        assert_null(text);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(variables_are_replaced_once),
                cmocka_unit_test(what_is_no_defined_variable_is_a_fault),
                cmocka_unit_test(without_an_environment_nothing_is_defined),
                cmocka_unit_test(a_value_does_not_grow_without_bound),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
