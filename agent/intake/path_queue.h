/* Paths that wait for something, each once. See path_queue.c. */
#pragma once

#include <stdbool.h>

#include "lib/base/bound.h"
#include "lib/base/list.h"

#define PATH_QUEUE_MAX 10000
#define PATH_QUEUE_MAX_OF_OWNER (PATH_QUEUE_MAX / 4)

typedef struct PathQueue {
        ListLink all;  /* of QueuedPath, oldest first */
        void *by_path; /* tsearch(3) */
        Bound bound;   /* by owner of the paths */
} PathQueue;

typedef struct QueuedPath {
        ListLink link;
        char *path;
        Charge charge; /* of its owner */
} QueuedPath;

/** @param max_each  of PATH_QUEUE_MAX, for one owner @param clock  for the log, borrowed; NULL:
 * what is refused is not logged */
void path_queue_init(PathQueue *q, uint64_t max_each, Clock *clock);
void path_queue_done(PathQueue *q);

/** Adds a path, unless it is there. @return 0; -E2BIG: the queue, or the owner's part of it, is
 * full; -ENOMEM */
int path_queue_add(PathQueue *q, const char *path, const Owner *owner);
bool path_queue_has(const PathQueue *q, const char *path);
bool path_queue_is_empty(const PathQueue *q);

/** Removes the oldest path of a queue that is not empty. @return it, the caller's */
char *path_queue_pop(PathQueue *q);
/** Removes an entry. @return its path, the caller's */
char *path_queue_remove(PathQueue *q, QueuedPath *entry);
