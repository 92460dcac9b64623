/* The directories of evidence that the agent makes itself: snapshots, crash reports, records of the
 * OOM killer.
 *
 *      made elsewhere, by the supervisor            made of files in memory
 *                 │ evidence_adopt()                          │ evidence_write()
 *                 │                                   evidence.new/NAME
 *                 └────────────► evidence/NAME ◄──────────────┘ rename
 *                                      │  the source `agent` finds it: a row, a bundle
 *                                      │  evidence_on_final()
 *                                   removed
 *
 * A directory is complete when it is in evidence/, and does not change afterwards. Whenever the
 * agent is killed, the next one finds a directory without a row (the scan makes one), with a row
 * that is underway, or with one that has ended (evidence_new() removes it).
 *
 * What is not delivered is bounded: beyond the bound evidence is refused, and nothing gives way.
 * Whether a snapshot or a report is made at all is decided by agent/incidents and agent/crashes. */
#include "agent/evidence/evidence.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/config.h"
#include "lib/base/fs.h"
#include "lib/base/list.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"

#define NEW_SUFFIX ".new" /* of the directory where files are written */
#define COPY_BYTES (64 * KIB)
#define LEAST_BYTES (64 * KIB) /* that one is charged with: so is their number bounded */

typedef struct EvidenceEntry { /* a directory, or one that is being written */
        ListLink link;
        char name[EVIDENCE_NAME_MAX];
        uint64_t bytes; /* of its files */
        Charge charge;  /* of its owner; a snapshot has none */
} EvidenceEntry;

struct Evidence {
        EvidenceContext context;
        char *path;
        int fd;
        ListLink entries;
        Bound reports; /* bytes of reports, by owner */
        size_t n_snapshots;
        uint64_t snapshot_bytes;
};

static int open_directories(Evidence *e);

/* ---- entries ---- */

static EvidenceEntry *find_entry(const Evidence *e, const char *name) {
        LIST_FOREACH_ITEM (EvidenceEntry, x, link, &e->entries)
                if (strcmp(x->name, name) == 0)
                        return x;
        return NULL;
}

static EvidenceEntry *add_entry(Evidence *e, const char *name, uint64_t bytes) {
        SourceKind kind = N_SOURCE_KINDS;
        EvidenceEntry *x = calloc(1, sizeof *x);
        if (!x)
                return NULL;
        (void)snprintf(x->name, sizeof x->name, "%s", name);
        x->bytes = bytes;
        (void)evidence_kind(name, &kind); /* the caller has checked it */
        if (kind == SOURCE_SNAPSHOT) {
                e->n_snapshots++;
                e->snapshot_bytes += bytes;
        }
        list_append(&e->entries, &x->link);
        return x;
}

static void remove_entry(Evidence *e, EvidenceEntry *x) {
        SourceKind kind = N_SOURCE_KINDS;
        if (evidence_kind(x->name, &kind) == 0 && kind == SOURCE_SNAPSHOT) {
                e->n_snapshots--;
                e->snapshot_bytes -= x->bytes;
        }
        bound_release(&x->charge);
        list_remove(&x->link);
        free(x);
}

static uint64_t amount_of(const EvidenceEntry *x) {
        return MAX(x->bytes, (uint64_t)LEAST_BYTES);
}

/* ---- names ---- */

int evidence_kind(const char *name, SourceKind *ret) {
        for (SourceKind k = 0; k < N_SOURCE_KINDS; k++) {
                const char *word = source_kind_name(k);
                size_t n = strlen(word);
                if (!source_kind_is_own(k) || strncmp(name, word, n) != 0 || name[n] != '-' ||
                    name[n + 1] == '\0' || strlen(name) >= EVIDENCE_NAME_MAX)
                        continue;
                *ret = k;
                return 0;
        }
        return -EINVAL;
}

const char *evidence_path(const Evidence *e) {
        return e->path;
}

/* @return whether a bundle of this directory was recorded, and its state; what cannot be read has
 * not ended */
static bool find_row(const Evidence *e, const char *name, BundleState *ret) {
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        _cleanup_free_ char *path = path_join(e->path, name);
        if (!path || store_find_unit(e->context.store, AGENT_SOURCE, path, &rec) != 0)
                return false;
        *ret = rec.state;
        return true;
}

bool evidence_has(const Evidence *e, const char *name) {
        BundleState state;
        return find_entry(e, name) || find_row(e, name, &state);
}

bool evidence_has_space_for_snapshot(const Evidence *e) {
        return e->n_snapshots < EVIDENCE_SNAPSHOTS_MAX &&
               e->snapshot_bytes < EVIDENCE_SNAPSHOTS_BYTES_MAX;
}

const Bound *evidence_bound(const Evidence *e) {
        return &e->reports;
}

/* ---- directories ---- */

static uint64_t measure(int fd) {
        _cleanup_closedir_ DIR *d = NULL;
        const struct dirent *entry;
        struct stat st;
        uint64_t bytes = 0;
        (void)fs_opendir_at(fd, ".", &d); /* what cannot be read does not count */
        while (d && (entry = readdir(d)))
                if (fstatat(fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
                    S_ISREG(st.st_mode))
                        bytes += (uint64_t)st.st_size;
        return bytes;
}

/* Removes files of the agent and of the supervisor that are no evidence. */
static void remove_hidden(int fd) {
        _cleanup_closedir_ DIR *d = NULL;
        const struct dirent *entry;
        (void)fs_opendir_at(fd, ".", &d); /* what is not removed is delivered */
        while (d && (entry = readdir(d)))
                if (entry->d_name[0] == '.' && strcmp(entry->d_name, ".") != 0 &&
                    strcmp(entry->d_name, "..") != 0)
                        (void)fs_remove_tree(fd, entry->d_name); /* as above */
}

static int write_about(int fd, const About *about) {
        _cleanup_free_ char *text = about_format(about);
        return text ? fs_write_file(fd, EVIDENCE_ABOUT_FILE, text, strlen(text), 0600) : -ENOMEM;
}

static int open_directory(int dir_fd, const char *name) {
        int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

static void publish(const Evidence *e, const char *name) {
        _cleanup_free_ char *path = path_join(e->path, name);
        if (path && e->context.on_published) /* else the next scan finds it */
                e->context.on_published(path, e->context.userdata);
}

int evidence_adopt(Evidence *e, const char *directory, const char *name, const About *about) {
        SourceKind kind;
        int r = evidence_kind(name, &kind);
        if (r == 0)
                r = open_directories(e);
        _cleanup_close_ int fd = r < 0 ? r : open_directory(AT_FDCWD, directory);
        if (fd < 0)
                return fd;
        remove_hidden(fd);
        EvidenceEntry *x = add_entry(e, name, measure(fd));
        if (!x)
                return -ENOMEM;
        r = write_about(fd, about);
        if (r == 0)
                r = fs_sync_dir(fd);
        if (r == 0 && renameat2(AT_FDCWD, directory, e->fd, name, RENAME_NOREPLACE) < 0)
                r = -errno;
        if (r < 0) {
                remove_entry(e, x);
                return r;
        }
        (void)fs_sync_dir(e->fd); /* else, after power loss, it may be where it was: made again */
        publish(e, name);
        return 0;
}

/* ---- files in memory ---- */

static int copy_content(int to, int from) {
        _cleanup_free_ char *buffer = malloc(COPY_BYTES);
        uint64_t at = 0;
        ssize_t n;
        if (!buffer)
                return -ENOMEM;
        while ((n = fs_pread(from, buffer, COPY_BYTES, at)) > 0) {
                int r = fs_write_all(to, buffer, (size_t)n);
                if (r < 0)
                        return r;
                at += (uint64_t)n;
        }
        return (int)n;
}

static int write_copy(int dir_fd, const EvidenceFile *file) {
        _cleanup_close_ int to = openat(dir_fd, file->name,
                                        O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (to < 0)
                return -errno;
        int r = copy_content(to, file->fd);
        return r == 0 && fsync(to) < 0 ? -errno : r;
}

static int fill(int fd, const About *about, const EvidenceFile *files, size_t n_files) {
        int r = 0;
        for (size_t i = 0; r == 0 && i < n_files; i++)
                r = write_copy(fd, &files[i]);
        if (r == 0)
                r = write_about(fd, about);
        return r == 0 ? fs_sync_dir(fd) : r;
}

int evidence_write(const char *path, const char *name, const About *about,
                   const EvidenceFile *files, size_t n_files) {
        _cleanup_free_ char *new_path = strbuf_format("%s" NEW_SUFFIX, path);
        _cleanup_close_ int parent = open_directory(AT_FDCWD, path);
        _cleanup_close_ int new_parent = new_path ? open_directory(AT_FDCWD, new_path) : -ENOMEM;
        int r = MIN(parent, new_parent) < 0 ? MIN(parent, new_parent)
                                            : fs_remove_tree(new_parent, name);
        if (r == 0 && mkdirat(new_parent, name, 0700) < 0)
                r = -errno;
        _cleanup_close_ int fd = r < 0 ? r : open_directory(new_parent, name);
        r = fd < 0 ? fd : fill(fd, about, files, n_files);
        if (r == 0 && renameat2(new_parent, name, parent, name, RENAME_NOREPLACE) < 0)
                r = -errno;
        if (r == 0)
                return fs_sync_dir(parent);
        if (new_parent >= 0)
                (void)fs_remove_tree(new_parent, name); /* else the next start does */
        return r;
}

int evidence_reserve(Evidence *e, const char *name, const Owner *owner, uint64_t bytes) {
        SourceKind kind;
        int r = evidence_kind(name, &kind);
        if (r == 0)
                r = open_directories(e);
        if (r == 0 && evidence_has(e, name))
                r = -EEXIST;
        EvidenceEntry *x = r == 0 ? add_entry(e, name, bytes) : NULL;
        if (!x)
                return r < 0 ? r : -ENOMEM;
        if (bound_charge(&e->reports, &x->charge, owner, amount_of(x)) == BOUND_OK)
                return 0;
        remove_entry(e, x);
        return -EDQUOT;
}

void evidence_end(Evidence *e, const char *name, int r) {
        EvidenceEntry *x = find_entry(e, name);
        if (r == 0)
                publish(e, name);
        else if (x)
                remove_entry(e, x);
}

/* ---- its bundle ---- */

int evidence_describe(BundleRecord *rec) {
        _cleanup_(about_done) About about = { 0 };
        _cleanup_free_ char *text = NULL;
        size_t n;
        int r = evidence_kind(path_name(rec->path), &rec->kind);
        _cleanup_close_ int fd = r < 0 ? r : open_directory(AT_FDCWD, rec->path);
        if (r < 0)
                return r;
        r = fd < 0 ? fd : fs_read_file(fd, EVIDENCE_ABOUT_FILE, ABOUT_BYTES_MAX, &text, &n);
        if (r == 0)
                r = about_parse(text, n, &about);
        if (r < 0) {
                log_warning(r, "'%s' does not say what it is about", rec->path);
                return 0;
        }
        free(rec->about);
        rec->about = TAKE_PTR(text);
        rec->uid = about.owner.uid;
        if (about.n_related > 0)
                memcpy(rec->subject, about.related[0], sizeof rec->subject);
        return 0;
}

int evidence_copy_place(BundleRecord *rec, const BundleRecord *subject) {
        char *prefix = subject->s3_prefix ? strdup(subject->s3_prefix) : NULL;
        if (subject->s3_prefix && !prefix)
                return -ENOMEM;
        free(rec->s3_prefix);
        rec->s3_prefix = prefix;
        memcpy(rec->date_time, subject->date_time, sizeof rec->date_time);
        memcpy(rec->cluster_id, subject->cluster_id, sizeof rec->cluster_id);
        rec->oldest_mtime_usec = subject->oldest_mtime_usec;
        return 0;
}

static void remove_directory(const Evidence *e, const char *name) {
        int r = fs_remove_tree(e->fd, name);
        if (r < 0)
                log_warning(r, "cannot remove '%s/%s'; the next start tries again", e->path, name);
}

void evidence_on_final(Evidence *e, const char *path) {
        const char *name = path_name(path);
        SourceKind kind;
        if (!path_is_below(path, e->path) || evidence_kind(name, &kind) < 0)
                return;
        EvidenceEntry *x = find_entry(e, name);
        remove_directory(e, name);
        if (x)
                remove_entry(e, x);
}

/* ---- what an earlier agent has left ---- */

static void take_over(Evidence *e, const char *name) {
        BundleRecord rec = { .path = path_join(e->path, name) };
        _cleanup_(about_done) About about = { 0 };
        BundleState state;
        if (find_row(e, name, &state) && bundle_state_is_terminal(state)) {
                remove_directory(e, name);
                bundle_record_done(&rec);
                return;
        }
        _cleanup_close_ int fd = open_directory(e->fd, name);
        if (rec.path && fd >= 0 && evidence_describe(&rec) == 0 && rec.about)
                (void)about_parse(rec.about, strlen(rec.about), &about); /* else it is root's */
        EvidenceEntry *x = fd >= 0 ? add_entry(e, name, measure(fd)) : NULL;
        if (x && rec.kind != SOURCE_SNAPSHOT &&
            bound_has_space(&e->reports, &about.owner, amount_of(x))) /* it is there in any case */
                (void)bound_charge(&e->reports, &x->charge, &about.owner, amount_of(x));
        bundle_record_done(&rec);
}

static int sweep(Evidence *e) {
        _cleanup_closedir_ DIR *d = NULL;
        const struct dirent *entry;
        SourceKind kind;
        int r = fs_opendir_at(e->fd, ".", &d);
        while (r == 0 && (entry = readdir(d)))
                if (evidence_kind(entry->d_name, &kind) == 0)
                        take_over(e, entry->d_name);
        return r;
}

/* Removes what an earlier agent did not finish. */
static int empty_new_directory(const char *path) {
        _cleanup_free_ char *new_path = strbuf_format("%s" NEW_SUFFIX, path);
        _cleanup_closedir_ DIR *d = NULL;
        const struct dirent *entry;
        int r = new_path ? fs_mkdir_p(new_path, 0700) : -ENOMEM;
        _cleanup_close_ int fd = r < 0 ? r : open_directory(AT_FDCWD, new_path);
        r = fd < 0 ? fd : fs_opendir_at(fd, ".", &d);
        while (r == 0 && (entry = readdir(d)))
                if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
                        (void)fs_remove_tree(fd, entry->d_name); /* else the next start does */
        return r;
}

/* Opens the directories, unless they are open. */
static int open_directories(Evidence *e) {
        if (e->fd >= 0)
                return 0;
        int r = fs_mkdir_p(e->path, 0700);
        if (r == 0)
                r = empty_new_directory(e->path);
        if (r == 0)
                r = e->fd = open_directory(AT_FDCWD, e->path);
        if (r >= 0)
                r = sweep(e);
        return MIN(r, 0);
}

/* ---- life ---- */

int evidence_new(Evidence **ret, const EvidenceContext *context, const char *state_directory) {
        Evidence *e = calloc(1, sizeof *e);
        if (!e)
                return -ENOMEM;
        *e = (Evidence){ .context = *context,
                         .fd = -1,
                         .reports = { .what = "bytes of crash reports that are not delivered",
                                      .max = EVIDENCE_REPORTS_BYTES_MAX,
                                      .max_each = EVIDENCE_REPORTS_BYTES_MAX_EACH,
                                      .clock = context->clock } };
        list_init(&e->entries);
        e->path = path_join(state_directory, EVIDENCE_DIRECTORY);
        if (!e->path) {
                evidence_free(e);
                return -ENOMEM;
        }
        int r = open_directories(e);
        if (r < 0)
                log_error(r,
                          "cannot use '%s': dumps are delivered, but no snapshots, crash reports "
                          "and records of the OOM killer, until it can be created",
                          e->path);
        *ret = e;
        return 0;
}

Evidence *evidence_free(Evidence *e) {
        if (!e)
                return NULL;
        LIST_FOREACH_ITEM_SAFE (EvidenceEntry, x, link, &e->entries)
                remove_entry(e, x);
        bound_done(&e->reports);
        if (e->fd >= 0)
                (void)close(e->fd); /* a directory */
        free(e->path);
        free(e);
        return NULL;
}
