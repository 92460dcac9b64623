#include "uploaders/aws/credentials_run.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "uploaders/aws/credentials_run_private.h"

/* What a service on this very node hands out though our clock calls it expired is used for so long: more likely the clock is wrong, or
 * the service has its own trouble, and S3 is the judge. SDKs do so for IMDS. */
#define STALE_LIFE_USEC (10 * USEC_PER_MINUTE)

int credentials_run_new(CredentialsRun **ret, const CredentialsRunOptions *options) {
        CredentialsRun *run = calloc(1, sizeof *run);
        if (!run)
                return -ENOMEM;
        run->options = *options;
        *ret = run;
        return 0;
}

CredentialsRun *credentials_run_free(CredentialsRun *run) {
        if (!run)
                return NULL;
        imds_free(run->imds);
        sts_free(run->sts);
        http_pool_free(run->pool);
        child_free(run->child);
        credentials_set_done(&run->set);
        free(run->imds_path);
        free(run->origin);
        free(run->error);
        free(run);
        return NULL;
}

static void finish(CredentialsRun *run, char *error /* taken */) {
        run->error = error;
        run->is_over = true;
        run->options.on_done(run->options.userdata);
}

void credentials_run_failed(CredentialsRun *run, char *error) {
        if (!error)
                error = strdup("out of memory while looking for AWS credentials");
        credentials_set_done(&run->set);
        finish(run, error);
}

bool credentials_run_need_sts(CredentialsRun *run) {
        if (run->sts)
                return true;
        int r = sts_new(&run->sts, &(StsOptions){ .event = run->options.event,
                                                  .clock = run->options.clock,
                                                  .place = &run->options.plan->sts,
                                                  .ca_file = run->options.ca_file,
                                                  .proxy = run->options.proxy });
        if (r < 0)
                credentials_run_failed(run, credentials_say("cannot ask STS: %s", strerror(-r)));
        return r == 0;
}

void credentials_run_heard(CredentialsRun *run, const CredentialsSet *set, char *origin,
                           const char *error) {
        CredentialsSet copy = { 0 };

        if (set) {
                const AwsKeys keys = credentials_set_keys(set);
                if (credentials_set_make(&copy, &keys, set->expires_usec) == 0)
                        return credentials_run_got(run, &copy, origin);
        }
        free(origin);
        credentials_run_failed(run, set ? NULL : credentials_say("%s", error));
}

static void on_role(const CredentialsSet *set, const char *error, void *userdata) {
        CredentialsRun *run = userdata;
        const CredentialsRole *role = &run->options.plan->role;

        run->has_assumed = true;
        credentials_run_heard(run, set,
                              credentials_say("role %s by %s", role->role_arn, run->origin), error);
}

static void assume_role(CredentialsRun *run) {
        const CredentialsRole *role = &run->options.plan->role;
        const AwsKeys keys = credentials_set_keys(&run->set);

        if (!credentials_run_need_sts(run))
                return;
        int r = sts_assume(run->sts, &(StsOrder){ .role_arn = role->role_arn,
                                                  .session_name = role->session_name,
                                                  .external_id = role->external_id,
                                                  .duration_seconds = role->duration_seconds,
                                                  .keys = &keys,
                                                  .keys_origin = run->origin,
                                                  .on_done = on_role,
                                                  .userdata = run });
        if (r < 0)
                credentials_run_failed(run, credentials_say("cannot ask STS for the role %s: %s",
                                                            role->role_arn, strerror(-r)));
}

/* @return false when the keys are of no use any more */
static bool check_expiry(CredentialsRun *run, CredentialsSet *set) {
        CredentialsBase base = run->options.plan->base;
        uint64_t now_usec = run->options.clock->realtime_usec(run->options.clock);

        if (set->expires_usec == 0 || set->expires_usec > now_usec)
                return true;
        if (run->has_assumed ||
            (base != CREDENTIALS_BASE_IMDS && base != CREDENTIALS_BASE_CONTAINER))
                return false;
        set->expires_usec = now_usec + STALE_LIFE_USEC;
        return true;
}

void credentials_run_got(CredentialsRun *run, CredentialsSet *set, char *origin) {
        char at[CLOCK_ISO_SIZE];

        credentials_set_done(&run->set);
        run->set = *set;
        *set = (CredentialsSet){ 0 };
        free(run->origin);
        run->origin = origin;
        if (!origin)
                return credentials_run_failed(run, NULL);
        if (!check_expiry(run, &run->set))
                return credentials_run_failed(
                        run,
                        credentials_say("the credentials of %s expired at %s: renew them there, or "
                                        "set this machine's clock right",
                                        origin, clock_format_iso(at, run->set.expires_usec)));
        if (run->options.plan->role.role_arn && !run->has_assumed &&
            run->options.plan->base != CREDENTIALS_BASE_WEB_IDENTITY)
                return assume_role(run);
        finish(run, NULL);
}

void credentials_run_start(CredentialsRun *run) {
        switch (run->options.plan->base) {
        case CREDENTIALS_BASE_KEYS:
                return credentials_run_heard(run, &run->options.plan->keys,
                                             strdup(run->options.plan->origin), NULL);
        case CREDENTIALS_BASE_WEB_IDENTITY:
                return credentials_from_web_identity(run);
        case CREDENTIALS_BASE_PROCESS:
                return credentials_from_process(run);
        case CREDENTIALS_BASE_CONTAINER:
                return credentials_from_container(run);
        case CREDENTIALS_BASE_IMDS:
                return credentials_from_imds(run);
        }
}

int credentials_run_take(CredentialsRun *run, CredentialsSet *ret, char **ret_origin) {
        if (!run->is_over || run->error || !run->set.access_key)
                return -ENODATA;
        *ret = run->set;
        run->set = (CredentialsSet){ 0 };
        *ret_origin = TAKE_PTR(run->origin);
        return 0;
}

const char *credentials_run_error(const CredentialsRun *run) {
        return run->error ? run->error : "out of memory while looking for AWS credentials";
}
