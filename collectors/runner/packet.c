/* Messages of a SOCK_SEQPACKET socket: one packet, and the descriptors that it carries by
 * SCM_RIGHTS. What a message means is decided by those who send it (supervisor.h). */
#include "collectors/runner/packet.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
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

int packet_printf(int fd, const char *fmt, ...) {
        char text[PACKET_TEXT_MAX];
        va_list args;
        va_start(args, fmt);
        int n = vsnprintf(text, sizeof text, fmt, args);
        va_end(args);
        if (n < 0)
                return -EINVAL;
        return send(fd, text, MIN((size_t)n, sizeof text - 1), MSG_NOSIGNAL) < 0 ? -errno : 0;
}

ssize_t packet_receive(int fd, void *data, size_t n, int *ret_fds, size_t n_fds) {
        struct iovec part = { data, n };
        union {
                char bytes[CMSG_SPACE(PACKET_FDS_MAX * sizeof(int))];
                struct cmsghdr align;
        } control;
        /* Not CMSG_SPACE(), whose padding may have room for one descriptor more. */
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
