/* What is there at the moment of failure: the hook, its socket and mailbox, and what a snapshot needs. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/doctor/doctor.h"
#include "cli/hook/hook_view.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"

#define HOOK_WHAT "hook"
#define INSTALL "neuron-collect hook install"
#define MAILBOX_MODE                                                                               \
        01733 /* everybody may put a note there, nobody may read or take away another's */
#define VERSION_BYTES 256

/* ---- the hook ---- */

static void look_at_ours(Doctor *d, const HookView *v) {
        if (!v->hook.is_executable)
                doctor_tell(d, FINDING_FAILED, HOOK_WHAT, INSTALL,
                            "'%s/" HOOK_NAME "' cannot be executed by every user: for them the "
                            "runtime writes no core dumps",
                            d->hook_directory);
        else if (v->program.kind == HOOK_OURS && !hook_file_is_same(&v->hook, &v->program))
                doctor_tell(d, FINDING_WARNING, HOOK_WHAT, INSTALL,
                            "'%s/" HOOK_NAME "' is ours (%s), but another one than '%s' (%s)",
                            d->hook_directory, v->hook.version, HOOK_PROGRAM, v->program.version);
        else
                doctor_tell(d, FINDING_OK, HOOK_WHAT, NULL,
                            "'%s/" HOOK_NAME "' is ours, version %s", d->hook_directory,
                            v->hook.version);
        if (v->chain && (v->chained.kind != HOOK_OTHER || !v->chained.is_executable))
                doctor_tell(d, FINDING_FAILED, HOOK_WHAT, INSTALL " --no-chain, or --chain=PATH",
                            "it is to run '%s' as well, which %s", v->chain,
                            v->chained.kind == HOOK_OURS ? "is our own hook"
                                                         : "cannot be executed by every user");
}

static void look_at_hook(Doctor *d, const HookView *v) {
        const char *word = hook_view_word(v);
        if (v->hook.kind == HOOK_OURS)
                look_at_ours(d, v);
        else if (v->is_kept)
                doctor_tell(d, FINDING_FAILED, HOOK_WHAT,
                            INSTALL ", and systemctl enable --now neuron-collectd-hook-keep.path",
                            "'%s/" HOOK_NAME "' is not ours any more: a package's upgrade has put "
                            "its own there, or removed it",
                            d->hook_directory);
        else if (strcmp(word, "missing") == 0)
                doctor_tell(d, FINDING_WARNING, HOOK_WHAT, INSTALL,
                            "there is no '%s/" HOOK_NAME "': without one the runtime writes no "
                            "core dumps",
                            d->hook_directory);
        else if (strcmp(word, "unusable") == 0)
                doctor_tell(d, FINDING_FAILED, HOOK_WHAT, "move it away, then " INSTALL,
                            "'%s/" HOOK_NAME "' cannot be used%s%s", d->hook_directory,
                            v->error || v->hook.error ? ": " : "",
                            v->error || v->hook.error
                                    ? strerror(v->error ? v->error : v->hook.error)
                                    : "");
        else
                doctor_tell(d, FINDING_WARNING, HOOK_WHAT, INSTALL,
                            "'%s/" HOOK_NAME "' is not ours: dumps are found by watching alone, "
                            "and nothing is recorded at the moment of failure",
                            d->hook_directory);
}

/* ---- where notes go ---- */

static void look_at_socket(Doctor *d) {
        const char *path = d->config->hook.socket;
        struct stat st;
        int r = stat(path, &st) < 0 ? -errno : 0;
        if (r == 0 && (st.st_mode & 0222) != 0222)
                doctor_tell(d, FINDING_FAILED, "hook socket", "chmod 0666, or restart the agent",
                            "'%s' has mode %04o: jobs of other users cannot give their notes to it",
                            path, (unsigned)st.st_mode & 07777);
        else if (r == 0)
                r = hook_socket_try(path);
        else if (d->agent)
                doctor_tell(d, FINDING_FAILED, "hook socket",
                            "look into the agent's log; restart it",
                            "there is no '%s', although the agent runs", path);
        if (r == 0 && (st.st_mode & 0222) == 0222)
                doctor_tell(d, FINDING_OK, "hook socket", NULL, "'%s' takes notes from every user",
                            path);
        else if (r < 0 && (!d->agent || r != -ENOENT))
                doctor_tell(d, FINDING_WARNING, "hook socket", "start the agent, or its sockets",
                            "nobody takes notes on '%s': %s; they wait in the mailbox", path,
                            strerror(-r));
}

static void look_at_mailbox(Doctor *d) {
        const char *path = d->config->hook.mailbox;
        _cleanup_free_ char *parent = path_parent(path);
        struct stat st, above;
        if (stat(path, &st) < 0) {
                doctor_tell(d, FINDING_WARNING, "hook mailbox",
                            "start the agent, which makes it; or systemd-tmpfiles --create",
                            "'%s' cannot be used: %s; while the agent is away, notes are lost",
                            path, strerror(errno));
                return;
        }
        if (!S_ISDIR(st.st_mode) || (st.st_mode & 07777) != MAILBOX_MODE)
                doctor_tell(d, FINDING_FAILED, "hook mailbox", "chmod 1733, or restart the agent",
                            "'%s' has mode %04o, not 1733: %s", path, (unsigned)st.st_mode & 07777,
                            (st.st_mode & 0003) != 0003
                                    ? "jobs cannot leave their notes there"
                                    : "users could read or take away each other's notes");
        else if (parent && stat(parent, &above) == 0 && !(above.st_mode & 0001))
                doctor_tell(d, FINDING_FAILED, "hook mailbox", "chmod o+x on what it lies in",
                            "jobs cannot reach '%s': '%s' has mode %04o", path, parent,
                            (unsigned)above.st_mode & 07777);
        else
                doctor_tell(d, FINDING_OK, "hook mailbox", NULL,
                            "'%s' takes notes while the agent is away", path);
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

static void look_at_snapshots(Doctor *d) {
        _cleanup_free_ char *version = driver_version(d);
        if (!d->config->snapshot.enabled)
                doctor_tell(d, FINDING_WARNING, "snapshot", "set snapshot.enabled: true",
                            "is switched off: nothing is recorded of the hardware when a job "
                            "fails");
        else
                doctor_tell(d, FINDING_OK, "snapshot", NULL, "%s%s",
                            version ? "the Neuron driver is " : "no Neuron driver is loaded here",
                            version ? version : "");
}

/* The agent's own rights do not reach to devices and others' processes; a unit beside it has them. */
static void look_at_probe(Doctor *d) {
        _cleanup_free_ char *parent = path_parent(d->config->api.socket),
                            *path = parent ? path_join(parent, "probe.sock") : NULL;
        uid_t uid;
        struct stat st;
        if (!path || !d->config->snapshot.enabled || !doctor_agent_uid(d, &uid) || uid == 0)
                return; /* no agent, or one that may look at all by itself */
        if (stat(path, &st) == 0 && S_ISSOCK(st.st_mode))
                doctor_tell(d, FINDING_OK, "snapshot", NULL,
                            "'%s' is there: snapshots are taken with the rights that it takes",
                            path);
        else
                doctor_tell(d, FINDING_WARNING, "snapshot",
                            "systemctl enable --now neuron-collectd-probe.socket",
                            "there is no '%s': a snapshot has only what the agent's own user may "
                            "see",
                            path);
}

void doctor_hook(Doctor *d) {
        HookView v;
        hook_view_gather(d->hook_directory, HOOK_PROGRAM, &v);
        look_at_hook(d, &v);
        if (v.hook.kind == HOOK_OURS || d->agent) {
                look_at_socket(d);
                look_at_mailbox(d);
        }
        look_at_snapshots(d);
        look_at_probe(d);
        hook_view_done(&v);
}
