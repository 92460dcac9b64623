/* Dumps in containers: real ones, copied by the collector as production confines it. */
#include "tests/collectors/test_container_dumps_child.h"

/* ---- what is copied ---- */

static void a_dump_in_a_container_is_copied_while_its_hook_lives(void **state) {
        Room *m = *state;
        NEED_CONTAINER(m);
        make_directory(m, "rank0", JOB_UID);
        write_file(m, 0, "core.1", "first");
        write_file(m, 0, "rank0/a\\b\xff", "second");
        start_copy(m);
        json_t *dump = wait_for(m, "dump", NULL);
        assert_string_equal(string_of(dump, "note"), "n0");
        assert_string_equal(string_of(dump, "where"), "container");
        assert_string_equal(string_of(dump, "path"), DUMP);
        assert_true(json_is_null(json_object_get(dump, "container")));
        const char *unit = string_of(dump, "unit");
        assert_in_range(strlen(unit), 1, 23);
        assert_int_equal(strspn(unit, "0123456789"), strlen(unit));
        (void)wait_for(m, "file", "core.1");
        write_file(m, 0, "neuron-dump.json", "the hook's own");
        (void)wait_for(m, "file", "neuron-dump.json");
        end_process(&m->hooks[0].pid);
        assert_int_equal(end_copy(m), CHILD_DONE);
        assert_copy_is(m, "core.1", "first");
        assert_copy_is(m, "rank0/a\\x5cb\\xff", "second");
        assert_copy_is(m, "neuron-dump.json", "the hook's own");
        assert_true(is_whole(m));
        assert_int_equal(count(m, "end", NULL), 1);
        assert_string_equal(string_of(last_record(m, "end", NULL), "unit"), unit);
        assert_int_equal(count(m, "seen", NULL), 3);
        assert_int_equal(count(m, "file", NULL), 3);
}

static void a_file_that_is_written_to_is_copied_again_and_the_last_counts(void **state) {
        Room *m = *state;
        NEED_CONTAINER(m);
        write_file(m, 0, "core.1", "short");
        start_copy(m);
        (void)wait_for(m, "file", "core.1");
        write_file(m, 0, "core.1", "much longer");
        (void)wait_for(m, "file", "core.1");
        end_process(&m->hooks[0].pid);
        assert_int_equal(end_copy(m), CHILD_DONE);
        assert_copy_is(m, "core.1", "much longer");
        assert_int_equal(count(m, "seen", "core.1"), 1);
        assert_int_equal(count(m, "file", "core.1"), 2);
        assert_true(is_whole(m));
}

static void fill(int fd, uint64_t n_bytes) {
        static char data[1 << 20];
        memset(data, 'x', sizeof data);
        for (uint64_t n = 0; n < n_bytes; n += sizeof data)
                assert_int_equal(write(fd, data, sizeof data), sizeof data);
}

static void a_file_that_grows_while_it_is_copied_is_never_half(void **state) {
        Room *m = *state;
        NEED_CONTAINER(m);
        int fd = make_file(m, 0, "core.1");
        fill(fd, 16 * MIB);
        start_copy(m);
        (void)wait_for(m, "seen", "core.1");
        for (unsigned i = 0; i < 8; i++) {
                fill(fd, MIB);
                (void)poll(NULL, 0, 20);
        }
        assert_int_equal(close(fd), 0);
        end_process(&m->hooks[0].pid);
        assert_int_equal(end_copy(m), CHILD_DONE);
        json_t *file = last_record(m, "file", "core.1");
        _cleanup_close_ int copy = open_copy(m, "core.1");
        struct stat st;
        assert_int_equal(fstat(copy, &st), 0);
        assert_int_equal(st.st_size, 24 * MIB);
        assert_int_equal(number_of(file, "bytes"), 24 * MIB);
        assert_true(is_whole(m));
}

static void what_was_seen_outlives_the_container(void **state) {
        Room *m = *state;
        NEED_CONTAINER(m);
        make_directory(m, "rank0", JOB_UID);
        int fd = make_file(m, 0, "rank0/core.1");
        fill(fd, 32 * MIB);
        assert_int_equal(close(fd), 0);
        write_file(m, 0, "record.json", "whole");
        start_copy(m);
        while (count(m, "seen", NULL) < 2)
                assert_non_null(next_record(m));
        assert_int_equal(unlink(inside(m, 0, "rank0/core.1")), 0);
        assert_int_equal(rmdir(inside(m, 0, "rank0")), 0);
        assert_int_equal(unlink(inside(m, 0, "record.json")), 0);
        assert_int_equal(rmdir(inside(m, 0, "")), 0);
        end_process(&m->hooks[0].pid); /* and the mounts with it */
        assert_int_equal(end_copy(m), CHILD_DONE);
        assert_copy_is(m, "record.json", "whole");
        assert_int_equal(number_of(last_record(m, "file", "rank0/core.1"), "bytes"), 32 * MIB);
        assert_true(is_whole(m));
}

static void holes_stay_holes_and_cost_nothing(void **state) {
        Room *m = *state;
        struct stat st, copied;
        char got[8] = "";
        NEED_CONTAINER(m);
        m->order.max_bytes = 64 * KIB;
        int fd = make_file(m, 0, "core.1");
        assert_int_equal(pwrite(fd, "begin", 5, 0), 5);
        assert_int_equal(pwrite(fd, "middle", 6, (off_t)(4 * GIB + 3)), 6);
        assert_int_equal(ftruncate(fd, (off_t)(8 * GIB)), 0);
        assert_int_equal(fstat(fd, &st), 0);
        assert_int_equal(close(fd), 0);
        assert_int_equal(copy_all(m), CHILD_DONE);
        json_t *file = last_record(m, "file", "core.1");
        assert_int_equal(number_of(file, "bytes"), 8 * GIB);
        assert_int_equal(number_of(file, "mtime_nsec"),
                         (uint64_t)st.st_mtim.tv_sec * NSEC_PER_SEC + (uint64_t)st.st_mtim.tv_nsec);
        _cleanup_close_ int copy = open_copy(m, "core.1");
        assert_int_equal(fstat(copy, &copied), 0);
        assert_int_equal(copied.st_size, 8 * GIB);
        assert_in_range(copied.st_blocks, 1, 128);
        assert_int_equal(pread(copy, got, 5, 0), 5);
        assert_string_equal(got, "begin");
        assert_int_equal(pread(copy, got, 6, (off_t)(4 * GIB + 3)), 6);
        assert_string_equal(got, "middle");
        assert_true(is_whole(m));
}

static void names_with_a_dot_are_told_when_nobody_renames_them(void **state) {
        Room *m = *state;
        NEED_CONTAINER(m);
        write_file(m, 0, ".core.1", "whole");
        write_file(m, 0, "part.tmp", "early");
        start_copy(m);
        (void)wait_for(m, "seen", "part.tmp");
        assert_int_equal(rename(inside(m, 0, ".core.1"), inside(m, 0, "core.1")), 0);
        assert_int_equal(rename(inside(m, 0, "part.tmp"), inside(m, 0, "part")), 0);
        (void)wait_for(m, "file", "part");
        write_file(m, 0, ".left", "by one that was killed");
        assert_int_equal(poll(NULL, 0, 0), 0);
        end_process(&m->hooks[0].pid);
        assert_int_equal(end_copy(m), CHILD_DONE);
        assert_int_equal(count(m, "seen", ".core.1") + count(m, "file", ".core.1"), 0);
        assert_copy_is(m, "core.1", "whole");
        assert_copy_is(m, "part", "early");
        assert_copy_is(m, ".left", "by one that was killed");
        assert_int_equal(count(m, "renamed", "part.tmp"), 1);
        assert_true(is_whole(m));
}

static void two_notes_about_one_directory_share_a_unit(void **state) {
        Room *m = *state;
        NEED_CONTAINER(m);
        write_file(m, 0, "core.1", "once");
        m->dumps[1] = m->dumps[0];
        m->dumps[1].note = (char *)"second";
        m->order.n_container_dumps = 2;
        assert_int_equal(copy_all(m), CHILD_DONE);
        json_t *first = fake_find(m->fake, "note", "n0", 0),
               *second = fake_find(m->fake, "note", "second", 0);
        assert_non_null(first);
        assert_string_equal(string_of(first, "unit"), string_of(second, "unit"));
        assert_int_equal(count(m, "file", "core.1"), 1);
        assert_int_equal(count(m, "end", NULL), 1);
}

/* The kernel gives inodes and device numbers of a tmpfs that has gone to the next one. */
static void another_order_finds_the_same_unit_and_another_container_another(void **state) {
        Room *m = *state;
        char unit[24];
        NEED_CONTAINER(m);
        start_copy(m);
        (void)snprintf(unit, sizeof unit, "%s", string_of(wait_for(m, "dump", NULL), "unit"));
        end_process(&m->child);
        (void)fclose(m->records);
        (void)close(TAKE_FD(m->why_fd));
        start_copy(m);
        assert_string_equal(string_of(wait_for(m, "dump", NULL), "unit"), unit);
        end_process(&m->child);
        (void)fclose(m->records);
        (void)close(TAKE_FD(m->why_fd));
        end_process(&m->hooks[0].pid);
        m->n_hooks = 0;
        assert_true(add_hook(m, JOB_UID, true));
        start_copy(m);
        assert_string_not_equal(string_of(wait_for(m, "dump", NULL), "unit"), unit);
        end_process(&m->hooks[0].pid);
        assert_int_equal(end_copy(m), CHILD_DONE);
}

/* ---- what is not ---- */

static void a_hook_of_this_machine_is_here(void **state) {
        Room *m = *state;
        if (!add_hook(m, JOB_UID, false))
                SKIP_BECAUSE("other users need root");
        start_copy(m);
        assert_int_equal(end_copy(m), CHILD_DONE); /* and is not waited for */
        assert_answer(m, 0, "here", "");
        assert_int_equal(json_array_size(m->fake->records), 1);
}

static void expect_none(Room *m, const char *path, const char *detail) {
        m->dumps[0].path = (char *)path;
        json_array_clear(m->fake->records);
        start_copy(m);
        assert_int_equal(end_copy(m), CHILD_DONE);
        assert_answer(m, 0, "none", detail);
        assert_int_equal(json_array_size(m->fake->records), 1);
        (void)fclose(TAKE_PTR(m->records));
        (void)close(TAKE_FD(m->why_fd));
}

static void a_directory_that_is_not_the_hooks_own_is_refused(void **state) {
        Room *m = *state;
        char link[PATH_MAX];
        NEED_CONTAINER(m);
        make_directory(m, "others", OTHER_UID);
        write_file(m, 0, "file", "no directory");
        (void)snprintf(link, sizeof link, "/proc/%d/root/tmp/link", (int)m->hooks[0].pid);
        assert_int_equal(symlink(DUMP, link), 0);
        expect_none(m, DUMP "/others", "another user");
        expect_none(m, "/proc", "another user");
        expect_none(m, "/tmp/link", "symlink");
        expect_none(m, DUMP "/../x", "`..`");
        expect_none(m, DUMP "/file", "Not a directory");
        expect_none(m, "/proc/self/root" DUMP, "symlink");
        m->dumps[0].uid = OTHER_UID;
        expect_none(m, DUMP, "another user's");
}

static void a_directory_that_comes_late_is_waited_for_as_long_as_the_hook_lives(void **state) {
        Room *m = *state;
        NEED_CONTAINER(m);
        assert_true(add_hook(m, OTHER_UID, true));
        m->dumps[0].path = (char *)DUMP "/late";
        m->dumps[1].path = (char *)DUMP "/never";
        start_copy(m);
        (void)poll(NULL, 0, 150);
        make_directory(m, "late", JOB_UID);
        write_file(m, 0, "late/core.1", "late");
        (void)wait_for(m, "file", "core.1");
        end_process(&m->hooks[0].pid);
        end_process(&m->hooks[1].pid);
        assert_int_equal(end_copy(m), CHILD_DONE);
        assert_answer(m, 0, "container", "");
        assert_answer(m, 1, "none", "no such directory while the hook lived");
}

static void a_hook_that_has_ended_has_nothing_any_more(void **state) {
        Room *m = *state;
        NEED_CONTAINER(m);
        (void)kill(m->hooks[0].pid, SIGKILL); /* a zombie first */
        siginfo_t info;
        assert_int_equal(waitid(P_PID, (id_t)m->hooks[0].pid, &info, WEXITED | WNOWAIT), 0);
        expect_none(m, DUMP, "has ended");
        end_process(&m->hooks[0].pid);
        expect_none(m, DUMP, "has ended");
}

/* By SO_PEERCRED it is known who sent the note, but the number is found in /proc only later. */
static void a_process_that_began_after_the_note_is_not_its_hook(void **state) {
        Room *m = *state;
        Clock *clock = clock_system();
        uint64_t before_usec = clock->boottime_usec(clock);
        (void)poll(NULL, 0, 20); /* its age is told in ticks of 10 ms */
        NEED_CONTAINER(m);
        write_file(m, 0, "core.1", "another's");
        m->dumps[0].noted_usec = before_usec;
        expect_none(m, DUMP, "another process's");
        m->dumps[0].noted_usec = clock->boottime_usec(clock);
        json_array_clear(m->fake->records);
        assert_int_equal(copy_all(m), CHILD_DONE);
        assert_copy_is(m, "core.1", "another's");
}

static void a_directory_that_does_not_come_is_not_waited_for_as_long_as_its_hook_sleeps(
        void **state) {
        Room *m = *state;
        NEED_CONTAINER(m);
        assert_true(add_hook(m, JOB_UID, true));
        m->order.timeout_usec = 4 * USEC_PER_SEC;
        m->dumps[0].path = (char *)DUMP "/never";
        write_file(m, 1, "core.1", "whole");
        start_copy(m);
        (void)wait_for(m, "file", "core.1");
        end_process(&m->hooks[1].pid);
        assert_int_equal(end_copy(m), CHILD_DONE);
        assert_answer(m, 0, "none", "may sleep for ever");
        assert_true(is_whole(m)); /* the other one: the order came to its own end */
}

static void what_is_no_file_of_the_users_is_left_out_with_a_reason(void **state) {
        Room *m = *state;
        NEED_CONTAINER(m);
        make_hostile_tree(m);
        start_copy(m);
        (void)wait_for(m, "file", "core.1");
        end_process(&m->hooks[0].pid);
        assert_int_equal(end_copy(m), CHILD_DONE);
        assert_left_out(m, "fifo", "pipe");
        assert_left_out(m, "device", "device");
        assert_left_out(m, "link", "symlink");
        assert_left_out(m, "tree", "symlink");
        assert_left_out(m, "socket", "socket");
        assert_left_out(m, "secret", "another user");
        assert_left_out(m, "others", "another user");
        assert_left_out(m, "d/d/d/d/d/d/d/d/d", "too deep");
        assert_left_out(m, "environ", "kernel");
        assert_int_equal(count(m, "seen", "others/file"), 0);
        assert_copy_is(m, "core.1", "good");
        /* With the container its mount goes: then there is the empty file below. */
        assert_int_equal(count(m, "file", NULL) - count(m, "file", "environ"), 1);
        assert_false(is_whole(m));
}

static void what_does_not_fit_is_named_with_the_key_that_bounds_it(void **state) {
        Room *m = *state;
        NEED_CONTAINER(m);
        m->order.max_bytes = MIB + 4096;
        int fd = make_file(m, 0, "large");
        fill(fd, 2 * MIB);
        assert_int_equal(close(fd), 0);
        write_file(m, 0, "small", "fits");
        assert_int_equal(copy_all(m), CHILD_DONE);
        assert_left_out(m, "large", "hook.container_bytes");
        assert_int_equal(number_of(last_record(m, "seen", "large"), "bytes"), 2 * MIB);
        assert_copy_is(m, "small", "fits");
        assert_false(is_whole(m));
}

static void what_a_file_has_on_disk_counts_not_what_is_in_it(void **state) {
        Room *m = *state;
        char name[8];
        NEED_CONTAINER(m);
        m->order.max_bytes = 8 * 4 * KIB;
        for (int i = 0; i < 16; i++) {
                (void)snprintf(name, sizeof name, "f%d", i);
                write_file(m, 0, name, "x");
        }
        assert_int_equal(copy_all(m), CHILD_DONE);
        assert_int_equal(count(m, "file", NULL), 8);
        assert_int_equal(count(m, "left_out", NULL), 8);
}

static void one_of_several_users_gets_half_at_most(void **state) {
        Room *m = *state;
        NEED_CONTAINER(m);
        assert_true(add_hook(m, OTHER_UID, true));
        m->order.max_bytes = 4 * MIB;
        for (size_t i = 0; i < 2; i++) {
                int fd = make_file(m, i, i ? "modest" : "greedy");
                fill(fd, i ? MIB : 3 * MIB);
                assert_int_equal(close(fd), 0);
        }
        assert_int_equal(copy_all(m), CHILD_DONE);
        assert_left_out(m, "greedy", "hook.container_bytes");
        assert_int_equal(count(m, "file", "modest"), 1);
}

static void more_files_than_may_be_are_said_and_the_first_are_copied(void **state) {
        Room *m = *state;
        char name[32];
        NEED_CONTAINER(m);
        for (int i = 0; i < 4100; i++) {
                (void)snprintf(name, sizeof name, "f%d", i);
                write_file(m, 0, name, "x");
        }
        assert_int_equal(copy_all(m), CHILD_DONE);
        assert_int_equal(count(m, "file", NULL), 4096);
        assert_int_equal(count(m, "left_out", NULL), 1);
        assert_non_null(strstr(string_of(last_record(m, "left_out", NULL), "detail"), "4096"));
        assert_false(is_whole(m));
}

static void with_few_descriptors_files_are_opened_when_their_turn_comes(void **state) {
        Room *m = *state;
        char name[32];
        NEED_CONTAINER(m);
        m->max_descriptors = 48;
        for (int i = 0; i < 100; i++) {
                (void)snprintf(name, sizeof name, "f%d", i);
                write_file(m, 0, name, "x");
        }
        assert_int_equal(copy_all(m), CHILD_DONE);
        assert_int_equal(count(m, "file", NULL), 100);
        assert_true(is_whole(m));
}

static void a_hook_that_does_not_end_ends_with_the_time(void **state) {
        Room *m = *state;
        NEED_CONTAINER(m);
        m->order.timeout_usec = 1 * USEC_PER_SEC;
        write_file(m, 0, "core.1", "whole");
        start_copy(m);
        assert_int_equal(end_copy(m), CHILD_DONE);
        assert_copy_is(m, "core.1", "whole");
        assert_false(is_whole(m)); /* who knows what would have come */
}

/* Of a user whose file system hangs: its process is ended, and nobody else's. */
static void each_users_are_copied_by_a_process_of_their_own(void **state) {
        Room *m = *state;
        char path[64];
        int pid = 0;
        NEED_CONTAINER(m);
        assert_true(add_hook(m, OTHER_UID, true));
        m->dumps[0].path = (char *)DUMP "/never";
        write_file(m, 1, "core.1", "whole");
        start_copy(m);
        (void)wait_for(m, "file", "core.1");
        (void)snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)m->child,
                       (int)m->child);
        FILE *f = fopen(path, "re");
        assert_int_equal(fscanf(f, "%d", &pid), 1); /* the first user's */
        (void)fclose(f);
        assert_int_equal(kill(pid, SIGKILL), 0);
        (void)wait_for(m, "dump", NULL);
        end_process(&m->hooks[1].pid);
        assert_int_equal(end_copy(m), CHILD_DONE);
        assert_answer(m, 0, "none", "hang");
        assert_copy_is(m, "core.1", "whole");
        assert_true(is_whole(m));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, room_setup, room_teardown)

int main(int argc, char **argv) {
        if (argc == 2 && strncmp(argv[1], "--child=", 8) == 0)
                _exit(child_main(argv[1] + 8));
        const struct CMUnitTest tests[] = {
                TEST(a_dump_in_a_container_is_copied_while_its_hook_lives),
                TEST(a_file_that_is_written_to_is_copied_again_and_the_last_counts),
                TEST(a_file_that_grows_while_it_is_copied_is_never_half),
                TEST(what_was_seen_outlives_the_container),
                TEST(holes_stay_holes_and_cost_nothing),
                TEST(names_with_a_dot_are_told_when_nobody_renames_them),
                TEST(two_notes_about_one_directory_share_a_unit),
                TEST(another_order_finds_the_same_unit_and_another_container_another),
                TEST(a_hook_of_this_machine_is_here),
                TEST(a_directory_that_is_not_the_hooks_own_is_refused),
                TEST(a_directory_that_comes_late_is_waited_for_as_long_as_the_hook_lives),
                TEST(a_hook_that_has_ended_has_nothing_any_more),
                TEST(a_process_that_began_after_the_note_is_not_its_hook),
                TEST(a_directory_that_does_not_come_is_not_waited_for_as_long_as_its_hook_sleeps),
                TEST(what_is_no_file_of_the_users_is_left_out_with_a_reason),
                TEST(what_does_not_fit_is_named_with_the_key_that_bounds_it),
                TEST(what_a_file_has_on_disk_counts_not_what_is_in_it),
                TEST(one_of_several_users_gets_half_at_most),
                TEST(more_files_than_may_be_are_said_and_the_first_are_copied),
                TEST(with_few_descriptors_files_are_opened_when_their_turn_comes),
                TEST(a_hook_that_does_not_end_ends_with_the_time),
                TEST(each_users_are_copied_by_a_process_of_their_own),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
