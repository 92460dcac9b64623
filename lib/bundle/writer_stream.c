/* One pass over the members. Nothing is buffered here: data goes from the file into the caller's memory, and is
 * looked at there while it is in the CPU's cache. */
#include "lib/bundle/writer_stream.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "lib/base/strbuf.h"

#define READ_BYTES (256 * KIB) /* small enough to be in the cache still when it is hashed */
int writer_stream_init(WriterStream *s, const Plan *plan, const BundleWriterOptions *options,
                       uint64_t stream_offset) {
        size_t n = plan_n_members(plan), first = plan_member_at(plan, stream_offset);

        *s = (WriterStream){ .plan = plan, .options = options, .fd = -1, .failed_member = n };
        s->results = calloc(MAX(n, (size_t)1), sizeof *s->results);
        if (!s->results)
                return -ENOMEM;
        if (options->mark) {
                int r = writer_mark_copy(&s->start, options->mark);
                if (r < 0)
                        return r;
        }
        for (size_t i = 0; i < n; i++)
                s->results[i].verdict = VERDICT_OPAQUE; /* not looked at */
        s->member = first;
        s->position = stream_offset;
        if (first < n)
                s->position -= plan_member(plan, first)->stream_offset;
        return 0;
}

bool writer_stream_is_inside(const Plan *plan, uint64_t stream_offset, size_t *ret) {
        const size_t i = plan_member_at(plan, stream_offset);
        if (i == plan_n_members(plan))
                return false;
        const PlanMember *m = plan_member(plan, i);
        const uint64_t position = stream_offset - m->stream_offset;
        *ret = i;
        return position > m->header_bytes && position < m->header_bytes + plan_stored_bytes(m);
}

void writer_mark_done(WriterMark *m) {
        free(m->fault_detail);
        *m = (WriterMark){ 0 };
}

int writer_mark_copy(WriterMark *to, const WriterMark *from) {
        char *detail = from->fault_detail ? strdup(from->fault_detail) : NULL;
        if (from->fault_detail && !detail)
                return -ENOMEM;
        free(to->fault_detail);
        *to = *from;
        to->fault_detail = detail;
        return 0;
}

int writer_stream_mark(const WriterStream *s, WriterMark *ret) {
        if (s->state != WRITER_MEMBER_OPEN)
                return 0;
        return writer_mark_copy(ret, &(WriterMark){ .digest = s->digest,
                                                    .is_lost = s->is_lost,
                                                    .fault = s->fault,
                                                    .fault_detail = s->fault_detail });
}

static void close_member(WriterStream *s) {
        if (s->fd >= 0)
                (void)close(s->fd); /* opened for reading */
        s->fd = -1;
        free(s->header);
        s->header = NULL;
        s->validator = validator_free(s->validator);
        free(s->fault_detail);
        s->fault_detail = NULL;
}

void writer_stream_done(WriterStream *s) {
        close_member(s);
        for (size_t i = 0; s->results && i < plan_n_members(s->plan); i++)
                free(s->results[i].detail);
        free(s->results);
        s->results = NULL;
        writer_mark_done(&s->start);
}

static const PlanMember *current(const WriterStream *s) {
        return plan_member(s->plan, s->member);
}

/* What is wrong with the member ends the bundle, or with `tolerant` is written down: the first fault is told.
 * @return 0 go on, or what to end with */
static int fault(WriterStream *s, int error, Verdict verdict, const char *fmt, ...) _printf_(4, 5);
static int fault(WriterStream *s, int error, Verdict verdict, const char *fmt, ...) {
        va_list ap;

        if (!s->options->tolerant) {
                s->failed_member = s->member;
                return error;
        }
        if (s->fault_detail)
                return 0;
        s->fault = verdict;
        va_start(ap, fmt);
        int r = vasprintf(&s->fault_detail, fmt, ap);
        va_end(ap);
        if (r >= 0)
                return 0;
        s->fault_detail = NULL;
        return -ENOMEM;
}

/* Whether the open file is what the plan says. */
static int check_unchanged(WriterStream *s) {
        const PlanMember *m = current(s);
        struct stat st;

        if (fstat(s->fd, &st) < 0)
                return fault(s, -errno, VERDICT_SUSPECT, "its status cannot be read (%m)");
        if (st.st_dev != m->dev || st.st_ino != m->ino)
                return fault(s, WRITER_E_CHANGED, VERDICT_SUSPECT,
                             "another file has taken its place since it was planned");
        if ((uint64_t)st.st_size != m->bytes)
                return fault(s, WRITER_E_CHANGED,
                             (uint64_t)st.st_size < m->bytes ? VERDICT_TRUNCATED : VERDICT_SUSPECT,
                             "changed while it was read: %llu bytes became %llu",
                             (unsigned long long)m->bytes, (unsigned long long)st.st_size);
        if (st.st_mtim.tv_sec != m->mtime_sec || (uint32_t)st.st_mtim.tv_nsec != m->mtime_nsec)
                return fault(s, WRITER_E_CHANGED, VERDICT_SUSPECT,
                             "changed while it was read: it has a new modification time");
        return 0;
}

static int open_source(WriterStream *s) {
        const PlanMember *m = current(s);

        s->fd = s->options->open_member(s->member, m, s->options->userdata);
        s->pages = (Pages){ .fd = s->fd, .wants_ahead = s->fd >= 0 && m->bytes >= READ_BYTES };
        if (s->fd < 0) {
                s->is_lost = true;
                errno = -s->fd;
                return fault(s, s->fd, VERDICT_TRUNCATED,
                             "cannot be opened (%m): all of it is zeros here");
        }
        return check_unchanged(s);
}

/* Finds the place in the extents and in the content that belongs to s->position: where a bundle is gone on with. */
static void seek_extent(WriterStream *s) {
        const PlanMember *m = current(s);

        s->extent = 0;
        s->extent_done = 0;
        s->content = 0;
        if (s->position <= m->header_bytes)
                return;
        uint64_t rest = s->position - m->header_bytes;
        s->content = plan_content_at(m, rest);
        if (m->is_sparse)
                for (; s->extent < m->n_extents && rest >= m->extents[s->extent].bytes; s->extent++)
                        rest -= m->extents[s->extent].bytes;
        s->extent_done = rest;
}

static void feed_zeros(WriterStream *s, uint64_t n) {
        s->content += n;
        if (n == 0 || !s->validator)
                return;
        member_digest_zeros(&s->digest, n);
        validator_feed_zeros(s->validator, n);
}

/* @return whether it is all zeros */
static bool validate(WriterStream *s, const void *data, size_t n, bool zero) {
        if (zero)
                validator_feed_zeros(s->validator, n);
        else
                validator_feed(s->validator, data, n);
        return zero;
}

/* @return whether it is all zeros */
static bool feed(WriterStream *s, const void *data, size_t n) {
        s->content += n;
        if (!s->validator)
                return member_digest_is_zero(data, n);
        return validate(s, data, n, member_digest_update(&s->digest, data, n));
}

/* Room for some bytes, and what came of them. */
typedef struct Piece {
        void *data;
        size_t n_max, n;
        bool is_zero; /* is cleared by anything else than zeros */
} Piece;

/* Reads content at an offset. Nothing comes when nothing more will come (s->is_lost). */
static int read_source(WriterStream *s, Piece *p, uint64_t offset) {
        ssize_t got;

        p->n = 0;
        if (s->is_lost)
                return 0;
        if (s->options->before_read)
                s->options->before_read(p->n_max, s->options->userdata);
        do
                got = pread(s->fd, p->data, p->n_max, (off_t)offset);
        while (got < 0 && errno == EINTR);
        if (got > 0) {
                p->n = (size_t)got;
                s->bytes_read += p->n;
                pages_read_up_to(&s->pages, offset + p->n);
                return 0;
        }
        s->is_lost = true;
        s->pages.wants_ahead = false;
        if (got == 0)
                return fault(s, WRITER_E_CHANGED, VERDICT_TRUNCATED,
                             "shrank while it was read: from byte %llu on it is zeros here",
                             (unsigned long long)offset);
        return fault(s, -errno, VERDICT_TRUNCATED,
                     "cannot be read from byte %llu on (%m): the rest is zeros here",
                     (unsigned long long)offset);
}

/* Shows the validator the next of *n bytes of content at an offset again, if it needs to see them. @param n  becomes how many it was
 * @param buf  READ_BYTES */
static int revalidate(WriterStream *s, void *buf, uint64_t offset, uint64_t *n) {
        const uint64_t unneeded = MIN(*n, validator_unneeded(s->validator));
        Piece p = { .data = buf, .n_max = (size_t)MIN(*n, READ_BYTES) };

        if (unneeded == 0) {
                int r = read_source(s, &p, offset);
                if (r != 0)
                        return r;
        }
        if (p.n > 0)
                (void)validate(s, buf, p.n, member_digest_is_zero(buf, p.n));
        *n = p.n > 0 ? p.n : unneeded > 0 ? unneeded : *n;
        if (p.n == 0)
                validator_feed_zeros(s->validator, *n);
        return 0;
}

/* Bytes that were read together when the stream was made, from an offset of it on: the validator shall be told of the same holes. */
static uint64_t piece_at(const WriterStream *s, uint64_t stream_offset) {
        uint64_t offset, bytes;
        plan_frame(s->plan, plan_frame_at(s->plan, stream_offset), &offset, &bytes);
        return MIN(READ_BYTES, offset + bytes - stream_offset);
}

/* A validator's state is not written down: it sees the content again, up to where the bundle is gone on with. */
static int revalidate_content(WriterStream *s) {
        const PlanMember *m = current(s);
        const PlanExtent whole = { .offset = 0, .bytes = m->bytes };
        const PlanExtent *e = m->is_sparse ? m->extents : &whole;
        uint64_t at = 0, stream_offset = m->stream_offset + m->header_bytes;
        _cleanup_free_ void *buf = malloc(READ_BYTES);
        if (!buf)
                return -ENOMEM;

        for (; at < s->content; e++) {
                const uint64_t end = MIN(e->offset + e->bytes, s->content);
                validator_feed_zeros(s->validator, e->offset - at);
                for (at = e->offset; at < end;) {
                        uint64_t n = MIN(end - at, piece_at(s, stream_offset));
                        if (validator_unneeded(s->validator) == 0)
                                pages_ask(&s->pages, at, end);
                        int r = revalidate(s, buf, at, &n);
                        if (r != 0)
                                return r;
                        at += n;
                        stream_offset += n;
                }
        }
        if (s->is_lost) { /* of the bytes in the bundle nothing is lost yet: what follows tells its own fault */
                s->is_lost = false;
                free(s->fault_detail);
                s->fault_detail = NULL;
        }
        return 0;
}

/* Opens the member in whose data the bundle is gone on with. */
static int go_on(WriterStream *s) {
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

static int open_member(WriterStream *s) {
        const PlanMember *m = current(s);
        size_t header_bytes;

        s->state = WRITER_MEMBER_OPEN;
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
                r = validator_new(&s->validator, &(ValidatorOrder){ .source = s->options->source,
                                                                    .kind = m->kind,
                                                                    .name = m->path,
                                                                    .size_bytes = m->bytes });
                if (r < 0)
                        return r;
        }
        return s->position > m->header_bytes ? go_on(s) : open_source(s);
}

static void make_zeros(Piece *p) {
        memset(p->data, 0, p->n_max);
        p->n = p->n_max;
}

/* Data of the current extent. */
static int read_extent(WriterStream *s, Piece *p) {
        const PlanMember *m = current(s);
        const PlanExtent whole = { .offset = 0, .bytes = m->bytes };
        const PlanExtent *e = m->is_sparse ? &m->extents[s->extent] : &whole;
        uint64_t offset = e->offset + s->extent_done;

        p->n_max = MIN(p->n_max, READ_BYTES);
        p->n_max = MIN((uint64_t)p->n_max, e->bytes - s->extent_done);
        feed_zeros(s, offset - s->content); /* the hole before */
        pages_ask(&s->pages, offset, e->offset + e->bytes);
        int r = read_source(s, p, offset);
        if (r != 0)
                return r;
        if (p->n > 0)
                p->is_zero &= feed(s, p->data, p->n);
        else {
                make_zeros(p);
                feed_zeros(s, p->n);
        }
        s->extent_done += p->n;
        if (s->extent_done == e->bytes && m->is_sparse) {
                s->extent++;
                s->extent_done = 0;
        }
        return 0;
}

/* All data was read: digest, verdict, and whether it is still the file of the plan. */
static int finish_member(WriterStream *s) {
        const PlanMember *m = current(s);
        MemberResult *result = &s->results[s->member];
        int r = 0;

        if (s->fd >= 0) {
                r = check_unchanged(s);
                pages_give_back(&s->pages,
                                m->bytes + (PLAN_EXTENT_ALIGN - 1)); /* the last page too */
        }
        if (r != 0)
                return r;
        if (s->validator) {
                feed_zeros(s, m->bytes - s->content);
                member_digest_final(&s->digest, result->sha256, &result->is_sparse_digest);
                result->verdict = validator_finish(s->validator, &result->detail);
        }
        if (s->fault_detail) {
                free(result->detail);
                result->detail = TAKE_PTR(s->fault_detail);
                result->verdict = s->fault;
        }
        close_member(s);
        s->state = WRITER_MEMBER_FINISHED;
        return 0;
}

/* The next bytes of the open member. */
static int read_member(WriterStream *s, Piece *p) {
        const PlanMember *m = current(s);

        if (s->position < m->header_bytes) {
                p->n = (size_t)MIN((uint64_t)p->n_max, m->header_bytes - s->position);
                memcpy(p->data, (const char *)s->header + s->position, p->n);
                p->is_zero =
                        false; /* it has a magic number; and if a piece of it had not, nothing is lost */
                return 0;
        }
        return read_extent(s, p);
}

static uint64_t padding_of(uint64_t bytes) {
        return (PLAN_TAR_BLOCK - bytes % PLAN_TAR_BLOCK) % PLAN_TAR_BLOCK;
}

static int begin_member(WriterStream *s) {
        const PlanMember *m = current(s);

        s->data_end = m->header_bytes + plan_stored_bytes(m);
        if (s->position < s->data_end)
                return open_member(s);
        s->state = WRITER_MEMBER_FINISHED; /* gone on with in its padding */
        return 0;
}

/* One step: some bytes (or none) of a header, of data, of padding or of the end. */
static int step(WriterStream *s, Piece *p) {
        p->n = 0;
        if (s->member == plan_n_members(s->plan)) {
                make_zeros(p);
                return 0;
        }

        switch (s->state) {
        case WRITER_MEMBER_NEXT:
                return begin_member(s);
        case WRITER_MEMBER_OPEN:
                p->n_max = (size_t)MIN((uint64_t)p->n_max, s->data_end - s->position);
                return read_member(s, p);
        case WRITER_MEMBER_FINISHED:
                break;
        }
        uint64_t left = s->data_end + padding_of(s->data_end) - s->position;
        if (left > 0) {
                p->n_max = (size_t)MIN((uint64_t)p->n_max, left);
                make_zeros(p);
                return 0;
        }
        s->member++;
        s->position = 0;
        s->state = WRITER_MEMBER_NEXT;
        return 0;
}

int writer_stream_read(WriterStream *s, void *data, size_t n, bool *ret_zero) {
        Piece p = { .data = data, .is_zero = true };

        while (n > 0) {
                p.n_max = n;
                int r = step(s, &p);
                if (r != 0)
                        return r;
                s->position += p.n;
                p.data = (char *)p.data + p.n;
                n -= p.n;
                if (s->state == WRITER_MEMBER_OPEN && s->position == s->data_end)
                        r = finish_member(s);
                if (r != 0)
                        return r;
        }
        *ret_zero = p.is_zero;
        return 0;
}
