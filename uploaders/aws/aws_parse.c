/* Parses the times in AWS's answers and in HTTP headers, strictly and without the locale. Pure. */
#include "uploaders/aws/aws_parse.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/base/cleanup.h"

/* strptime(3) alone accepts blanks and single digits. The program never calls setlocale(3), so the
 * names of months are English.
 * @param shape  `0` stands for a digit, `a` for a letter; a prefix of the text */
static bool has_shape(const char *text, const char *shape) {
        for (; *shape; shape++, text++) {
                bool is_letter = (*text | 0x20) >= 'a' && (*text | 0x20) <= 'z';
                bool is_digit = *text >= '0' && *text <= '9';

                if (*shape == '0' ? !is_digit : *shape == 'a' ? !is_letter : *text != *shape)
                        return false;
        }
        return true;
}

/* @param ret  seconds since 1970, may be negative. @return what follows in the text, NULL when it
 *   is no date */
static const char *read_date(const char *text, const char *format, int64_t *ret) {
        struct tm tm = { 0 };
        const char *end = strptime(text, format, &tm);
        int day = tm.tm_mday, second = tm.tm_sec;

        if (!end || second > 60 /* a leap second */)
                return NULL;
        tm.tm_sec = 0;
        *ret = timegm(&tm) + second;
        return tm.tm_mday == day ? end : NULL; /* else a day that the month does not have */
}

/* What follows the seconds: digits behind a point, of which six count. */
static const char *read_fraction(const char *text, uint64_t *ret_usec) {
        char digits[] = "000000";
        size_t n = strspn(text + (*text == '.'), "0123456789");

        *ret_usec = 0;
        if (*text != '.')
                return text;
        memcpy(digits, text + 1, MIN(n, strlen(digits)));
        *ret_usec = strtoul(digits, NULL, 10);
        return n > 0 ? text + 1 + n : NULL;
}

#define MAX_ZONE_SECONDS (14L * 3600)

int aws_time_parse(const char *text, uint64_t *ret_usec) {
        struct tm zone = { 0 };
        uint64_t usec;
        int64_t seconds;

        if (!has_shape(text, "0000-00-00T00:00:00"))
                return -EINVAL;
        text = read_date(text, "%Y-%m-%dT%H:%M:%S", &seconds);
        if (text)
                text = read_fraction(text, &usec);
        if (text && *text != ' ')
                text = strptime(text, "%z", &zone);
        if (!text || *text || labs(zone.tm_gmtoff) > MAX_ZONE_SECONDS || seconds < zone.tm_gmtoff)
                return -EINVAL;
        *ret_usec = (uint64_t)(seconds - zone.tm_gmtoff) * USEC_PER_SEC + usec;
        return 0;
}

int http_date_parse(const char *text, uint64_t *ret_usec) {
        static const char shape[] = "aaa, 00 aaa 0000 00:00:00 GMT";
        int64_t seconds;

        if (strlen(text) != strlen(shape) || !has_shape(text, shape) ||
            !read_date(text + strlen("Wed, "), "%d %b %Y %H:%M:%S", &seconds) || seconds < 0)
                return -EINVAL;
        *ret_usec = (uint64_t)seconds * USEC_PER_SEC;
        return 0;
}
