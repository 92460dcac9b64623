/* Names that are near one that does not exist: for "did you mean". Pure, and bounded whatever it is
 * fed. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define SUGGESTIONS_MAX 5

typedef struct Suggestions {
        const char *wanted; /* borrowed */
        bool is_guess;      /* those kept are near; false: they are just the first */
        size_t n;
        char *names[SUGGESTIONS_MAX]; /* best first; owned */
        unsigned distances[SUGGESTIONS_MAX];
} Suggestions;

Suggestions suggest_init(const char *wanted);
void suggest_done(Suggestions *n);
void suggest_add(Suggestions *n, const char *name);
/** `did you mean 'a', 'b'?`, `such as 'a', 'b'`; "" when it has seen none. @return the caller's,
 * NULL for lack of memory */
char *suggest_text(const Suggestions *n);
