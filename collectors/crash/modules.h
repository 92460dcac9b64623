/* What a process had mapped: programs and libraries, from the core's list of mapped files, and the
 * files of them that are here. A file counts only when its build id is the one in the core. */
#pragma once

#include "collectors/crash/core/core_memory.h"
#include "collectors/crash/elf_file.h"
#include "collectors/crash/origin/versions.h"

#define MODULES_MAX 4096
#define MODULE_NAME_SIZE 512
#define MODULE_VDSO "[vdso]"

typedef enum ModuleState {
        MODULE_UNUSED,     /* its file was not requested yet */
        MODULE_FOUND,      /* its build id is right */
        MODULE_UNVERIFIED, /* the file fits as far as can be told: a build id is missing */
        MODULE_MISMATCH,   /* there are files, all of them others */
        MODULE_MISSING,
} ModuleState;

typedef struct Module {
        uint64_t start, end; /* from the first of its mappings to the last */
        uint64_t bias;       /* address in memory - address in the file; known with a file */
        const char *path;
        BuildId build_id; /* as the core has it */
        bool is_program;
        ModuleState state;
        const char *place; /* where the file was found, NULL: it was not */
        unsigned place_number;
        ElfFile *file, *debug;
        size_t first_mapping, n_mappings;
        bool has_searched_debug;
        Version version;
} Module;

typedef struct ModuleSymbol {
        char name[MODULE_NAME_SIZE]; /* mangled, without its version; cut */
        uint64_t offset;             /* of the address, from its beginning */
} ModuleSymbol;

typedef struct Modules {
        CoreMemory *memory; /* borrowed, and its notes */
        FileOpen open;
        void *userdata;
        Module *items; /* by address */
        size_t n;
} Modules;

/** Finds them and their build ids; opens no file. @return 0, -ENOMEM, -errno of the core */
int modules_init(Modules *m, CoreMemory *memory, FileOpen open, void *userdata);
void modules_done(Modules *m);

/** @return the module that has the address, NULL for none */
Module *modules_at(const Modules *m, uint64_t address);
/** @return the module's file, requested at the first time; NULL: there is none to be used */
ElfFile *modules_file(Modules *m, Module *module);
/** @return whether the function at an address of the process is known */
bool modules_symbol(Modules *m, uint64_t address, ModuleSymbol *ret);
/** As elf_file_lines(), at an address of the process. */
size_t modules_lines(Modules *m, uint64_t address, uint64_t end_usec, ElfLine *ret, size_t max);
/** @return whether an address may be executed; as far as the core and the file are there: a
 * debugger leaves code out of the cores that it makes */
bool modules_is_code(Modules *m, uint64_t address);
/** Reads memory, and where the core leaves it out, as constant parts of files are, from the file.
 * @return as core_memory_read() */
int modules_read(Modules *m, uint64_t address, void *data, size_t n);
/** Finds the packages and versions of the files that are used. @return as versions_find() */
int modules_find_versions(Modules *m, uint64_t end_usec);
const char *module_state_name(ModuleState state);
