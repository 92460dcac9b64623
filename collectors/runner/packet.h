/* Messages of a SOCK_SEQPACKET socket, which may carry descriptors. */
#pragma once

#include <stddef.h>
#include <sys/types.h>

#include "lib/base/cleanup.h"

#define PACKET_FDS_MAX 2
#define PACKET_TEXT_MAX (64 * 1024) /* of a message that packet_printf() sends */

/** Sends a message without waiting. @param fds  that it carries, borrowed; PACKET_FDS_MAX at most
 * @return 0, -EAGAIN: the other end does not read, -errno */
int packet_send(int fd, const void *data, size_t n, const int *fds, size_t n_fds);

/** Sends a message of text, cut at PACKET_TEXT_MAX, and waits until the other end has room for it.
 * @return 0, -errno */
_printf_(2, 3) int packet_printf(int fd, const char *fmt, ...);

/** Receives a message. @param ret_fds  gets the first n_fds descriptors that it carries,
 * PACKET_FDS_MAX at most, -1 = none; the kernel closes all others
 * @return the number of bytes that fitted into data; 0: the other end is closed; -errno */
ssize_t packet_receive(int fd, void *data, size_t n, int *ret_fds, size_t n_fds);
