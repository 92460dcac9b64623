/* The table of collectors with the functions of some rows replaced by those of a test. Names,
 * capabilities and the sandbox stay as in production. */
#pragma once

#include "collectors/collector_table.h"
#include "tests/harness/unit.h"

enum { FAKE_ROWS_MAX = 32 };

/* @param fakes  name, run and follow count */
static inline const CollectorTable *fake_table(const Collector *fakes, size_t n_fakes) {
        static Collector rows[FAKE_ROWS_MAX];
        static CollectorTable table = { .rows = rows };
        assert_true(collector_table.n <= FAKE_ROWS_MAX);
        table.n = collector_table.n;
        for (size_t i = 0; i < table.n; i++)
                rows[i] = collector_table.rows[i];
        for (size_t i = 0; i < n_fakes; i++) {
                const Collector *found = collector_table_find(&table, fakes[i].name);
                assert_non_null(found);
                rows[found - rows].run = fakes[i].run;
                rows[found - rows].follow = fakes[i].follow;
        }
        return &table;
}
