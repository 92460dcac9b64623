/* What has been heard of a reply: status, headers, body; measured and bounded. Private to http.c, but for http_reply_header(), which
 * lies here. Plain data: it knows no library, and of sockets only what a reset leaves in them. */
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

typedef struct HttpHeard {
        HttpHeaders headers;
        unsigned status;     /* of the last status line, 1xx as well; 0 = none */
        bool headers_ended;  /* of a status that is not 1xx */
        int64_t told_bytes;  /* Content-Length, -1 = not told */
        uint64_t n_received; /* of the body, kept or not */
        char *body;          /* NUL-terminated when not NULL; owned */
        size_t n_body, n_allocated;
} HttpHeard;

void http_heard_init(HttpHeard *h);
void http_heard_done(HttpHeard *h); /* wipes the body: it may hold credentials */

/** Takes a status line, a header or the empty line at their end, with or without its line ending. Trailers are left out.
 * @return 0, -EFBIG more than HTTP_HEADERS_MAX, -EBADMSG no HTTP, -ENOMEM */
int http_heard_line(HttpHeard *h, const char *line, size_t n);

/** Takes a piece of the body and keeps it. @return 0, -EFBIG it would be more than max_bytes, -ENOMEM */
int http_heard_body(HttpHeard *h, const void *data, size_t n, size_t max_bytes);
/** Takes what came over the connection, from the status line on, in one piece: headers, and the body as far as Content-Length tells of it.
 * @return as the others */
int http_heard_raw(HttpHeard *h, const char *data, size_t n, size_t max_bytes);
/** Takes what a connection that is about to be closed has received and nobody has read: an answer that begins with its status line and is whole as
 * far as it goes, or nothing. Does not block. */
void http_heard_rest(HttpHeard *h, int fd, size_t max_bytes);
/** Counts a piece that somebody else keeps. */
void http_heard_pass(HttpHeard *h, size_t n);

/** @return whether the reply tells its length and all of it is there. @param is_head  to HEAD, which has no body */
bool http_heard_is_whole(const HttpHeard *h, bool is_head);
