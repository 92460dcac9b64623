/* What the files of attachments share: attachments.c (directories, giving, letting go), attachments_put.c (room, copies), attachments_job.c (off the loop). */
#pragma once

#include <stdbool.h>
#include <sys/stat.h>

#include "agent/hooknotes/attachments.h"
#include "lib/base/list.h"
#include "lib/event/worker_pool.h"

#define ATTACHMENTS_KEY_SIZE 17
#define ATTACHMENTS_GIVING ".giving" /* on the way to a bundle: waits still */
#define ATTACHMENTS_UNITS_MAX 65536  /* directories that are looked at */

struct Attachments {
        char *path;
        uint64_t max_bytes_all;
        uint64_t bytes; /* of all units, at most: counted anew when it is too much */
        bool is_counted;
        uint64_t
                more_bytes; /* that ever came on the loop's side: what a worker's count may have missed */
        WorkerPool *pool; /* one thread: NULL before attachments_start() */
        ListLink jobs;    /* out, oldest first */
};

/* attachments.c; all that takes a path and no Attachments may run in a worker */
/** All names that a filter wants, in strcmp order; no more than names->max. */
int attachment_names_read(int dir_fd, bool (*wants)(int dir_fd, const char *name),
                          AttachmentNames *names);
bool attachments_is_file(int dir_fd, const char *name);
bool attachments_is_given(int dir_fd, const char *name);
bool attachments_is_unit(int dir_fd, const char *name);
int attachments_open_dir(int dir_fd, const char *name);
/** Makes the directory of all, durably, where it is not there. @return fd, -errno */
int attachments_make_root(const char *path);
/** @return fd, -ENOENT: nothing was attached to it; -errno */
int attachments_open_unit(const Attachments *a, const char *source, const char *unit_path);
/** Makes the directory of a unit, durably, with whose it is. @param path  of all attachments */
int attachments_make_unit(const char *path, const char *source, const char *unit_path);
/** Removes the directory of a unit that has nothing any more, unless a job is about to put something there. */
int attachments_tidy(const Attachments *a, const char *source, const char *unit_path);
/** The files of one directory below a unit's, and the sum of their sizes. 0 also where there is none. */
int attachments_count_in(int unit, const char *name, size_t *n, uint64_t *bytes);
/** The files that wait, but for one name. @param but  NULL: none */
int attachments_count_waiting(int unit, const char *but, size_t *n, uint64_t *bytes);

/* attachments_put.c */
/** @return 0, -E2BIG, -EFBIG, -errno: as attachments_put() */
int attachments_check_unit(int unit, const char *name, uint64_t more_bytes);
/** What all units have. @param path  of all attachments */
int attachments_count_all(const char *path, uint64_t *ret_bytes);
/** Copies what `from` has to a new file, durable but for its name. */
int attachments_write_copy(int dir_fd, const char *name, int from, uint64_t bytes);

/** So much has come, on the loop. */
void attachments_add_bytes(Attachments *a, uint64_t bytes);

/* attachments_job.c */
/** @return whether a job that is out has to do with the unit */
bool attachments_is_busy(const Attachments *a, const char *source, const char *unit_path);
/** What jobs that are out bring for the unit is let go when they come back.
 * @param before_usec  CLOCK_REALTIME: of those alone that were submitted before; UINT64_MAX: of all */
void attachments_unwant(Attachments *a, const char *source, const char *unit_path,
                        uint64_t before_usec);
void attachments_drop_jobs(Attachments *a);
