/* The signature is read from a report, whose texts may have any content. */
#include "tests/harness/unit.h"

#include "agent/crashes/report_job.h"
#include "lib/base/json_out.h"

static const char *find(const char *json) {
        static char ret[STORE_SIGNATURE_SIZE];
        return report_job_find_signature(json, ret) ? ret : "none";
}

static void the_signature_of_the_report_is_found_and_no_other(void **state) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        (void)state;
        json_out_object(&b, NULL);
        json_out_string(&b, "name", "\"signature\":{\"id\":\"feedfeedfeedfeed\"");
        json_out_object(&b, "signature");
        json_out_string(&b, "id", "0123456789abcdef");
        json_out_end_object(&b);
        json_out_end_object(&b);
        assert_string_equal(find(b.text), "0123456789abcdef");
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

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(the_signature_of_the_report_is_found_and_no_other),
                cmocka_unit_test(what_is_no_signature_is_none),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
