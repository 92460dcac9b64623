/* Runs what touches paths in a child process: a mount whose server is away holds a process in the
 * kernel, where no signal reaches it. Such a process is left to end by itself. */
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "lib/base/clock.h"

/* So long may the child do nothing at all; one that works may take its time. */
#define GUARDED_IDLE_USEC (10 * USEC_PER_SEC)

/** Runs fn in a child, without the parent's files but what fn writes to `out`, and reads that.
 * The child is killed when it did nothing for GUARDED_IDLE_USEC, and not waited for.
 * @param fn  must not leave data in stdio's other files: the child ends by _exit()
 * @return 0 and *ret, the caller's; -ETIMEDOUT; -EINTR after cli_is_interrupted(); -EPROTO: the
 * child ended before fn did; -EFBIG; -errno of pipe2(2) and fork(2) */
int guarded_run(void (*fn)(FILE *out, void *userdata), void *userdata, char **ret);

/** Whether the file system of a path answers: statfs(2), open(2), the first name of a directory.
 * @return 0, also when the path does not exist; else as guarded_run() */
int guarded_check_path(const char *path);
