/* The parts of the HTTP client that only think: what is heard, what is ordered, how long is
 * waited, what is said of faults. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/http/http.h"
#include "lib/http/http_error.h"
#include "lib/http/http_reply.h"
#include "lib/http/http_request.h"
#include "lib/http/http_timeout.h"

#define MSEC USEC_PER_MSEC

/* ── heard ── */

static int receive(HttpReplyState *h, const char *raw) {
        return http_reply_add_raw(h, raw, strlen(raw), 1000);
}

static const char *header(const HttpReplyState *h, const char *name) {
        return http_reply_header(&(HttpReply){ .headers = &h->headers }, name);
}

static void a_reply_is_parsed(void **state) {
        HttpReplyState h;

        http_reply_init(&h);
        assert_int_equal(receive(&h, "HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\nETAG:\t\"a\" "
                                     "\r\nx:\r\n\r\nhello, too much"),
                         0);
        assert_int_equal(h.status, 404);
        assert_true(http_reply_is_complete(&h, false));
        assert_string_equal(h.body, "hello");
        assert_string_equal(header(&h, "etag"), "\"a\"");
        assert_string_equal(header(&h, "x"), "");
        assert_null(header(&h, "ETAG"));
        assert_null(header(&h, "content"));
        http_reply_done(&h);
        assert_null(header(&h, "etag"));
}

static void a_reply_is_complete_when_all_that_it_reports_is_there(void **state) {
        static const struct {
                const char *raw;
                bool is_whole, is_whole_to_head;
        } cases[] = {
                { "", false, false },
                { "HTTP/1.1 200 OK\r\n", false, false },
                { "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n", false, false },
                { "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", false, true },
                { "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na", false, true },
                { "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab", true, true },
                { "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", true, true },
                { "HTTP/1.1 200 OK\r\n\r\nab", false, true },
                { "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\nab", false, true },
                { "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nab", false,
                  true },
                { "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\nab",
                  false, true },
                { "HTTP/1.1 204 No Content\r\n\r\n", true, true },
                { "HTTP/1.1 304 Not Modified\r\nContent-Length: 10\r\n\r\n", true, true },
                { "HTTP/1.1 100 Continue\r\nContent-Length: 0\r\n\r\n", false, false },
                { "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab",
                  true, true },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                HttpReplyState h;

                http_reply_init(&h);
                assert_int_equal(receive(&h, cases[i].raw), 0);
                assert_int_equal(http_reply_is_complete(&h, false), cases[i].is_whole);
                assert_int_equal(http_reply_is_complete(&h, true), cases[i].is_whole_to_head);
                http_reply_done(&h);
        }
}

static void what_is_no_http_or_too_much_is_refused(void **state) {
        static const char *const rubbish[] = { "220 mail\r\n",        "HTTP/1.1\r\n",
                                               "HTTP/1.1 99 Low\r\n", "HTTP/1.1 1000 High\r\n",
                                               "HTTP/1.1 OK\r\n",     "A: b\r\n" };
        static char value[HTTP_HEADERS_MAX];
        HttpReplyState h;

        for (size_t i = 0; i < ELEMENTSOF(rubbish); i++) {
                http_reply_init(&h);
                assert_int_equal(receive(&h, rubbish[i]), -EBADMSG);
                http_reply_done(&h);
        }
        http_reply_init(&h);
        assert_int_equal(receive(&h, "HTTP/1.1 200 OK\r\n: no name\r\nno colon\r\n folded: no\r\n"),
                         0);
        assert_null(header(&h, ""));
        assert_int_equal(http_reply_add_line(&h, "A: b\0c\r\n", 8), -EBADMSG);
        memset(value, 'v', sizeof value);
        memcpy(value, "n:", 2);
        assert_int_equal(http_reply_add_line(&h, value, HTTP_HEADERS_MAX / 2), 0);
        assert_int_equal(http_reply_add_line(&h, value, HTTP_HEADERS_MAX / 4), 0);
        assert_int_equal(http_reply_add_line(&h, value, HTTP_HEADERS_MAX / 2), -EFBIG);
        assert_int_equal(strlen(header(&h, "n")), HTTP_HEADERS_MAX / 4 - 2);
        http_reply_done(&h);
}

static void a_body_is_kept_in_any_pieces_up_to_its_bound(void **state) {
        char expected[1001] = "";

        for (size_t piece = 1; piece < 300; piece += 13) {
                size_t n = 0;
                HttpReplyState h;

                http_reply_init(&h);
                while (n + piece <= 1000) {
                        memset(expected + n, 'a' + (int)(n % 26), piece);
                        assert_int_equal(http_reply_add_body(&h, expected + n, piece, 1000), 0);
                        n += piece;
                        assert_int_equal(h.n_body, n);
                        assert_int_equal(h.body[n], '\0');
                }
                assert_memory_equal(h.body, expected, n);
                assert_int_equal(http_reply_add_body(&h, expected, 1001 - n, 1000), -EFBIG);
                assert_int_equal(h.n_received, n);
                http_reply_done(&h);
        }
}

/* ── ordered ── */

static void headers_are_spelled_for_libcurl(void **state) {
        static const char *const cases[][2] = {
                { "A: b", "A: b" },     { "x-amz-meta-k:v", "x-amz-meta-k:v" },
                { "A:", "A;" },         { "A: \t ", "A;" },
                { "A: ;", "A: ;" },     { "A b: c", NULL },
                { ":", NULL },          { "", NULL },
                { "A", NULL },          { "A: b\r", NULL },
                { "A: b\nC: d", NULL }, { "A\xc3: d", NULL },
                { "A;", NULL },         { "A: \xc3\xa4", "A: \xc3\xa4" },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                char *spelled = NULL;

                assert_int_equal(http_request_format_header(cases[i][0], &spelled),
                                 cases[i][1] ? 0 : -EINVAL);
                if (cases[i][1])
                        assert_string_equal(spelled, cases[i][1]);
                free(spelled);
        }
}

/* ── patience ── */

static HttpTimeout patience(uint64_t timeout_usec) {
        return (HttpTimeout){ .connect_timeout_usec = 1000,
                              .stall_usec = 400,
                              .timeout_usec = timeout_usec,
                              .created_usec = 100,
                              .n_unsent = -1 };
}

static void waiting_has_no_limit_but_that_on_all_of_it(void **state) {
        HttpTimeout p = patience(0);

        assert_int_equal(http_timeout_next_usec(&p, 100), USEC_INFINITY);
        assert_int_equal(http_timeout_check(&p, UINT64_MAX / 2), 0);
        p = patience(50);
        assert_int_equal(http_timeout_next_usec(&p, 100), 150);
        assert_int_equal(http_timeout_check(&p, 149), 0);
        assert_int_equal(http_timeout_check(&p, 150), HTTP_E_TIMEOUT);
        p = patience(UINT64_MAX);
        assert_int_equal(http_timeout_next_usec(&p, 100), USEC_INFINITY);
}

static void name_and_connection_share_one_limit(void **state) {
        HttpTimeout p = patience(0);

        http_timeout_enter_phase(&p, HTTP_PHASE_RESOLVING, 5000);
        assert_int_equal(http_timeout_next_usec(&p, 5500), 6000);
        assert_int_equal(http_timeout_check(&p, 5999), 0);
        assert_int_equal(http_timeout_check(&p, 6000), HTTP_E_RESOLVE);
        http_timeout_enter_phase(&p, HTTP_PHASE_CONNECTING, 5900);
        assert_int_equal(http_timeout_check(&p, 5999), 0);
        assert_int_equal(http_timeout_check(&p, 6000), HTTP_E_CONNECT);
        http_timeout_enter_phase(&p, HTTP_PHASE_TRANSFER, 5950);
        http_timeout_enter_phase(&p, HTTP_PHASE_CONNECTING,
                                 6100); /* the kept connection was dead */
        assert_int_equal(http_timeout_check(&p, 7099), 0);
        assert_int_equal(http_timeout_check(&p, 7100), HTTP_E_CONNECT);
}

static void silence_counts_from_the_last_byte_that_moved(void **state) {
        HttpTimeout p = patience(0);

        http_timeout_enter_phase(&p, HTTP_PHASE_TRANSFER, 1000);
        assert_int_equal(http_timeout_check(&p, 1399), 0);
        assert_int_equal(http_timeout_check(&p, 1400), HTTP_E_STALLED);
        http_timeout_on_progress(&p, 1300);
        assert_int_equal(http_timeout_check(&p, 1699), 0);
        assert_int_equal(http_timeout_next_usec(&p, 1300), 1400); /* to ask the kernel in between */
        assert_int_equal(http_timeout_next_usec(&p, 1650), 1700);
}

static void a_send_buffer_that_gets_emptier_is_movement(void **state) {
        HttpTimeout p = patience(0);

        http_timeout_enter_phase(&p, HTTP_PHASE_TRANSFER, 1000);
        http_timeout_on_unsent(&p, 5000, 1100); /* the first time tells nothing */
        http_timeout_on_unsent(&p, 5000, 1200);
        http_timeout_on_unsent(&p, 6000, 1250);
        assert_int_equal(http_timeout_check(&p, 1400), HTTP_E_STALLED);
        http_timeout_on_unsent(&p, 5999, 1300);
        assert_int_equal(http_timeout_check(&p, 1699), 0);
        http_timeout_on_unsent(&p, 5999, 1690);
        assert_int_equal(http_timeout_check(&p, 1700), HTTP_E_STALLED);
        http_timeout_on_progress(&p, 1695);
        http_timeout_on_unsent(&p, 10,
                               1900); /* less than before something was added to it: no measure */
        assert_int_equal(http_timeout_check(&p, 2095), HTTP_E_STALLED);
}

/* ── faults ── */

static void a_fault_names_place_and_cause(void **state) {
        static const struct {
                HttpErrorCause fault;
                const char *text;
        } cases[] = {
                { { .error = HTTP_E_CONNECT, .cause = "Connection refused" },
                  "h:1: connection refused" },
                { { .error = HTTP_E_CONNECT, .connect_timeout_usec = 1500 * MSEC },
                  "h:1: no answer within 1500ms" },
                { { .error = HTTP_E_CONNECT,
                    .connect_timeout_usec = 10 * USEC_PER_SEC,
                    .was_connected = true },
                  "h:1: connected, but nothing could be sent within 10s" },
                { { .error = HTTP_E_RESOLVE, .connect_timeout_usec = 10 * USEC_PER_SEC },
                  "h:1: the name was not found within 10s" },
                { { .error = HTTP_E_RESOLVE, .cause = "Could not resolve host: h" },
                  "h:1: could not resolve host: h" },
                { { .error = HTTP_E_TLS, .cause = "SSL: bad\r\n\x1b[31m" },
                  "h:1: SSL: bad   [31m" },
                { { .error = HTTP_E_STALLED, .stall_usec = 60 * USEC_PER_SEC },
                  "h:1: nothing moved for 1m" },
                { { .error = HTTP_E_TIMEOUT, .timeout_usec = 5 * USEC_PER_SEC },
                  "h:1: not done within 5s" },
                { { .error = HTTP_E_TOO_LARGE, .reply_max_bytes = 4096 },
                  "h:1: the reply is larger than 4KiB, or its headers than 64KiB" },
                { { .error = HTTP_E_STOPPED }, "h:1: stopped by its receiver" },
                { { .error = HTTP_E_PROXY, .proxy_status = 407 },
                  "h:1: the proxy refuses with status 407" },
                { { .error = HTTP_E_PROXY, .cause = "Connection refused" },
                  "h:1: the proxy cannot be used: connection refused" },
                { { .error = HTTP_E_MEMORY }, "h:1: out of memory" },
                { { .error = HTTP_E_CUT }, "h:1: unknown cause" },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                HttpErrorCause f = cases[i].fault;
                char text[128];

                f.place = "h:1";
                assert_string_equal(http_error_explain(&f, text, sizeof text), cases[i].text);
                assert_string_equal(http_error_explain(&f, text, 8),
                                    memcpy((char[8]){ 0 }, cases[i].text, 7));
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_reply_is_parsed),
                cmocka_unit_test(a_reply_is_complete_when_all_that_it_reports_is_there),
                cmocka_unit_test(what_is_no_http_or_too_much_is_refused),
                cmocka_unit_test(a_body_is_kept_in_any_pieces_up_to_its_bound),
                cmocka_unit_test(headers_are_spelled_for_libcurl),
                cmocka_unit_test(waiting_has_no_limit_but_that_on_all_of_it),
                cmocka_unit_test(name_and_connection_share_one_limit),
                cmocka_unit_test(silence_counts_from_the_last_byte_that_moved),
                cmocka_unit_test(a_send_buffer_that_gets_emptier_is_movement),
                cmocka_unit_test(a_fault_names_place_and_cause),
        };

        return cmocka_run_group_tests_name("loop/http: its parts", tests, NULL, NULL);
}
