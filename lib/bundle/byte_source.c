/* The plainest source: a regular file. Sources that are far away are their owners' business. */
#include "lib/bundle/byte_source.h"

#include <errno.h>
#include <sys/stat.h>

#include "lib/base/fs.h"
#include "lib/base/list.h"

static int file_read_at(ByteSource *s, void *data, size_t n, uint64_t offset) {
        return fs_pread_all(CONTAINER_OF(s, FileByteSource, source)->fd, data, n, offset);
}

int file_byte_source_init(FileByteSource *s, int fd) {
        struct stat st;
        if (fstat(fd, &st) < 0)
                return -errno;
        if (!S_ISREG(st.st_mode))
                return -EINVAL;
        *s = (FileByteSource){ .source = { .bytes = (uint64_t)st.st_size, .read_at = file_read_at },
                               .fd = fd };
        return 0;
}
