/* Feeds content to a validator in several cuts and asserts that the answer is the same for all of
 * them. */
#pragma once

#include <stdlib.h>
#include <string.h>

#include "tests/harness/unit.h"

#include "lib/bundle/validate.h"

typedef enum Feed { FEED_DATA, FEED_HOLES, FEED_NEEDED, N_FEEDS } Feed;

/* FEED_HOLES: a run of zeros goes in as zeros, as a hole would. FEED_NEEDED: so does all that the
 * validator says it does not need. */
static inline void feed_cut(Validator *v, const uint8_t *data, size_t n, size_t cut, Feed feed) {
        for (size_t i = 0; i < n;) {
                size_t m = n - i < cut ? n - i : cut, zeros = 0;
                while (feed == FEED_HOLES && zeros < m && data[i + zeros] == 0)
                        zeros++;
                if (feed == FEED_NEEDED && validator_skippable_bytes(v) > 0)
                        zeros = validator_skippable_bytes(v) < m
                                        ? (size_t)validator_skippable_bytes(v)
                                        : m;
                if (zeros > 0)
                        validator_update(v, NULL, zeros);
                if (feed == FEED_NEEDED && zeros > 0)
                        m = zeros;
                validator_update(v, data + i + zeros, m - zeros);
                i += m;
        }
}

/* @return the verdict; detail gets the sentence */
static inline Verdict verdict_of(SourceKind source, const char *name, MemberKind kind,
                                 const void *data, size_t n, char detail[256]) {
        static const size_t cuts[] = { SIZE_MAX / 2, 1, 2, 7, 64, 1000, 4096 };
        Verdict first = N_VERDICTS;

        for (size_t i = 0; i < N_FEEDS * sizeof cuts / sizeof *cuts; i++) {
                Validator *v = NULL;
                char *text = NULL;
                assert_int_equal(validator_new(&v, &(ValidatorOptions){ source, kind, name, n }),
                                 0);
                feed_cut(v, data, n, cuts[i / N_FEEDS], (Feed)(i % N_FEEDS));
                Verdict verdict = validator_finish(v, &text);
                assert_non_null(text);
                if (i == 0) {
                        first = verdict;
                        assert_true(strlen(text) < 256);
                        strcpy(detail, text);
                }
                assert_int_equal(verdict, first);
                assert_string_equal(text, detail);
                free(text);
                validator_free(v);
        }
        return first;
}
