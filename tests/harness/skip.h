/* Leaving a test that this machine cannot run. cmocka's own skip() speaks TAP wrongly up to 1.1.7
 * (`not ok … # SKIP`), which the test driver counts as a failure; this says why in a comment and
 * returns. */
#pragma once

#include <stdio.h>

#define SKIP_BECAUSE(reason)                                                                       \
        do {                                                                                       \
                printf("# not tested here: %s: %s\n", __func__, (reason));                         \
                return;                                                                            \
        } while (0)
