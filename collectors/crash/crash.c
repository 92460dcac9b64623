/* Both ends of the connection between the caller that requests a report and the child that makes
 * it. */
#include "collectors/crash/crash.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "collectors/crash/core/core_stream.h"
#include "collectors/crash/report.h"
#include "collectors/runner/packet.h"
#include "collectors/runner/probe_request.h"
#include "collectors/runner/sandbox.h"
#include "lib/base/clock.h"
#include "lib/base/digest.h"
#include "lib/base/fs.h"
#include "lib/base/spawn.h"

/* The wire: SOCK_SEQPACKET. To the child a ChildStart with the core; from the child a FileQuery
 * at a time, and to it a FileReply, with a descriptor if there is one. */
enum {
        NAME_BYTES_MAX = 4096,
        SOCKET_FD = 0,
        JSON_FD = 1,
        WHY_FD = 2,
        TEXT_FD = 3,
        CONTEXT_FD = 4,
        N_FDS,
        WHY_BYTES_MAX = 512,
        REQUESTS_MAX = 32 << 10,
        EXIT_BAD_CORE = 4, /* WHY_FD has a sentence for people */
};
#define CHILD_CPU_USEC (10 * USEC_PER_SEC)
#define KILL_USEC USEC_PER_SEC
#define WAIT_STEP_USEC 1000
#define SLICE_CHECK_USEC (500 * USEC_PER_MSEC)
#define REPORT_BYTES_MAX (64 * MIB)

typedef struct ChildStart {
        char core_name[NAME_BYTES_MAX];
        char places[FILES_ROOTS_MAX][FILES_NAME_SIZE];
        uint64_t stream_timeout_usec; /* 0: the core can be read anywhere */
} ChildStart;

/* One message is under way at a time: when there is no room, the other end misbehaves. */
static int send_message(int fd, const void *data, size_t n, int passed_fd) {
        return packet_send(fd, data, n, &passed_fd, passed_fd >= 0);
}

/* @param ret_fd  gets the descriptor that came along, -1 = none; NULL: none is expected
 * @return 0, -ENODATA: the other end is closed, -EBADMSG: it is of another size, -errno */
static int receive_message(int fd, void *data, size_t n, int *ret_fd) {
        ssize_t k = packet_receive(fd, data, n, ret_fd, ret_fd ? 1 : 0);
        if (k < 0)
                return (int)k;
        if ((size_t)k == n)
                return 0;
        if (ret_fd && *ret_fd >= 0)
                (void)close(TAKE_FD(*ret_fd));
        return k == 0 ? -ENODATA : -EBADMSG;
}

/* ---- in the child ---- */

typedef struct Core {
        int fd;
        CoreStream *stream; /* NULL: it can be read anywhere */
        uint64_t bytes;
} Core;

typedef struct CrashChild {
        Core core;
        ChildStart start;
} CrashChild;

static int request_file(const FileQuery *q, FileReply *ret, const char **ret_place,
                        void *userdata) {
        CrashChild *child = userdata;
        int fd, r = send_message(SOCKET_FD, q, sizeof *q, -1);
        if (r == 0)
                r = receive_message(SOCKET_FD, ret, sizeof *ret, &fd);
        if (r < 0 || ret->error < 0 || fd < 0)
                return -ENODATA;
        *ret_place = child->start.places[MIN(ret->place, FILES_ROOTS_MAX - 1U)];
        return fd;
}

static ssize_t read_core(void *data, size_t n, uint64_t offset, void *userdata) {
        const Core *core = &((const CrashChild *)userdata)->core;
        return core->stream ? core_stream_read(core->stream, data, n, offset)
                            : fs_pread(core->fd, data, n, offset);
}

/* @return 0, CORE_NOTES_E_*, -errno */
static int open_core(Core *core, uint64_t stream_timeout_usec) {
        struct stat st;
        if (stream_timeout_usec == 0) {
                if (fstat(core->fd, &st) < 0)
                        return -errno;
                core->bytes = (uint64_t)st.st_size;
                return 0;
        }
        int r = core_stream_new(&core->stream, core->fd,
                                clock_boottime_usec() + stream_timeout_usec);
        if (r >= 0)
                core->bytes = core_stream_bytes(core->stream);
        return r;
}

static int report_fault(const char *sentence) {
        (void)fs_write_all(WHY_FD, sentence, strlen(sentence)); /* else there is no reason */
        return EXIT_BAD_CORE;
}

static int report_no_core(int r, const CoreStream *stream) {
        const char *fault = stream ? core_stream_fault(stream) : NULL;
        if (r == CORE_NOTES_E_MACHINE)
                return report_fault("it is of a machine other than x86-64 and arm64");
        if (!fault)
                return report_fault("it is not an ELF core of 64 bits, little-endian");
        _cleanup_free_ char *text = strbuf_format("it cannot be decompressed: %s", fault);
        return report_fault(text ? text : fault);
}

/* One behind the other, each with its NUL: the last whole one counts. */
static int publish(const StrBuf *json, const StrBuf *text, void *userdata) {
        (void)userdata;
        int r = strbuf_error(json) < 0 ? strbuf_error(json) : strbuf_error(text);
        if (r == 0 && json->text)
                r = fs_write_all(JSON_FD, json->text, json->n + 1);
        return r == 0 && text->text ? fs_write_all(TEXT_FD, text->text, text->n + 1) : r;
}

/* @return 0, CORE_NOTES_E_*, -errno */
static int write_report(ReportInput *in, CrashChild *child) {
        Core *core = &child->core;
        _cleanup_(strbuf_done) StrBuf json = STRBUF_INIT, text = STRBUF_INIT, missing = STRBUF_INIT;
        int r = open_core(core, child->start.stream_timeout_usec);
        if (r != 0)
                return r;
        in->core_bytes = core->bytes;
        if (core->stream) {
                const char *fault = core_stream_fault(core->stream);
                strbuf_add(&missing, "it was read once, from its beginning: Python's stacks and "
                                     "the deep parts of others are left out");
                if (fault)
                        strbuf_addf(&missing, "; it ends early: %s", fault);
                in->core_left_out = missing.text;
        }
        r = report_write(in, &json, &text);
        return r == 0 ? publish(&json, &text, in->userdata) : r;
}

static int make_report(CrashChild *child, const char *left_out) {
        _cleanup_free_ char *known = NULL;
        size_t n_known;
        _cleanup_(context_done) Context context = { 0 };
        if (fs_read_head(CONTEXT_FD, CRASH_CONTEXT_BYTES_MAX, &known, &n_known) < 0 ||
            context_parse(&context, known, n_known) != 0)
                return report_fault("its context is not a JSON object");
        ReportInput in = { .core_name = child->start.core_name,
                           .left_out = left_out,
                           .context = &context,
                           .read = read_core,
                           .open = request_file,
                           .publish = publish,
                           .userdata = child };
        int r = write_report(&in, child);
        int code = 0;
        if (r != 0)
                code = r > 0 ? report_no_core(r, child->core.stream) : report_fault(strerror(-r));
        core_stream_free(child->core.stream);
        return code;
}

/* Where memory runs out, a report is the first thing to go. */
static void set_oom_score(void) {
        _cleanup_close_ int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
        if (fd >= 0)
                (void)fs_write_all(fd, "1000", 4); /* who may not raise it, keeps what he has */
}

int crash_child_main(void) {
        CrashChild child = { .core = { .fd = -1 } }; /* which ends with the process */
        _cleanup_(strbuf_done) StrBuf left_out = STRBUF_INIT;
        int r = receive_message(SOCKET_FD, &child.start, sizeof child.start, &child.core.fd);
        if (r < 0 || child.core.fd < 0) {
                fputs("neuron-collectd: --child=crash is not for people; see neuron-collect crash "
                      "--help\n",
                      stderr);
                return 2;
        }
        set_oom_score();
        r = sandbox_enter(&(Sandbox){ .dir_fd = -1,
                                      .cpu_usec = CHILD_CPU_USEC + child.start.stream_timeout_usec,
                                      .max_file_bytes = REPORT_BYTES_MAX,
                                      .opens_nothing = true },
                          &left_out);
        if (r < 0)
                return report_fault("it cannot be confined");
        return make_report(&child, left_out.text);
}

/* ---- in the caller ---- */

static int reply_to_query(int socket_fd, const CrashRequest *o) {
        FileQuery q;
        FileReply reply;
        _cleanup_close_ int fd = -1;
        int r = receive_message(socket_fd, &q, sizeof q, NULL);
        if (r < 0)
                return r;
        fd = files_open(o->roots, o->n_roots, o->reader, &q, &reply);
        return send_message(socket_fd, &reply, sizeof reply, fd);
}

/* @return 0 when the child has closed its end, -ETIMEDOUT, -EINTR: others wait and its slice is
 * over, -EBADMSG: it sent no query, or too many, -EAGAIN: it does not read the replies, -errno */
static int serve(int socket_fd, const CrashRequest *o, uint64_t end_usec) {
        const uint64_t slice_end_usec = clock_boottime_usec() + o->slice_usec;
        for (unsigned n_requests = 0; n_requests < REQUESTS_MAX;) {
                uint64_t now = clock_boottime_usec();
                struct pollfd p = { .fd = socket_fd, .events = POLLIN };
                if (now >= end_usec)
                        return -ETIMEDOUT;
                if (o->others_wait && atomic_load(o->others_wait) && now >= slice_end_usec)
                        return -EINTR;
                uint64_t wait_usec = MIN(end_usec - now, (uint64_t)SLICE_CHECK_USEC);
                int n = poll(&p, 1, (int)(wait_usec / USEC_PER_MSEC + 1));
                if (n < 0 && errno != EINTR)
                        return -errno;
                n_requests += n > 0;
                int r = n > 0 ? reply_to_query(socket_fd, o) : 0;
                if (r < 0)
                        return r == -ENODATA || r == -EPIPE || r == -ECONNRESET ? 0 : r;
        }
        return -EBADMSG;
}

/* @param ret  gets the last part that ends with NUL, "" for none */
static int read_output(int fd, char **ret) {
        size_t end;
        int r = fs_read_head(fd, REPORT_BYTES_MAX, ret, &end);
        if (r < 0)
                return r;
        while (end > 0 && (*ret)[end - 1] != '\0')
                end--;
        size_t begin = end > 0 ? end - 1 : 0;
        while (begin > 0 && (*ret)[begin - 1] != '\0')
                begin--;
        memmove(*ret, *ret + begin, end - begin);
        (*ret)[end - begin] = '\0';
        return 0;
}

static int read_report(const int *fds, CrashReport *ret) {
        int r = read_output(fds[JSON_FD], &ret->json);
        return r < 0 ? r : read_output(fds[TEXT_FD], &ret->text);
}

/* Whether one was ready when its reader failed, which debug information can bring about. */
static bool has_report(const int *fds, CrashReport *ret) {
        if (read_report(fds, ret) == 0 && *ret->json && *ret->text)
                return true;
        crash_report_done(ret);
        return false;
}

static int set_fault(CrashReport *ret, const char *fmt, ...) _printf_(2, 3);
static int set_fault(CrashReport *ret, const char *fmt, ...) {
        va_list ap;
        va_start(ap, fmt);
        ret->fault = strbuf_vformat(fmt, ap);
        va_end(ap);
        return ret->fault ? CRASH_E_FAILED : -ENOMEM;
}

static int collect(const int *fds, int status, CrashReport *ret) {
        _cleanup_free_ char *why = NULL;
        size_t n;
        if (status != 0 && has_report(fds, ret))
                return 0;
        if (WIFSIGNALED(status))
                return set_fault(ret, "its reader died by SIG%s", sigabbrev_np(WTERMSIG(status)));
        if (WEXITSTATUS(status) != 0) {
                int r = fs_read_head(fds[WHY_FD], WHY_BYTES_MAX, &why, &n);
                return r < 0 ? r : set_fault(ret, "%s", *why ? why : "its reader failed");
        }
        return read_report(fds, ret);
}

static int start_child(const CrashRequest *o, const int *fds, pid_t *ret) {
        char *argv[] = { (char *)"neuron-collectd", (char *)CRASH_CHILD, NULL };
        char *environment[] = { NULL }; /* DEBUGINFOD_URLS would let libdw ask servers */
        SpawnOptions spawn = {
                .program = o->program, .argv = argv, .environment = environment, .n_fds = N_FDS
        };
        for (int i = 0; i < N_FDS; i++)
                spawn.fds[i] = fds[i];
        return spawn_program(ret, &spawn);
}

/* @return 0 and its status, -ETIMEDOUT: it still runs, -errno */
static int wait_for_child(pid_t pid, uint64_t end_usec, int *ret_status) {
        for (;;) {
                pid_t ended = waitpid(pid, ret_status, WNOHANG);
                if (ended == pid)
                        return 0;
                if (ended < 0 && errno != EINTR)
                        return -errno;
                if (clock_boottime_usec() >= end_usec)
                        return -ETIMEDOUT;
                (void)usleep(WAIT_STEP_USEC); /* interrupted: earlier */
        }
}

/* Of one that a hanging file system holds, a process is left behind that ends when that does. */
static void kill_child(pid_t pid) {
        int status;
        (void)kill(pid, SIGKILL); /* not reaped yet, and so ours */
        (void)wait_for_child(pid, clock_boottime_usec() + KILL_USEC, &status);
}

static uint64_t stream_timeout(const CrashRequest *o) {
        if (!core_stream_is_one(o->core_fd))
                return 0;
        return o->stream_timeout_usec ? o->stream_timeout_usec : CRASH_STREAM_TIMEOUT_USEC;
}

static int run_child(const CrashRequest *o, const int *fds, int *socket_of_child, int socket_fd,
                     CrashReport *ret) {
        _cleanup_free_ ChildStart *start = calloc(1, sizeof *start);
        pid_t pid;
        int status = 0;
        if (!start)
                return -ENOMEM;
        (void)snprintf(start->core_name, sizeof start->core_name, "%s", o->core_name);
        for (size_t i = 0; i < MIN(o->n_roots, (size_t)FILES_ROOTS_MAX); i++)
                memcpy(start->places[i], o->roots[i].name, sizeof start->places[i]);
        start->stream_timeout_usec = stream_timeout(o);
        int r = start_child(o, fds, &pid);
        (void)close(TAKE_FD(*socket_of_child)); /* the child's */
        if (r < 0)
                return r;
        uint64_t timeout_usec = o->timeout_usec + start->stream_timeout_usec,
                 end_usec = clock_boottime_usec() + timeout_usec;
        r = send_message(socket_fd, start, sizeof *start, o->core_fd);
        if (r == 0)
                r = serve(socket_fd, o, end_usec);
        if (r == 0 || r == -EPIPE)
                r = wait_for_child(pid, end_usec, &status);
        if (r == 0)
                return collect(fds, status, ret);
        kill_child(pid);
        if (has_report(fds, ret))
                return 0;
        ret->slice_is_over = r == -EINTR;
        if (ret->slice_is_over)
                return set_fault(ret,
                                 "reading it took longer than %llu s while cores of other "
                                 "users waited",
                                 (unsigned long long)(o->slice_usec / USEC_PER_SEC));
        if (r == -ETIMEDOUT)
                return set_fault(ret, "reading it took longer than %llu s",
                                 (unsigned long long)(timeout_usec / USEC_PER_SEC));
        return r == -EBADMSG || r == -EAGAIN ? set_fault(ret, "its reader misbehaved") : r;
}

int crash_report(const CrashRequest *request, CrashReport *ret) {
        *ret = (CrashReport){ 0 };
        size_t n_context = request->context ? strlen(request->context) : 0;
        int sockets[2];
        if (n_context > CRASH_CONTEXT_BYTES_MAX) /* hostile lines of the kernel's log */
                n_context = 0;
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) < 0)
                return -errno;
        _cleanup_close_ int ours = sockets[0],
                            socket_of_child = fcntl(sockets[1], F_DUPFD_CLOEXEC, 10),
                            json = memfd_create(CRASH_FILE, MFD_CLOEXEC),
                            why = memfd_create("why", MFD_CLOEXEC),
                            text = memfd_create(CRASH_TEXT_FILE, MFD_CLOEXEC),
                            context = probe_request_memfd(request->context, n_context);
        (void)close(sockets[1]); /* a number above the child's own stays */
        if (socket_of_child < 0 || json < 0 || why < 0 || text < 0 || context < 0)
                return context < 0 ? context : -errno;
        int fds[N_FDS] = { socket_of_child, json, why, text, context };
        return run_child(request, fds, &socket_of_child, ours, ret);
}

void crash_report_done(CrashReport *r) {
        free(r->json);
        free(r->text);
        free(r->fault);
        *r = (CrashReport){ 0 };
}
