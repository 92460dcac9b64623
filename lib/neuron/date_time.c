/* The runtime's date-time, in the spelling its documentation gives and in the one its directories
 * have. */
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/neuron/template.h"

static bool is_digit(char c) {
        return c >= '0' && c <= '9';
}

/* Whether s is spelled like `shape`: 0 stands for a digit, all else for itself. */
static bool has_shape(const char *s, const char *shape) {
        for (; *shape != '\0'; s++, shape++)
                if (*shape == '0' ? !is_digit(*s) : *s != *shape)
                        return false;
        return *s == '\0';
}

static unsigned digits(const char *s, size_t n) {
        unsigned v = 0;

        for (size_t i = 0; i < n; i++)
                v = v * 10 + (unsigned)(s[i] - '0');
        return v;
}

static bool is_leap(unsigned year) {
        return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
}

static unsigned days_of_month(unsigned year, unsigned month) {
        static const unsigned char days[] = { 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 };

        return days[month - 1] + (month == 2 && is_leap(year));
}

static uint64_t days_since_epoch(unsigned year, unsigned month, unsigned day) {
        unsigned before = year - 1, days = day - 1;

        for (unsigned m = 1; m < month; m++)
                days += days_of_month(year, m);
        /* 719,162 days lie before 1970-01-01 in the proleptic Gregorian calendar. */
        return UINT64_C(365) * before + before / 4 - before / 100 + before / 400 - 719162 + days;
}

int date_time_parse(const char *s, uint64_t *ret_usec) {
        unsigned year, month, day, hour, minute, second;

        if (has_shape(s, "00000000-000000")) { /* what real directories have */
                month = digits(s + 4, 2), day = digits(s + 6, 2);
                hour = digits(s + 9, 2), minute = digits(s + 11, 2), second = digits(s + 13, 2);
        } else if (has_shape(s, "0000-00-00-00-00")) { /* what the documentation says */
                month = digits(s + 5, 2), day = digits(s + 8, 2);
                hour = digits(s + 11, 2), minute = digits(s + 14, 2), second = 0;
        } else
                return -EINVAL;
        year = digits(s, 4);

        if (year < 1970 || month < 1 || month > 12 || day < 1 || day > days_of_month(year, month) ||
            hour > 23 || minute > 59 || second > 59)
                return -EINVAL;
        *ret_usec = days_since_epoch(year, month, day) * USEC_PER_DAY + hour * USEC_PER_HOUR +
                    minute * USEC_PER_MINUTE + second * USEC_PER_SEC;
        return 0;
}
