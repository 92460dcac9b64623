/* The zstd seekable format's table, read by windows: a table of a stranger's may claim 400 million frames.
 * @see zstd, contrib/seekable_format/zstd_seekable_compression_format.md */
#include <endian.h>
#include <errno.h>
#include <string.h>

#include "lib/bundle/reader_private.h"

#define SKIPPABLE_MAGIC UINT32_C(0x184D2A5E)
#define SEEKABLE_MAGIC UINT32_C(0x8F92EAB1)
#define HEADER_BYTES 8
#define FOOTER_BYTES 9
#define CHECKSUM_FLAG 0x80
#define RESERVED_FLAGS 0x7c

static uint32_t read_u32(const uint8_t *p) {
        uint32_t value;
        memcpy(&value, p, sizeof value);
        return le32toh(value);
}

int seek_table_open(SeekTable *t, ByteSource *object) {
        uint8_t footer[FOOTER_BYTES], header[HEADER_BYTES];
        if (object->bytes < HEADER_BYTES + FOOTER_BYTES)
                return SEEK_E_NO_TABLE;
        int r = object->read_at(object, footer, sizeof footer, object->bytes - sizeof footer);
        if (r < 0)
                return r;
        if (read_u32(footer + 5) != SEEKABLE_MAGIC || footer[4] & RESERVED_FLAGS)
                return SEEK_E_NO_TABLE;

        const uint64_t n_frames = read_u32(footer),
                       entry_bytes = footer[4] & CHECKSUM_FLAG ? 12 : 8,
                       content = n_frames * entry_bytes + FOOTER_BYTES;
        if (content + HEADER_BYTES > object->bytes)
                return SEEK_E_NO_TABLE;
        const uint64_t offset = object->bytes - content - HEADER_BYTES;
        r = object->read_at(object, header, sizeof header, offset);
        if (r < 0)
                return r;
        if (read_u32(header) != SKIPPABLE_MAGIC || read_u32(header + 4) != content)
                return SEEK_E_NO_TABLE;

        *t = (SeekTable){ .object = object,
                          .offset = offset,
                          .entries = offset + HEADER_BYTES,
                          .n_frames = n_frames,
                          .entry_bytes = (uint32_t)entry_bytes };
        return 0;
}

void seek_cursor_init(SeekCursor *c, const SeekTable *t) {
        memset(c, 0, sizeof *c);
        c->table = t;
}

static int window_fill(SeekCursor *c) {
        const SeekTable *t = c->table;
        const uint64_t n =
                MIN(t->n_frames - c->n_next, (uint64_t)(SEEK_WINDOW_BYTES / t->entry_bytes));
        int r = t->object->read_at(t->object, c->window, (size_t)(n * t->entry_bytes),
                                   t->entries + c->n_next * t->entry_bytes);
        if (r < 0)
                return r;
        c->window_first = c->n_next;
        c->n_window = n;
        return 0;
}

int seek_cursor_next(SeekCursor *c) {
        if (c->n_next == c->table->n_frames)
                return SEEK_E_END;
        if (c->n_next - c->window_first >= c->n_window) {
                int r = window_fill(c);
                if (r < 0)
                        return r;
        }
        const uint8_t *entry = c->window + (c->n_next - c->window_first) * c->table->entry_bytes;
        c->object_offset += c->object_bytes; /* 2^32 frames of 2^32 bytes at most: cannot wrap */
        c->offset += c->bytes;
        c->object_bytes = read_u32(entry);
        c->bytes = read_u32(entry + 4);
        c->n_next++;
        return 0;
}
