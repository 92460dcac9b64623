/* What a failure is called. A decision never changes. Plain data. */
#pragma once

#include "agent/peers/claim.h"

typedef enum Agreed {
        AGREED_NOT,
        AGREED_ALONE, /* by this node, of a job that is on no other node */
        AGREED_BUS,   /* by the centre of the bus, without a store that can decide */
        AGREED_STORE, /* it lies at the arbiter */
        N_AGREED,
} Agreed;
const char *agreed_name(Agreed a); /* `alone` `bus` `store`; NULL for AGREED_NOT */
int agreed_parse(const char *s, Agreed *ret);

typedef struct Decision {
        Agreed agreed;
        char key[CLAIM_KEY_SIZE];
        uint32_t n; /* from 1; 0: a decision of a job on one node that has no number yet */
        char cluster_id[CLUSTER_ID_SIZE]; /* 16 hex digits, never zeros */
        char date_time[DATE_TIME_SIZE];   /* `yyyymmdd-HHMMSS` or as the runtime spelled it */
        bool derived;                     /* the cluster id is ours, since the runtime gave none */
        char created_by[INSTANCE_ID_SIZE];
        int64_t world_size;  /* -1 = not known */
        int64_t settle_usec; /* of its creator: what is seen later than that is late */
        int64_t opened_usec; /* when it was created; clock as of its holder */
} Decision;

/** @return whether cluster id and date-time may enter a path: 1 to 32 of `[0-9A-Za-z_-]`, and the
 * date-time is one that the runtime writes (lib/neuron) */
bool decision_name_is_valid(const Decision *d);
/** The cluster id of a failure whose ranks have none: 16 hex digits of SHA-256 over `<key>/<n>`. */
void decision_derive_cluster_id(const char *key, uint32_t n, char ret[CLUSTER_ID_SIZE]);
