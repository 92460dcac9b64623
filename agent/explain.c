/* The sentences about one bundle that `neuron-collect explain` prints: why it is where it is, what
 * it waits for, and what an operator can do. */
#include "agent/agent_private.h"

#include <string.h>

#include "agent/delivery/scheduler.h"
#include "agent/intake/intake.h"
#include "agent/store/bundle.h"
#include "lib/base/cleanup.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"

static void explain_settling(const Bundle *b, StrBuf *text) {
        const ConfigSource *config = b->source ? intake_source_config(b->source) : NULL;
        if (!config) {
                strbuf_add(text,
                           "Its source is no longer configured, so the agent cannot check "
                           "whether it is complete; add the source again, or cancel the bundle.");
                return;
        }
        char settle[64], wait[64];
        clock_format_duration(settle, config->settle_usec);
        clock_format_duration(wait, config->max_wait_usec);
        strbuf_addf(text,
                    "It is shipped when it is complete: %s. It counts as complete when quiet for "
                    "%s (settle); after %s it is shipped labelled incomplete (max_wait).",
                    b->rec.reason ? b->rec.reason : "not checked yet", settle, wait);
}

/* The bundle was delivered to the destinations that its source had then, not to those that it has
 * now. */
static void explain_delivered(const Agent *a, const BundleRecord *rec, StrBuf *text) {
        const IntakeSource *s = agent_source_by_name(a, rec->source);
        const StringList *now = s ? &intake_source_config(s)->destinations : NULL;
        strbuf_add(text, "Delivered, each copy with proof, to all destinations that it had: ");
        for (size_t i = 0; i < rec->n_deliveries; i++)
                strbuf_addf(text, "%s%s", i ? ", " : "", rec->deliveries[i].destination);
        strbuf_add(text, rec->links_held ? ". Its files are held until retention deletes them."
                                         : ". The source is no longer held.");
        if (source_kind_is_own(rec->kind)) /* it is not sent again */
                return;
        for (size_t i = 0; now && i < now->n; i++)
                if (!bundle_record_has_destination(rec, now->items[i]))
                        strbuf_addf(text,
                                    " It was never sent to %s, which its source has now: "
                                    "`neuron-collect redeliver --destination %s` does that, if its "
                                    "files are still there.",
                                    now->items[i], now->items[i]);
}

static const char *final_sentence(const BundleRecord *rec) {
        switch (rec->state) {
        case BUNDLE_QUARANTINED:
                if (source_kind_is_own(rec->kind))
                        return "It failed too often; its files are kept in the state directory. "
                               "Fix the cause, then retry it.";
                return rec->links_held ? "It failed too often and its source files are still held. "
                                         "Fix the cause, then retry it."
                                       : "It failed too often, and no links hold its source "
                                         "files. Fix the cause, then retry it while they are "
                                         "there.";
        case BUNDLE_CANCELLED:
                if (source_kind_is_own(rec->kind))
                        return "The operator cancelled it; its files were removed. It cannot be "
                               "undone.";
                return "The operator cancelled it; its source files were not changed. It cannot be "
                       "undone, but a copy of them under another name in the source is delivered.";
        case BUNDLE_EVICTED:
                return "It was discarded undelivered, to free space for the job; only this row "
                       "remains.";
        default:
                return "";
        }
}

/* Its files were removed or renamed, or none of them may be collected, which the reason says. */
static void explain_vanished(const BundleRecord *rec, StrBuf *text) {
        size_t n = 0;
        for (size_t i = 0; i < rec->n_deliveries; i++)
                if (rec->deliveries[i].state == DELIVERY_DONE)
                        strbuf_addf(text, "%s%s", n++ ? ", " : "It was delivered to ",
                                    rec->deliveries[i].destination);
        strbuf_add(text, n ? ", but there was nothing more to ship to its other destinations."
                           : "There was nothing to ship.");
        strbuf_add(text, " It is collected if its files come back.");
}

static void explain_links(const Agent *a, StrBuf *text) {
        const ConfigSize *keep = &a->config->retention.keep_free_undelivered;
        char size[PARSE_FORMAT_SIZE];
        strbuf_add(text, " Hard links hold its files, also when they are removed at the source");
        if (keep->is_permille && keep->permille > 0)
                strbuf_addf(text,
                            ", while %g %% of that file system are free "
                            "(retention.keep_free_undelivered)",
                            keep->permille / 10.0);
        else if (!keep->is_permille && keep->bytes > 0)
                strbuf_addf(text,
                            ", while %s of that file system are free "
                            "(retention.keep_free_undelivered)",
                            parse_format_human(size, keep->bytes));
        strbuf_add(text, ".");
}

static void explain_own(const Agent *a, const BundleRecord *rec, StrBuf *text) {
        bool is_waiting = rec->state == BUNDLE_READY && a->failures && !rec->name.agreed[0];
        if (rec->subject[0])
                strbuf_addf(text, " It is about %s%s.", rec->subject,
                            is_waiting ? ", and waits for the name of that bundle" : "");
        if (a->crash_reports && crash_reports_has(a->crash_reports, rec->id))
                strbuf_add(text,
                           " Its crash report is still to be made; its files stay until then.");
}

char *agent_explain(const Agent *a, const BundleRecord *rec, const Bundle *b) {
        StrBuf text = STRBUF_INIT;
        if (bundle_state_is_inactive(rec->state)) {
                if (rec->state == BUNDLE_DELIVERED)
                        explain_delivered(a, rec, &text);
                if (rec->state == BUNDLE_VANISHED)
                        explain_vanished(rec, &text);
                strbuf_add(&text, final_sentence(rec));
                if (rec->reason && rec->state != BUNDLE_CANCELLED)
                        strbuf_addf(&text, " Last: %s.", rec->reason);
        } else if (rec->state == BUNDLE_SETTLING && b)
                explain_settling(b, &text);
        else if (b) {
                if (!b->source)
                        strbuf_add(&text, "Its source is no longer configured; add it again to "
                                          "ship it, or cancel the bundle. ");
                for (size_t i = 0; i < rec->n_deliveries; i++) {
                        _cleanup_free_ char *one =
                                scheduler_explain(a->scheduler, b, &rec->deliveries[i]);
                        strbuf_addf(&text, "%s%s", i ? " " : "", one ? one : "");
                }
        }
        if (b && !bundle_is_written(b))
                strbuf_add(&text, " The state database cannot be written, so its source stays "
                                  "held; free space in the state directory, or fix its disk.");
        if (!rec->complete)
                strbuf_add(&text, " It is labelled incomplete.");
        if (rec->links_held && !bundle_state_is_terminal(rec->state))
                explain_links(a, &text);
        else if (b && b->unit.held.n > 0)
                strbuf_add(&text,
                           " Links could not be created; open descriptors hold its files while "
                           "this agent runs.");
        if (rec->pinned)
                strbuf_add(&text, " Pinned by the operator.");
        _cleanup_free_ char *failure = a->failures ? failures_explain(a->failures, rec) : NULL;
        if (failure)
                strbuf_addf(&text, " %s", failure);
        explain_own(a, rec, &text);
        return strbuf_detach(&text);
}
