/* lib/neuron/place: where a dump goes whose hook was granted a prefix of its own. */

#include "tests/harness/unit.h"

#include <stdlib.h>

#include "lib/base/cleanup.h"
#include "lib/neuron/bundle_name.h"
#include "lib/neuron/ids.h"

static char *of(const char *prefix) {
        char *directory = NULL;
        assert_int_equal(bundle_directory_from_prefix(prefix, "bucket", "i-1", &directory), 0);
        return directory;
}

static void it_is_used_unchanged(void **state) {
        static const char *const rows[][2] = {
                { "s3://bucket/a/b", "a/b/i-1" },
                { "s3://bucket/a/b/", "a/b/i-1" },
                { "s3://bucket", "i-1" },
                { "s3://bucket/", "i-1" },
                { "s3://bucket/%d-%c", "%d-%c/i-1" }, /* the runtime has expanded what it would */
                { "s3://bucket/a..b/.c", "a..b/.c/i-1" },
        };
        for (size_t i = 0; i < ELEMENTSOF(rows); i++) {
                _cleanup_free_ char *directory = of(rows[i][0]);
                assert_non_null(directory);
                assert_string_equal(directory, rows[i][1]);
        }
}

static void another_bucket_and_what_leads_elsewhere_is_not(void **state) {
        static const char *const rows[] = { "s3://other/a",     "s3://bucket2/a",
                                            "s3://buck/a",      "bucket/a",
                                            "https://bucket/a", "",
                                            "s3://bucket/../a", "s3://bucket/a/..",
                                            "s3://bucket/a//b", "s3://bucket/./a",
                                            "s3://bucket//" };
        for (size_t i = 0; i < ELEMENTSOF(rows); i++)
                assert_null(of(rows[i]));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(it_is_used_unchanged),
                cmocka_unit_test(another_bucket_and_what_leads_elsewhere_is_not),
        };
        return cmocka_run_group_tests_name("dump/place", tests, NULL, NULL);
}
