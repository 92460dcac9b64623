/* A volume's root, its space and its users, for the other files of uploaders/volume. */
#pragma once

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "uploaders/volume/volume.h"

/* A crash leaves a file whose name ends so; the next attempt at the same object, or volume_sweep(),
 * removes it. */
#define VOLUME_TEMPORARY_SUFFIX ".neuron-collectd-tmp"

const char *volume_root(const Volume *v);
const char *volume_writer(const Volume *v); /* NULL = none */
mode_t volume_mode(const Volume *v);        /* of directories that nodes share */
/** For volume_readback(). */
atomic_uint_fast64_t *volume_read_back_counter(Volume *v);

/** Opens the root. @param create  whether it may be created where the volume is not away
 * @return 0 and the root, the caller's; UPLOAD_E_UNREACHABLE */
int volume_open_root(Volume *v, bool create, int *ret_fd, char **ret_error);
/** For what only reads: a volume that is away shows as -ESTALE, one that was never there as
 * -ENOENT. */
int volume_open_for_reading(Volume *v, int *ret_fd);

/** @param fd  of the volume @return 0, UPLOAD_E_FULL when more_bytes leave less than min_free;
 *   UPLOAD_E_UNREACHABLE, -errno */
int volume_check_space(const Volume *v, int fd, uint64_t more_bytes, char **ret_error);

/** Creates a file in the root, and learns which owner the file system gives it.
 * @param name  to be removed by the caller; "" = it has none @return fd, -1 and errno */
int volume_open_probe_file(Volume *v, int root_fd, char name[static NAME_MAX + 1]);
/** @return the uid that the file system gives to files of this user: not geteuid(2) where the
 *   server maps users (root_squash) */
uid_t volume_own_uid(Volume *v, int root_fd);
/** @return whether it is the uid of an agent: agent_uid_is_trusted() */
bool volume_is_trusted(Volume *v, int root_fd, uid_t uid);

/** Sets the group of a file or directory. For one that existed before, a refusal is ignored.
 * @return 0, -ENXIO, -errno: for volume_classify_group() */
int volume_set_group(const Volume *v, int fd, const struct stat *st, bool is_new);
/** Sets the group and mode of a directory, regardless of the umask: of a new one, or of one that
 * this user created before with others. Mounts without modes (CIFS, FUSE) refuse, or do nothing.
 * @return as volume_set_group() */
int volume_set_directory_mode(const Volume *v, int fd, const struct stat *st, mode_t mode,
                              bool is_new);
/** @param error  positive, of the two above @return UPLOAD_E_UNREACHABLE */
int volume_classify_group(const Volume *v, int error, const char *path, char **ret_error);

/** @return by the volume's clock; 0: a time that no clock shows */
int64_t volume_mtime_usec(const struct stat *st);
