/* Who runs what: the caller, the agent, and the agent's own directory. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "cli/client.h"
#include "cli/doctor/doctor.h"
#include "lib/base/fs.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"

#define STATE_FREE_BYTES (64 * MIB) /* the database has a few MiB; the rest is room for mistakes */
#define STATUS_FILE_BYTES (64 * KIB)

/* linux/capability.h, by number: what the unit gives the agent */
enum { CAP_DAC_READ_SEARCH_BIT = 2, CAP_FOWNER_BIT = 3, CAP_LEASE_BIT = 28 };

/* ---- the agent as a process ---- */

void doctor_ask_agent(Doctor *d) {
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

static void look_at_state(Doctor *d, int fd, const struct stat *st) {
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
                look_at_state(d, fd, &st);
                return;
        }
        int error = errno;
        _cleanup_free_ char *parent = path_parent(path);
        if (error == ENOENT && parent && access(parent, W_OK) == 0)
                doctor_report(d, FINDING_OK, "state directory", NULL,
                              "'%s' is not there yet; the agent makes it when it starts", path);
        else
                doctor_report(d, FINDING_FAILED, "state directory",
                              "make it, and chown it to the agent's user",
                              "'%s' cannot be used: %s", path, strerror(error));
}

/* ---- how the agent is ---- */

static void look_at_capabilities(Doctor *d) {
        static const struct {
                int bit;
                const char *name, *what;
        } wanted[] = {
                { CAP_DAC_READ_SEARCH_BIT, "CAP_DAC_READ_SEARCH", "read other users' files" },
                { CAP_FOWNER_BIT, "CAP_FOWNER", "hold other users' files by links" },
                { CAP_LEASE_BIT, "CAP_LEASE", "tell whether a file is still written" },
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

static void look_at_destination_states(Doctor *d) {
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

static void look_at_agent(Doctor *d) {
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
                doctor_report(d, FINDING_WARNING, "agent", "mend the file and reload it again",
                              "its last reload failed, and what was before is in force: %s", error);
        if (*pending)
                doctor_report(d, FINDING_WARNING, "agent", "restart it",
                              "it must be restarted for %s", pending);
        if (d->config->file && !is_same_file(file, d->config->file))
                doctor_report(d, FINDING_WARNING, "agent", "name its own with --config",
                              "it runs with another configuration than was looked at here: '%s'",
                              *file ? file : "built in");
        look_at_capabilities(d);
        look_at_destination_states(d);
}

void doctor_agent(Doctor *d) {
        const char *socket = d->cli->socket ? d->cli->socket : d->config->api.socket;
        if (d->agent) {
                look_at_agent(d);
                return;
        }
        bool is_denied = access(socket, F_OK) == 0 && access(socket, W_OK) < 0 && errno == EACCES;
        doctor_report(d, FINDING_WARNING, "agent",
                      is_denied ? "become root or a member of the group neuron-collectd"
                                : "start neuron-collectd, or name its socket with --socket",
                      "nobody answers on '%s'%s", socket,
                      is_denied ? ", which this user may not open" : ": it does not run");
}
