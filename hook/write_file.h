/* A file that appears complete or not at all, whenever we are killed. Not fsynced: the job comes
 * first, and the agent makes its own copy durable. */
#pragma once

#include <stddef.h>
#include <sys/types.h>

typedef struct FileContent {
        const char *text; /* NULL: what fd has */
        size_t n;
        int fd; /* a file of memory, read from its beginning */
} FileContent;

#define WRITE_FILE_FD_MAX (32 << 20) /* of what fd has */

/** Creates the directory and those above it, with the caller's umask. @return an O_PATH fd of the
 * caller's, -errno */
int write_file_open_directory(const char *path);

/** @param mode  the umask is taken off  @return 0; -EEXIST: something is there, and stays; -EFBIG;
 * -errno */
int write_file(int dir_fd, const char *name, mode_t mode, const FileContent *content);
