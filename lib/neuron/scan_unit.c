#include "lib/neuron/scan_unit.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/neuron/ids.h"
#include "lib/neuron/scan_walk.h"

typedef struct Collector {
        ScanUnit *unit;
        const char *instance_id; /* ours */
} Collector;

void scan_unit_done(ScanUnit *u) {
        free(u->relative);
        for (size_t i = 0; i < N_SCAN_SKIPS; i++)
                free(u->skipped_example[i]);
        *u = (ScanUnit){ 0 };
}

static int64_t nsec_of(const struct timespec *t) {
        int64_t v;

        /* A file may claim any time; past what 64 bits hold it is the end of time. */
        if (__builtin_mul_overflow(t->tv_sec, (int64_t)NSEC_PER_SEC, &v) ||
            __builtin_add_overflow(v, t->tv_nsec, &v))
                return t->tv_sec < 0 ? INT64_MIN : INT64_MAX;
        return v;
}

static uint64_t usec_of(const struct timespec *t) {
        int64_t nsec = nsec_of(t);

        return nsec < 0 ? 0 : (uint64_t)nsec / 1000;
}

static int note_skip(ScanUnit *u, const ScanMember *m) {
        u->skipped[m->skip]++;
        if (u->skipped_example[m->skip])
                return 0;
        u->skipped_example[m->skip] = path_escape(m->path[0] != '\0' ? m->path : ".");
        return u->skipped_example[m->skip] ? 0 : -ENOMEM;
}

static int note_member(const ScanMember *m, int unit_fd, void *userdata) {
        Collector *c = userdata;
        ScanUnit *u = c->unit;
        uint64_t mtime_usec = usec_of(&m->st.st_mtim);

        (void)unit_fd; /* a scan opens no member */
        if (m->skip != SCAN_SKIP_NONE)
                return note_skip(u, m);
        if (u->n_files == 0) {
                u->first = m->st;
                u->oldest_mtime_usec = mtime_usec;
                u->newest_change_nsec = INT64_MIN;
        }
        u->n_files++;
        u->bytes += (uint64_t)m->st.st_size;
        u->newest_change_nsec = MAX(u->newest_change_nsec, nsec_of(&m->st.st_mtim));
        u->newest_change_nsec = MAX(u->newest_change_nsec, nsec_of(&m->st.st_ctim));
        u->oldest_mtime_usec = MIN(u->oldest_mtime_usec, mtime_usec);
        u->digest += member_fingerprint(m->path, &m->st);
        if (u->pid < 0)
                u->pid = m->name.pid;
        u->has_own_name = u->has_own_name || strcmp(m->name.instance_id, c->instance_id) == 0;
        return 0;
}

UnitOwner scan_component_owner(const ScanSource *s, bool on_network, size_t i,
                               const char *component) {
        char instance_id[INSTANCE_ID_SIZE];
        TemplateValues v;
        int64_t pid;

        if (profile_unit_name_parse(component, instance_id, &pid))
                return unit_owner(s->instance_id, instance_id, on_network);
        /* One component that fits says less than a path that fits: `logs` would do for a %i. So
         * only what cannot be anything but an instance id counts. */
        if (path_template_match_component(s->template, i, component, &v) &&
            (instance_id_is_ec2(v.instance_id) || strcmp(v.instance_id, s->instance_id) == 0))
                return unit_owner(s->instance_id, v.instance_id, on_network);
        return UNIT_OWNER_UNNAMED;
}

static UnitOwner worse(UnitOwner a, UnitOwner b) {
        if (a == UNIT_OWNER_FOREIGN || b == UNIT_OWNER_FOREIGN)
                return UNIT_OWNER_FOREIGN;
        return a == UNIT_OWNER_US || b == UNIT_OWNER_US ? UNIT_OWNER_US : UNIT_OWNER_UNNAMED;
}

/* Whose the unit is as far as its path says, and the template's values in it. */
static int judge_path(const UnitPlace *p, ScanUnit *u, UnitOwner *ret) {
        _cleanup_free_ char *path = strdup(p->relative);
        size_t depth = path_template_depth(p->source->template), i = 0;
        UnitOwner owner = UNIT_OWNER_UNNAMED;
        char *rest = path;

        if (!path)
                return -ENOMEM;
        /* Only as many components as the template has; below them a unit of another kind may lie
         * deeper. */
        path[unit_path_prefix(path, depth)] = '\0';
        if (!p->loose && depth > 0 && path_template_match(p->source->template, path, &u->values))
                owner = unit_owner(p->source->instance_id, u->values.instance_id, p->on_network);
        (void)strcpy(path, p->relative); /* as long as it was */
        for (char *name; (name = strsep(&rest, "/")); i++) {
                if (name[0] == '\0' || (p->is_file && !rest))
                        break; /* a file's own name is judged as a member's */
                owner = worse(owner, scan_component_owner(p->source, p->on_network, i, name));
        }
        *ret = owner;
        return 0;
}

static void name_unit(const UnitPlace *p, ScanUnit *u) {
        const char *name = path_name(p->relative);
        char instance_id[INSTANCE_ID_SIZE];
        uint64_t pid;

        dump_name_parse(p->source->kind, name, &u->name);
        if (p->source->kind == SOURCE_NEURON_PROFILE &&
            profile_unit_name_parse(name, instance_id, &u->name.pid))
                memcpy(u->name.instance_id, instance_id, sizeof instance_id);
        u->pid = u->name.pid;
        if (parse_u64_range(u->values.pid, 0, INT64_MAX, &pid) == 0)
                u->pid = (int64_t)pid;
}

int scan_unit_fill(const UnitPlace *p, DIR *dir, ScanUnit *ret) {
        Collector c = { .unit = ret, .instance_id = p->source->instance_id };
        const ScanWalk walk = {
                .source = p->source,
                .relative = p->relative,
                .loose = p->loose,
                .on_member = note_member,
                .userdata = &c,
        };
        UnitOwner owner;
        int r;

        *ret = (ScanUnit){ .is_file = p->is_file, .loose = p->loose, .on_network = p->on_network };
        r = judge_path(p, ret, &owner);
        if (r < 0)
                return r;
        if (owner == UNIT_OWNER_FOREIGN)
                return UNIT_E_FOREIGN;
        ret->has_own_name = owner == UNIT_OWNER_US;
        name_unit(p, ret);
        if (!p->is_file && fstat(dirfd(dir), &ret->st) < 0)
                return -errno;
        if (!p->is_file && !p->on_network)
                ret->born_usec = fs_birth_usec(dirfd(dir));
        r = scan_walk_members(&walk, p->on_network, dir);
        if (r < 0)
                return r;
        if (p->is_file)
                ret->st = ret->first;
        ret->relative = strdup(p->relative);
        return ret->relative ? 0 : -ENOMEM;
}
