#include "lib/neuron/pattern.h"

#include <stdint.h>
#include <string.h>

#include "lib/neuron/template.h"

/* Honest names need tens of steps; a name made to be hard for `%i%i%i%i` would need millions. */
#define STEPS_MAX 20000
#define DIGITS_MAX 20 /* of a 64-bit number */

typedef struct Matcher {
        PatternMatch found;
        unsigned steps;
} Matcher;

static bool is_digit(char c) {
        return c >= '0' && c <= '9';
}

static bool is_hex(char c) {
        return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static bool is_host(char c) {
        return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
               c == '_' || c == '-';
}

static size_t run_length(const char *s, bool (*in_class)(char), size_t max) {
        size_t n = 0;

        while (n < max && in_class(s[n]))
                n++;
        return n;
}

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
        /* The two spellings differ in their fifth character, so at most one can be meant. */
        return (is_date_time(name, 15) && try_value(m, pattern, name, 15)) ||
               (is_date_time(name, 16) && try_value(m, pattern, name, 16));
}

static bool match_instance_id(Matcher *m, const char *pattern, const char *name) {
        size_t n = run_length(name, is_host, INSTANCE_ID_SIZE - 1);

        /* Lazily: in `i-0abc-nd0-nc4` the id ends as early as the rest of the pattern allows. */
        for (size_t i = 1; i <= n; i++)
                if (try_value(m, pattern, name, i))
                        return true;
        return false;
}

static bool match_digits(Matcher *m, const char *pattern, const char *name) {
        bool hex = pattern[1] == 'c';
        size_t n =
                run_length(name, hex ? is_hex : is_digit, hex ? CLUSTER_ID_SIZE - 1 : DIGITS_MAX);

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

bool pattern_match(const char *pattern, const char *name, PatternMatch *ret) {
        Matcher m = { .steps = 0 };

        if (!match_here(&m, pattern, name))
                return false;
        *ret = m.found;
        return true;
}

void pattern_copy(const PatternMatch *m, char letter, char *buf, size_t size) {
        PatternSpan span = m->of[letter - 'a'];

        if (span.n >= size)
                span.n = 0;
        memcpy(buf, span.n > 0 ? span.text : "", span.n);
        buf[span.n] = '\0';
}
