/* Hints of hooks about units. See hook_hints.c; intake.h has the functions that record them. */
#pragma once

#include "agent/intake/promised_files.h"
#include "agent/intake/rules.h"
#include "agent/intake/source.h"

void hook_hints_init(IntakeContext *c);
/** Forgets those of a source that ends. */
void hook_hints_done(IntakeSource *s);

/** Records that a hook has started, or that one has finished. */
void hook_hints_start(IntakeSource *s, const char *unit_path, const Owner *o);
void hook_hints_finish(IntakeSource *s, const char *unit_path, const Owner *o);
/** Restores the hints about a SETTLING bundle from the notes in the store.
 * @param are_counted  it was READY before: hook_hints_report_ignored() has counted the notes, and
 * what hints there are know more */
void hook_hints_load(IntakeSource *s, const Bundle *b, bool are_counted);

/** @return whether there is a hint about a path, whoever gave it */
bool hook_hints_know_path(const IntakeSource *s, const char *path);
/** @return whether there is a hint about a path, or, if hints were refused, a note in the store */
bool hook_hints_may_name(const IntakeSource *s, const char *path);
/** @return whether a hook that may do so has named a directory a unit @param uid  of the directory
 */
bool hook_hints_name_unit(IntakeSource *s, const char *path, uid_t uid);
/** @param on_unit  of each hint of this source; < 0 ends it @return that, or 0 */
int hook_hints_for_each_unit(const IntakeSource *s,
                             int (*on_unit)(const char *path, void *userdata), void *userdata);

/** Adds the facts from the hints that count for a bundle. */
void hook_hints_add_facts(IntakeSource *s, const Bundle *b, IntakeFacts *facts);
/** Logs and counts notes of users who may not annotate the bundle. */
void hook_hints_report_ignored(IntakeSource *s, Bundle *b);
/** Has a probe look for the files that hooks have promised. @return 0, -ENOMEM */
int hook_hints_add_promises(IntakeSource *s, const char *unit_path, PromisedFiles *ret);
/** Forgets the promised files that the probe has seen. */
void hook_hints_remove_seen(IntakeSource *s, const char *unit_path, const PromisedFiles *p);
/** Labels the bundle with the promised files that were never seen. */
void hook_hints_label_missing(IntakeSource *s, Bundle *b);

/** The bundle of a unit is READY: others may use the places of hints that promise no file which is
 * still missing. */
void hook_hints_forget_ready(IntakeSource *s, const char *unit_path);
/** The bundle of a unit has ended. */
void hook_hints_forget_unit(IntakeSource *s, const char *unit_path);
/** Forgets hints about units that never came. */
void hook_hints_forget_old(IntakeSource *s);
