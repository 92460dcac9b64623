/* What a source remembers between scans: the state of each unit, and paths that wait. */
#include "agent/intake/intake_private.h"

#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/digest.h"

uint64_t unit_table_key(const char *relative) {
        /* SHA-256, since names are untrusted: nobody can make two paths collide. */
        uint8_t hash[SHA256_SIZE];
        uint64_t key;
        sha256_of(relative, strlen(relative), hash);
        memcpy(&key, hash, sizeof key);
        return key ? key : 1;
}

static size_t slot_of(const UnitTable *t, uint64_t key) {
        size_t i = (size_t)key & (t->n_slots - 1);
        while (t->keys[i] && t->keys[i] != key)
                i = (i + 1) & (t->n_slots - 1);
        return i;
}

static int grow(UnitTable *t) {
        UnitTable bigger = { .n_slots = t->n_slots ? 2 * t->n_slots : 64 };
        bigger.keys = calloc(bigger.n_slots, sizeof *bigger.keys);
        bigger.digests = calloc(bigger.n_slots, sizeof *bigger.digests);
        if (!bigger.keys || !bigger.digests) {
                unit_table_done(&bigger);
                return -ENOMEM;
        }
        for (size_t i = 0; i < t->n_slots; i++)
                if (t->keys[i]) {
                        size_t to = slot_of(&bigger, t->keys[i]);
                        bigger.keys[to] = t->keys[i];
                        bigger.digests[to] = t->digests[i];
                        bigger.n++;
                }
        unit_table_done(t);
        *t = bigger;
        return 0;
}

int unit_table_put(UnitTable *t, uint64_t key, uint64_t digest) {
        if (2 * (t->n + 1) > t->n_slots) {
                int r = grow(t);
                if (r < 0)
                        return r;
        }
        size_t i = slot_of(t, key);
        t->n += t->keys[i] == 0;
        t->keys[i] = key;
        t->digests[i] = digest;
        return 0;
}

bool unit_table_get(const UnitTable *t, uint64_t key, uint64_t *ret_digest) {
        if (t->n_slots == 0)
                return false;
        size_t i = slot_of(t, key);
        if (!t->keys[i])
                return false;
        *ret_digest = t->digests[i];
        return true;
}

int unit_table_copy(UnitTable *ret, const UnitTable *from) {
        UnitTable t = *from;
        size_t size = t.n_slots * sizeof *t.keys;
        if (size > 0) {
                t.keys = malloc(size);
                t.digests = malloc(size);
                if (!t.keys || !t.digests) {
                        unit_table_done(&t);
                        return -ENOMEM;
                }
                memcpy(t.keys, from->keys, size);
                memcpy(t.digests, from->digests, size);
        }
        *ret = t;
        return 0;
}

void unit_table_done(UnitTable *t) {
        free(t->keys);
        free(t->digests);
        *t = (UnitTable){ 0 };
}

/* ---- paths that wait ---- */

typedef struct PendingPath {
        ListLink link;
        char *path;
} PendingPath;

static int compare_paths(const void *a, const void *b) {
        return strcmp(((const PendingPath *)a)->path, ((const PendingPath *)b)->path);
}

void pending_init(Pending *p) {
        *p = (Pending){ 0 };
        list_init(&p->all);
}

int pending_add(Pending *p, const char *path) {
        PendingPath key = { .path = (char *)path };
        if (tfind(&key, &p->by_path, compare_paths))
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
        if (!tsearch(entry, &p->by_path, compare_paths)) {
                free(entry);
                free(copy);
                return -ENOMEM;
        }
        list_append(&p->all, &entry->link);
        p->n++;
        return 0;
}

char *pending_pop(Pending *p) {
        PendingPath *entry = CONTAINER_OF(p->all.next, PendingPath, link);
        char *path = entry->path;
        tdelete(entry, &p->by_path, compare_paths);
        list_remove(&entry->link);
        p->n--;
        free(entry);
        return path;
}

bool pending_has(const Pending *p, const char *path) {
        PendingPath key = { .path = (char *)path };
        return tfind(&key, &p->by_path, compare_paths) != NULL;
}

bool pending_is_empty(const Pending *p) {
        return list_is_empty(&p->all);
}

void pending_done(Pending *p) {
        while (!pending_is_empty(p))
                free(pending_pop(p));
}
