/* Headers and notes of a core. Notes that are not used (floating point, the 11 KiB of AMX state of
 * each thread) are skipped, not read. @see elf(5), Linux fs/binfmt_elf.c */
#include "collectors/crash/core/core_notes.h"

#include <elf.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/array.h"

enum {
        CHUNK_BYTES = 64 << 10,
        NAME_BYTES_MAX = 64,
        /* struct elf_prstatus of both machines up to the registers, which differ in number */
        PRSTATUS_SIGNAL = 12,
        PRSTATUS_PID = 32,
        PRSTATUS_REGISTERS = 112,
        PRPSINFO_PID = 24,
        PRPSINFO_COMMAND = 40,
        PRPSINFO_COMMAND_BYTES = 16,
        SIGINFO_CODE = 8,
        SIGINFO_ADDRESS = 16,
        X86_64_RIP = 16, /* of struct user_regs_struct, as the others */
        X86_64_RSP = 19,
        ARM64_SP = 31,
        ARM64_PC = 32,
        NOTE_BYTES_MAX = 1024, /* of those that are read at once */
        PATH_BYTES_MAX = 4096, /* Linux has no longer ones */
};
#define NOTES_BYTES_MAX (256 * MIB) /* 4,096 threads with the state of AMX have 60 MiB */

typedef struct CoreNoteReader { /* a window over the core */
        CoreRead read;
        void *userdata;
        uint8_t *window;
        uint64_t offset;
        size_t n;
} CoreNoteReader;

/* @return 0, -ENODATA past the core's end, -errno */
static int read_at(CoreNoteReader *r, void *data, size_t n, uint64_t offset) {
        uint64_t end;
        if (__builtin_add_overflow(offset, n, &end) || end > INT64_MAX)
                return -ENODATA;
        if (n > CHUNK_BYTES) {
                ssize_t k = r->read(data, n, offset, r->userdata);
                return k < 0 ? (int)k : (size_t)k < n ? -ENODATA : 0;
        }
        if (offset < r->offset || end > r->offset + r->n) {
                ssize_t k = r->read(r->window, CHUNK_BYTES, offset, r->userdata);
                if (k < 0)
                        return (int)k;
                r->offset = offset;
                r->n = (size_t)k;
                if (r->n < n)
                        return -ENODATA;
        }
        memcpy(data, r->window + (offset - r->offset), n);
        return 0;
}

static uint64_t word_at(const uint8_t *p) {
        uint64_t v;
        memcpy(&v, p, sizeof v);
        return v;
}

static uint32_t half_at(const uint8_t *p) {
        uint32_t v;
        memcpy(&v, p, sizeof v);
        return v;
}

/* ---- notes ---- */

static size_t n_registers(uint16_t machine) {
        return machine == EM_X86_64 ? 27 : 34;
}

static int add_thread(CoreNotes *c, const uint8_t *data, size_t n) {
        size_t bytes = n_registers(c->machine) * sizeof(uint64_t);
        if (n < PRSTATUS_REGISTERS + bytes)
                return 0;
        if (c->n_threads == CORE_THREADS_MAX) {
                c->n_threads_missing++;
                return 0;
        }
        if (array_grow(&c->threads, c->n_threads, sizeof *c->threads) < 0)
                return -ENOMEM;
        CoreThread *t = &c->threads[c->n_threads++];
        *t = (CoreThread){ .tid = half_at(data + PRSTATUS_PID),
                           .signal = (int)(half_at(data + PRSTATUS_SIGNAL) & 0xffff) };
        memcpy(t->registers, data + PRSTATUS_REGISTERS, bytes);
        return 0;
}

static void set_process(CoreNotes *c, const uint8_t *data, size_t n) {
        if (n < PRPSINFO_COMMAND + PRPSINFO_COMMAND_BYTES)
                return;
        c->pid = half_at(data + PRPSINFO_PID);
        memcpy(c->command, data + PRPSINFO_COMMAND, PRPSINFO_COMMAND_BYTES);
        c->command[PRPSINFO_COMMAND_BYTES] = '\0';
}

static void set_signal(CoreNotes *c, const uint8_t *data, size_t n) {
        if (n < SIGINFO_ADDRESS + sizeof(uint64_t) || c->signal.is_known)
                return;
        c->signal = (CoreSignal){ .number = (int)half_at(data),
                                  .code = (int)half_at(data + SIGINFO_CODE),
                                  .address = word_at(data + SIGINFO_ADDRESS),
                                  .is_known = true };
}

static void set_auxv(CoreNotes *c, const uint8_t *data, size_t n) {
        for (size_t i = 0; i + 16 <= n && c->n_auxv < CORE_AUXV_MAX; i += 16) {
                c->auxv[c->n_auxv].type = word_at(data + i);
                c->auxv[c->n_auxv++].value = word_at(data + i + 8);
        }
}

/* NT_FILE: how many, the unit of offsets, then start, end and offset of each, then their names. */
static int set_files(CoreNotes *c, CoreNoteReader *r, uint64_t offset, uint64_t n) {
        if (c->mappings || n < 16 || n > CORE_FILES_BYTES_MAX)
                return 0;
        _cleanup_free_ uint8_t *data = malloc(n + 1);
        if (!data)
                return -ENOMEM;
        int e = read_at(r, data, n, offset);
        if (e < 0)
                return e;
        data[n] = '\0';
        uint64_t count = word_at(data), unit = word_at(data + 8);
        uint64_t n_kept = MIN(count, (n - 16) / 24);
        const uint8_t *names = data + 16 + 24 * n_kept, *end = data + n;
        n_kept = MIN(n_kept, CORE_FILES_MAX);
        c->mappings = calloc(n_kept + 1, sizeof *c->mappings);
        c->file_names = malloc((size_t)(end - names) + 1);
        if (!c->mappings || !c->file_names)
                return -ENOMEM;
        memcpy(c->file_names, names, (size_t)(end - names) + 1);
        const char *name = c->file_names, *names_end = c->file_names + (end - names);
        for (size_t i = 0; i < n_kept && name < names_end; i++, name += strlen(name) + 1) {
                const uint8_t *p = data + 16 + 24 * i;
                CoreMapping m = { word_at(p), word_at(p + 8), 0, name };
                if (m.start < m.end && strlen(name) < PATH_BYTES_MAX &&
                    !__builtin_mul_overflow(word_at(p + 16), unit, &m.file_offset))
                        c->mappings[c->n_mappings++] = m;
        }
        qsort(c->mappings, c->n_mappings, sizeof *c->mappings, array_compare_keys);
        return 0;
}

static int read_note(CoreNotes *c, CoreNoteReader *r, uint32_t type, uint64_t offset, uint64_t n) {
        uint8_t data[NOTE_BYTES_MAX];
        if (type == NT_FILE)
                return set_files(c, r, offset, n);
        if (type != NT_PRSTATUS && type != NT_PRPSINFO && type != NT_SIGINFO && type != NT_AUXV)
                return 0;
        n = MIN(n, sizeof data);
        int e = read_at(r, data, n, offset);
        if (e < 0)
                return e;
        if (type == NT_PRSTATUS)
                return add_thread(c, data, n);
        if (type == NT_PRPSINFO)
                set_process(c, data, n);
        else if (type == NT_SIGINFO)
                set_signal(c, data, n);
        else
                set_auxv(c, data, n);
        return 0;
}

static uint64_t align4(uint64_t n) {
        return (n + 3) & ~UINT64_C(3);
}

static int read_notes(CoreNotes *c, CoreNoteReader *r, uint64_t offset, uint64_t n) {
        uint64_t end;
        if (__builtin_add_overflow(offset, n, &end))
                return -ENODATA;
        while (end - offset >= sizeof(Elf64_Nhdr)) {
                Elf64_Nhdr head;
                char name[NAME_BYTES_MAX] = "";
                int e = read_at(r, &head, sizeof head, offset);
                if (e < 0)
                        return e;
                offset += sizeof head;
                uint64_t bytes = align4(head.n_namesz) + align4(head.n_descsz);
                if (bytes > end - offset)
                        return -ENODATA;
                if (head.n_namesz > 0 && head.n_namesz < sizeof name)
                        e = read_at(r, name, head.n_namesz, offset);
                if (e == 0 && strcmp(name, "CORE") == 0)
                        e = read_note(c, r, head.n_type, offset + align4(head.n_namesz),
                                      head.n_descsz);
                if (e < 0)
                        return e;
                offset += bytes;
        }
        return 0;
}

/* ---- headers ---- */

static int add_segment(CoreNotes *c, const Elf64_Phdr *p) {
        uint64_t end;
        if (p->p_memsz == 0 || __builtin_add_overflow(p->p_vaddr, p->p_memsz, &end))
                return 0;
        if (array_grow(&c->segments, c->n_segments, sizeof *c->segments) < 0)
                return -ENOMEM;
        c->segments[c->n_segments++] = (CoreSegment){ .address = p->p_vaddr,
                                                      .memory_bytes = p->p_memsz,
                                                      .offset = p->p_offset,
                                                      .file_bytes = MIN(p->p_filesz, p->p_memsz),
                                                      .flags = p->p_flags };
        return 0;
}

static int count_headers(CoreNoteReader *r, const Elf64_Ehdr *e, uint64_t *ret) {
        Elf64_Shdr first;
        *ret = e->e_phnum;
        if (e->e_phnum != PN_XNUM || e->e_shoff == 0)
                return 0;
        int error = read_at(r, &first, sizeof first, e->e_shoff);
        if (error == 0)
                *ret = first.sh_info;
        return error == -ENODATA ? 0 : error; /* cut: the first 65,535 then */
}

/* @param ret_notes  the header of the notes; p_filesz 0 = none */
static int read_headers(CoreNotes *c, CoreNoteReader *r, const Elf64_Ehdr *e,
                        Elf64_Phdr *ret_notes) {
        uint64_t n, offset = e->e_phoff;
        int error = count_headers(r, e, &n);
        if (error < 0)
                return error;
        uint64_t n_read = MIN(n, CORE_SEGMENTS_MAX);
        for (uint64_t i = 0; i < n_read; i++, offset += sizeof(Elf64_Phdr)) {
                Elf64_Phdr p;
                error = read_at(r, &p, sizeof p, offset);
                if (error == -ENODATA)
                        n_read = i;
                else if (error == 0 && p.p_type == PT_LOAD)
                        error = add_segment(c, &p);
                else if (error == 0 && p.p_type == PT_NOTE && ret_notes->p_filesz == 0)
                        *ret_notes = p;
                if (error < 0 && error != -ENODATA)
                        return error;
        }
        c->n_segments_missing = n - n_read;
        if (c->n_segments > 0)
                qsort(c->segments, c->n_segments, sizeof *c->segments, array_compare_keys);
        return 0;
}

static bool is_core(const Elf64_Ehdr *e) {
        return memcmp(e->e_ident, ELFMAG, SELFMAG) == 0 && e->e_ident[EI_CLASS] == ELFCLASS64 &&
               e->e_ident[EI_DATA] == ELFDATA2LSB && e->e_type == ET_CORE &&
               e->e_phentsize == sizeof(Elf64_Phdr);
}

static int read_core(CoreNotes *c, CoreNoteReader *r) {
        Elf64_Ehdr e;
        int error = read_at(r, &e, sizeof e, 0);
        if (error == -ENODATA || (error == 0 && !is_core(&e)))
                return CORE_NOTES_E_NO_CORE;
        if (error < 0)
                return error;
        c->machine = e.e_machine;
        if (c->machine != EM_X86_64 && c->machine != EM_AARCH64)
                return CORE_NOTES_E_MACHINE;
        Elf64_Phdr notes = { 0 };
        error = read_headers(c, r, &e, &notes);
        if (error == 0)
                error = read_notes(c, r, notes.p_offset,
                                   MIN(notes.p_filesz, (uint64_t)NOTES_BYTES_MAX));
        c->is_cut =
                error == -ENODATA || c->n_segments_missing > 0 || notes.p_filesz > NOTES_BYTES_MAX;
        return error == -ENODATA ? 0 : error;
}

int core_notes_read(CoreNotes *ret, CoreRead read, void *userdata) {
        *ret = (CoreNotes){ 0 };
        _cleanup_free_ uint8_t *window = malloc(CHUNK_BYTES);
        if (!window)
                return -ENOMEM;
        CoreNoteReader r = { .read = read, .userdata = userdata, .window = window };
        return read_core(ret, &r);
}

void core_notes_done(CoreNotes *c) {
        free(c->segments);
        free(c->threads);
        free(c->mappings);
        free(c->file_names);
        *c = (CoreNotes){ 0 };
}

/* ---- what they have ---- */

uint64_t core_notes_auxv(const CoreNotes *c, uint64_t type) {
        for (size_t i = 0; i < c->n_auxv; i++)
                if (c->auxv[i].type == type)
                        return c->auxv[i].value;
        return 0;
}

uint64_t core_notes_pc(const CoreNotes *c, const CoreThread *t) {
        return t->registers[c->machine == EM_X86_64 ? X86_64_RIP : ARM64_PC];
}

uint64_t core_notes_stack_pointer(const CoreNotes *c, const CoreThread *t) {
        return t->registers[c->machine == EM_X86_64 ? X86_64_RSP : ARM64_SP];
}

const CoreSegment *core_notes_segment(const CoreNotes *c, uint64_t address) {
        size_t low = array_count_up_to(c->segments, c->n_segments, sizeof *c->segments, address);
        const CoreSegment *s = low > 0 ? &c->segments[low - 1] : NULL;
        return s && address - s->address < s->memory_bytes ? s : NULL;
}

const CoreMapping *core_notes_mapping(const CoreNotes *c, uint64_t address) {
        size_t low = array_count_up_to(c->mappings, c->n_mappings, sizeof *c->mappings, address);
        const CoreMapping *m = low > 0 ? &c->mappings[low - 1] : NULL;
        return m && address < m->end ? m : NULL;
}
