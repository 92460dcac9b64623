/* Validates members while they are read for the bundle: a verdict each, never a reason to lose
 * evidence. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/strbuf.h"
#include "lib/bundle/plan.h"
#include "lib/neuron/names.h"

typedef enum Verdict {
        VERDICT_OK,
        VERDICT_SUSPECT,
        VERDICT_TRUNCATED,
        VERDICT_EMPTY,
        VERDICT_OPAQUE,
        N_VERDICTS
} Verdict;

typedef struct Validator Validator;

typedef struct ValidatorOptions {
        SourceKind source;
        MemberKind kind;
        const char *name; /* the last component of a path, or all of it; used only while
                             validator_new() runs */
        uint64_t size_bytes;
} ValidatorOptions;

/** Starts a member. Kinds without a format of public knowledge give `opaque`; zero bytes `empty`.
 * Memory is small and bounded for any content. @return 0, -ENOMEM */
int validator_new(Validator **ret, const ValidatorOptions *options);
Validator *validator_free(Validator *v);

/** Adds content in order, cut anywhere: the verdict depends on the bytes alone. A hole costs
 * nothing (a NEFF's hash is skipped after 64 MiB of it). What goes beyond size_bytes is ignored.
 * @param data  NULL = n zeros */
void validator_update(Validator *v, const void *data, uint64_t n);

/** @return how many bytes from here on do not matter: zeros may be added in their place.
 * UINT64_MAX: all the rest */
uint64_t validator_skippable_bytes(const Validator *v);

/** @param ret_detail  "" or a short sentence (`data_size 4096 but 1024 bytes follow the header`),
 * the caller's; NULL for lack of memory
 * @return the verdict; VERDICT_TRUNCATED when less than size_bytes was added */
Verdict validator_finish(Validator *v, char **ret_detail);

/** Before shipping: does the beginning of the file contradict its size (NEFF data_size, ELF program
 * headers)? Reads at most 64 KiB from fd with pread. @return VERDICT_OK when nothing speaks against
 * it (also for other kinds, and when fd cannot be read), VERDICT_EMPTY for zero bytes */
Verdict validate_quick(int fd, MemberKind kind, uint64_t size_bytes);

/** Reports what is missing from the members of a Neuron profile: an NTFF in model mode without its
 * NEFF, a system profile without one of its four .pb files.
 * @param on_reason  gets sentences such as `ntff '…' has no neff_<hash>.neff beside it`; at most
 * 20, then a count  @return 0, -ENOMEM */
int validate_set(const Plan *plan, void (*on_reason)(const char *reason, void *userdata),
                 void *userdata);
