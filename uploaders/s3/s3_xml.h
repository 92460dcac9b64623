/* The documents of S3: what we read of its answers, and the one that we send. Pure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "uploaders/aws/aws_xml.h"

#define S3_ETAG_SIZE 136
#define S3_UPLOAD_ID_SIZE 1025
#define S3_KEY_MAX 1024

/** @return 0 and the UploadId of CreateMultipartUpload's answer; -EINVAL */
int s3_xml_upload_id(const char *text, size_t n, char ret[static S3_UPLOAD_ID_SIZE]);

/** CompleteMultipartUpload's answer, unquoted as in s3_etag_unquote(). -EINVAL when it has none */
int s3_xml_complete_etag(const char *text, size_t n, char ret[static S3_ETAG_SIZE]);

typedef struct S3ListedPart {
        unsigned number;
        uint64_t bytes;
        char etag[S3_ETAG_SIZE];     /* without quotes */
        uint64_t last_modified_usec; /* 0 = unknown */
} S3ListedPart;
typedef struct S3PartList { /* one page */
        S3ListedPart *items;
        size_t n;
        bool is_truncated;
        unsigned next_marker;
} S3PartList;
int s3_xml_part_list(const char *text, size_t n, S3PartList *ret); /* 0, -EINVAL, -ENOMEM */
void s3_part_list_done(S3PartList *l);

typedef struct S3ListedUpload {
        char *key;
        char *upload_id;
        uint64_t initiated_usec; /* 0 = unknown, or not to be read */
} S3ListedUpload;
typedef struct S3UploadList {
        S3ListedUpload *items;
        size_t n;
        bool is_truncated;
        char *next_key_marker, *next_upload_id_marker;
} S3UploadList;
/** Ask without encoding-type: Ceph 16.2 escapes the keys then, but neither says so nor escapes the
 * markers. Control characters in keys come out as U+FFFD. An upload whose key or id is missing,
 * too long or wrongly escaped is left out. @return 0, -EINVAL, -ENOMEM */
int s3_xml_upload_list(const char *text, size_t n, S3UploadList *ret);
void s3_upload_list_done(S3UploadList *l);

typedef struct S3ListedObject {
        char *key;
        uint64_t bytes, last_modified_usec;
} S3ListedObject;
typedef struct
        /* ListObjectsV2; asked for with encoding-type=url and decoded here when the answer says
         * so */
        S3ObjectList {
        S3ListedObject *items;
        size_t n;
        char **prefixes; /* CommonPrefixes */
        size_t n_prefixes;
        bool is_truncated;
        char *next_token;
} S3ObjectList;
int s3_xml_object_list(const char *text, size_t n, S3ObjectList *ret);
void s3_object_list_done(S3ObjectList *l);

typedef struct S3CompletePart {
        unsigned number;
        const char *etag; /* without quotes */

        /* Base64, as <ChecksumSHA256>; NULL = not sent. AWS demands it of each part when the
         * upload was created with SHA256 ("The complete request must include the checksum for each
         * part"). */
        const char *checksum_sha256;
} S3CompletePart;
/** The body of CompleteMultipartUpload. @return the caller's, NULL for lack of memory */
char *s3_xml_complete_body(const S3CompletePart *parts, size_t n);

/** Copies an ETag without its quotes and `W/`. @return 0, -EINVAL for one that is too long, empty
 * or has control characters or those that XML escapes */
int s3_etag_unquote(char ret[static S3_ETAG_SIZE], const char *etag);
