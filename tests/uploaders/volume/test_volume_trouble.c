/* Delivery among crashes, refusals, full disks and mounts that go away. Faults are made by
 * wrapping single system calls, by real small file systems, and by a FUSE file system that fails
 * as told. */
#include "tests/uploaders/volume/volume_test.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include "tests/harness/mounts.h"
#include "tests/harness/skip.h"

/* The calls by which an object comes to be */

typedef struct Hook {
        unsigned n_calls;
        unsigned die_at;    /* number of a call; 0 = never */
        bool die_after;     /* it was made */
        const char *fail;   /* a call's name, */
        int error;          /* what it says then, */
        unsigned fail_from; /* and from which call of that name on; 1 = the first */
        unsigned n_named;
        const char *race;    /* a command for the moment before the first link or rename */
        bool only_once, lie; /* lie: it is done, and an error is said nevertheless */
        char log[1024];
} Hook;

static Hook hook;

/* @return whether the call is to fail without being made; errno is set */
static bool enter(const char *name) {
        size_t n = strlen(hook.log);
        hook.n_calls++;
        if (hook.race && (strcmp(name, "linkat") == 0 || strncmp(name, "rename", 6) == 0)) {
                assert_int_equal(system(hook.race), 0);
                hook.race = NULL;
        }
        (void)snprintf(hook.log + n, sizeof hook.log - n, "%s ", name);
        if (hook.n_calls == hook.die_at && !hook.die_after)
                (void)raise(SIGKILL);
        if (!hook.fail || hook.lie || strcmp(hook.fail, name) != 0 ||
            ++hook.n_named < hook.fail_from)
                return false;
        if (hook.only_once && hook.n_named > hook.fail_from)
                return false;
        errno = hook.error;
        return true;
}

static int leave(const char *name, int r) {
        if (hook.n_calls == hook.die_at && hook.die_after)
                (void)raise(SIGKILL);
        if (!hook.lie || !hook.fail || strcmp(hook.fail, name) != 0)
                return r;
        errno = hook.error;
        return -1;
}

/* `WRAP(name, (parameters), (arguments))` */
#define WRAP(name, parameters, arguments)                                                          \
        int __real_##name parameters;                                                              \
        int __wrap_##name parameters;                                                              \
        int __wrap_##name parameters {                                                             \
                return enter(#name) ? -1 : leave(#name, __real_##name arguments);                  \
        }

WRAP(mkdirat, (int fd, const char *name, mode_t mode), (fd, name, mode))
WRAP(unlinkat, (int fd, const char *name, int flags), (fd, name, flags))
WRAP(fsync, (int fd), (fd))
WRAP(fdatasync, (int fd), (fd))
WRAP(linkat, (int from, const char *old, int to, const char *new, int flags),
     (from, old, to, new, flags))
WRAP(renameat, (int from, const char *old, int to, const char *new), (from, old, to, new))
WRAP(renameat2, (int from, const char *old, int to, const char *new, unsigned flags),
     (from, old, to, new, flags))

ssize_t __real_pwrite(int fd, const void *data, size_t n, off_t offset);
ssize_t __wrap_pwrite(int fd, const void *data, size_t n, off_t offset);
ssize_t __wrap_pwrite(int fd, const void *data, size_t n, off_t offset) {
        if (enter("pwrite"))
                return -1;
        return leave("pwrite", (int)__real_pwrite(fd, data, n > 100000 ? n / 2 : n,
                                                  offset)); /* often less than was asked for */
}

static int trouble_setup(void **state) {
        hook = (Hook){ 0 };
        return scratch_setup(state);
}

/* Crashes */

/* Delivers in a child that dies. @return whether it did; else *ret_outcome */
static bool deliver_and_die(const Scratch *s, const Content *c, const Hook *death,
                            int *ret_outcome) {
        int status;
        pid_t child = fork();
        if (child == 0) {
                char *error = NULL;
                Volume *v = volume_at(s, "root");
                hook = *death;
                int r = deliver(v, OBJECT, c, &error);
                volume_free(v);
                free(error);
                _exit(r);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        if (WIFSIGNALED(status)) {
                assert_int_equal(WTERMSIG(status), SIGKILL);
                return true;
        }
        *ret_outcome = WEXITSTATUS(status);
        return false;
}

/* Kills at every call there is, before and after it, and continues in a new life. */
static void crash_everywhere(const Scratch *s, const Content *c, Hook death, unsigned min_calls) {
        unsigned n_seen = 0, n_unseen = 0;
        int outcome = -1;

        for (death.die_at = 1;; death.die_at++) {
                in_scratch(s, "rm -rf root");
                if (!deliver_and_die(s, c, &death, &outcome))
                        break;
                struct stat st;
                bool seen = fstatat(s->fd, "root/" OBJECT, &st, AT_SYMLINK_NOFOLLOW) == 0;
                if (seen)
                        assert_file_is(s, "root/" OBJECT, c);
                seen ? n_seen++ : n_unseen++;

                _cleanup_(volume_freep) Volume *v = volume_at(s, "root");
                _cleanup_free_ char *error = NULL;
                hook = death; /* the same file system, in the next life */
                hook.die_at = 0;
                assert_int_equal(deliver(v, OBJECT, c, &error), seen ? UPLOAD_E_SAME : 0);
                hook = (Hook){ 0 };
                assert_file_is(s, "root/" OBJECT, c);
                assert_no_litter(s, "root");
                in_scratch(s, "test $(find root -type f | wc -l) = 1");
        }
        assert_int_equal(outcome, 0);
        assert_true(death.die_at > min_calls);
        assert_true(n_seen > 0 && n_unseen > 10);
}

static void a_crash_anywhere_leaves_nothing_or_everything(void **state) {
        Content c;
        content_init(&c, MIB + 1, 1);
        crash_everywhere(*state, &c, (Hook){ .die_after = false }, 15);
        crash_everywhere(*state, &c, (Hook){ .die_after = true }, 15);
        crash_everywhere(*state, &c, (Hook){ .fail = "linkat", .error = EPERM, .fail_from = 1 },
                         15);
        content_done(&c);
}

static void the_bytes_are_durable_before_the_name_and_the_name_before_the_end(void **state) {
        _cleanup_(volume_freep) Volume *v = volume_at(*state, "root");
        _cleanup_free_ char *error = NULL;
        Content c;

        content_init(&c, 10, 1);
        assert_int_equal(deliver(v, OBJECT, &c, &error), 0);
        /* Each directory and its fsync in its parent; no old temporary file; pieces; then the
         * ending in its order: the last sync makes durable that the object has its name, and that
         * the temporary one is gone. */
        assert_string_equal(hook.log, "fsync mkdirat fsync mkdirat fsync unlinkat pwrite pwrite "
                                      "pwrite fdatasync linkat unlinkat fsync ");
        content_done(&c);
}

/* File systems that refuse */

static void without_links_a_rename_gives_the_name(void **state) {
        static const int refusals[] = { EPERM, EOPNOTSUPP, ENOSYS, EMLINK };
        const Scratch *s = *state;
        Content c, other;

        content_init(&c, MIB + 5, 1);
        content_init(&other, MIB + 5, 2);
        for (size_t i = 0; i < ELEMENTSOF(refusals); i++) {
                _cleanup_(volume_freep) Volume *v = volume_at(s, "root");
                _cleanup_free_ char *error = NULL;
                hook = (Hook){ .fail = "linkat", .error = refusals[i], .fail_from = 1 };
                assert_int_equal(deliver(v, OBJECT, &c, &error), 0);
                assert_non_null(strstr(hook.log, "linkat renameat2 fsync "));
                assert_int_equal(deliver(v, OBJECT, &c, &error), UPLOAD_E_SAME);
                assert_int_equal(deliver(v, OBJECT, &other, &error), UPLOAD_E_EXISTS);
                assert_file_is(s, "root/" OBJECT, &c);
                assert_no_litter(s, "root");
                in_scratch(s, "rm -r root");
        }
        content_done(&c);
        content_done(&other);
}

/* An object that takes the name in the moment between the look and the link. */
static void deliver_into_a_race(const Scratch *s, const Content *c, const char *fail,
                                const char *other, int expected) {
        _cleanup_(volume_freep) Volume *v = volume_at(s, "root");
        _cleanup_free_ char *error = NULL;
        char command[3 * PATH_MAX], compare[64];

        (void)snprintf(command, sizeof command, "cp %s/%s %s/root/" OBJECT, s->path, other,
                       s->path);
        hook = (Hook){ .race = command, .fail = fail, .error = EPERM };
        assert_int_equal(deliver(v, OBJECT, c, &error), expected);
        assert_null(hook.race); /* it was run */
        hook = (Hook){ 0 };
        (void)snprintf(compare, sizeof compare, "cmp %s root/*/*/bundle.tar.zst", other);
        in_scratch(s, compare);
        assert_no_litter(s, "root");
        in_scratch(s, "rm -r root");
}

static void who_comes_second_compares(void **state) {
        const Scratch *s = *state;
        Content c;

        content_init(&c, MIB, 1);
        _cleanup_close_ int fd = openat(s->fd, "same", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        assert_int_equal(write(fd, c.data, c.n), c.n);
        in_scratch(s, "echo different > different");
        for (unsigned i = 0; i < 2; i++) {
                const char *fail = i == 0 ? NULL : "linkat"; /* then RENAME_NOREPLACE says it */
                deliver_into_a_race(s, &c, fail, "same", UPLOAD_E_SAME);
                deliver_into_a_race(s, &c, fail, "different", UPLOAD_E_EXISTS);
        }
        content_done(&c);
}

/* A worker that hung and was given up: another one has made the temporary file again when it wakes
 * up. */
static void only_the_file_that_was_proven_gets_the_name(void **state) {
        static const char *const fails[] = { NULL, "linkat" }; /* then a rename would do it */
        const Scratch *s = *state;
        Content c;

        content_init(&c, MIB, 1);
        for (size_t i = 0; i < ELEMENTSOF(fails); i++) {
                _cleanup_(volume_freep) Volume *v = volume_at(s, "root");
                _cleanup_free_ char *error = NULL;
                char command[3 * PATH_MAX];

                (void)snprintf(command, sizeof command,
                               "cd %s/root && t=$(find . -name '.bundle*') && rm $t && "
                               "echo another worker > $t",
                               s->path);
                hook = (Hook){ .race = command, .fail = fails[i], .error = EPERM, .fail_from = 1 };
                assert_int_equal(deliver(v, OBJECT, &c, &error), UPLOAD_E_UNREACHABLE);
                assert_null(hook.race); /* it was run */
                hook = (Hook){ 0 };
                in_scratch(s, "test ! -e root/" OBJECT);
                in_scratch(s,
                           "grep -rq 'another worker' root"); /* it is the other one's to remove */
                in_scratch(s, "rm -r root");
        }
        content_done(&c);
}

static void a_link_whose_answer_was_lost_counts(void **state) {
        const Scratch *s = *state;
        _cleanup_(volume_freep) Volume *v = volume_at(s, "root");
        _cleanup_free_ char *error = NULL;
        Content c;

        content_init(&c, 1000, 1);
        hook = (Hook){ .fail = "linkat", .error = EEXIST, .lie = true };
        assert_int_equal(deliver(v, OBJECT, &c, &error), 0);
        hook = (Hook){ 0 };
        assert_file_is(s, "root/" OBJECT, &c);
        assert_no_litter(s, "root");
        content_done(&c);
}

typedef struct Refusal {
        const char *call;
        int error, outcome;
        unsigned from;
        const char *says;
} Refusal;

static void every_refusal_is_reported_with_path_and_remedy(void **state) {
        static const Refusal refusals[] = {
                { "mkdirat", ENOSPC, UPLOAD_E_FULL, 1, "free some space" },
                { "mkdirat", EDQUOT, UPLOAD_E_FULL, 2, "raise the quota" },
                { "mkdirat", EROFS, UPLOAD_E_UNREACHABLE, 1, "read-write" },
                { "mkdirat", EACCES, UPLOAD_E_UNREACHABLE, 1, "let uid" },
                { "pwrite", ENOSPC, UPLOAD_E_FULL, 3, "free some space" },
                { "pwrite", EDQUOT, UPLOAD_E_FULL, 1, "raise the quota" },
                { "pwrite", EIO, UPLOAD_E_UNREACHABLE, 2, "kernel log" },
                { "pwrite", ESTALE, UPLOAD_E_UNREACHABLE, 2, "mount it again" },
                { "pwrite", ENOTCONN, UPLOAD_E_UNREACHABLE, 2, "mount it again" },
                { "pwrite", EFBIG, UPLOAD_E_UNREACHABLE, 2, "ulimit -f" },
                { "pwrite", EHOSTDOWN, UPLOAD_E_UNREACHABLE, 1, "check the volume" },
                { "pwrite", ENOMEM, -ENOMEM, 1, NULL },
                { "fdatasync", EIO, UPLOAD_E_UNREACHABLE, 1, "kernel log" },
                { "fdatasync", ENOSPC, UPLOAD_E_FULL, 1,
                  "free some space" }, /* NFS tells of it here */
                { "linkat", EDQUOT, UPLOAD_E_FULL, 1, "raise the quota" },
                { "linkat", EIO, UPLOAD_E_UNREACHABLE, 1, "kernel log" },
                { "unlinkat", EROFS, UPLOAD_E_UNREACHABLE, 1, "read-write" },
        };
        const Scratch *s = *state;
        Content c;

        content_init(&c, MIB, 1);
        for (size_t i = 0; i < ELEMENTSOF(refusals); i++) {
                const Refusal *refusal = &refusals[i];
                _cleanup_(volume_freep) Volume *v = volume_at(s, "root");
                _cleanup_free_ char *error = NULL;
                hook = (Hook){ .fail = refusal->call,
                               .error = refusal->error,
                               .fail_from = refusal->from,
                               .only_once = true };
                int r = deliver(v, OBJECT, &c, &error);
                if (r != refusal->outcome)
                        fail_msg("%s %s: %d, '%s'", refusal->call, strerror(refusal->error), r,
                                 error);
                if (refusal->says &&
                    (!error || !strstr(error, refusal->says) || !strstr(error, "root/" OBJECT)))
                        fail_msg("%s %s says '%s'", refusal->call, strerror(refusal->error), error);
                hook = (Hook){ 0 };
                in_scratch(s, "test ! -e root/" OBJECT);
                assert_no_litter(s, "root");
                assert_int_equal(deliver(v, OBJECT, &c, &error), 0); /* and then it continues */
                assert_file_is(s, "root/" OBJECT, &c);
                in_scratch(s, "rm -r root");
        }
        content_done(&c);
}

static void an_object_that_failed_once_stays_failed(void **state) {
        _cleanup_(volume_freep) Volume *v = volume_at(*state, "root");
        _cleanup_free_ char *first = NULL, *second = NULL, *third = NULL;
        VolumeObject *o = NULL;
        Content c;

        content_init(&c, 1000, 1);
        assert_int_equal(volume_object_start(v, OBJECT, 0, &o, &first), 0);
        hook = (Hook){ .fail = "pwrite", .error = EIO, .fail_from = 1, .only_once = true };
        assert_int_equal(volume_write(o, c.data, c.n, &first), UPLOAD_E_UNREACHABLE);
        assert_int_equal(volume_write(o, c.data, c.n, &second), UPLOAD_E_UNREACHABLE);
        assert_int_equal(volume_commit(o, c.stripes, c.n_stripes, &third), UPLOAD_E_UNREACHABLE);
        assert_string_equal(first, third);
        volume_object_free(o);
        content_done(&c);
}

static void a_name_whose_directory_was_not_synced_is_no_delivery_yet(void **state) {
        const Scratch *s = *state;
        _cleanup_(volume_freep) Volume *v = volume_at(s, "root");
        _cleanup_free_ char *error = NULL;
        Content c;

        content_init(&c, 1000, 1);
        hook = (Hook){ .fail = "fsync",
                       .error = EIO,
                       .fail_from = 4 }; /* after one for each directory above */
        assert_int_equal(deliver(v, OBJECT, &c, &error), UPLOAD_E_UNREACHABLE);
        assert_non_null(strstr(hook.log, "linkat fsync "));
        hook.n_named = 0;
        assert_int_equal(deliver(v, OBJECT, &c, &error),
                         UPLOAD_E_UNREACHABLE); /* it is there, but that cannot be proven */
        hook = (Hook){ 0 };
        assert_int_equal(deliver(v, OBJECT, &c, &error), UPLOAD_E_SAME);
        assert_no_litter(s, "root");
        content_done(&c);
}

/* Real small file systems */

static void mount_on(const Scratch *s, const char *type, const char *options) {
        char path[PATH_MAX + 16];
        (void)snprintf(path, sizeof path, "%s/root", s->path);
        (void)mkdir(path, 0755);
        assert_int_equal(mount(type, path, type, 0, options), 0);
}

static void unmount(const Scratch *s, const char *what) {
        char path[PATH_MAX + 16];
        (void)snprintf(path, sizeof path, "%s/%s", s->path, what);
        assert_int_equal(umount2(path, MNT_DETACH), 0);
}

static void a_full_volume_is_full_and_clean_afterwards(void **state) {
        const Scratch *s = *state;
        Content c;

        if (!mounts_allowed())
                SKIP_BECAUSE("only root may mount");
        content_init(&c, 3 * MIB, 1);
        mount_on(s, "tmpfs", "size=2m");
        _cleanup_(volume_freep) Volume *v = volume_at(s, "root");
        _cleanup_free_ char *error = NULL, *hinted = NULL;
        VolumeObject *o = NULL;

        assert_int_equal(volume_object_start(v, OBJECT, 0, &o, &error), 0);
        assert_int_equal(write_content(o, &c, &error), UPLOAD_E_FULL);
        assert_non_null(strstr(error, "root/" OBJECT));
        volume_object_free(o);
        in_scratch(s, "test -z \"$(find root -type f)\"");
        /* With a hint it is known before. */
        assert_int_equal(volume_object_start(v, OBJECT, c.n, &o, &hinted), UPLOAD_E_FULL);
        assert_non_null(strstr(hinted, "lower min_free"));
        unmount(s, "root");

        mount_on(s, "tmpfs", "size=100m,nr_inodes=5");
        in_scratch(s, "touch root/1 root/2 root/3 root/4 root/5 root/6 2> /dev/null || true");
        free(error);
        assert_int_equal(volume_object_start(v, OBJECT, 0, &o, &error), UPLOAD_E_FULL);
        assert_non_null(strstr(error, "no inode left"));
        in_scratch(s, "rm root/1"); /* one: for the directory, none for the file */
        free(error);
        assert_int_equal(volume_object_start(v, OBJECT, 0, &o, &error), UPLOAD_E_FULL);
        unmount(s, "root");
        content_done(&c);
}

static void min_free_is_kept_free(void **state) {
        const Scratch *s = *state;
        char path[PATH_MAX + 16];
        VolumeOptions options = { .root = path };
        Content c;

        if (!mounts_allowed())
                SKIP_BECAUSE("only root may mount");
        (void)snprintf(path, sizeof path, "%s/root", s->path);
        content_init(&c, 3 * MIB, 1);
        mount_on(s, "tmpfs", "size=100m");
        for (unsigned i = 0; i < 4; i++) {
                _cleanup_(volume_freep) Volume *v = NULL;
                _cleanup_free_ char *error = NULL;
                options.min_free_bytes = i == 0   ? 98 * MIB
                                         : i == 1 ? 96 * MIB
                                         : i == 2 ? 90 * MIB
                                                  : 1;
                options.min_free_permille = i == 3 ? 980 : 0; /* the larger of both counts */
                assert_int_equal(volume_new(&v, &options), 0);
                int r = deliver(v, i == 1 ? "one" : i == 2 ? "two" : "none", &c, &error);
                assert_int_equal(r, i == 0 || i == 3 ? UPLOAD_E_FULL : 0);
                if (r != 0) {
                        assert_non_null(strstr(error, "lower min_free"));
                        assert_non_null(strstr(error, "98.0 MiB of it must stay free"));
                }
        }
        in_scratch(s, "test -e root/one -a -e root/two -a ! -e root/none");
        unmount(s, "root");
        content_done(&c);
}

static void a_read_only_volume_is_away(void **state) {
        const Scratch *s = *state;
        char path[PATH_MAX + 16];
        _cleanup_free_ char *error = NULL;

        if (!mounts_allowed())
                SKIP_BECAUSE("only root may mount");
        (void)snprintf(path, sizeof path, "%s/root", s->path);
        in_scratch(s, "mkdir root");
        assert_int_equal(mount(path, path, "none", MS_BIND, NULL), 0);
        assert_int_equal(mount("none", path, "none", MS_REMOUNT | MS_BIND | MS_RDONLY, NULL), 0);
        _cleanup_(volume_freep) Volume *v = volume_at(s, "root");
        VolumeObject *o = NULL;
        assert_int_equal(volume_object_start(v, OBJECT, 0, &o, &error), UPLOAD_E_UNREACHABLE);
        assert_non_null(strstr(error, "Read-only file system; mount it read-write"));
        free(error);
        assert_int_equal(volume_probe(v, &error), UPLOAD_E_UNREACHABLE);
        assert_non_null(strstr(error, "read-write"));
        assert_int_equal(mount("none", path, "none", MS_REMOUNT | MS_BIND, NULL), 0);
        free(error);
        assert_int_equal(volume_probe(v, &error), 0);
        unmount(s, "root");
}

/* A volume whose root is the mount point itself (depth 0) or `sub` below it. */
static void go_away_and_come_back(const Scratch *s, const char *root) {
        _cleanup_(volume_freep) Volume *v = volume_at(s, root);
        _cleanup_free_ char *error = NULL;
        _cleanup_(strbuf_done) StrBuf read = STRBUF_INIT;
        Content c;

        content_init(&c, 1000, 1);
        mount_on(s, "tmpfs", "size=1m");
        assert_int_equal(deliver(v, "one", &c, &error), 0);
        unmount(s, "root");
        assert_int_equal(deliver(v, "two", &c, &error), UPLOAD_E_UNREACHABLE);
        assert_non_null(strstr(error, strcmp(root, "root") == 0 ? "no longer on the mount"
                                                                : "is it mounted?"));
        free(error);
        assert_int_equal(volume_probe(v, &error), UPLOAD_E_UNREACHABLE);
        assert_int_equal(volume_read(v, "one", keep_piece, &read), -ESTALE);
        in_scratch(s, "test -z \"$(ls -A root)\""); /* nothing went onto the disk below */
        in_scratch(s, "mkdir -p root/sub"); /* not even when somebody made the directory there */
        assert_int_equal(deliver(v, "two", &c, &error), UPLOAD_E_UNREACHABLE);
        in_scratch(s, "test -z \"$(find root -type f)\"");
        mount_on(s, "tmpfs",
                 "size=1m"); /* another device under the same mount point, and an empty one */
        assert_int_equal(deliver(v, "two", &c, &error), 0);
        unmount(s, "root");
        in_scratch(s, "rm -r root");
        content_done(&c);
}

static void a_volume_that_is_unmounted_is_away_until_it_is_back(void **state) {
        if (!mounts_allowed())
                SKIP_BECAUSE("only root may mount");
        go_away_and_come_back(*state, "root");
        go_away_and_come_back(*state, "root/sub");
}

static void a_volume_mounted_later_is_used_from_then_on(void **state) {
        const Scratch *s = *state;
        _cleanup_(volume_freep) Volume *v = volume_at(s, "root");
        _cleanup_free_ char *error = NULL;
        Content c;

        if (!mounts_allowed())
                SKIP_BECAUSE("only root may mount");
        content_init(&c, 1000, 1);
        assert_int_equal(deliver(v, "local", &c, &error), 0);
        mount_on(s, "tmpfs", "size=1m");
        assert_int_equal(deliver(v, "mounted", &c, &error), 0);
        in_scratch(s, "test -e root/mounted");
        unmount(s, "root");
        assert_int_equal(deliver(v, "mounted", &c, &error), UPLOAD_E_UNREACHABLE);
        content_done(&c);
}

/* A FUSE file system that fails as told */

typedef struct FuseFault {
        const char *rule;
        int outcome;
} FuseFault;

static void faults_of_a_real_file_system_are_understood(void **state) {
        static const FuseFault faults[] = {
                { "write ESTALE 500000 tmp", UPLOAD_E_UNREACHABLE },
                { "write EIO 0 tmp", UPLOAD_E_UNREACHABLE },
                { "write ENOSPC 300000 tmp", UPLOAD_E_FULL },
                { "write short 0", 0 },
                { "write EDQUOT 0 tmp", UPLOAD_E_FULL },
                { "fsync EIO", UPLOAD_E_UNREACHABLE },
                { "fsyncdir EIO", UPLOAD_E_UNREACHABLE },
                { "fsyncdir EINVAL", 0 },
                { "read EIO 0 tmp", UPLOAD_E_UNREACHABLE },
                { "read flip 0 tmp", UPLOAD_E_MISMATCH },
                { "read flip 600000 tmp", UPLOAD_E_MISMATCH },
                { "link EPERM", 0 },
                { "link EIO", UPLOAD_E_UNREACHABLE },
                { "create EACCES", UPLOAD_E_UNREACHABLE },
                { "mkdir EROFS", UPLOAD_E_UNREACHABLE },
                { "statfs ENOTCONN", UPLOAD_E_UNREACHABLE },
                { "* ESTALE 0 mount-of-nobody", 0 },
                { "* ENOTCONN", UPLOAD_E_UNREACHABLE },
        };
        const Scratch *s = *state;
        Content c;
        FaultFs f;

        if (!faultfs_start(&f, s->path)) {
                faultfs_stop(&f);
                SKIP_BECAUSE("no /dev/fuse, no libfuse3-dev, or not root");
        }
        content_init(&c, MIB + 100, 1);
        in_scratch(s, "mkdir real/root");
        for (size_t i = 0; i < ELEMENTSOF(faults); i++) {
                _cleanup_(volume_freep) Volume *v = volume_at(s, "mount/root");
                _cleanup_free_ char *error = NULL;
                assert_true(faultfs_rule(&f, faults[i].rule));
                int r = deliver(v, OBJECT, &c, &error);
                if (r != faults[i].outcome)
                        fail_msg("%s: %d, '%s'", faults[i].rule, r, error);
                assert_true((r == 0) == (error == NULL));
                assert_true(faultfs_rule(&f, "clear"));
                if (r != 0 &&
                    strcmp(faults[i].rule, "fsyncdir EIO") != 0) /* which may come after the name */
                        in_scratch(s, "test ! -e real/root/" OBJECT);
                int again = deliver(v, OBJECT, &c, &error);
                assert_true(again == 0 || again == UPLOAD_E_SAME);
                assert_file_is(s, "real/root/" OBJECT, &c);
                assert_no_litter(s, "real/root");
                in_scratch(s, "rm -r real/root/*");
        }
        content_done(&c);
        faultfs_stop(&f);
}

static void without_links_and_exchange_flags_a_check_and_a_rename_suffice(void **state) {
        const Scratch *s = *state;
        Content c, other;
        FaultFs f;

        if (!faultfs_start(&f, s->path)) {
                faultfs_stop(&f);
                SKIP_BECAUSE("no /dev/fuse, no libfuse3-dev, or not root");
        }
        content_init(&c, 5000, 1);
        content_init(&other, 5000, 2);
        _cleanup_(volume_freep) Volume *v = volume_at(s, "mount/root");
        _cleanup_free_ char *error = NULL;
        assert_true(faultfs_rule(&f, "link EPERM") && faultfs_rule(&f, "rename-flags EINVAL"));
        assert_int_equal(deliver(v, OBJECT, &c, &error), 0);
        assert_non_null(strstr(hook.log, "linkat renameat2 renameat fsync "));
        assert_int_equal(deliver(v, OBJECT, &c, &error), UPLOAD_E_SAME);
        assert_int_equal(deliver(v, OBJECT, &other, &error), UPLOAD_E_EXISTS);
        assert_file_is(s, "real/root/" OBJECT, &c);
        content_done(&c);
        content_done(&other);
        faultfs_stop(&f);
}

typedef struct Delivery {
        Volume *volume;
        const Content *content;
        char *error;
        int outcome;
} Delivery;

static void *deliver_in_thread(void *userdata) {
        Delivery *d = userdata;
        d->outcome = deliver(d->volume, OBJECT, d->content, &d->error);
        return NULL;
}

static void a_hung_mount_holds_up_nobody_else(void **state) {
        const Scratch *s = *state;
        pthread_t thread;
        int status;
        Content c;
        FaultFs f;

        if (!faultfs_start(&f, s->path)) {
                faultfs_stop(&f);
                SKIP_BECAUSE("no /dev/fuse, no libfuse3-dev, or not root");
        }
        content_init(&c, MIB, 1);
        _cleanup_(volume_freep) Volume *hung = volume_at(s, "mount/root"),
                                       *well = volume_at(s, "well");
        _cleanup_free_ char *error = NULL;
        assert_int_equal(kill(f.pid, SIGSTOP), 0);
        assert_int_equal(waitpid(f.pid, &status, WUNTRACED), f.pid);
        Delivery d = { .volume = hung, .content = &c, .outcome = -1 };
        assert_int_equal(pthread_create(&thread, NULL, deliver_in_thread, &d), 0);
        assert_int_equal(deliver(well, "one", &c, &error), 0);
        assert_int_equal(deliver(well, "two", &c, &error), 0);
        assert_int_equal(pthread_tryjoin_np(thread, NULL), EBUSY);
        assert_int_equal(kill(f.pid, SIGCONT), 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_int_equal(d.outcome, 0);
        assert_file_is(s, "real/root/" OBJECT, &c);
        content_done(&c);
        faultfs_stop(&f);
}

static void a_server_that_dies_is_away(void **state) {
        const Scratch *s = *state;
        _cleanup_free_ char *error = NULL;
        VolumeObject *o = NULL;
        Content c;
        FaultFs f;

        if (!faultfs_start(&f, s->path)) {
                faultfs_stop(&f);
                SKIP_BECAUSE("no /dev/fuse, no libfuse3-dev, or not root");
        }
        content_init(&c, MIB, 1);
        _cleanup_(volume_freep) Volume *v = volume_at(s, "mount/root");
        assert_int_equal(volume_object_start(v, OBJECT, 0, &o, &error), 0);
        assert_int_equal(volume_write(o, c.data, 1000, &error), 0);
        assert_int_equal(kill(f.pid, SIGKILL), 0);
        assert_int_equal(waitpid(f.pid, NULL, 0), f.pid);
        (void)write_content(o, &c, &error); /* into the cache, perhaps */
        free(error);
        VolumeStripe whole = { .bytes = 1000 };
        sha256_of(c.data, 1000, whole.sha256);
        int r = volume_commit(o, &whole, 1, &error);
        assert_true(r == UPLOAD_E_UNREACHABLE || r == -EINVAL);
        volume_object_free(o);
        free(error);
        assert_int_equal(volume_probe(v, &error), UPLOAD_E_UNREACHABLE);
        assert_non_null(strstr(error, "mount it again"));
        content_done(&c);
        f.pid = -1;
        (void)umount2(f.mount, MNT_DETACH);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, trouble_setup, scratch_teardown)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(a_crash_anywhere_leaves_nothing_or_everything),
                TEST(the_bytes_are_durable_before_the_name_and_the_name_before_the_end),
                TEST(without_links_a_rename_gives_the_name),
                TEST(who_comes_second_compares),
                TEST(only_the_file_that_was_proven_gets_the_name),
                TEST(a_link_whose_answer_was_lost_counts),
                TEST(every_refusal_is_reported_with_path_and_remedy),
                TEST(an_object_that_failed_once_stays_failed),
                TEST(a_name_whose_directory_was_not_synced_is_no_delivery_yet),
                TEST(a_full_volume_is_full_and_clean_afterwards),
                TEST(min_free_is_kept_free),
                TEST(a_read_only_volume_is_away),
                TEST(a_volume_that_is_unmounted_is_away_until_it_is_back),
                TEST(a_volume_mounted_later_is_used_from_then_on),
                TEST(faults_of_a_real_file_system_are_understood),
                TEST(without_links_and_exchange_flags_a_check_and_a_rename_suffice),
                TEST(a_hung_mount_holds_up_nobody_else),
                TEST(a_server_that_dies_is_away),
        };
        /* before any directory is opened: descriptors keep the mounts they were opened in */
        (void)mounts_allowed();
        return cmocka_run_group_tests(tests, NULL, NULL);
}
