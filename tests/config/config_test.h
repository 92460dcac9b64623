/* What the tests of config/ share: parsing text, and gathering what is printed. */
#pragma once

#include "tests/harness/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/config.h"

#define CONFIG_TEST_FILE "neuron-collectd.yaml"

/* The environment of every test; nothing else is defined. */
static char *const config_test_environment[] = { "DUMPS=/scratch/dumps",
                                                 "EMPTY=", "NESTED=${DUMPS}", "BAD_UTF8=\xff\xfe",
                                                 NULL };

static inline int config_test_parse(Config **ret, const char *text, Diags *diags) {
        return config_parse(ret, CONFIG_TEST_FILE, text, strlen(text), config_test_environment,
                            diags);
}

/** @return what config_print writes; the caller's */
static inline char *config_test_print(const Config *c) {
        char *text = NULL;
        size_t n;
        FILE *f = open_memstream(&text, &n);

        assert_non_null(f);
        assert_int_equal(config_print(c, f), 0);
        assert_int_equal(fclose(f), 0);
        return text;
}

/** @return all faults, one a line, in order; the caller's */
static inline char *config_test_faults(const Diags *diags) {
        char *text = NULL;
        size_t n;
        FILE *f = open_memstream(&text, &n);

        assert_non_null(f);
        diag_print(diags, f);
        assert_int_equal(fclose(f), 0);
        return text;
}
