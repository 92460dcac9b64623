/* The latest lines of the kernel's log that say something of crashes, and what they say of one
 * process. A line names a process as its user called it: a hint. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/base/cleanup.h"
#include "lib/base/strbuf.h"

#define KERNEL_LOG_LINES_MAX 256
#define KERNEL_LOG_LINES_MAX_OF_REPORT 64
#define KERNEL_LINE_SIZE 513
#define COMMAND_SIZE 16
#define PID_MAX ((1 << 22) - 1)

typedef struct KernelLine {
        uint64_t usec; /* CLOCK_REALTIME */
        uint64_t seq;  /* of the record; 0 = none */
        char kind[12]; /* segfault, oom, mce, aer, efa */
        char text[KERNEL_LINE_SIZE];
} KernelLine;

typedef struct KernelLog KernelLog;
KernelLog *kernel_log_new(void);
KernelLog *kernel_log_free(KernelLog *l);
DEFINE_CLEANUP(KernelLog, kernel_log_free);

/** Adds one that is not there yet; when it is full, in place of an old one. */
void kernel_log_add(KernelLog *l, const KernelLine *line);

typedef struct CrashedProcess {
        pid_t pid; /* 0 = not known; perhaps as its container counts */
        bool has_uid;
        uid_t uid; /* with has_uid: as systemd-coredump names it */
        char command[COMMAND_SIZE];
        uint64_t first_usec, last_usec; /* CLOCK_REALTIME: between these it died */
} CrashedProcess;

/** Adds "kernel": those that are about the process, then of the hardware those of minutes about its
 * end. @return its pid on the node, if a line has it; 0 */
pid_t kernel_log_write(const KernelLog *l, const CrashedProcess *p, StrBuf *b);

typedef struct OomKill {
        pid_t pid;
        uid_t uid;
        char command[COMMAND_SIZE];
        char cgroup[KERNEL_LINE_SIZE]; /* "" = not known */
} OomKill;

/** Reads `[Memory cgroup o|O]ut of memory: Killed process PID (COMMAND) …`. */
bool oom_kill_parse(const char *text, OomKill *ret);
/** Sets the cgroup of a kill, if a line before it has the cgroup. */
void kernel_log_find_cgroup(const KernelLog *l, OomKill *kill);
