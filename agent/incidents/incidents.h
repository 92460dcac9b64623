/* Incidents and their snapshots: what belongs together, and what is collected for it. Each snapshot
 * that no operator has requested becomes a bundle. A note, an error of the hardware, a failure on
 * another node, a crash report or an operator starts one; events that follow soon join it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "agent/evidence/evidence.h"
#include "agent/hooknotes/hooknotes.h"
#include "agent/store/bundle.h"
#include "config/config.h"

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
        BundleTable *bundles;
        Evidence *evidence; /* that gets the snapshots */
        void *userdata;
} IncidentsContext;

int incidents_new(Incidents **ret, const IncidentsContext *context, const Config *config);
Incidents *incidents_free(Incidents *i);
void incidents_rebind(Incidents *i, const Config *config);

void incidents_on_note(Incidents *i, const NoteView *v);

/** The unit of a note is known only now. If the note belongs to an incident, so does the unit. */
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
 * @param record  of the collector, JSON: goes into snapshot-context.json */
void incidents_on_hw_error(Incidents *i, const char *line, const char *record);

/** The OOM killer has killed a process of a user. @param line  of the kernel log, for people */
void incidents_on_oom_kill(Incidents *i, uid_t uid, const char *line);

/** A bundle was found: snapshots about its unit name it; of a process that the OOM killer has
 * killed, the young one does. */
void incidents_on_found(Incidents *i, const BundleRecord *rec);

typedef struct IncidentView {
        const char *name;
        bool done;             /* snapshot.json is complete; a second snapshot may follow */
        const char *directory; /* absolute: snapshot.json and raw files */
} IncidentView;

/** Sets the fields of ret about snapshots. */
void incidents_fill_view(const Incidents *i, HookView *ret);

/** @return how many must end before the node terminates: those that become a bundle. Each ends by
 * itself (by the times of the collectors, a minute for processes to end, 30 s for others to join).
 */
size_t incidents_n_underway(const Incidents *i);

typedef enum IncidentHurry {
        INCIDENT_HURRY_NONE,
        INCIDENT_HURRY_DRAIN, /* no incident waits for others to join */
        INCIDENT_HURRY_FLUSH, /* nor for processes to end */
} IncidentHurry;

void incidents_hurry(Incidents *i, IncidentHurry hurry);

/** @return whether it is known; borrowed until the loop turns */
bool incidents_get(const Incidents *i, const char *name, IncidentView *ret);
