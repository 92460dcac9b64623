/* agent/api: what is answered to what, without a socket. UPDATE_GOLDEN=1 rewrites tests/golden/api.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/harness/unit.h"
#include <jansson.h>

#include "agent/api/api.h"
#include "agent/api/metrics.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "tests/agent/api/fake_backend.h"
#include "tests/harness/skip.h"

static Api *api, *api_tcp;

static int setup(void **state) {
        memset(&fake_calls, 0, sizeof fake_calls);
        fake_backend_fail(0);
        fake_backend_ready(true);
        fake_backend_draining(NULL);
        assert_int_equal(api_new_for_test(&api, false, fake_backend()), 0);
        assert_int_equal(api_new_for_test(&api_tcp, true, fake_backend()), 0);
        return 0;
}

static int teardown(void **state) {
        api = api_free(api);
        api_tcp = api_free(api_tcp);
        return 0;
}

/* Asks; `query` is NULL or `name=value&name=value`, already decoded. */
static HttpResponse ask_of(Api *a, const char *method, const char *path, const char *query) {
        _cleanup_free_ char *text = strdup(query ? query : "");
        HttpQuery queries[16];
        MhdRequest request = { .method = method, .path = path, .queries = queries };
        HttpResponse response = { 0 };
        char *save = NULL;

        assert_non_null(text);
        for (char *q = strtok_r(text, "&", &save); q; q = strtok_r(NULL, "&", &save)) {
                char *value = strchr(q, '=');

                if (value)
                        *value++ = '\0';
                queries[request.n_queries++] = (HttpQuery){ q, value ? value : "" };
        }
        api_handle(&request, &response, a);
        if (response.body)
                assert_int_equal(strlen(response.body), response.body_bytes);
        return response;
}

static HttpResponse ask(const char *method, const char *path, const char *query) {
        return ask_of(api, method, path, query);
}

/* Compares the answer with tests/golden/api/NAME, status and headers first. */
static void assert_golden(HttpResponse response, const char *name) {
        const char *srcdir = getenv("srcdir");
        char path[512], head[256];
        _cleanup_free_ char *want = NULL;
        _cleanup_free_ char *got = NULL;
        _cleanup_fclose_ FILE *f = NULL;
        size_t n = 0;

        assert_non_null(response.body);
        (void)snprintf(path, sizeof path, "%s/tests/golden/api/%s", srcdir ? srcdir : ".", name);
        (void)snprintf(head, sizeof head, "%u %s%s%s", response.status, response.content_type,
                       response.allow ? " Allow: " : "", response.allow ? response.allow : "");
        assert_true(asprintf(&got, "%s\n%s", head, response.body) > 0);
        free(response.body);
        if (getenv("UPDATE_GOLDEN")) {
                f = fopen(path, "we");
                assert_non_null(f);
                assert_true(fputs(got, f) >= 0);
                return;
        }
        assert_int_equal(fs_read_file(AT_FDCWD, path, 1024 * 1024, &want, &n), 0);
        assert_string_equal(got, want);
}

/* ── golden answers ── */
static void the_status_is_as_the_contract_has_it(void **state) {
        assert_golden(ask("GET", "/v1/status", NULL), "status.txt");
}

static void a_drain_is_shown_with_its_deadline_and_what_is_missing(void **state) {
        DrainView d = { .is_draining = true,
                        .reason = "EC2: spot interruption (terminate)",
                        .since_usec = UINT64_C(1779859295) * USEC_PER_SEC,
                        .deadline_usec = UINT64_C(1779859415) * USEC_PER_SEC,
                        .missing = "2 bundles are not delivered" };

        fake_backend_draining(&d);
        assert_golden(ask("GET", "/v1/status", NULL), "status-draining.txt");
        d = (DrainView){ .is_draining = true,
                         .reason = "requested by the operator",
                         .since_usec = UINT64_C(1779859295) * USEC_PER_SEC,
                         .is_safe = true,
                         .missing = "said by mistake" };
        fake_backend_draining(&d);
        assert_golden(ask("GET", "/v1/status", NULL), "status-safe.txt");
}

static void the_list_of_bundles_is_as_the_contract_has_it(void **state) {
        assert_golden(ask("GET", "/v1/bundles", NULL), "bundles.txt");
        assert_golden(ask("GET", "/v1/bundles", "limit=1&state=shipping&source=core-dumps"),
                      "bundles-filtered.txt");
}

static void one_bundle_is_shown_with_its_explanation(void **state) {
        assert_golden(ask("GET", "/v1/bundles/" FAKE_ID "1", NULL), "bundle-shipping.txt");
        assert_golden(ask("GET", "/v1/bundles/" FAKE_ID "3", NULL), "bundle-quarantined.txt");
}

static void the_metrics_are_as_the_contract_has_it(void **state) {
        assert_golden(ask("GET", "/metrics", NULL), "metrics.txt");
}

static void faulty_requests_are_answered_with_what_is_wrong(void **state) {
        static const struct {
                const char *name, *method, *path, *query;
        } cases[] = {
                { "error-path.txt", "GET", "/v1/nothing\n\xff", NULL },
                { "error-method.txt", "DELETE", "/v1/status", NULL },
                { "error-action-method.txt", "GET", "/v1/bundles/" FAKE_ID "1/retry", NULL },
                { "error-state.txt", "GET", "/v1/bundles", "state=gone" },
                { "error-limit.txt", "GET", "/v1/bundles", "limit=1001" },
                { "error-after.txt", "GET", "/v1/bundles", "after=../etc" },
                { "error-source.txt", "GET", "/v1/bundles", "source=" },
                { "error-twice.txt", "GET", "/v1/bundles", "limit=1&limit=2" },
                { "error-parameter.txt", "GET", "/v1/bundles", "colour=blue" },
                { "error-no-query.txt", "GET", "/v1/status", "verbose=\"1\"\n" },
                { "error-no-bundle.txt", "GET", "/v1/bundles/" FAKE_ID "9", NULL },
                { "error-no-id.txt", "GET", "/v1/bundles/none", NULL },
                { "error-not-possible.txt", "POST", "/v1/bundles/" FAKE_ID "2/cancel", NULL },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                assert_golden(ask(cases[i].method, cases[i].path, cases[i].query), cases[i].name);
}

/* ── the rest ── */
static void assert_status(HttpResponse response, unsigned status) {
        assert_int_equal(response.status, status);
        free(response.body);
}

static json_t *assert_json(HttpResponse response, unsigned status) {
        json_t *v;

        assert_int_equal(response.status, status);
        assert_string_equal(response.content_type, "application/json");
        v = json_loadb(response.body, response.body_bytes, 0, NULL);
        assert_non_null(v);
        free(response.body);
        return v;
}

static void actions_reach_the_backend(void **state) {
        static const char *const actions[] = { "retry", "cancel", "pin", "unpin" };

        for (size_t i = 0; i < ELEMENTSOF(actions); i++) {
                char path[128];
                json_t *v;

                (void)snprintf(path, sizeof path, "/v1/bundles/%s1/%s", FAKE_ID, actions[i]);
                v = assert_json(ask("POST", path, NULL), 200);
                assert_string_equal(json_string_value(json_object_get(v, "id")), FAKE_ID "1");
                assert_string_equal(json_string_value(json_object_get(v, "action")), actions[i]);
                json_decref(v);
                assert_int_equal(fake_calls.act, i + 1);
                assert_string_equal(fake_calls.last_id, FAKE_ID "1");
                assert_string_equal(fake_calls.last_action, actions[i]);
        }
        assert_status(ask("POST", "/v1/bundles/" FAKE_ID "1/destroy", NULL), 404);
        assert_status(ask("POST", "/v1/bundles/" FAKE_ID "1/retry/", NULL), 404);
        assert_status(ask("POST", "/v1/bundles/none/retry", NULL), 404);
        assert_int_equal(fake_calls.act, ELEMENTSOF(actions));
}

static void a_flush_reaches_the_backend_and_its_message_comes_back(void **state) {
        json_t *v = assert_json(ask("POST", "/v1/flush", NULL), 200);

        assert_int_equal(fake_calls.flush, 1);
        assert_false(fake_calls.settle);
        json_decref(assert_json(ask("POST", "/v1/scan", NULL), 200));
        assert_int_equal(fake_calls.flush, 2);
        assert_true(fake_calls.settle);
        assert_string_equal(json_string_value(json_object_get(v, "message")),
                            "3 bundles are tried now");
        json_decref(v);
}

static void a_drain_and_its_end_reach_the_backend(void **state) {
        json_t *v = assert_json(ask("POST", "/v1/drain", NULL), 200), *status, *drain;

        assert_int_equal(fake_calls.drain, 1);
        assert_true(fake_calls.on);
        assert_string_equal(json_string_value(json_object_get(v, "action")), "drain");
        assert_string_equal(json_string_value(json_object_get(v, "message")),
                            "no new bundles are taken; 2 are not delivered yet");
        json_decref(v);
        /* twice is as once */
        v = assert_json(ask("POST", "/v1/drain", NULL), 200);
        assert_true(json_is_null(json_object_get(v, "message")));
        json_decref(v);
        status = assert_json(ask("GET", "/v1/status", NULL), 200);
        drain = json_object_get(status, "drain");
        assert_true(json_is_false(json_object_get(drain, "safe_to_terminate")));
        assert_true(json_is_null(json_object_get(drain, "deadline")));
        json_decref(status);
        v = assert_json(ask("POST", "/v1/resume", NULL), 200);
        assert_string_equal(json_string_value(json_object_get(v, "action")), "resume");
        assert_false(fake_calls.on);
        json_decref(v);
        assert_status(ask("POST", "/v1/resume", NULL), 200);
        assert_int_equal(fake_calls.drain, 4);
        status = assert_json(ask("GET", "/v1/status", NULL), 200);
        assert_true(json_is_null(json_object_get(status, "drain")));
        json_decref(status);
        assert_status(ask("GET", "/v1/drain", NULL), 405);
        assert_status(ask("POST", "/v1/drain", "timeout=5m"), 400);
        assert_int_equal(fake_calls.drain, 4);
}

static void pages_follow_each_other_until_next_is_null(void **state) {
        char query[128] = "limit=3";
        json_t *v = assert_json(ask("GET", "/v1/bundles", query), 200);

        assert_int_equal(json_array_size(json_object_get(v, "bundles")), 3);
        assert_string_equal(json_string_value(json_object_get(v, "next")), FAKE_ID "3");
        (void)snprintf(query, sizeof query, "limit=3&after=%s",
                       json_string_value(json_object_get(v, "next")));
        json_decref(v);
        v = assert_json(ask("GET", "/v1/bundles", query), 200);
        assert_int_equal(json_array_size(json_object_get(v, "bundles")), 1);
        assert_true(json_is_null(json_object_get(v, "next")));
        json_decref(v);
        assert_status(ask("GET", "/v1/bundles", "limit=1000"), 200);
        assert_int_equal(fake_calls.last_filter.limit,
                         1001); /* one more tells whether there is a next page */
        assert_int_equal(fake_calls.last_filter.state, -1);
        assert_status(ask("GET", "/v1/bundles", NULL), 200);
        assert_int_equal(fake_calls.last_filter.limit, 101);
}

static void a_snapshot_is_asked_for_and_its_document_comes_with_its_files(void **state) {
        const char *name, *directory, *file, *schema;
        int done;
        json_t *v = assert_json(ask("POST", "/v1/snapshot", NULL), 202);

        assert_string_equal(json_string_value(json_object_get(v, "name")), FAKE_SNAPSHOT);
        json_decref(v);
        v = assert_json(ask("GET", "/v1/snapshots/" FAKE_SNAPSHOT, NULL), 200);
        assert_int_equal(json_unpack(v, "{s:s, s:b, s:s, s:[s], s:{s:s}}", "name", &name, "done",
                                     &done, "directory", &directory, "files", &file, "document",
                                     "schema", &schema),
                         0);
        assert_true(done);
        assert_string_equal(directory, "/x\\xff");
        assert_string_equal(schema, "s");
        json_decref(v);
        assert_status(ask("GET", "/v1/snapshots/" FAKE_SNAPSHOT "/a.txt", NULL), 200);
        assert_status(ask("GET", "/v1/snapshots/" FAKE_SNAPSHOT "/../x", NULL), 404);
        assert_status(ask("GET", "/v1/snapshots/", NULL), 404);
        assert_status(ask("POST", "/v1/snapshots/" FAKE_SNAPSHOT, NULL), 405);
        assert_status(ask("GET", "/v1/snapshot", NULL), 405);
        fake_backend_fail(-EPERM);
        assert_status(ask("POST", "/v1/snapshot", NULL), 409);
        assert_int_equal(fake_calls.snapshot, 2);
        fake_backend_fail(0);
        assert_status(ask_of(api_tcp, "POST", "/v1/snapshot", NULL), 405);
        assert_status(ask_of(api_tcp, "GET", "/v1/snapshots/" FAKE_SNAPSHOT, NULL), 404);
}

static void a_read_only_listener_changes_nothing(void **state) {
        HttpResponse response = ask_of(api_tcp, "POST", "/v1/flush", NULL);

        assert_string_equal(response.allow, "GET, HEAD");
        assert_status(response, 405);
        assert_status(ask_of(api_tcp, "POST", "/v1/bundles/" FAKE_ID "1/cancel", NULL), 405);
        assert_status(ask_of(api_tcp, "PUT", "/nothing", NULL), 405);
        assert_status(ask_of(api_tcp, "POST", "/v1/drain", NULL), 405);
        assert_status(ask_of(api_tcp, "POST", "/v1/resume", NULL), 405);
        assert_status(ask_of(api_tcp, "GET", "/v1/flush", NULL), 404);
        assert_int_equal(fake_calls.flush + fake_calls.act + fake_calls.drain, 0);
        assert_status(ask_of(api_tcp, "GET", "/v1/status", NULL), 200);
        assert_status(ask_of(api_tcp, "HEAD", "/metrics", NULL), 200);
        assert_status(ask_of(api_tcp, "GET", "/healthz", NULL), 200);
}

static void probes_distinguish_alive_and_ready(void **state) {
        HttpResponse response;

        assert_status(ask("GET", "/readyz", NULL), 200);
        fake_backend_ready(false);
        assert_status(ask("GET", "/healthz", "verbose=1"), 200);
        response = ask("GET", "/readyz", NULL);
        assert_string_equal(response.body,
                            "not ready: destination 'fsx': the volume is not mounted\n");
        assert_status(response, 503);
}

static void a_failing_store_is_an_error_of_ours(void **state) {
        fake_backend_fail(-EIO);
        assert_status(ask("GET", "/v1/bundles", NULL), 500);
        assert_status(ask("GET", "/v1/bundles/" FAKE_ID "1", NULL), 500);
        assert_status(ask("POST", "/v1/bundles/" FAKE_ID "1/pin", NULL), 500);
        assert_status(ask("POST", "/v1/flush", NULL), 500);
        assert_status(ask("POST", "/v1/drain", NULL), 500);
        assert_status(ask("POST", "/v1/resume", NULL), 500);
        assert_status(ask("GET", "/v1/status", NULL), 200);
        fake_backend_fail(-EPERM);
        assert_status(ask("POST", "/v1/drain", NULL), 409);
}

static void long_values_are_cut_in_messages(void **state) {
        char query[4096] = "state=";
        json_t *v;

        memset(query + 6, 'x', sizeof query - 7);
        query[sizeof query - 1] = '\0';
        v = assert_json(ask("GET", "/v1/bundles", query), 400);
        assert_true(strlen(json_string_value(
                            json_object_get(json_object_get(v, "error"), "message"))) < 400);
        json_decref(v);
}

static void the_states_add_up_to_discovered(void **state) {
        json_t *v = assert_json(ask("GET", "/v1/status", NULL), 200), *value;
        const char *key;
        json_int_t sum = 0;

        json_object_foreach(json_object_get(v, "bundles"), key, value) sum +=
                strcmp(key, "discovered") == 0 ? -json_integer_value(value)
                                               : json_integer_value(value);
        assert_int_equal(sum, 0);
        json_decref(v);
}

static void promtool_finds_nothing_wrong_with_the_metrics(void **state) {
        HttpResponse response = ask("GET", "/metrics", NULL);
        _cleanup_free_ char *text = response.body;
        FILE *f;
        int status;

        if (system("command -v promtool >/dev/null 2>&1") != 0) {
                print_message("# promtool is not installed (package prometheus)\n");
                SKIP_BECAUSE("not possible on this machine or as this user");
        }
        f = popen("promtool check metrics 1>&2", "we");
        assert_non_null(f);
        assert_int_equal(fwrite(text, 1, response.body_bytes, f), response.body_bytes);
        status = pclose(f);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
}

static void metrics_of_an_agent_without_anything_are_well_formed(void **state) {
        AgentView v = { .version = "0.1.0", .instance_id = "", .state = "running" };
        _cleanup_free_ char *text = metrics_text(&v);

        assert_non_null(text);
        assert_non_null(strstr(text, "\nneuron_collectd_bundles_total{state=\"discovered\"} 0\n"));
        assert_non_null(strstr(text, "\nneuron_collectd_delivery_seconds_count 0\n"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

static void a_value_counts_in_the_first_bucket_that_it_is_not_above(void **state) {
        Histogram h = { .sum = 0 };
        for (size_t i = 0; i < HISTOGRAM_BUCKETS; i++)
                h.le[i] = (double)(i + 1);
        histogram_add(&h, 2);
        histogram_add(&h, HISTOGRAM_BUCKETS + 1); /* in none */
        assert_int_equal(h.count[1], 1);
        assert_int_equal(h.count[HISTOGRAM_BUCKETS - 1], 0);
        assert_int_equal(h.total, 2);
        assert_int_equal((int)h.sum, HISTOGRAM_BUCKETS + 3);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(the_status_is_as_the_contract_has_it),
                TEST(a_drain_is_shown_with_its_deadline_and_what_is_missing),
                TEST(the_list_of_bundles_is_as_the_contract_has_it),
                TEST(one_bundle_is_shown_with_its_explanation),
                TEST(the_metrics_are_as_the_contract_has_it),
                cmocka_unit_test(a_value_counts_in_the_first_bucket_that_it_is_not_above),
                TEST(faulty_requests_are_answered_with_what_is_wrong),
                TEST(actions_reach_the_backend),
                TEST(a_flush_reaches_the_backend_and_its_message_comes_back),
                TEST(a_drain_and_its_end_reach_the_backend),
                TEST(pages_follow_each_other_until_next_is_null),
                TEST(a_snapshot_is_asked_for_and_its_document_comes_with_its_files),
                TEST(a_read_only_listener_changes_nothing),
                TEST(probes_distinguish_alive_and_ready),
                TEST(a_failing_store_is_an_error_of_ours),
                TEST(long_values_are_cut_in_messages),
                TEST(the_states_add_up_to_discovered),
                TEST(promtool_finds_nothing_wrong_with_the_metrics),
                TEST(metrics_of_an_agent_without_anything_are_well_formed),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
