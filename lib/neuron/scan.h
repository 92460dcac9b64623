/* Scans a source's tree: finds its units (future bundles), their members and their owners. Reads
 * the file system and changes nothing; used by the agent's intake, `neuron-collect estimate` and
 * `doctor`. It blocks: call it in a worker. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "lib/neuron/names.h"
#include "lib/neuron/record.h"
#include "lib/neuron/unit.h"

struct ScanMember;

typedef struct ScanSource { /* all borrowed for the time of a call */
        SourceKind kind;
        const PathTemplate *template;
        /* fnmatch patterns on the escaped member path or its last component; NULL-terminated, may
         * be NULL. They leave out files; a directory's name leaves out nothing. */
        const char *const *exclude;
        const char *instance_id; /* this node's */
        bool any_owner; /* accept names of other instances: of links and units of this agent */
        uint64_t max_files, max_bytes; /* of a unit; 0 = no limit */
        /* A path that stands for the fixed part (tests; a bundle's links); may be NULL, may be
         * `/proc/self/fd/N/.`. It is trusted: opened like any path of ours. */
        const char *root_override;
        /* st_nlink is ignored: for a first scan, which cannot know whose links they are. */
        bool any_links;
        /* Called by scan_source, with its userdata, for each directory that may hold units or is
         * one, but gives no member because it cannot be read: such a loss would be silent
         * otherwise. May be NULL. */
        void (*on_unreadable)(const char *relative, void *userdata);
        /* The same for what no bundle can name: a unit that has losses but no member, a file of a
         * profile source that belongs to no profile. May be NULL. */
        void (*on_left_out)(const struct ScanMember *m, void *userdata);
        /* For members and units on a network file system whose names have another instance's id.
         * may_own() says whether this agent can own any with that id, owns() whether it owns those
         * of one unit. Members for which may_own() is true and owns() false are reported in
         * ScanUnit.foreign. NULL: this agent owns none. */
        bool (*may_own)(const char *instance_id, void *owner_data);
        bool (*owns)(const char *relative, const char *instance_id, void *owner_data);
        void *owner_data;
        /* Whether a directory of a source of dumps is a unit whatever its name and content: a hook
         * has named it, or it was a unit before. Of nested ones the outermost is the unit. May be
         * NULL. */
        bool (*is_unit)(const char *relative, void *is_unit_userdata);
        void *is_unit_userdata;
} ScanSource;

/** Why something that is there is no member. */
typedef enum ScanSkip {
        SCAN_SKIP_NONE,
        SCAN_SKIP_SYMLINK,
        SCAN_SKIP_SPECIAL, /* FIFO, socket, device */
        SCAN_SKIP_HARDLINK,
        SCAN_SKIP_UNREADABLE,
        SCAN_SKIP_FOREIGN, /* another instance's, which collects it: not reported */
        SCAN_SKIP_EXCLUDED,
        SCAN_SKIP_TOO_DEEP, /* below FS_DEPTH_MAX components, or a path beyond PATH_MAX */
        SCAN_SKIP_TOO_MANY,
        SCAN_SKIP_TOO_BIG,
        SCAN_SKIP_RESERVED,   /* `.neuron-collectd` inside a unit */
        SCAN_SKIP_NO_PROFILE, /* of no unit */
        SCAN_SKIP_NO_DUMP,    /* of no unit */
        N_SCAN_SKIPS,
} ScanSkip;
/** @return `symlink`, `special-file`, `hard-link`, `unreadable` …: also used as metric label */
const char *scan_skip_name(ScanSkip s);
/** @return whether it makes the bundle incomplete: a file with content is left behind that is not
 * excluded and that no other instance collects */
bool scan_skip_is_loss(ScanSkip s);
/** @return the remedy for what scan_skip_reason() names; NULL: none */
const char *scan_skip_remedy(ScanSkip s);
/** The one wording for manifests, `show`, `explain` and the journal: `symlink: 2 left out, such as
 * 'a'`. @param example  escaped; may be NULL
 * @return the caller's; NULL for 0, for what is excluded or another instance's, or without memory
 */
char *scan_skip_reason(ScanSkip s, uint64_t n, const char *example);

/** Members of a unit with another instance's id in their names, which this agent may own. */
typedef struct ScanForeign {
        char instance_id[INSTANCE_ID_SIZE];
        uint64_t digest, n_files; /* as in ScanUnit */
        int64_t newest_change_nsec;
} ScanForeign;
#define SCAN_FOREIGN_MAX 256 /* instances of a unit; members of further instances are ignored */

/** A unit: what becomes one bundle. */
typedef struct ScanUnit {
        char *relative; /* below the fixed part, raw; "" = the fixed part itself */
        bool is_file;   /* process-core: the unit is one file */
        bool loose;     /* only the files directly in it, which lies above the template's depth */
        /* Its path or its files' names are evidence of its kind; false: is_unit has named it. */
        bool is_evidence;
        TemplateValues values;
        DumpName name;      /* ids from the unit's own name (profiles); kind unused */
        struct stat st;     /* of the unit itself */
        uint64_t born_usec; /* when a directory was made, by this node's clock; 0 = not known */
        uint64_t n_files, bytes;
        int64_t newest_change_nsec; /* max over members of mtime and ctime */
        uint64_t oldest_mtime_usec;
        struct stat first; /* of the first member in strcmp order: dev, ino, mtime go into the id */
        int64_t pid;       /* the first pid found in names, -1 */
        uint64_t digest;   /* wrapping sum of member_fingerprint(): the order does not matter */
        bool has_own_name; /* the path or a member's name carries our instance id */
        /* The fixed part lies where other nodes see it too: with !has_own_name the unit must be
         * claimed. */
        bool on_network;
        uint64_t skipped[N_SCAN_SKIPS];
        char *skipped_example[N_SCAN_SKIPS]; /* an escaped path below the unit each; owned */
        ScanForeign *foreign;                /* owned */
        size_t n_foreign;
} ScanUnit;

void scan_unit_done(ScanUnit *u);
/** Counts a member; newest_change_nsec is its mtime's. @param fingerprint  member_fingerprint() */
void scan_unit_add_member(ScanUnit *u, const struct ScanMember *m, uint64_t fingerprint);
/** Counts what is no member. @return 0, -ENOMEM: the example is missing */
int scan_unit_add_skip(ScanUnit *u, const struct ScanMember *m);

/** Opens the fixed part of a source. A symlink on the way is followed only when it belongs to root
 * or to this user: in a world-writable directory any user could create one to files that only this
 * process may read.
 * @return a descriptor of the caller's; -ENOENT, -ENOTDIR, -EACCES; -ELOOP for such a symlink */
int scan_open_fixed(const char *fixed);

/** Checks whether users can keep out or remove each other's dumps: they can in a fixed part that
 * they all may write to and that is not root's and sticky.
 * @return the fault and the remedy as a sentence, the caller's; NULL: no fault, or it is missing */
char *scan_check_root(const char *fixed);

/** Finds all units below the source, in no particular order. Which path belongs to which unit:
 * unit_match(); and a core dump is a directory that matches the template, with all below it; else
 * one at that depth or below that directly holds a name of dump_name_is_of_dump() or is one of
 * is_unit, without such directories in it; else loose files with such a name, alone.
 * `.neuron-collectd` is never entered. Symlinks
 * are never followed. A unit without members is reported only for what it has in `foreign`. What
 * vanishes during the scan is ignored. Descriptors: one a level. Memory: names of the directories
 * from a unit down to where we are, 20 MiB at most; what is beyond that in a directory counts as
 * SCAN_SKIP_TOO_MANY, the first names are kept. Time: of one unit no more than 40 MiB of names are
 * read; what is beyond counts as one, of each directory.
 * @param on_unit  may keep the unit or fields of it (and set them to NULL or {0}); a negative
 * return ends the scan
 * @return 0, -ENOENT when the fixed part is not there, as scan_open_fixed() otherwise, or the first
 * error of on_unit */
int scan_source(const ScanSource *s, int (*on_unit)(ScanUnit *u, void *userdata), void *userdata);

/** As scan_source for the one unit that `relative` (a file or directory below the fixed part)
 * belongs to. A removed path leads to the unit that it lay in.
 * @return 0; SCAN_E_NO_UNIT: belongs to none (yet), has no members (any more), or is another
 * instance's;
 * -ENOENT: the unit is not there any more, or nothing is at `relative` and its unit is unknown;
 * -EACCES: the unit cannot be read; -EINVAL: `relative` has empty components, `.` or `..` */
enum { SCAN_E_NO_UNIT = 1 };
int scan_unit_at(const ScanSource *s, const char *relative, ScanUnit *ret);

/** One member of a unit, or what is none. */
typedef struct ScanMember {
        /* Relative to the unit, raw; for a file unit its name. A directory's when that is skipped
         * ("" = the unit's own). Borrowed until on_member returns. */
        const char *path;
        struct stat st; /* zeros when the skip was decided without fstatat(2) */
        DumpName name;
        ScanSkip skip; /* SCAN_SKIP_NONE = a member */
        bool is_named; /* its name has the id of this instance, or of one that it acts for */
        const char
                *foreign; /* SCAN_SKIP_FOREIGN: the instance, if this agent may own it; else NULL */
} ScanMember;

/** Walks the members in strcmp order of their paths, and reports what is no member.
 * `unit_fd` is the unit's directory, for a file unit the one it lies in: m->path opens below it. A
 * member too many or too big does not stop smaller ones after it. Link counts: st_nlink above 1 is
 * a foreign hard link unless `own_links` counts the extra ones as ours, the file's owner owns the
 * unit and the directory and nobody else may write them, or any_links is set.
 * @param own_links  (dev, ino, userdata) → number of our own links, UINT_MAX for a file that is
 * known to be a member; NULL = none
 * @return 0, -ENOENT the unit is gone, -EACCES it cannot be read, or what on_member returned
 * (negative) */
typedef struct ScanWalk {
        const ScanSource *source;
        const char *relative; /* the unit, below the fixed part */
        bool loose;
        unsigned (*own_links)(const char *member_path, const struct stat *st, void *userdata);
        int (*on_member)(const ScanMember *m, int unit_fd, void *userdata);
        void *userdata;
} ScanWalk;
int scan_members(const ScanWalk *w);
