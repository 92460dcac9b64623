/* Finds the users whose agents write to a volume, by the owners of the directories that only agents
 * create, and advises what to set when there are several, or when any user may write to the
 * volume's root. Which user counts as an agent is decided by uploaders/volume
 * (agreement.trusted_uids); printing is left to doctor_destinations.c. */
#include "cli/doctor/volume_users.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/names.h"

#define USERS_MAX 16     /* users that the advice names */
#define ENTRIES_MAX 2000 /* entries of the volume that are read */
/* The group that the advice proposes to agents of several users */
#define GROUP_NAME "neuron-archive"
#define GROUP_NUMBER "7330"

typedef struct Users {
        uid_t uids[USERS_MAX];
        size_t n, n_entries;
        Volume *v;
        uid_t agent; /* the user of this node's agent */
} Users;

static void add_user(Users *u, uid_t uid) {
        if (uid == u->agent || volume_trusts(u->v, uid))
                return;
        for (size_t i = 0; i < u->n; i++)
                if (u->uids[i] == uid)
                        return;
        if (u->n < USERS_MAX)
                u->uids[u->n++] = uid;
}

/* @return whether the name is that of an incident's directory, or of the one beside it that an
 * agent creates when the first one refuses it, `<incident>.<instance-id>` */
static bool is_incident(const char *directory) {
        PathTemplate *t;
        char bad;
        _cleanup_free_ char *name = strndup(directory, strcspn(directory, "."));
        if (!name || path_template_new(&t, "/%d-%c", "dc", &bad) < 0)
                return false;
        bool matches = path_template_match(t, name, NULL);
        path_template_free(t);
        return matches;
}

/* Adds the owners of nodes' directories in incidents' directories, and of the directories in
 * `.incidents`. Agents create these; another user could only imitate them. */
static void add_users_of(Users *u, int fd, unsigned depth) {
        _cleanup_closedir_ DIR *dir = NULL;
        const struct dirent *e;
        struct stat st;
        if (fs_opendir_fd(fd, &dir) < 0)
                return;
        while (u->n_entries < ENTRIES_MAX && (e = readdir(dir))) {
                bool is_hidden = e->d_name[0] == '.';
                u->n_entries++;
                if ((is_hidden && (depth > 0 || strcmp(e->d_name, ".incidents") != 0)) ||
                    fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
                    !S_ISDIR(st.st_mode) || (depth == 0 && !is_hidden && !is_incident(e->d_name)))
                        continue;
                add_user(u, st.st_uid);
                if (depth == 0)
                        add_users_of(u,
                                     openat(dirfd(dir), e->d_name,
                                            O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC),
                                     depth + 1);
        }
}

static char *format_users(const Users *u) {
        StrBuf b = STRBUF_INIT;
        for (size_t i = 0; i < u->n; i++)
                strbuf_addf(&b, "%s%u", i > 0 ? ", " : "", (unsigned)u->uids[i]);
        return strbuf_detach(&b);
}

/* @return the user of this node's agent: the owner of its state directory */
static uid_t agent_of(const Config *config) {
        struct stat st;
        return stat(config->state_directory, &st) == 0 ? st.st_uid : geteuid();
}

static VolumeAdvice advise_users(const Config *config, const ConfigDestination *d, const char *root,
                                 const Users *u) {
        _cleanup_free_ char *users = format_users(u), *others = NULL;
        const char *group = d->group && *d->group ? d->group : GROUP_NUMBER;
        StrBuf trusted = STRBUF_INIT;
        for (size_t i = 0; i < config->agreement.trusted_uids.n; i++)
                strbuf_addf(&trusted, "%s, ", config->agreement.trusted_uids.items[i]);
        strbuf_addf(&trusted, "%u, %s", (unsigned)u->agent, users ? users : "");
        others = strbuf_detach(&trusted);
        return (VolumeAdvice){
                .finding = WARNING,
                .detail =
                        strbuf_format("directories in '%s' belong to uid %s, but this node's agent "
                                      "has uid %u: a directory of one agent may refuse another, "
                                      "which then delivers to a directory beside it",
                                      root, users ? users : "", (unsigned)u->agent),
                .remedy = strbuf_format(
                        "remove directories of other users; give all agents one uid, or on each "
                        "node write "
                        "`g " GROUP_NAME " %s` and `m neuron-collectd " GROUP_NAME "` to "
                        "/etc/sysusers.d/neuron-archive.conf (in Kubernetes `supplementalGroups: "
                        "[%s]`), run `systemd-sysusers`, set `group: %s` and `mode: 2775` of the "
                        "destination and `trusted_uids: [%s]` of agreement, restart the agents, "
                        "and "
                        "once run `chgrp %s '%s' && chmod 2775 '%s'`",
                        group, group, group, others ? others : "", group, root, root)
        };
}

size_t volume_users_check(const Config *config, const ConfigDestination *destination,
                          const char *root, Volume *v, VolumeAdvice ret[static VOLUME_ADVICE_MAX]) {
        Users u = { .v = v, .agent = agent_of(config) };
        struct stat st;
        size_t n = 0;
        if (stat(root, &st) < 0)
                return 0;
        if (st.st_mode & 0002)
                ret[n++] = (VolumeAdvice){
                        .finding = WARNING,
                        .detail =
                                strbuf_format("all users may write in '%s' and create names there "
                                              "that agents need, such as .incidents",
                                              root),
                        .remedy = strbuf_format("`chown %u '%s' && chmod 0755 '%s'`",
                                                (unsigned)u.agent, root, root)
                };
        add_users_of(&u, open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC), 0);
        if (u.n > 0)
                ret[n++] = advise_users(config, destination, root, &u);
        return n;
}
