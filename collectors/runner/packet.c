#include "collectors/runner/packet.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

int packet_send(int fd, const void *data, size_t n, const int *fds, size_t n_fds) {
        struct iovec part = { (void *)data, n };
        union {
                char bytes[CMSG_SPACE(PACKET_FDS_MAX * sizeof(int))];
                struct cmsghdr align;
        } control = { { 0 } };
        struct msghdr m = { .msg_iov = &part, .msg_iovlen = 1 };
        if (n_fds > 0) {
                m.msg_control = control.bytes;
                m.msg_controllen = CMSG_SPACE(n_fds * sizeof *fds);
                struct cmsghdr *c = CMSG_FIRSTHDR(&m);
                *c = (struct cmsghdr){ CMSG_LEN(n_fds * sizeof *fds), SOL_SOCKET, SCM_RIGHTS };
                memcpy(CMSG_DATA(c), fds, n_fds * sizeof *fds);
        }
        return sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? -errno : 0;
}

ssize_t packet_receive(int fd, void *data, size_t n, int *ret_fds, size_t n_fds) {
        struct iovec part = { data, n };
        union {
                char bytes[CMSG_SPACE(PACKET_FDS_MAX * sizeof(int))];
                struct cmsghdr align;
        } control;
        /* CMSG_SPACE() may have room for one more. */
        struct msghdr m = { .msg_iov = &part,
                            .msg_iovlen = 1,
                            .msg_control = control.bytes,
                            .msg_controllen = n_fds > 0 ? CMSG_LEN(n_fds * sizeof(int)) : 0 };
        for (size_t i = 0; i < n_fds; i++)
                ret_fds[i] = -1;
        ssize_t k = recvmsg(fd, &m, MSG_CMSG_CLOEXEC);
        if (k < 0)
                return -errno;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
                memcpy(ret_fds, CMSG_DATA(c), c->cmsg_len - CMSG_LEN(0));
        return k;
}
