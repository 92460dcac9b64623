/* What the files of the retainer share: retainer.c (life, when to look, what status says), retainer_held.c (whose links are still to be
 * let go), retainer_judge.c (from measures to acts), retainer_act.c (from an act to its row), retainer_jobs.c (in the worker). */
#pragma once

#include "agent/retention/pins.h"
#include "agent/retention/policy.h"
#include "agent/retention/retainer.h"

/* No more acts of a source are begun at a look; the rest follows when these are done. */
#define RETAINER_ACTS_MAX 64

/* A bundle that has ended and whose row says that links are held. */
typedef struct HeldItem {
        ListLink link;
        char id[BUNDLE_ID_SIZE];
        bool is_evicted, is_pinned, is_busy; /* busy: an errand has it */
        bool is_over;       /* nothing of it is left; only its row does not say so yet */
        bool was_unheld;    /* and there was nothing that held it */
        bool awaits_look;   /* an act has found what was not shipped */
        bool was_looked_at; /* last, and nobody wants what was found */
        uint64_t first_seen_usec, ended_usec;
        uint64_t not_before_boot_usec; /* after a failure */
        bool is_measured;
        PinsUse use;
} HeldItem;

typedef struct Subject { /* what a measure is about */
        char id[BUNDLE_ID_SIZE];
        bool is_known;   /* measured before: again only for want of room */
        uint64_t digest; /* of an undelivered one */
        RetentionItem item;
        PinsUse use;
} Subject;

typedef struct MeasureJob {
        SourceTask errand;
        struct Retained *owner; /* the loop's side */
        SourceTerms *terms;     /* a reference */
        RetentionTerms policy;
        Subject *subjects;
        size_t n;
        PinsRoom room;
        bool is_short;
        int result;
} MeasureJob;

typedef struct ActJob {
        SourceTask errand;
        struct Retained *owner; /* the loop's side */
        SourceTerms *terms;     /* a reference */
        char id[BUNDLE_ID_SIZE];
        char *relative;
        PinsOrder order; /* borrows from the above and from prints */
        uint64_t *prints, *known;
        bool only_links; /* the files stay */
        RetentionWhy why;
        PinsTally tally;
        int result;
} ActJob;

typedef struct Retained { /* a source */
        Retainer *retainer;
        IntakeSource *source; /* borrowed */
        SourceTerms *terms;   /* its own; borrowed */
        ListLink held;        /* oldest first, about */
        void *held_by_id;     /* tsearch(3) */
        size_t n_held;
        unsigned round; /* when the measure that is out was begun */
        bool is_measuring, has_room;
        MeasureJob *measured; /* waits for the others of its file system; owned */
        size_t n_acts;        /* errands that are out */
        bool has_more;        /* acts were left for the next look */
        PinsRoom room;
        RetentionReport report;
        char *trouble; /* of the last act that failed; owned */
        char *note;    /* owned */
} Retained;

struct Retainer {
        RetainerContext context;
        RetentionTerms terms;
        Retained *sources;
        size_t n_sources;
        sd_event_source *timer;
        unsigned round;
        bool is_armed;
        uint64_t due_boot_usec; /* of the timer */
};

uint64_t retainer_boot_usec(const Retainer *r);
/** Looks in so long, or earlier when that is planned already. */
void retainer_look_in(Retainer *r, uint64_t usec);
/** Looks when there is something to look for. */
void retainer_plan(Retainer *r);

/* retainer_held.c */
int held_load(Retainer *r);
void held_add(Retained *s, const BundleRecord *rec);
HeldItem *held_find(const Retained *s, const char *id);
void held_remove(Retained *s, HeldItem *h);
void held_clear(Retained *s);
/** Counts a delivered bundle whose files are never deleted, since nothing of ours holds them. */
void unheld_count(const Retained *s);
uint64_t unheld_n(const Retained *s);

/* retainer_judge.c */
/** @return whether nothing may be begun with it now: something is at it, it was put off, or its last look is still to come */
bool held_is_busy(const Retained *s, const HeldItem *h);
/** Starts measuring a source that has something to let go of. */
void retainer_measure(Retained *s);

/* retainer_act.c */
/** Lets go of what an ended bundle holds, in the worker. @return whether it was begun */
bool retainer_act(Retained *s, HeldItem *h, RetentionWhy why);
/** Begins with what needs no measure: evicted ones whose files are still there, and with `keep` all links. */
void retainer_act_on_owed(Retained *s);

/* retainer_jobs.c */
int measure_job_new(MeasureJob **ret, SourceTerms *terms);
MeasureJob *measure_job_free(MeasureJob *j);
int act_job_new(ActJob **ret, SourceTerms *terms, const BundleRecord *rec);
ActJob *act_job_free(ActJob *j);
