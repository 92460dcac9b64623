/* The state directory and the database in it: takes the directory's lock, opens the database, and
 * puts aside one that this agent cannot use.
 *
 * Put aside means renamed within the directory, with its log, unchanged: a damaged database, or
 * whatever else has its name, as `state.db.corrupt-<time>`; the database of another build, whose
 * schema is not ours (schema.c), as `state.db.other-build-<time>`. A new database is created in its
 * place. Its bundles are found again at the sources and from the hard links (agent/intake,
 * agent/retention); the other rows are lost with the file. An error that tells of the disk or of
 * permissions, not of the database, puts nothing aside: the agent does not start. */
#include "agent/store/store_private.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"

#define DATABASE "state.db"
#define PUT_ASIDE_TRIES 1000
#define PREFETCH_STEP ((off_t)MIB)
/* A larger database is not read as a whole before the agent starts, unless damage was met. */
#define CHECKED_MAX ((off_t)(32 * MIB))
/* What SQLite may keep beside the database; it goes where the database goes. */
static const char *const suffixes[] = { "", "-wal", "-shm", "-journal" };

DEFINE_CLEANUP(Store, store_close);

/* ---- the directory and its lock ---- */

static int open_state_dir(const char *path, int *ret) {
        _cleanup_close_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0) {
                if (errno != ENOENT)
                        return -errno;
                int r = fs_mkdir_p(path, 0711);
                if (r < 0)
                        return r;
                fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
                if (fd < 0 || fchmod(fd, 0711) < 0) /* whatever the umask said */
                        return -errno;
        }
        *ret = TAKE_FD(fd);
        return 0;
}

static pid_t read_pid(int fd) {
        char text[32];
        uint64_t pid = 0;
        ssize_t n = pread(fd, text, sizeof text - 1, 0);
        if (n <= 0)
                return 0;
        text[n] = '\0';
        text[strcspn(text, "\n")] = '\0';
        return parse_u64_range(text, 1, INT32_MAX, &pid) < 0 ? 0 : (pid_t)pid;
}

/* Where there is no room for the number, there is none. */
static void write_pid(int fd) {
        char text[32];
        int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
        if (pwrite(fd, text, (size_t)n, 0) != n || ftruncate(fd, n) < 0)
                (void)!ftruncate(fd, 0); /* at least not another one's */
}

/* The second kind of lock names its holder to a supervisor (collectors/supervisor.c), which serves
 * no other process. */
static void name_holder(int fd) {
        struct flock whole = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
        (void)fcntl(fd, F_SETLK,
                    &whole); /* refused: no supervisor serves this agent, which reports that */
}

/* The locks are the two flocks; the number in the file is for people. The directory's flock holds
 * also where there is no room for the file. */
static int acquire_lock(Store *s, pid_t *ret_pid) {
        int taken = flock(s->dir_fd, LOCK_EX | LOCK_NB), error = errno;

        s->lock_fd = openat(s->dir_fd, "lock",
                            O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
        if (s->lock_fd < 0 && errno != ENOSPC && errno != EDQUOT)
                return -errno;
        if (taken == 0 && s->lock_fd >= 0) {
                taken = flock(s->lock_fd, LOCK_EX | LOCK_NB);
                error = errno;
        }
        if (taken < 0) {
                if (error != EWOULDBLOCK)
                        return -error;
                *ret_pid = s->lock_fd >= 0 ? read_pid(s->lock_fd) : 0;
                return STORE_E_LOCKED;
        }
        if (s->lock_fd >= 0) {
                write_pid(s->lock_fd);
                name_holder(s->lock_fd);
        }
        return 0;
}

/* ---- opening ---- */

static void store_finalize(Store *s) {
        store_statements_finalize(s);
        (void)sqlite3_close(s->db); /* SQLITE_BUSY only with statements left, and there are none */
        s->db = NULL;
}

/* Makes the file 0600 before SQLite would make it by the umask; -wal and -shm follow its mode.
 * @param ret_foreign  something that is no regular file is in the way, and nothing was done */
static int prepare_file(Store *s, bool *ret_foreign) {
        struct stat st;

        *ret_foreign = false;
        for (size_t i = 0; i < ELEMENTSOF(suffixes); i++) {
                char name[32];
                (void)snprintf(name, sizeof name, DATABASE "%s", suffixes[i]);
                if (fstatat(s->dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
                        if (!S_ISREG(st.st_mode))
                                *ret_foreign = true;
                } else if (errno != ENOENT)
                        return -errno;
        }
        if (*ret_foreign)
                return 0;

        _cleanup_close_ int fd = openat(
                s->dir_fd, DATABASE, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
        if (fd < 0)
                return -errno;
        if (fstat(fd, &st) < 0)
                return -errno;
        if ((st.st_mode & 07777) != 0600 && fchmod(fd, 0600) < 0)
                return -errno;
        /* Every page is about to be checked, in the order of the trees: read from a cold disk in
         * the order of the file, that is ten times as fast. The kernel takes a few MiB a call. */
        s->is_damaged = false;
        s->is_to_be_checked =
                unlinkat(s->dir_fd, STORE_DAMAGED, 0) == 0 || st.st_size <= CHECKED_MAX;
        for (off_t at = 0; s->is_to_be_checked && at < st.st_size; at += PREFETCH_STEP)
                (void)posix_fadvise(fd, at, PREFETCH_STEP, POSIX_FADV_WILLNEED); /* only a hint */
        return 0;
}

/* Whether a result at open tells of damage, in contrast to a disk that fails or is full. */
static bool is_damage(int result) {
        switch (result & 0xff) {
        case SQLITE_CORRUPT:
        case SQLITE_NOTADB:
        case SQLITE_FORMAT:
        case SQLITE_ERROR: /* a table or column that the statements need is not there */
        case SQLITE_CONSTRAINT:
        case SQLITE_MISMATCH:
                return true;
        default:
                return false;
        }
}

static int on_active(BundleRecord *b, void *userdata) {
        (void)b, (void)userdata;
        return 0;
}

/* Invalid rows in a database that SQLite finds intact: something else has written to it. One that
 * is active would be missed. @return -EUCLEAN, -errno */
static int check_active(Store *s) {
        return store_list(s, &(StoreFilter){ .state = -1, .active_only = true }, on_active, NULL);
}

typedef enum Usability {
        STORE_IS_USABLE,
        STORE_IS_DAMAGED,
        STORE_IS_OF_OTHER_BUILD,
} Usability;

static const char *const aside_prefixes[] = {
        [STORE_IS_DAMAGED] = DATABASE ".corrupt-",
        [STORE_IS_OF_OTHER_BUILD] = DATABASE ".other-build-",
};

/* @param ret  unless it is usable, the database is closed again and nothing was written to it */
static int open_database(Store *s, Usability *ret) {
        bool is_foreign;
        int r = prepare_file(s, &is_foreign);
        *ret = is_foreign ? STORE_IS_DAMAGED : STORE_IS_USABLE;
        if (r < 0 || is_foreign)
                return r;

        r = sqlite3_open_v2(s->path, &s->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
        if (r == SQLITE_OK)
                r = store_schema_open(s);
        if (r == STORE_SCHEMA_IS_ANOTHER)
                *ret = STORE_IS_OF_OTHER_BUILD;
        else if (r != SQLITE_OK) {
                *ret = is_damage(r) ? STORE_IS_DAMAGED : STORE_IS_USABLE;
                r = store_sqlite_errno(s->db, r);
        } else {
                r = check_active(s);
                *ret = r == -EUCLEAN ? STORE_IS_DAMAGED : STORE_IS_USABLE;
        }
        if (r == 0)
                store_reserve_open(s);
        else
                store_finalize(s);
        return *ret == STORE_IS_USABLE ? r : 0;
}

/* @param ret  the name that it has now; the caller's */
static int put_aside(Store *s, Usability why, char **ret) {
        char when[CLOCK_ISO_SIZE], from[32], to[128];

        (void)clock_format_compact(when, clock_realtime_usec(), 'T');
        for (unsigned i = 1; i <= PUT_ASIDE_TRIES; i++) {
                int n = snprintf(to, sizeof to, "%s%s", aside_prefixes[why], when);
                if (i > 1)
                        (void)snprintf(to + n, sizeof to - (size_t)n, ".%u", i);
                if (renameat2(s->dir_fd, DATABASE, s->dir_fd, to, RENAME_NOREPLACE) == 0 ||
                    errno == ENOENT)
                        break;
                if (errno != EEXIST || i == PUT_ASIDE_TRIES)
                        return -errno;
        }

        _cleanup_free_ char *name = strdup(to);
        if (!name)
                return -ENOMEM;
        for (size_t i = 1; i < ELEMENTSOF(suffixes); i++) {
                (void)snprintf(from, sizeof from, DATABASE "%s", suffixes[i]);
                (void)snprintf(to, sizeof to, "%s%s", name, suffixes[i]);
                if (renameat(s->dir_fd, from, s->dir_fd, to) < 0 && errno != ENOENT)
                        return -errno;
        }
        *ret = TAKE_PTR(name);
        return fs_sync_dir(s->dir_fd);
}

/* Gives a database that was put aside its name again, where no new one could be created. */
static void take_back(Store *s, const char *aside) {
        char from[128], to[32];
        for (size_t i = ELEMENTSOF(suffixes); i-- > 0;) { /* the database last */
                (void)snprintf(from, sizeof from, "%s%s", aside, suffixes[i]);
                (void)snprintf(to, sizeof to, DATABASE "%s", suffixes[i]);
                (void)unlinkat(s->dir_fd, to, 0);
                (void)renameat(s->dir_fd, from, s->dir_fd, to); /* else it stays aside */
        }
        (void)fs_sync_dir(s->dir_fd); /* else the next start finds either name */
}

bool store_is_of_other_build(const char *put_aside) {
        const char *prefix = aside_prefixes[STORE_IS_OF_OTHER_BUILD];
        return strncmp(put_aside, prefix, strlen(prefix)) == 0;
}

/* @param ret_aside  NULL: nothing is put aside */
static int open_or_put_aside(Store *s, char **ret_aside) {
        Usability is;
        int r = open_database(s, &is);
        if (r == 0 && is != STORE_IS_USABLE) {
                if (!ret_aside)
                        return STORE_E_UNUSABLE;
                r = put_aside(s, is, ret_aside);
                if (r == 0) {
                        r = open_database(s, &is);
                        if (r == 0 && is != STORE_IS_USABLE)
                                r = -EIO; /* a new one is broken too: it is the disk */
                        if (r < 0)
                                take_back(s, *ret_aside);
                }
        }
        if (r == 0)
                r = fs_sync_dir(s->dir_fd); /* a new database is there after a power cut, too */
        return r;
}

int store_open(Store **ret, const char *state_dir, char **ret_put_aside, pid_t *ret_pid) {
        _cleanup_free_ char *aside = NULL;
        int r;

        _cleanup_(store_closep) Store *s = calloc(1, sizeof *s);
        if (!s)
                return -ENOMEM;
        s->dir_fd = s->lock_fd = -1;
        s->path = path_join(state_dir, DATABASE);
        if (!s->path)
                return -ENOMEM;
        r = open_state_dir(state_dir, &s->dir_fd);
        if (r < 0)
                return r;
        r = acquire_lock(s, ret_pid);
        if (r != 0)
                return r;
        r = open_or_put_aside(s, ret_put_aside ? &aside : NULL);
        if (r != 0)
                return r;
        if (ret_put_aside)
                *ret_put_aside = TAKE_PTR(aside);
        store_remember_files(s);
        *ret = TAKE_PTR(s);
        return 0;
}

Store *store_close(Store *s) {
        if (!s)
                return NULL;
        store_finalize(s); /* rolls back what is not committed */
        if (s->lock_fd >= 0)
                (void)close(s->lock_fd); /* gives the lock back */
        if (s->dir_fd >= 0)
                (void)close(s->dir_fd);
        free(s->path);
        free(s);
        return NULL;
}
