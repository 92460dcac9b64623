/* What of a process lies in its memory: maps, command line and environment.
 *
 * The kernel takes the process's memory lock to read them, so that a process can make its reader
 * wait for ever; process.c reads them after everything else. The environment may hold secrets: only
 * variables that the configuration allows are recorded, redacted, and the copy of it is wiped. */
#include "collectors/host/process_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "collectors/host/elf_notes.h"
#include "collectors/host/job_record.h"
#include "collectors/host/procfs.h"
#include "lib/base/cleanup.h"
#include "lib/base/digest.h"
#include "lib/base/json_out.h"
#include "lib/base/redact.h"
#include "lib/neuron/job.h"

enum {
        MAPS_READ_MAX = 8 << 20, /* searched for libraries */
        CMDLINE_BYTES_MAX = 64 << 10,
        ENVIRON_BYTES_MAX = 1 << 20, /* the kernel allows 128 KiB for one string, and a quarter of
                                        the stack's limit for all */
        ENVIRON_RECORD_MAX = 128 << 10,
        VARIABLES_MAX = 8192,
        VARIABLE_BYTES_MAX = 8 << 10,
        LIBRARIES_MAX = 32,
        LIBRARY_PATH_MAX = 1024,
};

typedef struct MappedLibrary {
        char path[LIBRARY_PATH_MAX];
        ProcMap map; /* its path is no longer valid */
} MappedLibrary;

/* The runtime, its collectives, and the firmware that both load. Source: the Neuron documentation
 */
static bool is_neuron_library(const ProcMap *m) {
        static const char *const names[] = { "libnrt.so", "libnccom.so", "libncfw.so" };
        const char *slash = memrchr(m->path, '/', m->n_path);
        size_t n = slash ? m->n_path - (size_t)(slash + 1 - m->path) : 0;

        for (size_t i = 0; i < ELEMENTSOF(names); i++)
                if (n >= strlen(names[i]) && memcmp(slash + 1, names[i], strlen(names[i])) == 0)
                        return true;
        return false;
}

static void note_library(MappedLibrary *list, size_t *n, const ProcMap *m) {
        if (m->n_path == 0 || m->n_path >= LIBRARY_PATH_MAX || *n == LIBRARIES_MAX ||
            !is_neuron_library(m))
                return;
        for (size_t i = 0; i < *n; i++)
                if (strlen(list[i].path) == m->n_path &&
                    memcmp(list[i].path, m->path, m->n_path) == 0)
                        return;
        memcpy(list[*n].path, m->path, m->n_path);
        list[*n].path[m->n_path] = '\0';
        list[(*n)++].map = *m;
}

/* Opens the file by its path. Reading map_files takes a capability that the collector does not
 * have, so that a file that was replaced has no build id. @see proc_pid_map_files(5) */
static int open_library(const ProcessReport *report, const MappedLibrary *l) {
        _cleanup_close_ int root_fd = procfs_root(report->p);
        struct stat st;

        if (root_fd < 0 || l->map.is_deleted)
                return root_fd < 0 ? root_fd : -ENOENT;
        _cleanup_close_ int fd = procfs_root_open(root_fd, l->path, O_RDONLY, &st);
        if (fd >= 0 && st.st_ino != l->map.inode)
                return -ESTALE;
        return fd < 0 ? fd : TAKE_FD(fd);
}

static void add_library(ProcessReport *report, const MappedLibrary *l) {
        char hex[2 * ELF_BUILD_ID_MAX + 1];
        BuildId id = { .n = 0 };
        _cleanup_close_ int fd = open_library(report, l);
        int r = fd < 0 ? fd : build_id_read(fd, &id);

        json_out_object(&report->b, NULL);
        procfs_add_path(&report->b, "path", l->path);
        json_out_bool(&report->b, "deleted", l->map.is_deleted);
        json_out_u64(&report->b, "inode", l->map.inode);
        if (r < 0)
                process_report_add_missing(&report->b, "build_id", r);
        else
                json_out_string(&report->b, "build_id",
                                id.n ? digest_hex(id.bytes, id.n, hex) : NULL);
        if (fd >= 0)
                json_out_string(&report->b, "read_by", "path");
        json_out_end_object(&report->b);
}

/* @return the number of lines */
static size_t walk_maps(const StrBuf *text, MappedLibrary *libraries, size_t *n_libraries) {
        size_t n_lines = 0;

        for (const char *line = text->text; line && *line != '\0'; n_lines++) {
                size_t n = strcspn(line, "\n");
                ProcMap m;
                if (procfs_parse_map(line, n, &m))
                        note_library(libraries, n_libraries, &m);
                line = line[n] == '\n' ? line + n + 1 : NULL;
        }
        return n_lines;
}

void process_memory_maps(ProcessReport *report) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        _cleanup_free_ MappedLibrary *libraries = calloc(LIBRARIES_MAX, sizeof *libraries);
        size_t n_libraries = 0, n_lines;
        bool is_cut = false;
        int r = libraries ? procfs_read(report->p, (ProcFile){ "maps", MAPS_READ_MAX }, &text,
                                        &is_cut)
                          : -ENOMEM;

        if (r == 0)
                r = procfs_check(report->p) == PROCFS_E_REPLACED ? PROCFS_E_REPLACED : 0;
        process_report_begin(report, "maps");
        if (r != 0) {
                process_report_add_missing(&report->b, "libraries", r);
                process_report_end(report);
                return;
        }
        process_report_write_raw(report, "maps", &text);
        n_lines = walk_maps(&text, libraries, &n_libraries);
        json_out_u64(&report->b, "lines", n_lines);
        json_out_bool(&report->b, "raw_file_cut", is_cut || text.n > PROCESS_RAW_BYTES_MAX);
        json_out_array(&report->b, "libraries");
        for (size_t i = 0; i < n_libraries; i++)
                add_library(report, &libraries[i]);
        json_out_end_array(&report->b);
        process_report_end(report);
}

void process_memory_command(ProcessReport *report) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        bool is_cut = false;
        int r = procfs_read(report->p, (ProcFile){ "cmdline", CMDLINE_BYTES_MAX }, &text, &is_cut);

        process_report_begin(report, "command");
        if (r != 0)
                process_report_add_missing(&report->b, "cmdline", r);
        else {
                json_out_array(&report->b, "cmdline");
                if (text.n > 0)
                        redact_cmdline(&report->b, text.text, text.n);
                json_out_end_array(&report->b);
                json_out_bool(&report->b, "cut", is_cut);
        }
        process_report_end(report);
}

/* @return the number of variables that were left out */
static size_t add_variables(ProcessReport *report, char *const *variables) {
        size_t n_left_out = 0;

        json_out_object(&report->b, "variables");
        for (; *variables; variables++) {
                size_t n_name = strcspn(*variables, "=");
                const char *value = *variables + n_name + 1; /* if there is a `=` */
                char name[256];
                if ((*variables)[n_name] != '=' || n_name == 0 || n_name >= sizeof name ||
                    report->b.n > ENVIRON_RECORD_MAX) {
                        n_left_out++;
                        continue;
                }
                memcpy(name, *variables, n_name);
                name[n_name] = '\0';
                if (environment_is_allowed(report->request->environment, name))
                        redact_member(&report->b, name, value, strnlen(value, VARIABLE_BYTES_MAX));
                else
                        n_left_out++;
        }
        json_out_end_object(&report->b);
        return n_left_out;
}

void process_memory_environment(ProcessReport *report) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        _cleanup_free_ char **variables = NULL;
        bool is_cut = false;
        int r = procfs_read(report->p, (ProcFile){ "environ", ENVIRON_BYTES_MAX }, &text, &is_cut);

        process_report_begin(report, "environment");
        if (r == 0 && text.n > 0)
                variables = procfs_split(text.text, text.n, VARIABLES_MAX);
        if (r != 0)
                process_report_add_missing(&report->b, "variables", r);
        else if (text.n == 0) {
                json_out_null(&report->b, "variables");
                json_out_string(&report->b, "variables_unavailable",
                                procfs_is_zombie(report->p) ? procfs_reason(PROCFS_E_ENDED)
                                                            : "it is empty");
        } else if (!variables)
                process_report_add_missing(&report->b, "variables", -ENOMEM);
        else {
                json_out_u64(&report->b, "left_out", add_variables(report, variables));
                json_out_bool(&report->b, "cut", is_cut);
                json_out_string(&report->b, "note",
                                "as the process was started; later changes are not included");
        }
        if (text.text)
                explicit_bzero(text.text, text.n);
        process_report_end(report);
        if (r != 0 || report->result != 0)
                return;
        process_report_begin(report, "job");
        job_record_add_identity(&report->b, report->p);
        process_report_end(report);
}
