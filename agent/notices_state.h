/* Which notice is asked for next and when, and what is new in an answer. Pure. */
#pragma once

#include "agent/notices.h"

typedef struct NoticesState { /* all zero = nothing was asked yet, everything is due */
        uint64_t due_usec[N_NOTICE_KINDS];
        unsigned n_failures[N_NOTICE_KINDS]; /* in a row */
        bool is_said[N_NOTICE_KINDS];
        Notice said[N_NOTICE_KINDS];
} NoticesState;

typedef enum NoticesNews {
        NOTICES_NOTHING_NEW,
        NOTICES_ANNOUNCED, /* in said[kind]: for the first time, or changed */
        NOTICES_WITHDRAWN,
} NoticesNews;

/** @return what is to be asked for next; *ret_due_usec: when, CLOCK_BOOTTIME, may lie in the past */
NoticeKind notices_state_next(const NoticesState *s, uint64_t *ret_due_usec);

typedef struct NoticesAnswer {
        NoticeKind kind;
        unsigned status;  /* of HTTP; 0 = none */
        const char *text; /* the document, with 200; else NULL */
} NoticesAnswer;

/** Takes an answer. One that is no answer (nobody there, a status but 200 and 404, no such document as EC2 documents) changes nothing of
 * what was said and is tried again with twice the wait each time, up to five minutes.
 * @param now_usec  CLOCK_BOOTTIME */
NoticesNews notices_state_take(NoticesState *s, const NoticesAnswer *answer, uint64_t now_usec);

/** @return whether the last answer to any of the questions was none */
bool notices_state_is_failing(const NoticesState *s);
