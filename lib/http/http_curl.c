/* What is said to libcurl of a request, what libcurl asks and tells meanwhile, and what its errors mean. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "lib/http/http_fault.h"
#include "lib/http/http_order.h"
#include "lib/http/http_private.h"

#define SEND_BUFFER_MIN (16 * KIB)  /* CURLOPT_UPLOAD_BUFFERSIZE takes no less */
#define SEND_BUFFER_MAX (128 * KIB) /* larger ones need as much CPU, measured up to 2 MiB */
#define RECEIVE_BUFFER (128 * KIB)  /* for pieces that are handed on */

/* ── what it asks and tells ────────────────────────────────────────────────────────────────────────────────── */

static int on_progress(void *userdata, curl_off_t down_max, curl_off_t down, curl_off_t up_max,
                       curl_off_t up) {
        HttpCall *c = userdata;

        (void)down_max;
        (void)up_max;
        if ((uint64_t)down != c->n_down || (uint64_t)up != c->n_up) {
                c->n_down = (uint64_t)down;
                c->n_up = (uint64_t)up;
                http_call_moved(c);
        }
        return 0; /* not to stop a dropped call: in the middle of a look-up libcurl would wait for its end */
}

static curl_socket_t on_open_socket(void *userdata, curlsocktype purpose,
                                    struct curl_sockaddr *address) {
        HttpCall *c = userdata;
        int fd;

        (void)purpose;
        if (c->is_dropped)
                return CURL_SOCKET_BAD;
        /* Closed in what we execute: older libcurls leave that out. */
        fd = socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
        if (fd >= 0 && http_pace_opened(&c->pool->pace, fd) < 0) {
                (void)close(fd); /* nothing was done with it */
                fd = -1;
        }
        if (c->patience.phase != HTTP_PHASE_CONNECTING)
                http_call_enter(c, HTTP_PHASE_CONNECTING);
        return fd < 0 ? CURL_SOCKET_BAD : fd;
}

void http_curl_on_socket(void *easy, int fd, void *userdata) {
        HttpCall *c = NULL;

        (void)userdata;
        if (curl_easy_getinfo(easy, CURLINFO_PRIVATE, (char **)&c) == CURLE_OK &&
            c) { /* libcurl has handles of its own */
                c->last_fd = fd >= 0 ? fd : c->last_fd;
                c->fd = fd;
        }
}

/* A server that refuses early answers, closes, and resets what it did not read. Who is just sending learns of the reset alone, and libcurl
 * gives the connection up; but the kernel still has the answer. Encrypted, it is out of reach. */
static bool may_have_early_answer(const HttpCall *c) {
        return !c->is_tls && c->patience.phase == HTTP_PHASE_TALKING && c->heard.status == 0 &&
               http_call_sent_bytes(c) < c->body_bytes;
}

static int on_close_socket(void *userdata, curl_socket_t fd) {
        HttpPool *p = userdata;

        LIST_FOREACH (link, &p->running) {
                HttpCall *c = CONTAINER_OF(link, HttpCall, link);

                if (c->last_fd == fd && may_have_early_answer(c))
                        http_heard_rest(&c->heard, fd, c->reply_max_bytes);
                http_pace_lost(&c->pace, fd);
        }
        http_pace_closing(&p->pace, fd);
        return close(fd);
}

/* There is a connection, old or new, and the request is about to be sent. */
static int on_connected(void *userdata, char *remote, char *local, int remote_port,
                        int local_port) {
        HttpCall *c = userdata;

        (void)remote;
        (void)local;
        (void)remote_port;
        if (c->is_dropped)
                return CURL_PREREQFUNC_ABORT;
        http_pace_connected(&c->pace, local_port);
        http_call_enter(c, HTTP_PHASE_TALKING);
        return CURL_PREREQFUNC_OK;
}

static size_t on_read(char *to, size_t size, size_t n, void *userdata) {
        HttpCall *c = userdata;

        if (c->is_dropped)
                return CURL_READFUNC_ABORT; /* the body may be gone */
        n = MIN(size * n, c->body_bytes - c->next_byte);
        if (n > 0) {
                n = http_pace_read(&c->pace, n, c->body_bytes - c->next_byte);
                if (n == 0)
                        return CURL_READFUNC_PAUSE; /* on_go() comes */
        }
        if (n > 0)
                memcpy(to, c->body + c->next_byte, n);
        c->next_byte += n;
        return n;
}

/* For a request that is sent again because its kept connection was dead. */
static int on_seek(void *userdata, curl_off_t offset, int origin) {
        HttpCall *c = userdata;

        if (origin != SEEK_SET || offset < 0 || (uint64_t)offset > c->body_bytes)
                return CURL_SEEKFUNC_FAIL;
        c->next_byte = (size_t)offset;
        return CURL_SEEKFUNC_OK;
}

static bool has_data_taker(const HttpCall *c) {
        return c->on_data && c->heard.status >= 200 && c->heard.status <= 299;
}

/* @param r  of http_heard_*. @return whether libcurl may go on */
static bool took(HttpCall *c, int r) {
        if (r == 0)
                return true;
        c->fault = r == -EFBIG ? HTTP_E_TOO_LARGE : r == -ENOMEM ? HTTP_E_MEMORY : HTTP_E_CUT;
        return false;
}

static size_t on_header(char *line, size_t size, size_t n, void *userdata) {
        HttpCall *c = userdata;
        int r;

        if (c->is_dropped)
                return 0;
        http_call_moved(c);
        r = http_heard_line(&c->heard, line, size * n);
        if (r == 0 && c->heard.headers_ended && !c->is_head && !has_data_taker(c) &&
            c->heard.told_bytes > 0 && (uint64_t)c->heard.told_bytes > c->reply_max_bytes)
                r = -EFBIG;
        return took(c, r) ? size * n : 0;
}

static size_t on_body(char *data, size_t size, size_t n, void *userdata) {
        HttpCall *c = userdata;

        n *= size;
        if (c->is_dropped)
                return 0;
        http_call_moved(c);
        if (!has_data_taker(c))
                return took(c, http_heard_body(&c->heard, data, n, c->reply_max_bytes)) ? n : 0;
        http_heard_pass(&c->heard, n);
        if (c->on_data(c, data, n, c->userdata) >= 0)
                return n;
        c->fault = HTTP_E_STOPPED;
        return 0;
}

/* ── what went wrong, for people ───────────────────────────────────────────────────────────────────────────── */

/* A proxy that turns us away answers before the connection is made. */
static unsigned proxy_status(const HttpCall *c) {
        long status = 0;

        (void)curl_easy_getinfo(c->easy, CURLINFO_HTTP_CONNECTCODE,
                                &status); /* stays 0 when there is none */
        return c->heard.status == 407 ? 407 : status >= 300 ? (unsigned)status : 0;
}

int http_curl_error(const HttpCall *c, CURLcode code) {
        if (c->fault)
                return c->fault;
        if (proxy_status(c) > 0)
                return HTTP_E_PROXY;
        switch (code) {
        case CURLE_OK:
                return 0;
        case CURLE_COULDNT_RESOLVE_HOST:
                return HTTP_E_RESOLVE;
        case CURLE_COULDNT_RESOLVE_PROXY:
        case CURLE_PROXY:
                return HTTP_E_PROXY;
        case CURLE_COULDNT_CONNECT:
                return http_fault_is_elsewhere(c->told, c->place) ? HTTP_E_PROXY : HTTP_E_CONNECT;
        case CURLE_INTERFACE_FAILED:
        case CURLE_OPERATION_TIMEDOUT: /* libcurl's own limit on connecting: the only one it knows of */
                return HTTP_E_CONNECT;
        case CURLE_SSL_CONNECT_ERROR:
        case CURLE_SSL_CERTPROBLEM:
        case CURLE_SSL_CIPHER:
        case CURLE_SSL_CACERT_BADFILE:
        case CURLE_SSL_ENGINE_INITFAILED:
        case CURLE_SSL_ISSUER_ERROR:
        case CURLE_PEER_FAILED_VERIFICATION:
                return HTTP_E_TLS;
        case CURLE_OUT_OF_MEMORY:
                return HTTP_E_MEMORY;
        default:
                return c->patience.phase == HTTP_PHASE_TALKING ? HTTP_E_CUT : HTTP_E_CONNECT;
        }
}

void http_curl_explain(HttpCall *c, int error, CURLcode code) {
        struct sockaddr_storage peer;
        socklen_t n_peer = sizeof peer;
        long saved_errno = 0;
        HttpFault fault = {
                .error = error,
                .place = c->place,
                .cause = c->told[0] ? c->told : curl_easy_strerror(code),
                .proxy_status = proxy_status(c),
                .connect_timeout_usec = c->patience.connect_timeout_usec,
                .stall_usec = c->patience.stall_usec,
                .timeout_usec = c->patience.timeout_usec,
                .reply_max_bytes = c->reply_max_bytes,
        };

        fault.was_connected =
                c->fd >= 0 && getpeername(c->fd, (struct sockaddr *)&peer, &n_peer) == 0;
        (void)curl_easy_getinfo(c->easy, CURLINFO_OS_ERRNO, &saved_errno); /* not known stays 0 */
        if (code == CURLE_OK)
                fault.cause = NULL;
        else if (code == CURLE_COULDNT_CONNECT && saved_errno > 0)
                fault.cause = strerror((int)saved_errno);
        fault.told = c->told;
        (void)http_fault_explain(&fault, c->text, sizeof c->text);
}

/* ── a new request ─────────────────────────────────────────────────────────────────────────────────────────── */

#define SET(option, value)                                                                         \
        do {                                                                                       \
                if (code == CURLE_OK)                                                              \
                        code = curl_easy_setopt(easy, option, value);                              \
        } while (0)

static CURLcode set_callbacks(CURL *easy, HttpCall *c) {
        CURLcode code = CURLE_OK;

        SET(CURLOPT_PRIVATE, c);
        SET(CURLOPT_ERRORBUFFER, c->told);
        SET(CURLOPT_NOPROGRESS, 0L);
        SET(CURLOPT_XFERINFOFUNCTION, on_progress);
        SET(CURLOPT_XFERINFODATA, c);
        SET(CURLOPT_OPENSOCKETFUNCTION, on_open_socket);
        SET(CURLOPT_OPENSOCKETDATA, c);
        SET(CURLOPT_CLOSESOCKETFUNCTION, on_close_socket);
        SET(CURLOPT_CLOSESOCKETDATA, c->pool); /* the connection may outlive the call */
        SET(CURLOPT_PREREQFUNCTION, on_connected);
        SET(CURLOPT_PREREQDATA, c);
        SET(CURLOPT_HEADERFUNCTION, on_header);
        SET(CURLOPT_HEADERDATA, c);
        SET(CURLOPT_WRITEFUNCTION, on_body);
        SET(CURLOPT_WRITEDATA, c);
        SET(CURLOPT_READFUNCTION, on_read);
        SET(CURLOPT_READDATA, c);
        SET(CURLOPT_SEEKFUNCTION, on_seek);
        SET(CURLOPT_SEEKDATA, c);
        return code;
}

static CURLcode set_request(CURL *easy, const HttpCall *c, const HttpOrder *o) {
        bool has_body = o->body || strcmp(o->method, "PUT") == 0 || strcmp(o->method, "POST") == 0;
        CURLcode code = CURLE_OK;

        SET(CURLOPT_URL, o->url);
        SET(CURLOPT_PATH_AS_IS, 1L);
        SET(CURLOPT_USERAGENT, "neuron-collectd/" PACKAGE_VERSION);
        SET(CURLOPT_HTTPHEADER, c->headers);
        SET(CURLOPT_FRESH_CONNECT, o->never_repeat ? 1L : 0L);
        if (c->on_data)
                SET(CURLOPT_BUFFERSIZE, (long)RECEIVE_BUFFER);
        if (has_body) { /* of whatever method: the upload is the one way of sending that adds no Content-Type */
                SET(CURLOPT_UPLOAD, 1L);
                SET(CURLOPT_INFILESIZE_LARGE, (curl_off_t)o->body_bytes);
                SET(CURLOPT_UPLOAD_BUFFERSIZE,
                    (long)MIN(MAX(o->body_bytes, SEND_BUFFER_MIN), SEND_BUFFER_MAX));
        }
        if (c->is_head)
                SET(CURLOPT_NOBODY, 1L);
        else
                SET(CURLOPT_CUSTOMREQUEST, o->method);
        return code;
}

static int append(struct curl_slist **list, const char *line) {
        struct curl_slist *longer = curl_slist_append(*list, line);

        if (!longer)
                return -ENOMEM;
        *list = longer;
        return 0;
}

static int set_headers(HttpCall *c, const HttpOrder *o) {
        for (const char *const *line = o->headers; line && *line; line++) {
                _cleanup_free_ char *spelled = NULL;
                int r = http_order_header(*line, &spelled);

                if (r == 0)
                        r = append(&c->headers, spelled);
                if (r < 0)
                        return r;
                c->head_bytes += strlen(*line) + 2;
        }
        if (http_order_has_header(o, "Expect"))
                return 0;
        return append(
                &c->headers,
                "Expect:"); /* or libcurl asks first, and waits a second for who does not know it */
}

int http_curl_set_up(HttpCall *c, const HttpOrder *o) {
        CURLcode code;
        int r = set_headers(c, o);

        if (r < 0)
                return r;
        c->easy = curl_loop_handle(c->pool->loop);
        if (!c->easy)
                return -ENOMEM;
        code = set_callbacks(c->easy, c);
        if (code == CURLE_OK)
                code = set_request(c->easy, c, o);
        return code == CURLE_OK ? 0 : -ENOMEM;
}
