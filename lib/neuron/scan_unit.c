/* Fills in one unit: its owner and its values by its path, and the sums over its members, which
 * scan_members.c walks. Also the table of reasons why something is no member. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/neuron/ids.h"
#include "lib/neuron/scan_private.h"

static const struct SkipRow {
        const char *name;
        bool is_loss;
        const char *remedy;
} skips[N_SCAN_SKIPS] = {
        /* clang-format off */
        [SCAN_SKIP_NONE]       = { "none",           false, NULL },
        [SCAN_SKIP_SYMLINK]    = { "symlink",        true,
                                   "copy the file itself into the dump if it belongs there" },
        [SCAN_SKIP_SPECIAL]    = { "special-file",   false, /* holds no bytes to collect */
                                   "only regular files are collected" },
        [SCAN_SKIP_HARDLINK]   = { "hard-link",      true,
                                   "copy the file itself into the dump if it belongs there" },
        [SCAN_SKIP_UNREADABLE] = { "unreadable",     true,
                                   "give the agent CAP_DAC_READ_SEARCH or read permission" },
        [SCAN_SKIP_FOREIGN]    = { "foreign",        false, NULL }, /* its own instance collects it */
        [SCAN_SKIP_EXCLUDED]   = { "excluded",       false, NULL }, /* by configuration */
        [SCAN_SKIP_TOO_DEEP]   = { "too-deep",       true, "make the tree flatter" },
        [SCAN_SKIP_TOO_MANY]   = { "too-many-files", true, "raise the source's max_files" },
        [SCAN_SKIP_TOO_BIG]    = { "too-big",        true, "raise the source's max_bytes" },
        [SCAN_SKIP_RESERVED]   = { "reserved-name",  true,
                                   "rename it: the agent keeps its links under that name" },
        [SCAN_SKIP_NO_PROFILE] = { "no-profile",     false,
                                   "there is no profile in its directory; to collect it, add a "
                                   "source of kind directory" },
        [SCAN_SKIP_NO_DUMP]    = { "no-dump",        false,
                                   "its directory does not match the source's path, and holds no "
                                   "file that is named like one of the runtime's; to collect it, "
                                   "add a source of kind directory" },
        /* clang-format on */
};

const char *scan_skip_name(ScanSkip s) {
        return (unsigned)s < N_SCAN_SKIPS ? skips[s].name : NULL;
}

bool scan_skip_is_loss(ScanSkip s) {
        return (unsigned)s < N_SCAN_SKIPS && skips[s].is_loss;
}

const char *scan_skip_remedy(ScanSkip s) {
        return skips[s].remedy;
}

char *scan_skip_reason(ScanSkip s, uint64_t n, const char *example) {
        char *text;

        if (n == 0 || s == SCAN_SKIP_FOREIGN || s == SCAN_SKIP_EXCLUDED ||
            asprintf(&text, "%s: %llu left out, such as '%s'", scan_skip_name(s),
                     (unsigned long long)n, example ? example : "?") < 0)
                return NULL;
        return text;
}

void scan_unit_done(ScanUnit *u) {
        free(u->relative);
        for (size_t i = 0; i < N_SCAN_SKIPS; i++)
                free(u->skipped_example[i]);
        free(u->foreign);
        *u = (ScanUnit){ 0 };
}

static int64_t nsec_of(const struct timespec *t) {
        int64_t v;

        /* A file may claim any time; one that 64 bits cannot hold becomes the nearest limit. */
        if (__builtin_mul_overflow(t->tv_sec, (int64_t)NSEC_PER_SEC, &v) ||
            __builtin_add_overflow(v, t->tv_nsec, &v))
                return t->tv_sec < 0 ? INT64_MIN : INT64_MAX;
        return v;
}

static uint64_t usec_of(const struct timespec *t) {
        int64_t nsec = nsec_of(t);

        return nsec < 0 ? 0 : (uint64_t)nsec / 1000;
}

int scan_unit_add_skip(ScanUnit *u, const ScanMember *m) {
        u->skipped[m->skip]++;
        if (u->skipped_example[m->skip])
                return 0;
        u->skipped_example[m->skip] = path_escape(m->path[0] != '\0' ? m->path : ".");
        return u->skipped_example[m->skip] ? 0 : -ENOMEM;
}

void scan_unit_add_member(ScanUnit *u, const ScanMember *m, uint64_t fingerprint) {
        uint64_t mtime_usec = usec_of(&m->st.st_mtim);

        if (u->n_files++ == 0) {
                u->first = m->st;
                u->oldest_mtime_usec = mtime_usec;
                u->newest_change_nsec = INT64_MIN;
        }
        u->bytes += (uint64_t)m->st.st_size;
        u->newest_change_nsec = MAX(u->newest_change_nsec, nsec_of(&m->st.st_mtim));
        u->oldest_mtime_usec = MIN(u->oldest_mtime_usec, mtime_usec);
        u->digest += fingerprint;
        if (u->pid < 0)
                u->pid = m->name.pid;
}

static int add_foreign(ScanUnit *u, const ScanMember *m) {
        ScanForeign *f = NULL;

        for (size_t i = 0; i < u->n_foreign && !f; i++)
                if (strcmp(u->foreign[i].instance_id, m->foreign) == 0)
                        f = &u->foreign[i];
        if (!f) {
                if (u->n_foreign >= SCAN_FOREIGN_MAX)
                        return 0;
                if (array_grow(&u->foreign, u->n_foreign, sizeof *u->foreign) < 0)
                        return -ENOMEM;
                f = &u->foreign[u->n_foreign++];
                *f = (ScanForeign){ .newest_change_nsec = INT64_MIN };
                (void)snprintf(f->instance_id, sizeof f->instance_id, "%s", m->foreign);
        }
        f->n_files++;
        f->digest += member_fingerprint(m->path, &m->st);
        f->newest_change_nsec = MAX(f->newest_change_nsec, nsec_of(&m->st.st_mtim));
        f->newest_change_nsec = MAX(f->newest_change_nsec, nsec_of(&m->st.st_ctim));
        return 0;
}

static int add_member(const ScanMember *m, int unit_fd, void *userdata) {
        ScanUnit *u = userdata;

        (void)unit_fd; /* a scan opens no member */
        if (m->foreign)
                return add_foreign(u, m);
        if (m->skip != SCAN_SKIP_NONE)
                return scan_unit_add_skip(u, m);
        scan_unit_add_member(u, m, member_fingerprint(m->path, &m->st));
        u->newest_change_nsec = MAX(u->newest_change_nsec, nsec_of(&m->st.st_ctim));
        u->has_own_name = u->has_own_name || m->is_named;
        return 0;
}

ScanOwner scan_component_owner(const ScanSource *s, bool on_network, const char *relative, size_t i,
                               const char *component) {
        ScanOwner n = { .owner = UNIT_OWNER_UNNAMED };
        TemplateValues v;

        if (profile_unit_name_parse(component, n.instance_id, NULL)) {
                n.owner = scan_acting_owner(s, relative, n.instance_id, on_network);
                return n;
        }
        /* One matching component is weaker evidence than a matching path: `logs` matches %i. So
         * only an EC2 id, or this node's id, counts. */
        if (path_template_match_component(s->template, i, component, &v) &&
            (instance_id_is_ec2(v.instance_id) || strcmp(v.instance_id, s->instance_id) == 0)) {
                (void)snprintf(n.instance_id, sizeof n.instance_id, "%s", v.instance_id);
                n.owner = scan_acting_owner(s, relative, n.instance_id, on_network);
        }
        return n;
}

static void combine_owners(ScanOwner *a, const ScanOwner *b) {
        if (a->owner != UNIT_OWNER_FOREIGN &&
            (b->owner == UNIT_OWNER_FOREIGN || a->owner == UNIT_OWNER_UNNAMED))
                *a = *b;
}

/* Finds the owner by the unit's path, and the template's values in it. */
static int classify_path(const ScanLocation *p, ScanUnit *u, ScanOwner *ret) {
        _cleanup_free_ char *path = strdup(p->relative);
        size_t depth = path_template_depth(p->source->template), i = 0;
        ScanOwner owner = { .owner = UNIT_OWNER_UNNAMED };
        char *rest = path;

        if (!path)
                return -ENOMEM;
        /* The template matches as many components as it has; a unit may lie deeper. */
        path[unit_path_prefix(path, depth)] = '\0';
        if (!p->loose && depth > 0 && path_template_match(p->source->template, path, &u->values)) {
                (void)snprintf(owner.instance_id, sizeof owner.instance_id, "%s",
                               u->values.instance_id);
                owner.owner =
                        scan_acting_owner(p->source, p->relative, owner.instance_id, p->on_network);
        }
        (void)strcpy(path, p->relative); /* as long as it was */
        for (char *name; (name = strsep(&rest, "/")); i++) {
                if (name[0] == '\0' || (p->is_file && !rest))
                        break; /* a file's own name is checked as a member's */
                const ScanOwner named =
                        scan_component_owner(p->source, p->on_network, p->relative, i, name);
                combine_owners(&owner, &named);
        }
        *ret = owner;
        return 0;
}

static void parse_unit_name(const ScanLocation *p, ScanUnit *u) {
        const char *name = path_name(p->relative);
        uint64_t pid;

        dump_name_parse(p->source->kind, name, &u->name);
        if (p->source->kind == SOURCE_NEURON_PROFILE) /* else they are as dump_name_parse() says */
                (void)profile_unit_name_parse(name, u->name.instance_id, &u->name.pid);
        u->pid = u->name.pid;
        if (parse_u64_range(u->values.pid, 0, INT64_MAX, &pid) == 0)
                u->pid = (int64_t)pid;
}

int scan_unit_fill(const ScanLocation *p, DIR *dir, ScanUnit *ret) {
        const ScanWalk walk = {
                .source = p->source,
                .relative = p->relative,
                .loose = p->loose,
                .on_member = add_member,
                .userdata = ret,
        };
        ScanOwner owner;
        int r;

        *ret = (ScanUnit){ .is_file = p->is_file,
                           .loose = p->loose,
                           .is_evidence = p->is_evidence,
                           .on_network = p->on_network };
        r = classify_path(p, ret, &owner);
        if (r < 0)
                return r;
        bool is_foreign = owner.owner == UNIT_OWNER_FOREIGN;
        if (is_foreign && !scan_may_be_owned(p->source, owner.instance_id, p->on_network))
                return SCAN_E_FOREIGN;
        ret->has_own_name = owner.owner == UNIT_OWNER_US;
        parse_unit_name(p, ret);
        if (!p->is_file && fstat(dirfd(dir), &ret->st) < 0)
                return -errno;
        if (!p->is_file && !p->on_network)
                ret->born_usec = fs_birth_usec(dirfd(dir));
        r = scan_walk_members(&walk, p->on_network, is_foreign ? owner.instance_id : NULL, dir);
        if (r < 0)
                return r;
        if (p->is_file)
                ret->st = ret->first;
        ret->relative = strdup(p->relative);
        return ret->relative ? 0 : -ENOMEM;
}
