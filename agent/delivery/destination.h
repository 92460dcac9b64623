/* A destination: what it is, how it fares and what is at work there; and the operations that differ
 * between a volume and a bucket. The scheduler owns destinations and decides what goes to them;
 * this knows nothing of it but two callbacks. Private to this folder. */
#pragma once

#include <systemd/sd-event.h>

#include "agent/delivery/delivery.h"
#include "agent/delivery/rate_limits.h"
#include "agent/delivery/rotation.h"
#include "agent/retention/source_spec.h"
#include "agent/store/bundle.h"
#include "agent/store/store.h"
#include "config/config.h"
#include "lib/base/path.h"
#include "lib/event/worker_pool.h"
#include "uploaders/s3/s3_client.h"

typedef struct Destination Destination;
typedef struct DestinationType DestinationType;

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
uint64_t destination_stall_check(StallCheck *s, uint64_t start_usec, uint64_t progress,
                                 uint64_t now_usec);

/* What the destinations of one scheduler have in common. The scheduler owns it. */
typedef struct DestinationShared { /* all pointers are borrowed */
        sd_event *event;
        Clock *clock;
        Store *store;
        const char *instance_id, *hostname;
        char *const *environment; /* NAME=VALUE list, for credentials and endpoints of S3 */
        SourceSpec *(*get_source_spec)(const Bundle *b);
        bool is_once; /* --once: the node may be terminated soon, so backoffs are short */
        const Config *config;
        uint64_t started_usec; /* CLOCK_REALTIME */
        WorkerPool *compressors;
        unsigned n_compressors;
        RateLimits *limits;
        uint64_t object_timeout_usec; /* after which a small object of a volume hangs */

        size_t n_destinations; /* configured */
        DeliveryMemory memory;

        uint64_t n_failures; /* of destinations, since the start */
        uint64_t n_aborted;  /* unfinished uploads, since the start */

        /** Something may start there now. From the loop, never from inside a function below. */
        void (*on_due)(Destination *d);
        /** A probe has ended, and d's state says how. */
        void (*on_probed)(Destination *d, bool is_ok);
} DestinationShared;

/* The small objects of a destination (objects.c), as far as its owner has to know of them. */
typedef struct DestinationObjects {
        /** Nothing is underway, but for what hangs in a thread and was cancelled: that is left
         * behind when it does not end until then (CLOCK_BOOTTIME). */
        void (*close)(Destination *d, uint64_t until_usec);
        /** @return since when they wait for an answer of a bucket, CLOCK_BOOTTIME; 0: none does */
        uint64_t (*waiting_since_usec)(const Destination *d);
} DestinationObjects;

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
struct Destination {
        DestinationShared *shared;       /* borrowed */
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
        uint64_t jitter_until_usec;  /* CLOCK_BOOTTIME; 0 = the next one draws */
        DestinationObjects *objects; /* NULL until the first call */
};

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
        /** @return the worker's job when it runs no delivery: a probe or a clean-up; may be NULL */
        const WorkJob *(*job)(const Destination *d);
        /** Releases what is on the loop. NULL: nothing is there.
         * @param hung  running delivery and worker are left behind */
        void (*stop)(Destination *d, bool hung);
        void (*close)(Destination *d); /* not for what hangs */

        /** Checks whether it can be written. destination_probe_done() is called later. @return 0,
         * -errno */
        int (*probe)(Destination *d);
        /** Starts work due before the next delivery; destination_cleanup_done() is called later.
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
        /** A bundle reached a final state and was not delivered there, though its delivery was
         * begun: records what may be left of it, for the clean-up. NULL: nothing is left */
        void (*abandon)(Destination *d, const Bundle *b, const DeliveryRecord *delivery);
        /** @param ret_since_usec  CLOCK_BOOTTIME; 0: nothing is awaited  @return whether the
         * running delivery waits for the destination, not for us. NULL: one thread does everything,
         * so the kernel has to be asked what it waits for */
        bool (*awaits_destination)(const Destination *d, uint64_t *ret_since_usec);
        /** Releases what was kept to resume the delivery. NULL: nothing is kept */
        void (*on_delivered)(Destination *d, const char *bundle);
        /** @return false: none was made. NULL: it makes none */
        bool (*stats)(const Destination *d, S3Stats *ret);
};

static inline uint64_t destination_boottime_usec(const Destination *d) {
        return d->shared->clock->boottime_usec(d->shared->clock);
}

static inline uint64_t destination_realtime_usec(const Destination *d) {
        return d->shared->clock->realtime_usec(d->shared->clock);
}

/** @param head  the first one of a volume, for its second one; else d itself
 * @return 0, -errno; destination_stop() and destination_close() are to be called in both cases */
int destination_init(Destination *d, DestinationShared *shared, Destination *head,
                     const ConfigDestination *config, const DestinationType *type);
/** Waits for the worker until then (CLOCK_BOOTTIME), and releases what is on the loop.
 * @return whether the worker hangs: it is left behind with what it uses, and destination_close() is
 * not to be called */
bool destination_stop(Destination *d, uint64_t until_usec);
/** Releases the rest. */
void destination_close(Destination *d, bool hung);

/* ---- its state ---- */

const char *destination_state_name(DestinationState s);
void destination_set_activity(Destination *d, DestinationActivity to);
/** Calls on_due after so long, or at once in the next turn of the loop. */
void destination_kick_in(Destination *d, uint64_t usec);

/** A delivery or a probe succeeded. */
void destination_mark_ok(Destination *d);
/** @param outcome  UPLOAD_E_*, -errno  @param error  a sentence, copied; may be NULL */
void destination_mark_failed(Destination *d, int outcome, const char *error);
/** The type's probe has ended. @param outcome  0, UPLOAD_E_*, -errno  @param error  as above */
void destination_probe_done(Destination *d, int outcome, const char *error);
/** The type's clean-up has ended. @param outcome  0: it went well */
void destination_cleanup_done(Destination *d, int outcome);
/** A small object was read or written. @param error  it was not, by the destination's fault: a
 * sentence, copied; NULL: it was, or is not there */
void destination_object_done(Destination *d, const char *error);

/* A destination that works again receives everything within two minutes. */
#define DESTINATION_BACKOFF_MAX_USEC USEC_PER_MINUTE
/** @return how long to wait after the n-th failure in a row: as `retry` says, but at most
 * maximum_usec */
uint64_t destination_backoff_usec(const DestinationShared *s, unsigned n, uint64_t maximum_usec);

/** @param ret_is_ours  whether the work waits for us, not for the destination
 * @return for how long it has made no progress; 0: it makes some, or nothing is at work */
uint64_t destination_stall(Destination *d, bool *ret_is_ours);

/** Counts what was delivered there, ever. */
void destination_count_bytes(const Destination *d, uint64_t bytes);
uint64_t destination_bytes_delivered(const Destination *d);

/* ---- its deliveries ---- */

/** @return the directory of a bundle below the destination's root, which is a bucket or the fixed
 * part of a path; the caller's, NULL for lack of memory */
char *destination_bundle_directory(const Destination *d, const BundleRecord *rec);
/** Prepares a delivery of this bundle. @return as delivery_init() */
int destination_init_delivery(const Destination *d, Delivery *job, const Bundle *b,
                              const char *directory);

/** Replaces a text by a copy of another one, or by NULL. */
void destination_set_text(char **to, const char *text);
uint64_t destination_random(void);
