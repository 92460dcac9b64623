/* A destination: its state, which the scheduler owns, and the operations of each kind. Private to
 * this folder. */
#pragma once

#include "agent/delivery/delivery.h"
#include "agent/delivery/scheduler.h"
#include "lib/base/path.h"
#include "lib/event/worker_pool.h"
#include "uploaders/s3/s3_client.h"
#include "uploaders/volume/volume.h"

/* Which of the bundles that may go now is next at a destination. Small ones go first (logs and
 * metadata say the most and cost the least), sources alternate, and in a source the owners of its
 * units; of an owner the oldest is first. A large one follows so many small ones in a row, so that
 * nothing waits for ever. Pure. */
#define SMALL_BYTES_MAX (UINT64_C(4) << 20) /* of the source's files */
#define SMALL_FILES_MAX 1000
#define SMALL_IN_ROW_MAX 16
#define ROTATION_SOURCES_MAX 200 /* as in the table of keys */
#define ROTATION_OWNERS_MAX 500
/* Of more than that whoever was served the longest ago is forgotten, and is next. */

typedef struct RotationServed {
        const void *source; /* an identity, never dereferenced */
        uid_t uid;          /* of the owner; 0 where sources are counted */
        uint64_t turn;      /* when it was served last */
} RotationServed;

typedef struct Rotation { /* all zero = nothing was served yet */
        uint64_t n;
        unsigned n_small_in_row;
        RotationServed sources[ROTATION_SOURCES_MAX], owners[ROTATION_OWNERS_MAX];
        size_t n_sources, n_owners;
} Rotation;

/** @return whether a bundle of so many files and bytes is a small one */
bool rotation_is_small(uint64_t n_files, uint64_t bytes);
/** @return whether a small one is next, if there is any; else a large one */
bool rotation_prefers_small(const Rotation *r);
/** @return when a source was served last: the one with the least is next */
uint64_t rotation_served_at(const Rotation *r, const void *source);
/** @return when an owner was served last in a source */
uint64_t rotation_owner_served_at(const Rotation *r, const void *source, uid_t uid);
void rotation_record(Rotation *r, const void *source, uid_t uid, bool is_small);

/* Distinguishes work that has stalled from work that is slow. Pure. */
#define STALL_TIMEOUT_USEC (60 * USEC_PER_SEC) /* as the default of S3's request_timeout */

typedef struct StallCheck {
        uint64_t start_usec, progress, since_usec; /* as of the last check */
} StallCheck;

/**
 * @param start_usec  when the work started, which also identifies the work
 * @param progress    any number that changes as the work progresses
 * @param now_usec    of the same clock as start_usec
 * @return for how long there was no progress, when that exceeds STALL_TIMEOUT_USEC; else 0
 */
uint64_t stall_check(StallCheck *s, uint64_t start_usec, uint64_t progress, uint64_t now_usec);

typedef struct DestinationType DestinationType;
typedef struct Objects Objects;

typedef enum DestinationState {
        DESTINATION_OK,
        DESTINATION_PAUSED,  /* it waits for people: full, or access is denied */
        DESTINATION_FAILING, /* the last try failed */
        N_DESTINATION_STATES
} DestinationState;

typedef enum DestinationActivity {
        ACTIVITY_IDLE,
        ACTIVITY_PROBING,      /* can it be written? */
        ACTIVITY_CLEANING_UP,  /* the type's own work before the next delivery */
        ACTIVITY_DELIVERING,   /* `running` of `bundle` */
        ACTIVITY_WINDING_DOWN, /* the same, asked to give way to a small one or to stop */
        N_ACTIVITIES
} DestinationActivity;

/* A volume has a second one for small bundles alone, which need not wait until a large copy, which
 * cannot be interrupted, has ended: its `head` is the first one, whose state counts for both. */
typedef struct Destination {
        Scheduler *scheduler;
        struct Destination *head;        /* itself, but for the second one */
        const ConfigDestination *config; /* borrowed */
        const DestinationType *type;
        void *target;       /* the type's own */
        WorkerPool *worker; /* one thread: a destination that hangs hangs only this */
        PathTemplate *template;
        DestinationActivity activity;
        Delivery *running;
        Bundle *bundle;
        uint64_t probe_start_usec; /* or of the clean-up */
        DestinationState state;
        bool is_proven;       /* the last try there worked */
        bool delivery_failed; /* by its fault: only a delivery shows that it works again */
        bool objects_failed;  /* the last small object, since it was proven */
        bool is_cleaned_up;   /* the last clean-up succeeded */
        char *last_error;
        unsigned n_failures;      /* of the destination, in a row */
        uint32_t n_accepted[2];   /* bundles accepted since the start: [0] in one request, [1] in
                                     parts */
        uint64_t not_before_usec; /* CLOCK_BOOTTIME */
        uint64_t last_success_usec;
        sd_event_source *timer;
        StallCheck stall;
        char stall_error[256];
        Rotation rotation;
        /* Where many nodes send to one place they do not all start at the same moment. */
        uint64_t jitter_until_usec; /* CLOCK_BOOTTIME; 0 = the next one draws */
        Objects *objects;           /* of objects.c; NULL until the first call */
} Destination;

/* What differs between a volume and a bucket. All of it on the loop. */
struct DestinationType {
        const char *name;        /* as in the configuration */
        const char *worker_name; /* of its thread */
        const char *stall_text;  /* what a stall means there */
        const char *cut_text;    /* the reason of a bundle that is READY again after a stop */
        bool is_shared;          /* by many nodes, which must not all start at once */
        bool can_interrupt;      /* what was sent counts later: small ones may go in between */

        /** Creates d->target; touches nothing outside. @return 0, -ENOMEM, -EMFILE … */
        int (*open)(Destination *d);
        /** @return the worker's running job beside a delivery; may be NULL */
        const WorkJob *(*job)(const Destination *d);
        /** Releases what is on the loop. NULL: nothing is there.
         * @param hung  running delivery and worker are left behind */
        void (*stop)(Destination *d, bool hung);
        void (*close)(Destination *d); /* not for what hangs */

        /** Can it be written? scheduler_probe_done() is called later. @return 0, -errno */
        int (*probe)(Destination *d);
        /** Starts work due before the next delivery; scheduler_cleanup_done() is called later.
         * @param ret_next_usec  CLOCK_BOOTTIME, when more is due
         * @return whether something was started. NULL: there is never any */
        bool (*clean_up)(Destination *d, uint64_t *ret_next_usec);

        /** What a delivery needs to start with. */
        uint64_t (*memory_bytes)(const Destination *d);
        /** @param directory  below the destination's root  @return a path or URL, the caller's;
         * NULL */
        char *(*format_location)(const Destination *d, const char *directory, const char *name);

        /** @param directory  below the destination's root  @return 0, -ENOMEM */
        int (*delivery_new)(Destination *d, const Bundle *b, const char *directory, Delivery **ret);
        /** on_done is called later, never from inside. @return 0; -errno: nothing was started */
        int (*delivery_start)(Destination *d, Delivery *job);
        void (*delivery_abort)(Delivery *job);
        /** Ends it soon, but so that little has to be done again. */
        void (*delivery_wind_down)(Delivery *job);
        Delivery *(*delivery_free)(Delivery *job);
        /** Updates the figures of the running delivery. @return any number that changes while the
         * destination accepts data */
        uint64_t (*refresh)(Destination *d);
        /** The bundle is over and was not delivered there, though that was begun: what may be left
         * of it is written down and removed. NULL: nothing is left */
        void (*abandon)(Destination *d, const Bundle *b, const DeliveryRecord *delivery);
        /** @param ret_since_usec  CLOCK_BOOTTIME; 0: nothing is awaited  @return whether the
         * running delivery waits for the destination, not for us. NULL: one thread does everything,
         * so the kernel has to be asked what it waits for */
        bool (*awaits_destination)(const Destination *d, uint64_t *ret_since_usec);
        /** What was kept to resume is released. NULL: nothing is kept */
        void (*on_delivered)(Destination *d, const char *bundle);
        /** @return false: none was made. NULL: it makes none */
        bool (*stats)(const Destination *d, S3Stats *ret);
};
extern const DestinationType destination_volume_type, destination_s3_type;

struct Scheduler {
        SchedulerContext context;
        const Config *config;
        uint64_t started_usec; /* CLOCK_REALTIME */
        WorkerPool *compressors;
        unsigned n_compressors;
        Destination *destinations;
        size_t n_destinations; /* configured */
        size_t n_all;          /* the second ones of volumes follow */
        RateLimits *limits;
        bool is_urgent;           /* drained, or --once: nothing waits for the sake of others */
        uint64_t memory_used;     /* by running deliveries */
        uint64_t memory_reserved; /* of limits.memory, for the second ones */
        Destination *waits_for_memory; /* is next: the others start nothing meanwhile */
        uint64_t n_retries[N_SCHEDULER_RETRIES];
        uint64_t n_aborted; /* unfinished uploads, since the start */
        bool is_stopping;
        uint64_t stop_usec; /* CLOCK_BOOTTIME: what runs then is left behind; 0 = not stopping */
};

static inline uint64_t scheduler_boottime_usec(const Scheduler *s) {
        return s->context.clock->boottime_usec(s->context.clock);
}

static inline uint64_t scheduler_realtime_usec(const Scheduler *s) {
        return s->context.clock->realtime_usec(s->context.clock);
}

/** Prepares a delivery of this bundle to this destination. @return as delivery_init() */
int scheduler_init_delivery(const Destination *at, Delivery *d, const Bundle *b,
                            const char *directory);

/** @return NULL: there is none of this name */
Destination *scheduler_find_destination(const Scheduler *s, const char *name);
/** @return of a bucket; NULL and *ret_error (borrowed): its configuration cannot be used */
S3Client *delivery_s3_client(const Destination *d, const char **ret_error);
/** @return 0 and another Volume of the same directory, for another thread; -errno */
int delivery_volume_open(const Destination *d, Volume **ret);
/** @return since when small objects wait for an answer of a bucket, CLOCK_BOOTTIME; 0: none does */
uint64_t objects_waiting_since_usec(const Destination *d);
/** Nothing is underway, but for what hangs in a thread and was cancelled: it is left behind when it
 * does not end until then (CLOCK_BOOTTIME). */
void objects_done(Destination *d, uint64_t until_usec);

/** @return the directory of a bundle below the destination's root, which is a bucket or the fixed
 * part of a path; the caller's, NULL for lack of memory */
char *scheduler_bundle_directory(const Destination *d, const BundleRecord *rec);
/** @return limits.memory's share of one destination */
uint64_t scheduler_memory_share(const Scheduler *s);
/** As DeliveryS3Options.reserve. */
int scheduler_reserve_memory(Delivery *job, uint64_t bytes, uint64_t *ret_limit);
/** @param outcome  0, UPLOAD_E_*, -errno  @param error  a sentence, copied; may be NULL */
void scheduler_probe_done(Destination *d, int outcome, const char *error);
void scheduler_cleanup_done(Destination *d, int outcome); /* 0: it went well */
/** A small object was read or written. @param error  it was not, by the destination's fault: a
 * sentence, copied; NULL: it was, or is not there */
void scheduler_object_done(Destination *d, const char *error);
uint64_t scheduler_bytes_delivered(const Destination *d); /* ever */
uint64_t scheduler_random(void);
