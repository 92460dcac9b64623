/* Two agents' ends of a bus in one process, with real children. */
#include "agent/peers/bus.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <nanomsg/bus.h>
#include <nanomsg/nn.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "agent/peers/wire.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/log.h"
#include "lib/event/bus_child.h"

#define GIVE_UP_USEC (60 * USEC_PER_SEC) /* only so that a broken test ends */
#define HEX "00112233445566778899aabbccddeeff00112233445566778899aabbccddee"

typedef struct Node {
        char *peers[2]; /* NULL-terminated */
        Bus *bus;
        unsigned n_heard;
        char sender[INSTANCE_ID_SIZE], key[CLAIM_KEY_SIZE];
        size_t n_claims;
        int64_t event_usec;
} Node;

typedef struct Fixture {
        Clock clock; /* the system's, and `ahead_usec` more */
        uint64_t ahead_usec;
        char directory[64], ipc[96], tcp[64], key[96], other_key[96];
        sd_event *event;
        Node a, b;
} Fixture;

static uint64_t realtime(Clock *c) {
        return clock_realtime_usec() + ((Fixture *)(void *)c)->ahead_usec;
}

static uint64_t boottime(Clock *c) {
        return clock_boottime_usec() + ((Fixture *)(void *)c)->ahead_usec;
}

static void write_key(const char *directory, char path[96], const char *name, const char *text) {
        _cleanup_close_ int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_int_equal(fs_write_file(fd, name, text, strlen(text), 0600), 0);
        (void)snprintf(path, 96, "%s/%s", directory, name);
}

static unsigned free_port(void) {
        _cleanup_close_ int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        socklen_t n = sizeof a;
        assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
        assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
        return ntohs(a.sin_port);
}

static int setup(void **state) {
        Fixture *f = calloc(1, sizeof *f);
        f->clock = (Clock){ .realtime_usec = realtime, .boottime_usec = boottime };
        strcpy(f->directory, "/tmp/nc-bus.XXXXXX");
        assert_non_null(mkdtemp(f->directory));
        (void)snprintf(f->ipc, sizeof f->ipc, "ipc://%s/bus.sock", f->directory);
        (void)snprintf(f->tcp, sizeof f->tcp, "tcp://127.0.0.1:%u", free_port());
        write_key(f->directory, f->key, "key", "a:" HEX "01\n");
        write_key(f->directory, f->other_key, "other", "a:" HEX "02\n");
        assert_true(sd_event_new(&f->event) >= 0);
        *state = f;
        return 0;
}

static int teardown(void **state) {
        Fixture *f = *state;
        bus_free(f->a.bus);
        bus_free(f->b.bus);
        sd_event_unref(f->event);
        int tmp = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_int_equal(fs_remove_tree(tmp, f->directory + strlen("/tmp/")), 0);
        (void)close(tmp);
        free(f);
        return 0;
}

static void on_message(const Message *m, void *userdata) {
        Node *n = userdata;
        n->n_heard++;
        n->n_claims = m->n_claims;
        memcpy(n->sender, m->sender, sizeof n->sender);
        memcpy(n->key, m->key, sizeof n->key);
        if (m->n_claims > 0)
                n->event_usec = m->claims[0].event_usec;
}

static void start(Fixture *f, Node *n, const char *listen, const char *peer, const char *key) {
        n->peers[0] = (char *)peer;
        BusOptions o = { .event = f->event,
                         .clock = &f->clock,
                         .instance_id = n == &f->a ? "node-a" : "node-b",
                         .listen = listen,
                         .peers = n->peers,
                         .key_file = key,
                         .on_message = on_message,
                         .userdata = n };
        assert_int_equal(bus_new(&n->bus, &o), 0);
}

static BusView view(const Node *n) {
        BusView v;
        bus_view(n->bus, &v);
        return v;
}

/* Runs the loop until `condition` is true. */
#define run_until(f, condition)                                                                    \
        do {                                                                                       \
                uint64_t _until = clock_boottime_usec() + GIVE_UP_USEC;                            \
                while (!(condition)) {                                                             \
                        assert_true(clock_boottime_usec() < _until);                               \
                        assert_true(sd_event_run((f)->event, 100 * USEC_PER_MSEC) >= 0);           \
                }                                                                                  \
        } while (0)

static Message claims_message(void) {
        Message m = { .kind = MESSAGE_CLAIMS, .n_claims = 1 };
        strcpy(m.key, "0123456789abcdef");
        strcpy(m.claims[0].instance_id, "node-a");
        m.claims[0].event_usec = (int64_t)clock_boottime_usec() - 5000000;
        return m;
}

/* Sends until it has arrived, as agents do. */
static void send_until_heard(Fixture *f, Node *from, Node *to) {
        Message m = claims_message();
        unsigned before = to->n_heard;
        uint64_t until = clock_boottime_usec() + GIVE_UP_USEC;
        while (to->n_heard == before) {
                assert_true(clock_boottime_usec() < until);
                int r = bus_send(from->bus, &m);
                assert_true(r == 0 || r == -ENOTCONN);
                assert_true(sd_event_run(f->event, 100 * USEC_PER_MSEC) >= 0);
        }
}

static void messages_go_both_ways(Fixture *f) {
        send_until_heard(f, &f->b, &f->a);
        send_until_heard(f, &f->a, &f->b);
        assert_string_equal(f->a.sender, "node-b");
        assert_string_equal(f->b.sender, "node-a");
        assert_string_equal(f->a.key, "0123456789abcdef");
        assert_int_equal(f->a.n_claims, 1);
        assert_true(view(&f->a).n_rejected == 0 && view(&f->b).n_rejected == 0);
}

/* A process that this one has started. @param nth  by pid */
static pid_t child_pid(unsigned nth) {
        _cleanup_closedir_ DIR *d = opendir("/proc");
        struct dirent *e;
        pid_t found = 0;
        while ((e = readdir(d))) {
                char path[300], name;
                int pid = atoi(e->d_name), parent;
                char state_letter;
                (void)snprintf(path, sizeof path, "/proc/%.200s/stat", e->d_name);
                _cleanup_fclose_ FILE *s = pid > 0 ? fopen(path, "re") : NULL;
                if (!s || fscanf(s, "%*d %c%*[^)]) %c %d", &name, &state_letter, &parent) != 3)
                        continue;
                if (parent == getpid() && state_letter != 'Z' && nth-- == 0)
                        found = pid;
        }
        return found;
}

static unsigned n_descriptors(void) {
        _cleanup_closedir_ DIR *d = opendir("/proc/self/fd");
        unsigned n = 0;
        while (readdir(d))
                n++;
        return n;
}

/* ---- */

static void messages_arrive_over_ipc(void **state) {
        Fixture *f = *state;
        start(f, &f->a, f->ipc, NULL, "");
        start(f, &f->b, "", f->ipc, "");
        messages_go_both_ways(f);
        assert_false(view(&f->a).has_key);
        assert_string_equal(view(&f->a).state, "listening");
        assert_int_equal(view(&f->b).n_dialled, 1);
        assert_int_equal(view(&f->b).n_connected, 1);
}

static void messages_arrive_over_tcp_with_a_key(void **state) {
        Fixture *f = *state;
        start(f, &f->a, f->tcp, NULL, f->key);
        start(f, &f->b, "", f->tcp, f->key);
        messages_go_both_ways(f);
        assert_true(view(&f->a).has_key);
        run_until(f, view(&f->b).n_sent_bytes > 0);
}

static void times_of_claims_arrive_by_our_clock(void **state) {
        Fixture *f = *state;
        start(f, &f->a, f->ipc, NULL, "");
        start(f, &f->b, "", f->ipc, "");
        send_until_heard(f, &f->b, &f->a);
        int64_t age = (int64_t)clock_boottime_usec() - f->a.event_usec;
        assert_true(age >= 5000000);
}

static void one_that_dials_before_there_is_a_listener_connects_later(void **state) {
        Fixture *f = *state;
        start(f, &f->b, "", f->tcp, "");
        run_until(f, view(&f->b).last_error);
        start(f, &f->a, f->tcp, NULL, "");
        messages_go_both_ways(f);
        run_until(f, !view(&f->b).last_error);
}

static void the_child_has_neither_privileges_nor_many_descriptors(void **state) {
        static const char *const wanted[] = { "CapEff:\t0000000000000000\n",
                                              "CapPrm:\t0000000000000000\n", "NoNewPrivs:\t1\n",
                                              "Seccomp:\t2\n" };
        Fixture *f = *state;
        char path[64];
        struct rlimit limit;
        _cleanup_free_ char *text = NULL;
        start(f, &f->a, f->ipc, NULL, "");
        run_until(f, strcmp(view(&f->a).state, "listening") == 0);
        pid_t pid = child_pid(0);
        (void)snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
        assert_int_equal(fs_read_file(AT_FDCWD, path, 64 * KIB, &text, NULL), 0);
        for (size_t i = 0; i < ELEMENTSOF(wanted); i++)
                assert_non_null(strstr(text, wanted[i]));
        assert_int_equal(prlimit(pid, RLIMIT_NOFILE, NULL, &limit), 0);
        assert_in_range(limit.rlim_max, 1, 2048);
        assert_int_equal(prlimit(pid, RLIMIT_CORE, NULL, &limit), 0);
        assert_int_equal(limit.rlim_max, 0);
}

static void a_killed_child_is_replaced(void **state) {
        Fixture *f = *state;
        start(f, &f->a, f->tcp, NULL, "");
        start(f, &f->b, "", f->tcp, "");
        messages_go_both_ways(f);
        unsigned n_before = n_descriptors();
        for (unsigned i = 0; i < 2; i++) {
                pid_t pid = child_pid(i);
                assert_true(pid > 0);
                assert_int_equal(kill(pid, i == 0 ? SIGKILL : SIGABRT), 0);
                run_until(f, view(&f->a).n_restarts + view(&f->b).n_restarts == i + 1);
                messages_go_both_ways(f);
        }
        assert_int_equal(n_descriptors(), n_before);
}

static void a_child_that_does_not_respond_is_replaced(void **state) {
        Fixture *f = *state;
        start(f, &f->a, f->tcp, NULL, "");
        start(f, &f->b, "", f->tcp, "");
        messages_go_both_ways(f);
        unsigned n_before = n_descriptors();
        pid_t pid = child_pid(0);
        assert_int_equal(kill(pid, SIGSTOP), 0);
        f->ahead_usec += 60 * USEC_PER_SEC;
        run_until(f, view(&f->a).n_restarts + view(&f->b).n_restarts > 0);
        messages_go_both_ways(f);
        run_until(f, n_descriptors() == n_before);
        assert_int_equal(kill(pid, 0), -1);
}

static void garbage_is_counted(void **state) {
        Fixture *f = *state;
        static const char garbage[] =
                "this is no message of an agent; it is longer than a head is, "
                "and is not signed by anybody";
        static char large[BUS_BYTES_MAX + 1];
        start(f, &f->a, f->ipc, NULL, "");
        run_until(f, strcmp(view(&f->a).state, "listening") == 0);
        int s = nn_socket(AF_SP, NN_BUS);
        assert_true(s >= 0 && nn_connect(s, f->ipc) >= 0);
        run_until(f, view(&f->a).n_connected == 1);
        for (size_t i = 0; i <= sizeof garbage; i++)
                assert_true(nn_send(s, garbage, i, 0) >= 0);
        run_until(f, view(&f->a).n_rejected > 0);
        assert_non_null(strstr(view(&f->a).last_error, "not a message of this version"));
        assert_true(nn_send(s, large, sizeof large, 0) >= 0); /* the connection is closed */
        start(f, &f->b, "", f->ipc, "");
        send_until_heard(f, &f->b, &f->a);
        assert_true(view(&f->a).n_received > view(&f->a).n_rejected);
        assert_int_equal(view(&f->a).n_restarts, 0);
        assert_int_equal(nn_close(s), 0);
}

static void a_replay_changes_nothing(void **state) {
        Fixture *f = *state;
        static uint8_t bytes[WIRE_BYTES_MAX];
        const WireKey none = { .id = "" };
        Message m = claims_message();
        size_t n;
        start(f, &f->a, f->ipc, NULL, "");
        run_until(f, strcmp(view(&f->a).state, "listening") == 0);
        int s = nn_socket(AF_SP, NN_BUS);
        assert_true(s >= 0 && nn_connect(s, f->ipc) >= 0);
        run_until(f, view(&f->a).n_connected == 1);
        for (unsigned i = 0; i < 3; i++) { /* the second is older, the third is newer */
                WireStamp stamp = { .key = &none,
                                    .sender = "node-b",
                                    .sequence = i == 0   ? 8
                                                : i == 1 ? 7
                                                         : 9,
                                    .boot_usec = (int64_t)clock_boottime_usec(),
                                    .real_usec = (int64_t)clock_realtime_usec() };
                assert_int_equal(wire_encode(&m, &stamp, bytes, &n), 0);
                assert_true(nn_send(s, bytes, n, 0) >= 0);
                assert_true(nn_send(s, bytes, n, 0) >= 0);
        }
        run_until(f, view(&f->a).n_received == 6);
        assert_int_equal(f->a.n_heard, 2);
        assert_int_equal(view(&f->a).n_rejected, 0);
        assert_int_equal(nn_close(s), 0);
}

static void a_sequence_of_the_far_future_mutes_nobody(void **state) {
        Fixture *f = *state;
        static uint8_t bytes[WIRE_BYTES_MAX];
        const WireKey none = { .id = "" };
        Message m = claims_message();
        size_t n;
        start(f, &f->a, f->ipc, NULL, "");
        run_until(f, strcmp(view(&f->a).state, "listening") == 0);
        int s = nn_socket(AF_SP, NN_BUS);
        assert_true(s >= 0 && nn_connect(s, f->ipc) >= 0);
        run_until(f, view(&f->a).n_connected == 1);
        for (unsigned i = 0; i < 3; i++) {
                uint64_t now = clock_realtime_usec();
                WireStamp stamp = { .key = &none,
                                    .sender = "node-b",
                                    .sequence = i == 0   ? UINT64_MAX
                                                : i == 1 ? now + 11 * 60 * UINT64_C(1000000)
                                                         : now,
                                    .boot_usec = (int64_t)clock_boottime_usec(),
                                    .real_usec = (int64_t)now };
                assert_int_equal(wire_encode(&m, &stamp, bytes, &n), 0);
                assert_true(nn_send(s, bytes, n, 0) >= 0);
        }
        run_until(f, view(&f->a).n_received == 3);
        assert_int_equal(f->a.n_heard, 1);
        assert_int_equal(nn_close(s), 0);
}

static void another_key_is_counted_and_not_heard(void **state) {
        Fixture *f = *state;
        Message m = claims_message();
        start(f, &f->a, f->tcp, NULL, f->key);
        start(f, &f->b, "", f->tcp, f->other_key);
        run_until(f, bus_send(f->b.bus, &m) == 0 || view(&f->a).n_rejected > 0);
        run_until(f, view(&f->a).n_rejected > 0);
        assert_int_equal(f->a.n_heard, 0);
        assert_non_null(strstr(view(&f->a).last_error, "signature is wrong"));
}

static void a_key_that_is_changed_is_used_without_a_restart(void **state) {
        Fixture *f = *state;
        start(f, &f->a, f->tcp, NULL, f->key);
        start(f, &f->b, "", f->tcp, f->other_key);
        run_until(f, view(&f->b).n_connected > 0);
        write_key(f->directory, f->other_key, "other", "a:" HEX "01\n");
        send_until_heard(f, &f->b, &f->a);
        assert_int_equal(view(&f->a).n_restarts, 0);
}

static void without_a_key_nothing_but_loopback_is_opened(void **state) {
        Fixture *f = *state;
        static char *hosts[] = { (char *)"192.0.2.1", (char *)"2001:db8::1", NULL };
        start(f, &f->a, "tcp://0.0.0.0:7733", "tcp://192.0.2.1:7733", "");
        bus_set_rendezvous(f->a.bus, hosts);
        for (unsigned i = 0; i < 10; i++)
                assert_true(sd_event_run(f->event, 0) >= 0);
        assert_string_equal(view(&f->a).state, "off");
        run_until(f, child_pid(0) == 0); /* that of the test before may still be ending */
        assert_int_equal(bus_send(f->a.bus, &(Message){ .kind = MESSAGE_HEARTBEAT }), -ENOTCONN);
}

static void rendezvous_of_other_nodes_are_dialled_and_our_own_are_not(void **state) {
        Fixture *f = *state;
        static char *hosts[] = { (char *)"127.0.0.1", (char *)"::1", (char *)"192.0.2.1",
                                 (char *)"192.0.2.1", NULL };
        static char *none[] = { NULL };
        start(f, &f->a, f->tcp, NULL, f->key);
        run_until(f, strcmp(view(&f->a).state, "listening") == 0);
        assert_int_equal(view(&f->a).n_dialled, 0);
        bus_set_rendezvous(f->a.bus, hosts);
        run_until(f, view(&f->a).n_dialled == 1);
        bus_set_rendezvous(f->a.bus, none);
        run_until(f, view(&f->a).n_dialled == 0);
}

static void our_own_addresses_are_known_and_names_are_looked_up(void **state) {
        Fixture *f = *state;
        start(f, &f->a, f->ipc, NULL, "");
        assert_true(bus_is_own_host(f->a.bus, "127.0.0.1"));
        assert_true(bus_is_own_host(f->a.bus, "127.3.4.5"));
        assert_true(bus_is_own_host(f->a.bus, "::1"));
        assert_false(bus_is_own_host(f->a.bus, "192.0.2.7"));
        assert_false(bus_is_own_host(f->a.bus, ""));
        assert_false(bus_is_own_host(f->a.bus, "localhost")); /* not known yet */
        run_until(f, bus_is_own_host(f->a.bus, "localhost"));
}

static void a_listener_whose_address_is_taken_tries_again(void **state) {
        Fixture *f = *state;
        int port = atoi(strrchr(f->tcp, ':') + 1), one = 1;
        struct sockaddr_in a = { .sin_family = AF_INET,
                                 .sin_port = htons((uint16_t)port),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
        assert_int_equal(listen(fd, 1), 0);
        start(f, &f->a, f->tcp, NULL, "");
        run_until(f, strcmp(view(&f->a).state, "failing") == 0);
        assert_non_null(view(&f->a).last_error);
        (void)close(fd);
        run_until(f, strcmp(view(&f->a).state, "listening") == 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(int argc, char **argv) {
        if (argc == 2 && strcmp(argv[1], "--child=bus") == 0)
                _exit(bus_child_main());
        log_setup(LOG_FORMAT_TEXT, LOG_ERR);
        const struct CMUnitTest tests[] = {
                TEST(messages_arrive_over_ipc),
                TEST(messages_arrive_over_tcp_with_a_key),
                TEST(times_of_claims_arrive_by_our_clock),
                TEST(one_that_dials_before_there_is_a_listener_connects_later),
                TEST(the_child_has_neither_privileges_nor_many_descriptors),
                TEST(a_killed_child_is_replaced),
                TEST(a_child_that_does_not_respond_is_replaced),
                TEST(garbage_is_counted),
                TEST(a_replay_changes_nothing),
                TEST(a_sequence_of_the_far_future_mutes_nobody),
                TEST(another_key_is_counted_and_not_heard),
                TEST(a_key_that_is_changed_is_used_without_a_restart),
                TEST(without_a_key_nothing_but_loopback_is_opened),
                TEST(rendezvous_of_other_nodes_are_dialled_and_our_own_are_not),
                TEST(our_own_addresses_are_known_and_names_are_looked_up),
                TEST(a_listener_whose_address_is_taken_tries_again),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
