/* What a removal of the agent leaves behind, for the package's scripts: the directories of hard
 * links beside the sources, and what was never delivered. */
#include <errno.h>

#include "agent/agent_private.h"
#include "agent/retention/pins.h"
#include "agent/retention/source_spec.h"
#include "agent/store/store.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/path.h"

DEFINE_CLEANUP(SourceSpec, source_spec_unref);
DEFINE_CLEANUP(Store, store_close);

static int print_links(const Config *config, const char *instance_id, FILE *f) {
        for (size_t i = 0; i < config->n_sources; i++) {
                _cleanup_(source_spec_unrefp) SourceSpec *spec = NULL;
                int r = source_spec_new(&spec, &config->sources[i], instance_id, "/proc");
                if (r < 0)
                        return r;
                pins_print(spec->pins, f);
        }
        return 0;
}

/* Only what cannot have a control character: the path is a user's. */
static int print_bundle(BundleRecord *b, void *userdata) {
        if (b->state == BUNDLE_SETTLING || b->state == BUNDLE_READY ||
            b->state == BUNDLE_SHIPPING || b->state == BUNDLE_QUARANTINED)
                fprintf(userdata, "%s %s %s\n", b->id, bundle_state_name(b->state), b->source);
        return 0;
}

static int print_bundles(const Config *config, FILE *f) {
        _cleanup_free_ char *put_aside = NULL, *database = NULL;
        _cleanup_(store_closep) Store *store = NULL;
        pid_t holder;
        database = path_join(config->state_directory, "state.db");
        if (!database)
                return -ENOMEM;
        if (access(database, F_OK) < 0)
                return 0; /* it never ran */
        int r = store_open(&store, config->state_directory, &put_aside, &holder);
        if (r == STORE_E_LOCKED)
                log_error(0, "an agent holds the state directory; stop it first");
        if (r != 0)
                return r < 0 ? r : -EBUSY;
        return store_list(store, &(StoreFilter){ .state = -1 }, print_bundle, f);
}

int agent_print_remains(Config *config, FILE *f) {
        char instance_id[INSTANCE_ID_SIZE];
        const char *origin;
        int r = agent_find_instance_id(config, environ, instance_id, &origin);
        if (r >= 0)
                r = print_links(config, instance_id, f);
        if (r >= 0)
                fputs("\n", f);
        if (r >= 0)
                r = print_bundles(config, f);
        if (r < 0)
                log_error(r, "cannot read what is left behind");
        return r;
}
