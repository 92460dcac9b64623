/* Reads and writes the names that the runtime, the profilers and our hook give to directories and
 * files: the date-time in both of its spellings; patterns with variables such as `%i`, matched in
 * bounded work; path templates, which consist of a fixed part and one pattern a component; and the
 * names of members, by one table of patterns.
 *
 * Names are untrusted: a name that matches no pattern still becomes MEMBER_OTHER, with the ids that
 * can be found in it. Touches no file; which files make a unit is left to unit.c and scan.c. */
#include "lib/neuron/names.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"

/* ---- the runtime's date-time ---- */

#define DIGITS "0123456789"
#define HEX_DIGITS DIGITS "abcdef"

/* @return whether s has the form of `shape`, in which 0 stands for any digit */
static bool has_shape(const char *s, const char *shape) {
        for (; *shape != '\0'; s++, shape++)
                if (*shape == '0' ? !isdigit((unsigned char)*s) : *s != *shape)
                        return false;
        return *s == '\0';
}

int date_time_parse(const char *s, uint64_t *ret_usec) {
        bool is_compact = has_shape(s, "00000000-000000"); /* what real directories have */
        struct tm tm = { 0 }, real;

        if (!is_compact && !has_shape(s, "0000-00-00-00-00")) /* what the documentation says */
                return -EINVAL;
        const char *end = strptime(s, is_compact ? "%Y%m%d-%H%M%S" : "%Y-%m-%d-%H-%M", &tm);
        if (!end || *end != '\0')
                return -EINVAL;
        real = tm;
        int64_t sec = timegm(&real);
        if (tm.tm_year < 70 || tm.tm_sec > 59 || real.tm_mday != tm.tm_mday)
                return -EINVAL; /* before the epoch, a leap second, a day that the month lacks */
        *ret_usec = (uint64_t)sec * USEC_PER_SEC;
        return 0;
}

/* ---- a name against a pattern with variables: for templates and the names of files ---- */

/* The value of a variable in the name; n = 0: the pattern has no such variable. */
typedef struct PatternSpan {
        const char *text; /* borrowed from the name */
        size_t n;
} PatternSpan;

typedef struct PatternMatch {
        PatternSpan of[26]; /* by letter: of['p' - 'a'] */
} PatternMatch;

/* Usual names need tens of steps; a name made against `%i%i%i%i` would need millions. */
#define STEPS_MAX 20000
#define DIGITS_MAX 20 /* of a 64-bit number */

typedef struct Matcher {
        PatternMatch found;
        unsigned steps;
} Matcher;

static bool is_date_time(const char *s, size_t n) {
        char buf[DATE_TIME_SIZE];
        uint64_t usec;

        if (strnlen(s, n) < n)
                return false;
        memcpy(buf, s, n);
        buf[n] = '\0';
        return date_time_parse(buf, &usec) == 0;
}

static bool match_here(Matcher *m, const char *pattern, const char *name);

/* Tries one length for the variable and all that follows. */
static bool try_value(Matcher *m, const char *pattern, const char *name, size_t n) {
        PatternSpan *span = &m->found.of[pattern[1] - 'a'];

        if (span->n > 0)
                return span->n == n && memcmp(span->text, name, n) == 0 &&
                       match_here(m, pattern + 2, name + n);
        *span = (PatternSpan){ name, n };
        if (match_here(m, pattern + 2, name + n))
                return true;
        span->n = 0;
        return false;
}

static bool match_date_time(Matcher *m, const char *pattern, const char *name) {
        /* The two spellings differ in their fifth character, so at most one matches. */
        return (is_date_time(name, 15) && try_value(m, pattern, name, 15)) ||
               (is_date_time(name, 16) && try_value(m, pattern, name, 16));
}

static bool match_instance_id(Matcher *m, const char *pattern, const char *name) {
        size_t n = MIN(strspn(name, INSTANCE_ID_CHARACTERS), (size_t)INSTANCE_ID_SIZE - 1);

        /* The shortest first: in `i-0abc-nd0-nc4` the id ends where the rest of the pattern can
         * begin. */
        for (size_t i = 1; i <= n; i++)
                if (try_value(m, pattern, name, i))
                        return true;
        return false;
}

static bool match_digits(Matcher *m, const char *pattern, const char *name) {
        size_t n = pattern[1] == 'c'
                           ? MIN(strspn(name, HEX_DIGITS "ABCDEF"), (size_t)CLUSTER_ID_SIZE - 1)
                           : MIN(strspn(name, DIGITS), (size_t)DIGITS_MAX);

        for (; n > 0; n--)
                if (try_value(m, pattern, name, n))
                        return true;
        return false;
}

static bool match_here(Matcher *m, const char *pattern, const char *name) {
        for (; *pattern != '\0'; pattern++, name++) {
                if (m->steps++ > STEPS_MAX)
                        return false;
                if (*pattern == '%' && pattern[1] == '%')
                        pattern++;
                else if (*pattern == '%' && pattern[1] == 'd')
                        return match_date_time(m, pattern, name);
                else if (*pattern == '%' && pattern[1] == 'i')
                        return match_instance_id(m, pattern, name);
                else if (*pattern == '%' && pattern[1] >= 'a' && pattern[1] <= 'z')
                        return match_digits(m, pattern, name);
                if (*pattern != *name)
                        return false;
        }
        return *name == '\0';
}

/* Matches the whole of `name` against `pattern`. `%d` date-time in either spelling, `%c` 1 to 32
 * hex digits, `%i` an instance id (`i-<hex>` or 1 to 64 of `A-Za-z0-9._-`), any other lower-case
 * letter 1 to 20 decimal digits, `%%` a percent sign. A variable that stands twice must have the
 * same value twice. The work is bounded for any pattern and name; past the bound it is no
 * match.
 * @param ret  written only on a match
 * @return whether it matches */
static bool pattern_match(const char *pattern, const char *name, PatternMatch *ret) {
        Matcher m = { .steps = 0 };

        if (!match_here(&m, pattern, name))
                return false;
        *ret = m.found;
        return true;
}

/* Copies a value into a buffer of the caller, NUL-terminated. A value that does not fit is left
 * out: "". */
static void pattern_copy(const PatternMatch *m, char letter, char *buf, size_t size) {
        PatternSpan span = m->of[letter - 'a'];

        if (span.n >= size)
                span.n = 0;
        memcpy(buf, span.n > 0 ? span.text : "", span.n);
        buf[span.n] = '\0';
}

/* ---- path templates, split into the fixed part and the components with variables ---- */

struct PathTemplate {
        char *text;        /* as given, but with single slashes and none at the end */
        char *fixed;       /* `%%` resolved */
        char **components; /* below the fixed part, spelled as patterns */
        size_t depth;
        unsigned letters; /* bit per variable that occurs */
};

DEFINE_CLEANUP(PathTemplate, path_template_free);

PathTemplate *path_template_free(PathTemplate *t) {
        if (!t)
                return NULL;
        for (size_t i = 0; i < t->depth; i++)
                free(t->components[i]);
        free(t->components);
        free(t->fixed);
        free(t->text);
        free(t);
        return NULL;
}

/* Checks every '%', and records the letters that occur. */
static int check_letters(PathTemplate *t, const char *allowed, char *ret_bad) {
        for (const char *p = strchr(t->text, '%'); p; p = strchr(p + 2, '%')) {
                if (p[1] == '%')
                        continue;
                if (p[1] < 'a' || p[1] > 'z' || !strchr(allowed, p[1])) {
                        *ret_bad = p[1];
                        return -EINVAL;
                }
                t->letters |= 1u << (p[1] - 'a');
        }
        return 0;
}

static bool has_variable(const char *component, size_t n) {
        for (size_t i = 0; i + 1 < n; i++) {
                if (component[i] != '%')
                        continue;
                if (component[i + 1] != '%')
                        return true;
                i++;
        }
        return false;
}

static void add_literal(StrBuf *b, const char *component, size_t n) {
        for (size_t i = 0; i < n; i++) {
                strbuf_add_n(b, component + i, 1);
                if (component[i] == '%')
                        i++; /* `%%`: checked before */
        }
}

static int add_component(PathTemplate *t, const char *component, size_t n) {
        if (array_grow((void *)&t->components, t->depth, sizeof *t->components) < 0)
                return -ENOMEM;
        t->components[t->depth] = strndup(component, n);
        return t->components[t->depth++] ? 0 : -ENOMEM;
}

/* Splits the text, which has single slashes, at its first component with a variable. */
static int split(PathTemplate *t) {
        _cleanup_(strbuf_done) StrBuf fixed = STRBUF_INIT;
        const char *p = t->text;
        bool varies = false;

        if (*p == '/')
                strbuf_add_n(&fixed, p++, 1);
        while (*p != '\0') {
                size_t n = strcspn(p, "/");

                varies = varies || has_variable(p, n);
                if (varies) {
                        int r = add_component(t, p, n);

                        if (r < 0)
                                return r;
                } else {
                        if (fixed.n > 0 && fixed.text[fixed.n - 1] != '/')
                                strbuf_add(&fixed, "/");
                        add_literal(&fixed, p, n);
                }
                p += n + (p[n] == '/');
        }
        t->fixed = strbuf_detach(&fixed);
        return t->fixed ? 0 : -ENOMEM;
}

static char *single_slashes(const char *text) {
        size_t n = 0;
        char *out = malloc(strlen(text) + 1);

        if (!out)
                return NULL;
        for (; *text != '\0'; text++)
                if (*text != '/' || n == 0 || out[n - 1] != '/')
                        out[n++] = *text;
        if (n > 1 && out[n - 1] == '/')
                n--;
        out[n] = '\0';
        return out;
}

int path_template_new(PathTemplate **ret, const char *text, const char *allowed, char *ret_bad) {
        _cleanup_(path_template_freep) PathTemplate *t = calloc(1, sizeof *t);

        if (!t)
                return -ENOMEM;
        t->text = single_slashes(text);
        if (!t->text)
                return -ENOMEM;
        int r = check_letters(t, allowed, ret_bad);
        if (r < 0)
                return r;
        r = split(t);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(t);
        return 0;
}

const char *path_template_fixed(const PathTemplate *t) {
        return t->fixed;
}

size_t path_template_depth(const PathTemplate *t) {
        return t->depth;
}

bool path_template_has(const PathTemplate *t, char letter) {
        return letter >= 'a' && letter <= 'z' && (t->letters & (1u << (letter - 'a')));
}

/* Adds the value of a variable in one component. @return false: an earlier component has another
 * value of it, so the path does not match */
static bool add_value(const PatternMatch *m, char letter, char *buf, size_t size) {
        PatternSpan span = m->of[letter - 'a'];

        if (span.n == 0)
                return true;
        if (buf[0] != '\0')
                return strlen(buf) == span.n && memcmp(buf, span.text, span.n) == 0;
        pattern_copy(m, letter, buf, size);
        return buf[0] != '\0';
}

static bool match_component(const char *pattern, const char *text, size_t n,
                            TemplateValues *values) {
        char name[NAME_MAX + 1];
        PatternMatch m;

        if (n == 0 || n >= sizeof name)
                return false;
        memcpy(name, text, n);
        name[n] = '\0';
        return pattern_match(pattern, name, &m) &&
               add_value(&m, 'd', values->date_time, sizeof values->date_time) &&
               add_value(&m, 'c', values->cluster_id, sizeof values->cluster_id) &&
               add_value(&m, 'p', values->pid, sizeof values->pid) &&
               add_value(&m, 't', values->tid, sizeof values->tid) &&
               add_value(&m, 'l', values->lid, sizeof values->lid) &&
               add_value(&m, 'i', values->instance_id, sizeof values->instance_id);
}

bool path_template_match(const PathTemplate *t, const char *relative, TemplateValues *ret) {
        TemplateValues values = { .pid = "" };

        for (size_t i = 0; i < t->depth; i++) {
                size_t n = strcspn(relative, "/");

                if (!match_component(t->components[i], relative, n, &values))
                        return false;
                relative += n;
                if (i + 1 < t->depth && *relative++ != '/')
                        return false;
        }
        if (*relative != '\0')
                return false;
        if (ret)
                *ret = values;
        return true;
}

bool path_template_match_component(const PathTemplate *t, size_t i, const char *name,
                                   TemplateValues *ret) {
        TemplateValues values = { .pid = "" };

        if (i >= t->depth || !match_component(t->components[i], name, strcspn(name, "/"), &values))
                return false;
        *ret = values;
        return true;
}

/* @return NULL: there is no such variable, or it has no value */
static const char *value_of(const ExpandValues *v, char letter) {
        const struct {
                char letter;
                const char *value;
        } rows[] = { { 'd', v->date_time }, { 'c', v->cluster_id }, { 'p', v->pid },
                     { 't', v->tid },       { 'l', v->lid },        { 'i', v->instance_id },
                     { 'k', v->kind },      { 'n', v->source },     { 'h', v->host },
                     { 'u', v->user } };
        for (size_t i = 0; i < ELEMENTSOF(rows); i++)
                if (rows[i].letter == letter)
                        return rows[i].value;
        return NULL;
}

static void add_safe(StrBuf *out, const char *value) {
        if (!value || value[0] == '\0' || strcmp(value, ".") == 0 || strcmp(value, "..") == 0)
                value = "unknown";
        for (; *value != '\0'; value++) {
                bool bad = *value == '/' || (unsigned char)*value < 0x20 || *value == 0x7f;

                strbuf_add_n(out, bad ? "_" : value, 1);
        }
}

char *path_template_expand(const PathTemplate *t, const ExpandValues *values) {
        _cleanup_(strbuf_done) StrBuf out = STRBUF_INIT;

        for (const char *p = t->text; *p != '\0'; p++) {
                if (*p != '%') {
                        strbuf_add_n(&out, p, 1);
                        continue;
                }
                p++;
                if (*p == '%')
                        strbuf_add(&out, "%");
                else
                        add_safe(&out, value_of(values, *p));
        }
        return strbuf_detach(&out);
}

/* ---- names of files: one table of patterns, and a search for ids in all other names ---- */

static const char *const member_kinds[N_MEMBER_KINDS] = {
        [MEMBER_NC_STATE] = "nc-state",
        [MEMBER_CC_CORE_STATE] = "cc-core-state",
        [MEMBER_NRT_LOG] = "nrt-log",
        [MEMBER_NEFF] = "neff",
        [MEMBER_NTFF] = "ntff",
        [MEMBER_SYSTEM_TRACE] = "system-trace",
        [MEMBER_ELF_CORE] = "elf-core",
        [MEMBER_SNAPSHOT] = "snapshot",
        [MEMBER_HOOK_RECORD] = "hook-record",
        [MEMBER_CRASH_REPORT] = "crash-report",
        [MEMBER_OTHER] = "other",
};

DEFINE_WORDS(member_kind, MemberKind, member_kinds);

bool instance_id_is_ec2(const char *s) {
        if (strncmp(s, "i-", 2) != 0)
                return false;
        size_t n = strspn(s + 2, HEX_DIGITS);
        return s[2 + n] == '\0' && n >= 8 && n <= 17;
}

/* %i instance, %n device, %k core, %p pid, %t tid, %l lid, %h the number that pairs ntff and neff,
 * %x a number of no further use. Sources: core-dump deep dive (Neuron SDK 2.32), names of Neuron
 * Explorer's captures, and our own hook. The first row that matches counts. */
/* clang-format off */
static const struct NameRow {
        const char *pattern;
        MemberKind kind;
} name_rows[] = {
        { "%i-nd%n-nc%k-pid-%p-tid-%t-lid-%l",                        MEMBER_NC_STATE },
        { "%i-nd%n-cc-core-%k-pid-%p-tid-%t-lid-%l",                  MEMBER_CC_CORE_STATE },
        { "%i-nrt-pid-%p.log",                                        MEMBER_NRT_LOG },
        { "nrt-%i-pid-%p.log",                                        MEMBER_NRT_LOG },
        { "%i-neuron-dump-pid-%p-tid-%t-lid-%l-snapshot.json",        MEMBER_SNAPSHOT },
        { "%i-neuron-dump-pid-%p-tid-%t-lid-%l.json",                 MEMBER_HOOK_RECORD },
        { "%h_instid_%x_vnc_%y.ntff",                                 MEMBER_NTFF },
        { "neff_%h.neff",                                             MEMBER_NEFF },
        { "ntrace.pb",                                                MEMBER_SYSTEM_TRACE },
        { "trace_info.pb",                                            MEMBER_SYSTEM_TRACE },
        { "cpu_util.pb",                                              MEMBER_SYSTEM_TRACE },
        { "host_mem.pb",                                              MEMBER_SYSTEM_TRACE },
        { "trace.json",                                               MEMBER_SYSTEM_TRACE },
        { "system_profile.json",                                      MEMBER_SYSTEM_TRACE },
        { "neuron_framework_trace_rank_%x.json",                      MEMBER_SYSTEM_TRACE },
};
static const struct SuffixRow {
        const char *suffix;
        MemberKind kind;
} suffix_rows[] = {
        { ".neff",    MEMBER_NEFF },
        { ".ntff",    MEMBER_NTFF },
        { ".pftrace", MEMBER_SYSTEM_TRACE },
};
/* clang-format on */

static bool number_of(const PatternMatch *m, char letter, int64_t *ret) {
        char text[24];
        uint64_t v;

        *ret = -1;
        pattern_copy(m, letter, text, sizeof text);
        if (text[0] == '\0')
                return true;
        if (parse_u64_range(text, 0, INT64_MAX, &v) < 0)
                return false;
        *ret = (int64_t)v;
        return true;
}

/* @return false when a number is too large: then the runtime has not given this name */
static bool store_match(const PatternMatch *m, MemberKind kind, DumpName *ret) {
        DumpName name = { .kind = kind };
        char hash[24];

        if (!number_of(m, 'n', &name.device) || !number_of(m, 'k', &name.core) ||
            !number_of(m, 'p', &name.pid) || !number_of(m, 't', &name.tid) ||
            !number_of(m, 'l', &name.lid))
                return false;
        pattern_copy(m, 'i', name.instance_id, sizeof name.instance_id);
        pattern_copy(m, 'h', hash, sizeof hash);
        name.has_neff_number = parse_u64(hash, &name.neff_number) == 0;
        *ret = name;
        return true;
}

static bool match_rows(const char *name, DumpName *ret) {
        PatternMatch m;

        for (size_t i = 0; i < ELEMENTSOF(name_rows); i++)
                if (pattern_match(name_rows[i].pattern, name, &m) &&
                    store_match(&m, name_rows[i].kind, ret))
                        return true;
        return false;
}

/* @return whether a word begins at i: `pid` in `x_pid_3`, but not in `rapid_3` */
static bool starts_word(const char *name, size_t i) {
        return i == 0 || !isalnum((unsigned char)name[i - 1]);
}

/* Finds an EC2 id in a name that matches no pattern, between characters that cannot be part of it.
 * Only in the two lengths that EC2 uses: other runs of hex digits are rarely ids. */
static void find_instance_id(const char *name, char ret[INSTANCE_ID_SIZE]) {
        for (size_t i = 0; name[i] != '\0'; i++) {
                size_t n;

                if (strncmp(name + i, "i-", 2) != 0 || !starts_word(name, i))
                        continue;
                n = strspn(name + i + 2, HEX_DIGITS);
                if ((n != 8 && n != 17) || isalnum((unsigned char)name[i + 2 + n]))
                        continue;
                memcpy(ret, name + i, n + 2);
                ret[n + 2] = '\0';
                return;
        }
}

/* @return the number in `<word>-<number>` or `<word>_<number>`, as the runtime writes its ids; -1
 */
static int64_t find_number(const char *name, const char *word) {
        size_t n_word = strlen(word);

        for (size_t i = 0; name[i] != '\0'; i++) {
                char text[24] = "";
                uint64_t v;
                size_t n;

                if (strncmp(name + i, word, n_word) != 0 || !starts_word(name, i) ||
                    (name[i + n_word] != '-' && name[i + n_word] != '_'))
                        continue;
                n = strspn(name + i + n_word + 1, DIGITS);
                if (n == 0 || n >= sizeof text || isalnum((unsigned char)name[i + n_word + 1 + n]))
                        continue;
                memcpy(text, name + i + n_word + 1, n);
                if (parse_u64_range(text, 0, INT64_MAX, &v) == 0)
                        return (int64_t)v;
        }
        return -1;
}

static MemberKind kind_by_suffix(const char *name) {
        for (size_t i = 0; i < ELEMENTSOF(suffix_rows); i++)
                if (path_has_suffix(name, suffix_rows[i].suffix))
                        return suffix_rows[i].kind;
        return MEMBER_OTHER;
}

/* @return the kind of all members of a bundle of this kind; N_MEMBER_KINDS: their names decide */
static MemberKind kind_by_source(SourceKind source) {
        switch (source) {
        case SOURCE_PROCESS_CORE:
                return MEMBER_ELF_CORE;
        case SOURCE_SNAPSHOT:
                return MEMBER_SNAPSHOT;
        case SOURCE_CRASH_REPORT:
        case SOURCE_OOM:
                return MEMBER_CRASH_REPORT;
        case SOURCE_NEURON_CORE_DUMP:
        case SOURCE_NEURON_PROFILE:
        case SOURCE_DIRECTORY:
        case N_SOURCE_KINDS:
                break;
        }
        return N_MEMBER_KINDS;
}

void dump_name_parse(SourceKind source, const char *name, DumpName *ret) {
        const MemberKind kind = kind_by_source(source);

        if (match_rows(name, ret)) {
                if (kind != N_MEMBER_KINDS)
                        ret->kind = kind;
                return;
        }
        *ret = (DumpName){
                .kind = kind != N_MEMBER_KINDS ? kind : kind_by_suffix(name),
                .device = -1,
                .core = -1,
                .pid = find_number(name, "pid"),
                .tid = find_number(name, "tid"),
                .lid = find_number(name, "lid"),
        };
        find_instance_id(name, ret->instance_id);
}

bool dump_name_is_of_dump(const char *name) {
        DumpName parsed;

        if (!match_rows(name, &parsed))
                return false;
        switch (parsed.kind) {
        case MEMBER_NC_STATE:
        case MEMBER_CC_CORE_STATE:
        case MEMBER_NRT_LOG:
        case MEMBER_SNAPSHOT:
        case MEMBER_HOOK_RECORD:
                return true;
        default:
                return false;
        }
}

bool profile_unit_name_parse(const char *name, char *ret_instance, int64_t *ret_pid) {
        PatternMatch m;
        int64_t pid;

        if (!pattern_match("%i_pid_%p", name, &m) || !number_of(&m, 'p', &pid))
                return false;
        if (ret_instance)
                pattern_copy(&m, 'i', ret_instance, INSTANCE_ID_SIZE);
        if (ret_pid)
                *ret_pid = pid;
        return true;
}
