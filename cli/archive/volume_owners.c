/* Which users' files a reading command believes on a volume: the owner of the volume's root, the
 * user neuron-collectd, the user of the agent that runs here, those in agreement.trusted_uids and
 * in
 * --trust-uid, root and the reader. Reading the files, and what is done without those of other
 * users, is left to the callers. */
#include "cli/archive/volume_owners.h"

#include <errno.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/peers/incidents_name.h"
#include "config/config.h"
#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/path.h"
#include "lib/neuron/agent_uid.h"

#define AGENT_USER "neuron-collectd" /* systemd/sysusers.d */

/* Adds the user of the agent that runs here: only that user, or root for it, can create its socket.
 */
static void add_agent(VolumeOwners *o, const char *socket) {
        struct stat st;
        if (lstat(socket, &st) == 0 && S_ISSOCK(st.st_mode))
                o->uids[o->n++] = st.st_uid;
}

static void load_trusted(VolumeOwners *o) {
        _cleanup_(config_freep) Config *config = NULL;
        bool is_read = access(o->cli->config_file, R_OK) == 0 &&
                       cli_load_config(o->cli, true, &config) == CLI_YES;
        if (!is_read && config_defaults(&config) < 0)
                return; /* a reader needs no configuration */
        add_agent(o, config->api.socket);
        if (!is_read)
                return;
        o->trusted = config->agreement.trusted_uids.items;
        config->agreement.trusted_uids = (StringList){ 0 };
}

/* @return whether a directory is an incident's, by its name `20260527-051233-…` */
static bool is_incident(const char *name) {
        size_t n_date = strspn(name, "0123456789");
        return n_date == 8 && name[8] == '-' && strspn(name + 9, "0123456789") == 6 &&
               name[15] == '-';
}

/* Finds the volume's root above an incident's directory: the nearest directory with `.incidents`.
 * There may be directories between them, because a destination's path can have more variables than
 * the incident's. Without `.incidents` (agreement is off) the directory above is taken.
 * @return the caller's; NULL: it cannot be found, or no memory */
static char *find_root_above(const char *incident) {
        _cleanup_free_ char *at = realpath(incident, NULL), *above = path_parent(incident);
        struct stat st;
        while (at && strcmp(at, "/") != 0) {
                char *parent = path_parent(at);
                free(at);
                at = parent;
                _cleanup_free_ char *records = at ? path_join(at, INCIDENTS_DIRECTORY) : NULL;
                if (records && lstat(records, &st) == 0 && S_ISDIR(st.st_mode))
                        return TAKE_PTR(at);
        }
        return TAKE_PTR(above);
}

void volume_owners_init(VolumeOwners *o, const Cli *cli, const char *directory) {
        struct stat st;
        _cleanup_free_ char *root = !directory                          ? NULL
                                    : is_incident(path_name(directory)) ? find_root_above(directory)
                                                                        : strdup(directory);
        const struct passwd *pw = getpwnam(AGENT_USER);
        *o = (VolumeOwners){ .cli = cli };
        if (root && stat(root, &st) == 0)
                o->uids[o->n++] = st.st_uid;
        if (pw)
                o->uids[o->n++] = pw->pw_uid;
        load_trusted(o);
}

void volume_owners_done(VolumeOwners *o) {
        for (size_t i = 0; i < o->n_refused; i++)
                free(o->refused[i].example);
        strings_free(o->trusted);
        strings_free(o->given);
        *o = (VolumeOwners){ 0 };
}

bool volume_owners_has(const VolumeOwners *o, int64_t owner) {
        if (owner == OWNER_UNKNOWN)
                return true;
        for (size_t i = 0; i < o->n; i++)
                if (owner == (int64_t)o->uids[i])
                        return true;
        return agent_uid_is_trusted((uid_t)owner, geteuid(), o->trusted) ||
               agent_uid_is_trusted((uid_t)owner, geteuid(), o->given);
}

int volume_owners_add(VolumeOwners *o, const char *users) {
        _cleanup_free_ char *text = strdup(users);
        char **given = calloc(strlen(users) + 2, sizeof *given), *rest = text, *user;
        size_t n = 0;
        bool is_ok = given && text;
        while (is_ok && (user = strsep(&rest, ",")))
                if (*user)
                        is_ok = (given[n++] = strdup(user)) != NULL;
        strings_free(o->given);
        o->given = given;
        return is_ok ? 0 : -ENOMEM;
}

bool volume_owners_check(VolumeOwners *o, int64_t owner, const char *path) {
        size_t i = 0;
        if (volume_owners_has(o, owner))
                return true;
        while (i < o->n_refused && o->refused[i].uid != owner)
                i++;
        if (i == REFUSED_USERS_MAX) {
                o->n_more++;
                return false;
        }
        if (i == o->n_refused) {
                o->n_refused++;
                o->refused[i].uid = owner;
                o->refused[i].example = strdup(path);
        }
        o->refused[i].n_files++;
        return false;
}

void volume_owners_report(const VolumeOwners *o) {
        char files[CLI_COUNT_SIZE];
        for (size_t i = 0; i < o->n_refused; i++)
                cli_error("left out: %s of uid %lld, which is not known as an agent's, such as "
                          "'%s'; if agents run as that uid, repeat with --trust-uid %lld, or add "
                          "it to agreement.trusted_uids of '%s'",
                          cli_count(files, o->refused[i].n_files, "file"),
                          (long long)o->refused[i].uid,
                          o->refused[i].example ? o->refused[i].example : "?",
                          (long long)o->refused[i].uid, o->cli->config_file);
        if (o->n_more > 0)
                cli_error("left out as well: %s of further users",
                          cli_count(files, o->n_more, "file"));
}
