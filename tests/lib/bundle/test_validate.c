/* Verdicts of members that need no parser, and of NEFF and protobuf files. */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/lib/bundle/test_validate_common.h"

#include "lib/base/cleanup.h"
#include "lib/base/parse.h"

/* ---- what all kinds have in common ---- */

static void zero_bytes_are_empty_whatever_the_kind(void **state) {
        char detail[256];
        for (int k = 0; k < N_MEMBER_KINDS; k++)
                assert_int_equal(verdict_of(SOURCE_DIRECTORY, "x", (MemberKind)k, "", 0, detail),
                                 VERDICT_EMPTY);
}

static void an_empty_file_that_is_normal_reports_it(void **state) {
        char detail[256];
        (void)verdict_of(SOURCE_NEURON_PROFILE, "1_instid_0_vnc_0.ntff", MEMBER_NTFF, "", 0,
                         detail);
        assert_non_null(strstr(detail, "normal"));
        (void)verdict_of(SOURCE_NEURON_PROFILE, "cpu_util.pb", MEMBER_SYSTEM_TRACE, "", 0, detail);
        assert_non_null(strstr(detail, "normal"));
        (void)verdict_of(SOURCE_NEURON_PROFILE, "host_mem.pb", MEMBER_SYSTEM_TRACE, "", 0, detail);
        assert_non_null(strstr(detail, "normal"));
        (void)verdict_of(SOURCE_NEURON_PROFILE, "ntrace.pb", MEMBER_SYSTEM_TRACE, "", 0, detail);
        assert_string_equal(detail, "");
}

static void kinds_without_a_public_format_are_opaque(void **state) {
        char detail[256];
        static const MemberKind kinds[] = { MEMBER_NC_STATE, MEMBER_CC_CORE_STATE, MEMBER_NRT_LOG };
        for (size_t i = 0; i < ELEMENTSOF(kinds); i++) {
                assert_int_equal(
                        verdict_of(SOURCE_NEURON_CORE_DUMP, "x", kinds[i], "abc", 3, detail),
                        VERDICT_OPAQUE);
                assert_string_equal(detail, "format not public");
        }
        assert_int_equal(
                verdict_of(SOURCE_NEURON_CORE_DUMP, "x.json", MEMBER_HOOK_RECORD, "{}", 2, detail),
                VERDICT_OPAQUE);
        assert_string_equal(detail, "");
}

static void an_unknown_name_is_reported_only_in_a_core_dump(void **state) {
        char detail[256];
        assert_int_equal(
                verdict_of(SOURCE_NEURON_CORE_DUMP, "notes", MEMBER_OTHER, "abc", 3, detail),
                VERDICT_OPAQUE);
        assert_string_equal(detail, "name not known");
        assert_int_equal(verdict_of(SOURCE_DIRECTORY, "notes", MEMBER_OTHER, "abc", 3, detail),
                         VERDICT_OPAQUE);
        assert_string_equal(detail, "");
}

static void a_json_trace_is_opaque(void **state) {
        char detail[256];
        assert_int_equal(verdict_of(SOURCE_NEURON_PROFILE, "trace.json", MEMBER_SYSTEM_TRACE, "{}",
                                    2, detail),
                         VERDICT_OPAQUE);
}

static void a_member_of_which_less_was_added_is_truncated(void **state) {
        Validator *v = NULL;
        char *detail = NULL;
        assert_int_equal(
                validator_new(&v, &(ValidatorOptions){ SOURCE_DIRECTORY, MEMBER_OTHER, "x", 10 }),
                0);
        validator_update(v, "abc", 3);
        assert_int_equal(validator_finish(v, &detail), VERDICT_TRUNCATED);
        assert_string_equal(detail, "only 3 of 10 bytes could be read");
        free(detail);
        validator_free(v);
}

static void bytes_beyond_the_planned_size_are_not_read(void **state) {
        Validator *v = NULL;
        char *detail = NULL;
        assert_int_equal(validator_new(&v, &(ValidatorOptions){ SOURCE_NEURON_PROFILE, MEMBER_NTFF,
                                                                "a.ntff", 2 }),
                         0);
        validator_update(v, "\x08\x01\xff", 3);
        validator_update(v, NULL, UINT64_MAX);
        assert_int_equal(validator_finish(v, &detail), VERDICT_OK);
        free(detail);
        validator_free(v);
}

/* ---- NEFF ---- */

#define NEFF_DATA 3000
/* of gzip's magic number and 2,998 times 'n', by sha256sum and md5sum */
#define NEFF_SHA256 "cde3f08299e0b25f76c230865a1d7e0cba33a686282f8dcf481b248df1e3a0c3"
#define NEFF_MD5 "f70b01f00ec4ec9dbc51d2710be69e04"

typedef struct Neff {
        uint8_t bytes[1024 + NEFF_DATA];
} Neff;

static void put_u64(uint8_t *p, uint64_t value) {
        for (int i = 0; i < 8; i++)
                p[i] = (uint8_t)(value >> 8 * i);
}

static Neff neff_make(uint64_t pkg_version, const char *hash_hex) {
        Neff neff = { { 0 } };
        put_u64(neff.bytes, pkg_version);
        put_u64(neff.bytes + 8, 1024);
        put_u64(neff.bytes + 16, NEFF_DATA);
        if (hash_hex)
                assert_int_equal(parse_hex_bytes(hash_hex, neff.bytes + 172, strlen(hash_hex) / 2),
                                 0);
        memset(neff.bytes + 1024, 'n', NEFF_DATA);
        neff.bytes[1024] = 0x1f;
        neff.bytes[1025] = 0x8b;
        return neff;
}

static Verdict neff_verdict(const Neff *neff, size_t n, char detail[256]) {
        return verdict_of(SOURCE_NEURON_PROFILE, "neff_1.neff", MEMBER_NEFF, neff->bytes, n,
                          detail);
}

static void a_neff_without_a_hash_is_ok(void **state) {
        char detail[256];
        Neff neff = neff_make(1, NULL);
        assert_int_equal(neff_verdict(&neff, sizeof neff, detail), VERDICT_OK);
        assert_string_equal(detail, "");
}

static void a_neff_may_hold_a_plain_tar(void **state) {
        char detail[256];
        Neff neff = neff_make(1, NULL);
        memcpy(neff.bytes + 1024, "ab", 2);
        assert_int_equal(neff_verdict(&neff, sizeof neff, detail), VERDICT_SUSPECT);
        assert_string_equal(detail, "the data begins neither as gzip nor as tar");
        memcpy(neff.bytes + 1024 + 257, "ustar", 5);
        assert_int_equal(neff_verdict(&neff, sizeof neff, detail), VERDICT_OK);
}

static void a_neff_hash_that_matches_is_verified(void **state) {
        char detail[256];
        Neff neff = neff_make(1, NEFF_SHA256);
        assert_int_equal(neff_verdict(&neff, sizeof neff, detail), VERDICT_OK);
        assert_string_equal(detail, "hash verified (sha-256)");
        neff = neff_make(2, NEFF_MD5);
        assert_int_equal(neff_verdict(&neff, sizeof neff, detail), VERDICT_OK);
        assert_string_equal(detail, "hash verified (md5)");
}

static void a_neff_hash_that_differs_is_suspect_and_reports_that_its_meaning_is_open(void **state) {
        char detail[256];
        Neff neff = neff_make(1, NEFF_SHA256);
        neff.bytes[sizeof neff.bytes - 1] ^= 1;
        assert_int_equal(neff_verdict(&neff, sizeof neff, detail), VERDICT_SUSPECT);
        assert_non_null(strstr(detail, "sha-256"));
        assert_non_null(strstr(detail, "not settled"));
        neff = neff_make(1, NEFF_MD5);
        neff.bytes[sizeof neff.bytes - 1] ^= 1;
        assert_int_equal(neff_verdict(&neff, sizeof neff, detail), VERDICT_SUSPECT);
        assert_non_null(strstr(detail, "md5"));
}

static void a_neff_cut_short_is_truncated_wherever_it_ends(void **state) {
        char detail[256];
        Neff neff = neff_make(1, NEFF_SHA256);
        assert_int_equal(neff_verdict(&neff, 1024 + 1000, detail), VERDICT_TRUNCATED);
        assert_string_equal(detail, "data_size 3000 but 1000 bytes follow the header");
        assert_int_equal(neff_verdict(&neff, sizeof neff - 1, detail), VERDICT_TRUNCATED);
        assert_int_equal(neff_verdict(&neff, 1024, detail), VERDICT_TRUNCATED);
        assert_int_equal(neff_verdict(&neff, 1023, detail), VERDICT_TRUNCATED);
        assert_string_equal(detail, "1023 bytes, but the header alone has 1024");
        assert_int_equal(neff_verdict(&neff, 1, detail), VERDICT_TRUNCATED);
}

static void a_neff_with_more_than_its_data_is_suspect(void **state) {
        char detail[256];
        Neff neff = neff_make(1, NULL);
        put_u64(neff.bytes + 16, NEFF_DATA - 1);
        assert_int_equal(neff_verdict(&neff, sizeof neff, detail), VERDICT_SUSPECT);
        assert_string_equal(detail, "data_size 2999 but 3000 bytes follow the header");
}

static void a_neff_header_with_odd_fields_is_suspect(void **state) {
        char detail[256];
        Neff neff = neff_make(1, NULL);
        put_u64(neff.bytes + 8, 77);
        assert_int_equal(neff_verdict(&neff, sizeof neff, detail), VERDICT_SUSPECT);
        assert_string_equal(detail, "header_size 77 is not 1024");
        neff = neff_make(9, NULL);
        assert_int_equal(neff_verdict(&neff, sizeof neff, detail), VERDICT_SUSPECT);
        assert_string_equal(detail, "pkg_version 9 is neither 1 nor 2");
        neff = neff_make(1, NULL);
        put_u64(neff.bytes + 16, 0);
        assert_int_equal(neff_verdict(&neff, 1024, detail), VERDICT_SUSPECT);
        assert_non_null(strstr(detail, "data_size 0"));
        neff = neff_make(1, NULL);
        put_u64(neff.bytes + 16, UINT64_MAX);
        assert_int_equal(neff_verdict(&neff, sizeof neff, detail), VERDICT_TRUNCATED);
}

/* 1 EiB of hole must take no time, in any kind. */
static void a_huge_hole_costs_nothing(void **state) {
        static const struct {
                MemberKind kind;
                const char *name;
                Verdict verdict;
        } cases[] = {
                { MEMBER_NEFF, "neff_1.neff", VERDICT_OK },
                { MEMBER_NTFF, "a.ntff", VERDICT_SUSPECT },
                { MEMBER_ELF_CORE, "core", VERDICT_SUSPECT },
                { MEMBER_OTHER, "x", VERDICT_OPAQUE },
        };
        const uint64_t size = UINT64_C(1) << 60;
        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                Validator *v = NULL;
                char *detail = NULL;
                Neff neff = neff_make(1, NEFF_SHA256);
                put_u64(neff.bytes + 16, size - 1024);
                assert_int_equal(
                        validator_new(&v, &(ValidatorOptions){ SOURCE_NEURON_PROFILE, cases[i].kind,
                                                               cases[i].name, size }),
                        0);
                validator_update(v, neff.bytes, 2048);
                validator_update(v, NULL, size - 2048);
                assert_int_equal(validator_finish(v, &detail), cases[i].verdict);
                free(detail);
                validator_free(v);
        }
}

/* ---- protobuf ---- */

static Verdict pb_verdict(const char *data, size_t n, char detail[256]) {
        return verdict_of(SOURCE_NEURON_PROFILE, "ntrace.pb", MEMBER_SYSTEM_TRACE, data, n, detail);
}
#define PB(text, detail) pb_verdict(text, sizeof text - 1, detail)

static void records_of_every_wire_type_walk_to_the_end(void **state) {
        char detail[256];
        assert_int_equal(
                PB("\x08\x96\x01" /* 1: varint 150 */
                   "\x11"
                   "12345678" /* 2: fixed64 */
                   "\x1a\x03"
                   "abc"      /* 3: three bytes */
                   "\x22\x00" /* 4: no bytes */
                   "\x2d"
                   "1234"                     /* 5: fixed32 */
                   "\xf8\xff\xff\xff\x0f\x00" /* 2^29-1: varint 0, the largest field number */
                   "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", /* -1 */
                   detail),
                VERDICT_OK);
        assert_string_equal(detail, "");
}

static void the_end_in_the_middle_of_a_record_is_suspect_with_its_offset(void **state) {
        char detail[256];
        static const char *const records[] = { "\x08\x01\x08",
                                               "\x08\x01\x08\x80",
                                               "\x08\x01\x11"
                                               "1234567",
                                               "\x08\x01\x2d"
                                               "123",
                                               "\x08\x01\x1a",
                                               "\x08\x01\x9a" };
        for (size_t i = 0; i < ELEMENTSOF(records); i++) {
                assert_int_equal(pb_verdict(records[i], strlen(records[i]), detail),
                                 VERDICT_SUSPECT);
                assert_string_equal(detail,
                                    "ends in the middle of the protobuf record at offset 2");
        }
        assert_int_equal(PB("\x08\x01\x1a\x05"
                            "abcd",
                            detail),
                         VERDICT_SUSPECT);
        assert_string_equal(detail,
                            "the record at offset 2 has 5 bytes by its length, but 4 follow");
}

static void what_is_no_protobuf_is_suspect_and_never_more(void **state) {
        char detail[256];
        assert_int_equal(PB("\x08\x01\x00\x01", detail), VERDICT_SUSPECT);
        assert_string_equal(detail, "no protobuf record at offset 2: field number 0");
        assert_int_equal(PB("\x0b\x01", detail), VERDICT_SUSPECT);
        assert_string_equal(detail, "no protobuf record at offset 0: wire type 3");
        assert_int_equal(PB("\x0f\x01", detail), VERDICT_SUSPECT);
        assert_int_equal(PB("\x80\x80\x80\x80\x10\x01", detail), VERDICT_SUSPECT);
        assert_string_equal(detail, "no protobuf record at offset 0: field number 536870912");
        assert_int_equal(PB("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", detail),
                         VERDICT_SUSPECT);
        assert_non_null(strstr(detail, "64 bits"));
        assert_int_equal(PB("\x1a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", detail),
                         VERDICT_SUSPECT);
        assert_int_equal(PB("hello, world, this is text", detail), VERDICT_SUSPECT);
}

static void a_payload_of_many_gigabytes_is_skipped(void **state) {
        const uint64_t payload = UINT64_C(1) << 34; /* 16 GiB: length 80 80 80 80 40 */
        Validator *v = NULL;
        char *detail = NULL;
        assert_int_equal(validator_new(&v, &(ValidatorOptions){ SOURCE_NEURON_PROFILE, MEMBER_NTFF,
                                                                "a.ntff", 6 + payload + 2 }),
                         0);
        validator_update(v, "\x0a\x80\x80\x80\x80\x40", 6);
        validator_update(v, NULL, payload);
        validator_update(v, "\x08\x07", 2);
        assert_int_equal(validator_finish(v, &detail), VERDICT_OK);
        free(detail);
        validator_free(v);
}

/* ---- the quick look ---- */

static int file_of(const void *data, size_t n) {
        int fd = memfd_create("test", MFD_CLOEXEC);
        assert_true(fd >= 0);
        assert_int_equal(write(fd, data, n), n);
        return fd;
}

static void the_quick_check_finds_a_neff_that_is_still_growing(void **state) {
        Neff neff = neff_make(1, NEFF_SHA256);
        _cleanup_close_ int fd = file_of(&neff, sizeof neff);
        assert_int_equal(validate_quick(fd, MEMBER_NEFF, sizeof neff), VERDICT_OK);
        assert_int_equal(validate_quick(fd, MEMBER_NEFF, 2000), VERDICT_TRUNCATED);
        assert_int_equal(validate_quick(fd, MEMBER_NEFF, 100), VERDICT_TRUNCATED);
        assert_int_equal(validate_quick(fd, MEMBER_NEFF, 0), VERDICT_EMPTY);
        assert_int_equal(validate_quick(fd, MEMBER_NEFF, sizeof neff + 1), VERDICT_SUSPECT);
        assert_int_equal(validate_quick(fd, MEMBER_NTFF, 100), VERDICT_OK);
        assert_int_equal(lseek(fd, 0, SEEK_CUR),
                         sizeof neff); /* pread: the position is the caller's */
}

static void the_quick_check_accepts_a_file_it_cannot_read(void **state) {
        assert_int_equal(validate_quick(-1, MEMBER_NEFF, 5000), VERDICT_OK);
        assert_int_equal(validate_quick(-1, MEMBER_ELF_CORE, 5000), VERDICT_OK);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(zero_bytes_are_empty_whatever_the_kind),
                cmocka_unit_test(an_empty_file_that_is_normal_reports_it),
                cmocka_unit_test(kinds_without_a_public_format_are_opaque),
                cmocka_unit_test(an_unknown_name_is_reported_only_in_a_core_dump),
                cmocka_unit_test(a_json_trace_is_opaque),
                cmocka_unit_test(a_member_of_which_less_was_added_is_truncated),
                cmocka_unit_test(bytes_beyond_the_planned_size_are_not_read),
                cmocka_unit_test(a_neff_without_a_hash_is_ok),
                cmocka_unit_test(a_neff_may_hold_a_plain_tar),
                cmocka_unit_test(a_neff_hash_that_matches_is_verified),
                cmocka_unit_test(
                        a_neff_hash_that_differs_is_suspect_and_reports_that_its_meaning_is_open),
                cmocka_unit_test(a_neff_cut_short_is_truncated_wherever_it_ends),
                cmocka_unit_test(a_neff_with_more_than_its_data_is_suspect),
                cmocka_unit_test(a_neff_header_with_odd_fields_is_suspect),
                cmocka_unit_test(a_huge_hole_costs_nothing),
                cmocka_unit_test(records_of_every_wire_type_walk_to_the_end),
                cmocka_unit_test(the_end_in_the_middle_of_a_record_is_suspect_with_its_offset),
                cmocka_unit_test(what_is_no_protobuf_is_suspect_and_never_more),
                cmocka_unit_test(a_payload_of_many_gigabytes_is_skipped),
                cmocka_unit_test(the_quick_check_finds_a_neff_that_is_still_growing),
                cmocka_unit_test(the_quick_check_accepts_a_file_it_cannot_read),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
