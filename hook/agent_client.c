#include "hook/agent_client.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/parse.h"

enum {
        PACKET_MAX = 4096,
        RETRY_MSEC = 5 /* while the agent's queue of connections is full */
};

/* ---- what the agent says ---- */

/* @return what stands behind the word and a blank, NULL when the text begins with another word */
static const char *skip_word(const char *text, const char *word) {
        size_t n = strlen(word);
        if (strncmp(text, word, n) != 0 || (text[n] != ' ' && text[n] != '\0'))
                return NULL;
        return text[n] == ' ' ? text + n + 1 : text + n;
}

static void copy_sentence(AgentReply *ret, const char *s) {
        size_t n = MIN(strlen(s), sizeof ret->text - 1);
        memcpy(ret->text, s, n);
        ret->text[n] = '\0';
}

void agent_client_parse(const char *data, size_t n, AgentReply *ret) {
        char text[PACKET_MAX + 1];
        const char *s;
        *ret = (AgentReply){ .kind = AGENT_REPLY_INVALID };
        if (n > PACKET_MAX || memchr(data, '\0', n))
                return;
        memcpy(text, data, n);
        text[n] = '\0';
        char *line = strchr(text, '\n');
        if (line)
                *line++ = '\0';
        if ((s = skip_word(text, "accepted"))) {
                if (parse_u64(s, &ret->wait_usec) < 0)
                        return;
                ret->wait_usec = MIN(ret->wait_usec, AGENT_WAIT_MAX_USEC);
                ret->kind = AGENT_REPLY_ACCEPTED;
                if (line && strncmp(line, "refused: ", 9) == 0) {
                        line[strcspn(line, "\n")] = '\0';
                        copy_sentence(ret, line + 9);
                }
        } else if ((s = skip_word(text, "refused"))) {
                ret->kind = AGENT_REPLY_REFUSED;
                copy_sentence(ret, s);
        } else if (strcmp(text, "snapshot done") == 0)
                ret->kind = AGENT_REPLY_SNAPSHOT;
        else if ((s = skip_word(text, "snapshot none"))) {
                ret->kind = AGENT_REPLY_NO_SNAPSHOT;
                copy_sentence(ret, s);
        }
}

/* ---- the socket ---- */

static bool is_before(uint64_t until_usec) {
        return clock_boottime_usec() < until_usec;
}

static int connect_to(int fd, const char *path, uint64_t until_usec) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        size_t n = strlen(path);
        if (n == 0 || n >= sizeof address.sun_path)
                return -ENAMETOOLONG;
        memcpy(address.sun_path, path, n + 1);
        while (connect(fd, (struct sockaddr *)&address, sizeof address) < 0) {
                if (errno != EAGAIN && errno != EINTR)
                        return -errno;
                if (!is_before(until_usec))
                        return -ETIMEDOUT;
                (void)poll(NULL, 0, RETRY_MSEC);
        }
        return 0;
}

static int send_packet(int fd, const char *data, size_t n, uint64_t until_usec) {
        while (send(fd, data, n, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
                if (errno != EAGAIN && errno != EINTR)
                        return -errno;
                if (!is_before(until_usec))
                        return -ETIMEDOUT;
                struct pollfd p = { .fd = fd, .events = POLLOUT };
                (void)poll(&p, 1, RETRY_MSEC); /* tried again in any case */
        }
        return 0;
}

int agent_client_open(const char *path, const char *note, size_t n, uint64_t until_usec) {
        _cleanup_close_ int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return -errno;
        int r = connect_to(fd, path, until_usec);
        if (r == 0)
                r = send_packet(fd, note, n, until_usec);
        return r < 0 ? r : TAKE_FD(fd);
}

/* @return the descriptor that came with a message; -1 */
static int own_fd(struct msghdr *message) {
        const struct cmsghdr *c = CMSG_FIRSTHDR(message);
        int fd = -1;
        if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
                memcpy(&fd, CMSG_DATA(c), sizeof fd);
        return fd;
}

/* Reading anything but a sealed file of memory might block, or change under us. */
static bool is_sealed(int fd) {
        struct stat st;
        int seals = fcntl(fd, F_GET_SEALS);
        return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && seals >= 0 &&
               (seals & (F_SEAL_WRITE | F_SEAL_SHRINK)) == (F_SEAL_WRITE | F_SEAL_SHRINK);
}

void agent_client_receive(int fd, AgentReply *ret, int *ret_fd) {
        char data[PACKET_MAX + 1];
        _Alignas(struct cmsghdr) char
                control[CMSG_LEN(sizeof(int))]; /* no room for a second: the kernel closes it */
        struct iovec part = { .iov_base = data, .iov_len = sizeof data };
        struct msghdr message = { .msg_iov = &part,
                                  .msg_iovlen = 1,
                                  .msg_control = control,
                                  .msg_controllen = sizeof control };
        *ret = (AgentReply){ .kind = AGENT_REPLY_NONE };
        *ret_fd = -1;
        ssize_t n = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
                return;
        if (n <= 0) {
                ret->kind = AGENT_REPLY_CLOSED;
                return;
        }
        _cleanup_close_ int got = own_fd(&message);
        agent_client_parse(data, (size_t)n, ret);
        if (ret->kind != AGENT_REPLY_SNAPSHOT)
                return;
        if (got < 0 || !is_sealed(got))
                ret->kind = AGENT_REPLY_INVALID;
        else
                *ret_fd = TAKE_FD(got);
}

void agent_client_finish(int fd, bool has_record, bool has_snapshot) {
        const char *text = has_record && has_snapshot ? "finished"
                           : has_record               ? "finished without snapshot"
                           : has_snapshot             ? "finished without record"
                                                      : "finished without record snapshot";
        (void)send(fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT); /* it may have gone */
}
