/* The rule who may annotate whose files: whether what a user's hook reports counts for a unit.
 * Pure. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "lib/base/owner.h"

/** Whose files a unit has. All zero: it has none, or root's alone. */
typedef struct FileOwners {
        bool has_others;  /* than root */
        bool has_several; /* than root and uid */
        uid_t uid;        /* when has_others */
} FileOwners;

/** Adds the owner of a file. */
void file_owners_add(FileOwners *o, uid_t uid);

/** @return whether a decision about `judged` also holds for `now`: no owner has come since */
static inline bool file_owners_cover(const FileOwners *judged, const FileOwners *now) {
        return !now->has_others || judged->has_several ||
               (judged->has_others && !now->has_several && judged->uid == now->uid);
}

/* Root of a container, or root whose container is not known: it may annotate root's files, and no
 * user's. */
#define UID_CONTAINER_ROOT ((uid_t)-2)

/** Who sent a note; its uid is for uid_may_annotate().
 * @param container  NULL: none */
Owner note_sender(const Owner *o, const char *container, bool by_mailbox);

/** @return whether what a hook of this user reports counts for the unit. root's always counts. */
bool uid_may_annotate(const FileOwners *o, uid_t uid);
