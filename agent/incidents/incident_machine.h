/* The states of an incident, and what leads from one to the next. Private to agent/incidents. */
#pragma once

#include "agent/incidents/incident.h"

/** Continues from the state that it is in. One that is published is removed: do not touch it. */
void incident_machine_step(Incident *x);
/** Calls incident_machine_step() after this time. @return 0, -errno */
int incident_machine_arm(Incident *x, uint64_t usec);

/** Something was added to it: a note, a process, a unit, a report. */
void incident_machine_on_joined(Incident *x);
/** A hook may still create the directory that its note names: it is waited for as long as the hook
 * may run. */
void incident_machine_await_unit(Incident *x);

/* An incident of an earlier agent, which is in GATHERING: */
/** Its snapshot was interrupted: makes a document of what is there. */
void incident_machine_salvage(Incident *x);
/** Waits for its processes, if its second snapshot is still to come. @return whether it is */
bool incident_machine_start_recheck(Incident *x);
/** All is there. */
void incident_machine_resume_resting(Incident *x);
/** It had ended, and was perhaps not published. */
void incident_machine_resume_end(Incident *x);
