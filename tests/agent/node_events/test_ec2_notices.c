/* agent/notices: what EC2's documents say, what is asked for when, what is news, and where nobody
 * is asked at all. */
#include "agent/node_events/ec2_notices.h"

#include <errno.h>
#include <string.h>

#include "tests/harness/unit.h"

#include "tests/lib/base/scratch.h"

#define SEC(n) ((n)*USEC_PER_SEC)

/* The examples of the EC2 User Guide. */
#define SPOT "{\"action\": \"stop\", \"time\": \"2017-09-18T08:22:00Z\"}"
#define SPOT_USEC (UINT64_C(1505722920) * USEC_PER_SEC)
#define REBOOT                                                                                     \
        "{\"NotBefore\" : \"21 Jan 2019 09:00:43 GMT\", \"Code\" : \"system-reboot\", "            \
        "\"Description\" : \"scheduled reboot\", \"EventId\" : "                                   \
        "\"instance-event-0d59937288b749b32\", "                                                   \
        "\"NotAfter\" : \"21 Jan 2019 09:17:23 GMT\", \"State\" : \"active\"}"
#define REBOOT_USEC (UINT64_C(1548061243) * USEC_PER_SEC)
#define REBALANCE "{\"noticeTime\": \"2020-11-05T08:22:00Z\"}"

static int parse(NoticeKind kind, const char *body, Notice *ret) {
        return notice_parse(kind, body, strlen(body), ret);
}

static void assert_notice(const Notice *n, const char *action, uint64_t when_usec) {
        assert_string_equal(n->action, action);
        assert_true(n->when_usec == when_usec);
}

static void the_documented_answers_are_understood(void **state) {
        Notice n;

        assert_int_equal(parse(NOTICE_SPOT, SPOT "\n", &n), 1);
        assert_int_equal(n.kind, NOTICE_SPOT);
        assert_notice(&n, "stop", SPOT_USEC);
        assert_int_equal(parse(NOTICE_MAINTENANCE, "[ \n" REBOOT " \n]", &n), 1);
        assert_int_equal(n.kind, NOTICE_MAINTENANCE);
        assert_notice(&n, "system-reboot", REBOOT_USEC);
        assert_int_equal(parse(NOTICE_REBALANCE, REBALANCE, &n), 1);
        assert_int_equal(n.kind, NOTICE_REBALANCE);
        assert_notice(&n, "rebalance", 0);
}

static void nothing_announced_is_no_fault(void **state) {
        Notice n = { .action = "untouched" };

        for (NoticeKind kind = 0; kind < N_NOTICE_KINDS; kind++) {
                assert_int_equal(notice_parse(kind, "", 0, &n), 0);
                assert_int_equal(parse(kind, " \r\n\t", &n), 0);
        }
        assert_int_equal(parse(NOTICE_MAINTENANCE, "[]", &n), 0);
        assert_string_equal(n.action, "untouched");
}

static void an_end_whose_time_nobody_can_read_is_still_an_end(void **state) {
        Notice n;

        assert_int_equal(parse(NOTICE_SPOT, "{\"action\": \"hibernate\"}", &n), 1);
        assert_notice(&n, "hibernate", 0);
        assert_int_equal(parse(NOTICE_SPOT, "{\"action\": \"terminate\", \"time\": \"soon\"}", &n),
                         1);
        assert_notice(&n, "terminate", 0);
}

static void of_several_events_the_earliest_active_one_counts(void **state) {
        Notice n;

        assert_int_equal(
                parse(NOTICE_MAINTENANCE,
                      "[{\"Code\":\"a\",\"State\":\"active\",\"NotBefore\":\"3 Feb 2026 00:00:00 "
                      "GMT\"},"
                      "{\"Code\":\"b\",\"State\":\"completed\",\"NotBefore\":\"01 Jan 2026 "
                      "00:00:00 GMT\"},"
                      "{\"Code\":\"c\",\"State\":\"active\",\"NotBefore\":\"2 Feb 2026 00:00:00 "
                      "GMT\"},"
                      "{\"Code\":\"d\",\"State\":\"active\",\"NotBefore\":\"yesterday\"}]",
                      &n),
                1);
        assert_notice(&n, "c", UINT64_C(1769990400) * USEC_PER_SEC);
        assert_int_equal(parse(NOTICE_MAINTENANCE,
                               "[{\"Code\":\"b\",\"State\":\"canceled\",\"NotBefore\":\"x\"}]", &n),
                         0);
}

static void garbage_is_no_announcement(void **state) {
        static const struct {
                NoticeKind kind;
                const char *body;
        } cases[] = {
                { NOTICE_SPOT, "<html>not found</html>" },
                { NOTICE_SPOT, "[]" },
                { NOTICE_SPOT, "null" },
                { NOTICE_SPOT, "{}" },
                { NOTICE_SPOT, SPOT "}" },
                { NOTICE_SPOT, "{\"action\": \"\"}" },
                { NOTICE_SPOT, "{\"action\": 7}" },
                { NOTICE_SPOT, "{\"action\": \"stop\", \"action\": \"go\"}" },
                { NOTICE_SPOT, "{\"action\": \"stop\\nnow\"}" },
                { NOTICE_SPOT, "{\"action\": \"\\u001b[2J\"}" },
                { NOTICE_SPOT, "{\"action\": \"abcdefghijklmnopqrstuvwxyz012345\"}" },
                { NOTICE_MAINTENANCE, "{}" },
                { NOTICE_MAINTENANCE, REBOOT },
                { NOTICE_MAINTENANCE, "[7, null, \"x\"]" },
                { NOTICE_MAINTENANCE, "[{\"Code\":\"a\",\"State\":\"active\"}]" },
                { NOTICE_MAINTENANCE,
                  "[{\"Code\":\"a\",\"State\":\"active\",\"NotBefore\":\"31 Feb 2026 00:00:00 "
                  "GMT\"}]" },
                { NOTICE_MAINTENANCE,
                  "[{\"Code\":\"a\",\"State\":\"active\",\"NotBefore\":\"21 Jan 2019 09:00:43 "
                  "CET\"}]" },
                { NOTICE_REBALANCE, "{}" },
                { NOTICE_REBALANCE, "{\"noticeTime\": \"now\"}" },
        };
        Notice n;

        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                if (parse(cases[i].kind, cases[i].body, &n) != -EINVAL)
                        fail_msg("taken: %s", cases[i].body);
}

static void more_than_64_kib_are_not_read(void **state) {
        _cleanup_free_ char *body = malloc(65 * KIB);
        Notice n;

        assert_non_null(body);
        memset(body, ' ', 65 * KIB);
        memcpy(body, SPOT, strlen(SPOT));
        assert_int_equal(notice_parse(NOTICE_SPOT, body, 64 * KIB, &n), 1);
        assert_int_equal(notice_parse(NOTICE_SPOT, body, 64 * KIB + 1, &n), -EINVAL);
}

/* ---- what is asked when ---- */

static NoticeChange handle_answer(NoticeSchedule *s, NoticeAnswer answer, uint64_t now_usec) {
        return notice_schedule_handle(s, &answer, now_usec);
}

static void an_hour_of_silence_costs_so_many_requests(void **state) {
        NoticeSchedule s = { 0 };
        unsigned n[N_NOTICE_KINDS] = { 0 };
        uint64_t now = SEC(1000), end = now + SEC(3600), due;

        for (;;) {
                NoticeKind kind = notice_schedule_next(&s, &due);
                now = MAX(now, due);
                if (now >= end)
                        break;
                n[kind]++;
                assert_int_equal(handle_answer(&s, (NoticeAnswer){ kind, 404, NULL }, now),
                                 NOTICE_UNCHANGED);
        }
        assert_int_equal(n[NOTICE_SPOT], 720);
        assert_int_equal(n[NOTICE_MAINTENANCE], 60);
        assert_int_equal(n[NOTICE_REBALANCE], 60);
}

static void a_service_that_does_not_answer_is_asked_ever_more_rarely(void **state) {
        static const uint64_t waits[] = { 10, 20, 40, 80, 160, 300, 300, 300 };
        NoticeSchedule s = { 0 };
        uint64_t now = 0, due;

        for (size_t i = 0; i < ELEMENTSOF(waits); i++) {
                assert_int_equal(handle_answer(&s, (NoticeAnswer){ NOTICE_SPOT, 0, NULL }, now), 0);
                assert_true(s.due_usec[NOTICE_SPOT] == now + SEC(waits[i]));
                now = s.due_usec[NOTICE_SPOT];
        }
        assert_true(notice_schedule_is_failing(&s));
        s.n_failures[NOTICE_SPOT] = 4000000000; /* no overflow, however long it lasts */
        assert_int_equal(handle_answer(&s, (NoticeAnswer){ NOTICE_SPOT, 503, NULL }, now), 0);
        assert_true(s.due_usec[NOTICE_SPOT] == now + SEC(300));
        assert_int_equal(handle_answer(&s, (NoticeAnswer){ NOTICE_SPOT, 404, NULL }, now), 0);
        assert_false(notice_schedule_is_failing(&s));
        assert_true(s.due_usec[NOTICE_SPOT] == now + SEC(5));
        /* the others were never put off */
        assert_int_not_equal(notice_schedule_next(&s, &due), NOTICE_SPOT);
        assert_true(due == 0);
}

static void each_notice_is_reported_once_and_again_when_it_changes(void **state) {
        NoticeSchedule s = { 0 };

        assert_int_equal(handle_answer(&s, (NoticeAnswer){ NOTICE_SPOT, 200, SPOT }, 0),
                         NOTICE_ANNOUNCED);
        assert_notice(&s.announced[NOTICE_SPOT], "stop", SPOT_USEC);
        assert_int_equal(handle_answer(&s, (NoticeAnswer){ NOTICE_SPOT, 200, SPOT " " }, 1),
                         NOTICE_UNCHANGED);
        assert_int_equal(
                handle_answer(&s, (NoticeAnswer){ NOTICE_MAINTENANCE, 200, "[" REBOOT "]" }, 2),
                NOTICE_ANNOUNCED);
        assert_int_equal(handle_answer(&s,
                                       (NoticeAnswer){ NOTICE_SPOT, 200,
                                                       "{\"action\": \"terminate\", \"time\": "
                                                       "\"2017-09-18T08:22:00Z\"}" },
                                       3),
                         NOTICE_ANNOUNCED);
        assert_notice(&s.announced[NOTICE_SPOT], "terminate", SPOT_USEC);
        assert_int_equal(handle_answer(&s,
                                       (NoticeAnswer){ NOTICE_SPOT, 200,
                                                       "{\"action\": \"terminate\", \"time\": "
                                                       "\"2017-09-18T08:23:00Z\"}" },
                                       4),
                         NOTICE_ANNOUNCED);
        assert_notice(&s.announced[NOTICE_SPOT], "terminate", SPOT_USEC + SEC(60));
}

static void only_an_answer_withdraws_a_notice(void **state) {
        static const NoticeAnswer none[] = { { NOTICE_SPOT, 0, NULL },
                                             { NOTICE_SPOT, 401, NULL },
                                             { NOTICE_SPOT, 500, NULL },
                                             { NOTICE_SPOT, 200, "garbage" } };
        NoticeSchedule s = { 0 };

        assert_int_equal(handle_answer(&s, (NoticeAnswer){ NOTICE_SPOT, 404, NULL }, 0),
                         NOTICE_UNCHANGED);
        assert_int_equal(handle_answer(&s, (NoticeAnswer){ NOTICE_SPOT, 200, SPOT }, 0),
                         NOTICE_ANNOUNCED);
        for (size_t i = 0; i < ELEMENTSOF(none); i++)
                assert_int_equal(handle_answer(&s, none[i], 0), NOTICE_UNCHANGED);
        assert_int_equal(handle_answer(&s, (NoticeAnswer){ NOTICE_SPOT, 404, NULL }, 0),
                         NOTICE_WITHDRAWN);
        assert_int_equal(handle_answer(&s, (NoticeAnswer){ NOTICE_SPOT, 404, NULL }, 0),
                         NOTICE_UNCHANGED);
        assert_int_equal(handle_answer(&s, (NoticeAnswer){ NOTICE_SPOT, 200, SPOT }, 0),
                         NOTICE_ANNOUNCED);
        assert_int_equal(
                handle_answer(&s, (NoticeAnswer){ NOTICE_MAINTENANCE, 200, "[" REBOOT "]" }, 0),
                NOTICE_ANNOUNCED);
        assert_int_equal(handle_answer(&s, (NoticeAnswer){ NOTICE_MAINTENANCE, 200, "[]" }, 0),
                         NOTICE_WITHDRAWN);
}

/* ---- where it is asked at all ---- */

static bool is_asked(const char *sysfs_root, const char *const *environment) {
        sd_event *event = NULL;
        Ec2Notices *n = NULL;

        assert_true(sd_event_new(&event) >= 0);
        assert_int_equal(
                ec2_notices_new(&n, &(Ec2NoticesOptions){ .event = event,
                                                          .clock = clock_system(),
                                                          .environment = (char *const *)environment,
                                                          .sysfs_root = sysfs_root }),
                0);
        bool asked = n != NULL;
        ec2_notices_free(n);
        sd_event_unref(event);
        return asked;
}

static void make_dmi(const Scratch *s) {
        static const char *const directories[] = { "devices", "devices/virtual",
                                                   "devices/virtual/dmi",
                                                   "devices/virtual/dmi/id" };

        for (size_t i = 0; i < ELEMENTSOF(directories); i++)
                assert_int_equal(mkdirat(s->fd, directories[i], 0755), 0);
}

static void put(const Scratch *s, const char *name, const char *text) {
        char path[128];

        (void)snprintf(path, sizeof path, "devices/virtual/dmi/id/%s", name);
        assert_int_equal(scratch_write(s, path, text), 0);
}

static void only_an_ec2_instance_is_asked(void **state) {
        static const char *const nothing[] = { NULL };
        static const char *const disabled[] = { "AWS_EC2_METADATA_DISABLED=true",
                                                "AWS_EC2_METADATA_SERVICE_ENDPOINT=http://"
                                                "127.0.0.1:1",
                                                NULL };
        static const char *const given[] = { "AWS_EC2_METADATA_SERVICE_ENDPOINT=http://127.0.0.1:1",
                                             NULL };
        static const char *const misspelt[] = { "AWS_EC2_METADATA_SERVICE_ENDPOINT=169.254.169.254",
                                                NULL };
        const Scratch *s = *state;

        assert_false(is_asked(s->path, nothing));
        assert_true(is_asked(s->path, given));
        assert_false(is_asked(s->path, disabled));
        assert_false(is_asked(s->path, misspelt));
        make_dmi(s);
        put(s, "sys_vendor", "QEMU\n");
        put(s, "board_asset_tag", "none\n");
        assert_false(is_asked(s->path, nothing));
        put(s, "board_asset_tag", "i-0a1b2c3d4e5f60718\n");
        assert_true(is_asked(s->path, nothing));
        assert_false(is_asked(s->path, disabled));
        put(s, "board_asset_tag", "none\n");
        put(s, "sys_vendor", "Amazon EC2\n");
        assert_true(is_asked(s->path, nothing));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(the_documented_answers_are_understood),
                cmocka_unit_test(nothing_announced_is_no_fault),
                cmocka_unit_test(an_end_whose_time_nobody_can_read_is_still_an_end),
                cmocka_unit_test(of_several_events_the_earliest_active_one_counts),
                cmocka_unit_test(garbage_is_no_announcement),
                cmocka_unit_test(more_than_64_kib_are_not_read),
                cmocka_unit_test(an_hour_of_silence_costs_so_many_requests),
                cmocka_unit_test(a_service_that_does_not_answer_is_asked_ever_more_rarely),
                cmocka_unit_test(each_notice_is_reported_once_and_again_when_it_changes),
                cmocka_unit_test(only_an_answer_withdraws_a_notice),
                cmocka_unit_test_setup_teardown(only_an_ec2_instance_is_asked, scratch_setup,
                                                scratch_teardown),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
