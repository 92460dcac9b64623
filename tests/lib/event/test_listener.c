/* lib/event/listener: whatever accept(2) says, the loop comes to rest, and who waits is served. */
#include "tests/harness/unit.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/event/listener.h"

static int refused_with; /* errno of the next calls; 0: none is refused */
static unsigned n_refused;
int __real_accept4(int fd, struct sockaddr *a, socklen_t *n, int flags);
int __wrap_accept4(int fd, struct sockaddr *a, socklen_t *n, int flags);
int __wrap_accept4(int fd, struct sockaddr *a, socklen_t *n, int flags) {
        if (!refused_with)
                return __real_accept4(fd, a, n, flags);
        n_refused++;
        errno = refused_with;
        return -1;
}

typedef struct Fixture {
        sd_event *event;
        Listener *listener;
        struct sockaddr_un address;
        socklen_t address_size;
        unsigned n_connections;
        int clients[4];
} Fixture;

static void on_connection(int fd, void *userdata) {
        Fixture *f = userdata;
        f->n_connections++;
        if (f->n_connections == 2)
                listener_hold(f->listener, true);
        (void)close(fd);
}

/* Blocking, with an abstract name, as systemd may hand it over. */
static int setup(void **state) {
        Fixture *f = calloc(1, sizeof *f);
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_non_null(f);
        f->address.sun_family = AF_UNIX;
        f->address_size = sizeof f->address;
        assert_int_equal(bind(fd, (struct sockaddr *)&f->address, sizeof(sa_family_t)), 0);
        assert_int_equal(getsockname(fd, (struct sockaddr *)&f->address, &f->address_size), 0);
        assert_int_equal(listen(fd, 8), 0);
        assert_int_equal(sd_event_new(&f->event), 0);
        assert_int_equal(listener_new(&f->listener, f->event, fd, on_connection, f), 0);
        for (size_t i = 0; i < ELEMENTSOF(f->clients); i++) {
                f->clients[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
                assert_int_equal(
                        connect(f->clients[i], (struct sockaddr *)&f->address, f->address_size), 0);
        }
        *state = f;
        return 0;
}

static int teardown(void **state) {
        Fixture *f = *state;
        refused_with = 0;
        listener_free(f->listener);
        sd_event_unref(f->event);
        for (size_t i = 0; i < ELEMENTSOF(f->clients); i++)
                (void)close(f->clients[i]);
        free(f);
        return 0;
}

static void rest(Fixture *f) {
        for (int i = 0; i < 100; i++)
                if (sd_event_run(f->event, 0) == 0)
                        return;
        fail_msg("the loop does not come to rest");
}

static void who_cannot_be_accepted_is_served_a_second_later(void **state) {
        static const int errors[] = { EMFILE, EACCES };
        Fixture *f = *state;
        n_refused = 0;
        for (size_t i = 0; i < ELEMENTSOF(errors); i++) {
                refused_with = errors[i];
                while (n_refused == i)
                        assert_true(sd_event_run(f->event, 5 * USEC_PER_SEC) > 0);
                rest(f);
                assert_int_equal(n_refused, i + 1);
        }
        refused_with = 0;
        while (f->n_connections == 0)
                assert_true(sd_event_run(f->event, 5 * USEC_PER_SEC) > 0);
}

static void while_it_is_held_nobody_is_accepted(void **state) {
        Fixture *f = *state;
        rest(f);
        assert_int_equal(f->n_connections, 2);
        listener_hold(f->listener, false);
        rest(f);
        assert_int_equal(f->n_connections, ELEMENTSOF(f->clients));
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        const struct CMUnitTest tests[] = {
                TEST(who_cannot_be_accepted_is_served_a_second_later),
                TEST(while_it_is_held_nobody_is_accepted),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
