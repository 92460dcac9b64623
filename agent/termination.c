/* Whether this node may be terminated: whether everything that its sources have is delivered, to
 * destinations that outlive the node. The drain's view and the line of figures for systemd say so,
 * and name what is missing. This file reads the state of the other modules and changes nothing;
 * draining itself is in drain.c. */
#include "agent/agent_private.h"

#include <stdio.h>
#include <string.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "agent/intake/intake.h"
#include "agent/store/bundle.h"
#include "config/keys.h"
#include "lib/base/fs.h"
#include "lib/base/strbuf.h"

/* Crash reports delay a drain for so long. */
#define DRAIN_REPORTS_USEC (30 * USEC_PER_SEC)

static void add_count(StrBuf *text, uint64_t n, const char *one, const char *many) {
        if (n > 0)
                strbuf_addf(text, "%s%llu %s", text->n ? ", " : "", (unsigned long long)n,
                            n == 1 ? one : many);
}

static const IntakeSource *find_unfinished_source(const Agent *a) {
        for (size_t i = 0; i < a->n_sources; i++)
                if (!intake_source_is_idle(a->sources[i]) || intake_source_unseen(a->sources[i]))
                        return a->sources[i];
        return NULL;
}

/* Tells whether a copy on the volume outlives this node. A bucket is no volume. */
static bool is_durable_volume(const ConfigDestination *d) {
        if (d->type == CONFIG_S3 || d->durable != CONFIG_DURABLE_AUTO)
                return d->type != CONFIG_S3 && d->durable == CONFIG_DURABLE_YES;
        _cleanup_free_ char *fixed = form_fixed_part(d->path);
        return fixed && fs_path_is_network(fixed);
}

/* @return 1: its copies are on this node's own disk only */
static int on_bundle_at_risk(const BundleRecord *rec, void *userdata) {
        for (size_t i = 0; i < rec->n_deliveries; i++) {
                const DeliveryRecord *d = &rec->deliveries[i];
                /* The mount table is checked first: access(2) must not hang. */
                if (!d->object || fs_path_is_network(d->object) || access(d->object, F_OK) < 0)
                        continue;
                strbuf_addf(userdata,
                            "copies of source %s are on this node's own disk only, such as '%s' "
                            "(destination %s; set its `durable: true` if the disk outlives the "
                            "node, %sor move them)",
                            rec->source, rec->id, d->destination,
                            source_kind_is_own(rec->kind)
                                    ? "" /* they are not sent again */
                                    : "`neuron-collect redeliver` to one that does, ");
                return 1;
        }
        return 0; /* the copies were removed from there */
}

/* The destinations that a bundle went to count, not those that its source has now. */
static void add_bundle_at_risk(const Agent *a, StrBuf *text) {
        StrBuf durable = STRBUF_INIT;
        strbuf_add(&durable, "/");
        for (size_t i = 0; i < a->config->n_destinations; i++)
                if (is_durable_volume(&a->config->destinations[i]))
                        strbuf_addf(&durable, "%s/", a->config->destinations[i].name);
        int r = strbuf_error(&durable);
        if (r == 0)
                r = bundle_table_list(
                        a->bundles,
                        &(StoreFilter){ .state = BUNDLE_DELIVERED, .no_copy_at = durable.text },
                        on_bundle_at_risk, text);
        strbuf_done(&durable);
        if (r < 0)
                strbuf_add(text, "the state database cannot be read");
}

/* The core does not need its report: a drain waits for reports for half a minute,
 * if its deadline allows. */
static bool waits_for_reports(const Agent *a) {
        return a->drain.state == AGENT_DRAINING &&
               a->clock->realtime_usec(a->clock) - a->drain.since_usec < DRAIN_REPORTS_USEC;
}

bool agent_is_safe(Agent *a) {
        StrBuf text = STRBUF_INIT;
        StoreCounts c;
        bundle_table_counts(a->bundles, &c);
        add_count(&text, c.bundles[BUNDLE_SHIPPING], "bundle is being shipped",
                  "bundles are being shipped");
        add_count(&text, c.bundles[BUNDLE_READY], "bundle waits to be shipped",
                  "bundles wait to be shipped");
        add_count(&text, c.bundles[BUNDLE_SETTLING], "bundle is not known to be complete yet",
                  "bundles are not known to be complete yet");
        add_count(&text, c.bundles[BUNDLE_QUARANTINED], "bundle is quarantined",
                  "bundles are quarantined");
        add_count(&text, a->incidents ? incidents_n_underway(a->incidents) : 0,
                  "snapshot is being taken", "snapshots are being taken");
        if (waits_for_reports(a))
                add_count(&text, crash_reports_n(a->crash_reports), "crash report is being made",
                          "crash reports are being made");
        const IntakeSource *s = find_unfinished_source(a);
        if (s) {
                bool is_known = intake_source_is_idle(s) || intake_source_is_stalled(s);
                const char *unseen = is_known ? intake_source_unseen(s) : NULL;
                strbuf_addf(&text, "%ssource %s has not been scanned completely%s%s",
                            text.n ? ", " : "", intake_source_config(s)->name, unseen ? ": " : "",
                            unseen ? unseen : "");
        }
        if (text.n == 0)
                add_bundle_at_risk(a, &text);
        if (text.n == 0 && a->failures && failures_are_recording(a->failures))
                strbuf_add(&text, "the record of a failure is being written");
        (void)snprintf(a->drain.missing, sizeof a->drain.missing, "%s", text.n ? text.text : "");
        bool safe = text.n == 0;
        strbuf_done(&text);
        return safe;
}

uint64_t agent_deadline_usec(const Drain *d) {
        uint64_t first = 0;
        for (size_t i = 0; i < N_DRAIN_REQUESTERS; i++) {
                uint64_t at = d->requests[i].is_active ? d->requests[i].deadline_usec : 0;
                if (at > 0 && (first == 0 || at < first))
                        first = at;
        }
        return first;
}

void agent_fill_drain_view(Agent *a, DrainView *ret) {
        Drain *d = &a->drain;
        *ret = (DrainView){ .is_draining = d->reason[0] };
        if (!ret->is_draining)
                return;
        ret->reason = d->reason;
        ret->since_usec = d->since_usec;
        ret->deadline_usec = agent_deadline_usec(d);
        ret->is_safe = agent_is_safe(a);
        ret->missing = ret->is_safe ? NULL : d->missing;
}

void agent_notify_status(Agent *a) {
        StoreCounts c;
        DrainView drain;
        bundle_table_counts(a->bundles, &c);
        agent_fill_drain_view(a, &drain);
        const char *drained = !drain.is_draining ? ""
                              : drain.is_safe    ? "drained, safe to terminate; "
                                                 : "draining; ";
        (void)sd_notifyf(
                false,
                "STATUS=%s%s%llu delivered, %llu settling, %llu ready, %llu shipping, %llu "
                "quarantined",
                drained, a->config_error ? "configuration: see the log; " : "",
                (unsigned long long)c.bundles[BUNDLE_DELIVERED],
                (unsigned long long)c.bundles[BUNDLE_SETTLING],
                (unsigned long long)c.bundles[BUNDLE_READY],
                (unsigned long long)c.bundles[BUNDLE_SHIPPING],
                (unsigned long long)
                        c.bundles[BUNDLE_QUARANTINED]); /* without systemd it does nothing */
}
