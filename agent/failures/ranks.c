/* Who runs is found by others (the records of the `jobs` collector, every 30 s); when one ends is
 * seen here. */
#include "agent/failures/ranks.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "collectors/host/procfs.h"
#include "lib/event/timer.h"

#define POLL_USEC (5 * USEC_PER_SEC)

/* ---- records ---- */

/* Printable ASCII without blanks, and not cut, as in a note. */
static bool read_word(const json_t *v, char *buf, size_t size) {
        const char *s = v ? json_string_value(v) : "";
        size_t n = s ? strlen(s) : size;
        if (n >= size)
                return false;
        for (size_t i = 0; i < n; i++)
                if (s[i] <= ' ' || s[i] >= 0x7f)
                        return false;
        memcpy(buf, s, n + 1);
        return true;
}

/* @return -1: it is missing, or none that can be */
static int64_t read_number(const json_t *object, const char *key, int64_t max) {
        const json_t *v = json_object_get(object, key);
        json_int_t n = json_is_integer(v) ? json_integer_value(v) : -1;
        return n >= 0 && n <= max ? n : -1;
}

static bool read_job(const json_t *v, JobIdentity *ret) {
        *ret = (JobIdentity){ .source = job_source_find(
                                      json_string_value(json_object_get(v, "source"))) };
        for (size_t i = 0; i < N_JOB_MEMBERS; i++) {
                const JobMember *m = &job_members[i];
                if (m->size == 0)
                        *(int64_t *)job_member(ret, m) = read_number(v, m->name, INT32_MAX);
                else if (!read_word(json_object_get(v, m->name), job_member(ret, m), m->size))
                        return false;
        }
        return ret->key[0] != '\0';
}

bool rank_parse(const char *record, Rank *ret) {
        json_t *v = json_loads(record, JSON_REJECT_DUPLICATES, NULL);
        int64_t pid = read_number(v, "pid", INT_MAX);
        int64_t ticks = read_number(v, "start_ticks", INT64_MAX / (int64_t)USEC_PER_SEC);
        int64_t uid = read_number(v, "uid", (int64_t)UINT32_MAX - 1);
        *ret = (Rank){ .pid = (pid_t)pid, .start_ticks = (uint64_t)ticks, .uid = (uid_t)uid };
        bool is_valid =
                pid > 0 && ticks > 0 && uid >= 0 && read_job(json_object_get(v, "job"), &ret->job);
        json_decref(v);
        return is_valid;
}

uint64_t rank_start_usec(uint64_t start_ticks) {
        uint64_t hz = (uint64_t)sysconf(_SC_CLK_TCK);
        return start_ticks / hz * USEC_PER_SEC + start_ticks % hz * USEC_PER_SEC / hz;
}

/* ---- ends ---- */

struct RankWatch {
        RankWatchOptions options;
        int pid_fd;              /* -1: polled */
        sd_event_source *source; /* of its end, or of the next poll */
};

/* @return 0: it lives; -ESRCH; other -errno: that cannot be seen now */
static int check_process(const RankWatchOptions *o) {
        Proc p = { .dir_fd = -1 };
        int outcome = procfs_open(&p, o->proc_root, o->pid, o->start_ticks);
        bool has_ended = outcome == PROCFS_E_GONE || outcome == PROCFS_E_REPLACED ||
                         (outcome == 0 && procfs_is_zombie(&p));
        procfs_close(&p);
        return has_ended ? -ESRCH : outcome > 0 ? -EACCES : outcome;
}

static int on_exit_seen(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        const RankWatchOptions *o = &((RankWatch *)userdata)->options;
        (void)s, (void)fd, (void)revents;
        o->on_end(o->userdata);
        return 0;
}

static int on_poll(sd_event_source *s, uint64_t usec, void *userdata) {
        const RankWatchOptions *o = &((RankWatch *)userdata)->options;
        (void)usec;
        if (check_process(o) == -ESRCH)
                o->on_end(o->userdata);
        else
                (void)timer_rearm(s, POLL_USEC); /* fails only in another process */
        return 0;
}

int rank_watch_new(RankWatch **ret, const RankWatchOptions *options) {
        _cleanup_(rank_watch_freep) RankWatch *w = calloc(1, sizeof *w);
        if (!w)
                return -ENOMEM;
        w->options = *options;
        w->options.proc_root = strdup(options->proc_root);
        /* It comes before the check: whose start ticks are right then is whom it stands for. */
        w->pid_fd = (int)syscall(SYS_pidfd_open, options->pid, 0); /* glibc has it since 2.36 */
        int r = w->options.proc_root ? check_process(options) : -ENOMEM;
        if (r < 0)
                return r;
        r = w->pid_fd >= 0 ? sd_event_add_io(options->event, &w->source, w->pid_fd, EPOLLIN,
                                             on_exit_seen, w)
                           : timer_arm(&w->source, &(TimerOptions){ .event = options->event,
                                                                    .usec = POLL_USEC,
                                                                    .handler = on_poll,
                                                                    .userdata = w });
        if (r < 0)
                return r;
        *ret = TAKE_PTR(w);
        return 0;
}

RankWatch *rank_watch_free(RankWatch *w) {
        if (!w)
                return NULL;
        sd_event_source_disable_unref(w->source);
        cleanup_closep(&w->pid_fd);
        free((char *)w->options.proc_root);
        free(w);
        return NULL;
}

/* ---- whether others are to be waited for ---- */

JobScope job_scope(const JobIdentity *job, const JobFacts *facts) {
        bool is_elsewhere = facts->has_rendezvous && !facts->rendezvous_is_own;
        JobScope scope = { .is_local = job->world_size > 0
                                               ? facts->n_here >= (size_t)job->world_size
                                               : job->key[0] && !is_elsewhere };
        scope.is_dialled = facts->has_rendezvous && !scope.is_local;
        if (scope.is_dialled && facts->bus_has_key)
                scope.role = is_elsewhere ? ROLE_LEAF : ROLE_CENTRE;
        return scope;
}
