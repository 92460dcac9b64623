/* What of a process lies in its memory. Reading it may wait for ever (procfs.h), so only in a
 * child, and last. */
#pragma once

#include "collectors/host/process_report.h"

/** Writes the record of the maps: the libraries of Neuron with their build ids. */
void process_memory_maps(ProcessReport *report);
/** Writes the record of the command line, redacted. */
void process_memory_command(ProcessReport *report);
/** Writes the record of the environment, of which the request allows some variables, and that of
 * the job. */
void process_memory_environment(ProcessReport *report);
