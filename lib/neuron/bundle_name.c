/* Makes the names of a bundle: its id, the directory of its object and manifest at a destination,
 * and their file names; also the keys that an agent uses in a bucket. Pure functions, the same on
 * every node and at any time, except that `%u` looks up the name of a user. Which unit becomes a
 * bundle is left to scan.c. */
#include "lib/neuron/bundle_name.h"

#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/digest.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/ids.h"

/* 9999-12-31T23:59:59. A later time does not fit into an id, and only a hostile file has one. */
#define LAST_USEC (UINT64_C(253402300799) * USEC_PER_SEC)

#define NO_CLUSTER "0000000000000000"
#define PASSWD_BYTES 4096

/* ---- its id ---- */

void bundle_id_build(const BundleIdInput *in, char ret[BUNDLE_ID_SIZE]) {
        char time[CLOCK_ISO_SIZE], hex[SHA256_HEX_SIZE];
        uint8_t digest[SHA256_SIZE];
        uint64_t usec;
        Sha256 s;

        if (date_time_parse(in->date_time, &usec) < 0)
                usec = MIN(in->oldest_mtime_usec, LAST_USEC);
        sha256_init(&s);
        id_digest_add_text(&s, in->instance_id);
        id_digest_add_text(&s, in->source);
        id_digest_add_text(&s, in->path);
        if (!in->unique_name) {
                id_digest_add_u64(&s, in->first_dev);
                id_digest_add_u64(&s, in->first_ino);
                id_digest_add_u64(&s, (uint64_t)in->first_mtime_nsec);
        }
        sha256_final(&s, digest);
        (void)snprintf(ret, BUNDLE_ID_SIZE, "%s-%s-%.12s", source_kind_name(in->kind),
                       clock_format_compact(time, usec, 'T'),
                       digest_hex(digest, sizeof digest, hex));
}

/* @return s behind its first n characters, which are all of the set; else NULL */
static const char *skip_exactly(const char *s, const char *set, size_t n) {
        return s && strspn(s, set) >= n ? s + n : NULL;
}

static const char *skip_char(const char *s, char c) {
        return s && *s == c ? s + 1 : NULL;
}

static bool is_supplement_suffix(const char *s) {
        if (strncmp(s, "-s", 2) != 0 || s[2] < '1' || s[2] > '9')
                return false;
        size_t n = strspn(s + 2, "0123456789");
        return n <= 9 && s[2 + n] == '\0';
}

const char *bundle_id_kind_name(const char *s) {
        static const char digits[] = "0123456789";

        if (strlen(s) >= BUNDLE_ID_SIZE)
                return NULL;
        for (SourceKind k = 0; k < N_SOURCE_KINDS; k++) {
                size_t n = strlen(source_kind_name(k));
                const char *p = strncmp(s, source_kind_name(k), n) == 0 ? s + n : NULL;

                p = skip_exactly(skip_char(p, '-'), digits, 8);
                p = skip_exactly(skip_char(p, 'T'), digits, 6);
                p = skip_exactly(skip_char(p, '-'), "0123456789abcdef", 12);
                if (p && (*p == '\0' || is_supplement_suffix(p)))
                        return source_kind_name(k);
        }
        return NULL;
}

bool bundle_id_is_valid(const char *s) {
        return bundle_id_kind_name(s) != NULL;
}

void bundle_id_from_unit(const BundleOrigin *o, const ScanUnit *u, const char *path,
                         char ret[BUNDLE_ID_SIZE]) {
        uint64_t ignored;
        bool has_date = date_time_parse(u->values.date_time, &ignored) == 0;
        BundleIdInput in = {
                .kind = o->kind,
                .instance_id = o->instance_id,
                .source = o->source,
                .path = path,
                .date_time = u->values.date_time,
                .oldest_mtime_usec = u->oldest_mtime_usec,
                .unique_name = (o->kind == SOURCE_NEURON_CORE_DUMP && has_date) ||
                               source_kind_is_own(o->kind),
                .first_dev = (uint64_t)u->first.st_dev,
                .first_ino = (uint64_t)u->first.st_ino,
                .first_mtime_nsec = (int64_t)u->first.st_mtim.tv_sec * (int64_t)NSEC_PER_SEC +
                                    u->first.st_mtim.tv_nsec,
        };
        bundle_id_build(&in, ret);
}

/* ---- its directory ---- */

/* Writes the user's name, or the number of a user without a name. */
static void user_name(uid_t uid, char *buf, size_t n) {
        char space[PASSWD_BYTES];
        struct passwd pw, *found = NULL;
        if (getpwuid_r(uid, &pw, space, sizeof space, &found) == 0 && found)
                snprintf(buf, n, "%s", pw.pw_name);
        else
                snprintf(buf, n, "%u", (unsigned)uid);
}

char *bundle_directory(const PathTemplate *prefix, const BundleOrigin *o, const BundleLocation *p) {
        char date[CLOCK_ISO_SIZE], user[256] = "";
        if (path_template_has(prefix, 'u')) /* a lookup may be slow */
                user_name(p->uid, user, sizeof user);
        clock_format_compact(date, p->oldest_mtime_usec, '-');
        ExpandValues values = {
                .date_time = p->date_time[0] ? p->date_time : date,
                .cluster_id = p->cluster_id[0] ? p->cluster_id : NO_CLUSTER,
                .instance_id = o->instance_id,
                .kind = source_kind_name(o->kind),
                .source = o->source,
                .host = o->hostname,
                .user = user,
        };
        _cleanup_free_ char *path = path_template_expand(prefix, &values);
        return path ? path_join(path, o->instance_id) : NULL;
}

int bundle_directory_from_prefix(const char *s3_prefix, const char *bucket, const char *instance_id,
                                 char **ret) {
        static const char scheme[] = "s3://";
        size_t n_scheme = sizeof scheme - 1, n_bucket = strlen(bucket);
        *ret = NULL;
        if (strncmp(s3_prefix, scheme, n_scheme) != 0 ||
            strncmp(s3_prefix + n_scheme, bucket, n_bucket) != 0)
                return 0;
        const char *rest = s3_prefix + n_scheme + n_bucket;
        if (rest[0] != '/' && rest[0] != '\0')
                return 0;
        rest += rest[0] == '/';
        size_t n = strlen(rest);
        _cleanup_free_ char *key = strndup(rest, n > 1 && rest[n - 1] == '/' ? n - 1 : n);
        if (!key)
                return -ENOMEM;
        if (!unit_path_is_clean(key))
                return 0;
        *ret = path_join(key, instance_id);
        return *ret ? 0 : -ENOMEM;
}

/* ---- its files, and the keys of a destination ---- */

char *bundle_object_name(const char *stem) {
        return strbuf_format("%s" BUNDLE_SUFFIX, stem);
}

char *bundle_manifest_name(const char *stem) {
        return strbuf_format("%s" MANIFEST_SUFFIX, stem);
}

BundleFile bundle_file_kind(const char *key, size_t *ret_stem) {
        const char *name = path_name(key), *suffix = "";
        BundleFile file = BUNDLE_NEITHER;
        if (path_has_suffix(name, BUNDLE_SUFFIX)) {
                file = BUNDLE_OBJECT;
                suffix = BUNDLE_SUFFIX;
        } else if (path_has_suffix(name, MANIFEST_SUFFIX)) {
                file = BUNDLE_MANIFEST;
                suffix = MANIFEST_SUFFIX;
        }
        if (ret_stem)
                *ret_stem = strlen(key) - strlen(suffix);
        return file;
}

bool bundle_key_belongs_to(const char *key, const char *instance_id) {
        const char *slash = strrchr(key, '/');
        size_t n_stem;
        if (!slash || bundle_file_kind(key, &n_stem) == BUNDLE_NEITHER)
                return false;
        char id[BUNDLE_ID_SIZE];
        size_t n_id = n_stem - (size_t)(slash + 1 - key);
        if (n_id >= sizeof id)
                return false;
        memcpy(id, slash + 1, n_id);
        id[n_id] = '\0';
        if (!bundle_id_is_valid(id))
                return false;
        if (!instance_id)
                return true;
        size_t n = strlen(instance_id), n_directory = (size_t)(slash - key);
        return n_directory >= n && strncmp(slash - n, instance_id, n) == 0 &&
               (n_directory == n || key[n_directory - n - 1] == '/');
}

char *s3_key_prefix(const char *fixed) {
        fixed += strspn(fixed, "/");
        return strbuf_format("%s%s", fixed, *fixed ? "/" : "");
}

char *s3_probe_key(const char *key_prefix, const char *instance_id) {
        return strbuf_format("%s.neuron-collectd-probe-%s", key_prefix, instance_id);
}
