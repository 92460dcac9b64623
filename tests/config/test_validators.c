
#include "tests/harness/unit.h"

#include <stdlib.h>
#include <string.h>

#include "config/keys.h"

#define LONG_64 "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

static void expect(const Form *form, const char *text, bool good) {
        _cleanup_(strbuf_done) StrBuf fault = STRBUF_INIT;
        bool found = form->check(text, &fault);

        if (found != good)
                fail_msg("'%s' is %s as %s: %s", text, good ? "refused" : "taken", form->what,
                         fault.text ? fault.text : "");
        assert_int_equal(fault.n == 0, good);
        assert_non_null(form->remedy);
}

/* The first list is taken, the second refused. */
static void expect_all(const Form *form, const char *const *good, const char *const *bad) {
        for (; *good; good++)
                expect(form, *good, true);
        for (; *bad; bad++)
                expect(form, *bad, false);
}

#define LIST(...) ((const char *const[]){ __VA_ARGS__, NULL })

static void names_are_short_and_of_safe_letters(void **state) {
        expect_all(keys_get("sources[].name")->form, LIST("a", "A-b_c.9", LONG_64, "..a"),
                   LIST("", ".", "..", "a b", "a/b", "ä", LONG_64 "a", "a\n"));
}

static void paths_are_absolute_and_have_no_way_up(void **state) {
        expect_all(keys_get("state_directory")->form, LIST("/", "/a", "/a//b/", "/a/..b", "/a b/ü"),
                   LIST("", "a", "./a", "/..", "/a/../b", "/a/..", "/a\nb", "/a\x7f"));
        expect_all(keys_get("api.socket")->form, LIST("/run/a.sock"),
                   LIST("a", "/" LONG_64 "/" LONG_64 "/a.sock"));
}

static void templates_know_their_letters(void **state) {
        expect_all(keys_get("sources[].path")->form, LIST("/a/%d-%c/%p%t%l%i", "/a/100%%", "/%%d"),
                   LIST("/a/%x", "/a/%", "/a/%%%", "/a/%k", "/a/% d", "%d/a", "/%D", "/a/*",
                        "/a/job-?/x", "/a/[0-9]", "/a/{b,c}"));
        expect_all(keys_get("destinations[].path")->form, LIST("/a/%d%c%p%t%l%i%k%n%h%u"),
                   LIST("/a/%x", "/a/%s", "/%d/..", "/a/*/%d"));
        expect_all(keys_get("destinations[].prefix")->form, LIST("a", "a/%k/%d-%c", "%u"),
                   LIST("/a", "a//b", "a/", "a/../b", "./a", "a/%z", "a\tb"));
}

static void users_are_names_or_numbers(void **state) {
        expect_all(keys_get("agreement.trusted_uids")->form,
                   LIST("0", "990", "4294967294", "neuron-collectd", "_a.b", "host$"),
                   LIST("", "4294967295", "99999999999999999999", "-1", "a b", "a/b", LONG_64 "a"));
}

static void addresses_have_host_and_port(void **state) {
        expect_all(keys_get("api.listen")->form,
                   LIST("127.0.0.1:9733", "localhost:1", "[::1]:65535", "0.0.0.0:80"),
                   LIST("", "a-b.c:80", "127.1:80", "0x7f000001:80", ":80", "a", "a:", "a:0",
                        "a:65536", "::1:80", "[::1]", "[]:80", "[::1:80", "a:80x", "a b:80",
                        "[g]:80", "a:-1"));
        expect_all(keys_get("agreement.peers")->form,
                   LIST("tcp://0.0.0.0:7733", "ipc:///run/a.sock", "tcp://[::]:7733"),
                   LIST("tcp://a", "udp://a:1", "ipc://a", "ipc://", "a:1", ""));
        expect_all(keys_get("destinations[].endpoint")->form,
                   LIST("http://a", "https://a:9000", "https://[::1]:1"),
                   LIST("a", "ftp://a", "http://", "http://a/b", "https://a:x", "http://u:p@a"));
        expect_all(keys_get("destinations[].proxy")->form,
                   LIST("http://a:3128", "socks5://a", "socks5h://a:1"),
                   LIST("a:3128", "http://", "http://u:p@a:1"));
}

static void s3_names_follow_the_rules_of_s3(void **state) {
        expect_all(keys_get("destinations[].bucket")->form, LIST("abc", "my-bucket.1", "0a0"),
                   LIST("ab", "My", "a_b_c", "-abc", "abc-", ".abc", "abc.", "", LONG_64, "a..b",
                        "192.168.5.4"));
        expect(keys_get("destinations[].bucket")->form, "1.2.3.4.5", true);
        expect_all(keys_get("hook.allow_prefixes")->form,
                   LIST("s3://abc", "s3://abc/", "s3://abc/d/e"),
                   LIST("abc/d", "s3://", "s3:///d", "s3://A/b", "s3://abc/../d"));
        expect_all(keys_get("destinations[].region")->form,
                   LIST("us-east-1", "RegionOne", "zone_1", "us-gov-west-1", "default"),
                   LIST("us east", "us/east", "", "-east", "us-east-1a", "us-west-2-lax-1a",
                        "us-east-1\n", LONG_64 "a"));
        expect_all(keys_get("destinations[].storage_class")->form,
                   LIST("STANDARD_IA", "GLACIER_IR", "HDD2"), LIST("standard", "A B", "A\r\nB"));
        expect_all(keys_get("destinations[].profile")->form, LIST("default", "a b", "prod/eu"),
                   LIST("[prod]", "a]b", "a\nb"));
        expect_all(keys_get("destinations[].kms_key_id")->form,
                   LIST("1234abcd-12ab-34cd-56ef-1234567890ab", "alias/my-key_1", "mrk-12ab",
                        "arn:aws-us-gov:kms:us-gov-west-1:111122223333:key/1234abcd"),
                   LIST("a b", "key\n", "a\"b", "ä"));
        expect_all(keys_get("destinations[].expected_bucket_owner")->form, LIST("123456789012"),
                   LIST("12345678901", "1234567890123", "12345678901a"));
}

#define LONG_128 LONG_64 LONG_64

static void tags_follow_the_rules_of_s3(void **state) {
        static const char *const bad[] = { "a#b", "a&b", "a\"b", "a\nb", "<",
                                           "a*",  "a,b", "a;b",  NULL };

        expect_all(keys_get("destinations[].tags")->name_form,
                   LIST("team", "a b", "x+-=._:/@9", "größe", "myaws:x", LONG_128),
                   LIST("aws:x", "AWS:x", "aws:", LONG_128 "a"));
        expect_all(keys_get("destinations[].tags")->name_form, LIST(NULL), bad);
        expect_all(keys_get("destinations[].tags")->form,
                   LIST("", "ml", "aws:x", LONG_128 LONG_128), LIST(LONG_128 LONG_128 "a"));
        expect_all(keys_get("destinations[].tags")->form, LIST(NULL), bad);
        expect(keys_get("destinations[].tags")->form,
               LONG_128 LONG_64 "äöüßäöüßäöüßäöüßäöüßäöüßäöüßäöüß"
                                "äöüßäöüßäöüßäöüßäöüßäöüßäöüßäöüß",
               true); /* 256 characters, of more bytes */
}

static void patterns_are_of_what_they_match(void **state) {
        expect_all(keys_get("sources[].exclude")->form, LIST("*.tmp", "a/*", "\\xFF", "a b"),
                   LIST("", "/a"));
        expect_all(keys_get("snapshot.environment")->form, LIST("NEURON_*", "RANK", "[A-Z]?"),
                   LIST("", "A B", "A=B", "a/b"));
}

static void the_fixed_part_ends_before_the_first_component_with_a_variable(void **state) {
        static const char *const pairs[][2] = {
                { "/a/b/%d-%c", "/a/b" },
                { "/a/dt-%d/x", "/a" },
                { "/a/b", "/a/b" },
                { "/%d", "/" },
                { "/", "/" },
                { "/a/100%%/%p/q", "/a/100%" },
                { "/a/%%d/b", "/a/%d/b" },
                { "/a/%%%d", "/a" },
                { "/a/", "/a" },
                { "n/%d", "n" },
                { "%d", "" },
        };

        for (size_t i = 0; i < ELEMENTSOF(pairs); i++) {
                _cleanup_free_ char *fixed = form_fixed_part(pairs[i][0]);
                assert_string_equal(fixed, pairs[i][1]);
        }
}

static void a_doubled_percent_sign_is_no_variable(void **state) {
        assert_true(form_find_variable("/a/%d", "d") != NULL);
        assert_false(form_find_variable("/a/%%d", "d") != NULL);
        assert_true(form_find_variable("/a/%%%d", "d") != NULL);
        assert_false(form_find_variable("/a/%c", "d") != NULL);
        assert_false(form_find_variable("/a/%", "d") != NULL);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(names_are_short_and_of_safe_letters),
                cmocka_unit_test(paths_are_absolute_and_have_no_way_up),
                cmocka_unit_test(templates_know_their_letters),
                cmocka_unit_test(users_are_names_or_numbers),
                cmocka_unit_test(addresses_have_host_and_port),
                cmocka_unit_test(s3_names_follow_the_rules_of_s3),
                cmocka_unit_test(tags_follow_the_rules_of_s3),
                cmocka_unit_test(patterns_are_of_what_they_match),
                cmocka_unit_test(the_fixed_part_ends_before_the_first_component_with_a_variable),
                cmocka_unit_test(a_doubled_percent_sign_is_no_variable),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
