/* What the links of bundles use on disk, and what would be free without them. Blocking: call it
 * from a worker. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "agent/retention/link_dirs.h"
#include "agent/retention/policy.h"

/** Queries the file system that the source is on: of the fixed part, or of its parent while the
 * fixed part does not exist. @return 0, -errno */
int link_usage_query_space(LinkDirs *dirs, RetentionSpace *ret, dev_t *ret_device);

typedef struct LinkUsage {
        const char *bundle_id;            /* set by the caller; borrowed */
        bool is_there;                    /* it has links; all below is zero otherwise */
        uint64_t used_bytes, used_inodes; /* on disk */
        /* These would be free without the links and without one name each at the source. */
        uint64_t free_bytes, free_inodes;
        bool is_only_ours; /* every name that is left is a link of ours */
        bool has_writer;   /* a process has a member open for writing */
} LinkUsage;

typedef struct LinkMeasure {
        LinkUsage *uses; /* zeros but for bundle_id */
        size_t n;
        bool explain_links; /* for is_only_ours: counts links of other bundles as ours too */
        bool ask_writers;   /* for has_writer, which a member that cannot be read also sets */
        /* At most so many links of one bundle are counted. Of all bundles together, too, at most so
         * many are counted as ours (explain_links). */
        size_t max_inodes;
} LinkMeasure;

/** @return 0, -ENOMEM */
int link_usage_measure(LinkDirs *dirs, const LinkMeasure *m);
