/* lib/event/dirwatch: what happens in the tree is told. How the root comes and goes is in
 * test_dirwatch_root.c. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/harness/unit.h"

#include "lib/base/clock.h"
#include "tests/lib/event/dirwatch_fixture.h"

/* ---- failures that cannot be provoked otherwise ---- */
static long watches_left = -1; /* -1 = no limit; further ones get ENOSPC */
static int refuse_watches_with;
static bool hide_types;
static int refuse_instances_with;

/* Paths below the base of `maker`: made before a directory is listed, and while the mask of an
 * existing watch is set; NULL: none. */
static Fixture *maker;
static const char *made_before_listing, *made_at_renewal;

int __real_inotify_add_watch(int fd, const char *path, uint32_t mask);

/* Like inotify_add_watch(), but when it replaces the mask of an existing watch, the moment without
 * a mask is as long as the file takes to be made. In Linux it is some nanoseconds. */
static int renew_watch(int fd, const char *path, uint32_t mask) {
        int wd = __real_inotify_add_watch(fd, path, (mask & ~IN_MASK_ADD) | IN_MASK_CREATE);

        if (wd >= 0 || errno != EEXIST)
                return wd;
        if (!(mask & IN_MASK_ADD)) /* 0 is refused; nothing here raises IN_ATTRIB */
                assert_true(__real_inotify_add_watch(fd, path, IN_ATTRIB) >= 0);
        make_file(maker, made_at_renewal);
        made_at_renewal = NULL;
        return __real_inotify_add_watch(fd, path, mask);
}

int __wrap_inotify_add_watch(int fd, const char *path, uint32_t mask);
int __wrap_inotify_add_watch(int fd, const char *path, uint32_t mask) {
        if (refuse_watches_with) {
                errno = refuse_watches_with;
                return -1;
        }
        if (watches_left == 0) {
                errno = ENOSPC;
                return -1;
        }
        if (watches_left > 0)
                watches_left--;
        return made_at_renewal ? renew_watch(fd, path, mask)
                               : __real_inotify_add_watch(fd, path, mask);
}

int __real_inotify_rm_watch(int fd, int wd);
int __wrap_inotify_rm_watch(int fd, int wd);
int __wrap_inotify_rm_watch(int fd, int wd) {
        if (watches_left >= 0)
                watches_left++;
        return __real_inotify_rm_watch(fd, wd);
}

int __real_inotify_init1(int flags);
int __wrap_inotify_init1(int flags);
int __wrap_inotify_init1(int flags) {
        if (!refuse_instances_with)
                return __real_inotify_init1(flags);
        errno = refuse_instances_with;
        return -1;
}

ssize_t __real_getdents64(int fd, void *buffer, size_t n);
ssize_t __wrap_getdents64(int fd, void *buffer, size_t n);
ssize_t __wrap_getdents64(int fd, void *buffer, size_t n) {
        if (made_before_listing)
                make_dir(maker, made_before_listing);
        made_before_listing = NULL;
        ssize_t r = __real_getdents64(fd, buffer, n);

        for (ssize_t at = 0; hide_types && at < r;) {
                struct dirent64 *e = (struct dirent64 *)((char *)buffer + at);

                e->d_type = DT_UNKNOWN;
                at += e->d_reclen;
        }
        return r;
}

static int setup(void **state) {
        Fixture *f;

        watches_left = -1;
        refuse_watches_with = refuse_instances_with = 0;
        hide_types = false;
        made_before_listing = made_at_renewal = NULL;
        (void)fixture_setup(state);
        maker = f = *state;
        make_dir(f, "root");
        return 0;
}

static Fixture *watched(void **state) {
        Fixture *f = *state;

        fixture_watch(f);
        fixture_settle(f);
        assert_true(dirwatch_is_complete(f->watch));
        assert_int_equal(f->n_rescans, 1); /* what was there before is to be scanned */
        assert_int_equal(f->n_changes, 0);
        fixture_forget(f);
        return f;
}

/* ---- tests ---- */
static void a_file_is_reported_when_it_is_made_written_and_moved(void **state) {
        Fixture *f = watched(state);

        make_file(f, "root/core.1");
        fixture_settle(f);
        assert_true(fixture_was_reported(f, "core.1"));
        fixture_forget(f);
        make_file(f, "root/core.1"); /* opened for writing and closed again */
        fixture_settle(f);
        assert_true(fixture_was_reported(f, "core.1"));
        fixture_forget(f);
        move(f, "root/core.1", "root/core.2");
        fixture_settle(f);
        assert_true(fixture_was_reported(f, "core.1"));
        assert_true(fixture_was_reported(f, "core.2"));
        assert_int_equal(f->n_rescans, 0);
}

static void an_idle_watch_wakes_nobody(void **state) {
        Fixture *f = watched(state);

        for (int i = 0; i < 10; i++)
                assert_int_equal(sd_event_run(f->event, 1000), 0);
}

static void a_busy_neighbour_of_the_root_wakes_nobody(void **state) {
        Fixture *f = watched(state);

        make_file(f, "elsewhere/a");
        make_file(f, "neighbour");
        assert_int_equal(sd_event_run(f->event, 1000), 0);
}

static void files_in_new_directories_are_reported(void **state) {
        Fixture *f = watched(state);

        make_file(f, "root/a/b/c/file");
        make_file(f, "root/a/second");
        fixture_settle(f);
        assert_true(fixture_was_reported(f, "D:a"));
        assert_true(fixture_was_reported(f, "D:a/b/c"));
        assert_true(fixture_was_reported(f, "a/b/c/file"));
        assert_true(fixture_was_reported(f, "a/second"));
        fixture_forget(f);
        make_file(f, "root/a/b/c/later");
        fixture_settle(f);
        assert_true(fixture_was_reported(f, "a/b/c/later"));
}

static void directories_are_known_where_the_file_system_reports_no_types(void **state) {
        Fixture *f = *state;

        hide_types = true;
        make_file(f, "root/old/deep/file");
        f = watched(state);
        make_file(f, "root/old/deep/later");
        make_file(f, "root/new/deep/file");
        fixture_settle(f);
        assert_true(fixture_was_reported(f, "old/deep/later"));
        assert_true(fixture_was_reported(f, "new/deep/file"));
        assert_false(fixture_was_reported(f, "D:new/deep/file"));
        assert_true(dirwatch_n_watches(f->watch) >= 5);
}

static bool child_is_gone;
static pid_t child;

static bool until_child_is_gone(Fixture *f) {
        int status;

        (void)f;
        if (!child_is_gone && waitpid(child, &status, WNOHANG) == child) {
                assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
                child_is_gone = true;
        }
        return child_is_gone;
}

static void no_file_is_missed_while_somebody_makes_trees_as_fast_as_he_can(void **state) {
        enum { TREES = 400 };
        Fixture *f = watched(state);
        char path[128];

        child_is_gone = false;
        child = fork();
        assert_true(child >= 0);
        if (child == 0) {
                for (int i = 0; i < TREES; i++) {
                        (void)snprintf(path, sizeof path, "root/t%d/a/b/c/d/file", i);
                        make_file(f, path);
                        (void)snprintf(path, sizeof path, "root/t%d/a/file", i);
                        make_file(f, path);
                }
                _exit(0);
        }
        fixture_until(f, until_child_is_gone);
        fixture_settle(f);
        assert_int_equal(dirwatch_n_overflows(f->watch), 0);
        for (int i = 0; i < TREES; i++) {
                (void)snprintf(path, sizeof path, "t%d/a/b/c/d/file", i);
                assert_true(fixture_was_reported(f, path));
                (void)snprintf(path, sizeof path, "t%d/a/file", i);
                assert_true(fixture_was_reported(f, path));
        }
        assert_true(dirwatch_is_complete(f->watch));
}

static void a_file_made_while_a_watch_is_renewed_is_reported(void **state) {
        Fixture *f = watched(state);
        char path[64], sub[64], file[64];

        /* A directory is watched again if it is listed first and its event comes then; in a slow
         * turn of the loop the event comes first. */
        made_at_renewal = file;
        for (unsigned i = 0; made_at_renewal; i++) {
                assert_true(i < 1000);
                (void)snprintf(path, sizeof path, "root/d%u", i);
                (void)snprintf(sub, sizeof sub, "root/d%u/sub", i);
                (void)snprintf(file, sizeof file, "root/d%u/sub/file", i);
                made_before_listing = sub;
                make_dir(f, path);
                fixture_settle(f);
        }
        assert_true(fixture_was_reported(f, file + strlen("root/")));
}

static void a_root_made_while_the_watch_of_its_parent_is_renewed_is_watched(void **state) {
        Fixture *f = *state;

        make_dir(f, "parent");
        (void)snprintf(f->root, sizeof f->root, "%s/parent/root", f->base);
        made_at_renewal = "parent/root/file";
        fixture_watch(f);
        fixture_settle(f);
        assert_null(made_at_renewal);
        assert_int_equal(f->n_rescans, 1);
        assert_true(dirwatch_is_complete(f->watch));
}

static void names_may_hold_newlines_and_bytes_that_are_no_text(void **state) {
        Fixture *f = watched(state);

        make_file(f, "root/line\nbreak/\xff\xfe\n");
        fixture_settle(f);
        assert_true(fixture_was_reported(f, "D:line\nbreak"));
        assert_true(fixture_was_reported(f, "line\nbreak/\xff\xfe\n"));
}

static void our_own_links_are_left_out(void **state) {
        Fixture *f = *state;

        make_file(f, "root/.neuron-collectd/i-0/pin");
        make_dir(f, "root/a");
        f = watched(state);
        make_file(f, "root/.neuron-collectd/i-0/second");
        make_file(f, "root/a/.neuron-collectd/pin");
        fixture_settle(f);
        assert_int_equal(f->n_changes, 0);
}

static void symlinks_are_reported_but_not_followed(void **state) {
        Fixture *f = *state;
        char link[512], target[512];

        make_dir(f, "outside/deep");
        (void)snprintf(link, sizeof link, "%s/old", f->root);
        (void)snprintf(target, sizeof target, "%s/outside", f->base);
        assert_int_equal(symlink(target, link), 0);
        f = watched(state);
        (void)snprintf(link, sizeof link, "%s/new", f->root);
        assert_int_equal(symlink(target, link), 0);
        fixture_settle(f);
        assert_true(fixture_was_reported(f, "new"));
        fixture_forget(f);
        make_file(f, "outside/secret");
        make_file(f, "outside/deep/secret");
        fixture_settle(f);
        assert_int_equal(f->n_changes, 0);
}

static void a_moved_directory_is_reported_under_its_new_name(void **state) {
        Fixture *f = *state;

        make_dir(f, "root/a/b/c");
        make_dir(f, "root/z");
        f = watched(state);
        move(f, "root/a/b", "root/z/moved");
        fixture_settle(f);
        assert_true(fixture_was_reported(f, "D:a/b"));
        assert_true(fixture_was_reported(f, "D:z/moved"));
        assert_true(fixture_was_reported(f, "D:z/moved/c"));
        fixture_forget(f);
        make_file(f, "root/z/moved/c/file");
        make_file(f, "root/a/b/c/other"); /* a new one under the old name */
        fixture_settle(f);
        assert_true(fixture_was_reported(f, "z/moved/c/file"));
        assert_true(fixture_was_reported(f, "a/b/c/other"));
        assert_false(fixture_was_reported(f, "a/b/c/file"));
        assert_true(dirwatch_is_complete(f->watch));
}

static void a_directory_moved_out_is_forgotten_and_one_moved_in_is_listed(void **state) {
        Fixture *f = *state;
        size_t before;

        make_dir(f, "root/a/b");
        make_file(f, "outside/x/file");
        f = watched(state);
        before = dirwatch_n_watches(f->watch);
        move(f, "root/a", "gone");
        fixture_settle(f);
        fixture_forget(f);
        make_file(f, "gone/b/file");
        fixture_settle(f);
        assert_int_equal(f->n_changes, 0);
        assert_int_equal(dirwatch_n_watches(f->watch), before - 2);
        move(f, "outside", "root/in");
        fixture_settle(f);
        assert_true(fixture_was_reported(f, "in/x/file"));
        assert_int_equal(dirwatch_n_watches(f->watch), before);
}

static void directories_that_swap_their_names_are_kept_apart(void **state) {
        Fixture *f = *state;

        make_dir(f, "root/a/of-a");
        make_dir(f, "root/b/of-b");
        f = watched(state);
        move(f, "root/a", "root/t");
        move(f, "root/b", "root/a");
        move(f, "root/t", "root/b");
        fixture_settle(f);
        fixture_forget(f);
        make_file(f, "root/a/of-b/1");
        make_file(f, "root/b/of-a/2");
        fixture_settle(f);
        assert_true(fixture_was_reported(f, "a/of-b/1"));
        assert_true(fixture_was_reported(f, "b/of-a/2"));
        assert_int_equal(f->n_changes, 4); /* each made and closed */
}

static void a_directory_made_anew_is_watched_although_somebody_holds_the_old_one(void **state) {
        Fixture *f = *state;
        char path[512];
        int held;

        make_dir(f, "root/a/sub");
        f = watched(state);
        (void)snprintf(path, sizeof path, "%s/a", f->root);
        held = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_true(held >= 0);
        remove_all(f, "root/a");
        make_dir(f, "root/a/sub");
        fixture_settle(f);
        fixture_forget(f);
        (void)close(held); /* only now the kernel tells that the old one went */
        make_file(f, "root/a/sub/file");
        fixture_settle(f);
        assert_true(fixture_was_reported(f, "a/sub/file"));
        assert_true(dirwatch_is_complete(f->watch));
        remove_all(f, "root/a");
        fixture_settle(f);
        assert_true(dirwatch_is_complete(f->watch));
}

static void a_replaced_empty_directory_is_watched_as_the_new_one(void **state) {
        Fixture *f = *state;

        make_dir(f, "root/target");
        make_dir(f, "root/source/sub");
        f = watched(state);
        move(f, "root/source", "root/target");
        fixture_settle(f);
        fixture_forget(f);
        make_file(f, "root/target/sub/file");
        fixture_settle(f);
        assert_true(fixture_was_reported(f, "target/sub/file"));
}

static int on_turn(sd_event_source *source, int fd, uint32_t events, void *userdata) {
        (void)source, (void)fd, (void)events; /* nothing is read: it is ready all the time */
        ++*(unsigned *)userdata;
        return 0;
}

static void a_long_listing_lets_others_have_their_turn(void **state) {
        Fixture *f = *state;
        char path[400];
        int fds[2];
        unsigned n_turns = 0, n_runs = 0;
        sd_event_source *other = NULL;
        make_dir(f, "root/many");
        for (unsigned i = 0; i < 40000; i++) {
                (void)snprintf(path, sizeof path, "%s/many/file-%u", f->root, i);
                assert_return_code(mknod(path, S_IFREG | 0600, 0), errno);
        }
        assert_return_code(pipe2(fds, O_CLOEXEC), errno);
        assert_int_equal(write(fds[1], "x", 1), 1);
        fixture_watch(f);
        assert_return_code(sd_event_add_io(f->event, &other, fds[0], EPOLLIN, on_turn, &n_turns),
                           0);
        while (!dirwatch_is_complete(f->watch) && n_runs++ < 1000000)
                assert_return_code(sd_event_run(f->event, UINT64_MAX), 0);
        assert_true(dirwatch_is_complete(f->watch));
        assert_true(n_turns >= 2);
        sd_event_source_disable_unref(other);
        (void)close(fds[0]);
        (void)close(fds[1]);
}

static void many_events_let_others_have_their_turn(void **state) {
        Fixture *f = *state;
        char path[64];
        int fds[2];
        unsigned n_turns = 0;
        sd_event_source *other = NULL;
        f->slow_usec = 100;
        f = watched(state);
        for (unsigned i = 0; i < 1000; i++) {
                (void)snprintf(path, sizeof path, "root/directory-%u", i);
                make_dir(f, path);
        }
        assert_return_code(pipe2(fds, O_CLOEXEC), errno);
        assert_int_equal(write(fds[1], "x", 1), 1);
        assert_return_code(sd_event_add_io(f->event, &other, fds[0], EPOLLIN, on_turn, &n_turns),
                           0);
        while (!fixture_was_reported(f, "D:directory-999"))
                assert_return_code(sd_event_run(f->event, UINT64_MAX), 0);
        assert_true(n_turns >= 3);
        sd_event_source_disable_unref(other);
        (void)close(fds[0]);
        (void)close(fds[1]);
}

static long queue_limit(void) {
        FILE *f = fopen("/proc/sys/fs/inotify/max_queued_events", "re");
        long n = 0;

        assert_non_null(f);
        assert_int_equal(fscanf(f, "%ld", &n), 1);
        (void)fclose(f);
        return n;
}

static void lost_events_lead_to_a_rescan_and_to_watches_on_what_was_missed(void **state) {
        Fixture *f = *state;
        char path[128];

        make_dir(f, "root/old/sub");
        make_dir(f, "root/leaves");
        f = watched(state);
        /* More than the queue holds, in alternating names, because equal neighbours are merged. */
        for (long i = 0; i < queue_limit() + 1000; i++) {
                (void)snprintf(path, sizeof path, "root/f%ld", i % 2);
                make_file(f, path);
        }
        make_file(f, "root/missed/deep/file");
        remove_all(f, "root/leaves");
        remove_all(f, "root/old");
        make_dir(f, "root/old/sub");
        fixture_settle(f);
        assert_int_equal(dirwatch_n_overflows(f->watch), 1);
        assert_true(f->n_rescans >= 1);
        assert_true(dirwatch_is_complete(f->watch));
        fixture_forget(f);
        make_file(f, "root/missed/deep/later");
        make_file(f, "root/old/sub/later");
        make_file(f, "root/leaves/later");
        fixture_settle(f);
        assert_true(fixture_was_reported(f, "missed/deep/later"));
        assert_true(fixture_was_reported(f, "old/sub/later"));
        assert_true(fixture_was_reported(f, "leaves/later"));
}

static void a_tree_too_deep_is_watched_down_to_the_limit(void **state) {
        Fixture *f = watched(state);
        char path[512];
        size_t n = (size_t)snprintf(path, sizeof path, "root");
        size_t before = dirwatch_n_watches(f->watch);

        for (int i = 0; i < 100; i++) {
                path[n++] = '/';
                path[n++] = 'd';
        }
        path[n] = '\0';
        make_dir(f, path);
        fixture_settle(f);
        assert_true(dirwatch_is_complete(f->watch));
        assert_int_equal(dirwatch_n_watches(f->watch) - before, 64);
        remove_all(f, "root/d");
        fixture_settle(f);
        assert_int_equal(dirwatch_n_watches(f->watch), before);
}

static void at_the_watch_limit_it_reports_the_remedy_once_and_continues(void **state) {
        Fixture *f = *state;

        for (int i = 0; i < 50; i++) {
                char path[64];

                (void)snprintf(path, sizeof path, "root/d%d", i);
                make_dir(f, path);
        }
        watches_left = 20;
        fixture_watch(f);
        fixture_settle(f);
        assert_int_equal(f->n_degraded, 1);
        assert_non_null(strstr(f->remedy, "fs.inotify.max_user_watches (it is "));
        assert_non_null(strstr(f->why, f->root));
        assert_false(dirwatch_is_complete(f->watch));
        assert_int_equal(f->n_rescans, 1);

        fixture_forget(f);
        make_file(f, "root/file"); /* the root has its watch */
        make_dir(f, "root/more");
        fixture_settle(f);
        assert_true(fixture_was_reported(f, "file"));
        assert_int_equal(f->n_degraded, 1);
}

static void watches_that_become_free_are_used_at_the_next_check(void **state) {
        Fixture *f = *state;

        make_dir(f, "root/a");
        make_dir(f, "root/b");
        fixture_watch(f);
        fixture_settle(f);
        watches_left = 0;
        make_dir(f, "root/c");
        fixture_settle(f);
        assert_false(dirwatch_is_complete(f->watch));
        move(f, "root/a", "away");
        fixture_settle(f);
        watches_left = -1;
        dirwatch_check(f->watch);
        fixture_settle(f);
        assert_true(dirwatch_is_complete(f->watch));
        fixture_forget(f);
        make_file(f, "root/c/file");
        fixture_settle(f);
        assert_true(fixture_was_reported(f, "c/file"));
}

static void a_directory_that_may_not_be_watched_is_named(void **state) {
        Fixture *f = watched(state);

        refuse_watches_with = EACCES;
        make_dir(f, "root/private");
        fixture_settle(f);
        assert_int_equal(f->n_degraded, 1);
        assert_non_null(strstr(f->why, "/private'"));
        assert_non_null(strstr(f->remedy, "CAP_DAC_READ_SEARCH"));
}

static void without_an_inotify_instance_it_does_not_start(void **state) {
        Fixture *f = *state;
        const DirWatchCallbacks callbacks = { 0 };

        refuse_instances_with = EMFILE;
        assert_int_equal(dirwatch_new(&f->watch, f->event, f->root, &callbacks), -EMFILE);
        refuse_instances_with = 0;
        assert_int_equal(dirwatch_new(&f->watch, f->event, "relative", &callbacks), -EINVAL);
        assert_int_equal(dirwatch_new(&f->watch, f->event, "/", &callbacks), -EINVAL);
}

static void it_can_be_freed_in_the_middle_of_a_walk(void **state) {
        Fixture *f = *state;
        char path[64];

        for (int i = 0; i < 2000; i++) {
                (void)snprintf(path, sizeof path, "root/%d/%d", i % 40, i);
                make_dir(f, path);
        }
        fixture_watch(f);
        for (int i = 0; i < 3; i++)
                assert_true(sd_event_run(f->event, 0) > 0);
        move(f, "root/1", "away");
        assert_true(sd_event_run(f->event, 0) > 0);
        assert_false(dirwatch_is_complete(f->watch));
        f->watch = dirwatch_free(f->watch);
}

static double seconds(void) {
        struct timespec t;

        (void)clock_gettime(CLOCK_MONOTONIC, &t);
        return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* DIRWATCH_TEST_DIRS=100000 makes it the benchmark of the issue. */
static void a_large_tree_costs_little_memory_and_the_loop_stays_free(void **state) {
        Fixture *f = *state;
        const char *given = getenv("DIRWATCH_TEST_DIRS");
        long n = given ? atol(given) : 10000;
        char path[64];
        size_t heap;
        unsigned turns = 0;
        double start, longest = 0;

        for (long i = 0; i < n; i++) {
                (void)snprintf(path, sizeof path, "root/g%03ld/directory-%06ld", i % 100, i);
                make_dir(f, path);
        }
        heap = mallinfo2().uordblks;
        start = seconds();
        fixture_watch(f);
        while (!dirwatch_is_complete(f->watch)) {
                double before = seconds();

                assert_true(sd_event_run(f->event, 0) >= 0);
                longest = seconds() - before > longest ? seconds() - before : longest;
                turns++;
        }
        print_message("# %ld directories: %.3f s in %u turns, longest turn %.1f ms, %zu bytes a "
                      "directory\n",
                      n, seconds() - start, turns, longest * 1e3,
                      (mallinfo2().uordblks - heap) / (size_t)n);
        assert_true(dirwatch_n_watches(f->watch) >= (size_t)n + 101);
        assert_true(turns > 5);
        /* DirWatch itself has its buffers in it: 128 KiB. */
        assert_true((mallinfo2().uordblks - heap) <= 150 * (size_t)n + 128 * 1024);
        assert_int_equal(f->n_rescans, 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, fixture_teardown)

static void what_may_not_be_watched_is_left_out_and_tried_again_when_others_are_gone(void **state) {
        Fixture *f = *state;
        char path[64];
        Bound bound = { .what = "directories", .max = 100, .max_each = 10 };
        for (unsigned i = 0; i < 30; i++) { /* found by listing, then by events */
                (void)snprintf(path, sizeof path, "root/d%02u", i);
                make_dir(f, path);
                if (i == 14) {
                        f->bound = &bound;
                        fixture_watch(f);
                        fixture_settle(f);
                        assert_int_equal(bound.total, 10);
                        assert_int_equal(dirwatch_n_left_out(f->watch), 5);
                }
        }
        fixture_settle(f);
        assert_int_equal(bound.total, 10);
        assert_int_equal(dirwatch_n_watches(f->watch), 11); /* with the root */
        assert_int_equal(dirwatch_n_left_out(f->watch), 20);
        assert_false(dirwatch_is_complete(f->watch));
        for (unsigned i = 0; i < 25; i++) {
                (void)snprintf(path, sizeof path, "root/d%02u", i);
                remove_all(f, path);
        }
        fixture_settle(f);
        dirwatch_check(f->watch);
        fixture_settle(f);
        assert_true(dirwatch_is_complete(f->watch));
        assert_int_equal(bound.total, 5);
        fixture_forget(f);
        make_file(f, "root/d29/file");
        fixture_settle(f);
        assert_true(fixture_was_reported(f, "d29/file"));
        assert_int_equal(bound_amount(&bound, &(Owner){ .uid = geteuid() }), bound.total);
        f->watch = dirwatch_free(f->watch);
        assert_int_equal(bound.total, 0);
        bound_done(&bound);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(a_file_is_reported_when_it_is_made_written_and_moved),
                TEST(an_idle_watch_wakes_nobody),
                TEST(a_busy_neighbour_of_the_root_wakes_nobody),
                TEST(files_in_new_directories_are_reported),
                TEST(directories_are_known_where_the_file_system_reports_no_types),
                TEST(no_file_is_missed_while_somebody_makes_trees_as_fast_as_he_can),
                TEST(a_file_made_while_a_watch_is_renewed_is_reported),
                TEST(a_root_made_while_the_watch_of_its_parent_is_renewed_is_watched),
                TEST(names_may_hold_newlines_and_bytes_that_are_no_text),
                TEST(our_own_links_are_left_out),
                TEST(symlinks_are_reported_but_not_followed),
                TEST(a_moved_directory_is_reported_under_its_new_name),
                TEST(a_directory_moved_out_is_forgotten_and_one_moved_in_is_listed),
                TEST(directories_that_swap_their_names_are_kept_apart),
                TEST(a_directory_made_anew_is_watched_although_somebody_holds_the_old_one),
                TEST(a_replaced_empty_directory_is_watched_as_the_new_one),
                TEST(a_long_listing_lets_others_have_their_turn),
                TEST(many_events_let_others_have_their_turn),
                TEST(lost_events_lead_to_a_rescan_and_to_watches_on_what_was_missed),
                TEST(a_tree_too_deep_is_watched_down_to_the_limit),
                TEST(at_the_watch_limit_it_reports_the_remedy_once_and_continues),
                TEST(watches_that_become_free_are_used_at_the_next_check),
                TEST(a_directory_that_may_not_be_watched_is_named),
                TEST(without_an_inotify_instance_it_does_not_start),
                TEST(it_can_be_freed_in_the_middle_of_a_walk),
                TEST(what_may_not_be_watched_is_left_out_and_tried_again_when_others_are_gone),
                TEST(a_large_tree_costs_little_memory_and_the_loop_stays_free),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
