/* `neuron-collectd --child=NAME`: what the daemon's program is when it is executed anew for a
 * probe. Not for people. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collectors/runner/collector.h"

/** A source of a snapshot. */
typedef struct Collector {
        const char *name;
        /** Collects until it is done or killed. @return 0; COLLECT_E_NOTHING; -errno: it could not
         * even begin, and the section has the reason */
        int (*run)(const CollectRequest *order, CollectOut *out);
        uint64_t capabilities; /* it keeps */
        unsigned needs;
        bool per_process; /* has nothing to report without a process */
        bool twice;       /* again after the processes have exited, and the difference is shown */
        bool again;       /* then too, where the request has dumps; without raw files */
        bool is_public;   /* may be shown to the unprivileged caller of the hook */
} Collector;

extern const Collector collectors[];
extern const size_t n_collectors;
const Collector *collector_find(const char *name); /* NULL */

/** @param name  `probe` (a supervisor, with a connection to the agent as fd 0), `collect:COLLECTOR`
 * or `follow:kmsg` (fd 0: the request, fd 1: where records go, fd 2: why not all is there, a line,
 * fd 3: directory for raw files, if any)
 * @return an exit code: CHILD_DONE … or 2 with a sentence on stderr when a person typed it */
int child_main(const char *name);

enum {
        CHILD_DONE = 0,
        CHILD_FAILED = 1, /* it could not even begin: why is on stderr */
        CHILD_USAGE = 2,
        CHILD_CUT = 3,     /* not all did fit into max_bytes */
        CHILD_SKIPPED = 4, /* there is nothing of this kind here */
};

enum { CHILD_ORDER_FD = 0, CHILD_OUT_FD = 1, CHILD_WHY_FD = 2, CHILD_DIR_FD = 3 };
