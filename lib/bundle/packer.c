/* Turns a plan into frames, and frames into parts. The members are read once, in order, into the
 * slots of a ring; each content byte passes its member's digest and validator while it is in the
 * CPU's cache. The pool compresses the slots, and frames come out in order: the writer. Then the
 * rule of parts (pure), the state that a row carries, and the packer. */
#include "lib/bundle/packer.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "lib/base/array.h"
#include "lib/base/strbuf.h"
#include "lib/bundle/frame.h"
#include "lib/bundle/page_cache.h"

typedef enum MemberPhase { MEMBER_NEXT, MEMBER_OPEN, MEMBER_FINISHED } MemberPhase;

typedef struct TarStream {
        const Plan *plan;
        const BundleWriterOptions *options;
        MemberResult *results; /* one a member; owned */
        WriterMark start;      /* of the member in which it starts */
        size_t failed_member;
        uint64_t bytes_read;

        size_t member;     /* plan_n_members() = the end blocks */
        MemberPhase state; /* its padding is made when it is FINISHED */
        uint64_t position; /* in its part of the stream */
        uint64_t data_end; /* where its padding begins */

        /* the open member */
        bool is_lost; /* nothing more to be read from it: zeros (tolerant) */
        int fd;
        void *header;         /* owned */
        uint32_t extent;      /* the one being read … */
        uint64_t extent_done; /* … and how much of it */
        uint64_t content;     /* next byte of the content for the digest */
        PageCache pages;
        MemberDigest digest;
        Validator *validator; /* owned; NULL: only frames are wanted */
        Verdict fault;
        char *fault_detail; /* what went wrong (tolerant); owned */
} TarStream;

#define READ_BYTES                                                                                 \
        PAGE_CACHE_READ_BYTES /* small enough to be in the cache still when it is hashed */

static void writer_mark_done(WriterMark *m) {
        free(m->fault_detail);
        *m = (WriterMark){ 0 };
}

static int writer_mark_copy(WriterMark *to, const WriterMark *from) {
        char *detail = from->fault_detail ? strdup(from->fault_detail) : NULL;
        if (from->fault_detail && !detail)
                return -ENOMEM;
        free(to->fault_detail);
        *to = *from;
        to->fault_detail = detail;
        return 0;
}

static MemberResult *results_new(size_t n) {
        MemberResult *results = calloc(n + 1, sizeof *results);
        for (size_t i = 0; results && i < n; i++)
                results[i].verdict = VERDICT_OPAQUE; /* not validated */
        return results;
}

static MemberResult *results_free(MemberResult *results, size_t n) {
        for (size_t i = 0; results && i < n; i++)
                free(results[i].detail);
        free(results);
        return NULL;
}

static int stream_init(TarStream *s, const Plan *plan, const BundleWriterOptions *options,
                       uint64_t stream_offset) {
        size_t n = plan_n_members(plan), first = plan_member_at(plan, stream_offset);

        *s = (TarStream){ .plan = plan, .options = options, .fd = -1, .failed_member = n };
        s->results = results_new(n);
        if (!s->results)
                return -ENOMEM;
        if (options->mark) {
                int r = writer_mark_copy(&s->start, options->mark);
                if (r < 0)
                        return r;
        }
        s->member = first;
        s->position = stream_offset;
        if (first < n)
                s->position -= plan_member(plan, first)->stream_offset;
        return 0;
}

static int stream_save_mark(const TarStream *s, WriterMark *ret) {
        if (s->state != MEMBER_OPEN)
                return 0;
        return writer_mark_copy(ret, &(WriterMark){ .digest = s->digest,
                                                    .is_lost = s->is_lost,
                                                    .fault = s->fault,
                                                    .fault_detail = s->fault_detail });
}

static void close_member(TarStream *s) {
        page_cache_close(&s->pages);
        if (s->fd >= 0)
                (void)close(s->fd); /* opened for reading */
        s->fd = -1;
        free(s->header);
        s->header = NULL;
        s->validator = validator_free(s->validator);
        free(s->fault_detail);
        s->fault_detail = NULL;
}

static void stream_done(TarStream *s) {
        close_member(s);
        s->results = results_free(s->results, plan_n_members(s->plan));
        writer_mark_done(&s->start);
}

static const PlanMember *stream_member(const TarStream *s) {
        return plan_member(s->plan, s->member);
}

_printf_(4, 5) static int fail_member(TarStream *s, int error, Verdict verdict, const char *fmt,
                                      ...) {
        va_list ap;

        if (!s->options->tolerant) {
                s->failed_member = s->member;
                return error;
        }
        if (s->fault_detail)
                return 0;
        s->fault = verdict;
        va_start(ap, fmt);
        s->fault_detail = strbuf_vformat(fmt, ap);
        va_end(ap);
        return s->fault_detail ? 0 : -ENOMEM;
}

/* Whether the open file is what the plan says. */
static int check_unchanged(TarStream *s) {
        const PlanMember *m = stream_member(s);
        struct stat st;

        if (fstat(s->fd, &st) < 0)
                return fail_member(s, -errno, VERDICT_SUSPECT, "its status cannot be read (%m)");
        if (st.st_dev != m->dev || st.st_ino != m->ino)
                return fail_member(s, WRITER_E_CHANGED, VERDICT_SUSPECT,
                                   "another file has replaced it since it was planned");
        if ((uint64_t)st.st_size != m->bytes)
                return fail_member(s, WRITER_E_CHANGED,
                                   (uint64_t)st.st_size < m->bytes ? VERDICT_TRUNCATED
                                                                   : VERDICT_SUSPECT,
                                   "changed while it was read: %llu bytes became %llu",
                                   (unsigned long long)m->bytes, (unsigned long long)st.st_size);
        if (st.st_mtim.tv_sec != m->mtime_sec || (uint32_t)st.st_mtim.tv_nsec != m->mtime_nsec)
                return fail_member(s, WRITER_E_CHANGED, VERDICT_SUSPECT,
                                   "changed while it was read: it has a new modification time");
        return 0;
}

static int open_source(TarStream *s) {
        const PlanMember *m = stream_member(s);

        s->fd = s->options->open_member(s->member, m, s->options->userdata);
        if (s->fd < 0) {
                s->is_lost = true;
                errno = -s->fd;
                return fail_member(s, s->fd, VERDICT_TRUNCATED,
                                   "cannot be opened (%m): all of it is zeros here");
        }
        page_cache_open(&s->pages, s->fd, m->bytes);
        return check_unchanged(s);
}

/* @return how far into the member's content the first `stored` bytes of its data in the tar stream
 * reach, holes before them included */
static uint64_t content_at(const PlanMember *m, uint64_t stored) {
        if (!m->is_sparse || stored == 0)
                return stored;
        const PlanExtent *e = m->extents;
        for (; stored > e->bytes; e++)
                stored -= e->bytes;
        return e->offset + stored;
}

/* Finds the position in extents and content that belongs to s->position, to resume a bundle there.
 */
static void seek_extent(TarStream *s) {
        const PlanMember *m = stream_member(s);

        s->extent = 0;
        s->extent_done = 0;
        s->content = 0;
        if (s->position <= m->header_bytes)
                return;
        uint64_t rest = s->position - m->header_bytes;
        s->content = content_at(m, rest);
        if (m->is_sparse)
                for (; s->extent < m->n_extents && rest >= m->extents[s->extent].bytes; s->extent++)
                        rest -= m->extents[s->extent].bytes;
        s->extent_done = rest;
}

static void add_zeros(TarStream *s, uint64_t n) {
        s->content += n;
        if (n == 0 || !s->validator)
                return;
        member_digest_zeros(&s->digest, n);
        validator_update(s->validator, NULL, n);
}

/* @return whether it is all zeros */
static bool add_data(TarStream *s, const void *data, size_t n) {
        s->content += n;
        if (!s->validator)
                return member_digest_is_zero(data, n);
        const bool is_zero = member_digest_update(&s->digest, data, n);
        validator_update(s->validator, is_zero ? NULL : data, n);
        return is_zero;
}

/* A buffer, and how much of it was filled. */
typedef struct Piece {
        void *data;
        size_t n_max, n;
        bool is_zero; /* is cleared by anything else than zeros */
} Piece;

/* Reads content at an offset, of data that continues until `end`. Reads nothing when nothing more
 * can be read (s->is_lost). */
static int read_source(TarStream *s, Piece *p, uint64_t offset, uint64_t end) {
        ssize_t got;

        p->n = 0;
        if (s->is_lost)
                return 0;
        page_cache_prepare(&s->pages, offset, end);
        if (s->options->before_read)
                s->options->before_read(p->n_max, s->options->userdata);
        do
                got = pread(s->fd, p->data, p->n_max, (off_t)offset);
        while (got < 0 && errno == EINTR);
        if (got > 0) {
                p->n = (size_t)got;
                s->bytes_read += p->n;
                return 0;
        }
        s->is_lost = true;
        if (got == 0)
                return fail_member(s, WRITER_E_CHANGED, VERDICT_TRUNCATED,
                                   "shrank while it was read: from byte %llu on it is zeros here",
                                   (unsigned long long)offset);
        return fail_member(s, -errno, VERDICT_TRUNCATED,
                           "cannot be read from byte %llu on (%m): the rest is zeros here",
                           (unsigned long long)offset);
}

/* A validator's state is not saved: it reads the content again, up to where the bundle is resumed.
 */
static int revalidate_content(TarStream *s) {
        _cleanup_free_ void *buf = malloc(READ_BYTES);
        if (!buf)
                return -ENOMEM;

        for (uint64_t at = 0, n; at < s->content; at += n) {
                const uint64_t rest = s->content - at;
                Piece p = { .data = buf, .n_max = (size_t)MIN(rest, READ_BYTES) };
                n = MIN(rest, validator_skippable_bytes(s->validator));
                if (n == 0) {
                        int r = read_source(s, &p, at, s->content);
                        if (r != 0)
                                return r;
                        n = p.n > 0 ? p.n : p.n_max;
                }
                const bool has_data = p.n > 0 && !member_digest_is_zero(buf, p.n);
                validator_update(s->validator, has_data ? buf : NULL, n);
        }
        if (s->is_lost) { /* nothing in the bundle is lost yet: what follows reports its own fault
                           */
                s->is_lost = false;
                free(s->fault_detail);
                s->fault_detail = NULL;
        }
        return 0;
}

/* Opens the member in whose data the bundle is resumed. */
static int resume_member(TarStream *s) {
        const WriterMark *mark = &s->start;
        int r = 0;

        s->digest = mark->digest;
        s->is_lost = mark->is_lost;
        s->fault = mark->fault;
        s->fault_detail = TAKE_PTR(s->start.fault_detail);
        if (!s->is_lost)
                r = open_source(s);
        /* a fault is the verdict, whatever the validator would say */
        return r == 0 && s->validator && !s->fault_detail ? revalidate_content(s) : r;
}

static int open_member(TarStream *s) {
        const PlanMember *m = stream_member(s);
        size_t header_bytes;

        s->state = MEMBER_OPEN;
        s->is_lost = false;
        int r = plan_member_header(s->plan, s->member, &s->header, &header_bytes);
        if (r < 0)
                return r;
        if (header_bytes !=
            m->header_bytes) /* it was laid out by the same function of the same plan */
                return -EIO;
        seek_extent(s);
        member_digest_init(&s->digest);
        if (!s->options->without_results) {
                r = validator_new(&s->validator, &(ValidatorOptions){ .source = s->options->source,
                                                                      .kind = m->kind,
                                                                      .name = m->path,
                                                                      .size_bytes = m->bytes });
                if (r < 0)
                        return r;
        }
        return s->position > m->header_bytes ? resume_member(s) : open_source(s);
}

static void fill_zeros(Piece *p) {
        memset(p->data, 0, p->n_max);
        p->n = p->n_max;
}

/* Data of the current extent. */
static int read_extent(TarStream *s, Piece *p) {
        const PlanMember *m = stream_member(s);
        const PlanExtent whole = { .offset = 0, .bytes = m->bytes };
        const PlanExtent *e = m->is_sparse ? &m->extents[s->extent] : &whole;
        uint64_t offset = e->offset + s->extent_done;

        p->n_max = MIN(p->n_max, READ_BYTES);
        p->n_max = MIN((uint64_t)p->n_max, e->bytes - s->extent_done);
        add_zeros(s, offset - s->content); /* the hole before */
        int r = read_source(s, p, offset, e->offset + e->bytes);
        if (r != 0)
                return r;
        if (p->n > 0)
                p->is_zero &= add_data(s, p->data, p->n);
        else {
                fill_zeros(p);
                add_zeros(s, p->n);
        }
        s->extent_done += p->n;
        if (s->extent_done == e->bytes && m->is_sparse) {
                s->extent++;
                s->extent_done = 0;
        }
        return 0;
}

/* All data was read: digest, verdict, and whether it is still the file of the plan. */
static int finish_member(TarStream *s) {
        const PlanMember *m = stream_member(s);
        MemberResult *result = &s->results[s->member];
        int r = 0;

        if (s->fd >= 0)
                r = check_unchanged(s);
        if (r != 0)
                return r;
        if (s->validator) {
                add_zeros(s, m->bytes - s->content);
                member_digest_final(&s->digest, result->sha256, &result->is_sparse_digest);
                result->verdict = validator_finish(s->validator, &result->detail);
        }
        if (s->fault_detail) {
                free(result->detail);
                result->detail = TAKE_PTR(s->fault_detail);
                result->verdict = s->fault;
        }
        close_member(s);
        s->state = MEMBER_FINISHED;
        return 0;
}

/* The next bytes of the open member. */
static int read_member(TarStream *s, Piece *p) {
        const PlanMember *m = stream_member(s);

        if (s->position < m->header_bytes) {
                p->n = (size_t)MIN((uint64_t)p->n_max, m->header_bytes - s->position);
                memcpy(p->data, (const char *)s->header + s->position, p->n);
                p->is_zero = false; /* it has a magic number; and if a piece of it had not, nothing
                                       is lost */
                return 0;
        }
        return read_extent(s, p);
}

static uint64_t padding_bytes(uint64_t bytes) {
        return (PLAN_TAR_BLOCK - bytes % PLAN_TAR_BLOCK) % PLAN_TAR_BLOCK;
}

static int start_member(TarStream *s) {
        const PlanMember *m = stream_member(s);

        s->data_end = m->header_bytes + plan_stored_bytes(m);
        if (s->position < s->data_end)
                return open_member(s);
        s->state = MEMBER_FINISHED; /* resumed in its padding */
        return 0;
}

/* One step: some bytes (or none) of a header, of data, of padding or of the end. */
static int stream_step(TarStream *s, Piece *p) {
        p->n = 0;
        if (s->member == plan_n_members(s->plan)) {
                fill_zeros(p);
                return 0;
        }

        switch (s->state) {
        case MEMBER_NEXT:
                return start_member(s);
        case MEMBER_OPEN:
                p->n_max = (size_t)MIN((uint64_t)p->n_max, s->data_end - s->position);
                return read_member(s, p);
        case MEMBER_FINISHED:
                break;
        }
        uint64_t left = s->data_end + padding_bytes(s->data_end) - s->position;
        if (left > 0) {
                p->n_max = (size_t)MIN((uint64_t)p->n_max, left);
                fill_zeros(p);
                return 0;
        }
        s->member++;
        s->position = 0;
        s->state = MEMBER_NEXT;
        return 0;
}

static int stream_read(TarStream *s, void *data, size_t n, bool *ret_zero) {
        Piece p = { .data = data, .is_zero = true };

        while (n > 0) {
                p.n_max = n;
                int r = stream_step(s, &p);
                if (r != 0)
                        return r;
                s->position += p.n;
                p.data = (char *)p.data + p.n;
                n -= p.n;
                if (s->state == MEMBER_OPEN && s->position == s->data_end)
                        r = finish_member(s);
                if (r != 0)
                        return r;
        }
        *ret_zero = p.is_zero;
        return 0;
}

#define ZERO_FRAME_MAX 4096 /* bytes of a compressed frame of zeros; they are some hundred */

typedef struct Slot {
        WorkJob job;
        BundleWriter *writer;
        uint8_t *input, *output;
        size_t n_input, n_output;
        const void *data; /* the finished frame: output, or the frame of zeros */
        WriterMark mark;  /* at the end of the frame */
        bool is_zero, in_pool;
        int error;
} Slot;

struct BundleWriter {
        const Plan *plan;
        BundleWriterOptions options;
        TarStream stream;
        FrameCompressor *zstd;
        uint8_t *memory; /* of all slots; mapped */
        size_t memory_bytes;
        Slot *slots;
        unsigned n_slots;
        unsigned max_in_pool;       /* fewer contexts than threads: not all slots at once */
        uint64_t next_in, next_out; /* frames to fill and to return; slot = number % n_slots */
        uint64_t end_frame, n_frames;
        int error;
        uint32_t *frame_bytes; /* compressed, one a frame */
        bool has_earlier;      /* also of those before the first one made here */
        void *zero_frame;      /* a full frame of zeros, once one was made */
        size_t zero_frame_bytes;
        StrBuf seek_table;
};

static size_t slot_bytes(void) {
        size_t bytes = PLAN_FRAME_BYTES + frame_bytes_max(PLAN_FRAME_BYTES);
        return bytes + (4096 - bytes % 4096) % 4096; /* whole pages */
}

uint64_t bundle_writer_memory_min(int level) {
        return frame_compressor_context_bytes(level) + 2 * slot_bytes();
}

uint64_t bundle_writer_memory_best(int level, unsigned n_compressors) {
        /* while each compressor is busy with one frame, another is ready for it */
        return n_compressors * (uint64_t)frame_compressor_context_bytes(level) +
               (2 * (uint64_t)n_compressors + 2) * slot_bytes();
}

/* As many contexts as there are threads, and one slot more than contexts at least; less where
 * memory is short. */
static int size_slots(BundleWriter *w, unsigned *ret_n_contexts) {
        const BundleWriterOptions *o = &w->options;
        uint64_t context = frame_compressor_context_bytes(o->level);

        for (unsigned n = worker_pool_size(o->compressors); n > 0; n--) {
                if (o->memory_bytes < n * context + (n + UINT64_C(1)) * slot_bytes())
                        continue;
                uint64_t fit = (o->memory_bytes - n * context) / slot_bytes();
                w->n_slots = (unsigned)MIN(fit, 2 * (uint64_t)n + 2);
                w->max_in_pool = n < worker_pool_size(o->compressors) ? n : w->n_slots;
                *ret_n_contexts = n;
                return 0;
        }
        return -EOVERFLOW;
}

static void compress_slot(WorkJob *job) {
        Slot *slot = CONTAINER_OF(job, Slot, job);

        FrameCompression frame = { .data = slot->input,
                                   .n = slot->n_input,
                                   .is_zero = slot->is_zero,
                                   .ret = slot->output };

        slot->error = frame_compress(slot->writer->zstd, &frame);
        slot->data = slot->output;
        slot->n_output = frame.ret_bytes;
}

static int alloc_slots(BundleWriter *w) {
        w->memory_bytes = w->n_slots * slot_bytes();
        void *memory = mmap(NULL, w->memory_bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
                return -errno;
        w->memory = memory;
        w->slots = calloc(w->n_slots, sizeof *w->slots);
        w->frame_bytes = calloc(MAX(w->n_frames, UINT64_C(1)), sizeof *w->frame_bytes);
        if (!w->slots || !w->frame_bytes)
                return -ENOMEM;
        for (unsigned i = 0; i < w->n_slots; i++) {
                Slot *slot = &w->slots[i];
                slot->job.run = compress_slot;
                slot->writer = w;
                slot->input = w->memory + i * slot_bytes();
                slot->output = slot->input + PLAN_FRAME_BYTES;
        }
        return 0;
}

static bool options_are_possible(const Plan *plan, const BundleWriterOptions *o) {
        if (o->level < 0 || o->level > FRAME_LEVEL_MAX || o->first_frame > plan_n_frames(plan) ||
            o->end_frame > plan_n_frames(plan) ||
            (o->end_frame > 0 && o->end_frame < o->first_frame))
                return false;
        return o->without_results || o->mark || !writer_mark_is_needed(plan, o->first_frame);
}

int bundle_writer_new(BundleWriter **ret, const Plan *plan, const BundleWriterOptions *options) {
        uint64_t offset = plan_stream_bytes(plan), bytes;
        unsigned n_contexts;

        if (!options_are_possible(plan, options))
                return -EINVAL;
        _cleanup_(bundle_writer_freep) BundleWriter *w = calloc(1, sizeof *w);
        if (!w)
                return -ENOMEM;
        w->plan = plan;
        w->options = *options;
        w->n_frames = plan_n_frames(plan);
        w->end_frame = options->end_frame > 0 ? options->end_frame : w->n_frames;
        w->next_in = w->next_out = options->first_frame;

        int r = size_slots(w, &n_contexts);
        if (r == 0)
                r = alloc_slots(w);
        if (r == 0)
                r = frame_compressor_new(&w->zstd, options->level, n_contexts);
        if (r < 0)
                return r;
        w->has_earlier = options->earlier_frames != NULL;
        if (w->has_earlier)
                memcpy(w->frame_bytes, options->earlier_frames,
                       options->first_frame * sizeof *w->frame_bytes);
        if (options->first_frame < w->n_frames)
                plan_frame(plan, options->first_frame, &offset, &bytes);
        r = stream_init(&w->stream, plan, &w->options, offset);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(w);
        return 0;
}

static Slot *slot_of(BundleWriter *w, uint64_t frame) {
        return &w->slots[frame % w->n_slots];
}

static void wait_for_slot(Slot *slot) {
        if (slot->in_pool)
                worker_pool_wait(&slot->job);
        slot->in_pool = false;
}

BundleWriter *bundle_writer_free(BundleWriter *w) {
        if (!w)
                return NULL;
        for (unsigned i = 0; w->slots && i < w->n_slots; i++) {
                wait_for_slot(&w->slots[i]);
                writer_mark_done(&w->slots[i].mark);
        }
        if (w->stream.plan)
                stream_done(&w->stream);
        frame_compressor_free(w->zstd);
        if (w->memory)
                (void)munmap(w->memory, w->memory_bytes); /* whole mapping */
        free(w->slots);
        free(w->frame_bytes);
        free(w->zero_frame);
        strbuf_done(&w->seek_table);
        free(w);
        return NULL;
}

/* Waits until one more job may go into the pool, the oldest first. */
static void wait_for_context(BundleWriter *w) {
        unsigned n = 0;

        for (uint64_t f = w->next_out; f < w->next_in; f++)
                n += slot_of(w, f)->in_pool;
        for (uint64_t f = w->next_out; f < w->next_in && n >= w->max_in_pool; f++)
                if (slot_of(w, f)->in_pool) {
                        wait_for_slot(slot_of(w, f));
                        n--;
                }
}

/* Reads the next frame's piece of the stream and submits it for compression. */
static int fill_slot(BundleWriter *w) {
        Slot *slot = slot_of(w, w->next_in);
        uint64_t offset, bytes;

        plan_frame(w->plan, w->next_in, &offset, &bytes);
        slot->n_input = bytes;
        slot->error = 0;
        int r = stream_read(&w->stream, slot->input, bytes, &slot->is_zero);
        if (r == 0)
                r = stream_save_mark(&w->stream, &slot->mark);
        if (r != 0)
                return r;
        if (slot->is_zero && bytes == PLAN_FRAME_BYTES && w->zero_frame) {
                slot->data = w->zero_frame;
                slot->n_output = w->zero_frame_bytes;
        } else {
                wait_for_context(w);
                slot->in_pool = worker_pool_submit(w->options.compressors, &slot->job) == 0;
                if (!slot->in_pool) /* no thread available: slower, but it works */
                        compress_slot(&slot->job);
        }
        w->next_in++;
        return 0;
}

/* Zeros need be compressed only once. */
static void cache_zero_frame(BundleWriter *w, const Slot *slot) {
        if (!slot->is_zero || slot->n_input != PLAN_FRAME_BYTES || w->zero_frame ||
            slot->n_output > ZERO_FRAME_MAX)
                return;
        w->zero_frame = malloc(slot->n_output); /* without it every such frame is compressed */
        if (!w->zero_frame)
                return;
        memcpy(w->zero_frame, slot->data, slot->n_output);
        w->zero_frame_bytes = slot->n_output;
}

static int emit_frame(BundleWriter *w, BundleFrame *ret) {
        Slot *slot = slot_of(w, w->next_out);

        wait_for_slot(slot);
        if (slot->error < 0)
                return slot->error;
        cache_zero_frame(w, slot);
        *ret = (BundleFrame){ .number = w->next_out, .data = slot->data, .bytes = slot->n_output };
        plan_frame(w->plan, w->next_out, &ret->stream_offset, &ret->stream_bytes);
        w->frame_bytes[w->next_out] = (uint32_t)slot->n_output;
        w->next_out++;
        return WRITER_FRAME;
}

int bundle_writer_next(BundleWriter *w, BundleFrame *ret) {
        while (w->error == 0 && w->next_in < w->end_frame && w->next_in - w->next_out < w->n_slots)
                w->error = fill_slot(w);
        if (w->error != 0)
                return w->error;
        if (w->next_out == w->end_frame)
                return 0;
        int r = emit_frame(w, ret);
        if (r < 0)
                w->error = r;
        return r;
}

/* Little-endian. */
static void write_number(StrBuf *b, uint64_t value, size_t bytes) {
        const uint64_t little = htole64(value);
        strbuf_add_n(b, &little, bytes);
}

uint64_t bundle_writer_seek_table_bytes(uint64_t n_frames) {
        return SEEK_TABLE_HEADER_BYTES + n_frames * SEEK_TABLE_ENTRY_BYTES +
               SEEK_TABLE_FOOTER_BYTES;
}

int bundle_writer_seek_table(BundleWriter *w, const void **ret, size_t *ret_bytes) {
        StrBuf *b = &w->seek_table;
        uint64_t offset, bytes;

        if (w->next_out < w->n_frames || (w->options.first_frame > 0 && !w->has_earlier))
                return -ENODATA;
        strbuf_clear(b);
        write_number(b, SEEK_TABLE_MAGIC, 4);
        write_number(b, bundle_writer_seek_table_bytes(w->n_frames) - SEEK_TABLE_HEADER_BYTES, 4);
        for (uint64_t f = 0; f < w->n_frames; f++) {
                plan_frame(w->plan, f, &offset, &bytes);
                write_number(b, w->frame_bytes[f], 4);
                write_number(b, bytes, 4);
        }
        write_number(b, w->n_frames, 4);
        write_number(b, 0, 1); /* descriptor: no checksums here, the frames have their own */
        write_number(b, SEEK_TABLE_FOOTER_MAGIC, 4);
        if (strbuf_error(b) < 0)
                return -ENOMEM;
        *ret = b->text;
        *ret_bytes = b->n;
        return 0;
}

bool writer_mark_is_needed(const Plan *plan, uint64_t first_frame) {
        uint64_t offset, bytes;
        if (first_frame >= plan_n_frames(plan))
                return false;
        plan_frame(plan, first_frame, &offset, &bytes);
        const size_t i = plan_member_at(plan, offset);
        if (i == plan_n_members(plan))
                return false;
        const PlanMember *m = plan_member(plan, i);
        const uint64_t position = offset - m->stream_offset;
        return position > m->header_bytes && position < m->header_bytes + plan_stored_bytes(m);
}

/* How the open member stood at the end of the frame that came last. */
static const WriterMark *last_mark(const BundleWriter *w) {
        return &w->slots[(w->next_out - 1) % w->n_slots].mark;
}

const MemberResult *bundle_writer_member(const BundleWriter *w, size_t i) {
        return &w->stream.results[i];
}

size_t bundle_writer_failed_member(const BundleWriter *w) {
        return w->stream.failed_member;
}

uint64_t bundle_writer_bytes_read(const BundleWriter *w) {
        return w->stream.bytes_read;
}

/* ---- parts ---- */

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

int parts_restore(Parts *p, const Part *part) {
        if (array_grow(&p->items, p->n, sizeof *p->items) < 0)
                return -ENOMEM;
        p->items[p->n++] = *part;
        p->open_first_frame += part->n_frames;
        p->total_bytes += part->bytes;
        return 0;
}

static int close_part(Parts *p) {
        if (array_grow(&p->items, p->n, sizeof *p->items) < 0)
                return -ENOMEM;
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
                span.content = content_at(m, end - m->stream_offset - m->header_bytes);
        }
        return span;
}

/* ---- saving ---- */

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
                write_mark(&b, last_mark(w));

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

static int read_result(Input *in, MemberResult *ret) {
        static const uint8_t nothing[SHA256_SIZE];

        const uint8_t *digest = read_bytes(in, SHA256_SIZE);
        if (digest)
                memcpy(ret->sha256, digest, SHA256_SIZE);
        if (memcmp(ret->sha256, nothing, SHA256_SIZE) == 0)
                in->is_invalid = true;
        ret->is_sparse_digest = read_number(in, 1, 1);
        ret->verdict = (Verdict)read_number(in, 1, N_VERDICTS - 1);
        return read_detail(in, &ret->detail);
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

/* @param results  of all members; those that ended in this row are set */
static int state_load(const Span *span, const PackedRow *row, MemberResult *results,
                      WriterMark *ret) {
        Input in = { .data = row->state, .n = row->state ? row->state_bytes : 0 };
        int r = 0;

        if (read_number(&in, 4, UINT32_MAX) != STATE_VERSION ||
            read_number(&in, 8, UINT64_MAX) != span->first_member ||
            read_number(&in, 8, UINT64_MAX) != span->end_member - span->first_member)
                in.is_invalid = true;
        for (size_t i = span->first_member; r == 0 && !in.is_invalid && i < span->end_member; i++)
                r = read_result(&in, &results[i]);
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
        uint64_t buffer_bytes;
        MemberResult *results; /* of the rows, until there is a writer; owned */
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
        p->results = results_new(plan_n_members(p->plan));
        if (!p->results)
                return -ENOMEM;
        for (size_t i = 0; i < o->n_rows; i++) {
                const PackedRow *row = &o->rows[i];
                const Span span = span_of(p->plan, row->first_frame, row->n_frames);
                int r = state_load(&span, row, p->results, ret);
                if (r != 0)
                        return r;
                p->lost[i] = span.is_open && ret->is_lost;
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
        MemberResult *empty = p->writer->stream.results;
        p->writer->stream.results = p->results;
        p->results = results_free(empty, plan_n_members(p->plan));
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
        results_free(p->results, plan_n_members(p->plan));
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
        const Span span = span_of(p->plan, part->first_frame, part->n_frames);

        row->first_frame = part->first_frame;
        row->n_frames = part->n_frames;
        memcpy(row->sha256, part->sha256, SHA256_SIZE);
        row->is_last = p->is_done;
        p->lost[index] = span.is_open && last_mark(p->writer)->is_lost;
        row->frame_bytes = malloc(MAX(row->n_frames, UINT64_C(1)) * sizeof *row->frame_bytes);
        if (!row->frame_bytes)
                return -ENOMEM;
        memcpy(row->frame_bytes, p->writer->frame_bytes + row->first_frame,
               row->n_frames * sizeof *row->frame_bytes);
        return state_save(&span, p->writer, row);
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
