/* Decisions and claims in the store: each name once, in order, until they are too old. */
#include "tests/agent/store/store_test.h"

#include <errno.h>

#include "agent/store/store.h"
#include "lib/base/strbuf.h"

#define KEY "00112233445566aa"

typedef struct Seen {
        StrBuf text; /* `name key n time document;…` */
        Store *store;
        int error; /* that the callback returns for the first */
} Seen;

static int see(const StoredFailure *f, void *userdata) {
        Seen *seen = userdata;
        strbuf_addf(&seen->text, "%s %s %u %llu %s;", f->name, f->key, f->n,
                    (unsigned long long)f->time_usec, f->document);
        return seen->error;
}

static void assert_all(Store *s, const char *expected) {
        Seen seen = { .text = STRBUF_INIT };
        assert_int_equal(store_failure_list(s, see, &seen), 0);
        _cleanup_free_ char *text = strbuf_detach(&seen.text);
        assert_string_equal(text ? text : "", expected);
}

static void put(Store *s, const char *name, uint32_t n, uint64_t time_usec, const char *document) {
        assert_int_equal(store_failure_put(s, &(StoredFailure){ .name = name,
                                                                .key = KEY,
                                                                .n = n,
                                                                .time_usec = time_usec,
                                                                .document = document }),
                         0);
}

static void failures_are_there_after_a_restart_each_name_once_and_in_order(void **state) {
        Store *s = open_store(*state);
        assert_all(s, "");
        put(s, KEY "/1", 1, 100, "old");
        put(s, "boot-4711-9", 0, 300, "claim \xff");
        put(s, KEY "/1", UINT32_MAX, 200, "");
        store_close(s);
        s = open_store(*state);
        assert_all(s, KEY "/1 " KEY " 4294967295 200 ;boot-4711-9 " KEY " 0 300 claim \xff;");
        store_close(s);
}

static void what_is_older_is_dropped(void **state) {
        Store *s = open_store(*state);
        assert_int_equal(store_failure_drop(s, UINT64_C(1) << 62), 0); /* nothing is there */
        put(s, "a", 1, 100, "a");
        put(s, "b", 1, 199, "b");
        put(s, "c", 1, 200, "c");
        assert_int_equal(store_failure_drop(s, 200), 0);
        assert_all(s, "c " KEY " 1 200 c;");
        store_close(s);
}

static void beyond_the_bound_the_oldest_are_dropped(void **state) {
        Store *s = open_store(*state);
        Seen seen = { .text = STRBUF_INIT };
        char name[16];
        assert_int_equal(store_begin(s), 0);
        for (unsigned i = 0; i < STORE_FAILURES_MAX + 2; i++) {
                (void)snprintf(name, sizeof name, "%05u", i);
                put(s, name, 1, 1000 + i, "d");
        }
        put(s, "00000", 1, 1000 + STORE_FAILURES_MAX, "changed");
        assert_int_equal(store_commit(s), 0);
        assert_int_equal(store_failure_drop(s, 1000), 0);
        assert_int_equal(store_failure_list(s, see, &seen), 0);
        _cleanup_free_ char *text = strbuf_detach(&seen.text);
        assert_non_null(strstr(text, "00000 "));
        assert_null(strstr(text, "00001 "));
        assert_null(strstr(text, "00002 "));
        assert_non_null(strstr(text, "00003 "));
        store_close(s);
}

static void an_error_of_the_reader_ends_a_list(void **state) {
        Seen seen = { .text = STRBUF_INIT, .error = -ENOMEM };
        Store *s = open_store(*state);
        put(s, "a", 1, 100, "a");
        put(s, "b", 1, 100, "b");
        assert_int_equal(store_failure_list(s, see, &seen), -ENOMEM);
        _cleanup_free_ char *text = strbuf_detach(&seen.text);
        assert_string_equal(text, "a " KEY " 1 100 a;");
        store_close(s);
}

static int see_and_drop(const StoredFailure *f, void *userdata) {
        Seen *seen = userdata;
        (void)see(f, seen);
        return store_failure_drop(seen->store, UINT64_C(1) << 62);
}

static void the_reader_may_change_the_store(void **state) {
        Store *s = open_store(*state);
        Seen seen = { .text = STRBUF_INIT, .store = s };
        put(s, "a", 1, 100, "a");
        put(s, "b", 1, 100, "b");
        assert_int_equal(store_failure_list(s, see_and_drop, &seen), 0);
        _cleanup_free_ char *text = strbuf_detach(&seen.text);
        assert_string_equal(text, "a " KEY " 1 100 a;");
        store_close(s);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(failures_are_there_after_a_restart_each_name_once_and_in_order),
                TEST(what_is_older_is_dropped),
                TEST(beyond_the_bound_the_oldest_are_dropped),
                TEST(an_error_of_the_reader_ends_a_list),
                TEST(the_reader_may_change_the_store),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
