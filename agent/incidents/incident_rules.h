/* What becomes of something that calls for a snapshot: pure, so that it can be argued about. Times are of one clock that never goes back. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/cleanup.h"

#define INCIDENT_YOUNG_USEC                                                                        \
        (30 * USEC_PER_SEC) /* what comes this long after the first belongs to it */
#define INCIDENT_APART_USEC (10 * USEC_PER_SEC)
#define INCIDENT_HOURLY_MAX 60
#define INCIDENT_STRANGERS_HOURLY_MAX 6 /* of them begun by notes that name no dump */

typedef enum IncidentCause {
        INCIDENT_NOTE, /* of the hook, for a dump in a source: an incident without its snapshot still has that */
        INCIDENT_STRANGER, /* of the hook, for nothing that is collected: anybody with an account can send it */
        INCIDENT_KERNEL, /* a line of the kernel log, which anybody who may open a device can forge */
        INCIDENT_ASKED, /* an operator wants one now, not one of a moment ago */
} IncidentCause;

typedef enum IncidentVerdict {
        INCIDENT_BEGIN,
        INCIDENT_JOIN,
        INCIDENT_TOO_SOON, /* the last one is less than INCIDENT_APART_USEC ago */
        INCIDENT_TOO_MANY, /* there were INCIDENT_HOURLY_MAX within an hour */
        INCIDENT_TOO_MANY_STRANGERS,
} IncidentVerdict;

typedef struct IncidentRules {
        uint64_t begun_usec[INCIDENT_HOURLY_MAX]; /* a ring; of the last ones */
        unsigned next, n;
        IncidentCause last_cause;
        uint64_t strangers_usec[INCIDENT_STRANGERS_HOURLY_MAX]; /* another ring */
        unsigned next_stranger, n_strangers;
} IncidentRules;

/** @param is_taking  whether the snapshot of the youngest incident is underway */
IncidentVerdict incident_judge(const IncidentRules *r, IncidentCause cause, bool is_taking,
                               uint64_t now_usec);
/** One has begun. */
void incident_rules_begun(IncidentRules *r, IncidentCause cause, uint64_t now_usec);
/** @return a sentence for people, static; NULL for the first two */
const char *incident_verdict_why(IncidentVerdict v);
