/* Checks whether each source can be read, watched, and held by hard links. Nothing is written into
 * a source, because the agent that watches it would take that for evidence: a link is tried in a
 * directory beside it. What a source's files mean is left to lib/neuron. */
#include "cli/doctor/doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/keys.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/neuron/agent_uid.h"
#include "lib/neuron/names.h"
#include "lib/neuron/scan.h"

#define LINKS_NAME ".neuron-collectd"
#define TRY_TEMPLATE ".neuron-collectd-doctor-XXXXXX"
#define SYSCTL_BYTES (64 * KIB)

typedef struct SourceCheck {
        Doctor *d;
        const ConfigSource *source;
        char *what; /* `source NAME` */
        PathTemplate *template;
        const char *fixed;
        uint64_t n_units, n_unreadable;
        char *unreadable;  /* an example */
        ScanUnit left_out; /* counts files that no bundle contains */
} SourceCheck;

/* ---- reading ---- */

static int on_unit(ScanUnit *u, void *userdata) {
        (void)u;
        SourceCheck *l = userdata;
        l->n_units++;
        return cli_is_interrupted() ? -EINTR : 0;
}

static void on_unreadable(const char *relative, void *userdata) {
        SourceCheck *l = userdata;
        l->n_unreadable++;
        if (!l->unreadable)
                l->unreadable = strdup(relative);
}

static void on_left_out(const ScanMember *m, void *userdata) {
        SourceCheck *l = userdata;
        (void)scan_unit_add_skip(&l->left_out, m); /* on error only the example is missing */
}

static void report_left_out(SourceCheck *l) {
        for (int k = 0; k < N_SCAN_SKIPS; k++) {
                _cleanup_free_ char *text = scan_skip_reason((ScanSkip)k, l->left_out.skipped[k],
                                                             l->left_out.skipped_example[k]);
                if (text)
                        doctor_report(l->d, WARNING, l->what, scan_skip_remedy((ScanSkip)k),
                                      "below '%s' are files that no bundle contains: %s", l->fixed,
                                      text);
        }
        scan_unit_done(&l->left_out);
}

/* The agent may read what this user cannot. */
static void report_unreadable(const SourceCheck *l, const char *directories) {
        uint64_t has;
        const char *example = l->unreadable ? l->unreadable : "?";
        if (!doctor_agent_capabilities(l->d, &has))
                doctor_report(
                        l->d, WARNING, l->what,
                        "start the agent, which needs CAP_DAC_READ_SEARCH for other users' files, "
                        "or "
                        "run doctor as root",
                        "this user cannot read %s below '%s', such as '%s'; whether the agent can "
                        "is "
                        "not known while it does not run",
                        directories, l->fixed, example);
        else if (has >> DOCTOR_CAP_DAC_READ_SEARCH & 1)
                doctor_report(
                        l->d, OK, l->what, NULL,
                        "the agent can read '%s'; this user cannot read %s of it, such as '%s'",
                        l->fixed, directories, example);
        else
                doctor_report(
                        l->d, FAILED, l->what,
                        "give the agent CAP_DAC_READ_SEARCH, as the unit that is shipped with it "
                        "has",
                        "neither this user nor, without that capability, the agent can read %s "
                        "below "
                        "'%s', such as '%s'",
                        directories, l->fixed, example);
}

static void check_content(SourceCheck *l) {
        const ConfigSource *c = l->source;
        char units[CLI_COUNT_SIZE], directories[64];
        ScanSource s = { .kind = (SourceKind)c->kind,
                         .template = l->template,
                         .exclude = (const char *const *)c->exclude.items,
                         .instance_id = l->d->instance_id,
                         .max_files = c->max_files,
                         .max_bytes = c->max_bytes,
                         .any_links = true,
                         .on_unreadable = on_unreadable,
                         .on_left_out = on_left_out };
        int r = scan_source(&s, on_unit, l);
        report_left_out(l);
        snprintf(directories, sizeof directories, "%llu %s", (unsigned long long)l->n_unreadable,
                 l->n_unreadable == 1 ? "directory" : "directories");
        if (r == -EINTR)
                return;
        if (r < 0)
                doctor_report(l->d, FAILED, l->what, NULL, "'%s' cannot be scanned: %s", l->fixed,
                              strerror(-r));
        else if (l->n_unreadable > 0)
                report_unreadable(l, directories);
        else
                doctor_report(l->d, OK, l->what, NULL, "'%s' can be read, and holds %s", l->fixed,
                              cli_count(units, l->n_units, "bundle"));
}

/* ---- watching ---- */

static void check_watching(SourceCheck *l, int fd) {
        const ConfigSource *c = l->source;
        const char *type = "?";
        char interval[PARSE_FORMAT_SIZE];
        bool is_network = fs_is_network(fd, &type);
        parse_format_duration(interval, c->scan_interval_usec);
        if (c->watch == CONFIG_WATCH_SCAN || (c->watch == CONFIG_WATCH_AUTO && is_network)) {
                doctor_report(l->d, OK, l->what, NULL, "scanned every %s%s%s%s", interval,
                              is_network ? ", since on " : ", as configured",
                              is_network ? type : "",
                              is_network ? " no process is notified of other nodes' writes" : "");
                return;
        }
        if (is_network)
                doctor_report(l->d, WARNING, l->what, "use `watch: auto`, or rely on scan_interval",
                              "'%s' is on %s, where inotify does not report other nodes' writes",
                              l->fixed, type);
        _cleanup_close_ int inotify = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
        int wd = inotify < 0 ? -1
                             : inotify_add_watch(inotify, l->fixed, IN_CLOSE_WRITE | IN_ONLYDIR);
        if (wd < 0)
                doctor_report(l->d, WARNING, l->what,
                              inotify < 0       ? "raise fs.inotify.max_user_instances with sysctl"
                              : errno == ENOSPC ? "raise fs.inotify.max_user_watches with sysctl"
                                                : "rely on scan_interval",
                              "'%s' cannot be watched: %s", l->fixed, strerror(errno));
}

/* ---- holding ---- */

/* Creates a hard link in a temporary directory, and removes both. @return 0, -errno */
static int try_link(const char *parent) {
        _cleanup_free_ char *path = path_join(parent, TRY_TEMPLATE);
        if (!path)
                return -ENOMEM;
        if (!mkdtemp(path))
                return -errno;
        _cleanup_close_ int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        _cleanup_close_ int file =
                dir < 0 ? -1 : openat(dir, "a", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        int r = file < 0 || linkat(dir, "a", dir, "b", 0) < 0 ? -errno : 0;
        if (dir >= 0) { /* rmdir() fails if one of them stays */
                (void)unlinkat(dir, "a", 0);
                (void)unlinkat(dir, "b", 0);
        }
        if (rmdir(path) < 0 && r == 0)
                r = -errno;
        return r;
}

/* Reports a directory for links that another user has created: the agent refuses it.
 * @return whether it was reported */
static bool is_squatted(SourceCheck *l, const char *parent) {
        _cleanup_free_ char *path = path_join(parent, LINKS_NAME);
        char owner[DOCTOR_USER_NAME_SIZE];
        struct stat st;
        uid_t uid = geteuid();
        bool is_known = doctor_agent_uid(l->d, &uid);
        if (!path || lstat(path, &st) < 0 || (S_ISDIR(st.st_mode) && st.st_uid == uid))
                return false;
        if (!is_known && S_ISDIR(st.st_mode))
                return false; /* it may be the agent's */
        bool is_shared = fs_path_is_network(path);
        if (is_shared && S_ISDIR(st.st_mode) &&
            agent_uid_is_trusted(st.st_uid, uid, l->d->config->agreement.trusted_uids.items))
                return false;
        doctor_report(
                l->d, FAILED, l->what,
                is_shared ? "if the agent of another node runs as that user, add it to "
                            "agreement.trusted_uids; else remove the directory"
                          : "find out who created it, and remove it",
                "'%s' belongs to %s and not to the agent, which therefore cannot hold sources "
                "there",
                path, doctor_user_name(st.st_uid, owner));
        return true;
}

static void check_holding(SourceCheck *l, int fd) {
        static const char lost[] = "a file that is removed before it is delivered is then lost";
        _cleanup_free_ char *parent = path_parent(l->fixed);
        _cleanup_close_ int parent_fd =
                parent ? open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
        int r = parent_fd < 0 ? -errno : !fs_is_same_mount(fd, parent) ? -EXDEV : 0;
        if (r == 0 && is_squatted(l, parent))
                return;
        if (r == 0)
                r = try_link(parent);
        if (r == 0) {
                doctor_report(l->d, OK, l->what, NULL,
                              "hard links that hold its files can be created in '%s'", parent);
                return;
        }
        bool is_possible =
                faccessat(fd, ".", W_OK, AT_EACCESS) == 0 && fpathconf(fd, _PC_LINK_MAX) > 1;
        if (is_possible && !is_squatted(l, l->fixed))
                doctor_report(
                        l->d, OK, l->what, NULL,
                        "hard links that hold its files can be created in the source, but not "
                        "beside it in '%s' (%s)",
                        parent ? parent : "?", r == -EXDEV ? "another mount" : strerror(-r));
        else if (!is_possible)
                doctor_report(
                        l->d, WARNING, l->what, lost,
                        "this user can create hard links that hold its files neither in '%s' (%s) "
                        "nor in the source",
                        parent ? parent : "?", r == -EXDEV ? "another mount" : strerror(-r));
}

/* ---- a source ---- */

static void report_no_source(SourceCheck *l, int error) {
        if (error == ENOENT)
                doctor_report(l->d, WARNING, l->what,
                              "no error if the runtime creates it; else fix its `path`",
                              "'%s' does not exist yet", l->fixed);
        else if (error == ELOOP)
                doctor_report(l->d, FAILED, l->what, "write the path that it leads to",
                              "the path '%s' has a symlink of another user, which is not followed",
                              l->fixed);
        else
                doctor_report(l->d, FAILED, l->what,
                              error == EACCES ? "run doctor as the agent's user" : "fix its `path`",
                              "'%s' cannot be opened: %s", l->fixed, strerror(error));
}

/* Reports what the running agent cannot read: its permissions are not this user's. */
static void check_unseen_by_agent(SourceCheck *l) {
        const json_t *s =
                cli_find(json_object_get(l->d->agent, "sources"), "name", l->source->name);
        if (s && *cli_text(s, "unseen"))
                doctor_report(l->d, FAILED, l->what, NULL,
                              "the running agent cannot read all of it: %s", cli_text(s, "unseen"));
}

static void check_source(Doctor *d, const void *subject) {
        SourceCheck *l = (SourceCheck *)subject; /* this runs in a child, on its own copy */
        (void)d;
        check_unseen_by_agent(l);
        _cleanup_close_ int fd = scan_open_fixed(l->fixed);
        if (fd < 0) {
                report_no_source(l, -fd);
                return;
        }
        _cleanup_free_ char *unsafe = scan_check_root(l->fixed);
        if (unsafe)
                doctor_report(l->d, FAILED, l->what, NULL, "%s", unsafe);
        check_content(l);
        check_watching(l, fd);
        check_holding(l, fd);
}

/* fs.protected_hardlinks=0 lets any user link other users' files, see proc(5). */
static void check_protected_links(Doctor *d) {
        _cleanup_free_ char *path = NULL, *text = NULL;
        if (asprintf(&path, "%s/sys/fs/protected_hardlinks", d->config->snapshot.proc_root) < 0 ||
            fs_read_file(AT_FDCWD, path, SYSCTL_BYTES, &text, NULL) < 0)
                return; /* a kernel without it, or no such root in a test */
        if (text[0] == '0')
                doctor_report(
                        d, WARNING, "hard links", "set fs.protected_hardlinks=1 with sysctl",
                        "fs.protected_hardlinks is 0: any user can link other users' files into a "
                        "source, or link files of a source elsewhere, so that they are not "
                        "collected");
        else
                doctor_report(d, OK, "hard links", NULL, "fs.protected_hardlinks is %.1s", text);
}

void doctor_sources_check(Doctor *d) {
        check_protected_links(d);
        for (size_t i = 0; i < d->config->n_sources && !cli_is_interrupted(); i++) {
                SourceCheck l = { .d = d, .source = &d->config->sources[i] };
                if (asprintf(&l.what, "source %s", l.source->name) < 0)
                        return; /* no memory */
                char bad;
                if (path_template_new(&l.template, l.source->path, FORM_SOURCE_VARIABLES, &bad) ==
                    0) { /* fails only for lack of memory: the configuration was checked */
                        l.fixed = path_template_fixed(l.template);
                        (void)doctor_guarded(d, l.what, l.fixed, check_source, &l);
                        path_template_free(l.template);
                }
                free(l.what);
        }
}
