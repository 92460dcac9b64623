/* SHA-256 and MD5: the wrapper of OpenSSL. The SHA-256 state can be exported, which EVP cannot. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SHA256_SIZE 32
#define SHA256_HEX_SIZE 65
#define MD5_SIZE 16

typedef struct Sha256 {
        uint32_t words[32]; /* OpenSSL's SHA256_CTX lies in here; digest.c asserts its size */
} Sha256;

void sha256_init(Sha256 *s);
void sha256_update(Sha256 *s, const void *data, size_t n);
void sha256_final(Sha256 *s, uint8_t ret[static SHA256_SIZE]);

/** One call over one buffer. */
void sha256_of(const void *data, size_t n, uint8_t ret[static SHA256_SIZE]);

/** The running state as 112 bytes of fixed byte order, for the ledger; load: -EINVAL when it cannot
 * be a state. */
#define SHA256_STATE_SIZE 112
void sha256_save(const Sha256 *s, uint8_t ret[static SHA256_STATE_SIZE]);
int sha256_load(Sha256 *s, const uint8_t state[static SHA256_STATE_SIZE]);

typedef struct Md5 {
        uint32_t words[32];
} Md5;

void md5_init(Md5 *s);
void md5_update(Md5 *s, const void *data, size_t n);
void md5_final(Md5 *s, uint8_t ret[static MD5_SIZE]);

/** HMAC-SHA-256 (RFC 2104) of one buffer. A key of any length. */
void hmac_sha256(const void *key, size_t n_key, const void *data, size_t n,
                 uint8_t ret[static SHA256_SIZE]);

/** @return whether n bytes are the same; takes the same time wherever they differ */
bool digest_is_equal(const void *a, const void *b, size_t n);

/** Base64 (RFC 4648, padded). @param buf  at least DIGEST_BASE64_SIZE(n) bytes. @return buf */
#define DIGEST_BASE64_SIZE(n) (((n) + 2) / 3 * 4 + 1)
const char *digest_base64(const void *data, size_t n, char *buf);

/** Overwrites memory that held a secret; never optimised away. */
void digest_wipe(void *data, size_t n);

/** Lower-case hex of n bytes. @param buf  2n + 1 bytes. @return buf */
const char *digest_hex(const void *data, size_t n, char *buf);

/** As free(3) and realloc(3), for libraries that secrets pass through: freed memory is overwritten
 * first. */
void digest_wipe_free(void *p);
void *digest_wipe_realloc(void *p, size_t n);
