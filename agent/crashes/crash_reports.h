/* Crash reports of the cores in bundles: which one is made next, and what becomes of it. One is
 * made at a time. A report is attached to the unit of its bundle, so that it is delivered with the
 * bundle or, if it comes later, as a supplement. A pending report is made after a restart. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <systemd/sd-event.h>

#include "agent/hooknotes/attachments.h"
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
        Attachments *attachments;
        const char *probe_socket; /* of the collector host: supervisor_client_socket() */
        /* A report was attached to a unit. */
        void (*on_attached)(const char *source, const char *unit_path, void *userdata);
        /* The report of a bundle is attached, or will not be attached before the next start. */
        void (*on_end)(const char *bundle_id, void *userdata);
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
        int held_fd;              /* that holds it, -1: none, as the descriptors of Bundle.held */
        bool is_pending;          /* the store has it as pending already */
} CrashReportsCore;

/** Requests the report of a bundle's core, unless it exists, or too many wait to be made.
 * @return whether on_end will be called for it; never within the call */
bool crash_reports_request(CrashReports *c, const CrashReportsCore *core);
/** The bundle will not be delivered: nobody needs its report. */
void crash_reports_cancel(CrashReports *c, const char *bundle_id);
/** Whose the reports are that wait to be made, for the view. */
const Bound *crash_reports_bound(const CrashReports *c);
/** @return how many reports are still to be made; 0 while one hangs on a file system that does not
 * answer: then all are made after the next start */
size_t crash_reports_n(const CrashReports *c);

/** Keeps a line of the kernel log that says something about a crash. */
void crash_reports_on_kernel_line(CrashReports *c, const KernelLine *line);
/** Makes the report of a process that the OOM killer has killed. @param kill  as the line says */
void crash_reports_make_of_oom_kill(CrashReports *c, const KernelLine *line, OomKill *kill,
                                    StrBuf *json, StrBuf *text);
