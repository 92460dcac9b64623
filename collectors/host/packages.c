/* Installed packages, by two collectors: `packages` is about the host alone, whatever the request.
 * It is public: it reads what anybody may read, and nothing about other users. `process_packages`
 * is about the roots of the request's processes, and is not public.
 *
 * A container's root is its user's: only regular files and directories are opened, links stay
 * inside (procfs_root_open), each root is read by a part of its own (child_pool.h), since its file
 * systems may hang. */

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <grp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "collectors/host/dpkg.h"
#include "collectors/host/procfs.h"
#include "collectors/runner/child_pool.h"
#include "collectors/runner/collector.h"
#include "collectors/runner/sandbox.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"

#define PACKAGES_NAME_SIZE 128
#define PACKAGES_VERSION_SIZE 128
/** A root directory whose packages are listed. */
typedef struct PackagesRoot {
        int fd;     /* of the root, O_PATH */
        pid_t pid;  /* whose it is; 0 = the host's */
        int out_fd; /* gets the records, a line each */
        StrBuf b;   /* the record that is being made */
        int result; /* 0, -errno: nothing more is written */
} PackagesRoot;

#define PACKAGES_MAX 512 /* of one source */
static void packages_begin(PackagesRoot *root, const char *source) {
        strbuf_clear(&root->b);
        json_out_object(&root->b, NULL);
        json_out_string(&root->b, "where", root->pid == 0 ? "host" : "process");
        if (root->pid != 0)
                json_out_i64(&root->b, "pid", root->pid);
        json_out_string(&root->b, "source", source);
}

static void packages_end(PackagesRoot *root) {
        json_out_end_object(&root->b);
        if (root->result == 0)
                root->result = collect_write_line(root->out_fd, &root->b);
        strbuf_clear(&root->b);
}

/* ---- dpkg ---- */

typedef struct Listing {
        StrBuf *b;
        size_t n;
} Listing;

static void add_package(const DpkgParser *p, void *userdata) {
        Listing *l = userdata;

        if (strncmp(p->name, "aws-neuron", 10) != 0 || l->n++ >= PACKAGES_MAX)
                return;
        json_out_object(l->b, NULL);
        json_out_string(l->b, "name", p->name);
        json_out_string(l->b, "version", p->version);
        json_out_string(l->b, "status", p->status);
        json_out_end_object(l->b);
}

static void packages_dpkg(PackagesRoot *root) {
        _cleanup_close_ int fd = procfs_root_open(root->fd, "/var/lib/dpkg/status", O_RDONLY, NULL);
        Listing l = { .b = &root->b };
        DpkgParser parser = { .on_package = add_package, .userdata = &l };

        if (fd == -ENOENT)
                return;
        packages_begin(root, "dpkg");
        json_out_array(&root->b, "packages");
        int r = fd < 0 ? fd : dpkg_read(&parser, fd);
        json_out_end_array(&root->b);
        json_out_bool(&root->b, "cut", r == 1 || l.n > PACKAGES_MAX);
        if (r < 0)
                json_out_string(&root->b, "unavailable", strerror(-r));
        packages_end(root);
}

/* Python distributions of a root, by the names of the directories that pip leaves. No Python is
 * run. */

enum { ENTRIES_MAX = 100000, PLACES_MAX = 64 };

static bool packages_parse_pip(const char *directory, char name[static PACKAGES_NAME_SIZE],
                               char version[static PACKAGES_VERSION_SIZE]) {
        bool is_egg = path_has_suffix(directory, ".egg-info");
        size_t n, n_name, k = 0;

        if (!is_egg && !path_has_suffix(directory, ".dist-info"))
                return false;
        n = strlen(directory) - (is_egg ? strlen(".egg-info") : strlen(".dist-info"));
        n_name = MIN(strcspn(directory, "-"), n);
        if (n_name == 0 || n_name >= PACKAGES_NAME_SIZE)
                return false;
        for (size_t i = 0; i < n_name; i++) {
                unsigned char c = (unsigned char)directory[i];
                if (!isalnum(c) && c != '_' && c != '.')
                        return false;
                if (isalnum(c))
                        name[k++] = (char)tolower(c);
                else if (k == 0 || name[k - 1] != '-')
                        name[k++] = '-';
        }
        name[k] = '\0';
        version[0] = '\0';
        if (n_name < n) {
                size_t n_version = n - n_name - 1;
                if (is_egg) /* `-py3.10` and what may follow */
                        n_version = MIN(n_version, strcspn(directory + n_name + 1, "-"));
                n_version = MIN(n_version, (size_t)PACKAGES_VERSION_SIZE - 1);
                memcpy(version, directory + n_name + 1, n_version);
                version[n_version] = '\0';
        }
        return true;
}

static bool packages_pip_is_asked_for(const char *name) {
        static const char *const patterns[] = { "*neuron*",       "torch*", "jax*",
                                                "*transformers*", "vllm*",  "nki",
                                                "nki-*",          "nrtpy*", "optimum*" };

        for (size_t i = 0; i < ELEMENTSOF(patterns); i++)
                if (fnmatch(patterns[i], name, 0) == 0)
                        return true;
        return false;
}

/* Opens a directory of the root for reading its entries. */
static DIR *open_directory(const PackagesRoot *root, const char *path) {
        DIR *dir = NULL;

        (void)fs_opendir_fd(procfs_root_open(root->fd, path, O_RDONLY | O_DIRECTORY, NULL), &dir);
        return dir;
}

static void packages_pip_directory(PackagesRoot *root, const char *path) {
        _cleanup_closedir_ DIR *dir = open_directory(root, path);
        const struct dirent *entry;
        size_t n_entries = 0, n = 0;

        if (!dir)
                return;
        packages_begin(root, "pip");
        procfs_add_path(&root->b, "directory", path);
        json_out_array(&root->b, "packages");
        while (n_entries++ < ENTRIES_MAX && (entry = readdir(dir))) {
                char name[PACKAGES_NAME_SIZE], version[PACKAGES_VERSION_SIZE];
                if (!packages_parse_pip(entry->d_name, name, version) ||
                    !packages_pip_is_asked_for(name) || n++ >= PACKAGES_MAX)
                        continue;
                json_out_object(&root->b, NULL);
                json_out_string(&root->b, "name", name);
                json_out_string(&root->b, "version", version[0] != '\0' ? version : NULL);
                json_out_end_object(&root->b);
        }
        json_out_end_array(&root->b);
        json_out_bool(&root->b, "cut", n > PACKAGES_MAX || n_entries > ENTRIES_MAX);
        if (n > 0)
                packages_end(root);
        strbuf_clear(&root->b);
}

/* For each entry of a directory that a pattern matches: path/ENTRY/rest, further expanded. */
static void expand(PackagesRoot *root, const char *path, const char *pattern,
                   const char *const *rest) {
        _cleanup_closedir_ DIR *dir = open_directory(root, path);
        const struct dirent *entry;
        size_t n = 0;

        while (dir && n < PLACES_MAX && (entry = readdir(dir))) {
                if (entry->d_name[0] == '.' || fnmatch(pattern, entry->d_name, 0) != 0)
                        continue;
                n++;
                for (const char *const *r = rest; *r; r++) {
                        char place[PATH_MAX];
                        if (snprintf(place, sizeof place, "%s/%s%s", path, entry->d_name, *r) <
                            (int)sizeof place)
                                packages_pip_directory(root, place);
                }
        }
}

/* Virtual environments below /opt: where AWS's images have theirs (/opt/aws_neuronx_venv_…),
 * conda's too. */
static void expand_opt(PackagesRoot *root) {
        static const char *const places[] = { "/site-packages", NULL };
        _cleanup_closedir_ DIR *dir = open_directory(root, "/opt");
        const struct dirent *entry;
        size_t n = 0;

        while (dir && n < PLACES_MAX && (entry = readdir(dir))) {
                char path[PATH_MAX];
                if (entry->d_name[0] == '.')
                        continue;
                n++;
                (void)snprintf(path, sizeof path, "/opt/%s/lib", entry->d_name);
                expand(root, path, "python3*", places);
        }
}

static void packages_pip(PackagesRoot *root) {
        static const char *const places[] = { "/dist-packages", "/site-packages", NULL };
        static const char *const libraries[] = { "/usr/local/lib", "/usr/local/lib64", "/usr/lib",
                                                 "/usr/lib64" };

        for (size_t i = 0; i < ELEMENTSOF(libraries); i++)
                expand(root, libraries[i], "python3*", places);
        expand_opt(root);
}

/* RPM packages of a root. Their database has no stable format, so the host's rpm reads it, by the
 * host's configuration: with a deadline, and without any right. A container's database is its
 * user's, and may be made to take rpm over: there rpm can read nothing but it and the host's
 * programs, sees no other process and sends no signal (sandbox_enter_reader()), or is nobody, or is
 * not run. It sees the database by a descriptor; what the container's links lead to outside of it
 * cannot be named. */

enum { OUTPUT_BYTES_MAX = 256 << 10, NOBODY = 65534 };

enum { EXIT_NOT_CONFINED = 126, EXIT_NOT_EXECUTED = 127 }; /* as shells have them */

enum { ADDRESS_SPACE_MAX = 1 << 30, CPU_SECONDS_MAX = 10 };

static void limit(int resource, rlim_t value) {
        struct rlimit l = { .rlim_cur = value, .rlim_max = value };
        (void)setrlimit(resource,
                        &l); /* beside the deadline; a lower one that is there is as good */
}

static bool become_nobody(void) {
        return geteuid() == 0 && setgroups(0, NULL) == 0 &&
               setresgid(NOBODY, NOBODY, NOBODY) == 0 && setresuid(NOBODY, NOBODY, NOBODY) == 0;
}

typedef struct RpmRun {
        const char *program;
        bool is_foreign; /* the database is a container's */
        StrBuf list;     /* JSON */
        size_t n;
        int result;
} RpmRun;

/* In a process of its own. A foreign database is read without any right, or not at all. */
static int exec_rpm(const PoolTask *task, int fd, void *userdata) {
        static char *const environment[] = { "LC_ALL=C", "PATH=/usr/bin:/bin", "HOME=/nonexistent",
                                             NULL };
        char *const argv[] = { "rpm",
                               "-qa",
                               "--dbpath",
                               "/proc/self/fd/3",
                               "--nosignature", /* which are parsed, too */
                               "--nodigest",
                               "--qf",
                               "%{NAME}\t%{VERSION}-%{RELEASE}\n",
                               "aws-neuron*",
                               NULL };
        const RpmRun *run = userdata;
        _Static_assert(CHILD_POOL_KEPT_FD == 3, "--dbpath names it");

        (void)task;
        if (dup2(fd, STDOUT_FILENO) < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
                return -EXIT_NOT_CONFINED;
        limit(RLIMIT_AS, ADDRESS_SPACE_MAX);
        limit(RLIMIT_CPU, CPU_SECONDS_MAX);
        limit(RLIMIT_FSIZE, 0);
        (void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        bool is_nobody = become_nobody();
        if (run->is_foreign && sandbox_enter_reader(run->program, CHILD_POOL_KEPT_FD) < 0 &&
            !is_nobody)
                return -EXIT_NOT_CONFINED;
        (void)execve(run->program, argv, environment);
        return -EXIT_NOT_EXECUTED;
}

static int on_rpm_line(const PoolTask *task, char *line, size_t n, void *userdata) {
        RpmRun *run = userdata;
        char *tab = memchr(line, '\t', n);

        (void)task;
        if (!tab || run->n++ >= PACKAGES_MAX)
                return 0;
        *tab = '\0';
        json_out_object(&run->list, NULL);
        json_out_text(&run->list, "name", line, strnlen(line, PACKAGES_NAME_SIZE));
        json_out_text(&run->list, "version", tab + 1, strnlen(tab + 1, PACKAGES_VERSION_SIZE));
        json_out_end_object(&run->list);
        return strbuf_error(&run->list);
}

static int on_rpm_end(const PoolTask *task, int result, void *userdata) {
        RpmRun *run = userdata;

        (void)task;
        run->result = result == -EXIT_NOT_CONFINED                              ? -EPERM
                      : result == -EXIT_NOT_EXECUTED                            ? -ENOEXEC
                      : result == 0 || result == -ETIMEDOUT || result == -EFBIG ? result
                                                                                : -EIO;
        return 0;
}

/* @return an fd of the database's directory, O_PATH, or -ENOENT */
static int open_database(const PackagesRoot *root) {
        static const char *const places[] = { "/usr/lib/sysimage/rpm", "/var/lib/rpm" };
        static const char *const files[] = { "rpmdb.sqlite", "Packages.db", "Packages" };

        for (size_t i = 0; i < ELEMENTSOF(places); i++) {
                _cleanup_close_ int fd =
                        procfs_root_open(root->fd, places[i], O_PATH | O_DIRECTORY, NULL);
                struct stat st;
                for (size_t k = 0; fd >= 0 && k < ELEMENTSOF(files); k++)
                        if (fstatat(fd, files[k], &st, AT_SYMLINK_NOFOLLOW) == 0 &&
                            S_ISREG(st.st_mode))
                                return TAKE_FD(fd);
        }
        return -ENOENT;
}

static const char *why_not(int r) {
        switch (r) {
        case -ENOENT:
                return "this machine has no rpm to read the database with";
        case -EIO:
                return "rpm did not succeed";
        case -EPERM:
                return "rpm is run on a container's database only where the kernel confines it "
                       "(landlock, seccomp), or as nobody";
        case -ENOEXEC:
                return "rpm could not be executed here";
        default:
                return strerror(-r);
        }
}

static void packages_rpm(PackagesRoot *root, const char *program, uint64_t timeout_usec) {
        static const PoolTask task = { .name = "rpm" };
        _cleanup_close_ int db_fd = open_database(root);
        RpmRun run = { .program = program, .is_foreign = root->pid != 0 };
        const ChildPool pool = { .run = exec_rpm,
                                 .on_line = on_rpm_line,
                                 .on_end = on_rpm_end,
                                 .userdata = &run,
                                 .max_at_once = 1,
                                 .kept_fd = db_fd,
                                 .timeout_usec = timeout_usec,
                                 .max_line_bytes = OUTPUT_BYTES_MAX,
                                 .max_bytes_each = OUTPUT_BYTES_MAX };

        if (db_fd < 0)
                return;
        json_out_array(&run.list, NULL);
        int r = access(program, X_OK) < 0 ? -errno : child_pool_run(&pool, &task, 1);
        json_out_end_array(&run.list);
        if (r == 0)
                r = run.result < 0 ? run.result : strbuf_error(&run.list);
        packages_begin(root, "rpm");
        if (r < 0) {
                json_out_null(&root->b, "packages");
                json_out_string(&root->b, "unavailable", why_not(r));
        } else
                json_out_raw(&root->b, "packages", run.list.text);
        packages_end(root);
        strbuf_done(&run.list);
}

enum {
        ROOTS_MAX = 32,         /* different ones */
        MAPPED_PLACES_MAX = 16, /* Python directories that a process has mapped something from */
        PLACE_BYTES_MAX = 1024,
        MAPS_BYTES_MAX = 8 << 20,
        LINE_BYTES_MAX = 512 << 10,
        PARTS_AT_ONCE = 4,
};

static const char rpm_program[] = "/usr/bin/rpm";

/* One part: a root, and the first process that was seen with it. */
typedef struct Part {
        const CollectProcess *process; /* NULL: the host alone */
        bool is_host; /* the host's root: listed already, but for what the process itself has mapped
                       */
        char mnt[64], root[PLACE_BYTES_MAX]; /* who has both of these alike has the same root */
} Part;

typedef struct Run {
        const CollectRequest *request;
        CollectOut *out;
} Run;

/* The host's root: that of its first process, which is another than ours when we are in a
 * container; else our own. */
static int open_host(const CollectRequest *request) {
        _cleanup_(procfs_close) Proc p = { .dir_fd = -1 };
        int fd = procfs_open(&p, request->proc_root, 1, 0) == 0 ? procfs_root(&p) : -1;

        if (fd >= 0)
                return fd;
        fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

static void add_module(const CollectRequest *request, PackagesRoot *root) {
        _cleanup_free_ char *path = path_join(request->sysfs_root, "module/neuron/version"),
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
        char places[MAPPED_PLACES_MAX][PLACE_BYTES_MAX]; /* …/site-packages */
        size_t n;
        char libnrt[PLACE_BYTES_MAX];
} Mapped;

static void note_place(Mapped *mapped, const ProcMap *m) {
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

static int write_unavailable(PackagesRoot *root, const char *why) {
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

static int run_host(const CollectRequest *request, PackagesRoot *root) {
        root->fd = open_host(request);
        if (root->fd < 0)
                return root->fd;
        add_module(request, root);
        list_root(root, request->timeout_usec);
        (void)close(root->fd); /* a path only */
        return root->result;
}

static int run_process(const CollectRequest *request, const Part *part, PackagesRoot *root) {
        _cleanup_free_ Mapped *mapped = calloc(1, sizeof *mapped);
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
                        packages_pip_directory(root, mapped->places[i]);
        }
        (void)close(root->fd); /* a path only */
        return root->result;
}

/* In a process of its own. */
static int run_part(const PoolTask *task, int fd, void *userdata) {
        const Run *run = userdata;
        const Part *part = task->userdata;
        PackagesRoot root = { .out_fd = fd };
        int r = part->process ? run_process(run->request, part, &root)
                              : run_host(run->request, &root);

        strbuf_done(&root.b);
        return r;
}

static int on_end(const PoolTask *task, int result, void *userdata) {
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
        return collect_emit_fitting(run->out, &b);
}

/* By links only, which do not wait. What is unknown stays "". */
static void identify_root(const CollectRequest *request, pid_t pid, uint64_t start_ticks,
                          Part *part) {
        char link[PROCFS_LINK_SIZE];
        _cleanup_(procfs_close) Proc p = { .dir_fd = -1 };

        if (procfs_open(&p, request->proc_root, pid, start_ticks) != 0)
                return;
        if (procfs_link(&p, "ns/mnt", link) == 0 && strlen(link) < sizeof part->mnt)
                memcpy(part->mnt, link, strlen(link) + 1);
        if (procfs_link(&p, "root", link) == 0 && strlen(link) < sizeof part->root)
                memcpy(part->root, link, strlen(link) + 1);
}

static bool same_root(const Part *a, const Part *b) {
        return a->mnt[0] != '\0' && a->root[0] != '\0' && strcmp(a->mnt, b->mnt) == 0 &&
               strcmp(a->root, b->root) == 0;
}

/* Processes with one root are one part; but each of the host's root may have Python directories of
 * its own. */
static size_t make_parts(const CollectRequest *request, Part *parts) {
        Part host = { 0 };
        size_t n = 0;

        identify_root(request, 1, 0, &host);
        for (size_t i = 0; i < request->n_processes && n < ROOTS_MAX; i++) {
                Part part = { .process = &request->processes[i] };
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

static int run_parts(const CollectRequest *request, CollectOut *out, Part *parts, size_t n) {
        PoolTask tasks[ROOTS_MAX];
        Run run = { .request = request, .out = out };
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
        Part host = { 0 };

        return run_parts(request, out, &host, 1);
}

int collect_process_packages(const CollectRequest *request, CollectOut *out) {
        _cleanup_free_ Part *parts = calloc(ROOTS_MAX, sizeof *parts);

        if (!parts)
                return -ENOMEM;
        return run_parts(request, out, parts, make_parts(request, parts));
}
