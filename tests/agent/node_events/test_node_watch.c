/* agent/node_events/node_watch.c with a supervisor of the test's: which messages become which
 * events, what is stored, and who supervises. */
#include "tests/harness/unit.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/node_events/node_watch.h"
#include "collectors/supervisor_client.h"
#include "lib/base/cleanup.h"
#include "lib/base/path.h"
#include "tests/lib/base/scratch.h"

#define RETRY_USEC (20 * USEC_PER_MSEC)

typedef struct Fixture {
        Scratch *scratch;
        sd_event *event;
        Config config;
        Store *store;
        char *socket;
        NodeWatch *watch;
        int listening, supervisor;
        char job[64], hw_line[64], hw_record[128];
        KernelLine line;
        bool is_past;
        unsigned n_jobs, n_lines;
} Fixture;

static void on_job(const char *record, void *userdata) {
        Fixture *f = userdata;
        (void)snprintf(f->job, sizeof f->job, "%s", record);
        f->n_jobs++;
}

static void on_hw_error(const char *line, const char *record, void *userdata) {
        Fixture *f = userdata;
        (void)snprintf(f->hw_line, sizeof f->hw_line, "%s", line);
        (void)snprintf(f->hw_record, sizeof f->hw_record, "%s", record);
}

static void on_crash_line(const KernelLine *line, bool is_past, void *userdata) {
        Fixture *f = userdata;
        f->line = *line;
        f->is_past = is_past;
        f->n_lines++;
}

static void listen_at(Fixture *f) {
        struct sockaddr_un a = { .sun_family = AF_UNIX };
        assert_true(strlen(f->socket) < sizeof a.sun_path);
        strcpy(a.sun_path, f->socket);
        f->listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        assert_true(f->listening >= 0);
        assert_int_equal(bind(f->listening, (struct sockaddr *)&a, sizeof a), 0);
        assert_int_equal(listen(f->listening, 4), 0);
}

static void start(Fixture *f) {
        const NodeWatchContext context = { .event = f->event,
                                           .clock = clock_system(),
                                           .store = f->store,
                                           .on_hw_error = on_hw_error,
                                           .on_crash_line = on_crash_line,
                                           .on_job = on_job,
                                           .retry_usec = RETRY_USEC,
                                           .userdata = f };
        assert_int_equal(node_watch_new(&f->watch, &context, &f->config), 0);
}

/* Accepts the watch as the collector host does. */
static void accept_watch(Fixture *f) {
        char text[16] = "";
        while ((f->supervisor = accept(f->listening, NULL, NULL)) < 0)
                assert_true(sd_event_run(f->event, USEC_PER_SEC) >= 0);
        assert_int_equal(recv(f->supervisor, text, sizeof text, 0), 5);
        assert_string_equal(text, "order");
}

static void send_text(Fixture *f, const char *text) {
        assert_int_equal(send(f->supervisor, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

static int setup(void **state) {
        void *scratch = NULL;
        Fixture *f = calloc(1, sizeof *f);
        if (!f || scratch_setup(&scratch) < 0)
                return -1;
        f->scratch = scratch;
        f->listening = f->supervisor = -1;
        f->config.snapshot.enabled = true;
        f->config.snapshot.proc_root = (char *)"/proc";
        f->config.snapshot.probe_timeout_usec = USEC_PER_SEC;
        f->config.api.socket = path_join(f->scratch->path, "api.sock");
        f->socket = supervisor_client_socket(f->config.api.socket);
        *state = f;
        return sd_event_new(&f->event) < 0 ||
                               store_open(&f->store, f->scratch->path, NULL, NULL) != 0
                       ? -1
                       : 0;
}

static int teardown(void **state) {
        Fixture *f = *state;
        void *scratch = f->scratch;
        node_watch_free(f->watch);
        cleanup_closep(&f->listening);
        cleanup_closep(&f->supervisor);
        store_close(f->store);
        sd_event_unref(f->event);
        free(f->config.api.socket);
        free(f->socket);
        free(f);
        return scratch_teardown(&scratch);
}

static bool is_stored(const Fixture *f, pid_t pid) {
        StoredJob job = { 0 };
        int r = store_job_find(f->store, pid, 0, &job);
        stored_job_done(&job);
        return r == 0;
}

static void each_record_of_a_process_is_reported_and_stored_with_the_others(void **state) {
        Fixture *f = *state;
        listen_at(f);
        start(f);
        accept_watch(f);
        send_text(f, "jobs {\"pid\":1}");
        send_text(f, "jobs {\"pid\":2}");
        send_text(f, "trouble {\"pid\":3}");
        while (f->n_jobs < 2)
                assert_true(sd_event_run(f->event, USEC_PER_SEC) > 0);
        assert_string_equal(f->job, "{\"pid\":2}");
        assert_false(is_stored(f, 1)); /* with what else has come: later, in one transaction */
        while (!is_stored(f, 2))
                assert_true(sd_event_run(f->event, USEC_PER_SEC) > 0);
        assert_true(is_stored(f, 1));
        assert_false(is_stored(f, 3));
}

static void records_that_wait_are_stored_at_the_end(void **state) {
        Fixture *f = *state;
        listen_at(f);
        start(f);
        accept_watch(f);
        send_text(f, "jobs {\"pid\":1}");
        while (f->n_jobs < 1)
                assert_true(sd_event_run(f->event, USEC_PER_SEC) > 0);
        f->watch = node_watch_free(f->watch);
        assert_true(is_stored(f, 1));
}

static void lines_of_the_kernel_log_are_sorted(void **state) {
        Fixture *f = *state;
        listen_at(f);
        start(f);
        accept_watch(f);
        send_text(f, "kmsg {\"about\":\"hw_error\",\"text\":\"NEURON_HW_ERR=1\"}");
        send_text(f, "kmsg {\"about\":\"something else\",\"text\":\"x\"}");
        send_text(f, "kmsg not JSON");
        send_text(f, "kmsg {\"about\":\"fact\",\"kind\":\"oom\",\"text\":\"killed\",\"seq\":7,"
                     "\"usec\":1,\"past\":true}");
        while (f->n_lines < 1)
                assert_true(sd_event_run(f->event, USEC_PER_SEC) > 0);
        assert_string_equal(f->hw_line, "NEURON_HW_ERR=1");
        assert_non_null(strstr(f->hw_record, "hw_error"));
        assert_string_equal(f->line.kind, "oom");
        assert_string_equal(f->line.text, "killed");
        assert_int_equal(f->line.seq, 7);
        assert_true(f->is_past);
        uint64_t boot_usec = clock_realtime_usec() - clock_boottime_usec();
        assert_in_range(f->line.usec, boot_usec - USEC_PER_MINUTE, boot_usec + USEC_PER_MINUTE);
}

static void a_watch_that_ends_is_started_again(void **state) {
        Fixture *f = *state;
        listen_at(f);
        start(f);
        accept_watch(f);
        send_text(f, "failed for a test");
        cleanup_closep(&f->supervisor);
        accept_watch(f);
}

static void nothing_is_watched_while_snapshots_are_off(void **state) {
        Fixture *f = *state;
        f->config.snapshot.enabled = false;
        listen_at(f);
        start(f);
        assert_int_equal(sd_event_run(f->event, 2 * RETRY_USEC), 0);
        assert_int_equal(accept(f->listening, NULL, NULL), -1);
}

/* ---- who supervises ---- */

static const char *children(char text[static 64]) {
        _cleanup_fclose_ FILE *f = fopen("/proc/thread-self/children", "re");
        assert_non_null(f);
        return fgets(text, 64, f) ? text : "";
}

/* Instead of a supervisor: until nobody is interested any more. */
static int supervise(void) {
        char message[16];
        while (recv(STDIN_FILENO, message, sizeof message, 0) > 0)
                ;
        return 0;
}

static void a_collector_host_that_listens_replaces_the_agents_own_supervisor(void **state) {
        Fixture *f = *state;
        char own[64], now[64];
        start(f);
        assert_true(strlen(children(own)) > 0);
        for (int i = 0; i < 3; i++) { /* nobody listens yet */
                assert_true(sd_event_run(f->event, USEC_PER_SEC) > 0);
                assert_string_equal(children(now), own);
        }
        listen_at(f);
        accept_watch(f);
        assert_int_equal(waitpid((pid_t)atoi(own), NULL, 0), atoi(own));
}

int main(int argc, char **argv) {
        if (argc >= 2 && strcmp(argv[1], "--child=probe") == 0)
                return supervise();
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        const struct CMUnitTest tests[] = {
                TEST(each_record_of_a_process_is_reported_and_stored_with_the_others),
                TEST(records_that_wait_are_stored_at_the_end),
                TEST(lines_of_the_kernel_log_are_sorted),
                TEST(a_watch_that_ends_is_started_again),
                TEST(nothing_is_watched_while_snapshots_are_off),
                TEST(a_collector_host_that_listens_replaces_the_agents_own_supervisor),
        };
        return cmocka_run_group_tests_name("agent/node_events", tests, NULL, NULL);
}
