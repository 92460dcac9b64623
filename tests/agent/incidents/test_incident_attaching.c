/* agent/incidents: what lies in an incident's directory gets to its dumps, once, off the loop, and
 * when there is room again; and the bounds. */

#include "tests/harness/unit.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "agent/incidents/incident_attaching.h"
#include "agent/incidents/incident_directory.h"
#include "agent/incidents/incident_list.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/base/transition.h"
#include "tests/lib/base/scratch.h"

#define NAME "20260527T051233-1"

typedef struct Fixture {
        Scratch *scratch;
        sd_event *event;
        Clock *clock;
        Attachments *attachments;
        Incidents incidents;
        Incident *x;
        unsigned n_attached, n_held, n_released;
} Fixture;

static void on_attached(const char *source, const char *unit_path, void *userdata) {
        Fixture *f = userdata;
        assert_string_equal(source, "dumps");
        assert_non_null(unit_path);
        f->n_attached++;
}

static void on_pending(const char *source, const char *unit_path, bool pending, void *userdata) {
        Fixture *f = userdata;
        assert_string_equal(source, "dumps");
        assert_non_null(unit_path);
        *(pending ? &f->n_held : &f->n_released) += 1;
}

static void on_public(const char *note_id, int fd, const char *reason, void *userdata) {
        (void)note_id, (void)fd, (void)reason, (void)userdata;
        fail_msg("no note has asked");
}

static void begin_incident(Fixture *f) {
        f->x = incident_new(&f->incidents, NAME);
        assert_non_null(f->x);
        f->x->trigger = strdup("a test");
}

static int setup(void **state) {
        void *scratch = NULL;
        Fixture *f = calloc(1, sizeof *f);
        if (!f || scratch_setup(&scratch) < 0)
                return -1;
        f->scratch = scratch;
        f->clock = clock_system();
        if (sd_event_new(&f->event) < 0 ||
            attachments_new(&f->attachments, f->event, f->scratch->path) < 0)
                return -1;
        f->incidents = (Incidents){ .context = { .event = f->event,
                                                 .clock = f->clock,
                                                 .attachments = f->attachments,
                                                 .on_attached = on_attached,
                                                 .on_pending = on_pending,
                                                 .on_public = on_public,
                                                 .userdata = f },
                                    .snapshots = path_join(f->scratch->path, "snapshots"),
                                    .outbox = path_join(f->scratch->path, "incidents") };
        list_init(&f->incidents.incidents);
        *state = f;
        if (mkdirat(f->scratch->fd, "snapshots", 0700) < 0 ||
            mkdirat(f->scratch->fd, "incidents", 0700) < 0)
                return -1;
        begin_incident(f);
        return incident_directory_create(f->x);
}

static int teardown(void **state) {
        Fixture *f = *state;
        void *scratch = f->scratch;
        LIST_FOREACH_SAFE (l, &f->incidents.incidents)
                incident_list_release(CONTAINER_OF(l, Incident, link));
        attachments_free(f->attachments);
        free(f->incidents.snapshots);
        free(f->incidents.outbox);
        sd_event_unref(f->event);
        free(f);
        return scratch_teardown(&scratch);
}

static void unit_path(char path[static 64], unsigned number) {
        (void)snprintf(path, 64, "/tmp/dumps/%u", number);
}

static int add_unit_of(Fixture *f, unsigned number, uid_t uid) {
        char path[64];
        unit_path(path, number);
        return incident_add_unit(f->x, &(IncidentUnit){ .source = (char *)"dumps",
                                                        .path = path,
                                                        .owner = { .uid = uid } });
}

static void write_file(Fixture *f, const char *name, const char *text) {
        assert_int_equal(fs_write_file(f->x->dir_fd, name, text, strlen(text), 0600), 0);
}

static void turn_until_idle(Fixture *f) {
        while (f->x->attaching.job)
                assert_true(sd_event_run(f->event, 10 * USEC_PER_SEC) > 0);
}

static void attach_all(Fixture *f) {
        incident_attaching_start(f->x);
        turn_until_idle(f);
}

static size_t waiting(const Fixture *f, unsigned number) {
        char path[64];
        unit_path(path, number);
        return attachments_waiting(f->attachments, "dumps", path, NULL);
}

static void to_rest(Fixture *f) {
        incident_set_state(f->x, INCIDENT_SNAPSHOT);
        incident_set_state(f->x, INCIDENT_RESTING);
}

static void each_dump_gets_each_file_once_and_is_held_until_then(void **state) {
        Fixture *f = *state;
        for (unsigned k = 0; k < 3; k++)
                assert_int_equal(add_unit_of(f, k, 0), 0);
        write_file(f, "snapshot.json", "{}");
        to_rest(f);
        incident_attaching_start(f->x);
        assert_int_equal(f->n_released, 0); /* it is on its way */
        turn_until_idle(f);
        assert_int_equal(f->n_released, 3);
        assert_int_equal(f->n_attached, 6); /* with incident.json */
        for (unsigned k = 0; k < 3; k++)
                assert_int_equal(waiting(f, k), 2);
        attach_all(f);
        assert_int_equal(f->n_attached, 6);
        write_file(f, "snapshot-after.json", "{}");
        attach_all(f);
        assert_int_equal(f->n_attached, 9);
}

static void what_was_attached_is_known_after_a_restart(void **state) {
        Fixture *f = *state;
        assert_int_equal(add_unit_of(f, 1, 0), 0);
        write_file(f, "snapshot.json", "{}");
        attach_all(f);
        assert_int_equal(f->n_attached, 2);
        incident_list_release(f->x);
        begin_incident(f);
        f->x->directory = path_join(f->incidents.snapshots, NAME);
        assert_int_equal(incident_directory_open(f->x), 0);
        assert_int_equal(add_unit_of(f, 1, 0), 0);
        incident_attaching_read_memory(f->x);
        attach_all(f);
        assert_int_equal(f->n_attached, 2);
        write_file(f, "snapshot.json", "{\"another\": true}");
        attach_all(f);
        assert_int_equal(f->n_attached, 3);
}

static void what_found_no_room_is_attached_when_there_is_room(void **state) {
        Fixture *f = *state;
        assert_int_equal(add_unit_of(f, 1, 0), 0);
        write_file(f, "snapshot.json", "something that takes more room than there is");
        to_rest(f);
        attachments_limit(f->attachments, 16);
        attach_all(f);
        assert_int_equal(f->n_attached, 0);
        assert_int_equal(f->n_released, 1); /* the dump does not wait for it */
        assert_true(f->x->attaching.is_stuck);
        assert_true(incident_is_attaching(f->x));
        attachments_limit(f->attachments, ATTACHMENTS_MAX_BYTES_ALL);
        assert_true(sd_event_source_get_enabled(f->x->attaching.timer, NULL) > 0);
        attach_all(f); /* as the timer does */
        assert_int_equal(sd_event_source_get_enabled(f->x->attaching.timer, NULL), 0);
        assert_int_equal(f->n_attached, 2);
        assert_int_equal(waiting(f, 1), 2);
        assert_false(incident_is_attaching(f->x));
}

static void a_bound_of_the_agents_is_not_called_a_full_disk(void **state) {
        Fixture *f = *state;
        char said[4096] = "";
        _cleanup_close_ int real = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3),
                            log = openat(f->scratch->fd, "log", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        assert_int_equal(add_unit_of(f, 1, 0), 0);
        attachments_limit(f->attachments, 16);
        assert_true(dup2(log, STDERR_FILENO) >= 0);
        attach_all(f);
        assert_true(dup2(real, STDERR_FILENO) >= 0);
        assert_true(pread(log, said, sizeof said - 1, 0) > 0);
        assert_non_null(strstr(said, "deliver or cancel some"));
        assert_null(strstr(said, "make room on"));
}

static void what_is_too_large_is_left_out_and_the_rest_comes(void **state) {
        Fixture *f = *state;
        assert_int_equal(add_unit_of(f, 1, 0), 0);
        write_file(f, "large", "");
        _cleanup_close_ int fd = openat(f->x->dir_fd, "large", O_WRONLY | O_CLOEXEC);
        assert_int_equal(ftruncate(fd, (off_t)ATTACHMENTS_MAX_BYTES + 1), 0);
        write_file(f, "no name for an attachment", "x");
        write_file(f, "snapshot.json", "{}");
        attach_all(f);
        assert_false(f->x->attaching.is_stuck);
        assert_int_equal(f->n_attached, 2);
}

static void a_dump_of_that_path_which_is_another_one_gets_nothing_of_the_earlier_incident(
        void **state) {
        Fixture *f = *state;
        char path[64];
        unit_path(path, 1);
        assert_int_equal(add_unit_of(f, 1, 0), 0);
        assert_int_equal(add_unit_of(f, 2, 0), 0);
        incidents_unit_renewed(&f->incidents, "dumps", path, 1); /* added later than that */
        assert_false(f->x->units[0].is_gone);
        incidents_unit_renewed(&f->incidents, "dumps", path, UINT64_MAX);
        write_file(f, "snapshot.json", "{}");
        to_rest(f);
        attach_all(f);
        assert_int_equal(waiting(f, 1), 0);
        assert_int_equal(waiting(f, 2), 2);
        assert_int_equal(f->n_released, 1);
        assert_int_equal(add_unit_of(f, 1, 0), 0); /* a note about the new one */
        assert_int_equal(add_unit_of(f, 1, 0), 1);
        attach_all(f);
        assert_int_equal(waiting(f, 1), 2);
}

static void an_incident_may_go_while_its_files_are_on_their_way(void **state) {
        Fixture *f = *state;
        assert_int_equal(add_unit_of(f, 1, 0), 0);
        incident_attaching_start(f->x);
        assert_non_null(f->x->attaching.job);
        incident_list_remove(f->x);
        f->x = NULL;
        while (attachments_waiting(f->attachments, "dumps", "/tmp/dumps/1", NULL) == 0)
                assert_true(sd_event_run(f->event, 10 * USEC_PER_MSEC) >= 0);
        struct stat st;
        assert_int_equal(fstatat(f->scratch->fd, "snapshots/" NAME, &st, 0), -1);
        assert_int_equal(f->n_attached, 0); /* nobody listens */
}

static void what_its_dumps_have_not_got_yet_does_not_go_for_room(void **state) {
        Fixture *f = *state;
        struct stat st;
        assert_int_equal(add_unit_of(f, 1, 0), 0);
        to_rest(f);
        attachments_limit(f->attachments, 16);
        attach_all(f);
        incident_set_state(f->x, INCIDENT_ENDED);
        f->x->bytes = INCIDENT_BYTES_MAX;
        assert_false(incident_list_free_space(&f->incidents));
        assert_int_equal(fstatat(f->scratch->fd, "snapshots/" NAME, &st, 0), 0);
        attachments_limit(f->attachments, ATTACHMENTS_MAX_BYTES_ALL);
        attach_all(f);
        assert_true(incident_list_free_space(&f->incidents));
        f->x = NULL;
        assert_int_equal(fstatat(f->scratch->fd, "snapshots/" NAME, &st, 0), -1);
        assert_int_equal(waiting(f, 1), 1);
}

static void a_user_gets_eight_dumps_into_an_incident_and_all_users_thirty_two(void **state) {
        Fixture *f = *state;
        unsigned n = 0;
        for (; n < INCIDENT_UNITS_MAX_OF_OWNER; n++)
                assert_int_equal(add_unit_of(f, n, 1000), 0);
        assert_int_equal(add_unit_of(f, n, 1000), -EDQUOT);
        assert_int_equal(add_unit_of(f, n - 1, 1000), 1); /* it is there */
        for (; n < INCIDENT_UNITS_MAX; n++)
                assert_int_equal(add_unit_of(f, n, n % 2 ? 0 : 2000 + n), 0);
        assert_int_equal(add_unit_of(f, n, 0), -EDQUOT);
        assert_int_equal(add_unit_of(f, n, 9999), -EDQUOT);
        assert_int_equal(f->x->n_units, INCIDENT_UNITS_MAX);
        assert_int_equal(f->x->n_left_out, 3);
}

static void root_is_not_held_to_eight(void **state) {
        Fixture *f = *state;
        for (unsigned n = 0; n < INCIDENT_UNITS_MAX; n++)
                assert_int_equal(add_unit_of(f, n, 0), 0);
        assert_int_equal(add_unit_of(f, INCIDENT_UNITS_MAX, 0), -EDQUOT);
}

static const Owner pod = { .uid = 0, .container = "pod" }, victim = { .uid = 1001 };

static void root_of_a_container_is_held_to_eight_and_is_not_the_hosts(void **state) {
        Fixture *f = *state;
        char path[64];
        for (unsigned n = 0; n <= INCIDENT_UNITS_MAX_OF_OWNER; n++) {
                unit_path(path, n);
                assert_int_equal(incident_add_unit(f->x, &(IncidentUnit){ .source = (char *)"dumps",
                                                                          .path = path,
                                                                          .owner = pod }),
                                 n < INCIDENT_UNITS_MAX_OF_OWNER ? 0 : -EDQUOT);
        }
        assert_int_equal(add_unit_of(f, 100, 0), 0);
}

static void an_owner_gets_half_of_the_places_for_processes_and_logs(void **state) {
        Fixture *f = *state;
        for (int n = 0; n < 2 * COLLECT_PROCESSES_MAX; n++) {
                int r = n < COLLECT_PROCESSES_MAX / 2 ? 0 : 1;
                assert_int_equal(incident_add_process(
                                         f->x, &(IncidentProcess){ .owner = pod, .pid = n + 1 }),
                                 r);
                assert_int_equal(
                        incident_add_log_file(f->x, &(CollectLogFile){ .path = (char *)"/log",
                                                                       .owner = pod,
                                                                       .pid = n + 1 }),
                        r);
        }
        assert_int_equal(
                incident_add_process(f->x, &(IncidentProcess){ .owner = victim, .pid = 100000 }),
                0);
        assert_int_equal(incident_add_log_file(f->x, &(CollectLogFile){ .path = (char *)"/log",
                                                                        .owner = victim }),
                         0);
}

static Incident *add_kept(Fixture *f, unsigned n, const Owner *o, uint64_t bytes) {
        char name[INCIDENT_NAME_SIZE];
        (void)snprintf(name, sizeof name, "20260527T051234-%u", n);
        Incident *x = incident_new(&f->incidents, name);
        assert_non_null(x);
        x->by = *o;
        x->bytes = bytes;
        incident_set_state(x, INCIDENT_ENDED);
        return x;
}

static size_t kept_of(const Fixture *f, const Owner *o) {
        size_t n = 0;
        LIST_FOREACH (l, &f->incidents.incidents)
                n += owner_is_same(&CONTAINER_OF(l, Incident, link)->by, o);
        return n;
}

static void of_the_kept_ones_the_oldest_go_first(void **state) {
        Fixture *f = *state;
        for (unsigned n = 0; n < 5; n++) /* the oldest */
                (void)add_kept(f, n, &victim, 1);
        for (unsigned n = 5; f->incidents.n_incidents < INCIDENT_DIRECTORIES_MAX; n++)
                (void)add_kept(f, n, &pod, 1);
        assert_true(incident_list_free_space(&f->incidents));
        assert_int_equal(kept_of(f, &victim), 4);
        assert_int_equal(f->incidents.n_incidents, INCIDENT_DIRECTORIES_MAX - 1);
        (void)add_kept(f, 1000, &victim, INCIDENT_BYTES_MAX); /* all that are older go before it */
        assert_true(incident_list_free_space(&f->incidents));
        assert_int_equal(kept_of(f, &victim), 0);
}

static void whose_it_is_is_known_after_a_restart(void **state) {
        Fixture *f = *state;
        bool is_over;
        f->x->by = pod;
        incident_directory_write(f->x);
        f->x->by = victim;
        free(TAKE_PTR(f->x->trigger));
        free(TAKE_PTR(f->x->written));
        assert_int_equal(incident_directory_read(f->x, &is_over), 0);
        assert_true(owner_is_same(&f->x->by, &pod));
}

static void the_directory_of_one_that_was_shipped_or_cancelled_goes(void **state) {
        Fixture *f = *state;
        struct stat st;
        incident_directory_make_own_bundle(f->x);
        assert_int_equal(fstatat(f->scratch->fd, "incidents/" NAME, &st, 0), 0);
        incidents_on_delivered(&f->incidents, "/elsewhere/" NAME);
        assert_int_equal(fstatat(f->scratch->fd, "incidents/" NAME, &st, 0), 0);
        _cleanup_free_ char *path = strdup(f->x->directory);
        incidents_on_delivered(&f->incidents, path);
        f->x = NULL;
        assert_int_equal(fstatat(f->scratch->fd, "incidents/" NAME, &st, 0), -1);
        assert_int_equal(f->incidents.n_incidents, 0);
}

/* No more than one descriptor can be opened from here on. @return the limit as it was */
static struct rlimit leave_one_descriptor(void) {
        struct rlimit before, low;
        int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
        assert_true(next >= 0);
        (void)close(next); /* nothing was written */
        assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
        low = (struct rlimit){ .rlim_cur = (rlim_t)next + 1, .rlim_max = before.rlim_max };
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
        return before;
}

static void what_no_descriptor_was_left_for_is_attached_when_there_is_one(void **state) {
        Fixture *f = *state;
        assert_int_equal(add_unit_of(f, 1, 0), 0);
        write_file(f, "snapshot.json", "{}");
        to_rest(f);
        attach_all(f); /* what libraries open once is open */
        write_file(f, "snapshot-after.json", "{}");
        struct rlimit before = leave_one_descriptor();
        incident_attaching_start(f->x);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        assert_true(f->x->attaching.is_stuck);
        assert_int_equal(waiting(f, 1), 2);
        assert_int_equal(f->n_released, 2);
        assert_true(sd_event_source_get_enabled(f->x->attaching.timer, NULL) > 0);
        attach_all(f); /* as the timer does */
        assert_int_equal(waiting(f, 1), 3);
        assert_false(incident_is_attaching(f->x));
}

static size_t n_open(void) {
        _cleanup_closedir_ DIR *d = opendir("/proc/self/fd");
        size_t n = 0;
        assert_non_null(d);
        while (readdir(d))
                n++;
        return n;
}

static void one_that_is_over_has_no_descriptor_open_and_is_attached_from_all_the_same(
        void **state) {
        Fixture *f = *state;
        assert_int_equal(add_unit_of(f, 1, 0), 0);
        write_file(f, "snapshot.json", "{}");
        to_rest(f);
        attach_all(f);
        size_t before = n_open();
        f->x->public_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        incident_set_state(f->x, INCIDENT_ENDED);
        incident_directory_close(f->x);
        assert_int_equal(n_open(), before - 1);
        assert_int_equal(add_unit_of(f, 2, 0), 0);
        attach_all(f);
        assert_int_equal(waiting(f, 2), 2);
        assert_int_equal(n_open(), before - 1);
}

static void sweep_again(Fixture *f) {
        incident_list_release(f->x);
        f->x = NULL;
        assert_int_equal(incident_list_sweep(&f->incidents), 0);
        if (f->incidents.n_incidents == 1)
                f->x = CONTAINER_OF(f->incidents.incidents.next, Incident, link);
}

static void an_incident_with_more_records_than_its_file_holds_is_known_after_a_restart(
        void **state) {
        Fixture *f = *state;
        static char record[60000];
        assert_int_equal(add_unit_of(f, 1, 1000), 0);
        for (int i = 0; i < 80; i++) {
                (void)snprintf(record, sizeof record, "{\"pid\":%d,\"cmdline\":\"%058000d\"}", i,
                               0);
                assert_true(incident_texts_add(&f->x->jobs, COLLECT_PROCESSES_MAX, record) >= 0);
        }
        write_file(f, "snapshot.json", "{}");
        incident_set_state(f->x, INCIDENT_SNAPSHOT);
        incident_set_state(f->x, INCIDENT_RESTING);
        incident_set_state(f->x, INCIDENT_ENDED); /* so that the next one has nothing to do */
        incident_directory_write(f->x);
        sweep_again(f);
        assert_non_null(f->x);
        assert_int_equal(f->x->n_units, 1);
        assert_in_range(f->x->jobs.n, 1, 79);
        assert_int_equal(f->x->jobs.n + f->x->jobs.n_left_out, 80);
        assert_int_equal(f->x->n_processes, 0);
}

static void an_incident_that_cannot_be_read_is_left_as_it_is_for_the_next_start(void **state) {
        Fixture *f = *state;
        struct stat st;
        assert_int_equal(add_unit_of(f, 1, 1000), 0);
        write_file(f, "snapshot.json", "{}");
        to_rest(f);
        incident_set_state(f->x, INCIDENT_ENDED);
        incident_directory_write(f->x);
        _cleanup_close_ int whole = openat(f->x->dir_fd, "incident.json", O_WRONLY | O_CLOEXEC);
        assert_int_equal(fstat(whole, &st), 0);
        assert_int_equal(ftruncate(whole, (off_t)64 * MIB), 0); /* as good as EIO */
        sweep_again(f);
        assert_null(f->x);
        assert_int_equal(ftruncate(whole, st.st_size), 0);
        assert_int_equal(incident_list_sweep(&f->incidents), 0);
        assert_int_equal(f->incidents.n_incidents, 1);
        f->x = CONTAINER_OF(f->incidents.incidents.next, Incident, link);
        assert_int_equal(f->x->n_units, 1);
        assert_false(f->x->is_own_bundle);
}

static void a_move_that_is_none_is_left_out(void **state) {
        transition_set_abort(false);
        Fixture *f = *state;
        incident_set_state(f->x, INCIDENT_RECHECKING);
        assert_int_equal(f->x->state, INCIDENT_GATHERING);
        to_rest(f);
        incident_set_state(f->x, INCIDENT_WAITING);
        assert_int_equal(f->x->state, INCIDENT_RESTING);
        incident_set_state(f->x, INCIDENT_ENDED);
        for (int to = 0; to < N_INCIDENT_STATES; to++)
                incident_set_state(f->x, (IncidentState)to);
        assert_int_equal(f->x->state, INCIDENT_ENDED);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        const struct CMUnitTest tests[] = {
                TEST(each_dump_gets_each_file_once_and_is_held_until_then),
                TEST(what_was_attached_is_known_after_a_restart),
                TEST(what_found_no_room_is_attached_when_there_is_room),
                TEST(a_bound_of_the_agents_is_not_called_a_full_disk),
                TEST(what_is_too_large_is_left_out_and_the_rest_comes),
                TEST(a_dump_of_that_path_which_is_another_one_gets_nothing_of_the_earlier_incident),
                TEST(an_incident_may_go_while_its_files_are_on_their_way),
                TEST(what_its_dumps_have_not_got_yet_does_not_go_for_room),
                TEST(a_user_gets_eight_dumps_into_an_incident_and_all_users_thirty_two),
                TEST(root_is_not_held_to_eight),
                TEST(root_of_a_container_is_held_to_eight_and_is_not_the_hosts),
                TEST(an_owner_gets_half_of_the_places_for_processes_and_logs),
                TEST(of_the_kept_ones_the_oldest_go_first),
                TEST(whose_it_is_is_known_after_a_restart),
                TEST(the_directory_of_one_that_was_shipped_or_cancelled_goes),
                TEST(what_no_descriptor_was_left_for_is_attached_when_there_is_one),
                TEST(one_that_is_over_has_no_descriptor_open_and_is_attached_from_all_the_same),
                TEST(an_incident_with_more_records_than_its_file_holds_is_known_after_a_restart),
                TEST(an_incident_that_cannot_be_read_is_left_as_it_is_for_the_next_start),
                TEST(a_move_that_is_none_is_left_out),
        };
        return cmocka_run_group_tests_name("agent/incidents/incident_attaching", tests, NULL, NULL);
}
