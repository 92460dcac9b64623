/* The shared files, line by line: what counts, what is passed over, what is remembered as a
 * fault. */
#include "uploaders/aws/aws_profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"

typedef struct Parsed {
        AwsProfileFile file;
        char *text;
} Parsed;

/* From memory of exactly the text's size, so that a sanitizer sees a step too far. */
static Parsed parse_n(AwsProfileFormat format, const char *text, size_t n) {
        Parsed p = { .text = malloc(n + 1) };

        assert_non_null(p.text);
        memcpy(p.text, text, n);
        p.text[n] = '\0';
        assert_int_equal(aws_profile_parse(&p.file, format, p.text, n), 0);
        return p;
}

static Parsed parse(AwsProfileFormat format, const char *text) {
        return parse_n(format, text, strlen(text));
}

static void done(Parsed *p) {
        aws_profile_done(&p->file);
        free(p->text);
}

static void assert_value(const char *got, const char *wanted) {
        if (wanted)
                assert_string_equal(got ? got : "(none)", wanted);
        else
                assert_null(got);
}

typedef struct Row {
        const char *text, *profile, *key, *value;
} Row;

static void check_rows(AwsProfileFormat format, const Row *rows, size_t n) {
        for (size_t i = 0; i < n; i++) {
                Parsed p = parse(format, rows[i].text);
                assert_value(aws_profile_get(&p.file, rows[i].profile, rows[i].key), rows[i].value);
                done(&p);
        }
}

static void lines_are_read_as_the_aws_cli_reads_them(void **state) {
        /* clang-format off */
        static const Row rows[] = {
                { "[x]\na=1\n", "x", "a", "1" },
                { "[x]\na=1", "x", "a", "1" },
                { "[x]\r\na = 1\r\n", "x", "a", "1" },
                { "\xef\xbb\xbf[x]\na = 1\n", "x", "a", "1" },
                { "  [x]\na = 1\n", "x", "a", "1" },
                { "[ x\t]\na = 1\n", "x", "a", "1" },
                { "[x] # why\na = 1\n", "x", "a", "1" },
                { "[x]\n \t a \t= \t1 2\t \n", "x", "a", "1 2" },
                { "[x]\na: 1=2\n", "x", "a", "1=2" },
                { "[x]\na = 1:2\n", "x", "a", "1:2" },
                { "[x]\nAbC = X\n", "x", "abc", "X" },
                { "[x]\na =\n", "x", "a", NULL },
                { "[x]\na\n", "x", "a", NULL },
                { "[x]\n= 1\na = 2\n", "x", "a", "2" },
                { "[x]\n#a = 1\n;a = 2\n  # a = 3\n", "x", "a", NULL },
                { "[x]\na = 1 # one\n", "x", "a", "1" },
                { "[x]\na = 1\t;one\n", "x", "a", "1" },
                { "[x]\na = 1#2;3\n", "x", "a", "1#2;3" },
                { "[x]\na = # nothing\n", "x", "a", NULL },
                { "[x]\ncredential_process = a # b ; c\n", "x", "credential_process", "a # b ; c" },
                { "[x]\na = 1\na = 2\n", "x", "a", "2" },
                { "[x]\na = 1\n[y]\na = 2\n[x]\nb = 3\n", "x", "a", "1" },
                { "[x]\na = 1\n[y]\na = 2\n[x]\nb = 3\n", "x", "b", "3" },
                { "[x]\na = 1\n[X]\na = 2\n", "x", "a", "1" },
                { "[x]\na = 1\n", "y", "a", NULL },
                { "a = 0\n[x]\nb = 1\n", "x", "a", NULL },
                { "[x\na = 1\n", "x", "a", NULL },
                { "[x]\na = 1\n[y\nb = 2\n", "x", "b", NULL },
                { "[]\na = 1\n", "", "a", "1" },
                { "", "x", "a", NULL },
        };
        /* clang-format on */

        check_rows(AWS_PROFILE_CREDENTIALS, rows, ELEMENTSOF(rows));
}

static void a_deeper_line_goes_on_with_the_value_above(void **state) {
        /* clang-format off */
        static const Row rows[] = {
                { "[x]\ns3 =\n  a = 1\n  b = 2\nc = 3\n", "x", "s3", "\na = 1\nb = 2" },
                { "[x]\ns3 =\n  a = 1\n  b = 2\nc = 3\n", "x", "a", NULL },
                { "[x]\ns3 =\n  a = 1\n  b = 2\nc = 3\n", "x", "c", "3" },
                { "[x]\n  a = 1\n  b = 2\n", "x", "b", "2" },        /* as deep, not deeper */
                { "[x]\n  a = 1\n b = 2\n", "x", "b", "2" },
                { "[x]\na = 1\n  2\n\n  # no\n  3 # no\n", "x", "a", "1\n2\n3" },
                { "[x]\na = 1\n  [y]\n", "x", "a", "1\n[y]" },
                { "[x]\na = 1\n\t2\r\n", "x", "a", "1\n2" },
        };
        /* clang-format on */

        check_rows(AWS_PROFILE_CREDENTIALS, rows, ELEMENTSOF(rows));
}

static void profiles_of_config_have_a_word_before_their_name(void **state) {
        /* clang-format off */
        static const Row rows[] = {
                { "[profile x]\na = 1\n", "x", "a", "1" },
                { "[profile\tx]\na = 1\n", "x", "a", "1" },
                { "[profile \"x y\"]\na = 1\n", "x y", "a", "1" },
                { "[profile 'x']\na = 1\n", "x", "a", "1" },
                { "[profile x y]\na = 1\n", "x y", "a", NULL },
                { "[profile 'x]\na = 1\n", "x", "a", NULL },
                { "[profilex]\na = 1\n", "x", "a", NULL },
                { "[x]\na = 1\n", "x", "a", NULL },
                { "[default]\na = 1\n", "default", "a", "1" },
                { "[profile default]\na = 1\n", "default", "a", "1" },
                { "[profile default]\na = 1\n[default]\na = 2\nb = 3\n", "default", "a", "1" },
                { "[profile default]\na = 1\n[default]\na = 2\nb = 3\n", "default", "b", NULL },
                { "[sso-session x]\na = 1\n", "x", "a", NULL },
                { "[services x]\na = 1\n", "x", "a", NULL },
        };
        /* clang-format on */

        check_rows(AWS_PROFILE_CONFIG, rows, ELEMENTSOF(rows));
}

static void a_profile_without_the_word_is_noticed(void **state) {
        Parsed p = parse(AWS_PROFILE_CONFIG, "[x]\n[profile y]\n[y]\n[profile z]\n");

        assert_true(aws_profile_is_misspelt(&p.file, "x"));
        assert_false(aws_profile_is_misspelt(&p.file, "y"));
        assert_false(aws_profile_is_misspelt(&p.file, "z"));
        assert_false(aws_profile_is_misspelt(&p.file, "none"));
        assert_false(aws_profile_has(&p.file, "x"));
        assert_true(aws_profile_has(&p.file, "y") && aws_profile_has(&p.file, "z"));
        done(&p);
}

static void the_line_of_a_setting_is_known(void **state) {
        const char *text =
                "[default]\n\n# a comment\nregion = x\ns3 =\n  a = b\n[profile p]\r\nregion=y\n"
                "empty =\n";
        Parsed p = parse(AWS_PROFILE_CONFIG, text);

        assert_int_equal(aws_profile_line(&p.file, "default", "region"), 4);
        assert_int_equal(aws_profile_line(&p.file, "default", "s3"), 5);
        assert_int_equal(aws_profile_line(&p.file, "p", "region"), 8);
        assert_int_equal(aws_profile_line(&p.file, "p", "empty"), 0);
        assert_int_equal(aws_profile_line(&p.file, "p", "s3"), 0);
        done(&p);
}

static void the_first_fault_is_remembered_with_its_line(void **state) {
        static const struct {
                const char *text, *fault;
                unsigned line;
        } rows[] = {
                { "a = 1\n[x]\n", "a setting that belongs to no [section]", 1 },
                { "\n[x]\n\nnonsense\n= 1\n", "neither a [section] nor a setting with '='", 4 },
                { "[x]\n = 1\n", "a '=' without a name before it", 2 },
                { "[x\n", "a '[' without its ']'", 1 },
                { "[x] y\n", "something follows a section's ']'", 1 },
                { "[x]\na = 1\n  = go on\n", NULL, 0 },
        };

        for (size_t i = 0; i < ELEMENTSOF(rows); i++) {
                Parsed p = parse(AWS_PROFILE_CREDENTIALS, rows[i].text);

                assert_value(p.file.fault, rows[i].fault);
                assert_int_equal(p.file.error_line, rows[i].line);
                done(&p);
        }
}

static void nothing_is_read_behind_a_nul(void **state) {
        Parsed p = parse_n(AWS_PROFILE_CREDENTIALS, "[x]\na = 1\nb = \0002\nc = 3\n", 23);

        assert_value(aws_profile_get(&p.file, "x", "a"), "1");
        assert_value(aws_profile_get(&p.file, "x", "c"), NULL);
        assert_string_equal(p.file.fault, "a NUL byte, after which nothing is read");
        done(&p);
}

static void thousands_of_profiles_are_no_trouble(void **state) {
        size_t n = 0, n_allocated = 1 << 20;
        char *text = malloc(n_allocated);

        for (unsigned i = 0; i < 20000; i++)
                n += (size_t)snprintf(text + n, n_allocated - n, "[profile p%u]\nregion = r%u\n", i,
                                      i);
        Parsed p = parse_n(AWS_PROFILE_CONFIG, text, n);
        assert_value(aws_profile_get(&p.file, "p19999", "region"), "r19999");
        assert_value(aws_profile_get(&p.file, "p0", "region"), "r0");
        done(&p);
        free(text);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(lines_are_read_as_the_aws_cli_reads_them),
                cmocka_unit_test(a_deeper_line_goes_on_with_the_value_above),
                cmocka_unit_test(profiles_of_config_have_a_word_before_their_name),
                cmocka_unit_test(a_profile_without_the_word_is_noticed),
                cmocka_unit_test(the_line_of_a_setting_is_known),
                cmocka_unit_test(the_first_fault_is_remembered_with_its_line),
                cmocka_unit_test(nothing_is_read_behind_a_nul),
                cmocka_unit_test(thousands_of_profiles_are_no_trouble),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
