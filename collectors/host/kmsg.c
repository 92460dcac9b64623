/* The kernel's log: what it has of Neuron, once or from now on. A line is a hint: who can open a
 * device can have the driver print what he likes, so that sysfs counters, not this, prove a fault.
 *
 * /dev/kmsg gives one record a read(2); the stand-ins of tests, files and FIFOs, any number of
 * bytes: both are cut at record borders here. Where a container has no /dev/kmsg, syslog(2) gives
 * the whole ring as text: without numbers of records, and without an end to wait at. */

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>
#include <sys/klog.h>
#include <sys/stat.h>
#include <time.h>

#include "collectors/runner/collector.h"
#include "lib/base/cleanup.h"
#include "lib/base/json_out.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/base/redact.h"
#include "lib/base/strbuf.h"

#define KMSG_RECORD_BYTES_MAX 16384 /* the kernel's is 8 KiB at most */
#define KMSG_FIELDS_MAX 32
#define KMSG_KEY_SIZE 48
#define KMSG_VALUE_SIZE 256
typedef struct KmsgRecord {
        unsigned priority, facility; /* syslog's; facility 0: the kernel itself, else a program
                                        wrote to /dev/kmsg */
        bool is_numbered;            /* false: syslog(2) gave it, which has no numbers */
        bool is_continued;  /* it may be a later line of the record before it, which has any
                               content */
        uint64_t seq, usec; /* usec: since boot, CLOCK_MONOTONIC as printk keeps it; 0 =
                               not known (syslog(2) with printk.time=0) */
        StrBuf text;        /* with `\xNN` undone; any bytes */
        StrBuf context;     /* continuation lines (SUBSYSTEM=…, DEVICE=…), `\n` between them */
} KmsgRecord;

typedef struct KmsgField {
        char key[KMSG_KEY_SIZE], value[KMSG_VALUE_SIZE]; /* printable ASCII, cut to fit */
} KmsgField;

/** What libnrt reports of the hardware: `NEURON_HW_ERR=<value> key=value …`. */
typedef struct KmsgHwError {
        char value[KMSG_VALUE_SIZE];
        KmsgField fields[KMSG_FIELDS_MAX]; /* in the line's order, keys as spelled, unknown ones too
                                            */
        size_t n_fields;
        bool is_cut; /* there were more */
} KmsgHwError;

static void kmsg_record_done(KmsgRecord *r) {
        strbuf_done(&r->text);
        strbuf_done(&r->context);
}

static int hex_digit(char c) {
        if (c >= '0' && c <= '9')
                return c - '0';
        c = (char)tolower((unsigned char)c);
        return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static void add_unescaped(StrBuf *b, const char *s, size_t n) {
        size_t from = 0;

        for (size_t i = 0; i + 4 <= n;) {
                int high = s[i] == '\\' && s[i + 1] == 'x' ? hex_digit(s[i + 2]) : -1;
                int low = high >= 0 ? hex_digit(s[i + 3]) : -1;
                if (low < 0) {
                        i++;
                        continue;
                }
                strbuf_add_n(b, s + from, i - from);
                char c = (char)(high << 4 | low);
                strbuf_add_n(b, &c, 1);
                i += 4;
                from = i;
        }
        strbuf_add_n(b, s + from, n - from);
}

static int kmsg_parse(const char *data, size_t n, KmsgRecord *ret) {
        const char *at = data, *end = data + n, *line_end;
        _cleanup_(kmsg_record_done) KmsgRecord r = { 0 };
        uint64_t priority;

        if (!parse_u64_prefix(&at, end, &priority) || priority > UINT32_MAX || at >= end ||
            *at++ != ',' || !parse_u64_prefix(&at, end, &r.seq) || at >= end || *at++ != ',' ||
            !parse_u64_prefix(&at, end, &r.usec))
                return -EBADMSG;
        line_end = memchr(at, '\n', (size_t)(end - at));
        line_end = line_end ? line_end : end;
        at = memchr(at, ';',
                    (size_t)(line_end - at)); /* more fields may come before it in later kernels */
        if (!at)
                return -EBADMSG;
        r.priority = (unsigned)priority & 7;
        r.facility = (unsigned)priority >> 3;
        r.is_numbered = true;
        at++;
        add_unescaped(&r.text, at, (size_t)(line_end - at));
        while (line_end < end) {
                at = line_end + 1;
                line_end = memchr(at, '\n', (size_t)(end - at));
                line_end = line_end ? line_end : end;
                if (at == line_end || *at != ' ')
                        continue;
                if (r.context.n > 0)
                        strbuf_add(&r.context, "\n");
                add_unescaped(&r.context, at + 1, (size_t)(line_end - at - 1));
        }
        if (strbuf_error(&r.text) < 0 || strbuf_error(&r.context) < 0)
                return -ENOMEM;
        *ret = r;
        r = (KmsgRecord){ 0 };
        return 0;
}

static size_t kmsg_record_size(const char *data, size_t n) {
        const char *end = data + n;

        for (const char *at = data; (at = memchr(at, '\n', (size_t)(end - at)));) {
                at++;
                if (at == end)
                        return n;
                if (*at != ' ')
                        return (size_t)(at - data);
        }
        return n;
}

static size_t copy_printable(char *to, size_t size, const char *s, size_t n) {
        size_t k = 0;

        for (size_t i = 0; i < n && k + 1 < size; i++)
                to[k++] = s[i] > ' ' && s[i] < 0x7f ? s[i] : '?';
        to[k] = '\0';
        return k;
}

static bool is_blank(char c) {
        return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\0';
}

static size_t word_size(const char *s, const char *end) {
        size_t n = 0;

        while (s + n < end && !is_blank(s[n]))
                n++;
        return n;
}

static bool kmsg_find_hw_error(const char *text, size_t n, KmsgHwError *ret) {
        static const char mark[] = "NEURON_HW_ERR=";
        const char *end = text + n, *at = text ? memmem(text, n, mark, sizeof mark - 1) : NULL;

        if (!at)
                return false;
        memset(ret, 0, sizeof *ret);
        at += sizeof mark - 1;
        size_t size = word_size(at, end);
        (void)copy_printable(ret->value, sizeof ret->value, at, size);
        for (at += size; at < end; at += size) {
                while (at < end && is_blank(*at))
                        at++;
                size = word_size(at, end);
                const char *equals = size > 0 ? memchr(at, '=', size) : NULL;
                if (!equals || equals == at)
                        continue;
                if (ret->n_fields == KMSG_FIELDS_MAX) {
                        ret->is_cut = true;
                        break;
                }
                KmsgField *f = &ret->fields[ret->n_fields++];
                (void)copy_printable(f->key, sizeof f->key, at, (size_t)(equals - at));
                (void)copy_printable(f->value, sizeof f->value, equals + 1,
                                     (size_t)(at + size - equals - 1));
        }
        return true;
}

static bool keys_are_equal(const char *a, const char *b) {
        for (; *a != '\0' && *b != '\0'; a++, b++) {
                char x = (char)tolower((unsigned char)*a), y = (char)tolower((unsigned char)*b);
                if ((x == '-' ? '_' : x) != (y == '-' ? '_' : y))
                        return false;
        }
        return *a == *b;
}

static const char *kmsg_hw_field(const KmsgHwError *e, const char *key) {
        for (size_t i = 0; i < e->n_fields; i++)
                if (keys_are_equal(e->fields[i].key, key))
                        return e->fields[i].value;
        return "";
}

/* `nd0: …`, `nd 12 …`, `[ND 0][NC 1] …` where a line, or its bracket, begins. */
static bool names_device(const char *s, const char *end) {
        if (s < end && *s == '[')
                s++;
        if (end - s < 3 || strncasecmp(s, "nd", 2) != 0)
                return false;
        s += 2;
        if (*s == ' ')
                s++;
        const char *digits = s;
        while (s < end && isdigit((unsigned char)*s))
                s++;
        return s > digits && (s == end || strchr(" :]", *s));
}

static bool kmsg_is_neuron(const char *text, size_t n) {
        const char *end = text + n;

        for (const char *at = text; (size_t)(end - at) >= 6 && n >= 6; at++)
                if (strncasecmp(at, "neuron", 6) == 0)
                        return true;
        return n > 0 && names_device(text, end);
}

typedef enum FactKind { FACT_SEGFAULT, FACT_OOM, FACT_MCE, FACT_AER, FACT_EFA, N_FACTS } FactKind;

static const char *const fact_names[N_FACTS] = { "segfault", "oom", "mce", "aer", "efa" };

/* `COMMAND[PID` or `pcieport 0000:00:1c.0: ` stands before it. Behind 24 bytes a line of a file
 * system has what a user wrote into an option of a mount. */
#define FACT_START_MAX 23

/* What a crash report quotes. What a process is called is its user's choice: a hint, too.
 * @return N_FACTS: it is none */
static FactKind fact_of(const char *text, size_t n) {
        static const struct {
                FactKind kind;
                const char *text;
                size_t start_max;
        } rows[] = {
                { FACT_SEGFAULT, "]: segfault at ", FACT_START_MAX },
                { FACT_SEGFAULT, "traps: ", 0 },
                { FACT_SEGFAULT, "]: unhandled exception: ", FACT_START_MAX },
                { FACT_OOM, "Out of memory: Killed process ", 0 },
                { FACT_OOM, "Memory cgroup out of memory: Killed process ", 0 },
                { FACT_OOM, "oom-kill:", 0 },
                { FACT_OOM, " invoked oom-killer: ", FACT_START_MAX },
                { FACT_MCE, "mce: ", 0 },
                { FACT_MCE, "[Hardware Error]: ", FACT_START_MAX },
                { FACT_MCE, "Memory failure: ", 0 },
                { FACT_AER, "AER: ", FACT_START_MAX },
                { FACT_AER, "PCIe Bus Error: ", FACT_START_MAX },
                { FACT_EFA, "efa ", 0 },
                { FACT_EFA, "infiniband efa_", 0 },
        };
        for (size_t i = 0; i < ELEMENTSOF(rows); i++) {
                const char *found = memmem(text, n, rows[i].text, strlen(rows[i].text));
                if (found && (size_t)(found - text) <= rows[i].start_max)
                        return rows[i].kind;
        }
        return N_FACTS;
}

enum { IDLE_MSEC = 200, RATE_LINES_MAX = 200, RATE_ERRORS_MAX = 100, RATE_FACTS_MAX = 100 };
#define PAST_USEC (10 * USEC_PER_MINUTE) /* facts so old are reported when a watch starts */

#define RATE_USEC (60 * USEC_PER_SEC)
/* @see syslog(2): ring and size of the ring, neither of which changes anything */
enum { SYSLOG_READ_ALL = 3, SYSLOG_SIZE_BUFFER = 10 };
#define SYSLOG_BYTES_MAX (16 * MIB)
#define SYSLOG_TAIL_BYTES 1024 /* by which the place is found again where an earlier read ended */
#define SYSLOG_WAIT_MSEC_MIN UINT64_C(1000)
#define SYSLOG_WAIT_MSEC_MAX UINT64_C(60000)
#define SYSLOG_WAIT_FACTOR 500 /* of the CPU time of a read, which then is 0.2 % of a core */

typedef struct Kmsg {
        const CollectRequest *request;
        CollectOut *out;
        int fd;
        uint64_t past_usec; /* since boot: lines until then are read for their facts; 0: none */
        bool is_stream; /* followed: what is written is not counted against max_bytes, but by the
                           minute */
        StrBuf pending; /* bytes that may continue */
        uint64_t last_seq;
        bool has_seq, overran;
        uint64_t window_usec; /* of the kernel's time: when the minute began that n_lines and
                                 n_errors count */
        uint64_t n_lines, n_errors, n_facts[N_FACTS], n_left_out;
} Kmsg;

/* As the kernel's log counts, since boot. */
static uint64_t now_usec(void) {
        struct timespec t = { 0 };
        (void)clock_gettime(CLOCK_MONOTONIC, &t); /* cannot fail */
        return (uint64_t)t.tv_sec * USEC_PER_SEC + (uint64_t)t.tv_nsec / 1000;
}

static int emit(Kmsg *k, StrBuf *b) {
        if (k->is_stream)
                k->out->used_bytes = 0;
        int r = collect_emit(k->out, b);
        return r == -EFBIG && k->is_stream ? 0 : r;
}

static int emit_notice(Kmsg *k, const char *about, const char *count_name, uint64_t count) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;

        json_out_object(&b, NULL);
        json_out_string(&b, "about", about);
        json_out_u64(&b, count_name, count);
        json_out_end_object(&b);
        return emit(k, &b);
}

/* Whoever has followed until now may stop. */
static int emit_following(Kmsg *k) {
        return emit_notice(k, "following", "since_usec", now_usec());
}

static void add_hw_error(StrBuf *b, const KmsgHwError *e) {
        static const char *const names[] = { "instance_id", "hostname",   "nd_id",
                                             "nc_id",       "serial_num", "action" };

        json_out_object(b, "hw_error");
        redact_member(b, "value", e->value, strlen(e->value));
        for (size_t i = 0; i < ELEMENTSOF(names); i++) {
                const char *value = kmsg_hw_field(e, names[i]);
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

static void start_minute(Kmsg *k, uint64_t usec) {
        if (usec >= k->window_usec && usec - k->window_usec < RATE_USEC)
                return;
        k->window_usec = usec;
        k->n_lines = k->n_errors = 0;
        memset(k->n_facts, 0, sizeof k->n_facts);
}

/* Reports of faults have an allowance of their own, so that no chatter of the driver crowds them
 * out; beyond it they count as lines.
 * @return whether the minute has room for another line; counts what it has not */
static bool may_write(Kmsg *k, uint64_t usec, bool is_error) {
        if (!k->is_stream)
                return true;
        start_minute(k, usec);
        if (is_error && k->n_errors++ < RATE_ERRORS_MAX)
                return true;
        if (k->n_lines++ < RATE_LINES_MAX)
                return true;
        k->n_left_out++;
        return false;
}

/* @param fact  N_FACTS: none */
static int emit_record(Kmsg *k, const KmsgRecord *r, const KmsgHwError *error, FactKind fact) {
        const bool is_fact = fact != N_FACTS;
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;

        json_out_object(&b, NULL);
        json_out_string(&b, "about", is_fact ? "fact" : error ? "hw_error" : "line");
        if (is_fact) {
                json_out_string(&b, "kind", fact_names[fact]);
                json_out_bool(&b, "past", r->usec < k->past_usec);
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
        return emit(k, &b);
}

/* The ring went round before we came: how many were lost is known by the next one's number. */
static int note_lost(Kmsg *k, uint64_t seq) {
        int r = 0;

        if (k->overran)
                r = emit_notice(k, "overrun", "lost_records",
                                k->has_seq && seq > k->last_seq ? seq - k->last_seq - 1 : 0);
        k->overran = false;
        k->has_seq = true;
        k->last_seq = seq;
        return r;
}

static FactKind find_fact(const Kmsg *k, const KmsgRecord *r) {
        return k->is_stream && r->facility == 0 && !r->is_continued && r->text.n > 0
                       ? fact_of(r->text.text, r->text.n)
                       : N_FACTS;
}

static int emit_left_out(Kmsg *k) {
        uint64_t n = k->n_left_out;
        k->n_left_out = 0;
        return n > 0 ? emit_notice(k, "left_out", "lines", n) : 0;
}

/* Each kind has its own allowance: who lets programs crash does not hide what the OOM killer did.
 */
static int keep_fact(Kmsg *k, const KmsgRecord *record, FactKind fact) {
        if (record->usec + PAST_USEC < k->past_usec)
                return 0;
        start_minute(k, record->usec);
        if (k->n_facts[fact]++ >= RATE_FACTS_MAX) {
                k->n_left_out++;
                return 0;
        }
        int r = emit_left_out(k);
        return r < 0 ? r : emit_record(k, record, NULL, fact);
}

/* Writes it when it concerns Neuron, or crashes. */
static int keep_record(Kmsg *k, const KmsgRecord *record) {
        KmsgHwError error;
        const char *text = record->text.text ? record->text.text : "";
        if (record->usec < k->request->since_boot_usec && (record->is_numbered || record->usec > 0))
                return 0;
        FactKind fact = find_fact(k, record);
        if (fact != N_FACTS)
                return keep_fact(k, record, fact);
        if (record->usec < k->past_usec)
                return 0;
        bool is_error = kmsg_find_hw_error(record->text.text, record->text.n, &error);
        if (!is_error && !kmsg_is_neuron(text, record->text.n))
                return 0;
        if (!may_write(k, record->usec, is_error))
                return 0;
        int r = emit_left_out(k);
        return r < 0 ? r : emit_record(k, record, is_error ? &error : NULL, N_FACTS);
}

static int handle_record(Kmsg *k, const char *data, size_t n) {
        _cleanup_(kmsg_record_done) KmsgRecord record = { 0 };
        int r = kmsg_parse(data, n, &record);

        if (r < 0)
                return r == -EBADMSG ? 0 : r; /* not a record: nothing to report */
        r = note_lost(k, record.seq);
        return r < 0 ? r : keep_record(k, &record);
}

/* Takes whole records of what has been read. @param all  nothing more comes now: the last one too,
 * when its line is ended */
static int handle_pending(Kmsg *k, bool all) {
        size_t at = 0;
        int r = 0;

        while (r == 0 && at < k->pending.n) {
                size_t n = kmsg_record_size(k->pending.text + at, k->pending.n - at);
                if (at + n == k->pending.n && !(all && k->pending.text[at + n - 1] == '\n') &&
                    n <= KMSG_RECORD_BYTES_MAX)
                        break;
                r = handle_record(k, k->pending.text + at, n);
                at += n;
        }
        if (at > 0) {
                k->pending.n -= at;
                memmove(k->pending.text, k->pending.text + at, k->pending.n + 1);
        }
        return r;
}

/* @return 1 something was read, 0 nothing is there now, -errno */
static int read_some(Kmsg *k) {
        char chunk[KMSG_RECORD_BYTES_MAX];
        ssize_t n = read(k->fd, chunk, sizeof chunk);

        if (n < 0 &&
            errno ==
                    EPIPE) { /* overwritten before it was read; the next read continues behind it */
                k->overran = true;
                return 1;
        }
        if (n < 0)
                return errno == EAGAIN || errno == EINTR ? handle_pending(k, true) : -errno;
        if (n == 0)
                return handle_pending(k, true);
        strbuf_add_n(&k->pending, chunk, (size_t)n);
        int r = strbuf_error(&k->pending);
        if (r == 0)
                r = handle_pending(k, false);
        return r < 0 ? r : 1;
}

/* What to do when it cannot be opened. @see syslog(2), kernel.dmesg_restrict: without CAP_SYSLOG
 * reading it is EPERM */
static const char *remedy_for(int error) {
        switch (error) {
        case -ENOENT:
        case -ENXIO:
        case -ENODEV:
                return "give the agent's container this device, or set snapshot.device_directory";
        case -EPERM:
        case -EACCES:
                return "start neuron-collectd-probe.socket, or give the agent CAP_SYSLOG";
        default:
                return "the kernel log ('dmesg') may have more";
        }
}

static int open_kmsg(const CollectRequest *request, CollectOut *out) {
        _cleanup_free_ char *path = path_join(request->device_directory, "kmsg");
        if (!path)
                return -ENOMEM;
        int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
        if (fd >= 0)
                return fd;
        int r = -errno;
        (void)snprintf(out->why, sizeof out->why, "cannot open '%s': %s; %s", path, strerror(-r),
                       remedy_for(r));
        return r;
}

/* ---- syslog(2) ---- */

/* `<6>[   12.345678] text`, or with printk.time=0 `<6>text`.  @return whether it is a line of it */
static bool syslog_parse(const char *line, size_t n, KmsgRecord *ret) {
        const char *at = line + 1, *end = line + n;
        uint64_t priority, sec, usec;
        if (n < 3 || *line != '<' || !parse_u64_prefix(&at, end, &priority) ||
            priority > UINT32_MAX || at >= end || *at++ != '>')
                return false;
        *ret = (KmsgRecord){ .priority = (unsigned)priority & 7,
                             .facility = (unsigned)priority >> 3 };
        const char *time = at;
        if (time < end && *time == '[')
                for (time++; time < end && *time == ' ';)
                        time++;
        if (time > at && parse_u64_prefix(&time, end, &sec) && end - time > 7 && *time == '.' &&
            time[7] == ']' && sec < UINT64_MAX / USEC_PER_SEC - 1) {
                time++;
                if (parse_u64_prefix(&time, end, &usec) && *time == ']') {
                        ret->usec = sec * USEC_PER_SEC + usec;
                        at = time + 1;
                        at += at < end && *at == ' ';
                }
        }
        strbuf_add_n(&ret->text, at, (size_t)(end - at));
        return true;
}

/* The kernel gives each line of a record the record's priority and time, so that a line in a user's
 * text looks like a record. Without a time any line may be one. */
static bool is_continued(const KmsgRecord *r, const KmsgRecord *before) {
        return r->usec == 0 || (r->usec == before->usec && r->priority == before->priority &&
                                r->facility == before->facility);
}

static int handle_syslog(Kmsg *k, const char *data, size_t n) {
        const char *end = data + n;
        KmsgRecord before = { 0 }; /* without its text */
        int r = 0;
        while (r == 0 && data < end) {
                const char *line_end = memchr(data, '\n', (size_t)(end - data));
                line_end = line_end ? line_end : end;
                _cleanup_(kmsg_record_done) KmsgRecord record = { 0 };
                if (syslog_parse(data, (size_t)(line_end - data), &record)) {
                        record.is_continued = is_continued(&record, &before);
                        r = strbuf_error(&record.text) < 0 ? -ENOMEM : keep_record(k, &record);
                        before = record;
                }
                data = line_end + 1;
        }
        return r;
}

/* The text is longer than the ring by what stands before each line. @param ret  the caller's
 * @return its length, -errno */
static int read_syslog(char **ret) {
        int size = klogctl(SYSLOG_SIZE_BUFFER, NULL, 0);
        if (size < 0)
                return -errno;
        size = (int)MIN(2 * (uint64_t)size, SYSLOG_BYTES_MAX);
        char *text = malloc((size_t)size + 1);
        if (!text)
                return -ENOMEM;
        int n = klogctl(SYSLOG_READ_ALL, text, size);
        if (n < 0) {
                int r = -errno;
                free(text);
                return r;
        }
        *ret = text;
        return n;
}

/* A container has a /dev/kmsg only if it was given the device, and then its device cgroup may still
 * refuse it. A directory of the operator's is not this machine's. */
static bool has_syslog(const CollectRequest *request, int error) {
        return (error == -ENOENT || error == -EPERM || error == -EACCES) &&
               strcmp(request->device_directory, "/dev") == 0;
}

/* @param error  of /dev/kmsg, which is returned when syslog(2) is refused, too */
static int collect_syslog(Kmsg *k, int error) {
        _cleanup_free_ char *text = NULL;
        int n = read_syslog(&text);
        if (n < 0)
                return error;
        *k->out->why = '\0';
        return handle_syslog(k, text, (size_t)n);
}

/* @return where what is new begins: behind the end of what was read before */
static size_t find_new(const char *text, size_t n, const char *tail, size_t n_tail) {
        for (size_t at = n; n_tail > 0 && at >= n_tail; at--)
                if (memcmp(text + at - n_tail, tail, n_tail) == 0)
                        return at;
        return 0;
}

/* The kernel formats its whole ring for each read. */
static int syslog_wait_msec(uint64_t cpu_usec) {
        uint64_t msec = cpu_usec * SYSLOG_WAIT_FACTOR / USEC_PER_MSEC;
        return (int)MIN(MAX(msec, SYSLOG_WAIT_MSEC_MIN), SYSLOG_WAIT_MSEC_MAX);
}

/* Nothing tells when there is more: it is read again every second, or as its cost permits. */
static int follow_syslog(Kmsg *k, int error) {
        char tail[SYSLOG_TAIL_BYTES];
        size_t n_tail = 0;
        struct pollfd reader = { .fd = k->out->fd };
        for (bool is_first = true;; is_first = false) {
                _cleanup_free_ char *text = NULL;
                const clock_t begin = clock(); /* this process's CPU time in microseconds */
                int n = read_syslog(&text);
                if (n < 0)
                        return is_first ? error : n;
                *k->out->why = '\0';
                size_t at = find_new(text, (size_t)n, tail, n_tail);
                int r = 0;
                if (at == 0 && n_tail > 0)
                        r = emit_notice(k, "overrun", "lost_records", 0);
                k->past_usec = is_first ? now_usec() : 0;
                if (r == 0)
                        r = handle_syslog(k, text + at, (size_t)n - at);
                if (r == 0 && is_first)
                        r = emit_following(k);
                if (r < 0)
                        return r;
                n_tail = MIN((size_t)n, sizeof tail);
                memcpy(tail, text + (size_t)n - n_tail, n_tail);
                if (poll(&reader, 1, syslog_wait_msec((uint64_t)(clock() - begin))) > 0 &&
                    reader.revents & (POLLERR | POLLHUP | POLLNVAL))
                        return 0; /* nobody reads any more */
        }
}

/* ---- both ---- */

int collect_kmsg(const CollectRequest *request, CollectOut *out) {
        _cleanup_close_ int fd = open_kmsg(request, out);
        Kmsg k = { .request = request, .out = out, .fd = fd };
        int r;

        if (fd < 0)
                r = has_syslog(request, fd) ? collect_syslog(&k, fd) : fd;
        else
                do
                        r = read_some(&k);
                while (r > 0);
        strbuf_done(&k.pending);
        return r == -EFBIG ? 0 : r; /* the section is labelled as cut */
}

/* Waits for more, or for the end of who reads us. @return 1 more, 0 nobody reads any more, -errno
 */
static int wait_for_more(const Kmsg *k, bool is_at_end) {
        struct pollfd polls[] = { { .fd = k->out->fd },
                                  { .fd = is_at_end ? -1 : k->fd, .events = POLLIN } };

        /* A file at its end and a FIFO without a writer are always readable: examined again after a
         * while. */
        if (poll(polls, ELEMENTSOF(polls), is_at_end ? IDLE_MSEC : -1) < 0)
                return errno == EINTR ? 1 : -errno;
        return polls[0].revents & (POLLERR | POLLHUP | POLLNVAL) ? 0 : 1;
}

int follow_kmsg(const CollectRequest *request, CollectOut *out) {
        _cleanup_close_ int fd = open_kmsg(request, out);
        Kmsg k = { .request = request, .out = out, .fd = fd, .is_stream = true };
        struct stat st;
        int r;

        if (fd < 0)
                return has_syslog(request, fd) ? follow_syslog(&k, fd) : fd;
        if (fstat(fd, &st) < 0)
                return -errno;
        if (S_ISCHR(st.st_mode))
                k.past_usec = now_usec();
        else
                (void)lseek(fd, 0, SEEK_END); /* a FIFO has no end to go to */
        for (bool is_first = true;; is_first = false) {
                do
                        r = read_some(&k);
                while (r > 0);
                k.past_usec = 0;
                if (r == 0 && is_first)
                        r = emit_following(&k);
                if (r == 0)
                        r = wait_for_more(&k, !S_ISCHR(st.st_mode));
                if (r <= 0)
                        break;
        }
        strbuf_done(&k.pending);
        return r;
}
