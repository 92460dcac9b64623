/* The metrics as Prometheus' text format (version 0.0.4). All numbers come from one view, so that
 * they agree with each other. */
#include "agent/api/metrics.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"

void histogram_add(Histogram *h, double value) {
        h->sum += value;
        h->total++;
        for (size_t i = 0; i < HISTOGRAM_BUCKETS; i++)
                if (value <= h->le[i]) {
                        h->count[i]++;
                        return;
                }
}

#define PREFIX "neuron_collectd_"
static void add_head(StrBuf *b, const char *name, const char *type, const char *help) {
        strbuf_addf(b, "# HELP " PREFIX "%s %s\n# TYPE " PREFIX "%s %s\n", name, help, name, type);
}

/* Adds a label's value: backslash, quote and newline escaped as the format says; bytes that are not
 * UTF-8, which would make a scraper refuse everything, become U+FFFD. */
static void add_value(StrBuf *b, const char *value) {
        size_t n = strlen(value);

        while (n > 0) {
                size_t bytes = utf8_char_size(value, n);

                if (bytes == 0)
                        strbuf_add(b, "\xef\xbf\xbd");
                else if (*value == '\\' || *value == '"')
                        strbuf_addf(b, "\\%c", *value);
                else if (*value == '\n')
                        strbuf_add(b, "\\n");
                else
                        strbuf_add_n(b, value, bytes);
                bytes = bytes ? bytes : 1;
                value += bytes;
                n -= bytes;
        }
}

/* A line up to the number; label NULL = none. */
static void start_line(StrBuf *b, const char *name, const char *label, const char *value) {
        strbuf_addf(b, PREFIX "%s", name);
        if (label) {
                strbuf_addf(b, "{%s=\"", label);
                add_value(b, value ? value : "");
                strbuf_add(b, "\"}");
        }
        strbuf_add(b, " ");
}

typedef struct Label {
        const char *name, *value;
} Label;

static void add_line(StrBuf *b, const char *name, Label label, uint64_t n) {
        start_line(b, name, label.name, label.value);
        strbuf_addf(b, "%" PRIu64 "\n", n);
}

static void line_real(StrBuf *b, const char *name, Label label, double x) {
        start_line(b, name, label.name, label.value);
        strbuf_addf(b, "%.9g\n", x);
}

#define NONE ((Label){ NULL, NULL })
static void add_bundles(StrBuf *b, const AgentView *v) {
        add_head(b, "bundles", "gauge",
                 "Bundles that are in this state now; the states add up to "
                 "bundles_total{state=\"discovered\"}.");
        for (BundleState s = 0; s < N_BUNDLE_STATES; s++)
                add_line(b, "bundles", (Label){ "state", bundle_state_name(s) }, v->bundles[s]);
        add_head(b, "bundle_bytes", "gauge",
                 "Bytes of source files in the bundles that are in this state now.");
        for (BundleState s = 0; s < N_BUNDLE_STATES; s++)
                add_line(b, "bundle_bytes", (Label){ "state", bundle_state_name(s) },
                         v->bytes_by_state[s]);
        add_head(b, "accounting_errors", "gauge",
                 "Bundles by which the states do not add up to those discovered, each counted for "
                 "itself; always 0.");
        add_line(b, "accounting_errors", NONE,
                 v->unaccounted < 0 ? -(uint64_t)v->unaccounted : (uint64_t)v->unaccounted);

        add_head(b, "bundles_total", "counter",
                 "Bundles discovered, and bundles that reached a terminal state, since the state "
                 "directory was created.");
        add_line(b, "bundles_total", (Label){ "state", "discovered" }, agent_view_discovered(v));
        /* A state that something follows would let the counter decrease. */
        for (BundleState s = 0; s < N_BUNDLE_STATES; s++)
                if (bundle_state_is_terminal(s))
                        add_line(b, "bundles_total", (Label){ "state", bundle_state_name(s) },
                                 v->bundles[s]);
}

static void add_reasons(StrBuf *b, const AgentView *v) {
        add_head(b, "bundle_discards_total", "counter",
                 "Files or bundles that were not accepted or not kept, by reason.");
        for (size_t i = 0; i < v->n_discards; i++)
                add_line(b, "bundle_discards_total", (Label){ "reason", v->discards[i].label },
                         v->discards[i].count);
        add_head(b, "agreement_rounds_total", "counter",
                 "Bundles whose failure got its name, by who agreed on it.");
        for (size_t i = 0; i < ELEMENTSOF(v->named); i++)
                add_line(b, "agreement_rounds_total", (Label){ "result", v->named[i].label },
                         v->named[i].count);
        add_head(b, "retries_total", "counter", "Tries that failed and are repeated, by reason.");
        for (size_t i = 0; i < v->n_retries; i++)
                add_line(b, "retries_total", (Label){ "reason", v->retries[i].label },
                         v->retries[i].count);
}

/* A number of a view, at an offset. */
typedef struct Metric {
        const char *name, *type;
        size_t offset;
        const char *help;
} Metric;

static uint64_t number_at(const void *view, size_t offset) {
        uint64_t n;
        memcpy(&n, (const char *)view + offset, sizeof n);
        return n;
}

static void add_numbers(StrBuf *b, const Metric *m, size_t n, const void *view) {
        for (; n > 0; n--, m++) {
                add_head(b, m->name, m->type, m->help);
                add_line(b, m->name, NONE, number_at(view, m->offset));
        }
}

static void add_of_sources(StrBuf *b, const Metric *m, size_t n, const AgentView *v) {
        for (; n > 0; n--, m++) {
                add_head(b, m->name, m->type, m->help);
                for (size_t i = 0; i < v->n_sources; i++)
                        add_line(b, m->name, (Label){ "source", v->sources[i].name },
                                 number_at(&v->sources[i], m->offset));
        }
}

/* clang-format off */
static const Metric bytes_metrics[] = {
        { "bytes_read_total", "counter", offsetof(AgentView, bytes_read),
          "Bytes read from source files." },
        { "bytes_sent_total", "counter", offsetof(AgentView, bytes_sent),
          "Bytes of objects written to destinations, failed tries included." },
        { "buffer_bytes", "gauge", offsetof(AgentView, buffer_bytes),
          "Bytes of the buffers for bundling and uploading now, bounded by limits.memory." },
};
static const Metric space_metrics[] = {
        { "source_used_bytes", "gauge", offsetof(SourceView, used_bytes),
          "Bytes on disk of a source's bundles that are not delivered or still kept." },
        { "source_free_bytes", "gauge", offsetof(SourceView, free_bytes),
          "Free bytes of the file system that a source is on." },
};
static const Metric retention_metrics[] = {
        { "sources_deleted_total", "counter", offsetof(AgentView, n_sources_deleted),
          "Delivered bundles whose files at the source were deleted by retention." },
        { "sources_deleted_bytes_total", "counter", offsetof(AgentView, sources_deleted_bytes),
          "Bytes of those files." },
        { "upload_rate_limit_bytes", "gauge", offsetof(AgentView, limits.upload_rate),
          "Bytes per second that may be sent at this time of day; 0 means no limit." },
};
static const Metric upload_metrics[] = {
        { "aborted_uploads_total", "counter", offsetof(AgentView, n_aborted_uploads),
          "Abandoned multipart uploads that were aborted." },
        { "uploads_to_abort", "gauge", offsetof(AgentView, n_uploads_to_abort),
          "Abandoned multipart uploads that are queued for abort." },
};
static const Metric hook_metrics[] = {
        { "hook_refused_total", "counter", offsetof(HookView, n_refused),
          "Notes of hooks, and other files in the mailbox, that were refused." },
        { "hook_unseen_total", "counter", offsetof(HookView, n_unseen),
          "Notes of hooks about directories that the agent cannot see, such as those of containers." },
        { "snapshots_total", "counter", offsetof(HookView, n_snapshots),
          "Snapshots of the hardware that were started since the agent started." },
        { "snapshots_dropped_total", "counter", offsetof(HookView, n_snapshots_dropped),
          "Snapshots that were not taken: too many at once, too soon, or no space; see the log." },
        { "hook_open", "gauge", offsetof(HookView, n_open), "Hooks that are connected now." },
};
static const Metric watch_metrics[] = {
        { "watch_overflows_total", "counter", offsetof(SourceView, n_overflows),
          "Times that inotify lost events of a source; a scan then finds what they were about." },
        { "watches", "gauge", offsetof(SourceView, n_watches), "Inotify watches held for a source." },
        { "units_of_other_nodes", "gauge", offsetof(SourceView, n_others),
          "Undelivered units of a source on a shared file system that other nodes hold." },
        { "units_of_other_nodes_oldest_seconds", "gauge", offsetof(SourceView, others_oldest_seconds),
          "How long the oldest of them has been known." },
};
/* clang-format on */

static void add_destinations(StrBuf *b, const AgentView *v) {
        add_head(b, "bytes_delivered_total", "counter",
                 "Bytes of objects that are proven to be at the destination.");
        for (size_t i = 0; i < v->n_destinations; i++)
                add_line(b, "bytes_delivered_total",
                         (Label){ "destination", v->destinations[i].name },
                         v->destinations[i].bytes_delivered);
        add_head(b, "destination_up", "gauge",
                 "1 while the destination accepts bundles, 0 while it is paused or failing.");
        for (size_t i = 0; i < v->n_destinations; i++)
                add_line(b, "destination_up", (Label){ "destination", v->destinations[i].name },
                         v->destinations[i].state && strcmp(v->destinations[i].state, "ok") == 0);
        add_head(b, "ready", "gauge", "1 when a bundle could be delivered now, as in /readyz.");
        add_line(b, "ready", NONE, v->ready);
}

static void add_space(StrBuf *b, const AgentView *v) {
        add_of_sources(b, space_metrics, ELEMENTSOF(space_metrics), v);
        add_numbers(b, retention_metrics, ELEMENTSOF(retention_metrics), v);
        add_head(b, "work_share", "gauge",
                 "Share of the time that workers may work now; below 1 while others wait for a "
                 "CPU.");
        line_real(b, "work_share", NONE, v->limits.work_share);
        add_head(b, "draining", "gauge", "1 while the agent drains, 0 otherwise.");
        add_line(b, "draining", NONE, v->drain.is_draining);
}

static void add_histogram(StrBuf *b, const char *name, const char *help, const Histogram *h) {
        uint64_t n = 0;
        char le[32], series[64];

        add_head(b, name, "histogram", help);
        (void)snprintf(series, sizeof series, "%s_bucket", name);
        for (size_t i = 0; i < HISTOGRAM_BUCKETS; i++) {
                n += h->count[i];
                (void)snprintf(le, sizeof le, "%.9g", h->le[i]);
                add_line(b, series, (Label){ "le", le }, n);
        }
        add_line(b, series, (Label){ "le", "+Inf" }, h->total);
        (void)snprintf(series, sizeof series, "%s_sum", name);
        line_real(b, series, NONE, h->sum);
        (void)snprintf(series, sizeof series, "%s_count", name);
        add_line(b, series, NONE, h->total);
}

static void add_requests(StrBuf *b, const AgentView *v) {
        if (v->request_seconds.le[0] <= 0)
                return;
        add_head(b, "requests_total", "counter",
                 "Requests to object stores by operation and HTTP status; code 0 means no "
                 "response.");
        for (size_t i = 0; i < v->n_requests; i++) {
                const RequestView *r = &v->requests[i];
                strbuf_add(b, PREFIX "requests_total{destination=\"");
                add_value(b, r->destination);
                strbuf_addf(b, "\",operation=\"%s\",code=\"%u\"} %" PRIu64 "\n", r->operation,
                            r->code, r->n);
        }
        add_histogram(
                b, "request_duration_seconds",
                "Time that requests to object stores took, from the first byte to the answer.",
                &v->request_seconds);
        add_numbers(b, upload_metrics, ELEMENTSOF(upload_metrics), v);
}

static void add_hook(StrBuf *b, const HookView *h) {
        add_head(b, "hook_notes_total", "counter",
                 "Notes of hooks that were accepted, by path, since the state directory was "
                 "created.");
        add_line(b, "hook_notes_total", (Label){ "path", "socket" }, h->n_socket);
        add_line(b, "hook_notes_total", (Label){ "path", "mailbox" }, h->n_mailbox);
        add_numbers(b, hook_metrics, ELEMENTSOF(hook_metrics), h);
        if (h->seconds.le[0] > 0) /* else notes cannot be received */
                add_histogram(b, "hook_seconds",
                              "Time from the arrival of a note to the answer about its snapshot.",
                              &h->seconds);
}

static void add_bounded(StrBuf *b, const AgentView *v) {
        add_head(b, "refused_total", "counter",
                 "Requests that were refused at the limit of their owner, or of all owners.");
        for (size_t i = 0; i < v->n_bounded; i++)
                add_line(b, "refused_total", (Label){ "what", v->bounded[i].what },
                         v->bounded[i].n_refused);
}

static void add_sources(StrBuf *b, const AgentView *v) {
        add_of_sources(b, watch_metrics, ELEMENTSOF(watch_metrics), v);
        add_head(b, "scan_duration_seconds", "gauge", "Time that the last scan of a source took.");
        for (size_t i = 0; i < v->n_sources; i++)
                line_real(b, "scan_duration_seconds", (Label){ "source", v->sources[i].name },
                          v->sources[i].last_scan_seconds);
}

char *metrics_text(const AgentView *v) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;

        add_head(&b, "build_info", "gauge", "Always 1; the label is the version.");
        add_line(&b, "build_info", (Label){ "version", v->version }, 1);
        add_bundles(&b, v);
        add_reasons(&b, v);
        add_numbers(&b, bytes_metrics, ELEMENTSOF(bytes_metrics), v);
        add_destinations(&b, v);
        add_histogram(&b, "delivery_seconds",
                      "Time from the discovery of a bundle to the proof of its last copy.",
                      &v->delivery_seconds);
        add_requests(&b, v);
        add_hook(&b, &v->hook);
        add_bounded(&b, v);
        add_sources(&b, v);
        add_space(&b, v);
        return strbuf_detach(&b);
}
