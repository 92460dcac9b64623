/* Jobs that attach a file to units. Private to agent/hooknotes; attachments_submit() starts one. */
#pragma once

#include "agent/hooknotes/attachments.h"
#include "lib/base/list.h"
#include "lib/event/worker_pool.h"

struct Attachments {
        char *path;
        uint64_t max_bytes_all;
        WorkerPool *pool; /* one thread */
        ListLink jobs;    /* in the worker or waiting for it, oldest first */
};

/** The unit is another one now: it does not get what jobs attach that were submitted before.
 * @param before_usec  CLOCK_REALTIME */
void attachment_job_cancel(Attachments *a, const char *source, const char *unit_path,
                           uint64_t before_usec);
/** Removes the directory of a unit if nothing is in it and no job writes to it. @return 0, -errno
 */
int attachment_job_tidy(const Attachments *a, const char *source, const char *unit_path);
/** Frees the jobs that did not run. */
void attachment_job_free_all(Attachments *a);
