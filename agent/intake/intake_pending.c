#include "agent/intake/intake_pending.h"

#include <errno.h>
#include <search.h>
#include <string.h>

#include "lib/base/cleanup.h"

typedef struct PendingPath {
        ListLink link;
        char *path;
} PendingPath;

static int compare(const void *a, const void *b) {
        return strcmp(((const PendingPath *)a)->path, ((const PendingPath *)b)->path);
}

void pending_init(Pending *p) {
        *p = (Pending){ 0 };
        list_init(&p->all);
}

int pending_add(Pending *p, const char *path) {
        PendingPath key = { .path = (char *)path };
        if (tfind(&key, &p->by_path, compare))
                return 0;
        if (p->n >= PENDING_MAX) {
                pending_done(p);
                return -E2BIG;
        }
        PendingPath *entry = calloc(1, sizeof *entry);
        char *copy = strdup(path);
        if (!entry || !copy) {
                free(entry);
                free(copy);
                return -ENOMEM;
        }
        entry->path = copy;
        if (!tsearch(entry, &p->by_path, compare)) {
                free(entry);
                free(copy);
                return -ENOMEM;
        }
        list_append(&p->all, &entry->link);
        p->n++;
        return 0;
}

char *pending_take(Pending *p) {
        PendingPath *entry = CONTAINER_OF(p->all.next, PendingPath, link);
        char *path = entry->path;
        tdelete(entry, &p->by_path, compare);
        list_remove(&entry->link);
        p->n--;
        free(entry);
        return path;
}

bool pending_has(const Pending *p, const char *path) {
        PendingPath key = { .path = (char *)path };
        return tfind(&key, &p->by_path, compare) != NULL;
}

bool pending_is_empty(const Pending *p) {
        return list_is_empty(&p->all);
}

void pending_done(Pending *p) {
        while (!pending_is_empty(p))
                free(pending_take(p));
}
