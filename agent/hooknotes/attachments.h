/* Files of ours that go out as members of a unit's bundle: snapshots. They are in the state
 * directory, by unit, until they are delivered: `attachments/<16 hex of SHA-256 over source, NUL
 * and path>/<name>`, and in the bundle as `neuron-collectd/<name>`.
 *
 * What is there waits. When the first delivery of a bundle begins it is given all that waits:
 * the files move into `.of-<bundle-id>/` beside them, and from then on they are that bundle's,
 * whatever comes later, at all destinations and after every crash. What is attached afterwards
 * waits for the next bundle of the unit, a supplement. `.unit` has the source and path of the
 * unit.
 *
 * What was reported as attached is durable. The directories are read and moved on the loop, as
 * the database is; what is copied is copied by a worker (attachments_submit()), since a snapshot
 * goes to up to 32 units, and each file costs two syncs of a disk that may be slow. */
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

/** @param state_directory  absolute @return 0, -ENOMEM: nothing is made before something is
 * attached */
int attachments_new(Attachments **ret, const char *state_directory);
Attachments *attachments_free(Attachments *a);

/** Another bound than ATTACHMENTS_MAX_BYTES_ALL. */
void attachments_limit(Attachments *a, uint64_t max_bytes_all);
/** From here on attachments_submit() has a worker. @return 0, -ENOMEM, -EMFILE */
int attachments_start(Attachments *a, sd_event *event);

typedef struct AttachmentPlace { /* borrowed for the call */
        const char *source, *unit_path, *name;
} AttachmentPlace;

/** Attaches a copy of what fd has from its beginning, durably. A name that waits is replaced
 * atomically. Blocks: for what is small and rare. @param fd borrowed: a regular file or a memfd
 * @return 0, -EINVAL: the name, or no regular file; -E2BIG more than ATTACHMENTS_MAX; -EFBIG more
 * than ATTACHMENTS_MAX_BYTES; -EDQUOT more than ATTACHMENTS_MAX_BYTES_ALL; -errno */
int attachments_add(Attachments *a, const AttachmentPlace *at, int fd);

typedef struct AttachmentJob AttachmentJob;

#define ATTACHMENT_PLACES_MAX 64

typedef struct AttachmentRequest {
        int fd; /* as of attachments_add(); may be closed after the call, but not be written to
                   before on_done */
        const AttachmentPlace *places;
        size_t n_places; /* at most ATTACHMENT_PLACES_MAX */
        /* On the loop: for each place what attachments_add() would have returned. The job is no
         * more then. Not called at the agent's end. */
        void (*on_done)(const int *results, void *userdata);
        void *userdata;
} AttachmentRequest;

/** The same for several places, off the loop: one copy is written, and all places get links to it.
 * Jobs run one after another.
 * @return 0 and *ret, borrowed until on_done; -EINVAL, -ENOMEM, -errno when no thread could be
 * started */
int attachments_submit(Attachments *a, const AttachmentRequest *o, AttachmentJob **ret);
/** Nobody listens any more; what is underway is finished. @param j  may be NULL */
void attachment_job_forget(AttachmentJob *j);

/** @return how many wait, and the sum of their sizes; 0 also where that cannot be seen. @param a
 * NULL: none */
size_t attachments_waiting(const Attachments *a, const char *source, const char *unit_path,
                           uint64_t *ret_bytes);

/** What a bundle of the unit was given, and ships. @return a directory fd of the caller's; -ENOENT:
 * nothing; -errno */
int attachments_open_assigned(const Attachments *a, const char *source, const char *unit_path,
                              const char *bundle_id);
/** Gives a bundle that has not begun all that waits, durably. Once it was given something it gets
 * the same again, and no more.
 * @return as of attachments_open_assigned(); -errno: what waits stays */
int attachments_assign(const Attachments *a, const char *source, const char *unit_path,
                       const char *bundle_id);

typedef struct AttachmentNames { /* in strcmp order; zero = none */
        char **items;
        size_t n, max;
} AttachmentNames;
void attachment_names_done(AttachmentNames *names);

/** The names in a directory of attachments: regular files with valid names, at most
 * ATTACHMENTS_MAX. @return 0, -errno */
int attachment_names(int dir_fd, AttachmentNames *ret);

/** Removes what a bundle was given. Missing is fine. What waits stays. */
int attachments_release_bundle(const Attachments *a, const char *source, const char *unit_path,
                               const char *bundle_id);
/** Removes all that is attached to a unit. Missing is fine. */
int attachments_release(Attachments *a, const char *source, const char *unit_path);

/** Removes what waits and came before a time (CLOCK_REALTIME), and of what jobs bring that were
 * submitted before it and are out: the unit is not the one that it was.
 * @return how many files went, or -errno */
int attachments_release_before(Attachments *a, const char *source, const char *unit_path,
                               uint64_t usec);

typedef struct AttachmentsUnit { /* borrowed for the call */
        const char *source, *unit_path;
        uint64_t changed_usec; /* CLOCK_REALTIME: when a file was last attached or assigned */
} AttachmentsUnit;
typedef void (*AttachmentsOnUnit)(const AttachmentsUnit *u, void *userdata);
/** For a sweep: calls on_unit, which may release it, for each unit that has a directory. */
int attachments_list_all(const Attachments *a, AttachmentsOnUnit on_unit, void *userdata);
/** The ids of the bundles of a unit that were given something. @return 0, -errno */
int attachments_bundles(const Attachments *a, const char *source, const char *unit_path,
                        AttachmentNames *ret);
