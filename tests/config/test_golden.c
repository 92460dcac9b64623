/* Every tests/golden/config/NAME.yaml against NAME.faults or NAME.printed; UPDATE_GOLDEN=1 writes
 * them again. */
#include "tests/config/config_test.h"

#include <dirent.h>
#include <errno.h>

#include "lib/base/strbuf.h"

static char *golden_path(const char *name, const char *suffix) {
        const char *srcdir = getenv("srcdir");
        StrBuf b = STRBUF_INIT;

        strbuf_addf(&b, "%s/tests/golden/config/%s%s", srcdir ? srcdir : ".", name, suffix);
        return strbuf_detach(&b);
}

static char *read_golden(const char *name, const char *suffix, size_t *ret_n) {
        _cleanup_free_ char *path = golden_path(name, suffix);
        FILE *f = fopen(path, "re");
        char *text = calloc(1, 1 << 20);

        assert_non_null(text);
        if (!f)
                fail_msg("%s: %s; make it with UPDATE_GOLDEN=1", path, strerror(errno));
        *ret_n = fread(text, 1, (1 << 20) - 1, f);
        (void)fclose(f); /* it was only read */
        return text;
}

static void write_golden(const char *name, const char *suffix, const char *text) {
        _cleanup_free_ char *path = golden_path(name, suffix);
        FILE *f = fopen(path, "we");

        assert_non_null(f);
        assert_true(fputs(text, f) != EOF);
        assert_int_equal(fclose(f), 0);
}

static void compare_golden(const char *name, const char *suffix, const char *text) {
        _cleanup_free_ char *expected = NULL;
        size_t n;

        if (getenv("UPDATE_GOLDEN")) {
                write_golden(name, suffix, text);
                return;
        }
        expected = read_golden(name, suffix, &n);
        assert_string_equal(text, expected);
}

static void compare_file(const char *name) {
        _cleanup_(config_freep) Config *c = NULL;
        _cleanup_(diag_done) Diags diags = { 0 };
        _cleanup_free_ char *text = NULL, *output = NULL;
        size_t n;
        int r;

        text = read_golden(name, ".yaml", &n);
        r = config_parse(&c, CONFIG_TEST_FILE, text, n, config_test_environment, &diags);
        if (r == 0) {
                assert_int_equal(diags.n, 0);
                output = config_test_print(c);
                compare_golden(name, ".printed", output);
        } else {
                assert_int_equal(r, CONFIG_E_FAULTY);
                assert_true(diags.n > 0);
                assert_null(c);
                output = config_test_faults(&diags);
                compare_golden(name, ".faults", output);
        }
}

static int is_yaml(const struct dirent *entry) {
        size_t n = strlen(entry->d_name);
        return n > 5 && strcmp(entry->d_name + n - 5, ".yaml") == 0;
}

static void every_golden_file_gives_what_is_written_beside_it(void **state) {
        _cleanup_free_ char *dir = golden_path("", "");
        struct dirent **entries;
        int n = scandir(dir, &entries, is_yaml, alphasort);

        if (n < 10)
                fail_msg("%s: only %d files", dir, n);
        for (int i = 0; i < n; i++) {
                entries[i]->d_name[strlen(entries[i]->d_name) - 5] = '\0';
                print_message("# %s\n", entries[i]->d_name);
                compare_file(entries[i]->d_name);
                free(entries[i]);
        }
        free(entries);
}

static size_t n_lines(const char *text) {
        size_t n = 0;
        for (; *text; text++)
                n += *text == '\n';
        return n;
}

static void one_run_over_the_faulty_file_reports_more_than_sixty_faults(void **state) {
        _cleanup_free_ char *expected = NULL;
        size_t n;

        expected = read_golden("faulty", ".faults", &n);
        assert_true(n_lines(expected) > 60);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(every_golden_file_gives_what_is_written_beside_it),
                cmocka_unit_test(one_run_over_the_faulty_file_reports_more_than_sixty_faults),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
