/* The part of a crash report that a worker makes. Private to agent/crashes. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "agent/crashes/core_facts.h"
#include "agent/retention/source_spec.h"
#include "agent/store/store.h"

/* The child has 10 s of CPU, which an idle thread may get late. */
#define REPORT_TIMEOUT_USEC (60 * USEC_PER_SEC)

typedef struct ReportJob {
        char bundle_id[BUNDLE_ID_SIZE];
        char *source, *unit_path, *probe_socket;
        SourceSpec *spec; /* a reference */
        char **patterns;  /* of environment variables that may be recorded */
        uint64_t unit_ino, unit_born_usec;
        uid_t uid;
        uint64_t slice_usec;     /* while others wait, the report ends after it */
        atomic_bool others_wait; /* set by the loop, read by the worker */
        int held_fd;             /* of a core that was deleted; -1: none */
        int core_fd;             /* -1: not open */
        CoreFacts facts;         /* the result of reading */
        char *context;           /* for making it: what is known beside the core, JSON */
        int json_fd, text_fd;    /* the result of making it: memfds; -1: none */
        char signature[STORE_SIGNATURE_SIZE];
        char *fault;        /* why there is no report, a sentence; NULL */
        bool slice_is_over; /* … because others waited: it may be made later */
} ReportJob;

/** Opens the core and reads its facts. Blocks. */
void report_job_read(ReportJob *j);
/** Makes the report. Blocks. */
void report_job_make(ReportJob *j);
/** @param text  owned; NULL: no memory for it */
void report_job_set_fault(ReportJob *j, char *text);
/** Forgets what was read, so that it can be read again. */
void report_job_reset(ReportJob *j);
/** Closes and frees what it owns. */
void report_job_done(ReportJob *j);

/** @param json  of a report, from a hostile child: of any content
 * @return whether it has a signature that is one: 8 to 64 hexadecimal digits */
bool report_job_find_signature(const char *json, char ret[static STORE_SIGNATURE_SIZE]);
