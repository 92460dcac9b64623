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

int transition_refuse(const char *machine, const char *from, const char *to, const char *dump_id) {
        log_dump(dump_id, LOG_ERR, 0,
                 "%s: refused the illegal state transition from %s to %s; please report this bug",
                 machine, from, to);
        if (aborts)
                abort();
        return -EPERM;
}

static const char *name_of(const StateTable *table, unsigned state) {
        return state < table->n_states && table->names[state] ? table->names[state] : "unknown";
}

int transition_check(const StateTable *table, unsigned from, unsigned to, const char *dump_id) {
        if (from < table->n_states && to < table->n_states && table->moves[from] & 1U << to)
                return 0;
        return transition_refuse(table->machine, name_of(table, from), name_of(table, to), dump_id);
}
