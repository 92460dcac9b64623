#include "lib/neuron/place.h"

#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/path.h"
#include "lib/neuron/ids.h"

#define NO_CLUSTER "0000000000000000"
#define PASSWD_BYTES 4096

void bundle_id_of_unit(const BundleOrigin *o, const ScanUnit *u, const char *path,
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
        bundle_id_make(&in, ret);
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

char *bundle_directory(const PathTemplate *prefix, const BundleOrigin *o, const BundlePlace *p) {
        char date[CLOCK_ISO_SIZE], user[256] = "";
        if (path_template_has(prefix, 'u')) /* a look-up may take its time */
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

static bool is_tame(const char *key) {
        for (;;) {
                size_t n = strcspn(key, "/");
                if (n == 0 || (n == 1 && key[0] == '.') || (n == 2 && strncmp(key, "..", 2) == 0))
                        return false;
                if (key[n] == '\0')
                        return true;
                key += n + 1;
        }
}

int bundle_directory_of_prefix(const char *s3_prefix, const char *bucket, const char *instance_id,
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
        if (key[0] && !is_tame(key))
                return 0;
        *ret = path_join(key, instance_id);
        return *ret ? 0 : -ENOMEM;
}
