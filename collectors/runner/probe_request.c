/* The request to a supervisor, as JSON in a sealed memfd.
 *
 * A table describes the members; one function writes, one reads, and one frees a request by it.
 * What is read is hostile, because any process of the agent's user may connect to a supervisor:
 * every text, number and list is bounded, and the first fault is reported. Which process may send a
 * request is decided in supervisor.c, what its members mean in the collectors. */
#include "collectors/runner/probe_request.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "collectors/runner/packet.h"
#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"

static const char *const mode_names[] = { [PROBE_SNAPSHOT] = "snapshot",
                                          [PROBE_AFTER] = "after",
                                          [PROBE_WATCH] = "watch",
                                          [PROBE_SALVAGE] = "salvage",
                                          [PROBE_ROOTS] = "roots" };

/* ---- the members ---- */

typedef enum RequestFieldType { TEXT, LIST, NUMBER, PID, PID_OR_NONE, UID, ITEMS } RequestFieldType;

typedef struct RequestField {
        const char *name;
        RequestFieldType type;
        size_t offset;
        size_t max;                        /* bytes of a text; strings of a list; items */
        const char *if_missing;            /* why a request without this text or list is refused */
        bool may_be_null;                  /* NULL is not the same as an empty list */
        size_t n_offset, item_size;        /* items: where their number is */
        const struct RequestField *fields; /* of an item */
} RequestField;

static const char no_roots[] = "the request has no paths of /sys, /dev and /proc";
static const char no_command[] = "a command of the request has no name or no program";
static const char no_log[] = "a log of the request has no path";
static const char no_dump[] = "a dump of the request has no absolute path";

/* clang-format off */
#define FIELD(object, member, field_type, ...) \
        { .name = #member, .type = field_type, .offset = offsetof(object, member), __VA_ARGS__ }
#define REQUEST(member, field_type, ...) FIELD(ProbeRequest, member, field_type, __VA_ARGS__)
#define COLLECT(member, field_type, ...) \
        { .name = #member, .type = field_type, .offset = offsetof(ProbeRequest, collect.member), \
          __VA_ARGS__ }
#define OF(n_member, item_type, item_fields) .n_offset = offsetof(ProbeRequest, n_member), \
        .item_size = sizeof(item_type), .fields = item_fields

static const RequestField process_fields[] = {
        FIELD(CollectProcess, pid, PID),
        FIELD(CollectProcess, start_ticks, NUMBER),
        { .name = NULL },
};
static const RequestField question_fields[] = {
        FIELD(ProbePidQuery, hook_pid, PID),
        FIELD(ProbePidQuery, inner_pid, PID),
        FIELD(ProbePidQuery, ns_inode, NUMBER),
        { .name = NULL },
};
static const RequestField log_file_fields[] = {
        FIELD(CollectLogFile, path, TEXT, .max = PROBE_REQUEST_PATH_MAX, .if_missing = no_log),
        { .name = "uid", .type = UID, .offset = offsetof(CollectLogFile, owner.uid) },
        FIELD(CollectLogFile, pid, PID_OR_NONE),
        FIELD(CollectLogFile, start_ticks, NUMBER),
        FIELD(CollectLogFile, hook_pid, PID_OR_NONE),
        FIELD(CollectLogFile, inner_pid, PID_OR_NONE),
        { .name = NULL },
};
static const RequestField dump_fields[] = {
        FIELD(CollectDump, path, TEXT, .max = PROBE_REQUEST_PATH_MAX, .if_missing = no_dump),
        FIELD(CollectDump, uid, UID),
        { .name = NULL },
};
static const RequestField command_fields[] = {
        FIELD(CollectCommand, name, TEXT, .max = PROBE_REQUEST_NAME_MAX, .if_missing = no_command),
        FIELD(CollectCommand, run, LIST, .max = PROBE_REQUEST_ARGUMENTS_MAX,
              .if_missing = no_command),
        FIELD(CollectCommand, timeout_usec, NUMBER),
        { .name = NULL },
};
static const RequestField request_fields[] = {
        REQUEST(document, TEXT, .max = PROBE_REQUEST_NAME_MAX),
        REQUEST(name, TEXT, .max = PROBE_REQUEST_NAME_MAX),
        REQUEST(trigger, TEXT, .max = PROBE_REQUEST_PATH_MAX),
        REQUEST(instance_id, TEXT, .max = 256),
        REQUEST(collectors, LIST, .max = PROBE_REQUEST_COLLECTORS_MAX, .may_be_null = true),
        REQUEST(interval_usec, NUMBER),
        REQUEST(cgroup, TEXT, .max = PROBE_REQUEST_PATH_MAX),
        COLLECT(sysfs_root, TEXT, .max = PROBE_REQUEST_PATH_MAX, .if_missing = no_roots),
        COLLECT(device_directory, TEXT, .max = PROBE_REQUEST_PATH_MAX, .if_missing = no_roots),
        COLLECT(proc_root, TEXT, .max = PROBE_REQUEST_PATH_MAX, .if_missing = no_roots),
        COLLECT(environment, LIST, .max = PROBE_REQUEST_PATTERNS_MAX),
        COLLECT(timeout_usec, NUMBER),
        COLLECT(max_bytes, NUMBER),
        COLLECT(since_boot_usec, NUMBER),
        COLLECT(processes, ITEMS, .max = COLLECT_PROCESSES_MAX,
                OF(collect.n_processes, CollectProcess, process_fields)),
        REQUEST(questions, ITEMS, .max = COLLECT_PROCESSES_MAX,
                OF(n_questions, ProbePidQuery, question_fields)),
        COLLECT(log_files, ITEMS, .max = COLLECT_FILES_MAX,
                OF(collect.n_log_files, CollectLogFile, log_file_fields)),
        COLLECT(dumps, ITEMS, .max = COLLECT_DUMPS_MAX,
                OF(collect.n_dumps, CollectDump, dump_fields)),
        COLLECT(commands, ITEMS, .max = PROBE_REQUEST_COMMANDS_MAX,
                OF(collect.n_commands, CollectCommand, command_fields)),
        { .name = NULL },
};
/* clang-format on */

static void *member_of(const void *object, const RequestField *f) {
        return (char *)object + f->offset;
}

static size_t *number_of_items(const void *object, const RequestField *f) {
        return (size_t *)(void *)((char *)object + f->n_offset);
}

static void *item_at(const void *object, const RequestField *f, size_t i) {
        return *(char **)member_of(object, f) + i * f->item_size;
}

static void free_members(void *object, const RequestField *fields) {
        for (const RequestField *f = fields; f->name; f++) {
                if (f->type == LIST)
                        strings_free(*(char ***)member_of(object, f));
                if (f->type == ITEMS)
                        for (size_t i = 0; i < *number_of_items(object, f); i++)
                                free_members(item_at(object, f, i), f->fields);
                if (f->type == TEXT || f->type == ITEMS)
                        free(*(void **)member_of(object, f));
        }
}

void probe_request_done(ProbeRequest *o) {
        free_members(o, request_fields);
        *o = (ProbeRequest){ 0 };
}

void probe_request_clear_commands(ProbeRequest *o) {
        for (size_t i = 0; i < o->collect.n_commands; i++)
                free_members(&o->collect.commands[i], command_fields);
        free(TAKE_PTR(o->collect.commands));
        o->collect.n_commands = 0;
}

/* ---- writing ---- */

static void write_members(StrBuf *b, const void *object, const RequestField *fields);

/* Texts may contain any byte, but JSON may not: they are escaped as docs/API.md says for paths. */
static void write_member(StrBuf *b, const void *object, const RequestField *f) {
        const void *member = member_of(object, f);
        char *const *list;

        switch (f->type) {
        case TEXT:
                if (*(char *const *)member)
                        json_out_path(b, f->name, *(char *const *)member);
                break;
        case LIST:
                list = *(char *const *const *)member;
                if (!list && f->may_be_null)
                        break;
                json_out_array(b, f->name);
                for (size_t i = 0; i < f->max && list && list[i]; i++)
                        json_out_path(b, NULL, list[i]);
                json_out_end_array(b);
                break;
        case NUMBER:
                json_out_u64(b, f->name, *(const uint64_t *)member);
                break;
        case PID:
        case PID_OR_NONE:
                json_out_i64(b, f->name, *(const pid_t *)member);
                break;
        case UID:
                json_out_u64(b, f->name, *(const uid_t *)member);
                break;
        case ITEMS:
                json_out_array(b, f->name);
                for (size_t i = 0; i < *number_of_items(object, f); i++) {
                        json_out_object(b, NULL);
                        write_members(b, item_at(object, f, i), f->fields);
                        json_out_end_object(b);
                }
                json_out_end_array(b);
                break;
        }
}

static void write_members(StrBuf *b, const void *object, const RequestField *fields) {
        for (const RequestField *f = fields; f->name; f++)
                write_member(b, object, f);
}

int probe_request_format(const ProbeRequest *o, StrBuf *ret) {
        json_out_object(ret, NULL);
        json_out_string(ret, "mode", mode_names[o->mode]);
        write_members(ret, o, request_fields);
        json_out_end_object(ret);
        return strbuf_error(ret);
}

/* ---- reading ---- */

/* A request that is being read. */
typedef struct RequestReading {
        const char *why; /* of the first fault */
        int r;
} RequestReading;

static void set_error(RequestReading *x, int r, const char *why) {
        if (x->r < 0)
                return;
        x->r = r;
        x->why = why;
}

static char *read_value(RequestReading *x, const json_t *v, size_t max) {
        char *ret = NULL;
        if (!json_is_string(v) || json_string_length(v) != strlen(json_string_value(v)))
                set_error(x, -EINVAL, "a text of the request is not a string");
        else if (json_string_length(v) > 4 * max)
                set_error(x, -EFBIG, "a text of the request is too long");
        else if (path_unescape(json_string_value(v), &ret) < 0)
                set_error(x, -EINVAL, "a text of the request has an invalid escape");
        return ret;
}

static uint64_t read_number(RequestReading *x, const json_t *v) {
        if (!v)
                return 0;
        if (json_is_integer(v) && json_integer_value(v) >= 0)
                return (uint64_t)json_integer_value(v);
        set_error(x, -EINVAL, "a number of the request is not an unsigned integer");
        return 0;
}

static pid_t read_pid(RequestReading *x, const json_t *v, bool may_be_none) {
        uint64_t pid = read_number(x, v);
        if ((pid >= 1 || may_be_none) && pid <= 1 << 22)
                return (pid_t)pid;
        set_error(x, -EINVAL, "a process of the request has no valid pid");
        return 0;
}

static uid_t read_uid(RequestReading *x, const json_t *v) {
        uint64_t uid = read_number(x, v);
        if (!v || uid > UINT32_MAX)
                set_error(x, -EINVAL, "a file of the request has no owner");
        return (uid_t)uid;
}

/* @return the length of an array; 0, with an error noted, if it is no array or too long */
static size_t read_length(RequestReading *x, const json_t *array, size_t max) {
        if (array && !json_is_array(array))
                set_error(x, -EINVAL, "a list of the request is not an array");
        else if (json_array_size(array) > max)
                set_error(x, -EFBIG, "a list of the request is too long");
        return x->r < 0 ? 0 : json_array_size(array);
}

/* @param n  set to 0, with an error noted, when memory is short */
static void *alloc_items(RequestReading *x, size_t *n, size_t size) {
        void *items = calloc(*n + 1, size);
        if (!items) {
                set_error(x, -ENOMEM, "no memory");
                *n = 0;
        }
        return items;
}

static char **read_list(RequestReading *x, const json_t *array, const RequestField *f) {
        size_t n = read_length(x, array, f->max);
        char **list = alloc_items(x, &n, sizeof *list);
        for (size_t i = 0; i < n; i++) {
                list[i] = read_value(x, json_array_get(array, i), PROBE_REQUEST_PATH_MAX);
                if (!list[i])
                        break;
        }
        return list;
}

static void read_members(RequestReading *x, const json_t *o, const RequestField *fields,
                         void *object);

static void read_items(RequestReading *x, const json_t *array, const RequestField *f,
                       void *object) {
        size_t n = read_length(x, array, f->max);
        *(void **)member_of(object, f) = alloc_items(x, &n, f->item_size);
        for (size_t i = 0; i < n; i++) {
                *number_of_items(object, f) = i + 1;
                read_members(x, json_array_get(array, i), f->fields, item_at(object, f, i));
        }
}

static void read_member(RequestReading *x, const json_t *v, const RequestField *f, void *object) {
        void *member = member_of(object, f);

        if (!v && f->if_missing)
                set_error(x, -EINVAL, f->if_missing);
        switch (f->type) {
        case TEXT:
                *(char **)member = v ? read_value(x, v, f->max) : NULL;
                break;
        case LIST:
                *(char ***)member = v || !f->may_be_null ? read_list(x, v, f) : NULL;
                if (f->if_missing && json_array_size(v) == 0)
                        set_error(x, -EINVAL, f->if_missing);
                break;
        case NUMBER:
                *(uint64_t *)member = read_number(x, v);
                break;
        case PID:
        case PID_OR_NONE:
                *(pid_t *)member = read_pid(x, v, f->type == PID_OR_NONE);
                break;
        case UID:
                *(uid_t *)member = read_uid(x, v);
                break;
        case ITEMS:
                read_items(x, v, f, object);
                break;
        }
}

static void read_members(RequestReading *x, const json_t *o, const RequestField *fields,
                         void *object) {
        for (const RequestField *f = fields; f->name; f++)
                read_member(x, json_object_get(o, f->name), f, object);
}

static void read_mode(RequestReading *x, const json_t *v, ProbeMode *ret) {
        int mode = parse_word(json_string_value(v), mode_names, ELEMENTSOF(mode_names));
        if (mode >= 0)
                *ret = (ProbeMode)mode;
        else
                set_error(x, -EINVAL, "the request has no mode");
}

static bool is_file_name(const char *s) {
        return !s || (*s && *s != '.' && strlen(s) < 100 && !strchr(s, '/'));
}

static void read_request(RequestReading *x, const json_t *v, ProbeRequest *o) {
        const CollectRequest *c = &o->collect;
        read_mode(x, json_object_get(v, "mode"), &o->mode);
        read_members(x, v, request_fields, o);
        for (size_t i = 0; i < c->n_dumps; i++)
                if (c->dumps[i].path && c->dumps[i].path[0] != '/')
                        set_error(x, -EINVAL, no_dump);
        if (c->timeout_usec == 0 || c->max_bytes == 0)
                set_error(x, -EINVAL, "the request has no limits of time and bytes");
        if (!is_file_name(o->document))
                set_error(x, -EINVAL, "the document of the request has no valid file name");
}

int probe_request_parse(const void *data, size_t n, ProbeRequest *ret, const char **ret_why) {
        RequestReading x = { 0 };
        ProbeRequest o = { 0 };
        if (n > PROBE_REQUEST_MAX_BYTES) {
                *ret_why = "the request is too large";
                return -EFBIG;
        }
        json_t *v = json_loadb(data, n, JSON_REJECT_DUPLICATES, NULL);
        if (json_is_object(v))
                read_request(&x, v, &o);
        else
                set_error(&x, -EINVAL, "the request is not a JSON object");
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

int probe_request_to_memfd(const ProbeRequest *o) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        int r = probe_request_format(o, &b);
        return r < 0 ? r : probe_request_memfd(b.text, b.n);
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

int probe_request_read(int fd, ProbeRequest *ret, const char **ret_why) {
        _cleanup_free_ char *text = NULL;
        size_t n;
        int r = probe_request_read_fd(fd, PROBE_REQUEST_MAX_BYTES, &text, &n);
        return r < 0 ? r : probe_request_parse(text, n, ret, ret_why);
}

/* ---- to a supervisor ---- */

int probe_request_connect(const char *path) {
        struct sockaddr_un a = { .sun_family = AF_UNIX };
        if (strlen(path) >= sizeof a.sun_path)
                return -ENOENT; /* no socket can have this path */
        strcpy(a.sun_path, path);
        _cleanup_close_ int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return -errno;
        if (connect(fd, (const struct sockaddr *)&a, sizeof a) < 0)
                return errno == ECONNREFUSED || errno == ENOENT ? -ENOENT : -errno;
        return TAKE_FD(fd);
}

int probe_request_send(const ProbeRequest *o, int fd, int dir_fd) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        int r = probe_request_format(o, &b);
        if (r < 0)
                return r;
        if (b.n > PROBE_REQUEST_MAX_BYTES)
                return -EFBIG;
        _cleanup_close_ int order = probe_request_memfd(b.text, b.n);
        if (order < 0)
                return order;
        return packet_send(fd, "order", 5, (const int[]){ order, dir_fd }, dir_fd >= 0 ? 2 : 1);
}
