/* The summary of one device: facts about it, and the counters of error correction and health.
 *
 * The walk notes each value that it reads; values of interest are recognized by the names of their
 * files alone, because driver 2.31 has moved the files (docs/BUNDLE.md). The summary lies in memory
 * that the walking process shares with the collector, so that the record of a device has it even
 * when the walk was killed. */
#include "collectors/neuron/sysfs_summary.h"

#include <string.h>

#include "collectors/neuron/sysfs_value.h"
#include "lib/base/cleanup.h"
#include "lib/base/json_out.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"

/* As drivers up to 2.30.2 name the files. Source: the driver's sources */
static const char *const fact_names[SYSFS_FACTS] = {
        "serial_number", "core_count", "connected_devices",    "instance_type",
        "device_name",   "arch_type",  "unhealthy_components",
};

static void copy_text(char to[static SYSFS_TEXT_MAX], const char *data, size_t n) {
        n = MIN(n, (size_t)SYSFS_TEXT_MAX - 1);
        memcpy(to, data, n);
        to[n] = '\0';
}

static unsigned depth_of(const char *path) {
        unsigned depth = 0;

        for (; *path; path++)
                depth += *path == '/';
        return depth;
}

static void note_fact(SysfsFact *fact, unsigned depth, const char *data, size_t n) {
        if (fact->is_known && fact->depth <= depth)
                return;
        copy_text(fact->text, data, n);
        fact->depth = depth;
        fact->is_known = true;
}

void sysfs_summary_note(SysfsSummary *s, const char *path, const char *data, size_t n) {
        int fact = parse_word(path_name(path), fact_names, ELEMENTSOF(fact_names));

        if (fact >= 0) {
                note_fact(&s->facts[fact], depth_of(path), data, n);
                return;
        }
        if (!strstr(path, "ecc") && !strstr(path, "health"))
                return;
        if (s->n_measures >= SYSFS_MEASURES_MAX) {
                s->is_cut = true;
                return;
        }
        copy_text(s->measures[s->n_measures].path, path, strlen(path));
        copy_text(s->measures[s->n_measures].text, data, n);
        s->n_measures++; /* last, so that a reader of the shared memory sees only complete measures
                          */
}

void sysfs_summary_add(StrBuf *b, const SysfsSummary *s) {
        /* The process that filled the summary may have been killed, or have overwritten it. */
        uint32_t n = MIN(s->n_measures, (uint32_t)SYSFS_MEASURES_MAX);

        json_out_object(b, "summary");
        for (size_t i = 0; i < ELEMENTSOF(fact_names); i++)
                if (s->facts[i].is_known)
                        sysfs_value_add(b, fact_names[i], s->facts[i].text,
                                        strnlen(s->facts[i].text, SYSFS_TEXT_MAX - 1));
        json_out_object(b, "measures");
        for (uint32_t i = 0; i < n; i++) {
                const SysfsMeasure *m = &s->measures[i];
                char path[SYSFS_TEXT_MAX] = { 0 };

                memcpy(path, m->path, sizeof path - 1);
                sysfs_value_add(b, path, m->text, strnlen(m->text, SYSFS_TEXT_MAX - 1));
        }
        json_out_end_object(b);
        if (s->is_cut)
                json_out_bool(b, "measures_cut", true);
        json_out_end_object(b);
}
