/* The documents of a failure at the arbiter, docs/BUNDLE.md: the decision, and one node's claims.
 * What is read there is hostile. Pure; times are the store's (microseconds since 1970). */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "agent/peers/claim.h"
#include "agent/peers/decision.h"
#include "lib/base/strbuf.h"

#define RECORD_BYTES_MAX ((size_t)4 << 20)
#define DECISION_BYTES_MAX ((size_t)16 << 10)
#define INCIDENTS_DIRECTORY ".incidents"

typedef struct Record { /* one node's claims of a failure */
        char key[CLAIM_KEY_SIZE];
        uint32_t n;
        char instance_id[INSTANCE_ID_SIZE];
        uint64_t revision;        /* the sum of the claims' revisions, and one for each rewrite */
        int64_t uncertainty_usec; /* of its times, against the store's clock */
        ClaimSet claims;
} Record;
void record_done(Record *r);

/** What the times of a claim become when the clocks differ by so much. */
void claim_shift(Claim *c, int64_t offset_usec);

/** @param job_key  for people; may be ""  @return the document, the caller's; NULL: no memory */
char *decision_format(const Decision *d, const char *job_key, size_t *ret_n);
/** Reads an untrusted one; opened_usec is left 0.
 * @return 0; -EINVAL: it is no decision of this key and number; -ENOMEM */
int decision_parse(const char *text, size_t n_text, const char *key, uint32_t n, Decision *ret);

char *record_format(const Record *r, size_t *ret_n);
/** @return 0 and *ret (record_done); -EINVAL, -ENOMEM */
int record_parse(const char *text, size_t n_text, const char *key, uint32_t n, Record *ret);

/* Names, below the fixed part of a destination. */
#define RECORD_NAME_SIZE 192
/** `.incidents/<key>/` */
void incidents_prefix(const char *key, char ret[RECORD_NAME_SIZE]);
/** `.incidents/<key>/<n>.json` */
void decision_object_name(const char *key, uint32_t n, char ret[RECORD_NAME_SIZE]);
/** `.incidents/<key>/<n>/<yyyymmddTHHMMSSmmm>-<instance-id>.json` */
void record_object_name(const char *key, uint32_t n, int64_t newest_usec, const char *instance_id,
                        char ret[RECORD_NAME_SIZE]);

typedef struct IncidentsName {
        char key[CLAIM_KEY_SIZE];
        uint32_t n;
        bool is_decision;    /* else a record: */
        int64_t newest_usec; /* in milliseconds */
        char instance_id[INSTANCE_ID_SIZE];
} IncidentsName;
/** Reads a name that begins with `.incidents/`. @return whether it is one of the two */
bool incidents_name_parse(const char *name, IncidentsName *ret);

/* ---- how members of these documents are spelled, for incident.json too ---- */

/** ISO 8601 with microseconds; null for INT64_MIN. */
void record_out_time(StrBuf *b, const char *key, int64_t usec);
/** null for "". */
void record_out_text(StrBuf *b, const char *key, const char *text);
/** null for -1. */
void record_out_number(StrBuf *b, const char *key, int64_t number);
/** `error_code`; null when there is none, or no claim. */
void record_out_error(StrBuf *b, const Claim *c);
/** Rounded up. */
uint64_t record_usec_to_msec(int64_t usec);
/** Ends the object that is the document. @return the caller's; NULL: no memory */
char *record_detach(StrBuf *b, size_t *ret_n);
