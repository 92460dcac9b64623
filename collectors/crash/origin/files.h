/* The files that a report's child requests: what it may have, and where that is looked for. This
 * is the end that opens; the child is not trusted, nor is any root but in its place. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "collectors/host/elf_notes.h"

#define FILES_PATH_SIZE 4096
#define FILES_ROOTS_MAX 160
#define FILES_NAME_SIZE 64

typedef enum FileRootKind {
        FILE_ROOT_PROGRAM, /* the program itself, no directory */
        FILE_ROOT_OWN,     /* of the process, or of another one of its container */
        FILE_ROOT_HOST,
        FILE_ROOT_LAYER, /* of an image: one of many, most of them others' */
} FileRootKind;

typedef struct FileRoot {
        int fd; /* whose it is says who made the list */
        FileRootKind kind;
        char name[FILES_NAME_SIZE]; /* as the report says it */
} FileRoot;

#define FILES_GROUPS_MAX 256

/* For whom files are opened: the owner of the core. */
typedef struct FileReader {
        uid_t uid;
        gid_t groups[FILES_GROUPS_MAX];
        size_t n_groups;
} FileReader;

typedef enum FileKind {
        FILE_OF_CODE,  /* a program or library */
        FILE_OF_DEBUG, /* its separate debug information, by build id */
        FILE_OF_TEXT,  /* of a package manager; of q->place alone, as the next one */
        FILE_OF_NAMES, /* a directory of such, to be listed */
} FileKind;

typedef struct FileQuery { /* as the child sends it */
        char path[FILES_PATH_SIZE];
        BuildId build_id; /* n = 0: not known */
        FileKind kind;
        bool is_program;
        unsigned place; /* the first root that is to be searched */
} FileQuery;

typedef struct FileReply {
        int error; /* 0: a descriptor comes along; -ENODATA: in no further root */
        unsigned place;
        bool is_other; /* the process may have had another file there: its build id must be equal */
} FileReply;

/** Searches the roots from q->place on.
 * @param reader  nothing is opened that this user could not read, by modes of the file and of the
 * directories from the root to it; ACLs are not examined. NULL: whatever the caller may read
 * @param q  anybody's bytes  @param ret  all of it is set
 * @return a descriptor, the caller's, for reading; -1 and ret->error */
int files_open(const FileRoot *roots, size_t n, const FileReader *reader, const FileQuery *q,
               FileReply *ret);

/** The child's end: requests a file. @param ret_place  gets the root's name, which stays
 * @return a descriptor, the caller's; -ENODATA: it is not to be had */
typedef int (*FileOpen)(const FileQuery *q, FileReply *ret, const char **ret_place, void *userdata);
