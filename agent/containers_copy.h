/* What the collector says it has copied out of containers (copy.json, docs/SNAPSHOT.md), read, checked and put in order. All in it was made from what strangers
 * named: nothing is believed. Touches no file. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define COPY_DOCUMENT_MAX_BYTES ((size_t)32 << 20)
#define COPY_UNIT_SIZE 24 /* decimal digits, as the collector says it */
#define COPY_UNIT_DIGITS                                                                           \
        20 /* that are kept, the last ones: a directory's name, and what `%l` takes in a template */
#define COPY_FILE_NAME_SIZE 12 /* as the collector makes them: `f` and digits */
#define COPY_CONTAINER_SIZE 65
#define COPY_ENTRIES_MAX 65536 /* records of files, in all */
#define COPY_DUMPS_MAX 1024
#define COPY_DEPTH_MAX 16

typedef struct CopyEntry { /* one path in a unit */
        char unit[COPY_UNIT_SIZE];
        char *path;                     /* raw, relative to the unit */
        char file[COPY_FILE_NAME_SIZE]; /* raw file that has it whole; "" = none has */
        uint64_t bytes;                 /* its size when it was last seen */
        int64_t mtime_nsec;             /* of what `file` has */
        char *detail;                   /* why it, or its last state, was left out; NULL */
        bool has_bytes;                 /* its record says them */
        bool is_renamed; /* it is told of under another name; none such is in a document */
        size_t order;
} CopyEntry;

typedef struct CopyDump { /* what became of one note */
        char *note, *detail, *path;
        char unit[COPY_UNIT_SIZE]; /* "" = it is in no container, or cannot be had */
        char container[COPY_CONTAINER_SIZE];
        bool is_here; /* it is this machine's own */
} CopyDump;

typedef struct CopyDocument {
        CopyDump *dumps; /* of one note the last word */
        size_t n_dumps;
        CopyEntry *entries; /* by unit and path, each once */
        size_t n_entries;
        char (*whole)[COPY_UNIT_SIZE]; /* units of which the collector saw the end */
        size_t n_whole;
        size_t n_bad; /* records that say what cannot be, or that were too many */
        char *detail; /* why the collector did not come to its end; NULL: it did */
} CopyDocument;

/** Reads the whole document. @return 0, -EBADMSG: it is none; -ENOMEM */
int copy_document_parse(CopyDocument *ret, const char *text, size_t n);
void copy_document_done(CopyDocument *d);
bool copy_document_is_whole(const CopyDocument *d, const char *unit);

/** Reads one record of a dump, as it comes while the collector is at work. @return 0, -EBADMSG, -ENOMEM */
int copy_dump_parse(CopyDump *ret, const char *text, size_t n);
void copy_dump_done(CopyDump *d);

/** @return whether a path may be made below a unit: relative, clean, no component of dots alone, none longer than NAME_MAX, COPY_DEPTH_MAX of them at most */
bool copy_path_is_valid(const char *path);
bool copy_unit_is_valid(const char *unit);
