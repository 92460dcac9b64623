/* Crash reports of the cores in bundles: which one is made next, and what becomes of it. One is
 * made at a time, and becomes a bundle of its own. A pending report is made after a restart. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <systemd/sd-event.h>

#include "agent/evidence/evidence.h"
#include "agent/node_events/kernel_log.h"
#include "agent/retention/source_spec.h"
#include "agent/store/store.h"
#include "lib/base/bound.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"

typedef struct CrashReportsContext { /* borrowed */
        sd_event *event;
        Clock *clock;
        Store *store;
        Evidence *evidence;       /* that gets the reports */
        const char *probe_socket; /* of the collector host: supervisor_client_socket() */
        /* A core is not read any more. */
        void (*on_end)(void *userdata);
        void *userdata;
} CrashReportsContext;

typedef struct CrashReports CrashReports;

/** @return 0, -ENOMEM, -EMFILE */
int crash_reports_new(CrashReports **ret, const CrashReportsContext *context);
/** Does not wait for the report that is being made: it is made after the next start. */
CrashReports *crash_reports_free(CrashReports *c);

typedef struct CrashReportsCore { /* borrowed for the call */
        const BundleRecord *bundle;
        SourceSpec *spec;
        char *const *environment; /* patterns of what may be recorded */
        int held_fd;     /* that holds it, -1: none, as the descriptors of BundleUnit.held */
        bool is_pending; /* the store has it as pending already */
} CrashReportsCore;

/** Requests the report of a bundle's core, unless it exists, or too many wait to be made. */
void crash_reports_request(CrashReports *c, const CrashReportsCore *core);
/** @return whether the report of a bundle's core is still to be made: the core is not to be
 * deleted */
bool crash_reports_has(const CrashReports *c, const char *bundle_id);
/** Evidence was delivered, and there may be space: those that could not be written are made again
 * at once. */
void crash_reports_retry(CrashReports *c);
/** The bundle will not be delivered: nobody needs its report. */
void crash_reports_cancel(CrashReports *c, const char *bundle_id);
/** Whose the reports are that wait to be made, for the view. */
const Bound *crash_reports_bound(const CrashReports *c);
/** @return how many reports are being made, or are next; not those that wait for space. 0 while one
 * hangs on a file system that does not answer: then all are made after the next start */
size_t crash_reports_n(const CrashReports *c);

/** Keeps a line of the kernel log that says something about a crash. */
void crash_reports_on_kernel_line(CrashReports *c, const KernelLine *line);
/** Publishes a record of a process that the OOM killer has killed; a failure is logged.
 * @param kill  as the line says */
void crash_reports_on_oom_kill(CrashReports *c, const KernelLine *line, OomKill *kill);
