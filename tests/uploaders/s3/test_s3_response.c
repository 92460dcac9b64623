/* What judging depends on beside the code: the kind of request, headers, clocks, connections that
 * broke, and hostile words. */
#include "uploaders/s3/s3_response.h"

#include <string.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"
#include "lib/http/http.h"

#define NOW (UINT64_C(1779858753) * USEC_PER_SEC) /* 2026-05-27T05:12:33Z, a Wednesday */

static S3Verdict verdict_of(const S3ResponseInput *in) {
        _cleanup_(s3_response_done) S3Response a = { 0 };

        assert_int_equal(s3_response_classify(in, &a), 0);
        assert_true((a.sentence == NULL) == (a.verdict == S3_OK));
        return a.verdict;
}

static S3Verdict bare(S3Operation operation, unsigned status) {
        return verdict_of(&(S3ResponseInput){ .operation = operation, .status = status });
}

static S3Verdict with_code(S3Operation operation, unsigned status, const char *code) {
        char body[256];
        int n = snprintf(body, sizeof body, "<Error><Code>%s</Code></Error>", code);

        return verdict_of(&(S3ResponseInput){
                .operation = operation, .status = status, .body = body, .body_bytes = (size_t)n });
}

static void every_operation_has_its_name_and_permission(void **state) {
        assert_string_equal(s3_operation_name(S3_UPLOAD_PART), "UploadPart");
        assert_string_equal(s3_operation_permission(S3_UPLOAD_PART), "s3:PutObject");
        assert_string_equal(s3_operation_name(S3_LIST_OBJECTS), "ListObjectsV2");
        assert_string_equal(s3_operation_permission(S3_LIST_PARTS), "s3:ListMultipartUploadParts");
        for (int o = 0; o < N_S3_OPERATIONS; o++) {
                assert_non_null(s3_operation_name((S3Operation)o));
                assert_memory_equal(s3_operation_permission((S3Operation)o), "s3:", 3);
        }
}

static void a_2xx_is_well_unless_its_body_is_an_error(void **state) {
        static const char list[] = "<ListBucketResult/>",
                          error[] = "<Error><Code>SlowDown</Code></Error>",
                          page[] = "\n<!DOCTYPE html><html><title>Sign in</title></html>";

        for (int o = 0; o < N_S3_OPERATIONS; o++) {
                bool is_complete = o == S3_COMPLETE_UPLOAD, has_own_body = o == S3_GET_OBJECT ||
                                                                           o == S3_HEAD_OBJECT ||
                                                                           o == S3_HEAD_BUCKET;
                S3ResponseInput in = { .operation = (S3Operation)o,
                                       .status = 200,
                                       .has_etag = o == S3_GET_OBJECT || o == S3_HEAD_OBJECT };

                assert_int_equal(verdict_of(&in), is_complete ? S3_RETRY : S3_OK);
                in.body = list;
                in.body_bytes = strlen(list);
                bool has_no_body = o == S3_PUT_OBJECT || o == S3_UPLOAD_PART; /* if it is S3's */
                assert_int_equal(verdict_of(&in), is_complete || has_no_body ? S3_RETRY : S3_OK);
                in.body = page;
                in.body_bytes = strlen(page);
                assert_int_equal(verdict_of(&in), has_own_body ? S3_OK : S3_RETRY);
                in.body = error; /* an object may well be such a document */
                in.body_bytes = strlen(error);
                assert_int_equal(verdict_of(&in), has_own_body ? S3_OK : S3_RETRY);
        }
        assert_int_equal(bare(S3_DELETE_OBJECT, 204), S3_OK);
        assert_int_equal(verdict_of(&(S3ResponseInput){
                                 .operation = S3_GET_OBJECT, .status = 206, .has_etag = true }),
                         S3_OK);
}

static void what_is_about_no_object_of_s3_is_a_pages(void **state) {
        static const S3Operation operations[] = { S3_HEAD_OBJECT, S3_GET_OBJECT };

        for (size_t i = 0; i < ELEMENTSOF(operations); i++) {
                S3ResponseInput in = { .operation = operations[i], .status = 200 };

                assert_int_equal(verdict_of(&in), S3_RETRY);
                in.has_etag = true;
                in.is_foreign = true;
                assert_int_equal(verdict_of(&in), S3_RETRY);
                in.is_foreign = false;
                assert_int_equal(verdict_of(&in), S3_OK);
        }
}

static void complete_is_done_when_its_body_has_an_etag(void **state) {
        static const char result[] = "<CompleteMultipartUploadResult><ETag>\"e-2\"</ETag>"
                                     "</CompleteMultipartUploadResult>",
                          no_etag[] = "<CompleteMultipartUploadResult/>";
        S3ResponseInput in = { .operation = S3_COMPLETE_UPLOAD,
                               .status = 200,
                               .body = result,
                               .body_bytes = strlen(result) };

        assert_int_equal(verdict_of(&in), S3_OK);
        in.body_bytes -= 3; /* cut */
        assert_int_equal(verdict_of(&in), S3_RETRY);
        in.body = no_etag;
        in.body_bytes = strlen(no_etag);
        assert_int_equal(verdict_of(&in), S3_RETRY);
        assert_int_equal(with_code(S3_COMPLETE_UPLOAD, 200, "NoSuchUpload"), S3_NO_UPLOAD);
        assert_int_equal(with_code(S3_COMPLETE_UPLOAD, 200, "InvalidPart"), S3_BAD_PART);
        assert_int_equal(with_code(S3_COMPLETE_UPLOAD, 200, "AccessDenied"), S3_DENIED);
}

static void what_is_missing_depends_on_what_was_asked_for(void **state) {
        static const struct {
                S3Operation operation;
                S3Verdict bare, key;
        } cases[] = {
                { S3_HEAD_BUCKET, S3_NO_BUCKET, S3_NO_BUCKET },
                { S3_HEAD_OBJECT, S3_NOT_FOUND, S3_NOT_FOUND },
                { S3_GET_OBJECT, S3_RETRY, S3_NOT_FOUND },
                { S3_PUT_OBJECT, S3_RETRY, S3_NO_BUCKET },
                { S3_DELETE_OBJECT, S3_RETRY, S3_NOT_FOUND },
                { S3_CREATE_UPLOAD, S3_RETRY, S3_NO_BUCKET },
                { S3_UPLOAD_PART, S3_RETRY, S3_NO_UPLOAD },
                { S3_COMPLETE_UPLOAD, S3_RETRY, S3_NO_UPLOAD },
                { S3_ABORT_UPLOAD, S3_RETRY, S3_NO_UPLOAD },
                { S3_LIST_PARTS, S3_RETRY, S3_NO_UPLOAD }, /* radosgw says NoSuchKey */
                { S3_LIST_UPLOADS, S3_RETRY, S3_NO_BUCKET },
                { S3_LIST_OBJECTS, S3_RETRY, S3_NO_BUCKET },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                assert_int_equal(bare(cases[i].operation, 404), cases[i].bare);
                assert_int_equal(with_code(cases[i].operation, 404, "NoSuchKey"), cases[i].key);
                assert_int_equal(with_code(cases[i].operation, 404, "NoSuchBucket"), S3_NO_BUCKET);
        }
}

static void a_status_alone_is_enough_for_a_verdict(void **state) {
        static const struct {
                unsigned status;
                S3Verdict verdict;
        } cases[] = {
                { 0, S3_RETRY },     { 100, S3_RETRY },    { 301, S3_RETRY },
                { 302, S3_REFUSED }, { 304, S3_REFUSED },  { 307, S3_RETRY },
                { 308, S3_RETRY },   { 400, S3_REFUSED },  { 401, S3_DENIED },
                { 403, S3_DENIED },  { 405, S3_REFUSED },  { 407, S3_UNREACHABLE },
                { 408, S3_RETRY },   { 409, S3_CONFLICT }, { 411, S3_REFUSED },
                { 412, S3_EXISTS },  { 413, S3_REFUSED },  { 416, S3_REFUSED },
                { 418, S3_REFUSED }, { 425, S3_RETRY },    { 429, S3_RETRY },
                { 500, S3_RETRY },   { 501, S3_REFUSED },  { 502, S3_RETRY },
                { 503, S3_RETRY },   { 504, S3_RETRY },    { 505, S3_REFUSED },
                { 507, S3_FULL },    { 509, S3_RETRY },    { 529, S3_RETRY },
                { 600, S3_RETRY },   { 99999, S3_RETRY },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                assert_int_equal(bare(S3_PUT_OBJECT, cases[i].status), cases[i].verdict);
}

static void codes_of_a_family_are_judged_alike(void **state) {
        static const struct {
                const char *code;
                S3Verdict verdict;
        } cases[] = {
                { "SlowDownWrite", S3_RETRY },
                { "ThrottlingException", S3_RETRY },
                { "RequestTimeoutException", S3_RETRY },
                { "KMS.ThrottlingException", S3_RETRY },
                { "KMS.InternalException", S3_RETRY },
                { "KMS.KMSInternalException", S3_RETRY },
                { "KMS.KMSInvalidStateException", S3_DENIED },
                { "KMS.", S3_DENIED },
                { "ExpiredTokenException", S3_EXPIRED },
                { "QuotaExceededException", S3_FULL },
                { "KMS", S3_REFUSED },
                { "SlowDow", S3_REFUSED },
                { "accessdenied", S3_REFUSED },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                assert_int_equal(with_code(S3_PUT_OBJECT, 400, cases[i].code), cases[i].verdict);
}

static void a_condition_that_the_store_does_not_know_is_distinguished(void **state) {
        static const char body[] = "<Error><Code>NotImplemented</Code></Error>";
        S3ResponseInput in = { .operation = S3_PUT_OBJECT, .status = 501 };

        assert_int_equal(verdict_of(&in), S3_REFUSED);
        in.is_conditional = true;
        assert_int_equal(verdict_of(&in), S3_REFUSED); /* by somebody on the way, perhaps */
        in.body = body;
        in.body_bytes = strlen(body);
        assert_int_equal(verdict_of(&in), S3_UNCONDITIONAL);
        in.status = 412;
        in.body_bytes = 0;
        assert_int_equal(verdict_of(&in), S3_EXISTS);
}

/* ── regions ── */

static void check_region(S3ResponseInput in, const char *inside, const char *expected) {
        _cleanup_(s3_response_done) S3Response a = { 0 };
        char body[512];

        in.body_bytes = (size_t)snprintf(body, sizeof body,
                                         "<Error><Code>PermanentRedirect</Code>%s</Error>", inside);
        in.body = body;
        in.region = "us-east-1";
        assert_int_equal(s3_response_classify(&in, &a), 0);
        assert_int_equal(a.verdict, S3_REDIRECT);
        assert_string_equal(a.region, expected);
}

static void a_redirect_reports_its_region_by_header_or_body(void **state) {
        const S3ResponseInput plain = { .operation = S3_GET_OBJECT, .status = 301 };
        S3ResponseInput header = plain;

        header.bucket_region = "eu-west-1";
        check_region(header, "<Region>eu-north-1</Region>", "eu-west-1");
        check_region(plain, "<Region>eu-north-1</Region>", "eu-north-1");
        check_region(plain, "<Endpoint>b.s3-us-west-2.amazonaws.com</Endpoint>", "");
        check_region(plain, "<Endpoint>b.s3.example.com</Endpoint>", "");
        check_region(plain, "", "");
}

/* It goes into a host name. */
static void a_region_that_is_none_or_ours_is_not_learnt(void **state) {
        S3ResponseInput in = { .operation = S3_GET_OBJECT, .status = 301 };

        check_region(in, "<Region>us-east-1</Region>", "");
        check_region(in, "<Region>evil.example.com/</Region>", "");
        in.bucket_region = "a b";
        check_region(in, "<Region>eu-north-1</Region>", "eu-north-1");
        in.bucket_region = "us-east-1"; /* the header is the one to believe */
        check_region(in, "<Region>eu-north-1</Region>", "");
}

static void a_malformed_header_that_is_not_about_the_region_is_no_redirect(void **state) {
        static const char body[] = "<Error><Code>AuthorizationHeaderMalformed</Code><Region>r"
                                   "</Region></Error>";
        S3ResponseInput in = { .operation = S3_PUT_OBJECT,
                               .status = 400,
                               .region = "r",
                               .body = body,
                               .body_bytes = strlen(body) };

        assert_int_equal(verdict_of(&in), S3_DENIED);
        in.region = "other";
        assert_int_equal(verdict_of(&in), S3_REDIRECT);
}

/* ── time ── */

static void retry_after_is_read_as_seconds_or_as_a_date_and_capped(void **state) {
        static const struct {
                const char *text;
                uint64_t usec;
        } cases[] = {
                { NULL, 0 },
                { "0", 0 },
                { "7", 7 * USEC_PER_SEC },
                { "300", 300 * USEC_PER_SEC },
                { "301", 300 * USEC_PER_SEC },
                { "18446744073709551615", 300 * USEC_PER_SEC },
                { "99999999999999999999999", 300 * USEC_PER_SEC },
                { "-1", 0 },
                { "7s", 0 },
                { " 7", 0 },
                { "", 0 },
                { "Wed, 27 May 2026 05:12:43 GMT", 10 * USEC_PER_SEC },
                { "Wed, 27 May 2026 05:12:33 GMT", 0 },
                { "Wed, 27 May 2026 05:12:23 GMT", 0 },
                { "Thu, 28 May 2026 05:12:33 GMT", 300 * USEC_PER_SEC },
                { "tomorrow", 0 },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                S3ResponseInput in = { .operation = S3_PUT_OBJECT,
                                       .status = 503,
                                       .retry_after = cases[i].text,
                                       .now_usec = NOW };
                _cleanup_(s3_response_done) S3Response a = { 0 }, b = { 0 };

                assert_int_equal(s3_response_classify(&in, &a), 0);
                assert_int_equal(a.retry_after_usec, cases[i].usec);
                in.now_usec = 0;
                assert_int_equal(s3_response_classify(&in, &b), 0);
                assert_int_equal(b.retry_after_usec,
                                 cases[i].text && strchr(cases[i].text, ',') ? 0 : cases[i].usec);
        }
}

static void a_date_to_try_again_at_is_one_of_the_servers_clock(void **state) {
        const char *at = "Wed, 27 May 2026 05:12:43 GMT", *date = "Wed, 27 May 2026 05:12:40 GMT";
        S3ResponseInput in = { .operation = S3_PUT_OBJECT,
                               .status = 503,
                               .retry_after = at,
                               .date = date,
                               .now_usec = NOW + USEC_PER_HOUR };
        _cleanup_(s3_response_done) S3Response a = { 0 }, b = { 0 };

        assert_int_equal(s3_response_classify(&in, &a), 0);
        assert_int_equal(a.retry_after_usec, 3 * USEC_PER_SEC);
        in.date = "once upon a time";
        in.now_usec = NOW;
        assert_int_equal(s3_response_classify(&in, &b), 0);
        assert_int_equal(b.retry_after_usec, 10 * USEC_PER_SEC);
}

static void what_any_other_request_would_get_as_well_is_marked(void **state) {
        static const struct {
                S3Operation operation;
                const char *code, *date;
                bool is_for_all;
        } cases[] = {
                { S3_PUT_OBJECT, "SignatureDoesNotMatch", NULL, true },
                { S3_PUT_OBJECT, "InvalidAccessKeyId", NULL, true },
                { S3_PUT_OBJECT, "ExpiredToken", NULL, true },
                { S3_PUT_OBJECT, "UserSuspended", NULL, true },
                { S3_PUT_OBJECT, "RequestTimeTooSkewed", NULL, true },
                { S3_PUT_OBJECT, "AccessDenied", NULL, false },
                { S3_PUT_OBJECT, "KMS.DisabledException", NULL, false },
                { S3_PUT_OBJECT, "QuotaExceeded", NULL, false },
                { S3_HEAD_OBJECT, NULL, "Wed, 27 May 2026 06:27:34 GMT", true },
                { S3_HEAD_OBJECT, NULL, NULL, false },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                char body[128] = "";
                S3ResponseInput in = { .operation = cases[i].operation,
                                       .status = 403,
                                       .date = cases[i].date,
                                       .now_usec = NOW };
                _cleanup_(s3_response_done) S3Response a = { 0 };

                if (cases[i].code)
                        in.body_bytes = (size_t)snprintf(
                                body, sizeof body, "<Error><Code>%s</Code></Error>", cases[i].code);
                in.body = body;
                assert_int_equal(s3_response_classify(&in, &a), 0);
                assert_int_equal(a.is_for_all, cases[i].is_for_all);
        }
}

static void a_head_that_is_refused_while_clocks_differ_is_skewed(void **state) {
        static const struct {
                S3Operation operation;
                unsigned status;
                const char *date;
                uint64_t now_usec;
                S3Verdict verdict;
        } cases[] = {
                { S3_HEAD_OBJECT, 403, "Wed, 27 May 2026 05:27:34 GMT", NOW, S3_SKEWED },
                { S3_HEAD_BUCKET, 403, "Wed, 27 May 2026 04:57:32 GMT", NOW, S3_SKEWED },
                { S3_HEAD_OBJECT, 403, "Wed, 27 May 2026 05:26:34 GMT", NOW, S3_SKEWED },
                { S3_HEAD_OBJECT, 403, "Wed, 27 May 2026 05:26:33 GMT", NOW, S3_DENIED },
                { S3_HEAD_OBJECT, 403, "Wed, 27 May 2026 05:27:34 GMT", 0, S3_DENIED },
                { S3_HEAD_OBJECT, 403, "yesterday", NOW, S3_DENIED },
                { S3_HEAD_OBJECT, 403, NULL, NOW, S3_DENIED },
                { S3_HEAD_OBJECT, 404, "Wed, 27 May 2026 06:27:34 GMT", NOW, S3_NOT_FOUND },
                { S3_GET_OBJECT, 403, "Wed, 27 May 2026 06:27:34 GMT", NOW, S3_DENIED },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                assert_int_equal(verdict_of(&(S3ResponseInput){ .operation = cases[i].operation,
                                                                .status = cases[i].status,
                                                                .date = cases[i].date,
                                                                .now_usec = cases[i].now_usec }),
                                 cases[i].verdict);
}

/* ── connections that broke ── */

static void an_answer_that_broke_off_counts_when_it_had_enough(void **state) {
        static const char error[] = "<Error><Code>QuotaExceeded</Code></Error>",
                          half[] = "<Error><Code>QuotaExce";
        static const struct {
                int error;
                unsigned status;
                const char *body;
                S3Verdict verdict;
        } cases[] = {
                { HTTP_E_CUT, 403, error, S3_FULL },
                { HTTP_E_STALLED, 403, error, S3_FULL },
                { HTTP_E_TIMEOUT, 500, error, S3_FULL },
                { HTTP_E_CUT, 403, half, S3_DENIED },
                { HTTP_E_CUT, 413, "", S3_REFUSED },
                { HTTP_E_CUT, 400, half, S3_UNREACHABLE },
                { HTTP_E_CUT, 408, "", S3_UNREACHABLE },
                { HTTP_E_CUT, 500, half, S3_UNREACHABLE },
                { HTTP_E_CUT, 200, "", S3_UNREACHABLE },
                { HTTP_E_CUT, 0, "", S3_UNREACHABLE },
                { HTTP_E_TLS, 403, error, S3_UNREACHABLE },
                { HTTP_E_PROXY, 407, "", S3_UNREACHABLE },
                { HTTP_E_STOPPED, 200, "", S3_REFUSED },
                { 4711, 0, "", S3_RETRY },
                { -1, 0, "", S3_RETRY },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                assert_int_equal(
                        verdict_of(&(S3ResponseInput){ .operation = S3_PUT_OBJECT,
                                                       .http_error = cases[i].error,
                                                       .status = cases[i].status,
                                                       .body = cases[i].body,
                                                       .body_bytes = strlen(cases[i].body) }),
                        cases[i].verdict);
}

/* ── sentences ── */

static void expect_sentence(const S3ResponseInput *in, const char *expected) {
        _cleanup_(s3_response_done) S3Response a = { 0 };

        assert_int_equal(s3_response_classify(in, &a), 0);
        assert_string_equal(a.sentence, expected);
}

static void a_sentence_needs_neither_origin_nor_region_and_stays_on_its_line(void **state) {
        static const char body[] = "<Error><Code>AccessDenied</Code><Message>a&#10;b</Message>"
                                   "</Error>";

        expect_sentence(&(S3ResponseInput){ .operation = S3_LIST_OBJECTS,
                                            .status = 403,
                                            .bucket = "b",
                                            .host = "s3.example.com:9000",
                                            .body = body,
                                            .body_bytes = strlen(body) },
                        "ListObjectsV2 of 's3://b' at 's3.example.com:9000' failed: 403 "
                        "AccessDenied (a b); allow s3:ListBucket on arn:aws:s3:::b to the keys; "
                        "some stores answer the same to a wrong access key or secret");
        expect_sentence(
                &(S3ResponseInput){ .operation = S3_GET_OBJECT,
                                    .status = 404,
                                    .bucket = "b",
                                    .key = "a\nb\x1b[2J\xff",
                                    .host = "h" },
                "GetObject of 's3://b/a\\x0ab\\x1b[2J\\xff' at 'h' failed: 404 without an "
                "error code; 'h' does not answer like an S3 store; correct endpoint, or check "
                "the proxy or load balancer in between");
        expect_sentence(&(S3ResponseInput){ .status = 404 },
                        "HeadBucket of 's3://' at '' failed: 404 without an error code; create "
                        "bucket '' at '', or correct bucket or endpoint");
}

static void the_arns_are_those_of_the_partition(void **state) {
        static const char body[] = "<Error><Code>AccessDenied</Code></Error>";

        expect_sentence(&(S3ResponseInput){ .operation = S3_ABORT_UPLOAD,
                                            .status = 403,
                                            .bucket = "b",
                                            .key = "k",
                                            .region = "us-gov-west-1",
                                            .host = "b.s3.us-gov-west-1.amazonaws.com",
                                            .body = body,
                                            .body_bytes = strlen(body) },
                        "AbortMultipartUpload of 's3://b/k' at 'b.s3.us-gov-west-1.amazonaws.com' "
                        "failed: 403 AccessDenied; allow s3:AbortMultipartUpload on "
                        "arn:aws-us-gov:s3:::b/* to the keys");
}

/* What the server wrote is quoted, never a pattern of ours. */
static void braces_in_a_stores_words_are_left_alone(void **state) {
        static const char body[] = "<Error><Code>{keys}</Code><Message>{host} %s {</Message>"
                                   "<Endpoint>{keys}</Endpoint></Error>";

        expect_sentence(&(S3ResponseInput){ .operation = S3_GET_OBJECT,
                                            .status = 301,
                                            .bucket = "{keys}",
                                            .key = "{",
                                            .host = "h",
                                            .body = body,
                                            .body_bytes = strlen(body) },
                        "GetObject of 's3://{keys}/{' at 'h' failed: 301 {keys} ({host} %s {); the "
                        "store sends us to '{keys}'; set region, or endpoint, to fit");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(every_operation_has_its_name_and_permission),
                cmocka_unit_test(a_2xx_is_well_unless_its_body_is_an_error),
                cmocka_unit_test(what_is_about_no_object_of_s3_is_a_pages),
                cmocka_unit_test(complete_is_done_when_its_body_has_an_etag),
                cmocka_unit_test(what_is_missing_depends_on_what_was_asked_for),
                cmocka_unit_test(a_status_alone_is_enough_for_a_verdict),
                cmocka_unit_test(codes_of_a_family_are_judged_alike),
                cmocka_unit_test(a_condition_that_the_store_does_not_know_is_distinguished),
                cmocka_unit_test(a_redirect_reports_its_region_by_header_or_body),
                cmocka_unit_test(a_region_that_is_none_or_ours_is_not_learnt),
                cmocka_unit_test(a_malformed_header_that_is_not_about_the_region_is_no_redirect),
                cmocka_unit_test(retry_after_is_read_as_seconds_or_as_a_date_and_capped),
                cmocka_unit_test(a_date_to_try_again_at_is_one_of_the_servers_clock),
                cmocka_unit_test(what_any_other_request_would_get_as_well_is_marked),
                cmocka_unit_test(a_head_that_is_refused_while_clocks_differ_is_skewed),
                cmocka_unit_test(an_answer_that_broke_off_counts_when_it_had_enough),
                cmocka_unit_test(a_sentence_needs_neither_origin_nor_region_and_stays_on_its_line),
                cmocka_unit_test(the_arns_are_those_of_the_partition),
                cmocka_unit_test(braces_in_a_stores_words_are_left_alone),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
