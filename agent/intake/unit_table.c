/* What was last seen at each unit's path of a source, so that a scan reports only what is new or
 * has changed: a hash table with 16 bytes a unit, of which a complete scan leaves only what is
 * there. Neither the path nor the names in the unit are kept. */
#include "agent/intake/unit_table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/digest.h"

static uint64_t key_of(const char *relative) {
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

int unit_table_put(UnitTable *t, const char *relative, uint64_t digest) {
        uint64_t key = key_of(relative);
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

bool unit_table_has(const UnitTable *t, const char *relative, uint64_t digest) {
        if (t->n_slots == 0)
                return false;
        uint64_t key = key_of(relative);
        size_t i = slot_of(t, key);
        return t->keys[i] == key && t->digests[i] == digest;
}

bool unit_table_has_path(const UnitTable *t, const char *relative) {
        return t->n_slots > 0 && t->keys[slot_of(t, key_of(relative))] != 0;
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
