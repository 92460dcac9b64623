/* The table. */
#include <string.h>

#include "collectors/runner/collector.h"
#include "lib/base/cleanup.h"

/* clang-format off */
const Collector collectors[] = {
        { .name = "neuron_sysfs",  .run = collect_neuron_sysfs,  .twice = true, .is_public = true },
        { .name = "neuron_device", .run = collect_neuron_device },
        { .name = "kmsg",          .run = collect_kmsg },
        { .name = "process",       .run = collect_process, .per_process = true },
        { .name = "jobs",          .run = collect_jobs },
        { .name = "packages",      .run = collect_packages, .is_public = true },
        { .name = "process_packages", .run = collect_process_packages, .per_process = true },
        { .name = "runtime_log",   .run = collect_runtime_log, .again = true },
        { .name = "commands",      .run = collect_commands },
};
/* clang-format on */
const size_t n_collectors = ELEMENTSOF(collectors);

const Collector *collector_find(const char *name) {
        for (size_t i = 0; i < n_collectors; i++)
                if (strcmp(collectors[i].name, name) == 0)
                        return &collectors[i];
        return NULL;
}
