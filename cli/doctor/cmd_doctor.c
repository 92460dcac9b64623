/* neuron-collect doctor: check every part, and report remedies for what does not work. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "cli/common/client.h"
#include "cli/common/suggest.h"
#include "cli/doctor/doctor.h"
#include "cli/hook/hook_status.h"
#include "lib/base/fs.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/neuron/ids.h"

#define PASSWD_BYTES 4096
/* ---- printing ---- */

static const char *const words[N_FINDINGS] = { "ok", "warning", "FAILED" };

static json_t *finding_json(const char *word, const char *what, const char *detail,
                            const char *remedy) {
        return json_pack("{s:s, s:o, s:o, s:o}", "state", word, "what", cli_json_string(what),
                         "detail", cli_json_string(detail), "remedy", cli_json_string(remedy));
}

void doctor_report(Doctor *d, Finding finding, const char *what, const char *remedy,
                   const char *fmt, ...) {
        _cleanup_free_ char *text = NULL;
        va_list ap;
        va_start(ap, fmt);
        if (vasprintf(&text, fmt, ap) < 0)
                text = NULL;
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

const char *doctor_user(uid_t uid, char buf[static DOCTOR_USER_SIZE]) {
        char space[PASSWD_BYTES];
        struct passwd pw, *found = NULL;
        if (getpwuid_r(uid, &pw, space, sizeof space, &found) == 0 && found)
                snprintf(buf, DOCTOR_USER_SIZE, "'%s'", pw.pw_name);
        else
                snprintf(buf, DOCTOR_USER_SIZE, "uid %u", (unsigned)uid);
        return buf;
}

/* ---- the configuration ---- */

static void report_config_error(Doctor *d, const Diag *fault) {
        char where[32] = "";
        if (fault->line)
                snprintf(where, sizeof where, ":%u", fault->line);
        doctor_report(d, FINDING_FAILED, "configuration", fault->remedy, "%s%s: %s%s%s",
                      fault->file ? fault->file : d->cli->config_file, where,
                      fault->key ? fault->key : "", fault->key ? ": " : "", fault->fault);
}

static int read_configuration(Doctor *d, Config **ret) {
        const Cli *cli = d->cli;
        Diags diags = { 0 };
        bool is_missing =
                !cli->config_given && access(cli->config_file, F_OK) < 0 && errno == ENOENT;
        int r = is_missing ? config_builtin(ret)
                           : config_load(ret, cli->config_file, environ, &diags);
        for (size_t i = 0; i < diags.n; i++)
                report_config_error(d, &diags.items[i]);
        diag_done(&diags);
        if (r == 0 && is_missing)
                doctor_report(
                        d, FINDING_WARNING, "configuration",
                        "write one, see neuron-collectd.yaml(5)",
                        "no file '%s': using the built-in configuration (the runtime's default "
                        "dump directory, delivered to a directory of this node)",
                        cli->config_file);
        else if (r == 0)
                doctor_report(d, FINDING_OK, "configuration", NULL, "'%s' has no faults",
                              cli->config_file);
        return r == 0 ? CLI_YES : CLI_USAGE;
}

static int find_destination(const Doctor *d) {
        _cleanup_(suggest_done) Suggestions near = suggest_init(d->only);
        for (size_t i = 0; i < d->config->n_destinations; i++) {
                if (strcmp(d->config->destinations[i].name, d->only) == 0)
                        return CLI_YES;
                suggest_add(&near, d->config->destinations[i].name);
        }
        _cleanup_free_ char *names = suggest_text(&near);
        return cli_usage("doctor", "no destination is called '%s'; %s", d->only,
                         names ? names : "");
}

/* ---- the command ---- */

static void find_instance(Doctor *d) {
        const char *origin;
        int r = instance_id_find(d->config->node.instance_id, d->config->snapshot.sysfs_root,
                                 d->instance_id, &origin);
        if (r < 0) {
                snprintf(d->instance_id, sizeof d->instance_id, "unknown-host");
                doctor_report(d, FINDING_FAILED, "instance id", "set node.instance_id",
                              "cannot be determined: %s", strerror(-r));
        } else
                doctor_report(d, FINDING_OK, "instance id", NULL, "%s (by %s)", d->instance_id,
                              origin);
}

static void check_everything(Doctor *d) {
        doctor_request_status(d);
        doctor_user_line(d);
        find_instance(d);
        if (!d->only) {
                doctor_state_directory(d);
                doctor_sources(d);
                doctor_hook(d);
        }
        doctor_destinations(d);
        doctor_agent(d);
}

static int finish(const Doctor *d, int code) {
        if (cli_is_interrupted()) {
                cli_error("interrupted");
                return CLI_NO;
        }
        if (d->findings) {
                json_t *answer = json_pack("{s:b, s:O}", "ok", d->n[FINDING_FAILED] == 0,
                                           "findings", d->findings);
                int printed = cli_print_json(d->cli, answer);
                json_decref(answer);
                if (printed != CLI_YES)
                        return printed;
        }
        return code != CLI_YES ? code : d->n[FINDING_FAILED] == 0 ? CLI_YES : CLI_NO;
}

static int parse(int argc, char **argv, Doctor *d) {
        static const struct option options[] = { { "destination", required_argument, NULL, 'd' },
                                                 { "hook-directory", required_argument, NULL, 'h' },
                                                 { 0 } };
        int o;
        while ((o = cli_option(&(CliOptions){ argv[0], ":", options }, argc, argv)) >= 0)
                switch (o) {
                case 'd':
                        d->only = optarg;
                        break;
                case 'h':
                        d->hook_directory = optarg;
                        break;
                default:
                        return CLI_USAGE;
                }
        return optind < argc ? cli_usage(argv[0], "unexpected argument '%s'", argv[optind])
                             : CLI_YES;
}

int cmd_doctor(const Cli *cli, int argc, char **argv) {
        Doctor d = { .cli = cli, .hook_directory = HOOK_DIRECTORY };
        Config *config = NULL;
        int code = parse(argc, argv, &d);
        if (code != CLI_YES)
                return code;
        cli_catch_signals();
        d.findings = cli->json ? json_array() : NULL;
        code = read_configuration(&d, &config);
        d.config = config;
        if (code == CLI_YES && d.only) {
                code = find_destination(&d);
                if (code != CLI_YES) {
                        config_free(config);
                        json_decref(d.findings);
                        return code;
                }
        }
        if (code == CLI_YES)
                check_everything(&d);
        cli_progress_end();
        code = finish(&d, code);
        json_decref(d.agent);
        json_decref(d.findings);
        config_free(config);
        return code;
}

/* Who runs what: the caller, the agent, and the agent's own directory. */

#define STATE_FREE_BYTES                                                                           \
        (64 * MIB) /* the database has a few MiB; the rest is space for mistakes  \
                                     */
#define STATUS_FILE_BYTES (64 * KIB)
/* linux/capability.h, by number: what the unit gives the agent */
enum { CAP_DAC_READ_SEARCH_BIT = 2, CAP_FOWNER_BIT = 3, CAP_LEASE_BIT = 28 };

/* ---- the agent as a process ---- */

void doctor_request_status(Doctor *d) {
        _cleanup_(client_reply_done) ClientReply reply = { 0 };
        const char *socket = d->cli->socket ? d->cli->socket : d->config->api.socket;
        if (client_request(socket, "GET", "/v1/status", &reply) == 0 && reply.status == 200)
                d->agent = json_incref(reply.json);
}

static char *process_path(const Doctor *d, const char *file) {
        char *path;
        uint64_t pid = cli_number(json_object_get(d->agent, "agent"), "pid");
        return pid == 0 || asprintf(&path, "%s/%" PRIu64 "/%s", d->config->snapshot.proc_root, pid,
                                    file) < 0
                       ? NULL
                       : path;
}

bool doctor_agent_uid(const Doctor *d, uid_t *ret) {
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

void doctor_user_line(Doctor *d) {
        char me[DOCTOR_USER_SIZE], other[DOCTOR_USER_SIZE];
        uid_t uid;
        doctor_user(geteuid(), me);
        if (!doctor_agent_uid(d, &uid))
                doctor_report(d, FINDING_OK, "user", NULL,
                              "this is run by %s; what the agent may do, and which credentials it "
                              "finds in its environment, can differ",
                              me);
        else if (uid != geteuid())
                doctor_report(
                        d, FINDING_WARNING, "user", "run it as the agent's user as well",
                        "this is run by %s and the agent by %s: what is permitted to one, and "
                        "which credentials it finds, can differ for the other",
                        me, doctor_user(uid, other));
        else
                doctor_report(d, FINDING_OK, "user", NULL,
                              "this is run by %s, as the agent is; its environment, and so the "
                              "credentials that it finds there, can differ",
                              me);
}

/* ---- the state directory ---- */

static void check_state(Doctor *d, int fd, const struct stat *st) {
        const char *path = d->config->state_directory, *type;
        char have[PARSE_FORMAT_SIZE], owner[DOCTOR_USER_SIZE];
        struct statvfs fs;
        uid_t uid;
        if (doctor_agent_uid(d, &uid) && st->st_uid != uid)
                doctor_report(d, FINDING_FAILED, "state directory", "chown it to the agent's user",
                              "'%s' belongs to %s, not to the agent", path,
                              doctor_user(st->st_uid, owner));
        else if (faccessat(fd, ".", W_OK, AT_EACCESS) < 0)
                doctor_report(d, FINDING_FAILED, "state directory",
                              "run doctor as the agent's user, or chown the directory to it",
                              "'%s' cannot be written by this user: %s", path, strerror(errno));
        else if (fs_is_network(fd, &type))
                doctor_report(d, FINDING_FAILED, "state directory",
                              "set state_directory to one on a disk of this node",
                              "'%s' is on %s, where a database is not safe", path, type);
        else if (fstatvfs(fd, &fs) == 0 && (uint64_t)fs.f_bavail * fs.f_frsize < STATE_FREE_BYTES)
                doctor_report(d, FINDING_WARNING, "state directory", "make room",
                              "'%s' has only %s left", path,
                              parse_format_human(have, (uint64_t)fs.f_bavail * fs.f_frsize));
        else
                doctor_report(d, FINDING_OK, "state directory", NULL,
                              "'%s' can be written, and "
                              "belongs to %s",
                              path, doctor_user(st->st_uid, owner));
}

void doctor_state_directory(Doctor *d) {
        const char *path = d->config->state_directory;
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
                doctor_report(d, FINDING_OK, "state directory", NULL,
                              "'%s' does not exist yet; the agent creates it when it starts", path);
        else
                doctor_report(d, FINDING_FAILED, "state directory",
                              "make it, and chown it to the agent's user",
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
                        doctor_report(
                                d, FINDING_WARNING, "agent",
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
                doctor_report(d, FINDING_FAILED, "agent", NULL, "its destination %s is %s%s%s",
                              name, state, *error ? ": " : "", error);
        }
}

static bool is_same_file(const char *a, const char *b) {
        struct stat x, y;
        return strcmp(a, b) == 0 || (stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev &&
                                     x.st_ino == y.st_ino);
}

static void check_agent(Doctor *d) {
        const json_t *agent = json_object_get(d->agent, "agent"),
                     *config = json_object_get(d->agent, "config");
        const char *error = cli_text(config, "last_error"), *file = cli_text(config, "file"),
                   *note = cli_text(d->agent, "ready_note"),
                   *pending = cli_text(config, "pending_restart");
        char moment[CLI_MOMENT_SIZE];
        bool ready = cli_is_true(d->agent, "ready");
        doctor_report(d, ready ? FINDING_OK : FINDING_FAILED, "agent", NULL,
                      "neuron-collectd %s is %s since %s, and can%s deliver%s%s",
                      cli_text(agent, "version"), cli_text(agent, "state"),
                      cli_moment(moment, cli_text(agent, "started")), ready ? "" : "not",
                      *note ? ": " : "", note);
        if (*error)
                doctor_report(d, FINDING_WARNING, "agent", "fix the file, then reload it",
                              "its last reload failed, and what was before is in force: %s", error);
        if (*pending)
                doctor_report(d, FINDING_WARNING, "agent", "restart it",
                              "it must be restarted for %s", pending);
        if (d->config->file && !is_same_file(file, d->config->file))
                doctor_report(d, FINDING_WARNING, "agent", "name its own with --config",
                              "it uses another configuration than was checked here: '%s'",
                              *file ? file : "built in");
        check_capabilities(d);
        check_destination_states(d);
}

void doctor_agent(Doctor *d) {
        const char *socket = d->cli->socket ? d->cli->socket : d->config->api.socket;
        if (d->agent) {
                check_agent(d);
                return;
        }
        bool is_denied = access(socket, F_OK) == 0 && access(socket, W_OK) < 0 && errno == EACCES;
        doctor_report(d, FINDING_WARNING, "agent",
                      is_denied ? "join group neuron-collectd, or use sudo"
                                : "start neuron-collectd, or give its socket with --socket",
                      is_denied ? "permission denied on '%s'"
                                : "neuron-collectd is not running (socket '%s')",
                      socket);
}

/* doctor: the hook, its socket and mailbox, and what a snapshot needs. */

#define INSTALL "neuron-collect hook install"
#define MAILBOX_MODE 01733 /* every user may add a note, nobody may read or remove another's */
#define VERSION_BYTES 256
/* ---- the hook ---- */

static void check_ours(Doctor *d, const HookStatus *v) {
        if (!v->hook.is_executable)
                doctor_report(d, FINDING_FAILED, "hook", INSTALL,
                              "'%s/" HOOK_NAME "' cannot be executed by every user, so their jobs "
                              "write no core dumps",
                              d->hook_directory);
        else if (v->program.kind == HOOK_OURS && !hook_file_is_same(&v->hook, &v->program))
                doctor_report(d, FINDING_WARNING, "hook", INSTALL,
                              "'%s/" HOOK_NAME "' is ours (%s), but differs from '%s' (%s)",
                              d->hook_directory, v->hook.version, HOOK_PROGRAM, v->program.version);
        else
                doctor_report(d, FINDING_OK, "hook", NULL, "'%s/" HOOK_NAME "' is ours, version %s",
                              d->hook_directory, v->hook.version);
        if (v->chain && (v->chained.kind != HOOK_OTHER || !v->chained.is_executable))
                doctor_report(d, FINDING_FAILED, "hook", INSTALL " --no-chain, or --chain=PATH",
                              "the chained hook '%s' %s", v->chain,
                              v->chained.kind == HOOK_OURS ? "is neuron-collectd's own hook"
                                                           : "cannot be executed by every user");
}

static void check_hook(Doctor *d, const HookStatus *v) {
        const char *word = hook_status_word(v);
        if (v->hook.kind == HOOK_OURS)
                check_ours(d, v);
        else if (hook_status_is_replaced(v))
                doctor_report(d, FINDING_FAILED, "hook", INSTALL,
                              "'%s/" HOOK_NAME
                              "' is no longer ours: a package upgrade has replaced "
                              "or removed it",
                              d->hook_directory);
        else if (strcmp(word, "missing") == 0)
                doctor_report(d, FINDING_WARNING, "hook", INSTALL,
                              "'%s/" HOOK_NAME "' does not exist: without it the runtime writes no "
                              "core dumps",
                              d->hook_directory);
        else if (strcmp(word, "unusable") == 0)
                doctor_report(d, FINDING_FAILED, "hook", "move it away, then " INSTALL,
                              "'%s/" HOOK_NAME "' cannot be used%s%s", d->hook_directory,
                              v->error || v->hook.error ? ": " : "",
                              v->error || v->hook.error
                                      ? strerror(v->error ? v->error : v->hook.error)
                                      : "");
        else
                doctor_report(d, FINDING_WARNING, "hook", INSTALL,
                              "'%s/" HOOK_NAME "' is not ours: dumps are only found by watching, "
                              "and nothing is recorded at the moment of failure",
                              d->hook_directory);
}

/* ---- where notes go ---- */

static void check_socket(Doctor *d) {
        const char *path = d->config->hook.socket;
        struct stat st;
        int r = stat(path, &st) < 0 ? -errno : 0;
        if (r == 0 && (st.st_mode & 0222) != 0222)
                doctor_report(d, FINDING_FAILED, "hook socket", "chmod 0666, or restart the agent",
                              "'%s' has mode %04o: jobs of other users cannot send notes", path,
                              (unsigned)st.st_mode & 07777);
        else if (r == 0)
                r = hook_socket_check(path);
        else if (d->agent)
                doctor_report(d, FINDING_FAILED, "hook socket",
                              "check the agent's log, and restart it",
                              "'%s' does not exist, although the agent runs", path);
        if (r == 0 && (st.st_mode & 0222) == 0222)
                doctor_report(d, FINDING_OK, "hook socket", NULL,
                              "'%s' accepts notes from every user", path);
        else if (r < 0 && (!d->agent || r != -ENOENT))
                doctor_report(d, FINDING_WARNING, "hook socket", "start the agent, or its sockets",
                              "'%s' does not accept notes: %s; they wait in the mailbox", path,
                              strerror(-r));
}

static void check_mailbox(Doctor *d) {
        const char *path = d->config->hook.mailbox;
        _cleanup_free_ char *parent = path_parent(path);
        struct stat st, above;
        if (stat(path, &st) < 0) {
                doctor_report(
                        d, FINDING_WARNING, "hook mailbox",
                        "start the agent, which creates it, or run systemd-tmpfiles --create",
                        "'%s' cannot be used: %s; notes are lost while the agent does not run",
                        path, strerror(errno));
                return;
        }
        if (!S_ISDIR(st.st_mode) || (st.st_mode & 07777) != MAILBOX_MODE)
                doctor_report(d, FINDING_FAILED, "hook mailbox", "chmod 1733, or restart the agent",
                              "'%s' has mode %04o, not 1733: %s", path,
                              (unsigned)st.st_mode & 07777,
                              (st.st_mode & 0003) != 0003
                                      ? "jobs cannot leave notes there"
                                      : "users can read or remove each other's notes");
        else if (parent && stat(parent, &above) == 0 && !(above.st_mode & 0001))
                doctor_report(d, FINDING_FAILED, "hook mailbox",
                              "chmod o+x on the parent directory",
                              "jobs cannot reach '%s': '%s' has mode %04o", path, parent,
                              (unsigned)above.st_mode & 07777);
        else
                doctor_report(d, FINDING_OK, "hook mailbox", NULL,
                              "'%s' accepts notes while the agent does not run", path);
}

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
                doctor_report(d, FINDING_WARNING, "snapshot", "set snapshot.enabled: true",
                              "is switched off: nothing is recorded of the hardware when a job "
                              "fails");
        else
                doctor_report(d, FINDING_OK, "snapshot", NULL, "%s%s",
                              version ? "the Neuron driver is " : "no Neuron driver is loaded here",
                              version ? version : "");
}

/* The agent's own user may not read devices and other users' processes; a separate unit may. */
static void check_probe(Doctor *d) {
        _cleanup_free_ char *parent = path_parent(d->config->api.socket),
                            *path = parent ? path_join(parent, "probe.sock") : NULL;
        uid_t uid;
        struct stat st;
        if (!path || !d->config->snapshot.enabled || !doctor_agent_uid(d, &uid) || uid == 0)
                return; /* no agent, or one that may read everything itself */
        if (stat(path, &st) == 0 && S_ISSOCK(st.st_mode))
                doctor_report(d, FINDING_OK, "snapshot", NULL,
                              "'%s' exists: snapshots are complete", path);
        else
                doctor_report(d, FINDING_WARNING, "snapshot",
                              "systemctl enable --now neuron-collectd-probe.socket",
                              "'%s' does not exist: snapshots only have what the agent's user may "
                              "read",
                              path);
}

/* Counted since the state directory was created. */
static void check_unseen(Doctor *d) {
        uint64_t n = cli_number(json_object_get(d->agent, "hook"), "unseen");
        if (n > 0)
                doctor_report(d, FINDING_WARNING, "hook notes",
                              "mount the dump directory of containers from the host",
                              "%llu hooks named a directory that the agent cannot see",
                              (unsigned long long)n);
}

void doctor_hook(Doctor *d) {
        HookStatus v;
        hook_status_read(d->hook_directory, HOOK_PROGRAM, &v);
        check_hook(d, &v);
        if (v.hook.kind == HOOK_OURS || d->agent) {
                check_socket(d);
                check_mailbox(d);
                check_unseen(d);
        }
        check_snapshots(d);
        check_probe(d);
        hook_status_done(&v);
}
