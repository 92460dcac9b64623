/* neuron-collect estimate: prints which bundles the configured sources would give now, their sizes,
 * and their keys at the destinations. Needs no agent. Finding units is left to lib/neuron/scan.h,
 * names to lib/neuron/bundle_name.h: an agent uses the same. */
#include <errno.h>
#include <string.h>

#include "cli/common/cli.h"
#include "cli/common/guarded.h"
#include "config/config.h"
#include "config/keys.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/neuron/bundle_name.h"
#include "lib/neuron/ids.h"
#include "lib/neuron/names.h"
#include "lib/neuron/scan.h"

typedef struct Estimate {
        const Cli *cli;
        const Config *config;
        const ConfigSource *source;
        const PathTemplate *template;
        char instance_id[INSTANCE_ID_SIZE], hostname[65];
        uint64_t n_bundles, n_files, bytes;
        bool failed;       /* a source could not be scanned */
        ScanUnit left_out; /* counts files of the source that no bundle contains */
        json_t *bundles;
} Estimate;

/* ---- ids and keys, as the agent would give them ---- */

static BundleOrigin origin(const Estimate *e) {
        return (BundleOrigin){ .kind = (SourceKind)e->source->kind,
                               .source = e->source->name,
                               .instance_id = e->instance_id,
                               .hostname = e->hostname };
}

static char *expand_key(const Estimate *e, const ConfigDestination *d, const ScanUnit *u) {
        PathTemplate *t;
        char bad;
        if (path_template_new(&t, d->type == CONFIG_S3 ? d->prefix : d->path,
                              FORM_DESTINATION_VARIABLES, &bad) < 0)
                return NULL;
        BundleOrigin o = origin(e);
        bool incident = source_kind_has_incident(o.kind);
        BundleLocation place = { .date_time = incident ? u->values.date_time : "",
                                 .cluster_id = incident ? u->values.cluster_id : "",
                                 .oldest_mtime_usec = u->oldest_mtime_usec,
                                 .uid = u->st.st_uid };
        char *key = bundle_directory(t, &o, &place);
        path_template_free(t);
        return key;
}

/* @return a list of strings, one a destination; NULL for lack of memory */
static json_t *objects_json(const Estimate *e, const ScanUnit *u, const char *id) {
        json_t *objects = json_array();
        for (size_t i = 0; objects && i < e->source->destinations.n; i++) {
                const ConfigDestination *d =
                        config_find_destination(e->config, e->source->destinations.items[i]);
                _cleanup_free_ char *prefix = d ? expand_key(e, d, u) : NULL, *object = NULL;
                bool is_s3 = d && d->type == CONFIG_S3;
                if (!prefix || asprintf(&object, "%s%s%s%s/%s" BUNDLE_SUFFIX, is_s3 ? "s3://" : "",
                                        is_s3 ? d->bucket : "", is_s3 ? "/" : "", prefix, id) < 0)
                        object = NULL;
                if (!object || json_array_append_new(objects, cli_json_string(object)) < 0) {
                        json_decref(objects);
                        return NULL;
                }
        }
        return objects;
}

/* ---- printing ---- */

static void print_unit(const ScanUnit *u, const char *id, const char *path, const json_t *objects) {
        char bytes[PARSE_FORMAT_SIZE], files[CLI_COUNT_SIZE];
        cli_line("%s: %s in %s from %s", id, parse_format_human(bytes, u->bytes),
                 cli_count(files, u->n_files, "file"), path);
        size_t i;
        json_t *object;
        json_array_foreach(objects, i, object) cli_line("  -> %s", cli_string(object));
        for (int k = 0; k < N_SCAN_SKIPS; k++)
                if (u->skipped[k])
                        cli_line("  left out, %s: %s, such as '%s'", scan_skip_name((ScanSkip)k),
                                 cli_count(files, u->skipped[k], "file"),
                                 u->skipped_example[k] ? u->skipped_example[k] : "?");
}

static json_t *unit_json(const Estimate *e, const ScanUnit *u, const char *id, const char *path) {
        json_t *skipped = json_object();
        for (int k = 0; skipped && k < N_SCAN_SKIPS; k++)
                if (u->skipped[k])
                        json_object_set_new(skipped, scan_skip_name((ScanSkip)k),
                                            json_integer((json_int_t)u->skipped[k]));
        return json_pack("{s:s, s:s, s:s, s:I, s:I, s:o}", "id", id, "source", e->source->name,
                         "path", path, "files", (json_int_t)u->n_files, "bytes",
                         (json_int_t)u->bytes, "skipped", skipped);
}

static int on_unit(ScanUnit *u, void *userdata) {
        Estimate *e = userdata;
        const char *fixed = path_template_fixed(e->template);
        _cleanup_free_ char *path = u->relative[0] ? path_join(fixed, u->relative) : strdup(fixed);
        _cleanup_free_ char *shown = path ? path_escape(path) : NULL;
        if (!path || !shown)
                return -ENOMEM;
        char id[BUNDLE_ID_SIZE];
        BundleOrigin o = origin(e);
        bundle_id_from_unit(&o, u, path, id);
        json_auto_t *objects = objects_json(e, u, id), *one = NULL;
        if (!objects)
                return -ENOMEM;
        if (!e->cli->json)
                print_unit(u, id, shown, objects);
        else if (!(one = unit_json(e, u, id, shown)) ||
                 json_object_set(one, "objects", objects) < 0 ||
                 json_array_append(e->bundles, one) < 0)
                return -ENOMEM;
        e->n_bundles++;
        e->n_files += u->n_files;
        e->bytes += u->bytes;
        return 0;
}

/* ---- scanning ---- */

static void on_unreadable(const char *relative, void *userdata) {
        Estimate *e = userdata;
        _cleanup_free_ char *shown = path_escape(relative);
        cli_error("source %s: '%s' below '%s' cannot be read by this user; run it as the agent's "
                  "user, or as root",
                  e->source->name, shown ? shown : "?", path_template_fixed(e->template));
        e->failed = true;
}

static void on_left_out(const ScanMember *m, void *userdata) {
        Estimate *e = userdata;
        (void)scan_unit_add_skip(&e->left_out, m); /* on error only the example is missing */
}

static void print_left_out(Estimate *e) {
        for (int k = 0; !e->cli->json && k < N_SCAN_SKIPS; k++) {
                _cleanup_free_ char *text = scan_skip_reason((ScanSkip)k, e->left_out.skipped[k],
                                                             e->left_out.skipped_example[k]);
                if (text)
                        cli_line("source %s: %s; %s", e->source->name, text,
                                 scan_skip_remedy((ScanSkip)k));
        }
        scan_unit_done(&e->left_out);
}

static void scan(Estimate *e) {
        PathTemplate *t;
        char bad;
        int r = path_template_new(&t, e->source->path, FORM_SOURCE_VARIABLES, &bad);
        if (r < 0) {
                cli_error("source %s: '%s': %s", e->source->name, e->source->path, strerror(-r));
                e->failed = true;
                return;
        }
        e->template = t;
        ScanSource s = { .kind = (SourceKind)e->source->kind,
                         .template = t,
                         .exclude = (const char *const *)e->source->exclude.items,
                         .instance_id = e->instance_id,
                         .max_files = e->source->max_files,
                         .max_bytes = e->source->max_bytes,
                         .any_links = true,
                         .on_unreadable = on_unreadable,
                         .on_left_out = on_left_out };
        r = guarded_check_path(path_template_fixed(t));
        if (r == 0)
                r = scan_source(&s, on_unit, e);
        if (r == -ENOENT) /* no error: the runtime creates it with its first dump */
                cli_error("source %s: '%s' does not exist yet", e->source->name,
                          path_template_fixed(t));
        else if (r < 0) {
                cli_error("source %s: cannot scan '%s': %s", e->source->name,
                          path_template_fixed(t),
                          r == -ETIMEDOUT ? "it did not answer within 10 s; check its mount: the "
                                            "server may be away"
                                          : strerror(-r));
                e->failed = true;
        }
        print_left_out(e);
        path_template_free(t);
}

static int find_identity(Estimate *e) {
        const char *origin, *fixed = e->config->node.instance_id;
        if (gethostname(e->hostname, sizeof e->hostname - 1) < 0)
                return -errno;
        return instance_id_find(fixed, e->config->snapshot.sysfs_root, e->instance_id, &origin);
}

static int estimate(Estimate *e) {
        int r = find_identity(e);
        if (r < 0)
                return cli_error(
                        "cannot determine this node's instance id: %s; set node.instance_id",
                        strerror(-r));
        for (size_t i = 0; i < e->config->n_sources; i++) {
                e->source = &e->config->sources[i];
                scan(e);
        }
        char bytes[PARSE_FORMAT_SIZE], bundles[CLI_COUNT_SIZE], files[CLI_COUNT_SIZE];
        int code = CLI_YES;
        if (e->cli->json)
                code = cli_print_json(e->cli, e->bundles);
        else
                cli_line("%s, %s, %s before compression",
                         cli_count(bundles, e->n_bundles, "bundle"),
                         cli_count(files, e->n_files, "file"), parse_format_human(bytes, e->bytes));
        return e->failed ? CLI_NO : code;
}

int cmd_estimate(const Cli *cli, int argc, char **argv) {
        _cleanup_(config_freep) Config *config = NULL;
        int code = cli_no_argument(argc, argv);
        if (code == CLI_YES)
                code = cli_load_config(cli, false, &config);
        if (code != CLI_YES)
                return code;
        Estimate e = { .cli = cli, .config = config, .bundles = json_array() };
        code = estimate(&e);
        json_decref(e.bundles);
        return code;
}
