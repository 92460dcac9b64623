/* From the object's bytes to the tar stream: reads each byte once, hashes parts, decompresses frames. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "lib/bundle/member_digest.h"
#include "lib/bundle/reader_private.h"
#include "lib/bundle/reader_zstd.h"

#define IN_BYTES (256 * 1024)
#define OUT_BYTES (256 * 1024)

/* ---- the object ---- */

static uint64_t part_bytes(const ObjectReader *o) {
        return (uint64_t)json_integer_value(
                json_object_get(json_array_get(o->parts, o->part), "bytes"));
}

void object_reader_init(ObjectReader *o, ByteSource *source, const json_t *parts, Faults *faults) {
        *o = (ObjectReader){ .source = source, .parts = parts, .faults = faults };
        sha256_init(&o->digest);
        o->part_left = part_bytes(o);
}

static int part_close(ObjectReader *o) {
        uint8_t found[SHA256_SIZE];
        char hex[SHA256_HEX_SIZE];
        sha256_final(&o->digest, found);
        digest_hex(found, sizeof found, hex);

        const char *expected =
                json_string_value(json_object_get(json_array_get(o->parts, o->part), "sha256"));
        int r = 0;
        if (!expected || strcasecmp(expected, hex) != 0)
                r = fault_tell(o->faults,
                               "part %zu of the object, %" PRIu64 " bytes up to offset %" PRIu64
                               ", has the sha-256 %s, the manifest says %s",
                               o->part, part_bytes(o), o->offset, hex,
                               expected ? expected : "nothing");
        o->part++;
        sha256_init(&o->digest);
        o->part_left = part_bytes(o);
        return r;
}

/* @param data  read at o->offset */
static int parts_hash(ObjectReader *o, const uint8_t *data, size_t n) {
        while (n > 0) {
                size_t n_take = (size_t)MIN((uint64_t)n, o->part_left);
                if (n_take == 0) { /* behind the last part: the size was found wrong before */
                        o->offset += n;
                        return 0;
                }
                sha256_update(&o->digest, data, n_take);
                data += n_take;
                n -= n_take;
                o->offset += n_take;
                o->part_left -= n_take;
                if (o->part_left == 0) {
                        int r = part_close(o);
                        if (r < 0)
                                return r;
                }
        }
        return 0;
}

int object_reader_read(ObjectReader *o, void *data, size_t n, size_t *ret_n) {
        n = (size_t)MIN((uint64_t)n, o->source->bytes - o->offset);
        if (n > 0) {
                int r = o->source->read_at(o->source, data, n, o->offset);
                if (r == 0)
                        r = parts_hash(o, data, n);
                if (r < 0)
                        return r;
                VerifyReport *report = o->faults->report;
                if (report->on_progress)
                        report->on_progress(o->offset, o->source->bytes, report->userdata);
        }
        *ret_n = n;
        return 0;
}

int object_reader_finish(ObjectReader *o) {
        const size_t n_parts = json_array_size(o->parts);
        if (o->part == n_parts)
                return 0;
        return fault_tell(o->faults,
                          "the object ends before part %zu of %zu is whole, %" PRIu64
                          " bytes are missing from it",
                          o->part, n_parts, o->part_left);
}

/* ---- the tar stream ---- */

struct TarStream {
        ObjectReader *object;
        Faults *faults;
        ReaderZstd *zstd;
        bool has_cursor;
        SeekCursor cursor;
        bool in_frame;
        uint64_t frame_in_left, frame_out_left; /* with a cursor: of the open frame */
        bool is_damaged; /* the open frame goes on as zeros; without a cursor: the end */
        TarStreamState state;
        size_t in_used, n_in;
        uint8_t in[IN_BYTES], out[OUT_BYTES];
};

DEFINE_CLEANUP(TarStream, tar_stream_free);

int tar_stream_new(TarStream **ret, ObjectReader *object, const SeekTable *table, Faults *faults) {
        _cleanup_(tar_stream_freep) TarStream *s = malloc(sizeof *s);
        if (!s)
                return -ENOMEM;
        memset(s, 0, offsetof(TarStream, in));
        s->object = object;
        s->faults = faults;
        s->has_cursor = table != NULL;
        if (table)
                seek_cursor_init(&s->cursor, table);
        int r = reader_zstd_new(&s->zstd);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(s);
        return 0;
}

TarStream *tar_stream_free(TarStream *s) {
        if (!s)
                return NULL;
        reader_zstd_free(s->zstd);
        free(s);
        return NULL;
}

TarStreamState tar_stream_state(const TarStream *s) {
        return s->state;
}

/* Notes where the last byte lies that is not zero: behind the archive's end there must be none. */
static void hand_out(TarStream *s, size_t n) {
        size_t end = n;
        if (member_digest_is_zero(s->out, n))
                end = 0;
        while (end > 0 && s->out[end - 1] == 0)
                end--;
        if (end > 0)
                s->state.nonzero_end = s->state.bytes + end;
        s->state.bytes += n;
}

static int input_fill(TarStream *s) {
        if (s->in_used < s->n_in)
                return 0;
        s->in_used = s->n_in = 0;
        return object_reader_read(s->object, s->in, sizeof s->in, &s->n_in);
}

static int damage(TarStream *s, const char *why) {
        s->is_damaged = true;
        s->state.n_damaged++;
        if (!s->has_cursor)
                return fault_tell(s->faults,
                                  "the object cannot be decompressed behind byte %" PRIu64
                                  " of the tar stream: %s",
                                  s->state.bytes, why);
        return fault_tell(s->faults,
                          "frame %" PRIu64 " of the object, %" PRIu32 " bytes at offset %" PRIu64
                          ", is damaged: %s",
                          s->cursor.n_next - 1, s->cursor.object_bytes, s->cursor.object_offset,
                          why);
}

/* @return 0 with a frame open, SEEK_E_END behind the last one, -errno */
static int frame_open(TarStream *s) {
        if (s->has_cursor) {
                int r = seek_cursor_next(&s->cursor);
                if (r != 0)
                        return r;
                s->frame_in_left = s->cursor.object_bytes;
                s->frame_out_left = s->cursor.bytes;
                s->is_damaged = false;
        } else {
                s->frame_in_left = s->frame_out_left = UINT64_MAX;
                if (s->is_damaged)
                        return SEEK_E_END;
        }
        reader_zstd_begin(s->zstd);
        s->in_frame = true;
        return 0;
}

/* One step of the decoder. @return 0 and what came out; the frame may be over or found damaged then */
static int frame_step(TarStream *s, size_t *ret_n) {
        int r = input_fill(s);
        if (r < 0)
                return r;
        ReaderZstdStep step = { .in = s->in + s->in_used,
                                .n_in = (size_t)MIN((uint64_t)(s->n_in - s->in_used),
                                                    s->frame_in_left),
                                .out = s->out,
                                .n_out = sizeof s->out };
        reader_zstd_step(s->zstd, &step);
        s->in_used += step.used;
        s->frame_in_left -= step.used;

        *ret_n = 0;
        if (step.damage)
                return damage(s, step.damage);
        if (step.made > s->frame_out_left)
                return damage(s, "it holds more than the seek table says");
        *ret_n = step.made;
        s->frame_out_left -= step.made;
        if (step.is_over) {
                if (s->has_cursor && (s->frame_in_left > 0 || s->frame_out_left > 0))
                        return damage(s, "it is shorter than the seek table says");
                s->in_frame = false;
        } else if (step.used == 0 && step.made == 0)
                return damage(s, "it ends too early");
        return 0;
}

/* Passes over the rest of a damaged frame; what it held goes out as zeros. */
static int damaged_step(TarStream *s, size_t *ret_n) {
        *ret_n = 0;
        if (!s->has_cursor) {
                s->in_frame = false;
                return 0;
        }
        while (s->frame_in_left > 0) {
                int r = input_fill(s);
                if (r < 0)
                        return r;
                if (s->n_in == 0)
                        break;
                const size_t n = (size_t)MIN((uint64_t)(s->n_in - s->in_used), s->frame_in_left);
                s->in_used += n;
                s->frame_in_left -= n;
        }
        *ret_n = (size_t)MIN(s->frame_out_left, (uint64_t)sizeof s->out);
        memset(s->out, 0, *ret_n);
        s->frame_out_left -= *ret_n;
        s->in_frame = s->frame_out_left > 0;
        return 0;
}

/* Without a cursor only the object's end tells that no frame follows. */
static int object_is_over(TarStream *s, bool *ret) {
        int r = input_fill(s);
        *ret = r == 0 && s->n_in == 0;
        return r;
}

int tar_stream_next(TarStream *s, const void **ret, size_t *ret_n) {
        size_t n = 0;
        while (n == 0) {
                int r;
                if (!s->in_frame) {
                        bool is_over = false;
                        r = s->has_cursor ? 0 : object_is_over(s, &is_over);
                        if (r == 0)
                                r = is_over ? SEEK_E_END : frame_open(s);
                        if (r == SEEK_E_END)
                                break;
                        if (r < 0)
                                return r;
                }
                r = s->is_damaged ? damaged_step(s, &n) : frame_step(s, &n);
                if (r < 0)
                        return r;
        }
        hand_out(s, n);
        *ret = s->out;
        *ret_n = n;
        return 0;
}
