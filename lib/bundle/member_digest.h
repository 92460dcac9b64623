/* A member's SHA-256. It is the plain SHA-256 of the content unless the member has more than
 * MEMBER_DIGEST_ZEROS_MAX bytes of zeros in whole aligned blocks (holes or not): then hashing zeros
 * would cost more than all the rest, and it is the `sparse` form: SHA-256( SHA-256(content without
 * the blocks left out) || SHA-256(for each run left out: offset u64le, bytes u64le; at the end: the
 * content's size u64le) ) A block is MEMBER_DIGEST_BLOCK bytes at a multiple of its size. Zero
 * blocks are counted from the start; those up to and including the MAX are hashed like any data,
 * later ones are left out. So the form and the value depend on the content alone. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/digest.h"

#define MEMBER_DIGEST_BLOCK (64 * 1024)
#define MEMBER_DIGEST_ZEROS_MAX (UINT64_C(512) * 1024 * 1024)

typedef struct MemberDigest {
        Sha256 data, map;
        uint64_t offset;                /* content bytes decided so far */
        uint64_t zeros;                 /* in whole zero blocks so far */
        uint64_t run_offset, run_bytes; /* the open run that is being left out; 0 bytes = none */
        uint32_t pending_zeros; /* zeros at the start of a block, at `offset`, not yet decided */
        bool is_sparse;         /* something was left out */
} MemberDigest;

void member_digest_init(MemberDigest *d);

/** @return whether all n bytes were zero: so that callers need not check */
bool member_digest_update(MemberDigest *d, const void *data, uint64_t n);

/** n bytes of zeros: a hole, or data known to be zero. Costs nothing beyond the MAX. */
void member_digest_zeros(MemberDigest *d, uint64_t n);

/** @param ret_is_sparse  whether the value is of the sparse form (`sha256_sparse` in the manifest)
 */
void member_digest_final(MemberDigest *d, uint8_t ret[static SHA256_SIZE], bool *ret_is_sparse);

/** The running state in a fixed byte order, to continue in another process; load: -EINVAL when it
 * cannot be a state. */
#define MEMBER_DIGEST_STATE_SIZE (2 * SHA256_STATE_SIZE + 4 * 8 + 4 + 1)
void member_digest_save(const MemberDigest *d, uint8_t ret[static MEMBER_DIGEST_STATE_SIZE]);
int member_digest_load(MemberDigest *d, const uint8_t state[static MEMBER_DIGEST_STATE_SIZE]);

/** @return whether all n bytes are zero */
bool member_digest_is_zero(const void *data, size_t n);
