/* A pool of children: parts of one collector that may hang each for itself (a device): each part in
 * a process of its own, forked from a child that has one thread and no device open, bounded in
 * time; what each wrote is passed on. No library: the hook uses it too. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define CHILD_POOL_AT_ONCE_MAX 128
#define CHILD_POOL_KEPT_FD                                                                         \
        3 /* a collector's directory for raw files has this number in any case (child.h) */

typedef struct PoolTask {
        const char *name; /* of the part, for the record that reports that it hung; borrowed */
        void *userdata;
} PoolTask;

typedef struct ChildPool {
        /** In a process of its own, which has fd and (CHILD_POOL_KEPT_FD) what is to be kept, and
         * no other: 0, 1 and 2 are /dev/null, all else is closed, so that a part that cannot be
         * killed holds nothing of the caller's. Opens what it needs by its path. Writes whole lines
         * to fd, and returns 0 or -errno. */
        int (*run)(const PoolTask *task, int fd, void *userdata);
        /** In the caller: a whole line (without its newline, ended by NUL) of a part, as it comes;
         * what a part wrote before it was killed too. Negative ends it all. NULL: lines are records
         * of `out`. */
        int (*on_line)(const PoolTask *task, char *line, size_t n, void *userdata);
        /** In the caller, once a part. @param result  0; -errno of run() or of fork(2); -ETIMEDOUT:
         * it hung, was killed, and is not waited for, or its turn never came; -EFBIG: it wrote too
         * much, and was killed; -EPIPE: it crashed. Negative ends it all. */
        int (*on_end)(const PoolTask *task, int result, void *userdata);
        void *userdata;
        struct CollectOut *out; /* where on_line is NULL */
        size_t max_at_once;     /* 1 … CHILD_POOL_AT_ONCE_MAX */
        int kept_fd;            /* each part has it as CHILD_POOL_KEPT_FD; 0 = none */
        uint64_t timeout_usec;  /* for all of it together, from now */
        size_t max_line_bytes, max_bytes_each;
} ChildPool;

/** Runs all tasks. The caller has one thread. A part in the kernel that cannot be killed is left
 * behind; when a part has been killed, its exit status may not have been collected: the caller is
 * about to exit itself.
 * @return 0, -EINVAL, -ENOMEM, -errno of poll(2), or what a callback returned */
int child_pool_run(const ChildPool *pool, const PoolTask *tasks, size_t n);

/** @return `complete`, `timeout`, `cut`, `skipped` (-ECANCELED) or `failed`, by a result of run()
 */
const char *child_pool_state_name(int result);
