/* The kernel log by syslog(2), for containers without /dev/kmsg. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/** What klogctl(2) is called with: neither changes anything. */
enum { KMSG_RING_READ_ALL = 3, KMSG_RING_SIZE = 10 };

/** Reads the whole ring. @param ret  the caller's @return its length, -errno */
int kmsg_ring_read(char **ret);

/** @param tail  the end of what was read before @return where new text begins; 0: the tail was
 * overwritten, or is empty */
size_t kmsg_ring_find_new(const char *text, size_t n, const char *tail, size_t n_tail);

/** @param cpu_usec  that the last read took @return how long to wait for the next read */
int kmsg_ring_wait_msec(uint64_t cpu_usec);
