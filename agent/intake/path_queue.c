/* A queue of paths that wait for something: first in, first out, each path once. It is bounded for
 * each owner of paths and for all. What does not fit is refused; the caller makes sure that a later
 * scan finds it. */
#include "agent/intake/path_queue.h"

#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/cleanup.h"

static int compare_paths(const void *a, const void *b) {
        return strcmp(((const QueuedPath *)a)->path, ((const QueuedPath *)b)->path);
}

void path_queue_init(PathQueue *q, uint64_t max_each, Clock *clock) {
        *q = (PathQueue){ .bound = { .what = "paths that wait",
                                     .max = PATH_QUEUE_MAX,
                                     .max_each = max_each,
                                     .clock = clock } };
        list_init(&q->all);
}

char *path_queue_remove(PathQueue *q, QueuedPath *entry) {
        char *path = entry->path;
        tdelete(entry, &q->by_path, compare_paths);
        list_remove(&entry->link);
        bound_release(&entry->charge);
        free(entry);
        return path;
}

char *path_queue_pop(PathQueue *q) {
        return path_queue_remove(q, CONTAINER_OF(q->all.next, QueuedPath, link));
}

bool path_queue_has(const PathQueue *q, const char *path) {
        QueuedPath key = { .path = (char *)path };
        return tfind(&key, &q->by_path, compare_paths) != NULL;
}

bool path_queue_is_empty(const PathQueue *q) {
        return list_is_empty(&q->all);
}

void path_queue_done(PathQueue *q) {
        while (!path_queue_is_empty(q))
                free(path_queue_pop(q));
        bound_done(&q->bound);
}

int path_queue_add(PathQueue *q, const char *path, const Owner *owner) {
        if (path_queue_has(q, path))
                return 0;
        Charge charge = { 0 };
        if (bound_charge(&q->bound, &charge, owner, 1) != BOUND_OK)
                return -E2BIG;
        QueuedPath *entry = calloc(1, sizeof *entry);
        char *copy = strdup(path);
        if (entry && copy) {
                *entry = (QueuedPath){ .path = copy, .charge = charge };
                if (tsearch(entry, &q->by_path, compare_paths)) {
                        list_append(&q->all, &entry->link);
                        return 0;
                }
        }
        bound_release(&charge);
        free(entry);
        free(copy);
        return -ENOMEM;
}
