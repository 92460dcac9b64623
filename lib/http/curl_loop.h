/* libcurl's sockets and timer as sources of sd-event. Private to http.c. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

typedef struct CurlLoop CurlLoop;

/* Only the two doors to libcurl see its header, so its handles (CURL, CURLM, which are void to everybody) are void here. */

typedef struct CurlLoopOptions { /* as in HttpPoolOptions; borrowed while curl_loop_new() runs */
        unsigned max_connections;
        const char *ca_file, *proxy;
        const char *const *resolve;
        uint64_t
                connect_timeout_usec; /* > 0; the user of a handle keeps it, libcurl only learns of it */
} CurlLoopOptions;

typedef struct CurlLoopCallbacks {
        /* A transfer has ended. `code` is a CURLcode; the handle is not in the loop any more. Called from the loop, outside of libcurl. */
        void (*on_ended)(void *easy, int code, void *userdata);
        /* libcurl has had its turn, or curl_loop_wake() was called: now handles can be added and removed. Outside of libcurl. */
        void (*on_turn)(void *userdata);
        /* The socket that a transfer is waiting for, -1 = none any more. Inside of libcurl. */
        void (*on_socket)(void *easy, int fd, void *userdata);
        void *userdata;
} CurlLoopCallbacks;

/** @return 0, -ENOMEM, -EOPNOTSUPP (see http_pool_new), or sd-event's errno */
int curl_loop_new(CurlLoop **ret, sd_event *event, const CurlLoopOptions *options,
                  const CurlLoopCallbacks *callbacks);
/** All handles must have been removed. */
CurlLoop *curl_loop_free(CurlLoop *l);

/** @return a new handle (CURL, the caller's) that knows whom it may talk to, how, and by which way, but not what to say; NULL for lack of memory */
void *curl_loop_handle(const CurlLoop *l);

/** Begins a transfer; nothing is sent before the loop turns. Not from inside of libcurl. @return 0, -ENOMEM */
int curl_loop_add(CurlLoop *l, void *easy);
/** Ends one. Not from inside of libcurl. */
void curl_loop_remove(CurlLoop *l, void *easy);

/** @return whether libcurl is running, so that a caller is in one of its callbacks: it must not be called again from there */
bool curl_loop_is_inside(const CurlLoop *l);

/** @return whether a handle can be removed in the middle of a look-up without waiting for its end */
bool curl_loop_can_leave_lookups(const CurlLoop *l);

/** Has on_turn called in the next turn of the loop. */
void curl_loop_wake(CurlLoop *l);
