/* What becomes of the links of a bundle that is not worked on. Pure; the README of this folder
 * draws it. */
#pragma once

#include <stdbool.h>

#include "lib/neuron/record.h"

typedef enum LinkFate {
        LINKS_KEEP, /* something still needs them: a person, the bundle that they wait for, or the
                       retention runner, which releases them later */
        LINKS_RECHECK, /* they may hold what was not shipped: that becomes a supplement first */
        LINKS_RELEASE, /* nobody needs them */
        LINKS_UNKNOWN, /* the store knows nothing of them */
} LinkFate;

typedef struct LinkFacts { /* borrowed */
        /* The row of the bundle that the links are called after; NULL: there is none. */
        const BundleRecord *rec;
        /* Without such a row, and with the id of a supplement: the row of the bundle whose late
         * files they hold; NULL: there is none. */
        const BundleRecord *base;
        bool is_of_source;   /* that row is of the source that asks */
        bool all_is_shipped; /* no file of the unit has changed or come since it was read */
} LinkFacts;

LinkFate link_rule(const LinkFacts *f);
