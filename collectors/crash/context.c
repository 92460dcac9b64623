/* What the caller knows beside the core, which it passes as JSON: lines of the kernel log, how
 * often this crash was seen, and the job. The child parses it, and members of another form are left
 * out. The caller is the agent or the command line, but what it passes comes from notes and logs,
 * and so is hostile: texts are escaped where they are written. Where it comes from is decided by
 * the caller (crash.h). */
#include "collectors/crash/context.h"

#include <string.h>

#include "lib/base/json_out.h"
#include "lib/base/json_text.h"
#include "lib/base/parse.h"

enum { DEPTH_MAX = 8, JOB_MEMBERS_MAX = 64 };

static const char *const kinds[] = { "segfault", "oom", "mce", "aer", "efa", "other" };

static const char *string_of(const json_t *object, const char *key) {
        const char *s = json_string_value(json_object_get(object, key));
        return s ? s : "";
}

static uint64_t count_of(const json_t *object, const char *key) {
        json_int_t v = json_integer_value(json_object_get(object, key));
        return v > 0 ? (uint64_t)v : 0;
}

static void read_lines(Context *c) {
        const json_t *all = json_object_get(c->document, "kernel");
        size_t n = MIN(json_array_size(all), (size_t)CONTEXT_LINES_MAX);
        for (size_t i = 0; i < n; i++) {
                const json_t *line = json_array_get(all, i);
                int kind = parse_word(string_of(line, "kind"), kinds, ELEMENTSOF(kinds));
                c->lines[c->n_lines++] =
                        (ContextLine){ .time = string_of(line, "time"),
                                       .text = string_of(line, "text"),
                                       .kind = kind < 0 ? CONTEXT_OTHER : (ContextKind)kind };
        }
}

int context_parse(Context *ret, const char *text, size_t n) {
        *ret = (Context){ 0 };
        if (n == 0)
                return 0;
        if (parse_json_exceeds_depth(text, n, DEPTH_MAX))
                return CONTEXT_E_INVALID;
        ret->document = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
        if (!json_is_object(ret->document))
                return CONTEXT_E_INVALID;
        ret->pid = count_of(ret->document, "pid");
        read_lines(ret);
        return 0;
}

void context_done(Context *c) {
        json_decref(c->document);
        *c = (Context){ 0 };
}

uint64_t context_seen(const Context *c, const char *signature, const char **ret_since) {
        const json_t *seen = json_object_get(json_object_get(c->document, "signatures"), signature);
        *ret_since = string_of(seen, "since");
        return count_of(seen, "count");
}

/* ---- writing ---- */

static const json_t *job_of(const Context *c) {
        const json_t *job = json_object_get(c->document, "job");
        return json_object_size(job) > 0 ? job : NULL;
}

void context_write_json(const Context *c, StrBuf *b) {
        json_out_array(b, "kernel");
        for (size_t i = 0; i < c->n_lines; i++) {
                json_out_object(b, NULL);
                json_out_string(b, "time", c->lines[i].time[0] ? c->lines[i].time : NULL);
                json_out_string(b, "kind", kinds[c->lines[i].kind]);
                json_out_string(b, "text", c->lines[i].text);
                json_out_end_object(b);
        }
        json_out_end_array(b);
        _cleanup_free_ char *job = job_of(c) ? json_text(job_of(c), JSON_COMPACT) : NULL;
        if (job)
                json_out_raw(b, "job", job);
        else
                json_out_null(b, "job");
}

void context_write_kernel(const Context *c, StrBuf *b) {
        for (size_t i = 0; i < c->n_lines; i++) {
                strbuf_add(b, "- kernel: ");
                strbuf_add_code(b, c->lines[i].time);
                strbuf_add(b, c->lines[i].time[0] ? " " : "");
                strbuf_add_code(b, c->lines[i].text);
                strbuf_add(b, "\n");
        }
}

void context_write_job(const Context *c, StrBuf *b) {
        json_t *job = (json_t *)job_of(c), *value;
        const char *key;
        size_t n = 0;
        if (!job)
                return;
        strbuf_add(b, "| Job | |\n|---|---|\n");
        json_object_foreach(job, key, value) {
                if (n++ == JOB_MEMBERS_MAX)
                        break;
                _cleanup_free_ char *other = json_text(value, JSON_COMPACT | JSON_ENCODE_ANY);
                const char *text = json_is_string(value) ? json_string_value(value) : other;
                strbuf_add(b, "| ");
                strbuf_add_code(b, key);
                strbuf_add(b, " | ");
                strbuf_add_code(b, text ? text : "");
                strbuf_add(b, " |\n");
        }
        strbuf_add(b, "\n");
}
