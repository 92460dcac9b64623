/* Pending crash reports, and the signatures of those that were made. */
#include "tests/agent/store/store_test.h"

#include <errno.h>

#include "agent/store/store.h"
#include "lib/base/strbuf.h"

static void add_bundle(Store *s, const char *id) {
        BundleRecord b = { .source = (char *)"cores",
                           .path = (char *)id,
                           .kind = SOURCE_PROCESS_CORE,
                           .state = BUNDLE_SETTLING };
        (void)snprintf(b.id, sizeof b.id, "%s", id);
        assert_int_equal(store_add(s, &b), 0);
}

static int see(const char *id, void *userdata) {
        strbuf_addf(userdata, "%s;", id);
        return 0;
}

static void assert_pending(Store *s, const char *expected) {
        StrBuf b = STRBUF_INIT;
        assert_int_equal(store_report_list_pending(s, see, &b), 0);
        _cleanup_free_ char *text = strbuf_detach(&b);
        assert_string_equal(text, expected);
}

static void a_report_is_pending_until_it_was_made_after_a_restart_too(void **state) {
        Store *s = open_store(*state);
        add_bundle(s, "a");
        add_bundle(s, "b");
        assert_int_equal(store_report_add(s, "none"), STORE_E_NOT_FOUND);
        assert_int_equal(store_report_add(s, "b"), 0);
        assert_int_equal(store_report_add(s, "a"), 0);
        assert_int_equal(store_report_add(s, "b"), 0);
        store_close(s);
        s = open_store(*state);
        assert_pending(s, "a;b;");
        assert_int_equal(store_report_end(s, "a", "s1", 100), 0);
        assert_int_equal(store_report_end(s, "a", NULL, 100), 0); /* missing is fine */
        assert_pending(s, "b;");
        store_close(s);
}

static void signatures_are_counted_since_the_first_and_listed_newest_first(void **state) {
        static StoredSignature list[STORE_SIGNATURES_MAX];
        Store *s = open_store(*state);
        assert_int_equal(store_signature_list(s, list), 0);
        assert_int_equal(store_report_end(s, "x", "s1", 100), 0);
        assert_int_equal(store_report_end(s, "y", "s2", 200), 0);
        assert_int_equal(store_report_end(s, "z", "s1", 300), 0);
        assert_int_equal(store_signature_list(s, list), 2);
        assert_string_equal(list[0].id, "s1");
        assert_int_equal(list[0].n, 2);
        assert_int_equal(list[0].since_usec, 100);
        assert_string_equal(list[1].id, "s2");
        store_close(s);
}

static void beyond_the_bound_the_signatures_not_seen_for_longest_go(void **state) {
        static StoredSignature list[STORE_SIGNATURES_MAX];
        Store *s = open_store(*state);
        char id[16];
        assert_int_equal(store_begin(s), 0);
        for (unsigned i = 0; i < STORE_SIGNATURES_MAX + 3; i++) {
                (void)snprintf(id, sizeof id, "s%u", i);
                assert_int_equal(store_report_end(s, "x", id, 1000 + i), 0);
        }
        assert_int_equal(store_commit(s), 0);
        assert_int_equal(store_signature_list(s, list), STORE_SIGNATURES_MAX);
        assert_string_equal(list[0].id, "s258");
        assert_string_equal(list[STORE_SIGNATURES_MAX - 1].id, "s3");
        store_close(s);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(a_report_is_pending_until_it_was_made_after_a_restart_too),
                TEST(signatures_are_counted_since_the_first_and_listed_newest_first),
                TEST(beyond_the_bound_the_signatures_not_seen_for_longest_go),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
