/* agent/hooknotes/rules.c: what a stranger's note may request. */
#include <string.h>

#include "tests/harness/unit.h"

#include "agent/hooknotes/rules.h"
#include "tests/agent/hooknotes/note_config.h"
#include "tests/harness/fake_clock.h"

static void a_prefix_below_the_destination_s_own_is_granted(void **state) {
        assert_null(hooknotes_check_prefix(&config, "s3://bucket/neuron"));
        assert_null(hooknotes_check_prefix(&config, "s3://bucket/neuron/"));
        assert_null(hooknotes_check_prefix(&config, "s3://bucket/neuron/team-a/20260527-051233"));
        assert_null(hooknotes_check_prefix(&config, "s3://all-mine/anything"));
        assert_null(hooknotes_check_prefix(&config, "s3://all-mine"));
}

static void expect_refused(const char *prefix, const char *about) {
        const char *why = hooknotes_check_prefix(&config, prefix);
        assert_non_null(why);
        if (!strstr(why, about))
                fail_msg("'%s': '%s' does not speak of '%s'", prefix, why, about);
}

static void prefixes_elsewhere_and_tricks_are_refused(void **state) {
        expect_refused("s3://bucket/neuron-evil", "not below");
        expect_refused("s3://bucket/neuro", "not below");
        expect_refused("s3://bucket", "not below");
        expect_refused("s3://bucket/", "not below");
        expect_refused("s3://other/neuron/x", "no configured destination");
        expect_refused("s3://bucketx/neuron/x", "no configured destination");
        expect_refused("s3://bucke/neuron/x", "no configured destination");
        expect_refused("s3://bucket/neuron/../x", "dot");
        expect_refused("s3://bucket/neuron/.incidents/x", "dot");
        expect_refused("s3://bucket/neuron//x", "empty component");
        expect_refused("s3://bucket//neuron/x", "empty component");
        expect_refused("s3://bucket/neuron/a\nb", "bytes");
        expect_refused("s3://bucket/neuron/\xff", "bytes");
        expect_refused("http://bucket/neuron", "form");
        expect_refused("s3:///neuron", "form");
        expect_refused("bucket/neuron", "form");
        expect_refused("", "form");
        char text[NOTE_PREFIX_MAX + 32] = "s3://bucket/neuron/";
        memset(text + strlen(text), 'a', NOTE_PREFIX_MAX);
        expect_refused(text, "512");
}

static void allow_prefixes_replace_the_destination_s_own(void **state) {
        char *items[] = { (char *)"s3://bucket/team/", (char *)"s3://all-mine",
                          (char *)"s3://foreign/x", NULL };
        config.hook.allow_prefixes.items = items;
        config.hook.allow_prefixes.n = 3;
        assert_null(hooknotes_check_prefix(&config, "s3://bucket/team"));
        assert_null(hooknotes_check_prefix(&config, "s3://bucket/team/a/b"));
        assert_null(hooknotes_check_prefix(&config, "s3://all-mine/x"));
        expect_refused("s3://bucket/neuron/a", "allow_prefixes");
        expect_refused("s3://bucket/teams", "allow_prefixes");
        expect_refused("s3://foreign/x", "no configured destination"); /* nothing goes there */
        config.hook.allow_prefixes = (StringList){ 0 };
}

static const Owner me = { .uid = ME }, other = { .uid = ME + 1 };

static bool consume(Bound *b, const Owner *o, unsigned n) {
        bool is_granted = true;
        for (unsigned i = 0; i < n; i++)
                is_granted = bound_spend(b, o, 1) == BOUND_OK && is_granted;
        return is_granted;
}

static void a_user_has_a_burst_and_then_one_a_second(void **state) {
        FakeClock fake = FAKE_CLOCK(0, 5000000);
        Bound b;
        note_rate_init(&b, &fake.clock);
        assert_true(consume(&b, &me, NOTE_BURST));
        assert_false(consume(&b, &me, 1));
        assert_true(consume(&b, &other, 1)); /* nobody else pays for it */
        assert_false(consume(&b, &me, 1));
        fake_clock_advance(&fake, NOTE_REFILL_USEC);
        assert_true(consume(&b, &me, 1));
        fake_clock_advance(&fake, (uint64_t)2 * NOTE_BURST * NOTE_REFILL_USEC);
        assert_true(consume(&b, &me, NOTE_BURST));
        assert_false(consume(&b, &me, 1));
        bound_done(&b);
}

static void one_who_has_sent_all_the_notes_keeps_nobody_out(void **state) {
        FakeClock fake = FAKE_CLOCK(0, 1);
        Bound b;
        note_rate_init(&b, &fake.clock);
        assert_true(consume(&b, &me, NOTE_BURST));
        assert_true(consume(&b, &other, NOTE_BURST / 2));
        for (uid_t uid = 100000; uid < 100100; uid++)
                assert_true(consume(&b, &(Owner){ .uid = uid }, 1));
        assert_false(consume(&b, &me, 1));
        bound_done(&b);
}

static void what_a_hook_reports_at_its_end_is_one_of_four_sentences(void **state) {
        static const struct {
                const char *text;
                bool is_known, without_record, without_snapshot;
        } said[] = {
                { "finished", true, false, false },
                { "finished without record", true, true, false },
                { "finished without snapshot", true, false, true },
                { "finished without record snapshot", true, true, true },
                { "finished without", false, false, false },
                { "finished ", false, false, false },
                { "finished without snapshot record", false, false, false },
                { "finished without recorder", false, false, false },
                { "finishe", false, false, false },
                { "", false, false, false },
        };
        for (size_t i = 0; i < ELEMENTSOF(said); i++) {
                HookFinish finish = { 0 };
                assert_int_equal(hook_finish_parse(said[i].text, strlen(said[i].text), &finish),
                                 said[i].is_known);
                assert_int_equal(finish.without_record, said[i].without_record);
                assert_int_equal(finish.without_snapshot, said[i].without_snapshot);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(what_a_hook_reports_at_its_end_is_one_of_four_sentences),
                cmocka_unit_test(a_prefix_below_the_destination_s_own_is_granted),
                cmocka_unit_test(prefixes_elsewhere_and_tricks_are_refused),
                cmocka_unit_test(allow_prefixes_replace_the_destination_s_own),
                cmocka_unit_test(a_user_has_a_burst_and_then_one_a_second),
                cmocka_unit_test(one_who_has_sent_all_the_notes_keeps_nobody_out),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
