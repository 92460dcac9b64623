/* Crash reports: decides for which bundles one is requested. It requests the report of a core when
 * the core's bundle is READY, and at a start again those that an earlier run of the agent has not
 * made. A process that the OOM killer has killed leaves no core: its record is made of the kernel's
 * log. Making a report is agent/crashes'. */
#include "agent/agent_private.h"

#include <errno.h>

#include "agent/incidents/incidents.h"
#include "agent/intake/intake.h"
#include "agent/store/store.h"
#include "collectors/supervisor_client.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"

/* @param held  NULL: it is pending in the store */
static void request_report(Agent *a, const BundleRecord *rec, IntakeSource *s,
                           const HeldFiles *held) {
        crash_reports_request(
                a->crash_reports,
                &(CrashReportsCore){ .bundle = rec,
                                     .spec = intake_source_spec(s),
                                     .environment = a->config->snapshot.environment.items,
                                     .held_fd = held && held->n == 1 ? held->items[0].fd : -1,
                                     .is_pending = !held });
}

void agent_reports_on_ready(Agent *a, const Bundle *b) {
        if (b->rec.kind == SOURCE_PROCESS_CORE && !b->rec.supplement_of[0] &&
            intake_source_config(b->source)->crash_reports)
                request_report(a, &b->rec, b->source, &b->unit.held);
}

bool agent_reports_are_reading(const char *bundle_id, void *userdata) {
        const Agent *a = userdata;
        return a->crash_reports && crash_reports_has(a->crash_reports, bundle_id);
}

static void on_report_end(void *userdata) {
        const Agent *a = userdata;
        if (a->retention_runner)
                retention_runner_kick(a->retention_runner);
}

/* A bundle that still settles requests its report when it is complete. */
static int on_report_pending(const char *bundle_id, void *userdata) {
        Agent *a = userdata;
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        if (store_get(a->store, bundle_id, &rec) != 0 || rec.state == BUNDLE_SETTLING)
                return 0;
        IntakeSource *s = agent_source_by_name(a, rec.source);
        if ((bundle_state_is_terminal(rec.state) && rec.state != BUNDLE_DELIVERED) || !s ||
            !intake_source_config(s)->crash_reports)
                (void)store_report_end(a->store, bundle_id, NULL, 0); /* at the next start */
        else
                request_report(a, &rec, s, NULL);
        return 0;
}

int agent_reports_start(Agent *a) {
        a->probe_socket = supervisor_client_socket(a->config->api.socket);
        if (!a->probe_socket)
                return -ENOMEM;
        const CrashReportsContext context = { .event = a->event,
                                              .clock = a->clock,
                                              .store = a->store,
                                              .evidence = a->evidence,
                                              .probe_socket = a->probe_socket,
                                              .on_end = on_report_end,
                                              .userdata = a };
        return crash_reports_new(&a->crash_reports, &context);
}

int agent_reports_resume(Agent *a) {
        return store_report_list_pending(a->store, on_report_pending, a);
}

void agent_reports_on_line(const KernelLine *line, bool is_past, void *userdata) {
        const Agent *a = userdata;
        OomKill kill;
        crash_reports_on_kernel_line(a->crash_reports, line);
        if (is_past || !oom_kill_parse(line->text, &kill))
                return;
        crash_reports_on_oom_kill(a->crash_reports, line, &kill);
        incidents_on_oom_kill(a->incidents, kill.uid, line->text);
}
