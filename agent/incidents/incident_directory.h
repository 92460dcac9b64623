/* The directory of an incident, with `snapshot-context.json`. Private to agent/incidents. */
#pragma once

#include "agent/incidents/incident.h"

/** Creates `snapshots/NAME` and writes snapshot-context.json. @return 0, -EEXIST, -errno */
int incident_directory_create(Incident *x);
/** Opens it, if it is not open: x->dir_fd. @return 0, -errno */
int incident_directory_open(Incident *x);
/** Closes it, and the part of the snapshot that notes may see, if the incident has ended. */
void incident_directory_close(Incident *x);

/** Writes snapshot-context.json, if it has changed. A failure is logged. */
void incident_directory_write(Incident *x);
/** Writes it soon, with what changes until then. */
void incident_directory_write_soon(Incident *x);
/** Reads snapshot-context.json of an earlier agent. An incident without a valid document is about
 * nothing that is known. @return 0; -errno: it cannot be read now, and may be about dumps */
int incident_directory_read(Incident *x, bool *ret_over);

/** Reads the part of the snapshot that notes may see into x->public_fd. @return 0, -errno */
int incident_directory_read_public(Incident *x);
/** @return how many bytes are in it */
uint64_t incident_directory_measure(const Incident *x);
/** @return ret: the name that the directory of an incident has in agent/evidence */
const char *incident_directory_evidence_name(const char *name, char ret[static EVIDENCE_NAME_MAX]);
/** Moves it to agent/evidence, where it becomes a bundle: INCIDENT_PUBLISHED, or INCIDENT_STUCK;
 * logged. */
void incident_directory_publish(Incident *x);
