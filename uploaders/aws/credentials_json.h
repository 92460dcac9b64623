/* The JSON in which credentials are handed out: by the metadata service, by container endpoints, by a credential_process. Pure.
 * Read here and not by jansson, whose lexer leaves copies of what it read in memory that it has given back, and whose allocator can only be
 * changed for the whole program. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "uploaders/aws/credentials_secret.h"

typedef enum CredentialsJsonKind {
        CREDENTIALS_JSON_PROCESS, /* {"Version": 1, AccessKeyId, SecretAccessKey, SessionToken, Expiration} */
        CREDENTIALS_JSON_SERVICE, /* {AccessKeyId, SecretAccessKey, Token, Expiration}, IMDS adds "Code": "Success" */
} CredentialsJsonKind;

/** @param text  other members may be in it, also nested ones; of a name that is there twice the later counts
 * @param ret_fault  with -EINVAL: what is wrong, without what was read but for IMDS' Code and Message; for free()
 * @return 0 and *ret, -EINVAL, -ENOMEM */
int credentials_json_read(CredentialsSet *ret, CredentialsJsonKind kind, const char *text,
                          char **ret_fault);
