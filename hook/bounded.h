/* A child for what may hang: it is waited for until a moment, then killed and left behind. */
#pragma once

#include <stdint.h>
#include <sys/types.h>

typedef struct Bounded {
        pid_t pid; /* 0: there is no child */
        int fd;    /* says the result; -1 */
        int result;
        int (*put_off)(void *userdata); /* no child could be made: done by bounded_wait() */
        void *userdata;                 /* of put_off; borrowed */
} Bounded;

#define BOUNDED_NONE ((Bounded){ .fd = -1 })

/** Forks; the caller has one thread. The child dies with its caller. Where there can be no child (RLIMIT_NPROC, pids.max, ENOMEM, EMFILE)
 * nothing is done yet. @param run  in the child: 0 or -errno; what it opened it has closed */
void bounded_start(Bounded *b, int (*run)(void *userdata), void *userdata);

/** What was put off is done here; then this process ends at until_usec, with 0 where it can, when that hangs.
 * @param until_usec  CLOCK_BOOTTIME
 * @return what run() returned; -ETIMEDOUT: killed, perhaps still there; -EPIPE: it crashed. Again: the same */
int bounded_wait(Bounded *b, uint64_t until_usec);
