/* The name nearest to one that does not exist: for "did you mean". */
#pragma once

typedef struct Suggestion {
        const char *wanted; /* borrowed */
        char *name;         /* the nearest so far, NULL = none is near; owned */
        unsigned distance;
} Suggestion;

void suggest_add(Suggestion *s, const char *name);
void suggest_done(Suggestion *s);
