/* What several keys must be together. */
#include "tests/config/config_test.h"

/* Expects one fault that begins with `start` after the file's name. */
static void expect_fault(const char *text, const char *start) {
        _cleanup_(diag_done) Diags diags = { 0 };
        _cleanup_free_ char *faults = NULL, *expected = NULL;
        Config *c = NULL;
        int r = config_test_parse(&c, text, &diags);

        faults = config_test_faults(&diags);
        assert_true(asprintf(&expected, "%s:%s", CONFIG_TEST_FILE, start) > 0);
        if (r != CONFIG_E_FAULTY || diags.n != 1 ||
            strncmp(faults, expected, strlen(expected)) != 0)
                fail_msg("%s: %d, %zu faults:\n%s", text, r, diags.n, faults);
        assert_non_null(strstr(faults, "; ")); /* a remedy */
}

static Config *expect_good(const char *text) {
        _cleanup_(diag_done) Diags diags = { 0 };
        _cleanup_free_ char *faults = NULL;
        Config *c = NULL;
        int r = config_test_parse(&c, text, &diags);

        faults = config_test_faults(&diags);
        if (r != 0)
                fail_msg("%s: %s", text, faults);
        return c;
}

/* One source and one destination of these paths. */
static char *pair(const char *kind, const char *source, const char *destination) {
        char *text;

        assert_true(asprintf(&text,
                             "sources: [{name: s, kind: %s, path: %s}]\n"
                             "destinations: [{name: d, type: volume, path: %s}]\n",
                             kind, source, destination) > 0);
        return text;
}

static void destination_of(const char *kind, const char *path, const char *expected) {
        _cleanup_free_ char *text = pair(kind, "/s/%p", path);
        _cleanup_(config_freep) Config *c = expect_good(text);

        assert_string_equal(c->destinations[0].path, expected);
}

static void identity_is_appended_where_a_source_has_incidents(void **state) {
        destination_of("neuron-core-dump", "/d", "/d/%d-%c");
        destination_of("neuron-core-dump", "/d/%p", "/d/%p/%d-%c");
        destination_of("neuron-core-dump", "/d/%d", "/d/%d");
        destination_of("neuron-core-dump", "/d/%c", "/d/%c");
        destination_of("neuron-core-dump", "/d/%%d", "/d/%%d/%d-%c");
        destination_of("neuron-profile", "/d", "/d");
        destination_of("process-core", "/d", "/d");
        destination_of("directory", "/d", "/d");
}

static void identity_is_not_appended_where_only_other_kinds_go(void **state) {
        _cleanup_(config_freep) Config *c =
                expect_good("sources:\n"
                            "- {name: a, kind: neuron-core-dump, path: /a, destinations: [one]}\n"
                            "- {name: b, kind: directory, path: /b}\n"
                            "destinations:\n"
                            "- {name: one, type: volume, path: /one}\n"
                            "- {name: two, type: volume, path: /two}\n");

        assert_string_equal(c->destinations[0].path, "/one/%d-%c");
        assert_string_equal(c->destinations[1].path, "/two");
        assert_int_equal(c->sources[1].destinations.n, 2);
        assert_string_equal(c->sources[1].destinations.items[1], "two");
}

static void a_path_too_long_for_the_identity_is_a_fault(void **state) {
        char path[4000];
        _cleanup_free_ char *text = NULL;

        memset(path, 'x', sizeof path);
        path[0] = '/';
        path[3996] = '\0';
        text = pair("neuron-core-dump", "/s", path);
        expect_fault(text, "2: destinations[0].path: is too long to have '/%d-%c' appended");
}

static void places(const char *source, const char *destination, bool apart) {
        _cleanup_free_ char *text = pair("directory", source, destination);

        if (apart) {
                Config *c = expect_good(text);
                config_free(c);
        } else {
                expect_fault(text, "1: sources[0].path: watches '");
        }
}

static void sources_and_destinations_lie_apart(void **state) {
        places("/a", "/b", true);
        places("/a", "/ab", true);
        places("/a/b", "/a/c", true);
        places("/a/%d/b", "/b", true);
        places("/a", "/a", false);
        places("/a", "/a/b", false);
        places("/a/b", "/a", false);
        places("/a/%p", "/a/b/%d", false);
        places("/a/b%p", "/a/b", false); /* the fixed part is /a */
        places("//a/./", "/a/", false);
}

static void sources_do_not_overlap(void **state) {
        static const char *const pairs[][3] = {
                { "/a", "directory", "/a" },    { "/a", "directory", "/a/b" },
                { "/a/b", "directory", "/a" },  { "/a/%p", "directory", "/a/x" },
                { "/a", "process-core", "/a" }, { "/a", "neuron-profile", "/a/b" },
        };
        _cleanup_(config_freep) Config *c =
                expect_good("sources:\n"
                            "- {name: s, kind: directory, path: /a}\n"
                            "- {name: t, kind: process-core, path: /b}\n"
                            "- {name: u, kind: directory, path: /ab}\n"
                            "destinations: [{name: d, type: volume, path: /d}]\n");

        assert_int_equal(c->n_sources, 3);
        for (size_t i = 0; i < ELEMENTSOF(pairs); i++) {
                _cleanup_free_ char *text = NULL;
                assert_true(asprintf(&text,
                                     "destinations: [{name: d, type: volume, path: /d}]\n"
                                     "sources:\n"
                                     "- {name: s, kind: directory, path: %s}\n"
                                     "- {name: t, kind: %s, path: %s}\n",
                                     pairs[i][0], pairs[i][1], pairs[i][2]) > 0);
                expect_fault(text, "4: sources[1].path: watches '");
        }
}

#define BASE                                                                                       \
        "sources: [{name: s, kind: directory, path: /s}]\n"                                        \
        "destinations: [{name: d, type: volume, path: /d}]\n"

static void the_state_directory_lies_outside_of_sources(void **state) {
        expect_fault(BASE "state_directory: /s/state\n",
                     "1: sources[0].path: watches '/s', but the agent's state");
}

static void names_are_unique_and_exist(void **state) {
        expect_fault("sources: [{name: s, kind: directory, path: /s}]\n"
                     "destinations:\n- {name: d, type: volume, path: /d}\n- {name: d, type: "
                     "volume, path: /e}\n",
                     "4: destinations[1].name: 'd' is already the name of destinations[0]");
        expect_fault("sources: [{name: s, kind: directory, path: /s, destinations: [d, e]}]\n"
                     "destinations: [{name: d, type: volume, path: /d}]\n",
                     "1: sources[0].destinations[1]: unknown destination 'e'; use one of: d");
        expect_fault("sources:\n- name: s\n  kind: directory\n  path: /s\n  destinations:\n  - d\n "
                     " - d\n"
                     "destinations: [{name: d, type: volume, path: /d}]\n",
                     "7: sources[0].destinations[1]: 'd' is in the list twice");
}

static void the_name_of_the_agent_s_own_source_is_refused(void **state) {
#define DESTINATION "destinations: [{name: d, type: volume, path: /d}]\n"
        expect_fault("sources: [{name: agent, kind: directory, path: /s}]\n" DESTINATION,
                     "1: sources[0].name: 'agent' is reserved for what the agent itself makes");
#undef DESTINATION
}

static void memory_suffices_for_what_is_asked(void **state) {
        static const char *const good[] = {
                "limits: {compression_level: 19, compression_threads: 5}\n",
                "limits: {compression_level: 19}\n",
                "limits: {compression_level: 3, compression_threads: 128}\n",
                "limits: {memory: 256MiB}\n",
                "limits: {memory: 16MiB, memory_max: 16MiB}\n",
        };

        for (size_t i = 0; i < ELEMENTSOF(good); i++) {
                _cleanup_free_ char *text = NULL;
                assert_true(asprintf(&text, "%s%s", BASE, good[i]) > 0);
                config_free(expect_good(text));
        }
        expect_fault(BASE "limits: {compression_level: 12, compression_threads: 6}\n",
                     "3: limits.compression_level: compression takes 300MiB with 6 threads");
        expect_fault(BASE "limits: {compression_threads: 129}\n",
                     "3: limits.compression_threads: compression takes 258MiB");
        expect_fault(BASE "limits: {memory: 32MiB, memory_max: 32MiB, compression_level: 12}\n",
                     "3: limits.compression_level: compression takes 50MiB");
        expect_fault(BASE "limits: {memory: 257MiB}\n",
                     "3: limits.memory: limits.memory_max, 256MiB, is below");
        expect_fault(BASE "limits: {memory: 15MiB}\n", "3: limits.memory: '15MiB' is below 16MiB");
        expect_fault(
                BASE "limits: {memory_max: 32MiB}\n",
                "3: limits.memory_max: limits.memory_max, 32MiB, is below limits.memory, 64MiB");
}

static void times_fit_together(void **state) {
        expect_fault(BASE "retry: {maximum: 500ms}\n",
                     "3: retry.maximum: retry.maximum is below retry.initial");
        expect_fault("sources: [{name: s, kind: directory, path: /s, settle: 31m}]\n"
                     "destinations: [{name: d, type: volume, path: /d}]\n",
                     "1: sources[0].settle: max_wait is below settle");
        expect_fault(BASE "retry: {initial: 10m, maximum: soon}\n",
                     "3: retry.maximum: 'soon' is not a time"); /* and nothing follows from it */
}

static void the_two_sockets_are_two(void **state) {
        expect_fault(BASE "api: {socket: /run/neuron-collectd/hook.sock}\n",
                     "3: api.socket: api.socket and hook.socket are both");
}

static void who_keeps_what_is_delivered_cannot_evict_what_is_not(void **state) {
        expect_fault(BASE "retention:\n  evict_undelivered: oldest\n",
                     "4: retention.evict_undelivered: with after_delivery: keep no source is ever "
                     "deleted, so none can be evicted; use never, or also set "
                     "retention.after_delivery: delete");
        expect_fault(
                BASE "retention: {after_delivery: perhaps, evict_undelivered: oldest}\n",
                "3: retention.after_delivery: invalid value 'perhaps' (one of: keep, delete); ");
        _cleanup_(config_freep) Config *c = expect_good(
                BASE "retention: {after_delivery: delete, evict_undelivered: oldest}\n");
        assert_true(c->retention.evict_oldest && c->retention.delete_after_delivery);
}

static void a_trusted_user_that_is_not_known_is_warned_of(void **state) {
        _cleanup_(config_freep) Config *c = NULL;
        _cleanup_(diag_done) Diags diags = { 0 };
        _cleanup_free_ char *text = NULL;
        size_t n;
        (void)state;
        assert_int_equal(asprintf(&text, "%sagreement: {trusted_uids: [990, root, nobody-known]}\n",
                                  config_minimal) < 0,
                         0);
        assert_int_equal(config_test_parse(&c, text, &diags), 0);
        free(TAKE_PTR(text));
        FILE *f = open_memstream(&text, &n);
        config_print_warnings(c, f);
        assert_int_equal(fclose(f), 0);
        assert_non_null(strstr(text, "agreement.trusted_uids[2]: this machine knows no user "
                                     "'nobody-known'"));
        assert_null(strstr(text, "trusted_uids[0]"));
        assert_null(strstr(text, "trusted_uids[1]"));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(identity_is_appended_where_a_source_has_incidents),
                cmocka_unit_test(identity_is_not_appended_where_only_other_kinds_go),
                cmocka_unit_test(a_path_too_long_for_the_identity_is_a_fault),
                cmocka_unit_test(sources_and_destinations_lie_apart),
                cmocka_unit_test(sources_do_not_overlap),
                cmocka_unit_test(the_state_directory_lies_outside_of_sources),
                cmocka_unit_test(names_are_unique_and_exist),
                cmocka_unit_test(the_name_of_the_agent_s_own_source_is_refused),
                cmocka_unit_test(memory_suffices_for_what_is_asked),
                cmocka_unit_test(times_fit_together),
                cmocka_unit_test(the_two_sockets_are_two),
                cmocka_unit_test(a_trusted_user_that_is_not_known_is_warned_of),
                cmocka_unit_test(who_keeps_what_is_delivered_cannot_evict_what_is_not),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
