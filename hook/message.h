/* Lines for people who check the job's stderr. */
#pragma once

#include "lib/base/cleanup.h"

/** Writes `neuron-dump: …` and a newline, cut at a few hundred bytes, control characters shown as
 * `?`. Left out when stderr would block, as a full pipe does; a file that hangs costs 100 ms, once.
 */
void message_print(const char *fmt, ...) _printf_(1, 2);
