/* A set of compression contexts. Which frame is compressed when, and where its buffers are, is the writer's. */
#define ZSTD_STATIC_LINKING_ONLY /* ZSTD_estimateCCtxSize_usingCParams, ZSTD_customMem: the same since 1.4 */

#include "lib/bundle/writer_zstd.h"

#include <errno.h>
#include <sys/mman.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "lib/bundle/plan.h"

/* From this level on zstd's match finders search incompressible data as hard as any other (1/10 of the speed and less; below,
 * it passes at more than 3 GB/s by itself), so it is looked at first. */
#define SAMPLED_LEVEL_MIN 5
#define LIGHT_LEVEL 1 /* for what is known to be simple */
#define SAMPLES 16
#define SAMPLE_BYTES (8 * KIB)

struct WriterZstd {
        int level; /* zstd's own */
        unsigned n;
        ZSTD_CCtx *contexts[]; /* NULL = taken by a thread */
};

static int zstd_level(int level) {
        return level == 0 ? ZSTD_minCLevel() : level;
}

/* Contexts are some MiB that live for one bundle: mapped for themselves they leave no holes in the heap. */
static void *map_memory(void *opaque, size_t n) {
        (void)opaque;
        size_t *p = mmap(NULL, n + 64, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED)
                return NULL;
        *p = n + 64;
        return (char *)p + 64; /* a cache line, which keeps every alignment */
}

static void unmap_memory(void *opaque, void *address) {
        (void)opaque;
        if (!address)
                return;
        size_t *p = (size_t *)(void *)((char *)address - 64);
        (void)munmap(p, *p); /* what mmap gave */
}

int writer_zstd_new(WriterZstd **ret, int level, unsigned n_contexts) {
        const ZSTD_customMem memory = { .customAlloc = map_memory, .customFree = unmap_memory };
        _cleanup_(writer_zstd_freep) WriterZstd *z =
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

WriterZstd *writer_zstd_free(WriterZstd *z) {
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

size_t writer_zstd_context_bytes(int level) {
        return MAX(context_bytes(zstd_level(level)), context_bytes(LIGHT_LEVEL));
}

size_t writer_zstd_bound(size_t n) {
        return ZSTD_compressBound(n);
}

const char *writer_zstd_version(void) {
        return ZSTD_versionString();
}

static ZSTD_CCtx *take_context(WriterZstd *z, unsigned *ret_place) {
        for (;;) /* there are as many as threads: one is free, or about to be put back */
                for (unsigned i = 0; i < z->n; i++) {
                        ZSTD_CCtx *c = __atomic_exchange_n(&z->contexts[i], NULL, __ATOMIC_ACQUIRE);
                        if (c) {
                                *ret_place = i;
                                return c;
                        }
                }
}

static size_t compress(ZSTD_CCtx *c, int level, const void *data, size_t n, void *ret) {
        size_t r = ZSTD_CCtx_setParameter(c, ZSTD_c_compressionLevel, level);
        return ZSTD_isError(r) ? r : ZSTD_compress2(c, ret, ZSTD_compressBound(n), data, n);
}

/* Whether the light level gains nothing on samples from all over the frame. `scratch` is where the frame will go. */
static bool looks_incompressible(ZSTD_CCtx *c, const char *data, size_t n, void *scratch) {
        size_t gap = n / SAMPLES, total = 0;

        if (gap <= SAMPLE_BYTES)
                return false;
        for (size_t i = 0; i < SAMPLES; i++) {
                size_t r = compress(c, LIGHT_LEVEL, data + i * gap, SAMPLE_BYTES, scratch);
                if (ZSTD_isError(r))
                        return false; /* the frame itself will tell */
                total += r;
        }
        return total >= SAMPLES * SAMPLE_BYTES;
}

int writer_zstd_frame(WriterZstd *z, WriterZstdFrame *frame) {
        unsigned place;
        ZSTD_CCtx *c = take_context(z, &place);
        int level = z->level;

        if (frame->is_zero || (level >= SAMPLED_LEVEL_MIN &&
                               looks_incompressible(c, frame->data, frame->n, frame->ret)))
                level = LIGHT_LEVEL; /* if the samples were wrong, it still compresses */
        size_t r = compress(c, level, frame->data, frame->n, frame->ret);
        __atomic_store_n(&z->contexts[place], c, __ATOMIC_RELEASE);
        if (ZSTD_isError(r))
                return ZSTD_getErrorCode(r) == ZSTD_error_memory_allocation ? -ENOMEM : -EIO;
        frame->ret_bytes = r;
        return 0;
}
