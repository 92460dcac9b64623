/* What becomes of the core of a process that crashes on this node, and what to change so that a
 * source of kind process-core gets it.
 *
 * kernel.core_pattern decides where a core goes: a directory, or a program such as systemd-coredump
 * or apport. RLIMIT_CORE decides how much of it is written. The rules, core_advise(), touch no
 * file; cores_check() reads the pattern and the limits for them. Printing is left to cmd_doctor.c.
 */
#include "cli/doctor/cores.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "collectors/host/device_holders.h"
#include "config/keys.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"

#define SYSTEMD_DIRECTORY "/var/lib/systemd/coredump"
#define APPORT_DIRECTORY "/var/lib/apport/coredump"
#define FILE_BYTES_MAX (64 * KIB)
#define OUR_DIRECTORY "/var/cores" /* that we propose */

/* ---- the pattern ---- */

static CorePlace place_of_program(const char *program) {
        const char *name = path_name(program);
        if (strcmp(name, "false") == 0 || strcmp(name, "true") == 0)
                return CORE_NOWHERE; /* hardening guides advise `|/bin/false` */
        if (strcmp(name, "systemd-coredump") == 0)
                return CORE_BY_SYSTEMD;
        return strcmp(name, "apport") == 0 ? CORE_BY_APPORT : CORE_BY_PROGRAM;
}

static int parse_program(CorePattern *p, const char *text) {
        text += strspn(text, "|@ "); /* `@`: a socket, since Linux 6.16 */
        p->program = strndup(text, strcspn(text, " "));
        if (!p->program)
                return -ENOMEM;
        p->place = place_of_program(p->program);
        p->is_limited = form_find_variable(text, "c");
        p->is_unique = true;
        if (p->place != CORE_BY_SYSTEMD && p->place != CORE_BY_APPORT)
                return 0;
        p->directory = strdup(p->place == CORE_BY_SYSTEMD ? SYSTEMD_DIRECTORY : APPORT_DIRECTORY);
        return p->directory ? 0 : -ENOMEM;
}

static int parse_path(CorePattern *p, const char *text) {
        size_t n = strcspn(text, "%");
        while (text[n] != '/')
                n--; /* the first byte is a slash */
        _cleanup_free_ char *directory = strndup(text, n > 0 ? n : 1);
        p->directory = directory ? path_simplify(directory) : NULL;
        return p->directory ? 0 : -ENOMEM;
}

int core_pattern_parse(CorePattern *ret, const char *text, bool has_pid) {
        _cleanup_free_ char *line = strndup(text, strcspn(text, "\n"));
        CorePattern p = { .place = CORE_IN_WORKING_DIRECTORY, .is_limited = true };
        int r = 0;
        if (!line)
                return -ENOMEM;
        if (line[0] == '|' || line[0] == '@') {
                r = parse_program(&p, line);
        } else {
                p.is_unique = has_pid || form_find_variable(line, "pPiI");
                if ((line[0] == '\0' && !has_pid) || strcmp(line, "/dev/null") == 0)
                        p.place = CORE_NOWHERE;
                else if (line[0] == '/') {
                        p.place = CORE_IN_DIRECTORY;
                        r = parse_path(&p, line);
                }
        }
        if (r < 0)
                core_pattern_done(&p);
        else
                *ret = p;
        return r;
}

void core_pattern_done(CorePattern *p) {
        free(p->directory);
        free(p->program);
        *p = (CorePattern){ 0 };
}

/* ---- limits ---- */

static bool parse_limit(const char *word, uint64_t *ret) {
        if (strcmp(word, "unlimited") != 0)
                return parse_u64(word, ret) == 0;
        *ret = CORE_UNLIMITED;
        return true;
}

bool core_limit_parse(const char *text, CoreLimit *ret) {
        char soft[24], hard[24];
        const char *line = strstr(text, "\nMax core file size ");
        return line && sscanf(line, "\nMax core file size %23s %23s", soft, hard) == 2 &&
               parse_limit(soft, &ret->soft_bytes) && parse_limit(hard, &ret->hard_bytes);
}

static const char *limit_text(uint64_t bytes, char buf[static PARSE_FORMAT_SIZE]) {
        return bytes == CORE_UNLIMITED ? "unlimited" : parse_format_human(buf, bytes);
}

/* ---- advice ---- */

static const CoreSource *find_source(const CoreSetup *f) {
        for (size_t i = 0; f->pattern.directory && i < f->n_sources; i++)
                if (path_is_below(f->pattern.directory, f->sources[i].fixed))
                        return &f->sources[i];
        return NULL;
}

static char *recipe_for(const char *directory, const char *before, const char *after) {
        return strbuf_format("%swrite 'kernel.core_pattern=%s/core.%%e.%%P.%%t' to "
                             "/etc/sysctl.d/99-cores.conf, run `sysctl --system` and `install -d "
                             "-m 1777 %s`%s",
                             before, directory, directory, after);
}

/* @return how to send cores to the directory of the first source, or, without a source, to
 * OUR_DIRECTORY; the caller's */
static char *recipe(const CoreSetup *f) {
        const CoreSource *first = f->n_sources > 0 ? f->sources : NULL;
        if (first && path_is_below(SYSTEMD_DIRECTORY, first->fixed))
                return strbuf_format("install systemd-coredump, whose directory source %s covers",
                                     first->name);
        /* apport.service writes its own pattern at each start */
        const char *before = f->pattern.place == CORE_BY_APPORT ? "disable apport.service, " : "";
        return first ? recipe_for(first->fixed, before, "")
                     : recipe_for(OUR_DIRECTORY, before,
                                  ", and add a source of kind process-core with that path");
}

static const char *const ways[] = {
        [CORE_NOWHERE] = "no core is written",
        [CORE_IN_WORKING_DIRECTORY] =
                ("cores go to the working directory of the process, which may be inside a "
                 "container: no source is sure to find them"),
        [CORE_IN_DIRECTORY] = "the kernel writes cores (of a container: inside the container)",
        [CORE_BY_SYSTEMD] = "systemd-coredump keeps cores (limits: coredump.conf)",
        [CORE_BY_APPORT] = "apport keeps cores (none of containers)",
        [CORE_BY_PROGRAM] = "its program decides where cores go",
};

static void advise_place(const CoreSetup *f, CoreAdvice *ret) {
        const CorePattern *p = &f->pattern;
        const CoreSource *source = find_source(f);
        bool is_well = p->place == CORE_BY_PROGRAM ? f->n_sources > 0
                                                   : source && p->place != CORE_BY_APPORT;
        *ret = (CoreAdvice){ .finding = is_well ? OK : WARNING };
        if (!p->directory)
                ret->detail =
                        strbuf_format("kernel.core_pattern is '%s': %s", f->text, ways[p->place]);
        else
                ret->detail = strbuf_format("kernel.core_pattern is '%s': %s in '%s', which %s%s",
                                            f->text, ways[p->place], p->directory,
                                            source ? "is covered by source "
                                                   : "no source of kind process-core covers",
                                            source ? source->name : "");
        if (is_well)
                return;
        bool is_good_place = p->directory && p->place != CORE_BY_APPORT;
        ret->remedy = is_good_place ? strbuf_format("add a source of kind process-core with path "
                                                    "%s",
                                                    p->directory)
                                    : recipe(f);
}

/* @return whether there is an advice */
static bool advise_directory(const CoreSetup *f, CoreAdvice *ret) {
        const CorePattern *p = &f->pattern;
        if (p->place != CORE_IN_DIRECTORY || (f->is_writable && p->is_unique))
                return false;
        *ret = (CoreAdvice){ .finding = WARNING };
        if (!f->is_writable)
                ret->detail =
                        strbuf_format("'%s' is not a directory that every user may write to, and "
                                      "the kernel creates none: cores are lost",
                                      p->directory);
        else
                ret->detail = strbuf_format("kernel.core_pattern '%s' has no %%P: a core replaces "
                                            "an earlier one",
                                            f->text);
        ret->remedy = p->is_unique ? strbuf_format("run `install -d -m 1777 %s`", p->directory)
                                   : recipe_for(p->directory, "", "");
        return true;
}

/* Names the process with the lowest limit: the rank without a core may be the one that crashes. */
static void advise_processes(const CoreSetup *f, CoreAdvice *ret) {
        const CoreProcess *least = &f->processes[0];
        char soft[PARSE_FORMAT_SIZE], hard[PARSE_FORMAT_SIZE];
        size_t n_unlimited = 0;
        for (size_t i = 0; i < f->n_processes; i++) {
                if (f->processes[i].limit.soft_bytes < least->limit.soft_bytes)
                        least = &f->processes[i];
                n_unlimited += f->processes[i].limit.soft_bytes == CORE_UNLIMITED;
        }
        _cleanup_free_ char *where = strbuf_format(
                "RLIMIT_CORE of %s: unlimited in %zu of %zu",
                f->are_jobs ? "processes that hold a Neuron device" : "services that start jobs",
                n_unlimited, f->n_processes);
        const CoreLimit *limit = &least->limit;
        if (n_unlimited == f->n_processes || !where) {
                ret->detail = TAKE_PTR(where);
                return;
        }
        ret->finding = WARNING;
        ret->detail = strbuf_format(
                "%s; '%s' (pid %d) has %s, at most %s: %s", where, least->name, (int)least->pid,
                limit_text(limit->soft_bytes, soft), limit_text(limit->hard_bytes, hard),
                limit->soft_bytes == 0 ? "no core" : "a larger core is cut or dropped");
        ret->remedy = strbuf_format("set LimitCORE=infinity in the unit that starts jobs, or "
                                    "DefaultLimitCORE=infinity in /etc/systemd/system.conf%s",
                                    limit->hard_bytes == CORE_UNLIMITED
                                            ? ", or run `ulimit -c unlimited` in the job"
                                            : ", and remove `core` from /etc/security/limits.conf");
}

static void advise_limit(const CoreSetup *f, CoreAdvice *ret) {
        *ret = (CoreAdvice){ .finding = OK };
        if (!f->pattern.is_limited)
                ret->detail = strbuf_format("RLIMIT_CORE has no effect: kernel.core_pattern has no "
                                            "%%c, which would pass it to '%s'",
                                            f->pattern.program);
        else if (f->n_processes == 0)
                ret->detail = strdup("RLIMIT_CORE of jobs is not known: this user sees no process "
                                     "that holds a Neuron device, and no service that starts jobs");
        else
                advise_processes(f, ret);
}

size_t core_advise(const CoreSetup *f, CoreAdvice ret[static CORE_ADVICE_MAX]) {
        size_t n = 1;
        advise_place(f, &ret[0]);
        n += advise_directory(f, &ret[n]);
        if (f->pattern.place != CORE_NOWHERE)
                advise_limit(f, &ret[n++]);
        return n;
}

/* ---- what is read ---- */

enum { CORE_PROCESSES_MAX = 64, CORE_SOURCES_MAX = 64 };
typedef struct CoreCheck {
        CoreSetup facts;
        CoreProcess jobs[CORE_PROCESSES_MAX], starters[CORE_PROCESSES_MAX];
        size_t n_jobs, n_starters;
        CoreSource sources[CORE_SOURCES_MAX];
} CoreCheck;

static void add_core_process(const Proc *p, CoreProcess *all, size_t *n) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        if (*n == CORE_PROCESSES_MAX ||
            procfs_read(p, (ProcFile){ "limits", FILE_BYTES_MAX }, &b, NULL) != 0 || !b.text ||
            !core_limit_parse(b.text, &all[*n].limit))
                return;
        all[*n].pid = p->stat.pid;
        snprintf(all[*n].name, sizeof all[*n].name, "%s", p->stat.comm);
        (*n)++;
}

/* Finds the processes that hold a Neuron device, and the services from which jobs inherit their
 * limit. */
static void find_core_processes(const Config *config, CoreCheck *c) {
        static const char *const starters[] = { "slurmd", "containerd", "crio", "sshd" };
        const CollectRequest request = { .proc_root = config->snapshot.proc_root,
                                         .device_directory = config->snapshot.device_directory };
        _cleanup_(procfs_numbers_done) ProcNumbers pids = { 0 };
        if (procfs_list(AT_FDCWD, request.proc_root, PROCFS_PIDS_MAX, &pids) < 0)
                return; /* the advice says that no limit is known */
        for (size_t i = 0; i < pids.n; i++) {
                DeviceHolder job = { 0 };
                Proc p;
                if (procfs_open(&p, request.proc_root, pids.items[i], 0) != 0)
                        continue;
                (void)device_holders_inspect(&request, &p,
                                             &job); /* on error no device is counted */
                if (job.n_devices > 0)
                        add_core_process(&p, c->jobs, &c->n_jobs);
                else if (parse_word(p.stat.comm, starters, ELEMENTSOF(starters)) >= 0)
                        add_core_process(&p, c->starters, &c->n_starters);
                procfs_close(&p);
        }
}

static void find_core_sources(const Config *config, CoreCheck *c) {
        for (size_t i = 0; i < config->n_sources; i++) {
                const ConfigSource *s = &config->sources[i];
                char *fixed =
                        s->kind == CONFIG_PROCESS_CORE && c->facts.n_sources < CORE_SOURCES_MAX
                                ? form_fixed_part(s->path)
                                : NULL;
                if (fixed)
                        c->sources[c->facts.n_sources++] = (CoreSource){ s->name, fixed };
        }
}

static char *kernel_setting(const Config *config, const char *name) {
        _cleanup_free_ char *path =
                strbuf_format("%s/sys/kernel/%s", config->snapshot.proc_root, name);
        char *text = NULL;
        if (!path || fs_read_file(AT_FDCWD, path, FILE_BYTES_MAX, &text, NULL) < 0)
                return NULL;
        text[strcspn(text, "\n")] = '\0';
        return text;
}

static bool is_writable_by_all(const char *directory) {
        struct stat st;
        return directory && stat(directory, &st) == 0 && S_ISDIR(st.st_mode) &&
               (st.st_mode & S_IWOTH);
}

size_t cores_check(const Config *config, CoreAdvice ret[static CORE_ADVICE_MAX]) {
        _cleanup_free_ char *text = kernel_setting(config, "core_pattern"),
                            *has_pid = kernel_setting(config, "core_uses_pid");
        _cleanup_free_ CoreCheck *c = calloc(1, sizeof *c);
        CoreSetup *f = c ? &c->facts : NULL;
        if (!c || !text ||
            core_pattern_parse(&f->pattern, text, has_pid && strcmp(has_pid, "0") != 0) < 0)
                return 0; /* a kernel without cores, or no such root in a test */
        f->text = text;
        find_core_sources(config, c);
        find_core_processes(config, c);
        f->is_writable = is_writable_by_all(f->pattern.directory);
        f->sources = c->sources;
        f->are_jobs = c->n_jobs > 0;
        f->processes = f->are_jobs ? c->jobs : c->starters;
        f->n_processes = f->are_jobs ? c->n_jobs : c->n_starters;
        size_t n = core_advise(f, ret);
        for (size_t i = 0; i < f->n_sources; i++)
                free(c->sources[i].fixed);
        core_pattern_done(&f->pattern);
        return n;
}
