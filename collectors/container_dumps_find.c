/* Where a hook's directory is: in the root directory of its process, by no link, and the hook's own. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "collectors/container_dumps_private.h"
#include "collectors/host/procfs.h"
#include "collectors/runner/places.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/parse.h"

enum { FIND_E_NOT_YET = 1, FIND_E_HERE };
enum { STATUS_BYTES_MAX = 16 << 10, CGROUP_BYTES_MAX = 64 << 10, DETAIL_SIZE = 256 };

typedef struct Finding {
        Dumps *d;
        DumpHook *h;
        Proc process;
        uint64_t namespace; /* of mounts */
        char container[DUMP_CONTAINER_SIZE];
        char detail[DETAIL_SIZE]; /* why it is not to be had */
} Finding;

static _printf_(2, 3) int refuse(Finding *x, const char *fmt, ...) {
        va_list args;
        va_start(args, fmt);
        (void)vsnprintf(x->detail, sizeof x->detail, fmt, args);
        va_end(args);
        return -EPERM;
}

/* ---- its process ---- */

/* @return the effective uid of a process, UINT64_MAX when it cannot be told: the owner of its directory is root where it is not dumpable */
static uint64_t uid_of(const Proc *p) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        uint64_t uid = UINT64_MAX;
        size_t n;
        if (procfs_read(p, (ProcFile){ "status", STATUS_BYTES_MAX }, &b, NULL) != 0 || !b.text)
                return UINT64_MAX;
        const char *s = procfs_field(b.text, "Uid", &n), *end = s ? s + n : NULL;
        if (!s || !parse_take_u64(&s, end, &uid) || s == end || *s++ != '\t' ||
            !parse_take_u64(&s, end, &uid))
                return UINT64_MAX;
        return uid;
}

static void find_container(Finding *x) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        ProcContainer c;
        if (procfs_read(&x->process, (ProcFile){ "cgroup", CGROUP_BYTES_MAX }, &b, NULL) == 0 &&
            b.text && procfs_parse_cgroup(b.text, b.n, &c))
                (void)snprintf(x->container, sizeof x->container, "%s", c.container_id);
}

/* Ticks are counted down, so that the hook itself never seems to have begun after its note; what began within the note's tick is not told apart. */
static bool began_after(uint64_t start_ticks, uint64_t noted_usec) {
        long hz = sysconf(_SC_CLK_TCK);
        return noted_usec > 0 && hz > 0 && start_ticks > noted_usec / (USEC_PER_SEC / (uint64_t)hz);
}

static int refuse_ended(Finding *x, bool was_seen) {
        return refuse(x, was_seen ? "there was no such directory while the hook lived"
                                  : "the hook has ended");
}

/* The number is another process's by now where that one has another user, or began after the note came. */
static int find_process(Finding *x) {
        char link[PROCFS_LINK_SIZE];
        const Dumps *d = x->d;
        bool was_seen = x->h->start_ticks != 0;
        int r = procfs_open(&x->process, d->order->proc_root, x->h->dump->hook_pid,
                            x->h->start_ticks);
        if (r == PROCFS_E_GONE || r == PROCFS_E_REPLACED ||
            (r == 0 && procfs_is_zombie(&x->process)))
                return refuse_ended(x, was_seen);
        if (r != 0)
                return refuse(x, "its process cannot be looked at: %s", procfs_reason(r));
        if (began_after(x->process.stat.start_ticks, x->h->dump->noted_usec))
                return refuse(x, "the hook has ended: its number is another process's by now");
        x->h->start_ticks = x->process.stat.start_ticks;
        if (uid_of(&x->process) != d->uid)
                return refuse(x, "the process with the hook's number is another user's");
        r = procfs_link(&x->process, "ns/mnt", link);
        if (r != 0 && dumps_hook_has_ended(d, x->h)) /* just now */
                return refuse_ended(x, was_seen);
        if (r != 0)
                return refuse(x, "its mount namespace cannot be looked at: %s", procfs_reason(r));
        if (places_is_here(d->order->proc_root, link))
                return FIND_E_HERE;
        if (sscanf(link, "mnt:[%" SCNu64 "]", &x->namespace) != 1)
                return refuse(x, "its mount namespace has no number");
        find_container(x);
        return 0;
}

/* ---- its directory ---- */

static int open_directory(Finding *x, int *ret) {
        const char *path = x->h->dump->path;
        _cleanup_close_ int root = procfs_root(&x->process);
        if (root < 0)
                return refuse(x, "its root directory cannot be opened: %s", strerror(-root));
        path += strspn(path, "/");
        int fd = fs_open_beneath(root, path, O_PATH | O_DIRECTORY);
        if (fd == -ENOENT && *path && !x->h->is_late)
                return FIND_E_NOT_YET;
        if (fd == -ENOENT && *path)
                return refuse(x, "there was no such directory, and the hook may sleep for ever: it "
                                 "was not waited for any longer");
        if (fd == -ELOOP)
                return refuse(x, "a symlink is in the way, and none is followed");
        if (fd == -EXDEV)
                return refuse(x, "its path has a `..`");
        if (fd == -EACCES)
                return refuse(x,
                              "its directory cannot be opened: %s; a container's root in FUSE "
                              "(rootless Podman with fuse-overlayfs) lets in its own user alone: "
                              "give the dump a directory of the node",
                              strerror(-fd));
        if (fd < 0)
                return refuse(x, "its directory cannot be opened: %s", strerror(-fd));
        *ret = fd;
        return 0;
}

static int judge(Finding *x, int fd, struct statx *ret) {
        if (statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, ret) < 0)
                return refuse(x, "its directory cannot be looked at: %s", strerror(errno));
        if (ret->stx_uid != x->d->uid)
                return refuse(x, "the directory belongs to another user (uid %u) than the hook",
                              ret->stx_uid);
        if (places_is_of_the_kernel(fd))
                return refuse(x, "the kernel's own file systems hold no dumps");
        if (procfs_check(&x->process) != 0) /* what was opened may be another process's */
                return refuse(x, "the hook has ended");
        return 0;
}

/* ---- its unit ---- */

static uint64_t mix(uint64_t hash, const void *data, size_t n) {
        for (size_t i = 0; i < n; i++) /* FNV-1a */
                hash = (hash ^ ((const unsigned char *)data)[i]) * UINT64_C(0x100000001b3);
        return hash;
}

/* The kernel gives the numbers of namespaces, devices and inodes away again when a container has gone: those of the next one are often the same.
 * So when the directory was made (where the file system tells), and the container's name, are part of it. */
static void make_id(const Finding *x, const struct statx *s, char ret[DUMP_UNIT_SIZE]) {
        const uint64_t numbers[] = { s->stx_dev_major, s->stx_dev_minor, s->stx_ino,
                                     s->stx_mask & STATX_BTIME ? (uint64_t)s->stx_btime.tv_sec : 0,
                                     s->stx_mask & STATX_BTIME ? s->stx_btime.tv_nsec : 0 };
        uint64_t hash = mix(UINT64_C(0xcbf29ce484222325), numbers, sizeof numbers);
        hash = mix(hash, x->container, strlen(x->container));
        (void)snprintf(ret, DUMP_UNIT_SIZE, "%010" PRIu64 "%013" PRIu64,
                       x->namespace % UINT64_C(10000000000), hash % UINT64_C(10000000000000));
}

static int add_unit(Finding *x, int path_fd, const struct statx *s) {
        Dumps *d = x->d;
        char link[sizeof "/proc/self/fd/" + 10];
        struct stat st;
        if (fstat(path_fd, &st) < 0)
                return -errno;
        for (size_t i = 0; i < d->n_units; i++) {
                const DumpDirectory *known = d->units[i]->directories;
                if (known->dev == st.st_dev && known->ino == st.st_ino) {
                        x->h->unit = d->units[i];
                        return 0;
                }
        }
        DumpUnit *u = calloc(1, sizeof *u);
        if (u)
                u->directories = calloc(1, sizeof *u->directories);
        if (!u || !u->directories) {
                free(u);
                return -ENOMEM;
        }
        (void)snprintf(link, sizeof link, "/proc/self/fd/%d", path_fd);
        u->directories[0] =
                (DumpDirectory){ .fd = open(link, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK),
                                 .path = strdup(""),
                                 .dev = st.st_dev,
                                 .ino = st.st_ino };
        u->n_directories = 1;
        d->units[d->n_units++] = u;
        make_id(x, s, u->id);
        memcpy(u->container, x->container, sizeof u->container);
        if (u->directories[0].fd < 0 || !u->directories[0].path) {
                int r = u->directories[0].fd < 0 ? -errno : -ENOMEM;
                (void)dumps_unit_free(d->units[--d->n_units]);
                return r;
        }
        x->h->unit = u;
        return 0;
}

static int find(Finding *x) {
        struct statx s = { 0 };
        int r = find_process(x);
        if (r != 0)
                return r;
        _cleanup_close_ int fd = -1;
        r = open_directory(x, &fd);
        if (r == 0)
                r = judge(x, fd, &s);
        if (r != 0)
                return r;
        r = add_unit(x, fd, &s);
        return r < 0 ? refuse(x, "its directory cannot be read: %s", strerror(-r)) : 0;
}

static void say_where(const Dumps *d, const DumpHook *h) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        json_out_object(&b, NULL);
        json_out_string(&b, "type", "dump");
        json_out_path(&b, "note", h->dump->note);
        json_out_string(&b, "where", h->unit ? "container" : "here");
        if (h->unit) {
                json_out_string(&b, "unit", h->unit->id);
                json_out_string(&b, "container", *h->unit->container ? h->unit->container : NULL);
                json_out_path(&b, "path", h->dump->path);
        }
        json_out_end_object(&b);
        (void)collect_emit(d->out, &b); /* what does not fit is remembered there */
}

void dumps_find(Dumps *d, DumpHook *h) {
        Finding x = { .d = d, .h = h, .process = { .dir_fd = -1 } };
        int r = find(&x);
        procfs_close(&x.process);
        if (r == FIND_E_NOT_YET)
                return;
        h->is_answered = true;
        h->has_ended = !h->unit;
        if (r == 0 || r == FIND_E_HERE)
                say_where(d, h);
        else
                dumps_say_none(d->out, h->dump->note, x.detail);
}

bool dumps_hook_has_ended(const Dumps *d, const DumpHook *h) {
        Proc p = { .dir_fd = -1 };
        int r = procfs_open(&p, d->order->proc_root, h->dump->hook_pid, h->start_ticks);
        bool has_ended = r != 0 || procfs_is_zombie(&p);
        procfs_close(&p);
        return has_ended;
}
