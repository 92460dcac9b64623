/* A queue, some threads, and an eventfd that brings finished jobs back to the loop.
 * What a job does, and what happens to it afterwards, is its owner's. */
#include "lib/loop/worker_pool.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

#define STACK_BYTES (256 * KIB)
#define NAME_SIZE 16 /* what the kernel keeps of a thread's name, see pthread_setname_np(3) */

enum { JOB_IDLE, JOB_QUEUED, JOB_RUNNING, JOB_RAN };

struct WorkerPool {
        pthread_mutex_t mutex;
        pthread_cond_t work; /* something queued, or stopping */
        pthread_cond_t ran;  /* a job without done() has run */
        ListLink queue, finished;
        size_t n_queued;
        unsigned n_max, n_started, n_idle, n_alive;
        bool has_loop, stopping, abandoned;
        int event_fd;
        sd_event_source *source;
        int nice;
        char name[NAME_SIZE];
        pthread_t threads[]; /* n_started of n_max */
};

/* Atomic, so that it can be asked for when the pool is gone. */
static void job_set_state(WorkJob *job, int state) {
        __atomic_store_n(&job->state, state, __ATOMIC_RELEASE);
}

static int job_state(const WorkJob *job) {
        return __atomic_load_n(&job->state, __ATOMIC_ACQUIRE);
}

static void pool_destroy(WorkerPool *p) {
        (void)pthread_cond_destroy(&p->work); /* nobody waits any more: these cannot fail */
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

/* With the mutex held. The state is the last thing touched: from then on the owner may free a job without done(). */
static void job_has_run(WorkerPool *p, WorkJob *job) {
        if (job->done && !p->stopping) {
                list_append(&p->finished, &job->link);
                job_set_state(job, JOB_RAN);
                uint64_t one = 1;
                (void)!write(p->event_fd, &one,
                             sizeof one); /* EAGAIN: the loop is being told already */
                return;
        }
        job_set_state(job, JOB_RAN);
        (void)pthread_cond_broadcast(&p->ran);
}

static void thread_dress(const WorkerPool *p) {
        (void)pthread_setname_np(pthread_self(), p->name); /* a name is only for people */
        if (p->nice == 0)
                return;
        errno = 0;
        int now = getpriority(PRIO_PROCESS, (id_t)gettid());
        if (now != -1 || errno == 0)
                /* on Linux niceness is the thread's own; without it we are only less polite */
                (void)setpriority(PRIO_PROCESS, (id_t)gettid(), MIN(now + p->nice, 19));
}

static void *thread_main(void *userdata) {
        WorkerPool *p = userdata;
        thread_dress(p);

        (void)pthread_mutex_lock(&p->mutex);
        for (;;) {
                WorkJob *job = p->stopping ? NULL : pop(&p->queue);
                if (job) {
                        p->n_queued--;
                        job_set_state(job, JOB_RUNNING);
                        (void)pthread_mutex_unlock(&p->mutex);
                        job->run(job);
                        (void)pthread_mutex_lock(&p->mutex);
                        job_has_run(p, job);
                        continue;
                }
                if (p->stopping)
                        break;
                p->n_idle++;
                (void)pthread_cond_wait(&p->work, &p->mutex);
                p->n_idle--;
        }
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
        r = pthread_create(&p->threads[p->n_started], &attr, thread_main, p);
        (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
        (void)pthread_attr_destroy(&attr);
        if (r != 0)
                return -r;
        p->n_started++;
        p->n_alive++;
        return 0;
}

static int on_finished(sd_event_source *source, int fd, uint32_t revents, void *userdata) {
        WorkerPool *p = userdata;
        uint64_t n;
        (void)source;
        (void)revents;
        (void)!read(fd, &n, sizeof n); /* EAGAIN: a wake-up that an earlier one has served */
        for (;;) {
                (void)pthread_mutex_lock(&p->mutex);
                WorkJob *job = pop(&p->finished);
                (void)pthread_mutex_unlock(&p->mutex);
                if (!job)
                        return 0;
                job->done(job);
        }
}

int worker_pool_new(WorkerPool **ret, sd_event *event, const char *name, unsigned n_threads,
                    int nice) {
        if (n_threads == 0)
                return -EINVAL;
        WorkerPool *p = calloc(1, sizeof *p + n_threads * sizeof p->threads[0]);
        if (!p)
                return -ENOMEM;
        p->n_max = n_threads;
        p->nice = nice;
        p->has_loop = event != NULL;
        p->event_fd = -1;
        list_init(&p->queue);
        list_init(&p->finished);
        (void)strncpy(p->name, name, NAME_SIZE - 1);
        (void)pthread_mutex_init(&p->mutex, NULL); /* default attributes: cannot fail on Linux */
        (void)pthread_cond_init(&p->work, NULL);
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
        if (p->event_fd >= 0)
                (void)close(p->event_fd); /* an eventfd holds nothing */
        p->event_fd = -1;
        if (abandon)
                for (unsigned i = 0; i < p->n_started; i++)
                        (void)pthread_detach(p->threads[i]);
        (void)pthread_cond_broadcast(&p->work);
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
                (void)pthread_join(p->threads[i], NULL);
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
                }
                (void)pthread_cond_signal(&p->work);
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

unsigned worker_pool_size(const WorkerPool *p) {
        return p->n_max;
}
