/* The wrapper of libzstd: a set of compression contexts, and a bounded decompressor. */
#define ZSTD_STATIC_LINKING_ONLY /* estimateCCtxSize_usingCParams, customMem: the same since 1.4   \
                                  */

#include "lib/bundle/frame.h"

#include <errno.h>
#include <sys/mman.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "lib/bundle/plan.h"

/* From this level on zstd's match finders search incompressible data as hard as any other (1/10 of
 * the speed and less; below, it passes at more than 3 GB/s by itself), so samples are tried first.
 */
#define SAMPLED_LEVEL_MIN 5
#define LIGHT_LEVEL 1 /* for what is known to be simple */
#define SAMPLES 16
#define SAMPLE_BYTES (8 * KIB)

struct FrameCompressor {
        int level; /* zstd's own */
        unsigned n;
        ZSTD_CCtx *contexts[]; /* NULL = in use by a thread */
};

static int zstd_level(int level) {
        return level == 0 ? ZSTD_minCLevel() : level;
}

/* Contexts are some MiB that live for one bundle: mapped for themselves they leave no holes in the
 * heap. */
static void *context_alloc(void *opaque, size_t n) {
        (void)opaque;
        size_t *p = mmap(NULL, n + 64, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED)
                return NULL;
        *p = n + 64;
        return (char *)p + 64; /* a cache line, which keeps every alignment */
}

static void context_free(void *opaque, void *address) {
        (void)opaque;
        if (!address)
                return;
        size_t *p = (size_t *)(void *)((char *)address - 64);
        (void)munmap(p, *p); /* what mmap gave */
}

int frame_compressor_new(FrameCompressor **ret, int level, unsigned n_contexts) {
        const ZSTD_customMem memory = { .customAlloc = context_alloc, .customFree = context_free };
        _cleanup_(frame_compressor_freep) FrameCompressor *z =
                calloc(1, sizeof *z + n_contexts * sizeof z->contexts[0]);
        if (!z)
                return -ENOMEM;
        z->level = zstd_level(level);
        for (; z->n < n_contexts; z->n++) {
                ZSTD_CCtx *c = ZSTD_createCCtx_advanced(memory);
                if (!c)
                        return -ENOMEM;
                z->contexts[z->n] = c;
                if (ZSTD_isError(ZSTD_CCtx_setParameter(c, ZSTD_c_checksumFlag, 1)))
                        return -EIO;
        }
        *ret = TAKE_PTR(z);
        return 0;
}

FrameCompressor *frame_compressor_free(FrameCompressor *z) {
        if (!z)
                return NULL;
        for (unsigned i = 0; i < z->n; i++)
                (void)ZSTD_freeCCtx(z->contexts[i]); /* fails for static contexts only */
        free(z);
        return NULL;
}

static size_t context_bytes(int level) {
        return ZSTD_estimateCCtxSize_usingCParams(ZSTD_getCParams(level, PLAN_FRAME_BYTES, 0));
}

size_t frame_compressor_context_bytes(int level) {
        return MAX(context_bytes(zstd_level(level)), context_bytes(LIGHT_LEVEL));
}

size_t frame_bytes_max(size_t n) {
        return ZSTD_compressBound(n);
}

const char *frame_zstd_version(void) {
        return ZSTD_versionString();
}

static ZSTD_CCtx *acquire_context(FrameCompressor *z, unsigned *ret_index) {
        for (;;) /* there are as many as threads: one is free, or about to be returned */
                for (unsigned i = 0; i < z->n; i++) {
                        ZSTD_CCtx *c = __atomic_exchange_n(&z->contexts[i], NULL, __ATOMIC_ACQUIRE);
                        if (c) {
                                *ret_index = i;
                                return c;
                        }
                }
}

static size_t compress_with(ZSTD_CCtx *c, int level, const void *data, size_t n, void *ret) {
        size_t r = ZSTD_CCtx_setParameter(c, ZSTD_c_compressionLevel, level);
        return ZSTD_isError(r) ? r : ZSTD_compress2(c, ret, ZSTD_compressBound(n), data, n);
}

/* Whether the light level gains nothing on samples from all over the frame. `scratch` is where the
 * frame will go. */
static bool is_incompressible(ZSTD_CCtx *c, const char *data, size_t n, void *scratch) {
        size_t gap = n / SAMPLES, total = 0;

        if (gap <= SAMPLE_BYTES)
                return false;
        for (size_t i = 0; i < SAMPLES; i++) {
                size_t r = compress_with(c, LIGHT_LEVEL, data + i * gap, SAMPLE_BYTES, scratch);
                if (ZSTD_isError(r))
                        return false; /* compressing the frame reports the error */
                total += r;
        }
        return total >= SAMPLES * SAMPLE_BYTES;
}

int frame_compress(FrameCompressor *z, FrameCompression *frame) {
        unsigned index;
        ZSTD_CCtx *c = acquire_context(z, &index);
        int level = z->level;

        if (frame->is_zero ||
            (level >= SAMPLED_LEVEL_MIN && is_incompressible(c, frame->data, frame->n, frame->ret)))
                level = LIGHT_LEVEL; /* if the samples were wrong, it still compresses */
        size_t r = compress_with(c, level, frame->data, frame->n, frame->ret);
        __atomic_store_n(&z->contexts[index], c, __ATOMIC_RELEASE);
        if (ZSTD_isError(r))
                return ZSTD_getErrorCode(r) == ZSTD_error_memory_allocation ? -ENOMEM : -EIO;
        frame->ret_bytes = r;
        return 0;
}

/* A frame holds 2 MiB, so no level up to 19 needs more than 8 MiB; a larger window only wastes
 * memory. */
#define WINDOW_LOG_MAX 23

int frame_decompressor_new(FrameDecompressor **ret) {
        _cleanup_(frame_decompressor_freep) FrameDecompressor *z = ZSTD_createDCtx();
        if (!z || ZSTD_isError(ZSTD_DCtx_setParameter(z, ZSTD_d_windowLogMax, WINDOW_LOG_MAX)))
                return -ENOMEM;
        *ret = TAKE_PTR(z);
        return 0;
}

FrameDecompressor *frame_decompressor_free(FrameDecompressor *z) {
        (void)ZSTD_freeDCtx(z); /* accepts NULL; cannot fail for a context of ours */
        return NULL;
}

void frame_decompressor_reset(FrameDecompressor *z) {
        (void)ZSTD_DCtx_reset(z, ZSTD_reset_session_only); /* cannot fail for the session */
}

void frame_decompress_step(FrameDecompressor *z, FrameDecompression *step) {
        ZSTD_inBuffer in = { step->in, step->n_in, 0 };
        ZSTD_outBuffer out = { step->out, step->n_out, 0 };
        const size_t hint = ZSTD_decompressStream(z, &out, &in);

        step->n_read = in.pos;
        step->n_written = out.pos;
        step->is_complete = hint == 0;
        step->damage = ZSTD_isError(hint) ? ZSTD_getErrorName(hint) : NULL;
}
