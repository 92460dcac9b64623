/* Introduces those who hear of a failure (notes, incidents) to those who ship what is there of it
 * (intake, attachments). */
#pragma once

#include "agent/agent_private.h"

/** Makes the desk for hooks. Dumps are collected without it as well: what cannot be had is said,
 * and shown by status. */
void agent_hook_start(Agent *a);
/** Both of IntakeContext. @param userdata  the agent */
void agent_hook_unheard(uint64_t n, void *userdata);
void agent_hook_renewed(const char *source, const char *unit_path, uint64_t before_usec,
                        void *userdata);
/** Goes on with another configuration, and with sources made anew. */
void agent_hook_rebind(Agent *a);
void agent_hook_stop(Agent *a);
/** @return whether all that was left in the mailbox has been read */
bool agent_hook_is_idle(const Agent *a);
void agent_hook_view(const Agent *a, HookView *ret);
