/* The ranks that run on this node: processes of jobs at Neuron devices, each with a pidfd, so that
 * its end is seen. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "lib/base/clock.h"
#include "lib/neuron/job.h"

#define RANKS_MAX 1024

typedef struct Ranks Ranks;

typedef struct Rank { /* borrowed for the call */
        pid_t pid;
        uint64_t start_ticks;
        uid_t uid;
        JobIdentity job;
        bool has_ended;
        /* CLOCK_BOOTTIME: the process started, was first seen, has ended (0: it lives) */
        uint64_t started_usec, seen_usec, ended_usec;
} Rank;

typedef struct RanksContext { /* borrowed */
        sd_event *event;
        Clock *clock;
        const char *proc_root;
        /* A process with a job key is new, or one that was reported has ended, or gives way to
         * those of other users: then it is new again when it is seen again. */
        void (*on_rank)(const Rank *r, void *userdata);
        void *userdata;
} RanksContext;

int ranks_new(Ranks **ret, const RanksContext *context);
Ranks *ranks_free(Ranks *r);
/** @param proc_root  borrowed instead of the context's */
void ranks_rebind(Ranks *r, const char *proc_root);
/** A record of the `jobs` collector, as JSON (docs/SNAPSHOT.md); what has ended already or cannot
 * be read is ignored. */
void ranks_on_job(Ranks *r, const char *record);
/** @return whether a live rank with this job key is here */
bool ranks_has_job(const Ranks *r, const char *job_key);
/** @return whether live ranks with this job key are here, and none of them is this user's */
bool ranks_are_others(const Ranks *r, const char *job_key, uid_t uid);
size_t ranks_n(const Ranks *r);

/** @return whether a job is on this node alone, so that nobody else has to be waited for: all ranks
 * of a known world size are here, or there is neither a world size nor another node's rendezvous.
 * Pure. @param n_here  different ranks of the job on this node
 * @param rendezvous_is_here  the host of its rendezvous is this node, or it has none */
bool job_is_local(const JobIdentity *job, size_t n_here, bool rendezvous_is_here);
