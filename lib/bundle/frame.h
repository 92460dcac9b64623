/* One zstd frame: compressed in one call, decompressed in steps. The wrapper of libzstd, which
 * collectors/crash uses too. */
#pragma once

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "lib/base/cleanup.h"

/* ---- the seek table: a skippable frame behind the last one. The zstd seekable format,
 * contrib/seekable_format/zstd_seekable_compression_format.md in zstd's repository ---- */

#define SEEK_TABLE_MAGIC 0x184D2A5Eu
#define SEEK_TABLE_FOOTER_MAGIC 0x8F92EAB1u
#define SEEK_TABLE_HEADER_BYTES 8       /* skippable magic, size of what follows */
#define SEEK_TABLE_ENTRY_BYTES 8        /* compressed size, decompressed size */
#define SEEK_TABLE_FOOTER_BYTES 9       /* number of frames, descriptor, magic */
#define SEEK_TABLE_BYTES_MAX (64 * MIB) /* that are read: 16 TiB of tar stream */

/** Reads one of the table's numbers. */
static inline uint32_t seek_table_read_u32(const uint8_t *p) {
        uint32_t value;
        memcpy(&value, p, sizeof value);
        return le32toh(value);
}

/* ---- compressing ---- */

#define FRAME_LEVEL_MAX 19

typedef struct FrameCompressor FrameCompressor;

/** @param level  0 = store, 1..19  @param n_contexts  frames that may be compressed at one time */
int frame_compressor_new(FrameCompressor **ret, int level, unsigned n_contexts);
FrameCompressor *frame_compressor_free(FrameCompressor *z);
DEFINE_CLEANUP(FrameCompressor, frame_compressor_free);

/** @return bytes of one context for frames of PLAN_FRAME_BYTES */
size_t frame_compressor_context_bytes(int level);

/** @return bytes that a frame of n bytes may need when compressed */
size_t frame_bytes_max(size_t n);

/** @return libzstd's version as `1.5.4`; static */
const char *frame_zstd_version(void);

typedef struct FrameCompression {
        const void *data;
        size_t n;
        bool is_zero;     /* all of data is: also `store` compresses it well */
        void *ret;        /* at least frame_bytes_max(n) bytes */
        size_t ret_bytes; /* set on success */
} FrameCompression;

/** Compresses one frame, with content size and checksum, as a pure function of the level, its bytes
 * and is_zero. Callable from as many threads at a time as there are contexts.
 * @return 0, -ENOMEM, -EIO when zstd refuses */
int frame_compress(FrameCompressor *z, FrameCompression *frame);

/* ---- decompressing: untrusted frames, with bounded memory whatever a frame's header says ---- */

typedef struct ZSTD_DCtx_s FrameDecompressor;

int frame_decompressor_new(FrameDecompressor **ret); /* @return 0 or -ENOMEM */
FrameDecompressor *frame_decompressor_free(FrameDecompressor *z);
DEFINE_CLEANUP(FrameDecompressor, frame_decompressor_free);

/** Forgets the frame that was open: the next bytes start one. */
void frame_decompressor_reset(FrameDecompressor *z);

typedef struct FrameDecompression {
        const void *in;
        size_t n_in;
        void *out;
        size_t n_out;
        size_t n_read, n_written; /* set: bytes of in and of out */
        bool is_complete;         /* set: the frame ended with them */
        const char *damage;       /* set: libzstd's error; NULL: none. Static */
} FrameDecompression;

/** One step, as far as input and space for output go. Nothing read and nothing written: more input
 * is needed. */
void frame_decompress_step(FrameDecompressor *z, FrameDecompression *step);
