/* Checks the agent as a process: its user, its capabilities, its state directory, and what it
 * reports of itself over its socket. The other checks use its status, uid and capabilities. */
#include "cli/doctor/doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "cli/common/client.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"

#define STATE_FREE_BYTES (64 * MIB) /* the database needs a few MiB; the rest is a margin */
#define STATE_LEAST_BYTES (4 * MIB) /* with less the agent records no new bundle */
#define STATUS_FILE_BYTES (64 * KIB)
/* Capabilities that the unit gives the agent, numbered as in linux/capability.h */
enum { CAP_FOWNER_BIT = 3, CAP_LEASE_BIT = 28 };

/* ---- the agent as a process ---- */

void doctor_agent_request_status(Doctor *d) {
        _cleanup_(client_reply_done) ClientReply reply = { 0 };
        const char *socket = d->cli->socket ? d->cli->socket : d->config->api.socket;
        int r = client_request(socket, "GET", "/v1/status", CLIENT_TIMEOUT_MSEC, &reply);
        if (r == 0 && reply.status == 200)
                d->agent = json_incref(reply.json);
        d->is_silent = !d->agent && (r != CLIENT_E_NO_AGENT || (reply.why.error != ENOENT &&
                                                                reply.why.error != ECONNREFUSED));
}

static char *process_path(const Doctor *d, const char *file) {
        uint64_t pid = cli_number(json_object_get(d->agent, "agent"), "pid");
        return pid == 0 ? NULL
                        : strbuf_format("%s/%" PRIu64 "/%s", d->config->snapshot.proc_root, pid,
                                        file);
}

bool doctor_agent_uid(const Doctor *d, uid_t *ret) {
        _cleanup_free_ char *path = process_path(d, "");
        struct stat st;
        if (!path || stat(path, &st) < 0)
                return false;
        *ret = st.st_uid;
        return true;
}

bool doctor_agent_capabilities(const Doctor *d, uint64_t *ret) {
        _cleanup_free_ char *path = process_path(d, "status"), *text = NULL;
        if (!path || fs_read_file(AT_FDCWD, path, STATUS_FILE_BYTES, &text, NULL) < 0)
                return false;
        const char *line = strstr(text, "\nCapEff:");
        return line && sscanf(line, "\nCapEff: %" SCNx64, ret) == 1;
}

/* ---- the caller's user ---- */

void doctor_agent_check_user(Doctor *d) {
        char me[DOCTOR_USER_NAME_SIZE], other[DOCTOR_USER_NAME_SIZE];
        uid_t uid;
        doctor_user_name(geteuid(), me);
        if (!doctor_agent_uid(d, &uid))
                doctor_report(d, OK, "user", NULL,
                              "doctor runs as %s; the agent's permissions, and the credentials in "
                              "its environment, can differ",
                              me);
        else if (uid != geteuid())
                doctor_report(
                        d, WARNING, "user", "run it as the agent's user as well",
                        "doctor runs as %s and the agent as %s: their permissions and credentials "
                        "can differ",
                        me, doctor_user_name(uid, other));
        else
                doctor_report(
                        d, OK, "user", NULL,
                        "doctor runs as %s, as the agent does; the credentials in the agent's "
                        "environment can differ",
                        me);
}

/* ---- the state directory ---- */

static void check_state(Doctor *d, int fd, const struct stat *st) {
        const char *path = d->config->state_directory, *type;
        char have[PARSE_FORMAT_SIZE], owner[DOCTOR_USER_NAME_SIZE];
        struct statvfs fs;
        uid_t uid;
        if (doctor_agent_uid(d, &uid) && st->st_uid != uid)
                doctor_report(d, FAILED, "state directory", "chown it to the agent's user",
                              "'%s' belongs to %s, not to the agent", path,
                              doctor_user_name(st->st_uid, owner));
        else if (faccessat(fd, ".", W_OK, AT_EACCESS) < 0)
                doctor_report(d, FAILED, "state directory",
                              "run doctor as the agent's user, or chown the directory to it",
                              "'%s' cannot be written by this user: %s", path, strerror(errno));
        else if (fs_is_network(fd, &type))
                doctor_report(d, FAILED, "state directory",
                              "set state_directory to one on a disk of this node",
                              "'%s' is on %s, where a database is not safe", path, type);
        else if (fstatvfs(fd, &fs) == 0 && (uint64_t)fs.f_bavail * fs.f_frsize < STATE_FREE_BYTES) {
                uint64_t free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
                doctor_report(d, free_bytes < STATE_LEAST_BYTES ? FAILED : WARNING,
                              "state directory", "free some space", "'%s' has only %s left", path,
                              parse_format_human(have, free_bytes));
        } else
                doctor_report(d, OK, "state directory", NULL,
                              "'%s' can be written, and "
                              "belongs to %s",
                              path, doctor_user_name(st->st_uid, owner));
}

static void check_state_directory(Doctor *d, const void *subject) {
        const char *path = subject;
        struct stat st;
        _cleanup_close_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0 && errno == EACCES) /* the agent's directory may be closed to others */
                fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0 && fstat(fd, &st) == 0) {
                check_state(d, fd, &st);
                return;
        }
        int error = errno;
        _cleanup_free_ char *parent = path_parent(path);
        if (error == ENOENT && parent && access(parent, W_OK) == 0)
                doctor_report(d, OK, "state directory", NULL,
                              "'%s' does not exist yet; the agent creates it when it starts", path);
        else
                doctor_report(d, FAILED, "state directory",
                              "create it, and chown it to the agent's user",
                              "'%s' cannot be used: %s", path, strerror(error));
}

void doctor_agent_check_state_directory(Doctor *d) {
        const char *path = d->config->state_directory;
        (void)doctor_guarded(d, "state directory", path, check_state_directory, path);
}

/* ---- the agent's own state ---- */

static void check_capabilities(Doctor *d) {
        static const struct {
                int bit;
                const char *name, *what;
        } wanted[] = {
                { DOCTOR_CAP_DAC_READ_SEARCH, "CAP_DAC_READ_SEARCH", "read other users' files" },
                { CAP_FOWNER_BIT, "CAP_FOWNER", "hold other users' files by links" },
                { CAP_LEASE_BIT, "CAP_LEASE", "detect whether a file is still being written" },
        };
        uint64_t has;
        if (!doctor_agent_capabilities(d, &has))
                return;
        for (size_t i = 0; i < ELEMENTSOF(wanted); i++)
                if (!(has >> wanted[i].bit & 1))
                        doctor_report(
                                d, WARNING, "agent",
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
                doctor_report(d, FAILED, "agent", NULL, "its destination %s is %s%s%s", name, state,
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
        doctor_report(d, ready ? OK : FAILED, "agent", NULL,
                      "neuron-collectd %s is %s since %s, and can%s deliver%s%s",
                      cli_text(agent, "version"), cli_text(agent, "state"),
                      cli_moment(moment, cli_text(agent, "started")), ready ? "" : "not",
                      *note ? ": " : "", note);
        for (size_t n; *error; error += n + (error[n] == '\n')) { /* a line a fault */
                n = strcspn(error, "\n");
                doctor_report(
                        d, WARNING, "agent", "fix the file, then reload it",
                        "its last reload failed, and the previous configuration is in force: %.*s",
                        (int)n, error);
        }
        if (*pending)
                doctor_report(d, WARNING, "agent", "restart it", "it must be restarted for %s",
                              pending);
        if (d->config->file && !is_same_file(file, d->config->file))
                doctor_report(d, WARNING, "agent", "check that one with --config",
                              "it uses a configuration that was not checked here: '%s'",
                              *file ? file : "built in");
        check_capabilities(d);
        check_destination_states(d);
}

void doctor_agent_check(Doctor *d) {
        const char *socket = d->cli->socket ? d->cli->socket : d->config->api.socket;
        if (d->agent) {
                check_running_agent(d);
                return;
        }
        bool is_denied = access(socket, F_OK) == 0 && access(socket, W_OK) < 0 && errno == EACCES;
        if (!is_denied && d->is_silent) {
                doctor_report(d, FAILED, "agent", "it hangs or is overloaded: see its log",
                              "there is no response from neuron-collectd on '%s'", socket);
                return;
        }
        doctor_report(d, WARNING, "agent",
                      is_denied ? "join group neuron-collectd, or use sudo"
                                : "start neuron-collectd, or give its socket with --socket",
                      is_denied ? "permission denied on '%s'"
                                : "neuron-collectd is not running (socket '%s')",
                      socket);
}
