/* HTTP by libmicrohttpd inside the loop: no threads, its epoll descriptor is a source of ours. The
 * one door to it. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <systemd/sd-event.h>

typedef struct MhdLoop MhdLoop;

#define MHD_LOOP_BODY_MAX (64 * 1024)
#define MHD_LOOP_CONNECTIONS_MAX 64

typedef struct HttpQuery {
        const char *name, *value; /* decoded; value may be "" */
} HttpQuery;

typedef struct MhdRequest {        /* all borrowed for the time of the call */
        const char *method, *path; /* path decoded, without the query */
        const char *host;          /* the Host header; NULL: none (HTTP/1.0) */
        const HttpQuery *queries;
        size_t n_queries;
        const void *body;
        size_t body_bytes;
} MhdRequest;

typedef struct HttpResponse {
        unsigned status;
        const char *content_type; /* static */
        char *body;               /* the handler's malloc; freed by mhd_loop */
        size_t body_bytes;
        const char *allow; /* Allow: header for 405, static; may be NULL */
} HttpResponse;

/** Answers one request; must fill *ret (an out-of-memory answer is a status of 500 without a
 * body). */
typedef void (*HttpHandler)(const MhdRequest *request, HttpResponse *ret, void *userdata);

/** Serves on a listening stream socket. A connection has half a minute for each request and its
 * response, however often a byte moves.
 * @param fd  listening socket; taken over on success. AF_UNIX or TCP
 * @return 0, -ENOMEM, -EIO when libmicrohttpd refuses */
int mhd_loop_new(MhdLoop **ret, sd_event *event, int fd, HttpHandler handler, void *userdata);
MhdLoop *mhd_loop_free(MhdLoop *m);
