/* Notices of EC2: what it announces about this instance, and which instance this is.
 *
 * Three documents of the instance metadata service (IMDSv2) are requested in turn: a spot
 * interruption every 5 s, scheduled maintenance and a rebalance recommendation every 60 s.
 * notice_parse() reads a document, NoticeSchedule decides what is requested next and what in an
 * answer is new; both are pure. Ec2Notices sends the requests and reports each change once. What
 * follows from a notice (a drain) is decided in agent/drain.c. The id of the instance is requested
 * once, before the loop runs. */
#include "agent/node_events/ec2_notices.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/fs.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/event/timer.h"
#include "lib/neuron/ids.h"
#include "lib/neuron/names.h"
#include "uploaders/aws/aws_environment.h"
#include "uploaders/aws/aws_parse.h"
#include "uploaders/aws/credentials.h"
#include "uploaders/aws/imds.h"

#define BODY_MAX_BYTES ((size_t)(64 * KIB))
#define EVENTS_MAX 256

/* It goes into sentences and the log, so only words are accepted: terminate, system-reboot. */
static int parse_action(const json_t *object, const char *key, Notice *ret) {
        static const char letters[] =
                "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
        const char *word = json_string_value(json_object_get(object, key));
        size_t n = word ? strlen(word) : 0;

        if (n == 0 || n >= sizeof ret->action || strspn(word, letters) != n)
                return -EINVAL;
        memcpy(ret->action, word, n + 1);
        return 0;
}

/* `{"action": "terminate", "time": "2017-09-18T08:22:00Z"}`. An interruption counts even if its
 * time is invalid. */
static int parse_spot(const json_t *document, Notice *ret) {
        const char *when = json_string_value(json_object_get(document, "time"));

        if (parse_action(document, "action", ret) < 0)
                return -EINVAL;
        if (!when || aws_time_parse(when, &ret->when_usec) < 0)
                ret->when_usec = 0;
        return 1;
}

/* `21 Jan 2019 09:00:43 GMT`, or with a day of one digit: a date of HTTP without the day of the
 * week. */
static int parse_moment(const char *text, uint64_t *ret_usec) {
        char http[64];

        if (!text || strlen(text) > 32)
                return -EINVAL;
        (void)snprintf(http, sizeof http, "Mon, %s%s", strspn(text, "0123456789") == 1 ? "0" : "",
                       text);
        return http_date_parse(http, ret_usec);
}

/* `[{"NotBefore": "21 Jan 2019 09:00:43 GMT", "Code": "system-reboot", "State": "active", …}]`;
 * past events stay for a while with the state `completed` or `canceled`. */
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
                if (!state || parse_action(event, "Code", &one) < 0 ||
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

/* `{"noticeTime": "2020-11-05T08:22:00Z"}` is the time of the recommendation. */
static int parse_rebalance(const json_t *document, Notice *ret) {
        static const char word[] = "rebalance";
        uint64_t noticed_usec;
        const char *noticed = json_string_value(json_object_get(document, "noticeTime"));

        if (!noticed || aws_time_parse(noticed, &noticed_usec) < 0)
                return -EINVAL;
        memcpy(ret->action, word, sizeof word);
        return 1;
}

/* An interruption is announced two minutes ahead: "We recommend that you check for these
 * interruption notices every 5 seconds." The others come hours ahead, or report a risk only. */
static const struct NoticeRow {
        const char *path;
        uint64_t interval_usec;
        int (*parse)(const json_t *document, Notice *ret);
} kinds[N_NOTICE_KINDS] = {
        [NOTICE_SPOT] = { "meta-data/spot/instance-action", 5 * USEC_PER_SEC, parse_spot },
        [NOTICE_MAINTENANCE] = { "meta-data/events/maintenance/scheduled", 60 * USEC_PER_SEC,
                                 parse_maintenance },
        [NOTICE_REBALANCE] = { "meta-data/events/recommendations/rebalance", 60 * USEC_PER_SEC,
                               parse_rebalance },
};

static bool is_blank(const char *body, size_t n) {
        for (size_t i = 0; i < n; i++)
                if (!strchr(" \t\r\n", body[i]) || body[i] == '\0')
                        return false;
        return true;
}

int notice_parse(NoticeKind kind, const char *body, size_t n, Notice *ret) {
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
        int r = kinds[kind].parse(document, &notice);
        if (r == 1)
                *ret = notice;
        return r;
}

#define WAIT_MAX_USEC (5 * USEC_PER_MINUTE)

NoticeKind notice_schedule_next(const NoticeSchedule *s, uint64_t *ret_due_usec) {
        NoticeKind next = NOTICE_SPOT;

        for (NoticeKind kind = 0; kind < N_NOTICE_KINDS; kind++)
                if (s->due_usec[kind] < s->due_usec[next])
                        next = kind;
        *ret_due_usec = s->due_usec[next];
        return next;
}

bool notice_schedule_is_failing(const NoticeSchedule *s) {
        for (NoticeKind kind = 0; kind < N_NOTICE_KINDS; kind++)
                if (s->n_failures[kind] > 0)
                        return true;
        return false;
}

static uint64_t wait_usec(const NoticeSchedule *s, NoticeKind kind) {
        uint64_t wait = kinds[kind].interval_usec;

        for (unsigned i = 0; i < s->n_failures[kind] && wait < WAIT_MAX_USEC; i++)
                wait *= 2;
        return MIN(wait, WAIT_MAX_USEC);
}

/* @return 1 and *ret: announced, 0: nothing is, negative: no answer */
static int read_answer(const NoticeAnswer *answer, Notice *ret) {
        if (answer->status == 404)
                return 0;
        if (answer->status != 200 || !answer->text)
                return -1;
        return notice_parse(answer->kind, answer->text, strlen(answer->text), ret);
}

NoticeChange notice_schedule_handle(NoticeSchedule *s, const NoticeAnswer *answer,
                                    uint64_t now_usec) {
        NoticeKind kind = answer->kind;
        bool was_announced = s->is_announced[kind];
        Notice notice = { .kind = kind };
        int r = read_answer(answer, &notice);

        s->n_failures[kind] = r < 0 ? s->n_failures[kind] + 1 : 0;
        s->due_usec[kind] = now_usec + wait_usec(s, kind);
        if (r < 0)
                return NOTICE_UNCHANGED;
        s->is_announced[kind] = r > 0;
        if (r == 0)
                return was_announced ? NOTICE_WITHDRAWN : NOTICE_UNCHANGED;
        if (was_announced && notice.when_usec == s->announced[kind].when_usec &&
            strcmp(notice.action, s->announced[kind].action) == 0)
                return NOTICE_UNCHANGED;
        s->announced[kind] = notice;
        return NOTICE_ANNOUNCED;
}

#define TIMER_ACCURACY_USEC (USEC_PER_SEC / 2)

struct Ec2Notices {
        Ec2NoticesOptions options;
        NoticeSchedule schedule;
        Imds *imds;
        sd_event_source *timer;
        NoticeKind requested;
};

/* ---- is this EC2 ---- */

/* @see Amazon EC2 User Guide, "Detect whether a host is an EC2 instance": on Nitro, DMI has the
 * vendor and the instance id. */
static bool is_ec2(const Ec2NoticesOptions *o) {
        _cleanup_free_ char *tag = dmi_read(o->sysfs_root, "board_asset_tag");
        _cleanup_free_ char *vendor = dmi_read(o->sysfs_root, "sys_vendor");

        return aws_environment_get(o->environment, "AWS_EC2_METADATA_SERVICE_ENDPOINT") ||
               (tag && instance_id_is_ec2(tag)) || (vendor && strcmp(vendor, "Amazon EC2") == 0);
}

/* ---- requests ---- */

static void wait_for_next(Ec2Notices *n) {
        uint64_t due_usec, now_usec = n->options.clock->boottime_usec(n->options.clock);

        n->requested = notice_schedule_next(&n->schedule, &due_usec);
        int r = timer_rearm(n->timer, due_usec > now_usec ? due_usec - now_usec : 0);
        if (r < 0)
                log_error(r,
                          "cannot arm the timer for notices of EC2; they are no longer requested");
}

static void log_change(bool was_failing, bool is_failing, const char *why) {
        if (!was_failing && is_failing)
                log_info("cannot query whether EC2 terminates this instance: %s; tried again, at "
                         "most "
                         "five minutes apart",
                         why);
        else if (was_failing && !is_failing)
                log_info("the instance metadata service responds again");
        else if (is_failing)
                log_debug("notices of EC2: %s", why);
}

/* @param error  why there is no document; NULL */
static void handle_answer(Ec2Notices *n, const NoticeAnswer *answer, const char *error) {
        bool was_failing = notice_schedule_is_failing(&n->schedule);
        uint64_t now_usec = n->options.clock->boottime_usec(n->options.clock);
        NoticeChange news = notice_schedule_handle(&n->schedule, answer, now_usec);

        log_change(was_failing, notice_schedule_is_failing(&n->schedule),
                   error ? error : "its response is not as EC2 documents it");
        if (news == NOTICE_ANNOUNCED)
                n->options.on_notice(&n->schedule.announced[answer->kind], n->options.userdata);
        else if (news == NOTICE_WITHDRAWN)
                n->options.on_withdrawn(answer->kind, n->options.userdata);
        wait_for_next(n);
}

static void on_answer(const char *text, const char *error, void *userdata) {
        Ec2Notices *n = userdata;
        NoticeAnswer answer = { .kind = n->requested,
                                .status = imds_status(n->imds),
                                .text = text };

        handle_answer(n, &answer, error);
}

static int on_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        (void)s, (void)usec;
        Ec2Notices *n = userdata;
        int r = imds_get(n->imds, kinds[n->requested].path, on_answer, n);

        if (r < 0)
                handle_answer(n, &(NoticeAnswer){ .kind = n->requested }, strerror(-r));
        return 0;
}

/* ---- life ---- */

int ec2_notices_new(Ec2Notices **ret, const Ec2NoticesOptions *options) {
        *ret = NULL;
        if (!is_ec2(options))
                return 0;
        _cleanup_(ec2_notices_freep) Ec2Notices *n = calloc(1, sizeof *n);
        if (!n)
                return -ENOMEM;
        n->options = *options;
        int r = imds_new(&n->imds, options->event, options->environment);
        if (r == -ENOTSUP)
                return 0;
        if (r == -EINVAL) {
                log_warning(0, "AWS_EC2_METADATA_SERVICE_ENDPOINT or …_MODE is invalid, so "
                               "notices of EC2 are not requested; write "
                               "http://host[:port], and IPv4 or IPv6");
                return 0;
        }
        if (r >= 0)
                r = sd_event_add_time_relative(options->event, &n->timer, CLOCK_BOOTTIME, 0,
                                               TIMER_ACCURACY_USEC, on_timer, n);
        if (r < 0)
                return r;
        n->options.environment = NULL;
        n->options.sysfs_root = NULL;
        wait_for_next(n);
        *ret = TAKE_PTR(n);
        return 0;
}

Ec2Notices *ec2_notices_free(Ec2Notices *n) {
        if (!n)
                return NULL;
        imds_free(n->imds);
        sd_event_source_disable_unref(n->timer);
        free(n);
        return NULL;
}

/* ---- the id ---- */

#define ID_TIMEOUT_USEC (8 * USEC_PER_SEC) /* the client gives up before */
typedef struct IdReply {
        char *id;
        bool done, found;
} IdReply;

/* Strict, for the id becomes part of paths and keys. */
static void on_id(const char *text, const char *error, void *userdata) {
        IdReply *reply = userdata;
        reply->done = true;
        if (!text) {
                log_debug("instance metadata service: %s", error);
                return;
        }
        char id[INSTANCE_ID_SIZE];
        (void)snprintf(id, sizeof id, "%.*s", (int)strcspn(text, "\r\n \t"), text);
        reply->found = instance_id_is_ec2(id);
        if (reply->found)
                memcpy(reply->id, id, sizeof id);
}

static bool request_instance_id(char *const *environment, char ret[INSTANCE_ID_SIZE]) {
        _cleanup_(sd_event_unrefp) sd_event *event = NULL;
        _cleanup_(imds_freep) Imds *imds = NULL;
        IdReply answer = { .id = ret };
        if (sd_event_new(&event) < 0 || imds_new(&imds, event, environment) < 0 ||
            imds_get(imds, "meta-data/instance-id", on_id, &answer) < 0)
                return false;
        while (!answer.done && sd_event_run(event, ID_TIMEOUT_USEC) > 0)
                ;
        return answer.found;
}

int ec2_find_instance_id(const Config *config, char *const *environment,
                         char ret[static INSTANCE_ID_SIZE], const char **ret_origin) {
        int r = instance_id_find(config->node.instance_id, config->snapshot.sysfs_root, ret,
                                 ret_origin);
        if (r < 0 || strcmp(*ret_origin, "hostname") != 0)
                return r;
        if (request_instance_id(environment, ret))
                *ret_origin = "imds";
        return 0;
}
