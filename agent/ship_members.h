/* Where a delivery reads its members from: our hard links, the descriptors that were kept, or the source itself. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "lib/bundle/plan.h"

struct ShipJob;
typedef struct ShipMembers ShipMembers;

/** Finds the members and adds each to the plan (not yet frozen). What cannot be opened is left out, with a reason.
 * @return 0, -ENOENT when nothing is left, -errno */
int ship_members_new(ShipMembers **ret, const struct ShipJob *s, Plan *plan,
                     void (*add_reason)(const char *reason, void *userdata), void *userdata);
ShipMembers *ship_members_free(ShipMembers *m);

/** Opens the plan's member i for reading. @return an fd of the caller's, -errno */
int ship_members_open(const ShipMembers *m, size_t i);

/** Hands out the members' fingerprints, sorted (the caller's), and their sum. Nothing for NULL. */
void ship_members_take_prints(ShipMembers *m, uint64_t **ret, size_t *ret_n, uint64_t *ret_sum);
