/* A queue of paths that wait for something: first in, first out, each path once. It is bounded.
 * When it is full, the owner with the most paths loses the newest of them; the caller makes sure
 * that a later scan finds what was lost. */
#include "agent/intake/path_queue.h"

#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/cleanup.h"

static int compare_paths(const void *a, const void *b) {
        return strcmp(((const QueuedPath *)a)->path, ((const QueuedPath *)b)->path);
}

void path_queue_init(PathQueue *q) {
        *q = (PathQueue){ .owners = { .what = "paths that wait", .max = PATH_QUEUE_MAX } };
        list_init(&q->all);
}

char *path_queue_remove(PathQueue *q, QueuedPath *entry) {
        char *path = entry->path;
        tdelete(entry, &q->by_path, compare_paths);
        list_remove(&entry->link);
        owners_release(&q->owners, &entry->owner, 1);
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
        owners_done(&q->owners);
}

/* Removes the newest path of an owner. */
static void drop_newest(PathQueue *q, const Owner *owner) {
        for (ListLink *l = q->all.prev; l != &q->all; l = l->prev) {
                QueuedPath *entry = CONTAINER_OF(l, QueuedPath, link);
                if (owner_is_same(&entry->owner, owner)) {
                        free(path_queue_remove(q, entry));
                        return;
                }
        }
}

int path_queue_add(PathQueue *q, const char *path, const Owner *owner) {
        Owner most;
        if (path_queue_has(q, path))
                return 0;
        int r = owners_request(&q->owners, owner, 1, &most),
            result = r == OWNERS_GRANTED ? 0 : -E2BIG;
        if (r == OWNERS_DISPLACE) {
                drop_newest(q, &most);
                r = owners_request(&q->owners, owner, 1, &most);
        }
        if (r != OWNERS_GRANTED)
                return MIN(r, -E2BIG);
        QueuedPath *entry = calloc(1, sizeof *entry);
        char *copy = strdup(path);
        if (entry && copy) {
                *entry = (QueuedPath){ .path = copy, .owner = *owner };
                if (tsearch(entry, &q->by_path, compare_paths)) {
                        list_append(&q->all, &entry->link);
                        return result;
                }
        }
        owners_release(&q->owners, owner, 1);
        free(entry);
        free(copy);
        return -ENOMEM;
}
