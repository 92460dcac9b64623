/* What goes wrong: who is not there, who is silent, who breaks off, who refuses; and requests that
 * are given up. */
#include "tests/lib/http/http_fixture.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

/* ── names ── */

/* libcurl's look-ups come here. Names that begin with `slow` are answered when the test lets them
 * be, those with `none` never. */
static struct {
        pthread_mutex_t mutex;
        pthread_cond_t changed;
        unsigned n_waiting, n_left;
        bool is_open;
} lookups = { .mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                struct addrinfo **ret) {
        int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **) = NULL;

        *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
        if (name && strncmp(name, "none", 4) == 0)
                return EAI_NONAME;
        if (!name || strncmp(name, "slow", 4) != 0)
                return real(name, service, hints, ret);
        (void)pthread_mutex_lock(&lookups.mutex);
        lookups.n_waiting++;
        while (!lookups.is_open)
                (void)pthread_cond_wait(&lookups.changed, &lookups.mutex);
        lookups.n_left++;
        (void)pthread_cond_broadcast(&lookups.changed);
        (void)pthread_mutex_unlock(&lookups.mutex);
        return real("127.0.0.1", service, hints, ret);
}

static unsigned n_lookups_waiting(void) {
        (void)pthread_mutex_lock(&lookups.mutex);
        unsigned n = lookups.n_waiting - lookups.n_left;
        (void)pthread_mutex_unlock(&lookups.mutex);
        return n;
}

static void open_lookups(bool is_open) {
        (void)pthread_mutex_lock(&lookups.mutex);
        lookups.is_open = is_open;
        (void)pthread_cond_broadcast(&lookups.changed);
        while (is_open && lookups.n_left < lookups.n_waiting)
                (void)pthread_cond_wait(&lookups.changed, &lookups.mutex);
        (void)pthread_mutex_unlock(&lookups.mutex);
}

/* A libcurl that says it is older than CURLOPT_QUICK_EXIT, or that it cannot do something. */
static unsigned fake_version;
static int fake_missing;

curl_version_info_data *__real_curl_version_info(CURLversion v);
curl_version_info_data *__wrap_curl_version_info(CURLversion v);
curl_version_info_data *__wrap_curl_version_info(CURLversion v) {
        static curl_version_info_data data;

        data = *__real_curl_version_info(v);
        if (fake_version)
                data.version_num = fake_version;
        data.features &= ~fake_missing;
        return &data;
}

static int names_setup(void **state) {
        fake_version = 0;
        fake_missing = 0;
        open_lookups(false);
        return http_test_setup(state);
}

static int names_teardown(void **state) {
        int r;

        open_lookups(true); /* or an old libcurl would wait for ever */
        r = http_test_teardown(state);
        fake_version = 0;
        fake_missing = 0;
        return r;
}

static const char *slow_url(void) {
        return http_test_url_at("http://slow.example", http_server.port, "/echo");
}

static void a_name_without_an_address_is_reported(void **state) {
        HttpTest *t = *state;
        Got got;

        http_test_ask(t, (HttpRequestOptions){ .url = "http://none.example:81/x" }, &got);
        assert_int_equal(got.error, HTTP_E_RESOLVE);
        assert_int_equal(got.status, 0);
        assert_non_null(strstr(got.text, "none.example:81: "));
        http_test_ask(t, (HttpRequestOptions){ .url = "https://none.example/x" }, &got);
        assert_non_null(strstr(got.text, "none.example:443: "));
}

static void a_slow_name_holds_nobody_up(void **state) {
        HttpTest *t = *state;
        Got slow, quick;

        (void)http_test_begin(t, (HttpRequestOptions){ .url = slow_url() }, &slow);
        HTTP_TEST_UNTIL(t, n_lookups_waiting() == 1);
        http_test_ask(t, (HttpRequestOptions){ .url = http_test_url("/echo") }, &quick);
        assert_int_equal(quick.error, 0);
        assert_false(slow.is_done);
        open_lookups(true);
        http_test_wait(t, &slow);
        assert_string_equal(slow.text, "");
}

static void a_name_that_is_not_found_in_time_is_reported_in_time(void **state) {
        HttpTest *t = *state;
        uint64_t begun = http_test_now();
        Got got;

        http_test_pool(t, (HttpPoolOptions){ .connect_timeout_usec = 100 * USEC_PER_MSEC });
        http_test_ask(t, (HttpRequestOptions){ .url = slow_url() }, &got);
        assert_int_equal(got.error, HTTP_E_RESOLVE);
        assert_non_null(strstr(got.text, "slow.example:"));
        assert_non_null(strstr(got.text, "the name was not found within 100ms"));
        assert_int_equal(n_lookups_waiting(), 1); /* which is still going on */
        http_test_ask(t,
                      (HttpRequestOptions){ .url = slow_url(), .timeout_usec = 50 * USEC_PER_MSEC },
                      &got);
        assert_int_equal(got.error, HTTP_E_TIMEOUT);
        assert_true(http_test_now() - begun < 10 * USEC_PER_SEC);
}

static void a_request_is_given_up_in_the_middle_of_a_lookup(void **state) {
        HttpTest *t = *state;
        HttpCall *call;
        Got got, next;

        call = http_test_begin(t, (HttpRequestOptions){ .url = slow_url() }, &got);
        HTTP_TEST_UNTIL(t, n_lookups_waiting() == 1);
        assert_null(http_call_cancel(call));
        http_test_settle(t);
        assert_int_equal(n_lookups_waiting(), 1);
        http_test_ask(t, (HttpRequestOptions){ .url = http_test_url("/echo") }, &next);
        assert_int_equal(next.error, 0);
        open_lookups(true);
        http_test_settle(t);
        assert_false(got.is_done);
}

static void an_older_libcurl_is_not_waited_for_either(void **state) {
        HttpTest *t = *state;
        Got first, got, next;
        HttpCall *call;

        fake_version = 0x075100; /* 7.81.0 */
        http_test_pool(t, (HttpPoolOptions){ .max_connections = 2,
                                             .connect_timeout_usec = 100 * USEC_PER_MSEC });
        http_test_ask(t, (HttpRequestOptions){ .url = slow_url() }, &first);
        assert_int_equal(first.error, HTTP_E_RESOLVE);
        call = http_test_begin(t, (HttpRequestOptions){ .url = slow_url() }, &got);
        HTTP_TEST_UNTIL(t, n_lookups_waiting() == 2);
        assert_null(http_call_cancel(call));
        (void)http_test_begin(t, (HttpRequestOptions){ .url = http_test_url("/echo") }, &next);
        http_test_settle(t);
        assert_false(next.is_done); /* both turns are still taken by look-ups */
        assert_int_equal(n_lookups_waiting(), 2);
        open_lookups(true);
        http_test_wait(t, &next);
        assert_string_equal(next.text, "");
        assert_false(got.is_done);
        assert_int_equal(first.n_done, 1);
}

static void a_libcurl_that_would_block_or_has_no_tls_is_refused(void **state) {
        HttpTest *t = *state;
        HttpPool *pool = NULL;

        fake_missing = CURL_VERSION_ASYNCHDNS;
        assert_int_equal(http_pool_new(&pool, t->event, &(HttpPoolOptions){ .max_connections = 1 }),
                         -EOPNOTSUPP);
        fake_missing = CURL_VERSION_SSL;
        assert_int_equal(http_pool_new(&pool, t->event, &(HttpPoolOptions){ .max_connections = 1 }),
                         -EOPNOTSUPP);
        assert_null(pool);
}

/* ── connecting ── */

/* A socket of 127.0.0.1 that is bound; listening with a backlog unless that is -1. */
static int bound_socket(int backlog, unsigned *ret_port) {
        struct sockaddr_in address = { .sin_family = AF_INET,
                                       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        socklen_t size = sizeof address;
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

        assert_true(fd >= 0);
        assert_int_equal(bind(fd, (struct sockaddr *)&address, size), 0);
        if (backlog >= 0)
                assert_int_equal(listen(fd, backlog), 0);
        assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &size), 0);
        *ret_port = ntohs(address.sin_port);
        return fd;
}

/* One that answers no more connections: its backlog is full. @param full the connections that fill
 * it */
static int full_socket(unsigned *ret_port, int full[static 2]) {
        int fd = bound_socket(0, ret_port);
        struct sockaddr_in address = { .sin_family = AF_INET,
                                       .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                       .sin_port = htons((uint16_t)*ret_port) };

        for (int i = 0; i < 2; i++) {
                full[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
                assert_true(full[i] >= 0);
                (void)connect(full[i], (struct sockaddr *)&address,
                              sizeof address); /* the second is left waiting */
        }
        return fd;
}

static void a_refused_connection_is_reported(void **state) {
        HttpTest *t = *state;
        char expected[64];
        unsigned port;
        _cleanup_close_ int fd = bound_socket(-1, &port);
        Got got;

        assert_true(fd >= 0);
        http_test_ask(t,
                      (HttpRequestOptions){
                              .url = http_test_url_at("http://127.0.0.1", port, "/x?secret=1") },
                      &got);
        assert_int_equal(got.error, HTTP_E_CONNECT);
        (void)snprintf(expected, sizeof expected, "127.0.0.1:%u: connection refused", port);
        assert_string_equal(got.text, expected);
        assert_int_equal(got.status, 0);
}

static void who_does_not_answer_is_not_waited_for_long(void **state) {
        HttpTest *t = *state;
        int full[2];
        unsigned port;
        _cleanup_close_ int fd = full_socket(&port, full);
        Got got;

        assert_true(fd >= 0);
        http_test_pool(t, (HttpPoolOptions){ .connect_timeout_usec = 150 * USEC_PER_MSEC });
        http_test_ask(
                t, (HttpRequestOptions){ .url = http_test_url_at("http://127.0.0.1", port, "/") },
                &got);
        assert_int_equal(got.error, HTTP_E_CONNECT);
        assert_non_null(strstr(got.text, ": no answer within 150ms"));
        (void)close(full[0]);
        (void)close(full[1]);
}

static void the_next_address_of_a_host_is_tried(void **state) {
        HttpTest *t = *state;
        char line[128];
        const char *const resolve[] = { line, NULL };
        Got got;

        /* 127.0.0.2 has nobody at this port. */
        (void)snprintf(line, sizeof line, "two.example:%u:127.0.0.2,127.0.0.1", http_server.port);
        http_test_pool(t, (HttpPoolOptions){ .resolve = resolve });
        http_test_ask(t,
                      (HttpRequestOptions){ .url = http_test_url_at("http://two.example",
                                                                    http_server.port, "/echo") },
                      &got);
        assert_string_equal(got.text, "");
        assert_int_equal(got.status, 200);
}

/* ── time ── */

static void silence_is_noticed_in_every_place(void **state) {
        static const struct {
                const char *path;
                size_t body_bytes;
                unsigned status;
        } cases[] = {
                { "/hold", 0, 0 },        /* no answer */
                { "/hold", 1 * MIB, 0 },  /* nor after all is sent */
                { "/half?hold", 0, 200 }, /* in the middle of one */
                { "/deaf", 64 * MIB, 0 }, /* what is sent is not read */
        };
        HttpTest *t = *state;
        Got got;

        http_test_pool(t, (HttpPoolOptions){ .stall_usec = 150 * USEC_PER_MSEC });
        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                _cleanup_free_ char *body =
                        cases[i].body_bytes ? http_test_body(cases[i].body_bytes) : NULL;
                uint64_t begun = http_test_now();

                http_test_ask(t,
                              (HttpRequestOptions){ .url = http_test_url(cases[i].path),
                                                    .body = body,
                                                    .body_bytes = cases[i].body_bytes },
                              &got);
                assert_int_equal(got.error, HTTP_E_STALLED);
                assert_int_equal(got.status, cases[i].status);
                assert_non_null(strstr(got.text, "127.0.0.1:"));
                assert_non_null(strstr(got.text, "nothing moved for 150ms"));
                assert_in_range(http_test_now() - begun, 150 * USEC_PER_MSEC, 20 * USEC_PER_SEC);
        }
        assert_in_range(got.sent_bytes, 1, 64 * MIB - 1);
}

static void slow_is_not_silent(void **state) {
        HttpTest *t = *state;
        _cleanup_free_ char *body = http_test_body(2 * MIB);
        Got got;

        http_test_pool(t, (HttpPoolOptions){ .stall_usec = 400 * USEC_PER_MSEC });
        http_test_ask(t, (HttpRequestOptions){ .url = http_test_url("/dribble?n=20&every=0.05") },
                      &got);
        assert_string_equal(got.text, "");
        assert_int_equal(got.body_bytes, 20);
        /* The peer takes seconds for what the kernel takes at once. */
        http_test_ask(t,
                      (HttpRequestOptions){ .url = http_test_url_at("http://127.0.0.1",
                                                                    http_server.narrow,
                                                                    "/slow-reader?pace=0.02"),
                                            .body = body,
                                            .body_bytes = 2 * MIB },
                      &got);
        assert_string_equal(got.text, "");
        assert_in_range(got.duration_usec, 800 * USEC_PER_MSEC, HTTP_TEST_PATIENCE_USEC);
}

static void a_loop_that_was_held_up_does_not_mistake_that_for_silence(void **state) {
        static const char *const paths[] = { "/echo", "/big?n=100000", "/dribble?n=1&every=0.01" };
        HttpTest *t = *state;

        /* So long that the server's threads have their turn in it, on a busy machine too. */
        http_test_pool(t, (HttpPoolOptions){ .stall_usec = 400 * USEC_PER_MSEC,
                                             .connect_timeout_usec = 400 * USEC_PER_MSEC });
        for (unsigned n_turns = 0; n_turns < 200; n_turns += n_turns < 10 ? 1 : 40) {
                static Got got[20];
                uint64_t until;

                for (unsigned i = 0; i < ELEMENTSOF(got); i++)
                        (void)http_test_begin(
                                t,
                                (HttpRequestOptions){
                                        .url = http_test_url(paths[i % ELEMENTSOF(paths)]) },
                                &got[i]);
                for (unsigned i = 0; i < n_turns; i++)
                        assert_true(sd_event_run(t->event, 0) >= 0);
                until = http_test_now() + 500 * USEC_PER_MSEC;
                while (http_test_now() < until)
                        ; /* busy with something else */
                for (unsigned i = 0; i < ELEMENTSOF(got); i++) {
                        http_test_wait(t, &got[i]);
                        assert_string_equal(got[i].text, "");
                }
        }
}

static void all_of_it_may_be_bounded(void **state) {
        HttpTest *t = *state;
        Got got, first;

        http_test_ask(t,
                      (HttpRequestOptions){ .url = http_test_url("/hold"),
                                            .timeout_usec = 100 * USEC_PER_MSEC },
                      &got);
        assert_int_equal(got.error, HTTP_E_TIMEOUT);
        assert_non_null(strstr(got.text, ": not done within 100ms"));
        http_test_ask(t,
                      (HttpRequestOptions){ .url = http_test_url("/dribble?n=10000&every=0.01"),
                                            .timeout_usec = 100 * USEC_PER_MSEC },
                      &got);
        assert_int_equal(got.error, HTTP_E_TIMEOUT);
        assert_int_equal(got.status, 200);
        http_test_pool(t, (HttpPoolOptions){ .max_connections = 1 });
        (void)http_test_begin(t, (HttpRequestOptions){ .url = http_test_url("/hold") }, &first);
        http_test_ask(t,
                      (HttpRequestOptions){ .url = http_test_url("/echo"),
                                            .timeout_usec = 100 * USEC_PER_MSEC },
                      &got);
        assert_int_equal(got.error, HTTP_E_TIMEOUT); /* waiting for a turn counts here */
        assert_int_equal(got.duration_usec, 0);
}

/* ── breaking off ── */

static void a_reply_that_breaks_off_is_no_reply(void **state) {
        static const struct {
                const char *path;
                unsigned status;
        } cases[] = {
                { "/nothing?secret", 0 },        { "/half?secret", 200 },
                { "/chunked-half?secret", 200 }, { "/half-head?secret", 200 },
                { "/rubbish?secret", 0 },
        };
        HttpTest *t = *state;
        Got got;

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                http_test_ask(t, (HttpRequestOptions){ .url = http_test_url(cases[i].path) }, &got);
                assert_int_equal(got.error, HTTP_E_CUT);
                assert_int_equal(got.status, cases[i].status);
                assert_int_equal(strncmp(got.text, "127.0.0.1:", 10), 0);
                assert_null(strstr(got.text, "secret"));
        }
}

static void an_answer_that_comes_before_all_is_sent_is_the_answer(void **state) {
        static const char *const paths[] = { "/early",      "/early?say",      "/early?s=503",
                                             "/early-deaf", "/early-deaf?say", "/early-lingering",
                                             "/early?s=307" };
        static const unsigned statuses[] = { 403, 403, 503, 403, 403, 403, 307 };
        HttpTest *t = *state;
        _cleanup_free_ char *body = http_test_body(8 * MIB);
        Got got;

        for (size_t i = 0; i < ELEMENTSOF(paths) * 30; i++) {
                size_t k = i % ELEMENTSOF(paths);

                http_test_ask(t,
                              (HttpRequestOptions){ .url = http_test_url(paths[k]),
                                                    .body = body,
                                                    .body_bytes = 8 * MIB },
                              &got);
                assert_string_equal(got.text, "");
                assert_int_equal(got.status, statuses[k]);
                assert_string_equal(got.body, "<Error>no</Error>");
                assert_true(got.sent_bytes < 8 * MIB || strstr(paths[k], "lingering"));
        }
}

static void a_success_before_all_is_sent_is_not_believed(void **state) {
        HttpTest *t = *state;
        _cleanup_free_ char *body = http_test_body(64 * MIB);
        Got got;

        http_test_ask(t,
                      (HttpRequestOptions){ .url = http_test_url("/early?s=200"),
                                            .body = body,
                                            .body_bytes = 64 * MIB },
                      &got);
        assert_int_equal(got.error, HTTP_E_CUT);
}

/* ── proxies ── */

static void a_proxy_that_refuses_or_is_not_there_is_reported(void **state) {
        HttpTest *t = *state;
        char proxy[64];
        unsigned port;
        _cleanup_close_ int fd = bound_socket(-1, &port);
        Got got;

        assert_true(fd >= 0);
        (void)snprintf(proxy, sizeof proxy, "http://127.0.0.1:%u", http_server.proxy);
        http_test_pool(t, (HttpPoolOptions){ .proxy = proxy });
        http_test_ask(t, (HttpRequestOptions){ .url = "https://s3.example/secret" }, &got);
        assert_int_equal(got.error, HTTP_E_PROXY);
        assert_string_equal(got.text, "s3.example:443: the proxy refuses with status 403");
        http_test_ask(t, (HttpRequestOptions){ .url = "http://s3.example/secret" }, &got);
        assert_int_equal(got.error, HTTP_E_PROXY);
        assert_string_equal(got.text, "s3.example:80: the proxy refuses with status 407");

        (void)snprintf(proxy, sizeof proxy, "http://127.0.0.1:%u", port);
        http_test_pool(t, (HttpPoolOptions){ .proxy = proxy });
        http_test_ask(t, (HttpRequestOptions){ .url = "https://s3.example/secret" }, &got);
        assert_int_equal(got.error, HTTP_E_PROXY);
        char expected[128];
        (void)snprintf(expected, sizeof expected,
                       "s3.example:443: the proxy 127.0.0.1:%u cannot be used: connection refused",
                       port);
        assert_string_equal(got.text, expected);
        (void)snprintf(expected, sizeof expected, "http://127.0.0.1:%u/",
                       http_server.proxy); /* another port of the proxy's host */
        http_test_ask(t, (HttpRequestOptions){ .url = expected }, &got);
        assert_int_equal(got.error, HTTP_E_PROXY);
        http_test_pool(t, (HttpPoolOptions){ .proxy = "http://none.example:3128" });
        http_test_ask(t, (HttpRequestOptions){ .url = "https://s3.example/secret" }, &got);
        assert_int_equal(got.error, HTTP_E_PROXY);
}

static void a_proxy_is_read_from_the_environment_unless_set_otherwise(void **state) {
        HttpTest *t = *state;
        char proxy[64];
        Got got;

        (void)snprintf(proxy, sizeof proxy, "http://127.0.0.1:%u", http_server.proxy);
        assert_int_equal(setenv("http_proxy", proxy, 1), 0);
        http_test_pool(t, (HttpPoolOptions){ .proxy = "" });
        http_test_ask(t, (HttpRequestOptions){ .url = http_test_url("/echo") }, &got);
        assert_int_equal(got.error, HTTP_E_PROXY);
        http_test_pool(t, (HttpPoolOptions){ .proxy = "-" });
        http_test_ask(t, (HttpRequestOptions){ .url = http_test_url("/echo") }, &got);
        assert_int_equal(got.error, 0);
        assert_int_equal(unsetenv("http_proxy"), 0);
}

/* ── giving up ── */

typedef struct Stage {
        const char *name;
        const char *path;
        size_t body_bytes;
        uint64_t sent_bytes; /* reached when so much of it is sent */
        bool sees_data;      /* reached when the receiver has got something */
        bool turns;          /* reached when the loop has come to rest */
} Stage;

static unsigned n_data;
static int count_data(HttpCall *call, const void *data, size_t n, void *userdata) {
        (void)call;
        (void)data;
        (void)n;
        (void)userdata;
        n_data++;
        return 0;
}

static const Stage stages[] = {
        { "not begun", "/echo", 0, 0, false, false },
        { "begun", "/hold", 0, 0, false, true },
        { "sending", "/deaf", 64 * MIB, 1, false, false },
        { "all is sent", "/hold", 1 * MIB, 1 * MIB, false, true },
        { "receiving", "/half?hold", 0, 0, true, false },
};

static HttpCall *reach(HttpTest *t, const Stage *s, const char *body, Got *got) {
        HttpCall *call;

        n_data = 0;
        call = http_test_begin(t,
                               (HttpRequestOptions){ .method = s->body_bytes ? "PUT" : "GET",
                                                     .url = http_test_url(s->path),
                                                     .body = s->body_bytes ? body : NULL,
                                                     .body_bytes = s->body_bytes,
                                                     .on_data = count_data },
                               got);
        if (s->sent_bytes > 0)
                HTTP_TEST_UNTIL(t, http_call_sent_bytes(call) >= s->sent_bytes);
        if (s->sees_data)
                HTTP_TEST_UNTIL(t, n_data > 0);
        if (s->turns)
                http_test_settle(t);
        assert_false(got->is_done);
        return call;
}

static void a_request_can_be_given_up_at_every_stage(void **state) {
        HttpTest *t = *state;
        _cleanup_free_ char *body = http_test_body(64 * MIB);

        for (size_t i = 0; i < ELEMENTSOF(stages); i++) {
                HttpCall *call;
                Got got, next;

                call = reach(t, &stages[i], body, &got);
                memset(body, 'x', 64 * MIB); /* it is ours again at once */
                assert_null(http_call_cancel(call));
                http_test_ask(t, (HttpRequestOptions){ .url = http_test_url("/echo") }, &next);
                assert_int_equal(next.error, 0);
                http_test_settle(t);
                assert_false(got.is_done);
        }
        assert_null(http_call_cancel(NULL));
}

static void a_pool_can_be_freed_at_every_stage(void **state) {
        HttpTest *t = *state;
        _cleanup_free_ char *body = http_test_body(64 * MIB);

        for (size_t i = 0; i < ELEMENTSOF(stages); i++) {
                Got got[3];

                http_test_pool(t, (HttpPoolOptions){ .max_connections = 2 });
                (void)reach(t, &stages[i], body, &got[0]);
                (void)http_test_begin(t, (HttpRequestOptions){ .url = http_test_url("/hold") },
                                      &got[1]);
                (void)http_test_begin(t, (HttpRequestOptions){ .url = http_test_url("/hold") },
                                      &got[2]); /* not its turn */
                t->pool = http_pool_free(t->pool);
                http_test_settle(t);
                for (int j = 0; j < 3; j++)
                        assert_false(got[j].is_done);
        }
        assert_null(http_pool_free(NULL));
}

static void a_request_that_waits_for_its_turn_can_be_given_up(void **state) {
        HttpTest *t = *state;
        HttpCall *first, *second;
        Got got[3];

        http_test_pool(t, (HttpPoolOptions){ .max_connections = 1 });
        first = http_test_begin(t, (HttpRequestOptions){ .url = http_test_url("/hold") }, &got[0]);
        second = http_test_begin(t, (HttpRequestOptions){ .url = http_test_url("/hold") }, &got[1]);
        (void)http_test_begin(t, (HttpRequestOptions){ .url = http_test_url("/echo") }, &got[2]);
        http_test_settle(t);
        assert_null(http_call_cancel(second));
        http_test_settle(t);
        assert_false(got[2].is_done);
        assert_null(http_call_cancel(first)); /* whose turn passes on */
        http_test_wait(t, &got[2]);
        assert_int_equal(got[2].error, 0);
        assert_false(got[0].is_done || got[1].is_done);
}

/* Whom a callback gives up, and whom it begins. */
typedef struct Meddler {
        HttpTest *t;
        HttpCall *victims[3];
        unsigned n_done, n_begun_done;
        int error;
} Meddler;

static void meddler_begun_done(const HttpReply *r, void *userdata) {
        Meddler *m = userdata;

        assert_int_equal(r->error, 0);
        m->n_begun_done++;
}

static void meddle(Meddler *m) {
        for (size_t i = 0; i < ELEMENTSOF(m->victims); i++)
                m->victims[i] = http_call_cancel(m->victims[i]);
        assert_int_equal(http_call_new(NULL, m->t->pool,
                                       &(HttpRequestOptions){ .method = "GET",
                                                              .url = http_test_url("/echo"),
                                                              .on_done = meddler_begun_done,
                                                              .userdata = m }),
                         0);
}

static int meddler_data(HttpCall *call, const void *data, size_t n, void *userdata) {
        (void)call;
        (void)data;
        (void)n;
        meddle(userdata);
        return 0;
}

static void meddler_done(const HttpReply *r, void *userdata) {
        Meddler *m = userdata;

        m->error = r->error;
        m->n_done++;
        meddle(m);
}

static void callbacks_may_give_up_and_begin_other_requests(void **state) {
        HttpTest *t = *state;

        for (int round = 0; round < 20; round++) {
                Meddler m = { .t = t };
                Got got[3];

                /* Three that are done, under way, and not begun: some of them in the same turn of
                 * the loop as the meddler. */
                m.victims[0] = http_test_begin(
                        t, (HttpRequestOptions){ .url = http_test_url("/hold") }, &got[0]);
                m.victims[1] = http_test_begin(
                        t, (HttpRequestOptions){ .url = http_test_url("/half?hold") }, &got[1]);
                http_test_settle(t);
                m.victims[2] = http_test_begin(
                        t, (HttpRequestOptions){ .url = http_test_url("/hold") }, &got[2]);
                assert_int_equal(http_call_new(NULL, t->pool,
                                               &(HttpRequestOptions){
                                                       .method = "GET",
                                                       .url = http_test_url("/big?n=100"),
                                                       .on_data = round % 2 ? meddler_data : NULL,
                                                       .on_done = meddler_done,
                                                       .userdata = &m }),
                                 0);
                HTTP_TEST_UNTIL(t, m.n_done == 1 && m.n_begun_done == (round % 2 ? 2 : 1));
                assert_int_equal(m.error, 0);
                for (int i = 0; i < 3; i++)
                        assert_false(got[i].is_done);
        }
}

#define NAMES_TEST(name) cmocka_unit_test_setup_teardown(name, names_setup, names_teardown)

int main(void) {
        const struct CMUnitTest tests[] = {
                NAMES_TEST(a_name_without_an_address_is_reported),
                NAMES_TEST(a_slow_name_holds_nobody_up),
                NAMES_TEST(a_name_that_is_not_found_in_time_is_reported_in_time),
                NAMES_TEST(a_request_is_given_up_in_the_middle_of_a_lookup),
                NAMES_TEST(an_older_libcurl_is_not_waited_for_either),
                NAMES_TEST(a_libcurl_that_would_block_or_has_no_tls_is_refused),
                HTTP_TEST(a_refused_connection_is_reported),
                HTTP_TEST(who_does_not_answer_is_not_waited_for_long),
                HTTP_TEST(the_next_address_of_a_host_is_tried),
                HTTP_TEST(silence_is_noticed_in_every_place),
                HTTP_TEST(slow_is_not_silent),
                HTTP_TEST(a_loop_that_was_held_up_does_not_mistake_that_for_silence),
                HTTP_TEST(all_of_it_may_be_bounded),
                HTTP_TEST(a_reply_that_breaks_off_is_no_reply),
                HTTP_TEST(an_answer_that_comes_before_all_is_sent_is_the_answer),
                HTTP_TEST(a_success_before_all_is_sent_is_not_believed),
                HTTP_TEST(a_proxy_that_refuses_or_is_not_there_is_reported),
                HTTP_TEST(a_proxy_is_read_from_the_environment_unless_set_otherwise),
                HTTP_TEST(a_request_can_be_given_up_at_every_stage),
                HTTP_TEST(a_pool_can_be_freed_at_every_stage),
                HTTP_TEST(a_request_that_waits_for_its_turn_can_be_given_up),
                HTTP_TEST(callbacks_may_give_up_and_begin_other_requests),
        };

        return cmocka_run_group_tests_name("loop/http: faults", tests, http_server_start,
                                           http_server_stop);
}
