/* A ring of slots: the caller's thread fills one with the next piece of the tar stream and hands it to the pool;
 * frames come out in order. What is in the stream is writer_stream's, what is in a frame writer_zstd's. */
#include "lib/bundle/writer.h"

#include <endian.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "lib/bundle/writer_stream.h"
#include "lib/bundle/writer_zstd.h"

#define ZERO_FRAME_MAX 4096 /* bytes of a compressed frame of zeros; they are some hundred */

/* The zstd seekable format, contrib/seekable_format/zstd_seekable_compression_format.md in zstd's repository. */
#define SEEK_TABLE_MAGIC 0x184D2A5Eu
#define SEEK_TABLE_FOOTER_MAGIC 0x8F92EAB1u
#define SEEK_TABLE_HEADER 8 /* skippable magic, size of what follows */
#define SEEK_TABLE_ENTRY 8  /* compressed size, decompressed size */
#define SEEK_TABLE_FOOTER 9 /* number of frames, descriptor, magic */

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
        WriterStream stream;
        WriterZstd *zstd;
        uint8_t *memory; /* of all slots, mapped: given back whole */
        size_t memory_bytes;
        Slot *slots;
        unsigned n_slots;
        unsigned max_in_pool; /* fewer contexts than threads: not all slots at once */
        uint64_t next_in,
                next_out; /* frames: to be filled, to be given out; slot = number % n_slots */
        uint64_t end_frame, n_frames;
        int error;
        uint32_t *frame_bytes; /* compressed, one a frame */
        bool has_earlier;      /* also of those before the first one made here */
        void *zero_frame;      /* a full frame of zeros, once one was made */
        size_t zero_frame_bytes;
        uint8_t *seek_table;
};

static size_t slot_bytes(void) {
        size_t bytes = PLAN_FRAME_BYTES + writer_zstd_bound(PLAN_FRAME_BYTES);
        return bytes + (4096 - bytes % 4096) % 4096; /* whole pages */
}

uint64_t bundle_writer_memory_min(int level) {
        return writer_zstd_context_bytes(level) + 2 * slot_bytes();
}

uint64_t bundle_writer_memory_best(int level, unsigned n_compressors) {
        /* while each compressor is busy with one frame, another is ready for it */
        return n_compressors * (uint64_t)writer_zstd_context_bytes(level) +
               (2 * (uint64_t)n_compressors + 2) * slot_bytes();
}

/* As many contexts as there are threads, and one slot more than contexts at least; less where memory is short. */
static int choose_sizes(BundleWriter *w, unsigned *ret_n_contexts) {
        const BundleWriterOptions *o = &w->options;
        uint64_t context = writer_zstd_context_bytes(o->level);

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

        WriterZstdFrame frame = { .data = slot->input,
                                  .n = slot->n_input,
                                  .is_zero = slot->is_zero,
                                  .ret = slot->output };

        slot->error = writer_zstd_frame(slot->writer->zstd, &frame);
        slot->data = slot->output;
        slot->n_output = frame.ret_bytes;
}

static int make_slots(BundleWriter *w) {
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
        if (o->level < 0 || o->level > WRITER_ZSTD_LEVEL_MAX ||
            o->first_frame > plan_n_frames(plan) || o->end_frame > plan_n_frames(plan) ||
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

        int r = choose_sizes(w, &n_contexts);
        if (r == 0)
                r = make_slots(w);
        if (r == 0)
                r = writer_zstd_new(&w->zstd, options->level, n_contexts);
        if (r < 0)
                return r;
        w->has_earlier = options->earlier_frames != NULL;
        if (w->has_earlier)
                memcpy(w->frame_bytes, options->earlier_frames,
                       options->first_frame * sizeof *w->frame_bytes);
        if (options->first_frame < w->n_frames)
                plan_frame(plan, options->first_frame, &offset, &bytes);
        r = writer_stream_init(&w->stream, plan, &w->options, offset);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(w);
        return 0;
}

static Slot *slot_of(BundleWriter *w, uint64_t frame) {
        return &w->slots[frame % w->n_slots];
}

static void collect(Slot *slot) {
        if (slot->in_pool)
                worker_pool_wait(&slot->job);
        slot->in_pool = false;
}

BundleWriter *bundle_writer_free(BundleWriter *w) {
        if (!w)
                return NULL;
        for (unsigned i = 0; w->slots && i < w->n_slots; i++) {
                collect(&w->slots[i]);
                writer_mark_done(&w->slots[i].mark);
        }
        if (w->stream.plan)
                writer_stream_done(&w->stream);
        writer_zstd_free(w->zstd);
        if (w->memory)
                (void)munmap(w->memory, w->memory_bytes); /* what mmap gave */
        free(w->slots);
        free(w->frame_bytes);
        free(w->zero_frame);
        free(w->seek_table);
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
                        collect(slot_of(w, f));
                        n--;
                }
}

/* Reads the next frame's piece of the stream and sends it to be compressed. */
static int fill(BundleWriter *w) {
        Slot *slot = slot_of(w, w->next_in);
        uint64_t offset, bytes;

        plan_frame(w->plan, w->next_in, &offset, &bytes);
        slot->n_input = bytes;
        slot->error = 0;
        int r = writer_stream_read(&w->stream, slot->input, bytes, &slot->is_zero);
        if (r == 0)
                r = writer_stream_mark(&w->stream, &slot->mark);
        if (r != 0)
                return r;
        if (slot->is_zero && bytes == PLAN_FRAME_BYTES && w->zero_frame) {
                slot->data = w->zero_frame;
                slot->n_output = w->zero_frame_bytes;
        } else {
                wait_for_context(w);
                slot->in_pool = worker_pool_submit(w->options.compressors, &slot->job) == 0;
                if (!slot->in_pool) /* no thread to be had: slower, but it goes on */
                        compress_slot(&slot->job);
        }
        w->next_in++;
        return 0;
}

/* Zeros need be compressed only once. */
static void keep_zero_frame(BundleWriter *w, const Slot *slot) {
        if (!slot->is_zero || slot->n_input != PLAN_FRAME_BYTES || w->zero_frame ||
            slot->n_output > ZERO_FRAME_MAX)
                return;
        w->zero_frame = malloc(slot->n_output); /* without it every such frame is compressed */
        if (!w->zero_frame)
                return;
        memcpy(w->zero_frame, slot->data, slot->n_output);
        w->zero_frame_bytes = slot->n_output;
}

static int take_frame(BundleWriter *w, BundleFrame *ret) {
        Slot *slot = slot_of(w, w->next_out);

        collect(slot);
        if (slot->error < 0)
                return slot->error;
        keep_zero_frame(w, slot);
        *ret = (BundleFrame){ .number = w->next_out, .data = slot->data, .bytes = slot->n_output };
        plan_frame(w->plan, w->next_out, &ret->stream_offset, &ret->stream_bytes);
        w->frame_bytes[w->next_out] = (uint32_t)slot->n_output;
        w->next_out++;
        return WRITER_FRAME;
}

int bundle_writer_next(BundleWriter *w, BundleFrame *ret) {
        while (w->error == 0 && w->next_in < w->end_frame && w->next_in - w->next_out < w->n_slots)
                w->error = fill(w);
        if (w->error != 0)
                return w->error;
        if (w->next_out == w->end_frame)
                return 0;
        int r = take_frame(w, ret);
        if (r < 0)
                w->error = r;
        return r;
}

static uint8_t *put_u32(uint8_t *p, uint32_t value) {
        uint32_t little = htole32(value);
        memcpy(p, &little, sizeof little);
        return p + sizeof little;
}

uint64_t bundle_writer_seek_table_bytes(uint64_t n_frames) {
        return SEEK_TABLE_HEADER + n_frames * SEEK_TABLE_ENTRY + SEEK_TABLE_FOOTER;
}

int bundle_writer_seek_table(BundleWriter *w, const void **ret, size_t *ret_bytes) {
        const size_t n = bundle_writer_seek_table_bytes(w->n_frames);
        uint64_t offset, bytes;

        if (w->next_out < w->n_frames || (w->options.first_frame > 0 && !w->has_earlier))
                return -ENODATA;
        free(w->seek_table);
        uint8_t *p = w->seek_table = malloc(n);
        if (!p)
                return -ENOMEM;
        p = put_u32(p, SEEK_TABLE_MAGIC);
        p = put_u32(p, (uint32_t)(n - SEEK_TABLE_HEADER));
        for (uint64_t f = 0; f < w->n_frames; f++) {
                plan_frame(w->plan, f, &offset, &bytes);
                p = put_u32(p, w->frame_bytes[f]);
                p = put_u32(p, (uint32_t)bytes);
        }
        p = put_u32(p, (uint32_t)w->n_frames);
        *p++ = 0; /* descriptor: no checksums here, the frames have their own */
        (void)put_u32(p, SEEK_TABLE_FOOTER_MAGIC);
        *ret = w->seek_table;
        *ret_bytes = n;
        return 0;
}

const uint32_t *bundle_writer_frame_bytes(const BundleWriter *w) {
        return w->frame_bytes;
}

bool writer_mark_is_needed(const Plan *plan, uint64_t first_frame) {
        uint64_t offset, bytes;
        size_t member;
        if (first_frame >= plan_n_frames(plan))
                return false;
        plan_frame(plan, first_frame, &offset, &bytes);
        return writer_stream_is_inside(plan, offset, &member);
}

const WriterMark *bundle_writer_mark(const BundleWriter *w) {
        return &w->slots[(w->next_out - 1) % w->n_slots].mark;
}

int bundle_writer_restore(BundleWriter *w, size_t i, const MemberResult *result) {
        char *detail = result->detail ? strdup(result->detail) : NULL;
        if (result->detail && !detail)
                return -ENOMEM;
        free(w->stream.results[i].detail);
        w->stream.results[i] = *result;
        w->stream.results[i].detail = detail;
        return 0;
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
