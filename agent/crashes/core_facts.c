/* Whose core a file is: which process crashed, when, and in which job and container.
 *
 * A name of systemd-coredump has the process, and its entry in the journal the job; a name of the
 * documented core_pattern has the process. For any other name, and for one whose time contradicts
 * the birth of the file, the first notes of the core are read. All of it is hostile: a user chooses
 * the names of files and commands, and what is in a core. The functions block: they are for a
 * worker. This is the wrapper of sd-journal. */
#include "agent/crashes/core_facts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <systemd/sd-journal.h>

#include "collectors/crash/core/core_notes.h"
#include "collectors/host/job_record.h"
#include "collectors/host/procfs.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/base/redact.h"
#include "lib/neuron/job.h"

#define HEAD_BYTES (64 * KIB) /* of a core: headers, and the notes of its first thread */
#define NAMED_USEC (10 * USEC_PER_MINUTE)
#define VARIABLES_MAX 4096
#define VARIABLE_BYTES_MAX 1024
#define FIELD_BYTES_MAX (64 * KIB) /* of a journal's entry; more is cut */
#define ENTRIES_MAX 64
#define RECORDED_BYTES_MAX (32 * KIB)
#define COREDUMP_MESSAGE "MESSAGE_ID=fc2e22bc6ee647b6b90729ab34a250b1"

void core_facts_done(CoreFacts *f) {
        free(f->job);
        free(f->cgroup);
        *f = (CoreFacts){ 0 };
}

static void set_command(CrashedProcess *p, const char *text, size_t n) {
        n = MIN(strnlen(text, n), sizeof p->command - 1);
        memcpy(p->command, text, n);
        p->command[n] = '\0';
}

static bool set_pid(CrashedProcess *p, const char *text) {
        uint64_t pid;
        if (parse_u64_range(text, 1, PID_MAX, &pid) < 0)
                return false;
        p->pid = (pid_t)pid;
        return true;
}

/* ---- the name ---- */

/* In seconds, and since systemd 246 in microseconds. A number before 2001 is no time: a signal. */
static bool set_time(CrashedProcess *p, const char *text) {
        uint64_t time;
        if (parse_u64_range(text, 1000000000, INT64_MAX, &time) < 0)
                return false;
        p->first_usec = p->last_usec = time < UINT64_C(1) << 40 ? time * USEC_PER_SEC : time;
        return true;
}

/* Cuts the last parts off `core.COMMAND.….PID.TIME`. @return whether it is such a name */
static bool cut_name(char *text, char **parts, size_t n_parts, CrashedProcess *ret) {
        CrashedProcess p = { 0 };
        for (size_t i = 0; i < n_parts; i++) {
                char *dot = strrchr(text, '.');
                if (!dot)
                        return false;
                *dot = '\0';
                parts[i] = dot + 1;
        }
        if (strncmp(text, "core.", 5) != 0 || text[5] == '\0' || !set_time(&p, parts[0]) ||
            !set_pid(&p, parts[1]))
                return false;
        set_command(&p, text + 5, strlen(text + 5));
        *ret = p;
        return true;
}

bool core_name_parse(const char *name, CrashedProcess *ret) {
        char text[256], *parts[4]; /* TIME, PID, BOOT, UID */
        CrashedProcess p;
        if ((size_t)snprintf(text, sizeof text, "%s", name) >= sizeof text)
                return false;
        char *dot = strrchr(text, '.');
        if (dot &&
            (strcmp(dot, ".zst") == 0 || strcmp(dot, ".lz4") == 0 || strcmp(dot, ".xz") == 0))
                *dot = '\0';
        if (!cut_name(text, parts, ELEMENTSOF(parts), &p) || strlen(parts[2]) != 32 ||
            strspn(parts[2], "0123456789abcdef") != 32)
                return false;
        uint64_t uid;
        p.has_uid = parse_u64_range(parts[3], 0, UINT32_MAX - 1, &uid) == 0;
        p.uid = p.has_uid ? (uid_t)uid : 0;
        _cleanup_free_ char *command = NULL;
        if (path_unescape(text + 5, &command) == 0) /* `python3\x2e11` */
                set_command(&p, command, strlen(command));
        *ret = p;
        return true;
}

bool core_pattern_name_parse(const char *name, CrashedProcess *ret) {
        char text[256], *parts[2]; /* TIME, PID */
        return (size_t)snprintf(text, sizeof text, "%s", name) < sizeof text &&
               cut_name(text, parts, ELEMENTSOF(parts), ret);
}

/* ---- the first notes ---- */

/* As CoreRead. */
static ssize_t read_head(void *data, size_t n, uint64_t offset, void *userdata) {
        return offset < HEAD_BYTES
                       ? fs_pread(*(int *)userdata, data, MIN(n, HEAD_BYTES - offset), offset)
                       : 0;
}

bool core_head_read(int fd, CrashedProcess *ret) {
        CoreNotes notes;
        bool is_known = core_notes_read(&notes, read_head, &fd) == 0 && notes.pid > 0 &&
                        notes.pid <= PID_MAX;
        if (is_known) {
                ret->pid = (pid_t)notes.pid;
                set_command(ret, notes.command, sizeof notes.command);
        }
        core_notes_done(&notes);
        return is_known;
}

/* ---- the journal ---- */

static bool is_repeated(char *const *first, char *const *at, size_t n_name) {
        for (; first < at; first++)
                if (strncmp(*first, *at, n_name + 1) == 0) /* with the `=` */
                        return true;
        return false;
}

static void add_environment(StrBuf *b, char *const *variables, char *const *patterns) {
        size_t start = b->n;
        json_out_object(b, "environment");
        for (char *const *v = variables; *v && b->n - start < RECORDED_BYTES_MAX; v++) {
                char name[ENVIRONMENT_NAME_MAX + 1];
                size_t n = strcspn(*v, "=");
                if ((*v)[n] != '=' || n == 0 || n >= sizeof name || is_repeated(variables, v, n))
                        continue;
                memcpy(name, *v, n);
                name[n] = '\0';
                if (environment_is_allowed(patterns, name))
                        redact_member(b, name, *v + n + 1, strnlen(*v + n + 1, VARIABLE_BYTES_MAX));
        }
        json_out_end_object(b);
}

/* systemd-coredump separates variables by newlines. */
static char **split_lines(char *text, size_t *n) {
        for (size_t i = 0; i < *n; i++)
                text[i] = text[i] == '\n' ? '\0' : text[i];
        return procfs_split(text, *n, VARIABLES_MAX);
}

char *core_job_compose(const char *environment, const char *cgroup, char *const *patterns) {
        _cleanup_free_ char *text = strdup(environment ? environment : ""), *place = NULL;
        size_t n = text ? strlen(text) : 0;
        _cleanup_free_ char **variables = text ? split_lines(text, &n) : NULL;
        JobIdentity id = { 0 };
        StrBuf b = STRBUF_INIT;
        bool has_job = variables && job_identity_detect(variables, &id);
        place = cgroup ? strbuf_format("0::%s\n", cgroup) : NULL;
        if (!has_job && !place)
                return NULL;
        json_out_object(&b, NULL);
        if (has_job)
                job_record_add_members(&b, &id);
        if (place)
                job_record_add_container(&b, place, strlen(place));
        if (variables && *variables)
                add_environment(&b, variables, patterns);
        json_out_end_object(&b);
        if (text)
                explicit_bzero(text, n);
        return strbuf_detach(&b);
}

/* @return the field's value, the caller's; NULL */
static char *get_field(sd_journal *j, const char *name) {
        const void *data;
        size_t n, skip = strlen(name) + 1;
        if (sd_journal_get_data(j, name, &data, &n) < 0 || n < skip)
                return NULL;
        return strndup((const char *)data + skip, n - skip);
}

static void close_journal(sd_journal **j) {
        sd_journal_close(*j);
}

/* Any user may write such an entry, but not as this unit. */
static bool is_of_coredump(sd_journal *j) {
        static const char unit[] = "systemd-coredump@";
        _cleanup_free_ char *found = get_field(j, "_SYSTEMD_UNIT");
        return found && strncmp(found, unit, sizeof unit - 1) == 0;
}

/* Goes to the newest entry about this file, in the journal of the process's user, as whom
 * systemd-coredump writes it. @return whether there is one */
static bool find_entry(sd_journal *j, const char *match) {
        if (sd_journal_add_match(j, COREDUMP_MESSAGE, 0) < 0 ||
            sd_journal_add_match(j, match, 0) < 0 || sd_journal_seek_tail(j) < 0)
                return false;
        for (unsigned i = 0; i < ENTRIES_MAX && sd_journal_previous(j) > 0; i++)
                if (is_of_coredump(j))
                        return true;
        return false;
}

/* What cannot be read is not known. */
static void read_journal(const char *path, char *const *patterns, CoreFacts *f) {
        _cleanup_(close_journal) sd_journal *j = NULL;
        _cleanup_free_ char *match = strbuf_format("COREDUMP_FILENAME=%s", path);
        if (!match || sd_journal_open(&j, SD_JOURNAL_LOCAL_ONLY) < 0 ||
            sd_journal_set_data_threshold(j, FIELD_BYTES_MAX) < 0 || !find_entry(j, match))
                return;
        _cleanup_free_ char *environment = get_field(j, "COREDUMP_ENVIRON");
        f->cgroup = get_field(j, "COREDUMP_CGROUP");
        f->job = core_job_compose(environment, f->cgroup, patterns);
        if (environment)
                explicit_bzero(environment, strlen(environment));
}

/* ---- all of it ---- */

/* A large core takes minutes to write. */
static void set_times(int fd, CrashedProcess *p) {
        struct stat st;
        if (p->last_usec > 0 || fstat(fd, &st) < 0)
                return;
        uint64_t born = fs_birth_usec(fd),
                 written = (uint64_t)MAX(st.st_mtim.tv_sec, (time_t)0) * USEC_PER_SEC;
        if (st.st_uid != 0)
                written = MAX(written, born);
        p->first_usec = born > 0 ? MIN(born, written) : written;
        p->last_usec = written;
}

/* A user can choose the name of a file, and when it changed, but not when it was created. A core is
 * created when its process has crashed. */
static bool is_plausible(int fd, const CrashedProcess *p) {
        struct stat st;
        if (fstat(fd, &st) < 0)
                return false;
        uint64_t born = fs_birth_usec(fd);
        return st.st_uid == 0 || born == 0 || p->last_usec == 0 ||
               (p->last_usec <= born + NAMED_USEC && born <= p->last_usec + NAMED_USEC);
}

void core_facts_read(int fd, const char *path, char *const *patterns, CoreFacts *ret) {
        CoreFacts f = { 0 };
        f.is_of_systemd = core_name_parse(path_name(path), &f.process);
        if (f.is_of_systemd)
                read_journal(path, patterns, &f);
        else if (!core_pattern_name_parse(path_name(path), &f.process))
                (void)core_head_read(fd, &f.process); /* else nothing is known */
        if (!is_plausible(fd, &f.process)) {
                f.process = (CrashedProcess){ 0 };
                (void)core_head_read(fd, &f.process); /* as above */
        }
        set_times(fd, &f.process);
        *ret = f;
}
