#include "agent/failures/ranks.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "collectors/host/procfs.h"

uint64_t rank_start_usec(uint64_t start_ticks) {
        uint64_t hz = (uint64_t)sysconf(_SC_CLK_TCK);
        return start_ticks / hz * USEC_PER_SEC + start_ticks % hz * USEC_PER_SEC / hz;
}

struct RankWatch {
        void (*on_end)(void *userdata);
        void *userdata;
        int pid_fd;
        sd_event_source *source;
};

/* @return 0: it lives, or cannot be seen; -ESRCH: it has ended; -errno */
static int check_process(const RankWatchOptions *o) {
        Proc p = { .dir_fd = -1 };
        int r = procfs_open(&p, o->proc_root, o->pid, o->start_ticks);
        if (r == PROCFS_E_HIDDEN)
                r = 0;
        else if (r > 0 || (r == 0 && procfs_is_zombie(&p)))
                r = -ESRCH;
        procfs_close(&p);
        return r;
}

static int on_exit_seen(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        const RankWatch *w = userdata;
        (void)s, (void)fd, (void)revents;
        w->on_end(w->userdata);
        return 0;
}

int rank_watch_new(RankWatch **ret, const RankWatchOptions *options) {
        _cleanup_(rank_watch_freep) RankWatch *w = calloc(1, sizeof *w);
        if (!w)
                return -ENOMEM;
        w->on_end = options->on_end;
        w->userdata = options->userdata;
        /* glibc has it since 2.36. */
        w->pid_fd = (int)syscall(SYS_pidfd_open, options->pid, 0);
        if (w->pid_fd < 0)
                return -errno;
        /* After that: whose start ticks are right now is whom it stands for. */
        int r = check_process(options);
        if (r == 0)
                r = sd_event_add_io(options->event, &w->source, w->pid_fd, EPOLLIN, on_exit_seen,
                                    w);
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
        free(w);
        return NULL;
}

/* ---- hosts to connect to ---- */

static size_t n_of_user(const DialledHost *list, size_t n, uid_t uid) {
        size_t n_own = 0;
        for (size_t i = 0; i < n; i++)
                n_own += list[i].uid == uid;
        return n_own;
}

size_t dialled_host_add(DialledHost *list, size_t n, size_t max, const DialledHost *h) {
        size_t most = 0, at = 0;
        for (size_t i = 0; i < n; i++) {
                size_t n_own = n_of_user(list, n, list[i].uid);
                if (strcmp(list[i].host, h->host) == 0)
                        return n;
                if (n_own >= most) { /* the last host of the user with the most */
                        most = n_own;
                        at = i;
                }
        }
        if (n < max)
                list[n++] = *h;
        else if (most > n_of_user(list, n, h->uid) + 1)
                list[at] = *h;
        return n;
}

/* ---- whether others are to be waited for ---- */

JobScope job_scope(const JobIdentity *job, const JobFacts *facts) {
        bool is_elsewhere = facts->has_rendezvous && !facts->rendezvous_is_own;
        bool is_local = job->world_size > 0 ? facts->n_here >= (size_t)job->world_size
                                            : job->key[0] && !is_elsewhere;
        bool meets = !is_local && facts->has_rendezvous && facts->bus_has_key;
        return (JobScope){ .is_local = is_local,
                           .role = !meets         ? ROLE_NONE
                                   : is_elsewhere ? ROLE_LEAF
                                                  : ROLE_CENTRE };
}
