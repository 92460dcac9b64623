#include "collectors/runner/probe_request.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/path.h"

static const char *const mode_names[] = { [PROBE_SNAPSHOT] = "snapshot",
                                          [PROBE_AFTER] = "after",
                                          [PROBE_WATCH] = "watch",
                                          [PROBE_SALVAGE] = "salvage" };

static void free_list(char **list) {
        for (char **s = list; s && *s; s++)
                free(*s);
        free(list);
}

void probe_request_done(ProbeRequest *o) {
        CollectRequest *c = &o->collect;
        free(c->sysfs_root);
        free(c->device_directory);
        free(c->proc_root);
        free_list(c->environment);
        free(c->processes);
        for (size_t i = 0; i < c->n_log_files; i++)
                free(c->log_files[i].path);
        free(c->log_files);
        for (size_t i = 0; i < c->n_dumps; i++)
                free(c->dumps[i].path);
        free(c->dumps);
        for (size_t i = 0; i < c->n_commands; i++) {
                free(c->commands[i].name);
                free_list(c->commands[i].run);
        }
        free(c->commands);
        free_list(o->collectors);
        free(o->document);
        free(o->name);
        free(o->trigger);
        free(o->instance_id);
        free(o->questions);
        *o = (ProbeRequest){ 0 };
}

/* ---- writing ---- */

/* Paths may have any byte, and JSON has text only: they go as docs/API.md spells paths, and come
 * back the same. */
static void write_paths(StrBuf *b, const char *key, char *const *list, size_t n) {
        json_out_array(b, key);
        for (size_t i = 0; i < n && list && list[i]; i++)
                json_out_path(b, NULL, list[i]);
        json_out_end_array(b);
}

static void write_path(StrBuf *b, const char *key, const char *path) {
        if (path)
                json_out_path(b, key, path);
}

static void write_commands(StrBuf *b, const CollectRequest *c) {
        json_out_array(b, "commands");
        for (size_t i = 0; i < c->n_commands; i++) {
                json_out_object(b, NULL);
                write_path(b, "name", c->commands[i].name);
                write_paths(b, "run", c->commands[i].run, PROBE_REQUEST_ARGUMENTS_MAX);
                json_out_u64(b, "timeout_usec", c->commands[i].timeout_usec);
                json_out_end_object(b);
        }
        json_out_end_array(b);
}

static void write_processes(StrBuf *b, const ProbeRequest *o) {
        json_out_array(b, "processes");
        for (size_t i = 0; i < o->collect.n_processes; i++) {
                json_out_object(b, NULL);
                json_out_i64(b, "pid", o->collect.processes[i].pid);
                json_out_u64(b, "start_ticks", o->collect.processes[i].start_ticks);
                json_out_end_object(b);
        }
        json_out_end_array(b);
        json_out_array(b, "questions");
        for (size_t i = 0; i < o->n_questions; i++) {
                json_out_object(b, NULL);
                json_out_i64(b, "hook_pid", o->questions[i].hook_pid);
                json_out_i64(b, "inner_pid", o->questions[i].inner_pid);
                json_out_u64(b, "ns_inode", o->questions[i].ns_inode);
                json_out_end_object(b);
        }
        json_out_end_array(b);
}

static void write_log_files(StrBuf *b, const CollectRequest *c) {
        json_out_array(b, "log_files");
        for (size_t i = 0; i < c->n_log_files; i++) {
                const CollectLogFile *f = &c->log_files[i];
                json_out_object(b, NULL);
                json_out_path(b, "path", f->path);
                json_out_u64(b, "uid", f->uid);
                json_out_u64(b, "pid", (uint64_t)f->pid);
                json_out_u64(b, "start_ticks", f->start_ticks);
                json_out_u64(b, "hook_pid", (uint64_t)f->hook_pid);
                json_out_u64(b, "inner_pid", (uint64_t)f->inner_pid);
                json_out_end_object(b);
        }
        json_out_end_array(b);
}

static void write_dumps(StrBuf *b, const CollectRequest *c) {
        json_out_array(b, "dumps");
        for (size_t i = 0; i < c->n_dumps; i++) {
                json_out_object(b, NULL);
                json_out_path(b, "path", c->dumps[i].path);
                json_out_u64(b, "uid", c->dumps[i].uid);
                json_out_end_object(b);
        }
        json_out_end_array(b);
}

int probe_request_format(const ProbeRequest *o, StrBuf *ret) {
        const CollectRequest *c = &o->collect;
        json_out_object(ret, NULL);
        json_out_string(ret, "mode", mode_names[o->mode]);
        write_path(ret, "document", o->document);
        write_path(ret, "name", o->name);
        write_path(ret, "trigger", o->trigger);
        write_path(ret, "instance_id", o->instance_id);
        if (o->collectors)
                write_paths(ret, "collectors", o->collectors, PROBE_REQUEST_PATTERNS_MAX);
        json_out_u64(ret, "interval_usec", o->interval_usec);
        write_path(ret, "sysfs_root", c->sysfs_root);
        write_path(ret, "device_directory", c->device_directory);
        write_path(ret, "proc_root", c->proc_root);
        write_paths(ret, "environment", c->environment, PROBE_REQUEST_PATTERNS_MAX);
        json_out_u64(ret, "timeout_usec", c->timeout_usec);
        json_out_u64(ret, "max_bytes", c->max_bytes);
        json_out_u64(ret, "since_boot_usec", c->since_boot_usec);
        write_processes(ret, o);
        write_log_files(ret, c);
        write_dumps(ret, c);
        write_commands(ret, c);
        json_out_end_object(ret);
        return strbuf_error(ret);
}

/* ---- reading ---- */

typedef struct Reading {
        const char *why; /* of the first fault */
        int r;
} Reading;

static void set_error(Reading *x, int r, const char *why) {
        if (x->r < 0)
                return;
        x->r = r;
        x->why = why;
}

static char *read_value(Reading *x, const json_t *v, size_t max) {
        char *ret = NULL;
        if (!json_is_string(v) || json_string_length(v) != strlen(json_string_value(v)))
                set_error(x, -EINVAL, "a text of the order is none");
        else if (json_string_length(v) > 4 * max)
                set_error(x, -EFBIG, "a text of the order is too long");
        else if (path_unescape(json_string_value(v), &ret) < 0)
                set_error(x, -EINVAL, "a text of the order has a byte that is none");
        return ret;
}

static char *read_text(Reading *x, const json_t *o, const char *key, size_t max) {
        const json_t *v = json_object_get(o, key);
        return v ? read_value(x, v, max) : NULL;
}

static uint64_t read_number(Reading *x, const json_t *o, const char *key) {
        const json_t *v = json_object_get(o, key);
        if (!v)
                return 0;
        if (json_is_integer(v) && json_integer_value(v) >= 0)
                return (uint64_t)json_integer_value(v);
        set_error(x, -EINVAL, "a number of the order is none");
        return 0;
}

static pid_t read_pid(Reading *x, const json_t *o, const char *key) {
        uint64_t v = read_number(x, o, key);
        if (v >= 1 && v <= 1 << 22)
                return (pid_t)v;
        set_error(x, -EINVAL, "a process of the order has no possible number");
        return 0;
}

/* @return the array's length, 0 when it is none or too long, which is noted */
static size_t read_length(Reading *x, const json_t *array, size_t max) {
        if (array && !json_is_array(array))
                set_error(x, -EINVAL, "a list of the order is none");
        else if (json_array_size(array) > max)
                set_error(x, -EFBIG, "a list of the order is too long");
        return x->r < 0 ? 0 : json_array_size(array);
}

/* @param n  0 afterwards where there is no memory, which is noted */
static void *alloc_items(Reading *x, size_t *n, size_t size) {
        void *items = calloc(*n + 1, size);
        if (!items) {
                set_error(x, -ENOMEM, "no memory");
                *n = 0;
        }
        return items;
}

static uid_t read_uid(Reading *x, const json_t *o) {
        uint64_t uid = read_number(x, o, "uid");
        if (!json_object_get(o, "uid") || uid > UINT32_MAX)
                set_error(x, -EINVAL, "a file of the order is nobody's");
        return (uid_t)uid;
}

static char **read_list(Reading *x, const json_t *array, size_t max, size_t *ret_n) {
        size_t n = read_length(x, array, max);
        char **list = alloc_items(x, &n, sizeof *list);
        for (size_t i = 0; i < n; i++) {
                list[i] = read_value(x, json_array_get(array, i), PROBE_REQUEST_PATH_MAX);
                if (!list[i])
                        break;
        }
        *ret_n = n;
        return list;
}

static void read_processes(Reading *x, const json_t *array, CollectRequest *c) {
        size_t n = read_length(x, array, COLLECT_PROCESSES_MAX);
        c->processes = alloc_items(x, &n, sizeof *c->processes);
        for (size_t i = 0; i < n; i++) {
                const json_t *v = json_array_get(array, i);
                c->processes[i] =
                        (CollectProcess){ read_pid(x, v, "pid"), read_number(x, v, "start_ticks") };
                c->n_processes = i + 1;
        }
}

static void read_questions(Reading *x, const json_t *array, ProbeRequest *o) {
        size_t n = read_length(x, array, COLLECT_PROCESSES_MAX);
        o->questions = alloc_items(x, &n, sizeof *o->questions);
        for (size_t i = 0; i < n; i++) {
                const json_t *v = json_array_get(array, i);
                o->questions[i] =
                        (ProbePidQuery){ read_pid(x, v, "hook_pid"), read_pid(x, v, "inner_pid"),
                                         read_number(x, v, "ns_inode") };
                o->n_questions = i + 1;
        }
}

static void read_commands(Reading *x, const json_t *array, CollectRequest *c) {
        size_t n = read_length(x, array, PROBE_REQUEST_COMMANDS_MAX), n_arguments;
        c->commands = alloc_items(x, &n, sizeof *c->commands);
        for (size_t i = 0; i < n; i++) {
                const json_t *v = json_array_get(array, i);
                c->n_commands = i + 1;
                c->commands[i].name = read_text(x, v, "name", PROBE_REQUEST_NAME_MAX);
                c->commands[i].timeout_usec = read_number(x, v, "timeout_usec");
                c->commands[i].run = read_list(x, json_object_get(v, "run"),
                                               PROBE_REQUEST_ARGUMENTS_MAX, &n_arguments);
                if (!c->commands[i].name || n_arguments == 0)
                        set_error(x, -EINVAL, "a command of the order has no name or no program");
        }
}

/* 0 and nothing: not known. */
static pid_t read_pid_or_none(Reading *x, const json_t *o, const char *key) {
        return read_number(x, o, key) == 0 ? 0 : read_pid(x, o, key);
}

static void read_log_files(Reading *x, const json_t *array, CollectRequest *c) {
        size_t n = read_length(x, array, COLLECT_FILES_MAX);
        c->log_files = alloc_items(x, &n, sizeof *c->log_files);
        for (size_t i = 0; i < n; i++) {
                const json_t *v = json_array_get(array, i);
                c->log_files[i] =
                        (CollectLogFile){ .path = read_text(x, v, "path", PROBE_REQUEST_PATH_MAX),
                                          .uid = read_uid(x, v),
                                          .pid = read_pid_or_none(x, v, "pid"),
                                          .start_ticks = read_number(x, v, "start_ticks"),
                                          .hook_pid = read_pid_or_none(x, v, "hook_pid"),
                                          .inner_pid = read_pid_or_none(x, v, "inner_pid") };
                c->n_log_files = i + 1;
                if (!c->log_files[i].path)
                        set_error(x, -EINVAL, "a log of the order has no path");
        }
}

static void read_dumps(Reading *x, const json_t *array, CollectRequest *c) {
        size_t n = read_length(x, array, COLLECT_DUMPS_MAX);
        c->dumps = alloc_items(x, &n, sizeof *c->dumps);
        for (size_t i = 0; i < n; i++) {
                const json_t *v = json_array_get(array, i);
                c->dumps[i] =
                        (CollectDump){ .path = read_text(x, v, "path", PROBE_REQUEST_PATH_MAX),
                                       .uid = read_uid(x, v) };
                c->n_dumps = i + 1;
                if (!c->dumps[i].path || c->dumps[i].path[0] != '/')
                        set_error(x, -EINVAL, "a dump of the order has no absolute path");
        }
}

static void read_mode(Reading *x, const json_t *v, ProbeMode *ret) {
        for (size_t i = 0; i < ELEMENTSOF(mode_names); i++)
                if (json_is_string(v) && strcmp(json_string_value(v), mode_names[i]) == 0) {
                        *ret = (ProbeMode)i;
                        return;
                }
        set_error(x, -EINVAL, "the order does not say what is wanted");
}

static void read_collectors(Reading *x, const json_t *array, ProbeRequest *o) {
        size_t n;
        if (!array)
                return;
        o->collectors = read_list(x, array, PROBE_REQUEST_COLLECTORS_MAX, &n);
}

static bool is_file_name(const char *s) {
        return !s || (*s && *s != '.' && strlen(s) < 100 && !strchr(s, '/'));
}

static void read_request(Reading *x, const json_t *v, ProbeRequest *o) {
        CollectRequest *c = &o->collect;
        size_t n;
        read_mode(x, json_object_get(v, "mode"), &o->mode);
        o->document = read_text(x, v, "document", PROBE_REQUEST_NAME_MAX);
        o->name = read_text(x, v, "name", PROBE_REQUEST_NAME_MAX);
        o->trigger = read_text(x, v, "trigger", PROBE_REQUEST_PATH_MAX);
        o->instance_id = read_text(x, v, "instance_id", 256);
        read_collectors(x, json_object_get(v, "collectors"), o);
        o->interval_usec = read_number(x, v, "interval_usec");
        c->sysfs_root = read_text(x, v, "sysfs_root", PROBE_REQUEST_PATH_MAX);
        c->device_directory = read_text(x, v, "device_directory", PROBE_REQUEST_PATH_MAX);
        c->proc_root = read_text(x, v, "proc_root", PROBE_REQUEST_PATH_MAX);
        c->environment =
                read_list(x, json_object_get(v, "environment"), PROBE_REQUEST_PATTERNS_MAX, &n);
        c->timeout_usec = read_number(x, v, "timeout_usec");
        c->max_bytes = read_number(x, v, "max_bytes");
        c->since_boot_usec = read_number(x, v, "since_boot_usec");
        read_processes(x, json_object_get(v, "processes"), c);
        read_questions(x, json_object_get(v, "questions"), o);
        read_log_files(x, json_object_get(v, "log_files"), c);
        read_dumps(x, json_object_get(v, "dumps"), c);
        read_commands(x, json_object_get(v, "commands"), c);
        if (x->r == 0 && (!c->sysfs_root || !c->device_directory || !c->proc_root))
                set_error(x, -EINVAL, "the order does not say where /sys, /dev and /proc are");
        if (x->r == 0 && (c->timeout_usec == 0 || c->max_bytes == 0))
                set_error(x, -EINVAL, "the order has no limits");
        if (x->r == 0 && !is_file_name(o->document))
                set_error(x, -EINVAL, "the order's document has no possible name");
}

int probe_request_parse(const void *data, size_t n, ProbeRequest *ret, const char **ret_why) {
        Reading x = { 0 };
        ProbeRequest o = { 0 };
        if (n > PROBE_REQUEST_MAX_BYTES) {
                *ret_why = "the order is too large";
                return -EFBIG;
        }
        json_t *v = json_loadb(data, n, JSON_REJECT_DUPLICATES, NULL);
        if (json_is_object(v))
                read_request(&x, v, &o);
        else
                set_error(&x, -EINVAL, "the order is no JSON object");
        json_decref(v);
        if (x.r < 0) {
                probe_request_done(&o);
                *ret_why = x.why;
                return x.r;
        }
        *ret = o;
        return 0;
}

/* ---- as a file ---- */

int probe_request_memfd(const void *data, size_t n) {
        _cleanup_close_ int fd = memfd_create("neuron-collectd", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (fd < 0)
                return -errno;
        int r = fs_write_all(fd, data, n);
        if (r < 0)
                return r;
        if (lseek(fd, 0, SEEK_SET) < 0 ||
            fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) < 0)
                return -errno;
        return TAKE_FD(fd);
}

int probe_request_read_fd(int fd, size_t max_bytes, char **ret, size_t *ret_n) {
        struct stat st;
        if (fstat(fd, &st) < 0)
                return -errno;
        if (!S_ISREG(st.st_mode))
                return -EBADF;
        if (st.st_size < 0 || (uint64_t)st.st_size > max_bytes)
                return -EFBIG;
        return fs_read_head(fd, max_bytes, ret, ret_n);
}
