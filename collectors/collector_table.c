/* The table of collectors.
 *
 * A row has what the supervisor must know about a collector without executing it: which
 * capabilities and openings of the sandbox its child gets, and in which documents its section
 * stands. A collector gets only the capabilities that it cannot do without. neuron_sysfs needs
 * CAP_DAC_READ_SEARCH because core_count and connected_devices are 0400 before driver 2.28;
 * neuron_device inspects other processes because it opens a device of an UltraServer only while
 * one of them holds a device. @see capabilities(7)
 *
 * The collectors themselves are in host/ and neuron/; collector_child.c calls them. */
#include "collectors/collector_table.h"

#include <linux/capability.h>
#include <string.h>

#include "lib/base/array.h"
#include "lib/base/clock.h"

#define CAP(x) (UINT64_C(1) << CAP_##x)
#define OF_OTHERS (CAP(SYS_PTRACE) | CAP(DAC_READ_SEARCH))
#define COMMAND_USEC_MAX (10 * USEC_PER_MINUTE) /* of one command */

/* clang-format off */
static const Collector rows[] = {
        { .name = "neuron_sysfs", .run = collect_neuron_sysfs,
          .capabilities = CAP(DAC_READ_SEARCH), .is_compared = true, .is_public = true },
        { .name = "neuron_device", .run = collect_neuron_device,
          .capabilities = OF_OTHERS, .needs = COLLECTOR_OPENS_DEVICES | COLLECTOR_READS_PROCESSES },
        { .name = "kmsg", .run = collect_kmsg, .follow = follow_kmsg,
          .capabilities = CAP(SYSLOG) | CAP(DAC_READ_SEARCH), .needs = COLLECTOR_READS_KERNEL_LOG },
        { .name = "process", .run = collect_process,
          .capabilities = OF_OTHERS, .needs = COLLECTOR_READS_PROCESSES | COLLECTOR_MAKES_FILES,
          .needs_process = true },
        { .name = "jobs", .run = collect_jobs,
          .capabilities = OF_OTHERS, .needs = COLLECTOR_READS_PROCESSES },
        { .name = "packages", .run = collect_packages,
          .capabilities = OF_OTHERS, .needs = COLLECTOR_READS_PROCESSES | COLLECTOR_MAY_EXEC,
          .is_public = true },
        { .name = "process_packages", .run = collect_process_packages,
          .capabilities = OF_OTHERS, .needs = COLLECTOR_READS_PROCESSES | COLLECTOR_MAY_EXEC,
          .needs_process = true },
        { .name = "runtime_log", .run = collect_runtime_log,
          .capabilities = OF_OTHERS, .needs = COLLECTOR_READS_PROCESSES | COLLECTOR_MAKES_FILES,
          .rereads_dumps = true },
        { .name = "commands", .run = collect_commands,
          .capabilities = OF_OTHERS, .needs = COLLECTOR_OPENS_DEVICES | COLLECTOR_MAKES_FILES |
                                              COLLECTOR_MAY_EXEC | COLLECTOR_RUNS_COMMANDS },
};
/* clang-format on */

const CollectorTable collector_table = { .rows = rows, .n = ELEMENTSOF(rows) };

const Collector *collector_table_find(const CollectorTable *table, const char *name) {
        for (size_t i = 0; i < table->n; i++)
                if (strcmp(table->rows[i].name, name) == 0)
                        return &table->rows[i];
        return NULL;
}

uint64_t collector_timeout_usec(const Collector *collector, const ProbeRequest *request) {
        uint64_t usec = request->collect.timeout_usec;
        if (!(collector->needs & COLLECTOR_RUNS_COMMANDS))
                return usec;
        for (size_t i = 0; i < request->collect.n_commands; i++)
                usec += MIN(request->collect.commands[i].timeout_usec, COMMAND_USEC_MAX);
        return usec;
}
