/* What links hold is deleted at the source, whatever comes in between and wherever it is cut;
 * nothing else is. */
#include <errno.h>
#include <sys/file.h>
#include <sys/wait.h>

#include "tests/harness/unit.h"

#include "agent/retention/link_deletion.h"
#include "agent/retention/link_usage.h"
#include "agent/retention/links.h"
#include "lib/base/cleanup.h"
#include "lib/neuron/ids.h"
#include "tests/agent/retention/link_one.h"
#include "tests/harness/skip.h"
#include "tests/lib/base/scratch.h"

#define INSTANCE "i-0123456789abcdef0"
#define BUNDLE "directory-20260527T052135-0123456789ab"
#define OTHER "directory-20260527T052135-0123456789cd"
#define LINKS ".neuron-collectd/" INSTANCE
#define MEMBERS_MAX 8

static const char *const members[] = { "a", "b", "sub/c", "sub/dir/d" };

/* ---- what comes in between, and where it is cut ---- */

static struct {
        const Scratch *scratch;
        const char *before, *after; /* commands around the first renameat2 */
        bool no_replace_unknown;    /* as on NFS */
        unsigned crash_at;          /* before the n-th call that changes a name; 0 = never */
        unsigned n_calls, n_renames;
} meddler;

static void in_scratch(const Scratch *s, const char *command) {
        char text[PATH_MAX + 1024];
        (void)snprintf(text, sizeof text, "cd '%s' && { %s; }", s->path, command);
        assert_int_equal(system(text), 0);
}

static void count_call(void) {
        if (++meddler.n_calls == meddler.crash_at)
                _exit(7);
}

int __real_renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags);
int __wrap_renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags);
int __real_unlinkat(int dir_fd, const char *name, int flags);
int __wrap_unlinkat(int dir_fd, const char *name, int flags);

int __wrap_renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags) {
        bool first = meddler.n_renames++ == 0;
        if (first && meddler.before)
                in_scratch(meddler.scratch, meddler.before);
        count_call();
        if (meddler.no_replace_unknown) {
                errno = EINVAL;
                return -1;
        }
        int r = __real_renameat2(from_fd, from, to_fd, to, flags);
        int error = errno;
        if (first && meddler.after)
                in_scratch(meddler.scratch, meddler.after);
        errno = error;
        return r;
}

int __wrap_unlinkat(int dir_fd, const char *name, int flags) {
        count_call();
        return __real_unlinkat(dir_fd, name, flags);
}

/* ---- the unit ---- */

typedef struct Fixture {
        Scratch *scratch; /* first: scratch_setup() makes it */
        LinkDirs *link_dirs;
        uint64_t prints[MEMBERS_MAX], known[MEMBERS_MAX];
        LinkDeletion request;
        LinkDeletionTally tally;
} Fixture;

static Fixture fixture;

static struct stat stat_of(const char *path) {
        struct stat st;
        if (fstatat(fixture.scratch->fd, path, &st, AT_SYMLINK_NOFOLLOW) < 0)
                fail_msg("%s is not there", path);
        return st;
}

static bool is_there(const char *path) {
        struct stat st;
        return fstatat(fixture.scratch->fd, path, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

static void assert_text(const char *path, const char *expected) {
        char text[64] = "";
        int fd = openat(fixture.scratch->fd, path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
                fail_msg("%s is not there", path);
        assert_true(read(fd, text, sizeof text - 1) >= 0);
        (void)close(fd);
        assert_string_equal(text, expected);
}

static int compare(const void *a, const void *b) {
        uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
        return (x > y) - (x < y);
}

/* As it is when it was delivered: linked, and its fingerprints known. */
static void pin_as_shipped(const char *bundle, const char *unit, const char *const *names,
                           size_t n) {
        char path[PATH_MAX];
        int unit_fd = openat(fixture.scratch->fd, unit, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_true(unit_fd >= 0);
        for (size_t i = 0; i < n; i++) {
                char *error = NULL;
                (void)snprintf(path, sizeof path, "%s/%s", unit, names[i]);
                struct stat st = stat_of(path);
                fixture.prints[i] = member_fingerprint(names[i], &st);
                assert_int_equal(link_one(fixture.link_dirs, bundle,
                                          &(LinkMember){ names[i], unit_fd, names[i], &st },
                                          &error),
                                 0);
        }
        (void)close(unit_fd);
        qsort(fixture.prints, n, sizeof fixture.prints[0], compare);
        fixture.request.prints = fixture.prints;
        fixture.request.n_prints = n;
}

static void make_unit(void) {
        in_scratch(fixture.scratch, "mkdir -p src/unit/sub/dir && for i in a b sub/c sub/dir/d; do "
                                    "printf %s \"content of $i\" > src/unit/$i; done");
        pin_as_shipped(BUNDLE, "src/unit", members, ELEMENTSOF(members));
}

static int setup(void **state) {
        char path[PATH_MAX + 8];
        void *scratch = NULL;
        memset(&meddler, 0, sizeof meddler);
        memset(&fixture, 0, sizeof fixture);
        if (scratch_setup(&scratch) < 0)
                return -1;
        meddler.scratch = fixture.scratch = scratch;
        (void)snprintf(path, sizeof path, "%s/src", fixture.scratch->path);
        fixture.request = (LinkDeletion){ .bundle_id = BUNDLE, .relative = "unit" };
        *state = &fixture;
        return link_dirs_new(&fixture.link_dirs, path, INSTANCE);
}

static int teardown(void **state) {
        void *scratch = fixture.scratch;
        meddler.crash_at = 0;
        link_dirs_free(fixture.link_dirs);
        return scratch_teardown(&scratch);
}

static int delete_unit(void) {
        return link_deletion_run(fixture.link_dirs, &fixture.request, &fixture.tally);
}

static int release_links(void) {
        fixture.request.only_links = true;
        int r = delete_unit();
        fixture.request.only_links = false;
        return r;
}

static void assert_all_removed(void) {
        assert_false(is_there("src/unit"));
        assert_true(is_there("src"));
        in_scratch(fixture.scratch, "test -z \"$(ls -A " LINKS ")\"");
}

/* ---- tests ---- */

static void what_was_shipped_goes_with_its_directories_and_links(void **state) {
        make_unit();
        assert_int_equal(delete_unit(), 0);
        assert_all_removed();
        assert_int_equal(fixture.tally.n_deleted, 4);
        assert_int_equal(fixture.tally.deleted_bytes, 12 + 12 + 16 + 20);
        assert_int_equal(delete_unit(), 0); /* there is nothing to be sorry for */
}

/* A supplement has shipped the members as they are now. */
static void know_as_they_are(const char *const *names, size_t n) {
        for (size_t i = 0; i < n; i++) {
                char path[PATH_MAX];
                (void)snprintf(path, sizeof path, LINKS "/" BUNDLE "/%s", names[i]);
                struct stat st = stat_of(path);
                fixture.known[i] = member_fingerprint(names[i], &st);
        }
        qsort(fixture.known, n, sizeof fixture.known[0], compare);
        fixture.request.known = fixture.known;
        fixture.request.n_known = n;
}

static void what_has_changed_or_is_the_users_stays(void **state) {
        make_unit();
        in_scratch(fixture.scratch, "printf more >> src/unit/a; printf new > src/unit/sub/user; "
                                    "touch -d 2020-01-01 src/unit/b");
        assert_int_equal(delete_unit(), LINK_DELETION_E_UNSHIPPED);
        assert_int_equal(fixture.tally.n_unshipped, 2);
        assert_int_equal(fixture.tally.n_changed, 0);
        assert_true(is_there(LINKS "/" BUNDLE "/a") && is_there(LINKS "/" BUNDLE "/b"));
        know_as_they_are(members, 2);
        assert_int_equal(delete_unit(), 0);
        assert_text("src/unit/a", "content of amore");
        assert_text("src/unit/b", "content of b");
        assert_text("src/unit/sub/user", "new");
        assert_false(is_there("src/unit/sub/c"));
        assert_false(is_there("src/unit/sub/dir"));
        assert_int_equal(fixture.tally.n_deleted, 2);
        assert_int_equal(fixture.tally.n_changed, 2);
        assert_false(is_there(LINKS "/" BUNDLE));
}

static void the_last_links_to_what_was_not_shipped_stay_until_it_was(void **state) {
        static const char *const changed[] = { "a", "sub/c" };
        for (unsigned run = 0; run < 4; run++) {
                make_unit();
                in_scratch(fixture.scratch, "printf more >> src/unit/a; "
                                            "printf more >> src/unit/sub/c; rm -r src/unit");
                fixture.request.known = NULL;
                fixture.request.n_known = 0;
                fixture.request.discards_unshipped = false;
                int (*act)(void) = run % 2 == 1 ? release_links : delete_unit;
                assert_int_equal(act(), LINK_DELETION_E_UNSHIPPED);
                assert_text(LINKS "/" BUNDLE "/a", "content of amore");
                assert_text(LINKS "/" BUNDLE "/sub/c", "content of sub/cmore");
                assert_false(is_there(LINKS "/" BUNDLE "/b"));
                assert_false(is_there(LINKS "/" BUNDLE "/sub/dir"));
                if (run < 2)
                        know_as_they_are(changed, ELEMENTSOF(changed));
                else
                        fixture.request.discards_unshipped = true;
                assert_int_equal(act(), 0);
                assert_all_removed();
        }
        assert_int_equal(fixture.tally.n_deleted, 0);
}

static void what_is_not_mounted_has_not_ended(void **state) {
        make_unit();
        fixture.request.unit_dev = (uint64_t)stat_of("src/unit").st_dev;
        in_scratch(fixture.scratch, "mkdir away && mv src .neuron-collectd away");
        assert_int_equal(delete_unit(), LINK_DELETION_E_AWAY); /* the fixed part is missing */
        in_scratch(fixture.scratch, "mkdir src");
        fixture.request.unit_dev++;
        assert_int_equal(delete_unit(), LINK_DELETION_E_AWAY); /* it is another file system's */
        assert_int_equal(release_links(), LINK_DELETION_E_AWAY);
        fixture.request.unit_dev = 0;
        assert_int_equal(delete_unit(),
                         LINK_DELETION_E_AWAY); /* nobody knows, and nothing is ours */
        in_scratch(fixture.scratch, "rmdir src && mv away/src away/.neuron-collectd .");
        assert_int_equal(delete_unit(), 0);
        assert_all_removed();
        assert_int_equal(fixture.tally.n_deleted, 4);
        assert_int_equal(delete_unit(), 0); /* our directory tells that it is all there is */
}

static void only_one_deletes_at_a_time(void **state) {
        make_unit();
        int fd = openat(fixture.scratch->fd, LINKS "/" BUNDLE, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_true(fd >= 0 && flock(fd, LOCK_EX) == 0);
        assert_int_equal(delete_unit(), -EBUSY);
        assert_text("src/unit/a", "content of a");
        (void)close(fd);
        assert_int_equal(delete_unit(), 0);
        assert_all_removed();
}

static void of_an_evicted_bundle_whatever_is_linked_is_deleted(void **state) {
        make_unit();
        fixture.request.prints = NULL;
        fixture.request.n_prints = 0;
        fixture.request.any_content = true;
        in_scratch(fixture.scratch,
                   "printf more >> src/unit/a; rm src/unit/b; printf new > src/unit/b");
        assert_int_equal(delete_unit(), 0);
        assert_int_equal(fixture.tally.n_deleted, 3);
        assert_text("src/unit/b", "new"); /* another file under that name */
}

static void a_reused_name_or_a_symlink_is_not_touched(void **state) {
        make_unit();
        in_scratch(fixture.scratch,
                   "mv src/unit/a . && printf 'content of a' > src/unit/a && "
                   "mv src/unit/sub elsewhere && ln -s ../../elsewhere src/unit/sub");
        assert_int_equal(delete_unit(), 0);
        assert_text("src/unit/a", "content of a");
        assert_text("a", "content of a");
        assert_text("elsewhere/c", "content of sub/c");
        assert_text("elsewhere/dir/d", "content of sub/dir/d");
        assert_int_equal(fixture.tally.n_deleted, 1);
        assert_int_equal(fixture.tally.n_gone, 3);
}

static void what_comes_between_check_and_deletion_is_put_back(void **state) {
        make_unit();
        meddler.before = "rm src/unit/a && printf stranger > src/unit/a";
        assert_int_equal(delete_unit(), 0);
        assert_text("src/unit/a", "stranger");
        assert_int_equal(fixture.tally.n_changed, 1);
        assert_int_equal(fixture.tally.n_deleted, 3);
        assert_int_equal(fixture.tally.n_kept, 0);
}

static void a_directory_that_comes_in_between_is_put_back_too(void **state) {
        make_unit();
        meddler.before = "rm src/unit/a && mkdir src/unit/a && printf x > src/unit/a/x";
        assert_int_equal(delete_unit(), 0);
        assert_text("src/unit/a/x", "x");
}

static void where_the_name_is_reused_it_is_kept_beside_it(void **state) {
        make_unit();
        meddler.before = "rm src/unit/a && printf stranger > src/unit/a";
        meddler.after = "printf 'second stranger' > src/unit/a";
        assert_int_equal(delete_unit(), 0);
        assert_text("src/unit/a", "second stranger");
        assert_text("src/unit/a.kept-by-neuron-collectd", "stranger");
        assert_int_equal(fixture.tally.n_kept, 1);
}

static void where_its_directory_is_removed_it_is_kept_in_the_parent(void **state) {
        make_unit();
        meddler.before = "rm src/unit/a && printf stranger > src/unit/a";
        meddler.after = "mv src/unit gone && rm -rf gone";
        assert_int_equal(delete_unit(), 0);
        assert_text("src/a.kept-by-neuron-collectd", "stranger");
}

static void without_rename_noreplace_links_do(void **state) {
        make_unit();
        meddler.no_replace_unknown = true;
        assert_int_equal(delete_unit(), 0);
        assert_all_removed();
}

static void what_is_open_for_writing_stays_with_its_link(void **state) {
        make_unit();
        int fd = openat(fixture.scratch->fd, "src/unit/sub/c", O_WRONLY | O_CLOEXEC);
        assert_true(fd >= 0);
        assert_int_equal(delete_unit(), LINK_DELETION_E_OPEN);
        assert_text("src/unit/sub/c", "content of sub/c");
        assert_true(is_there(LINKS "/" BUNDLE "/sub/c"));
        assert_false(is_there("src/unit/a"));
        assert_false(is_there(LINKS "/" BUNDLE "/a"));
        (void)close(fd);
        assert_int_equal(delete_unit(), 0);
        assert_all_removed();
        assert_int_equal(fixture.tally.n_deleted, 4);
}

static void only_the_units_own_directory_goes(void **state) {
        static const char *const core[] = { "core.1" };
        static const char *const loose[] = { "log" };
        in_scratch(fixture.scratch,
                   "mkdir -p src/deep && printf x > src/deep/core.1 && printf x > src/deep/log");
        pin_as_shipped(BUNDLE, "src/deep", core, 1);
        fixture.request.relative = "deep/core.1";
        fixture.request.is_file = true;
        assert_int_equal(delete_unit(), 0);
        assert_false(is_there("src/deep/core.1"));
        pin_as_shipped(BUNDLE, "src/deep", loose, 1);
        fixture.request.relative = "deep";
        fixture.request.is_file = false;
        fixture.request.leaves_directory = true;
        assert_int_equal(delete_unit(), 0);
        assert_false(is_there("src/deep/log"));
        assert_true(is_there("src/deep"));
        in_scratch(fixture.scratch, "printf x > src/log");
        pin_as_shipped(BUNDLE, "src", loose, 1);
        fixture.request.relative = "";
        fixture.request.leaves_directory = false;
        in_scratch(fixture.scratch, "rmdir src/deep");
        assert_int_equal(delete_unit(), 0);
        assert_false(is_there("src/log"));
        assert_true(is_there("src"));
}

static void without_links_nothing_is_deleted(void **state) {
        make_unit();
        assert_int_equal(links_release(fixture.link_dirs, BUNDLE), 0);
        assert_int_equal(delete_unit(), -ENOENT);
        assert_text("src/unit/a", "content of a");
}

static void where_names_may_not_be_moved_the_failure_is_returned_and_all_stays(void **state) {
        make_unit();
        if (geteuid() == 0) {
                if (system("command -v chattr > /dev/null") != 0)
                        SKIP_BECAUSE("no chattr");
                char text[PATH_MAX + 64];
                (void)snprintf(text, sizeof text, "chattr +i '%s/src/unit' 2>/dev/null",
                               fixture.scratch->path);
                if (system(text) != 0)
                        SKIP_BECAUSE("no immutable directories here");
        } else
                in_scratch(fixture.scratch, "chmod 500 src/unit");
        int r = delete_unit();
        in_scratch(fixture.scratch, "chattr -i src/unit 2>/dev/null; chmod 700 src/unit");
        assert_true(r == -EPERM || r == -EACCES);
        assert_text("src/unit/a", "content of a");
        assert_true(is_there(LINKS "/" BUNDLE "/a"));
        assert_false(is_there(LINKS "/.taken-" BUNDLE));
        assert_int_equal(delete_unit(), 0);
        assert_all_removed();
}

/* Runs it in a child that ends before the n-th call that changes a name. @return whether it came so
 * far */
static bool cut_at(unsigned n) {
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
                meddler.crash_at = n;
                meddler.n_calls = meddler.n_renames = 0;
                (void)delete_unit();
                _exit(0);
        }
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        return WEXITSTATUS(status) == 7;
}

static void wherever_it_is_cut_the_next_run_does_the_rest(void **state) {
        unsigned n = 1;
        for (;; n++) {
                make_unit();
                bool cut = cut_at(n);
                assert_true(is_there("src"));
                assert_int_equal(delete_unit(), 0);
                assert_all_removed();
                if (!cut)
                        break;
        }
        assert_true(n > 12); /* four members are four names taken, four unlinked, four links */
}

static void wherever_it_is_cut_what_came_in_between_is_not_lost(void **state) {
        for (unsigned n = 1;; n++) {
                make_unit();
                meddler.before = "rm src/unit/a && printf stranger > src/unit/a";
                bool cut = cut_at(n);
                meddler.before = NULL;
                int r = delete_unit();
                assert_true(r == 0 || r == -ENOENT); /* all but the stranger was done already */
                in_scratch(fixture.scratch,
                           "test \"$(find src -type f -exec cat {} +)\" = stranger");
                in_scratch(fixture.scratch, "test -z \"$(ls -A " LINKS ")\"; rm -rf src/*");
                if (!cut)
                        break;
        }
}

static void releasing_links_keeps_the_files_and_puts_back_what_was_moved(void **state) {
        make_unit();
        assert_true(cut_at(2)); /* one name has been taken, and not judged */
        assert_true(is_there(LINKS "/.taken-" BUNDLE));
        assert_int_equal(release_links(), 0);
        in_scratch(fixture.scratch, "test -z \"$(ls -A " LINKS ")\"");
        for (size_t i = 0; i < ELEMENTSOF(members); i++) {
                char path[64], text[64];
                (void)snprintf(path, sizeof path, "src/unit/%s", members[i]);
                (void)snprintf(text, sizeof text, "content of %s", members[i]);
                assert_text(path, text);
        }
        assert_int_equal(release_links(), 0);
}

static LinkUsage measure(const char *bundle) {
        LinkUsage use = { .bundle_id = bundle };
        LinkMeasure m = { &use, 1, true, true, 1000 };
        assert_int_equal(link_usage_measure(fixture.link_dirs, &m), 0);
        return use;
}

static void a_measure_has_what_would_be_free_and_who_has_names(void **state) {
        make_unit();
        LinkUsage use = measure(BUNDLE);
        assert_true(use.is_there && !use.is_only_ours && !use.has_writer);
        assert_int_equal(use.used_inodes, 4);
        assert_int_equal(use.free_inodes, 4);
        assert_int_equal(use.used_bytes, 4 * stat_of("src/unit/a").st_blocks * 512);
        in_scratch(fixture.scratch, "ln src/unit/a users-link");
        use = measure(BUNDLE);
        assert_int_equal(use.used_inodes, 4);
        assert_int_equal(use.free_inodes, 3); /* that one would be there still */
        int fd = openat(fixture.scratch->fd, "src/unit/b", O_WRONLY | O_CLOEXEC);
        assert_true(fd >= 0 && measure(BUNDLE).has_writer);
        (void)close(fd);
        in_scratch(fixture.scratch, "rm -r src/unit");
        assert_false(measure(BUNDLE).is_only_ours);
        in_scratch(fixture.scratch, "rm users-link");
        assert_true(measure(BUNDLE).is_only_ours);
        in_scratch(fixture.scratch, "mkdir -m 700 " LINKS "/" OTHER " && ln " LINKS "/" BUNDLE
                                    "/a " LINKS "/" OTHER "/a");
        assert_true(measure(BUNDLE).is_only_ours); /* the other link is ours, too */
        assert_false(measure("directory-20260527T052135-000000000000").is_there);
}

static void the_space_is_that_of_the_source_or_of_its_parent(void **state) {
        RetentionSpace before, after;
        dev_t before_dev, after_dev;
        assert_int_equal(link_usage_query_space(fixture.link_dirs, &before, &before_dev), 0);
        in_scratch(fixture.scratch, "mkdir src");
        assert_int_equal(link_usage_query_space(fixture.link_dirs, &after, &after_dev), 0);
        assert_true(before_dev == after_dev && before.total_bytes == after.total_bytes);
        assert_true(after.total_bytes > 0 && after.free_bytes <= after.total_bytes);
}

int main(void) {
        const struct CMUnitTest tests[] = {
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
                TEST(what_was_shipped_goes_with_its_directories_and_links),
                TEST(what_has_changed_or_is_the_users_stays),
                TEST(the_last_links_to_what_was_not_shipped_stay_until_it_was),
                TEST(what_is_not_mounted_has_not_ended),
                TEST(only_one_deletes_at_a_time),
                TEST(of_an_evicted_bundle_whatever_is_linked_is_deleted),
                TEST(a_reused_name_or_a_symlink_is_not_touched),
                TEST(what_comes_between_check_and_deletion_is_put_back),
                TEST(a_directory_that_comes_in_between_is_put_back_too),
                TEST(where_the_name_is_reused_it_is_kept_beside_it),
                TEST(where_its_directory_is_removed_it_is_kept_in_the_parent),
                TEST(without_rename_noreplace_links_do),
                TEST(what_is_open_for_writing_stays_with_its_link),
                TEST(only_the_units_own_directory_goes),
                TEST(without_links_nothing_is_deleted),
                TEST(where_names_may_not_be_moved_the_failure_is_returned_and_all_stays),
                TEST(wherever_it_is_cut_the_next_run_does_the_rest),
                TEST(wherever_it_is_cut_what_came_in_between_is_not_lost),
                TEST(releasing_links_keeps_the_files_and_puts_back_what_was_moved),
                TEST(a_measure_has_what_would_be_free_and_who_has_names),
                TEST(the_space_is_that_of_the_source_or_of_its_parent),
        };
        return cmocka_run_group_tests_name("link_deletion_run", tests, NULL, NULL);
}
