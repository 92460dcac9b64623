/* Which values of a device are of interest, by the names of their files and directories alone. */
#include <string.h>

#include "collectors/neuron/neuron_sysfs.h"
#include "lib/base/cleanup.h"
#include "lib/base/json_out.h"
#include "lib/base/path.h"

/* Names of drivers up to 2.30.2: neuron-interfaces, 4.2 and 4.5. */
const char *const sysfs_fact_names[7] = {
        "serial_number", "core_count", "connected_devices",    "instance_type",
        "device_name",   "arch_type",  "unhealthy_components",
};

/* Cuts at the end of a character, so that what is shown is text as long as what came was. */
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

bool sysfs_may_hang(const char *path) {
        return strstr(path, "ecc") || strstr(path, "health") || strstr(path, "hardware") ||
               strncmp(path_name(path), "utilization", strlen("utilization")) == 0;
}

static void note_fact(SysfsFact *fact, unsigned depth, const char *data, size_t n) {
        if (fact->is_known && fact->depth <= depth)
                return;
        copy_text(fact->text, data, n);
        fact->depth = depth;
        fact->is_known = true;
}

void sysfs_summary_note(SysfsSummary *s, const char *path, const char *data, size_t n) {
        const char *name = path_name(path);

        for (size_t i = 0; i < ELEMENTSOF(sysfs_fact_names); i++)
                if (strcmp(name, sysfs_fact_names[i]) == 0) {
                        note_fact(&s->facts[i], depth_of(path), data, n);
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
        s->n_measures++; /* last: whoever shares this memory sees whole ones */
}

void sysfs_summary_add(StrBuf *b, const SysfsSummary *s) {
        /* The part that filled it may have been killed in the middle, or have gone wild. */
        uint32_t n = MIN(s->n_measures, (uint32_t)SYSFS_MEASURES_MAX);

        json_out_object(b, "summary");
        for (size_t i = 0; i < ELEMENTSOF(sysfs_fact_names); i++)
                if (s->facts[i].is_known)
                        sysfs_add_value(b, sysfs_fact_names[i], s->facts[i].text,
                                        strnlen(s->facts[i].text, SYSFS_TEXT_MAX - 1));
        json_out_object(b, "measures");
        for (uint32_t i = 0; i < n; i++) {
                const SysfsMeasure *m = &s->measures[i];
                char path[SYSFS_TEXT_MAX] = { 0 };

                memcpy(path, m->path, sizeof path - 1);
                sysfs_add_value(b, path, m->text, strnlen(m->text, SYSFS_TEXT_MAX - 1));
        }
        json_out_end_object(b);
        if (s->is_cut)
                json_out_bool(b, "measures_cut", true);
        json_out_end_object(b);
}
