/* Whose directory it is that a note names. Nothing in it is opened. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/hooknotes/notes_private.h"
#include "lib/base/fs.h"

void notes_look_done(NotesLook *l) {
        for (size_t i = 0; i < l->n_places; i++)
                notes_place_done(&l->places[i]);
        *l = (NotesLook){ 0 };
}

int notes_look_prepare(NotesLook *l, const Config *c, const char *directory, uid_t uid) {
        *l = (NotesLook){ .uid = uid };
        int r = notes_place_find(c, directory, &l->places[0], &l->why);
        if (r == 0)
                l->n_places = 1;
        if (r != NOTES_E_REFUSED)
                return r;
        for (size_t i = 0; i < c->n_sources && l->n_places < NOTES_PLACES_MAX; i++) {
                r = notes_place_by_name(c, i, directory, &l->places[l->n_places]);
                if (r < 0)
                        return r;
                l->n_places += r == 0;
        }
        return l->n_places > 0 ? 0 : NOTES_E_REFUSED;
}

static const char *why_not_opened(int error) {
        switch (error) {
        case -ENOENT:
                return "the directory is not there";
        case -ELOOP:
                return "a symbolic link is on the way to the directory";
        case -ENOTDIR:
                return "it is no directory";
        case -EACCES:
        case -EPERM:
                return "this agent may not look at the directory";
        default:
                return "the directory cannot be looked at";
        }
}

/* The hook's own, or root's where everybody is to write: nobody speaks about what another user left. */
static const char *judge_owner(const NotesLook *l, const NotesPlace *p, const struct stat *st) {
        if (st->st_uid == l->uid)
                return NULL;
        if (st->st_uid == 0 && (st->st_mode & 0022) && !p->by_name)
                return NULL;
        return "the directory belongs to another user";
}

/* @return why not; NULL */
static const char *look_at(NotesLook *l, const NotesPlace *p, bool *ret_absent) {
        struct stat st;
        *ret_absent = false;
        _cleanup_close_ int fixed = open(p->fixed, O_PATH | O_DIRECTORY | O_CLOEXEC);
        int r = fixed < 0 ? -errno : 0;
        _cleanup_close_ int fd = -1;
        if (r == 0 && p->relative[0]) {
                fd = fs_open_beneath(fixed, p->relative, O_PATH | O_DIRECTORY);
                r = fd < 0 ? fd : 0;
        }
        if (r == 0 && fstat(fd >= 0 ? fd : fixed, &st) < 0)
                r = -errno;
        l->n_absent += r == -ENOENT;
        *ret_absent = r == -ENOENT && !p->by_name;
        return r < 0 ? why_not_opened(r) : judge_owner(l, p, &st);
}

void notes_look_run(NotesLook *l) {
        for (size_t i = 0; i < l->n_places && !l->found; i++) {
                bool is_absent;
                const char *why = look_at(l, &l->places[i], &is_absent);
                if (!why) {
                        l->found = &l->places[i];
                        l->why = NULL;
                        l->is_absent = false;
                } else if (!l->places[i].by_name) {
                        l->why = why;
                        l->is_absent = is_absent;
                }
        }
}
