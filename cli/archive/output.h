/* The file that a command writes: it gets its name when it is complete and verified. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct Output {
        char *path, *partial; /* NULL = stdout */
        int fd;               /* of the partial file, locked; of stdout; -1 */
        bool may_replace;     /* --force */
        bool is_committed;
        uint64_t kept;    /* bytes that were there when it was opened */
        uint64_t written; /* where the next byte goes */
} Output;

#define OUTPUT_INIT ((Output){ .fd = -1 })

/** @param given  by -o: a file, a directory, `-`; NULL = the current directory
 * @param name  in a directory: one component
 * @return CLI_YES; CLI_USAGE, CLI_NO: reported */
int output_init(Output *o, const char *given, const char *name);
/** Keeps a partial file that has bytes. */
void output_done(Output *o);

bool output_is_stdout(const Output *o);
/** Opens an existing file of this name.
 * @return fd; -ENOENT: there is none; -EISDIR, -EBADF: it is no regular file; -errno */
int output_open_existing(const Output *o);
/** Reports that the file exists with other content. @return CLI_NO */
int output_report_exists(const Output *o);

/** Opens the partial file, and locks it. @return CLI_YES; CLI_NO: reported */
int output_open(Output *o);
/** Continues behind so many bytes of it. @return 0, -errno */
int output_rewind(Output *o, uint64_t bytes);
/** @return 0, -errno; -EINTR when cli_is_interrupted() */
int output_write(Output *o, const void *data, size_t n);
int output_zeros(Output *o, uint64_t n);
/** Reports why writing failed. @param error  negative errno @return CLI_NO */
int output_report(const Output *o, int error);
/** @return CLI_YES; CLI_NO: there is no space for more_bytes, which is reported */
int output_check_space(const Output *o, uint64_t more_bytes);

/** Makes it durable and gives it its name. @return CLI_YES; CLI_NO: reported */
int output_commit(Output *o);
/** Removes the partial file. */
void output_discard(Output *o);

/** Opens the directory that a path is in. @return fd, -errno */
int output_open_parent(const char *path);
