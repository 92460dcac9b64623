/* Can each destination be written, and if not, why? */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/archive/s3_session.h"
#include "cli/doctor/doctor.h"
#include "config/forms.h"
#include "lib/base/path.h"
#include "lib/neuron/names.h"
#include "lib/neuron/template.h"
#include "uploaders/s3/s3_probe.h"
#include "uploaders/volume/volume.h"

/* @return the fixed part of a path or prefix, the caller's; NULL */
static char *fixed_part(const char *text) {
        PathTemplate *t;
        char bad;
        if (path_template_new(&t, text, FORM_DESTINATION_VARIABLES, &bad) < 0)
                return NULL;
        char *fixed = strdup(path_template_fixed(t));
        path_template_free(t);
        return fixed;
}

/* ---- a volume ---- */

/* A missing root is made by the agent, not by whoever calls doctor: it would belong to the wrong user. */
static void tell_missing_root(Doctor *d, const char *what, const char *root) {
        _cleanup_free_ char *parent = path_parent(root);
        struct stat st;
        if (parent && stat(parent, &st) == 0 && S_ISDIR(st.st_mode))
                doctor_report(d, FINDING_WARNING, what,
                              "if it is on a mount of its own, see that it is mounted",
                              "'%s' is not there yet; the agent makes it in '%s'", root, parent);
        else
                doctor_report(d, FINDING_FAILED, what,
                              "mount it, or make the directory it is to lie in",
                              "neither '%s' nor the directory above it is there", root);
}

static void look_at_volume(Doctor *d, const ConfigDestination *c, const char *what) {
        _cleanup_free_ char *root = fixed_part(c->path), *error = NULL;
        Volume *volume = NULL;
        if (root && access(root, F_OK) < 0 && errno == ENOENT) {
                tell_missing_root(d, what, root);
                return;
        }
        VolumeOptions options = { .root = root,
                                  .min_free_bytes = c->min_free.is_permille ? 0 : c->min_free.bytes,
                                  .min_free_permille =
                                          c->min_free.is_permille ? c->min_free.permille : 0,
                                  .must_exist = true };
        int r = root ? volume_new(&volume, &options) : -ENOMEM;
        if (r == 0)
                r = volume_probe(volume, &error);
        if (r == 0)
                doctor_report(d, FINDING_OK, what, NULL,
                              "'%s' can be written: a probe file was, and was removed", root);
        else
                doctor_report(d, FINDING_FAILED, what, NULL, "%s",
                              error ? error : strerror(r < 0 ? -r : EIO));
        volume_free(volume);
}

/* ---- a bucket ---- */

typedef struct BucketLook {
        Doctor *doctor;
        const char *what;
        S3Session *session;
        bool done;
        bool told_failure;
} BucketLook;

static void on_step(const S3ProbeStep *step, void *userdata) {
        BucketLook *l = userdata;
        Finding finding = step->outcome == 0  ? FINDING_OK
                          : step->is_optional ? FINDING_WARNING
                                              : FINDING_FAILED;
        const char *detail = step->detail && *step->detail ? step->detail : NULL;
        l->told_failure = l->told_failure || finding == FINDING_FAILED;
        if (step->outcome == 0)
                doctor_report(l->doctor, finding, l->what, NULL, "%s%s%s", step->what,
                              detail ? ": " : ": works", detail ? detail : "");
        else
                doctor_report(l->doctor, finding, l->what, NULL, "%s%s%s%s: %s", step->what,
                              step->permission ? " (needs " : "",
                              step->permission ? step->permission : "", step->permission ? ")" : "",
                              detail ? detail : "failed");
}

static void on_done(int outcome, const char *error, void *userdata) {
        BucketLook *l = userdata;
        l->done = true;
        if (outcome != 0 && !l->told_failure)
                doctor_report(l->doctor, FINDING_FAILED, l->what, NULL, "%s",
                              error ? error : "the probe failed");
}

static int probe_bucket(BucketLook *l, const ConfigDestination *c) {
        _cleanup_free_ char *fixed = fixed_part(c->prefix),
                            *prefix = fixed ? s3_key_prefix(fixed) : NULL,
                            *key = prefix ? s3_probe_key(prefix, l->doctor->instance_id) : NULL;
        _cleanup_(s3_probe_freep) S3Probe *probe = NULL;
        if (!key)
                return -ENOMEM;
        int r = s3_probe_new(&probe, s3_session_client(l->session),
                             &(S3ProbeOrder){ .key = key,
                                              .list_prefix = prefix,
                                              .thorough = true,
                                              .on_step = on_step,
                                              .on_done = on_done,
                                              .userdata = l });
        cli_progress(l->doctor->cli, "%s: trying s3://%s", l->what, c->bucket);
        return r < 0 ? r : s3_session_run(l->session, &l->done);
}

static void look_at_bucket(Doctor *d, const ConfigDestination *c, const char *what) {
        _cleanup_free_ char *fault = NULL;
        _cleanup_(s3_session_freep) S3Session *session = NULL;
        BucketLook l = { .doctor = d, .what = what };
        S3SessionOrder order = { .bucket = c->bucket, .destination = c };
        int r = s3_session_new(&session, &order, &fault);
        l.session = session;
        if (r == 0)
                r = probe_bucket(&l, c);
        if (r < 0 && r != -EINTR)
                doctor_report(d, FINDING_FAILED, what, NULL, "%s", fault ? fault : strerror(-r));
}

/* ---- all of them ---- */

void doctor_destinations(Doctor *d) {
        for (size_t i = 0; i < d->config->n_destinations && !cli_is_interrupted(); i++) {
                const ConfigDestination *c = &d->config->destinations[i];
                _cleanup_free_ char *what = NULL;
                if (d->only && strcmp(d->only, c->name) != 0)
                        continue;
                if (asprintf(&what, "destination %s", c->name) < 0)
                        what = NULL;
                if (c->type == CONFIG_S3)
                        look_at_bucket(d, c, what ? what : c->name);
                else
                        look_at_volume(d, c, what ? what : c->name);
        }
}
