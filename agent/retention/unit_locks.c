/* See unit_locks.h. Agents share these files in `.neuron-collectd` of the source:
 *
 *   @nodes/INSTANCE/alive       the agent's mark: renewed by its mtime, contains what it holds
 *   @nodes/INSTANCE/KEY.N …     the agent's own hard links to its locks
 *   @units/KEY.N                the N-th lock of a unit (the highest that is valid counts)
 *   @units/KEY-DIGEST.done      a node has delivered these members of the unit
 *
 * The agent writes a lock in its own directory and then links it into @units, so that no other
 * agent reads half of one. No lock is replaced: in a sticky directory an agent of another uid may
 * not. A file is valid only if an agent owns it and it contains its own name, since any user may
 * create or link names there. */
#include "agent/retention/unit_locks.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/retention/links.h"
#include "lib/base/array.h"
#include "lib/base/clock.h"
#include "lib/base/digest.h"
#include "lib/base/fs.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/neuron/ids.h"

#define UNITS "@units" /* no instance id has an `@` */
#define NODES "@nodes"
#define ALIVE "alive"
#define KEY_BYTES 16
#define KEY_SIZE (2 * KEY_BYTES + 1)
#define LOCK_NAME_SIZE (KEY_SIZE + 32)
#define LOCK_MAX (PATH_MAX + 512)
#define TURNS_MAX 64     /* locks of one unit: it can be taken over this many times */
#define NODE_NAMES_MAX 4 /* of one instance: another user may have created the first ones */
#define ACQUIRED_MAX 64  /* other instances whose parts this agent has taken over */
#define NODE_CACHE_MAX 4096
#define SWEEP_USEC USEC_PER_HOUR

typedef struct Node {
        char instance_id[INSTANCE_ID_SIZE];
        bool is_alive, is_known; /* is_known: it has a valid mark, of any age */
} Node;

struct UnitLocks {
        LinkDirs *link_dirs; /* borrowed */
        const char *fixed;   /* borrowed */
        SourceKind kind;
        char *source;
        char instance_id[INSTANCE_ID_SIZE];
        /* Entries are only added, never changed or removed. */
        struct {
                atomic_bool is_set;
                char instance_id[INSTANCE_ID_SIZE];
        } acquired[ACQUIRED_MAX];
        atomic_uint n_acquired;
        atomic_bool is_loaded;
        atomic_ullong renewed_usec;    /* CLOCK_BOOTTIME: its mark, by this process; 0: not yet */
        atomic_ullong last_sweep_usec; /* CLOCK_BOOTTIME */
};

/* The open directories of the shared files. */
typedef struct Place {
        int units_fd, nodes_fd, own_fd;
        uid_t uid; /* the owner of what this agent creates there */
} Place;

struct UnitLocksScan {
        UnitLocks *locks;
        Place place;
        int error;         /* -errno: why locks cannot be used; 0: they can */
        bool is_checked;   /* error was checked a second time */
        uint64_t now_usec; /* the server's time at the start of the scan */
        Node *nodes;
        size_t n_nodes;
};

/* A lock, or the mark of a delivery, as its file says. */
typedef struct Lock {
        char holder[INSTANCE_ID_SIZE], instance_id[INSTANCE_ID_SIZE]; /* instance_id: the part's */
        uint64_t digest;
        uint64_t mtime_usec;
        char *relative; /* owned */
} Lock;

DEFINE_CLEANUP(UnitLocks, unit_locks_free);

int unit_locks_new(UnitLocks **ret, LinkDirs *link_dirs, const char *fixed, SourceKind kind,
                   const char *source, const char *instance_id) {
        _cleanup_(unit_locks_freep) UnitLocks *l = calloc(1, sizeof *l);
        if (!l)
                return -ENOMEM;
        l->link_dirs = link_dirs;
        l->fixed = fixed;
        l->kind = kind;
        l->source = strdup(source);
        if (!l->source)
                return -ENOMEM;
        (void)snprintf(l->instance_id, sizeof l->instance_id, "%s", instance_id);
        *ret = TAKE_PTR(l);
        return 0;
}

UnitLocks *unit_locks_free(UnitLocks *l) {
        if (!l)
                return NULL;
        free(l->source);
        free(l);
        return NULL;
}

/* ---- names ---- */

static void hash_text(Sha256 *s, const char *text) {
        sha256_update(s, text,
                      strlen(text) + 1); /* with the NUL, so that no two texts run together */
}

static void key_of_part(const UnitLocks *l, const char *relative, const char *instance_id,
                        char ret[static KEY_SIZE]) {
        uint8_t hash[SHA256_SIZE];
        Sha256 s;
        sha256_init(&s);
        hash_text(&s, source_kind_name(l->kind));
        hash_text(&s, l->source);
        hash_text(&s, relative);
        hash_text(&s, instance_id);
        sha256_final(&s, hash);
        (void)digest_hex(hash, KEY_BYTES, ret);
}

static void done_name(const UnitLocks *l, const char *relative, const char *instance_id,
                      uint64_t digest, char ret[static LOCK_NAME_SIZE]) {
        char key[KEY_SIZE];
        key_of_part(l, relative, instance_id, key);
        (void)snprintf(ret, LOCK_NAME_SIZE, "%s-%016" PRIx64 ".done", key, digest);
}

static void node_name(const char *instance_id, unsigned k, char ret[static INSTANCE_ID_SIZE + 8]) {
        if (k == 0)
                (void)snprintf(ret, INSTANCE_ID_SIZE + 8, "%s", instance_id);
        else
                (void)snprintf(ret, INSTANCE_ID_SIZE + 8, "%s@%u", instance_id, k);
}

/* ---- the shared directories ---- */

static void place_close(Place *p) {
        cleanup_closep(&p->units_fd);
        cleanup_closep(&p->nodes_fd);
        cleanup_closep(&p->own_fd);
}

/* @return whether an error can end by itself: the server is away, or an export withdrawn. No lock
 * is decided until then. After any other error the agent delivers the unit without a lock. */
static bool is_transient(int r) {
        switch (r) {
        case -ENOENT:
        case -ESTALE:
        case -EIO:
        case -EAGAIN:
        case -EINTR:
        case -EBUSY:
        case -ETIMEDOUT:
        case -ENOTCONN:
        case -ECONNREFUSED:
        case -ECONNRESET:
        case -EHOSTUNREACH:
        case -EMFILE:
        case -ENFILE:
                return true;
        default:
                return false;
        }
}

static int open_dir(int at_fd, const char *name) {
        int fd = openat(at_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

/* Opens the agent's own directory: the first of its names that no other user has created. */
static int open_own(const UnitLocks *l, const Place *p) {
        for (unsigned k = 0; k < NODE_NAMES_MAX; k++) {
                char name[INSTANCE_ID_SIZE + 8];
                struct stat st;
                node_name(l->instance_id, k, name);
                if (mkdirat(p->nodes_fd, name, 0755) < 0 && errno != EEXIST)
                        return -errno;
                _cleanup_close_ int fd = open_dir(p->nodes_fd, name);
                if (fd < 0 || fstat(fd, &st) < 0 || st.st_uid != p->uid)
                        continue;
                if ((st.st_mode & 07777) != 0755 && fchmod(fd, 0755) < 0)
                        return -errno;
                return TAKE_FD(fd);
        }
        return -EUCLEAN;
}

/* @return 0; -ENOENT: this is no network file system; -errno */
static int place_open(const UnitLocks *l, Place *ret, char **ret_error) {
        Place p = { .units_fd = -1, .nodes_fd = -1, .own_fd = -1 };
        int r = link_dirs_open_shared(l->link_dirs, UNITS, &p.uid, ret_error);
        if (r >= 0) {
                p.units_fd = r;
                r = link_dirs_open_shared(l->link_dirs, NODES, &p.uid, ret_error);
        }
        if (r >= 0) {
                p.nodes_fd = r;
                p.own_fd = r = open_own(l, &p);
        }
        if (r < 0) {
                place_close(&p);
                return r;
        }
        *ret = p;
        return 0;
}

static uint64_t mtime_usec(const struct stat *st) {
        return st->st_mtim.tv_sec < 0 ? 0
                                      : (uint64_t)st->st_mtim.tv_sec * USEC_PER_SEC +
                                                (uint64_t)st->st_mtim.tv_nsec / 1000;
}

/* Renews this agent's mark. @param text  its new content; NULL: leave the content as it is
 * @return 0 and the server's time; -errno */
static int touch(const Place *p, const char *text, uint64_t *ret_now_usec) {
        struct stat st;
        _cleanup_close_ int fd =
                openat(p->own_fd, ALIVE, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
        if (fd < 0)
                return -errno;
        if (text) {
                int r = ftruncate(fd, 0) < 0 ? -errno : fs_write_all(fd, text, strlen(text));
                if (r < 0 || fsync(fd) < 0)
                        return r < 0 ? r : -errno;
        }
        /* NULL: the server sets its own time, not this node's. */
        if (futimens(fd, NULL) < 0 || fstat(fd, &st) < 0)
                return -errno;
        *ret_now_usec = mtime_usec(&st);
        return 0;
}

/* ---- other nodes ---- */

static bool is_expired(uint64_t usec, uint64_t now_usec) {
        return now_usec > usec && now_usec - usec > UNIT_LOCKS_EXPIRE_USEC;
}

/* @param ret_text  the content of the node's mark, the caller's; may be NULL
 * @return 0 and the time of the mark; -ENOENT: none; -EPERM: its owner is no agent; -errno */
static int read_mark(const UnitLocks *l, const Place *p, const char *name, uint64_t *ret_usec,
                     char **ret_text) {
        struct stat st;
        _cleanup_close_ int dir_fd = open_dir(p->nodes_fd, name);
        if (dir_fd < 0)
                return dir_fd;
        if (fstat(dir_fd, &st) < 0)
                return -errno;
        if (!link_dirs_is_agents(l->link_dirs, &st, p->uid))
                return -EPERM;
        _cleanup_close_ int fd = fs_open_regular(dir_fd, ALIVE, NULL);
        if (fd < 0)
                return fd;
        /* Only after open(2), which makes an NFS client fetch the current times. */
        if (fstat(fd, &st) < 0)
                return -errno;
        *ret_usec = mtime_usec(&st);
        return ret_text ? fs_read_all(fd, 256, ret_text, NULL) : 0;
}

static Node check_node(const UnitLocksScan *s, const char *instance_id) {
        Node n = { 0 };
        (void)snprintf(n.instance_id, sizeof n.instance_id, "%s", instance_id);
        for (unsigned k = 0; k < NODE_NAMES_MAX && !n.is_alive; k++) {
                char name[INSTANCE_ID_SIZE + 8];
                uint64_t usec;
                node_name(instance_id, k, name);
                int r = read_mark(s->locks, &s->place, name, &usec, NULL);
                n.is_known = n.is_known || r == 0;
                n.is_alive = r == 0 && !is_expired(usec, s->now_usec);
                /* A node whose mark cannot be read counts as alive. */
                n.is_alive = n.is_alive || (r < 0 && r != -ENOENT && r != -EPERM && r != -ELOOP &&
                                            r != -ENOTDIR && r != -EACCES && r != -EBADF);
                if (r == -ENOENT)
                        break;
        }
        return n;
}

static Node get_node(UnitLocksScan *s, const char *instance_id) {
        for (size_t i = 0; i < s->n_nodes; i++)
                if (strcmp(s->nodes[i].instance_id, instance_id) == 0)
                        return s->nodes[i];
        Node n = check_node(s, instance_id);
        if (s->n_nodes < NODE_CACHE_MAX && array_grow(&s->nodes, s->n_nodes, sizeof n) == 0)
                s->nodes[s->n_nodes++] = n;
        return n;
}

/* ---- reading a lock ---- */

static void lock_done(Lock *k) {
        free(k->relative);
        *k = (Lock){ 0 };
}

/* @param size  of ret, in bytes @return the text after the first line; NULL: the line is too long,
 * or has no end */
static char *split_line(char *text, char *ret, size_t size) {
        size_t n = strcspn(text, "\n");
        if (text[n] != '\n' || n >= size)
                return NULL;
        memcpy(ret, text, n);
        ret[n] = '\0';
        return text + n + 1;
}

static int parse_lock(char *text, const char *name, Lock *ret) {
        char own_name[LOCK_NAME_SIZE], digest[17];
        uint8_t bytes[8];
        text = split_line(text, own_name, sizeof own_name);
        if (text)
                text = split_line(text, ret->holder, sizeof ret->holder);
        if (text)
                text = split_line(text, ret->instance_id, sizeof ret->instance_id);
        if (text)
                text = split_line(text, digest, sizeof digest);
        if (!text || strcmp(own_name, name) != 0 || !ret->holder[0] ||
            parse_hex_bytes(digest, bytes, sizeof bytes) < 0 || !unit_path_is_clean(text))
                return -EBADMSG;
        for (size_t i = 0; i < sizeof bytes; i++)
                ret->digest = ret->digest << 8 | bytes[i];
        ret->relative = strdup(text);
        return ret->relative ? 0 : -ENOMEM;
}

/* @return 0; -ENOENT; -EBADMSG: the file is not valid: its owner is no agent, it is a link to
 * another file, or it was not written completely; -errno */
static int read_lock(const UnitLocks *l, const Place *p, int dir_fd, const char *name, Lock *ret) {
        _cleanup_free_ char *text = NULL;
        struct stat st;
        Lock k = { 0 };
        size_t n;
        _cleanup_close_ int fd = fs_open_regular(dir_fd, name, &st);
        if (fd == -EBADF || fd == -ELOOP || fd == -EACCES)
                return -EBADMSG;
        if (fd < 0)
                return fd;
        if (!link_dirs_is_agents(l->link_dirs, &st, p->uid))
                return -EBADMSG;
        int r = fs_read_all(fd, LOCK_MAX, &text, &n);
        if (r < 0)
                return r == -EFBIG ? -EBADMSG : r;
        r = strlen(text) == n ? parse_lock(text, name, &k) : -EBADMSG;
        if (r < 0) {
                lock_done(&k);
                return r;
        }
        k.mtime_usec = mtime_usec(&st);
        *ret = k;
        return 0;
}

/* Finds the valid lock with the highest number. @param ret_turn  the number of the next lock
 * @return 0; -ENOENT: there is no valid lock, *ret_turn is the number to use; -errno */
static int find_lock(const UnitLocks *l, const Place *p, const char *key, Lock *ret,
                     unsigned *ret_turn) {
        Lock last = { 0 };
        for (unsigned turn = 1; turn <= TURNS_MAX + 1; turn++) {
                char name[LOCK_NAME_SIZE];
                Lock k = { 0 };
                (void)snprintf(name, sizeof name, "%s.%u", key, turn);
                *ret_turn = turn;
                int r = turn <= TURNS_MAX ? read_lock(l, p, p->units_fd, name, &k) : -ENOENT;
                if (r == -ENOENT)
                        break;
                if (r < 0 && r != -EBADMSG) {
                        lock_done(&last);
                        return r;
                }
                if (r == 0) {
                        lock_done(&last);
                        last = k;
                }
        }
        if (!last.holder[0])
                return -ENOENT;
        *ret = last;
        return 0;
}

/* ---- writing a lock ---- */

/* @return 0; -EEXIST: another agent has created it first; -errno */
static int publish_lock(const UnitLocks *l, const Place *p, const char *name,
                        const UnitPart *part) {
        _cleanup_free_ char *text = NULL;
        int n = asprintf(&text, "%s\n%s\n%s\n%016" PRIx64 "\n%s", name, l->instance_id,
                         part->instance_id, part->digest, part->relative);
        if (n < 0)
                return -ENOMEM;
        int r = fs_write_file(p->own_fd, name, text, (size_t)n, 0644);
        if (r < 0)
                return r;
        if (linkat(p->own_fd, name, p->units_fd, name, 0) == 0)
                return 0;
        r = -errno;
        if (r == -EPERM || r == -EOPNOTSUPP || r == -ENOSYS || r == -EMLINK) {
                /* This file system has no hard links. A lock that is written only in part is not
                 * valid, and excludes no node. */
                _cleanup_close_ int fd =
                        openat(p->units_fd, name,
                               O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
                r = fd < 0 ? -errno : fs_write_all(fd, text, (size_t)n);
                if (r >= 0)
                        return 0;
        }
        (void)unlinkat(p->own_fd, name, 0); /* else the next sweep removes it */
        return r;
}

/* @return whether this agent may have taken over a part of the instance. Any user can fill the list
 * by names of files; when it is full the answer is always yes, and only the lock itself decides. */
static bool has_acquired(UnitLocks *l, const char *instance_id) {
        unsigned n = MIN(atomic_load(&l->n_acquired), (unsigned)ACQUIRED_MAX);
        if (n == ACQUIRED_MAX)
                return true;
        for (unsigned i = 0; i < n; i++)
                if (atomic_load(&l->acquired[i].is_set) &&
                    strcmp(l->acquired[i].instance_id, instance_id) == 0)
                        return true;
        return false;
}

static void add_acquired(UnitLocks *l, const char *instance_id) {
        if (!instance_id[0] || strcmp(instance_id, l->instance_id) == 0 ||
            has_acquired(l, instance_id))
                return;
        unsigned i = atomic_fetch_add(&l->n_acquired, 1);
        if (i >= ACQUIRED_MAX) {
                atomic_store(&l->n_acquired, ACQUIRED_MAX);
                return;
        }
        strcpy(l->acquired[i].instance_id, instance_id);
        atomic_store(&l->acquired[i].is_set, true);
}

/* ---- this agent's own locks ---- */

static bool is_unit_gone(int fixed_fd, const char *relative) {
        int fd = fixed_fd < 0 || !relative[0] ? -1 : fs_open_beneath(fixed_fd, relative, O_PATH);
        if (fd >= 0)
                (void)close(fd); /* O_PATH: nothing was read */
        return fd == -ENOENT;
}

/* Reads this agent's own locks, to learn which instances' parts it has taken over.
 * @param removes_stale  also remove locks of units that no longer exist, and temporary files of a
 * crash */
static void load_own_locks(UnitLocks *l, const Place *p, bool removes_stale) {
        _cleanup_closedir_ DIR *dir = NULL;
        struct stat fixed, own;
        _cleanup_close_ int fixed_fd = removes_stale ? scan_open_fixed(l->fixed) : -1;
        if (fs_opendir_at(p->own_fd, ".", &dir) < 0)
                return;
        /* The share may have been unmounted since: all units would seem removed. */
        if (fixed_fd >= 0 && (fstat(fixed_fd, &fixed) < 0 || fstat(p->own_fd, &own) < 0 ||
                              fixed.st_dev != own.st_dev))
                cleanup_closep(&fixed_fd);
        for (struct dirent *e; (e = readdir(dir));) {
                Lock k = { 0 };
                if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 ||
                    strcmp(e->d_name, ALIVE) == 0)
                        continue;
                int r = read_lock(l, p, p->own_fd, e->d_name, &k);
                if (r == 0 && removes_stale && is_unit_gone(fixed_fd, k.relative)) {
                        (void)unlinkat(p->units_fd, e->d_name, 0); /* the next sweep tries again */
                        (void)unlinkat(p->own_fd, e->d_name, 0);
                } else if (r == 0 && !strstr(e->d_name, ".done"))
                        add_acquired(l, k.instance_id);
                else if (r == -EBADMSG && removes_stale && e->d_name[0] == '.')
                        (void)unlinkat(p->own_fd, e->d_name,
                                       0); /* a temporary file of fs_write_file() */
                lock_done(&k);
        }
        atomic_store(&l->is_loaded, true);
}

/* ---- callbacks of lib/neuron/scan.h: which members of other nodes are this agent's ---- */

static bool may_own_acquired(const char *instance_id, void *userdata) {
        UnitLocks *l = userdata;
        if (!atomic_load(&l->is_loaded)) {
                Place p;
                int r = place_open(l, &p, NULL);
                if (r == 0) {
                        load_own_locks(l, &p, false);
                        place_close(&p);
                } else if (r == -ENOENT) /* no network file system: no locks */
                        atomic_store(&l->is_loaded, true);
        }
        return has_acquired(l, instance_id);
}

static bool holds_lock(const UnitLocks *l, const Place *p, const char *relative,
                       const char *instance_id) {
        char key[KEY_SIZE];
        Lock k = { 0 };
        unsigned turn;
        key_of_part(l, relative, instance_id, key);
        bool is_ours =
                find_lock(l, p, key, &k, &turn) == 0 && strcmp(k.holder, l->instance_id) == 0;
        lock_done(&k);
        return is_ours;
}

static bool owns_acquired(const char *relative, const char *instance_id, void *userdata) {
        UnitLocks *l = userdata;
        Place p;
        if (!may_own_acquired(instance_id, l) || place_open(l, &p, NULL) < 0)
                return false;
        bool is_ours = holds_lock(l, &p, relative, instance_id);
        place_close(&p);
        return is_ours;
}

void unit_locks_apply(UnitLocks *l, ScanSource *scan) {
        scan->may_own = may_own_acquired;
        scan->owns = owns_acquired;
        scan->owner_data = l;
}

static bool may_own_dead(const char *instance_id, void *userdata) {
        UnitLocksScan *s = userdata;
        return s->error == 0 &&
               (has_acquired(s->locks, instance_id) || !get_node(s, instance_id).is_alive);
}

static bool owns_dead(const char *relative, const char *instance_id, void *userdata) {
        UnitLocksScan *s = userdata;
        return has_acquired(s->locks, instance_id) &&
               holds_lock(s->locks, &s->place, relative, instance_id);
}

void unit_locks_scan_apply(UnitLocksScan *s, ScanSource *scan) {
        scan->may_own = may_own_dead;
        scan->owns = owns_dead;
        scan->owner_data = s;
}

/* ---- scans ---- */

static int open_scan(UnitLocksScan *s, char **ret_error) {
        place_close(&s->place);
        int r = place_open(s->locks, &s->place, ret_error);
        r = r < 0 ? r : touch(&s->place, NULL, &s->now_usec);
        if (r == 0)
                atomic_store(&s->locks->renewed_usec, clock_boottime_usec());
        return r;
}

int unit_locks_scan_new(UnitLocksScan **ret, UnitLocks *l, char **ret_note) {
        _cleanup_(unit_locks_scan_freep) UnitLocksScan *s = calloc(1, sizeof *s);
        *ret_note = NULL;
        if (!s)
                return -ENOMEM;
        s->locks = l;
        s->place = (Place){ .units_fd = -1, .nodes_fd = -1, .own_fd = -1 };
        _cleanup_free_ char *error = NULL;
        int r = s->error = open_scan(s, &error);
        if (r < 0 && r != -ENOENT &&
            asprintf(ret_note,
                     "units cannot be locked, so that other nodes may deliver them, too, and files "
                     "whose names have a dead node's instance id are left to it: %s%s%s",
                     error ? error : "its `.neuron-collectd` cannot be used", error ? "" : ": ",
                     error ? "" : strerror(-r)) < 0)
                *ret_note = NULL;
        uint64_t now = clock_boottime_usec(), last_sweep = atomic_load(&l->last_sweep_usec);
        if (r == 0 && (last_sweep == 0 || now - last_sweep > SWEEP_USEC)) {
                atomic_store(&l->last_sweep_usec, now);
                load_own_locks(l, &s->place, true);
        }
        *ret = TAKE_PTR(s);
        return 0;
}

UnitLocksScan *unit_locks_scan_free(UnitLocksScan *s) {
        if (!s)
                return NULL;
        place_close(&s->place);
        free(s->nodes);
        free(s);
        return NULL;
}

static bool is_delivered(UnitLocksScan *s, const UnitPart *part) {
        char name[LOCK_NAME_SIZE];
        Lock k = { 0 };
        done_name(s->locks, part->relative, part->instance_id, part->digest, name);
        int r = read_lock(s->locks, &s->place, s->place.units_fd, name, &k);
        lock_done(&k);
        return r == 0;
}

/* @param k  the valid lock; NULL: there is none. @return whether a node that renews its mark has it
 */
static bool is_held_by_other(UnitLocksScan *s, const UnitPart *part, const Lock *k) {
        const char *holder = k ? k->holder : part->instance_id;
        if (!holder[0] || strcmp(holder, s->locks->instance_id) == 0)
                return false;
        Node n = get_node(s, holder);
        if (n.is_alive || n.is_known)
                return n.is_alive;
        /* The holder has no valid mark: the age of its lock or members decides. */
        return !is_expired(k ? k->mtime_usec : part->newest_usec, s->now_usec);
}

/* @return whether an error can end by itself. For as long as other agents take this one for alive,
 * a refusal is one of a withdrawn export. */
static bool is_for_now(const UnitLocks *l, int error) {
        uint64_t renewed = atomic_load(&l->renewed_usec);
        bool is_refused = error == -EACCES || error == -EPERM;
        return is_transient(error) || (is_refused && renewed > 0 &&
                                       clock_boottime_usec() - renewed < UNIT_LOCKS_EXPIRE_USEC);
}

/* Decides without a lock: to deliver a unit twice is better than never; but another node's part is
 * left to that node. */
static int request_without_lock(const UnitLocksScan *s, const UnitPart *part, int error) {
        bool is_foreign =
                part->instance_id[0] && strcmp(part->instance_id, s->locks->instance_id) != 0;
        if (error == -ENOMEM)
                return error;
        return is_foreign || is_for_now(s->locks, error) ? UNIT_LOCKS_E_OTHERS : 0;
}

int unit_locks_request(UnitLocksScan *s, const UnitPart *part) {
        UnitLocks *l = s->locks;
        char key[KEY_SIZE];
        if (s->error < 0 &&
            !s->is_checked) /* the unit was just read, so the server may answer again */
                s->error = open_scan(s, NULL);
        s->is_checked = true;
        if (s->error < 0)
                return request_without_lock(s, part, s->error);
        bool is_own = strcmp(part->instance_id, l->instance_id) == 0;
        key_of_part(l, part->relative, part->instance_id, key);
        for (unsigned tries = 0; tries < 3; tries++) {
                char name[LOCK_NAME_SIZE];
                Lock k = { 0 };
                unsigned turn;
                int r = find_lock(l, &s->place, key, &k, &turn);
                bool is_ours = r == 0 && strcmp(k.holder, l->instance_id) == 0;
                bool others =
                        (r == 0 || r == -ENOENT) && is_held_by_other(s, part, r == 0 ? &k : NULL);
                lock_done(&k);
                if (r < 0 && r != -ENOENT)
                        return request_without_lock(s, part, r);
                if (is_ours) {
                        add_acquired(l, part->instance_id);
                        return 0;
                }
                if (!is_own && is_delivered(s, part))
                        return UNIT_LOCKS_E_DONE;
                if (others)
                        return UNIT_LOCKS_E_OTHERS;
                if (is_own &&
                    r == -ENOENT) /* the names of its members contain this agent's instance id */
                        return 0;
                if (turn > TURNS_MAX)
                        return request_without_lock(s, part, -ENOSPC);
                add_acquired(l, part->instance_id);
                (void)snprintf(name, sizeof name, "%s.%u", key, turn);
                r = publish_lock(l, &s->place, name, part);
                if (r < 0 && r != -EEXIST)
                        return request_without_lock(s, part, r);
                /* The loop reads it back: NFS may answer EEXIST to the agent that created it. */
        }
        return UNIT_LOCKS_E_OTHERS; /* the next scan requests it again */
}

/* ---- without a scan ---- */

/* @return 0: it is marked; -errno */
static int mark_part(const UnitLocks *l, const Place *p, const UnitPart *part) {
        char name[LOCK_NAME_SIZE];
        Lock k = { 0 };
        done_name(l, part->relative, part->instance_id, part->digest, name);
        int r = read_lock(l, p, p->units_fd, name, &k);
        lock_done(&k);
        if (r < 0) /* not marked yet */
                r = publish_lock(l, p, name, part);
        return r == -EEXIST ? 0 : r; /* by another thread, or a name that another user has taken */
}

/* Marks other nodes' parts with the digest that they had when this agent took them over. */
static int mark_acquired(UnitLocks *l, const Place *p, const char *relative) {
        int result = 0;
        unsigned n = MIN(atomic_load(&l->n_acquired), (unsigned)ACQUIRED_MAX);
        for (unsigned i = 0; i < n; i++) {
                const char *instance_id = l->acquired[i].instance_id;
                char key[KEY_SIZE];
                Lock k = { 0 };
                unsigned turn;
                if (!atomic_load(&l->acquired[i].is_set))
                        continue;
                key_of_part(l, relative, instance_id, key);
                int r = find_lock(l, p, key, &k, &turn);
                if (r == 0 && strcmp(k.holder, l->instance_id) == 0)
                        r = mark_part(l, p, &(UnitPart){ relative, instance_id, k.digest, 0 });
                if (r != -ENOENT)
                        result = MIN(result, r);
                lock_done(&k);
        }
        return result;
}

int unit_locks_mark_delivered(UnitLocks *l, const char *relative, uint64_t digest) {
        Place p;
        int r = place_open(l, &p, NULL);
        if (r < 0)
                return r;
        bool is_locked = holds_lock(l, &p, relative, "");
        r = mark_part(l, &p, &(UnitPart){ relative, is_locked ? "" : l->instance_id, digest, 0 });
        r = MIN(r, mark_acquired(l, &p, relative));
        place_close(&p);
        return r;
}

static void add_others(const UnitLocks *l, const Place *p, const char *name, uint64_t now_usec,
                       UnitLocksHeld *ret) {
        _cleanup_free_ char *text = NULL;
        uint64_t usec, n_units, age_usec;
        if (read_mark(l, p, name, &usec, &text) < 0)
                return;
        if (is_expired(usec, now_usec)) {
                if (!strchr(name, '@'))
                        ret->n_dead_links += links_count_of_node(l->link_dirs, name);
                return;
        }
        if (sscanf(text, "%" SCNu64 " %" SCNu64, &n_units, &age_usec) != 2 || n_units == 0)
                return;
        age_usec = MIN(age_usec, (uint64_t)INT64_MAX) + (now_usec > usec ? now_usec - usec : 0);
        ret->n_nodes++;
        ret->n_units += MIN(n_units, (uint64_t)UINT32_MAX);
        ret->oldest_usec = MAX(ret->oldest_usec, age_usec);
}

int unit_locks_renew(UnitLocks *l, const UnitLocksHeld *own, UnitLocksHeld *ret_others) {
        _cleanup_closedir_ DIR *dir = NULL;
        char text[64];
        uint64_t now_usec;
        Place p;
        int r = place_open(l, &p, NULL);
        if (r < 0)
                return r;
        (void)snprintf(text, sizeof text, "%" PRIu64 " %" PRIu64 "\n", own->n_units,
                       own->oldest_usec);
        r = touch(&p, text, &now_usec);
        if (r == 0)
                atomic_store(&l->renewed_usec, clock_boottime_usec());
        *ret_others = (UnitLocksHeld){ 0 };
        if (r == 0)
                r = fs_opendir_at(p.nodes_fd, ".", &dir);
        size_t n_names = 0; /* bounded: any user can create names */
        for (struct dirent *e; r == 0 && n_names < NODE_CACHE_MAX && (e = readdir(dir));
             n_names++) {
                size_t n = strcspn(e->d_name, "@");
                if (e->d_name[0] == '.' ||
                    (n == strlen(l->instance_id) && strncmp(e->d_name, l->instance_id, n) == 0))
                        continue;
                add_others(l, &p, e->d_name, now_usec, ret_others);
        }
        place_close(&p);
        return r;
}

bool unit_locks_is_away(UnitLocks *l) {
        uint64_t now_usec;
        Place p;
        if (atomic_load(&l->renewed_usec) == 0)
                return false;
        int r = place_open(l, &p, NULL);
        if (r == 0) {
                r = touch(&p, NULL, &now_usec);
                place_close(&p);
        }
        return r < 0 && is_for_now(l, r);
}
