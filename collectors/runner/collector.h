/* What a collector gets, and what it writes. A collector is a row of collector_table.c and a
 * function in host/ or neuron/. It runs in a process of its own (`neuron-collectd
 * --child=collect:NAME`), gets a request, and writes records: JSON objects, one a line, each as
 * soon as it is known, so that the supervisor keeps what a process wrote before it was killed.
 * docs/BUNDLE.md describes the records. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/base/owner.h"
#include "lib/base/strbuf.h"

/** A process that a snapshot is about. */
typedef struct CollectProcess {
        pid_t pid;            /* in this machine's first pid namespace */
        uint64_t start_ticks; /* field 22 of its stat when it was named; 0: not known. A process
                                 with another value is another one, and is not read */
} CollectProcess;

#define COLLECT_PROCESSES_MAX 256
#define COLLECT_FILES_MAX 256
#define COLLECT_DUMPS_MAX 64

/** A log of the runtime that a note names. The path is hostile: only what the sender of the note
 * may read is read. */
typedef struct CollectLogFile {
        char *path;                /* absolute, as the process sees it */
        Owner owner;               /* who names it */
        pid_t pid;                 /* of the process that writes it; 0 = not known (yet) */
        uint64_t start_ticks;      /* of pid; 0 = not known */
        pid_t hook_pid, inner_pid; /* where pid is 0: the query that will find it; 0: none */
} CollectLogFile;

/** The directory of a dump. Its path, and what it contains, are hostile. */
typedef struct CollectDump {
        char *path; /* absolute */
        uid_t uid;  /* of the user who named it: his files are read, and those of the directory's
                       owner */
} CollectDump;

typedef struct CollectCommand {
        char *name, **run; /* NULL-terminated */
        uint64_t timeout_usec;
} CollectCommand;

/** What a collector gets; borrowed. */
typedef struct CollectRequest {
        char *sysfs_root, *device_directory, *proc_root;
        char **environment; /* patterns of names that may be recorded, NULL-terminated */
        uint64_t timeout_usec, max_bytes;
        CollectProcess *processes;
        size_t n_processes;
        CollectLogFile *log_files; /* redacted */
        size_t n_log_files;
        CollectDump *dumps; /* their logs of the runtime are read */
        size_t n_dumps;
        const char *instance_id; /* of this node, borrowed; NULL: not known */
        CollectCommand *commands;
        size_t n_commands;
        uint64_t since_boot_usec; /* kmsg: 0: all that the ring still has */
} CollectRequest;

/** Outcome of a collector that has nothing to record: CollectOut.why has the reason. */
enum { COLLECT_E_NOTHING = 1 };

/** Where records and raw files go. */
typedef struct CollectOut {
        int fd;                         /* records */
        int dir_fd;                     /* raw files; -1: they are not wanted */
        uint64_t max_bytes, used_bytes; /* records and raw files together */
        bool is_cut;                    /* a record or a file did not fit and was left out */
        const char *raw_prefix; /* of raw files of a later snapshot: "more-1-"; NULL = the first */
        char why[256]; /* why records are missing: names the thing, the error and the remedy; "":
                          the errno tells enough */
} CollectOut;

/** Writes one record whole, or not at all. @param record  a JSON object without a newline; cleared
 * in any case
 * @return 0, -EFBIG when it does not fit (and is_cut), -EINVAL with a newline or nothing in it,
 * -ENOMEM when it could not be built, -errno */
int collect_emit(CollectOut *out, StrBuf *record);
/** As collect_emit(), but a record that does not fit is no error: a shorter one may still fit. */
int collect_emit_fitting(CollectOut *out, StrBuf *record);
/** As collect_emit_fitting(), for a line that a part of the collector wrote. */
int collect_emit_line(CollectOut *out, const char *line, size_t n);
/** Writes a record from a part of a collector to its parent. @return 0, -ENOMEM, -errno */
int collect_write_line(int fd, StrBuf *record);
/** Makes a raw file. @param name  `[A-Za-z0-9._-]+`, at most 100 bytes, no dot at its beginning
 * @return an fd of the caller's to write to by collect_write(), -EOPNOTSUPP when none are wanted,
 * -EEXIST, -EINVAL, -errno */
int collect_raw_file(CollectOut *out, const char *name);
/** Writes all of the data, or nothing if it does not fit. @return 0, -EFBIG (and is_cut), -errno */
int collect_write(CollectOut *out, int fd, const void *data, size_t n);

/* The collectors, each in its own file of host/ or neuron/. collector_table.c has the table. */
int collect_neuron_sysfs(const CollectRequest *request, CollectOut *out);
int collect_neuron_device(const CollectRequest *request, CollectOut *out);
int collect_kmsg(const CollectRequest *request, CollectOut *out);
int collect_process(const CollectRequest *request, CollectOut *out);
int collect_jobs(const CollectRequest *request, CollectOut *out);
int collect_packages(const CollectRequest *request, CollectOut *out);
int collect_process_packages(const CollectRequest *request, CollectOut *out);
int collect_commands(const CollectRequest *request, CollectOut *out);
int collect_runtime_log(const CollectRequest *request, CollectOut *out);

/** Follows the kernel log from now on, and writes a record for each line of the kind that
 * collect_kmsg() keeps, until it is killed. */
int follow_kmsg(const CollectRequest *request, CollectOut *out);
