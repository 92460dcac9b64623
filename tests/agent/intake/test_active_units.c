/* How many bundles are worked on is bounded by the owner of their units, and for all: what is
 * refused is found again when there is space. So are the descriptors that hold files; without any a
 * unit waits. Over a real source that scans when it is asked to. */

#include "tests/harness/unit.h"

#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "agent/intake/admission.h"
#include "agent/intake/intake.h"
#include "agent/store/store.h"
#include "lib/base/log.h"
#include "lib/neuron/scan.h"
#include "tests/harness/fake_clock.h"
#include "tests/harness/skip.h"
#include "tests/lib/base/scratch.h"

#define INSTANCE "i-0123456789abcdef0"
#define MAX_ACTIVE 4
#define MAX_OF_OWNER 2
#define MANY 1001 /* uids: of whoever has many units, and of whoever has one */
#define ONE 1002
#define PATIENCE_USEC (60 * USEC_PER_SEC)

/* Linked with -Wl,--wrap=fs_open_regular: the process has no descriptor left for a member. */
static bool has_no_descriptor;
static unsigned n_refused_opens;
int __real_fs_open_regular(int dir_fd, const char *path, struct stat *ret);
int __wrap_fs_open_regular(int dir_fd, const char *path, struct stat *ret);

int __wrap_fs_open_regular(int dir_fd, const char *path, struct stat *ret) {
        if (!has_no_descriptor)
                return __real_fs_open_regular(dir_fd, path, ret);
        n_refused_opens++; /* one thread */
        return -EMFILE;
}

/* The same: another process has locked the database. */
static bool is_locked;
static unsigned n_refused_begins, n_adds;
int __real_store_begin(Store *s);
int __wrap_store_begin(Store *s);
int __real_store_add(Store *s, const BundleRecord *b);
int __wrap_store_add(Store *s, const BundleRecord *b);

int __wrap_store_begin(Store *s) {
        if (!is_locked)
                return __real_store_begin(s);
        n_refused_begins++;
        return -EBUSY;
}

int __wrap_store_add(Store *s, const BundleRecord *b) {
        n_adds++;
        return is_locked ? -EBUSY : __real_store_add(s, b);
}

/* The same: a probe of the path of unit 100 does not end before it may. */
static sem_t may_end;
static atomic_bool is_stuck;
int __real_scan_unit_at(const ScanSource *s, const char *relative, ScanUnit *ret);
int __wrap_scan_unit_at(const ScanSource *s, const char *relative, ScanUnit *ret);

int __wrap_scan_unit_at(const ScanSource *s, const char *relative, ScanUnit *ret) {
        if (atomic_load(&is_stuck) && strcmp(relative, "job-100") == 0)
                (void)sem_wait(&may_end);
        return __real_scan_unit_at(s, relative, ret);
}

/* And probes of paths last as long as a test says. */
static atomic_uint_fast64_t probe_usec;
uint64_t __real_clock_boottime_usec(void);
uint64_t __wrap_clock_boottime_usec(void);

uint64_t __wrap_clock_boottime_usec(void) {
        static atomic_uint_fast64_t later;
        return __real_clock_boottime_usec() + atomic_fetch_add(&later, atomic_load(&probe_usec));
}

typedef struct Fixture {
        Scratch *scratch;
        sd_event *event;
        Store *store;
        BundleTable *bundles;
        IntakeContext context;
        Clock *clock; /* NULL: the system's */
        ConfigSource config;
        char path[PATH_MAX + 64];
        char *destination;
        IntakeSource *source;
        unsigned n_ready;
} Fixture;

static void on_ready(Bundle *b, void *userdata) {
        Fixture *f = userdata;
        (void)b; /* nobody ships */
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

static int setup(void **state) {
        void *scratch = NULL;
        static char name[] = "jobs", archive[] = "archive";
        Fixture *f = calloc(1, sizeof *f);
        if (!f || scratch_setup(&scratch) < 0)
                return -1;
        f->scratch = scratch;
        has_no_descriptor = false;
        n_refused_opens = 0;
        is_locked = false;
        n_refused_begins = n_adds = 0;
        (void)sem_init(&may_end, 0, 0);
        atomic_store(&is_stuck, false);
        atomic_store(&probe_usec, 0);
        f->destination = archive;
        (void)snprintf(f->path, sizeof f->path, "%s/jobs/job-%%p", f->scratch->path);
        f->config = (ConfigSource){ .name = name,
                                    .path = f->path,
                                    .kind = CONFIG_DIRECTORY,
                                    .watch = CONFIG_WATCH_SCAN,
                                    .settle_usec = USEC_PER_HOUR,
                                    .scan_interval_usec = USEC_PER_HOUR,
                                    .max_files = 1000,
                                    .destinations = { .items = &f->destination, .n = 1 } };
        *state = f;
        return mkdirat(f->scratch->fd, "jobs", 0755) < 0 || sd_event_new(&f->event) < 0 ? -1 : 0;
}

/* When a source has ended, and its bundles, nobody is charged for anything. What was spent fades.
 */
static void expect_nothing_charged(IntakeContext *c) {
        const Bound *all[] = { &c->active,  &c->hook_units, &c->held,
                               &c->watched, &c->hints,      &c->root_hints };
        for (size_t i = 0; i < ELEMENTSOF(all); i++)
                if (all[i]->total > 0 || all[i]->n_accounts > 0)
                        fail_msg("%zu %s are charged to %zu owners", (size_t)all[i]->total,
                                 all[i]->what, all[i]->n_accounts);
}

static int teardown(void **state) {
        Fixture *f = *state;
        void *scratch = f->scratch;
        intake_source_free(f->source);
        if (f->bundles)
                bundle_table_free(f->bundles);
        expect_nothing_charged(&f->context);
        bound_done(&f->context.active);
        bound_done(&f->context.hook_units);
        bound_done(&f->context.held);
        bound_done(&f->context.new_units);
        bound_done(&f->context.watched);
        bound_done(&f->context.hints);
        bound_done(&f->context.root_hints);
        if (f->store)
                store_close(f->store);
        sd_event_unref(f->event);
        free(f);
        return scratch_teardown(&scratch);
}

static void make_unit(const Fixture *f, unsigned number, uid_t uid) {
        char name[32], file[64];
        (void)snprintf(name, sizeof name, "jobs/job-%u", number);
        (void)snprintf(file, sizeof file, "%s/log", name);
        assert_int_equal(mkdirat(f->scratch->fd, name, 0755), 0);
        assert_int_equal(scratch_write(f->scratch, file, "a log"), 0);
        assert_int_equal(fchownat(f->scratch->fd, file, uid, uid, 0), 0);
        assert_int_equal(fchownat(f->scratch->fd, name, uid, uid, 0), 0);
}

static void make_units(const Fixture *f, unsigned first, unsigned n, uid_t uid) {
        for (unsigned i = 0; i < n; i++)
                make_unit(f, first + i, uid);
}

static void start(Fixture *f) {
        assert_int_equal(store_open(&f->store, f->scratch->path, NULL, NULL), 0);
        const BundleTableCallbacks callbacks = { on_final, on_store_error, NULL, f };
        assert_int_equal(bundle_table_new(&f->bundles, f->store, clock_system(), &callbacks), 0);
        const Bound held = f->context.held,
                    new_units = f->context.new_units; /* as tests set them */
        f->context = (IntakeContext){ .event = f->event,
                                      .clock = f->clock ? f->clock : clock_system(),
                                      .store = f->store,
                                      .bundles = f->bundles,
                                      .instance_id = INSTANCE,
                                      .proc_root = "/proc",
                                      .hook_deadline_usec = USEC_PER_MINUTE,
                                      .on_ready = on_ready,
                                      .on_discard = on_discard,
                                      .userdata = f };
        f->context.held = held;
        f->context.new_units = new_units;
        f->context.new_units.clock = f->context.clock;
        f->context.active =
                (Bound){ .what = "active units", .max = MAX_ACTIVE, .max_each = MAX_OF_OWNER };
        assert_int_equal(intake_source_new(&f->source, &f->context, &f->config), 0);
}

/* @return the bundle that is worked on */
static Bundle *unit(const Fixture *f, unsigned number) {
        char path[PATH_MAX + 64];
        (void)snprintf(path, sizeof path, "%s/jobs/job-%u", f->scratch->path, number);
        return bundle_table_find_unit(f->bundles, "jobs", path);
}

static size_t amount(Fixture *f, uid_t uid) {
        return bound_amount(&f->context.active, &(Owner){ .uid = uid });
}

static void run_some(Fixture *f, uint64_t until) {
        Clock *clock = clock_system();
        assert_true(clock->boottime_usec(clock) < until);
        assert_true(sd_event_run(f->event, 50 * USEC_PER_MSEC) >= 0);
}

static uint64_t deadline(void) {
        Clock *clock = clock_system();
        return clock->boottime_usec(clock) + PATIENCE_USEC;
}

static void run_until_active(Fixture *f, uid_t uid, size_t n) {
        for (uint64_t until = deadline(); amount(f, uid) != n;)
                run_some(f, until);
}

static void run_until_found(Fixture *f, unsigned number) {
        for (uint64_t until = deadline(); !unit(f, number);)
                run_some(f, until);
}

static void run_until_scanned(Fixture *f) {
        for (uint64_t until = deadline(); !intake_source_is_idle(f->source);)
                run_some(f, until);
}

static uint64_t n_discovered(const Fixture *f) {
        StoreCounts c;
        bundle_table_counts(f->bundles, &c);
        assert_int_equal(store_counts_difference(&c), 0);
        return c.discovered;
}

static void units_of_one_owner_do_not_hide_anothers(void **state) {
        Fixture *f = *state;
        if (geteuid() != 0)
                SKIP_BECAUSE("files of other users cannot be made");
        make_units(f, 100, 10, MANY);
        start(f);
        run_until_active(f, MANY, MAX_OF_OWNER);
        make_unit(f, 1, ONE);
        intake_source_flush(f->source, false);
        run_until_found(f, 1);
        assert_int_equal(amount(f, ONE), 1);
        assert_int_equal(amount(f, MANY), MAX_OF_OWNER);
        assert_int_equal(n_discovered(f), MAX_OF_OWNER + 1); /* what is refused has no row */
}

static void a_scan_that_finds_too_many_has_some_of_each_owner(void **state) {
        Fixture *f = *state;
        if (geteuid() != 0)
                SKIP_BECAUSE("files of other users cannot be made");
        make_units(f, 100, 20, MANY);
        make_units(f, 1, 2, ONE);
        start(f);
        run_until_active(f, ONE, 2);
        run_until_active(f, MANY, MAX_OF_OWNER);
}

static void hint(Fixture *f, unsigned number, uid_t uid) {
        char path[PATH_MAX + 64];
        (void)snprintf(path, sizeof path, "%s/jobs/job-%u", f->scratch->path, number);
        intake_source_on_hook_started(f->source, path, &(Owner){ .uid = uid });
}

static void a_noted_directory_always_gets_in(void **state) {
        Fixture *f = *state;
        char path[PATH_MAX + 64];
        if (geteuid() != 0)
                SKIP_BECAUSE("files of other users cannot be made");
        make_units(f, 100, MAX_OF_OWNER, MANY);
        start(f);
        run_until_active(f, MANY, MAX_OF_OWNER);
        make_unit(f, 7, MANY);
        (void)snprintf(path, sizeof path, "%s/jobs/job-7", f->scratch->path);
        intake_source_on_hook_started(f->source, path, &(Owner){ .uid = MANY });
        run_until_found(f, 7);
        assert_int_equal(amount(f, MANY), MAX_OF_OWNER);
        assert_int_equal(f->context.hook_units.total, 1);
        assert_int_equal(bundle_set_state(f->bundles, unit(f, 7), BUNDLE_CANCELLED, NULL), 0);
        assert_int_equal(f->context.hook_units.total, 0);
}

/* Else each start would let in as many more. */
static void after_a_start_what_hooks_have_named_is_charged_as_before(void **state) {
        Fixture *f = *state;
        if (geteuid() != 0)
                SKIP_BECAUSE("files of other users cannot be made");
        make_units(f, 100, MAX_OF_OWNER, MANY);
        start(f);
        run_until_active(f, MANY, MAX_OF_OWNER);
        make_unit(f, 100 + MAX_OF_OWNER, MANY);
        hint(f, 100 + MAX_OF_OWNER, MANY);
        run_until_found(f, 100 + MAX_OF_OWNER);
        intake_source_free(f->source); /* as a reload does that changes it */
        expect_nothing_charged(&f->context);
        assert_int_equal(intake_source_new(&f->source, &f->context, &f->config), 0);
        LIST_FOREACH_SAFE (l, bundle_table_all(f->bundles))
                intake_source_resume_bundle(f->source, CONTAINER_OF(l, Bundle, link));
        assert_int_equal(amount(f, MANY), MAX_OF_OWNER);
        assert_int_equal(f->context.hook_units.total, 1);
}

/* Those of them that are worked on. */
static void cancel_units(Fixture *f, unsigned first, unsigned n) {
        for (unsigned i = 0; i < n; i++) {
                Bundle *b = unit(f, first + i);
                if (b)
                        assert_int_equal(bundle_set_state(f->bundles, b, BUNDLE_CANCELLED, NULL),
                                         0);
        }
}

static void what_was_refused_is_found_when_there_is_space(void **state) {
        Fixture *f = *state;
        if (geteuid() != 0)
                SKIP_BECAUSE("files of other users cannot be made");
        make_units(f, 100, 2 * MAX_OF_OWNER, MANY);
        start(f);
        run_until_active(f, MANY, MAX_OF_OWNER);
        for (unsigned i = 0; i < 20; i++)
                run_some(f, deadline());
        assert_false(intake_source_is_idle(f->source));
        cancel_units(f, 100, 2 * MAX_OF_OWNER);
        run_until_active(f, MANY, MAX_OF_OWNER);
        assert_int_equal(n_discovered(f), 2 * MAX_OF_OWNER);
        run_until_scanned(f);
}

static void what_was_refused_is_found_in_a_drain_too(void **state) {
        Fixture *f = *state;
        if (geteuid() != 0)
                SKIP_BECAUSE("files of other users cannot be made");
        f->config.scan_interval_usec = 100 * USEC_PER_MSEC;
        make_units(f, 100, 2 * MAX_OF_OWNER, MANY);
        start(f);
        run_until_active(f, MANY, MAX_OF_OWNER);
        intake_source_hold(f->source, true);
        for (unsigned i = 0; i < 20; i++) /* what is known is scanned, once or more often */
                run_some(f, deadline());
        assert_false(intake_source_is_idle(f->source));
        cancel_units(f, 100, 2 * MAX_OF_OWNER);
        run_until_active(f, MANY, MAX_OF_OWNER);
        run_until_scanned(f);
        assert_int_equal(n_discovered(f), 2 * MAX_OF_OWNER);
}

/* A walk may have passed the place of a unit that a probe of its path finds meanwhile. */
static void what_is_refused_during_a_walk_waits_for_another_scan(void **state) {
        Fixture *f = *state;
        char path[PATH_MAX + 64];
        Charge charge = { 0 };
        if (geteuid() != 0)
                SKIP_BECAUSE("files of other users cannot be made");
        make_units(f, 100, MAX_OF_OWNER, MANY);
        start(f);
        run_until_active(f, MANY, MAX_OF_OWNER);
        run_until_scanned(f);
        intake_source_hold(f->source, true); /* it walks, in a thread */
        (void)snprintf(path, sizeof path, "%s/jobs/job-102", f->scratch->path);
        assert_false(admission_request(f->source, path, MANY, &charge));
        for (unsigned i = 0; i < 20; i++)
                run_some(f, deadline());
        assert_false(intake_source_is_idle(f->source));
}

/* An owner who has all that one may have has half of what there is. */
static void a_drain_that_begins_during_a_scan_does_not_wait_for_the_next_interval(void **state) {
        Fixture *f = *state;
        if (geteuid() != 0)
                SKIP_BECAUSE("files of other users cannot be made");
        make_units(f, 100, MAX_OF_OWNER, MANY);
        start(f);
        run_until_active(f, MANY, MAX_OF_OWNER);
        run_until_scanned(f);
        intake_source_flush(f->source, false); /* it walks, in a thread */
        intake_source_hold(f->source, true);
        run_until_scanned(f);
}

/* Each attempt waits a second for the lock, and the loop with it. */
static void a_locked_database_is_tried_once_for_all_that_was_found(void **state) {
        Fixture *f = *state;
        make_units(f, 1, MAX_OF_OWNER, geteuid());
        is_locked = true;
        start(f);
        for (uint64_t until = deadline(); n_refused_begins == 0;)
                run_some(f, until);
        assert_int_equal(n_adds, 0);
        assert_non_null(intake_source_unseen(f->source));
        is_locked = false;
        intake_source_flush(f->source, false);
        run_until_active(f, geteuid(), MAX_OF_OWNER);
}

static void without_a_descriptor_a_unit_waits(void **state) {
        Fixture *f = *state;
        f->config.settle_usec = 1000;
        f->config.scan_interval_usec = 100 * USEC_PER_MSEC;
        make_unit(f, 1, geteuid());
        has_no_descriptor = true;
        start(f);
        for (uint64_t until = deadline(); n_refused_opens < 3;)
                run_some(f, until);
        assert_int_equal(f->n_ready, 0);
        has_no_descriptor = false;
        for (uint64_t until = deadline(); f->n_ready == 0;)
                run_some(f, until);
}

static void while_a_path_of_one_owner_is_probed_another_owners_is_found(void **state) {
        Fixture *f = *state;
        if (geteuid() != 0)
                SKIP_BECAUSE("files of other users cannot be made");
        start(f);
        run_until_scanned(f);
        make_units(f, 100, 2, MANY);
        make_unit(f, 1, ONE);
        atomic_store(&is_stuck, true);
        hint(f, 100, MANY);
        hint(f, 101, MANY);
        hint(f, 1, ONE);
        run_until_found(f, 1);
        assert_null(unit(f, 101)); /* one of an owner at a time */
        (void)sem_post(&may_end);
        run_until_found(f, 100);
        run_until_found(f, 101);
}

static void who_need_not_rest_any_more_does_not_wait_for_who_must(void **state) {
        Fixture *f = *state;
        Clock *real = clock_system();
        FakeClock fake =
                FAKE_CLOCK(real->realtime_usec(real), real->boottime_usec(real) + USEC_PER_HOUR);
        if (geteuid() != 0)
                SKIP_BECAUSE("files of other users cannot be made");
        f->clock = &fake.clock;
        start(f);
        run_until_scanned(f);
        make_units(f, 100, 2, MANY);
        make_units(f, 1, 2, ONE);
        atomic_store(&probe_usec, USEC_PER_HOUR);
        hint(f, 100, MANY);
        run_until_found(f, 100);
        atomic_store(&probe_usec, USEC_PER_SEC);
        hint(f, 101, MANY); /* waits for hours */
        hint(f, 1, ONE);
        run_until_found(f, 1);
        fake_clock_advance(&fake, USEC_PER_MINUTE);
        hint(f, 2, ONE);
        run_until_found(f, 2);
        assert_null(unit(f, 101));
        f->context.clock = real;
}

static void descriptors_that_hold_files_are_bounded_by_owner(void **state) {
        Fixture *f = *state;
        if (geteuid() != 0)
                SKIP_BECAUSE("files of other users cannot be made");
        for (unsigned i = 0; i < 3; i++)
                make_unit(f, 100 + i, MANY);
        make_unit(f, 1, ONE);
        /* in the way of the directory of links, beside the source and inside it */
        assert_int_equal(symlinkat("nowhere", f->scratch->fd, ".neuron-collectd"), 0);
        assert_int_equal(symlinkat("nowhere", f->scratch->fd, "jobs/.neuron-collectd"), 0);
        f->context.held = (Bound){ .what = "held files", .max = 2, .max_each = 1 };
        start(f);
        Bound *held = &f->context.held;
        for (uint64_t until = deadline();
             held->n_refused == 0 || bound_amount(held, &(Owner){ .uid = ONE }) == 0;)
                run_some(f, until);
        assert_int_equal(held->total, 2);
        assert_int_equal(unit(f, 1)->unit.held.n, 1);
}

static uint64_t n_new(Fixture *f, uid_t uid) {
        return bound_amount(&f->context.new_units, &(Owner){ .uid = uid });
}

static void more_new_units_of_one_owner_than_a_minute_allows_wait(void **state) {
        Fixture *f = *state;
        char path[PATH_MAX + 64];
        if (geteuid() != 0)
                SKIP_BECAUSE("files of other users cannot be made");
        make_units(f, 100, 3, MANY);
        make_unit(f, 1, ONE);
        f->context.new_units = (Bound){
                .what = "new units", .max = UINT64_MAX, .max_each = 2, .fade_usec = USEC_PER_HOUR
        };
        start(f);
        f->context.active.max = f->context.active.max_each = 100;
        run_until_active(f, ONE, 1);
        run_until_active(f, MANY, 2);
        for (uint64_t until = deadline(); f->context.new_units.n_refused == 0;)
                run_some(f, until);
        assert_int_equal(n_new(f, MANY), 2);
        assert_int_equal(n_discovered(f), 3); /* one that waits has no row */
        assert_false(intake_source_is_idle(f->source));

        make_unit(f, 7, MANY); /* what a hook reports does not wait */
        (void)snprintf(path, sizeof path, "%s/jobs/job-7", f->scratch->path);
        intake_source_on_hook_started(f->source, path, &(Owner){ .uid = MANY });
        run_until_found(f, 7);
        assert_int_equal(n_discovered(f), 4);
        assert_int_equal(bundle_set_state(f->bundles, unit(f, 7), BUNDLE_CANCELLED, NULL), 0);

        f->context.new_units.fade_usec = 1;
        intake_source_flush(f->source, false);
        run_until_active(f, MANY, 3);
        assert_int_equal(n_discovered(f), 5);
        for (uint64_t until = deadline(); !intake_source_is_idle(f->source);)
                run_some(f, until);
}

static void what_came_too_soon_is_not_scanned_for_again_at_once(void **state) {
        Fixture *f = *state;
        make_units(f, 100, 2 * MAX_OF_OWNER, geteuid()); /* more than one scan finds */
        f->context.new_units = (Bound){
                .what = "new units", .max = UINT64_MAX, .max_each = 1, .fade_usec = USEC_PER_HOUR
        };
        start(f);
        for (uint64_t until = deadline(); f->context.new_units.n_refused == 0;)
                run_some(f, until);
        for (unsigned i = 0; i < 20; i++)
                run_some(f, deadline());
        assert_int_equal(f->context.new_units.n_refused, MAX_OF_OWNER - 1); /* by one scan */
        assert_false(intake_source_is_idle(f->source));
}

static void what_is_there_when_the_intake_closes_does_not_wait(void **state) {
        Fixture *f = *state;
        make_units(f, 100, 3, geteuid());
        f->context.new_units = (Bound){
                .what = "new units", .max = UINT64_MAX, .max_each = 1, .fade_usec = USEC_PER_HOUR
        };
        start(f);
        f->context.active.max = f->context.active.max_each = 100;
        intake_source_hold(f->source, true);
        run_until_active(f, geteuid(), 3);
        for (uint64_t until = deadline(); !intake_source_is_idle(f->source);)
                run_some(f, until);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        const struct CMUnitTest tests[] = {
                TEST(units_of_one_owner_do_not_hide_anothers),
                TEST(a_scan_that_finds_too_many_has_some_of_each_owner),
                TEST(a_noted_directory_always_gets_in),
                TEST(after_a_start_what_hooks_have_named_is_charged_as_before),
                TEST(what_was_refused_is_found_when_there_is_space),
                TEST(what_was_refused_is_found_in_a_drain_too),
                TEST(a_drain_that_begins_during_a_scan_does_not_wait_for_the_next_interval),
                TEST(what_is_refused_during_a_walk_waits_for_another_scan),
                TEST(a_locked_database_is_tried_once_for_all_that_was_found),
                TEST(without_a_descriptor_a_unit_waits),
                TEST(while_a_path_of_one_owner_is_probed_another_owners_is_found),
                TEST(who_need_not_rest_any_more_does_not_wait_for_who_must),
                TEST(descriptors_that_hold_files_are_bounded_by_owner),
                TEST(more_new_units_of_one_owner_than_a_minute_allows_wait),
                TEST(what_came_too_soon_is_not_scanned_for_again_at_once),
                TEST(what_is_there_when_the_intake_closes_does_not_wait),
        };
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGIO); /* see fs_check_writer() */
        if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
                return 1;
        log_setup(LOG_FORMAT_TEXT, LOG_CRIT);
        return cmocka_run_group_tests_name("agent/intake_active_units", tests, NULL, NULL);
}
