/* AWS Signature Version 4, header form, and the escaping that goes with it. Pure.
 * @see AWS IAM User Guide, "Create a signed AWS API request"; checked against the published
 *   signing test suite (tests/uploaders/s3/sigv4) */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/digest.h"
#include "lib/base/strbuf.h"

typedef struct AwsKeys { /* borrowed */
        const char *access_key, *secret_key;
        const char *token; /* session token; NULL = none */
} AwsKeys;

typedef struct AwsNameValue {
        const char *name, *value; /* raw, not escaped; a query's value NULL is the same as "" */
} AwsNameValue;

typedef struct SignRequest { /* borrowed */
        const char *method;

        /* Absolute; "" = "/". For S3 raw (decoded) bytes; with normalize_path as the URL has it,
         * the caller's escapes included. */
        const char *path;
        const AwsNameValue *queries;
        size_t n_queries;

        /* All that are to be signed. `host` must be there. When missing, `x-amz-date` (and with a
         * token `x-amz-security-token`) are added by the signer and must be sent as well. Names in
         * any case, names may repeat. */
        const AwsNameValue *headers;
        size_t n_headers;

        /* Hex SHA-256 of the body, or `UNSIGNED-PAYLOAD`; with sign_payload_header also signed
         * (and to be sent) as x-amz-content-sha256. */
        const char *payload;
        bool sign_payload_header;

        const char *region, *service;
        uint64_t time_usec; /* CLOCK_REALTIME, corrected by the caller */

        /* Every service but S3: the URL's path is normalised (RFC 3986) and escaped once more. */
        bool normalize_path;

        bool omit_token; /* it is added after signing and not signed (the suite has such cases) */
} SignRequest;

typedef struct Signature { /* all owned */
        char *canonical_request, *string_to_sign, *authorization;
        char *query; /* the canonical query string, to be put into the URL as it is; "" for none */
        char *path;  /* the escaped path, to be put into the URL as it is */
        char amz_date[20]; /* `20260527T051233Z` */
} Signature;

/** @return 0, -ENOMEM, -EINVAL when there is no host, a header's name is none or its value has CR
 *   or LF inside that is not folding, or a given x-amz-date is not time_usec */
int sign_v4(const SignRequest *request, const AwsKeys *keys, Signature *ret);
void signature_done(Signature *s); /* wipes what could give a key away */

/** Escapes as SigV4 wants it: all but A-Z a-z 0-9 - . _ ~ as %XX in upper case. @param keep_slash
 * `/` stays */
void aws_escape(StrBuf *to, const char *text, bool keep_slash);
