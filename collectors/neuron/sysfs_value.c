/* The content of one file of sysfs: read without effects on the device, and shown without secrets.
 * Which files are read is decided in sysfs_walk.c and neuron_sysfs.c. */
#include "collectors/neuron/sysfs_value.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/redact.h"

int sysfs_value_read(int dir_fd, const char *name, SysfsValue *ret) {
        _cleanup_close_ int fd = -1;
        struct stat st;
        ssize_t n;

        /* fs_open_regular() would open each of thousands of files twice. sysfs has no devices. */
        fd = strchr(name, '/') ? fs_open_beneath(dir_fd, name, O_RDONLY)
                               : openat(dir_fd, name,
                                        O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        if (fd < 0)
                return strchr(name, '/') ? fd : -errno;
        if (fstat(fd, &st) < 0)
                return -errno;
        if (!S_ISREG(st.st_mode))
                return -EBADF;
        /* One call is enough: the first read(2) fills a file of sysfs, which has at most a page. */
        do
                n = read(fd, ret->data, sizeof ret->data);
        while (n < 0 && errno == EINTR);
        if (n < 0)
                return -errno;
        ret->is_cut = n > SYSFS_FILE_BYTES_MAX;
        n = MIN(n, (ssize_t)SYSFS_FILE_BYTES_MAX);
        if (n > 0 && !ret->is_cut && ret->data[n - 1] == '\n')
                n--;
        ret->n = (size_t)n;
        return 0;
}

enum { REDACT_BYTES_MIN = 16 }; /* a shorter value, or a number, is no secret */

static bool is_number(const char *data, size_t n) {
        for (size_t i = 0; i < n; i++)
                if (data[i] < '0' || data[i] > '9')
                        return false;
        return true;
}

void sysfs_value_add(StrBuf *b, const char *key, const char *data, size_t n) {
        if (n < REDACT_BYTES_MIN || is_number(data, n))
                json_out_text(b, key, data, n);
        else
                redact_member(b, key, data, n);
}
