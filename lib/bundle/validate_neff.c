/* NEFF: the 1,024-byte header against the file's size, the data's magic number, and the hash where
 * it can be checked. All of it from public documentation, which is not settled about the hash: a
 * mismatch is `suspect`, never more. */
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/bundle/validate_private.h"

#define OFFSET_PKG_VERSION 0
#define OFFSET_HEADER_SIZE 8
#define OFFSET_DATA_SIZE 16
#define OFFSET_HASH 172
#define HASH_BYTES 32
#define OFFSET_USTAR 257

/* Hashing a huge hole would cost seconds for a hint; no package of public knowledge has any. */
#define ZEROS_HASHED_MAX (64 * MIB)

static const uint8_t zeros[16 * 1024];

static uint64_t read_u64(const uint8_t *p) {
        uint64_t value = 0;
        for (int i = 7; i >= 0; i--)
                value = value << 8 | p[i];
        return value;
}

static uint64_t field(const NeffCheck *c, size_t offset) {
        return read_u64(c->header + offset);
}

/* Sources conflict on which pkg_version means which digest (and the header documents 32 bytes for
 * either), so the field itself decides: a digest of 16 bytes leaves the other 16 zero. */
static NeffDigest digest_kind(const uint8_t hash[static HASH_BYTES]) {
        if (memcmp(hash, zeros, HASH_BYTES) == 0)
                return NEFF_DIGEST_NONE;
        return memcmp(hash + MD5_SIZE, zeros, HASH_BYTES - MD5_SIZE) == 0 ? NEFF_DIGEST_MD5
                                                                          : NEFF_DIGEST_SHA256;
}

static void read_header(NeffCheck *c, uint64_t size) {
        c->data_size = field(c, OFFSET_DATA_SIZE);
        if (field(c, OFFSET_HEADER_SIZE) != NEFF_HEADER_BYTES ||
            c->data_size > size - NEFF_HEADER_BYTES)
                return; /* the verdict is clear without the digest */

        c->digest = digest_kind(c->header + OFFSET_HASH);
        c->n_unhashed = c->digest == NEFF_DIGEST_NONE ? 0 : c->data_size;
        if (c->digest == NEFF_DIGEST_SHA256)
                sha256_init(&c->sha256);
        else if (c->digest == NEFF_DIGEST_MD5)
                md5_init(&c->md5);
}

static void add_data(NeffCheck *c, const uint8_t *data, size_t n) {
        size_t n_start = MIN(n, NEFF_START_BYTES - c->n_start);
        memcpy(c->start + c->n_start, data, n_start);
        c->n_start += n_start;

        size_t n_hash = (size_t)MIN((uint64_t)n, c->n_unhashed);
        if (n_hash == 0)
                return;
        if (c->digest == NEFF_DIGEST_SHA256)
                sha256_update(&c->sha256, data, n_hash);
        else
                md5_update(&c->md5, data, n_hash);
        c->n_unhashed -= n_hash;
}

static void add_bytes(Validator *v, const uint8_t *data, size_t n) {
        NeffCheck *c = &v->neff;
        if (c->n_header < NEFF_HEADER_BYTES) {
                size_t n_used = MIN(n, NEFF_HEADER_BYTES - c->n_header);
                memcpy(c->header + c->n_header, data, n_used);
                c->n_header += n_used;
                data += n_used;
                n -= n_used;
                if (c->n_header == NEFF_HEADER_BYTES)
                        read_header(c, v->size);
        }
        if (n > 0)
                add_data(c, data, n);
}

/* Counted by the byte, so that the answer does not depend on how a hole is cut into calls. */
static size_t count_zeros(NeffCheck *c, uint64_t n) {
        if (c->n_header < NEFF_HEADER_BYTES)
                return (size_t)MIN(n, (uint64_t)(NEFF_HEADER_BYTES - c->n_header));

        size_t n_used = (size_t)MIN(n, (uint64_t)sizeof zeros);
        c->n_zeros += MIN((uint64_t)n_used, c->n_unhashed);
        if (c->n_zeros > ZEROS_HASHED_MAX) {
                c->n_unhashed = 0;
                c->is_digest_skipped = true;
        }
        return n_used;
}

static bool is_satisfied(const NeffCheck *c) {
        return c->n_header == NEFF_HEADER_BYTES && c->n_start == NEFF_START_BYTES &&
               c->n_unhashed == 0;
}

static void neff_update(Validator *v, const uint8_t *data, uint64_t n) {
        NeffCheck *c = &v->neff;
        if (data)
                add_bytes(v, data, n);
        while (!data && n > 0 && !is_satisfied(c)) {
                const size_t n_zeros = count_zeros(c, n);
                add_bytes(v, zeros, n_zeros);
                n -= n_zeros;
        }
}

static bool data_has_magic(const NeffCheck *c) {
        if (c->n_start >= 2 && c->start[0] == 0x1f && c->start[1] == 0x8b)
                return true;
        return c->n_start >= OFFSET_USTAR + 5 && memcmp(c->start + OFFSET_USTAR, "ustar", 5) == 0;
}

static Verdict digest_verdict(NeffCheck *c, StrBuf *detail) {
        if (c->digest == NEFF_DIGEST_NONE)
                return VERDICT_OK;
        if (c->is_digest_skipped) {
                strbuf_add(detail, "hash not checked, the file is mostly a hole");
                return VERDICT_OK;
        }

        uint8_t found[SHA256_SIZE];
        const bool is_md5 = c->digest == NEFF_DIGEST_MD5;
        if (is_md5)
                md5_final(&c->md5, found);
        else
                sha256_final(&c->sha256, found);

        const char *name = is_md5 ? "md5" : "sha-256";
        if (memcmp(found, c->header + OFFSET_HASH, is_md5 ? MD5_SIZE : SHA256_SIZE) == 0) {
                strbuf_addf(detail, "hash verified (%s)", name);
                return VERDICT_OK;
        }
        strbuf_addf(detail,
                    "the hash field is not the %s of the data, but the meaning of that field is "
                    "not settled",
                    name);
        return VERDICT_SUSPECT;
}

/* Sizes only: by the header alone. */
static Verdict size_verdict(const NeffCheck *c, uint64_t size, StrBuf *detail) {
        if (size < NEFF_HEADER_BYTES) {
                strbuf_addf(detail, "%llu bytes, but the header alone has %d",
                            (unsigned long long)size, NEFF_HEADER_BYTES);
                return VERDICT_TRUNCATED;
        }
        if (field(c, OFFSET_HEADER_SIZE) != NEFF_HEADER_BYTES) {
                strbuf_addf(detail, "header_size %llu is not %d",
                            (unsigned long long)field(c, OFFSET_HEADER_SIZE), NEFF_HEADER_BYTES);
                return VERDICT_SUSPECT;
        }

        const uint64_t n_data = size - NEFF_HEADER_BYTES;
        if (c->data_size != n_data)
                strbuf_addf(detail, "data_size %llu but %llu bytes follow the header",
                            (unsigned long long)c->data_size, (unsigned long long)n_data);
        if (c->data_size > n_data)
                return VERDICT_TRUNCATED;
        return c->data_size < n_data ? VERDICT_SUSPECT : VERDICT_OK;
}

static Verdict neff_finish(Validator *v, StrBuf *detail) {
        NeffCheck *c = &v->neff;
        Verdict verdict = size_verdict(c, v->size, detail);
        if (verdict != VERDICT_OK)
                return verdict;

        const uint64_t pkg_version = field(c, OFFSET_PKG_VERSION);
        if (pkg_version != 1 && pkg_version != 2) {
                strbuf_addf(detail, "pkg_version %llu is neither 1 nor 2",
                            (unsigned long long)pkg_version);
                return VERDICT_SUSPECT;
        }
        if (c->data_size == 0) {
                strbuf_add(detail, "data_size 0, there is nothing behind the header");
                return VERDICT_SUSPECT;
        }
        if (!data_has_magic(c)) {
                strbuf_add(detail, "the data begins neither as gzip nor as tar");
                return VERDICT_SUSPECT;
        }
        return digest_verdict(c, detail);
}

static Verdict neff_quick(const Validator *v) {
        if (v->size >= NEFF_HEADER_BYTES && v->neff.n_header < NEFF_HEADER_BYTES)
                return VERDICT_OK; /* could not be read now */
        StrBuf unused = STRBUF_INIT;
        Verdict verdict = size_verdict(&v->neff, v->size, &unused);
        strbuf_done(&unused);
        return verdict;
}

static uint64_t neff_skippable_bytes(const Validator *v) {
        return is_satisfied(&v->neff) ? UINT64_MAX : 0;
}

const ValidatorOps validator_neff_ops = {
        .update = neff_update,
        .finish = neff_finish,
        .quick = neff_quick,
        .skippable_bytes = neff_skippable_bytes,
};
