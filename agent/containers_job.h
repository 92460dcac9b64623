/* What a batch has done in the worker. A job owns all it touches. */
#pragma once

#include "agent/containers_tree.h"
#include "lib/base/list.h"
#include "lib/event/worker_pool.h"

struct Containers;
typedef struct ContainersJob ContainersJob;

struct ContainersJob {
        WorkJob job;
        ListLink mine; /* Containers.jobs, while it is the worker's */
        int (*task)(ContainersJob *j);
        void (*on_done)(ContainersJob *j); /* on the loop */
        void *userdata;
        int root_fd, dir_fd; /* its own */
        char *name;          /* of a directory below `.coming`, or of a unit's, to be removed */
        char *about;         /* of a unit that is removed: its file; NULL */
        CopyDocument document;
        TreeUnit *units;
        size_t n_units;
        int result;
};
/** @param dir_fd  of the batch; -1 = none. Duplicated @return NULL: no memory, no descriptors */
ContainersJob *containers_job_new(const struct Containers *c, int dir_fd);
ContainersJob *containers_job_free(ContainersJob *j);
/** @return whether it was taken; else it stays the caller's */
bool containers_job_submit(struct Containers *c, ContainersJob *j);
int containers_read_task(ContainersJob *j);
int containers_build_task(ContainersJob *j);
int containers_remove_task(ContainersJob *j);
