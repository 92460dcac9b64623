/* The parts of `failures` among themselves. The arrows show who calls whom:
 *
 *     failures.c  what is due, life, status
 *        |
 *        +--> failures_names.c     the name of a bundle that is READY
 *        |       +--> failures_reports.c   notes, ranks and bundles become claims
 *        |               +--> failures_claims.c    a claim changes, is stored, is restored
 *        |                       +--> failures_meeting.c   arbiter and rendezvous of a key
 *        |                               +--> failures_bundles.c   which bundles are of a failure
 *        +--> failure_table.c, failure_pointers.c, which know nothing of Failures
 */
#pragma once

#include "agent/failures/failure_pointers.h"
#include "agent/failures/failure_table.h"
#include "agent/failures/failures.h"
#include "agent/failures/job_scope.h"
#include "agent/peers/bus.h"

struct Failures {
        FailuresContext context;
        const Config *config; /* borrowed */
        Scheduler *scheduler; /* borrowed; NULL: there is none now */
        Agreement *agreement;
        Bus *bus; /* NULL: none */
        FailureTable table;
        FailurePointers pointers;
        void (*wake)(Failures *f); /* makes failures_step() run in the next turn of the loop */
        sd_event_source *timer;
        char boot_id[CLAIM_BOOT_ID_SIZE];
        bool hurry;            /* drain, --once: nothing settles any more */
        bool is_blind;         /* the end of ranks cannot be seen */
        int64_t prune_usec;    /* when failures_prune() is due */
        int64_t meeting_usec;  /* when failures_set_rendezvous() is due */
        uint64_t created_usec; /* when the state database was created, CLOCK_REALTIME */
        int64_t busy_usec;     /* since when something is about to be written; 0 = nothing is */
        uint64_t n_named[N_AGREED];
};

/** CLOCK_BOOTTIME */
static inline int64_t failures_now_usec(const Failures *f) {
        return (int64_t)f->context.clock->boottime_usec(f->context.clock);
}

/** CLOCK_REALTIME less CLOCK_BOOTTIME. */
static inline int64_t failures_realtime_offset(const Failures *f) {
        Clock *c = f->context.clock;
        return (int64_t)c->realtime_usec(c) - (int64_t)c->boottime_usec(c);
}

/** @return a time of the past as CLOCK_BOOTTIME. The clock may have been set since, so it is at
 * most now, and at least now less AGREEMENT_KEEP_USEC */
static inline int64_t failures_boottime_of(const Failures *f, uint64_t realtime_usec) {
        int64_t now = failures_now_usec(f);
        int64_t t = (int64_t)realtime_usec - failures_realtime_offset(f);
        return realtime_usec == 0 || t > now ? now : MAX(t, now - AGREEMENT_KEEP_USEC);
}

/* ---- failures.c ---- */

/** Does what is due, and arms the timer for what is due next. */
void failures_step(Failures *f);

/* ---- failures_reports.c ---- */

/** @return the unit of a bundle, with the claims that were restored for it; NULL: another bundle
 * has it, or no memory */
FailureUnit *failures_unit_of(Failures *f, Bundle *b);
/** The files of a bundle, and the processes in their names, are known now. */
void failures_on_unit_ready(Failures *f, FailureUnit *u, const Bundle *b);
/** Claims the units for which no note has come in time. @return when to call it again */
int64_t failures_claim_units(Failures *f);

/* ---- failures_claims.c ---- */

/** Sets a claim of this node of which nothing is known. */
void failures_init_claim(const Failures *f, Claim *c);
/** @return a number in place of the pid, for a claim whose process is unknown */
uint32_t failures_number_of_unknown(const char *what);
/** Sets the names that a claim proposes for its failure. A cluster id that cannot be in a path is
 * ignored; without a valid date-time it is the current time by this node's clock. */
void failures_set_names(const Failures *f, Claim *c, const char *cluster_id, const char *date_time);
/** A claim is new, or has changed: the agreement gets it, and the state database. */
void failures_claim_process(Failures *f, FailureProcess *p);
/** Sets the bundle of one claim. */
void failures_set_process_bundle(Failures *f, FailureProcess *p, const char *bundle,
                                 ClaimBundle state);
/** Sets the unit's bundle on all its claims, but on those whose bundle was delivered. */
void failures_set_unit_bundle(Failures *f, const FailureUnit *u, ClaimBundle state);
/** Stores of each claim to which failure it belongs, as soon as that failure has a number.
 * @return whether claims have a failure now that had none before */
bool failures_place_claims(Failures *f);
/** Frees claims that nobody needs any more. @return 0; -errno: of the state database */
int failures_prune(Failures *f);
/** Reads the claims of the runs before. What cannot be read is asked for again. */
void failures_restore(Failures *f);

/* ---- failures_bundles.c ---- */

/** Writes into the rows of a process's bundles which failure they are of, once that has a number.
 */
void failures_number_bundles(Failures *f, const FailureProcess *p);
/** As failures_number_bundles(), in memory, of a bundle that was just named without a failure. */
void failures_number_bundle(const Failures *f, BundleRecord *rec);
/** Adds the bundles that this node has of a failure. @param userdata  the Failures
 * @return 0; -errno: not all of them, which is logged */
int failures_add_bundles(const Decision *failure, NodeBundles *ret, void *userdata);
/** A bundle has ended: the node's record of its failure, if it has one, is written again. */
void failures_record_bundle(Failures *f, const BundleRecord *rec);

/* ---- failures_meeting.c ---- */

/** Sets who decides for a key, anew: an arbiter that was unable may be able now, or the key may
 * have another one. */
void failures_set_arbiter(Failures *f, FailureKey *k);
/** @return whether a job is on this node alone */
bool failures_is_local(const Failures *f, const FailureKey *k);
/** Dials the hosts where the agents of the jobs meet that run here. */
void failures_set_rendezvous(Failures *f);
