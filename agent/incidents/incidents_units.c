/* The dumps that an incident is about: how many, whose, and until when a path means the same one. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/incidents/incidents_private.h"
#include "lib/base/log.h"

IncidentUnit *incident_find_unit(Incident *x, const char *source, const char *path) {
        for (size_t k = 0; k < x->n_units; k++)
                if (!x->units[k].is_gone && strcmp(x->units[k].source, source) == 0 &&
                    strcmp(x->units[k].path, path) == 0)
                        return &x->units[k];
        return NULL;
}

/* One user cannot have the same files written any number of times, nor take all places. */
static int check_room(Incident *x, const IncidentUnit *u) {
        size_t n = 0;
        for (size_t k = 0; k < x->n_units; k++)
                n += x->units[k].uid == u->uid;
        if (x->n_units < INCIDENT_UNITS_MAX && (u->uid == 0 || n < INCIDENT_UNITS_MAX_OF_UID))
                return 0;
        if (x->n_left_out++ == 0)
                log_warning(0,
                            "incident %s: '%s' of uid %u and further ones get no snapshot: %u "
                            "dumps an incident and %u a user are the limit",
                            x->name, u->path, (unsigned)u->uid, (unsigned)INCIDENT_UNITS_MAX,
                            (unsigned)INCIDENT_UNITS_MAX_OF_UID);
        return -EDQUOT;
}

int incident_add_unit(Incident *x, const IncidentUnit *u) {
        Clock *clock = x->owner->context.clock;
        if (incident_find_unit(x, u->source, u->path))
                return 1;
        int r = check_room(x, u);
        if (r < 0)
                return r;
        IncidentUnit *more = realloc(x->units, (x->n_units + 1) * sizeof *more);
        if (!more)
                return -ENOMEM;
        x->units = more;
        IncidentUnit own = { .source = strdup(u->source),
                             .path = strdup(u->path),
                             .uid = u->uid,
                             .is_taken = u->is_taken,
                             .added_usec =
                                     u->added_usec ? u->added_usec : clock->realtime_usec(clock) };
        if (!own.source || !own.path) {
                free(own.source);
                free(own.path);
                return -ENOMEM;
        }
        more[x->n_units++] = own;
        return 0;
}

void incident_units_done(Incident *x) {
        for (size_t k = 0; k < x->n_units; k++) {
                free(x->units[k].source);
                free(x->units[k].path);
                free(x->units[k].attached);
        }
        free(x->units);
}

void incident_tell_pending(const Incident *x, bool pending) {
        const IncidentsContext *c = &x->owner->context;
        for (size_t k = 0; k < x->n_units; k++)
                if (!x->units[k].is_gone)
                        c->on_pending(x->units[k].source, x->units[k].path, pending, c->userdata);
}

void incidents_unit_renewed(Incidents *i, const char *source, const char *unit_path,
                            uint64_t before_usec) {
        LIST_FOREACH (l, &i->incidents) {
                Incident *x = CONTAINER_OF(l, Incident, link);
                IncidentUnit *u = incident_find_unit(x, source, unit_path);
                if (!u || u->added_usec >= before_usec)
                        continue;
                u->is_gone = true;
                if (x->state != INCIDENT_ENDED)
                        incident_changed(x);
                log_debug("incident %s: '%s' is another dump by now", x->name, unit_path);
        }
}
