/* Which source files may be released, and which must be, so that the job has free space. Deciding
 * only: facts and time in, a list of acts out; nothing is touched. One file system at a time. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct RetentionSpace {             /* of the file system that the sources are on */
        uint64_t total_bytes, free_bytes;   /* free: to users (f_bavail) */
        uint64_t total_inodes, free_inodes; /* 0 = it does not count them */
} RetentionSpace;

typedef struct RetentionBound { /* a size or a share of the file system; off = neither */
        uint64_t bytes;
        unsigned permille;
        bool is_on, is_permille;
} RetentionBound;

typedef struct RetentionPolicy {
        bool may_delete;        /* after_delivery: delete */
        bool may_evict;         /* evict_undelivered: oldest */
        uint64_t keep_for_usec; /* after delivery */
        RetentionBound max_use; /* of the sources' bytes */
        /* A share counts for inodes too; with a size one per cent of them is kept free. */
        RetentionBound keep_free;
        RetentionBound keep_free_undelivered; /* below it undelivered links give way, as above */
} RetentionPolicy;

typedef struct RetentionItem {    /* a bundle whose files we hold or that is not delivered yet */
        uint64_t bytes, n_inodes; /* on disk: what its release would free */
        uint64_t used_bytes;      /* what it counts for against max_use */
        uid_t uid;                /* whose files they are */
        uint64_t first_seen_usec, delivered_usec; /* CLOCK_REALTIME; delivered 0 = not yet */
        bool is_pinned;                           /* by the operator: never released */
        bool is_busy;                             /* being shipped, or being released */
        bool is_only_ours; /* every file has lost its name at the source: only our links are left */
} RetentionItem;

typedef enum RetentionAct {
        RETENTION_KEEP,
        RETENTION_DELETE,  /* delivered: its files at the source and our links */
        RETENTION_RELEASE, /* undelivered and only ours: our links → evicted, `deleted_by_user` */
        RETENTION_EVICT,   /* undelivered: its files and our links → evicted, `keep_free` */
} RetentionAct;

typedef enum RetentionWhy {
        RETENTION_NO_REASON,
        RETENTION_KEEP_FOR,
        RETENTION_MAX_USE,
        RETENTION_KEEP_FREE
} RetentionWhy;

typedef struct RetentionVerdict {
        RetentionAct act;
        RetentionWhy why;
} RetentionVerdict;

typedef struct RetentionReport {              /* for status */
        uint64_t used_bytes, max_use_bytes;   /* max 0 = off */
        uint64_t free_bytes, keep_free_bytes; /* keep 0 = off */
        uint64_t keep_free_undelivered_bytes;
        bool stays_above_max_use, stays_short; /* even after all acts that are allowed */
        /* When keep_for of the next one is over, CLOCK_REALTIME; UINT64_MAX = none. */
        uint64_t next_usec;
} RetentionReport;

typedef struct RetentionState {
        RetentionSpace space;
        uint64_t now_usec;          /* CLOCK_REALTIME */
        const RetentionItem *items; /* in any order; borrowed */
        size_t n;
} RetentionState;

/** Decides what is released now: what is over keep_for; the oldest delivered until max_use holds;
 * delivered ones until keep_free will hold; undelivered ones that are only ours until
 * keep_free_undelivered will; and where that is allowed other undelivered ones until keep_free
 * will. Each time it is the oldest of the owner whose files (of those that are only ours: whose
 * links) take most. No act that does not bring the bound nearer, and none after it holds.
 * @param ret  one verdict an item
 * @return 0 or -ENOMEM */
int retention_decide(const RetentionPolicy *policy, const RetentionState *state,
                     RetentionVerdict *ret, RetentionReport *ret_report);

/** @return whether keep_free is violated */
bool retention_is_short(const RetentionPolicy *policy, const RetentionSpace *space);
/** @return whether keep_free_undelivered is violated */
bool retention_is_short_undelivered(const RetentionPolicy *policy, const RetentionSpace *space);

/* ---- sentences ---- */

#define RETENTION_SHORTAGE_SIZE 160
/** @param key, keep_bytes  the bound that is violated, and what it requires
 * @return ret, a clause: what was free and what the bound requires */
const char *retention_report_shortage(const RetentionReport *report, const char *key,
                                      uint64_t keep_bytes,
                                      char ret[static RETENTION_SHORTAGE_SIZE]);
/** @return what stays violated and the remedy, the caller's; NULL: nothing, or no memory */
char *retention_report_explain(const RetentionReport *r, const RetentionPolicy *t);
