/* Whose turn it is at a destination. Small bundles go first (logs and metadata say the most and
 * cost the least), sources alternate, and in a source the owners of its units; of one owner the
 * oldest bundle is first. One large bundle follows so many small ones in a row, so that nothing
 * waits for ever. Pure; private to this folder. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define SMALL_BYTES_MAX (UINT64_C(4) << 20) /* of the source's files */
#define SMALL_FILES_MAX 1000
#define SMALL_IN_ROW_MAX 16
#define ROTATION_SOURCES_MAX 200 /* as in the table of keys */
#define ROTATION_OWNERS_MAX 500
/* Of more than that the one that was served the longest ago is forgotten, and is next. */

typedef struct RotationServed {
        const void *source; /* an identity, never dereferenced */
        uid_t uid;          /* of the owner; 0 where sources are counted */
        uint64_t turn;      /* when it was served last */
} RotationServed;

typedef struct Rotation { /* all zero = nothing was served yet */
        uint64_t n;
        unsigned n_small_in_row;
        RotationServed sources[ROTATION_SOURCES_MAX], owners[ROTATION_OWNERS_MAX];
        size_t n_sources, n_owners;
} Rotation;

/** @return whether a bundle of so many files and bytes is a small one */
bool rotation_is_small(uint64_t n_files, uint64_t bytes);
/** @return whether a small one is next, if there is any; else a large one */
bool rotation_prefers_small(const Rotation *r);
/** @return when a source was served last: the one with the least is next */
uint64_t rotation_served_at(const Rotation *r, const void *source);
/** @return when an owner was served last in a source */
uint64_t rotation_owner_served_at(const Rotation *r, const void *source, uid_t uid);
void rotation_record(Rotation *r, const void *source, uid_t uid, bool is_small);
