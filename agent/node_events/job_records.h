/* The records of the `jobs` collector on their way into the store: which processes hold a Neuron
 * device or have the runtime loaded. */
#pragma once

#include <systemd/sd-event.h>

#include "agent/store/store.h"
#include "lib/base/clock.h"

typedef struct JobRecords JobRecords;

/** All are borrowed. @return 0, -ENOMEM, -errno */
int job_records_new(JobRecords **ret, sd_event *event, Clock *clock, Store *store);
/** Stores what waits. Takes NULL, returns NULL. */
JobRecords *job_records_free(JobRecords *j);

/** Stores a record (docs/BUNDLE.md) together with others that arrive now, unless the store has it
 * already. What cannot be stored is lost; the collector reports it again within 10 minutes.
 * @param record  JSON; copied */
void job_records_add(JobRecords *j, const char *record);

/** Stores what waits, now. */
void job_records_flush(JobRecords *j);
/** @return how many records wait */
size_t job_records_n_waiting(const JobRecords *j);
