/* Which package a program or library belongs to, and of which version it is: by what the file says
 * of itself, by the lists of Python's packages, and by those of dpkg. Runs where nothing can be
 * opened; the lists are hostile. */
#pragma once

#include "collectors/crash/origin/files.h"

#define VERSION_TEXT_SIZE 96

typedef struct Version { /* "" = not known */
        char package[VERSION_TEXT_SIZE], version[VERSION_TEXT_SIZE];
        char git[VERSION_TEXT_SIZE]; /* the commit that it was made of, in hexadecimal */
} Version;

typedef struct VersionItem {
        const char *path; /* in its root, absolute */
        const char *note; /* the text of its `.note.package`; "" = none */
        unsigned place;   /* where the file is: only what lies there tells of it */
        Version version;  /* what was found */
} VersionItem;

/** Finds what there is until a time (clock_cpu_usec()).
 * @return 0, -ENOMEM, -ETIMEDOUT: not all lists were read, or not whole */
int versions_find(VersionItem *items, size_t n, FileOpen open, void *userdata, uint64_t end_usec);

/* ---- for tests ---- */

/** Reads the text of a `.note.package`. */
void version_parse_note(const char *json, Version *ret);
/** Reads the commit that a version.py names: `git_version = '…'`, `__xla_gitrev__ = "…"`. */
void version_parse_git(const char *text, size_t n, Version *ret);
