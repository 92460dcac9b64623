/* What one incident consists of, and its state. Private to agent/incidents, whose files all work on
 * this struct: each group of its fields names the files that write them; the others only read them.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "agent/failures/rank_watch.h"
#include "agent/incidents/incident_rules.h"
#include "agent/incidents/incidents.h"
#include "collectors/host/pids.h"
#include "collectors/supervisor_client.h"
#include "lib/base/list.h"
#include "lib/neuron/record.h"

#define INCIDENT_NOTES_MAX 4096 /* more than all owners may send before they have to wait */
#define INCIDENT_UNITS_MAX 32
#define INCIDENT_UNITS_MAX_OF_OWNER 8 /* the host's root may have INCIDENT_UNITS_MAX */
#define INCIDENT_RELATED_MAX 16
#define INCIDENT_EVENTS_MAX 64       /* lines of the kernel log in snapshot-context.json */
#define INCIDENT_TEXTS_BYTES_MAX MIB /* of a list of records, each of which may have 64 KiB */
#define INCIDENT_FILES_MAX 1024      /* in the directory of an incident */

typedef enum IncidentState { /* incident_machine.c draws what leads from one to the next */
                             INCIDENT_GATHERING, /* waits for events that belong together and arrive
                                                    within a moment */
                             INCIDENT_SNAPSHOT, /* a supervisor takes the snapshot, or collects what
                                                   joined later */
                             INCIDENT_WAITING,  /* waits for its processes to end */
                             INCIDENT_RECHECKING, /* a supervisor takes the second snapshot */
                             INCIDENT_RESTING, /* is complete; others may join while it is young */
                             INCIDENT_ENDED,   /* is closed: its files are a bundle, or kept for
                                                  an operator */
                             N_INCIDENT_STATES
} IncidentState;

/* What there is of its first snapshot. */
typedef enum IncidentContent {
        INCIDENT_NOTHING,   /* it is to come, or could not be taken */
        INCIDENT_SALVAGING, /* it failed: a supervisor gathers what is left of it, or could not */
        INCIDENT_WHOLE,
        INCIDENT_SALVAGED, /* what was left of it */
        N_INCIDENT_CONTENTS
} IncidentContent;

/* Where its directory is. */
typedef enum IncidentPlace {
        INCIDENT_NOWHERE,      /* there is none, or it could not be read and stays */
        INCIDENT_IN_SNAPSHOTS, /* and is removed with the incident */
        INCIDENT_STUCK,        /* so too: it cannot be moved to agent/evidence, which is logged */
        INCIDENT_PUBLISHED,    /* it was: the incident is removed */
        N_INCIDENT_PLACES
} IncidentPlace;

typedef struct IncidentUnit { /* a dump that the incident is about */
        char *source, *path;
        Owner owner;                 /* of the hook that named it */
        char bundle[BUNDLE_ID_SIZE]; /* that it became; "" = none yet */
        bool is_requested;           /* a request named it; if not, the next request does */
} IncidentUnit;

typedef struct IncidentProcess {
        Owner owner; /* of the note */
        pid_t pid;   /* 0 = the supervisor has to find it, or cannot */
        uint64_t start_ticks;
        ProbePidQuery question;              /* for the supervisor; hook_pid 0 = none */
        char note[NOTE_ID_SIZE];             /* that named it; its row gets the answer, too */
        char container[PIDS_CONTAINER_SIZE]; /* "" = in none, or not known */
        struct Incident *incident;
        RankWatch *watch;  /* of its end; NULL: nobody waits for it */
        bool is_requested; /* a request named it */
        bool is_gone;      /* it has ended */
        bool is_unknown;   /* the supervisor did not find it, which is logged once */
} IncidentProcess;

typedef struct IncidentTexts { /* different texts; zero = none. Bounded, because the next agent has
                                  to read snapshot-context.json */
        char **items;
        size_t n;
        uint64_t bytes, n_left_out; /* beyond INCIDENT_TEXTS_BYTES_MAX */
} IncidentTexts;

typedef struct Incident {
        Incidents *owner;
        ListLink link; /* Incidents.incidents, oldest first */
        char name[INCIDENT_NAME_SIZE];

        /* Why and when it started: incidents.c and incident_list.c, or incident_directory.c from
         * snapshot-context.json. */
        Owner by;      /* who caused it */
        char *trigger; /* a sentence */
        IncidentCause cause;
        uint64_t begun_usec, begun_boot_usec;

        /* What belongs to it: the functions below, and incidents.c. incident_request.c sets the
         * processes that the supervisor finds, and marks what a request has named. */
        IncidentTexts notes;        /* ids */
        IncidentTexts events, jobs; /* records, JSON */
        IncidentTexts related;      /* ids of bundles of no unit */
        IncidentUnit *units;
        size_t n_units;
        unsigned n_left_out; /* units beyond the bounds */
        IncidentProcess **processes;
        size_t n_processes;
        CollectLogFile *log_files; /* of the runtime, outside of dumps */
        size_t n_log_files;

        /* Its state and its requests: incident_machine.c and incident_request.c; incident_list.c
         * when it resumes an incident. */
        IncidentState state; /* incident_set_state() */
        sd_event_source *timer;
        SupervisorClient *supervisor; /* that works on a request; NULL: none */
        size_t n_log_files_requested; /* so many of log_files were named by requests */
        char *document;               /* name of the document of the last request for "more" */
        unsigned n_more;
        IncidentContent content;    /* incident_set_content() */
        bool is_public_reported;    /* public.json is complete, or will not be written any more */
        size_t n_notes_reported;    /* the first ones of `notes` were answered */
        uint64_t awaited_boot_usec; /* until then the directory that a note names may be created;
                                       0 = no note waits for one */

        /* Its directory: incident_directory.c, incident_list.c, incident_machine.c (bytes). */
        char *directory;
        int dir_fd;          /* -1: closed, see incident_directory_open() */
        int public_fd;       /* a memfd with public.json; -1: none, or the incident has ended */
        IncidentPlace place; /* incident_set_place() */
        uint64_t bytes;      /* of its files */
        char *written;       /* the text of snapshot-context.json; NULL: not known */
        sd_event_source *writing;
} Incident;

struct Incidents {
        IncidentsContext context;
        const Config *config;
        char *snapshots; /* the directories of incidents, absolute */
        char *socket;    /* of the collector host */
        ListLink incidents;
        size_t n_incidents;
        unsigned last_number; /* in a name */
        IncidentRules rules;
        Incident *young;             /* that events join; NULL */
        void (*remove)(Incident *x); /* for incident_machine.c: incident_list_remove() */
        IncidentHurry hurry;
        uint64_t n_started, n_joined, n_dropped;
};

static inline uint64_t incident_boot_usec(const Incidents *i) {
        return i->context.clock->boottime_usec(i->context.clock);
}

static inline uint64_t incident_realtime_usec(const Incidents *i) {
        return i->context.clock->realtime_usec(i->context.clock);
}

static inline bool incident_has_snapshot(const Incident *x) {
        return x->content == INCIDENT_WHOLE || x->content == INCIDENT_SALVAGED;
}

/** @return whether it becomes a bundle when it has ended: there is a snapshot, and not for an
 * operator alone */
static inline bool incident_is_evidence(const Incident *x) {
        return x->cause != INCIDENT_REQUESTED && incident_has_snapshot(x);
}

/** Adds one without content to the list. @return NULL: no memory */
Incident *incident_new(Incidents *i, const char *name);
/** Frees it, and neither writes nor removes its directory. Takes NULL, returns NULL. */
Incident *incident_free(Incident *x);

/** Moves it to another state, if that move exists. */
void incident_set_state(Incident *x, IncidentState to);
void incident_set_content(Incident *x, IncidentContent to);
void incident_set_place(Incident *x, IncidentPlace to);

void incident_texts_done(IncidentTexts *texts);
bool incident_texts_have(const IncidentTexts *texts, const char *text);
/** @return 0, 1: it is there already, or there are too many; -ENOMEM */
int incident_texts_add(IncidentTexts *texts, size_t max, const char *text);

/** Copies it. An owner gets half of the places. @return 0, 1: it is there already, or there are too
 * many; -ENOMEM */
int incident_add_process(Incident *x, const IncidentProcess *p);
/** The same, for a log of the runtime outside of dumps. */
int incident_add_log_file(Incident *x, const CollectLogFile *f);
/** Adds what the store knows of the job of a process (agent/node_events/job_records.h), if it does.
 */
void incident_add_job(Incident *x, pid_t pid, uint64_t start_ticks);
/** Copies its source, path and owner. @return 0, 1: it is there already; -EDQUOT: there are
 * too many, which is logged once; -ENOMEM */
int incident_add_unit(Incident *x, const IncidentUnit *u);
/** @return the unit; NULL */
IncidentUnit *incident_find_unit(Incident *x, const char *source, const char *path);

/** Nobody waits for the ends of its processes any more. */
void incident_unwatch_exits(Incident *x);

/** Answers the notes that were not answered yet, if the part that they may see exists or will not.
 */
void incident_report_public(Incident *x);
