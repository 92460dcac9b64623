/* Small objects on a volume: created once whoever tries and whatever gets lost, never outside of
 * the volume, never by the loop. Faults are made by wrapping single system calls. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/harness/unit.h"

#include "agent/delivery/delivery_volume.h"
#include "agent/delivery/objects_private.h"
#include "agent/delivery/scheduler_private.h"
#include "tests/agent/delivery/objects_test.h"
#include "tests/lib/base/scratch.h"
#include "uploaders/uploader.h"

/* ---- system calls ---- */

static struct Faults {
        int link_error, rename_error, fsync_error, mkdir_error; /* 0: it works */
        bool link_is_done;                                      /* and then says link_error */
        int hang_fd, reached_fd;                                /* > 0: linkat waits for a byte */
} faults;

int __real_linkat(int from, const char *old, int to, const char *new, int flags);
int __wrap_linkat(int from, const char *old, int to, const char *new, int flags);
int __wrap_linkat(int from, const char *old, int to, const char *new, int flags) {
        char byte = 0;
        if (faults.hang_fd > 0 &&
            (write(faults.reached_fd, &byte, 1) != 1 || read(faults.hang_fd, &byte, 1) != 1))
                abort();
        int r = faults.link_error == 0 || faults.link_is_done
                        ? __real_linkat(from, old, to, new, flags)
                        : -1;
        if (faults.link_error == 0)
                return r;
        errno = faults.link_error;
        return -1;
}

int __real_renameat2(int from, const char *old, int to, const char *new, unsigned flags);
int __wrap_renameat2(int from, const char *old, int to, const char *new, unsigned flags);
int __wrap_renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
        if (faults.rename_error == 0)
                return __real_renameat2(from, old, to, new, flags);
        errno = faults.rename_error;
        return -1;
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd) {
        if (faults.fsync_error == 0)
                return __real_fsync(fd);
        errno = faults.fsync_error;
        return -1;
}

int __real_mkdirat(int fd, const char *name, mode_t mode);
int __wrap_mkdirat(int fd, const char *name, mode_t mode);
int __wrap_mkdirat(int fd, const char *name, mode_t mode) {
        if (faults.mkdir_error == 0)
                return __real_mkdirat(fd, name, mode);
        errno = faults.mkdir_error;
        return -1;
}

/* ---- a node ---- */

typedef struct Fixture {
        void *scratch;
        Node node;
        Answer a;
} Fixture;

static const char *scratch_path(const Fixture *f) {
        return ((Scratch *)f->scratch)->path;
}

/* @param timeout_usec  after which a call that hangs ends; 0: the default */
static bool start_node_with(Node *n, const char *root, const char *instance_id,
                            uint64_t timeout_usec) {
        char state[PATH_MAX + 64], keys[PATH_MAX + 64];
        (void)snprintf(state, sizeof state, "%s/state-%s", root, instance_id);
        (void)snprintf(keys, sizeof keys, "type: volume, path: '%s/v/%%d-%%c'", root);
        return (mkdir(state, 0700) == 0 || errno == EEXIST) &&
               node_init_with(n, &(NodeOptions){ .state_directory = state,
                                                 .instance_id = instance_id,
                                                 .destination = keys,
                                                 .environment = (char *[]){ NULL },
                                                 .object_timeout_usec = timeout_usec });
}

static bool start_node(Node *n, const char *root, const char *instance_id) {
        return start_node_with(n, root, instance_id, 0);
}

static Destination *destination_of(const Node *n) {
        return scheduler_find_destination(n->scheduler, "x");
}

static int setup(void **state) {
        Fixture *f = calloc(1, sizeof *f);
        faults = (struct Faults){ 0 };
        assert_non_null(f);
        assert_int_equal(scratch_setup(&f->scratch), 0);
        assert_true(start_node(&f->node, scratch_path(f), "i-1"));
        *state = f;
        return 0;
}

static int teardown(void **state) {
        Fixture *f = *state;
        faults = (struct Faults){ 0 };
        answer_done(&f->a);
        node_done(&f->node);
        assert_int_equal(scratch_teardown(&f->scratch), 0);
        free(f);
        return 0;
}

static int outcome(Fixture *f, ObjectOperation operation, const char *name, const char *data) {
        answer_done(&f->a);
        return do_object(&f->node, &f->a, operation, name, data);
}

static void in_scratch(const Fixture *f, const char *command) {
        char text[2 * PATH_MAX];
        (void)snprintf(text, sizeof text, "cd '%s' && { %s; }", scratch_path(f), command);
        if (system(text) != 0)
                fail_msg("not so: %s", command);
}

static void assert_no_temporary(const Fixture *f) {
        in_scratch(f, "test -z \"$(find . -name '*neuron-collectd-tmp')\"");
}

#define NAME ".incidents/00112233445566aa/1.json"

/* ---- what it does ---- */

static void an_object_is_created_once(void **state) {
        Fixture *f = *state;
        assert_int_equal(outcome(f, OBJECT_CREATE, NAME, "first"), OBJECT_OK);
        int64_t modified = f->a.result.modified_usec;
        assert_int_equal(outcome(f, OBJECT_CREATE, NAME, "second"), OBJECT_EXISTS);
        assert_null(f->a.result.error);
        assert_int_equal(outcome(f, OBJECT_GET, NAME, NULL), OBJECT_OK);
        assert_string_equal(f->a.result.data, "first");
        assert_int_equal(f->a.result.n, 5);
        assert_int_equal(f->a.result.modified_usec, modified);
        assert_no_temporary(f);
}

static void an_object_is_replaced(void **state) {
        Fixture *f = *state;
        assert_int_equal(outcome(f, OBJECT_PUT, NAME, "first"), OBJECT_OK);
        assert_int_equal(outcome(f, OBJECT_PUT, NAME, ""), OBJECT_OK);
        assert_int_equal(outcome(f, OBJECT_GET, NAME, NULL), OBJECT_OK);
        assert_string_equal(f->a.result.data, "");
        assert_int_equal(f->a.result.n, 0);
        assert_no_temporary(f);
}

static void nothing_is_found_where_nothing_is(void **state) {
        Fixture *f = *state;
        assert_int_equal(outcome(f, OBJECT_GET, NAME, NULL), OBJECT_NOT_FOUND);
        assert_int_equal(outcome(f, OBJECT_LIST, ".incidents/", NULL), OBJECT_OK);
        assert_string_equal(f->a.names, "");
        assert_int_equal(outcome(f, OBJECT_PUT, "a", "x"), OBJECT_OK);
        assert_int_equal(outcome(f, OBJECT_GET, NAME, NULL), OBJECT_NOT_FOUND);
        assert_int_equal(outcome(f, OBJECT_LIST, ".incidents/", NULL), OBJECT_OK);
}

static void a_written_file_tells_the_volumes_clock(void **state) {
        Fixture *f = *state;
        const ObjectOperation writes[] = { OBJECT_CREATE, OBJECT_CREATE, OBJECT_PUT };
        int64_t offset = (int64_t)(clock_realtime_usec() - clock_boottime_usec());
        for (size_t i = 0; i < ELEMENTSOF(writes); i++) {
                assert_int_equal(outcome(f, writes[i], NAME, "x"), i == 1 ? OBJECT_EXISTS : 0);
                assert_true(f->a.result.has_clock);
                assert_true(llabs(f->a.result.clock_offset_usec - offset) <=
                            f->a.result.uncertainty_usec);
        }
        assert_int_equal(outcome(f, OBJECT_GET, NAME, NULL), OBJECT_OK);
        assert_false(f->a.result.has_clock);
}

static void a_listing_has_regular_files_in_order_and_nothing_else(void **state) {
        Fixture *f = *state;
        assert_int_equal(outcome(f, OBJECT_CREATE, ".incidents/k/2.json", "22"), OBJECT_OK);
        assert_int_equal(outcome(f, OBJECT_CREATE, ".incidents/k/10/b.json", ""), OBJECT_OK);
        assert_int_equal(outcome(f, OBJECT_CREATE, ".incidents/k/1.json", "1"), OBJECT_OK);
        assert_int_equal(outcome(f, OBJECT_CREATE, ".incidents/other/1.json", "1"), OBJECT_OK);
        in_scratch(f, "cd v/.incidents/k && mkfifo fifo && ln -s 1.json link && ln -s /etc dir && "
                      "touch .1.json.i-2.neuron-collectd-tmp && mkdir .hidden empty && "
                      "touch .hidden/x && ln -s .. 10/up");
        assert_int_equal(outcome(f, OBJECT_LIST, ".incidents/k/", NULL), OBJECT_OK);
        assert_string_equal(f->a.names, ".incidents/k/1.json 1;.incidents/k/10/b.json 0;"
                                        ".incidents/k/2.json 2;");
}

static int count_file(const VolumeFile *file, void *userdata) {
        (void)file;
        (*(size_t *)userdata)++;
        return 0;
}

static int list_at_most(const Fixture *f, size_t n_max) {
        Volume *v = NULL;
        size_t n_found = 0;
        _cleanup_free_ char *error = NULL;
        assert_int_equal(delivery_volume_open(destination_of(&f->node), &v), 0);
        int r = volume_object_list(v,
                                   &(VolumeListing){ .directory = ".incidents/k/",
                                                     .n_max = n_max,
                                                     .on_file = count_file,
                                                     .userdata = &n_found },
                                   &error);
        assert_int_equal(error != NULL, r != 0);
        volume_free(v);
        return r;
}

static void a_listing_is_bounded(void **state) {
        Fixture *f = *state;
        in_scratch(f, "mkdir -p v/.incidents/k/1 v/.incidents/k/2 && touch v/.incidents/k/2/a");
        assert_int_equal(outcome(f, OBJECT_LIST, ".incidents/k/", NULL), OBJECT_OK);
        assert_int_equal(list_at_most(f, 3), 0); /* directories count as well */
        assert_int_equal(list_at_most(f, 2), UPLOAD_E_REFUSED);
        in_scratch(f, "mkdir -p v/.incidents/deep/$(printf 'd/%.0s' $(seq 70))");
        assert_int_equal(outcome(f, OBJECT_LIST, ".incidents/deep/", NULL), OBJECT_INVALID);
        assert_non_null(strstr(f->a.result.error, "deeper"));
}

static void what_is_no_small_file_is_not_read(void **state) {
        Fixture *f = *state;
        in_scratch(f,
                   "mkdir -p v/d && cd v && mkfifo fifo && ln -s /etc/passwd link && ln -s / root "
                   "&& truncate -s 4194304 full && truncate -s 4194305 large && touch file");
        static const char *const names[] = { "fifo", "link",  "root/etc/passwd",
                                             "d",    "large", "file/x" };
        for (size_t i = 0; i < ELEMENTSOF(names); i++) {
                assert_int_equal(outcome(f, OBJECT_GET, names[i], NULL), OBJECT_INVALID);
                assert_non_null(strstr(f->a.result.error, scratch_path(f)));
        }
        assert_int_equal(outcome(f, OBJECT_GET, "full", NULL), OBJECT_OK);
        assert_int_equal(f->a.result.n, OBJECT_BYTES_MAX);
}

static void what_has_the_name_stays_whatever_it_is(void **state) {
        Fixture *f = *state;
        in_scratch(f, "mkdir -p v/d && cd v && mkfifo fifo && ln -s missing link");
        assert_int_equal(outcome(f, OBJECT_CREATE, "fifo", "x"), OBJECT_EXISTS);
        assert_int_equal(outcome(f, OBJECT_CREATE, "link", "x"), OBJECT_EXISTS);
        assert_int_equal(outcome(f, OBJECT_CREATE, "d", "x"), OBJECT_EXISTS);
        assert_int_equal(outcome(f, OBJECT_PUT, "d", "x"), OBJECT_UNREACHABLE);
        in_scratch(f, "cd v && test -p fifo && test -L link && test ! -e missing && test -d d");
        assert_no_temporary(f);
}

static void nothing_is_written_or_read_outside(void **state) {
        Fixture *f = *state;
        static const char *const bad[] = { "",    "/a",  "..",   "../a", "a/../b", "a//b",
                                           "./a", "a/.", "a/..", "a/",   "." };
        for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                assert_int_equal(outcome(f, OBJECT_CREATE, bad[i], "x"), -EINVAL);
        assert_int_equal(outcome(f, OBJECT_LIST, ".incidents", NULL), -EINVAL);
        assert_int_equal(outcome(f, OBJECT_LIST, "../", NULL), -EINVAL);
        assert_int_equal(outcome(f, OBJECT_LIST, "/", NULL), -EINVAL);
        in_scratch(f, "mkdir -p out v/.incidents && echo secret > out/s && ln -s ../../out "
                      "v/.incidents/k");
        assert_int_equal(outcome(f, OBJECT_CREATE, ".incidents/k/1.json", "x"), OBJECT_UNABLE);
        assert_int_equal(outcome(f, OBJECT_PUT, ".incidents/k/1.json", "x"), OBJECT_OK);
        in_scratch(f, "test \"$(cat v/.incidents.i-1/k/1.json)\" = x");
        assert_int_equal(outcome(f, OBJECT_GET, ".incidents/k/s", NULL), OBJECT_INVALID);
        assert_int_equal(outcome(f, OBJECT_LIST, ".incidents/k/", NULL), OBJECT_OK);
        in_scratch(f, "test \"$(ls -A out)\" = s");
        assert_int_equal(outcome(f, OBJECT_GET, "a", NULL), OBJECT_NOT_FOUND);
}

static void unknown_destinations_and_sizes_are_refused(void **state) {
        Fixture *f = *state;
        ObjectCall *call = NULL;
        ObjectRequest q = { .operation = OBJECT_PUT,
                            .destination = "y",
                            .name = "a",
                            .data = "",
                            .on_done = keep_result,
                            .userdata = &f->a };
        assert_int_equal(object_call_new(&call, f->node.scheduler, &q), -ENOENT);
        q.destination = "x";
        q.n = OBJECT_BYTES_MAX + 1;
        assert_int_equal(object_call_new(&call, f->node.scheduler, &q), -EINVAL);
        assert_null(object_call_cancel(call));
}

static void only_its_owner_writes_to_a_directory_and_all_read(void **state) {
        Fixture *f = *state;
        assert_int_equal(outcome(f, OBJECT_CREATE, ".incidents/k/1/a.json", "x"), OBJECT_OK);
        assert_int_equal(outcome(f, OBJECT_PUT, "d-c/i-1/b.see.json", "x"), OBJECT_OK);
        in_scratch(f, "test \"$(stat -c %a v v/.incidents v/.incidents/k/1 v/d-c v/d-c/i-1 "
                      "v/.incidents/k/1/a.json | xargs)\" = '755 755 755 755 755 644'");
}

/* ---- several at once ---- */

#define RACED_MAX 40

static void race(const char *root, const char *instance_id, int from_fd, int to_fd) {
        Node n;
        char byte = 0, name[64], outcomes[RACED_MAX];
        if (!start_node(&n, root, instance_id) || write(to_fd, &byte, 1) != 1 ||
            read(from_fd, &byte, 1) != 1)
                _exit(1);
        for (unsigned i = 0; i < RACED_MAX; i++) {
                Answer a;
                (void)snprintf(name, sizeof name, ".incidents/k/%u.json", i);
                outcomes[i] = (char)do_object(&n, &a, OBJECT_CREATE, name, instance_id);
                answer_done(&a);
        }
        node_done(&n);
        _exit(write(to_fd, outcomes, sizeof outcomes) == sizeof outcomes ? 0 : 1);
}

static void of_two_processes_exactly_one_creates_each(void **state) {
        Fixture *f = *state;
        static const char *const nodes[] = { "i-2", "i-3" };
        int to[2][2], from[2][2], status;
        char byte, outcomes[2][RACED_MAX];
        for (size_t i = 0; i < 2; i++) {
                assert_int_equal(pipe(to[i]) | pipe(from[i]), 0);
                if (fork() == 0)
                        race(scratch_path(f), nodes[i], to[i][0], from[i][1]);
        }
        for (size_t i = 0; i < 2; i++)
                assert_int_equal(read(from[i][0], &byte, 1), 1);
        for (size_t i = 0; i < 2; i++)
                assert_int_equal(write(to[i][1], &byte, 1), 1);
        for (size_t i = 0; i < 2; i++) {
                assert_int_equal(read(from[i][0], outcomes[i], RACED_MAX), RACED_MAX);
                assert_true(wait(&status) > 0 && status == 0);
        }
        for (unsigned i = 0; i < RACED_MAX; i++) {
                char name[64];
                bool first = outcomes[0][i] == OBJECT_OK;
                (void)snprintf(name, sizeof name, ".incidents/k/%u.json", i);
                assert_int_equal(outcomes[first ? 0 : 1][i], OBJECT_OK);
                assert_int_equal(outcomes[first ? 1 : 0][i], OBJECT_EXISTS);
                assert_int_equal(outcome(f, OBJECT_GET, name, NULL), OBJECT_OK);
                assert_string_equal(f->a.result.data, nodes[first ? 0 : 1]);
        }
        assert_no_temporary(f);
        for (size_t i = 0; i < 2; i++) {
                (void)close(to[i][0]), (void)close(to[i][1]);
                (void)close(from[i][0]), (void)close(from[i][1]);
        }
}

/* ---- trouble ---- */

static void a_link_whose_answer_was_lost_is_ours(void **state) {
        Fixture *f = *state;
        faults.link_is_done = true;
        faults.link_error = EEXIST;
        assert_int_equal(outcome(f, OBJECT_CREATE, NAME, "x"), OBJECT_OK);
        assert_int_equal(outcome(f, OBJECT_CREATE, NAME, "x"), OBJECT_EXISTS);
        assert_no_temporary(f);
}

static void without_links_the_name_is_taken_only_atomically(void **state) {
        Fixture *f = *state;
        static const int refusals[] = { EPERM, EOPNOTSUPP };
        for (size_t i = 0; i < ELEMENTSOF(refusals); i++) {
                faults = (struct Faults){ .link_error = refusals[i] };
                assert_int_equal(outcome(f, OBJECT_CREATE, i == 0 ? "a" : "b", "1"), OBJECT_OK);
                assert_int_equal(outcome(f, OBJECT_CREATE, "a", "2"), OBJECT_EXISTS);
                faults.rename_error = EINVAL;
                assert_int_equal(outcome(f, OBJECT_CREATE, "c", "3"), OBJECT_UNABLE);
                assert_non_null(strstr(f->a.result.error, "/v/c"));
                assert_non_null(strstr(f->a.result.error, "neither hard links"));
        }
        in_scratch(f, "test \"$(cat v/a)\" = 1 && test ! -e v/c");
        assert_no_temporary(f);
}

static void what_is_forbidden_differs_from_trouble(void **state) {
        Fixture *f = *state;
        const struct {
                struct Faults faults;
                ObjectOutcome outcome;
                const char *text;
        } cases[] = {
                { { .mkdir_error = EACCES }, OBJECT_UNABLE, "let uid" },
                { { .mkdir_error = EROFS }, OBJECT_UNABLE, "mount it read-write" },
                { { .fsync_error = ENOSPC }, OBJECT_UNREACHABLE, "free some space" },
                { { .fsync_error = EIO }, OBJECT_UNREACHABLE, "kernel log" },
                { { .fsync_error = ESTALE }, OBJECT_UNREACHABLE, "mount it again" },
                { { .link_error = EIO }, OBJECT_UNREACHABLE, "kernel log" },
        };
        assert_int_equal(outcome(f, OBJECT_PUT, "a", "x"), OBJECT_OK);
        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                faults = cases[i].faults;
                assert_int_equal(outcome(f, OBJECT_CREATE, NAME, "x"), cases[i].outcome);
                assert_non_null(strstr(f->a.result.error, "/v/" NAME));
                assert_non_null(strstr(f->a.result.error, cases[i].text));
                assert_false(f->a.result.has_clock);
        }
        faults = (struct Faults){ 0 };
        assert_no_temporary(f);
        assert_int_equal(outcome(f, OBJECT_CREATE, NAME, "x"), OBJECT_OK);
}

static void assert_destination(Fixture *f, const char *wanted, const char *error) {
        SchedulerDestinationView v;
        scheduler_destination_view(f->node.scheduler, 0, &v);
        assert_string_equal(v.state, wanted);
        if (error)
                assert_non_null(strstr(v.last_error, error));
        else
                assert_null(v.last_error);
}

static void turn_until_proven(Fixture *f) {
        while (!destination_of(&f->node)->is_proven)
                assert_true(sd_event_run(f->node.event, UINT64_MAX) >= 0);
}

static void trouble_shows_at_the_destination_and_its_probe_says_whether_it_can_be_reached(
        void **state) {
        Fixture *f = *state;
        Destination *d = destination_of(&f->node);
        scheduler_kick(f->node.scheduler);
        turn_until_proven(f);
        assert_destination(f, "ok", NULL);
        faults.mkdir_error = EACCES; /* no trouble */
        assert_int_equal(outcome(f, OBJECT_CREATE, NAME, "x"), OBJECT_UNABLE);
        assert_destination(f, "ok", NULL);
        faults = (struct Faults){ .link_error = ENOMEM }; /* our own */
        assert_int_equal(outcome(f, OBJECT_CREATE, NAME, "x"), OBJECT_UNREACHABLE);
        assert_destination(f, "ok", NULL);
        faults = (struct Faults){ .link_error = EIO }; /* the probe makes no link */
        assert_int_equal(outcome(f, OBJECT_CREATE, "a", "x"), OBJECT_UNREACHABLE);
        assert_destination(f, "failing", "/v/a");
        assert_true(d->objects_failed && !objects_are_refused(f->node.scheduler, "x"));
        assert_int_equal(outcome(f, OBJECT_CREATE, "b", "x"), OBJECT_UNREACHABLE);
        turn_until_proven(f);
        assert_destination(f, "ok", NULL); /* and nobody waits for it */
        d->objects_failed = true;
        assert_true(objects_are_refused(f->node.scheduler, "x"));
        assert_false(objects_are_refused(f->node.scheduler, "y"));
        assert_false(objects_are_refused(NULL, "x"));
        faults = (struct Faults){ 0 };
        assert_int_equal(outcome(f, OBJECT_CREATE, "a", "x"), OBJECT_OK);
        assert_false(objects_are_refused(f->node.scheduler, "x"));
}

static void a_success_ends_the_backoff_of_the_probe(void **state) {
        Fixture *f = *state;
        Destination *d = destination_of(&f->node);
        in_scratch(f, "touch v");
        scheduler_kick(f->node.scheduler);
        while (d->state == DESTINATION_OK)
                assert_true(sd_event_run(f->node.event, UINT64_MAX) >= 0);
        d->not_before_usec = UINT64_MAX / 2;
        assert_int_equal(outcome(f, OBJECT_PUT, "a", "x"), OBJECT_UNREACHABLE);
        assert_false(d->objects_failed); /* the probe speaks for it */
        in_scratch(f, "rm v");
        assert_int_equal(outcome(f, OBJECT_PUT, "a", "x"), OBJECT_OK);
        turn_until_proven(f);
        assert_destination(f, "ok", NULL);
}

static void a_volume_that_is_no_directory_is_trouble(void **state) {
        Fixture *f = *state;
        assert_int_equal(outcome(f, OBJECT_PUT, "a", "x"), OBJECT_OK);
        in_scratch(f, "rm -r v && touch v");
        assert_int_equal(outcome(f, OBJECT_PUT, "a", "x"), OBJECT_UNREACHABLE);
        assert_int_equal(outcome(f, OBJECT_GET, "a", NULL), OBJECT_UNREACHABLE);
        assert_int_equal(outcome(f, OBJECT_LIST, "a/", NULL), OBJECT_UNREACHABLE);
}

static void what_a_crash_left_is_removed(void **state) {
        Fixture *f = *state;
        in_scratch(f, "mkdir -p v && echo old > v/.a.i-1.neuron-collectd-tmp");
        assert_int_equal(outcome(f, OBJECT_CREATE, "a", "x"), OBJECT_OK);
        assert_no_temporary(f);
        in_scratch(f, "test \"$(cat v/a)\" = x");
}

static void turn_until_idle(Fixture *f) {
        while (objects_of(destination_of(&f->node))->n_abandoned > 0)
                assert_true(sd_event_run(f->node.event, UINT64_MAX) >= 0);
}

static void a_call_whose_thread_hangs_is_cancelled_or_ends(void **state) {
        Fixture *f = *state;
        Answer queued, hung;
        int hang[2], reached[2];
        node_done(&f->node);
        assert_true(start_node_with(&f->node, scratch_path(f), "i-1", USEC_PER_SEC / 10));
        char byte = 0;
        assert_int_equal(pipe(hang) | pipe(reached), 0);
        faults.hang_fd = hang[0];
        faults.reached_fd = reached[1];
        for (unsigned i = 0; i < 2; i++) { /* cancelled; given up after a time */
                answer_done(&f->a);
                assert_int_equal(start(&f->node, &hung, OBJECT_CREATE, i == 0 ? "a" : "b", "1"), 0);
                assert_int_equal(start(&f->node, &queued, OBJECT_CREATE, "c", "2"), 0);
                assert_int_equal(read(reached[0], &byte, 1), 1);
                if (i == 0) {
                        hung.call = object_call_cancel(hung.call);
                        f->node.n_running--;
                } else {
                        while (!hung.is_done)
                                assert_true(sd_event_run(f->node.event, UINT64_MAX) >= 0);
                        assert_int_equal(hung.result.outcome, OBJECT_UNREACHABLE);
                        assert_non_null(strstr(hung.result.error, "hangs"));
                }
                queued.call = object_call_cancel(queued.call);
                f->node.n_running--;
                assert_int_equal(sd_event_run(f->node.event, 0), 0); /* the loop is free */
                assert_int_equal(write(hang[1], &byte, 1), 1);
                turn_until_idle(f);
                assert_true(hung.is_done == (i == 1) && !queued.is_done);
                answer_done(&hung);
        }
        faults.hang_fd = 0;
        node_done(&f->node); /* nothing hangs any more, however slow it is */
        assert_true(start_node(&f->node, scratch_path(f), "i-1"));
        assert_int_equal(outcome(f, OBJECT_CREATE, "a", "3"), OBJECT_EXISTS); /* it was executed */
        assert_int_equal(outcome(f, OBJECT_CREATE, "c", "4"), OBJECT_OK); /* that had not begun */
        for (unsigned i = 0; i < 2; i++)
                (void)close(hang[i]), (void)close(reached[i]);
}

static void too_many_that_hang_are_not_added_to(void **state) {
        Fixture *f = *state;
        int hang[2], reached[2];
        char byte = 0;
        Answer a;
        assert_int_equal(pipe(hang) | pipe(reached), 0);
        faults.hang_fd = hang[0];
        faults.reached_fd = reached[1];
        for (unsigned i = 0; i < OBJECTS_ABANDONED_MAX; i++) {
                assert_int_equal(start(&f->node, &a, OBJECT_CREATE, "a", "1"), 0);
                if (i == 0)
                        assert_int_equal(read(reached[0], &byte, 1), 1);
                (void)object_call_cancel(a.call);
                f->node.n_running--;
        }
        assert_int_equal(outcome(f, OBJECT_GET, "a", NULL), OBJECT_UNREACHABLE);
        assert_int_equal(start(&f->node, &a, OBJECT_GET, "a", NULL), 0);
        (void)object_call_cancel(a.call); /* before it was reported */
        f->node.n_running--;
        assert_int_equal(write(hang[1], &byte, 1), 1);
        turn_until_idle(f);
        assert_int_equal(outcome(f, OBJECT_GET, "a", NULL), OBJECT_OK);
        for (unsigned i = 0; i < 2; i++)
                (void)close(hang[i]), (void)close(reached[i]);
}

static uint64_t far_future(Clock *c) {
        (void)c;
        return UINT64_MAX;
}

static void a_stop_does_not_wait_for_a_thread_that_hangs(void **state) {
        Fixture *f = *state;
        int hang[2], reached[2];
        char byte = 0;
        Answer a;
        assert_int_equal(pipe(hang) | pipe(reached), 0);
        faults.hang_fd = hang[0];
        faults.reached_fd = reached[1];
        assert_int_equal(start(&f->node, &a, OBJECT_CREATE, "a", "1"), 0);
        assert_int_equal(read(reached[0], &byte, 1), 1);
        (void)object_call_cancel(a.call);
        assert_int_equal(start(&f->node, &a, OBJECT_CREATE, "b", "1"), 0);
        (void)object_call_cancel(a.call);
        Objects *left = objects_of(destination_of(&f->node));
        ObjectCall *call = CONTAINER_OF(left->abandoned.next, ObjectCall, link);
        f->node.clock.boottime_usec = far_future;
        f->node.scheduler = scheduler_free(f->node.scheduler);
        assert_true(worker_pool_is_running(&call->work));
        assert_int_equal(write(hang[1], &byte, 1), 1);
        while (worker_pool_is_running(&call->work))
                (void)poll(NULL, 0, 1);
        object_call_free(call); /* what would stay is freed, for the sake of leak checks */
        objects_free(left);
        for (unsigned i = 0; i < 2; i++)
                (void)close(hang[i]), (void)close(reached[i]);
}

/* ---- what a destination is ---- */

static void a_local_volume_is_no_arbiter_and_has_a_directory_for_each_failure(void **state) {
        Fixture *f = *state;
        bool differs = true;
        assert_false(objects_are_shared(f->node.scheduler, "x"));
        assert_false(objects_are_shared(f->node.scheduler, "y"));
        _cleanup_free_ char *directory =
                objects_failure_directory(f->node.scheduler, "x", "20260527-051233", "aa/../b",
                                          "neuron-core-dump", "s", &differs);
        assert_false(differs);
        assert_string_equal(directory, "20260527-051233-aa_.._b");
}

static void other_prefixes_have_other_directories(void **state) {
        Fixture *f = *state;
        static const struct {
                const char *keys, *directory;
                bool is_shared;
        } cases[] = {
                { "type: volume, path: '/v/%k/%n/%d-%c', durable: true", "k/n/d-c", true },
                { "type: volume, path: '/v/%h/%d-%c'", NULL, false },
                { "type: volume, path: '/v/%d-%c/%u'", NULL, false },
                { "type: s3, bucket: bucket, prefix: 'a/b/%d/%c', region: us-east-1", "d/c", true },
                { "type: s3, bucket: bucket, prefix: '%d-%c', region: us-east-1", "d-c", true },
        };
        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                Node n;
                bool differs = false;
                char state_directory[PATH_MAX + 64];
                (void)snprintf(state_directory, sizeof state_directory, "%s/state-%zu",
                               scratch_path(f), i);
                assert_int_equal(mkdir(state_directory, 0700), 0);
                assert_true(
                        node_init(&n, state_directory, "i-1", cases[i].keys, (char *[]){ NULL }));
                assert_int_equal(objects_are_shared(n.scheduler, "x"), cases[i].is_shared);
                _cleanup_free_ char *directory =
                        objects_failure_directory(n.scheduler, "x", "d", "c", "k", "n", &differs);
                assert_int_equal(differs, !cases[i].directory);
                if (cases[i].directory)
                        assert_string_equal(directory, cases[i].directory);
                else
                        assert_null(directory);
                node_done(&n);
        }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(an_object_is_created_once),
                TEST(an_object_is_replaced),
                TEST(nothing_is_found_where_nothing_is),
                TEST(a_written_file_tells_the_volumes_clock),
                TEST(a_listing_has_regular_files_in_order_and_nothing_else),
                TEST(a_listing_is_bounded),
                TEST(what_is_no_small_file_is_not_read),
                TEST(what_has_the_name_stays_whatever_it_is),
                TEST(nothing_is_written_or_read_outside),
                TEST(unknown_destinations_and_sizes_are_refused),
                TEST(only_its_owner_writes_to_a_directory_and_all_read),
                TEST(of_two_processes_exactly_one_creates_each),
                TEST(a_link_whose_answer_was_lost_is_ours),
                TEST(without_links_the_name_is_taken_only_atomically),
                TEST(what_is_forbidden_differs_from_trouble),
                TEST(trouble_shows_at_the_destination_and_its_probe_says_whether_it_can_be_reached),
                TEST(a_success_ends_the_backoff_of_the_probe),
                TEST(a_volume_that_is_no_directory_is_trouble),
                TEST(what_a_crash_left_is_removed),
                TEST(a_call_whose_thread_hangs_is_cancelled_or_ends),
                TEST(too_many_that_hang_are_not_added_to),
                TEST(a_stop_does_not_wait_for_a_thread_that_hangs),
                TEST(a_local_volume_is_no_arbiter_and_has_a_directory_for_each_failure),
                TEST(other_prefixes_have_other_directories),
        };
        return cmocka_run_group_tests_name("objects", tests, NULL, NULL);
}
