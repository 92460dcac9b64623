/* attached_sweep: what is attached to units of a source that is not configured any more goes when
 * nobody needs it. */

#include "tests/harness/unit.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent/intake/attached.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "tests/agent/hooknotes/attach_one.h"
#include "tests/lib/base/scratch.h"

#define UNIT "/tmp/dumps/1"
#define ID "neuron-core-dump-20260527T051233-0123456789ab"

typedef struct Fixture {
        Scratch *scratch;
        sd_event *event;
        Store *store;
        BundleTable *bundles;
        Attachments *attachments;
        const char *configured;
} Fixture;

static int setup(void **state) {
        void *scratch = NULL;
        Fixture *f = calloc(1, sizeof *f);
        if (!f || scratch_setup(&scratch) < 0)
                return -1;
        f->scratch = scratch;
        f->configured = "another";
        *state = f;
        return sd_event_new(&f->event) < 0 ||
                               store_open(&f->store, f->scratch->path, NULL, NULL) != 0 ||
                               bundle_table_new(&f->bundles, f->store, clock_system(),
                                                &(BundleTableCallbacks){ 0 }) < 0 ||
                               attachments_new(&f->attachments, f->event, f->scratch->path) < 0
                       ? -1
                       : 0;
}

static int teardown(void **state) {
        Fixture *f = *state;
        void *scratch = f->scratch;
        attachments_free(f->attachments);
        bundle_table_free(f->bundles);
        store_close(f->store);
        sd_event_unref(f->event);
        free(f);
        return scratch_teardown(&scratch);
}

static void put(const Fixture *f, const char *name) {
        _cleanup_close_ int fd = memfd_create("snapshot", MFD_CLOEXEC);
        assert_int_equal(write(fd, "{}", 2), 2);
        assert_int_equal(attach_one(f->attachments, f->event,
                                    &(AttachmentPlace){ "former", UNIT, name }, fd),
                         0);
}

/* As the first delivery of a bundle does. */
static void give(const Fixture *f) {
        int fd = attachments_assign(f->attachments, "former", UNIT, ID);
        assert_true(fd >= 0);
        (void)close(fd); /* a directory */
}

static bool is_given(const Fixture *f) {
        int fd = attachments_open_assigned(f->attachments, "former", UNIT, ID);
        if (fd >= 0)
                (void)close(fd); /* a directory */
        return fd >= 0;
}

static size_t waiting(const Fixture *f) {
        return attachments_waiting(f->attachments, "former", UNIT, NULL);
}

static void set_bundle(const Fixture *f, BundleState state, bool is_new) {
        BundleRecord rec = {
                .id = ID, .source = strdup("former"), .path = strdup(UNIT), .state = state
        };
        assert_int_equal(is_new ? store_add(f->store, &rec) : store_update(f->store, &rec), 0);
        bundle_record_done(&rec);
}

static bool is_configured(const char *source, void *userdata) {
        const Fixture *f = userdata;
        return strcmp(source, f->configured) == 0;
}

static uint64_t ahead_usec; /* of the system's date */
static uint64_t boot_usec;

static uint64_t ahead(Clock *c) {
        (void)c;
        return clock_system()->realtime_usec(clock_system()) + ahead_usec;
}

static uint64_t boot(Clock *c) {
        (void)c;
        return boot_usec;
}

/* @param steady  of the source, which the sweep before has left */
static void sweep_steady(Fixture *f, uint64_t in_usec, ClockStep *steady) {
        Clock clock = { .realtime_usec = ahead, .boottime_usec = boot };
        IntakeContext context = { .clock = &clock,
                                  .store = f->store,
                                  .bundles = f->bundles,
                                  .attachments = f->attachments,
                                  .is_configured = is_configured,
                                  .userdata = f };
        ConfigSource config = { .name = (char *)"core-dumps" };
        SourceSpec spec = { .fixed = (char *)"/dumps" };
        IntakeSource source = {
                .context = &context, .config = &config, .spec = &spec, .attached.steady = *steady
        };
        ahead_usec = in_usec;
        attached_sweep(&source);
        *steady = source.attached.steady;
}

static void sweep(Fixture *f, uint64_t in_usec) {
        sweep_steady(f, in_usec, &(ClockStep){ 0 });
}

static void of_a_source_that_is_configured_nothing_goes(void **state) {
        Fixture *f = *state;
        put(f, "a");
        f->configured = "former";
        sweep(f, 10 * USEC_PER_DAY);
        assert_int_equal(waiting(f), 1);
}

static void what_nobody_ships_stays_for_a_day(void **state) {
        Fixture *f = *state;
        put(f, "a");
        sweep(f, USEC_PER_DAY - USEC_PER_MINUTE);
        assert_int_equal(waiting(f), 1);
        sweep(f, USEC_PER_DAY + USEC_PER_MINUTE);
        assert_int_equal(waiting(f), 0);
}

static void what_a_bundle_was_given_goes_with_it_and_not_before(void **state) {
        Fixture *f = *state;
        static const BundleState needed[] = { BUNDLE_SETTLING, BUNDLE_READY, BUNDLE_SHIPPING,
                                              BUNDLE_QUARANTINED };
        put(f, "a");
        give(f);
        put(f, "b"); /* for the supplement */
        for (size_t i = 0; i < ELEMENTSOF(needed); i++) {
                set_bundle(f, needed[i], i == 0);
                sweep(f, 10 * USEC_PER_DAY);
                assert_true(is_given(f));
                assert_int_equal(waiting(f), 1);
        }
        set_bundle(f, BUNDLE_DELIVERED, false);
        sweep(f, 0);
        assert_false(is_given(f));
        assert_int_equal(waiting(f), 1);
        sweep(f, USEC_PER_DAY + USEC_PER_MINUTE);
        assert_int_equal(waiting(f), 0);
}

static void of_a_bundle_that_nobody_knows_it_stays_for_a_day(void **state) {
        Fixture *f = *state;
        put(f, "a");
        give(f);
        sweep(f, 0);
        assert_true(is_given(f));
        sweep(f, USEC_PER_DAY + USEC_PER_MINUTE);
        assert_false(is_given(f));
}

static void a_clock_that_was_set_forward_makes_nothing_old(void **state) {
        Fixture *f = *state;
        ClockStep steady = { 0 };
        put(f, "a");
        boot_usec = USEC_PER_HOUR;
        sweep_steady(f, 0, &steady);
        sweep_steady(f, 10 * USEC_PER_DAY, &steady);
        boot_usec += USEC_PER_DAY;
        sweep_steady(f, 11 * USEC_PER_DAY, &steady);
        assert_int_equal(waiting(f), 1);
        boot_usec += 1;
        sweep_steady(f, 11 * USEC_PER_DAY, &steady);
        assert_int_equal(waiting(f), 0);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        const struct CMUnitTest tests[] = {
                TEST(of_a_source_that_is_configured_nothing_goes),
                TEST(what_nobody_ships_stays_for_a_day),
                TEST(what_a_bundle_was_given_goes_with_it_and_not_before),
                TEST(of_a_bundle_that_nobody_knows_it_stays_for_a_day),
                TEST(a_clock_that_was_set_forward_makes_nothing_old),
        };
        return cmocka_run_group_tests_name("agent/orphans", tests, NULL, NULL);
}
