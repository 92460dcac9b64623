/* A call about a small object, and the calls of one destination: for the files of this folder that
 * carry them out. objects.c starts a call, objects_s3.c or objects_volume.c carries it out, and
 * object_call.c ends it. */
#pragma once

#include <stdatomic.h>

#include "agent/delivery/destination.h"
#include "agent/delivery/objects.h"
#include "lib/base/list.h"
#include "uploaders/s3/s3_client.h"
#include "uploaders/volume/volume.h"

#define OBJECT_NAME_BYTES_MAX 512
/* On a volume, that were given up and wait behind the one that hangs. */
#define OBJECTS_ABANDONED_MAX 64

typedef struct ObjectEntries {
        ObjectEntry *items;
        size_t n;
} ObjectEntries;

typedef struct Objects Objects;

typedef enum ObjectCallState {
        OBJECT_CALL_ON_LOOP,      /* a request is out, or the timer is armed */
        OBJECT_CALL_AWAITS_PROBE, /* of conditional writes, in a bucket */
        OBJECT_CALL_WORKING,      /* on a volume: in the thread, or queued for it */
        OBJECT_CALL_ABANDONED,    /* so too, but cancelled: freed when the thread is back */
        N_OBJECT_CALL_STATES
} ObjectCallState;

struct ObjectCall {
        ListLink link; /* Objects.calls or .abandoned */
        Objects *objects;
        ObjectCallState state; /* object_call_set_state() */
        ObjectRequest request; /* the name is a copy; on a volume the data, too */
        ObjectResult result;
        char *error;            /* of what the thread has done, or of what ends a loop turn later */
        bool is_own_trouble;    /* the trouble is our own and says nothing of the destination */
        sd_event_source *timer; /* for that, or until a volume has hung for too long */
        ObjectEntries entries;

        /* in a bucket */
        S3Call *s3;
        char *key;       /* or what all keys of a listing begin with */
        bool is_written; /* a CREATE has succeeded by what the store says; the object is read back
                          */
        char *token;     /* of the next page */
        unsigned n_pages;

        /* on a volume; but for the first, with entries and error, the thread's until it ends */
        atomic_bool is_cancelled; /* the thread need not start */
        WorkJob work;
        int outcome; /* of volume_object_write() and the like */
        VolumeWritten written;
        VolumeContent content;
};

/* Whether a bucket's store heeds If-None-Match or ignores it: the same object is created twice, and
 * the second time has to fail. */
typedef enum Conditions {
        CONDITIONS_UNKNOWN,
        CONDITIONS_FIRST_PROBE,
        CONDITIONS_SECOND_PROBE,
        CONDITIONS_HEEDED,
        CONDITIONS_IGNORED,
} Conditions;

struct Objects { /* of a destination */
        DestinationObjects base;
        Destination *destination;
        ListLink calls;

        char *prefix; /* of all keys of a bucket */
        char *probe_key;
        S3Call *probe;
        Conditions conditions;

        WorkerPool *pool;
        Volume *volume;
        Clock *clock;
        ListLink abandoned; /* calls that are working still */
        unsigned n_abandoned;
};

/** @return those of a destination; NULL: there was no call yet */
static inline Objects *objects_of(const Destination *d) {
        return d->objects ? CONTAINER_OF(d->objects, Objects, base) : NULL;
}
/** Frees what is left when no call and no thread uses it any more. */
void objects_free(Objects *o);

/* ---- object_call.c ---- */

void object_entries_done(ObjectEntries *l);
/** @return 0, -E2BIG, -ENOMEM */
int object_entries_add(ObjectEntries *l, const ObjectEntry *e);

void object_call_set_state(ObjectCall *c, ObjectCallState state);
/** Calls on_done, and frees the call. @param error  borrowed; NULL where the outcome has none, or
 * for lack of memory */
void object_call_finish(ObjectCall *c, ObjectOutcome outcome, const char *error);
/** The same with the names that were found, in order. */
void object_call_finish_list(ObjectCall *c);
/** The same one turn of the loop later, for what object_call_new() calls. @param error  copied
 * @return 0, -errno */
int object_call_finish_later(ObjectCall *c, ObjectOutcome outcome, const char *error);
void object_call_free(ObjectCall *c);
/** @param allows_dots  names that begin with one, but not `.` and `..` */
bool object_call_is_plain_name(const char *s, bool allows_dots);

/* ---- objects_s3.c ---- */

/** @return NULL: its configuration cannot be used */
S3Client *objects_s3_client(const Objects *o);
/** @return 0: it ends later; -errno: the caller frees it */
int objects_s3_start(ObjectCall *c);

/* ---- objects_volume.c ---- */

int objects_volume_start(ObjectCall *c); /* as above */
