/* Paths that wait for something, each once. See path_queue.c. */
#pragma once

#include <stdbool.h>

#include "lib/base/list.h"
#include "lib/neuron/owners.h"

#define PATH_QUEUE_MAX 10000

typedef struct PathQueue {
        ListLink all;  /* of QueuedPath, oldest first */
        void *by_path; /* tsearch(3) */
        Owners owners;
} PathQueue;

typedef struct QueuedPath {
        ListLink link;
        char *path;
        Owner owner;
} QueuedPath;

void path_queue_init(PathQueue *q);
void path_queue_done(PathQueue *q);

/** Adds a path, unless it is there. @return 0; -E2BIG: this path, or one of another owner who has
 * more, is not in the queue; -ENOMEM */
int path_queue_add(PathQueue *q, const char *path, const Owner *owner);
bool path_queue_has(const PathQueue *q, const char *path);
bool path_queue_is_empty(const PathQueue *q);

/** Removes the oldest path of a queue that is not empty. @return it, the caller's */
char *path_queue_pop(PathQueue *q);
/** Removes an entry. @return its path, the caller's */
char *path_queue_remove(PathQueue *q, QueuedPath *entry);
