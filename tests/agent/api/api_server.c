/* Serves the fake agent on a unix socket and on 127.0.0.1 until its input ends: for
 * tests/agent/api/test_api_curl.py. usage: api_server SOCKET   prints the TCP port once it listens
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/api/api.h"
#include "lib/base/cleanup.h"
#include "tests/agent/api/fake_backend.h"

static int on_input(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        (void)s;
        (void)fd;
        (void)revents;
        return sd_event_exit(userdata, 0);
}

static int serve(sd_event *event, const char *path) {
        static char hostname[256];
        struct sockaddr_in address = { 0 };
        socklen_t n = sizeof address;
        int fd = -1, tcp_fd = -1, r;
        Api *api = NULL, *tcp = NULL;

        r = gethostname(hostname, sizeof hostname - 1) < 0 ? -errno : api_listen_unix(path, &fd);
        if (r == 0)
                r = api_new(&api, event, &(ApiListener){ .fd = fd, .backend = fake_backend() });
        if (r == 0)
                r = api_listen_tcp("127.0.0.1:0", &tcp_fd);
        if (r == 0 && getsockname(tcp_fd, (struct sockaddr *)&address, &n) == 0)
                r = api_new(&tcp, event,
                            &(ApiListener){ .fd = tcp_fd,
                                            .read_only = true,
                                            .hostname = hostname,
                                            .backend = fake_backend() });
        if (r == 0) {
                (void)printf("%u\n", ntohs(address.sin_port));
                (void)fflush(stdout);
                r = sd_event_loop(event);
        }
        api_free(api);
        api_free(tcp);
        return r;
}

int main(int argc, char **argv) {
        sd_event *event = NULL;
        int r;

        if (argc != 2) {
                (void)fprintf(stderr, "usage: api_server SOCKET\n");
                return 2;
        }
        r = sd_event_new(&event);
        if (r >= 0)
                r = sd_event_add_io(event, NULL, STDIN_FILENO, EPOLLIN | EPOLLHUP, on_input, event);
        if (r >= 0)
                r = serve(event, argv[1]);
        sd_event_unref(event);
        if (r < 0)
                (void)fprintf(stderr, "api_server: %s\n", strerror(-r));
        return r < 0;
}
