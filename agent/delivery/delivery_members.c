#include "agent/delivery/delivery.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/bundle/validate.h"
#include "lib/neuron/ids.h"

#define REASONS_MAX 20

/* By the plan's index. */
typedef struct Member {
        uint64_t print;
        MemberKind kind;
        int held_fd;      /* borrowed of the job; -1: opened below root_fd */
        bool is_attached; /* opened below the job's attached_fd */
} Member;

struct DeliveryMembers {
        const Delivery *delivery;
        Plan *plan;        /* borrowed */
        PinsSession *pins; /* while the source is walked */
        int root_fd;
        Member *members;
        size_t n, n_allocated;
        AttachmentNames attached; /* paths in the bundle */
        size_t next_attached;
        bool has_source; /* a member of the source was found */
        bool has_more;   /* … and left out: an attachment has its name */
        SetCheck *set;
        IncompleteReasons reasons;
        size_t n_left_out;
};

static int compare_u64(const void *a, const void *b) {
        uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
        return (x > y) - (x < y);
}

static void skip_member(DeliveryMembers *m, const char *path, int error) {
        if (m->n_left_out++ >= REASONS_MAX)
                return;
        _cleanup_free_ char *escaped = path_escape(path), *text = NULL;
        if (escaped && asprintf(&text,
                                error == -ENOENT ? "removed: '%s' went away before it could be read"
                                                 : "unreadable: '%s' (%s)",
                                escaped, strerror(-error)) >= 0)
                m->reasons.add(text, m->reasons.userdata);
}

static int add_to_plan(DeliveryMembers *m, const char *path, int fd, const Member *member) {
        if (m->n == m->n_allocated) {
                size_t n = m->n_allocated ? 2 * m->n_allocated : 16;
                Member *bigger = realloc(m->members, n * sizeof *bigger);
                if (!bigger)
                        return -ENOMEM;
                m->members = bigger;
                m->n_allocated = n;
        }
        int r = plan_add(m->plan, path, member->kind, fd);
        if (r >= 0)
                m->members[m->n++] = *member;
        return r;
}

/* ---- what is attached ---- */

static int open_attached(const DeliveryMembers *m, const char *path) {
        struct stat st;
        return fs_open_regular(m->delivery->attached_fd, path + strlen(ATTACHED_PREFIX), &st);
}

static int add_attached(DeliveryMembers *m, const char *path) {
        struct stat st;
        _cleanup_close_ int fd = open_attached(m, path);
        if (fd < 0) {
                skip_member(m, path, fd);
                return 0;
        }
        if (fstat(fd, &st) < 0)
                return -errno;
        Member member = { .print = member_fingerprint(path, &st),
                          .kind = MEMBER_SNAPSHOT,
                          .held_fd = -1,
                          .is_attached = true };
        return add_to_plan(m, path, fd, &member);
}

/* The plan wants its members in order: adds those that come before a path of the source, or all
 * that are left.
 * @return 0; 1: one of them has this very path; -errno */
static int add_attached_before(DeliveryMembers *m, const char *path) {
        while (m->next_attached < m->attached.n) {
                const char *next = m->attached.items[m->next_attached];
                int order = path ? strcmp(next, path) : -1;
                if (order > 0)
                        return 0;
                if (order == 0)
                        return 1;
                m->next_attached++;
                int r = add_attached(m, next);
                if (r < 0)
                        return r;
        }
        return 0;
}

static bool was_shipped(const DeliveryMembers *m, const char *path) {
        struct stat st;
        const char *name = path + strlen(ATTACHED_PREFIX);
        return fstatat(m->delivery->attached_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
               member_fingerprints_have(m->delivery->shipped, m->delivery->n_shipped,
                                        member_fingerprint(path, &st));
}

/* Those that were not shipped before. */
static int find_attached(DeliveryMembers *m) {
        _cleanup_(attachment_names_done) AttachmentNames names = { 0 };
        if (m->delivery->attached_fd < 0)
                return 0;
        int r = attachment_names(m->delivery->attached_fd, &names);
        if (r < 0)
                return r;
        m->attached.items = calloc(names.n + 1, sizeof *m->attached.items);
        if (!m->attached.items)
                return -ENOMEM;
        for (size_t i = 0; i < names.n; i++) {
                _cleanup_free_ char *path = path_join(ATTACHMENTS_DIRECTORY, names.items[i]);
                if (!path)
                        return -ENOMEM;
                if (!was_shipped(m, path))
                        m->attached.items[m->attached.n++] = TAKE_PTR(path);
        }
        return 0;
}

static void add_collision_reason(DeliveryMembers *m, const char *path) {
        _cleanup_free_ char *text = NULL;
        if (asprintf(
                    &text,
                    "name taken: '%s' of the source has the name of a file that the agent adds; it "
                    "follows in a supplement",
                    path) >= 0)
                m->reasons.add(text, m->reasons.userdata);
}

/* ---- what the source has ---- */

static bool is_below_attached(const char *path) {
        return strncmp(path, ATTACHED_PREFIX, strlen(ATTACHED_PREFIX)) == 0;
}

static int add_member(DeliveryMembers *m, const char *path, int fd, int held_fd) {
        struct stat st;
        if (fstat(fd, &st) < 0)
                return -errno;
        Member member = { .print = member_fingerprint(path, &st), .held_fd = held_fd };
        if (member_fingerprints_have(m->delivery->shipped, m->delivery->n_shipped, member.print))
                return 0;
        m->has_source = true;
        int r = add_attached_before(m, path);
        if (r > 0) {
                m->has_more = true;
                add_collision_reason(m, path);
        }
        if (r != 0)
                return MIN(r, 0);
        DumpName name;
        dump_name_parse(m->delivery->rec.kind, path_name(path), &name);
        if (is_below_attached(path)) /* a file of the source does not pass for one of ours */
                name.kind = MEMBER_OTHER;
        member.kind = name.kind;
        r = add_to_plan(m, path, fd, &member);
        return r < 0 ? r : set_check_add(m->set, path, &name, (uint64_t)st.st_size);
}

static int on_member(const ScanMember *member, int unit_fd, void *userdata) {
        DeliveryMembers *m = userdata;
        if (member->skip != SCAN_SKIP_NONE) /* intake has logged it */
                return 0;
        if (m->root_fd < 0) {
                m->root_fd = fcntl(unit_fd, F_DUPFD_CLOEXEC, 0);
                if (m->root_fd < 0)
                        return -errno;
        }
        struct stat st;
        _cleanup_close_ int fd = fs_open_regular(unit_fd, member->path, &st);
        if (fd < 0) {
                skip_member(m, member->path, fd);
                return 0;
        }
        return add_member(m, member->path, fd, -1);
}

static unsigned own_links(const char *member_path, const struct stat *st, void *userdata) {
        const DeliveryMembers *m = userdata;
        bool has;
        return pins_session_own_links(m->pins, member_path, st, &has);
}

static int add_from_source(DeliveryMembers *m) {
        const SourceTerms *t = m->delivery->terms;
        const char *relative = m->delivery->rec.path + strlen(t->fixed);
        while (*relative == '/')
                relative++;
        int r = pins_session_new(&m->pins, t->pins, m->delivery->rec.id, (size_t)t->scan.max_files);
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
static int add_from_links(DeliveryMembers *m) {
        _cleanup_close_ int fd = pins_open(m->delivery->terms->pins, m->delivery->rec.id);
        if (fd < 0)
                return fd;
        char root[64];
        snprintf(root, sizeof root, "/proc/self/fd/%d/.", fd);
        ScanSource scan = m->delivery->terms->scan;
        scan.root_override = root;
        scan.any_links = true;
        scan.exclude = NULL;
        const char *relative = m->delivery->rec.kind == SOURCE_PROCESS_CORE
                                       ? path_name(m->delivery->rec.path)
                                       : "";
        return scan_members(&(ScanWalk){
                .source = &scan, .relative = relative, .on_member = on_member, .userdata = m });
}

static int compare_held(const void *a, const void *b) {
        return strcmp((*(HeldFile *const *)a)->path, (*(HeldFile *const *)b)->path);
}

static int add_from_held(DeliveryMembers *m) {
        const HeldFiles *h = &m->delivery->held;
        _cleanup_free_ const HeldFile **sorted = calloc(h->n, sizeof *sorted);
        if (!sorted)
                return -ENOMEM;
        for (size_t i = 0; i < h->n; i++)
                sorted[i] = &h->items[i];
        qsort(sorted, h->n, sizeof *sorted, compare_held);
        int r = 0;
        for (size_t i = 0; r >= 0 && i < h->n; i++)
                r = add_member(m, sorted[i]->path, sorted[i]->fd, sorted[i]->fd);
        return r;
}

static int find_source_members(DeliveryMembers *m) {
        if (m->delivery->rec.links_held) {
                int r = add_from_links(m);
                if (r != -ENOENT || m->n > 0)
                        return r;
        }
        if (m->delivery->held.n > 0 && m->delivery->held.all)
                return add_from_held(m);
        return add_from_source(m);
}

/* Attachments alone are no dump: one of which nothing can be read fails or vanishes as it would
 * without them. A supplement may be made of them. */
static int find_members(DeliveryMembers *m) {
        bool is_supplement = m->delivery->rec.supplement_of[0] != '\0';
        int r = find_attached(m);
        if (r >= 0 && !bundle_is_of_attachments(&m->delivery->rec))
                r = find_source_members(m);
        if (r == -ENOENT && is_supplement && m->attached.n > 0)
                r = 0;
        return r < 0 || (!m->has_source && !is_supplement) ? r : add_attached_before(m, NULL);
}

int delivery_members_new(DeliveryMembers **ret, const Delivery *d, Plan *plan,
                         const IncompleteReasons *reasons) {
        DeliveryMembers *m = calloc(1, sizeof *m);
        if (!m)
                return -ENOMEM;
        *m = (DeliveryMembers){ .delivery = d, .plan = plan, .root_fd = -1, .reasons = *reasons };
        int r = set_check_new(&m->set, d->rec.kind);
        if (r >= 0)
                r = find_members(m);
        if (r >= 0)
                r = set_check_finish(m->set, reasons->add, reasons->userdata);
        if (r >= 0 && m->n_left_out > REASONS_MAX) {
                _cleanup_free_ char *text = NULL;
                if (asprintf(&text, "unreadable: %zu more members", m->n_left_out - REASONS_MAX) >=
                    0)
                        reasons->add(text, reasons->userdata);
        }
        if (r < 0) {
                delivery_members_free(m);
                return r;
        }
        *ret = m;
        return 0;
}

DeliveryMembers *delivery_members_free(DeliveryMembers *m) {
        if (!m)
                return NULL;
        if (m->root_fd >= 0)
                (void)close(m->root_fd); /* a directory */
        set_check_free(m->set);
        attachment_names_done(&m->attached);
        free(m->members);
        free(m);
        return NULL;
}

int delivery_members_open(const DeliveryMembers *m, size_t i) {
        const Member *member = &m->members[i];
        const char *path = plan_member(m->plan, i)->path;
        if (member->is_attached)
                return open_attached(m, path);
        if (member->held_fd >= 0) {
                int fd = fcntl(member->held_fd, F_DUPFD_CLOEXEC, 0);
                return fd < 0 ? -errno : fd;
        }
        struct stat st;
        return fs_open_regular(m->root_fd, path, &st);
}

int delivery_members_export_prints(DeliveryMembers *m, Delivery *d) {
        if (!m)
                return 0;
        uint64_t *prints = calloc(m->n + 1, sizeof *prints),
                 *attached = calloc(m->attached.n + 1, sizeof *attached);
        if (!prints || !attached) {
                free(prints);
                free(attached);
                return -ENOMEM;
        }
        free(d->prints);
        free(d->attached_prints);
        d->prints = prints;
        d->attached_prints = attached;
        d->n_prints = m->n;
        d->n_attached_prints = 0;
        d->has_more = m->has_more;
        d->digest = 0;
        for (size_t i = 0; i < m->n; i++) {
                prints[i] = m->members[i].print;
                if (m->members[i].is_attached)
                        attached[d->n_attached_prints++] = prints[i];
                else
                        d->digest += prints[i];
        }
        qsort(prints, d->n_prints, sizeof *prints, compare_u64);
        qsort(attached, d->n_attached_prints, sizeof *attached, compare_u64);
        return 0;
}
