/* Requests to the agent's API over its unix socket: the command line's wrapper of libcurl. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "lib/base/cleanup.h"

typedef struct ClientFailure {
        int error;        /* positive errno of the connection, 0 = none known */
        bool timed_out;   /* connected, but no answer in time */
        const char *text; /* static, or valid until the next call of strerror() */
} ClientFailure;

typedef struct ClientReply {
        long status;
        char *body; /* NUL-terminated; owned */
        size_t n_body;
        json_t *json;      /* NULL when the body is no JSON; owned */
        ClientFailure why; /* only with CLIENT_E_NO_AGENT; nothing else is set then */
} ClientReply;

void client_reply_done(ClientReply *r);

#define CLIENT_TIMEOUT_MSEC 30000

/** Sends `method path` and waits for the answer.
 * @param timeout_msec  > 0, usually CLIENT_TIMEOUT_MSEC
 * @return 0, with any status; CLIENT_E_NO_AGENT: no process answers on the socket in HTTP, ret->why
 *   says why; CLIENT_E_TOO_LARGE: the answer has more than 256 MiB; -errno */
enum { CLIENT_E_NO_AGENT = 1, CLIENT_E_TOO_LARGE = 2 };
int client_request(const char *socket, const char *method, const char *path, long timeout_msec,
                   ClientReply *ret);

/** Escapes a value for a URL. @return the caller's, NULL for lack of memory */
char *client_escape(const char *value);
