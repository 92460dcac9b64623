/* What has been received of one reply: the status line, the headers and the body, line by line or
 * piece by piece, as libcurl delivers them or as they lie in a socket's buffer. Interim replies
 * (1xx) are replaced by the reply that follows them; trailers are ignored. The functions are pure:
 * they touch no socket and no libcurl. What a status means is left to the caller.
 *
 * Headers are kept as one text, `name NUL value NUL …`, with the names in lower case. A body may
 * hold secrets, so it is wiped wherever it was. */
#include "lib/http/http_reply.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/digest.h"
#include "lib/base/parse.h"
#include "lib/http/http.h"

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
        char *to = h->text + h->n;
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

/* A status line starts a reply and discards an interim one (1xx). @return whether it is one */
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
        const char *colon = memchr(line, ':', n);
        if (!colon || colon == line)
                return 0; /* a folded line, which RFC 9112 permits to ignore, or garbage */
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
