/* Can each source be read, watched and held? Nothing is written into a source: who watches it would
 * take that for evidence. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>

#include "cli/archive/object_store_s3.h"
#include "cli/doctor/doctor.h"
#include "config/keys.h"
#include "lib/base/fs.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/neuron/names.h"
#include "lib/neuron/scan.h"
#include "lib/neuron/template.h"
#include "uploaders/s3/s3_bucket.h"
#include "uploaders/volume/volume.h"

#define PINS_NAME ".neuron-collectd"
#define TRY_TEMPLATE ".neuron-collectd-doctor-XXXXXX"
#define DIRECTORIES_MAX 2000000
#define LIMIT_BYTES 64
typedef struct SourceCheck {
        Doctor *doctor;
        const ConfigSource *source;
        char *what; /* `source NAME` */
        PathTemplate *template;
        const char *fixed;
        uint64_t n_units, n_unreadable;
        char *unreadable; /* an example */
        uint64_t n_directories;
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

static void check_content(SourceCheck *l) {
        const ConfigSource *c = l->source;
        char units[CLI_COUNT_SIZE], directories[64];
        ScanSource s = { .kind = (SourceKind)c->kind,
                         .template = l->template,
                         .exclude = (const char *const *)c->exclude.items,
                         .instance_id = l->doctor->instance_id,
                         .max_files = c->max_files,
                         .max_bytes = c->max_bytes,
                         .any_links = true,
                         .on_unreadable = on_unreadable };
        int r = scan_source(&s, on_unit, l);
        snprintf(directories, sizeof directories, "%llu %s", (unsigned long long)l->n_unreadable,
                 l->n_unreadable == 1 ? "directory" : "directories");
        if (r == -EINTR)
                return;
        if (r < 0)
                doctor_report(l->doctor, FINDING_FAILED, l->what, NULL,
                              "'%s' cannot be scanned: %s", l->fixed, strerror(-r));
        else if (l->n_unreadable > 0)
                doctor_report(l->doctor, FINDING_FAILED, l->what,
                              "run doctor as the agent's user; the agent needs CAP_DAC_READ_SEARCH "
                              "for other users' files",
                              "this user cannot read %s below '%s', such as '%s'", directories,
                              l->fixed, l->unreadable ? l->unreadable : "?");
        else
                doctor_report(l->doctor, FINDING_OK, l->what, NULL,
                              "'%s' can be read, and holds %s", l->fixed,
                              cli_count(units, l->n_units, "bundle"));
}

/* ---- watching ---- */

/* Directories that the agent would watch: hostile names, so by descriptors, and bounded. */
static void count_directories(SourceCheck *l, int at_fd, const char *name, unsigned depth) {
        int fd = openat(at_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        _cleanup_closedir_ DIR *dir = fd < 0 ? NULL : fdopendir(fd);
        if (!dir && fd >= 0)
                (void)close(fd); /* it was only checked */
        if (!dir || cli_is_interrupted())
                return;
        l->n_directories++;
        for (const struct dirent *e; depth < FS_DEPTH_MAX && (e = readdir(dir));) {
                bool may_be = e->d_type == DT_DIR || e->d_type == DT_UNKNOWN;
                bool is_dots = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
                if (may_be && !is_dots && strcmp(e->d_name, PINS_NAME) != 0 &&
                    l->n_directories < DIRECTORIES_MAX)
                        count_directories(l, dirfd(dir), e->d_name, depth + 1);
        }
}

static void check_watching(SourceCheck *l, int fd) {
        const ConfigSource *c = l->source;
        const char *type = "?";
        char interval[PARSE_FORMAT_SIZE];
        bool is_network = fs_is_network(fd, &type);
        parse_format_time(interval, c->scan_interval_usec);
        if (c->watch == CONFIG_WATCH_SCAN || (c->watch == CONFIG_WATCH_AUTO && is_network)) {
                doctor_report(l->doctor, FINDING_OK, l->what, NULL, "scanned every %s%s%s%s",
                              interval, is_network ? ", since on " : ", as configured",
                              is_network ? type : "",
                              is_network ? " no process is notified of other nodes' writes" : "");
                return;
        }
        if (is_network)
                doctor_report(l->doctor, FINDING_WARNING, l->what,
                              "use `watch: auto`, or rely on scan_interval",
                              "'%s' is on %s, where inotify does not report other nodes' writes",
                              l->fixed, type);
        _cleanup_close_ int inotify = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
        int wd = inotify < 0 ? -1
                             : inotify_add_watch(inotify, l->fixed, IN_CLOSE_WRITE | IN_ONLYDIR);
        if (wd < 0 && errno != ENOSPC) /* the limit has a line of its own */
                doctor_report(l->doctor, FINDING_WARNING, l->what,
                              inotify < 0 ? "raise fs.inotify.max_user_instances with sysctl"
                                          : "the scans have to do",
                              "'%s' cannot be watched: %s", l->fixed, strerror(errno));
        count_directories(l, AT_FDCWD, l->fixed, 0);
}

static int read_limit(const Doctor *d, const char *name, uint64_t *ret) {
        _cleanup_free_ char *path = NULL, *text = NULL;
        if (asprintf(&path, "%s/sys/fs/inotify/%s", d->config->snapshot.proc_root, name) < 0) {
                path = NULL;
                return -ENOMEM;
        }
        int r = fs_read_file(AT_FDCWD, path, LIMIT_BYTES, &text, NULL);
        if (r < 0)
                return r;
        text[strcspn(text, "\n")] = '\0';
        return parse_u64(text, ret);
}

static void report_watches(Doctor *d, uint64_t need) {
        uint64_t limit;
        char remedy[128];
        if (read_limit(d, "max_user_watches", &limit) < 0)
                return; /* not every kernel has inotify; each source has said so */
        if (need <= limit) {
                doctor_report(d, FINDING_OK, "inotify", NULL,
                              "%llu %s to be watched now, %llu are allowed to a user",
                              (unsigned long long)need,
                              need == 1 ? "directory is" : "directories are",
                              (unsigned long long)limit);
                return;
        }
        snprintf(remedy, sizeof remedy, "sysctl fs.inotify.max_user_watches=%llu",
                 (unsigned long long)(2 * need));
        doctor_report(
                d, FINDING_WARNING, "inotify", remedy,
                "%llu directories are to be watched, and only %llu allowed to a user: what is "
                "in the others is found by scans alone",
                (unsigned long long)need, (unsigned long long)limit);
}

/* ---- holding ---- */

/* Mounts count, not devices: a link across a bind mount is EXDEV. */
static bool is_one_mount(int a, int b) {
        struct statx x = { 0 }, y = { 0 };
        if (statx(a, "", AT_EMPTY_PATH, STATX_MNT_ID, &x) < 0 ||
            statx(b, "", AT_EMPTY_PATH, STATX_MNT_ID, &y) < 0)
                return true; /* then nobody can tell */
        return x.stx_mnt_id == y.stx_mnt_id && x.stx_dev_major == y.stx_dev_major &&
               x.stx_dev_minor == y.stx_dev_minor;
}

/* Tries a hard link in a directory of its own. @return 0, -errno */
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
        if (dir >= 0) { /* what cannot be removed is reported by rmdir() */
                (void)unlinkat(dir, "a", 0);
                (void)unlinkat(dir, "b", 0);
        }
        if (rmdir(path) < 0 && r == 0)
                r = -errno;
        return r;
}

/* The directory for the links may be there already, made by somebody else: then the agent refuses
 * it. */
static bool is_squatted(SourceCheck *l, const char *parent) {
        _cleanup_free_ char *path = path_join(parent, PINS_NAME);
        char owner[DOCTOR_USER_SIZE];
        struct stat st;
        uid_t uid = geteuid();
        bool is_known = doctor_agent_uid(l->doctor, &uid);
        if (!path || lstat(path, &st) < 0 || (S_ISDIR(st.st_mode) && st.st_uid == uid))
                return false;
        if (!is_known && S_ISDIR(st.st_mode))
                return false; /* it may well be the agent's */
        doctor_report(
                l->doctor, FINDING_FAILED, l->what, "find out who created it, and remove it",
                "'%s' belongs to %s and not to the agent, which therefore cannot hold sources "
                "there",
                path, doctor_user(st.st_uid, owner));
        return true;
}

static void check_holding(SourceCheck *l, int fd) {
        static const char lost[] = "a file that is removed before it is delivered is then lost";
        _cleanup_free_ char *parent = path_parent(l->fixed);
        _cleanup_close_ int parent_fd =
                parent ? open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
        int r = parent_fd < 0 ? -errno : !is_one_mount(fd, parent_fd) ? -EXDEV : 0;
        if (r == 0 && is_squatted(l, parent))
                return;
        if (r == 0)
                r = try_link(parent);
        if (r == 0) {
                doctor_report(l->doctor, FINDING_OK, l->what, NULL,
                              "hard links that hold its files can be created in '%s'", parent);
                return;
        }
        bool is_possible =
                faccessat(fd, ".", W_OK, AT_EACCESS) == 0 && fpathconf(fd, _PC_LINK_MAX) > 1;
        if (is_possible && !is_squatted(l, l->fixed))
                doctor_report(
                        l->doctor, FINDING_OK, l->what, NULL,
                        "hard links that hold its files can be created in it, though not beside "
                        "it in '%s' (%s)",
                        parent ? parent : "?", r == -EXDEV ? "another mount" : strerror(-r));
        else if (!is_possible)
                doctor_report(
                        l->doctor, FINDING_WARNING, l->what, lost,
                        "this user can make no hard links that hold its files, neither in '%s' "
                        "(%s) nor in it",
                        parent ? parent : "?", r == -EXDEV ? "another mount" : strerror(-r));
}

/* ---- a source ---- */

static void report_no_source(SourceCheck *l, int error) {
        if (error == ENOENT)
                doctor_report(l->doctor, FINDING_WARNING, l->what,
                              "no error if the runtime creates it; else fix its `path`",
                              "'%s' is not there yet", l->fixed);
        else if (error == ELOOP)
                doctor_report(l->doctor, FINDING_FAILED, l->what, "write the path that it leads to",
                              "on the way to '%s' is a symlink of another user, which is not "
                              "followed",
                              l->fixed);
        else
                doctor_report(l->doctor, FINDING_FAILED, l->what,
                              error == EACCES ? "run doctor as the agent's user" : "fix its `path`",
                              "'%s' cannot be opened: %s", l->fixed, strerror(error));
}

static void check_source(SourceCheck *l) {
        char bad;
        if (path_template_new(&l->template, l->source->path, FORM_SOURCE_VARIABLES, &bad) < 0)
                return; /* no memory: the configuration was checked */
        l->fixed = path_template_fixed(l->template);
        _cleanup_close_ int fd = scan_open_fixed(l->fixed);
        if (fd < 0) {
                report_no_source(l, -fd);
                return;
        }
        check_content(l);
        check_watching(l, fd);
        check_holding(l, fd);
}

void doctor_sources(Doctor *d) {
        uint64_t need = 0;
        for (size_t i = 0; i < d->config->n_sources && !cli_is_interrupted(); i++) {
                SourceCheck l = { .doctor = d, .source = &d->config->sources[i] };
                if (asprintf(&l.what, "source %s", l.source->name) < 0)
                        return; /* no memory */
                cli_progress(d->cli, "%s: looking", l.what);
                check_source(&l);
                need += l.n_directories;
                path_template_free(l.template);
                free(l.what);
                free(l.unreadable);
        }
        if (need > 0 && !cli_is_interrupted())
                report_watches(d, need);
}

/* Can each destination be written, and if not, why? */

/* @return the fixed part of a path or prefix, the caller's; NULL */
static char *fixed_part(const char *text) {
        PathTemplate *t;
        char bad;
        if (path_template_new(&t, text, FORM_DESTINATION_VARIABLES, &bad) < 0)
                return NULL;
        char *fixed = strdup(path_template_fixed(t));
        path_template_free(t);
        return fixed;
}

/* ---- a volume ---- */

/* A missing root is made by the agent, not by who calls doctor: it would belong to the wrong user.
 */
static void report_missing_root(Doctor *d, const char *what, const char *root) {
        _cleanup_free_ char *parent = path_parent(root);
        struct stat st;
        if (parent && stat(parent, &st) == 0 && S_ISDIR(st.st_mode))
                doctor_report(d, FINDING_WARNING, what,
                              "if it is on a mount of its own, check that it is mounted",
                              "'%s' does not exist yet; the agent creates it in '%s'", root,
                              parent);
        else
                doctor_report(d, FINDING_FAILED, what, "mount it, or create its parent directory",
                              "neither '%s' nor the directory above it is there", root);
}

static void check_volume(Doctor *d, const ConfigDestination *c, const char *what) {
        _cleanup_free_ char *root = fixed_part(c->path), *error = NULL;
        Volume *volume = NULL;
        if (root && access(root, F_OK) < 0 && errno == ENOENT) {
                report_missing_root(d, what, root);
                return;
        }
        VolumeOptions options = { .root = root,
                                  .min_free_bytes = c->min_free.is_permille ? 0 : c->min_free.bytes,
                                  .min_free_permille =
                                          c->min_free.is_permille ? c->min_free.permille : 0,
                                  .must_exist = true };
        int r = root ? volume_new(&volume, &options) : -ENOMEM;
        if (r == 0)
                r = volume_probe(volume, &error);
        if (r == 0)
                doctor_report(d, FINDING_OK, what, NULL,
                              "'%s' can be written: a probe file was, and was removed", root);
        else
                doctor_report(d, FINDING_FAILED, what, NULL, "%s",
                              error ? error : strerror(r < 0 ? -r : EIO));
        volume_free(volume);
}

/* ---- a bucket ---- */

typedef struct BucketLook {
        Doctor *doctor;
        const char *what;
        S3Session *session;
        bool done;
        bool told_failure;
} BucketLook;

static void on_step(const S3ProbeStep *step, void *userdata) {
        BucketLook *l = userdata;
        Finding finding = step->outcome == 0  ? FINDING_OK
                          : step->is_optional ? FINDING_WARNING
                                              : FINDING_FAILED;
        const char *detail = step->detail && *step->detail ? step->detail : NULL;
        l->told_failure = l->told_failure || finding == FINDING_FAILED;
        if (step->outcome == 0)
                doctor_report(l->doctor, finding, l->what, NULL, "%s%s%s", step->what,
                              detail ? ": " : ": works", detail ? detail : "");
        else
                doctor_report(l->doctor, finding, l->what, NULL, "%s%s%s%s: %s", step->what,
                              step->permission ? " (needs " : "",
                              step->permission ? step->permission : "", step->permission ? ")" : "",
                              detail ? detail : "failed");
}

static void on_done(int outcome, const char *error, void *userdata) {
        BucketLook *l = userdata;
        l->done = true;
        if (outcome != 0 && !l->told_failure)
                doctor_report(l->doctor, FINDING_FAILED, l->what, NULL, "%s",
                              error ? error : "the probe failed");
}

static int probe_bucket(BucketLook *l, const ConfigDestination *c) {
        _cleanup_free_ char *fixed = fixed_part(c->prefix),
                            *prefix = fixed ? s3_key_prefix(fixed) : NULL,
                            *key = prefix ? s3_probe_key(prefix, l->doctor->instance_id) : NULL;
        _cleanup_(s3_probe_freep) S3Probe *probe = NULL;
        if (!key)
                return -ENOMEM;
        int r = s3_probe_new(&probe, s3_session_client(l->session),
                             &(S3ProbeOrder){ .key = key,
                                              .list_prefix = prefix,
                                              .thorough = true,
                                              .on_step = on_step,
                                              .on_done = on_done,
                                              .userdata = l });
        cli_progress(l->doctor->cli, "%s: trying s3://%s", l->what, c->bucket);
        return r < 0 ? r : s3_session_run(l->session, &l->done);
}

static void check_bucket(Doctor *d, const ConfigDestination *c, const char *what) {
        _cleanup_free_ char *fault = NULL;
        _cleanup_(s3_session_freep) S3Session *session = NULL;
        BucketLook l = { .doctor = d, .what = what };
        S3SessionSpec order = { .bucket = c->bucket, .destination = c };
        int r = s3_session_new(&session, &order, &fault);
        l.session = session;
        if (r == 0)
                r = probe_bucket(&l, c);
        if (r < 0 && r != -EINTR)
                doctor_report(d, FINDING_FAILED, what, NULL, "%s", fault ? fault : strerror(-r));
}

/* ---- all of them ---- */

void doctor_destinations(Doctor *d) {
        for (size_t i = 0; i < d->config->n_destinations && !cli_is_interrupted(); i++) {
                const ConfigDestination *c = &d->config->destinations[i];
                _cleanup_free_ char *what = NULL;
                if (d->only && strcmp(d->only, c->name) != 0)
                        continue;
                if (asprintf(&what, "destination %s", c->name) < 0)
                        what = NULL;
                if (c->type == CONFIG_S3)
                        check_bucket(d, c, what ? what : c->name);
                else
                        check_volume(d, c, what ? what : c->name);
        }
}
