/* The document of a snapshot, and the differences between two looks. */
#include "collectors/runner/differences.h"
#include "collectors/runner/document.h"

#include <errno.h>
#include <jansson.h>

#include "tests/harness/unit.h"

#include "collectors/runner/document.h"
#include "lib/base/fs.h"
#include "tests/lib/base/scratch.h"

#include "lib/base/cleanup.h"

static json_t *load(const Scratch *s, const char *name) {
        _cleanup_free_ char *text = NULL;
        assert_int_equal(fs_read_file(s->fd, name, 16 * MIB, &text, NULL), 0);
        json_t *v = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(v);
        return v;
}

static json_t *write_one(const Scratch *s, const DocumentSection *section) {
        const Document d = { .name = "n\"1",
                             .trigger = "somebody\nasked",
                             .begun_usec = 1,
                             .ended_usec = 2,
                             .processes = &(CollectProcess){ 7, 8 },
                             .n_processes = 1,
                             .sections = section,
                             .n_sections = section ? 1 : 0 };
        assert_int_equal(document_write(&d, s->fd, "snapshot.json"), 0);
        return load(s, "snapshot.json");
}

static void a_document_is_json_whatever_was_written(void **state) {
        Scratch *s = *state;
        char *files[] = { (char *)"a.txt", NULL };
        assert_int_equal(scratch_write(s, "p", "{\"a\":1}\n{\"b\":\"\\u0007\xc3\xa9\"}\n"), 0);
        json_t *d = write_one(s, &(DocumentSection){ .name = "kmsg",
                                                     .detail = "why\t\xff",
                                                     .state = SECTION_TIMEOUT,
                                                     .begun_usec = 1000000,
                                                     .duration_usec = 1500,
                                                     .part = "p",
                                                     .files = files });
        const char *name, *section, *section_state, *file;
        int ms, n, a;
        assert_int_equal(json_unpack(d, "{s:s, s:[{s:s, s:s, s:i, s:i, s:[s], s:[{s:i}, {}]}]}",
                                     "name", &name, "sections", "name", &section, "state",
                                     &section_state, "duration_ms", &ms, "dropped_lines", &n,
                                     "files", &file, "records", "a", &a),
                         0);
        assert_string_equal(name, "n\"1");
        assert_string_equal(section_state, "timeout");
        assert_string_equal(file, "a.txt");
        assert_int_equal(ms, 1);
        assert_int_equal(n, 0);
        assert_int_equal(a, 1);
        json_decref(d);
}

static void half_lines_and_lines_that_nest_too_deep_are_dropped(void **state) {
        Scratch *s = *state;
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        strbuf_add(&b, "{\"a\":");
        for (unsigned i = 0; i < 1000; i++)
                strbuf_add(&b, "[");
        for (unsigned i = 0; i < 1000; i++)
                strbuf_add(&b, "]");
        strbuf_add(&b,
                   "}\n{\"text\":\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\\\"[\"}\n{\"cut\":\"");
        assert_int_equal(scratch_write(s, "p", b.text), 0);
        json_t *d = write_one(s, &(DocumentSection){ .name = "x", .part = "p" });
        json_t *section = json_array_get(json_object_get(d, "sections"), 0);
        assert_int_equal(json_integer_value(json_object_get(section, "dropped_lines")), 2);
        assert_int_equal(json_array_size(json_object_get(section, "records")), 1);
        json_decref(d);
}

static void a_part_that_is_not_there_has_no_records(void **state) {
        json_t *d = write_one(*state, &(DocumentSection){ .name = "x", .part = "missing" });
        json_t *section = json_array_get(json_object_get(d, "sections"), 0);
        assert_int_equal(json_array_size(json_object_get(section, "records")), 0);
        assert_true(json_is_null(json_object_get(section, "begin")));
        json_decref(d);
}

static void a_document_replaces_the_one_before_and_leaves_nothing_beside_it(void **state) {
        Scratch *s = *state;
        assert_int_equal(scratch_write(s, ".snapshot.json.tmp", "half"), 0);
        json_decref(write_one(s, NULL));
        json_decref(write_one(s, NULL));
        assert_int_equal(faccessat(s->fd, ".snapshot.json.tmp", F_OK, 0), -1);
}

static void differences_are_by_path_and_have_a_delta_between_numbers(void **state) {
        Scratch *s = *state;
        assert_int_equal(
                scratch_write(
                        s, "before",
                        "{\"device\":\"neuron0\",\"directory\":\"stats\",\"values\":{\"a\":\"5\","
                        "\"b\":7,"
                        "\"gone\":\"x\",\"same\":\"1\"}}\n{\"path\":\"/sys/"
                        "x\",\"values\":[\"old\"]}\n"
                        "{\"other\":1}\nnone\n"),
                0);
        assert_int_equal(
                scratch_write(s, "after",
                              "{\"path\":\"/sys/x\",\"values\":\"new\"}\n"
                              "{\"device\":\"neuron0\",\"directory\":\"stats\","
                              "\"values\":{\"a\":\"9\",\"b\":4,\"same\":\"1\",\"more\":2}}\n"),
                0);
        assert_int_equal(differences_write(s->fd, "before", "after", "out"), 0);
        _cleanup_free_ char *text = NULL;
        assert_int_equal(fs_read_file(s->fd, "out", KIB, &text, NULL), 0);
        assert_string_equal(
                text,
                "{\"path\":\"neuron0/stats/a\",\"before\":\"5\",\"after\":\"9\",\"delta\":4}\n"
                "{\"path\":\"neuron0/stats/b\",\"before\":7,\"after\":4,\"delta\":-3}\n"
                "{\"path\":\"neuron0/stats/gone\",\"before\":\"x\",\"after\":null}\n"
                "{\"path\":\"neuron0/stats/more\",\"before\":null,\"after\":2}\n");
}

static void without_a_first_snapshot_everything_is_new(void **state) {
        Scratch *s = *state;
        assert_int_equal(scratch_write(s, "after", "{\"device\":\"d\",\"values\":{\"p\":1}}\n"), 0);
        assert_int_equal(differences_write(s->fd, "missing", "after", "out"), 0);
        _cleanup_free_ char *text = NULL;
        assert_int_equal(fs_read_file(s->fd, "out", KIB, &text, NULL), 0);
        assert_string_equal(text, "{\"path\":\"d/p\",\"before\":null,\"after\":1}\n");
}

static void what_cannot_be_read_is_an_error_and_not_empty(void **state) {
        Scratch *s = *state;
        assert_int_equal(scratch_write(s, "good", "{\"device\":\"d\",\"values\":{\"p\":1}}\n"), 0);
        assert_int_equal(symlinkat("good", s->fd, "link"), 0); /* is not followed */
        assert_int_equal(differences_write(s->fd, "link", "good", "out"), -ELOOP);
        assert_int_equal(differences_write(s->fd, "good", "link", "out"), -ELOOP);
        assert_int_equal(faccessat(s->fd, "out", F_OK, 0), -1);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(a_document_is_json_whatever_was_written),
                TEST(half_lines_and_lines_that_nest_too_deep_are_dropped),
                TEST(a_part_that_is_not_there_has_no_records),
                TEST(a_document_replaces_the_one_before_and_leaves_nothing_beside_it),
                TEST(differences_are_by_path_and_have_a_delta_between_numbers),
                TEST(without_a_first_snapshot_everything_is_new),
                TEST(what_cannot_be_read_is_an_error_and_not_empty),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
