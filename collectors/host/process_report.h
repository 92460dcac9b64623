/* The records about one process, written by its part. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "collectors/host/procfs.h"
#include "collectors/runner/collector.h"
#include "lib/base/strbuf.h"

/* Of a raw file: a large process has some thousand mappings of 100 bytes. */
enum { PROCESS_RAW_BYTES_MAX = 256 << 10 };

typedef struct ProcessReport {
        const CollectRequest *request;
        const Proc *p;
        int fd; /* gets the records */
        bool has_raw_files;
        StrBuf b;   /* the record that is being made */
        int result; /* 0; PROCFS_E_REPLACED: no further record is written; -errno */
} ProcessReport;

/** Starts a record. */
void process_report_begin(ProcessReport *report, const char *about);
/** Writes the record, unless another process has the pid by now; sets report->result. */
void process_report_end(ProcessReport *report);

/** Adds a member that is null, and why. @param outcome  of procfs.h, or -errno */
void process_report_add_missing(StrBuf *b, const char *key, int outcome);
/** Adds the first line of a file, or null and why. */
void process_report_add_word(ProcessReport *report, const char *key, const char *name);
/** Adds the first n_max lines of a text as an array. */
void process_report_add_lines(ProcessReport *report, const char *key, const char *text,
                              size_t n_max);

/** Makes a raw file of the complete lines of a text, redacted. */
void process_report_write_raw(const ProcessReport *report, const char *kind, const StrBuf *text);
