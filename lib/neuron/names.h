/* The names that the runtime and the profilers give to files, where what does not match is
 * collected too, and the names that we give to what we deliver. Pure text. */
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
 * patterns; in a process-core source every file is MEMBER_ELF_CORE. Always succeeds: unknown =
 * MEMBER_OTHER with ids as far as they are there. */
void dump_name_parse(SourceKind source, const char *name, DumpName *ret);

/** Reads a directory name `<instance-id>_pid_<pid>`. @return whether it is one */
bool profile_unit_name_parse(const char *name, char ret_instance[INSTANCE_ID_SIZE],
                             int64_t *ret_pid);

/** @return whether s has the form `i-` and 8 to 17 hex digits (EC2) */
bool instance_id_is_ec2(const char *s);

/* ---- what we deliver ---- */

#define BUNDLE_SUFFIX ".tar.zst"
#define MANIFEST_SUFFIX ".manifest.json"

/** @param stem  a bundle's id, or a path that ends in one
 * @return the stem and the suffix, the caller's; NULL for lack of memory */
char *bundle_object_name(const char *stem);
char *bundle_manifest_name(const char *stem);

typedef enum BundleFile { BUNDLE_NEITHER, BUNDLE_OBJECT, BUNDLE_MANIFEST } BundleFile;
/** By its suffix alone, which must have a name before it.
 * @param key  or a path or a name  @param ret_stem  length of the key without its suffix; may be
 * NULL */
BundleFile bundle_file_kind(const char *key, size_t *ret_stem);

/** Checked strictly, with a valid bundle id, that no foreign keys match, whatever the prefix.
 * @param instance_id  NULL = anybody's
 * @return whether a key is a bundle's object or manifest: `[…/]<instance-id>/<bundle-id><suffix>`
 */
bool bundle_key_belongs_to(const char *key, const char *instance_id);

/** What all keys of a destination begin with.
 * @param fixed  path_template_fixed() of its prefix, with or without a slash before it
 * @return `neuron/`, or "" when nothing is fixed; the caller's; NULL for lack of memory */
char *s3_key_prefix(const char *fixed);
/** The object that is written and deleted to see whether a bucket can be written: one an instance.
 * @param key_prefix  of s3_key_prefix()  @return the caller's, NULL for lack of memory */
char *s3_probe_key(const char *key_prefix, const char *instance_id);
