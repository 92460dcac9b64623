/* The text log of the Neuron runtime: error lines, and the block that it asks to be sent with a
 * support request. Pure, borrowing from the text; tolerant: lines of an unknown form are passed
 * over. @see the Neuron documentation*/
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** A piece of the text, not NUL-terminated. */
typedef struct NrtSpan {
        const char *s;
        size_t n;
} NrtSpan;

/** `2025-Sep-19 18:57:20.782962  4444:4444  ERROR  TDRV:func   message`, also behind a syslog
 * prefix. */
typedef struct NrtLine {
        NrtSpan time; /* as it stands there; which zone is not said */
        uint64_t pid, tid;
        NrtSpan level;            /* ERROR, WARN, INFO … */
        NrtSpan module, function; /* empty when there is none */
        NrtSpan message;
        int device, core; /* of `[ND d][NC n]`, `nd0:nc0`; -1 = not said */
} NrtLine;

/** @param n  one line without its newline  @return whether it is one of the runtime's */
bool nrt_log_parse_line(const char *line, size_t n, NrtLine *ret);
bool nrt_log_is_error(const NrtLine *l); /* ERROR, CRITICAL, FATAL */

#define NRT_INFODUMP_LINES_MAX 512

typedef enum NrtInfoKind {
        NRT_INFO_FIELD,       /* `Name: value` */
        NRT_INFO_ENVIRONMENT, /* `NAME=value` below `Environment:` */
        NRT_INFO_OTHER,       /* a line of no known form */
} NrtInfoKind;

typedef struct NrtInfoItem {
        NrtInfoKind kind;
        NrtSpan name, value; /* OTHER: only value */
} NrtInfoItem;

typedef struct NrtInfodump {
        NrtSpan lines; /* borrowed */
        bool is_whole; /* what a cut-off text does not end is a block too */
} NrtInfodump;

/** Finds the next nrt_infodump block of a text. @param at  where to look from; moved behind the
 * block @return whether there is one */
bool nrt_infodump_find(const char *text, size_t n, size_t *at, NrtInfodump *ret);

/** Takes the next item of a block. @param at  0 at first  @param in_environment  false at first;
 * kept between calls
 * @return false at its end */
bool nrt_infodump_next(const NrtSpan *block, size_t *at, bool *in_environment, NrtInfoItem *ret);
