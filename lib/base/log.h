/* The log: one line an event, to the journal, as text or as JSON. Worker threads may call it. */
#pragma once

#include <stdbool.h>
#include <syslog.h> /* LOG_DEBUG … LOG_ERR */

#include "lib/base/cleanup.h"

typedef enum LogFormat {
        LOG_FORMAT_AUTO,
        LOG_FORMAT_JOURNAL,
        LOG_FORMAT_TEXT,
        LOG_FORMAT_JSON
} LogFormat;

/** Sets format and level; may be called again (reload). AUTO = journal when stderr is the journal's
 * stream (JOURNAL_STREAM matches fstat), else text. JOURNAL where no journald listens becomes text.
 * Text goes to stderr as `<level-word>: [dump id: ]message`, JSON as one object a line with `time`,
 * `level`, `message` and, where there is one, `dump_id` and `errno`. Before the first call: text,
 * LOG_INFO. */
void log_setup(LogFormat format, int max_level);

/** @return whether a line of this level would be written; for messages that are dear to make. */
bool log_enabled(int level);

/** Logs one line of at most PIPE_BUF bytes by one write(2); what is longer is cut and ends in `…`.
 * Control characters and bytes that are not UTF-8 come out as `\xNN`: a file name cannot forge a
 * line. Keeps errno.
 * @param error    0 or a negative errno, appended as `: strerror`
 * @param dump_id  may be NULL */
void log_write(int level, int error, const char *dump_id, const char *fmt, ...) _printf_(4, 5);

/* dump_id is the bundle's id; it becomes the field DUMP_ID= in the journal and the key dump_id in
 * JSON. */
#define log_dump(dump_id, level, error, ...) log_write((level), (error), (dump_id), __VA_ARGS__)
#define log_debug(...) log_write(LOG_DEBUG, 0, NULL, __VA_ARGS__)
#define log_info(...) log_write(LOG_INFO, 0, NULL, __VA_ARGS__)
#define log_notice(...) log_write(LOG_NOTICE, 0, NULL, __VA_ARGS__)
#define log_warning(error, ...) log_write(LOG_WARNING, (error), NULL, __VA_ARGS__)
#define log_error(error, ...) log_write(LOG_ERR, (error), NULL, __VA_ARGS__)
