/* Illegal state transitions: one policy for every state machine. */
#pragma once

#include <stdbool.h>

/* A state machine whose states are 0 … n_states - 1. */
typedef struct StateTable {
        const char *machine;      /* for the log */
        const char *const *names; /* of the states */
        const unsigned *moves;    /* for each state, the bits of the states that may follow it */
        unsigned n_states;        /* at most 32 */
} StateTable;

static inline bool transition_is_legal(const StateTable *table, unsigned from, unsigned to) {
        return from < table->n_states && to < table->n_states && table->moves[from] & 1U << to;
}

/** Verifies a transition; the caller's setter writes the new state only when it is legal. An
 * illegal one is logged as an error and aborts the process if built with --enable-debug.
 * @param dump_id  may be NULL
 * @return 0, or -EPERM: illegal */
int transition_check(const StateTable *table, unsigned from, unsigned to, const char *dump_id);

/** Whether an illegal transition aborts; for tests of the refusal. */
void transition_set_abort(bool abort_on_illegal);
