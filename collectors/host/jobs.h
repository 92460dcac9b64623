/* Who holds the machine's Neuron devices, found by reading links: no device is opened. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "collectors/host/procfs.h"
#include "collectors/runner/collector.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/job.h"

#define JOBS_HOLDERS_MAX 1024
#define JOBS_DEVICES_MAX 64 /* of one process; a node has 16 */
#define JOBS_FDS_MAX 65536  /* examined of one process */

typedef struct JobsHolder {
        ProcStat stat;
        uid_t uid;
        int devices[JOBS_DEVICES_MAX]; /* ascending */
        size_t n_devices;
        bool is_write_only; /* all of them O_WRONLY, which marks no core */
        bool is_by_name;    /* one is known by its name alone */
        bool maps_runtime;  /* libnrt.so is mapped; searched by JOBS_BY_MAPS only */
        bool is_reported;   /* by collect_jobs() */
} JobsHolder;

typedef struct JobsScan {
        JobsHolder *holders; /* by pid, ascending; the scan's */
        size_t n_holders;
        size_t n_processes, n_hidden; /* seen; of which this many are not for us to examine */
        bool is_cut;                  /* there are more holders than JOBS_HOLDERS_MAX */
} JobsScan;

typedef struct JobsProcess { /* what a record says of its process */
        pid_t pid;
        uint64_t start_ticks;
        uid_t uid;
        JobIdentity job; /* with a key */
} JobsProcess;
/** Reads a record, which is as hostile as the process that it speaks of.
 * @return whether it is one of a process with a job */
bool jobs_parse_record(const char *record, JobsProcess *ret);

/** The devices that a process holds. It waits for nothing.
 * A link counts when it leads to <device_directory>/neuronN or /dev/neuronN and, where it can be
 * checked, is a character device or the very file that lies there here. @return 0, or an outcome of
 * procfs.h */
int jobs_devices_of(const CollectRequest *request, const Proc *p, JobsHolder *h);

/** @param ret_hidden  its maps cannot be read @return whether it has libnrt.so mapped. May wait
 * (procfs.h), so only in a child */
bool jobs_maps_runtime(const Proc *p, bool *ret_hidden);

typedef enum JobsScanMode {
        JOBS_BY_DEVICES, /* links of descriptors; waits for nothing */
        JOBS_BY_MAPS,    /* maps of processes that are large enough for the runtime; may wait
                            (procfs.h), so only in a child */
} JobsScanMode;

/** Looks at all processes. @return 0, -errno */
int jobs_scan(const CollectRequest *request, JobsScanMode mode, JobsScan *ret);
void jobs_scan_done(JobsScan *s);

/** Adds "devices": [0, 1]. */
void jobs_add_devices(StrBuf *b, const JobsHolder *h);
/** Adds what is known of a job: source, key, rank … into an object that is open. */
void jobs_add_members(StrBuf *b, const JobIdentity *id);
/** Adds "container": from the text of a cgroup file, or null. */
void jobs_add_container(StrBuf *b, const char *cgroup, size_t n);
/** Adds "job": from its environment (may wait), or null, and "container": from its cgroup, or null.
 */
void jobs_add_identity(StrBuf *b, const Proc *p);
