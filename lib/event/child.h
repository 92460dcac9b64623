/* A child process in the loop: run, read what it says, bounded in time and output. No shell. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "lib/base/cleanup.h"

typedef struct Child Child;

typedef struct ChildResult {
        int status; /* as waitpid gives it; meaningless with an error */

        /* 0; -ENOENT, -EACCES …: it could not be started; -ETIMEDOUT, -EFBIG: it took too long or said too much, and was killed;
         * -ECHILD: the program ignores SIGCHLD or reaps what is not its own, so that nobody knows how it ended. */
        int error;
        const char
                *output; /* stdout, NUL-terminated, borrowed; with an error what was said before */
        size_t output_bytes;
        const char *error_line; /* the first line on stderr, at most 256 bytes, "" for none */
} ChildResult;

typedef struct ChildOrder {       /* borrowed while child_new runs */
        char *const *argv;        /* argv[0] is searched in our PATH when it has no slash */
        char *const *environment; /* NULL-terminated; NULL = ours */
        uint64_t timeout_usec;    /* then SIGKILL to its process group; > 0 */
        size_t output_max_bytes;

        /* Once, never from inside child_new; the child may be freed in it. When it has ended and what it said is read (who was started by it
         * and holds its pipes open is not waited for, nor killed), or when it has been given up. */
        void (*on_done)(const ChildResult *result, void *userdata);
        void *userdata;
} ChildOrder;

/** Starts it: stdin is /dev/null, all descriptors above 2 closed, signals and mask at their defaults, a process group of its own.
 * By posix_spawn or vfork-and-exec: no code of ours between fork and exec in a threaded process.
 * @return 0, -ENOMEM, -EAGAIN, -EINVAL; that the program is missing comes as 0 and on_done */
int child_new(Child **ret, sd_event *event, const ChildOrder *order);
/** Kills it (its process group) if it still runs; no callback any more. Does not wait for its death: the loop reaps it. Takes NULL,
 * returns NULL. */
Child *child_free(Child *c);
DEFINE_CLEANUP(Child, child_free);
