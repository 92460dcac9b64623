/* What the files of the process collector share. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "collectors/host/jobs.h"
#include "collectors/host/procfs.h"
#include "collectors/runner/collector.h"
#include "lib/base/strbuf.h"

/** Where the records of one process go: lines to the parent. `{…}` is a record, `M…` and `L…` are lines of its raw files (maps, limits). */
typedef struct ProcessReport {
        const CollectOrder *order;
        const Proc *p;
        int fd;
        StrBuf b;   /* the record that is being made */
        int result; /* 0; PROCFS_E_REPLACED: nothing more is written; -errno */
} ProcessReport;

/** Begins a record: {"pid", "start_ticks", "about". */
void process_begin(ProcessReport *report, const char *about);
/** Ends and writes it, unless the pid has become another process's meanwhile. */
void process_end(ProcessReport *report);
/** Adds KEY: null and KEY_unavailable: why. */
void process_add_missing(StrBuf *b, const char *key, int outcome);
/** Writes one line of a raw file, redacted. @param kind  'M' or 'L' */
void process_raw_line(ProcessReport *report, char kind, const char *line, size_t n);

/* Each writes records about one thing, in this order: what can wait for ever comes last. */
void process_status(ProcessReport *report);
void process_place(ProcessReport *report); /* links, namespaces, cgroup */
void process_limits(ProcessReport *report);
void process_devices(ProcessReport *report, const JobsScan *scan);
void process_children(ProcessReport *report);
void process_threads(ProcessReport *report);
void process_maps(ProcessReport *report);
void process_command(ProcessReport *report);
void process_environment(ProcessReport *report);
void process_neighbours(ProcessReport *report, const JobsScan *scan);

/** Finds the GNU build id of an ELF file of either word size and this machine's byte order, reading little of it.
 * @param fd  a regular file, hostile  @param hex  gets it in hex, "" when it has none @return 0, -EBADMSG when it is no such file, -errno
 * @see elf(5); the note NT_GNU_BUILD_ID */
#define PROCESS_BUILD_ID_SIZE 129
int process_build_id(int fd, char hex[static PROCESS_BUILD_ID_SIZE]);
