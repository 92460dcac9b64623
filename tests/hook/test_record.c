/* The record beside a dump, with a root of this machine's files that is made up. */
#include "hook/hook.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/harness/unit.h"

#include "tests/lib/base/scratch.h"

static void put(const Scratch *s, const char *name, const char *text) {
        char path[256];
        (void)snprintf(path, sizeof path, "%s", name);
        for (char *slash = path; (slash = strchr(slash, '/')); slash++) {
                *slash = '\0';
                assert_true(mkdirat(s->fd, path, 0755) == 0 || errno == EEXIST);
                *slash = '/';
        }
        assert_int_equal(scratch_write(s, name, text), 0);
}

/* @return the record's packages, to be freed with its document */
static json_t *packages_of(const Scratch *s, json_t **ret_document) {
        char name[] = "record.json", out[4200], root[4200];
        (void)snprintf(out, sizeof out, "%s/out", s->path);
        (void)snprintf(root, sizeof root, "%s/root", s->path);
        HookNote n = { .local_output_dir = out, .record_name = name };
        assert_int_equal(record_write(&n, "{\"id\":\"x\"}", 10, root), 0);
        (void)snprintf(out, sizeof out, "%s/out/record.json", s->path);
        *ret_document = json_load_file(out, 0, NULL);
        assert_non_null(*ret_document);
        assert_string_equal(json_string_value(json_object_get(*ret_document, "id")), "x");
        return json_object_get(*ret_document, "packages");
}

static const char *text_of(const json_t *v, const char *key) {
        const char *s = json_string_value(json_object_get(v, key));
        return s ? s : "";
}

static void without_dpkg_the_files_name_the_library_and_the_tools(void **state) {
        const Scratch *s = *state;
        json_t *document;
        put(s, "root/opt/aws/neuron/bin/neuron-ls", "");
        put(s, "root/opt/aws/neuron/bin/.hidden", "");
        put(s, "root/opt/aws/neuron/bin/a name", "");
        put(s, "root/opt/aws/neuron/lib/libnrt.so.2.29.40.0", "");
        assert_int_equal(
                symlinkat("libnrt.so.2.29.40.0", s->fd, "root/opt/aws/neuron/lib/libnrt.so.1"), 0);
        json_t *packages = packages_of(s, &document), *files = json_object_get(packages, "files");
        assert_int_equal(json_object_size(json_object_get(packages, "dpkg")), 0);
        assert_string_equal(text_of(files, "libnrt"), "libnrt.so.2.29.40.0");
        json_t *tools = json_object_get(files, "tools");
        assert_int_equal(json_array_size(tools), 1);
        assert_string_equal(json_string_value(json_array_get(tools, 0)), "neuron-ls");
        json_decref(document);
}

static void dpkgs_versions_stand_beside_the_drivers(void **state) {
        const Scratch *s = *state;
        json_t *document;
        put(s, "root/sys/module/neuron/version", "2.30.2.0\n");
        put(s, "root/var/lib/dpkg/status",
            "Package: aws-neuronx-tools\nStatus: install ok installed\nVersion: 2.27.33.0\n\n"
            "Package: bash\nStatus: install ok installed\nVersion: 5\n");
        json_t *packages = packages_of(s, &document), *dpkg = json_object_get(packages, "dpkg");
        assert_string_equal(text_of(packages, "driver"), "2.30.2.0");
        assert_int_equal(json_object_size(dpkg), 1);
        assert_string_equal(text_of(dpkg, "aws-neuronx-tools"), "2.27.33.0");
        assert_int_equal(json_object_size(json_object_get(packages, "files")), 0);
        json_decref(document);
}

static void a_link_whose_name_is_no_word_is_left_out(void **state) {
        const Scratch *s = *state;
        json_t *document;
        put(s, "root/opt/aws/neuron/lib/x", "");
        assert_int_equal(
                symlinkat("libnrt\x1b[2J \"", s->fd, "root/opt/aws/neuron/lib/libnrt.so.1"), 0);
        json_t *files = json_object_get(packages_of(s, &document), "files");
        assert_int_equal(json_object_size(files), 0);
        json_decref(document);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(without_dpkg_the_files_name_the_library_and_the_tools),
                TEST(dpkgs_versions_stand_beside_the_drivers),
                TEST(a_link_whose_name_is_no_word_is_left_out),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
