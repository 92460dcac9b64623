/* Files of the agent that are delivered as members of a unit's bundle: snapshots. Until they are
 * delivered they are in the state directory, by unit: `attachments/<16 hex of SHA-256 over source,
 * NUL and path>/<name>`; in the bundle as `neuron-collectd/<name>`.
 *
 * An attached file waits. When the first delivery of a bundle starts, all files that wait are
 * assigned to it: they move into `.of-<bundle-id>/` beside them, and stay that bundle's at all
 * destinations and after every crash. What is attached afterwards waits for the next bundle of the
 * unit, a supplement. `.unit` has the source and path of the unit.
 *
 * What is reported as attached is durable. The directories are read and renamed on the loop, as the
 * database is; the copies are written by a worker (attachments_submit()), since a snapshot belongs
 * to up to 32 units, and each file costs two syncs of a disk that may be slow. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#define ATTACHMENTS_MAX 256 /* of a unit */
#define ATTACHMENTS_MAX_BYTES ((uint64_t)64 << 20)
#define ATTACHMENTS_MAX_BYTES_ALL ((uint64_t)512 << 20) /* of all units */
#define ATTACHMENT_NAME_MAX 200
#define ATTACHMENTS_DIRECTORY "neuron-collectd" /* in the bundle */

typedef struct Attachments Attachments;

/** @param state_directory  absolute; nothing is created before something is attached
 * @return 0, -ENOMEM, -EMFILE */
int attachments_new(Attachments **ret, sd_event *event, const char *state_directory);
Attachments *attachments_free(Attachments *a);

/** Another bound than ATTACHMENTS_MAX_BYTES_ALL. */
void attachments_limit(Attachments *a, uint64_t max_bytes_all);
typedef struct AttachmentPlace { /* borrowed for the call */
        const char *source, *unit_path, *name;
} AttachmentPlace;

typedef struct AttachmentJob AttachmentJob;

#define ATTACHMENT_PLACES_MAX 64

typedef struct AttachmentRequest {
        int fd; /* a regular file or a memfd, read from its beginning; may be closed after the call,
                   but not be written to before on_done */
        const AttachmentPlace *places;
        size_t n_places; /* at most ATTACHMENT_PLACES_MAX */
        /* On the loop, not called when the agent ends. The job is freed afterwards. For each place:
         * 0; -E2BIG more than ATTACHMENTS_MAX; -EFBIG more than ATTACHMENTS_MAX_BYTES; -EDQUOT more
         * than ATTACHMENTS_MAX_BYTES_ALL; -errno */
        void (*on_done)(const int *results, void *userdata);
        void *userdata;
} AttachmentRequest;

/** Attaches a file durably to several units, off the loop: one copy is written, and all places get
 * links to it. A name that waits is replaced atomically. Jobs run one after another.
 * @return 0 and *ret, borrowed until on_done; -EINVAL: a name, or not a regular file; -ENOMEM,
 * -errno when no thread could be started */
int attachments_submit(Attachments *a, const AttachmentRequest *o, AttachmentJob **ret);
/** on_done is no longer called; the job is finished. @param j  may be NULL */
void attachment_job_forget(AttachmentJob *j);

/** @return whether a job attaches something to the unit. Who attaches several files, one after the
 * other's on_done, has them coming all the time */
bool attachments_are_coming(const Attachments *a, const char *source, const char *unit_path);

/** @return how many wait, and the sum of their sizes; 0 also on an error. @param a
 * NULL: none */
size_t attachments_waiting(const Attachments *a, const char *source, const char *unit_path,
                           uint64_t *ret_bytes);

/** @return whether a file of that name waits or is assigned to a bundle that is not delivered yet
 */
bool attachments_have(const Attachments *a, const char *source, const char *unit_path,
                      const char *name);

/** What is assigned to a bundle of the unit. @return a directory fd of the caller's; -ENOENT:
 * nothing; -errno */
int attachments_open_assigned(const Attachments *a, const char *source, const char *unit_path,
                              const char *bundle_id);
/** Assigns all that waits to a bundle whose delivery has not started, durably. A bundle that has an
 * assignment keeps it, and gets no more.
 * @return as of attachments_open_assigned(); -errno: what waits stays */
int attachments_assign(const Attachments *a, const char *source, const char *unit_path,
                       const char *bundle_id);

/** Lets a file that is assigned to a bundle wait again, durably: another bundle has to ship it. One
 * of that name that waits already is newer, and stays. In any thread.
 * @param assigned_fd  as of attachments_assign() */
int attachments_return(int assigned_fd, const char *name);

typedef struct AttachmentNames { /* in strcmp order; zero = none */
        char **items;
        size_t n, max;
} AttachmentNames;
void attachment_names_done(AttachmentNames *names);

/** The names in a directory of attachments: regular files with valid names, at most
 * ATTACHMENTS_MAX. @return 0, -errno */
int attachment_names(int dir_fd, AttachmentNames *ret);

/** Removes a file that waits. Missing is fine. @return 0, -errno */
int attachments_remove(const Attachments *a, const char *source, const char *unit_path,
                       const char *name);
/** Removes what is assigned to a bundle. Missing is fine. What waits stays. */
int attachments_release_bundle(const Attachments *a, const char *source, const char *unit_path,
                               const char *bundle_id);
/** Removes all that is attached to a unit. Missing is fine. */
int attachments_release(Attachments *a, const char *source, const char *unit_path);

/** Removes what waits and came before a time (CLOCK_REALTIME), and of what jobs attach that
 * were submitted before it: the unit is another one now.
 * @return how many files were removed, or -errno */
int attachments_release_before(Attachments *a, const char *source, const char *unit_path,
                               uint64_t usec);

typedef struct AttachmentsUnit { /* borrowed for the call */
        const char *source, *unit_path;
        uint64_t changed_usec; /* CLOCK_REALTIME: when a file was last attached or assigned */
} AttachmentsUnit;
typedef void (*AttachmentsOnUnit)(const AttachmentsUnit *u, void *userdata);
/** For a sweep: calls on_unit, which may release it, for each unit that has a directory. */
int attachments_list_all(const Attachments *a, AttachmentsOnUnit on_unit, void *userdata);
/** The ids of the bundles of a unit that have an assignment. @return 0, -errno */
int attachments_bundles(const Attachments *a, const char *source, const char *unit_path,
                        AttachmentNames *ret);
