/* Where `get` writes: a file that appears under its name when it is complete, and grows as
 * `NAME.partial` until then; or stdout. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/base/cleanup.h"

typedef struct Output {
        char *path, *partial; /* NULL = stdout */
        int fd;               /* of the partial file, locked; of stdout; -1 */
        bool may_replace;     /* --force */
        bool is_committed;
        uint64_t kept;    /* bytes that were there when it was opened */
        uint64_t written; /* where the next byte goes */
} Output;

#define OUTPUT_INIT ((Output){ .fd = -1 })

typedef struct OutputSpec { /* borrowed */
        const char *given;  /* by -o: a file, a directory, `-`; NULL = the current directory */
        const char *name;   /* in a directory: one component */
        bool may_replace;
} OutputSpec;

/** Finds out where it goes, and touches nothing. @return CLI_YES, CLI_NO, CLI_USAGE after it was
 * reported */
int output_init(Output *o, const OutputSpec *order);
/** Opens NAME.partial (what is in it stays) and locks it; stdout needs it too. @return CLI_YES,
 * CLI_NO after it was reported */
int output_open(Output *o);
/** Leaves the partial file, unless there is nothing in it. */
void output_done(Output *o);

bool output_is_stdout(const Output *o);
/** @return fd of what has the name already, to be compared; -ENOENT; -EISDIR …: it is no regular
 * file */
int output_open_existing(const Output *o);
/** Says that the name is taken by something else. @return CLI_NO */
int output_report_exists(const Output *o);

/** Cuts the partial file, and continues there. @return 0, -errno */
int output_rewind(Output *o, uint64_t bytes);
/** Appends. @return 0, -errno, -EPIPE when nobody reads stdout any more */
int output_write(Output *o, const void *data, size_t n);
/** Appends zeros: a hole where there can be one. */
int output_zeros(Output *o, uint64_t n);
/** Says why writing failed, and how to continue. @return CLI_NO */
int output_report(const Output *o, int error);

/** @return whether there is space for so many more bytes, as far as one can tell; else CLI_NO was
 * reported */
int output_check_space(const Output *o, uint64_t more_bytes);

/** Makes it durable and gives it its name. What has the name is replaced only when that was
 * requested.
 * @return CLI_YES, CLI_NO after it was reported */
int output_commit(Output *o);
/** What was loaded is of no use: removes the partial file. */
void output_discard(Output *o);
