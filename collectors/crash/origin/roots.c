/* The roots where the files of one report are searched: of a process that still runs in the same
 * container, read here or by a supervisor that may see it, and of the layers of images that
 * containerd and Podman keep on the node. A root that cannot be shown to be the process's own is
 * marked as a layer, so that its files count only by build id. What is opened beneath a root is
 * decided in files.c. */
#include "collectors/crash/origin/roots.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>

#include "collectors/host/cgroup.h"
#include "collectors/host/procfs.h"
#include "collectors/runner/packet.h"
#include "collectors/runner/probe_request.h"
#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"

enum { CONTAINER_ROOTS_MAX = 4, LAYERS_MAX = 128, LAYERS_SEEN_MAX = 16 << 10, SHORT_NAME = 12 };
enum { ROOT_MESSAGE_SIZE = 128 };
#define CGROUP_BYTES_MAX (64 * KIB)
#define PROBE_USEC (10 * USEC_PER_SEC) /* for all of its answer */

void roots_add(Roots *r, int fd, FileRootKind kind, const char *name) {
        if (fd >= 0 && r->n == FILES_ROOTS_MAX)
                (void)close(fd);
        if (fd < 0 || r->n == FILES_ROOTS_MAX)
                return;
        FileRoot *root = &r->items[r->n++];
        *root = (FileRoot){ .fd = fd, .kind = kind };
        (void)snprintf(root->name, sizeof root->name, "%s", name);
}

void roots_done(Roots *r) {
        for (size_t i = 0; i < r->n; i++)
                (void)close(r->items[i].fd); /* opened to read */
        r->n = 0;
}

/* ---- of a living process ---- */

/* Whether a line of /proc/PID/cgroup, `0::PATH`, has this path. */
static bool has_path(const char *text, const char *path) {
        size_t n = strlen(path);
        for (const char *at = text; (at = strstr(at, path)); at++)
                if (at > text && at[-1] == ':' && (at[n] == '\n' || at[n] == '\0'))
                        return true;
        return false;
}

/* By the container's id where there is one: paths differ between cgroup namespaces. The root of
 * the tree is everybody's. */
static bool is_same_container(const char *text, const char *wanted) {
        CgroupContainer ours, theirs;
        (void)cgroup_parse(wanted, strlen(wanted), &theirs);
        (void)cgroup_parse(text, strlen(text), &ours);
        if (theirs.container_id[0] != '\0' || ours.container_id[0] != '\0')
                return strcmp(ours.container_id, theirs.container_id) == 0;
        return wanted[0] == '/' && wanted[1] != '\0' && has_path(text, wanted);
}

static bool is_same_directory(int a, int b) {
        struct stat x, y;
        return a >= 0 && b >= 0 && fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_dev == y.st_dev &&
               x.st_ino == y.st_ino;
}

/* Both the cgroup and the root are read by one descriptor of /proc/PID, which stays that process's.
 * @return a root, the caller's; -1 */
static int open_root_of(const char *proc_root, pid_t pid, const char *cgroup) {
        _cleanup_(procfs_close) Proc p = { .dir_fd = -1 };
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        return procfs_open(&p, proc_root, pid, 0) == 0 &&
                               procfs_read(&p, (ProcFile){ "cgroup", CGROUP_BYTES_MAX }, &text,
                                           NULL) == 0 &&
                               text.text && is_same_container(text.text, cgroup)
                       ? procfs_root(&p)
                       : -1;
}

void roots_add_container(Roots *r, const char *proc_root, const char *cgroup, int host_fd) {
        ProcNumbers pids;
        size_t first = r->n;
        if (procfs_list(AT_FDCWD, proc_root, PROCFS_PIDS_MAX, &pids) < 0)
                return;
        for (size_t i = 0; i < pids.n && r->n - first < CONTAINER_ROOTS_MAX; i++) {
                char name[FILES_NAME_SIZE];
                _cleanup_close_ int fd = open_root_of(proc_root, pids.items[i], cgroup);
                bool is_known = fd < 0 || is_same_directory(fd, host_fd);
                for (size_t k = first; k < r->n && !is_known; k++)
                        is_known = is_same_directory(fd, r->items[k].fd);
                if (is_known)
                        continue;
                (void)snprintf(name, sizeof name, "process %d", pids.items[i]);
                roots_add(r, TAKE_FD(fd), FILE_ROOT_OWN, name);
        }
        procfs_numbers_done(&pids);
        for (size_t k = first; r->n - first > 1 && k < r->n; k++)
                r->items[k].kind = FILE_ROOT_LAYER;
}

/* ---- by a probe: `own NAME` or `layer NAME`, each with a descriptor ---- */

static const char *const root_words[] = { [FILE_ROOT_OWN] = "own", [FILE_ROOT_LAYER] = "layer" };

int roots_send_container(int socket_fd, const char *proc_root, const char *cgroup) {
        _cleanup_(roots_done) Roots roots = { .n = 0 };
        _cleanup_close_ int host = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
        int r = host < 0 ? -errno : 0;
        if (r == 0)
                roots_add_container(&roots, proc_root, cgroup, host);
        for (size_t i = 0; i < roots.n && r == 0; i++) {
                char text[ROOT_MESSAGE_SIZE];
                int n = snprintf(text, sizeof text, "%s %s", root_words[roots.items[i].kind],
                                 roots.items[i].name);
                r = packet_send(socket_fd, text, (size_t)n, &roots.items[i].fd, 1);
        }
        return r;
}

static void add_sent(Roots *r, const char *text, int *fd) {
        for (size_t kind = 0; kind < ELEMENTSOF(root_words); kind++) {
                size_t n = root_words[kind] ? strlen(root_words[kind]) : 0;
                if (n > 0 && strncmp(text, root_words[kind], n) == 0 && text[n] == ' ')
                        roots_add(r, TAKE_FD(*fd), (FileRootKind)kind, text + n + 1);
        }
}

static void receive_roots(Roots *r, int socket_fd) {
        uint64_t now, end_usec = clock_boottime_usec() + PROBE_USEC;
        while ((now = clock_boottime_usec()) < end_usec) {
                char text[ROOT_MESSAGE_SIZE] = "";
                _cleanup_close_ int fd = -1;
                struct pollfd p = { .fd = socket_fd, .events = POLLIN };
                if (poll(&p, 1, (int)((end_usec - now) / USEC_PER_MSEC + 1)) <= 0)
                        continue;
                ssize_t n = packet_receive(socket_fd, text, sizeof text - 1, &fd, 1);
                if ((n <= 0 && n != -EAGAIN) || strcmp(text, "done") == 0)
                        return;
                add_sent(r, text, &fd);
        }
}

void roots_request_container(Roots *r, const char *socket, const char *proc_root,
                             const char *cgroup) {
        /* What nothing is collected from has to be named as well. */
        const ProbeRequest request = { .mode = PROBE_ROOTS,
                                       .cgroup = (char *)cgroup,
                                       .collect = { .sysfs_root = (char *)"/sys",
                                                    .device_directory = (char *)"/dev",
                                                    .proc_root = (char *)proc_root,
                                                    .timeout_usec = PROBE_USEC,
                                                    .max_bytes = 1 } };
        _cleanup_close_ int fd = probe_request_connect(socket);
        if (fd >= 0 && probe_request_send(&request, fd, -1) == 0)
                receive_roots(r, fd);
}

/* ---- of images ---- */

static const struct {
        const char *directory, *below;
} stores[] = {
        { "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots", "fs" },
        { "/var/lib/containers/storage/overlay", "diff" },
};

typedef struct Layer {
        struct timespec time; /* of its directory, to which nothing is added later */
        size_t store;
        char *name;
} Layer;

typedef struct Layers {
        Layer *items;
        size_t n;
} Layers;

static int compare(const void *a, const void *b) {
        const Layer *x = a, *y = b;
        if (x->time.tv_sec != y->time.tv_sec)
                return x->time.tv_sec > y->time.tv_sec ? -1 : 1;
        return x->time.tv_nsec > y->time.tv_nsec ? -1 : x->time.tv_nsec < y->time.tv_nsec;
}

static int add_layer(Layers *l, size_t store, int store_fd, const char *name) {
        struct stat st;
        if (name[0] == '.' || fstatat(store_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
            !S_ISDIR(st.st_mode))
                return 0;
        if (array_grow(&l->items, l->n, sizeof *l->items) < 0)
                return -ENOMEM;
        Layer *layer = &l->items[l->n];
        *layer = (Layer){ .time = st.st_mtim, .store = store, .name = strdup(name) };
        if (!layer->name)
                return -ENOMEM;
        l->n++;
        return 0;
}

static void add_store(Layers *l, size_t store, int host_fd) {
        int fd = procfs_root_open(host_fd, stores[store].directory, O_RDONLY | O_DIRECTORY, NULL);
        _cleanup_closedir_ DIR *dir = NULL;
        if (fs_opendir_fd(fd, &dir) < 0)
                return; /* not here, or not for us to see */
        for (struct dirent *e; l->n < LAYERS_SEEN_MAX && (e = readdir(dir));)
                if (add_layer(l, store, dirfd(dir), e->d_name) < 0)
                        return;
}

/* Not every directory is one: Podman has one of links. */
static int open_layer(const Layer *l, int host_fd) {
        char path[FILES_PATH_SIZE];
        (void)snprintf(path, sizeof path, "%s/%s/%s", stores[l->store].directory, l->name,
                       stores[l->store].below);
        return procfs_root_open(host_fd, path, O_PATH | O_DIRECTORY, NULL);
}

void roots_add_layers(Roots *r, int host_fd) {
        Layers layers = { 0 };
        char name[FILES_NAME_SIZE];
        size_t end = MIN(r->n + LAYERS_MAX, (size_t)FILES_ROOTS_MAX);
        for (size_t i = 0; i < ELEMENTSOF(stores); i++)
                add_store(&layers, i, host_fd);
        if (layers.n > 0)
                qsort(layers.items, layers.n, sizeof *layers.items, compare);
        for (size_t i = 0; i < layers.n && r->n < end; i++) {
                (void)snprintf(name, sizeof name, "layer %.*s", SHORT_NAME, layers.items[i].name);
                roots_add(r, open_layer(&layers.items[i], host_fd), FILE_ROOT_LAYER, name);
        }
        for (size_t i = 0; i < layers.n; i++)
                free(layers.items[i].name);
        free(layers.items);
}
