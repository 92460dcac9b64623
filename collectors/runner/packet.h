/* Messages of a SOCK_SEQPACKET socket, with which descriptors may come. */
#pragma once

#include <stddef.h>
#include <sys/types.h>

#define PACKET_FDS_MAX 2

/** Sends one without waiting. @param fds  go with it, borrowed; PACKET_FDS_MAX at most
 * @return 0, -EAGAIN: the other end does not read, -errno */
int packet_send(int fd, const void *data, size_t n, const int *fds, size_t n_fds);

/** Receives one. @param ret_fds  gets the first n_fds descriptors that came along, PACKET_FDS_MAX
 * at most, -1 = none; all others are closed
 * @return how many bytes it has, as far as there is room; 0: the other end is closed; -errno */
ssize_t packet_receive(int fd, void *data, size_t n, int *ret_fds, size_t n_fds);
