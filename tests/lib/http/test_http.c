/* Requests and replies as they should be, over real sockets. */
#include "tests/lib/http/http_fixture.h"

#include <errno.h>

#include "tests/harness/skip.h"

/* ── requests ── */

static void each_method_arrives_as_itself_with_its_body_or_without(void **state) {
        static const struct {
                const char *method, *body, *length;
        } cases[] = {
                { "GET", NULL, NULL },
                { "GET", "query", "Content-Length: 5" },
                { "PUT", NULL, "Content-Length: 0" },
                { "PUT", "", "Content-Length: 0" },
                { "PUT", "hello", "Content-Length: 5" },
                { "POST", NULL, "Content-Length: 0" },
                { "POST", "hello", "Content-Length: 5" },
                { "DELETE", NULL, NULL },
                { "DELETE", "hello", "Content-Length: 5" },
        };
        HttpTest *t = *state;
        Got got;

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                char line[64];
                size_t n = cases[i].body ? strlen(cases[i].body) : 0;

                http_test_ask(t,
                              (HttpRequestOptions){ .method = cases[i].method,
                                                    .url = http_test_url("/echo?x"),
                                                    .body = cases[i].body,
                                                    .body_bytes = n },
                              &got);
                assert_int_equal(got.error, 0);
                assert_int_equal(got.status, 200);
                (void)snprintf(line, sizeof line, "\n%s /echo?x HTTP/1.1\r\n", cases[i].method);
                assert_non_null(strstr(got.body, line));
                assert_int_equal(http_test_number(&got, "length"), n);
                (void)snprintf(line, sizeof line, "crc=%08x", http_test_crc(cases[i].body, n));
                assert_non_null(strstr(got.body, line));
                assert_int_equal(got.sent_bytes, n);
                if (cases[i].length)
                        assert_non_null(strstr(got.body, cases[i].length));
                else
                        assert_null(strstr(got.body, "Content-Length"));
                assert_null(strstr(got.body, "Content-Type"));
                assert_null(strstr(got.body, "Expect"));
                assert_null(strstr(got.body, "Transfer-Encoding"));
        }
}

static void the_path_is_sent_as_it_is_spelled(void **state) {
        static const char *const paths[] = {
                "/echo/./a/../b//c?x=%2f%2F&y=+%20&&flag",
                "/echo/%E2%82%AC%2b%2B%25*~'()!$,;:@=&",
                "/echo?uploads",
                "/echo?uploads=",
                "/echo/%41%2E%2e/%2E",
                "/echo/a/..?list-type=2&prefix=a%2Fb",
        };
        HttpTest *t = *state;
        char line[128];
        Got got;

        for (size_t i = 0; i < ELEMENTSOF(paths); i++) {
                http_test_ask(t, (HttpRequestOptions){ .url = http_test_url(paths[i]) }, &got);
                (void)snprintf(line, sizeof line, "\nGET %s HTTP/1.1\r\n", paths[i]);
                assert_int_equal(got.error, 0);
                assert_non_null(strstr(got.body, line));
        }
}

static void a_key_of_a_thousand_escaped_bytes_arrives_complete(void **state) {
        HttpTest *t = *state;
        char path[3 * 1024 + 16] = "/echo/";
        Got got;

        for (int i = 0; i < 1024; i++)
                (void)strcat(path, i % 2 ? "%c3" : "%B6");
        http_test_ask(t, (HttpRequestOptions){ .url = http_test_url(path) }, &got);
        assert_int_equal(got.error, 0);
        assert_non_null(strstr(got.body, path));
}

static void headers_are_sent_as_they_are_given(void **state) {
        static const char *const headers[] = { "X-One: 1",
                                               "x-empty:",
                                               "x-blank:  ",
                                               "Host: bucket.example",
                                               "User-Agent: me",
                                               "X-Odd: a: b; c",
                                               "Content-Type: application/xml",
                                               NULL };
        HttpTest *t = *state;
        Got got;

        http_test_ask(t,
                      (HttpRequestOptions){ .method = "POST",
                                            .url = http_test_url("/echo"),
                                            .headers = headers,
                                            .body = "x",
                                            .body_bytes = 1 },
                      &got);
        assert_int_equal(got.error, 0);
        assert_non_null(strstr(got.body, "\r\nX-One: 1\r\n"));
        assert_non_null(strstr(got.body, "\r\nx-empty:\r\n"));
        assert_non_null(strstr(got.body, "\r\nx-blank:\r\n"));
        assert_non_null(strstr(got.body, "\r\nHost: bucket.example\r\n"));
        assert_null(strstr(got.body, "Host: 127"));
        assert_non_null(strstr(got.body, "User-Agent: me\r\n"));
        assert_null(strstr(got.body, "neuron-collectd"));
        assert_non_null(strstr(got.body, "\r\nX-Odd: a: b; c\r\n"));
        assert_non_null(strstr(got.body, "\r\nContent-Type: application/xml"));

        http_test_ask(t, (HttpRequestOptions){ .url = http_test_url("/echo") }, &got);
        assert_non_null(strstr(got.body, "\r\nUser-Agent: neuron-collectd/"));
        assert_non_null(strstr(got.body, "\r\nHost: 127.0.0.1:"));
}

static void ignore(const HttpReply *r, void *userdata) {
        (void)r;
        (void)userdata;
        fail_msg("called for a request that was never begun");
}

static void what_cannot_be_sent_is_refused_at_once(void **state) {
        static const char *const urls[] = { "",
                                            "echo",
                                            "http://",
                                            "ftp://127.0.0.1/x",
                                            "file:///etc/passwd",
                                            "http://user:secret@127.0.0.1/",
                                            "http://user@127.0.0.1/",
                                            "http://127.0.0.1:99999/",
                                            "http://127.0.0.1/a b",
                                            "http://127.0.0.1/a\r\nX: y",
                                            "http://127.0.0.1/\xc3\xa4",
                                            "http://127.0.0.1/a#b",
                                            "http://[::1/" };
        static const char *const headers[] = { "no colon", ": no name", "A b: c",  "X: a\r\nY: b",
                                               "X: a\n",   "",          "X\x80: y" };
        HttpTest *t = *state;
        HttpRequestOptions options = { .method = "GET",
                                       .url = http_test_url("/echo"),
                                       .on_done = ignore };
        HttpCall *call = NULL;

        for (size_t i = 0; i < ELEMENTSOF(urls); i++) {
                HttpRequestOptions bad = options;

                bad.url = urls[i];
                assert_int_equal(http_call_new(&call, t->pool, &bad), -EINVAL);
        }
        for (size_t i = 0; i < ELEMENTSOF(headers); i++) {
                const char *const lines[] = { "Good: one", headers[i], NULL };
                HttpRequestOptions bad = options;

                bad.headers = lines;
                assert_int_equal(http_call_new(&call, t->pool, &bad), -EINVAL);
        }
        for (size_t i = 0; i < 5; i++) {
                static const char *const methods[] = { "", "get", "PATCH", "CONNECT",
                                                       "GET / HTTP/1.1\r\nX:" };
                HttpRequestOptions bad = options;

                bad.method = methods[i];
                assert_int_equal(http_call_new(&call, t->pool, &bad), -EINVAL);
        }
        options.method = "HEAD";
        options.body = "x";
        options.body_bytes = 1;
        assert_int_equal(http_call_new(&call, t->pool, &options), -EINVAL);
        assert_null(call);
        http_test_settle(t);
}

static void a_body_of_many_buffers_arrives_unchanged(void **state) {
        static const size_t sizes[] = { 1,      16383,  16384,  16385,       65537,
                                        524287, 524288, 524289, 5 * MIB + 17 };
        HttpTest *t = *state;
        Got got;

        for (size_t i = 0; i < ELEMENTSOF(sizes); i++) {
                _cleanup_free_ char *body = http_test_body(sizes[i]);
                char crc[32];

                http_test_ask(t,
                              (HttpRequestOptions){ .url = http_test_url("/echo"),
                                                    .body = body,
                                                    .body_bytes = sizes[i] },
                              &got);
                (void)snprintf(crc, sizeof crc, "crc=%08x", http_test_crc(body, sizes[i]));
                assert_int_equal(got.error, 0);
                assert_int_equal(http_test_number(&got, "length"), sizes[i]);
                assert_non_null(strstr(got.body, crc));
                assert_null(strstr(got.body, "Expect"));
                assert_int_equal(got.sent_bytes, sizes[i]);
                assert_int_equal(http_test_number(&got, "connection") > 0, 1);
        }
}

static void a_slow_reader_gets_all_of_it(void **state) {
        HttpTest *t = *state;
        _cleanup_free_ char *body = http_test_body(6 * MIB);
        char crc[32];
        Got got;

        http_test_pool(t, (HttpPoolOptions){ .stall_usec = 2 * USEC_PER_SEC });
        http_test_ask(t,
                      (HttpRequestOptions){ .url = http_test_url("/slow-reader"),
                                            .body = body,
                                            .body_bytes = 6 * MIB },
                      &got);
        assert_string_equal(got.text, "");
        (void)snprintf(crc, sizeof crc, "crc=%08x", http_test_crc(body, 6 * MIB));
        assert_non_null(strstr(got.body, crc));
}

/* ── replies ── */

static void the_last_header_of_a_name_is_reported_without_blanks(void **state) {
        HttpTest *t = *state;
        Got got;

        http_test_ask(t, (HttpRequestOptions){ .url = http_test_url("/echo") }, &got);
        assert_string_equal(got.etag, "\"two\"");
        assert_true(got.has_empty);
        assert_false(got.has_missing);
        assert_string_equal(got.text, "");
        assert_int_equal(got.received_bytes, got.body_bytes);
        assert_in_range(got.duration_usec, 1, HTTP_TEST_PATIENCE_USEC);
}

static void a_status_is_no_error_and_no_redirect_is_followed(void **state) {
        static const unsigned statuses[] = { 200, 206, 301, 302, 307, 308, 400, 401,
                                             403, 404, 409, 412, 416, 500, 503 };
        HttpTest *t = *state;
        char path[32];
        Got got;

        for (size_t i = 0; i < ELEMENTSOF(statuses); i++) {
                (void)snprintf(path, sizeof path, "/status?s=%u", statuses[i]);
                http_test_ask(t, (HttpRequestOptions){ .url = http_test_url(path) }, &got);
                assert_int_equal(got.error, 0);
                assert_int_equal(got.status, statuses[i]);
                assert_string_equal(got.body, "the reason");
                assert_string_equal(got.location, "/echo");
        }
}

static void a_head_reports_the_length_and_does_not_wait_for_it(void **state) {
        HttpTest *t = *state;
        unsigned first;
        Got got;

        http_test_ask(t, (HttpRequestOptions){ .url = http_test_url("/echo") }, &got);
        first = http_test_number(&got, "connection");
        for (int i = 0; i < 2; i++) {
                http_test_ask(t,
                              (HttpRequestOptions){ .method = "HEAD",
                                                    .url = http_test_url("/object"),
                                                    .reply_max_bytes = 10 },
                              &got);
                assert_int_equal(got.error, 0);
                assert_int_equal(got.status, 200);
                assert_int_equal(got.body_bytes, 0);
                assert_true(got.has_what);
        }
        http_test_ask(t, (HttpRequestOptions){ .url = http_test_url("/echo") }, &got);
        assert_int_equal(http_test_number(&got, "connection"),
                         first); /* and the connection is kept */
}

static void chunks_are_put_together_and_trailers_left_out(void **state) {
        HttpTest *t = *state;
        Got got;

        http_test_ask(t, (HttpRequestOptions){ .url = http_test_url("/chunked?n=10") }, &got);
        assert_int_equal(got.error, 0);
        assert_int_equal(got.body_bytes, 40960);
        assert_int_equal(strspn(got.body, "c"), 40960);
        assert_string_equal(got.early, "yes");
        assert_string_equal(got.late, "(none)");
}

static void interim_replies_are_not_the_reply(void **state) {
        HttpTest *t = *state;
        Got got;

        http_test_ask(t,
                      (HttpRequestOptions){
                              .url = http_test_url("/interim"), .body = "x", .body_bytes = 1 },
                      &got);
        assert_int_equal(got.error, 0);
        assert_int_equal(got.status, 200);
        assert_string_equal(got.body, "final");
        assert_string_equal(got.hint, "(none)");
}

static void a_reply_may_have_no_body_or_end_with_the_connection(void **state) {
        HttpTest *t = *state;
        Got got;

        http_test_ask(
                t, (HttpRequestOptions){ .method = "DELETE", .url = http_test_url("/no-content") },
                &got);
        assert_int_equal(got.error, 0);
        assert_int_equal(got.status, 204);
        assert_string_equal(got.body, "");
        http_test_ask(t, (HttpRequestOptions){ .url = http_test_url("/until-close") }, &got);
        assert_int_equal(got.error, 0);
        assert_string_equal(got.body, "all there is");
}

static void a_reply_is_kept_up_to_its_bound(void **state) {
        static const char *const paths[] = { "/big?n=4096", "/chunked?n=1" };
        HttpTest *t = *state;
        Got got;

        for (size_t i = 0; i < ELEMENTSOF(paths); i++) {
                http_test_ask(t,
                              (HttpRequestOptions){ .url = http_test_url(paths[i]),
                                                    .reply_max_bytes = 4096 },
                              &got);
                assert_int_equal(got.error, 0);
                assert_int_equal(got.body_bytes, 4096);
                http_test_ask(t,
                              (HttpRequestOptions){ .url = http_test_url(paths[i]),
                                                    .reply_max_bytes = 4095 },
                              &got);
                assert_int_equal(got.error, HTTP_E_TOO_LARGE);
                assert_int_equal(got.status, 200);
        }
        http_test_ask(t, (HttpRequestOptions){ .url = http_test_url("/big?n=1048576") }, &got);
        assert_int_equal(got.error, 0);
        assert_int_equal(got.body_bytes, 1048576);
        http_test_ask(t, (HttpRequestOptions){ .url = http_test_url("/big?n=1048577") }, &got);
        assert_int_equal(got.error, HTTP_E_TOO_LARGE);
        assert_non_null(strstr(got.text, "larger than 1MiB"));
        http_test_ask(t, (HttpRequestOptions){ .url = http_test_url("/endless-body") }, &got);
        assert_int_equal(got.error, HTTP_E_TOO_LARGE);
        http_test_ask(t, (HttpRequestOptions){ .url = http_test_url("/endless-headers") }, &got);
        assert_int_equal(got.error, HTTP_E_TOO_LARGE);
        assert_non_null(strstr(got.text, "64KiB"));
}

typedef struct Pieces {
        Got got; /* first: it is what on_done gets */
        size_t n, n_bytes, stop_at;
        uint32_t sum;
} Pieces;

static int on_data(HttpCall *call, const void *data, size_t n, void *userdata) {
        Pieces *p = userdata;

        assert_non_null(call);
        assert_true(n > 0);
        p->n++;
        for (size_t i = 0; i < n; i++)
                p->sum += ((const uint8_t *)data)[i];
        p->n_bytes += n;
        return p->stop_at > 0 && p->n_bytes >= p->stop_at ? -1 : 0;
}

static void a_receiver_gets_the_body_in_pieces_and_may_stop(void **state) {
        HttpTest *t = *state;
        Pieces p = { .n = 0 };

        http_test_ask(t,
                      (HttpRequestOptions){ .url = http_test_url("/big?n=3000000"),
                                            .on_data = on_data,
                                            .reply_max_bytes = 10 },
                      &p.got);
        assert_int_equal(p.got.error, 0);
        assert_int_equal(p.n_bytes, 3000000);
        assert_int_equal(p.sum, 3000000 / 256 * (255 * 128) + 3000000 % 256 * 'x');
        assert_int_equal(p.got.body_bytes, 0);
        assert_int_equal(p.got.received_bytes, 3000000);

        p = (Pieces){ .stop_at = 1 };
        http_test_ask(
                t,
                (HttpRequestOptions){ .url = http_test_url("/big?n=3000000"), .on_data = on_data },
                &p.got);
        assert_int_equal(p.got.error, HTTP_E_STOPPED);
        assert_int_equal(p.n, 1);

        p = (Pieces){ .n = 0 };
        http_test_ask(
                t,
                (HttpRequestOptions){ .url = http_test_url("/status?s=404"), .on_data = on_data },
                &p.got);
        assert_int_equal(p.n, 0); /* an error's body is no piece of what was asked for */
        assert_string_equal(p.got.body, "the reason");
}

/* ── connections ── */

static void one_connection_carries_one_request_after_the_other(void **state) {
        HttpTest *t = *state;
        unsigned first;
        Got got;

        http_test_ask(t, (HttpRequestOptions){ .url = http_test_url("/echo") }, &got);
        first = http_test_number(&got, "connection");
        for (unsigned i = 2; i < 20; i++) {
                http_test_ask(t,
                              (HttpRequestOptions){ .url = http_test_url("/echo"),
                                                    .body = i % 2 ? NULL : "xyz",
                                                    .body_bytes = i % 2 ? 0 : 3 },
                              &got);
                assert_int_equal(got.error, 0);
                assert_int_equal(http_test_number(&got, "connection"), first);
                assert_int_equal(http_test_number(&got, "request"), i);
        }
}

static void a_kept_connection_that_the_server_has_closed_is_no_error(void **state) {
        HttpTest *t = *state;
        _cleanup_free_ char *body = http_test_body(3 * MIB);
        Got got;

        for (int i = 0; i < 20;
             i++) { /* sometimes the end is seen before the next request, sometimes not */
                http_test_ask(t, (HttpRequestOptions){ .url = http_test_url("/close-after") },
                              &got);
                assert_int_equal(got.error, 0);
                http_test_ask(t,
                              (HttpRequestOptions){ .url = http_test_url("/echo"),
                                                    .body = body,
                                                    .body_bytes = 3 * MIB },
                              &got);
                assert_string_equal(got.text, "");
                assert_int_equal(http_test_number(&got, "length"), 3 * MIB);
        }
}

static void a_kept_connection_that_breaks_under_a_request_is_no_error(void **state) {
        static const char *const paths[] = { "/reset-second", "/reset-second?at=body" };
        HttpTest *t = *state;
        _cleanup_free_ char *body = http_test_body(8 * MIB);
        char crc[32];
        Got got;

        (void)snprintf(crc, sizeof crc, "crc=%08x", http_test_crc(body, 8 * MIB));
        for (size_t i = 0; i < 2; i++)
                for (int j = 0; j < 20; j++) {
                        http_test_ask(t, (HttpRequestOptions){ .url = http_test_url("/echo") },
                                      &got);
                        assert_int_equal(got.error, 0);
                        http_test_ask(t,
                                      (HttpRequestOptions){ .url = http_test_url(paths[i]),
                                                            .body = body,
                                                            .body_bytes = 8 * MIB },
                                      &got);
                        assert_string_equal(got.text, "");
                        assert_int_equal(got.status, 200);
                        assert_int_equal(http_test_number(&got, "request"), 1);
                        assert_non_null(strstr(got.body, crc));
                        assert_int_equal(got.sent_bytes, 8 * MIB);
                }
}

static void a_thousand_requests_share_the_connections_allowed(void **state) {
        enum { N = 1000, AT_ONCE = 4 };
        HttpTest *t = *state;
        Got *got = calloc(N, sizeof *got);
        unsigned lowest = UINT32_MAX, highest = 0;

        assert_non_null(got);
        http_test_pool(t, (HttpPoolOptions){ .max_connections = AT_ONCE });
        for (int i = 0; i < N; i++)
                (void)http_test_begin(t,
                                      (HttpRequestOptions){ .url = http_test_url("/echo"),
                                                            .body = "abc",
                                                            .body_bytes = 3 },
                                      &got[i]);
        for (int i = 0; i < N; i++) {
                http_test_wait(t, &got[i]);
                assert_string_equal(got[i].text, "");
                lowest = MIN(lowest, http_test_number(&got[i], "connection"));
                highest = MAX(highest, http_test_number(&got[i], "connection"));
        }
        assert_in_range(highest - lowest + 1, 1, AT_ONCE);
        free(got);
}

static void waiting_for_a_turn_does_not_count_as_stalling_or_connecting(void **state) {
        HttpTest *t = *state;
        Got slow, waiting;

        http_test_pool(t, (HttpPoolOptions){ .max_connections = 1,
                                             .stall_usec = 500 * USEC_PER_MSEC,
                                             .connect_timeout_usec = 500 * USEC_PER_MSEC });
        (void)http_test_begin(
                t, (HttpRequestOptions){ .url = http_test_url("/dribble?n=18&every=0.05") }, &slow);
        (void)http_test_begin(
                t,
                (HttpRequestOptions){
                        .url = http_test_url_at("http://localhost", http_server.port, "/echo") },
                &waiting);
        http_test_wait(t, &slow);
        assert_string_equal(slow.text, "");
        assert_in_range(slow.duration_usec, 700 * USEC_PER_MSEC, HTTP_TEST_PATIENCE_USEC);
        http_test_wait(t, &waiting);
        assert_string_equal(waiting.text,
                            ""); /* and another host's connection takes the idle one's place */
        assert_in_range(waiting.duration_usec, 1, slow.duration_usec - 1);
}

static void ipv6_is_spoken(void **state) {
        HttpTest *t = *state;
        Got got;

        if (http_server.port6 == 0)
                SKIP_BECAUSE("no ::1 here");
        http_test_ask(t,
                      (HttpRequestOptions){
                              .url = http_test_url_at("http://[::1]", http_server.port6, "/echo") },
                      &got);
        assert_string_equal(got.text, "");
        assert_non_null(strstr(got.body, "Host: [::1]:"));
}

static void a_name_can_be_given_its_address(void **state) {
        HttpTest *t = *state;
        const char *url = http_test_url_at("http://bucket.s3.example", http_server.port, "/echo");
        char line[64];
        const char *const resolve[] = { line, NULL };
        Got got;

        (void)snprintf(line, sizeof line, "bucket.s3.example:%u:127.0.0.1", http_server.port);
        http_test_pool(t, (HttpPoolOptions){ .resolve = resolve });
        http_test_ask(t, (HttpRequestOptions){ .url = url }, &got);
        assert_string_equal(got.text, "");
        assert_non_null(strstr(got.body, "Host: bucket.s3.example:"));
}

typedef struct Chain {
        HttpTest *t;
        unsigned n_left, n_done;
} Chain;

static void on_link_done(const HttpReply *r, void *userdata) {
        Chain *c = userdata;

        assert_int_equal(r->error, 0);
        c->n_done++;
        if (c->n_left-- > 0)
                assert_int_equal(http_call_new(NULL, c->t->pool,
                                               &(HttpRequestOptions){ .method = "GET",
                                                                      .url = http_test_url("/echo"),
                                                                      .on_done = on_link_done,
                                                                      .userdata = c }),
                                 0);
}

static void a_request_may_be_begun_when_another_is_done(void **state) {
        HttpTest *t = *state;
        Chain c = { .t = t, .n_left = 20 };

        on_link_done(&(HttpReply){ .error = 0 }, &c);
        HTTP_TEST_UNTIL(t, c.n_done == 21);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                HTTP_TEST(each_method_arrives_as_itself_with_its_body_or_without),
                HTTP_TEST(the_path_is_sent_as_it_is_spelled),
                HTTP_TEST(a_key_of_a_thousand_escaped_bytes_arrives_complete),
                HTTP_TEST(headers_are_sent_as_they_are_given),
                HTTP_TEST(what_cannot_be_sent_is_refused_at_once),
                HTTP_TEST(a_body_of_many_buffers_arrives_unchanged),
                HTTP_TEST(a_slow_reader_gets_all_of_it),
                HTTP_TEST(the_last_header_of_a_name_is_reported_without_blanks),
                HTTP_TEST(a_status_is_no_error_and_no_redirect_is_followed),
                HTTP_TEST(a_head_reports_the_length_and_does_not_wait_for_it),
                HTTP_TEST(chunks_are_put_together_and_trailers_left_out),
                HTTP_TEST(interim_replies_are_not_the_reply),
                HTTP_TEST(a_reply_may_have_no_body_or_end_with_the_connection),
                HTTP_TEST(a_reply_is_kept_up_to_its_bound),
                HTTP_TEST(a_receiver_gets_the_body_in_pieces_and_may_stop),
                HTTP_TEST(one_connection_carries_one_request_after_the_other),
                HTTP_TEST(a_kept_connection_that_the_server_has_closed_is_no_error),
                HTTP_TEST(a_kept_connection_that_breaks_under_a_request_is_no_error),
                HTTP_TEST(a_thousand_requests_share_the_connections_allowed),
                HTTP_TEST(waiting_for_a_turn_does_not_count_as_stalling_or_connecting),
                HTTP_TEST(ipv6_is_spoken),
                HTTP_TEST(a_name_can_be_given_its_address),
                HTTP_TEST(a_request_may_be_begun_when_another_is_done),
        };

        return cmocka_run_group_tests_name("loop/http", tests, http_server_start, http_server_stop);
}
