/* What can be decided about a request and its reply without libcurl: is the request valid, what
 * does the reply say, which time limit is exceeded, how is an error described. Plain data and pure
 * functions. Private to http.c. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/cleanup.h"
#include "lib/http/http.h"

/* ── the request ── */

/** @return whether the method is known, the body fits it, and the URL can be sent as it is:
 *   printable ASCII without blanks and `#`, at most 32 KiB. url_parse() checks the rest. */
bool http_request_is_valid(const HttpRequestOptions *o);

/** Formats a `Name: value` line as libcurl wants it: an empty value, by which libcurl would leave
 * the header out, by a semicolon.
 * @return 0 and *ret (the caller's), -EINVAL no such line, -ENOMEM */
int http_request_format_header(const char *line, char **ret);

/** @param name  without the colon. @return whether one of the lines is this header */
bool http_request_has_header(const HttpRequestOptions *o, const char *name);

/* ── the reply ── */

#define HTTP_HEADERS_MAX (64 * KIB) /* names and values of one reply */

typedef struct HttpHeaders {
        char *text; /* name NUL value NUL …, names in lower case; owned */
        size_t n, n_allocated;
} HttpHeaders;

typedef struct HttpReplyState { /* what was received so far */
        HttpHeaders headers;
        unsigned status;       /* of the last status line, 1xx as well; 0 = none */
        bool headers_ended;    /* of a status that is not 1xx */
        int64_t content_bytes; /* Content-Length, -1 = unknown */
        uint64_t n_received;   /* of the body, kept or not */
        char *body;            /* NUL-terminated when not NULL; owned */
        size_t n_body, n_allocated;
} HttpReplyState;

void http_reply_init(HttpReplyState *h);
void http_reply_done(HttpReplyState *h); /* wipes the body: it may hold credentials */

/** Parses a status line, a header or the empty line at their end, with or without its line ending.
 * Trailers are ignored.
 * @return 0, -EFBIG more than HTTP_HEADERS_MAX, -EBADMSG no HTTP, -ENOMEM */
int http_reply_add_line(HttpReplyState *h, const char *line, size_t n);

/** Keeps a piece of the body. @return 0, -EFBIG it would be more than max_bytes, -ENOMEM */
int http_reply_add_body(HttpReplyState *h, const void *data, size_t n, size_t max_bytes);

/** Parses what a connection received, from the status line on: headers, and the body up to
 * Content-Length. @return as the others */
int http_reply_add_raw(HttpReplyState *h, const char *data, size_t n, size_t max_bytes);

/** @return whether the reply has a length and all of it was received. @param is_head to HEAD,
 *   which has no body */
bool http_reply_is_complete(const HttpReplyState *h, bool is_head);

/* ── time limits; CLOCK_MONOTONIC in microseconds ── */

typedef enum HttpPhase {
        HTTP_PHASE_WAITING,    /* for its turn: only the limit on all of it runs */
        HTTP_PHASE_RESOLVING,  /* a name may be looked up */
        HTTP_PHASE_CONNECTING, /* the name is known */
        HTTP_PHASE_TRANSFER,   /* the request is on its way, or its reply */
} HttpPhase;

typedef struct HttpTimeout {
        uint64_t connect_timeout_usec, stall_usec, timeout_usec; /* timeout 0 = none */
        HttpPhase phase;
        uint64_t created_usec;
        /* of the last attempt: a second one when a kept connection was dead */
        uint64_t connect_start_usec;
        uint64_t progress_usec; /* when a byte was last seen to move */
        /* bytes in the kernel's send buffer when last checked, -1 = not since a byte moved */
        int n_unsent;
} HttpTimeout;

void http_timeout_enter_phase(HttpTimeout *p, HttpPhase phase, uint64_t now_usec);
void http_timeout_on_progress(HttpTimeout *p, uint64_t now_usec);

/** A slow line empties the kernel's send buffer, several MiB, long after the last byte was handed
 * over: that is progress too.
 * @param n_unsent bytes that the peer has not confirmed, by ioctl(SIOCOUTQ), see tcp(7) */
void http_timeout_on_unsent(HttpTimeout *p, int n_unsent, uint64_t now_usec);

/** @return when to check again, UINT64_MAX = never: there is no limit */
uint64_t http_timeout_next_usec(const HttpTimeout *p, uint64_t now_usec);

/** @return 0, HTTP_E_TIMEOUT, HTTP_E_RESOLVE, HTTP_E_CONNECT, HTTP_E_STALLED */
int http_timeout_check(const HttpTimeout *p, uint64_t now_usec);

/* ── errors ── */

typedef struct HttpErrorCause { /* borrowed */
        int error;              /* HTTP_E_* */
        const char *place;      /* `host:port` */
        const char *cause;      /* by libcurl or the kernel; NULL or "" = none: it took too long */
        const char *curl_text;  /* names a proxy that could not be connected to; NULL = nothing */
        bool was_connected;     /* and then nothing could be sent */
        unsigned proxy_status;  /* by which a proxy refused; 0 = it did not */
        uint64_t connect_timeout_usec, stall_usec, timeout_usec;
        size_t reply_max_bytes;
} HttpErrorCause;

/** libcurl names the peer it could not connect to, `Failed to connect to HOST port N after …`.
 * @return whether that is not `place`: a proxy then, ours or the environment's */
bool http_error_is_of_proxy(const char *curl_text, const char *place);

/** Writes `place: what`, cut at size, without URLs and headers, which may hold secrets. A cause
 * loses its control characters and the capital at its beginning. @return buf */
const char *http_error_explain(const HttpErrorCause *f, char *buf, size_t size);
