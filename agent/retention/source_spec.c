/* A source as its threads see it: made from the configuration once and never changed, so that a
 * thread that hangs in a file system may go on using it after a reload. It also owns the source's
 * directories of links and its unit locks. */
#include "agent/retention/source_spec.h"

#include <errno.h>
#include <string.h>

#include "config/keys.h"
#include "lib/base/array.h"
#include "lib/base/path.h"

DEFINE_CLEANUP(SourceSpec, source_spec_unref);

int source_spec_new(SourceSpec **ret, const ConfigSource *config, const char *instance_id,
                    const char *proc_root) {
        _cleanup_(source_spec_unrefp) SourceSpec *t = calloc(1, sizeof *t);
        if (!t)
                return -ENOMEM;
        t->n_refs = 1;
        char bad;
        int r = path_template_new(&t->template, config->path, FORM_SOURCE_VARIABLES, &bad);
        if (r < 0)
                return r;
        t->name = strdup(config->name);
        t->fixed = strdup(path_template_fixed(t->template));
        t->instance_id = strdup(instance_id);
        t->proc_root = strdup(proc_root);
        if (!t->name || !t->fixed || !t->instance_id || !t->proc_root)
                return -ENOMEM;
        t->exclude = strings_copy(config->exclude.items);
        if (!t->exclude)
                return -ENOMEM;
        r = link_dirs_new(&t->link_dirs, t->fixed, instance_id);
        if (r < 0)
                return r;
        t->scan = (ScanSource){
                .kind = (SourceKind)config->kind,
                .template = t->template,
                .exclude = (const char *const *)t->exclude,
                .instance_id = t->instance_id,
                .max_files = config->max_files,
                .max_bytes = config->max_bytes,
        };
        r = unit_locks_new(&t->locks, t->link_dirs, t->fixed, t->scan.kind, t->name,
                           t->instance_id);
        if (r < 0)
                return r;
        unit_locks_apply(t->locks, &t->scan);
        *ret = TAKE_PTR(t);
        return 0;
}

SourceSpec *source_spec_ref(SourceSpec *t) {
        atomic_fetch_add(&t->n_refs, 1);
        return t;
}

SourceSpec *source_spec_unref(SourceSpec *t) {
        if (!t || atomic_fetch_sub(&t->n_refs, 1) > 1)
                return NULL;
        free(t->name);
        free(t->fixed);
        free(t->instance_id);
        free(t->proc_root);
        strings_free(t->exclude);
        path_template_free(t->template);
        unit_locks_free(t->locks);
        link_dirs_free(t->link_dirs);
        free(t);
        return NULL;
}

const char *source_spec_relative(const SourceSpec *t, const char *path) {
        size_t n = strlen(t->fixed);
        const char *rest = path + (strncmp(path, t->fixed, n) == 0 ? n : 0);
        return rest + strspn(rest, "/");
}

bool source_spec_is_loose(const SourceSpec *t, const char *relative) {
        if (t->scan.kind != SOURCE_NEURON_CORE_DUMP && t->scan.kind != SOURCE_DIRECTORY)
                return false;
        return unit_path_depth(relative) < path_template_depth(t->template);
}
