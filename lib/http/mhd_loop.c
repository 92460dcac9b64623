/* HTTP by libmicrohttpd inside the loop. Only complete requests reach the handler: what is too
 * large or malformed is refused here. */
#include "lib/http/mhd_loop.h"

#include <errno.h>
#include <fcntl.h>
#include <microhttpd.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/list.h"
#include "lib/event/listener.h"

#define CONNECTION_BYTES                                                                           \
        (32 * 1024) /* a connection's memory: request line and headers must fit                    \
                     */
/* For a request and its response, from the connection's start or the end of the one before. */
#define REQUEST_SEC 30
#define CONNECTIONS_PER_ADDRESS                                                                    \
        (MHD_LOOP_CONNECTIONS_MAX / 8) /* TCP: a few clients cannot take all slots */
#define QUERIES_MAX 16
#define DISCARD_MAX                                                                                \
        (16 * MHD_LOOP_BODY_MAX) /* of a body that is too large; then the connection is closed */

struct MhdLoop {
        struct MHD_Daemon *daemon;
        sd_event *event; /* borrowed */
        Listener *listener;
        sd_event_source *io, *timer;
        ListLink clients;
        HttpHandler handler;
        void *userdata;
};

typedef struct Client { /* a connection */
        ListLink link;
        int fd;            /* libmicrohttpd's */
        uint64_t end_usec; /* CLOCK_MONOTONIC: of the time that its request has */
} Client;

/* One request; libmicrohttpd keeps it from the request line to the end of the response. */
typedef struct Exchange {
        bool began, has_nul;
        char *body; /* owned */
        size_t body_bytes, discarded_bytes;
} Exchange;

/* ── the loop ── */

static uint64_t now_usec(const MhdLoop *m) {
        uint64_t now = 0;
        (void)sd_event_now(m->event, CLOCK_MONOTONIC, &now); /* fails only in another process */
        return now;
}

/* libmicrohttpd closes what has ended. @return until the next one's time is over; USEC_INFINITY */
static uint64_t end_late_clients(MhdLoop *m) {
        uint64_t now = now_usec(m), next = USEC_INFINITY;

        LIST_FOREACH (link, &m->clients) {
                const Client *c = CONTAINER_OF(link, Client, link);
                if (c->end_usec <= now)
                        (void)shutdown(c->fd, SHUT_RDWR); /* ENOTCONN: it has ended already */
                else
                        next = MIN(next, c->end_usec - now);
        }
        return next;
}

/* Sets the timer as libmicrohttpd requires: none while there are no connections. */
static void arm(MhdLoop *m) {
        MHD_UNSIGNED_LONG_LONG msec;
        uint64_t next = end_late_clients(m);

        if (MHD_get_timeout(m->daemon, &msec) == MHD_YES) {
                uint64_t idle = MIN((uint64_t)msec, UINT64_C(1000) * REQUEST_SEC) * USEC_PER_MSEC;
                next = MIN(next, idle);
        }
        if (next != USEC_INFINITY) /* these fail only for a source of another process */
                (void)sd_event_source_set_time_relative(m->timer, next);
        (void)sd_event_source_set_enabled(m->timer,
                                          next == USEC_INFINITY ? SD_EVENT_OFF : SD_EVENT_ONESHOT);
}

static unsigned n_connections(const MhdLoop *m) {
        const union MHD_DaemonInfo *info =
                MHD_get_daemon_info(m->daemon, MHD_DAEMON_INFO_CURRENT_CONNECTIONS);

        return info ? info->num_connections : 0;
}

static void turn(MhdLoop *m) {
        (void)MHD_run(m->daemon); /* MHD_NO only for a daemon with threads of its own */
        listener_hold(m->listener, n_connections(m) >= MHD_LOOP_CONNECTIONS_MAX);
        arm(m);
}

static int on_io(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        (void)s, (void)fd, (void)revents;
        turn(userdata);
        return 0;
}

static int on_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        (void)s, (void)usec;
        turn(userdata);
        return 0;
}

/* ── connections ── */

/* Not by libmicrohttpd, which spins at EMFILE. */
static void on_accepted(int fd, void *userdata) {
        MhdLoop *m = userdata;
        struct sockaddr_storage address;
        socklen_t n = sizeof address;
        if (getpeername(fd, (struct sockaddr *)&address, &n) < 0) {
                (void)close(fd); /* it is gone already */
                return;
        }
        /* Closes what it refuses: too many of one address, no memory. */
        (void)MHD_add_connection(m->daemon, fd, (struct sockaddr *)&address, n);
        turn(m);
}

static void on_connection(void *cls, struct MHD_Connection *connection, void **context,
                          enum MHD_ConnectionNotificationCode code) {
        const union MHD_ConnectionInfo *info =
                MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        MhdLoop *m = cls;
        Client *c = *context;

        if (code == MHD_CONNECTION_NOTIFY_STARTED && info && (c = calloc(1, sizeof *c))) {
                c->fd = info->connect_fd;
                c->end_usec = now_usec(m) + REQUEST_SEC * USEC_PER_SEC;
                list_append(&m->clients, &c->link);
                *context = c;
        } else if (code == MHD_CONNECTION_NOTIFY_CLOSED && c) {
                list_remove(&c->link);
                free(c);
                *context = NULL;
        }
}

/* ── requests ── */

/* Called with the request line, before anything is decoded. @return the Exchange that comes back
 * as *con_cls */
static void *on_request_line(void *cls, const char *uri, struct MHD_Connection *connection) {
        Exchange *x = calloc(1, sizeof *x);

        (void)cls, (void)connection;
        if (x)
                x->has_nul = strstr(uri, "%00") !=
                             NULL; /* decoded, it would end the path before its end */
        return x;
}

static void on_completed(void *cls, struct MHD_Connection *connection, void **con_cls,
                         enum MHD_RequestTerminationCode code) {
        const union MHD_ConnectionInfo *info =
                MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
        Client *c = info ? info->socket_context : NULL;
        Exchange *x = *con_cls;

        (void)code;
        if (c)
                c->end_usec = now_usec(cls) + REQUEST_SEC * USEC_PER_SEC;
        if (x)
                free(x->body);
        free(x);
        *con_cls = NULL;
}

/* Owns response->body. */
static enum MHD_Result answer(struct MHD_Connection *connection, HttpResponse *response) {
        enum MHD_Result done = MHD_YES;

        struct MHD_Response *r = MHD_create_response_from_buffer(
                response->body ? response->body_bytes : 0, response->body,
                response->body ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);
        if (!r) {
                free(response->body);
                return MHD_NO; /* closes the connection */
        }
        if (response->content_type)
                done &= MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE,
                                                response->content_type);
        if (response->allow)
                done &= MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, response->allow);
        done &= MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
        done &= MHD_add_response_header(r, "X-Content-Type-Options",
                                        "nosniff"); /* bodies quote what others sent */
        if (done == MHD_YES)
                done = MHD_queue_response(connection, response->status, r);
        MHD_destroy_response(r);
        return done;
}

static enum MHD_Result refuse(struct MHD_Connection *connection, unsigned status,
                              const char *message) {
        HttpResponse response = { .status = status,
                                  .content_type = "application/json",
                                  .body = strdup(message) };

        response.body_bytes = response.body ? strlen(message) : 0;
        return answer(connection, &response);
}

static enum MHD_Result refuse_body(struct MHD_Connection *connection) {
        _Static_assert(MHD_LOOP_BODY_MAX == 64 * 1024, "the text says 64 KiB");
        return refuse(connection, 413,
                      "{\"error\": {\"code\": \"too_large\", \"message\": \"the body is larger "
                      "than 64 KiB\"}}\n");
}

typedef struct QueryList {
        HttpQuery items[QUERIES_MAX];
        size_t n;
        bool too_many, has_nul;
} QueryList;

static enum MHD_Result on_query(void *cls, enum MHD_ValueKind kind, const char *name,
                                const char *value) {
        QueryList *l = cls;

        (void)kind;
        if (l->n == QUERIES_MAX) {
                l->too_many = true;
                return MHD_NO;
        }
        l->items[l->n++] = (HttpQuery){ .name = name, .value = value ? value : "" };
        return MHD_YES;
}

static enum MHD_Result serve(MhdLoop *m, struct MHD_Connection *connection, MhdRequest *request) {
        HttpResponse response = { .status = MHD_HTTP_INTERNAL_SERVER_ERROR };
        QueryList queries = { .n = 0 };

        (void)MHD_get_connection_values(connection, MHD_GET_ARGUMENT_KIND, on_query,
                                        &queries); /* the number: we count ourselves */
        if (queries.too_many)
                return refuse(connection, MHD_HTTP_BAD_REQUEST,
                              "{\"error\": {\"code\": \"bad_request\", \"message\": \"more than 16 "
                              "query parameters\"}}\n");
        request->host =
                MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST);
        request->queries = queries.items;
        request->n_queries = queries.n;
        m->handler(request, &response, m->userdata);
        return answer(connection, &response);
}

/* Adds to the body. What exceeds the bound is discarded, and past DISCARD_MAX the connection is
 * closed. */
static enum MHD_Result append_body(Exchange *x, const char *data, size_t *n) {
        if (x->discarded_bytes > 0 || *n > MHD_LOOP_BODY_MAX - x->body_bytes) {
                x->discarded_bytes += *n;
                *n = 0;
                return x->discarded_bytes > DISCARD_MAX ? MHD_NO : MHD_YES;
        }
        char *body = realloc(x->body, x->body_bytes + *n);
        if (!body)
                return MHD_NO;
        memcpy(body + x->body_bytes, data, *n);
        x->body = body;
        x->body_bytes += *n;
        *n = 0;
        return MHD_YES;
}

/* @return whether the request announces a body that is too large: then it need not be sent */
static bool is_too_large(struct MHD_Connection *connection) {
        const char *length = MHD_lookup_connection_value(connection, MHD_HEADER_KIND,
                                                         MHD_HTTP_HEADER_CONTENT_LENGTH);

        return length && strtoull(length, NULL, 10) >
                                 MHD_LOOP_BODY_MAX; /* libmicrohttpd has checked its form */
}

/* Called for a request's headers, then for each piece of its body, then without one: the request
 * is complete. */
static enum MHD_Result on_request(void *cls, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *n, void **con_cls) {
        Exchange *x = *con_cls;
        MhdRequest request;

        (void)version;
        if (!x)
                return MHD_NO; /* no memory at the request line */
        if (!x->began) {
                x->began = true;
                return is_too_large(connection) ? refuse_body(connection) : MHD_YES;
        }
        if (*n > 0)
                return append_body(x, data, n);
        if (x->discarded_bytes > 0)
                return refuse_body(connection);
        if (x->has_nul)
                return refuse(connection, MHD_HTTP_BAD_REQUEST,
                              "{\"error\": {\"code\": \"bad_request\", \"message\": \"'%00' in the "
                              "URL\"}}\n");
        request = (MhdRequest){
                .method = method, .path = url, .body = x->body, .body_bytes = x->body_bytes
        };
        return serve(cls, connection, &request);
}

/* ── life ── */

DEFINE_CLEANUP(MhdLoop, mhd_loop_free);

static int start(MhdLoop *m) {
        m->daemon = MHD_start_daemon(
                MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET, 0, NULL, NULL, on_request, m, /* */
                MHD_OPTION_CONNECTION_LIMIT, (unsigned)MHD_LOOP_CONNECTIONS_MAX,        /* */
                MHD_OPTION_PER_IP_CONNECTION_LIMIT, (unsigned)CONNECTIONS_PER_ADDRESS,
                MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES, /* */
                MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)REQUEST_SEC,         /* */
                MHD_OPTION_NOTIFY_CONNECTION, on_connection, m,               /* */
                MHD_OPTION_STRICT_FOR_CLIENT, 1,                              /* */
                MHD_OPTION_URI_LOG_CALLBACK, on_request_line, m,              /* */
                MHD_OPTION_NOTIFY_COMPLETED, on_completed, m,                 /* */
                MHD_OPTION_END);
        return m->daemon ? 0 : -EIO;
}

int mhd_loop_new(MhdLoop **ret, sd_event *event, int fd, HttpHandler handler, void *userdata) {
        _cleanup_(mhd_loop_freep) MhdLoop *m = calloc(1, sizeof *m);
        const union MHD_DaemonInfo *info;

        if (!m)
                return -ENOMEM;
        m->event = event;
        list_init(&m->clients);
        m->handler = handler;
        m->userdata = userdata;
        int r = start(m);
        if (r < 0)
                return r;
        info = MHD_get_daemon_info(m->daemon, MHD_DAEMON_INFO_EPOLL_FD);
        if (!info || info->epoll_fd < 0)
                return -EIO;
        r = sd_event_add_io(event, &m->io, info->epoll_fd, EPOLLIN, on_io, m);
        if (r < 0)
                return r;
        r = sd_event_add_time_relative(event, &m->timer, CLOCK_MONOTONIC, 0, USEC_PER_MSEC,
                                       on_timer, m);
        if (r < 0)
                return r;
        r = sd_event_source_set_enabled(m->timer, SD_EVENT_OFF);
        if (r >= 0)
                r = listener_new(&m->listener, event, fd, on_accepted, m);
        if (r < 0)
                return r;
        (void)sd_event_source_set_description(m->io, "http"); /* for debugging only */
        (void)sd_event_source_set_description(m->timer, "http-timer");
        *ret = TAKE_PTR(m);
        return 0;
}

MhdLoop *mhd_loop_free(MhdLoop *m) {
        if (!m)
                return NULL;
        listener_free(m->listener);
        sd_event_source_disable_unref(m->io); /* before its descriptor is closed */
        sd_event_source_disable_unref(m->timer);
        if (m->daemon)
                MHD_stop_daemon(m->daemon);
        free(m);
        return NULL;
}
