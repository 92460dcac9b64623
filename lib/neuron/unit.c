/* Decides which paths of a source make one unit, the future bundle, and whose it is. These are the
 * rules of a scan that touch no file. For core dumps the names in a directory decide in addition:
 * that rule is find_dump() and find_dump_above() in scan.c. */
#include "lib/neuron/unit.h"

#include <limits.h>
#include <string.h>

#include "lib/base/path.h"

size_t unit_path_depth(const char *relative) {
        size_t n = relative[0] != '\0';

        for (; *relative != '\0'; relative++)
                n += *relative == '/';
        return n;
}

size_t unit_path_prefix(const char *relative, size_t n) {
        const char *p = relative;

        if (n == 0)
                return 0;
        for (; *p != '\0'; p++)
                if (*p == '/' && --n == 0)
                        break;
        return (size_t)(p - relative);
}

bool unit_path_is_clean(const char *relative) {
        if (relative[0] == '\0')
                return true;
        for (;;) {
                size_t n = strcspn(relative, "/");

                if (n == 0 || (n == 1 && relative[0] == '.') ||
                    (n == 2 && memcmp(relative, "..", 2) == 0))
                        return false;
                if (relative[n] == '\0')
                        return true;
                relative += n + 1;
        }
}

static bool is_profile_unit(const char *name, size_t n) {
        char buf[NAME_MAX + 1];

        if (n >= sizeof buf)
                return false;
        memcpy(buf, name, n);
        buf[n] = '\0';
        return profile_unit_name_parse(buf, NULL, NULL);
}

/* @return the number of leading components up to the outermost `_pid_` directory; 0 = none */
static size_t profile_depth(const UnitQuery *q) {
        const char *p = q->relative;
        size_t depth = 0;

        while (*p != '\0') {
                size_t n = strcspn(p, "/");

                depth++;
                if (p[n] == '\0' && !q->is_dir)
                        return 0; /* a file of that name is no directory */
                if (is_profile_unit(p, n))
                        return depth;
                p += n + (p[n] == '/');
        }
        return 0;
}

static bool profile_rule(const UnitQuery *q, UnitMatch *ret) {
        size_t depth = profile_depth(q);

        if (depth == 0 && q->ntff_depth < 0)
                return false;
        *ret = (UnitMatch){ .depth = depth > 0 ? depth : (size_t)q->ntff_depth };
        return true;
}

static bool directory_rule(const UnitQuery *q, UnitMatch *ret) {
        size_t depth = unit_path_depth(q->relative);
        size_t n_dirs = q->is_dir ? depth : depth - 1;

        if (n_dirs >= q->template_depth)
                *ret = (UnitMatch){ .depth = q->template_depth };
        else if (!q->is_dir)
                *ret = (UnitMatch){ .depth = n_dirs, .loose = true };
        else
                return false;
        return true;
}

bool unit_match(const UnitQuery *q, UnitMatch *ret) {
        switch (q->kind) {
        case SOURCE_NEURON_CORE_DUMP:
        case SOURCE_DIRECTORY:
        case SOURCE_SNAPSHOT:
        case SOURCE_CRASH_REPORT:
        case SOURCE_OOM:
                return directory_rule(q, ret);
        case SOURCE_PROCESS_CORE:
                *ret = (UnitMatch){ .depth = unit_path_depth(q->relative), .is_file = true };
                return !q->is_dir;
        case SOURCE_NEURON_PROFILE:
                return profile_rule(q, ret);
        case N_SOURCE_KINDS:
                break;
        }
        return false;
}

bool unit_ends_at(SourceKind kind, const char *relative, const char *name) {
        const UnitQuery q = { .kind = kind, .relative = relative, .is_dir = true };

        return kind == SOURCE_NEURON_PROFILE && is_profile_unit(name, strlen(name)) &&
               profile_depth(&q) == 0;
}

UnitOwner unit_owner(const char *ours, const char *found, bool on_network) {
        if (found[0] == '\0')
                return UNIT_OWNER_UNNAMED;
        if (strcmp(ours, found) == 0)
                return UNIT_OWNER_US;
        if (instance_id_is_ec2(ours))
                return instance_id_is_ec2(found) ? UNIT_OWNER_FOREIGN : UNIT_OWNER_UNNAMED;
        return on_network ? UNIT_OWNER_FOREIGN : UNIT_OWNER_UNNAMED;
}

/* Compares the last components of a core's path with the template: unlike other units, a core may
 * lie deeper below the fixed part than the template says. */
static bool core_matches_template(const PathTemplate *t, const char *relative) {
        size_t depth = unit_path_depth(relative), wanted = path_template_depth(t);

        if (depth < wanted)
                return false;
        relative += unit_path_prefix(relative, depth - wanted);
        return wanted == 0 || path_template_match(t, relative + (relative[0] == '/'), NULL);
}

bool unit_is_evidence_by_name(SourceKind kind, const PathTemplate *t, const char *relative) {
        switch (kind) {
        case SOURCE_NEURON_CORE_DUMP:
        case SOURCE_DIRECTORY:
        case SOURCE_SNAPSHOT:
        case SOURCE_CRASH_REPORT:
        case SOURCE_OOM:
                return path_template_match(t, relative, NULL);
        case SOURCE_PROCESS_CORE:
                return core_matches_template(t, relative);
        case SOURCE_NEURON_PROFILE:
                return is_profile_unit(path_name(relative), strlen(path_name(relative)));
        case N_SOURCE_KINDS:
                break;
        }
        return false;
}

bool member_is_evidence_by_name(const char *name) {
        DumpName parsed;

        dump_name_parse(SOURCE_DIRECTORY, name, &parsed);
        return parsed.kind != MEMBER_OTHER;
}
