/* Decompresses frames of strangers, each for itself, with bounded memory whatever a frame's header says. The reader's door to
 * libzstd. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "lib/base/cleanup.h"

typedef struct ReaderZstd ReaderZstd;

int reader_zstd_new(ReaderZstd **ret); /* @return 0 or -ENOMEM */
ReaderZstd *reader_zstd_free(ReaderZstd *z);
DEFINE_CLEANUP(ReaderZstd, reader_zstd_free);

/** Forgets the frame that was open: the next bytes begin one. */
void reader_zstd_begin(ReaderZstd *z);

typedef struct ReaderZstdStep {
        const void *in;
        size_t n_in;
        void *out;
        size_t n_out;
        size_t used, made;  /* set: bytes of in and of out */
        bool is_over;       /* set: the frame ended with them */
        const char *damage; /* set: what libzstd says is wrong; NULL: nothing. Static */
} ReaderZstdStep;

/** One step of the frame: as far as input and room for output go. Nothing used and nothing made: it wants more input. */
void reader_zstd_step(ReaderZstd *z, ReaderZstdStep *step);
