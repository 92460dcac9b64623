/* The table of collectors: for each source of a snapshot its name, its function, what its child may
 * do, and when it runs. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collectors/runner/collector.h"
#include "collectors/runner/probe_request.h"

/** What a collector needs beside its capabilities. */
enum {
        COLLECTOR_OPENS_DEVICES = 1,   /* nodes of Neuron devices, for ioctl(2) */
        COLLECTOR_MAKES_FILES = 2,     /* raw files, in the directory that it is given */
        COLLECTOR_READS_PROCESSES = 4, /* of other users: /proc/PID/environ, maps, fd, root … */
        COLLECTOR_MAY_EXEC = 8,        /* rpm */
        COLLECTOR_RUNS_COMMANDS = 16,
        COLLECTOR_READS_KERNEL_LOG = 32, /* by syslog(2), where there is no /dev/kmsg */
};

/** A source of a snapshot. */
typedef struct Collector {
        const char *name;
        /** Collects until it is done or killed. @return 0; COLLECT_E_NOTHING; -errno: it could not
         * start, and out->why has the reason */
        int (*run)(const CollectRequest *request, CollectOut *out);
        /** Reports news until it is killed; NULL: this collector cannot */
        int (*follow)(const CollectRequest *request, CollectOut *out);
        uint64_t capabilities; /* that the child keeps, where the supervisor has them */
        unsigned needs;        /* COLLECTOR_… */
        bool needs_process;    /* skipped when the request names no process */
        bool is_compared;      /* runs again after the processes have exited; the second document
                                  shows the differences */
        bool rereads_dumps;    /* runs again then, without raw files, when the request has dumps */
        bool is_public;        /* its section may be shown to the unprivileged caller of the hook */
} Collector;

typedef struct CollectorTable {
        const Collector *rows;
        size_t n;
} CollectorTable;

/** The collectors of this program. Tests pass tables of their own. */
extern const CollectorTable collector_table;

/** @return the row of that name, borrowed; NULL */
const Collector *collector_table_find(const CollectorTable *table, const char *name);

/** @return how long a collector may run for a request. For `commands`, the timeouts of all commands
 * are added, because they run one after the other. */
uint64_t collector_timeout_usec(const Collector *collector, const ProbeRequest *request);
