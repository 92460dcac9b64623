/* Timers of the loop that are made once and armed again and again. */
#pragma once

#include <stdint.h>
#include <systemd/sd-event.h>

typedef struct TimerOptions {
        sd_event *event;                 /* borrowed */
        uint64_t usec;                   /* from now on; time that the machine sleeps counts */
        uint64_t slack_usec;             /* so much later will do; 0 = 250 ms, as sd-event has it */
        sd_event_time_handler_t handler; /* called once for each time it is armed */
        void *userdata;                  /* the handler's */
} TimerOptions;

/** Arms a timer, which is made at its first use; later options change only when it goes off.
 * @param timer  NULL before the first use; the caller's, for sd_event_source_disable_unref()
 * @return 0 or -errno: it is not armed */
int timer_arm(sd_event_source **timer, const TimerOptions *options);

/** Arms one that is there, also from inside its own handler. 0 or -errno */
int timer_rearm(sd_event_source *timer, uint64_t usec);

/** It does not go off until it is armed again. @param timer  NULL: it was never armed */
static inline void timer_disarm(sd_event_source *timer) {
        if (timer)
                (void)sd_event_source_set_enabled(timer, SD_EVENT_OFF); /* fails only in a child */
}
