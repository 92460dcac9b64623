/* The manifest as it is written (a golden file), and what a manifest from a stranger's bucket may
 * not say. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/strbuf.h"
#include "lib/bundle/manifest.h"

/* The results of a writer that never ran: the manifest asks for nothing else of it. */
static MemberResult results[4096];
const MemberResult *bundle_writer_member(const BundleWriter *w, size_t i) {
        (void)w;
        return &results[i];
}

typedef struct Heard {
        StrBuf text;
        size_t n_pieces, longest;
        int answer; /* of put */
} Heard;

static int hear(const void *data, size_t n, void *userdata) {
        Heard *h = userdata;
        strbuf_add_n(&h->text, data, n);
        h->n_pieces++;
        h->longest = MAX(h->longest, n);
        return h->answer;
}

/* ---- a fixed plan ---- */

typedef struct Fixture {
        char directory[64];
        int fd;
        Plan *plan;
} Fixture;

static int setup(void **state) {
        Fixture *f = calloc(1, sizeof *f);
        assert_non_null(f);
        const char *tmp = getenv("TMPDIR");
        (void)snprintf(f->directory, sizeof f->directory, "%.40s/manifest-XXXXXX",
                       tmp ? tmp : "/tmp");
        assert_non_null(mkdtemp(f->directory));
        f->fd = open(f->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_true(f->fd >= 0);
        assert_int_equal(plan_new(&f->plan), 0);
        memset(results, 0, sizeof results);
        *state = f;
        return 0;
}

static int teardown(void **state) {
        Fixture *f = *state;
        plan_free(f->plan);
        (void)close(f->fd);
        assert_int_equal(rmdir(f->directory),
                         0); /* members are unlinked as soon as they are planned */
        free(f);
        return 0;
}

static void add_member(Fixture *f, const char *path, MemberKind kind, size_t bytes, mode_t mode) {
        _cleanup_close_ int fd =
                openat(f->fd, "member", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        _cleanup_free_ char *content = malloc(bytes + 1);
        const struct timespec times[2] = { { 1779859295, 123456789 }, { 1779859295, 123456789 } };
        assert_true(fd >= 0);
        assert_non_null(content);
        memset(content, 'm', bytes);
        assert_int_equal(write(fd, content, bytes), bytes);
        assert_int_equal(fchmod(fd, mode), 0);
        assert_int_equal(futimens(fd, times), 0);
        assert_int_equal(plan_add(f->plan, path, kind, fd), 0);
        assert_int_equal(unlinkat(f->fd, "member", 0), 0);
}

static void set_result(size_t i, uint8_t fill, Verdict verdict, const char *detail) {
        memset(results[i].sha256, fill, SHA256_SIZE);
        results[i].verdict = verdict;
        results[i].detail = (char *)detail;
}

static const char *const labels[] = { "cluster", "prod-a", "note", "a \"quoted\" \\ word", NULL };
static const char *const reasons[] = { "file 'x' was still growing after 30m", NULL };

static ManifestInfo info_make(void) {
        return (ManifestInfo){
                .id = "neuron-core-dump-20260527T051233-0123456789ab",
                .object = "neuron-core-dump-20260527T051233-0123456789ab.tar.zst",
                .kind = SOURCE_NEURON_CORE_DUMP,
                .bytes = 300,
                .complete = false,
                .reasons = reasons,
                .instance_id = "i-0123456789abcdef0",
                .hostname = "trn-17",
                .labels = labels,
                .source_name = "core-dumps",
                .source_path = "/tmp/neuron-core-dump/dt-\xff",
                .uid = 1000,
                .user = "alice",
                .cluster_id = "d99e36ea74c263ca",
                .date_time = "20260527-051233",
                .agreed = "alone",
                .agent_version = "0.1.0",
                .created_usec = UINT64_C(1779859300000001),
        };
}

/* @return the document, the caller's */
static char *write_manifest(const Plan *plan, const ManifestInfo *info) {
        Part items[] = { { .bytes = 200 }, { .bytes = 100 } };
        const Parts parts = { .items = items, .n = ELEMENTSOF(items) };
        uint8_t digest[SHA256_SIZE];
        Heard h = { .answer = 0 };
        memset(items[0].sha256, 0xa1, SHA256_SIZE);
        memset(items[1].sha256, 0xa2, SHA256_SIZE);
        memset(digest, 0xb0, sizeof digest);
        assert_int_equal(
                manifest_write(info, &(ManifestContent){ plan, NULL, &parts, digest }, hear, &h),
                0);
        char *text = strbuf_detach(&h.text);
        assert_non_null(text);
        return text;
}

/* One member of each verdict, names that hurt, and a frame boundary between two of them. */
static char *golden_make(Fixture *f) {
        add_member(f, "a \"quoted\"\nname", MEMBER_OTHER, 10, 0644);
        add_member(f, "b-\xff\\-raw", MEMBER_OTHER, 0, 0600);
        add_member(f, "c-\xc3\xbc-nd0-nc0", MEMBER_NC_STATE, 3 << 20, 0640);
        add_member(f, "d/core.1", MEMBER_ELF_CORE, 5000, 04755);
        add_member(f, "neff_1.neff", MEMBER_NEFF, 2000, 0400);
        assert_int_equal(plan_freeze(f->plan), 0);
        set_result(0, 0x10, VERDICT_OPAQUE, "name not known");
        set_result(1, 0x11, VERDICT_EMPTY, NULL);
        set_result(2, 0x12, VERDICT_OPAQUE, "format not public");
        set_result(3, 0x13, VERDICT_TRUNCATED, "10 of 5010 bytes are missing, by its headers");
        results[3].is_sparse_digest = true;
        set_result(4, 0x14, VERDICT_OK, "");
        ManifestInfo info = info_make();
        return write_manifest(f->plan, &info);
}

static void the_manifest_is_the_golden_one(void **state) {
        _cleanup_free_ char *text = golden_make(*state), *golden = NULL, *path = NULL;
        const char *srcdir = getenv("srcdir");
        assert_true(asprintf(&path, "%s/tests/golden/manifest/manifest.json",
                             srcdir ? srcdir : ".") > 0);
        if (getenv("UPDATE_GOLDEN")) {
                _cleanup_fclose_ FILE *file = fopen(path, "we");
                assert_non_null(file);
                assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
        }
        size_t n;
        assert_int_equal(fs_read_file(AT_FDCWD, path, MIB, &golden, &n), 0);
        assert_string_equal(text, golden);
}

/* ---- fields from a hook note ---- */

static const ManifestFailure failures[] = {
        { .has_code = true,
          .code = 1200,
          .name = "NRT_EXEC_HW_ERR_COLLECTIVES",
          .location = "nrt_execute",
          .neff_name = "model \"a\".neff",
          .neff_uuid = "0123",
          .has_pid = true,
          .pid = 4444,
          .has_tid = true,
          .tid = 4450,
          .has_log_id = true,
          .log_id = 1,
          .rank = 3,
          .time_usec = UINT64_C(1779859295000001) },
        { .name = "what is \xff this",
          .container = "0123456789abcdef",
          .rank = -1,
          .time_usec = UINT64_C(1779859296000000) },
};

static char *hooked_make(Fixture *f, size_t n, const ManifestJob *job) {
        add_member(f, "a", MEMBER_OTHER, 10, 0644);
        assert_int_equal(plan_freeze(f->plan), 0);
        set_result(0, 0x10, VERDICT_OPAQUE, "");
        ManifestInfo info = info_make();
        info.failures = failures;
        info.n_failures = n;
        info.job = job;
        return write_manifest(f->plan, &info);
}

static void the_first_failure_and_the_job_stand_where_the_contract_states(void **state) {
        const ManifestJob job = {
                .key = "run-7", .source = "torchrun", .rank = 3, .world_size = 64
        };
        _cleanup_free_ char *text = hooked_make(*state, 1, &job), *fault = NULL;
        json_t *manifest = NULL;
        assert_non_null(strstr(
                text, " \"failure\": {\"code\": 1200, \"name\": \"NRT_EXEC_HW_ERR_COLLECTIVES\", "
                      "\"location\": \"nrt_execute\", \"neff_name\": \"model \\\"a\\\".neff\", "
                      "\"neff_uuid\": \"0123\"},\n"));
        assert_non_null(strstr(text,
                               "\"job\": {\"key\": \"run-7\", \"rank\": 3, \"world_size\": 64, "
                               "\"source\": \"torchrun\"}},\n"));
        assert_null(strstr(text, "failures"));
        if (manifest_read(text, strlen(text), &manifest, &fault) < 0)
                fail_msg("%s", fault);
        json_decref(manifest);
}

static void of_several_failures_each_has_its_own_process_rank_and_time(void **state) {
        const ManifestJob job = { .source = "slurm", .rank = -1, .world_size = -1 };
        _cleanup_free_ char *text = hooked_make(*state, 2, &job), *fault = NULL;
        json_t *manifest = NULL;
        if (manifest_read(text, strlen(text), &manifest, &fault) < 0)
                fail_msg("%s", fault);
        const json_t *list = json_object_get(manifest, "failures");
        assert_int_equal(json_array_size(list), 2);
        const json_t *first = json_array_get(list, 0), *second = json_array_get(list, 1);
        assert_int_equal(json_integer_value(json_object_get(first, "pid")), 4444);
        assert_int_equal(json_integer_value(json_object_get(first, "tid")), 4450);
        assert_int_equal(json_integer_value(json_object_get(first, "log_id")), 1);
        assert_int_equal(json_integer_value(json_object_get(first, "rank")), 3);
        assert_string_equal(json_string_value(json_object_get(first, "time")),
                            "2026-05-27T05:21:35.000001Z");
        assert_true(json_is_null(json_object_get(second, "code")));
        assert_true(json_is_null(json_object_get(second, "rank")));
        assert_string_equal(json_string_value(json_object_get(second, "container")),
                            "0123456789abcdef");
        assert_null(json_object_get(first, "container")); /* nothing is known of one */
        assert_string_equal(json_string_value(json_object_get(second, "name")),
                            "what is \\xff this");
        const json_t *written = json_object_get(json_object_get(manifest, "incident"), "job");
        assert_true(json_is_null(json_object_get(written, "key")));
        assert_true(json_is_null(json_object_get(written, "world_size")));
        json_decref(manifest);
}

static void of_very_many_failures_the_first_128_are_reported(void **state) {
        static ManifestFailure many[200];
        Fixture *f = *state;
        for (size_t i = 0; i < ELEMENTSOF(many); i++)
                many[i] = (ManifestFailure){ .has_pid = true, .pid = i, .rank = -1 };
        add_member(f, "a", MEMBER_OTHER, 10, 0644);
        assert_int_equal(plan_freeze(f->plan), 0);
        set_result(0, 0x10, VERDICT_OPAQUE, "");
        ManifestInfo info = info_make();
        info.failures = many;
        info.n_failures = ELEMENTSOF(many);
        _cleanup_free_ char *text = write_manifest(f->plan, &info), *fault = NULL;
        json_t *manifest = NULL;
        if (manifest_read(text, strlen(text), &manifest, &fault) < 0)
                fail_msg("%s", fault);
        const json_t *list = json_object_get(manifest, "failures");
        assert_int_equal(json_array_size(list), MANIFEST_FAILURES_MAX);
        assert_int_equal(json_integer_value(json_object_get(json_array_get(list, 127), "pid")),
                         127);
        json_decref(manifest);
}

/* @return whether it is refused, with a fault that begins so */
static bool is_refused(const char *text, const char *from, const char *to,
                       const char *fault_begins) {
        const char *at = strstr(text, from);
        assert_non_null(at);
        _cleanup_free_ char *changed = NULL, *fault = NULL;
        json_t *manifest = NULL;
        assert_true(asprintf(&changed, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from)) >
                    0);
        int r = manifest_read(changed, strlen(changed), &manifest, &fault);
        if (r >= 0)
                json_decref(manifest);
        else if (strncmp(fault, fault_begins, strlen(fault_begins)) != 0)
                fail_msg("%s", fault);
        return r == -EINVAL;
}

static void what_an_untrusted_manifest_states_of_failures_is_checked(void **state) {
        const ManifestJob job = { .key = "k", .source = "slurm", .rank = 1, .world_size = 2 };
        _cleanup_free_ char *text = hooked_make(*state, 2, &job);
        assert_true(is_refused(text, "\"code\": 1200", "\"code\": \"x\"", "failure.code is"));
        assert_true(is_refused(text, "\"pid\": 4444", "\"pid\": -1", "failures[0].pid"));
        assert_true(is_refused(text, "\"container\": \"0123456789abcdef\"", "\"container\": 7",
                               "failures[1].container"));
        assert_true(is_refused(text, "\"world_size\": 2", "\"world_size\": []",
                               "incident.job.world_size"));
        assert_true(is_refused(text, "\"failures\": [", "\"failures\": [7, ", "failures[0] is"));
        assert_true(is_refused(text, "\"failures\": [", "\"failures\": 3, \"x\": [",
                               "failures is not a list"));
}

static void the_manifest_is_json_for_python_too(void **state) {
        _cleanup_free_ char *text = golden_make(*state);
        FILE *python = popen("python3 -m json.tool >/dev/null", "we");
        assert_non_null(python);
        assert_int_equal(fwrite(text, 1, strlen(text), python), strlen(text));
        assert_int_equal(pclose(python), 0);
}

static void a_member_and_a_part_have_a_line_each(void **state) {
        _cleanup_free_ char *text = golden_make(*state);
        size_t n_members = 0, n_parts = 0;
        for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
                n_members += strstr(line, "\"path\": ") && strstr(line, "\"verdict\": ");
                n_parts += strstr(line, "{\"bytes\": ") && strstr(line, "\"sha256\": ");
        }
        assert_int_equal(n_members, 5);
        assert_int_equal(n_parts, 2);
}

static void what_is_written_can_be_read(void **state) {
        _cleanup_free_ char *text = golden_make(*state), *fault = NULL;
        json_t *manifest = NULL;
        if (manifest_read(text, strlen(text), &manifest, &fault) < 0)
                fail_msg("%s", fault);
        const json_t *member = json_array_get(json_object_get(manifest, "members"), 1);
        assert_string_equal(json_string_value(json_object_get(member, "path")), "b-\\xff\\x5c-raw");
        assert_true(json_is_null(json_object_get(manifest, "failure")));
        json_decref(manifest);
}

static void every_member_lies_where_the_manifest_states(void **state) {
        Fixture *f = *state;
        _cleanup_free_ char *text = golden_make(f), *fault = NULL;
        json_t *manifest = NULL, *member;
        size_t i;
        assert_int_equal(manifest_read(text, strlen(text), &manifest, &fault), 0);
        json_array_foreach(json_object_get(manifest, "members"), i, member) {
                const uint64_t frame = (uint64_t)json_integer_value(
                                       json_object_get(member, "frame")),
                               offset = (uint64_t)json_integer_value(
                                       json_object_get(member, "offset"));
                uint64_t begin, bytes;
                plan_frame(f->plan, frame, &begin, &bytes);
                assert_true(begin <= offset && offset < begin + bytes);
        }
        json_decref(manifest);
}

static void related_bundles_are_named_with_their_kinds(void **state) {
        static const char related[][BUNDLE_ID_SIZE] = {
                "neuron-core-dump-20260527T051233-0123456789ab",
                "crash-report-20260527T051233-0123456789ac"
        };
        Fixture *f = *state;
        ManifestInfo info = info_make();
        info.related = related;
        info.n_related = ELEMENTSOF(related);
        assert_int_equal(plan_freeze(f->plan), 0);
        _cleanup_free_ char *text = write_manifest(f->plan, &info), *fault = NULL;
        json_t *manifest = NULL;
        if (manifest_read(text, strlen(text), &manifest, &fault) < 0)
                fail_msg("%s", fault);
        const json_t *list = json_object_get(json_object_get(manifest, "bundle"), "related");
        assert_int_equal(json_array_size(list), 2);
        assert_string_equal(json_string_value(json_object_get(json_array_get(list, 0), "kind")),
                            "neuron-core-dump");
        assert_string_equal(json_string_value(json_object_get(json_array_get(list, 1), "kind")),
                            "crash-report");
        assert_string_equal(json_string_value(json_object_get(json_array_get(list, 1), "id")),
                            related[1]);
        json_decref(manifest);
}

static void what_is_not_known_is_null(void **state) {
        Fixture *f = *state;
        ManifestInfo info = info_make();
        info.cluster_id = info.date_time = info.user = NULL;
        info.labels = info.reasons = NULL;
        info.supplement_of = "neuron-core-dump-20260527T051233-0123456789ab";
        assert_int_equal(plan_freeze(f->plan), 0);
        _cleanup_free_ char *text = write_manifest(f->plan, &info), *fault = NULL;
        json_t *manifest = NULL;
        if (manifest_read(text, strlen(text), &manifest, &fault) < 0)
                fail_msg("%s", fault);
        assert_true(json_is_null(json_object_get(manifest, "incident")));
        assert_true(json_is_null(json_object_get(json_object_get(manifest, "source"), "user")));
        assert_int_equal(
                json_object_size(json_object_get(json_object_get(manifest, "node"), "labels")), 0);
        assert_int_equal(json_array_size(json_object_get(manifest, "members")), 0);
        json_decref(manifest);
}

static void many_members_come_in_small_pieces(void **state) {
        Fixture *f = *state;
        const size_t n = ELEMENTSOF(results);
        for (size_t i = 0; i < n; i++) {
                char path[32];
                (void)snprintf(path, sizeof path, "m-%06zu", i);
                add_member(f, path, MEMBER_OTHER, 1, 0644);
                set_result(i, 1, VERDICT_OPAQUE, "");
        }
        assert_int_equal(plan_freeze(f->plan), 0);

        ManifestInfo info = info_make();
        const Parts parts = { .n = 0 };
        const uint8_t digest[SHA256_SIZE] = { 1 };
        Heard h = { .answer = 0 };
        assert_int_equal(manifest_write(&info, &(ManifestContent){ f->plan, NULL, &parts, digest },
                                        hear, &h),
                         0);
        assert_true(h.n_pieces > 100);
        assert_true(h.longest <= 8192);
        strbuf_done(&h.text);

        Heard deaf = { .answer = -ENOSPC };
        assert_int_equal(manifest_write(&info, &(ManifestContent){ f->plan, NULL, &parts, digest },
                                        hear, &deaf),
                         -ENOSPC);
        assert_int_equal(deaf.n_pieces, 1); /* and is not asked again */
        strbuf_done(&deaf.text);
}

static void a_member_without_a_digest_is_refused(void **state) {
        Fixture *f = *state;
        add_member(f, "a", MEMBER_OTHER, 1, 0644);
        assert_int_equal(plan_freeze(f->plan), 0);
        ManifestInfo info = info_make();
        const Parts parts = { .n = 0 };
        const uint8_t digest[SHA256_SIZE] = { 1 };
        Heard h = { .answer = 0 };
        assert_int_equal(manifest_write(&info, &(ManifestContent){ f->plan, NULL, &parts, digest },
                                        hear, &h),
                         -EINVAL);
        strbuf_done(&h.text);
}

/* ---- reading what somebody else wrote ---- */

static char *replaced(const char *text, const char *from, const char *to) {
        const char *at = strstr(text, from);
        char *result = NULL;
        assert_non_null(at);
        assert_true(asprintf(&result, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from)) >
                    0);
        return result;
}

typedef struct FaultCase {
        const char *from, *to, *fault;
} FaultCase;

static void assert_named(const char *text, const FaultCase *c) {
        _cleanup_free_ char *bad = replaced(text, c->from, c->to), *fault = NULL;
        json_t *manifest = NULL;
        if (manifest_read(bad, strlen(bad), &manifest, &fault) != -EINVAL)
                fail_msg("taken though it should say: %s", c->fault);
        if (!strstr(fault, c->fault))
                fail_msg("got '%s', expected '%s'", fault, c->fault);
}

static void each_fault_is_named(void **state) {
        static const FaultCase cases[] = {
                { "manifest/1", "manifest/2",
                  "schema: 'neuron-collectd/manifest/2' is not 'neuron-collectd/manifest/1'" },
                { "\"bundle\":", "\"bungle\":", "bundle is missing" },
                { "\"bytes\": 300", "\"bytes\": \"300\"",
                  "bundle.bytes is a text, expected a whole number" },
                { "\"bytes\": 300", "\"bytes\": -1", "bundle.bytes: -1 is negative" },
                { "\"bytes\": 300", "\"bytes\": 301",
                  "bundle.parts have 300 bytes together, bundle.bytes says 301" },
                { "\"bytes\": 300", "\"bytes\": 299",
                  "bundle.parts[1].bytes: 100 does not fit into the object's 299" },
                { "\"bytes\": 200", "\"bytes\": 9223372036854775807",
                  "bundle.parts[0].bytes: 9223372036854775807 does not fit" },
                { "\"bytes\": 200", "\"bytes\": 3e2",
                  "bundle.parts[0].bytes is a number with a fraction" },
                { "\"id\": \"neuron", "\"id\": \"../neuron",
                  "bundle.id: '../neuron-core-dump-20260527T051233-0123456789ab' is not a bundle "
                  "id" },
                { "\"kind\": \"neuron-core-dump\"", "\"kind\": \"x\"",
                  "bundle.kind: 'x' is not a kind of source" },
                { "\"object\": \"", "\"object\": \"../", "bundle.object: '../neuron" },
                { "\"plan\": \"b0", "\"plan\": \"", "bundle.plan: 'b0b0" },
                { "\"complete\": false", "\"complete\": 0",
                  "bundle.complete is a whole number, expected true or false" },
                { "\"reasons\": [", "\"reasons\": [1, ", "bundle.reasons[0] is not a text" },
                { "\"supplement_of\": null", "\"supplement_of\": \"x\"",
                  "bundle.supplement_of: 'x' is not a bundle id" },
                { "\"prod-a\"", "[]", "node.labels.cluster is not a text" },
                { "\"uid\": 1000", "\"uid\": null", "source.uid is null, expected a whole number" },
                { "\"agreed\": \"alone\"", "\"agreed\": \"no\"",
                  "incident.agreed: 'no' is not one of bus, store, alone" },
                { "\"derived\": false", "\"derived\": null", "incident.derived is null" },
                { "\"path\": \"a ", "\"path\": \"/a ", "members[0].path: '/a " },
                { "\"path\": \"d/core.1", "\"path\": \"d/../core.1",
                  "members[3].path: 'd/../core.1' is not a path below the source" },
                { "\"path\": \"d/core.1", "\"path\": \"d//core.1",
                  "members[3].path: 'd//core.1' is not a path below the source" },
                { "\"path\": \"d/core.1", "\"path\": \"d/./core.1",
                  "is not a path below the source" },
                { "\"path\": \"d/core.1", "\"path\": \"d/\\\\xzz",
                  "members[3].path: 'd/\\xzz' is not a path" },
                { "\"path\": \"d/core.1", "\"path\": \"b",
                  "members[3].path: 'b' stands twice or out of order" },
                { "\"path\": \"d/core.1", "\"path\": \"neff_1.neff",
                  "members[4].path: 'neff_1.neff' stands twice or out of order" },
                { "\"mode\": \"0644\"", "\"mode\": \"0988\"",
                  "members[0].mode: '0988' is not a mode" },
                { "\"sha256\": \"1010", "\"sha256\": \"10", "members[0].sha256: '10" },
                { "\"sha256_sparse\": \"13", "\"sparse\": \"13",
                  "members[3].sha256 is null, and there is no sha256_sparse" },
                { "\"sha256_sparse\": \"13", "\"sha256_sparse\": \"zz",
                  "members[3].sha256_sparse: 'zz" },
                { "\"kind\": \"nc-state\"", "\"kind\": \"nd-state\"",
                  "members[2].kind: 'nd-state' is not a kind of member" },
                { "\"verdict\": \"truncated\"", "\"verdict\": \"fine\"",
                  "members[3].verdict: 'fine' is not a verdict" },
                { "\"frame\": 0", "\"frame\": 3000", "members[0].frame: 3000 of " },
                { "\"offset\": ", "\"offset\": 1", "members[0].offset: 1" },
                { "\"offset\": ", "\"offset\": 9999999999999",
                  "is not a valid offset in a tar stream" },
                { "zstd-seekable", "zip", "frames.format: 'zip' is not 'zstd-seekable'" },
                { "\"failure\": null", "\"failure\": []", "failure is a list, expected an object" },
                { "\"failure\": null", "\"failure\": null, \"failure\": null", "duplicate" },
                { "{\"schema\"", "[{\"schema\"", "line " },
        };
        _cleanup_free_ char *text = golden_make(*state);
        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                assert_named(text, &cases[i]);
}

static void a_header_that_cannot_be_is_named(void **state) {
        static const FaultCase cases[] = {
                { "\"header\": 1536", "\"header\": 2048",
                  "members[0].header: 2048 bytes are no tar header before offset 1536" },
                { "\"header\": 1536", "\"header\": 0", "members[0].header: 0 bytes are no" },
                { "\"header\": 1536", "\"header\": -512", "members[0].header: -512 bytes" },
                { "\"header\": 1536", "\"header\": 600", "members[0].header: 600 bytes" },
                { "\"header\": 1536", "\"header\": null",
                  "members[0].header is null, expected a whole number" },
        };
        _cleanup_free_ char *text = golden_make(*state);
        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                assert_named(text, &cases[i]);
}

static void fields_of_later_versions_are_ignored(void **state) {
        _cleanup_free_ char *text = golden_make(*state), *fault = NULL;
        _cleanup_free_ char *newer =
                replaced(text, "\"failure\": null",
                         "\"weather\": {\"rain\": [1.5]}, \"failure\": {\"code\": 5}");
        json_t *manifest = NULL;
        assert_int_equal(manifest_read(newer, strlen(newer), &manifest, &fault), 0);
        json_decref(manifest);
}

static void a_manifest_cut_short_is_refused_wherever_it_ends(void **state) {
        _cleanup_free_ char *text = golden_make(*state);
        for (size_t n = 0; n + 2 < strlen(text); n++) {
                _cleanup_free_ char *fault = NULL;
                json_t *manifest = NULL;
                assert_int_equal(manifest_read(text, n, &manifest, &fault), -EINVAL);
                assert_true(strlen(fault) > 5);
        }
}

typedef struct Seen {
        size_t n;
        char paths[8][64];
        uint8_t first_byte[8];
} Seen;

static int see_member(const ManifestMember *m, void *userdata) {
        Seen *seen = userdata;
        assert_true(seen->n < ELEMENTSOF(seen->paths));
        (void)snprintf(seen->paths[seen->n], sizeof seen->paths[0], "%s", m->path);
        seen->first_byte[seen->n++] = m->sha256[0];
        assert_int_equal(m->is_sparse_digest, seen->n == 4);
        return 0;
}

static int stream(const char *text, size_t n, size_t piece, Seen *seen, ManifestHead *head) {
        _cleanup_(manifest_stream_freep) ManifestStream *s = NULL;
        assert_int_equal(manifest_stream_new(&s, seen ? see_member : NULL, seen), 0);
        for (size_t at = 0; at < n; at += piece)
                if (manifest_stream_feed(s, text + at, MIN(piece, n - at)) < 0)
                        return -EINVAL;
        return manifest_stream_end(s, head);
}

static void a_stream_of_any_pieces_has_every_member(void **state) {
        _cleanup_free_ char *text = golden_make(*state);
        static const size_t pieces[] = { 1, 2, 7, 64, 1000, 1000000 };
        for (size_t i = 0; i < ELEMENTSOF(pieces); i++) {
                _cleanup_(manifest_head_done) ManifestHead head = { 0 };
                Seen seen = { 0 };
                assert_int_equal(stream(text, strlen(text), pieces[i], &seen, &head), 0);
                assert_int_equal(seen.n, 5);
                assert_string_equal(seen.paths[1], "b-\xff\\-raw");
                assert_int_equal(seen.first_byte[4], 0x14);
                assert_string_equal(head.id, "neuron-core-dump-20260527T051233-0123456789ab");
                assert_int_equal(head.n_parts, 2);
                assert_int_equal(head.bytes, 300);
                assert_false(head.complete);
        }
}

static void a_stream_without_its_end_is_truncated_wherever_it_ends(void **state) {
        _cleanup_free_ char *text = golden_make(*state);
        for (size_t n = 0; n < strlen(text); n++) {
                ManifestHead head;
                assert_int_equal(stream(text, n, 50, NULL, &head), MANIFEST_E_TRUNCATED);
        }
}

static void a_stream_of_something_else_is_none_of_ours(void **state) {
        _cleanup_free_ char *text = golden_make(*state);
        _cleanup_free_ char *more = NULL;
        assert_true(asprintf(&more, "%sx", text) > 0);
        char *bad[] = { strdup("hello"),
                        strdup("{}"),
                        strdup("{\n"),
                        replaced(text, "manifest/1", "manifest/9"),
                        replaced(text, "\"parts\": [", "\"ports\": ["),
                        replaced(text, "\"sha256\": \"10", "\"sha256\": \"1x"),
                        replaced(text, "\"format\"", "\"farmat\""),
                        replaced(text, "d/core.1", "d/../core.1"),
                        TAKE_PTR(more) };
        for (size_t i = 0; i < ELEMENTSOF(bad); i++) {
                ManifestHead head;
                assert_non_null(bad[i]);
                assert_int_equal(stream(bad[i], strlen(bad[i]), 33, NULL, &head), -EINVAL);
                free(bad[i]);
        }
}

static void a_fault_never_carries_what_a_terminal_would_obey(void **state) {
        _cleanup_free_ char *text = golden_make(*state), *fault = NULL;
        _cleanup_free_ char *bad = replaced(text, "manifest/1", "\\u001b[2J");
        json_t *manifest = NULL;
        assert_int_equal(manifest_read(bad, strlen(bad), &manifest, &fault), -EINVAL);
        assert_null(strchr(fault, '\x1b'));
        assert_non_null(strstr(fault, "\\x1b[2J"));
}

static void too_large_too_deep_and_no_object_are_refused(void **state) {
        _cleanup_free_ char *fault = NULL;
        json_t *manifest = NULL;
        assert_int_equal(manifest_read("", 256 * MIB + 1, &manifest, &fault),
                         -EINVAL); /* by the size alone */
        assert_non_null(strstr(fault, "at most 268435456 are read"));
        free(TAKE_PTR(fault));

        assert_int_equal(manifest_read("[]", 2, &manifest, &fault), -EINVAL);
        assert_string_equal(fault, "the document is a list, expected an object");
        free(TAKE_PTR(fault));

        char deep[100000];
        memset(deep, '[', sizeof deep);
        assert_int_equal(manifest_read(deep, sizeof deep, &manifest, &fault), -EINVAL);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(the_manifest_is_the_golden_one, setup, teardown),
                cmocka_unit_test_setup_teardown(
                        the_first_failure_and_the_job_stand_where_the_contract_states, setup,
                        teardown),
                cmocka_unit_test_setup_teardown(
                        of_several_failures_each_has_its_own_process_rank_and_time, setup,
                        teardown),
                cmocka_unit_test_setup_teardown(of_very_many_failures_the_first_128_are_reported,
                                                setup, teardown),
                cmocka_unit_test_setup_teardown(
                        what_an_untrusted_manifest_states_of_failures_is_checked, setup, teardown),
                cmocka_unit_test_setup_teardown(the_manifest_is_json_for_python_too, setup,
                                                teardown),
                cmocka_unit_test_setup_teardown(a_member_and_a_part_have_a_line_each, setup,
                                                teardown),
                cmocka_unit_test_setup_teardown(what_is_written_can_be_read, setup, teardown),
                cmocka_unit_test_setup_teardown(every_member_lies_where_the_manifest_states, setup,
                                                teardown),
                cmocka_unit_test_setup_teardown(related_bundles_are_named_with_their_kinds, setup,
                                                teardown),
                cmocka_unit_test_setup_teardown(what_is_not_known_is_null, setup, teardown),
                cmocka_unit_test_setup_teardown(many_members_come_in_small_pieces, setup, teardown),
                cmocka_unit_test_setup_teardown(a_member_without_a_digest_is_refused, setup,
                                                teardown),
                cmocka_unit_test_setup_teardown(each_fault_is_named, setup, teardown),
                cmocka_unit_test_setup_teardown(a_header_that_cannot_be_is_named, setup, teardown),
                cmocka_unit_test_setup_teardown(fields_of_later_versions_are_ignored, setup,
                                                teardown),
                cmocka_unit_test_setup_teardown(a_manifest_cut_short_is_refused_wherever_it_ends,
                                                setup, teardown),
                cmocka_unit_test_setup_teardown(a_stream_of_any_pieces_has_every_member, setup,
                                                teardown),
                cmocka_unit_test_setup_teardown(
                        a_stream_without_its_end_is_truncated_wherever_it_ends, setup, teardown),
                cmocka_unit_test_setup_teardown(a_stream_of_something_else_is_none_of_ours, setup,
                                                teardown),
                cmocka_unit_test_setup_teardown(a_fault_never_carries_what_a_terminal_would_obey,
                                                setup, teardown),
                cmocka_unit_test(too_large_too_deep_and_no_object_are_refused),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
