/* Signing as S3 wants it: one escape, no normalisation; AWS' documented examples; what another
 * implementation makes of hard keys; and what is refused. */
#include "uploaders/aws/aws_sign.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <string.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"

#define EMPTY "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

enum { VECTORS_BYTES_MAX = 256 * 1024, QUERIES_MAX = 16 };

static const char *signature_of(const Signature *s) {
        return strstr(s->authorization, "Signature=") + strlen("Signature=");
}

/* ── Amazon S3 API Reference, "Signature Calculations for the Authorization Header: Transferring
 * Payload in a Single Chunk" ── */

static const AwsKeys documented_keys = {
        .access_key = "AKIAIOSFODNN7EXAMPLE",
        .secret_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
};

/* 20130524T000000Z, examplebucket, us-east-1 */
static SignRequest documented(const char *path, const AwsNameValue *headers, size_t n_headers) {
        return (SignRequest){ .method = "GET",
                              .path = path,
                              .headers = headers,
                              .n_headers = n_headers,
                              .payload = EMPTY,
                              .sign_payload_header = true,
                              .region = "us-east-1",
                              .service = "s3",
                              .time_usec = UINT64_C(1369353600) * USEC_PER_SEC };
}

static void expect_signature(const SignRequest *request, const AwsKeys *keys,
                             const char *expected) {
        _cleanup_(signature_done) Signature s = { 0 };

        assert_int_equal(sign_v4(request, keys, &s), 0);
        assert_string_equal(signature_of(&s), expected);
}

static void the_documented_get_with_a_range_is_signed_as_documented(void **state) {
        const AwsNameValue headers[] = { { "Host", "examplebucket.s3.amazonaws.com" },
                                         { "Range", "bytes=0-9" } };
        SignRequest request = documented("/test.txt", headers, ELEMENTSOF(headers));
        _cleanup_(signature_done) Signature s = { 0 };

        assert_int_equal(sign_v4(&request, &documented_keys, &s), 0);
        assert_string_equal(
                s.authorization,
                "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/"
                "aws4_request, SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, "
                "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
        assert_string_equal(s.amz_date, "20130524T000000Z");
        assert_string_equal(s.path, "/test.txt");
        assert_string_equal(s.query, "");
}

static void the_documented_put_is_signed_as_documented(void **state) {
        const AwsNameValue headers[] = { { "date", "Fri, 24 May 2013 00:00:00 GMT" },
                                         { "host", "examplebucket.s3.amazonaws.com" },
                                         { "x-amz-storage-class", "REDUCED_REDUNDANCY" } };
        SignRequest request = documented("/test$file.text", headers, ELEMENTSOF(headers));

        request.method = "PUT";
        request.payload = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072";
        expect_signature(&request, &documented_keys,
                         "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
}

static void the_documented_queries_are_signed_as_documented(void **state) {
        const AwsNameValue headers[] = { { "host", "examplebucket.s3.amazonaws.com" } };
        const AwsNameValue lifecycle[] = { { "lifecycle", NULL } },
                           list[] = { { "prefix", "J" }, { "max-keys", "2" } };
        SignRequest request = documented("", headers, ELEMENTSOF(headers));

        request.queries = lifecycle;
        request.n_queries = ELEMENTSOF(lifecycle);
        expect_signature(&request, &documented_keys,
                         "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
        request.queries = list;
        request.n_queries = ELEMENTSOF(list);
        expect_signature(&request, &documented_keys,
                         "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

/* ── hard keys, signed by another implementation ── */

static json_t *load_vectors(void) {
        const char *srcdir = getenv("srcdir");
        _cleanup_free_ char *path = NULL, *text = NULL;
        json_t *vectors;
        size_t n;

        assert_true(asprintf(&path, "%s/tests/uploaders/s3/s3_vectors.json",
                             srcdir ? srcdir : ".") > 0);
        assert_int_equal(fs_read_file(AT_FDCWD, path, VECTORS_BYTES_MAX, &text, &n), 0);
        vectors = json_loadb(text, n, 0, NULL);
        assert_non_null(vectors);
        return vectors;
}

static const char *text_of(const json_t *v, const char *name) {
        return json_string_value(json_object_get(v, name));
}

static void check_vector(const json_t *all, const json_t *vector) {
        const AwsNameValue headers[] = { { "Host", text_of(all, "host") },
                                         { "if-none-match", "*" },
                                         { "x-amz-meta-neuron-collectd-plan",
                                           "b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0"
                                           "b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0" },
                                         { "X-Amz-Tagging", "cluster=prod%20a&rank=3" } };
        const AwsKeys keys = { text_of(all, "access_key"), text_of(all, "secret_key"),
                               text_of(vector, "token") };
        const json_t *given = json_object_get(vector, "queries"), *pair;
        AwsNameValue queries[QUERIES_MAX];
        _cleanup_(signature_done) Signature s = { 0 };
        _cleanup_free_ char *path = NULL;
        SignRequest request = { .method = "PUT",
                                .queries = queries,
                                .headers = headers,
                                .n_headers = ELEMENTSOF(headers),
                                .payload = text_of(all, "payload"),
                                .sign_payload_header = true,
                                .region = text_of(all, "region"),
                                .service = "s3",
                                .time_usec = UINT64_C(1779858753) * USEC_PER_SEC };
        size_t i;

        json_array_foreach(given, i, pair) {
                assert_true(i < QUERIES_MAX);
                queries[request.n_queries++] =
                        (AwsNameValue){ json_string_value(json_array_get(pair, 0)),
                                        json_string_value(json_array_get(pair, 1)) };
        }
        assert_true(asprintf(&path, "/%s", text_of(vector, "key")) > 0);
        request.path = path;
        assert_int_equal(sign_v4(&request, &keys, &s), 0);
        assert_string_equal(s.path, text_of(vector, "path"));
        assert_string_equal(s.query, text_of(vector, "canonical_query"));
        assert_string_equal(signature_of(&s), text_of(vector, "signature"));
}

static void hard_keys_and_queries_are_signed_as_botocore_signs_them(void **state) {
        json_t *all = load_vectors();
        const json_t *vectors = json_object_get(all, "vectors"), *vector;
        size_t i;

        assert_int_equal(json_array_size(vectors), 19);
        json_array_foreach(vectors, i, vector) {
                print_message("# %s\n", text_of(vector, "name"));
                check_vector(all, vector);
        }
        json_decref(all);
}

/* ── the rest ── */

static const AwsNameValue host_alone[] = { { "host", "h" } };

static SignRequest small_order(const AwsNameValue *headers, size_t n_headers) {
        return (SignRequest){ .method = "GET",
                              .path = "/",
                              .headers = headers,
                              .n_headers = n_headers,
                              .payload = EMPTY,
                              .region = "r",
                              .service = "s",
                              .time_usec = UINT64_C(1779858753123456) };
}

static void what_the_caller_has_set_already_is_not_set_twice(void **state) {
        const AwsNameValue headers[] = { { "HOST", "h" },
                                         { "X-Amz-Date", "20260527T051233Z" },
                                         { "X-Amz-Content-SHA256", EMPTY },
                                         { "X-Amz-Security-Token", "t" } };
        const AwsKeys keys = { "a", "s", "t" };
        SignRequest whole = small_order(headers, ELEMENTSOF(headers)),
                    bare = small_order(headers, 1);
        _cleanup_(signature_done) Signature a = { 0 }, b = { 0 };

        whole.sign_payload_header = bare.sign_payload_header = true;
        assert_int_equal(sign_v4(&whole, &keys, &a), 0);
        assert_int_equal(sign_v4(&bare, &keys, &b), 0);
        assert_string_equal(a.canonical_request, b.canonical_request);
        assert_string_equal(a.canonical_request, "GET\n/\n\nhost:h\nx-amz-content-sha256:" EMPTY
                                                 "\nx-amz-date:20260527T051233Z\n"
                                                 "x-amz-security-token:t\n\nhost;x-amz-content-"
                                                 "sha256;x-amz-date;x-amz-security-token\n" EMPTY);
}

static void an_order_that_no_server_would_understand_is_refused(void **state) {
        static const AwsNameValue faulty[][2] = {
                { { "host", "h" }, { "x", "a\nb" } },
                { { "host", "h" }, { "x", "a\r\nInjected: yes" } },
                { { "host", "h" }, { "x", "a\rb" } },
                { { "host", "h" }, { "x", "a\n" } },
                { { "host", "h" }, { "", "a" } },
                { { "host", "h" }, { "a b", "a" } },
                { { "host", "h" }, { "a:", "a" } },
                { { "host", "h" }, { "\xc3\xa4", "a" } },
                { { "host", "h" }, { "x-amz-date", "20260527T051234Z" } },
                { { "hos", "h" }, { "t", "a" } },
        };
        const AwsKeys keys = { "a", "s", NULL };

        for (size_t i = 0; i < ELEMENTSOF(faulty); i++) {
                SignRequest request = small_order(faulty[i], 2);
                Signature s = { 0 };

                assert_int_equal(sign_v4(&request, &keys, &s), -EINVAL);
                assert_null(s.authorization);
        }
}

static void a_folded_header_is_signed_as_one_line(void **state) {
        const AwsNameValue headers[] = { { "host", "h" }, { "x", " \t a\r\n  b \n\tc  d " } };
        const AwsKeys keys = { "a", "s", NULL };
        SignRequest request = small_order(headers, ELEMENTSOF(headers));
        _cleanup_(signature_done) Signature s = { 0 };

        assert_int_equal(sign_v4(&request, &keys, &s), 0);
        assert_non_null(strstr(s.canonical_request, "\nx:a b c d\n"));
}

/* The URL's path is left to the caller; what is signed is its normal form, escaped once more. */
static void other_services_get_the_path_normalised_and_escaped_twice(void **state) {
        static const struct {
                const char *path, *canonical;
        } cases[] = {
                { "", "/" },
                { "/", "/" },
                { "/a%20b", "/a%2520b" },
                { "/a/b/..", "/a/" },
                { "/../..", "/" },
                { "/a/./b/../c/", "/a/c/" },
                { "/a/...", "/a/..." },
                { "a", "/a" },
        };
        const AwsKeys keys = { "a", "s", NULL };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                _cleanup_(signature_done) Signature s = { 0 };
                _cleanup_free_ char *head = NULL;
                SignRequest request = small_order(host_alone, 1);

                request.path = cases[i].path;
                request.normalize_path = true;
                assert_int_equal(sign_v4(&request, &keys, &s), 0);
                assert_true(asprintf(&head, "GET\n%s\n\n", cases[i].canonical) > 0);
                assert_memory_equal(s.canonical_request, head, strlen(head));
                assert_string_equal(s.path, cases[i].path[0] ? cases[i].path : "/");
        }
}

static void every_byte_but_the_unreserved_is_escaped(void **state) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        unsigned n_plain = 0;

        for (unsigned c = 1; c < 256; c++) {
                const char text[] = { (char)c, '\0' };
                char expected[4];

                strbuf_clear(&b);
                aws_escape(&b, text, false);
                (void)snprintf(expected, sizeof expected, "%%%02X", c);
                if (b.n == 1)
                        assert_true(b.text[0] == text[0] && ++n_plain);
                else
                        assert_string_equal(b.text, expected);
        }
        assert_int_equal(n_plain, 26 + 26 + 10 + 4);
        strbuf_clear(&b);
        aws_escape(&b, "a/b c", true);
        assert_string_equal(b.text, "a/b%20c");
}

static void done_leaves_nothing_and_may_be_called_twice(void **state) {
        const AwsKeys keys = { "a", "s", NULL };
        SignRequest request = small_order(host_alone, 1);
        Signature s = { 0 };

        assert_int_equal(sign_v4(&request, &keys, &s), 0);
        signature_done(&s);
        signature_done(&s);
        assert_null(s.authorization);
        assert_null(s.canonical_request);
        assert_string_equal(s.amz_date, "");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(the_documented_get_with_a_range_is_signed_as_documented),
                cmocka_unit_test(the_documented_put_is_signed_as_documented),
                cmocka_unit_test(the_documented_queries_are_signed_as_documented),
                cmocka_unit_test(hard_keys_and_queries_are_signed_as_botocore_signs_them),
                cmocka_unit_test(what_the_caller_has_set_already_is_not_set_twice),
                cmocka_unit_test(an_order_that_no_server_would_understand_is_refused),
                cmocka_unit_test(a_folded_header_is_signed_as_one_line),
                cmocka_unit_test(other_services_get_the_path_normalised_and_escaped_twice),
                cmocka_unit_test(every_byte_but_the_unreserved_is_escaped),
                cmocka_unit_test(done_leaves_nothing_and_may_be_called_twice),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
