/* The file with the keys that messages of the bus are signed with. It is read again when it has
 * changed, so that keys can be exchanged while the agent runs. What is wrong with it is reported
 * with line and remedy, but a line is never shown, since it may be a secret. */
#include "agent/peers/bus_keys.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/digest.h"
#include "lib/base/fs.h"
#include "lib/base/parse.h"

#define FILE_BYTES_MAX ((size_t)4096)
#define FORM "write `id:` and 64 hex digits, as `neuron-collect key new` does"

/* ---- the text ---- */

static bool is_id(const char *id, size_t n) {
        return n > 0 && n < WIRE_KEY_ID_SIZE && strspn(id, WIRE_NAME_LETTERS) >= n;
}

static bool is_known(const BusKeys *keys, const WireKey *key) {
        for (size_t i = 0; i < keys->n; i++)
                if (strcmp(keys->items[i].id, key->id) == 0)
                        return true;
        return false;
}

/* @param line  without blanks at its ends  @return whether it is a key; else a fault is added */
static bool parse_line(const char *line, DiagLocation where, BusKeys *keys, Diags *faults) {
        WireKey key = { .id = "" };
        size_t n_before = keys->n;
        const char *colon = strchr(line, ':');
        size_t n_id = colon ? (size_t)(colon - line) : 0;
        if (!colon || !is_id(line, n_id)) { /* the line is not shown: it may be a secret */
                diag_add(faults, where, FORM, "it has no id of 1 to 16 of [0-9A-Za-z._-]");
                return false;
        }
        memcpy(key.id, line, n_id);
        if (strlen(colon + 1) != 2 * WIRE_SECRET_SIZE ||
            parse_hex_bytes(colon + 1, key.secret, WIRE_SECRET_SIZE) < 0)
                diag_add(faults, where, FORM, "key '%s' is not 64 hex digits", key.id);
        else if (is_known(keys, &key))
                diag_add(faults, where, "give each key its own id",
                         "id '%s' is there a second time", key.id);
        else if (keys->n == BUS_KEYS_MAX)
                diag_add(faults, where, "remove keys that no node signs with any more",
                         "there are more than %d keys", BUS_KEYS_MAX);
        else
                keys->items[keys->n++] = key;
        digest_wipe(&key, sizeof key);
        return keys->n > n_before;
}

static char *trim(char *line) {
        line += strspn(line, " \t\r");
        for (size_t n = strlen(line); n > 0 && strchr(" \t\r", line[n - 1]); n--)
                line[n - 1] = '\0';
        return line;
}

int bus_keys_parse(const char *text, const char *file, BusKeys *ret, Diags *faults) {
        BusKeys keys = { .n = 0 };
        bool is_valid = true; /* a fault may be lost for lack of memory */
        unsigned number = 0;
        char line[256];
        for (const char *at = text; *at;) {
                size_t n = strcspn(at, "\n");
                DiagLocation where = { .file = file, .line = ++number };
                (void)snprintf(line, sizeof line, "%.*s", (int)MIN(n, sizeof line - 1), at);
                char *words = trim(line);
                if (*words && *words != '#')
                        is_valid &= parse_line(words, where, &keys, faults);
                at += n + (at[n] == '\n');
        }
        if (keys.n == 0 && is_valid)
                diag_add(faults, (DiagLocation){ .file = file }, FORM, "it has no key");
        is_valid = is_valid && keys.n > 0;
        if (is_valid)
                *ret = keys;
        digest_wipe(&keys, sizeof keys);
        digest_wipe(line, sizeof line);
        return is_valid ? 0 : -EINVAL;
}

/* ---- the file ---- */

/* @return 0; -errno, and faults are added */
static int read_file(const BusKeyFile *f, BusKeys *ret, Diags *faults) {
        const char *path = f->path;
        DiagLocation where = { .file = path };
        _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        struct stat st;
        if (fd < 0 || fstat(fd, &st) < 0) {
                int r = -errno;
                diag_add(faults, where,
                         "create it with `neuron-collect key new`, readable by the "
                         "agent",
                         "cannot read the key file: %s", strerror(-r));
                return r;
        }
        if (st.st_uid != 0 && st.st_uid != geteuid() && st.st_uid != f->uid) {
                diag_add(faults, where, "chown it to root",
                         "the key file belongs to uid %u, who may replace the key",
                         (unsigned)st.st_uid);
                return -EINVAL;
        }
        const char *fault = !S_ISREG(st.st_mode)   ? "the key file is not a regular file"
                            : st.st_mode & S_IRWXO ? "others may read or write the key file"
                            : st.st_mode & S_IWGRP ? "its group may write the key file"
                            : st.st_size > (off_t)FILE_BYTES_MAX ? "the key file is too large"
                                                                 : NULL;
        if (fault) {
                diag_add(faults, where,
                         "use a file of mode 0600 or 0440 (in Kubernetes: "
                         "defaultMode: 0440 of the secret's volume)",
                         "%s", fault);
                return -EINVAL;
        }
        _cleanup_free_ char *text = NULL;
        size_t n = 0;
        int r = fs_read_head(fd, FILE_BYTES_MAX, &text, &n);
        if (r < 0)
                diag_add(faults, where, NULL, "cannot read the key file: %s", strerror(-r));
        else
                r = bus_keys_parse(text, path, ret, faults);
        if (text)
                digest_wipe(text, n);
        return r;
}

/* Every change of a file changes its ctime. */
static bool is_same(const struct stat *a, const struct stat *b) {
        return a->st_dev == b->st_dev && a->st_ino == b->st_ino &&
               a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

int bus_key_file_check(BusKeyFile *f, Diags *faults) {
        struct stat st = { .st_ino = 0 };
        if (!*f->path)
                return 0;
        if (stat(f->path, &st) < 0)
                st.st_ino = 0; /* read_file() says why, once */
        if (f->was_read && is_same(&st, &f->seen))
                return 0;
        f->was_read = true;
        f->seen = st; /* as it was before it is read: a change meanwhile is seen next time */
        BusKeys keys;
        int r = read_file(f, &keys, faults);
        if (r < 0)
                return r;
        bool is_other = keys.n != f->keys.n ||
                        !digest_is_equal(keys.items, f->keys.items, sizeof keys.items);
        f->keys = keys;
        digest_wipe(&keys, sizeof keys);
        return is_other;
}

int bus_key_file_verify(const char *path, Diags *faults) {
        BusKeyFile file = { .path = path };
        if (*path && access(path, R_OK) < 0 && errno == EACCES)
                return -EACCES;
        int r = bus_key_file_check(&file, faults);
        bus_key_file_done(&file);
        return MIN(r, 0);
}

void bus_key_file_done(BusKeyFile *f) {
        digest_wipe(&f->keys, sizeof f->keys);
}
