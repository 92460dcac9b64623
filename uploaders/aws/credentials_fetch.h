/* One fetch of AWS credentials: carries a plan out. On the loop; the first request is made by
 * credentials_fetch_start(). */
#pragma once

#include <stdbool.h>
#include <systemd/sd-event.h>

#include "lib/base/clock.h"
#include "uploaders/aws/credentials_plan.h"
#include "uploaders/aws/credentials_secret.h"

#define CREDENTIALS_NO_MEMORY "out of memory while looking for AWS credentials"

typedef struct CredentialsFetch CredentialsFetch;

typedef struct CredentialsFetchOptions { /* borrowed while the fetch lives */
        sd_event *event;
        Clock *clock;
        char *const *environment;
        const char *ca_file, *proxy; /* for STS */
        const CredentialsPlanOptions *plan;
        /** It is over. May be called from inside credentials_fetch_start(); the fetch is freed in a
         * later turn of the loop. */
        void (*on_over)(void *userdata);
        void *userdata;
} CredentialsFetchOptions;

/** Decides what is asked, from environment and files. @return 0 and *ret; -EINVAL and *ret_error, a
 * sentence (the caller's); -ENOMEM */
int credentials_fetch_new(CredentialsFetch **ret, const CredentialsFetchOptions *options,
                          char **ret_error);
/** Takes NULL, returns NULL. Not from inside on_over. */
CredentialsFetch *credentials_fetch_free(CredentialsFetch *fetch);
void credentials_fetch_start(CredentialsFetch *fetch);

bool credentials_fetch_is_over(const CredentialsFetch *fetch);
/** @return NULL, and the keys with their origin, the caller's; else why there are none, borrowed */
const char *credentials_fetch_take(CredentialsFetch *fetch, CredentialsSet *ret, char **ret_origin);
