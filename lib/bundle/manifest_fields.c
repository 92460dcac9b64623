/* What each field of a manifest must be: its type, and what its value may say. What several fields must say together is manifest_read.c's. */
#include "lib/bundle/manifest_fields.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/parse.h"
#include "lib/base/utf8.h"
#include "lib/bundle/manifest.h"
#include "lib/neuron/ids.h"

/* @return 0 or -EINVAL, after fault() */
typedef int (*ManifestCheck)(const json_t *value, const char *where, StrBuf *fault);

typedef struct FieldRow {
        const char *object, *key; /* object "" = the document itself */
        json_type type;
        bool may_be_null;
        ManifestCheck check; /* may be NULL */
} FieldRow;

int manifest_fault_add(StrBuf *fault, const char *fmt, ...) {
        char text[512];
        va_list args;
        va_start(args, fmt);
        (void)vsnprintf(text, sizeof text, fmt, args); /* a long value of a stranger's is cut */
        va_end(args);
        for (size_t i = 0, n = strlen(text); i < n;) {
                char spelled[UTF8_SPELL_SIZE];
                i += utf8_spell(text + i, n - i, spelled);
                strbuf_add(fault, spelled);
        }
        return -EINVAL;
}

/* ---- single values ---- */

static int check_count(const json_t *v, const char *where, StrBuf *fault) {
        return json_integer_value(v) >= 0
                       ? 0
                       : manifest_fault_add(fault, "%s: %" JSON_INTEGER_FORMAT " is negative",
                                            where, json_integer_value(v));
}

static int check_text(const json_t *v, const char *where, StrBuf *fault) {
        return json_string_length(v) <= MANIFEST_TEXT_MAX
                       ? 0
                       : manifest_fault_add(fault,
                                            "%s: a text of %zu bytes, at most %d are expected",
                                            where, json_string_length(v), MANIFEST_TEXT_MAX);
}

int manifest_check_digest(const json_t *v, const char *where, StrBuf *fault) {
        uint8_t digest[SHA256_SIZE];
        return parse_hex_bytes(json_string_value(v), digest, sizeof digest) == 0
                       ? 0
                       : manifest_fault_add(fault, "%s: '%.80s' is not a SHA-256 in hex", where,
                                            json_string_value(v));
}

static int check_schema(const json_t *v, const char *where, StrBuf *fault) {
        return strcmp(json_string_value(v), "neuron-collectd/manifest/1") == 0
                       ? 0
                       : manifest_fault_add(fault,
                                            "%s: '%.80s' is not 'neuron-collectd/manifest/1'",
                                            where, json_string_value(v));
}

static int check_id(const json_t *v, const char *where, StrBuf *fault) {
        return bundle_id_is_valid(json_string_value(v))
                       ? 0
                       : manifest_fault_add(fault, "%s: '%.100s' is not a bundle id", where,
                                            json_string_value(v));
}

static int check_source_kind(const json_t *v, const char *where, StrBuf *fault) {
        SourceKind kind;
        return source_kind_parse(json_string_value(v), &kind) == 0
                       ? 0
                       : manifest_fault_add(fault, "%s: '%.80s' is not a kind of source", where,
                                            json_string_value(v));
}

/* The object is looked for beside the manifest. */
static int check_object(const json_t *v, const char *where, StrBuf *fault) {
        const char *s = json_string_value(v);
        return s[0] && !strchr(s, '/') && strcmp(s, ".") != 0 && strcmp(s, "..") != 0 &&
                               json_string_length(v) <= 255
                       ? 0
                       : manifest_fault_add(fault, "%s: '%.80s' is not a file name", where, s);
}

static int check_agreed(const json_t *v, const char *where, StrBuf *fault) {
        const char *s = json_string_value(v);
        return strcmp(s, "bus") == 0 || strcmp(s, "store") == 0 || strcmp(s, "alone") == 0
                       ? 0
                       : manifest_fault_add(fault, "%s: '%.80s' is neither bus nor store nor alone",
                                            where, s);
}

static int check_format(const json_t *v, const char *where, StrBuf *fault) {
        return strcmp(json_string_value(v), "zstd-seekable") == 0
                       ? 0
                       : manifest_fault_add(fault, "%s: '%.80s' is not 'zstd-seekable'", where,
                                            json_string_value(v));
}

static int check_mode(const json_t *v, const char *where, StrBuf *fault) {
        const char *s = json_string_value(v);
        return strlen(s) == 4 && strspn(s, "01234567") == 4
                       ? 0
                       : manifest_fault_add(fault, "%s: '%.20s' is not a mode of four octal digits",
                                            where, s);
}

static int check_member_kind(const json_t *v, const char *where, StrBuf *fault) {
        MemberKind kind;
        return member_kind_parse(json_string_value(v), &kind) == 0
                       ? 0
                       : manifest_fault_add(fault, "%s: '%.80s' is not a kind of member", where,
                                            json_string_value(v));
}

static int check_verdict(const json_t *v, const char *where, StrBuf *fault) {
        Verdict verdict;
        return verdict_parse(json_string_value(v), &verdict) == 0
                       ? 0
                       : manifest_fault_add(fault, "%s: '%.80s' is not a verdict", where,
                                            json_string_value(v));
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
        { "bundle",   "plan",               JSON_STRING,  false, manifest_check_digest },
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
/* Of `incident.job`, `failure` and each of `failures`; each may be missing, as it is in manifests of before there was a hook. */
static const FieldRow job_rows[] = {
        { "",         "key",                JSON_STRING,  true,  check_text },
        { "",         "rank",               JSON_INTEGER, true,  check_count },
        { "",         "world_size",         JSON_INTEGER, true,  check_count },
        { "",         "source",             JSON_STRING,  true,  check_text },
};
static const FieldRow failure_rows[] = {
        { "",         "code",               JSON_INTEGER, true,  NULL },
        { "",         "name",               JSON_STRING,  true,  check_text },
        { "",         "location",           JSON_STRING,  true,  check_text },
        { "",         "neff_name",          JSON_STRING,  true,  check_text },
        { "",         "neff_uuid",          JSON_STRING,  true,  check_text },
        { "",         "container",          JSON_STRING,  true,  check_text },
        { "",         "pid",                JSON_INTEGER, true,  check_count },
        { "",         "tid",                JSON_INTEGER, true,  check_count },
        { "",         "log_id",             JSON_INTEGER, true,  check_count },
        { "",         "rank",               JSON_INTEGER, true,  check_count },
        { "",         "time",               JSON_STRING,  true,  check_text },
};
static const FieldRow part_rows[] = {
        { "",         "bytes",              JSON_INTEGER, false, check_count },
        { "",         "sha256",             JSON_STRING,  false, manifest_check_digest },
};
static const FieldRow member_rows[] = {
        { "",         "path",               JSON_STRING,  false, NULL },
        { "",         "bytes",              JSON_INTEGER, false, check_count },
        { "",         "mtime",              JSON_STRING,  false, check_text },
        { "",         "mode",               JSON_STRING,  false, check_mode },
        { "",         "sha256",             JSON_STRING,  true,  manifest_check_digest },
        { "",         "kind",               JSON_STRING,  false, check_member_kind },
        { "",         "verdict",            JSON_STRING,  false, check_verdict },
        { "",         "detail",             JSON_STRING,  false, check_text },
        { "",         "frame",              JSON_INTEGER, false, check_count },
        { "",         "offset",             JSON_INTEGER, false, check_count },
};
/* clang-format on */

const char *manifest_type_name(json_type t) {
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
static int field_check(const json_t *object, const FieldRow *row, const char *prefix,
                       StrBuf *fault) {
        const json_t *v = json_object_get(object, row->key);
        char where[128];
        (void)snprintf(where, sizeof where, "%s%s", prefix,
                       row->key); /* both are ours, and short */
        if (!v)
                return manifest_fault_add(fault, "%s is missing", where);
        if (!type_fits(v, row))
                return manifest_fault_add(fault, "%s is %s, expected %s", where,
                                          manifest_type_name(json_typeof(v)),
                                          manifest_type_name(row->type));
        return row->check && !json_is_null(v) ? row->check(v, where, fault) : 0;
}

int manifest_check_document(const json_t *document, StrBuf *fault) {
        for (size_t i = 0; i < ELEMENTSOF(document_rows); i++) {
                const FieldRow *row = &document_rows[i];
                const json_t *object =
                        row->object[0] ? json_object_get(document, row->object) : document;
                char prefix[32];
                if (json_is_null(object))
                        continue; /* no incident: allowed by its own row above */
                (void)snprintf(prefix, sizeof prefix, "%s%s", row->object,
                               row->object[0] ? "." : "");
                int r = field_check(object, row, prefix, fault);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* clang-format off */
static const struct {
        const FieldRow *rows;
        size_t n;
        bool may_lack; /* a field is checked if it is there */
} objects[N_MANIFEST_OBJECTS] = {
        [MANIFEST_PART]    = { part_rows,    ELEMENTSOF(part_rows),    false },
        [MANIFEST_MEMBER]  = { member_rows,  ELEMENTSOF(member_rows),  false },
        [MANIFEST_JOB]     = { job_rows,     ELEMENTSOF(job_rows),     true },
        [MANIFEST_FAILURE] = { failure_rows, ELEMENTSOF(failure_rows), true },
};
/* clang-format on */

int manifest_check_object(const json_t *object, ManifestObject which, const char *prefix,
                          StrBuf *fault) {
        for (size_t i = 0; i < objects[which].n; i++) {
                const FieldRow *row = &objects[which].rows[i];
                if (objects[which].may_lack && !json_object_get(object, row->key))
                        continue;
                int r = field_check(object, row, prefix, fault);
                if (r < 0)
                        return r;
        }
        return 0;
}
