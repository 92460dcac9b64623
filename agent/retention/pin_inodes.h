/* A set of inodes found below directories of pins: who asks whether a link is ours asks here. Blocking. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

typedef struct PinInode {
        dev_t dev;
        ino_t ino;
        nlink_t n_links; /* all names it has, ours and others' */
        uint64_t bytes;  /* on disk */
        unsigned place;  /* the caller's */
        bool seen;       /* the caller's */
        char *path;      /* below the directory that was added; owned */
} PinInode;

/** All zeros is an empty set. */
typedef struct PinInodes {
        PinInode *items;            /* by device and inode, once sorted */
        size_t n, n_allocated, max; /* max: more are not taken in, and is_whole becomes false */
        unsigned place;             /* of what is added next */
        bool is_built, is_whole;    /* is_whole: nothing was left out */
} PinInodes;

void pin_inodes_done(PinInodes *s);

/** Takes in all regular files below dir_fd (borrowed), but for what lies at the top under the name `except` (NULL = none).
 * What cannot be read is left out. 0 or -ENOMEM */
int pin_inodes_add_tree(PinInodes *s, int dir_fd, const char *except);

/** After the last addition, before the first question. */
void pin_inodes_sort(PinInodes *s);

/** @param ret_first  index of the first entry of this inode; may be NULL  @return how many entries it has: they follow */
size_t pin_inodes_count(const PinInodes *s, dev_t dev, ino_t ino, size_t *ret_first);
