/* neuron-collect doctor: checks every part, and reports remedies for what does not work. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <netdb.h>
#include <pwd.h>
#include <stdarg.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>

#include "agent/peers/bus_keys.h"
#include "cli/archive/object_store.h"
#include "cli/common/cli.h"
#include "cli/common/client.h"
#include "cli/common/guarded.h"
#include "cli/doctor/cores.h"
#include "cli/doctor/volume_users.h"
#include "cli/hook/hook_check.h"
#include "config/config.h"
#include "config/keys.h"
#include "lib/base/fs.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/http/url.h"
#include "lib/neuron/agent_uid.h"
#include "lib/neuron/ids.h"
#include "lib/neuron/names.h"
#include "lib/neuron/record.h"
#include "lib/neuron/scan.h"
#include "uploaders/s3/s3_bucket.h"
#include "uploaders/volume/volume.h"

typedef struct Doctor {
        const Cli *cli;
        const Config *config;       /* NULL until it is read without faults */
        const char *only;           /* --destination; NULL = everything */
        const char *hook_directory; /* --hook-directory */
        char instance_id[INSTANCE_ID_SIZE];
        json_t *agent;    /* its status; NULL = it does not answer */
        bool is_silent;   /* something listens on its socket */
        json_t *findings; /* for --json; NULL: printed at once */
        bool *hangs;      /* by destination: its volume does not answer */
        uint64_t n[N_FINDINGS];
} Doctor;

#define USER_NAME_SIZE 64
#define PASSWD_BYTES 4096
/* ---- printing ---- */

static const char *const words[N_FINDINGS] = { "ok", "warning", "FAILED" };

static json_t *finding_json(const char *word, const char *what, const char *detail,
                            const char *remedy) {
        return json_pack("{s:s, s:o, s:o, s:o}", "state", word, "what", cli_json_string(what),
                         "detail", cli_json_string(detail), "remedy", cli_json_string(remedy));
}

static _printf_(5, 6) void report(Doctor *d, Finding finding, const char *what, const char *remedy,
                                  const char *fmt, ...) {
        va_list ap;
        va_start(ap, fmt);
        _cleanup_free_ char *text = strbuf_vformat(fmt, ap);
        va_end(ap);
        d->n[finding]++;
        if (d->findings) {
                json_t *one = finding_json(words[finding], what, text ? text : "", remedy);
                if (json_array_append_new(d->findings, one) < 0)
                        cli_error("%s", strerror(ENOMEM));
                return;
        }
        cli_progress_end();
        cli_state(d->cli, words[finding], 8);
        cli_line("%s: %s%s%s", what, text ? text : "", remedy ? "; " : "", remedy ? remedy : "");
        (void)fflush(stdout); /* some parts take their time; main() asks how it went */
}

/* ---- checks that access paths ---- */

typedef struct Section {
        Doctor *d;
        void (*check)(Doctor *d, const void *subject);
        const void *subject;
} Section;

/* In the child: its findings go to the parent. */
static void run_section(FILE *out, void *userdata) {
        const Section *s = userdata;
        s->d->findings = json_array();
        s->check(s->d, s->subject);
        (void)json_dumpf(s->d->findings, out, JSON_COMPACT); /* the parent parses it */
}

static bool report_findings(Doctor *d, const char *text) {
        json_auto_t *findings = json_loads(text, 0, NULL);
        size_t i;
        json_t *one;
        json_array_foreach(findings, i, one) {
                const char *remedy = json_string_value(json_object_get(one, "remedy"));
                int finding = parse_word(cli_text(one, "state"), words, N_FINDINGS);
                if (finding >= 0)
                        report(d, (Finding)finding, cli_text(one, "what"), remedy, "%s",
                               cli_text(one, "detail"));
        }
        return json_is_array(findings);
}

/* Runs a check in a child, as access to a mount whose server is away never returns.
 * @param path  the path that it checks @return whether it ended */
static bool check_guarded(Doctor *d, const char *what, const char *path,
                          void (*check)(Doctor *d, const void *subject), const void *subject) {
        _cleanup_free_ char *text = NULL;
        if (cli_is_interrupted())
                return true;
        cli_progress(d->cli, "%s: looking", what);
        int r = guarded_run(run_section, &(Section){ d, check, subject }, &text);
        cli_progress_end();
        if (r == 0 && !report_findings(d, text))
                r = -EPROTO;
        if (r == -ETIMEDOUT)
                report(d, FAILED, what, "check its mount: the server may be away",
                       "'%s' did not answer within 10 s", path);
        else if (r < 0 && r != -EINTR)
                report(d, FAILED, what, NULL, "'%s' cannot be checked: %s", path, strerror(-r));
        return r != -ETIMEDOUT;
}

static const char *user_name(uid_t uid, char buf[static USER_NAME_SIZE]) {
        char space[PASSWD_BYTES];
        struct passwd pw, *found = NULL;
        if (getpwuid_r(uid, &pw, space, sizeof space, &found) == 0 && found)
                snprintf(buf, USER_NAME_SIZE, "'%s'", pw.pw_name);
        else
                snprintf(buf, USER_NAME_SIZE, "uid %u", (unsigned)uid);
        return buf;
}

/* ---- the configuration ---- */

static void report_config_error(Doctor *d, const Diag *fault) {
        char where[32] = "";
        if (fault->line)
                snprintf(where, sizeof where, ":%u", fault->line);
        report(d, FAILED, "configuration", fault->remedy, "%s%s: %s%s%s",
               fault->file ? fault->file : d->cli->config_file, where, fault->key ? fault->key : "",
               fault->key ? ": " : "", fault->fault);
}

static int read_configuration(Doctor *d, Config **ret) {
        const Cli *cli = d->cli;
        Diags diags = { 0 };
        int r = config_load(ret, cli->config_file, environ, &diags);
        for (size_t i = 0; i < diags.n; i++)
                report_config_error(d, &diags.items[i]);
        diag_done(&diags);
        if (r == 0)
                report(d, OK, "configuration", NULL, "'%s' has no faults", cli->config_file);
        return r == 0 ? CLI_YES : CLI_USAGE;
}

static int find_destination(const Doctor *d) {
        _cleanup_(suggest_done) Suggestion near = { .wanted = d->only };
        if (config_find_destination(d->config, d->only))
                return CLI_YES;
        for (size_t i = 0; i < d->config->n_destinations; i++)
                suggest_add(&near, d->config->destinations[i].name);
        return near.name ? cli_usage("doctor", "no destination is called '%s'; did you mean '%s'?",
                                     d->only, near.name)
                         : cli_usage("doctor", "no destination is called '%s'", d->only);
}

/* Who runs what: the caller, the agent, and the agent's own directory. */

#define STATE_FREE_BYTES                                                                           \
        (64 * MIB) /* the database has a few MiB; the rest is space for mistakes                   \
                    */

#define STATE_LEAST_BYTES (4 * MIB) /* the agent does not start, or records nothing new */

#define STATUS_FILE_BYTES (64 * KIB)
/* linux/capability.h, by number: what the unit gives the agent */
enum { CAP_DAC_READ_SEARCH_BIT = 2, CAP_FOWNER_BIT = 3, CAP_LEASE_BIT = 28 };

/* ---- the agent as a process ---- */

static void request_status(Doctor *d) {
        _cleanup_(client_reply_done) ClientReply reply = { 0 };
        const char *socket = d->cli->socket ? d->cli->socket : d->config->api.socket;
        int r = client_request(socket, "GET", "/v1/status", CLIENT_TIMEOUT_MSEC, &reply);
        if (r == 0 && reply.status == 200)
                d->agent = json_incref(reply.json);
        d->is_silent = r != CLIENT_E_NO_AGENT ||
                       (reply.why.error != ENOENT && reply.why.error != ECONNREFUSED);
}

static char *process_path(const Doctor *d, const char *file) {
        uint64_t pid = cli_number(json_object_get(d->agent, "agent"), "pid");
        return pid == 0 ? NULL
                        : strbuf_format("%s/%" PRIu64 "/%s", d->config->snapshot.proc_root, pid,
                                        file);
}

static bool find_agent_uid(const Doctor *d, uid_t *ret) {
        _cleanup_free_ char *path = process_path(d, "");
        struct stat st;
        if (!path || stat(path, &st) < 0)
                return false;
        *ret = st.st_uid;
        return true;
}

/* @return whether they could be read */
static bool agent_capabilities(const Doctor *d, uint64_t *ret) {
        _cleanup_free_ char *path = process_path(d, "status"), *text = NULL;
        if (!path || fs_read_file(AT_FDCWD, path, STATUS_FILE_BYTES, &text, NULL) < 0)
                return false;
        const char *line = strstr(text, "\nCapEff:");
        return line && sscanf(line, "\nCapEff: %" SCNx64, ret) == 1;
}

/* ---- who asks ---- */

static void check_user(Doctor *d) {
        char me[USER_NAME_SIZE], other[USER_NAME_SIZE];
        uid_t uid;
        user_name(geteuid(), me);
        if (!find_agent_uid(d, &uid))
                report(d, OK, "user", NULL,
                       "this is run by %s; what the agent may do, and which credentials it "
                       "finds in its environment, can differ",
                       me);
        else if (uid != geteuid())
                report(d, WARNING, "user", "run it as the agent's user as well",
                       "this is run by %s and the agent by %s: what is permitted to one, and "
                       "which credentials it finds, can differ for the other",
                       me, user_name(uid, other));
        else
                report(d, OK, "user", NULL,
                       "this is run by %s, as the agent is; its environment, and so the "
                       "credentials that it finds there, can differ",
                       me);
}

/* ---- the state directory ---- */

static void check_state(Doctor *d, int fd, const struct stat *st) {
        const char *path = d->config->state_directory, *type;
        char have[PARSE_FORMAT_SIZE], owner[USER_NAME_SIZE];
        struct statvfs fs;
        uid_t uid;
        if (find_agent_uid(d, &uid) && st->st_uid != uid)
                report(d, FAILED, "state directory", "chown it to the agent's user",
                       "'%s' belongs to %s, not to the agent", path, user_name(st->st_uid, owner));
        else if (faccessat(fd, ".", W_OK, AT_EACCESS) < 0)
                report(d, FAILED, "state directory",
                       "run doctor as the agent's user, or chown the directory to it",
                       "'%s' cannot be written by this user: %s", path, strerror(errno));
        else if (fs_is_network(fd, &type))
                report(d, FAILED, "state directory",
                       "set state_directory to one on a disk of this node",
                       "'%s' is on %s, where a database is not safe", path, type);
        else if (fstatvfs(fd, &fs) == 0 && (uint64_t)fs.f_bavail * fs.f_frsize < STATE_FREE_BYTES) {
                uint64_t free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
                report(d, free_bytes < STATE_LEAST_BYTES ? FAILED : WARNING, "state directory",
                       "make room", "'%s' has only %s left", path,
                       parse_format_human(have, free_bytes));
        } else
                report(d, OK, "state directory", NULL,
                       "'%s' can be written, and "
                       "belongs to %s",
                       path, user_name(st->st_uid, owner));
}

static void check_state_directory(Doctor *d, const void *subject) {
        const char *path = subject;
        struct stat st;
        _cleanup_close_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0 && errno == EACCES) /* 0711, or even less: it is nobody's business */
                fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0 && fstat(fd, &st) == 0) {
                check_state(d, fd, &st);
                return;
        }
        int error = errno;
        _cleanup_free_ char *parent = path_parent(path);
        if (error == ENOENT && parent && access(parent, W_OK) == 0)
                report(d, OK, "state directory", NULL,
                       "'%s' does not exist yet; the agent creates it when it starts", path);
        else
                report(d, FAILED, "state directory", "make it, and chown it to the agent's user",
                       "'%s' cannot be used: %s", path, strerror(error));
}

/* ---- how the agent is ---- */

static void check_capabilities(Doctor *d) {
        static const struct {
                int bit;
                const char *name, *what;
        } wanted[] = {
                { CAP_DAC_READ_SEARCH_BIT, "CAP_DAC_READ_SEARCH", "read other users' files" },
                { CAP_FOWNER_BIT, "CAP_FOWNER", "hold other users' files by links" },
                { CAP_LEASE_BIT, "CAP_LEASE", "detect whether a file is still being written" },
        };
        uint64_t has;
        if (!agent_capabilities(d, &has))
                return;
        for (size_t i = 0; i < ELEMENTSOF(wanted); i++)
                if (!(has >> wanted[i].bit & 1))
                        report(d, WARNING, "agent",
                               "give it the capabilities of the unit that is shipped with it",
                               "it has no %s, and so cannot %s", wanted[i].name, wanted[i].what);
}

static void check_destination_states(Doctor *d) {
        size_t i;
        json_t *one;
        json_array_foreach(json_object_get(d->agent, "destinations"), i, one) {
                const char *name = cli_text(one, "name"), *state = cli_text(one, "state"),
                           *error = cli_text(one, "last_error");
                if (strcmp(state, "ok") == 0 || (d->only && strcmp(d->only, name) != 0))
                        continue;
                report(d, FAILED, "agent", NULL, "its destination %s is %s%s%s", name, state,
                       *error ? ": " : "", error);
        }
}

static bool is_same_file(const char *a, const char *b) {
        struct stat x, y;
        return strcmp(a, b) == 0 || (stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev &&
                                     x.st_ino == y.st_ino);
}

static void check_running_agent(Doctor *d) {
        const json_t *agent = json_object_get(d->agent, "agent"),
                     *config = json_object_get(d->agent, "config");
        const char *error = cli_text(config, "last_error"), *file = cli_text(config, "file"),
                   *note = cli_text(d->agent, "ready_note"),
                   *pending = cli_text(config, "pending_restart");
        char moment[CLI_MOMENT_SIZE];
        bool ready = cli_is_true(d->agent, "ready");
        report(d, ready ? OK : FAILED, "agent", NULL,
               "neuron-collectd %s is %s since %s, and can%s deliver%s%s",
               cli_text(agent, "version"), cli_text(agent, "state"),
               cli_moment(moment, cli_text(agent, "started")), ready ? "" : "not",
               *note ? ": " : "", note);
        for (size_t n; *error; error += n + (error[n] == '\n')) { /* a line a fault */
                n = strcspn(error, "\n");
                report(d, WARNING, "agent", "fix the file, then reload it",
                       "its last reload failed, and the previous configuration is in force: %.*s",
                       (int)n, error);
        }
        if (*pending)
                report(d, WARNING, "agent", "restart it", "it must be restarted for %s", pending);
        if (d->config->file && !is_same_file(file, d->config->file))
                report(d, WARNING, "agent", "name its own with --config",
                       "it uses another configuration than was checked here: '%s'",
                       *file ? file : "built in");
        check_capabilities(d);
        check_destination_states(d);
}

static void check_agent(Doctor *d) {
        const char *socket = d->cli->socket ? d->cli->socket : d->config->api.socket;
        if (d->agent) {
                check_running_agent(d);
                return;
        }
        bool is_denied = access(socket, F_OK) == 0 && access(socket, W_OK) < 0 && errno == EACCES;
        if (!is_denied && d->is_silent) {
                report(d, FAILED, "agent", "it hangs or is overloaded: see its log",
                       "there is no response from neuron-collectd on '%s'", socket);
                return;
        }
        report(d, WARNING, "agent",
               is_denied ? "join group neuron-collectd, or use sudo"
                         : "start neuron-collectd, or give its socket with --socket",
               is_denied ? "permission denied on '%s'"
                         : "neuron-collectd is not running (socket '%s')",
               socket);
}

/* The hook, and what a snapshot needs. */

#define VERSION_BYTES 256

/* ---- what a snapshot needs ---- */

/* @return the driver's version as text, the caller's; NULL: no driver is loaded */
static char *driver_version(const Doctor *d) {
        _cleanup_free_ char *path =
                path_join(d->config->snapshot.sysfs_root, "module/neuron/version");
        char *text = NULL;
        if (!path || fs_read_file(AT_FDCWD, path, VERSION_BYTES, &text, NULL) < 0)
                return NULL;
        text[strcspn(text, "\n")] = '\0';
        return text;
}

static void check_snapshots(Doctor *d) {
        _cleanup_free_ char *version = driver_version(d);
        if (!d->config->snapshot.enabled)
                report(d, WARNING, "snapshot", "set snapshot.enabled: true",
                       "is switched off: nothing is recorded of the hardware when a job "
                       "fails");
        else
                report(d, OK, "snapshot", NULL, "%s%s",
                       version ? "the Neuron driver is " : "no Neuron driver is loaded here",
                       version ? version : "");
}

/* Connects to nobody: a socket of another type is refused with EPROTOTYPE, and one that nobody has
 * any more with ECONNREFUSED. */
static bool is_stale(const char *path) {
        _cleanup_close_ int fd = fs_connect_socket(path, SOCK_STREAM);
        return fd == -ECONNREFUSED;
}

/* The agent's own user may not read devices and other users' processes; a separate unit may. */
static void check_probe(Doctor *d) {
        _cleanup_free_ char *parent = path_parent(d->config->api.socket),
                            *path = parent ? path_join(parent, "probe.sock") : NULL;
        uid_t uid;
        struct stat st;
        if (!path || !d->config->snapshot.enabled || !find_agent_uid(d, &uid) || uid == 0)
                return; /* no agent, or one that may read everything itself */
        bool is_there = stat(path, &st) == 0 && S_ISSOCK(st.st_mode);
        if (is_there && !is_stale(path))
                report(d, OK, "snapshot", NULL, "'%s' exists: snapshots are complete", path);
        else
                report(d, WARNING, "snapshot",
                       is_there ? "systemctl restart neuron-collectd-probe.socket"
                                : "systemctl enable --now neuron-collectd-probe.socket",
                       "%s '%s'%s: snapshots only have what the agent's user may read",
                       is_there ? "no process listens on" : "there is no", path,
                       is_there ? ", which is left over" : "");
}

/* Counted since the state directory was created. */
static void check_unseen(Doctor *d) {
        uint64_t n = cli_number(json_object_get(d->agent, "hook"), "unseen");
        if (n > 0)
                report(d, WARNING, "hook notes",
                       "mount the dump directory of containers from the host",
                       "%llu hooks named a directory that the agent cannot see",
                       (unsigned long long)n);
}

static void check_all_of_hook(Doctor *d, const void *subject) {
        (void)subject;
        hook_check(&(HookCheck){ d->config, d->hook_directory, d->agent, report, d });
        check_unseen(d);
        check_snapshots(d);
        check_probe(d);
}

/* Can each source be read, watched and held? Nothing is written into a source: who watches it would
 * take that for evidence. */

#define PINS_NAME ".neuron-collectd"
#define TRY_TEMPLATE ".neuron-collectd-doctor-XXXXXX"
typedef struct SourceCheck {
        Doctor *d;
        const ConfigSource *source;
        char *what; /* `source NAME` */
        PathTemplate *template;
        const char *fixed;
        uint64_t n_units, n_unreadable;
        char *unreadable;  /* an example */
        ScanUnit left_out; /* what is in no bundle */
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
        (void)scan_unit_add_skip(&l->left_out, m); /* without memory it has no example */
}

static void report_left_out(SourceCheck *l) {
        for (int k = 0; k < N_SCAN_SKIPS; k++) {
                _cleanup_free_ char *text = scan_skip_reason((ScanSkip)k, l->left_out.skipped[k],
                                                             l->left_out.skipped_example[k]);
                if (text)
                        report(l->d, WARNING, l->what, scan_skip_remedy((ScanSkip)k),
                               "below '%s' are files that no bundle contains: %s", l->fixed, text);
        }
        scan_unit_done(&l->left_out);
}

/* The agent may read what this user cannot. */
static void report_unreadable(const SourceCheck *l, const char *directories) {
        uint64_t has;
        const char *example = l->unreadable ? l->unreadable : "?";
        if (!agent_capabilities(l->d, &has))
                report(l->d, WARNING, l->what,
                       "start the agent, which needs CAP_DAC_READ_SEARCH for other users' files, "
                       "or "
                       "run doctor as root",
                       "this user cannot read %s below '%s', such as '%s'; whether the agent can "
                       "is "
                       "not known while it does not run",
                       directories, l->fixed, example);
        else if (has >> CAP_DAC_READ_SEARCH_BIT & 1)
                report(l->d, OK, l->what, NULL,
                       "the agent can read '%s'; this user cannot read %s of it, such as '%s'",
                       l->fixed, directories, example);
        else
                report(l->d, FAILED, l->what,
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
                report(l->d, FAILED, l->what, NULL, "'%s' cannot be scanned: %s", l->fixed,
                       strerror(-r));
        else if (l->n_unreadable > 0)
                report_unreadable(l, directories);
        else
                report(l->d, OK, l->what, NULL, "'%s' can be read, and holds %s", l->fixed,
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
                report(l->d, OK, l->what, NULL, "scanned every %s%s%s%s", interval,
                       is_network ? ", since on " : ", as configured", is_network ? type : "",
                       is_network ? " no process is notified of other nodes' writes" : "");
                return;
        }
        if (is_network)
                report(l->d, WARNING, l->what, "use `watch: auto`, or rely on scan_interval",
                       "'%s' is on %s, where inotify does not report other nodes' writes", l->fixed,
                       type);
        _cleanup_close_ int inotify = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
        int wd = inotify < 0 ? -1
                             : inotify_add_watch(inotify, l->fixed, IN_CLOSE_WRITE | IN_ONLYDIR);
        if (wd < 0)
                report(l->d, WARNING, l->what,
                       inotify < 0       ? "raise fs.inotify.max_user_instances with sysctl"
                       : errno == ENOSPC ? "raise fs.inotify.max_user_watches with sysctl"
                                         : "the scans have to do",
                       "'%s' cannot be watched: %s", l->fixed, strerror(errno));
}

/* ---- holding ---- */

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
        char owner[USER_NAME_SIZE];
        struct stat st;
        uid_t uid = geteuid();
        bool is_known = find_agent_uid(l->d, &uid);
        if (!path || lstat(path, &st) < 0 || (S_ISDIR(st.st_mode) && st.st_uid == uid))
                return false;
        if (!is_known && S_ISDIR(st.st_mode))
                return false; /* it may well be the agent's */
        bool is_shared = fs_path_is_network(path);
        if (is_shared && S_ISDIR(st.st_mode) &&
            agent_uid_is_trusted(st.st_uid, uid, l->d->config->agreement.trusted_uids.items))
                return false;
        report(l->d, FAILED, l->what,
               is_shared ? "if it is another node's agent's, add that user to "
                           "agreement.trusted_uids; else remove it"
                         : "find out who created it, and remove it",
               "'%s' belongs to %s and not to the agent, which therefore cannot hold sources "
               "there",
               path, user_name(st.st_uid, owner));
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
                report(l->d, OK, l->what, NULL,
                       "hard links that hold its files can be created in '%s'", parent);
                return;
        }
        bool is_possible =
                faccessat(fd, ".", W_OK, AT_EACCESS) == 0 && fpathconf(fd, _PC_LINK_MAX) > 1;
        if (is_possible && !is_squatted(l, l->fixed))
                report(l->d, OK, l->what, NULL,
                       "hard links that hold its files can be created in it, though not beside "
                       "it in '%s' (%s)",
                       parent ? parent : "?", r == -EXDEV ? "another mount" : strerror(-r));
        else if (!is_possible)
                report(l->d, WARNING, l->what, lost,
                       "this user can make no hard links that hold its files, neither in '%s' "
                       "(%s) nor in it",
                       parent ? parent : "?", r == -EXDEV ? "another mount" : strerror(-r));
}

/* ---- a source ---- */

static void report_no_source(SourceCheck *l, int error) {
        if (error == ENOENT)
                report(l->d, WARNING, l->what,
                       "no error if the runtime creates it; else fix its `path`",
                       "'%s' is not there yet", l->fixed);
        else if (error == ELOOP)
                report(l->d, FAILED, l->what, "write the path that it leads to",
                       "on the way to '%s' is a symlink of another user, which is not "
                       "followed",
                       l->fixed);
        else
                report(l->d, FAILED, l->what,
                       error == EACCES ? "run doctor as the agent's user" : "fix its `path`",
                       "'%s' cannot be opened: %s", l->fixed, strerror(error));
}

/* Adds the running agent's own result: it may be refused where this user may read. */
static void check_unseen_by_agent(SourceCheck *l) {
        const json_t *s =
                cli_find(json_object_get(l->d->agent, "sources"), "name", l->source->name);
        if (s && *cli_text(s, "unseen"))
                report(l->d, FAILED, l->what, NULL, "the running agent cannot read all of it: %s",
                       cli_text(s, "unseen"));
}

static void check_source(Doctor *d, const void *subject) {
        SourceCheck *l = (SourceCheck *)subject; /* the child's copy */
        (void)d;
        check_unseen_by_agent(l);
        _cleanup_close_ int fd = scan_open_fixed(l->fixed);
        if (fd < 0) {
                report_no_source(l, -fd);
                return;
        }
        _cleanup_free_ char *unsafe = scan_check_root(l->fixed);
        if (unsafe)
                report(l->d, FAILED, l->what, NULL, "%s", unsafe);
        check_content(l);
        check_watching(l, fd);
        check_holding(l, fd);
}

/* With 0 any user may give other users' files a second name. */
static void check_protected_links(Doctor *d) {
        _cleanup_free_ char *path = NULL, *text = NULL;
        if (asprintf(&path, "%s/sys/fs/protected_hardlinks", d->config->snapshot.proc_root) < 0 ||
            fs_read_file(AT_FDCWD, path, STATUS_FILE_BYTES, &text, NULL) < 0)
                return; /* a kernel without it, or no such root in a test */
        if (text[0] == '0')
                report(d, WARNING, "hard links", "set fs.protected_hardlinks=1 with sysctl",
                       "fs.protected_hardlinks is 0: any user can link files of others into a "
                       "source, or theirs elsewhere so that they are not collected");
        else
                report(d, OK, "hard links", NULL, "fs.protected_hardlinks is %.1s", text);
}

static void check_sources(Doctor *d) {
        check_protected_links(d);
        for (size_t i = 0; i < d->config->n_sources && !cli_is_interrupted(); i++) {
                SourceCheck l = { .d = d, .source = &d->config->sources[i] };
                if (asprintf(&l.what, "source %s", l.source->name) < 0)
                        return; /* no memory */
                char bad;
                if (path_template_new(&l.template, l.source->path, FORM_SOURCE_VARIABLES, &bad) ==
                    0) { /* else no memory: the configuration was checked */
                        l.fixed = path_template_fixed(l.template);
                        (void)check_guarded(d, l.what, l.fixed, check_source, &l);
                        path_template_free(l.template);
                }
                free(l.what);
        }
}

/* ---- what becomes of the cores of jobs ---- */

static void check_cores(Doctor *d, const void *subject) {
        (void)subject;
        CoreAdvice advice[CORE_ADVICE_MAX];
        size_t n = cores_check(d->config, advice);
        for (size_t i = 0; i < n; i++) {
                report(d, advice[i].finding, "process cores", advice[i].remedy, "%s",
                       advice[i].detail ? advice[i].detail : strerror(ENOMEM));
                free(advice[i].detail);
                free(advice[i].remedy);
        }
}

/* Can each destination be written, and if not, why? */

/* ---- a volume ---- */

typedef struct VolumeCheck {
        const ConfigDestination *config;
        const char *what, *root;
} VolumeCheck;

/* A missing root is made by the agent, not by who calls doctor: it would belong to the wrong user.
 */
static void report_missing_root(Doctor *d, const VolumeCheck *check) {
        const char *what = check->what, *root = check->root;
        const json_t *its =
                cli_find(json_object_get(d->agent, "destinations"), "name", check->config->name);
        _cleanup_free_ char *parent = path_parent(root);
        struct stat st;
        /* uploaders/volume/volume.c: a root that was there is created again only where its mount is
         */
        if (cli_number(its, "bytes_delivered") > 0) {
                report(d, strcmp(cli_text(its, "state"), "ok") == 0 ? WARNING : FAILED, what,
                       "mount it, unless the directory was removed on purpose",
                       "'%s' no longer exists; the agent has delivered there, and waits for "
                       "the mount that it was on",
                       root);
                return;
        }
        if (parent && stat(parent, &st) == 0 && S_ISDIR(st.st_mode))
                report(d, WARNING, what, "if it is on a mount of its own, check that it is mounted",
                       "'%s' does not exist yet; the agent creates it in '%s'%s", root, parent,
                       d->agent ? ""
                                : ", unless it has delivered there before: then it waits for "
                                  "the mount");
        else
                report(d, FAILED, what, "mount it, or create its parent directory",
                       "neither '%s' nor the directory above it is there", root);
}

static void check_users(Doctor *d, const VolumeCheck *check, Volume *v) {
        VolumeAdvice advice[VOLUME_ADVICE_MAX];
        size_t n = volume_users_check(d->config, check->config, check->root, v, advice);
        for (size_t i = 0; i < n; i++) {
                report(d, advice[i].finding, check->what, advice[i].remedy, "%s",
                       advice[i].detail ? advice[i].detail : strerror(ENOMEM));
                free(advice[i].detail);
                free(advice[i].remedy);
        }
}

static void check_volume(Doctor *d, const void *subject) {
        const VolumeCheck *check = subject;
        const ConfigDestination *c = check->config;
        const char *what = check->what, *root = check->root;
        _cleanup_free_ char *error = NULL;
        Volume *volume = NULL;
        if (access(root, F_OK) < 0 && errno == ENOENT) {
                report_missing_root(d, check);
                return;
        }
        VolumeOptions options = { .root = root,
                                  .min_free_bytes = c->min_free.is_permille ? 0 : c->min_free.bytes,
                                  .min_free_permille =
                                          c->min_free.is_permille ? c->min_free.permille : 0,
                                  .mode = c->mode,
                                  .group = c->group,
                                  .trusted_uids = d->config->agreement.trusted_uids.items,
                                  .must_exist = true };
        int r = volume_new(&volume, &options);
        if (r == 0)
                r = volume_probe(volume, &error);
        if (r == 0)
                report(d, OK, what, NULL, "'%s' can be written: a probe file was, and was removed",
                       root);
        else
                report(d, FAILED, what, NULL, "%s", error ? error : strerror(r < 0 ? -r : EIO));
        if (volume)
                check_users(d, check, volume);
        volume_free(volume);
}

/* ---- a bucket ---- */

typedef struct BucketCheck {
        Doctor *d;
        const char *what, *destination;
        bool done;
        bool has_reported;
} BucketCheck;

/* There are no keys in this environment. The agent has its own: an EnvironmentFile=, another home,
 * a role. What fails there is reported with the agent. */
static void report_without_keys(const BucketCheck *l, const char *detail) {
        const json_t *its =
                cli_find(json_object_get(l->d->agent, "destinations"), "name", l->destination);
        char moment[CLI_MOMENT_SIZE];
        if (*cli_text(its, "last_success"))
                report(l->d, OK, l->what, NULL,
                       "the agent delivered there last at %s; nothing is tried without keys in "
                       "this "
                       "environment",
                       cli_moment(moment, cli_text(its, "last_success")));
        else
                report(l->d, WARNING, l->what,
                       "run doctor in the agent's environment (its EnvironmentFile= or role)",
                       "%s in this environment; whether the agent has keys is not known until it "
                       "has delivered",
                       detail);
}

static void on_step(const S3ProbeStep *step, void *userdata) {
        BucketCheck *l = userdata;
        Finding finding = step->outcome == 0 ? OK : step->is_optional ? WARNING : FAILED;
        const char *detail = step->detail && *step->detail ? step->detail : NULL;
        if (step->outcome != 0 && strcmp(step->what, "credentials") == 0) {
                report_without_keys(l, detail ? detail : "no keys");
                l->has_reported = true;
                return;
        }
        l->has_reported = l->has_reported || finding == FAILED;
        if (step->outcome == 0)
                report(l->d, finding, l->what, NULL, "%s%s%s", step->what,
                       detail ? ": " : ": works", detail ? detail : "");
        else
                report(l->d, finding, l->what, NULL, "%s%s%s%s: %s", step->what,
                       step->permission ? " (needs " : "", step->permission ? step->permission : "",
                       step->permission ? ")" : "", detail ? detail : "failed");
}

static void on_done(int outcome, const char *error, void *userdata) {
        BucketCheck *l = userdata;
        l->done = true;
        if (outcome != 0 && !l->has_reported)
                report(l->d, FAILED, l->what, NULL, "%s", error ? error : "the probe failed");
}

static void check_bucket(Doctor *d, const ConfigDestination *c, const char *what) {
        _cleanup_free_ char *fixed = form_fixed_part(c->prefix),
                            *prefix = fixed ? s3_key_prefix(fixed) : NULL,
                            *key = prefix ? s3_probe_key(prefix, d->instance_id) : NULL,
                            *fault = NULL;
        BucketCheck l = { .d = d, .what = what, .destination = c->name };
        S3ProbeOptions options = { .key = key,
                                   .list_prefix = prefix,
                                   .thorough = true,
                                   .on_step = on_step,
                                   .on_done = on_done,
                                   .userdata = &l };
        cli_progress(d->cli, "%s: trying s3://%s", what, c->bucket);
        int r = key ? object_store_s3_probe(c, &options, &l.done, &fault) : -ENOMEM;
        if (r < 0 && r != -EINTR)
                report(d, FAILED, what, NULL, "%s", fault ? fault : strerror(-r));
}

/* ---- all of them ---- */

static void check_path(Doctor *d, size_t i, const char *what) {
        const ConfigDestination *c = &d->config->destinations[i];
        _cleanup_free_ char *root = form_fixed_part(c->path);
        if (root)
                d->hangs[i] = !check_guarded(d, what, root, check_volume,
                                             &(VolumeCheck){ c, what, root });
}

static void check_destinations(Doctor *d) {
        for (size_t i = 0; i < d->config->n_destinations && !cli_is_interrupted(); i++) {
                const ConfigDestination *c = &d->config->destinations[i];
                if (d->only && strcmp(d->only, c->name) != 0)
                        continue;
                _cleanup_free_ char *what = strbuf_format("destination %s", c->name);
                if (c->type == CONFIG_S3)
                        check_bucket(d, c, what ? what : c->name);
                else
                        check_path(d, i, what ? what : c->name);
        }
}

/* ---- the agreement between nodes ---- */

/* @return the agent's end of the bus; NULL: no agent answers, or its agreement is off */
static const json_t *agents_bus(const Doctor *d) {
        return json_object_get(json_object_get(d->agent, "agreement"), "bus");
}

static void report_keys(Doctor *d, const BusKeyFile *f, int r, const Diags *faults) {
        if (!*f->path)
                report(d, WARNING, "agreement",
                       "write one with `neuron-collect key new`, the same for all nodes",
                       "agreement.key_file is not set: only loopback and ipc addresses are "
                       "opened, and between nodes the store alone decides");
        else if (f->keys.n > 0)
                report(d, OK, "agreement", NULL,
                       "agreement.key_file '%s' is valid; key '%s' signs, keys that verify: %zu",
                       f->path, f->keys.items[0].id, f->keys.n);
        else if (r == -EACCES && cli_is_true(agents_bus(d), "has_key"))
                report(d, OK, "agreement", NULL,
                       "agreement.key_file '%s' cannot be read by this user; the agent has read it",
                       f->path);
        else
                for (size_t i = 0; i < faults->n; i++) {
                        char line[32] = "";
                        if (faults->items[i].line > 0)
                                snprintf(line, sizeof line, ", line %u", faults->items[i].line);
                        report(d, FAILED, "agreement", faults->items[i].remedy,
                               "agreement.key_file '%s'%s: %s", f->path, line,
                               faults->items[i].fault);
                }
}

/* @return whether messages can be signed, as far as this user can see */
static bool check_keys(Doctor *d) {
        Diags faults = { .n = 0 };
        struct stat state = { .st_uid = 0 }; /* the agent's user has its state directory */
        (void)stat(d->config->state_directory, &state); /* else root's and ours count */
        BusKeyFile file = { .path = d->config->agreement.key_file, .uid = state.st_uid };
        int r = bus_key_file_check(&file, &faults);
        bool has_key = file.keys.n > 0;
        report_keys(d, &file, r, &faults);
        bus_key_file_done(&file);
        diag_done(&faults);
        return has_key;
}

/* As nanomsg does it. @return 0, or a positive errno of socket() or bind() */
static int try_bind(const struct addrinfo *a) {
        const int on = 1;
        _cleanup_close_ int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, 0);
        if (fd < 0)
                return errno;
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on); /* bind() decides */
        return bind(fd, a->ai_addr, a->ai_addrlen) == 0 ? 0 : errno;
}

static void check_listen(Doctor *d) {
        static const struct addrinfo hints = { .ai_socktype = SOCK_STREAM,
                                               .ai_flags = AI_PASSIVE | AI_NUMERICSERV };
        const char *listen = d->config->agreement.listen;
        _cleanup_(url_done) Url url = { 0 };
        struct addrinfo *found = NULL;
        char port[8];
        if (url_parse(&url, listen) < 0 || strcmp(url.scheme, "tcp") != 0)
                return; /* ipc: what the agent makes of it is in its status */
        bool is_v6 = url.host[0] == '[';
        _cleanup_free_ char *host = strdup(url.host + is_v6);
        if (!host)
                return;
        host[strcspn(host, "]")] = '\0';
        snprintf(port, sizeof port, "%u", url.port);
        int r = getaddrinfo(host, port, &hints, &found);
        int error = r == 0 ? try_bind(found) : 0;
        if (r == 0)
                freeaddrinfo(found);
        if (r != 0 || (error != 0 && error != EADDRINUSE))
                report(d, FAILED, "agreement", "set agreement.listen to an address of this node",
                       "'%s' cannot be listened on: %s", listen,
                       r != 0 ? gai_strerror(r) : strerror(error));
        else if (error == 0)
                report(d, OK, "agreement", NULL, "'%s' can be listened on", listen);
        else if (strcmp(cli_text(agents_bus(d), "state"), "listening") == 0)
                report(d, OK, "agreement", NULL, "the agent listens on '%s'", listen);
        else
                report(d, FAILED, "agreement",
                       "end what listens there, or set another port in agreement.listen, the same "
                       "on all nodes",
                       "'%s' is in use, and not by the agent", listen);
}

/* Who decides what failures are called: the first destination of each source with dumps. */
static void check_arbiters(Doctor *d) {
        for (size_t i = 0; i < d->config->n_sources; i++) {
                const ConfigSource *s = &d->config->sources[i];
                const ConfigDestination *c =
                        s->destinations.n == 0
                                ? NULL
                                : config_find_destination(d->config, s->destinations.items[0]);
                if (!c || !source_kind_has_incident((SourceKind)s->kind))
                        continue;
                _cleanup_free_ char *root = c->type == CONFIG_S3 ? NULL : form_fixed_part(c->path);
                if (c->type == CONFIG_S3 || c->durable == CONFIG_DURABLE_YES ||
                    d->hangs[c - d->config->destinations] || (root && fs_path_is_network(root)))
                        report(d, OK, "agreement", NULL,
                               "destination %s decides what failures of source %s are called",
                               c->name, s->name);
                else
                        report(d, WARNING, "agreement",
                               "name a bucket or a shared volume first in its `destinations`, or "
                               "set `durable: true` if all nodes share this one",
                               "source %s: destination %s is a volume of this node alone, so "
                               "without the bus its bundles go alone, under their own names",
                               s->name, c->name);
        }
}

static void check_bus(Doctor *d, bool has_key) {
        const json_t *bus = agents_bus(d);
        const char *error = cli_text(bus, "last_error");
        if (!bus) {
                if (d->agent)
                        report(d, WARNING, "agreement", "restart it",
                               "it is off in the agent that runs");
                return;
        }
        if (has_key && !cli_is_true(bus, "has_key"))
                report(d, FAILED, "agreement",
                       "let the agent's user read agreement.key_file, and reload the agent",
                       "the agent that runs has no key%s%s", *error ? ": " : "", error);
        else
                report(d, *error ? WARNING : OK, "agreement", NULL,
                       "the agent's bus is %s, connected to %llu%s%s", cli_text(bus, "state"),
                       cli_number(bus, "connected"), *error ? "; its last error: " : "", error);
}

static void check_agreement(Doctor *d, const void *subject) {
        (void)subject;
        if (!d->config->agreement.enabled) {
                report(d, WARNING, "agreement", "set agreement.enabled: true",
                       "is switched off: each node names its failures alone");
                return;
        }
        bool has_key = check_keys(d);
        if (has_key)
                check_listen(d);
        check_arbiters(d);
        check_bus(d, has_key);
}

/* ---- the command ---- */

static void find_instance(Doctor *d) {
        const char *origin;
        int r = instance_id_find(d->config->node.instance_id, d->config->snapshot.sysfs_root,
                                 d->instance_id, &origin);
        if (r < 0) {
                snprintf(d->instance_id, sizeof d->instance_id, "unknown-host");
                report(d, FAILED, "instance id", "set node.instance_id", "cannot be determined: %s",
                       strerror(-r));
        } else
                report(d, OK, "instance id", NULL, "%s (by %s)", d->instance_id, origin);
}

static void check_everything(Doctor *d) {
        request_status(d);
        check_user(d);
        find_instance(d);
        if (!d->only) {
                const char *state = d->config->state_directory;
                (void)check_guarded(d, "state directory", state, check_state_directory, state);
                check_sources(d);
                (void)check_guarded(d, "process cores", "its path", check_cores, NULL);
                (void)check_guarded(d, "hook", d->hook_directory, check_all_of_hook, NULL);
        }
        check_destinations(d);
        if (!d->only)
                (void)check_guarded(d, "agreement", d->config->agreement.key_file, check_agreement,
                                    NULL);
        check_agent(d);
}

static int finish(const Doctor *d, int code) {
        if (cli_is_interrupted())
                return cli_error("interrupted");
        if (d->findings) {
                int printed =
                        cli_print_new_json(d->cli, json_pack("{s:b, s:O}", "ok", d->n[FAILED] == 0,
                                                             "findings", d->findings));
                if (printed != CLI_YES)
                        return printed;
        }
        return code != CLI_YES ? code : d->n[FAILED] == 0 ? CLI_YES : CLI_NO;
}

int cmd_doctor(const Cli *cli, int argc, char **argv) {
        Doctor d = { .cli = cli, .hook_directory = HOOK_DIRECTORY };
        const CliOption options[] = { { "destination", .value = &d.only },
                                      { "hook-directory", .value = &d.hook_directory },
                                      { 0 } };
        _cleanup_(config_freep) Config *config = NULL;
        int code = cli_options_only(argc, argv, options);
        if (code != CLI_YES)
                return code;
        cli_catch_signals();
        json_auto_t *findings = cli->json ? json_array() : NULL;
        d.findings = findings;
        code = read_configuration(&d, &config);
        d.config = config;
        if (code == CLI_YES && d.only && (code = find_destination(&d)) != CLI_YES)
                return code;
        if (code == CLI_YES)
                d.hangs = calloc(config->n_destinations + 1, sizeof *d.hangs);
        if (code == CLI_YES && d.hangs)
                check_everything(&d);
        else if (code == CLI_YES)
                code = cli_error("%s", strerror(ENOMEM));
        cli_progress_end();
        json_decref(d.agent);
        free(d.hangs);
        return finish(&d, code);
}
