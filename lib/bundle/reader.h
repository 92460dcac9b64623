/* Verifies a bundle against its manifest, by libarchive and libzstd. Both may be hostile. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* Where the object is read from. */
typedef struct ByteSource {
        uint64_t bytes; /* of the object */
        /* Reads exactly n bytes at an offset. @return 0, -ENODATA at an early end, -errno */
        int (*read_at)(struct ByteSource *s, void *data, size_t n, uint64_t offset);
} ByteSource;

typedef struct VerifyReport {
        bool ok;            /* not one fault */
        uint64_t n_members; /* that the manifest names */
        uint64_t n_bad;     /* of them: missing, different, or not to be checked behind damage */
        uint64_t bytes;     /* of members' content hashed, holes included */
        void (*on_fault)(const char *what, void *userdata); /* one sentence a fault */
        void (*on_progress)(uint64_t done_bytes, uint64_t total_bytes,
                            void *userdata); /* may be NULL */
        void *userdata;
} VerifyReport;

/** Re-hashes the object: size, parts, plan of frames (seek table), then every member's size and
 * digest, and that the object has nothing that the manifest does not name. Memory is bounded for
 * any object: 4 MiB and the seek table, and some 120 MiB for one that is made to need much. A
 * damaged frame is reported, and the members outside of it are still checked.
 * @param object  its end is read first, then all of it in order; borrowed
 * @param manifest  as manifest_read() returned it  @param r  the callbacks are the caller's, the
 * rest is set
 * @return 0 and r->ok; a negative of object's read_at */
int bundle_verify(ByteSource *object, const json_t *manifest, VerifyReport *r);
