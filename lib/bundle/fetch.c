/* Reads backwards: pax records and the headers of other members may lie before the one block that
 * counts, and what it is followed by, data or map, shows whether the member is sparse.
 * @see GNU tar's manual, «PAX Format, Version 1.0»: the map is decimal numbers, a line each, their
 * count first, padded to a block */
#include "lib/bundle/fetch.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "lib/bundle/frame.h"
#include "lib/bundle/member_digest.h"
#include "lib/bundle/packer.h"
#include "lib/bundle/plan.h"

/* Of header and sparse map together: ours have at most 65,536 extents, 2.5 MiB of text. */
#define FETCH_HEADER_MAX (4 * MIB)

typedef struct FetchMap {
        PlanExtent *extents; /* owned; in order, all within the content; some may be empty */
        size_t n_extents;
        uint64_t stored_bytes; /* of all extents */
} FetchMap;

/* What libarchive adds behind the last extent to say where the file ends. */
#define EXTENTS_READ_MAX (PLAN_EXTENTS_MAX + 2)

/* Offsets in a ustar header (POSIX pax, «ustar Interchange Format»). */
#define CHECKSUM_OFFSET 148
#define CHECKSUM_BYTES 8
#define TYPE_OFFSET 156
#define MAGIC_OFFSET 257

static bool is_file_header(const uint8_t *block) {
        unsigned sum = 0, expected = 0;

        if (memcmp(block + MAGIC_OFFSET, "ustar", 5) != 0 ||
            (block[TYPE_OFFSET] != '0' && block[TYPE_OFFSET] != '\0'))
                return false;
        for (size_t i = 0; i < PLAN_TAR_BLOCK; i++)
                sum += i - CHECKSUM_OFFSET < CHECKSUM_BYTES ? ' ' : block[i];
        for (size_t i = 0; i < CHECKSUM_BYTES && block[CHECKSUM_OFFSET + i] >= '0' &&
                           block[CHECKSUM_OFFSET + i] <= '7';
             i++)
                expected = expected * 8 + block[CHECKSUM_OFFSET + i] - '0';
        return sum == expected;
}

typedef struct Text {
        const uint8_t *at, *end;
} Text;

/* One number and the end of its line. @return whether there was one */
static bool read_number(Text *t, uint64_t *ret) {
        const uint8_t *begin = t->at;
        uint64_t value = 0;

        for (; t->at < t->end && isdigit(*t->at); t->at++)
                if (__builtin_mul_overflow(value, 10, &value) ||
                    __builtin_add_overflow(value, (uint64_t)(*t->at - '0'), &value))
                        return false;
        if (t->at == begin || t->at == t->end || *t->at != '\n')
                return false;
        t->at++;
        *ret = value;
        return true;
}

static int map_parse(FetchMap *m, Text t, uint64_t bytes) {
        uint64_t n, before = 0;

        if (!read_number(&t, &n) || n > EXTENTS_READ_MAX)
                return -EBADMSG;
        m->extents = calloc(MAX(n, UINT64_C(1)), sizeof *m->extents);
        if (!m->extents)
                return -ENOMEM;
        for (; m->n_extents < n; m->n_extents++) {
                PlanExtent *e = &m->extents[m->n_extents];
                if (!read_number(&t, &e->offset) || !read_number(&t, &e->bytes) ||
                    e->offset < before || e->offset > bytes || e->bytes > bytes - e->offset)
                        return -EBADMSG;
                before = e->offset + e->bytes;
                m->stored_bytes += e->bytes;
        }
        return 0;
}

static int fetch_map_dense(FetchMap *ret, uint64_t bytes) {
        PlanExtent *whole = malloc(sizeof *whole);
        if (!whole)
                return -ENOMEM;
        *whole = (PlanExtent){ .offset = 0, .bytes = bytes };
        *ret = (FetchMap){ .extents = whole, .n_extents = 1, .stored_bytes = bytes };
        return 0;
}

static void fetch_map_done(FetchMap *m);

static int fetch_map_read(FetchMap *ret, const uint8_t *data, size_t n, uint64_t bytes) {
        size_t end = n - n % PLAN_TAR_BLOCK; /* of the header */
        FetchMap map = { 0 };

        while (end > 0 && !is_file_header(data + end - PLAN_TAR_BLOCK))
                end -= PLAN_TAR_BLOCK;
        if (end == 0)
                return -EBADMSG;
        if (end == n)
                return fetch_map_dense(ret, bytes);
        int r = map_parse(&map, (Text){ data + end, data + n }, bytes);
        if (r < 0) {
                fetch_map_done(&map);
                return r;
        }
        *ret = map;
        return 0;
}

static void fetch_map_done(FetchMap *m) {
        free(m->extents);
        *m = (FetchMap){ 0 };
}

/* Manifest and seek table say which frames hold the member; the tar header says where its data
 * belongs. It is read only when the manifest leaves it open. Both may lie: what counts in the end
 * is the digest. */

#define OUT_BYTES (256 * 1024)

typedef struct FetchFrame {
        uint32_t object_bytes, bytes;
} FetchFrame;

typedef struct FetchOutput {
        int (*put)(const void *data, uint64_t n, uint64_t offset, void *userdata);
        void *userdata;
} FetchOutput;

struct Fetch {
        const json_t *manifest, *member;
        uint64_t object_bytes, stream_bytes, n_frames; /* by the manifest */
        uint64_t bytes;                                /* of the content */
        uint64_t begin, offset, end; /* of the tar stream: header (or data, when dense), data, and
                                        what is surely behind the data */
        bool is_dense;               /* by the manifest there are no holes */

        FetchFrame *frames; /* those that are needed; owned */
        uint64_t n_needed, next;
        uint64_t first_frame, object_offset,
                frames_offset; /* of the first of them: number, in the object, in the stream */

        FrameDecompressor *zstd;
        bool in_frame;
        uint64_t in_remaining, out_remaining; /* of the open frame */
        uint64_t stream;                      /* offset in the tar stream of what comes out next */

        uint8_t *header; /* [begin, offset) unless dense; owned */
        bool has_map;
        FetchMap map;
        size_t extent;
        uint64_t extent_done, content, keep; /* content: handed out or kept so far */
        MemberDigest digest;
        int error; /* stays */
        char fault[256];
        uint8_t out[OUT_BYTES];
};

_printf_(2, 3) static int damaged(Fetch *f, const char *fmt, ...) {
        va_list args;
        va_start(args, fmt);
        (void)vsnprintf(f->fault, sizeof f->fault, fmt, args); /* our own sentences: they fit */
        va_end(args);
        return -EBADMSG;
}

/* ---- the manifest ---- */

static uint64_t number_of(const json_t *object, const char *key) {
        return (uint64_t)json_integer_value(json_object_get(object, key));
}

/* @return where the member's header begins */
static uint64_t header_begin(const json_t *member) {
        const uint64_t offset = number_of(member, "offset");
        return offset - MIN(offset, number_of(member, "header"));
}

static int locate_member(Fetch *f, const json_t *members, size_t i) {
        uint64_t padded, end;
        const json_t *next = json_array_get(members, i + 1);
        const uint64_t bound = /* of data and padding */
                next ? header_begin(next)
                     : f->stream_bytes - MIN(f->stream_bytes, (uint64_t)PLAN_TAR_END);

        f->begin = header_begin(f->member);
        if (bound < f->offset || f->offset - f->begin > FETCH_HEADER_MAX ||
            f->offset % PLAN_TAR_BLOCK != 0 || f->begin % PLAN_TAR_BLOCK != 0 ||
            __builtin_add_overflow(f->bytes, PLAN_TAR_BLOCK - 1, &padded) ||
            __builtin_add_overflow(f->offset, padded - padded % PLAN_TAR_BLOCK, &end))
                return -EINVAL;
        f->is_dense = f->bytes == 0 || bound == end;
        f->end = f->is_dense ? f->offset + f->bytes : MIN(bound, end);
        if (f->is_dense)
                f->begin = f->offset;
        return 0;
}

static int find_member(const json_t *members, const char *path, size_t *ret) {
        const json_t *member;
        size_t i;
        json_array_foreach(members, i, member) {
                const char *s = json_string_value(json_object_get(member, "path"));
                if (s && strcmp(s, path) == 0) {
                        *ret = i;
                        return 0;
                }
        }
        return -ENOENT;
}

static int fetch_init(Fetch *f, size_t i) {
        const json_t *bundle = json_object_get(f->manifest, "bundle"),
                     *members = json_object_get(f->manifest, "members");

        f->member = json_array_get(members, i);
        f->object_bytes = number_of(bundle, "bytes");
        f->stream_bytes = number_of(bundle, "uncompressed_bytes");
        f->n_frames = number_of(json_object_get(f->manifest, "frames"), "count");
        f->bytes = number_of(f->member, "bytes");
        f->offset = number_of(f->member, "offset");
        member_digest_init(&f->digest);
        if (f->n_frames > SEEK_TABLE_BYTES_MAX / SEEK_TABLE_ENTRY_BYTES ||
            bundle_writer_seek_table_bytes(f->n_frames) > f->object_bytes)
                return -EINVAL;
        int r = locate_member(f, members, i);
        if (r == 0)
                r = frame_decompressor_new(&f->zstd);
        if (r == 0 && f->is_dense) {
                f->has_map = true;
                r = fetch_map_dense(&f->map, f->bytes);
        } else if (r == 0) {
                f->header = malloc(f->offset - f->begin + 1);
                r = f->header ? 0 : -ENOMEM;
        }
        return r;
}

int fetch_new(Fetch **ret, const json_t *manifest, const char *member, FetchRange *ret_table) {
        _cleanup_(fetch_freep) Fetch *f = malloc(sizeof *f);
        size_t i;
        if (!f)
                return -ENOMEM;
        memset(f, 0, offsetof(Fetch, out));
        f->manifest = manifest;
        int r = find_member(json_object_get(manifest, "members"), member, &i);
        if (r == 0)
                r = fetch_init(f, i);
        if (r < 0)
                return r;
        ret_table->bytes = bundle_writer_seek_table_bytes(f->n_frames);
        ret_table->offset = f->object_bytes - ret_table->bytes;
        *ret = TAKE_PTR(f);
        return 0;
}

Fetch *fetch_free(Fetch *f) {
        if (!f)
                return NULL;
        frame_decompressor_free(f->zstd);
        fetch_map_done(&f->map);
        free(f->frames);
        free(f->header);
        free(f);
        return NULL;
}

uint64_t fetch_bytes(const Fetch *f) {
        return f->bytes;
}

const char *fetch_error_text(const Fetch *f) {
        return f->fault;
}

/* ---- the seek table ---- */

static bool table_has_form(const Fetch *f, const uint8_t *table, size_t n) {
        const uint8_t *footer = table + n - SEEK_TABLE_FOOTER_BYTES;
        return n == bundle_writer_seek_table_bytes(f->n_frames) &&
               seek_table_read_u32(table) == SEEK_TABLE_MAGIC &&
               seek_table_read_u32(table + 4) == n - SEEK_TABLE_HEADER_BYTES &&
               seek_table_read_u32(footer) == f->n_frames && footer[4] == 0 &&
               seek_table_read_u32(footer + 5) == SEEK_TABLE_FOOTER_MAGIC;
}

/* Adds up the frames; the first and the last one that are needed are found by their place in the
 * stream. */
static bool table_walk(Fetch *f, const uint8_t *entries) {
        uint64_t object_offset = 0, stream_offset = 0;

        for (uint64_t i = 0; i < f->n_frames; i++, entries += SEEK_TABLE_ENTRY_BYTES) {
                const uint32_t object_bytes = seek_table_read_u32(entries),
                               bytes = seek_table_read_u32(entries + 4);
                const uint64_t end = stream_offset + bytes; /* 2^23 of 2^32: cannot wrap */
                if (stream_offset <= f->begin && f->begin < end) {
                        f->first_frame = i;
                        f->object_offset = object_offset;
                        f->frames_offset = stream_offset;
                        f->n_needed = 0;
                }
                if (end > f->begin && (stream_offset < f->end || stream_offset < f->offset))
                        f->n_needed++;
                if (stream_offset <= f->offset && f->offset < end &&
                    i != number_of(f->member, "frame"))
                        return false;
                object_offset += object_bytes;
                stream_offset = end;
        }
        return stream_offset == f->stream_bytes && f->end <= stream_offset &&
               object_offset == f->object_bytes - bundle_writer_seek_table_bytes(f->n_frames);
}

static FetchRange range_from(const Fetch *f, uint64_t first) {
        FetchRange range = { .offset = f->object_offset };
        for (uint64_t i = 0; i < f->n_needed; i++)
                if (i < first)
                        range.offset += f->frames[i].object_bytes;
                else
                        range.bytes += f->frames[i].object_bytes;
        return range;
}

int fetch_set_table(Fetch *f, const void *table, size_t n, FetchRange *ret_frames) {
        if (!table_has_form(f, table, n)) {
                (void)damaged(f,
                              "the object does not end with the seek table of %" PRIu64 " frames",
                              f->n_frames);
                return -EINVAL;
        }
        const uint8_t *entries = (const uint8_t *)table + SEEK_TABLE_HEADER_BYTES;
        if (!table_walk(f, entries)) {
                (void)damaged(f, "the object's seek table does not fit the manifest");
                return -EINVAL;
        }
        if (f->bytes == 0)
                f->n_needed = 0;
        free(f->frames);
        f->frames = calloc(MAX(f->n_needed, UINT64_C(1)), sizeof *f->frames);
        if (!f->frames)
                return -ENOMEM;
        entries += f->first_frame * SEEK_TABLE_ENTRY_BYTES;
        for (uint64_t i = 0; i < f->n_needed; i++, entries += SEEK_TABLE_ENTRY_BYTES)
                f->frames[i] = (FetchFrame){ seek_table_read_u32(entries),
                                             seek_table_read_u32(entries + 4) };
        f->stream = f->frames_offset;
        *ret_frames = range_from(f, 0);
        return 0;
}

int fetch_resume(Fetch *f, uint64_t done, FetchRange *ret_frames, uint64_t *ret_keep) {
        const uint64_t target = f->offset + MIN(done, f->bytes);

        f->next = 0;
        f->stream = f->frames_offset;
        if (f->is_dense)
                while (f->next < f->n_needed &&
                       (target == f->end || f->stream + f->frames[f->next].bytes <= target))
                        f->stream += f->frames[f->next++].bytes;
        f->keep = f->stream > f->offset ? MIN(f->stream, f->end) - f->offset : 0;
        f->extent_done = f->keep;
        *ret_keep = f->keep;
        *ret_frames = range_from(f, f->next);
        return 0;
}

void fetch_supply_kept(Fetch *f, const void *data, size_t n) {
        n = (size_t)MIN((uint64_t)n, f->keep - f->content);
        (void)member_digest_update(&f->digest, data, n); /* zeros do not matter here */
        f->content += n;
}

/* ---- the content ---- */

/* @param data  NULL = zeros */
static int emit(Fetch *f, const void *data, uint64_t n, const FetchOutput *put) {
        if (n == 0)
                return 0;
        if (data)
                (void)member_digest_update(&f->digest, data, n);
        else
                member_digest_zeros(&f->digest, n);
        int r = put->put(data, n, f->content, put->userdata);
        f->content += n;
        return r;
}

/* The hole before the next extent that has data, or up to the content's end. */
static int emit_hole(Fetch *f, const FetchOutput *put) {
        while (f->extent < f->map.n_extents && f->extent_done == f->map.extents[f->extent].bytes) {
                f->extent++;
                f->extent_done = 0;
        }
        if (f->extent_done > 0)
                return 0;
        const uint64_t next =
                f->extent < f->map.n_extents ? f->map.extents[f->extent].offset : f->bytes;
        return emit(f, NULL, next - f->content, put);
}

/* The header is complete: now it is known where the data belongs. */
static int read_map(Fetch *f, const FetchOutput *put) {
        int r = fetch_map_read(&f->map, f->header, f->offset - f->begin, f->bytes);
        if (r == -EBADMSG || (r == 0 && f->map.stored_bytes > f->end - f->offset))
                return damaged(
                        f, "the %" PRIu64 " bytes before the member's data are no tar header of it",
                        f->offset - f->begin);
        f->has_map = r == 0;
        return r == 0 ? emit_hole(f, put) : r;
}

static int place_data(Fetch *f, const uint8_t *data, uint64_t n, const FetchOutput *put) {
        int r = 0;
        while (r == 0 && n > 0 && f->extent < f->map.n_extents) {
                const uint64_t now = MIN(n, f->map.extents[f->extent].bytes - f->extent_done);
                r = emit(f, data, now, put);
                data += now;
                n -= now;
                f->extent_done += now;
                if (r == 0)
                        r = emit_hole(f, put);
        }
        return r; /* what is left is padding, or the next member */
}

/* n bytes of the tar stream, at f->stream. */
static int handle_stream(Fetch *f, const uint8_t *data, size_t n, const FetchOutput *put) {
        const uint64_t from = f->stream, to = from + n;
        int r = 0;

        f->stream = to;
        if (!f->has_map) {
                const uint64_t begin = MAX(from, f->begin), end = MIN(to, f->offset);
                if (begin < end)
                        memcpy(f->header + (begin - f->begin), data + (begin - from), end - begin);
                if (to >= f->offset)
                        r = read_map(f, put);
        }
        if (r == 0 && to > f->offset) {
                const uint64_t begin = MAX(from, f->offset);
                r = place_data(f, data + (begin - from), to - begin, put);
        }
        return r;
}

/* ---- frames ---- */

static int frame_damaged(Fetch *f, const char *why) {
        return damaged(f, "frame %" PRIu64 " of the object is damaged: %s",
                       f->first_frame + f->next, why);
}

/* @return bytes of data that were used, -errno */
static ssize_t frame_step(Fetch *f, const uint8_t *data, size_t n, const FetchOutput *put) {
        FrameDecompression step = { .in = data,
                                    .n_in = (size_t)MIN((uint64_t)n, f->in_remaining),
                                    .out = f->out,
                                    .n_out = sizeof f->out };
        frame_decompress_step(f->zstd, &step);
        f->in_remaining -= step.n_read;
        if (step.damage)
                return frame_damaged(f, step.damage);
        if (step.n_written > f->out_remaining)
                return frame_damaged(f, "it holds more than the seek table declares");
        f->out_remaining -= step.n_written;
        int r = handle_stream(f, f->out, step.n_written, put);
        if (r < 0)
                return r;
        if (step.is_complete ? f->in_remaining > 0 || f->out_remaining > 0
                             : f->in_remaining == 0 && step.n_written < step.n_out)
                return frame_damaged(f, "its length differs from the seek table");
        if (step.is_complete) {
                f->in_frame = false;
                f->next++;
        }
        return (ssize_t)step.n_read;
}

static int decompress(Fetch *f, const uint8_t *data, size_t n, const FetchOutput *put) {
        while (n > 0 || (f->in_frame && f->in_remaining == 0)) {
                if (!f->in_frame) {
                        if (f->next == f->n_needed)
                                return damaged(f, "more bytes came than the member's frames have");
                        f->in_frame = true;
                        f->in_remaining = f->frames[f->next].object_bytes;
                        f->out_remaining = f->frames[f->next].bytes;
                        frame_decompressor_reset(f->zstd);
                }
                ssize_t used = frame_step(f, data, n, put);
                if (used < 0)
                        return (int)used;
                data += used;
                n -= (size_t)used;
        }
        return 0;
}

int fetch_supply_data(Fetch *f, const void *data, size_t n,
                      int (*put)(const void *data, uint64_t n, uint64_t offset, void *userdata),
                      void *userdata) {
        if (f->error == 0 && f->content < f->keep)
                f->error = -EINVAL; /* what was kept is missing from the digest */
        if (f->error == 0)
                f->error = decompress(f, data, n, &(FetchOutput){ put, userdata });
        return f->error;
}

int fetch_finish(Fetch *f) {
        uint8_t found[SHA256_SIZE];
        char hex[SHA256_HEX_SIZE];
        bool is_sparse;

        if (f->error < 0)
                return f->error;
        if (f->content < f->bytes)
                return f->error =
                               damaged(f, "the member ends after %" PRIu64 " of %" PRIu64 " bytes",
                                       f->content, f->bytes);
        member_digest_final(&f->digest, found, &is_sparse);
        digest_hex(found, sizeof found, hex);
        const char *key = is_sparse ? "sha256_sparse" : "sha256",
                   *expected = json_string_value(json_object_get(f->member, key));
        if (expected && strcasecmp(expected, hex) == 0)
                return 0;
        return f->error = damaged(f, "its %s is %s, the manifest has %.64s", key, hex,
                                  expected ? expected : "nothing of this form");
}
