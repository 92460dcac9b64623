/* What the API shows of the agent and requests from it: agent/ fills it, api.c uses it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/base/bound.h"
#include "lib/neuron/record.h"

#define HISTOGRAM_BUCKETS 12
typedef struct Histogram {
        double le[HISTOGRAM_BUCKETS];      /* upper bounds; +Inf is implied */
        uint64_t count[HISTOGRAM_BUCKETS]; /* not cumulative */
        uint64_t total;
        double sum;
} Histogram;

/** Counts a value in the first bucket whose bound is not below it; above all, in `total` alone. */
void histogram_add(Histogram *h, double value);

typedef struct DestinationView {
        const char *name, *type;    /* "volume", "s3" */
        const char *state;          /* ok | paused | failing */
        const char *last_error;     /* NULL */
        uint64_t last_success_usec; /* 0 = never */
        uint64_t bytes_delivered;
        uint64_t n_lacking; /* delivered bundles of its sources that were never sent there */
} DestinationView;

typedef struct ShippingView {
        const char *id, *destination;
        uint64_t sent_bytes; /* of the object, so far */
        uint64_t done_bytes,
                total_bytes;  /* of the uncompressed stream: what progress is measured by */
        uint64_t rate;        /* uncompressed bytes a second */
        uint64_t eta_seconds; /* UINT64_MAX = unknown */
} ShippingView;

typedef struct SourceView {
        const char *name, *kind, *path;
        const char *watch;  /* inotify | scan */
        const char *note;   /* why degraded, links refused …; NULL */
        const char *unseen; /* why not all of it could be read or recorded; NULL */
        uint64_t n_watches, n_overflows;
        double last_scan_seconds;
        /* On a file system that nodes share: undelivered units that other nodes hold */
        uint64_t n_others, n_other_nodes, others_oldest_seconds;
        uint64_t n_dead_links; /* bundles of dead nodes that their links still hold there */
        /* Retention; of bounds 0 = off */
        uint64_t used_bytes, max_use_bytes, free_bytes, keep_free_bytes;
        uint64_t n_held, n_unheld;  /* delivered bundles: to be deleted, and never deleted since
                                       nothing of ours holds their files */
        const char *retention_note; /* short of space …; NULL */
} SourceView;

typedef struct LimitsView {
        uint64_t upload_rate; /* bytes a second at this time of day; 0 = no limit */
        double work_share;    /* of the time that workers may work now: less while the machine is
                                 pressed */
        const char *note;     /* why it never is less; NULL */
} LimitsView;

typedef struct LabelledCount {
        const char *label;
        uint64_t count;
} LabelledCount;

typedef struct RequestView {
        const char *destination, *operation; /* as AWS calls it: UploadPart … */
        unsigned code;                       /* HTTP status, 0 = no answer */
        uint64_t n;
} RequestView;

typedef struct DrainView {
        bool is_draining;
        const char *reason;     /* who asked, a sentence: "requested by the operator", "EC2: spot
                                   interruption (terminate)" */
        uint64_t since_usec;    /* CLOCK_REALTIME */
        uint64_t deadline_usec; /* when this node terminates, CLOCK_REALTIME; 0 = not known */
        bool is_safe;           /* nothing that only this node has: safe to terminate */
        const char *missing;    /* a sentence: what is not; NULL when safe, or when not draining */
} DrainView;

typedef struct HookView {
        const char *socket, *mailbox; /* paths */
        uint64_t n_socket, n_mailbox, n_refused,
                n_twice; /* notes since the state was made; n_twice: duplicates, discarded */
        uint64_t n_snapshots, n_snapshots_dropped; /* since the agent started */
        uint64_t n_snapshots_underway; /* being taken, or waiting for their second check */
        uint64_t n_unseen;   /* notes about directories that the agent cannot see; as n_twice */
        uint64_t n_open;     /* hooks that are connected now */
        uint64_t n_awaited;  /* notes whose directory is not there yet */
        const char *trouble; /* why notes are not received, or not at once; NULL */
        Histogram seconds;   /* from a note to the answer about its snapshot */
} HookView;

typedef struct BoundView { /* of something that is bounded by owner */
        const char *what;
        uint64_t max, max_each; /* UINT64_MAX: not bounded */
        uint64_t total, n_refused;
        Owner last_refused; /* with n_refused > 0 */
        bool has_owner;     /* last_refused is known */
} BoundView;

#define BOUNDED_MAX 24

typedef struct AgentView {
        const char *version, *instance_id, *state; /* running | draining | stopping */
        pid_t pid;
        uint64_t started_usec;
        const char *config_file, *config_last_error; /* NULL = none */
        const char
                *config_pending_restart; /* keys that changed and wait for a restart; NULL = none */
        uint64_t config_loaded_usec;
        uint64_t bundles[N_BUNDLE_STATES];
        uint64_t bytes_by_state[N_BUNDLE_STATES];
        int64_t unaccounted; /* discovered less the sum of the states, each counted for itself: 0,
                                or something is wrong */
        uint64_t bytes_delivered, bytes_sent, bytes_read, buffer_bytes;
        const DestinationView *destinations;
        size_t n_destinations;
        const ShippingView *shipping;
        size_t n_shipping;
        const SourceView *sources;
        size_t n_sources;
        const LabelledCount *discards, *retries;
        size_t n_discards, n_retries;
        Histogram delivery_seconds;
        const RequestView *requests; /* to object stores */
        size_t n_requests;
        Histogram request_seconds; /* without bounds where there is no object store */
        uint64_t n_aborted_uploads, n_uploads_to_abort;
        DrainView drain;
        LimitsView limits;
        HookView hook;
        const char *agreement;  /* JSON; NULL: nodes do not agree */
        LabelledCount named[3]; /* bundles, by how their name was agreed */
        uint64_t n_sources_deleted, sources_deleted_bytes; /* bundles whose files retention has
                                                              deleted, since the state was made */
        BoundView bounded[BOUNDED_MAX];                    /* agent_view_add_bound() */
        size_t n_bounded;
        bool idle;  /* every source has been scanned, nothing waits to be checked and no bundle is
                       underway */
        bool ready; /* can deliver now */
        const char *ready_note; /* why not; what to know beside it, when it is */
        const char *busy_note;  /* what waits though all works; NULL */
} AgentView;

/** @return how many bundles were discovered since the state was made */
static inline uint64_t agent_view_discovered(const AgentView *v) {
        uint64_t n = (uint64_t)v->unaccounted;
        for (BundleState s = 0; s < N_BUNDLE_STATES; s++)
                n += v->bundles[s];
        return n;
}

/** Adds something that is bounded by owner. */
static inline void agent_view_add_bound(AgentView *v, const Bound *b) {
        if (v->n_bounded < BOUNDED_MAX)
                v->bounded[v->n_bounded++] = (BoundView){ .what = b->what,
                                                          .max = b->max,
                                                          .max_each = b->max_each,
                                                          .total = bound_total(b),
                                                          .n_refused = b->n_refused,
                                                          .last_refused = b->last_refused,
                                                          .has_owner = b->n_refused > 0 };
}

typedef struct ViewFilter {
        int state; /* BundleState or -1 */
        const char *source, *after;
        const char *about;                  /* a bundle: those that it is the subject of; NULL */
        char failure_key[FAILURE_KEY_SIZE]; /* with failure_n: those of that failure; "" */
        uint32_t failure_n;
        unsigned limit;
} ViewFilter;

#define SNAPSHOT_NAME_SIZE 40
typedef struct SnapshotAnswer { /* the caller frees all */
        bool done;
        char *directory, **files; /* all names, NULL-terminated */
        char *data;               /* of the requested file, or of snapshot.json when done; NULL */
        size_t n_data;
} SnapshotAnswer;

/** The requests of api.c; agent/ fills it. All run on the loop and do not block. */
typedef struct AgentBackend {
        void (*view)(AgentView *ret, void *userdata); /* borrowed until the next call */
        /* Calls on_bundle for each. `explain` is only made for one bundle: sentences on where it is
         * and what happens next. */
        int (*list)(const ViewFilter *f, int (*on_bundle)(const BundleRecord *b, void *u), void *u,
                    void *userdata);
        int (*get)(const char *id, BundleRecord *ret, char **ret_explain,
                   void *userdata); /* -ENOENT */
        /* action: retry cancel pin unpin. 0; -ENOENT; -EPERM with *ret_message: not possible in its
         * state */
        int (*act)(const char *id, const char *action, char **ret_message, void *userdata);
        /* settle: only scan and retry now; what is found still waits for `settle` */
        int (*flush)(bool settle, char **ret_message, void *userdata);
        /* Ships delivered bundles to destinations that they did not have, and those that wait for a
         * destination that is no longer configured. @param destination  NULL: all that their source
         * has @param since_usec  first seen since then, CLOCK_REALTIME @param ret_more  there are
         * more of them: to be called again when these are delivered */
        int (*redeliver)(const char *destination, uint64_t since_usec, uint64_t *ret_n,
                         bool *ret_more, char **ret_message, void *userdata);
        /* Drains, or resumes. Both may be requested repeatedly. */
        int (*drain)(bool on, char **ret_message, void *userdata);
        /* Takes a snapshot of the hardware. 0; -EPERM with *ret_message: not now, and why */
        int (*snapshot)(char ret_name[SNAPSHOT_NAME_SIZE], char **ret_message, void *userdata);
        /* Its result. @param file  one of its files; NULL = snapshot.json, once it is
         * there  @return 0, -ENOENT */
        int (*get_snapshot)(const char *name, const char *file, SnapshotAnswer *ret,
                            void *userdata);
        void *userdata;
} AgentBackend;
