/* What concerns more than one key: names that must exist or be unique, paths that must not overlap, limits that must fit
 * together. Also settles what follows from several keys: default destinations, and `/%d-%c` where it is appended. */
#pragma once

#include "config/config.h"
#include "config/faults.h"

/** Checks and completes a configuration that config/read.c has filled, faulty keys included (their fields are NULL or the
 * default). @return 0 or -ENOMEM; faults are added */
int check_config(Config *c, Faults *faults);

/** @return what writing a bundle at this compression level takes at least, rounded up */
uint64_t check_writer_bytes(uint64_t level);
