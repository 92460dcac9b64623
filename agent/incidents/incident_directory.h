/* The directory of an incident, with `incident.json`. Private to agent/incidents. */
#pragma once

#include "agent/incidents/incident.h"

/** Creates `snapshots/NAME` and writes incident.json. @return 0, -EEXIST, -errno */
int incident_directory_create(Incident *x);
/** Opens it, if it is not open: x->dir_fd. @return 0, -errno */
int incident_directory_open(Incident *x);
/** Closes it, and the part of the snapshot that notes may see, if the incident has ended. */
void incident_directory_close(Incident *x);

/** Writes incident.json, if it has changed. A failure is logged. */
void incident_directory_write(Incident *x);
/** Writes it soon, with what changes until then. */
void incident_directory_write_soon(Incident *x);
/** Reads incident.json of an earlier agent. An incident without a valid document is delivered as a
 * bundle of its own in the end. @return 0; -errno: it cannot be read now, and may be about dumps */
int incident_directory_read(Incident *x, bool *ret_over);

/** Reads the part of the snapshot that notes may see into x->public_fd. @return 0, -errno */
int incident_directory_read_public(Incident *x);
/** @return how many bytes are in it */
uint64_t incident_directory_measure(const Incident *x);
/** Moves it to `incidents/NAME`, where it is delivered for itself; logged. */
void incident_directory_make_own_bundle(Incident *x);
