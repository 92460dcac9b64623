/* The rules of incidents: whether an event starts one, joins one, or is refused. Pure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/cleanup.h"
#include "lib/base/owner.h"

#define INCIDENT_YOUNG_USEC                                                                        \
        (30 * USEC_PER_SEC) /* events this long after the first one belong to the incident */
#define INCIDENT_APART_USEC (10 * USEC_PER_SEC) /* between two starts, at least */
#define INCIDENT_HOURLY_MAX 60          /* of all owners but the host, and again of the host */
#define INCIDENT_HOURLY_MAX_OF_OWNER 20 /* but the host */
#define INCIDENT_STRANGERS_HOURLY_MAX 6 /* of these, by notes that name no dump */
#define INCIDENT_STRANGERS_HOURLY_MAX_OF_OWNER 2

typedef enum IncidentCause {
        INCIDENT_NOTE,      /* a note about a dump of a source */
        INCIDENT_STRANGER,  /* a note about nothing that is collected: any user can send it */
        INCIDENT_KERNEL,    /* a line of the kernel log: who may open a device can forge it */
        INCIDENT_PEER,      /* a rank on another node, of a job that runs here, has failed */
        INCIDENT_REQUESTED, /* an operator wants a snapshot of now */
} IncidentCause;

typedef enum IncidentVerdict {
        INCIDENT_BEGIN,
        INCIDENT_JOIN,
        INCIDENT_TOO_SOON, /* the last one is less than INCIDENT_APART_USEC ago */
        INCIDENT_TOO_MANY, /* of its owner, or of all, within an hour */
        INCIDENT_TOO_MANY_STRANGERS,
} IncidentVerdict;

typedef struct IncidentStart {
        uint64_t usec; /* CLOCK_BOOTTIME */
        Owner owner;   /* who caused it */
        bool is_stranger;
} IncidentStart;

typedef struct IncidentRules {
        IncidentStart starts[2 * INCIDENT_HOURLY_MAX]; /* of the last hour, oldest first */
        size_t n;
        IncidentCause last_cause;
        uint64_t last_usec;
        bool has_begun;
} IncidentRules;

/** The kernel, operators, and root outside of containers. */
extern const Owner incident_host;

/** @param o  who causes it @param has_snapshot_underway  of the last incident
 * @param now_usec  CLOCK_BOOTTIME */
IncidentVerdict incident_rules_decide(const IncidentRules *r, const Owner *o, IncidentCause cause,
                                      bool has_snapshot_underway, uint64_t now_usec);
/** Records that an incident started. @param now_usec  CLOCK_BOOTTIME */
void incident_rules_add_start(IncidentRules *r, const Owner *o, IncidentCause cause,
                              uint64_t now_usec);
/** @return why no incident starts, for people, static; NULL: it starts, or is joined */
const char *incident_rules_verdict_text(IncidentVerdict v);
