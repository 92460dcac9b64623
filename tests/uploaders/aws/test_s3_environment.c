/* The environment's word on where S3 is: what it says, and what comes before it. */
#include "uploaders/s3/s3_endpoint.h"

#include <stdio.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"

#define LIST(...) ((char *const[]){ __VA_ARGS__, NULL })
#define BOTH_ON "AWS_USE_DUALSTACK_ENDPOINT=true", "AWS_USE_FIPS_ENDPOINT=TRUE"

static void an_empty_environment_sets_nothing(void **state) {
        S3Environment e =
                s3_environment_read(LIST("PATH=/bin", "AWS_ENDPOINT_URL=", "AWS_CA_BUNDLE="));

        assert_string_equal(e.endpoint, "");
        assert_string_equal(e.ca_bundle, "");
        assert_false(e.dualstack);
        assert_false(e.fips);
}

static void the_endpoint_of_s3_comes_before_the_one_of_everything(void **state) {
        S3Environment one = s3_environment_read(LIST("AWS_ENDPOINT_URL=http://all")),
                      both = s3_environment_read(
                              LIST("AWS_ENDPOINT_URL=http://all", "AWS_ENDPOINT_URL_S3=http://s3"));

        assert_string_equal(one.endpoint, "http://all");
        assert_string_equal(both.endpoint, "http://s3");
}

static void endpoints_that_are_to_be_ignored_are(void **state) {
        S3Environment e = s3_environment_read(
                LIST("AWS_ENDPOINT_URL=http://all", "AWS_ENDPOINT_URL_S3=http://s3", BOTH_ON,
                     "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=True", "AWS_CA_BUNDLE=/ca.pem"));

        assert_string_equal(e.endpoint, "");
        assert_string_equal(e.ca_bundle, "/ca.pem");
        assert_true(e.dualstack);
        assert_true(e.fips);
        /* a configuration is no variable */
        assert_string_equal(s3_environment_resolve(&e, "http://own", "").endpoint, "http://own");
}

static void only_true_is_true(void **state) {
        static const char *const others[] = { "1", "yes", "on", "false", "true ", "" };

        for (size_t i = 0; i < ELEMENTSOF(others); i++) {
                char dualstack[64], fips[64], ignore[64];
                (void)snprintf(dualstack, sizeof dualstack, "AWS_USE_DUALSTACK_ENDPOINT=%s",
                               others[i]);
                (void)snprintf(fips, sizeof fips, "AWS_USE_FIPS_ENDPOINT=%s", others[i]);
                (void)snprintf(ignore, sizeof ignore, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=%s",
                               others[i]);
                S3Environment e = s3_environment_read(LIST(dualstack, fips)),
                              named = s3_environment_read(
                                      LIST(ignore, "AWS_ENDPOINT_URL=http://all"));
                if (e.dualstack || e.fips || named.endpoint[0] == '\0')
                        fail_msg("'%s' is taken for true", others[i]);
        }
}

static void an_endpoint_of_one_s_own_has_no_names_of_aws(void **state) {
        S3Environment aws = s3_environment_read(LIST(BOTH_ON)),
                      named = s3_environment_read(LIST(BOTH_ON, "AWS_ENDPOINT_URL=http://all"));

        assert_true(aws.dualstack && aws.fips);
        assert_false(named.dualstack || named.fips);
        S3Environment configured = s3_environment_resolve(&aws, "http://own", NULL);
        assert_string_equal(configured.endpoint, "http://own");
        assert_false(configured.dualstack || configured.fips);
        S3Environment unchanged = s3_environment_resolve(&aws, "", "");
        assert_string_equal(unchanged.endpoint, "");
        assert_true(unchanged.dualstack && unchanged.fips);
}

static void what_is_configured_comes_first(void **state) {
        S3Environment e = s3_environment_read(
                LIST("AWS_ENDPOINT_URL=http://all", "AWS_CA_BUNDLE=/environment.pem"));

        S3Environment own = s3_environment_resolve(&e, "http://own", "/own.pem"),
                      same = s3_environment_resolve(&e, NULL, NULL);
        assert_string_equal(own.endpoint, "http://own");
        assert_string_equal(own.ca_bundle, "/own.pem");
        assert_string_equal(same.endpoint, "http://all");
        assert_string_equal(same.ca_bundle, "/environment.pem");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(an_empty_environment_sets_nothing),
                cmocka_unit_test(the_endpoint_of_s3_comes_before_the_one_of_everything),
                cmocka_unit_test(endpoints_that_are_to_be_ignored_are),
                cmocka_unit_test(only_true_is_true),
                cmocka_unit_test(an_endpoint_of_one_s_own_has_no_names_of_aws),
                cmocka_unit_test(what_is_configured_comes_first),
        };

        return cmocka_run_group_tests_name("s3_environment", tests, NULL, NULL);
}
