/* Notes whose directory is not on this machine: who waits, and who is next. */
#include "agent/containers.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "agent/containers_private.h"
#include "lib/base/fs.h"
#include "lib/base/log.h"
#include "lib/base/path.h"

#define SAY_USEC USEC_PER_MINUTE
/* What has not been found in a container by then is hardly there. */
#define FIND_USEC (5 * USEC_PER_SEC)

static const char *const counters[N_CONTAINERS_COUNTERS] = {
        [CONTAINERS_WHOLE] = "container_copies:whole",
        [CONTAINERS_INCOMPLETE] = "container_copies:incomplete",
        [CONTAINERS_REFUSED] = "container_copies:refused",
        [CONTAINERS_NOT_FOUND] = "container_copies:not_found",
};

void containers_count(const Containers *c, ContainersCounter which, uint64_t n) {
        (void)store_counter_add(c->context.store, counters[which], n); /* a figure */
}

void containers_refuse(Containers *c, const ContainerNote *n, const char *why) {
        uint64_t now = c->context.clock->boottime_usec(c->context.clock);
        containers_count(c, CONTAINERS_REFUSED, 1);
        c->n_unsaid++;
        if (c->said_usec > 0 && now < c->said_usec + SAY_USEC)
                return;
        _cleanup_free_ char *path = path_escape(n->path);
        log_warning(0,
                    "dumps are not copied out of their containers, and are lost with them: %" PRIu64
                    " since this was last said; the latest one '%s' of uid %u: %s",
                    c->n_unsaid, path ? path : "?", (unsigned)n->uid, why);
        c->said_usec = now;
        c->n_unsaid = 0;
}

void containers_count_not_found(const Containers *c, ListLink *notes) {
        LIST_FOREACH (l, notes) {
                const ContainerNote *n = CONTAINER_OF(l, ContainerNote, link);
                if (n->is_placed || n->is_here || n->is_refused)
                        continue;
                containers_count(c, CONTAINERS_NOT_FOUND, 1);
                if (!n->is_judged)
                        log_notice("note %s: what looks for its directory in containers has not "
                                   "come to it; if it was in one, it is lost with it",
                                   n->id);
        }
}

/* ---- notes ---- */

ContainerNote *container_note_free(ContainerNote *n) {
        if (!n)
                return NULL;
        for (size_t i = 0; i < NOTE_FILES_MAX; i++)
                free(n->promised[i]);
        free(n->source);
        free(n->relative);
        free(n->path);
        free(n->s3_prefix);
        free(n);
        return NULL;
}

static ContainerNote *note_new(const NoteView *v) {
        ContainerNote *n = calloc(1, sizeof *n);
        const char *prefix = v->note->s3_output_prefix;
        if (!n)
                return NULL;
        *n = (ContainerNote){ .uid = v->uid,
                              .hook_pid = v->hook_pid,
                              .noted_usec = v->noted_usec,
                              .source = strdup(v->likely_source),
                              .relative = strdup(v->likely_relative),
                              .path = strdup(v->likely_path),
                              .s3_prefix = prefix && prefix[0] ? strdup(prefix) : NULL };
        list_init(&n->link);
        (void)snprintf(n->id, sizeof n->id, "%s", v->note->id);
        return n->source && n->relative && n->path ? n : container_note_free(n);
}

static int on_gathered(sd_event_source *s, uint64_t usec, void *userdata) {
        (void)s;
        (void)usec;
        containers_kick(userdata);
        return 0;
}

static int arm(Containers *c) {
        int enabled = 0;
        if (!c->gather)
                return sd_event_add_time_relative(c->context.event, &c->gather, CLOCK_MONOTONIC,
                                                  CONTAINERS_GATHER_USEC, USEC_PER_MSEC,
                                                  on_gathered, c);
        int r = sd_event_source_get_enabled(c->gather, &enabled);
        if (r >= 0 && enabled != SD_EVENT_OFF)
                return 0; /* it is about to go off */
        r = sd_event_source_set_time_relative(c->gather, CONTAINERS_GATHER_USEC);
        return r < 0 ? r : sd_event_source_set_enabled(c->gather, SD_EVENT_ONESHOT);
}

static size_t waiting_of(const Containers *c, uid_t uid) {
        size_t n = 0;
        LIST_FOREACH (l, (ListLink *)&c->waiting)
                n += CONTAINER_OF(l, ContainerNote, link)->uid == uid;
        return n;
}

bool containers_on_note(Containers *c, const NoteView *v) {
        if (!v->likely_source || v->hook_pid <= 0 || c->config->hook.container_bytes == 0)
                return false;
        ContainerNote *n = note_new(v);
        if (!n)
                return false; /* its directory is not found, as without a container */
        if (c->n_waiting >= CONTAINERS_NOTES_MAX ||
            waiting_of(c, v->uid) >= CONTAINERS_NOTES_MAX_OF_UID) {
                containers_refuse(c, n,
                                  c->n_waiting >= CONTAINERS_NOTES_MAX
                                          ? "too many wait for it"
                                          : "too many of its user's wait for it");
                container_note_free(n);
                return false;
        }
        list_append(&c->waiting, &n->link);
        c->n_waiting++;
        int r = arm(c);
        if (r < 0)
                log_error(r, "cannot arm a timer; dumps in containers wait for the next one");
        return true;
}

static ContainerNote *find_in(ListLink *notes, const char *id) {
        LIST_FOREACH (l, notes) {
                ContainerNote *n = CONTAINER_OF(l, ContainerNote, link);
                if (strcmp(n->id, id) == 0)
                        return n;
        }
        return NULL;
}

static bool may_begin(const Containers *c, uid_t uid) {
        size_t n = 0, n_of_uid = 0;
        LIST_FOREACH (l, (ListLink *)&c->batches) {
                const ContainersBatch *b = CONTAINER_OF(l, ContainersBatch, link);
                n += batch_is_at_work(b);
                n_of_uid += batch_is_at_work(b) && b->uid == uid;
        }
        return n < CONTAINERS_BATCHES_MAX && n_of_uid < CONTAINERS_BATCHES_MAX_OF_UID;
}

void containers_on_finished(Containers *c, const NoteView *v) {
        ContainerNote *n = find_in(&c->waiting, v->note->id);
        if (n && !may_begin(c, n->uid)) { /* when its turn comes, nothing leads there any more */
                containers_refuse(c, n,
                                  "its hook has ended while others were being copied, as many "
                                  "as may be at once");
                list_remove(&n->link);
                c->n_waiting--;
                container_note_free(n);
                return;
        }
        LIST_FOREACH (l, &c->batches)
                n = n ? n : find_in(&CONTAINER_OF(l, ContainersBatch, link)->notes, v->note->id);
        if (!n)
                return;
        n->has_finished = true;
        for (size_t i = 0; i < NOTE_FILES_MAX && v->promised[i]; i++)
                if (!n->promised[i])
                        n->promised[i] = strdup(v->promised[i]); /* not missed without memory */
}

/* ---- who is next ---- */

/* All of this user that wait, in one order: it is his room that they share. None waits after it. */
static void begin(Containers *c, uid_t uid) {
        ListLink notes;
        const char *why = NULL;
        uint64_t bytes = containers_room(c, uid, &why);
        list_init(&notes);
        LIST_FOREACH_SAFE (l, &c->waiting)
                if (CONTAINER_OF(l, ContainerNote, link)->uid == uid) {
                        list_remove(l);
                        list_append(&notes, l);
                        c->n_waiting--;
                }
        if (bytes > 0) {
                int r = batch_begin(c, &notes, uid, bytes);
                if (r < 0)
                        log_warning(r, "cannot begin to copy dumps out of containers");
                return;
        }
        LIST_FOREACH_SAFE (l, &notes) {
                ContainerNote *n = CONTAINER_OF(l, ContainerNote, link);
                containers_refuse(c, n, why);
                c->context.on_known(n->id, c->context.userdata);
                list_remove(l);
                container_note_free(n);
        }
}

/* @return one whose turn it is; NULL: none */
static const ContainerNote *next_note(const Containers *c) {
        LIST_FOREACH (l, (ListLink *)&c->waiting) {
                const ContainerNote *n = CONTAINER_OF(l, ContainerNote, link);
                if (may_begin(c, n->uid))
                        return n;
        }
        return NULL;
}

void containers_kick(Containers *c) {
        const ContainerNote *n;
        while ((n = next_note(c)))
                begin(c, n->uid);
}

void containers_begin_all(Containers *c) {
        while (!list_is_empty(&c->waiting))
                begin(c, CONTAINER_OF(c->waiting.next, ContainerNote, link)->uid);
}

static size_t n_underway(const Containers *c) {
        size_t n = c->n_waiting;
        LIST_FOREACH (l, (ListLink *)&c->batches)
                n += CONTAINER_OF(l, ContainersBatch, link)->state != BATCH_LEFT;
        return n;
}

void containers_figures(const Containers *c, ContainersFigures *ret) {
        Store *s = c->context.store;
        *ret = (ContainersFigures){ .n_whole = store_counter(s, counters[CONTAINERS_WHOLE]),
                                    .n_incomplete =
                                            store_counter(s, counters[CONTAINERS_INCOMPLETE]),
                                    .n_refused = store_counter(s, counters[CONTAINERS_REFUSED]),
                                    .n_not_found = store_counter(s, counters[CONTAINERS_NOT_FOUND]),
                                    .n_underway = n_underway(c),
                                    .n_stranded = containers_n_stranded(c),
                                    .bytes = containers_bytes(c) };
}

size_t containers_n_unplaced(const Containers *c, uint64_t before_usec) {
        uint64_t now = c->context.clock->boottime_usec(c->context.clock);
        size_t n = now < before_usec ? c->n_waiting : 0;
        LIST_FOREACH (l, (ListLink *)&c->batches) {
                const ContainersBatch *b = CONTAINER_OF(l, ContainersBatch, link);
                bool may_find = b->state != BATCH_COPYING || now < b->since_usec + FIND_USEC;
                n += b->since_usec < before_usec &&
                     (b->state == BATCH_LEFT ? b->bytes > 0 : b->n_units > 0 || may_find);
        }
        return n;
}

/* ---- life ---- */

static int sweep(Containers *c) {
        _cleanup_closedir_ DIR *d = opendir(c->coming);
        const struct dirent *e;
        int r = d ? containers_sweep_units(c) : -errno;
        while (r >= 0 && (e = readdir(d)))
                if (e->d_name[0] != '.' && strlen(e->d_name) < CONTAINERS_NAME_SIZE)
                        r = batch_resume(c, e->d_name);
        if (r < 0)
                return r;
        containers_remove_over(c);
        r = containers_promise_again(&c->context, c->root);
        containers_tell_stranded(c);
        return r;
}

static int start(Containers *c) {
        _cleanup_free_ char *parent = path_parent(c->config->api.socket);
        c->root = path_join(c->config->state_directory, CONTAINERS_DIRECTORY);
        c->coming = c->root ? path_join(c->root, CONTAINERS_COMING) : NULL;
        c->socket = parent ? path_join(parent, "probe.sock") : NULL;
        int r = c->coming && c->socket ? fs_mkdir_p(c->coming, 0700) : -ENOMEM;
        if (r < 0)
                return r;
        c->root_fd = open(c->root, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (c->root_fd < 0)
                return -errno;
        r = worker_pool_new(&c->pool, c->context.event, "nc-containers", 1, WORKER_NORMAL);
        return r < 0 ? r : sweep(c);
}

int containers_new(Containers **ret, const ContainersContext *context, const Config *config) {
        Containers *c = calloc(1, sizeof *c);
        if (!c)
                return -ENOMEM;
        *c = (Containers){ .context = *context, .config = config, .root_fd = -1 };
        list_init(&c->waiting);
        list_init(&c->batches);
        list_init(&c->units);
        list_init(&c->jobs);
        int r = start(c);
        if (r < 0) {
                containers_free(c);
                return r;
        }
        *ret = c;
        return 0;
}

Containers *containers_free(Containers *c) {
        if (!c)
                return NULL;
        worker_pool_free(c->pool);
        LIST_FOREACH_SAFE (l, &c->jobs) {
                list_remove(l);
                containers_job_free(CONTAINER_OF(l, ContainersJob, mine));
        }
        LIST_FOREACH_SAFE (l, &c->batches)
                batch_free(CONTAINER_OF(l, ContainersBatch, link));
        LIST_FOREACH_SAFE (l, &c->waiting) {
                list_remove(l);
                container_note_free(CONTAINER_OF(l, ContainerNote, link));
        }
        containers_units_done(c);
        sd_event_source_disable_unref(c->gather);
        if (c->root_fd >= 0)
                (void)close(c->root_fd);
        free(c->root);
        free(c->coming);
        free(c->socket);
        free(c);
        return NULL;
}

void containers_rebind(Containers *c, const Config *config) {
        c->config = config;
        int r = containers_promise_again(&c->context, c->root);
        if (r < 0)
                log_warning(r, "what is missing from copies out of containers may not be said in "
                               "their bundles");
        containers_attach_again(c);
        containers_tell_stranded(c);
}

int containers_tell_missing(const ContainersContext *context, const Config *config) {
        _cleanup_free_ char *root = path_join(config->state_directory, CONTAINERS_DIRECTORY);
        return root ? containers_promise_again(context, root) : -ENOMEM;
}
