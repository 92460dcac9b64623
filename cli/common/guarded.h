/* Runs a function that accesses paths in a child process. A mount whose server does not answer
 * holds a process in the kernel, where no signal reaches it. Then only the child hangs, and the
 * caller returns without waiting for it. What the function checks is left to the caller. */
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "lib/base/clock.h"

/* The child may be idle for this long: it used no CPU time and wrote nothing. A child that works
 * may take any time. */
#define GUARDED_IDLE_USEC (10 * USEC_PER_SEC)

/** Runs fn in a child and reads what it writes to `out`, 16 MiB at most. The child has none of the
 * parent's other files. After GUARDED_IDLE_USEC without progress it is killed, and not waited for.
 * @param fn  what it writes to other stdio streams is lost: the child ends by _exit()
 * @return 0 and *ret, the caller's; -ETIMEDOUT: the child was idle too long; -EINTR:
 * cli_is_interrupted(); -EPROTO: the child ended before fn returned; -EFBIG: more output than that;
 * -ENOMEM; -errno of pipe2(2), fork(2) or read(2) */
int guarded_run(void (*fn)(FILE *out, void *userdata), void *userdata, char **ret);

/** Checks that the file system of a path answers, by statfs(2), open(2) and, of a directory,
 * readdir(3).
 * @return 0: it answers, perhaps by an error such as ENOENT; else as guarded_run() */
int guarded_check_path(const char *path);
