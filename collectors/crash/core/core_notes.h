/* What the kernel wrote at the beginning of a core: its segments, threads, signal and mapped files.
 * Pure: bytes come from a function, and whatever they are, the result is bounded. A core that was
 * cut or filtered gives what it has. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/cleanup.h"

#define CORE_REGISTERS_MAX 34 /* arm64: x0 … x30, sp, pc, pstate; x86-64 has 27 */
#define CORE_THREADS_MAX 4096
#define CORE_SEGMENTS_MAX (256 * KIB) /* vm.max_map_count is 65,530 unless somebody raised it */
#define CORE_FILES_MAX (128 * KIB)
#define CORE_FILES_BYTES_MAX (16 * MIB) /* of an NT_FILE note; the kernel's own limit is 4 MiB */
#define CORE_AUXV_MAX 64
#define CORE_COMMAND_SIZE 17

/** Reads a core. @return bytes read, which are fewer than n only at its end; -errno */
typedef ssize_t (*CoreRead)(void *data, size_t n, uint64_t offset, void *userdata);

typedef struct CoreSegment {
        uint64_t address, memory_bytes;
        uint64_t offset, file_bytes; /* file_bytes ≤ memory_bytes: the rest was not written */
        uint32_t flags;              /* PF_R, PF_W, PF_X */
} CoreSegment;

typedef struct CoreThread {
        uint32_t tid;
        int signal;
        uint64_t
                registers[CORE_REGISTERS_MAX]; /* as the kernel has them: struct user_regs_struct */
} CoreThread;

typedef struct CoreMapping { /* a line of NT_FILE */
        uint64_t start, end, file_offset;
        const char *path; /* within file_names */
} CoreMapping;

typedef struct CoreSignal {
        int number, code;
        uint64_t address; /* of a fault: si_addr. Of kill(2): the sender's pid and uid */
        bool is_known;    /* there is a siginfo note */
} CoreSignal;

typedef struct CoreNotes {
        uint16_t machine; /* EM_X86_64, EM_AARCH64 */
        CoreSegment *segments;
        size_t n_segments, n_segments_missing; /* … of which the core has no header (any more) */
        CoreThread *threads;                   /* the first one is the one that crashed */
        size_t n_threads, n_threads_missing;
        CoreMapping *mappings; /* by address */
        size_t n_mappings;
        char *file_names;
        CoreSignal signal;
        struct {
                uint64_t type, value;
        } auxv[CORE_AUXV_MAX];
        size_t n_auxv;
        uint32_t pid;
        char command[CORE_COMMAND_SIZE]; /* comm, 15 bytes; "" = not known */
        bool is_cut;                     /* the notes end early */
} CoreNotes;

enum {
        CORE_NOTES_E_NO_CORE = 1, /* not an ELF core of 64 bits, little-endian */
        CORE_NOTES_E_MACHINE = 2, /* of a machine that we do not know; ret->machine has it */
};

/** Reads headers and notes.
 * @param ret  to be given to core_notes_done() whatever is returned
 * @return 0, CORE_NOTES_E_*, -ENOMEM, or what read returned */
int core_notes_read(CoreNotes *ret, CoreRead read, void *userdata);
void core_notes_done(CoreNotes *c);

/** @return the value of an entry of the auxiliary vector (AT_ENTRY …), 0 when there is none */
uint64_t core_notes_auxv(const CoreNotes *c, uint64_t type);

uint64_t core_notes_pc(const CoreNotes *c, const CoreThread *t);
uint64_t core_notes_stack_pointer(const CoreNotes *c, const CoreThread *t);

/** @return the segment that has the address, NULL: nothing was mapped there */
const CoreSegment *core_notes_segment(const CoreNotes *c, uint64_t address);
/** @return the mapping of a file that has the address, NULL: none, or not known */
const CoreMapping *core_notes_mapping(const CoreNotes *c, uint64_t address);
