/* Sending at a rate: what is sent is what is booked, waiting is no stall, standing still is one,
 * and nobody is left behind. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/lib/http/http_fixture.h"
#include "uploaders/ratelimit.h"

/* ── a server that counts ── */

static struct {
        int fd;
        unsigned port;
        atomic_uint_fast64_t n_bytes;
        atomic_uint n_connections;
        atomic_bool refuses_early; /* says 503 when it has a head, and reads no further */
        atomic_bool is_deaf;       /* reads nothing */
        atomic_bool drops_kept;    /* closes a kept connection when it has the next head */
} sink;

static void answer(int fd, const char *status) {
        char text[128];
        int n = snprintf(text, sizeof text, "HTTP/1.1 %s\r\nContent-Length: 0\r\n\r\n", status);

        (void)!write(fd, text, (size_t)n); /* who has gone does not want it */
}

/* @return bytes of the body that follows, -1: there is no whole head yet */
static long body_of(const char *head) {
        const char *length = strcasestr(head, "content-length:");

        if (!strstr(head, "\r\n\r\n"))
                return -1;
        return length ? strtol(length + 15, NULL, 10) : 0;
}

static void *serve(void *userdata) {
        int fd = (int)(intptr_t)userdata;
        static _Thread_local char head[65536], piece[65536];
        size_t n_head = 0, n_requests = 0;
        long left = -1;
        bool is_done = false;

        while (!is_done) {
                while (atomic_load(&sink.is_deaf))
                        (void)poll(NULL, 0, 5);
                char *to = left < 0 ? head + n_head : piece;
                size_t room = left < 0 ? 1 : MIN(sizeof piece, (size_t)left);
                ssize_t n = recv(fd, to, room, 0);
                if (n <= 0)
                        break;
                atomic_fetch_add(&sink.n_bytes, (uint64_t)n);
                if (left < 0) {
                        n_head += (size_t)n;
                        head[n_head] = '\0';
                        left = body_of(head);
                        n_requests += left >= 0;
                        if (n_requests > 1 && atomic_load(&sink.drops_kept))
                                break;
                        if (left > 0 && atomic_load(&sink.refuses_early)) {
                                answer(fd, "503 Slow Down");
                                (void)poll(&(struct pollfd){ .fd = fd, .events = POLLHUP }, 1,
                                           60000);
                                is_done = true;
                        }
                } else {
                        left -= n;
                }
                if (left == 0) {
                        answer(fd, "200 OK");
                        n_head = 0;
                        left = -1;
                }
        }
        (void)close(fd);
        return NULL;
}

static void *accept_all(void *userdata) {
        int fd;

        (void)userdata;
        while ((fd = accept(sink.fd, NULL, NULL)) >= 0) {
                pthread_t thread;
                atomic_fetch_add(&sink.n_connections, 1);
                if (pthread_create(&thread, NULL, serve, (void *)(intptr_t)fd) == 0)
                        (void)pthread_detach(thread);
        }
        return NULL;
}

static int sink_start(void **state) {
        struct sockaddr_in address = { .sin_family = AF_INET,
                                       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        socklen_t n = sizeof address;
        const int room = 65536; /* little is on the way when it does not read */
        pthread_t thread;

        assert_int_equal(http_global_init(), 0);
        sink.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(setsockopt(sink.fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room), 0);
        assert_int_equal(bind(sink.fd, (struct sockaddr *)&address, sizeof address), 0);
        assert_int_equal(listen(sink.fd, 64), 0);
        assert_int_equal(getsockname(sink.fd, (struct sockaddr *)&address, &n), 0);
        sink.port = ntohs(address.sin_port);
        assert_int_equal(pthread_create(&thread, NULL, accept_all, NULL), 0);
        return pthread_detach(thread);
}

/* ── a throttle that counts ── */

typedef struct Meter {
        RateLimit *throttle;
        uint64_t booked, returned; /* cost */
        uint64_t price;            /* a byte's */
        double nsec_per_cost;      /* of the latest booking */
        size_t largest;
        unsigned n_wastes;
} Meter;

static uint64_t meter_book(uint64_t n, uint64_t *ret_cost, void *userdata) {
        Meter *m = userdata;
        uint64_t nsec, wait = ratelimit_book(m->throttle, n, &nsec);

        *ret_cost = n * m->price;
        m->booked += *ret_cost;
        m->largest = MAX(m->largest, n);
        if (n > 0)
                m->nsec_per_cost = (double)nsec / (double)*ret_cost;
        return wait;
}

static void meter_give_back(uint64_t cost, void *userdata) {
        Meter *m = userdata;

        m->returned += cost;
        ratelimit_refund(m->throttle, (uint64_t)((double)cost * m->nsec_per_cost));
}

static void meter_waste(void *userdata) {
        Meter *m = userdata;

        m->n_wastes++;
        ratelimit_discard_savings(m->throttle);
}

static size_t meter_piece(void *userdata) {
        return ratelimit_piece(((Meter *)userdata)->throttle);
}

static void meter_init(Meter *m, HttpTest *t, uint64_t rate, HttpPoolOptions options) {
        const HttpRateLimitHooks throttle = { .book = meter_book,
                                              .refund = meter_give_back,
                                              .discard_savings = meter_waste,
                                              .piece = meter_piece,
                                              .userdata = m };

        *m = (Meter){ .price = 1 };
        assert_int_equal(ratelimit_new(&m->throttle, clock_system(),
                                       &(RateSchedule){ .rate = rate }, RATE_SAVING_USEC),
                         0);
        options.throttle = &throttle;
        http_test_pool(t, options);
        atomic_store(&sink.n_bytes, 0);
        atomic_store(&sink.refuses_early, false);
        atomic_store(&sink.is_deaf, false);
        atomic_store(&sink.drops_kept, false);
}

static void meter_done(Meter *m, HttpTest *t) {
        t->pool = http_pool_free(t->pool); /* it still asks the throttle */
        ratelimit_unref(m->throttle);
        atomic_store(&sink.is_deaf, false);
}

static HttpRequestOptions put(const char *body, size_t n) {
        static const char *const headers[] = { "x-amz-date: 20260101T000000Z", NULL };

        return (HttpRequestOptions){ .method = "PUT",
                                     .url = http_test_url_at("http://127.0.0.1", sink.port,
                                                             "/key?x=y"),
                                     .headers = headers,
                                     .body = body,
                                     .body_bytes = n };
}

/* ── tests ── */

static void what_is_sent_is_what_was_booked_to_the_byte(void **state) {
        _cleanup_free_ char *body = http_test_body(300000);
        HttpTest *t = *state;
        Meter m;
        Got got = { 0 };

        meter_init(&m, t, 4 * MIB, (HttpPoolOptions){ .max_connections = 2 });
        for (size_t i = 0; i < 8;
             i++) { /* on kept connections, small and large, with and without a body */
                size_t n = i % 4 == 3 ? 0 : i % 4 == 2 ? 10 : 300000 - i;
                http_test_ask(t, put(n ? body : NULL, n), &got);
                assert_int_equal(got.error, 0);
                assert_int_equal(got.status, 200);
                assert_int_equal(got.sent_bytes, n);
                uint64_t sent = atomic_load(&sink.n_bytes);
                /* What was booked and not needed comes back when the connection is looked at. That
                 * of a connection is counted by the kernel, which counts a SYN as well. */
                HTTP_TEST_UNTIL(t,
                                m.booked - m.returned <= sent + atomic_load(&sink.n_connections));
                assert_true(m.booked - m.returned >= sent);
        }
        meter_done(&m, t);
}

static void what_libcurl_sends_again_by_itself_is_booked(void **state) {
        HttpTest *t = *state;
        Meter m;
        Got got = { 0 };

        meter_init(&m, t, 4 * MIB, (HttpPoolOptions){ .max_connections = 1 });
        http_test_ask(t, put(NULL, 0), &got);
        uint64_t once = atomic_load(&sink.n_bytes);
        atomic_store(&sink.drops_kept, true);
        http_test_ask(t, put(NULL, 0), &got);
        assert_int_equal(got.status, 200);
        assert_int_equal(atomic_load(&sink.n_bytes), 3 * once);
        assert_in_range(m.booked - m.returned, 3 * once, 3 * once + 2);
        meter_done(&m, t);
}

static void the_rate_is_kept(void **state) {
        _cleanup_free_ char *body = http_test_body(MIB);
        HttpTest *t = *state;
        Meter m;
        Got got[4] = { 0 };
        uint64_t begin = http_test_now();

        meter_init(&m, t, 2 * MIB, (HttpPoolOptions){ .max_connections = 4 });
        for (size_t i = 0; i < 4; i++)
                http_test_begin(t, put(body, MIB), &got[i]);
        for (size_t i = 0; i < 4; i++) {
                http_test_wait(t, &got[i]);
                assert_int_equal(got[i].error, 0);
        }
        assert_true(http_test_now() - begin >= 1950 * USEC_PER_MSEC);
        assert_true(m.largest <= 2 * MIB / 80); /* in small pieces */
        meter_done(&m, t);
}

static void all_who_send_get_their_share(void **state) {
        _cleanup_free_ char *body = http_test_body(MIB);
        HttpTest *t = *state;
        Meter m;
        Got got[4] = { 0 };
        HttpCall *calls[4];

        meter_init(&m, t, 4 * MIB, (HttpPoolOptions){ .max_connections = 4 });
        for (size_t i = 0; i < 4; i++)
                calls[i] = http_test_begin(t, put(body, MIB), &got[i]);
        HTTP_TEST_UNTIL(t, http_call_sent_bytes(calls[0]) >= MIB / 2);
        for (size_t i = 1; i < 4; i++)
                assert_in_range(http_call_sent_bytes(calls[i]), MIB / 4, MIB * 3 / 4);
        for (size_t i = 0; i < 4; i++)
                http_test_wait(t, &got[i]);
        meter_done(&m, t);
}

static void to_wait_for_ones_turn_is_no_stall(void **state) {
        _cleanup_free_ char *body = http_test_body(64 * KIB);
        HttpTest *t = *state;
        Meter m;
        Got got = { 0 };
        HttpCall *call;

        meter_init(&m, t, MIB, (HttpPoolOptions){ .stall_usec = 200 * USEC_PER_MSEC });
        call = http_test_begin(t, put(body, 64 * KIB), &got);
        HTTP_TEST_UNTIL(t, http_call_sent_bytes(call) > 0);
        (void)ratelimit_book(m.throttle, MIB, NULL); /* somebody else has taken the next second */
        http_test_wait(t, &got);
        assert_int_equal(got.error, 0);
        assert_int_equal(got.status, 200);
        assert_true(got.duration_usec >= 900 * USEC_PER_MSEC);
        meter_done(&m, t);
}

static void a_request_begins_when_its_head_may_go(void **state) {
        HttpTest *t = *state;
        Meter m;
        Got got = { 0 };
        uint64_t begin, took;

        meter_init(&m, t, MIB, (HttpPoolOptions){ .max_connections = 1 });
        (void)ratelimit_book(m.throttle, MIB / 2, NULL);
        begin = http_test_now();
        http_test_begin(t, put(NULL, 0), &got);
        http_test_wait(t, &got);
        assert_int_equal(got.status, 200);
        took = http_test_now() - begin;
        assert_true(took >= 400 * USEC_PER_MSEC);
        /* to wait for that does not count */
        assert_true(got.duration_usec <= took - 400 * USEC_PER_MSEC);
        meter_done(&m, t);
}

#define DEAF_BYTES (8 * MIB)

/* To a server that does not read. @param body  DEAF_BYTES, borrowed until it has ended */
static void begin_put_that_nobody_reads(HttpTest *t, Meter *m, char *body, uint64_t stall_usec,
                                        Got *got) {
        meter_init(m, t, 64 * MIB, (HttpPoolOptions){ .stall_usec = stall_usec });
        atomic_store(&sink.is_deaf, true);
        http_test_begin(t, put(body, DEAF_BYTES), got);
}

static void a_server_that_does_not_read_is_a_stall_and_holds_one_piece(void **state) {
        HttpTest *t = *state;
        Meter m;
        Got got = { 0 };
        _cleanup_free_ char *body = http_test_body(DEAF_BYTES);

        begin_put_that_nobody_reads(t, &m, body, 400 * USEC_PER_MSEC, &got);
        http_test_wait(t, &got);
        assert_int_equal(got.error, HTTP_E_STALLED);
        assert_true(m.n_wastes > 0);
        /* what the server's kernel has taken, and one piece */
        assert_in_range(got.sent_bytes, 1, 5 * 65536 + 64 * MIB / 80);
        meter_done(&m, t);
}

static void a_server_that_reads_again_gets_all_of_it(void **state) {
        HttpTest *t = *state;
        Meter m;
        Got got = { 0 };
        _cleanup_free_ char *body = http_test_body(DEAF_BYTES);

        begin_put_that_nobody_reads(t, &m, body, 20 * USEC_PER_SEC, &got);
        HTTP_TEST_UNTIL(t, m.n_wastes > 3);
        atomic_store(&sink.is_deaf, false);
        http_test_wait(t, &got);
        assert_int_equal(got.status, 200);
        assert_int_equal(got.sent_bytes, DEAF_BYTES);
        meter_done(&m, t);
}

static void an_early_answer_ends_a_request_that_waits(void **state) {
        _cleanup_free_ char *body = http_test_body(MIB);
        HttpTest *t = *state;
        Meter m;
        Got got = { 0 };

        meter_init(&m, t, 256 * KIB, (HttpPoolOptions){ .stall_usec = 20 * USEC_PER_SEC });
        atomic_store(&sink.refuses_early, true);
        http_test_ask(t, put(body, MIB), &got);
        assert_int_equal(got.error, 0);
        assert_int_equal(got.status, 503);
        assert_true(got.sent_bytes < MIB / 2);
        assert_true(got.duration_usec < 10 * USEC_PER_SEC);
        meter_done(&m, t);
}

static void a_call_that_is_given_up_gives_back(void **state) {
        _cleanup_free_ char *body = http_test_body(MIB);
        HttpTest *t = *state;
        Meter m;
        Got got[3] = { 0 };
        HttpCall *calls[3];

        meter_init(&m, t, MIB, (HttpPoolOptions){ .max_connections = 2 });
        for (size_t i = 0; i < 3; i++)
                calls[i] = http_test_begin(t, put(body, MIB), &got[i]);
        HTTP_TEST_UNTIL(t, http_call_sent_bytes(calls[0]) > 50000);
        for (size_t i = 0; i < 3; i++)
                http_call_cancel(calls[i]);
        http_test_settle(t);
        t->pool = http_pool_free(t->pool);
        uint64_t net = m.booked - m.returned;
        HTTP_TEST_UNTIL(t, atomic_load(&sink.n_bytes) + 3 >= net);
        assert_true(atomic_load(&sink.n_bytes) <= net);
        for (size_t i = 0; i < 3; i++)
                assert_false(got[i].is_done);
        meter_done(&m, t);
}

static void what_is_given_back_costs_what_it_did_when_it_was_booked(void **state) {
        HttpTest *t = *state;
        Meter m;
        Got got = { 0 };
        HttpCall *call;

        meter_init(&m, t, KIB, (HttpPoolOptions){ .max_connections = 1 });
        (void)ratelimit_book(m.throttle, MIB, NULL); /* nothing will go */
        m.price = 1000;
        call = http_test_begin(t, put(NULL, 0), &got);
        HTTP_TEST_UNTIL(t, m.booked > 0);
        m.price = 1;
        http_call_cancel(call);
        http_test_settle(t);
        assert_int_equal(m.returned, m.booked);
        meter_done(&m, t);
}

static void without_a_limit_now_all_goes_but_is_counted(void **state) {
        const size_t n = 16 * MIB;
        _cleanup_free_ char *body = http_test_body(n);
        HttpTest *t = *state;
        Meter m;
        Got got = { 0 };

        meter_init(&m, t, 0, (HttpPoolOptions){ .max_connections = 1 });
        http_test_ask(t, put(body, n), &got);
        assert_int_equal(got.status, 200);
        assert_true(m.booked - m.returned >= n);
        assert_true(m.largest <= 256 * KIB); /* a limit that begins now is not noticed too late */
        meter_done(&m, t);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                HTTP_TEST(what_is_sent_is_what_was_booked_to_the_byte),
                HTTP_TEST(what_libcurl_sends_again_by_itself_is_booked),
                HTTP_TEST(the_rate_is_kept),
                HTTP_TEST(all_who_send_get_their_share),
                HTTP_TEST(to_wait_for_ones_turn_is_no_stall),
                HTTP_TEST(a_request_begins_when_its_head_may_go),
                HTTP_TEST(a_server_that_does_not_read_is_a_stall_and_holds_one_piece),
                HTTP_TEST(a_server_that_reads_again_gets_all_of_it),
                HTTP_TEST(an_early_answer_ends_a_request_that_waits),
                HTTP_TEST(a_call_that_is_given_up_gives_back),
                HTTP_TEST(what_is_given_back_costs_what_it_did_when_it_was_booked),
                HTTP_TEST(without_a_limit_now_all_goes_but_is_counted),
        };
        return cmocka_run_group_tests(tests, sink_start, NULL);
}
