#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>

#include "agent/containers_private.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "tests/lib/base/scratch.h"

typedef struct Place {
        Scratch *scratch;
        Containers containers;
        StrBuf missing; /* "SOURCE:PATH;" */
} Place;

static void on_missing(const char *source, const char *unit_path, const char *path,
                       void *userdata) {
        Place *p = userdata;
        _cleanup_free_ char *is = path_join(p->scratch->path, "core-dumps/77/dt-1");
        assert_string_equal(unit_path, is);
        strbuf_addf(&p->missing, "%s:%s;", source, path);
}

static bool is_gone(const char *source, const char *unit_path, void *userdata) {
        (void)unit_path;
        (void)userdata;
        return strcmp(source, "gone") == 0;
}

static int setup(void **state) {
        Place *p = calloc(1, sizeof *p);
        void *scratch = NULL;
        assert_int_equal(scratch_setup(&scratch), 0);
        p->scratch = scratch;
        p->missing = (StrBuf)STRBUF_INIT;
        p->containers = (Containers){
                .root = p->scratch->path,
                .context = { .on_missing = on_missing, .is_stranded = is_gone, .userdata = p }
        };
        list_init(&p->containers.units);
        list_init(&p->containers.batches);
        *state = p;
        return 0;
}

static int teardown(void **state) {
        Place *p = *state;
        containers_units_done(&p->containers);
        strbuf_done(&p->missing);
        void *scratch = p->scratch;
        free(p);
        return scratch_teardown(&scratch);
}

static ContainerUnit *taken(Place *p, const char *source, uid_t uid) {
        ContainerNote n = { .source = (char *)source, .relative = (char *)"dt-1", .uid = uid };
        ContainerUnit *u = NULL;
        assert_int_equal(containers_unit_take(&p->containers, &n, "77", &u), 0);
        return u;
}

static void the_number_of_another_users_copy_leads_nowhere(void **state) {
        Place *p = *state;
        ContainerUnit *of_a = taken(p, "core-dumps", 1000), *u = NULL;
        ContainerNote b = { .source = (char *)"core-dumps",
                            .relative = (char *)"dt-1",
                            .uid = 1001 };
        assert_int_equal(containers_unit_take(&p->containers, &b, "77", &u), -EPERM);
        assert_null(u);
        assert_int_equal(of_a->uid, 1000);
        of_a->is_there = true;
        assert_int_equal(containers_unit_take(&p->containers, &b, "77", &u), -EPERM);
        assert_ptr_equal(taken(p, "core-dumps", 1000), of_a);
}

static void tell(const Place *p, const char *text) {
        _cleanup_free_ char *path = path_join(p->scratch->path, CONTAINER_UNITS_DIRECTORY);
        assert_int_equal(fs_mkdir_p(path, 0700), 0);
        _cleanup_close_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_int_equal(fs_write_file(fd, "core-dumps.77.json", text, strlen(text), 0600), 0);
}

#define TOLD "{\"source\":\"core-dumps\",\"unit\":\"77\",\"relative\":\"dt-1\",\"uid\":1000,"

static void what_is_missing_is_promised_again_but_for_what_has_come(void **state) {
        Place *p = *state;
        _cleanup_free_ char *unit = path_join(p->scratch->path, "core-dumps/77/dt-1/d");
        assert_int_equal(fs_mkdir_p(unit, 0700), 0);
        _cleanup_close_ int fd = open(unit, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_int_equal(fs_write_file(fd, "there", "x", 1, 0600), 0);
        tell(p, TOLD "\"is_whole\":false,\"left_out\":[{\"path\":\"big\"},{\"path\":\"d/there\"},"
                     "{\"path\":\"../out\"}]}");
        assert_int_equal(containers_promise_again(&p->containers.context, p->scratch->path), 0);
        assert_string_equal(p->missing.text, "core-dumps:big;");
}

static void where_nobody_knows_what_is_missing_something_is(void **state) {
        Place *p = *state;
        tell(p, TOLD "\"is_whole\":false,\"left_out\":[]}");
        assert_int_equal(containers_promise_again(&p->containers.context, p->scratch->path), 0);
        assert_string_equal(p->missing.text, "core-dumps:;");
}

static void of_a_whole_copy_nothing_is_missing(void **state) {
        Place *p = *state;
        assert_int_equal(containers_promise_again(&p->containers.context, p->scratch->path), 0);
        tell(p, TOLD "\"is_whole\":true,\"left_out\":[]}");
        assert_int_equal(containers_promise_again(&p->containers.context, p->scratch->path), 0);
        assert_int_equal(p->missing.n, 0);
}

static void what_is_left_of_an_order_takes_room(void **state) {
        Place *p = *state;
        ContainersBatch b = { .bytes = 5 };
        taken(p, "core-dumps", 1000)->bytes = 7;
        list_append(&p->containers.batches, &b.link);
        assert_int_equal(containers_bytes(&p->containers), 12);
        list_remove(&b.link);
}

static void a_copy_whose_source_is_gone_is_counted_until_it_is_over(void **state) {
        Place *p = *state;
        ContainerUnit *u = taken(p, "gone", 1000);
        taken(p, "core-dumps", 1000)->is_there = true;
        assert_int_equal(containers_n_stranded(&p->containers), 0); /* nothing lies there yet */
        u->is_there = true;
        assert_int_equal(containers_n_stranded(&p->containers), 1);
        containers_tell_stranded(&p->containers);
        assert_true(u->is_told_stranded);
        u->is_over = true;
        assert_int_equal(containers_n_stranded(&p->containers), 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
                TEST(the_number_of_another_users_copy_leads_nowhere),
                TEST(what_is_missing_is_promised_again_but_for_what_has_come),
                TEST(where_nobody_knows_what_is_missing_something_is),
                TEST(of_a_whole_copy_nothing_is_missing),
                TEST(what_is_left_of_an_order_takes_room),
                TEST(a_copy_whose_source_is_gone_is_counted_until_it_is_over),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
