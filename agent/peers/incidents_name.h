/* Names of decisions and records, below the fixed part of a destination. Pure. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "agent/peers/claim.h"

#define INCIDENTS_DIRECTORY ".incidents"
#define RECORD_NAME_SIZE 192
/** `.incidents/<key>/` */
void incidents_prefix(const char *key, char ret[RECORD_NAME_SIZE]);
/** `.incidents/<key>/<n>.json` */
void decision_object_name(const char *key, uint32_t n, char ret[RECORD_NAME_SIZE]);
/** `.incidents/<key>/<n>/<yyyymmddTHHMMSSmmm>-<instance-id>.json` @see incidents_name_format() */
void record_object_name(const char *key, uint32_t n, int64_t newest_usec, const char *instance_id,
                        char ret[RECORD_NAME_SIZE]);

typedef struct IncidentsName {
        char key[CLAIM_KEY_SIZE];
        uint32_t n;
        bool is_decision;    /* else a record: */
        int64_t newest_usec; /* in milliseconds */
        char instance_id[INSTANCE_ID_SIZE];
        bool is_beside; /* a record in `.incidents.<instance-id>/` */
} IncidentsName;
/** Reads a name that begins with `.incidents/`, or with `.incidents.<instance-id>/` and is that
 * node's record, which `.incidents` has refused. @return whether it is one of these */
bool incidents_name_parse(const char *name, IncidentsName *ret);
/** The name again. @return the caller's; NULL for lack of memory */
char *incidents_name_format(const IncidentsName *name);
