/* Incidents and their snapshots: what belongs together, what is collected for it, and which bundle
 * gets it. A note, a line of the kernel log, a failure on another node or an operator starts one;
 * what happens while it is young joins it. */
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
        /* The part that an unprivileged caller may see. @param fd  sealed memfd, borrowed; -1 with
         * a reason */
        void (*on_public)(const char *note_id, int fd, const char *reason, void *userdata);
        Attachments *attachments; /* started */
        /* Something was attached to a unit. */
        void (*on_attached)(const char *source, const char *unit_path, void *userdata);
        /* More will be attached to a unit (until the process has exited and a second snapshot was
         * made, or time is over), or all has come. */
        void (*on_pending)(const char *source, const char *unit_path, bool pending, void *userdata);
        void *userdata;
} IncidentsContext;

int incidents_new(Incidents **ret, const IncidentsContext *context, const Config *config);
Incidents *incidents_free(Incidents *i);
void incidents_rebind(Incidents *i, const Config *config);

void incidents_on_note(Incidents *i, const NoteView *v);

/** The unit of a note that belongs to an incident is known only now: it gets what the incident has,
 * and will have. Of a note that belongs to none: nothing. */
void incidents_add_unit_of_note(Incidents *i, const NoteView *v);

/** Starts a snapshot for an operator. @param ret_name  of the directory that it will be in @param
 * ret_why  with -EAGAIN: why not now (too many, too soon, no room), for people; static
 * @return 0, -EBUSY: one is running, -EPERM: snapshots are off, -EAGAIN */
int incidents_request(Incidents *i, char ret_name[INCIDENT_NAME_SIZE], const char **ret_why);

/** A rank of a job that runs here, too, has failed on another node: this node takes a snapshot, or
 * the one that it has just begun is for that failure, too. It belongs to no dump, unless a note
 * joins it. @param what  for people  @return 0, -EPERM: snapshots are off, -EAGAIN: not now (too
 * many, no room), which is logged */
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

/** What is at that path is another unit than before: what was added before that time gets nothing
 * more. @param before_usec  CLOCK_REALTIME */
void incidents_unit_renewed(Incidents *i, const char *source, const char *unit_path,
                            uint64_t before_usec);

typedef struct IncidentView {
        const char *name;
        bool done;             /* snapshot.json is there; a second snapshot may follow */
        const char *directory; /* absolute: snapshot.json and raw files */
} IncidentView;

/** Sets the fields of ret about snapshots. */
void incidents_fill_view(const Incidents *i, HookView *ret);

/** @return how many must end before the node terminates: a snapshot is running, waits for its
 * second snapshot, or is about to be found by the source below. Each ends by itself (the
 * collectors' times, a minute for processes to end, 30 s for others to join). */
size_t incidents_n_underway(const Incidents *i);
/** Time is short: no process is waited for, and nobody may join any more; or not so any more. */
void incidents_hurry(Incidents *i, bool on);

/* Incidents that belong to no unit are units of their own: each a directory below
 * <state_directory>/incidents, of a source that the agent has without being configured. */
/** Such a unit was delivered, or has ended otherwise (evicted, cancelled, vanished): its directory
 * is removed. */
void incidents_on_delivered(Incidents *i, const char *unit_path);
/** @return whether it is known; borrowed until the loop turns */
bool incidents_get(const Incidents *i, const char *name, IncidentView *ret);
