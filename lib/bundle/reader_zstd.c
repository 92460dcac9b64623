#include "lib/bundle/reader_zstd.h"

#include <errno.h>
#include <zstd.h>

/* A frame holds 2 MiB, so no level up to 19 needs more than 8 MiB; a window of 2 GiB is somebody's joke. */
#define WINDOW_LOG_MAX 23

struct ReaderZstd {
        ZSTD_DCtx *context;
};

int reader_zstd_new(ReaderZstd **ret) {
        _cleanup_(reader_zstd_freep) ReaderZstd *z = calloc(1, sizeof *z);
        if (!z)
                return -ENOMEM;
        z->context = ZSTD_createDCtx();
        if (!z->context ||
            ZSTD_isError(ZSTD_DCtx_setParameter(z->context, ZSTD_d_windowLogMax, WINDOW_LOG_MAX)))
                return -ENOMEM;
        *ret = TAKE_PTR(z);
        return 0;
}

ReaderZstd *reader_zstd_free(ReaderZstd *z) {
        if (!z)
                return NULL;
        (void)ZSTD_freeDCtx(z->context); /* takes NULL; cannot fail for a context of our own */
        free(z);
        return NULL;
}

void reader_zstd_begin(ReaderZstd *z) {
        (void)ZSTD_DCtx_reset(z->context,
                              ZSTD_reset_session_only); /* cannot fail for the session */
}

void reader_zstd_step(ReaderZstd *z, ReaderZstdStep *step) {
        ZSTD_inBuffer in = { step->in, step->n_in, 0 };
        ZSTD_outBuffer out = { step->out, step->n_out, 0 };
        const size_t hint = ZSTD_decompressStream(z->context, &out, &in);

        step->used = in.pos;
        step->made = out.pos;
        step->is_over = hint == 0;
        step->damage = ZSTD_isError(hint) ? ZSTD_getErrorName(hint) : NULL;
}
