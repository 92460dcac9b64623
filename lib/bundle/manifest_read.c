/* Reads a manifest that may come from anybody's bucket: what passes here has the fields of INTERFACE §4 with their types, within
 * bounds, and no path that leads out of a directory. Fields that are not known are let be: later versions may add some. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/base/utf8.h"
#include "lib/bundle/manifest.h"
#include "lib/dump/ids.h"

#define MANIFEST_BYTES_MAX (256 * MIB)
#define PARTS_READ_MAX 10000 /* S3's limit */
#define TEXT_MAX 4096
#define PATH_TEXT_MAX (4 * 4096) /* every byte escaped */

/* @return 0 or -EINVAL, after fault() */
typedef int (*ManifestCheck)(const json_t *value, const char *where, StrBuf *fault);

typedef struct FieldRow {
        const char *object, *key; /* object "" = the document itself */
        json_type type;
        bool may_be_null;
        ManifestCheck check; /* may be NULL */
} FieldRow;

static int fault_add(StrBuf *fault, const char *fmt, ...) _printf_(2, 3);
static int fault_add(StrBuf *fault, const char *fmt, ...) {
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
                       : fault_add(fault, "%s: %" JSON_INTEGER_FORMAT " is negative", where,
                                   json_integer_value(v));
}

static int check_text(const json_t *v, const char *where, StrBuf *fault) {
        return json_string_length(v) <= TEXT_MAX
                       ? 0
                       : fault_add(fault, "%s: a text of %zu bytes, at most %d are expected", where,
                                   json_string_length(v), TEXT_MAX);
}

static int check_digest(const json_t *v, const char *where, StrBuf *fault) {
        uint8_t digest[SHA256_SIZE];
        return parse_hex_bytes(json_string_value(v), digest, sizeof digest) == 0
                       ? 0
                       : fault_add(fault, "%s: '%.80s' is not a SHA-256 in hex", where,
                                   json_string_value(v));
}

static int check_schema(const json_t *v, const char *where, StrBuf *fault) {
        return strcmp(json_string_value(v), "neuron-collectd/manifest/1") == 0
                       ? 0
                       : fault_add(fault, "%s: '%.80s' is not 'neuron-collectd/manifest/1'", where,
                                   json_string_value(v));
}

static int check_id(const json_t *v, const char *where, StrBuf *fault) {
        return bundle_id_is_valid(json_string_value(v))
                       ? 0
                       : fault_add(fault, "%s: '%.100s' is not a bundle id", where,
                                   json_string_value(v));
}

static int check_source_kind(const json_t *v, const char *where, StrBuf *fault) {
        SourceKind kind;
        return source_kind_parse(json_string_value(v), &kind) == 0
                       ? 0
                       : fault_add(fault, "%s: '%.80s' is not a kind of source", where,
                                   json_string_value(v));
}

/* The object is looked for beside the manifest. */
static int check_object(const json_t *v, const char *where, StrBuf *fault) {
        const char *s = json_string_value(v);
        return s[0] && !strchr(s, '/') && strcmp(s, ".") != 0 && strcmp(s, "..") != 0 &&
                               json_string_length(v) <= 255
                       ? 0
                       : fault_add(fault, "%s: '%.80s' is not a file name", where, s);
}

static int check_agreed(const json_t *v, const char *where, StrBuf *fault) {
        const char *s = json_string_value(v);
        return strcmp(s, "bus") == 0 || strcmp(s, "store") == 0 || strcmp(s, "alone") == 0
                       ? 0
                       : fault_add(fault, "%s: '%.80s' is neither bus nor store nor alone", where,
                                   s);
}

static int check_format(const json_t *v, const char *where, StrBuf *fault) {
        return strcmp(json_string_value(v), "zstd-seekable") == 0
                       ? 0
                       : fault_add(fault, "%s: '%.80s' is not 'zstd-seekable'", where,
                                   json_string_value(v));
}

static int check_mode(const json_t *v, const char *where, StrBuf *fault) {
        const char *s = json_string_value(v);
        return strlen(s) == 4 && strspn(s, "01234567") == 4
                       ? 0
                       : fault_add(fault, "%s: '%.20s' is not a mode of four octal digits", where,
                                   s);
}

static int check_member_kind(const json_t *v, const char *where, StrBuf *fault) {
        MemberKind kind;
        return member_kind_parse(json_string_value(v), &kind) == 0
                       ? 0
                       : fault_add(fault, "%s: '%.80s' is not a kind of member", where,
                                   json_string_value(v));
}

static int check_verdict(const json_t *v, const char *where, StrBuf *fault) {
        Verdict verdict;
        return verdict_parse(json_string_value(v), &verdict) == 0
                       ? 0
                       : fault_add(fault, "%s: '%.80s' is not a verdict", where,
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
        { "",         "pid",                JSON_INTEGER, true,  check_count },
        { "",         "tid",                JSON_INTEGER, true,  check_count },
        { "",         "log_id",             JSON_INTEGER, true,  check_count },
        { "",         "rank",               JSON_INTEGER, true,  check_count },
        { "",         "time",               JSON_STRING,  true,  check_text },
};
static const FieldRow part_rows[] = {
        { "",         "bytes",              JSON_INTEGER, false, check_count },
        { "",         "sha256",             JSON_STRING,  false, check_digest },
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
static int field_check(const json_t *object, const FieldRow *row, const char *prefix,
                       StrBuf *fault) {
        const json_t *v = json_object_get(object, row->key);
        char where[128];
        (void)snprintf(where, sizeof where, "%s%s", prefix,
                       row->key); /* both are ours, and short */
        if (!v)
                return fault_add(fault, "%s is missing", where);
        if (!type_fits(v, row))
                return fault_add(fault, "%s is %s, expected %s", where, type_name(json_typeof(v)),
                                 type_name(row->type));
        return row->check && !json_is_null(v) ? row->check(v, where, fault) : 0;
}

static int document_check(const json_t *document, StrBuf *fault) {
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

/* Those fields that are there. */
static int fields_check(const json_t *object, const FieldRow *rows, size_t n, const char *prefix,
                        StrBuf *fault) {
        for (size_t i = 0; i < n; i++) {
                int r = json_object_get(object, rows[i].key)
                                ? field_check(object, &rows[i], prefix, fault)
                                : 0;
                if (r < 0)
                        return r;
        }
        return 0;
}

static int failures_check(const json_t *document, StrBuf *fault) {
        const json_t *list = json_object_get(document, "failures"), *one;
        const json_t *job = json_object_get(json_object_get(document, "incident"), "job");
        size_t i;
        int r = fields_check(job, job_rows, ELEMENTSOF(job_rows), "incident.job.", fault);
        if (r == 0)
                r = fields_check(json_object_get(document, "failure"), failure_rows,
                                 ELEMENTSOF(failure_rows), "failure.", fault);
        if (r < 0 || !list || json_is_null(list))
                return r;
        if (!json_is_array(list) || json_array_size(list) > MANIFEST_FAILURES_MAX)
                return fault_add(fault, "failures is not a list of at most %d",
                                 MANIFEST_FAILURES_MAX);
        json_array_foreach(list, i, one) {
                char prefix[64];
                (void)snprintf(prefix, sizeof prefix, "failures[%zu].", i);
                if (!json_is_object(one))
                        return fault_add(fault, "failures[%zu] is %s, expected an object", i,
                                         type_name(json_typeof(one)));
                r = fields_check(one, failure_rows, ELEMENTSOF(failure_rows), prefix, fault);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* ---- lists ---- */

static int texts_check(const json_t *list, const char *where, StrBuf *fault) {
        size_t i;
        const json_t *v;
        json_array_foreach(list, i, v) {
                if (!json_is_string(v) || json_string_length(v) > TEXT_MAX)
                        return fault_add(fault, "%s[%zu] is not a text of at most %d bytes", where,
                                         i, TEXT_MAX);
        }
        return 0;
}

static int labels_check(const json_t *labels, StrBuf *fault) {
        const char *key;
        json_t *v;
        json_object_foreach((json_t *)labels, key, v) {
                if (!json_is_string(v) || json_string_length(v) > TEXT_MAX)
                        return fault_add(fault,
                                         "node.labels.%.80s is not a text of at most %d bytes", key,
                                         TEXT_MAX);
        }
        return 0;
}

static int parts_check(const json_t *bundle, StrBuf *fault) {
        const json_t *parts = json_object_get(bundle, "parts"), *part;
        const uint64_t bytes = (uint64_t)json_integer_value(json_object_get(bundle, "bytes"));
        uint64_t sum = 0;
        size_t i;
        if (json_array_size(parts) == 0 || json_array_size(parts) > PARTS_READ_MAX)
                return fault_add(fault, "bundle.parts has %zu entries, expected 1 to %d",
                                 json_array_size(parts), PARTS_READ_MAX);
        json_array_foreach(parts, i, part) {
                char prefix[64];
                (void)snprintf(prefix, sizeof prefix, "bundle.parts[%zu].", i);
                for (size_t k = 0; k < ELEMENTSOF(part_rows); k++) {
                        int r = field_check(part, &part_rows[k], prefix, fault);
                        if (r < 0)
                                return r;
                }
                const uint64_t n = (uint64_t)json_integer_value(json_object_get(part, "bytes"));
                if (n == 0 || __builtin_add_overflow(sum, n, &sum) || sum > bytes)
                        return fault_add(fault,
                                         "%sbytes: %" PRIu64
                                         " does not fit into the object's %" PRIu64,
                                         prefix, n, bytes);
        }
        if (sum != bytes)
                return fault_add(fault,
                                 "bundle.parts have %" PRIu64
                                 " bytes together, bundle.bytes says %" PRIu64,
                                 sum, bytes);
        return 0;
}

/* ---- members ---- */

/* A path that may be made below a directory: relative, and no component that is empty, `.` or `..`. */
static bool path_is_tame(const char *path) {
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
static int path_check(const json_t *value, const char *prefix, char **last, StrBuf *fault) {
        _cleanup_free_ char *raw = NULL;
        const char *escaped = json_string_value(value);
        if (json_string_length(value) > PATH_TEXT_MAX)
                return fault_add(fault, "%spath has %zu bytes, at most %d are expected", prefix,
                                 json_string_length(value), PATH_TEXT_MAX);
        int r = path_unescape(escaped, &raw);
        if (r == -ENOMEM)
                return r;
        if (r < 0 || !path_is_tame(raw))
                return fault_add(fault, "%spath: '%.200s' is not a path below the source", prefix,
                                 escaped);
        if (*last && strcmp(*last, raw) >= 0)
                return fault_add(fault, "%spath: '%.200s' stands twice or out of order", prefix,
                                 escaped);
        free(*last);
        *last = TAKE_PTR(raw);
        return 0;
}

static int member_digest_check(const json_t *member, const char *prefix, StrBuf *fault) {
        const json_t *sparse = json_object_get(member, "sha256_sparse");
        char where[128];
        if (!json_is_null(json_object_get(member, "sha256")))
                return sparse ? fault_add(fault, "%ssha256_sparse stands beside a sha256", prefix)
                              : 0;
        if (!json_is_string(sparse))
                return fault_add(fault, "%ssha256 is null, and there is no sha256_sparse", prefix);
        (void)snprintf(where, sizeof where, "%ssha256_sparse", prefix);
        return check_digest(sparse, where, fault);
}

/* Bytes of the tar stream before `offset`. Manifests of before had none. */
static int header_check(const json_t *header, json_int_t offset, const char *prefix,
                        StrBuf *fault) {
        if (!header)
                return 0;
        if (!json_is_integer(header))
                return fault_add(fault, "%sheader is %s, expected a whole number", prefix,
                                 type_name(json_typeof(header)));
        const json_int_t n = json_integer_value(header);
        if (n < 512 || n > offset || n % 512 != 0)
                return fault_add(fault,
                                 "%sheader: %" JSON_INTEGER_FORMAT
                                 " bytes are no tar header before offset %" JSON_INTEGER_FORMAT,
                                 prefix, n, offset);
        return 0;
}

static int member_check(const json_t *document, const json_t *member, const char *prefix,
                        char **last, StrBuf *fault) {
        for (size_t k = 0; k < ELEMENTSOF(member_rows); k++) {
                int r = field_check(member, &member_rows[k], prefix, fault);
                if (r < 0)
                        return r;
        }
        int r = path_check(json_object_get(member, "path"), prefix, last, fault);
        if (r == 0)
                r = member_digest_check(member, prefix, fault);
        if (r < 0)
                return r;

        const json_t *frames = json_object_get(document, "frames"),
                     *bundle = json_object_get(document, "bundle");
        const json_int_t frame = json_integer_value(json_object_get(member, "frame")),
                         n_frames = json_integer_value(json_object_get(frames, "count")),
                         offset = json_integer_value(json_object_get(member, "offset")),
                         n_stream =
                                 json_integer_value(json_object_get(bundle, "uncompressed_bytes"));
        if (frame >= n_frames)
                return fault_add(fault,
                                 "%sframe: %" JSON_INTEGER_FORMAT " of %" JSON_INTEGER_FORMAT
                                 " frames",
                                 prefix, frame, n_frames);
        if (offset >= n_stream || offset % 512 != 0)
                return fault_add(fault,
                                 "%soffset: %" JSON_INTEGER_FORMAT
                                 " is no place in a tar stream of %" JSON_INTEGER_FORMAT " bytes",
                                 prefix, offset, n_stream);
        return header_check(json_object_get(member, "header"), offset, prefix, fault);
}

static int members_check(const json_t *document, StrBuf *fault) {
        _cleanup_free_ char *last = NULL;
        const json_t *member;
        size_t i;
        json_array_foreach(json_object_get(document, "members"), i, member) {
                char prefix[64];
                (void)snprintf(prefix, sizeof prefix, "members[%zu].", i);
                int r = member_check(document, member, prefix, &last, fault);
                if (r < 0)
                        return r;
        }
        return 0;
}

static int manifest_check(const json_t *document, StrBuf *fault) {
        if (!json_is_object(document))
                return fault_add(fault, "the document is %s, expected an object",
                                 type_name(json_typeof(document)));
        int r = document_check(document, fault);
        if (r < 0)
                return r;
        const json_t *bundle = json_object_get(document, "bundle");
        r = parts_check(bundle, fault);
        if (r == 0)
                r = texts_check(json_object_get(bundle, "reasons"), "bundle.reasons", fault);
        if (r == 0)
                r = labels_check(json_object_get(json_object_get(document, "node"), "labels"),
                                 fault);
        if (r == 0)
                r = failures_check(document, fault);
        if (r == 0)
                r = members_check(document, fault);
        return r;
}

int manifest_read(const void *data, size_t n, json_t **ret, char **ret_fault) {
        _cleanup_(strbuf_done) StrBuf fault = STRBUF_INIT;
        json_t *document = NULL;
        json_error_t error;
        int r;

        if (n > MANIFEST_BYTES_MAX)
                r = fault_add(&fault, "the manifest has %zu bytes, at most %llu are read", n,
                              (unsigned long long)MANIFEST_BYTES_MAX);
        else {
                document = json_loadb(data, n, JSON_REJECT_DUPLICATES, &error);
                r = document ? manifest_check(document, &fault)
                             : fault_add(&fault, "line %d: %s", error.line, error.text);
        }
        if (r < 0) {
                json_decref(document);
                *ret_fault = strbuf_take(&fault);
                return r;
        }
        *ret = document;
        return 0;
}
