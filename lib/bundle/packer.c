/* Cuts the writer's frames into parts in memory, and takes up the work of an earlier run from its rows. What is in a row's state is
 * packer_state's. */
#include "lib/bundle/packer.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "lib/bundle/packer_buffers.h"
#include "lib/bundle/packer_state.h"
#include "lib/bundle/writer_zstd.h"

#define ROWS_MAX (PARTS_MAX + 1) /* more parts cannot be, see parts_limit() */

struct Packer {
        const Plan *plan;
        BundleWriterOptions options;
        BundleWriter *writer;
        Parts parts;
        PackerBuffers *buffers;
        bool *lost; /* by part: the member open at its end was lost, so that what follows is zeros */
        uint64_t done_bytes, remade_bytes_read;
        size_t failed_member;
        bool is_done; /* the seek table is in a part */
        int error;
};

void packed_row_done(PackedRow *r) {
        free(r->frame_bytes);
        free(r->state);
        *r = (PackedRow){ 0 };
}

void packed_part_done(PackedPart *p) {
        packed_row_done(&p->row);
        packer_buffers_give(p);
        *p = (PackedPart){ 0 };
}

/* A frame has at least half of PLAN_FRAME_BYTES, but for the last one. */
static uint64_t n_frames_max(uint64_t stream_bytes) {
        return stream_bytes / (PLAN_FRAME_BYTES / 2) + 1;
}

/* Of a whole stream that no frame of gets smaller, with its table. */
static uint64_t object_bytes_max(uint64_t stream_bytes) {
        const uint64_t n_frames = n_frames_max(stream_bytes),
                       more = writer_zstd_bound(PLAN_FRAME_BYTES) - PLAN_FRAME_BYTES;
        return stream_bytes + n_frames * more + bundle_writer_seek_table_bytes(n_frames);
}

uint64_t packer_part_bytes_max(uint64_t part_size, size_t n_closed, uint64_t unpacked_bytes) {
        if (n_closed >= PARTS_MAX)
                return object_bytes_max(unpacked_bytes);
        return parts_limit(part_size, n_closed, unpacked_bytes) +
               writer_zstd_bound(PLAN_FRAME_BYTES) +
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
                if (row->frame_bytes[i] == 0 ||
                    row->frame_bytes[i] > writer_zstd_bound(stream_bytes))
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

/* Takes over the parts of the rows, and their frames' sizes. @param ret_sizes  the caller's */
static int parts_take(Packer *p, const PackerOptions *o, uint32_t **ret_sizes) {
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

/* Looks at all states; what the last one says of the open member is where the writer starts. */
static int states_check(Packer *p, const PackerOptions *o, WriterMark *ret) {
        for (size_t i = 0; i < o->n_rows; i++) {
                const PackedRow *row = &o->rows[i];
                const PackerSpan span = packer_span(p->plan, row->first_frame, row->n_frames);
                int r = packer_state_load(&span, row, NULL, ret);
                if (r != 0)
                        return r;
                p->lost[i] = span.is_open && ret->is_lost;
        }
        return 0;
}

static int results_take(Packer *p, const PackerOptions *o) {
        WriterMark unused = { 0 };
        int r = 0;
        for (size_t i = 0; r == 0 && i < o->n_rows; i++) {
                const PackedRow *row = &o->rows[i];
                const PackerSpan span = packer_span(p->plan, row->first_frame, row->n_frames);
                r = packer_state_load(&span, row, p->writer, &unused);
        }
        writer_mark_done(&unused);
        return r;
}

static int start(Packer *p, const PackerOptions *o) {
        _cleanup_(writer_mark_done) WriterMark mark = { 0 };
        _cleanup_free_ uint32_t *sizes = NULL;

        int r = parts_take(p, o, &sizes);
        if (r == 0)
                r = states_check(p, o, &mark);
        if (r != 0)
                return r;
        BundleWriterOptions options = p->options;
        options.first_frame = p->parts.open_first_frame;
        options.earlier_frames = sizes;
        options.mark = &mark;
        r = bundle_writer_new(&p->writer, p->plan, &options);
        return r == 0 ? results_take(p, o) : r;
}

/* One size for all parts, those made again among them. */
static int buffers_make(Packer *p) {
        const uint64_t stream_bytes = plan_stream_bytes(p->plan);
        uint64_t bytes = MIN(packer_part_bytes_max(p->parts.part_size, 0, stream_bytes),
                             object_bytes_max(stream_bytes));
        for (size_t i = 0; i < p->parts.n; i++)
                bytes = MAX(bytes, p->parts.items[i].bytes);
        return packer_buffers_new(&p->buffers, bytes);
}

static uint64_t frames_end(const Packer *p) {
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
        int r = start(p, options);
        if (r == 0)
                r = buffers_make(p);
        if (r != 0)
                return r;
        p->done_bytes = frames_end(p);
        *ret = TAKE_PTR(p);
        return 0;
}

Packer *packer_free(Packer *p) {
        if (!p)
                return NULL;
        bundle_writer_free(p->writer);
        parts_done(&p->parts);
        packer_buffers_release(p->buffers);
        free(p->lost);
        free(p);
        return NULL;
}

/* ---- making parts ---- */

/* @return 0; -EOVERFLOW for more than packer_part_bytes_max() allows, which the rule of parts does not let happen */
static int part_add(PackedPart *part, const void *data, size_t n) {
        if (n > part->mapped_bytes - part->row.bytes)
                return -EOVERFLOW;
        memcpy(part->data + part->row.bytes, data, n);
        part->row.bytes += n;
        return 0;
}

static int table_add(Packer *p, PackedPart *part) {
        const void *table;
        size_t n;
        int r = bundle_writer_seek_table(p->writer, &table, &n);
        return r == 0 ? part_add(part, table, n) : r;
}

static int frame_add(Packer *p, PackedPart *part, const BundleFrame *frame, bool *ret_closed) {
        const uint64_t end = frame->stream_offset + frame->stream_bytes;
        int r = part_add(part, frame->data, frame->bytes);
        if (r < 0)
                return r;
        return parts_add_frame(&p->parts, part->data + part->row.bytes - frame->bytes, frame->bytes,
                               plan_stream_bytes(p->plan) - end, ret_closed);
}

/* The last part ends with the seek table. */
static int last_part_close(Packer *p, PackedPart *part) {
        const uint64_t before = part->row.bytes;
        int r = table_add(p, part);
        if (r == 0)
                r = parts_finish(&p->parts, part->data + before, part->row.bytes - before);
        p->is_done = r == 0;
        return r;
}

/* Takes frames until one of them closes the part, or there are no more. */
static int part_fill(Packer *p, PackedPart *part) {
        bool closed = false;
        int r = 0;

        while (r == 0 && !closed) {
                BundleFrame frame;
                r = bundle_writer_next(p->writer, &frame);
                if (r == 0)
                        return last_part_close(p, part);
                if (r == WRITER_FRAME)
                        r = frame_add(p, part, &frame, &closed);
        }
        return r;
}

static int row_fill(Packer *p, PackedRow *row) {
        const size_t index = p->parts.n - 1;
        const Part *part = &p->parts.items[index];
        const PackerSpan span = packer_span(p->plan, part->first_frame, part->n_frames);

        row->first_frame = part->first_frame;
        row->n_frames = part->n_frames;
        memcpy(row->sha256, part->sha256, SHA256_SIZE);
        row->is_last = p->is_done;
        p->lost[index] = span.is_open && bundle_writer_mark(p->writer)->is_lost;
        row->frame_bytes = malloc(MAX(row->n_frames, UINT64_C(1)) * sizeof *row->frame_bytes);
        if (!row->frame_bytes)
                return -ENOMEM;
        memcpy(row->frame_bytes, bundle_writer_frame_bytes(p->writer) + row->first_frame,
               row->n_frames * sizeof *row->frame_bytes);
        return packer_state_save(&span, p->writer, row);
}

static int part_make(Packer *p, PackedPart *part) {
        int r = packer_buffers_take(p->buffers, part);
        if (r < 0)
                return r;
        part->index = p->parts.n;
        r = part_fill(p, part);
        if (r == 0)
                r = row_fill(p, &part->row);
        if (r != 0) {
                p->failed_member = bundle_writer_failed_member(p->writer);
                p->error = r; /* frames are gone: there is no going on */
                return r;
        }
        p->done_bytes = frames_end(p);
        return 0;
}

int packer_next(Packer *p, PackedPart *ret) {
        _cleanup_(packed_part_done) PackedPart part = { 0 };
        if (p->error != 0 || p->is_done)
                return p->error;
        int r = part_make(p, &part);
        if (r != 0)
                return r;
        *ret = part;
        part = (PackedPart){ 0 };
        return PACKER_PART;
}

/* Makes frames again. What is longer than the part was is no longer the same. */
static int frames_remake(Packer *p, const Part *wanted, const WriterMark *mark, PackedPart *part) {
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
                            : part_add(part, frame.data, frame.bytes);
                if (r != 0)
                        break;
        }
        p->remade_bytes_read += bundle_writer_bytes_read(w);
        p->failed_member = bundle_writer_failed_member(w);
        return r;
}

int packer_remake(Packer *p, size_t index, PackedPart *ret) {
        _cleanup_(packed_part_done) PackedPart part = { .index = index };
        if (index >= p->parts.n)
                return -EINVAL;
        const Part *wanted = &p->parts.items[index];
        const WriterMark mark = { .is_lost = index > 0 && p->lost[index - 1] };
        const uint64_t table = bundle_writer_seek_table_bytes(plan_n_frames(p->plan));

        int r = packer_buffers_take(p->buffers, &part);
        if (r == 0 && wanted->n_frames > 0)
                r = frames_remake(p, wanted, &mark, &part);
        part.row.is_last = p->is_done && index + 1 == p->parts.n;
        if (r == 0 && part.row.is_last)
                r = wanted->bytes - part.row.bytes == table ? table_add(p, &part)
                                                            : PACKER_E_DIFFERS;
        if (r != 0)
                return r;
        part.row.first_frame = wanted->first_frame;
        part.row.n_frames = wanted->n_frames;
        sha256_of(part.data, part.row.bytes, part.row.sha256);
        if (part.row.bytes != wanted->bytes ||
            memcmp(part.row.sha256, wanted->sha256, SHA256_SIZE) != 0)
                return PACKER_E_DIFFERS;
        *ret = part;
        part = (PackedPart){ 0 };
        return PACKER_PART;
}

/* ---- what is known ---- */

const BundleWriter *packer_writer(const Packer *p) {
        return p->writer;
}

const Parts *packer_parts(const Packer *p) {
        return &p->parts;
}

uint64_t packer_done_bytes(const Packer *p) {
        return p->done_bytes;
}

uint64_t packer_bytes_read(const Packer *p) {
        return bundle_writer_bytes_read(p->writer) + p->remade_bytes_read;
}

size_t packer_failed_member(const Packer *p) {
        return p->failed_member;
}

char *packer_signature(int level, uint64_t part_size) {
        char *text = NULL;
        if (asprintf(&text, "zstd %s, level %d, part %" PRIu64, writer_zstd_version(), level,
                     part_size) < 0)
                return NULL;
        return text;
}
