/* A process that runs one collector.
 *
 * The supervisor executes this program again (collector_child.c), with an empty environment, a time
 * limit and an output limit, which lib/event/child.c enforces. When the process has ended, its exit
 * code, its line on stderr and what the limits did to it become the state of a section and a
 * sentence for people. Who starts a process, and what becomes of its output, is decided in
 * snapshot.c and watch.c. */
#include "collectors/collector_process.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "collectors/collector_child.h"
#include "lib/base/clock.h"

/* Nothing of the agent's environment: it may hold credentials. */
static char *const child_environment[] = {
        (char *)"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:"
                "/sbin:/bin",
        (char *)"LANG=C.UTF-8", (char *)"HOME=/", NULL
};

void collector_process_end(CollectorProcess *p, SectionState state, const char *fmt, ...) {
        va_list args;
        p->phase = COLLECTOR_ENDED;
        p->state = state;
        p->ended_usec = clock_boottime_usec();
        if (p->started_usec == 0)
                p->started_usec = p->ended_usec;
        va_start(args, fmt);
        (void)vsnprintf(p->why, sizeof p->why, fmt, args);
        va_end(args);
}

int collector_process_start(CollectorProcess *p, sd_event *event, const char *child, int request_fd,
                            int dir_fd, ChildOptions options) {
        char option[96];
        char *argv[] = { (char *)"neuron-collectd", option, NULL };
        (void)snprintf(option, sizeof option, "--child=%s", child);
        options.program = "/proc/self/exe";
        options.argv = argv;
        options.environment = child_environment;
        options.input_fd = request_fd;
        options.third_fd = dir_fd;
        options.keeps_capabilities = true; /* it drops those that its collector does not need */
        *p = (CollectorProcess){ .phase = COLLECTOR_RUNNING };
        p->begun_usec = clock_realtime_usec();
        p->started_usec = clock_boottime_usec();
        int r = child_new(&p->child, event, &options);
        if (r < 0)
                collector_process_end(p, SECTION_FAILED, "no process could be started for it: %s",
                                      strerror(-r));
        return r;
}

void collector_process_done(CollectorProcess *p) {
        p->child = child_free(p->child);
}

/* Makes one line of printable text. */
static void clean_text(char *text) {
        size_t n = 0;
        for (const char *s = text; *s; s++) {
                unsigned char c = (unsigned char)*s;
                if (c != '\n' || n > 0)
                        text[n++] = c == '\n' ? ' ' : c < 0x20 || c >= 0x7f ? '?' : *s;
        }
        while (n > 0 && text[n - 1] == ' ')
                n--;
        text[n] = '\0';
}

static void end_by_status(CollectorProcess *p, int status, const char *text) {
        int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        SectionState state = code == CHILD_DONE      ? SECTION_COMPLETE
                             : code == CHILD_CUT     ? SECTION_CUT
                             : code == CHILD_SKIPPED ? SECTION_SKIPPED
                                                     : SECTION_FAILED;
        if (code < 0) /* a sanitizer or the C library may have written more */
                collector_process_end(p, state, "%.400s%sit was ended by signal %d (%s)", text,
                                      *text ? "; " : "", WTERMSIG(status),
                                      strsignal(WTERMSIG(status)));
        else if (*text || state == SECTION_COMPLETE || state == SECTION_SKIPPED)
                collector_process_end(p, state, "%s", text);
        else if (state == SECTION_CUT)
                collector_process_end(p, state,
                                      "it has more records than snapshot.probe_bytes allows");
        else
                collector_process_end(p, state, "it ended with exit code %d", code);
}

void collector_process_end_by_result(CollectorProcess *p, const ChildResult *result, bool is_kept) {
        const char *stuck =
                result->is_stuck ? "; it hangs in the kernel and cannot be killed; it is abandoned"
                                 : "";
        char text[sizeof p->why];
        (void)snprintf(text, sizeof text, "%s", result->error_text);
        clean_text(text);
        if (!is_kept)
                collector_process_end(p, SECTION_CUT, "its records could not be written to disk%s",
                                      stuck);
        else if (result->error == -EFBIG)
                collector_process_end(p, SECTION_CUT,
                                      "it wrote more than snapshot.probe_bytes allows%s", stuck);
        else if (result->error == -ETIMEDOUT)
                collector_process_end(p, SECTION_TIMEOUT,
                                      "it timed out (snapshot.probe_timeout) and was killed%s",
                                      stuck);
        else if (result->error < 0 && result->error != -ECHILD)
                collector_process_end(p, SECTION_FAILED, "no process could be started for it: %s",
                                      strerror(-result->error));
        else
                end_by_status(p, result->error < 0 ? 0 : result->status, text);
}
