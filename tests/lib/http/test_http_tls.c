/* TLS: who is believed, and that a TLS connection behaves like another. */
#include "tests/lib/http/http_fixture.h"

#include "tests/harness/skip.h"

#define NEED_CERTIFICATES()                                                                        \
        do {                                                                                       \
                if (!http_server.certificates[0])                                                  \
                        SKIP_BECAUSE("no openssl command");                                        \
        } while (0)

static char ca_file[128];

static const char *url(unsigned port, const char *path) {
        return http_test_url_at("https://127.0.0.1", port, path);
}

static void trust(HttpTest *t, const char *name, HttpPoolOptions options) {
        (void)snprintf(ca_file, sizeof ca_file, "%s/%s", http_server.certificates, name);
        options.ca_file = ca_file;
        http_test_pool(t, options);
}

static void a_certificate_of_the_own_ca_is_believed(void **state) {
        HttpTest *t = *state;
        unsigned first;
        Got got;

        NEED_CERTIFICATES();
        trust(t, "ca.pem", (HttpPoolOptions){ .max_connections = 1 });
        http_test_ask(t, (HttpRequestOptions){ .url = url(http_server.good, "/echo") }, &got);
        assert_string_equal(got.text, "");
        first = http_test_number(&got, "connection");
        http_test_ask(t, (HttpRequestOptions){ .url = url(http_server.good, "/echo") }, &got);
        assert_int_equal(http_test_number(&got, "connection"), first); /* kept alive */
}

static void other_certificates_are_not_believed(void **state) {
        HttpTest *t = *state;
        Got got;

        NEED_CERTIFICATES();
        http_test_ask(t, (HttpRequestOptions){ .url = url(http_server.good, "/echo?secret") },
                      &got); /* the system does not know the CA */
        assert_int_equal(got.error, HTTP_E_TLS);
        assert_int_equal(strncmp(got.text, "127.0.0.1:", 10), 0);
        assert_non_null(strstr(got.text, "certificate"));
        assert_null(strstr(got.text, "secret"));
        trust(t, "ca.pem", (HttpPoolOptions){ .max_connections = 1 });
        http_test_ask(t, (HttpRequestOptions){ .url = url(http_server.expired, "/echo") }, &got);
        assert_int_equal(got.error, HTTP_E_TLS);
        assert_non_null(strstr(got.text, "expired"));
        http_test_ask(t, (HttpRequestOptions){ .url = url(http_server.other, "/echo") }, &got);
        assert_int_equal(got.error, HTTP_E_TLS);
        assert_non_null(strstr(got.text, "127.0.0.1'"));
        trust(t, "good.crt",
              (HttpPoolOptions){ .max_connections =
                                         1 }); /* a CA of one: the others are not of it */
        http_test_ask(t, (HttpRequestOptions){ .url = url(http_server.other, "/echo") }, &got);
        assert_int_equal(got.error, HTTP_E_TLS);
}

static void a_ca_file_that_is_not_there_or_empty_is_reported(void **state) {
        HttpTest *t = *state;
        Got got;

        NEED_CERTIFICATES();
        trust(t, "missing.pem", (HttpPoolOptions){ .max_connections = 1 });
        http_test_ask(t, (HttpRequestOptions){ .url = url(http_server.good, "/echo") }, &got);
        assert_int_equal(got.error, HTTP_E_TLS);
        assert_non_null(strstr(got.text, "missing.pem"));
        trust(t, "ca.cnf", (HttpPoolOptions){ .max_connections = 1 });
        http_test_ask(t, (HttpRequestOptions){ .url = url(http_server.good, "/echo") }, &got);
        assert_int_equal(got.error, HTTP_E_TLS);
}

static void plain_and_tls_do_not_understand_each_other(void **state) {
        HttpTest *t = *state;
        Got got;

        NEED_CERTIFICATES();
        trust(t, "ca.pem", (HttpPoolOptions){ .connect_timeout_usec = 300 * USEC_PER_MSEC });
        http_test_ask(t,
                      (HttpRequestOptions){ .url = http_test_url_at("http://127.0.0.1",
                                                                    http_server.good, "/echo") },
                      &got);
        assert_int_equal(got.error, HTTP_E_CUT);
        http_test_ask(t, (HttpRequestOptions){ .url = url(http_server.port, "/echo") }, &got);
        assert_int_equal(got.error,
                         HTTP_E_CONNECT); /* it waits for the end of what it takes for a request */
        assert_non_null(strstr(got.text, "connected, but nothing could be sent within 300ms"));
}

static void bodies_and_faults_are_as_without_tls(void **state) {
        HttpTest *t = *state;
        _cleanup_free_ char *body = http_test_body(5 * MIB);
        char crc[32];
        Got got;

        NEED_CERTIFICATES();
        trust(t, "ca.pem", (HttpPoolOptions){ .stall_usec = 300 * USEC_PER_MSEC });
        (void)snprintf(crc, sizeof crc, "crc=%08x", http_test_crc(body, 5 * MIB));
        http_test_ask(t,
                      (HttpRequestOptions){ .url = url(http_server.good, "/echo"),
                                            .body = body,
                                            .body_bytes = 5 * MIB },
                      &got);
        assert_string_equal(got.text, "");
        assert_non_null(strstr(got.body, crc));
        http_test_ask(t,
                      (HttpRequestOptions){ .url = url(http_server.good, "/big?n=1000000"),
                                            .reply_max_bytes = 2 * MIB },
                      &got);
        assert_string_equal(got.text, "");
        assert_int_equal(got.body_bytes, 1000000);
        http_test_ask(t, (HttpRequestOptions){ .url = url(http_server.good, "/half") }, &got);
        assert_int_equal(got.error, HTTP_E_CUT);
        http_test_ask(t, (HttpRequestOptions){ .url = url(http_server.good, "/hold") }, &got);
        assert_int_equal(got.error, HTTP_E_STALLED);
        http_test_ask(t,
                      (HttpRequestOptions){ .url = url(http_server.good, "/early-deaf"),
                                            .body = body,
                                            .body_bytes = 5 * MIB },
                      &got);
        assert_string_equal(got.text, "");
        assert_int_equal(got.status, 403);
        for (int i = 0; i < 10; i++) {
                http_test_ask(t, (HttpRequestOptions){ .url = url(http_server.good, "/echo") },
                              &got);
                http_test_ask(
                        t,
                        (HttpRequestOptions){ .url = url(http_server.good, "/reset-second?at=body"),
                                              .body = body,
                                              .body_bytes = 5 * MIB },
                        &got);
                assert_string_equal(got.text, "");
                assert_non_null(strstr(got.body, crc));
        }
}

static void a_request_over_tls_can_be_given_up(void **state) {
        HttpTest *t = *state;
        HttpCall *call;
        Got got;

        NEED_CERTIFICATES();
        trust(t, "ca.pem", (HttpPoolOptions){ .max_connections = 1 });
        for (unsigned turns = 0; turns < 20; turns++) { /* in the handshake and after it */
                call = http_test_begin(
                        t, (HttpRequestOptions){ .url = url(http_server.good, "/hold") }, &got);
                for (unsigned i = 0; i < turns; i++)
                        assert_true(sd_event_run(t->event, 20 * USEC_PER_MSEC) >= 0);
                assert_null(http_call_cancel(call));
                assert_false(got.is_done);
        }
        http_test_ask(t, (HttpRequestOptions){ .url = url(http_server.good, "/echo") }, &got);
        assert_int_equal(got.error, 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                HTTP_TEST(a_certificate_of_the_own_ca_is_believed),
                HTTP_TEST(other_certificates_are_not_believed),
                HTTP_TEST(a_ca_file_that_is_not_there_or_empty_is_reported),
                HTTP_TEST(plain_and_tls_do_not_understand_each_other),
                HTTP_TEST(bodies_and_faults_are_as_without_tls),
                HTTP_TEST(a_request_over_tls_can_be_given_up),
        };

        return cmocka_run_group_tests_name("loop/http: TLS", tests, http_server_start_tls,
                                           http_server_stop);
}
