/* Names of the objects below `.incidents`, written and read:
 *
 *     .incidents/<key>/<n>.json                              the decision of failure n of a key
 *     .incidents/<key>/<n>/<time>-<instance-id>.json         a node's record of that failure
 *     .incidents.<instance-id>/<key>/<n>/<time>-….json       a record that .incidents has refused
 *
 * A record's name has the time of its newest claim, so that a listing tells which failures are
 * recent. A name is believed only if it is the very name that would be written. */
#include "agent/peers/incidents_name.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "agent/peers/document.h"
#include "lib/base/clock.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/ids.h"

#define SUFFIX ".json"
#define NAME_TIME_SIZE 19 /* `yyyymmddTHHMMSSmmm` and NUL */

static void format_name_time(int64_t usec, char ret[NAME_TIME_SIZE]) {
        char seconds[CLOCK_ISO_SIZE];
        uint64_t time = document_bounded_time(usec);
        snprintf(ret, NAME_TIME_SIZE, "%.15s%03u", clock_format_compact(seconds, time, 'T'),
                 (unsigned)(time % USEC_PER_SEC / USEC_PER_MSEC));
}

void incidents_prefix(const char *key, char ret[RECORD_NAME_SIZE]) {
        snprintf(ret, RECORD_NAME_SIZE, INCIDENTS_DIRECTORY "/%s/", key);
}

void decision_object_name(const char *key, uint32_t n, char ret[RECORD_NAME_SIZE]) {
        snprintf(ret, RECORD_NAME_SIZE, INCIDENTS_DIRECTORY "/%s/%" PRIu32 SUFFIX, key, n);
}

void record_object_name(const char *key, uint32_t n, int64_t newest_usec, const char *instance_id,
                        char ret[RECORD_NAME_SIZE]) {
        char time[NAME_TIME_SIZE];
        format_name_time(newest_usec, time);
        snprintf(ret, RECORD_NAME_SIZE, INCIDENTS_DIRECTORY "/%s/%" PRIu32 "/%s-%s" SUFFIX, key, n,
                 time, instance_id);
}

char *incidents_name_format(const IncidentsName *name) {
        char text[RECORD_NAME_SIZE];
        if (name->is_decision)
                decision_object_name(name->key, name->n, text);
        else
                record_object_name(name->key, name->n, name->newest_usec, name->instance_id, text);
        return strbuf_format(INCIDENTS_DIRECTORY "%s%s%s", name->is_beside ? "." : "",
                             name->is_beside ? name->instance_id : "",
                             text + strlen(INCIDENTS_DIRECTORY));
}

/* Reads a name below `.incidents`, and verifies what was read by formatting it again. */
static bool parse_name(const char *name, IncidentsName *ret) {
        char number[11], time[16], msec_text[4], id[INSTANCE_ID_SIZE + sizeof SUFFIX];
        char again[RECORD_NAME_SIZE] = "";
        IncidentsName parsed = { 0 };
        uint64_t n, msec;
        const int n_parts = sscanf(name,
                                   INCIDENTS_DIRECTORY "/%16[0-9a-f]/%10[0-9]"
                                                       "/%15[0-9T]%3[0-9]-%70[A-Za-z0-9._-]",
                                   parsed.key, number, time, msec_text, id);
        if (n_parts < 2 || !claim_key_is_valid(parsed.key) ||
            parse_u64_range(number, 1, UINT32_MAX, &n) < 0)
                return false;
        parsed.n = (uint32_t)n;
        parsed.is_decision = n_parts == 2;
        if (parsed.is_decision)
                decision_object_name(parsed.key, parsed.n, again);
        else if (n_parts == 5 && strlen(id) > strlen(SUFFIX) &&
                 strlen(id) < INSTANCE_ID_SIZE + strlen(SUFFIX) &&
                 document_parse_seconds(time, "%Y%m%dT%H%M%S", &parsed.newest_usec) &&
                 parse_u64(msec_text, &msec) == 0) {
                memcpy(parsed.instance_id, id, strlen(id) - strlen(SUFFIX));
                parsed.newest_usec += (int64_t)(msec * USEC_PER_MSEC);
                if (document_instance_id_is_valid(parsed.instance_id))
                        record_object_name(parsed.key, parsed.n, parsed.newest_usec,
                                           parsed.instance_id, again);
        }
        if (strcmp(again, name) != 0)
                return false;
        *ret = parsed;
        return true;
}

bool incidents_name_parse(const char *name, IncidentsName *ret) {
        char text[RECORD_NAME_SIZE];
        const size_t n = strlen(INCIDENTS_DIRECTORY);
        const char *slash = strchr(name, '/');
        IncidentsName parsed;
        if (strncmp(name, INCIDENTS_DIRECTORY ".", n + 1) != 0)
                return parse_name(name, ret);
        if (!slash ||
            (size_t)snprintf(text, sizeof text, INCIDENTS_DIRECTORY "%s", slash) >= sizeof text ||
            !parse_name(text, &parsed) || parsed.is_decision ||
            strlen(parsed.instance_id) != (size_t)(slash - name) - n - 1 ||
            strncmp(parsed.instance_id, name + n + 1, strlen(parsed.instance_id)) != 0)
                return false;
        *ret = parsed;
        ret->is_beside = true;
        return true;
}
