/* The three documents of IMDS, as the EC2 User Guide shows them. Nothing here touches a clock or a network. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "agent/notices.h"
#include "uploaders/s3/s3_time.h"

#define BODY_MAX_BYTES ((size_t)(64 * KIB))
#define EVENTS_MAX 256

/* It goes into sentences and the log, so only words are taken: terminate, system-reboot. */
static int take_action(const json_t *object, const char *key, Notice *ret) {
        static const char letters[] =
                "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
        const char *word = json_string_value(json_object_get(object, key));
        size_t n = word ? strlen(word) : 0;

        if (n == 0 || n >= sizeof ret->action || strspn(word, letters) != n)
                return -EINVAL;
        memcpy(ret->action, word, n + 1);
        return 0;
}

/* `{"action": "terminate", "time": "2017-09-18T08:22:00Z"}`. That the end is near counts also when nobody can read when. */
static int parse_spot(const json_t *document, Notice *ret) {
        const char *when = json_string_value(json_object_get(document, "time"));

        if (take_action(document, "action", ret) < 0)
                return -EINVAL;
        if (!when || s3_time_parse(when, &ret->when_usec) < 0)
                ret->when_usec = 0;
        return 1;
}

/* `21 Jan 2019 09:00:43 GMT`, or with a day of one digit: a date of HTTP without the day of the week. */
static int parse_moment(const char *text, uint64_t *ret_usec) {
        char http[64];

        if (!text || strlen(text) > 32)
                return -EINVAL;
        (void)snprintf(http, sizeof http, "Mon, %s%s", strspn(text, "0123456789") == 1 ? "0" : "",
                       text);
        return s3_time_parse_http(http, ret_usec);
}

/* `[{"NotBefore": "21 Jan 2019 09:00:43 GMT", "Code": "system-reboot", "State": "active", …}]`; what is over stands there for a while
 * with the state `completed` or `canceled`. */
static int parse_maintenance(const json_t *document, Notice *ret) {
        Notice best = { .kind = NOTICE_MAINTENANCE };
        bool is_found = false, is_faulty = false;
        json_t *event;
        size_t i;

        if (!json_is_array(document) || json_array_size(document) > EVENTS_MAX)
                return -EINVAL;
        json_array_foreach(document, i, event) {
                Notice one = { .kind = NOTICE_MAINTENANCE };
                const char *state = json_string_value(json_object_get(event, "State"));

                if (state && strcmp(state, "active") != 0)
                        continue;
                if (!state || take_action(event, "Code", &one) < 0 ||
                    parse_moment(json_string_value(json_object_get(event, "NotBefore")),
                                 &one.when_usec) < 0) {
                        is_faulty = true;
                        continue;
                }
                if (!is_found || one.when_usec < best.when_usec)
                        best = one;
                is_found = true;
        }
        if (!is_found)
                return is_faulty ? -EINVAL : 0;
        *ret = best;
        return 1;
}

/* `{"noticeTime": "2020-11-05T08:22:00Z"}`: when it was said, not when anything happens. */
static int parse_rebalance(const json_t *document, Notice *ret) {
        static const char word[] = "rebalance";
        uint64_t said_usec;
        const char *said = json_string_value(json_object_get(document, "noticeTime"));

        if (!said || s3_time_parse(said, &said_usec) < 0)
                return -EINVAL;
        memcpy(ret->action, word, sizeof word);
        return 1;
}

static bool is_blank(const char *body, size_t n) {
        for (size_t i = 0; i < n; i++)
                if (!strchr(" \t\r\n", body[i]) || body[i] == '\0')
                        return false;
        return true;
}

int notice_parse(NoticeKind kind, const char *body, size_t n, Notice *ret) {
        static int (*const parsers[N_NOTICE_KINDS])(const json_t *document, Notice *ret) = {
                [NOTICE_SPOT] = parse_spot,
                [NOTICE_MAINTENANCE] = parse_maintenance,
                [NOTICE_REBALANCE] = parse_rebalance,
        };
        Notice notice = { .kind = kind };
        json_error_t error;

        if (n > BODY_MAX_BYTES)
                return -EINVAL;
        if (is_blank(body, n))
                return 0;
        _cleanup_(json_decrefp) json_t *document =
                json_loadb(body, n, JSON_REJECT_DUPLICATES, &error);
        if (!document)
                return json_error_code(&error) == json_error_out_of_memory ? -ENOMEM : -EINVAL;
        int r = parsers[kind](document, &notice);
        if (r == 1)
                *ret = notice;
        return r;
}
