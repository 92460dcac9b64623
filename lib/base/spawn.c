#include "lib/base/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>

static struct rlimit inherited; /* of descriptors; zero = as it still is */

int spawn_raise_fd_limit(void) {
        struct rlimit limit;
        if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
                return -errno;
        if (limit.rlim_cur >= limit.rlim_max)
                return 0;
        struct rlimit raised = { .rlim_cur = limit.rlim_max, .rlim_max = limit.rlim_max };
        if (setrlimit(RLIMIT_NOFILE, &raised) < 0)
                return -errno;
        inherited = limit;
        return 0;
}

static int set_attributes(posix_spawnattr_t *attributes, bool keeps_signals) {
        sigset_t all, none;
        (void)sigfillset(&all);
        (void)sigemptyset(&none);
        int flags = POSIX_SPAWN_SETPGROUP;
        if (!keeps_signals)
                flags |= POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK;
        int r = posix_spawnattr_setflags(attributes, (short)flags);
        if (r == 0)
                r = posix_spawnattr_setpgroup(attributes, 0);
        if (r == 0)
                r = posix_spawnattr_setsigdefault(attributes, &all);
        if (r == 0)
                r = posix_spawnattr_setsigmask(attributes, &none);
        return -r;
}

static int set_descriptors(posix_spawn_file_actions_t *actions, const SpawnOptions *o) {
        int r = 0;
        for (int i = 0; i < (int)o->n_fds && r == 0; i++)
                r = o->fds[i] >= 0
                            ? posix_spawn_file_actions_adddup2(actions, o->fds[i], i)
                            : posix_spawn_file_actions_addopen(actions, i, "/dev/null", O_RDWR, 0);
        if (r == 0)
                r = posix_spawn_file_actions_addclosefrom_np(actions, (int)o->n_fds);
        return -r;
}

int spawn_program(pid_t *ret, const SpawnOptions *o) {
        posix_spawn_file_actions_t actions;
        posix_spawnattr_t attributes;
        pid_t pid;
        int r = -posix_spawnattr_init(&attributes);
        if (r < 0)
                return r;
        r = -posix_spawn_file_actions_init(&actions);
        if (r == 0) {
                r = set_attributes(&attributes, o->keeps_signals);
                if (r == 0)
                        r = set_descriptors(&actions, o);
                if (r == 0)
                        r = -posix_spawnp(&pid, o->program, &actions, &attributes, o->argv,
                                          o->environment);
                /* Always 0 in glibc, as the next. */
                (void)posix_spawn_file_actions_destroy(&actions);
        }
        (void)posix_spawnattr_destroy(&attributes);
        if (r < 0)
                return r;
        if (inherited.rlim_max > 0) /* posix_spawn(3) cannot; one that has ended needs none */
                (void)prlimit(pid, RLIMIT_NOFILE, &inherited, NULL);
        *ret = pid;
        return 0;
}
