/* Loading: files, bounds, types, environment, and what is refused because it is not built yet. */
#include "tests/config/config_test.h"

#include <errno.h>
#include <syslog.h>

#include "config/load.h"
#include "lib/base/log.h"
#include "lib/base/strbuf.h"

#define SOURCE "sources: [{name: s, kind: directory, path: /s}]\n"
#define DESTINATION "destinations: [{name: d, type: volume, path: /d}]\n"
#define BASE SOURCE DESTINATION

/* Expects exactly one fault, which contains `part`. */
static void expect_fault(const char *text, const char *part) {
        _cleanup_(diag_done) Diags diags = { 0 };
        _cleanup_free_ char *faults = NULL;
        Config *c = NULL;
        int r = config_test_parse(&c, text, &diags);

        faults = config_test_faults(&diags);
        if (r != CONFIG_E_FAULTY || diags.n != 1 || !strstr(faults, part))
                fail_msg("%s: %d, %zu faults:\n%s", text, r, diags.n, faults);
        assert_null(c);
}

static Config *expect_good(const char *text) {
        _cleanup_(diag_done) Diags diags = { 0 };
        _cleanup_free_ char *faults = NULL;
        Config *c = NULL;
        int r = config_test_parse(&c, text, &diags);

        faults = config_test_faults(&diags);
        if (r != 0 || diags.n != 0)
                fail_msg("%s: %d, %s", text, r, faults);
        return c;
}

static void the_defaults_are_those_of_the_contract(void **state) {
        _cleanup_(config_freep) Config *c = expect_good(BASE);

        assert_int_equal(c->version, 1);
        assert_string_equal(c->file, CONFIG_TEST_FILE);
        assert_string_equal(c->node.instance_id, "auto");
        assert_int_equal(c->sources[0].settle_usec, 10 * USEC_PER_SEC);
        assert_int_equal(c->sources[0].max_wait_usec, 30 * USEC_PER_MINUTE);
        assert_int_equal(c->sources[0].watch, CONFIG_WATCH_AUTO);
        assert_int_equal(c->sources[0].max_files, 100000);
        assert_int_equal(c->sources[0].max_bytes, 0);
        assert_int_equal(c->sources[0].kind, CONFIG_DIRECTORY);
        assert_int_equal(c->sources[0].destinations.n, 1);
        assert_string_equal(c->sources[0].destinations.items[0], "d");
        assert_null(c->sources[0].destinations.items[1]);
        assert_int_equal(c->sources[0].line, 1);
        assert_int_equal(c->destinations[0].line, 2);
        assert_int_equal(c->destinations[0].type, CONFIG_VOLUME);
        assert_true(c->destinations[0].min_free.is_permille);
        assert_int_equal(c->destinations[0].min_free.permille, 50);
        assert_int_equal(c->limits.memory_bytes, 64 * MIB);
        assert_int_equal(c->limits.compression_threads, 0);
        assert_int_equal(c->limits.compression_level, 3);
        assert_int_equal(c->retry.orphan_age_usec, USEC_PER_DAY);
        assert_false(c->retention.delete_after_delivery);
        assert_int_equal(c->retention.keep_free.permille, 150);
        assert_true(c->agreement.enabled);
        assert_int_equal(c->snapshot.environment.n, 6);
        assert_string_equal(c->snapshot.environment.items[5], "FI_*");
        assert_int_equal(c->log.level, LOG_INFO);
        assert_int_equal(c->log.format, LOG_FORMAT_AUTO);
}

static void the_five_lines_for_those_without_a_file_are_a_configuration(void **state) {
        _cleanup_(config_freep) Config *c = NULL;
        size_t n_lines = 0;

        assert_int_equal(config_defaults(&c), 0);
        for (const char *p = config_minimal; (p = strchr(p, '\n')); p++)
                n_lines++;
        assert_int_equal(n_lines, 5);
        assert_int_equal(c->n_sources, 1);
        assert_string_equal(c->sources[0].path, "/tmp/neuron-core-dump/dt-%d-cid-%c");
        assert_int_equal(c->n_destinations, 1);
        assert_string_equal(c->destinations[0].prefix, "neuron/%d-%c");
}

static void values_are_accepted_in_every_spelling(void **state) {
        _cleanup_(config_freep) Config *c =
                expect_good("sources: [{name: s, kind: neuron-profile, path: /s//x/, settle: "
                            "250ms, max_bytes: 2T, max_files: OFF}]\n"
                            "destinations: [{name: d, type: volume, path: /d, min_free: 64K}]\n"
                            "limits: {compression_threads: 7, compression_level: 0, memory: 32M, "
                            "request_rate: 0}\n"
                            "retention: {max_use: 0.5%, keep_free: off, keep_for: 2h}\n"
                            "agreement: {enabled: 'No'}\n"
                            "node:\n"
                            "api: ~\n");

        assert_string_equal(c->sources[0].path, "/s/x");
        assert_int_equal(c->sources[0].settle_usec, 250000);
        assert_int_equal(c->sources[0].max_bytes, 2 * TIB);
        assert_int_equal(c->sources[0].max_files, 0);
        assert_false(c->destinations[0].min_free.is_permille);
        assert_int_equal(c->destinations[0].min_free.bytes, 64 * KIB);
        assert_int_equal(c->limits.compression_threads, 7);
        assert_int_equal(c->limits.compression_level, 0);
        assert_int_equal(c->limits.request_rate, 0);
        assert_int_equal(c->retention.max_use.permille, 5);
        assert_int_equal(c->retention.keep_free.bytes, 0);
        assert_false(c->agreement.enabled);
}

static void environment_variables_are_put_into_values(void **state) {
        _cleanup_(config_freep) Config *c = expect_good(
                "sources: [{name: s, kind: directory, path: \"${DUMPS}/x\"}]\n" DESTINATION
                "node: {labels: {a: \"${NESTED}\", b: \"$${DUMPS}\", \"${EMPTY}\": "
                "\"x${EMPTY}y\"}}\n");

        assert_string_equal(c->sources[0].path, "/scratch/dumps/x");
        assert_string_equal(c->node.labels.items[1], "${DUMPS}");
        assert_string_equal(c->node.labels.items[3], "${DUMPS}");
        assert_string_equal(c->node.labels.items[4], "${EMPTY}"); /* names are not values */
        assert_string_equal(c->node.labels.items[5], "xy");
}

static void rates_and_their_windows_are_read(void **state) {
        _cleanup_(config_freep) Config *c = expect_good(
                BASE
                "limits: {upload_rate: 3MiB/s, read_rate: 2MiB/s, request_rate: 7, upload_windows: "
                "[{from: \"22:00\", to: \"06:00\", rate: off}, {from: \"05:00\", to: \"09:30\", "
                "rate: 1MiB/s}]}\n");

        assert_int_equal(c->limits.upload_rate, 3 * MIB);
        assert_int_equal(c->limits.read_rate, 2 * MIB);
        assert_int_equal(c->limits.request_rate, 7);
        assert_int_equal(c->limits.n_upload_windows, 2);
        assert_int_equal(c->limits.upload_windows[0].from_minute, 22 * 60);
        assert_int_equal(c->limits.upload_windows[0].to_minute, 6 * 60);
        assert_int_equal(c->limits.upload_windows[0].rate, 0);
        assert_int_equal(c->limits.upload_windows[1].to_minute, 9 * 60 + 30);
        assert_int_equal(c->limits.upload_windows[1].rate, MIB);
}

static void what_is_not_built_yet_is_refused_when_it_is_set(void **state) {
        static const char *const set[] = {
                "limits: {fleet_rate: 1}\n", "dedupe_neff: true\n", "sampling: 1\n",
                "redaction: [a]\n",          "encryption: {}\n",
        };

        for (size_t i = 0; i < ELEMENTSOF(set); i++) {
                _cleanup_free_ char *text = NULL;
                assert_true(asprintf(&text, "%s%s", BASE, set[i]) > 0);
                expect_fault(text, "not available in this version; ");
        }
}

static void what_a_snapshot_may_do_and_run_is_read(void **state) {
        _cleanup_(config_freep) Config *c =
                expect_good(BASE "snapshot: {commands: [{name: ls, run: [/bin/ls, "
                                 "-l], timeout: 3s}]}\n");

        assert_int_equal(c->snapshot.n_commands, 1);
        assert_string_equal(c->snapshot.commands[0].run.items[1], "-l");
        assert_int_equal(c->snapshot.commands[0].timeout_usec, 3 * USEC_PER_SEC);
}

static void prefixes_that_hooks_may_ask_for_are_read(void **state) {
        _cleanup_(config_freep) Config *c =
                expect_good(BASE "hook: {allow_prefixes: [\"s3://bucket/x\", \"s3://other\"]}\n");

        assert_int_equal(c->hook.allow_prefixes.n, 2);
        assert_string_equal(c->hook.allow_prefixes.items[0], "s3://bucket/x");
        expect_fault(BASE "hook: {allow_prefixes: [\"s3://bucket/a/../b\"]}\n", "'..'");
}

static void defaults_are_not_refused_when_they_are_written_out(void **state) {
        _cleanup_(config_freep) Config *c = expect_good(
                BASE "limits: {upload_rate: 0, read_rate: off, upload_windows: []}\n"
                     "retention: {after_delivery: keep, evict_undelivered: never}\n"
                     "agreement: {enabled: true, key_file: \"\", peers: [], rendezvous: auto}\n"
                     "hook: {allow_prefixes: []}\n"
                     "snapshot: {commands: []}\n");

        assert_int_equal(c->limits.upload_rate, 0);
}

static void keys_of_the_other_type_do_not_apply(void **state) {
        expect_fault(SOURCE
                     "destinations: [{bucket: my-bucket, name: d, type: volume, path: /d}]\n",
                     ":2: destinations[0].bucket: does not apply to a volume");
        expect_fault(SOURCE "destinations: [{name: d, type: volume, path: /d, part_size: 8MiB}]\n",
                     "does not apply to a volume");
}

static void a_file_without_sources_or_destinations_is_a_fault(void **state) {
        expect_fault(DESTINATION, "sources: at least one source is required");
        expect_fault(SOURCE "destinations: []\n",
                     ":2: destinations: at least one destination is required");
        expect_fault(DESTINATION "sources:\n", "sources: has no value, but a list is expected");
}

/* n times `text`, between `before` and `after`. */
static char *repeat(const char *before, const char *text, size_t n, const char *after) {
        StrBuf b = STRBUF_INIT;

        strbuf_add(&b, before);
        for (size_t i = 0; i < n; i++)
                strbuf_add(&b, text);
        strbuf_add(&b, after);
        return strbuf_detach(&b);
}

static void bounds_hold_and_what_is_just_below_them_is_accepted(void **state) {
        static const char before[] = BASE "node: {labels: {a: x}}\nsnapshot: {environment: [";
        _cleanup_free_ char *most = repeat(before, "A,", 1000, "]}\n"),
                            *more = repeat(before, "A,", 1001, "]}\n");
        _cleanup_free_ char *deep = repeat("node: {labels: {a: ", "[", 14, "");
        _cleanup_free_ char *many = repeat(
                "",
                "- "
                "[a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,"
                "a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,"
                "a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a]"
                "\n",
                900, "");
        _cleanup_free_ char *fits = repeat(BASE "# ", "x", LOAD_FILE_MAX - strlen(BASE) - 2, "");
        _cleanup_free_ char *large = repeat(BASE "# ", "x", LOAD_FILE_MAX - strlen(BASE) - 1, "");
        _cleanup_free_ char *longest = repeat(BASE "node: {labels: {a: ", "x", 4000, "}}\n");
        _cleanup_free_ char *longer = repeat(BASE "node: {labels: {a: ", "x", 4001, "}}\n");
        _cleanup_free_ char *sources = repeat(DESTINATION "sources:\n",
                                              "- {name: s, kind: directory, path: /s}\n", 201, "");
        _cleanup_(config_freep) Config *a = expect_good(most), *b = expect_good(fits),
                                       *c = expect_good(longest);
        _cleanup_(diag_done) Diags diags = { 0 };
        _cleanup_free_ char *faults = NULL;
        Config *none = NULL;

        assert_int_equal(a->snapshot.environment.n, 1000);
        assert_int_equal(b->n_sources, 1);
        assert_int_equal(strlen(c->node.labels.items[1]), 4000);
        expect_fault(more, ":4: the list has more than 1000 entries");
        expect_fault(large, "is larger than 1MiB");
        expect_fault(longer, "is too long; use 4000 bytes or less");
        expect_fault(sources, "sources: has 201 entries, more than the 200");
        assert_int_equal(config_test_parse(&none, deep, &diags), CONFIG_E_FAULTY);
        assert_int_equal(config_test_parse(&none, many, &diags), CONFIG_E_FAULTY);
        faults = config_test_faults(&diags);
        assert_non_null(strstr(faults, "nested deeper than 16 levels"));
        assert_non_null(strstr(faults, "there are more than 100000 values"));
}

static void a_flood_of_faults_is_cut_off_but_never_passes(void **state) {
        _cleanup_(diag_done) Diags diags = { 0 };
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        _cleanup_free_ char *faults = NULL;
        Config *c = NULL;

        strbuf_add(&text, "sources:\n");
        for (int i = 0; i < 40; i++) {
                strbuf_add(&text, "- {");
                for (int k = 0; k < 30; k++)
                        strbuf_addf(&text, "unknown%d: 1, ", k);
                strbuf_add(&text, "}\n");
        }
        assert_int_equal(config_test_parse(&c, text.text, &diags), CONFIG_E_FAULTY);
        assert_int_equal(diags.n, 1001);
        faults = config_test_faults(&diags);
        assert_non_null(strstr(faults, "there are further faults"));
}

static void after_a_syntax_error_what_was_read_is_judged_but_nothing_is_missing(void **state) {
        _cleanup_(diag_done) Diags diags = { 0 };
        _cleanup_free_ char *faults = NULL;
        Config *c = NULL;

        assert_int_equal(
                config_test_parse(&c, "version: 3\nlgo: {}\nnode: {labels: {a: [}\n", &diags),
                CONFIG_E_FAULTY);
        faults = config_test_faults(&diags);
        assert_non_null(strstr(faults, ":1: version: '3' is unknown"));
        assert_non_null(strstr(faults, ":2: lgo: unknown key; did you mean 'log'?"));
        assert_non_null(strstr(faults, ":3: not YAML: "));
        assert_null(strstr(faults, "is required"));
}

static void a_file_is_read_through_a_symlink_and_a_missing_one_is_reported(void **state) {
        char dir[] = "/tmp/nc-config-XXXXXX";
        _cleanup_free_ char *file = NULL, *link = NULL, *faults = NULL;
        _cleanup_(config_freep) Config *c = NULL, *none = NULL;
        _cleanup_(diag_done) Diags diags = { 0 };
        FILE *f;

        assert_non_null(mkdtemp(dir));
        assert_true(asprintf(&file, "%s/real.yaml", dir) > 0 &&
                    asprintf(&link, "%s/link.yaml", dir) > 0);
        f = fopen(file, "we");
        assert_non_null(f);
        assert_true(fputs(BASE, f) != EOF);
        assert_int_equal(fclose(f), 0);
        assert_int_equal(symlink("real.yaml", link), 0);
        assert_int_equal(config_load(&c, link, config_test_environment, &diags), 0);
        assert_string_equal(c->file, link);
        assert_int_equal(c->n_sources, 1);
        assert_int_equal(unlink(file), 0);
        assert_int_equal(config_load(&none, link, config_test_environment, &diags), -ENOENT);
        assert_int_equal(config_load(&none, dir, config_test_environment, &diags), -EISDIR);
        faults = config_test_faults(&diags);
        assert_int_equal(diags.n, 2);
        assert_non_null(
                strstr(faults, "link.yaml: cannot be read: No such file or directory; check"));
        assert_null(none);
        assert_int_equal(unlink(link), 0);
        assert_int_equal(rmdir(dir), 0);
}

static void a_byte_order_mark_and_windows_line_ends_are_accepted(void **state) {
        _cleanup_(config_freep) Config *c = expect_good(
                "\xef\xbb\xbfsources: [{name: s, kind: directory, path: /s}]\r\n" DESTINATION);

        assert_string_equal(c->sources[0].path, "/s");
}

static void other_encodings_are_refused(void **state) {
        static const char utf16[] = "\xff\xfe"
                                    "a\0:\0 \0b\0\n\0";
        _cleanup_(diag_done) Diags diags = { 0 };
        _cleanup_free_ char *faults = NULL;
        Config *c = NULL;

        assert_int_equal(config_parse(&c, CONFIG_TEST_FILE, utf16, sizeof utf16 - 1, NULL, &diags),
                         CONFIG_E_FAULTY);
        faults = config_test_faults(&diags);
        assert_non_null(strstr(faults, "save the file as UTF-8"));
}

/* Reads a file of the source tree. */
static char *read_source_file(const char *name) {
        const char *srcdir = getenv("srcdir");
        _cleanup_free_ char *path = NULL;
        char *text = calloc(1, 1 << 20);
        FILE *f;

        assert_non_null(text);
        assert_true(asprintf(&path, "%s/%s", srcdir ? srcdir : ".", name) > 0);
        f = fopen(path, "re");
        assert_non_null(f);
        assert_true(fread(text, 1, (1 << 20) - 1, f) > 1000);
        (void)fclose(f); /* it was only read */
        return text;
}

static void fail_on_key(const char *key, bool needs_restart, void *userdata) {
        (void)needs_restart;
        (void)userdata;
        fail_msg("%s differs", key);
}

/* `  #key: value` becomes `  key: value`; prose has a blank after the hash. */
static size_t uncomment(char *text) {
        size_t n = 0;

        for (char *line = text; *line; line = strchr(line, '\n') + 1) {
                size_t indentation = strspn(line, " ");
                if (line[indentation] != '#' || line[indentation + 1] == ' ')
                        continue;
                memmove(line + indentation, line + indentation + 1, strlen(line + indentation));
                n++;
        }
        return n;
}

static void the_example_file_is_good_and_shows_the_true_defaults(void **state) {
        _cleanup_free_ char *text = read_source_file("config/neuron-collectd.yaml");
        _cleanup_(config_freep) Config *as_it_is = expect_good(text), *uncommented = NULL;

        assert_true(uncomment(text) > 40);
        uncommented = expect_good(text);
        config_compare(as_it_is, uncommented, fail_on_key, NULL);
}

/* `  # - name: archive` becomes `  - name: archive`, and so on to the end of the block. */
static void uncomment_bucket(char *text) {
        char *line = strstr(text, "\n  # - name: archive\n");

        assert_non_null(line);
        for (line++; strncmp(line, "  # ", 4) == 0; line = strchr(line, '\n') + 1)
                memmove(line + 2, line + 4, strlen(line + 4) + 1);
}

static void the_example_file_shows_a_bucket_with_all_of_its_keys(void **state) {
        _cleanup_free_ char *text = read_source_file("config/neuron-collectd.yaml");
        _cleanup_(config_freep) Config *c = NULL, *shortest = NULL;

        uncomment_bucket(text);
        c = expect_good(text);
        assert_int_equal(c->n_destinations, 2);
        assert_int_equal(c->destinations[1].type, CONFIG_S3);
        for (const char *const *key = (const char *const[]){ "prefix", "region", "tags", "ca_file",
                                                             "request_timeout", NULL };
             *key; key++) {
                _cleanup_free_ char *start = NULL;
                assert_true(asprintf(&start, "\n    %s: ", *key) > 0);
                assert_non_null(strstr(text, start));
        }
        *strstr(text, "  - name: archive") = '\0'; /* and all of them show the default */
        shortest = expect_good(strcat(text, "  - {name: archive, type: s3, bucket: my-bucket}\n"));
        for (size_t i = 0; i < 2; i++)
                assert_string_equal(c->sources[0].destinations.items[i],
                                    shortest->sources[0].destinations.items[i]);
        config_compare(c, shortest, fail_on_key, NULL);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(the_defaults_are_those_of_the_contract),
                cmocka_unit_test(the_five_lines_for_those_without_a_file_are_a_configuration),
                cmocka_unit_test(values_are_accepted_in_every_spelling),
                cmocka_unit_test(environment_variables_are_put_into_values),
                cmocka_unit_test(rates_and_their_windows_are_read),
                cmocka_unit_test(what_is_not_built_yet_is_refused_when_it_is_set),
                cmocka_unit_test(what_a_snapshot_may_do_and_run_is_read),
                cmocka_unit_test(prefixes_that_hooks_may_ask_for_are_read),
                cmocka_unit_test(defaults_are_not_refused_when_they_are_written_out),
                cmocka_unit_test(keys_of_the_other_type_do_not_apply),
                cmocka_unit_test(a_file_without_sources_or_destinations_is_a_fault),
                cmocka_unit_test(bounds_hold_and_what_is_just_below_them_is_accepted),
                cmocka_unit_test(a_flood_of_faults_is_cut_off_but_never_passes),
                cmocka_unit_test(
                        after_a_syntax_error_what_was_read_is_judged_but_nothing_is_missing),
                cmocka_unit_test(a_file_is_read_through_a_symlink_and_a_missing_one_is_reported),
                cmocka_unit_test(a_byte_order_mark_and_windows_line_ends_are_accepted),
                cmocka_unit_test(other_encodings_are_refused),
                cmocka_unit_test(the_example_file_is_good_and_shows_the_true_defaults),
                cmocka_unit_test(the_example_file_shows_a_bucket_with_all_of_its_keys),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
