/* What the files of the pipeline share. Nobody else includes this. */
#pragma once

#include "agent/delivery/pipeline.h"
#include "agent/delivery/ship.h"
#include "agent/delivery/stall.h"
#include "agent/delivery/turns.h"
#include "lib/base/path.h"
#include "lib/event/worker_pool.h"

typedef struct DestinationType DestinationType;

typedef enum DestinationState {
        DESTINATION_OK,
        DESTINATION_PAUSED,  /* it waits for people: full, or closed to us */
        DESTINATION_FAILING, /* what was tried last failed */
        N_DESTINATION_STATES
} DestinationState;

/** @return as people are told; static */
const char *pipeline_destination_state_name(DestinationState s);

/* A volume has a second one of these for small bundles alone, so that they need not wait until a large copy, which cannot be interrupted,
 * is through: its `head` is the first one, which speaks for both. */
typedef struct Destination {
        Pipeline *pipeline;
        struct Destination *head;        /* itself, but for the second one */
        const ConfigDestination *config; /* borrowed */
        const DestinationType *type;
        void *target; /* the type's own */
        PathTemplate *template;
        ShipJob *running;
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
        Stall stall; /* of what is at work */
        char stall_error[256];
        Turns turns;
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

        /** Can it be written? pipeline_probed() is called later, never from inside. @return 0, -errno */
        int (*probe)(Destination *d);
        /** Something to be done before the next delivery? Then pipeline_tidied() is called later, never from inside.
         * @param ret_next_usec  CLOCK_BOOTTIME, when to ask again  @return whether something was begun */
        bool (*tidy)(Destination *d, uint64_t *ret_next_usec);

        /** What a delivery needs to begin with. */
        uint64_t (*memory)(const Destination *d);
        /** A path or URL, for people. @param directory  as in ShipOrder  @return the caller's, NULL for lack of memory */
        char *(*where)(const Destination *d, const char *directory, const char *name);
        /** What of an expanded prefix is not below it. */
        const char *(*root)(const Destination *d);

        int (*ship_new)(Destination *d, const ShipOrder *order, ShipJob **ret);
        /** s->on_done is called later, never from inside. @return 0; -errno: nothing was begun */
        int (*ship_begin)(Destination *d, ShipJob *s);
        void (*ship_abort)(ShipJob *s);
        /** The threads its deliveries run in. */
        WorkerPool *(*worker)(const Destination *d);
        /** Ends it soon, but so that little has to be done again. */
        void (*ship_wind_down)(ShipJob *s);
        ShipJob *(*ship_free)(ShipJob *s);
        /** Brings the figures of what is at work up to date. @return anything that changes as long as the destination takes something */
        uint64_t (*refresh)(Destination *d);
        /** Whether what is at work waits for the destination, not for us. @param ret_since_usec  CLOCK_BOOTTIME; 0: for nobody.
         * NULL: one thread reads, packs and writes, so that the kernel has to be asked what it waits for */
        bool (*is_awaited)(const Destination *d, uint64_t *ret_since_usec);
        /** Delivered: what was kept to go on with may go. */
        void (*delivered)(Destination *d, const char *bundle);
        void (*stats)(const Destination *d,
                      PipelineRequests *ret); /* NULL = it makes no requests */
};
extern const DestinationType destination_volume_type, destination_s3_type;

/* How long a stop waits for workers; one that hangs in the kernel is then left behind. */
#define PIPELINE_STOP_USEC (5 * USEC_PER_SEC)

struct Pipeline {
        PipelineContext context;
        const Config *config;
        WorkerPool *compressors;
        unsigned n_compressors;
        Destination *destinations;
        size_t n_destinations; /* configured */
        size_t n_all;          /* the second ones of volumes come behind them */
        Limits *limits;
        bool in_a_hurry; /* drained, or a sweep: nothing waits for the sake of others */
        uint64_t memory_used, memory_reserved; /* reserved: of limits.memory, for the second ones */
        Destination *waits_for_memory; /* begins next: nobody else may take what it waits for */
        uint64_t n_retries[N_PIPELINE_RETRIES];
        uint64_t n_aborted; /* unfinished uploads, since the start */
        bool stopping;
        uint64_t
                stop_usec; /* CLOCK_BOOTTIME: what is at work then is left behind; 0 = not stopping */
};

static inline uint64_t pipeline_boot_usec(const Pipeline *p) {
        return p->context.clock->boottime_usec(p->context.clock);
}

static inline uint64_t pipeline_realtime_usec(const Pipeline *p) {
        return p->context.clock->realtime_usec(p->context.clock);
}

/** @return limits.memory's share of one destination */
uint64_t pipeline_memory_share(const Pipeline *p);
/** As ShipS3Order.reserve. */
int pipeline_reserve(ShipJob *s, uint64_t bytes, uint64_t *ret_limit);
/** Tells the pipeline what a probe found. @param outcome  0, UPLOAD_E_*, -errno  @param error  a sentence, copied; may be NULL */
void pipeline_probed(Destination *d, int outcome, const char *error);
/** Tells it that what came before the next delivery is over. */
void pipeline_tidied(Destination *d);
/** A delivery is over: the on_done of every ShipJob. */
void pipeline_shipped(ShipJob *s);
uint64_t pipeline_random(void);
bool pipeline_has_memory(const Pipeline *p, uint64_t bytes);
/** Begins a delivery. @return 0, -errno: it has not begun */
int pipeline_start(Destination *d, Bundle *b);

/* pipeline_order.c: what a delivery takes along, read on the loop before it begins. */
/** Below the destination's root. @return the caller's, NULL for lack of memory */
char *pipeline_directory(const Destination *d, const Bundle *b);
/** The first delivery of the bundle begins: what must be the same for all is settled now. The row is the caller's to write. */
void pipeline_settle_order(Pipeline *p, Bundle *b);
/** Gives the job what was shipped before, what is attached, and what the hook told. */
void pipeline_take_along(Pipeline *p, const Bundle *b, ShipJob *s);

/* pipeline_turn.c */
/** Starts what may start there now. */
void pipeline_destination_kick(Destination *d);
void pipeline_kick_in(Destination *d, uint64_t usec);

/** @return the bundle's delivery to a destination, NULL when it has none */
DeliveryRecord *pipeline_delivery(const Bundle *b, const char *destination);
size_t pipeline_tries_index(const Bundle *b, const DeliveryRecord *delivery); /* in b->tries */
/** @return what happened to this delivery of b since the start */
BundleTries *pipeline_tries(Bundle *b, const DeliveryRecord *delivery);
Destination *pipeline_find_destination(const Pipeline *p, const char *name);
/** @return whether it failed so often by the bundle's own fault that it is not tried any more */
bool pipeline_has_given_up(const Pipeline *p, const DeliveryRecord *delivery);
/** @return whether there is no delivery left to try, but some that were given up */
bool pipeline_has_given_up_all(const Pipeline *p, const Bundle *b);

/* pipeline_answer.c: what an answer means. */
void pipeline_destination_is_well(Destination *d);
/** @param outcome  UPLOAD_E_*: somebody must mend it (full, denied), or it is away
 * @param error  a sentence, copied; may be NULL */
void pipeline_destination_is_ill(Destination *d, int outcome, const char *error);
/** Writes down how a delivery ended. The bundle may be gone afterwards. */
void pipeline_take_answer(Destination *d, Bundle *b, ShipJob *s);
/** Moves a bundle on from SHIPPING, or remembers the move until its last worker is back. It may be gone afterwards.
 * @param to  READY, or any state that may follow SHIPPING
 * @param reason  a sentence, copied; may be NULL */
void pipeline_leave_shipping(Pipeline *p, Bundle *b, BundleState to, const char *reason);
