/* The text that the Neuron runtime logs.
 *
 * A line has a time, a process and thread, a level, often a module and function, and a message,
 * which may name a device and a core. When an execution fails, the runtime also writes a block for
 * support requests, with versions, the failure and the process's environment. Any program can write
 * such text: a parser finds what has the form, and proves nothing.
 *
 * Which logs are read, and which variables may be shown, is decided in runtime_log.c. */
#include "collectors/neuron/nrt_log.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/parse.h"

/* The delimiters of a block, without the dashes around them, whose number has varied. */
static const char cut_here[] = ">8------------[ cut here ]------------>8";

static const char cut_to_here[] = "8<-----------[ cut to here ]-----------8<";

static bool is_blank(char c) {
        return c == ' ' || c == '\t' || c == '\r';
}

static const char *skip_blanks(const char *at, const char *end) {
        while (at < end && is_blank(*at))
                at++;
        return at;
}

static NrtSpan next_word(const char **at, const char *end) {
        const char *start = skip_blanks(*at, end);

        *at = start;
        while (*at < end && !is_blank(**at))
                (*at)++;
        return (NrtSpan){ .s = start, .n = (size_t)(*at - start) };
}

/* In a form, `d` is a digit, `m` a letter, and any other character itself. */
static bool has_form(const char *s, size_t n, const char *form) {
        for (size_t i = 0; form[i] != '\0'; i++) {
                if (i >= n)
                        return false;
                unsigned char c = (unsigned char)s[i];
                if (form[i] == 'd'   ? !isdigit(c)
                    : form[i] == 'm' ? !isalpha(c)
                                     : (char)c != form[i])
                        return false;
        }
        return true;
}

static bool find_time(const char *line, const char *end, NrtSpan *ret) {
        static const char form[] = "dddd-mmm-dd dd:dd:dd";
        const size_t n_form = sizeof form - 1;

        for (const char *at = line; (size_t)(end - at) >= n_form && at - line < 256; at++) {
                if (!has_form(at, (size_t)(end - at), form))
                        continue;
                const char *stop = at + n_form;
                if (stop < end && *stop == '.')
                        for (stop++; stop < end && isdigit((unsigned char)*stop);)
                                stop++;
                *ret = (NrtSpan){ .s = at, .n = (size_t)(stop - at) };
                return true;
        }
        return false;
}

/* Finds the small number behind `nd` or `nc`. @return -1: none */
static int number_behind(NrtSpan text, const char *mark, size_t *ret_at) {
        for (size_t i = 0; i + 3 <= text.n; i++) {
                if (strncasecmp(text.s + i, mark, 2) != 0 ||
                    (i > 0 && isalnum((unsigned char)text.s[i - 1])))
                        continue;
                const char *at = text.s + i + 2, *end = text.s + text.n;
                uint64_t value;
                at += at < end && *at == ' ';
                if (!parse_u64_prefix(&at, end, &value) || value > 65535 ||
                    (at < end && isalnum((unsigned char)*at)))
                        continue;
                *ret_at = i;
                return (int)value;
        }
        return -1;
}

static void find_core(NrtLine *l) {
        size_t at = 0;

        l->device = number_behind(l->message, "nd", &at);
        l->core = -1;
        if (l->device >= 0) {
                NrtSpan behind = { .s = l->message.s + at, .n = l->message.n - at };
                l->core = number_behind(behind, "nc", &at);
        }
}

bool nrt_log_parse_line(const char *line, size_t n, NrtLine *ret) {
        const char *end = line + n, *at, *colon;
        NrtLine l = { 0 };

        if (!find_time(line, end, &l.time))
                return false;
        at = skip_blanks(l.time.s + l.time.n, end);
        if (!parse_u64_prefix(&at, end, &l.pid) || at >= end || *at++ != ':' ||
            !parse_u64_prefix(&at, end, &l.tid))
                return false;
        l.level = next_word(&at, end);
        if (l.level.n == 0)
                return false;
        const char *behind_level = at;
        NrtSpan origin = next_word(&at, end);
        colon = origin.n > 0 ? memchr(origin.s, ':', origin.n) : NULL;
        if (colon) {
                l.module = (NrtSpan){ .s = origin.s, .n = (size_t)(colon - origin.s) };
                l.function = (NrtSpan){ .s = colon + 1, .n = origin.n - l.module.n - 1 };
        } else {
                at = behind_level;
                l.module = l.function = (NrtSpan){ .s = at, .n = 0 };
        }
        at = skip_blanks(at, end);
        while (end > at && is_blank(end[-1]))
                end--;
        l.message = (NrtSpan){ .s = at, .n = (size_t)(end - at) };
        find_core(&l);
        *ret = l;
        return true;
}

bool nrt_log_is_error(const NrtLine *l) {
        static const char *const levels[] = { "ERROR", "ERR", "CRITICAL", "FATAL" };

        for (size_t i = 0; i < ELEMENTSOF(levels); i++)
                if (l->level.n == strlen(levels[i]) &&
                    strncasecmp(l->level.s, levels[i], l->level.n) == 0)
                        return true;
        return false;
}

static const char *line_end(const char *at, const char *end) {
        const char *newline = at < end ? memchr(at, '\n', (size_t)(end - at)) : NULL;
        return newline ? newline : end;
}

bool nrt_infodump_find(const char *text, size_t n, size_t *at, NrtInfodump *ret) {
        const char *end = text + n, *open, *start, *close, *next;

        if (*at >= n)
                return false;
        open = memmem(text + *at, n - *at, cut_here, sizeof cut_here - 1);
        if (!open) {
                *at = n;
                return false;
        }
        start = line_end(open, end);
        start += start < end;
        close = memmem(start, (size_t)(end - start), cut_to_here, sizeof cut_to_here - 1);
        /* If another block begins first, the line with this block's end was lost. */
        next = memmem(start, (size_t)(end - start), cut_here, sizeof cut_here - 1);
        bool is_whole = close && (!next || close < next);
        if (is_whole)
                *at = (size_t)(line_end(close, end) - text);
        else {
                close = next ? next : end;
                *at = (size_t)(close - text);
        }
        while (close > start && close[-1] != '\n' && close != end)
                close--; /* back to the beginning of the delimiter's line */
        *ret = (NrtInfodump){ { .s = start, .n = (size_t)(close - start) }, is_whole };
        return true;
}

/* The runtime writes a block through its logger, so that each line may have the prefix of a line of
 * the log. */
static NrtSpan strip_prefix(const char *line, size_t n) {
        NrtLine l;

        if (nrt_log_parse_line(line, n, &l))
                return l.message;
        return (NrtSpan){ .s = line, .n = n };
}

static NrtSpan trim(NrtSpan s) {
        while (s.n > 0 && is_blank(s.s[0])) {
                s.s++;
                s.n--;
        }
        while (s.n > 0 && is_blank(s.s[s.n - 1]))
                s.n--;
        return s;
}

static bool is_variable(NrtSpan s, size_t *ret_equals) {
        size_t i = 0;

        while (i < s.n && (isalnum((unsigned char)s.s[i]) || s.s[i] == '_'))
                i++;
        *ret_equals = i;
        return i > 0 && i < s.n && s.s[i] == '=';
}

static NrtInfoItem make_item(NrtSpan line, bool *in_environment) {
        NrtInfoItem item = { .kind = NRT_INFO_OTHER, .value = line };
        size_t equals;

        if (is_variable(line, &equals) && *in_environment) {
                item.kind = NRT_INFO_ENVIRONMENT;
                item.name = (NrtSpan){ .s = line.s, .n = equals };
                item.value = (NrtSpan){ .s = line.s + equals + 1, .n = line.n - equals - 1 };
                return item;
        }
        const char *colon = memchr(line.s, ':', line.n);
        if (!colon || colon == line.s || colon - line.s > 40)
                return item;
        item.kind = NRT_INFO_FIELD;
        item.name = trim((NrtSpan){ .s = line.s, .n = (size_t)(colon - line.s) });
        item.value = trim((NrtSpan){ .s = colon + 1, .n = (size_t)(line.s + line.n - colon - 1) });
        *in_environment = item.name.n == strlen("Environment") &&
                          strncasecmp(item.name.s, "Environment", item.name.n) == 0;
        return item;
}

bool nrt_infodump_next(const NrtSpan *block, size_t *at, bool *in_environment, NrtInfoItem *ret) {
        while (*at < block->n) {
                const char *line = block->s + *at, *end = block->s + block->n,
                           *stop = line_end(line, end);
                NrtSpan text = trim(strip_prefix(line, (size_t)(stop - line)));

                *at = (size_t)(stop - block->s) + (stop < end);
                if (text.n == 0)
                        continue;
                *ret = make_item(text, in_environment);
                return true;
        }
        return false;
}
