/* Fields that the documents of a failure share, so that record.c and incident.c write and read them
 * alike. A document is one line of JSON; times are ISO 8601 with microseconds, and what is not
 * known is null. */
#include "agent/peers/document.h"

#include <string.h>
#include <time.h>

#include "lib/base/clock.h"
#include "lib/base/json_out.h"
#include "lib/base/parse.h"

#define TIME_MAX_USEC INT64_C(253402300799999999) /* the end of the year 9999 */

uint64_t document_bounded_time(int64_t usec) {
        return (uint64_t)MIN(MAX(usec, 0), TIME_MAX_USEC);
}

bool document_parse_seconds(const char *s, const char *format, int64_t *ret_usec) {
        struct tm tm = { 0 };
        if (!strptime(s, format, &tm))
                return false;
        *ret_usec = (int64_t)timegm(&tm) * (int64_t)USEC_PER_SEC;
        return true;
}

bool document_parse_time(const char *s, int64_t *ret) {
        char again[CLOCK_ISO_SIZE];
        uint64_t fraction;
        const char *at = s + strcspn(s, ".");
        if (*at++ != '.' || !document_parse_seconds(s, "%Y-%m-%dT%H:%M:%S", ret) ||
            !parse_u64_prefix(&at, s + strlen(s), &fraction) || fraction >= USEC_PER_SEC)
                return false;
        *ret += (int64_t)fraction;
        return strcmp(clock_format_iso(again, document_bounded_time(*ret)), s) == 0;
}

void document_add_time(StrBuf *b, const char *key, int64_t usec) {
        char text[CLOCK_ISO_SIZE];
        json_out_string(b, key,
                        usec == INT64_MIN ? NULL
                                          : clock_format_iso(text, document_bounded_time(usec)));
}

void document_add_text(StrBuf *b, const char *key, const char *text) {
        json_out_string(b, key, *text ? text : NULL);
}

void document_add_number(StrBuf *b, const char *key, int64_t number) {
        if (number < 0)
                json_out_null(b, key);
        else
                json_out_i64(b, key, number);
}

void document_add_error(StrBuf *b, const Claim *c) {
        if (c && c->has_error)
                json_out_i64(b, "error_code", c->error_code);
        else
                json_out_null(b, "error_code");
}

uint64_t document_usec_to_msec(int64_t usec) {
        return usec <= 0 ? 0 : ((uint64_t)usec + USEC_PER_MSEC - 1) / USEC_PER_MSEC;
}

char *document_detach(StrBuf *b, size_t *ret_n) {
        json_out_end_object(b);
        strbuf_add(b, "\n");
        *ret_n = b->n;
        return strbuf_detach(b);
}

bool document_instance_id_is_valid(const char *s) {
        return *s && strcmp(s, ".") != 0 && strcmp(s, "..") != 0 &&
               strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") ==
                       strlen(s);
}
