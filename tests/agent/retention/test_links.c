/* Links are made, found, kept when the source is removed, refused where they must be, and never
 * made to another file. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <sys/fsuid.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "tests/harness/unit.h"

#include "agent/retention/link_list.h"
#include "agent/retention/links.h"
#include "lib/base/cleanup.h"
#include "tests/agent/retention/link_one.h"
#include "tests/harness/mounts.h"
#include "tests/harness/skip.h"
#include "tests/lib/base/scratch.h"

#define BUNDLE "directory-20260527T052135-0123456789ab"
#define NOBODY 65534

DEFINE_CLEANUP(LinkDirs, link_dirs_free);

/* `<scratch>/src` is the fixed part, `src/unit` the unit with the members a and sub/dir/b. */
static int unit_setup(void **state) {
        if (scratch_setup(state) < 0)
                return -1;
        const Scratch *s = *state;
        if (mkdirat(s->fd, "src", 0777) < 0 || mkdirat(s->fd, "src/unit", 0777) < 0 ||
            mkdirat(s->fd, "src/unit/sub", 0777) < 0 ||
            mkdirat(s->fd, "src/unit/sub/dir", 0777) < 0)
                return -1;
        return scratch_write(s, "src/unit/a", "content of a") < 0 ||
               scratch_write(s, "src/unit/sub/dir/b", "content of b") < 0;
}

static LinkDirs *link_dirs_at(const Scratch *s, const char *fixed) {
        char path[PATH_MAX + 256];
        LinkDirs *p = NULL;
        (void)snprintf(path, sizeof path, "%s/%s", s->path, fixed);
        assert_int_equal(link_dirs_new(&p, path, "i-0123456789abcdef0"), 0);
        return p;
}

static struct stat stat_of(const Scratch *s, const char *path) {
        struct stat st;
        if (fstatat(s->fd, path, &st, AT_SYMLINK_NOFOLLOW) < 0)
                fail_msg("%s is not there", path);
        return st;
}

static bool is_there(const Scratch *s, const char *path) {
        struct stat st;
        return fstatat(s->fd, path, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

/* LinkDirs `<unit>/<member>`. @param ret_error  freed and replaced */
static int link_member(const Scratch *s, LinkDirs *p, const char *member, char **ret_error) {
        char path[PATH_MAX];
        struct stat st;
        _cleanup_close_ int unit_fd = openat(s->fd, "src/unit", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

        assert_true(unit_fd >= 0);
        (void)snprintf(path, sizeof path, "src/unit/%s", member);
        st = stat_of(s, path);
        free(*ret_error);
        *ret_error = NULL;
        return link_one(p, BUNDLE, &(LinkMember){ member, unit_fd, member, &st }, ret_error);
}

static void in_scratch(const Scratch *s, const char *command) {
        char text[PATH_MAX + 1024];
        (void)snprintf(text, sizeof text, "cd '%s' && { %s; }", s->path, command);
        assert_int_equal(system(text), 0);
}

/* What is left when opening the directory failed, or a kill came, right after it was made. */
static void links_in_one_place_are_found_beside_an_empty_directory_in_the_other(void **state) {
        const Scratch *s = *state;
        _cleanup_(link_dirs_freep) LinkDirs *p = link_dirs_at(s, "src");
        _cleanup_free_ char *error = NULL;
        assert_int_equal(link_member(s, p, "a", &error), 0);
        in_scratch(s, "cp -al .neuron-collectd src/.neuron-collectd && rm .neuron-collectd/*/*/a");
        _cleanup_close_ int fd = links_open(p, BUNDLE);
        assert_true(fd >= 0);
        assert_int_equal(faccessat(fd, "a", R_OK, AT_SYMLINK_NOFOLLOW), 0);
        in_scratch(s, "rm src/.neuron-collectd/*/*/a");
        assert_int_equal(links_open(p, BUNDLE), -ENOENT);
}

static void a_member_is_linked_beside_the_source(void **state) {
        const Scratch *s = *state;
        _cleanup_(link_dirs_freep) LinkDirs *p = link_dirs_at(s, "src");
        _cleanup_free_ char *error = NULL;
        struct stat a = stat_of(s, "src/unit/a"), b = stat_of(s, "src/unit/sub/dir/b");

        assert_false(is_there(s, ".neuron-collectd")); /* nothing is created before it is needed */
        assert_false(is_linked(p, BUNDLE, "a", &a));
        assert_int_equal(links_open(p, BUNDLE), -ENOENT);
        assert_int_equal(link_member(s, p, "a", &error), 0);
        assert_int_equal(link_member(s, p, "sub/dir/b", &error), 0);
        assert_int_equal(link_member(s, p, "a", &error), 0); /* again: no harm */
        assert_null(error);
        in_scratch(s, "test src/unit/a -ef .neuron-collectd/i-0123456789abcdef0/" BUNDLE "/a");
        in_scratch(s, "test src/unit/sub/dir/b -ef .neuron-collectd/i-0123456789abcdef0/" BUNDLE
                      "/sub/dir/b");
        in_scratch(s, "test $(stat -c %h src/unit/a) = 2");
        in_scratch(s, "test $(find .neuron-collectd -type d -perm 700 | wc -l) = 5 -a $(find "
                      ".neuron-collectd -type d | wc -l) = 5");
        assert_true(is_linked(p, BUNDLE, "a", &a));
        assert_true(is_linked(p, BUNDLE, "sub/dir/b", &b));
        assert_false(is_linked(p, BUNDLE, "a", &b));
        assert_false(is_linked(p, "directory-20260527T052135-000000000000", "a", &a));
        assert_false(is_linked(p, BUNDLE, "../" BUNDLE "/a", &a));
}

static void links_outlive_their_source(void **state) {
        const Scratch *s = *state;
        _cleanup_(link_dirs_freep) LinkDirs *p = link_dirs_at(s, "src");
        _cleanup_free_ char *error = NULL;
        char text[32] = "";

        assert_int_equal(link_member(s, p, "a", &error), 0);
        assert_int_equal(link_member(s, p, "sub/dir/b", &error), 0);
        in_scratch(s, "rm -rf src");
        _cleanup_close_ int dir_fd = links_open(p, BUNDLE);
        assert_true(dir_fd >= 0);
        _cleanup_close_ int fd = openat(dir_fd, "sub/dir/b", O_RDONLY | O_CLOEXEC);
        assert_true(fd >= 0);
        assert_int_equal(read(fd, text, sizeof text), 12);
        assert_string_equal(text, "content of b");
        assert_int_equal(links_release(p, BUNDLE), 0);
        assert_int_equal(links_open(p, BUNDLE), -ENOENT);
        assert_int_equal(links_release(p, BUNDLE), 0); /* missing is fine */
        in_scratch(s, "test -z \"$(find .neuron-collectd -type f)\"");
}

static void a_link_of_an_older_inode_is_replaced(void **state) {
        const Scratch *s = *state;
        _cleanup_(link_dirs_freep) LinkDirs *p = link_dirs_at(s, "src");
        _cleanup_free_ char *error = NULL;
        struct stat old = stat_of(s, "src/unit/a");

        assert_int_equal(link_member(s, p, "a", &error), 0);
        in_scratch(s, "echo new > src/unit/x; mv src/unit/x src/unit/a");
        struct stat new = stat_of(s, "src/unit/a");
        assert_false(is_linked(p, BUNDLE, "a", &new));
        assert_int_equal(link_member(s, p, "a", &error), 0);
        assert_true(is_linked(p, BUNDLE, "a", &new));
        assert_false(is_linked(p, BUNDLE, "a", &old));

        /* What was a file becomes a directory, and back. */
        in_scratch(s, "rm src/unit/a; mkdir src/unit/a; echo deep > src/unit/a/c");
        assert_int_equal(link_member(s, p, "a/c", &error), 0);
        in_scratch(s, "rm -r src/unit/a; echo flat > src/unit/a");
        assert_int_equal(link_member(s, p, "a", &error), 0);
        in_scratch(s, "test $(cat .neuron-collectd/*/" BUNDLE
                      "/a) = flat; test $(find .neuron-collectd -type f | wc -l) = 1");
}

static void a_member_that_is_not_the_one_checked_is_not_linked(void **state) {
        const Scratch *s = *state;
        _cleanup_(link_dirs_freep) LinkDirs *p = link_dirs_at(s, "src");
        _cleanup_free_ char *error = NULL;
        _cleanup_close_ int unit_fd = openat(s->fd, "src/unit", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        static const char *const swaps[] = {
                "rm src/unit/a",
                "echo other > src/unit/x; mv src/unit/x src/unit/a",
                "ln -sf /etc/shadow src/unit/a",
                "rm src/unit/a; mkfifo src/unit/a",
                "rm src/unit/a; mkdir src/unit/a",
        };

        for (size_t i = 0; i < ELEMENTSOF(swaps); i++) {
                struct stat st = stat_of(s, "src/unit/a");
                in_scratch(s, swaps[i]);
                assert_int_equal(
                        link_one(p, BUNDLE, &(LinkMember){ "a", unit_fd, "a", &st }, &error),
                        -ENOENT);
                assert_null(error);
                in_scratch(s, "rm -rf src/unit/a; echo again > src/unit/a; test -z \"$(find . "
                              "-path '*neuron-collectd*' -type f)\"");
        }
        /* A symlink on the way there. */
        struct stat b = stat_of(s, "src/unit/sub/dir/b");
        in_scratch(s, "mv src/unit/sub src/unit/real; ln -s real src/unit/sub");
        assert_int_equal(
                link_one(p, BUNDLE, &(LinkMember){ "sub/dir/b", unit_fd, "sub/dir/b", &b }, &error),
                -ENOENT);
}

static void a_path_that_is_none_below_is_refused(void **state) {
        static const char *const paths[] = { "",       "/a",   "../a", "sub/../../a",
                                             "sub//b", "sub/", ".",    "./a" };
        const Scratch *s = *state;
        _cleanup_(link_dirs_freep) LinkDirs *p = link_dirs_at(s, "src");
        _cleanup_free_ char *error = NULL;
        _cleanup_close_ int unit_fd = openat(s->fd, "src/unit", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        struct stat st = stat_of(s, "src/unit/a");
        LinkDirs *none = NULL;

        for (size_t i = 0; i < ELEMENTSOF(paths); i++)
                assert_int_equal(
                        link_one(p, BUNDLE, &(LinkMember){ paths[i], unit_fd, "a", &st }, &error),
                        -EINVAL);
        assert_int_equal(link_one(p, "..", &(LinkMember){ "a", unit_fd, "a", &st }, &error),
                         -EINVAL);
        assert_int_equal(link_one(p, "x/y", &(LinkMember){ "a", unit_fd, "a", &st }, &error),
                         -EINVAL);
        assert_int_equal(links_release(p, ".."), -EINVAL);
        assert_int_equal(link_dirs_new(&none, "relative", "i-0"), -EINVAL);
        assert_int_equal(link_dirs_new(&none, "/x", "../i-0"), -EINVAL);
        in_scratch(s, "test -f src/unit/a");
}

static void names_may_be_long_deep_and_of_any_bytes(void **state) {
        const Scratch *s = *state;
        _cleanup_(link_dirs_freep) LinkDirs *p = link_dirs_at(s, "src");
        _cleanup_free_ char *error = NULL;
        char longest[256], deep[256] = "";

        memset(longest, 'n', 255);
        longest[255] = '\0';
        longest[0] = '\xff';
        longest[1] = '\n';
        longest[2] = '\\';
        _cleanup_close_ int unit_fd = openat(s->fd, "src/unit", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        _cleanup_close_ int file_fd =
                openat(unit_fd, longest, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        assert_true(file_fd >= 0);
        assert_int_equal(link_member(s, p, longest, &error), 0);

        for (unsigned depth = 1; depth < 66; depth++) { /* d/d/…/f with `depth` components */
                struct stat st;
                (void)snprintf(deep + 2 * (depth - 1), 4, "f");
                _cleanup_close_ int fd =
                        openat(unit_fd, deep, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
                assert_true(fd >= 0 && fstat(fd, &st) == 0);
                int r = link_one(p, BUNDLE, &(LinkMember){ deep, unit_fd, deep, &st }, &error);
                assert_int_equal(r, depth <= 64 ? 0 : -ENAMETOOLONG);
                (void)snprintf(deep + 2 * (depth - 1), 4, "d/");
                assert_int_equal(mkdirat(unit_fd, deep, 0700), 0);
        }
        assert_int_equal(links_release(p, BUNDLE), 0);
        in_scratch(s, "test -z \"$(find .neuron-collectd -type f)\"");
}

/* Squatters */

static void a_squatters_thing_is_not_used(void **state) {
        static const char *const squats[] = {
                "mkdir $S && chown 65534 $S",
                "mkdir -p elsewhere; ln -s ../elsewhere $S",
                "mkdir -p elsewhere; ln -s elsewhere $S",
                "touch $S",
                "mkfifo $S",
        };
        const Scratch *s = *state;

        if (geteuid() != 0)
                SKIP_BECAUSE("only root may give files away");
        for (size_t i = 0; i < ELEMENTSOF(squats); i++) {
                _cleanup_(link_dirs_freep) LinkDirs *p = link_dirs_at(s, "src");
                _cleanup_free_ char *error = NULL;
                char command[256];

                /* Beside: then the place inside the source serves. */
                (void)snprintf(command, sizeof command, "S=.neuron-collectd; %s", squats[i]);
                in_scratch(s, command);
                assert_int_equal(link_member(s, p, "a", &error), 0);
                in_scratch(s, "test src/unit/a -ef src/.neuron-collectd/*/" BUNDLE "/a");
                struct stat a = stat_of(s, "src/unit/a");
                assert_true(is_linked(p, BUNDLE, "a", &a));
                assert_int_equal(links_release(p, BUNDLE), 0);

                /* In both: refused, and said. */
                (void)snprintf(command, sizeof command, "S=src/.neuron-collectd; %s", squats[i]);
                in_scratch(s, "rm -r src/.neuron-collectd");
                in_scratch(s, command);
                assert_int_equal(link_member(s, p, "a", &error), LINK_SESSION_E_REFUSED);
                assert_non_null(strstr(error, ".neuron-collectd' is a"));
                assert_non_null(strstr(error, i == 0 ? "of uid 65534" : "of uid 0"));
                assert_non_null(strstr(error, "remove it"));
                assert_false(is_linked(p, BUNDLE, "a", &a));
                assert_int_equal(links_open(p, BUNDLE), -ENOENT);
                assert_int_equal(links_release(p, BUNDLE), 0);
                assert_int_equal(links_list(p, NULL, NULL), 0); /* there is nothing to tell of */
                in_scratch(s, "test $(stat -c %h src/unit/a) = 1; rm -rf .neuron-collectd "
                              "src/.neuron-collectd elsewhere src/elsewhere");
        }
}

static void a_directory_of_ours_that_is_open_to_others_is_closed(void **state) {
        const Scratch *s = *state;
        _cleanup_(link_dirs_freep) LinkDirs *p = link_dirs_at(s, "src");
        _cleanup_free_ char *error = NULL;

        in_scratch(s, "mkdir -m 777 .neuron-collectd .neuron-collectd/i-0123456789abcdef0");
        assert_int_equal(link_member(s, p, "a", &error), 0);
        in_scratch(s, "test $(stat -c %a .neuron-collectd) = 700 -a $(stat -c %a "
                      ".neuron-collectd/i-*) = 700");
}

/* As another user, without capabilities. @return what the child's work said */
static int as_nobody(int (*work)(const Scratch *s), const Scratch *s) {
        int status;
        pid_t child = fork();
        if (child == 0) {
                if (setresgid(NOBODY, NOBODY, NOBODY) < 0 || setresuid(NOBODY, NOBODY, NOBODY) < 0)
                        _exit(99);
                _exit(work(s));
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        return WEXITSTATUS(status);
}

/* 0 linked, 1 refused with a fitting sentence, 2 else. No assertions: cmocka cannot report from
 * here. */
static int pin_here(const Scratch *s, const char *member, const char *sentence_has) {
        char fixed[PATH_MAX + 8], unit[PATH_MAX + 16];
        _cleanup_free_ char *error = NULL;
        _cleanup_(link_dirs_freep) LinkDirs *p = NULL;
        struct stat st;

        (void)snprintf(fixed, sizeof fixed, "%s/src", s->path);
        (void)snprintf(unit, sizeof unit, "%s/unit", fixed);
        _cleanup_close_ int unit_fd = open(unit, O_RDONLY | O_DIRECTORY);
        if (unit_fd < 0 || link_dirs_new(&p, fixed, "i-0123456789abcdef0") < 0 ||
            fstatat(unit_fd, member, &st, 0) < 0)
                return 2;
        int r = link_one(p, BUNDLE, &(LinkMember){ member, unit_fd, member, &st }, &error);
        if (r == 0)
                return is_linked(p, BUNDLE, member, &st) && links_release(p, BUNDLE) == 0 ? 0 : 2;
        return r == LINK_SESSION_E_REFUSED && error && strstr(error, sentence_has) ? 1 : 2;
}

static int pin_own(const Scratch *s) {
        return pin_here(s, "own", "");
}

static int pin_a(const Scratch *s) {
        return pin_here(s, "a", "CAP_FOWNER");
}

static int pin_unwritable(const Scratch *s) {
        return pin_here(s, "own", "cannot be written");
}

static void without_capabilities_own_files_are_linked_and_others_refused(void **state) {
        const Scratch *s = *state;
        char protected[8] = "";

        if (geteuid() != 0)
                SKIP_BECAUSE("only root may give files away");
        in_scratch(s, "chmod 777 . && echo x > src/unit/own && chown 65534 src/unit/own && chmod "
                      "600 src/unit/a src/unit/own");
        assert_int_equal(as_nobody(pin_own, s), 0);
        in_scratch(s, "test $(stat -c %u .neuron-collectd) = 65534; rm -r .neuron-collectd");

        int fd = open("/proc/sys/fs/protected_hardlinks", O_RDONLY | O_CLOEXEC);
        bool is_protected = fd >= 0 && read(fd, protected, 1) == 1 && protected[0] == '1';
        (void)close(fd);
        if (is_protected)
                assert_int_equal(as_nobody(pin_a, s), 1);

        /* Beside cannot be written: inside. Neither can: refused. */
        in_scratch(s, "rm -rf .neuron-collectd; chmod 755 .; chmod 777 src");
        assert_int_equal(as_nobody(pin_own, s), 0);
        in_scratch(s, "test -d src/.neuron-collectd; rm -rf src/.neuron-collectd; chmod 755 src");
        assert_int_equal(as_nobody(pin_unwritable, s), 1);
}

/* Mounts */

static void another_mount_beside_means_inside(void **state) {
        static const struct {
                const char *source, *type;
                unsigned long flags;
        } mounts[] = { { "tmpfs", "tmpfs", 0 }, { "other", "none", MS_BIND } };
        const Scratch *s = *state;

        if (!mounts_allowed())
                SKIP_BECAUSE("only root may mount");
        for (size_t i = 0; i < ELEMENTSOF(mounts); i++) {
                _cleanup_(link_dirs_freep) LinkDirs *p = link_dirs_at(s, "src");
                _cleanup_free_ char *error = NULL;
                char source[PATH_MAX + 16], target[PATH_MAX + 16];

                (void)mkdirat(s->fd, "other", 0755);
                (void)snprintf(source, sizeof source, "%s/%s", s->path, mounts[i].source);
                (void)snprintf(target, sizeof target, "%s/src", s->path);
                assert_int_equal(mount(source, target, mounts[i].type, mounts[i].flags, NULL), 0);
                in_scratch(s, "mkdir src/unit; echo x > src/unit/a");
                assert_int_equal(link_member(s, p, "a", &error), 0);
                in_scratch(s, "test src/unit/a -ef src/.neuron-collectd/*/" BUNDLE
                              "/a; test ! -e .neuron-collectd");
                in_scratch(s, "rm -r src/unit");
                struct stat gone = { 0 };
                assert_false(is_linked(p, BUNDLE, "a", &gone));
                _cleanup_close_ int fd = links_open(p, BUNDLE);
                assert_true(fd >= 0);
                assert_int_equal(umount2(target, MNT_DETACH), 0);
        }
}

static void a_unit_on_a_mount_of_its_own_is_refused(void **state) {
        const Scratch *s = *state;
        _cleanup_(link_dirs_freep) LinkDirs *p = link_dirs_at(s, "src");
        _cleanup_free_ char *error = NULL;
        char target[PATH_MAX + 16];

        if (!mounts_allowed())
                SKIP_BECAUSE("only root may mount");
        (void)snprintf(target, sizeof target, "%s/src/unit", s->path);
        assert_int_equal(mount(target, target, "none", MS_BIND, NULL),
                         0); /* same device, another mount */
        assert_int_equal(link_member(s, p, "a", &error), LINK_SESSION_E_REFUSED);
        assert_non_null(strstr(error, "is another mount"));
        assert_false(is_there(s, ".neuron-collectd") ||
                     is_there(s, "src/.neuron-collectd")); /* no litter */
        assert_int_equal(umount2(target, MNT_DETACH), 0);
        assert_int_equal(link_member(s, p, "a", &error), 0);
}

static void a_file_system_without_links_is_refused(void **state) {
        static const char *const rules[] = { "link EPERM", "link EOPNOTSUPP", "link EMLINK",
                                             "link ENOSPC", "mkdir EROFS" };
        static const char *const says[] = { "hard links", "does not accept hard links",
                                            "as many links", "no free space", "cannot be written" };
        const Scratch *s = *state;
        FaultFs f;

        if (!faultfs_start(&f, s->path)) {
                faultfs_stop(&f);
                SKIP_BECAUSE("no /dev/fuse, no libfuse3-dev, or not root");
        }
        in_scratch(s, "mv src mount/");
        _cleanup_(link_dirs_freep) LinkDirs *p = link_dirs_at(s, "mount/src");
        _cleanup_close_ int unit_fd =
                openat(s->fd, "mount/src/unit", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        struct stat st = stat_of(s, "mount/src/unit/a");
        for (size_t i = 0; i < ELEMENTSOF(rules); i++) {
                _cleanup_free_ char *error = NULL;
                assert_true(faultfs_rule(&f, rules[i]));
                assert_int_equal(
                        link_one(p, BUNDLE, &(LinkMember){ "a", unit_fd, "a", &st }, &error),
                        LINK_SESSION_E_REFUSED);
                if (!strstr(error, says[i]))
                        fail_msg("%s: %s", rules[i], error);
                assert_true(faultfs_rule(&f, "clear"));
                in_scratch(s, "rm -rf mount/.neuron-collectd mount/src/.neuron-collectd");
        }
        _cleanup_free_ char *none = NULL;
        assert_int_equal(link_one(p, BUNDLE, &(LinkMember){ "a", unit_fd, "a", &st }, &none), 0);
        faultfs_stop(&f);
}

/* Listing */

static int note_id(const char *bundle_id, const char *path, void *userdata) {
        char *all = userdata;
        struct stat st;
        assert_int_equal(lstat(path, &st), 0);
        assert_true(strlen(all) + strlen(bundle_id) + 2 < 256);
        strcat(strcat(all, bundle_id), " ");
        return 0;
}

static void a_list_names_all_that_is_there_and_removes_nothing(void **state) {
        const Scratch *s = *state;
        _cleanup_(link_dirs_freep) LinkDirs *p = link_dirs_at(s, "src");
        _cleanup_free_ char *error = NULL;
        char all[256] = "";

        assert_int_equal(links_list(p, note_id, all), 0);
        assert_string_equal(all, "");
        assert_int_equal(link_member(s, p, "a", &error), 0);
        in_scratch(s, "cd .neuron-collectd/i-*; mkdir -p old/sub; ln ../../src/unit/a old/sub/x; "
                      "ln ../../src/unit/a .new-old; touch stray");
        in_scratch(s, "mkdir -p .neuron-collectd/i-other/" BUNDLE
                      "2"); /* another node's, on a shared file system */
        in_scratch(s, "mkdir -m 700 -p src/.neuron-collectd/i-0123456789abcdef0/older");
        assert_int_equal(links_list(p, note_id, all), 0);
        static const char *const ids[] = { BUNDLE " ", "old ", "stray ", "older " };
        size_t n = strlen("old "); /* named twice: the directory and what was on its way into it */
        for (size_t i = 0; i < ELEMENTSOF(ids); i++) {
                assert_non_null(strstr(all, ids[i]));
                n += strlen(ids[i]);
        }
        assert_int_equal(strlen(all), n);
        in_scratch(s, "test $(stat -c %h src/unit/a) = 4");
        assert_int_equal(links_release(p, "old"), 0);
        in_scratch(s, "test $(stat -c %h src/unit/a) = 2");
}

/* Sessions */

static LinkSession *session_for(LinkDirs *p, const char *bundle_id) {
        LinkSession *session = NULL;
        assert_int_equal(link_session_new(&session, p, bundle_id, 1000), 0);
        return session;
}

static bool lives_on(LinkDirs *p) {
        _cleanup_(link_session_freep) LinkSession *session = session_for(p, BUNDLE);
        return link_session_lives_on(session);
}

static void a_renamed_member_keeps_one_link_under_its_new_name(void **state) {
        const Scratch *s = *state;
        _cleanup_(link_dirs_freep) LinkDirs *p = link_dirs_at(s, "src");
        _cleanup_free_ char *error = NULL;
        bool has = true;

        assert_int_equal(link_member(s, p, "a", &error), 0);
        assert_int_equal(link_member(s, p, "sub/dir/b", &error), 0);
        in_scratch(s, "mv src/unit/a src/unit/sub/c; mv src/unit/sub/dir/b src/unit/a");
        _cleanup_close_ int unit_fd = openat(s->fd, "src/unit", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        _cleanup_(link_session_freep) LinkSession *session = session_for(p, BUNDLE);
        static const char *const names[] = { "a", "sub/c" };
        for (size_t i = 0; i < ELEMENTSOF(names); i++) {
                struct stat st;
                assert_int_equal(fstatat(unit_fd, names[i], &st, 0), 0);
                /* The swapped-in file took the other's place, so that one lost its link and has one
                 * link again. */
                if (st.st_nlink > 1)
                        assert_int_equal(link_session_own_links(session, names[i], &st, &has), 1);
                assert_int_equal(link_session_add(session,
                                                  &(LinkMember){ names[i], unit_fd, names[i], &st },
                                                  &error),
                                 0);
        }
        in_scratch(s, "cd .neuron-collectd/i-*/" BUNDLE
                      "; test a -ef ../../../src/unit/a -a sub/c -ef ../../../src/unit/sub/c; "
                      "test $(find . -type f | wc -l) = 2");
        for (size_t i = 0; i < ELEMENTSOF(names); i++) {
                struct stat st;
                assert_int_equal(fstatat(unit_fd, names[i], &st, 0), 0);
                assert_int_equal(link_session_own_links(session, names[i], &st, &has), 1);
                assert_true(has);
        }
}

static void links_of_other_bundles_are_ours_and_a_strangers_are_not(void **state) {
        const Scratch *s = *state;
        _cleanup_(link_dirs_freep) LinkDirs *p = link_dirs_at(s, "src");
        _cleanup_free_ char *error = NULL;
        bool has = true;

        assert_int_equal(link_member(s, p, "a", &error), 0);
        _cleanup_(link_session_freep) LinkSession *other = session_for(p, "other-bundle");
        struct stat a = stat_of(s, "src/unit/a");
        assert_int_equal(a.st_nlink, 2);
        assert_int_equal(link_session_own_links(other, "renamed", &a, &has), 1);
        assert_false(has);
        _cleanup_(link_session_freep) LinkSession *none = session_for(p, "");
        assert_int_equal(link_session_own_links(none, "a", &a, &has), 1);

        in_scratch(s, "ln src/unit/a strangers");
        a = stat_of(s, "src/unit/a");
        assert_int_equal(link_session_own_links(other, "renamed", &a, &has), 1);
        _cleanup_(link_session_freep) LinkSession *own = session_for(p, BUNDLE);
        assert_int_equal(link_session_own_links(own, "a", &a, &has), 1);
        assert_true(has);
}

static void a_bundle_lives_on_only_where_each_inode_has_a_name_that_is_no_link_of_ours(
        void **state) {
        const Scratch *s = *state;
        _cleanup_(link_dirs_freep) LinkDirs *p = link_dirs_at(s, "src");
        _cleanup_free_ char *error = NULL;
        struct stat a = stat_of(s, "src/unit/a"), b = stat_of(s, "src/unit/sub/dir/b");

        assert_false(lives_on(p)); /* it has no links */
        assert_int_equal(link_member(s, p, "a", &error), 0);
        assert_int_equal(link_member(s, p, "sub/dir/b", &error), 0);
        in_scratch(s, "mv src/unit src/other");
        assert_true(lives_on(p));
        _cleanup_(link_session_freep) LinkSession *session = session_for(p, BUNDLE);
        assert_true(link_session_lives_on(session));
        assert_true(link_session_see(session, &a));
        assert_false(link_session_all_seen(session));
        assert_true(link_session_see(session, &b));
        assert_true(link_session_all_seen(session));

        /* Another bundle's link does not count: each would be released for the other's sake. */
        in_scratch(s, "cd .neuron-collectd/i-*; mkdir -m 700 two; ln " BUNDLE "/a two/x; rm "
                      "../../src/other/a");
        assert_false(lives_on(p));
}

static void limit_files(rlim_t n_bytes) {
        struct rlimit limit;
        assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
        limit.rlim_cur = n_bytes;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* As by a full disk. What would be left of the line is another node's directory. */
static void a_truncated_line_of_the_list_is_removed(void **state) {
        const Scratch *s = *state;
        char path[PATH_MAX + 8];
        const char *first = "/a/.neuron-collectd/i-1", *second = "/a/.neuron-collectd/i-12";

        (void)snprintf(path, sizeof path, "%s/list", s->path);
        assert_int_equal(link_list_add(path, first), 0);
        (void)signal(SIGXFSZ, SIG_IGN);
        limit_files(2 * (strlen(first) + 1) + 1);
        int r = link_list_add(path, second);
        limit_files(RLIM_INFINITY);
        assert_int_equal(r, -EFBIG);
        in_scratch(s, "test \"$(cat list)\" = \"$(printf '\\n%s' /a/.neuron-collectd/i-1)\"");
        assert_int_equal(link_list_add(path, second), 0);
        in_scratch(s, "grep -qx /a/.neuron-collectd/i-12 list");
}

static void a_list_that_cannot_be_written_is_logged_once(void **state) {
        const Scratch *s = *state;
        char path[PATH_MAX + 16];
        _cleanup_(link_dirs_freep) LinkDirs *p = link_dirs_at(s, "src");
        _cleanup_free_ char *error = NULL;

        (void)snprintf(path, sizeof path, "%s/none/list", s->path);
        assert_int_equal(link_dirs_set_list(p, path), 0);
        int log_fd = openat(s->fd, "log", O_WRONLY | O_CREAT | O_CLOEXEC, 0600),
            stderr_fd = dup(STDERR_FILENO);
        assert_true(log_fd >= 0 && stderr_fd >= 0 && dup2(log_fd, STDERR_FILENO) >= 0);
        int first = link_member(s, p, "a", &error), second = link_member(s, p, "sub/dir/b", &error);
        assert_true(dup2(stderr_fd, STDERR_FILENO) >= 0);
        (void)close(stderr_fd);
        (void)close(log_fd);
        assert_int_equal(first, 0); /* the evidence is held all the same */
        assert_int_equal(second, 0);
        in_scratch(s, "test $(grep -c 'none/list.*No such file' log) = 1");
        in_scratch(s, "grep -q \"^warning: .*'$PWD/.neuron-collectd/i-0123456789abcdef0'\" log");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, unit_setup, scratch_teardown)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(a_member_is_linked_beside_the_source),
                TEST(links_in_one_place_are_found_beside_an_empty_directory_in_the_other),
                TEST(links_outlive_their_source),
                TEST(a_link_of_an_older_inode_is_replaced),
                TEST(a_member_that_is_not_the_one_checked_is_not_linked),
                TEST(a_path_that_is_none_below_is_refused),
                TEST(names_may_be_long_deep_and_of_any_bytes),
                TEST(a_squatters_thing_is_not_used),
                TEST(a_directory_of_ours_that_is_open_to_others_is_closed),
                TEST(without_capabilities_own_files_are_linked_and_others_refused),
                TEST(another_mount_beside_means_inside),
                TEST(a_unit_on_a_mount_of_its_own_is_refused),
                TEST(a_file_system_without_links_is_refused),
                TEST(a_list_names_all_that_is_there_and_removes_nothing),
                TEST(a_renamed_member_keeps_one_link_under_its_new_name),
                TEST(links_of_other_bundles_are_ours_and_a_strangers_are_not),
                TEST(a_bundle_lives_on_only_where_each_inode_has_a_name_that_is_no_link_of_ours),
                TEST(a_truncated_line_of_the_list_is_removed),
                TEST(a_list_that_cannot_be_written_is_logged_once),
        };
        (void)mounts_allowed(); /* before any directory is opened: descriptors keep the mounts they
                                   were opened in */
        return cmocka_run_group_tests(tests, NULL, NULL);
}
