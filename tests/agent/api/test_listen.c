/* agent/api/listen.c: the sockets, checked with the kernel's own words for them. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <grp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/harness/unit.h"

#include "agent/api/api.h"
#include "lib/base/cleanup.h"
#include "tests/harness/skip.h"

static char base[64], path[128];
static struct group *fake_group;

struct group *__wrap_getgrnam(const char *name);
struct group *__wrap_getgrnam(const char *name) {
        assert_string_equal(name, "neuron-collectd");
        return fake_group;
}

static int setup(void **state) {
        fake_group = NULL;
        (void)snprintf(base, sizeof base, "/tmp/api-listen.XXXXXX");
        assert_non_null(mkdtemp(base));
        (void)snprintf(path, sizeof path, "%s/run/neuron-collectd/api.sock", base);
        return 0;
}

static int remove_one(const char *p, const struct stat *st, int type, struct FTW *ftw) {
        (void)st;
        (void)type;
        (void)ftw;
        return remove(p);
}

static int teardown(void **state) {
        return nftw(base, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static int dial(void) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

        assert_true(fd >= 0);
        memcpy(address.sun_path, path, strlen(path) + 1);
        if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
                return fd;
        (void)close(fd);
        return -1;
}

static void the_socket_is_there_for_its_group_only(void **state) {
        _cleanup_close_ int fd = -1;
        _cleanup_close_ int client = -1;
        mode_t mask = umask(0);
        struct stat st;
        char parent[128];

        assert_int_equal(api_listen_unix(path, &fd), 0);
        (void)umask(mask);
        assert_int_equal(lstat(path, &st), 0);
        assert_true(S_ISSOCK(st.st_mode));
        assert_int_equal(st.st_mode & 07777, 0660);
        assert_int_equal(st.st_gid, getegid());
        (void)snprintf(parent, sizeof parent, "%s/run/neuron-collectd", base);
        assert_int_equal(stat(parent, &st), 0);
        assert_int_equal(st.st_mode & 07777, 0755);
        assert_int_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
        client = dial();
        assert_true(client >= 0);
}

static void a_narrow_umask_removes_nothing_from_the_group(void **state) {
        _cleanup_close_ int fd = -1;
        struct stat st;
        mode_t mask;

        assert_int_equal(api_listen_unix(path, &fd), 0); /* makes the directories */
        (void)close(TAKE_FD(fd));
        mask = umask(0077);
        assert_int_equal(api_listen_unix(path, &fd), 0);
        (void)umask(mask);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 07777, 0660);
}

static void the_group_gets_it_where_there_is_one(void **state) {
        struct group group = { .gr_gid = 54321 };
        _cleanup_close_ int fd = -1;
        struct stat st;

        if (geteuid() != 0) {
                print_message("# only root can give files to other groups\n");
                SKIP_BECAUSE("not possible on this machine or as this user");
        }
        fake_group = &group;
        assert_int_equal(api_listen_unix(path, &fd), 0);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_gid, 54321);
        assert_int_equal(st.st_mode & 07777, 0660);
}

static void a_dead_agents_socket_is_replaced_and_a_living_ones_is_not(void **state) {
        _cleanup_close_ int fd = -1;
        int other = -1;

        assert_int_equal(api_listen_unix(path, &fd), 0);
        assert_int_equal(api_listen_unix(path, &other), -EADDRINUSE);
        assert_int_equal(other, -1);
        (void)close(TAKE_FD(fd)); /* as after kill -9: the name stays */
        assert_int_equal(access(path, F_OK), 0);
        assert_int_equal(dial(), -1);
        assert_int_equal(api_listen_unix(path, &fd), 0);
        other = dial();
        assert_true(other >= 0);
        (void)close(other);
}

static void a_file_in_the_way_is_not_removed(void **state) {
        _cleanup_close_ int file = -1;
        int fd = -1;

        (void)snprintf(path, sizeof path, "%s/file", base);
        file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        assert_true(file >= 0);
        assert_int_equal(api_listen_unix(path, &fd), -EEXIST);
        assert_int_equal(access(path, F_OK), 0);
}

static void a_path_longer_than_a_socket_may_have_is_refused(void **state) {
        char long_path[200];
        int fd = -1;

        memset(long_path, 'a', sizeof long_path - 1);
        long_path[0] = '/';
        long_path[sizeof long_path - 1] = '\0';
        assert_int_equal(api_listen_unix(long_path, &fd), -ENAMETOOLONG);
}

static void tcp_listens_where_it_is_configured(void **state) {
        static const struct {
                const char *address, *host;
        } cases[] = { { "127.0.0.1:0", "127.0.0.1" },
                      { "localhost:0", "127.0.0.1" },
                      { "[::1]:0", "::1" },
                      { "0.0.0.0:0", "0.0.0.0" } };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                struct sockaddr_storage address;
                socklen_t n = sizeof address;
                _cleanup_close_ int fd = -1;
                char host[INET6_ADDRSTRLEN];
                int on = 0, r;

                r = api_listen_tcp(cases[i].address, &fd);
                if (r == -EADDRNOTAVAIL || r == -EAFNOSUPPORT)
                        continue; /* a machine without IPv6 */
                assert_int_equal(r, 0);
                assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &n), 0);
                if (address.ss_family == AF_INET6)
                        (void)inet_ntop(AF_INET6, &((struct sockaddr_in6 *)&address)->sin6_addr,
                                        host, sizeof host);
                else
                        (void)inet_ntop(AF_INET, &((struct sockaddr_in *)&address)->sin_addr, host,
                                        sizeof host);
                assert_string_equal(host, cases[i].host);
                n = sizeof on;
                assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &on, &n), 0);
                assert_int_equal(on, 1);
        }
}

static void addresses_that_are_none_are_refused(void **state) {
        static const char *const bad[] = { "",
                                           ":80",
                                           "80",
                                           "127.0.0.1",
                                           "127.0.0.1:",
                                           "127.0.0.1:65536",
                                           "127.0.0.1:-1",
                                           "::1:80",
                                           "[::1]",
                                           "[::1]80",
                                           "[]:80",
                                           "[127.0.0.1:80",
                                           "example.com:80",
                                           "127.0.0.1:80x",
                                           "127.0.0:80",
                                           "[::1]:80 ",
                                           " 1.2.3.4:1",
                                           "1.2.3.4.5:1",
                                           "[0:0:0:0:0:0:0:0:0]:1" };

        for (size_t i = 0; i < ELEMENTSOF(bad); i++) {
                int fd = -1;

                assert_int_equal(api_listen_tcp(bad[i], &fd), -EINVAL);
                assert_int_equal(fd, -1);
        }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(the_socket_is_there_for_its_group_only),
                TEST(a_narrow_umask_removes_nothing_from_the_group),
                TEST(the_group_gets_it_where_there_is_one),
                TEST(a_dead_agents_socket_is_replaced_and_a_living_ones_is_not),
                TEST(a_file_in_the_way_is_not_removed),
                TEST(a_path_longer_than_a_socket_may_have_is_refused),
                TEST(tcp_listens_where_it_is_configured),
                TEST(addresses_that_are_none_are_refused),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
