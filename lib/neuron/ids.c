/* Identities: pure functions of facts, the same on every node and at any time. And where a bundle
 * goes. */
#include "lib/neuron/ids.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/digest.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/names.h"

/* 9999-12-31T23:59:59: later ones would not fit the spelling, and only a hostile file has them. */
#define LAST_USEC (UINT64_C(253402300799) * USEC_PER_SEC)

#define DMI_BYTES_MAX 256

static bool is_dots(const char *s) {
        return strcmp(s, ".") == 0 || strcmp(s, "..") == 0;
}

static int use_fixed(const char *fixed, char ret[INSTANCE_ID_SIZE]) {
        size_t n = strlen(fixed);

        if (n >= INSTANCE_ID_SIZE)
                return -ENAMETOOLONG;
        if (strspn(fixed, INSTANCE_ID_CHARACTERS) != n || is_dots(fixed))
                return -EINVAL;
        memcpy(ret, fixed, n + 1);
        return 0;
}

void instance_id_from_host(const char *host, char ret[INSTANCE_ID_SIZE]) {
        size_t n = 0;

        for (; host[n] != '\0' && n < INSTANCE_ID_SIZE - 1; n++)
                ret[n] = strchr(INSTANCE_ID_CHARACTERS, host[n]) ? host[n] : '-';
        ret[n] = '\0';
        if (n == 0 || is_dots(ret))
                (void)strcpy(ret, "unknown-host"); /* shorter than any INSTANCE_ID_SIZE */
}

char *dmi_read(const char *sysfs_root, const char *name) {
        static const char *const directories[] = { "devices/virtual/dmi/id", "class/dmi/id" };
        for (size_t i = 0; i < ELEMENTSOF(directories); i++) {
                _cleanup_free_ char *path =
                        strbuf_format("%s/%s/%s", sysfs_root, directories[i], name);
                char *text = NULL;
                if (path && fs_read_file(AT_FDCWD, path, DMI_BYTES_MAX, &text, NULL) == 0) {
                        text[strcspn(text, "\n")] = '\0';
                        return text;
                }
        }
        return NULL;
}

int instance_id_find(const char *fixed, const char *sysfs_root, char ret[INSTANCE_ID_SIZE],
                     const char **ret_origin) {
        char host[HOST_NAME_MAX + 1] = "";

        if (fixed && fixed[0] != '\0' && strcmp(fixed, "auto") != 0) {
                int r = use_fixed(fixed, ret);

                if (r == 0)
                        *ret_origin = "configuration";
                return r;
        }
        _cleanup_free_ char *tag = dmi_read(sysfs_root, "board_asset_tag");
        if (tag && instance_id_is_ec2(tag)) {
                memcpy(ret, tag, strlen(tag) + 1); /* of 19 characters at most */
                *ret_origin = "dmi";
                return 0;
        }
        if (gethostname(host, sizeof host - 1) < 0)
                return -errno;
        instance_id_from_host(host, ret);
        *ret_origin = "hostname";
        return 0;
}

static void add_u64(Sha256 *s, uint64_t v) {
        uint8_t bytes[8];

        for (size_t i = 0; i < sizeof bytes; i++)
                bytes[i] = (uint8_t)(v >> (8 * i));
        sha256_update(s, bytes, sizeof bytes);
}

static void add_text(Sha256 *s, const char *text) {
        add_u64(s, strlen(text));
        sha256_update(s, text, strlen(text));
}

void bundle_id_build(const BundleIdInput *in, char ret[BUNDLE_ID_SIZE]) {
        char time[CLOCK_ISO_SIZE], hex[SHA256_HEX_SIZE];
        uint8_t digest[SHA256_SIZE];
        uint64_t usec;
        Sha256 s;

        if (date_time_parse(in->date_time, &usec) < 0)
                usec = MIN(in->oldest_mtime_usec, LAST_USEC);
        sha256_init(&s);
        add_text(&s, in->instance_id);
        add_text(&s, in->source);
        add_text(&s, in->path);
        if (!in->unique_name) {
                add_u64(&s, in->first_dev);
                add_u64(&s, in->first_ino);
                add_u64(&s, (uint64_t)in->first_mtime_nsec);
        }
        sha256_final(&s, digest);
        (void)snprintf(ret, BUNDLE_ID_SIZE, "%s-%s-%.12s", source_kind_name(in->kind),
                       clock_format_compact(time, usec, 'T'),
                       digest_hex(digest, sizeof digest, hex));
}

/* @return what follows n characters of the set, or NULL */
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

bool bundle_id_is_valid(const char *s) {
        static const char digits[] = "0123456789";

        if (strlen(s) >= BUNDLE_ID_SIZE)
                return false;
        for (SourceKind k = 0; k < N_SOURCE_KINDS; k++) {
                size_t n = strlen(source_kind_name(k));
                const char *p = strncmp(s, source_kind_name(k), n) == 0 ? s + n : NULL;

                p = skip_exactly(skip_char(p, '-'), digits, 8);
                p = skip_exactly(skip_char(p, 'T'), digits, 6);
                p = skip_exactly(skip_char(p, '-'), "0123456789abcdef", 12);
                if (p && (*p == '\0' || is_supplement_suffix(p)))
                        return true;
        }
        return false;
}

uint64_t member_fingerprint(const char *path, const struct stat *st) {
        uint8_t digest[SHA256_SIZE];
        uint64_t v = 0;
        Sha256 s;

        sha256_init(&s);
        add_text(&s, path);
        add_u64(&s, (uint64_t)st->st_size);
        /* Not through one number of nanoseconds: that would overflow for the times that a file may
         * claim. */
        add_u64(&s, (uint64_t)st->st_mtim.tv_sec);
        add_u64(&s, (uint64_t)st->st_mtim.tv_nsec);
        add_u64(&s, st->st_ino);
        sha256_final(&s, digest);
        for (size_t i = 0; i < sizeof v; i++)
                v |= (uint64_t)digest[i] << (8 * i);
        return v;
}

bool member_fingerprints_contain(const uint64_t *sorted, size_t n, uint64_t fingerprint) {
        size_t up_to = array_count_up_to(sorted, n, sizeof *sorted, fingerprint);
        return up_to > 0 && sorted[up_to - 1] == fingerprint;
}

#define NO_CLUSTER "0000000000000000"
#define PASSWD_BYTES 4096

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
                .unique_name = o->kind == SOURCE_NEURON_CORE_DUMP && has_date,
                .first_dev = (uint64_t)u->first.st_dev,
                .first_ino = (uint64_t)u->first.st_ino,
                .first_mtime_nsec = (int64_t)u->first.st_mtim.tv_sec * (int64_t)NSEC_PER_SEC +
                                    u->first.st_mtim.tv_nsec,
        };
        bundle_id_build(&in, ret);
}

/* The owner's name, or the number where there is none. */
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
