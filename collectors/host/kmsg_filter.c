/* Which records of the kernel log are written.
 *
 * A snapshot has the lines about Neuron, until max_bytes is used up. A watch (is_stream) also
 * reports the facts that crash reports quote, if the kernel itself has written them. It never ends,
 * so that not bytes but lines are bounded: in each minute of the kernel's time, lines, errors of
 * the hardware and each kind of fact have an allowance; the number of lines left out is reported
 * before the next record. All text is redacted.
 *
 * Every record is marked as a hint: counters of sysfs, not lines, prove a fault. */
#include "collectors/host/kmsg_filter.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "lib/base/cleanup.h"
#include "lib/base/json_out.h"
#include "lib/base/redact.h"
#include "lib/base/strbuf.h"

enum { RATE_LINES_MAX = 200, RATE_ERRORS_MAX = 100, RATE_FACTS_MAX = 100 };
#define RATE_USEC (60 * USEC_PER_SEC)

uint64_t kmsg_filter_now_usec(void) {
        struct timespec t = { 0 };
        (void)clock_gettime(CLOCK_MONOTONIC, &t); /* cannot fail */
        return (uint64_t)t.tv_sec * USEC_PER_SEC + (uint64_t)t.tv_nsec / 1000;
}

static int emit(KmsgFilter *f, StrBuf *b) {
        if (f->is_stream)
                f->out->used_bytes = 0;
        int r = collect_emit(f->out, b);
        return r == -EFBIG && f->is_stream ? 0 : r;
}

int kmsg_filter_notice(KmsgFilter *f, const char *about, const char *count_name, uint64_t count) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;

        json_out_object(&b, NULL);
        json_out_string(&b, "about", about);
        json_out_u64(&b, count_name, count);
        json_out_end_object(&b);
        return emit(f, &b);
}

int kmsg_filter_following(KmsgFilter *f) {
        return kmsg_filter_notice(f, "following", "since_usec", kmsg_filter_now_usec());
}

static void add_hw_error(StrBuf *b, const KmsgHwError *e) {
        static const char *const names[] = { "instance_id", "hostname",   "nd_id",
                                             "nc_id",       "serial_num", "action" };

        json_out_object(b, "hw_error");
        redact_member(b, "value", e->value, strlen(e->value));
        for (size_t i = 0; i < ELEMENTSOF(names); i++) {
                const char *value = kmsg_content_hw_field(e, names[i]);
                if (value[0] != '\0')
                        redact_member(b, names[i], value, strlen(value));
        }
        json_out_array(b, "fields");
        for (size_t i = 0; i < e->n_fields; i++) {
                char pair[KMSG_KEY_SIZE + KMSG_VALUE_SIZE];
                int n = snprintf(pair, sizeof pair, "%s=%s", e->fields[i].key, e->fields[i].value);
                redact_member(b, NULL, pair, (size_t)n);
        }
        json_out_end_array(b);
        json_out_bool(b, "cut", e->is_cut);
        json_out_end_object(b);
}

static void start_minute(KmsgFilter *f, uint64_t usec) {
        if (usec >= f->window_usec && usec - f->window_usec < RATE_USEC)
                return;
        f->window_usec = usec;
        f->n_lines = f->n_errors = 0;
        memset(f->n_facts, 0, sizeof f->n_facts);
}

/* Errors of the hardware have an allowance of their own, so that other lines of the driver cannot
 * crowd them out; beyond it they count as lines.
 * @return whether another line may be written in this minute; counts it if not */
static bool may_write(KmsgFilter *f, uint64_t usec, bool is_error) {
        if (!f->is_stream)
                return true;
        start_minute(f, usec);
        if (is_error && f->n_errors++ < RATE_ERRORS_MAX)
                return true;
        if (f->n_lines++ < RATE_LINES_MAX)
                return true;
        f->n_left_out++;
        return false;
}

/* @param error  NULL: none @param fact  N_KMSG_FACTS: none */
static int emit_record(KmsgFilter *f, const KmsgRecord *r, const KmsgHwError *error,
                       KmsgFact fact) {
        const bool is_fact = fact != N_KMSG_FACTS;
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;

        json_out_object(&b, NULL);
        json_out_string(&b, "about", is_fact ? "fact" : error ? "hw_error" : "line");
        if (is_fact) {
                json_out_string(&b, "kind", kmsg_content_fact_names[fact]);
                json_out_bool(&b, "past", r->usec < f->past_usec);
        }
        if (r->is_numbered)
                json_out_u64(&b, "seq", r->seq);
        if (r->is_numbered || r->usec > 0)
                json_out_u64(&b, "usec", r->usec);
        json_out_u64(&b, "priority", r->priority);
        json_out_bool(&b, "from_kernel", r->facility == 0);
        json_out_bool(&b, "hint", true);
        redact_member(&b, "text", r->text.text ? r->text.text : "", r->text.n);
        if (r->context.n > 0)
                redact_member(&b, "context", r->context.text, r->context.n);
        if (error)
                add_hw_error(&b, error);
        json_out_end_object(&b);
        return emit(f, &b);
}

static KmsgFact find_fact(const KmsgFilter *f, const KmsgRecord *r) {
        return f->is_stream && r->facility == 0 && !r->is_continued && r->text.n > 0
                       ? kmsg_content_fact(r->text.text, r->text.n)
                       : N_KMSG_FACTS;
}

static int emit_left_out(KmsgFilter *f) {
        uint64_t n = f->n_left_out;
        f->n_left_out = 0;
        return n > 0 ? kmsg_filter_notice(f, "left_out", "lines", n) : 0;
}

/* Each kind has an allowance of its own, so that a user whose programs crash cannot hide what the
 * OOM killer did. */
static int keep_fact(KmsgFilter *f, const KmsgRecord *record, KmsgFact fact) {
        if (record->usec + KMSG_FILTER_PAST_USEC < f->past_usec)
                return 0;
        start_minute(f, record->usec);
        if (f->n_facts[fact]++ >= RATE_FACTS_MAX) {
                f->n_left_out++;
                return 0;
        }
        int r = emit_left_out(f);
        return r < 0 ? r : emit_record(f, record, NULL, fact);
}

int kmsg_filter_keep(KmsgFilter *f, const KmsgRecord *record) {
        KmsgHwError error;
        const char *text = record->text.text ? record->text.text : "";
        if (record->usec < f->request->since_boot_usec && (record->is_numbered || record->usec > 0))
                return 0;
        KmsgFact fact = find_fact(f, record);
        if (fact != N_KMSG_FACTS)
                return keep_fact(f, record, fact);
        if (record->usec < f->past_usec)
                return 0;
        bool is_error = kmsg_content_find_hw_error(record->text.text, record->text.n, &error);
        if (!is_error && !kmsg_content_is_neuron(text, record->text.n))
                return 0;
        if (!may_write(f, record->usec, is_error))
                return 0;
        int r = emit_left_out(f);
        return r < 0 ? r : emit_record(f, record, is_error ? &error : NULL, N_KMSG_FACTS);
}
