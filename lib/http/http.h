/* HTTP/1.1 requests by libcurl's multi-socket interface inside the loop: no thread of ours,
 * nothing blocks (libcurl resolves names in threads of its own). Nothing here knows S3 or
 * credentials; nothing is retried here, and no redirect is followed. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "lib/base/cleanup.h"

typedef struct HttpPool HttpPool;
typedef struct HttpCall HttpCall;
typedef struct HttpReply HttpReply;

/* The limit on what is sent. Called from the loop; must not block. */
typedef struct HttpRateLimitHooks {
        /* Books n bytes, also bytes that were sent already. @param ret_cost what refund expects
         * for all of them, in a unit of the throttle's own. @return after how many microseconds
         * they may be sent; 0 = now */
        uint64_t (*book)(uint64_t n, uint64_t *ret_cost, void *userdata);
        /* What was booked and will not be sent: its share of the cost. */
        void (*refund)(uint64_t cost, void *userdata);
        /* The network is stalled: what is sent when it recovers must not come on top of what was
         * saved up. */
        void (*discard_savings)(void *userdata);
        /* How much all calls together may have booked and not sent at a time; SIZE_MAX = there
         * is no limit now. */
        size_t (*piece)(void *userdata);
        void *userdata;
} HttpRateLimitHooks;

typedef struct HttpPoolOptions { /* copied */
        /* At once, to all hosts together; further requests are queued. 0 = no limit. Kept alive
         * between requests. */
        unsigned max_connections;

        /* PEM file; NULL or "" = the system's */
        const char *ca_file;

        /* `http://host:port`; NULL or "" = the usual environment variables (http_proxy,
         * https_proxy, no_proxy), "-" = none at all */
        const char *proxy;

        uint64_t connect_timeout_usec; /* names, connection, TLS; 0 = 10 s */

        /* No byte moved either way for this long ends a request with HTTP_E_STALLED; 0 = 60 s.
         * Time in which the server works on an answer counts as well. */
        uint64_t stall_usec;

        /* For all that is sent: bodies, headers, TLS, and what is sent again; NULL = no limit.
         * Waiting for it is not a stall. */
        const HttpRateLimitHooks *throttle;

        /* `host:port:address` that are not resolved, NULL-terminated; NULL; for tests */
        const char *const *resolve;
} HttpPoolOptions;

/** @return 0, -ENOMEM, -EOPNOTSUPP when libcurl was built without asynchronous look-ups or without
 *   TLS */
int http_pool_new(HttpPool **ret, sd_event *event, const HttpPoolOptions *options);
/** Cancels all requests: no callback is called afterwards. Takes NULL, returns NULL. */
HttpPool *http_pool_free(HttpPool *p);
DEFINE_CLEANUP(HttpPool, http_pool_free);

typedef struct HttpRequestOptions { /* strings are copied; body is borrowed until on_done or cancel
                                     */
        const char *method;         /* GET PUT POST HEAD DELETE */
        const char *url; /* sent as it is: escaped, with `.` and `..` (CURLOPT_PATH_AS_IS) */
        /* `Name: value` lines, NULL-terminated; Host, Content-Length and User-Agent are made here
         * unless given; no `Expect:`; no CR, LF or NUL (-EINVAL) */
        const char *const *headers;
        const void *body; /* NULL = none */
        size_t body_bytes;

        /* The largest body of a reply that is kept in memory; a larger one is HTTP_E_TOO_LARGE;
         * 0 = 1 MiB. */
        size_t reply_max_bytes;

        /* Receives the body of a reply whose status is 2xx piece by piece; NULL = kept in
         * memory. A negative result ends the call with HTTP_E_STOPPED. A call must not be cancelled
         * from inside. */
        int (*on_data)(HttpCall *call, const void *data, size_t n, void *userdata);

        uint64_t timeout_usec; /* of the whole call; 0 = none but stall_usec */

        /* The request is not idempotent: it gets a new connection, for a request on a kept
         * connection that proves to be dead is sent again. */
        bool never_repeat;

        /* Such a request is not sent again unseen: it ends with HTTP_E_CUT and was_kept_dead, for
         * callers that count their requests. */
        bool reports_kept_dead;

        /* Called once, from the loop, never from inside http_call_new(). The reply is valid until
         * it returns; the call is gone afterwards. New calls may be made from inside; the pool
         * must not be freed from inside. */
        void (*on_done)(const HttpReply *reply, void *userdata);
        void *userdata;
} HttpRequestOptions;

/** Starts a request. @param ret may be NULL; valid until on_done. @return 0, -ENOMEM, -EINVAL (URL
 * or headers are malformed) */
int http_call_new(HttpCall **ret, HttpPool *pool, const HttpRequestOptions *options);
/** Ends it without calling on_done. The connection is closed if it was in use. Not from inside the
 * call's own callbacks. Takes NULL, returns NULL. */
HttpCall *http_call_cancel(HttpCall *call);
/** Bytes of the request's body that were sent so far; starts over when a kept connection was
 * dead. */
uint64_t http_call_sent_bytes(const HttpCall *call);

enum {                     /* HttpReply.error */
       HTTP_E_RESOLVE = 1, /* the host has no address */
       HTTP_E_CONNECT,     /* connection refused, host unreachable, timed out */
       HTTP_E_TLS,         /* handshake or certificate */
       HTTP_E_STALLED,     /* no byte for stall_usec */
       HTTP_E_TIMEOUT,     /* timeout_usec has passed */
       HTTP_E_CUT,         /* the connection ended in the middle, or the reply is no HTTP */
       HTTP_E_TOO_LARGE,
       HTTP_E_STOPPED, /* by on_data */
       HTTP_E_PROXY,
       HTTP_E_MEMORY,
};

struct HttpReply {
        /* 0: the reply is complete, possibly one of 300 and above that came before all of the
         * request was sent (over TLS it is lost when the server resets the connection while we
         * send: HTTP_E_CUT). HTTP_E_CUT and the like may come
         * with a status above 0: what was received before. */
        int error;
        const char *text;   /* with an error: `s3.example:443: connection refused`; else NULL */
        bool was_kept_dead; /* nothing was received on a kept connection: send it on a new one */
        unsigned status;    /* 0 = none was received */
        const char *body;   /* NUL-terminated; "" when on_data had it */
        size_t body_bytes;
        uint64_t sent_bytes, received_bytes; /* of the bodies */
        uint64_t duration_usec;              /* without the time in the queue */
        const struct HttpHeaders *headers;   /* see http_reply_header */
};

/** @param name lower case @return the value of the last header of that name, NULL when there is
 *   none; bounded: 64 KiB of headers */
const char *http_reply_header(const HttpReply *r, const char *name);

/** Once at the start of a program, before threads (curl_global_init). Ignores SIGPIPE for all of
 * the program, as libcurl requires of those who set CURLOPT_NOSIGNAL. libcurl and jansson wipe
 * memory that they free: secrets pass through both. @return 0, -EIO */
int http_global_init(void);
