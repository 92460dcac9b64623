/* The collectors packages and process_packages: which software is installed.
 *
 * `packages` is about the host alone, whatever the request names. It is public: it reads only what
 * every user may read, and nothing about other users. `process_packages` is about the roots of the
 * processes of the request, and is not public. For a process that runs on the host's root, it lists
 * only the Python directories and the runtime library that the process has mapped.
 *
 * Each root is read by a part of its own (child_pool.h), because its file systems may hang.
 * package_root.c, pip.c and rpm.c read it. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "collectors/host/package_root.h"
#include "collectors/host/pip.h"
#include "collectors/host/procfs.h"
#include "collectors/host/rpm.h"
#include "collectors/runner/child_pool.h"
#include "collectors/runner/collector.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"

enum {
        ROOTS_MAX = 32,         /* different ones */
        MAPPED_PLACES_MAX = 16, /* Python directories that a process has mapped something from */
        PLACE_BYTES_MAX = 1024,
        MAPS_BYTES_MAX = 8 << 20,
        LINE_BYTES_MAX = 512 << 10,
        PARTS_AT_ONCE = 4,
};

static const char rpm_program[] = "/usr/bin/rpm";

/* What one process lists: a root, and the first process of the request that has it. */
typedef struct PackagesPart {
        const CollectProcess *process; /* NULL: the host alone */
        bool is_host; /* the root is the host's: only what the process has mapped is listed */
        char mnt[64], root[PLACE_BYTES_MAX]; /* links; two processes that have equal ones have the
                                                same root */
} PackagesPart;

typedef struct PackagesRun {
        const CollectRequest *request;
        CollectOut *out;
} PackagesRun;

/* The root of the host's first process is the host's, even where this process is in a container. */
static int open_host(const CollectRequest *request) {
        _cleanup_(procfs_close) Proc p = { .dir_fd = -1 };
        int fd = procfs_open(&p, request->proc_root, 1, 0) == 0 ? procfs_root(&p) : -1;

        if (fd >= 0)
                return fd;
        fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

static void add_module(const CollectRequest *request, PackageRoot *root) {
        _cleanup_free_ char *path = path_join(request->sysfs_root, "module/neuron/version"),
                            *text = NULL;
        size_t n = 0;

        package_root_begin(root, "driver");
        if (path && fs_read_file(AT_FDCWD, path, 256, &text, &n) == 0)
                json_out_text(&root->b, "version", text, strcspn(text, "\n"));
        else
                json_out_null(&root->b, "version"); /* no driver is loaded */
        package_root_end(root);
}

/* Files of interest that a process has mapped. */
typedef struct MappedFiles {
        char places[MAPPED_PLACES_MAX][PLACE_BYTES_MAX]; /* …/site-packages */
        size_t n;
        char libnrt[PLACE_BYTES_MAX];
} MappedFiles;

static void note_place(MappedFiles *mapped, const ProcMap *m) {
        static const char *const names[] = { "/site-packages/", "/dist-packages/" };

        for (size_t i = 0; i < ELEMENTSOF(names); i++) {
                const char *at = memmem(m->path, m->n_path, names[i], strlen(names[i]));
                size_t n = at ? (size_t)(at - m->path) + strlen(names[i]) - 1 : 0;
                bool is_known = n == 0 || n >= PLACE_BYTES_MAX || mapped->n == MAPPED_PLACES_MAX;
                for (size_t k = 0; !is_known && k < mapped->n; k++)
                        is_known = strlen(mapped->places[k]) == n &&
                                   memcmp(mapped->places[k], m->path, n) == 0;
                if (is_known)
                        continue;
                memcpy(mapped->places[mapped->n], m->path, n);
                mapped->places[mapped->n++][n] = '\0';
        }
}

static int read_mapped(const Proc *p, MappedFiles *mapped) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        int r = procfs_read(p, (ProcFile){ "maps", MAPS_BYTES_MAX }, &text, NULL);

        for (const char *line = text.text; r == 0 && line && *line != '\0';) {
                size_t n = strcspn(line, "\n");
                ProcMap m;
                if (procfs_parse_map(line, n, &m) && m.n_path > 0) {
                        const char *slash = memrchr(m.path, '/', m.n_path);
                        size_t n_name = slash ? m.n_path - (size_t)(slash + 1 - m.path) : 0;
                        note_place(mapped, &m);
                        if (n_name >= 9 && memcmp(slash + 1, "libnrt.so", 9) == 0 &&
                            m.n_path < PLACE_BYTES_MAX) {
                                memcpy(mapped->libnrt, m.path, m.n_path);
                                mapped->libnrt[m.n_path] = '\0';
                        }
                }
                line = line[n] == '\n' ? line + n + 1 : NULL;
        }
        return r;
}

static void add_libnrt(PackageRoot *root, const MappedFiles *mapped) {
        if (mapped->libnrt[0] == '\0')
                return;
        package_root_begin(root, "libnrt");
        procfs_add_path(&root->b, "path", mapped->libnrt);
        package_root_end(root);
}

static int write_unavailable(PackageRoot *root, const char *why) {
        package_root_begin(root, "root");
        json_out_string(&root->b, "unavailable", why);
        package_root_end(root);
        return root->result;
}

static void list_root(PackageRoot *root, uint64_t timeout_usec) {
        package_root_add_opt(root);
        package_root_add_dpkg(root);
        pip_list(root);
        rpm_list(root, rpm_program, timeout_usec / 2);
}

static int run_host(const CollectRequest *request, PackageRoot *root) {
        root->fd = open_host(request);
        if (root->fd < 0)
                return root->fd;
        add_module(request, root);
        list_root(root, request->timeout_usec);
        (void)close(root->fd); /* a path only */
        return root->result;
}

static int run_process(const CollectRequest *request, const PackagesPart *part, PackageRoot *root) {
        _cleanup_free_ MappedFiles *mapped = calloc(1, sizeof *mapped);
        _cleanup_(procfs_close) Proc p = { .dir_fd = -1 };

        if (!mapped)
                return -ENOMEM;
        root->pid = part->process->pid;
        int r = procfs_open(&p, request->proc_root, root->pid, part->process->start_ticks);
        if (r != 0)
                return write_unavailable(root, procfs_reason(r));
        root->fd = procfs_root(&p);
        if (root->fd < 0)
                return write_unavailable(root, procfs_is_zombie(&p) ? procfs_reason(PROCFS_E_ENDED)
                                                                    : strerror(-root->fd));
        if (!part->is_host)
                list_root(root, request->timeout_usec);
        if (read_mapped(&p, mapped) == 0) {
                add_libnrt(root, mapped);
                for (size_t i = 0; i < mapped->n; i++)
                        pip_list_directory(root, mapped->places[i]);
        }
        (void)close(root->fd); /* a path only */
        return root->result;
}

static int run_part(const PoolTask *task, int fd, void *userdata) {
        const PackagesRun *run = userdata;
        const PackagesPart *part = task->userdata;
        PackageRoot root = { .out_fd = fd };
        int r = part->process ? run_process(run->request, part, &root)
                              : run_host(run->request, &root);

        strbuf_done(&root.b);
        return r;
}

static int on_end(const PoolTask *task, int result, void *userdata) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        const PackagesRun *run = userdata;
        const PackagesPart *part = task->userdata;

        if (result == 0)
                return 0;
        json_out_object(&b, NULL);
        json_out_string(&b, "where", part->process ? "process" : "host");
        if (part->process)
                json_out_i64(&b, "pid", part->process->pid);
        json_out_string(&b, "source", "root");
        json_out_string(&b, "unavailable", strerror(-result));
        json_out_end_object(&b);
        return collect_emit_fitting(run->out, &b);
}

/* Reads links only, which never blocks. What is unknown stays "". */
static void identify_root(const CollectRequest *request, pid_t pid, uint64_t start_ticks,
                          PackagesPart *part) {
        char link[PROCFS_LINK_SIZE];
        _cleanup_(procfs_close) Proc p = { .dir_fd = -1 };

        if (procfs_open(&p, request->proc_root, pid, start_ticks) != 0)
                return;
        if (procfs_link(&p, "ns/mnt", link) == 0 && strlen(link) < sizeof part->mnt)
                memcpy(part->mnt, link, strlen(link) + 1);
        if (procfs_link(&p, "root", link) == 0 && strlen(link) < sizeof part->root)
                memcpy(part->root, link, strlen(link) + 1);
}

static bool same_root(const PackagesPart *a, const PackagesPart *b) {
        return a->mnt[0] != '\0' && a->root[0] != '\0' && strcmp(a->mnt, b->mnt) == 0 &&
               strcmp(a->root, b->root) == 0;
}

/* Processes with the same root share a part. Those with the host's root do not: each may have
 * mapped Python directories of its own. */
static size_t make_parts(const CollectRequest *request, PackagesPart *parts) {
        PackagesPart host = { 0 };
        size_t n = 0;

        identify_root(request, 1, 0, &host);
        for (size_t i = 0; i < request->n_processes && n < ROOTS_MAX; i++) {
                PackagesPart part = { .process = &request->processes[i] };
                bool is_known = false;
                identify_root(request, part.process->pid, part.process->start_ticks, &part);
                part.is_host = same_root(&part, &host);
                for (size_t k = 0; !is_known && !part.is_host && k < n; k++)
                        is_known = same_root(&part, &parts[k]);
                if (!is_known)
                        parts[n++] = part;
        }
        return n;
}

static int run_parts(const CollectRequest *request, CollectOut *out, PackagesPart *parts,
                     size_t n) {
        PoolTask tasks[ROOTS_MAX];
        PackagesRun run = { .request = request, .out = out };
        ChildPool pool = { .run = run_part,
                           .out = out,
                           .on_end = on_end,
                           .userdata = &run,
                           .max_at_once = PARTS_AT_ONCE,
                           .timeout_usec = request->timeout_usec / 10 * 9,
                           .max_line_bytes = LINE_BYTES_MAX,
                           .max_bytes_each = out->max_bytes };

        for (size_t i = 0; i < n; i++)
                tasks[i] = (PoolTask){ .name = "root", .userdata = &parts[i] };
        return child_pool_run(&pool, tasks, n);
}

int collect_packages(const CollectRequest *request, CollectOut *out) {
        PackagesPart host = { 0 };

        return run_parts(request, out, &host, 1);
}

int collect_process_packages(const CollectRequest *request, CollectOut *out) {
        _cleanup_free_ PackagesPart *parts = calloc(ROOTS_MAX, sizeof *parts);

        if (!parts)
                return -ENOMEM;
        return run_parts(request, out, parts, make_parts(request, parts));
}
