/* What gives credentials, parsed. */
#pragma once

#include <stdint.h>

#include "uploaders/aws/credentials_secret.h"

/* Credentials in JSON, by jansson; http_global_init() has its memory wiped when it is freed. */
typedef enum CredentialsJsonKind {
        /* {"Version": 1, AccessKeyId, SecretAccessKey, SessionToken, Expiration} */
        CREDENTIALS_JSON_PROCESS,
        /* {AccessKeyId, SecretAccessKey, Token, Expiration}, IMDS adds "Code": "Success" */
        CREDENTIALS_JSON_SERVICE,
} CredentialsJsonKind;

/** @param text  other members may be in it, also nested ones; of a name that is there twice the
 *   later counts
 * @param ret_error with -EINVAL: what is wrong, without what was read but for IMDS' Code and
 *   Message; for free()
 * @return 0 and *ret, -EINVAL, -ENOMEM */
int credentials_parse_json(CredentialsSet *ret, CredentialsJsonKind kind, const char *text,
                           char **ret_error);

/** Splits a command line as the AWS CLI does for `credential_process`: the quoting of a POSIX
 * shell, and nothing else of one.
 * @see Python's shlex.split(), which the CLI uses
 * @param ret NULL-terminated, one block for free() @param ret_error with -EINVAL: a static text of
 *   what is wrong
 * @return 0, -EINVAL (a quotation or backslash that does not end; no word at all), -ENOMEM */
int credentials_parse_command(const char *text, char ***ret, const char **ret_error);
