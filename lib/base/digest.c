/* The wrapper of OpenSSL: its low-level digests behind our own types. */

/* Deprecated since OpenSSL 3.0 in favour of EVP, but EVP cannot export a running SHA-256 state, and
 * the ledger of an interrupted upload needs just that. They stay in every 3.x and use the same
 * SHA-NI code. */
#define OPENSSL_SUPPRESS_DEPRECATED

#include "lib/base/digest.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <malloc.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/md5.h>
#include <openssl/sha.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/cleanup.h"

static_assert(sizeof(SHA256_CTX) <= sizeof(Sha256), "Sha256 must hold OpenSSL's state");
static_assert(_Alignof(SHA256_CTX) <= _Alignof(Sha256),
              "Sha256 must be aligned as OpenSSL's state");
static_assert(sizeof(MD5_CTX) <= sizeof(Md5), "Md5 must hold OpenSSL's state");
static_assert(_Alignof(MD5_CTX) <= _Alignof(Md5), "Md5 must be aligned as OpenSSL's state");
static_assert(sizeof(SHA_LONG) == 4, "the saved state has words of 32 bits");
static_assert(SHA256_DIGEST_LENGTH == SHA256_SIZE, "sizes of a digest");
static_assert(MD5_DIGEST_LENGTH == MD5_SIZE, "sizes of a digest");

static SHA256_CTX *sha256_ctx(Sha256 *s) {
        return (SHA256_CTX *)s->words;
}

static MD5_CTX *md5_ctx(Md5 *s) {
        return (MD5_CTX *)s->words;
}

/* The low-level functions always answer 1: there is nothing in them that can fail. */

void sha256_init(Sha256 *s) {
        (void)SHA256_Init(sha256_ctx(s));
}

void sha256_update(Sha256 *s, const void *data, size_t n) {
        (void)SHA256_Update(sha256_ctx(s), data, n);
}

void sha256_final(Sha256 *s, uint8_t ret[static SHA256_SIZE]) {
        (void)SHA256_Final(ret, sha256_ctx(s));
}

void sha256_of(const void *data, size_t n, uint8_t ret[static SHA256_SIZE]) {
        Sha256 s;

        sha256_init(&s);
        sha256_update(&s, data, n);
        sha256_final(&s, ret);
}

/* The saved state: 8 words of chaining value, the message's length in bits (low word, high word),
 * the 64 bytes of the open block (zero behind what is filled), how many of them are filled, the
 * digest's size. Words are big-endian. */
enum {
        STATE_LOW = 8,
        STATE_HIGH = 9,
        STATE_BLOCK = 10,
        STATE_FILLED = 26,
        STATE_DIGEST_SIZE = 27,
        STATE_WORDS = 28,
        BLOCK_SIZE = 64,
};

static_assert(4 * STATE_WORDS == SHA256_STATE_SIZE, "the saved state's size");

static void write_state(uint8_t *state, unsigned word, uint32_t value) {
        value = htobe32(value);
        memcpy(state + 4 * word, &value, 4);
}

static uint32_t state_get(const uint8_t *state, unsigned word) {
        uint32_t value;

        memcpy(&value, state + 4 * word, 4);
        return be32toh(value);
}

void sha256_save(const Sha256 *s, uint8_t ret[static SHA256_STATE_SIZE]) {
        const SHA256_CTX *ctx = (const SHA256_CTX *)s->words;

        memset(ret, 0, SHA256_STATE_SIZE);
        for (unsigned i = 0; i < 8; i++)
                write_state(ret, i, ctx->h[i]);
        write_state(ret, STATE_LOW, ctx->Nl);
        write_state(ret, STATE_HIGH, ctx->Nh);
        memcpy(ret + 4 * STATE_BLOCK, ctx->data,
               ctx->num); /* OpenSSL keeps bytes in there, not words */
        write_state(ret, STATE_FILLED, ctx->num);
        write_state(ret, STATE_DIGEST_SIZE, SHA256_SIZE);
}

int sha256_load(Sha256 *s, const uint8_t state[static SHA256_STATE_SIZE]) {
        uint32_t low = state_get(state, STATE_LOW), filled = state_get(state, STATE_FILLED);
        SHA256_CTX *ctx = sha256_ctx(s);

        if (low % 8 != 0 || low / 8 % BLOCK_SIZE != filled || /* so filled < BLOCK_SIZE */
            state_get(state, STATE_DIGEST_SIZE) != SHA256_SIZE)
                return -EINVAL;
        for (unsigned i = filled; i < BLOCK_SIZE; i++)
                if (state[4 * STATE_BLOCK + i] != 0)
                        return -EINVAL;
        sha256_init(s);
        for (unsigned i = 0; i < 8; i++)
                ctx->h[i] = state_get(state, i);
        ctx->Nl = low;
        ctx->Nh = state_get(state, STATE_HIGH);
        memcpy(ctx->data, state + 4 * STATE_BLOCK, filled);
        ctx->num = filled;
        return 0;
}

void md5_init(Md5 *s) {
        (void)MD5_Init(md5_ctx(s));
}

void md5_update(Md5 *s, const void *data, size_t n) {
        (void)MD5_Update(md5_ctx(s), data, n);
}

void md5_final(Md5 *s, uint8_t ret[static MD5_SIZE]) {
        (void)MD5_Final(ret, md5_ctx(s));
}

/* On our own SHA-256, so that the low-level API stays the only one of OpenSSL that is used here. */
void hmac_sha256(const void *key, size_t n_key, const void *data, size_t n,
                 uint8_t ret[static SHA256_SIZE]) {
        uint8_t pad[BLOCK_SIZE] = { 0 };
        Sha256 s;

        if (n_key > BLOCK_SIZE)
                sha256_of(key, n_key, pad);
        else if (n_key > 0)
                memcpy(pad, key, n_key);
        for (size_t i = 0; i < BLOCK_SIZE; i++)
                pad[i] ^= 0x36;
        sha256_init(&s);
        sha256_update(&s, pad, BLOCK_SIZE);
        sha256_update(&s, data, n);
        sha256_final(&s, ret);

        for (size_t i = 0; i < BLOCK_SIZE; i++)
                pad[i] ^= 0x36 ^ 0x5c;
        sha256_init(&s);
        sha256_update(&s, pad, BLOCK_SIZE);
        sha256_update(&s, ret, SHA256_SIZE);
        sha256_final(&s, ret);
        digest_wipe(pad, sizeof pad);
        digest_wipe(&s, sizeof s);
}

bool digest_is_equal(const void *a, const void *b, size_t n) {
        return CRYPTO_memcmp(a, b, n) == 0;
}

void digest_wipe(void *data, size_t n) {
        if (n > 0)
                explicit_bzero(data, n);
}

const char *digest_base64(const void *data, size_t n, char *buf) {
        (void)EVP_EncodeBlock((unsigned char *)buf, data, (int)n);
        return buf;
}

const char *digest_hex(const void *data, size_t n, char *buf) {
        static const char digits[] = "0123456789abcdef";
        const uint8_t *p = data;

        for (size_t i = 0; i < n; i++) {
                buf[2 * i] = digits[p[i] >> 4];
                buf[2 * i + 1] = digits[p[i] & 15];
        }
        buf[2 * n] = '\0';
        return buf;
}

void digest_wipe_free(void *p) {
        if (p)
                explicit_bzero(p, malloc_usable_size(p));
        free(p);
}

/* realloc(3) may move and leave the old bytes behind. */
void *digest_wipe_realloc(void *p, size_t n) {
        void *bigger = malloc(MAX(n, (size_t)1));
        if (!bigger || !p)
                return bigger;
        size_t before = malloc_usable_size(p);
        memcpy(bigger, p, MIN(before, n));
        digest_wipe_free(p);
        return bigger;
}
