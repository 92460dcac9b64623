/* The listener of the collector host in a container, where systemd's socket unit does not exist.
 *
 * One process with one thread accepts connections of the agent and starts a supervisor for each
 * (supervisor.h), which gets the connection as fd 0, the environment, and the capabilities of this
 * process. It reads nothing from a connection: the supervisor checks who connects. After
 * SIGTERM it still serves until no supervisor runs any more. */
#include "collectors/probe_listener.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/spawn.h"
#include "lib/event/listener.h"

#define CONNECTIONS_MAX 64 /* as in neuron-collectd-probe.socket */

static volatile sig_atomic_t is_stopping;

static void on_signal(int signal) {
        is_stopping = is_stopping || signal != SIGCHLD;
}

/* Signals are handled only in ppoll(). @param ret_open  the mask for it */
static int set_signals(sigset_t *ret_open) {
        static const int handled[] = { SIGCHLD, SIGTERM, SIGINT };
        sigset_t blocked;
        sigemptyset(&blocked);
        for (size_t i = 0; i < ELEMENTSOF(handled); i++) {
                if (sigaction(handled[i], &(struct sigaction){ .sa_handler = on_signal }, NULL) < 0)
                        return -errno;
                sigaddset(&blocked, handled[i]);
        }
        return sigprocmask(SIG_BLOCK, &blocked, ret_open) < 0 ? -errno : 0;
}

static int listen_at(const char *path) {
        struct sockaddr_un a = { .sun_family = AF_UNIX };
        if (strlen(path) >= sizeof a.sun_path)
                return -ENAMETOOLONG;
        strcpy(a.sun_path, path);
        int r = fs_remove_stale_socket(path, SOCK_SEQPACKET);
        if (r < 0)
                return r;
        _cleanup_close_ int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        /* The socket's mode becomes that of the file which bind() makes. */
        if (fd < 0 || fchmod(fd, 0600) < 0 || bind(fd, (const struct sockaddr *)&a, sizeof a) < 0 ||
            listen(fd, CONNECTIONS_MAX) < 0)
                return -errno;
        return TAKE_FD(fd);
}

/* @param connection  borrowed  @return 0, -errno */
static int start_supervisor(int connection, const char *config_file) {
        char *argv[] = { (char *)"neuron-collectd", (char *)"--child=probe", (char *)"--config",
                         (char *)config_file, NULL };
        pid_t pid;
        return spawn_program(&pid,
                             &(SpawnOptions){ .program = "/proc/self/exe",
                                              .argv = argv,
                                              .environment = environ, /* for the configuration */
                                              .fds = { connection, -1, STDERR_FILENO },
                                              .n_fds = 3,
                                              .keeps_capabilities = true });
}

static void accept_connection(int listener, const char *config_file, unsigned *n_children,
                              const sigset_t *open) {
        _cleanup_close_ int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0 && listener_must_pause(errno))
                (void)ppoll(NULL, 0, &(struct timespec){ .tv_sec = LISTENER_PAUSE_SEC }, open);
        if (fd < 0)
                return; /* the client has gone, or waits in the queue */
        int r = start_supervisor(fd, config_file);
        if (r < 0)
                fprintf(stderr, "neuron-collectd: cannot start a probe: %s\n", strerror(-r));
        else
                (*n_children)++;
}

static void serve(int listener, const char *config_file, const sigset_t *open) {
        unsigned n_children = 0;
        while (!is_stopping || n_children > 0) {
                struct pollfd p = { .fd = n_children < CONNECTIONS_MAX ? listener : -1,
                                    .events = POLLIN };
                if (ppoll(&p, 1, NULL, open) > 0)
                        accept_connection(listener, config_file, &n_children, open);
                while (waitpid(-1, NULL, WNOHANG) > 0)
                        n_children--;
        }
}

int probe_listener_main(const char *path, const char *config_file) {
        sigset_t open;
        int r = set_signals(&open);
        _cleanup_close_ int listener = r < 0 ? r : listen_at(path);
        if (listener < 0) {
                fprintf(stderr, "neuron-collectd: cannot listen for the agent on '%s': %s\n", path,
                        strerror(-listener));
                return 1;
        }
        serve(listener, config_file, &open);
        (void)unlink(path); /* the next start finds it stale */
        return 0;
}
