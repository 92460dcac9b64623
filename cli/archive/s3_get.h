/* One GET of an object or of a range of it into memory, gone on with where the connection was cut. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/archive/s3_session.h"

typedef struct S3Get {
        /* set before s3_get_start() and left alone */
        const char *key;       /* borrowed */
        uint64_t offset;       /* in the object */
        size_t bytes;          /* so many */
        bool may_be_short;     /* the object may end before */
        bool is_whole;         /* no range: all of the object, which has `bytes` at most */
        uint64_t object_bytes; /* how large the object must be; 0 = whatever it is */

        /* filled in */
        char *data; /* owned; NUL-terminated */
        size_t n;
        bool done;
        int outcome; /* when done: 0, OBJECT_E_*, -errno */
        char *error; /* the sentence of a OBJECT_E_*; owned */

        /* private */
        S3Client *client;
        S3Call *call;
        size_t n_allocated, n_before; /* n_before: when this try began */
        int stopped;                  /* why on_data() ended it: -errno */
} S3Get;

/** @return 0; -errno: it has not begun */
int s3_get_start(S3Get *g, S3Client *client);
/** Cancels it if it is underway, and forgets it all. */
void s3_get_done(S3Get *g);
