/* The three lists: pages of AWS, Ceph and Swift; escaped keys; pages that lead nowhere. */
#include "uploaders/s3/s3_xml.h"

#include <errno.h>
#include <string.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"
#include "lib/base/strbuf.h"

#define XMLNS " xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\""

/* ── ListParts ── */

static int parts_of(const char *text, S3PartList *ret) {
        return s3_xml_part_list(text, strlen(text), ret);
}

static void parts_are_listed(void **state) {
        _cleanup_(s3_part_list_done) S3PartList l = { 0 };

        assert_int_equal(
                parts_of("<?xml version=\"1.0\"?>\n<ListPartsResult" XMLNS ">\n"
                         "  <Bucket>b</Bucket>\n  <Key>a%20b</Key>\n  <UploadId>u</UploadId>\n"
                         "  <Initiator><ID>i</ID></Initiator>\n"
                         "  <PartNumberMarker>0</PartNumberMarker>\n"
                         "  <NextPartNumberMarker>3</NextPartNumberMarker>\n"
                         "  <MaxParts>2</MaxParts>\n  <IsTruncated>true</IsTruncated>\n"
                         "  <Part>\n    <PartNumber>1</PartNumber>\n"
                         "    <LastModified>2026-05-27T05:12:33.000Z</LastModified>\n"
                         "    <ETag>\"aa\"</ETag>\n    <Size>8388608</Size>\n  </Part>\n"
                         "  <Part><ETag>&quot;bb&quot;</ETag><Size>5368709120</Size>"
                         "<PartNumber>3</PartNumber></Part>\n</ListPartsResult>",
                         &l),
                0);
        assert_int_equal(l.n, 2);
        assert_true(l.is_truncated);
        assert_int_equal(l.next_marker, 3);
        assert_int_equal(l.items[0].number, 1);
        assert_string_equal(l.items[0].etag, "aa");
        assert_int_equal(l.items[0].bytes, 8388608);
        assert_int_equal(l.items[0].last_modified_usec, UINT64_C(1779858753000000));
        assert_int_equal(l.items[1].number, 3);
        assert_string_equal(l.items[1].etag, "bb");
        assert_int_equal(l.items[1].bytes, UINT64_C(5368709120));
        assert_int_equal(l.items[1].last_modified_usec, 0);
}

static void an_upload_without_parts_has_none(void **state) {
        S3PartList l = { .n = 7 };

        assert_int_equal(parts_of("<ListPartsResult><IsTruncated>false</IsTruncated>"
                                  "</ListPartsResult>",
                                  &l),
                         0);
        assert_int_equal(l.n, 0);
        assert_null(l.items);
        assert_false(l.is_truncated);
}

static void a_list_of_parts_that_cannot_be_relied_on_is_refused(void **state) {
        static const char *const insides[] = {
                "<Part><PartNumber>1</PartNumber><Size>1</Size></Part>", /* no ETag */
                "<Part><PartNumber>x</PartNumber><ETag>e</ETag></Part>", /* no number */
                "<Part><PartNumber>-1</PartNumber><ETag>e</ETag></Part>",
                "<Part><PartNumber>4294967296</PartNumber><ETag>e</ETag></Part>",
                "<Part><PartNumber>1</PartNumber><ETag>e</ETag><Size>1e3</Size></Part>",
                "<Part><PartNumber>1</PartNumber><ETag>a b</ETag></Part>",
                "<IsTruncated>perhaps</IsTruncated>",
                /* and no marker: the same page again, for ever */
                "<IsTruncated>true</IsTruncated>",
                "<IsTruncated>true</IsTruncated><NextPartNumberMarker>0</NextPartNumberMarker>",
                "<Part/>",
        };

        for (size_t i = 0; i < ELEMENTSOF(insides); i++) {
                _cleanup_free_ char *text = NULL;
                S3PartList l = { 0 };

                assert_true(asprintf(&text, "<ListPartsResult>%s</ListPartsResult>", insides[i]) >
                            0);
                assert_int_equal(parts_of(text, &l), -EINVAL);
                assert_null(l.items);
        }
}

static void a_page_has_ten_thousand_entries_at_most(void **state) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        _cleanup_(s3_part_list_done) S3PartList l = { 0 };
        S3PartList more = { 0 };

        strbuf_add(&b, "<ListPartsResult>");
        for (int i = 1; i <= 10000; i++)
                strbuf_addf(&b, "<Part><PartNumber>%d</PartNumber><ETag>e</ETag></Part>", i);
        strbuf_add(&b, "</ListPartsResult>");
        assert_int_equal(parts_of(b.text, &l), 0);
        assert_int_equal(l.n, 10000);
        for (unsigned i = 0; i < l.n; i++)
                assert_int_equal(l.items[i].number, i + 1);
        b.n -= strlen("</ListPartsResult>");
        strbuf_add(&b, "<Part><PartNumber>1</PartNumber><ETag>e</ETag></Part></ListPartsResult>");
        assert_int_equal(parts_of(b.text, &more), -EINVAL);
}

/* ── ListMultipartUploads ── */

static int uploads_of(const char *text, S3UploadList *ret) {
        return s3_xml_upload_list(text, strlen(text), ret);
}

static void uploads_are_listed_and_escaped_keys_decoded(void **state) {
        _cleanup_(s3_upload_list_done) S3UploadList l = { 0 };

        assert_int_equal(
                uploads_of("<ListMultipartUploadsResult" XMLNS "><Bucket>b</Bucket><KeyMarker/>"
                           "<UploadIdMarker/><NextKeyMarker>a%2Fb+c</NextKeyMarker>"
                           "<NextUploadIdMarker>2~x%2F+</NextUploadIdMarker>"
                           "<MaxUploads>2</MaxUploads><IsTruncated>true</IsTruncated>"
                           "<Upload><Key>a/b%20c%2Bd</Key><UploadId>2~w</UploadId><Initiator>"
                           "<ID>x</ID><DisplayName>y</DisplayName></Initiator>"
                           "<StorageClass>STANDARD</StorageClass>"
                           "<Initiated>2026-05-27T05:12:33.000Z</Initiated></Upload>"
                           "<Upload><Key>%C3%A9</Key><UploadId>2~x%2F+</UploadId></Upload>"
                           "<EncodingType>url</EncodingType></ListMultipartUploadsResult>",
                           &l),
                0);
        assert_int_equal(l.n, 2);
        assert_string_equal(l.items[0].key, "a/b c+d");
        assert_string_equal(l.items[0].upload_id, "2~w");
        assert_int_equal(l.items[0].initiated_usec, UINT64_C(1779858753000000));
        assert_string_equal(l.items[1].key, "\xc3\xa9");
        assert_string_equal(l.items[1].upload_id, "2~x%2F+"); /* never escaped */
        assert_int_equal(l.items[1].initiated_usec, 0);
        assert_true(l.is_truncated);
        assert_string_equal(l.next_key_marker, "a/b c");
        assert_string_equal(l.next_upload_id_marker, "2~x%2F+");
}

static void keys_are_left_alone_unless_the_answer_states_that_they_are_escaped(void **state) {
        _cleanup_(s3_upload_list_done) S3UploadList l = { 0 };

        assert_int_equal(uploads_of("<ListMultipartUploadsResult><Upload><Key>a%20b+c&amp;</Key>"
                                    "<UploadId>u</UploadId></Upload><IsTruncated>false"
                                    "</IsTruncated></ListMultipartUploadsResult>",
                                    &l),
                         0);
        assert_string_equal(l.items[0].key, "a%20b+c&");
}

/* Ceph lists such keys in what is no XML; they must not hide the others. */
static void a_key_with_control_characters_hides_no_other(void **state) {
        _cleanup_(s3_upload_list_done) S3UploadList l = { 0 };

        assert_int_equal(
                uploads_of("<ListMultipartUploadsResult><Upload><Key>a\tb&#x9;&#x01;&#31;\x02&#x7f;"
                           "</Key><UploadId>u</UploadId></Upload><Upload><Key>b</Key><UploadId>v"
                           "</UploadId></Upload></ListMultipartUploadsResult>",
                           &l),
                0);
        assert_int_equal(l.n, 2);
        assert_string_equal(l.items[0].key, "a\tb\t\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\x7f");
        assert_string_equal(l.items[1].key, "b");
}

static void an_upload_that_cannot_be_named_is_left_out(void **state) {
        static const char *const odd[] = {
                "<Upload><Key>k</Key></Upload>",
                "<Upload><UploadId>u</UploadId></Upload>",
                "<Upload><Key/><UploadId>u</UploadId></Upload>",
                "<Upload><Key>k</Key><UploadId></UploadId></Upload>",
                "<Upload><Key>a%2</Key><UploadId>u</UploadId></Upload>",
                "<Upload><Key>a%00b</Key><UploadId>u</UploadId></Upload>",
                "<Upload><Key>a%zz</Key><UploadId>u</UploadId></Upload>",
                "<Upload/>",
        };

        for (size_t i = 0; i < ELEMENTSOF(odd); i++) {
                _cleanup_free_ char *text = NULL;
                _cleanup_(s3_upload_list_done) S3UploadList l = { 0 };

                assert_true(asprintf(&text,
                                     "<ListMultipartUploadsResult><EncodingType>url</EncodingType>"
                                     "<Upload><Key>%%41</Key><UploadId>1</UploadId></Upload>%s"
                                     "<Upload><Key>%%42</Key><UploadId>2</UploadId></Upload>%s"
                                     "</ListMultipartUploadsResult>",
                                     odd[i], odd[i]) > 0);
                assert_int_equal(uploads_of(text, &l), 0);
                assert_int_equal(l.n, 2);
                assert_string_equal(l.items[0].key, "A");
                assert_string_equal(l.items[0].upload_id, "1");
                assert_string_equal(l.items[1].key, "B");
                assert_string_equal(l.items[1].upload_id, "2");
        }
}

static void keys_and_ids_that_are_too_long_are_left_out(void **state) {
        for (int n = 1024; n <= 1025; n++) {
                _cleanup_free_ char *text = NULL;
                _cleanup_(s3_upload_list_done) S3UploadList l = { 0 };

                assert_true(asprintf(&text,
                                     "<ListMultipartUploadsResult><Upload><Key>%0*d</Key><UploadId>"
                                     "u</UploadId></Upload><Upload><Key>k</Key><UploadId>%0*d"
                                     "</UploadId></Upload></ListMultipartUploadsResult>",
                                     n, 0, n, 0) > 0);
                assert_int_equal(uploads_of(text, &l), 0);
                assert_int_equal(l.n, n == 1024 ? 2 : 0);
        }
}

static void a_list_of_uploads_that_cannot_be_relied_on_is_refused(void **state) {
        static const char *const insides[] = {
                "<IsTruncated>true</IsTruncated>",
                "<IsTruncated>true</IsTruncated><NextKeyMarker/>",
                "<IsTruncated>perhaps</IsTruncated>",
                "<EncodingType>url</EncodingType><NextKeyMarker>%zz</NextKeyMarker>",
        };

        for (size_t i = 0; i < ELEMENTSOF(insides); i++) {
                _cleanup_free_ char *text = NULL;
                S3UploadList l = { 0 };

                assert_true(asprintf(&text,
                                     "<ListMultipartUploadsResult>%s</ListMultipartUploadsResult>",
                                     insides[i]) > 0);
                assert_int_equal(uploads_of(text, &l), -EINVAL);
                assert_null(l.items);
        }
}

/* ── ListObjectsV2 ── */

static int objects_of(const char *text, S3ObjectList *ret) {
        return s3_xml_object_list(text, strlen(text), ret);
}

static void objects_and_prefixes_are_listed(void **state) {
        _cleanup_(s3_object_list_done) S3ObjectList l = { 0 };

        assert_int_equal(
                objects_of("<ListBucketResult" XMLNS "><Name>b</Name><Prefix>n/</Prefix>"
                           "<NextContinuationToken>1/a+b%20==</NextContinuationToken>"
                           "<KeyCount>3</KeyCount><MaxKeys>3</MaxKeys><Delimiter>%2F</Delimiter>"
                           "<EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>"
                           "<Contents><Key>n/a+b%2Bc</Key><LastModified>2026-05-27T05:12:33.000Z"
                           "</LastModified><ETag>&quot;e&quot;</ETag><Size>0</Size><Owner><ID>o"
                           "</ID></Owner></Contents>"
                           "<Contents><Key>n/%F0%9F%9A%80</Key><Size>18446744073709551615</Size>"
                           "</Contents>"
                           "<CommonPrefixes><Prefix>n/x%20y/</Prefix></CommonPrefixes>"
                           "<CommonPrefixes><Prefix>n/z/</Prefix></CommonPrefixes>"
                           "</ListBucketResult>",
                           &l),
                0);
        assert_int_equal(l.n, 2);
        assert_string_equal(l.items[0].key, "n/a b+c");
        assert_int_equal(l.items[0].bytes, 0);
        assert_int_equal(l.items[0].last_modified_usec, UINT64_C(1779858753000000));
        assert_string_equal(l.items[1].key, "n/\xf0\x9f\x9a\x80");
        assert_int_equal(l.items[1].bytes, UINT64_MAX);
        assert_int_equal(l.n_prefixes, 2);
        assert_string_equal(l.prefixes[0], "n/x y/");
        assert_string_equal(l.prefixes[1], "n/z/");
        assert_true(l.is_truncated);
        assert_string_equal(l.next_token, "1/a+b%20=="); /* never escaped */
}

static void an_empty_bucket_has_no_objects(void **state) {
        _cleanup_(s3_object_list_done) S3ObjectList l = { 0 };

        assert_int_equal(objects_of("<ListBucketResult><KeyCount>0</KeyCount><IsTruncated>False"
                                    "</IsTruncated></ListBucketResult>",
                                    &l),
                         0);
        assert_int_equal(l.n, 0);
        assert_int_equal(l.n_prefixes, 0);
        assert_null(l.next_token);
}

static void a_key_may_have_1024_bytes_and_blanks_at_its_ends(void **state) {
        for (int n = S3_KEY_MAX; n <= S3_KEY_MAX + 1; n++) {
                _cleanup_free_ char *text = NULL;
                _cleanup_(s3_object_list_done) S3ObjectList l = { 0 };

                assert_true(asprintf(&text,
                                     "<ListBucketResult><Contents><Key> %0*d\n</Key></Contents>"
                                     "</ListBucketResult>",
                                     n - 2, 0) > 0);
                assert_int_equal(objects_of(text, &l), n <= S3_KEY_MAX ? 0 : -EINVAL);
                if (n <= S3_KEY_MAX) {
                        assert_int_equal(strlen(l.items[0].key), n);
                        assert_true(l.items[0].key[0] == ' ' && l.items[0].key[n - 1] == '\n');
                }
        }
}

static void a_list_of_objects_that_cannot_be_relied_on_is_refused(void **state) {
        static const char *const insides[] = {
                "<Contents><Size>1</Size></Contents>",
                "<Contents><Key>k</Key><Size>-1</Size></Contents>",
                "<Contents><Key>k</Key><Size></Size></Contents>",
                "<CommonPrefixes></CommonPrefixes><IsTruncated>true</IsTruncated>",
                "<IsTruncated>true</IsTruncated><NextContinuationToken/>",
                "<EncodingType>url</EncodingType><Contents><Key>%</Key></Contents>",
                "<Contents><Key>a</Key><Contents><Key>b</Key></Contents></Contents><Contents/>",
        };

        for (size_t i = 0; i < ELEMENTSOF(insides); i++) {
                _cleanup_free_ char *text = NULL;
                S3ObjectList l = { 0 };

                assert_true(asprintf(&text, "<ListBucketResult>%s</ListBucketResult>", insides[i]) >
                            0);
                assert_int_equal(objects_of(text, &l), -EINVAL);
                assert_null(l.items);
        }
}

static void of_two_elements_of_one_name_the_last_counts_and_nothing_leaks(void **state) {
        _cleanup_(s3_object_list_done) S3ObjectList l = { 0 };

        assert_int_equal(
                objects_of("<ListBucketResult><Contents><Key>a</Key><Key>b</Key></Contents>"
                           "<NextContinuationToken>x</NextContinuationToken>"
                           "<NextContinuationToken>y</NextContinuationToken></ListBucketResult>",
                           &l),
                0);
        assert_string_equal(l.items[0].key, "b");
        assert_string_equal(l.next_token, "y");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(parts_are_listed),
                cmocka_unit_test(an_upload_without_parts_has_none),
                cmocka_unit_test(a_list_of_parts_that_cannot_be_relied_on_is_refused),
                cmocka_unit_test(a_page_has_ten_thousand_entries_at_most),
                cmocka_unit_test(uploads_are_listed_and_escaped_keys_decoded),
                cmocka_unit_test(
                        keys_are_left_alone_unless_the_answer_states_that_they_are_escaped),
                cmocka_unit_test(a_key_with_control_characters_hides_no_other),
                cmocka_unit_test(an_upload_that_cannot_be_named_is_left_out),
                cmocka_unit_test(keys_and_ids_that_are_too_long_are_left_out),
                cmocka_unit_test(a_list_of_uploads_that_cannot_be_relied_on_is_refused),
                cmocka_unit_test(objects_and_prefixes_are_listed),
                cmocka_unit_test(an_empty_bucket_has_no_objects),
                cmocka_unit_test(a_key_may_have_1024_bytes_and_blanks_at_its_ends),
                cmocka_unit_test(a_list_of_objects_that_cannot_be_relied_on_is_refused),
                cmocka_unit_test(of_two_elements_of_one_name_the_last_counts_and_nothing_leaks),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
