/* Preloaded into a daemon of a test: its wall clock is wrong by NC_SHIFT_SECONDS, which may be
 * negative. Timers, the monotonic and boot clocks and the times of files are the kernel's own,
 * which libfaketime changes as well. */
#include "tests/harness/wall_clock.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

static time_t shift;

__attribute__((constructor)) static void set_up(void) {
        const char *text = getenv("NC_SHIFT_SECONDS");
        shift = text ? (time_t)strtol(text, NULL, 10) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *ret) {
        static int (*real)(clockid_t, struct timespec *);
        if (!real)
                real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
        int r = real(clock, ret);
        if (r == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
                ret->tv_sec += shift;
        return r;
}
