/* Documents of a failure at the arbiter (docs/BUNDLE.md): the decision, and one node's record. What
 * is read there is hostile. Pure; times are the store's (microseconds since 1970). */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "agent/peers/claim.h"
#include "agent/peers/node_bundles.h"

#define RECORD_BYTES_MAX ((size_t)4 << 20)
#define DECISION_BYTES_MAX ((size_t)16 << 10)

typedef struct Record { /* one node's claims and bundles of a failure */
        char key[CLAIM_KEY_SIZE];
        uint32_t n;
        char instance_id[INSTANCE_ID_SIZE];
        uint64_t revision;        /* rises with the claims' revisions, and with each rewrite */
        int64_t uncertainty_usec; /* of its times, against the store's clock */
        ClaimSet claims;
        NodeBundles bundles;
} Record;
void record_done(Record *r);

/** @param job_key  for people; may be ""  @return the document, the caller's; NULL: no memory */
char *decision_format(const Decision *d, const char *job_key, size_t *ret_n);
/** Reads an untrusted one; opened_usec is left 0.
 * @return 0; -EINVAL: it is no decision of this key and number; -ENOMEM */
int decision_parse(const char *text, size_t n_text, const char *key, uint32_t n, Decision *ret);

char *record_format(const Record *r, size_t *ret_n);
/** @return 0 and *ret (record_done); -EINVAL, -ENOMEM */
int record_parse(const char *text, size_t n_text, const char *key, uint32_t n, Record *ret);
