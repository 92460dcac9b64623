#include "lib/event/worker_pool.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/ioprio.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "lib/base/clock.h"
#include "tests/harness/unit.h"

#define WAIT_USEC (20 * USEC_PER_SEC) /* a bound for what must happen at once */

typedef struct TestJob {
        WorkJob work;
        int order, *counter, done_order, *done_counter;
        pthread_t ran_in;
        char thread_name[16];
        bool signals_blocked;
        int policy, io_class;
        size_t stack_bytes;
        int gate[2]; /* run() reads a byte from it */
        sd_event *event;
        unsigned rounds;
} TestJob;

/* While a test says so, a worker that tells the loop of a job stays in that very moment until the
 * loop has submitted another. */
static struct { bool armed, in_write, submitted; } held_up;

ssize_t __real_write(int fd, const void *data, size_t n);
ssize_t __wrap_write(int fd, const void *data, size_t n);
ssize_t __wrap_write(int fd, const void *data, size_t n) {
        if (__atomic_load_n(&held_up.armed, __ATOMIC_ACQUIRE)) {
                __atomic_store_n(&held_up.in_write, true, __ATOMIC_RELEASE);
                while (!__atomic_load_n(&held_up.submitted, __ATOMIC_ACQUIRE))
                        (void)sched_yield();
        }
        return __real_write(fd, data, n);
}

static void run_note(WorkJob *work) {
        TestJob *t = CONTAINER_OF(work, TestJob, work);
        t->order = __atomic_add_fetch(t->counter, 1, __ATOMIC_SEQ_CST);
        t->ran_in = pthread_self();
}

static int io_class(void) {
        return IOPRIO_PRIO_CLASS((int)syscall(SYS_ioprio_get, IOPRIO_WHO_PROCESS, 0));
}

static void run_describe(WorkJob *work) {
        TestJob *t = CONTAINER_OF(work, TestJob, work);
        sigset_t set;
        pthread_attr_t attr;

        (void)pthread_getname_np(pthread_self(), t->thread_name, sizeof t->thread_name);
        (void)pthread_sigmask(SIG_SETMASK, NULL, &set);
        t->signals_blocked = sigismember(&set, SIGTERM) && sigismember(&set, SIGIO);
        t->policy = sched_getscheduler(0);
        t->io_class = io_class();
        (void)pthread_getattr_np(pthread_self(), &attr);
        (void)pthread_attr_getstacksize(&attr, &t->stack_bytes);
        (void)pthread_attr_destroy(&attr);
}

static void run_gate(WorkJob *work) {
        TestJob *t = CONTAINER_OF(work, TestJob, work);
        char c;
        (void)!read(t->gate[0], &c, 1);
        __atomic_add_fetch(t->counter, 1, __ATOMIC_SEQ_CST);
}

static void run_gate_and_describe(WorkJob *work) {
        run_gate(work);
        run_describe(work);
}

static void done_note(WorkJob *work) {
        TestJob *t = CONTAINER_OF(work, TestJob, work);
        t->done_order = ++*t->done_counter;
        if (t->rounds > 1) {
                t->rounds--;
                assert_int_equal(worker_pool_submit(work->pool, work), 0);
        } else if (t->event)
                (void)sd_event_exit(t->event, 0);
}

static void wait_until_running(const TestJob *t) {
        while (!worker_pool_is_running(&t->work))
                (void)sched_yield();
}

static void open_gate(TestJob *t) {
        assert_int_equal(write(t->gate[1], "x", 1), 1);
}

static unsigned n_tasks(void) {
        _cleanup_closedir_ DIR *d = opendir("/proc/self/task");
        unsigned n = 0;
        assert_non_null(d);
        while (readdir(d))
                n++;
        return n;
}

static void close_gate(TestJob *t) {
        (void)close(t->gate[0]);
        (void)close(t->gate[1]);
}

static void jobs_are_collected_in_any_order_and_run_in_the_order_of_submission(void **state) {
        _cleanup_(worker_pool_freep) WorkerPool *p = NULL;
        TestJob jobs[200];
        int counter = 0;

        assert_int_equal(worker_pool_new(&p, NULL, "one", 1, WORKER_NORMAL), 0);
        for (size_t i = 0; i < ELEMENTSOF(jobs); i++) {
                jobs[i] = (TestJob){ .work.run = run_note, .counter = &counter };
                assert_false(worker_pool_poll(&jobs[i].work));
                assert_int_equal(worker_pool_submit(p, &jobs[i].work), 0);
        }
        for (size_t i = ELEMENTSOF(jobs); i-- > 0;) {
                worker_pool_wait(&jobs[i].work);
                assert_true(worker_pool_poll(&jobs[i].work));
                assert_int_equal(jobs[i].order, i + 1);
                assert_false(pthread_equal(jobs[i].ran_in, pthread_self()));
        }
}

static void threads_have_a_name_a_small_stack_and_no_signals(void **state) {
        _cleanup_(worker_pool_freep) WorkerPool *p = NULL;
        TestJob t = { .work.run = run_describe };
        sigset_t set;

        assert_int_equal(worker_pool_new(&p, NULL, "a-name-longer-than-fits", 2, WORKER_NORMAL), 0);
        assert_int_equal(worker_pool_size(p), 2);
        assert_int_equal(worker_pool_submit(p, &t.work), 0);
        worker_pool_wait(&t.work);
        assert_string_equal(t.thread_name, "a-name-longer-t");
        assert_true(t.signals_blocked);
        assert_in_range(t.stack_bytes, 256 * KIB,
                        1 * MIB); /* glibc adds its own; so do sanitizers */
        (void)pthread_sigmask(SIG_SETMASK, NULL, &set);
        assert_false(sigismember(&set, SIGTERM));
}

static void idle_threads_are_idle_others_and_the_loop_stay_as_they_are(void **state) {
        _cleanup_(worker_pool_freep) WorkerPool *idle = NULL;
        _cleanup_(worker_pool_freep) WorkerPool *normal = NULL;
        TestJob yielding = { .work.run = run_describe }, plain = { .work.run = run_describe };
        int policy = sched_getscheduler(0), class = io_class();

        assert_int_equal(worker_pool_new(&idle, NULL, "idle", 1, WORKER_IDLE), 0);
        assert_int_equal(worker_pool_submit(idle, &yielding.work), 0);
        worker_pool_wait(&yielding.work);
        assert_int_equal(yielding.policy, SCHED_IDLE);
        assert_int_equal(yielding.io_class, IOPRIO_CLASS_IDLE);

        assert_int_equal(worker_pool_new(&normal, NULL, "normal", 1, WORKER_NORMAL), 0);
        assert_int_equal(worker_pool_submit(normal, &plain.work), 0);
        worker_pool_wait(&plain.work);
        assert_int_equal(plain.policy, policy);
        assert_int_equal(plain.io_class, class);
        assert_int_equal(sched_getscheduler(0), policy);
        assert_int_equal(io_class(), class);
}

/* Computes until it is told to stop. */
static void run_spin(WorkJob *work) {
        TestJob *t = CONTAINER_OF(work, TestJob, work);
        while (!__atomic_load_n(t->counter, __ATOMIC_ACQUIRE))
                ;
}

static void a_pool_wants_cpu_while_it_computes_not_while_it_waits(void **state) {
        _cleanup_(worker_pool_freep) WorkerPool *p = NULL;
        int counter = 0, stop = 0;
        TestJob waits = { .work.run = run_gate, .counter = &counter },
                spins = { .work.run = run_spin, .counter = &stop };

        assert_int_equal(worker_pool_new(&p, NULL, "a) R (b", 1, WORKER_IDLE), 0);
        assert_false(worker_pool_wants_cpu(p));
        assert_int_equal(pipe(waits.gate), 0);
        assert_int_equal(worker_pool_submit(p, &waits.work), 0);
        wait_until_running(&waits);
        while (worker_pool_wants_cpu(p)) /* on its way to read(2) */
                (void)sched_yield();
        open_gate(&waits);
        worker_pool_wait(&waits.work);
        close_gate(&waits);

        assert_int_equal(worker_pool_submit(p, &spins.work), 0);
        wait_until_running(&spins);
        assert_true(worker_pool_wants_cpu(p));
        __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
        worker_pool_wait(&spins.work);
}

/* Where the nice value may be had again, which an unprivileged process needs RLIMIT_NICE for. */
static bool may_leave_idle(void) {
        struct rlimit limit;
        if (geteuid() == 0)
                return true;
        (void)getrlimit(RLIMIT_NICE, &limit);
        return (rlim_t)(20 - getpriority(PRIO_PROCESS, 0)) <= limit.rlim_cur;
}

static void an_idle_pool_becomes_normal_and_idle_again_in_the_middle_of_a_job_too(void **state) {
        _cleanup_(worker_pool_freep) WorkerPool *p = NULL;
        int counter = 0;
        if (!may_leave_idle())
                skip();
        assert_int_equal(worker_pool_new(&p, NULL, "turning", 1, WORKER_IDLE), 0);
        for (int idle = 0; idle <= 1; idle++) {
                TestJob t = { .work.run = run_gate_and_describe, .counter = &counter };
                assert_int_equal(pipe(t.gate), 0);
                assert_int_equal(worker_pool_submit(p, &t.work), 0);
                wait_until_running(&t);
                worker_pool_set_priority(p, idle ? WORKER_IDLE : WORKER_NORMAL);
                open_gate(&t);
                worker_pool_wait(&t.work);
                assert_int_equal(t.policy == SCHED_IDLE, idle);
                assert_int_equal(t.io_class == IOPRIO_CLASS_IDLE, idle);
                close_gate(&t);
        }
}

/* From here on this process gets EPERM from both calls. */
static bool refuse_priorities(void) {
        struct sock_filter filter[] = {
                BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sched_setscheduler, 1, 0),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioprio_set, 0, 1),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog program = { .len = ELEMENTSOF(filter), .filter = filter };
        return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
               prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static void where_priorities_are_refused_jobs_run_all_the_same(void **state) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
                WorkerPool *p = NULL;
                TestJob t = { .work.run = run_describe };
                int policy = sched_getscheduler(0);
                if (!refuse_priorities())
                        _exit(77);
                if (worker_pool_new(&p, NULL, "refused", 1, WORKER_IDLE) < 0 ||
                    worker_pool_submit(p, &t.work) < 0)
                        _exit(1);
                worker_pool_wait(&t.work);
                _exit(t.policy == policy ? 0 : 2);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        if (WEXITSTATUS(status) == 77)
                skip();
        assert_int_equal(WEXITSTATUS(status), 0);
}

static void two_threads_run_two_jobs_at_once(void **state) {
        _cleanup_(worker_pool_freep) WorkerPool *p = NULL;
        int counter = 0;
        TestJob stuck = { .work.run = run_gate, .counter = &counter };
        TestJob quick = { .work.run = run_note, .counter = &counter };

        assert_int_equal(pipe(stuck.gate), 0);
        assert_int_equal(worker_pool_new(&p, NULL, "two", 2, WORKER_NORMAL), 0);
        assert_int_equal(worker_pool_submit(p, &stuck.work), 0);
        assert_int_equal(worker_pool_submit(p, &quick.work), 0);
        worker_pool_wait(&quick.work);
        assert_false(worker_pool_poll(&stuck.work));
        open_gate(&stuck);
        worker_pool_wait(&stuck.work);
        assert_int_equal(counter, 2);
        close_gate(&stuck);
}

static void done_runs_in_the_loops_thread_and_may_submit_again(void **state) {
        _cleanup_(worker_pool_freep) WorkerPool *p = NULL;
        _cleanup_(sd_event_unrefp) sd_event *event = NULL;
        int counter = 0, done_counter = 0;
        TestJob t = { .work = { .run = run_note, .done = done_note },
                      .counter = &counter,
                      .done_counter = &done_counter,
                      .rounds = 50 };

        assert_int_equal(sd_event_new(&event), 0);
        assert_int_equal(worker_pool_new(&p, event, "loop", 2, WORKER_NORMAL), 0);
        t.event = event;
        assert_int_equal(worker_pool_submit(p, &t.work), 0);
        assert_int_equal(sd_event_loop(event), 0);
        assert_int_equal(counter, 50);
        assert_int_equal(done_counter, 50);
        assert_false(pthread_equal(t.ran_in, pthread_self()));
}

static void many_jobs_all_come_back_to_the_loop(void **state) {
        _cleanup_(worker_pool_freep) WorkerPool *p = NULL;
        _cleanup_(sd_event_unrefp) sd_event *event = NULL;
        TestJob jobs[500];
        int counter = 0, done_counter = 0;

        assert_int_equal(sd_event_new(&event), 0);
        assert_int_equal(worker_pool_new(&p, event, "many", 4, WORKER_NORMAL), 0);
        for (size_t i = 0; i < ELEMENTSOF(jobs); i++) {
                jobs[i] = (TestJob){ .work = { .run = run_note, .done = done_note },
                                     .counter = &counter,
                                     .done_counter = &done_counter };
                assert_int_equal(worker_pool_submit(p, &jobs[i].work), 0);
        }
        while (done_counter < (int)ELEMENTSOF(jobs))
                assert_int_equal(sd_event_run(event, WAIT_USEC), 1);
        assert_int_equal(counter, ELEMENTSOF(jobs));
        for (size_t i = 0; i < ELEMENTSOF(jobs); i++)
                assert_true(jobs[i].done_order > 0);
}

/* Takes two milliseconds. */
static void done_slowly(WorkJob *work) {
        uint64_t end = clock_boottime_usec() + 2 * USEC_PER_MSEC;
        while (clock_boottime_usec() < end)
                ;
        ++*CONTAINER_OF(work, TestJob, work)->done_counter;
}

static int on_turn(sd_event_source *source, void *userdata) {
        (void)source;
        ++*(unsigned *)userdata;
        return 0;
}

static void jobs_that_have_waited_for_the_loop_let_others_have_their_turn(void **state) {
        _cleanup_(worker_pool_freep) WorkerPool *p = NULL;
        _cleanup_(sd_event_unrefp) sd_event *event = NULL;
        _cleanup_(sd_event_source_unrefp) sd_event_source *other = NULL;
        TestJob jobs[50];
        unsigned n_turns = 0;
        int counter = 0, done_counter = 0;

        assert_int_equal(sd_event_new(&event), 0);
        assert_int_equal(worker_pool_new(&p, event, "waiting", 1, WORKER_NORMAL), 0);
        for (size_t i = 0; i < ELEMENTSOF(jobs); i++) {
                jobs[i] = (TestJob){ .work = { .run = run_note, .done = done_slowly },
                                     .counter = &counter,
                                     .done_counter = &done_counter };
                assert_int_equal(worker_pool_submit(p, &jobs[i].work), 0);
        }
        while (!worker_pool_poll(&jobs[ELEMENTSOF(jobs) - 1].work))
                (void)sched_yield();
        assert_int_equal(sd_event_add_post(event, &other, on_turn, &n_turns), 0);
        while (done_counter < (int)ELEMENTSOF(jobs))
                assert_int_equal(sd_event_run(event, WAIT_USEC), 1);
        assert_true(n_turns >= 5);
}

static void a_done_without_a_loop_and_a_pool_without_threads_are_refused(void **state) {
        _cleanup_(worker_pool_freep) WorkerPool *p = NULL;
        TestJob t = { .work = { .run = run_note, .done = done_note } };

        assert_int_equal(worker_pool_new(&p, NULL, "none", 0, WORKER_NORMAL), -EINVAL);
        assert_null(p);
        assert_int_equal(worker_pool_new(&p, NULL, "one", 1, WORKER_NORMAL), 0);
        assert_int_equal(worker_pool_submit(p, &t.work), -EINVAL);
}

/* What an idle thread does when the one it wakes pushes it off the CPU. A pool that writes with its
 * mutex held hangs here. */
static void the_loop_does_not_wait_for_a_worker_that_is_notifying_it(void **state) {
        _cleanup_(worker_pool_freep) WorkerPool *p = NULL;
        _cleanup_(sd_event_unrefp) sd_event *event = NULL;
        int counter = 0, done_counter = 0;
        TestJob first = { .work = { .run = run_note, .done = done_note },
                          .counter = &counter,
                          .done_counter = &done_counter };
        TestJob second = first;

        assert_int_equal(sd_event_new(&event), 0);
        assert_int_equal(worker_pool_new(&p, event, "telling", 1, WORKER_IDLE), 0);
        __atomic_store_n(&held_up.armed, true, __ATOMIC_RELEASE);
        assert_int_equal(worker_pool_submit(p, &first.work), 0);
        while (!__atomic_load_n(&held_up.in_write, __ATOMIC_ACQUIRE))
                (void)sched_yield();
        assert_int_equal(worker_pool_submit(p, &second.work), 0);
        __atomic_store_n(&held_up.armed, false, __ATOMIC_RELEASE);
        __atomic_store_n(&held_up.submitted, true, __ATOMIC_RELEASE);
        while (done_counter < 2)
                assert_int_equal(sd_event_run(event, WAIT_USEC), 1);
        assert_int_equal(counter, 2);
}

/* Opens the first of two jobs' gates when the second was dropped: then the pool is being freed. */
static void *open_gate_when_dropping(void *userdata) {
        TestJob **jobs = userdata;
        const TestJob never_submitted = { 0 };
        while (__atomic_load_n(&jobs[1]->work.state, __ATOMIC_ACQUIRE) !=
               never_submitted.work.state)
                (void)sched_yield();
        open_gate(jobs[0]);
        return NULL;
}

static void free_waits_for_what_runs_and_drops_what_is_queued(void **state) {
        WorkerPool *p = NULL;
        _cleanup_(sd_event_unrefp) sd_event *event = NULL;
        int counter = 0, done_counter = 0;
        TestJob running = { .work = { .run = run_gate, .done = done_note },
                            .counter = &counter,
                            .done_counter = &done_counter };
        TestJob queued = { .work = { .run = run_note, .done = done_note },
                           .counter = &counter,
                           .done_counter = &done_counter };
        TestJob *jobs[] = { &running, &queued };
        pthread_t opener;

        assert_int_equal(pipe(running.gate), 0);
        assert_int_equal(sd_event_new(&event), 0);
        assert_int_equal(worker_pool_new(&p, event, "free", 1, WORKER_NORMAL), 0);
        assert_int_equal(worker_pool_submit(p, &running.work), 0);
        assert_int_equal(worker_pool_submit(p, &queued.work), 0);
        wait_until_running(&running);
        assert_int_equal(pthread_create(&opener, NULL, open_gate_when_dropping, jobs), 0);
        assert_null(worker_pool_free(p));
        (void)pthread_join(opener, NULL);
        assert_true(worker_pool_poll(&running.work));
        assert_false(worker_pool_poll(&queued.work));
        assert_int_equal(counter, 1);
        assert_int_equal(sd_event_run(event, 0), 0);
        assert_int_equal(done_counter, 0);
        close_gate(&running);
}

static void an_abandoned_pool_lets_go_at_once_and_leaves_the_stuck_job_to_its_thread(void **state) {
        WorkerPool *p = NULL;
        _cleanup_(sd_event_unrefp) sd_event *event = NULL;
        int counter = 0, done_counter = 0;
        unsigned n_before = n_tasks();
        TestJob stuck = { .work = { .run = run_gate, .done = done_note },
                          .counter = &counter,
                          .done_counter = &done_counter };
        TestJob queued = { .work = { .run = run_note, .done = done_note },
                           .counter = &counter,
                           .done_counter = &done_counter };

        assert_int_equal(pipe(stuck.gate), 0);
        assert_int_equal(sd_event_new(&event), 0);
        assert_int_equal(worker_pool_new(&p, event, "hung", 1, WORKER_NORMAL), 0);
        assert_int_equal(worker_pool_submit(p, &stuck.work), 0);
        wait_until_running(&stuck);
        assert_int_equal(worker_pool_submit(p, &queued.work), 0);
        worker_pool_abandon(p);
        assert_true(worker_pool_is_running(&stuck.work));
        assert_false(worker_pool_is_running(&queued.work));
        open_gate(&stuck);
        while (!worker_pool_poll(&stuck.work))
                (void)sched_yield();
        assert_int_equal(counter, 1);
        assert_int_equal(sd_event_run(event, 0), 0);
        assert_int_equal(done_counter, 0);
        while (n_tasks() >
               n_before) /* it goes by itself; the process should not end in the middle of it */
                (void)sched_yield();
        close_gate(&stuck);
}

static void a_pool_never_used_can_be_freed_or_abandoned(void **state) {
        WorkerPool *p = NULL;
        assert_int_equal(worker_pool_new(&p, NULL, "idle", 8, WORKER_NORMAL), 0);
        assert_null(worker_pool_free(p));
        assert_int_equal(worker_pool_new(&p, NULL, "idle", 8, WORKER_NORMAL), 0);
        worker_pool_abandon(p);
        assert_null(worker_pool_free(NULL));
        worker_pool_abandon(NULL);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(
                        jobs_are_collected_in_any_order_and_run_in_the_order_of_submission),
                cmocka_unit_test(threads_have_a_name_a_small_stack_and_no_signals),
                cmocka_unit_test(idle_threads_are_idle_others_and_the_loop_stay_as_they_are),
                cmocka_unit_test(a_pool_wants_cpu_while_it_computes_not_while_it_waits),
                cmocka_unit_test(
                        an_idle_pool_becomes_normal_and_idle_again_in_the_middle_of_a_job_too),
                cmocka_unit_test(where_priorities_are_refused_jobs_run_all_the_same),
                cmocka_unit_test(the_loop_does_not_wait_for_a_worker_that_is_notifying_it),
                cmocka_unit_test(two_threads_run_two_jobs_at_once),
                cmocka_unit_test(done_runs_in_the_loops_thread_and_may_submit_again),
                cmocka_unit_test(many_jobs_all_come_back_to_the_loop),
                cmocka_unit_test(jobs_that_have_waited_for_the_loop_let_others_have_their_turn),
                cmocka_unit_test(a_done_without_a_loop_and_a_pool_without_threads_are_refused),
                cmocka_unit_test(free_waits_for_what_runs_and_drops_what_is_queued),
                cmocka_unit_test(
                        an_abandoned_pool_lets_go_at_once_and_leaves_the_stuck_job_to_its_thread),
                cmocka_unit_test(a_pool_never_used_can_be_freed_or_abandoned),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
