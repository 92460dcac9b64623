/* What all probes of a source have in common: each is work on a unit or a path in a thread of the
 * source, and a function of the loop that is called with the answer.
 *
 * The kinds are types of their own that embed an IntakeProbe: PathProbe (path_probes.c), UnitProbe
 * (unit_probe.h), LateProbe (late_files.c), LinkRecheck (ended_links.c). */
#pragma once

#include "agent/intake/source.h"

typedef struct IntakeProbe IntakeProbe;

typedef struct ProbeKind {
        /* In the thread: touches what the probe owns. @return what `result` becomes */
        int (*run)(IntakeProbe *p);
        /* Frees what embeds the probe, and calls probe_done(). */
        void (*free)(IntakeProbe *p);
} ProbeKind;

struct IntakeProbe {
        SourceTask task;
        const ProbeKind *kind;
        IntakeSource *source; /* for done(); set when it is submitted */
        void (*done)(IntakeSource *s, IntakeProbe *p);
        SourceSpec *spec;       /* a reference */
        char *relative;         /* the path, below the fixed part; owned */
        int result;             /* 0, a positive outcome that the kind documents, -errno */
        uint64_t duration_usec; /* of run() */
};

/** @param relative  copied. @return 0, -ENOMEM: there is nothing to be freed but the kind's own */
int probe_init(IntakeProbe *p, const ProbeKind *kind, SourceSpec *spec, const char *relative);
void probe_done(IntakeProbe *p);

/** Runs a probe in a thread of the pool. It is freed after done(), or where it cannot be started;
 * that is logged. @param done  on the loop @return whether it was started */
bool probe_submit(IntakeSource *s, WorkerPool *pool, IntakeProbe *p,
                  void (*done)(IntakeSource *s, IntakeProbe *p));
