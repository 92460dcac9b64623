/* Starts a program by posix_spawn(3) with the given descriptors and no others, a process group of
 * its own, and the limits and capabilities that it may have. Waiting for its end is left to
 * lib/event/child.c. */
#include "lib/base/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

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

static int start(pid_t *ret, const SpawnOptions *o) {
        posix_spawn_file_actions_t actions;
        posix_spawnattr_t attributes;
        int r = -posix_spawnattr_init(&attributes);
        if (r < 0)
                return r;
        r = -posix_spawn_file_actions_init(&actions);
        if (r == 0) {
                r = set_attributes(&attributes, o->keeps_signals);
                if (r == 0)
                        r = set_descriptors(&actions, o);
                if (r == 0)
                        r = -posix_spawnp(ret, o->program, &actions, &attributes, o->argv,
                                          o->environment);
                /* Always 0 in glibc, as the next. */
                (void)posix_spawn_file_actions_destroy(&actions);
        }
        (void)posix_spawnattr_destroy(&attributes);
        return r;
}

/* ---- without capabilities ---- */

typedef struct Start {
        const SpawnOptions *options;
        pid_t pid;
        int result;
} Start;

/* @return whether a program that is started has capabilities, or may get them; root's has all of
 * the bounding set */
static bool has_capabilities(void) {
        struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
        struct __user_cap_data_struct c[2] = { { 0 } };
        return syscall(SYS_capget, &head, c) < 0 || geteuid() == 0 || getuid() == 0 ||
               c[0].permitted || c[1].permitted || c[0].inheritable || c[1].inheritable;
}

/* Of this thread alone, which has none back: with no_new_privs execve(2) gives a program no
 * capability that its caller lacks, not even root's. The ambient ones go with the others. */
static int drop_capabilities(void) {
        struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
        const struct __user_cap_data_struct none[2] = { { 0 } };
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || syscall(SYS_capset, &head, none) < 0)
                return -errno;
        return 0;
}

static void *start_in_thread(void *userdata) {
        Start *s = userdata;
        s->result = drop_capabilities();
        if (s->result == 0)
                s->result = start(&s->pid, s->options);
        return NULL;
}

/* posix_spawn(3) cannot, but capabilities are a thread's, and the child has its caller's. */
static int start_without_capabilities(pid_t *ret, const SpawnOptions *o) {
        Start s = { .options = o };
        pthread_t thread;
        int r = -pthread_create(&thread, NULL, start_in_thread, &s);
        if (r < 0)
                return r;
        (void)pthread_join(thread, NULL); /* cannot fail for ours */
        *ret = s.pid;
        return s.result;
}

int spawn_program(pid_t *ret, const SpawnOptions *o) {
        pid_t pid;
        int r = o->keeps_capabilities || !has_capabilities() ? start(&pid, o)
                                                             : start_without_capabilities(&pid, o);
        if (r < 0)
                return r;
        if (inherited.rlim_max > 0) /* posix_spawn(3) cannot; one that has ended needs none */
                (void)prlimit(pid, RLIMIT_NOFILE, &inherited, NULL);
        *ret = pid;
        return 0;
}
