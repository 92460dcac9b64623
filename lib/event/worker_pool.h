/* Threads for what may block or burn CPU. A job owns all it touches. This is the one place with a
 * mutex. */
#pragma once

#include <stdbool.h>
#include <systemd/sd-event.h>

#include "lib/base/cleanup.h"
#include "lib/base/list.h"

typedef struct WorkerPool WorkerPool;

typedef struct WorkJob {
        /* A worker's thread: touches this job, nothing else. */
        void (*run)(struct WorkJob *job);

        /* The loop's thread: may touch anything, may free the job. NULL: see worker_pool_wait(). */
        void (*done)(struct WorkJob *job);

        /* private to worker_pool.c */
        ListLink link;
        WorkerPool *pool;
        int state;
} WorkJob;

/* How the threads of a pool stand against the machine's other work. */
typedef enum WorkerPriority {
        WORKER_NORMAL,
        WORKER_IDLE, /* SCHED_IDLE and the idle class of I/O: only what nobody else wants. The loop
                        never waits for such a thread. */
} WorkerPriority;

/** Makes a pool of up to n_threads, started when first needed, all signals blocked in them, 256 KiB
 * stacks.
 * @param event  where done() runs; NULL: jobs are collected by worker_pool_wait() only
 * @param name   thread name, at most 15 characters
 * @param priority  of each thread; what the kernel refuses is left out
 * @return 0, -EINVAL for no threads, -ENOMEM, -EMFILE */
int worker_pool_new(WorkerPool **ret, sd_event *event, const char *name, unsigned n_threads,
                    WorkerPriority priority);

/** Gives all threads of the pool another priority, those in a job too. Back to WORKER_NORMAL only
 * where RLIMIT_NICE or CAP_SYS_NICE allows it. */
void worker_pool_set_priority(WorkerPool *p, WorkerPriority priority);

/** Waits for running jobs (unless `abandon`), drops queued ones. From here on no done() is called:
 * every job whose done() has not run belongs to its owner again. Not to be called from a done().
 * free takes NULL and returns NULL. An abandoned pool's threads keep what they hold until they
 * return (for a mount that hangs in the kernel): a job for which worker_pool_is_running() is still
 * true afterwards must never be freed. */
WorkerPool *worker_pool_free(WorkerPool *p);
void worker_pool_abandon(WorkerPool *p);
DEFINE_CLEANUP(WorkerPool, worker_pool_free);

/** Queues a job; first in, first out. Callable from any thread, from run() and done() too. A job
 * that has run may be queued again.
 * @return 0, -EINVAL for a done() without an event, or -errno when not one thread could be started
 */
int worker_pool_submit(WorkerPool *p, WorkJob *job);

/** Blocks until the job has run. Only for jobs with done == NULL, only from a thread that is not
 * the loop's nor this pool's. */
void worker_pool_wait(WorkJob *job);

/** @return whether the job has run, without blocking; its done(), if it has one, may be still to
 * come. Also when the pool is gone */
bool worker_pool_poll(WorkJob *job);

/** @return whether a thread is in the job's run() at this moment; also when the pool is gone */
bool worker_pool_is_running(const WorkJob *job);
/** @return whether one of its threads could run at this moment, or does. Of one that gets nothing
 * done for long: it has no CPU, rather than that it waits for a disk or a lock. false where /proc
 * does not show it */
bool worker_pool_wants_cpu(WorkerPool *p);
unsigned worker_pool_size(const WorkerPool *p);
