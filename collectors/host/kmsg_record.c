/* Records of the kernel log, in the two forms in which the kernel gives them.
 *
 * /dev/kmsg gives `PRIORITY,SEQ,USEC,FLAGS;TEXT` and continuation lines that begin with a blank;
 * syslog(2) gives lines, from which a record of several lines cannot be put together again. What a
 * text says is decided in kmsg_content.c. @see Documentation/ABI/testing/dev-kmsg of Linux */
#include "collectors/host/kmsg_record.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/parse.h"

void kmsg_record_done(KmsgRecord *r) {
        strbuf_done(&r->text);
        strbuf_done(&r->context);
}

static int hex_digit(char c) {
        if (c >= '0' && c <= '9')
                return c - '0';
        c = (char)tolower((unsigned char)c);
        return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static void add_unescaped(StrBuf *b, const char *s, size_t n) {
        size_t from = 0;

        for (size_t i = 0; i + 4 <= n;) {
                int high = s[i] == '\\' && s[i + 1] == 'x' ? hex_digit(s[i + 2]) : -1;
                int low = high >= 0 ? hex_digit(s[i + 3]) : -1;
                if (low < 0) {
                        i++;
                        continue;
                }
                strbuf_add_n(b, s + from, i - from);
                char c = (char)(high << 4 | low);
                strbuf_add_n(b, &c, 1);
                i += 4;
                from = i;
        }
        strbuf_add_n(b, s + from, n - from);
}

int kmsg_record_parse(const char *data, size_t n, KmsgRecord *ret) {
        const char *at = data, *end = data + n, *line_end;
        _cleanup_(kmsg_record_done) KmsgRecord r = { 0 };
        uint64_t priority;

        if (!parse_u64_prefix(&at, end, &priority) || priority > UINT32_MAX || at >= end ||
            *at++ != ',' || !parse_u64_prefix(&at, end, &r.seq) || at >= end || *at++ != ',' ||
            !parse_u64_prefix(&at, end, &r.usec))
                return -EBADMSG;
        line_end = memchr(at, '\n', (size_t)(end - at));
        line_end = line_end ? line_end : end;
        at = memchr(at, ';',
                    (size_t)(line_end - at)); /* later kernels may have more fields before it */
        if (!at)
                return -EBADMSG;
        r.priority = (unsigned)priority & 7;
        r.facility = (unsigned)priority >> 3;
        r.is_numbered = true;
        at++;
        add_unescaped(&r.text, at, (size_t)(line_end - at));
        while (line_end < end) {
                at = line_end + 1;
                line_end = memchr(at, '\n', (size_t)(end - at));
                line_end = line_end ? line_end : end;
                if (at == line_end || *at != ' ')
                        continue;
                if (r.context.n > 0)
                        strbuf_add(&r.context, "\n");
                add_unescaped(&r.context, at + 1, (size_t)(line_end - at - 1));
        }
        if (strbuf_error(&r.text) < 0 || strbuf_error(&r.context) < 0)
                return -ENOMEM;
        *ret = r;
        r = (KmsgRecord){ 0 };
        return 0;
}

size_t kmsg_record_size(const char *data, size_t n) {
        const char *end = data + n;

        for (const char *at = data; (at = memchr(at, '\n', (size_t)(end - at)));) {
                at++;
                if (at == end)
                        return n;
                if (*at != ' ')
                        return (size_t)(at - data);
        }
        return n;
}

/* ---- syslog(2) ---- */

bool kmsg_record_parse_syslog(const char *line, size_t n, KmsgRecord *ret) {
        const char *at = line + 1, *end = line + n;
        uint64_t priority, sec, usec;
        if (n < 3 || *line != '<' || !parse_u64_prefix(&at, end, &priority) ||
            priority > UINT32_MAX || at >= end || *at++ != '>')
                return false;
        *ret = (KmsgRecord){ .priority = (unsigned)priority & 7,
                             .facility = (unsigned)priority >> 3 };
        const char *time = at;
        if (time < end && *time == '[')
                for (time++; time < end && *time == ' ';)
                        time++;
        if (time > at && parse_u64_prefix(&time, end, &sec) && end - time > 7 && *time == '.' &&
            time[7] == ']' && sec < UINT64_MAX / USEC_PER_SEC - 1) {
                time++;
                if (parse_u64_prefix(&time, end, &usec) && *time == ']') {
                        ret->usec = sec * USEC_PER_SEC + usec;
                        at = time + 1;
                        at += at < end && *at == ' ';
                }
        }
        strbuf_add_n(&ret->text, at, (size_t)(end - at));
        return true;
}

bool kmsg_record_may_continue(const KmsgRecord *r, const KmsgRecord *before) {
        return r->usec == 0 || (r->usec == before->usec && r->priority == before->priority &&
                                r->facility == before->facility);
}
