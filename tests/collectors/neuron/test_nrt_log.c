/* The logs of the runtime: what is parsed, what is recorded, and which files may be read. */
#include "collectors/neuron/nrt_log.h"

#include "tests/collectors/host/test_procfs_records.h"

#define CUT_HERE "------------->8------------[ cut here ]------------>8-------------\n"
#define CUT_TO_HERE "-------------8<-----------[ cut to here ]-----------8<------------\n"
#define PREFIX "2025-Sep-19 18:57:20.782962  4444:4445  ERROR  NRT:nrt_infodump  "

static bool span_is(NrtSpan s, const char *text) {
        return s.n == strlen(text) && memcmp(s.s, text, s.n) == 0;
}

static void a_line_is_parsed(void **state) {
        static const char line[] = "Sep 19 18:57:20 ip-10-0-0-1 python3[4444]: 2025-Sep-19 "
                                   "18:57:20.782962  4444:4445  ERROR  "
                                   "TDRV:exec_consume_tpb_status   [ND 3][NC 1] stuck: model 0  ";
        NrtLine l;
        assert_true(nrt_log_parse_line(line, sizeof line - 1, &l));
        assert_true(span_is(l.time, "2025-Sep-19 18:57:20.782962"));
        assert_int_equal(l.pid, 4444);
        assert_int_equal(l.tid, 4445);
        assert_true(span_is(l.level, "ERROR"));
        assert_true(nrt_log_is_error(&l));
        assert_true(span_is(l.module, "TDRV"));
        assert_true(span_is(l.function, "exec_consume_tpb_status"));
        assert_true(span_is(l.message, "[ND 3][NC 1] stuck: model 0"));
        assert_int_equal(l.device, 3);
        assert_int_equal(l.core, 1);
        assert_true(
                nrt_log_parse_line("2025-Sep-19 18:57:20 1:2 WARN plain text of nd4:nc7", 51, &l));
        assert_false(nrt_log_is_error(&l));
        assert_int_equal(l.device, 4);
        assert_int_equal(l.core, 7);
        assert_true(span_is(l.message, "plain text of nd4:nc7"));
        assert_true(nrt_log_parse_line("2025-Sep-19 18:57:20 1:2 ERROR TDRV:f and 3 ends, ends 4",
                                       56, &l));
        assert_int_equal(l.device, -1);
        static const char *const no[] = { "", "ERROR", "2025-Sep-19 18:57:20.7 44 ERROR x",
                                          "2025-Sep-19 18:57:20.7 4:4",
                                          "2025-09-19 18:57:20.7 4:4 ERROR x" };
        for (size_t i = 0; i < ELEMENTSOF(no); i++)
                assert_false(nrt_log_parse_line(no[i], strlen(no[i]), &l));
}

/* A process of this user that writes logs. */
enum { WRITER = 100, TICKS = 7 };

static void fake_writer(const Fake *f, const char *root, bool is_elsewhere) {
        fake_process(f, 1, "init", 1);
        fake_link(f, "proc/1/ns/mnt", "mnt:[1]");
        fake_process(f, WRITER, "python3", TICKS);
        fake_link(f, "proc/100/ns/mnt", is_elsewhere ? "mnt:[2]" : "mnt:[1]");
        fake_link(f, "proc/100/root", root);
}

static CollectLogFile log_of(char *path) {
        return (CollectLogFile){
                .path = path, .owner = { .uid = geteuid() }, .pid = WRITER, .start_ticks = TICKS
        };
}

static void order_log(Fake *f, CollectLogFile files[1], const char *name) {
        static char path[PATH_MAX];
        fake_writer(f, "/", false);
        fake_path(f, path, name);
        files[0] = log_of(path);
        f->request.log_files = files;
        f->request.n_log_files = 1;
}

static const char block[] = PREFIX
        "Neuron runtime information - please include in any support request:\n" PREFIX CUT_HERE
                PREFIX "NRT version: 2.29.40.0 (abcdef0)\n" PREFIX
        "Embedded FW version: 1.20.1 (libncfw.so)\n" PREFIX
        "CCOM version: 2.29.41.0 (compat 75)\n" PREFIX "NCFW version: N/A\n" PREFIX
        "Instance ID: i-0123456789abcdef0\n" PREFIX "Cluster ID: 0\n" PREFIX
        "Kernel: Linux 6.8.0\n" PREFIX "Nodename: node-1\n" PREFIX
        "Driver version: 2.25.4.0\n" PREFIX "\n" PREFIX
        "Failure: NRT_EXEC_OOB in nrt_execute()\n" PREFIX "LNC: 2\n" PREFIX
        "Visible cores: 0-3\n" PREFIX "what nobody knows\n" PREFIX "Environment:\n" PREFIX
        "    NEURON_RT_NUM_CORES=4\n" PREFIX "    AWS_SESSION_TOKEN=SECRETenv1\n" PREFIX
        "    NEURON_NOTE=password: SECRETenv2\n" PREFIX CUT_TO_HERE;

static void the_block_for_support_is_read(void **state) {
        Fake *f = *state;
        CollectLogFile files[1];
        fake_text(f, "nrt.log", block);
        order_log(f, files, "nrt.log");
        assert_int_equal(fake_collect(f, collect_runtime_log), 0);
        json_t *dump = fake_find(f, "about", "infodump", 0),
               *fields = json_object_get(dump, "fields");
        assert_non_null(dump);
        assert_null(fake_find(f, "about", "infodump", 1));
        assert_true(json_is_true(json_object_get(dump, "whole")));
        assert_string_equal(string_of(fields, "NRT version"), "2.29.40.0 (abcdef0)");
        assert_string_equal(string_of(fields, "Driver version"), "2.25.4.0");
        assert_string_equal(string_of(fields, "Failure"), "NRT_EXEC_OOB in nrt_execute()");
        assert_string_equal(string_of(fields, "LNC"), "2");
        assert_string_equal(string_of(json_object_get(dump, "environment"), "NEURON_RT_NUM_CORES"),
                            "4");
        assert_null(json_object_get(json_object_get(dump, "environment"), "AWS_SESSION_TOKEN"));
        assert_string_equal(json_string_value(json_array_get(json_object_get(dump, "other"), 0)),
                            "what nobody knows");
        assert_true(fake_has_output(f, "Visible cores: 0-3\n")); /* the raw file */
        assert_false(fake_has_output(f, "SECRET"));
}

static void a_block_without_an_end_or_a_prefix_is_still_one(void **state) {
        static const char text[] = CUT_HERE "NRT version: 1\n" CUT_HERE
                                            "NRT version: 2\nEnvironment:\nA=b\n" CUT_TO_HERE
                                            "after\n" CUT_HERE "NRT version: 3";
        size_t at = 0, n = sizeof text - 1;
        NrtInfodump dump;
        assert_true(nrt_infodump_find(text, n, &at, &dump));
        assert_false(dump.is_whole);
        assert_true(span_is(dump.lines, "NRT version: 1\n"));
        assert_true(nrt_infodump_find(text, n, &at, &dump));
        assert_true(dump.is_whole);
        assert_true(span_is(dump.lines, "NRT version: 2\nEnvironment:\nA=b\n"));
        size_t line = 0;
        bool in_environment = false;
        NrtInfoItem item;
        assert_true(nrt_infodump_next(&dump.lines, &line, &in_environment, &item));
        assert_int_equal(item.kind, NRT_INFO_FIELD);
        assert_true(nrt_infodump_next(&dump.lines, &line, &in_environment, &item));
        assert_true(nrt_infodump_next(&dump.lines, &line, &in_environment, &item));
        assert_int_equal(item.kind, NRT_INFO_ENVIRONMENT);
        assert_true(span_is(item.name, "A") && span_is(item.value, "b"));
        assert_false(nrt_infodump_next(&dump.lines, &line, &in_environment, &item));
        assert_true(nrt_infodump_find(text, n, &at, &dump));
        assert_false(dump.is_whole);
        assert_true(span_is(dump.lines, "NRT version: 3"));
        assert_false(nrt_infodump_find(text, n, &at, &dump));
}

static void many_errors_are_bounded_to_the_first_and_the_last(void **state) {
        Fake *f = *state;
        CollectLogFile files[1];
        char *text = calloc(1, 64 << 10);
        size_t n = 0;
        for (int i = 0; i < 300; i++)
                n += (size_t)snprintf(
                        text + n, (64 << 10) - n,
                        "2025-Sep-19 18:57:20.7 1:%d ERROR TDRV:f [ND %d][NC 0] number %d\n", i,
                        i % 16, i);
        fake_write(f, "nrt.log", text, n);
        free(text);
        order_log(f, files, "nrt.log");
        assert_int_equal(fake_collect(f, collect_runtime_log), 0);
        json_t *errors = fake_find(f, "about", "errors", 0);
        assert_int_equal(json_integer_value(json_object_get(errors, "error_lines")), 300);
        assert_string_equal(string_of(fake_find(f, "about", "error", 0), "message"),
                            "[ND 0][NC 0] number 0");
        assert_string_equal(string_of(fake_find(f, "about", "error", 63), "message"),
                            "[ND 11][NC 0] number 299");
        assert_null(fake_find(f, "about", "error", 64));
        assert_int_equal(
                json_integer_value(json_object_get(fake_find(f, "about", "error", 1), "device")),
                1);
}

static void only_the_tail_of_a_large_log_is_kept_from_a_lines_beginning(void **state) {
        Fake *f = *state;
        CollectLogFile files[1];
        size_t n = 300 << 10;
        char *text = malloc(n + 32);
        memset(text, 'x', n);
        text[n - (256 << 10) + 100] = '\n';
        memcpy(text + n, "\nlast line\n", 11);
        fake_write(f, "nrt.log", text, n + 11);
        free(text);
        order_log(f, files, "nrt.log");
        assert_int_equal(fake_collect(f, collect_runtime_log), 0);
        assert_int_equal(
                json_integer_value(json_object_get(json_array_get(f->records, 0), "tail_from")),
                n - (256 << 10) + 101);
        assert_true(fake_has_output(f, "\nlast line\n"));
}

/* Judges one. @return its record */
static json_t *judge(Fake *f, CollectLogFile file) {
        (void)unlinkat(f->raw_fd, "runtime-log-0.txt", 0); /* of the one before */
        f->request.log_files = &file;
        f->request.n_log_files = 1;
        assert_int_equal(fake_collect(f, collect_runtime_log), 0);
        f->request.n_log_files = 0;
        return json_array_get(f->records, 0);
}

static void assert_refused(Fake *f, CollectLogFile file, const char *why) {
        json_t *record = judge(f, file);
        assert_int_equal(json_array_size(f->records), 1);
        if (!strstr(string_of(record, "unavailable"), why))
                fail_msg("'%s': '%s' does not speak of '%s'", file.path,
                         string_of(record, "unavailable"), why);
        assert_false(fake_has_output(f, "SECRET"));
}

static void assert_read(Fake *f, CollectLogFile file) {
        json_t *record = judge(f, file);
        if (string_of(record, "unavailable")[0])
                fail_msg("'%s': %s", file.path, string_of(record, "unavailable"));
        assert_true(fake_has_output(f, "SECRET"));
}

static void a_log_that_is_no_file_is_refused_with_a_reason(void **state) {
        Fake *f = *state;
        char path[PATH_MAX];
        fake_writer(f, "/", false);
        fake_text(f, "secret", "SECRET content");
        fake_link(f, "d/link", "../secret");
        fake_path(f, path, "d/link");
        assert_refused(f, log_of(path), "symlink");
        fake_link(f, "d/way", "..");
        fake_path(f, path, "d/way/secret");
        assert_refused(f, log_of(path), "symlink");
        fake_path(f, path, "d/fifo");
        assert_int_equal(mkfifo(path, 0600), 0);
        assert_refused(f, log_of(path), "regular");
        fake_path(f, path, "d/../secret");
        assert_refused(f, log_of(path), "`..`");
        assert_refused(f, log_of((char[]){ "nrt.log" }), "absolute");
        assert_refused(f, log_of((char[]){ "/no/such/log" }), "No such");
        assert_refused(f, log_of((char[]){ "/" }), "//");
        fake_path(f, path, "secret");
        assert_read(f, log_of(path));
}

static void a_log_under_two_names_is_nobodys(void **state) {
        Fake *f = *state;
        char path[PATH_MAX], other[PATH_MAX];
        fake_writer(f, "/", false);
        fake_text(f, "secret", "SECRET content");
        fake_path(f, path, "secret");
        fake_path(f, other, "other");
        assert_int_equal(link(path, other), 0);
        assert_refused(f, log_of(other), "another name");
        assert_int_equal(unlink(path), 0);
        assert_read(f, log_of(other));
}

static void files_of_proc_and_of_the_kernel_are_no_logs(void **state) {
        Fake *f = *state;
        char path[PATH_MAX];
        fake_writer(f, "/", true);
        fake_text(f, "proc/100/environ", "SECRET=1");
        fake_path(f, path, "proc/100/environ");
        assert_refused(f, log_of(path), "/proc");
        fake_path(f, path, "proc/1/root/etc/hostname");
        assert_refused(f, log_of(path), "/proc");
        assert_refused(f, log_of((char[]){ "/proc/self/environ" }), "kernel"); /* by another door */
}

static void what_another_user_owns_is_refused_unless_everybody_may_read_it(void **state) {
        Fake *f = *state;
        char path[PATH_MAX], place[PATH_MAX];
        fake_writer(f, "/", false);
        fake_text(f, "d/secret", "SECRET content");
        fake_path(f, path, "d/secret");
        CollectLogFile theirs = log_of(path);
        theirs.owner.uid = geteuid() + 1;
        assert_refused(f, theirs, "another user"); /* the scratch directory is 0700 */
        if (geteuid() != 0)
                skip();
        assert_int_equal(chmod(f->s->path, 0755), 0);
        assert_read(f, theirs);
        assert_int_equal(chmod(path, 0640), 0);
        assert_refused(f, theirs, "another user");
        assert_int_equal(chmod(path, 0644), 0);
        fake_path(f, place, "d");
        assert_int_equal(chmod(place, 0754), 0);
        assert_refused(f, theirs, "another user");
        assert_int_equal(chmod(place, 0755), 0);
        assert_int_equal(chown(path, 65533, 65533), 0);
        assert_refused(f, theirs, "another user"); /* neither his nor root's */
}

static void of_a_process_that_is_not_known_only_what_all_may_read_is_read(void **state) {
        Fake *f = *state;
        char path[PATH_MAX];
        fake_writer(f, "/", false);
        fake_text(f, "secret", "SECRET content");
        fake_path(f, path, "secret");
        CollectLogFile file = log_of(path);
        file.pid = 0;
        assert_refused(f, file, "not known or has ended");
        file = log_of(path);
        file.start_ticks++; /* another process has its number */
        assert_refused(f, file, "not known or has ended");
        assert_int_equal(chmod(f->s->path, 0755), 0);
        assert_read(f, file);
        assert_int_equal(chmod(path, 0600), 0);
        assert_refused(f, file, "not known or has ended");
}

static void a_log_in_a_container_is_read_by_its_processs_root(void **state) {
        Fake *f = *state;
        char root[PATH_MAX];
        fake_text(f, "container/tmp/nrt.log", "2025-Sep-19 18:57:20.7 1:1 ERROR TDRV:f inside\n");
        fake_text(f, "outside", "SECRET content");
        fake_path(f, root, "container");
        fake_writer(f, root, true);
        CollectLogFile file = log_of((char[]){ "/tmp/nrt.log" });
        (void)judge(f, file);
        assert_string_equal(string_of(fake_find(f, "about", "error", 0), "message"), "inside");
        file.owner.uid = geteuid() + 1;
        assert_refused(f, file, "another user");
        fake_link(f, "container/tmp/up", "../../outside");
        assert_refused(f, log_of((char[]){ "/tmp/up" }), "No such");
        assert_int_equal(mkfifoat(f->s->fd, "container/tmp/fifo", 0644), 0);
        assert_refused(f, log_of((char[]){ "/tmp/fifo" }), "regular");
}

static void a_log_that_many_ranks_write_is_read_once(void **state) {
        Fake *f = *state;
        char path[PATH_MAX];
        fake_writer(f, "/", false);
        fake_text(f, "nrt.log", "text\n");
        fake_path(f, path, "nrt.log");
        CollectLogFile files[] = { log_of(path), log_of(path) };
        f->request.log_files = files;
        f->request.n_log_files = 2;
        assert_int_equal(fake_collect(f, collect_runtime_log), 0);
        assert_int_equal(json_array_size(f->records), 1);
}

/* ---- in a dump ---- */

#define DUMP_LOG "i-0123456789abcdef0-nrt-pid-7.log"
#define DUMP_TAIL "nrt-i-0123456789abcdef0-pid-7.log"

static void order_dump(Fake *f, CollectDump dumps[1], const char *name) {
        static char path[PATH_MAX];
        fake_path(f, path, name);
        dumps[0] = (CollectDump){ .path = path, .uid = geteuid() };
        f->request.dumps = dumps;
        f->request.n_dumps = 1;
        f->request.instance_id = "i-0123456789abcdef0";
}

static void the_logs_of_a_dump_are_read(void **state) {
        Fake *f = *state;
        CollectDump dumps[1];
        fake_text(f, "dt/" DUMP_LOG, block);
        fake_text(f, "dt/" DUMP_TAIL, "2025-Sep-19 18:57:20.7 7:7 ERROR TDRV:f the tail\n");
        fake_text(f, "dt/i-0123456789abcdef1-nrt-pid-7.log", "SECRET of another node\n");
        fake_text(f, "dt/i-0123456789abcdef0-nd0-nc0-pid-7-tid-7-lid-1", "SECRET state\n");
        fake_text(f, "dt/deeper/" DUMP_LOG, "SECRET below\n");
        order_dump(f, dumps, "dt");
        assert_int_equal(fake_collect(f, collect_runtime_log), 0);
        assert_null(fake_find(f, "about", "file", 2));
        json_t *fields = json_object_get(fake_find(f, "about", "infodump", 0), "fields");
        assert_string_equal(string_of(fields, "NRT version"), "2.29.40.0 (abcdef0)");
        assert_true(fake_has_output(f, "\"message\":\"the tail\""));
        assert_true(fake_has_output(f, "Visible cores: 0-3\n")); /* the raw file */
        assert_false(fake_has_output(f, "SECRET"));
        f->request.instance_id = NULL; /* nobody knows who we are: all may be ours */
        assert_int_equal(fake_collect(f, collect_runtime_log), 0);
        assert_non_null(fake_find(f, "about", "file", 2));
}

static void what_is_no_log_in_a_dump_is_reported_and_not_opened(void **state) {
        Fake *f = *state;
        CollectDump dumps[1];
        fake_text(f, "secret", "SECRET content\n");
        fake_link(f, "dt/" DUMP_LOG, "../secret");
        assert_int_equal(mkfifoat(f->s->fd, "dt/" DUMP_TAIL, 0644), 0);
        order_dump(f, dumps, "dt");
        assert_int_equal(fake_collect(f, collect_runtime_log), 0);
        assert_int_equal(json_array_size(f->records), 2);
        for (unsigned i = 0; i < 2; i++) {
                const char *why = string_of(fake_find(f, "about", "file", i), "unavailable");
                assert_true(strstr(why, "symlink") || strstr(why, "regular"));
        }
        assert_false(fake_has_output(f, "SECRET"));
}

/* A log that the agent holds has a second name; one of another user is none of the dump's. */
static void a_log_in_a_dump_is_its_owners(void **state) {
        Fake *f = *state;
        CollectDump dumps[1];
        if (geteuid() != 0)
                skip();
        fake_text(f, "dt/" DUMP_LOG, "SECRET content\n");
        assert_int_equal(linkat(f->s->fd, "dt/" DUMP_LOG, f->s->fd, "held", 0), 0);
        order_dump(f, dumps, "dt");
        const struct {
                uid_t named, directory, file;
                bool is_read;
        } cases[] = {
                { 7, 8, 7, true }, { 7, 8, 8, true }, { 7, 8, 0, false }, { 7, 8, 9, false }
        };
        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                (void)unlinkat(f->raw_fd, "runtime-log-0.txt", 0); /* of the one before */
                dumps[0].uid = cases[i].named;
                assert_int_equal(fchownat(f->s->fd, "dt", cases[i].directory, 0, 0), 0);
                assert_int_equal(fchownat(f->s->fd, "dt/" DUMP_LOG, cases[i].file, 0, 0), 0);
                assert_int_equal(fake_collect(f, collect_runtime_log), 0);
                const char *why = string_of(json_array_get(f->records, 0), "unavailable");
                assert_int_equal(strstr(why, "belongs") == NULL, cases[i].is_read);
                assert_int_equal(fake_has_output(f, "SECRET"), cases[i].is_read);
        }
}

static void the_log_of_the_last_of_many_ranks_is_read_too(void **state) {
        Fake *f = *state;
        CollectDump dumps[1];
        size_t n = 40 << 10;
        char name[64], *text = calloc(1, n + sizeof block);
        memset(text, 'x', n);
        text[n - 1] = '\n';
        memcpy(text + n, block, sizeof block);
        for (unsigned i = 0; i < 200; i++) {
                (void)snprintf(name, sizeof name, "dt/i-0123456789abcdef0-nrt-pid-%u.log", i);
                fake_text(f, name, text);
        }
        free(text);
        order_dump(f, dumps, "dt");
        assert_int_equal(fake_collect(f, collect_runtime_log), 0);
        assert_non_null(fake_find(f, "about", "infodump", 199));
        assert_true(f->out.used_bytes <= f->request.max_bytes);
        assert_true(f->out.is_cut); /* not all raw files fit */
}

static void without_a_log_it_is_reported_that_none_is_known(void **state) {
        Fake *f = *state;
        CollectDump dumps[1];
        assert_int_equal(fake_collect(f, collect_runtime_log), COLLECT_E_NOTHING);
        assert_non_null(strstr(f->out.why, "no log of the runtime is known"));
        order_dump(f, dumps, "not-there-yet");
        assert_int_equal(fake_collect(f, collect_runtime_log), COLLECT_E_NOTHING);
        fake_link(f, "to/dt", "dt");
        order_dump(f, dumps, "to/dt/dt"); /* a loop of links */
        assert_int_equal(fake_collect(f, collect_runtime_log), 0);
        assert_string_equal(string_of(fake_find(f, "about", "dump", 0), "unavailable"),
                            strerror(ELOOP));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_line_is_parsed),
                cmocka_unit_test_setup_teardown(the_block_for_support_is_read, fake_setup,
                                                fake_teardown),
                cmocka_unit_test(a_block_without_an_end_or_a_prefix_is_still_one),
                cmocka_unit_test_setup_teardown(many_errors_are_bounded_to_the_first_and_the_last,
                                                fake_setup, fake_teardown),
                cmocka_unit_test_setup_teardown(
                        only_the_tail_of_a_large_log_is_kept_from_a_lines_beginning, fake_setup,
                        fake_teardown),
                cmocka_unit_test_setup_teardown(the_logs_of_a_dump_are_read, fake_setup,
                                                fake_teardown),
                cmocka_unit_test_setup_teardown(what_is_no_log_in_a_dump_is_reported_and_not_opened,
                                                fake_setup, fake_teardown),
                cmocka_unit_test_setup_teardown(a_log_in_a_dump_is_its_owners, fake_setup,
                                                fake_teardown),
                cmocka_unit_test_setup_teardown(the_log_of_the_last_of_many_ranks_is_read_too,
                                                fake_setup, fake_teardown),
                cmocka_unit_test_setup_teardown(without_a_log_it_is_reported_that_none_is_known,
                                                fake_setup, fake_teardown),
                cmocka_unit_test_setup_teardown(a_log_that_is_no_file_is_refused_with_a_reason,
                                                fake_setup, fake_teardown),
                cmocka_unit_test_setup_teardown(a_log_under_two_names_is_nobodys, fake_setup,
                                                fake_teardown),
                cmocka_unit_test_setup_teardown(files_of_proc_and_of_the_kernel_are_no_logs,
                                                fake_setup, fake_teardown),
                cmocka_unit_test_setup_teardown(
                        what_another_user_owns_is_refused_unless_everybody_may_read_it, fake_setup,
                        fake_teardown),
                cmocka_unit_test_setup_teardown(
                        of_a_process_that_is_not_known_only_what_all_may_read_is_read, fake_setup,
                        fake_teardown),
                cmocka_unit_test_setup_teardown(a_log_that_many_ranks_write_is_read_once,
                                                fake_setup, fake_teardown),
                cmocka_unit_test_setup_teardown(a_log_in_a_container_is_read_by_its_processs_root,
                                                fake_setup, fake_teardown),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
