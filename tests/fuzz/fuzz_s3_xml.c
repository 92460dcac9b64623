/* What a store may say in XML: every parser gets every input. Refused, or so bounded that the
 * callers need not look again; and any answer gets a verdict and a sentence of one line. */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "uploaders/aws/sts.h"
#include "uploaders/s3/s3_endpoint.h"
#include "uploaders/s3/s3_response.h"
#include "uploaders/s3/s3_xml.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* Not assert(): a build with NDEBUG must notice, too. */
static void check(bool is_true) {
        if (!is_true)
                abort();
}

/* Goes to a terminal or into a log. */
static void check_line(const char *text, size_t size) {
        check(memchr(text, '\0', size) != NULL);
        for (; *text; text++)
                check((unsigned char)*text >= 0x20 && *text != 0x7f);
}

static bool is_read(int r) {
        check(r == 0 || r == -EINVAL);
        return r == 0;
}

static void check_key(const char *key) {
        check(key && strlen(key) <= S3_KEY_MAX);
}

static void check_etag(const char *etag) {
        char again[S3_ETAG_SIZE];

        check(s3_etag_unquote(again, etag) == 0 && strcmp(again, etag) == 0);
}

static void try_words(const char *text, size_t n) {
        char id[S3_UPLOAD_ID_SIZE], etag[S3_ETAG_SIZE];
        AwsError e;

        if (is_read(aws_xml_error(text, n, &e))) {
                check_line(e.code, sizeof e.code);
                check_line(e.message, sizeof e.message);
                check_line(e.region, sizeof e.region);
                check_line(e.bucket, sizeof e.bucket);
                check_line(e.endpoint, sizeof e.endpoint);
                check_line(e.server_time, sizeof e.server_time);
                check_line(e.request_id, sizeof e.request_id);
        }
        if (is_read(s3_xml_upload_id(text, n, id)))
                check(id[0] != '\0' && strlen(id) < sizeof id);
        if (is_read(s3_xml_complete_etag(text, n, etag)))
                check_etag(etag);
}

static void try_lists(const char *text, size_t n) {
        S3PartList parts = { 0 };
        S3UploadList uploads = { 0 };
        S3ObjectList objects = { 0 };

        if (is_read(s3_xml_part_list(text, n, &parts)))
                check(!parts.is_truncated || parts.next_marker > 0);
        for (size_t i = 0; i < parts.n; i++)
                check_etag(parts.items[i].etag);
        if (is_read(s3_xml_upload_list(text, n, &uploads)))
                check(!uploads.is_truncated || uploads.next_key_marker[0]);
        for (size_t i = 0; i < uploads.n; i++) {
                check_key(uploads.items[i].key);
                check(uploads.items[i].upload_id[0] &&
                      strlen(uploads.items[i].upload_id) < S3_UPLOAD_ID_SIZE);
        }
        if (is_read(s3_xml_object_list(text, n, &objects)))
                check(!objects.is_truncated || objects.next_token[0]);
        for (size_t i = 0; i < objects.n; i++)
                check_key(objects.items[i].key);
        for (size_t i = 0; i < objects.n_prefixes; i++)
                check_key(objects.prefixes[i]);
        s3_part_list_done(&parts);
        s3_upload_list_done(&uploads);
        s3_object_list_done(&objects);
}

static void try_sts(const char *text, size_t n) {
        StsCredentials c = { 0 };

        if (!is_read(sts_xml_credentials(text, n, &c)))
                return;
        check(c.access_key[0] && c.secret_key[0] && c.token[0] && c.expires_usec > 0);
        sts_credentials_done(&c);
}

static void try_answer(const S3ResponseInput *in) {
        S3Response a = { 0 };

        check(s3_response_classify(in, &a) == 0);
        check(a.verdict <= S3_UNCONDITIONAL && (a.verdict == S3_OK) == !a.sentence);
        if (a.sentence)
                check_line(a.sentence, strlen(a.sentence) + 1);
        /* a caller may put it into a host name, and must not be led in a circle */
        if (a.region[0])
                check(aws_region_is_sane(a.region) && strcmp(a.region, in->region) != 0);
        s3_response_done(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        static const unsigned statuses[] = { 200, 301, 400, 403, 404, 409, 501, 503 };
        const char *text = (const char *)data;

        try_words(text, n);
        try_lists(text, n);
        try_sts(text, n);
        for (int o = 0; o < N_S3_OPERATIONS; o++)
                try_answer(&(S3ResponseInput){
                        .operation = (S3Operation)o,
                        .is_conditional = n % 2 == 0,
                        .status = statuses[(n + (size_t)o) % ELEMENTSOF(statuses)],
                        .body = text,
                        .body_bytes = n,
                        .bucket = "b",
                        .key = "k",
                        .region = "eu-west-1",
                        .host = "s3.example.com",
                });
        return 0;
}
