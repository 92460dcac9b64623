#include "agent/intake/rules.h"

#include "lib/base/cleanup.h"

/* A bundle that is still written is probed no more often than this … */
#define REPROBE_MIN_USEC (500 * USEC_PER_MSEC)
/* … and no less often than this, whatever `settle` is. */
#define REPROBE_MAX_USEC (30 * USEC_PER_SEC)

/* A hook reports its end; this is for one that does not. */
#define HOOK_REPROBE_USEC USEC_PER_SEC

static IntakeAnswer wait_for(const IntakeLimits *t, uint64_t usec, const char *why) {
        uint64_t remaining = t->max_wait_usec > 0
                                     ? t->max_wait_usec - t->waited_usec /* checked by the caller */
                                     : UINT64_MAX;                       /* off: never given up */
        return (IntakeAnswer){ .verdict = INTAKE_WAIT,
                               .next_usec = MAX(MIN(usec, remaining), UINT64_C(1)),
                               .why = why };
}

static uint64_t reprobe_usec(const IntakeLimits *t) {
        return MIN(MAX(t->settle_usec, REPROBE_MIN_USEC), REPROBE_MAX_USEC);
}

static bool has_expired(const IntakeLimits *t) {
        return t->max_wait_usec > 0 && t->waited_usec >= t->max_wait_usec;
}

/* How long it must have been quiet where no process has a member open. */
static uint64_t quiet_wanted_usec(const IntakeFacts *f, const IntakeLimits *t) {
        return f->hooks_finished && f->n_hooks == 0 && !f->missing
                       ? MIN(t->settle_usec, (uint64_t)INTAKE_HOOK_QUIET_USEC)
                       : t->settle_usec;
}

/* Nothing is added any more, except what a hook has promised, which a child of it may still write.
 */
static bool is_finished(const IntakeFacts *f) {
        return f->process_gone && !f->missing;
}

bool intake_is_due(const IntakeFacts *f, const IntakeLimits *t) {
        return (f->gone && !f->held) || t->flush || is_finished(f) ||
               f->quiet_usec >= quiet_wanted_usec(f, t) || has_expired(t);
}

/* By the members alone. */
static IntakeAnswer decide_by_members(const IntakeFacts *f, const IntakeLimits *t) {
        bool quiet = t->flush || f->quiet_usec >= t->settle_usec;

        switch (f->writers) {
        case INTAKE_WRITERS_NONE:
                /* Nothing writes it and nothing will be added: what a header announces beyond that
                 * will not come. */
                if (quiet || is_finished(f) || f->quiet_usec >= quiet_wanted_usec(f, t))
                        return (IntakeAnswer){ .verdict = INTAKE_COMPLETE };
                break;
        case INTAKE_WRITERS_UNKNOWN:
                if (quiet && f->gone) /* a process that has it open may still write, unseen */
                        return (IntakeAnswer){
                                .verdict = INTAKE_INCOMPLETE,
                                .why = "removed at the source before it was known to be complete"
                        };
                if (quiet && !f->contradicted && f->quiet_usec >= t->settle_usec)
                        return (IntakeAnswer){ .verdict = INTAKE_COMPLETE };
                if (t->flush)
                        return (IntakeAnswer){
                                .verdict = INTAKE_INCOMPLETE,
                                .why = "flushed before it was known to be complete"
                        };
                break;
        case INTAKE_WRITERS_SOME:
                break;
        }

        if (has_expired(t))
                return (IntakeAnswer){ .verdict = INTAKE_INCOMPLETE,
                                       .why = f->contradicted && quiet
                                                      ? "a member is shorter than its own header "
                                                        "says, after max_wait"
                                                      : "still being written after max_wait" };
        if (f->writers == INTAKE_WRITERS_SOME)
                return wait_for(t, reprobe_usec(t), "a process has a member open for writing");
        if (!quiet) {
                /* Without leases only quiet counts; with them the next probe may know more, sooner.
                 */
                uint64_t wanted = f->quiet_usec < quiet_wanted_usec(f, t) ? quiet_wanted_usec(f, t)
                                                                          : t->settle_usec;
                return wait_for(t, wanted - f->quiet_usec,
                                f->missing ? "a file that its hook promised is not there yet"
                                           : "not yet quiet for `settle`");
        }
        return wait_for(t, reprobe_usec(t), "a member is shorter than its own header says");
}

IntakeAnswer intake_decide(const IntakeFacts *f, const IntakeLimits *t) {
        if (f->gone && !f->held)
                return (IntakeAnswer){ .verdict = INTAKE_VANISHED,
                                       .why = "its source was removed before it could be held" };
        IntakeAnswer answer = decide_by_members(f, t);
        if (answer.verdict == INTAKE_WAIT && f->n_hooks > 0)
                answer.next_usec = MIN(answer.next_usec, HOOK_REPROBE_USEC);
        if (answer.verdict == INTAKE_WAIT || has_expired(t))
                return answer;
        if (f->n_hooks > 0)
                return wait_for(t, HOOK_REPROBE_USEC, "a hook is still at work on it");
        return answer;
}

uint64_t intake_quiet_usec(bool changed, uint64_t since_probe_usec, uint64_t quiet_usec) {
        return changed ? 0 : quiet_usec + since_probe_usec;
}
