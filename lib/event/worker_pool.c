/* A queue, some threads, and an eventfd that brings finished jobs back to the loop.
 * What a job does, and what happens to it afterwards, is its owner's.
 *
 * An idle thread may be off the CPU for seconds at any instruction, and the loop must not wait for
 * it. So nothing is woken while the mutex is held by a worker: the one woken would at once push the
 * sleepy one off its CPU, and then need the mutex. What is left under it is a few instructions on
 * lists. And work is announced by a semaphore, as a sem_post(3) never waits: pthread_cond_signal()
 * of glibc before 2.41 waits for threads that were woken earlier and had no CPU since. */
#include "lib/event/worker_pool.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/ioprio.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>

#include "lib/base/clock.h"

#define STACK_BYTES (256 * KIB)
#define NAME_SIZE 16 /* what the kernel keeps of a thread's name, see pthread_setname_np(3) */

enum { JOB_IDLE, JOB_QUEUED, JOB_RUNNING, JOB_RAN };

struct WorkerPool {
        pthread_mutex_t mutex;
        pthread_cond_t ran; /* a job without done() has run */
        sem_t work;         /* one for each queued job; when stopping, one for each thread */
        ListLink queue, finished;
        size_t n_queued;
        unsigned n_max, n_started, n_idle, n_alive; /* idle: in no job */
        bool has_loop, stopping, abandoned;
        int event_fd;
        sd_event_source *source;
        WorkerPriority priority;
        char name[NAME_SIZE];
        struct PoolThread {
                pthread_t thread;
                pid_t tid; /* 0 until it runs */
        } threads[];       /* n_started of n_max */
};

/* Atomic, so that it can be checked for when the pool is gone. */
static void job_set_state(WorkJob *job, int state) {
        __atomic_store_n(&job->state, state, __ATOMIC_RELEASE);
}

static int job_state(const WorkJob *job) {
        return __atomic_load_n(&job->state, __ATOMIC_ACQUIRE);
}

static void pool_destroy(WorkerPool *p) {
        if (p->event_fd >= 0)
                (void)close(p->event_fd); /* an eventfd holds nothing */
        (void)sem_destroy(&p->work);      /* nobody waits any more: these cannot fail */
        (void)pthread_cond_destroy(&p->ran);
        (void)pthread_mutex_destroy(&p->mutex);
        free(p);
}

static WorkJob *pop(ListLink *list) {
        if (list_is_empty(list))
                return NULL;
        ListLink *first = list->next;
        list_remove(first);
        return CONTAINER_OF(first, WorkJob, link);
}

static void wake_loop(const WorkerPool *p) {
        const uint64_t one = 1;
        (void)!write(p->event_fd, &one, sizeof one); /* EAGAIN: it is being notified already */
}

/* The state is the last that is touched of a job: from then on its owner may free it. */
static void job_has_run(WorkerPool *p, WorkJob *job) {
        (void)pthread_mutex_lock(&p->mutex);
        bool for_loop = job->done && !p->stopping;
        if (for_loop)
                list_append(&p->finished, &job->link);
        p->n_idle++;
        job_set_state(job, JOB_RAN);
        (void)pthread_mutex_unlock(&p->mutex);

        if (for_loop)
                wake_loop(p);
        else
                (void)pthread_cond_broadcast(&p->ran);
}

/* Only what nobody else wants, or as the process is. To become idle asks for no privilege; to leave
 * it, RLIMIT_NICE has to allow the nice value (sched(7)). What a seccomp filter or the kernel
 * refuses is left out. */
static void thread_set_priority(pid_t tid, WorkerPriority priority) {
        bool idle = priority == WORKER_IDLE;
        (void)sched_setscheduler(tid, idle ? SCHED_IDLE : SCHED_OTHER, &(struct sched_param){ 0 });
        (void)syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, tid,
                      idle ? IOPRIO_PRIO_VALUE(IOPRIO_CLASS_IDLE, 0)
                           : IOPRIO_PRIO_VALUE(IOPRIO_CLASS_NONE, 0));
}

/* A thread's first act: it becomes as its pool is. Not under the mutex, see above; so the pool may
 * change meanwhile. */
static void thread_begin(WorkerPool *p) {
        pthread_t self = pthread_self();
        pid_t tid = (pid_t)syscall(SYS_gettid);
        WorkerPriority is = WORKER_NORMAL, wanted = WORKER_NORMAL;
        do {
                if (is != wanted)
                        thread_set_priority(tid, is = wanted);
                (void)pthread_mutex_lock(&p->mutex);
                wanted = p->priority;
                for (unsigned i = 0; i < p->n_started; i++)
                        if (pthread_equal(p->threads[i].thread, self))
                                p->threads[i].tid = tid;
                (void)pthread_mutex_unlock(&p->mutex);
        } while (is != wanted);
}

/* The next job; NULL when it is time to go. */
static WorkJob *next_job(WorkerPool *p) {
        for (;;) {
                while (sem_wait(&p->work) < 0 && errno == EINTR)
                        ; /* a tracer or SIGSTOP and SIGCONT: no signal gets here */
                (void)pthread_mutex_lock(&p->mutex);
                bool stopping = p->stopping;
                WorkJob *job = stopping ? NULL : pop(&p->queue);
                if (job) {
                        p->n_idle--;
                        p->n_queued--;
                        job_set_state(job, JOB_RUNNING);
                }
                (void)pthread_mutex_unlock(&p->mutex);
                if (job || stopping)
                        return job;
        }
}

static void *thread_main(void *userdata) {
        WorkerPool *p = userdata;
        WorkJob *job;

        (void)pthread_setname_np(pthread_self(), p->name); /* a name is only for people */
        thread_begin(p);
        while ((job = next_job(p))) {
                job->run(job);
                job_has_run(p, job);
        }
        (void)pthread_mutex_lock(&p->mutex);
        bool last_one_out = --p->n_alive == 0 && p->abandoned;
        (void)pthread_mutex_unlock(&p->mutex);
        if (last_one_out)
                pool_destroy(p);
        return NULL;
}

/* With the mutex held. */
static int start_thread(WorkerPool *p) {
        pthread_attr_t attr;
        sigset_t all, before;

        int r = pthread_attr_init(&attr);
        if (r != 0)
                return -r;
        (void)pthread_attr_setstacksize(&attr, STACK_BYTES); /* above PTHREAD_STACK_MIN */
        (void)sigfillset(&all);
        (void)pthread_sigmask(SIG_SETMASK, &all, &before); /* a thread inherits the mask */
        r = pthread_create(&p->threads[p->n_started].thread, &attr, thread_main, p);
        (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
        (void)pthread_attr_destroy(&attr);
        if (r != 0)
                return -r;
        p->n_started++;
        p->n_alive++;
        p->n_idle++;
        return 0;
}

/* Of jobs that have ended while the loop was busy; then others have their turn. */
#define TURN_USEC (10 * USEC_PER_MSEC)

static int on_finished(sd_event_source *source, int fd, uint32_t revents, void *userdata) {
        WorkerPool *p = userdata;
        const uint64_t until_usec = clock_boottime_usec() + TURN_USEC;
        uint64_t n;
        (void)source, (void)revents;
        (void)!read(fd, &n, sizeof n); /* EAGAIN: a wake-up that an earlier one has served */
        do {
                (void)pthread_mutex_lock(&p->mutex);
                WorkJob *job = pop(&p->finished);
                (void)pthread_mutex_unlock(&p->mutex);
                if (!job)
                        return 0;
                job->done(job);
        } while (clock_boottime_usec() < until_usec);
        wake_loop(p);
        return 0;
}

int worker_pool_new(WorkerPool **ret, sd_event *event, const char *name, unsigned n_threads,
                    WorkerPriority priority) {
        if (n_threads == 0)
                return -EINVAL;
        WorkerPool *p = calloc(1, sizeof *p + n_threads * sizeof p->threads[0]);
        if (!p)
                return -ENOMEM;
        p->n_max = n_threads;
        p->priority = priority;
        p->has_loop = event != NULL;
        p->event_fd = -1;
        list_init(&p->queue);
        list_init(&p->finished);
        (void)strncpy(p->name, name, NAME_SIZE - 1);
        (void)pthread_mutex_init(&p->mutex, NULL); /* default attributes: cannot fail on Linux */
        (void)sem_init(&p->work, 0, 0);            /* nor this, with 0 */
        (void)pthread_cond_init(&p->ran, NULL);

        if (event) {
                p->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
                int r = p->event_fd < 0 ? -errno
                                        : sd_event_add_io(event, &p->source, p->event_fd, EPOLLIN,
                                                          on_finished, p);
                if (r < 0) {
                        worker_pool_free(p);
                        return r;
                }
                (void)sd_event_source_set_description(p->source, p->name);
        }
        *ret = p;
        return 0;
}

void worker_pool_set_priority(WorkerPool *p, WorkerPriority priority) {
        (void)pthread_mutex_lock(&p->mutex);
        if (p->priority != priority)
                for (unsigned i = 0; i < p->n_started; i++)
                        if (p->threads[i].tid > 0)
                                thread_set_priority(p->threads[i].tid, priority);
        p->priority = priority;
        (void)pthread_mutex_unlock(&p->mutex);
}

/* Stops taking work and gives queued and finished jobs back to their owners. */
static void stop(WorkerPool *p, bool abandon) {
        WorkJob *job;

        p->source = sd_event_source_disable_unref(p->source);
        (void)pthread_mutex_lock(&p->mutex);
        p->stopping = true;
        p->abandoned = abandon;
        while ((job = pop(&p->queue)))
                job_set_state(job, JOB_IDLE);
        while (pop(&p->finished))
                ;
        p->n_queued = 0;
        for (unsigned i = 0; i < p->n_started; i++) {
                if (abandon)
                        (void)pthread_detach(p->threads[i].thread);
                (void)sem_post(&p->work);
        }
        bool nobody_left = p->n_alive == 0;
        (void)pthread_mutex_unlock(&p->mutex);
        if (abandon && nobody_left)
                pool_destroy(p);
}

WorkerPool *worker_pool_free(WorkerPool *p) {
        if (!p)
                return NULL;
        stop(p, false);
        for (unsigned i = 0; i < p->n_started; i++)
                (void)pthread_join(p->threads[i].thread, NULL);
        pool_destroy(p);
        return NULL;
}

void worker_pool_abandon(WorkerPool *p) {
        if (p)
                stop(p, true);
}

int worker_pool_submit(WorkerPool *p, WorkJob *job) {
        if (job->done && !p->has_loop)
                return -EINVAL;
        int r = 0;
        (void)pthread_mutex_lock(&p->mutex);
        job->pool = p;
        job_set_state(job, p->stopping ? JOB_IDLE : JOB_QUEUED);
        if (!p->stopping) {
                list_append(&p->queue, &job->link);
                if (++p->n_queued > p->n_idle && p->n_started < p->n_max)
                        r = start_thread(p);
                if (p->n_started > 0)
                        r = 0; /* those that are there will come to it */
                if (r < 0) {
                        list_remove(&job->link);
                        p->n_queued--;
                        job_set_state(job, JOB_IDLE);
                } else
                        (void)sem_post(&p->work);
        }
        (void)pthread_mutex_unlock(&p->mutex);
        return r;
}

void worker_pool_wait(WorkJob *job) {
        WorkerPool *p = job->pool;
        (void)pthread_mutex_lock(&p->mutex);
        while (job_state(job) == JOB_QUEUED || job_state(job) == JOB_RUNNING)
                (void)pthread_cond_wait(&p->ran, &p->mutex);
        (void)pthread_mutex_unlock(&p->mutex);
}

bool worker_pool_poll(WorkJob *job) {
        return job_state(job) == JOB_RAN;
}

bool worker_pool_is_running(const WorkJob *job) {
        return job_state(job) == JOB_RUNNING;
}

/* The field behind the name, which stands in brackets and may contain anything: proc_pid_stat(5).
 */
static bool thread_is_runnable(pid_t tid) {
        char path[64], text[256];
        (void)snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)tid);
        _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
        if (n <= 0)
                return false;
        text[n] = '\0';
        const char *name_end = strrchr(text, ')');
        return name_end && strncmp(name_end, ") R", 3) == 0;
}

bool worker_pool_wants_cpu(WorkerPool *p) {
        bool wants = false;
        (void)pthread_mutex_lock(&p->mutex);
        for (unsigned i = 0; i < p->n_started && !wants; i++)
                wants = p->threads[i].tid > 0 && thread_is_runnable(p->threads[i].tid);
        (void)pthread_mutex_unlock(&p->mutex);
        return wants;
}

unsigned worker_pool_size(const WorkerPool *p) {
        return p->n_max;
}
