/* What all modules of a source use: its clocks, the paths of its units, its worker threads, and the
 * timers of its bundles. It decides nothing. source.h has the struct and says which module writes
 * which part of it. */
#include "agent/intake/source.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/base/transition.h"
#include "lib/event/timer.h"

uint64_t source_boot_usec(const IntakeSource *s) {
        return s->context->clock->boottime_usec(s->context->clock);
}

uint64_t source_realtime_usec(const IntakeSource *s) {
        return s->context->clock->realtime_usec(s->context->clock);
}

void source_set_note(char **note, const char *text) {
        if (*note && text && strcmp(*note, text) == 0)
                return;
        free(*note);
        *note = text ? strdup(text) : NULL;
}

char *source_unit_path(const IntakeSource *s, const char *relative) {
        return relative[0] ? path_join(s->spec->fixed, relative) : strdup(s->spec->fixed);
}

void source_remember(IntakeSource *s, const char *relative, uint64_t digest) {
        /* Without memory the unit is probed once more. */
        (void)unit_table_put(&s->table, relative, digest);
}

static void on_task_done(WorkJob *job) {
        SourceTask *t = CONTAINER_OF(job, SourceTask, job);
        list_remove(&t->mine);
        t->done(t);
}

int source_submit(IntakeSource *s, WorkerPool *pool, SourceTask *t) {
        t->job.done = on_task_done;
        int r = worker_pool_submit(pool, &t->job);
        if (r >= 0)
                list_append(&s->tasks, &t->mine);
        return r;
}

int intake_source_submit(IntakeSource *s, SourceTask *t) {
        return source_submit(s, s->probes, t);
}

void source_set_unit_state(Bundle *b, UnitState to) {
#define TO(state) (1U << (state))
        static const char *const names[N_UNIT_STATES] = { "waiting", "uncommitted", "probing",
                                                          "probing again" };
        static const unsigned moves[N_UNIT_STATES] = {
                /* to waiting from each, itself too, when the source of the bundle starts or ends */
                [UNIT_WAITING] = TO(UNIT_WAITING) | TO(UNIT_UNCOMMITTED) | TO(UNIT_PROBING),
                [UNIT_UNCOMMITTED] = TO(UNIT_WAITING),
                [UNIT_PROBING] = TO(UNIT_WAITING) | TO(UNIT_PROBING_AGAIN),
                [UNIT_PROBING_AGAIN] = TO(UNIT_WAITING) | TO(UNIT_PROBING_AGAIN),
        };
#undef TO
        static const StateTable table = { "unit", names, moves, N_UNIT_STATES };
        if (transition_check(&table, b->unit.state, to, b->rec.id) == 0)
                b->unit.state = to;
}

void source_probe_bundle(Bundle *b) {
        if (b->source)
                b->source->calls.probe_bundle(b);
}

static int on_bundle_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        (void)source, (void)usec;
        source_probe_bundle(userdata);
        return 0;
}

void source_probe_bundle_in(Bundle *b, uint64_t usec) {
        int r = timer_arm(&b->unit.timer, &(TimerOptions){ .event = b->source->context->event,
                                                           .usec = usec,
                                                           .slack_usec = usec / 20,
                                                           .handler = on_bundle_timer,
                                                           .userdata = b });
        if (r < 0)
                log_dump(b->rec.id, LOG_ERR, r, "cannot arm a timer, it waits for the next scan");
}

void source_report_hold_error(IntakeSource *s, const char *error) {
        if (!error || (s->hold_note && strcmp(s->hold_note, error) == 0))
                return;
        source_set_note(&s->hold_note, error);
        log_warning(0, "source %s: %s", s->config->name, error);
}
