/* The directories of attachments on the disk. Private to agent/hooknotes. All descriptors that are
 * returned are the caller's; -errno otherwise. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/hooknotes/attachments.h"
#include "lib/base/cleanup.h"

#define ATTACHMENT_KEY_SIZE 17
#define ATTACHMENTS_UNITS_MAX 65536        /* directories that are read */
#define ATTACHMENT_GIVING ".giving"        /* is being assigned to a bundle: counts as waiting */
#define ATTACHMENT_GIVEN ".of-"            /* and the id of a bundle: what is assigned to it */
#define ATTACHMENT_UNIT_FILE ".unit"       /* source, NUL, path */
#define ATTACHMENT_UNIT_FILE_MAX (8 * KIB) /* more than any name and path */

bool attachment_name_is_valid(const char *name);

/* Which names attachment_directory_read() reads: */
bool attachment_is_file(int dir_fd, const char *name);  /* an attached file */
bool attachment_is_given(int dir_fd, const char *name); /* a directory of what is assigned */
bool attachment_is_unit(int dir_fd, const char *name);  /* a directory of a unit */
/** Reads at most names->max names, sorted. @return 0, -errno */
int attachment_directory_read(int dir_fd, bool (*wants)(int dir_fd, const char *name),
                              AttachmentNames *names);

/** @return buf: the name of a unit's directory */
const char *attachment_unit_key(const char *source, const char *path,
                                char buf[static ATTACHMENT_KEY_SIZE]);
int attachment_open_directory(int dir_fd, const char *name);
/** Creates it if it is missing, and makes its name durable. */
int attachment_create_directory(int dir_fd, const char *name);
/** @param path  of all attachments; NULL: -ENOENT */
int attachment_open_unit(const char *path, const char *source, const char *unit_path);
int attachment_create_unit(const char *path, const char *source, const char *unit_path);
int attachment_create_root(const char *path);

/** Adds the number and bytes of the files in a directory. @param but  a name that does not count;
 * NULL */
int attachment_count_waiting(int unit, const char *but, size_t *n, uint64_t *bytes);
/** The same for a directory in it, which may be missing. */
int attachment_count_in(int unit, const char *name, size_t *n, uint64_t *bytes);
/** Counts the bytes of all units. */
int attachment_count_all(const char *path, uint64_t *ret_bytes);
/** @return 0: a file of that name and size fits into the unit; -E2BIG, -EFBIG as in attachments.h;
 * -errno */
int attachment_check_unit(int unit, const char *name, uint64_t more_bytes);
