/* What a note may request: a bucket prefix, and how many notes an owner may send; and what a hook
 * says at its end. Hook notes are untrusted input. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "config/config.h"
#include "lib/base/bound.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"

/* ---- what the hook has written ---- */

typedef struct HookFinish {
        bool without_record, without_snapshot;
} HookFinish;

/** Reads `finished` or `finished without record`, `… snapshot`, `… record snapshot`. @param data  a
 * packet @return whether it is of this form */
bool hook_finish_parse(const char *data, size_t n, HookFinish *ret);

/* ---- bucket prefix ---- */

#define NOTE_PREFIX_MAX 512

/** Verifies `s3://bucket/prefix`: it must be below one of hook.allow_prefixes, or, where there are
 * none, below the fixed part of the prefix of an s3 destination with that bucket; and there must be
 * a destination with that bucket.
 * @return NULL: granted; else why not, a static sentence */
const char *hooknotes_check_prefix(const Config *c, const char *prefix);

/* ---- rate of notes ---- */

/* Two jobs of 128 threads that fail four times in a row are accepted at once; then one note a
 * second and owner. */
#define NOTE_BURST 1024
#define NOTE_BURST_OF_ALL 4096
#define NOTE_REFILL_USEC USEC_PER_SEC

/** Sets the bound of the notes that owners may send. @param clock  borrowed */
void note_rate_init(Bound *b, Clock *clock);
