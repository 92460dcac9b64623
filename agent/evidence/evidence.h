/* The directories of evidence that the agent makes itself. Each is a unit of the built-in source
 * `agent`, and stays until its bundle has ended. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/evidence/about.h"
#include "agent/store/store.h"
#include "lib/base/bound.h"
#include "lib/base/clock.h"

#define EVIDENCE_DIRECTORY "evidence"     /* below the state directory */
#define EVIDENCE_ABOUT_FILE ".about.json" /* beside the files; no member of the bundle */
#define EVIDENCE_NAME_MAX 128
#define EVIDENCE_SNAPSHOTS_MAX 200       /* that are not delivered */
#define EVIDENCE_SNAPSHOTS_BYTES_MAX GIB /* of their files */
#define EVIDENCE_REPORTS_BYTES_MAX (512 * MIB)
#define EVIDENCE_REPORTS_BYTES_MAX_EACH (128 * MIB) /* of one owner */

typedef struct Evidence Evidence;

typedef struct EvidenceContext { /* borrowed */
        Clock *clock;
        Store *store;
        /* A directory is complete: the source is to probe its path. */
        void (*on_published)(const char *path, void *userdata);
        void *userdata;
} EvidenceContext;

/** Creates the directory, and removes what an earlier agent did not finish or has delivered. A
 * directory that cannot be created is logged; it is tried again whenever there is evidence.
 * @return 0, -ENOMEM */
int evidence_new(Evidence **ret, const EvidenceContext *context, const char *state_directory);
Evidence *evidence_free(Evidence *e);

/** @return absolute; borrowed */
const char *evidence_path(const Evidence *e);
/** Names are `snapshot-…`, `crash-report-…`, `oom-…`. @return 0 and the kind of its bundle; -EINVAL
 */
int evidence_kind(const char *name, SourceKind *ret);
/** @return whether it was published, delivered or not */
bool evidence_has(const Evidence *e, const char *name);
/** @return whether one more snapshot may be taken: not too many wait for their delivery */
bool evidence_has_space_for_snapshot(const Evidence *e);

/** Moves a directory that is complete, on the same file system, to its place. Its hidden files are
 * removed. @return 0; -EEXIST: the name is taken; -errno: it stays where it is */
int evidence_adopt(Evidence *e, const char *directory, const char *name, const About *about);

typedef struct EvidenceFile { /* borrowed */
        const char *name;
        int fd; /* a regular file or a memfd, read from its beginning */
} EvidenceFile;

/* Reports are published in three steps, so that a worker can wait for the disk. */

/** Charges a report to its owner. @return 0; -EDQUOT: the owner, or all, have too much that is not
 * delivered; -EEXIST: the name is taken; -ENOMEM */
int evidence_reserve(Evidence *e, const char *name, const Owner *owner, uint64_t bytes);
/** Writes the files durably, under their final name at once. In any thread; blocks.
 * @param path  evidence_path() @return 0, -errno: nothing is there */
int evidence_write(const char *path, const char *name, const About *about,
                   const EvidenceFile *files, size_t n_files);
/** Has the source find what was written, or gives up what was reserved.
 * @param r  of evidence_write() */
void evidence_end(Evidence *e, const char *name, int r);

/** Fills what the row of a bundle says of the unit at `rec->path`: kind, uid, about, subject.
 * @return 0; -EINVAL: it is no evidence; a document that cannot be read leaves it about nothing */
int evidence_describe(BundleRecord *rec);
/** Gives a bundle whose delivery has not started the place of its subject: what the place at a
 * destination is made of, but not the name that was agreed. @return 0, -ENOMEM */
int evidence_copy_place(BundleRecord *rec, const BundleRecord *subject);
/** The bundle of a unit has ended: removes its directory. */
void evidence_on_final(Evidence *e, const char *path);

/** @return for the status: the bytes of reports that are not delivered */
const Bound *evidence_bound(const Evidence *e);
