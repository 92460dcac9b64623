/* The documents of a failure: what is written reads back, and what others write is bounded. */
#include "tests/harness/unit.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "agent/peers/incidents_name.h"
#include "agent/peers/record.h"
#include "lib/base/strbuf.h"

#define KEY "0123456789abcdef"
#define OPENED INT64_C(1780000000123456)

static const Decision full_decision = {
        .agreed = AGREED_STORE,
        .key = KEY,
        .n = 7,
        .cluster_id = "d99e36ea74c263ca",
        .date_time = "20260527-051233",
        .derived = true,
        .created_by = "i-0a1b2c3d4e5f60718",
        .world_size = 64,
        .settle_usec = 5000000,
};

static Claim full_claim(void) {
        Claim c;
        memset(&c, 0, sizeof c);
        strcpy(c.boot_id, "0123456789abcdef0123456789abcdef");
        strcpy(c.instance_id, "i-0a");
        strcpy(c.cluster_id, "d99e36ea74c263ca");
        strcpy(c.date_time, "20260527-051233");
        strcpy(c.bundle, "neuron-core-dump-20260527T051233-0c21fa967905");
        strcpy(c.error_location, "nrt_execute \"quoted\" \\ {,}");
        c.pid = 4242;
        c.start_ticks = 123456789;
        c.revision = 3;
        c.rank = 17;
        c.world_size = 64;
        c.state = CLAIM_FAILED;
        c.bundle_state = CLAIM_BUNDLE_DELIVERED;
        c.has_error = true;
        c.error_code = -1202;
        c.started_usec = OPENED - 3600000000;
        c.event_usec = OPENED;
        return c;
}

/* A process of which nothing is known but that it was there. */
static Claim bare_claim(uint32_t pid) {
        Claim c;
        memset(&c, 0, sizeof c);
        strcpy(c.boot_id, "b");
        strcpy(c.instance_id, "i-0a");
        c.pid = pid;
        c.rank = c.world_size = -1;
        c.started_usec = INT64_MIN;
        c.event_usec = OPENED + 1;
        return c;
}

static Record record_of(const Claim *claims, size_t n) {
        Record r = {
                .key = KEY, .n = 7, .instance_id = "i-0a", .revision = 9, .uncertainty_usec = 512000
        };
        for (size_t i = 0; i < n; i++)
                assert_true(claim_set_add(&r.claims, &claims[i]) >= 0);
        return r;
}

#define DUMP "neuron-core-dump-20260527T051233-0c21fa967905"
#define SNAPSHOT "snapshot-20260527T051240-ffffffffffff"
#define OBJECT "s3://bucket/\\x7f, \"quoted\"/\xc3\xa9.tar.zst"

static void add_bundles(Record *r) {
        assert_int_equal(node_bundles_add(&r->bundles, DUMP, BUNDLE_DELIVERED, OBJECT), 0);
        assert_int_equal(node_bundles_add(&r->bundles, SNAPSHOT, BUNDLE_SETTLING, NULL), 0);
        r->bundles.n_left_out = 3;
}

static char *full_record_text(void) {
        size_t n;
        Claim claims[] = { full_claim(), bare_claim(1) };
        Record r = record_of(claims, ELEMENTSOF(claims));
        add_bundles(&r);
        char *text = record_format(&r, &n);
        assert_non_null(text);
        assert_int_equal(strlen(text), n);
        record_done(&r);
        return text;
}

static char *full_decision_text(const char *job) {
        size_t n;
        char *text = decision_format(&full_decision, job, &n);
        assert_non_null(text);
        assert_int_equal(strlen(text), n);
        return text;
}

/* @return a copy with one occurrence replaced, which must be there */
static char *replace(const char *text, const char *what, const char *by) {
        const char *at = strstr(text, what);
        if (!at)
                fail_msg("no %s in %s", what, text);
        return strbuf_format("%.*s%s%s", (int)(at - text), text, by, at + strlen(what));
}

/* ---- decisions ---- */

static void a_decision_reads_back_as_it_was_written(void **state) {
        const char *const jobs[] = { "", "torchrun:job-1/0" };
        for (size_t i = 0; i < ELEMENTSOF(jobs); i++) {
                Decision d;
                memset(&d, 0xff, sizeof d);
                _cleanup_free_ char *text = full_decision_text(jobs[i]);
                assert_int_equal(decision_parse(text, strlen(text), KEY, 7, &d), 0);
                assert_string_equal(d.key, KEY);
                assert_int_equal(d.n, 7);
                assert_int_equal(d.agreed, AGREED_STORE);
                assert_string_equal(d.cluster_id, full_decision.cluster_id);
                assert_string_equal(d.date_time, full_decision.date_time);
                assert_true(d.derived);
                assert_string_equal(d.created_by, full_decision.created_by);
                assert_int_equal(d.world_size, 64);
                assert_int_equal(d.settle_usec, 5000000);
                assert_int_equal(d.opened_usec, 0);
        }
        size_t n;
        Decision d = full_decision;
        d.world_size = -1;
        d.derived = false;
        d.agreed = AGREED_BUS;
        _cleanup_free_ char *text = decision_format(&d, "", &n);
        assert_non_null(strstr(text, "\"world_size\":null"));
        assert_non_null(strstr(text, "\"job\":null"));
        assert_int_equal(decision_parse(text, n, KEY, 7, &d), 0);
        assert_int_equal(d.world_size, -1);
        assert_int_equal(d.agreed, AGREED_BUS);
        assert_false(d.derived);
}

static void a_decision_under_another_name_is_refused(void **state) {
        Decision d;
        _cleanup_free_ char *text = full_decision_text("");
        assert_int_equal(decision_parse(text, strlen(text), KEY, 8, &d), -EINVAL);
        assert_int_equal(decision_parse(text, strlen(text), "0123456789abcdee", 7, &d), -EINVAL);
        _cleanup_free_ char *loose = replace(text, KEY, "../../etc/passwd");
        assert_int_equal(decision_parse(loose, strlen(loose), "../../etc/passwd", 7, &d), -EINVAL);
}

static void a_hostile_decision_is_refused(void **state) {
        char job[300];
        memset(job, 'j', sizeof job - 1);
        job[sizeof job - 1] = '\0';
        _cleanup_free_ char *text = full_decision_text("job"),
                            *long_job = strbuf_format("\"job\":\"%s\"", job);
        const char *const changes[][2] = {
                { "decision/1", "decision/2" },
                { "\"n\":7", "\"n\":\"7\"" },
                { "\"n\":7", "\"n\":7.0" },
                { "\"n\":7", "\"n\":4294967303" },
                { "d99e36ea74c263ca", "../../../../root" },
                { "d99e36ea74c263ca", "" },
                { "d99e36ea74c263ca", "d99e36ea74c263ca d" },
                { "d99e36ea74c263ca", "0123456789abcdef0123456789abcdef0" },
                { "\"20260527-051233\"", "\"20260527-051233/..\"" },
                { "\"20260527-051233\"", "\"20261327-051233\"" },
                { "\"20260527-051233\"", "null" },
                { "\"20260527-051233\"", "[]" },
                { "\"derived\":true", "\"derived\":1" },
                { "\"derived\":true,", "" },
                { "\"job\":\"job\"", "\"job\":7" },
                { "\"job\":\"job\"", "\"job\":\"\"" },
                { "\"job\":\"job\"", "\"job\":\"a\\u001b[31m\"" },
                { "\"job\":\"job\"", "\"job\":\"a\\u0000b\"" },
                { "\"job\":\"job\"", long_job },
                { "\"world_size\":64", "\"world_size\":0" },
                { "\"world_size\":64", "\"world_size\":-1" },
                { "\"world_size\":64", "\"world_size\":1000001" },
                { "\"world_size\":64", "\"world_size\":64.5" },
                { "\"world_size\":64", "\"world_size\":99999999999999999999" },
                { "\"settle_ms\":5000", "\"settle_ms\":-1" },
                { "\"settle_ms\":5000", "\"settle_ms\":86400001" },
                { "\"settle_ms\":5000", "\"settle_ms\":null" },
                { "\"store\"", "\"nobody\"" },
                { "\"store\"", "null" },
                { "\"i-0a1b2c3d4e5f60718\"", "\"..\"" },
                { "\"i-0a1b2c3d4e5f60718\"", "\"a/b\"" },
                { "\"i-0a1b2c3d4e5f60718\"", "\"\"" },
                { "\"n\":7", "\"n\":7,\"n\":7" },
                { "\"n\":7", "\"n\":7,\"x\":[[[[[[[[]]]]]]]]" },
                { "{", "[{" },
                { "}", "" },
                { "}", "}}" },
        };
        Decision d;
        assert_int_equal(decision_parse(text, strlen(text), KEY, 7, &d), 0);
        for (size_t i = 0; i < ELEMENTSOF(changes); i++) {
                _cleanup_free_ char *bad = replace(text, changes[i][0], changes[i][1]);
                if (decision_parse(bad, strlen(bad), KEY, 7, &d) != -EINVAL)
                        fail_msg("taken: %s", bad);
        }
        for (size_t n = 0; n + 1 < strlen(text); n++) /* but for the newline at its end */
                assert_int_equal(decision_parse(text, n, KEY, 7, &d), -EINVAL);
        _cleanup_free_ char *newer = replace(text, "\"n\":7", "\"n\":7,\"more\":[1]");
        assert_int_equal(decision_parse(newer, strlen(newer), KEY, 7, &d), 0);
        _cleanup_free_ char *large = strbuf_format("%s%*s", text, (int)DECISION_BYTES_MAX, "");
        assert_int_equal(decision_parse(large, strlen(large), KEY, 7, &d), -EINVAL);
}

/* ---- records ---- */

static void a_record_reads_back_as_it_was_written(void **state) {
        size_t n;
        Record r;
        Claim wanted[] = { full_claim(), bare_claim(1) };
        _cleanup_free_ char *text = full_record_text();
        assert_int_equal(record_parse(text, strlen(text), KEY, 7, &r), 0);
        assert_string_equal(r.key, KEY);
        assert_string_equal(r.instance_id, "i-0a");
        assert_int_equal(r.n, 7);
        assert_int_equal(r.revision, 9);
        assert_int_equal(r.uncertainty_usec, 512000);
        assert_int_equal(r.claims.n, 2);
        for (size_t i = 0; i < ELEMENTSOF(wanted); i++) {
                const Claim *c = claim_set_find(&r.claims, &wanted[i]);
                assert_non_null(c);
                assert_memory_equal(c, &wanted[i], sizeof *c);
        }
        assert_int_equal(r.bundles.n, 2);
        assert_int_equal(r.bundles.n_left_out, 3);
        assert_string_equal(r.bundles.items[0].id, DUMP);
        assert_int_equal(r.bundles.items[0].state, BUNDLE_DELIVERED);
        assert_string_equal(r.bundles.items[0].object, OBJECT);
        assert_string_equal(r.bundles.items[1].id, SNAPSHOT);
        assert_int_equal(r.bundles.items[1].state, BUNDLE_SETTLING);
        assert_null(r.bundles.items[1].object);
        _cleanup_free_ char *again = record_format(&r, &n);
        assert_string_equal(again, text);
        record_done(&r);
}

static void of_a_nodes_bundles_each_is_listed_once_and_so_many_as_may_be(void **state) {
        NodeBundles b = { 0 };
        char id[BUNDLE_ID_SIZE], object[NODE_BUNDLE_OBJECT_MAX + 2];
        memset(object, 'o', sizeof object - 1);
        object[sizeof object - 1] = '\0';
        for (unsigned twice = 0; twice < 2; twice++)
                for (unsigned i = 0; i < NODE_BUNDLES_MAX; i++) {
                        snprintf(id, sizeof id, "snapshot-20260527T051240-%012x", i);
                        assert_int_equal(node_bundles_add(&b, id, BUNDLE_READY, object + (i & 1)),
                                         0);
                }
        assert_int_equal(b.n, NODE_BUNDLES_MAX);
        assert_int_equal(b.n_left_out, 0);
        assert_true(node_bundles_contain(&b, id));
        assert_false(node_bundles_contain(&b, DUMP));
        assert_null(b.items[0].object); /* one byte longer than may be */
        assert_string_equal(b.items[1].object, object + 1);
        assert_int_equal(node_bundles_add(&b, DUMP, BUNDLE_READY, NULL), 0);
        assert_int_equal(b.n, NODE_BUNDLES_MAX);
        assert_int_equal(b.n_left_out, 1);
        Record r = record_of(NULL, 0), read;
        size_t n;
        r.bundles = b;
        _cleanup_free_ char *text = record_format(&r, &n);
        assert_int_equal(record_parse(text, n, KEY, 7, &read), 0);
        assert_int_equal(read.bundles.n, NODE_BUNDLES_MAX);
        record_done(&read);
        _cleanup_free_ char *more =
                replace(text, "\"bundles\":[",
                        "\"bundles\":[{\"id\":\"" DUMP "\",\"kind\":\"neuron-core-dump\","
                        "\"state\":\"ready\",\"object\":null},");
        assert_int_equal(record_parse(more, strlen(more), KEY, 7, &read), -EINVAL);
        record_done(&r);
}

static void uncertainty_is_rounded_up_to_milliseconds(void **state) {
        size_t n;
        Record r = record_of(NULL, 0);
        r.uncertainty_usec = 1001;
        _cleanup_free_ char *text = record_format(&r, &n);
        assert_int_equal(record_parse(text, n, KEY, 7, &r), 0);
        assert_int_equal(r.uncertainty_usec, 2000);
        assert_int_equal(r.claims.n, 0);
        record_done(&r);
}

static void a_hostile_record_is_refused(void **state) {
        char object[NODE_BUNDLE_OBJECT_MAX + 2];
        memset(object, 'o', sizeof object - 1);
        object[sizeof object - 1] = '\0';
        _cleanup_free_ char *text = full_record_text(),
                            *long_object = strbuf_format("\"object\":\"%s\"", object);
        const char *const changes[][2] = {
                { "claims/1", "claims/2" },
                { "\"key\":\"" KEY "\"", "\"key\":null" },
                { "\"n\":7", "\"n\":8" },
                { "\"instance_id\":\"i-0a\"", "\"instance_id\":\".\"" },
                { "\"instance_id\":\"i-0a\"", "\"instance_id\":\"i-0\\u0061\\n\"" },
                { "\"revision\":9", "\"revision\":-9" },
                { "\"uncertainty_ms\":512", "\"uncertainty_ms\":null" },
                { "\"claims\":[", "\"claims\":{},\"x\":[" },
                { "\"claims\":[", "\"claims\":[null," },
                { "\"claims\":[", "\"claims\":[{}," },
                { "\"rank\":17", "\"rank\":-1" },
                { "\"rank\":17", "\"rank\":1000000" },
                { "\"rank\":17", "\"rank\":\"17\"" },
                { "\"rank\":17,", "" },
                { "\"pid\":4242", "\"pid\":4294967296" },
                { "\"pid\":4242", "\"pid\":null" },
                { "\"boot_id\":\"0", "\"boot_id\":\"00" },
                { "\"boot_id\":\"b\"", "\"boot_id\":\"\"" },
                { "\"boot_id\":\"b\"", "\"boot_id\":null" },
                { "\"boot_id\":\"b\"", "\"boot_id\":\"\xc3\xa4\"" },
                { "\"start_ticks\":1", "\"start_ticks\":-1" },
                { "\"state\":\"failed\"", "\"state\":\"FAILED\"" },
                { "\"bundle_state\":\"delivered\"", "\"bundle_state\":\"lost\"" },
                { "\"bundle\":\"neuron", "\"bundle\":\"../neuron" },
                { "\"error_code\":-1202", "\"error_code\":1.5" },
                { "nrt_execute ", "nrt_execute 0123456789012345678901234567890123456789012345678" },
                { "nrt_execute ", "\\u007f" },
                { "\"seen\":\"2026", "\"seen\":\"20260" },
                { "\"seen\":\"2026", "\"seen\":null,\"x\":\"2026" },
                { "\"seen\":\"2026", "\"seen\":\"1969" },
                { ".123456Z\",\"revision\":3", ".18446744073709551615Z\",\"revision\":3" },
                { "\"seen\":\"2026-05", "\"seen\":\"2026-13" },
                { "\"seen\":\"2026-05-28T", "\"seen\":\"2026-05-28 " },
                { "Z\",\"revision\":3", "+00:00\",\"revision\":3" },
                { "123456Z\",\"revision\":3", "1234567Z\",\"revision\":3" },
                { "123456Z\",\"revision\":3", "-23456Z\",\"revision\":3" },
                { "\"revision\":3", "\"revision\":4294967296" },
                { "\"bundles_left_out\":3", "\"bundles_left_out\":-3" },
                { "\"bundles_left_out\":3,", "" },
                { "\"bundles\":[", "\"others\":[" },
                { "\"bundles\":[", "\"bundles\":{},\"x\":[" },
                { "\"bundles\":[", "\"bundles\":[{}," },
                { "\"id\":\"neuron", "\"id\":\"../neuron" },
                { "\"id\":\"neuron", "\"id\":null,\"x\":\"neuron" },
                { "\"kind\":\"neuron-core-dump\"", "\"kind\":\"snapshot\"" },
                { "\"kind\":\"neuron-core-dump\",", "" },
                { "\"state\":\"settling\"", "\"state\":\"settled\"" },
                { "\"state\":\"settling\"", "\"state\":null" },
                { "\"object\":null", "\"object\":\"\"" },
                { "\"object\":null", "\"object\":7" },
                { "\"object\":null", "\"object\":\"a\\u001b[31m\"" },
                { "\"object\":null", "\"object\":\"a\\u007f\"" },
                { "\"object\":null", long_object },
        };
        Record r;
        assert_int_equal(record_parse(text, strlen(text), KEY, 7, &r), 0);
        record_done(&r);
        for (size_t i = 0; i < ELEMENTSOF(changes); i++) {
                _cleanup_free_ char *bad = replace(text, changes[i][0], changes[i][1]);
                if (record_parse(bad, strlen(bad), KEY, 7, &r) != -EINVAL)
                        fail_msg("taken: %s", bad);
        }
        for (size_t n = 0; n + 1 < strlen(text); n++)
                assert_int_equal(record_parse(text, n, KEY, 7, &r), -EINVAL);
}

static char *record_of_many(size_t n_claims) {
        size_t n;
        Claim c = full_claim();
        Record r = record_of(&c, 1);
        _cleanup_free_ char *one = record_format(&r, &n);
        const char *claim = strstr(one, "{\"rank\"");
        StrBuf b = STRBUF_INIT;
        strbuf_add_n(&b, one, (size_t)(claim - one));
        for (size_t i = 0; i < n_claims; i++) {
                char pid[32];
                snprintf(pid, sizeof pid, "\"pid\":%zu", i + 1);
                _cleanup_free_ char *other = replace(claim, "\"pid\":4242", pid);
                strbuf_add_n(&b, other, strlen(other) - strlen("],\"bundles\":[]}\n"));
                strbuf_add(&b, i + 1 < n_claims ? "," : "],\"bundles\":[]}");
        }
        record_done(&r);
        return strbuf_detach(&b);
}

static void a_record_has_at_most_as_many_claims_and_bytes_as_may_be(void **state) {
        Record r;
        _cleanup_free_ char *most = record_of_many(CLAIMS_MAX),
                            *more = record_of_many(CLAIMS_MAX + 1);
        assert_int_equal(record_parse(most, strlen(most), KEY, 7, &r), 0);
        assert_int_equal(r.claims.n, CLAIMS_MAX);
        record_done(&r);
        assert_int_equal(record_parse(more, strlen(more), KEY, 7, &r), -EINVAL);
        _cleanup_free_ char *text = full_record_text(),
                            *large = strbuf_format("%s%*s", text, (int)RECORD_BYTES_MAX, ""),
                            *commas = calloc(1, RECORD_BYTES_MAX + 1);
        assert_int_equal(record_parse(large, strlen(large), KEY, 7, &r), -EINVAL);
        memset(commas, ',', RECORD_BYTES_MAX);
        assert_int_equal(record_parse(commas, RECORD_BYTES_MAX, KEY, 7, &r), -EINVAL);
}

static void shifting_a_claim_moves_what_is_known_and_does_not_overflow(void **state) {
        Claim c = full_claim();
        claim_shift(&c, -1000);
        assert_int_equal(c.event_usec, OPENED - 1000);
        assert_int_equal(c.started_usec, OPENED - 3600000000 - 1000);
        c.started_usec = INT64_MIN;
        claim_shift(&c, INT64_MAX);
        assert_int_equal(c.started_usec, INT64_MIN);
        assert_int_equal(c.event_usec, INT64_MAX);
        claim_shift(&c, INT64_MIN);
        assert_true(c.event_usec > INT64_MIN);
        c.event_usec = -10;
        claim_shift(&c, INT64_MIN);
        assert_int_equal(c.event_usec, INT64_MIN + 1);
}

/* ---- names ---- */

static void names_read_back_as_they_were_built(void **state) {
        char name[RECORD_NAME_SIZE], id[INSTANCE_ID_SIZE];
        IncidentsName p;
        incidents_prefix(KEY, name);
        assert_string_equal(name, ".incidents/" KEY "/");
        decision_object_name(KEY, UINT32_MAX, name);
        assert_string_equal(name, ".incidents/" KEY "/4294967295.json");
        assert_true(incidents_name_parse(name, &p));
        assert_true(p.is_decision);
        assert_int_equal(p.n, UINT32_MAX);
        assert_string_equal(p.key, KEY);
        record_object_name(KEY, 12, OPENED, "host-1.example_x", name);
        assert_string_equal(name, ".incidents/" KEY "/12/20260528T202640123-host-1.example_x.json");
        assert_true(incidents_name_parse(name, &p));
        assert_false(p.is_decision);
        assert_int_equal(p.n, 12);
        assert_int_equal(p.newest_usec, OPENED - OPENED % 1000);
        assert_string_equal(p.instance_id, "host-1.example_x");
        memset(id, 'x', sizeof id - 1);
        id[sizeof id - 1] = '\0';
        record_object_name(KEY, 1, INT64_MAX, id, name);
        assert_true(incidents_name_parse(name, &p));
        assert_string_equal(p.instance_id, id);
        record_object_name(KEY, 1, INT64_MIN, id, name);
        assert_true(incidents_name_parse(name, &p));
        assert_int_equal(p.newest_usec, 0);
}

static void names_that_are_spelled_otherwise_are_none(void **state) {
        static const char *const bad[] = {
                "",
                ".incidents/",
                ".incidents/" KEY,
                ".incidents/" KEY "/",
                ".incidents/" KEY "/1",
                ".incidents/" KEY "/0.json",
                ".incidents/" KEY "/01.json",
                ".incidents/" KEY "/4294967296.json",
                ".incidents/" KEY "/-1.json",
                ".incidents/" KEY "/1.json.tmp",
                ".incidents/" KEY "/1.jso",
                ".incidents/" KEY "x1.json",
                ".incidents/" KEY "//1.json",
                ".incidents/0123456789ABCDEF/1.json",
                ".incidents/0123456789abcde/1.json",
                ".incidents/../../../../../x/1.json",
                "incidents/" KEY "/1.json",
                ".incidents/" KEY "/1/20260528T202640123-.json",
                ".incidents/" KEY "/1/20260528T202640123-..json",
                ".incidents/" KEY "/1/20260528T202640123-...json",
                ".incidents/" KEY "/1/20260528T202640123-a/b.json",
                ".incidents/" KEY "/1/20260528T202640123-a b.json",
                ".incidents/" KEY "/1/20260528T202640123_a.json",
                ".incidents/" KEY "/1/20260528T20264012-a.json",
                ".incidents/" KEY "/1/20260528T2026401234-a.json",
                ".incidents/" KEY "/1/20261328T202640123-a.json",
                ".incidents/" KEY "/1/20260230T202640123-a.json",
                ".incidents/" KEY "/1/ 0260528T202640123-a.json",
                ".incidents/" KEY "/1/20260528T202640123-a",
                ".incidents/" KEY "/1/20260528T202640123-"
                "01234567890123456789012345678901234567890123456789012345678901234.json",
                ".incidents/" KEY "/1/x.json",
                ".incidents/" KEY "/1/"
        };
        IncidentsName p;
        for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                if (incidents_name_parse(bad[i], &p))
                        fail_msg("taken: %s", bad[i]);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_decision_reads_back_as_it_was_written),
                cmocka_unit_test(a_decision_under_another_name_is_refused),
                cmocka_unit_test(a_hostile_decision_is_refused),
                cmocka_unit_test(a_record_reads_back_as_it_was_written),
                cmocka_unit_test(uncertainty_is_rounded_up_to_milliseconds),
                cmocka_unit_test(a_hostile_record_is_refused),
                cmocka_unit_test(of_a_nodes_bundles_each_is_listed_once_and_so_many_as_may_be),
                cmocka_unit_test(a_record_has_at_most_as_many_claims_and_bytes_as_may_be),
                cmocka_unit_test(shifting_a_claim_moves_what_is_known_and_does_not_overflow),
                cmocka_unit_test(names_read_back_as_they_were_built),
                cmocka_unit_test(names_that_are_spelled_otherwise_are_none),
        };
        return cmocka_run_group_tests_name("record", tests, NULL, NULL);
}
