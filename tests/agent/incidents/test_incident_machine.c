/* agent/incidents: how long it is waited for, with a supervisor of the test's: for processes to
 * end, and for a directory that a hook makes. What a failure on another node begins. */

#include "tests/harness/unit.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/incidents/incident_directory.h"
#include "agent/incidents/incident_list.h"
#include "agent/incidents/incident_machine.h"
#include "collectors/snapshot.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
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
        Store *store;
        BundleTable *bundles;
        Evidence *evidence;
        Incidents incidents;
        Incident *x;
        int listening, supervisor; /* -1: nobody was asked yet */
        pid_t ranks[2];
} Fixture;

static uint64_t boot(Clock *c) {
        return CONTAINER_OF(c, FakeClock, clock)->boot_usec;
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
        incident_set_content(f->x, INCIDENT_WHOLE);
}

static int setup(void **state) {
        void *scratch = NULL;
        Fixture *f = calloc(1, sizeof *f);
        if (!f || scratch_setup(&scratch) < 0)
                return -1;
        f->scratch = scratch;
        f->supervisor = -1;
        f->clock = (FakeClock){ .clock = { .realtime_usec = boot, .boottime_usec = boot },
                                .boot_usec = USEC_PER_HOUR };
        f->config.snapshot.proc_root = (char *)"/proc";
        f->config.snapshot.probe_timeout_usec = USEC_PER_SEC;
        f->config.hook.deadline_usec = HOOK_DEADLINE_USEC;
        if (sd_event_new(&f->event) < 0 ||
            store_open(&f->store, f->scratch->path, NULL, NULL) != 0 ||
            bundle_table_new(&f->bundles, f->store, &f->clock.clock, &(BundleTableCallbacks){ 0 }) <
                    0 ||
            evidence_new(&f->evidence,
                         &(EvidenceContext){ .clock = &f->clock.clock, .store = f->store },
                         f->scratch->path) < 0)
                return -1;
        f->incidents = (Incidents){ .context = { .event = f->event,
                                                 .clock = &f->clock.clock,
                                                 .store = f->store,
                                                 .bundles = f->bundles,
                                                 .evidence = f->evidence,
                                                 .on_public = on_public,
                                                 .instance_id = "i-1",
                                                 .userdata = f },
                                    .config = &f->config,
                                    .socket = path_join(f->scratch->path, "probe.sock"),
                                    .snapshots = path_join(f->scratch->path, "snapshots"),
                                    .remove = incident_list_remove };
        list_init(&f->incidents.incidents);
        *state = f;
        if (mkdirat(f->scratch->fd, "snapshots", 0700) < 0 || listen_at(f) < 0)
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
        evidence_free(f->evidence);
        bundle_table_free(f->bundles);
        store_close(f->store);
        cleanup_closep(&f->listening);
        cleanup_closep(&f->supervisor);
        free(f->incidents.socket);
        free(f->incidents.snapshots);
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

/* @return its bundle's row, as intake would fill it */
static void describe(Fixture *f, BundleRecord *ret) {
        *ret = (BundleRecord){ .path = path_join(evidence_path(f->evidence), "snapshot-" NAME) };
        assert_int_equal(evidence_describe(ret), 0);
        assert_int_equal(ret->kind, SOURCE_SNAPSHOT);
}

/* @return the incidents that are left after what is due now */
static size_t turn(Fixture *f) {
        assert_true(sd_event_run(f->event, 100 * USEC_PER_MSEC) >= 0);
        return f->incidents.n_incidents;
}

#define DUMP "neuron-core-dump-20260527T051233-0123456789ab"

static void a_snapshot_names_the_dump_that_a_hook_makes_while_it_rests(void **state) {
        Fixture *f = *state;
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        rest_late(f);
        assert_int_equal(f->x->state, INCIDENT_RESTING);
        uint64_t more = timer_in_usec(f);
        assert_in_range(more, HOOK_DEADLINE_USEC + USEC_PER_SEC,
                        HOOK_DEADLINE_USEC + 5 * USEC_PER_SEC);
        incidents_add_unit_of_note(&f->incidents, &(NoteView){ .note = &(HookNote){ .id = NOTE },
                                                               .source = "dumps",
                                                               .unit_path = "/dumps/1" });
        incidents_on_found(&f->incidents, &(BundleRecord){ .id = DUMP,
                                                           .source = (char *)"dumps",
                                                           .path = (char *)"/dumps/1" });
        f->clock.boot_usec += more;
        timer_ends(f);
        assert_int_equal(f->x->state, INCIDENT_ENDED);
        assert_int_equal(f->x->place, INCIDENT_PUBLISHED);
        assert_int_equal(f->x->dir_fd, -1);
        describe(f, &rec);
        assert_string_equal(rec.subject, DUMP);
        assert_int_equal(turn(f), 0);
        _cleanup_free_ char *context = path_join(rec.path, SNAPSHOT_CONTEXT_FILE), *text = NULL;
        assert_int_equal(fs_read_file(AT_FDCWD, context, MIB, &text, NULL), 0);
        assert_non_null(strstr(text, "\"bundle\":\"" DUMP "\""));
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
        assert_int_equal(f->x->place, INCIDENT_PUBLISHED);
}

static void a_drain_ends_the_waiting_for_others_and_its_last_minute_that_for_processes(
        void **state) {
        Fixture *f = *state;
        add_rank(f, 0);
        assert_true(incident_machine_start_recheck(f->x));
        incidents_hurry(&f->incidents, INCIDENT_HURRY_DRAIN);
        assert_int_equal(f->x->state, INCIDENT_WAITING);
        incidents_hurry(&f->incidents, INCIDENT_HURRY_FLUSH);
        assert_int_equal(f->x->state, INCIDENT_RECHECKING);
        examine_again(f);
        turn_until(f, INCIDENT_ENDED);
        assert_int_equal(f->x->place, INCIDENT_PUBLISHED);
}

static void what_rests_when_a_drain_begins_is_published_at_once(void **state) {
        Fixture *f = *state;
        rest_late(f);
        assert_int_equal(f->x->state, INCIDENT_RESTING);
        incidents_hurry(&f->incidents, INCIDENT_HURRY_DRAIN);
        assert_int_equal(f->x->state, INCIDENT_ENDED);
        assert_int_equal(f->x->place, INCIDENT_PUBLISHED);
        assert_int_equal(turn(f), 0);
}

#define OTHERS_DUMP "neuron-core-dump-20260527T051234-0123456789ab"

static void add_dump(Fixture *f, const char *path, uid_t uid, const char *id) {
        IncidentUnit u = { .source = (char *)"dumps", .path = (char *)path, .owner.uid = uid };
        (void)snprintf(u.bundle, sizeof u.bundle, "%s", id);
        assert_int_equal(incident_add_unit(f->x, &u), 0);
}

static void a_dump_of_another_user_does_not_place_it(void **state) {
        Fixture *f = *state;
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        f->x->by = (Owner){ .uid = 0 };
        add_dump(f, "/dumps/1", 1000, OTHERS_DUMP);
        rest_late(f);
        incidents_hurry(&f->incidents, INCIDENT_HURRY_DRAIN);
        describe(f, &rec);
        assert_string_equal(rec.subject, "");
}

/* @return how many processes may name root's snapshot that a note of uid 1000 has joined */
static size_t count_naming_processes(Fixture *f, IncidentCause cause) {
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        _cleanup_(about_done) About about = { 0 };
        f->x->by = incident_host;
        f->x->cause = cause;
        add_rank(f, 0);
        f->x->processes[0]->owner.uid = 1000;
        rest_late(f);
        incidents_hurry(&f->incidents, INCIDENT_HURRY_DRAIN);
        describe(f, &rec);
        assert_int_equal(about_parse(rec.about, strlen(rec.about), &about), 0);
        return about.n_processes;
}

/* An operator has requested it, or root's hook. */
static void a_process_of_another_user_does_not_name_what_a_person_has_caused(void **state) {
        assert_int_equal(count_naming_processes(*state, INCIDENT_NOTE), 0);
}

static void a_process_of_any_user_names_what_the_kernels_log_has_caused(void **state) {
        assert_int_equal(count_naming_processes(*state, INCIDENT_KERNEL), 1);
}

static void a_dump_of_another_user_is_named_after_its_own(void **state) {
        Fixture *f = *state;
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        f->x->by = (Owner){ .uid = 1001 };
        add_dump(f, "/dumps/1", 1000, OTHERS_DUMP);
        add_dump(f, "/dumps/2", 1001, DUMP);
        rest_late(f);
        incidents_hurry(&f->incidents, INCIDENT_HURRY_DRAIN);
        describe(f, &rec);
        assert_string_equal(rec.subject, DUMP);
        assert_non_null(strstr(rec.about, OTHERS_DUMP));
}

static void what_cannot_be_published_is_tried_again_and_no_drain_is_safe_before(void **state) {
        Fixture *f = *state;
        const char *path = evidence_path(f->evidence);
        _cleanup_free_ char *taken = path_join(path, "snapshot-" NAME);
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        assert_int_equal(mkdir(taken, 0700), 0);
        rest_late(f);
        incidents_hurry(&f->incidents, INCIDENT_HURRY_DRAIN);
        assert_int_equal(f->x->state, INCIDENT_ENDED);
        assert_int_not_equal(f->x->place, INCIDENT_PUBLISHED);
        assert_int_equal(incidents_n_underway(&f->incidents), 1);
        assert_int_equal(rmdir(taken), 0);
        assert_in_range(timer_in_usec(f), USEC_PER_SEC, USEC_PER_MINUTE);
        assert_true(sd_event_source_set_time(f->x->timer, 0) >= 0);
        for (int i = 0; i < 50 && f->incidents.n_incidents > 0; i++)
                (void)turn(f);
        assert_int_equal(incidents_n_underway(&f->incidents), 0);
        describe(f, &rec);
        assert_non_null(rec.about);
}

/* ---- after a restart ---- */

static void resume(Fixture *f) {
        incident_list_release(f->x);
        assert_int_equal(incident_list_sweep(&f->incidents), 0);
        assert_int_equal(f->incidents.n_incidents, 1);
        f->x = CONTAINER_OF(f->incidents.incidents.next, Incident, link);
}

static void its_dumps_are_known_after_a_restart(void **state) {
        Fixture *f = *state;
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        assert_int_equal(incident_add_unit(f->x, &(IncidentUnit){ .source = (char *)"dumps",
                                                                  .path = (char *)"/dumps/1",
                                                                  .bundle = DUMP }),
                         0);
        incident_directory_write(f->x);
        resume(f);
        assert_int_equal(f->x->state, INCIDENT_RESTING);
        f->clock.boot_usec += INCIDENT_YOUNG_USEC;
        timer_ends(f);
        assert_int_equal(f->x->state, INCIDENT_ENDED);
        describe(f, &rec);
        assert_string_equal(rec.subject, DUMP);
}

static void one_that_has_ended_and_was_not_published_is_published(void **state) {
        Fixture *f = *state;
        incident_set_state(f->x, INCIDENT_ENDED);
        incident_directory_write(f->x);
        resume(f);
        assert_int_equal(f->x->place, INCIDENT_PUBLISHED);
        assert_int_equal(turn(f), 0);
}

static void what_an_operator_has_requested_stays(void **state) {
        Fixture *f = *state;
        IncidentView view;
        f->x->cause = INCIDENT_REQUESTED;
        incident_set_state(f->x, INCIDENT_ENDED);
        incident_directory_write(f->x);
        resume(f);
        assert_int_not_equal(f->x->place, INCIDENT_PUBLISHED);
        assert_int_equal(turn(f), 1);
        assert_true(incidents_get(&f->incidents, NAME, &view));
}

/* ---- failures on other nodes, and the OOM killer ---- */

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

static void a_snapshot_for_another_node_is_shipped(void **state) {
        Fixture *f = *state;
        f->config.snapshot.enabled = true;
        assert_int_equal(incidents_on_peer_failure(&f->incidents, "rank 3"), 0);
        Incident *x = newest(f);
        incident_set_content(x, INCIDENT_WHOLE);
        incident_set_state(x, INCIDENT_RESTING);
        f->clock.boot_usec += INCIDENT_YOUNG_USEC;
        incident_machine_step(x);
        assert_int_equal(x->state, INCIDENT_ENDED);
        assert_int_equal(x->place, INCIDENT_PUBLISHED);
}

static void rest_and_end(Fixture *f, Incident *x) {
        incident_set_state(x, INCIDENT_SNAPSHOT);
        incident_set_state(x, INCIDENT_RESTING);
        f->clock.boot_usec += INCIDENT_YOUNG_USEC;
        incident_machine_step(x);
        assert_int_equal(x->state, INCIDENT_ENDED);
}

#define OOM "oom-20260527T051233-0123456789ab"

static void a_kill_for_lack_of_memory_that_joins_an_operators_snapshot_has_it_delivered(
        void **state) {
        Fixture *f = *state;
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        char name[INCIDENT_NAME_SIZE];
        const char *why = NULL;
        f->config.snapshot.enabled = true;
        assert_int_equal(incidents_request(&f->incidents, name, &why), 0);
        Incident *x = newest(f);
        incidents_on_oom_kill(&f->incidents, 1000, "a line");
        assert_ptr_equal(newest(f), x);
        incidents_on_found(&f->incidents, &(BundleRecord){ .id = OOM,
                                                           .kind = SOURCE_OOM,
                                                           .source = (char *)AGENT_SOURCE,
                                                           .path = (char *)"/x" });
        incident_set_content(x, INCIDENT_WHOLE);
        rest_and_end(f, x);
        assert_int_equal(x->place, INCIDENT_PUBLISHED);
        rec.path = strbuf_format("%s/snapshot-%s", evidence_path(f->evidence), name);
        assert_int_equal(evidence_describe(&rec), 0);
        assert_string_equal(rec.subject, OOM);
}

static void without_a_snapshot_there_is_nothing_to_deliver(void **state) {
        Fixture *f = *state;
        f->config.snapshot.enabled = true;
        incidents_on_oom_kill(&f->incidents, 1000, "a line");
        rest_and_end(f, newest(f));
        assert_int_not_equal(newest(f)->place, INCIDENT_PUBLISHED);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        const struct CMUnitTest tests[] = {
                TEST(a_rank_that_lives_on_is_waited_for_for_a_minute_and_no_longer),
                TEST(an_ended_process_receives_no_descriptor_and_the_last_one_ends_the_waiting),
                TEST(a_snapshot_names_the_dump_that_a_hook_makes_while_it_rests),
                TEST(a_directory_that_never_came_is_not_waited_for_for_ever),
                TEST(a_drain_ends_the_waiting_for_others_and_its_last_minute_that_for_processes),
                TEST(what_rests_when_a_drain_begins_is_published_at_once),
                TEST(a_dump_of_another_user_does_not_place_it),
                TEST(a_process_of_another_user_does_not_name_what_a_person_has_caused),
                TEST(a_process_of_any_user_names_what_the_kernels_log_has_caused),
                TEST(a_dump_of_another_user_is_named_after_its_own),
                TEST(what_cannot_be_published_is_tried_again_and_no_drain_is_safe_before),
                TEST(its_dumps_are_known_after_a_restart),
                TEST(one_that_has_ended_and_was_not_published_is_published),
                TEST(what_an_operator_has_requested_stays),
                TEST(a_failure_on_another_node_begins_a_snapshot_within_the_same_bounds),
                TEST(a_snapshot_for_another_node_is_shipped),
                TEST(a_kill_for_lack_of_memory_that_joins_an_operators_snapshot_has_it_delivered),
                TEST(without_a_snapshot_there_is_nothing_to_deliver),
        };
        return cmocka_run_group_tests_name("agent/incidents/incident_machine", tests, NULL, NULL);
}
