/* What AWS and programs answer, as text: times, credentials in JSON; and the command line of a
 * credential_process. Pure. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "uploaders/aws/credentials_secret.h"

/** `2026-05-27T05:12:33.000Z`, as in XML and JSON (ISO 8601): with or without a fraction, `Z` or
 * `+01:00`.
 * @return 0 and microseconds since 1970, -EINVAL (also for what lies before 1970) */
int aws_time_parse(const char *text, uint64_t *ret_usec);

/** `Wed, 27 May 2026 05:12:33 GMT`, as in the headers Date and Retry-After (RFC 9110, 5.6.7: the
 * form to send since 1999).
 * @return 0 and microseconds since 1970, -EINVAL */
int http_date_parse(const char *text, uint64_t *ret_usec);

/* Credentials in JSON, by jansson; http_global_init() has its memory wiped when it is freed. */
typedef enum CredentialsJsonKind {
        /* {"Version": 1, AccessKeyId, SecretAccessKey, SessionToken, Expiration} */
        CREDENTIALS_JSON_PROCESS,
        /* {AccessKeyId, SecretAccessKey, Token, Expiration}, IMDS adds "Code": "Success" */
        CREDENTIALS_JSON_SERVICE,
} CredentialsJsonKind;

/** @param text other members may be in it, also nested ones; of a name that is there twice the
 *   later counts
 * @param ret_error with -EINVAL: what is wrong, without what was read but for IMDS' Code and
 *   Message; for free()
 * @return 0 and *ret, -EINVAL, -ENOMEM */
int credentials_json_read(CredentialsSet *ret, CredentialsJsonKind kind, const char *text,
                          char **ret_error);

/** Splits a command line as the AWS CLI does for `credential_process`: the quoting of a POSIX
 * shell, and nothing else of one.
 * @see Python's shlex.split(), which the CLI uses
 * @param ret NULL-terminated, one block for free() @param ret_error with -EINVAL: a static text of
 *   what is wrong
 * @return 0, -EINVAL (a quotation or backslash that does not end; no word at all), -ENOMEM */
int credentials_words_split(const char *text, char ***ret, const char **ret_error);
