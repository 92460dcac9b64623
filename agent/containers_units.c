/* What was copied and lies below `<state_directory>/containers`, until its bundle has come to its end. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "agent/containers_private.h"
#include "lib/base/log.h"
#include "lib/event/timer.h"

/* What more comes from the same container soon is compared with what lies there, so that it is not shipped again; and what was added just when the bundle ended
 * is found by then. */
#define REMOVAL_USEC (10 * USEC_PER_SEC)

static void unit_free(ContainerUnit *u) {
        list_remove(&u->link);
        free(u->source);
        free(u->relative);
        free(u->path);
        free(u);
}

static ContainerUnit *unit_new(Containers *c, const char *source, const char *unit,
                               const char *relative) {
        ContainerUnit *u = calloc(1, sizeof *u);
        if (!u)
                return NULL;
        list_append(&c->units, &u->link);
        (void)snprintf(u->unit, sizeof u->unit, "%s", unit);
        u->source = strdup(source);
        u->relative = strdup(relative);
        if (asprintf(&u->path, "%s/%s/%s%s%s", c->root, source, unit, relative[0] ? "/" : "",
                     relative) < 0)
                u->path = NULL;
        if (u->source && u->relative && u->path)
                return u;
        unit_free(u);
        return NULL;
}

static ContainerUnit *find_unit(const Containers *c, const char *source, const char *unit) {
        LIST_FOREACH (l, (ListLink *)&c->units) {
                ContainerUnit *u = CONTAINER_OF(l, ContainerUnit, link);
                if (strcmp(u->unit, unit) == 0 && strcmp(u->source, source) == 0)
                        return u;
        }
        return NULL;
}

/* The digits come from a collector that reads what this user wrote: they lead to nobody else's. */
int containers_unit_take(Containers *c, const ContainerNote *n, const char *unit,
                         ContainerUnit **ret) {
        ContainerUnit *u = find_unit(c, n->source, unit);
        if (u && u->uid != n->uid)
                return -EPERM;
        if (!u) {
                u = unit_new(c, n->source, unit, n->relative);
                if (!u)
                        return -ENOMEM;
                u->uid = n->uid;
        }
        *ret = u;
        return 0;
}

void containers_unit_let_go(Containers *c, ContainerUnit *u) {
        u->n_batches--;
        if (u->n_batches == 0 && !u->is_there)
                unit_free(u);
        else if (u->n_batches == 0 && u->is_over)
                containers_remove_over(c);
}

/* ---- the end ---- */

static void on_removed(ContainersJob *j) {
        if (j->result < 0)
                log_warning(j->result,
                            "cannot remove '%s' of what was copied out of containers; remove it by "
                            "hand",
                            j->name);
        containers_job_free(j);
}

/* @return whether it is being removed */
static bool remove_unit(Containers *c, const ContainerUnit *u) {
        ContainersJob *j = containers_job_new(c, -1);
        if (!j)
                return false;
        j->task = containers_remove_task;
        j->on_done = on_removed;
        if (asprintf(&j->name, "%s/%s", u->source, u->unit) < 0)
                j->name = NULL;
        if (asprintf(&j->about, CONTAINER_UNITS_DIRECTORY "/%s.%s.json", u->source, u->unit) < 0)
                j->about = NULL;
        if (j->name && j->about && containers_job_submit(c, j))
                return true;
        containers_job_free(j);
        return false;
}

static int on_removal(sd_event_source *s, uint64_t usec, void *userdata) {
        (void)s;
        (void)usec;
        Containers *c = userdata;
        uint64_t now = c->context.clock->boottime_usec(c->context.clock);
        bool is_left = false;
        LIST_FOREACH_SAFE (l, &c->units) {
                ContainerUnit *u = CONTAINER_OF(l, ContainerUnit, link);
                if (!u->is_over || u->n_batches > 0)
                        continue;
                if (u->over_usec + REMOVAL_USEC > now + USEC_PER_SEC) {
                        is_left = true;
                        continue;
                }
                if (c->context.is_underway(u->source, u->path, c->context.userdata))
                        u->is_over = false; /* a supplement, which has an end of its own */
                else if (remove_unit(c, u))
                        unit_free(u);
                else
                        is_left = true;
        }
        if (is_left)
                (void)timer_rearm(c->removal, USEC_PER_SEC); /* else at the next start */
        return 0;
}

/* Never from inside the bundle's end. */
void containers_remove_over(Containers *c) {
        bool is_any = false;
        LIST_FOREACH (l, &c->units)
                is_any = is_any || CONTAINER_OF(l, ContainerUnit, link)->is_over;
        if (!is_any || (c->removal && sd_event_source_get_enabled(c->removal, NULL) > 0))
                return; /* or they are about to be looked at */
        int r = timer_arm(&c->removal, &(TimerOrder){ .event = c->context.event,
                                                      .usec = REMOVAL_USEC,
                                                      .handler = on_removal,
                                                      .userdata = c });
        if (r < 0)
                log_warning(r, "what was copied out of containers is removed at the next start");
}

void containers_on_final(Containers *c, const char *source, const char *unit_path) {
        LIST_FOREACH (l, &c->units) {
                ContainerUnit *u = CONTAINER_OF(l, ContainerUnit, link);
                if (strcmp(u->path, unit_path) != 0 || strcmp(u->source, source) != 0)
                        continue;
                u->is_over = true;
                u->over_usec = c->context.clock->boottime_usec(c->context.clock);
                if (u->n_batches == 0)
                        containers_remove_over(c);
        }
}

/* ---- how much ---- */

uint64_t containers_bytes(const Containers *c) {
        uint64_t bytes = 0;
        LIST_FOREACH (l, (ListLink *)&c->units)
                bytes += CONTAINER_OF(l, ContainerUnit, link)->bytes;
        LIST_FOREACH (l, (ListLink *)&c->batches)
                bytes += CONTAINER_OF(l, ContainersBatch, link)->bytes;
        return bytes;
}

uint64_t containers_room(const Containers *c, uid_t uid, const char **ret_why) {
        ContainersRoom room = { .limit = c->config->hook.container_bytes };
        struct statvfs fs;
        LIST_FOREACH (l, (ListLink *)&c->units) {
                const ContainerUnit *u = CONTAINER_OF(l, ContainerUnit, link);
                room.used += u->bytes;
                room.used_by_uid += u->uid == uid ? u->bytes : 0;
        }
        LIST_FOREACH (l, (ListLink *)&c->batches) {
                const ContainersBatch *b = CONTAINER_OF(l, ContainersBatch, link);
                room.promised += b->promised_bytes;
                room.promised_uid += b->uid == uid ? b->promised_bytes : 0;
                room.used += b->bytes;
                room.used_by_uid += b->uid == uid ? b->bytes : 0;
        }
        if (fstatvfs(c->root_fd, &fs) == 0) { /* else there is none */
                room.disk = (uint64_t)fs.f_blocks * fs.f_frsize;
                room.disk_free = (uint64_t)fs.f_bavail * fs.f_frsize;
        }
        return containers_room_for(&room, ret_why);
}

/* ---- what earlier agents have left ---- */

static void find_one(Containers *c, int units_fd, const char *name) {
        TreeUnit t;
        int r = tree_unit_read(&t, units_fd, name);
        if (r < 0) {
                log_warning(r,
                            "'%s/" CONTAINER_UNITS_DIRECTORY
                            "/%s' tells of no copy; remove it by hand",
                            c->root, name);
                return;
        }
        ContainerUnit *u = unit_new(c, t.source, t.unit, t.relative);
        if (u) {
                u->uid = t.uid;
                u->is_there = true;
                _cleanup_close_ int fd =
                        open(u->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
                u->bytes = fd >= 0 ? tree_measure(fd) : 0;
                u->is_over =
                        fd < 0 || c->context.was_let_go(u->source, u->path, c->context.userdata);
        }
        tree_unit_done(&t);
}

int containers_sweep_units(Containers *c) {
        int fd = openat(c->root_fd, CONTAINER_UNITS_DIRECTORY,
                        O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
                return errno == ENOENT ? 0 : -errno;
        _cleanup_closedir_ DIR *d = fdopendir(fd);
        const struct dirent *e;
        if (!d) {
                int r = -errno;
                (void)close(fd);
                return r;
        }
        while ((e = readdir(d)))
                if (e->d_name[0] != '.')
                        find_one(c, dirfd(d), e->d_name);
        return 0;
}

void containers_units_done(Containers *c) {
        sd_event_source_disable_unref(c->removal);
        LIST_FOREACH_SAFE (l, &c->units)
                unit_free(CONTAINER_OF(l, ContainerUnit, link));
}
