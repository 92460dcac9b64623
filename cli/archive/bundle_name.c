#include "cli/archive/bundle_name.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/path.h"
#include "lib/neuron/ids.h"
#include "lib/neuron/template.h"

int bundle_names_init(const char *given, BundleNames *ret) {
        size_t n;
        (void)bundle_file_of(given, &n); /* any of the three will do */
        if (n == 0 || given[n - 1] == '/')
                return -EINVAL;
        BundleNames names = { .stem = strndup(given, n) };
        if (names.stem) {
                names.object = bundle_object_name(names.stem);
                names.manifest = bundle_manifest_name(names.stem);
        }
        if (!names.stem || !names.object || !names.manifest) {
                bundle_names_done(&names);
                return -ENOMEM;
        }
        *ret = names;
        return 0;
}

void bundle_names_done(BundleNames *n) {
        free(n->stem);
        free(n->object);
        free(n->manifest);
        *n = (BundleNames){ 0 };
}

/* `<kind>-<yyyymmddTHHMMSS>-<12 hex>[-sN]` */
static void read_id(const char *id, BundleInfo *ret) {
        if (!bundle_id_is_valid(id))
                return;
        for (SourceKind k = 0; k < N_SOURCE_KINDS; k++) {
                const char *kind = source_kind_name(k);
                size_t n = strlen(kind);
                const char *t = id + n + 1;
                if (strncmp(id, kind, n) != 0 || id[n] != '-' || t[8] != 'T')
                        continue;
                snprintf(ret->kind, sizeof ret->kind, "%s", kind);
                snprintf(ret->time, sizeof ret->time, "%.4s-%.2s-%.2sT%.2s:%.2s:%.2sZ", t, t + 4,
                         t + 6, t + 9, t + 11, t + 13);
        }
}

static void read_incident(const char *directory, size_t n, BundleInfo *ret) {
        _cleanup_free_ char *path = strndup(directory, n);
        PathTemplate *t;
        TemplateValues values;
        char bad;
        if (!path || path_template_new(&t, "/%d-%c", "dc", &bad) < 0)
                return;
        if (path_template_match(t, path_name(path), &values)) {
                memcpy(ret->date_time, values.date_time, sizeof ret->date_time);
                memcpy(ret->cluster_id, values.cluster_id, sizeof ret->cluster_id);
        }
        path_template_free(t);
}

static bool is_dots(const char *s, size_t n) {
        return n <= 2 && strncmp(s, "..", n) == 0;
}

void bundle_info_parse(const char *stem, BundleInfo *ret) {
        *ret = (BundleInfo){ .name = path_name(stem), .node = "" };
        read_id(ret->name, ret);
        if (ret->name == stem)
                return;
        const char *end = ret->name - 1, *node = end;
        ret->n_incident = (size_t)(end - stem);
        if (!ret->kind[0]) /* not named by an agent, so it may lie anywhere */
                return;
        while (node > stem && node[-1] != '/')
                node--;
        if (is_dots(node, (size_t)(end - node)))
                return;
        ret->node = node;
        ret->n_node = (size_t)(end - node);
        ret->n_incident = node > stem ? (size_t)(node - 1 - stem) : 0;
        read_incident(stem, ret->n_incident, ret);
}
