/* hook_hints: what hooks say makes intake probe at once, wait, and accept a shorter quiet for
 * an answer. Over a real source, whose own ways of finding things are slow: it scans once an hour
 * and settles in one. */

#include "tests/harness/unit.h"

#include <errno.h>
#include <signal.h>
#include <sys/inotify.h>

#include "agent/intake/intake.h"
#include "agent/store/store.h"
#include "lib/base/fs.h"
#include "lib/base/log.h"
#include "tests/lib/base/scratch.h"

#define INSTANCE "i-0123456789abcdef0"
#define UNIT "dt-20260527-051233-cid-d99e36ea74c263ca"
#define PATIENCE_USEC (20 * USEC_PER_SEC) /* for what has to come */
#define QUIET_USEC                                                                                 \
        (1500 * USEC_PER_MSEC) /* for what must not: more than the quiet after a hook              \
                                */

static const Owner root = { .uid = 0 };

typedef struct Fixture {
        Scratch *scratch;
        sd_event *event;
        Store *store;
        BundleTable *bundles;
        IntakeContext context;
        ConfigSource config;
        char path[PATH_MAX + 64], unit[PATH_MAX + 128];
        char *destination;
        IntakeSource *source;
        unsigned n_ready;
} Fixture;

static void on_ready(Bundle *b, void *userdata) {
        Fixture *f = userdata;
        assert_int_equal(b->rec.state, BUNDLE_READY);
        f->n_ready++;
}

static void on_discard(const char *reason, uint64_t n, void *userdata) {
        (void)reason, (void)n, (void)userdata; /* a metric */
}

static void on_final(Bundle *b, void *userdata) {
        (void)userdata; /* as the agent does */
        if (b->source)
                intake_source_on_final(b->source, b);
}

static void on_store_error(void *userdata) {
        (void)userdata;
        fail_msg("the store failed");
}

static void open_source(Fixture *f) {
        assert_int_equal(store_open(&f->store, f->scratch->path, NULL, NULL), 0);
        const BundleTableCallbacks callbacks = { on_final, on_store_error, NULL, f };
        assert_int_equal(bundle_table_new(&f->bundles, f->store, clock_system(), &callbacks), 0);
        f->context = (IntakeContext){ .event = f->event,
                                      .clock = clock_system(),
                                      .store = f->store,
                                      .bundles = f->bundles,
                                      .instance_id = INSTANCE,
                                      .proc_root = "/proc",
                                      .hook_deadline_usec = USEC_PER_MINUTE,
                                      .on_ready = on_ready,
                                      .on_discard = on_discard,
                                      .userdata = f };
        assert_int_equal(intake_source_new(&f->source, &f->context, &f->config), 0);
}

static void close_source(Fixture *f) {
        intake_source_free(f->source);
        bundle_table_free(f->bundles);
        store_close(f->store);
        bound_done(&f->context.active);
        bound_done(&f->context.hook_units);
        bound_done(&f->context.held);
        bound_done(&f->context.new_units);
        bound_done(&f->context.watched);
        bound_done(&f->context.hints);
        bound_done(&f->context.root_hints);
}

static int setup(void **state) {
        void *scratch = NULL;
        static char name[] = "core-dumps", archive[] = "archive";
        Fixture *f = calloc(1, sizeof *f);
        if (!f || scratch_setup(&scratch) < 0)
                return -1;
        f->scratch = scratch;
        f->destination = archive;
        (void)snprintf(f->path, sizeof f->path, "%s/dumps/dt-%%d-cid-%%c", f->scratch->path);
        (void)snprintf(f->unit, sizeof f->unit, "%s/dumps/" UNIT, f->scratch->path);
        f->config = (ConfigSource){ .name = name,
                                    .path = f->path,
                                    .kind = CONFIG_NEURON_CORE_DUMP,
                                    .watch = CONFIG_WATCH_SCAN,
                                    .settle_usec = USEC_PER_HOUR,
                                    .max_wait_usec = 0,
                                    .scan_interval_usec = USEC_PER_HOUR,
                                    .max_files = 1000,
                                    .destinations = { .items = &f->destination, .n = 1 } };
        *state = f;
        return mkdirat(f->scratch->fd, "dumps", 0755) < 0 || sd_event_new(&f->event) < 0 ? -1 : 0;
}

static int teardown(void **state) {
        Fixture *f = *state;
        void *scratch = f->scratch;
        close_source(f);
        sd_event_unref(f->event);
        free(f);
        return scratch_teardown(&scratch);
}

static void make_unit(const Fixture *f) {
        assert_int_equal(mkdirat(f->scratch->fd, "dumps/" UNIT, 0755), 0);
        assert_int_equal(
                scratch_write(f->scratch, "dumps/" UNIT "/" INSTANCE "-nrt-pid-7.log", "a log"), 0);
}

static const Bundle *unit(const Fixture *f) {
        return bundle_table_find_unit(f->bundles, "core-dumps", f->unit);
}

/* Runs the loop until it is so. @return whether it is, in time */
static bool run_until(Fixture *f, bool (*is_so)(const Fixture *f), uint64_t usec) {
        Clock *clock = clock_system();
        uint64_t until = clock->boottime_usec(clock) + usec;
        while (!is_so(f)) {
                uint64_t now = clock->boottime_usec(clock);
                if (now >= until)
                        return false;
                assert_true(sd_event_run(f->event, MIN(until - now, 50 * USEC_PER_MSEC)) >= 0);
        }
        return true;
}

static bool has_scanned(const Fixture *f) {
        return intake_source_is_idle(f->source);
}

static bool is_found(const Fixture *f) {
        return unit(f) != NULL;
}

static bool is_ready(const Fixture *f) {
        return f->n_ready > 0;
}

static void a_note_finds_a_unit_at_once_and_the_hooks_end_makes_it_complete(void **state) {
        Fixture *f = *state;
        open_source(f);
        assert_true(run_until(f, has_scanned, PATIENCE_USEC));
        make_unit(f); /* nobody sees it: there is no watch, and no scan for an hour */
        assert_false(run_until(f, is_found, 300 * USEC_PER_MSEC));
        intake_source_on_hook_started(f->source, f->unit, &root);
        assert_true(run_until(f, is_found, PATIENCE_USEC));
        assert_false(run_until(f, is_ready, QUIET_USEC));         /* a hook is at work */
        intake_source_on_hook_started(f->source, f->unit, &root); /* another one */
        intake_source_on_hook_finished(f->source, f->unit, &root);
        assert_false(run_until(f, is_ready, QUIET_USEC));
        intake_source_on_hook_finished(f->source, f->unit, &root);
        assert_true(run_until(f, is_ready, PATIENCE_USEC));
        assert_true(unit(f)->rec.complete);
}

static void a_note_for_a_directory_that_is_not_there_yet_is_remembered(void **state) {
        Fixture *f = *state;
        open_source(f);
        assert_true(run_until(f, has_scanned, PATIENCE_USEC));
        intake_source_on_hook_started(f->source, f->unit, &root);
        assert_false(run_until(f, is_found, 300 * USEC_PER_MSEC));
        make_unit(f);
        intake_source_on_hook_finished(f->source, f->unit, &root);
        assert_true(run_until(f, is_found, PATIENCE_USEC));
        assert_true(run_until(f, is_ready, PATIENCE_USEC));
}

/* Of so many directories that are not there a user's hooks tell, and have ended or not. */
static void flood_by(Fixture *f, const Owner *o, unsigned n, bool have_ended) {
        char path[PATH_MAX + 256];
        for (unsigned i = 0; i < n; i++) {
                (void)snprintf(path, sizeof path, "%s/dumps/dt-20260101-%06u-cid-%016x",
                               f->scratch->path, i, (unsigned)o->uid);
                intake_source_on_hook_started(f->source, path, o);
                if (have_ended)
                        intake_source_on_hook_finished(f->source, path, o);
        }
}

static void flood(Fixture *f, uid_t uid, unsigned n, bool have_ended) {
        flood_by(f, &(Owner){ .uid = uid }, n, have_ended);
}

/* Two hooks of root are at work: with the first's end it is not over. */
static void assert_still_awaited(Fixture *f) {
        intake_source_on_hook_finished(f->source, f->unit, &root);
        assert_true(run_until(f, is_found, PATIENCE_USEC));
        assert_false(run_until(f, is_ready, QUIET_USEC));
        intake_source_on_hook_finished(f->source, f->unit, &root);
        assert_true(run_until(f, is_ready, PATIENCE_USEC));
}

static void notes_of_others_do_not_displace_the_hints_of_a_users_hooks(void **state) {
        Fixture *f = *state;
        open_source(f);
        make_unit(f);
        intake_source_on_hook_started(f->source, f->unit, &root);
        intake_source_on_hook_started(f->source, f->unit, &root);
        for (unsigned i = 0; i < 3; i++)
                flood(f, 100000 + i, 400, i > 0);
        flood(f, 100003, 1100, false);
        assert_still_awaited(f);
}

static void notes_of_a_container_do_not_displace_those_of_the_same_user_in_another(void **state) {
        static const Owner a = { .uid = 1000, .container = "a" },
                           b = { .uid = 1000, .container = "b" };
        Fixture *f = *state;
        open_source(f);
        make_unit(f);
        intake_source_on_hook_started(f->source, f->unit, &a);
        intake_source_on_hook_started(f->source, f->unit, &a);
        flood_by(f, &b, 400, false);
        assert_true(bound_amount(&f->context.hints, &b) < 400);
        assert_true(f->context.hints.n_refused > 0);
        intake_source_on_hook_finished(f->source, f->unit, &a);
        assert_true(run_until(f, is_found, PATIENCE_USEC));
        assert_false(run_until(f, is_ready, QUIET_USEC));
        intake_source_on_hook_finished(f->source, f->unit, &a);
        assert_true(run_until(f, is_ready, PATIENCE_USEC));
}

static void what_is_awaited_stays_while_what_has_ended_can_be_removed(void **state) {
        Fixture *f = *state;
        open_source(f);
        make_unit(f);
        intake_source_on_hook_started(f->source, f->unit, &root);
        intake_source_on_hook_started(f->source, f->unit, &root);
        flood(f, 0, 700, false); /* root has most, by far */
        flood(f, 100000, 300, true);
        flood(f, 100001, 300, false); /* more than there is room for */
        assert_still_awaited(f);
}

static void a_note_elsewhere_is_let_be(void **state) {
        Fixture *f = *state;
        open_source(f);
        assert_true(run_until(f, has_scanned, PATIENCE_USEC));
        static const char *const elsewhere[] = { "/root", "/", "relative", "" };
        for (size_t i = 0; i < ELEMENTSOF(elsewhere); i++) {
                intake_source_on_hook_started(f->source, elsewhere[i], &root);
                intake_source_on_hook_finished(f->source, elsewhere[i], &root);
        }
        assert_false(run_until(f, is_found, 300 * USEC_PER_MSEC));
        assert_int_equal(bundle_table_n(f->bundles), 0);
}

static void a_hook_that_never_ends_counts_for_its_deadline_and_a_second(void **state) {
        Fixture *f = *state;
        open_source(f);
        f->context.hook_deadline_usec = 0;
        make_unit(f);
        intake_source_on_hook_started(f->source, f->unit, &root);
        assert_true(run_until(f, is_found, PATIENCE_USEC));
        assert_false(run_until(f, is_ready, 700 * USEC_PER_MSEC));
        assert_true(run_until(f, is_ready, PATIENCE_USEC));
}

static uint64_t later_usec;

static uint64_t later(Clock *c) {
        (void)c;
        return clock_system()->boottime_usec(clock_system()) + later_usec;
}

static void notes_one_after_another_hold_a_unit_for_a_minute_more_in_all(void **state) {
        Fixture *f = *state;
        Clock clock = { .realtime_usec = clock_system()->realtime_usec, .boottime_usec = later };
        later_usec = 0;
        open_source(f);
        f->context.clock = &clock;
        make_unit(f);
        intake_source_on_hook_started(f->source, f->unit, &root); /* counts for 61 s */
        assert_true(run_until(f, is_found, PATIENCE_USEC));
        later_usec = 50 * USEC_PER_SEC;
        intake_source_on_hook_started(f->source, f->unit,
                                      &root); /* and so does this: for 111 s after the first */
        later_usec = 100 * USEC_PER_SEC;
        intake_source_on_hook_started(f->source, f->unit, &root);
        assert_false(run_until(f, is_ready, QUIET_USEC));
        later_usec = 125 * USEC_PER_SEC; /* above 121 s nothing counts */
        intake_source_on_hook_started(f->source, f->unit, &root);
        assert_true(run_until(f, is_ready, PATIENCE_USEC));
        f->context.clock = clock_system();
}

static void promise(const Fixture *f, const char *name) {
        intake_source_on_hook_started(f->source, f->unit, &root);
        intake_source_expect_file(f->source, f->unit, &root, name);
        intake_source_on_hook_finished(f->source, f->unit, &root);
}

static void a_promised_file_that_never_comes_is_waited_for_and_then_named(void **state) {
        Fixture *f = *state;
        f->config.settle_usec = 4 * USEC_PER_SEC;
        open_source(f);
        make_unit(f);
        promise(f, "record.json");
        promise(f, "record.json"); /* said twice, named once */
        assert_true(run_until(f, is_found, PATIENCE_USEC));
        assert_false(run_until(f, is_ready, 2 * USEC_PER_SEC));
        assert_non_null(strstr(unit(f)->rec.reason, "promised"));
        assert_true(run_until(f, is_ready, PATIENCE_USEC));
        assert_false(unit(f)->rec.complete);
        assert_string_equal(unit(f)->rec.incomplete,
                            "[\"missing: 'record.json' was promised by its hook\"]");
}

static bool is_ready_again(const Fixture *f) {
        return f->n_ready > 1;
}

static void what_was_promised_is_named_again_when_a_bundle_settles_again(void **state) {
        Fixture *f = *state;
        f->config.settle_usec = 2 * USEC_PER_SEC;
        open_source(f);
        make_unit(f);
        promise(f, "record.json");
        assert_true(run_until(f, is_ready, PATIENCE_USEC));
        intake_resettle(bundle_table_find_unit(f->bundles, "core-dumps", f->unit),
                        "a file changed after it was planned");
        assert_true(run_until(f, is_ready_again, PATIENCE_USEC));
        assert_string_equal(unit(f)->rec.incomplete,
                            "[\"missing: 'record.json' was promised by its hook\"]");
        assert_int_equal(bundle_set_state(f->bundles,
                                          bundle_table_find_unit(f->bundles, "core-dumps", f->unit),
                                          BUNDLE_CANCELLED, NULL),
                         0);
        assert_int_equal(f->context.root_hints.total, 0);
}

static void a_promised_file_that_is_there_makes_nothing_wait(void **state) {
        Fixture *f = *state;
        open_source(f);
        make_unit(f);
        assert_int_equal(mkdirat(f->scratch->fd, "dumps/" UNIT "/below", 0755), 0);
        assert_int_equal(scratch_write(f->scratch, "dumps/" UNIT "/below/record.json", "{}"), 0);
        promise(f, "record.json");
        assert_true(run_until(f, is_ready, PATIENCE_USEC));
        assert_true(unit(f)->rec.complete);
}

static void promises_without_number_are_bounded(void **state) {
        Fixture *f = *state;
        f->config.settle_usec = 2 * USEC_PER_SEC;
        open_source(f);
        make_unit(f);
        for (unsigned i = 0; i < 2 * INTAKE_PROMISED_MAX; i++) {
                char name[32];
                (void)snprintf(name, sizeof name, "file-%u", i);
                promise(f, name);
        }
        assert_true(run_until(f, is_ready, PATIENCE_USEC));
        assert_false(unit(f)->rec.complete);
        assert_non_null(strstr(unit(f)->rec.incomplete, "and more"));
        assert_true(strlen(unit(f)->rec.incomplete) < 1000);
}

static void add_note(Fixture *f, uint64_t received_usec, uint64_t finished_usec) {
        static char id[33] = "0123456789abcdef0123456789abcdef", source[] = "core-dumps",
                    document[] = "{}";
        const StoredNote n = { .id = id,
                               .received_usec = received_usec,
                               .source = source,
                               .unit_path = f->unit,
                               .finished_usec = finished_usec,
                               .document = document };
        assert_int_equal(store_note_add(f->store, &n), 0);
}

/* No scan would recognise it, and its note is all that names it. */
static void a_unit_without_a_dumps_name_is_found_when_its_hint_was_refused(void **state) {
        Fixture *f = *state;
        open_source(f);
        assert_true(run_until(f, has_scanned, PATIENCE_USEC));
        flood(f, 0, 1100, false);
        assert_true(f->context.root_hints.n_refused > 0);
        (void)snprintf(f->unit, sizeof f->unit, "%s/dumps/nameless", f->scratch->path);
        assert_int_equal(mkdirat(f->scratch->fd, "dumps/nameless", 0755), 0);
        assert_int_equal(scratch_write(f->scratch, "dumps/nameless/nrt.log", "a log"), 0);
        add_note(f, f->context.clock->realtime_usec(f->context.clock), 0);
        intake_source_on_hook_started(f->source, f->unit, &root);
        assert_true(run_until(f, is_found, PATIENCE_USEC));
}

static void adopt_all(Fixture *f) {
        LIST_FOREACH_SAFE (l, bundle_table_all(f->bundles))
                intake_source_resume_bundle(f->source, CONTAINER_OF(l, Bundle, link));
}

static void after_a_start_the_stored_notes_show_that_its_hooks_have_finished(void **state) {
        Fixture *f = *state;
        open_source(f);
        make_unit(f);
        intake_source_on_hook_started(f->source, f->unit, &root);
        assert_true(run_until(f, is_found, PATIENCE_USEC));
        uint64_t now = f->context.clock->realtime_usec(f->context.clock);
        add_note(f, now - USEC_PER_SEC, now);
        close_source(f);
        open_source(f);
        adopt_all(f);
        assert_true(run_until(f, is_ready, PATIENCE_USEC));
}

static void after_a_start_a_hook_may_be_at_work_still(void **state) {
        Fixture *f = *state;
        open_source(f);
        make_unit(f);
        intake_source_on_hook_started(f->source, f->unit, &root);
        assert_true(run_until(f, is_found, PATIENCE_USEC));
        add_note(f, f->context.clock->realtime_usec(f->context.clock), 0);
        close_source(f);
        open_source(f);
        adopt_all(f);
        assert_false(run_until(f, is_ready, QUIET_USEC));
        intake_source_on_hook_finished(f->source, f->unit, &root);
        assert_true(run_until(f, is_ready, PATIENCE_USEC));
}

static bool is_waiting(const Fixture *f) {
        return unit(f)->unit.state == UNIT_WAITING;
}

/* @return how often the unit's directory was opened since the last call */
static unsigned n_opened(int inotify) {
        char buf[4096] __attribute__((aligned(__alignof__(struct inotify_event))));
        unsigned n = 0;
        for (ssize_t got; (got = read(inotify, buf, sizeof buf)) > 0;) {
                const struct inotify_event *e;
                for (const char *at = buf; at < buf + got; at += sizeof *e + e->len) {
                        e = (const struct inotify_event *)at;
                        n += e->len == 0 && (e->mask & IN_OPEN); /* with a name: of a member */
                }
        }
        return n;
}

static void one_read_sees_that_it_has_not_changed_and_that_nobody_writes(void **state) {
        Fixture *f = *state;
        _cleanup_close_ int inotify = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
        open_source(f);
        make_unit(f);
        intake_source_on_hook_started(f->source, f->unit, &root);
        assert_true(run_until(f, is_found, PATIENCE_USEC));
        assert_false(run_until(f, is_ready, QUIET_USEC));
        assert_true(run_until(f, is_waiting, PATIENCE_USEC));
        assert_true(inotify_add_watch(inotify, f->unit, IN_OPEN | IN_CLOSE) >= 0);
        intake_source_on_hook_started(f->source, f->unit, &root); /* it is read once */
        assert_false(is_waiting(f));
        assert_true(run_until(f, is_waiting, PATIENCE_USEC));
        unsigned of_a_read = n_opened(inotify);
        assert_true(of_a_read > 0);
        intake_source_on_hook_finished(f->source, f->unit, &root);
        assert_true(run_until(f, is_waiting, PATIENCE_USEC));
        assert_int_equal(n_opened(inotify), of_a_read);
        intake_source_on_hook_finished(f->source, f->unit, &root);
        assert_true(run_until(f, is_ready, PATIENCE_USEC));
        assert_int_equal(n_opened(inotify), of_a_read);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        const struct CMUnitTest tests[] = {
                TEST(a_note_finds_a_unit_at_once_and_the_hooks_end_makes_it_complete),
                TEST(a_note_for_a_directory_that_is_not_there_yet_is_remembered),
                TEST(notes_of_others_do_not_displace_the_hints_of_a_users_hooks),
                TEST(notes_of_a_container_do_not_displace_those_of_the_same_user_in_another),
                TEST(what_is_awaited_stays_while_what_has_ended_can_be_removed),
                TEST(a_note_elsewhere_is_let_be),
                TEST(a_hook_that_never_ends_counts_for_its_deadline_and_a_second),
                TEST(notes_one_after_another_hold_a_unit_for_a_minute_more_in_all),
                TEST(a_promised_file_that_never_comes_is_waited_for_and_then_named),
                TEST(what_was_promised_is_named_again_when_a_bundle_settles_again),
                TEST(a_promised_file_that_is_there_makes_nothing_wait),
                TEST(promises_without_number_are_bounded),
                TEST(a_unit_without_a_dumps_name_is_found_when_its_hint_was_refused),
                TEST(after_a_start_the_stored_notes_show_that_its_hooks_have_finished),
                TEST(after_a_start_a_hook_may_be_at_work_still),
                TEST(one_read_sees_that_it_has_not_changed_and_that_nobody_writes),
        };
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGIO); /* see fs_check_writer() */
        if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
                return 1;
        log_setup(LOG_FORMAT_TEXT, LOG_CRIT);
        return cmocka_run_group_tests_name("agent/intake_notes", tests, NULL, NULL);
}
