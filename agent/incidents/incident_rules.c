/* The rules of incidents: whether an event starts an incident, joins the young one, or is refused.
 *
 * All is decided from the times at which incidents started within the last hour and from who caused
 * them; nothing here reads a clock or touches a file. An event that follows an incident within 30 s
 * belongs to it. Otherwise an incident starts, unless the last one started less than 10 s ago, or
 * its owner, or all owners together, have used up what an hour allows: 20 and 60 incidents, and 2
 * and 6 of those for notes that name no dump of a source. The host (the kernel, operators, root
 * outside of containers) has 60 of its own, so that no user keeps it from a snapshot. */
#include "agent/incidents/incident_rules.h"

const Owner incident_host = { .uid = 0 };

static bool is_within_hour(const IncidentStart *s, uint64_t now_usec) {
        return now_usec - s->usec < USEC_PER_HOUR;
}

static bool is_host(const Owner *o) {
        return owner_is_same(o, &incident_host);
}

/* @return whether the owner has started so many within the hour that none may follow
 * @param strangers_only  counts those of strangers alone */
static bool has_used_up(const IncidentRules *r, const Owner *o, bool strangers_only,
                        uint64_t now_usec) {
        const size_t max = strangers_only ? INCIDENT_STRANGERS_HOURLY_MAX : INCIDENT_HOURLY_MAX,
                     max_each = is_host(o)       ? max
                                : strangers_only ? INCIDENT_STRANGERS_HOURLY_MAX_OF_OWNER
                                                 : INCIDENT_HOURLY_MAX_OF_OWNER;
        size_t n_own = 0, n_all = 0;
        for (size_t i = 0; i < r->n; i++) {
                const IncidentStart *s = &r->starts[i];
                if (!is_within_hour(s, now_usec) || (strangers_only && !s->is_stranger))
                        continue;
                n_own += owner_is_same(&s->owner, o);
                n_all += is_host(&s->owner) == is_host(o);
        }
        return n_own >= max_each || n_all >= max;
}

IncidentVerdict incident_rules_decide(const IncidentRules *r, const Owner *o, IncidentCause cause,
                                      bool has_snapshot_underway, uint64_t now_usec) {
        uint64_t age = r->has_begun ? now_usec - r->last_usec : USEC_INFINITY;
        /* An incident that a stranger caused must not keep a failure from its own snapshot. */
        uint64_t young = cause == INCIDENT_NOTE && r->last_cause == INCIDENT_STRANGER
                                 ? INCIDENT_APART_USEC
                                 : INCIDENT_YOUNG_USEC;
        if (age < young && (cause != INCIDENT_REQUESTED || has_snapshot_underway))
                return INCIDENT_JOIN;
        if (age < INCIDENT_APART_USEC)
                return INCIDENT_TOO_SOON;
        if (has_used_up(r, o, false, now_usec))
                return INCIDENT_TOO_MANY;
        if (cause == INCIDENT_STRANGER && has_used_up(r, o, true, now_usec))
                return INCIDENT_TOO_MANY_STRANGERS;
        return INCIDENT_BEGIN;
}

void incident_rules_add_start(IncidentRules *r, const Owner *o, IncidentCause cause,
                              uint64_t now_usec) {
        r->last_cause = cause;
        r->last_usec = now_usec;
        r->has_begun = true;
        size_t n = 0;
        for (size_t i = 0; i < r->n; i++)
                if (is_within_hour(&r->starts[i], now_usec))
                        r->starts[n++] = r->starts[i];
        n -= n == ELEMENTSOF(r->starts); /* only if incident_rules_decide() had refused it */
        r->starts[n] = (IncidentStart){ now_usec, *o, cause == INCIDENT_STRANGER };
        r->n = n + 1;
}

const char *incident_rules_verdict_text(IncidentVerdict v) {
        return v == INCIDENT_TOO_SOON   ? "the last snapshot was less than 10 seconds ago"
               : v == INCIDENT_TOO_MANY ? "there were 20 snapshots of this user, or 60 of all, "
                                          "within an hour, which "
                                          "is the limit"
               : v == INCIDENT_TOO_MANY_STRANGERS ? "there were 2 snapshots of this user, or 6 of "
                                                    "all, within an hour for notes that name no "
                                                    "dump of a source, which is the limit"
                                                  : NULL;
}
