/* The names that the runtime and the profilers give to files. What does not match is collected all
 * the same. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/dump/record.h"

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
 * patterns; in a process-core source every file is MEMBER_ELF_CORE. Always succeeds: unknown =
 * MEMBER_OTHER with ids as far as they are there. */
void dump_name_parse(SourceKind source, const char *name, DumpName *ret);

/** Reads a directory name `<instance-id>_pid_<pid>`. @return whether it is one */
bool profile_unit_name_parse(const char *name, char ret_instance[INSTANCE_ID_SIZE],
                             int64_t *ret_pid);

/** @return whether s has the form `i-` and 8 to 17 hex digits (EC2) */
bool instance_id_is_ec2(const char *s);
