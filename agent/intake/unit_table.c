#include "agent/intake/unit_table.h"

#include <errno.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/digest.h"

uint64_t unit_table_key(const char *relative) {
        /* SHA-256 because the names are a stranger's: nobody shall make two paths collide. */
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

void unit_table_done(UnitTable *t) {
        free(t->keys);
        free(t->digests);
        *t = (UnitTable){ 0 };
}
