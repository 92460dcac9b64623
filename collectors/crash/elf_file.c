/* libdw asks a server for debug information if it is told of one; the child that this runs in has
 * no network, and its environment is empty. */
#include "collectors/crash/elf_file.h"

#include <dwarf.h>
#include <elfutils/libdw.h>
#include <errno.h>
#include <gelf.h>
#include <string.h>

#include "lib/base/array.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"

enum {
        HEADERS_MAX = 256,
        OPS_MAX = 64,
        SYMBOLS_MAX = 4 << 20,
        OVERLAP_MAX = 64,
        UNSIZED_MAX = 4096, /* how far a symbol without a size reaches */
        NOTES_BYTES_MAX = 64 << 10,
};

typedef struct Symbol {
        ElfSymbol shown;
        uint8_t rank; /* which of several at one address is shown: the highest */
} Symbol;

struct ElfFile {
        Elf *elf;
        int fd;       /* -1: of memory */
        char *memory; /* NULL: of fd */
        size_t n_memory;
        ElfIdentity identity;
        Dwarf_CFI *cfi;
        Dwarf *dwarf;
        bool has_searched_cfi, has_symbols, has_searched_dwarf;
        UnwindOp **ops;
        size_t n_ops;
        Symbol *symbols;
        size_t n_symbols;
};

static int read_at(const ElfFile *f, void *data, size_t n, uint64_t offset) {
        if (!f->memory)
                return fs_pread_all(f->fd, data, n, offset);
        if (offset > f->n_memory || n > f->n_memory - offset)
                return -ENODATA;
        memcpy(data, f->memory + offset, n);
        return 0;
}

/* ---- opening ---- */

static size_t n_headers(const ElfFile *f) {
        size_t n = 0;
        return elf_getphdrnum(f->elf, &n) < 0 ? 0 : MIN(n, (size_t)HEADERS_MAX);
}

static void read_notes(ElfFile *f, const GElf_Phdr *p) {
        size_t n = MIN(p->p_filesz, (uint64_t)NOTES_BYTES_MAX);
        _cleanup_free_ uint8_t *data = malloc(n + 1);
        if (!data || read_at(f, data, n, p->p_offset) < 0)
                return;
        if (f->identity.build_id.n == 0)
                build_id_parse(data, n, p->p_align, &f->identity.build_id);
        if (f->identity.package[0] == '\0')
                package_note_parse(data, n, p->p_align, f->identity.package);
}

static int inspect(ElfFile *f) {
        GElf_Ehdr e;
        if (!f->elf || elf_kind(f->elf) != ELF_K_ELF || !gelf_getehdr(f->elf, &e) ||
            e.e_ident[EI_CLASS] != ELFCLASS64)
                return ELF_FILE_E_NO_ELF;
        f->identity.machine = e.e_machine;
        for (size_t i = 0; i < n_headers(f); i++) {
                GElf_Phdr p;
                if (gelf_getphdr(f->elf, (int)i, &p) && p.p_type == PT_NOTE)
                        read_notes(f, &p);
        }
        return 0;
}

static int open_it(ElfFile **ret, int fd, char *memory, size_t n) {
        _cleanup_(elf_file_freep) ElfFile *f = calloc(1, sizeof *f);
        if (!f) {
                if (fd >= 0)
                        (void)close(fd);
                free(memory);
                return -ENOMEM;
        }
        *f = (ElfFile){ .fd = fd, .memory = memory, .n_memory = n };
        (void)elf_version(EV_CURRENT);
        f->elf = memory ? elf_memory(memory, n) : elf_begin(fd, ELF_C_READ_MMAP, NULL);
        int r = inspect(f);
        if (r == 0)
                *ret = TAKE_PTR(f);
        return r;
}

int elf_file_open(ElfFile **ret, int fd) {
        return open_it(ret, fd, NULL, 0);
}

int elf_file_open_memory(ElfFile **ret, char *data, size_t n) {
        return open_it(ret, -1, data, n);
}

ElfFile *elf_file_free(ElfFile *f) {
        if (!f)
                return NULL;
        if (f->cfi)
                (void)dwarf_cfi_end(f->cfi);
        if (f->dwarf)
                (void)dwarf_end(f->dwarf);
        if (f->elf)
                (void)elf_end(f->elf);
        if (f->fd >= 0)
                (void)close(f->fd);
        for (size_t i = 0; i < f->n_ops; i++)
                free(f->ops[i]);
        free(f->ops);
        free(f->symbols);
        free(f->memory);
        free(f);
        return NULL;
}

const ElfIdentity *elf_file_identity(const ElfFile *f) {
        return &f->identity;
}

/* ---- addresses ---- */

/* The nth PT_LOAD, as whole pages. @return false: there are no more, or it is none */
static bool get_pages(const ElfFile *f, size_t nth, uint64_t page_bytes, GElf_Phdr *ret) {
        if (!gelf_getphdr(f->elf, (int)nth, ret) || ret->p_type != PT_LOAD)
                return false;
        uint64_t rest = ret->p_offset % page_bytes;
        ret->p_offset -= rest;
        ret->p_vaddr -= rest;
        ret->p_filesz += rest;
        return true;
}

int elf_file_address(const ElfFile *f, uint64_t file_offset, uint64_t page_bytes, uint64_t *ret) {
        for (size_t i = 0; i < n_headers(f); i++) {
                GElf_Phdr p;
                if (get_pages(f, i, page_bytes, &p) && file_offset - p.p_offset < p.p_filesz) {
                        *ret = p.p_vaddr + (file_offset - p.p_offset);
                        return 0;
                }
        }
        return ELF_FILE_E_NONE;
}

bool elf_file_maps(const ElfFile *f, uint64_t file_offset, uint64_t page_bytes, uint64_t address) {
        for (size_t i = 0; i < n_headers(f); i++) {
                GElf_Phdr p;
                if (get_pages(f, i, page_bytes, &p) && file_offset - p.p_offset < p.p_filesz &&
                    address - p.p_vaddr == file_offset - p.p_offset)
                        return true;
        }
        return false;
}

/* @return whether a PT_LOAD has an address */
static bool get_load_at(const ElfFile *f, uint64_t address, GElf_Phdr *ret) {
        for (size_t i = 0; i < n_headers(f); i++)
                if (gelf_getphdr(f->elf, (int)i, ret) && ret->p_type == PT_LOAD &&
                    address >= ret->p_vaddr && address - ret->p_vaddr < ret->p_memsz)
                        return true;
        return false;
}

unsigned elf_file_flags(const ElfFile *f, uint64_t address) {
        GElf_Phdr p;
        return get_load_at(f, address, &p) ? p.p_flags : 0;
}

int elf_file_read(const ElfFile *f, uint64_t address, void *data, size_t n) {
        GElf_Phdr p;
        if (!get_load_at(f, address, &p) || address - p.p_vaddr >= p.p_filesz ||
            n > p.p_filesz - (address - p.p_vaddr))
                return ELF_FILE_E_NONE;
        return read_at(f, data, n, p.p_offset + (address - p.p_vaddr));
}

/* ---- rules ---- */

/* @return a copy of the operations that lives as long as the file; NULL: too many, or no memory */
static UnwindOp *keep_ops(ElfFile *f, const Dwarf_Op *ops, size_t n) {
        if (n == 0 || n > OPS_MAX || array_grow(&f->ops, f->n_ops, sizeof *f->ops) < 0)
                return NULL;
        UnwindOp *copy = calloc(n, sizeof *copy);
        if (!copy)
                return NULL;
        for (size_t i = 0; i < n; i++)
                copy[i] = (UnwindOp){ ops[i].atom, ops[i].number, ops[i].number2 };
        f->ops[f->n_ops++] = copy;
        return copy;
}

static int set_cfa(ElfFile *f, Dwarf_Frame *frame, UnwindRule *rule) {
        Dwarf_Op *ops;
        size_t n;
        if (dwarf_frame_cfa(frame, &ops, &n) < 0 || n == 0)
                return ELF_FILE_E_NONE;
        if (n == 1 && ops[0].atom == DW_OP_bregx && ops[0].number < UNWIND_REGISTERS) {
                rule->cfa_register = (uint8_t)ops[0].number;
                rule->cfa_offset = (int64_t)ops[0].number2;
                return 0;
        }
        rule->cfa = keep_ops(f, ops, n);
        rule->n_cfa = (uint8_t)n;
        return rule->cfa ? 0 : ELF_FILE_E_NONE;
}

/* libdw spells the simple rules as operations too: CFA [+ offset] [, this is the value]. */
static int set_register(ElfFile *f, Dwarf_Frame *frame, int number, UnwindValue *v) {
        Dwarf_Op memory[3], *ops;
        size_t n;
        if (dwarf_frame_register(frame, number, memory, &ops, &n) < 0)
                return ELF_FILE_E_NONE;
        if (n == 0) {
                v->how = ops ? UNWIND_UNDEFINED : UNWIND_SAME;
                return 0;
        }
        size_t k = 1;
        if (ops[0].atom == DW_OP_call_frame_cfa) {
                if (k < n && ops[k].atom == DW_OP_plus_uconst)
                        v->offset = (int64_t)ops[k++].number;
                if (k == n) {
                        v->how = UNWIND_AT_CFA;
                        return 0;
                }
                if (k + 1 == n && ops[k].atom == DW_OP_stack_value) {
                        v->how = UNWIND_CFA_PLUS;
                        return 0;
                }
        }
        bool is_value = ops[n - 1].atom == DW_OP_stack_value ||
                        (n == 1 && (ops[0].atom == DW_OP_regx ||
                                    (ops[0].atom >= DW_OP_reg0 && ops[0].atom <= DW_OP_reg31)));
        *v = (UnwindValue){ .how = UNWIND_EXPRESSION,
                            .ops = keep_ops(f, ops, n),
                            .n_ops = (uint8_t)n,
                            .is_location = !is_value };
        return v->ops ? 0 : ELF_FILE_E_NONE;
}

int elf_file_rule(ElfFile *f, uint64_t address, UnwindRule *ret) {
        if (!f->has_searched_cfi)
                f->cfi = dwarf_getcfi_elf(f->elf);
        f->has_searched_cfi = true;
        Dwarf_Frame *frame = NULL;
        if (!f->cfi || dwarf_cfi_addrframe(f->cfi, address, &frame) != 0)
                return ELF_FILE_E_NONE;
        bool is_signal_frame = false;
        int column = dwarf_frame_info(frame, NULL, NULL, &is_signal_frame);
        UnwindRule rule = { .return_register = (uint8_t)column,
                            .is_signal_frame = is_signal_frame };
        int r = column < 0 || column >= UNWIND_REGISTERS ? ELF_FILE_E_NONE
                                                         : set_cfa(f, frame, &rule);
        int n = f->identity.machine == EM_X86_64 ? 17 : UNWIND_REGISTERS;
        for (int i = 0; i < n && r == 0; i++)
                r = set_register(f, frame, i, &rule.registers[i]);
        free(frame);
        if (r == 0)
                *ret = rule;
        return r;
}

/* ---- symbols ---- */

/* As people know a function: exported before local, without underscores before with them. */
static uint8_t rank_of(const GElf_Sym *s, const char *name) {
        unsigned bind = GELF_ST_BIND(s->st_info);
        unsigned rank = bind == STB_GLOBAL ? 8 : bind == STB_WEAK ? 6 : 2;
        rank += s->st_size > 0 ? 16 : 0;
        return (uint8_t)(rank + (*name != '_'));
}

static int compare_symbols(const void *a, const void *b) {
        const Symbol *x = a, *y = b;
        if (x->shown.address != y->shown.address)
                return x->shown.address < y->shown.address ? -1 : 1;
        return (int)x->rank - (int)y->rank;
}

static bool is_function(const GElf_Sym *s) {
        unsigned type = GELF_ST_TYPE(s->st_info);
        return s->st_shndx != SHN_UNDEF && s->st_value != 0 &&
               (type == STT_FUNC || type == STT_GNU_IFUNC || type == STT_NOTYPE);
}

/* Some linkers leave the version in the name: `memcpy@GLIBC_2.2.5`, which is an older one. */
static bool is_versioned(const char *name) {
        const char *at = strchr(name, '@');
        return at && at[1] != '@';
}

static int add_section(ElfFile *to, Elf *elf, Elf_Scn *section, const GElf_Shdr *h) {
        Elf_Data *data = elf_getdata(section, NULL);
        size_t n = data && h->sh_entsize > 0 ? data->d_size / sizeof(Elf64_Sym) : 0;
        for (size_t i = 0; i < n && i <= INT32_MAX && to->n_symbols < SYMBOLS_MAX; i++) {
                GElf_Sym s;
                if (!gelf_getsym(data, (int)i, &s) || !is_function(&s))
                        continue;
                const char *name = elf_strptr(elf, h->sh_link, s.st_name);
                if (!name || !*name || *name == '$' || is_versioned(name)) /* $x: arm64's marks */
                        continue;
                if (array_grow(&to->symbols, to->n_symbols, sizeof *to->symbols) < 0)
                        return -ENOMEM;
                to->symbols[to->n_symbols++] =
                        (Symbol){ { s.st_value, s.st_size, name }, rank_of(&s, name) };
        }
        return 0;
}

/* @param type  SHT_SYMTAB, SHT_DYNSYM */
static int add_table(ElfFile *to, Elf *elf, unsigned type) {
        Elf_Scn *section = NULL;
        while ((section = elf_nextscn(elf, section))) {
                GElf_Shdr h;
                if (gelf_getshdr(section, &h) && h.sh_type == type)
                        return add_section(to, elf, section, &h);
        }
        return 0;
}

static void sort_symbols(ElfFile *f) {
        if (f->n_symbols > 0)
                qsort(f->symbols, f->n_symbols, sizeof *f->symbols, compare_symbols);
}

static int index_symbols(ElfFile *f) {
        if (f->has_symbols)
                return 0;
        f->has_symbols = true;
        int r = add_table(f, f->elf, SHT_SYMTAB);
        if (r == 0 && f->n_symbols == 0)
                r = add_table(f, f->elf, SHT_DYNSYM);
        sort_symbols(f);
        return r;
}

int elf_file_add_symbols(ElfFile *f, ElfFile *debug) {
        int r = index_symbols(f);
        if (r == 0)
                r = add_table(f, debug->elf, SHT_SYMTAB);
        sort_symbols(f);
        return r;
}

static bool is_in_same_segment(const ElfFile *f, uint64_t a, uint64_t b) {
        GElf_Phdr p;
        return get_load_at(f, a, &p) && p.p_flags & PF_X && b >= p.p_vaddr &&
               b - p.p_vaddr < p.p_memsz;
}

const ElfSymbol *elf_file_symbol(ElfFile *f, uint64_t address) {
        if (index_symbols(f) < 0)
                return NULL;
        size_t low = array_count_up_to(f->symbols, f->n_symbols, sizeof *f->symbols, address);
        for (size_t i = low; i > 0 && low - i < OVERLAP_MAX; i--) {
                const ElfSymbol *s = &f->symbols[i - 1].shown;
                if (address - s->address < s->n_bytes)
                        return s;
        }
        /* Assembly without sizes: the nearest one before, if it is near. */
        const ElfSymbol *s = low > 0 ? &f->symbols[low - 1].shown : NULL;
        return s && s->n_bytes == 0 && address - s->address < UNSIZED_MAX &&
                               is_in_same_segment(f, s->address, address)
                       ? s
                       : NULL;
}

static uint64_t find_in(Elf *elf, unsigned type, const char *name) {
        Elf_Scn *section = NULL;
        while ((section = elf_nextscn(elf, section))) {
                GElf_Shdr h;
                if (!gelf_getshdr(section, &h) || h.sh_type != type || h.sh_entsize == 0)
                        continue;
                Elf_Data *data = elf_getdata(section, NULL);
                size_t n = data ? data->d_size / sizeof(Elf64_Sym) : 0;
                for (size_t i = 0; i < n && i <= INT32_MAX; i++) {
                        GElf_Sym s;
                        const char *found = gelf_getsym(data, (int)i, &s) && s.st_shndx != SHN_UNDEF
                                                    ? elf_strptr(elf, h.sh_link, s.st_name)
                                                    : NULL;
                        if (found && strcmp(found, name) == 0)
                                return s.st_value;
                }
        }
        return 0;
}

uint64_t elf_file_find(ElfFile *f, const char *name) {
        uint64_t address = find_in(f->elf, SHT_DYNSYM, name);
        return address ? address : find_in(f->elf, SHT_SYMTAB, name);
}

/* ---- lines ---- */

static Dwarf *debug_information(ElfFile *f) {
        if (!f->has_searched_dwarf)
                f->dwarf = dwarf_begin_elf(f->elf, DWARF_C_READ, NULL);
        f->has_searched_dwarf = true;
        return f->dwarf;
}

/* By the table of addresses, or, where the compiler made none, by trying unit after unit. */
static bool find_unit(Dwarf *dwarf, uint64_t address, uint64_t end_usec, Dwarf_Die *ret) {
        if (dwarf_addrdie(dwarf, address, ret))
                return true;
        Dwarf_CU *unit = NULL;
        Dwarf_Die sub;
        uint8_t type;
        while (clock_cpu_usec() < end_usec &&
               dwarf_get_units(dwarf, unit, &unit, NULL, &type, ret, &sub) == 0)
                if (type == DW_UT_compile && dwarf_haspc(ret, address) > 0)
                        return true;
        return false;
}

static unsigned attribute_of(Dwarf_Die *die, unsigned name) {
        Dwarf_Attribute a;
        Dwarf_Word v = 0;
        return dwarf_formudata(dwarf_attr(die, name, &a), &v) == 0 && v <= INT32_MAX ? (unsigned)v
                                                                                     : 0;
}

/* Where an inlined function was called. */
static void set_call(Dwarf_Die *unit, Dwarf_Die *inlined, ElfLine *ret) {
        Dwarf_Files *files;
        size_t n;
        *ret = (ElfLine){ .line = (int)attribute_of(inlined, DW_AT_call_line) };
        unsigned file = attribute_of(inlined, DW_AT_call_file);
        if (dwarf_getsrcfiles(unit, &files, &n) == 0 && file < n)
                ret->file = dwarf_filesrc(files, file, NULL, NULL);
}

static size_t add_scopes(Dwarf_Die *unit, Dwarf_Die *scopes, int n, ElfLine *ret, size_t max) {
        size_t n_lines = 0;
        for (int i = 0; i < n && n_lines < max; i++) {
                int tag = dwarf_tag(&scopes[i]);
                if (tag != DW_TAG_inlined_subroutine && tag != DW_TAG_subprogram)
                        continue;
                ElfLine *l = &ret[n_lines++];
                l->function = dwarf_diename(&scopes[i]);
                l->is_inlined = tag == DW_TAG_inlined_subroutine;
                if (!l->is_inlined)
                        break;
                if (n_lines < max)
                        set_call(unit, &scopes[i], &ret[n_lines]);
        }
        return n_lines;
}

size_t elf_file_lines(ElfFile *f, ElfFile *debug, uint64_t address, uint64_t end_usec, ElfLine *ret,
                      size_t max) {
        Dwarf *dwarf = debug_information(debug ? debug : f);
        Dwarf_Die unit;
        if (!dwarf || max == 0 || !find_unit(dwarf, address, end_usec, &unit) ||
            clock_cpu_usec() >= end_usec)
                return 0;
        Dwarf_Line *line = dwarf_getsrc_die(&unit, address);
        *ret = (ElfLine){ 0 };
        if (line) {
                ret->file = dwarf_linesrc(line, NULL, NULL);
                (void)dwarf_lineno(line, &ret->line);
        }
        _cleanup_free_ Dwarf_Die *innermost = NULL, *scopes = NULL;
        if (clock_cpu_usec() >= end_usec || dwarf_getscopes(&unit, address, &innermost) <= 0)
                return line ? 1 : 0;
        /* What contains it, not what contained it where an inlined function was written. */
        int n = dwarf_getscopes_die(innermost, &scopes);
        size_t n_lines = add_scopes(&unit, scopes, n, ret, max);
        return n_lines > 0 ? n_lines : line ? 1 : 0;
}
