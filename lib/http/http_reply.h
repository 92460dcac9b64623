/* What has been received of one reply; private to lib/http. The reply that callers see is HttpReply
 * of http.h. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/cleanup.h"

#define HTTP_HEADERS_MAX (64 * KIB) /* names and values of one reply */

typedef struct HttpHeaders {
        char *text; /* name NUL value NUL …, names in lower case; owned */
        size_t n, n_allocated;
} HttpHeaders;

typedef struct HttpReplyState {
        HttpHeaders headers;
        unsigned status;       /* of the last status line, 1xx as well; 0 = none */
        bool headers_ended;    /* of a status that is not 1xx */
        int64_t content_bytes; /* Content-Length, -1 = unknown */
        uint64_t n_received;   /* of the body, kept or not */
        char *body;            /* NUL-terminated when not NULL; owned */
        size_t n_body, n_allocated;
} HttpReplyState;

void http_reply_init(HttpReplyState *h);
/** Wipes the body, frees all of it, and makes it as good as new. */
void http_reply_done(HttpReplyState *h);

/** Parses a status line, a header or the empty line at their end. Trailers are ignored.
 * @return 0, -EFBIG more than HTTP_HEADERS_MAX, -EBADMSG no HTTP, -ENOMEM */
int http_reply_add_line(HttpReplyState *h, const char *line, size_t n);
/** Appends a piece of the body. @return 0, -EFBIG more than max_bytes in all, -ENOMEM */
int http_reply_add_body(HttpReplyState *h, const void *data, size_t n, size_t max_bytes);
/** Parses what a connection has received, from the status line on: the headers, and the body up to
 * Content-Length. @return as the two above */
int http_reply_add_raw(HttpReplyState *h, const char *data, size_t n, size_t max_bytes);

/** @return whether the headers have ended and all of the body is there, as far as Content-Length
 *   tells; a reply to HEAD has none */
bool http_reply_is_complete(const HttpReplyState *h, bool is_head);
