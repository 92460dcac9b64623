#include "cli/archive/volume_owners.h"

#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/config.h"
#include "lib/base/cleanup.h"
#include "lib/base/path.h"
#include "lib/neuron/agent_uid.h"

#define AGENT_USER "neuron-collectd" /* systemd/sysusers.d */
#define REMEDY "if it is an agent's user, add it to agreement.trusted_uids of '%s'"

static void load_trusted(VolumeOwners *o) {
        _cleanup_(config_freep) Config *config = NULL;
        if (access(o->cli->config_file, R_OK) < 0 ||
            cli_load_config(o->cli, true, &config) != CLI_YES)
                return; /* a reader needs no configuration */
        o->trusted = config->agreement.trusted_uids.items;
        config->agreement.trusted_uids = (StringList){ 0 };
}

/* @return whether a directory is an incident's, `20260527-051233-…`: not its owner but that of the
 * directory above is the volume's */
static bool is_incident(const char *name) {
        size_t n_date = strspn(name, "0123456789");
        return n_date == 8 && name[8] == '-' && strspn(name + 9, "0123456789") == 6 &&
               name[15] == '-';
}

void volume_owners_init(VolumeOwners *o, const Cli *cli, const char *directory) {
        struct stat st;
        _cleanup_free_ char *root = !directory                          ? NULL
                                    : is_incident(path_name(directory)) ? path_parent(directory)
                                                                        : strdup(directory);
        const struct passwd *pw = getpwnam(AGENT_USER);
        *o = (VolumeOwners){ .cli = cli, .further = OWNER_UNKNOWN };
        if (root && stat(root, &st) == 0)
                o->uids[o->n++] = st.st_uid;
        if (pw)
                o->uids[o->n++] = pw->pw_uid;
        load_trusted(o);
}

void volume_owners_done(VolumeOwners *o) {
        for (char **user = o->trusted; user && *user; user++)
                free(*user);
        free(o->trusted);
        *o = (VolumeOwners){ 0 };
}

bool volume_owners_has(const VolumeOwners *o, int64_t owner) {
        if (owner == OWNER_UNKNOWN || owner == o->further)
                return true;
        for (size_t i = 0; i < o->n; i++)
                if (owner == (int64_t)o->uids[i])
                        return true;
        return agent_uid_is_trusted((uid_t)owner, geteuid(), o->trusted);
}

bool volume_owners_check(VolumeOwners *o, int64_t owner, const char *path) {
        if (volume_owners_has(o, owner))
                return true;
        if (o->n_refused++ == 0)
                cli_error("'%s' belongs to uid %lld and is ignored; " REMEDY, path,
                          (long long)owner, o->cli->config_file);
        return false;
}

void volume_owners_add(VolumeOwners *o, int64_t owner, const char *path) {
        if (volume_owners_has(o, owner))
                return;
        if (getpwnam(AGENT_USER)) {
                (void)volume_owners_check(o, owner, path);
                return;
        }
        cli_error(
                "'%s' belongs to uid %lld, which is not known as an agent's user; its records are "
                "shown nevertheless; " REMEDY,
                path, (long long)owner, o->cli->config_file);
        o->further = owner;
}

void volume_owners_report(const VolumeOwners *o) {
        char files[CLI_COUNT_SIZE];
        if (o->n_refused > 1)
                cli_error("ignored as well: %s of users that are not known as agents",
                          cli_count(files, o->n_refused - 1, "file"));
}
