/* What the files of the copies share: containers.c (notes in, who is next), containers_batch.c (one order, from the probe to the tree), containers_built.c (what it has done in the worker), containers_units.c (what
 * lies there), and what they hand to workers: containers_copy.h, containers_tree.h. */
#pragma once

#include "agent/containers.h"
#include "agent/containers_job.h"
#include "agent/containers_room.h"
#include "agent/containers_tree.h"
#include "agent/incidents/probe.h"
#include "lib/base/list.h"
#include "lib/event/worker_pool.h"

/* Who waits may wait longer than his hook lives. One is three processes, mostly asleep; neuron-collectd-probe.socket's MaxConnections= has room for them. */
#define CONTAINERS_BATCHES_MAX 16       /* probes at once … */
#define CONTAINERS_BATCHES_MAX_OF_UID 8 /* … and of one user: he cannot keep all others waiting */
#define CONTAINERS_NOTES_MAX COLLECT_CONTAINER_DUMPS_MAX /* that wait for one … */
#define CONTAINERS_NOTES_MAX_OF_UID 64                   /* … and of one user */
#define CONTAINERS_GATHER_USEC                                                                     \
        (50 * USEC_PER_MSEC) /* hooks of one failure come at once: one order for all */
#define CONTAINERS_COPY_USEC (5 * USEC_PER_MINUTE)
#define CONTAINERS_SALVAGE_BYTES ((uint64_t)1 << 50) /* they are there: nothing is copied */
#define CONTAINERS_COMING ".coming"
#define CONTAINERS_DOCUMENT "copy.json" /* in the directory of an order: what the collector says */
#define CONTAINERS_NAME_SIZE 48

typedef struct ContainerNote {
        ListLink link; /* Containers.waiting, or ContainersBatch.notes */
        char id[NOTE_ID_SIZE];
        char *source, *relative; /* as NotesPlace has them */
        char *path;              /* as the container sees it */
        char *s3_prefix;         /* NULL */
        uid_t uid;
        pid_t hook_pid;
        uint64_t noted_usec; /* CLOCK_BOOTTIME when it came; 0 = to an earlier agent */
        char *promised[NOTE_FILES_MAX];
        bool has_finished, is_placed;
        bool is_refused;         /* its unit is another user's: said and counted */
        bool is_judged, is_here; /* the collector has found out; it is on this machine after all */
} ContainerNote;
ContainerNote *container_note_free(ContainerNote *n);

/* A directory of a container: it lies there, or is about to. */
typedef struct ContainerUnit {
        ListLink link; /* Containers.units */
        char unit[COPY_UNIT_SIZE];
        char *source, *relative, *path; /* path: absolute, of its copy */
        uid_t uid;
        uint64_t bytes;     /* on disk */
        unsigned n_batches; /* that may bring more */
        bool is_there;      /* copied, at least once */
        bool is_over; /* a bundle of it has come to its end: it goes when nothing is underway */
        bool is_unattached;    /* what is told of it is not with its bundle */
        bool is_told_stranded; /* it was said that its source is gone */
        uint64_t over_usec;    /* CLOCK_BOOTTIME when that was; 0 = before this agent */
} ContainerUnit;

typedef enum BatchState {
        BATCH_COPYING,   /* the supervisor is at work */
        BATCH_SALVAGING, /* another one gathers what the first has left */
        BATCH_READING,   /* in a worker: copy.json */
        BATCH_BUILDING,  /* in a worker: trees, into their places */
        BATCH_CLEARING,  /* in a worker: what is left of the order */
        BATCH_LEFT,      /* the next start tries again: only its room is counted */
        N_BATCH_STATES
} BatchState;

typedef struct ContainersBatch {
        struct Containers *owner;
        ListLink link, notes;
        size_t n_notes;
        BatchState state;
        char name[CONTAINERS_NAME_SIZE];
        int dir_fd;
        uid_t uid;
        uint64_t begun_usec;     /* CLOCK_REALTIME */
        uint64_t since_usec;     /* CLOCK_BOOTTIME; 0: by an earlier agent */
        uint64_t promised_bytes; /* of the room */
        Probe *probe;
        sd_event_source *timer;
        unsigned n_salvages;
        unsigned
                n_failures; /* in a row, of what is done in the worker: it waits, and tries again */
        uint64_t bytes;     /* on disk, below `.coming`, once nothing is promised any more */
        ContainerUnit **units; /* that it is about */
        size_t n_units;
} ContainersBatch;

typedef enum ContainersCounter {
        CONTAINERS_WHOLE,
        CONTAINERS_INCOMPLETE,
        CONTAINERS_REFUSED,
        CONTAINERS_NOT_FOUND,
        N_CONTAINERS_COUNTERS
} ContainersCounter;

struct Containers {
        ContainersContext context;
        const Config *config;
        char *root, *coming, *socket; /* absolute */
        int root_fd;
        ListLink waiting, batches, units, jobs;
        size_t n_waiting;
        sd_event_source *gather, *removal;
        WorkerPool *pool; /* one thread: a tree is not built and removed at once */
        unsigned last_number;
        uint64_t said_usec, n_unsaid;
};

/* containers.c */
void containers_count(const Containers *c, ContainersCounter which, uint64_t n);
/** There may be room for the next order. */
void containers_kick(Containers *c);
/** A copy is not made, or not to its end: counted, and said once a minute. */
void containers_refuse(Containers *c, const ContainerNote *n, const char *why);
/** An order has come to its end: its notes whose directory was not found are counted. */
void containers_count_not_found(const Containers *c, ListLink *notes);

/* containers_batch.c */
/** Gives an order for these notes of one user. @param notes  ContainerNotes, taken over in any case @return 0, -errno: none could be given */
int batch_begin(Containers *c, ListLink *notes, uid_t uid, uint64_t max_bytes);
/** Goes on with what an earlier agent has ordered. */
int batch_resume(Containers *c, const char *name);
/** No callback any more. */
ContainersBatch *batch_free(ContainersBatch *b);

/** It has come to its end: its units are let go, and it is freed. */
void batch_finish(ContainersBatch *b);
/** It goes no further before the next start: its units are let go; what lies there of it counts as room that is used. */
void batch_leave(ContainersBatch *b);
/** What could not be done is tried again, ever later, a minute apart at last; said once. */
void batch_retry(ContainersBatch *b, int error);
/** It could be done: said, if it was said that it could not. */
void batch_went_right(ContainersBatch *b);
/** A unit is through, also where others of the batch are not. */
void batch_let_go_of(ContainersBatch *b, const ContainerUnit *u);
/** @return whether it keeps a place that others wait for */
bool batch_is_at_work(const ContainersBatch *b);
void batch_set_state(ContainersBatch *b, BatchState to);
void batch_step(ContainersBatch *b);

/* containers_built.c: all that is done in the worker ends in batch_step() or batch_finish() */
/** It is known what became of a note: once, whoever says it first. */
void batch_take_dump(ContainersBatch *b, const CopyDump *d);
/** Reads the document, and then builds. @return whether it is underway */
bool batch_read_document(ContainersBatch *b);
/** Removes what is left of the order. @return whether it is underway */
bool batch_clear(ContainersBatch *b);

/* containers_batch_file.c: batch.json, what an order was about */
int batch_write(const ContainersBatch *b);
int batch_read(ContainersBatch *b);

/* containers_units.c */
/** The one that is known by this source and unit, or a new one with this relative path. @return 0, -EPERM: it is another user's; -ENOMEM */
int containers_unit_take(Containers *c, const ContainerNote *n, const char *unit,
                         ContainerUnit **ret);
/** A batch has nothing more for it. */
void containers_unit_let_go(Containers *c, ContainerUnit *u);
/** Removes what is over, some seconds from now. */
void containers_remove_over(Containers *c);
/** Finds what earlier agents have left. */
int containers_sweep_units(Containers *c);
void containers_units_done(Containers *c);
/** What there is for a copy of this user's now. @return as containers_room_for() */
uint64_t containers_room(const Containers *c, uid_t uid, const char **ret_why);
uint64_t containers_bytes(const Containers *c);

/* containers_again.c */
/** Tells sources that are new what is missing from what lies there, by what was written of it. @param root  absolute @return 0, -errno: not of all */
int containers_promise_again(const ContainersContext *context, const char *root);
/** What could not be attached. */
void containers_attach_again(Containers *c);
/** Units whose source is gone: nobody ships them. */
size_t containers_n_stranded(const Containers *c);
/** Says which are, once. */
void containers_tell_stranded(Containers *c);
