/* The part of a crash report that a worker makes: it opens the core, reads whose it is and what
 * process it is of, finds the roots where its programs and libraries may be, and has a child of
 * collectors/crash make the report. All of it may block: cores, roots and libraries may lie on file
 * systems that hang.
 *
 * A job that is running belongs to its worker; only others_wait is shared with the loop. Which
 * report is made next, and what becomes of it, is crash_reports.c's. */
#include "agent/crashes/report_job.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/retention/links.h"
#include "collectors/crash/crash.h"
#include "collectors/crash/origin/roots.h"
#include "collectors/runner/probe_request.h"
#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/scan.h"

#define OURSELVES "/proc/self/exe"
#define REPORT_BYTES_MAX ((size_t)(32 * MIB))

/* Searches the member as collectors/crash/report.c writes it. In a string its quotes were escaped.
 */
bool report_job_find_signature(const char *json, char ret[static STORE_SIGNATURE_SIZE]) {
        static const char member[] = "\"signature\":{\"id\":\"";
        const char *at = strstr(json, member);
        at = at ? at + strlen(member) : "";
        size_t n = strspn(at, "0123456789abcdef");
        if (n < 8 || n >= STORE_SIGNATURE_SIZE || at[n] != '"')
                return false;
        memcpy(ret, at, n);
        ret[n] = '\0';
        return true;
}

static int open_below(int dir_fd, const char *path) {
        _cleanup_close_ int dir = dir_fd;
        return dir < 0 ? dir : fs_open_regular(dir, path, NULL);
}

/* Verifies the core by inode and birth time only: its device has another number after a reboot. */
static int open_in_source(const ReportJob *j) {
        struct stat st;
        _cleanup_close_ int fd = open_below(scan_open_fixed(j->spec->fixed),
                                            source_spec_relative(j->spec, j->unit_path));
        if (fd < 0)
                return fd;
        if (fstat(fd, &st) < 0)
                return -errno;
        uint64_t born = fs_birth_usec(fd);
        return st.st_ino != j->unit_ino ||
                               (born > 0 && j->unit_born_usec > 0 && born != j->unit_born_usec)
                       ? -ENOENT
                       : TAKE_FD(fd);
}

/* A link of ours is the same file; else the file in the source is verified. */
static int open_core(const ReportJob *j) {
        if (j->held_fd >= 0)
                return fcntl(j->held_fd, F_DUPFD_CLOEXEC, 3);
        int fd = open_below(links_open(j->spec->link_dirs, j->bundle_id), path_name(j->unit_path));
        return fd >= 0 ? fd : open_in_source(j);
}

void report_job_set_fault(ReportJob *j, char *text) {
        free(j->fault);
        j->fault = text ? text : strdup("the agent is short of memory");
}

void report_job_read(ReportJob *j) {
        j->core_fd = open_core(j);
        if (j->core_fd == -ENOENT)
                report_job_set_fault(j, strdup("its core was removed before the report was made"));
        else if (j->core_fd < 0)
                report_job_set_fault(
                        j, strbuf_format("its core cannot be opened: %s", strerror(-j->core_fd)));
        else
                core_facts_read(j->core_fd, j->unit_path, j->patterns, &j->facts);
}

static int keep_report(ReportJob *j, const CrashReport *report) {
        size_t n_json = strlen(report->json), n_text = strlen(report->text);
        if (n_json > REPORT_BYTES_MAX || n_text > REPORT_BYTES_MAX) {
                report_job_set_fault(j, strdup("it is larger than 32 MiB"));
                return 0;
        }
        if (!report_job_find_signature(report->json, j->signature))
                j->signature[0] = '\0';
        j->json_fd = probe_request_memfd(report->json, n_json);
        j->text_fd = probe_request_memfd(report->text, n_text);
        return j->json_fd < 0 ? j->json_fd : MIN(j->text_fd, 0);
}

/* Finds who the report may read as: the user and group of the core, which the kernel takes from the
 * process, and the groups that this user has on this node. */
static void find_reader(const ReportJob *j, FileReader *ret) {
        struct stat st;
        struct passwd entry, *found = NULL;
        char buffer[4096];
        int n = FILES_GROUPS_MAX;
        *ret = (FileReader){ .uid = j->uid };
        if (j->uid == 0 && j->facts.process.has_uid)
                ret->uid = j->facts.process.uid; /* systemd-coredump writes cores as root */
        if (fstat(j->core_fd, &st) == 0 && st.st_gid != 0)
                ret->groups[ret->n_groups++] = st.st_gid;
        if (getpwuid_r(ret->uid, &entry, buffer, sizeof buffer, &found) == 0 && found &&
            getgrouplist(found->pw_name, ret->n_groups ? st.st_gid : found->pw_gid, ret->groups,
                         &n) > 0)
                ret->n_groups = (size_t)n;
}

void report_job_make(ReportJob *j) {
        CrashReport report = { 0 };
        FileReader reader;
        _cleanup_(roots_done) Roots roots = { .n = 0 };
        int host = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (j->facts.cgroup)
                roots_request_container(&roots, j->probe_socket, j->spec->proc_root,
                                        j->facts.cgroup);
        roots_add(&roots, host, FILE_ROOT_HOST, "host");
        roots_add_layers(&roots, host);
        find_reader(j, &reader);
        int r = crash_report(&(CrashRequest){ .program = OURSELVES,
                                              .core_name = path_name(j->unit_path),
                                              .core_fd = j->core_fd,
                                              .roots = roots.items,
                                              .n_roots = roots.n,
                                              .reader = &reader,
                                              .context = j->context,
                                              .timeout_usec = REPORT_TIMEOUT_USEC,
                                              .others_wait = &j->others_wait,
                                              .slice_usec = j->slice_usec },
                             &report);
        j->slice_is_over = report.slice_is_over;
        if (r == CRASH_E_FAILED)
                report_job_set_fault(j, TAKE_PTR(report.fault));
        else if (r == 0)
                r = keep_report(j, &report);
        if (r < 0)
                report_job_set_fault(j, strbuf_format("%s", strerror(-r)));
        crash_report_done(&report);
}

void report_job_reset(ReportJob *j) {
        j->slice_is_over = false;
        cleanup_closep(&j->core_fd);
        j->core_fd = -1;
        core_facts_done(&j->facts);
        j->facts = (CoreFacts){ 0 };
        free(TAKE_PTR(j->context));
        free(TAKE_PTR(j->fault));
}

void report_job_done(ReportJob *j) {
        int *fds[] = { &j->held_fd, &j->core_fd, &j->json_fd, &j->text_fd };
        for (size_t i = 0; i < ELEMENTSOF(fds); i++)
                cleanup_closep(fds[i]);
        if (j->spec)
                source_spec_unref(j->spec);
        free(j->source);
        free(j->unit_path);
        free(j->context);
        free(j->probe_socket);
        strings_free(j->patterns);
        core_facts_done(&j->facts);
        free(j->fault);
}
