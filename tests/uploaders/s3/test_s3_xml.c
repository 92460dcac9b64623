/* The small documents, the limits that hold for all of them, and what is sent. */
#include "uploaders/s3/s3_xml.h"

#include <errno.h>
#include <string.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"
#include "lib/base/strbuf.h"
#include "uploaders/aws/sts.h"

#define XMLNS " xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\""
#define DECLARATION "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"

static int error_of(const char *text, AwsError *ret) {
        return aws_xml_error(text, strlen(text), ret);
}

static int upload_id_of(const char *text, char *ret) {
        return s3_xml_upload_id(text, strlen(text), ret);
}

/* ── <Error> ── */

static void an_error_is_read_with_what_redirects_and_clocks_need(void **state) {
        AwsError e;

        assert_int_equal(
                error_of(DECLARATION
                         "<Error><Code>AuthorizationHeaderMalformed</Code><Message>the region "
                         "'us-east-1' is wrong; expecting 'eu-west-1'</Message><Region>eu-west-1"
                         "</Region><RequestId>4442587FB7D0A2F9</RequestId><HostId>x/y=</HostId>"
                         "</Error>",
                         &e),
                0);
        assert_string_equal(e.code, "AuthorizationHeaderMalformed");
        assert_string_equal(e.message, "the region 'us-east-1' is wrong; expecting 'eu-west-1'");
        assert_string_equal(e.region, "eu-west-1");
        assert_string_equal(e.request_id, "4442587FB7D0A2F9");
        assert_string_equal(e.bucket, "");

        assert_int_equal(error_of("<Error><Code>PermanentRedirect</Code><Endpoint>"
                                  "b.s3.eu-west-1.amazonaws.com</Endpoint><Bucket>b</Bucket>"
                                  "<ServerTime>2026-05-27T05:12:33Z</ServerTime></Error>",
                                  &e),
                         0);
        assert_string_equal(e.endpoint, "b.s3.eu-west-1.amazonaws.com");
        assert_string_equal(e.bucket, "b");
        assert_string_equal(e.server_time, "2026-05-27T05:12:33Z");
        assert_string_equal(e.region, ""); /* of the one before nothing is left */
}

static void the_errors_of_ceph_and_sts_are_read_as_well(void **state) {
        AwsError e;

        assert_int_equal(error_of(DECLARATION
                                  "<Error><Code>NoSuchKey</Code><Message></Message><BucketName>"
                                  "probe</BucketName><RequestId>tx0-default</RequestId><HostId/>"
                                  "</Error>",
                                  &e),
                         0);
        assert_string_equal(e.code, "NoSuchKey");
        assert_string_equal(e.message, "");
        assert_string_equal(e.bucket, "probe");

        assert_int_equal(
                error_of("<ErrorResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">\n"
                         "  <Error>\n    <Type>Sender</Type>\n    <Code>ExpiredTokenException"
                         "</Code>\n    <Message>Token expired</Message>\n  </Error>\n"
                         "  <RequestId>7a62c49f</RequestId>\n</ErrorResponse>\n",
                         &e),
                0);
        assert_string_equal(e.code, "ExpiredTokenException");
        assert_string_equal(e.message, "Token expired");
        assert_string_equal(e.request_id, "7a62c49f");
}

static void an_error_without_a_code_is_still_an_error(void **state) {
        AwsError e = { .code = "x" };

        assert_int_equal(error_of("<Error/>", &e), 0);
        assert_string_equal(e.code, "");
        assert_int_equal(error_of("<s3:Error xmlns:s3=\"x\"><s3:Code>C</s3:Code></s3:Error>", &e),
                         0);
        assert_string_equal(e.code, "C");
}

static void a_message_becomes_one_harmless_line(void **state) {
        char text[4096];
        AwsError e;

        assert_int_equal(error_of("<Error><Message>a&#10;b\tc &#x9b;31m \xc3\xa9 &#x7f; &lt;x&gt;"
                                  "</Message></Error>",
                                  &e),
                         0);
        assert_string_equal(e.message, "a b c \\xc2\\x9b31m \xc3\xa9 \\x7f <x>");

        /* cut between characters, never inside of one */
        (void)snprintf(text, sizeof text,
                       "<Error><Code>%0*d</Code><Message>%0*d\xf0\x9f\x9a\x80"
                       "</Message></Error>",
                       (int)sizeof e.code, 0, (int)sizeof e.message - 3, 0);
        assert_int_equal(error_of(text, &e), 0);
        assert_int_equal(strlen(e.code), sizeof e.code - 1);
        assert_int_equal(strlen(e.message), sizeof e.message - 3);
}

/* SignatureDoesNotMatch repeats the canonical request in hexadecimal, which may be long. */
static void a_long_element_that_nobody_needs_does_no_harm(void **state) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        AwsError e;

        strbuf_add(&b, "<Error><Code>SignatureDoesNotMatch</Code><CanonicalRequestBytes>");
        for (int i = 0; i < 30000; i++)
                strbuf_add(&b, "47 ");
        strbuf_add(&b, "</CanonicalRequestBytes><RequestId>r</RequestId></Error>");
        assert_int_equal(error_of(b.text, &e), 0);
        assert_string_equal(e.code, "SignatureDoesNotMatch");
        assert_string_equal(e.request_id, "r");
}

/* ── limits and rubbish ── */

static void what_is_no_sound_document_is_refused_by_every_parser(void **state) {
        static const char *const texts[] = {
                "",
                " \r\n\t ",
                "no xml",
                "{\"error\": 1}",
                "<html><body>504</body></html>",
                "<Error>",
                "<Error><Code>x</Code>",
                "<Error><Code>x</Error></Code>",
                "<Error><Code>\xff\xfe</Code></Error>",
                "<Error><Code>\xc3</Code></Error>",
                "<Error><Code>\xed\xa0\x80</Code></Error>",
                "<Error><Code>&unknown;</Code></Error>",
                "<Error><Code>&#0;</Code></Error>",
                "<Error><Code>&#x;</Code></Error>",
                "<Error><Code>&#x1</Code></Error>",
                "<Error><Code>&#1x;</Code></Error>",
                "<Error><Code>&#1a;</Code></Error>",
                "<Error><Code>&#-1;</Code></Error>",
                "<Error><Code>&#xd800;</Code></Error>",
                "<Error><Code>&#x1",
                "&#x1;",
                "<Error/><Error/>",
                "<Error/>x",
                "<!DOCTYPE Error><Error><Code>x</Code></Error>",
                "<!DOCTYPE Error [<!ENTITY a \"b\">]><Error><Code>&a;</Code></Error>",
                "<!DOCTYPE Error SYSTEM \"file:///etc/passwd\"><Error/>",
                "<?xml version=\"1.0\" encoding=\"UTF-16\"?><Errox/>",
                "<Other/>",
                "\xff\xfe<\0E\0",
        };

        for (size_t i = 0; i < ELEMENTSOF(texts); i++) {
                const char *t = texts[i];
                size_t n = strlen(t);
                char id[S3_UPLOAD_ID_SIZE] = "kept", etag[S3_ETAG_SIZE] = "kept";
                AwsError e = { .code = "kept" };
                S3PartList parts = { 0 };
                S3UploadList uploads = { 0 };
                S3ObjectList objects = { 0 };
                StsCredentials credentials = { 0 };

                assert_int_equal(aws_xml_error(t, n, &e), -EINVAL);
                assert_string_equal(e.code, "kept");
                assert_int_equal(s3_xml_upload_id(t, n, id), -EINVAL);
                assert_string_equal(id, "kept");
                assert_int_equal(s3_xml_complete_etag(t, n, etag), -EINVAL);
                assert_string_equal(etag, "kept");
                assert_int_equal(s3_xml_part_list(t, n, &parts), -EINVAL);
                assert_int_equal(s3_xml_upload_list(t, n, &uploads), -EINVAL);
                assert_int_equal(s3_xml_object_list(t, n, &objects), -EINVAL);
                assert_int_equal(sts_xml_credentials(t, n, &credentials), -EINVAL);
        }
        assert_int_equal(aws_xml_error(NULL, 0, &(AwsError){ 0 }), -EINVAL);
}

static void nesting_and_names_have_an_end(void **state) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        AwsError e;

        strbuf_add(&b, "<Error>");
        for (int i = 0; i < 15; i++)
                strbuf_add(&b, "<a>");
        for (int i = 0; i < 15; i++)
                strbuf_add(&b, "</a>");
        strbuf_add(&b, "<Code>x</Code></Error>");
        assert_int_equal(error_of(b.text, &e), 0);
        assert_string_equal(e.code, "x");

        strbuf_clear(&b);
        for (int i = 0; i < 17; i++)
                strbuf_add(&b, "<Error>");
        for (int i = 0; i < 17; i++)
                strbuf_add(&b, "</Error>");
        assert_int_equal(error_of(b.text, &e), -EINVAL);

        strbuf_clear(&b);
        strbuf_addf(&b, "<Error><%0*d/></Error>", 600, 0);
        memset(b.text + 8, 'n', 600);
        assert_int_equal(error_of(b.text, &e), -EINVAL);
}

static void a_leaf_is_found_by_its_place_not_by_its_name(void **state) {
        AwsError e;

        assert_int_equal(error_of("<Error><Detail><Code>inner</Code></Detail><Code>outer</Code>"
                                  "</Error>",
                                  &e),
                         0);
        assert_string_equal(e.code, "outer");
        assert_int_equal(error_of("<Error><Code>a<b/>c</Code></Error>", &e), 0);
        assert_string_equal(e.code, ""); /* not a leaf */
        assert_int_equal(
                error_of("<Error><Code>a<!-- no -->b<![CDATA[<c>]]>&amp;</Code></Error>", &e), 0);
        assert_string_equal(e.code, "ab<c>&");
}

/* ── answers of one word ── */

static void an_upload_id_is_read(void **state) {
        char id[S3_UPLOAD_ID_SIZE], text[2048];

        assert_int_equal(upload_id_of(DECLARATION
                                      "<InitiateMultipartUploadResult" XMLNS "><Bucket>b</Bucket>"
                                      "<Key>a b</Key><UploadId>2~VXBs/b+g=&amp;x</UploadId>"
                                      "</InitiateMultipartUploadResult>",
                                      id),
                         0);
        assert_string_equal(id, "2~VXBs/b+g=&x");
        (void)snprintf(text, sizeof text,
                       "<InitiateMultipartUploadResult><UploadId>%0*d</UploadId>"
                       "</InitiateMultipartUploadResult>",
                       S3_UPLOAD_ID_SIZE - 1, 0);
        assert_int_equal(upload_id_of(text, id), 0);
        assert_int_equal(strlen(id), S3_UPLOAD_ID_SIZE - 1);
}

static void an_upload_id_that_is_missing_empty_or_too_long_is_refused(void **state) {
        char id[S3_UPLOAD_ID_SIZE], text[2048];

        assert_int_equal(upload_id_of("<InitiateMultipartUploadResult/>", id), -EINVAL);
        assert_int_equal(upload_id_of("<InitiateMultipartUploadResult><UploadId></UploadId>"
                                      "</InitiateMultipartUploadResult>",
                                      id),
                         -EINVAL);
        (void)snprintf(text, sizeof text,
                       "<InitiateMultipartUploadResult><UploadId>%0*d</UploadId>"
                       "</InitiateMultipartUploadResult>",
                       S3_UPLOAD_ID_SIZE, 0);
        assert_int_equal(upload_id_of(text, id), -EINVAL);
}

static void the_etag_of_complete_is_read_behind_the_blanks_that_keep_the_connection(void **state) {
        static const char *const texts[] = {
                "<CompleteMultipartUploadResult" XMLNS
                "><ETag>&quot;3858f62230ac3c915f300c664312c11f"
                "-9&quot;</ETag></CompleteMultipartUploadResult>",
                " \n \r\n" DECLARATION
                "\n \n<CompleteMultipartUploadResult><ETag>&#34;3858f62230ac3c915f300c664312c11f-9"
                "&#34;</ETag></CompleteMultipartUploadResult>\n",
                DECLARATION "  \n<CompleteMultipartUploadResult><Location>http://h/b/k</Location>"
                            "<ETag>3858f62230ac3c915f300c664312c11f-9</ETag>"
                            "</CompleteMultipartUploadResult>",
        };
        char etag[S3_ETAG_SIZE];

        for (size_t i = 0; i < ELEMENTSOF(texts); i++) {
                assert_int_equal(s3_xml_complete_etag(texts[i], strlen(texts[i]), etag), 0);
                assert_string_equal(etag, "3858f62230ac3c915f300c664312c11f-9");
        }
}

static void an_etag_loses_its_quotes_and_must_be_sound(void **state) {
        static const struct {
                const char *etag, *bare; /* NULL = refused */
        } cases[] = {
                { "\"abc\"", "abc" }, { "abc", "abc" },     { "W/\"abc-12\"", "abc-12" },
                { "", NULL },         { "\"\"", NULL },     { "\"", NULL },
                { "W/", NULL },       { "\"abc", NULL },    { "abc\"", NULL },
                { "\"a\"b\"", NULL }, { "\"a b\"", NULL },  { "\"a<b\"", NULL },
                { "\"a&b\"", NULL },  { "\"a\nb\"", NULL }, { "\"\xc3\xa9\"", NULL },
        };
        char long_one[S3_ETAG_SIZE + 1], etag[S3_ETAG_SIZE];

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                (void)strcpy(etag, "kept");
                assert_int_equal(s3_etag_unquote(etag, cases[i].etag), cases[i].bare ? 0 : -EINVAL);
                assert_string_equal(etag, cases[i].bare ? cases[i].bare : "kept");
        }
        memset(long_one, 'e', sizeof long_one);
        long_one[S3_ETAG_SIZE] = '\0';
        assert_int_equal(s3_etag_unquote(etag, long_one), -EINVAL);
        long_one[S3_ETAG_SIZE - 1] = '\0';
        assert_int_equal(s3_etag_unquote(etag, long_one), 0);
        assert_string_equal(etag, long_one);
}

/* ── STS ── */

#define STS_CREDENTIALS                                                                            \
        "<Credentials><AccessKeyId>ASIAEXAMPLE</AccessKeyId><SecretAccessKey>s/e+c=</"             \
        "SecretAccessKey><SessionToken>FwoGZXIv//==</SessionToken><Expiration>"                    \
        "2026-05-27T06:12:33Z</Expiration></Credentials>"

static void credentials_of_sts_are_read(void **state) {
        static const char *const texts[] = {
                "<AssumeRoleResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">"
                "<AssumeRoleResult><AssumedRoleUser><Arn>a</Arn></AssumedRoleUser>" STS_CREDENTIALS
                "</AssumeRoleResult><ResponseMetadata><RequestId>r</RequestId></ResponseMetadata>"
                "</AssumeRoleResponse>",
                "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult>"
                "<SubjectFromWebIdentityToken>s</SubjectFromWebIdentityToken>" STS_CREDENTIALS
                "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>",
        };

        for (size_t i = 0; i < ELEMENTSOF(texts); i++) {
                StsCredentials c = { 0 };

                assert_int_equal(sts_xml_credentials(texts[i], strlen(texts[i]), &c), 0);
                assert_string_equal(c.access_key, "ASIAEXAMPLE");
                assert_string_equal(c.secret_key, "s/e+c=");
                assert_string_equal(c.token, "FwoGZXIv//==");
                assert_int_equal(c.expires_usec, UINT64_C(1779862353000000));
                sts_credentials_done(&c);
                assert_null(c.secret_key);
        }
}

static void credentials_of_which_something_is_missing_are_refused(void **state) {
        static const char *const names[] = { "AccessKeyId", "SecretAccessKey", "SessionToken",
                                             "Expiration" };

        for (size_t i = 0; i < ELEMENTSOF(names); i++) {
                char text[] = "<R><RResult>" STS_CREDENTIALS "</RResult></R>";
                char *from = strchr(strstr(text, names[i]), '>') + 1, *to = strstr(from, "</");
                StsCredentials c = { 0 };

                memmove(from, to, strlen(to) + 1);
                assert_int_equal(sts_xml_credentials(text, strlen(text), &c), -EINVAL);
                assert_null(c.access_key);
                assert_null(c.secret_key);
        }
        for (size_t i = 0; i < ELEMENTSOF(names); i++) {
                char text[] = "<R><RResult>" STS_CREDENTIALS "</RResult></R>";
                char *name = text;
                StsCredentials c = { 0 };

                while ((name = strstr(name, names[i]))) /* where it begins and where it ends */
                        *name = 'x';
                assert_int_equal(sts_xml_credentials(text, strlen(text), &c), -EINVAL);
                assert_null(c.secret_key);
        }
}

/* ── what is sent ── */

static void the_body_of_complete_lists_the_parts_with_quoted_etags(void **state) {
        const S3CompletePart parts[] = { { .number = 1, .etag = "aa", .checksum_sha256 = "C+/=" },
                                         { .number = 10000, .etag = "bb" } };
        _cleanup_free_ char *body = s3_xml_complete_body(parts, ELEMENTSOF(parts));
        _cleanup_free_ char *empty = s3_xml_complete_body(NULL, 0);

        assert_string_equal(body,
                            "<CompleteMultipartUpload" XMLNS "><Part><PartNumber>1</PartNumber>"
                            "<ETag>&quot;aa&quot;</ETag><ChecksumSHA256>C+/=</ChecksumSHA256></"
                            "Part><Part><PartNumber>10000"
                            "</PartNumber><ETag>&quot;bb&quot;</ETag></Part>"
                            "</CompleteMultipartUpload>");
        assert_string_equal(empty, "<CompleteMultipartUpload" XMLNS "></CompleteMultipartUpload>");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(an_error_is_read_with_what_redirects_and_clocks_need),
                cmocka_unit_test(the_errors_of_ceph_and_sts_are_read_as_well),
                cmocka_unit_test(an_error_without_a_code_is_still_an_error),
                cmocka_unit_test(a_message_becomes_one_harmless_line),
                cmocka_unit_test(a_long_element_that_nobody_needs_does_no_harm),
                cmocka_unit_test(what_is_no_sound_document_is_refused_by_every_parser),
                cmocka_unit_test(nesting_and_names_have_an_end),
                cmocka_unit_test(a_leaf_is_found_by_its_place_not_by_its_name),
                cmocka_unit_test(an_upload_id_is_read),
                cmocka_unit_test(an_upload_id_that_is_missing_empty_or_too_long_is_refused),
                cmocka_unit_test(
                        the_etag_of_complete_is_read_behind_the_blanks_that_keep_the_connection),
                cmocka_unit_test(an_etag_loses_its_quotes_and_must_be_sound),
                cmocka_unit_test(credentials_of_sts_are_read),
                cmocka_unit_test(credentials_of_which_something_is_missing_are_refused),
                cmocka_unit_test(the_body_of_complete_lists_the_parts_with_quoted_etags),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
