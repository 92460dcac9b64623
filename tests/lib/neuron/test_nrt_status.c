/* The runtime's error codes, in each form that a flag may have. */
#include "lib/neuron/nrt_status.h"

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"

static void numbers_have_their_names(void **state) {
        assert_string_equal(nrt_status_name(0), "NRT_SUCCESS");
        assert_string_equal(nrt_status_name(1006), "NRT_EXEC_OOB");
        assert_string_equal(nrt_status_name(1200), "NRT_EXEC_HW_ERR_COLLECTIVES");
        static const int64_t unknown[] = { -1, 8, 12, 16, 1001, 1207, INT64_MAX };
        for (size_t i = 0; i < ELEMENTSOF(unknown); i++)
                assert_null(nrt_status_name(unknown[i]));
}

static void names_and_numbers_are_read(void **state) {
        static const struct {
                const char *s;
                int64_t code;
        } good[] = { { "5", 5 },           { "0", 0 },
                     { "1207", 1207 }, /* the list grows */
                     { "-1", -1 },         { "9223372036854775807", INT64_MAX },
                     { "NRT_TIMEOUT", 5 }, { "nrt_exec_hw_err_nc_ue", 1202 },
                     { "NRT_OOB", 1006 } };
        for (size_t i = 0; i < ELEMENTSOF(good); i++) {
                int64_t code = 77;
                assert_true(nrt_status_parse(good[i].s, &code));
                assert_int_equal(code, good[i].code);
        }
        static const char *const bad[] = { "",   "-",   "--1", " 5",      "5 ",
                                           "5x", "0x5", "NRT", "TIMEOUT", "9223372036854775808" };
        for (size_t i = 0; i < ELEMENTSOF(bad); i++) {
                int64_t code = 77;
                assert_false(nrt_status_parse(bad[i], &code));
                assert_int_equal(code, 77);
        }
}

static void every_name_leads_back_to_its_number(void **state) {
        unsigned n = 0;
        for (int64_t code = 0; code < 2000; code++) {
                int64_t back = -1;
                if (!nrt_status_name(code))
                        continue;
                assert_true(nrt_status_parse(nrt_status_name(code), &back));
                assert_int_equal(back, code);
                n++;
        }
        assert_int_equal(n, 28);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(numbers_have_their_names),
                cmocka_unit_test(names_and_numbers_are_read),
                cmocka_unit_test(every_name_leads_back_to_its_number),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
