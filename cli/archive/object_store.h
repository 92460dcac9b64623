/* A bucket or a directory behind one interface, which ls, report, get, verify and crash read from.
 * Calls block; they end with -EINTR when cli_is_interrupted(). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/archive/object.h"
#include "cli/common/cli.h"
#include "lib/base/cleanup.h"
#include "lib/bundle/reader.h"

#define MANIFEST_MAX_BYTES (256 * MIB) /* the limit of manifest_read() */

typedef struct ObjectStore ObjectStore;

/** Opens the store of a URL; reports on stderr why not. @return CLI_YES, CLI_NO, CLI_USAGE */
int object_store_open(ObjectStore **ret, const Cli *cli, const ObjectUrl *url,
                      const S3Options *options);
/** The same for the bundle that argv[optind] names: by its object, its manifest, or what both begin
 * with. A directory is none, which is reported. From here on signals are caught.
 * @param ret_names  keys, for bundle_names_done() */
int object_store_open_bundle(ObjectStore **ret, const Cli *cli, char **argv,
                             const S3Options *options, BundleNames *ret_names);
/** Changes the root of a directory's store: symlinks are followed on the way to it, and none below
 * it. Before, the root is the directory of the URL, or the one that contains its file.
 * @param directory  "": the current directory  @return 0, -ENOMEM */
int object_store_set_root(ObjectStore *s, const char *directory);
ObjectStore *object_store_free(ObjectStore *s);
DEFINE_CLEANUP(ObjectStore, object_store_free);

/** The sentence of the last OBJECT_E_* or failed read_at(); "" when there is none. Borrowed until
 * the next call. */
const char *object_store_error(const ObjectStore *s);
/** Reports on stderr why a call failed. @param r  its result  @return CLI_NO */
int object_store_report(const ObjectStore *s, int r);
/** @return the URL of a key, `s3://bucket/key`, or its path; the caller's, NULL for lack of memory
 */
char *object_store_url(const ObjectStore *s, const char *key);

/** Lists objects in the order of their keys' bytes, page by page. @return 0, OBJECT_E_*, -errno */
int object_store_list(ObjectStore *s, const ObjectListing *listing);

/** @return 0 and the object's size, OBJECT_E_*, -errno */
int object_store_stat(ObjectStore *s, const char *key, uint64_t *ret_bytes);

/** Reads the beginnings of many objects, several at once. @return 0 also when some could not be
 * read, -errno */
int object_store_read_heads(ObjectStore *s, ObjectHead *heads, size_t n);

/** Reads and checks a manifest. Faults are reported; a missing one only sets *ret_is_missing.
 * @param manifest  with its key; filled in, for object_head_done(), also after a failure
 * @return CLI_YES and *ret, the caller's; CLI_NO */
int object_store_read_manifest(ObjectStore *s, ObjectHead *manifest, json_t **ret,
                               bool *ret_is_missing);

/** Reads a range of an object, from S3 in pieces of OBJECT_PIECE_BYTES, OBJECT_PIECES_AT_ONCE of
 * them in parallel: the requested one and the next ones. It keeps two more, so that it needs
 * (OBJECT_PIECES_AT_ONCE + 2) × OBJECT_PIECE_BYTES of memory.
 * @param ret  its offsets are the object's; failures are -EIO, -EINTR, or the file's errno; see
 * object_store_error(). For object_reader_free()  @return 0, OBJECT_E_*, -errno */
int object_store_reader(ObjectStore *s, const ObjectRange *range, ByteSource **ret);
ByteSource *object_reader_free(ByteSource *source);
DEFINE_CLEANUP(ByteSource, object_reader_free);
