/* A child for what may hang: it is waited for until a moment, then killed and left behind. */
#pragma once

#include <stdint.h>
#include <sys/types.h>

typedef struct Bounded {
        pid_t pid; /* 0: none was started, and result says why */
        int fd;    /* ends when the child does; -1 */
        int result;
} Bounded;

#define BOUNDED_NONE ((Bounded){ .fd = -1 })

/** Forks; the caller has one thread. The child dies with its caller. @param run  in the child: 0 or -errno */
void bounded_start(Bounded *b, int (*run)(void *userdata), void *userdata);

/** @param until_usec  CLOCK_BOOTTIME
 * @return what run() returned; -ETIMEDOUT: killed, perhaps still there; -EPIPE: it crashed; -errno of fork(2). Again: the same */
int bounded_wait(Bounded *b, uint64_t until_usec);
