/* A child for what may hang: it is waited for until a moment, then killed and left behind. */
#pragma once

#include <stdint.h>
#include <sys/types.h>

typedef struct TimedChild {
        pid_t pid; /* 0: there is no child */
        int fd;    /* says the result; -1 */
        int result;
        int (*deferred)(void *userdata); /* no child could be made: done by child_timeout_wait() */
        void *userdata;                  /* of deferred; borrowed */
} TimedChild;

#define TIMED_CHILD_NONE ((TimedChild){ .fd = -1 })

/** Forks; the caller has one thread. The child dies with its caller. Where there can be no child
 * (RLIMIT_NPROC, pids.max, ENOMEM, EMFILE) nothing is done yet. @param run  in the child: 0 or
 * -errno; what it opened it has closed */
void child_timeout_start(TimedChild *b, int (*run)(void *userdata), void *userdata);

/** What was put off is done here; then this process ends at until_usec, with 0 where it can, when
 * that hangs.
 * @param until_usec  CLOCK_BOOTTIME
 * @return what run() returned; -ETIMEDOUT: killed, perhaps still there; -EPIPE: it crashed. Again:
 * the same */
int child_timeout_wait(TimedChild *b, uint64_t until_usec);
