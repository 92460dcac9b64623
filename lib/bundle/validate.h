/* Validates members while they are read for the bundle. Each gets a verdict for the manifest; a bad
 * verdict never keeps a member out of the bundle. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/strbuf.h"
#include "lib/bundle/plan.h"
#include "lib/neuron/names.h"

typedef enum Verdict {
        VERDICT_OK,        /* the content has its format */
        VERDICT_SUSPECT,   /* it contradicts its format */
        VERDICT_TRUNCATED, /* it ends before its format says */
        VERDICT_EMPTY,     /* zero bytes */
        VERDICT_OPAQUE,    /* its format is not public, so nothing was checked */
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

/** Compares the beginning of a file with its size before it is shipped (NEFF data_size, ELF program
 * headers). Reads at most 64 KiB from fd with pread.
 * @return VERDICT_TRUNCATED: the header announces more bytes; VERDICT_SUSPECT: it announces fewer,
 * or is malformed; VERDICT_EMPTY: zero bytes; VERDICT_OK: no contradiction was found, also for
 * other kinds and when fd cannot be read */
Verdict validate_quick(int fd, MemberKind kind, uint64_t size_bytes);

/** Reports what is missing from the members of a Neuron profile: an NTFF in model mode without its
 * NEFF, a system profile without one of its four .pb files.
 * @param on_reason  gets sentences such as `ntff 'a/7_*.ntff' has no matching neff_7.neff`; at most
 *   20, then a count  @return 0, -ENOMEM */
int validate_set(const Plan *plan, void (*on_reason)(const char *reason, void *userdata),
                 void *userdata);
