/* A core that can be read only once: compressed, or from a pipe.
 *
 * The headers and notes come first, and tell which ranges of the core a report will need. While the
 * rest passes, these ranges are kept in memory, the stack of the crashed thread before those of the
 * others, within fixed limits; pages that look like a message of abort(3) are kept, too. Afterwards
 * the stream is read like a file of which only those ranges exist. What has ended the stream early
 * is kept as a sentence. */
#include "collectors/crash/core/core_stream.h"

#include <elf.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/array.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/bundle/frame.h"

#define INPUT_BYTES (256 * KIB)
#define STEP_BYTES (256 * KIB) /* of pages */
#define HEAD_BYTES_MAX (32 * MIB)
#define CRASHED_STACK_BYTES_MAX (8 * MIB)
#define STACKS_BYTES_MAX (24 * MIB) /* of the other threads together */
#define STACK_BYTES_MAX MIB         /* … of one */
#define LIBRARY_DATA_BYTES (128 * KIB)
enum {
        PAGE = 4096,
        RED_ZONE = 128,
        FILES_MAX = 4096,
        MESSAGES_MAX = 64,
        MESSAGE_TEXT = 4, /* behind the size of its mapping: glibc's struct abort_msg_s */
        MESSAGE_BYTES_MIN = 4,
};

typedef struct Range { /* of the core, by offset */
        uint64_t offset, n;
        uint64_t at;     /* in `kept` */
        uint64_t n_read; /* of it, so far */
} Range;

typedef struct StreamMessage {
        uint64_t offset;
        uint8_t page[PAGE];
} StreamMessage;

struct CoreStream {
        int fd;
        bool is_pipe;
        uint64_t input_offset, end_usec;
        FrameDecompressor *zstd; /* NULL: it is not compressed */
        bool is_within_frame;
        uint8_t *input;
        size_t n_input, input_at;
        uint64_t bytes;  /* decompressed so far */
        const char *end; /* why there are no more, "" = that is all; NULL = there may be */
        uint8_t *head;
        size_t n_head;
        Range *ranges; /* by offset, without overlaps */
        size_t n_ranges, next_range;
        uint8_t *kept;
        StreamMessage *messages; /* pages that look like one of abort(3) */
        size_t n_messages;
};

static const uint8_t zstd_magic[] = { 0x28, 0xb5, 0x2f, 0xfd };

bool core_stream_is_one(int fd) {
        uint8_t magic[sizeof zstd_magic];
        int r = fs_pread_all(fd, magic, sizeof magic, 0);
        return r == -ESPIPE || (r == 0 && memcmp(magic, zstd_magic, sizeof magic) == 0);
}

/* ---- its bytes, one after the other ---- */

/* @return how many there are; 0 and s->end: no more */
static size_t read_input(CoreStream *s, void *data, size_t n) {
        ssize_t k = s->is_pipe ? read(s->fd, data, n) : fs_pread(s->fd, data, n, s->input_offset);
        if (k < 0 && s->is_pipe && errno == EINTR)
                k = read(s->fd, data, n);
        if (k < 0)
                s->end = "it cannot be read to its end";
        else if (k == 0)
                s->end = s->is_within_frame ? "the compressed file is cut" : "";
        else if (clock_boottime_usec() > s->end_usec)
                s->end = "reading all of it takes too long";
        s->input_offset += k > 0 ? (size_t)k : 0;
        return k > 0 ? (size_t)k : 0;
}

static void fill_input(CoreStream *s) {
        s->input_at = 0;
        s->n_input = read_input(s, s->input, INPUT_BYTES);
}

static size_t consume_input(CoreStream *s, uint8_t *data, size_t n) {
        if (s->input_at == s->n_input)
                return read_input(s, data, n);
        n = MIN(n, s->n_input - s->input_at);
        memcpy(data, s->input + s->input_at, n);
        s->input_at += n;
        return n;
}

static size_t decompress(CoreStream *s, uint8_t *data, size_t n) {
        FrameDecompression step = { .in = s->input + s->input_at,
                                    .n_in = s->n_input - s->input_at,
                                    .out = data,
                                    .n_out = n };
        frame_decompress_step(s->zstd, &step);
        s->input_at += step.n_read;
        if (step.n_read > 0 || step.n_written > 0)
                s->is_within_frame = !step.is_complete;
        if (step.damage)
                s->end = step.damage;
        else if (step.n_written == 0 && s->input_at == s->n_input)
                fill_input(s);
        return step.n_written;
}

/* @return how many bytes there are, fewer than n only at its end */
static size_t read_raw(CoreStream *s, uint8_t *data, size_t n) {
        size_t n_read = 0;
        while (n_read < n && !s->end)
                n_read += s->zstd ? decompress(s, data + n_read, n - n_read)
                                  : consume_input(s, data + n_read, n - n_read);
        s->bytes += n_read;
        return n_read;
}

/* ---- headers and notes ---- */

static int extend_head(CoreStream *s, uint64_t end) {
        size_t n = (size_t)(MIN(end, HEAD_BYTES_MAX) + PAGE - 1) / PAGE * PAGE;
        if (n <= s->n_head || s->end)
                return 0;
        uint8_t *head = realloc(s->head, n);
        if (!head)
                return -ENOMEM;
        s->head = head;
        s->n_head += read_raw(s, head + s->n_head, n - s->n_head);
        return 0;
}

/* As CoreRead. What lies behind the limit is not there. */
static ssize_t read_head(void *data, size_t n, uint64_t offset, void *userdata) {
        CoreStream *s = userdata;
        if (offset >= HEAD_BYTES_MAX)
                return 0;
        int r = extend_head(s, offset + n);
        if (r < 0)
                return r;
        n = offset < s->n_head ? MIN(n, s->n_head - offset) : 0;
        if (n > 0)
                memcpy(data, s->head + offset, n);
        return (ssize_t)n;
}

/* ---- what a report reads ---- */

/* Whole pages from an address on, as far as what is mapped has no gap. */
static int add_range(CoreStream *s, const CoreNotes *c, uint64_t address, uint64_t n) {
        uint64_t end;
        address &= ~(uint64_t)(PAGE - 1);
        if (__builtin_add_overflow(address, n, &end))
                return 0;
        for (const CoreSegment *g; address < end && (g = core_notes_segment(c, address));) {
                uint64_t at = address - g->address, take = MIN(end - address, g->memory_bytes - at),
                         offset;
                address += take;
                if (at >= g->file_bytes || __builtin_add_overflow(g->offset, at, &offset) ||
                    offset > INT64_MAX)
                        continue;
                if (array_grow(&s->ranges, s->n_ranges, sizeof *s->ranges) < 0)
                        return -ENOMEM;
                s->ranges[s->n_ranges++] =
                        (Range){ .offset = offset, .n = MIN(take, g->file_bytes - at) };
        }
        return 0;
}

/* Where a thread's stack is in use from; when that of the crashed one has overflowed, its
 * beginning. */
static uint64_t find_stack(const CoreNotes *c, const CoreThread *t) {
        uint64_t sp = core_notes_stack_pointer(c, t);
        sp -= MIN(sp, (uint64_t)RED_ZONE);
        const CoreSegment *g = core_notes_segment(c, sp);
        for (size_t i = 0; t == c->threads && i < c->n_segments && (!g || g->flags == 0); i++)
                if (c->segments[i].address > sp)
                        g = &c->segments[i];
        return g ? MAX(sp, g->address) : sp;
}

static uint64_t n_stack_bytes(const CoreNotes *c, uint64_t sp, uint64_t max_bytes) {
        const CoreSegment *g = core_notes_segment(c, sp);
        return g ? MIN(g->address + g->memory_bytes - sp + PAGE, max_bytes) : 0;
}

static int add_stacks(CoreStream *s, const CoreNotes *c) {
        _cleanup_free_ uint64_t *stacks = calloc(c->n_threads + 1, sizeof *stacks);
        uint64_t share = 2 * STACK_BYTES_MAX, sum;
        if (!stacks)
                return -ENOMEM;
        for (size_t i = 0; i < c->n_threads; i++)
                stacks[i] = find_stack(c, &c->threads[i]);
        do {
                share /= 2;
                sum = 0;
                for (size_t i = 1; i < c->n_threads; i++)
                        sum += n_stack_bytes(c, stacks[i], share);
        } while (sum > STACKS_BYTES_MAX && share > PAGE);
        for (size_t i = 0; i < c->n_threads; i++) {
                uint64_t max_bytes = i == 0 ? CRASHED_STACK_BYTES_MAX : share;
                int r = add_range(s, c, stacks[i], n_stack_bytes(c, stacks[i], max_bytes));
                if (r < 0)
                        return r;
        }
        return 0;
}

/* The first page of each has its headers and its build id, and the data of the C library the
 * pointer to what it said before abort(3). */
static int add_files(CoreStream *s, const CoreNotes *c) {
        int r = 0;
        for (size_t i = 0, n = 0; i < c->n_mappings && n < FILES_MAX && r == 0; i++) {
                const CoreMapping *m = &c->mappings[i];
                const CoreSegment *g = core_notes_segment(c, m->start);
                if (m->file_offset == 0 && n++ < FILES_MAX)
                        r = add_range(s, c, m->start, PAGE);
                else if (g && (g->flags & PF_W) && strncmp(path_name(m->path), "libc.so.6", 9) == 0)
                        r = add_range(s, c, m->start, LIBRARY_DATA_BYTES);
        }
        return r;
}

static int add_vdso(CoreStream *s, const CoreNotes *c) {
        uint64_t start = core_notes_auxv(c, AT_SYSINFO_EHDR);
        return start ? add_range(s, c, start, LIBRARY_DATA_BYTES) : 0;
}

/* Of compiled functions that are in no file. */
static int add_code(CoreStream *s, const CoreNotes *c) {
        return c->n_threads > 0
                       ? add_range(s, c, core_notes_pc(c, &c->threads[0]), (uint64_t)2 * PAGE)
                       : 0;
}

/* Sorts the ranges, joins those that overlap, and allocates space for them. */
static int plan_ranges(CoreStream *s, const CoreNotes *c) {
        uint64_t bytes = 0;
        size_t n = 0;
        int r = add_stacks(s, c);
        if (r == 0)
                r = add_files(s, c);
        if (r == 0)
                r = add_vdso(s, c);
        if (r == 0)
                r = add_code(s, c);
        if (r < 0)
                return r;
        if (s->n_ranges > 0)
                qsort(s->ranges, s->n_ranges, sizeof *s->ranges, array_compare_keys);
        for (size_t i = 0; i < s->n_ranges; i++) {
                Range *last = n > 0 ? &s->ranges[n - 1] : NULL, *next = &s->ranges[i];
                if (last && next->offset <= last->offset + last->n)
                        last->n = MAX(last->n, next->offset + next->n - last->offset);
                else
                        s->ranges[n++] = *next;
        }
        s->n_ranges = n;
        for (size_t i = 0; i < n; i++) {
                s->ranges[i].at = bytes;
                bytes += s->ranges[i].n;
        }
        s->kept = malloc(bytes + 1);
        return s->kept ? 0 : -ENOMEM;
}

/* ---- keeping it ---- */

static void keep_ranges(CoreStream *s, const uint8_t *data, uint64_t begin, size_t n) {
        uint64_t end = begin + n;
        for (; s->next_range < s->n_ranges; s->next_range++) {
                Range *r = &s->ranges[s->next_range];
                uint64_t from = MAX(r->offset, begin), to = MIN(r->offset + r->n, end);
                if (from < to) {
                        memcpy(s->kept + r->at + (from - r->offset), data + (from - begin),
                               to - from);
                        r->n_read = to - r->offset;
                }
                if (r->offset + r->n > end)
                        return;
        }
}

/* The size of its mapping, then the text. The pointer to it is found later. */
static bool is_message(const uint8_t *page) {
        uint32_t bytes;
        size_t n = MESSAGE_TEXT;
        memcpy(&bytes, page, sizeof bytes);
        if (bytes == 0 || bytes % PAGE != 0 || bytes > INPUT_BYTES)
                return false;
        while (n < PAGE && ((page[n] >= ' ' && page[n] < 0x7f) || page[n] == '\n'))
                n++;
        return n >= MESSAGE_TEXT + MESSAGE_BYTES_MIN && (n == PAGE || page[n] == '\0');
}

static void keep_messages(CoreStream *s, const uint8_t *data, uint64_t begin, size_t n) {
        for (size_t at = 0; at + PAGE <= n && s->n_messages < MESSAGES_MAX; at += PAGE)
                if (is_message(data + at)) {
                        StreamMessage *m = &s->messages[s->n_messages++];
                        m->offset = begin + at;
                        memcpy(m->page, data + at, PAGE);
                }
}

static int read_rest(CoreStream *s) {
        _cleanup_free_ uint8_t *step = malloc(STEP_BYTES);
        s->messages = calloc(MESSAGES_MAX, sizeof *s->messages);
        if (!step || !s->messages)
                return -ENOMEM;
        keep_ranges(s, s->head, 0, s->n_head);
        while (!s->end) {
                uint64_t begin = s->bytes;
                size_t n = read_raw(s, step, STEP_BYTES);
                keep_ranges(s, step, begin, n);
                keep_messages(s, step, begin, n);
        }
        return 0;
}

/* ---- all of it ---- */

static int read_core(CoreStream *s) {
        CoreNotes notes = { 0 };
        fill_input(s);
        if (s->n_input >= sizeof zstd_magic &&
            memcmp(s->input, zstd_magic, sizeof zstd_magic) == 0) {
                int r = frame_decompressor_new(&s->zstd);
                if (r < 0)
                        return r;
        }
        int r = core_notes_read(&notes, read_head, s);
        if (r == 0)
                r = plan_ranges(s, &notes);
        core_notes_done(&notes);
        return r == 0 ? read_rest(s) : r;
}

int core_stream_new(CoreStream **ret, int fd, uint64_t end_usec) {
        _cleanup_(core_stream_freep) CoreStream *s = calloc(1, sizeof *s);
        if (!s)
                return -ENOMEM;
        *s = (CoreStream){ .fd = fd,
                           .is_pipe = lseek(fd, 0, SEEK_CUR) < 0,
                           .end_usec = end_usec,
                           .input = malloc(INPUT_BYTES) };
        int r = s->input ? read_core(s) : -ENOMEM;
        s->zstd = frame_decompressor_free(s->zstd); /* megabytes that are not needed any more */
        if (r >= 0)
                *ret = TAKE_PTR(s);
        return r;
}

CoreStream *core_stream_free(CoreStream *s) {
        if (!s)
                return NULL;
        frame_decompressor_free(s->zstd);
        free(s->input);
        free(s->head);
        free(s->ranges);
        free(s->kept);
        free(s->messages);
        free(s);
        return NULL;
}

uint64_t core_stream_bytes(const CoreStream *s) {
        return s->bytes;
}

const char *core_stream_fault(const CoreStream *s) {
        return s->end && *s->end ? s->end : NULL;
}

/* @return what was kept from an offset on, and how much of it */
static const uint8_t *find_kept(const CoreStream *s, uint64_t offset, uint64_t *ret_n) {
        if (offset < s->n_head) {
                *ret_n = s->n_head - offset;
                return s->head + offset;
        }
        size_t low = array_count_up_to(s->ranges, s->n_ranges, sizeof *s->ranges, offset);
        const Range *r = low > 0 ? &s->ranges[low - 1] : NULL;
        if (r && offset - r->offset < r->n_read) {
                *ret_n = r->n_read - (offset - r->offset);
                return s->kept + r->at + (offset - r->offset);
        }
        for (size_t i = 0; i < s->n_messages; i++)
                if (offset - s->messages[i].offset < PAGE) {
                        *ret_n = PAGE - (offset - s->messages[i].offset);
                        return s->messages[i].page + (offset - s->messages[i].offset);
                }
        return NULL;
}

ssize_t core_stream_read(const CoreStream *s, void *data, size_t n, uint64_t offset) {
        size_t n_read = 0;
        while (n_read < n) {
                uint64_t k;
                const uint8_t *from = find_kept(s, offset + n_read, &k);
                if (!from)
                        break;
                k = MIN(k, (uint64_t)(n - n_read));
                memcpy((uint8_t *)data + n_read, from, k);
                n_read += k;
        }
        return (ssize_t)n_read;
}
