/* A child process in the loop: a program that is run, bounded in time and output. No shell. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "lib/base/cleanup.h"

typedef struct Child Child;

typedef struct ChildResult {
        int status; /* as waitpid gives it; meaningless with an error */

        /* 0; -ENOENT, -EACCES …: it could not be started; -ETIMEDOUT, -EFBIG: it took too long or
         * wrote too much, and was killed; what on_output() returned; -ECHILD: this process ignores
         * SIGCHLD or reaps what is not its own, so that nobody knows how the child ended. */
        int error;
        bool is_stuck;      /* it was killed and still runs: it hangs in the kernel */
        bool is_cut;        /* cuts_output: there was more */
        const char *output; /* stdout, NUL-terminated, borrowed; with an error what came before */
        size_t output_bytes;
        const char *error_text; /* the beginning of stderr, at most 511 bytes */
        const char *error_line; /* its first line, at most 256 bytes, "" for none */
} ChildResult;

typedef struct ChildOptions { /* borrowed while child_new runs */
        const char *program;  /* NULL = argv[0]; searched in our PATH when it has no slash */
        char *const *argv;
        char *const *environment; /* NULL-terminated; NULL = ours */
        int input_fd;             /* its stdin; 0 = /dev/null */
        int third_fd;             /* its descriptor 3; 0 = none */
        bool merges_errors;       /* stderr is output, too */
        bool keeps_signals;       /* what is ignored or blocked stays so */
        bool keeps_capabilities;  /* for a program of ours that needs them: lib/base/spawn.h */
        uint64_t timeout_usec; /* then SIGKILL to its process group; > 0, USEC_INFINITY = never */
        size_t output_max_bytes;
        bool cuts_output; /* more output is dropped instead of ending it with -EFBIG */

        /** Gets the output as it comes, instead of ChildResult.output. Negative: it is killed. */
        int (*on_output)(const char *data, size_t n, void *userdata);
        /** Once, never from inside child_new; the child may be freed in it. When it has ended and
         * its output is read, or when it has been killed and does not die within half a second.
         * Its own children that hold its pipes open are not waited for, nor killed. */
        void (*on_done)(const ChildResult *result, void *userdata);
        void *userdata;
} ChildOptions;

/** Starts it: all other descriptors closed, signals and mask at their defaults, a process group
 * of its own. By posix_spawn or vfork-and-exec: no code of ours between fork and exec.
 * @return 0, -ENOMEM, -EAGAIN, -EINVAL; that the program is missing comes as 0 and on_done */
int child_new(Child **ret, sd_event *event, const ChildOptions *options);
/** Kills it (its process group) if it still runs; no callback any more. Does not wait for its
 * death: the loop reaps it. Takes NULL, returns NULL. */
Child *child_free(Child *c);
DEFINE_CLEANUP(Child, child_free);
