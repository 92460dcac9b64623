/* The ranks that run on this node: which process of which job a record of the `jobs` collector is
 * of, and when it ends; and whether a job has ranks elsewhere. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "agent/peers/agreement.h"
#include "lib/base/cleanup.h"
#include "lib/neuron/job.h"

typedef struct Rank {
        pid_t pid;
        uint64_t start_ticks;
        uid_t uid;
        JobIdentity job; /* with a key */
} Rank;

/** @param record  of the `jobs` collector, as JSON (docs/SNAPSHOT.md)
 * @return whether it is one of a process with a job */
bool rank_parse(const char *record, Rank *ret);
/** @return when a process started, CLOCK_BOOTTIME */
uint64_t rank_start_usec(uint64_t start_ticks);

typedef struct RankWatch RankWatch;

typedef struct RankWatchOptions { /* the root is copied */
        sd_event *event;
        const char *proc_root;
        pid_t pid;
        uint64_t start_ticks;
        void (*on_end)(void *userdata); /* once; it may free the watch */
        void *userdata;
} RankWatchOptions;

/** Waits for the end of a process: by a pidfd, or within 5 s where the kernel has none or refuses
 * it. @return 0; -ESRCH: it has ended, another one may have its pid; -errno: it cannot be seen */
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
        bool is_local;   /* the job is on this node alone: nobody else has to be waited for */
        bool is_dialled; /* the agent at its rendezvous is */
        Role role;
} JobScope;

/** A job is local when all ranks of a known world size are here, or there is neither a world size
 * nor another node's rendezvous. The centre of any other one is the agent at its rendezvous. */
JobScope job_scope(const JobIdentity *job, const JobFacts *facts);
