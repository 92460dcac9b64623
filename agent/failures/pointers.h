/* Pointers: `<place>/<instance-id>/<bundle-id>.see.json` where a bundle would be searched for but
 * does not lie: at the place of its own cluster id and date-time, or, when it was delivered before
 * its failure had a name, at its failure's. */
#pragma once

#include "agent/delivery/objects.h"
#include "agent/peers/agreement.h"

typedef struct Pointers Pointers;

int pointers_new(Pointers **ret, Clock *clock);
Pointers *pointers_free(Pointers *p);
DEFINE_CLEANUP(Pointers, pointers_free);

/** A bundle was delivered. @param claim  of a process in it, to find its failure when it went
 * without a name; NULL: none */
void pointers_on_delivered(Pointers *p, const BundleRecord *rec, const char *key,
                           const Claim *claim);
/** Writes what is due. @return when to call it again, by CLOCK_BOOTTIME; AGREEMENT_NEVER */
int64_t pointers_step(Pointers *p, const Agreement *agreement, Scheduler *s);
/** Before the scheduler is freed. */
void pointers_cancel(Pointers *p);

/** Reads the pointer at the bundle's own place, which leads to what a state database that is lost
 * had delivered. @return as object_call_new(); -ENOMEM */
int pointer_get(ObjectCall **ret, Scheduler *s, const char *destination, const BundleRecord *rec,
                void (*on_done)(const ObjectResult *r, void *userdata), void *userdata);
/** @return the name that the bundle was delivered under; `agreed` is "": it is no pointer */
FailureName pointer_parse(const ObjectResult *r);
