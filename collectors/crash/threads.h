/* The call chains of all threads, equal ones grouped. */
#pragma once

#include "collectors/crash/unwind.h"

typedef struct ThreadGroup { /* the one that crashed is alone in the first */
        uint64_t hash;       /* of what follows */
        UnwindFrame *frames;
        size_t n_frames;
        UnwindEnd end;
        size_t n_threads, first_thread; /* an index of CoreNotes.threads */
} ThreadGroup;

typedef struct Threads {
        ThreadGroup *groups; /* behind the first: the largest first */
        size_t n_groups;
        uint32_t *group_of;  /* by thread */
        UnwindState crashed; /* as the crashing thread was when the signal came */
        UnwindInterrupt interrupts[UNWIND_INTERRUPTS_MAX]; /* of the crashing thread */
        size_t n_interrupts;
        size_t n_ends[UNWIND_FRAMES_LIMIT + 1];
        size_t n_frames;
} Threads;

/** The first group. What is read of a core is limited, and this thread matters most.
 * @param ret  to be given to threads_done() whatever is returned
 * @return 0, -ENOMEM, -errno of the core */
int threads_unwind_crashed(Threads *ret, Modules *modules);
/** Adds all the others. @return 0, -ENOMEM, -errno of the core */
int threads_unwind_others(Threads *t, Modules *modules);
void threads_done(Threads *t);
