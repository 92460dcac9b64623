/* The ring of the kernel log by syslog(2).
 *
 * The kernel formats its whole ring for each read, numbers no record, and does not tell when there
 * is more. A reader that follows the log reads the ring again after a while and searches for the
 * end of what it has read before; the wait grows with the CPU time of a read, which then is 0.2 %
 * of a core. @see syslog(2) */
#include "collectors/host/kmsg_ring.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/klog.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"

#define RING_BYTES_MAX (16 * MIB)
#define WAIT_MSEC_MIN UINT64_C(1000)
#define WAIT_MSEC_MAX UINT64_C(60000)
#define WAIT_FACTOR 500

int kmsg_ring_read(char **ret) {
        int size = klogctl(KMSG_RING_SIZE, NULL, 0);
        if (size < 0)
                return -errno;
        /* Longer than the ring, because something precedes each line. */
        size = (int)MIN(2 * (uint64_t)size, RING_BYTES_MAX);
        char *text = malloc((size_t)size + 1);
        if (!text)
                return -ENOMEM;
        int n = klogctl(KMSG_RING_READ_ALL, text, size);
        if (n < 0) {
                int r = -errno;
                free(text);
                return r;
        }
        *ret = text;
        return n;
}

size_t kmsg_ring_find_new(const char *text, size_t n, const char *tail, size_t n_tail) {
        for (size_t at = n; n_tail > 0 && at >= n_tail; at--)
                if (memcmp(text + at - n_tail, tail, n_tail) == 0)
                        return at;
        return 0;
}

int kmsg_ring_wait_msec(uint64_t cpu_usec) {
        uint64_t msec = cpu_usec * WAIT_FACTOR / USEC_PER_MSEC;
        return (int)MIN(MAX(msec, WAIT_MSEC_MIN), WAIT_MSEC_MAX);
}
