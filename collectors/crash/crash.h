/* A crash report: what a core says of why its process died. Made in a child that can open nothing:
 * it asks for each program and library by path and build id, and gets a descriptor. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "collectors/crash/origin/files.h"
#include "lib/base/strbuf.h"

#define CRASH_FILE "crash.json"
#define CRASH_TEXT_FILE "crash.md"
#define CRASH_TIMEOUT_USEC (10 * USEC_PER_SEC)
#define CRASH_STREAM_TIMEOUT_USEC (4 * USEC_PER_MINUTE)
#define CRASH_CHILD "--child=crash"

/* What is known beside the core. Every member may be absent; docs/CRASH-REPORTS.md has it for
 * people.
 * {
 *   "pid": 4711,                          of the process, as the kernel's log has it: on the node
 *   "signatures": {                       CRASH_SIGNATURES_MAX at most
 *     "<signature.id>": { "count": 3, "since": "2026-11-24T00:00:00Z" }
 *   },                                    count: earlier crashes on this node, without this one
 *   "kernel": [                           the log of the time about the crash, 64 lines at most
 *     { "time": "2026-11-24T00:00:00Z", "text": "…", "kind": "segfault|oom|mce|aer|efa|other" }
 *   ],
 *   "job": { … }                          printed as it is: cluster, job id, rank, container …
 * } */
#define CRASH_CONTEXT_BYTES_MAX (256 * KIB)
#define CRASH_SIGNATURES_MAX 256

typedef struct CrashRequest {
        const char *program;      /* that has crash_child_main() behind CRASH_CHILD; absolute */
        const char *core_name;    /* as the report names it */
        int core_fd;              /* borrowed, as the roots' are; may be a pipe, or zstd */
        const FileRoot *roots;    /* where programs and libraries may be, the likeliest first */
        size_t n_roots;           /* <= FILES_ROOTS_MAX */
        const FileReader *reader; /* the core's owner: files_open() */
        const char *context;      /* JSON, as above; NULL, or more than its bound: none */
        uint64_t timeout_usec;
        /* Whether others wait: then the report ends after slice_usec. NULL: they never do */
        const atomic_bool *others_wait;
        uint64_t slice_usec;
        uint64_t stream_timeout_usec; /* before that, to read a pipe or decompress; then the report
                                         is of what came. 0 = CRASH_STREAM_TIMEOUT_USEC */
} CrashRequest;

typedef struct CrashReport {
        char *json, *text;  /* of CRASH_FILE and CRASH_TEXT_FILE */
        char *fault;        /* a sentence: why there is none; NULL */
        bool slice_is_over; /* that is why: others waited, and it may be made later */
} CrashReport;

enum { CRASH_E_FAILED = 1 };

/** Makes one. Blocks: for a command or a worker. @param ret  to be given to crash_report_done()
 * @return 0, CRASH_E_FAILED and ret->fault, -errno */
int crash_report(const CrashRequest *request, CrashReport *ret);
void crash_report_done(CrashReport *r);

/** `--child=crash`. Not for people. @return an exit code */
int crash_child_main(void);
