/* `--remains`, for the scripts of the packages: prints what a removal of the agent leaves behind,
 * that is the directories of hard links beside the sources, and the bundles that were never
 * delivered. It opens the database itself, so no agent may run; what it cannot find out is logged,
 * and makes the result incomplete. */
#include <errno.h>
#include <linux/securebits.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/agent_private.h"
#include "agent/retention/link_dirs.h"
#include "agent/retention/link_list.h"
#include "agent/retention/source_spec.h"
#include "agent/store/store.h"
#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/path.h"

DEFINE_CLEANUP(SourceSpec, source_spec_unref);
DEFINE_CLEANUP(Store, store_close);

typedef struct Remains {
        FILE *file;
        char **directories; /* printed */
        size_t n_directories;
        size_t n_lost;        /* bundles whose links are in none of them */
        char lost_source[64]; /* of the last one */
        bool is_incomplete;
} Remains;

static void remains_done(Remains *r) {
        for (size_t i = 0; i < r->n_directories; i++)
                free(r->directories[i]);
        free(r->directories);
}

/* Becomes the owner of the state directory, to whom the links belong. root keeps its capabilities,
 * to read directories of others. */
static int become_owner(const char *state_directory) {
        struct stat st;
        if (stat(state_directory, &st) < 0)
                return errno == ENOENT ? 0 : -errno;
        if (st.st_uid == geteuid())
                return 0;
        if (prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0) == 0 &&
            setegid(st.st_gid) == 0 && seteuid(st.st_uid) == 0)
                return 0;
        int r = -errno;
        log_error(r, "'%s' belongs to uid %u; run this as that user, or as root", state_directory,
                  st.st_uid);
        return r;
}

static bool is_printed(const Remains *r, const char *path) {
        for (size_t i = 0; i < r->n_directories; i++)
                if (strcmp(r->directories[i], path) == 0)
                        return true;
        return false;
}

static const char *reason(int error) {
        switch (error) {
        case -EACCES:
                return "permission denied; run this as root";
        case -EUCLEAN:
                return "it was moved, and something else is there now";
        case -EINVAL:
                return "its path has more than one line";
        default:
                return strerror(-error);
        }
}

static void print_directory(Remains *r, const char *path) {
        fprintf(r->file, "%s\n", path);
        if (array_grow(&r->directories, r->n_directories, sizeof path) == 0 &&
            (r->directories[r->n_directories] = strdup(path)))
                r->n_directories++;
        else
                r->is_incomplete = true; /* and a later directory may be printed twice */
}

static void warn(Remains *r, const char *path, int error) {
        r->is_incomplete = true;
        log_warning(0, "'%s' may have hard links, which hold disk space: %s", path, reason(error));
}

static void on_place(const char *path, int error, void *userdata) {
        if (is_printed(userdata, path))
                return;
        if (error < 0)
                warn(userdata, path, error);
        else
                print_directory(userdata, path);
}

/* A directory that is missing is skipped: on_bundle() notices if its links are missed. */
static void on_listed(const char *directory, void *userdata) {
        int r = link_dirs_check(directory);
        if (r < 0 && r != -ENOENT)
                warn(userdata, directory, r);
        if (r != -ENOENT && r != -EUCLEAN && !is_printed(userdata, directory))
                print_directory(userdata, directory);
}

static int print_links(const Config *config, Remains *remains) {
        _cleanup_free_ char *list = path_join(config->state_directory, LINK_LIST_NAME);
        char instance_id[INSTANCE_ID_SIZE];
        const char *origin;
        int r = list ? link_list_read(list, on_listed, remains) : -ENOMEM;
        if (r == 0 || r == -ENOENT) /* no agent has held links here */
                r = ec2_find_instance_id(config, environ, instance_id, &origin);
        for (size_t i = 0; i < config->n_sources && r >= 0; i++) {
                _cleanup_(source_spec_unrefp) SourceSpec *spec = NULL;
                r = source_spec_new(&spec, &config->sources[i], instance_id, "/proc");
                if (r >= 0)
                        link_dirs_find(spec->link_dirs, on_place, remains);
        }
        return r;
}

static bool has_links(const Remains *r, const char *bundle_id) {
        for (size_t i = 0; i < r->n_directories; i++) {
                _cleanup_free_ char *path = path_join(r->directories[i], bundle_id);
                if (path && access(path, F_OK) == 0)
                        return true;
        }
        return false;
}

/* Prints only fields that cannot have a control character: a user has chosen the path. */
static int on_bundle(BundleRecord *b, void *userdata) {
        Remains *r = userdata;
        if (!bundle_state_is_terminal(b->state))
                fprintf(r->file, "%s %s %s\n", b->id, bundle_state_name(b->state), b->source);
        if (b->links_held && !has_links(r, b->id)) {
                r->n_lost++;
                (void)snprintf(r->lost_source, sizeof r->lost_source, "%s", b->source);
        }
        return 0;
}

static int print_bundles(const Config *config, Remains *remains) {
        _cleanup_free_ char *database = NULL;
        _cleanup_(store_closep) Store *store = NULL;
        pid_t holder;
        database = path_join(config->state_directory, "state.db");
        if (!database)
                return -ENOMEM;
        if (access(database, F_OK) < 0)
                return errno == ENOENT ? 0 : -errno; /* it never ran */
        int r = store_open(&store, config->state_directory, NULL, &holder);
        if (r == STORE_E_LOCKED)
                log_error(0, "an agent holds the state directory; stop it first");
        else if (r == -EBUSY)
                log_error(0, "another program has '%s' open; close it", database);
        else if (r == STORE_E_UNUSABLE) {
                remains->is_incomplete = true;
                log_warning(0,
                            "what was not delivered is not known: '%s' is damaged, or was written "
                            "by another build of neuron-collectd; run its --remains, or start this "
                            "one, which builds a new database from what is on disk",
                            database);
                return 0;
        }
        if (r != 0)
                return r < 0 ? r : -EBUSY;
        r = store_list(store, &(StoreFilter){ .state = -1 }, on_bundle, remains);
        if (r >= 0 && remains->n_lost > 0) {
                remains->is_incomplete = true;
                log_warning(0,
                            "%zu bundles have hard links that are not found, the last of source "
                            "%s; where a file system is not mounted they hold disk space",
                            remains->n_lost, remains->lost_source);
        }
        return r;
}

int agent_print_remains(Config *config, FILE *f) {
        _cleanup_(remains_done) Remains remains = { .file = f };
        int r = become_owner(config->state_directory);
        if (r < 0)
                return r;
        int links = print_links(config, &remains);
        fputs("\n", f);
        r = print_bundles(config, &remains);
        r = links < 0 ? links : r;
        if (r >= 0 && fflush(f) != 0) /* a full disk must not look like nothing that remains */
                r = -errno;
        if (r < 0)
                log_error(r, "cannot report all that is left behind");
        return r < 0 ? r : remains.is_incomplete ? AGENT_E_INCOMPLETE : 0;
}
