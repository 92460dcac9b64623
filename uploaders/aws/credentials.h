/* AWS credentials: found by the chain of the AWS SDKs, fetched in the loop, and refreshed before
 * they expire. The first source of the chain that applies is used:
 *
 *   the environment      AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN; not when the
 *                        options name a profile
 *   a web identity       AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN (EKS IRSA), by STS; likewise
 *   a profile            AWS_SHARED_CREDENTIALS_FILE, AWS_CONFIG_FILE, AWS_PROFILE: keys,
 *                        source_profile, credential_source, role_arn, web_identity_token_file,
 *                        credential_process
 *   the container        AWS_CONTAINER_CREDENTIALS_RELATIVE_URI, …_FULL_URI,
 *                        AWS_CONTAINER_AUTHORIZATION_TOKEN(_FILE) (ECS, EKS Pod Identity)
 *   the instance         IMDSv2: AWS_EC2_METADATA_SERVICE_ENDPOINT, …_ENDPOINT_MODE,
 *                        AWS_EC2_METADATA_DISABLED
 *
 * @see AWS SDKs and Tools Reference Guide, "Standardized credential providers" */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "uploaders/aws/aws_sign.h"

typedef struct Credentials Credentials;

typedef struct CredentialsOptions { /* copied */
        sd_event *event;
        Clock *clock;
        char *const *environment; /* NAME=VALUE list; usually environ; copied */
        const char *profile;      /* NULL or "" = AWS_PROFILE, then `default` */
        /* of the destination: for the STS endpoint, unless AWS_REGION or the profile says
         * otherwise */
        const char *region;
        const char *ca_file; /* for STS over https; NULL = system */
        /* as HttpPoolOptions.proxy, for STS only: the container and IMDS endpoints never go
         * through a proxy */
        const char *proxy;
        const char *home; /* instead of HOME, for ~/.aws; NULL = HOME */
} CredentialsOptions;

/** Sends no request yet.
 * @return 0 and *ret, -ENOMEM, -errno of the loop's sources */
int credentials_new(Credentials **ret, const CredentialsOptions *options);
/** Wipes the keys. Waiting callers are no longer called. Do not call it from inside on_done. */
Credentials *credentials_free(Credentials *c);
DEFINE_CLEANUP(Credentials, credentials_free);

/** Gets the present keys if they are good for another minute at least, without a request. Borrowed
 * until the next turn of the loop.
 * @return true and *ret; false: call credentials_fetch() */
bool credentials_peek(const Credentials *c, AwsKeys *ret);

typedef struct CredentialsWaiter CredentialsWaiter;
/** Fetches (or waits for the fetch underway). on_done is called once, never from inside; error
 * NULL: credentials_peek() has them. Otherwise a sentence that names what was searched where and
 * the remedy; fetched again at the earliest 1 s (then 2 s … 60 s) later, or as soon as the shared
 * files have changed; calls before that get the same error.
 * @param ret may be NULL; valid until on_done
 * @return 0, -ENOMEM */
int credentials_fetch(Credentials *c, CredentialsWaiter **ret,
                      void (*on_done)(const char *error, void *userdata), void *userdata);
/** Takes NULL, returns NULL. */
CredentialsWaiter *credentials_waiter_cancel(CredentialsWaiter *w);

/** @return the number of the present keys, which changes with the access key, secret or token; 0:
 *   there were none yet */
uint64_t credentials_serial(const Credentials *c);

/** Reports that the server refused the keys of this serial (expired, rotated, a wrong secret, no
 * permission).
 * The source is queried again by the next credentials_fetch(), whose on_done may compare the
 * serial: at once after the first refusal and when the shared files have changed, else at the
 * earliest 1 s, 2 s … 60 s after the last time. Refused keys stay in use when there are no others:
 * they may be good for other requests.
 * @return true: call credentials_fetch() (also when others are held by now); false: the source was
 *   queried shortly before, there is nothing else */
bool credentials_report_refused(Credentials *c, uint64_t serial);

/** @return why the last fetch failed, although keys may be in use; NULL: it did not, or there was
 *   none. Valid until the next turn. */
const char *credentials_error(const Credentials *c);

/** @return the source of the keys, for people: `environment (AWS_ACCESS_KEY_ID)`, `profile 'x' in
 * /root/.aws/credentials`, `role arn:… by web identity`, `instance role 'r' (IMDSv2)`; "not found
 * yet". Never a secret. Valid until the next turn. */
const char *credentials_origin(const Credentials *c);
/** @return when the keys expire, CLOCK_REALTIME; 0: never, or there are none. They are refreshed at
 *   70 to 80 % of their life, at the latest 5 min before its end. */
uint64_t credentials_expire_usec(const Credentials *c);

/** Region by environment (AWS_REGION, AWS_DEFAULT_REGION) or profile, for the command line.
 * @return the caller's, NULL = none */
char *credentials_region(const Credentials *c);

/* When credentials are usable, and when they are fetched again. Pure; exported for the tests, like
 * the two that follow. */

/** @param fetched_usec when they came, CLOCK_REALTIME
 * @param expires_usec 0 = they do not expire
 * @return whether they are good for another minute, or, of those that were given for less than
 *   ten, for a tenth of their life */
bool credentials_schedule_is_good(uint64_t fetched_usec, uint64_t expires_usec, uint64_t now_usec);

/** @param random spreads a fleet that started together over a tenth of the life
 * @return when to ask again: at 70 to 80 % of their life, at the latest 5 min before its end; those
 *   that came with less than that left after half of it, but not above a minute and not below a
 *   second. UINT64_MAX = never */
uint64_t credentials_schedule_refresh_usec(uint64_t fetched_usec, uint64_t expires_usec,
                                           uint64_t random);

/** @return the wait after the n-th failure in a row: 1 s, 2 s … 60 s; 0 for none */
uint64_t credentials_schedule_backoff_usec(unsigned n_failures);

/** Starts a fetch when it is due by the clock, as the timer does. */
void credentials_tick(Credentials *c);
/** @return whether a fetch is underway */
bool credentials_is_fetching(const Credentials *c);
