/* The latest lines of the kernel log that say something about crashes, and which of them are about
 * one process.
 *
 * Users can cause lines, and a line names a process as its user called it: a line is a hint, never
 * evidence. Lines of processes and lines of the hardware share one bounded list, in which neither
 * displaces the other. In a container a process has another pid than in the log, so that a line of
 * the same command and the same moment counts as well. */
#include "agent/node_events/kernel_log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/clock.h"
#include "lib/base/json_out.h"
#include "lib/base/parse.h"

#define NEAR_USEC (10 * USEC_PER_SEC)       /* for a process whose pid is not known */
#define HARDWARE_USEC (5 * USEC_PER_MINUTE) /* before or after the crash */

struct KernelLog {
        KernelLine lines[KERNEL_LOG_LINES_MAX]; /* oldest first */
        size_t n;
};

KernelLog *kernel_log_new(void) {
        return calloc(1, sizeof(KernelLog));
}

KernelLog *kernel_log_free(KernelLog *l) {
        free(l);
        return NULL;
}

/* A watch that starts again reports lines of the last minutes again. */
static bool has_line(const KernelLog *l, const KernelLine *line) {
        for (size_t i = 0; i < l->n; i++)
                if (l->lines[i].seq == line->seq && strcmp(l->lines[i].text, line->text) == 0)
                        return line->seq > 0;
        return false;
}

static bool is_of_process(const KernelLine *line) {
        return strcmp(line->kind, "segfault") == 0 || strcmp(line->kind, "oom") == 0;
}

/* @return the oldest line of the kind (of processes or of the hardware) that has more lines, so
 * that a flood of one kind does not displace the other */
static size_t find_displaced(const KernelLog *l) {
        size_t n_processes = 0, i = 0;
        for (size_t k = 0; k < l->n; k++)
                n_processes += is_of_process(&l->lines[k]);
        const bool has_more_processes = 2 * n_processes > l->n;
        while (is_of_process(&l->lines[i]) != has_more_processes)
                i++;
        return i;
}

void kernel_log_add(KernelLog *l, const KernelLine *line) {
        if (has_line(l, line))
                return;
        if (l->n == KERNEL_LOG_LINES_MAX) {
                size_t i = find_displaced(l);
                memmove(&l->lines[i], &l->lines[i + 1], (--l->n - i) * sizeof *line);
        }
        l->lines[l->n++] = *line;
}

/* ---- what a line says ---- */

/* `command[PID]` in it. @return PID, 0 */
static pid_t pid_behind(const char *text, const char *command) {
        char wanted[COMMAND_SIZE + 1];
        uint64_t pid;
        if (!command[0])
                return 0;
        (void)snprintf(wanted, sizeof wanted, "%s[", command);
        const char *at = strstr(text, wanted);
        if (!at)
                return 0;
        at += strlen(wanted);
        return parse_u64_prefix(&at, text + strlen(text), &pid) && pid <= PID_MAX && *at == ']'
                       ? (pid_t)pid
                       : 0;
}

/* The last `,pid=PID,uid=` of `oom-kill:`, whose cgroups and task are of any spelling. */
static pid_t oom_task(const char *text) {
        const char *found = NULL;
        uint64_t pid;
        for (const char *at = text; (at = strstr(at, ",pid=")); at += 5)
                found = at + 5;
        return found && parse_u64_prefix(&found, text + strlen(text), &pid) && pid <= PID_MAX
                       ? (pid_t)pid
                       : 0;
}

static pid_t pid_of(const KernelLine *line, const char *command) {
        OomKill kill;
        if (strcmp(line->kind, "oom") != 0)
                return pid_behind(line->text, command);
        if (strncmp(line->text, "oom-kill:", 9) == 0)
                return oom_task(line->text);
        return oom_kill_parse(line->text, &kill) &&
                               (!command[0] || strcmp(kill.command, command) == 0)
                       ? kill.pid
                       : 0;
}

static bool is_within(const KernelLine *line, const CrashedProcess *p, uint64_t usec) {
        return line->usec + usec >= p->first_usec && line->usec <= p->last_usec + usec;
}

/* A process in a container has another pid than in the log. */
static bool is_about(const KernelLine *line, const CrashedProcess *p) {
        if (!is_of_process(line))
                return is_within(line, p, HARDWARE_USEC);
        pid_t pid = pid_of(line, p->command);
        return pid > 0 && (pid == p->pid ? is_within(line, p, USEC_PER_HOUR)
                                         : p->command[0] && strcmp(line->kind, "oom") != 0 &&
                                                   is_within(line, p, NEAR_USEC));
}

static void add_line(StrBuf *b, const KernelLine *line) {
        char time[CLOCK_ISO_SIZE];
        json_out_object(b, NULL);
        json_out_string(b, "time", clock_format_iso(time, line->usec));
        json_out_string(b, "text", line->text);
        json_out_string(b, "kind", line->kind);
        json_out_end_object(b);
}

/* @return how many were added */
static size_t add_lines(const KernelLog *l, const CrashedProcess *p, bool of_process, size_t max,
                        pid_t *ret_pid, StrBuf *b) {
        size_t n = 0;
        for (size_t i = 0; i < l->n && n < max; i++) {
                const KernelLine *line = &l->lines[i];
                if (is_of_process(line) != of_process || !is_about(line, p))
                        continue;
                pid_t named = of_process ? pid_of(line, p->command) : 0;
                *ret_pid = named > 0 ? named : *ret_pid;
                add_line(b, line);
                n++;
        }
        return n;
}

pid_t kernel_log_write(const KernelLog *l, const CrashedProcess *p, StrBuf *b) {
        pid_t pid = 0;
        json_out_array(b, "kernel");
        size_t n = add_lines(l, p, true, KERNEL_LOG_LINES_MAX_OF_REPORT, &pid, b);
        (void)add_lines(l, p, false, KERNEL_LOG_LINES_MAX_OF_REPORT - n, &pid, b);
        json_out_end_array(b);
        return pid;
}

/* ---- a process that the OOM killer has killed ---- */

bool oom_kill_parse(const char *text, OomKill *ret) {
        static const char mark[] = "ut of memory: Killed process ";
        const char *at = strstr(text, mark), *end = text + strlen(text), *uid = NULL;
        uint64_t number;
        if (!at || (at != text + 1 && strncmp(text, "Memory cgroup o", 15) != 0))
                return false;
        at += sizeof mark - 1;
        if (!parse_u64_prefix(&at, end, &number) || number == 0 || number > PID_MAX ||
            strncmp(at, " (", 2) != 0)
                return false;
        *ret = (OomKill){ .pid = (pid_t)number };
        const char *name = at + 2, *name_end = strstr(name, ") total-vm:");
        name_end = name_end ? name_end : strrchr(name, ')');
        if (!name_end || (size_t)(name_end - name) >= sizeof ret->command)
                return false;
        memcpy(ret->command, name, (size_t)(name_end - name));
        uid = strstr(name_end, ", UID:");
        if (uid && (uid += 6, parse_u64_prefix(&uid, end, &number)) && number < UINT32_MAX)
                ret->uid = (uid_t)number;
        return true;
}

void kernel_log_find_cgroup(const KernelLog *l, OomKill *kill) {
        for (size_t i = l->n; i > 0 && !kill->cgroup[0]; i--) {
                const char *text = l->lines[i - 1].text, *at = strstr(text, ",task_memcg=");
                const char *end = at ? strstr(at, ",task=") : NULL;
                if (!end || strncmp(text, "oom-kill:", 9) != 0 || oom_task(text) != kill->pid)
                        continue;
                at += strlen(",task_memcg=");
                memcpy(kill->cgroup, at, (size_t)(end - at));
        }
}
