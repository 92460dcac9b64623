/* What the API, `--once` and a drain are told about a source: whether it is idle or busy, and why
 * evidence may be missed. It only reads. */
#include "agent/intake/intake.h"

#include "agent/intake/lock_renewal.h"
#include "agent/intake/source_scan.h"
#include "lib/base/cleanup.h"
#include "lib/event/dirwatch.h"

/* A mount whose server is away never answers. A scan counts as stalled after the longer of these:
 * one minute, or ten times the duration of the last scan. */
#define SCAN_STALL_USEC (60 * USEC_PER_SEC)
#define SCAN_STALL_FACTOR 10

bool intake_source_is_stalled(const IntakeSource *s) {
        uint64_t limit = MAX(SCAN_STALL_USEC, SCAN_STALL_FACTOR * s->scan.took_usec);
        return s->scan.state == SOURCE_SCAN_WALKING &&
               s->context->clock->boottime_usec(s->context->clock) - s->scan.start_usec > limit;
}

const char *intake_source_unseen(const IntakeSource *s) {
        if (intake_source_is_stalled(s))
                return "its scan has not ended for a minute or more: its file system hangs, or is "
                       "very slow";
        return !s->scan.has_completed ? "it has not been scanned completely yet"
               : s->scan.unseen       ? s->scan.unseen
               : s->sweep.unlisted    ? s->sweep.unlisted
               : source_scan_has_failed(s)
                       ? "what was found there cannot be recorded in the state database; "
                         "free space in the state directory, or fix its disk"
                       : NULL;
}

static const char *degraded_by(const IntakeSource *s) {
        return intake_source_is_stalled(s) || (s->scan.has_completed && source_scan_has_failed(s))
                       ? intake_source_unseen(s)
               : s->scan.root_note ? s->scan.root_note
               : s->watch.dirwatch && dirwatch_n_left_out(s->watch.dirwatch)
                       ? "some directories are not watched, since "
                         "there are too many: what is new there "
                         "is found by the next scan; see "
                         "`bounded` in the status"
                       : NULL;
}

const char *intake_source_view(const IntakeSource *s, SourceView *ret) {
        const char *degraded = degraded_by(s);
        const char *note = s->renewal.note ? s->renewal.note
                           : s->hold_note  ? s->hold_note
                                           : s->watch.note;
        *ret = (SourceView){
                .name = s->config->name,
                .kind = source_kind_name((SourceKind)s->config->kind),
                .path = s->config->path,
                .watch = s->watch.dirwatch ? "inotify" : "scan",
                .note = degraded ? degraded : note,
                .unseen = s->scan.has_completed || intake_source_is_stalled(s)
                                  ? intake_source_unseen(s)
                                  : NULL,
                .n_watches = s->watch.dirwatch ? dirwatch_n_watches(s->watch.dirwatch) : 0,
                .n_overflows = s->watch.dirwatch ? dirwatch_n_overflows(s->watch.dirwatch) : 0,
                .n_others = s->renewal.others.n_units,
                .n_other_nodes = s->renewal.others.n_nodes,
                .others_oldest_seconds = s->renewal.others.oldest_usec / USEC_PER_SEC,
                .n_dead_links = s->renewal.others.n_dead_links,
                .last_scan_seconds = (double)s->scan.took_usec / 1e6
        };
        return degraded;
}

const Bound *intake_source_paths(const IntakeSource *s) {
        return &s->paths.queue.bound;
}

bool intake_source_is_busy(const IntakeSource *s) {
        LIST_FOREACH_ITEM (SourceTask, t, mine, (ListLink *)&s->tasks)
                if (!lock_renewal_is_renewal(t))
                        return true;
        return false;
}

bool intake_source_is_idle(const IntakeSource *s) {
        return s->scan.has_completed && !source_scan_is_running(s) && !s->scan.is_wanted &&
               s->n_probes == 0 && s->renewal.n_marks == 0 && s->links.n_releases == 0 &&
               !s->sweep.is_running && !s->admission.has_late &&
               path_queue_is_empty(&s->paths.queue);
}
