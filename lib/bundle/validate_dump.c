/* What is said of members that nobody can look into: the runtime's state files have no public format, and zero bytes have
 * nothing in them. */
#include <string.h>

#include "lib/bundle/validate_private.h"

const char *validator_opaque_note(SourceKind source, MemberKind kind) {
        switch (kind) {
        case MEMBER_NC_STATE:
        case MEMBER_CC_CORE_STATE:
        case MEMBER_NRT_LOG:
                return "format not public";
        case MEMBER_OTHER:
                /* The grammar of names is the runtime's only for its own directory. */
                return source == SOURCE_NEURON_CORE_DUMP ? "name not known" : "";
        default:
                return "";
        }
}

const char *validator_empty_note(MemberKind kind, const char *name) {
        if (kind == MEMBER_NTFF || strcmp(name, "cpu_util.pb") == 0 ||
            strcmp(name, "host_mem.pb") == 0)
                return "zero bytes are normal for this file in some modes of profiling";
        return "";
}
