/* The manifest: written in pieces (docs/BUNDLE.md explains its fields), and read back in the three
 * ways of manifest.h. Each section, part and member has a line, for grep and diff; the stream and
 * manifest_read_head() depend on these lines, so whoever changes the layout changes them, too.
 *
 * A manifest that is read may come from any user's bucket. manifest_read() and the stream check
 * that fields have their types, within bounds, and that no path leads out of a directory. Unknown
 * fields are ignored. Whether the object matches is left to reader.c. */
#include "lib/bundle/manifest.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/json_out.h"
#include "lib/base/json_text.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/bundle_name.h"
#include "lib/neuron/ids.h"

#define TEXT_BYTES_MAX 4096 /* bytes */

static const char *const verdict_names[N_VERDICTS] = {
        [VERDICT_OK] = "ok",       [VERDICT_SUSPECT] = "suspect", [VERDICT_TRUNCATED] = "truncated",
        [VERDICT_EMPTY] = "empty", [VERDICT_OPAQUE] = "opaque",
};

#define MANIFEST_SCHEMA "neuron-collectd/manifest/1"
#define PIECE_BYTES 4096

typedef struct ManifestOutput {
        int (*put)(const void *data, size_t n, void *userdata);
        void *userdata;
        StrBuf piece;
} ManifestOutput;

static int out_flush(ManifestOutput *o) {
        int r = strbuf_error(&o->piece);
        if (r == 0 && o->piece.n > 0)
                r = o->put(o->piece.text, o->piece.n, o->userdata);
        strbuf_clear(&o->piece);
        return r;
}

/* Between the lines: keeps a piece from growing. */
static int out_flush_if_full(ManifestOutput *o) {
        return o->piece.n >= PIECE_BYTES || strbuf_error(&o->piece) < 0 ? out_flush(o) : 0;
}

/* NULL becomes null. */
static void add_text(StrBuf *b, const char *s) {
        if (s)
                json_out_quoted(b, s, strlen(s));
        else
                strbuf_add(b, "null");
}

/* @param before  what stands between the last value and this one, key included */
static void add_field(StrBuf *b, const char *before, const char *value) {
        strbuf_add(b, before);
        add_text(b, value);
}

static int add_path(StrBuf *b, const char *before, const char *raw) {
        _cleanup_free_ char *escaped = path_escape(raw);
        if (!escaped)
                return -ENOMEM;
        add_field(b, before, escaped);
        return 0;
}

static void add_digest(StrBuf *b, const char *before, const uint8_t digest[static SHA256_SIZE]) {
        char hex[SHA256_HEX_SIZE];
        add_field(b, before, digest_hex(digest, SHA256_SIZE, hex));
}

static int write_parts(ManifestOutput *o, const Parts *parts) {
        StrBuf *b = &o->piece;
        strbuf_add(b, "\n            \"parts\": [");
        for (size_t i = 0; i < parts->n; i++) {
                strbuf_addf(b, "%s{\"bytes\": %" PRIu64, i > 0 ? ",\n                      " : "",
                            parts->items[i].bytes);
                add_digest(b, ", \"sha256\": ", parts->items[i].sha256);
                strbuf_add(b, "}");
                int r = out_flush_if_full(o);
                if (r < 0)
                        return r;
        }
        strbuf_add(b, "],");
        return 0;
}

/* The kind of a bundle is what its id begins with. */
static void add_related(StrBuf *b, const ManifestInfo *info) {
        strbuf_add(b, ",\n            \"related\": [");
        for (size_t i = 0; i < info->n_related; i++) {
                const char *kind = bundle_id_kind_name(info->related[i]);
                add_field(b, i > 0 ? ", {\"kind\": " : "{\"kind\": ", kind);
                add_field(b, ", \"id\": ", info->related[i]);
                strbuf_add(b, "}");
        }
        strbuf_add(b, "]");
}

static int write_bundle(ManifestOutput *o, const ManifestInfo *info,
                        const ManifestContent *object) {
        StrBuf *b = &o->piece;
        add_field(b, " \"bundle\": {\"id\": ", info->id);
        add_field(b, ", \"kind\": ", source_kind_name(info->kind));
        add_field(b, ", \"object\": ", info->object);
        strbuf_addf(b, ", \"bytes\": %" PRIu64 ", \"uncompressed_bytes\": %" PRIu64, info->bytes,
                    plan_stream_bytes(object->plan));
        add_digest(b, ", \"plan\": ", object->plan_sha256);
        strbuf_add(b, ",");
        int r = write_parts(o, object->parts);
        if (r < 0)
                return r;

        strbuf_addf(b, "\n            \"complete\": %s, \"reasons\": [",
                    info->complete ? "true" : "false");
        for (size_t i = 0; info->reasons && info->reasons[i]; i++)
                add_field(b, i > 0 ? ", " : "", info->reasons[i]);
        add_field(b, "], \"supplement_of\": ", info->supplement_of);
        add_related(b, info);
        strbuf_add(b, "},\n");
        return out_flush_if_full(o);
}

/* @param before  what stands between the last value and this one, key included */
static void add_number(StrBuf *b, const char *before, bool is_known, int64_t value) {
        strbuf_add(b, before);
        if (is_known)
                strbuf_addf(b, "%" PRIi64, value);
        else
                strbuf_add(b, "null");
}

static void add_job(StrBuf *b, const ManifestJob *job) {
        if (!job) {
                strbuf_add(b, ", \"job\": null");
                return;
        }
        add_field(b, ", \"job\": {\"key\": ", job->key);
        add_number(b, ", \"rank\": ", job->rank >= 0, job->rank);
        add_number(b, ", \"world_size\": ", job->world_size >= 0, job->world_size);
        add_field(b, ", \"source\": ", job->source);
        strbuf_add(b, "}");
}

static void add_failure(StrBuf *b, const ManifestFailure *f) {
        add_number(b, "{\"code\": ", f->has_code, f->code);
        add_field(b, ", \"name\": ", f->name);
        add_field(b, ", \"location\": ", f->location);
        add_field(b, ", \"neff_name\": ", f->neff_name);
        add_field(b, ", \"neff_uuid\": ", f->neff_uuid);
        if (f->container)
                add_field(b, ", \"container\": ", f->container);
}

static void add_u64(StrBuf *b, const char *before, bool is_known, uint64_t value) {
        add_number(b, before, is_known && value <= INT64_MAX, (int64_t)value);
}

static int write_failures(ManifestOutput *o, const ManifestInfo *info) {
        StrBuf *b = &o->piece;
        size_t n = MIN(info->n_failures, (size_t)MANIFEST_FAILURES_MAX);
        strbuf_add(b, " \"failure\": ");
        if (n > 0) {
                add_failure(b, &info->failures[0]);
                strbuf_add(b, "},\n");
        } else
                strbuf_add(b, "null,\n");
        for (size_t i = 0; n > 1 && i < n; i++) {
                const ManifestFailure *f = &info->failures[i];
                char time[CLOCK_ISO_SIZE];
                strbuf_add(b, i == 0 ? " \"failures\": [" : ",\n              ");
                add_failure(b, f);
                add_u64(b, ", \"pid\": ", f->has_pid, f->pid);
                add_u64(b, ", \"tid\": ", f->has_tid, f->tid);
                add_u64(b, ", \"log_id\": ", f->has_log_id, f->log_id);
                add_number(b, ", \"rank\": ", f->rank >= 0, f->rank);
                add_field(b, ", \"time\": ", clock_format_iso(time, f->time_usec));
                strbuf_add(b, i + 1 < n ? "}" : "}],\n");
                int r = out_flush_if_full(o);
                if (r < 0)
                        return r;
        }
        return out_flush_if_full(o);
}

static int write_origin(ManifestOutput *o, const ManifestInfo *info) {
        StrBuf *b = &o->piece;
        add_field(b, " \"node\": {\"instance_id\": ", info->instance_id);
        add_field(b, ", \"hostname\": ", info->hostname);
        strbuf_add(b, ", \"labels\": {");
        for (size_t i = 0; info->labels && info->labels[i]; i += 2) {
                add_field(b, i > 0 ? ", " : "", info->labels[i]);
                add_field(b, ": ", info->labels[i + 1]);
        }
        add_field(b, "}},\n \"source\": {\"name\": ", info->source_name);
        int r = add_path(b, ", \"path\": ", info->source_path);
        if (r < 0)
                return r;
        strbuf_addf(b, ", \"uid\": %u", (unsigned)info->uid);
        add_field(b, ", \"user\": ", info->user);
        strbuf_add(b, "},\n");

        if (info->cluster_id && info->date_time) {
                add_field(b, " \"incident\": {\"cluster_id\": ", info->cluster_id);
                add_field(b, ", \"date_time\": ", info->date_time);
                strbuf_addf(b, ", \"derived\": %s", info->is_derived ? "true" : "false");
                add_field(b, ", \"agreed\": ", info->agreed);
                if (info->failure_n > 0) {
                        add_field(b, ", \"key\": ", info->failure_key);
                        strbuf_addf(b, ", \"n\": %" PRIu32, info->failure_n);
                }
                add_job(b, info->job);
                strbuf_add(b, "},\n");
        } else
                strbuf_add(b, " \"incident\": null,\n");
        return out_flush_if_full(o);
}

static int write_member(ManifestOutput *o, const Plan *plan, const PlanMember *m,
                        const MemberResult *result) {
        static const uint8_t nothing[SHA256_SIZE];
        StrBuf *b = &o->piece;
        const uint64_t offset = m->stream_offset + m->header_bytes;
        char mtime[CLOCK_ISO_SIZE];

        if (!result || memcmp(result->sha256, nothing, sizeof nothing) == 0)
                return -EINVAL;

        int r = add_path(b, "{\"path\": ", m->path);
        if (r < 0)
                return r;
        strbuf_addf(b, ", \"bytes\": %" PRIu64, m->bytes);
        add_field(b, ", \"mtime\": ", clock_format_iso_nsec(mtime, m->mtime_sec, m->mtime_nsec));
        strbuf_addf(b, ", \"mode\": \"%04o\"", (unsigned)m->mode & 07777);
        add_digest(b,
                   result->is_sparse_digest ? ", \"sha256\": null, \"sha256_sparse\": "
                                            : ", \"sha256\": ",
                   result->sha256);
        add_field(b, ", \"kind\": ", member_kind_name(m->kind));
        add_field(b, ", \"verdict\": ", verdict_names[result->verdict]);
        add_field(b, ", \"detail\": ", result->detail ? result->detail : "");
        strbuf_addf(b,
                    ", \"frame\": %" PRIu64 ", \"offset\": %" PRIu64 ", \"header\": %" PRIu32 "}",
                    plan_frame_at(plan, offset), offset, m->header_bytes);
        return out_flush_if_full(o);
}

static int write_members(ManifestOutput *o, const Plan *plan, const BundleWriter *writer) {
        strbuf_add(&o->piece, " \"members\": [");
        for (size_t i = 0; i < plan_n_members(plan); i++) {
                if (i > 0)
                        strbuf_add(&o->piece, ",\n             ");
                int r = write_member(o, plan, plan_member(plan, i),
                                     bundle_writer_member(writer, i));
                if (r < 0)
                        return r;
        }
        strbuf_add(&o->piece, "],\n");
        return 0;
}

int manifest_write(const ManifestInfo *info, const ManifestContent *object,
                   int (*put)(const void *data, size_t n, void *userdata), void *userdata) {
        ManifestOutput o = { .put = put, .userdata = userdata };
        char created[CLOCK_ISO_SIZE];

        strbuf_add(&o.piece, "{\"schema\": \"" MANIFEST_SCHEMA "\",\n");
        int r = write_bundle(&o, info, object);
        if (r == 0)
                r = write_origin(&o, info);
        if (r == 0)
                r = write_failures(&o, info);
        if (r == 0)
                r = write_members(&o, object->plan, object->writer);
        if (r == 0) {
                strbuf_addf(&o.piece,
                            " \"frames\": {\"count\": %" PRIu64
                            ", \"format\": \"zstd-seekable\"},\n",
                            plan_n_frames(object->plan));
                add_field(&o.piece, " \"agent\": {\"version\": ", info->agent_version);
                add_field(&o.piece,
                          "}, \"created\": ", clock_format_iso(created, info->created_usec));
                strbuf_add(&o.piece, "}\n");
                r = out_flush(&o);
        }
        strbuf_done(&o.piece);
        return r;
}

/* ---- reading: what each field must be ---- */

/* @return 0 or -EINVAL, after fault() */
typedef int (*FieldCheck)(const json_t *value, const char *where, StrBuf *fault);

typedef struct FieldRow {
        const char *object,
                *key; /* object "" = what is checked, "?" = it too, and may be missing */
        json_type type;
        bool may_be_null;
        FieldCheck check; /* may be NULL */
} FieldRow;

_printf_(2, 3) static int add_fault(StrBuf *fault, const char *fmt, ...) {
        char text[512];
        va_list args;
        va_start(args, fmt);
        (void)vsnprintf(text, sizeof text, fmt, args); /* long values are cut */
        va_end(args);
        strbuf_add_escaped(fault, text);
        return -EINVAL;
}

/* ---- single values ---- */

static int check_count(const json_t *v, const char *where, StrBuf *fault) {
        if (json_integer_value(v) >= 0)
                return 0;
        return add_fault(fault, "%s: %" JSON_INTEGER_FORMAT " is negative", where,
                         json_integer_value(v));
}

static int check_text(const json_t *v, const char *where, StrBuf *fault) {
        if (json_string_length(v) <= TEXT_BYTES_MAX)
                return 0;
        return add_fault(fault, "%s: a text of %zu bytes, at most %d are expected", where,
                         json_string_length(v), TEXT_BYTES_MAX);
}

/* @param expected  what it should be, if not `is_valid` */
static int check_that(bool is_valid, const json_t *v, const char *where, const char *expected,
                      StrBuf *fault) {
        if (is_valid)
                return 0;
        return add_fault(fault, "%s: '%.100s' is not %s", where, json_string_value(v), expected);
}

static int check_digest(const json_t *v, const char *where, StrBuf *fault) {
        uint8_t digest[SHA256_SIZE];
        const bool is_valid = parse_hex_bytes(json_string_value(v), digest, sizeof digest) == 0;
        return check_that(is_valid, v, where, "a SHA-256 in hex", fault);
}

static int check_schema(const json_t *v, const char *where, StrBuf *fault) {
        const bool is_valid = strcmp(json_string_value(v), MANIFEST_SCHEMA) == 0;
        return check_that(is_valid, v, where, "'" MANIFEST_SCHEMA "'", fault);
}

static int check_id(const json_t *v, const char *where, StrBuf *fault) {
        return check_that(bundle_id_is_valid(json_string_value(v)), v, where, "a bundle id", fault);
}

static int check_source_kind(const json_t *v, const char *where, StrBuf *fault) {
        SourceKind kind;
        const bool is_valid = source_kind_parse(json_string_value(v), &kind) == 0;
        return check_that(is_valid, v, where, "a kind of source", fault);
}

/* The object lies beside the manifest. */
static int check_object(const json_t *v, const char *where, StrBuf *fault) {
        const char *s = json_string_value(v);
        const bool is_valid = s[0] && !strchr(s, '/') && strcmp(s, ".") != 0 &&
                              strcmp(s, "..") != 0 && json_string_length(v) <= 255;
        return check_that(is_valid, v, where, "a file name", fault);
}

static int check_agreed(const json_t *v, const char *where, StrBuf *fault) {
        const char *s = json_string_value(v);
        const bool is_valid =
                strcmp(s, "bus") == 0 || strcmp(s, "store") == 0 || strcmp(s, "alone") == 0;
        return check_that(is_valid, v, where, "one of bus, store, alone", fault);
}

static int check_format(const json_t *v, const char *where, StrBuf *fault) {
        const bool is_valid = strcmp(json_string_value(v), "zstd-seekable") == 0;
        return check_that(is_valid, v, where, "'zstd-seekable'", fault);
}

static int check_mode(const json_t *v, const char *where, StrBuf *fault) {
        const char *s = json_string_value(v);
        const bool is_valid = strlen(s) == 4 && strspn(s, "01234567") == 4;
        return check_that(is_valid, v, where, "a mode of four octal digits", fault);
}

static int check_member_kind(const json_t *v, const char *where, StrBuf *fault) {
        MemberKind kind;
        const bool is_valid = member_kind_parse(json_string_value(v), &kind) == 0;
        return check_that(is_valid, v, where, "a kind of member", fault);
}

static int check_verdict(const json_t *v, const char *where, StrBuf *fault) {
        const bool is_valid = parse_word(json_string_value(v), verdict_names, N_VERDICTS) >= 0;
        return check_that(is_valid, v, where, "a verdict", fault);
}

/* clang-format off */
static const FieldRow document_rows[] = {
        { "",         "schema",             JSON_STRING,  false, check_schema },
        { "",         "bundle",             JSON_OBJECT,  false, NULL },
        { "bundle",   "id",                 JSON_STRING,  false, check_id },
        { "bundle",   "kind",               JSON_STRING,  false, check_source_kind },
        { "bundle",   "object",             JSON_STRING,  false, check_object },
        { "bundle",   "bytes",              JSON_INTEGER, false, check_count },
        { "bundle",   "uncompressed_bytes", JSON_INTEGER, false, check_count },
        { "bundle",   "plan",               JSON_STRING,  false, check_digest },
        { "bundle",   "parts",              JSON_ARRAY,   false, NULL },
        { "bundle",   "complete",           JSON_TRUE,    false, NULL },
        { "bundle",   "reasons",            JSON_ARRAY,   false, NULL },
        { "bundle",   "supplement_of",      JSON_STRING,  true,  check_id },
        { "",         "node",               JSON_OBJECT,  false, NULL },
        { "node",     "instance_id",        JSON_STRING,  false, check_text },
        { "node",     "hostname",           JSON_STRING,  false, check_text },
        { "node",     "labels",             JSON_OBJECT,  false, NULL },
        { "",         "source",             JSON_OBJECT,  false, NULL },
        { "source",   "name",               JSON_STRING,  false, check_text },
        { "source",   "path",               JSON_STRING,  false, NULL },
        { "source",   "uid",                JSON_INTEGER, false, check_count },
        { "source",   "user",               JSON_STRING,  true,  check_text },
        { "",         "incident",           JSON_OBJECT,  true,  NULL },
        { "incident", "cluster_id",         JSON_STRING,  false, check_text },
        { "incident", "date_time",          JSON_STRING,  false, check_text },
        { "incident", "derived",            JSON_TRUE,    false, NULL },
        { "incident", "agreed",             JSON_STRING,  false, check_agreed },
        { "incident", "job",                JSON_OBJECT,  true,  NULL },
        { "",         "failure",            JSON_OBJECT,  true,  NULL },
        { "",         "members",            JSON_ARRAY,   false, NULL },
        { "",         "frames",             JSON_OBJECT,  false, NULL },
        { "frames",   "count",              JSON_INTEGER, false, check_count },
        { "frames",   "format",             JSON_STRING,  false, check_format },
        { "",         "agent",              JSON_OBJECT,  false, NULL },
        { "agent",    "version",            JSON_STRING,  false, check_text },
        { "",         "created",            JSON_STRING,  false, check_text },
};

/* Of `incident.job`, `failure` and each of `failures`; each may be missing. */
static const FieldRow job_rows[] = {
        { "?",        "key",                JSON_STRING,  true,  check_text },
        { "?",        "rank",               JSON_INTEGER, true,  check_count },
        { "?",        "world_size",         JSON_INTEGER, true,  check_count },
        { "?",        "source",             JSON_STRING,  true,  check_text },
        { "",         NULL,                 JSON_NULL,    false, NULL },
};

static const FieldRow failure_rows[] = {
        { "?",        "code",               JSON_INTEGER, true,  NULL },
        { "?",        "name",               JSON_STRING,  true,  check_text },
        { "?",        "location",           JSON_STRING,  true,  check_text },
        { "?",        "neff_name",          JSON_STRING,  true,  check_text },
        { "?",        "neff_uuid",          JSON_STRING,  true,  check_text },
        { "?",        "container",          JSON_STRING,  true,  check_text },
        { "?",        "pid",                JSON_INTEGER, true,  check_count },
        { "?",        "tid",                JSON_INTEGER, true,  check_count },
        { "?",        "log_id",             JSON_INTEGER, true,  check_count },
        { "?",        "rank",               JSON_INTEGER, true,  check_count },
        { "?",        "time",               JSON_STRING,  true,  check_text },
        { "",         NULL,                 JSON_NULL,    false, NULL },
};

static const FieldRow part_rows[] = {
        { "",         "bytes",              JSON_INTEGER, false, check_count },
        { "",         "sha256",             JSON_STRING,  false, check_digest },
        { "",         NULL,                 JSON_NULL,    false, NULL },
};

static const FieldRow member_rows[] = {
        { "",         "path",               JSON_STRING,  false, NULL },
        { "",         "bytes",              JSON_INTEGER, false, check_count },
        { "",         "mtime",              JSON_STRING,  false, check_text },
        { "",         "mode",               JSON_STRING,  false, check_mode },
        { "",         "sha256",             JSON_STRING,  true,  check_digest },
        { "",         "kind",               JSON_STRING,  false, check_member_kind },
        { "",         "verdict",            JSON_STRING,  false, check_verdict },
        { "",         "detail",             JSON_STRING,  false, check_text },
        { "",         "frame",              JSON_INTEGER, false, check_count },
        { "",         "offset",             JSON_INTEGER, false, check_count },
        { "",         "header",             JSON_INTEGER, false, NULL },
        { "",         NULL,                 JSON_NULL,    false, NULL },
};

/* clang-format on */

static const char *type_name(json_type t) {
        switch (t) {
        case JSON_OBJECT:
                return "an object";
        case JSON_ARRAY:
                return "a list";
        case JSON_STRING:
                return "a text";
        case JSON_INTEGER:
                return "a whole number";
        case JSON_REAL:
                return "a number with a fraction";
        case JSON_TRUE:
        case JSON_FALSE:
                return "true or false";
        default:
                return "null";
        }
}

static bool type_fits(const json_t *v, const FieldRow *row) {
        if (json_is_null(v))
                return row->may_be_null;
        return row->type == JSON_TRUE ? json_is_boolean(v) : json_typeof(v) == row->type;
}

/* @param prefix  what stands before the key in a fault, e.g. `members[3].` */
static int check_field(const json_t *object, const FieldRow *row, const char *prefix,
                       StrBuf *fault) {
        const json_t *v = json_object_get(object, row->key);
        char where[128];
        (void)snprintf(where, sizeof where, "%s%s", prefix, row->key); /* both are short */
        if (!v)
                return add_fault(fault, "%s is missing", where);
        if (!type_fits(v, row))
                return add_fault(fault, "%s is %s, expected %s", where, type_name(json_typeof(v)),
                                 type_name(row->type));
        return row->check && !json_is_null(v) ? row->check(v, where, fault) : 0;
}

static int check_document(const json_t *document, StrBuf *fault) {
        for (size_t i = 0; i < ELEMENTSOF(document_rows); i++) {
                const FieldRow *row = &document_rows[i];
                const json_t *object =
                        row->object[0] ? json_object_get(document, row->object) : document;
                char prefix[32];
                if (json_is_null(object))
                        continue; /* no incident: allowed by its own row above */
                (void)snprintf(prefix, sizeof prefix, "%s%s", row->object,
                               row->object[0] ? "." : "");
                int r = check_field(object, row, prefix, fault);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* @param row  the first; the last one has no key  */
static int check_fields(const json_t *object, const FieldRow *row, const char *prefix,
                        StrBuf *fault) {
        int r = 0;
        for (; r == 0 && row->key; row++)
                if (!row->object[0] || json_object_get(object, row->key))
                        r = check_field(object, row, prefix, fault);
        return r;
}

/* ---- reading: what several fields must be together ---- */

#define MANIFEST_BYTES_MAX (256 * MIB)
#define PARTS_READ_MAX 10000     /* S3's limit */
#define PATH_TEXT_MAX (4 * 4096) /* every byte escaped */

static int check_failures(const json_t *document, StrBuf *fault) {
        const json_t *list = json_object_get(document, "failures"), *one;
        const json_t *job = json_object_get(json_object_get(document, "incident"), "job");
        size_t i;
        int r = check_fields(job, job_rows, "incident.job.", fault);
        if (r == 0)
                r = check_fields(json_object_get(document, "failure"), failure_rows, "failure.",
                                 fault);
        if (r < 0 || !list || json_is_null(list))
                return r;
        if (!json_is_array(list) || json_array_size(list) > MANIFEST_FAILURES_MAX)
                return add_fault(fault, "failures is not a list of at most %d",
                                 MANIFEST_FAILURES_MAX);
        json_array_foreach(list, i, one) {
                char prefix[64];
                (void)snprintf(prefix, sizeof prefix, "failures[%zu].", i);
                if (!json_is_object(one))
                        return add_fault(fault, "failures[%zu] is %s, expected an object", i,
                                         type_name(json_typeof(one)));
                r = check_fields(one, failure_rows, prefix, fault);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* ---- lists ---- */

static int check_texts(const json_t *list, const char *where, StrBuf *fault) {
        size_t i;
        const json_t *v;
        json_array_foreach(list, i, v) {
                if (!json_is_string(v) || json_string_length(v) > TEXT_BYTES_MAX)
                        return add_fault(fault, "%s[%zu] is not a text of at most %d bytes", where,
                                         i, TEXT_BYTES_MAX);
        }
        return 0;
}

static int check_labels(const json_t *labels, StrBuf *fault) {
        const char *key;
        json_t *v;
        json_object_foreach((json_t *)labels, key, v) {
                if (!json_is_string(v) || json_string_length(v) > TEXT_BYTES_MAX)
                        return add_fault(fault,
                                         "node.labels.%.80s is not a text of at most %d bytes", key,
                                         TEXT_BYTES_MAX);
        }
        return 0;
}

static int check_parts(const json_t *bundle, StrBuf *fault) {
        const json_t *parts = json_object_get(bundle, "parts"), *part;
        const uint64_t bytes = (uint64_t)json_integer_value(json_object_get(bundle, "bytes"));
        uint64_t sum = 0;
        size_t i;
        if (json_array_size(parts) == 0 || json_array_size(parts) > PARTS_READ_MAX)
                return add_fault(fault, "bundle.parts has %zu entries, expected 1 to %d",
                                 json_array_size(parts), PARTS_READ_MAX);
        json_array_foreach(parts, i, part) {
                char prefix[64];
                (void)snprintf(prefix, sizeof prefix, "bundle.parts[%zu].", i);
                int r = check_fields(part, part_rows, prefix, fault);
                if (r < 0)
                        return r;
                const uint64_t n = (uint64_t)json_integer_value(json_object_get(part, "bytes"));
                if (n == 0 || __builtin_add_overflow(sum, n, &sum) || sum > bytes)
                        return add_fault(fault,
                                         "%sbytes: %" PRIu64
                                         " does not fit into the object's %" PRIu64,
                                         prefix, n, bytes);
        }
        if (sum != bytes)
                return add_fault(fault,
                                 "bundle.parts have %" PRIu64
                                 " bytes together, bundle.bytes says %" PRIu64,
                                 sum, bytes);
        return 0;
}

/* ---- members ---- */

/* A path that may be made below a directory: relative, and no component that is empty, `.` or `..`.
 */
static bool path_is_safe(const char *path) {
        for (;;) {
                size_t n = strcspn(path, "/");
                if (n == 0 || (n == 1 && path[0] == '.') ||
                    (n == 2 && path[0] == '.' && path[1] == '.'))
                        return false;
                if (path[n] == '\0')
                        return true;
                path += n + 1;
        }
}

/* @param last  the raw path of the member before, replaced by this one's */
static int check_path(const json_t *value, const char *prefix, char **last, StrBuf *fault) {
        _cleanup_free_ char *raw = NULL;
        const char *escaped = json_string_value(value);
        if (json_string_length(value) > PATH_TEXT_MAX)
                return add_fault(fault, "%spath has %zu bytes, at most %d are expected", prefix,
                                 json_string_length(value), PATH_TEXT_MAX);
        int r = path_unescape(escaped, &raw);
        if (r == -ENOMEM)
                return r;
        if (r < 0 || !path_is_safe(raw))
                return add_fault(fault, "%spath: '%.200s' is not a path below the source", prefix,
                                 escaped);
        if (*last && strcmp(*last, raw) >= 0)
                return add_fault(fault, "%spath: '%.200s' stands twice or out of order", prefix,
                                 escaped);
        free(*last);
        *last = TAKE_PTR(raw);
        return 0;
}

static int check_member_digest(const json_t *member, const char *prefix, StrBuf *fault) {
        const json_t *sparse = json_object_get(member, "sha256_sparse");
        char where[128];
        if (!json_is_null(json_object_get(member, "sha256")))
                return sparse ? add_fault(fault, "%ssha256_sparse stands beside a sha256", prefix)
                              : 0;
        if (!json_is_string(sparse))
                return add_fault(fault, "%ssha256 is null, and there is no sha256_sparse", prefix);
        (void)snprintf(where, sizeof where, "%ssha256_sparse", prefix);
        return check_digest(sparse, where, fault);
}

typedef struct MemberWalk {
        const json_t *document;
        char *last; /* the raw path of the member before, NULL before the first; owned */
} MemberWalk;

static int check_member_fields(const json_t *member, const char *prefix, char **last,
                               StrBuf *fault) {
        int r = check_fields(member, member_rows, prefix, fault);
        if (r == 0)
                r = check_path(json_object_get(member, "path"), prefix, last, fault);
        return r == 0 ? check_member_digest(member, prefix, fault) : r;
}

static int check_member(MemberWalk *w, const json_t *member, const char *prefix, StrBuf *fault) {
        int r = check_member_fields(member, prefix, &w->last, fault);
        if (r < 0)
                return r;

        const json_t *frames = json_object_get(w->document, "frames"),
                     *bundle = json_object_get(w->document, "bundle");
        const json_int_t frame = json_integer_value(json_object_get(member, "frame")),
                         n_frames = json_integer_value(json_object_get(frames, "count")),
                         offset = json_integer_value(json_object_get(member, "offset")),
                         header = json_integer_value(json_object_get(member, "header")),
                         n_stream =
                                 json_integer_value(json_object_get(bundle, "uncompressed_bytes"));
        if (frame >= n_frames)
                return add_fault(fault,
                                 "%sframe: %" JSON_INTEGER_FORMAT " of %" JSON_INTEGER_FORMAT
                                 " frames",
                                 prefix, frame, n_frames);
        if (offset >= n_stream || offset % 512 != 0)
                return add_fault(fault,
                                 "%soffset: %" JSON_INTEGER_FORMAT
                                 " is not a valid offset in a tar stream of %" JSON_INTEGER_FORMAT
                                 " bytes",
                                 prefix, offset, n_stream);
        if (header < 512 || header > offset || header % 512 != 0)
                return add_fault(fault,
                                 "%sheader: %" JSON_INTEGER_FORMAT
                                 " bytes are no tar header before offset %" JSON_INTEGER_FORMAT,
                                 prefix, header, offset);
        return 0;
}

static int check_members(const json_t *document, StrBuf *fault) {
        MemberWalk w = { .document = document };
        const json_t *member;
        size_t i;
        int r = 0;
        json_array_foreach(json_object_get(document, "members"), i, member) {
                char prefix[64];
                (void)snprintf(prefix, sizeof prefix, "members[%zu].", i);
                r = check_member(&w, member, prefix, fault);
                if (r < 0)
                        break;
        }
        free(w.last);
        return r;
}

static int check_manifest(const json_t *document, StrBuf *fault) {
        if (!json_is_object(document))
                return add_fault(fault, "the document is %s, expected an object",
                                 type_name(json_typeof(document)));
        int r = check_document(document, fault);
        if (r < 0)
                return r;
        const json_t *bundle = json_object_get(document, "bundle");
        r = check_parts(bundle, fault);
        if (r == 0)
                r = check_texts(json_object_get(bundle, "reasons"), "bundle.reasons", fault);
        if (r == 0)
                r = check_labels(json_object_get(json_object_get(document, "node"), "labels"),
                                 fault);
        if (r == 0)
                r = check_failures(document, fault);
        if (r == 0)
                r = check_members(document, fault);
        return r;
}

int manifest_read(const void *data, size_t n, json_t **ret, char **ret_fault) {
        _cleanup_(strbuf_done) StrBuf fault = STRBUF_INIT;
        json_t *document = NULL;
        json_error_t error;
        int r;

        if (n > MANIFEST_BYTES_MAX)
                r = add_fault(&fault, "the manifest has %zu bytes, at most %llu are read", n,
                              (unsigned long long)MANIFEST_BYTES_MAX);
        else {
                document = json_loadb(data, n, JSON_REJECT_DUPLICATES, &error);
                r = document ? check_manifest(document, &fault)
                             : add_fault(&fault, "line %d: %s", error.line, error.text);
        }
        if (r < 0) {
                json_decref(document);
                *ret_fault = strbuf_detach(&fault);
                return r;
        }
        *ret = document;
        return 0;
}

/* ---- reading the section `bundle`, and the members one by one, without the tree of all of them
 * ----
 */

/* What follows the section: manifest_write() begins each section on a line of its own. */
static const char section_end[] = ",\n \"node\": ";

void manifest_head_done(ManifestHead *h) {
        free(h->reasons);
        free(h->failure);
        free(h->parts);
        *h = (ManifestHead){ 0 };
}

static int parse_digest(const json_t *v, uint8_t ret[static SHA256_SIZE]) {
        const char *hex = json_string_value(v);
        return hex ? parse_hex_bytes(hex, ret, SHA256_SIZE) : -EINVAL;
}

static int parse_parts(const json_t *list, ManifestHead *h) {
        size_t i, n = json_array_size(list);
        json_t *part;
        if (n == 0)
                return -EINVAL;
        h->parts = calloc(n, sizeof *h->parts);
        if (!h->parts)
                return -ENOMEM;
        json_array_foreach(list, i, part) {
                json_int_t bytes = json_integer_value(json_object_get(part, "bytes"));
                if (bytes <= 0 ||
                    parse_digest(json_object_get(part, "sha256"), h->parts[i].sha256) < 0)
                        return -EINVAL;
                h->parts[i].bytes = (uint64_t)bytes;
        }
        h->n_parts = n;
        return 0;
}

static int parse_bundle(const json_t *bundle, ManifestHead *h) {
        const char *id = json_string_value(json_object_get(bundle, "id"));
        const json_t *bytes = json_object_get(bundle, "bytes"),
                     *reasons = json_object_get(bundle, "reasons");
        if (!id || strlen(id) >= sizeof h->id || !json_is_integer(bytes) ||
            json_integer_value(bytes) < 0 || !json_is_array(reasons))
                return -EINVAL;
        if (parse_digest(json_object_get(bundle, "plan"), h->plan) < 0)
                return -EINVAL;
        strcpy(h->id, id);
        h->bytes = (uint64_t)json_integer_value(bytes);
        h->complete = json_is_true(json_object_get(bundle, "complete"));
        h->reasons = json_text(reasons, JSON_COMPACT);
        return h->reasons ? parse_parts(json_object_get(bundle, "parts"), h) : -ENOMEM;
}

char *manifest_summarize_failure(const ManifestFailure *f, const ManifestJob *job) {
        int64_t rank = job && job->rank >= 0 ? job->rank : f ? f->rank : -1;
        if (!f && !job)
                return NULL;
        json_t *o = json_pack("{s:o, s:s?, s:s?, s:o}", "code",
                              f && f->has_code ? json_integer(f->code) : json_null(), "name",
                              f ? f->name : NULL, "job", job ? job->key : NULL, "rank",
                              rank >= 0 ? json_integer(rank) : json_null());
        char *text = o ? json_text(o, JSON_COMPACT) : NULL;
        json_decref(o);
        return text;
}

/* @return a section's value; NULL: it is not in the text */
static json_t *parse_section(const char *text, size_t n, const char *begin) {
        const char *at = memmem(text, n, begin, strlen(begin));
        size_t from = at ? (size_t)(at - text) + strlen(begin) : n;
        return json_loadb(text + from, n - from, JSON_DISABLE_EOF_CHECK | JSON_DECODE_ANY, NULL);
}

static int64_t rank_of(const json_t *object) {
        const json_t *rank = json_object_get(object, "rank");
        return json_is_integer(rank) ? json_integer_value(rank) : -1;
}

static char *read_failure(const char *text, size_t n) {
        json_t *incident = parse_section(text, n, ",\n \"incident\": "),
               *failure = parse_section(text, n, ",\n \"failure\": ");
        const json_t *job = json_object_get(incident, "job"),
                     *code = json_object_get(failure, "code");
        ManifestFailure f = { .has_code = json_is_integer(code),
                              .code = json_integer_value(code),
                              .name = json_string_value(json_object_get(failure, "name")),
                              .rank = rank_of(failure) };
        ManifestJob j = { .key = json_string_value(json_object_get(job, "key")),
                          .rank = rank_of(job) };
        char *summary = manifest_summarize_failure(json_is_object(failure) ? &f : NULL,
                                                   json_is_object(job) ? &j : NULL);
        json_decref(incident);
        json_decref(failure);
        return summary;
}

int manifest_read_head(const char *text, size_t n, ManifestHead *ret) {
        const char *end = memmem(text, n, section_end, sizeof section_end - 1);
        if (!end)
                return -EINVAL;
        size_t head = (size_t)(end - text);
        _cleanup_free_ char *copy = malloc(head + 1);
        if (!copy)
                return -ENOMEM;
        memcpy(copy, text, head);
        copy[head] = '}'; /* where the next section would begin */
        json_t *document = json_loadb(copy, head + 1, JSON_REJECT_DUPLICATES, NULL);
        const char *schema = json_string_value(json_object_get(document, "schema"));
        _cleanup_(manifest_head_done) ManifestHead h = { 0 };
        int r = -EINVAL;
        if (schema && strcmp(schema, MANIFEST_SCHEMA) == 0)
                r = parse_bundle(json_object_get(document, "bundle"), &h);
        json_decref(document);
        if (r < 0)
                return r;
        h.failure = read_failure(text + head, n - head);
        *ret = h;
        h = (ManifestHead){ 0 };
        return 0;
}

/* ---- reading it as a stream, line by line ---- */

#define HEAD_BYTES_MAX MANIFEST_HEAD_MAX_BYTES
#define LINE_BYTES_MAX (256 * 1024) /* a member: a path and a detail, every byte escaped */

static const char schema_line[] = "{\"schema\": \"" MANIFEST_SCHEMA "\",\n";
static const char members_key[] = " \"members\": [";

typedef enum StreamState {
        STREAM_HEAD,    /* what comes before the members: kept */
        STREAM_MEMBERS, /* one a line */
        STREAM_TAIL,    /* what comes after them: kept */
        STREAM_ENDED,
        STREAM_BAD,
} StreamState;

struct ManifestStream {
        StreamState state;
        ManifestOnMember on_member;
        void *userdata;
        StrBuf text; /* the section that is kept; of STREAM_MEMBERS nothing */
        StrBuf line; /* the beginning of one whose end has not come */
        json_t *document;
        char *last; /* raw path of the member before */
};

int manifest_stream_new(ManifestStream **ret, ManifestOnMember on_member, void *userdata) {
        ManifestStream *s = calloc(1, sizeof *s);
        if (!s)
                return -ENOMEM;
        s->on_member = on_member;
        s->userdata = userdata;
        *ret = s;
        return 0;
}

ManifestStream *manifest_stream_free(ManifestStream *s) {
        if (!s)
                return NULL;
        strbuf_done(&s->text);
        strbuf_done(&s->line);
        json_decref(s->document);
        free(s->last);
        free(s);
        return NULL;
}

static int read_member(ManifestStream *s, const char *text, size_t n) {
        _cleanup_(strbuf_done) StrBuf fault = STRBUF_INIT;
        json_t *row = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
        int r = row ? check_member_fields(row, "", &s->last, &fault) : -EINVAL;
        if (r == 0) {
                const char *plain = json_string_value(json_object_get(row, "sha256"));
                const json_t *sparse = json_object_get(row, "sha256_sparse");
                ManifestMember m = { .path = s->last, .is_sparse_digest = !plain };
                m.bytes = (uint64_t)json_integer_value(json_object_get(row, "bytes"));
                r = parse_hex_bytes(plain ? plain : json_string_value(sparse), m.sha256,
                                    sizeof m.sha256);
                if (r == 0 && s->on_member)
                        r = s->on_member(&m, s->userdata);
        }
        json_decref(row);
        return r;
}

/* @param line  without its newline: `{…},`, or `{…}],` for the last one, or `],` */
static int read_member_line(ManifestStream *s, const char *line, size_t n) {
        bool is_last = n >= 2 && memcmp(line + n - 2, "],", 2) == 0;
        n -= MIN(n, is_last ? (size_t)2 : (size_t)1);
        if (is_last)
                s->state = STREAM_TAIL;
        return is_last && n == 0 ? 0 : read_member(s, line, n);
}

/* The text before the members ends with a comma. */
static int read_sections(ManifestStream *s) {
        if (strbuf_error(&s->text) < 0)
                return -ENOMEM;
        if (s->text.n < 2)
                return -EINVAL;
        s->text.text[s->text.n - 2] = '}';
        s->document = json_loadb(s->text.text, s->text.n - 1, JSON_REJECT_DUPLICATES, NULL);
        strbuf_clear(&s->text);
        strbuf_add(&s->text, "{");
        return s->document ? 0 : -EINVAL;
}

static int read_tail(ManifestStream *s) {
        _cleanup_(strbuf_done) StrBuf fault = STRBUF_INIT;
        if (strbuf_error(&s->text) < 0)
                return -ENOMEM;
        json_t *tail = json_loadb(s->text.text, s->text.n, JSON_REJECT_DUPLICATES, NULL);
        int r = tail && json_object_update_missing(s->document, tail) == 0 &&
                                json_object_set_new(s->document, "members", json_array()) == 0
                        ? check_manifest(s->document, &fault)
                        : -EINVAL;
        json_decref(tail);
        s->state = STREAM_ENDED;
        return r;
}

static int keep_line(ManifestStream *s, const char *line, size_t n) {
        strbuf_add_n(&s->text, line, n);
        return s->text.n > HEAD_BYTES_MAX ? -EINVAL : strbuf_error(&s->text);
}

/* @param line  with its newline */
static int read_line(ManifestStream *s, const char *line, size_t n) {
        size_t n_key = sizeof members_key - 1;
        int r;
        switch (s->state) {
        case STREAM_HEAD:
                if (s->text.n == 0 &&
                    (n != sizeof schema_line - 1 || memcmp(line, schema_line, n) != 0))
                        return -EINVAL;
                if (n < n_key || memcmp(line, members_key, n_key) != 0)
                        return keep_line(s, line, n);
                r = read_sections(s);
                s->state = STREAM_MEMBERS;
                return r < 0 ? r : read_member_line(s, line + n_key, n - n_key - 1);
        case STREAM_MEMBERS:
                return read_member_line(s, line, n - 1);
        case STREAM_TAIL:
                r = keep_line(s, line, n);
                return r == 0 && n >= 2 && line[n - 2] == '}' ? read_tail(s) : r;
        default:
                return -EINVAL;
        }
}

int manifest_stream_feed(ManifestStream *s, const void *data, size_t n) {
        const char *at = data, *end = at + n, *newline;
        int r = s->state == STREAM_BAD ? -EINVAL : 0;
        while (r == 0 && at < end && (newline = memchr(at, '\n', (size_t)(end - at)))) {
                size_t n_line = (size_t)(newline - at) + 1;
                if (s->line.n == 0)
                        r = read_line(s, at, n_line);
                else {
                        strbuf_add_n(&s->line, at, n_line);
                        r = strbuf_error(&s->line);
                        r = r == 0 ? read_line(s, s->line.text, s->line.n) : r;
                        strbuf_clear(&s->line);
                }
                at = newline + 1;
        }
        if (r == 0 && at < end) {
                strbuf_add_n(&s->line, at, (size_t)(end - at));
                r = s->line.n > LINE_BYTES_MAX || s->state == STREAM_ENDED ? -EINVAL
                                                                           : strbuf_error(&s->line);
        }
        if (r == -EINVAL)
                s->state = STREAM_BAD;
        return r;
}

int manifest_stream_end(ManifestStream *s, ManifestHead *ret) {
        _cleanup_(manifest_head_done) ManifestHead h = { 0 };
        size_t n = MIN(s->line.n, sizeof schema_line - 1);
        if (s->state == STREAM_BAD)
                return -EINVAL;
        if (s->state == STREAM_HEAD && s->text.n == 0 &&
            (s->line.n > n || (n > 0 && memcmp(s->line.text, schema_line, n) != 0)))
                return -EINVAL;
        if (s->state != STREAM_ENDED)
                return MANIFEST_E_TRUNCATED;
        int r = parse_bundle(json_object_get(s->document, "bundle"), &h);
        if (r < 0)
                return r;
        *ret = h;
        h = (ManifestHead){ 0 };
        return 0;
}
