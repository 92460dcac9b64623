/* What the files that make a plan share. Nobody else includes this. */
#pragma once

#include "uploaders/aws/credentials_plan.h"
#include "uploaders/aws/credentials_say.h"

#define CREDENTIALS_SESSION_NAME "neuron-collectd"

enum { PLAN_E_NOTHING = 1 }; /* this link of the chain has none: on to the next */

typedef struct Planner {
        CredentialsPlan *plan;
        const CredentialsFiles *files;
        char *const *environment;
        const char *profile; /* the one that the chain looks at */
        char *fault;         /* owned */
} Planner;

/* For `return planner_fault(p, credentials_say(…))`. */
int planner_fault(Planner *p, char *text);
/* What a profile asks for by this key, which is set, is not supported: names file and line. */
int planner_unsupported(Planner *p, const char *profile, const char *key, const char *what);
/* Sets base and origin (taken). */
int planner_use(Planner *p, CredentialsBase base, char *origin);
int planner_use_keys(Planner *p, const AwsKeys *keys, uint64_t expires_usec, char *origin);
/* Its path, and why it was not read to its end. @param usual  where there is no home @return the caller's, NULL for lack of memory */
char *planner_tell_file(const CredentialsFile *f, const char *usual);

/* The three return 0, PLAN_E_NOTHING, -EINVAL with p->fault, -ENOMEM. */
int plan_environment(Planner *p);
int plan_container(Planner *p);
int plan_profile(Planner *p, bool was_asked_for); /* credentials_plan_profile.c */
