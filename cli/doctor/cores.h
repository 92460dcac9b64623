/* What kernel.core_pattern and RLIMIT_CORE do with the core of a process that crashes, and what to
 * change so that a source gets it.
 * @see core(5), systemd-coredump(8), apport's data/apport */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "cli/hook/hook_check.h"
#include "config/config.h"

typedef struct CoreAdvice {
        Finding finding;
        char *detail, *remedy; /* the caller's; NULL for lack of memory, remedy also for OK */
} CoreAdvice;

#define CORE_ADVICE_MAX 3

/** Reads the pattern, the processes that hold Neuron devices and their limits, and advises.
 * @return the number of advices; 0: this kernel writes no cores */
size_t cores_check(const Config *config, CoreAdvice ret[static CORE_ADVICE_MAX]);

/* ---- the rules, which touch no file; exported for the tests ---- */

typedef enum CorePlace {
        CORE_NOWHERE,
        CORE_IN_WORKING_DIRECTORY, /* of the process that crashes, below its root */
        CORE_IN_DIRECTORY,         /* an absolute path, in the mount namespace of that process */
        CORE_BY_SYSTEMD,           /* this and the programs below run in the node's namespaces */
        CORE_BY_APPORT,
        CORE_BY_PROGRAM,
} CorePlace;

typedef struct CorePattern {
        CorePlace place;
        char *directory; /* of the cores, up to the first component with a `%`; NULL: unknown */
        char *program;   /* the kernel passes cores to it; NULL: none */
        bool is_limited; /* RLIMIT_CORE applies: to files, and to a program that gets `%c` */
        bool is_unique;  /* each process has a file of its own */
} CorePattern;

/** @param text  of /proc/sys/kernel/core_pattern, may end in a newline
 * @param has_pid  kernel.core_uses_pid
 * @return 0, -ENOMEM */
int core_pattern_parse(CorePattern *ret, const char *text, bool has_pid);
void core_pattern_done(CorePattern *p);

#define CORE_UNLIMITED UINT64_MAX
typedef struct CoreLimit {
        uint64_t soft_bytes, hard_bytes; /* or CORE_UNLIMITED */
} CoreLimit;

/** Finds the limit in the text of /proc/PID/limits. @return whether it is there */
bool core_limit_parse(const char *text, CoreLimit *ret);

typedef struct CoreProcess {
        pid_t pid;
        char name[64];
        CoreLimit limit;
} CoreProcess;

typedef struct CoreSource { /* of kind process-core */
        const char *name;
        char *fixed;
} CoreSource;

typedef struct CoreSetup { /* borrowed */
        const char *text;  /* the pattern as it stands, without newline */
        CorePattern pattern;
        bool is_writable; /* pattern.directory exists here, and all users may write to it */
        const CoreSource *sources;
        size_t n_sources;
        const CoreProcess *processes; /* jobs; without any, the services that start jobs */
        size_t n_processes;
        bool are_jobs; /* they hold a Neuron device */
} CoreSetup;

/** Advises on where cores go and whether a source gets them; on whether each can be written there,
 * to a file of its own; on what limits them. @return the number of advices, ≥ 1 */
size_t core_advise(const CoreSetup *f, CoreAdvice ret[static CORE_ADVICE_MAX]);
