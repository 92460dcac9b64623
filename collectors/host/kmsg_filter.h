/* Decides which records of the kernel log are written, and writes them. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "collectors/host/kmsg_content.h"
#include "collectors/host/kmsg_record.h"
#include "collectors/runner/collector.h"
#include "lib/base/clock.h"

/* A watch that starts reports facts of this time before. */
#define KMSG_FILTER_PAST_USEC (10 * USEC_PER_MINUTE)

typedef struct KmsgFilter {
        const CollectRequest *request; /* borrowed */
        CollectOut *out;               /* borrowed */
        bool is_stream; /* the log is followed: lines are bounded by the minute, not by max_bytes,
                           and facts are written */
        uint64_t past_usec;   /* since boot: of earlier lines only facts are written; 0: none are
                                 earlier */
        uint64_t window_usec; /* by the kernel's time: when the minute began that these count in */
        uint64_t n_lines, n_errors, n_facts[N_KMSG_FACTS];
        uint64_t n_left_out;
} KmsgFilter;

/** Writes a record, if it is about Neuron or, in a stream, a fact. @return 0, -EFBIG, -errno */
int kmsg_filter_keep(KmsgFilter *f, const KmsgRecord *record);

/** Writes a record about the log itself. @return as kmsg_filter_keep() */
int kmsg_filter_notice(KmsgFilter *f, const char *about, const char *count_name, uint64_t count);

/** Writes that the log is followed from now on: a watch that followed it until now may stop. */
int kmsg_filter_following(KmsgFilter *f);

/** @return the time as the kernel log has it, since boot */
uint64_t kmsg_filter_now_usec(void);
