/* Neither strptime() nor timegm(): the one asks the locale, the other takes the 31st of February. */
#include "uploaders/s3/s3_time.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "lib/base/cleanup.h"

typedef struct Moment {
        unsigned year, month, day, hour, minute, second; /* month and day from 1 */
} Moment;

/* Reads exactly n digits and moves *s behind them. */
static int digits(const char **s, unsigned n, unsigned *ret) {
        unsigned value = 0;

        for (; n > 0; n--, (*s)++) {
                if (**s < '0' || **s > '9')
                        return -EINVAL;
                value = 10 * value + (unsigned)(**s - '0');
        }
        *ret = value;
        return 0;
}

static int word(const char **s, const char *expected) {
        size_t n = strlen(expected);

        if (strncmp(*s, expected, n) != 0)
                return -EINVAL;
        *s += n;
        return 0;
}

static bool is_leap(unsigned year) {
        return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
}

static unsigned days_of(unsigned year, unsigned month) {
        static const unsigned days[] = { 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 };

        return days[month - 1] + (month == 2 && is_leap(year));
}

static int moment_seconds(const Moment *m, uint64_t *ret) {
        uint64_t days = 0;

        if (m->year < 1970 || m->month < 1 || m->month > 12 || m->day < 1 ||
            m->day > days_of(m->year, m->month) || m->hour > 23 || m->minute > 59 ||
            m->second > 60 /* a leap second */)
                return -EINVAL;
        for (unsigned y = 1970; y < m->year; y++)
                days += 365 + is_leap(y);
        for (unsigned month = 1; month < m->month; month++)
                days += days_of(m->year, month);
        days += m->day - 1;
        *ret = ((days * 24 + m->hour) * 60 + m->minute) * 60 + m->second;
        return 0;
}

static int clock_time(const char **s, Moment *m) {
        if (digits(s, 2, &m->hour) < 0 || word(s, ":") < 0 || digits(s, 2, &m->minute) < 0 ||
            word(s, ":") < 0 || digits(s, 2, &m->second) < 0)
                return -EINVAL;
        return 0;
}

/* What follows the seconds: digits behind a point, of which six count. */
static int fraction(const char **s, uint64_t *ret_usec) {
        uint64_t unit = USEC_PER_SEC, usec = 0;

        *ret_usec = 0;
        if (**s != '.')
                return 0;
        if (*++*s < '0' || **s > '9')
                return -EINVAL;
        for (; **s >= '0' && **s <= '9'; (*s)++) {
                unit /= 10;
                usec += unit * (uint64_t)(**s - '0');
        }
        *ret_usec = usec;
        return 0;
}

/* `Z`, `+01:00`, `-0800`. @param ret_minutes  east of Greenwich */
static int zone(const char *s, int *ret_minutes) {
        int sign = *s == '-' ? -1 : 1;
        unsigned hours, minutes;

        *ret_minutes = 0;
        if (strcmp(s, "Z") == 0)
                return 0;
        if (*s != '+' && *s != '-')
                return -EINVAL;
        s++;
        if (digits(&s, 2, &hours) < 0)
                return -EINVAL;
        s += *s == ':';
        if (digits(&s, 2, &minutes) < 0 || *s != '\0' || hours > 14 || minutes > 59)
                return -EINVAL;
        *ret_minutes = sign * (int)(hours * 60 + minutes);
        return 0;
}

int s3_time_parse(const char *text, uint64_t *ret_usec) {
        Moment m;
        uint64_t seconds, usec;
        int minutes;

        if (digits(&text, 4, &m.year) < 0 || word(&text, "-") < 0 ||
            digits(&text, 2, &m.month) < 0 || word(&text, "-") < 0 || digits(&text, 2, &m.day) < 0)
                return -EINVAL;
        if (word(&text, "T") < 0 || clock_time(&text, &m) < 0 || fraction(&text, &usec) < 0 ||
            zone(text, &minutes) < 0 || moment_seconds(&m, &seconds) < 0)
                return -EINVAL;
        if (minutes > 0 && seconds < (uint64_t)minutes * 60)
                return -EINVAL;
        seconds -= (uint64_t)((int64_t)minutes * 60); /* wraps back for the west */
        *ret_usec = seconds * USEC_PER_SEC + usec;
        return 0;
}

static int month_name(const char **s, unsigned *ret) {
        static const char names[] = "JanFebMarAprMayJunJulAugSepOctNovDec";

        for (unsigned i = 0; i < 12; i++)
                if (strncmp(*s, names + (size_t)3 * i, 3) == 0) {
                        *s += 3;
                        *ret = i + 1;
                        return 0;
                }
        return -EINVAL;
}

int s3_time_parse_http(const char *text, uint64_t *ret_usec) {
        Moment m;
        uint64_t seconds;

        if (strlen(text) != strlen("Wed, 27 May 2026 05:12:33 GMT"))
                return -EINVAL;
        text += 3; /* the day of the week, which the date tells better */
        if (word(&text, ", ") < 0 || digits(&text, 2, &m.day) < 0 || word(&text, " ") < 0 ||
            month_name(&text, &m.month) < 0 || word(&text, " ") < 0)
                return -EINVAL;
        if (digits(&text, 4, &m.year) < 0 || word(&text, " ") < 0 || clock_time(&text, &m) < 0 ||
            strcmp(text, " GMT") != 0 || moment_seconds(&m, &seconds) < 0)
                return -EINVAL;
        *ret_usec = seconds * USEC_PER_SEC;
        return 0;
}
