/* For the fuzz targets of validators: one content, fed whole and in random pieces (runs of zeros as
 * holes, and zeros for what the validator says it does not need). The answer must not depend on the
 * cuts, must be one of the few that the format may get, and must come with a short sentence. */
#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "lib/bundle/validate.h"

/* Not assert(): a build with NDEBUG must notice, too. */
static inline void fuzz_check(bool is_true) {
        if (!is_true)
                abort();
}

static inline uint64_t fuzz_random(uint64_t *x) {
        *x ^= *x << 13;
        *x ^= *x >> 7;
        *x ^= *x << 17;
        return *x;
}

/* @param seed  0 = whole */
static inline void fuzz_feed(Validator *v, const uint8_t *data, size_t n, uint64_t seed) {
        for (size_t i = 0; i < n;) {
                const uint64_t dice = seed ? fuzz_random(&seed) : 0;
                size_t piece = seed ? 1 + (size_t)(dice >> 8) % (dice & 1 ? 8 : 5000) : n,
                       zeros = 0;
                piece = piece < n - i ? piece : n - i;
                while (seed && dice & 2 && zeros < piece && data[i + zeros] == 0)
                        zeros++;
                if (seed && dice & 4 && zeros == 0 && validator_skippable_bytes(v) > 0)
                        zeros = validator_skippable_bytes(v) < piece
                                        ? (size_t)validator_skippable_bytes(v)
                                        : piece;
                if (zeros > 0) {
                        validator_update(v, NULL, zeros);
                        piece = zeros;
                } else
                        validator_update(v, data + i, piece);
                i += piece;
        }
}

/* @param beyond  bytes that the member has by its size but that never come: a read that fails.
 * @return the verdict */
static inline Verdict fuzz_cut(const char *name, MemberKind kind, const uint8_t *data, size_t n,
                               uint64_t beyond) {
        Verdict first = N_VERDICTS;
        char *first_detail = NULL;
        uint64_t seed = 0x9e3779b97f4a7c15u ^ n;
        for (size_t i = 0; i < n && i < 64; i++)
                seed = seed * 31 + data[i];

        for (int i = 0; i < 4; i++) {
                Validator *v = NULL;
                char *detail = NULL;
                fuzz_check(validator_new(&v, &(ValidatorOptions){ SOURCE_DIRECTORY, kind, name,
                                                                  n + beyond }) == 0);
                fuzz_feed(v, data, n, i > 0 ? (seed + (uint64_t)i) | 1 : 0);
                const Verdict verdict = validator_finish(v, &detail);
                validator_free(v);
                fuzz_check(verdict < N_VERDICTS && detail && strlen(detail) < 200);
                if (i == 0) {
                        first = verdict;
                        first_detail = detail;
                        continue;
                }
                fuzz_check(verdict == first && strcmp(detail, first_detail) == 0);
                free(detail);
        }
        fuzz_check((n + beyond == 0) == (first == VERDICT_EMPTY));
        fuzz_check(beyond == 0 || first == VERDICT_TRUNCATED);
        free(first_detail);
        return first;
}
