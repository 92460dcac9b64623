/* Uploads and parts for the tests of the ledger. */
#pragma once

#include "agent/store/store.h"
#include "tests/agent/store/store_test.h"

#define KEY "neuron/20260527-052135-d99e36ea74c263ca/i-0123456789abcdef0/b.tar.zst"
#define PACKER "zstd 1.5.4, level 3, part 8388608"

static inline void add_bundle(Store *s, const char *id) {
        BundleRecord b = simple_record(id, BUNDLE_SHIPPING, 1);
        assert_int_equal(store_add(s, &b), 0);
        bundle_record_done(&b);
}

/* To be begun; owns nothing. @param key  NULL = KEY */
static inline LedgerUpload intent(const char *key, uint64_t created_usec) {
        LedgerUpload u = { .key = (char *)(key ? key : KEY),
                           .packer = (char *)PACKER,
                           .created_usec = created_usec };
        for (unsigned i = 0; i < SHA256_SIZE; i++)
                u.plan[i] = (uint8_t)(i * 9);
        return u;
}

#define MAX_FRAMES 4096
#define MAX_STATE (1 << 20)

/* Part n of an upload, always the same. Borrows from static memory until the next call. */
static inline LedgerPart some_part(unsigned number, uint64_t n_frames, size_t state_bytes) {
        static uint32_t frames[MAX_FRAMES];
        static uint8_t state[MAX_STATE];
        uint64_t seed = number + UINT64_C(0x9e3779b97f4a7c15);
        LedgerPart p = { .number = number,
                         .first_frame = (number - 1) * n_frames,
                         .n_frames = n_frames,
                         .frame_bytes = frames,
                         .bytes = UINT64_C(5) * GIB - number,
                         .is_last = number % 7 == 0,
                         .state = state,
                         .state_bytes = state_bytes };

        assert_true(n_frames <= MAX_FRAMES && state_bytes <= MAX_STATE);
        for (uint64_t i = 0; i < n_frames; i++)
                frames[i] = (uint32_t)next_random(&seed);
        for (unsigned i = 0; i < SHA256_SIZE; i++)
                p.sha256[i] = (uint8_t)next_random(&seed);
        for (size_t i = 0; i < state_bytes; i++)
                state[i] = (uint8_t)next_random(&seed);
        return p;
}

static inline void assert_same_part(const LedgerPart *a, const LedgerPart *b) {
        assert_int_equal(a->number, b->number);
        assert_true(a->first_frame == b->first_frame && a->n_frames == b->n_frames);
        assert_memory_equal(a->frame_bytes, b->frame_bytes, a->n_frames * sizeof *a->frame_bytes);
        assert_true(a->bytes == b->bytes && a->is_last == b->is_last);
        assert_memory_equal(a->sha256, b->sha256, SHA256_SIZE);
        assert_int_equal(a->state_bytes, b->state_bytes);
        assert_memory_equal(a->state, b->state, a->state_bytes);
        assert_same_text(a->etag, b->etag);
}

static inline int count_part(const LedgerPart *p, void *userdata) {
        unsigned *n = userdata;
        (void)p;
        (*n)++;
        return 0;
}

static inline unsigned parts_of(Store *s, const char *bundle, const char *destination) {
        unsigned n = 0;
        assert_int_equal(
                store_ledger_parts(s, bundle, destination, &(LedgerReader){ count_part, &n }), 0);
        return n;
}
