/* The fate of links, for every state of the bundle that they belong to. */
#include "tests/harness/unit.h"

#include "agent/retention/link_rule.h"
#include "lib/base/cleanup.h"

#define SHIPPED 1U /* all is shipped */
#define HELD 2U    /* the row says that links are held */
#define OTHER 4U   /* the row is another source's */

typedef struct Case {
        BundleState state;
        unsigned flags;
        LinkFate of_bundle, of_late; /* by its own row; by the row of the base */
} Case;

static LinkFate fate(const Case *c, bool is_late, bool is_redelivery) {
        const BundleRecord rec = { .state = c->state,
                                   .links_held = c->flags & HELD,
                                   .origin = is_redelivery ? ORIGIN_REDELIVERY : ORIGIN_FOUND };
        return link_rule(&(LinkFacts){ .rec = is_late ? NULL : &rec,
                                       .base = is_late ? &rec : NULL,
                                       .is_of_source = !(c->flags & OTHER),
                                       .all_is_shipped = c->flags & SHIPPED });
}

static void links_go_only_when_nobody_needs_them(void **state) {
        (void)state;
        static const Case cases[] = {
                { BUNDLE_SETTLING, 0, LINKS_KEEP, LINKS_KEEP },
                { BUNDLE_READY, SHIPPED, LINKS_KEEP, LINKS_KEEP },
                { BUNDLE_SHIPPING, SHIPPED, LINKS_KEEP, LINKS_KEEP },
                { BUNDLE_QUARANTINED, SHIPPED, LINKS_KEEP, LINKS_KEEP },
                { BUNDLE_DELIVERED, 0, LINKS_RECHECK, LINKS_RECHECK },
                { BUNDLE_DELIVERED, HELD, LINKS_RECHECK, LINKS_RECHECK },
                { BUNDLE_DELIVERED, SHIPPED, LINKS_RELEASE, LINKS_RECHECK },
                { BUNDLE_DELIVERED, SHIPPED | HELD, LINKS_KEEP, LINKS_RECHECK },
                { BUNDLE_DELIVERED, OTHER, LINKS_KEEP, LINKS_KEEP },
                { BUNDLE_CANCELLED, 0, LINKS_RELEASE, LINKS_RELEASE },
                { BUNDLE_CANCELLED, OTHER, LINKS_RELEASE, LINKS_KEEP },
                { BUNDLE_VANISHED, 0, LINKS_RELEASE, LINKS_KEEP },
                { BUNDLE_EVICTED, 0, LINKS_RELEASE, LINKS_RELEASE },
                { BUNDLE_EVICTED, HELD, LINKS_KEEP, LINKS_RELEASE },
        };
        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                assert_int_equal(fate(&cases[i], false, false), cases[i].of_bundle);
                assert_int_equal(fate(&cases[i], true, false), cases[i].of_late);
        }
}

static void what_is_redelivered_counts_as_delivered(void **state) {
        (void)state;
        const Case c = { .state = BUNDLE_READY };
        assert_int_equal(fate(&c, false, true), LINKS_RECHECK);
        assert_int_equal(fate(&c, true, true), LINKS_RECHECK);
}

static void links_without_a_row_are_unknown(void **state) {
        (void)state;
        assert_int_equal(link_rule(&(LinkFacts){ .is_of_source = true }), LINKS_UNKNOWN);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(links_go_only_when_nobody_needs_them),
                cmocka_unit_test(what_is_redelivered_counts_as_delivered),
                cmocka_unit_test(links_without_a_row_are_unknown),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
