/* Remembers when each source, and each owner in a source, was served last at one destination, and
 * how many small bundles went in a row. The scheduler asks it which source and which owner is next,
 * finds their bundle itself, and records what it starts. Sources and owners that are not remembered
 * count as never served, so they are next. */
#include "agent/delivery/rotation.h"

bool rotation_is_small(uint64_t n_files, uint64_t bytes) {
        return n_files <= SMALL_FILES_MAX && bytes <= SMALL_BYTES_MAX;
}

bool rotation_prefers_small(const Rotation *r) {
        return r->n_small_in_row < SMALL_IN_ROW_MAX;
}

static size_t find_served(const RotationServed *served, size_t n, const void *source, uid_t uid) {
        size_t i = 0;
        while (i < n && (served[i].source != source || served[i].uid != uid))
                i++;
        return i;
}

uint64_t rotation_served_at(const Rotation *r, const void *source) {
        size_t i = find_served(r->sources, r->n_sources, source, 0);
        return i < r->n_sources ? r->sources[i].turn : 0;
}

uint64_t rotation_owner_served_at(const Rotation *r, const void *source, uid_t uid) {
        size_t i = find_served(r->owners, r->n_owners, source, uid);
        return i < r->n_owners ? r->owners[i].turn : 0;
}

static void record_served(RotationServed *served, size_t *n, size_t max, RotationServed now) {
        size_t at = find_served(served, *n, now.source, now.uid);
        if (at == *n && *n < max)
                (*n)++;
        else if (at == *n) {
                at = 0;
                for (size_t i = 1; i < max; i++)
                        at = served[i].turn < served[at].turn ? i : at;
        }
        served[at] = now;
}

void rotation_record(Rotation *r, const void *source, uid_t uid, bool is_small) {
        r->n_small_in_row = is_small ? r->n_small_in_row + 1 : 0;
        r->n++;
        record_served(r->sources, &r->n_sources, ROTATION_SOURCES_MAX,
                      (RotationServed){ source, 0, r->n });
        record_served(r->owners, &r->n_owners, ROTATION_OWNERS_MAX,
                      (RotationServed){ source, uid, r->n });
}
