/* Compresses frames, each for itself. The one file of the writer that includes zstd's header. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/cleanup.h"

#define WRITER_ZSTD_LEVEL_MAX 19

typedef struct WriterZstd WriterZstd;

/** @param level  0 = store, 1..19  @param n_contexts  frames that may be compressed at one time */
int writer_zstd_new(WriterZstd **ret, int level, unsigned n_contexts);
WriterZstd *writer_zstd_free(WriterZstd *z);
DEFINE_CLEANUP(WriterZstd, writer_zstd_free);

/** @return bytes of one context for frames of PLAN_FRAME_BYTES */
size_t writer_zstd_context_bytes(int level);

/** @return bytes that a frame of n bytes may need when compressed */
size_t writer_zstd_bound(size_t n);

/** @return libzstd's version as `1.5.4`; static */
const char *writer_zstd_version(void);

typedef struct WriterZstdFrame {
        const void *data;
        size_t n;
        bool is_zero;     /* all of data is: also `store` makes little of it */
        void *ret;        /* at least writer_zstd_bound(n) bytes */
        size_t ret_bytes; /* set on success */
} WriterZstdFrame;

/** Compresses one frame, with content size and checksum, as a pure function of the level, its bytes and is_zero. Callable from as
 * many threads at a time as there are contexts.
 * @return 0, -ENOMEM, -EIO when zstd refuses */
int writer_zstd_frame(WriterZstd *z, WriterZstdFrame *frame);
