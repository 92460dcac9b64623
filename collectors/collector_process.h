/* A process that runs one collector, and what the section of the document says about it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "collectors/collector_table.h"
#include "collectors/runner/document.h"
#include "lib/base/cleanup.h"
#include "lib/event/child.h"

/** waiting → running → ended; a process that cannot be started ends at once. */
typedef enum CollectorPhase {
        COLLECTOR_WAITING,
        COLLECTOR_RUNNING,
        COLLECTOR_ENDED,
} CollectorPhase;

typedef struct CollectorProcess {
        CollectorPhase phase;
        Child *child;
        uint64_t begun_usec;               /* CLOCK_REALTIME */
        uint64_t started_usec, ended_usec; /* CLOCK_BOOTTIME */
        SectionState state;                /* once it has ended, with the reason: */
        char why[512];
} CollectorProcess;

/** Executes this program again. A process that cannot be started has ended as SECTION_FAILED.
 * @param child  `collect:NAME` or `follow:NAME`
 * @param request_fd  borrowed; its offset does not matter
 * @param dir_fd  for raw files, borrowed; 0 = none
 * @param options  limits and callbacks @return 0, -errno */
int collector_process_start(CollectorProcess *p, sd_event *event, const char *child, int request_fd,
                            int dir_fd, ChildOptions options);

/** Sets the state of a process that has ended by itself or was killed.
 * @param is_kept  false: its output could not be written down */
void collector_process_end_by_result(CollectorProcess *p, const ChildResult *result, bool is_kept);

/** Sets the state of one that never ran, or whose supervisor was killed. */
_printf_(3, 4) void collector_process_end(CollectorProcess *p, SectionState state, const char *fmt,
                                          ...);

/** Kills it if it runs. */
void collector_process_done(CollectorProcess *p);
