/* Waits for the end of one process. */
#pragma once

#include <stdint.h>
#include <sys/types.h>
#include <systemd/sd-event.h>

#include "lib/base/cleanup.h"

/** @return when a process with these start ticks (field 22 of /proc/PID/stat) started,
 * CLOCK_BOOTTIME */
uint64_t rank_watch_start_usec(uint64_t start_ticks);

typedef struct RankWatch RankWatch;

typedef struct RankWatchOptions {
        sd_event *event;
        const char *proc_root; /* for the call */
        pid_t pid;
        uint64_t start_ticks;           /* 0 = not known */
        void (*on_end)(void *userdata); /* once; it may free the watch */
        void *userdata;
} RankWatchOptions;

/** Waits for the end of a process by a pidfd (Linux 5.3, not refused by a seccomp filter).
 * @return 0; -ESRCH: it has ended, and another process may have its pid; -errno: its end cannot be
 * seen */
int rank_watch_new(RankWatch **ret, const RankWatchOptions *options);
RankWatch *rank_watch_free(RankWatch *w);
DEFINE_CLEANUP(RankWatch, rank_watch_free);
