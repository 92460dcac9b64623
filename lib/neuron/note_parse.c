/* Reads an untrusted note. Unknown members are ignored, so that newer hooks work; a known member
 * that has the wrong type or exceeds its bound makes the note refused. Whether a user may send the
 * note, and what follows from it, is left to agent/hooknotes. */
#include <errno.h>
#include <jansson.h>
#include <string.h>

#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/base/redact.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/note.h"
#include "lib/neuron/nrt_status.h"

enum {
        DEPTH_MAX = 8,
        TEXT_MAX = 4 * NOTE_VALUE_MAX, /* a byte that is no UTF-8 needs four */
        FILE_NAME_MAX = 255,
};

typedef struct NoteReader {
        const char *why; /* the first fault; NULL */
        bool no_memory;
        StrBuf text;
        bool is_clean; /* hook_note_format() has removed the secrets already */
} NoteReader;

static void refuse(NoteReader *p, const char *why) {
        if (!p->why)
                p->why = why;
}

/* ---- values ---- */

/* @return a copy without secrets, the caller's; NULL: no memory, or n bytes are too many */
static char *copy_redacted(NoteReader *p, const char *s, size_t n) {
        if (n > TEXT_MAX) {
                refuse(p, "a value is too long");
                return NULL;
        }
        strbuf_clear(&p->text);
        strbuf_add(&p->text, "");
        if (p->is_clean)
                strbuf_add_n(&p->text, s, n);
        else
                redact_text(&p->text, s, n);
        char *copy = strbuf_error(&p->text) < 0 ? NULL : strdup(p->text.text);
        p->no_memory = p->no_memory || !copy;
        return copy;
}

/* @return a member that is a string; NULL: it is missing, null, or refused */
static const char *read_string(NoteReader *p, json_t *object, const char *key) {
        json_t *v = json_object_get(object, key);
        if (!v || json_is_null(v))
                return NULL;
        if (!json_is_string(v)) {
                refuse(p, "a value that must be a string is not one");
                return NULL;
        }
        return json_string_value(v);
}

static char *read_text(NoteReader *p, json_t *object, const char *key) {
        const char *s = read_string(p, object, key);
        return s ? copy_redacted(p, s, strlen(s)) : NULL;
}

static char *read_path(NoteReader *p, json_t *object, const char *key) {
        _cleanup_free_ char *spelled = read_text(p, object, key);
        char *path = NULL;
        if (!spelled)
                return NULL;
        int r = path_unescape(spelled, &path);
        if (r == -ENOMEM)
                p->no_memory = true;
        else if (r < 0)
                refuse(p, "invalid escape in a path: a backslash is written \\x5c");
        return path;
}

/* @return a number ≥ 0; `otherwise` when it is missing or refused */
static int64_t read_integer(NoteReader *p, json_t *object, const char *key, int64_t otherwise) {
        json_t *v = json_object_get(object, key);
        if (!v || json_is_null(v))
                return otherwise;
        if (!json_is_integer(v) || json_integer_value(v) < 0) {
                refuse(p, "a value that must be a number of 0 or more is not one");
                return otherwise;
        }
        return json_integer_value(v);
}

static json_t *read_object(NoteReader *p, json_t *root, const char *key) {
        json_t *v = json_object_get(root, key);
        if (v && !json_is_object(v))
                refuse(p, "a member that must be an object is not one");
        return json_is_object(v) ? v : NULL; /* jansson's readers take NULL */
}

/* Reads a text of printable ASCII without blanks, or a key, whose characters are fewer. One that is
 * too long is refused and not cut, since a part of a key would name another job. */
static void read_word(NoteReader *p, json_t *object, const JobMember *m, char *buf) {
        _cleanup_free_ char *clean = NULL;
        const char *s = job_member_is_key(m) ? read_string(p, object, m->name)
                                             : (clean = read_text(p, object, m->name));
        size_t n = s ? strlen(s) : 0;
        if (n >= m->size) {
                refuse(p, "a word of the job is too long");
                return;
        }
        for (size_t i = 0; i < n; i++)
                if (job_member_is_key(m) ? !job_key_may_have(s[i]) : s[i] <= ' ' || s[i] >= 0x7f) {
                        refuse(p, "a word of the job has characters that it may not have");
                        return;
                }
        memcpy(buf, s ? s : "", n + 1);
}

/* ---- parts ---- */

static void read_head(NoteReader *p, json_t *root, HookNote *n) {
        const char *schema = read_string(p, root, "schema"), *id = read_string(p, root, "id");
        if (!schema || strcmp(schema, NOTE_SCHEMA) != 0)
                refuse(p, "its schema is not " NOTE_SCHEMA);
        if (!id || strlen(id) != NOTE_ID_SIZE - 1 ||
            strspn(id, "0123456789abcdef") != NOTE_ID_SIZE - 1)
                refuse(p, "its id is not 32 lower-case hex digits");
        else
                memcpy(n->id, id, NOTE_ID_SIZE);
        n->written_usec = (uint64_t)read_integer(p, root, "written_usec", 0);
}

static void read_arguments(NoteReader *p, json_t *a, HookNote *n) {
        for (size_t i = 0; i < N_NOTE_ARGUMENTS; i++) {
                const NoteArgument *argument = &note_arguments[i];
                *note_argument(n, argument) =
                        (argument->is_path ? read_path : read_text)(p, a, argument->name);
        }
        /* The note's own error_number is not read: it could contradict the code. */
        n->has_error_number = n->error_code && nrt_status_parse(n->error_code, &n->error_number);
}

static void read_extra(NoteReader *p, json_t *root, HookNote *n) {
        json_t *list = json_object_get(root, "unknown");
        if (!list)
                return;
        size_t n_pairs = json_array_size(list);
        if (!json_is_array(list) || n_pairs > NOTE_EXTRA_MAX) {
                refuse(p, "unknown is not a list of at most 64 flags");
                return;
        }
        n->extra = calloc(n_pairs + 1, sizeof *n->extra);
        if (!n->extra) {
                p->no_memory = true;
                return;
        }
        for (size_t i = 0; i < n_pairs; i++) {
                json_t *pair = json_array_get(list, i);
                NoteFlag *to = &n->extra[n->n_extra++];
                to->name = read_text(p, pair, "flag");
                to->value = read_text(p, pair, "value");
                if (!to->name) {
                        refuse(p, "an unknown flag has no name");
                        to->name = strdup(""); /* every flag has a name, also in a refused note */
                        p->no_memory = p->no_memory || !to->name;
                }
        }
}

static void read_environment(NoteReader *p, json_t *root, char *const *patterns, HookNote *n) {
        json_t *object = read_object(p, root, "environment"), *value;
        const char *name;
        size_t n_kept = 0;
        if (json_object_size(object) > NOTE_VARIABLES_MAX) {
                refuse(p, "it has too many variables");
                return;
        }
        n->environment = calloc(json_object_size(object) + 1, sizeof *n->environment);
        if (!n->environment) {
                p->no_memory = true;
                return;
        }
        json_object_foreach(object, name, value) {
                if (!environment_is_allowed(patterns, name))
                        continue; /* the hook may allow more than this agent does */
                _cleanup_free_ char *text = read_text(p, object, name);
                if (!text)
                        continue;
                char *variable = strbuf_format("%s=%s", name, text);
                if (!variable) {
                        p->no_memory = true;
                        return;
                }
                n->environment[n_kept++] = variable;
        }
}

static void read_job(NoteReader *p, json_t *o, JobIdentity *job) {
        const char *source = read_string(p, o, "source");
        job->source = job_source_find(source);
        if (source && !job->source)
                refuse(p, "unknown source of its job");
        for (size_t i = 0; i < N_JOB_MEMBERS; i++) {
                const JobMember *m = &job_members[i];
                if (m->size > 0)
                        read_word(p, o, m, job_member(job, m));
                else
                        *(int64_t *)job_member(job, m) = read_integer(p, o, m->name, -1);
        }
}

/* Reads the name of a file that will be opened in a directory: one component, no hidden file. */
static char *read_file_name(NoteReader *p, json_t *object, const char *key) {
        char *name = read_text(p, object, key);
        if (name && (name[0] == '\0' || name[0] == '.' || strchr(name, '/') ||
                     strlen(name) > FILE_NAME_MAX))
                refuse(p, "the name of a file that it announces has a slash or is a dot name");
        return name;
}

static void read_note(NoteReader *p, json_t *root, char *const *patterns, HookNote *n) {
        json_t *hook = read_object(p, root, "hook"), *files = read_object(p, root, "files");
        read_head(p, root, n);
        read_arguments(p, read_object(p, root, "arguments"), n);
        read_extra(p, root, n);
        read_environment(p, root, patterns, n);
        read_job(p, read_object(p, root, "job"), &n->job);
        n->hook_pid = (uint64_t)read_integer(p, hook, "pid", 0);
        n->hook_ppid = (uint64_t)read_integer(p, hook, "ppid", 0);
        n->pid_namespace = (uint64_t)read_integer(p, hook, "pid_namespace", 0);
        n->mount_namespace = (uint64_t)read_integer(p, hook, "mount_namespace", 0);
        n->record_name = read_file_name(p, files, "record");
        n->snapshot_name = read_file_name(p, files, "snapshot");
}

static int parse(const void *data, size_t n, char *const *patterns, bool is_clean, HookNote *ret,
                 const char **ret_why) {
        _cleanup_(hook_note_done) HookNote note = { 0 };
        NoteReader p = { .is_clean = is_clean };
        json_error_t error;
        if (n > NOTE_MAX_BYTES || parse_json_exceeds_depth(data, n, DEPTH_MAX)) {
                *ret_why =
                        n > NOTE_MAX_BYTES ? "it is larger than 64 KiB" : "it is nested too deep";
                return NOTE_E_REFUSED;
        }
        json_t *root = json_loadb(data, n, JSON_REJECT_DUPLICATES, &error);
        if (!json_is_object(root)) {
                bool no_memory = !root && json_error_code(&error) == json_error_out_of_memory;
                json_decref(root);
                *ret_why = "it is not a JSON object, or has a duplicate name";
                return no_memory ? -ENOMEM : NOTE_E_REFUSED;
        }
        read_note(&p, root, patterns, &note);
        json_decref(root);
        strbuf_done(&p.text);
        if (p.no_memory)
                return -ENOMEM;
        if (p.why) {
                *ret_why = p.why;
                return NOTE_E_REFUSED;
        }
        *ret = note;
        note = (HookNote){ 0 };
        return 0;
}

int hook_note_parse(const void *data, size_t n, char *const *patterns, HookNote *ret,
                    const char **ret_why) {
        return parse(data, n, patterns, false, ret, ret_why);
}

int hook_note_parse_stored(const char *document, HookNote *ret) {
        const char *why;
        return parse(document, strlen(document), NULL, true, ret, &why);
}
