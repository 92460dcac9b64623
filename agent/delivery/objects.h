/* Small objects at a destination, beside the bundles: they are listed, read, created once and
 * replaced. In a bucket by the destination's own client, on a volume by a thread of its own. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/delivery/scheduler.h"

#define OBJECT_BYTES_MAX ((size_t)4 << 20)
#define OBJECT_LIST_MAX 100000 /* names of one listing */

typedef enum ObjectOperation {
        OBJECT_LIST, /* all names that begin with `name`, but for those with a dot first
                        behind it, as temporary files have; none is OK */
        OBJECT_GET,
        OBJECT_CREATE, /* only if nothing has the name, and without any doubt */
        OBJECT_PUT,    /* replaces what is there */
        N_OBJECT_OPERATIONS,
} ObjectOperation;

typedef enum ObjectOutcome {
        OBJECT_OK,
        OBJECT_NOT_FOUND,
        OBJECT_EXISTS,      /* CREATE: something has the name */
        OBJECT_UNREACHABLE, /* no answer (of a volume in a minute), or trouble; a write may have
                               been executed */
        OBJECT_UNABLE,      /* forbidden, or the store has no conditional writes */
        OBJECT_INVALID, /* too large (a listing, too), not a regular file, or owned by a user who is
                           no agent */
} ObjectOutcome;

typedef struct ObjectEntry {
        char *name; /* below the destination's fixed part */
        uint64_t bytes;
        int64_t modified_usec; /* by the store's clock */
        bool is_trusted; /* on a volume: its owner is an agent's user. In a bucket, whose policy
                            decides: true */
} ObjectEntry;

typedef struct ObjectResult { /* borrowed while on_done runs */
        ObjectOutcome outcome;
        const char *error; /* a sentence, of all but OK, NOT_FOUND and EXISTS */
        const char *data;  /* GET; followed by a NUL byte */
        size_t n;
        int64_t modified_usec;      /* GET, CREATE: by the store's clock, in whole seconds for S3 */
        const ObjectEntry *entries; /* LIST, in order of name */
        size_t n_entries;
        /* The store's clock less CLOCK_BOOTTIME of this node, and how far that may be wrong:
         * S3: the Date header, half a second, half the time that the answer took. A volume: the
         * mtime of a file that was just made (not by GET). */
        bool has_clock;
        int64_t clock_offset_usec, uncertainty_usec;
} ObjectResult;

typedef struct ObjectRequest { /* copied, but for data */
        ObjectOperation operation;
        const char *destination; /* its name in the configuration */
        const char *name; /* below the fixed part of its prefix or path: `.incidents/…`; relative,
                             without empty, `.` and `..` components; LIST: ends in a slash */
        const void *data; /* CREATE, PUT: borrowed until on_done */
        size_t n;
        void (*on_done)(const ObjectResult *result, void *userdata); /* once, on the loop, never
                                                                        from inside */
        void *userdata;
} ObjectRequest;

typedef struct ObjectCall ObjectCall;

/** @return 0 and *ret, which is valid until on_done; -ENOENT: there is no such destination;
 * -EINVAL; -ENOMEM, -errno. Calls are cancelled before the scheduler is freed. */
int object_call_new(ObjectCall **ret, Scheduler *s, const ObjectRequest *request);
/** No on_done; what is sent may still be executed. NULL is fine. @return NULL */
ObjectCall *object_call_cancel(ObjectCall *call);

/** @return whether the destination can be an arbiter at all: many nodes see it (a bucket, or a
 * volume on a network file system or with `durable: true`) */
bool objects_are_shared(Scheduler *s, const char *destination);
/** @return whether the last one there failed though the destination can be reached, as its probe
 * found afterwards. @param s  may be NULL */
bool objects_are_refused(Scheduler *s, const char *destination);
/** @return the directory of a failure, `<expanded prefix>` below the fixed part, with %k and %n as
 * given; the caller's; NULL with *ret_differs when the prefix has variables that differ by node
 * (%h %i %u %p %t %l), or without memory */
char *objects_failure_directory(Scheduler *s, const char *destination, const char *date_time,
                                const char *cluster_id, const char *kind, const char *source,
                                bool *ret_differs);
/** @return the directory of a bundle below the fixed part, `<expanded prefix>/<instance-id>`, the
 * caller's; NULL: no such destination, it lies outside of the fixed part (a hook's own prefix), or
 * no memory */
char *objects_bundle_directory(Scheduler *s, const char *destination, const BundleRecord *rec);
