/* What ls, get and verify read from: a bucket or a directory, behind one small interface. It only
 * reads. Calls block; they end with -EINTR when cli_is_interrupted(). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/archive/volume_owners.h"
#include "cli/common/cli.h"
#include "lib/base/cleanup.h"
#include "lib/bundle/reader.h"

typedef struct ObjectUrl { /* owned */
        char *bucket;      /* NULL = a directory */
        char *key; /* raw; of a directory the path as it was given, but for a trailing slash */
        bool ends_in_slash;
} ObjectUrl;

/** Takes `s3://bucket[/key]` or a path. What looks like a mistyped URL is refused with the right
 * spelling.
 * @param command  who complains  @return CLI_YES, CLI_USAGE, CLI_NO for lack of memory */
int object_url_parse(const char *command, const char *text, ObjectUrl *ret);
void object_url_done(ObjectUrl *u);

#define MANIFEST_MAX_BYTES (256 * MIB) /* as manifest_read() has it */
struct S3ProbeOptions;
struct ConfigDestination;

typedef struct BundleNames { /* owned */
        char *stem, *object, *manifest;
} BundleNames;

void bundle_names_done(BundleNames *n);

/* As the AWS command line has them; NULL = not given. Meaningless for a directory. */
typedef struct S3Options { /* borrowed */
        const char *endpoint_url, *region, *profile, *ca_bundle;
} S3Options;

/* Rows for a command's table of options. */
/* clang-format off */
#define S3_OPTION_ROWS(o)                                                                          \
        { "endpoint-url", .value = &(o)->endpoint_url }, { "region", .value = &(o)->region },      \
        { "profile", .value = &(o)->profile }, { "ca-bundle", .value = &(o)->ca_bundle }
/* clang-format on */
/** Parses the arguments of a command without options of its own. @param what  the one argument that
 * it requires @return CLI_YES, CLI_USAGE */
int s3_options_parse(int argc, char **argv, const char *what, S3Options *ret);

/* ---- the store ---- */

enum {
        OBJECT_E_NOT_FOUND = 1, /* no such object; of a list: no such directory */
        OBJECT_E_FAILED,        /* anything else that is not this process's own error */
};

typedef struct ObjectStore ObjectStore;

/** Says on stderr what is wrong. @return CLI_YES, CLI_NO, CLI_USAGE */
int object_store_open(ObjectStore **ret, const Cli *cli, const ObjectUrl *url,
                      const S3Options *options);
/** The same for the bundle that argv[optind] names: by its object, its manifest, or what both begin
 * with. A directory is none, which is reported. From here on signals are caught.
 * @param ret_names  keys, for bundle_names_done() */
int object_store_open_bundle(ObjectStore **ret, const Cli *cli, char **argv,
                             const S3Options *options, BundleNames *ret_names);
/** From here on keys of a directory lie below this one: symlinks are followed on the way to it, and
 * none below it. Without it that is the directory that was opened, or the one of the file. @param
 * directory  "" = the current one  @return 0, -ENOMEM */
int object_store_set_root(ObjectStore *s, const char *directory);
ObjectStore *object_store_free(ObjectStore *s);
DEFINE_CLEANUP(ObjectStore, object_store_free);

/** The sentence of the last OBJECT_E_* or failed read_at(); "" when there is none. Borrowed until
 * the next call. */
const char *object_store_error(const ObjectStore *s);
/** Says on stderr why a call failed. @param r  what it returned @return CLI_NO */
int object_store_report(const ObjectStore *s, int r);
/** What a key is called: `s3://bucket/key`, a path. @return the caller's, NULL for lack of memory
 */
char *object_store_url(const ObjectStore *s, const char *key);

typedef struct ObjectItem { /* borrowed while on_item runs */
        const char *key;
        uint64_t bytes, modified_usec;
        int64_t owner; /* a uid; OWNER_UNKNOWN in a bucket */
} ObjectItem;

typedef struct ObjectListing {
        const char *prefix; /* of keys; a directory's names that begin with a dot are passed over,
                               but for those that a prefix asks for */
        int (*on_item)(const ObjectItem *item,
                       void *userdata); /* negative ends it and is returned */
        void *userdata;
} ObjectListing;
/** In order of the key's bytes, page by page. @return 0, OBJECT_E_*, -errno */
int object_store_list(ObjectStore *s, const ObjectListing *listing);

/** @return 0 and the object's size, OBJECT_E_*, -errno */
int object_store_stat(ObjectStore *s, const char *key, uint64_t *ret_bytes);

typedef struct ObjectHead {
        const char *key;  /* borrowed */
        size_t max_bytes; /* of its beginning */
        char *text;       /* filled in: NUL-terminated, owned; NULL when it could not be read */
        size_t n;
        int64_t owner; /* filled in: a uid; OWNER_UNKNOWN in a bucket */
        int outcome;   /* 0, OBJECT_E_* */
        char *error;   /* then why; owned */
} ObjectHead;
/** Reads the beginnings of many objects, several at once. @return 0 also when some could not be
 * read, -errno */
int object_store_read_heads(ObjectStore *s, ObjectHead *heads, size_t n);
void object_head_done(ObjectHead *h);

/** Reads and checks a manifest. What is wrong is reported, but for *ret_is_missing.
 * @param manifest  with its key; filled in, for object_head_done(), also after a failure
 * @return CLI_YES and *ret, the caller's; CLI_NO */
int object_store_read_manifest(ObjectStore *s, ObjectHead *manifest, json_t **ret,
                               bool *ret_is_missing);

typedef struct ObjectRange {
        const char *key;        /* copied */
        uint64_t offset, bytes; /* nothing outside of it is ever requested */
        uint64_t object_bytes;  /* how large the object must be: otherwise reading fails; 0 =
                                   whatever it is */
} ObjectRange;

/** Reads a range of an object, from S3 in pieces of OBJECT_PIECE_BYTES, OBJECT_PIECES_AT_ONCE of
 * them in parallel: the one that is wanted and those after it. It keeps two more, so that it needs
 * (OBJECT_PIECES_AT_ONCE + 2) × OBJECT_PIECE_BYTES of memory.
 * @param ret  its offsets are the object's; failures are -EIO, -EINTR, or the file's errno; see
 * object_store_error(). For object_reader_free()  @return 0, OBJECT_E_*, -errno */
#define OBJECT_PIECE_BYTES (8 * MIB)
#define OBJECT_PIECES_AT_ONCE 4
int object_store_reader(ObjectStore *s, const ObjectRange *range, ByteSource **ret);
ByteSource *object_reader_free(ByteSource *source);
DEFINE_CLEANUP(ByteSource, object_reader_free);

/** Probes a configured destination until *done. @param ret_fault  a sentence, or NULL; the caller's
 * @return 0, -EINTR when cli_is_interrupted(), -errno */
int object_store_s3_probe(const struct ConfigDestination *destination,
                          const struct S3ProbeOptions *options, const bool *done, char **ret_fault);
