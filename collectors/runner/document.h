/* The document of a snapshot: streamed from the records that the children wrote, never held as a
 * tree. docs/BUNDLE.md has its schema. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "collectors/runner/collector.h"

#define SNAPSHOT_SCHEMA "neuron-collectd/snapshot/1"
#define DOCUMENT_LINE_MAX (1024 * 1024)

typedef enum SectionState {
        SECTION_COMPLETE,
        SECTION_TIMEOUT, /* it was killed: what it had written is there */
        SECTION_CUT,     /* it wrote more than probe_bytes, or the supervisor was killed */
        SECTION_FAILED,
        SECTION_SKIPPED, /* there was nothing to record */
        N_SECTION_STATES
} SectionState;

typedef struct DocumentSection { /* borrowed */
        const char *name, *detail;
        SectionState state;
        uint64_t begun_usec, duration_usec; /* CLOCK_REALTIME; 0 = it never began */
        const char *part;   /* file of records in the directory, a line each; NULL = none */
        char *const *files; /* raw files, NULL-terminated; NULL */
} DocumentSection;

typedef struct Document {                                    /* borrowed */
        const char *name, *trigger, *instance_id, *hostname; /* may be NULL */
        const char *before;              /* document that this one is compared to; NULL */
        uint64_t begun_usec, ended_usec; /* CLOCK_REALTIME */
        const CollectProcess *processes;
        size_t n_processes;
        const DocumentSection *sections;
        size_t n_sections;
        const char *differences; /* file of them, a line each; NULL = this is no second snapshot */
} Document;

/** Writes it durably: dot-name, fsync, rename, fsync of the directory. Lines that are no JSON
 * object (a killed child's last one), are longer than DOCUMENT_LINE_MAX or nest deeper than parsers
 * like are left out and counted in their section.
 * @return 0, -errno */
int document_write(const Document *d, int dir_fd, const char *name);

/** Compares the values of two files of records, and writes a line for each that differs: `{"path",
 * "before", "after", "delta"}`; delta only between two numbers, `before` or `after` null where
 * there was none. A value is a member of `values` in a record, its path is the record's `device`
 * and `directory` and the member's name. Other records are passed over, bad lines too.
 * @param dir_fd  where all three are; `out` is made again  @return 0, -EFBIG with more values than
 * can be kept (what was kept is compared), -errno */
int document_write_differences(int dir_fd, const char *before, const char *after, const char *out);
