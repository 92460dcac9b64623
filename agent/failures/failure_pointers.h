/* Pointers: small objects `<place>/<instance-id>/<bundle-id>.see.json` at the place that a dump's
 * own cluster id and date-time give, when it was delivered under another name. They are written
 * after its delivery, and read before the delivery of what is older than the state database. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "agent/delivery/objects.h"
#include "agent/peers/agreement.h"
#include "agent/store/bundle.h"
#include "lib/base/clock.h"
#include "lib/base/list.h"

/** The pointers that are still to be written. */
typedef struct FailurePointers {
        ListLink all;
        size_t n;
        Clock *clock; /* borrowed */
} FailurePointers;

void failure_pointers_init(FailurePointers *p, Clock *clock);
void failure_pointers_done(FailurePointers *p);

/** A dump was delivered everywhere. Adds a pointer if it has its failure's name. Beyond 1024 the
 * oldest pointer is dropped. @param rec  copied */
void failure_pointers_add(FailurePointers *p, const BundleRecord *rec);
/** Writes what is due. @param s  NULL: nothing can be written now
 * @return when to call it again, CLOCK_BOOTTIME; AGREEMENT_NEVER */
int64_t failure_pointers_step(FailurePointers *p, Scheduler *s);
/** Before the scheduler is freed: cancels what is being written. */
void failure_pointers_cancel(FailurePointers *p);

/** @return the object's name of a pointer at the place where a bundle would be searched for by the
 * names that it has, the caller's; NULL: there is no such place, or no memory */
char *failure_pointers_object_name(Scheduler *s, const char *destination, const BundleRecord *rec);
/** @param r  of OBJECT_GET  @return the name that the bundle was delivered under; its `agreed` is
 * "" when there is no pointer */
FailureName failure_pointers_parse(const ObjectResult *r);
