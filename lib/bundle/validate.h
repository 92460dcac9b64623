/* Validates members while they are read for the bundle: a verdict each, never a reason to lose
 * evidence. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/strbuf.h"
#include "lib/neuron/names.h"

typedef enum Verdict {
        VERDICT_OK,
        VERDICT_SUSPECT,
        VERDICT_TRUNCATED,
        VERDICT_EMPTY,
        VERDICT_OPAQUE,
        N_VERDICTS
} Verdict;
const char *verdict_name(Verdict v);
int verdict_parse(const char *s, Verdict *ret);

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
int validator_new(Validator **ret, const ValidatorOptions *order);
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

/** What is missing from a set of members by the rules of its kind: an NTFF in model mode without
 * its NEFF, a system profile without one of its four .pb files … Add every member, then finish. */
typedef struct SetCheck SetCheck;
int set_check_new(SetCheck **ret, SourceKind source);
SetCheck *set_check_free(SetCheck *c);
int set_check_add(SetCheck *c, const char *path, const DumpName *name, uint64_t size_bytes);
/** Calls on_reason with sentences such as `ntff '…' has no neff_<hash>.neff beside it`; at most 20,
 * then a count. */
int set_check_finish(SetCheck *c, void (*on_reason)(const char *reason, void *userdata),
                     void *userdata);
