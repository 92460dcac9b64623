/* Memory for secrets: mappings of their own that are left out of core files (MADV_DONTDUMP) and of
 * forked children (MADV_WIPEONFORK), and that are overwritten before they go. What is not covered:
 * the working copies that libcurl and the JSON and XML readers make while a reply passes through
 * them, and the process's own environment block. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "lib/base/cleanup.h"
#include "uploaders/aws/aws_sign.h"

/** @return n zeroed bytes, NULL for lack of memory; to be given back by
 * credentials_secret_free() */
void *credentials_secret_new(size_t n);
char *credentials_secret_join(const char *a, const char *b);
/** Overwrites and gives back. Takes NULL, returns NULL. */
void *credentials_secret_free(void *secret);

static inline void credentials_secret_freep(char **p) {
        if (*p)
                credentials_secret_free(*p);
}

/** Reads a small regular file (through symlinks, as Kubernetes mounts its tokens) straight into
 * secret memory.
 * @param ret NUL-terminated @param ret_n its length without the NUL, may be NULL
 * @return 0, -errno of opening and reading, -EFBIG above max_bytes, -EBADF when it is no regular
 *   file */
int credentials_secret_read(const char *path, size_t max_bytes, char **ret, size_t *ret_n);

/** Overwrites a secret in memory that somebody else will free: a reply's body, a child's output, a
 * parsed string. */
void credentials_secret_wipe_borrowed(const void *data, size_t n);

typedef struct CredentialsSet {                /* owned, in secret memory */
        char *access_key, *secret_key, *token; /* token NULL = none; no access_key = an empty set */
        uint64_t expires_usec;                 /* CLOCK_REALTIME; 0 = they do not expire */
} CredentialsSet;

/** Copies the keys. @return 0, -ENOMEM, -EINVAL when one is missing or cannot be one: a blank, a
 * control character, not ASCII, above 64 KiB */
int credentials_set_init(CredentialsSet *ret, const AwsKeys *keys, uint64_t expires_usec);
void credentials_set_done(CredentialsSet *s);
AwsKeys credentials_set_keys(const CredentialsSet *s);

/** A sentence for people, which may quote what came from outside.
 * @return the caller's, one line: control characters and bytes that are not UTF-8 as `\xNN`; NULL
 *   for lack of memory */
char *format_sentence(const char *fmt, ...) _printf_(1, 2);
