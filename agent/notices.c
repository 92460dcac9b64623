/* Asks IMDS one question at a time, and says on what is new. Which and when is decided by notices_state.c, what it means by agent_drain.c. */
#include "agent/notices.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "agent/notices_state.h"
#include "lib/base/fs.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/event/timer.h"
#include "lib/neuron/ids.h"
#include "uploaders/aws/credentials_env.h"
#include "uploaders/aws/imds.h"

#define TIMER_ACCURACY_USEC (USEC_PER_SEC / 2)
#define VENDOR_MAX_BYTES 256

struct Notices {
        NoticesOptions options;
        NoticesState state;
        Imds *imds;
        sd_event_source *timer;
        NoticeKind asked;
};

static const char *const paths[N_NOTICE_KINDS] = {
        [NOTICE_SPOT] = "meta-data/spot/instance-action",
        [NOTICE_MAINTENANCE] = "meta-data/events/maintenance/scheduled",
        [NOTICE_REBALANCE] = "meta-data/events/recommendations/rebalance",
};

/* ---- is this EC2 ---- */

static bool vendor_is(const char *sysfs_root, const char *path) {
        _cleanup_free_ char *whole = path_join(sysfs_root, path), *text = NULL;

        if (!whole || fs_read_file(AT_FDCWD, whole, VENDOR_MAX_BYTES, &text, NULL) < 0)
                return false;
        text[strcspn(text, "\n")] = '\0';
        return strcmp(text, "Amazon EC2") == 0;
}

/* @see Amazon EC2 User Guide, "Detect whether a host is an EC2 instance": on Nitro, DMI has the vendor and the instance id. */
static bool is_ec2(const NoticesOptions *o) {
        char id[INSTANCE_ID_SIZE];
        const char *origin = "";

        if (credentials_env_get(o->environment, "AWS_EC2_METADATA_SERVICE_ENDPOINT"))
                return true;
        return (instance_id_find(NULL, o->sysfs_root, id, &origin) == 0 &&
                strcmp(origin, "dmi") == 0) ||
               vendor_is(o->sysfs_root, "devices/virtual/dmi/id/sys_vendor") ||
               vendor_is(o->sysfs_root, "class/dmi/id/sys_vendor");
}

/* ---- asking ---- */

static void wait_for_next(Notices *n) {
        uint64_t due_usec, now_usec = n->options.clock->boottime_usec(n->options.clock);

        n->asked = notices_state_next(&n->state, &due_usec);
        int r = timer_rearm(n->timer, due_usec > now_usec ? due_usec - now_usec : 0);
        if (r < 0)
                log_error(r, "the instance metadata service is not asked for notices any more");
}

static void log_change(bool was_failing, bool is_failing, const char *why) {
        if (!was_failing && is_failing)
                log_info("cannot ask whether EC2 ends this instance: %s; tried again, at most "
                         "five minutes apart",
                         why);
        else if (was_failing && !is_failing)
                log_info("the instance metadata service answers again");
        else if (is_failing)
                log_debug("notices of EC2: %s", why);
}

/* @param error  why there is no document; NULL */
static void take(Notices *n, const NoticesAnswer *answer, const char *error) {
        bool was_failing = notices_state_is_failing(&n->state);
        uint64_t now_usec = n->options.clock->boottime_usec(n->options.clock);
        NoticesNews news = notices_state_take(&n->state, answer, now_usec);

        log_change(was_failing, notices_state_is_failing(&n->state),
                   error ? error : "its answer is not what EC2 documents");
        if (news == NOTICES_ANNOUNCED)
                n->options.on_notice(&n->state.said[answer->kind], n->options.userdata);
        else if (news == NOTICES_WITHDRAWN)
                n->options.on_withdrawn(answer->kind, n->options.userdata);
        wait_for_next(n);
}

static void on_answer(const char *text, const char *error, void *userdata) {
        Notices *n = userdata;
        NoticesAnswer answer = { .kind = n->asked, .status = imds_status(n->imds), .text = text };

        take(n, &answer, error);
}

static int on_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        (void)s;
        (void)usec;
        Notices *n = userdata;
        int r = imds_get(n->imds, paths[n->asked], on_answer, n);

        if (r < 0)
                take(n, &(NoticesAnswer){ .kind = n->asked }, strerror(-r));
        return 0;
}

/* ---- life ---- */

int notices_new(Notices **ret, const NoticesOptions *options) {
        *ret = NULL;
        if (!is_ec2(options))
                return 0;
        _cleanup_(notices_freep) Notices *n = calloc(1, sizeof *n);
        if (!n)
                return -ENOMEM;
        n->options = *options;
        int r = imds_new(&n->imds, options->event, options->environment);
        if (r == -ENOTSUP)
                return 0;
        if (r == -EINVAL) {
                log_warning(0, "AWS_EC2_METADATA_SERVICE_ENDPOINT or …_MODE is not of its form, so "
                               "EC2 is not asked whether it ends this instance; write "
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

Notices *notices_free(Notices *n) {
        if (!n)
                return NULL;
        imds_free(n->imds);
        sd_event_source_disable_unref(n->timer);
        free(n);
        return NULL;
}
