/* Attaches one file to one unit and waits for it. */
#pragma once

#include "tests/harness/unit.h"
#include <limits.h>

#include "agent/hooknotes/attachments.h"

static inline void attach_one_on_done(const int *results, void *userdata) {
        *(int *)userdata = results[0];
}

/* @return as attachments_submit(), or the result for the place */
static inline int attach_one(Attachments *a, sd_event *event, const AttachmentPlace *at, int fd) {
        AttachmentJob *job;
        int result = INT_MAX;
        int r = attachments_submit(a,
                                   &(AttachmentRequest){ .fd = fd,
                                                         .places = at,
                                                         .n_places = 1,
                                                         .on_done = attach_one_on_done,
                                                         .userdata = &result },
                                   &job);
        while (r == 0 && result == INT_MAX)
                assert_true(sd_event_run(event, UINT64_MAX) >= 0);
        return r < 0 ? r : result;
}
