/* Cuts the writer's frames into parts in memory, and continues an earlier run from its rows. First
 * the rule of parts (pure), then their memory, then the state that a row carries, then the packer.
 */
#include "lib/bundle/packer.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "lib/base/strbuf.h"
#include "lib/bundle/frame.h"

/* What the plan alone determines of a run of frames. */
typedef struct Span {
        size_t first_member, end_member; /* they end in it */
        bool is_open;                    /* a member's data continues behind it … */
        uint64_t content;                /* … and so much of its content came before */
} Span;

uint64_t parts_limit(uint64_t part_size, size_t k, uint64_t unpacked_bytes) {
        if (k >= PARTS_MAX)
                return UINT64_MAX;
        return MAX(part_size, unpacked_bytes / (PARTS_MAX - k));
}

void parts_init(Parts *p, uint64_t part_size) {
        *p = (Parts){ .part_size = part_size };
        sha256_init(&p->open);
}

static void add_bytes(Parts *p, const void *data, size_t n) {
        sha256_update(&p->open, data, n);
        p->open_bytes += n;
        p->total_bytes += n;
}

static int reserve_part(Parts *p) {
        if (p->n == p->n_allocated) {
                size_t n = MAX((size_t)16, p->n_allocated * 2);
                Part *items = realloc(p->items, n * sizeof *items);
                if (!items)
                        return -ENOMEM;
                p->items = items;
                p->n_allocated = n;
        }
        return 0;
}

int parts_restore(Parts *p, const Part *part) {
        int r = reserve_part(p);
        if (r < 0)
                return r;
        p->items[p->n++] = *part;
        p->open_first_frame += part->n_frames;
        p->total_bytes += part->bytes;
        return 0;
}

static int close_part(Parts *p) {
        int r = reserve_part(p);
        if (r < 0)
                return r;
        Part *part = &p->items[p->n++];
        *part = (Part){ .bytes = p->open_bytes,
                        .first_frame = p->open_first_frame,
                        .n_frames = p->n_open_frames };
        sha256_final(&p->open, part->sha256);
        sha256_init(&p->open);
        p->open_first_frame += p->n_open_frames;
        p->open_bytes = p->n_open_frames = 0;
        return 0;
}

int parts_add_frame(Parts *p, const void *data, size_t n, uint64_t unpacked_bytes,
                    bool *ret_closed) {
        add_bytes(p, data, n);
        p->n_open_frames++;
        *ret_closed = p->open_bytes >= parts_limit(p->part_size, p->n, unpacked_bytes);
        return *ret_closed ? close_part(p) : 0;
}

int parts_finish(Parts *p, const void *tail, size_t n) {
        add_bytes(p, tail, n);
        return p->open_bytes > 0 ? close_part(p) : 0;
}

void parts_done(Parts *p) {
        free(p->items);
        *p = (Parts){ 0 };
}

/* The parts' memory: mapped once and used again, since fresh pages cost more than the bytes that go
 * into them. A part may be freed by any thread, also after the packer. No lock: a buffer changes
 * owner by one atomic exchange, and the last holder frees all. */

#define SPARE_MAX 32 /* more are unmapped at once */

struct PackerBuffers {
        uint64_t bytes;
        atomic_uint n_holders; /* the owner, and parts with memory */
        atomic_bool is_released;
        _Atomic(void *) spare[SPARE_MAX];
};

static int buffers_new(PackerBuffers **ret, uint64_t bytes) {
        PackerBuffers *b = calloc(1, sizeof *b);
        if (!b)
                return -ENOMEM;
        b->bytes = bytes;
        atomic_init(&b->n_holders, 1);
        *ret = b;
        return 0;
}

static void unmap(const PackerBuffers *b, void *data) {
        if (data)
                (void)munmap(data, b->bytes); /* whole mapping */
}

static void unmap_spare(PackerBuffers *b) {
        for (size_t i = 0; i < SPARE_MAX; i++)
                unmap(b, atomic_exchange(&b->spare[i], NULL));
}

static void buffers_unref(PackerBuffers *b) {
        if (atomic_fetch_sub(&b->n_holders, 1) > 1)
                return;
        unmap_spare(b);
        free(b);
}

static PackerBuffers *buffers_release(PackerBuffers *b) {
        if (!b)
                return NULL;
        atomic_store(&b->is_released, true);
        unmap_spare(b);
        buffers_unref(b);
        return NULL;
}

static void *pop_spare(PackerBuffers *b) {
        for (size_t i = 0; i < SPARE_MAX; i++) {
                void *data = atomic_exchange(&b->spare[i], NULL);
                if (data)
                        return data;
        }
        return NULL;
}

static int buffers_acquire(PackerBuffers *b, PackedPart *part) {
        void *data = pop_spare(b);
        if (!data) {
                data = mmap(NULL, b->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                            0);
                if (data == MAP_FAILED)
                        return -ENOMEM;
                (void)madvise(data, b->bytes,
                              MADV_DONTDUMP); /* evidence does not belong into our own core files */
        }
        atomic_fetch_add(&b->n_holders, 1);
        part->data = data;
        part->mapped_bytes = b->bytes;
        part->buffers = b;
        return 0;
}

static void buffers_return(PackedPart *part) {
        PackerBuffers *b = part->buffers;
        void *data = part->data;
        if (!b)
                return;
        for (size_t i = 0; i < SPARE_MAX && data && !atomic_load(&b->is_released); i++) {
                void *empty = NULL;
                if (atomic_compare_exchange_strong(&b->spare[i], &empty, data))
                        data = NULL;
        }
        unmap(b, data);
        buffers_unref(b);
}

/* The form, all numbers little-endian: u32 version; u64 first member, u64 number of members; for
 * each: SHA-256 (32), u8 its form (1 = sparse), u8 verdict, u16 length of the detail, detail. Then,
 * if a member is open: its digest (member_digest_save()), u8 lost, u8 verdict of its fault, u16
 * length of the fault's detail (0 = no fault), detail. */

#define STATE_VERSION 1
#define DETAIL_MAX UINT16_MAX

/* ---- what the plan determines of a run of frames ---- */

static uint64_t frame_offset(const Plan *plan, uint64_t frame) {
        uint64_t offset, bytes;
        if (frame >= plan_n_frames(plan))
                return plan_stream_bytes(plan);
        plan_frame(plan, frame, &offset, &bytes);
        return offset;
}

/* @return how many members have all their data before an offset of the stream */
static size_t count_ended(const Plan *plan, uint64_t offset) {
        const size_t i = plan_member_at(plan, offset);
        if (i == plan_n_members(plan))
                return i;
        const PlanMember *m = plan_member(plan, i);
        return i + (offset - m->stream_offset >= m->header_bytes + plan_stored_bytes(m));
}

static Span span_of(const Plan *plan, uint64_t first_frame, uint64_t n_frames) {
        const uint64_t end = frame_offset(plan, first_frame + n_frames);
        Span span = { .first_member = count_ended(plan, frame_offset(plan, first_frame)),
                      .end_member = count_ended(plan, end),
                      .is_open = writer_mark_is_needed(plan, first_frame + n_frames) };
        if (span.is_open) {
                const PlanMember *m = plan_member(plan, span.end_member);
                span.content = plan_content_at(m, end - m->stream_offset - m->header_bytes);
        }
        return span;
}

/* ---- saving ---- */

static void write_number(StrBuf *b, uint64_t value, size_t bytes) {
        const uint64_t little = htole64(value);
        strbuf_add_n(b, &little, bytes);
}

static void write_detail(StrBuf *b, const char *detail) {
        const size_t n = detail ? strnlen(detail, DETAIL_MAX) : 0;
        write_number(b, n, 2);
        strbuf_add_n(b, detail ? detail : "", n);
}

static void write_result(StrBuf *b, const MemberResult *result) {
        strbuf_add_n(b, result->sha256, SHA256_SIZE);
        write_number(b, result->is_sparse_digest, 1);
        write_number(b, result->verdict, 1);
        write_detail(b, result->detail);
}

static void write_mark(StrBuf *b, const WriterMark *mark) {
        uint8_t digest[MEMBER_DIGEST_STATE_SIZE];
        member_digest_save(&mark->digest, digest);
        strbuf_add_n(b, digest, sizeof digest);
        write_number(b, mark->is_lost, 1);
        write_number(b, mark->fault_detail ? mark->fault : 0, 1);
        write_detail(b, mark->fault_detail);
}

static int state_save(const Span *span, const BundleWriter *w, PackedRow *row) {
        StrBuf b = STRBUF_INIT;
        write_number(&b, STATE_VERSION, 4);
        write_number(&b, span->first_member, 8);
        write_number(&b, span->end_member - span->first_member, 8);
        for (size_t i = span->first_member; i < span->end_member; i++)
                write_result(&b, bundle_writer_member(w, i));
        if (span->is_open)
                write_mark(&b, bundle_writer_mark(w));

        int r = strbuf_error(&b);
        if (r == 0) {
                row->state_bytes = b.n;
                row->state = (uint8_t *)strbuf_detach(&b);
        }
        strbuf_done(&b);
        return r;
}

/* ---- loading ---- */

typedef struct Input {
        const uint8_t *data;
        size_t n;
        bool is_invalid; /* for good */
} Input;

/* @return n bytes, NULL when they are not there */
static const uint8_t *read_bytes(Input *in, size_t n) {
        if (in->is_invalid || n > in->n) {
                in->is_invalid = true;
                return NULL;
        }
        const uint8_t *p = in->data;
        in->data += n;
        in->n -= n;
        return p;
}

static uint64_t read_number(Input *in, size_t bytes, uint64_t max) {
        uint64_t little = 0;
        const uint8_t *p = read_bytes(in, bytes);
        if (p)
                memcpy(&little, p, bytes);
        if (le64toh(little) > max) {
                in->is_invalid = true;
                return 0;
        }
        return le64toh(little);
}

/* @param ret  the caller's; unchanged when the text is empty or invalid. @return 0 or -ENOMEM */
static int read_detail(Input *in, char **ret) {
        const size_t n = (size_t)read_number(in, 2, DETAIL_MAX);
        const uint8_t *p = read_bytes(in, n);
        if (!p || n == 0)
                return 0;
        if (memchr(p, 0, n)) {
                in->is_invalid = true;
                return 0;
        }
        *ret = strndup((const char *)p, n);
        return *ret ? 0 : -ENOMEM;
}

static int read_result(Input *in, BundleWriter *w, size_t i) {
        static const uint8_t nothing[SHA256_SIZE];
        _cleanup_free_ char *detail = NULL;
        MemberResult result = { 0 };

        const uint8_t *digest = read_bytes(in, SHA256_SIZE);
        if (digest)
                memcpy(result.sha256, digest, SHA256_SIZE);
        if (memcmp(result.sha256, nothing, SHA256_SIZE) == 0)
                in->is_invalid = true;
        result.is_sparse_digest = read_number(in, 1, 1);
        result.verdict = (Verdict)read_number(in, 1, N_VERDICTS - 1);
        int r = read_detail(in, &detail);
        result.detail = detail;
        return r < 0 || in->is_invalid || !w ? r : bundle_writer_restore(w, i, &result);
}

static int read_mark(Input *in, const Span *span, WriterMark *ret) {
        WriterMark mark = { 0 };

        const uint8_t *digest = read_bytes(in, MEMBER_DIGEST_STATE_SIZE);
        if (!digest || member_digest_load(&mark.digest, digest) < 0 ||
            mark.digest.offset + mark.digest.pending_zeros != span->content) {
                in->is_invalid = true;
                return 0;
        }
        mark.is_lost = read_number(in, 1, 1);
        mark.fault = (Verdict)read_number(in, 1, N_VERDICTS - 1);
        int r = read_detail(in, &mark.fault_detail);
        if (mark.is_lost && !mark.fault_detail)
                in->is_invalid = true;
        if (r < 0 || in->is_invalid) {
                writer_mark_done(&mark);
                return r;
        }
        writer_mark_done(ret);
        *ret = mark;
        return 0;
}

static int state_load(const Span *span, const PackedRow *row, BundleWriter *w, WriterMark *ret) {
        Input in = { .data = row->state, .n = row->state ? row->state_bytes : 0 };
        int r = 0;

        if (read_number(&in, 4, UINT32_MAX) != STATE_VERSION ||
            read_number(&in, 8, UINT64_MAX) != span->first_member ||
            read_number(&in, 8, UINT64_MAX) != span->end_member - span->first_member)
                in.is_invalid = true;
        for (size_t i = span->first_member; r == 0 && !in.is_invalid && i < span->end_member; i++)
                r = read_result(&in, w, i);
        if (r == 0 && span->is_open)
                r = read_mark(&in, span, ret);
        if (r < 0)
                return r;
        return in.is_invalid || in.n > 0 ? PACKER_E_ROWS : 0;
}

#define ROWS_MAX (PARTS_MAX + 1) /* more parts cannot be, see parts_limit() */

struct Packer {
        const Plan *plan;
        BundleWriterOptions options;
        BundleWriter *writer;
        Parts parts;
        PackerBuffers *buffers;
        bool *lost; /* by part: the member open at its end was lost, so that what follows is zeros
                     */
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
        buffers_return(p);
        *p = (PackedPart){ 0 };
}

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

/* Verifies all states; the last one's open member is where the writer starts. */
static int check_states(Packer *p, const PackerOptions *o, WriterMark *ret) {
        for (size_t i = 0; i < o->n_rows; i++) {
                const PackedRow *row = &o->rows[i];
                const Span span = span_of(p->plan, row->first_frame, row->n_frames);
                int r = state_load(&span, row, NULL, ret);
                if (r != 0)
                        return r;
                p->lost[i] = span.is_open && ret->is_lost;
        }
        return 0;
}

static int restore_results(Packer *p, const PackerOptions *o) {
        WriterMark unused = { 0 };
        int r = 0;
        for (size_t i = 0; r == 0 && i < o->n_rows; i++) {
                const PackedRow *row = &o->rows[i];
                const Span span = span_of(p->plan, row->first_frame, row->n_frames);
                r = state_load(&span, row, p->writer, &unused);
        }
        writer_mark_done(&unused);
        return r;
}

static int start_writer(Packer *p, const PackerOptions *o) {
        _cleanup_(writer_mark_done) WriterMark mark = { 0 };
        _cleanup_free_ uint32_t *sizes = NULL;

        int r = restore_parts(p, o, &sizes);
        if (r == 0)
                r = check_states(p, o, &mark);
        if (r != 0)
                return r;
        BundleWriterOptions options = p->options;
        options.first_frame = p->parts.open_first_frame;
        options.earlier_frames = sizes;
        options.mark = &mark;
        r = bundle_writer_new(&p->writer, p->plan, &options);
        return r == 0 ? restore_results(p, o) : r;
}

/* One size for all parts, those made again among them. */
static int create_buffers(Packer *p) {
        const uint64_t stream_bytes = plan_stream_bytes(p->plan);
        uint64_t bytes = MIN(packer_part_bytes_max(p->parts.part_size, 0, stream_bytes),
                             object_bytes_max(stream_bytes));
        for (size_t i = 0; i < p->parts.n; i++)
                bytes = MAX(bytes, p->parts.items[i].bytes);
        return buffers_new(&p->buffers, bytes);
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
        if (r == 0)
                r = create_buffers(p);
        if (r != 0)
                return r;
        p->done_bytes = packed_stream_end(p);
        *ret = TAKE_PTR(p);
        return 0;
}

Packer *packer_free(Packer *p) {
        if (!p)
                return NULL;
        bundle_writer_free(p->writer);
        parts_done(&p->parts);
        buffers_release(p->buffers);
        free(p->lost);
        free(p);
        return NULL;
}

/* ---- making parts ---- */

/* @return 0; -EOVERFLOW for more than packer_part_bytes_max() allows, which the rule of parts does
 * not let happen */
static int append_bytes(PackedPart *part, const void *data, size_t n) {
        if (n > part->mapped_bytes - part->row.bytes)
                return -EOVERFLOW;
        memcpy(part->data + part->row.bytes, data, n);
        part->row.bytes += n;
        return 0;
}

static int append_table(Packer *p, PackedPart *part) {
        const void *table;
        size_t n;
        int r = bundle_writer_seek_table(p->writer, &table, &n);
        return r == 0 ? append_bytes(part, table, n) : r;
}

static int append_frame(Packer *p, PackedPart *part, const BundleFrame *frame, bool *ret_closed) {
        const uint64_t end = frame->stream_offset + frame->stream_bytes;
        int r = append_bytes(part, frame->data, frame->bytes);
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
        const Span span = span_of(p->plan, part->first_frame, part->n_frames);

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
        return state_save(&span, p->writer, row);
}

static int build_part(Packer *p, PackedPart *part) {
        int r = buffers_acquire(p->buffers, part);
        if (r < 0)
                return r;
        part->index = p->parts.n;
        r = fill_part(p, part);
        if (r == 0)
                r = fill_row(p, &part->row);
        if (r != 0) {
                p->failed_member = bundle_writer_failed_member(p->writer);
                p->error = r; /* frames are lost: it cannot continue */
                return r;
        }
        p->done_bytes = packed_stream_end(p);
        return 0;
}

int packer_next(Packer *p, PackedPart *ret) {
        _cleanup_(packed_part_done) PackedPart part = { 0 };
        if (p->error != 0 || p->is_done)
                return p->error;
        int r = build_part(p, &part);
        if (r != 0)
                return r;
        *ret = part;
        part = (PackedPart){ 0 };
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
                            : append_bytes(part, frame.data, frame.bytes);
                if (r != 0)
                        break;
        }
        p->remade_bytes_read += bundle_writer_bytes_read(w);
        p->failed_member = bundle_writer_failed_member(w);
        return r;
}

int packer_rebuild(Packer *p, size_t index, PackedPart *ret) {
        _cleanup_(packed_part_done) PackedPart part = { .index = index };
        if (index >= p->parts.n)
                return -EINVAL;
        const Part *wanted = &p->parts.items[index];
        const WriterMark mark = { .is_lost = index > 0 && p->lost[index - 1] };
        const uint64_t table = bundle_writer_seek_table_bytes(plan_n_frames(p->plan));

        int r = buffers_acquire(p->buffers, &part);
        if (r == 0 && wanted->n_frames > 0)
                r = rebuild_frames(p, wanted, &mark, &part);
        part.row.is_last = p->is_done && index + 1 == p->parts.n;
        if (r == 0 && part.row.is_last)
                r = wanted->bytes - part.row.bytes == table ? append_table(p, &part)
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
        if (asprintf(&text, "zstd %s, level %d, part %" PRIu64, frame_zstd_version(), level,
                     part_size) < 0)
                return NULL;
        return text;
}
