/* Waits for the end of one process by a pidfd, since a rank that ends without a dump is evidence,
 * too. The records of the `jobs` collector name the ranks; failures_claims.c decides what the end
 * of one means. */
#include "agent/failures/rank_watch.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "collectors/host/procfs.h"

uint64_t rank_watch_start_usec(uint64_t start_ticks) {
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
        /* glibc has a function for it since 2.36 only. */
        w->pid_fd = (int)syscall(SYS_pidfd_open, options->pid, 0);
        if (w->pid_fd < 0)
                return -errno;
        /* Checked after the pidfd is open: it stands for the process that has these start ticks
         * now. */
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
