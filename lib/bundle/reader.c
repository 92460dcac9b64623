/* Verifies a bundle: reads the seek table at the object's end, then the object once from its
 * beginning, and compares parts, frames and members with the manifest. libarchive reads the tar
 * stream, because it did not write it: our writer has its own code for tar. Fetching members is
 * left to fetch.c. */
#include "lib/bundle/reader.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <locale.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/digest.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/bundle/frame.h"
#include "lib/bundle/member_digest.h"

typedef struct VerifyFaults {
        VerifyReport *report;
        uint64_t n;
} VerifyFaults;

typedef struct SeekTable {
        uint64_t offset; /* of the table in the object: the frames end here */
        uint64_t n_frames;
        uint32_t entry_bytes; /* 8, or 12 with a checksum each */
        uint8_t *entries;     /* owned */
} SeekTable;

enum { SEEK_E_NO_TABLE = 1, SEEK_E_END = 2 };

typedef struct SeekCursor { /* walks the frames in order */
        const SeekTable *table;
        uint64_t n_next;                /* the frame that comes next */
        uint64_t object_offset, offset; /* of the current frame: in the object, in the tar stream */
        uint32_t object_bytes, bytes;   /* its size there and there */
} SeekCursor;

typedef struct PartsReader {
        ByteSource *source; /* borrowed */
        uint64_t offset;
        const json_t *parts;     /* borrowed */
        size_t part;             /* the open one */
        uint64_t part_remaining; /* its bytes still to come */
        Sha256 digest;
        VerifyFaults *faults;
} PartsReader;

typedef struct TarReader TarReader;

typedef struct TarStreamState {
        uint64_t bytes;       /* handed out */
        uint64_t nonzero_end; /* offset behind the last byte of them that is not zero */
        uint64_t n_damaged;   /* frames */
} TarStreamState;

#define CHECKSUM_FLAG 0x80
#define RESERVED_FLAGS 0x7c

static int seek_table_open(SeekTable *t, ByteSource *object) {
        uint8_t footer[SEEK_TABLE_FOOTER_BYTES], header[SEEK_TABLE_HEADER_BYTES];
        if (object->bytes < SEEK_TABLE_HEADER_BYTES + SEEK_TABLE_FOOTER_BYTES)
                return SEEK_E_NO_TABLE;
        int r = object->read_at(object, footer, sizeof footer, object->bytes - sizeof footer);
        if (r < 0)
                return r;
        if (seek_table_read_u32(footer + 5) != SEEK_TABLE_FOOTER_MAGIC ||
            footer[4] & RESERVED_FLAGS)
                return SEEK_E_NO_TABLE;

        const uint64_t n_frames = seek_table_read_u32(footer),
                       entry_bytes = footer[4] & CHECKSUM_FLAG ? 12 : 8,
                       bytes = n_frames * entry_bytes, content = bytes + SEEK_TABLE_FOOTER_BYTES;
        if (content + SEEK_TABLE_HEADER_BYTES > object->bytes || bytes > SEEK_TABLE_BYTES_MAX)
                return SEEK_E_NO_TABLE;
        const uint64_t offset = object->bytes - content - SEEK_TABLE_HEADER_BYTES;
        r = object->read_at(object, header, sizeof header, offset);
        if (r < 0)
                return r;
        if (seek_table_read_u32(header) != SEEK_TABLE_MAGIC ||
            seek_table_read_u32(header + 4) != content)
                return SEEK_E_NO_TABLE;

        *t = (SeekTable){ .offset = offset,
                          .n_frames = n_frames,
                          .entry_bytes = (uint32_t)entry_bytes,
                          .entries = malloc(bytes + 1) };
        return t->entries ? object->read_at(object, t->entries, (size_t)bytes,
                                            offset + SEEK_TABLE_HEADER_BYTES)
                          : -ENOMEM;
}

/* @return false: there are no more */
static bool seek_cursor_next(SeekCursor *c) {
        if (c->n_next == c->table->n_frames)
                return false;
        const uint8_t *entry = c->table->entries + c->n_next * c->table->entry_bytes;
        c->object_offset += c->object_bytes; /* 2^32 frames of 2^32 bytes at most: cannot wrap */
        c->offset += c->bytes;
        c->object_bytes = seek_table_read_u32(entry);
        c->bytes = seek_table_read_u32(entry + 4);
        c->n_next++;
        return true;
}

/* From the object's bytes to the tar stream: reads each byte once, hashes parts, decompresses
 * frames. */

#define IN_BYTES (256 * 1024)
#define OUT_BYTES (256 * 1024)

/* ---- the object ---- */

static uint64_t part_bytes(const PartsReader *o) {
        return (uint64_t)json_integer_value(
                json_object_get(json_array_get(o->parts, o->part), "bytes"));
}

static void parts_reader_init(PartsReader *o, ByteSource *source, const json_t *parts,
                              VerifyFaults *faults) {
        *o = (PartsReader){ .source = source, .parts = parts, .faults = faults };
        sha256_init(&o->digest);
        o->part_remaining = part_bytes(o);
}

static TarReader *tar_reader_free(TarReader *s);
static int report_fault(VerifyFaults *f, const char *fmt, ...);

static int close_part(PartsReader *o) {
        uint8_t found[SHA256_SIZE];
        char hex[SHA256_HEX_SIZE];
        sha256_final(&o->digest, found);
        digest_hex(found, sizeof found, hex);

        const char *expected =
                json_string_value(json_object_get(json_array_get(o->parts, o->part), "sha256"));
        int r = 0;
        if (!expected || strcasecmp(expected, hex) != 0)
                r = report_fault(o->faults,
                                 "part %zu of the object, %" PRIu64 " bytes up to offset %" PRIu64
                                 ", has the sha-256 %s, the manifest has %s",
                                 o->part, part_bytes(o), o->offset, hex,
                                 expected ? expected : "nothing");
        o->part++;
        sha256_init(&o->digest);
        o->part_remaining = part_bytes(o);
        return r;
}

/* @param data  read at o->offset */
static int hash_parts(PartsReader *o, const uint8_t *data, size_t n) {
        while (n > 0) {
                size_t n_used = (size_t)MIN((uint64_t)n, o->part_remaining);
                if (n_used == 0) { /* behind the last part: the size was found wrong before */
                        o->offset += n;
                        return 0;
                }
                sha256_update(&o->digest, data, n_used);
                data += n_used;
                n -= n_used;
                o->offset += n_used;
                o->part_remaining -= n_used;
                if (o->part_remaining == 0) {
                        int r = close_part(o);
                        if (r < 0)
                                return r;
                }
        }
        return 0;
}

static int parts_reader_read(PartsReader *o, void *data, size_t n, size_t *ret_n) {
        n = (size_t)MIN((uint64_t)n, o->source->bytes - o->offset);
        if (n > 0) {
                int r = o->source->read_at(o->source, data, n, o->offset);
                if (r == 0)
                        r = hash_parts(o, data, n);
                if (r < 0)
                        return r;
                VerifyReport *report = o->faults->report;
                if (report->on_progress)
                        report->on_progress(o->offset, o->source->bytes, report->userdata);
        }
        *ret_n = n;
        return 0;
}

static int parts_reader_finish(PartsReader *o) {
        const size_t n_parts = json_array_size(o->parts);
        if (o->part == n_parts)
                return 0;
        return report_fault(o->faults,
                            "the object ends before part %zu of %zu is whole, %" PRIu64
                            " bytes are missing from it",
                            o->part, n_parts, o->part_remaining);
}

/* ---- the tar stream ---- */

struct TarReader {
        PartsReader *object;
        VerifyFaults *faults;
        FrameDecompressor *zstd;
        bool has_cursor;
        SeekCursor cursor;
        bool in_frame;
        uint64_t frame_in_remaining, frame_out_remaining; /* with a cursor: of the open frame */
        bool is_damaged; /* the rest of the open frame is zeros; without a cursor: the end */
        TarStreamState state;
        size_t in_used, n_in;
        uint8_t in[IN_BYTES], out[OUT_BYTES];
};

DEFINE_CLEANUP(TarReader, tar_reader_free);

static int tar_reader_new(TarReader **ret, PartsReader *object, const SeekTable *table,
                          VerifyFaults *faults) {
        _cleanup_(tar_reader_freep) TarReader *s = malloc(sizeof *s);
        if (!s)
                return -ENOMEM;
        memset(s, 0, offsetof(TarReader, in));
        s->object = object;
        s->faults = faults;
        s->has_cursor = table != NULL;
        s->cursor.table = table;
        int r = frame_decompressor_new(&s->zstd);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(s);
        return 0;
}

static TarReader *tar_reader_free(TarReader *s) {
        if (!s)
                return NULL;
        frame_decompressor_free(s->zstd);
        free(s);
        return NULL;
}

/* Notes where the last byte lies that is not zero: behind the archive's end there must be none. */
static void count_output(TarReader *s, size_t n) {
        size_t end = n;
        if (member_digest_is_zero(s->out, n))
                end = 0;
        while (end > 0 && s->out[end - 1] == 0)
                end--;
        if (end > 0)
                s->state.nonzero_end = s->state.bytes + end;
        s->state.bytes += n;
}

static int fill_input(TarReader *s) {
        if (s->in_used < s->n_in)
                return 0;
        s->in_used = s->n_in = 0;
        return parts_reader_read(s->object, s->in, sizeof s->in, &s->n_in);
}

static int report_damage(TarReader *s, const char *why) {
        s->is_damaged = true;
        s->state.n_damaged++;
        if (!s->has_cursor)
                return report_fault(s->faults,
                                    "the object cannot be decompressed behind byte %" PRIu64
                                    " of the tar stream: %s",
                                    s->state.bytes, why);
        return report_fault(s->faults,
                            "frame %" PRIu64 " of the object, %" PRIu32 " bytes at offset %" PRIu64
                            ", is damaged: %s",
                            s->cursor.n_next - 1, s->cursor.object_bytes, s->cursor.object_offset,
                            why);
}

/* @return 0 with a frame open, SEEK_E_END behind the last one */
static int open_frame(TarReader *s) {
        if (s->has_cursor) {
                if (!seek_cursor_next(&s->cursor))
                        return SEEK_E_END;
                s->frame_in_remaining = s->cursor.object_bytes;
                s->frame_out_remaining = s->cursor.bytes;
                s->is_damaged = false;
        } else {
                s->frame_in_remaining = s->frame_out_remaining = UINT64_MAX;
                if (s->is_damaged)
                        return SEEK_E_END;
        }
        frame_decompressor_reset(s->zstd);
        s->in_frame = true;
        return 0;
}

/* One step of the decoder. @return 0 and what came out; the frame may be over or found damaged then
 */
static int step_frame(TarReader *s, size_t *ret_n) {
        int r = fill_input(s);
        if (r < 0)
                return r;
        FrameDecompression step = { .in = s->in + s->in_used,
                                    .n_in = (size_t)MIN((uint64_t)(s->n_in - s->in_used),
                                                        s->frame_in_remaining),
                                    .out = s->out,
                                    .n_out = sizeof s->out };
        frame_decompress_step(s->zstd, &step);
        s->in_used += step.n_read;
        s->frame_in_remaining -= step.n_read;

        *ret_n = 0;
        if (step.damage)
                return report_damage(s, step.damage);
        if (step.n_written > s->frame_out_remaining)
                return report_damage(s, "it holds more than the seek table declares");
        *ret_n = step.n_written;
        s->frame_out_remaining -= step.n_written;
        if (step.is_complete) {
                if (s->has_cursor && (s->frame_in_remaining > 0 || s->frame_out_remaining > 0))
                        return report_damage(s, "it is shorter than the seek table declares");
                s->in_frame = false;
        } else if (step.n_read == 0 && step.n_written == 0)
                return report_damage(s, "it ends too early");
        return 0;
}

/* Passes over the rest of a damaged frame; what it held goes out as zeros. */
static int skip_damaged(TarReader *s, size_t *ret_n) {
        *ret_n = 0;
        if (!s->has_cursor) {
                s->in_frame = false;
                return 0;
        }
        while (s->frame_in_remaining > 0) {
                int r = fill_input(s);
                if (r < 0)
                        return r;
                if (s->n_in == 0)
                        break;
                const size_t n =
                        (size_t)MIN((uint64_t)(s->n_in - s->in_used), s->frame_in_remaining);
                s->in_used += n;
                s->frame_in_remaining -= n;
        }
        *ret_n = (size_t)MIN(s->frame_out_remaining, (uint64_t)sizeof s->out);
        memset(s->out, 0, *ret_n);
        s->frame_out_remaining -= *ret_n;
        s->in_frame = s->frame_out_remaining > 0;
        return 0;
}

/* Without a cursor only the object's end shows that no frame follows. */
static int object_is_exhausted(TarReader *s, bool *ret) {
        int r = fill_input(s);
        *ret = r == 0 && s->n_in == 0;
        return r;
}

static int tar_reader_next(TarReader *s, const void **ret, size_t *ret_n) {
        size_t n = 0;
        while (n == 0) {
                int r;
                if (!s->in_frame) {
                        bool is_over = false;
                        r = s->has_cursor ? 0 : object_is_exhausted(s, &is_over);
                        if (r == 0)
                                r = is_over ? SEEK_E_END : open_frame(s);
                        if (r == SEEK_E_END)
                                break;
                        if (r < 0)
                                return r;
                }
                r = s->is_damaged ? skip_damaged(s, &n) : step_frame(s, &n);
                if (r < 0)
                        return r;
        }
        count_output(s, n);
        *ret = s->out;
        *ret_n = n;
        return 0;
}

/* libarchive keeps a member's headers and sparse map in memory, up to 12 times as many bytes as it
 * reads: ours have at most 65,536 extents, 2.5 MiB of text. */
#define HEADERS_BYTES_MAX (4 * MIB)

typedef struct Verify {
        const json_t *manifest, *members; /* borrowed */
        size_t n_members, next;           /* next: the member that the stream should hold now */
        VerifyReport *report;
        VerifyFaults faults;
        SeekTable table;
        bool has_table;
        SeekCursor frames; /* at the frame of the last member checked */
        TarReader *stream;
        struct archive *archive;
        bool in_headers;
        uint64_t headers_bytes_remaining;
        int error; /* of the stream, which libarchive cannot carry */
} Verify;

_printf_(2, 3) static int report_fault(VerifyFaults *f, const char *fmt, ...) {
        va_list args;
        f->n++;
        if (!f->report->on_fault)
                return 0;
        va_start(args, fmt);
        _cleanup_free_ char *text = strbuf_vformat(fmt, args);
        va_end(args);
        if (!text)
                return -ENOMEM;
        f->report->on_fault(text, f->report->userdata);
        return 0;
}

/* ---- the manifest's side ---- */

static uint64_t number_of(const json_t *object, const char *key) {
        return (uint64_t)json_integer_value(json_object_get(object, key));
}

static const char *text_of(const json_t *object, const char *key) {
        const char *s = json_string_value(json_object_get(object, key));
        return s ? s : "";
}

static const json_t *member_at(const Verify *v, size_t i) {
        return json_array_get(v->members, i);
}

/* @return < 0, 0, > 0 as strcmp of the raw paths */
static int path_compare(const Verify *v, size_t i, const char *raw, int *ret) {
        _cleanup_free_ char *path = NULL;
        int r = path_unescape(text_of(member_at(v, i), "path"), &path);
        if (r == 0)
                *ret = strcmp(raw, path);
        return r;
}

/* Members stand in the order of their raw paths, as manifest_read() has seen to. @return 0;
 * VERIFY_E_NO_MEMBER; -errno */
enum { VERIFY_E_NO_MEMBER = 1, VERIFY_E_STOP = 2 };

static int find_member(const Verify *v, const char *raw, size_t *ret) {
        size_t low = 0, high = v->n_members;
        while (low < high) {
                const size_t middle = low + (high - low) / 2;
                int order;
                int r = path_compare(v, middle, raw, &order);
                if (r != 0)
                        return r;
                if (order == 0) {
                        *ret = middle;
                        return 0;
                }
                if (order < 0)
                        high = middle;
                else
                        low = middle + 1;
        }
        return VERIFY_E_NO_MEMBER;
}

/* ---- the object ---- */

/* Every frame belongs to one part, and the frames fill the object up to the table. */
static int check_frames(Verify *v, SeekCursor *c) {
        const json_t *bundle = json_object_get(v->manifest, "bundle"),
                     *parts = json_object_get(bundle, "parts");
        const size_t n_parts = json_array_size(parts);
        size_t part = 0;
        uint64_t part_end = number_of(json_array_get(parts, 0), "bytes");

        *c = (SeekCursor){ .table = &v->table };
        while (seek_cursor_next(c)) {
                const uint64_t end = c->object_offset + c->object_bytes;
                if (end > v->table.offset)
                        return report_fault(&v->faults,
                                            "the seek table's frame %" PRIu64 " ends at %" PRIu64
                                            ", behind all frames (%" PRIu64 ")",
                                            c->n_next - 1, end, v->table.offset);
                if (end > part_end)
                        return report_fault(&v->faults,
                                            "part %zu of the object ends at %" PRIu64
                                            ", in the middle of frame %" PRIu64,
                                            part, part_end, c->n_next - 1);
                if (end == part_end && part + 1 < n_parts)
                        part_end += number_of(json_array_get(parts, ++part), "bytes");
        }
        return 0;
}

static int check_table(Verify *v, ByteSource *object) {
        int r = seek_table_open(&v->table, object);
        if (r < 0)
                return r;
        if (r == SEEK_E_NO_TABLE)
                return report_fault(&v->faults, "the object has no seek table at its end");

        const uint64_t n_before = v->faults.n,
                       n_frames = number_of(json_object_get(v->manifest, "frames"), "count"),
                       n_stream = number_of(json_object_get(v->manifest, "bundle"),
                                            "uncompressed_bytes");
        if (v->table.n_frames != n_frames)
                r = report_fault(&v->faults,
                                 "the seek table has %" PRIu64 " frames, the manifest has %" PRIu64,
                                 v->table.n_frames, n_frames);
        if (r == 0)
                r = check_frames(v, &v->frames);
        if (r < 0)
                return r;
        const uint64_t end = v->frames.object_offset + v->frames.object_bytes,
                       stream_end = v->frames.offset + v->frames.bytes;
        if (v->faults.n == n_before && end != v->table.offset)
                r = report_fault(&v->faults,
                                 "the seek table's frames have %" PRIu64
                                 " bytes together, but %" PRIu64 " lie before it",
                                 end, v->table.offset);
        else if (v->faults.n == n_before && stream_end != n_stream)
                r = report_fault(&v->faults,
                                 "the seek table's frames hold %" PRIu64
                                 " bytes together, the manifest has %" PRIu64,
                                 stream_end, n_stream);
        v->has_table = v->faults.n == n_before;
        v->frames = (SeekCursor){ .table = &v->table };
        return r;
}

/* ---- the members ---- */

_printf_(3, 4) static int report_bad_member(Verify *v, const json_t *member, const char *fmt, ...) {
        va_list args;
        v->report->n_bad++;
        va_start(args, fmt);
        _cleanup_free_ char *what = strbuf_vformat(fmt, args);
        va_end(args);
        if (!what) {
                v->faults.n++;
                return -ENOMEM;
        }
        return report_fault(&v->faults, "member '%s' %s", text_of(member, "path"), what);
}

/* Reports the members before `until` that the stream did not have. */
static int report_missing(Verify *v, size_t until) {
        int r = 0;
        for (; r == 0 && v->next < until; v->next++)
                r = report_bad_member(v, member_at(v, v->next), "is missing from the object");
        return r;
}

/* Is the member's first byte where `get` would look for it? */
static int check_position(Verify *v, const json_t *member, uint64_t offset) {
        if (offset != number_of(member, "offset"))
                return report_bad_member(v, member,
                                         "begins at offset %" PRIu64
                                         " of the tar stream, the manifest has %" PRIu64,
                                         offset, number_of(member, "offset"));
        while (v->has_table &&
               (v->frames.n_next == 0 || v->frames.offset + v->frames.bytes <= offset) &&
               seek_cursor_next(&v->frames))
                ;
        if (v->has_table && v->frames.n_next - 1 != number_of(member, "frame"))
                return report_bad_member(v, member,
                                         "begins in frame %" PRIu64 ", the manifest has %" PRIu64,
                                         v->frames.n_next - 1, number_of(member, "frame"));
        return 0;
}

/* libarchive's message goes into the sentence unchanged, but escaped. */
static int report_archive_error(Verify *v, const char *what) {
        if (v->error < 0)
                return v->error;
        const char *why = archive_error_string(v->archive);
        _cleanup_free_ char *escaped = path_escape(why ? why : "no reason given");
        if (!escaped)
                return -ENOMEM;
        int r = report_fault(&v->faults, "%s: %s", what, escaped);
        return r < 0 ? r : VERIFY_E_STOP;
}

/* Reads the open entry's content. @return 0; VERIFY_E_STOP after a fault; -errno */
static int hash_content(Verify *v, uint64_t bytes, MemberDigest *d) {
        uint64_t at = 0;
        for (;;) {
                const void *data;
                size_t n;
                la_int64_t offset;
                int r = archive_read_data_block(v->archive, &data, &n, &offset);
                if (r == ARCHIVE_EOF)
                        break;
                if (r < ARCHIVE_WARN)
                        return report_archive_error(v, "the tar stream is damaged");
                if (offset < 0 || (uint64_t)offset < at || (uint64_t)offset > bytes ||
                    n > bytes - (uint64_t)offset) {
                        r = report_fault(&v->faults,
                                         "the tar stream has %zu bytes for offset %lld of a member "
                                         "of %" PRIu64,
                                         n, (long long)offset, bytes);
                        return r < 0 ? r : VERIFY_E_STOP;
                }
                member_digest_zeros(d, (uint64_t)offset - at);
                (void)member_digest_update(d, data,
                                           n); /* whether it is zero is the writer's concern */
                at = (uint64_t)offset + n;
        }
        member_digest_zeros(d, bytes - at);
        v->report->bytes += bytes;
        return 0;
}

static int check_digest(Verify *v, const json_t *member, MemberDigest *d) {
        uint8_t found[SHA256_SIZE];
        char hex[SHA256_HEX_SIZE];
        bool is_sparse;
        member_digest_final(d, found, &is_sparse);
        digest_hex(found, sizeof found, hex);

        const char *key = is_sparse ? "sha256_sparse" : "sha256", *expected = text_of(member, key);
        if (!expected[0])
                return report_bad_member(v, member,
                                         "has the %s %s, but the manifest has none of this form",
                                         key, hex);
        if (strcasecmp(hex, expected) != 0)
                return report_bad_member(v, member, "has the %s %s, the manifest has %s", key, hex,
                                         expected);
        return 0;
}

/* The entry is the member that is due. */
static int verify_member(Verify *v, struct archive_entry *entry, const json_t *member) {
        const uint64_t expected = number_of(member, "bytes"),
                       offset = (uint64_t)archive_filter_bytes(v->archive, 0);
        if (archive_entry_filetype(entry) != AE_IFREG || archive_entry_hardlink(entry))
                return report_bad_member(v, member, "is not a regular file in the object");
        const la_int64_t bytes = archive_entry_size(entry);
        if (bytes < 0 || (uint64_t)bytes != expected)
                return report_bad_member(v, member, "has %lld bytes, the manifest has %" PRIu64,
                                         (long long)bytes, expected);

        const uint64_t n_bad = v->report->n_bad;
        int r = check_position(v, member, offset);
        if (r < 0 || v->report->n_bad > n_bad)
                return r;
        MemberDigest d;
        member_digest_init(&d);
        r = hash_content(v, expected, &d);
        if (r == VERIFY_E_STOP)
                v->report->n_bad++; /* the reason was reported */
        return r == 0 ? check_digest(v, member, &d) : r;
}

/* An entry that is not the one that is due: what of the manifest does it mean? @return
 * VERIFY_E_NO_MEMBER when nothing */
static int match_entry(Verify *v, const char *path) {
        size_t i = 0;
        int r = find_member(v, path, &i);
        if (r < 0)
                return r;
        _cleanup_free_ char *escaped = path_escape(path);
        if (!escaped)
                return -ENOMEM;
        if (r == 0 && i >= v->next)
                return report_missing(v, i);
        if (r == 0)
                r = report_fault(&v->faults, "member '%s' is in the object twice or out of order",
                                 escaped);
        else
                r = report_fault(&v->faults,
                                 "the object holds '%s', which the manifest does not name",
                                 escaped);
        return r < 0 ? r : VERIFY_E_NO_MEMBER;
}

/* Path bytes are compared as they are. libarchive turns pax names, which are UTF-8, into the
 * locale's characters, and hands out the raw bytes where that fails: so under the C locale, which
 * verify runs in, they are always raw. */
static int verify_entry(Verify *v, struct archive_entry *entry) {
        const char *path = archive_entry_pathname(entry);
        if (!path || !path[0]) {
                int r = report_fault(&v->faults, "the object holds an entry without a name");
                return r < 0 ? r : 0;
        }
        int r = match_entry(v, path);
        if (r == VERIFY_E_NO_MEMBER)
                return 0;
        if (r < 0)
                return r;
        return verify_member(v, entry, member_at(v, v->next++));
}

static la_ssize_t on_read(struct archive *a, void *userdata, const void **ret) {
        Verify *v = userdata;
        size_t n;
        int r = tar_reader_next(v->stream, ret, &n);
        if (r < 0) {
                v->error = r;
                archive_set_error(a, -r, "the object cannot be read");
                return -1;
        }
        if (v->in_headers) {
                if (n > v->headers_bytes_remaining) {
                        archive_set_error(a, EFBIG, "headers of more than 4 MiB");
                        return -1;
                }
                v->headers_bytes_remaining -= n;
        }
        return (la_ssize_t)n;
}

/* @return 0 at the archive's end; VERIFY_E_STOP after a fault; -errno */
static int verify_members(Verify *v) {
        for (;;) {
                struct archive_entry *entry;
                v->in_headers = true;
                v->headers_bytes_remaining = HEADERS_BYTES_MAX;
                int r = archive_read_next_header(v->archive, &entry);
                v->in_headers = false;
                if (r == ARCHIVE_EOF)
                        return 0;
                if (r < ARCHIVE_WARN)
                        return report_archive_error(v, "the tar stream cannot be read on");
                r = verify_entry(v, entry);
                if (r != 0)
                        return r;
                if (archive_read_data_skip(v->archive) < ARCHIVE_WARN)
                        return report_archive_error(v, "the tar stream cannot be read on");
        }
}

/* Reads what libarchive left: behind the archive's end there is nothing but zeros. */
static int drain_stream(Verify *v, bool is_complete_stream) {
        const uint64_t end = (uint64_t)archive_filter_bytes(v->archive, 0);
        const void *data;
        size_t n;
        int r;
        do
                r = tar_reader_next(v->stream, &data, &n);
        while (r == 0 && n > 0);
        if (r < 0 || !is_complete_stream)
                return r;

        const TarStreamState s = v->stream->state;
        const uint64_t expected =
                number_of(json_object_get(v->manifest, "bundle"), "uncompressed_bytes");
        if (s.nonzero_end > end && s.n_damaged == 0)
                r = report_fault(&v->faults,
                                 "the tar stream continues at offset %" PRIu64
                                 " behind its end at %" PRIu64,
                                 s.nonzero_end, end);
        if (r == 0 && s.bytes != expected)
                r = report_fault(&v->faults,
                                 "the tar stream has %" PRIu64 " bytes, the manifest has %" PRIu64,
                                 s.bytes, expected);
        return r;
}

/* Members that were never reached: missing from a sound stream, unknown behind a damaged one. */
static int report_unreached(Verify *v, bool is_complete_stream) {
        const uint64_t n_unchecked = v->n_members - v->next;
        if (is_complete_stream && v->stream->state.n_damaged == 0)
                return report_missing(v, v->n_members);
        if (n_unchecked == 0)
                return 0;
        v->report->n_bad += n_unchecked;
        return report_fault(&v->faults,
                            "members from '%s' on could not be checked, %" PRIu64 " of %zu",
                            text_of(member_at(v, v->next), "path"), n_unchecked, v->n_members);
}

static int verify_stream(Verify *v, PartsReader *object) {
        int r = tar_reader_new(&v->stream, object, v->has_table ? &v->table : NULL, &v->faults);
        if (r < 0)
                return r;
        v->archive = archive_read_new();
        if (!v->archive || archive_read_support_format_tar(v->archive) != ARCHIVE_OK)
                return -ENOMEM;

        v->in_headers = true;
        v->headers_bytes_remaining = HEADERS_BYTES_MAX;
        if (archive_read_open(v->archive, v, NULL, on_read, NULL) < ARCHIVE_WARN)
                r = report_archive_error(v, "the object holds no tar stream");
        else
                r = verify_members(v);
        if (r < 0)
                return r;
        const bool is_complete_stream = r == 0;
        r = report_unreached(v, is_complete_stream);
        return r < 0 ? r : drain_stream(v, is_complete_stream);
}

/* What no frame has claimed, the seek table among it, belongs to a part too. */
static int drain_object(PartsReader *object) {
        uint8_t buf[16 * 1024];
        size_t n;
        int r;
        do
                r = parts_reader_read(object, buf, sizeof buf, &n);
        while (r == 0 && n > 0);
        return r < 0 ? r : parts_reader_finish(object);
}

static int verify(Verify *v, ByteSource *source) {
        const json_t *bundle = json_object_get(v->manifest, "bundle");
        int r = 0;
        if (source->bytes != number_of(bundle, "bytes"))
                r = report_fault(&v->faults,
                                 "the object has %" PRIu64 " bytes, the manifest has %" PRIu64,
                                 source->bytes, number_of(bundle, "bytes"));
        if (r == 0)
                r = check_table(v, source);
        if (r < 0)
                return r;

        PartsReader object;
        parts_reader_init(&object, source, json_object_get(bundle, "parts"), &v->faults);
        r = verify_stream(v, &object);
        return r < 0 ? r : drain_object(&object);
}

static Verify *verify_free(Verify *v) {
        if (v->archive)
                (void)archive_read_free(
                        v->archive); /* only memory: the descriptor is the caller's */
        tar_reader_free(v->stream);
        free(v->table.entries);
        free(v);
        return NULL;
}

DEFINE_CLEANUP(Verify, verify_free);

int bundle_verify(ByteSource *object, const json_t *manifest, VerifyReport *report) {
        _cleanup_(verify_freep) Verify *v = calloc(1, sizeof *v);
        if (!v)
                return -ENOMEM;
        *v = (Verify){ .manifest = manifest,
                       .members = json_object_get(manifest, "members"),
                       .report = report,
                       .faults = { .report = report } };
        v->n_members = json_array_size(v->members);
        report->ok = false;
        report->n_members = v->n_members;
        report->n_bad = report->bytes = 0;

        locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0); /* libarchive converts names by it */
        if (!c)
                return -errno;
        locale_t before = uselocale(c);
        int r = verify(v, object);
        (void)uselocale(before); /* what uselocale() itself gave us is valid */
        freelocale(c);
        report->ok = r == 0 && v->faults.n == 0;
        return r;
}
