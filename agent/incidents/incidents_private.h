/* What the files of the incidents share: incidents.c (who belongs together), incidents_take.c (from the first look to the last), incidents_exits.c (processes that end), incidents_dir.c (where it lies
 * on disk), incidents_found.c (what an earlier agent left), incidents_units.c (its dumps), incidents_attach.c (what they get), incidents_watch.c (the kernel log, and who holds devices). */
#pragma once

#include <jansson.h>

#include "agent/incidents/incidents_types.h"

/* incidents_dir.c */
/** @return 0, -EEXIST: there is one of that name, which is left alone; -errno */
int incident_make_directory(Incident *x);
/** Writes incident.json, where it would say something else than it does. */
void incident_write(Incident *x);
/** Something was added: it is written soon, and with it what else comes by then. */
void incident_changed(Incident *x);
/** For whoever is about to use dir_fd. @return 0: it is open, also when it was; -errno */
int incident_open_directory(Incident *x);
/** Of those that are over there may be hundreds: where nothing is underway any more, no descriptor of it stays open. */
void incident_close_descriptors(Incident *x);
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
/** Finds what an earlier agent has left. What cannot be read now is left alone, and looked for again. */
int incidents_sweep(Incidents *i);
/** @return the path of that key, the caller's; NULL */
char *incident_unescaped(const json_t *v, const char *key);

/* incidents_attach.c */
/** Attaches to all units, off the loop, what is there and was not attached as it is; then, where the incident rests or has ended, units need not wait any more. */
void incident_attach_all(Incident *x);
bool incident_is_attaching(const Incident *x);
/** Takes up what an earlier agent has attached. After its units are known. @return 0, also where nothing is remembered; -errno: not now */
int incident_read_attached(Incident *x);
/** Lets a job go on by itself, and saves what is known. */
void incident_attach_done(Incident *x);

/* incidents_units.c */
/** @return the one that is at that path now; NULL */
IncidentUnit *incident_find_unit(Incident *x, const char *source, const char *path);
/** @return 0, 1: it was there already; -EDQUOT: there are too many, which is counted; -ENOMEM */
int incident_add_unit(Incident *x, const IncidentUnit *u);
void incident_tell_pending(const Incident *x, bool pending);
void incident_units_done(Incident *x);

/* incidents_exits.c */
/** Waits for the ends of all processes that are known and not gone, as far as the kernel lets it: incident_on_exit() follows each. */
void incident_watch_exits(Incident *x);
/** No end is waited for any more. */
void incident_forget_exits(Incident *x);
bool incident_all_are_gone(const Incident *x);

/* incidents_take.c */
/** A process has ended. */
void incident_on_exit(Incident *x);
int incident_start(Incident *x, uint64_t wait_usec);
/** A unit may be told of later, when the hook of a note has ended: one without any other is not shipped for itself before. */
void incident_await_unit(Incident *x);
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
/** @return 0, 1: it was there already, or there are too many; -ENOMEM */
int incident_add_text(IncidentTexts *texts, size_t max, const char *text);
void incident_texts_done(IncidentTexts *texts);
/** Begins one, or finds the one that it belongs to. @return NULL: neither, *ret_why is a sentence */
Incident *incidents_take_up(Incidents *i, IncidentCause cause, const char *trigger,
                            const char **ret_why);

/* incidents_watch.c */
void incidents_watch(Incidents *i);
void incidents_watch_done(Incidents *i);
