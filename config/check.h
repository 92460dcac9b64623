/* Checks a configuration that was read; inside this folder. */
#pragma once

#include "config/config.h"
#include "config/faults.h"

/** Checks what concerns more than one key, and completes values that depend on others. @return 0 or
 * -ENOMEM; faults are added */
int config_check(Config *c, Faults *faults);
