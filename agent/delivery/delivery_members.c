/* The members of one delivery: finds the files of a bundle and adds each to the plan. A member is
 * read from the agent's hard links, from a descriptor that intake kept open, or from the source, in
 * this order of preference. What cannot be opened is left out, with a reason for the manifest.
 *
 * Which members a bundle should have was decided by intake when it settled; whether a member that
 * is there now is read to its end is the packer's business (lib/bundle). Blocking: it runs in the
 * worker of the delivery. */
#include "agent/delivery/delivery_members.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "agent/retention/link_session.h"
#include "agent/retention/links.h"
#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/bundle/validate.h"
#include "lib/neuron/ids.h"
#include "lib/neuron/names.h"
#include "lib/neuron/tree.h"

#define REASONS_MAX 20

/* By the plan's index. */
typedef struct FoundMember {
        uint64_t print;
        MemberKind kind;
        int held_fd;      /* borrowed from the delivery; -1: opened below root_fd */
        bool is_left_out; /* the bundle at the destination lacks it */
} FoundMember;

struct DeliveryMembers {
        const Delivery *delivery;
        Plan *plan;         /* borrowed */
        LinkSession *links; /* while the source is walked */
        int root_fd;
        FoundMember *members;
        size_t n;
        json_t *reasons; /* borrowed */
        size_t n_unreadable;
        size_t n_changed;  /* since another destination got the bundle */
        ScanUnit left_out; /* by the walk, since intake saw it; `skipped` and `skipped_example` of
                              it */
};

int64_t delivery_member_pid(const PlanMember *m, SourceKind kind) {
        DumpName name;
        dump_name_parse(kind, path_name(m->path), &name);
        return name.pid;
}

void delivery_members_add_reason(const char *reason, void *userdata) {
        json_t *reasons = userdata, *v;
        size_t i;
        json_array_foreach(reasons, i, v) {
                if (strcmp(json_string_value(v), reason) == 0)
                        return; /* intake, or an earlier delivery, has seen it */
        }
        json_array_append_new(reasons, json_string(reason));
}

static void skip_member(DeliveryMembers *m, const char *path, int error) {
        if (m->n_unreadable++ >= REASONS_MAX)
                return;
        _cleanup_free_ char *escaped = path_escape(path), *text = NULL;
        if (escaped &&
            asprintf(&text,
                     error == -ENOENT ? "removed: '%s' was removed before it could be read"
                                      : "unreadable: '%s' (%s)",
                     escaped, strerror(-error)) >= 0)
                delivery_members_add_reason(text, m->reasons);
}

static int add_to_plan(DeliveryMembers *m, const char *path, int fd, const FoundMember *member) {
        if (array_grow(&m->members, m->n, sizeof *m->members) < 0)
                return -ENOMEM;
        int r = plan_add(m->plan, path, member->kind, fd);
        if (r >= 0)
                m->members[m->n++] = *member;
        return r;
}

/* @return whether the member belongs in the bundle: one that was shipped before does not, and in a
 * redelivery only such a one does */
static bool is_wanted(const DeliveryMembers *m, uint64_t print) {
        const Delivery *d = m->delivery;
        return member_fingerprints_contain(d->shipped, d->n_shipped, print) ==
               bundle_record_is_redelivery(&d->rec);
}

/* ---- members of the source ---- */

static bool is_frozen_out(const DeliveryMembers *m, uint64_t print) {
        const Delivery *d = m->delivery;
        return d->frozen && !member_fingerprints_contain(d->frozen, d->n_frozen, print);
}

static void freeze_out(DeliveryMembers *m, const char *path) {
        if (m->n_changed++ >= REASONS_MAX)
                return;
        _cleanup_free_ char *escaped = path_escape(path), *text = NULL;
        if (escaped && asprintf(&text,
                                "changed: '%s' has changed since another destination got this "
                                "bundle; it follows in a supplement",
                                escaped) >= 0)
                delivery_members_add_reason(text, m->reasons);
}

static int add_member(DeliveryMembers *m, const char *path, int fd, int held_fd) {
        struct stat st;
        if (fstat(fd, &st) < 0)
                return -errno;
        FoundMember member = { .print = member_fingerprint(path, &st), .held_fd = held_fd };
        if (!is_wanted(m, member.print))
                return 0;
        if (is_frozen_out(m, member.print)) {
                freeze_out(m, path);
                return 0;
        }
        DumpName name;
        dump_name_parse(m->delivery->rec.kind, path_name(path), &name);
        member.kind = name.kind;
        return add_to_plan(m, path, fd, &member);
}

static int on_member(const ScanMember *member, int unit_fd, void *userdata) {
        DeliveryMembers *m = userdata;
        if (member->skip != SCAN_SKIP_NONE) {
                bool is_shipped = S_ISREG(member->st.st_mode) &&
                                  !is_wanted(m, member_fingerprint(member->path, &member->st));
                return is_shipped || !scan_skip_is_loss(member->skip)
                               ? 0
                               : scan_unit_add_skip(&m->left_out, member);
        }
        if (m->root_fd < 0) {
                m->root_fd = fcntl(unit_fd, F_DUPFD_CLOEXEC, 0);
                if (m->root_fd < 0)
                        return -errno;
        }
        struct stat st;
        _cleanup_close_ int fd = fs_open_regular(unit_fd, member->path, &st);
        if (fd < 0 && delivery_result_of(fd) == RESULT_NO_RESOURCES)
                return fd; /* not the bundle's fault: tried again */
        if (fd < 0) {
                skip_member(m, member->path, fd);
                return 0;
        }
        return add_member(m, member->path, fd, -1);
}

static unsigned own_links(const char *member_path, const struct stat *st, void *userdata) {
        const DeliveryMembers *m = userdata;
        bool has;
        unsigned n = link_session_own_links(m->links, member_path, st, &has);
        return has ? UINT_MAX : n; /* what is held stays a member */
}

static int add_from_source(DeliveryMembers *m) {
        const SourceSpec *t = m->delivery->spec;
        const char *relative = m->delivery->rec.path + strlen(t->fixed);
        while (*relative == '/')
                relative++;
        int r = link_session_new(&m->links, t->link_dirs, m->delivery->rec.id,
                                 (size_t)t->scan.max_files);
        if (r < 0)
                return r;
        r = scan_members(&(ScanWalk){ .source = &t->scan,
                                      .relative = relative,
                                      .loose = source_spec_is_loose(t, relative),
                                      .own_links = own_links,
                                      .on_member = on_member,
                                      .userdata = m });
        m->links = link_session_free(m->links);
        return r;
}

/* Intake checked the files when it made the links, so each of them is a member. */
static int add_from_links(DeliveryMembers *m) {
        _cleanup_close_ int fd = links_open(m->delivery->spec->link_dirs, m->delivery->rec.id);
        if (fd < 0)
                return fd;
        char root[64];
        snprintf(root, sizeof root, "/proc/self/fd/%d/.", fd);
        ScanSource scan = m->delivery->spec->scan;
        scan.root_override = root;
        scan.any_links = scan.any_owner = true;
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

static int find_members(DeliveryMembers *m) {
        if (m->delivery->rec.links_held) {
                int r = add_from_links(m);
                if (r != -ENOENT || m->n > 0)
                        return r;
        }
        if (m->delivery->held.n > 0 && m->delivery->held.all)
                return add_from_held(m);
        return add_from_source(m);
}

static void add_left_out_reasons(const DeliveryMembers *m) {
        for (int i = 0; i < N_SCAN_SKIPS; i++) {
                _cleanup_free_ char *text = scan_skip_reason((ScanSkip)i, m->left_out.skipped[i],
                                                             m->left_out.skipped_example[i]);
                if (text)
                        delivery_members_add_reason(text, m->reasons);
        }
        if (m->n_changed > REASONS_MAX) {
                char text[64];
                snprintf(text, sizeof text, "changed: %zu more members",
                         m->n_changed - REASONS_MAX);
                delivery_members_add_reason(text, m->reasons);
        }
        if (m->n_unreadable > REASONS_MAX) {
                char text[64];
                snprintf(text, sizeof text, "unreadable: %zu more members",
                         m->n_unreadable - REASONS_MAX);
                delivery_members_add_reason(text, m->reasons);
        }
}

static void add_lost_reason(const DeliveryMembers *m) {
        char text[128];
        snprintf(text, sizeof text,
                 "redelivered: %zu of %zu members that were shipped are gone or have changed since",
                 m->delivery->n_shipped - m->n, m->delivery->n_shipped);
        delivery_members_add_reason(text, m->reasons);
}

int delivery_members_new(DeliveryMembers **ret, const Delivery *d, Plan *plan, json_t *reasons) {
        DeliveryMembers *m = calloc(1, sizeof *m);
        if (!m)
                return -ENOMEM;
        *m = (DeliveryMembers){ .delivery = d, .plan = plan, .root_fd = -1, .reasons = reasons };
        int r = find_members(m);
        add_left_out_reasons(m);
        if (r >= 0 && bundle_record_is_redelivery(&d->rec) && m->n > 0 && m->n < d->n_shipped)
                add_lost_reason(m);
        /* What a supplement lacks its base may have. */
        if (r >= 0 && d->rec.kind == SOURCE_NEURON_PROFILE && !d->rec.supplement_of[0])
                r = validate_set(plan, delivery_members_add_reason, reasons);
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
        scan_unit_done(&m->left_out);
        free(m->members);
        free(m);
        return NULL;
}

int delivery_members_open(const DeliveryMembers *m, size_t i) {
        const FoundMember *member = &m->members[i];
        const char *path = plan_member(m->plan, i)->path;
        if (member->held_fd >= 0) {
                int fd = fcntl(member->held_fd, F_DUPFD_CLOEXEC, 0);
                return fd < 0 ? -errno : fd;
        }
        struct stat st;
        return fs_open_regular(m->root_fd, path, &st);
}

bool delivery_members_have_changed(const DeliveryMembers *m) {
        return m->n_changed > 0;
}

void delivery_members_leave_out(DeliveryMembers *m, size_t i) {
        m->members[i].is_left_out = true;
}

int delivery_members_export_prints(DeliveryMembers *m, Delivery *d) {
        if (!m)
                return 0;
        uint64_t *prints = calloc(m->n + 1, sizeof *prints);
        if (!prints)
                return -ENOMEM;
        free(d->prints);
        d->prints = prints;
        d->n_prints = 0;
        d->has_more = m->n_changed > 0;
        d->digest = 0;
        named_pids_done(&d->pids);
        for (size_t i = 0; i < m->n; i++) {
                if (m->members[i].is_left_out) {
                        d->has_more = true;
                        continue;
                }
                prints[d->n_prints++] = m->members[i].print;
                d->digest += m->members[i].print;
                named_pids_add(&d->pids, delivery_member_pid(plan_member(m->plan, i), d->rec.kind));
        }
        qsort(prints, d->n_prints, sizeof *prints, array_compare_keys);
        return 0;
}
