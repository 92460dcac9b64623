/* One snapshot, taken by a supervisor into a directory of the agent's. */
#pragma once

#include "collectors/collector_table.h"
#include "collectors/runner/probe_request.h"

#define SNAPSHOT_FILE "snapshot.json"
#define SNAPSHOT_AFTER_FILE "snapshot-after.json"
#define SNAPSHOT_PUBLIC_FILE "public.json" /* the public sections, before the rest has ended */
/* What a second snapshot is compared to. Where it is absent, there is nothing to compare. */
#define SNAPSHOT_BEFORE_FILE ".before-neuron_sysfs"
#define SNAPSHOT_CONTEXT_FILE "snapshot-context.json" /* the agent's, in the same directory */

/** Runs the collectors of a request, or salvages what an earlier supervisor has left, and writes
 * the document. The caller has one thread.
 * @param fd  the connection to the agent: it gets the message `public`
 * @param dir_fd  where all files are written
 * @return 0, -EWOULDBLOCK: another supervisor kept the directory locked, -errno */
int snapshot_run(const CollectorTable *table, const ProbeRequest *request, int fd, int dir_fd);
