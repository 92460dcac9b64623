/* Numbers, words and UTF-8 (by the table of the Unicode Standard) from outside. No locale, nothing
 * is skipped, nothing wraps. */
#include "lib/base/parse.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "lib/base/cleanup.h"

/* Reads the digits at *s and moves *s behind them. @param end  NULL = a NUL ends it */
static int parse_digits(const char **s, const char *end, uint64_t *ret) {
        const char *p = *s;
        uint64_t n = 0;
        bool too_large = false;

        for (; p != end && *p >= '0' && *p <= '9'; p++)
                if (__builtin_mul_overflow(n, 10, &n) ||
                    __builtin_add_overflow(n, (uint64_t)(*p - '0'), &n))
                        too_large = true; /* read on: the form counts before the size */
        if (p == *s)
                return -EINVAL;
        *s = p;
        *ret = n;
        return too_large ? -ERANGE : 0;
}

int parse_u64(const char *s, uint64_t *ret) {
        uint64_t n = 0;
        int r = parse_digits(&s, NULL, &n);

        if (r == -EINVAL || *s != '\0')
                return -EINVAL;
        if (r < 0)
                return r;
        *ret = n;
        return 0;
}

int parse_u64_range(const char *s, uint64_t min, uint64_t max, uint64_t *ret) {
        uint64_t n;
        int r = parse_u64(s, &n);

        if (r < 0)
                return r;
        if (n < min || n > max)
                return -ERANGE;
        *ret = n;
        return 0;
}

static int parse_hex_digit(char c) {
        if (c >= '0' && c <= '9')
                return c - '0';
        if (c >= 'a' && c <= 'f')
                return c - 'a' + 10;
        if (c >= 'A' && c <= 'F')
                return c - 'A' + 10;
        return -EINVAL;
}

int parse_hex_bytes(const char *s, void *buf, size_t n) {
        uint8_t *p = buf;

        if (strlen(s) % 2 != 0 || strlen(s) / 2 != n)
                return -EINVAL;
        for (size_t i = 0; i < 2 * n; i++) /* all are checked before buf is written */
                if (parse_hex_digit(s[i]) < 0)
                        return -EINVAL;
        for (size_t i = 0; i < n; i++)
                p[i] = (uint8_t)(parse_hex_digit(s[2 * i]) << 4 | parse_hex_digit(s[2 * i + 1]));
        return 0;
}

int parse_bool(const char *s, bool *ret) {
        static const char *const words[][2] = {
                { "false", "true" },
                { "no", "yes" },
                { "off", "on" },
        };

        for (size_t i = 0; i < ELEMENTSOF(words); i++)
                for (size_t b = 0; b < 2; b++)
                        if (strcasecmp(s, words[i][b]) == 0) {
                                *ret = b == 1;
                                return 0;
                        }
        return -EINVAL;
}

int parse_word(const char *s, const char *const *words, size_t n) {
        for (size_t i = 0; s && i < n; i++)
                if (words[i] && strcmp(words[i], s) == 0)
                        return (int)i;
        return -EINVAL;
}

enum { DISTANCE_MAX = 128 };

unsigned parse_distance(const char *a, const char *b) {
        unsigned rows[3][DISTANCE_MAX + 1];
        size_t n = strlen(a), m = strlen(b);

        if (n > DISTANCE_MAX || m > DISTANCE_MAX)
                return UINT_MAX;
        for (size_t j = 0; j <= m; j++)
                rows[0][j] = (unsigned)j;
        for (size_t i = 1; i <= n; i++) {
                unsigned *row = rows[i % 3];
                const unsigned *above = rows[(i - 1) % 3], *swapped = rows[(i + 1) % 3];
                row[0] = (unsigned)i;
                for (size_t j = 1; j <= m; j++) {
                        unsigned change = above[j - 1] + (a[i - 1] != b[j - 1]);
                        unsigned add_or_drop = MIN(above[j], row[j - 1]) + 1;
                        row[j] = MIN(change, add_or_drop);
                        if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                                row[j] = MIN(row[j], swapped[j - 2] + 1);
                }
        }
        return rows[n % 3][m];
}

typedef struct Unit {
        const char *name;
        uint64_t factor;
} Unit;

/* From large to small; the first spelling of a factor is the one that is written. */
static const Unit byte_units[] = {
        { "TiB", TIB }, { "GiB", GIB }, { "MiB", MIB }, { "KiB", KIB }, { "T", TIB },
        { "G", GIB },   { "M", MIB },   { "K", KIB },   { "", 1 },
};

static const Unit time_units[] = {
        { "d", USEC_PER_DAY }, { "h", USEC_PER_HOUR },  { "m", USEC_PER_MINUTE },
        { "s", USEC_PER_SEC }, { "ms", USEC_PER_MSEC }, { "us", 1 },
};

/* Reads digits and one of the units. */
static int parse_with_unit(const char *s, const Unit *units, size_t n_units, uint64_t *ret) {
        uint64_t n = 0;
        int r = parse_digits(&s, NULL, &n);

        if (r == -EINVAL)
                return r;
        for (size_t i = 0; i < n_units; i++) {
                if (strcmp(s, units[i].name) != 0)
                        continue;
                if (r < 0 || __builtin_mul_overflow(n, units[i].factor, &n))
                        return -ERANGE;
                *ret = n;
                return 0;
        }
        return -EINVAL;
}

int parse_bytes(const char *s, uint64_t *ret) {
        return parse_with_unit(s, byte_units, ELEMENTSOF(byte_units), ret);
}

int parse_duration_usec(const char *s, uint64_t *ret) {
        if (strcmp(s, "0") == 0) {
                *ret = 0;
                return 0;
        }
        return parse_with_unit(s, time_units, ELEMENTSOF(time_units), ret);
}

int parse_rate(const char *s, uint64_t *ret) {
        char size[PARSE_FORMAT_SIZE];
        size_t n = strlen(s);

        if (strcmp(s, "0") == 0 || strcmp(s, "off") == 0) {
                *ret = 0;
                return 0;
        }
        if (n < 2 || strcmp(s + n - 2, "/s") != 0)
                return -EINVAL;
        if (n - 2 >= sizeof size) /* longer than any size that fits in 64 bits */
                return -EINVAL;
        memcpy(size, s, n - 2);
        size[n - 2] = '\0';
        return parse_bytes(size, ret);
}

int parse_permille(const char *s, unsigned *ret) {
        uint64_t percent = 0, tenth = 0;
        int r = parse_digits(&s, NULL, &percent);

        if (r == -EINVAL)
                return r;
        if (*s == '.') {
                if (s[1] < '0' || s[1] > '9')
                        return -EINVAL;
                tenth = (uint64_t)(s[1] - '0');
                s += 2;
        }
        if (strcmp(s, "%") != 0)
                return -EINVAL;
        if (r < 0 || percent > 100 || (percent == 100 && tenth > 0))
                return -ERANGE;
        *ret = (unsigned)(10 * percent + tenth);
        return 0;
}

static const char *format_with_unit(char *buf, uint64_t n, const Unit *units, size_t n_units) {
        size_t i = 0;

        if (n == 0) {
                (void)snprintf(buf, PARSE_FORMAT_SIZE, "0");
                return buf;
        }
        while (i + 1 < n_units && n % units[i].factor != 0) /* the last one is 1 and divides all */
                i++;
        (void)snprintf(buf, PARSE_FORMAT_SIZE, "%" PRIu64 "%s", n / units[i].factor, units[i].name);
        return buf;
}

const char *parse_format_bytes(char *buf, uint64_t bytes) {
        return format_with_unit(buf, bytes, byte_units, ELEMENTSOF(byte_units));
}

const char *parse_format_duration(char *buf, uint64_t usec) {
        return format_with_unit(buf, usec, time_units, ELEMENTSOF(time_units));
}

const char *parse_format_human(char *buf, uint64_t bytes) {
        static const char *const names[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
        uint64_t unit = 1, whole, tenths;
        size_t i = 0;

        while (i + 1 < ELEMENTSOF(names) && bytes / unit >= 1024) {
                unit *= 1024;
                i++;
        }
        whole = bytes / unit;
        tenths = (bytes % unit * 10 + unit / 2) / unit; /* below 2^64 even for EiB */
        if (tenths == 10) {
                whole++;
                tenths = 0;
        }
        if (whole == 1024 && i + 1 < ELEMENTSOF(names)) { /* 1023.99 KiB is 1.0 MiB */
                whole = 1;
                i++;
        }
        if (i == 0)
                (void)snprintf(buf, PARSE_FORMAT_SIZE, "%" PRIu64 " B", whole);
        else
                (void)snprintf(buf, PARSE_FORMAT_SIZE, "%" PRIu64 ".%" PRIu64 " %s", whole, tenths,
                               names[i]);
        return buf;
}

bool parse_u64_prefix(const char **at, const char *end, uint64_t *ret) {
        uint64_t value;

        if (parse_digits(at, end, &value) < 0)
                return false;
        *ret = value;
        return true;
}

bool parse_json_exceeds_depth(const char *s, size_t n, unsigned max) {
        unsigned depth = 0;
        bool in_string = false;

        for (size_t i = 0; i < n; i++) {
                if (in_string && s[i] == '\\')
                        i++;
                else if (s[i] == '"')
                        in_string = !in_string;
                else if (!in_string && (s[i] == '{' || s[i] == '['))
                        depth++;
                else if (!in_string && (s[i] == '}' || s[i] == ']') && depth > 0)
                        depth--;
                if (depth > max)
                        return true;
        }
        return false;
}

size_t utf8_char_size(const char *s, size_t n) {
        const unsigned char *p = (const unsigned char *)s;
        /* Only the second byte has a range that depends on the first: it excludes overlong forms,
         * surrogates and what is above U+10FFFF. */
        unsigned char low = 0x80, high = 0xbf;
        size_t size;

        if (p[0] < 0x80)
                return 1;
        if (p[0] >= 0xc2 && p[0] <= 0xdf)
                size = 2;
        else if (p[0] >= 0xe0 && p[0] <= 0xef)
                size = 3;
        else if (p[0] >= 0xf0 && p[0] <= 0xf4)
                size = 4;
        else
                return 0;
        if (n < size)
                return 0;
        if (p[0] == 0xe0)
                low = 0xa0;
        else if (p[0] == 0xed)
                high = 0x9f;
        else if (p[0] == 0xf0)
                low = 0x90;
        else if (p[0] == 0xf4)
                high = 0x8f;
        if (p[1] < low || p[1] > high)
                return 0;
        for (size_t i = 2; i < size; i++)
                if (p[i] < 0x80 || p[i] > 0xbf)
                        return 0;
        return size;
}

size_t utf8_escape(const char *s, size_t n, char buf[static UTF8_ESCAPE_SIZE]) {
        const unsigned char *p = (const unsigned char *)s;
        size_t size = utf8_char_size(s, n);

        if (size == 0 || (size == 1 && (p[0] < 0x20 || p[0] == 0x7f))) {
                (void)snprintf(buf, UTF8_ESCAPE_SIZE, "\\x%02x", p[0]);
                return 1;
        }
        if (size == 2 && p[0] == 0xc2 && p[1] < 0xa0) { /* C1: ESC [ in one character */
                (void)snprintf(buf, UTF8_ESCAPE_SIZE, "\\x%02x\\x%02x", p[0], p[1]);
                return 2;
        }
        if (size == 3 && p[0] == 0xe2 &&
            ((p[1] == 0x80 && p[2] >= 0xa8 && p[2] <= 0xae) ||
             (p[1] == 0x81 && p[2] >= 0xa6 && p[2] <= 0xa9))) {
                (void)snprintf(buf, UTF8_ESCAPE_SIZE, "\\x%02x\\x%02x\\x%02x", p[0], p[1], p[2]);
                return 3;
        }
        memcpy(buf, s, size);
        buf[size] = '\0';
        return size;
}
