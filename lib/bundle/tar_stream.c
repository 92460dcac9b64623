/* The bytes of a plan's tar stream. The members are read once, in order; each content byte passes
 * its member's digest and validator while it is in the CPU's cache, and its pages are released. A
 * member's header comes from the plan, so that its length is fixed; holes are not stored.
 *
 *   NEXT ──► OPEN ──► FINISHED (its padding) ──► NEXT
 *              │
 *              └ is_lost: nothing more can be read from it, and the rest is zeros (tolerant)
 *
 * A stream may start in the middle of a member: a WriterMark says how its digest stood there. What
 * is made of the bytes is left to writer.c. */
#include "lib/bundle/tar_stream.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/strbuf.h"
#include "lib/bundle/page_cache.h"

typedef enum MemberPhase { MEMBER_NEXT, MEMBER_OPEN, MEMBER_FINISHED } MemberPhase;

struct TarStream {
        const Plan *plan;
        TarStreamOptions options; /* mark: NULL */
        MemberResult *results;    /* one a member; owned */
        WriterMark start;         /* of the member in which it starts */
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
};

#define READ_BYTES                                                                                 \
        PAGE_CACHE_READ_BYTES /* small enough to be in the cache still when it is hashed */

void writer_mark_done(WriterMark *m) {
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

MemberResult *member_results_new(size_t n) {
        MemberResult *results = calloc(n + 1, sizeof *results);
        for (size_t i = 0; results && i < n; i++)
                results[i].verdict = VERDICT_OPAQUE; /* not validated */
        return results;
}

MemberResult *member_results_free(MemberResult *results, size_t n) {
        for (size_t i = 0; results && i < n; i++)
                free(results[i].detail);
        free(results);
        return NULL;
}

int tar_stream_save_mark(const TarStream *s, WriterMark *ret) {
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

static int stream_init(TarStream *s, const TarStreamOptions *options, uint64_t stream_offset) {
        size_t n = plan_n_members(s->plan), first = plan_member_at(s->plan, stream_offset);

        s->options.mark = NULL;
        s->failed_member = n;
        s->results = member_results_new(n);
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
                s->position -= plan_member(s->plan, first)->stream_offset;
        return 0;
}

int tar_stream_new(TarStream **ret, const Plan *plan, const TarStreamOptions *options,
                   uint64_t offset) {
        _cleanup_(tar_stream_freep) TarStream *s = calloc(1, sizeof *s);
        if (!s)
                return -ENOMEM;
        *s = (TarStream){ .plan = plan, .options = *options, .fd = -1 };
        int r = stream_init(s, options, offset);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(s);
        return 0;
}

TarStream *tar_stream_free(TarStream *s) {
        if (!s)
                return NULL;
        close_member(s);
        member_results_free(s->results, plan_n_members(s->plan));
        writer_mark_done(&s->start);
        free(s);
        return NULL;
}

static const PlanMember *stream_member(const TarStream *s) {
        return plan_member(s->plan, s->member);
}

_printf_(4, 5) static int fail_member(TarStream *s, int error, Verdict verdict, const char *fmt,
                                      ...) {
        va_list ap;

        if (!s->options.tolerant) {
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
                return fail_member(s, TAR_STREAM_E_CHANGED, VERDICT_SUSPECT,
                                   "another file has replaced it since it was planned");
        if ((uint64_t)st.st_size != m->bytes)
                return fail_member(s, TAR_STREAM_E_CHANGED,
                                   (uint64_t)st.st_size < m->bytes ? VERDICT_TRUNCATED
                                                                   : VERDICT_SUSPECT,
                                   "changed while it was read: %llu bytes became %llu",
                                   (unsigned long long)m->bytes, (unsigned long long)st.st_size);
        if (st.st_mtim.tv_sec != m->mtime_sec || (uint32_t)st.st_mtim.tv_nsec != m->mtime_nsec)
                return fail_member(s, TAR_STREAM_E_CHANGED, VERDICT_SUSPECT,
                                   "changed while it was read: it has a new modification time");
        return 0;
}

static int open_source(TarStream *s) {
        const PlanMember *m = stream_member(s);

        s->fd = s->options.open_member(s->member, m, s->options.userdata);
        if (s->fd < 0) {
                s->is_lost = true;
                errno = -s->fd;
                return fail_member(s, s->fd, VERDICT_TRUNCATED,
                                   "cannot be opened (%m): all of it is zeros here");
        }
        page_cache_open(&s->pages, s->fd, m->bytes);
        return check_unchanged(s);
}

uint64_t tar_stream_content_at(const PlanMember *m, uint64_t stored) {
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
        s->content = tar_stream_content_at(m, rest);
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
        if (s->options.before_read)
                s->options.before_read(p->n_max, s->options.userdata);
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
                return fail_member(s, TAR_STREAM_E_CHANGED, VERDICT_TRUNCATED,
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
        if (!s->options.without_results) {
                r = validator_new(&s->validator, &(ValidatorOptions){ .source = s->options.source,
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

int tar_stream_read(TarStream *s, void *data, size_t n, bool *ret_zero) {
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

/* ---- what is known ---- */

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

const MemberResult *tar_stream_result(const TarStream *s, size_t i) {
        return &s->results[i];
}

void tar_stream_restore_results(TarStream *s, MemberResult *results) {
        member_results_free(s->results, plan_n_members(s->plan));
        s->results = results;
}

size_t tar_stream_failed_member(const TarStream *s) {
        return s->failed_member;
}

uint64_t tar_stream_bytes_read(const TarStream *s) {
        return s->bytes_read;
}
