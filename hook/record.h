/* The hook's files beside the dump. */
#pragma once

#include <stddef.h>
#include <sys/types.h>

#include "lib/neuron/note.h"

/** Writes the record: the note, and `packages`: versions by `driver` and `dpkg`, and what `files`
 * are there by their names. @param note_text  as hook_note_format() made it
 * @param root  of this machine's files, "/"; for tests another  @return 0, -EEXIST, -errno */
int record_write(const HookNote *n, const char *note_text, size_t n_text, const char *root);

/** Writes the snapshot: text, or what fd has when text is NULL. @return as above */
int record_write_snapshot(const HookNote *n, const char *text, size_t n_text, int fd);

/* ---- a file that appears complete or not at all, whenever we are killed ---- */

/* Not fsynced: the job comes first, and the agent makes its own copy durable. */
typedef struct FileContent {
        const char *text; /* NULL: what fd has */
        size_t n;
        int fd; /* a file of memory, read from its beginning */
} FileContent;

#define WRITE_FILE_FD_MAX (32 << 20) /* of what fd has */

/** Creates the directory and those above it, with the caller's umask. @return an O_PATH fd of the
 * caller's, -errno */
int write_file_open_directory(const char *path);

/** @param mode  the umask is taken off  @return 0; -EEXIST: something is there, and stays; -EFBIG;
 * -errno */
int write_file(int dir_fd, const char *name, mode_t mode, const FileContent *content);
