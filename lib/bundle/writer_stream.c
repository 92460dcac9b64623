/* One pass over the members. Nothing is buffered here: data goes from the file into the caller's memory, and is
 * looked at there while it is in the CPU's cache. */
#include "lib/bundle/writer_stream.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <string.h>
#include <sys/ioctl.h>

#include "lib/base/path.h"
#include "lib/base/strbuf.h"

#define READ_BYTES (256 * KIB) /* small enough to be in the cache still when it is hashed */
#define KEEP_BYTES                                                                                 \
        (4 *                                                                                       \
         MIB) /* of the page cache; a multiple of large folios, which are dropped whole or not at all */
#define AHEAD_BYTES (4 * MIB) /* asked for before it is read */
#define AHEAD_STEP                                                                                 \
        (128 * KIB) /* the kernel cuts a longer request where a device reads ahead as little */
#define AHEAD_MIN READ_BYTES /* smaller members are read by the first readahead anyway */

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

        s->kept = 0;
        s->asked = 0;
        s->fd = s->options->open_member(s->member, m, s->options->userdata);
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

/* Whether a range was written so lately that the file system has given it no place yet. Such pages cannot be dropped; to
 * ask for it would only make us write the file to disk. Where nothing can be learned: no. */
static bool is_unwritten(int fd, uint64_t offset, uint64_t bytes) {
        enum { EXTENTS = 8 };
        union {
                struct fiemap map;
                uint8_t room[sizeof(struct fiemap) + EXTENTS * sizeof(struct fiemap_extent)];
        } q = { .map = { .fm_start = offset, .fm_length = bytes, .fm_extent_count = EXTENTS } };

        if (ioctl(fd, FS_IOC_FIEMAP, &q.map) < 0)
                return false;
        for (uint32_t i = 0; i < MIN(q.map.fm_mapped_extents, (uint32_t)EXTENTS); i++)
                if (q.map.fm_extents[i].fe_flags & FIEMAP_EXTENT_DELALLOC)
                        return true;
        return false;
}

/* Drops what was read from the page cache, up to an offset. */
static void give_pages_back(WriterStream *s, uint64_t offset) {
        uint64_t bytes = offset - s->kept;

        if (bytes > 0 && !is_unwritten(s->fd, s->kept, bytes))
                (void)posix_fadvise(s->fd, (off_t)s->kept, (off_t)bytes, POSIX_FADV_DONTNEED);
        s->kept = offset;
}

/* Asks for what comes next, up to the end of the data that lies there in one piece. The kernel reads ahead by itself only where a
 * page is missing, as much as the device says, which may be many MiB; what is asked for here is not missing. Where such
 * advice is not taken (Lustre, whose client reads ahead on its own), nothing changes. */
static void read_ahead(WriterStream *s, uint64_t offset, uint64_t end) {
        if (s->is_lost || current(s)->bytes < AHEAD_MIN)
                return;
        s->asked = MAX(s->asked, offset);
        if (s->asked - offset > AHEAD_BYTES / 2)
                return;
        for (end = MIN(end, offset + AHEAD_BYTES); s->asked < end;) {
                const uint64_t n = MIN(end - s->asked, (uint64_t)AHEAD_STEP);
                (void)posix_fadvise(s->fd, (off_t)s->asked, (off_t)n,
                                    POSIX_FADV_WILLNEED); /* advice */
                s->asked += n;
        }
}

/* Reads at most n bytes of content at an offset. *ret_n is 0 when nothing more will come (s->is_lost). */
static int read_source(WriterStream *s, void *data, size_t n, uint64_t offset, size_t *ret_n) {
        ssize_t got;

        *ret_n = 0;
        if (s->is_lost)
                return 0;
        if (s->options->before_read)
                s->options->before_read(n, s->options->userdata);
        do
                got = pread(s->fd, data, n, (off_t)offset);
        while (got < 0 && errno == EINTR);
        if (got > 0) {
                *ret_n = (size_t)got;
                s->bytes_read += *ret_n;
                uint64_t end = offset + *ret_n;
                if (end - s->kept >= KEEP_BYTES)
                        give_pages_back(s, end - end % KEEP_BYTES);
                return 0;
        }
        s->is_lost = true;
        if (got == 0)
                return fault(s, WRITER_E_CHANGED, VERDICT_TRUNCATED,
                             "shrank while it was read: from byte %llu on it is zeros here",
                             (unsigned long long)offset);
        return fault(s, -errno, VERDICT_TRUNCATED,
                     "cannot be read from byte %llu on (%m): the rest is zeros here",
                     (unsigned long long)offset);
}

/* Shows the validator the next of n bytes of content at an offset again, if it needs to see them. */
static int revalidate(WriterStream *s, void *buf, uint64_t offset, uint64_t n, uint64_t *ret_n) {
        size_t got = 0;

        *ret_n = MIN(n, validator_unneeded(s->validator));
        if (*ret_n == 0) {
                int r = read_source(s, buf, (size_t)MIN(n, READ_BYTES), offset, &got);
                if (r != 0)
                        return r;
                *ret_n = got > 0 ? got : n;
        }
        if (got > 0)
                (void)validate(s, buf, got, member_digest_is_zero(buf, got));
        else
                validator_feed_zeros(s->validator, *ret_n);
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
                                read_ahead(s, at, end);
                        int r = revalidate(s, buf, at, n, &n);
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
                r = validator_new(&s->validator, s->options->source, path_name(m->path), m->kind,
                                  m->bytes);
                if (r < 0)
                        return r;
        }
        return s->position > m->header_bytes ? go_on(s) : open_source(s);
}

/* Data of the current extent, at most n bytes. *zero is cleared by anything else than zeros. */
static int read_extent(WriterStream *s, void *data, size_t n, size_t *ret_n, bool *zero) {
        const PlanMember *m = current(s);
        const PlanExtent whole = { .offset = 0, .bytes = m->bytes };
        const PlanExtent *e = m->is_sparse ? &m->extents[s->extent] : &whole;
        uint64_t offset = e->offset + s->extent_done;

        n = MIN(n, READ_BYTES);
        n = MIN((uint64_t)n, e->bytes - s->extent_done);
        feed_zeros(s, offset - s->content); /* the hole before */
        read_ahead(s, offset, e->offset + e->bytes);
        int r = read_source(s, data, n, offset, ret_n);
        if (r != 0)
                return r;
        if (*ret_n > 0)
                *zero &= feed(s, data, *ret_n);
        else {
                memset(data, 0, n);
                feed_zeros(s, n);
                *ret_n = n;
        }
        s->extent_done += *ret_n;
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
                give_pages_back(s, m->bytes + (PLAN_EXTENT_ALIGN - 1)); /* the last page too */
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
static int read_member(WriterStream *s, void *data, size_t n, size_t *ret_n, bool *zero) {
        const PlanMember *m = current(s);

        if (s->position < m->header_bytes) {
                *ret_n = (size_t)MIN((uint64_t)n, m->header_bytes - s->position);
                memcpy(data, (const char *)s->header + s->position, *ret_n);
                *zero = false; /* it has a magic number; and if a piece of it had not, nothing is lost */
                return 0;
        }
        return read_extent(s, data, n, ret_n, zero);
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

static int make_zeros(void *data, size_t n, size_t *ret_n) {
        memset(data, 0, n);
        *ret_n = n;
        return 0;
}

/* One step: some bytes (or none) of a header, of data, of padding or of the end. */
static int step(WriterStream *s, void *data, size_t n, size_t *ret_n, bool *zero) {
        *ret_n = 0;
        if (s->member == plan_n_members(s->plan))
                return make_zeros(data, n, ret_n);

        switch (s->state) {
        case WRITER_MEMBER_NEXT:
                return begin_member(s);
        case WRITER_MEMBER_OPEN:
                n = (size_t)MIN((uint64_t)n, s->data_end - s->position);
                return read_member(s, data, n, ret_n, zero);
        case WRITER_MEMBER_FINISHED:
                break;
        }
        uint64_t left = s->data_end + padding_of(s->data_end) - s->position;
        if (left > 0)
                return make_zeros(data, (size_t)MIN((uint64_t)n, left), ret_n);
        s->member++;
        s->position = 0;
        s->state = WRITER_MEMBER_NEXT;
        return 0;
}

int writer_stream_read(WriterStream *s, void *data, size_t n, bool *ret_zero) {
        char *p = data;

        *ret_zero = true;
        while (n > 0) {
                size_t now;
                int r = step(s, p, n, &now, ret_zero);
                if (r != 0)
                        return r;
                s->position += now;
                p += now;
                n -= now;
                if (s->state == WRITER_MEMBER_OPEN && s->position == s->data_end)
                        r = finish_member(s);
                if (r != 0)
                        return r;
        }
        return 0;
}
