/* The directories of the agent's own evidence: complete or not there, bounded, found again. */
#include "agent/evidence/evidence.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/harness/unit.h"

#include "config/config.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "tests/lib/base/scratch.h"

#define CORE "process-core-20260527T051233-0123456789ab"
#define REPORT "crash-report-" CORE
#define SNAPSHOT "snapshot-20260527T051233-1"

typedef struct Fixture {
        Scratch *scratch;
        Store *store;
        Evidence *evidence;
        char published[512];
        unsigned n_published;
} Fixture;

static void on_published(const char *path, void *userdata) {
        Fixture *f = userdata;
        (void)snprintf(f->published, sizeof f->published, "%s", path);
        f->n_published++;
}

static void start(Fixture *f) {
        const EvidenceContext context = { .clock = clock_system(),
                                          .store = f->store,
                                          .on_published = on_published,
                                          .userdata = f };
        assert_int_equal(evidence_new(&f->evidence, &context, f->scratch->path), 0);
}

static void restart(Fixture *f) {
        f->evidence = evidence_free(f->evidence);
        start(f);
}

static int setup(void **state) {
        void *scratch = NULL;
        Fixture *f = calloc(1, sizeof *f);
        if (!f || scratch_setup(&scratch) < 0)
                return -1;
        f->scratch = scratch;
        *state = f;
        if (store_open(&f->store, f->scratch->path, NULL, NULL) != 0)
                return -1;
        start(f);
        return 0;
}

static int teardown(void **state) {
        Fixture *f = *state;
        void *scratch = f->scratch;
        evidence_free(f->evidence);
        store_close(f->store);
        free(f);
        return scratch_teardown(&scratch);
}

static bool is_there(const Fixture *f, const char *name) {
        _cleanup_free_ char *path = path_join(evidence_path(f->evidence), name);
        return access(path, F_OK) == 0;
}

static int memfd_of(const char *text) {
        int fd = memfd_create("report", MFD_CLOEXEC);
        assert_true(fd >= 0);
        assert_int_equal(write(fd, text, strlen(text)), strlen(text));
        return fd;
}

static int publish(Fixture *f, const char *name, uid_t uid, uint64_t bytes) {
        const About about = { .owner = { .uid = uid } };
        _cleanup_close_ int fd = memfd_of("{}");
        int r = evidence_reserve(f->evidence, name, &about.owner, bytes);
        if (r < 0)
                return r;
        r = evidence_write(evidence_path(f->evidence), name, &about,
                           &(EvidenceFile){ "crash.json", fd }, 1);
        evidence_end(f->evidence, name, r);
        return r;
}

/* A row as intake writes it. */
static void add_row(Fixture *f, const char *name, BundleState state) {
        _cleanup_(bundle_record_done) BundleRecord rec = { .state = state, .complete = true };
        (void)snprintf(rec.id, sizeof rec.id, "crash-report-20260527T051233-0123456789ab");
        rec.source = strdup(AGENT_SOURCE);
        rec.path = path_join(evidence_path(f->evidence), name);
        assert_int_equal(evidence_describe(&rec), 0);
        assert_int_equal(store_add(f->store, &rec), 0);
}

static void a_report_is_there_with_what_it_is_about_and_is_announced(void **state) {
        Fixture *f = *state;
        _cleanup_(about_done) About about = { .owner = { .uid = 1000 } };
        assert_int_equal(about_add_related(&about, CORE), 0);
        _cleanup_close_ int json = memfd_of("{\"a\":1}"), text = memfd_of("# a\n");
        const EvidenceFile files[] = { { "crash.json", json }, { "crash.md", text } };
        assert_int_equal(evidence_reserve(f->evidence, REPORT, &about.owner, 11), 0);
        assert_int_equal(evidence_reserve(f->evidence, REPORT, &about.owner, 11), -EEXIST);
        assert_int_equal(evidence_write(evidence_path(f->evidence), REPORT, &about, files, 2), 0);
        assert_int_equal(f->n_published, 0);
        evidence_end(f->evidence, REPORT, 0);
        assert_int_equal(f->n_published, 1);

        _cleanup_(bundle_record_done) BundleRecord rec = { .path = strdup(f->published) };
        assert_int_equal(evidence_describe(&rec), 0);
        assert_int_equal(rec.kind, SOURCE_CRASH_REPORT);
        assert_int_equal(rec.uid, 1000);
        assert_string_equal(rec.subject, CORE);
        assert_non_null(rec.about);

        _cleanup_free_ char *path = path_join(rec.path, "crash.json"), *content = NULL;
        assert_int_equal(fs_read_file(AT_FDCWD, path, 100, &content, NULL), 0);
        assert_string_equal(content, "{\"a\":1}");
        evidence_on_final(f->evidence, f->published);
        assert_false(is_there(f, REPORT));
        assert_int_equal(evidence_bound(f->evidence)->total, 0);
}

static void a_snapshot_is_moved_without_its_hidden_files(void **state) {
        Fixture *f = *state;
        const About about = { .owner = { .uid = 0 } };
        _cleanup_free_ char *from = path_join(f->scratch->path, "snapshots"),
                            *inside = path_join(evidence_path(f->evidence), SNAPSHOT "/.x");
        assert_int_equal(mkdir(from, 0700), 0);
        _cleanup_close_ int fd = open(from, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_int_equal(fs_write_file(fd, "snapshot.json", "{}", 2, 0600), 0);
        assert_int_equal(fs_write_file(fd, ".x", "{}", 2, 0600), 0);
        assert_int_equal(evidence_adopt(f->evidence, from, SNAPSHOT, &about), 0);
        assert_int_equal(access(from, F_OK), -1);
        assert_true(is_there(f, SNAPSHOT "/snapshot.json"));
        assert_true(is_there(f, SNAPSHOT "/" EVIDENCE_ABOUT_FILE));
        assert_int_equal(access(inside, F_OK), -1);
        assert_int_equal(f->n_published, 1);

        assert_int_equal(mkdir(from, 0700), 0); /* another one of that name stays where it is */
        assert_int_equal(evidence_adopt(f->evidence, from, SNAPSHOT, &about), -EEXIST);
        assert_int_equal(access(from, F_OK), 0);
}

static void what_was_not_finished_or_is_delivered_is_removed_at_the_next_start(void **state) {
        Fixture *f = *state;
        _cleanup_free_ char *unfinished = path_join(f->scratch->path, "evidence.new/" REPORT);
        assert_int_equal(publish(f, "crash-report-1", 7, 1), 0);
        assert_int_equal(publish(f, "crash-report-2", 7, 1), 0);
        add_row(f, "crash-report-1", BUNDLE_DELIVERED);
        assert_int_equal(mkdir(unfinished, 0700), 0);
        restart(f);
        assert_int_equal(access(unfinished, F_OK), -1);
        assert_false(is_there(f, "crash-report-1"));
        assert_true(is_there(f, "crash-report-2"));
        assert_true(evidence_has(f->evidence, "crash-report-1")); /* its row says so */
        assert_true(evidence_has(f->evidence, "crash-report-2"));
        assert_false(evidence_has(f->evidence, "crash-report-3"));
        assert_int_equal(evidence_bound(f->evidence)->total, 64 * KIB);
}

static void an_owner_gets_a_part_of_the_space_and_the_others_theirs(void **state) {
        Fixture *f = *state;
        const uint64_t most = EVIDENCE_REPORTS_BYTES_MAX_EACH;
        assert_int_equal(publish(f, "crash-report-1", 7, most - 64 * KIB), 0);
        assert_int_equal(publish(f, "crash-report-2", 7, 1), 0);
        assert_int_equal(publish(f, "crash-report-3", 7, 1), -EDQUOT);
        assert_false(is_there(f, "crash-report-3"));
        assert_int_equal(publish(f, "crash-report-4", 8, 1), 0);
        assert_int_equal(evidence_bound(f->evidence)->n_refused, 1);
}

static void without_its_directory_it_refuses_until_that_can_be_made(void **state) {
        Fixture *f = *state;
        assert_int_equal(rmdir(evidence_path(f->evidence)), 0);
        int fd = open(evidence_path(f->evidence), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        assert_true(fd >= 0);
        (void)close(fd);
        restart(f);
        assert_int_equal(publish(f, "crash-report-1", 7, 1), -ENOTDIR);
        assert_int_equal(unlink(evidence_path(f->evidence)), 0);
        assert_int_equal(publish(f, "crash-report-1", 7, 1), 0);
        assert_true(is_there(f, "crash-report-1"));
}

static void what_could_not_be_written_leaves_nothing(void **state) {
        Fixture *f = *state;
        const About about = { 0 };
        _cleanup_close_ int fd = memfd_of("{}");
        const EvidenceFile files[] = { { "crash.json", fd }, { "a/b", fd } };
        assert_int_equal(evidence_reserve(f->evidence, "oom-1", &about.owner, 2), 0);
        int r = evidence_write(evidence_path(f->evidence), "oom-1", &about, files, 2);
        assert_int_equal(r, -ENOENT);
        evidence_end(f->evidence, "oom-1", r);
        assert_false(is_there(f, "oom-1"));
        assert_false(is_there(f, "../evidence.new/oom-1"));
        assert_false(evidence_has(f->evidence, "oom-1"));
        assert_int_equal(f->n_published, 0);
}

static void names_say_the_kind(void **state) {
        static const char *const bad[] = {
                "", "snapshot", "snapshot-", "x-snapshot-1", ".snapshot-1", "directory-1", "oomph-1"
        };
        SourceKind k;
        assert_int_equal(evidence_kind(SNAPSHOT, &k), 0);
        assert_int_equal(k, SOURCE_SNAPSHOT);
        assert_int_equal(evidence_kind(REPORT, &k), 0);
        assert_int_equal(k, SOURCE_CRASH_REPORT);
        assert_int_equal(evidence_kind("oom-20260527T051233-1", &k), 0);
        assert_int_equal(k, SOURCE_OOM);
        for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                assert_int_equal(evidence_kind(bad[i], &k), -EINVAL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(a_report_is_there_with_what_it_is_about_and_is_announced),
                TEST(a_snapshot_is_moved_without_its_hidden_files),
                TEST(what_was_not_finished_or_is_delivered_is_removed_at_the_next_start),
                TEST(an_owner_gets_a_part_of_the_space_and_the_others_theirs),
                TEST(without_its_directory_it_refuses_until_that_can_be_made),
                TEST(what_could_not_be_written_leaves_nothing),
                cmocka_unit_test(names_say_the_kind),
        };
        return cmocka_run_group_tests_name("evidence", tests, NULL, NULL);
}
