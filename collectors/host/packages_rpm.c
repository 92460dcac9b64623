/* RPM packages of a root. Their database has no stable format, so the host's rpm reads it, by the host's configuration: with a deadline, and without any right. A
 * container's database is its user's, and may be made to take rpm over: there rpm can read nothing but it and the host's programs, sees no other process and sends
 * no signal (sandbox_enter_reader()), or is nobody, or is not run. It sees the database by a descriptor; what the container's links lead to outside of it cannot be
 * named. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "collectors/host/packages_private.h"
#include "collectors/host/procfs.h"
#include "collectors/runner/sandbox.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/json_out.h"

enum { OUTPUT_BYTES_MAX = 256 << 10, DATABASE_FD = 3, NOBODY = 65534 };
enum { EXIT_NOT_CONFINED = 126, EXIT_NOT_EXECUTED = 127 }; /* as shells have them */
enum { ADDRESS_SPACE_MAX = 1 << 30, CPU_SECONDS_MAX = 10 };

static void limit(int resource, rlim_t value) {
        struct rlimit l = { .rlim_cur = value, .rlim_max = value };
        (void)setrlimit(
                resource,
                &l); /* a bound beside the deadline; a lower one that is there already is as good */
}

static bool become_nobody(void) {
        return geteuid() == 0 && setgroups(0, NULL) == 0 &&
               setresgid(NOBODY, NOBODY, NOBODY) == 0 && setresuid(NOBODY, NOBODY, NOBODY) == 0;
}

/* In the child. A foreign database is read without any right, or not at all. */
static _Noreturn void exec_rpm(const char *program, int db_fd, int out_fd, bool is_foreign) {
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
        int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        int high_fd = fcntl(db_fd, F_DUPFD_CLOEXEC, DATABASE_FD + 3),
            pipe_fd = fcntl(out_fd, F_DUPFD_CLOEXEC, DATABASE_FD + 3);

        if (null_fd < 0 || high_fd < 0 || pipe_fd < 0 || dup2(null_fd, 0) < 0 ||
            dup2(pipe_fd, 1) < 0 || dup2(null_fd, 2) < 0 || dup2(high_fd, DATABASE_FD) < 0)
                _exit(EXIT_NOT_CONFINED);
        limit(RLIMIT_AS, ADDRESS_SPACE_MAX);
        limit(RLIMIT_CPU, CPU_SECONDS_MAX);
        limit(RLIMIT_FSIZE, 0);
        (void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        bool is_nobody = become_nobody();
        if (is_foreign && sandbox_enter_reader(program, DATABASE_FD) < 0 && !is_nobody)
                _exit(EXIT_NOT_CONFINED);
        (void)execve(program, argv, environment);
        _exit(EXIT_NOT_EXECUTED);
}

/* Reads until its end, the deadline or the bound. @return 0, -ETIMEDOUT, -EFBIG, -errno */
static int read_output(int fd, uint64_t end_usec, StrBuf *b) {
        char chunk[4096];

        for (;;) {
                struct pollfd p = { .fd = fd, .events = POLLIN };
                uint64_t now = clock_boottime_usec();
                if (now >= end_usec)
                        return -ETIMEDOUT;
                int r = poll(&p, 1,
                             (int)MIN((end_usec - now) / USEC_PER_MSEC + 1, (uint64_t)INT32_MAX));
                if (r < 0 && errno != EINTR)
                        return -errno;
                if (r <= 0)
                        continue;
                ssize_t n = read(fd, chunk, sizeof chunk);
                if (n < 0 && errno != EINTR)
                        return -errno;
                if (n == 0)
                        return strbuf_error(b);
                if (n > 0)
                        strbuf_add_n(b, chunk, (size_t)n);
                if (b->n > OUTPUT_BYTES_MAX)
                        return -EFBIG;
        }
}

typedef struct RpmRun {
        const char *program;
        int db_fd;         /* borrowed */
        bool is_foreign;   /* the database is a container's */
        uint64_t end_usec; /* CLOCK_BOOTTIME */
} RpmRun;

static int run_rpm(const RpmRun *run, StrBuf *b) {
        int pipes[2], status = 0, r;
        pid_t pid;

        if (pipe2(pipes, O_CLOEXEC) < 0)
                return -errno;
        pid = fork();
        if (pid == 0)
                exec_rpm(run->program, run->db_fd, pipes[1], run->is_foreign);
        r = pid < 0 ? -errno : 0;
        (void)close(pipes[1]);
        if (r == 0)
                r = read_output(pipes[0], run->end_usec, b);
        (void)close(pipes[0]);
        if (pid < 0)
                return r;
        if (r < 0)
                (void)kill(pid, SIGKILL);
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
                ;
        if (r == 0 && WIFEXITED(status) && WEXITSTATUS(status) >= EXIT_NOT_CONFINED)
                r = WEXITSTATUS(status) == EXIT_NOT_CONFINED ? -EPERM : -ENOEXEC;
        else if (r == 0 && !(WIFEXITED(status) && WEXITSTATUS(status) == 0))
                r = -EIO;
        return r;
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

static void add_packages(StrBuf *b, char *text) {
        size_t n = 0;
        char *save = NULL;

        for (char *line = strtok_r(text, "\n", &save); line && n < PACKAGES_MAX;
             line = strtok_r(NULL, "\n", &save)) {
                char *tab = strchr(line, '\t');
                if (!tab)
                        continue;
                *tab = '\0';
                json_out_object(b, NULL);
                json_out_text(b, "name", line, strnlen(line, PACKAGES_NAME_SIZE));
                json_out_text(b, "version", tab + 1, strnlen(tab + 1, PACKAGES_VERSION_SIZE));
                json_out_end_object(b);
                n++;
        }
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

void packages_rpm(PackagesRoot *root, const char *program, uint64_t timeout_usec) {
        _cleanup_(strbuf_done) StrBuf output = STRBUF_INIT;
        _cleanup_close_ int db_fd = open_database(root);
        const RpmRun run = { .program = program,
                             .db_fd = db_fd,
                             .is_foreign = root->pid != 0,
                             .end_usec = clock_boottime_usec() + timeout_usec };

        if (db_fd < 0)
                return;
        int r = access(program, X_OK) < 0 ? -errno : run_rpm(&run, &output);
        packages_begin(root, "rpm");
        if (r < 0) {
                json_out_null(&root->b, "packages");
                json_out_string(&root->b, "unavailable", why_not(r));
        } else {
                json_out_array(&root->b, "packages");
                if (output.text)
                        add_packages(&root->b, output.text);
                json_out_end_array(&root->b);
        }
        packages_end(root);
}
