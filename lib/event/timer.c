/* Creates a timer of the loop once, and arms it again and again. CLOCK_BOOTTIME, or where a
 * container lacks it CLOCK_MONOTONIC. */
#include "lib/event/timer.h"

#include <errno.h>
#include <time.h>

static int make(sd_event_source **ret, const TimerOptions *o, clockid_t clock) {
        int r = sd_event_add_time_relative(o->event, ret, clock, o->usec, o->slack_usec, o->handler,
                                           o->userdata);
        return r < 0 ? r : 0;
}

int timer_arm(sd_event_source **timer, const TimerOptions *o) {
        if (*timer)
                return timer_rearm(*timer, o->usec);
        int r = make(timer, o, CLOCK_BOOTTIME);
        if (r == -EOPNOTSUPP || r == -EPERM) /* no alarm-capable clock in some containers */
                r = make(timer, o, CLOCK_MONOTONIC);
        return r;
}

int timer_rearm(sd_event_source *timer, uint64_t usec) {
        int r = sd_event_source_set_time_relative(timer, usec);
        if (r >= 0)
                r = sd_event_source_set_enabled(timer, SD_EVENT_ONESHOT);
        return r < 0 ? r : 0;
}
