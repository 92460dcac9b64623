/* What a reload is reported to have changed. */
#include "tests/config/config_test.h"

#include "lib/base/strbuf.h"

static Config *parse(const char *text) {
        _cleanup_(diag_done) Diags diags = { 0 };
        _cleanup_free_ char *faults = NULL;
        Config *c = NULL;
        int r = config_test_parse(&c, text, &diags);

        faults = config_test_faults(&diags);
        if (r != 0)
                fail_msg("%s%s", text, faults);
        return c;
}

static void note_key(const char *key, bool needs_restart, void *userdata) {
        strbuf_addf(userdata, "%s%s ", key, needs_restart ? "!" : "");
}

/* Keys that differ, each followed by a blank; those that need a restart by `!` too. */
static void expect_changes(const char *running, const char *loaded, const char *expected) {
        _cleanup_(config_freep) Config *a = parse(running), *b = parse(loaded);
        _cleanup_(strbuf_done) StrBuf keys = STRBUF_INIT;

        config_compare(a, b, note_key, &keys);
        assert_string_equal(keys.text ? keys.text : "", expected);
}

#define SOURCES                                                                                    \
        "sources: [{name: s, kind: directory, path: /s}, {name: t, kind: directory, path: /t}]\n"
#define DESTINATIONS "destinations: [{name: d, type: volume, path: /d}]\n"
#define BASE SOURCES DESTINATIONS

static void what_is_the_same_is_not_reported(void **state) {
        expect_changes(BASE, BASE, "");
        expect_changes(BASE, "# moved\n\n" DESTINATIONS SOURCES, "");
        expect_changes(BASE, BASE "retry: {orphan_age: 1d}\nlimits: {memory: 65536K}\n", "");
        expect_changes(BASE "limits: {compression_threads: auto}\n", BASE, "");
}

static void a_changed_key_is_reported_by_its_name(void **state) {
        expect_changes(BASE, BASE "log: {level: debug}\n", "log.level ");
        expect_changes(BASE "node: {labels: {a: b}}\n", BASE "node: {labels: {a: c}}\n",
                       "node.labels ");
        expect_changes(BASE, BASE "snapshot: {environment: [A]}\nretention: {max_use: 1GiB}\n",
                       "retention.max_use snapshot.environment ");
}

static void keys_that_need_a_restart_are_marked(void **state) {
        expect_changes(BASE,
                       BASE "state_directory: /x\nnode: {instance_id: i-1}\napi: {socket: /a, "
                            "listen: \"[::]:1\"}\nhook: {socket: /b, mailbox: /c, deadline: 3s}\n",
                       "node.instance_id! state_directory! api.socket! api.listen! hook.socket! "
                       "hook.mailbox! hook.deadline ");
}

static void sources_and_destinations_are_reported_by_their_names(void **state) {
        expect_changes(BASE,
                       "sources: [{name: t, kind: directory, path: /t}, {name: s, kind: directory, "
                       "path: /s}]\n" DESTINATIONS,
                       "");
        expect_changes(BASE,
                       "sources: [{name: s, kind: directory, path: /s, settle: 1s}, {name: t, "
                       "kind: directory, path: /t}]\n" DESTINATIONS,
                       "sources[s] ");
        expect_changes(BASE,
                       "sources: [{name: s, kind: directory, path: /s}, {name: u, kind: directory, "
                       "path: /t}]\n" DESTINATIONS,
                       "sources[t] sources[u] ");
        expect_changes(BASE,
                       SOURCES "destinations: [{name: d, type: volume, path: /d, min_free: 1%}]\n",
                       "destinations[d] ");
        expect_changes(BASE,
                       SOURCES "destinations: [{name: d, type: volume, path: /d}, {name: e, type: "
                               "volume, path: /e}]\n",
                       "sources[s] sources[t] destinations[e] "); /* sources go to all by default */
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(what_is_the_same_is_not_reported),
                cmocka_unit_test(a_changed_key_is_reported_by_its_name),
                cmocka_unit_test(keys_that_need_a_restart_are_marked),
                cmocka_unit_test(sources_and_destinations_are_reported_by_their_names),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
