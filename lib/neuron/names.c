/* File names as documented for the runtime, its profiler and our hook: one table of patterns, and a
 * look for ids in all other names. And our own names. */
#include "lib/neuron/names.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/ids.h"
#include "lib/neuron/template.h"

static const char *const member_kinds[N_MEMBER_KINDS] = {
        [MEMBER_NC_STATE] = "nc-state",
        [MEMBER_CC_CORE_STATE] = "cc-core-state",
        [MEMBER_NRT_LOG] = "nrt-log",
        [MEMBER_NEFF] = "neff",
        [MEMBER_NTFF] = "ntff",
        [MEMBER_SYSTEM_TRACE] = "system-trace",
        [MEMBER_ELF_CORE] = "elf-core",
        [MEMBER_SNAPSHOT] = "snapshot",
        [MEMBER_HOOK_RECORD] = "hook-record",
        [MEMBER_CRASH_REPORT] = "crash-report",
        [MEMBER_OTHER] = "other",
};

DEFINE_WORDS(member_kind, MemberKind, member_kinds);

bool instance_id_is_ec2(const char *s) {
        if (strncmp(s, "i-", 2) != 0)
                return false;
        size_t n = strspn(s + 2, "0123456789abcdef");
        return s[2 + n] == '\0' && n >= 8 && n <= 17;
}

/* %i instance, %n device, %k core, %p pid, %t tid, %l lid, %h the number that pairs ntff and neff,
 * %x a number of no further use. Sources: core-dump deep dive (Neuron SDK 2.32), names of Neuron
 * Explorer's captures, and our own hook. The first row that matches counts. */
/* clang-format off */
static const struct NameRow {
        const char *pattern;
        MemberKind kind;
} name_rows[] = {
        { "%i-nd%n-nc%k-pid-%p-tid-%t-lid-%l",                        MEMBER_NC_STATE },
        { "%i-nd%n-cc-core-%k-pid-%p-tid-%t-lid-%l",                  MEMBER_CC_CORE_STATE },
        { "%i-nrt-pid-%p.log",                                        MEMBER_NRT_LOG },
        { "nrt-%i-pid-%p.log",                                        MEMBER_NRT_LOG },
        { "%i-neuron-dump-pid-%p-tid-%t-lid-%l-snapshot.json",        MEMBER_SNAPSHOT },
        { "%i-neuron-dump-pid-%p-tid-%t-lid-%l.json",                 MEMBER_HOOK_RECORD },
        { "crash-pid-%p.json",                                        MEMBER_CRASH_REPORT },
        { "crash-pid-%p.md",                                          MEMBER_CRASH_REPORT },
        { "%h_instid_%x_vnc_%y.ntff",                                 MEMBER_NTFF },
        { "neff_%h.neff",                                             MEMBER_NEFF },
        { "ntrace.pb",                                                MEMBER_SYSTEM_TRACE },
        { "trace_info.pb",                                            MEMBER_SYSTEM_TRACE },
        { "cpu_util.pb",                                              MEMBER_SYSTEM_TRACE },
        { "host_mem.pb",                                              MEMBER_SYSTEM_TRACE },
        { "trace.json",                                               MEMBER_SYSTEM_TRACE },
        { "system_profile.json",                                      MEMBER_SYSTEM_TRACE },
        { "neuron_framework_trace_rank_%x.json",                      MEMBER_SYSTEM_TRACE },
};
static const struct SuffixRow {
        const char *suffix;
        MemberKind kind;
} suffix_rows[] = {
        { ".neff",    MEMBER_NEFF },
        { ".ntff",    MEMBER_NTFF },
        { ".pftrace", MEMBER_SYSTEM_TRACE },
};
/* clang-format on */

static bool number_of(const PatternMatch *m, char letter, int64_t *ret) {
        char text[24];
        uint64_t v;

        *ret = -1;
        pattern_copy(m, letter, text, sizeof text);
        if (text[0] == '\0')
                return true;
        if (parse_u64_range(text, 0, INT64_MAX, &v) < 0)
                return false;
        *ret = (int64_t)v;
        return true;
}

/* @return false when a number is larger than any the runtime could mean: then the name is none of
 * its names */
static bool store_match(const PatternMatch *m, MemberKind kind, DumpName *ret) {
        DumpName name = { .kind = kind };
        char hash[24];

        if (!number_of(m, 'n', &name.device) || !number_of(m, 'k', &name.core) ||
            !number_of(m, 'p', &name.pid) || !number_of(m, 't', &name.tid) ||
            !number_of(m, 'l', &name.lid))
                return false;
        pattern_copy(m, 'i', name.instance_id, sizeof name.instance_id);
        pattern_copy(m, 'h', hash, sizeof hash);
        name.has_neff_number = parse_u64(hash, &name.neff_number) == 0;
        *ret = name;
        return true;
}

static bool match_rows(const char *name, DumpName *ret) {
        PatternMatch m;

        for (size_t i = 0; i < ELEMENTSOF(name_rows); i++)
                if (pattern_match(name_rows[i].pattern, name, &m) &&
                    store_match(&m, name_rows[i].kind, ret))
                        return true;
        return false;
}

static bool is_alnum(char c) {
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Whether position i of the name begins a word: `pid` in `x_pid_3`, not in `rapid_3`. */
static bool starts_word(const char *name, size_t i) {
        return i == 0 || !is_alnum(name[i - 1]);
}

/* An EC2 id anywhere in a name that no pattern knows, between characters that cannot be part of it.
 * Only the two lengths that EC2 has ever given: a shorter or longer run of hex digits is more
 * likely something else. */
static void find_instance_id(const char *name, char ret[INSTANCE_ID_SIZE]) {
        for (size_t i = 0; name[i] != '\0'; i++) {
                size_t n;

                if (strncmp(name + i, "i-", 2) != 0 || !starts_word(name, i))
                        continue;
                n = strspn(name + i + 2, "0123456789abcdef");
                if ((n != 8 && n != 17) || is_alnum(name[i + 2 + n]))
                        continue;
                memcpy(ret, name + i, n + 2);
                ret[n + 2] = '\0';
                return;
        }
}

/* `<word>-<number>` or `<word>_<number>`, as the runtime spells its ids. */
static int64_t find_number(const char *name, const char *word) {
        size_t n_word = strlen(word);

        for (size_t i = 0; name[i] != '\0'; i++) {
                char text[24] = "";
                uint64_t v;
                size_t n;

                if (strncmp(name + i, word, n_word) != 0 || !starts_word(name, i) ||
                    (name[i + n_word] != '-' && name[i + n_word] != '_'))
                        continue;
                n = strspn(name + i + n_word + 1, "0123456789");
                if (n == 0 || n >= sizeof text || is_alnum(name[i + n_word + 1 + n]))
                        continue;
                memcpy(text, name + i + n_word + 1, n);
                if (parse_u64_range(text, 0, INT64_MAX, &v) == 0)
                        return (int64_t)v;
        }
        return -1;
}

static MemberKind kind_by_suffix(const char *name) {
        for (size_t i = 0; i < ELEMENTSOF(suffix_rows); i++)
                if (path_has_suffix(name, suffix_rows[i].suffix))
                        return suffix_rows[i].kind;
        return MEMBER_OTHER;
}

void dump_name_parse(SourceKind source, const char *name, DumpName *ret) {
        if (match_rows(name, ret)) {
                if (source == SOURCE_PROCESS_CORE)
                        ret->kind = MEMBER_ELF_CORE;
                return;
        }
        *ret = (DumpName){
                .kind = source == SOURCE_PROCESS_CORE ? MEMBER_ELF_CORE : kind_by_suffix(name),
                .device = -1,
                .core = -1,
                .pid = find_number(name, "pid"),
                .tid = find_number(name, "tid"),
                .lid = find_number(name, "lid"),
        };
        find_instance_id(name, ret->instance_id);
}

bool profile_unit_name_parse(const char *name, char ret_instance[INSTANCE_ID_SIZE],
                             int64_t *ret_pid) {
        PatternMatch m;
        int64_t pid;

        if (!pattern_match("%i_pid_%p", name, &m) || !number_of(&m, 'p', &pid))
                return false;
        pattern_copy(&m, 'i', ret_instance, INSTANCE_ID_SIZE);
        *ret_pid = pid;
        return true;
}

/* ---- what we deliver ---- */

char *bundle_object_name(const char *stem) {
        return strbuf_format("%s" BUNDLE_SUFFIX, stem);
}

char *bundle_manifest_name(const char *stem) {
        return strbuf_format("%s" MANIFEST_SUFFIX, stem);
}

BundleFile bundle_file_kind(const char *key, size_t *ret_stem) {
        const char *name = path_name(key), *suffix = "";
        BundleFile file = BUNDLE_NEITHER;
        if (path_has_suffix(name, BUNDLE_SUFFIX)) {
                file = BUNDLE_OBJECT;
                suffix = BUNDLE_SUFFIX;
        } else if (path_has_suffix(name, MANIFEST_SUFFIX)) {
                file = BUNDLE_MANIFEST;
                suffix = MANIFEST_SUFFIX;
        }
        if (ret_stem)
                *ret_stem = strlen(key) - strlen(suffix);
        return file;
}

bool bundle_key_belongs_to(const char *key, const char *instance_id) {
        const char *slash = strrchr(key, '/');
        size_t n_stem;
        if (!slash || bundle_file_kind(key, &n_stem) == BUNDLE_NEITHER)
                return false;
        char id[BUNDLE_ID_SIZE];
        size_t n_id = n_stem - (size_t)(slash + 1 - key);
        if (n_id >= sizeof id)
                return false;
        memcpy(id, slash + 1, n_id);
        id[n_id] = '\0';
        if (!bundle_id_is_valid(id))
                return false;
        if (!instance_id)
                return true;
        size_t n = strlen(instance_id), n_directory = (size_t)(slash - key);
        return n_directory >= n && strncmp(slash - n, instance_id, n) == 0 &&
               (n_directory == n || key[n_directory - n - 1] == '/');
}

char *s3_key_prefix(const char *fixed) {
        fixed += strspn(fixed, "/");
        return strbuf_format("%s%s", fixed, *fixed ? "/" : "");
}

char *s3_probe_key(const char *key_prefix, const char *instance_id) {
        return strbuf_format("%s.neuron-collectd-probe-%s", key_prefix, instance_id);
}
