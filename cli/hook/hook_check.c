/* What doctor checks of the hook: whose file is where the runtime looks, what it is chained to, and
 * whether jobs can reach the agent's socket and mailbox. */
#include "cli/hook/hook_check.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/hook/hook_file.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"

#define INSTALL "neuron-collect hook install"
#define MAILBOX_MODE 01733 /* every user may add a note, nobody may read or remove another's */

static void check_ours(const HookCheck *c, const HookStatus *v) {
        const char *fault = hook_status_chain_fault(v);
        if (!v->hook.is_executable)
                c->report(c->doctor, FAILED, "hook", INSTALL,
                          "'%s/" HOOK_NAME "' cannot be executed by every user, so their jobs "
                          "write no core dumps",
                          c->directory);
        else if (hook_status_is_outdated(v))
                c->report(c->doctor, WARNING, "hook", INSTALL,
                          "'%s/" HOOK_NAME "' is ours, version %s, but '%s' is version %s",
                          c->directory, v->hook.version, HOOK_PROGRAM, v->program.version);
        else
                c->report(c->doctor, OK, "hook", NULL, "'%s/" HOOK_NAME "' is ours, version %s",
                          c->directory, v->hook.version);
        if (fault)
                c->report(c->doctor, FAILED, "hook",
                          "remove " HOOK_CHAIN ", or let it lead to another program",
                          "the chained hook '%s' %s", v->chain, fault);
}

static void check_hook(const HookCheck *c, const HookStatus *v) {
        if (v->hook.kind == HOOK_OURS)
                check_ours(c, v);
        else if (hook_status_is_replaced(v))
                c->report(c->doctor, FAILED, "hook", INSTALL,
                          "'%s/" HOOK_NAME "' is no longer ours: a package upgrade has replaced "
                          "or removed it",
                          c->directory);
        else if (v->hook.kind == HOOK_MISSING)
                c->report(c->doctor, WARNING, "hook", INSTALL,
                          "'%s/" HOOK_NAME "' does not exist: without it the runtime writes no "
                          "core dumps",
                          c->directory);
        else if (v->hook.kind == HOOK_UNUSABLE)
                c->report(c->doctor, FAILED, "hook", "move it away, then " INSTALL,
                          "'%s/" HOOK_NAME "' cannot be used: %s", c->directory,
                          strerror(v->hook.error));
        else
                c->report(c->doctor, WARNING, "hook", INSTALL,
                          "'%s/" HOOK_NAME "' is not ours: dumps are only found by watching, "
                          "and nothing is recorded at the moment of failure",
                          c->directory);
}

/* Connects to the socket and closes it. @return 0: somebody listens, -errno */
static int connect_to(const char *path) {
        _cleanup_close_ int fd = fs_connect_socket(path, SOCK_SEQPACKET);
        return MIN(fd, 0);
}

static void check_socket(const HookCheck *c) {
        const char *path = c->config->hook.socket;
        struct stat st;
        int r = stat(path, &st) < 0 ? -errno : 0;
        if (r == 0 && (st.st_mode & 0222) != 0222)
                c->report(c->doctor, FAILED, "hook socket", "chmod 0666, or restart the agent",
                          "'%s' has mode %04o: jobs of other users cannot send notes", path,
                          (unsigned)st.st_mode & 07777);
        else if (r == 0)
                r = connect_to(path);
        else if (c->has_agent)
                c->report(c->doctor, FAILED, "hook socket", "check the agent's log, and restart it",
                          "'%s' does not exist, although the agent runs", path);
        if (r == 0 && (st.st_mode & 0222) == 0222)
                c->report(c->doctor, OK, "hook socket", NULL, "'%s' accepts notes from every user",
                          path);
        else if (r < 0 && (!c->has_agent || r != -ENOENT))
                c->report(c->doctor, WARNING, "hook socket", "start the agent, or its sockets",
                          "'%s' does not accept notes: %s; they wait in the mailbox", path,
                          strerror(-r));
}

static void check_mailbox(const HookCheck *c) {
        const char *path = c->config->hook.mailbox;
        _cleanup_free_ char *parent = path_parent(path);
        struct stat st, above;
        if (stat(path, &st) < 0) {
                c->report(c->doctor, WARNING, "hook mailbox",
                          "start the agent, which creates it, or run systemd-tmpfiles --create",
                          "'%s' cannot be used: %s; notes are lost while the agent does not run",
                          path, strerror(errno));
                return;
        }
        if (!S_ISDIR(st.st_mode) || (st.st_mode & 07777) != MAILBOX_MODE)
                c->report(c->doctor, FAILED, "hook mailbox", "chmod 1733, or restart the agent",
                          "'%s' has mode %04o, not 1733: %s", path, (unsigned)st.st_mode & 07777,
                          (st.st_mode & 0003) != 0003
                                  ? "jobs cannot leave notes there"
                                  : "users can read or remove each other's notes");
        else if (parent && stat(parent, &above) == 0 && !(above.st_mode & 0001))
                c->report(c->doctor, FAILED, "hook mailbox", "chmod o+x on the parent directory",
                          "jobs cannot reach '%s': '%s' has mode %04o", path, parent,
                          (unsigned)above.st_mode & 07777);
        else
                c->report(c->doctor, OK, "hook mailbox", NULL,
                          "'%s' accepts notes while the agent does not run", path);
}

void hook_check(const HookCheck *c) {
        HookStatus s;
        hook_status_read(c->directory, HOOK_PROGRAM, &s);
        check_hook(c, &s);
        if (s.hook.kind == HOOK_OURS || c->has_agent) {
                check_socket(c);
                check_mailbox(c);
        }
        hook_status_done(&s);
}
