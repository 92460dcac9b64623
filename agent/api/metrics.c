/* The metrics as Prometheus' text format (version 0.0.4). All numbers come from one view, so that
 * they agree with each other. */
#include "agent/api/metrics.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "agent/api/histogram.h"
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
static void head(StrBuf *b, const char *name, const char *type, const char *help) {
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

/* Begins a line up to the number; label NULL = none. */
static void begin(StrBuf *b, const char *name, const char *label, const char *value) {
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

static void line(StrBuf *b, const char *name, Label label, uint64_t n) {
        begin(b, name, label.name, label.value);
        strbuf_addf(b, "%" PRIu64 "\n", n);
}

static void line_real(StrBuf *b, const char *name, Label label, double x) {
        begin(b, name, label.name, label.value);
        strbuf_addf(b, "%.9g\n", x);
}

#define NONE ((Label){ NULL, NULL })
static bool has_successor(BundleState s) {
        for (BundleState to = 0; to < N_BUNDLE_STATES; to++)
                if (bundle_state_may_follow(s, to))
                        return true;
        return false;
}

static void add_bundles(StrBuf *b, const AgentView *v) {
        uint64_t discovered = (uint64_t)v->unaccounted;

        head(b, "bundles", "gauge",
             "Bundles that are in this state now; the states add up to "
             "bundles_total{state=\"discovered\"}.");
        for (BundleState s = 0; s < N_BUNDLE_STATES; s++) {
                line(b, "bundles", (Label){ "state", bundle_state_name(s) }, v->bundles[s]);
                discovered += v->bundles[s];
        }
        head(b, "bundle_bytes", "gauge",
             "Bytes of source files in the bundles that are in this state now.");
        for (BundleState s = 0; s < N_BUNDLE_STATES; s++)
                line(b, "bundle_bytes", (Label){ "state", bundle_state_name(s) },
                     v->bytes_by_state[s]);
        head(b, "accounting_errors", "gauge",
             "Bundles by which the states do not add up to those discovered, each counted for "
             "itself; always 0.");
        line(b, "accounting_errors", NONE,
             v->unaccounted < 0 ? -(uint64_t)v->unaccounted : (uint64_t)v->unaccounted);

        head(b, "bundles_total", "counter",
             "Bundles discovered, and bundles that reached a state nothing follows, since the "
             "state directory was made.");
        line(b, "bundles_total", (Label){ "state", "discovered" }, discovered);
        /* A state that can be left again would make the counter go back. */
        for (BundleState s = 0; s < N_BUNDLE_STATES; s++)
                if (!has_successor(s))
                        line(b, "bundles_total", (Label){ "state", bundle_state_name(s) },
                             v->bundles[s]);
}

static void add_reasons(StrBuf *b, const AgentView *v) {
        head(b, "bundle_discards_total", "counter",
             "Files or bundles that were not taken or not kept, by reason.");
        for (size_t i = 0; i < v->n_discards; i++)
                line(b, "bundle_discards_total", (Label){ "reason", v->discards[i].label },
                     v->discards[i].count);
        head(b, "retries_total", "counter", "Tries that failed and are repeated, by reason.");
        for (size_t i = 0; i < v->n_retries; i++)
                line(b, "retries_total", (Label){ "reason", v->retries[i].label },
                     v->retries[i].count);
}

static void add_bytes(StrBuf *b, const AgentView *v) {
        head(b, "bytes_read_total", "counter", "Bytes read from source files.");
        line(b, "bytes_read_total", NONE, v->bytes_read);
        head(b, "bytes_sent_total", "counter",
             "Bytes of objects written to destinations, failed tries included.");
        line(b, "bytes_sent_total", NONE, v->bytes_sent);
        head(b, "buffer_bytes", "gauge",
             "Bytes of the buffers for bundling and uploading now, bounded by limits.memory.");
        line(b, "buffer_bytes", NONE, v->buffer_bytes);
}

static void add_destinations(StrBuf *b, const AgentView *v) {
        head(b, "bytes_delivered_total", "counter",
             "Bytes of objects that are proven to be at the destination.");
        for (size_t i = 0; i < v->n_destinations; i++)
                line(b, "bytes_delivered_total", (Label){ "destination", v->destinations[i].name },
                     v->destinations[i].bytes_delivered);
        head(b, "destination_up", "gauge",
             "1 while the destination takes bundles, 0 while it is paused or failing.");
        for (size_t i = 0; i < v->n_destinations; i++)
                line(b, "destination_up", (Label){ "destination", v->destinations[i].name },
                     v->destinations[i].state && strcmp(v->destinations[i].state, "ok") == 0);
        head(b, "ready", "gauge", "1 when a bundle could be delivered now, as /readyz says.");
        line(b, "ready", NONE, v->ready);
}

static void add_room(StrBuf *b, const AgentView *v) {
        head(b, "source_used_bytes", "gauge",
             "Bytes on disk of a source's bundles that are not delivered or still kept.");
        for (size_t i = 0; i < v->n_sources; i++)
                line(b, "source_used_bytes", (Label){ "source", v->sources[i].name },
                     v->sources[i].used_bytes);
        head(b, "source_free_bytes", "gauge", "Free bytes of the file system that a source is on.");
        for (size_t i = 0; i < v->n_sources; i++)
                line(b, "source_free_bytes", (Label){ "source", v->sources[i].name },
                     v->sources[i].free_bytes);
        head(b, "sources_deleted_total", "counter",
             "Delivered bundles whose files at the source were deleted by retention.");
        line(b, "sources_deleted_total", NONE, v->n_sources_deleted);
        head(b, "sources_deleted_bytes_total", "counter", "Bytes of those files.");
        line(b, "sources_deleted_bytes_total", NONE, v->sources_deleted_bytes);
        head(b, "upload_rate_limit_bytes", "gauge",
             "Bytes per second that may be sent at this time of day; 0 is no limit.");
        line(b, "upload_rate_limit_bytes", NONE, v->limits.upload_rate);
        head(b, "work_share", "gauge",
             "Share of the time that workers may work now; below 1 while the machine is pressed.");
        line_real(b, "work_share", NONE, v->limits.work_share);
        head(b, "draining", "gauge", "1 while nothing new is taken, 0 otherwise.");
        line(b, "draining", NONE, v->drain.is_draining);
}

static void add_histogram(StrBuf *b, const char *name, const char *help, const Histogram *h) {
        uint64_t n = 0;
        char le[32], series[64];

        head(b, name, "histogram", help);
        (void)snprintf(series, sizeof series, "%s_bucket", name);
        for (size_t i = 0; i < HISTOGRAM_BUCKETS; i++) {
                n += h->count[i];
                (void)snprintf(le, sizeof le, "%.9g", h->le[i]);
                line(b, series, (Label){ "le", le }, n);
        }
        line(b, series, (Label){ "le", "+Inf" }, h->total);
        (void)snprintf(series, sizeof series, "%s_sum", name);
        line_real(b, series, NONE, h->sum);
        (void)snprintf(series, sizeof series, "%s_count", name);
        line(b, series, NONE, h->total);
}

static void add_requests(StrBuf *b, const AgentView *v) {
        if (v->request_seconds.le[0] <= 0)
                return;
        head(b, "requests_total", "counter",
             "Requests to object stores by operation and HTTP status; code 0 is no answer.");
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
        head(b, "aborted_uploads_total", "counter",
             "Unfinished multipart uploads that nobody went on with and that were aborted.");
        line(b, "aborted_uploads_total", NONE, v->n_aborted_uploads);
        head(b, "uploads_to_abort", "gauge",
             "Unfinished multipart uploads that are to be aborted and still may be there.");
        line(b, "uploads_to_abort", NONE, v->n_uploads_to_abort);
}

static void add_hook(StrBuf *b, const HookView *h) {
        head(b, "hook_notes_total", "counter",
             "Notes of hooks that were taken, by the way they came, since the state directory was "
             "made.");
        line(b, "hook_notes_total", (Label){ "path", "socket" }, h->n_socket);
        line(b, "hook_notes_total", (Label){ "path", "mailbox" }, h->n_mailbox);
        head(b, "hook_refused_total", "counter",
             "Notes of hooks, and what was in their place, that were refused.");
        line(b, "hook_refused_total", NONE, h->n_refused);
        head(b, "hook_unseen_total", "counter",
             "Notes of hooks about directories that the agent cannot see, such as those of "
             "containers.");
        line(b, "hook_unseen_total", NONE, h->n_unseen);
        head(b, "snapshots_total", "counter",
             "Snapshots of the hardware that were begun since the agent started.");
        line(b, "snapshots_total", NONE, h->n_snapshots);
        head(b, "snapshots_dropped_total", "counter",
             "Snapshots that were not taken: too many at once, too soon, or no room; the log says "
             "which.");
        line(b, "snapshots_dropped_total", NONE, h->n_snapshots_dropped);
        head(b, "hook_open", "gauge", "Hooks that are connected now.");
        line(b, "hook_open", NONE, h->n_open);
        if (h->seconds.le[0] > 0) /* else nobody hears hooks */
                add_histogram(b, "hook_seconds",
                              "Time from the arrival of a note to the answer about its snapshot.",
                              &h->seconds);
}

static void add_sources(StrBuf *b, const AgentView *v) {
        head(b, "watch_overflows_total", "counter",
             "Times that inotify lost events of a source, which a scan then made good.");
        for (size_t i = 0; i < v->n_sources; i++)
                line(b, "watch_overflows_total", (Label){ "source", v->sources[i].name },
                     v->sources[i].n_overflows);
        head(b, "watches", "gauge", "Inotify watches held for a source.");
        for (size_t i = 0; i < v->n_sources; i++)
                line(b, "watches", (Label){ "source", v->sources[i].name },
                     v->sources[i].n_watches);
        head(b, "scan_duration_seconds", "gauge", "Time that the last scan of a source took.");
        for (size_t i = 0; i < v->n_sources; i++)
                line_real(b, "scan_duration_seconds", (Label){ "source", v->sources[i].name },
                          v->sources[i].last_scan_seconds);
}

char *metrics_text(const AgentView *v) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;

        head(&b, "build_info", "gauge", "Always 1; the label tells the version.");
        line(&b, "build_info", (Label){ "version", v->version }, 1);
        add_bundles(&b, v);
        add_reasons(&b, v);
        add_bytes(&b, v);
        add_destinations(&b, v);
        add_histogram(&b, "delivery_seconds",
                      "Time from the discovery of a bundle to the proof of its last copy.",
                      &v->delivery_seconds);
        add_requests(&b, v);
        add_hook(&b, &v->hook);
        add_sources(&b, v);
        add_room(&b, v);
        return strbuf_detach(&b);
}
