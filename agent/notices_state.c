#include "agent/notices_state.h"

#include <string.h>

#define WAIT_MAX_USEC (5 * USEC_PER_MINUTE)

/* An interruption is announced two minutes ahead: "We recommend that you check for these interruption notices every 5 seconds." The
 * others come hours ahead, or tell of a risk only. */
static const uint64_t every_usec[N_NOTICE_KINDS] = {
        [NOTICE_SPOT] = 5 * USEC_PER_SEC,
        [NOTICE_MAINTENANCE] = 60 * USEC_PER_SEC,
        [NOTICE_REBALANCE] = 60 * USEC_PER_SEC,
};

NoticeKind notices_state_next(const NoticesState *s, uint64_t *ret_due_usec) {
        NoticeKind next = NOTICE_SPOT;

        for (NoticeKind kind = 0; kind < N_NOTICE_KINDS; kind++)
                if (s->due_usec[kind] < s->due_usec[next])
                        next = kind;
        *ret_due_usec = s->due_usec[next];
        return next;
}

bool notices_state_is_failing(const NoticesState *s) {
        for (NoticeKind kind = 0; kind < N_NOTICE_KINDS; kind++)
                if (s->n_failures[kind] > 0)
                        return true;
        return false;
}

static uint64_t wait_usec(const NoticesState *s, NoticeKind kind) {
        uint64_t wait = every_usec[kind];

        for (unsigned i = 0; i < s->n_failures[kind] && wait < WAIT_MAX_USEC; i++)
                wait *= 2;
        return MIN(wait, WAIT_MAX_USEC);
}

/* @return 1 and *ret: announced, 0: nothing is, negative: no answer */
static int read_answer(const NoticesAnswer *answer, Notice *ret) {
        if (answer->status == 404)
                return 0;
        if (answer->status != 200 || !answer->text)
                return -1;
        return notice_parse(answer->kind, answer->text, strlen(answer->text), ret);
}

NoticesNews notices_state_take(NoticesState *s, const NoticesAnswer *answer, uint64_t now_usec) {
        NoticeKind kind = answer->kind;
        bool was_said = s->is_said[kind];
        Notice notice = { .kind = kind };
        int r = read_answer(answer, &notice);

        s->n_failures[kind] = r < 0 ? s->n_failures[kind] + 1 : 0;
        s->due_usec[kind] = now_usec + wait_usec(s, kind);
        if (r < 0)
                return NOTICES_NOTHING_NEW;
        s->is_said[kind] = r > 0;
        if (r == 0)
                return was_said ? NOTICES_WITHDRAWN : NOTICES_NOTHING_NEW;
        if (was_said && notice.when_usec == s->said[kind].when_usec &&
            strcmp(notice.action, s->said[kind].action) == 0)
                return NOTICES_NOTHING_NEW;
        s->said[kind] = notice;
        return NOTICES_ANNOUNCED;
}
