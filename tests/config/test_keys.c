/* The table itself: complete, and without faults that would show only when somebody uses a key. */
#include "tests/config/config_test.h"

#include "config/keys.h"
#include "config/read.h"
#include "config/value.h"

static void every_row_has_a_name_of_its_own_and_a_sentence(void **state) {
        size_t n;
        const ConfigKey *keys = keys_all(&n);

        for (size_t i = 0; i < n; i++) {
                size_t length = strlen(keys[i].help);
                assert_ptr_equal(keys_get(keys[i].name), &keys[i]);
                assert_true(length > 10 && keys[i].help[length - 1] == '.');
                assert_non_null(keys_type_name(&keys[i]));
                assert_non_null(keys_type_remedy(&keys[i]));
        }
}

static void every_row_lies_below_a_row_that_holds_it(void **state) {
        size_t n;
        const ConfigKey *keys = keys_all(&n);

        for (size_t i = 0; i < n; i++) {
                const char *leaf = keys_leaf(&keys[i]);
                bool found = leaf == keys[i].name;
                for (size_t k = 0; k < i; k++)
                        if (keys[k].type == KEY_SECTION || keys[k].type == KEY_ELEMENTS)
                                found = found || keys_is_child(&keys[i], keys[k].below);
                assert_true(found);
        }
}

/* Scratch large enough for any element and for the configuration. */
static void every_default_and_every_example_is_accepted(void **state) {
        size_t n;
        const ConfigKey *keys = keys_all(&n);

        for (size_t i = 0; i < n; i++) {
                _cleanup_free_ char *base = calloc(1, 4096);
                _cleanup_(value_fault_done) ValueFault f = { 0 };
                assert_true(keys[i].offset + keys[i].size < 4096);
                if (keys[i].fallback) {
                        assert_int_equal(value_set_default(&keys[i], base), 0);
                        value_clear(&keys[i], base);
                }
                if (keys[i].example && keys[i].example[0] != '[' && keys[i].example[0] != '{' &&
                    keys[i].type != KEY_MINUTE) {
                        assert_int_equal(value_set(&keys[i], base, keys[i].example, &f), 0);
                        value_clear(&keys[i], base);
                }
        }
}

/* docs/CONFIGURATION.md; NULL = must be given. */
static const char *const contract[][2] = {
        { "version", "1" },
        { "node.instance_id", "auto" },
        { "node.labels", "" },
        { "state_directory", "/var/lib/neuron-collectd" },
        { "sources[].name", NULL },
        { "sources[].kind", NULL },
        { "sources[].path", NULL },
        { "sources[].settle", "10s" },
        { "sources[].max_wait", "30m" },
        { "sources[].watch", "auto" },
        { "sources[].scan_interval", "60s" },
        { "sources[].max_files", "100000" },
        { "sources[].max_bytes", "0" },
        { "sources[].exclude", "" },
        { "sources[].crash_reports", "true" },
        { "sources[].destinations", "" },
        { "destinations[].name", NULL },
        { "destinations[].type", NULL },
        { "destinations[].bucket", NULL },
        { "destinations[].prefix", "neuron/%d-%c" },
        { "destinations[].region", "" },
        { "destinations[].endpoint", "" },
        { "destinations[].addressing", "auto" },
        { "destinations[].part_size", "8MiB" },
        { "destinations[].connections", "4" },
        { "destinations[].ca_file", "" },
        { "destinations[].proxy", "" },
        { "destinations[].profile", "" },
        { "destinations[].sse", "none" },
        { "destinations[].kms_key_id", "" },
        { "destinations[].storage_class", "" },
        { "destinations[].tags", "" },
        { "destinations[].expected_bucket_owner", "" },
        { "destinations[].request_timeout", "60s" },
        { "destinations[].path", NULL },
        { "destinations[].min_free", "5%" },
        { "limits.upload_rate", "0" },
        { "limits.request_rate", "200" },
        { "limits.read_rate", "0" },
        { "limits.memory", "64MiB" },
        { "limits.memory_max", "256MiB" },
        { "limits.compression_threads", "auto" },
        { "limits.compression_level", "3" },
        { "limits.upload_windows[].from", NULL },
        { "limits.upload_windows[].to", NULL },
        { "limits.upload_windows[].rate", NULL },
        { "retry.initial", "1s" },
        { "retry.maximum", "5m" },
        { "retry.quarantine_after", "20" },
        { "retry.orphan_age", "24h" },
        { "retention.after_delivery", "keep" },
        { "retention.keep_for", "24h" },
        { "retention.max_use", "10%" },
        { "retention.keep_free", "15%" },
        { "retention.evict_undelivered", "never" },
        { "retention.history", "90d" },
        { "agreement.enabled", "true" },
        { "agreement.listen", "tcp://0.0.0.0:7733" },
        { "agreement.peers", "" },
        { "agreement.rendezvous", "auto" },
        { "agreement.settle", "5s" },
        { "agreement.window", "2m" },
        { "agreement.key_file", "" },
        { "api.socket", "/run/neuron-collectd/api.sock" },
        { "api.listen", "" },
        { "hook.socket", "/run/neuron-collectd/hook.sock" },
        { "hook.mailbox", "/var/lib/neuron-collectd/mailbox" },
        { "hook.deadline", "2s" },
        { "hook.allow_prefixes", "" },
        { "snapshot.enabled", "true" },
        { "snapshot.sysfs_root", "/sys" },
        { "snapshot.device_directory", "/dev" },
        { "snapshot.proc_root", "/proc" },
        { "snapshot.probe_timeout", "5s" },
        { "snapshot.probe_bytes", "4MiB" },
        { "snapshot.environment", "NEURON_* XLA_* RANK WORLD_SIZE SLURM_* FI_*" },
        { "snapshot.commands[].name", NULL },
        { "snapshot.commands[].run", NULL },
        { "snapshot.commands[].timeout", "20s" },
        { "log.level", "info" },
        { "log.format", "auto" },
};

static void the_keys_and_defaults_of_the_contract_are_there(void **state) {
        for (size_t i = 0; i < ELEMENTSOF(contract); i++) {
                const ConfigKey *key = keys_get(contract[i][0]);
                if (!key)
                        fail_msg("there is no key %s", contract[i][0]);
                if (contract[i][1])
                        assert_string_equal(key->fallback, contract[i][1]);
                else
                        assert_null(key->fallback);
        }
}

static void only_the_documented_keys_need_a_restart(void **state) {
        static const char *const names[] = { "node.instance_id",  "state_directory",
                                             "agreement.enabled", "api.socket",
                                             "api.listen",        "hook.socket",
                                             "hook.mailbox" };
        size_t n, n_found = 0;
        const ConfigKey *keys = keys_all(&n);

        for (size_t i = 0; i < n; i++)
                n_found += (keys[i].flags & KEY_RESTART) != 0;
        assert_int_equal(n_found, ELEMENTSOF(names));
        for (size_t i = 0; i < ELEMENTSOF(names); i++)
                assert_true(keys_get(names[i])->flags & KEY_RESTART);
}

static void refused_names_have_a_message_of_their_own(void **state) {
        const ConfigRefusedKey *refused = keys_find_refused("limits.", "fleet_rate");

        assert_non_null(strstr(refused->fault, "not available"));
        assert_non_null(strstr(refused->remedy, "delete the line"));
        assert_non_null(keys_find_refused("", "sampling"));
        assert_null(keys_find_refused("", "fleet_rate"));
        assert_null(keys_find_refused("hook.", "socket"));
}

static void expect_suggestion(const char *prefix, const char *leaf, const char *name) {
        const ConfigKey *key = key_suggest(prefix, leaf);

        if (!name)
                assert_null(key);
        else if (!key)
                fail_msg("no suggestion for %s%s", prefix, leaf);
        else
                assert_string_equal(key->name, name);
}

static void a_near_name_is_suggested_and_a_far_one_is_not(void **state) {
        expect_suggestion("destinations[].", "part-size", "destinations[].part_size");
        expect_suggestion("destinations[].", "partsize", "destinations[].part_size");
        expect_suggestion("", "source", "sources");
        expect_suggestion("", "desitnations", "destinations");
        expect_suggestion("sources[].", "exlcude", "sources[].exclude");
        expect_suggestion("log.", "lvl", NULL);
        expect_suggestion("log.", "levle", "log.level");
        expect_suggestion("", "part_size",
                          "destinations[].part_size"); /* right name, wrong place */
        expect_suggestion("", "x", NULL);
        expect_suggestion("", "", NULL);
        expect_suggestion("", "something_else_entirely", NULL);
        expect_suggestion("", "a_name_that_is_much_longer_than_any_key_of_the_table_could_ever_be",
                          NULL);
        expect_suggestion("", "samplin", NULL); /* names that are refused are not suggested */
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(every_row_has_a_name_of_its_own_and_a_sentence),
                cmocka_unit_test(every_row_lies_below_a_row_that_holds_it),
                cmocka_unit_test(every_default_and_every_example_is_accepted),
                cmocka_unit_test(the_keys_and_defaults_of_the_contract_are_there),
                cmocka_unit_test(only_the_documented_keys_need_a_restart),
                cmocka_unit_test(refused_names_have_a_message_of_their_own),
                cmocka_unit_test(a_near_name_is_suggested_and_a_far_one_is_not),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
