/* Where a reader gets an object's bytes from: a file, or ranges of an object in S3. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct ByteSource {
        uint64_t bytes; /* of the object */
        /* Reads exactly n bytes at an offset. @return 0, -ENODATA at an early end, -errno */
        int (*read_at)(struct ByteSource *s, void *data, size_t n, uint64_t offset);
} ByteSource;

typedef struct FileByteSource {
        ByteSource source;
        int fd; /* borrowed */
} FileByteSource;
/** @return 0, -EINVAL when fd is no regular file, -errno */
int file_byte_source_init(FileByteSource *s, int fd);
