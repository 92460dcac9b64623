/* The RPM packages of a root.
 *
 * RPM's database has no stable format, so that the host's rpm reads it, with the host's
 * configuration, a deadline, and no privilege. A container's database is its user's, who may have
 * made it so that it takes over the rpm that reads it. There rpm is confined: it can read nothing
 * but the database and the host's programs, sees no other process and sends no signal
 * (sandbox_enter_reader()); or it runs as nobody; or it is not run at all. It sees the database
 * through a descriptor, so that no link of the container can lead out of it. */
#include "collectors/host/rpm.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdbool.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "collectors/host/procfs.h"
#include "collectors/runner/child_pool.h"
#include "collectors/runner/sandbox.h"
#include "lib/base/cleanup.h"
#include "lib/base/json_out.h"

enum { OUTPUT_BYTES_MAX = 256 << 10, NOBODY = 65534 };

enum { EXIT_NOT_CONFINED = 126, EXIT_NOT_EXECUTED = 127 }; /* as shells have them */

enum { ADDRESS_SPACE_MAX = 1 << 30, CPU_SECONDS_MAX = 10 };

static void limit(int resource, rlim_t value) {
        struct rlimit l = { .rlim_cur = value, .rlim_max = value };
        (void)setrlimit(resource, &l); /* fails only where a lower limit exists */
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

/* Runs in a process of its own, and becomes rpm. */
static int exec_rpm(const PoolTask *task, int fd, void *userdata) {
        static char *const environment[] = { "LC_ALL=C", "PATH=/usr/bin:/bin", "HOME=/nonexistent",
                                             NULL };
        char *const argv[] = { "rpm",
                               "-qa",
                               "--dbpath",
                               "/proc/self/fd/3",
                               "--nosignature", /* whose parsing is a risk of its own */
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
        json_out_text(&run->list, "name", line, strnlen(line, PACKAGE_NAME_SIZE));
        json_out_text(&run->list, "version", tab + 1, strnlen(tab + 1, PACKAGE_VERSION_SIZE));
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

/* @return an O_PATH fd of the directory of the database; -ENOENT */
static int open_database(const PackageRoot *root) {
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

void rpm_list(PackageRoot *root, const char *program, uint64_t timeout_usec) {
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
        package_root_begin(root, "rpm");
        if (r < 0) {
                json_out_null(&root->b, "packages");
                json_out_string(&root->b, "unavailable", why_not(r));
        } else
                json_out_raw(&root->b, "packages", run.list.text);
        package_root_end(root);
        strbuf_done(&run.list);
}
