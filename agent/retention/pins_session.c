/* A walk over a bundle's pins: which directories are open, and whose links an inode has. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/retention/pins_private.h"
#include "lib/base/cleanup.h"

static void forget_directory(SessionPlace *at) {
        if (at->dir_fd >= 0)
                (void)close(at->dir_fd); /* was only read */
        at->dir_fd = -1;
        free(at->prefix);
        at->prefix = NULL;
}

void pins_session_init(PinsSession *s, const Pins *p, const char *bundle_id, size_t max_inodes) {
        *s = (PinsSession){ .pins = p, .bundle_id = bundle_id, .max_inodes = max_inodes };
        for (size_t i = 0; i < N_PLACES; i++)
                s->places[i] = (SessionPlace){ .instance_fd = -1, .bundle_fd = -1, .dir_fd = -1 };
}

void pins_session_done(PinsSession *s) {
        for (size_t i = 0; i < N_PLACES; i++) {
                forget_directory(&s->places[i]);
                cleanup_closep(&s->places[i].bundle_fd);
                cleanup_closep(&s->places[i].instance_fd);
        }
        pin_inodes_done(&s->own);
        pin_inodes_done(&s->others);
}

int pins_session_new(PinsSession **ret, Pins *p, const char *bundle_id, size_t max_inodes) {
        if (bundle_id[0] == '.' || strchr(bundle_id, '/'))
                return -EINVAL;
        PinsSession *s = malloc(sizeof *s);
        if (!s)
                return -ENOMEM;
        pins_session_init(s, p, bundle_id, max_inodes);
        *ret = s;
        return 0;
}

PinsSession *pins_session_free(PinsSession *s) {
        if (!s)
                return NULL;
        pins_session_done(s);
        free(s);
        return NULL;
}

int pins_session_open(PinsSession *s, Place place, bool create) {
        SessionPlace *at = &s->places[place];
        if (at->bundle_fd >= 0)
                return 0;
        if (at->refused < 0)
                return at->refused;
        if (at->is_missing && !create)
                return -ENOENT;
        if (at->instance_fd < 0) {
                int fd = pins_open_instance(s->pins, place, create, &at->squatter);
                if (fd < 0) {
                        at->is_missing = pins_is_not_ours(fd);
                        at->refused = create ? fd : 0;
                        return fd;
                }
                at->instance_fd = fd;
        }
        int fd = pins_open_own_dir(at->instance_fd, s->bundle_id, create, &at->squatter);
        if (fd < 0) {
                at->is_missing = pins_is_not_ours(fd);
                at->refused = create ? fd : 0;
                return fd;
        }
        at->bundle_fd = fd;
        return 0;
}

int pins_session_enter(SessionPlace *at, const char *member_path, bool create,
                       const char **ret_name) {
        const char *slash = strrchr(member_path, '/');
        size_t n = slash ? (size_t)(slash - member_path) + 1 : 0;
        if (at->dir_fd >= 0 && strncmp(at->prefix, member_path, n) == 0 && at->prefix[n] == '\0' &&
            pins_is_plain_name(member_path + n)) {
                *ret_name = member_path + n;
                return 0;
        }
        _cleanup_close_ int fd = pins_open_member_dir(at->bundle_fd, member_path, create, ret_name);
        if (fd < 0)
                return fd;
        char *prefix = strndup(member_path, n);
        if (!prefix)
                return -ENOMEM;
        forget_directory(at);
        at->prefix = prefix;
        at->dir_fd = TAKE_FD(fd);
        return 0;
}

static bool session_has(PinsSession *s, const char *member_path, const struct stat *st) {
        for (Place place = 0; place < N_PLACES; place++) {
                SessionPlace *at = &s->places[place];
                const char *name = NULL;
                struct stat there;
                if (pins_session_open(s, place, false) >= 0 &&
                    pins_session_enter(at, member_path, false, &name) >= 0 &&
                    fstatat(at->dir_fd, name, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
                    pins_is_inode(&there, st))
                        return true;
        }
        return false;
}

bool pins_has(Pins *p, const char *bundle_id, const char *member_path, const struct stat *st) {
        PinsSession s;
        if (!pins_is_plain_name(bundle_id))
                return false;
        pins_session_init(&s, p, bundle_id, 0);
        bool has = session_has(&s, member_path, st);
        pins_session_done(&s);
        return has;
}

/* Whose links */

static int build_own(PinsSession *s) {
        if (s->own.is_built)
                return 0;
        s->own = (PinInodes){ .max = s->max_inodes, .is_built = true, .is_whole = true };
        int r = 0;
        for (Place place = 0; r >= 0 && place < N_PLACES; place++) {
                s->own.place = place;
                if (pins_session_open(s, place, false) >= 0)
                        r = pin_inodes_add_tree(&s->own, s->places[place].bundle_fd, NULL);
        }
        pin_inodes_sort(&s->own);
        return r;
}

/* A unit that was renamed is another bundle, and its members are pinned for the old one; sources may overlap. */
static int build_others(PinsSession *s) {
        if (s->others.is_built)
                return 0;
        s->others = (PinInodes){ .max = s->max_inodes, .is_built = true, .is_whole = true };
        int r = 0;
        for (Place place = 0; r >= 0 && place < N_PLACES; place++) {
                Squatter squatter;
                _cleanup_close_ int fd = pins_open_instance(s->pins, place, false, &squatter);
                if (fd >= 0)
                        r = pin_inodes_add_tree(&s->others, fd, s->bundle_id);
        }
        pin_inodes_sort(&s->others);
        return r;
}

unsigned pins_session_own_links(PinsSession *s, const char *member_path, const struct stat *st,
                                bool *ret_has) {
        bool has = session_has(s, member_path, st);
        size_t n = has;
        *ret_has = has;
        if (st->st_nlink <= 1 + n)
                return (unsigned)n;
        (void)build_own(s); /* for want of memory: what is known */
        n = MAX(n, pin_inodes_count(&s->own, st->st_dev, st->st_ino, NULL));
        if (st->st_nlink <= 1 + n)
                return (unsigned)n;
        (void)build_others(s); /* as above */
        return (unsigned)(n + pin_inodes_count(&s->others, st->st_dev, st->st_ino, NULL));
}

bool pins_session_lives_on(PinsSession *s) {
        if (build_own(s) < 0 || !s->own.is_whole || s->own.n == 0)
                return false;
        for (size_t i = 0; i < s->own.n; i++)
                if (s->own.items[i].n_links < 2)
                        return false;
        if (build_others(s) < 0 || !s->others.is_whole)
                return false;
        for (size_t i = 0; i < s->own.n; i++) {
                const PinInode *x = &s->own.items[i];
                if (x->n_links <= pin_inodes_count(&s->own, x->dev, x->ino, NULL) +
                                          pin_inodes_count(&s->others, x->dev, x->ino, NULL))
                        return false;
        }
        return true;
}

bool pins_session_see(PinsSession *s, const struct stat *st) {
        size_t first, n = pin_inodes_count(&s->own, st->st_dev, st->st_ino, &first);
        for (size_t i = first; i < first + n; i++)
                s->own.items[i].seen = true;
        return n > 0;
}

bool pins_session_all_seen(const PinsSession *s) {
        for (size_t i = 0; i < s->own.n; i++)
                if (!s->own.items[i].seen)
                        return false;
        return s->own.n > 0;
}
