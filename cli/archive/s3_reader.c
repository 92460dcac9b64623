#include "cli/archive/s3_reader.h"

#include <errno.h>
#include <string.h>

#include "cli/archive/object_store_private.h"
#include "cli/archive/s3_get.h"

#define N_SLOTS                                                                                    \
        (OBJECT_PIECES_AT_ONCE + 2) /* so that the table at the end stays while the rest is read */

typedef struct Slot {
        bool is_used;
        uint64_t piece, last_use;
        S3Get get;
} Slot;

typedef struct S3Reader {
        ObjectReader reader;
        ObjectStore *store; /* borrowed */
        S3Session *session; /* borrowed */
        char *key;
        uint64_t offset, bytes, object_bytes; /* of the range */
        uint64_t n_uses, next_piece; /* next_piece: when it is read next, it is read in order */
        Slot slots[N_SLOTS];
} S3Reader;

static uint64_t n_pieces(const S3Reader *r) {
        return (r->bytes + OBJECT_PIECE_BYTES - 1) / OBJECT_PIECE_BYTES;
}

static Slot *find(S3Reader *r, uint64_t piece) {
        for (size_t i = 0; i < N_SLOTS; i++)
                if (r->slots[i].is_used && r->slots[i].piece == piece)
                        return &r->slots[i];
        return NULL;
}

/* @return the slot that is free or was not used for the longest time */
static Slot *oldest(S3Reader *r) {
        Slot *best = &r->slots[0];
        for (size_t i = 0; i < N_SLOTS && best->is_used; i++)
                if (!r->slots[i].is_used || r->slots[i].last_use < best->last_use)
                        best = &r->slots[i];
        return best;
}

/* @return 0 and the slot of a piece that is there or on its way */
static int begin(S3Reader *r, uint64_t piece, Slot **ret) {
        Slot *s = find(r, piece);
        if (!s) {
                s = oldest(r);
                s3_get_done(&s->get);
                uint64_t at = piece * OBJECT_PIECE_BYTES;
                *s = (Slot){ .is_used = true,
                             .piece = piece,
                             .get = { .key = r->key,
                                      .offset = r->offset + at,
                                      .bytes = (size_t)MIN(OBJECT_PIECE_BYTES, r->bytes - at),
                                      .object_bytes = r->object_bytes } };
                int e = s3_get_start(&s->get, s3_session_client(r->session));
                if (e < 0) {
                        s3_get_done(&s->get);
                        s->is_used = false;
                        return e;
                }
        }
        s->last_use = ++r->n_uses;
        *ret = s;
        return 0;
}

static int begin_ahead(S3Reader *r, uint64_t piece) {
        int e = 0;
        Slot *ignored;
        for (uint64_t i = 1; e == 0 && i < OBJECT_PIECES_AT_ONCE && piece + i < n_pieces(r); i++)
                e = begin(r, piece + i, &ignored);
        return e;
}

/* @return 0 and the piece's bytes, borrowed until the next call; -errno */
static int load(S3Reader *r, uint64_t piece, const S3Get **ret) {
        Slot *s;
        bool in_order = piece == 0 || piece == r->next_piece || piece + 1 == r->next_piece;
        int e = begin(r, piece, &s);
        if (e == 0 && in_order)
                e = begin_ahead(r, piece);
        if (e == 0 && !s->get.done)
                e = s3_session_run(r->session, &s->get.done);
        else if (e == 0)
                e = s3_session_turn(r->session); /* the others go on meanwhile */
        if (e < 0)
                return e;
        r->next_piece = piece + 1;
        if (s->get.outcome > 0) {
                (void)object_store_fail(r->store, 0, "%s", s->get.error ? s->get.error : "");
                e = -EIO;
        } else
                e = s->get.outcome;
        *ret = &s->get;
        return e;
}

static int read_at(ByteSource *source, void *data, size_t n, uint64_t offset) {
        S3Reader *r = (S3Reader *)source;
        char *to = data;
        if (offset < r->offset || offset - r->offset > r->bytes ||
            n > r->bytes - (offset - r->offset))
                return -EINVAL;
        for (uint64_t at = offset - r->offset; n > 0;) {
                const S3Get *get;
                int e = load(r, at / OBJECT_PIECE_BYTES, &get);
                if (e < 0)
                        return e;
                size_t skip = (size_t)(at % OBJECT_PIECE_BYTES), now = MIN(n, get->n - skip);
                memcpy(to, get->data + skip, now);
                to += now;
                at += now;
                n -= now;
        }
        return 0;
}

static ObjectReader *reader_free(ObjectReader *reader) {
        S3Reader *r = (S3Reader *)reader;
        for (size_t i = 0; i < N_SLOTS; i++)
                s3_get_done(&r->slots[i].get);
        free(r->key);
        free(r);
        return NULL;
}

int s3_reader_new(ObjectReader **ret, ObjectStore *store, S3Session *session,
                  const ObjectRange *range) {
        S3Reader *r = calloc(1, sizeof *r);
        char *key = strdup(range->key);
        if (!r || !key) {
                free(r);
                free(key);
                return -ENOMEM;
        }
        *r = (S3Reader){ .reader = { .source = { .bytes = range->object_bytes
                                                                  ? range->object_bytes
                                                                  : range->offset + range->bytes,
                                                 .read_at = read_at },
                                     .free = reader_free },
                         .store = store,
                         .session = session,
                         .key = key,
                         .offset = range->offset,
                         .bytes = range->bytes,
                         .object_bytes = range->object_bytes };
        *ret = &r->reader;
        return 0;
}
