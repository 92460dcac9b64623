/* The wall clock by the other two calls that tell it, for libraries that replace clock_gettime():
 * they have to agree. Included once. */
#pragma once

#include <sys/time.h>
#include <time.h>

int gettimeofday(struct timeval *restrict ret, void *restrict zone) {
        struct timespec now;
        (void)zone;
        (void)clock_gettime(CLOCK_REALTIME, &now);
        *ret = (struct timeval){ .tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000 };
        return 0;
}

time_t time(time_t *ret) {
        struct timespec now;
        (void)clock_gettime(CLOCK_REALTIME, &now);
        if (ret)
                *ret = now.tv_sec;
        return now.tv_sec;
}
