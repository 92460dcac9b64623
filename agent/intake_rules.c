#include "agent/intake_rules.h"

#include "lib/base/cleanup.h"

/* A bundle that somebody still writes is looked at again no more often than this … */
#define LOOK_AGAIN_MIN_USEC (500 * USEC_PER_MSEC)
/* … and no more seldom than this, whatever settle is. */
#define LOOK_AGAIN_MAX_USEC (30 * USEC_PER_SEC)

static IntakeAnswer wait_for(const IntakeTerms *t, uint64_t usec, const char *why) {
        uint64_t left =
                t->max_wait_usec - t->waited_usec; /* the caller has checked that it is not over */
        return (IntakeAnswer){ INTAKE_WAIT, MAX(MIN(usec, left), UINT64_C(1)), why };
}

static uint64_t look_again_usec(const IntakeTerms *t) {
        return MIN(MAX(t->settle_usec, LOOK_AGAIN_MIN_USEC), LOOK_AGAIN_MAX_USEC);
}

bool intake_is_due(const IntakeFacts *f, const IntakeTerms *t) {
        return (f->gone && !f->held) || t->flush || f->process_gone ||
               f->quiet_usec >= t->settle_usec ||
               (t->max_wait_usec > 0 && t->waited_usec >= t->max_wait_usec);
}

IntakeAnswer intake_decide(const IntakeFacts *f, const IntakeTerms *t) {
        bool quiet = t->flush || f->quiet_usec >= t->settle_usec;
        if (f->gone && !f->held)
                return (IntakeAnswer){ .verdict = INTAKE_VANISHED,
                                       .why = "its source was removed before it could be held" };

        bool over = t->max_wait_usec > 0 && t->waited_usec >= t->max_wait_usec;
        IntakeTerms bounded = *t;
        if (t->max_wait_usec == 0) /* off: never given up */
                bounded.max_wait_usec = UINT64_MAX;

        switch (f->writers) {
        case INTAKE_WRITERS_NONE:
                /* Nobody writes it and nobody will add to it: what a header promises beyond that will not come. */
                if (quiet || f->process_gone)
                        return (IntakeAnswer){ .verdict = INTAKE_WHOLE };
                break;
        case INTAKE_WRITERS_UNKNOWN:
                if (quiet && f->gone) /* who had it open may have written on, and we cannot see */
                        return (IntakeAnswer){
                                .verdict = INTAKE_INCOMPLETE,
                                .why = "removed at the source before it was known to be whole"
                        };
                if (quiet && !f->contradicted && f->quiet_usec >= t->settle_usec)
                        return (IntakeAnswer){ .verdict = INTAKE_WHOLE };
                if (t->flush)
                        return (IntakeAnswer){ .verdict = INTAKE_INCOMPLETE,
                                               .why = "flushed before it was known to be whole" };
                break;
        case INTAKE_WRITERS_SOME:
                break;
        }

        if (over)
                return (IntakeAnswer){ .verdict = INTAKE_INCOMPLETE,
                                       .why = f->contradicted && quiet
                                                      ? "a member is shorter than its own header "
                                                        "says, after max_wait"
                                                      : "still being written after max_wait" };
        if (f->writers == INTAKE_WRITERS_SOME)
                return wait_for(&bounded, look_again_usec(t),
                                "a process has a member open for writing");
        if (!quiet)
                return wait_for(&bounded, t->settle_usec - f->quiet_usec,
                                "not yet quiet for `settle`");
        return wait_for(&bounded, look_again_usec(t),
                        "a member is shorter than its own header says");
}

uint64_t intake_quiet_usec(bool changed, uint64_t since_look_usec, uint64_t quiet_usec) {
        return changed ? 0 : quiet_usec + since_look_usec;
}
