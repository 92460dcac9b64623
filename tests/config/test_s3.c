/* Destinations of type s3: what they need, what they take, and what does not fit together. */
#include "tests/config/config_test.h"

#include "lib/base/strbuf.h"

#define SOURCE "sources: [{name: s, kind: neuron-core-dump, path: /s}]\n"
#define BUCKET "name: d, type: s3, bucket: my-bucket"

static Config *expect_good(const char *text) {
        _cleanup_(diag_done) Diags diags = { 0 };
        _cleanup_free_ char *faults = NULL;
        Config *c = NULL;
        int r = config_test_parse(&c, text, &diags);

        faults = config_test_faults(&diags);
        if (r != 0)
                fail_msg("%s: %s", text, faults);
        return c;
}

/* Expects one fault, and all of it. */
static void expect_fault(const char *text, const char *expected) {
        _cleanup_(diag_done) Diags diags = { 0 };
        _cleanup_free_ char *faults = NULL;
        Config *c = NULL;
        int r = config_test_parse(&c, text, &diags);

        faults = config_test_faults(&diags);
        if (r != CONFIG_E_FAULTY || diags.n != 1)
                fail_msg("%s: %d, %zu faults:\n%s", text, r, diags.n, faults);
        faults[strcspn(faults, "\n")] = '\0';
        assert_string_equal(faults + strlen(CONFIG_TEST_FILE ":"), expected);
}

/* A destination with these further keys. */
static char *with(const char *keys) {
        char *text;
        assert_true(asprintf(&text, SOURCE "destinations: [{" BUCKET "%s%s}]\n",
                             keys[0] ? ", " : "", keys) > 0);
        return text;
}

static Config *good_with(const char *keys) {
        _cleanup_free_ char *text = with(keys);
        return expect_good(text);
}

static void fault_with(const char *keys, const char *expected) {
        _cleanup_free_ char *text = with(keys), *whole = NULL;
        assert_true(asprintf(&whole, "2: destinations[0].%s", expected) > 0);
        expect_fault(text, whole);
}

static void a_bucket_is_all_that_must_be_given(void **state) {
        _cleanup_(config_freep) Config *c = good_with("");
        const ConfigDestination *d = &c->destinations[0];

        assert_int_equal(d->type, CONFIG_S3);
        assert_string_equal(d->bucket, "my-bucket");
        assert_string_equal(d->prefix, "neuron/%d-%c");
        assert_string_equal(d->region, "");
        assert_string_equal(d->endpoint, "");
        assert_string_equal(d->addressing, "auto");
        assert_int_equal(d->part_size_bytes, 8 * MIB);
        assert_int_equal(d->connections, 4);
        assert_string_equal(d->ca_file, "");
        assert_string_equal(d->proxy, "");
        assert_string_equal(d->profile, "");
        assert_string_equal(d->sse, "none");
        assert_string_equal(d->kms_key_id, "");
        assert_string_equal(d->storage_class, "");
        assert_int_equal(d->tags.n, 0);
        assert_string_equal(d->expected_bucket_owner, "");
        assert_int_equal(d->request_timeout_usec, 60 * USEC_PER_SEC);
        assert_int_equal(c->limits.request_rate, 200);
        assert_int_equal(c->retry.orphan_age_usec, USEC_PER_DAY);
        assert_null(d->path);
        expect_fault(SOURCE "destinations: [{name: d, type: s3}]\n",
                     "2: destinations[0].bucket: is missing; add `bucket:` and a string, such as "
                     "my-bucket");
        fault_with("path: /x", "path: does not apply to s3; delete the line, or change the type");
        fault_with("min_free: 5%",
                   "min_free: does not apply to s3; delete the line, or change the type");
}

static void a_volume_and_a_bucket_stand_side_by_side(void **state) {
        _cleanup_(config_freep) Config *c =
                expect_good(SOURCE "destinations:\n"
                                   "- {name: fsx, type: volume, path: /fsx}\n"
                                   "- {" BUCKET ", prefix: dumps}\n");

        assert_int_equal(c->sources[0].destinations.n, 2);
        assert_string_equal(c->destinations[0].path, "/fsx/%d-%c");
        assert_string_equal(c->destinations[1].prefix, "dumps/%d-%c");
        assert_int_equal(c->destinations[0].type, CONFIG_VOLUME);
        assert_int_equal(c->destinations[1].type, CONFIG_S3);
}

static void the_prefix_is_a_template_without_slashes_at_its_ends(void **state) {
        static const char remedy[] =
                "; write it as neuron/%d-%c; %d %c %p %t %l %i %k %n %h %u are the format "
                "variables, %% is a percent sign, or delete the line for the default, neuron/%d-%c";
        static const char *const bad[][2] = {
                { "/a", "begins with a slash, which would be part of every key" },
                { "a/", "ends in a slash" },
                { "a//b", "has an empty component, '.' or '..'" },
                { "a/../b", "has an empty component, '.' or '..'" },
                { "a/%x", "has '%x', which is not a format variable here" },
        };
        static const char *const good[][2] = { { "\"\"", "%d-%c" },
                                               { "a", "a/%d-%c" },
                                               { "\"%k/%d\"", "%k/%d" },
                                               { "\"a b/+=*~/%c\"", "a b/+=*~/%c" } };

        for (size_t i = 0; i < ELEMENTSOF(good); i++) {
                _cleanup_free_ char *keys = NULL;
                _cleanup_(config_freep) Config *c = NULL;
                assert_true(asprintf(&keys, "prefix: %s", good[i][0]) > 0);
                c = good_with(keys);
                assert_string_equal(c->destinations[0].prefix, good[i][1]);
        }
        for (size_t i = 0; i < ELEMENTSOF(bad); i++) {
                _cleanup_free_ char *keys = NULL, *fault = NULL;
                assert_true(asprintf(&keys, "prefix: \"%s\"", bad[i][0]) > 0);
                assert_true(asprintf(&fault, "prefix: '%s' %s%s", bad[i][0], bad[i][1], remedy) >
                            0);
                fault_with(keys, fault);
        }
}

/* What is appended must be taken again when it is printed and fed back. */
static void a_prefix_leaves_room_for_the_rest_of_the_key(void **state) {
        char prefix[802], keys[900];

        for (size_t n = 790; n <= 801; n++) {
                memset(prefix, 'a', n);
                prefix[n] = '\0';
                (void)snprintf(keys, sizeof keys, "prefix: %s", prefix);
                _cleanup_free_ char *text = with(keys);
                _cleanup_(diag_done) Diags diags = { 0 };
                _cleanup_(config_freep) Config *c = NULL;
                if (config_test_parse(&c, text, &diags) == 0) {
                        assert_true(n <= 794);
                        assert_int_equal(strlen(c->destinations[0].prefix), n + 6);
                } else
                        assert_true(n > 794);
        }
        (void)snprintf(keys, sizeof keys, "prefix: \"%s/%%d\"", prefix + 801 - 797);
        config_free(good_with(keys));
}

static void a_password_is_not_repeated_in_a_fault(void **state) {
        static const char *const pairs[][2] = {
                { "proxy: \"http://me:secret@proxy:3128\"",
                  "proxy: 'http://…@proxy:3128' is not the address of a proxy; write it as "
                  "http://proxy.example:3128, without a user and a path" },
                { "endpoint: \"https://me:secret@store:9000\"",
                  "endpoint: 'https://…@store:9000' is not http(s)://host[:port]; write it as "
                  "https://store.example:9000, without a path" },
                { "\"proxy:http://me:secret@proxy:3128\": x",
                  "…@proxy:3128: unknown key; delete the line" },
        };

        for (size_t i = 0; i < ELEMENTSOF(pairs); i++)
                fault_with(pairs[i][0], pairs[i][1]);
}

static void each_key_is_held_to_its_form(void **state) {
        static const char *const pairs[][2] = {
                { "region: us east",
                  "region: 'us east' is not the name of a region; write it as us-east-1" },
                { "endpoint: store.example",
                  "endpoint: 'store.example' is not http(s)://host[:port]; "
                  "write it as https://store.example:9000, without a path" },
                { "endpoint: \"ftp://store.example\"",
                  "endpoint: 'ftp://store.example' is not http(s)://host[:port]; "
                  "write it as https://store.example:9000, without a path" },
                { "addressing: dns",
                  "addressing: invalid value 'dns' (one of: auto, path, virtual); use one of "
                  "these, or delete the line for the default, auto" },
                { "part_size: 5242879",
                  "part_size: '5242879' is below 5MiB, the smallest part S3 accepts; use 5MiB or "
                  "more, or delete the line for the default, 8MiB" },
                { "part_size: 4MiB",
                  "part_size: '4MiB' is below 5MiB, the smallest part S3 accepts; use "
                  "5MiB or more, or delete the line for the default, 8MiB" },
                { "part_size: 6GiB",
                  "part_size: '6GiB' is above 5GiB; use 5GiB or less, or delete the "
                  "line for the default, 8MiB" },
                { "connections: 65",
                  "connections: '65' is above 64; use 64 or less, or delete the line "
                  "for the default, 4" },
                { "ca_file: ca.pem",
                  "ca_file: 'ca.pem' is not an absolute path; write the whole path, "
                  "from / on, without '..'" },
                { "profile: \"[prod]\"",
                  "profile: '[prod]' has a bracket or a control character in it; "
                  "write it as it stands in the file, without the brackets" },
                { "sse: aes256",
                  "sse: invalid value 'aes256' (one of: none, AES256, aws:kms); did you "
                  "mean 'AES256'?" },
                { "sse: \"aws:kms\", kms_key_id: my key",
                  "kms_key_id: 'my key' is not the id or ARN of a key; write its id, alias/NAME, "
                  "or the "
                  "whole ARN from arn: on" },
                { "kms_key_id: abc", "kms_key_id: has no meaning with sse: none; add `sse: "
                                     "aws:kms`, or delete the line" },
                { "sse: AES256, kms_key_id: abc", "kms_key_id: has no meaning with sse: AES256; "
                                                  "add `sse: aws:kms`, or delete the line" },
                { "storage_class: glacier",
                  "storage_class: 'glacier' is not a storage class; write it as STANDARD_IA" },
                { "tags: {\"aws:x\": y}",
                  "tags.aws:x: 'aws:x' begins with aws:, which is AWS's "
                  "own; use letters, digits, blanks "
                  "and + - = . _ : / @, at most 128 of them, and do not begin with aws:" },
                { "tags: {a: \"b#c\"}", "tags.a: 'b#c' has a character that no tag may have; use "
                                        "letters, digits, blanks and + - "
                                        "= . _ : / @, at most 256 of them" },
                { "tags: {a: 1, b: 2, c: 3, d: 4, e: 5, f: 6, g: 7, h: 8, i: 9, j: 10, k: 11}",
                  "tags: has 11 entries, more than the 10 that are supported; write fewer" },
                { "expected_bucket_owner: 12345678901",
                  "expected_bucket_owner: '12345678901' is not the number of an account; write its "
                  "12 "
                  "digits in quotes" },
                { "request_timeout: 999ms",
                  "request_timeout: '999ms' is below 1s; use 1s or more, or delete "
                  "the line for the default, 60s" },
        };

        for (size_t i = 0; i < ELEMENTSOF(pairs); i++)
                fault_with(pairs[i][0], pairs[i][1]);
}

static void an_address_accepts_no_bucket_before_it(void **state) {
        fault_with("endpoint: \"http://127.0.0.1:9000\", addressing: virtual",
                   "addressing: puts the bucket's name before a host name, but the endpoint, "
                   "'http://127.0.0.1:9000', has an address; use path, or a host name in the "
                   "endpoint");
}

static void what_stores_need_is_accepted(void **state) {
        static const char *const good[] = {
                "endpoint: \"http://127.0.0.1:9000\", addressing: path",
                "endpoint: \"https://[::1]\"",
                "endpoint: \"https://store.example:9000\", addressing: virtual",
                "region: RegionOne",
                "part_size: 5MiB, connections: 1",
                "part_size: 120MiB, connections: 64",
                "sse: \"aws:kms\"",
                "sse: \"aws:kms\", kms_key_id: \"arn:aws:kms:eu-west-1:1:key/12ab-34cd\"",
                "sse: AES256, storage_class: INTELLIGENT_TIERING",
                "tags: {team: ml, \"cost center\": \"a/b:c@d = 1\", empty: \"\"}",
                "expected_bucket_owner: \"012345678901\"",
                "profile: prod, proxy: \"socks5h://proxy:1080\", request_timeout: 1s",
        };

        for (size_t i = 0; i < ELEMENTSOF(good); i++)
                config_free(good_with(good[i]));
}

static void memory_for_one_connection_is_demanded_and_the_value_reported(void **state) {
        static const struct {
                const char *keys, *limits, *fault;
        } cases[] = {
                { "part_size: 121MiB", "", NULL },
                { "part_size: 122MiB", "",
                  "2: destinations[0].part_size: parts of 122MiB at compression level 3 take "
                  "258MiB of memory, "
                  "more than limits.memory_max, 256MiB; set limits.memory_max to 258MiB or more, "
                  "or "
                  "part_size to 121MiB or less" },
                { "part_size: 5GiB", "limits: {memory_max: 11GiB}", NULL },
                { "", "limits: {memory: 30MiB, memory_max: 30MiB}", NULL },
                { "", "limits: {memory: 29MiB, memory_max: 29MiB}",
                  "2: destinations[0].part_size: parts of 8MiB at compression level 3 take 30MiB "
                  "of memory, "
                  "more than limits.memory_max, 29MiB; set limits.memory_max to 30MiB or more, or "
                  "part_size to 7MiB or less" },
                { "", "limits: {memory: 16MiB, memory_max: 16MiB}",
                  "2: destinations[0].part_size: parts of 8MiB at compression level 3 take 30MiB "
                  "of memory, "
                  "more than limits.memory_max, 16MiB; set limits.memory_max to 30MiB or more" },
                { "", "limits: {memory: 60MiB, memory_max: 60MiB, compression_level: 19}",
                  "2: destinations[0].part_size: parts of 8MiB at compression level 19 take 62MiB "
                  "of memory, "
                  "more than limits.memory_max, 60MiB; set limits.memory_max to 62MiB or more, or "
                  "part_size to 7MiB or less" },
                { "part_size: 1MiB", "limits: {memory: 16MiB, memory_max: 16MiB}",
                  "2: destinations[0].part_size: '1MiB' is below 5MiB, the smallest part S3 "
                  "accepts; use 5MiB "
                  "or more, or delete the line for the default, 8MiB" }, /* and nothing follows from
                                                                            it */
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                _cleanup_free_ char *start = with(cases[i].keys), *text = NULL;
                assert_true(asprintf(&text, "%s%s\n", start, cases[i].limits) > 0);
                if (cases[i].fault)
                        expect_fault(text, cases[i].fault);
                else
                        config_free(expect_good(text));
        }
}

static void a_volume_needs_the_writer_alone(void **state) {
        const ConfigDestination volume = { .type = CONFIG_VOLUME, .part_size_bytes = 8 * MIB },
                                s3 = { .type = CONFIG_S3, .part_size_bytes = 8 * MIB };

        assert_int_equal(config_memory_needed(&volume, 10 * MIB), 10 * MIB);
        assert_int_equal(config_memory_needed(&s3, 10 * MIB), 30 * MIB);
        config_free(expect_good(SOURCE "destinations: [{name: d, type: volume, path: /d}]\n"
                                       "limits: {memory: 16MiB, memory_max: 16MiB}\n"));
}

static void note_key(const char *key, bool needs_restart, void *userdata) {
        strbuf_addf(userdata, "%s%s ", key, needs_restart ? "!" : "");
}

static void expect_changes(const char *running, const char *loaded, const char *expected) {
        _cleanup_(config_freep) Config *a = expect_good(running), *b = expect_good(loaded);
        _cleanup_(strbuf_done) StrBuf keys = STRBUF_INIT;

        config_compare(a, b, note_key, &keys);
        assert_string_equal(keys.text ? keys.text : "", expected);
}

static void any_changed_key_of_a_bucket_is_reported_as_its_destination(void **state) {
        static const char *const keys[] = {
                "bucket: other",       "prefix: x",
                "region: eu-west-1",   "endpoint: \"http://a\"",
                "addressing: path",    "part_size: 9MiB",
                "connections: 3",      "ca_file: /ca.pem",
                "proxy: \"http://p\"", "profile: p",
                "sse: AES256",         "storage_class: GLACIER_IR",
                "tags: {a: b}",        "expected_bucket_owner: \"123456789012\"",
                "request_timeout: 5s"
        };
        _cleanup_free_ char *base = with("");

        for (size_t i = 0; i < ELEMENTSOF(keys); i++) {
                _cleanup_free_ char *other = NULL;
                const char *first = strncmp(keys[i], "bucket", 6) == 0 ? "" : "bucket: my-bucket, ";
                assert_true(asprintf(&other, SOURCE "destinations: [{name: d, type: s3, %s%s}]\n",
                                     first, keys[i]) > 0);
                expect_changes(base, other, "destinations[d] ");
                expect_changes(other, other, "");
        }
        expect_changes(base, SOURCE "destinations: [{name: d, type: volume, path: /d}]\n",
                       "destinations[d] ");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_bucket_is_all_that_must_be_given),
                cmocka_unit_test(a_volume_and_a_bucket_stand_side_by_side),
                cmocka_unit_test(the_prefix_is_a_template_without_slashes_at_its_ends),
                cmocka_unit_test(a_prefix_leaves_room_for_the_rest_of_the_key),
                cmocka_unit_test(a_password_is_not_repeated_in_a_fault),
                cmocka_unit_test(each_key_is_held_to_its_form),
                cmocka_unit_test(an_address_accepts_no_bucket_before_it),
                cmocka_unit_test(what_stores_need_is_accepted),
                cmocka_unit_test(memory_for_one_connection_is_demanded_and_the_value_reported),
                cmocka_unit_test(a_volume_needs_the_writer_alone),
                cmocka_unit_test(any_changed_key_of_a_bucket_is_reported_as_its_destination),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
