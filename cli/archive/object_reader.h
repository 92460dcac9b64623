/* A range of an object as a ByteSource; for object_store.c. */
#pragma once

#include "cli/archive/object.h"
#include "cli/archive/object_bucket.h"
#include "cli/archive/object_dir.h"
#include "lib/bundle/reader.h"

/** As object_store_reader(), which see; freed by object_reader_free().
 * @param bucket  NULL: it lies in `dir`; both borrowed, must outlive the reader
 * @param error  where sentences go; borrowed likewise */
int object_reader_new(ByteSource **ret, ObjectBucket *bucket, const ObjectDir *dir,
                      const ObjectRange *range, char **error);
