/* agent/hooknotes/hook_socket.c: who may connect, what is received, who is disconnected. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "tests/harness/unit.h"

#include "agent/api/api.h"
#include "agent/hooknotes/hook_socket.h"
#include "lib/neuron/note.h"
#include "tests/lib/base/scratch.h"

#define MAX_PACKET NOTE_MAX_BYTES
#define FIRST_STRANGER 100000

typedef struct SocketFixture {
        Scratch *scratch;
        char path[PATH_MAX + 32];
        sd_event *event;
        HookSocket *socket;
        unsigned n_packets, n_gone, n_refused;
        char last[MAX_PACKET + 1];
        size_t last_size;
        char why[100];
        HookPeer *peer;
        bool close_at_once, keep;
        uid_t uid; /* of peers that connect */
} SocketFixture;

static void fixture_on_packet(HookPeer *p, const char *data, size_t n, void *userdata) {
        SocketFixture *d = userdata;
        d->n_packets++;
        assert_true(n <= MAX_PACKET && data[n] == '\0');
        memcpy(d->last, data, n);
        d->last[n] = '\0';
        d->last_size = n;
        d->peer = p;
        if (d->keep)
                p->userdata = d;
        if (d->close_at_once)
                hook_peer_close(p);
}

static void fixture_on_gone(HookPeer *p, void *userdata) {
        SocketFixture *d = userdata;
        (void)p;
        d->n_gone++;
}

static void fixture_on_refused(const Owner *o, const char *why, void *userdata) {
        SocketFixture *d = userdata;
        assert_true(o->uid == getuid() || o->uid >= FIRST_STRANGER);
        d->n_refused++;
        (void)snprintf(d->why, sizeof d->why, "%s", why ? why : "too many");
}

/* As the kernel, but for the user. */
static int fixture_identify(HookPeer *p, void *userdata) {
        const SocketFixture *d = userdata;
        struct ucred who;
        socklen_t size = sizeof who;
        assert_int_equal(getsockopt(p->fd, SOL_SOCKET, SO_PEERCRED, &who, &size), 0);
        p->pid = who.pid;
        p->owner.uid = d->uid;
        return 0;
}

static int setup_with(void **state, const HookSocketOptions *options) {
        SocketFixture *d = calloc(1, sizeof *d);
        void *scratch = NULL;
        int fd;
        const struct rlimit many = { 4096, 4096 };

        assert_non_null(d);
        assert_int_equal(scratch_setup(&scratch), 0);
        d->scratch = scratch;
        (void)setrlimit(RLIMIT_NOFILE, &many);
        (void)snprintf(d->path, sizeof d->path, "%s/run/hook.sock", d->scratch->path);
        assert_int_equal(sd_event_new(&d->event), 0);
        assert_int_equal(api_listen_seqpacket(d->path, &fd), 0);
        HookSocketOptions o = *options;
        o.on_packet = fixture_on_packet;
        o.on_gone = fixture_on_gone;
        o.on_refused = fixture_on_refused;
        o.userdata = d;
        d->uid = getuid();
        assert_int_equal(hook_socket_new(&d->socket, d->event, fd, &o), 0);
        *state = d;
        return 0;
}

static int setup(void **state) {
        return setup_with(state, &(HookSocketOptions){ 0 });
}

/* Peers of any user, who are never too late with their note. */
static int setup_users(void **state) {
        return setup_with(state, &(HookSocketOptions){ .identify = fixture_identify,
                                                       .note_within_usec = USEC_PER_HOUR });
}

static int teardown(void **state) {
        SocketFixture *d = *state;
        void *scratch = d->scratch;
        hook_socket_free(d->socket);
        sd_event_unref(d->event);
        free(d);
        return scratch_teardown(&scratch);
}

/* Until nothing is left to do. */
static void turn(SocketFixture *d) {
        while (sd_event_run(d->event, 0) > 0)
                ;
}

static int dial(const SocketFixture *d) {
        struct sockaddr_un a = { .sun_family = AF_UNIX };
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        assert_true(fd >= 0 && strlen(d->path) < sizeof a.sun_path);
        strcpy(a.sun_path, d->path);
        assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
        return fd;
}

static void print_line(int fd, const char *text) {
        assert_int_equal(send(fd, text, strlen(text), 0), strlen(text));
}

/* @return what came, "" = closed, NULL = nothing yet */
static const char *hear(int fd) {
        static char text[256];
        ssize_t n = recv(fd, text, sizeof text - 1, MSG_DONTWAIT);
        if (n < 0)
                return errno == ECONNRESET ? "" : NULL;
        text[n] = '\0';
        return text;
}

static void packets_go_both_ways_and_the_kernel_identifies_it(void **state) {
        SocketFixture *d = *state;
        int fd = dial(d);
        print_line(fd, "hello");
        turn(d);
        assert_int_equal(d->n_packets, 1);
        assert_string_equal(d->last, "hello");
        assert_int_equal(d->peer->pid, getpid());
        assert_int_equal(d->peer->owner.uid, getuid());
        assert_int_equal(hook_peer_send(d->peer, "accepted 5", -1), 0);
        assert_string_equal(hear(fd), "accepted 5");
        assert_int_equal(hook_socket_n_open(d->socket), 1);
        (void)close(fd);
        turn(d);
        assert_int_equal(d->n_gone, 1);
        assert_int_equal(hook_socket_n_open(d->socket), 0);
}

static void a_file_goes_with_an_answer(void **state) {
        SocketFixture *d = *state;
        union {
                char buf[CMSG_SPACE(sizeof(int))];
                struct cmsghdr align;
        } control;
        char text[32], content[8] = "";
        struct iovec iov = { text, sizeof text };
        struct msghdr m = { .msg_iov = &iov,
                            .msg_iovlen = 1,
                            .msg_control = control.buf,
                            .msg_controllen = sizeof control.buf };
        int fd = dial(d), memory = memfd_create("x", MFD_CLOEXEC), got;
        assert_int_equal(write(memory, "abc", 3), 3);
        print_line(fd, "x");
        turn(d);
        assert_int_equal(hook_peer_send(d->peer, "snapshot done", memory), 0);
        assert_int_equal(recvmsg(fd, &m, 0), strlen("snapshot done"));
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        assert_true(c && c->cmsg_type == SCM_RIGHTS);
        memcpy(&got, CMSG_DATA(c), sizeof got);
        assert_int_equal(pread(got, content, sizeof content, 0), 3);
        assert_string_equal(content, "abc");
        (void)close(got);
        (void)close(memory);
        (void)close(fd);
}

static void everybody_may_connect(void **state) {
        const SocketFixture *d = *state;
        struct stat st;
        assert_int_equal(stat(d->path, &st), 0);
        assert_int_equal(st.st_mode & 07777, 0666);
}

static void what_is_too_long_is_refused_and_the_longest_is_not(void **state) {
        SocketFixture *d = *state;
        char *text = calloc(1, 200000);
        assert_non_null(text);
        memset(text, 'x', 199999);
        int a = dial(d), b = dial(d), c = dial(d);
        assert_int_equal(send(a, text, MAX_PACKET, 0), MAX_PACKET);
        assert_int_equal(send(b, text, MAX_PACKET + 1, 0), MAX_PACKET + 1);
        assert_int_equal(send(c, text, 150000, 0), 150000);
        turn(d);
        assert_int_equal(d->n_packets, 1);
        assert_int_equal(d->last_size, MAX_PACKET);
        assert_string_equal(hear(b), "refused the note is too long");
        assert_string_equal(hear(b), "");
        assert_string_equal(hear(c), "refused the note is too long");
        assert_int_equal(d->n_refused, 2);
        free(text);
        (void)close(a);
        (void)close(b);
        (void)close(c);
}

static void the_last_word_of_one_that_went_without_listening_is_heard(void **state) {
        SocketFixture *d = *state;
        int fd = dial(d);
        d->keep = true;
        print_line(fd, "a note");
        turn(d);
        assert_int_equal(hook_peer_send(d->peer, "snapshot none", -1), 0);
        print_line(fd, "finished");
        (void)close(fd); /* with our answer unread */
        turn(d);
        assert_int_equal(d->n_packets, 2);
        assert_string_equal(d->last, "finished");
        assert_int_equal(d->n_gone, 1);
}

static void files_that_come_uninvited_are_not_accepted(void **state) {
        SocketFixture *d = *state;
        union {
                char buf[CMSG_SPACE(sizeof(int))];
                struct cmsghdr align;
        } control = { 0 };
        struct iovec iov = { (char *)"x", 1 };
        struct msghdr m = { .msg_iov = &iov,
                            .msg_iovlen = 1,
                            .msg_control = control.buf,
                            .msg_controllen = sizeof control.buf };
        int fd = dial(d), lowest;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
        turn(d);
        lowest = dup(0);
        (void)close(lowest);
        assert_int_equal(sendmsg(fd, &m, 0), 1);
        turn(d);
        assert_int_equal(d->n_packets, 1);
        int after = dup(0);
        assert_int_equal(after, lowest); /* no descriptor more is open than before */
        (void)close(after);
        (void)close(fd);
}

static void a_peer_may_be_closed_from_inside_of_its_own_packet(void **state) {
        SocketFixture *d = *state;
        int fd = dial(d);
        d->close_at_once = true;
        print_line(fd, "x");
        turn(d);
        assert_string_equal(hear(fd), "");
        assert_int_equal(d->n_gone, 0);
        assert_int_equal(hook_socket_n_open(d->socket), 0);
        (void)close(fd);
}

/* Connects n of them. @param note  that each sends; NULL: none @param uid  who they are */
static void dial_many(SocketFixture *d, int *ret, unsigned n, uid_t uid, const char *note) {
        d->uid = uid;
        for (unsigned i = 0; i < n; i++) {
                ret[i] = dial(d);
                if (note)
                        print_line(ret[i], note);
                if (i % 8 == 0)
                        turn(d);
        }
        turn(d);
        d->uid = getuid();
}

static void hang_up(int *fds, unsigned n) {
        for (unsigned i = 0; i < n; i++)
                (void)close(fds[i]);
}

static void so_many_of_one_owner_work_at_once_and_the_next_one_is_refused(void **state) {
        SocketFixture *d = *state;
        int fds[HOOK_OPEN_MAX_OF_OWNER + 1];
        d->keep = true;
        dial_many(d, fds, HOOK_OPEN_MAX_OF_OWNER, getuid(), "x");
        fds[HOOK_OPEN_MAX_OF_OWNER] = dial(d);
        turn(d);
        assert_int_equal(hook_socket_n_open(d->socket), HOOK_OPEN_MAX_OF_OWNER);
        assert_int_equal(d->n_packets, HOOK_OPEN_MAX_OF_OWNER);
        assert_string_equal(hear(fds[HOOK_OPEN_MAX_OF_OWNER]),
                            "refused too many hooks are connected");
        assert_int_equal(d->n_refused, 1);
        hang_up(fds, HOOK_OPEN_MAX_OF_OWNER + 1);
        turn(d);
        assert_int_equal(hook_socket_n_open(d->socket), 0);
}

static void owners_with_all_that_they_may_have_keep_no_other_one_out(void **state) {
        SocketFixture *d = *state;
        int first[HOOK_OPEN_MAX_OF_OWNER], second[HOOK_OPEN_MAX_OF_OWNER], more[2];
        d->keep = true;
        dial_many(d, first, 1, FIRST_STRANGER, "a note");
        dial_many(d, first + 1, ELEMENTSOF(first) - 1, FIRST_STRANGER, NULL);
        dial_many(d, second, ELEMENTSOF(second), FIRST_STRANGER + 1, NULL);
        dial_many(d, more, ELEMENTSOF(more), FIRST_STRANGER, NULL);
        assert_string_equal(hear(more[0]), "refused too many hooks are connected");
        for (unsigned i = 0; i < 3; i++) {
                int fd = dial(d);
                print_line(fd, "of another one");
                turn(d);
                assert_string_equal(d->last, "of another one");
                (void)close(fd);
                turn(d);
        }
        print_line(first[0], "still there");
        turn(d);
        assert_string_equal(d->last, "still there");
        assert_int_equal(hook_socket_bound(d->socket)->n_refused, 2);
        hang_up(first, ELEMENTSOF(first));
        hang_up(second, ELEMENTSOF(second));
        hang_up(more, ELEMENTSOF(more));
}

static void who_sends_nothing_is_disconnected_after_a_second(void **state) {
        SocketFixture *d = *state;
        int fd = dial(d);
        struct timespec a, b;
        (void)clock_gettime(CLOCK_MONOTONIC, &a);
        while (d->n_gone == 0)
                assert_true(sd_event_run(d->event, 5000000) > 0);
        (void)clock_gettime(CLOCK_MONOTONIC, &b);
        assert_true((b.tv_sec - a.tv_sec) * 1000 + (b.tv_nsec - a.tv_nsec) / 1000000 >= 990);
        assert_non_null(strstr(d->why, "no note"));
        assert_string_equal(hear(fd), "");
        (void)close(fd);
}

static void a_wait_is_counted_from_now_and_ends_in_gone(void **state) {
        SocketFixture *d = *state;
        int fd = dial(d);
        d->keep = true;
        print_line(fd, "x");
        turn(d);
        assert_int_equal(hook_peer_wait(d->peer, 1000), 0);
        while (d->n_gone == 0)
                assert_true(sd_event_run(d->event, 5000000) > 0);
        assert_int_equal(d->n_refused, 0);
        (void)close(fd);
}

static void without_descriptors_it_pauses_and_goes_on(void **state) {
        SocketFixture *d = *state;
        struct rlimit before;
        int fd = dial(d), highest = dup(0);
        assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
        const struct rlimit none = { (rlim_t)highest, before.rlim_max };
        (void)close(highest);
        int filler[64], n = 0; /* gaps below */
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
        while (n < 64 && (filler[n] = dup(0)) >= 0)
                n++;
        turn(d); /* would never end if the listener stayed ready */
        assert_int_equal(hook_socket_n_open(d->socket), 0);
        while (n > 0)
                (void)close(filler[--n]);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        while (hook_socket_n_open(d->socket) == 0)
                assert_true(sd_event_run(d->event, 5000000) > 0);
        (void)close(fd);
}

/* ---- the listening socket ---- */

static void a_dead_agent_s_socket_is_replaced_and_a_living_one_s_is_not(void **state) {
        SocketFixture *d = *state;
        int fd = -1;
        struct stat st;
        assert_int_equal(api_listen_seqpacket(d->path, &fd), -EADDRINUSE);
        d->socket = hook_socket_free(d->socket);
        assert_int_equal(stat(d->path, &st), 0); /* it stays behind, as after a crash */
        assert_int_equal(api_listen_seqpacket(d->path, &fd), 0);
        (void)close(fd);
}

static void somebody_s_file_is_no_socket_and_is_left_alone(void **state) {
        SocketFixture *d = *state;
        int fd = -1;
        char path[PATH_MAX + 32];
        struct stat st;
        (void)snprintf(path, sizeof path, "%s/precious", d->scratch->path);
        assert_int_equal(scratch_write(d->scratch, "precious", "x"), 0);
        assert_int_equal(api_listen_seqpacket(path, &fd), -EEXIST);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_size, 1);
        char *name = calloc(1, 300);
        assert_non_null(name);
        memset(name, 'a', 299);
        assert_int_equal(api_listen_seqpacket(name, &fd), -ENAMETOOLONG);
        free(name);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
#define TEST_USERS(f) cmocka_unit_test_setup_teardown(f, setup_users, teardown)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(packets_go_both_ways_and_the_kernel_identifies_it),
                TEST(a_file_goes_with_an_answer),
                TEST(everybody_may_connect),
                TEST(what_is_too_long_is_refused_and_the_longest_is_not),
                TEST(the_last_word_of_one_that_went_without_listening_is_heard),
                TEST(files_that_come_uninvited_are_not_accepted),
                TEST(a_peer_may_be_closed_from_inside_of_its_own_packet),
                TEST_USERS(so_many_of_one_owner_work_at_once_and_the_next_one_is_refused),
                TEST_USERS(owners_with_all_that_they_may_have_keep_no_other_one_out),
                TEST(who_sends_nothing_is_disconnected_after_a_second),
                TEST(a_wait_is_counted_from_now_and_ends_in_gone),
                TEST(without_descriptors_it_pauses_and_goes_on),
                TEST(a_dead_agent_s_socket_is_replaced_and_a_living_one_s_is_not),
                TEST(somebody_s_file_is_no_socket_and_is_left_alone),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
