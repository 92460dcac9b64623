/* Whose end the second look waits for: a pidfd for each of an incident's processes, for as long as it waits. */
#include <errno.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/incidents/incidents_private.h"
#include "collectors/host/procfs.h"

bool incident_all_are_gone(const Incident *x) {
        for (size_t k = 0; k < x->n_processes; k++)
                if (x->processes[k]->pid > 0 && !x->processes[k]->is_gone)
                        return false;
        return true;
}

static void forget(IncidentProcess *p) {
        p->exit = sd_event_source_disable_unref(p->exit);
        cleanup_closep(&p->pid_fd);
        p->pid_fd = -1;
}

static int on_exit_seen(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        Incident *x = userdata;
        (void)s;
        (void)revents;
        for (size_t k = 0; k < x->n_processes; k++)
                if (x->processes[k]->pid_fd == fd) {
                        x->processes[k]->is_gone = true;
                        forget(x->processes[k]);
                        break;
                }
        incident_on_exit(x);
        return 0;
}

/* Its number was given to another one meanwhile. */
static bool is_another(const Incident *x, const IncidentProcess *p) {
        Proc proc = { .dir_fd = -1 };
        if (p->start_ticks == 0)
                return false;
        int r = procfs_open(&proc, x->owner->config->snapshot.proc_root, p->pid, p->start_ticks);
        procfs_close(&proc);
        return r == PROCFS_E_GONE || r == PROCFS_E_REPLACED;
}

/* Nothing of it needs leave to look at the process. Where the kernel has no pidfds, time decides. */
static void watch_exit(Incident *x, IncidentProcess *p) {
        if (p->pid <= 0 || p->pid_fd >= 0 || p->is_gone)
                return;
        p->pid_fd = (int)syscall(SYS_pidfd_open, p->pid, 0);
        if (p->pid_fd < 0) {
                p->is_gone = errno == ESRCH;
                return;
        }
        p->is_gone = is_another(x, p);
        if (p->is_gone || sd_event_add_io(x->owner->context.event, &p->exit, p->pid_fd, EPOLLIN,
                                          on_exit_seen, x) < 0)
                forget(p); /* where that fails time decides, too */
}

void incident_watch_exits(Incident *x) {
        for (size_t k = 0; k < x->n_processes; k++)
                watch_exit(x, x->processes[k]);
}

void incident_forget_exits(Incident *x) {
        for (size_t k = 0; k < x->n_processes; k++)
                forget(x->processes[k]);
}
