/* Parts of a bundle, one at a time in memory: fills each with frames of the writer as the rule of
 * parts says, and makes the row by which a later run continues behind it. A part that may not have
 * arrived is made again, and compared with its row. */
#include "lib/bundle/packer.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/strbuf.h"
#include "lib/bundle/frame.h"

#define ROWS_MAX (PARTS_MAX + 1) /* more parts cannot be, see parts_limit() */

struct Packer {
        const Plan *plan;
        BundleWriterOptions options;
        BundleWriter *writer;
        Parts parts;
        uint64_t buffer_bytes;
        MemberResult *results; /* of the rows, until there is a writer; owned */
        bool *lost; /* by part: the member open at its end was lost, so that what follows is zeros
                     */
        uint64_t done_bytes, remade_bytes_read;
        size_t failed_member;
        bool is_done; /* the seek table is in a part */
        int error;
};

/* A frame has at least half of PLAN_FRAME_BYTES, but for the last one. */
static uint64_t n_frames_max(uint64_t stream_bytes) {
        return stream_bytes / (PLAN_FRAME_BYTES / 2) + 1;
}

/* The size of an incompressible stream with its table. */
static uint64_t object_bytes_max(uint64_t stream_bytes) {
        const uint64_t n_frames = n_frames_max(stream_bytes),
                       more = frame_bytes_max(PLAN_FRAME_BYTES) - PLAN_FRAME_BYTES;
        return stream_bytes + n_frames * more + bundle_writer_seek_table_bytes(n_frames);
}

uint64_t packer_part_bytes_max(uint64_t part_size, size_t n_closed, uint64_t unpacked_bytes) {
        if (n_closed >= PARTS_MAX)
                return object_bytes_max(unpacked_bytes);
        return parts_limit(part_size, n_closed, unpacked_bytes) +
               frame_bytes_max(PLAN_FRAME_BYTES) +
               bundle_writer_seek_table_bytes(n_frames_max(unpacked_bytes));
}

/* ---- rows of an earlier run ---- */

/* Whether a row is what the rule of parts makes of its frames. */
static bool row_is_possible(const Packer *p, const PackedRow *row) {
        const uint64_t n_frames = plan_n_frames(p->plan), first = p->parts.open_first_frame;
        uint64_t bytes = 0;

        if (p->is_done || row->first_frame != first || row->n_frames > n_frames - first ||
            (row->is_last ? row->n_frames != n_frames - first : row->n_frames == 0) ||
            (row->n_frames > 0 && !row->frame_bytes))
                return false;
        for (uint64_t i = 0; i < row->n_frames; i++) {
                uint64_t offset, stream_bytes;
                plan_frame(p->plan, first + i, &offset, &stream_bytes);
                if (row->frame_bytes[i] == 0 || row->frame_bytes[i] > frame_bytes_max(stream_bytes))
                        return false;
                bytes += row->frame_bytes[i];
                const uint64_t unpacked = plan_stream_bytes(p->plan) - offset - stream_bytes;
                const bool closes = bytes >= parts_limit(p->parts.part_size, p->parts.n, unpacked);
                if (closes != (i + 1 == row->n_frames && !row->is_last))
                        return false;
        }
        if (row->is_last)
                bytes += bundle_writer_seek_table_bytes(n_frames);
        return bytes == row->bytes;
}

/* Restores the parts of the rows, and their frames' sizes. @param ret_sizes  the caller's */
static int restore_parts(Packer *p, const PackerOptions *o, uint32_t **ret_sizes) {
        if (o->n_rows > ROWS_MAX)
                return PACKER_E_ROWS;
        *ret_sizes = malloc(MAX(plan_n_frames(p->plan), UINT64_C(1)) * sizeof **ret_sizes);
        if (!*ret_sizes)
                return -ENOMEM;
        for (size_t i = 0; i < o->n_rows; i++) {
                const PackedRow *row = &o->rows[i];
                if (!row_is_possible(p, row))
                        return PACKER_E_ROWS;
                if (row->n_frames > 0)
                        memcpy(*ret_sizes + row->first_frame, row->frame_bytes,
                               row->n_frames * sizeof **ret_sizes);
                Part part = { .bytes = row->bytes,
                              .first_frame = row->first_frame,
                              .n_frames = row->n_frames };
                memcpy(part.sha256, row->sha256, SHA256_SIZE);
                int r = parts_restore(&p->parts, &part);
                if (r < 0)
                        return r;
                p->is_done = row->is_last;
        }
        return 0;
}

/* Restores the results; the last row's open member is where the writer starts. */
static int restore_states(Packer *p, const PackerOptions *o, WriterMark *ret) {
        p->results = member_results_new(plan_n_members(p->plan));
        if (!p->results)
                return -ENOMEM;
        for (size_t i = 0; i < o->n_rows; i++) {
                const PackedRow *row = &o->rows[i];
                int r = packed_row_load_state(row, p->plan, p->results, ret, &p->lost[i]);
                if (r != 0)
                        return r < 0 ? r : PACKER_E_ROWS;
        }
        return 0;
}

static int start_writer(Packer *p, const PackerOptions *o) {
        _cleanup_(writer_mark_done) WriterMark mark = { 0 };
        _cleanup_free_ uint32_t *sizes = NULL;

        int r = restore_parts(p, o, &sizes);
        if (r == 0)
                r = restore_states(p, o, &mark);
        if (r != 0)
                return r;
        BundleWriterOptions options = p->options;
        options.first_frame = p->parts.open_first_frame;
        options.earlier_frames = sizes;
        options.mark = &mark;
        r = bundle_writer_new(&p->writer, p->plan, &options);
        if (r < 0)
                return r;
        bundle_writer_restore_results(p->writer, TAKE_PTR(p->results));
        return 0;
}

static uint64_t packed_stream_end(const Packer *p) {
        uint64_t offset, bytes;
        if (p->parts.open_first_frame == 0)
                return 0;
        plan_frame(p->plan, p->parts.open_first_frame - 1, &offset, &bytes);
        return offset + bytes;
}

int packer_new(Packer **ret, const Plan *plan, const PackerOptions *options) {
        _cleanup_(packer_freep) Packer *p = calloc(1, sizeof *p);
        if (!p)
                return -ENOMEM;
        p->plan = plan;
        p->options = options->writer;
        p->failed_member = plan_n_members(plan);
        parts_init(&p->parts, options->part_size);
        p->lost = calloc(ROWS_MAX, sizeof *p->lost);
        if (!p->lost)
                return -ENOMEM;
        int r = start_writer(p, options);
        if (r != 0)
                return r;
        /* One size for all parts, those made again among them. */
        const uint64_t bytes = plan_stream_bytes(plan);
        p->buffer_bytes =
                MIN(packer_part_bytes_max(options->part_size, 0, bytes), object_bytes_max(bytes));
        for (size_t i = 0; i < p->parts.n; i++)
                p->buffer_bytes = MAX(p->buffer_bytes, p->parts.items[i].bytes);
        p->done_bytes = packed_stream_end(p);
        *ret = TAKE_PTR(p);
        return 0;
}

Packer *packer_free(Packer *p) {
        if (!p)
                return NULL;
        member_results_free(p->results, plan_n_members(p->plan));
        bundle_writer_free(p->writer);
        parts_done(&p->parts);
        free(p->lost);
        free(p);
        return NULL;
}

/* ---- making parts ---- */

/* @return 0; -EOVERFLOW for more than packer_part_bytes_max() allows, which the rule of parts does
 * not let happen */
static int append_bytes(const Packer *p, PackedPart *part, const void *data, size_t n) {
        if (n > p->buffer_bytes - part->row.bytes)
                return -EOVERFLOW;
        memcpy(part->data + part->row.bytes, data, n);
        part->row.bytes += n;
        return 0;
}

static int append_table(Packer *p, PackedPart *part) {
        const void *table;
        size_t n;
        int r = bundle_writer_seek_table(p->writer, &table, &n);
        return r == 0 ? append_bytes(p, part, table, n) : r;
}

static int append_frame(Packer *p, PackedPart *part, const BundleFrame *frame, bool *ret_closed) {
        const uint64_t end = frame->stream_offset + frame->stream_bytes;
        int r = append_bytes(p, part, frame->data, frame->bytes);
        if (r < 0)
                return r;
        return parts_add_frame(&p->parts, part->data + part->row.bytes - frame->bytes, frame->bytes,
                               plan_stream_bytes(p->plan) - end, ret_closed);
}

/* The last part ends with the seek table. */
static int close_last_part(Packer *p, PackedPart *part) {
        const uint64_t before = part->row.bytes;
        int r = append_table(p, part);
        if (r == 0)
                r = parts_finish(&p->parts, part->data + before, part->row.bytes - before);
        p->is_done = r == 0;
        return r;
}

/* Adds frames until one of them closes the part, or there are no more. */
static int fill_part(Packer *p, PackedPart *part) {
        bool closed = false;
        int r = 0;

        while (r == 0 && !closed) {
                BundleFrame frame;
                r = bundle_writer_next(p->writer, &frame);
                if (r == 0)
                        return close_last_part(p, part);
                if (r == WRITER_FRAME)
                        r = append_frame(p, part, &frame, &closed);
        }
        return r;
}

static int fill_row(Packer *p, PackedRow *row) {
        const size_t index = p->parts.n - 1;
        const Part *part = &p->parts.items[index];

        row->first_frame = part->first_frame;
        row->n_frames = part->n_frames;
        memcpy(row->sha256, part->sha256, SHA256_SIZE);
        row->is_last = p->is_done;
        row->frame_bytes = malloc(MAX(row->n_frames, UINT64_C(1)) * sizeof *row->frame_bytes);
        if (!row->frame_bytes)
                return -ENOMEM;
        memcpy(row->frame_bytes, bundle_writer_frame_sizes(p->writer) + row->first_frame,
               row->n_frames * sizeof *row->frame_bytes);
        return packed_row_save_state(row, p->plan, p->writer, &p->lost[index]);
}

int packer_next(Packer *p, PackedPart *part) {
        if (p->error != 0 || p->is_done)
                return p->error;
        part->row = (PackedRow){ 0 };
        int r = fill_part(p, part);
        if (r == 0)
                r = fill_row(p, &part->row);
        if (r != 0) {
                packed_row_done(&part->row);
                p->failed_member = bundle_writer_failed_member(p->writer);
                p->error = r; /* frames are lost: it cannot continue */
                return r;
        }
        p->done_bytes = packed_stream_end(p);
        return PACKER_PART;
}

/* Builds frames again; more bytes than the part had means that it differs. */
static int rebuild_frames(Packer *p, const Part *wanted, const WriterMark *mark, PackedPart *part) {
        _cleanup_(bundle_writer_freep) BundleWriter *w = NULL;
        BundleWriterOptions options = p->options;
        BundleFrame frame;

        options.first_frame = wanted->first_frame;
        options.end_frame = wanted->first_frame + wanted->n_frames;
        options.mark = mark;
        options.without_results = true;
        int r = bundle_writer_new(&w, p->plan, &options);
        if (r < 0)
                return r;
        while ((r = bundle_writer_next(w, &frame)) == WRITER_FRAME) {
                r = frame.bytes > wanted->bytes - part->row.bytes
                            ? PACKER_E_DIFFERS
                            : append_bytes(p, part, frame.data, frame.bytes);
                if (r != 0)
                        break;
        }
        p->remade_bytes_read += bundle_writer_bytes_read(w);
        p->failed_member = bundle_writer_failed_member(w);
        return r;
}

int packer_rebuild(Packer *p, size_t index, PackedPart *part) {
        part->row = (PackedRow){ 0 };
        if (index >= p->parts.n)
                return -EINVAL;
        const Part *wanted = &p->parts.items[index];
        const WriterMark mark = { .is_lost = index > 0 && p->lost[index - 1] };
        const uint64_t table = bundle_writer_seek_table_bytes(plan_n_frames(p->plan));

        int r = wanted->n_frames > 0 ? rebuild_frames(p, wanted, &mark, part) : 0;
        part->row.is_last = p->is_done && index + 1 == p->parts.n;
        if (r == 0 && part->row.is_last)
                r = wanted->bytes - part->row.bytes == table ? append_table(p, part)
                                                             : PACKER_E_DIFFERS;
        if (r != 0)
                return r;
        part->row.first_frame = wanted->first_frame;
        part->row.n_frames = wanted->n_frames;
        sha256_of(part->data, part->row.bytes, part->row.sha256);
        return part->row.bytes == wanted->bytes &&
                               memcmp(part->row.sha256, wanted->sha256, SHA256_SIZE) == 0
                       ? PACKER_PART
                       : PACKER_E_DIFFERS;
}

/* ---- what is known ---- */

uint64_t packer_buffer_bytes(const Packer *p) {
        return p->buffer_bytes;
}

PackerStatus packer_status(const Packer *p) {
        return (PackerStatus){ .writer = p->writer,
                               .parts = &p->parts,
                               .done_bytes = p->done_bytes,
                               .bytes_read =
                                       bundle_writer_bytes_read(p->writer) + p->remade_bytes_read,
                               .failed_member = p->failed_member };
}

char *packer_signature(int level, uint64_t part_size) {
        return strbuf_format("zstd %s, level %d, part %" PRIu64, frame_zstd_version(), level,
                             part_size);
}
