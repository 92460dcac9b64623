/* What limits.* of a configuration becomes, and what is asked before a source is read. */
#include "agent/delivery/rate_limits.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#include "tests/harness/unit.h"

#include "tests/harness/fake_clock.h"

static RateLimits *limits_for(Clock *clock, const Config *config) {
        RateLimits *l = NULL;

        assert_int_equal(rate_limits_new(&l, clock, config), 0);
        return l;
}

static void what_is_not_limited_has_no_throttle(void **state) {
        Config config = { .limits = { .compression_threads = 1 } };
        RateLimits *l = limits_for(clock_system(), &config);
        ReaderLimits turn = { .limits = l }, none = { 0 };

        assert_null(l->upload);
        assert_null(l->requests);
        assert_null(l->read);
        assert_null(l->pressure); /* a number of threads is an order */
        rate_limits_before_read(&turn, SIZE_MAX);
        rate_limits_before_read(&none, SIZE_MAX);
        assert_ptr_equal(rate_limits_ref(l), l);
        assert_null(rate_limits_unref(l));
        assert_null(rate_limits_unref(l));
        assert_null(rate_limits_unref(NULL));
}

static void each_limit_has_a_throttle_of_its_own(void **state) {
        Config config = { .limits = { .upload_rate = 8 * MIB,
                                      .request_rate = 50,
                                      .read_rate = MIB,
                                      .compression_threads = 1 } };
        FakeClock fake = FAKE_CLOCK(0, USEC_PER_HOUR);
        RateLimits *l = limits_for(&fake.clock, &config);

        assert_int_equal(ratelimit_rate(l->upload), 8 * MIB);
        assert_int_equal(ratelimit_rate(l->requests), 50);
        assert_int_equal(ratelimit_rate(l->read), MIB);
        for (int i = 0; i < 50; i++) /* a second's worth */
                assert_int_equal(ratelimit_book(l->requests, 1, NULL), 0);
        assert_in_range(ratelimit_book(l->requests, 1, NULL), 1, 20000);
        assert_int_equal(ratelimit_book(l->upload, 8 * MIB / 40, NULL), 0);
        assert_in_range(ratelimit_book(l->upload, 8, NULL), 1, 10);
        rate_limits_unref(l);
}

static void windows_alone_limit_too(void **state) {
        ConfigWindow windows[] = { { .from_minute = 0, .to_minute = 12 * 60, .rate = MIB },
                                   { .from_minute = 12 * 60, .to_minute = 0, .rate = 2 * MIB } };
        Config config = { .limits = { .upload_windows = windows,
                                      .n_upload_windows = 2,
                                      .compression_threads = 1 } };
        FakeClock fake = FAKE_CLOCK(6 * USEC_PER_HOUR, USEC_PER_HOUR);
        RateLimits *l;

        assert_int_equal(setenv("TZ", "UTC", 1), 0);
        tzset();
        l = limits_for(&fake.clock, &config);
        memset(windows, 0, sizeof windows); /* they were copied */
        assert_int_equal(ratelimit_rate(l->upload), MIB);
        fake_clock_advance(&fake, 6 * USEC_PER_HOUR);
        assert_int_equal(ratelimit_rate(l->upload), 2 * MIB);
        rate_limits_unref(l);
}

static void reading_keeps_its_rate(void **state) {
        Config config = { .limits = { .read_rate = MIB, .compression_threads = 1 } };
        Clock *clock = clock_system();
        RateLimits *l = limits_for(clock, &config);
        ReaderLimits turn = { .limits = l };
        uint64_t begin = clock->boottime_usec(clock);

        for (int i = 0; i < 4; i++)
                rate_limits_before_read(&turn, 128 * KIB);
        assert_true(clock->boottime_usec(clock) - begin >= 470 * USEC_PER_MSEC);
        rate_limits_unref(l);
}

static void *read_much(void *userdata) {
        rate_limits_before_read(userdata, GIB);
        return NULL;
}

static void an_abort_ends_the_pause(void **state) {
        Config config = { .limits = { .read_rate = MIB, .compression_threads = 1 } };
        Clock *clock = clock_system();
        RateLimits *l = limits_for(clock, &config);
        atomic_bool abort = false;
        ReaderLimits turn = { .limits = l, .abort = &abort };
        pthread_t thread;

        assert_int_equal(pthread_create(&thread, NULL, read_much, &turn), 0); /* 17 minutes */
        assert_true(ratelimit_sleep(50 * USEC_PER_MSEC, NULL));
        atomic_store(&abort, true);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_int_equal(ratelimit_book(l->read, 1, NULL), 0); /* it was given back */
        rate_limits_unref(l);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(what_is_not_limited_has_no_throttle),
                cmocka_unit_test(each_limit_has_a_throttle_of_its_own),
                cmocka_unit_test(windows_alone_limit_too),
                cmocka_unit_test(reading_keeps_its_rate),
                cmocka_unit_test(an_abort_ends_the_pause),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
