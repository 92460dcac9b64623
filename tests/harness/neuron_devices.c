/* Neuron devices that are not there: FUSE files neuron0 … that answer ioctl(2) as the driver's
 * documentation says, fail as it is known to fail, and write down whatever is done to them. Numbers
 * and offsets are written here a second time, on purpose: a mistake in
 * collectors/neuron/neuron_abi.h shows.
 *
 *   cc neuron_devices.c $(pkg-config --cflags --libs fuse3) -o neuron_devices
 *   NEURON_DEVICES=16 NEURON_ARCHITECTURE=3 NEURON_DRIVER=2.30.2 NEURON_LOG=FILE ./neuron_devices
 * -f MOUNT
 *
 * The log, a line each: `open NAME flags=0x1 pid=N`, `flush NAME` (each close of a descriptor, also
 * of a copy), `close NAME` (the last one), `ioctl NAME 0xCOMMAND ARGUMENTS`; and `FORBIDDEN …` for
 * a command that only an attached process, or nobody but the runtime, may send.
 *
 * Faults, a line each to MOUNT/.control: `DEVICE OPERATION FAULT`, the device a number or *, the
 * operation `open-free`, `open-attached` (not O_WRONLY), a command as 0x…, or `ioctl` for all; the
 * fault `errno N`, `return N`, `hang` (no answer, SIGKILL or not, as a thread in D state), `block`
 * (until SIGKILL, as the driver's open while a device is reset), `garbage` (counts of 2^32-1),
 * `ok`. `release` answers what hangs.
 *
 * The kernel hands a FUSE server only as many bytes of an argument as the command's number says,
 * and the driver's numbers say 8 for most: the rest is read and written in the caller's memory.
 * What hangs is not answered, so one thread is enough. */
#define FUSE_USE_VERSION 35
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
        DEVICES_MAX = 64,
        RULES_MAX = 256,
        WAITING_MAX = 256,
        ROOT = FUSE_ROOT_ID,
        FIRST = 2, /* inode of neuron0 */
        CONTROL = FIRST + DEVICES_MAX,
        OPEN_FREE = 1, /* no command has so small a number */
        OPEN_ATTACHED = 2,
        ALL_COMMANDS = 3,
};

typedef enum Fault { OK, ERRNO, RETURN, HANG, BLOCK, GARBAGE } Fault;
typedef struct Rule {
        int device; /* -1: all */
        uint32_t operation;
        Fault fault;
        int number;
} Rule;

static Rule rules[RULES_MAX];
static size_t n_rules, n_waiting;
static fuse_req_t waiting[WAITING_MAX];
static unsigned n_devices = 16, architecture = 3, driver[3] = { 2, 30, 2 };
static FILE *log_file;

static void note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void note(const char *fmt, ...) {
        va_list args;
        va_start(args, fmt);
        (void)vfprintf(log_file, fmt, args);
        va_end(args);
        (void)fputc('\n', log_file);
        (void)fflush(log_file);
}

static bool driver_is(unsigned a, unsigned b, unsigned c) {
        unsigned wanted[] = { a, b, c };
        for (int i = 0; i < 3; i++)
                if (driver[i] != wanted[i])
                        return driver[i] > wanted[i];
        return true;
}

/* The last one that fits counts. */
static Rule rule_for(int device, uint32_t operation, bool is_command) {
        Rule found = { 0 };
        for (size_t i = 0; i < n_rules; i++)
                if ((rules[i].device < 0 || rules[i].device == device) &&
                    (rules[i].operation == operation ||
                     (is_command && rules[i].operation == ALL_COMMANDS)))
                        found = rules[i];
        return found;
}

/* ---- an argument in the caller's memory ---- */

typedef struct Call {
        fuse_req_t request;
        uint64_t argument;
        int device;
        bool is_garbage;
} Call;

static bool copy_in(const Call *c, uint64_t at, void *data, size_t n) {
        struct iovec ours = { data, n }, theirs = { (void *)(uintptr_t)at, n };
        return process_vm_readv(fuse_req_ctx(c->request)->pid, &ours, 1, &theirs, 1, 0) ==
               (ssize_t)n;
}

static bool copy_out(const Call *c, uint64_t at, const void *data, size_t n) {
        struct iovec ours = { (void *)(uintptr_t)data, n }, theirs = { (void *)(uintptr_t)at, n };
        return process_vm_writev(fuse_req_ctx(c->request)->pid, &ours, 1, &theirs, 1, 0) ==
               (ssize_t)n;
}

static uint32_t in32(const Call *c, uint64_t offset) {
        uint32_t v = UINT32_MAX;
        (void)copy_in(c, c->argument + offset, &v, sizeof v);
        return v;
}

static uint64_t in64(const Call *c, uint64_t offset) {
        uint64_t v = 0;
        (void)copy_in(c, c->argument + offset, &v, sizeof v);
        return v;
}

static void set32(uint8_t *data, size_t offset, uint32_t v) {
        memcpy(data + offset, &v, sizeof v);
}

static void set64(uint8_t *data, size_t offset, uint64_t v) {
        memcpy(data + offset, &v, sizeof v);
}

static int give(const Call *c, const uint8_t *data, size_t n) {
        return copy_out(c, c->argument, data, n) ? 0 : EFAULT;
}

static uint32_t count(const Call *c, uint32_t n) {
        return c->is_garbage ? UINT32_MAX : n;
}

/* ---- answers: 0 or an errno ---- */

static int basic_info(const Call *c) {
        uint8_t d[8];
        set32(d, 0, c->is_garbage ? 77 : architecture);
        set32(d, 4, 1);
        return give(c, d, sizeof d);
}

static int compatible_version(const Call *c) {
        uint8_t d[8];
        set32(d, 0, architecture == 2 ? 7 : 11);
        set32(d, 4, architecture == 2 ? 5 : 10);
        return give(c, d, sizeof d);
}

static int driver_info(const Call *c) {
        uint8_t d[24] = { 0 };
        if (in32(c, 12) != sizeof d)
                return EINVAL;
        set32(d, 0, architecture);
        set32(d, 12, sizeof d);
        set64(d, 16, 0x101);
        return give(c, d, sizeof d);
}

static int bdf_ext(const Call *c) {
        uint8_t d[16] = { 0 };
        uint32_t index = in32(c, 0);
        set32(d, 0, index);
        set32(d, 4, 0);
        set32(d, 8, 0x10 + index);
        d[12] = 0x1e;
        return give(c, d, sizeof d);
}

static int rid_map(const Call *c) {
        uint8_t d[260] = { 0 };
        set32(d, 0, count(c, n_devices));
        for (unsigned i = 0; i < 64; i++)
                set32(d, 4 + 4 * i, i);
        return give(c, d, sizeof d);
}

static int core_map(const Call *c) {
        uint8_t d[4 + 128 * 8] = { 0 };
        uint64_t map = in64(c, 0);
        uint32_t max = in32(c, 8);
        if (max > 128 || in32(c, 12) != 0)
                return EINVAL;
        set32(d, 0, count(c, 16));
        for (unsigned i = 0; i < 16; i++) {
                set32(d, 4 + 8 * i, i / 8);
                set32(d, 8 + 8 * i, i % 8);
        }
        return copy_out(c, map, d, 4 + 8 * max) ? 0 : EFAULT;
}

static int pod_info(const Call *c) {
        uint8_t d[260] = { 4, 1, 2, 'p', 'o', 'd' };
        d[259] = 4;
        return give(c, d, sizeof d);
}

static int pod_status(const Call *c, bool is_v2) {
        uint8_t d[276] = { 0, 0, 'p', 'o', 'd' };
        set32(d, 260, 2);
        d[264] = 2;
        d[265] = 4;
        d[266] = (uint8_t)-1;
        set32(d, 268, 2);
        set32(d, 272, 7);
        return give(c, d, is_v2 ? 276 : 268);
}

typedef struct Command {
        uint32_t number;
        unsigned since[3];
        int (*answer)(const Call *c);
} Command;

static int pod_status_1(const Call *c) {
        return pod_status(c, false);
}
static int pod_status_2(const Call *c) {
        return pod_status(c, true);
}
static const Command commands[] = {
        { 0x40084e5d, { 0, 0, 0 }, compatible_version },
        { 0x40084e64, { 2, 1, 5 }, basic_info },
        { 0x80084e6a, { 2, 9, 4 }, bdf_ext },
        { 0x80184e6e, { 2, 12, 11 }, driver_info },
        { 0xc1044e73, { 2, 16, 7 }, rid_map },
        { 0xc0104e78, { 2, 19, 64 }, core_map },
        { 0xc1044e79, { 2, 19, 64 }, pod_info },
        { 0xc10c4e7a, { 2, 19, 64 }, pod_status_1 },
        { 0xc1144e7a, { 2, 23, 9 }, pod_status_2 },
};

/* ---- waiting ---- */

static void on_interrupt(fuse_req_t request, void *data) {
        (void)data;
        for (size_t i = 0; i < n_waiting; i++)
                if (waiting[i] == request) {
                        waiting[i] = waiting[--n_waiting];
                        (void)fuse_reply_err(request, EINTR);
                        return;
                }
}

static void wait_for_release(fuse_req_t request, bool is_killable) {
        if (n_waiting == WAITING_MAX) {
                (void)fuse_reply_err(request, EAGAIN);
                return;
        }
        waiting[n_waiting++] = request;
        if (is_killable)
                fuse_req_interrupt_func(request, on_interrupt, NULL);
}

/* @return whether the request has been dealt with */
static bool apply(const Rule *rule, fuse_req_t request, bool is_command) {
        switch (rule->fault) {
        case ERRNO:
                (void)fuse_reply_err(request, rule->number);
                return true;
        case RETURN:
                if (!is_command)
                        return false;
                (void)fuse_reply_ioctl(request, rule->number, NULL, 0);
                return true;
        case HANG:
        case BLOCK:
                wait_for_release(request, rule->fault == BLOCK);
                return true;
        default:
                return false;
        }
}

/* ---- operations ---- */

static void fill(fuse_ino_t inode, struct stat *st) {
        *st = (struct stat){
                .st_ino = inode,
                .st_nlink = 1,
                .st_mode = inode == ROOT ? S_IFDIR | 0755 : S_IFREG | 0666,
        };
}

static void name_of(fuse_ino_t inode, char name[static 16]) {
        if (inode == CONTROL)
                (void)strcpy(name, ".control");
        else
                (void)snprintf(name, 16, "neuron%u", (unsigned)(inode - FIRST));
}

static void on_getattr(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info *info) {
        struct stat st;
        (void)info;
        fill(inode, &st);
        (void)fuse_reply_attr(request, &st, 0);
}

static void on_setattr(fuse_req_t request, fuse_ino_t inode, struct stat *st, int which,
                       struct fuse_file_info *info) {
        (void)st;
        (void)which; /* a shell's ">" truncates .control */
        on_getattr(request, inode, info);
}

static void on_lookup(fuse_req_t request, fuse_ino_t parent, const char *wanted) {
        struct fuse_entry_param entry = { .ino = 0 };
        char name[16];
        (void)parent;
        for (fuse_ino_t i = FIRST; i <= CONTROL; i++) {
                if (i != CONTROL && i >= FIRST + n_devices)
                        continue;
                name_of(i, name);
                if (strcmp(name, wanted) == 0) {
                        entry.ino = i;
                        fill(i, &entry.attr);
                        (void)fuse_reply_entry(request, &entry);
                        return;
                }
        }
        (void)fuse_reply_err(request, ENOENT);
}

static void on_readdir(fuse_req_t request, fuse_ino_t inode, size_t size, off_t offset,
                       struct fuse_file_info *info) {
        char data[8192], name[16];
        size_t n = 0;
        (void)inode;
        (void)info;
        for (off_t i = offset; i < (off_t)n_devices; i++) {
                struct stat st;
                fill(FIRST + (fuse_ino_t)i, &st);
                name_of(FIRST + (fuse_ino_t)i, name);
                size_t room = (size < sizeof data ? size : sizeof data) - n;
                size_t k = fuse_add_direntry(request, data + n, room, name, &st, i + 1);
                if (k > room)
                        break;
                n += k;
        }
        (void)fuse_reply_buf(request, data, n);
}

static void on_open(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info *info) {
        int device = (int)(inode - FIRST), mode = info->flags & O_ACCMODE;
        if (inode == CONTROL) {
                info->direct_io = 1;
                (void)fuse_reply_open(request, info);
                return;
        }
        note("open neuron%d flags=%#x pid=%d", device, (unsigned)info->flags,
             (int)fuse_req_ctx(request)->pid);
        Rule rule = rule_for(device, mode == O_WRONLY ? OPEN_FREE : OPEN_ATTACHED, false);
        if (apply(&rule, request, false))
                return;
        (void)fuse_reply_open(request, info);
}

static void on_flush(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info *info) {
        int device = (int)(inode - FIRST);
        if (inode != CONTROL) {
                note("flush neuron%d", device);
        }
        (void)fuse_reply_err(request, 0);
}

static void on_release(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info *info) {
        if (inode != CONTROL) {
                note("close neuron%d", (int)(inode - FIRST));
        }
        (void)fuse_reply_err(request, 0);
}

static void on_ioctl(fuse_req_t request, fuse_ino_t inode, unsigned number, void *argument,
                     struct fuse_file_info *info, unsigned flags, const void *in, size_t n_in,
                     size_t n_out) {
        Call c = { .request = request,
                   .argument = (uintptr_t)argument,
                   .device = (int)(inode - FIRST) };
        const Command *command = NULL;
        uint8_t back[512];
        (void)flags;
        (void)in;
        (void)n_in;
        if (inode == CONTROL) { /* a shell or Python that asks whether it is a terminal */
                (void)fuse_reply_err(request, ENOTTY);
                return;
        }
        note("ioctl neuron%d %#010x %u %u", c.device, number, in32(&c, 0), in32(&c, 4));
        for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
                if (commands[i].number == number)
                        command = &commands[i];
        if (!command)
                note("FORBIDDEN %#010x", number);
        Rule rule = rule_for(c.device, number, true);
        if (apply(&rule, request, true))
                return;
        c.is_garbage = rule.fault == GARBAGE;
        if (!command || !driver_is(command->since[0], command->since[1], command->since[2])) {
                (void)fuse_reply_err(request, driver_is(2, 29, 0) ? ENOTTY : EPERM);
                return;
        }
        int error = command->answer(&c);
        if (error == 0 && n_out > 0 &&
            (n_out > sizeof back || !copy_in(&c, c.argument, back, n_out)))
                error = EFAULT;
        if (error)
                (void)fuse_reply_err(request, error);
        else
                (void)fuse_reply_ioctl(request, 0, back, n_out);
}

/* ---- control ---- */

static bool fault_of(const char *word, Fault *ret) {
        static const char *const words[] = { "ok", "errno", "return", "hang", "block", "garbage" };
        for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
                if (strcmp(words[i], word) == 0) {
                        *ret = (Fault)i;
                        return true;
                }
        return false;
}

static uint32_t operation_of(const char *word) {
        if (strcmp(word, "open-free") == 0)
                return OPEN_FREE;
        if (strcmp(word, "open-attached") == 0)
                return OPEN_ATTACHED;
        return strcmp(word, "ioctl") == 0 ? ALL_COMMANDS : (uint32_t)strtoul(word, NULL, 16);
}

static void release_all(void) {
        while (n_waiting > 0)
                (void)fuse_reply_err(waiting[--n_waiting], EIO);
}

static bool obey(const char *line) {
        char device[16], operation[32], fault[16];
        Rule rule = { .number = 0 };
        int n = sscanf(line, "%15s %31s %15s %d", device, operation, fault, &rule.number);
        if (n == 1 && strcmp(device, "release") == 0) {
                release_all();
                return true;
        }
        if (n < 3)
                return false;
        rule.device = device[0] == '*' ? -1 : atoi(device);
        rule.operation = operation_of(operation);
        if (!fault_of(fault, &rule.fault) || rule.operation == 0 || n_rules == RULES_MAX)
                return false;
        rules[n_rules++] = rule;
        return true;
}

static void on_write(fuse_req_t request, fuse_ino_t inode, const char *data, size_t n, off_t offset,
                     struct fuse_file_info *info) {
        char line[256];
        (void)offset;
        (void)info;
        if (inode != CONTROL)
                note("FORBIDDEN write neuron%d", (int)(inode - FIRST));
        (void)snprintf(line, sizeof line, "%.*s", (int)n, data);
        if (inode == CONTROL && obey(line))
                (void)fuse_reply_write(request, n);
        else
                (void)fuse_reply_err(request, EINVAL);
}

static const struct fuse_lowlevel_ops operations = {
        .lookup = on_lookup,
        .getattr = on_getattr,
        .setattr = on_setattr,
        .readdir = on_readdir,
        .open = on_open,
        .flush = on_flush,
        .release = on_release,
        .write = on_write,
        .ioctl = on_ioctl,
};

static unsigned number_of(const char *name, unsigned otherwise) {
        const char *value = getenv(name);
        return value ? (unsigned)atoi(value) : otherwise;
}

int main(int argc, char **argv) {
        struct fuse_args args = FUSE_ARGS_INIT(argc, argv);
        struct fuse_cmdline_opts options;
        const char *path = getenv("NEURON_LOG"), *version = getenv("NEURON_DRIVER");
        struct fuse_session *session;

        n_devices = number_of("NEURON_DEVICES", n_devices);
        architecture = number_of("NEURON_ARCHITECTURE", architecture);
        log_file = path ? fopen(path, "a") : stderr;
        if (n_devices > DEVICES_MAX || !log_file ||
            (version && sscanf(version, "%u.%u.%u", &driver[0], &driver[1], &driver[2]) != 3) ||
            fuse_parse_cmdline(&args, &options) != 0 || !options.mountpoint)
                return 2;
        session = fuse_session_new(&args, &operations, sizeof operations, NULL);
        if (!session || fuse_set_signal_handlers(session) != 0 ||
            fuse_session_mount(session, options.mountpoint) != 0)
                return 1;
        int r = fuse_session_loop(session);
        release_all();
        fuse_session_unmount(session);
        fuse_session_destroy(session);
        free(options.mountpoint);
        fuse_opt_free_args(&args);
        return r != 0;
}
