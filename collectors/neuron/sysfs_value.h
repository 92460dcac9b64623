/* The content of one file of sysfs. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "lib/base/strbuf.h"

enum { SYSFS_FILE_BYTES_MAX = 4096 }; /* sysfs never gives more than a page */

typedef struct SysfsValue {
        char data[SYSFS_FILE_BYTES_MAX + 1]; /* without its last newline; not NUL-terminated */
        size_t n;                            /* at most SYSFS_FILE_BYTES_MAX */
        bool is_cut;                         /* the file has more */
} SysfsValue;

/** Reads a file. @param name  relative to dir_fd; no symlink is followed
 * @return 0; -EBADF: it is no regular file; -errno */
int sysfs_value_read(int dir_fd, const char *name, SysfsValue *ret);

/** Adds a value to the object that is open, redacted if it could be a secret. */
void sysfs_value_add(StrBuf *b, const char *key, const char *data, size_t n);
