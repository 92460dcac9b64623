/* What the files of intake share: intake.c (events, scans, life), intake_discover.c (from a path to a bundle),
 * intake_settle.c (from a bundle to READY), intake_pins.c (links let go). */
#pragma once

#include "agent/intake.h"
#include "agent/intake_pending.h"
#include "agent/unit_table.h"
#include "lib/loop/dirwatch.h"

/* A unit that changes all the time is looked at no more often than this, and never for more than a fifth of the time. */
#define LOOK_AGAIN_USEC (100 * USEC_PER_MSEC)
#define LOOK_SHARE 4

struct IntakeSource {
        IntakeContext *context;     /* borrowed */
        const ConfigSource *config; /* borrowed */
        SourceTerms *terms;
        DirWatch *watch; /* NULL: scans only */
        WorkerPool *probes,
                *scans; /* apart, so that a long scan delays no look; one thread each, so that a hung mount takes no more */
        UnitTable table;
        UnitTable table_later; /* changes while a scan has the table */
        ScanJob *scan;         /* running */
        bool scan_wanted, has_scanned, was_missing;
        bool flush_wanted, flush_this_scan; /* what it finds is flushed */
        bool in_transaction;                /* rows are written but not yet durable */
        bool scan_failed;                   /* the last one could not see everything */
        size_t n_active;                    /* bundles being worked on */
        sd_event_source *scan_timer, *look_timer;
        Pending pending; /* paths to be looked at for the first time */
        bool looking;
        uint64_t look_not_before_usec; /* CLOCK_BOOTTIME */
        ListLink jobs, pin_jobs;       /* that are out */
        size_t n_probes;
        uint64_t scan_usec, n_unreadable; /* of the last scan */
        char *note;                       /* said in status; owned */
        char *hold_note;                  /* why sources are not held by links; owned */
};

uint64_t intake_boot_usec(const IntakeSource *s);
uint64_t intake_realtime_usec(const IntakeSource *s);
/** @return the bundle's path below the fixed part, "" for the fixed part itself; borrowed */
const char *intake_relative(const IntakeSource *s, const Bundle *b);
/** Notes what was last seen at a path, so that a scan does not report it again. */
void intake_remember(IntakeSource *s, const char *relative, uint64_t digest);
void intake_set_note(char **note, const char *text);
/** Arms a timer, made at its first use. 0 or -errno */
int intake_arm(sd_event *event, sd_event_source **timer, uint64_t usec,
               sd_event_time_handler_t handler, void *userdata);
void intake_start_scan(IntakeSource *s);

/** A unit was seen whose content may not be what was last known of its path. */
void intake_on_unit(IntakeSource *s, ScanUnit *u);
/** Queues a path for a first look. */
void intake_look_at_path(IntakeSource *s, const char *relative);
/** Hands a probe to the worker; done() frees it. @return whether it was taken (else it is freed) */
bool intake_probe_submit(IntakeSource *s, ProbeJob *p, void (*done)(WorkJob *job));

/** Looks at a settling bundle now. */
void intake_look_at(Bundle *b);
void intake_look_again_in(Bundle *b, uint64_t usec);

/** Removes the links of bundles that nobody needs any more: what a crash left. Before any probe. */
void intake_sweep_pins(IntakeSource *s);
/** Lets go of a bundle's links. */
void intake_release_pins(IntakeSource *s, const Bundle *b);
