/* One member out of a bundle, by ranges: which bytes of the object are needed, and its content out
 * of them. Knows no network: the caller brings the bytes, in order. For files that may be hostile.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/base/cleanup.h"

typedef struct Fetch Fetch;

typedef struct FetchRange {
        uint64_t offset, bytes; /* of the object */
} FetchRange;

/** @param manifest  as manifest_read() returned it; borrowed, outlives the fetch
 * @param member  path as the manifest spells it
 * @param ret_table  where the seek table is: fetch it, then fetch_set_table()
 * @return 0, -ENOENT no such member, -EINVAL the manifest contradicts itself, -ENOMEM */
int fetch_new(Fetch **ret, const json_t *manifest, const char *member, FetchRange *ret_table);
Fetch *fetch_free(Fetch *f);
DEFINE_CLEANUP(Fetch, fetch_free);

/** @param ret_frames  the run of whole frames that holds the member, and its header where that is
 * needed to know whether it has holes; bytes 0 for none
 * @return 0, -EINVAL: no seek table, or it does not fit the manifest */
int fetch_set_table(Fetch *f, const void *table, size_t n, FetchRange *ret_frames);

/** Where to start reading in order to resume a file that has `done` bytes of the content already.
 * Sparse members and the like: *ret_frames is the whole run and *ret_keep is 0.
 * @param ret_keep  bytes of the file that stay (cut at a frame); pass them to fetch_supply_kept()
 * before anything else */
int fetch_resume(Fetch *f, uint64_t done, FetchRange *ret_frames, uint64_t *ret_keep);
void fetch_supply_kept(Fetch *f, const void *data, size_t n); /* for the digest */

/** Supplies the object's bytes of the range in order, cut anywhere.
 * @param put  gets the content in order; data NULL = n zeros (a hole)
 * @return 0, a negative of put, -EBADMSG damaged (fetch_error_text() says what), -ENOMEM */
int fetch_supply_data(Fetch *f, const void *data, size_t n,
                      int (*put)(const void *data, uint64_t n, uint64_t offset, void *userdata),
                      void *userdata);

/** After the last byte. @return 0: complete and its SHA-256 is the manifest's; -EBADMSG */
int fetch_finish(Fetch *f);
uint64_t fetch_bytes(const Fetch *f);         /* of the member */
const char *fetch_error_text(const Fetch *f); /* a sentence; "" */
