/* Reads a manifest that may come from anybody's bucket: what passes here has the fields of INTERFACE §4 with their types, within
 * bounds, and no path that leads out of a directory. Fields that are not known are let be: later versions may add some. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/bundle/manifest.h"
#include "lib/bundle/manifest_fields.h"

#define MANIFEST_BYTES_MAX (256 * MIB)
#define PARTS_READ_MAX 10000     /* S3's limit */
#define PATH_TEXT_MAX (4 * 4096) /* every byte escaped */

static int failures_check(const json_t *document, StrBuf *fault) {
        const json_t *list = json_object_get(document, "failures"), *one;
        const json_t *job = json_object_get(json_object_get(document, "incident"), "job");
        size_t i;
        int r = manifest_check_object(job, MANIFEST_JOB, "incident.job.", fault);
        if (r == 0)
                r = manifest_check_object(json_object_get(document, "failure"), MANIFEST_FAILURE,
                                          "failure.", fault);
        if (r < 0 || !list || json_is_null(list))
                return r;
        if (!json_is_array(list) || json_array_size(list) > MANIFEST_FAILURES_MAX)
                return manifest_fault_add(fault, "failures is not a list of at most %d",
                                          MANIFEST_FAILURES_MAX);
        json_array_foreach(list, i, one) {
                char prefix[64];
                (void)snprintf(prefix, sizeof prefix, "failures[%zu].", i);
                if (!json_is_object(one))
                        return manifest_fault_add(fault, "failures[%zu] is %s, expected an object",
                                                  i, manifest_type_name(json_typeof(one)));
                r = manifest_check_object(one, MANIFEST_FAILURE, prefix, fault);
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
                if (!json_is_string(v) || json_string_length(v) > MANIFEST_TEXT_MAX)
                        return manifest_fault_add(fault,
                                                  "%s[%zu] is not a text of at most %d bytes",
                                                  where, i, MANIFEST_TEXT_MAX);
        }
        return 0;
}

static int labels_check(const json_t *labels, StrBuf *fault) {
        const char *key;
        json_t *v;
        json_object_foreach((json_t *)labels, key, v) {
                if (!json_is_string(v) || json_string_length(v) > MANIFEST_TEXT_MAX)
                        return manifest_fault_add(
                                fault, "node.labels.%.80s is not a text of at most %d bytes", key,
                                MANIFEST_TEXT_MAX);
        }
        return 0;
}

static int parts_check(const json_t *bundle, StrBuf *fault) {
        const json_t *parts = json_object_get(bundle, "parts"), *part;
        const uint64_t bytes = (uint64_t)json_integer_value(json_object_get(bundle, "bytes"));
        uint64_t sum = 0;
        size_t i;
        if (json_array_size(parts) == 0 || json_array_size(parts) > PARTS_READ_MAX)
                return manifest_fault_add(fault, "bundle.parts has %zu entries, expected 1 to %d",
                                          json_array_size(parts), PARTS_READ_MAX);
        json_array_foreach(parts, i, part) {
                char prefix[64];
                (void)snprintf(prefix, sizeof prefix, "bundle.parts[%zu].", i);
                int r = manifest_check_object(part, MANIFEST_PART, prefix, fault);
                if (r < 0)
                        return r;
                const uint64_t n = (uint64_t)json_integer_value(json_object_get(part, "bytes"));
                if (n == 0 || __builtin_add_overflow(sum, n, &sum) || sum > bytes)
                        return manifest_fault_add(fault,
                                                  "%sbytes: %" PRIu64
                                                  " does not fit into the object's %" PRIu64,
                                                  prefix, n, bytes);
        }
        if (sum != bytes)
                return manifest_fault_add(fault,
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
                return manifest_fault_add(fault, "%spath has %zu bytes, at most %d are expected",
                                          prefix, json_string_length(value), PATH_TEXT_MAX);
        int r = path_unescape(escaped, &raw);
        if (r == -ENOMEM)
                return r;
        if (r < 0 || !path_is_tame(raw))
                return manifest_fault_add(fault, "%spath: '%.200s' is not a path below the source",
                                          prefix, escaped);
        if (*last && strcmp(*last, raw) >= 0)
                return manifest_fault_add(fault, "%spath: '%.200s' stands twice or out of order",
                                          prefix, escaped);
        free(*last);
        *last = TAKE_PTR(raw);
        return 0;
}

static int member_digest_check(const json_t *member, const char *prefix, StrBuf *fault) {
        const json_t *sparse = json_object_get(member, "sha256_sparse");
        char where[128];
        if (!json_is_null(json_object_get(member, "sha256")))
                return sparse ? manifest_fault_add(fault, "%ssha256_sparse stands beside a sha256",
                                                   prefix)
                              : 0;
        if (!json_is_string(sparse))
                return manifest_fault_add(fault, "%ssha256 is null, and there is no sha256_sparse",
                                          prefix);
        (void)snprintf(where, sizeof where, "%ssha256_sparse", prefix);
        return manifest_check_digest(sparse, where, fault);
}

/* Bytes of the tar stream before `offset`. Manifests of before had none. */
static int header_check(const json_t *header, json_int_t offset, const char *prefix,
                        StrBuf *fault) {
        if (!header)
                return 0;
        if (!json_is_integer(header))
                return manifest_fault_add(fault, "%sheader is %s, expected a whole number", prefix,
                                          manifest_type_name(json_typeof(header)));
        const json_int_t n = json_integer_value(header);
        if (n < 512 || n > offset || n % 512 != 0)
                return manifest_fault_add(
                        fault,
                        "%sheader: %" JSON_INTEGER_FORMAT
                        " bytes are no tar header before offset %" JSON_INTEGER_FORMAT,
                        prefix, n, offset);
        return 0;
}

typedef struct MemberWalk {
        const json_t *document;
        char *last; /* the raw path of the member before, NULL before the first; owned */
} MemberWalk;

static int member_check(MemberWalk *w, const json_t *member, const char *prefix, StrBuf *fault) {
        int r = manifest_check_object(member, MANIFEST_MEMBER, prefix, fault);
        if (r < 0)
                return r;
        r = path_check(json_object_get(member, "path"), prefix, &w->last, fault);
        if (r == 0)
                r = member_digest_check(member, prefix, fault);
        if (r < 0)
                return r;

        const json_t *frames = json_object_get(w->document, "frames"),
                     *bundle = json_object_get(w->document, "bundle");
        const json_int_t frame = json_integer_value(json_object_get(member, "frame")),
                         n_frames = json_integer_value(json_object_get(frames, "count")),
                         offset = json_integer_value(json_object_get(member, "offset")),
                         n_stream =
                                 json_integer_value(json_object_get(bundle, "uncompressed_bytes"));
        if (frame >= n_frames)
                return manifest_fault_add(fault,
                                          "%sframe: %" JSON_INTEGER_FORMAT
                                          " of %" JSON_INTEGER_FORMAT " frames",
                                          prefix, frame, n_frames);
        if (offset >= n_stream || offset % 512 != 0)
                return manifest_fault_add(fault,
                                          "%soffset: %" JSON_INTEGER_FORMAT
                                          " is no place in a tar stream of %" JSON_INTEGER_FORMAT
                                          " bytes",
                                          prefix, offset, n_stream);
        return header_check(json_object_get(member, "header"), offset, prefix, fault);
}

static int members_check(const json_t *document, StrBuf *fault) {
        MemberWalk w = { .document = document };
        const json_t *member;
        size_t i;
        int r = 0;
        json_array_foreach(json_object_get(document, "members"), i, member) {
                char prefix[64];
                (void)snprintf(prefix, sizeof prefix, "members[%zu].", i);
                r = member_check(&w, member, prefix, fault);
                if (r < 0)
                        break;
        }
        free(w.last);
        return r;
}

static int manifest_check(const json_t *document, StrBuf *fault) {
        if (!json_is_object(document))
                return manifest_fault_add(fault, "the document is %s, expected an object",
                                          manifest_type_name(json_typeof(document)));
        int r = manifest_check_document(document, fault);
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
                r = manifest_fault_add(&fault, "the manifest has %zu bytes, at most %llu are read",
                                       n, (unsigned long long)MANIFEST_BYTES_MAX);
        else {
                document = json_loadb(data, n, JSON_REJECT_DUPLICATES, &error);
                r = document ? manifest_check(document, &fault)
                             : manifest_fault_add(&fault, "line %d: %s", error.line, error.text);
        }
        if (r < 0) {
                json_decref(document);
                *ret_fault = strbuf_take(&fault);
                return r;
        }
        *ret = document;
        return 0;
}
