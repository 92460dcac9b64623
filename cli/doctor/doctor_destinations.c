/* Checks whether each destination can be written, and reports why not. A volume is probed in a
 * child, since its server may be away; a bucket is probed by all requests that a delivery makes. */
#include "cli/doctor/doctor.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/archive/object_bucket.h"
#include "cli/doctor/volume_users.h"
#include "config/keys.h"
#include "lib/base/cleanup.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/bundle_name.h"
#include "uploaders/s3/s3_bucket.h"
#include "uploaders/volume/volume.h"

/* ---- a volume ---- */

typedef struct VolumeCheck {
        const ConfigDestination *config;
        const char *what, *root;
} VolumeCheck;

/* Doctor creates no missing root: it would belong to the user who runs doctor. The agent creates
 * it. */
static void report_missing_root(Doctor *d, const VolumeCheck *check) {
        const char *what = check->what, *root = check->root;
        const json_t *its =
                cli_find(json_object_get(d->agent, "destinations"), "name", check->config->name);
        _cleanup_free_ char *parent = path_parent(root);
        struct stat st;
        /* The agent creates a root that it has delivered to again only on the same mount:
         * uploaders/volume/volume.c. */
        if (cli_number(its, "bytes_delivered") > 0) {
                doctor_report(d, strcmp(cli_text(its, "state"), "ok") == 0 ? WARNING : FAILED, what,
                              "mount it, unless the directory was removed on purpose",
                              "'%s' no longer exists; the agent has delivered there, and waits for "
                              "the mount that it was on",
                              root);
                return;
        }
        if (parent && stat(parent, &st) == 0 && S_ISDIR(st.st_mode))
                doctor_report(
                        d, WARNING, what,
                        "if it is on a mount of its own, check that it is mounted",
                        "'%s' does not exist yet; the agent creates it in '%s'%s", root, parent,
                        d->agent ? ""
                                 : ", unless it has delivered there before: then it waits for "
                                   "the mount");
        else
                doctor_report(d, FAILED, what, "mount it, or create its parent directory",
                              "neither '%s' nor its parent directory exists", root);
}

static void check_users(Doctor *d, const VolumeCheck *check, Volume *v) {
        VolumeAdvice advice[VOLUME_ADVICE_MAX];
        size_t n = volume_users_check(d->config, check->config, check->root, v, advice);
        for (size_t i = 0; i < n; i++) {
                doctor_report(d, advice[i].finding, check->what, advice[i].remedy, "%s",
                              advice[i].detail ? advice[i].detail : strerror(ENOMEM));
                free(advice[i].detail);
                free(advice[i].remedy);
        }
}

static void check_volume(Doctor *d, const void *subject) {
        const VolumeCheck *check = subject;
        const ConfigDestination *c = check->config;
        const char *what = check->what, *root = check->root;
        _cleanup_free_ char *error = NULL;
        Volume *volume = NULL;
        if (access(root, F_OK) < 0 && errno == ENOENT) {
                report_missing_root(d, check);
                return;
        }
        VolumeOptions options = { .root = root,
                                  .min_free_bytes = c->min_free.is_permille ? 0 : c->min_free.bytes,
                                  .min_free_permille =
                                          c->min_free.is_permille ? c->min_free.permille : 0,
                                  .mode = c->mode,
                                  .group = c->group,
                                  .trusted_uids = d->config->agreement.trusted_uids.items,
                                  .must_exist = true };
        int r = volume_new(&volume, &options);
        if (r == 0)
                r = volume_probe(volume, &error);
        if (r == 0)
                doctor_report(d, OK, what, NULL,
                              "'%s' can be written: a probe file was written and removed", root);
        else
                doctor_report(d, FAILED, what, NULL, "%s",
                              error ? error : strerror(r < 0 ? -r : EIO));
        if (volume)
                check_users(d, check, volume);
        volume_free(volume);
}

/* ---- a bucket ---- */

typedef struct BucketCheck {
        Doctor *d;
        const char *what, *destination;
        bool done;
        bool has_reported;
} BucketCheck;

/* Reports that this environment has no keys. The agent may have some: from an EnvironmentFile=, its
 * home, or a role. Its own failures are reported by doctor_agent.c. */
static void report_without_keys(const BucketCheck *l, const char *detail) {
        const json_t *its =
                cli_find(json_object_get(l->d->agent, "destinations"), "name", l->destination);
        char moment[CLI_MOMENT_SIZE];
        if (*cli_text(its, "last_success"))
                doctor_report(
                        l->d, OK, l->what, NULL,
                        "the agent delivered there last at %s; nothing is tried without keys in "
                        "this "
                        "environment",
                        cli_moment(moment, cli_text(its, "last_success")));
        else
                doctor_report(
                        l->d, WARNING, l->what,
                        "run doctor in the agent's environment (its EnvironmentFile= or role)",
                        "%s in this environment; whether the agent has keys is not known until it "
                        "has delivered",
                        detail);
}

static void on_step(const S3ProbeStep *step, void *userdata) {
        BucketCheck *l = userdata;
        Finding finding = step->outcome == 0 ? OK : step->is_optional ? WARNING : FAILED;
        const char *detail = step->detail && *step->detail ? step->detail : NULL;
        if (step->outcome != 0 && strcmp(step->what, "credentials") == 0) {
                report_without_keys(l, detail ? detail : "no keys");
                l->has_reported = true;
                return;
        }
        l->has_reported = l->has_reported || finding == FAILED;
        if (step->outcome == 0)
                doctor_report(l->d, finding, l->what, NULL, "%s%s%s", step->what,
                              detail ? ": " : ": works", detail ? detail : "");
        else
                doctor_report(l->d, finding, l->what, NULL, "%s%s%s%s: %s", step->what,
                              step->permission ? " (needs " : "",
                              step->permission ? step->permission : "", step->permission ? ")" : "",
                              detail ? detail : "failed");
}

static void on_done(int outcome, const char *error, void *userdata) {
        BucketCheck *l = userdata;
        l->done = true;
        if (outcome != 0 && !l->has_reported)
                doctor_report(l->d, FAILED, l->what, NULL, "%s",
                              error ? error : "the probe failed");
}

static void check_bucket(Doctor *d, const ConfigDestination *c, const char *what) {
        _cleanup_free_ char *fixed = form_fixed_part(c->prefix),
                            *prefix = fixed ? s3_key_prefix(fixed) : NULL,
                            *key = prefix ? s3_probe_key(prefix, d->instance_id) : NULL,
                            *fault = NULL;
        BucketCheck l = { .d = d, .what = what, .destination = c->name };
        S3ProbeOptions options = { .key = key,
                                   .list_prefix = prefix,
                                   .thorough = true,
                                   .on_step = on_step,
                                   .on_done = on_done,
                                   .userdata = &l };
        cli_progress(d->cli, "%s: trying s3://%s", what, c->bucket);
        int r = key ? object_bucket_probe(c, &options, &l.done, &fault) : -ENOMEM;
        if (r < 0 && r != -EINTR)
                doctor_report(d, FAILED, what, NULL, "%s", fault ? fault : strerror(-r));
}

/* ---- all of them ---- */

static void check_path(Doctor *d, size_t i, const char *what) {
        const ConfigDestination *c = &d->config->destinations[i];
        _cleanup_free_ char *root = form_fixed_part(c->path);
        if (root)
                d->hangs[i] = !doctor_guarded(d, what, root, check_volume,
                                              &(VolumeCheck){ c, what, root });
}

void doctor_destinations_check(Doctor *d) {
        for (size_t i = 0; i < d->config->n_destinations && !cli_is_interrupted(); i++) {
                const ConfigDestination *c = &d->config->destinations[i];
                if (d->only && strcmp(d->only, c->name) != 0)
                        continue;
                _cleanup_free_ char *what = strbuf_format("destination %s", c->name);
                if (c->type == CONFIG_S3)
                        check_bucket(d, c, what ? what : c->name);
                else
                        check_path(d, i, what ? what : c->name);
        }
}
