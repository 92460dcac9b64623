/* Whose turn it is at a destination: of the bundles that may go now, which one does. Small ones go first (logs, metadata: they tell most
 * and take least), the sources take turns, the oldest of a source first; and a large one goes after so many small ones in a row, so that
 * nothing waits for ever. Deciding only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TURNS_SMALL_BYTES (UINT64_C(4) << 20) /* of the source's files */
#define TURNS_SMALL_FILES 1000
#define TURNS_SMALL_IN_ROW 16 /* then a large one */
#define TURNS_SOURCES_MAX 200 /* as config's table has it; more share the last place */

typedef struct Turns { /* all zero = nobody was served yet */
        uint64_t n;
        unsigned n_small_in_row;
        struct {
                const void *source; /* an identity, never looked into */
                uint64_t turn;      /* when it was served last */
        } served[TURNS_SOURCES_MAX];
        size_t n_served;
} Turns;

/** @return whether a bundle of so many files and bytes is a small one */
bool turns_is_small(uint64_t n_files, uint64_t bytes);

/** @return whether a small one goes first now, if there is any; else a large one */
bool turns_is_small_ones(const Turns *t);
/** @return when a source was served last: the one with the least goes first, of equals the one that waits longer */
uint64_t turns_served_at(const Turns *t, const void *source);
void turns_took(Turns *t, const void *source, bool is_small);
