/* Proves a file by reading it from the storage and not from the page cache, hashing one piece while
 * the kernel reads the next. What a difference means is left to the caller. */
#include "uploaders/volume/volume_readback.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"

#define PIECE ((size_t)MIB)
/* io_destroy waits for an RCU grace period, some 30 ms: longer than reading less than this
 * takes. */
#define AIO_MIN (16 * PIECE)

#define ALIGN 4096 /* enough for every logical block size in use */
/* Reads ahead by io_submit(2), which is asynchronous only with O_DIRECT. Where a sandbox or a limit
 * (fs.aio-max-nr) forbids that, or the file is small, each piece is read when it is needed. */
typedef struct Readback {
        int direct_fd, plain_fd; /* direct_fd -1: refused */
        aio_context_t aio;
        bool has_aio;
        uint8_t *pieces[2];
        struct iocb request; /* the kernel copies it, but names it by its address in the answer */
        bool pending;        /* the kernel is carrying out `request` */
        uint64_t total;
} Readback;

static void readback_done(Readback *r) {
        if (r->has_aio)
                (void)syscall(SYS_io_destroy, r->aio); /* waits for reads into the buffers */
        free(r->pieces[0]);
        free(r->pieces[1]);
        if (r->direct_fd >= 0)
                (void)close(r->direct_fd); /* was only read */
        if (r->plain_fd >= 0)
                (void)close(r->plain_fd);
}

static size_t piece_bytes(const Readback *r, uint64_t piece) {
        return (size_t)MIN(r->total - piece * PIECE, (uint64_t)PIECE);
}

static void piece_start(Readback *r, uint64_t piece) {
        struct iocb *list = &r->request;

        if (!r->has_aio || r->direct_fd < 0 || piece * PIECE >= r->total)
                return;
        r->request = (struct iocb){
                .aio_lio_opcode = IOCB_CMD_PREAD,
                .aio_fildes = (uint32_t)r->direct_fd,
                .aio_buf = (uint64_t)(uintptr_t)r->pieces[piece & 1],
                .aio_nbytes = PIECE, /* past the end as well: the length must be aligned */
                .aio_offset = (int64_t)(piece * PIECE),
        };
        r->pending = syscall(SYS_io_submit, r->aio, 1L, &list) ==
                     1; /* else it is read when its turn comes */
}

/* @return bytes, -errno */
static ssize_t piece_collect(Readback *r, uint64_t piece) {
        struct io_event event;
        long n;

        if (r->pending) {
                do
                        n = syscall(SYS_io_getevents, r->aio, 1L, 1L, &event, NULL);
                while (n < 0 && errno == EINTR);
                if (n != 1)
                        return n < 0 ? -errno : -EIO;
                r->pending = false;
                return (ssize_t)event.res;
        }
        ssize_t got = pread(r->direct_fd, r->pieces[piece & 1], PIECE, (off_t)(piece * PIECE));
        return got < 0 ? -errno : got;
}

/* Makes pieces[piece & 1] hold the piece. */
static int piece_fetch(Readback *r, uint64_t piece) {
        size_t want = piece_bytes(r, piece);

        if (r->direct_fd >= 0) {
                ssize_t got = piece_collect(r, piece);
                if (got >= 0 && (size_t)got >= want)
                        return 0;
                if (got < 0 && got != -EINVAL && got != -EINTR && got != -EAGAIN)
                        return (int)got;
                /* O_DIRECT was refused, or was cut short where it cannot continue. */
        }
        int error = fs_pread_all(r->plain_fd, r->pieces[piece & 1], want, piece * PIECE);
        (void)posix_fadvise(r->plain_fd, (off_t)(piece * PIECE), (off_t)want,
                            POSIX_FADV_DONTNEED); /* a hint */
        return error;
}

static int readback_open(Readback *r, const ReadbackFile *file) {
        int dir_fd = file->dir_fd;
        const char *name = file->name;
        struct stat st;

        r->plain_fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (r->plain_fd < 0)
                return errno == ELOOP ? READBACK_E_DIFFERENT : -errno;
        if (fstat(r->plain_fd, &st) < 0)
                return -errno;
        if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != r->total)
                return READBACK_E_DIFFERENT;
        (void)posix_fadvise(r->plain_fd, 0, 0,
                            POSIX_FADV_DONTNEED); /* a hint: O_DIRECT does not need it */
        r->direct_fd =
                openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_DIRECT);
        if (r->direct_fd >= 0) {
                struct stat again; /* the name was looked up twice */
                if (fstat(r->direct_fd, &again) < 0)
                        return -errno;
                if (again.st_dev != st.st_dev || again.st_ino != st.st_ino)
                        return READBACK_E_DIFFERENT;
                r->has_aio = r->total >= AIO_MIN && syscall(SYS_io_setup, 2L, &r->aio) == 0;
        }
        for (size_t i = 0; i < 2; i++) {
                r->pieces[i] = aligned_alloc(ALIGN, PIECE);
                if (!r->pieces[i])
                        return -ENOMEM;
        }
        return 0;
}

int volume_readback(const ReadbackFile *file, const VolumeStripe *stripes, size_t n_stripes,
                    uint64_t *ret_bad_offset) {
        _cleanup_(readback_done) Readback r = { .direct_fd = -1, .plain_fd = -1 };
        uint64_t at = 0; /* bytes hashed so far */

        for (size_t i = 0; i < n_stripes; i++)
                if (__builtin_add_overflow(r.total, stripes[i].bytes, &r.total) ||
                    r.total > INT64_MAX)
                        return -EOVERFLOW;
        *ret_bad_offset = r.total;
        int error = readback_open(&r, file);
        if (error != 0)
                return error;

        piece_start(&r, 0);
        for (size_t i = 0; i < n_stripes; i++) {
                uint64_t start = at, end = at + stripes[i].bytes;
                uint8_t digest[SHA256_SIZE];
                Sha256 sha;

                sha256_init(&sha);
                while (at < end) {
                        uint64_t piece = at / PIECE;
                        size_t skip = (size_t)(at % PIECE);
                        size_t n = (size_t)MIN(end - at, (uint64_t)PIECE - skip);

                        if (skip ==
                            0) { /* a new piece: it is read once, also when stripes share it */
                                error = piece_fetch(&r, piece);
                                if (error < 0)
                                        return error == -ENODATA ? READBACK_E_DIFFERENT : error;
                                piece_start(&r, piece + 1);
                        }
                        sha256_update(&sha, r.pieces[piece & 1] + skip, n);
                        at += n;
                        if (file->n_read)
                                atomic_fetch_add(file->n_read, n);
                }
                sha256_final(&sha, digest);
                if (memcmp(digest, stripes[i].sha256, sizeof digest) != 0) {
                        *ret_bad_offset = start;
                        return READBACK_E_DIFFERENT;
                }
        }
        return 0;
}
