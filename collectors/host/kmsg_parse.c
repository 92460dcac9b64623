#include "collectors/host/kmsg_parse.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>
#include <strings.h>

#include "lib/base/cleanup.h"
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

int kmsg_parse(const char *data, size_t n, KmsgRecord *ret) {
        const char *at = data, *end = data + n, *line_end;
        _cleanup_(kmsg_record_done) KmsgRecord r = { 0 };
        uint64_t priority;

        if (!parse_take_u64(&at, end, &priority) || priority > UINT32_MAX || at >= end ||
            *at++ != ',' || !parse_take_u64(&at, end, &r.seq) || at >= end || *at++ != ',' ||
            !parse_take_u64(&at, end, &r.usec))
                return -EBADMSG;
        line_end = memchr(at, '\n', (size_t)(end - at));
        line_end = line_end ? line_end : end;
        at = memchr(at, ';',
                    (size_t)(line_end - at)); /* more fields may come before it in later kernels */
        if (!at)
                return -EBADMSG;
        r.priority = (unsigned)priority & 7;
        r.facility = (unsigned)priority >> 3;
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

static size_t copy_printable(char *to, size_t size, const char *s, size_t n) {
        size_t k = 0;

        for (size_t i = 0; i < n && k + 1 < size; i++)
                to[k++] = s[i] > ' ' && s[i] < 0x7f ? s[i] : '?';
        to[k] = '\0';
        return k;
}

static bool is_blank(char c) {
        return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\0';
}

static size_t word_size(const char *s, const char *end) {
        size_t n = 0;

        while (s + n < end && !is_blank(s[n]))
                n++;
        return n;
}

bool kmsg_find_hw_error(const char *text, size_t n, KmsgHwError *ret) {
        static const char mark[] = "NEURON_HW_ERR=";
        const char *end = text + n, *at = text ? memmem(text, n, mark, sizeof mark - 1) : NULL;
        size_t size;

        if (!at)
                return false;
        memset(ret, 0, sizeof *ret);
        at += sizeof mark - 1;
        size = word_size(at, end);
        (void)copy_printable(ret->value, sizeof ret->value, at, size);
        for (at += size; at < end; at += size) {
                while (at < end && is_blank(*at))
                        at++;
                size = word_size(at, end);
                const char *equals = size > 0 ? memchr(at, '=', size) : NULL;
                if (!equals || equals == at)
                        continue;
                if (ret->n_fields == KMSG_FIELDS_MAX) {
                        ret->is_cut = true;
                        break;
                }
                KmsgField *f = &ret->fields[ret->n_fields++];
                (void)copy_printable(f->key, sizeof f->key, at, (size_t)(equals - at));
                (void)copy_printable(f->value, sizeof f->value, equals + 1,
                                     (size_t)(at + size - equals - 1));
        }
        return true;
}

static bool keys_are_equal(const char *a, const char *b) {
        for (; *a != '\0' && *b != '\0'; a++, b++) {
                char x = (char)tolower((unsigned char)*a), y = (char)tolower((unsigned char)*b);
                if ((x == '-' ? '_' : x) != (y == '-' ? '_' : y))
                        return false;
        }
        return *a == *b;
}

const char *kmsg_hw_field(const KmsgHwError *e, const char *key) {
        for (size_t i = 0; i < e->n_fields; i++)
                if (keys_are_equal(e->fields[i].key, key))
                        return e->fields[i].value;
        return "";
}

/* `nd0: …`, `nd 12 …`, `[ND 0][NC 1] …` where a line, or its bracket, begins. */
static bool names_device(const char *s, const char *end) {
        if (s < end && *s == '[')
                s++;
        if (end - s < 3 || strncasecmp(s, "nd", 2) != 0)
                return false;
        s += 2;
        if (*s == ' ')
                s++;
        const char *digits = s;
        while (s < end && isdigit((unsigned char)*s))
                s++;
        return s > digits && (s == end || strchr(" :]", *s));
}

bool kmsg_is_neuron(const char *text, size_t n) {
        const char *end = text + n;

        for (const char *at = text; (size_t)(end - at) >= 6 && n >= 6; at++)
                if (strncasecmp(at, "neuron", 6) == 0)
                        return true;
        return n > 0 && names_device(text, end);
}
