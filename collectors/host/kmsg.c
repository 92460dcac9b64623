/* The collector kmsg: the kernel log once, or from now on.
 *
 * The log comes from /dev/kmsg, which gives one record a read(2). Files and FIFOs, which tests have
 * in its place, give any number of bytes, so that what was read is cut at the borders of records.
 * Where a container has no /dev/kmsg, the log comes from syslog(2) (kmsg_ring.c): text without
 * numbers, and without a way to wait for more.
 *
 * kmsg_record.c parses records; which of them are written is decided in kmsg_filter.c. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "collectors/host/kmsg_filter.h"
#include "collectors/host/kmsg_record.h"
#include "collectors/host/kmsg_ring.h"
#include "collectors/runner/collector.h"
#include "lib/base/cleanup.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"

enum {
        IDLE_MSEC = 200,
        TAIL_BYTES = 1024, /* by which the end of an earlier read of the ring is found again */
};

typedef struct KmsgReader {
        KmsgFilter filter;
        int fd;         /* of /dev/kmsg */
        StrBuf pending; /* bytes of a record that may continue */
        uint64_t last_seq;
        bool has_seq;
        bool overran; /* the kernel has overwritten records before they were read */
} KmsgReader;

/* After an overrun, the number of the next record tells how many were lost. */
static int note_lost(KmsgReader *k, uint64_t seq) {
        int r = 0;

        if (k->overran)
                r = kmsg_filter_notice(&k->filter, "overrun", "lost_records",
                                       k->has_seq && seq > k->last_seq ? seq - k->last_seq - 1 : 0);
        k->overran = false;
        k->has_seq = true;
        k->last_seq = seq;
        return r;
}

static int handle_record(KmsgReader *k, const char *data, size_t n) {
        _cleanup_(kmsg_record_done) KmsgRecord record = { 0 };
        int r = kmsg_record_parse(data, n, &record);

        if (r < 0)
                return r == -EBADMSG ? 0 : r; /* no record is ignored */
        r = note_lost(k, record.seq);
        return r < 0 ? r : kmsg_filter_keep(&k->filter, &record);
}

/* Handles the complete records of what was read. @param all  nothing more comes now, so that the
 * last record is complete if its line is */
static int handle_pending(KmsgReader *k, bool all) {
        size_t at = 0;
        int r = 0;

        while (r == 0 && at < k->pending.n) {
                size_t n = kmsg_record_size(k->pending.text + at, k->pending.n - at);
                if (at + n == k->pending.n && !(all && k->pending.text[at + n - 1] == '\n') &&
                    n <= KMSG_RECORD_BYTES_MAX)
                        break;
                r = handle_record(k, k->pending.text + at, n);
                at += n;
        }
        if (at > 0) {
                k->pending.n -= at;
                memmove(k->pending.text, k->pending.text + at, k->pending.n + 1);
        }
        return r;
}

/* @return 1: something was read, 0: the log has nothing more now, -errno */
static int read_some(KmsgReader *k) {
        char chunk[KMSG_RECORD_BYTES_MAX];
        ssize_t n = read(k->fd, chunk, sizeof chunk);

        if (n < 0 && errno == EPIPE) { /* records were overwritten before they were read; the next
                                          read is behind them */
                k->overran = true;
                return 1;
        }
        if (n < 0)
                return errno == EAGAIN || errno == EINTR ? handle_pending(k, true) : -errno;
        if (n == 0)
                return handle_pending(k, true);
        strbuf_add_n(&k->pending, chunk, (size_t)n);
        int r = strbuf_error(&k->pending);
        if (r == 0)
                r = handle_pending(k, false);
        return r < 0 ? r : 1;
}

/* Without CAP_SYSLOG, opening it may be EPERM. @see syslog(2), kernel.dmesg_restrict */
static const char *remedy_for(int error) {
        switch (error) {
        case -ENOENT:
        case -ENXIO:
        case -ENODEV:
                return "give the agent's container this device, or set snapshot.device_directory";
        case -EPERM:
        case -EACCES:
                return "start neuron-collectd-probe.socket, or give the agent CAP_SYSLOG";
        default:
                return "the kernel log ('dmesg') may have more";
        }
}

static int open_kmsg(const CollectRequest *request, CollectOut *out) {
        _cleanup_free_ char *path = path_join(request->device_directory, "kmsg");
        if (!path)
                return -ENOMEM;
        int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
        if (fd >= 0)
                return fd;
        int r = -errno;
        (void)snprintf(out->why, sizeof out->why, "cannot open '%s': %s; %s", path, strerror(-r),
                       remedy_for(r));
        return r;
}

/* ---- syslog(2) ---- */

static int handle_syslog(KmsgReader *k, const char *data, size_t n) {
        const char *end = data + n;
        KmsgRecord before = { 0 }; /* without its text */
        int r = 0;
        while (r == 0 && data < end) {
                const char *line_end = memchr(data, '\n', (size_t)(end - data));
                line_end = line_end ? line_end : end;
                _cleanup_(kmsg_record_done) KmsgRecord record = { 0 };
                if (kmsg_record_parse_syslog(data, (size_t)(line_end - data), &record)) {
                        record.is_continued = kmsg_record_may_continue(&record, &before);
                        r = strbuf_error(&record.text) < 0 ? -ENOMEM
                                                           : kmsg_filter_keep(&k->filter, &record);
                        before = record;
                }
                data = line_end + 1;
        }
        return r;
}

/* A container has a /dev/kmsg only if it was given the device, and its device cgroup may refuse
 * even that. A device directory that an operator has set is not this machine's. */
static bool has_syslog(const CollectRequest *request, int error) {
        return (error == -ENOENT || error == -EPERM || error == -EACCES) &&
               strcmp(request->device_directory, "/dev") == 0;
}

/* @param error  of /dev/kmsg, returned if syslog(2) is refused, too */
static int collect_syslog(KmsgReader *k, int error) {
        _cleanup_free_ char *text = NULL;
        int n = kmsg_ring_read(&text);
        if (n < 0)
                return error;
        *k->filter.out->why = '\0';
        return handle_syslog(k, text, (size_t)n);
}

static int follow_syslog(KmsgReader *k, int error) {
        char tail[TAIL_BYTES];
        size_t n_tail = 0;
        struct pollfd reader = { .fd = k->filter.out->fd };
        for (bool is_first = true;; is_first = false) {
                _cleanup_free_ char *text = NULL;
                const clock_t begin = clock(); /* this process's CPU time in microseconds */
                int n = kmsg_ring_read(&text);
                if (n < 0)
                        return is_first ? error : n;
                *k->filter.out->why = '\0';
                size_t at = kmsg_ring_find_new(text, (size_t)n, tail, n_tail);
                int r = 0;
                if (at == 0 && n_tail > 0)
                        r = kmsg_filter_notice(&k->filter, "overrun", "lost_records", 0);
                k->filter.past_usec = is_first ? kmsg_filter_now_usec() : 0;
                if (r == 0)
                        r = handle_syslog(k, text + at, (size_t)n - at);
                if (r == 0 && is_first)
                        r = kmsg_filter_following(&k->filter);
                if (r < 0)
                        return r;
                n_tail = MIN((size_t)n, sizeof tail);
                memcpy(tail, text + (size_t)n - n_tail, n_tail);
                if (poll(&reader, 1, kmsg_ring_wait_msec((uint64_t)(clock() - begin))) > 0 &&
                    reader.revents & (POLLERR | POLLHUP | POLLNVAL))
                        return 0; /* the reader of our records has gone */
        }
}

/* ---- the collector ---- */

int collect_kmsg(const CollectRequest *request, CollectOut *out) {
        _cleanup_close_ int fd = open_kmsg(request, out);
        KmsgReader k = { .filter = { .request = request, .out = out }, .fd = fd };
        int r;

        if (fd < 0)
                r = has_syslog(request, fd) ? collect_syslog(&k, fd) : fd;
        else
                do
                        r = read_some(&k);
                while (r > 0);
        strbuf_done(&k.pending);
        return r == -EFBIG ? 0 : r; /* the section says that it is cut */
}

/* @return 1: the log may have more, 0: the reader of our records has gone, -errno */
static int wait_for_more(const KmsgReader *k, bool is_at_end) {
        struct pollfd polls[] = { { .fd = k->filter.out->fd },
                                  { .fd = is_at_end ? -1 : k->fd, .events = POLLIN } };

        /* poll(2) always calls a file at its end, and a FIFO without a writer, readable. */
        if (poll(polls, ELEMENTSOF(polls), is_at_end ? IDLE_MSEC : -1) < 0)
                return errno == EINTR ? 1 : -errno;
        return polls[0].revents & (POLLERR | POLLHUP | POLLNVAL) ? 0 : 1;
}

int follow_kmsg(const CollectRequest *request, CollectOut *out) {
        _cleanup_close_ int fd = open_kmsg(request, out);
        KmsgReader k = { .filter = { .request = request, .out = out, .is_stream = true },
                         .fd = fd };
        struct stat st;
        int r;

        if (fd < 0)
                return has_syslog(request, fd) ? follow_syslog(&k, fd) : fd;
        if (fstat(fd, &st) < 0)
                return -errno;
        if (S_ISCHR(st.st_mode))
                k.filter.past_usec = kmsg_filter_now_usec();
        else
                (void)lseek(fd, 0, SEEK_END); /* a FIFO cannot seek, and needs not */
        for (bool is_first = true;; is_first = false) {
                do
                        r = read_some(&k);
                while (r > 0);
                k.filter.past_usec = 0;
                if (r == 0 && is_first)
                        r = kmsg_filter_following(&k.filter);
                if (r == 0)
                        r = wait_for_more(&k, !S_ISCHR(st.st_mode));
                if (r <= 0)
                        break;
        }
        strbuf_done(&k.pending);
        return r;
}
