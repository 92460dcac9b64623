/* What the files of `container_dumps` share: container_dumps.c (the collector: a process for each user), container_dumps_user.c (all dumps of a user, from
 * the hook's process to the end), container_dumps_find.c (where a dump is), container_dumps_look.c (what is in it), container_dumps_copy.c. */
#pragma once

#include <stdatomic.h>
#include <sys/stat.h>

#include "collectors/runner/collector.h"

#define DUMP_UNIT_SIZE 24 /* decimal digits */
#define DUMP_CONTAINER_SIZE 65
#define DUMP_DEPTH_MAX 8
#define DUMP_FILES_MAX 4096 /* of a unit, with what is left out */
#define DUMP_DIRECTORIES_MAX 1024

/** What all processes of the collector count together, in shared memory. */
typedef struct DumpsShared {
        _Atomic uint64_t n_bytes; /* of data in raw files, in whole blocks */
        _Atomic uint32_t n_files; /* raw ones */
} DumpsShared;

/* Another one: the file has been written to. */
typedef struct DumpStamp {
        uint64_t n_bytes;
        int64_t mtime_nsec;
} DumpStamp;

typedef enum DumpFileState {
        DUMP_FILE_WAITING, /* for its turn, or until nobody writes to it */
        DUMP_FILE_COPIED,
        DUMP_FILE_LEFT_OUT,
} DumpFileState;

typedef struct DumpFile {
        char *name;       /* in its directory */
        size_t directory; /* of the unit's */
        int fd; /* open since it was first seen, so that its content outlives the container; -1 */
        dev_t dev;
        ino_t ino;
        DumpStamp stamp;       /* at the last look, or when its copying began */
        uint64_t changed_usec; /* when a look found another stamp */
        unsigned n_copies;     /* begun */
        DumpFileState state;
        bool is_told; /* that it was seen */
} DumpFile;

typedef struct DumpDirectory {
        int fd;     /* for reading */
        char *path; /* below the unit's, with a slash at its end; "" = the unit's */
        unsigned depth;
        dev_t dev;
        ino_t ino;
} DumpDirectory;

/** A directory in a container. */
typedef struct DumpUnit {
        char id[DUMP_UNIT_SIZE];
        char container[DUMP_CONTAINER_SIZE]; /* "" = none that has a name */
        uint64_t namespace;
        DumpDirectory *directories; /* the first is its own */
        DumpFile *files;
        size_t n_directories, n_files, hint;
        bool is_incomplete; /* something was left out */
} DumpUnit;

typedef struct DumpHook {
        const CollectContainerDump *dump;
        uint64_t start_ticks; /* of its process; 0 = not known yet */
        DumpUnit *unit;
        bool is_answered, has_ended;
        bool is_late; /* its directory is waited for no longer */
} DumpHook;

/** All dumps of one user. */
typedef struct Dumps {
        const CollectOrder *order;
        uid_t uid;
        CollectOut *out;
        DumpsShared *shared;
        uint64_t max_bytes; /* of data, of this user */
        uint32_t max_files; /* raw ones, of this user */
        uint64_t n_bytes;
        uint32_t n_files;
        uint64_t deadline_usec; /* CLOCK_BOOTTIME */
        uint64_t absent_usec;   /* until then a directory may come */
        int max_fds;            /* numbers of files that are held open are below */
        bool is_over;           /* all hooks have ended, and nothing was new after that */
        DumpHook *hooks;
        DumpUnit **units;
        size_t n_hooks, n_units;
} Dumps;

/** A file that is being copied, a piece at a time. */
typedef struct DumpCopy {
        DumpUnit *unit; /* NULL = none */
        size_t file;    /* of the unit's */
        int fd;         /* the raw file */
        char name[16];
        ino_t ino; /* of the file */
        DumpStamp begun;
        uint64_t at;      /* copied up to there */
        uint64_t n_out;   /* length of the raw file */
        uint64_t paid_to; /* counted up to there, but for holes */
        char *buffer;
} DumpCopy;

uint64_t dumps_now(void); /* CLOCK_BOOTTIME in microseconds */
DumpStamp dumps_stamp(const struct stat *st);
bool dumps_stamp_is(const DumpStamp *a, const DumpStamp *b);

/* Records. What does not fit is dropped: collect_emit() remembers it. */
void dumps_say_none(CollectOut *out, const char *note, const char *detail);
/** @param path  below the unit's directory @param detail  a sentence */
void dumps_leave_out(Dumps *d, DumpUnit *u, const char *path, const char *detail);

/** Finds the hook's process, and from there the directory: answers the note, or not yet when there may still be one (unless h->is_late). */
void dumps_find(Dumps *d, DumpHook *h);
/** @return whether the hook's process is over */
bool dumps_hook_has_ended(const Dumps *d, const DumpHook *h);

/** Looks through a unit: opens what is new, notices what has changed. @return whether there was any such */
bool dumps_look(Dumps *d, DumpUnit *u);
/** @return the path below the unit's directory, the caller's; NULL for lack of memory */
char *dumps_path(const DumpUnit *u, const DumpFile *f);
/** Tells of a file, once. */
void dumps_tell_seen(Dumps *d, const DumpUnit *u, DumpFile *f);
DumpUnit *dumps_unit_free(DumpUnit *u);

/** Begins or continues to copy one file. @param hooks_have_ended  then nobody waits to rename a file with a dot in front
 * @return whether something was done; false: nothing is ready to be copied */
bool dumps_copy_step(Dumps *d, DumpCopy *c, bool hooks_have_ended);
/** @return whether a file waits */
bool dumps_are_waiting(const Dumps *d);
void dumps_copy_done(DumpCopy *c);

/** All of one user. @return 0, -errno */
int dumps_run(Dumps *d);
