/* What an incident consists of. Who may change what of it: incidents_private.h. */
#pragma once

#include <sys/stat.h>

#include "agent/hooknotes/attachments.h"
#include "agent/incidents/incident_rules.h"
#include "agent/incidents/incidents.h"
#include "agent/incidents/probe.h"
#include "collectors/host/pids.h"
#include "lib/base/list.h"

#define INCIDENT_DIRECTORIES_MAX 200
#define INCIDENT_BYTES_MAX GIB
#define INCIDENT_NOTES_MAX 1024
#define INCIDENT_UNITS_MAX 32 /* each gets all files */
#define INCIDENT_UNITS_MAX_OF_UID 8
#define INCIDENT_EVENTS_MAX 64 /* lines of the kernel log in incident.json; the snapshot has all */
#define INCIDENT_TEXTS_BYTES_MAX                                                                   \
        MIB /* of each kind of records in incident.json; the snapshot has them, too */
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
        bool is_taken;       /* part of an order; what came of itself waits for the second look */
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
        uint64_t ended_boot_usec; /* by this agent; 0 = not yet, or by an earlier one */
        uint64_t
                awaited_boot_usec; /* until then a unit may join: the directory of a note was not there; 0 = of none */
        int dir_fd;          /* -1: closed meanwhile, see incident_open_directory() */
        int public_fd;       /* -1: there is none, or it is over */
        bool is_public_over; /* the notes know by now */
        bool is_salvage, has_snapshot;
        bool is_found;       /* an earlier agent's, whose supervisor may still be at work */
        bool is_outside;     /* a unit of its own, to be shipped */
        bool is_made;        /* its directory is its own, and goes with it */
        unsigned n_left_out; /* units above the bounds */
        unsigned n_more;
        sd_event_source *timer, *writing;
        Probe *probe;
        char *written;              /* what incident.json says */
        IncidentTexts notes;        /* ids */
        IncidentTexts events, jobs; /* JSON */
        size_t n_told;              /* of the notes */
        IncidentUnit *units;
        size_t n_units;
        IncidentProcess **processes;
        size_t n_processes;
        CollectLogFile *log_files;
        size_t n_log_files, n_log_files_taken; /* taken: so many of them were part of an order */
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
        char *seen[INCIDENTS_SEEN_MAX]; /* records of jobs that are to be stored, in one go */
        size_t n_seen;
        sd_event_source *seen_step;
        unsigned last_number;
        bool is_hurried;
        uint64_t n_taken, n_joined, n_dropped;
};
