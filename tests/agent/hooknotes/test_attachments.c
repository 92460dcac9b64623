/* agent/attachments: durable before it is said, bounded, and no name leads elsewhere. */

#include "tests/harness/unit.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "agent/hooknotes/attachments.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/digest.h"
#include "tests/agent/hooknotes/attach_one.h"
#include "tests/lib/base/scratch.h"

#define UNIT "/tmp/neuron-core-dump/dt-20260527-051233-cid-d99e36ea74c263ca"
#define ID "neuron-core-dump-20260527T051233-0123456789ab"

/* What reached the disk in which order. */
static char order[4096];
static int fsync_fails;
static unsigned rename_fails_at, n_renames; /* 0 = never */

static void note(const char *what) {
        strncat(order, what, sizeof order - strlen(order) - 1);
}

static pthread_t loops_thread;
static _Atomic unsigned n_syncs_of_loop; /* in the loop's thread */

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd) {
        struct stat st;
        if (fstat(fd, &st) == 0)
                note(S_ISDIR(st.st_mode) ? "D" : "F");
        n_syncs_of_loop += pthread_equal(pthread_self(), loops_thread) != 0;
        if (fsync_fails) {
                errno = fsync_fails;
                return -1;
        }
        return __real_fsync(fd);
}

int __real_renameat(int from_fd, const char *from, int to_fd, const char *to);
int __wrap_renameat(int from_fd, const char *from, int to_fd, const char *to);
int __wrap_renameat(int from_fd, const char *from, int to_fd, const char *to) {
        note("r");
        if (++n_renames == rename_fails_at) {
                errno = EIO;
                return -1;
        }
        return __real_renameat(from_fd, from, to_fd, to);
}

typedef struct Fixture {
        Scratch *scratch;
        sd_event *event;
        Attachments *a;
} Fixture;

static int setup(void **state) {
        void *scratch = NULL;
        Fixture *f = calloc(1, sizeof *f);
        if (!f || scratch_setup(&scratch) < 0)
                return -1;
        f->scratch = scratch;
        loops_thread = pthread_self();
        fsync_fails = 0;
        rename_fails_at = n_renames = 0;
        order[0] = '\0';
        *state = f;
        return sd_event_new(&f->event) < 0 ? -1
                                           : attachments_new(&f->a, f->event, f->scratch->path);
}

static int teardown(void **state) {
        Fixture *f = *state;
        void *scratch = f->scratch;
        attachments_free(f->a);
        sd_event_unref(f->event);
        free(f);
        return scratch_teardown(&scratch);
}

static int memory_of(const void *data, size_t n) {
        int fd = memfd_create("snapshot", MFD_CLOEXEC);
        assert_true(fd >= 0);
        assert_int_equal(write(fd, data, n), n);
        return fd; /* its offset is at the end: that must not matter */
}

static int put(Fixture *f, const char *name, const char *text) {
        _cleanup_close_ int fd = memory_of(text, strlen(text));
        return attach_one(f->a, f->event, &(AttachmentPlace){ "core-dumps", UNIT, name }, fd);
}

static void assert_text(int dir_fd, const char *name, const char *wanted) {
        char text[256] = "";
        _cleanup_close_ int fd = openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        assert_true(fd >= 0);
        assert_true(read(fd, text, sizeof text - 1) >= 0);
        assert_string_equal(text, wanted);
}

static size_t waiting(const Fixture *f) {
        return attachments_waiting(f->a, "core-dumps", UNIT, NULL);
}

static int give(const Fixture *f, const char *id, bool may_give) {
        return may_give ? attachments_assign(f->a, "core-dumps", UNIT, id)
                        : attachments_open_assigned(f->a, "core-dumps", UNIT, id);
}

/* @return where what waits for the unit lies, by the contract of the state directory; -ENOENT:
 * nothing does */
static int open_waiting(const Fixture *f, const char *source) {
        char key[256], path[64], hex[SHA256_HEX_SIZE];
        uint8_t digest[SHA256_SIZE];
        size_t n = strlen(source) + 1;
        memcpy(key, source, n);
        memcpy(key + n, UNIT, sizeof UNIT - 1);
        sha256_of(key, n + sizeof UNIT - 1, digest);
        digest_hex(digest, SHA256_SIZE, hex);
        (void)snprintf(path, sizeof path, "attachments/%.16s", hex);
        int fd = openat(f->scratch->fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

static void what_is_attached_lies_where_the_contract_has_it_and_is_nobody_elses(void **state) {
        Fixture *f = *state;
        struct stat st;
        char path[PATH_MAX + 64], hex[SHA256_HEX_SIZE];
        uint8_t digest[SHA256_SIZE];
        static const char key[] = "core-dumps\0" UNIT;
        assert_int_equal(put(f, "snapshot.json", "{}"), 0);
        sha256_of(key, sizeof key - 1, digest);
        digest_hex(digest, SHA256_SIZE, hex);
        (void)snprintf(path, sizeof path, "attachments/%.16s/snapshot.json", hex);
        assert_int_equal(fstatat(f->scratch->fd, path, &st, AT_SYMLINK_NOFOLLOW), 0);
        assert_int_equal(st.st_mode & 07777, 0600);
        assert_text(f->scratch->fd, path, "{}");
        *strrchr(path, '/') = '\0';
        assert_int_equal(fstatat(f->scratch->fd, path, &st, AT_SYMLINK_NOFOLLOW), 0);
        assert_int_equal(st.st_mode & 07777, 0700);
        assert_int_equal(fstatat(f->scratch->fd, "attachments", &st, AT_SYMLINK_NOFOLLOW), 0);
        assert_int_equal(st.st_mode & 07777, 0700);
        assert_int_equal(open_waiting(f, "other"), -ENOENT);
        _cleanup_close_ int fd = open_waiting(f, "core-dumps");
        assert_true(fd >= 0);
        assert_text(fd, "snapshot.json", "{}");
}

static void it_is_on_disk_before_it_has_its_name_and_the_name_before_it_is_reported(void **state) {
        Fixture *f = *state;
        assert_int_equal(put(f, "first.json", "{}"), 0);
        order[0] = '\0';
        assert_int_equal(put(f, "second.json", "{}"), 0);
        assert_string_equal(order, "FrD");
        order[0] = '\0';
        fsync_fails = EIO;
        assert_int_equal(put(f, "third.json", "{}"), -EIO);
        assert_string_equal(order, "F"); /* what may not be whole gets no name */
        fsync_fails = 0;
        assert_int_equal(waiting(f), 2);
}

static void what_makes_a_directory_makes_its_name_durable(void **state) {
        Fixture *f = *state;
        assert_int_equal(put(f, "first.json", "{}"), 0);
        /* attachments/, the copy, the unit's, whose it is (file, name, directory), and the name */
        assert_string_equal(order, "DFDFrDrD");
}

static void a_name_is_replaced_atomically(void **state) {
        Fixture *f = *state;
        assert_int_equal(put(f, "a.json", "a long text that came first"), 0);
        assert_int_equal(put(f, "a.json", "short"), 0);
        _cleanup_close_ int fd = open_waiting(f, "core-dumps");
        assert_text(fd, "a.json", "short");
        assert_int_equal(waiting(f), 1);
}

static void hostile_names_are_refused_and_make_nothing(void **state) {
        Fixture *f = *state;
        static const char *const names[] = { "",    ".",           "..",       "../x",
                                             "a/b", "/etc/passwd", ".unit",    (".of-" ID),
                                             "a b", "a\n",         "\xc3\xbc", "a*",
                                             "a\\b" };
        char longer[ATTACHMENT_NAME_MAX + 2];
        struct stat st;
        memset(longer, 'n', sizeof longer - 1);
        longer[sizeof longer - 1] = '\0';
        for (size_t i = 0; i < ELEMENTSOF(names); i++)
                assert_int_equal(put(f, names[i], "x"), -EINVAL);
        assert_int_equal(put(f, longer, "x"), -EINVAL);
        assert_int_equal(fstatat(f->scratch->fd, "attachments", &st, 0), -1);
        longer[ATTACHMENT_NAME_MAX] = '\0';
        assert_int_equal(put(f, longer, "x"), 0);
        assert_int_equal(attach_one(f->a, f->event, &(AttachmentPlace){ "core-dumps", UNIT, "dir" },
                                    f->scratch->fd),
                         -EINVAL);
}

static void a_link_that_somebody_has_put_there_is_not_followed(void **state) {
        Fixture *f = *state;
        assert_int_equal(put(f, "a.json", "{}"), 0);
        assert_int_equal(scratch_write(f->scratch, "elsewhere", "mine"), 0);
        _cleanup_close_ int fd = open_waiting(f, "core-dumps");
        char target[PATH_MAX + 16], coming[PATH_MAX + 32];
        (void)snprintf(target, sizeof target, "%s/elsewhere", f->scratch->path);
        assert_int_equal(symlinkat(target, fd, ".linking"), 0);
        (void)snprintf(coming, sizeof coming, "%s/attachments/.coming", f->scratch->path);
        assert_int_equal(symlink(target, coming), 0);
        assert_int_equal(symlinkat(target, fd, "b.json"), 0);
        assert_int_equal(put(f, "b.json", "ours"), 0);
        assert_text(f->scratch->fd, "elsewhere", "mine");
        assert_text(fd, "b.json", "ours");
}

static void number_and_size_are_bounded_for_all_that_a_unit_has(void **state) {
        Fixture *f = *state;
        char name[32];
        for (unsigned i = 0; i < ATTACHMENTS_MAX; i++) {
                (void)snprintf(name, sizeof name, "n%u", i);
                assert_int_equal(put(f, name, "x"), 0);
                if (i == 100) { /* what was given counts as well */
                        int fd = give(f, ID, true);
                        assert_true(fd >= 0);
                        (void)close(fd); /* a directory */
                }
        }
        assert_int_equal(put(f, "one-more", "x"), -E2BIG);
        assert_int_equal(put(f, "n255", "replaced"), 0);
        assert_int_equal(attachments_release(f->a, "core-dumps", UNIT), 0);

        _cleanup_close_ int big = memory_of("", 0);
        assert_int_equal(ftruncate(big, (off_t)ATTACHMENTS_MAX_BYTES + 1), 0);
        assert_int_equal(
                attach_one(f->a, f->event, &(AttachmentPlace){ "core-dumps", UNIT, "big" }, big),
                -EFBIG);
        assert_int_equal(ftruncate(big, (off_t)ATTACHMENTS_MAX_BYTES / 2 + 1), 0);
        assert_int_equal(
                attach_one(f->a, f->event, &(AttachmentPlace){ "core-dumps", UNIT, "big" }, big),
                0);
        assert_int_equal(
                attach_one(f->a, f->event, &(AttachmentPlace){ "core-dumps", UNIT, "bigger" }, big),
                -EFBIG);
        assert_int_equal(
                attach_one(f->a, f->event, &(AttachmentPlace){ "core-dumps", UNIT, "big" }, big),
                0);
        assert_int_equal(waiting(f), 1);
}

static void a_bundle_gets_what_waits_once_and_the_same_ever_after(void **state) {
        Fixture *f = *state;
        assert_int_equal(put(f, "a", "1"), 0);
        assert_int_equal(put(f, "b", "2"), 0);
        struct stat before, after;
        {
                _cleanup_close_ int fd = open_waiting(f, "core-dumps");
                assert_int_equal(fstatat(fd, "a", &before, 0), 0);
        }
        order[0] = '\0';
        _cleanup_close_ int given = give(f, ID, true);
        assert_true(given >= 0);
        assert_string_equal(order, "DrrDrD");
        assert_int_equal(waiting(f), 0);
        assert_int_equal(fstatat(given, "a", &after, 0), 0);
        assert_int_equal(before.st_ino, after.st_ino); /* its fingerprint is the same */
        assert_int_equal(before.st_mtim.tv_nsec, after.st_mtim.tv_nsec);

        assert_int_equal(put(f, "a", "written anew"), 0);
        assert_int_equal(put(f, "c", "3"), 0);
        _cleanup_close_ int again = give(f, ID, true);
        _cleanup_(attachment_names_done) AttachmentNames names;
        assert_int_equal(attachment_names(again, &names), 0);
        assert_int_equal(names.n, 2);
        assert_string_equal(names.items[0], "a");
        assert_string_equal(names.items[1], "b");
        assert_text(again, "a", "1");

        assert_int_equal(give(f, ID "-s1", false), -ENOENT); /* it began without */
        _cleanup_close_ int next = give(f, ID "-s1", true);
        assert_true(next >= 0);
        assert_text(next, "a", "written anew");
        assert_int_equal(give(f, ID "-s2", true), -ENOENT);
        assert_int_equal(give(f, "../" ID, true), -EINVAL);
}

static void a_crash_while_it_is_given_loses_nothing(void **state) {
        Fixture *f = *state;
        for (unsigned at = 1; at <= 3; at++) { /* two files, and the directory's name */
                assert_int_equal(put(f, "a", "1"), 0);
                assert_int_equal(put(f, "b", "2"), 0);
                n_renames = 0;
                rename_fails_at = at;
                assert_int_equal(give(f, ID, true), -EIO);
                rename_fails_at = 0;
                assert_int_equal(waiting(f), 2);
                assert_int_equal(give(f, ID, false), -ENOENT);
                assert_int_equal(put(f, "b", "newer"), 0); /* before it is tried again */
                _cleanup_close_ int given = give(f, ID, true);
                assert_true(given >= 0);
                assert_text(given, "a", "1");
                assert_text(given, "b", "newer");
                assert_int_equal(waiting(f), 0);
                assert_int_equal(attachments_release(f->a, "core-dumps", UNIT), 0);
        }
}

static void count_unit(const AttachmentsUnit *u, void *userdata) {
        assert_string_equal(u->source, "core-dumps");
        assert_string_equal(u->unit_path, UNIT);
        assert_true(u->changed_usec > 0);
        ++*(unsigned *)userdata;
}

static void what_is_over_goes_and_the_rest_stays(void **state) {
        Fixture *f = *state;
        struct stat st;
        unsigned n = 0;
        _cleanup_(attachment_names_done) AttachmentNames ids = { 0 };
        assert_int_equal(attachments_list_all(f->a, count_unit, &n), 0);
        assert_int_equal(put(f, "a", "1"), 0);
        (void)close(give(f, ID, true)); /* a directory */
        assert_int_equal(put(f, "b", "2"), 0);
        (void)close(give(f, ID "-s1", true)); /* a directory */
        assert_int_equal(attachments_list_all(f->a, count_unit, &n), 0);
        assert_int_equal(n, 1);
        assert_int_equal(attachments_bundles(f->a, "core-dumps", UNIT, &ids), 0);
        assert_int_equal(ids.n, 2);
        assert_string_equal(ids.items[0], ID);
        assert_string_equal(ids.items[1], ID "-s1");
        assert_int_equal(attachments_release_bundle(f->a, "core-dumps", UNIT, ID), 0);
        _cleanup_close_ int left = give(f, ID "-s1", false);
        assert_true(left >= 0);
        assert_int_equal(put(f, "c", "3"), 0);
        assert_int_equal(attachments_release_bundle(f->a, "core-dumps", UNIT, ID "-s1"), 0);
        assert_int_equal(waiting(f), 1);
        (void)close(give(f, ID "-s2", true)); /* a directory */
        assert_int_equal(attachments_release_bundle(f->a, "core-dumps", UNIT, ID "-s2"), 0);
        n = 0;
        assert_int_equal(attachments_list_all(f->a, count_unit, &n), 0);
        assert_int_equal(n, 0);
        assert_int_equal(fstatat(f->scratch->fd, "attachments", &st, 0), 0);
        assert_int_equal(st.st_nlink, 2);                                   /* nothing in it */
        assert_int_equal(attachments_release(f->a, "core-dumps", UNIT), 0); /* missing is fine */
        assert_int_equal(attachments_release_bundle(f->a, "core-dumps", UNIT, ID), 0);
}

static void a_file_that_waits_is_removed_by_its_name(void **state) {
        Fixture *f = *state;
        unsigned n = 0;
        assert_int_equal(put(f, "a", "1"), 0);
        assert_int_equal(put(f, "b", "2"), 0);
        assert_int_equal(attachments_remove(f->a, "core-dumps", UNIT, "a"), 0);
        assert_false(attachments_have(f->a, "core-dumps", UNIT, "a"));
        assert_true(attachments_have(f->a, "core-dumps", UNIT, "b"));
        assert_int_equal(attachments_remove(f->a, "core-dumps", UNIT, "a"), 0);
        assert_int_equal(attachments_remove(f->a, "core-dumps", UNIT, "b"), 0);
        assert_int_equal(attachments_list_all(f->a, count_unit, &n), 0);
        assert_int_equal(n, 0);
        assert_int_equal(attachments_remove(f->a, "core-dumps", UNIT, "b"), 0);
}

static void all_units_together_have_a_bound_and_what_is_released_makes_room(void **state) {
        Fixture *f = *state;
        static const char *const units[] = { "/tmp/a", "/tmp/b" };
        char ten[10] = "0123456789";
        _cleanup_close_ int fd = memory_of(ten, sizeof ten);
        attachments_limit(f->a, 25);
        for (size_t i = 0; i < ELEMENTSOF(units); i++)
                assert_int_equal(attach_one(f->a, f->event,
                                            &(AttachmentPlace){ "core-dumps", units[i], "a" }, fd),
                                 0);
        assert_int_equal(attach_one(f->a, f->event, &(AttachmentPlace){ "others", UNIT, "a" }, fd),
                         -EDQUOT);
        int given = attachments_assign(f->a, "core-dumps", units[0], ID);
        assert_true(given >= 0);
        (void)close(given); /* a directory */
        assert_int_equal(attach_one(f->a, f->event, &(AttachmentPlace){ "others", UNIT, "a" }, fd),
                         -EDQUOT); /* it is there still */
        assert_int_equal(attachments_release_bundle(f->a, "core-dumps", units[0], ID), 0);
        assert_int_equal(attach_one(f->a, f->event, &(AttachmentPlace){ "others", UNIT, "a" }, fd),
                         0);
        attachments_free(f->a); /* another start counts what is there */
        assert_int_equal(attachments_new(&f->a, f->event, f->scratch->path), 0);
        attachments_limit(f->a, 25);
        assert_int_equal(attach_one(f->a, f->event, &(AttachmentPlace){ "others", UNIT, "b" }, fd),
                         -EDQUOT);
}

static void what_came_before_a_time_goes_and_the_rest_stays(void **state) {
        Fixture *f = *state;
        assert_int_equal(put(f, "old", "1"), 0);
        assert_int_equal(put(f, "new", "2"), 0);
        {
                _cleanup_close_ int dir = open_waiting(f, "core-dumps");
                const struct timespec times[2] = { { 1000, 0 }, { 1000, 0 } };
                assert_int_equal(utimensat(dir, "old", times, 0), 0);
        }
        assert_int_equal(attachments_release_before(f->a, "core-dumps", UNIT, 1000 * USEC_PER_SEC),
                         0);
        assert_int_equal(waiting(f), 2);
        assert_int_equal(attachments_release_before(f->a, "core-dumps", UNIT, 1001 * USEC_PER_SEC),
                         1);
        _cleanup_close_ int dir = open_waiting(f, "core-dumps");
        assert_text(dir, "new", "2");
        assert_int_equal(waiting(f), 1);
}

/* ---- off the loop ---- */

typedef struct Done {
        int results[ATTACHMENT_PLACES_MAX];
        size_t n;
        bool is_done;
} Done;

static void on_done(const int *results, void *userdata) {
        Done *d = userdata;
        memcpy(d->results, results, d->n * sizeof *results);
        d->is_done = true;
}

static void place_of(char path[static 64], unsigned n) {
        (void)snprintf(path, 64, "/tmp/dumps/%u", n);
}

static AttachmentJob *submit(Fixture *f, const char *text, Done *d) {
        AttachmentPlace places[8];
        char paths[8][64];
        AttachmentJob *job = NULL;
        _cleanup_close_ int fd = memory_of(text, strlen(text));
        assert_true(d->n <= ELEMENTSOF(places));
        for (unsigned i = 0; i < d->n; i++) {
                place_of(paths[i], i);
                places[i] = (AttachmentPlace){ "core-dumps", paths[i], "snapshot.json" };
        }
        assert_int_equal(attachments_submit(f->a,
                                            &(AttachmentRequest){ .fd = fd,
                                                                  .places = places,
                                                                  .n_places = d->n,
                                                                  .on_done = on_done,
                                                                  .userdata = d },
                                            &job),
                         0);
        return job;
}

static void wait_for_it(sd_event *event, const Done *d) {
        while (!d->is_done)
                assert_true(sd_event_run(event, 10 * USEC_PER_SEC) > 0);
}

static int give_to(const Fixture *f, unsigned n) {
        char path[64];
        place_of(path, n);
        return attachments_assign(f->a, "core-dumps", path, ID);
}

static void off_the_loop_one_copy_is_written_for_all_and_the_loop_syncs_nothing(void **state) {
        Fixture *f = *state;
        Done d = { .n = 3 };
        struct stat first, st;
        n_syncs_of_loop = 0;
        (void)submit(f, "a snapshot", &d);
        wait_for_it(f->event, &d);
        assert_int_equal(n_syncs_of_loop, 0);
        /* attachments/, the copy; then a unit: its directory, whose it is, and its file's name */
        assert_string_equal(order, "DFDFrDrDDFrDrDDFrDrD");
        for (unsigned i = 0; i < d.n; i++) {
                assert_int_equal(d.results[i], 0);
                _cleanup_close_ int given = give_to(f, i);
                assert_true(given >= 0);
                assert_text(given, "snapshot.json", "a snapshot");
                assert_int_equal(fstatat(given, "snapshot.json", &st, 0), 0);
                first = i == 0 ? st : first;
                assert_int_equal(st.st_ino, first.st_ino);
        }
        assert_int_equal(st.st_nlink, 3); /* no name is left elsewhere */
}

typedef struct Series {
        Fixture *f;
        unsigned n_done;
} Series;

static void attach_next(Series *x);

static void on_one_of_two(const int *results, void *userdata) {
        Series *x = userdata;
        assert_int_equal(results[0], 0);
        if (++x->n_done < 2)
                attach_next(x);
}

static void attach_next(Series *x) {
        AttachmentJob *job;
        _cleanup_close_ int fd = memory_of("x", 1);
        const AttachmentPlace place = { "core-dumps", UNIT, x->n_done ? "crash.md" : "crash.json" };
        assert_int_equal(attachments_submit(x->f->a,
                                            &(AttachmentRequest){ .fd = fd,
                                                                  .places = &place,
                                                                  .n_places = 1,
                                                                  .on_done = on_one_of_two,
                                                                  .userdata = x },
                                            &job),
                         0);
}

static void files_attached_one_after_the_other_are_coming_until_all_are_there(void **state) {
        Fixture *f = *state;
        Series x = { .f = f };
        assert_false(attachments_are_coming(f->a, "core-dumps", UNIT));
        for (attach_next(&x); x.n_done < 2;) {
                assert_true(attachments_are_coming(f->a, "core-dumps", UNIT));
                assert_false(attachments_are_coming(f->a, "core-dumps", "/tmp/other"));
                assert_true(sd_event_run(f->event, 10 * USEC_PER_SEC) > 0);
        }
        assert_false(attachments_are_coming(f->a, "core-dumps", UNIT));
        assert_int_equal(waiting(f), 2);
}

static void a_failure_off_the_loop_is_reported_for_each_place_and_leaves_nothing(void **state) {
        Fixture *f = *state;
        Done d = { .n = 3 }, later = { .n = 3 };
        char path[64];
        attachments_limit(f->a, 20); /* room for two of ten bytes */
        (void)submit(f, "0123456789", &d);
        wait_for_it(f->event, &d);
        assert_int_equal(d.results[0], 0);
        assert_int_equal(d.results[1], 0);
        assert_int_equal(d.results[2], -EDQUOT);
        fsync_fails = EIO;
        attachments_limit(f->a, ATTACHMENTS_MAX_BYTES_ALL);
        (void)submit(f, "another", &later);
        wait_for_it(f->event, &later);
        fsync_fails = 0;
        for (unsigned i = 0; i < later.n; i++)
                assert_int_equal(later.results[i], -EIO);
        _cleanup_close_ int given = give_to(f, 0);
        assert_text(given, "snapshot.json", "0123456789");
        place_of(path, 2);
        assert_int_equal(attachments_waiting(f->a, "core-dumps", path, NULL), 0);
}

static void what_is_released_while_more_is_on_its_way_does_not_come_back(void **state) {
        Fixture *f = *state;
        char path[64];
        place_of(path, 0);
        for (unsigned round = 0; round < 20; round++) { /* it may meet the worker at any point */
                Done d = { .n = 2 };
                (void)submit(f, "a snapshot", &d);
                int given = round % 2 ? give_to(f, 1) : -1;
                if (given >= 0)
                        (void)close(given); /* a directory */
                (void)attachments_release(f->a, "core-dumps", path);
                wait_for_it(f->event, &d);
                assert_int_equal(d.results[0], 0); /* nobody wants it: no failure */
                assert_int_equal(d.results[1], 0);
                assert_int_equal(attachments_waiting(f->a, "core-dumps", path, NULL), 0);
                place_of(path, 1);
                assert_int_equal(attachments_release_bundle(f->a, "core-dumps", path, ID), 0);
                assert_int_equal(attachments_release(f->a, "core-dumps", path), 0);
                place_of(path, 0);
        }
        struct stat st;
        assert_int_equal(fstatat(f->scratch->fd, "attachments", &st, 0), 0);
        assert_int_equal(st.st_nlink, 2); /* nothing in it */
}

/* The hook of the new dump may run before its directory is seen to be another one. */
static void what_is_on_its_way_to_a_new_dump_stays_and_what_was_for_the_one_before_goes(
        void **state) {
        Fixture *f = *state;
        Clock *clock = clock_system();
        Done old = { .n = 2 }, new = { .n = 1 };
        char path[64];
        place_of(path, 0);
        for (unsigned round = 0; round < 20; round++) { /* it may meet the worker at any point */
                old.is_done = new.is_done = false;
                (void)submit(f, "of the one before", &old);
                uint64_t between = clock->realtime_usec(clock) + 1;
                while (clock->realtime_usec(clock) < between)
                        ;
                (void)submit(f, "of the new one", &new);
                assert_true(attachments_release_before(f->a, "core-dumps", path, between) >= 0);
                wait_for_it(f->event, &old);
                wait_for_it(f->event, &new);
                assert_int_equal(attachments_waiting(f->a, "core-dumps", path, NULL), 1);
                _cleanup_close_ int given = give_to(f, 0);
                assert_text(given, "snapshot.json", "of the new one");
                assert_int_equal(attachments_release(f->a, "core-dumps", path), 0);
        }
}

static void a_job_that_nobody_waits_for_is_finished_or_ends_with_the_agent(void **state) {
        Fixture *f = *state;
        Done d = { .n = 2 };
        attachment_job_forget(submit(f, "a snapshot", &d));
        (void)submit(f, "another", &d);
        attachments_free(TAKE_PTR(f->a));
        assert_false(d.is_done);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        const struct CMUnitTest tests[] = {
                TEST(what_is_attached_lies_where_the_contract_has_it_and_is_nobody_elses),
                TEST(it_is_on_disk_before_it_has_its_name_and_the_name_before_it_is_reported),
                TEST(what_makes_a_directory_makes_its_name_durable),
                TEST(a_name_is_replaced_atomically),
                TEST(hostile_names_are_refused_and_make_nothing),
                TEST(a_link_that_somebody_has_put_there_is_not_followed),
                TEST(number_and_size_are_bounded_for_all_that_a_unit_has),
                TEST(a_bundle_gets_what_waits_once_and_the_same_ever_after),
                TEST(a_crash_while_it_is_given_loses_nothing),
                TEST(what_is_over_goes_and_the_rest_stays),
                TEST(a_file_that_waits_is_removed_by_its_name),
                TEST(all_units_together_have_a_bound_and_what_is_released_makes_room),
                TEST(what_came_before_a_time_goes_and_the_rest_stays),
                TEST(off_the_loop_one_copy_is_written_for_all_and_the_loop_syncs_nothing),
                TEST(files_attached_one_after_the_other_are_coming_until_all_are_there),
                TEST(a_failure_off_the_loop_is_reported_for_each_place_and_leaves_nothing),
                TEST(what_is_released_while_more_is_on_its_way_does_not_come_back),
                TEST(what_is_on_its_way_to_a_new_dump_stays_and_what_was_for_the_one_before_goes),
                TEST(a_job_that_nobody_waits_for_is_finished_or_ends_with_the_agent),
        };
        return cmocka_run_group_tests_name("agent/attachments", tests, NULL, NULL);
}
