/* Identities: the instance id of the node, from the configuration, the firmware (DMI) or the host
 * name; and the fingerprint of a member. Also how texts and numbers enter the digest of an
 * identity. The bundle's id is built in bundle_name.c. */
#include "lib/neuron/ids.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/digest.h"
#include "lib/base/fs.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/names.h"

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

void id_digest_add_u64(Sha256 *s, uint64_t v) {
        uint8_t bytes[8];

        for (size_t i = 0; i < sizeof bytes; i++)
                bytes[i] = (uint8_t)(v >> (8 * i));
        sha256_update(s, bytes, sizeof bytes);
}

void id_digest_add_text(Sha256 *s, const char *text) {
        id_digest_add_u64(s, strlen(text));
        sha256_update(s, text, strlen(text));
}

uint64_t member_fingerprint(const char *path, const struct stat *st) {
        uint8_t digest[SHA256_SIZE];
        uint64_t v = 0;
        Sha256 s;

        sha256_init(&s);
        id_digest_add_text(&s, path);
        id_digest_add_u64(&s, (uint64_t)st->st_size);
        /* Seconds and nanoseconds apart: a file may claim a time whose nanoseconds overflow 64
         * bits. */
        id_digest_add_u64(&s, (uint64_t)st->st_mtim.tv_sec);
        id_digest_add_u64(&s, (uint64_t)st->st_mtim.tv_nsec);
        id_digest_add_u64(&s, st->st_ino);
        sha256_final(&s, digest);
        for (size_t i = 0; i < sizeof v; i++)
                v |= (uint64_t)digest[i] << (8 * i);
        return v;
}

bool member_fingerprints_contain(const uint64_t *sorted, size_t n, uint64_t fingerprint) {
        size_t up_to = array_count_up_to(sorted, n, sizeof *sorted, fingerprint);
        return up_to > 0 && sorted[up_to - 1] == fingerprint;
}
