/* The machine of one order: copying, perhaps salvaging, then reading, building and clearing in the worker. What is on disk is enough to go on from any point. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/containers_private.h"
#include "lib/base/fs.h"
#include "lib/base/log.h"
#include "lib/base/path.h"

#define SALVAGE_AGAIN_USEC (15 * USEC_PER_SEC)
/* As long as a disk is full, say. */
#define AGAIN_MIN_USEC USEC_PER_SEC
#define AGAIN_MAX_USEC USEC_PER_MINUTE
#define AGAIN_SHIFT_MAX 6u
#define SALVAGES_MAX 24 /* an earlier supervisor may hold the directory for as long as it copies */
#define END_USEC USEC_PER_MINUTE /* a supervisor's own time, beside the collector's */

void batch_set_state(ContainersBatch *b, BatchState to) {
        static const char *const names[N_BATCH_STATES] = {
                [BATCH_COPYING] = "copying",   [BATCH_SALVAGING] = "salvaging",
                [BATCH_READING] = "reading",   [BATCH_BUILDING] = "building",
                [BATCH_CLEARING] = "clearing", [BATCH_LEFT] = "left for the next start",
        };
        log_debug("copy %s: %s", b->name, names[to]);
        b->state = to;
}

/* ---- life ---- */

static void free_notes(ContainersBatch *b) {
        LIST_FOREACH_SAFE (l, &b->notes) {
                b->owner->context.on_known(CONTAINER_OF(l, ContainerNote, link)->id,
                                           b->owner->context.userdata);
                list_remove(l);
                container_note_free(CONTAINER_OF(l, ContainerNote, link));
        }
        b->n_notes = 0;
}

ContainersBatch *batch_free(ContainersBatch *b) {
        if (!b)
                return NULL;
        probe_free(b->probe);
        sd_event_source_disable_unref(b->timer);
        list_remove(&b->link);
        free_notes(b);
        free(b->units); /* the units are their owner's */
        if (b->dir_fd >= 0)
                (void)close(b->dir_fd);
        free(b);
        return NULL;
}

void batch_let_go_of(ContainersBatch *b, const ContainerUnit *u) {
        for (size_t i = 0; i < b->n_units; i++)
                if (b->units[i] == u) {
                        containers_unit_let_go(b->owner, b->units[i]);
                        b->units[i] = b->units[--b->n_units];
                        return;
                }
}

void batch_finish(ContainersBatch *b) {
        Containers *c = b->owner;
        while (b->n_units > 0)
                batch_let_go_of(b, b->units[0]);
        batch_free(b);
        containers_kick(c);
}

void batch_leave(ContainersBatch *b) {
        Containers *c = b->owner;
        batch_set_state(b, BATCH_LEFT);
        b->probe = probe_free(b->probe);
        b->timer = sd_event_source_disable_unref(b->timer);
        while (b->n_units > 0)
                batch_let_go_of(b, b->units[0]);
        free_notes(b);
        b->promised_bytes = 0;
        b->bytes = b->dir_fd < 0 ? 0 : tree_measure(b->dir_fd);
        b->dir_fd = b->dir_fd < 0 ? -1 : (close(b->dir_fd), -1);
        containers_kick(c);
}

bool batch_is_at_work(const ContainersBatch *b) {
        return b->state != BATCH_LEFT && b->n_failures == 0;
}

static ContainersBatch *batch_new(Containers *c, const char *name) {
        ContainersBatch *b = calloc(1, sizeof *b);
        if (!b)
                return NULL;
        *b = (ContainersBatch){ .owner = c, .dir_fd = -1 };
        list_init(&b->notes);
        (void)snprintf(b->name, sizeof b->name, "%s", name);
        list_append(&c->batches, &b->link);
        return b;
}

/* ---- the supervisor ---- */

static void on_message(const char *text, void *userdata) {
        CopyDump d;
        if (strncmp(text, "container ", 10) != 0 ||
            copy_dump_parse(&d, text + 10, strlen(text + 10)) != 0)
                return; /* the document says it again */
        batch_take_dump(userdata, &d);
        copy_dump_done(&d);
}

static int on_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        (void)s;
        (void)usec;
        batch_step(userdata);
        return 0;
}

static int arm(ContainersBatch *b, uint64_t usec) {
        if (!b->timer)
                return sd_event_add_time_relative(b->owner->context.event, &b->timer,
                                                  CLOCK_MONOTONIC, usec, USEC_PER_MSEC, on_timer,
                                                  b);
        int r = sd_event_source_set_time_relative(b->timer, usec);
        return r < 0 ? r : sd_event_source_set_enabled(b->timer, SD_EVENT_ONESHOT);
}

static void on_end(int result, const char *why, void *userdata) {
        ContainersBatch *b = userdata;
        b->probe = probe_free(b->probe);
        if (result == 0) {
                batch_set_state(b, BATCH_READING);
                batch_step(b);
                return;
        }
        log_warning(0, "copy %s: %s; what was copied by then is gathered", b->name, why);
        uint64_t wait = b->state == BATCH_SALVAGING ? SALVAGE_AGAIN_USEC : 0;
        batch_set_state(b, BATCH_SALVAGING);
        if (b->n_salvages++ < SALVAGES_MAX && arm(b, wait) >= 0)
                return;
        log_error(
                result,
                "copy %s: it is given up until the next start; what there is of it lies in '%s/%s'",
                b->name, b->owner->coming, b->name);
        batch_leave(b);
}

static int order(ContainersBatch *b, ProbeMode mode, uint64_t max_bytes) {
        static const char *const only[] = { "container_dumps", NULL };
        const Containers *c = b->owner;
        _cleanup_free_ CollectContainerDump *dumps = calloc(b->n_notes + 1, sizeof *dumps);
        if (!dumps)
                return -ENOMEM;
        ProbeOrder o = { .mode = mode,
                         .collectors = (char **)only,
                         .document = (char *)CONTAINERS_DOCUMENT,
                         .name = b->name,
                         .trigger = (char *)"dumps in containers",
                         .instance_id = (char *)c->context.instance_id,
                         .collect = { .sysfs_root = c->config->snapshot.sysfs_root,
                                      .device_directory = c->config->snapshot.device_directory,
                                      .proc_root = c->config->snapshot.proc_root,
                                      .environment = c->config->snapshot.environment.items,
                                      .timeout_usec = CONTAINERS_COPY_USEC,
                                      .max_bytes = max_bytes,
                                      .container_dumps = dumps } };
        LIST_FOREACH (l, &b->notes) {
                const ContainerNote *n = CONTAINER_OF(l, ContainerNote, link);
                if (mode == PROBE_SNAPSHOT)
                        dumps[o.collect.n_container_dumps++] =
                                (CollectContainerDump){ .note = (char *)n->id,
                                                        .path = n->path,
                                                        .hook_pid = n->hook_pid,
                                                        .uid = n->uid,
                                                        .noted_usec = n->noted_usec };
        }
        return probe_new(&b->probe, c->context.event,
                         &(ProbeRequest){ .order = &o,
                                          .socket = c->socket,
                                          .dir_fd = b->dir_fd,
                                          .timeout_usec = CONTAINERS_COPY_USEC + END_USEC,
                                          .on_message = on_message,
                                          .on_end = on_end,
                                          .userdata = b });
}

/* ---- steps ---- */

void batch_step(ContainersBatch *b) {
        bool goes_on = true;
        switch (b->state) {
        case BATCH_COPYING:
                return; /* until the supervisor has ended */
        case BATCH_SALVAGING:
                goes_on = order(b, PROBE_SALVAGE, CONTAINERS_SALVAGE_BYTES) == 0;
                break;
        case BATCH_READING:
                goes_on = batch_read_document(b);
                break;
        case BATCH_BUILDING:
                return; /* until the worker has */
        case BATCH_CLEARING:
                goes_on = batch_clear(b);
                break;
        case BATCH_LEFT:
        case N_BATCH_STATES:
                return;
        }
        if (!goes_on)
                batch_retry(b, -EAGAIN);
}

/* ---- again ---- */

static const char *remedy_of(int error) {
        return error == -ENOSPC   ? "make room on the state directory's disk"
               : error == -EDQUOT ? "the disk quota of the state directory is used up: raise it"
               : error == -EIO || error == -EROFS
                       ? "see whether the state directory's disk is sound and may be written to"
               : error == -ENOMEM || error == -EAGAIN || error == -EMFILE || error == -ENFILE
                       ? "the agent is short of memory or of open files"
                       : "see what is in the way there";
}

void batch_retry(ContainersBatch *b, int error) {
        uint64_t wait = AGAIN_MIN_USEC << MIN(b->n_failures, AGAIN_SHIFT_MAX);
        if (b->n_failures++ == 0)
                log_error(error,
                          "copy %s: what was copied to '%s/%s' cannot be put into its place in "
                          "'%s'; it is tried again; %s",
                          b->name, b->owner->coming, b->name, b->owner->root, remedy_of(error));
        b->promised_bytes = 0;
        b->bytes = tree_measure(b->dir_fd);
        if (b->state == BATCH_BUILDING)
                batch_set_state(b, BATCH_READING);
        int r = arm(b, MIN(wait, AGAIN_MAX_USEC));
        if (r >= 0) {
                containers_kick(b->owner); /* it keeps nobody waiting */
                return;
        }
        log_error(r, "copy %s: cannot arm a timer; the next start tries again", b->name);
        batch_leave(b);
}

void batch_went_right(ContainersBatch *b) {
        if (b->n_failures > 0)
                log_notice("copy %s: now it is in its place", b->name);
        b->n_failures = 0;
}

/* ---- its beginning ---- */

static int open_directory(ContainersBatch *b, bool make) {
        _cleanup_free_ char *path = path_join(b->owner->coming, b->name);
        if (!path)
                return -ENOMEM;
        if (make && mkdir(path, 0700) < 0)
                return -errno;
        b->dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        return b->dir_fd < 0 ? -errno : 0;
}

static int make_directory(ContainersBatch *b) {
        Containers *c = b->owner;
        char stamp[CLOCK_ISO_SIZE];
        int r = -EEXIST;
        for (unsigned tries = 0; r == -EEXIST && tries < 1000; tries++) { /* clocks go back */
                (void)snprintf(b->name, sizeof b->name, "%s-%u",
                               clock_format_compact(stamp, b->begun_usec, 'T'), ++c->last_number);
                r = open_directory(b, true);
        }
        return r;
}

int batch_begin(Containers *c, ListLink *notes, uid_t uid, uint64_t max_bytes) {
        ContainersBatch *b = batch_new(c, "");
        if (!b)
                return -ENOMEM;
        b->uid = uid;
        b->begun_usec = c->context.clock->realtime_usec(c->context.clock);
        b->since_usec = c->context.clock->boottime_usec(c->context.clock);
        b->promised_bytes = max_bytes;
        LIST_FOREACH_SAFE (l, notes) {
                list_remove(l);
                list_append(&b->notes, l);
                b->n_notes++;
        }
        int r = make_directory(b);
        bool is_made = r == 0;
        if (r == 0)
                r = batch_write(b);
        if (r == 0)
                r = order(b, PROBE_SNAPSHOT, max_bytes);
        if (r == 0) {
                log_debug("copy %s: %zu notes of uid %u are looked for in containers", b->name,
                          b->n_notes, (unsigned)uid);
                return 0;
        }
        LIST_FOREACH (l, &b->notes)
                containers_refuse(c, CONTAINER_OF(l, ContainerNote, link),
                                  "the collector cannot be started");
        if (is_made) {
                _cleanup_close_ int fd = open(c->coming, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
                (void)fs_remove_tree(fd, b->name); /* else the next start does */
        }
        batch_free(b);
        return r;
}

int batch_resume(Containers *c, const char *name) {
        ContainersBatch *b = batch_new(c, name);
        if (!b)
                return -ENOMEM;
        int r = open_directory(b, false);
        if (r == 0)
                r = batch_read(b);
        if (r < 0) { /* it had not begun */
                log_notice("copy %s: an earlier agent ended before it was begun", b->name);
                batch_set_state(b, BATCH_CLEARING);
        } else if (faccessat(b->dir_fd, CONTAINERS_DOCUMENT, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
                batch_set_state(b, BATCH_READING);
        else
                batch_set_state(b, BATCH_SALVAGING);
        b->bytes = b->dir_fd < 0 ? 0 : tree_measure(b->dir_fd);
        r = arm(b, 0);
        if (r < 0)
                batch_free(b);
        return r;
}
