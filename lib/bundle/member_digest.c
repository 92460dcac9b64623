/* Zero blocks are found here, where each byte passes anyway, so that hashing them can be saved. */
#include "lib/bundle/member_digest.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

#include "lib/base/cleanup.h"

static const uint8_t zero_block[MEMBER_DIGEST_BLOCK];

bool member_digest_is_zero(const void *data, size_t n) {
        const uint8_t *p = data;
        /* Real data fails on the first bytes; the rest compares the data with itself, 16 bytes
         * further, which the C library does with the widest registers there are. */
        size_t head = MIN(n, (size_t)16);
        return memcmp(p, zero_block, head) == 0 && memcmp(p, p + head, n - head) == 0;
}

void member_digest_init(MemberDigest *d) {
        *d = (MemberDigest){ 0 };
        sha256_init(&d->data);
        sha256_init(&d->map);
}

static void hash_u64(Sha256 *s, uint64_t value) {
        uint64_t little = htole64(value);
        sha256_update(s, &little, sizeof little);
}

static void hash_zeros(MemberDigest *d, uint64_t n) {
        while (n > 0) {
                uint64_t now = MIN(n, (uint64_t)sizeof zero_block);
                sha256_update(&d->data, zero_block, now);
                n -= now;
        }
}

static void end_run(MemberDigest *d) {
        if (d->run_bytes == 0)
                return;
        hash_u64(&d->map, d->run_offset);
        hash_u64(&d->map, d->run_bytes);
        d->run_bytes = 0;
}

/* Whole zero blocks at d->offset: hashed while there are few, then left out. */
static void zero_blocks(MemberDigest *d, uint64_t bytes) {
        uint64_t still_hashed = MEMBER_DIGEST_ZEROS_MAX - MIN(d->zeros, MEMBER_DIGEST_ZEROS_MAX);
        uint64_t hashed = MIN(bytes, still_hashed), left_out = bytes - hashed;

        hash_zeros(d, hashed);
        d->zeros += bytes;
        d->offset += bytes;
        if (left_out == 0)
                return;
        if (d->run_bytes == 0)
                d->run_offset = d->offset - left_out;
        d->run_bytes += left_out;
        d->is_sparse = true;
}

/* Data, or zeros of a block that is not all zero. */
static void hash_data(MemberDigest *d, const uint8_t *data, uint64_t n) {
        end_run(d);
        hash_zeros(d, d->pending_zeros);
        d->offset += d->pending_zeros;
        d->pending_zeros = 0;
        sha256_update(&d->data, data, n);
        d->offset += n;
}

/* Bytes that do not cross the end of a block. */
static bool update_in_block(MemberDigest *d, const uint8_t *data, uint64_t n) {
        bool is_zero = member_digest_is_zero(data, n);

        if (is_zero && (d->offset % MEMBER_DIGEST_BLOCK == 0)) { /* no data in this block so far */
                d->pending_zeros += (uint32_t)n;
                if (d->pending_zeros == MEMBER_DIGEST_BLOCK) {
                        d->pending_zeros = 0;
                        zero_blocks(d, MEMBER_DIGEST_BLOCK);
                }
        } else
                hash_data(d, data, n);
        return is_zero;
}

static uint64_t rest_of_block(const MemberDigest *d) {
        return MEMBER_DIGEST_BLOCK - (d->offset + d->pending_zeros) % MEMBER_DIGEST_BLOCK;
}

bool member_digest_update(MemberDigest *d, const void *data, uint64_t n) {
        const uint8_t *p = data;
        bool all_zero = true;

        while (n > 0) {
                uint64_t now = MIN(n, rest_of_block(d));
                all_zero &= update_in_block(d, p, now);
                p += now;
                n -= now;
        }
        return all_zero;
}

void member_digest_zeros(MemberDigest *d, uint64_t n) {
        uint64_t head = MIN(n, rest_of_block(d) % MEMBER_DIGEST_BLOCK);
        uint64_t whole = (n - head) - (n - head) % MEMBER_DIGEST_BLOCK;

        (void)member_digest_update(d, zero_block, head);
        if (whole > 0)
                zero_blocks(d, whole);
        (void)member_digest_update(d, zero_block, n - head - whole);
}

void member_digest_final(MemberDigest *d, uint8_t ret[static SHA256_SIZE], bool *ret_is_sparse) {
        uint8_t both[2 * SHA256_SIZE];

        if (d->pending_zeros > 0) /* the last block is incomplete: data */
                hash_data(d, zero_block, 0);
        end_run(d);
        *ret_is_sparse = d->is_sparse;
        if (!d->is_sparse) {
                sha256_final(&d->data, ret);
                return;
        }
        hash_u64(&d->map, d->offset);
        sha256_final(&d->data, both);
        sha256_final(&d->map, both + SHA256_SIZE);
        sha256_of(both, sizeof both, ret);
}

/* The saved state: both SHA-256 states; offset, zeros, run_offset, run_bytes (u64), pending_zeros
 * (u32), is_sparse (u8); little-endian. */
#define STATE_NUMBERS (2 * SHA256_STATE_SIZE)
#define STATE_PENDING (STATE_NUMBERS + 4 * 8)
#define STATE_SPARSE (STATE_PENDING + 4)

void member_digest_save(const MemberDigest *d, uint8_t ret[static MEMBER_DIGEST_STATE_SIZE]) {
        const uint64_t numbers[] = { htole64(d->offset), htole64(d->zeros), htole64(d->run_offset),
                                     htole64(d->run_bytes) };
        const uint32_t pending = htole32(d->pending_zeros);

        sha256_save(&d->data, ret);
        sha256_save(&d->map, ret + SHA256_STATE_SIZE);
        memcpy(ret + STATE_NUMBERS, numbers, sizeof numbers);
        memcpy(ret + STATE_PENDING, &pending, sizeof pending);
        ret[STATE_SPARSE] = d->is_sparse;
}

/* What updates can lead to, and nothing else. */
static bool is_possible(const MemberDigest *d) {
        const uint64_t left_out = d->zeros - MIN(d->zeros, MEMBER_DIGEST_ZEROS_MAX);

        if (d->zeros > d->offset || d->zeros % MEMBER_DIGEST_BLOCK != 0 ||
            d->offset > UINT64_MAX - MEMBER_DIGEST_BLOCK || d->is_sparse != (left_out > 0))
                return false;
        if (d->pending_zeros >= MEMBER_DIGEST_BLOCK ||
            (d->pending_zeros > 0 && d->offset % MEMBER_DIGEST_BLOCK != 0))
                return false;
        return d->run_bytes == 0 ||
               (d->run_bytes <= left_out && d->run_bytes % MEMBER_DIGEST_BLOCK == 0 &&
                d->run_offset % MEMBER_DIGEST_BLOCK == 0 && d->run_offset <= d->offset &&
                d->run_bytes == d->offset - d->run_offset);
}

int member_digest_load(MemberDigest *d, const uint8_t state[static MEMBER_DIGEST_STATE_SIZE]) {
        uint64_t numbers[4];
        uint32_t pending;
        MemberDigest loaded = { 0 };

        memcpy(numbers, state + STATE_NUMBERS, sizeof numbers);
        memcpy(&pending, state + STATE_PENDING, sizeof pending);
        loaded.offset = le64toh(numbers[0]);
        loaded.zeros = le64toh(numbers[1]);
        loaded.run_offset = le64toh(numbers[2]);
        loaded.run_bytes = le64toh(numbers[3]);
        loaded.pending_zeros = le32toh(pending);
        loaded.is_sparse = state[STATE_SPARSE] == 1;
        if (state[STATE_SPARSE] > 1 || !is_possible(&loaded) ||
            sha256_load(&loaded.data, state) < 0 ||
            sha256_load(&loaded.map, state + SHA256_STATE_SIZE) < 0)
                return -EINVAL;
        *d = loaded;
        return 0;
}
