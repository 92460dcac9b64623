/* Decides when a bundle is complete: facts and time in, an answer out; nothing is touched. See
 * docs/DESIGN.md, Completeness. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef enum IntakeWriters {
        INTAKE_WRITERS_NONE, /* a read lease was granted on every member: no process has one open
                                for writing */
        INTAKE_WRITERS_SOME,
        INTAKE_WRITERS_UNKNOWN, /* no leases here (NFS, Lustre, no CAP_LEASE): only quiet counts */
} IntakeWriters;

typedef struct IntakeFacts {
        bool gone; /* nothing of it is left at its place */
        bool held; /* our links or descriptors hold every member seen */
        IntakeWriters writers;
        uint64_t quiet_usec; /* how long names, sizes and mtimes have stood still */
        bool process_gone;   /* the process that wrote it was seen alive and is not any more */
        bool contradicted;   /* a member's own header announces more than is there */
        unsigned n_hooks;    /* that may still write files of it */
        bool hooks_finished; /* one has reported it, and all that did have finished */
        bool missing;        /* a file that a hook promised has not been seen */
} IntakeFacts;

/* A unit that a hook reports is the last thing its process wrote: when the hook has finished, so
 * long a quiet is enough where no process has a member open. */
#define INTAKE_HOOK_QUIET_USEC (1000 * 1000)

typedef struct IntakeLimits {
        uint64_t settle_usec, max_wait_usec;
        uint64_t waited_usec; /* since first sight */
        bool flush;           /* the operator wants it now, as if `settle` were over */
} IntakeLimits;

typedef enum IntakeVerdict {
        INTAKE_WAIT, /* probe again in next_usec */
        INTAKE_COMPLETE,
        INTAKE_INCOMPLETE, /* is shipped, labelled with `why` */
        INTAKE_VANISHED,
} IntakeVerdict;

typedef struct IntakeAnswer {
        IntakeVerdict verdict;
        uint64_t next_usec; /* from now; only for INTAKE_WAIT */
        const char *why;    /* static, a sentence for people: why it waits or is incomplete */
} IntakeAnswer;

/** @return whether it could be complete, so that writers and headers are worth checking;
 * facts->writers and ->contradicted are not read */
bool intake_is_due(const IntakeFacts *facts, const IntakeLimits *limits);

IntakeAnswer intake_decide(const IntakeFacts *facts, const IntakeLimits *limits);

/** How long a unit has been quiet, from what was seen at the last probe and now. Elapsed time is
 * counted on the boot clock: mtimes may lie, and the real-time clock may go back. (What was found
 * for the first time starts with the age of its newest mtime or ctime.)
 * @param changed          whether names, sizes or mtimes differ from the last probe
 * @param since_probe_usec  boot clock since the last probe
 * @param quiet_usec       the answer of the last probe */
uint64_t intake_quiet_usec(bool changed, uint64_t since_probe_usec, uint64_t quiet_usec);
