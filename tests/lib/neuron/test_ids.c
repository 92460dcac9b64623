/* Identities. Digests are checked against Python's hashlib (values below were made with it). */
#include "lib/neuron/bundle_name.h"
#include "lib/neuron/ids.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "tests/lib/base/scratch.h"

static void check_id(const char *fixed, const char *sysfs, const char *id, const char *origin) {
        char got[INSTANCE_ID_SIZE];
        const char *from = NULL;

        assert_int_equal(instance_id_find(fixed, sysfs, got, &from), 0);
        assert_string_equal(got, id);
        assert_string_equal(from, origin);
}

static void make_tag(const Scratch *s, const char *dir, const char *text) {
        char path[PATH_MAX + 64];

        (void)snprintf(path, sizeof path, "%s/%s", s->path, dir);
        assert_int_equal(fs_mkdir_p(path, 0755), 0);
        (void)snprintf(path, sizeof path, "%s/board_asset_tag", dir);
        assert_int_equal(scratch_write(s, path, text), 0);
}

static const char *our_host(char *buf) {
        char host[HOST_NAME_MAX + 1] = "";

        assert_int_equal(gethostname(host, sizeof host - 1), 0);
        instance_id_from_host(host, buf);
        return buf;
}

static void a_configured_id_is_used_unchanged(void **state) {
        const Scratch *s = *state;

        make_tag(s, "devices/virtual/dmi/id", "i-0123456789abcdef0\n");
        check_id("rack7.node_3-B", s->path, "rack7.node_3-B", "configuration");
}

static void a_configured_id_must_be_safe_in_a_path(void **state) {
        static const char *const bad[] = { ".", "..", "a/b", "a b", "\n", "h\xc3\xb6st", "%i" };
        const Scratch *s = *state;
        char id[INSTANCE_ID_SIZE] = "kept", longer[INSTANCE_ID_SIZE + 1];
        const char *origin = "kept";

        for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                assert_int_equal(instance_id_find(bad[i], s->path, id, &origin), -EINVAL);
        memset(longer, 'a', sizeof longer - 1);
        longer[sizeof longer - 1] = '\0';
        assert_int_equal(instance_id_find(longer, s->path, id, &origin), -ENAMETOOLONG);
        assert_string_equal(id, "kept");
        assert_string_equal(origin, "kept");
}

static void the_board_s_asset_tag_is_the_ec2_id(void **state) {
        const Scratch *s = *state;

        make_tag(s, "devices/virtual/dmi/id", "i-0123456789abcdef0\n");
        make_tag(s, "class/dmi/id", "i-0fedcba9876543210\n");
        check_id(NULL, s->path, "i-0123456789abcdef0", "dmi");
        check_id("", s->path, "i-0123456789abcdef0", "dmi");
        check_id("auto", s->path, "i-0123456789abcdef0", "dmi");
}

static void the_class_directory_serves_as_well(void **state) {
        const Scratch *s = *state;

        make_tag(s, "class/dmi/id", "i-0abc1234");
        check_id("auto", s->path, "i-0abc1234", "dmi");
}

static void any_other_asset_tag_is_no_id(void **state) {
        static const char *const tags[] = {
                "", "\n", "No Asset Tag\n", "i-\n", "Not Specified", "i-0123456789abcdef0 \n"
        };
        const Scratch *s = *state;
        char host[INSTANCE_ID_SIZE], big[4096];

        for (size_t i = 0; i < ELEMENTSOF(tags); i++) {
                make_tag(s, "devices/virtual/dmi/id", tags[i]);
                check_id("auto", s->path, our_host(host), "hostname");
        }
        memset(big, 'i', sizeof big - 1);
        big[sizeof big - 1] = '\0';
        make_tag(s, "devices/virtual/dmi/id", big);
        check_id("auto", s->path, our_host(host), "hostname");
}

static void without_sysfs_the_host_name_serves(void **state) {
        char host[INSTANCE_ID_SIZE];

        check_id("auto", "/nonexistent", our_host(host), "hostname");
}

static void check_host(const char *host, const char *expected) {
        char id[INSTANCE_ID_SIZE];

        instance_id_from_host(host, id);
        assert_string_equal(id, expected);
}

static void a_host_name_becomes_safe(void **state) {
        char longest[200], id[INSTANCE_ID_SIZE];

        check_host("ip-10-0-0-1.ec2.internal", "ip-10-0-0-1.ec2.internal");
        check_host("a/b\n%i\xff", "a-b--i-");
        check_host("", "unknown-host");
        check_host(".", "unknown-host");
        check_host("..", "unknown-host");
        memset(longest, 'x', sizeof longest - 1);
        longest[sizeof longest - 1] = '\0';
        instance_id_from_host(longest, id);
        assert_int_equal(strlen(id), INSTANCE_ID_SIZE - 1);
}

static const BundleIdInput dump = {
        .kind = SOURCE_NEURON_CORE_DUMP,
        .instance_id = "i-0123456789abcdef0",
        .source = "core-dumps",
        .path = "/tmp/neuron-core-dump/dt-20260527-051233-cid-d99e36ea74c263ca",
        .date_time = "20260527-051233",
        .oldest_mtime_usec = 0,
        .unique_name = true,
        .first_dev = 2049,
        .first_ino = 4711,
        .first_mtime_nsec = INT64_C(1779858753123456789),
};

/* import hashlib, struct; u = lambda v: struct.pack('<Q', v % 2**64); t = lambda s: u(len(s)) + s
 * hashlib.sha256(t(instance) + t(source) + t(path) [+ u(dev) + u(ino) +
 * u(mtime_nsec)]).hexdigest()[:12] */
static void a_bundle_id_is_what_the_header_states(void **state) {
        BundleIdInput in = dump;
        char id[BUNDLE_ID_SIZE];

        bundle_id_build(&in, id);
        assert_string_equal(id, "neuron-core-dump-20260527T051233-1f9e1778ebf5");
        in.unique_name = false;
        bundle_id_build(&in, id);
        assert_string_equal(id, "neuron-core-dump-20260527T051233-370ace7204cd");
        in.date_time = "2026-05-27-05-12";
        bundle_id_build(&in, id);
        assert_string_equal(id, "neuron-core-dump-20260527T051200-370ace7204cd");
}

static void a_bundle_without_a_date_has_the_time_of_its_oldest_member(void **state) {
        static const char *const no_dates[] = { "", "20261327-000000", "yesterday" };
        BundleIdInput in = dump;
        char id[BUNDLE_ID_SIZE];

        in.kind = SOURCE_DIRECTORY;
        in.oldest_mtime_usec = UINT64_C(1758138283999999);
        for (size_t i = 0; i < ELEMENTSOF(no_dates); i++) {
                in.date_time = no_dates[i];
                bundle_id_build(&in, id);
                assert_string_equal(id, "directory-20250917T194443-1f9e1778ebf5");
        }
        in.oldest_mtime_usec = UINT64_MAX; /* what a hostile file may claim */
        bundle_id_build(&in, id);
        assert_string_equal(id, "directory-99991231T235959-1f9e1778ebf5");
        assert_true(bundle_id_is_valid(id));
        in.oldest_mtime_usec = 0;
        bundle_id_build(&in, id);
        assert_string_equal(id, "directory-19700101T000000-1f9e1778ebf5");
}

static void every_fact_of_an_id_counts_and_no_other(void **state) {
        BundleIdInput variants[] = { dump, dump, dump, dump, dump, dump };
        char base[BUNDLE_ID_SIZE], id[BUNDLE_ID_SIZE];

        for (size_t i = 0; i < ELEMENTSOF(variants); i++)
                variants[i].unique_name = false;
        bundle_id_build(&variants[0], base);
        variants[0].instance_id = "i-0123456789abcdef1";
        variants[1].source = "core-dump";
        variants[2].path = "/tmp";
        variants[3].first_dev++;
        variants[4].first_ino++;
        variants[5].first_mtime_nsec++;
        for (size_t i = 0; i < ELEMENTSOF(variants); i++) {
                bundle_id_build(&variants[i], id);
                assert_string_not_equal(id, base);
                variants[i] = dump;
        }
        bundle_id_build(&dump, base);
        variants[3].first_dev++;
        variants[4].first_ino++;
        variants[5].first_mtime_nsec++;
        for (size_t i = 3; i < ELEMENTSOF(variants); i++) {
                bundle_id_build(&variants[i], id); /* unique_name */
                assert_string_equal(id, base);
        }
        /* The lengths keep neighbours apart. */
        variants[0].source = "core-dumps/";
        variants[0].path = dump.path + 1;
        bundle_id_build(&variants[0], id);
        assert_string_not_equal(id, base);
}

static void only_the_form_of_an_id_is_accepted(void **state) {
        static const char *const good[] = {
                "neuron-core-dump-20260527T051233-1f9e1778ebf5",
                "neuron-profile-20260527T051233-1f9e1778ebf5",
                "process-core-20260527T051233-1f9e1778ebf5-s1",
                "directory-20260527T051233-1f9e1778ebf5-s120",
        };
        static const char *const bad[] = {
                "",
                "neuron-core-dump",
                "neuron-core-dump-20260527T051233-1f9e1778ebf",
                "neuron-core-dump-20260527T051233-1f9e1778ebf55",
                "neuron-core-dump-20260527T051233-1F9E1778EBF5",
                "neuron-core-dump-20260527-051233-1f9e1778ebf5",
                "neuron-core-dump-2026057T051233-1f9e1778ebf5",
                "neuron-core-dump-20260527T051233-1f9e1778ebf5-s",
                "neuron-core-dump-20260527T051233-1f9e1778ebf5-s0",
                "neuron-core-dump-20260527T051233-1f9e1778ebf5-s1x",
                "neuron-core-dump-20260527T051233-1f9e1778ebf5-s1-s2",
                "neuron-core-dump-20260527T051233-1f9e1778ebf5-s99999999999999999999999999",
                "neuron-core-dump-20260527T051233-1f9e1778ebf5\n",
                "neuron-core-dump-20260527T051233-1f9e1778ebf5/..",
                "../neuron-core-dump-20260527T051233-1f9e1778ebf5",
                "core-20260527T051233-1f9e1778ebf5",
                "Directory-20260527T051233-1f9e1778ebf5",
                "neuron-core-dump-20260527T051233-%s%s%s%s%s%s",
        };

        for (size_t i = 0; i < ELEMENTSOF(good); i++)
                if (!bundle_id_is_valid(good[i]))
                        fail_msg("'%s' is refused", good[i]);
        for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                if (bundle_id_is_valid(bad[i]))
                        fail_msg("'%s' is taken", bad[i]);
}

/* hashlib.sha256(t(path) + u(size) + u(mtime sec) + u(mtime nsec) + u(ino) + u(dev)).digest()[:8],
 * little-endian */
static void a_fingerprint_is_what_the_header_states(void **state) {
        const struct stat st = { .st_size = 12345,
                                 .st_mtim = { 1779858753, 123456789 },
                                 .st_ino = 4711,
                                 .st_dev = 2049 };
        const struct stat before_1970 = { .st_mtim = { -5, 0 } };

        assert_true(member_fingerprint("a/b\n\xff", &st) == UINT64_C(0x524078b6480b7c65));
        assert_true(member_fingerprint("", &before_1970) == UINT64_C(0x16e9840aeb3f80ee));
}

static void every_fact_of_a_member_changes_its_fingerprint(void **state) {
        const struct stat st = { .st_size = 1, .st_mtim = { 2, 3 }, .st_ino = 4, .st_dev = 5 };
        struct stat v[4] = { st, st, st, st }, other = st;
        uint64_t base = member_fingerprint("a", &st);

        v[0].st_size++;
        v[1].st_mtim.tv_sec++;
        v[2].st_mtim.tv_nsec++;
        v[3].st_ino++;
        for (size_t i = 0; i < ELEMENTSOF(v); i++)
                assert_true(member_fingerprint("a", &v[i]) != base);
        assert_true(member_fingerprint("b", &st) != base);
        /* What pinning, reading and another boot change does not count. */
        other.st_dev++;
        other.st_nlink = 7;
        other.st_ctim.tv_sec = 99;
        other.st_atim.tv_sec = 99;
        other.st_mode = 0600;
        assert_true(member_fingerprint("a", &other) == base);
}

static void a_fingerprint_is_found_among_sorted_ones(void **state) {
        static const uint64_t sorted[] = { 2, 3, 5, 7, UINT64_MAX };
        for (size_t i = 0; i < ELEMENTSOF(sorted); i++)
                assert_true(member_fingerprints_contain(sorted, ELEMENTSOF(sorted), sorted[i]));
        assert_false(member_fingerprints_contain(sorted, ELEMENTSOF(sorted), 0));
        assert_false(member_fingerprints_contain(sorted, ELEMENTSOF(sorted), 4));
        assert_false(member_fingerprints_contain(sorted, ELEMENTSOF(sorted), UINT64_MAX - 1));
        assert_false(member_fingerprints_contain(NULL, 0, 2));
}

#define in_scratch(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)

int main(void) {
        const struct CMUnitTest tests[] = {
                in_scratch(a_configured_id_is_used_unchanged),
                in_scratch(a_configured_id_must_be_safe_in_a_path),
                in_scratch(the_board_s_asset_tag_is_the_ec2_id),
                in_scratch(the_class_directory_serves_as_well),
                in_scratch(any_other_asset_tag_is_no_id),
                cmocka_unit_test(without_sysfs_the_host_name_serves),
                cmocka_unit_test(a_host_name_becomes_safe),
                cmocka_unit_test(a_bundle_id_is_what_the_header_states),
                cmocka_unit_test(a_bundle_without_a_date_has_the_time_of_its_oldest_member),
                cmocka_unit_test(every_fact_of_an_id_counts_and_no_other),
                cmocka_unit_test(only_the_form_of_an_id_is_accepted),
                cmocka_unit_test(a_fingerprint_is_what_the_header_states),
                cmocka_unit_test(every_fact_of_a_member_changes_its_fingerprint),
                cmocka_unit_test(a_fingerprint_is_found_among_sorted_ones),
        };

        return cmocka_run_group_tests_name("ids", tests, NULL, NULL);
}
