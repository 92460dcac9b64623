/* The backend of agent/api: performs the requests of an operator. Each is checked against the state
 * of the bundle, and one that is refused gets a sentence that says why. The view is filled in
 * view.c, and a bundle is explained in explain.c. */
#include "agent/agent_private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/delivery/scheduler.h"
#include "agent/intake/intake.h"
#include "agent/store/bundle.h"
#include "agent/store/store.h"
#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"

#define SNAPSHOT_FILE_MAX_BYTES (256 * MIB) /* what the command line accepts in one reply */
#define SNAPSHOT_FILES_MAX 1024

/* ---- bundles ---- */

static int on_get(const char *id, BundleRecord *ret, char **ret_explain, void *userdata) {
        Agent *a = userdata;
        Bundle *b = bundle_table_find(a->bundles, id);
        int r = b ? bundle_record_copy(ret, &b->rec) : store_get(a->store, id, ret);
        if (r == STORE_E_NOT_FOUND)
                return -ENOENT;
        if (r < 0)
                return r;
        *ret_explain = agent_explain(a, ret, b);
        return 0;
}

static int on_list(const ViewFilter *f, int (*on_bundle)(const BundleRecord *b, void *u), void *u,
                   void *userdata) {
        Agent *a = userdata;
        return bundle_table_list(
                a->bundles,
                &(StoreFilter){ .state = f->state,
                                .source = f->source,
                                .subject = f->about,
                                .failure_key = f->failure_key[0] ? f->failure_key : NULL,
                                .failure_n = f->failure_n,
                                .after = f->after,
                                .limit = f->limit },
                on_bundle, u);
}

static _printf_(2, 3) int refuse(char **ret_message, const char *fmt, ...) {
        va_list ap;
        va_start(ap, fmt);
        *ret_message = strbuf_vformat(fmt, ap);
        va_end(ap);
        return -EPERM;
}

/* A quarantined bundle is not in the table: inserts it again. */
static int revive(Agent *a, const BundleRecord *rec, const char *action, Bundle **ret,
                  char **ret_message) {
        int r = bundle_table_revive(a->bundles, rec->id, agent_source_by_name(a, rec->source), ret);
        return r == -EEXIST ? refuse(ret_message,
                                     "'%s' is part of another bundle that is not final; %s when "
                                     "that one is",
                                     rec->path, action)
                            : r;
}

static int act_retry(Agent *a, Bundle *b, const BundleRecord *rec, char **ret_message) {
        if (rec->state == BUNDLE_QUARANTINED) {
                int r = revive(a, rec, "retry", &b, ret_message);
                if (r < 0)
                        return r;
                b->rec.attempts = 0;
                r = bundle_set_state(a->bundles, b, BUNDLE_READY, "retried by the operator");
                if (r < 0)
                        return r;
        }
        if (!b)
                return refuse(
                        ret_message,
                        "it is %s; only a bundle that is waiting or quarantined can be retried",
                        bundle_state_name(rec->state));
        b->rec.attempts = 0;
        if (b->rec.state == BUNDLE_SETTLING)
                intake_flush_bundle(b);
        scheduler_retry_now(a->scheduler, b);
        return 0;
}

static int act_cancel(Agent *a, Bundle *b, const BundleRecord *rec, char **ret_message) {
        if (!b && rec->state == BUNDLE_QUARANTINED) {
                int r = revive(a, rec, "cancel", &b, ret_message);
                if (r < 0)
                        return r;
        }
        if (!b)
                return refuse(ret_message, "it is %s already", bundle_state_name(rec->state));
        if (scheduler_cancel(a->scheduler, b))
                return 0; /* when its workers have ended */
        return bundle_set_state(a->bundles, b, BUNDLE_CANCELLED, "cancelled by the operator");
}

static int act_pin(Agent *a, Bundle *b, BundleRecord *rec, bool pinned) {
        if (b && !bundle_state_is_inactive(b->rec.state)) {
                b->rec.pinned = pinned;
                bundle_save(a->bundles, b);
                retention_runner_kick(a->retention_runner);
                return bundle_table_store_error(a->bundles);
        }
        rec->pinned = pinned;
        int r = store_update(a->store, rec);
        retention_runner_kick(a->retention_runner);
        return r;
}

static int on_act(const char *id, const char *action, char **ret_message, void *userdata) {
        Agent *a = userdata;
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        Bundle *b = bundle_table_find(a->bundles, id);
        int r = b ? bundle_record_copy(&rec, &b->rec) : store_get(a->store, id, &rec);
        if (r != 0)
                return r == STORE_E_NOT_FOUND ? -ENOENT : r;
        if (b && bundle_state_is_inactive(b->rec.state))
                return refuse(
                        ret_message,
                        "it is %s, and the state database cannot be written; free space in the "
                        "state directory first",
                        bundle_state_name(b->rec.state));
        if (!b && !bundle_state_is_inactive(rec.state)) { /* another one of its unit is worked on */
                r = revive(a, &rec, action, &b, ret_message);
                if (r < 0)
                        return r;
                if (b->source)
                        intake_source_resume_bundle(b->source, b);
        }
        if (strcmp(action, "retry") == 0)
                return act_retry(a, b, &rec, ret_message);
        if (strcmp(action, "cancel") == 0)
                return act_cancel(a, b, &rec, ret_message);
        if (strcmp(action, "pin") == 0 && retention_runner_is_deleting(a->retention_runner, id))
                return refuse(ret_message, "%s: it is being deleted", id);
        if (strcmp(action, "pin") == 0 || strcmp(action, "unpin") == 0)
                return act_pin(a, b, &rec, action[0] == 'p');
        return -EINVAL;
}

static int on_flush(bool settle, char **ret_message, void *userdata) {
        *ret_message = NULL;
        log_info(settle ? "scan requested: all sources are scanned now"
                        : "flush requested: all sources are scanned and shipped now");
        agent_flush(userdata, !settle);
        return 0;
}

/* ---- redelivery ---- */

#define REDELIVER_MAX                                                                              \
        1000 /* bundles of one request: they are kept in memory until they are delivered */

typedef struct Redelivery {
        Agent *agent;
        IntakeSource *source;
        char *const *targets; /* end in NULL */
        char *const *known;   /* all destinations */
        uint64_t since_usec, n;
        bool has_more;
} Redelivery;

static int redeliver_delivered(const BundleRecord *rec, void *userdata) {
        Redelivery *x = userdata;
        Agent *a = x->agent;
        if (rec->first_seen_usec < x->since_usec ||
            !path_is_below(rec->path, intake_source_spec(x->source)->fixed) ||
            retention_runner_is_deleting(a->retention_runner, rec->id))
                return 0;
        if (x->n >= REDELIVER_MAX) {
                x->has_more = true;
                return 1;
        }
        int r = bundle_table_redeliver(a->bundles, rec->id, x->source, x->targets);
        x->n += r >= 0;
        return r == -EEXIST ? 0 : r;
}

static int redirect_underway(Redelivery *x) {
        Agent *a = x->agent;
        int r = 0;
        LIST_FOREACH_ITEM_SAFE (Bundle, b, link, bundle_table_all(a->bundles)) {
                if (r < 0 || b->source != x->source || b->shipping.n_running > 0 ||
                    b->rec.first_seen_usec < x->since_usec ||
                    bundle_state_is_inactive(b->rec.state))
                        continue;
                r = bundle_redirect(a->bundles, b, x->targets, x->known);
                x->n += r > 0;
        }
        return MIN(r, 0);
}

/* Redelivers the bundles that are underway and those that are delivered. */
static int redeliver_source(Redelivery *x) {
        Agent *a = x->agent;
        const char *name = intake_source_config(x->source)->name;
        int r = redirect_underway(x);
        for (size_t i = 0; r >= 0 && x->targets[i]; i++)
                r = bundle_table_list(a->bundles,
                                      &(StoreFilter){ .state = BUNDLE_DELIVERED,
                                                      .source = name,
                                                      .lacks = x->targets[i] },
                                      redeliver_delivered, x);
        return r;
}

static int redeliver_all(Redelivery *x, const char *destination) {
        Agent *a = x->agent;
        const Config *c = a->config;
        char *one[] = { (char *)destination, NULL };
        int r = store_begin(a->store);
        for (size_t i = 0; r >= 0 && i < c->n_sources; i++) {
                x->source = agent_source_by_name(a, c->sources[i].name);
                x->targets = destination ? one : c->sources[i].destinations.items;
                if (x->source &&
                    (!destination || string_list_has(&c->sources[i].destinations, destination)))
                        r = redeliver_source(x);
        }
        x->source = agent_source_by_name(a, AGENT_SOURCE);
        if (r >= 0 && destination && x->source) { /* of that nothing is left when it is delivered */
                x->targets = one;
                r = redirect_underway(x);
        }
        int committed = store_commit(a->store);
        return r < 0 ? r : committed;
}

static int on_redeliver(const char *destination, uint64_t since_usec, uint64_t *ret_n,
                        bool *ret_more, char **ret_message, void *userdata) {
        Agent *a = userdata;
        const Config *c = a->config;
        Redelivery x = { .agent = a, .since_usec = since_usec };
        if (destination && !config_find_destination(c, destination))
                return refuse(ret_message, "there is no destination '%s'", destination);
        _cleanup_free_ char **known = calloc(c->n_destinations + 1, sizeof *known);
        if (!known)
                return -ENOMEM;
        for (size_t i = 0; i < c->n_destinations; i++)
                known[i] = c->destinations[i].name;
        x.known = known;
        int r = redeliver_all(&x, destination);
        agent_recount_lacking(a);
        scheduler_kick(a->scheduler);
        log_info("redelivery requested: %llu %s", (unsigned long long)x.n,
                 x.n == 1 ? "bundle" : "bundles");
        *ret_n = x.n;
        *ret_more = x.has_more;
        return r;
}

static int on_drain(bool on, char **ret_message, void *userdata) {
        *ret_message = NULL;
        if (on)
                agent_drain(userdata, DRAIN_OPERATOR, "requested by the operator", 0);
        else
                agent_resume(userdata);
        return 0;
}

/* ---- snapshots ---- */

static int on_snapshot(char ret_name[SNAPSHOT_NAME_SIZE], char **ret_message, void *userdata) {
        Agent *a = userdata;
        _Static_assert((int)SNAPSHOT_NAME_SIZE == (int)INCIDENT_NAME_SIZE, "one name");
        const char *why = NULL;
        int r = a->incidents ? incidents_request(a->incidents, ret_name, &why) : -ENODEV;
        if (r == 0)
                return 0;
        *ret_message = strdup(r == -EPERM   ? "snapshots are off; set snapshot.enabled to have them"
                              : r == -EBUSY ? "a snapshot is underway; try again when "
                                              "it has ended"
                              : r == -ENODEV ? "snapshots are not possible; see the log"
                              : why          ? why
                                             : "not possible now; see the log");
        return -EPERM;
}

static char **list_files(const char *directory) {
        char **files = calloc(SNAPSHOT_FILES_MAX + 1, sizeof *files);
        _cleanup_closedir_ DIR *d = opendir(directory);
        const struct dirent *e;
        size_t n = 0;
        while (files && d && n < SNAPSHOT_FILES_MAX && (e = readdir(d)))
                if (e->d_name[0] != '.' && (files[n] = strdup(e->d_name)))
                        n++;
        if (n > 0)
                qsort(files, n, sizeof *files, array_compare_strings);
        return files;
}

static int on_get_snapshot(const char *name, const char *file, SnapshotAnswer *ret,
                           void *userdata) {
        const Agent *a = userdata;
        IncidentView v;
        *ret = (SnapshotAnswer){ 0 };
        if (!a->incidents || !incidents_get(a->incidents, name, &v))
                return -ENOENT;
        if (file && (*file == '\0' || *file == '.' || strchr(file, '/')))
                return -ENOENT;
        ret->done = v.done;
        ret->directory = strdup(v.directory);
        ret->files = list_files(v.directory);
        if (!file && !v.done)
                return 0;
        _cleanup_close_ int fd = open(v.directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        int r = fd < 0 ? -errno
                       : fs_read_file(fd, file ? file : "snapshot.json", SNAPSHOT_FILE_MAX_BYTES,
                                      &ret->data, &ret->n_data);
        return file ? r : 0; /* a snapshot that failed has no document */
}

void agent_backend_init(Agent *a) {
        a->backend = (AgentBackend){ .view = agent_view_fill,
                                     .list = on_list,
                                     .get = on_get,
                                     .act = on_act,
                                     .flush = on_flush,
                                     .redeliver = on_redeliver,
                                     .drain = on_drain,
                                     .snapshot = on_snapshot,
                                     .get_snapshot = on_get_snapshot,
                                     .userdata = a };
}
