/* What the kernel's texts of a process say. Pure; @see proc(5). */
#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "collectors/host/procfs.h"
#include "lib/base/cleanup.h"

/* Takes a number at *at, and moves behind it. */
static bool take_number(const char **at, const char *end, unsigned base, uint64_t *ret) {
        const char *start = *at;
        uint64_t value = 0;

        for (; *at < end && isxdigit((unsigned char)**at); (*at)++) {
                unsigned char c = (unsigned char)**at;
                unsigned digit = (unsigned)(isdigit(c) ? c - '0' : tolower(c) - 'a' + 10);
                if (digit >= base)
                        break;
                if (__builtin_mul_overflow(value, base, &value) ||
                    __builtin_add_overflow(value, digit, &value))
                        return false;
        }
        *ret = value;
        return *at > start;
}

static bool take_char(const char **at, const char *end, char c) {
        if (*at >= end || **at != c)
                return false;
        (*at)++;
        return true;
}

/* The fields behind the command's name, by their number in proc(5). */
static bool parse_stat_fields(const char *at, const char *end, ProcStat *s) {
        uint64_t ppid = 0, flags = 0;

        if (!take_char(&at, end, ' ') || at >= end)
                return false;
        s->state = *at++;
        for (unsigned field = 4; field <= 22; field++) {
                uint64_t value;
                bool negative;
                if (!take_char(&at, end, ' '))
                        return false;
                negative = take_char(&at, end, '-');
                if (!take_number(&at, end, 10, &value))
                        return false;
                if (field == 4)
                        ppid = negative ? 0 : value;
                else if (field == 9)
                        flags = value;
                else if (field == 20)
                        s->n_threads = negative ? 0 : value;
                else if (field == 22)
                        s->start_ticks = value;
        }
        if (ppid > INT32_MAX)
                return false;
        s->ppid = (pid_t)ppid;
        s->flags = (uint32_t)flags;
        return true;
}

bool procfs_parse_stat(const char *text, size_t n, ProcStat *ret) {
        const char *at = text, *end = text + n, *open, *close;
        ProcStat s = { 0 };
        uint64_t pid;
        size_t n_comm;

        if (!take_number(&at, end, 10, &pid) || pid > INT32_MAX || !take_char(&at, end, ' ') ||
            !take_char(&at, end, '('))
                return false;
        open = at;
        close = memrchr(at, ')', (size_t)(end - at)); /* the name may hold any, numbers follow it */
        if (!close)
                return false;
        n_comm = MIN((size_t)(close - open), sizeof s.comm - 1);
        memcpy(s.comm, open, n_comm);
        s.pid = (pid_t)pid;
        if (!parse_stat_fields(close + 1, end, &s))
                return false;
        *ret = s;
        return true;
}

static void map_take_path(const char *at, const char *end, ProcMap *m) {
        static const char deleted[] = " (deleted)";
        const size_t n_deleted = sizeof deleted - 1;

        while (at < end && *at == ' ')
                at++;
        m->path = at;
        m->n_path = (size_t)(end - at);
        if (m->n_path > n_deleted && memcmp(end - n_deleted, deleted, n_deleted) == 0) {
                m->n_path -= n_deleted;
                m->is_deleted = true;
        }
}

bool procfs_parse_map(const char *line, size_t n, ProcMap *ret) {
        const char *at = line, *end = line + n;
        uint64_t major, minor;
        ProcMap m = { 0 };

        if (!take_number(&at, end, 16, &m.start) || !take_char(&at, end, '-') ||
            !take_number(&at, end, 16, &m.end) || m.end < m.start || !take_char(&at, end, ' ') ||
            end - at < 4)
                return false;
        memcpy(m.perms, at, 4);
        at += 4;
        for (size_t i = 0; i < 4; i++)
                if (!strchr("rwxsp-", m.perms[i]) || m.perms[i] == '\0')
                        return false;
        if (!take_char(&at, end, ' ') || !take_number(&at, end, 16, &m.offset) ||
            !take_char(&at, end, ' ') || !take_number(&at, end, 16, &major) ||
            !take_char(&at, end, ':') || !take_number(&at, end, 16, &minor) ||
            !take_char(&at, end, ' ') || !take_number(&at, end, 10, &m.inode) ||
            major > UINT32_MAX || minor > UINT32_MAX)
                return false;
        m.major = (unsigned)major;
        m.minor = (unsigned)minor;
        map_take_path(at, end, &m);
        *ret = m;
        return true;
}

const char *procfs_field(const char *text, const char *name, size_t *ret_n) {
        size_t n_name = strlen(name);

        for (const char *line = text; line && *line != '\0';) {
                size_t n = strcspn(line, "\n");
                if (n > n_name && memcmp(line, name, n_name) == 0 && line[n_name] == ':') {
                        const char *at = line + n_name + 1, *end = line + n;
                        while (at < end && (*at == ' ' || *at == '\t'))
                                at++;
                        while (end > at && (end[-1] == ' ' || end[-1] == '\t'))
                                end--;
                        *ret_n = (size_t)(end - at);
                        return at;
                }
                line = line[n] == '\n' ? line + n + 1 : NULL;
        }
        return NULL;
}

char **procfs_split(char *data, size_t n, size_t max) {
        size_t count = 0;
        char **list;

        for (size_t i = 0; i < n; i += strlen(data + i) + 1)
                count++;
        count = MIN(count, max);
        list = calloc(count + 1, sizeof *list);
        if (!list)
                return NULL;
        for (size_t i = 0, k = 0; k < count; i += strlen(data + i) + 1)
                list[k++] = data + i;
        return list;
}

static bool is_hex(const char *s, size_t n) {
        for (size_t i = 0; i < n; i++)
                if (!isxdigit((unsigned char)s[i]))
                        return false;
        return true;
}

static bool starts_with(const char *s, size_t n, const char *prefix) {
        return n >= strlen(prefix) && memcmp(s, prefix, strlen(prefix)) == 0;
}

static void copy_text(char *to, size_t size, const char *s, size_t n) {
        n = MIN(n, size - 1);
        memcpy(to, s, n);
        to[n] = '\0';
}

static bool is_name(const char *s, size_t n) {
        for (size_t i = 0; i < n; i++)
                if (!isalnum((unsigned char)s[i]) && s[i] != '-' && s[i] != '_')
                        return false;
        return n > 0;
}

typedef struct Component { /* of a path */
        const char *s;
        size_t n;
} Component;

/* `<64 hex>`, `docker-<64 hex>.scope`, `crio-conmon-<64 hex>` …; runc without systemd's driver makes one directory of what it is given for that driver,
 * `kubepods-pod<uid>.slice:cri-containerd:<64 hex>` */
static void take_container(ProcContainer *c, Component self, Component parent) {
        const char *s = self.s;
        size_t n = self.n;

        if (n > 6 && memcmp(s + n - 6, ".scope", 6) == 0)
                n -= 6;
        if (n < 64 || !is_hex(s + n - 64, 64))
                return;
        if (n > 64 && (s[n - 65] != '-' || !is_name(s, n - 65)))
                return;
        copy_text(c->container_id, sizeof c->container_id, s + n - 64, 64);
        if (n > 65)
                copy_text(c->runtime, sizeof c->runtime, s, n - 65);
        else if ((parent.n == 6 && memcmp(parent.s, "docker", 6) == 0) ||
                 (is_name(parent.s, parent.n) && parent.s[parent.n] == ':'))
                copy_text(c->runtime, sizeof c->runtime, parent.s, parent.n);
}

/* `pod<uid>` (cgroupfs), `kubepods-burstable-pod<uid with _>.slice` (systemd). */
static void take_pod(ProcContainer *c, const char *s, size_t n) {
        const char *at = NULL;

        if (n > 6 && memcmp(s + n - 6, ".slice", 6) == 0)
                n -= 6;
        if (starts_with(s, n, "pod"))
                at = s + 3;
        else if (starts_with(s, n, "kubepods"))
                for (size_t i = 0; i + 4 < n; i++)
                        if (memcmp(s + i, "-pod", 4) == 0)
                                at = s + i + 4;
        if (!at)
                return;
        n -= (size_t)(at - s);
        if (n != 36 && !(n == 32 && is_hex(at, n)))
                return;
        for (size_t i = 0; i < n; i++)
                if (!isxdigit((unsigned char)at[i]) && at[i] != '-' && at[i] != '_')
                        return;
        copy_text(c->pod_uid, sizeof c->pod_uid, at, n);
        for (char *p = c->pod_uid; *p != '\0'; p++)
                if (*p == '_')
                        *p = '-';
}

static void take_component(ProcContainer *c, Component self, Component parent) {
        const char *s = self.s;
        size_t n = self.n;

        take_pod(c, s, n);
        take_container(c, self, parent);
        if (starts_with(s, n, "job_") && is_name(s + 4, n - 4))
                copy_text(c->slurm_job, sizeof c->slurm_job, s + 4, n - 4);
        else if (starts_with(s, n, "step_") && c->slurm_job[0] != '\0' && is_name(s + 5, n - 5))
                copy_text(c->slurm_step, sizeof c->slurm_step, s + 5, n - 5);
}

bool procfs_parse_cgroup(const char *text, size_t n, ProcContainer *ret) {
        Component parent = { .s = text }, self = { .s = text };

        *ret = (ProcContainer){ 0 };
        for (size_t i = 0; i <= n; i++) {
                if (i < n && text[i] != '/' && text[i] != ':' && text[i] != '\n')
                        continue;
                self.n = (size_t)(text + i - self.s);
                take_component(ret, self, parent);
                parent = (Component){ self.s, i < n && text[i] != '\n' ? self.n : 0 };
                self.s = text + i + 1;
        }
        return ret->container_id[0] != '\0' || ret->pod_uid[0] != '\0' || ret->slurm_job[0] != '\0';
}
