/* lib/http/mhd_loop: requests over a unix socket, clients that are slow, greedy or rude. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"
#include "lib/http/mhd_loop.h"

#define TURNS_MAX 20000

typedef struct Fixture {
        char dir[64];
        struct sockaddr_un address;
        sd_event *event;
        MhdLoop *http;
        int listening; /* http's */
        unsigned n_requests;
        char seen[256]; /* the last request: method path [name=value]… body-size */
        size_t sum;     /* of the body's bytes */
        char reply[128 * 1024];
        size_t reply_bytes;
} Fixture;

static void handler(const MhdRequest *request, HttpResponse *ret, void *userdata) {
        Fixture *f = userdata;
        int n = snprintf(f->seen, sizeof f->seen, "%s %s", request->method, request->path);

        f->n_requests++;
        for (size_t i = 0; i < request->n_queries; i++)
                n += snprintf(f->seen + n, sizeof f->seen - (size_t)n, " [%s=%s]",
                              request->queries[i].name, request->queries[i].value);
        (void)snprintf(f->seen + n, sizeof f->seen - (size_t)n, " %zu", request->body_bytes);
        f->sum = 0;
        for (size_t i = 0; i < request->body_bytes; i++)
                f->sum += ((const unsigned char *)request->body)[i];
        if (strcmp(request->path, "/nothing") == 0)
                return; /* as a handler without memory */
        *ret = (HttpResponse){ .status = 200,
                               .content_type = "text/plain",
                               .body = strdup("hello\n"),
                               .body_bytes = 6 };
        if (strcmp(request->path, "/large") == 0) {
                free(ret->body);
                ret->body = malloc(100 * 1024);
                assert_non_null(ret->body);
                memset(ret->body, 'L', 100 * 1024);
                ret->body_bytes = 100 * 1024;
        }
        if (strcmp(request->path, "/refused") == 0) {
                ret->status = 405;
                ret->allow = "GET";
        }
}

static int setup(void **state) {
        Fixture *f = calloc(1, sizeof *f);
        int fd;

        assert_non_null(f);
        (void)snprintf(f->dir, sizeof f->dir, "/tmp/mhd_loop.XXXXXX");
        assert_non_null(mkdtemp(f->dir));
        f->address.sun_family = AF_UNIX;
        (void)snprintf(f->address.sun_path, sizeof f->address.sun_path, "%s/s", f->dir);
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC,
                    0); /* blocking, as systemd hands it over */
        assert_true(fd >= 0);
        assert_int_equal(bind(fd, (struct sockaddr *)&f->address, sizeof f->address), 0);
        assert_int_equal(listen(fd, 256), 0);
        assert_int_equal(sd_event_new(&f->event), 0);
        assert_int_equal(mhd_loop_new(&f->http, f->event, fd, handler, f), 0);
        f->listening = fd;
        *state = f;
        return 0;
}

static int teardown(void **state) {
        Fixture *f = *state;

        mhd_loop_free(f->http);
        assert_int_equal(fcntl(f->listening, F_GETFD), -1);
        sd_event_unref(f->event);
        (void)unlink(f->address.sun_path);
        (void)rmdir(f->dir);
        free(f);
        return 0;
}

static int dial(Fixture *f) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

        assert_true(fd >= 0);
        assert_int_equal(connect(fd, (struct sockaddr *)&f->address, sizeof f->address), 0);
        assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
        return fd;
}

static void settle(Fixture *f) {
        for (unsigned i = 0; i < TURNS_MAX; i++)
                if (sd_event_run(f->event, 0) == 0)
                        return;
        fail_msg("the loop does not come to rest");
}

/* Sends all, running the loop while the socket is full. @return whether the server took it all */
static bool send_all(Fixture *f, int fd, const char *data, size_t n) {
        for (unsigned i = 0; n > 0 && i < TURNS_MAX; i++) {
                ssize_t sent = send(fd, data, n, MSG_NOSIGNAL);

                if (sent < 0 && errno != EAGAIN)
                        return false;
                if (sent > 0) {
                        data += sent;
                        n -= (size_t)sent;
                }
                settle(f);
        }
        return n == 0;
}

static bool print_line(Fixture *f, int fd, const char *text) {
        return send_all(f, fd, text, strlen(text));
}

/* Reads what there is. @return status of the answer, 0 = closed without one, -1 = nothing yet */
static int receive(Fixture *f, int fd) {
        bool closed = false;
        int status = 0;

        f->reply_bytes = 0;
        for (unsigned i = 0; i < 50; i++) {
                ssize_t n;

                settle(f);
                n = recv(fd, f->reply + f->reply_bytes, sizeof f->reply - 1 - f->reply_bytes, 0);
                if (n > 0)
                        f->reply_bytes += (size_t)n;
                else if (n == 0 || errno != EAGAIN) {
                        closed = true;
                        break;
                }
        }
        f->reply[f->reply_bytes] = '\0';
        if (f->reply_bytes == 0)
                return closed ? 0 : -1;
        assert_int_equal(sscanf(f->reply, "HTTP/1.1 %d ", &status), 1);
        return status;
}

/* One request on a connection of its own. */
static int ask(Fixture *f, const char *request) {
        _cleanup_close_ int fd = dial(f);

        (void)print_line(f, fd, request);
        return receive(f, fd);
}

#define HOST "Host: localhost\r\n"
#define GET(what) "GET " what " HTTP/1.1\r\n" HOST "\r\n"

static void path_and_queries_arrive_decoded(void **state) {
        Fixture *f = *state;

        assert_int_equal(ask(f, GET("/a%20b?x=1&y=%26+z&flag&empty=")), 200);
        assert_string_equal(f->seen, "GET /a b [x=1] [y=& z] [flag=] [empty=] 0");
        assert_non_null(strstr(f->reply, "\r\n\r\nhello\n"));
        assert_non_null(strstr(f->reply, "Content-Type: text/plain\r\n"));
        assert_non_null(strstr(f->reply, "Cache-Control: no-store\r\n"));
        assert_null(strstr(f->reply, "Allow:"));
}

static void what_the_handler_answers_is_sent(void **state) {
        Fixture *f = *state;

        assert_int_equal(ask(f, GET("/refused")), 405);
        assert_non_null(strstr(f->reply, "Allow: GET\r\n"));
        assert_int_equal(ask(f, GET("/nothing")), 500);
        assert_non_null(strstr(f->reply, "Content-Length: 0\r\n"));
        assert_int_equal(ask(f, GET("/large")), 200);
        assert_int_equal(strspn(strstr(f->reply, "\r\n\r\n") + 4, "L"), 100 * 1024);
        assert_int_equal(ask(f, "HEAD /x HTTP/1.1\r\n" HOST "\r\n"), 200);
        assert_null(strstr(f->reply, "hello"));
}

static void a_body_in_pieces_arrives_complete(void **state) {
        Fixture *f = *state;
        _cleanup_close_ int fd = dial(f);

        assert_true(print_line(f, fd, "POST /p HT"));
        assert_true(print_line(f, fd, "TP/1.1\r\n" HOST "Content-Length: 10\r\n\r\n01234"));
        assert_int_equal(receive(f, fd), -1);
        assert_int_equal(f->n_requests, 0);
        assert_true(print_line(f, fd, "56789"));
        assert_int_equal(receive(f, fd), 200);
        assert_string_equal(f->seen, "POST /p 10");
        assert_int_equal(f->sum, 525);
}

static void requests_may_follow_each_other_on_one_connection(void **state) {
        Fixture *f = *state;
        _cleanup_close_ int fd = dial(f);

        assert_true(print_line(f, fd, GET("/1") GET("/2")));
        assert_int_equal(receive(f, fd), 200);
        assert_int_equal(f->n_requests, 2);
        assert_true(print_line(f, fd, GET("/3")));
        assert_int_equal(receive(f, fd), 200);
        assert_string_equal(f->seen, "GET /3 0");
}

static void a_body_may_have_64_kib_and_not_a_byte_more(void **state) {
        Fixture *f = *state;
        _cleanup_free_ char *body = malloc(MHD_LOOP_BODY_MAX + 1);
        _cleanup_close_ int fd = dial(f), second = dial(f);
        char head[128];

        assert_non_null(body);
        memset(body, 1, MHD_LOOP_BODY_MAX + 1);
        (void)snprintf(head, sizeof head, "POST /b HTTP/1.1\r\n" HOST "Content-Length: %d\r\n\r\n",
                       MHD_LOOP_BODY_MAX);
        assert_true(print_line(f, fd, head));
        assert_true(send_all(f, fd, body, MHD_LOOP_BODY_MAX));
        assert_int_equal(receive(f, fd), 200);
        assert_int_equal(f->sum, MHD_LOOP_BODY_MAX);

        (void)snprintf(head, sizeof head, "POST /b HTTP/1.1\r\n" HOST "Content-Length: %d\r\n\r\n",
                       MHD_LOOP_BODY_MAX + 1);
        assert_true(print_line(f, second, head)); /* refused before a byte of it is sent */
        assert_int_equal(receive(f, second), 413);
        assert_non_null(strstr(f->reply, "\"code\": \"too_large\""));
        assert_int_equal(f->n_requests, 1);
}

static void a_body_without_a_length_is_bounded_as_well(void **state) {
        Fixture *f = *state;
        _cleanup_free_ char *chunk = malloc(0x4000 + 16);
        _cleanup_close_ int fd = dial(f), endless = dial(f);
        bool taken = true;
        int n;

        assert_non_null(chunk);
        n = snprintf(chunk, 16, "4000\r\n");
        memset(chunk + n, 'c', 0x4000);
        memcpy(chunk + n + 0x4000, "\r\n", 2);
        n += 0x4002;
        assert_true(print_line(f, fd,
                               "POST /c HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n"));
        for (int i = 0; i < 5; i++) /* 80 KiB */
                assert_true(send_all(f, fd, chunk, (size_t)n));
        assert_true(print_line(f, fd, "0\r\n\r\n"));
        assert_int_equal(receive(f, fd), 413);

        assert_true(print_line(f, endless,
                               "POST /c HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n"));
        for (int i = 0; taken && i < 1000; i++) /* 16 MiB */
                taken = send_all(f, endless, chunk, (size_t)n);
        assert_false(taken); /* closed before it had sent all */
        assert_int_equal(f->n_requests, 0);
        assert_int_equal(ask(f, GET("/")), 200);
}

static void too_many_queries_and_hidden_ends_are_refused(void **state) {
        Fixture *f = *state;

        assert_int_equal(ask(f, GET("/?1&2&3&4&5&6&7&8&9&10&11&12&13&14&15&16")), 200);
        assert_int_equal(ask(f, GET("/?1&2&3&4&5&6&7&8&9&10&11&12&13&14&15&16&17")), 400);
        assert_non_null(strstr(f->reply, "more than 16 query parameters"));
        assert_int_equal(ask(f, GET("/healthz%00/secret")), 400);
        assert_int_equal(ask(f, GET("/?a=%00b")), 400);
        assert_int_equal(f->n_requests, 1);
}

static void rubbish_is_survived(void **state) {
        Fixture *f = *state;
        _cleanup_free_ char *long_header = malloc(100 * 1024);
        _cleanup_close_ int fd = dial(f);

        assert_non_null(long_header);
        assert_int_not_equal(ask(f, "\r\n\r\n\r\n"), 200);
        assert_int_not_equal(ask(f, "GET\r\n\r\n"), 200);
        assert_int_not_equal(ask(f, "\x16\x03\x01\x02\x01\x01\xff\r\n\r\n"),
                             200); /* somebody speaks TLS */
        assert_int_not_equal(ask(f, "GET / HTTP/1.1\r\nno colon\r\n\r\n"), 200);
        assert_int_not_equal(ask(f, "POST / HTTP/1.1\r\n" HOST "Content-Length: -1\r\n\r\n"), 200);
        assert_int_not_equal(ask(f, "POST / HTTP/1.1\r\n" HOST
                                    "Content-Length: 99999999999999999999999\r\n\r\n"),
                             200);
        memset(long_header, 'h', 100 * 1024);
        assert_true(print_line(f, fd, "GET / HTTP/1.1\r\n" HOST "X: "));
        (void)send_all(f, fd, long_header, 100 * 1024);
        assert_int_not_equal(receive(f, fd), 200);
        f->n_requests = 0;
        assert_int_equal(ask(f, GET("/")), 200);
        assert_int_equal(f->n_requests, 1);
}

static void clients_that_go_away_leave_nothing_behind(void **state) {
        Fixture *f = *state;
        static const char *const beginnings[] = { "", "GET", GET("/large"),
                                                  "POST / HTTP/1.1\r\n" HOST
                                                  "Content-Length: 10\r\n\r\n012" };

        for (unsigned i = 0; i < 200; i++) {
                int fd = dial(f);

                (void)print_line(f, fd, beginnings[i % ELEMENTSOF(beginnings)]);
                (void)close(fd);
                settle(f);
        }
        assert_int_equal(ask(f, GET("/")), 200);
}

static void slow_clients_cost_only_their_slots(void **state) {
        Fixture *f = *state;
        int slow[MHD_LOOP_CONNECTIONS_MAX];
        _cleanup_close_ int late = -1;

        for (int i = 0; i < MHD_LOOP_CONNECTIONS_MAX - 1; i++) {
                slow[i] = dial(f);
                assert_true(print_line(f, slow[i], "GET /slow HTTP/1.1\r\nHo"));
        }
        assert_int_equal(ask(f, GET("/quick")), 200);
        settle(f);
        slow[MHD_LOOP_CONNECTIONS_MAX - 1] = dial(f);
        assert_true(print_line(f, slow[MHD_LOOP_CONNECTIONS_MAX - 1], "G"));
        late = dial(f); /* all slots are taken: it waits in the backlog … */
        assert_int_equal(send(late, GET("/late"), strlen(GET("/late")), MSG_NOSIGNAL),
                         strlen(GET("/late")));
        assert_int_equal(receive(f, late), -1);
        assert_true(print_line(
                f, slow[7], "st: x\r\n\r\n")); /* … the slow ones are served as they continue … */
        assert_int_equal(receive(f, slow[7]), 200);
        (void)close(slow[7]);
        assert_int_equal(receive(f, late), 200); /* … and it has its turn when one leaves */
        for (int i = 0; i < MHD_LOOP_CONNECTIONS_MAX; i++)
                if (i != 7)
                        (void)close(slow[i]);
}

static uint64_t later_usec;
int __real_sd_event_now(sd_event *e, clockid_t clock, uint64_t *ret);
int __wrap_sd_event_now(sd_event *e, clockid_t clock, uint64_t *ret);
int __wrap_sd_event_now(sd_event *e, clockid_t clock, uint64_t *ret) {
        int r = __real_sd_event_now(e, clock, ret);
        *ret += later_usec;
        return r;
}

/* Each byte in time for the idle limit. */
static void a_request_has_half_a_minute_however_often_a_byte_of_it_comes(void **state) {
        Fixture *f = *state;
        _cleanup_close_ int slow = dial(f), kept = dial(f);

        assert_true(print_line(f, slow, "GET /slow HTTP/1.1\r\nHo"));
        assert_true(print_line(f, kept, GET("/kept")));
        assert_int_equal(receive(f, kept), 200);
        later_usec = 25 * USEC_PER_SEC;
        assert_true(print_line(f, slow, "st"));
        assert_int_equal(receive(f, slow), -1);
        assert_true(
                print_line(f, kept, GET("/kept"))); /* its time starts with each request's end */
        assert_int_equal(receive(f, kept), 200);
        later_usec = 35 * USEC_PER_SEC;
        (void)print_line(f, slow, ": ");
        assert_int_equal(receive(f, slow), 0);
        assert_true(print_line(f, kept, GET("/kept")));
        assert_int_equal(receive(f, kept), 200);
        assert_int_equal(f->n_requests, 3);
        later_usec = 0;
}

static void a_full_house_that_empties_opens_again(void **state) {
        Fixture *f = *state;
        int fds[MHD_LOOP_CONNECTIONS_MAX];

        for (int round = 0; round < 3; round++) {
                for (int i = 0; i < MHD_LOOP_CONNECTIONS_MAX; i++) {
                        fds[i] = dial(f);
                        settle(f);
                }
                for (int i = 0; i < MHD_LOOP_CONNECTIONS_MAX; i++)
                        (void)close(fds[i]);
                settle(f); /* now there is neither a connection nor a timer that could wake it */
                assert_int_equal(ask(f, GET("/")), 200);
        }
}

/* What the kernel says of our timers: sd-event has one timerfd a clock. @return how many are
 * armed */
static unsigned n_armed_timers(void) {
        unsigned n = 0;

        for (int fd = 3; fd < 256; fd++) {
                char path[64], line[128];
                FILE *info;
                long sec, nsec;

                (void)snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
                info = fopen(path, "re");
                while (info && fgets(line, sizeof line, info))
                        if (sscanf(line, "it_value: (%ld, %ld)", &sec, &nsec) == 2 && (sec || nsec))
                                n++;
                if (info)
                        (void)fclose(info);
        }
        return n;
}

static void without_connections_nothing_wakes_the_loop(void **state) {
        Fixture *f = *state;
        int fd;

        settle(f);
        assert_int_equal(n_armed_timers(), 0);
        fd = dial(f);
        assert_true(print_line(f, fd, GET("/")));
        assert_int_equal(receive(f, fd), 200);
        settle(f);
        assert_int_equal(n_armed_timers(), 1); /* the idle timeout of a connection that is kept */
        (void)close(fd);
        settle(f);
        assert_int_equal(n_armed_timers(), 0);
        assert_int_equal(sd_event_run(f->event, 2000), 0);
}

static void it_can_be_freed_with_connections_open(void **state) {
        Fixture *f = *state;
        _cleanup_close_ int a = dial(f), b = dial(f);

        assert_true(print_line(f, a, "POST / HTTP/1.1\r\n" HOST "Content-Length: 10\r\n\r\n012"));
        assert_true(print_line(f, b, GET("/")));
        f->http = mhd_loop_free(f->http);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(path_and_queries_arrive_decoded),
                TEST(what_the_handler_answers_is_sent),
                TEST(a_body_in_pieces_arrives_complete),
                TEST(requests_may_follow_each_other_on_one_connection),
                TEST(a_body_may_have_64_kib_and_not_a_byte_more),
                TEST(a_body_without_a_length_is_bounded_as_well),
                TEST(too_many_queries_and_hidden_ends_are_refused),
                TEST(rubbish_is_survived),
                TEST(clients_that_go_away_leave_nothing_behind),
                TEST(slow_clients_cost_only_their_slots),
                TEST(a_request_has_half_a_minute_however_often_a_byte_of_it_comes),
                TEST(a_full_house_that_empties_opens_again),
                TEST(without_connections_nothing_wakes_the_loop),
                TEST(it_can_be_freed_with_connections_open),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
