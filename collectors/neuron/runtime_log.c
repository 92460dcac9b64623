/* The runtime's log files: the tail of each as a raw file, the blocks that it writes for support,
 * and its error lines, all redacted. Whoever names a log may be anybody of this machine or of one
 * of its containers, and we may read all files: so only what belongs to that user is opened. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "collectors/host/procfs.h"
#include "collectors/runner/collector.h"
#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/base/redact.h"
#include "lib/neuron/job.h"
#include "lib/neuron/names.h"
#include "lib/neuron/scan.h"

/** A piece of the text, not NUL-terminated. */
typedef struct NrtSpan {
        const char *s;
        size_t n;
} NrtSpan;

/** `2025-Sep-19 18:57:20.782962  4444:4444  ERROR  TDRV:func   message`, also behind a syslog
 * prefix. */
typedef struct NrtLine {
        NrtSpan time; /* as it stands there; which zone is not said */
        uint64_t pid, tid;
        NrtSpan level;            /* ERROR, WARN, INFO … */
        NrtSpan module, function; /* empty when there is none */
        NrtSpan message;
        int device, core; /* of `[ND d][NC n]`, `nd0:nc0`; -1 = not said */
} NrtLine;

#define NRT_INFODUMP_LINES_MAX 512
typedef enum NrtInfoKind {
        NRT_INFO_FIELD,       /* `Name: value` */
        NRT_INFO_ENVIRONMENT, /* `NAME=value` below `Environment:` */
        NRT_INFO_OTHER,       /* a line of no known form */
} NrtInfoKind;

typedef struct NrtInfoItem {
        NrtInfoKind kind;
        NrtSpan name, value; /* OTHER: only value */
} NrtInfoItem;

typedef struct NrtInfodump {
        NrtSpan lines; /* borrowed */
        bool is_whole; /* what a cut-off text does not end is a block too */
} NrtInfodump;

/* Both delimiters of the block, without the dashes around, which have varied in number. */
static const char cut_here[] = ">8------------[ cut here ]------------>8";

static const char cut_to_here[] = "8<-----------[ cut to here ]-----------8<";

static bool is_blank(char c) {
        return c == ' ' || c == '\t' || c == '\r';
}

static const char *skip_blanks(const char *at, const char *end) {
        while (at < end && is_blank(*at))
                at++;
        return at;
}

static NrtSpan next_word(const char **at, const char *end) {
        const char *start = skip_blanks(*at, end);

        *at = start;
        while (*at < end && !is_blank(**at))
                (*at)++;
        return (NrtSpan){ .s = start, .n = (size_t)(*at - start) };
}

/* By its form: d digit, m letter, else itself. */
static bool has_form(const char *s, size_t n, const char *form) {
        for (size_t i = 0; form[i] != '\0'; i++) {
                if (i >= n)
                        return false;
                unsigned char c = (unsigned char)s[i];
                if (form[i] == 'd'   ? !isdigit(c)
                    : form[i] == 'm' ? !isalpha(c)
                                     : (char)c != form[i])
                        return false;
        }
        return true;
}

static bool find_time(const char *line, const char *end, NrtSpan *ret) {
        static const char form[] = "dddd-mmm-dd dd:dd:dd";
        const size_t n_form = sizeof form - 1;

        for (const char *at = line; (size_t)(end - at) >= n_form && at - line < 256; at++) {
                if (!has_form(at, (size_t)(end - at), form))
                        continue;
                const char *stop = at + n_form;
                if (stop < end && *stop == '.')
                        for (stop++; stop < end && isdigit((unsigned char)*stop);)
                                stop++;
                *ret = (NrtSpan){ .s = at, .n = (size_t)(stop - at) };
                return true;
        }
        return false;
}

/* A small number behind `nd` or `nc`, in brackets and with a blank or without. */
static int number_behind(NrtSpan text, const char *mark, size_t *ret_at) {
        for (size_t i = 0; i + 3 <= text.n; i++) {
                if (strncasecmp(text.s + i, mark, 2) != 0 ||
                    (i > 0 && isalnum((unsigned char)text.s[i - 1])))
                        continue;
                const char *at = text.s + i + 2, *end = text.s + text.n;
                uint64_t value;
                at += at < end && *at == ' ';
                if (!parse_u64_prefix(&at, end, &value) || value > 65535 ||
                    (at < end && isalnum((unsigned char)*at)))
                        continue;
                *ret_at = i;
                return (int)value;
        }
        return -1;
}

static void find_core(NrtLine *l) {
        size_t at = 0;

        l->device = number_behind(l->message, "nd", &at);
        l->core = -1;
        if (l->device >= 0) {
                NrtSpan behind = { .s = l->message.s + at, .n = l->message.n - at };
                l->core = number_behind(behind, "nc", &at);
        }
}

static bool nrt_log_parse_line(const char *line, size_t n, NrtLine *ret) {
        const char *end = line + n, *at, *colon;
        NrtLine l = { 0 };

        if (!find_time(line, end, &l.time))
                return false;
        at = skip_blanks(l.time.s + l.time.n, end);
        if (!parse_u64_prefix(&at, end, &l.pid) || at >= end || *at++ != ':' ||
            !parse_u64_prefix(&at, end, &l.tid))
                return false;
        l.level = next_word(&at, end);
        if (l.level.n == 0)
                return false;
        const char *behind_level = at;
        NrtSpan origin = next_word(&at, end);
        colon = origin.n > 0 ? memchr(origin.s, ':', origin.n) : NULL;
        if (colon) {
                l.module = (NrtSpan){ .s = origin.s, .n = (size_t)(colon - origin.s) };
                l.function = (NrtSpan){ .s = colon + 1, .n = origin.n - l.module.n - 1 };
        } else {
                at = behind_level;
                l.module = l.function = (NrtSpan){ .s = at, .n = 0 };
        }
        at = skip_blanks(at, end);
        while (end > at && is_blank(end[-1]))
                end--;
        l.message = (NrtSpan){ .s = at, .n = (size_t)(end - at) };
        find_core(&l);
        *ret = l;
        return true;
}

static bool nrt_log_is_error(const NrtLine *l) {
        static const char *const levels[] = { "ERROR", "ERR", "CRITICAL", "FATAL" };

        for (size_t i = 0; i < ELEMENTSOF(levels); i++)
                if (l->level.n == strlen(levels[i]) &&
                    strncasecmp(l->level.s, levels[i], l->level.n) == 0)
                        return true;
        return false;
}

static const char *line_end(const char *at, const char *end) {
        const char *newline = at < end ? memchr(at, '\n', (size_t)(end - at)) : NULL;
        return newline ? newline : end;
}

static bool nrt_infodump_find(const char *text, size_t n, size_t *at, NrtInfodump *ret) {
        const char *end = text + n, *open, *start, *close, *next;

        if (*at >= n)
                return false;
        open = memmem(text + *at, n - *at, cut_here, sizeof cut_here - 1);
        if (!open) {
                *at = n;
                return false;
        }
        start = line_end(open, end);
        start += start < end;
        close = memmem(start, (size_t)(end - start), cut_to_here, sizeof cut_to_here - 1);
        /* One that begins before this one has ended: its end is in a line that is lost. */
        next = memmem(start, (size_t)(end - start), cut_here, sizeof cut_here - 1);
        bool is_whole = close && (!next || close < next);
        if (is_whole)
                *at = (size_t)(line_end(close, end) - text);
        else {
                close = next ? next : end;
                *at = (size_t)(close - text);
        }
        while (close > start && close[-1] != '\n' && close != end)
                close--; /* to the beginning of the delimiter's line */
        *ret = (NrtInfodump){ { .s = start, .n = (size_t)(close - start) }, is_whole };
        return true;
}

/* The runtime writes the block by its logger: each line may have its prefix. */
static NrtSpan strip_prefix(const char *line, size_t n) {
        NrtLine l;

        if (nrt_log_parse_line(line, n, &l))
                return l.message;
        return (NrtSpan){ .s = line, .n = n };
}

static NrtSpan trim(NrtSpan s) {
        while (s.n > 0 && is_blank(s.s[0])) {
                s.s++;
                s.n--;
        }
        while (s.n > 0 && is_blank(s.s[s.n - 1]))
                s.n--;
        return s;
}

static bool is_variable(NrtSpan s, size_t *ret_equals) {
        size_t i = 0;

        while (i < s.n && (isalnum((unsigned char)s.s[i]) || s.s[i] == '_'))
                i++;
        *ret_equals = i;
        return i > 0 && i < s.n && s.s[i] == '=';
}

static NrtInfoItem make_item(NrtSpan line, bool *in_environment) {
        NrtInfoItem item = { .kind = NRT_INFO_OTHER, .value = line };
        size_t equals;

        if (is_variable(line, &equals) && *in_environment) {
                item.kind = NRT_INFO_ENVIRONMENT;
                item.name = (NrtSpan){ .s = line.s, .n = equals };
                item.value = (NrtSpan){ .s = line.s + equals + 1, .n = line.n - equals - 1 };
                return item;
        }
        const char *colon = memchr(line.s, ':', line.n);
        if (!colon || colon == line.s || colon - line.s > 40)
                return item;
        item.kind = NRT_INFO_FIELD;
        item.name = trim((NrtSpan){ .s = line.s, .n = (size_t)(colon - line.s) });
        item.value = trim((NrtSpan){ .s = colon + 1, .n = (size_t)(line.s + line.n - colon - 1) });
        *in_environment = item.name.n == strlen("Environment") &&
                          strncasecmp(item.name.s, "Environment", item.name.n) == 0;
        return item;
}

static bool nrt_infodump_next(const NrtSpan *block, size_t *at, bool *in_environment,
                              NrtInfoItem *ret) {
        while (*at < block->n) {
                const char *line = block->s + *at, *end = block->s + block->n,
                           *stop = line_end(line, end);
                NrtSpan text = trim(strip_prefix(line, (size_t)(stop - line)));

                *at = (size_t)(stop - block->s) + (stop < end);
                if (text.n == 0)
                        continue;
                *ret = make_item(text, in_environment);
                return true;
        }
        return false;
}

/** A log in a dump, or a dump that cannot be examined. */
typedef struct DumpLog {
        char *path;       /* of the log; of the dump */
        const char *name; /* in path; NULL: of a dump, and `error` has the reason */
        const CollectDump *dump;
        int error; /* -errno */
} DumpLog;

typedef struct DumpLogs {
        DumpLog *items;
        size_t n, n_left_out; /* left_out: more than COLLECT_FILES_MAX */
} DumpLogs;

enum { PATH_BYTES_MAX = 4096 };

typedef enum MountNs { MOUNT_NS_UNKNOWN, MOUNT_NS_HOST, MOUNT_NS_OTHER } MountNs;

typedef struct LogCheck {
        const CollectRequest *request;
        const CollectLogFile *f;
        MountNs mount_ns; /* of the process: its mount namespace */
        int root_fd;      /* of the process, which sees more of the host than a unit of systemd */
        bool is_public;   /* others may search all directories on the way */
        const char *why;
} LogCheck;

/* @param namespace  the link `ns/mnt` of a process @return whether it is init's mount namespace or
 * ours, in which paths mean what they mean to us. When in doubt it counts as another one, in which
 * less is read */
static bool is_in_host_mount_ns(const char *proc_root, const char *namespace) {
        char other[PROCFS_LINK_SIZE];
        _cleanup_(procfs_close) Proc init = { .dir_fd = -1 };
        ssize_t n = readlink("/proc/self/ns/mnt", other, sizeof other - 1);
        other[MAX(n, 0)] = '\0';
        if (strcmp(namespace, other) == 0)
                return true;
        return procfs_open(&init, proc_root, 1, 0) == 0 &&
               procfs_link(&init, "ns/mnt", other) == 0 && strcmp(namespace, other) == 0;
}

/* @return whether what fd stands for is in one of the kernel's own file systems (/proc, /sys,
 * cgroups …), where a regular file is none, or cannot be checked. @see statfs(2) */
static bool is_kernel_file(int fd) {
        static const uint32_t types[] = { PROC_SUPER_MAGIC,   SYSFS_MAGIC,         DEBUGFS_MAGIC,
                                          TRACEFS_MAGIC,      SECURITYFS_MAGIC,    BPF_FS_MAGIC,
                                          CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, EFIVARFS_MAGIC,
                                          PSTOREFS_MAGIC };
        struct statfs s;
        if (fstatfs(fd, &s) < 0)
                return true;
        for (size_t i = 0; i < ELEMENTSOF(types); i++)
                if ((uint32_t)s.f_type == types[i])
                        return true;
        return false;
}

static int refuse(LogCheck *d, int r, const char *why) {
        d->why = why;
        return r;
}

/* Dots and empty components would get round a comparison of texts. */
static int check_path(LogCheck *d) {
        const char *path = d->f->path;
        if (path[0] != '/' || strlen(path) >= PATH_BYTES_MAX)
                return refuse(d, -EINVAL, "not an absolute path");
        if (path[1] == '\0' || !unit_path_is_clean(path + 1))
                return refuse(d, -EINVAL, "not a path without `.`, `..` and `//`");
        if (path_is_below(path, d->request->proc_root))
                return refuse(d, -EPERM, "files of /proc are no logs");
        return 0;
}

/* ---- where its process is ---- */

/* By what we can see of it; on any doubt it is not known, which allows least. */
static void find_mount_ns(LogCheck *d) {
        char namespace[PROCFS_LINK_SIZE];
        _cleanup_(procfs_close) Proc p = { .dir_fd = -1 };
        if (d->f->pid > 0 &&
            procfs_open(&p, d->request->proc_root, d->f->pid, d->f->start_ticks) == 0 &&
            procfs_link(&p, "ns/mnt", namespace) == 0) {
                d->root_fd = procfs_root(&p);
                if (d->root_fd >= 0 && procfs_check(&p) == 0)
                        d->mount_ns = is_in_host_mount_ns(d->request->proc_root, namespace)
                                              ? MOUNT_NS_HOST
                                              : MOUNT_NS_OTHER;
        }
}

/* ---- opening, without reading yet ---- */

static int open_by_path(LogCheck *d) {
        char path[PATH_BYTES_MAX], *name = path + 1;
        int at_fd = d->mount_ns == MOUNT_NS_HOST ? fcntl(d->root_fd, F_DUPFD_CLOEXEC, 0)
                                                 : open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
        (void)snprintf(path, sizeof path, "%s", d->f->path);
        d->is_public = true;
        while (at_fd >= 0) {
                struct stat st;
                char *slash = strchr(name, '/');
                if (slash)
                        *slash = '\0';
                int fd = fs_open_beneath(at_fd, name, slash ? O_PATH | O_DIRECTORY : O_PATH);
                (void)close(at_fd);
                if (fd < 0 || !slash)
                        return fd;
                at_fd = fd;
                d->is_public = d->is_public && fstat(fd, &st) == 0 && st.st_mode & S_IXOTH;
                name = slash + 1;
        }
        return -errno;
}

static int check_owner(LogCheck *d, int fd, const struct stat *st) {
        bool is_his = st->st_uid == d->f->owner.uid;
        bool may_all = d->is_public && st->st_mode & S_IROTH && (is_his || st->st_uid == 0);
        if (!S_ISREG(st->st_mode))
                return refuse(d, -EBADF, "not a regular file");
        if (st->st_nlink != 1)
                return refuse(d, -EMLINK, "it has another name, too, or none any more");
        if (is_kernel_file(fd))
                return refuse(d, -EPERM, "files of the kernel are no logs");
        if (d->mount_ns == MOUNT_NS_UNKNOWN && !may_all)
                return refuse(d, -EPERM,
                              "its process is not known or has ended, and not everybody may read "
                              "this file");
        if (!is_his && !may_all)
                return refuse(d, -EPERM,
                              "it belongs to another user than who named it, and is not one of "
                              "root's that everybody may read");
        return 0;
}

static int open_checked(LogCheck *d, struct stat *ret_st) {
        char link[sizeof "/proc/self/fd/" + 10];
        int r = check_path(d);
        if (r < 0)
                return r;
        find_mount_ns(d);
        _cleanup_close_ int path_fd =
                d->mount_ns == MOUNT_NS_OTHER
                        ? procfs_root_open(d->root_fd, d->f->path, O_PATH, ret_st)
                        : open_by_path(d);
        if (path_fd == -ELOOP)
                return refuse(d, path_fd, "a symlink is in the way, and none is followed");
        if (path_fd == -EBADF)
                return refuse(d, path_fd, "not a regular file");
        if (path_fd < 0)
                return refuse(d, path_fd, strerror(-path_fd));
        if (fstat(path_fd, ret_st) < 0)
                return refuse(d, -errno, strerror(errno));
        r = check_owner(d, path_fd, ret_st);
        if (r < 0)
                return r;
        (void)snprintf(link, sizeof link, "/proc/self/fd/%d", path_fd);
        int fd = open(link, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        return fd < 0 ? refuse(d, -errno, strerror(errno)) : fd;
}

static int runtime_log_open(const CollectRequest *request, const CollectLogFile *f,
                            struct stat *ret_st, const char **ret_why) {
        LogCheck d = { .request = request, .f = f, .root_fd = -1 };
        int fd = open_checked(&d, ret_st);
        if (d.root_fd >= 0)
                (void)close(d.root_fd);
        *ret_why = d.why;
        return fd;
}

/* The runtime's logs in dumps. A dump is shipped as it is; here its logs are found, to be read into
 * the snapshot. Whoever made the directory may have put there what he likes. */

#define ENTRIES_MAX 65536 /* of a directory that are examined */
static void dump_logs_done(DumpLogs *logs) {
        for (size_t i = 0; i < logs->n; i++)
                free(logs->items[i].path);
        free(logs->items);
        *logs = (DumpLogs){ 0 };
}

/* On a shared file system the ranks of all nodes have one directory: the other nodes' logs are
 * theirs to read. @see the Neuron documentation*/
static bool is_ours(const CollectRequest *request, const char *name) {
        DumpName n;
        dump_name_parse(SOURCE_NEURON_CORE_DUMP, name, &n);
        if (n.kind != MEMBER_NRT_LOG)
                return false;
        return !request->instance_id || !instance_id_is_ec2(request->instance_id) ||
               strcmp(n.instance_id, request->instance_id) == 0;
}

/* @param name  NULL: it stands for the dump, which cannot be examined */
static int add_log(DumpLogs *logs, const CollectDump *dump, const char *name, int error) {
        if (logs->n >= COLLECT_FILES_MAX) {
                logs->n_left_out++;
                return 0;
        }
        if (array_grow(&logs->items, logs->n, sizeof *logs->items) < 0)
                return -ENOMEM;
        char *path = strbuf_format("%s%s%s", dump->path, name ? "/" : "", name ? name : "");
        if (!path)
                return -ENOMEM;
        logs->items[logs->n++] = (DumpLog){ .path = path,
                                            .name = name ? path + strlen(dump->path) + 1 : NULL,
                                            .dump = dump,
                                            .error = error };
        return 0;
}

static int list_logs(const CollectRequest *request, const CollectDump *dump, DumpLogs *logs) {
        _cleanup_closedir_ DIR *d = NULL;
        const struct dirent *e;
        int r = fs_opendir_fd(scan_open_fixed(dump->path), &d);
        if (r == -ENOENT || r == -ENOTDIR) /* its hook is about to make it; a single file */
                return 0;
        if (r < 0)
                return add_log(logs, dump, NULL, r);
        for (size_t i = 0; r == 0 && i < ENTRIES_MAX && (e = readdir(d)); i++)
                if (is_ours(request, e->d_name))
                        r = add_log(logs, dump, e->d_name, 0);
        return r;
}

static int runtime_log_find(const CollectRequest *request, DumpLogs *ret) {
        int r = 0;
        for (size_t i = 0; r == 0 && i < MIN(request->n_dumps, (size_t)COLLECT_DUMPS_MAX); i++)
                r = list_logs(request, &request->dumps[i], ret);
        return r;
}

static int runtime_log_open_found(const DumpLog *log, struct stat *ret_st, const char **ret_why) {
        _cleanup_close_ int dir_fd = scan_open_fixed(log->dump->path);
        _cleanup_close_ int fd = dir_fd < 0 ? dir_fd : fs_open_regular(dir_fd, log->name, ret_st);
        struct stat dir;
        if (fd < 0)
                *ret_why = fd == -EBADF   ? "not a regular file"
                           : fd == -ELOOP ? "a symlink, and none is followed"
                                          : strerror(-fd);
        else if (ret_st->st_uid != log->dump->uid &&
                 (fstat(dir_fd, &dir) < 0 || ret_st->st_uid != dir.st_uid))
                *ret_why = "it belongs neither to who named the dump nor to its directory's owner";
        else if (is_kernel_file(fd))
                *ret_why = "files of the kernel are no logs";
        else
                return TAKE_FD(fd);
        return fd < 0 ? fd : -EPERM;
}

/* The runtime's log files: the tail of each as a raw file, the blocks it writes for support, and
 * its error lines. Everything redacted. */

enum {
        TAIL_BYTES_MAX = 256 << 10,
        BLOCKS_MAX = 4, /* the last of a log: a process that fails in many threads writes as many */
        ERRORS_MAX = 64, /* half of them the first of the tail, half the last */
        LINE_BYTES_MAX = 8 << 10,
        VALUE_BYTES_MAX = 4 << 10,
        RECORD_BYTES_MAX = 256 << 10,
        RAW_NAME_SIZE = 128,
};

typedef struct Log {
        const CollectRequest *request;
        CollectOut *out;
        size_t number; /* in the snapshot, from 0 */
        char *text; /* redacted as a whole before anything is copied from it, so that no cut hides
                       from redact_text() what a value is */
        size_t n;
        uint64_t tail_from; /* offset in the file */
        struct stat st;
} Log;

static void add_span(StrBuf *b, const char *key, NrtSpan s) {
        json_out_text(b, key, s.s, MIN(s.n, (size_t)VALUE_BYTES_MAX));
}

static int emit(const Log *log, StrBuf *b) {
        json_out_end_object(b);
        return collect_emit_fitting(log->out, b);
}

static void start_record(const Log *log, StrBuf *b, const char *about) {
        json_out_object(b, NULL);
        json_out_u64(b, "log", log->number);
        json_out_string(b, "about", about);
}

static bool variable_is_allowed(const CollectRequest *request, const NrtInfoItem *item) {
        char name[256];

        if (item->name.n >= sizeof name)
                return false;
        memcpy(name, item->name.s, item->name.n);
        name[item->name.n] = '\0';
        return environment_is_allowed(request->environment, name);
}

/* What the allow-list leaves out of the records is not in the text either. */
static void mask_variables(const Log *log) {
        NrtInfodump dump;
        NrtInfoItem item;

        for (size_t at = 0; nrt_infodump_find(log->text, log->n, &at, &dump);) {
                bool in_environment = false;
                for (size_t line = 0;
                     nrt_infodump_next(&dump.lines, &line, &in_environment, &item);)
                        if (item.kind == NRT_INFO_ENVIRONMENT &&
                            !variable_is_allowed(log->request, &item))
                                memset(log->text + (item.value.s - log->text), '*', item.value.n);
        }
}

/* From a line's beginning on: half a line could hold a secret without the name that shows it. */
static int read_tail(Log *log, int fd) {
        _cleanup_(strbuf_done) StrBuf clean = STRBUF_INIT;
        _cleanup_free_ char *raw = NULL;
        size_t n, skip = 0;

        if (log->st.st_size > TAIL_BYTES_MAX)
                log->tail_from = (uint64_t)log->st.st_size - TAIL_BYTES_MAX;
        raw = malloc(TAIL_BYTES_MAX);
        if (!raw)
                return -ENOMEM;
        ssize_t got = fs_pread(fd, raw, TAIL_BYTES_MAX, log->tail_from);
        if (got < 0)
                return (int)got;
        n = (size_t)got;
        if (log->tail_from > 0) {
                const char *newline = memchr(raw, '\n', n);
                skip = newline ? (size_t)(newline + 1 - raw) : n;
        }
        redact_text(&clean, raw + skip, n - skip);
        explicit_bzero(raw, n);
        log->tail_from += skip;
        log->n = clean.n;
        log->text = strbuf_detach(&clean);
        if (!log->text)
                return -ENOMEM;
        mask_variables(log);
        return 0;
}

/* @param why  nothing could be read; NULL */
static int emit_file(const Log *log, const char *path, const char *why) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;

        start_record(log, &b, "file");
        json_out_path(&b, "path", path);
        if (why) {
                json_out_null(&b, "bytes");
                json_out_string(&b, "unavailable", why);
        } else {
                json_out_u64(&b, "bytes", (uint64_t)log->st.st_size);
                json_out_u64(&b, "uid", log->st.st_uid);
                json_out_i64(&b, "mtime", log->st.st_mtime);
                json_out_u64(&b, "tail_from", log->tail_from);
        }
        return emit(log, &b);
}

static int write_raw(const Log *log) {
        const CollectOut *out = log->out;
        char name[RAW_NAME_SIZE];

        if (log->n > out->max_bytes - out->used_bytes) {
                log->out->is_cut = true; /* no empty file in its place */
                return 0;
        }
        (void)snprintf(name, sizeof name, "runtime-log-%s%zu.txt",
                       out->raw_prefix ? out->raw_prefix : "", log->number);
        _cleanup_close_ int fd = collect_raw_file(log->out, name);
        if (fd < 0)
                return 0; /* none are wanted; the records stand for themselves */
        int r = collect_write(log->out, fd, log->text, log->n);
        return r == -EFBIG ? 0 : r;
}

static void add_field(StrBuf *b, const NrtInfoItem *item) {
        char name[64];
        size_t n = 0;

        for (size_t i = 0; i < item->name.n && n + 1 < sizeof name; i++)
                name[n++] = item->name.s[i] != '\0' ? item->name.s[i] : '?';
        name[n] = '\0';
        if (item->value.n > 0)
                add_span(b, name, item->value);
}

/* One pass for each kind, as a JSON object cannot be left and entered again. */
static size_t add_items(const Log *log, StrBuf *b, const NrtSpan *block, NrtInfoKind kind) {
        bool in_environment = false;
        size_t at = 0, n_left_out = 0;
        NrtInfoItem item;

        for (size_t n = 0;
             n < NRT_INFODUMP_LINES_MAX && nrt_infodump_next(block, &at, &in_environment, &item);
             n++) {
                if (item.kind != kind || b->n > RECORD_BYTES_MAX)
                        continue;
                if (kind == NRT_INFO_OTHER)
                        add_span(b, NULL, item.value);
                else if (kind == NRT_INFO_FIELD)
                        add_field(b, &item);
                else if (variable_is_allowed(log->request, &item))
                        add_field(b, &item);
                else
                        n_left_out++;
        }
        return n_left_out;
}

static int emit_block(const Log *log, const NrtSpan *block, bool is_whole) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;

        start_record(log, &b, "infodump");
        json_out_bool(&b, "whole", is_whole);
        json_out_object(&b, "fields");
        (void)add_items(log, &b, block, NRT_INFO_FIELD); /* leaves none out */
        json_out_end_object(&b);
        json_out_object(&b, "environment");
        size_t n_left_out = add_items(log, &b, block, NRT_INFO_ENVIRONMENT);
        json_out_end_object(&b);
        json_out_u64(&b, "environment_left_out", n_left_out);
        json_out_array(&b, "other");
        (void)add_items(log, &b, block, NRT_INFO_OTHER); /* leaves none out */
        json_out_end_array(&b);
        return emit(log, &b);
}

static int emit_blocks(const Log *log) {
        NrtInfodump dump;
        size_t n = 0, at = 0;
        int r = 0;

        while (nrt_infodump_find(log->text, log->n, &at, &dump))
                n++;
        at = 0;
        for (size_t i = 0; r == 0 && nrt_infodump_find(log->text, log->n, &at, &dump); i++)
                if (i + BLOCKS_MAX >= n)
                        r = emit_block(log, &dump.lines, dump.is_whole);
        return r;
}

static int emit_error(const Log *log, const NrtLine *l) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;

        start_record(log, &b, "error");
        json_out_text(&b, "time", l->time.s, l->time.n);
        json_out_u64(&b, "pid", l->pid);
        json_out_u64(&b, "tid", l->tid);
        json_out_text(&b, "level", l->level.s, l->level.n);
        add_span(&b, "module", l->module);
        add_span(&b, "function", l->function);
        if (l->device >= 0)
                json_out_i64(&b, "device", l->device);
        if (l->core >= 0)
                json_out_i64(&b, "core", l->core);
        add_span(&b, "message", l->message);
        return emit(log, &b);
}

/* Goes through the error lines; reports those that are among the first or the last. @param n_all
 * how many there are; 0: only counts */
static int walk_errors(const Log *log, size_t n_all, size_t *ret_n) {
        const char *end = log->text + log->n;
        size_t n = 0;
        int r = 0;

        for (const char *line = log->text; r == 0 && line < end;) {
                const char *stop = memchr(line, '\n', (size_t)(end - line));
                size_t size = (size_t)((stop ? stop : end) - line);
                NrtLine l;
                if (nrt_log_parse_line(line, MIN(size, (size_t)LINE_BYTES_MAX), &l) &&
                    nrt_log_is_error(&l)) {
                        if (n_all > 0 && (n < ERRORS_MAX / 2 || n + ERRORS_MAX / 2 >= n_all))
                                r = emit_error(log, &l);
                        n++;
                }
                line += size + 1;
        }
        *ret_n = n;
        return r;
}

static int emit_errors(const Log *log) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        size_t n = 0;
        int r = walk_errors(log, 0, &n);

        if (r < 0 || n == 0)
                return r;
        start_record(log, &b, "errors");
        json_out_u64(&b, "error_lines", n);
        json_out_u64(&b, "shown", MIN(n, (size_t)ERRORS_MAX));
        r = emit(log, &b);
        return r < 0 ? r : walk_errors(log, n, &n);
}

typedef struct Seen { /* the files that were read */
        struct stat *items;
        size_t n;
} Seen;

/* 128 ranks may write one file. */
static bool was_read_before(const Log *log, Seen *seen) {
        for (size_t i = 0; i < seen->n; i++)
                if (seen->items[i].st_dev == log->st.st_dev &&
                    seen->items[i].st_ino == log->st.st_ino)
                        return true;
        seen->items[seen->n++] = log->st;
        return false;
}

/* @param fd  negative: nothing could be opened, why has the reason */
static int collect_log(Log *log, int fd, const char *path, const char *why) {
        int r = fd < 0 ? 0 : read_tail(log, fd);

        if (r < 0)
                why = strerror(-r);
        r = emit_file(log, path, why);
        if (why || r < 0)
                return r;
        r = emit_blocks(log);
        if (r == 0)
                r = emit_errors(log);
        return r < 0 ? r : write_raw(log);
}

static int collect_named(Log *log, const CollectLogFile *f, Seen *seen) {
        const char *why = NULL;
        _cleanup_close_ int fd = runtime_log_open(log->request, f, &log->st, &why);

        return fd >= 0 && was_read_before(log, seen) ? 0 : collect_log(log, fd, f->path, why);
}

static int emit_dump(const Log *log, const DumpLog *f) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;

        start_record(log, &b, "dump");
        json_out_path(&b, "path", f->path);
        json_out_string(&b, "unavailable", strerror(-f->error));
        return emit(log, &b);
}

static int collect_found(Log *log, const DumpLog *f, Seen *seen) {
        const char *why = NULL;

        if (!f->name)
                return emit_dump(log, f);
        _cleanup_close_ int fd = runtime_log_open_found(f, &log->st, &why);
        if (fd == -ENOENT || (fd >= 0 && was_read_before(log, seen)))
                return 0;
        return collect_log(log, fd, f->path, why);
}

static int emit_left_out(const CollectRequest *request, CollectOut *out, size_t n_left_out) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        const Log log = { .request = request, .out = out, .number = COLLECT_FILES_MAX };

        start_record(&log, &b, "dump");
        json_out_u64(&b, "left_out", n_left_out);
        return emit(&log, &b);
}

/* Each may have its share of what is left, so that the last of 128 ranks is reported, too. */
static int collect_dumps(const CollectRequest *request, CollectOut *out, const DumpLogs *logs,
                         Seen *seen) {
        uint64_t max_bytes = out->max_bytes;
        int r = 0;

        for (size_t i = 0; r == 0 && i < logs->n; i++) {
                Log log = { .request = request, .out = out, .number = i };
                uint64_t n_shares = logs->n - i + request->n_log_files;
                out->max_bytes = out->used_bytes + (max_bytes - out->used_bytes) / n_shares;
                r = collect_found(&log, &logs->items[i], seen);
                free(log.text);
        }
        out->max_bytes = max_bytes;
        return r < 0 || logs->n_left_out == 0 ? r : emit_left_out(request, out, logs->n_left_out);
}

int collect_runtime_log(const CollectRequest *request, CollectOut *out) {
        _cleanup_(dump_logs_done) DumpLogs logs = { 0 };
        _cleanup_free_ struct stat *items = calloc(2 * COLLECT_FILES_MAX, sizeof *items);
        Seen seen = { .items = items };
        int r = items ? runtime_log_find(request, &logs) : -ENOMEM;

        if (r == 0 && logs.n == 0 && request->n_log_files == 0) {
                (void)snprintf(out->why, sizeof out->why,
                               "no log of the runtime is known: no dump has one, and no hook named "
                               "a file (NEURON_RT_LOG_LOCATION)");
                return COLLECT_E_NOTHING;
        }
        if (r == 0)
                r = collect_dumps(request, out, &logs, &seen);
        for (size_t i = 0; r == 0 && i < MIN(request->n_log_files, (size_t)COLLECT_FILES_MAX);
             i++) {
                Log log = { .request = request, .out = out, .number = logs.n + i };
                r = collect_named(&log, &request->log_files[i], &seen);
                free(log.text);
        }
        return r;
}
