/* A table of bundles over a real store, on a disk that fails for as long as a test wants. Each test
 * says what happens on_final. */
#pragma once

#include "tests/harness/unit.h"

#include "agent/store/bundle.h"
#include "lib/base/cleanup.h"
#include "tests/harness/fake_clock.h"
#include "tests/lib/base/scratch.h"

#define T0 (UINT64_C(1779859295) * USEC_PER_SEC)

static int disk_error;

int __real_store_update(Store *s, const BundleRecord *b);
int __wrap_store_update(Store *s, const BundleRecord *b);
int __wrap_store_update(Store *s, const BundleRecord *b) {
        return disk_error < 0 ? disk_error : __real_store_update(s, b);
}

typedef struct Fixture {
        Scratch *scratch;
        FakeClock clock;
        Store *store;
        BundleTable *table;
        unsigned n_final, n_store_errors;
        char final_id[BUNDLE_ID_SIZE];
        BundleState final_state;
        BundleState state_on_disk; /* when on_final was called; N_BUNDLE_STATES = no such row */
        bool was_durable;          /* what on_final was told of, each time */
        bool saves_others;         /* on_final changes what else is there */
} Fixture;

static void on_final(Bundle *b, void *userdata);

static void on_store_error(void *userdata) {
        ((Fixture *)userdata)->n_store_errors++;
}

static Store *open_store(const char *path) {
        Store *s = NULL;
        char *aside = NULL;
        pid_t pid;
        assert_int_equal(store_open(&s, path, &aside, &pid), 0);
        assert_null(aside);
        return s;
}

static void open_table(Fixture *f) {
        BundleTableCallbacks callbacks = { on_final, on_store_error, NULL, f };
        _cleanup_free_ char *path = NULL;
        assert_true(asprintf(&path, "%s/state", f->scratch->path) > 0);
        f->store = open_store(path);
        assert_int_equal(bundle_table_new(&f->table, f->store, &f->clock.clock, &callbacks), 0);
}

static void close_table(Fixture *f) {
        f->table = bundle_table_free(f->table);
        f->store = store_close(f->store);
}

static int setup(void **state) {
        void *scratch = NULL;
        Fixture *f = calloc(1, sizeof *f);
        if (!f || scratch_setup(&scratch) < 0)
                return -1;
        f->scratch = scratch;
        f->clock = FAKE_CLOCK(T0, USEC_PER_DAY);
        f->was_durable = true;
        disk_error = 0;
        open_table(f);
        *state = f;
        return 0;
}

static int teardown(void **state) {
        Fixture *f = *state;
        void *scratch = f->scratch;
        close_table(f);
        free(f);
        return scratch_teardown(&scratch);
}
