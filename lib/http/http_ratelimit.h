/* Sends at a rate: asks the throttle before a request begins and before each piece of its body, and keeps an account for each connection of what
 * has been asked for and what the kernel has got, so that headers, TLS and what is sent again count. Private to http.c; knows sockets,
 * not libcurl. Without a throttle nothing of it does anything. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "lib/base/list.h"
#include "lib/http/http.h"

typedef struct HttpRateLimit { /* of a pool */
        sd_event *event;       /* borrowed */
        HttpThrottle throttle;
        ListLink wires;   /* the connections that are open */
        unsigned n_calls; /* that have begun: each gets its share */
} HttpRateLimit;

/** @param throttle  NULL = no limit; copied */
void http_ratelimit_init(HttpRateLimit *p, sd_event *event, const HttpThrottle *throttle);
void http_ratelimit_done(HttpRateLimit *p);
/** A connection is about to be made. @return 0, -ENOMEM */
int http_ratelimit_opened(HttpRateLimit *p, int fd);
/** It is about to be closed: its account is settled. Calls on it must have been told (http_ratelimit_lost()). */
void http_ratelimit_closing(HttpRateLimit *p, int fd);

typedef struct HttpBooking {
        uint64_t n;    /* bytes */
        uint64_t cost; /* of all of them, as it was when they were booked */
} HttpBooking;

typedef struct HttpRateLimitCall { /* of a call */
        HttpRateLimit *limit;
        void (*on_ready)(void *userdata);
        void *userdata;
        sd_event_source *timer;
        int fd; /* its connection; -1: none so far */
        bool has_started;
        HttpBooking booked;  /* and it waits for its turn */
        HttpBooking granted; /* it has had its turn, and may send so much */
        HttpBooking head; /* was granted for the request's head, which is not on a connection yet */
        unsigned
                n_stuck; /* so often what was sent before was found to be in the kernel's hands still */
} HttpRateLimitCall;

/** @param on_ready  called from the loop when http_ratelimit_start() or http_ratelimit_read() should be asked again, after they said no */
void http_ratelimit_call_init(HttpRateLimitCall *c, HttpRateLimit *p,
                              void (*on_ready)(void *userdata), void *userdata);
/** Gives back what was not used. */
void http_ratelimit_call_done(HttpRateLimitCall *c);

/** @param n_head  bytes of the request line and its headers, about. @return whether the request may begin */
bool http_ratelimit_start(HttpRateLimitCall *c, size_t n_head);
/** It has a connection, old or new, and is about to be sent. @param local_port  by which the connection is known */
void http_ratelimit_connected(HttpRateLimitCall *c, int local_port);
/** The connection with this fd is about to be closed. */
void http_ratelimit_lost(HttpRateLimitCall *c, int fd);
/** Its answer is there. */
void http_ratelimit_answered(HttpRateLimitCall *c);

/** @param wanted  bytes that could be sent now  @param left  in the whole body. @return how many may be sent now; 0: none */
size_t http_ratelimit_read(HttpRateLimitCall *c, size_t wanted, size_t left);
/** @return whether it waits for its turn, so that nothing moves because of us */
bool http_ratelimit_waits(const HttpRateLimitCall *c);
