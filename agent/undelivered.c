/* What is left: whether the agent has anything to do but retries, and the lines that `--once`
 * prints of what is not delivered, was discarded, or could not be read. */
#include "agent/agent_private.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/delivery/scheduler.h"
#include "agent/intake/intake.h"
#include "agent/store/bundle.h"
#include "agent/store/store.h"

bool agent_is_idle(Agent *a) {
        if (a->notes && !hooknotes_is_idle(a->notes))
                return false;
        for (size_t i = 0; i < a->n_sources; i++)
                if (!intake_source_is_idle(a->sources[i]))
                        return false;
        if (crash_reports_n(a->crash_reports) > 0)
                return false;
        if (a->failures && !failures_is_idle(a->failures))
                return false;
        LIST_FOREACH_ITEM (const Bundle, b, link, bundle_table_all(a->bundles))
                if (b->source && !bundle_state_is_inactive(b->rec.state) &&
                    (b->rec.state != BUNDLE_READY || scheduler_can_continue(a->scheduler, b)))
                        return false;
        return true;
}

typedef struct RefusedPrinter {
        FILE *file;
        size_t n;
} RefusedPrinter;

/* Prints a unit of which nothing may be collected, as long as the unit is there. */
static int print_refused(const BundleRecord *rec, void *userdata) {
        RefusedPrinter *p = userdata;
        struct stat st;
        if (!rec->reason ||
            strncmp(rec->reason, INTAKE_NOTHING_TAKEN, strlen(INTAKE_NOTHING_TAKEN)) != 0 ||
            lstat(rec->path, &st) < 0)
                return 0;
        fprintf(p->file, "%s '%s': %s\n", rec->id, rec->path, rec->reason);
        p->n++;
        return 0;
}

typedef struct DiscardedPrinter {
        FILE *file;
        uint64_t since_usec;
        size_t n;
} DiscardedPrinter;

static int print_discarded(const BundleRecord *rec, void *userdata) {
        DiscardedPrinter *p = userdata;
        if (rec->changed_usec < p->since_usec)
                return 0;
        fprintf(p->file, "%s discarded undelivered: %s\n", rec->id,
                rec->reason ? rec->reason : "no reason given");
        p->n++;
        return 0;
}

static int print_undelivered(const BundleRecord *rec, void *userdata) {
        fprintf(userdata, "%s %s: %s\n", rec->id, bundle_state_name(rec->state),
                rec->reason ? rec->reason : "not delivered yet");
        return 0;
}

/* Prints what destinations wait for, once and not for each bundle. */
static void print_failing_destinations(const Agent *a, FILE *f) {
        for (size_t i = 0; i < scheduler_n_destinations(a->scheduler); i++) {
                SchedulerDestinationView d;
                scheduler_destination_view(a->scheduler, i, &d);
                if (strcmp(d.state, "ok") != 0)
                        fprintf(f, "destination %s is %s: %s\n", d.name, d.state,
                                d.last_error ? d.last_error : "see the log");
        }
}

/* Counts what is still to be aborted or removed at the configured destinations; at others nothing
 * can be removed. @param f  NULL: nothing is printed */
static size_t print_abandoned(const Agent *a, FILE *f) {
        size_t n_all = 0;
        for (size_t i = 0; i < a->config->n_destinations; i++) {
                const ConfigDestination *d = &a->config->destinations[i];
                bool is_id_known =
                        d->type == CONFIG_S3 && scheduler_has_cleaned_up(a->scheduler, d->name);
                uint64_t n = store_abort_count(a->store, d->name, is_id_known);
                n_all += n;
                if (n > 0 && f)
                        fprintf(f, "destination %s: %llu %s yet; see the log%s\n", d->name,
                                (unsigned long long)n,
                                d->type == CONFIG_S3 ? "abandoned uploads are not aborted"
                                                     : "abandoned temporary files are not removed",
                                d->type == CONFIG_S3
                                        ? ", and allow s3:ListBucketMultipartUploads and "
                                          "s3:AbortMultipartUpload"
                                        : "");
        }
        return n_all;
}

/* Prints the sources that were not read completely: they may hold units that no scan has found. */
static size_t print_unfinished_sources(const Agent *a, FILE *f) {
        size_t n = 0;
        for (size_t i = 0; i < a->n_sources; i++) {
                const IntakeSource *s = a->sources[i];
                const char *why = intake_source_unseen(s);
                if (intake_source_is_busy(s))
                        why = "files are still being checked, or hard links removed; the next "
                              "start continues";
                else if (!why && !intake_source_is_idle(s))
                        why = "it has not been scanned completely; the next start continues";
                if (!why)
                        continue;
                fprintf(f, "source %s: %s\n", intake_source_config(s)->name, why);
                n++;
        }
        return n;
}

size_t agent_print_undelivered(Agent *a, FILE *f) {
        static const BundleState states[] = { BUNDLE_SETTLING, BUNDLE_READY, BUNDLE_SHIPPING,
                                              BUNDLE_QUARANTINED };
        StoreCounts counts;
        bundle_table_counts(a->bundles, &counts);
        size_t n = 0;
        for (size_t i = 0; i < ELEMENTSOF(states); i++) {
                n += counts.bundles[states[i]];
                /* the count is right even if the list cannot be read */
                (void)bundle_table_list(a->bundles, &(StoreFilter){ .state = (int)states[i] },
                                        print_undelivered, f);
        }
        if (n > 0)
                print_failing_destinations(a, f);
        RefusedPrinter refused = { .file = f };
        (void)bundle_table_list(a->bundles, &(StoreFilter){ .state = BUNDLE_VANISHED },
                                print_refused, &refused); /* as above */
        DiscardedPrinter discarded = { .file = f, .since_usec = a->started_usec };
        (void)bundle_table_list(a->bundles, &(StoreFilter){ .state = BUNDLE_EVICTED },
                                print_discarded, &discarded); /* as above */
        size_t n_aborts = print_abandoned(a, f);
        return n + refused.n + discarded.n + n_aborts + print_unfinished_sources(a, f);
}

bool agent_has_uploads_to_abort(const Agent *a) {
        return print_abandoned(a, NULL) > 0;
}
