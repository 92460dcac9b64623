/* The note: what is composed is read again, and what a stranger writes is refused unless it is one.
 */
#include "lib/neuron/note.h"

#include <stdio.h>
#include <string.h>

#include "tests/harness/unit.h"
#include <jansson.h>

#include "lib/base/cleanup.h"

#define ID "0123456789abcdef0123456789abcdef"
#define HEAD "{\"schema\":\"" NOTE_SCHEMA "\",\"id\":\"" ID "\""

static HookNote sample(void) {
        static char *environment[] = { "RANK=3",           "HOME=/home/x",
                                       "RANK=4",           "NEURON_X=a b",
                                       "broken",           "NEURON_URL=http://me:hunter2@h/",
                                       "HF_TOKEN=hunter2", NULL };
        static NoteFlag extra[] = { { "--new-flag", "7" },
                                    { "--alone", NULL },
                                    { "--api-key", "hunter2" } };
        return (HookNote){ .id = ID,
                           .written_usec = 1700000000000000,
                           .neff_name = "file.neff",
                           .neff_uuid = "",
                           .pid = "17",
                           .error_code = "NRT_TIMEOUT",
                           .error_number = 5,
                           .has_error_number = true,
                           .local_output_dir = "/tmp/a\\b\xff c",
                           .extra = extra,
                           .n_extra = 3,
                           .environment = environment,
                           .job = { .source = "slurm",
                                    .key = "slurm:slurm=17@prod,step=0",
                                    .rank = 3,
                                    .world_size = -1,
                                    .local_rank = 0,
                                    .restart_count = -1,
                                    .first_device = -1,
                                    .n_devices = -1,
                                    .root_comm_id = "10.0.0.1:5",
                                    .master_addr = "ip-10-0-0-1" },
                           .hook_pid = 100,
                           .hook_ppid = 17,
                           .pid_namespace = 4026531836,
                           .record_name = "i-0-neuron-dump.json" };
}

static int parse(const char *text, HookNote *ret, const char **why) {
        return hook_note_parse(text, strlen(text), NULL, ret, why);
}

static void what_is_composed_is_read_again(void **state) {
        HookNote n = sample();
        _cleanup_(hook_note_done) HookNote got = { 0 };
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        const char *why = NULL;
        assert_int_equal(hook_note_format(&n, NULL, &b), 0);
        assert_int_equal(parse(b.text, &got, &why), 0);
        assert_string_equal(got.id, ID);
        assert_int_equal(got.written_usec, n.written_usec);
        assert_string_equal(got.neff_name, "file.neff");
        assert_string_equal(got.neff_uuid, "");
        assert_null(got.date_time);
        assert_string_equal(got.pid, "17");
        assert_string_equal(got.local_output_dir, "/tmp/a\\b\xff c");
        assert_true(got.has_error_number);
        assert_int_equal(got.error_number, 5);
        assert_int_equal(got.n_extra, 3);
        assert_string_equal(got.extra[0].name, "--new-flag");
        assert_string_equal(got.extra[0].value, "7");
        assert_null(got.extra[1].value);
        assert_string_equal(got.job.source, "slurm");
        assert_string_equal(got.job.key, "slurm:slurm=17@prod,step=0"); /* no user and host */
        assert_int_equal(got.job.rank, 3);
        assert_int_equal(got.job.world_size, -1);
        assert_string_equal(got.job.root_comm_id, "10.0.0.1:5");
        assert_string_equal(got.job.master_addr, "ip-10-0-0-1");
        assert_int_equal(got.hook_ppid, 17);
        assert_int_equal(got.pid_namespace, 4026531836);
        assert_string_equal(got.record_name, "i-0-neuron-dump.json");
        assert_null(got.snapshot_name);
        assert_string_equal(environment_get(got.environment, "RANK"), "3");
        assert_string_equal(environment_get(got.environment, "NEURON_X"), "a b");
}

static void secrets_and_what_is_not_allowed_stay_behind(void **state) {
        HookNote n = sample();
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        n.neff_name = "token=hunter2";
        n.s3_output_prefix = "https://b/k?X-Amz-Signature=hunter2&x=1";
        assert_int_equal(hook_note_format(&n, NULL, &b), 0);
        assert_null(strstr(b.text, "hunter2"));
        assert_null(strstr(b.text, "/home/x"));
        assert_null(strstr(b.text, "HF_TOKEN"));
        assert_non_null(strstr(b.text, "[redacted]@h/"));
        /* and once more by who reads it */
        _cleanup_(hook_note_done) HookNote got = { 0 };
        const char *why;
        assert_int_equal(parse(HEAD ",\"arguments\":{\"neff_name\":\"token=hunter2\"},"
                                    "\"environment\":{\"HF_TOKEN\":\"hunter2\",\"HOME\":\"/\","
                                    "\"NEURON_A\":\"http://a:hunter2@b\",\"RANK\":\"1\"}}",
                               &got, &why),
                         0);
        assert_string_equal(got.neff_name, "token=[redacted]");
        assert_string_equal(got.environment[0], "NEURON_A=http://[redacted]@b");
        assert_string_equal(got.environment[1], "RANK=1");
        assert_null(got.environment[2]);
}

/* A note of hostile size: each field as long as an argument can be, of bytes that take six in JSON.
 */
static void a_large_note_is_cut_and_reports_it(void **state) {
        enum { N = 100000 };
        static char large[N + 1];
        static const char fill[] = { 'x', '\x01', '\xff', '\\' };
        for (size_t f = 0; f < ELEMENTSOF(fill); f++) {
                HookNote n = sample();
                _cleanup_(hook_note_done) HookNote got = { 0 };
                _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
                const char *why = NULL;
                memset(large, fill[f], N);
                n.neff_name = n.neff_uuid = n.date_time = n.pid = n.tid = n.log_id = n.instance_id =
                        n.cluster_id = n.error_location = n.error_code = n.local_output_dir =
                                n.s3_output_prefix = large;
                NoteFlag extra[200];
                for (size_t i = 0; i < ELEMENTSOF(extra); i++)
                        extra[i] = (NoteFlag){ large, large };
                n.extra = extra;
                n.n_extra = ELEMENTSOF(extra);
                assert_int_equal(hook_note_format(&n, NULL, &b), 0);
                assert_in_range(b.n, 1000, NOTE_MAX_BYTES);
                assert_non_null(strstr(b.text, "\"cut\":true"));
                if (parse(b.text, &got, &why) != 0)
                        fail_msg("%s", why);
        }
}

static void a_large_environment_goes_first(void **state) {
        static char variables[1000][200], *environment[1001];
        for (size_t i = 0; i < 1000; i++) {
                (void)snprintf(variables[i], sizeof variables[i], "NEURON_%zu=%0150d", i, 0);
                environment[i] = variables[i];
        }
        HookNote n = sample();
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        n.environment = environment;
        assert_int_equal(hook_note_format(&n, NULL, &b), 0);
        assert_true(b.n <= NOTE_MAX_BYTES);
        assert_null(strstr(b.text, "NEURON_1"));
        assert_non_null(strstr(b.text, "--new-flag"));
        assert_non_null(strstr(b.text, "\"cut\":true"));
}

static void what_is_no_note_is_refused_with_a_reason(void **state) {
        /* clang-format off */
        static const char *const bad[] = {
                "", "{", "[]", "null", "7", "{}", "\"\"", "\xff",
                "{\"schema\":\"x\",\"id\":\"" ID "\"}",
                "{\"schema\":\"" NOTE_SCHEMA "\"}",
                "{\"schema\":\"" NOTE_SCHEMA "\",\"id\":\"0123456789ABCDEF0123456789abcdef\"}",
                "{\"schema\":\"" NOTE_SCHEMA "\",\"id\":\"" ID "0\"}",
                "{\"schema\":\"" NOTE_SCHEMA "\",\"id\":7}",
                HEAD ",\"id\":\"" ID "\"}", /* twice */
                HEAD "} x",
                HEAD ",\"written_usec\":-1}",
                HEAD ",\"written_usec\":1.5}",
                HEAD ",\"written_usec\":99999999999999999999}",
                HEAD ",\"arguments\":[]}",
                HEAD ",\"arguments\":{\"pid\":17}}",
                HEAD ",\"arguments\":{\"pid\":\"a\\u0000b\"}}",
                HEAD ",\"arguments\":{\"local_output_dir\":\"/a\\\\b\"}}",
                HEAD ",\"arguments\":{\"local_output_dir\":\"/a\\\\x00\"}}",
                HEAD ",\"unknown\":{}}",
                HEAD ",\"unknown\":[7]}",
                HEAD ",\"unknown\":[{\"value\":\"x\"}]}",
                HEAD ",\"environment\":[]}",
                HEAD ",\"environment\":{\"RANK\":1}}",
                HEAD ",\"job\":{\"source\":\"magic\"}}",
                HEAD ",\"job\":{\"key\":\"a b\"}}",
                HEAD ",\"job\":{\"key\":\"a\\u001bb\"}}",
                HEAD ",\"job\":{\"rank\":\"3\"}}",
                HEAD ",\"job\":{\"rank\":-3}}",
                HEAD ",\"files\":{\"record\":\"../x\"}}",
                HEAD ",\"files\":{\"record\":\"\"}}",
                HEAD ",\"files\":{\"snapshot\":\".x\"}}",
                HEAD ",\"x\":[[[[[[[[[]]]]]]]]]}",
        };
        /* clang-format on */
        for (size_t i = 0; i < ELEMENTSOF(bad); i++) {
                HookNote n = { .id = "untouched" };
                const char *why = NULL;
                if (parse(bad[i], &n, &why) != NOTE_E_REFUSED)
                        fail_msg("taken: %s", bad[i]);
                assert_non_null(why);
                assert_string_equal(n.id, "untouched");
        }
}

static void sizes_are_bounded(void **state) {
        static char text[70000];
        _cleanup_(hook_note_done) HookNote n = { 0 };
        const char *why;
        int head = snprintf(text, sizeof text, HEAD ",\"arguments\":{\"pid\":\"");
        memset(text + head, '1', 16385);
        (void)strcpy(text + head + 16385, "\"}}");
        assert_int_equal(parse(text, &n, &why), NOTE_E_REFUSED);
        (void)strcpy(text + head + 16384, "\"}}");
        assert_int_equal(parse(text, &n, &why), 0);
        hook_note_done(&n);
        head = snprintf(text, sizeof text, HEAD ",\"job\":{\"key\":\"");
        memset(text + head, '1', JOB_KEY_SIZE);
        (void)strcpy(text + head + JOB_KEY_SIZE, "\"}}");
        assert_int_equal(parse(text, &n, &why), NOTE_E_REFUSED);
        head = snprintf(text, sizeof text, HEAD "}");
        memset(text + head, ' ', sizeof text - (size_t)head);
        assert_int_equal(hook_note_parse(text, NOTE_MAX_BYTES, NULL, &n, &why), 0);
        hook_note_done(&n);
        assert_int_equal(hook_note_parse(text, NOTE_MAX_BYTES + 1, NULL, &n, &why), NOTE_E_REFUSED);
}

static void a_note_of_a_newer_hook_is_understood(void **state) {
        _cleanup_(hook_note_done) HookNote n = { 0 };
        const char *why;
        assert_int_equal(
                parse(HEAD
                      ",\"new\":{\"a\":[1,2]},\"arguments\":{\"new\":7,\"error_code\":\"1300\","
                      "\"pid\":null},\"job\":{}}",
                      &n, &why),
                0);
        assert_int_equal(n.error_number, 1300);
        assert_null(n.pid);
        assert_null(n.job.source);
        assert_int_equal(n.job.rank, -1);
}

static void an_error_code_that_is_none_is_kept_as_text(void **state) {
        _cleanup_(hook_note_done) HookNote n = { 0 };
        const char *why;
        assert_int_equal(
                parse(HEAD ",\"arguments\":{\"error_code\":\"odd\"},\"error_number\":5}", &n, &why),
                0);
        assert_false(n.has_error_number);
        assert_string_equal(n.error_code, "odd");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(what_is_composed_is_read_again),
                cmocka_unit_test(secrets_and_what_is_not_allowed_stay_behind),
                cmocka_unit_test(a_large_note_is_cut_and_reports_it),
                cmocka_unit_test(a_large_environment_goes_first),
                cmocka_unit_test(what_is_no_note_is_refused_with_a_reason),
                cmocka_unit_test(sizes_are_bounded),
                cmocka_unit_test(a_note_of_a_newer_hook_is_understood),
                cmocka_unit_test(an_error_code_that_is_none_is_kept_as_text),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
