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

#define INCIDENT_NOTES_MAX 4096       /* more than all owners may send before they have to wait */
#define INCIDENT_UNITS_MAX 32         /* each gets all files of the incident */
#define INCIDENT_UNITS_MAX_OF_OWNER 8 /* the host's root may have INCIDENT_UNITS_MAX */
#define INCIDENT_EVENTS_MAX 64        /* lines of the kernel log in incident.json */
#define INCIDENT_TEXTS_BYTES_MAX MIB  /* of a list of records, each of which may have 64 KiB */
#define INCIDENT_FILES_MAX 1024       /* in the directory of an incident */

typedef enum IncidentState { /* incident_machine.c draws what leads from one to the next */
                             INCIDENT_GATHERING, /* waits for events that belong together and arrive
                                                    within a moment */
                             INCIDENT_SNAPSHOT, /* a supervisor takes the snapshot, or collects what
                                                   joined later */
                             INCIDENT_WAITING,  /* waits for its processes to end */
                             INCIDENT_RECHECKING, /* a supervisor takes the second snapshot */
                             INCIDENT_RESTING, /* is complete; others may join while it is young */
                             INCIDENT_ENDED,   /* is closed; its files are kept for a while, or
                                                  delivered */
                             N_INCIDENT_STATES
} IncidentState;

typedef struct IncidentFile { /* a file as it was when it was attached to a unit */
        char name[256];
        uint64_t bytes, inode;
        int64_t mtime_nsec; /* CLOCK_REALTIME */
} IncidentFile;

typedef struct IncidentUnit { /* a dump that gets the files of the incident */
        char *source, *path;
        Owner owner;            /* of the hook that named it */
        uint64_t added_usec;    /* CLOCK_REALTIME; given to incident_add_unit(): 0 = now */
        bool is_gone;           /* its path holds another dump now: nothing more is attached */
        bool is_requested;      /* a request named it; if not, the next request does */
        IncidentFile *attached; /* incident_attaching.c */
        size_t n_attached;
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
                                  to read incident.json */
        char **items;
        size_t n;
        uint64_t bytes, n_left_out; /* beyond INCIDENT_TEXTS_BYTES_MAX */
} IncidentTexts;

typedef struct IncidentAttaching {                 /* incident_attaching.c */
        AttachmentJob *job;                        /* that attaches `file`; NULL: none */
        IncidentFile file;                         /* the current one, or the last one */
        size_t units[INCIDENT_UNITS_MAX], n_units; /* that get it: indices of Incident.units */
        bool is_stuck;   /* a file could not be attached; it is tried again */
        bool is_changed; /* IncidentUnit.attached has changed since it was written */
        sd_event_source *timer;
        uint64_t wait_usec; /* until the next try */
} IncidentAttaching;

typedef struct Incident {
        Incidents *owner;
        ListLink link; /* Incidents.incidents, oldest first */
        char name[INCIDENT_NAME_SIZE];

        /* Why and when it started: incidents.c and incident_list.c, or incident_directory.c from
         * incident.json. */
        Owner by;      /* who caused it */
        char *trigger; /* a sentence */
        IncidentCause cause;
        uint64_t begun_usec, begun_boot_usec;

        /* What belongs to it: the functions below, and incidents.c. incident_request.c sets the
         * processes that the supervisor finds, and marks what a request has named. */
        IncidentTexts notes;        /* ids */
        IncidentTexts events, jobs; /* records, JSON */
        IncidentUnit *units;
        size_t n_units;
        unsigned n_left_out; /* units beyond the bounds */
        IncidentProcess **processes;
        size_t n_processes;
        CollectLogFile *log_files; /* of the runtime, outside of dumps */
        size_t n_log_files;
        bool has_report; /* of a crash: it is delivered even without a snapshot */

        /* Its state and its requests: incident_machine.c and incident_request.c; incident_list.c
         * when it resumes an incident. */
        IncidentState state; /* incident_set_state() */
        sd_event_source *timer;
        SupervisorClient *supervisor; /* that works on a request; NULL: none */
        size_t n_log_files_requested; /* so many of log_files were named by requests */
        char *document;               /* name of the document of the last request for "more" */
        unsigned n_more;
        bool has_snapshot;
        bool is_salvage;            /* the supervisor gathers what another one has left */
        bool is_public_reported;    /* public.json is complete, or will not be written any more */
        size_t n_notes_reported;    /* the first ones of `notes` were answered */
        uint64_t awaited_boot_usec; /* until then the directory that a note names may be created;
                                       0 = no note waits for one */
        uint64_t ended_boot_usec;   /* 0 = not yet, or by an earlier agent */

        /* Its directory: incident_directory.c, incident_list.c, incident_machine.c (bytes). */
        char *directory;
        int dir_fd;         /* -1: closed, see incident_directory_open() */
        int public_fd;      /* a memfd with public.json; -1: none, or the incident has ended */
        bool has_directory; /* it was created for this incident, and is removed with it */
        bool is_found;      /* an earlier agent left it; its supervisor may still write */
        bool is_own_bundle; /* it is in Incidents.outbox, to be delivered as a bundle */
        uint64_t bytes;     /* of its files */
        char *written;      /* the text of incident.json; NULL: not known */
        sd_event_source *writing;
        IncidentAttaching attaching;
} Incident;

struct Incidents {
        IncidentsContext context;
        const Config *config;
        char *snapshots, *outbox; /* directories of incidents, absolute */
        char *socket;             /* of the collector host */
        ListLink incidents;
        size_t n_incidents;
        unsigned last_number; /* in a name */
        IncidentRules rules;
        Incident *young; /* that events join; NULL */
        bool is_hurried;
        uint64_t n_started, n_joined, n_dropped;
};

static inline uint64_t incident_boot_usec(const Incidents *i) {
        return i->context.clock->boottime_usec(i->context.clock);
}

static inline uint64_t incident_realtime_usec(const Incidents *i) {
        return i->context.clock->realtime_usec(i->context.clock);
}

static inline bool incident_is_attaching(const Incident *x) {
        return x->attaching.job || x->attaching.is_stuck;
}

/** Adds one without content to the list. @return NULL: no memory */
Incident *incident_new(Incidents *i, const char *name);
/** Frees it, and neither writes nor removes its directory. Takes NULL, returns NULL. */
Incident *incident_free(Incident *x);

/** Moves it to another state, if that move exists. */
void incident_set_state(Incident *x, IncidentState to);

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
/** Copies its source, path, owner and times. @return 0, 1: it is there already; -EDQUOT: there are
 * too many, which is logged once; -ENOMEM */
int incident_add_unit(Incident *x, const IncidentUnit *u);
/** @return the unit, unless another one is at its path by now; NULL */
IncidentUnit *incident_find_unit(Incident *x, const char *source, const char *path);

/** Nobody waits for the ends of its processes any more. */
void incident_unwatch_exits(Incident *x);

/** Reports of each unit whether more will be attached to it. */
void incident_report_pending(const Incident *x, bool pending);
/** Answers the notes that were not answered yet, if the part that they may see exists or will not.
 */
void incident_report_public(Incident *x);
