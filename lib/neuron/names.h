/* The names that the runtime and the profilers give to directories and files, and path templates
 * with the runtime's variables. Files with other names are collected too. Touches no file. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/neuron/record.h"

/** `members[].kind` of the manifest. */
typedef enum MemberKind {
        MEMBER_NC_STATE,
        MEMBER_CC_CORE_STATE,
        MEMBER_NRT_LOG,
        MEMBER_NEFF,
        MEMBER_NTFF,
        MEMBER_SYSTEM_TRACE,
        MEMBER_ELF_CORE,
        MEMBER_SNAPSHOT,
        MEMBER_HOOK_RECORD,
        MEMBER_CRASH_REPORT,
        MEMBER_OTHER,
        N_MEMBER_KINDS,
} MemberKind;

const char *member_kind_name(MemberKind k);
int member_kind_parse(const char *s, MemberKind *ret);

typedef struct DumpName {
        MemberKind kind;
        char instance_id[INSTANCE_ID_SIZE];  /* "" = the name has none */
        int64_t device, core, pid, tid, lid; /* -1 = not in the name */
        uint64_t neff_number;                /* model mode: `<hash>` of ntff and neff */
        bool has_neff_number;
} DumpName;

/** Reads a file's name (no slashes) against the four dump patterns, the hook's two, and the profile
 * patterns; in a process-core source every file is MEMBER_ELF_CORE, and in a bundle that the agent
 * itself has made every file has that bundle's kind. Always succeeds: unknown = MEMBER_OTHER with
 * ids as far as they are there. */
void dump_name_parse(SourceKind source, const char *name, DumpName *ret);

/** @return whether the runtime or its hook gives this name to a file of a core dump */
bool dump_name_is_of_dump(const char *name);

/** Reads a directory name `<instance-id>_pid_<pid>`.
 * @param ret_instance, ret_pid  INSTANCE_ID_SIZE; NULL: not needed  @return whether it is one */
bool profile_unit_name_parse(const char *name, char *ret_instance, int64_t *ret_pid);

/** @return whether s has the form `i-` and 8 to 17 hex digits (EC2) */
bool instance_id_is_ec2(const char *s);

/* ---- path templates with the runtime's format variables (%d %c %p %t %l %i), as in
 * NEURON_RT_LOCAL_CORE_DUMP_DIRECTORY, and prefixes (also %k %n %h %u) ---- */

typedef struct PathTemplate PathTemplate;

/** Values found by a match, as spelled; "" = not in the template. */
typedef struct TemplateValues {
        char date_time[DATE_TIME_SIZE];
        char cluster_id[CLUSTER_ID_SIZE];
        char pid[24], tid[24], lid[24];
        char instance_id[INSTANCE_ID_SIZE];
} TemplateValues;

/** Values put into a prefix; NULL = the variable expands to "unknown". */
typedef struct ExpandValues {
        const char *date_time, *cluster_id, *pid, *tid, *lid, *instance_id;
        const char *kind, *source, *host, *user;
} ExpandValues;

/** @param allowed  the letters that may follow '%', e.g. "dcptli"; `%%` is always a percent sign.
 * @return 0; -EINVAL and *ret_bad (0 = a lone % at the end) for any other letter; -ENOMEM */
int path_template_new(PathTemplate **ret, const char *text, const char *allowed, char *ret_bad);
PathTemplate *path_template_free(PathTemplate *t);

/** @return the fixed part: the path up to the first component with a '%' variable, `%%` resolved,
 * without trailing slash. */
const char *path_template_fixed(const PathTemplate *t);

/** @return number of components below the fixed part (0 = no variables: the fixed part itself is
 * the unit) */
size_t path_template_depth(const PathTemplate *t);
bool path_template_has(const PathTemplate *t, char letter);

/** Matches a path relative to the fixed part (exactly depth components). %d takes
 * `yyyy-mm-dd-HH-MM`, `yyyymmdd-HHMMSS`; %c 1..32 hex digits; %p %t %l decimal; %i `i-<hex>` or a
 * host name. All combinations, any order, several in one component.
 * @return whether it matches; *ret may be NULL */
bool path_template_match(const PathTemplate *t, const char *relative, TemplateValues *ret);

/** Matches one component alone, the i-th below the fixed part. For directories above the template's
 * depth.
 * @return whether it matches; *ret gets only this component's values */
bool path_template_match_component(const PathTemplate *t, size_t i, const char *name,
                                   TemplateValues *ret);

/** Expands for a destination. Each value is made safe: '/' and control characters become '_', "."
 * and ".." and "" become "unknown". @return the caller's, NULL for lack of memory */
char *path_template_expand(const PathTemplate *t, const ExpandValues *values);

/** Reads a date-time, `yyyymmdd-HHMMSS` as in the names of directories or `yyyy-mm-dd-HH-MM` as in
 * the documentation. @return 0 and UTC microseconds; -EINVAL, also for a date that does not exist
 */
int date_time_parse(const char *s, uint64_t *ret_usec);
