/* Writes a note as JSON, with secrets removed. The hook is linked with no library, so this file
 * uses lib/base/json_out alone; reading a note, with jansson, is left to note_parse.c. A note that
 * is too large loses its least important parts first: environment, unknown flags, long values. */
#include "lib/neuron/note.h"

#include <errno.h>
#include <string.h>

#include "lib/base/json_out.h"
#include "lib/base/redact.h"
#include "lib/neuron/nrt_status.h"

enum {
        VALUE_MAX_SHORT = 256, /* a flag's value when space is short */
        NAME_MAX_BYTES = 128,  /* an unknown flag's name */
};

/* What a note loses, step by step, until it fits */
typedef enum Cut { CUT_NOTHING, CUT_ENVIRONMENT, CUT_EXTRA, CUT_VALUES, N_CUTS } Cut;

typedef struct NoteWriter {
        StrBuf *b;
        StrBuf text; /* one value without its secrets */
        size_t value_max;
        bool is_cut;
} NoteWriter;

const NoteArgument note_arguments[N_NOTE_ARGUMENTS] = {
        { "neff_name", offsetof(HookNote, neff_name), false },
        { "neff_uuid", offsetof(HookNote, neff_uuid), false },
        { "date_time", offsetof(HookNote, date_time), false },
        { "pid", offsetof(HookNote, pid), false },
        { "tid", offsetof(HookNote, tid), false },
        { "log_id", offsetof(HookNote, log_id), false },
        { "instance_id", offsetof(HookNote, instance_id), false },
        { "cluster_id", offsetof(HookNote, cluster_id), false },
        { "error_location", offsetof(HookNote, error_location), false },
        { "error_code", offsetof(HookNote, error_code), false },
        { "local_output_dir", offsetof(HookNote, local_output_dir), true },
        { "s3_output_prefix", offsetof(HookNote, s3_output_prefix), true },
};

static void free_pairs(NoteFlag *pairs, size_t n) {
        for (size_t i = 0; i < n; i++) {
                free(pairs[i].name);
                free(pairs[i].value);
        }
        free(pairs);
}

void hook_note_done(HookNote *n) {
        for (size_t i = 0; i < N_NOTE_ARGUMENTS; i++)
                free(*note_argument(n, &note_arguments[i]));
        free(n->record_name);
        free(n->snapshot_name);
        free_pairs(n->extra, n->n_extra);
        for (char **e = n->environment; e && *e; e++)
                free(*e);
        free(n->environment);
        *n = (HookNote){ 0 };
}

/* ---- one value ---- */

static const char *clean(NoteWriter *w, const char *value) {
        size_t n = strlen(value);
        if (n > w->value_max) {
                n = w->value_max;
                w->is_cut = true;
        }
        strbuf_clear(&w->text);
        strbuf_add(&w->text, "");
        redact_text(&w->text, value, n);
        if (strbuf_error(&w->text) < 0) {
                w->b->failed = true;
                return "";
        }
        return w->text.text;
}

static void add_value(NoteWriter *w, const char *key, const char *value) {
        if (value)
                json_out_string(w->b, key, clean(w, value));
}

/* A path that is not UTF-8 is written with `\xNN`, and its backslashes too, so that the reader gets
 * the same bytes. */
static void add_path(NoteWriter *w, const char *key, const char *value) {
        if (value)
                json_out_path(w->b, key, clean(w, value));
}

/* ---- its parts ---- */

static void add_arguments(NoteWriter *w, const HookNote *n) {
        json_out_object(w->b, "arguments");
        for (size_t i = 0; i < N_NOTE_ARGUMENTS; i++) {
                const NoteArgument *a = &note_arguments[i];
                (a->is_path ? add_path : add_value)(w, a->name, *note_argument((HookNote *)n, a));
        }
        json_out_end_object(w->b);
        if (!n->has_error_number)
                return;
        json_out_i64(w->b, "error_number", n->error_number);
        add_value(w, "error_name", nrt_status_name(n->error_number));
}

static void add_extra(NoteWriter *w, const HookNote *n) {
        size_t n_shown = MIN(n->n_extra, (size_t)NOTE_EXTRA_MAX);
        w->is_cut = w->is_cut || n_shown < n->n_extra;
        if (n_shown == 0)
                return;
        json_out_array(w->b, "unknown");
        for (size_t i = 0; i < n_shown; i++) {
                const NoteFlag *p = &n->extra[i];
                char name[NAME_MAX_BYTES + 1] = "";
                size_t k = strnlen(p->name, NAME_MAX_BYTES);
                memcpy(name, p->name, k);
                w->is_cut = w->is_cut || p->name[k] != '\0';
                json_out_object(w->b, NULL);
                add_value(w, "flag", name);
                if (p->value && redact_name_is_secret(p->name))
                        json_out_string(w->b, "value", "[redacted]");
                else
                        add_value(w, "value", p->value);
                json_out_end_object(w->b);
        }
        json_out_end_array(w->b);
}

/* An environment may hold a name twice; getenv(3) finds the first. */
static bool is_first(char *const *environment, size_t i, size_t n_name) {
        for (size_t k = 0; k < i; k++)
                if (strncmp(environment[k], environment[i], n_name + 1) == 0)
                        return false;
        return true;
}

static void add_environment(NoteWriter *w, const HookNote *n, char *const *patterns) {
        size_t n_shown = 0;
        json_out_object(w->b, "environment");
        for (size_t i = 0; n->environment && n->environment[i]; i++) {
                char name[ENVIRONMENT_NAME_MAX + 1];
                const char *variable = n->environment[i];
                size_t n_name = strcspn(variable, "=");
                if (variable[n_name] != '=' || n_name >= sizeof name ||
                    !is_first(n->environment, i, n_name))
                        continue;
                memcpy(name, variable, n_name);
                name[n_name] = '\0';
                if (!environment_is_allowed(patterns, name))
                        continue;
                if (n_shown++ == NOTE_VARIABLES_MAX) {
                        w->is_cut = true;
                        break;
                }
                add_value(w, name, variable + n_name + 1);
        }
        json_out_end_object(w->b);
}

static void add_job(NoteWriter *w, const JobIdentity *job) {
        json_out_object(w->b, "job");
        add_value(w, "source", job->source);
        for (size_t i = 0; i < N_JOB_MEMBERS; i++) {
                const JobMember *m = &job_members[i];
                const void *value = job_member(job, m);
                if (job_member_is_key(m) && *(const char *)value != '\0')
                        json_out_string(w->b, m->name, value);
                else if (m->size > 0 && *(const char *)value != '\0')
                        add_value(w, m->name, value);
                else if (m->size == 0 && *(const int64_t *)value >= 0)
                        json_out_i64(w->b, m->name, *(const int64_t *)value);
        }
        json_out_end_object(w->b);
}

static void add_hook(NoteWriter *w, const HookNote *n) {
        json_out_object(w->b, "hook");
        json_out_u64(w->b, "pid", n->hook_pid);
        json_out_u64(w->b, "ppid", n->hook_ppid);
        json_out_u64(w->b, "pid_namespace", n->pid_namespace);
        json_out_u64(w->b, "mount_namespace", n->mount_namespace);
        json_out_end_object(w->b);
        json_out_object(w->b, "files");
        add_value(w, "record", n->record_name);
        add_value(w, "snapshot", n->snapshot_name);
        json_out_end_object(w->b);
}

static int compose(const HookNote *n, char *const *patterns, Cut cut, StrBuf *ret) {
        NoteWriter w = { .b = ret,
                         .value_max = cut >= CUT_VALUES ? VALUE_MAX_SHORT : NOTE_VALUE_MAX,
                         .is_cut = cut > CUT_NOTHING };
        strbuf_clear(ret);
        json_out_object(ret, NULL);
        json_out_string(ret, "schema", NOTE_SCHEMA);
        json_out_string(ret, "id", n->id);
        json_out_u64(ret, "written_usec", n->written_usec);
        add_arguments(&w, n);
        add_job(&w, &n->job);
        add_hook(&w, n);
        if (cut < CUT_EXTRA)
                add_extra(&w, n);
        if (cut < CUT_ENVIRONMENT)
                add_environment(&w, n, patterns);
        if (w.is_cut)
                json_out_bool(ret, "cut", true);
        json_out_end_object(ret);
        strbuf_done(&w.text);
        return strbuf_error(ret);
}

int hook_note_format(const HookNote *n, char *const *patterns, StrBuf *ret) {
        for (Cut cut = CUT_NOTHING; cut < N_CUTS; cut++) {
                int r = compose(n, patterns, cut, ret);
                if (r < 0)
                        return r;
                if (ret->n <= NOTE_MAX_BYTES)
                        return 0;
        }
        return -EFBIG;
}
