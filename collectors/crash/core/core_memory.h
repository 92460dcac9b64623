/* The memory of a process as its core has it, by address. What is read is kept by pages, and
 * limited. */
#pragma once

#include "collectors/crash/core/core_notes.h"

#define CORE_MEMORY_PAGE 4096
#define CORE_MEMORY_PAGES 256
#define CORE_MEMORY_BYTES_MAX (64 * MIB) /* read of a core, headers excepted */

typedef struct CoreMemory {
        const CoreNotes *notes; /* borrowed */
        CoreRead read;
        void *userdata;
        uint64_t n_bytes_read;
        struct CorePage {
                uint64_t address; /* its own, of a page; 1 = empty */
                uint32_t n_bytes; /* that are there */
                uint8_t data[CORE_MEMORY_PAGE];
        } * pages;
} CoreMemory;

enum {
        CORE_MEMORY_E_UNMAPPED = 1, /* nothing was mapped there */
        CORE_MEMORY_E_ABSENT = 2,   /* not in the core: not dumped, or cut */
        CORE_MEMORY_E_LIMIT = 3,    /* CORE_MEMORY_BYTES_MAX was read */
};

/** @return 0, -ENOMEM */
int core_memory_init(CoreMemory *m, const CoreNotes *notes, CoreRead read, void *userdata);
void core_memory_done(CoreMemory *m);

/** All n bytes or none. @return 0, CORE_MEMORY_E_*, or what reading the core returned */
int core_memory_read(CoreMemory *m, uint64_t address, void *data, size_t n);
int core_memory_word(CoreMemory *m, uint64_t address, uint64_t *ret);
/** Reads what ends with NUL, or max_bytes - 1. @param ret  of max_bytes */
int core_memory_string(CoreMemory *m, uint64_t address, char *ret, size_t max_bytes);
