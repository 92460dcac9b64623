/* The document of a snapshot, made from the records that its children wrote. docs/BUNDLE.md has its
 * schema. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "collectors/runner/collector.h"

#define SNAPSHOT_SCHEMA "neuron-collectd/snapshot/1"

typedef enum SectionState {
        SECTION_COMPLETE,
        SECTION_TIMEOUT, /* it was killed; the section has what it had written */
        SECTION_CUT,     /* it wrote more than probe_bytes, or the supervisor was killed */
        SECTION_FAILED,
        SECTION_SKIPPED, /* there was nothing to record */
        N_SECTION_STATES
} SectionState;

/** All borrowed. */
typedef struct DocumentSection {
        const char *name, *detail;
        SectionState state;
        uint64_t begun_usec, duration_usec; /* CLOCK_REALTIME; 0 = it never began */
        const char *part;   /* file of records in the directory, a line each; NULL = none */
        char *const *files; /* raw files, NULL-terminated; NULL */
} DocumentSection;

/** All borrowed. */
typedef struct Document {
        const char *name, *trigger, *instance_id, *hostname; /* may be NULL */
        const char *before;              /* document that this one is compared to; NULL */
        uint64_t begun_usec, ended_usec; /* CLOCK_REALTIME */
        const CollectProcess *processes;
        size_t n_processes;
        const DocumentSection *sections;
        size_t n_sections;
        const char *differences; /* file of them, a line each; NULL: no member `differences` */
} Document;

/** Writes it durably: dot-name, fsync, rename, fsync of the directory. Lines that are no JSON
 * object (the last one of a killed child), are longer than RECORD_LINE_MAX (record_file.h) or nest
 * deeper than 32 levels are left out and counted in their section.
 * @return 0, -errno */
int document_write(const Document *d, int dir_fd, const char *name);
