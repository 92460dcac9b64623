/* The ranks that run on this node, which the records of the `jobs` collector name every 30 s: when
 * they end, and whether their job has others elsewhere. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "agent/peers/agreement.h"
#include "collectors/host/jobs.h"
#include "lib/base/cleanup.h"

/** @return when a process started, CLOCK_BOOTTIME */
uint64_t rank_start_usec(uint64_t start_ticks);

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
 * @return 0; -ESRCH: it has ended, another one may have its pid (where that may be
 * seen); -errno: its end cannot be seen */
int rank_watch_new(RankWatch **ret, const RankWatchOptions *options);
RankWatch *rank_watch_free(RankWatch *w);
DEFINE_CLEANUP(RankWatch, rank_watch_free);

typedef struct JobFacts {
        size_t n_here;          /* different ranks of it on this node */
        bool has_rendezvous;    /* a host where its ranks meet, which is */
        bool rendezvous_is_own; /* … this node */
        bool bus_has_key;       /* else it speaks to nobody */
} JobFacts;

typedef struct JobScope {
        bool is_local; /* the job is on this node alone: nobody else has to be waited for */
        Role role;     /* of this node's agent; a leaf dials the rendezvous */
} JobScope;

/** A host to connect to, and the user whose job it is for. */
typedef struct DialledHost {
        uid_t uid;
        char host[JOB_HOST_SIZE];
} DialledHost;

/** Adds a host unless the list contains it. A full list drops a host of the user who has most of
 * them, if that user has at least two more than this one.
 * @param max  hosts in the list @return the new number of hosts */
size_t dialled_host_add(DialledHost *list, size_t n, size_t max, const DialledHost *h);

/** A job is local when all ranks of a known world size are here, or there is neither a world size
 * nor another node's rendezvous. The centre of any other one is the agent at its rendezvous. */
JobScope job_scope(const JobIdentity *job, const JobFacts *facts);
