/* What the two ways of `get` share: the bundle, where it goes, and how far it is. */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "cli/archive/bundle_name.h"
#include "cli/archive/object_store.h"
#include "cli/cli.h"
#include "cli/output.h"

#define GET_STEP_BYTES (1 * MIB) /* read, checked and written at once */

typedef struct Get {
        const Cli *cli;
        ObjectStore *store;
        BundleNames names;        /* keys */
        char *object_url;         /* for people */
        const char *member;       /* NULL = all of it */
        const char *given_output; /* -o; NULL */
        bool may_replace;         /* --force */
        char *manifest_text;
        size_t manifest_bytes;
        json_t *manifest;
        Output out;
        uint64_t total_bytes, loaded_bytes; /* loaded: from the store, in this run */
        uint64_t begin_usec, drawn_usec;    /* CLOCK_BOOTTIME */
} Get;

uint64_t get_object_bytes(const Get *g); /* as the manifest says */

/** Opens a range of the object; its failure is said. @return CLI_YES, CLI_NO */
int get_open_range(Get *g, uint64_t offset, uint64_t bytes, ObjectReader **ret);
/** Says why reading ended, and how to go on. @param r  what read_at() returned @return CLI_NO */
int get_say(const Get *g, int r);
/** Looks at a file that has the output's name already; that its name is taken by something else is said.
 * @param is_same  whether that file's content is what is wanted: 1, 0, -EINTR
 * @return CLI_YES and whether it is there already; CLI_NO */
int get_look_at_existing(Get *g, int (*is_same)(int fd, void *userdata), void *userdata,
                         bool *ret_is_there);
/** Counts what was loaded, and draws how far it is. */
void get_note(Get *g, uint64_t loaded_bytes);

/* get_whole.c, get_member.c; the manifest is read. @return an exit code */
int get_whole(Get *g);
int get_member(Get *g);
