/* The manifest: streamed out as JSON (members are never held as a tree), read back for verify and get. */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "lib/bundle/parts.h"
#include "lib/bundle/plan.h"
#include "lib/bundle/writer.h"

typedef struct ManifestInfo {                    /* borrowed */
        const char *id, *object, *supplement_of; /* supplement_of NULL = null */
        SourceKind kind;
        uint64_t bytes; /* of the object */
        bool complete;
        const char *const *reasons; /* NULL-terminated */
        const char *instance_id, *hostname;
        const char *const *labels;             /* key, value, key, value …, NULL */
        const char *source_name, *source_path; /* raw path */
        uid_t uid;
        const char *user;                   /* NULL = unknown */
        const char *cluster_id, *date_time; /* NULL = no incident → "incident": null */
        const char *agreed;                 /* "alone" */
        const char *agent_version;
        uint64_t created_usec;
} ManifestInfo;

/** Writes the whole document through `put` in pieces of a few KiB. @return 0, or the first negative of put;
 * -EINVAL when a member has no digest (a writer that did not begin at frame 0) */
int manifest_write(const ManifestInfo *info, const Plan *plan, const BundleWriter *writer,
                   const Parts *parts, const uint8_t plan_sha256[static SHA256_SIZE],
                   int (*put)(const void *data, size_t n, void *userdata), void *userdata);

/** Reads and checks a manifest of at most 256 MiB: schema name, types, bounds; members in order of their raw paths, none twice,
 * none that leads out of a directory; fields not known are let be. Holds a tree some six times as large as the text.
 * @return 0 and *ret, to be json_decref'ed; -EINVAL with *ret_fault, one sentence, the caller's */
int manifest_read(const void *data, size_t n, json_t **ret, char **ret_fault);
