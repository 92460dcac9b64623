/* Parses the text that the Neuron runtime (libnrt) logs: its lines, and the block about a failure
 * that it writes for support. Pure: all spans point into the caller's text. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** A piece of the text, borrowed, not NUL-terminated. */
typedef struct NrtSpan {
        const char *s;
        size_t n;
} NrtSpan;

/** `2025-Sep-19 18:57:20.782962  4444:4444  ERROR  TDRV:func   message`, also behind a syslog
 * prefix. */
typedef struct NrtLine {
        NrtSpan time; /* as the line has it, which does not say its zone */
        uint64_t pid, tid;
        NrtSpan level;            /* ERROR, WARN, INFO … */
        NrtSpan module, function; /* empty when the line has none */
        NrtSpan message;
        int device, core; /* of `[ND d][NC n]`, `nd0:nc0`; -1: the line has none */
} NrtLine;

/** @param line  without its newline @return whether the runtime has written it */
bool nrt_log_parse_line(const char *line, size_t n, NrtLine *ret);

/** @return whether the level is that of an error */
bool nrt_log_is_error(const NrtLine *l);

/** A block for support, between `cut here` and `cut to here`. */
typedef struct NrtInfodump {
        NrtSpan lines;
        bool is_whole; /* false: its end is missing, and it ends with the text or at the next block
                        */
} NrtInfodump;

/** Finds the next block. @param at  where to search from; set behind the block
 * @return false: no further block */
bool nrt_infodump_find(const char *text, size_t n, size_t *at, NrtInfodump *ret);

typedef enum NrtInfoKind {
        NRT_INFO_FIELD,       /* `Name: value` */
        NRT_INFO_ENVIRONMENT, /* `NAME=value` below `Environment:` */
        NRT_INFO_OTHER,       /* a line of no known form */
} NrtInfoKind;

typedef struct NrtInfoItem {
        NrtInfoKind kind;
        NrtSpan name, value; /* OTHER has no name */
} NrtInfoItem;

/** Reads the next item of a block. @param at  0 at first @param in_environment  false at first
 * @return false: no further item */
bool nrt_infodump_next(const NrtSpan *block, size_t *at, bool *in_environment, NrtInfoItem *ret);
