/* agent/incidents: how long it is waited for, with a supervisor of the test's: for processes to
 * end, and for a directory that a hook makes. What a failure on another node begins. */

#include "tests/harness/unit.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/incidents/incident_attaching.h"
#include "agent/incidents/incident_directory.h"
#include "agent/incidents/incident_list.h"
#include "agent/incidents/incident_machine.h"
#include "collectors/snapshot.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "tests/lib/base/scratch.h"

#define NAME "20260527T051233-1"
#define NOTE "00000000000000000000000000000001"
#define HOOK_DEADLINE_USEC (2 * USEC_PER_SEC)

typedef struct FakeClock {
        Clock clock;
        uint64_t boot_usec;
} FakeClock;

typedef struct Fixture {
        Scratch *scratch;
        sd_event *event;
        FakeClock clock;
        Config config;
        Attachments *attachments;
        Incidents incidents;
        Incident *x;
        int listening, supervisor; /* -1: nobody was asked yet */
        pid_t ranks[2];
        unsigned n_attached, n_held, n_released;
} Fixture;

static uint64_t boot(Clock *c) {
        return CONTAINER_OF(c, FakeClock, clock)->boot_usec;
}

static void on_attached(const char *source, const char *unit_path, void *userdata) {
        (void)source, (void)unit_path;
        ((Fixture *)userdata)->n_attached++;
}

static void on_pending(const char *source, const char *unit_path, bool pending, void *userdata) {
        Fixture *f = userdata;
        (void)source, (void)unit_path;
        *(pending ? &f->n_held : &f->n_released) += 1;
}

static void on_public(const char *note_id, int fd, const char *reason, void *userdata) {
        (void)note_id, (void)fd, (void)reason, (void)userdata;
}

static int listen_at(Fixture *f) {
        struct sockaddr_un a = { .sun_family = AF_UNIX };
        if (strlen(f->incidents.socket) >= sizeof a.sun_path)
                return -1;
        strcpy(a.sun_path, f->incidents.socket);
        f->listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        return f->listening < 0 || bind(f->listening, (struct sockaddr *)&a, sizeof a) < 0
                       ? -1
                       : listen(f->listening, 4);
}

static void begin_incident(Fixture *f) {
        f->x = incident_new(&f->incidents, NAME);
        assert_non_null(f->x);
        f->x->trigger = strdup("a test");
        f->x->cause = INCIDENT_NOTE;
        f->x->begun_boot_usec = f->clock.boot_usec;
        assert_int_equal(incident_directory_create(f->x), 0);
        assert_int_equal(fs_write_file(f->x->dir_fd, SNAPSHOT_FILE, "{}", 2, 0600), 0);
        f->x->has_snapshot = true;
}

static int setup(void **state) {
        void *scratch = NULL;
        Fixture *f = calloc(1, sizeof *f);
        if (!f || scratch_setup(&scratch) < 0)
                return -1;
        f->scratch = scratch;
        f->supervisor = -1;
        f->clock = (FakeClock){ .clock = { boot, boot }, .boot_usec = USEC_PER_HOUR };
        f->config.snapshot.proc_root = (char *)"/proc";
        f->config.snapshot.probe_timeout_usec = USEC_PER_SEC;
        f->config.hook.deadline_usec = HOOK_DEADLINE_USEC;
        if (sd_event_new(&f->event) < 0 ||
            attachments_new(&f->attachments, f->event, f->scratch->path) < 0)
                return -1;
        f->incidents = (Incidents){ .context = { .event = f->event,
                                                 .clock = &f->clock.clock,
                                                 .attachments = f->attachments,
                                                 .on_attached = on_attached,
                                                 .on_pending = on_pending,
                                                 .on_public = on_public,
                                                 .instance_id = "i-1",
                                                 .userdata = f },
                                    .config = &f->config,
                                    .socket = path_join(f->scratch->path, "probe.sock"),
                                    .snapshots = path_join(f->scratch->path, "snapshots"),
                                    .outbox = path_join(f->scratch->path, "incidents") };
        list_init(&f->incidents.incidents);
        *state = f;
        if (mkdirat(f->scratch->fd, "snapshots", 0700) < 0 ||
            mkdirat(f->scratch->fd, "incidents", 0700) < 0 || listen_at(f) < 0)
                return -1;
        begin_incident(f);
        return 0;
}

static void end_rank(Fixture *f, size_t k) {
        if (f->ranks[k] <= 0)
                return;
        (void)kill(f->ranks[k], SIGKILL); /* it is ours, and not reaped */
        (void)waitpid(f->ranks[k], NULL, 0);
        f->ranks[k] = 0;
}

static int teardown(void **state) {
        Fixture *f = *state;
        void *scratch = f->scratch;
        end_rank(f, 0);
        end_rank(f, 1);
        LIST_FOREACH_SAFE (l, &f->incidents.incidents)
                incident_list_release(CONTAINER_OF(l, Incident, link));
        attachments_free(f->attachments);
        cleanup_closep(&f->listening);
        cleanup_closep(&f->supervisor);
        free(f->incidents.socket);
        free(f->incidents.snapshots);
        free(f->incidents.outbox);
        sd_event_unref(f->event);
        free(f);
        return scratch_teardown(&scratch);
}

/* ---- processes ---- */

static void add_rank(Fixture *f, size_t k) {
        f->ranks[k] = fork();
        assert_true(f->ranks[k] >= 0);
        if (f->ranks[k] == 0)
                for (;;)
                        (void)pause(); /* until it is killed */
        assert_int_equal(incident_add_process(f->x, &(IncidentProcess){ .pid = f->ranks[k],
                                                                        .is_requested = true }),
                         0);
}

static uint64_t timer_in_usec(const Fixture *f) {
        uint64_t at = 0, now = 0;
        clockid_t clock = CLOCK_MONOTONIC;
        assert_non_null(f->x->timer);
        assert_true(sd_event_source_get_enabled(f->x->timer, NULL) > 0);
        assert_true(sd_event_source_get_time_clock(f->x->timer, &clock) >= 0);
        assert_true(sd_event_source_get_time(f->x->timer, &at) >= 0);
        assert_true(sd_event_now(f->event, clock, &now) >= 0);
        return at > now ? at - now : 0;
}

static void timer_ends(Fixture *f) {
        IncidentState was = f->x->state;
        uint64_t was_in_usec = timer_in_usec(f);
        assert_true(sd_event_source_set_time(f->x->timer, 0) >= 0);
        for (int i = 0; i < 50 && f->x->state == was && timer_in_usec(f) <= was_in_usec; i++)
                assert_true(sd_event_run(f->event, 100 * USEC_PER_MSEC) >= 0);
}

static void turn_until(Fixture *f, IncidentState state) {
        for (int i = 0; i < 100 && f->x->state != state; i++)
                assert_true(sd_event_run(f->event, 100 * USEC_PER_MSEC) >= 0);
        assert_int_equal(f->x->state, state);
}

/* Takes the order of a second look, and says that it is done. */
static void examine_again(Fixture *f) {
        char text[16] = "";
        f->supervisor = accept(f->listening, NULL, NULL);
        assert_true(f->supervisor >= 0);
        assert_int_equal(recv(f->supervisor, text, sizeof text, 0), 5);
        assert_string_equal(text, "order");
        assert_int_equal(send(f->supervisor, "done", 4, MSG_NOSIGNAL), 4);
}

static void a_rank_that_lives_on_is_waited_for_for_a_minute_and_no_longer(void **state) {
        Fixture *f = *state;
        add_rank(f, 0);
        assert_true(incident_machine_start_recheck(f->x));
        assert_int_equal(f->x->state, INCIDENT_WAITING);
        assert_in_range(timer_in_usec(f), USEC_PER_MINUTE - USEC_PER_SEC, USEC_PER_MINUTE);
        timer_ends(f);
        assert_int_equal(f->x->state, INCIDENT_RECHECKING);
        assert_non_null(f->x->processes[0]->watch);
        examine_again(f);
        turn_until(f, INCIDENT_RESTING);
        assert_null(f->x->processes[0]->watch); /* nobody waits for it any more */
}

static void an_ended_process_receives_no_descriptor_and_the_last_one_ends_the_waiting(
        void **state) {
        Fixture *f = *state;
        add_rank(f, 0);
        add_rank(f, 1);
        assert_true(incident_machine_start_recheck(f->x));
        end_rank(f, 0);
        while (!f->x->processes[0]->is_gone)
                assert_true(sd_event_run(f->event, 10 * USEC_PER_SEC) > 0);
        assert_null(f->x->processes[0]->watch);
        assert_int_equal(f->x->state, INCIDENT_WAITING);
        assert_non_null(f->x->processes[1]->watch);
        end_rank(f, 1);
        turn_until(f, INCIDENT_RECHECKING);
        assert_null(f->x->processes[1]->watch);
}

/* ---- a directory that is to come ---- */

/* Its note joined when it was no longer young. */
static void rest_late(Fixture *f) {
        assert_int_equal(incident_texts_add(&f->x->notes, INCIDENT_NOTES_MAX, NOTE), 0);
        f->clock.boot_usec += INCIDENT_YOUNG_USEC;
        incident_machine_await_unit(f->x);
        incident_machine_resume_resting(f->x);
}

static void an_incident_is_not_shipped_for_itself_while_a_hook_may_make_its_directory(
        void **state) {
        Fixture *f = *state;
        rest_late(f);
        assert_int_equal(f->x->state, INCIDENT_RESTING);
        uint64_t more = timer_in_usec(f);
        assert_in_range(more, HOOK_DEADLINE_USEC + USEC_PER_SEC,
                        HOOK_DEADLINE_USEC + 5 * USEC_PER_SEC);
        incidents_add_unit_of_note(&f->incidents, &(NoteView){ .note = &(HookNote){ .id = NOTE },
                                                               .source = "dumps",
                                                               .unit_path = "/dumps/1" });
        while (f->n_released == 0)
                assert_true(sd_event_run(f->event, 10 * USEC_PER_SEC) > 0);
        assert_int_equal(f->n_held, 1);
        assert_int_equal(attachments_waiting(f->attachments, "dumps", "/dumps/1", NULL), 2);
        f->clock.boot_usec += more;
        timer_ends(f);
        assert_int_equal(f->x->state, INCIDENT_ENDED);
        assert_false(f->x->is_own_bundle);
        assert_int_equal(f->x->dir_fd, -1);
}

static void a_directory_that_never_came_is_not_waited_for_for_ever(void **state) {
        Fixture *f = *state;
        rest_late(f);
        f->clock.boot_usec += timer_in_usec(f) / 2;
        timer_ends(f); /* too soon */
        assert_int_equal(f->x->state, INCIDENT_RESTING);
        f->clock.boot_usec += HOOK_DEADLINE_USEC + 5 * USEC_PER_SEC;
        timer_ends(f);
        assert_int_equal(f->x->state, INCIDENT_ENDED);
        assert_true(f->x->is_own_bundle);
}

/* ---- after a restart ---- */

static void turn_until_waiting(Fixture *f, size_t n) {
        for (int i = 0;
             i < 100 && attachments_waiting(f->attachments, "dumps", "/dumps/1", NULL) < n; i++)
                assert_true(sd_event_run(f->event, 100 * USEC_PER_MSEC) >= 0);
        assert_int_equal(attachments_waiting(f->attachments, "dumps", "/dumps/1", NULL), n);
}

static void what_a_supervisor_of_an_earlier_agent_writes_late_is_attached_too(void **state) {
        Fixture *f = *state;
        assert_int_equal(incident_add_unit(f->x, &(IncidentUnit){ .source = (char *)"dumps",
                                                                  .path = (char *)"/dumps/1" }),
                         0);
        incident_directory_write(f->x);
        incident_list_release(f->x);
        assert_int_equal(incident_list_sweep(&f->incidents), 0);
        assert_int_equal(f->incidents.n_incidents, 1);
        f->x = CONTAINER_OF(f->incidents.incidents.next, Incident, link);
        assert_int_equal(f->x->state, INCIDENT_RESTING);
        turn_until_waiting(f, 2);
        assert_int_equal(fs_write_file(f->x->dir_fd, "snapshot-more-1.json", "{}", 2, 0600), 0);
        f->clock.boot_usec += INCIDENT_YOUNG_USEC;
        timer_ends(f);
        assert_int_equal(f->x->state, INCIDENT_ENDED);
        turn_until_waiting(f, 3);
        while (f->x->attaching.job)
                assert_true(sd_event_run(f->event, 10 * USEC_PER_SEC) > 0);
        assert_int_equal(f->x->dir_fd, -1);
        assert_non_null(strstr(f->x->written, "\"over\":true"));
}

/* ---- failures on other nodes, and crash reports ---- */

static Incident *newest(Fixture *f) {
        return CONTAINER_OF(f->incidents.incidents.prev, Incident, link);
}

static void a_failure_on_another_node_begins_a_snapshot_within_the_same_bounds(void **state) {
        Fixture *f = *state;
        assert_int_equal(incidents_on_peer_failure(&f->incidents, "rank 3"), -EPERM);
        assert_ptr_equal(newest(f), f->x);
        f->config.snapshot.enabled = true;
        assert_int_equal(incidents_on_peer_failure(&f->incidents, "rank 3"), 0);
        Incident *x = newest(f);
        assert_ptr_not_equal(x, f->x);
        assert_string_equal(x->trigger, "peer: rank 3");
        assert_int_equal(x->state, INCIDENT_GATHERING);
        f->clock.boot_usec += INCIDENT_YOUNG_USEC - 1;
        assert_int_equal(incidents_on_peer_failure(&f->incidents, "rank 4"), 0);
        assert_ptr_equal(newest(f), x);
        assert_int_equal(f->incidents.n_joined, 1);
        f->clock.boot_usec += 1;
        assert_int_equal(incidents_on_peer_failure(&f->incidents, "rank 5"), 0);
        assert_ptr_not_equal(newest(f), x);
        x = newest(f);
        for (unsigned k = 2; k < INCIDENT_HOURLY_MAX; k++)
                incident_rules_add_start(&f->incidents.rules, &incident_host, INCIDENT_PEER,
                                         f->clock.boot_usec += INCIDENT_YOUNG_USEC);
        f->clock.boot_usec += INCIDENT_YOUNG_USEC;
        assert_int_equal(incidents_on_peer_failure(&f->incidents, "rank 6"), -EAGAIN);
        assert_ptr_equal(newest(f), x);
}

static void a_snapshot_for_another_node_is_shipped_for_itself(void **state) {
        Fixture *f = *state;
        f->config.snapshot.enabled = true;
        assert_int_equal(incidents_on_peer_failure(&f->incidents, "rank 3"), 0);
        Incident *x = newest(f);
        x->has_snapshot = true;
        incident_set_state(x, INCIDENT_RESTING);
        f->clock.boot_usec += INCIDENT_YOUNG_USEC;
        incident_machine_step(x);
        assert_int_equal(x->state, INCIDENT_ENDED);
        assert_true(x->is_own_bundle);
}

static void add_report(Fixture *f) {
        StrBuf text = STRBUF_INIT;
        strbuf_add(&text, "{}");
        assert_int_equal(
                incidents_add_report(&f->incidents, &(IncidentReport){ .owner = incident_host,
                                                                       .what = "a line",
                                                                       .name = "crash-pid-1",
                                                                       .json = &text,
                                                                       .text = &text }),
                0);
        strbuf_done(&text);
}

static void rest_and_end(Fixture *f, Incident *x) {
        incident_set_state(x, INCIDENT_SNAPSHOT);
        incident_set_state(x, INCIDENT_RESTING);
        f->clock.boot_usec += INCIDENT_YOUNG_USEC;
        incident_machine_step(x);
        assert_int_equal(x->state, INCIDENT_ENDED);
}

static void a_crash_report_that_joins_an_operators_snapshot_is_delivered(void **state) {
        Fixture *f = *state;
        char name[INCIDENT_NAME_SIZE];
        const char *why = NULL;
        f->config.snapshot.enabled = true;
        assert_int_equal(incidents_request(&f->incidents, name, &why), 0);
        Incident *x = newest(f);
        add_report(f);
        assert_ptr_equal(newest(f), x);
        x->has_snapshot = true;
        rest_and_end(f, x);
        assert_true(x->is_own_bundle);
}

static void a_crash_report_is_delivered_without_a_snapshot(void **state) {
        Fixture *f = *state;
        f->config.snapshot.enabled = true;
        add_report(f);
        rest_and_end(f, newest(f));
        assert_true(newest(f)->is_own_bundle);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        const struct CMUnitTest tests[] = {
                TEST(a_rank_that_lives_on_is_waited_for_for_a_minute_and_no_longer),
                TEST(an_ended_process_receives_no_descriptor_and_the_last_one_ends_the_waiting),
                TEST(an_incident_is_not_shipped_for_itself_while_a_hook_may_make_its_directory),
                TEST(a_directory_that_never_came_is_not_waited_for_for_ever),
                TEST(what_a_supervisor_of_an_earlier_agent_writes_late_is_attached_too),
                TEST(a_failure_on_another_node_begins_a_snapshot_within_the_same_bounds),
                TEST(a_snapshot_for_another_node_is_shipped_for_itself),
                TEST(a_crash_report_that_joins_an_operators_snapshot_is_delivered),
                TEST(a_crash_report_is_delivered_without_a_snapshot),
        };
        return cmocka_run_group_tests_name("agent/incidents/incident_machine", tests, NULL, NULL);
}
