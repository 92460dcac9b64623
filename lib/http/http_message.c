#include "lib/http/http_message.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "lib/base/clock.h"
#include "lib/base/digest.h"
#include "lib/base/parse.h"

/* A key of 1,024 bytes is 3 KiB when all of it is escaped; queries may have several such. */
#define URL_MAX (32 * KIB)

static bool is_method(const char *method) {
        static const char *const methods[] = { "GET", "PUT", "POST", "HEAD", "DELETE" };

        for (size_t i = 0; i < ELEMENTSOF(methods); i++)
                if (strcmp(method, methods[i]) == 0)
                        return true;
        return false;
}

static bool is_url(const char *url) {
        size_t n = 0;

        for (; url[n] && n <= URL_MAX; n++)
                if (url[n] <= ' ' || url[n] >= 0x7f ||
                    url[n] == '#') /* char may be signed or not */
                        return false;
        return n > 0 && n <= URL_MAX;
}

bool http_request_is_valid(const HttpRequestOptions *o) {
        if (!is_method(o->method) || !is_url(o->url) || !o->on_done)
                return false;
        if (o->body)
                return strcmp(o->method, "HEAD") != 0;
        return o->body_bytes == 0;
}

static bool is_token_char(char c) { /* RFC 9110, 5.6.2 */
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               (c && strchr("!#$%&'*+-.^_`|~", c));
}

int http_request_format_header(const char *line, char **ret) {
        size_t n_name = 0;
        char *copy;

        while (is_token_char(line[n_name]))
                n_name++;
        if (n_name == 0 || line[n_name] != ':' || strpbrk(line, "\r\n"))
                return -EINVAL;
        copy = strdup(line);
        if (!copy)
                return -ENOMEM;
        if (copy[n_name + 1 + strspn(copy + n_name + 1, " \t")] == '\0') {
                copy[n_name] = ';';
                copy[n_name + 1] = '\0';
        }
        *ret = copy;
        return 0;
}

bool http_request_has_header(const HttpRequestOptions *o, const char *name) {
        size_t n = strlen(name);

        for (const char *const *line = o->headers; line && *line; line++)
                if (strncasecmp(*line, name, n) == 0 && (*line)[n] == ':')
                        return true;
        return false;
}

void http_reply_init(HttpReplyState *h) {
        *h = (HttpReplyState){ .content_bytes = -1 };
}

static void free_body(HttpReplyState *h) {
        if (h->body)
                digest_wipe(h->body, h->n_allocated);
        free(h->body);
        h->body = NULL;
        h->n_body = h->n_allocated = 0;
}

void http_reply_done(HttpReplyState *h) {
        free_body(h);
        free(h->headers.text);
        http_reply_init(h);
}

/* ── headers ── */

/* Adds name NUL value NUL. */
static int headers_add(HttpHeaders *h, const char *line, size_t n_name, size_t n_line) {
        const char *value = line + n_name + 1, *end = line + n_line;
        size_t n_value, n;
        char *to;

        while (value < end && (*value == ' ' || *value == '\t'))
                value++;
        while (value < end && (end[-1] == ' ' || end[-1] == '\t'))
                end--;
        n_value = (size_t)(end - value);
        n = n_name + n_value + 2; /* within n_line + 2 */
        if (n > HTTP_HEADERS_MAX - h->n)
                return -EFBIG;
        if (n > h->n_allocated - h->n) {
                size_t n_allocated = MAX(h->n + n, 2 * h->n_allocated + 1024);
                char *text = realloc(h->text, n_allocated);

                if (!text)
                        return -ENOMEM;
                h->text = text;
                h->n_allocated = n_allocated;
        }
        to = h->text + h->n;
        for (size_t i = 0; i < n_name; i++)
                to[i] = line[i] >= 'A' && line[i] <= 'Z' ? (char)(line[i] - 'A' + 'a') : line[i];
        to[n_name] = '\0';
        memcpy(to + n_name + 1, value, n_value);
        to[n_name + 1 + n_value] = '\0';
        h->n += n;
        return 0;
}

static const char *headers_get(const HttpHeaders *h, const char *name) {
        const char *found = NULL;

        for (size_t at = 0; at < h->n;) {
                const char *value = h->text + at + strlen(h->text + at) + 1;

                if (strcmp(h->text + at, name) == 0)
                        found = value;
                at = (size_t)(value - h->text) + strlen(value) + 1;
        }
        return found;
}

const char *http_reply_header(const HttpReply *r, const char *name) {
        return headers_get(r->headers, name);
}

/* A status line begins a reply: what an interim one (1xx) had said is forgotten. @return whether
 * it is one */
static bool parse_status(HttpReplyState *h, const char *line, size_t n) {
        const char *blank = memchr(line, ' ', n);
        unsigned status = 0;

        if (n < 5 || memcmp(line, "HTTP/", 5) != 0 || !blank)
                return false;
        for (const char *p = blank + 1; p < line + n && *p >= '0' && *p <= '9' && status < 1000;
             p++)
                status = 10 * status + (unsigned)(*p - '0');
        if (status < 100 || status > 999)
                return false;
        h->status = status;
        h->headers.n = 0;
        h->headers_ended = false;
        return true;
}

static void end_headers(HttpReplyState *h) {
        const char *length = headers_get(&h->headers, "content-length");
        uint64_t n;

        if (h->status < 200)
                return;
        h->headers_ended = true;
        if (h->status == 204 || h->status == 304) /* never have a body */
                h->content_bytes = 0;
        else if (!headers_get(&h->headers, "transfer-encoding") && length &&
                 parse_u64_range(length, 0, INT64_MAX, &n) == 0)
                h->content_bytes = (int64_t)n;
}

int http_reply_add_line(HttpReplyState *h, const char *line, size_t n) {
        const char *colon;

        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r'))
                n--;
        if (h->headers_ended)
                return 0; /* trailers, and the empty line behind them */
        if (n == 0) {
                end_headers(h);
                return 0;
        }
        if (memchr(line, '\0', n))
                return -EBADMSG;
        if (h->status < 200 && parse_status(h, line, n))
                return 0;
        if (h->status == 0)
                return -EBADMSG;
        colon = memchr(line, ':', n);
        if (!colon || colon == line)
                return 0; /* a folded line, which RFC 9112 lets us ignore, or rubbish */
        return headers_add(&h->headers, line, (size_t)(colon - line), n);
}

/* ── body ── */

int http_reply_add_body(HttpReplyState *h, const void *data, size_t n, size_t max_bytes) {
        if (n > max_bytes - h->n_body)
                return -EFBIG;
        if (h->n_body + n >= h->n_allocated) {
                size_t n_body = h->n_body, n_allocated = MAX(n_body + n, 2 * n_body);
                char *body;

                if (h->content_bytes > 0 && (uint64_t)h->content_bytes <= max_bytes)
                        n_allocated = MAX(n_allocated, (size_t)h->content_bytes);
                body = malloc(++n_allocated); /* not realloc(): the old place would keep a copy */
                if (!body)
                        return -ENOMEM;
                if (h->body)
                        memcpy(body, h->body, n_body);
                free_body(h);
                h->body = body;
                h->n_body = n_body;
                h->n_allocated = n_allocated;
        }
        memcpy(h->body + h->n_body, data, n);
        h->n_body += n;
        h->body[h->n_body] = '\0';
        h->n_received += n;
        return 0;
}

int http_reply_add_raw(HttpReplyState *h, const char *data, size_t n, size_t max_bytes) {
        while (!h->headers_ended) {
                const char *end = memchr(data, '\n', n);
                size_t n_line = end ? (size_t)(end - data) + 1 : 0;
                int r;

                if (!end)
                        return 0;
                r = http_reply_add_line(h, data, n_line);
                if (r < 0)
                        return r;
                data += n_line;
                n -= n_line;
        }
        if (h->content_bytes < 0)
                return 0;
        return http_reply_add_body(h, data, (size_t)MIN((uint64_t)n, (uint64_t)h->content_bytes),
                                   max_bytes);
}

bool http_reply_is_complete(const HttpReplyState *h, bool is_head) {
        return h->headers_ended &&
               (is_head || (h->content_bytes >= 0 && h->n_received == (uint64_t)h->content_bytes));
}

void http_timeout_enter_phase(HttpTimeout *p, HttpPhase phase, uint64_t now_usec) {
        if (phase == HTTP_PHASE_RESOLVING ||
            (phase == HTTP_PHASE_CONNECTING && p->phase == HTTP_PHASE_TRANSFER))
                p->connect_start_usec = now_usec;
        if (phase == HTTP_PHASE_TRANSFER)
                http_timeout_on_progress(p, now_usec);
        p->phase = phase;
}

void http_timeout_on_progress(HttpTimeout *p, uint64_t now_usec) {
        p->progress_usec = now_usec;
        p->n_unsent = -1;
}

void http_timeout_on_unsent(HttpTimeout *p, int n_unsent, uint64_t now_usec) {
        if (p->n_unsent >= 0 && n_unsent < p->n_unsent)
                p->progress_usec = now_usec;
        p->n_unsent = n_unsent;
}

static uint64_t later(uint64_t usec, uint64_t span_usec) {
        return span_usec > USEC_INFINITY - usec ? USEC_INFINITY : usec + span_usec;
}

/* When the phase's own limit is reached. */
static uint64_t phase_end(const HttpTimeout *p) {
        switch (p->phase) {
        case HTTP_PHASE_RESOLVING:
        case HTTP_PHASE_CONNECTING:
                return later(p->connect_start_usec, p->connect_timeout_usec);
        case HTTP_PHASE_TRANSFER:
                return later(p->progress_usec, p->stall_usec);
        case HTTP_PHASE_WAITING:
        default:
                return USEC_INFINITY;
        }
}

static uint64_t total_end(const HttpTimeout *p) {
        return p->timeout_usec > 0 ? later(p->created_usec, p->timeout_usec) : USEC_INFINITY;
}

uint64_t http_timeout_next_usec(const HttpTimeout *p, uint64_t now_usec) {
        uint64_t end = phase_end(p), whole = total_end(p);

        if (p->phase ==
            HTTP_PHASE_TRANSFER) { /* four times as often, to see the kernel's buffer get emptier */
                uint64_t check_usec = later(now_usec, p->stall_usec / 4);

                end = MIN(end, check_usec);
        }
        return MIN(end, whole);
}

int http_timeout_check(const HttpTimeout *p, uint64_t now_usec) {
        if (now_usec >= total_end(p))
                return HTTP_E_TIMEOUT;
        if (now_usec < phase_end(p))
                return 0;
        switch (p->phase) {
        case HTTP_PHASE_RESOLVING:
                return HTTP_E_RESOLVE;
        case HTTP_PHASE_CONNECTING:
                return HTTP_E_CONNECT;
        case HTTP_PHASE_TRANSFER:
                return HTTP_E_STALLED;
        case HTTP_PHASE_WAITING:
        default:
                return 0;
        }
}

/* `host:port` of whom libcurl could not connect to. @return whether it does */
static bool parse_peer(const char *curl_text, char *buf, size_t size) {
        static const char beginning[] = "Failed to connect to ", between[] = " port ";
        const char *host = curl_text ? curl_text + strlen(beginning) : "", *port;

        if (!curl_text || strncmp(curl_text, beginning, strlen(beginning)) != 0 ||
            !(port = strstr(host, between)))
                return false;
        int n = (int)(port - host);
        port += strlen(between);
        (void)snprintf(buf, size, memchr(host, ':', (size_t)n) ? "[%.*s]:%.*s" : "%.*s:%.*s", n,
                       host, (int)strspn(port, "0123456789"), port);
        return true;
}

bool http_error_is_of_proxy(const char *curl_text, const char *place) {
        char there[320];

        return curl_text && parse_peer(curl_text, there, sizeof there) &&
               (strcasecmp(there, place) != 0 || strstr(curl_text, " via "));
}

static const char *connect_sentence(const HttpErrorCause *f, char *buf, size_t size,
                                    const char *span) {
        if (f->cause && *f->cause)
                (void)snprintf(buf, size, "%s", f->cause);
        else if (f->error == HTTP_E_RESOLVE)
                (void)snprintf(buf, size, "the name was not found within %s", span);
        else
                (void)snprintf(buf, size, "%s within %s",
                               f->was_connected ? "connected, but nothing could be sent"
                                                : "no answer",
                               span);
        return buf;
}

static const char *size_sentence(const HttpErrorCause *f, char *buf, size_t size) {
        char body[PARSE_FORMAT_SIZE], headers[PARSE_FORMAT_SIZE];

        (void)snprintf(buf, size, "the reply is larger than %s, or its headers than %s",
                       parse_format_bytes(body, f->reply_max_bytes),
                       parse_format_bytes(headers, HTTP_HEADERS_MAX));
        return buf;
}

/* @param buf  for sentences that are put together */
static const char *sentence(const HttpErrorCause *f, char *buf, size_t size) {
        const char *cause = f->cause && *f->cause ? f->cause : "unknown cause";
        char span[PARSE_FORMAT_SIZE], proxy[320];

        switch (f->error) {
        case HTTP_E_RESOLVE:
        case HTTP_E_CONNECT:
                return connect_sentence(f, buf, size,
                                        parse_format_duration(span, f->connect_timeout_usec));
        case HTTP_E_STALLED:
                (void)snprintf(buf, size, "nothing moved for %s",
                               parse_format_duration(span, f->stall_usec));
                return buf;
        case HTTP_E_TIMEOUT:
                (void)snprintf(buf, size, "not done within %s",
                               parse_format_duration(span, f->timeout_usec));
                return buf;
        case HTTP_E_TOO_LARGE:
                return size_sentence(f, buf, size);
        case HTTP_E_STOPPED:
                return "stopped by its receiver";
        case HTTP_E_PROXY:
                if (f->proxy_status > 0)
                        (void)snprintf(buf, size, "the proxy refuses with status %u",
                                       f->proxy_status);
                else if (parse_peer(f->curl_text, proxy, sizeof proxy))
                        (void)snprintf(buf, size, "the proxy %s cannot be used: %s", proxy, cause);
                else
                        (void)snprintf(buf, size, "the proxy cannot be used: %s", cause);
                return buf;
        case HTTP_E_MEMORY:
                return "out of memory";
        default:
                return cause;
        }
}

const char *http_error_explain(const HttpErrorCause *f, char *buf, size_t size) {
        char clean[512], put_together[1024];
        HttpErrorCause tidy = *f;

        (void)snprintf(clean, sizeof clean, "%s", f->cause ? f->cause : "");
        for (char *p = clean; *p; p++) /* a server may have had a hand in it */
                if ((unsigned char)*p < ' ' || *p == 0x7f)
                        *p = ' ';
        if (clean[0] >= 'A' && clean[0] <= 'Z' && clean[1] >= 'a' && clean[1] <= 'z')
                clean[0] = (char)(clean[0] - 'A' + 'a');
        tidy.cause = clean;
        (void)snprintf(buf, size, "%s: %s", f->place,
                       sentence(&tidy, put_together, sizeof put_together));
        return buf;
}
