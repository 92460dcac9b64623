/* What others have written below .incidents: names, decisions and records of the failure
 * 0123456789abcdef/1. Beyond not crashing: what is taken keeps its bounds, is spelled in one way
 * only once it was written by us, and folds to a roster. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "agent/peers/incident.h"
#include "agent/peers/incidents_name.h"
#include "agent/peers/record.h"
#include "lib/base/cleanup.h"

#define KEY "0123456789abcdef"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check(bool claim) {
        if (!claim)
                abort();
}

static void check_instance_id(const char *id) {
        check(*id && strlen(id) < INSTANCE_ID_SIZE && !strchr(id, '/') && strcmp(id, ".") != 0 &&
              strcmp(id, "..") != 0);
}

static void check_name(const char *name) {
        char again[RECORD_NAME_SIZE];
        IncidentsName p;
        if (!incidents_name_parse(name, &p))
                return;
        if (p.is_decision)
                decision_object_name(p.key, p.n, again);
        else {
                check_instance_id(p.instance_id);
                record_object_name(p.key, p.n, p.newest_usec, p.instance_id, again);
        }
        check(p.n > 0 && strcmp(again, name) == 0);
}

static void check_decision(const char *text, size_t n, Decision *d) {
        size_t n_again;
        Decision again;
        if (decision_parse(text, n, KEY, 1, d) < 0)
                return;
        check(d->n == 1 && strcmp(d->key, KEY) == 0 && decision_name_is_valid(d));
        check(d->world_size == -1 || d->world_size > 0);
        check_instance_id(d->created_by);
        _cleanup_free_ char *out = decision_format(d, "", &n_again);
        check(out && decision_parse(out, n_again, KEY, 1, &again) == 0);
        check(memcmp(&again.cluster_id, &d->cluster_id, sizeof again.cluster_id) == 0);
}

static void check_record(const char *text, size_t n, const Decision *d) {
        _cleanup_(record_done) Record r = { 0 }, again = { 0 };
        _cleanup_(roster_done) Roster roster = { 0 };
        size_t n_out, n_again, n_incident;
        if (record_parse(text, n, KEY, 1, &r) < 0)
                return;
        check_instance_id(r.instance_id);
        check(r.claims.n <= CLAIMS_MAX && r.bundles.n <= NODE_BUNDLES_MAX);
        for (size_t i = 0; i < r.claims.n; i++) {
                const Claim *c = &r.claims.items[i];
                check(c->rank >= -1 && c->rank < 1000000 && c->state < N_CLAIM_STATES);
                check(c->event_usec >= 0 && strcmp(c->instance_id, r.instance_id) == 0);
        }
        _cleanup_free_ char *out = record_format(&r, &n_out);
        check(out && record_parse(out, n_out, KEY, 1, &again) == 0);
        _cleanup_free_ char *twice = record_format(&again, &n_again);
        check(twice && strcmp(out, twice) == 0);
        check(roster_fold(d, &r, 1, &roster) == 0);
        _cleanup_free_ char *incident = incident_format(&roster, "", &n_incident);
        check(incident && incident_has_record(incident, n_incident, r.instance_id, r.revision));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        Decision d = { .key = KEY, .n = 1, .world_size = -1 };
        char *text = calloc(1, n + 1);
        if (!text)
                return 0;
        if (n > 0) /* data may be NULL */
                memcpy(text, data, n);
        check_name(text);
        check_decision(text, n, &d);
        check_record(text, n, &d);
        free(text);
        return 0;
}
