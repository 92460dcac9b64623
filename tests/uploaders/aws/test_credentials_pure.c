/* The pure parts: words of a command line, JSON, hosts that may be trusted, times. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"
#include "lib/base/strbuf.h"
#include "uploaders/aws/aws_environment.h"
#include "uploaders/aws/credentials.h"
#include "uploaders/aws/credentials_parse.h"
#include "uploaders/aws/credentials_plan.h"
#include "uploaders/aws/sts.h"

static void words_are_parsed_as_python_does(void **state) {
        /* words as shlex.split() gives them, each ended by a bar; NULL: a ValueError */
        static const struct {
                const char *text, *words;
        } rows[] = {
                { "a", "a|" },
                { "  a \t b\nc ", "a|b|c|" },
                { "a'b c'd", "ab cd|" },
                { "\"a b\" 'c d'", "a b|c d|" },
                { "'a\\b' \"a\\b\" a\\b", "a\\b|a\\b|ab|" },
                { "\"\\\"\" \"\\\\\" \"\\'\" '\"'", "\"|\\|\\'|\"|" },
                { "a\\ b", "a b|" },
                { "'' \"\" x", "||x|" },
                { "a#b # c", "a#b|#|c|" },
                { "$A `b` *;|&>", "$A|`b`|*;|&>|" },
                { "a \"b", NULL },
                { "a 'b", NULL },
                { "a\\", NULL },
                { "\"a\\", NULL },
                { "", NULL },
                { "  ", NULL },
        };

        for (size_t i = 0; i < ELEMENTSOF(rows); i++) {
                const char *fault = NULL;
                char **words = NULL;
                int r = credentials_parse_command(rows[i].text, &words, &fault);

                assert_int_equal(r, rows[i].words ? 0 : -EINVAL);
                if (r < 0) {
                        assert_non_null(fault);
                        continue;
                }
                StrBuf b = STRBUF_INIT;
                for (char **w = words; *w; w++)
                        strbuf_addf(&b, "%s|", *w);
                assert_string_equal(b.text, rows[i].words);
                strbuf_done(&b);
                free(words);
        }
}

/* @return whether it reads; keys are `A` and `S` then */
static bool reads(CredentialsJsonKind kind, const char *text) {
        CredentialsSet set = { 0 };
        char *fault = NULL;
        int r = credentials_parse_json(&set, kind, text, &fault);

        if (r == 0) {
                assert_string_equal(set.access_key, "A");
                assert_string_equal(set.secret_key, "S");
                credentials_set_done(&set);
        } else
                assert_non_null(fault);
        free(fault);
        return r == 0;
}

static void json_is_read_whatever_else_is_in_it(void **state) {
        static const char *const good[] = {
                "{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"S\"}",
                " {\n\t\"SecretAccessKey\" : \"S\" ,\r\n \"AccessKeyId\" : \"A\" } \n",
                "{\"AccessKeyId\":\"\\u0041\",\"SecretAccessKey\":\"S\"}",
                "{\"x\":{\"AccessKeyId\":\"no\",\"y\":[1,{},[],\"]}\",null]},\"z\":-1.5e+9,\"t\":"
                "true,"
                "\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"S\"}",
                "{\"AccessKeyId\":\"B\",\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"S\"}",
                "{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"S\",\"Token\":null,\"Message\":"
                "\"\\\"\\\\\\/\\b\\f\\n"
                "\\r\\t\\u00e9\\ud83d\\ude00\"}",
        };
        static const char *const bad[] = {
                "",
                "{",
                "{}",
                "[]",
                "null",
                "\"\"",
                "{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"S\"",
                "{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"S\",}",
                "{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"S\"}x",
                "{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"S\"}{}",
                "{\"AccessKeyId\":\"A\" \"SecretAccessKey\":\"S\"}",
                "{\"AccessKeyId\" \"A\",\"SecretAccessKey\":\"S\"}",
                "{AccessKeyId:\"A\",\"SecretAccessKey\":\"S\"}",
                "{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"S",
                "{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"S\\",
                "{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"\\u004",
                "{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"\\u00g1\"}",
                "{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"\\x\"}",
                "{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"S\n\"}",
                "{\"AccessKeyId\":\"A\",\"SecretAccessKey\":[\"S\"]}",
                "{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"S\",\"x\":[}",
                "{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"S\",\"x\":}",
        };

        for (size_t i = 0; i < ELEMENTSOF(good); i++)
                assert_true(reads(CREDENTIALS_JSON_SERVICE, good[i]));
        for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                assert_false(reads(CREDENTIALS_JSON_SERVICE, bad[i]));
        assert_true(reads(CREDENTIALS_JSON_PROCESS,
                          "{\"Version\": 1,\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"S\"}"));
        assert_false(reads(CREDENTIALS_JSON_PROCESS, good[0]));
        assert_false(reads(CREDENTIALS_JSON_PROCESS,
                           "{\"Version\":10,\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"S\"}"));
}

static void json_that_is_nested_too_deep_is_refused(void **state) {
        enum { DEPTH = 100000 };
        char *brackets = malloc(2 * DEPTH + 1), *text = NULL;

        (void)state;
        assert_non_null(brackets);
        memset(brackets, '[', DEPTH);
        memset(brackets + DEPTH, ']', DEPTH);
        brackets[(size_t)2 * DEPTH] = '\0';
        assert_true(asprintf(&text, "{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"S\",\"x\":%s}",
                             brackets) > 0);
        assert_false(reads(CREDENTIALS_JSON_SERVICE, text));
        free(text);
        free(brackets);
}

static int full_uri(const char *uri) {
        char *variable = NULL, *url = NULL, *fault = NULL;

        assert_true(asprintf(&variable, "AWS_CONTAINER_CREDENTIALS_FULL_URI=%s", uri) > 0);
        char *const environment[] = { variable, NULL };
        int r = credentials_container_url(environment, &url, &fault);
        if (r == 0)
                assert_string_equal(url, uri);
        else
                assert_int_equal(fault != NULL, r == -EINVAL);
        free(url);
        free(fault);
        free(variable);
        return r;
}

static void keys_are_accepted_by_http_only_from_hosts_that_are_trusted(void **state) {
        static const char *const good[] = {
                "http://127.0.0.1/",
                "http://127.0.0.1:8080/x?y=z",
                "http://127.9.9.9",
                "http://localhost/x",
                "http://LOCALHOST:1",
                "http://[::1]:80/x",
                "http://[0:0:0:0:0:0:0:1]/",
                "http://169.254.170.2/v2",
                "http://169.254.170.23/v1",
                "http://[fd00:ec2::23]/v1/credentials",
                "http://[FD00:EC2:0:0:0:0:0:23]/",
                "https://example.com/x",
                "https://10.0.0.1:8443",
                "HTTPS://example.com",
        };
        static const char *const bad[] = {
                "http://169.254.169.254/",
                "http://169.254.170.3/",
                "http://10.0.0.1/",
                "http://example.com/",
                "http://localhost.example.com/",
                "http://127.0.0.1.example.com/",
                "http://127.0.0.1@example.com/",
                "http://example.com\\@127.0.0.1/",
                "http://example.com#@127.0.0.1/",
                "http://127.1/",
                "http://0x7f000001/",
                "http://2130706433/",
                "http://[::]/",
                "http://[::ffff:10.0.0.1]/",
                "http://[::1/",
                "http://[::1]x/",
                "http://[fd00:ec2::24]/",
                "http://127.0.0.1:80x/",
                "http://:80/",
                "http:///x",
                "http://",
                "ftp://127.0.0.1/",
                "127.0.0.1/x",
                "http://127.0.0.1 /",
                "http://127.0.0.1/\r\nX: y",
                "https://",
                "https:///x",
                "http://[::1%25eth0]/",
        };

        for (size_t i = 0; i < ELEMENTSOF(good); i++)
                assert_int_equal(full_uri(good[i]), 0);
        for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                assert_int_equal(full_uri(bad[i]), -EINVAL);
        char *const none[] = { NULL };
        char *url, *fault;
        assert_int_equal(credentials_container_url(none, &url, &fault), -ENOENT);
}

#define MINUTES(n) ((uint64_t)(n)*USEC_PER_MINUTE)

static void they_are_refreshed_in_good_time(void **state) {
        const uint64_t got = MINUTES(1000000);
        static const struct {
                uint64_t life, earliest, latest; /* after they came */
        } rows[] = {
                { MINUTES(360), MINUTES(252), MINUTES(288) }, /* IMDS: 70 to 80 % */
                { MINUTES(60), MINUTES(42), MINUTES(48) },
                { MINUTES(15), MINUTES(10), MINUTES(10) }, /* five minutes before */
                { MINUTES(6), MINUTES(1), MINUTES(1) },
                { MINUTES(1), MINUTES(1) / 2, MINUTES(1) / 2 },
                { USEC_PER_SEC, USEC_PER_SEC, USEC_PER_SEC },
                { 0, USEC_PER_SEC, USEC_PER_SEC },
        };

        for (size_t i = 0; i < ELEMENTSOF(rows); i++) {
                uint64_t least = UINT64_MAX, most = 0;
                for (uint64_t j = 0; j < 1000; j++) {
                        uint64_t at = credentials_schedule_refresh_usec(
                                              got, got + rows[i].life,
                                              j * UINT64_C(11400714819323198485)) -
                                      got;
                        least = MIN(least, at);
                        most = MAX(most, at);
                }
                assert_true(least >= rows[i].earliest && most <= rows[i].latest);
                if (rows[i].latest > rows[i].earliest) /* a fleet does not come all at once */
                        assert_true(most - least > (rows[i].latest - rows[i].earliest) * 9 / 10);
        }
        assert_true(credentials_schedule_refresh_usec(got, 0, 1) == USEC_INFINITY);
        assert_true(credentials_schedule_refresh_usec(got, got - 1, 1) == got + USEC_PER_SEC);
}

static void they_are_good_for_another_minute_or_a_tenth_of_a_short_life(void **state) {
        const uint64_t got = MINUTES(1000000), hour = MINUTES(60);

        assert_true(credentials_schedule_is_good(got, 0, UINT64_MAX));
        assert_true(credentials_schedule_is_good(got, got + hour, got));
        assert_true(credentials_schedule_is_good(got, got + hour, got + hour - MINUTES(1) - 1));
        assert_false(credentials_schedule_is_good(got, got + hour, got + hour - MINUTES(1)));
        assert_true(credentials_schedule_is_good(got, got + 10, got + 8));
        assert_false(credentials_schedule_is_good(got, got + 10, got + 9));
        assert_true(
                credentials_schedule_is_good(got, got + 1, got)); /* what was just got is good */
        assert_false(credentials_schedule_is_good(got, got, got));
        assert_false(credentials_schedule_is_good(got, got - 1, got - 5));
}

static void failures_wait_longer_up_to_a_minute(void **state) {
        static const unsigned seconds[] = { 0, 1, 2, 4, 8, 16, 32, 60, 60 };

        for (unsigned i = 0; i < ELEMENTSOF(seconds); i++)
                assert_true(credentials_schedule_backoff_usec(i) == seconds[i] * USEC_PER_SEC);
        assert_true(credentials_schedule_backoff_usec(UINT32_MAX) == MINUTES(1));
}

static void sts_has_a_place_in_each_region(void **state) {
        static const struct {
                StsEndpointOptions options;
                const char *scheme, *host, *path, *region;
        } rows[] = {
                { { 0 }, "https", "sts.us-east-1.amazonaws.com", "/", "us-east-1" },
                { { .region = "eu-west-1" },
                  "https",
                  "sts.eu-west-1.amazonaws.com",
                  "/",
                  "eu-west-1" },
                { { .region = "us-gov-west-1" },
                  "https",
                  "sts.us-gov-west-1.amazonaws.com",
                  "/",
                  "us-gov-west-1" },
                { { .region = "cn-north-1" },
                  "https",
                  "sts.cn-north-1.amazonaws.com.cn",
                  "/",
                  "cn-north-1" },
                { { .region = "eu-west-1", .fips = true },
                  "https",
                  "sts-fips.eu-west-1.amazonaws.com",
                  "/",
                  "eu-west-1" },
                { { .endpoint = "http://127.0.0.1:8000", .region = "x y" },
                  "http",
                  "127.0.0.1:8000",
                  "/",
                  "x y" },
                { { .endpoint = "https://h/base" }, "https", "h", "/base/", "us-east-1" },
                { { .endpoint = "https://[::1]:1/base/" },
                  "https",
                  "[::1]:1",
                  "/base/",
                  "us-east-1" },
        };
        static const StsEndpointOptions bad[] = {
                { .endpoint = "h" },          { .endpoint = "http://" },
                { .endpoint = "http://a@b" }, { .endpoint = "http://a b" },
                { .endpoint = "http://a?b" }, { .region = "a.b/" },
                { .region = "EU-WEST-1" },
        };
        StsEndpoint p;

        for (size_t i = 0; i < ELEMENTSOF(rows); i++) {
                assert_int_equal(sts_endpoint_init(&p, &rows[i].options), 0);
                assert_string_equal(p.scheme, rows[i].scheme);
                assert_string_equal(p.host, rows[i].host);
                assert_string_equal(p.path, rows[i].path);
                assert_string_equal(p.region, rows[i].region);
                sts_endpoint_done(&p);
        }
        for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                assert_int_equal(sts_endpoint_init(&p, &bad[i]), -EINVAL);
}

static void the_environment_is_copied_and_read(void **state) {
        char *const environment[] = { (char *)"A=1", (char *)"AB=2",   (char *)"E=", (char *)"X",
                                      (char *)"A=3", (char *)"T=TrUe", NULL };
        char **copy = aws_environment_copy(environment);

        assert_non_null(copy);
        assert_string_equal(aws_environment_get(copy, "A"), "1");
        assert_string_equal(aws_environment_get(copy, "AB"), "2");
        assert_null(aws_environment_get(copy, "E"));
        assert_null(aws_environment_get(copy, "X"));
        assert_null(aws_environment_get(copy, "B"));
        assert_true(aws_environment_is_true(copy, "T"));
        assert_false(aws_environment_is_true(copy, "A"));
        assert_ptr_not_equal(copy[0], environment[0]);
        credentials_secret_free(copy);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(words_are_parsed_as_python_does),
                cmocka_unit_test(json_is_read_whatever_else_is_in_it),
                cmocka_unit_test(json_that_is_nested_too_deep_is_refused),
                cmocka_unit_test(keys_are_accepted_by_http_only_from_hosts_that_are_trusted),
                cmocka_unit_test(they_are_refreshed_in_good_time),
                cmocka_unit_test(they_are_good_for_another_minute_or_a_tenth_of_a_short_life),
                cmocka_unit_test(failures_wait_longer_up_to_a_minute),
                cmocka_unit_test(sts_has_a_place_in_each_region),
                cmocka_unit_test(the_environment_is_copied_and_read),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
