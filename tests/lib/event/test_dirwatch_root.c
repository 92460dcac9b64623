/* lib/event/dirwatch: how the root comes, goes and comes back. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/harness/unit.h"

#include "tests/lib/event/dirwatch_fixture.h"

static Fixture *waiting_for(void **state, const char *root) {
        Fixture *f = *state;

        (void)snprintf(f->root, sizeof f->root, "%s/%s", f->base, root);
        fixture_watch(f);
        fixture_settle(f);
        assert_int_equal(f->n_rescans, 0);
        assert_int_equal(f->n_degraded, 0);
        return f;
}

static void see_a_file(Fixture *f, const char *root) {
        char path[512], name[64];
        static unsigned n;

        fixture_forget(f);
        (void)snprintf(name, sizeof name, "seen-%u", n++);
        (void)snprintf(path, sizeof path, "%s/sub/%s", root, name);
        make_file(f, path);
        fixture_settle(f);
        (void)snprintf(path, sizeof path, "sub/%s", name);
        assert_true(fixture_was_reported(f, path));
        assert_true(dirwatch_is_complete(f->watch));
}

static void a_root_that_appears_step_by_step_is_watched(void **state) {
        Fixture *f = waiting_for(state, "a/b/c/root");

        make_dir(f, "a");
        fixture_settle(f);
        make_dir(f, "a/b");
        fixture_settle(f);
        make_dir(f, "a/b/c");
        fixture_settle(f);
        assert_int_equal(f->n_rescans, 0);
        make_dir(f, "a/b/c/root");
        fixture_settle(f);
        assert_int_equal(f->n_rescans, 1);
        see_a_file(f, "a/b/c/root");
}

static void a_root_that_appears_complete_is_watched(void **state) {
        Fixture *f = waiting_for(state, "a/root");

        make_file(f, "made/root/sub/file");
        move(f, "made", "a");
        fixture_settle(f);
        assert_int_equal(f->n_rescans, 1);
        see_a_file(f, "a/root");
}

static void waiting_for_the_root_wakes_nobody_for_other_names(void **state) {
        Fixture *f = waiting_for(state, "a/b/root");

        make_dir(f, "a");
        fixture_settle(f);
        make_dir(f, "a/bb");
        make_dir(f, "other");
        fixture_settle(f);
        assert_int_equal(f->n_rescans, 0);
        assert_int_equal(sd_event_run(f->event, 1000), 0);
}

static bool is_there(Fixture *f) {
        return f->n_rescans > 0 && dirwatch_is_complete(f->watch);
}

static void a_root_made_at_full_speed_is_never_missed(void **state) {
        Fixture *f = *state;

        (void)snprintf(f->root, sizeof f->root, "%s/a/b/c/d/e/f/root", f->base);
        for (int i = 0; i < 200; i++) {
                pid_t child;
                int status;

                fixture_watch(f);
                fixture_settle(f);
                child = fork();
                assert_true(child >= 0);
                if (child == 0) {
                        make_dir(f, "a/b/c/d/e/f/root");
                        _exit(0);
                }
                fixture_until(f, is_there);
                assert_int_equal(waitpid(child, &status, 0), child);
                see_a_file(f, "a/b/c/d/e/f/root");
                f->watch = dirwatch_free(f->watch);
                remove_all(f, "a");
                fixture_forget(f);
        }
}

static void a_root_removed_and_made_again_is_watched_again(void **state) {
        Fixture *f = *state;

        make_file(f, "root/sub/file");
        fixture_watch(f);
        fixture_settle(f);
        for (int i = 0; i < 3; i++) {
                fixture_forget(f);
                remove_all(f, "root");
                fixture_settle(f);
                assert_int_equal(f->n_rescans, 1);
                make_dir(f, "root");
                fixture_settle(f);
                assert_int_equal(f->n_rescans, 2);
                see_a_file(f, "root");
        }
}

static void a_root_replaced_within_one_turn_is_watched_again(void **state) {
        Fixture *f = *state;

        make_file(f, "root/sub/file");
        fixture_watch(f);
        fixture_settle(f);
        fixture_forget(f);
        remove_all(f, "root");
        make_file(f, "root/sub/other");
        fixture_settle(f);
        assert_true(f->n_rescans >= 1);
        see_a_file(f, "root");
}

static void a_root_moved_away_is_released(void **state) {
        Fixture *f = *state;

        make_file(f, "root/sub/file");
        fixture_watch(f);
        fixture_settle(f);
        fixture_forget(f);
        move(f, "root", "away");
        fixture_settle(f);
        assert_int_equal(f->n_rescans, 1);
        make_file(f, "away/sub/other");
        fixture_settle(f);
        assert_int_equal(f->n_changes, 0);
        move(f, "away", "root");
        fixture_settle(f);
        see_a_file(f, "root");
}

static void a_root_moved_away_and_back_within_one_turn_stays_watched(void **state) {
        Fixture *f = *state;

        make_file(f, "root/sub/file");
        fixture_watch(f);
        fixture_settle(f);
        move(f, "root", "away");
        move(f, "away", "root");
        fixture_settle(f);
        see_a_file(f, "root");
}

static void an_ancestor_moved_away_moves_the_root_along(void **state) {
        Fixture *f = *state;

        (void)snprintf(f->root, sizeof f->root, "%s/a/b/root", f->base);
        make_file(f, "a/b/root/sub/file");
        fixture_watch(f);
        fixture_settle(f);
        fixture_forget(f);
        move(f, "a", "z");
        dirwatch_check(f->watch); /* no event of the root */
        fixture_settle(f);
        assert_int_equal(f->n_rescans, 1);
        make_file(f, "z/b/root/sub/unseen");
        fixture_settle(f);
        assert_int_equal(f->n_changes, 0);
        make_dir(f, "a/b/root");
        fixture_settle(f);
        see_a_file(f, "a/b/root");
}

static void a_root_that_is_a_symlink_is_refused_and_the_remedy_reported(void **state) {
        Fixture *f = *state;
        char target[512];

        make_dir(f, "real");
        (void)snprintf(target, sizeof target, "%s/real", f->base);
        assert_int_equal(symlink(target, f->root), 0);
        fixture_watch(f);
        fixture_settle(f);
        assert_int_equal(f->n_degraded, 1);
        assert_non_null(strstr(f->why, "symbolic link"));
        assert_non_null(strstr(f->remedy, "configure the path it points to"));
        make_file(f, "real/file");
        fixture_settle(f);
        assert_int_equal(f->n_changes, 0);

        assert_int_equal(unlink(f->root), 0); /* a directory in its place is welcome */
        make_dir(f, "root");
        fixture_settle(f);
        see_a_file(f, "root");
}

static void a_root_that_is_a_file_is_reported(void **state) {
        Fixture *f = *state;

        make_file(f, "root");
        fixture_watch(f);
        fixture_settle(f);
        assert_int_equal(f->n_degraded, 1);
        assert_non_null(strstr(f->why, "Not a directory"));
}

static void a_check_notices_what_raised_no_event(void **state) {
        Fixture *f = *state;
        char link[512], target[512];

        /* An ancestor that is a symlink, pointed elsewhere: like a mount, it tells nobody. */
        make_dir(f, "first/root");
        make_dir(f, "second/root");
        (void)snprintf(link, sizeof link, "%s/link", f->base);
        (void)snprintf(target, sizeof target, "%s/first", f->base);
        assert_int_equal(symlink(target, link), 0);
        (void)snprintf(f->root, sizeof f->root, "%s/link/root", f->base);
        fixture_watch(f);
        fixture_settle(f);
        assert_int_equal(unlink(link), 0);
        (void)snprintf(target, sizeof target, "%s/second", f->base);
        assert_int_equal(symlink(target, link), 0);
        fixture_settle(f);
        fixture_forget(f);
        dirwatch_check(f->watch);
        fixture_settle(f);
        assert_true(f->n_rescans >= 1);
        see_a_file(f, "second/root");
        fixture_forget(f);
        dirwatch_check(f->watch); /* nothing new: nothing told */
        fixture_settle(f);
        assert_int_equal(f->n_rescans, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(a_root_that_appears_step_by_step_is_watched),
                TEST(a_root_that_appears_complete_is_watched),
                TEST(waiting_for_the_root_wakes_nobody_for_other_names),
                TEST(a_root_made_at_full_speed_is_never_missed),
                TEST(a_root_removed_and_made_again_is_watched_again),
                TEST(a_root_replaced_within_one_turn_is_watched_again),
                TEST(a_root_moved_away_is_released),
                TEST(a_root_moved_away_and_back_within_one_turn_stays_watched),
                TEST(an_ancestor_moved_away_moves_the_root_along),
                TEST(a_root_that_is_a_symlink_is_refused_and_the_remedy_reported),
                TEST(a_root_that_is_a_file_is_reported),
                TEST(a_check_notices_what_raised_no_event),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
