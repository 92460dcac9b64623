/* The log. A line is made in one buffer on the stack and leaves in one write(2), so threads need no
 * lock and lines never mix. Its text may come from a hostile file name: control characters are
 * never sent. */
#include "lib/base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>

#define SD_JOURNAL_SUPPRESS_LOCATION /* it would name this file for every line */
#include <systemd/sd-journal.h>

#include "lib/base/clock.h"
#include "lib/base/parse.h"

enum {
        LINE_SIZE = PIPE_BUF, /* a longer write to a pipe may be mixed with another process's */
        MESSAGE_SIZE = 3072,  /* of a caller's message; the rest is cut and marked */
        DUMP_ID_SIZE = 256,   /* a bundle's id is far shorter; it is a file's name */
        TAIL_SIZE = 2,        /* kept free for what closes a line */
};

/* Where sd_journal_sendv sends to; libsystemd does not export the name. */
#define JOURNAL_SOCKET "/run/systemd/journal/socket"

static _Atomic LogFormat log_format = LOG_FORMAT_TEXT;
static atomic_int log_max_level = LOG_INFO;

static const char *const level_words[] = {
        [LOG_EMERG] = "emergency", [LOG_ALERT] = "alert",     [LOG_CRIT] = "critical",
        [LOG_ERR] = "error",       [LOG_WARNING] = "warning", [LOG_NOTICE] = "notice",
        [LOG_INFO] = "info",       [LOG_DEBUG] = "debug",
};

/* JOURNAL_STREAM=DEVICE:INODE says that stderr was the journal's when systemd started us; fstat
 * whether it still is. */
static bool stderr_is_the_journal(void) {
        const char *value = getenv("JOURNAL_STREAM");
        char here[64];
        struct stat st;

        if (!value || fstat(STDERR_FILENO, &st) < 0)
                return false;
        (void)snprintf(here, sizeof here, "%ju:%ju", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino);
        return strcmp(value, here) == 0;
}

void log_setup(LogFormat format, int max_level) {
        if (format == LOG_FORMAT_JOURNAL && access(JOURNAL_SOCKET, F_OK) < 0)
                format = LOG_FORMAT_TEXT; /* sd_journal_sendv would say 0 and drop every line */
        if (format == LOG_FORMAT_AUTO)
                format = stderr_is_the_journal() ? LOG_FORMAT_JOURNAL : LOG_FORMAT_TEXT;
        atomic_store(&log_format, format);
        atomic_store(&log_max_level, max_level);
}

bool log_enabled(int level) {
        return level <= atomic_load_explicit(&log_max_level, memory_order_relaxed);
}

typedef struct LogLine {
        char text[LINE_SIZE];
        size_t n;
} LogLine;

static void line_add_n(LogLine *l, const char *s, size_t n) {
        if (n > sizeof l->text - TAIL_SIZE - l->n)
                return; /* the sizes above suffice for all that is added; this is a safeguard */
        memcpy(l->text + l->n, s, n);
        l->n += n;
}

static void line_add(LogLine *l, const char *s) {
        line_add_n(l, s, strlen(s));
}

/* Adds text from outside, character by character, up to max_bytes of the line. */
static void line_add_escaped(LogLine *l, const char *s, size_t max_bytes, bool json) {
        static const char more[] = "…";
        size_t n = strlen(s),
               end = MIN(l->n + max_bytes, sizeof l->text - TAIL_SIZE) - strlen(more);

        while (n > 0) {
                char spelled[UTF8_ESCAPE_SIZE], quoted[2 * UTF8_ESCAPE_SIZE];
                size_t used = utf8_escape(s, n, spelled), n_quoted = 0;

                for (const char *c = spelled; *c != '\0'; c++) {
                        if (json && (*c == '"' || *c == '\\'))
                                quoted[n_quoted++] = '\\';
                        quoted[n_quoted++] = *c;
                }
                if (l->n + n_quoted > end) {
                        line_add(l, more);
                        return;
                }
                line_add_n(l, quoted, n_quoted);
                s += used;
                n -= used;
        }
}

typedef struct Entry {
        int level;
        int error;           /* 0 or positive */
        const char *dump_id; /* NULL = none */
        const char *message;
        const char *reason; /* the error as text, NULL = none */
} Entry;

/* @param json  then the id of the dump is a member of its own */
static void line_add_message(LogLine *l, const Entry *e, bool json) {
        if (e->dump_id && !json) {
                line_add_escaped(l, e->dump_id, DUMP_ID_SIZE, false);
                line_add(l, ": ");
        }
        line_add_escaped(l, e->message, MESSAGE_SIZE, json);
        if (e->reason) {
                line_add(l, ": ");
                line_add_escaped(l, e->reason, DUMP_ID_SIZE, json);
        }
}

static void line_write(LogLine *l) {
        l->text[l->n++] = '\n';
        if (write(STDERR_FILENO, l->text, l->n) < 0)
                return; /* the error has nowhere to go */
}

static void log_text(const Entry *e) {
        LogLine l = { .n = 0 };

        line_add(&l, level_words[e->level]);
        line_add(&l, ": ");
        line_add_message(&l, e, false);
        line_write(&l);
}

static void log_json(const Entry *e) {
        char time_text[CLOCK_ISO_SIZE], number[32];
        Clock *clock = clock_system();
        LogLine l = { .n = 0 };

        line_add(&l, "{\"time\":\"");
        line_add(&l, clock_format_iso(time_text, clock->realtime_usec(clock)));
        line_add(&l, "\",\"level\":\"");
        line_add(&l, level_words[e->level]);
        if (e->dump_id) {
                line_add(&l, "\",\"dump_id\":\"");
                line_add_escaped(&l, e->dump_id, DUMP_ID_SIZE, true);
        }
        line_add(&l, "\",\"message\":\"");
        line_add_message(&l, e, true);
        line_add(&l, "\"");
        if (e->error > 0) {
                (void)snprintf(number, sizeof number, ",\"errno\":%d", e->error);
                line_add(&l, number);
        }
        line_add(&l, "}");
        line_write(&l);
}

/* @return whether the journal accepted it */
static bool log_journal(const Entry *e) {
        LogLine message = { .n = 0 };
        char priority[32], number[32], dump_id[sizeof "DUMP_ID=" + DUMP_ID_SIZE];
        struct iovec fields[4];
        int n = 0;

        line_add(&message, "MESSAGE=");
        line_add_message(&message, e, false);
        fields[n++] = (struct iovec){ message.text, message.n };
        (void)snprintf(priority, sizeof priority, "PRIORITY=%d", e->level);
        fields[n++] = (struct iovec){ priority, strlen(priority) };
        if (e->dump_id) {
                (void)snprintf(dump_id, sizeof dump_id, "DUMP_ID=%s", e->dump_id);
                fields[n++] = (struct iovec){ dump_id, strlen(dump_id) };
        }
        if (e->error > 0) {
                (void)snprintf(number, sizeof number, "ERRNO=%d", e->error);
                fields[n++] = (struct iovec){ number, strlen(number) };
        }
        return sd_journal_sendv(fields, n) >= 0;
}

void log_write(int level, int error, const char *dump_id, const char *fmt, ...) {
        int saved_errno = errno;
        char message[MESSAGE_SIZE], reason[DUMP_ID_SIZE];
        Entry e = {
                .level = MAX(MIN(level, LOG_DEBUG), LOG_EMERG),
                .error = error < 0 ? -error : 0,
                .dump_id = dump_id,
                .message = message,
        };
        va_list ap;

        if (!log_enabled(level))
                return;
        va_start(ap, fmt);
        if (vsnprintf(message, sizeof message, fmt, ap) < 0)
                message[0] = '\0';
        va_end(ap);
        if (error < 0)
                e.reason = strerror_r(e.error, reason, sizeof reason);
        switch (atomic_load(&log_format)) {
        case LOG_FORMAT_JSON:
                log_json(&e);
                break;
        case LOG_FORMAT_JOURNAL:
                if (!log_journal(&e))
                        log_text(&e); /* better there than nowhere */
                break;
        default:
                log_text(&e);
                break;
        }
        errno = saved_errno;
}
