/* The process in which one collector runs: `neuron-collectd --child=collect:COLLECTOR`. */
#pragma once

#include <stdbool.h>

#include "collectors/collector_table.h"

/** What a collector's process has open. */
enum {
        CHILD_ORDER_FD = 0, /* the request */
        CHILD_OUT_FD = 1,   /* gets the records */
        CHILD_WHY_FD = 2,   /* gets a line: why records are missing */
        CHILD_DIR_FD = 3,   /* the directory for raw files, if any */
};

/** Exit codes of all `--child=` programs of this folder. */
enum {
        CHILD_DONE = 0,
        CHILD_FAILED = 1, /* it could not start; CHILD_WHY_FD has the reason */
        CHILD_USAGE = 2,
        CHILD_CUT = 3,     /* not everything fitted into max_bytes */
        CHILD_SKIPPED = 4, /* this node has nothing of this kind */
};

/** Reads the request, confines this process, and runs the collector.
 * @param follows  reports news until it is killed (Collector.follow)
 * @return CHILD_…; CHILD_USAGE with a sentence on stderr where a person started it */
int collector_child_main(const CollectorTable *table, const char *name, bool follows);

/** Prints that `--child` is not for people. @return CHILD_USAGE */
int collector_child_usage(void);
