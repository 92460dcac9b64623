/* Refuses illegal state transitions, and reports them: a debug build aborts, a release continues in
 * the old state. The tables of legal moves are with their machines. */
#include "lib/base/transition.h"

#include <errno.h>
#include <stdlib.h>

#include "lib/base/log.h"

#ifdef NC_ENABLE_DEBUG
static bool aborts = true;
#else
static bool aborts = false;
#endif

void transition_set_abort(bool abort_on_illegal) {
        aborts = abort_on_illegal;
}

static const char *name_of(const StateTable *table, unsigned state) {
        return state < table->n_states && table->names[state] ? table->names[state] : "unknown";
}

int transition_check(const StateTable *table, unsigned from, unsigned to, const char *dump_id) {
        if (transition_is_legal(table, from, to))
                return 0;
        log_dump(dump_id, LOG_ERR, 0,
                 "%s: refused the illegal state transition from %s to %s; please report this bug",
                 table->machine, name_of(table, from), name_of(table, to));
        if (aborts)
                abort();
        return -EPERM;
}
