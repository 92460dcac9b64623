/* What the parts of the reader share: the seek table, the object read once, the tar stream made of it. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/cleanup.h"
#include "lib/base/digest.h"
#include "lib/bundle/reader.h"

/* ---- faults ---- */

typedef struct Faults {
        VerifyReport *report;
        uint64_t n;
} Faults;

/** Tells one sentence. @return 0, -ENOMEM when it could not be said (it counts all the same) */
int fault_tell(Faults *f, const char *fmt, ...) _printf_(2, 3);

/* ---- the seek table: a skippable frame at the object's end, as the zstd seekable format has it ---- */

typedef struct SeekTable {
        ByteSource *object; /* borrowed */
        uint64_t offset;    /* of the table in the object: the frames end here */
        uint64_t entries;   /* offset of the first entry */
        uint64_t n_frames;
        uint32_t entry_bytes; /* 8, or 12 with a checksum each */
} SeekTable;

enum { SEEK_E_NO_TABLE = 1, SEEK_E_END = 2 };

/** @return 0; SEEK_E_NO_TABLE: what lies at the end is no seek table that fits the object; -errno from reading */
int seek_table_open(SeekTable *t, ByteSource *object);

#define SEEK_WINDOW_BYTES                                                                          \
        (96 * 1024) /* of the table: a source that is far away is not asked often */

typedef struct
        SeekCursor { /* walks the frames in order; never holds more than a window of the table */
        const SeekTable *table;
        uint64_t n_next;                /* the frame that comes next */
        uint64_t object_offset, offset; /* of the current frame: in the object, in the tar stream */
        uint32_t object_bytes, bytes;   /* its size there and there */
        uint64_t window_first, n_window;
        uint8_t window[SEEK_WINDOW_BYTES];
} SeekCursor;

void seek_cursor_init(SeekCursor *c, const SeekTable *t);
/** Steps to the next frame. @return 0, SEEK_E_END behind the last one, -errno from reading */
int seek_cursor_next(SeekCursor *c);

/* ---- the object's bytes: each read once, each part hashed on the way ---- */

typedef struct ObjectReader {
        ByteSource *source; /* borrowed */
        uint64_t offset;
        const json_t *parts; /* borrowed */
        size_t part;         /* the open one */
        uint64_t part_left;  /* its bytes still to come */
        Sha256 digest;
        Faults *faults;
} ObjectReader;

void object_reader_init(ObjectReader *o, ByteSource *source, const json_t *parts, Faults *faults);
/** Reads the next n bytes, fewer at the end. @return 0, -errno */
int object_reader_read(ObjectReader *o, void *data, size_t n, size_t *ret_n);
/** Tells of parts that were not reached. */
int object_reader_finish(ObjectReader *o);

/* ---- the tar stream ---- */

typedef struct TarStream TarStream;

/** @param table  NULL: there is none that can be trusted, so the first damage ends the stream */
int tar_stream_new(TarStream **ret, ObjectReader *object, const SeekTable *table, Faults *faults);
TarStream *tar_stream_free(TarStream *s);

/** The next piece, valid until the next call. A frame that cannot be decompressed is told as a fault and goes on as zeros, so
 * that the members before and behind it can still be checked. @return 0, *ret_n == 0 at the end; -errno */
int tar_stream_next(TarStream *s, const void **ret, size_t *ret_n);

typedef struct TarStreamState {
        uint64_t bytes;       /* handed out */
        uint64_t nonzero_end; /* offset behind the last byte of them that is not zero */
        uint64_t n_damaged;   /* frames */
} TarStreamState;
TarStreamState tar_stream_state(const TarStream *s);
