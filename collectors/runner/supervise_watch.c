/* A watch: follows the kernel log, asks every now and then who holds a device, and passes on what is new, until the agent goes. */
#include <errno.h>
#include <string.h>

#include "collectors/runner/supervise_private.h"
#include "lib/base/clock.h"

#define LINE_MAX_BYTES (PROBE_PACKET_MAX - 64)
#define RECORDS_MAX 4096 /* of a round */
#define MAPPERS_MAX                                                                                \
        256 /* of them: of processes that hold no device and have the runtime loaded, which anybody can */
#define ALL_USEC (10 * USEC_PER_MINUTE) /* so often all is told, also what is as it was */
#define RESTART_USEC (30 * USEC_PER_SEC)
#define INTERVAL_MIN_USEC (100 * USEC_PER_MSEC)

typedef struct Watch Watch;

typedef struct Lines { /* a stream, cut into lines */
        int (*on_line)(Watch *w, const char *line);
        char *text;
        size_t n;
        bool is_too_long;
} Lines;

typedef struct Round { /* what `jobs` said, a JSON text each, in order */
        char **lines;
        size_t n, n_mappers;
} Round;

struct Watch {
        int fd, order_fd;
        uint64_t interval_usec, next_jobs_usec, next_kmsg_usec, next_all_usec;
        Task kmsg, jobs;
        char told_why[sizeof((Task *)0)->why]; /* why the kernel log is not followed */
        Lines kmsg_lines, jobs_lines;
        Round before, now;
};

/* ---- lines ---- */

static int take_lines(Watch *w, Lines *x, const char *data, size_t n) {
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
                int r = x->is_too_long || memchr(x->text, '\0', x->n) ? 0 : x->on_line(w, x->text);
                x->n = 0;
                x->is_too_long = false;
                if (r < 0)
                        return r;
        }
        return 0;
}

static int on_kmsg_line(Watch *w, const char *line) {
        (void)supervise_say(w->fd, "kmsg %s",
                            line); /* an agent that does not read has other troubles */
        return 0;
}

/* Within a text of JSON its quotes would be escaped. */
static bool is_mapper(const char *line) {
        return strstr(line, "\"devices\":[]") != NULL;
}

static int on_jobs_line(Watch *w, const char *line) {
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

static int on_kmsg_output(Task *t, const char *data, size_t n) {
        Watch *w = t->userdata;
        return take_lines(w, &w->kmsg_lines, data, n);
}

static int on_jobs_output(Task *t, const char *data, size_t n) {
        Watch *w = t->userdata;
        return take_lines(w, &w->jobs_lines, data, n);
}

/* ---- rounds of jobs ---- */

static void round_done(Round *r) {
        for (size_t i = 0; i < r->n; i++)
                free(r->lines[i]);
        free(r->lines);
        *r = (Round){ 0 };
}

static int by_text(const void *a, const void *b) {
        return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool has_line(const Round *r, char *const *line) {
        return r->n > 0 && bsearch(line, r->lines, r->n, sizeof *r->lines, by_text) != NULL;
}

/* What could not be told is no part of the round: the next one tells it. */
static void tell_lines(Watch *w, bool mappers, bool all) {
        for (size_t i = 0; i < w->now.n; i++) {
                char **line = &w->now.lines[i];
                if (!*line || is_mapper(*line) != mappers || (!all && has_line(&w->before, line)))
                        continue;
                if (supervise_say(w->fd, "jobs %s", *line) < 0) {
                        free(*line);
                        *line = NULL;
                }
        }
}

static void leave_out_untold(Round *r) {
        size_t n = 0;
        for (size_t i = 0; i < r->n; i++)
                if (r->lines[i])
                        r->lines[n++] = r->lines[i];
        r->n = n;
}

/* Only what is new or has changed is told, those who hold a device first: in a quiet job that is nothing. Every now and then all is, for an agent that
 * could not keep it. Of who has gone nothing is: what was known of it stays true. */
static void tell_round(Watch *w) {
        uint64_t now = clock_boottime_usec();
        bool all = now >= w->next_all_usec;
        if (all)
                w->next_all_usec = now + ALL_USEC;
        if (w->now.n > 0)
                qsort(w->now.lines, w->now.n, sizeof *w->now.lines, by_text);
        tell_lines(w, false, all);
        tell_lines(w, true, all);
        leave_out_untold(&w->now);
        round_done(&w->before);
        w->before = w->now;
        w->now = (Round){ 0 };
}

/* ---- the loop ---- */

static void start(Watch *w, Task *t, const char *child, uint64_t timeout_usec) {
        int (*on_output)(Task *, const char *, size_t) =
                t == &w->kmsg ? on_kmsg_output : on_jobs_output;
        *t = (Task){ .pid_fd = -1,
                     .out_fd = -1,
                     .why_fd = -1,
                     .timeout_usec = timeout_usec,
                     .max_bytes = t == &w->kmsg ? UINT64_MAX : 64 * MIB,
                     .on_output = on_output,
                     .userdata = w };
        (void)snprintf(t->child_name, sizeof t->child_name, "%s", child);
        (void)task_start(t, w->order_fd, -1); /* tried again at the next turn */
}

/* It is tried again every now and then: the same is said once. */
static void tell_trouble(Watch *w) {
        if (!*w->kmsg.why || strcmp(w->kmsg.why, w->told_why) == 0)
                return;
        (void)snprintf(w->told_why, sizeof w->told_why, "%s", w->kmsg.why);
        (void)supervise_say(w->fd, "trouble %s", w->kmsg.why); /* as above */
}

static void turn(Watch *w, const ProbeOrder *order) {
        uint64_t now = clock_boottime_usec();
        if ((!w->kmsg.has_started || w->kmsg.has_ended) && now >= w->next_kmsg_usec) {
                w->next_kmsg_usec = now + RESTART_USEC;
                start(w, &w->kmsg, "follow:kmsg", USEC_INFINITY);
        }
        if ((!w->jobs.has_started || w->jobs.has_ended) && now >= w->next_jobs_usec) {
                w->next_jobs_usec = now + w->interval_usec;
                start(w, &w->jobs, "collect:jobs", order->collect.timeout_usec);
        }
        bool was_following = w->kmsg.has_started && !w->kmsg.has_ended;
        task_step(&w->kmsg, now);
        if (was_following && w->kmsg.has_ended)
                tell_trouble(w);
        bool was_running = w->jobs.has_started && !w->jobs.has_ended;
        task_step(&w->jobs, now);
        if (was_running && w->jobs.has_ended && w->jobs.state == SECTION_COMPLETE)
                tell_round(w);
        else if (was_running && w->jobs.has_ended)
                round_done(&w->now); /* half a round would make the others look new at the next */
}

/* @return 0: the agent is still there */
static int wait_for_news(const Watch *w) {
        struct pollfd fds[1 + 2 * TASK_FDS] = { { .fd = w->fd, .events = POLLIN } };
        size_t n = 1;
        n += task_poll(&w->kmsg, fds + n);
        n += task_poll(&w->jobs, fds + n);
        uint64_t now = clock_boottime_usec(),
                 next = MIN(task_deadline(&w->kmsg), task_deadline(&w->jobs));
        if (!w->kmsg.has_started || w->kmsg.has_ended)
                next = MIN(next, w->next_kmsg_usec);
        if (!w->jobs.has_started || w->jobs.has_ended)
                next = MIN(next, w->next_jobs_usec);
        uint64_t wait = next > now ? next - now : 0;
        if (poll(fds, n, (int)MIN(wait / USEC_PER_MSEC + 1, UINT64_C(60000))) < 0 && errno != EINTR)
                return -errno;
        return fds[0].revents ? -ECONNRESET : 0; /* it has nothing more to say but its end */
}

static void watch_done(Watch *w) {
        task_kill(&w->kmsg, SECTION_CUT, "");
        task_kill(&w->jobs, SECTION_CUT, "");
        round_done(&w->before);
        round_done(&w->now);
        free(w->kmsg_lines.text);
        free(w->jobs_lines.text);
        if (w->order_fd >= 0)
                (void)close(w->order_fd);
}

int supervise_watch(int fd, const ProbeOrder *order) {
        _cleanup_(watch_done)
                Watch w = { .fd = fd,
                            .order_fd = supervise_order_fd(order),
                            .kmsg_lines.on_line = on_kmsg_line,
                            .jobs_lines.on_line = on_jobs_line,
                            .interval_usec = MAX(order->interval_usec, INTERVAL_MIN_USEC) };
        if (w.order_fd < 0)
                return w.order_fd;
        for (;;) {
                turn(&w, order);
                int r = wait_for_news(&w);
                if (r < 0)
                        return r == -ECONNRESET ? 0 : r;
        }
}
