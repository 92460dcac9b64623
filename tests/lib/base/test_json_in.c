/* lib/base/json_in.c: members of a parsed object, whatever they are. */
#include "tests/harness/unit.h"

#include <jansson.h>
#include <stdlib.h>

#include "lib/base/json_in.h"
#include "lib/base/json_out.h"

static void a_member_of_another_type_reads_as_nothing(void **state) {
        (void)state;
        json_t *v = json_loads("{\"text\":\"a\",\"n\":7,\"negative\":-1,\"no\":null}", 0, NULL);
        assert_non_null(v);
        assert_string_equal(json_in_string(v, "text"), "a");
        assert_null(json_in_string(v, "n"));
        assert_null(json_in_string(v, "missing"));
        assert_int_equal(json_in_u64(v, "n"), 7);
        assert_int_equal(json_in_u64(v, "negative"), 0);
        assert_int_equal(json_in_u64(v, "text"), 0);
        assert_null(json_in_path(v, "no"));
        json_decref(v);
        assert_null(json_in_string(NULL, "text"));
        assert_int_equal(json_in_u64(NULL, "n"), 0);
        assert_null(json_in_path(NULL, "text"));
}

static void a_path_reads_as_it_was_written(void **state) {
        (void)state;
        static const char path[] = "/tmp/\xff\"\\ a";
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        json_out_object(&b, NULL);
        json_out_path(&b, "path", path);
        json_out_end_object(&b);
        json_t *v = json_loadb(b.text, b.n, 0, NULL);
        char *read = json_in_path(v, "path");
        assert_non_null(read);
        assert_string_equal(read, path);
        free(read);
        json_decref(v);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_member_of_another_type_reads_as_nothing),
                cmocka_unit_test(a_path_reads_as_it_was_written),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
