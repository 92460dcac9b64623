/* A file of records in the directory of a snapshot: JSON objects, one a line. */
#pragma once

#include <stddef.h>
#include <stdio.h>

#define RECORD_LINE_MAX (1024 * 1024)

/** Makes an empty file, in the place of one that exists. @return 0, -errno */
int record_file_create(FILE **ret, int dir_fd, const char *name);

/** Calls on_line for each line, NUL-terminated and without its newline; line is NULL for one that
 * is longer than RECORD_LINE_MAX or has no newline. A file that does not exist has no lines.
 * @return 0; what on_line returned, if negative; -errno */
int record_file_lines(int dir_fd, const char *name,
                      int (*on_line)(const char *line, size_t n, void *userdata), void *userdata);
