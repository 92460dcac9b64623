/* Writes the manifest piece by piece: INTERFACE §4 fixes its fields, docs/BUNDLE.md explains them. A member and a part have a
 * line each, so that grep and diff are of use. */
#include "lib/bundle/manifest.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/base/utf8.h"

#define PIECE_BYTES 4096

typedef struct Out {
        int (*put)(const void *data, size_t n, void *userdata);
        void *userdata;
        StrBuf piece;
} Out;

static int out_flush(Out *o) {
        int r = strbuf_error(&o->piece);
        if (r == 0 && o->piece.n > 0)
                r = o->put(o->piece.text, o->piece.n, o->userdata);
        strbuf_clear(&o->piece);
        return r;
}

/* Between the lines: keeps a piece from growing. */
static int out_flush_if_full(Out *o) {
        return o->piece.n >= PIECE_BYTES || strbuf_error(&o->piece) < 0 ? out_flush(o) : 0;
}

/* RFC 8259, 7. What is not UTF-8 is spelled `\xNN`, as path_escape() does; NULL becomes null. */
static void add_text(StrBuf *b, const char *s) {
        if (!s) {
                strbuf_add(b, "null");
                return;
        }
        strbuf_add(b, "\"");
        for (size_t n = strlen(s), n_char; n > 0; s += n_char, n -= n_char) {
                const unsigned char c = (unsigned char)*s;
                n_char = utf8_char_size(s, n);
                if (n_char == 0) {
                        strbuf_addf(b, "\\\\x%02x", c);
                        n_char = 1;
                } else if (c == '"' || c == '\\')
                        strbuf_addf(b, "\\%c", c);
                else if (c < 0x20)
                        strbuf_addf(b, "\\u%04x", c);
                else
                        strbuf_add_n(b, s, n_char);
        }
        strbuf_add(b, "\"");
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

static int put_parts(Out *o, const Parts *parts) {
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

static int put_bundle(Out *o, const ManifestInfo *info, const ManifestContent *object) {
        StrBuf *b = &o->piece;
        add_field(b, " \"bundle\": {\"id\": ", info->id);
        add_field(b, ", \"kind\": ", source_kind_name(info->kind));
        add_field(b, ", \"object\": ", info->object);
        strbuf_addf(b, ", \"bytes\": %" PRIu64 ", \"uncompressed_bytes\": %" PRIu64, info->bytes,
                    plan_stream_bytes(object->plan));
        add_digest(b, ", \"plan\": ", object->plan_sha256);
        strbuf_add(b, ",");
        int r = put_parts(o, object->parts);
        if (r < 0)
                return r;

        strbuf_addf(b, "\n            \"complete\": %s, \"reasons\": [",
                    info->complete ? "true" : "false");
        for (size_t i = 0; info->reasons && info->reasons[i]; i++)
                add_field(b, i > 0 ? ", " : "", info->reasons[i]);
        add_field(b, "], \"supplement_of\": ", info->supplement_of);
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

static int put_failures(Out *o, const ManifestInfo *info) {
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

static int put_origin(Out *o, const ManifestInfo *info) {
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
                add_field(b, ", \"derived\": false, \"agreed\": ", info->agreed);
                add_job(b, info->job);
                strbuf_add(b, "},\n");
        } else
                strbuf_add(b, " \"incident\": null,\n");
        return out_flush_if_full(o);
}

static int put_member(Out *o, const Plan *plan, const PlanMember *m, const MemberResult *result) {
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
        add_field(b, ", \"verdict\": ", verdict_name(result->verdict));
        add_field(b, ", \"detail\": ", result->detail ? result->detail : "");
        strbuf_addf(b,
                    ", \"frame\": %" PRIu64 ", \"offset\": %" PRIu64 ", \"header\": %" PRIu32 "}",
                    plan_frame_at(plan, offset), offset, m->header_bytes);
        return out_flush_if_full(o);
}

static int put_members(Out *o, const Plan *plan, const BundleWriter *writer) {
        strbuf_add(&o->piece, " \"members\": [");
        for (size_t i = 0; i < plan_n_members(plan); i++) {
                if (i > 0)
                        strbuf_add(&o->piece, ",\n             ");
                int r = put_member(o, plan, plan_member(plan, i), bundle_writer_member(writer, i));
                if (r < 0)
                        return r;
        }
        strbuf_add(&o->piece, "],\n");
        return 0;
}

int manifest_write(const ManifestInfo *info, const ManifestContent *object,
                   int (*put)(const void *data, size_t n, void *userdata), void *userdata) {
        Out o = { .put = put, .userdata = userdata };
        char created[CLOCK_ISO_SIZE];

        strbuf_add(&o.piece, "{\"schema\": \"neuron-collectd/manifest/1\",\n");
        int r = put_bundle(&o, info, object);
        if (r == 0)
                r = put_origin(&o, info);
        if (r == 0)
                r = put_failures(&o, info);
        if (r == 0)
                r = put_members(&o, object->plan, object->writer);
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
