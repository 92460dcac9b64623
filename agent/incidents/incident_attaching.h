/* Brings the files of an incident to its dumps. Private to agent/incidents. */
#pragma once

#include "agent/incidents/incident.h"

/** Attaches what its units do not have yet, unless that is underway. When all is attached, or
 * cannot be attached now, the units of an incident that rests or has ended need not wait any more.
 */
void incident_attaching_start(Incident *x);
/** Writes down what came back, and handles no more results. A job that runs is finished. */
void incident_attaching_stop(Incident *x);
/** Reads what an earlier agent has attached. @return 0, -errno */
int incident_attaching_read_memory(Incident *x);
