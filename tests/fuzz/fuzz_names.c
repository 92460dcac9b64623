/* Names from outside: the input is a template and a name, divided by the first NUL (or all of it is
 * the name). Beyond not crashing: what matched expands back to the name, values fit their buffers,
 * and the manifest's spelling of a path reads back to the same bytes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/path.h"
#include "lib/neuron/bundle_name.h"
#include "lib/neuron/ids.h"
#include "lib/neuron/names.h"
#include "lib/neuron/unit.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check(bool claim) {
        if (!claim)
                abort();
}

static bool is_ended(const char *s, size_t size) {
        return memchr(s, '\0', size) != NULL;
}

static void check_template(const char *text, const char *name) {
        TemplateValues v;
        PathTemplate *t;
        char bad = 0;

        if (path_template_new(&t, text, "dcptliknhu", &bad) < 0) {
                check(bad == 0 || !strchr("dcptliknhu%", bad));
                return;
        }
        check(path_template_depth(t) == 0 || strchr(text, '%'));
        if (path_template_match(t, name, &v)) {
                check(is_ended(v.date_time, sizeof v.date_time) &&
                      is_ended(v.cluster_id, sizeof v.cluster_id) &&
                      is_ended(v.pid, sizeof v.pid) && is_ended(v.tid, sizeof v.tid) &&
                      is_ended(v.lid, sizeof v.lid) &&
                      is_ended(v.instance_id, sizeof v.instance_id));
                check(unit_path_depth(name) == path_template_depth(t));
        }
        free(path_template_expand(t,
                                  &(ExpandValues){ .date_time = name, .host = name, .pid = name }));
        path_template_free(t);

        /* With the runtime's variables only, a match is the inverse of an expansion. */
        if (path_template_new(&t, text, "dcpt", &bad) < 0)
                return;
        if (path_template_match(t, name, &v) && path_template_depth(t) > 0) {
                char *path = path_template_expand(t, &(ExpandValues){ .date_time = v.date_time,
                                                                      .cluster_id = v.cluster_id,
                                                                      .pid = v.pid,
                                                                      .tid = v.tid });
                size_t n_path = path ? strlen(path) : 0, n_name = strlen(name);

                check(path && n_path >= n_name && strcmp(path + n_path - n_name, name) == 0);
                free(path);
        }
        path_template_free(t);
}

static void check_names(const char *name) {
        char instance_id[INSTANCE_ID_SIZE];
        uint64_t usec;
        int64_t pid;
        DumpName d;

        for (SourceKind k = 0; k < N_SOURCE_KINDS; k++) {
                dump_name_parse(k, name, &d);
                check((unsigned)d.kind < N_MEMBER_KINDS &&
                      is_ended(d.instance_id, sizeof d.instance_id));
                check(d.device >= -1 && d.core >= -1 && d.pid >= -1 && d.tid >= -1 && d.lid >= -1);
                check((d.kind == MEMBER_ELF_CORE) == (k == SOURCE_PROCESS_CORE));
        }
        if (profile_unit_name_parse(name, instance_id, &pid))
                check(pid >= 0 && instance_id[0] != '\0' &&
                      is_ended(instance_id, sizeof instance_id));
        if (date_time_parse(name, &usec) == 0)
                check(usec <= UINT64_C(253402300799) * 1000000);
        if (bundle_id_is_valid(name))
                check(strlen(name) < BUNDLE_ID_SIZE && !strchr(name, '/'));
        instance_id_from_host(name, instance_id);
        check(instance_id[0] != '\0' && !strchr(instance_id, '/') &&
              strcmp(instance_id, "..") != 0);
}

static void check_rules(const char *name) {
        if (!unit_path_is_clean(name))
                return;
        for (SourceKind k = 0; k < N_SOURCE_KINDS; k++)
                for (size_t depth = 0; depth < 3; depth++) {
                        const UnitQuery q = {
                                .kind = k,
                                .template_depth = depth,
                                .relative = name,
                                .is_dir = name[0] == '\0' || (name[0] & 1),
                                .ntff_depth = -1,
                        };
                        UnitMatch a;

                        if (unit_match(&q, &a)) {
                                check(a.depth <= unit_path_depth(name));
                                check(unit_path_prefix(name, a.depth) <= strlen(name));
                        }
                }
}

static void check_spelling(const char *name) {
        char *escaped = path_escape(name), *back = NULL;

        check(escaped && path_unescape(escaped, &back) == 0 && strcmp(back, name) == 0);
        free(escaped);
        free(back);
        if (path_unescape(name, &back) == 0)
                free(back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        char *text = malloc(n + 1);
        size_t cut;

        if (!text)
                return 0;
        if (n > 0) /* data may be NULL */
                memcpy(text, data, n);
        text[n] = '\0';
        cut = strlen(text);
        if (cut < n)
                check_template(text, text + cut + 1);
        check_names(cut < n ? text + cut + 1 : text);
        check_rules(cut < n ? text + cut + 1 : text);
        check_spelling(cut < n ? text + cut + 1 : text);
        free(text);
        return 0;
}
