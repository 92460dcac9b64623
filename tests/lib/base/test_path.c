/* Paths as text, and the manifest's spelling of hostile names. */
#include "lib/base/path.h"

#include <errno.h>
#include <string.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"
#include "lib/base/parse.h"

static void check_owned(char *text, const char *expected) {
        assert_non_null(text);
        assert_string_equal(text, expected);
        free(text);
}

static void joined_parts_have_one_slash(void **state) {
        check_owned(path_join("a", "b"), "a/b");
        check_owned(path_join("a/", "b"), "a/b");
        check_owned(path_join("a", "/b"), "a/b");
        check_owned(path_join("a//", "//b/c"), "a/b/c");
        check_owned(path_join("/", "b"), "/b");
        check_owned(path_join("", "b"), "b");
        check_owned(path_join("", "/b"), "/b");
        check_owned(path_join("a", ""), "a");
        check_owned(path_join("", ""), "");
}

static void a_name_is_behind_the_last_slash(void **state) {
        assert_string_equal(path_name("/a/b"), "b");
        assert_string_equal(path_name("b"), "b");
        assert_string_equal(path_name("a/"), "");
        assert_string_equal(path_name(""), "");
}

static void a_parent_is_one_up(void **state) {
        check_owned(path_parent("/x"), "/");
        check_owned(path_parent("x"), ".");
        check_owned(path_parent("/a/b"), "/a");
        check_owned(path_parent("/a//b/"), "/a");
        check_owned(path_parent("a/b/c"), "a/b");
        check_owned(path_parent("/"), "/");
        check_owned(path_parent("//x"), "/");
        check_owned(path_parent(""), ".");
}

static void below_goes_by_components(void **state) {
        assert_true(path_is_below("/a/b", "/a"));
        assert_true(path_is_below("/a", "/a"));
        assert_true(path_is_below("/a/", "/a"));
        assert_true(path_is_below("/a/b", "/a/"));
        assert_true(path_is_below("/a", "/"));
        assert_true(path_is_below("a/b", "a"));
        assert_true(path_is_below("/a/..b", "/a"));
        assert_false(path_is_below("/ab", "/a"));
        assert_false(path_is_below("/", "/a"));
        assert_false(path_is_below("a/b", "/a"));
        assert_false(path_is_below("/a/b", "a"));
        assert_false(path_is_below("/a", ""));
}

static void a_way_back_up_is_never_below(void **state) {
        assert_false(path_is_below("/a/../etc/shadow", "/a"));
        assert_false(path_is_below("/a/b/..", "/a"));
        assert_false(path_is_below("/a//..", "/a"));
        assert_false(path_is_below("/../a", "/"));
}

static void simplified_paths_keep_their_meaning(void **state) {
        check_owned(path_simplify("/a//b/./c/"), "/a/b/c");
        check_owned(path_simplify("/"), "/");
        check_owned(path_simplify("//."), "/");
        check_owned(path_simplify("/a/../b"), "/a/../b");
        check_owned(path_simplify("./a"), "a");
        check_owned(path_simplify("./"), ".");
        check_owned(path_simplify(""), ".");
        check_owned(path_simplify("/.a/b."), "/.a/b.");
}

static void escapes_are_as_the_manifest_states(void **state) {
        check_owned(path_escape("plain/ü€𝄞"), "plain/ü€𝄞");
        check_owned(path_escape("a\nb\tc\x7f"), "a\\x0ab\\x09c\\x7f");
        check_owned(path_escape("back\\slash"), "back\\x5cslash");
        check_owned(path_escape("\xff\xfe"), "\\xff\\xfe");
        check_owned(path_escape("\xc0\xaf"), "\\xc0\\xaf");          /* an overlong slash */
        check_owned(path_escape("\xed\xa0\x80"), "\\xed\\xa0\\x80"); /* a surrogate */
        check_owned(path_escape("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80"); /* U+110000 */
        check_owned(path_escape("a\xe2\x82"), "a\\xe2\\x82");                 /* cut short */
        check_owned(path_escape(""), "");
}

static void every_name_goes_round(void **state) {
        uint32_t seed = 1;

        for (unsigned i = 0; i < 20000; i++) {
                char raw[24];
                size_t n;
                _cleanup_free_ char *escaped = NULL, *back = NULL;

                for (n = 0; n < sizeof raw - 1; n++) {
                        seed = seed * 1664525 + 1013904223;
                        raw[n] = (char)(seed >> 24);
                        if (i % 2 == 0 && n > 0 && raw[n] < 0) /* half of them nearly UTF-8 */
                                raw[n] = (char)(0x80 | (raw[n] & 0x3f));
                        if (raw[n] == '\0')
                                break;
                }
                raw[n] = '\0';
                escaped = path_escape(raw);
                assert_non_null(escaped);
                for (const char *p = escaped; *p != '\0'; p++)
                        assert_true((unsigned char)*p >= 0x20 && *p != 0x7f);
                for (size_t at = 0, size; escaped[at] != '\0'; at += size) {
                        size = utf8_char_size(escaped + at, strlen(escaped + at));
                        assert_true(size > 0);
                }
                assert_int_equal(path_unescape(escaped, &back), 0);
                assert_string_equal(back, raw);
        }
}

static void malformed_escapes_are_refused(void **state) {
        static const char *const bad[] = { "\\",  "a\\x", "\\x1",  "\\xg1", "\\x1g",
                                           "\\n", "\\\\", "\\X41", "\\x00", "a\\x00b" };

        for (size_t i = 0; i < ELEMENTSOF(bad); i++) {
                char *out = NULL;

                assert_int_equal(path_unescape(bad[i], &out), -EINVAL);
                assert_null(out);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(joined_parts_have_one_slash),
                cmocka_unit_test(a_name_is_behind_the_last_slash),
                cmocka_unit_test(a_parent_is_one_up),
                cmocka_unit_test(below_goes_by_components),
                cmocka_unit_test(a_way_back_up_is_never_below),
                cmocka_unit_test(simplified_paths_keep_their_meaning),
                cmocka_unit_test(escapes_are_as_the_manifest_states),
                cmocka_unit_test(every_name_goes_round),
                cmocka_unit_test(malformed_escapes_are_refused),
        };

        return cmocka_run_group_tests_name("base/path", tests, NULL, NULL);
}
