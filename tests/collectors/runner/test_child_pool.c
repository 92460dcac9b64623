/* Parts in processes of their own: what they say arrives, and one that hangs, crashes or says too
 * much harms itself alone. */
#include "collectors/runner/child_pool.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/strbuf.h"

enum { N_MAX = 16 };

typedef struct Heard {
        StrBuf lines[N_MAX];
        int results[N_MAX];
        unsigned n_lines[N_MAX], n_ends[N_MAX];
        const PoolTask *tasks;
        int stop_after_lines, stop_at_end; /* a callback's negative answer; 0 = never */
} Heard;

static int on_line(const PoolTask *task, char *line, size_t n, void *userdata) {
        Heard *h = userdata;
        size_t i = (size_t)(task - h->tasks);
        assert_int_equal(strlen(line), n);
        strbuf_add(&h->lines[i], line);
        strbuf_add(&h->lines[i], "|");
        h->n_lines[i]++;
        return h->stop_after_lines;
}

static int on_end(const PoolTask *task, int result, void *userdata) {
        Heard *h = userdata;
        size_t i = (size_t)(task - h->tasks);
        h->results[i] = result;
        h->n_ends[i]++;
        return h->stop_at_end;
}

static void write_text(int fd, const char *text) {
        if (write(fd, text, strlen(text)) < 0)
                _exit(99);
}

/* The task's name says what the part does. */
static int act(const PoolTask *task, int fd, void *userdata) {
        (void)userdata;
        const char *what = task->name;
        if (strcmp(what, "two lines") == 0)
                write_text(fd, "one\ntwo\n");
        else if (strcmp(what, "no newline") == 0)
                write_text(fd, "one\ntw");
        else if (strcmp(what, "fails") == 0)
                return write_text(fd, "begun\n"), -ENODEV;
        else if (strcmp(what, "crashes") == 0) {
                write_text(fd, "begun\n");
                (void)signal(SIGABRT, SIG_DFL);
                (void)kill(getpid(), SIGKILL);
        } else if (strcmp(what, "hangs") == 0) {
                write_text(fd, "begun\nha");
                for (;;)
                        (void)pause();
        } else if (strcmp(what, "hangs at its end") == 0) { /* as in the close() of an exit */
                write_text(fd, "begun\n");
                (void)close(fd);
                for (;;)
                        (void)pause();
        } else if (strcmp(what, "ignores SIGTERM") == 0) {
                (void)signal(SIGTERM, SIG_IGN);
                for (;;)
                        (void)pause();
        } else if (strcmp(what, "babbles") == 0)
                for (;;)
                        write_text(fd, "bla bla\n");
        else if (strcmp(what, "long line") == 0)
                for (;;)
                        write_text(fd, "xxxxxxxxxxxxxxxx");
        else if (strcmp(what, "large") == 0)
                for (int i = 0; i < 20000; i++)
                        write_text(fd, "0123456789\n"); /* more than a pipe holds */
        else if (strcmp(what, "lists its fds") == 0) {
                char line[32];
                for (int i = 0; i < 1024; i++)
                        if (fcntl(i, F_GETFD) >= 0) {
                                struct stat st;
                                bool is_null = fstat(i, &st) == 0 && S_ISCHR(st.st_mode);
                                (void)snprintf(line, sizeof line, "%d%s\n", i, is_null ? "n" : "");
                                write_text(fd, line);
                        }
        }
        return 0;
}

static int hear(Heard *h, const PoolTask *tasks, size_t n, uint64_t timeout_usec) {
        ChildPool pool = { .run = act,
                           .on_line = on_line,
                           .on_end = on_end,
                           .userdata = h,
                           .max_at_once = 4,
                           .timeout_usec = timeout_usec,
                           .max_line_bytes = 100,
                           .max_bytes_each = 1 << 20 };
        h->tasks = tasks;
        return child_pool_run(&pool, tasks, n);
}

static void heard_done(Heard *h) {
        for (size_t i = 0; i < N_MAX; i++)
                strbuf_done(&h->lines[i]);
        while (waitpid(-1, NULL, 0) > 0) /* the killed ones: none may be left alive */
                continue;
        assert_int_equal(errno, ECHILD);
}

static void complete_lines_of_all_parts_arrive(void **state) {
        _cleanup_(heard_done) Heard h = { 0 };
        PoolTask tasks[N_MAX];
        for (size_t i = 0; i < N_MAX; i++)
                tasks[i] = (PoolTask){ .name = i == 3 ? "no newline" : "two lines" };
        assert_int_equal(hear(&h, tasks, N_MAX, 20 * USEC_PER_SEC), 0);
        for (size_t i = 0; i < N_MAX; i++) {
                assert_string_equal(h.lines[i].text, i == 3 ? "one|" : "one|two|");
                assert_int_equal(h.results[i], 0);
                assert_int_equal(h.n_ends[i], 1);
        }
}

static void a_part_that_writes_more_than_a_pipe_holds_is_read_to_its_end(void **state) {
        _cleanup_(heard_done) Heard h = { 0 };
        const PoolTask tasks[] = { { .name = "large" }, { .name = "large" } };
        assert_int_equal(hear(&h, tasks, 2, 20 * USEC_PER_SEC), 0);
        assert_int_equal(h.n_lines[0], 20000);
        assert_int_equal(h.n_lines[1], 20000);
        assert_int_equal(h.results[1], 0);
}

static void failures_and_crashes_are_distinguished(void **state) {
        _cleanup_(heard_done) Heard h = { 0 };
        const PoolTask tasks[] = { { .name = "fails" },
                                   { .name = "crashes" },
                                   { .name = "two lines" } };
        assert_int_equal(hear(&h, tasks, 3, 20 * USEC_PER_SEC), 0);
        assert_int_equal(h.results[0], -ENODEV);
        assert_string_equal(h.lines[0].text, "begun|");
        assert_int_equal(h.results[1], -EPIPE);
        assert_string_equal(h.lines[1].text, "begun|");
        assert_int_equal(h.results[2], 0);
}

static void a_part_that_hangs_is_cut_off_and_the_others_are_complete(void **state) {
        _cleanup_(heard_done) Heard h = { 0 };
        const PoolTask tasks[] = { { .name = "hangs" },
                                   { .name = "two lines" },
                                   { .name = "hangs at its end" },
                                   { .name = "ignores SIGTERM" },
                                   { .name = "two lines" } };
        Clock *clock = clock_system();
        uint64_t begun = clock->boottime_usec(clock);
        assert_int_equal(hear(&h, tasks, 5, USEC_PER_SEC), 0);
        uint64_t took = clock->boottime_usec(clock) - begun;
        assert_in_range(took, USEC_PER_SEC, 20 * USEC_PER_SEC);
        assert_int_equal(h.results[0], -ETIMEDOUT);
        assert_string_equal(h.lines[0].text, "begun|");
        assert_int_equal(h.results[2], -ETIMEDOUT);
        assert_string_equal(h.lines[2].text, "begun|");
        assert_int_equal(h.results[3], -ETIMEDOUT);
        for (size_t i = 1; i < 5; i += 3) {
                assert_int_equal(h.results[i], 0);
                assert_string_equal(h.lines[i].text, "one|two|");
        }
}

static void parts_whose_turn_never_came_are_reported_too(void **state) {
        _cleanup_(heard_done) Heard h = { 0 };
        PoolTask tasks[N_MAX];
        for (size_t i = 0; i < N_MAX; i++)
                tasks[i] = (PoolTask){ .name = "hangs" };
        assert_int_equal(hear(&h, tasks, N_MAX, 50 * USEC_PER_MSEC), 0);
        for (size_t i = 0; i < N_MAX; i++) {
                assert_int_equal(h.results[i], -ETIMEDOUT);
                assert_int_equal(h.n_ends[i], 1);
        }
}

static void one_that_writes_too_much_is_ended(void **state) {
        _cleanup_(heard_done) Heard h = { 0 };
        const PoolTask tasks[] = { { .name = "babbles" },
                                   { .name = "long line" },
                                   { .name = "two lines" } };
        assert_int_equal(hear(&h, tasks, 3, 60 * USEC_PER_SEC), 0);
        assert_int_equal(h.results[0], -EFBIG);
        assert_in_range(h.n_lines[0], 1, (1 << 20) / 8);
        assert_int_equal(h.results[1], -EFBIG);
        assert_null(h.lines[1].text);
        assert_int_equal(h.results[2], 0);
}

static void a_callback_can_end_it_all(void **state) {
        const PoolTask tasks[] = { { .name = "hangs" }, { .name = "two lines" } };
        {
                _cleanup_(heard_done) Heard h = { .stop_after_lines = -ENOSPC };
                assert_int_equal(hear(&h, tasks, 2, 60 * USEC_PER_SEC), -ENOSPC);
                assert_int_equal(h.n_ends[0] + h.n_ends[1], 0);
        }
        _cleanup_(heard_done) Heard h = { .stop_at_end = -EIO };
        assert_int_equal(hear(&h, tasks, 2, 60 * USEC_PER_SEC), -EIO);
        assert_int_equal(h.n_ends[0] + h.n_ends[1], 1);
}

static void a_part_holds_nothing_of_the_callers(void **state) {
        _cleanup_(heard_done) Heard h = { 0 };
        const PoolTask tasks[] = { { .name = "lists its fds" } };
        int fds[2];
        assert_int_equal(pipe(fds), 0);
        int high = fcntl(fds[0], F_DUPFD, 900);
        assert_true(high >= 0);
        assert_int_equal(hear(&h, tasks, 1, 20 * USEC_PER_SEC), 0);
        assert_string_equal(h.lines[0].text, "0n|1n|2n|4|");
        (void)close(fds[0]);
        (void)close(fds[1]);
        (void)close(high);
}

static void a_part_has_the_descriptor_that_is_to_be_kept(void **state) {
        _cleanup_(heard_done) Heard h = { 0 };
        const PoolTask task = { .name = "lists its fds" };
        int fds[2];
        assert_int_equal(pipe(fds), 0);
        int high = fcntl(fds[0], F_DUPFD, 900);
        ChildPool pool = { .run = act,
                           .on_line = on_line,
                           .on_end = on_end,
                           .userdata = &h,
                           .max_at_once = 1,
                           .kept_fd = high,
                           .timeout_usec = 20 * USEC_PER_SEC,
                           .max_line_bytes = 100,
                           .max_bytes_each = 1 << 20 };
        h.tasks = &task;
        assert_int_equal(child_pool_run(&pool, &task, 1), 0);
        assert_string_equal(h.lines[0].text, "0n|1n|2n|3|4|");
        (void)close(fds[0]);
        (void)close(fds[1]);
        (void)close(high);
}

/* The caller in a process of its own, killed while its part hangs: the part's end of a FIFO tells
 * when it is gone. */
static int hold_and_hang(const PoolTask *task, int fd, void *userdata) {
        (void)fd;
        int held = open(task->userdata, O_WRONLY); /* the pool closed what it had inherited */
        if (held < 0 || write(held, "x", 1) != 1)
                return -EIO;
        (void)userdata;
        for (;;)
                (void)pause();
}

static void parts_die_with_a_caller_that_is_killed(void **state) {
        char path[] = "/tmp/nc-pool-XXXXXX", fifo[sizeof path + 2], byte;
        assert_non_null(mkdtemp(path));
        (void)snprintf(fifo, sizeof fifo, "%s/f", path);
        assert_int_equal(mkfifo(fifo, 0600), 0);
        pid_t pid = fork();
        if (pid == 0) {
                PoolTask task = { .name = "held", .userdata = fifo };
                ChildPool pool = { .run = hold_and_hang,
                                   .on_line = on_line,
                                   .on_end = on_end,
                                   .max_at_once = 1,
                                   .timeout_usec = USEC_PER_MINUTE };
                _exit(child_pool_run(&pool, &task, 1) < 0);
        }
        int fd = open(fifo, O_RDONLY | O_CLOEXEC);
        assert_int_equal(read(fd, &byte, 1), 1);
        assert_int_equal(kill(pid, SIGKILL), 0);
        assert_int_equal(read(fd, &byte, 1), 0); /* ends only when the part is gone */
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        (void)close(fd);
        (void)unlink(fifo);
        (void)rmdir(path);
}

static void nothing_to_do_is_done(void **state) {
        _cleanup_(heard_done) Heard h = { 0 };
        assert_int_equal(hear(&h, NULL, 0, USEC_INFINITY), 0);
        const PoolTask tasks[] = { { .name = "two lines" } };
        assert_int_equal(hear(&h, tasks, 1, USEC_INFINITY), 0);
        assert_int_equal(child_pool_run(&(ChildPool){ .max_at_once = 0 }, tasks, 1), -EINVAL);
        assert_int_equal(child_pool_run(&(ChildPool){ .max_at_once = 129 }, tasks, 1), -EINVAL);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(complete_lines_of_all_parts_arrive),
                cmocka_unit_test(a_part_that_writes_more_than_a_pipe_holds_is_read_to_its_end),
                cmocka_unit_test(failures_and_crashes_are_distinguished),
                cmocka_unit_test(a_part_that_hangs_is_cut_off_and_the_others_are_complete),
                cmocka_unit_test(parts_whose_turn_never_came_are_reported_too),
                cmocka_unit_test(one_that_writes_too_much_is_ended),
                cmocka_unit_test(a_callback_can_end_it_all),
                cmocka_unit_test(a_part_holds_nothing_of_the_callers),
                cmocka_unit_test(a_part_has_the_descriptor_that_is_to_be_kept),
                cmocka_unit_test(parts_die_with_a_caller_that_is_killed),
                cmocka_unit_test(nothing_to_do_is_done),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
