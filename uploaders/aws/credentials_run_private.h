/* What the files that carry a plan out share. Nobody else includes this. */
#pragma once

#include <stdbool.h>

#include "lib/event/child.h"
#include "lib/http/http.h"
#include "uploaders/aws/credentials_run.h"
#include "uploaders/aws/credentials_say.h"
#include "uploaders/aws/imds.h"
#include "uploaders/aws/sts.h"

struct CredentialsRun {
        CredentialsRunOptions options;
        Imds *imds;
        char *imds_path; /* of the role */
        HttpPool *pool;  /* of the container endpoint */
        Child *child;
        Sts *sts;
        CredentialsSet set; /* got so far */
        char *origin;       /* of it */
        bool has_assumed;   /* the role */
        bool is_over;
        char *error; /* NULL when it is over and there are keys */
};

/* What a base tells, once. Each takes what it is given; set is emptied. NULL = out of memory. */
void credentials_run_got(CredentialsRun *run, CredentialsSet *set, char *origin);
void credentials_run_failed(CredentialsRun *run, char *error);
/* The same for a set that stays somebody else's: it is copied. set NULL: error is a sentence, copied as well. */
void credentials_run_heard(CredentialsRun *run, const CredentialsSet *set, char *origin,
                           const char *error);

/* Each starts and tells later (or at once) by the two above. */
void credentials_from_imds(CredentialsRun *run);
void credentials_from_container(CredentialsRun *run);
void credentials_from_process(CredentialsRun *run);
void credentials_from_web_identity(CredentialsRun *run);
/* @return whether there is one now; else it has failed */
bool credentials_run_need_sts(CredentialsRun *run);
