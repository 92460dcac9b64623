/* The members of one delivery: read from the agent's hard links, from open descriptors or from the
 * source. Private to this folder. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/delivery/delivery.h"
#include "lib/bundle/plan.h"

typedef struct DeliveryMembers DeliveryMembers;

/** Finds the members and adds each to the plan (not yet frozen). What cannot be opened is left out,
 * with a reason.
 * @param reasons  borrowed: gets why the bundle is not complete, a sentence each
 * @return 0, -ENOENT when nothing is left, -errno */
int delivery_members_new(DeliveryMembers **ret, const Delivery *d, Plan *plan, json_t *reasons);
DeliveryMembers *delivery_members_free(DeliveryMembers *m);

/** Opens the plan's member i for reading. @return an fd of the caller's, -errno */
int delivery_members_open(const DeliveryMembers *m, size_t i);

/** @return whether members were left out that have changed since another destination got the bundle
 */
bool delivery_members_have_changed(const DeliveryMembers *m);

/** The bundle at the destination lacks member i; without this call it has it. */
void delivery_members_leave_out(DeliveryMembers *m, size_t i);

/** Gives the delivery the members' fingerprints, and their sum. Nothing for NULL. */
int delivery_members_export_prints(DeliveryMembers *m, Delivery *d);

/** @return the pid in a member's name; 0 or less: there is none */
int64_t delivery_member_pid(const PlanMember *m, SourceKind kind);

/** Adds a reason why the bundle is not complete, unless intake or an earlier delivery has given it.
 * @param reasons  a json_t array */
void delivery_members_add_reason(const char *reason, void *reasons);
