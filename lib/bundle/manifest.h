/* The manifest of a bundle: written as JSON in pieces, without a tree of its members, and read back
 * in three ways, which differ in what they check:
 *
 *   manifest_read()       the whole document as a tree, all fields checked: verify, get
 *   manifest_stream_*()   line by line, one member in memory: proof of a delivery, supplements
 *   manifest_read_head()  only the section `bundle`, types alone: lists
 *
 * The last two rely on the lines that manifest_write() makes: one for each section and member. */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "lib/bundle/packer.h"
#include "lib/bundle/plan.h"

#define MANIFEST_FAILURES_MAX 128

/* One failure by a hook's note; strings NULL = not given. */
typedef struct ManifestFailure { /* borrowed */
        bool has_code;
        int64_t code;     /* NRT_STATUS */
        const char *name; /* the symbol of it; of an error code that is no number and no symbol, the
                             text */
        const char *location, *neff_name, *neff_uuid;
        const char *container; /* id of the hook's container; NULL = none or not known: the field is
                                  left out */
        bool has_pid, has_tid, has_log_id;
        uint64_t pid, tid, log_id; /* by the runtime: in the process's own namespace */
        int64_t rank;              /* -1 = not known */
        uint64_t time_usec;        /* CLOCK_REALTIME, when the agent received the note */
} ManifestFailure;

/* Which job it happened to. */
typedef struct ManifestJob { /* borrowed */
        const char *key;     /* NULL = not known */
        const char *source;
        int64_t rank, world_size; /* -1 = not known */
} ManifestJob;

typedef struct ManifestInfo {                    /* borrowed */
        const char *id, *object, *supplement_of; /* supplement_of NULL = null */
        const char (*related)[BUNDLE_ID_SIZE];   /* ids of bundles that it is about */
        size_t n_related;
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
        bool is_derived;                    /* not as the runtime named it */
        const char *agreed;                 /* `alone`, `bus`, `store` */
        const char *failure_key;            /* written when failure_n is not 0 */
        uint32_t failure_n;
        const ManifestJob *job; /* NULL = null; written only with an incident */
        /* In the order in which they came: the first one is `failure`, and all of them are
         * `failures` when there are more. */
        const ManifestFailure *failures;
        size_t n_failures; /* no more than MANIFEST_FAILURES_MAX are written */
        const char *agent_version;
        uint64_t created_usec;
} ManifestInfo;

typedef struct ManifestContent { /* what was written; borrowed */
        const Plan *plan;
        const BundleWriter *writer; /* NULL: no members are written */
        const Parts *parts;
        const uint8_t *plan_sha256; /* SHA256_SIZE bytes */
} ManifestContent;

/** What a line about a bundle says of the failure: a JSON object with `code`, `name`, `job` (its
 * key) and `rank`, each null where it is not known. @param f  NULL @param job  NULL
 * @return the caller's, NULL when nothing is known, or for lack of memory */
char *manifest_summarize_failure(const ManifestFailure *f, const ManifestJob *job);

/** Writes the document through `put` in pieces of a few KiB. @return 0, or the first negative of
 * put; -EINVAL when a member has no digest (a writer that did not begin at frame 0) */
int manifest_write(const ManifestInfo *info, const ManifestContent *object,
                   int (*put)(const void *data, size_t n, void *userdata), void *userdata);

/** Reads and checks a manifest of at most 256 MiB: schema name, types, bounds; members in order of
 * their raw paths, none twice, none that leads out of a directory; unknown fields are ignored.
 * Holds a tree some six times as large as the text.
 * @return 0 and *ret, to be json_decref'ed; -EINVAL with *ret_fault, one sentence, the caller's */
int manifest_read(const void *data, size_t n, json_t **ret, char **ret_fault);

/** The summary of an existing manifest: its section `bundle`, which comes first. */
typedef struct ManifestHead {
        char id[BUNDLE_ID_SIZE];
        uint8_t plan[SHA256_SIZE];
        uint64_t bytes; /* of the object */
        bool complete;
        char *reasons; /* JSON array; owned */
        char *failure; /* manifest_summarize_failure(); NULL: none is in the text; owned */
        Part *parts;   /* owned; first_frame and n_frames are not set */
        size_t n_parts;
} ManifestHead;

/* Room for 10,000 parts and a thousand reasons. */
#define MANIFEST_HEAD_MAX_BYTES (4 * 1024 * 1024)

/** Reads the section `bundle` from the beginning of a manifest in the form of manifest_write(),
 * without its members. Checks the schema and the types of the fields of ManifestHead, and nothing
 * else. @return 0; -EINVAL: not such a manifest; -ENOMEM */
int manifest_read_head(const char *text, size_t n, ManifestHead *ret);
void manifest_head_done(ManifestHead *h);

/* Reads a manifest in the form of manifest_write(), in pieces of any size, one member at a time.
 * Only manifest_stream_end() says whether it was complete. */
typedef struct ManifestStream ManifestStream;

typedef struct ManifestMember {
        const char *path; /* raw; borrowed for the call */
        uint64_t bytes;
        uint8_t sha256[SHA256_SIZE];
        bool is_sparse_digest; /* member_digest.h */
} ManifestMember;
/** @return 0, or a negative errno that ends the reading */
typedef int (*ManifestOnMember)(const ManifestMember *m, void *userdata);

/** @param on_member  called for each member in order; NULL */
int manifest_stream_new(ManifestStream **ret, ManifestOnMember on_member, void *userdata);
ManifestStream *manifest_stream_free(ManifestStream *s);
DEFINE_CLEANUP(ManifestStream, manifest_stream_free);

/** @return 0; -EINVAL: not such a manifest, also in later calls; -ENOMEM; the error of on_member */
int manifest_stream_feed(ManifestStream *s, const void *data, size_t n);

/** Says that nothing follows. @return 0 and *ret: the manifest is complete, and its fields are
 * those that manifest_read() accepts, except that `frame`, `offset` and `header` of members are not
 *   compared with the object, and that the size has no limit; MANIFEST_E_TRUNCATED: the beginning
 * of a manifest, or empty; -EINVAL: not such a manifest; -ENOMEM */
enum { MANIFEST_E_TRUNCATED = 1 };
int manifest_stream_end(ManifestStream *s, ManifestHead *ret);
