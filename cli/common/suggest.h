/* Names that are near one that does not exist: for "did you mean". Pure, and bounded whatever it is fed. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define NEAR_MAX 5

typedef struct Near {
        const char *wanted; /* borrowed */
        bool is_guess;      /* those kept are near; false: they are just the first */
        size_t n;
        char *names[NEAR_MAX]; /* best first; owned */
        unsigned distances[NEAR_MAX];
} Near;

Near near_init(const char *wanted);
void near_done(Near *n);
void near_look(Near *n, const char *name);
/** `did you mean 'a', 'b'?`, `such as 'a', 'b'`; "" when it has seen none. @return the caller's, NULL for lack of memory */
char *near_text(const Near *n);
