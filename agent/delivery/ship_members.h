/* Where a delivery reads its members from: our hard links, the descriptors that were kept, or the source itself. And what is attached to the
 * bundle, in either case. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "agent/hooknotes/attachments.h"
#include "lib/bundle/plan.h"

#define SHIP_ATTACHED_PREFIX ATTACHMENTS_DIRECTORY "/"

struct ShipJob;
typedef struct ShipMembers ShipMembers;

typedef struct
        ShipReasons { /* why the bundle is not complete: told one by one, as sentences that are borrowed for the call */
        void (*add)(const char *reason, void *userdata);
        void *userdata;
} ShipReasons;

/** Finds the members and adds each to the plan (not yet frozen). What cannot be opened is left out, with a reason. A member of the source that
 * has the name of an attachment is left out too, with a reason, and follows in a supplement, where it stands alone under this name.
 * @return 0, -ENOENT when nothing is left, -errno */
int ship_members_new(ShipMembers **ret, const struct ShipJob *s, Plan *plan,
                     const ShipReasons *reasons);
ShipMembers *ship_members_free(ShipMembers *m);

/** Opens the plan's member i for reading. @return an fd of the caller's, -errno */
int ship_members_open(const ShipMembers *m, size_t i);

/** Gives the job the members' fingerprints, those of the attachments among them, and the sum of the others. Nothing for NULL. */
int ship_members_take_prints(ShipMembers *m, struct ShipJob *s);
