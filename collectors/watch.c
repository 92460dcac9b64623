/* A watch: the supervisor reports news of the node to the agent for as long as the agent lives.
 *
 * Two children run for it. `follow:kmsg` writes each line of the kernel log that is worth a record;
 * the watch passes it on and starts the child again half a minute after it was started, if it has
 * ended. `collect:jobs` lists the processes that hold devices, once an interval; the watch compares
 * each round with the round before and reports only new and changed records, so that a quiet job
 * costs no messages. Every ten minutes it reports all of them, for an agent that could not keep
 * some.
 *
 * Messages: `kmsg RECORD`, `jobs RECORD`, and `trouble SENTENCE` when the kernel log cannot be
 * followed. What the records mean is the agent's business (agent/node_events). */
#include "collectors/watch.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <systemd/sd-event.h>
#include <unistd.h>

#include "collectors/collector_process.h"
#include "collectors/runner/packet.h"
#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/event/timer.h"

#define LINE_MAX_BYTES (PACKET_TEXT_MAX - 64)
#define RECORDS_MAX 4096 /* of a round of jobs */
#define MAPPERS_MAX 256  /* of them without a device: any user can load the runtime */
#define REPORT_ALL_USEC (10 * USEC_PER_MINUTE)
#define RESTART_USEC (30 * USEC_PER_SEC)
#define INTERVAL_MIN_USEC (100 * USEC_PER_MSEC)

typedef struct SupervisorWatch SupervisorWatch;

/* The lines of a child that is started again and again. */
typedef struct WatchStream {
        const char *child;
        uint64_t interval_usec; /* from one start to the next */
        ChildOptions options;
        int (*on_line)(SupervisorWatch *w, const char *line);
        void (*on_end)(SupervisorWatch *w);
        SupervisorWatch *watch;
        sd_event_source *timer;
        CollectorProcess process;
        char *text; /* the incomplete line */
        size_t n;
        bool is_too_long;
} WatchStream;

/* What one run of `jobs` wrote. */
typedef struct WatchRound {
        char **lines;        /* records, as JSON; sorted once the run has ended */
        size_t n, n_mappers; /* mappers: without a device */
} WatchRound;

struct SupervisorWatch {
        sd_event *event;
        sd_event_source *io;
        int fd; /* the connection to the agent, borrowed */
        int request_fd;
        uint64_t report_all_usec;
        char reported_why[sizeof((CollectorProcess *)0)->why]; /* why the kernel log cannot be
                                                                  followed */
        WatchStream kmsg, jobs;
        WatchRound before, now;
};

static int on_stream_output(const char *data, size_t n, void *userdata) {
        WatchStream *x = userdata;
        if (!x->text && !(x->text = malloc(LINE_MAX_BYTES + 1)))
                return -ENOMEM;
        for (size_t i = 0; i < n; i++) {
                if (data[i] != '\n') {
                        x->is_too_long = x->is_too_long || x->n >= LINE_MAX_BYTES;
                        if (!x->is_too_long)
                                x->text[x->n++] = data[i];
                        continue;
                }
                x->text[x->n] = '\0';
                int r = x->is_too_long || memchr(x->text, '\0', x->n)
                                ? 0
                                : x->on_line(x->watch, x->text);
                x->n = 0;
                x->is_too_long = false;
                if (r < 0)
                        return r;
        }
        return 0;
}

static int on_kmsg_line(SupervisorWatch *w, const char *line) {
        (void)packet_printf(w->fd, "kmsg %s",
                            line); /* if the agent is gone, on_agent() ends the loop */
        return 0;
}

/* No string of the record can contain this text: its quotes would be escaped. */
static bool is_mapper(const char *line) {
        return strstr(line, "\"devices\":[]") != NULL;
}

static int on_jobs_line(SupervisorWatch *w, const char *line) {
        if (w->now.n >= RECORDS_MAX || (is_mapper(line) && w->now.n_mappers++ >= MAPPERS_MAX))
                return 0;
        if (!w->now.lines && !(w->now.lines = calloc(RECORDS_MAX, sizeof *w->now.lines)))
                return -ENOMEM;
        w->now.lines[w->now.n] = strdup(line);
        if (!w->now.lines[w->now.n])
                return -ENOMEM;
        w->now.n++;
        return 0;
}

static void round_done(WatchRound *r) {
        for (size_t i = 0; i < r->n; i++)
                free(r->lines[i]);
        free(r->lines);
        *r = (WatchRound){ 0 };
}

static bool has_line(const WatchRound *r, char *const *line) {
        return r->n > 0 &&
               bsearch(line, r->lines, r->n, sizeof *r->lines, array_compare_strings) != NULL;
}

static void send_lines(const SupervisorWatch *w, bool mappers, bool all) {
        for (size_t i = 0; i < w->now.n; i++) {
                char **line = &w->now.lines[i];
                if (is_mapper(*line) == mappers && (all || !has_line(&w->before, line)))
                        (void)packet_printf(w->fd, "jobs %s", *line); /* as in on_kmsg_line() */
        }
}

/* Holders of devices come first. A process that has ended is not reported: what the agent knows of
 * it remains true. */
static void report_round(SupervisorWatch *w) {
        uint64_t now = clock_boottime_usec();
        bool all = now >= w->report_all_usec;
        if (all)
                w->report_all_usec = now + REPORT_ALL_USEC;
        if (w->now.n > 0)
                qsort(w->now.lines, w->now.n, sizeof *w->now.lines, array_compare_strings);
        send_lines(w, false, all);
        send_lines(w, true, all);
        round_done(&w->before);
        w->before = w->now;
        w->now = (WatchRound){ 0 };
}

/* The child is started again every half minute: the same reason is reported once. */
static void on_kmsg_end(SupervisorWatch *w) {
        if (!*w->kmsg.process.why || strcmp(w->kmsg.process.why, w->reported_why) == 0)
                return;
        (void)snprintf(w->reported_why, sizeof w->reported_why, "%s", w->kmsg.process.why);
        (void)packet_printf(w->fd, "trouble %s", w->kmsg.process.why); /* as in on_kmsg_line() */
}

static void on_jobs_end(SupervisorWatch *w) {
        if (w->jobs.process.state == SECTION_COMPLETE)
                report_round(w);
        else
                round_done(&w->now); /* an incomplete round would make the rest look new in the next
                                        one */
}

/* The interval counts from one start to the next. */
static void arm_next(const WatchStream *x) {
        uint64_t passed = clock_boottime_usec() - x->process.started_usec;
        /* fails only in a process that has not made the loop */
        (void)timer_rearm(x->timer, passed < x->interval_usec ? x->interval_usec - passed : 0);
}

static void on_stream_done(const ChildResult *result, void *userdata) {
        WatchStream *x = userdata;
        collector_process_end_by_result(&x->process, result, true);
        x->on_end(x->watch);
        collector_process_done(&x->process);
        arm_next(x);
}

static int on_stream_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        WatchStream *x = userdata;
        (void)s, (void)usec;
        if (collector_process_start(&x->process, x->watch->event, x->child, x->watch->request_fd, 0,
                                    x->options) < 0)
                arm_next(x);
        return 0;
}

static int stream_init(WatchStream *x, SupervisorWatch *w) {
        x->watch = w;
        x->options.on_output = on_stream_output;
        x->options.on_done = on_stream_done;
        x->options.userdata = x;
        return sd_event_add_time_relative(w->event, &x->timer, CLOCK_MONOTONIC, 0, 0,
                                          on_stream_timer, x);
}

static void stream_done(WatchStream *x) {
        collector_process_done(&x->process);
        free(x->text);
        sd_event_source_disable_unref(x->timer);
}

/* The agent sends nothing after the request, so that an event means it is gone. */
static int on_agent(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        (void)fd, (void)revents, (void)userdata;
        (void)sd_event_exit(sd_event_source_get_event(s), 0); /* fails only once it has ended */
        return 0;
}

static void watch_done(SupervisorWatch *w) {
        stream_done(&w->kmsg);
        stream_done(&w->jobs);
        round_done(&w->before);
        round_done(&w->now);
        if (w->request_fd >= 0)
                (void)close(w->request_fd);
        sd_event_source_disable_unref(w->io);
        sd_event_unref(w->event);
}

int watch_run(const ProbeRequest *request, int fd) {
        _cleanup_(watch_done) SupervisorWatch w = {
                .fd = fd,
                .request_fd = probe_request_to_memfd(request),
                .kmsg = { .child = "follow:kmsg",
                          .interval_usec = RESTART_USEC,
                          .options = { .timeout_usec = USEC_INFINITY,
                                       .output_max_bytes = SIZE_MAX },
                          .on_line = on_kmsg_line,
                          .on_end = on_kmsg_end },
                .jobs = { .child = "collect:jobs",
                          .interval_usec = MAX(request->interval_usec, INTERVAL_MIN_USEC),
                          .options = { .timeout_usec = request->collect.timeout_usec,
                                       .output_max_bytes = 64 * MIB },
                          .on_line = on_jobs_line,
                          .on_end = on_jobs_end }
        };
        int r = w.request_fd < 0 ? w.request_fd : sd_event_new(&w.event);
        if (r >= 0)
                r = sd_event_add_io(w.event, &w.io, fd, EPOLLIN, on_agent, NULL);
        if (r >= 0)
                r = stream_init(&w.kmsg, &w);
        if (r >= 0)
                r = stream_init(&w.jobs, &w);
        return r < 0 ? r : sd_event_loop(w.event);
}
