/* Starts a program with the given descriptors and no others, by posix_spawn(3). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define SPAWN_FDS_MAX 5

typedef struct SpawnOptions { /* borrowed for the call */
        const char *program;  /* without a slash it is searched in PATH */
        char *const *argv, *const *environment;
        int fds[SPAWN_FDS_MAX]; /* its 0, 1, …; -1 = /dev/null. Each is n_fds or above, or at its
                                   own place */
        size_t n_fds;
        bool keeps_signals; /* what is ignored stays ignored, what is blocked stays blocked */
        /* For a program of ours that needs them. Any other one starts without: nothing effective,
         * permitted, inheritable or ambient, and none to be had by execve(2). */
        bool keeps_capabilities;
} SpawnOptions;

/** Starts it in a process group of its own, with all signals at their defaults and none blocked.
 * @param ret  untouched but in success; the caller reaps it  @return 0, -errno, that of execve(2)
 * too */
int spawn_program(pid_t *ret, const SpawnOptions *o);

/** Lets this process open as many descriptors as its hard limit allows. Programs that are started
 * from then on get the limit back that was there before, a moment after they have started: some use
 * select(2), which knows 1024. Once, before there are threads. @return 0, -errno */
int spawn_raise_fd_limit(void);
