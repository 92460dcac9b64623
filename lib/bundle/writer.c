/* Frames of a tar stream. The stream is read into the slots of a ring; the pool compresses the
 * slots, and frames come out in order. A frame of zeros is compressed once. The seek table, which
 * comes after the last frame, is made here too. Cutting frames into parts is left to packer.c. */
#include "lib/bundle/writer.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "lib/base/strbuf.h"
#include "lib/bundle/frame.h"

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
        TarStream *stream; /* owned */
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

static int new_stream(BundleWriter *w, uint64_t offset) {
        const BundleWriterOptions *o = &w->options;
        return tar_stream_new(&w->stream, w->plan,
                              &(TarStreamOptions){ .tolerant = o->tolerant,
                                                   .without_results = o->without_results,
                                                   .source = o->source,
                                                   .mark = o->mark,
                                                   .open_member = o->open_member,
                                                   .before_read = o->before_read,
                                                   .userdata = o->userdata },
                              offset);
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
        r = new_stream(w, offset);
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
        tar_stream_free(w->stream);
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
        int r = tar_stream_read(w->stream, slot->input, bytes, &slot->is_zero);
        if (r == 0)
                r = tar_stream_save_mark(w->stream, &slot->mark);
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

const WriterMark *bundle_writer_last_mark(const BundleWriter *w) {
        return &w->slots[(w->next_out - 1) % w->n_slots].mark;
}

const MemberResult *bundle_writer_member(const BundleWriter *w, size_t i) {
        return tar_stream_result(w->stream, i);
}

size_t bundle_writer_failed_member(const BundleWriter *w) {
        return tar_stream_failed_member(w->stream);
}

uint64_t bundle_writer_bytes_read(const BundleWriter *w) {
        return tar_stream_bytes_read(w->stream);
}

const uint32_t *bundle_writer_frame_sizes(const BundleWriter *w) {
        return w->frame_bytes;
}

void bundle_writer_restore_results(BundleWriter *w, MemberResult *results) {
        tar_stream_restore_results(w->stream, results);
}
