/* Identities made of facts: each is the same for the same facts, whoever asks and whenever. */
#include "lib/neuron/ids.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/digest.h"
#include "lib/neuron/names.h"
#include "lib/neuron/template.h"

/* 9999-12-31T23:59:59: later ones would not fit the spelling, and only a hostile file has them. */
#define LAST_USEC (UINT64_C(253402300799) * USEC_PER_SEC)

static bool is_safe(char c) {
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
               c == '.' || c == '_' || c == '-';
}

static bool is_dots(const char *s) {
        return strcmp(s, ".") == 0 || strcmp(s, "..") == 0;
}

static int take_fixed(const char *fixed, char ret[INSTANCE_ID_SIZE]) {
        size_t n = strlen(fixed);

        if (n >= INSTANCE_ID_SIZE)
                return -ENAMETOOLONG;
        for (size_t i = 0; i < n; i++)
                if (!is_safe(fixed[i]))
                        return -EINVAL;
        if (is_dots(fixed))
                return -EINVAL;
        memcpy(ret, fixed, n + 1);
        return 0;
}

void instance_id_from_host(const char *host, char ret[INSTANCE_ID_SIZE]) {
        size_t n = 0;

        for (; host[n] != '\0' && n < INSTANCE_ID_SIZE - 1; n++)
                ret[n] = is_safe(host[n]) ? host[n] : '-';
        ret[n] = '\0';
        if (n == 0 || is_dots(ret))
                (void)strcpy(ret, "unknown-host"); /* shorter than any INSTANCE_ID_SIZE */
}

/* @return whether the file holds an EC2 id */
static bool read_asset_tag(const char *sysfs_root, const char *path, char ret[INSTANCE_ID_SIZE]) {
        _cleanup_close_ int root_fd = open(sysfs_root, O_PATH | O_DIRECTORY | O_CLOEXEC), fd = -1;
        char text[INSTANCE_ID_SIZE];
        ssize_t n;

        if (root_fd < 0)
                return false;
        fd = openat(root_fd, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        if (fd < 0)
                return false;
        n = read(fd, text, sizeof text - 1);
        if (n <= 0)
                return false;
        text[n] = '\0';
        text[strcspn(text, "\n")] = '\0';
        if (!instance_id_is_ec2(text))
                return false;
        memcpy(ret, text, strlen(text) + 1);
        return true;
}

int instance_id_find(const char *fixed, const char *sysfs_root, char ret[INSTANCE_ID_SIZE],
                     const char **ret_origin) {
        char host[HOST_NAME_MAX + 1] = "";

        if (fixed && fixed[0] != '\0' && strcmp(fixed, "auto") != 0) {
                int r = take_fixed(fixed, ret);

                if (r == 0)
                        *ret_origin = "configuration";
                return r;
        }
        if (read_asset_tag(sysfs_root, "devices/virtual/dmi/id/board_asset_tag", ret) ||
            read_asset_tag(sysfs_root, "class/dmi/id/board_asset_tag", ret)) {
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

void bundle_id_make(const BundleIdInput *in, char ret[BUNDLE_ID_SIZE]) {
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
        size_t n;

        if (strncmp(s, "-s", 2) != 0 || s[2] < '1' || s[2] > '9')
                return false;
        n = strspn(s + 2, "0123456789");
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

bool member_fingerprints_have(const uint64_t *sorted, size_t n, uint64_t fingerprint) {
        size_t low = 0, high = n;

        while (low < high) {
                size_t mid = low + (high - low) / 2;

                if (sorted[mid] < fingerprint)
                        low = mid + 1;
                else
                        high = mid;
        }
        return low < n && sorted[low] == fingerprint;
}
