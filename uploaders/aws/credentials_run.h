/* One fetch: carries a plan out, source by source and role by role. Lives for one fetch only, and takes its connections with it. */
#pragma once

#include <systemd/sd-event.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "uploaders/aws/credentials_plan.h"
#include "uploaders/aws/credentials_secret.h"

typedef struct CredentialsRun CredentialsRun;

typedef struct CredentialsRunOptions { /* borrowed for the life of the run */
        sd_event *event;
        Clock *clock;
        char *const *environment;
        const CredentialsPlan *plan;
        const char *ca_file, *proxy; /* as in CredentialsOptions */
        void (*on_done)(
                void *userdata); /* once; may be called from inside credentials_run_start(), which is why it only notes that it is over */
        void *userdata;
} CredentialsRunOptions;

int credentials_run_new(CredentialsRun **ret, const CredentialsRunOptions *options);
CredentialsRun *credentials_run_free(CredentialsRun *run); /* not from inside on_done */
DEFINE_CLEANUP(CredentialsRun, credentials_run_free);

void credentials_run_start(CredentialsRun *run);

/** After on_done: moves what was got. @return 0 with both filled; -ENODATA: it failed, see credentials_run_error() */
int credentials_run_result(CredentialsRun *run, CredentialsSet *ret, char **ret_origin);
const char *credentials_run_error(const CredentialsRun *run); /* a sentence; borrowed */
