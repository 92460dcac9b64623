/* Objects of a bucket or a directory: their names on a command line, and what is known of one
 * object. object_store.h reads them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/archive/volume_owners.h"
#include "cli/common/cli.h"
#include "lib/base/cleanup.h"

/* ---- names ---- */

typedef struct ObjectUrl { /* owned */
        char *bucket;      /* NULL = a directory */
        char *key; /* raw; of a directory the path as it was given, but for a trailing slash */
        bool ends_in_slash;
} ObjectUrl;

/** Parses `s3://bucket[/key]` or a path. A mistyped URL is refused with the right form.
 * @param command  for the message  @return CLI_YES, CLI_USAGE, CLI_NO for lack of memory */
int object_url_parse(const char *command, const char *text, ObjectUrl *ret);
void object_url_done(ObjectUrl *u);

/** @return whether it is a directory: it ends in a slash, or is the path of one that exists */
bool object_url_is_directory(const ObjectUrl *url);

typedef struct BundleNames { /* owned */
        char *stem, *object, *manifest;
} BundleNames;

void bundle_names_done(BundleNames *n);

/** @param given  what names a bundle: its object, its manifest, or what both begin with
 * @return 0; -EINVAL: it names no file (empty, or ends in a slash); -ENOMEM */
int bundle_names_init(const char *given, BundleNames *ret);

/* Options as in the AWS command line; NULL: not given. They have no meaning for a directory. */
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

/* ---- what is known of one ---- */

enum {
        OBJECT_E_NOT_FOUND = 1, /* no such object; of a list: no such directory */
        OBJECT_E_FAILED,        /* another error of the store, not of this process */
};

/** Replaces the sentence of an error. @return `outcome` */
_printf_(3, 4) int object_error_set(char **error, int outcome, const char *fmt, ...);

typedef struct ObjectItem { /* borrowed while on_item runs */
        const char *key;
        uint64_t bytes, modified_usec;
        int64_t owner; /* a uid; OWNER_UNKNOWN in a bucket */
} ObjectItem;

typedef struct ObjectListing {
        const char *prefix; /* of keys. In a directory, names that begin with a dot are listed only
                               when the prefix asks for them */
        int (*on_item)(const ObjectItem *item,
                       void *userdata); /* negative ends it and is returned */
        void *userdata;
} ObjectListing;
typedef struct ObjectHead {
        const char *key;  /* borrowed */
        size_t max_bytes; /* of its beginning */
        char *text;       /* filled in: NUL-terminated, owned; NULL when it could not be read */
        size_t n;
        int64_t owner; /* filled in: a uid; OWNER_UNKNOWN in a bucket */
        int outcome;   /* 0, OBJECT_E_* */
        char *error;   /* then why; owned */
} ObjectHead;
void object_head_done(ObjectHead *h);

typedef struct ObjectRange {
        const char *key;        /* copied */
        uint64_t offset, bytes; /* nothing outside of it is ever requested */
        uint64_t object_bytes;  /* how large the object must be: otherwise reading fails; 0 =
                                   whatever it is */
} ObjectRange;

/* A range of an object in a bucket is read in such pieces, so many of them in parallel. */
#define OBJECT_PIECE_BYTES (8 * MIB)
#define OBJECT_PIECES_AT_ONCE 4
