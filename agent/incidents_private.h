/* What the files of the incidents share: incidents.c (who belongs together), incidents_take.c (from the first look to the last), incidents_dir.c (where it lies
 * on disk), incidents_found.c (what an earlier agent left), incidents_units.c (its dumps), incidents_attach.c (what they get), incidents_watch.c (the kernel log, and who holds devices). */
#pragma once

#include <jansson.h>
#include <sys/stat.h>

#include "agent/attachments.h"
#include "agent/incident_rules.h"
#include "agent/incidents.h"
#include "agent/probe.h"
#include "collectors/pids.h"
#include "lib/base/list.h"

#define INCIDENT_DIRECTORIES_MAX 200
#define INCIDENT_BYTES_MAX GIB
#define INCIDENT_NOTES_MAX 1024
#define INCIDENT_UNITS_MAX 32 /* each gets all files */
#define INCIDENT_UNITS_MAX_OF_UID 8
#define INCIDENT_EVENTS_MAX                                                                        \
        64 /* lines of the kernel log that are kept in incident.json; all are in the snapshot */
#define INCIDENT_GATHER_USEC                                                                       \
        (50 * USEC_PER_MSEC) /* hooks of one failure come at once: one order for all */
#define INCIDENT_FOUND_USEC                                                                        \
        (2 * USEC_PER_SEC) /* in which the source has seen what was moved outside */
#define INCIDENT_WRITE_USEC (50 * USEC_PER_MSEC) /* what comes within it is written at once */
#define INCIDENT_EXIT_USEC USEC_PER_MINUTE /* how long the second look waits for processes to end */

#define INCIDENT_FILES_MAX 1024 /* in a directory */
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
        IncidentFile *attached;
        size_t n_attached;
} IncidentUnit;

typedef struct IncidentProcess {
        pid_t pid; /* 0 = to be found by the supervisor, or not at all */
        uint64_t start_ticks;
        ProbeQuestion question;              /* hook_pid 0 = none */
        char note[NOTE_ID_SIZE];             /* the one that asks, whose row has the answer, too */
        char container[PIDS_CONTAINER_SIZE]; /* "" = in none, or not known */
        int pid_fd;
        sd_event_source *exit;
        bool is_taken; /* part of an order */
        bool is_gone;
} IncidentProcess;

typedef enum IncidentState {
        INCIDENT_GATHERING, /* for the moment in which the others come */
        INCIDENT_TAKING,    /* the snapshot, or processes that came later */
        INCIDENT_WAITING,   /* for processes to end */
        INCIDENT_LOOKING,   /* again */
        INCIDENT_RESTING,   /* all is there; others may join while it is young */
        INCIDENT_ENDED,     /* what is there is kept for a while */
        N_INCIDENT_STATES
} IncidentState;

/* incidents_attach.c */
typedef struct IncidentAttaching {
        AttachmentJob *job;                        /* out; NULL: none */
        IncidentFile file;                         /* that it is about, or was */
        size_t units[INCIDENT_UNITS_MAX], n_units; /* and for whom */
        bool is_stuck;   /* something could not be attached, and is tried again */
        bool is_changed; /* what is remembered is not written yet */
        sd_event_source *timer;
        uint64_t wait_usec; /* until it is tried again */
} IncidentAttaching;

typedef struct Incident {
        Incidents *owner;
        ListLink link; /* oldest first */
        char name[INCIDENT_NAME_SIZE], *directory, *trigger, *document;
        IncidentCause cause;
        IncidentState state; /* incident_set_state() */
        IncidentAttaching attaching;
        uint64_t begun_usec, begun_boot_usec, bytes;
        uint64_t ended_boot_usec; /* by this agent; 0 = not yet, or by an earlier one */
        int dir_fd, public_fd;
        const char *public_why; /* why there is none; NULL */
        bool is_public_over;    /* the notes know by now */
        bool is_salvage, has_snapshot,
                is_outside;  /* outside: it is a unit of its own, to be shipped */
        bool is_made;        /* its directory is its own, and goes with it */
        unsigned n_left_out; /* units above the bounds */
        unsigned n_more;
        sd_event_source *timer, *writing;
        Probe *probe;
        char *written; /* what incident.json says */
        char **notes;  /* ids */
        size_t n_notes, n_told;
        IncidentUnit *units;
        size_t n_units;
        IncidentProcess **processes;
        size_t n_processes;
        CollectLogFile *log_files;
        size_t n_log_files_taken; /* the first ones of them were part of an order */
        char **events, **jobs;
        size_t n_log_files, n_events, n_jobs;
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
        sd_event_source *watch_timer;
        char *seen[INCIDENTS_SEEN_MAX]; /* records of jobs that are to be stored, in one go */
        size_t n_seen;
        sd_event_source *seen_step;
        unsigned last_number;
        bool is_hurried;
        uint64_t n_taken, n_joined, n_dropped;
};

/* incidents_dir.c */
/** @return 0, -EEXIST: there is one of that name, which is left alone; -errno */
int incident_make_directory(Incident *x);
/** Writes incident.json, where it would say something else than it does. */
void incident_write(Incident *x);
/** Something was added: it is written soon, and with it what else comes by then. */
void incident_changed(Incident *x);
int incident_open_directory(Incident *x);
/** @return of the running kernel; "" where it cannot be read */
const char *incident_boot_id(char buf[static INCIDENT_BOOT_ID_SIZE]);
/** Makes public.json a sealed memfd. */
int incident_read_public(Incident *x);
/** It becomes a unit of the source `incidents`. */
void incident_move_outside(Incident *x);
uint64_t incident_measure(const Incident *x);
/** @return whether there is room for one more; the oldest that are over go for it */
bool incidents_make_room(Incidents *i);
void incident_remove(Incident *x); /* with its directory; frees it */

/* incidents_found.c */
/** Finds what an earlier agent has left. */
int incidents_sweep(Incidents *i);
/** @return the path of that key, the caller's; NULL */
char *incident_unescaped(const json_t *v, const char *key);

/* incidents_attach.c */
/** Attaches to all units, off the loop, what is there and was not attached as it is; then, where the incident rests or has ended, units need not wait any more. */
void incident_attach_all(Incident *x);
bool incident_is_attaching(const Incident *x);
/** Takes up what an earlier agent has attached. After its units are known. */
void incident_read_attached(Incident *x);
/** Lets a job go on by itself, and saves what is known. */
void incident_attach_done(Incident *x);

/* incidents_units.c */
/** @return the one that is at that path now; NULL */
IncidentUnit *incident_find_unit(Incident *x, const char *source, const char *path);
/** @return 0, 1: it was there already; -EDQUOT: there are too many, which is counted; -ENOMEM */
int incident_add_unit(Incident *x, const IncidentUnit *u);
void incident_tell_pending(const Incident *x, bool pending);
void incident_units_done(Incident *x);

/* incidents_take.c */
int incident_start(Incident *x, uint64_t wait_usec);
/** Another process has been added. */
void incident_on_joined(Incident *x);
void incident_salvage(Incident *x);
/** An earlier agent did not come to the second look. @return whether there is one to come */
bool incident_look_again(Incident *x);
/** All looks are over, but it had not come to its end. */
void incident_rest_again(Incident *x);
/** The one place that changes a state: checks the move. */
void incident_set_state(Incident *x, IncidentState to);
void incident_tell_public(Incident *x);

/* incidents.c */
Incident *incident_new(Incidents *i, const char *name);
Incident *incident_free(Incident *x);
int incident_add_process(Incident *x, const IncidentProcess *p);
/** Who was seen at a device before it died, as the store knows it, goes into incident.json: a zombie's environment is empty. */
void incident_add_job(Incident *x, pid_t pid, uint64_t start_ticks);
int incident_add_text(char ***list, size_t *n, size_t max, const char *text);
/** Begins one, or finds the one that it belongs to. @return NULL: neither, *ret_why is a sentence */
Incident *incidents_take_up(Incidents *i, IncidentCause cause, const char *trigger,
                            const char **ret_why);

/* incidents_watch.c */
void incidents_watch(Incidents *i);
void incidents_watch_done(Incidents *i);
