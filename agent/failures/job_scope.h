/* Whether a job is on this node alone, and which hosts its agents dial. Pure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "agent/peers/agreement.h"
#include "lib/neuron/job.h"

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
size_t job_scope_add_host(DialledHost *list, size_t n, size_t max, const DialledHost *h);

/** A job is local when all ranks of a known world size are here, or there is neither a world size
 * nor another node's rendezvous. The centre of any other one is the agent at its rendezvous. */
JobScope job_scope(const JobIdentity *job, const JobFacts *facts);
