/* Incidents and their snapshots: what belongs together, what is collected for it, and which bundle
 * gets it. A note, an error of the hardware, a failure on another node, a crash report or an
 * operator starts one; events that follow soon join it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "agent/hooknotes/attachments.h"
#include "agent/hooknotes/hooknotes.h"
#include "config/config.h"
#include "lib/base/strbuf.h"

typedef struct Incidents Incidents;

#define INCIDENT_NAME_SIZE 40

typedef struct IncidentsContext { /* borrowed */
        sd_event *event;
        Clock *clock;
        Store *store;
        const char *instance_id;
        /* The part of the snapshot that the sender of a note may see. @param fd  sealed memfd,
         * borrowed; -1: there is none, for a reason */
        void (*on_public)(const char *note_id, int fd, const char *reason, void *userdata);
        Attachments *attachments; /* started */
        /* A file was attached to a unit. */
        void (*on_attached)(const char *source, const char *unit_path, void *userdata);
        /* Whether more files will be attached to a unit. */
        void (*on_pending)(const char *source, const char *unit_path, bool pending, void *userdata);
        void *userdata;
} IncidentsContext;

int incidents_new(Incidents **ret, const IncidentsContext *context, const Config *config);
Incidents *incidents_free(Incidents *i);
void incidents_rebind(Incidents *i, const Config *config);

void incidents_on_note(Incidents *i, const NoteView *v);

/** The unit of a note is known only now. If the note belongs to an incident, the unit gets the
 * files that the incident has and will have. */
void incidents_add_unit_of_note(Incidents *i, const NoteView *v);

/** Starts a snapshot for an operator.
 * @param ret_name  of the incident
 * @param ret_why  with -EAGAIN: why not now (too many, too soon, no space), for people; static
 * @return 0, -EBUSY: one is running, -EPERM: snapshots are off, -EAGAIN */
int incidents_request(Incidents *i, char ret_name[INCIDENT_NAME_SIZE], const char **ret_why);

/** A rank on another node, of a job that also runs here, has failed: starts an incident, or joins
 * the young one. It belongs to no dump, unless a note joins it.
 * @param what  for people  @return 0, -EPERM: snapshots are off, -EAGAIN: not now (too many, no
 * space), which is logged */
int incidents_on_peer_failure(Incidents *i, const char *what);

/** The Neuron driver has logged an error of the hardware. @param line  of the kernel log, for
 * people
 * @param record  of the collector, JSON: goes into incident.json */
void incidents_on_hw_error(Incidents *i, const char *line, const char *record);

typedef struct IncidentReport { /* borrowed */
        Owner owner;            /* of the process */
        const char *what;       /* for people */
        const char *name;       /* of both files, without `.json` and `.md` */
        const StrBuf *json, *text;
} IncidentReport;
/** Evidence that is in no dump: starts an incident with these files, or adds them to one that has
 * just begun. @return 0, -EPERM: snapshots are off, -EAGAIN: not now, -errno; what failed is logged
 */
int incidents_add_report(Incidents *i, const IncidentReport *r);

/** Another unit is at that path now: nothing more is attached to a unit that was added before that
 * time. @param before_usec  CLOCK_REALTIME */
void incidents_unit_renewed(Incidents *i, const char *source, const char *unit_path,
                            uint64_t before_usec);

typedef struct IncidentView {
        const char *name;
        bool done;             /* snapshot.json is complete; a second snapshot may follow */
        const char *directory; /* absolute: snapshot.json and raw files */
} IncidentView;

/** Sets the fields of ret about snapshots. */
void incidents_fill_view(const Incidents *i, HookView *ret);

/** @return how many must end before the node terminates: one that takes a snapshot, waits for its
 * second snapshot, or is about to be found by the source `incidents`. Each ends by itself (by the
 * times of the collectors, a minute for processes to end, 30 s for others to join). */
size_t incidents_n_underway(const Incidents *i);
/** Whether time is short: then no incident waits for processes to end, or for others to join. */
void incidents_hurry(Incidents *i, bool on);

/** An incident that belongs to no dump is a unit of the agent's own source `incidents`: a directory
 * below <state_directory>/incidents. Such a unit was delivered, or has ended otherwise (evicted,
 * cancelled, vanished): removes its directory. */
void incidents_on_delivered(Incidents *i, const char *unit_path);
/** @return whether it is known; borrowed until the loop turns */
bool incidents_get(const Incidents *i, const char *name, IncidentView *ret);
