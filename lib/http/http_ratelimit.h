/* The limit on what the requests of a pool send; private to lib/http. The throttle itself is the
 * caller's: HttpRateLimitHooks of http.h. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "lib/base/list.h"
#include "lib/http/http.h"

typedef struct HttpRateLimit { /* of a pool */
        sd_event *event;       /* borrowed */
        HttpRateLimitHooks throttle;
        ListLink wires;   /* the connections that are open */
        unsigned n_calls; /* that have started: each gets its share */
} HttpRateLimit;

typedef struct HttpBooking {
        uint64_t n;    /* bytes */
        uint64_t cost; /* of all of them, as it was when they were booked */
} HttpBooking;

typedef struct HttpRateLimitCall { /* of a call */
        HttpRateLimit *limit;
        sd_event_source *timer;
        void (*on_ready)(void *userdata);
        void *userdata;
        int fd; /* its connection; -1: none so far */
        bool has_started;
        HttpBooking booked;  /* not due yet */
        HttpBooking granted; /* may be sent */
        HttpBooking head;    /* granted for the request's head, which has no connection yet */
        /* how often in a row the kernel had not sent what was written before */
        unsigned n_stuck;
} HttpRateLimitCall;

/** @param throttle  copied; NULL = no limit: then nothing below waits or counts */
void http_ratelimit_init(HttpRateLimit *p, sd_event *event, const HttpRateLimitHooks *throttle);
void http_ratelimit_done(HttpRateLimit *p);

/** A socket was made for a connection. @return 0, -ENOMEM */
int http_ratelimit_opened(HttpRateLimit *p, int fd);
/** Its connection is about to be closed: settles what it sent. */
void http_ratelimit_closing(HttpRateLimit *p, int fd);

/** @param on_ready  called from the loop when a wait that the functions below began is over */
void http_ratelimit_call_init(HttpRateLimitCall *c, HttpRateLimit *limit,
                              void (*on_ready)(void *userdata), void *userdata);
/** Refunds what it has booked and not used. */
void http_ratelimit_call_done(HttpRateLimitCall *c);

/** Books the request's head, once. @return whether it may be sent now; else on_ready comes */
bool http_ratelimit_start(HttpRateLimitCall *c, size_t n_head);
/** The request is about to be sent on the connection with this local port. */
void http_ratelimit_connected(HttpRateLimitCall *c, int local_port);
/** @param left  bytes of the body that are still to be sent
 * @return how many of the wanted bytes may be sent now; 0: on_ready comes */
size_t http_ratelimit_read(HttpRateLimitCall *c, size_t wanted, size_t left);
/** The reply is there: nothing more is sent. */
void http_ratelimit_answered(HttpRateLimitCall *c);
/** Its connection, if it is this one, is about to be closed. */
void http_ratelimit_call_closing(HttpRateLimitCall *c, int fd);

bool http_ratelimit_is_waiting(const HttpRateLimitCall *c); /* for a booking to come due */
bool http_ratelimit_is_stuck(const HttpRateLimitCall *c);   /* the kernel sends nothing */
