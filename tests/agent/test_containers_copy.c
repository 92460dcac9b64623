#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "agent/containers_copy.h"
#include "agent/containers_room.h"
#include "lib/base/cleanup.h"

#define BEGIN "{\"sections\":[{\"name\":\"container_dumps\",\"state\":\"complete\",\"records\":["
#define END "]}]}"
#define DUMP(note, unit)                                                                           \
        "{\"type\":\"dump\",\"note\":\"" note "\",\"where\":\"container\",\"unit\":\"" unit        \
        "\",\"container\":null,\"path\":\"/tmp/d\"}"
#define SEEN(path) "{\"type\":\"seen\",\"unit\":\"7\",\"path\":\"" path "\",\"bytes\":5}"
#define RENAMED(path) "{\"type\":\"renamed\",\"unit\":\"7\",\"path\":\"" path "\"}"
#define FILE_AT(path, file, bytes)                                                                 \
        "{\"type\":\"file\",\"unit\":\"7\",\"path\":\"" path "\",\"file\":\"" file                 \
        "\",\"bytes\":" #bytes ",\"mtime_nsec\":-1}"
#define LEFT_OUT(path)                                                                             \
        "{\"type\":\"left_out\",\"unit\":\"7\",\"path\":\"" path "\",\"detail\":\"a fifo\"}"

static CopyDocument parsed(const char *text) {
        CopyDocument d;
        assert_int_equal(copy_document_parse(&d, text, strlen(text)), 0);
        return d;
}

/* ---- what may be made below a unit ---- */

static void a_path_that_leads_out_or_is_not_clean_is_none(void **state) {
        (void)state;
        static const char *const bad[] = { "",     "/",  "/etc", "..",  "a/..", "../a", "a/../b",
                                           "a//b", "a/", ".",    "./a", "a/.",  "..." };
        for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                if (copy_path_is_valid(bad[i]))
                        fail_msg("'%s'", bad[i]);
        assert_true(copy_path_is_valid("a"));
        assert_true(copy_path_is_valid(".a/b..c/...d"));
        char deep[2 * COPY_DEPTH_MAX + 2], name[300];
        memset(name, 'n', sizeof name);
        name[255] = '\0';
        assert_true(copy_path_is_valid(name));
        name[255] = 'n';
        name[256] = '\0';
        assert_false(copy_path_is_valid(name));
        for (size_t i = 0; i < COPY_DEPTH_MAX; i++)
                memcpy(deep + 2 * i, "d/", 2);
        deep[2 * COPY_DEPTH_MAX - 1] = '\0';
        assert_true(copy_path_is_valid(deep));
        memcpy(deep + 2 * COPY_DEPTH_MAX - 1, "/d", 3);
        assert_false(copy_path_is_valid(deep));
}

static void a_unit_is_a_number_and_nothing_else(void **state) {
        (void)state;
        assert_true(copy_unit_is_valid("0123456789"));
        assert_true(copy_unit_is_valid("12345678901234567890123"));
        assert_false(copy_unit_is_valid("123456789012345678901234"));
        assert_false(copy_unit_is_valid(""));
        assert_false(copy_unit_is_valid("12/3"));
        assert_false(copy_unit_is_valid("-1"));
}

/* ---- the document ---- */

static void what_was_renamed_counts_under_its_last_name_alone(void **state) {
        (void)state;
        static const char text[] = BEGIN
                DUMP("n1", "7") "," SEEN("old") "," FILE_AT("old", "f000001", 5) "," RENAMED("old") "," SEEN(
                        "new") "," FILE_AT("new", "f000002",
                                           5) "," SEEN("back") "," RENAMED("back") "," SEEN("back")
                        END;
        CopyDocument d = parsed(text);
        assert_int_equal(d.n_bad, 0);
        assert_int_equal(d.n_entries, 2);
        assert_string_equal(d.entries[0].path, "back");
        assert_string_equal(d.entries[0].file, "");
        assert_string_equal(d.entries[1].path, "new");
        assert_string_equal(d.entries[1].file, "f000002");
        copy_document_done(&d);
}

static void records_become_paths_each_once_with_the_last_word(void **state) {
        (void)state;
        CopyDocument d = parsed(BEGIN DUMP("n1", "7") "," SEEN("b") "," SEEN("a") "," FILE_AT(
                "a", "f000001",
                5) "," LEFT_OUT("b") "," FILE_AT("a", "f000002",
                                                 6) ",{\"type\":\"end\",\"unit\":"
                                                    "\"7\",\"is_whole\":false}" END);
        assert_int_equal(d.n_dumps, 1);
        assert_string_equal(d.dumps[0].note, "n1");
        assert_string_equal(d.dumps[0].unit, "7");
        assert_string_equal(d.dumps[0].path, "/tmp/d");
        assert_int_equal(d.n_entries, 2);
        assert_string_equal(d.entries[0].path, "a");
        assert_string_equal(d.entries[0].file, "f000002");
        assert_int_equal(d.entries[0].bytes, 6);
        assert_int_equal(d.entries[0].mtime_nsec, -1);
        assert_null(d.entries[0].detail);
        assert_string_equal(d.entries[1].path, "b");
        assert_string_equal(d.entries[1].file, "");
        assert_string_equal(d.entries[1].detail, "a fifo");
        assert_int_equal(d.entries[1].bytes, 5); /* as it was seen */
        assert_false(copy_document_is_whole(&d, "7"));
        assert_int_equal(d.n_bad, 0);
        assert_null(d.detail);
        copy_document_done(&d);
}

static void what_was_copied_stays_when_its_later_state_is_left_out(void **state) {
        (void)state;
        CopyDocument d = parsed(BEGIN FILE_AT("a", "f000001", 5) "," LEFT_OUT("a") END);
        assert_int_equal(d.n_entries, 1);
        assert_string_equal(d.entries[0].file, "f000001");
        assert_int_equal(d.entries[0].bytes, 5);
        assert_string_equal(d.entries[0].detail, "a fifo");
        copy_document_done(&d);
}

static void the_last_word_about_a_note_counts(void **state) {
        (void)state;
        CopyDocument d = parsed(BEGIN "{\"type\":\"dump\",\"note\":\"n1\",\"where\":\"none\","
                                      "\"detail\":\"not there\"}," DUMP(
                                              "n1", "7") ",{\"type\":\"dump\",\"note\":\"n2\","
                                                         "\"where\":\"here\"}" END);
        assert_int_equal(d.n_dumps, 2);
        assert_string_equal(d.dumps[0].unit, "7");
        assert_string_equal(d.dumps[1].unit, "");
        assert_true(d.dumps[1].is_here);
        copy_document_done(&d);
}

static void of_a_long_unit_the_last_digits_are_its_directory(void **state) {
        (void)state;
        CopyDocument d = parsed(BEGIN DUMP("n1", "12345678901234567890123") END);
        assert_string_equal(d.dumps[0].unit, "45678901234567890123");
        copy_document_done(&d);
}

static void what_cannot_be_is_counted_and_left_out(void **state) {
        (void)state;
        CopyDocument d = parsed(
                BEGIN SEEN("../../etc/passwd") "," SEEN("/etc/passwd") "," SEEN("\\\\x2e./x") "," FILE_AT(
                        "a", "../f",
                        5) "," FILE_AT("a", ".hidden",
                                       5) "," FILE_AT("a", "",
                                                      5) "," FILE_AT("a", "f1",
                                                                     -5) "," DUMP("n1",
                                                                                  "../7") ",7,{"
                                                                                          "\"type\""
                                                                                          ":\"x\"},"
                                                                                          "{\"type"
                                                                                          "\":"
                                                                                          "\"seen\""
                                                                                          ",\"unit"
                                                                                          "\":\"/"
                                                                                          "\","
                                                                                          "\"path\""
                                                                                          ":"
                                                                                          "\"a\""
                                                                                          "}" END);
        assert_int_equal(d.n_entries, 0);
        assert_int_equal(d.n_dumps, 0);
        assert_int_equal(d.n_bad, 11);
        copy_document_done(&d);
}

static void raw_files_have_the_names_that_the_collector_makes(void **state) {
        (void)state;
        CopyDocument d = parsed(
                BEGIN FILE_AT("a", "copy.json", 5) "," FILE_AT("b", "batch.json", 5) "," FILE_AT(
                        "c", "f",
                        5) "," FILE_AT("d", "f00001",
                                       5) "," FILE_AT("e", "f00000a",
                                                      5) "," FILE_AT("f",
                                                                     "g000"
                                                                     "001",
                                                                     5) "," FILE_AT("g",
                                                                                    "f00000000001",
                                                                                    5) END);
        assert_int_equal(d.n_bad, 7);
        assert_int_equal(d.n_entries, 0);
        copy_document_done(&d);
        d = parsed(BEGIN FILE_AT("a", "f000001", 5) "," FILE_AT("b", "f4294967295", 5) END);
        assert_int_equal(d.n_bad, 0);
        assert_int_equal(d.n_entries, 2);
        copy_document_done(&d);
}

static void why_the_collector_did_not_come_to_its_end_is_kept(void **state) {
        (void)state;
        CopyDocument d =
                parsed("{\"sections\":[{\"name\":\"packages\",\"state\":\"failed\"},"
                       "{\"name\":\"container_dumps\",\"state\":\"cut\",\"detail\":\"killed\","
                       "\"records\":[]}]}");
        assert_string_equal(d.detail, "killed");
        copy_document_done(&d);
}

static void what_is_no_document_is_refused(void **state) {
        (void)state;
        CopyDocument d;
        static const char *const bad[] = { "",
                                           "{}",
                                           "[]",
                                           "{\"sections\":{}}",
                                           "{\"sections\":[",
                                           "[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]" };
        for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                assert_int_not_equal(copy_document_parse(&d, bad[i], strlen(bad[i])), 0);
}

/* ---- room ---- */

static void a_copy_may_take_half_of_what_there_is(void **state) {
        (void)state;
        const char *why = NULL;
        ContainersRoom r = { .limit = 8 * GIB, .disk = 100 * GIB, .disk_free = 100 * GIB };
        assert_int_equal(containers_room_for(&r, &why), 2 * GIB);
        r.promised = r.promised_uid = 3 * GIB;
        assert_int_equal(containers_room_for(&r, &why), GIB / 2);
        assert_null(why);
}

static void eight_at_once_of_one_user_have_room_by_default(void **state) {
        (void)state;
        const char *why = NULL;
        ContainersRoom r = { .limit = 16 * GIB, .disk = 100 * GIB, .disk_free = 100 * GIB };
        for (size_t i = 0; i < 8; i++) {
                uint64_t room = containers_room_for(&r, &why);
                if (room < CONTAINERS_FAIR_BYTES)
                        fail_msg("%zu have left %" PRIu64, i, room);
                r.promised += room;
                r.promised_uid += room;
        }
        assert_true(r.promised <= 8 * GIB);
}

static void what_is_little_is_not_halved(void **state) {
        (void)state;
        const char *why = NULL;
        ContainersRoom r = { .limit = 200 * MIB, .disk = 100 * GIB, .disk_free = 100 * GIB };
        assert_int_equal(containers_room_for(&r, &why), CONTAINERS_FAIR_BYTES);
        r.promised = r.promised_uid = CONTAINERS_FAIR_BYTES;
        assert_int_equal(containers_room_for(&r, &why), 36 * MIB);
}

static void a_user_with_half_of_it_gets_no_more_while_others_do(void **state) {
        (void)state;
        const char *why = NULL;
        ContainersRoom r = { .limit = 8 * GIB,
                             .used = 4 * GIB,
                             .used_by_uid = 4 * GIB,
                             .disk = 100 * GIB,
                             .disk_free = 100 * GIB };
        assert_int_equal(containers_room_for(&r, &why), 0);
        assert_non_null(strstr(why, "half"));
        r.used_by_uid = 0;
        assert_int_equal(containers_room_for(&r, &why), 2 * GIB);
}

static void a_tenth_of_the_file_system_stays_free(void **state) {
        (void)state;
        const char *why = NULL;
        ContainersRoom r = { .limit = 8 * GIB, .disk = 100 * GIB, .disk_free = 11 * GIB };
        assert_int_equal(containers_room_for(&r, &why), GIB / 2);
        r.disk_free = 10 * GIB;
        assert_int_equal(containers_room_for(&r, &why), 0);
        assert_non_null(strstr(why, "file system"));
}

static void with_less_than_the_least_nothing_is_begun(void **state) {
        (void)state;
        const char *why = NULL;
        ContainersRoom r = { .limit = CONTAINERS_LEAST_BYTES * 2, .disk = GIB, .disk_free = GIB };
        assert_int_equal(containers_room_for(&r, &why), CONTAINERS_LEAST_BYTES);
        r.used = CONTAINERS_LEAST_BYTES + 1;
        assert_int_equal(containers_room_for(&r, &why), 0);
        assert_non_null(strstr(why, "hook.container_bytes"));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_path_that_leads_out_or_is_not_clean_is_none),
                cmocka_unit_test(a_unit_is_a_number_and_nothing_else),
                cmocka_unit_test(what_was_renamed_counts_under_its_last_name_alone),
                cmocka_unit_test(records_become_paths_each_once_with_the_last_word),
                cmocka_unit_test(what_was_copied_stays_when_its_later_state_is_left_out),
                cmocka_unit_test(the_last_word_about_a_note_counts),
                cmocka_unit_test(of_a_long_unit_the_last_digits_are_its_directory),
                cmocka_unit_test(what_cannot_be_is_counted_and_left_out),
                cmocka_unit_test(raw_files_have_the_names_that_the_collector_makes),
                cmocka_unit_test(why_the_collector_did_not_come_to_its_end_is_kept),
                cmocka_unit_test(what_is_no_document_is_refused),
                cmocka_unit_test(a_copy_may_take_half_of_what_there_is),
                cmocka_unit_test(eight_at_once_of_one_user_have_room_by_default),
                cmocka_unit_test(what_is_little_is_not_halved),
                cmocka_unit_test(a_user_with_half_of_it_gets_no_more_while_others_do),
                cmocka_unit_test(a_tenth_of_the_file_system_stays_free),
                cmocka_unit_test(with_less_than_the_least_nothing_is_begun),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
