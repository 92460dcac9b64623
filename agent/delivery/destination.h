/* A destination: its state, which the scheduler owns, and what the kinds of destination do differently. Private to this folder. */
#pragma once

#include "agent/delivery/delivery.h"
#include "agent/delivery/scheduler.h"
#include "lib/base/path.h"
#include "lib/event/worker_pool.h"

/* Whose turn it is at a destination: of the bundles that may go now, which one does. Small ones go first (logs, metadata: they tell most
 * and take least), the sources take turns, the oldest of a source first; and a large one goes after so many small ones in a row, so that
 * nothing waits for ever. Deciding only. */
#define SMALL_BYTES_MAX (UINT64_C(4) << 20) /* of the source's files */
#define SMALL_FILES_MAX 1000
#define SMALL_IN_ROW_MAX 16      /* then a large one */
#define ROTATION_SOURCES_MAX 200 /* as config's table has it; more share the last place */

typedef struct Rotation { /* all zero = nobody was served yet */
        uint64_t n;
        unsigned n_small_in_row;
        struct {
                const void *source; /* an identity, never looked into */
                uint64_t turn;      /* when it was served last */
        } served[ROTATION_SOURCES_MAX];
        size_t n_served;
} Rotation;

/** @return whether a bundle of so many files and bytes is a small one */
bool rotation_is_small(uint64_t n_files, uint64_t bytes);

/** @return whether a small one goes first now, if there is any; else a large one */
bool rotation_prefers_small(const Rotation *t);
/** @return when a source was served last: the one with the least goes first, of equals the one that waits longer */
uint64_t rotation_served_at(const Rotation *t, const void *source);
void rotation_record(Rotation *t, const void *source, bool is_small);

/* Tells work that stands still from work that is slow. Pure. */
/* So long without a sign of life. As long as what S3's request_timeout is by default. */
#define STALL_TIMEOUT_USEC (60 * USEC_PER_SEC)

typedef struct StallCheck {
        uint64_t begun_usec, progress, since_usec; /* as of the last look */
} StallCheck;

/**
 * To be called whenever somebody looks at work that is going on.
 * @param begun_usec  when the work began, which also tells one piece of work from the next
 * @param progress    any number that changes as the work goes on
 * @param now_usec    of the same clock as begun_usec
 * @return for how long it has stood still, when that is longer than STALL_TIMEOUT_USEC; else 0
 */
uint64_t stall_check(StallCheck *s, uint64_t begun_usec, uint64_t progress, uint64_t now_usec);

typedef struct DestinationType DestinationType;

typedef enum DestinationState {
        DESTINATION_OK,
        DESTINATION_PAUSED,  /* it waits for people: full, or closed to us */
        DESTINATION_FAILING, /* what was tried last failed */
        N_DESTINATION_STATES
} DestinationState;

/** @return as people are told; static */
const char *destination_state_name(DestinationState s);

/* A volume has a second one of these for small bundles alone, so that they need not wait until a large copy, which cannot be interrupted,
 * is through: its `head` is the first one, which speaks for both. */
typedef struct Destination {
        Scheduler *scheduler;
        struct Destination *head;        /* itself, but for the second one */
        const ConfigDestination *config; /* borrowed */
        const DestinationType *type;
        void *target; /* the type's own */
        PathTemplate *template;
        Delivery *running;
        Bundle *bundle; /* being shipped */
        bool probing;   /* is being asked whether it can be written */
        uint64_t probe_begun_usec;
        bool tidying;     /* something of the type's own comes before the next delivery */
        bool proven;      /* the last thing tried there worked */
        bool ship_failed; /* a delivery failed by its fault: only a delivery shows that it is mended */
        DestinationState state; /* set by is_well() and is_ill() alone */
        char *last_error;
        unsigned n_failures;      /* of the destination, in a row */
        uint64_t not_before_usec; /* CLOCK_BOOTTIME */
        uint64_t last_success_usec;
        sd_event_source *timer;
        StallCheck stall; /* of what is at work */
        char stall_error[256];
        Rotation turns;
        /* Where many nodes send to one place they do not all begin at the same moment. */
        bool has_waited;
        uint64_t jitter_until_usec; /* CLOCK_BOOTTIME */
        bool is_winding_down; /* what is at work was asked to make room for a small one, or to stop */
} Destination;

/* What a volume and a bucket do differently. All of it on the loop. */
struct DestinationType {
        const char *name;       /* as in the configuration */
        const char *stall_text; /* what it means when nothing moves */
        const char *cut_text;   /* why a bundle is READY again that was being shipped */
        bool is_shared;         /* by many nodes, which had better not all begin at once */
        bool can_interrupt; /* what was sent counts when it goes on: then small ones go in between, else they have a worker of their own */

        /** Makes d->target; touches nothing outside. @return 0, -ENOMEM, -EMFILE … */
        int (*open)(Destination *d);
        /** @return whether a thread is at work, in the kernel perhaps */
        bool (*is_busy)(const Destination *d);
        /** Ends the workers, or leaves them behind when they hang; then ship_free() and close() are called, but not for what hangs. */
        void (*stop)(Destination *d, bool hung);
        void (*close)(Destination *d);

        /** Can it be written? scheduler_probe_done() is called later, never from inside. @return 0, -errno */
        int (*probe)(Destination *d);
        /** Something to be done before the next delivery? Then scheduler_cleanup_done() is called later, never from inside.
         * @param ret_next_usec  CLOCK_BOOTTIME, when to ask again  @return whether something was begun */
        bool (*clean_up)(Destination *d, uint64_t *ret_next_usec);

        /** What a delivery needs to begin with. */
        uint64_t (*memory_bytes)(const Destination *d);
        /** A path or URL, for people. @param directory  as in DeliveryRequest  @return the caller's, NULL for lack of memory */
        char *(*format_location)(const Destination *d, const char *directory, const char *name);
        /** What of an expanded prefix is not below it. */
        const char *(*root)(const Destination *d);

        int (*delivery_new)(Destination *d, const DeliveryRequest *order, Delivery **ret);
        /** s->on_done is called later, never from inside. @return 0; -errno: nothing was begun */
        int (*delivery_start)(Destination *d, Delivery *job);
        void (*delivery_abort)(Delivery *job);
        /** The threads its deliveries run in. */
        WorkerPool *(*worker)(const Destination *d);
        /** Ends it soon, but so that little has to be done again. */
        void (*delivery_wind_down)(Delivery *job);
        Delivery *(*delivery_free)(Delivery *job);
        /** Brings the figures of what is at work up to date. @return anything that changes as long as the destination takes something */
        uint64_t (*refresh)(Destination *d);
        /** Whether what is at work waits for the destination, not for us. @param ret_since_usec  CLOCK_BOOTTIME; 0: for nobody.
         * NULL: one thread reads, packs and writes, so that the kernel has to be asked what it waits for */
        bool (*awaits_destination)(const Destination *d, uint64_t *ret_since_usec);
        /** Delivered: what was kept to go on with may go. */
        void (*on_delivered)(Destination *d, const char *bundle);
        void (*stats)(const Destination *d,
                      SchedulerRequests *ret); /* NULL = it makes no requests */
};
extern const DestinationType destination_volume_type, destination_s3_type;

/* How long a stop waits for workers; one that hangs in the kernel is then left behind. */
#define STOP_TIMEOUT_USEC (5 * USEC_PER_SEC)

struct Scheduler {
        SchedulerContext context;
        const Config *config;
        WorkerPool *compressors;
        unsigned n_compressors;
        Destination *destinations;
        size_t n_destinations; /* configured */
        size_t n_all;          /* the second ones of volumes come behind them */
        RateLimits *limits;
        bool is_urgent; /* drained, or a sweep: nothing waits for the sake of others */
        uint64_t memory_used, memory_reserved; /* reserved: of limits.memory, for the second ones */
        Destination *waits_for_memory; /* begins next: nobody else may take what it waits for */
        uint64_t n_retries[N_SCHEDULER_RETRIES];
        uint64_t n_aborted; /* unfinished uploads, since the start */
        bool stopping;
        uint64_t
                stop_usec; /* CLOCK_BOOTTIME: what is at work then is left behind; 0 = not stopping */
};

static inline uint64_t scheduler_boottime_usec(const Scheduler *s) {
        return s->context.clock->boottime_usec(s->context.clock);
}

static inline uint64_t scheduler_realtime_usec(const Scheduler *s) {
        return s->context.clock->realtime_usec(s->context.clock);
}

/** @return limits.memory's share of one destination */
uint64_t scheduler_memory_share(const Scheduler *s);
/** As DeliveryS3Options.reserve. */
int scheduler_reserve_memory(Delivery *job, uint64_t bytes, uint64_t *ret_limit);
/** Tells the pipeline what a probe found. @param outcome  0, UPLOAD_E_*, -errno  @param error  a sentence, copied; may be NULL */
void scheduler_probe_done(Destination *d, int outcome, const char *error);
/** Tells it that what came before the next delivery is over. */
void scheduler_cleanup_done(Destination *d);
uint64_t scheduler_random(void);
size_t scheduler_tries_index(const Bundle *b, const DeliveryRecord *delivery); /* in b->tries */
Destination *scheduler_find_destination(const Scheduler *s, const char *name);
/** @return whether it failed so often by the bundle's own fault that it is not tried any more */
bool scheduler_has_given_up(const Scheduler *s, const DeliveryRecord *delivery);
