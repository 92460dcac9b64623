/* Ends of ranks are seen, of real processes. */
#include "tests/harness/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/failures/rank_watch.h"
#include "collectors/host/procfs.h"
#include "lib/base/clock.h"

typedef struct Fixture {
        sd_event *event;
        RankWatch *watches[4];
        size_t n_watches;
        pid_t child;
        uint64_t start_ticks;
        uint64_t before_usec, after_usec; /* the child was started in between */
        int error;                        /* of the last watch */
        unsigned n_ended;
} Fixture;

static int pidfd_error;        /* that pidfd_open() has; 0 = what the kernel says */
static void (*at_pidfd)(void); /* what happens at once after it */

long __real_syscall(long number, long a, long b, long c, long d);
long __wrap_syscall(long number, long a, long b, long c, long d);
long __wrap_syscall(long number, long a, long b, long c, long d) {
        if (number != SYS_pidfd_open)
                return __real_syscall(number, a, b, c, d);
        errno = pidfd_error;
        long fd = pidfd_error ? -1 : __real_syscall(number, a, b, c, d);
        if (at_pidfd)
                at_pidfd();
        return fd;
}

static void on_end(void *userdata) {
        ((Fixture *)userdata)->n_ended++;
}

static void start_child(Fixture *f) {
        Proc p;
        f->before_usec = clock_boottime_usec();
        f->child = fork();
        assert_true(f->child >= 0);
        if (f->child == 0)
                for (;;)
                        (void)pause(); /* until it is killed */
        f->after_usec = clock_boottime_usec();
        assert_int_equal(procfs_open(&p, "/proc", f->child, 0), 0);
        f->start_ticks = p.stat.start_ticks;
        procfs_close(&p);
}

/* It is a zombie then. */
static void kill_child(const Fixture *f) {
        siginfo_t info;
        assert_int_equal(kill(f->child, SIGKILL), 0); /* it is ours, and not reaped */
        assert_int_equal(waitid(P_PID, (id_t)f->child, &info, WEXITED | WNOWAIT), 0);
}

static void reap_child(Fixture *f) {
        assert_int_equal(waitpid(f->child, NULL, 0), f->child);
        f->child = 0;
}

static void end_watches(Fixture *f) {
        while (f->n_watches > 0)
                rank_watch_free(f->watches[--f->n_watches]);
}

static int setup(void **state) {
        Fixture *f = calloc(1, sizeof *f);
        if (!f || sd_event_new(&f->event) < 0)
                return -1;
        *state = f;
        start_child(f);
        return 0;
}

static int teardown(void **state) {
        Fixture *f = *state;
        pidfd_error = 0;
        at_pidfd = NULL;
        if (f->child > 0) {
                (void)kill(f->child, SIGKILL);
                (void)waitpid(f->child, NULL, 0);
        }
        end_watches(f);
        sd_event_unref(f->event);
        free(f);
        return 0;
}

static void see(Fixture *f, pid_t pid, uint64_t ticks) {
        assert_true(f->n_watches < ELEMENTSOF(f->watches));
        f->error =
                rank_watch_new(&f->watches[f->n_watches], &(RankWatchOptions){ .event = f->event,
                                                                               .proc_root = "/proc",
                                                                               .pid = pid,
                                                                               .start_ticks = ticks,
                                                                               .on_end = on_end,
                                                                               .userdata = f });
        f->n_watches += f->error == 0;
}

static void see_child(Fixture *f) {
        see(f, f->child, f->start_ticks);
}

static void the_end_of_a_process_is_reported_at_once(void **state) {
        Fixture *f = *state;
        see_child(f);
        assert_int_equal(f->error, 0);
        uint64_t tick_usec = USEC_PER_SEC / (uint64_t)sysconf(_SC_CLK_TCK);
        assert_in_range(rank_watch_start_usec(f->start_ticks), f->before_usec - tick_usec,
                        f->after_usec);
        assert_int_equal(sd_event_run(f->event, 0), 0); /* nothing wakes the agent while it lives */
        kill_child(f);
        assert_true(sd_event_run(f->event, 10 * USEC_PER_SEC) > 0);
        assert_int_equal(f->n_ended, 1);
        see_child(f); /* the record of a scan that ran before, of a zombie */
        assert_int_equal(f->error, -ESRCH);
        pid_t pid = f->child;
        reap_child(f);
        see(f, pid, f->start_ticks);
        assert_int_equal(f->error, -ESRCH);
}

static void whose_pid_is_another_process_s_is_not_taken_for_it(void **state) {
        Fixture *f = *state;
        see(f, f->child, f->start_ticks - 1);
        assert_int_equal(f->error, -ESRCH);
        see(f, f->child, f->start_ticks + 1);
        assert_int_equal(f->error, -ESRCH);
}

static Fixture *dying;
static void end_child_at_pidfd(void) {
        kill_child(dying);
        reap_child(dying);
}

static void one_that_ends_between_pidfd_and_check_is_not_watched(void **state) {
        Fixture *f = dying = *state;
        at_pidfd = end_child_at_pidfd;
        see_child(f);
        assert_int_equal(f->error, -ESRCH);
}

static unsigned n_descriptors(void) {
        unsigned n = 0;
        for (int fd = 0; fd < 256; fd++)
                n += fcntl(fd, F_GETFD) >= 0;
        return n;
}

static void their_descriptors_are_closed_with_them(void **state) {
        Fixture *f = *state;
        unsigned n = n_descriptors();
        see_child(f);
        assert_int_equal(n_descriptors(), n + 1);
        see(f, f->child, f->start_ticks + 1); /* refused */
        assert_int_equal(n_descriptors(), n + 1);
        end_watches(f);
        assert_int_equal(n_descriptors(), n);
        assert_null(rank_watch_free(NULL));
}

static void without_pidfds_no_end_is_seen_which_is_an_error(void **state) {
        Fixture *f = *state;
        unsigned n = n_descriptors();
        pidfd_error = ENOSYS;
        see_child(f);
        assert_int_equal(f->error, -ENOSYS);
        assert_int_equal(n_descriptors(), n);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        const struct CMUnitTest tests[] = {
                TEST(the_end_of_a_process_is_reported_at_once),
                TEST(whose_pid_is_another_process_s_is_not_taken_for_it),
                TEST(one_that_ends_between_pidfd_and_check_is_not_watched),
                TEST(their_descriptors_are_closed_with_them),
                TEST(without_pidfds_no_end_is_seen_which_is_an_error),
        };
        return cmocka_run_group_tests_name("agent/failures/rank_watch", tests, NULL, NULL);
}
