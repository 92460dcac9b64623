/* doctor: the hook, its socket and mailbox, and what a snapshot needs. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/doctor/doctor.h"
#include "cli/hook/hook_status.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"

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

void doctor_hook(Doctor *d) {
        HookStatus v;
        hook_status_read(d->hook_directory, HOOK_PROGRAM, &v);
        check_hook(d, &v);
        if (v.hook.kind == HOOK_OURS || d->agent) {
                check_socket(d);
                check_mailbox(d);
        }
        check_snapshots(d);
        check_probe(d);
        hook_status_done(&v);
}
