/* The rules of incidents: whether an event starts an incident, joins the young one, or is refused.
 *
 * All is decided from the times at which incidents started within the last hour and from who caused
 * them; nothing here reads a clock or touches a file. An event that follows an incident within 30 s
 * belongs to it. Otherwise an incident starts, unless the last one started less than 10 s ago or
 * its owner has used up what an hour allows: 60 incidents, and 6 of those for notes that name no
 * dump of a source. At a limit, the owner with the most starts loses its oldest one, so that one
 * owner does not keep the others from a snapshot. */
#include "agent/incidents/incident_rules.h"

const Owner incident_host = { .uid = 0 };

static bool is_within_hour(const IncidentStart *s, uint64_t now_usec) {
        return now_usec - s->usec < USEC_PER_HOUR;
}

/* @return OwnersAnswer: whether an incident of this owner may start; OWNERS_DISPLACE: if the list
 * forgets one of the largest owner */
static int request_start(const IncidentStarts *s, size_t max, const Owner *o, uint64_t now_usec,
                         Owner *ret_largest) {
        Owners shares = { .max = max };
        int r = 0;
        for (size_t i = 0; i < s->n && r == 0; i++)
                if (is_within_hour(&s->items[i], now_usec))
                        r = owners_request(&shares, &s->items[i].owner, 1, ret_largest);
        if (r == 0)
                r = owners_request(&shares, o, 1, ret_largest);
        owners_done(&shares);
        return r;
}

static void add_start(IncidentStarts *s, size_t max, const Owner *o, uint64_t now_usec) {
        Owner largest = *o;
        size_t n = 0;
        bool displaces = request_start(s, max, o, now_usec, &largest) == OWNERS_DISPLACE;
        for (size_t i = 0; i < s->n; i++) {
                bool is_displaced = displaces && owner_is_same(&s->items[i].owner, &largest);
                if (is_displaced)
                        displaces = false;
                else if (is_within_hour(&s->items[i], now_usec))
                        s->items[n++] = s->items[i];
        }
        n -= n == max; /* only if incident_rules_decide() had refused it */
        s->items[n] = (IncidentStart){ now_usec, *o };
        s->n = n + 1;
}

IncidentVerdict incident_rules_decide(const IncidentRules *r, const Owner *o, IncidentCause cause,
                                      bool has_snapshot_underway, uint64_t now_usec) {
        Owner largest;
        uint64_t age = r->has_begun ? now_usec - r->last_usec : USEC_INFINITY;
        /* An incident that a stranger caused must not keep a failure from its own snapshot. */
        uint64_t young = cause == INCIDENT_NOTE && r->last_cause == INCIDENT_STRANGER
                                 ? INCIDENT_APART_USEC
                                 : INCIDENT_YOUNG_USEC;
        if (age < young && (cause != INCIDENT_REQUESTED || has_snapshot_underway))
                return INCIDENT_JOIN;
        if (age < INCIDENT_APART_USEC)
                return INCIDENT_TOO_SOON;
        if (request_start(&r->all, INCIDENT_HOURLY_MAX, o, now_usec, &largest) == OWNERS_REFUSED)
                return INCIDENT_TOO_MANY;
        if (cause == INCIDENT_STRANGER &&
            request_start(&r->strangers, INCIDENT_STRANGERS_HOURLY_MAX, o, now_usec, &largest) ==
                    OWNERS_REFUSED)
                return INCIDENT_TOO_MANY_STRANGERS;
        return INCIDENT_BEGIN;
}

void incident_rules_add_start(IncidentRules *r, const Owner *o, IncidentCause cause,
                              uint64_t now_usec) {
        r->last_cause = cause;
        r->last_usec = now_usec;
        r->has_begun = true;
        add_start(&r->all, INCIDENT_HOURLY_MAX, o, now_usec);
        if (cause == INCIDENT_STRANGER)
                add_start(&r->strangers, INCIDENT_STRANGERS_HOURLY_MAX, o, now_usec);
}

const char *incident_rules_verdict_text(IncidentVerdict v) {
        return v == INCIDENT_TOO_SOON ? "the last snapshot was less than 10 seconds ago"
               : v == INCIDENT_TOO_MANY
                       ? "there were 60 snapshots within an hour, which is the limit"
               : v == INCIDENT_TOO_MANY_STRANGERS ? "there were 6 snapshots within an hour for "
                                                    "notes that name no dump of a source, "
                                                    "which is the limit"
                                                  : NULL;
}
