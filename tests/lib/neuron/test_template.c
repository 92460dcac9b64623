/* Path templates: what is fixed, what matches, what an expansion may contain. */
#include "lib/neuron/names.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"

static PathTemplate *template_of(const char *text) {
        PathTemplate *t = NULL;
        char bad = '?';

        if (path_template_new(&t, text, "dcptliknhu", &bad) != 0)
                fail_msg("'%s' is refused for '%c'", text, bad);
        return t;
}

static void check_fixed(const char *text, const char *fixed, size_t depth) {
        PathTemplate *t = template_of(text);

        assert_string_equal(path_template_fixed(t), fixed);
        assert_int_equal(path_template_depth(t), depth);
        path_template_free(t);
}

static void the_fixed_part_ends_before_the_first_variable(void **state) {
        check_fixed("/tmp/neuron-core-dump/dt-%d-cid-%c", "/tmp/neuron-core-dump", 1);
        check_fixed("/fsx/%i/dumps/%d-%c", "/fsx", 3);
        check_fixed("/fsx/dumps", "/fsx/dumps", 0);
        check_fixed("/fsx/dumps/", "/fsx/dumps", 0);
        check_fixed("//fsx///%d//", "/fsx", 1);
        check_fixed("/%d", "/", 1);
        check_fixed("/", "/", 0);
        check_fixed("", "", 0);
        check_fixed("neuron/%d-%c", "neuron", 1);
        check_fixed("%d", "", 1);
        check_fixed("/a/100%%/b%%d/%d", "/a/100%/b%d", 1);
        check_fixed("/a/%%%d", "/a", 1);
        check_fixed("/a/%%%%", "/a/%%", 0);
}

static void a_letter_that_is_not_allowed_is_named(void **state) {
        static const struct {
                const char *text;
                char bad;
        } cases[] = {
                { "/x/%y", 'y' }, { "/x/%", 0 },          { "/x/%/y", '/' },    { "/x/%k", 'k' },
                { "/x/%D", 'D' }, { "/x/%%%", 0 },        { "/x/%d%q%z", 'q' }, { "/x/% d", ' ' },
                { "/x/%1", '1' }, { "/x/%\xff", '\xff' },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                PathTemplate *t = (PathTemplate *)&cases;
                char bad = '!';

                assert_int_equal(path_template_new(&t, cases[i].text, "dcptli", &bad), -EINVAL);
                assert_int_equal(bad, cases[i].bad);
                assert_ptr_equal(t, &cases);
        }
}

static void it_knows_which_variables_it_has(void **state) {
        PathTemplate *t = template_of("/x/%d/%%c-%p");

        assert_true(path_template_has(t, 'd'));
        assert_true(path_template_has(t, 'p'));
        assert_false(path_template_has(t, 'c'));
        assert_false(path_template_has(t, '%'));
        path_template_free(t);
}

static const TemplateValues example = {
        .date_time = "20260527-051233",
        .cluster_id = "d99e36ea74c263ca",
        .pid = "39738",
        .tid = "39861",
        .lid = "1",
        .instance_id = "i-0123456789abcdef0",
};

static void check_match(const char *text, const char *relative, const TemplateValues *expected) {
        PathTemplate *t = template_of(text);
        TemplateValues v;

        memset(&v, 0x55, sizeof v);
        if (!path_template_match(t, relative, &v))
                fail_msg("'%s' does not match '%s'", relative, text);
        assert_true(path_template_match(t, relative, NULL));
        assert_string_equal(v.date_time, expected->date_time);
        assert_string_equal(v.cluster_id, expected->cluster_id);
        assert_string_equal(v.pid, expected->pid);
        assert_string_equal(v.tid, expected->tid);
        assert_string_equal(v.lid, expected->lid);
        assert_string_equal(v.instance_id, expected->instance_id);
        path_template_free(t);
}

static void check_no_match(const char *text, const char *relative) {
        PathTemplate *t = template_of(text);
        TemplateValues v = example;

        if (path_template_match(t, relative, &v))
                fail_msg("'%s' matches '%s'", relative, text);
        assert_memory_equal(&v, &example, sizeof v);
        path_template_free(t);
}

static void directories_of_real_dumps_match(void **state) {
        check_match("/tmp/neuron-core-dump/dt-%d-cid-%c", "dt-20260527-051233-cid-d99e36ea74c263ca",
                    &(TemplateValues){ .date_time = "20260527-051233",
                                       .cluster_id = "d99e36ea74c263ca" });
        check_match("/tmp/neuron-core-dump/dt-%d-cid-%c", "dt-20250917-194443-cid-0000000000000000",
                    &(TemplateValues){ .date_time = "20250917-194443",
                                       .cluster_id = "0000000000000000" });
        check_match("/b/%d-%c", "2026-05-27-05-12-d99e36ea74c263ca",
                    &(TemplateValues){ .date_time = "2026-05-27-05-12",
                                       .cluster_id = "d99e36ea74c263ca" });
        check_match("/fsx/%i/dumps/%d/%p-%t-%l",
                    "compute1-dy-training-0-1/dumps/20260527-051233/7-8-9",
                    &(TemplateValues){ .instance_id = "compute1-dy-training-0-1",
                                       .date_time = "20260527-051233",
                                       .pid = "7",
                                       .tid = "8",
                                       .lid = "9" });
        check_match("/x", "", &(TemplateValues){ .pid = "" });
        check_match("/x/100%%-%p", "100%-7", &(TemplateValues){ .pid = "7" });
}

static void what_is_not_written_so_does_not_match(void **state) {
        check_no_match("/x/dt-%d-cid-%c", "dt-20260527-051233-cid-");
        check_no_match("/x/dt-%d-cid-%c", "dt-20260527-051233-cid-xyz");
        check_no_match("/x/dt-%d-cid-%c", "dt-20260527-051233-cid-d99e36ea74c263ca ");
        check_no_match("/x/dt-%d-cid-%c", "dt-20260527-051233-cid-d99e36ea74c263ca\n");
        check_no_match("/x/dt-%d-cid-%c", "dt-20261327-051233-cid-d99e36ea74c263ca");
        check_no_match("/x/dt-%d-cid-%c", "DT-20260527-051233-cid-d99e36ea74c263ca");
        check_no_match("/x/%c", "0123456789abcdef0123456789abcdef0"); /* 33 digits */
        check_no_match("/x/%p", "-7");
        check_no_match("/x/%p", "+7");
        check_no_match("/x/%p", "0x7");
        check_no_match("/x/%p", "123456789012345678901"); /* 21 digits */
        check_no_match("/x/%i", "host name");
        check_no_match("/x/%i", "h\xc3\xb6st");
        check_no_match(
                "/x/%i",
                "a123456789b123456789c123456789d123456789e123456789f123456789g1234"); /* 65 */
        check_no_match("/x/%p/%t", "7");
        check_no_match("/x/%p/%t", "7/");
        check_no_match("/x/%p/%t", "7/8/9");
        check_no_match("/x/%p/%t", "7//8");
        check_no_match("/x/%p/%t", "/7/8");
        check_no_match("/x/%p", "7/");
        check_no_match("/x/%p", "");
        check_no_match("/x", "y");
}

static void a_variable_that_stands_twice_has_one_value(void **state) {
        check_match("/x/%p/core-%p-%p", "7/core-7-7", &(TemplateValues){ .pid = "7" });
        check_no_match("/x/%p/core-%p", "7/core-8");
        check_no_match("/x/%p-%p", "7-8");
        check_no_match("/x/%p-%p", "7-77");
        check_no_match("/x/%p%p", "123");
        check_match("/x/%p%p", "1212", &(TemplateValues){ .pid = "12" });
}

/* Any order, any separator; without one only where the neighbour ends by itself. */
typedef struct Orders {
        char letters[7];
        size_t n_checked, n_skipped;
} Orders;

static bool is_ambiguous(char a, char b) {
        static const char digits[] = "ptl";
        bool a_digits = strchr(digits, a), b_digits = strchr(digits, b);

        /* Digits run into digits, hex and host names, and a host name into everything; a date-time
         * has its own shape. */
        return (a_digits && b_digits) || (a == 'c' && (b_digits || b == 'i')) ||
               (b == 'c' && a_digits) || (a == 'i' && (b_digits || b == 'c')) ||
               (a_digits && b == 'i');
}

static TemplateValues values_for(const char *letters, const char *date_time,
                                 const char *instance_id) {
        TemplateValues v = { .pid = "" };

        for (; *letters != '\0'; letters++)
                switch (*letters) {
                case 'd':
                        (void)strcpy(v.date_time, date_time);
                        break;
                case 'c':
                        (void)strcpy(v.cluster_id, example.cluster_id);
                        break;
                case 'p':
                        (void)strcpy(v.pid, example.pid);
                        break;
                case 't':
                        (void)strcpy(v.tid, example.tid);
                        break;
                case 'l':
                        (void)strcpy(v.lid, example.lid);
                        break;
                default:
                        (void)strcpy(v.instance_id, instance_id);
                }
        return v;
}

static void check_order(Orders *o, const char *separator) {
        static const char *const date_times[] = { "20260527-051233", "2026-05-27-05-12" };
        static const char *const ids[] = { "i-0123456789abcdef0", "compute1-dy-training-0-1" };
        char text[64] = "/x/";

        for (size_t i = 0; o->letters[i] != '\0'; i++) {
                if (i > 0 && separator[0] == '\0' &&
                    is_ambiguous(o->letters[i - 1], o->letters[i])) {
                        o->n_skipped++;
                        return;
                }
                (void)sprintf(text + strlen(text), "%s%%%c", i > 0 ? separator : "", o->letters[i]);
        }
        for (size_t i = 0; i < 4; i++) {
                TemplateValues v = values_for(o->letters, date_times[i & 1], ids[i >> 1]);
                PathTemplate *t = template_of(text);
                char *path =
                        path_template_expand(t, &(ExpandValues){ .date_time = date_times[i & 1],
                                                                 .cluster_id = example.cluster_id,
                                                                 .pid = example.pid,
                                                                 .tid = example.tid,
                                                                 .lid = example.lid,
                                                                 .instance_id = ids[i >> 1] });

                assert_non_null(path);
                assert_memory_equal(path, "/x/", 3);
                check_match(text, path + 3, &v);
                free(path);
                path_template_free(t);
                o->n_checked++;
        }
}

static void check_all_orders(Orders *o, size_t n) {
        static const char all[] = "dcptli";

        o->letters[n] = '\0';
        if (n > 0) {
                check_order(o, "-");
                check_order(o, "_");
                check_order(o, "");
                check_order(o, "/");
                check_order(o, "-x.");
        }
        for (size_t i = 0; i < 6; i++) {
                if (memchr(o->letters, all[i], n))
                        continue;
                o->letters[n] = all[i];
                check_all_orders(o, n + 1);
        }
}

static void every_order_of_every_choice_of_variables_reads_back(void **state) {
        Orders o = { .n_checked = 0 };

        check_all_orders(&o, 0);
        /* 6 + 30 + 120 + 360 + 720 + 720 orders, four value pairs, four separators that always can
         * be told apart, and some without any. */
        assert_true(o.n_checked > UINT64_C(1956) * 4 * 4);
        assert_true(o.n_skipped > 0);
}

static void hostile_names_never_match_and_never_hang(void **state) {
        char name[NAME_MAX + 1];
        clock_t begin;

        memset(name, '1', NAME_MAX);
        name[NAME_MAX] = '\0';
        check_no_match("/x/%p%p%p%p%p%p%p%p%p%p%p%px", name);
        check_no_match("/x/%i%i%i%i%i%i%i%i%i%i%i!", name);
        check_no_match("/x/%i-%i-%i-%i-%i-%i-%i-%i!", name);
        /* Sixteen million ways to try, were there no bound: a tenth of a second of CPU each. */
        begin = clock();
        for (size_t i = 0; i < 300; i++)
                check_no_match("/x/%i%c%p%t%l!", name);
        assert_true(clock() - begin < 10 * CLOCKS_PER_SEC);
        memset(name, '-', NAME_MAX);
        check_no_match("/x/%i-%i%c-%i-%p%i-%t%i-%i!", name);
        check_no_match("/x/%p", "..");
        check_no_match("/x/%c", "\xff\xfe");
        check_no_match("/x/%p", "%p");
        check_no_match("/x/a", "a/../b");
}

static void a_name_longer_than_any_file_system_accepts_does_not_match(void **state) {
        char name[400], text[420];

        memset(name, 'a', sizeof name - 1);
        name[sizeof name - 1] = '\0';
        (void)snprintf(text, sizeof text, "/x/%s%%p", name);
        name[sizeof name - 2] = '1';
        check_no_match(text, name);
}

static void one_component_can_be_matched_alone(void **state) {
        PathTemplate *t = template_of("/fsx/%i/dt-%d");
        TemplateValues v;

        assert_true(path_template_match_component(t, 0, "i-0123456789abcdef0", &v));
        assert_string_equal(v.instance_id, "i-0123456789abcdef0");
        assert_string_equal(v.date_time, "");
        assert_true(path_template_match_component(t, 1, "dt-20260527-051233", &v));
        assert_string_equal(v.instance_id, "");
        assert_false(path_template_match_component(t, 1, "i-0123456789abcdef0", &v));
        assert_false(path_template_match_component(t, 2, "i-0123456789abcdef0", &v));
        path_template_free(t);
}

static void check_expand(const char *text, const ExpandValues *v, const char *expected) {
        PathTemplate *t = template_of(text);
        char *path = path_template_expand(t, v);

        assert_string_equal(path, expected);
        free(path);
        path_template_free(t);
}

static void an_expansion_stays_where_its_text_states(void **state) {
        const ExpandValues hostile = { .host = "../../etc",
                                       .user = "..",
                                       .source = ".",
                                       .kind = "",
                                       .pid = "a/b",
                                       .cluster_id = "x\n\x01\x7fy" };

        check_expand("/v/%h", &hostile, "/v/.._.._etc");
        check_expand("/v/%u/%n/%k", &hostile, "/v/unknown/unknown/unknown");
        check_expand("/v/%p", &hostile, "/v/a_b");
        check_expand("/v/%c", &hostile, "/v/x___y");
        check_expand("/v/%t", &hostile, "/v/unknown");
        check_expand("/v/100%%/%%h", &hostile, "/v/100%/%h");
        check_expand("neuron/%k/", &(ExpandValues){ .kind = "directory" }, "neuron/directory");
        check_expand("%d-%c", &(ExpandValues){ .date_time = "20260527-051233", .cluster_id = "0" },
                     "20260527-051233-0");
        check_expand("/v/%u", &(ExpandValues){ .user = "%d" }, "/v/%d");
        check_expand("", &hostile, "");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(the_fixed_part_ends_before_the_first_variable),
                cmocka_unit_test(a_letter_that_is_not_allowed_is_named),
                cmocka_unit_test(it_knows_which_variables_it_has),
                cmocka_unit_test(directories_of_real_dumps_match),
                cmocka_unit_test(what_is_not_written_so_does_not_match),
                cmocka_unit_test(a_variable_that_stands_twice_has_one_value),
                cmocka_unit_test(every_order_of_every_choice_of_variables_reads_back),
                cmocka_unit_test(hostile_names_never_match_and_never_hang),
                cmocka_unit_test(a_name_longer_than_any_file_system_accepts_does_not_match),
                cmocka_unit_test(one_component_can_be_matched_alone),
                cmocka_unit_test(an_expansion_stays_where_its_text_states),
        };

        return cmocka_run_group_tests_name("template", tests, NULL, NULL);
}
