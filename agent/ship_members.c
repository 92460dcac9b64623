#include "agent/ship_members.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "agent/ship.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/bundle/validate.h"
#include "lib/dump/ids.h"

#define REASONS_MAX 20

struct ShipMembers {
        const ShipJob *s;
        Plan *plan;        /* borrowed */
        PinsSession *pins; /* while the source is walked */
        int root_fd;
        const HeldFile **held; /* by the plan's index; NULL: opened below root_fd */
        uint64_t *prints;
        size_t n, n_allocated;
        SetCheck *set;
        void (*add_reason)(const char *reason, void *userdata);
        void *userdata;
        size_t n_left_out;
};

static int compare_u64(const void *a, const void *b) {
        uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
        return (x > y) - (x < y);
}

static void leave_out(ShipMembers *m, const char *path, int error) {
        if (m->n_left_out++ >= REASONS_MAX)
                return;
        _cleanup_free_ char *escaped = path_escape(path), *text = NULL;
        if (escaped && asprintf(&text,
                                error == -ENOENT ? "removed: '%s' went away before it could be read"
                                                 : "unreadable: '%s' (%s)",
                                escaped, strerror(-error)) >= 0)
                m->add_reason(text, m->userdata);
}

static int add_open(ShipMembers *m, const char *path, int fd) {
        struct stat st;
        if (fstat(fd, &st) < 0)
                return -errno;
        uint64_t print = member_fingerprint(path, &st);
        if (member_fingerprints_have(m->s->shipped, m->s->n_shipped, print))
                return 0;
        if (m->n == m->n_allocated) {
                size_t n = m->n_allocated ? 2 * m->n_allocated : 16;
                uint64_t *bigger = realloc(m->prints, n * sizeof *bigger);
                if (!bigger)
                        return -ENOMEM;
                m->prints = bigger;
                m->n_allocated = n;
        }
        DumpName name;
        dump_name_parse(m->s->rec.kind, path_name(path), &name);
        int r = plan_add(m->plan, path, name.kind, fd);
        if (r >= 0)
                r = set_check_add(m->set, path, &name, (uint64_t)st.st_size);
        if (r >= 0)
                m->prints[m->n++] = print;
        return r;
}

static int on_member(const ScanMember *member, int unit_fd, void *userdata) {
        ShipMembers *m = userdata;
        if (member->skip != SCAN_SKIP_NONE) /* intake has said so */
                return 0;
        if (m->root_fd < 0) {
                m->root_fd = fcntl(unit_fd, F_DUPFD_CLOEXEC, 0);
                if (m->root_fd < 0)
                        return -errno;
        }
        struct stat st;
        _cleanup_close_ int fd = fs_open_regular(unit_fd, member->path, &st);
        if (fd < 0) {
                leave_out(m, member->path, fd);
                return 0;
        }
        return add_open(m, member->path, fd);
}

static unsigned own_links(const char *member_path, const struct stat *st, void *userdata) {
        const ShipMembers *m = userdata;
        bool has;
        return pins_session_own_links(m->pins, member_path, st, &has);
}

static int from_source(ShipMembers *m) {
        const SourceTerms *t = m->s->terms;
        const char *relative = m->s->rec.path + strlen(t->fixed);
        while (*relative == '/')
                relative++;
        int r = pins_session_new(&m->pins, t->pins, m->s->rec.id, (size_t)t->scan.max_files);
        if (r < 0)
                return r;
        r = scan_members(&(ScanWalk){ .source = &t->scan,
                                      .relative = relative,
                                      .loose = source_terms_is_loose(t, relative),
                                      .own_links = own_links,
                                      .on_member = on_member,
                                      .userdata = m });
        m->pins = pins_session_free(m->pins);
        return r;
}

/* The links were judged when they were made: whatever is there is ours to ship. */
static int from_links(ShipMembers *m) {
        _cleanup_close_ int fd = pins_open(m->s->terms->pins, m->s->rec.id);
        if (fd < 0)
                return fd;
        char root[64];
        snprintf(root, sizeof root, "/proc/self/fd/%d/.", fd);
        ScanSource scan = m->s->terms->scan;
        scan.root_override = root;
        scan.any_links = true;
        scan.exclude = NULL;
        const char *relative =
                m->s->rec.kind == SOURCE_PROCESS_CORE ? path_name(m->s->rec.path) : "";
        return scan_members(&(ScanWalk){
                .source = &scan, .relative = relative, .on_member = on_member, .userdata = m });
}

static int compare_held(const void *a, const void *b) {
        return strcmp((*(HeldFile *const *)a)->path, (*(HeldFile *const *)b)->path);
}

static int from_held(ShipMembers *m) {
        const HeldFiles *h = &m->s->held;
        m->held = calloc(h->n, sizeof *m->held);
        if (!m->held)
                return -ENOMEM;
        for (size_t i = 0; i < h->n; i++)
                m->held[i] = &h->items[i];
        qsort(m->held, h->n, sizeof *m->held, compare_held);
        size_t kept = 0;
        for (size_t i = 0; i < h->n; i++) {
                size_t before = m->n;
                int r = add_open(m, m->held[i]->path, m->held[i]->fd);
                if (r < 0)
                        return r;
                if (m->n > before)
                        m->held[kept++] = m->held[i];
        }
        return 0;
}

static int find_members(ShipMembers *m) {
        if (m->s->rec.links_held) {
                int r = from_links(m);
                if (r != -ENOENT || m->n > 0)
                        return r;
        }
        if (m->s->held.n > 0 && m->s->held.all)
                return from_held(m);
        return from_source(m);
}

int ship_members_new(ShipMembers **ret, const ShipJob *s, Plan *plan,
                     void (*add_reason)(const char *reason, void *userdata), void *userdata) {
        ShipMembers *m = calloc(1, sizeof *m);
        if (!m)
                return -ENOMEM;
        *m = (ShipMembers){
                .s = s, .plan = plan, .root_fd = -1, .add_reason = add_reason, .userdata = userdata
        };
        int r = set_check_new(&m->set, s->rec.kind);
        if (r >= 0)
                r = find_members(m);
        if (r >= 0)
                r = set_check_finish(m->set, add_reason, userdata);
        if (r >= 0 && m->n_left_out > REASONS_MAX) {
                _cleanup_free_ char *text = NULL;
                if (asprintf(&text, "unreadable: %zu more members", m->n_left_out - REASONS_MAX) >=
                    0)
                        add_reason(text, userdata);
        }
        if (r < 0) {
                ship_members_free(m);
                return r;
        }
        *ret = m;
        return 0;
}

ShipMembers *ship_members_free(ShipMembers *m) {
        if (!m)
                return NULL;
        if (m->root_fd >= 0)
                (void)close(m->root_fd); /* a directory */
        set_check_free(m->set);
        free(m->held);
        free(m->prints);
        free(m);
        return NULL;
}

int ship_members_open(const ShipMembers *m, size_t i) {
        if (m->held) {
                int fd = fcntl(m->held[i]->fd, F_DUPFD_CLOEXEC, 0);
                return fd < 0 ? -errno : fd;
        }
        struct stat st;
        return fs_open_regular(m->root_fd, plan_member(m->plan, i)->path, &st);
}

void ship_members_take_prints(ShipMembers *m, uint64_t **ret, size_t *ret_n, uint64_t *ret_sum) {
        if (!m)
                return;
        *ret_sum = 0;
        for (size_t i = 0; i < m->n; i++)
                *ret_sum += m->prints[i];
        if (m->n > 0) /* qsort(3) wants no NULL */
                qsort(m->prints, m->n, sizeof *m->prints, compare_u64);
        *ret_n = m->n;
        *ret = TAKE_PTR(m->prints);
}
