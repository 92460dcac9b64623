/* libcurl's multi handle inside the sd-event loop; private to lib/http. */
#pragma once

#include <curl/curl.h>
#include <stdbool.h>
#include <systemd/sd-event.h>

#include "lib/base/cleanup.h"

typedef struct CurlLoop CurlLoop;

typedef struct CurlLoopHandlers { /* borrowed */
        /* The socket that this handle's transfer waits on now; -1 = none. libcurl has handles of
         * its own. Called from inside of libcurl. */
        void (*on_socket)(CURL *easy, int fd);
        /* A transfer has ended; its handle is no longer libcurl's. */
        void (*on_ended)(CURL *easy, CURLcode code);
        /* libcurl was called and has returned: handles can be added and removed. */
        void (*on_called)(void *userdata);
} CurlLoopHandlers;

/** @param event  borrowed
 * @param max_connections  at once, to all hosts, used or not; 0 = no limit
 * @return 0, -ENOMEM, -errno of sd-event */
int curl_loop_new(CurlLoop **ret, sd_event *event, unsigned max_connections,
                  const CurlLoopHandlers *handlers, void *userdata);
/** Closes the connections that are kept alive. All handles must have been removed. Takes NULL,
 * returns NULL. */
CurlLoop *curl_loop_free(CurlLoop *l);
DEFINE_CLEANUP(CurlLoop, curl_loop_free);

/** Starts a handle's transfer. @return 0, -ENOMEM */
int curl_loop_add(CurlLoop *l, CURL *easy);
/** Stops it, and closes its connection if that is in use. */
void curl_loop_remove(CurlLoop *l, CURL *easy);
/** @return whether the caller is a callback of libcurl, from which libcurl must not be called */
bool curl_loop_is_inside(const CurlLoop *l);
