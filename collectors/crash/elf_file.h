/* The wrapper of elfutils: a program or library from which a process ran, its build id, call frame
 * information and symbols. Addresses are the file's own. Whatever the file is, the process may only
 * lose time and memory by it, which its sandbox limits. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collectors/host/elf_notes.h"
#include "lib/base/cleanup.h"

#define UNWIND_REGISTERS 33 /* by DWARF's numbers: 17 of x86-64, 33 of arm64 */

typedef struct ElfFile ElfFile;

typedef struct ElfSymbol {
        uint64_t address, n_bytes;
        const char *name;
} ElfSymbol;

typedef struct ElfLine { /* valid as long as the file; NULL, 0: not known */
        const char *function, *file;
        int line;
        bool is_inlined; /* into the next one */
} ElfLine;

/* ---- how a frame's caller is found ---- */

typedef enum UnwindHow {
        UNWIND_UNDEFINED,
        UNWIND_SAME,
        UNWIND_AT_CFA,     /* in memory at CFA + offset */
        UNWIND_CFA_PLUS,   /* CFA + offset itself */
        UNWIND_EXPRESSION, /* ops give the value, or (is_location) where it is in memory */
} UnwindHow;

typedef struct UnwindOp { /* a DW_OP_… and its operands */
        uint8_t atom;
        uint64_t number, number2;
} UnwindOp;

typedef struct UnwindValue {
        UnwindHow how;
        int64_t offset;
        UnwindOp *ops; /* owned by the file */
        uint8_t n_ops;
        bool is_location;
} UnwindValue;

typedef struct UnwindRule {
        UnwindOp *cfa; /* owned by the file; NULL: cfa_register + cfa_offset */
        uint8_t n_cfa, cfa_register, return_register;
        bool is_signal_frame;
        int64_t cfa_offset;
        UnwindValue registers[UNWIND_REGISTERS];
} UnwindRule;

enum { ELF_FILE_E_NO_ELF = 1, ELF_FILE_E_NONE = 2 };

/** @param fd  the file's from here on, also on failure
 * @return 0, ELF_FILE_E_NO_ELF, -ENOMEM */
int elf_file_open(ElfFile **ret, int fd);
/** @param data  of malloc(3), the file's from here on, also on failure */
int elf_file_open_memory(ElfFile **ret, char *data, size_t n);
ElfFile *elf_file_free(ElfFile *f);
DEFINE_CLEANUP(ElfFile, elf_file_free);

typedef struct ElfIdentity { /* what it says of itself */
        BuildId build_id;
        char package[ELF_PACKAGE_SIZE]; /* as package_note_parse() has it; "" = none */
        unsigned machine;
} ElfIdentity;

const ElfIdentity *elf_file_identity(const ElfFile *f);

/** @return 0 and the address of what is at an offset of the file, ELF_FILE_E_NONE: in no PT_LOAD */
int elf_file_address(const ElfFile *f, uint64_t file_offset, uint64_t page_bytes, uint64_t *ret);
/** @return whether a PT_LOAD puts what is at an offset to this address; pages may overlap, so that
 * one offset can have several */
bool elf_file_maps(const ElfFile *f, uint64_t file_offset, uint64_t page_bytes, uint64_t address);
/** @return PF_R, PF_W, PF_X of the PT_LOAD that has an address, 0 for none */
unsigned elf_file_flags(const ElfFile *f, uint64_t address);
/** Reads what was in the file, not what it became in memory. @return 0, ELF_FILE_E_NONE, -errno */
int elf_file_read(const ElfFile *f, uint64_t address, void *data, size_t n);

/** @return 0 and a rule that is valid as long as the file, ELF_FILE_E_NONE: no information about
 * this address, or not to be understood */
int elf_file_rule(ElfFile *f, uint64_t address, UnwindRule *ret);

/** Adds the symbols of its separate debug information. @param debug  stays the caller's, and must
 * live longer */
int elf_file_add_symbols(ElfFile *f, ElfFile *debug);
/** @return the function that has the address, NULL for none */
const ElfSymbol *elf_file_symbol(ElfFile *f, uint64_t address);
/** Finds the source line of an address, and the lines of the functions that its own was inlined
 * into, by debug information.
 * @param debug  a file that has it, NULL: f itself  @param end_usec  clock_cpu_usec(): when to give
 * up, checked now and then
 * @return how many there are, innermost first; 0 = no debug information, or it took too long */
size_t elf_file_lines(ElfFile *f, ElfFile *debug, uint64_t address, uint64_t end_usec, ElfLine *ret,
                      size_t max);
/** @return the address of a symbol of this name, 0 for none */
uint64_t elf_file_find(ElfFile *f, const char *name);
