/* A loop, a pool and the server of http_server.py, for the tests of lib/http/http. */
#pragma once

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-event.h>

#include "tests/harness/unit.h"

#include "lib/http/http.h"

#define HTTP_TEST_PATIENCE_USEC (60 * USEC_PER_SEC)

typedef struct HttpServer { /* one for all tests of a program */
        unsigned port, port6, proxy, narrow, good, expired, other; /* 0 = not there */
        char certificates[64]; /* the directory with ca.pem; "" = no TLS */
        pid_t pid;
        int stdin_fd;
} HttpServer;
extern HttpServer http_server;

/* Group setup and teardown. The one with certificates makes them by openssl(1); without it the TLS
 * ports stay 0. */
int http_server_start(void **state);
int http_server_start_tls(void **state);
int http_server_stop(void **state);

typedef struct HttpTest {
        sd_event *event;
        HttpPool *pool;
} HttpTest;

/* Test setup and teardown: a pool with stall_usec of 20 s and no proxy. */
int http_test_setup(void **state);
int http_test_teardown(void **state);
/* Another pool in its place. options.proxy NULL becomes "-". */
void http_test_pool(HttpTest *t, HttpPoolOptions options);

typedef struct Got { /* a copy of a reply */
        bool is_done;
        unsigned n_done, status;
        int error;
        char text[512], body[64 * 1024], etag[64], location[64], early[64], late[64], hint[64];
        bool has_empty, has_what, has_missing;
        size_t body_bytes;
        uint64_t sent_bytes, received_bytes, duration_usec;
} Got;

/** Begins; *got is filled when it is done. Order's on_done and userdata are set. */
HttpCall *http_test_begin(HttpTest *t, HttpRequestOptions options, Got *got);
/** Turns the loop until got->is_done. */
void http_test_wait(HttpTest *t, const Got *got);
/** Both. */
void http_test_ask(HttpTest *t, HttpRequestOptions options, Got *got);
/** Turns the loop until the condition holds. */
#define HTTP_TEST_UNTIL(t, condition)                                                              \
        do {                                                                                       \
                uint64_t _end = http_test_now() + HTTP_TEST_PATIENCE_USEC;                         \
                while (!(condition)) {                                                             \
                        if (http_test_now() > _end)                                                \
                                fail_msg("waited in vain: %s", #condition);                        \
                        assert_true(sd_event_run((t)->event, 100 * USEC_PER_MSEC) >= 0);           \
                }                                                                                  \
        } while (0)
uint64_t http_test_now(void);
/** Turns the loop while there is anything to do. */
void http_test_settle(HttpTest *t);

/** `http://127.0.0.1:PORT/…`; one of eight buffers in turn. */
const char *http_test_url(const char *path_and_query);
const char *http_test_url_at(const char *scheme_and_host, unsigned port,
                             const char *path_and_query);
/** @return the number after `name=` in an answer of /echo */
unsigned http_test_number(const Got *got, const char *name);
/** A body with a pattern; the caller's */
char *http_test_body(size_t n);
/** @return CRC-32 as the server tells it (IEEE 802.3) */
uint32_t http_test_crc(const void *data, size_t n);

#define HTTP_TEST(name) cmocka_unit_test_setup_teardown(name, http_test_setup, http_test_teardown)
