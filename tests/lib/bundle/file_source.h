/* An object that is a file, for tests of the reader. */
#pragma once

#include <sys/stat.h>

#include "lib/base/fs.h"
#include "lib/base/list.h"
#include "lib/bundle/reader.h"

typedef struct FileSource {
        ByteSource source;
        int fd; /* borrowed */
} FileSource;

static int file_source_read_at(ByteSource *s, void *data, size_t n, uint64_t offset) {
        return fs_pread_all(CONTAINER_OF(s, FileSource, source)->fd, data, n, offset);
}

static inline FileSource file_source(int fd) {
        struct stat st = { 0 };
        (void)fstat(fd, &st); /* a failure is an object of no bytes */
        return (FileSource){ .source = { .bytes = (uint64_t)st.st_size,
                                         .read_at = file_source_read_at },
                             .fd = fd };
}
