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

typedef struct HttpPace { /* of a pool */
        sd_event *event;  /* borrowed */
        HttpThrottle throttle;
        ListLink wires;   /* the connections that are open */
        unsigned n_calls; /* that have begun: each gets its share */
} HttpPace;

/** @param throttle  NULL = no limit; copied */
void http_pace_init(HttpPace *p, sd_event *event, const HttpThrottle *throttle);
void http_pace_done(HttpPace *p);
/** A connection is about to be made. @return 0, -ENOMEM */
int http_pace_opened(HttpPace *p, int fd);
/** It is about to be closed: its account is settled. Calls on it must have been told (http_pace_lost()). */
void http_pace_closing(HttpPace *p, int fd);

typedef struct HttpPaid {
        uint64_t n;    /* bytes */
        uint64_t cost; /* of all of them, as it was when they were booked */
} HttpPaid;

typedef struct HttpPaceCall { /* of a call */
        HttpPace *pace;
        void (*on_go)(void *userdata);
        void *userdata;
        sd_event_source *timer;
        int fd; /* its connection; -1: none so far */
        bool has_begun;
        HttpPaid booked;  /* and it waits for its turn */
        HttpPaid granted; /* it has had its turn, and may send so much */
        HttpPaid head;    /* was granted for the request's head, which is not on a connection yet */
        unsigned
                n_stuck; /* so often what was sent before was found to be in the kernel's hands still */
} HttpPaceCall;

/** @param on_go  called from the loop when http_pace_begin() or http_pace_read() should be asked again, after they said no */
void http_pace_call_init(HttpPaceCall *c, HttpPace *p, void (*on_go)(void *userdata),
                         void *userdata);
/** Gives back what was not used. */
void http_pace_call_done(HttpPaceCall *c);

/** @param n_head  bytes of the request line and its headers, about. @return whether the request may begin */
bool http_pace_begin(HttpPaceCall *c, size_t n_head);
/** It has a connection, old or new, and is about to be sent. @param local_port  by which the connection is known */
void http_pace_connected(HttpPaceCall *c, int local_port);
/** The connection with this fd is about to be closed. */
void http_pace_lost(HttpPaceCall *c, int fd);
/** Its answer is there. */
void http_pace_answered(HttpPaceCall *c);

/** @param wanted  bytes that could be sent now  @param left  in the whole body. @return how many may be sent now; 0: none */
size_t http_pace_read(HttpPaceCall *c, size_t wanted, size_t left);
/** @return whether it waits for its turn, so that nothing moves because of us */
bool http_pace_waits(const HttpPaceCall *c);
