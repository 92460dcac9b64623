/* Shared by the files of this folder: what an incident consists of, and who may change what of it.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "agent/hooknotes/attachments.h"
#include "agent/incidents/incidents.h"
#include "agent/incidents/probe_client.h"
#include "collectors/host/pids.h"
#include "lib/base/cleanup.h"
#include "lib/base/list.h"

/* ---- the rules: decide without touching a file or a clock ---- */

#define INCIDENT_YOUNG_USEC                                                                        \
        (30 * USEC_PER_SEC) /* what comes this long after the first belongs to it */
#define INCIDENT_APART_USEC (10 * USEC_PER_SEC)
#define INCIDENT_HOURLY_MAX 60
#define INCIDENT_STRANGERS_HOURLY_MAX 6 /* of them begun by notes that name no dump */

typedef enum IncidentCause {
        INCIDENT_NOTE,     /* of the hook, for a dump in a source: an incident without its snapshot
                              still has that */
        INCIDENT_STRANGER, /* of the hook, for nothing that is collected: any user with an account
                              can send it */
        INCIDENT_KERNEL, /* a line of the kernel log, which any user who may open a device can forge
                          */
        INCIDENT_REQUESTED, /* an operator wants one now, not one of a moment ago */
} IncidentCause;

typedef enum IncidentVerdict {
        INCIDENT_BEGIN,
        INCIDENT_JOIN,
        INCIDENT_TOO_SOON, /* the last one is less than INCIDENT_APART_USEC ago */
        INCIDENT_TOO_MANY, /* there were INCIDENT_HOURLY_MAX within an hour */
        INCIDENT_TOO_MANY_STRANGERS,
} IncidentVerdict;

typedef struct IncidentRules {
        uint64_t begun_usec[INCIDENT_HOURLY_MAX]; /* a ring; of the last ones */
        unsigned next, n;
        IncidentCause last_cause;
        uint64_t strangers_usec[INCIDENT_STRANGERS_HOURLY_MAX]; /* another ring */
        unsigned next_stranger, n_strangers;
} IncidentRules;

/** @param is_taking  whether the snapshot of the youngest incident is underway */
IncidentVerdict incident_decide(const IncidentRules *r, IncidentCause cause,
                                bool has_snapshot_underway, uint64_t now_usec);
/** One has begun. */
void incident_rules_begun(IncidentRules *r, IncidentCause cause, uint64_t now_usec);
/** @return a sentence for people, static; NULL for the first two */
const char *incident_verdict_text(IncidentVerdict v);

/* ---- an incident ---- */

#define INCIDENT_DIRECTORIES_MAX 200
#define INCIDENT_BYTES_MAX GIB
#define INCIDENT_NOTES_MAX 1024
#define INCIDENT_UNITS_MAX 32 /* each gets all files */
#define INCIDENT_UNITS_MAX_OF_UID 8
#define INCIDENT_EVENTS_MAX 64       /* lines of the kernel log in incident.json */
#define INCIDENT_TEXTS_BYTES_MAX MIB /* of each kind of records in incident.json */
#define INCIDENT_FILES_MAX 1024      /* in a directory */
#define INCIDENT_BOOT_ID_SIZE 37
#define INCIDENTS_SEEN_MAX 256 /* records of jobs that go into one transaction */

typedef struct IncidentFile { /* as it was when it was attached */
        char name[256];
        uint64_t bytes, inode;
        int64_t mtime_nsec; /* CLOCK_REALTIME */
} IncidentFile;

typedef struct IncidentUnit {
        char *source, *path;
        uid_t uid;           /* of the hook that named it */
        uint64_t added_usec; /* CLOCK_REALTIME; for incident_add_unit(): 0 = now */
        bool is_gone;        /* another one is at its path by now: nothing more is attached */
        bool is_requested;   /* part of an order; others wait for the second snapshot */
        IncidentFile *attached;
        size_t n_attached;
} IncidentUnit;

typedef struct IncidentProcess {
        pid_t pid; /* 0 = to be found by the supervisor, or not at all */
        uint64_t start_ticks;
        ProbePidQuery question;              /* hook_pid 0 = none */
        char note[NOTE_ID_SIZE];             /* the one that asks, whose row has the answer, too */
        char container[PIDS_CONTAINER_SIZE]; /* "" = in none, or not known */
        int pid_fd;
        sd_event_source *exit;
        bool is_requested; /* part of an order */
        bool is_gone;
} IncidentProcess;

typedef enum IncidentState {
        INCIDENT_GATHERING,  /* for the moment in which the others come */
        INCIDENT_SNAPSHOT,   /* the snapshot, or processes that came later */
        INCIDENT_WAITING,    /* for processes to end */
        INCIDENT_RECHECKING, /* again */
        INCIDENT_RESTING,    /* all is there; others may join while it is young */
        INCIDENT_ENDED,      /* what is there is kept for a while */
        N_INCIDENT_STATES
} IncidentState;

typedef struct IncidentAttaching {
        AttachmentJob *job;                        /* out; NULL: none */
        IncidentFile file;                         /* that it is about, or was */
        size_t units[INCIDENT_UNITS_MAX], n_units; /* and for whom */
        bool is_stuck;   /* something could not be attached, and is tried again */
        bool is_changed; /* what is remembered is not written yet */
        sd_event_source *timer;
        uint64_t wait_usec; /* until it is tried again */
} IncidentAttaching;

typedef struct IncidentTexts { /* no two are the same; zero = none */
        char **items;
        size_t n;
        uint64_t n_lost; /* left out of incident.json by an earlier agent */
} IncidentTexts;

typedef struct Incident {
        Incidents *owner;
        ListLink link; /* oldest first */
        char name[INCIDENT_NAME_SIZE], *directory, *trigger, *document;
        IncidentCause cause;
        IncidentState state; /* incident_set_state() */
        IncidentAttaching attaching;
        uint64_t begun_usec, begun_boot_usec, bytes;
        uint64_t ended_boot_usec;   /* by this agent; 0 = not yet, or by an earlier one */
        uint64_t awaited_boot_usec; /* until then a unit may join: the directory of a note was not
                                       there; 0 = of none */
        int dir_fd;                 /* -1: closed meanwhile, see incident_open_directory() */
        int public_fd;              /* -1: there is none, or it is over */
        bool is_public_reported;    /* the notes know by now */
        bool is_salvage, has_snapshot;
        bool is_found;       /* an earlier agent's, whose supervisor may still be at work */
        bool is_own_bundle;  /* a unit of its own, to be shipped */
        bool has_directory;  /* its directory is its own, and goes with it */
        unsigned n_left_out; /* units above the bounds */
        unsigned n_more;
        sd_event_source *timer, *writing;
        Probe *probe;
        char *written;              /* the text of incident.json */
        IncidentTexts notes;        /* ids */
        IncidentTexts events, jobs; /* JSON */
        size_t n_notes_reported;    /* of the notes */
        IncidentUnit *units;
        size_t n_units;
        IncidentProcess **processes;
        size_t n_processes;
        CollectLogFile *log_files;
        size_t n_log_files, n_log_files_requested; /* so many of them were part of an order */
} Incident;

struct Incidents {
        IncidentsContext context;
        const Config *config;
        ListLink incidents;
        size_t n_incidents;
        IncidentRules rules;
        Incident *young;
        char *snapshots, *outbox, *socket; /* absolute */
        Probe *watch;
        sd_event_source *watch_timer, *sweep_timer;
        char *seen[INCIDENTS_SEEN_MAX]; /* records of jobs that are to be stored together */
        size_t n_seen;
        sd_event_source *seen_step;
        unsigned last_number;
        bool is_hurried;
        uint64_t n_started, n_joined, n_dropped;
};

/* ---- functions ---- */

static inline uint64_t incidents_boot_usec(const Incidents *i) {
        return i->context.clock->boottime_usec(i->context.clock);
}

static inline uint64_t incidents_realtime_usec(const Incidents *i) {
        return i->context.clock->realtime_usec(i->context.clock);
}

/* ---- directory.c ---- */
/** @return 0, -EEXIST: there is one of that name, which is left alone; -errno */
int incident_make_directory(Incident *x);
/** Writes incident.json, if its text has changed. */
void incident_write(Incident *x);
/** Something was added: it is written soon, and with it what else comes by then. */
void incident_changed(Incident *x);
/** Opens dir_fd before it is used. @return 0: it is open, also when it was; -errno */
int incident_open_directory(Incident *x);
/** There may be hundreds that have ended: of those without work underway no descriptor stays open.
 */
void incident_close_descriptors(Incident *x);
/** @return of the running kernel; "" where it cannot be read */
const char *incident_boot_id(char buf[static INCIDENT_BOOT_ID_SIZE]);
/** Makes public.json a sealed memfd. */
int incident_read_public(Incident *x);
/** It becomes a unit of the source `incidents`. */
void incident_make_own_bundle(Incident *x);
uint64_t incident_measure(const Incident *x);
/** @return whether there is space for one more, for which the oldest that have ended are removed */
bool incidents_free_space(Incidents *i);
void incident_remove(Incident *x); /* with its directory; frees it */

/* ---- incident_recovery.c ---- */
/** Finds what an earlier agent has left. What cannot be read now stays, and is read again later. */
int incidents_sweep(Incidents *i);
/** @return the path of that key, the caller's; NULL */
char *incident_unescaped(const json_t *v, const char *key);

/* ---- incidents.c: attaching ---- */
/** Attaches to all units, off the loop, what is there and was not attached as it is; then, where
 * the incident rests or has ended, units need not wait any more. */
void incident_attach_all(Incident *x);
bool incident_is_attaching(const Incident *x);
/** Reads what an earlier agent has attached. After its units are known. @return 0, also where
 * nothing is remembered; -errno: not now */
int incident_read_attached(Incident *x);

/* ---- incident_fsm.c ---- */
/** @return the one that is at that path now; NULL */
IncidentUnit *incident_find_unit(Incident *x, const char *source, const char *path);
/** @return 0, 1: it was there already; -EDQUOT: there are too many, which is counted; -ENOMEM */
int incident_add_unit(Incident *x, const IncidentUnit *u);
void incident_report_pending(const Incident *x, bool pending);
void incident_units_done(Incident *x);

/** No end is waited for any more. */
void incident_unwatch_exits(Incident *x);

int incident_start(Incident *x, uint64_t wait_usec);
/** A unit may be named later, when the hook of a note has ended: one without any other is not
 * shipped for itself before. */
void incident_await_unit(Incident *x);
/** Another process has been added. */
void incident_on_joined(Incident *x);
void incident_salvage(Incident *x);
/** An earlier agent did not make the second snapshot. @return whether there is one to come */
bool incident_start_recheck(Incident *x);
/** All snapshots are there, but it had not ended. */
void incident_resume_resting(Incident *x);
/** The one place that changes a state: checks the move. */
void incident_set_state(Incident *x, IncidentState to);

/* ---- incidents.c ---- */
Incident *incident_new(Incidents *i, const char *name);
Incident *incident_free(Incident *x);
int incident_add_process(Incident *x, const IncidentProcess *p);
/** Who was seen at a device before it died, as the store knows it, goes into incident.json: a
 * zombie's environment is empty. */
void incident_add_job(Incident *x, pid_t pid, uint64_t start_ticks);
/** @return 0, 1: it was there already, or there are too many; -ENOMEM */
int incident_text_add(IncidentTexts *texts, size_t max, const char *text);
void incident_texts_done(IncidentTexts *texts);
