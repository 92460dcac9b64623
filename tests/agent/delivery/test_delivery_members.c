/* agent/delivery/delivery_members: our links, held descriptors and the live source are three ways
 * to the same members. */

#include "tests/harness/unit.h"

#include <errno.h>

#include "agent/delivery/delivery_attempt.h"
#include "agent/retention/links.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"
#include "lib/base/log.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/ids.h"
#include "tests/agent/retention/link_one.h"
#include "tests/lib/base/scratch.h"

#define INSTANCE "i-0123456789abcdef0"
#define ID "directory-20260527T052135-000000000001"

/* Files that go away or cannot be read in the moment they are opened. */
int __real_fs_open_regular(int dir_fd, const char *path, struct stat *ret_st);
int __wrap_fs_open_regular(int dir_fd, const char *path, struct stat *ret_st);
static const char *fails; /* paths that begin with this … */
static int fails_with;    /* … fail like this */
int __wrap_fs_open_regular(int dir_fd, const char *path, struct stat *ret_st) {
        if (fails && strncmp(path, fails, strlen(fails)) == 0)
                return fails_with;
        return __real_fs_open_regular(dir_fd, path, ret_st);
}

typedef enum Way { WAY_LIVE, WAY_LINKS, WAY_HELD, N_WAYS } Way;

typedef struct Fixture {
        Scratch *scratch;
        SourceSpec *spec;
        Bundle bundle;
        char unit[PATH_MAX + 16]; /* the unit's directory, or the one its file lies in */
} Fixture;

/* What one way found. */
typedef struct Found {
        int result;
        Plan *plan;
        DeliveryMembers *members;
        uint64_t *prints, sum;
        size_t n_prints;
        char reasons[4096]; /* a line each */
} Found;

static void found_done(Found *x) {
        delivery_members_free(x->members);
        plan_free(x->plan);
        free(x->prints);
}

static void make_terms(Fixture *f, ConfigKind kind, const char *template) {
        _cleanup_free_ char *path = NULL;
        char name[] = "jobs";
        assert_true(asprintf(&path, "%s/%s", f->scratch->path, template) > 0);
        ConfigSource config = { .name = name, .path = path, .kind = kind };
        assert_int_equal(source_spec_new(&f->spec, &config, INSTANCE, "/proc"), 0);
}

static int setup(void **state) {
        void *scratch = NULL;
        if (scratch_setup(&scratch) < 0)
                return -1;
        Fixture *f = calloc(1, sizeof *f);
        if (!f)
                return -1;
        f->scratch = scratch;
        fails = NULL;
        *state = f;
        return mkdirat(f->scratch->fd, "src", 0755);
}

static int teardown(void **state) {
        Fixture *f = *state;
        void *scratch = f->scratch;
        source_spec_unref(f->spec);
        held_files_done(&f->bundle.unit.held);
        bundle_record_done(&f->bundle.rec);
        free(f);
        return scratch_teardown(&scratch);
}

static void set_record(Fixture *f, SourceKind kind, const char *path) {
        f->bundle.rec.kind = kind;
        f->bundle.rec.path = strdup(path);
        f->bundle.rec.source = strdup("jobs");
        strcpy(f->bundle.rec.id, ID);
}

static void write_member(const Fixture *f, const char *member, const char *text) {
        Scratch unit = { .fd = open(f->unit, O_RDONLY | O_DIRECTORY | O_CLOEXEC) };
        assert_true(unit.fd >= 0);
        assert_int_equal(scratch_write(&unit, member, text), 0);
        (void)close(unit.fd); /* a directory */
}

/* In strcmp order, which is not the order of a walk: `b` comes after `b.x`, but `b/` before it. */
static const char *const members[] = { "a", "b.x", "b/deep", "z\xff\n" };
#define N_MEMBERS ELEMENTSOF(members)

static void make_directory_unit(Fixture *f) {
        (void)snprintf(f->unit, sizeof f->unit, "%s/src/job-1", f->scratch->path);
        assert_int_equal(mkdirat(f->scratch->fd, "src/job-1", 0755), 0);
        assert_int_equal(mkdirat(f->scratch->fd, "src/job-1/b", 0755), 0);
        for (size_t i = 0; i < N_MEMBERS; i++)
                write_member(f, members[i], members[i]);
        make_terms(f, CONFIG_DIRECTORY, "src/job-%p");
        set_record(f, SOURCE_DIRECTORY, f->unit);
}

/* Holds members as intake would. @param way  WAY_LIVE = not at all */
static void hold(Fixture *f, Way way, const char *const *names, size_t n) {
        int unit_fd = open(f->unit, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_true(unit_fd >= 0);
        HeldFiles *h = &f->bundle.unit.held;
        held_files_done(h);
        f->bundle.rec.links_held = way == WAY_LINKS;
        if (way == WAY_HELD) {
                h->items = calloc(n, sizeof *h->items);
                assert_non_null(h->items);
        }
        for (size_t i = n; i-- > 0;) { /* in an order of its own */
                struct stat st;
                char *why = NULL;
                assert_int_equal(fstatat(unit_fd, names[i], &st, 0), 0);
                if (way == WAY_LINKS)
                        assert_int_equal(link_one(f->spec->link_dirs, ID,
                                                  &(LinkMember){ names[i], unit_fd, names[i], &st },
                                                  &why),
                                         0);
                if (way == WAY_HELD)
                        h->items[h->n++] =
                                (HeldFile){ .path = strdup(names[i]),
                                            .fd = openat(unit_fd, names[i], O_RDONLY | O_CLOEXEC) };
        }
        h->all = way == WAY_HELD;
        (void)close(unit_fd); /* a directory */
}

static void remove_source(const Fixture *f) {
        _cleanup_free_ char *command = NULL;
        assert_true(asprintf(&command, "rm -rf '%s/src/job-1' '%s'/src/core*", f->scratch->path,
                             f->scratch->path) > 0);
        assert_int_equal(system(command), 0);
}

static Delivery *make_job(const Fixture *f) {
        static char *no_labels[] = { NULL };
        const Config config = { .limits = { .compression_level = 1, .compression_threads = 1 } };
        _cleanup_(rate_limits_unrefp) RateLimits *limits = NULL;
        Delivery *job = calloc(1, sizeof *job);
        assert_non_null(job);
        assert_int_equal(rate_limits_new(&limits, clock_system(), &config), 0);
        assert_int_equal(delivery_init(job, &(DeliveryOptions){ .bundle = &f->bundle,
                                                                .spec = f->spec,
                                                                .directory = "x/" INSTANCE,
                                                                .instance_id = INSTANCE,
                                                                .hostname = "host",
                                                                .labels = no_labels,
                                                                .clock = clock_system(),
                                                                .limits = limits,
                                                                .level = 1 }),
                         0);
        return job;
}

static void job_free(Delivery *job) {
        delivery_done(job);
        free(job);
}

/* @param shipped  fingerprints of what has been shipped before; NULL
 * @return the job, which must outlive what was found; job_free() */
static Delivery *find(const Fixture *f, const Found *shipped, Found *x) {
        *x = (Found){ 0 };
        Delivery *job = make_job(f);
        if (shipped) {
                job->shipped = calloc(shipped->n_prints, sizeof *job->shipped);
                assert_non_null(job->shipped);
                memcpy(job->shipped, shipped->prints, shipped->n_prints * sizeof *job->shipped);
                job->n_shipped = shipped->n_prints;
        }
        assert_int_equal(plan_new(&x->plan), 0);
        json_t *reasons = json_array(), *v;
        size_t i;
        x->result = delivery_members_new(&x->members, job, x->plan, reasons);
        json_array_foreach(reasons, i, v) {
                size_t n = strlen(x->reasons);
                (void)snprintf(x->reasons + n, sizeof x->reasons - n, "%s\n", json_string_value(v));
        }
        json_decref(reasons);
        if (x->result == 0) {
                assert_int_equal(plan_freeze(x->plan), 0);
                assert_int_equal(delivery_members_export_prints(x->members, job), 0);
                x->prints = TAKE_PTR(job->prints);
                x->n_prints = job->n_prints;
                x->sum = job->digest;
        }
        return job;
}

static void assert_content(const Found *x, size_t i, const char *wanted) {
        char text[256];
        int fd = delivery_members_open(x->members, i);
        assert_true(fd >= 0);
        ssize_t n = pread(fd, text, sizeof text - 1, 0);
        (void)close(fd); /* read only */
        assert_true(n >= 0);
        text[n] = '\0';
        assert_string_equal(text, wanted);
}

static void assert_paths(const Found *x, const char *const *wanted, size_t n) {
        assert_int_equal(plan_n_members(x->plan), n);
        for (size_t i = 0; i < n; i++)
                assert_string_equal(plan_member(x->plan, i)->path, wanted[i]);
}

static void assert_same(const Found *a, const Found *b) {
        uint8_t x[SHA256_SIZE], y[SHA256_SIZE];
        plan_sha256(a->plan, x);
        plan_sha256(b->plan, y);
        assert_memory_equal(x, y, sizeof x);
        assert_int_equal(a->n_prints, b->n_prints);
        assert_memory_equal(a->prints, b->prints, a->n_prints * sizeof *a->prints);
        assert_int_equal(a->sum, b->sum);
        assert_string_equal(a->reasons, b->reasons);
}

static void all_ways_give_the_same_plan_fingerprints_and_bytes_even_without_the_source(
        void **state) {
        Fixture *f = *state;
        Found found[N_WAYS];
        Delivery *jobs[N_WAYS];
        make_directory_unit(f);
        for (Way way = WAY_LIVE; way < N_WAYS; way++) {
                hold(f, way, members, N_MEMBERS);
                /* the live source has links by now that are ours: that must not matter */
                jobs[way] = find(f, NULL, &found[way]);
        }
        f->bundle.rec.links_held = false;
        held_files_done(&f->bundle.unit.held);
        Found again;
        Delivery *live_with_links = find(f, NULL, &again);
        for (Way way = WAY_LIVE; way < N_WAYS; way++) {
                Found *x = &found[way];
                assert_int_equal(x->result, 0);
                assert_paths(x, members, N_MEMBERS);
                assert_same(&found[WAY_LIVE], x);
                assert_string_equal(x->reasons, "");
                for (size_t i = 0; i < N_MEMBERS; i++)
                        assert_content(x, i, members[i]);
        }
        assert_same(&found[WAY_LIVE], &again);
        /* the fingerprints are those that intake takes from stat, sorted */
        struct stat st;
        uint64_t sum = 0;
        int unit_fd = open(f->unit, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        for (size_t i = 0; i < N_MEMBERS; i++) {
                assert_int_equal(fstatat(unit_fd, members[i], &st, 0), 0);
                sum += member_fingerprint(members[i], &st);
                assert_true(i == 0 || again.prints[i - 1] < again.prints[i]);
        }
        (void)close(unit_fd); /* a directory */
        assert_int_equal(again.sum, sum);

        remove_source(f);
        for (Way way = WAY_LINKS; way < N_WAYS; way++) {
                Found after;
                f->bundle.rec.links_held = way == WAY_LINKS;
                f->bundle.unit.held = way == WAY_HELD ? jobs[WAY_HELD]->held : (HeldFiles){ 0 };
                Delivery *job = find(f, NULL, &after);
                f->bundle.unit.held = (HeldFiles){ 0 }; /* they are the job's */
                assert_int_equal(after.result, 0);
                assert_same(&found[WAY_LIVE], &after);
                for (size_t i = 0; i < N_MEMBERS; i++)
                        assert_content(&after, i, members[i]);
                found_done(&after);
                job_free(job);
        }
        for (Way way = WAY_LIVE; way < N_WAYS; way++) {
                found_done(&found[way]);
                job_free(jobs[way]);
        }
        found_done(&again);
        job_free(live_with_links);
}

static void a_single_file_is_found_in_all_ways(void **state) {
        Fixture *f = *state;
        static const char *const name[] = { "core.python3.1000.7" };
        Found found[N_WAYS];
        _cleanup_free_ char *path = NULL;
        (void)snprintf(f->unit, sizeof f->unit, "%s/src", f->scratch->path);
        assert_true(asprintf(&path, "%s/%s", f->unit, name[0]) > 0);
        write_member(f, name[0], "core");
        write_member(f, "core.other.1000.8", "a neighbour is another bundle");
        make_terms(f, CONFIG_PROCESS_CORE, "src");
        set_record(f, SOURCE_PROCESS_CORE, path);
        for (Way way = WAY_LIVE; way < N_WAYS; way++) {
                hold(f, way, name, 1);
                if (way == WAY_LINKS) /* from the links alone */
                        remove_source(f);
                Delivery *job = find(f, NULL, &found[way]);
                assert_int_equal(found[way].result, 0);
                assert_paths(&found[way], name, 1);
                assert_content(&found[way], 0, "core");
                if (way == WAY_LINKS) { /* the same inode comes back, for the third way */
                        _cleanup_free_ char *pin = NULL;
                        assert_true(asprintf(&pin, "%s/.neuron-collectd/" INSTANCE "/" ID "/%s",
                                             f->scratch->path, name[0]) > 0);
                        assert_int_equal(link(pin, path), 0);
                }
                assert_same(&found[WAY_LIVE], &found[way]);
                job_free(job);
        }
        for (Way way = WAY_LIVE; way < N_WAYS; way++)
                found_done(&found[way]);
}

static void a_supplement_leaves_out_what_was_shipped(void **state) {
        Fixture *f = *state;
        static const char *const later[] = { "a", "b.x", "b/deep", "b/late", "z\xff\n" },
                                 *const only[] = { "b.x", "b/late" };
        Found first;
        make_directory_unit(f);
        Delivery *job = find(f, NULL, &first);
        job_free(job);
        write_member(f, "b/late", "late");
        write_member(f, "b.x",
                     "written anew, and longer"); /* the same name, but not what was shipped */
        for (Way way = WAY_LIVE; way < N_WAYS; way++) {
                Found x;
                hold(f, way, later, ELEMENTSOF(later));
                job = find(f, &first, &x);
                assert_int_equal(x.result, 0);
                assert_paths(&x, only, 2);
                assert_int_equal(x.n_prints, 2);
                assert_content(&x, 0, "written anew, and longer");
                assert_content(&x, 1, "late");
                found_done(&x);
                job_free(job);
        }
        found_done(&first);
}

static void a_supplement_of_nothing_new_is_empty(void **state) {
        Fixture *f = *state;
        Found first;
        make_directory_unit(f);
        Delivery *job = find(f, NULL, &first);
        job_free(job);
        for (Way way = WAY_LIVE; way < N_WAYS; way++) {
                Found x;
                hold(f, way, members, N_MEMBERS);
                job = find(f, &first, &x);
                assert_int_equal(x.result, 0);
                assert_int_equal(plan_n_members(x.plan), 0);
                assert_int_equal(x.n_prints, 0);
                assert_int_equal(x.sum, 0);
                assert_string_equal(x.reasons, "");
                found_done(&x);
                job_free(job);
        }
        found_done(&first);
}

static void what_was_removed_or_cannot_be_read_is_left_out_and_reported(void **state) {
        Fixture *f = *state;
        static const char *const rest[] = { "a", "b.x", "z\xff\n" }, *const without_z[] = {
                "a", "b.x", "b/deep"
        };
        Found x;
        make_directory_unit(f);
        for (Way way = WAY_LIVE; way <= WAY_LINKS; way++) {
                hold(f, way, members, N_MEMBERS);
                fails = "b/deep";
                fails_with = -ENOENT;
                Delivery *job = find(f, NULL, &x);
                assert_int_equal(x.result, 0);
                assert_paths(&x, rest, 3);
                assert_int_equal(x.n_prints, 3);
                assert_string_equal(x.reasons,
                                    "removed: 'b/deep' was removed before it could be read\n");
                assert_content(&x, 2, "z\xff\n");
                found_done(&x);
                job_free(job);

                fails = "z";
                fails_with = -EACCES;
                job = find(f, NULL, &x);
                assert_int_equal(x.result, 0);
                assert_paths(&x, without_z, 3);
                assert_string_equal(x.reasons, "unreadable: 'z\\xff\\x0a' (Permission denied)\n");
                found_done(&x);
                job_free(job);
        }
}

static void of_very_many_that_cannot_be_read_twenty_are_named_and_the_rest_counted(void **state) {
        Fixture *f = *state;
        Found x;
        make_directory_unit(f);
        for (unsigned i = 0; i < 25; i++) {
                char name[16];
                (void)snprintf(name, sizeof name, "bad-%02u", i);
                write_member(f, name, "x");
        }
        fails = "bad-";
        fails_with = -EIO;
        Delivery *job = find(f, NULL, &x);
        assert_int_equal(x.result, 0);
        assert_paths(&x, members, N_MEMBERS);
        assert_non_null(strstr(x.reasons, "unreadable: 'bad-00' (Input/output error)\n"));
        assert_non_null(strstr(x.reasons, "unreadable: 'bad-19' (Input/output error)\n"));
        assert_null(strstr(x.reasons, "bad-20"));
        assert_non_null(strstr(x.reasons, "unreadable: 5 more members\n"));
        found_done(&x);
        job_free(job);
}

static void what_is_no_regular_file_and_a_strangers_hard_link_is_no_member(void **state) {
        Fixture *f = *state;
        Found x;
        make_directory_unit(f);
        int unit_fd = open(f->unit, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_int_equal(symlinkat("/etc/passwd", unit_fd, "link"), 0);
        assert_int_equal(mkfifoat(unit_fd, "fifo", 0644), 0);
        assert_int_equal(scratch_write(f->scratch, "elsewhere", "somebody's"), 0);
        assert_int_equal(linkat(f->scratch->fd, "elsewhere", unit_fd, "stranger", 0), 0);
        assert_int_equal(fchmod(unit_fd, 0777), 0); /* so that it may be anybody's link */
        (void)close(unit_fd);                       /* a directory */
        hold(f, WAY_LINKS, members, N_MEMBERS); /* our own links do not make strangers of them */
        f->bundle.rec.links_held = false;
        Delivery *job = find(f, NULL, &x);
        assert_int_equal(x.result, 0);
        assert_paths(&x, members, N_MEMBERS);
        found_done(&x);
        job_free(job);
}

static void without_links_the_next_best_way_is_used(void **state) {
        Fixture *f = *state;
        Found x;
        make_directory_unit(f);
        hold(f, WAY_LINKS, members, N_MEMBERS);
        assert_int_equal(links_release(f->spec->link_dirs, ID), 0);
        Delivery *job = find(f, NULL, &x);
        assert_int_equal(x.result, 0);
        assert_paths(&x, members, N_MEMBERS);
        found_done(&x);
        job_free(job);
        /* held in part only: the source has more, and is asked */
        hold(f, WAY_HELD, members, 2);
        f->bundle.unit.held.all = false;
        job = find(f, NULL, &x);
        assert_int_equal(x.result, 0);
        assert_paths(&x, members, N_MEMBERS);
        found_done(&x);
        job_free(job);
}

static void nothing_left_is_enoent(void **state) {
        Fixture *f = *state;
        Found x;
        make_directory_unit(f);
        remove_source(f);
        Delivery *job = find(f, NULL, &x);
        assert_int_equal(x.result, -ENOENT);
        assert_null(x.members);
        found_done(&x);
        job_free(job);
}

static void members_of_what_the_agent_makes_have_its_kind(void **state) {
        static const struct {
                SourceKind bundle;
                MemberKind members;
        } kinds[] = { { SOURCE_SNAPSHOT, MEMBER_SNAPSHOT },
                      { SOURCE_CRASH_REPORT, MEMBER_CRASH_REPORT },
                      { SOURCE_OOM, MEMBER_CRASH_REPORT },
                      { SOURCE_DIRECTORY, MEMBER_OTHER } };
        Fixture *f = *state;
        make_directory_unit(f);
        for (size_t i = 0; i < ELEMENTSOF(kinds); i++) {
                Found x;
                f->bundle.rec.kind = kinds[i].bundle;
                Delivery *job = find(f, NULL, &x);
                assert_int_equal(x.result, 0);
                assert_paths(&x, members, N_MEMBERS);
                for (size_t k = 0; k < N_MEMBERS; k++)
                        assert_int_equal(plan_member(x.plan, k)->kind, kinds[i].members);
                found_done(&x);
                job_free(job);
        }
}

/* ---- what a run whose state is lost has delivered ---- */

static int add_text(const void *data, size_t n, void *userdata) {
        strbuf_add_n(userdata, data, n);
        return 0;
}

/* The manifest of a delivery of what is there now. */
static void deliver(const Fixture *f, WorkerPool *compressors, StrBuf *manifest) {
        DeliveryAttempt a;
        BundleFrame frame;
        BundleWriter *writer = NULL;
        Parts parts;
        const void *table;
        size_t n;
        bool is_closed;
        int r;
        Delivery *job = make_job(f);
        job->compressors = compressors;
        parts_init(&parts, 5 * MIB);
        assert_true(delivery_attempt_start(&a, job));
        const BundleWriterOptions options =
                delivery_attempt_writer_options(&a, bundle_writer_memory_min(1));
        assert_int_equal(bundle_writer_new(&writer, a.plan, &options), 0);
        while ((r = bundle_writer_next(writer, &frame)) == WRITER_FRAME)
                assert_int_equal(parts_add_frame(&parts, frame.data, frame.bytes, 0, &is_closed),
                                 0);
        assert_int_equal(r, 0);
        assert_int_equal(bundle_writer_seek_table(writer, &table, &n), 0);
        assert_int_equal(parts_finish(&parts, table, n), 0);
        job->object_bytes = parts.total_bytes;
        assert_int_equal(delivery_attempt_write_manifest(&a, writer, &parts, add_text, manifest),
                         0);
        bundle_writer_free(writer);
        parts_done(&parts);
        delivery_attempt_done(&a);
        job_free(job);
}

/* Compares what is there with that manifest, where the file `fails` cannot be opened. */
static Delivery *compare(const Fixture *f, const StrBuf *manifest) {
        DeliveryAttempt a;
        EarlierCopy earlier;
        const char *failing = fails;
        Delivery *job = make_job(f);
        fails = NULL; /* the plan has it */
        assert_true(delivery_attempt_start(&a, job));
        assert_true(delivery_attempt_read_manifest(&a, manifest->text, manifest->n));
        assert_true(delivery_attempt_end_manifest(&a, "it", &earlier));
        assert_int_equal(earlier, EARLIER_OTHER_PLAN);
        fails = failing;
        assert_false(delivery_attempt_delivered_before(&a));
        delivery_attempt_done(&a);
        return job;
}

static void what_cannot_be_compared_for_want_of_descriptors_is_not_taken_for_different(
        void **state) {
        Fixture *f = *state;
        static const struct {
                const char *name;
                int error;
                DeliveryResult result;
                size_t n_there;
        } cases[] = { { "z", -EMFILE, RESULT_NO_RESOURCES, 0 },
                      { "z", -ENOMEM, RESULT_NO_RESOURCES, 0 },
                      { "z", -EIO, RESULT_SOURCE_FAILED, 0 },
                      { "z", -ENOENT, RESULT_DELIVERED, N_MEMBERS - 2 },
                      { NULL, 0, RESULT_DELIVERED, N_MEMBERS - 1 } };
        _cleanup_(worker_pool_freep) WorkerPool *compressors = NULL;
        _cleanup_(strbuf_done) StrBuf manifest = STRBUF_INIT;
        make_directory_unit(f);
        assert_int_equal(worker_pool_new(&compressors, NULL, "zstd", 1, WORKER_NORMAL), 0);
        deliver(f, compressors, &manifest);
        write_member(f, "a", "more of it");
        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                fails = cases[i].name;
                fails_with = cases[i].error;
                Delivery *job = compare(f, &manifest);
                assert_int_equal(job->result, cases[i].result);
                assert_int_equal(job->n_prints, cases[i].n_there);
                job_free(job);
        }
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        const struct CMUnitTest tests[] = {
                TEST(all_ways_give_the_same_plan_fingerprints_and_bytes_even_without_the_source),
                TEST(a_single_file_is_found_in_all_ways),
                TEST(a_supplement_leaves_out_what_was_shipped),
                TEST(a_supplement_of_nothing_new_is_empty),
                TEST(what_was_removed_or_cannot_be_read_is_left_out_and_reported),
                TEST(of_very_many_that_cannot_be_read_twenty_are_named_and_the_rest_counted),
                TEST(what_is_no_regular_file_and_a_strangers_hard_link_is_no_member),
                TEST(without_links_the_next_best_way_is_used),
                TEST(nothing_left_is_enoent),
                TEST(members_of_what_the_agent_makes_have_its_kind),
                TEST(what_cannot_be_compared_for_want_of_descriptors_is_not_taken_for_different),
        };
        log_setup(LOG_FORMAT_TEXT, LOG_CRIT); /* errors are what is provoked here */
        return cmocka_run_group_tests_name("agent/delivery/delivery_members", tests, NULL, NULL);
}
