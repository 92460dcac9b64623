/* Path templates with the runtime's format variables (%d %c %p %t %l %i), as in
 * NEURON_RT_LOCAL_CORE_DUMP_DIRECTORY, and prefixes (also %k %n %h %u). Pure text. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/neuron/record.h"

typedef struct PathTemplate PathTemplate;

/** Values found by a match, as spelled; "" = not in the template. */
typedef struct TemplateValues {
        char date_time[DATE_TIME_SIZE];
        char cluster_id[CLUSTER_ID_SIZE];
        char pid[24], tid[24], lid[24];
        char instance_id[INSTANCE_ID_SIZE];
} TemplateValues;

/** Values put into a prefix; NULL = the variable expands to "unknown". */
typedef struct ExpandValues {
        const char *date_time, *cluster_id, *pid, *tid, *lid, *instance_id;
        const char *kind, *source, *host, *user;
} ExpandValues;

/** @param allowed  the letters that may follow '%', e.g. "dcptli"; `%%` is always a percent sign.
 * @return 0; -EINVAL and *ret_bad (0 = a lone % at the end) for any other letter; -ENOMEM */
int path_template_new(PathTemplate **ret, const char *text, const char *allowed, char *ret_bad);
PathTemplate *path_template_free(PathTemplate *t);

/** @return the fixed part: the path up to the first component with a '%' variable, `%%` resolved,
 * without trailing slash. */
const char *path_template_fixed(const PathTemplate *t);

/** @return number of components below the fixed part (0 = no variables: the fixed part itself is
 * the unit) */
size_t path_template_depth(const PathTemplate *t);
bool path_template_has(const PathTemplate *t, char letter);

/** Matches a path relative to the fixed part (exactly depth components). %d takes
 * `yyyy-mm-dd-HH-MM`, `yyyymmdd-HHMMSS`; %c 1..32 hex digits; %p %t %l decimal; %i `i-<hex>` or a
 * host name. All combinations, any order, several in one component.
 * @return whether it matches; *ret may be NULL */
bool path_template_match(const PathTemplate *t, const char *relative, TemplateValues *ret);

/** Matches one component alone, the i-th below the fixed part: what is known of a directory above
 * the template's depth.
 * @return whether it matches; *ret gets only this component's values */
bool path_template_match_component(const PathTemplate *t, size_t i, const char *name,
                                   TemplateValues *ret);

/** Expands for a destination. Each value is made safe: '/' and control characters become '_', "."
 * and ".." and "" become "unknown". @return the caller's, NULL for lack of memory */
char *path_template_expand(const PathTemplate *t, const ExpandValues *values);

/** Parses either spelling. @return 0 and UTC microseconds; -EINVAL for anything else, impossible
 * dates included */
int date_time_parse(const char *s, uint64_t *ret_usec);

/* ---- one name against a pattern with typed variables: for templates and the runtime's file names
 * ---- */

/** Where a variable's value lies in the name; n = 0: the pattern has no such variable. */
typedef struct PatternSpan {
        const char *text; /* borrowed from the name */
        size_t n;
} PatternSpan;

typedef struct PatternMatch {
        PatternSpan of[26]; /* by letter: of['p' - 'a'] */
} PatternMatch;

/** Matches the whole of `name` against `pattern`. `%d` date-time in either spelling, `%c` 1 to 32
 * hex digits, `%i` an instance id (`i-<hex>` or 1 to 64 of `A-Za-z0-9._-`), any other lower-case
 * letter 1 to 20 decimal digits, `%%` a percent sign. A variable that stands twice must have the
 * same value twice. The work is bounded for any pattern and name; past the bound it is no
 * match.
 * @param ret  written only on a match
 * @return whether it matches */
bool pattern_match(const char *pattern, const char *name, PatternMatch *ret);

/** Copies a value into a buffer of the caller, NUL-terminated. A value that does not fit is left
 * out: "". */
void pattern_copy(const PatternMatch *m, char letter, char *buf, size_t size);
