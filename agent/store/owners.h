/* Whose files a unit has, and so who may speak about it: a hook's user is heard about his own files
 * and root's alone. Pure. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

typedef struct Owners { /* zero = root's files alone, or none */
        bool has_others;
        bool has_several; /* others than uid */
        uid_t uid;        /* when has_others */
} Owners;

/** Adds the owner of a file. @param source  whose unit it is: in those that hold the agent's own
 * copies (config/config.h) its files are as good as root's @param own  the agent's uid */
void owners_add(Owners *o, const char *source, uid_t uid, uid_t own);

/** @return whether all that are in `now` were judged before */
bool owners_cover(const Owners *judged, const Owners *now);

/** @return whether what a hook of this user told counts for the unit; root's always does */
bool uid_may_annotate(const Owners *o, uid_t uid);
