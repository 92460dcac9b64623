/* The hook's steps: compose the note (hook/note.c), send it to the agent, start the vendor's hook
 * that `neuron-dump.chain` leads to and the child that writes the record beside the dump, and wait
 * for the agent's snapshot. The note goes to the mailbox unless the agent has accepted it; sysfs is
 * read here unless the agent has sent a snapshot or said that there is none, so also when it is
 * late. At the end the record and the vendor's hook are waited for, until the deadline.
 *
 * Whatever may hang is done in a child with a time limit, also printing to stderr. The process
 * inherits the descriptors, signals and limits of the job, and closes or resets them first. */
#include "hook/hook.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "collectors/host/dpkg.h"
#include "collectors/runner/child_pool.h"
#include "collectors/runner/collector.h"
#include "collectors/runner/packet.h"
#include "hook/note.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/note.h"

/* ---- a child with a deadline ---- */

/* A child says its result before it exits: closing what it has inherited may hang in the exit, and
 * nobody has to wait for that. */

static _Noreturn void run_child(int fd, pid_t parent, int (*run)(void *userdata), void *userdata) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent)
                _exit(ESRCH);
        int result = run(userdata);
        _exit(write(fd, &result, sizeof result) < 0 ? errno : 0);
}

void child_timeout_start(TimedChild *b, int (*run)(void *userdata), void *userdata) {
        int fds[2];
        *b = TIMED_CHILD_NONE;
        if (pipe2(fds, O_CLOEXEC) < 0) {
                b->result = -errno;
                return;
        }
        pid_t parent = getpid(), pid = fork();
        if (pid == 0)
                run_child(fds[1], parent, run, userdata);
        if (pid > 0)
                *b = (TimedChild){ .pid = pid, .fd = fds[0] };
        else {
                b->result = -errno;
                (void)close(fds[0]); /* nobody writes to it */
        }
        (void)close(fds[1]); /* the child's: its end is the pipe's */
}

static uint64_t remaining_usec(uint64_t until_usec) {
        uint64_t now = clock_boottime_usec();
        return now < until_usec ? until_usec - now : 0;
}

/* @return whether the child has said something, or is gone */
static bool wait_for_result(int fd, uint64_t until_usec) {
        struct pollfd p = { .fd = fd, .events = POLLIN };
        for (;;) {
                uint64_t left = remaining_usec(until_usec);
                int n = poll(&p, 1,
                             (int)MIN(left / USEC_PER_MSEC + (left > 0), (uint64_t)INT32_MAX));
                if (n > 0)
                        return true;
                if ((n == 0 && left == 0) || (n < 0 && errno != EINTR))
                        return false;
        }
}

static int read_result(const TimedChild *b, uint64_t until_usec) {
        int result = -ETIMEDOUT;
        if (wait_for_result(b->fd, until_usec)) {
                if (read(b->fd, &result, sizeof result) == sizeof result)
                        return result;
                result = -EPIPE;
        }
        (void)kill(b->pid, SIGKILL); /* not reaped: the number is still its own */
        return result;
}

int child_timeout_wait(TimedChild *b, uint64_t until_usec) {
        if (b->pid == 0)
                return b->result;
        b->result = read_result(b, until_usec);
        (void)waitpid(b->pid, NULL, WNOHANG); /* one that is still closing is left behind */
        (void)close(b->fd);                   /* read only */
        b->pid = 0;
        b->fd = -1;
        return b->result;
}

static int run_timed(int (*run)(void *userdata), void *userdata, uint64_t until_usec) {
        TimedChild child;
        child_timeout_start(&child, run, userdata);
        return child_timeout_wait(&child, until_usec);
}

/* ---- the conversation with the agent ---- */

enum {
        PACKET_MAX = 4096,
        RETRY_MSEC = 5, /* while the agent's queue of connections is full */
        SNAPSHOT_BYTES_MAX = 32 << 20,
};

/* @return what stands behind the word and a blank, NULL when the text begins with another word */
static const char *skip_word(const char *text, const char *word) {
        size_t n = strlen(word);
        if (strncmp(text, word, n) != 0 || (text[n] != ' ' && text[n] != '\0'))
                return NULL;
        return text[n] == ' ' ? text + n + 1 : text + n;
}

static void copy_sentence(AgentReply *ret, const char *s) {
        size_t n = MIN(strlen(s), sizeof ret->text - 1);
        memcpy(ret->text, s, n);
        ret->text[n] = '\0';
}

void agent_client_parse(const char *data, size_t n, AgentReply *ret) {
        char text[PACKET_MAX + 1];
        const char *s;
        *ret = (AgentReply){ .kind = AGENT_REPLY_INVALID };
        if (n > PACKET_MAX || memchr(data, '\0', n))
                return;
        memcpy(text, data, n);
        text[n] = '\0';
        char *line = strchr(text, '\n');
        if (line)
                *line++ = '\0';
        if ((s = skip_word(text, "accepted"))) {
                if (parse_u64(s, &ret->wait_usec) < 0)
                        return;
                ret->wait_usec = MIN(ret->wait_usec, AGENT_WAIT_MAX_USEC);
                ret->kind = AGENT_REPLY_ACCEPTED;
                if (line && strncmp(line, "refused: ", 9) == 0) {
                        line[strcspn(line, "\n")] = '\0';
                        copy_sentence(ret, line + 9);
                }
        } else if ((s = skip_word(text, "refused"))) {
                ret->kind = AGENT_REPLY_REFUSED;
                copy_sentence(ret, s);
        } else if (strcmp(text, "snapshot done") == 0)
                ret->kind = AGENT_REPLY_SNAPSHOT;
        else if ((s = skip_word(text, "snapshot none"))) {
                ret->kind = AGENT_REPLY_NO_SNAPSHOT;
                copy_sentence(ret, s);
        }
}

static int connect_to(int fd, const char *path, uint64_t until_usec) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        size_t n = strlen(path);
        if (n == 0 || n >= sizeof address.sun_path)
                return -ENAMETOOLONG;
        memcpy(address.sun_path, path, n + 1);
        while (connect(fd, (struct sockaddr *)&address, sizeof address) < 0) {
                if (errno != EAGAIN && errno != EINTR)
                        return -errno;
                if (remaining_usec(until_usec) == 0)
                        return -ETIMEDOUT;
                (void)poll(NULL, 0, RETRY_MSEC);
        }
        return 0;
}

static int send_packet(int fd, const char *data, size_t n, uint64_t until_usec) {
        while (send(fd, data, n, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
                if (errno != EAGAIN && errno != EINTR)
                        return -errno;
                if (remaining_usec(until_usec) == 0)
                        return -ETIMEDOUT;
                struct pollfd p = { .fd = fd, .events = POLLOUT };
                (void)poll(&p, 1, RETRY_MSEC); /* tried again in any case */
        }
        return 0;
}

/* Connects and sends the note. @param until_usec  CLOCK_BOOTTIME: a full queue is tried again until
 * then
 * @return an fd of the caller's, -errno: nobody is there, or has time */
static int agent_client_open(const char *path, const char *note, size_t n, uint64_t until_usec) {
        _cleanup_close_ int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return -errno;
        int r = connect_to(fd, path, until_usec);
        if (r == 0)
                r = send_packet(fd, note, n, until_usec);
        return r < 0 ? r : TAKE_FD(fd);
}

/* Reading anything but a sealed file of memory might block, or change under us. */
static bool is_sealed(int fd) {
        struct stat st;
        int seals = fcntl(fd, F_GET_SEALS);
        return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size <= SNAPSHOT_BYTES_MAX &&
               seals >= 0 &&
               (seals & (F_SEAL_WRITE | F_SEAL_SHRINK)) == (F_SEAL_WRITE | F_SEAL_SHRINK);
}

/* Takes a packet when one is there. @param ret_fd  of AGENT_REPLY_SNAPSHOT: a sealed memfd, the
 * caller's; else -1 */
static void agent_client_receive(int fd, AgentReply *ret, int *ret_fd) {
        char data[PACKET_MAX + 1];
        _cleanup_close_ int got = -1;
        *ret = (AgentReply){ .kind = AGENT_REPLY_NONE };
        *ret_fd = -1;
        ssize_t n = packet_receive(fd, data, sizeof data, &got, 1);
        if (n == -EAGAIN || n == -EINTR)
                return;
        if (n <= 0) {
                ret->kind = AGENT_REPLY_CLOSED;
                return;
        }
        agent_client_parse(data, (size_t)n, ret);
        if (ret->kind != AGENT_REPLY_SNAPSHOT)
                return;
        if (got < 0 || !is_sealed(got))
                ret->kind = AGENT_REPLY_INVALID;
        else
                *ret_fd = TAKE_FD(got);
}

void agent_client_finish(int fd, bool has_record, bool has_snapshot) {
        const char *text = has_record && has_snapshot ? "finished"
                           : has_record               ? "finished without snapshot"
                           : has_snapshot             ? "finished without record"
                                                      : "finished without record snapshot";
        (void)send(fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT); /* it may have gone */
}

/* ---- the hook's files beside the dump ---- */

int write_file_open_directory(const char *path) {
        int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0)
                return fd;
        int r = fs_mkdir_p(path, 0777);
        if (r < 0)
                return r;
        fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

/* A file without a name, which gets one when it is complete. @return 0, -EOPNOTSUPP: try the other
 * way, -errno */
static int write_unnamed(int dir_fd, const char *name, mode_t mode, const char *text, size_t n) {
        char link_path[32];
        _cleanup_close_ int fd = openat(dir_fd, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, mode);
        if (fd < 0) /* kernels and file systems that know no O_TMPFILE say so in many ways */
                return errno == EISDIR || errno == ENOENT || errno == EINVAL || errno == ENOSYS
                               ? -EOPNOTSUPP
                               : -errno;
        int r = fs_write_all(fd, text, n);
        if (r < 0)
                return r;
        (void)snprintf(link_path, sizeof link_path, "/proc/self/fd/%d", fd);
        if (linkat(AT_FDCWD, link_path, dir_fd, name, AT_SYMLINK_FOLLOW) == 0)
                return 0;
        return errno == EEXIST || errno == ENOSPC || errno == EDQUOT ? -errno : -EOPNOTSUPP;
}

/* Gives a complete file its name, replacing nothing. */
static int publish(int dir_fd, const char *temporary, const char *name) {
        if (renameat2(dir_fd, temporary, dir_fd, name, RENAME_NOREPLACE) == 0)
                return 0;
        if (errno != EINVAL && errno != ENOSYS) /* NFS and others know no flags */
                return -errno;
        if (linkat(dir_fd, temporary, dir_fd, name, 0) < 0)
                return -errno;
        (void)unlinkat(dir_fd, temporary, 0); /* a dot-name too many, if anything */
        return 0;
}

static int write_renamed(int dir_fd, const char *name, mode_t mode, const char *text, size_t n) {
        char temporary[NAME_MAX + 1];
        uint64_t random;
        if (getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random)
                return -EIO;
        (void)snprintf(temporary, sizeof temporary, ".neuron-dump-%016" PRIx64 ".tmp", random);
        _cleanup_close_ int fd = openat(dir_fd, temporary,
                                        O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
        if (fd < 0)
                return -errno;
        int r = fs_write_all(fd, text, n);
        if (r == 0)
                r = publish(dir_fd, temporary, name);
        if (r < 0)
                (void)unlinkat(dir_fd, temporary, 0); /* the first failure is the one to tell */
        return r;
}

int write_file(int dir_fd, const char *name, mode_t mode, const char *text, size_t n) {
        int r = write_unnamed(dir_fd, name, mode, text, n);
        return r == -EOPNOTSUPP ? write_renamed(dir_fd, name, mode, text, n) : r;
}

#define OPT "opt/aws/neuron"
enum {
        PACKAGES_MAX = 64,
        TOOLS_MAX = 64,
        VERSION_MAX = DPKG_WORD_SIZE - 1,
};

/* A word of a package database: anybody may have built the image that it lies in. */
static bool is_word(const char *s) {
        size_t n = strlen(s);
        return n > 0 && n <= VERSION_MAX &&
               strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.+~:-_") ==
                       n;
}

typedef struct Packages {
        StrBuf *b;
        size_t n;
} Packages;

static void add_package(const DpkgParser *p, void *userdata) {
        Packages *l = userdata;
        if (strcmp(p->status, "install ok installed") == 0 && is_word(p->name) &&
            is_word(p->version) && strncmp(p->name, "aws-neuron", 10) == 0 && l->n++ < PACKAGES_MAX)
                json_out_string(l->b, p->name, p->version);
}

static int open_below(const char *root, const char *path) {
        _cleanup_free_ char *whole = path_join(root, path);
        struct stat st;
        _cleanup_close_ int fd =
                whole ? open(whole, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY) : -1;
        return fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? TAKE_FD(fd) : -1;
}

static void add_driver(StrBuf *b, const char *root) {
        char version[VERSION_MAX + 2];
        _cleanup_close_ int fd = open_below(root, "sys/module/neuron/version");
        ssize_t n = fd >= 0 ? read(fd, version, sizeof version - 1) : 0;
        if (n <= 0)
                return;
        version[n] = '\0';
        version[strcspn(version, "\n")] = '\0';
        if (is_word(version))
                json_out_string(b, "driver", version);
}

/* The library's version is part of the name of its file. */
static void add_libnrt(StrBuf *b, const char *root) {
        char target[PATH_MAX];
        _cleanup_free_ char *path = path_join(root, OPT "/lib/libnrt.so.1");
        ssize_t n = path ? readlink(path, target, sizeof target - 1) : -1;
        if (n <= 0)
                return;
        target[n] = '\0';
        if (is_word(path_name(target)))
                json_out_string(b, "libnrt", path_name(target));
}

static void add_tools(StrBuf *b, const char *root) {
        _cleanup_free_ char *path = path_join(root, OPT "/bin");
        _cleanup_closedir_ DIR *d = path ? opendir(path) : NULL;
        const struct dirent *e;
        if (!d)
                return;
        json_out_array(b, "tools");
        for (unsigned n = 0; n < TOOLS_MAX && (e = readdir(d));)
                if (e->d_name[0] != '.' && is_word(e->d_name)) {
                        json_out_string(b, NULL, e->d_name);
                        n++;
                }
        json_out_end_array(b);
}

/* Of AWS's packages, who installed them: rpm's database, as Amazon Linux has it, is not for so
 * small a program. No more than names.
 * @see reference, 5: binaries in /opt/aws/neuron/bin, libraries in …/lib */
static void add_files(StrBuf *b, const char *root) {
        json_out_object(b, "files");
        add_libnrt(b, root);
        add_tools(b, root);
        json_out_end_object(b);
}

static void add_packages(StrBuf *b, const char *root) {
        Packages packages = { .b = b };
        DpkgParser parser = { .on_package = add_package, .userdata = &packages };
        _cleanup_close_ int status = open_below(root, "var/lib/dpkg/status");
        json_out_object(b, "packages");
        add_driver(b, root);
        json_out_object(b, "dpkg");
        if (status >= 0)
                (void)dpkg_read(&parser, status); /* as far as it can be read */
        json_out_end_object(b);
        add_files(b, root);
        json_out_end_object(b);
}

static int write_beside(const HookNote *n, const char *name, const char *text, size_t n_text) {
        if (!n->local_output_dir || !name)
                return -ENOENT;
        _cleanup_close_ int dir_fd = write_file_open_directory(n->local_output_dir);
        return dir_fd < 0 ? dir_fd : write_file(dir_fd, name, 0666, text, n_text);
}

int record_write(const HookNote *n, const char *note_text, size_t n_text, const char *root) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        if (n_text == 0 || note_text[n_text - 1] != '}')
                return -EINVAL;
        strbuf_add_n(&b, note_text, n_text - 1);
        add_packages(&b, root);
        json_out_end_object(&b);
        strbuf_add(&b, "\n");
        int r = strbuf_error(&b);
        return r < 0 ? r : write_beside(n, n->record_name, b.text, b.n);
}

/* ---- lines for people who read the job's stderr, which may not make a job wait: a full pipe that
 * all ranks share, a file on a server that is gone. Asking what stderr is (fstat) could hang, too
 * ---- */

#define MESSAGE_PREFIX "neuron-dump: "
#define STDERR_TIMEOUT_USEC (100 * USEC_PER_MSEC)

enum { LINE_BYTES = 512 }; /* below PIPE_BUF: a pipe takes it complete or not at all */

typedef struct MessageLine {
        char text[LINE_BYTES];
        size_t n;
} MessageLine;

static int write_line(void *userdata) {
        MessageLine *line = userdata;

        return write(STDERR_FILENO, line->text, line->n) < 0 ? -errno : 0;
}

/* Kernels before 6.4 do not know a single write to a pipe that does not wait: an open file of our
 * own does not. It needs no child, which there may not be. @return whether it is a pipe */
static bool print_to_pipe(const MessageLine *line) {
        if (fcntl(STDERR_FILENO, F_GETPIPE_SZ) < 0)
                return false;
        _cleanup_close_ int fd =
                open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
        if (fd < 0)
                return errno == ENXIO; /* nobody reads it; without /proc it is left to the child */
        (void)!write(fd, line->text, line->n); /* full: there is nobody else to tell */
        return true;
}

static void print_line(MessageLine *line) {
        static bool is_hung;
        struct iovec v = { .iov_base = line->text, .iov_len = line->n };

        if (is_hung)
                return;
        if (send(STDERR_FILENO, line->text, line->n, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 ||
            errno != ENOTSOCK || pwritev2(STDERR_FILENO, &v, 1, -1, RWF_NOWAIT) >= 0 ||
            errno == EBADF || print_to_pipe(line))
                return;
        is_hung = run_timed(write_line, line, clock_boottime_usec() + STDERR_TIMEOUT_USEC) ==
                  -ETIMEDOUT;
}

/* Writes `neuron-dump: …` and a newline, cut at a few hundred bytes, control characters shown as
 * `?`. Left out when stderr would block, as a full pipe does; a file that hangs costs 100 ms, once.
 */
_printf_(1, 2) static void message_print(const char *fmt, ...) {
        MessageLine line = { .text = MESSAGE_PREFIX };
        size_t n = strlen(MESSAGE_PREFIX);
        va_list ap;

        va_start(ap, fmt);
        (void)vsnprintf(line.text + n, sizeof line.text - n - 1, fmt,
                        ap); /* a cut line is a line */
        va_end(ap);
        for (; line.text[n]; n++)
                if ((unsigned char)line.text[n] < ' ' || line.text[n] == 0x7f)
                        line.text[n] = '?';
        line.text[n++] = '\n';
        line.n = n;
        print_line(&line);
}

#define TIER_BYTES_MAX (4 * MIB)
#define CHILD_MARGIN_USEC                                                                          \
        (20 * USEC_PER_MSEC) /* the collector's own end comes before we kill it                    \
                              */

typedef struct Tier {
        const char *sysfs_root;
        uint64_t until_usec;
        int fd;
} Tier;

static int collect(void *userdata) {
        const Tier *t = userdata;
        char *no_patterns[] = { NULL };
        uint64_t left = remaining_usec(t->until_usec);
        CollectRequest request = { .sysfs_root = (char *)t->sysfs_root,
                                   .device_directory = (char *)"/dev",
                                   .proc_root = (char *)"/proc",
                                   .environment = no_patterns,
                                   .timeout_usec = left > CHILD_MARGIN_USEC
                                                           ? left - CHILD_MARGIN_USEC
                                                           : left,
                                   .max_bytes = TIER_BYTES_MAX };
        CollectOut out = { .fd = t->fd, .dir_fd = -1, .max_bytes = TIER_BYTES_MAX };
        int r = collect_neuron_sysfs(&request, &out);
        return r == 0 && out.is_cut ? -EFBIG : r;
}

/* Complete lines become records; a line that was not ended is what the child was killed in. */
static void add_records(StrBuf *b, const char *text) {
        const char *newline;
        json_out_array(b, "records");
        for (bool is_first = true; (newline = strchr(text, '\n')); text = newline + 1) {
                if (newline == text)
                        continue;
                if (!is_first)
                        strbuf_add(b, ",");
                strbuf_add_n(b, text, (size_t)(newline - text));
                is_first = false;
        }
        json_out_end_array(b);
}

typedef struct Outcome {
        uint64_t start_usec, duration_usec; /* begun: CLOCK_REALTIME */
        int result;
        const char *text; /* the records */
} Outcome;

static void add_section(StrBuf *b, const Outcome *o) {
        char when[CLOCK_ISO_SIZE];
        json_out_object(b, NULL);
        json_out_string(b, "name", "neuron_sysfs");
        json_out_string(b, "state", child_pool_state_name(o->result));
        json_out_string(b, "detail", o->result < 0 ? strerror(-o->result) : NULL);
        json_out_string(b, "begin", clock_format_iso(when, o->start_usec));
        json_out_u64(b, "duration_ms", o->duration_usec / USEC_PER_MSEC);
        json_out_array(b, "files"); /* as in the agent's documents: none */
        json_out_end_array(b);
        add_records(b, o->text);
        json_out_u64(b, "dropped_lines", 0);
        json_out_end_object(b);
}

static int compose(const Outcome *o, StrBuf *b) {
        char when[CLOCK_ISO_SIZE];
        json_out_object(b, NULL);
        json_out_string(b, "schema", "neuron-collectd/snapshot/1");
        json_out_object(b, "hook"); /* in the place of the agent */
        json_out_string(b, "version", PACKAGE_VERSION);
        json_out_end_object(b);
        json_out_string(b, "begin", clock_format_iso(when, o->start_usec));
        json_out_string(b, "end", clock_format_iso(when, o->start_usec + o->duration_usec));
        json_out_array(b, "sections");
        add_section(b, o);
        json_out_end_array(b);
        json_out_end_object(b);
        strbuf_add(b, "\n");
        return strbuf_error(b);
}

static bool has_devices(const char *sysfs_root) {
        char path[4096];
        struct stat st;
        int n = snprintf(path, sizeof path, "%s/devices/virtual/neuron_device", sysfs_root);
        return n > 0 && (size_t)n < sizeof path && stat(path, &st) == 0;
}

static int sysfs_snapshot_collect(const char *sysfs_root, uint64_t until_usec, StrBuf *ret) {
        if (!has_devices(sysfs_root))
                return -ENODEV;
        _cleanup_close_ int fd = memfd_create("neuron-dump-tier", MFD_CLOEXEC);
        _cleanup_free_ char *text = NULL;
        size_t n;
        if (fd < 0)
                return -errno;
        Tier tier = { .sysfs_root = sysfs_root, .until_usec = until_usec, .fd = fd };
        uint64_t start_usec = clock_realtime_usec(), began = clock_boottime_usec();
        int result = run_timed(collect, &tier, until_usec);
        int r = fs_read_head(fd, TIER_BYTES_MAX, &text, &n);
        if (r < 0)
                return r;
        return compose(&(Outcome){ start_usec, clock_boottime_usec() - began, result, text }, ret);
}

#define CHAIN_NAME "neuron-dump.chain"
#define CHAIN_VARIABLE                                                                             \
        "NEURON_COLLECTD_CHAINED" /* set for it: a hook that is chained to ours does not come back \
                                     to us */

enum {
        CLOSE_TRIES = 3, /* each gets rid of one that hangs, and of all before it */
        CLOSE_NSEC = 10 * 1000 * 1000,
};

/* Closing a descriptor waits for its driver or server, also at exit, and no signal helps. A table
 * of descriptors that two processes share (CLONE_FILES) can be cleared by either, and is closed by
 * the one that ends last: another process, for which nobody waits. */
#define FIRST_FD (STDERR_FILENO + 1U)
/* A child with our descriptors, the very ones; it dies with us. @return as fork(2) */
static pid_t fork_sharing_fds(void) {
        pid_t parent = getpid(),
              pid = (pid_t)syscall(SYS_clone, CLONE_FILES | SIGCHLD, NULL, NULL, NULL, NULL);
        if (pid == 0 && (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent))
                _exit(ESRCH);
        return pid;
}

/* SIGCHLD has to be blocked. */
static bool ends_soon(pid_t pid) {
        static const struct timespec patience = { .tv_nsec = CLOSE_NSEC };
        sigset_t child;
        (void)sigemptyset(&child);
        (void)sigaddset(&child, SIGCHLD);
        while (sigtimedwait(&child, NULL, &patience) < 0 && errno == EINTR)
                continue;
        return waitpid(pid, NULL, WNOHANG) == pid;
}

/* Linux 5.9; before that they stay. */
static bool close_inherited(void) {
        pid_t pid = fork_sharing_fds();
        if (pid == 0)
                _exit((int)syscall(SYS_close_range, FIRST_FD, ~0U, 0U));
        if (pid < 0)
                return false;
        if (ends_soon(pid))
                return true;
        (void)kill(pid, SIGKILL);   /* not reaped: the number is still its own */
        (void)unshare(CLONE_FILES); /* what it closes from now on is not ours */
        return false;
}

static void reset_signals(void) {
        sigset_t all;
        (void)sigfillset(&all);
        (void)signal(SIGCHLD, SIG_DFL); /* ignored: our children could not be waited for */
        (void)signal(SIGALRM, SIG_DFL);
        (void)signal(SIGPIPE, SIG_IGN);
        (void)signal(SIGXFSZ, SIG_IGN); /* beyond RLIMIT_FSIZE: EFBIG, which is reported */
        (void)sigprocmask(SIG_UNBLOCK, &all, NULL);
}

static void close_inherited_fds(void) {
        sigset_t child;
        (void)sigemptyset(&child);
        (void)sigaddset(&child, SIGCHLD);
        (void)sigprocmask(SIG_BLOCK, &child, NULL);
        bool is_done = false;
        for (int i = 0; i < CLOSE_TRIES && !is_done; i++)
                is_done = close_inherited();
        (void)sigprocmask(SIG_UNBLOCK, &child, NULL);
        if (!is_done) /* Linux 5.11 */
                (void)syscall(SYS_close_range, FIRST_FD, ~0U, CLOSE_RANGE_CLOEXEC);
}

/* 0, 1 and 2 must not become somebody else's. */
static void have_standard_fds(void) {
        for (int fd; (fd = open("/dev/null", O_RDWR)) >= 0;)
                if (fd > STDERR_FILENO) {
                        (void)close(fd); /* one too many: all three are there */
                        return;
                }
}

static void hook_process_start(void) {
        reset_signals();
        (void)umask(umask(0) & (S_IRWXG | S_IRWXO)); /* what we make we can write to */
        close_inherited_fds();
        have_standard_fds();
}

static void hook_process_exit(void) {
        if (fork_sharing_fds() != 0)
                return; /* without one our exit closes them */
        for (;;)
                (void)pause();
}

enum { TICK_MSEC = 2 }; /* between looks whether it has ended */

/* Our executable may be reached by a link from elsewhere: what counts is where its file lies.
 * @return 0, -errno */
static int chain_path(char ret[PATH_MAX]) {
        struct stat ours, theirs;
        char own[PATH_MAX];
        ssize_t n = readlink("/proc/self/exe", own, sizeof own - 1);
        if (n < 0)
                return -errno;
        own[n] = '\0';
        char *slash = strrchr(own, '/');
        if (!slash)
                return -ENOENT;
        if (stat("/proc/self/exe", &ours) < 0)
                return -errno;
        *slash = '\0';
        if ((size_t)snprintf(ret, PATH_MAX, "%s/%s", own, CHAIN_NAME) >= PATH_MAX)
                return -ENAMETOOLONG;
        if (stat(ret, &theirs) < 0)
                return -errno;
        return ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino ? -ELOOP : 0;
}

static _Noreturn void exec_chained(const char *path, char *const *argv, pid_t parent) {
        (void)setpgid(0, 0); /* cannot fail for a new child */
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent)
                _exit(ESRCH);
        (void)signal(SIGPIPE, SIG_DFL);
        (void)signal(SIGXFSZ, SIG_DFL);
        if (setenv(CHAIN_VARIABLE, "1", 1) == 0)
                (void)execv(path, argv); /* returns only when it failed */
        _exit(127);
}

static pid_t chain_start(char *const *argv) {
        char path[PATH_MAX];
        if (getenv(CHAIN_VARIABLE))
                return 0;
        int r = chain_path(path);
        if (r < 0)
                return r == -ENOENT ? 0 : r;
        pid_t parent = getpid(), pid = fork();
        if (pid == 0)
                exec_chained(path, argv, parent);
        if (pid < 0)
                return -errno;
        (void)setpgid(pid, pid); /* in case we are first; EACCES after its exec is fine */
        return pid;
}

static void chain_end(pid_t pid, uint64_t until_usec) {
        if (pid <= 0)
                return;
        while (clock_boottime_usec() < until_usec) {
                siginfo_t info = { 0 };
                /* Not reaped yet: the number of the group must stay its own until it was killed. */
                if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) < 0 ||
                    info.si_pid == pid)
                        break;
                (void)poll(NULL, 0, TICK_MSEC);
        }
        (void)kill(-pid, SIGKILL); /* also what it has left behind in its group */
        (void)waitpid(pid, NULL, WNOHANG);
}

static int mailbox_write(const char *directory, const char *id, const char *note, size_t n) {
        char name[NOTE_ID_SIZE + sizeof ".json"];
        /* O_PATH: it may be written by everybody, and listed by nobody. */
        _cleanup_close_ int fd = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
                return -errno;
        (void)snprintf(name, sizeof name, "%s.json", id);
        return write_file(fd, name, 0600, note, n);
}

#define SOCKET_DEFAULT "/run/neuron-collectd/hook.sock"
#define MAILBOX_DEFAULT "/var/lib/neuron-collectd/mailbox"
#define DEADLINE_DEFAULT_USEC (2 * USEC_PER_SEC)
#define DEADLINE_MAX_USEC AGENT_WAIT_MAX_USEC
#define GRACE_USEC                                                                                 \
        (50 * USEC_PER_MSEC) /* beyond the deadline, for files that are being written              \
                              */

#define RESERVE_MAX_USEC (200 * USEC_PER_MSEC) /* before it, to write what the tier found */
/* By this text `neuron-collect hook` knows our program, whatever its size and date. */
static const char identity[] = "neuron-collectd neuron-dump " PACKAGE_VERSION;

extern char **environ;

typedef struct Hook {
        HookNote note;
        StrBuf text; /* the note as JSON */
        const char *socket, *mailbox, *sysfs_root;
        uint64_t start_usec, until_usec;   /* CLOCK_BOOTTIME */
        uint64_t deadline_usec;            /* ours, from start_usec */
        uint64_t agent_until_usec;         /* then no agent is there that could still be of use */
        int agent_fd, snapshot_fd;         /* -1 = none */
        bool is_accepted, has_final_reply; /* has_final_reply: there is, or will be, no snapshot of
                                              the agent's */
        bool has_snapshot, is_late;        /* is_late: a file may still appear */
        TimedChild record;
        pid_t chain;
} Hook;

static const char *setting(const char *name, const char *otherwise) {
        const char *s = getenv(name);
        return s && s[0] != '\0' ? s : otherwise;
}

static uint64_t deadline_setting(void) {
        const char *s = getenv("NEURON_COLLECTD_DEADLINE");
        uint64_t usec;
        if (!s || s[0] == '\0')
                return DEADLINE_DEFAULT_USEC;
        if (parse_duration_usec(s, &usec) < 0) {
                message_print("invalid duration NEURON_COLLECTD_DEADLINE='%s' (such as 2s or "
                              "500ms): using 2s",
                              s);
                return DEADLINE_DEFAULT_USEC;
        }
        return MIN(usec, DEADLINE_MAX_USEC);
}

/* ---- what may hang, in children ---- */

static int write_record(void *userdata) {
        const Hook *h = userdata;
        if (h->agent_fd >= 0)
                (void)close(h->agent_fd); /* the parent's conversation */
        return record_write(&h->note, h->text.text, h->text.n, "/");
}

static int write_note(void *userdata) {
        const Hook *h = userdata;
        return mailbox_write(h->mailbox, h->note.id, h->text.text, h->text.n);
}

typedef struct Snapshot {
        const Hook *hook;
        const char *text;
        size_t n;
} Snapshot;

static int write_snapshot(void *userdata) {
        const Snapshot *s = userdata;
        const HookNote *n = &s->hook->note;
        return write_beside(n, n->snapshot_name, s->text, s->n);
}

/* ---- with the agent ---- */

/* What it grants counts from its answer, which may be late: nobody is to wait for us longer than
 * either of us had in mind. */
static uint64_t granted_until(const Hook *h, uint64_t wait_usec) {
        return MIN(clock_boottime_usec() + wait_usec,
                   h->start_usec + MAX(h->deadline_usec, wait_usec));
}

static void handle_reply(Hook *h, const AgentReply *a, int fd) {
        switch (a->kind) {
        case AGENT_REPLY_ACCEPTED:
                h->is_accepted = true;
                h->until_usec = granted_until(h, a->wait_usec);
                if (a->text[0] != '\0' && h->note.local_output_dir)
                        message_print("the agent accepts no files for this note: %s", a->text);
                break;
        case AGENT_REPLY_SNAPSHOT:
                h->snapshot_fd = fd;
                h->has_final_reply = true;
                break;
        case AGENT_REPLY_NO_SNAPSHOT:
                h->has_final_reply = true;
                break;
        case AGENT_REPLY_REFUSED:
                message_print("the agent refused the note: %s", a->text);
                break;
        default:
                break;
        }
}

static bool is_final(AgentReplyKind kind) {
        return kind == AGENT_REPLY_REFUSED || kind == AGENT_REPLY_INVALID ||
               kind == AGENT_REPLY_CLOSED;
}

/* Listens until there is nothing more to hear, or no more time. */
static void receive_replies(Hook *h) {
        while (h->agent_fd >= 0 && !h->has_final_reply) {
                uint64_t now = clock_boottime_usec(),
                         end = h->is_accepted ? h->until_usec : h->agent_until_usec;
                struct pollfd p = { .fd = h->agent_fd, .events = POLLIN };
                AgentReply answer;
                int fd;
                if (now >= end)
                        return;
                if (poll(&p, 1, (int)((end - now) / USEC_PER_MSEC + 1)) <= 0)
                        continue; /* the time decides */
                agent_client_receive(h->agent_fd, &answer, &fd);
                handle_reply(h, &answer, fd);
                if (is_final(answer.kind))
                        (void)close(TAKE_FD(h->agent_fd)); /* it has said its last */
        }
}

/* ---- without it ---- */

/* Where there can be no child, the note is written by this process, which ends at that time when it
 * hangs: a call that waits for a server that is gone takes SIGKILL at best. */
static int write_note_here(Hook *h, uint64_t usec) {
        struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL };
        struct itimerspec at = { .it_value = { .tv_sec = (time_t)(usec / USEC_PER_SEC),
                                               .tv_nsec = (long)(usec % USEC_PER_SEC) * 1000 } };
        timer_t end;
        if (timer_create(CLOCK_BOOTTIME, &event, &end) < 0 ||
            timer_settime(end, TIMER_ABSTIME, &at, NULL) < 0)
                return -errno; /* without a timer, nothing that may hang */
        int r = write_note(h);
        (void)timer_delete(end); /* cannot fail: it is there */
        return r;
}

static void write_mailbox_note(Hook *h) {
        uint64_t until_usec = h->until_usec + GRACE_USEC;
        TimedChild child;
        child_timeout_start(&child, write_note, h);
        int r = child.pid > 0 ? child_timeout_wait(&child, until_usec)
                              : write_note_here(h, until_usec);
        if (r < 0)
                message_print("neuron-collectd is not running, and the note cannot be written to "
                              "'%s': %s; check that neuron-collectd is installed on this node and "
                              "its mailbox is mounted here",
                              h->mailbox, strerror(-r));
}

static void write_snapshot_file(Hook *h, const char *text, size_t n) {
        Snapshot s = { .hook = h, .text = text, .n = n };
        int r = run_timed(write_snapshot, &s, h->until_usec + GRACE_USEC);
        h->has_snapshot = r == 0;
        h->is_late = r == -ETIMEDOUT;
        if (r < 0)
                message_print("cannot write '%s' in '%s': %s", h->note.snapshot_name,
                              h->note.local_output_dir, strerror(-r));
}

static void write_agent_snapshot(Hook *h) {
        _cleanup_free_ char *text = NULL;
        size_t n;
        if (fs_read_head(h->snapshot_fd, SNAPSHOT_BYTES_MAX, &text, &n) == 0) /* else no memory */
                write_snapshot_file(h, text, n);
}

static void write_own_snapshot(Hook *h) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        uint64_t left = remaining_usec(h->until_usec);
        uint64_t reserve = MIN(left / 4, RESERVE_MAX_USEC);
        if (left == 0 || !h->note.local_output_dir)
                return;
        int r = sysfs_snapshot_collect(h->sysfs_root, h->until_usec - reserve, &b);
        if (r == 0)
                write_snapshot_file(h, b.text, b.n);
        else if (r != -ENODEV)
                message_print("cannot read '%s': %s", h->sysfs_root, strerror(-r));
}

/* ---- all of it ---- */

static void finish(Hook *h) {
        int r = 0;
        if (h->note.local_output_dir)
                r = child_timeout_wait(&h->record, h->until_usec + GRACE_USEC);
        if (r < 0)
                message_print("cannot write '%s' in '%s': %s", h->note.record_name,
                              h->note.local_output_dir, strerror(-r));
        if (h->agent_fd >= 0 && r != -ETIMEDOUT && !h->is_late)
                agent_client_finish(h->agent_fd, h->note.local_output_dir && r == 0,
                                    h->has_snapshot);
        chain_end(h->chain, h->until_usec);
}

static void run(Hook *h, char *const *argv) {
        h->agent_fd = agent_client_open(h->socket, h->text.text, h->text.n, h->agent_until_usec);
        h->chain = chain_start(argv);
        if (h->chain < 0)
                message_print("cannot run '%s' beside this program: %s", CHAIN_NAME,
                              strerror((int)-h->chain));
        if (h->note.local_output_dir)
                child_timeout_start(&h->record, write_record, h);
        receive_replies(h);
        if (!h->is_accepted)
                write_mailbox_note(h);
        if (h->snapshot_fd >= 0 && h->note.local_output_dir)
                write_agent_snapshot(h);
        else if (!h->has_final_reply)
                write_own_snapshot(h);
        finish(h);
}

static int prepare(Hook *h) {
        h->deadline_usec = deadline_setting();
        h->until_usec = h->start_usec + h->deadline_usec;
        h->agent_until_usec = h->start_usec + h->deadline_usec / 2;
        h->socket = setting("NEURON_COLLECTD_HOOK_SOCKET", SOCKET_DEFAULT);
        h->mailbox = setting("NEURON_COLLECTD_MAILBOX", MAILBOX_DEFAULT);
        h->sysfs_root = setting("NEURON_COLLECTD_SYSFS", "/sys");
        int r = note_add_identity(&h->note, environ);
        return r < 0 ? r : hook_note_format(&h->note, NULL, &h->text);
}

static int print_usage(int kind) {
        static const char usage[] = "usage: neuron-dump --neff-name V --neff-uuid V --date-time V "
                                    "--pid V --tid V --log-id V --instance-id V --cluster-id V\n"
                                    "                   --error-location V --error-code V "
                                    "--local-output-dir V [--s3-output-prefix V]\n"
                                    "The Neuron runtime calls it when an execution fails; "
                                    "neuron-collectd collects what it writes.\n";
        if (kind == NOTE_ARGS_USAGE) {
                message_print(
                        "the first argument has to be a flag such as --pid; --help lists them");
                return 2;
        }
        (void)dprintf(STDOUT_FILENO, "%s%s", kind == NOTE_ARGS_HELP ? usage : identity,
                      kind == NOTE_ARGS_HELP ? "" : "\n");
        return 0;
}

int hook_main(int argc, char **argv) {
        Hook h = { .start_usec = clock_boottime_usec(),
                   .agent_fd = -1,
                   .snapshot_fd = -1,
                   .record = TIMED_CHILD_NONE };
        hook_process_start();
        if (note_dumps_are_off(environ))
                return 0;
        size_t n_left_out = 0;
        int r = note_parse_args(argc, argv, &h.note, &n_left_out);
        if (r > 0)
                return print_usage(r);
        if (n_left_out > 0)
                message_print("%zu unknown arguments are not in the note, which has %d of them",
                              n_left_out, NOTE_EXTRA_MAX);
        if (r == 0)
                r = prepare(&h);
        if (r < 0)
                message_print("cannot compose a note: %s", strerror(-r));
        else
                run(&h, argv);
        hook_note_done(&h.note);
        strbuf_done(&h.text);
        hook_process_exit();
        return 0; /* the runtime's opinion of other values is not published */
}
