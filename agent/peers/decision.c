/* The name of a failure: its form, and what it is made of when the runtime gives none. */
#include "agent/peers/decision.h"

#include <stdio.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/digest.h"
#include "lib/base/parse.h"
#include "lib/neuron/names.h"

static const char *const words[N_AGREED] = {
        [AGREED_ALONE] = "alone",
        [AGREED_BUS] = "bus",
        [AGREED_STORE] = "store",
};
DEFINE_WORDS(agreed, Agreed, words);

bool decision_name_is_valid(const Decision *d) {
        static const char allowed[] = "0123456789"
                                      "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                      "abcdefghijklmnopqrstuvwxyz_-";
        uint64_t usec;

        return cluster_id_is_set(d->cluster_id) &&
               d->cluster_id[strspn(d->cluster_id, allowed)] == '\0' &&
               date_time_parse(d->date_time, &usec) == 0;
}

void decision_derive_cluster_id(const char *key, uint32_t n, char ret[CLUSTER_ID_SIZE]) {
        char text[CLAIM_KEY_SIZE + 16];
        uint8_t digest[SHA256_SIZE];

        snprintf(text, sizeof text, "%s/%u", key, n);
        sha256_of(text, strlen(text), digest);
        digest_hex(digest, 8, ret);
}
