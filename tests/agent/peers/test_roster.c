/* Who took part, who is missing and why, and who failed first. */
#include "tests/harness/unit.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "agent/peers/incident.h"
#include "lib/base/cleanup.h"

#define SEC INT64_C(1000000)
#define OPENED (1780000000 * SEC)
#define NODES_MAX 16

typedef struct Case {
        Decision d;
        Record records[NODES_MAX];
        size_t n;
        Roster roster;
} Case;

static Case *start(int64_t world_size) {
        Case *c = calloc(1, sizeof *c);
        assert_non_null(c);
        c->d = (Decision){ .agreed = AGREED_STORE,
                           .key = "0123456789abcdef",
                           .n = 1,
                           .cluster_id = "d99e36ea74c263ca",
                           .date_time = "20260527-051233",
                           .created_by = "i-0",
                           .world_size = world_size,
                           .settle_usec = 5 * SEC,
                           .opened_usec = OPENED };
        return c;
}

static void done(Case *c) {
        roster_done(&c->roster);
        for (size_t i = 0; i < c->n; i++)
                record_done(&c->records[i]);
        free(c);
}

static Record *add_node(Case *c, unsigned number, int64_t uncertainty) {
        Record *r = &c->records[c->n++];
        assert_true(c->n <= NODES_MAX);
        *r = (Record){ .n = 1, .revision = 10 + number, .uncertainty_usec = uncertainty };
        memcpy(r->key, c->d.key, sizeof r->key);
        snprintf(r->instance_id, sizeof r->instance_id, "i-%u", number);
        return r;
}

/* A process of a node that failed as the decision was made, whose bundle was delivered. */
static Claim claim_of(const Record *node, int64_t rank) {
        Claim c;
        memset(&c, 0, sizeof c);
        memcpy(c.instance_id, node->instance_id, sizeof c.instance_id);
        memcpy(c.boot_id, node->instance_id, sizeof c.boot_id - 1);
        c.rank = rank;
        c.pid = (uint32_t)(1000 + rank);
        c.world_size = -1;
        c.revision = 1;
        c.state = CLAIM_FAILED;
        c.bundle_state = CLAIM_BUNDLE_DELIVERED;
        c.started_usec = INT64_MIN;
        c.event_usec = OPENED;
        return c;
}

static void add(Record *node, Claim c) {
        assert_true(claim_set_add(&node->claims, &c) >= 0);
}

static void add_bundle(Record *node, BundleState state, const char *object) {
        assert_int_equal(node_bundles_add(&node->bundles, "snapshot-20260527T051240-0c21fa967905",
                                          state, object),
                         0);
}

static void add_error(Record *node, int64_t rank, int64_t code, int64_t event) {
        Claim c = claim_of(node, rank);
        c.has_error = true;
        c.error_code = code;
        c.event_usec = event;
        add(node, c);
}

static const Roster *fold(Case *c) {
        roster_done(&c->roster);
        assert_int_equal(roster_fold(&c->d, c->records, c->n, &c->roster), 0);
        return &c->roster;
}

static void assert_rank(const Roster *r, size_t i, int64_t rank, RankState state,
                        MissingReason reason) {
        assert_true(i < r->n_ranks);
        assert_int_equal(r->ranks[i].rank, rank);
        assert_int_equal(r->ranks[i].state, state);
        assert_int_equal(r->ranks[i].reason, reason);
}

static size_t count(const Roster *r, RankState state) {
        size_t n = 0;
        for (size_t i = 0; i < r->n_ranks; i++)
                n += r->ranks[i].state == state;
        return n;
}

static size_t count_suspects(const Roster *r) {
        size_t n = 0;
        for (size_t i = 0; i < r->n_ranks; i++)
                n += r->ranks[i].is_suspect;
        return n;
}

/* ---- ranks ---- */

static void each_rank_is_present_late_or_missing_for_its_reason(void **state) {
        Case *c = start(8);
        Record *a = add_node(c, 0, 0), *b = add_node(c, 1, 0);
        Claim k = claim_of(a, 0);
        add(a, k);
        k = claim_of(a, 1);
        k.bundle_state = CLAIM_BUNDLE_PENDING;
        add(a, k);
        k = claim_of(b, 2);
        k.bundle_state = CLAIM_BUNDLE_EMPTY;
        add(b, k);
        k = claim_of(b, 3);
        k.bundle_state = CLAIM_BUNDLE_NONE;
        add(b, k);
        k.rank = 4;
        k.pid = 4;
        k.state = CLAIM_ALIVE;
        add(b, k);
        k.rank = 5;
        k.pid = 5;
        k.state = CLAIM_ENDED;
        add(b, k);
        k = claim_of(b, 6);
        k.event_usec = OPENED + 6 * SEC + 1;
        add(b, k);
        const Roster *r = fold(c);
        assert_int_equal(r->n_ranks, 8);
        assert_rank(r, 0, 0, RANK_PRESENT, MISSING_NONE);
        assert_rank(r, 1, 1, RANK_MISSING, MISSING_UNDELIVERED);
        assert_rank(r, 2, 2, RANK_MISSING, MISSING_EMPTY);
        assert_rank(r, 3, 3, RANK_MISSING, MISSING_NO_DUMP);
        assert_rank(r, 4, 4, RANK_MISSING, MISSING_NO_DUMP);
        assert_rank(r, 5, 5, RANK_MISSING, MISSING_NO_DUMP);
        assert_rank(r, 6, 6, RANK_LATE, MISSING_NONE);
        assert_rank(r, 7, 7, RANK_MISSING, MISSING_UNREACHABLE);
        assert_null(r->ranks[7].claim);
        assert_int_equal(count(r, RANK_PRESENT), 1);
        assert_int_equal(count(r, RANK_LATE), 1);
        assert_int_equal(count(r, RANK_MISSING), 6);
        done(c);
}

static void late_is_what_was_seen_after_settling_and_the_uncertainty_of_its_node(void **state) {
        const struct {
                int64_t uncertainty, after;
                RankState wanted;
        } cases[] = {
                { 0, 6 * SEC, RANK_PRESENT },       { 0, 6 * SEC + 1, RANK_LATE },
                { 3 * SEC, 8 * SEC, RANK_PRESENT }, { 3 * SEC, 8 * SEC + 1, RANK_LATE },
                { 0, -3600 * SEC, RANK_PRESENT },
        };
        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                Case *c = start(1);
                Record *a = add_node(c, 0, cases[i].uncertainty);
                Claim k = claim_of(a, 0);
                k.event_usec = OPENED + cases[i].after;
                add(a, k);
                assert_rank(fold(c), 0, 0, cases[i].wanted, MISSING_NONE);
                done(c);
        }
}

static void without_a_world_size_nobody_is_missing(void **state) {
        const int64_t sizes[] = { -1, 0, ROSTER_RANKS_MAX + 1 };
        for (size_t i = 0; i < ELEMENTSOF(sizes); i++) {
                Case *c = start(sizes[i]);
                Record *a = add_node(c, 0, 0);
                Claim k = claim_of(a, 5);
                k.bundle_state = CLAIM_BUNDLE_NONE;
                add(a, k);
                add(a, claim_of(a, 7));
                const Roster *r = fold(c);
                assert_int_equal(r->world_size, -1);
                assert_int_equal(r->n_ranks, 2);
                assert_rank(r, 0, 5, RANK_UNDELIVERED, MISSING_NO_DUMP);
                assert_rank(r, 1, 7, RANK_PRESENT, MISSING_NONE);
                assert_int_equal(count(r, RANK_MISSING), 0);
                done(c);
        }
}

static void the_world_size_is_the_decision_s_else_the_largest_that_was_claimed(void **state) {
        Case *c = start(-1);
        Record *a = add_node(c, 0, 0), *b = add_node(c, 1, 0);
        Claim k = claim_of(a, 0);
        k.world_size = 2;
        add(a, k);
        k = claim_of(b, 1);
        k.world_size = 4;
        add(b, k);
        assert_int_equal(fold(c)->world_size, 4);
        assert_int_equal(count(&c->roster, RANK_MISSING), 2);
        c->d.world_size = 3;
        assert_int_equal(fold(c)->world_size, 3);
        assert_int_equal(count(&c->roster, RANK_MISSING), 1);
        done(c);
}

static void ranks_beyond_the_world_size_and_without_a_rank_are_listed_but_not_missed(void **state) {
        Case *c = start(2);
        Record *a = add_node(c, 0, 0);
        Claim k = claim_of(a, -1);
        k.pid = 9;
        add(a, k);
        k.pid = 8;
        k.bundle_state = CLAIM_BUNDLE_PENDING;
        add(a, k);
        k = claim_of(a, 999999);
        k.bundle_state = CLAIM_BUNDLE_NONE;
        add(a, k);
        add(a, claim_of(a, 1));
        const Roster *r = fold(c);
        assert_int_equal(r->n_ranks, 5);
        assert_rank(r, 0, 0, RANK_MISSING, MISSING_UNREACHABLE);
        assert_rank(r, 1, 1, RANK_PRESENT, MISSING_NONE);
        assert_rank(r, 2, 999999, RANK_UNDELIVERED, MISSING_NO_DUMP);
        assert_int_equal(r->ranks[3].rank, -1);
        assert_int_equal(r->ranks[4].rank, -1);
        assert_int_equal(count(r, RANK_MISSING), 1);
        done(c);
}

static void of_processes_of_a_rank_the_failed_then_the_ended_then_the_newest_counts(void **state) {
        Case *c = start(1);
        Record *a = add_node(c, 0, 0), *b = add_node(c, 1, 0);
        Claim k = claim_of(a, 0);
        k.state = CLAIM_ALIVE;
        k.bundle_state = CLAIM_BUNDLE_NONE;
        k.event_usec = OPENED + 3 * SEC;
        k.pid = 1;
        add(a, k);
        assert_int_equal(fold(c)->ranks[0].claim->pid, 1);
        k.event_usec = OPENED + 4 * SEC;
        k.pid = 2;
        add(b, k);
        assert_int_equal(fold(c)->ranks[0].claim->pid, 2);
        k.state = CLAIM_ENDED;
        k.event_usec = OPENED - 9 * SEC;
        k.pid = 3;
        add(a, k);
        assert_int_equal(fold(c)->ranks[0].claim->pid, 3);
        k.state = CLAIM_FAILED;
        k.event_usec = OPENED - 10 * SEC;
        k.pid = 4;
        add(b, k);
        assert_int_equal(fold(c)->ranks[0].claim->pid, 4);
        assert_int_equal(c->roster.n_ranks, 1);
        assert_int_equal(c->roster.claims.n, 4);
        done(c);
}

static void a_dump_found_before_its_hook_spoke_is_listed_once(void **state) {
        Case *c = start(1);
        Record *a = add_node(c, 0, 0);
        Claim k = claim_of(a, 0), found = claim_of(a, -1);
        strcpy(k.bundle, "neuron-core-dump-20260527T051259-1de20ca66e1e");
        strcpy(found.bundle, k.bundle);
        add(a, k);
        add(a, found);
        assert_int_equal(fold(c)->n_ranks, 1);
        found.bundle[strlen(found.bundle) - 1] = 'f';
        found.revision++;
        add(a, found);
        assert_int_equal(fold(c)->n_ranks, 2);
        done(c);
}

static void records_fold_to_the_same_in_any_order_and_the_newest_revision_counts(void **state) {
        Case *c = start(2);
        Record *a = add_node(c, 0, 2 * SEC), *b = add_node(c, 1, 0), *old = add_node(c, 0, SEC);
        Claim k = claim_of(a, 0);
        k.revision = 2;
        add(a, k);
        k.revision = 1;
        k.bundle_state = CLAIM_BUNDLE_PENDING;
        add(old, k);
        old->revision = 3;
        add(b, claim_of(b, 1));
        add_bundle(old, BUNDLE_SHIPPING, NULL);
        add_bundle(a, BUNDLE_DELIVERED, "/v/x.tar.zst");
        size_t n;
        _cleanup_free_ char *text = incident_format(fold(c), "", &n);
        assert_int_equal(count(&c->roster, RANK_PRESENT), 2);
        assert_int_equal(c->roster.nodes[0].bundles.n, 1);
        assert_string_equal(c->roster.nodes[0].bundles.items[0].object, "/v/x.tar.zst");
        assert_int_equal(c->roster.n_nodes, 2);
        assert_string_equal(c->roster.nodes[0].instance_id, "i-0");
        assert_int_equal(c->roster.nodes[0].revision, 10);
        assert_int_equal(c->roster.nodes[0].uncertainty_usec, 2 * SEC);
        Record first = c->records[0];
        c->records[0] = c->records[2];
        c->records[2] = first;
        _cleanup_free_ char *turned = incident_format(fold(c), "", &n);
        assert_string_equal(text, turned);
        done(c);
}

static void a_roster_of_nothing_is_one(void **state) {
        Case *c = start(-1);
        assert_int_equal(fold(c)->n_ranks, 0);
        assert_null(c->roster.first_failure);
        c->d.world_size = ROSTER_RANKS_MAX;
        assert_int_equal(fold(c)->n_ranks, ROSTER_RANKS_MAX);
        assert_int_equal(count(&c->roster, RANK_MISSING), ROSTER_RANKS_MAX);
        size_t n;
        free(incident_format(&c->roster, "", &n));
        assert_true(n <= RECORD_BYTES_MAX); /* as much as may be written */
        done(c);
}

static void claims_beyond_the_bound_are_left_out_and_nobody_is_missing(void **state) {
        Case *c = start(2 * CLAIMS_MAX);
        for (unsigned node = 0; node < 2; node++) {
                Record *r = add_node(c, node, 0);
                for (int64_t i = 0; i < CLAIMS_MAX; i++)
                        add(r, claim_of(r, node * CLAIMS_MAX + i));
        }
        assert_int_equal(fold(c)->n_ranks, CLAIMS_MAX);
        assert_int_equal(count(&c->roster, RANK_MISSING), 0);
        assert_true(c->roster.is_cut);
        size_t n;
        _cleanup_free_ char *text = incident_format(&c->roster, "", &n);
        assert_non_null(strstr(text, "\"cut\":true"));
        done(c);
}

/* ---- the first failure ---- */

static int64_t first_rank(Case *c) {
        const Roster *r = fold(c);
        return r->first_failure ? r->first_failure->rank : -2;
}

static void the_earliest_failure_is_the_first(void **state) {
        Case *c = start(3);
        Record *a = add_node(c, 0, SEC / 10), *b = add_node(c, 1, SEC / 2);
        add_error(a, 0, 1202, OPENED + 10 * SEC);
        add_error(b, 1, 5, OPENED - SEC);
        assert_int_equal(first_rank(c), 1);
        assert_int_equal(c->roster.uncertainty_usec, SEC * 6 / 10);
        done(c);
}

static void within_the_uncertainty_hardware_comes_before_others_and_timeouts_last(void **state) {
        const int64_t hardware[] = { 6, 101, 1201, 1202, 1203, 1205 },
                      victims[] = { 5, 1100, 1200 };
        for (size_t i = 0; i < ELEMENTSOF(hardware); i++)
                for (size_t k = 0; k < ELEMENTSOF(victims); k++) {
                        Case *c = start(4);
                        Record *a = add_node(c, 0, SEC), *b = add_node(c, 1, SEC);
                        add_error(a, 1, victims[k], OPENED);
                        assert_int_equal(first_rank(c), 1);
                        add_error(b, 2, 1, OPENED + SEC);
                        assert_int_equal(first_rank(c), 2);
                        add_error(b, 3, hardware[i], OPENED + 2 * SEC);
                        assert_int_equal(first_rank(c), 3);
                        add_error(b, 0, hardware[i], OPENED + 2 * SEC + 1);
                        assert_int_equal(first_rank(c), 3); /* that one is too late */
                        done(c);
                }
}

static void at_the_same_time_the_lowest_rank_is_the_first_and_none_comes_last(void **state) {
        Case *c = start(4);
        Record *a = add_node(c, 0, SEC), *b = add_node(c, 1, SEC);
        add_error(b, -1, 1202, OPENED - 1);
        assert_int_equal(first_rank(c), -1);
        add_error(a, 3, 1202, OPENED);
        assert_int_equal(first_rank(c), 3);
        add_error(b, 2, 1202, OPENED + SEC);
        assert_int_equal(first_rank(c), 2);
        assert_int_equal(c->roster.uncertainty_usec, 2 * SEC);
        done(c);
}

static void who_ended_earlier_without_a_dump_is_suspect(void **state) {
        Case *c = start(4);
        Record *a = add_node(c, 0, SEC), *b = add_node(c, 1, SEC);
        Claim k = claim_of(b, 1);
        k.state = CLAIM_ENDED;
        k.bundle_state = CLAIM_BUNDLE_NONE;
        k.event_usec = OPENED - 5 * SEC;
        add(b, k);
        assert_int_equal(count_suspects(fold(c)), 0); /* of what, as nothing has failed? */
        k = claim_of(b, 2);
        k.state = CLAIM_ENDED;
        k.event_usec = OPENED + 2 * SEC;
        add(b, k);
        k.rank = 3;
        k.pid = 3;
        k.event_usec = OPENED + 2 * SEC - 1;
        add(b, k);
        k.rank = -1;
        k.pid = 4;
        k.state = CLAIM_ALIVE; /* and first seen long before */
        add(b, k);
        add_error(a, 0, 5, OPENED);
        const Roster *r = fold(c);
        assert_int_equal(count_suspects(r), 2);
        assert_true(r->ranks[1].is_suspect);
        assert_true(r->ranks[3].is_suspect);
        done(c);
}

/* ---- incident.json ---- */

static void incident_json_is_as_it_is_documented(void **state) {
        Case *c = start(3);
        c->d.derived = true;
        Record *a = add_node(c, 0, SEC / 2), *b = add_node(c, 1, SEC / 4);
        Claim k = claim_of(a, 0);
        k.has_error = true;
        k.error_code = 1202;
        strcpy(k.error_location, "nrt_execute");
        strcpy(k.bundle, "neuron-core-dump-20260527T051233-0c21fa967905");
        add(a, k);
        k = claim_of(b, 1);
        k.state = CLAIM_ENDED;
        k.bundle_state = CLAIM_BUNDLE_NONE;
        k.event_usec = OPENED - 3 * SEC;
        add(b, k);
        add_bundle(a, BUNDLE_DELIVERED, "s3://b/x.tar.zst");
        add_bundle(b, BUNDLE_READY, NULL);
        b->bundles.n_left_out = 2;
        size_t n;
        _cleanup_free_ char *text = incident_format(fold(c), "torchrun:j1", &n);
        assert_int_equal(strlen(text), n);
        assert_string_equal(
                text,
                "{\"schema\":\"neuron-collectd/incident/1\",\"cluster_id\":\"d99e36ea74c263ca\","
                "\"date_time\":\"20260527-051233\",\"derived\":true,\"job\":\"torchrun:j1\","
                "\"key\":\"0123456789abcdef\",\"n\":1,\"decided_by\":\"i-0\","
                "\"decided_at\":\"2026-05-28T20:26:40.000000Z\",\"agreed\":\"store\","
                "\"world_size\":3,\"ranks\":["
                "{\"rank\":0,\"instance_id\":\"i-0\",\"pid\":1000,\"state\":\"present\","
                "\"reason\":null,\"error_code\":1202,\"error_location\":\"nrt_execute\","
                "\"first_seen\":\"2026-05-28T20:26:40.000000Z\","
                "\"bundle\":\"neuron-core-dump-20260527T051233-0c21fa967905\"},"
                "{\"rank\":1,\"instance_id\":\"i-1\",\"pid\":1001,\"state\":\"missing\","
                "\"reason\":\"no_dump\",\"error_code\":null,\"error_location\":null,"
                "\"first_seen\":\"2026-05-28T20:26:37.000000Z\",\"bundle\":null},"
                "{\"rank\":2,\"instance_id\":null,\"pid\":null,\"state\":\"missing\","
                "\"reason\":\"unreachable\",\"error_code\":null,\"error_location\":null,"
                "\"first_seen\":null,\"bundle\":null}],"
                "\"first_failure\":{\"rank\":0,\"instance_id\":\"i-0\",\"pid\":1000,"
                "\"error_code\":1202,\"error_name\":\"NRT_EXEC_HW_ERR_NC_UE\","
                "\"error_location\":\"nrt_execute\",\"time\":\"2026-05-28T20:26:40.000000Z\","
                "\"uncertainty_ms\":500},"
                "\"suspects\":[{\"rank\":1,\"instance_id\":\"i-1\",\"pid\":1001,"
                "\"ended\":\"2026-05-28T20:26:37.000000Z\"}],"
                "\"nodes\":[{\"instance_id\":\"i-0\",\"revision\":10,\"bundles\":["
                "{\"id\":\"snapshot-20260527T051240-0c21fa967905\",\"kind\":\"snapshot\","
                "\"state\":\"delivered\",\"object\":\"s3://b/x.tar.zst\"}],"
                "\"bundles_left_out\":0},"
                "{\"instance_id\":\"i-1\",\"revision\":11,\"bundles\":["
                "{\"id\":\"snapshot-20260527T051240-0c21fa967905\",\"kind\":\"snapshot\","
                "\"state\":\"ready\",\"object\":null}],\"bundles_left_out\":2}]}\n");
        done(c);
        c = start(-1);
        Record *only = add_node(c, 0, 0);
        k = claim_of(only, -1);
        k.state = CLAIM_ALIVE;
        k.bundle_state = CLAIM_BUNDLE_NONE;
        add(only, k);
        _cleanup_free_ char *bare = incident_format(fold(c), "", &n);
        assert_non_null(strstr(bare, "\"job\":null"));
        assert_non_null(strstr(bare, "\"world_size\":null"));
        assert_non_null(strstr(bare, "\"first_failure\":null,\"suspects\":[]"));
        assert_non_null(strstr(bare, "{\"rank\":null,\"instance_id\":\"i-0\",\"pid\":999,"
                                     "\"state\":null,\"reason\":\"no_dump\""));
        done(c);
}

static void bundles_that_would_make_it_too_large_are_left_out_of_incident_json(void **state) {
        Case *c = start(1);
        char object[NODE_BUNDLE_OBJECT_MAX + 1], id[BUNDLE_ID_SIZE];
        memset(object, 'o', sizeof object - 1);
        object[sizeof object - 1] = '\0';
        for (unsigned i = 0; i < 16; i++) {
                Record *r = add_node(c, i, 0);
                for (unsigned j = 0; j < NODE_BUNDLES_MAX; j++) {
                        snprintf(id, sizeof id, "snapshot-20260527T051240-%012x", j);
                        assert_int_equal(
                                node_bundles_add(&r->bundles, id, BUNDLE_DELIVERED, object), 0);
                }
        }
        size_t n;
        _cleanup_free_ char *text = incident_format(fold(c), "", &n);
        assert_true(n > (size_t)3 << 20 && n < (size_t)4 << 20);
        assert_true(incident_has_record(text, n, "i-9", 19));
        assert_non_null(strstr(text, "\"bundles\":[],\"bundles_left_out\":256}]}\n"));
        done(c);
}

static void whether_a_record_is_in_incident_json_is_told_by_node_and_revision(void **state) {
        Case *c = start(2);
        (void)add_node(c, 1, 0);
        (void)add_node(c, 12, 0);
        size_t n;
        _cleanup_free_ char *text = incident_format(fold(c), "", &n);
        assert_true(incident_has_record(text, n, "i-1", 11));
        assert_true(incident_has_record(text, n, "i-1", 10));
        assert_false(incident_has_record(text, n, "i-1", 12));
        assert_true(incident_has_record(text, n, "i-12", 22));
        assert_false(incident_has_record(text, n, "i-2", 0));
        assert_false(incident_has_record(text, n, "i", 0));
        assert_false(incident_has_record("", 0, "i-1", 0));
        static const char cut[] = "{\"instance_id\":\"i-1\",\"revision\":";
        assert_false(incident_has_record(cut, sizeof cut - 1, "i-1", 0));
        done(c);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(each_rank_is_present_late_or_missing_for_its_reason),
                cmocka_unit_test(
                        late_is_what_was_seen_after_settling_and_the_uncertainty_of_its_node),
                cmocka_unit_test(without_a_world_size_nobody_is_missing),
                cmocka_unit_test(
                        the_world_size_is_the_decision_s_else_the_largest_that_was_claimed),
                cmocka_unit_test(
                        ranks_beyond_the_world_size_and_without_a_rank_are_listed_but_not_missed),
                cmocka_unit_test(
                        of_processes_of_a_rank_the_failed_then_the_ended_then_the_newest_counts),
                cmocka_unit_test(a_dump_found_before_its_hook_spoke_is_listed_once),
                cmocka_unit_test(
                        records_fold_to_the_same_in_any_order_and_the_newest_revision_counts),
                cmocka_unit_test(a_roster_of_nothing_is_one),
                cmocka_unit_test(claims_beyond_the_bound_are_left_out_and_nobody_is_missing),
                cmocka_unit_test(the_earliest_failure_is_the_first),
                cmocka_unit_test(
                        within_the_uncertainty_hardware_comes_before_others_and_timeouts_last),
                cmocka_unit_test(at_the_same_time_the_lowest_rank_is_the_first_and_none_comes_last),
                cmocka_unit_test(who_ended_earlier_without_a_dump_is_suspect),
                cmocka_unit_test(incident_json_is_as_it_is_documented),
                cmocka_unit_test(
                        bundles_that_would_make_it_too_large_are_left_out_of_incident_json),
                cmocka_unit_test(whether_a_record_is_in_incident_json_is_told_by_node_and_revision),
        };
        return cmocka_run_group_tests_name("roster", tests, NULL, NULL);
}
