/* The list of incidents, each with its directory on the disk. Private to agent/incidents. */
#pragma once

#include "agent/incidents/incident.h"

#define INCIDENT_DIRECTORIES_MAX 200
#define INCIDENT_BYTES_MAX GIB

/** Adds one with a name and a directory of its own. @return NULL and *ret_r: -errno */
Incident *incident_list_add_new(Incidents *i, const char *trigger, int *ret_r);
/** Frees it; its directory stays, up to date. Takes NULL, returns NULL. */
Incident *incident_list_release(Incident *x);
/** Frees it, and removes its directory. */
void incident_list_remove(Incident *x);
/** Removes incidents until there is space for one more. @return whether there is */
bool incident_list_free_space(Incidents *i);
/** Reads what an earlier agent left, and resumes it. @return 0, -errno */
int incident_list_sweep(Incidents *i);
