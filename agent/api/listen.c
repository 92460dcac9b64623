/* Creates the listening sockets: the API's (unix and TCP), and that of hooks. A socket file that no
 * process listens on is replaced; one that answers is another agent's, and is left. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "agent/api/api.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"

#define BACKLOG 256 /* hooks that connect at the same moment */
#define GROUP "neuron-collectd"

/* Sets the mode regardless of the umask, through a descriptor, because the name could lead
 * elsewhere by now. */
static int set_socket_mode(const char *path, mode_t mode) {
        _cleanup_close_ int fd = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        char link[32];
        struct stat st;

        if (fd < 0 || fstat(fd, &st) < 0)
                return -errno;
        if (!S_ISSOCK(st.st_mode))
                return -EEXIST;
        (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        /* An unprivileged agent outside the group keeps its own. */
        const struct group *group = mode & S_IWOTH ? NULL : getgrnam(GROUP);
        if (group)
                (void)chown(link, (uid_t)-1, group->gr_gid);
        return chmod(link, mode) < 0 ? -errno : 0;
}

/* @param mode  not for others: for the group, where there is one */
static int listen_unix(const char *path, int type, mode_t mode, int *ret_fd) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        if (strlen(path) >= sizeof address.sun_path)
                return -ENAMETOOLONG;
        memcpy(address.sun_path, path, strlen(path));
        _cleanup_free_ char *parent = path_parent(path);
        int r = parent ? fs_mkdir_p(parent, 0755) : -ENOMEM;
        if (r == 0)
                r = fs_remove_stale_socket(path, type);
        if (r < 0)
                return r;
        _cleanup_close_ int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return -errno;
        /* On Linux the file that bind() makes has the mode of the socket's inode, less the umask:
         * so it is never open to all, not for a moment, and the process-wide umask stays as it is.
         * See unix(7). */
        if (fchmod(fd, 0600) < 0 || bind(fd, (const struct sockaddr *)&address, sizeof address) < 0)
                return -errno;
        r = set_socket_mode(path, mode);
        if (r == -EEXIST)
                return r;
        if (r == 0 && listen(fd, BACKLOG) < 0)
                r = -errno;
        if (r < 0) {
                (void)unlink(path); /* best effort: the next start finds it stale */
                return r;
        }
        *ret_fd = TAKE_FD(fd);
        return 0;
}

int api_listen_unix(const char *path, int *ret_fd) {
        return listen_unix(path, SOCK_STREAM, 0660, ret_fd);
}

int api_listen_seqpacket(const char *path, int *ret_fd) {
        return listen_unix(path, SOCK_SEQPACKET, 0666, ret_fd);
}

/* Splits `host:port`, `[v6]:port`. @return 0, -EINVAL */
static int split_address(const char *address, char *host, size_t size, uint16_t *ret_port) {
        const char *colon = strrchr(address, ':');
        size_t n = colon ? (size_t)(colon - address) : 0;
        uint64_t port;

        if (n == 0 || parse_u64_range(colon + 1, 0, UINT16_MAX, &port) < 0)
                return -EINVAL;
        if (address[0] == '[') {
                if (n < 3 || address[n - 1] != ']')
                        return -EINVAL;
                address++;
                n -= 2;
        } else if (memchr(address, ':', n))
                return -EINVAL; /* an address of IPv6 without brackets: its port cannot be told */
        if (n >= size)
                return -EINVAL;
        memcpy(host, address, n);
        host[n] = '\0';
        *ret_port = (uint16_t)port;
        return 0;
}

int api_listen_tcp(const char *address, int *ret_fd) {
        struct sockaddr_in v4 = { .sin_family = AF_INET };
        struct sockaddr_in6 v6 = { .sin6_family = AF_INET6 };
        _cleanup_close_ int fd = -1;
        char host[INET6_ADDRSTRLEN + 16];
        const int on = 1;
        uint16_t port;

        int r = split_address(address, host, sizeof host, &port);
        if (r < 0)
                return r;
        if (strcmp(host, "localhost") ==
            0) /* the only name: looking up others could block the loop */
                (void)snprintf(host, sizeof host, "127.0.0.1");
        bool is_v6 = inet_pton(AF_INET6, host, &v6.sin6_addr) == 1;
        if (!is_v6 && inet_pton(AF_INET, host, &v4.sin_addr) != 1)
                return -EINVAL;
        v4.sin_port = v6.sin6_port = htons(port);
        fd = socket(is_v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return -errno;
        /* A restart must not wait until the last scrape's connection is forgotten. */
        if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0)
                return -errno;
        if (bind(fd, is_v6 ? (const struct sockaddr *)&v6 : (const struct sockaddr *)&v4,
                 is_v6 ? sizeof v6 : sizeof v4) < 0 ||
            listen(fd, BACKLOG) < 0)
                return -errno;
        *ret_fd = TAKE_FD(fd);
        return 0;
}
