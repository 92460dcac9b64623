/* Reads a range of an object as a ByteSource: a file by pread(2), an object in a bucket in pieces,
 * the requested one and the next ones in parallel. */
#include "cli/archive/object_reader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/archive/object_store.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"

#define N_SLOTS (OBJECT_PIECES_AT_ONCE + 2) /* a piece is always in the same slot */

typedef struct ObjectReader {
        ByteSource source;
        ObjectBucket *bucket; /* borrowed; NULL: a directory */
        char **error;         /* borrowed: the store's */
        ObjectRange range;
        char *key;
        int fd;                  /* of a directory's; -1 */
        BucketGet gets[N_SLOTS]; /* of a directory: none */
} ObjectReader;

/* @return 0 and the piece that is there or on its way */
static int start_piece(ObjectReader *r, uint64_t piece, BucketGet **ret) {
        BucketGet *g = &r->gets[piece % N_SLOTS];
        uint64_t at = piece * OBJECT_PIECE_BYTES;
        *ret = g;
        if (g->client && g->offset == r->range.offset + at)
                return 0;
        bucket_get_done(g);
        *g = (BucketGet){ .head = { .key = r->key,
                                    .max_bytes =
                                            (size_t)MIN(OBJECT_PIECE_BYTES, r->range.bytes - at) },
                          .offset = r->range.offset + at,
                          .object_bytes = r->range.object_bytes };
        int e = bucket_get_start(g, r->bucket);
        if (e < 0)
                bucket_get_done(g);
        return e;
}

/* @return 0 and the piece's bytes, borrowed until the next call; -errno */
static int load(ObjectReader *r, uint64_t piece, const ObjectHead **ret) {
        BucketGet *g, *ahead;
        uint64_t n = (r->range.bytes + OBJECT_PIECE_BYTES - 1) / OBJECT_PIECE_BYTES;
        int e = start_piece(r, piece, &g);
        for (uint64_t i = 1; e == 0 && i < OBJECT_PIECES_AT_ONCE && piece + i < n; i++)
                e = start_piece(r, piece + i, &ahead);
        if (e == 0 && !g->done)
                e = object_bucket_run_until(r->bucket, &g->done);
        else if (e == 0)
                e = object_bucket_run_once(r->bucket, 0); /* the others continue meanwhile */
        if (e < 0)
                return e;
        *ret = &g->head;
        return g->head.outcome > 0
                       ? object_error_set(r->error, -EIO, "%s", g->head.error ? g->head.error : "")
                       : g->head.outcome;
}

static int s3_read_at(ObjectReader *r, char *to, size_t n, uint64_t at) {
        while (n > 0) {
                const ObjectHead *piece;
                int e = load(r, at / OBJECT_PIECE_BYTES, &piece);
                if (e < 0)
                        return e;
                size_t skip = (size_t)(at % OBJECT_PIECE_BYTES), now = MIN(n, piece->n - skip);
                memcpy(to, piece->text + skip, now);
                to += now;
                at += now;
                n -= now;
        }
        return 0;
}

static int dir_read_at(ObjectReader *r, void *data, size_t n, uint64_t offset) {
        if (cli_is_interrupted())
                return -EINTR;
        int e = fs_pread_all(r->fd, data, n, offset);
        return e == -ENODATA ? object_error_set(r->error, e,
                                                "'%s' became shorter while it was read", r->key)
               : e < 0 ? object_error_set(r->error, e, "cannot read '%s': %s", r->key, strerror(-e))
                       : 0;
}

static int read_at(ByteSource *source, void *data, size_t n, uint64_t offset) {
        ObjectReader *r = (ObjectReader *)source;
        if (offset < r->range.offset || offset - r->range.offset > r->range.bytes ||
            n > r->range.bytes - (offset - r->range.offset))
                return -EINVAL;
        return r->fd >= 0 ? dir_read_at(r, data, n, offset)
                          : s3_read_at(r, data, n, offset - r->range.offset);
}

ByteSource *object_reader_free(ByteSource *source) {
        ObjectReader *r = (ObjectReader *)source;
        if (!r)
                return NULL;
        for (size_t i = 0; i < N_SLOTS; i++)
                bucket_get_done(&r->gets[i]);
        cleanup_closep(&r->fd);
        free(r->key);
        free(r);
        return NULL;
}

int object_reader_new(ByteSource **ret, ObjectBucket *bucket, const ObjectDir *dir,
                      const ObjectRange *range, char **error) {
        _cleanup_close_ int fd = -1;
        uint64_t bytes = range->object_bytes ? range->object_bytes : range->offset + range->bytes;
        int e = bucket ? 0 : object_dir_open(dir, range, &fd, &bytes, error);
        if (e != 0)
                return e;
        ObjectReader *r = calloc(1, sizeof *r);
        char *key = strdup(range->key);
        if (!r || !key) {
                free(r);
                free(key);
                return -ENOMEM;
        }
        *r = (ObjectReader){ .source = { .bytes = bytes, .read_at = read_at },
                             .bucket = bucket,
                             .error = error,
                             .range = *range,
                             .key = key,
                             .fd = TAKE_FD(fd) };
        *ret = &r->source;
        return 0;
}
