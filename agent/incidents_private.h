/* What the files of the incidents share: incidents.c (who belongs together), incidents_take.c (from the first look to the last), incidents_dir.c (where it lies
 * on disk), incidents_watch.c (the kernel log, and who holds devices). */
#pragma once

#include <sys/stat.h>

#include "agent/incident_rules.h"
#include "agent/incidents.h"
#include "agent/probe.h"
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

#define INCIDENTS_SEEN_MAX 256 /* records of jobs that go into one transaction */

typedef struct IncidentAttached {
        char name[256];
        struct stat st;
} IncidentAttached;

typedef struct IncidentUnit {
        char *source, *path;
        uid_t uid;                  /* of the hook that named it */
        IncidentAttached *attached; /* files as they were when they were attached */
        size_t n_attached;
} IncidentUnit;

typedef struct IncidentProcess {
        pid_t pid; /* 0 = to be found by the supervisor, or not at all */
        uint64_t start_ticks;
        ProbeQuestion question;  /* hook_pid 0 = none */
        char note[NOTE_ID_SIZE]; /* the one that asks, whose row has the answer, too */
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
} IncidentState;

typedef struct Incident {
        Incidents *owner;
        ListLink link; /* oldest first */
        char name[INCIDENT_NAME_SIZE], *directory, *trigger, *document;
        IncidentCause cause;
        IncidentState state;
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
/** Attaches to one unit all that is there and was not attached as it is. */
void incident_attach(Incident *x, IncidentUnit *u);
void incident_attach_all(Incident *x);
/** Makes public.json a sealed memfd. */
int incident_read_public(Incident *x);
/** It becomes a unit of the source `incidents`. */
void incident_move_outside(Incident *x);
uint64_t incident_measure(const Incident *x);
/** @return whether there is room for one more; the oldest that are over go for it */
bool incidents_make_room(Incidents *i);
void incident_remove(Incident *x); /* with its directory; frees it */
/** Finds what an earlier agent has left. */
int incidents_sweep(Incidents *i);

/* incidents_take.c */
int incident_start(Incident *x, uint64_t wait_usec);
/** Another process has been added. */
void incident_on_joined(Incident *x);
void incident_salvage(Incident *x);
/** An earlier agent did not come to the second look. @return whether there is one to come */
bool incident_look_again(Incident *x);
void incident_tell_public(Incident *x);

/* incidents.c */
Incident *incident_new(Incidents *i, const char *name);
Incident *incident_free(Incident *x);
int incident_add_process(Incident *x, const IncidentProcess *p);
/** @return 0, 1: it was there already; -EDQUOT: there are too many, which is counted; -ENOMEM */
int incident_add_unit(Incident *x, const IncidentUnit *u);
/** Who was seen at a device before it died, as the store knows it, goes into incident.json: a zombie's environment is empty. */
void incident_add_job(Incident *x, pid_t pid, uint64_t start_ticks);
int incident_add_text(char ***list, size_t *n, size_t max, const char *text);
/** Begins one, or finds the one that it belongs to. @return NULL: neither, *ret_why is a sentence */
Incident *incidents_take_up(Incidents *i, IncidentCause cause, const char *trigger,
                            const char **ret_why);

/* incidents_watch.c */
void incidents_watch(Incidents *i);
void incidents_watch_done(Incidents *i);
