#include "lib/event/timer.h"

#include <stdbool.h>

#include "tests/harness/unit.h"

typedef struct Fixture {
        sd_event *event;
        sd_event_source *timer;
        unsigned n_calls, n_again; /* n_again: so often the handler arms it again */
} Fixture;

static int on_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        Fixture *f = userdata;
        (void)usec;
        f->n_calls++;
        if (f->n_again == 0)
                return 0;
        f->n_again--;
        return timer_rearm(source, 0);
}

static int set_up(void **state) {
        static Fixture f;
        f = (Fixture){ 0 };
        *state = &f;
        return sd_event_new(&f.event);
}

static int tear_down(void **state) {
        Fixture *f = *state;
        sd_event_source_disable_unref(f->timer);
        sd_event_unref(f->event);
        return 0;
}

static int arm(Fixture *f, uint64_t usec) {
        return timer_arm(&f->timer, &(TimerOptions){ .event = f->event,
                                                     .usec = usec,
                                                     .slack_usec = 1,
                                                     .handler = on_timer,
                                                     .userdata = f });
}

/* @return whether something happened within a minute */
static bool run(Fixture *f) {
        return sd_event_run(f->event, UINT64_C(60000000)) > 0;
}

static bool is_idle(Fixture *f) {
        return sd_event_run(f->event, 0) == 0;
}

static void a_timer_goes_off_once_for_each_time_it_is_armed(void **state) {
        Fixture *f = *state;
        for (unsigned i = 1; i <= 3; i++) {
                const sd_event_source *before = f->timer;
                assert_int_equal(arm(f, 0), 0);
                assert_true(i == 1 || f->timer == before); /* made once */
                assert_true(run(f));
                assert_int_equal(f->n_calls, i);
                assert_true(is_idle(f));
        }
}

static void a_later_order_changes_when_it_goes_off(void **state) {
        Fixture *f = *state;
        assert_int_equal(arm(f, UINT64_C(3600000000)), 0);
        assert_true(is_idle(f));
        assert_int_equal(arm(f, 0), 0);
        assert_true(run(f));
        assert_int_equal(f->n_calls, 1);
}

static void a_timer_can_be_armed_by_its_own_handler(void **state) {
        Fixture *f = *state;
        f->n_again = 2;
        assert_int_equal(arm(f, 0), 0);
        for (unsigned i = 1; i <= 3; i++) {
                assert_true(run(f));
                assert_int_equal(f->n_calls, i);
        }
        assert_true(is_idle(f));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(a_timer_goes_off_once_for_each_time_it_is_armed,
                                                set_up, tear_down),
                cmocka_unit_test_setup_teardown(a_later_order_changes_when_it_goes_off, set_up,
                                                tear_down),
                cmocka_unit_test_setup_teardown(a_timer_can_be_armed_by_its_own_handler, set_up,
                                                tear_down),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
