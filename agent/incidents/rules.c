#include "agent/incidents/incidents_private.h"

static uint64_t last_begun(const IncidentRules *r) {
        return r->begun_usec[(r->next + INCIDENT_HOURLY_MAX - 1) % INCIDENT_HOURLY_MAX];
}

IncidentVerdict incident_decide(const IncidentRules *r, IncidentCause cause,
                                bool has_snapshot_underway, uint64_t now_usec) {
        uint64_t age = r->n ? now_usec - last_begun(r) : USEC_INFINITY;
        /* What a stranger began must not keep a failure from a look at the devices of its own. */
        uint64_t young = cause == INCIDENT_NOTE && r->last_cause == INCIDENT_STRANGER
                                 ? INCIDENT_APART_USEC
                                 : INCIDENT_YOUNG_USEC;
        if (age < young && (cause != INCIDENT_REQUESTED || has_snapshot_underway))
                return INCIDENT_JOIN;
        if (age < INCIDENT_APART_USEC)
                return INCIDENT_TOO_SOON;
        /* The ring is full, and its oldest is the one that would be written over. */
        if (r->n == INCIDENT_HOURLY_MAX && now_usec - r->begun_usec[r->next] < USEC_PER_HOUR)
                return INCIDENT_TOO_MANY;
        if (cause == INCIDENT_STRANGER && r->n_strangers == INCIDENT_STRANGERS_HOURLY_MAX &&
            now_usec - r->strangers_usec[r->next_stranger] < USEC_PER_HOUR)
                return INCIDENT_TOO_MANY_STRANGERS;
        return INCIDENT_BEGIN;
}

void incident_rules_begun(IncidentRules *r, IncidentCause cause, uint64_t now_usec) {
        r->last_cause = cause;
        r->begun_usec[r->next] = now_usec;
        r->next = (r->next + 1) % INCIDENT_HOURLY_MAX;
        r->n = MIN(r->n + 1, (unsigned)INCIDENT_HOURLY_MAX);
        if (cause != INCIDENT_STRANGER)
                return;
        r->strangers_usec[r->next_stranger] = now_usec;
        r->next_stranger = (r->next_stranger + 1) % INCIDENT_STRANGERS_HOURLY_MAX;
        r->n_strangers = MIN(r->n_strangers + 1, (unsigned)INCIDENT_STRANGERS_HOURLY_MAX);
}

const char *incident_verdict_text(IncidentVerdict v) {
        return v == INCIDENT_TOO_SOON ? "the last snapshot was less than 10 seconds ago"
               : v == INCIDENT_TOO_MANY
                       ? "there were 60 snapshots within an hour, which is the limit"
               : v == INCIDENT_TOO_MANY_STRANGERS ? "there were 6 snapshots within an hour for "
                                                    "notes that name no dump of a source, "
                                                    "which is the limit"
                                                  : NULL;
}
