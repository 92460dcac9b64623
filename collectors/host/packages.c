/* Installed packages, by two collectors: `packages` tells of the host alone, whatever the order says. It is public: it reads what anybody may read, and says
 * nothing of other users. `process_packages` tells of the roots of the order's processes, and is not.
 *
 * A container's root is its user's: only regular files and directories are opened, links stay inside (procfs_root_open), each root is read by a part
 * of its own (crew.h), since its file systems may hang. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "collectors/host/packages_private.h"
#include "collectors/host/procfs.h"
#include "collectors/runner/collector.h"
#include "collectors/runner/crew.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/path.h"

enum {
        ROOTS_MAX = 32,  /* different ones */
        PLACES_MAX = 16, /* Python directories that a process has mapped something from */
        PLACE_BYTES_MAX = 1024,
        MAPS_BYTES_MAX = 8 << 20,
        LINE_BYTES_MAX = 512 << 10,
        PARTS_AT_ONCE = 4,
};

static const char rpm_program[] = "/usr/bin/rpm";

/* One part: a root, and the first process that was seen with it. */
typedef struct Part {
        const CollectProcess *process; /* NULL: the host alone */
        bool is_host; /* the host's root: listed already, but for what the process itself has mapped */
        char mnt[64], root[PLACE_BYTES_MAX]; /* who has both of these alike has the same root */
} Part;

typedef struct Run {
        const CollectOrder *order;
        CollectOut *out;
} Run;

void packages_begin(PackagesRoot *root, const char *source) {
        strbuf_clear(&root->b);
        json_out_object(&root->b, NULL);
        json_out_string(&root->b, "where", root->pid == 0 ? "host" : "process");
        if (root->pid != 0)
                json_out_i64(&root->b, "pid", root->pid);
        json_out_string(&root->b, "source", source);
}

void packages_end(PackagesRoot *root) {
        json_out_end_object(&root->b);
        strbuf_add(&root->b, "\n");
        if (root->result == 0)
                root->result = strbuf_error(&root->b);
        if (root->result == 0)
                root->result = fs_write_all(root->out_fd, root->b.text, root->b.n);
        strbuf_clear(&root->b);
}

/* The host's root: that of its first process, which is another than ours when we are in a container; else our own. */
static int open_host(const CollectOrder *order) {
        Proc p;
        int fd = -1;

        if (procfs_open(&p, order->proc_root, 1, 0) == 0) {
                fd = procfs_root(&p);
                procfs_close(&p);
        }
        if (fd >= 0)
                return fd;
        fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

static void add_module(const CollectOrder *order, PackagesRoot *root) {
        _cleanup_free_ char *path = path_join(order->sysfs_root, "module/neuron/version"),
                            *text = NULL;
        size_t n = 0;

        packages_begin(root, "driver");
        if (path && fs_read_file(AT_FDCWD, path, 256, &text, &n) == 0)
                json_out_text(&root->b, "version", text, strcspn(text, "\n"));
        else
                json_out_null(&root->b, "version"); /* no driver is loaded */
        packages_end(root);
}

/* What AWS's packages leave below /opt/aws/neuron. */
static void add_opt(PackagesRoot *root) {
        _cleanup_close_ int dir_fd =
                procfs_root_open(root->fd, "/opt/aws/neuron", O_PATH | O_DIRECTORY, NULL);
        _cleanup_close_ int lib_fd =
                procfs_root_open(root->fd, "/opt/aws/neuron/lib", O_PATH | O_DIRECTORY, NULL);
        _cleanup_close_ int hook_fd =
                procfs_root_open(root->fd, "/opt/aws/neuron/bin/neuron-dump", O_PATH, NULL);
        char target[256];
        ssize_t n = lib_fd < 0 ? -1 : readlinkat(lib_fd, "libnrt.so.1", target, sizeof target - 1);
        struct stat st;

        packages_begin(root, "opt");
        json_out_bool(&root->b, "opt_aws_neuron", dir_fd >= 0);
        json_out_bool(&root->b, "neuron_dump", hook_fd >= 0);
        json_out_bool(&root->b, "libnrt",
                      lib_fd >= 0 && fstatat(lib_fd, "libnrt.so.1", &st, AT_SYMLINK_NOFOLLOW) == 0);
        if (n > 0)
                json_out_text(&root->b, "libnrt_target", target, (size_t)n);
        packages_end(root);
}

typedef struct Mapped {
        char places[PLACES_MAX][PLACE_BYTES_MAX]; /* …/site-packages */
        size_t n;
        char libnrt[PLACE_BYTES_MAX];
} Mapped;

static void note_place(Mapped *mapped, const ProcMap *m) {
        static const char *const names[] = { "/site-packages/", "/dist-packages/" };

        for (size_t i = 0; i < ELEMENTSOF(names); i++) {
                const char *at = memmem(m->path, m->n_path, names[i], strlen(names[i]));
                size_t n = at ? (size_t)(at - m->path) + strlen(names[i]) - 1 : 0;
                bool is_known = n == 0 || n >= PLACE_BYTES_MAX || mapped->n == PLACES_MAX;
                for (size_t k = 0; !is_known && k < mapped->n; k++)
                        is_known = strlen(mapped->places[k]) == n &&
                                   memcmp(mapped->places[k], m->path, n) == 0;
                if (is_known)
                        continue;
                memcpy(mapped->places[mapped->n], m->path, n);
                mapped->places[mapped->n++][n] = '\0';
        }
}

static int read_mapped(const Proc *p, Mapped *mapped) {
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

static void add_libnrt(PackagesRoot *root, const Mapped *mapped) {
        if (mapped->libnrt[0] == '\0')
                return;
        packages_begin(root, "libnrt");
        procfs_add_path(&root->b, "path", mapped->libnrt);
        packages_end(root);
}

static int say_unavailable(PackagesRoot *root, const char *why) {
        packages_begin(root, "root");
        json_out_string(&root->b, "unavailable", why);
        packages_end(root);
        return root->result;
}

static void list_root(PackagesRoot *root, uint64_t timeout_usec) {
        add_opt(root);
        packages_dpkg(root);
        packages_pip(root);
        packages_rpm(root, rpm_program, timeout_usec / 2);
}

static int run_host(const CollectOrder *order, PackagesRoot *root) {
        root->fd = open_host(order);
        if (root->fd < 0)
                return root->fd;
        add_module(order, root);
        list_root(root, order->timeout_usec);
        (void)close(root->fd); /* a path only */
        return root->result;
}

static int run_process(const CollectOrder *order, const Part *part, PackagesRoot *root) {
        _cleanup_free_ Mapped *mapped = calloc(1, sizeof *mapped);
        Proc p;
        int r;

        if (!mapped)
                return -ENOMEM;
        root->pid = part->process->pid;
        r = procfs_open(&p, order->proc_root, root->pid, part->process->start_ticks);
        if (r != 0)
                return say_unavailable(root, procfs_reason(r));
        root->fd = procfs_root(&p);
        if (root->fd < 0)
                r = say_unavailable(root, procfs_is_zombie(&p) ? procfs_reason(PROCFS_E_ENDED)
                                                               : strerror(-root->fd));
        else {
                if (!part->is_host)
                        list_root(root, order->timeout_usec);
                if (read_mapped(&p, mapped) == 0) {
                        add_libnrt(root, mapped);
                        for (size_t i = 0; i < mapped->n; i++)
                                packages_pip_directory(root, mapped->places[i]);
                }
                (void)close(root->fd); /* a path only */
                r = root->result;
        }
        procfs_close(&p);
        return r;
}

/* In a process of its own. */
static int run_part(const CrewTask *task, int fd, void *userdata) {
        const Run *run = userdata;
        const Part *part = task->userdata;
        PackagesRoot root = { .out_fd = fd };
        int r = part->process ? run_process(run->order, part, &root) : run_host(run->order, &root);

        strbuf_done(&root.b);
        return r;
}

static int on_line(const CrewTask *task, char *line, size_t n, void *userdata) {
        _cleanup_(strbuf_done) StrBuf record = STRBUF_INIT;
        const Run *run = userdata;

        (void)task;
        strbuf_add_n(&record, line, n);
        int r = collect_emit(run->out, &record);
        return r == -EFBIG ? 0 : r;
}

static int on_end(const CrewTask *task, int result, void *userdata) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        const Run *run = userdata;
        const Part *part = task->userdata;

        if (result == 0)
                return 0;
        json_out_object(&b, NULL);
        json_out_string(&b, "where", part->process ? "process" : "host");
        if (part->process)
                json_out_i64(&b, "pid", part->process->pid);
        json_out_string(&b, "source", "root");
        json_out_string(&b, "unavailable", strerror(-result));
        json_out_end_object(&b);
        int r = collect_emit(run->out, &b);
        return r == -EFBIG ? 0 : r;
}

/* By links only, which do not wait. What cannot be told stays "". */
static void identify_root(const CollectOrder *order, pid_t pid, uint64_t start_ticks, Part *part) {
        char link[PROCFS_LINK_SIZE];
        Proc p;

        if (procfs_open(&p, order->proc_root, pid, start_ticks) != 0)
                return;
        if (procfs_link(&p, "ns/mnt", link) == 0 && strlen(link) < sizeof part->mnt)
                memcpy(part->mnt, link, strlen(link) + 1);
        if (procfs_link(&p, "root", link) == 0 && strlen(link) < sizeof part->root)
                memcpy(part->root, link, strlen(link) + 1);
        procfs_close(&p);
}

static bool same_root(const Part *a, const Part *b) {
        return a->mnt[0] != '\0' && a->root[0] != '\0' && strcmp(a->mnt, b->mnt) == 0 &&
               strcmp(a->root, b->root) == 0;
}

/* Processes with one root are one part; but each of the host's root may have Python directories of its own. */
static size_t make_parts(const CollectOrder *order, Part *parts) {
        Part host = { 0 };
        size_t n = 0;

        identify_root(order, 1, 0, &host);
        for (size_t i = 0; i < order->n_processes && n < ROOTS_MAX; i++) {
                Part part = { .process = &order->processes[i] };
                bool is_known = false;
                identify_root(order, part.process->pid, part.process->start_ticks, &part);
                part.is_host = same_root(&part, &host);
                for (size_t k = 0; !is_known && !part.is_host && k < n; k++)
                        is_known = same_root(&part, &parts[k]);
                if (!is_known)
                        parts[n++] = part;
        }
        return n;
}

static int run_parts(const CollectOrder *order, CollectOut *out, Part *parts, size_t n) {
        CrewTask tasks[ROOTS_MAX];
        Run run = { .order = order, .out = out };
        Crew crew = { .run = run_part,
                      .on_line = on_line,
                      .on_end = on_end,
                      .userdata = &run,
                      .max_at_once = PARTS_AT_ONCE,
                      .timeout_usec = order->timeout_usec / 10 * 9,
                      .max_line_bytes = LINE_BYTES_MAX,
                      .max_bytes_each = out->max_bytes };

        for (size_t i = 0; i < n; i++)
                tasks[i] = (CrewTask){ .name = "root", .userdata = &parts[i] };
        return crew_run(&crew, tasks, n);
}

int collect_packages(const CollectOrder *order, CollectOut *out) {
        Part host = { 0 };

        return run_parts(order, out, &host, 1);
}

int collect_process_packages(const CollectOrder *order, CollectOut *out) {
        _cleanup_free_ Part *parts = calloc(ROOTS_MAX, sizeof *parts);

        if (!parts)
                return -ENOMEM;
        return run_parts(order, out, parts, make_parts(order, parts));
}
