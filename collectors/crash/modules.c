/* libdwfl would follow the dynamic linker's list, which lies at the end of a core. */
#include "collectors/crash/modules.h"

#include <elf.h>
#include <errno.h>
#include <string.h>

#include "lib/base/array.h"

enum {
        HEADERS_MAX = 64,
        VDSO_BYTES_MAX = 64 << 10,
        NOTES_BYTES_MAX = 4096,
};
#define DELETED " (deleted)"

/* ---- finding them ---- */

/* Reads the headers of the file that begins at m->start, as far as the core has them.
 * @param ret_span  how many bytes of address space it takes; 0 = not known */
static int read_headers(Modules *all, Module *m, uint64_t *ret_span) {
        Elf64_Ehdr e;
        uint64_t low = UINT64_MAX, high = 0;
        int r = core_memory_read(all->memory, m->start, &e, sizeof e);
        if (r != 0)
                return r;
        if (memcmp(e.e_ident, ELFMAG, SELFMAG) != 0 || e.e_ident[EI_CLASS] != ELFCLASS64 ||
            e.e_phentsize != sizeof(Elf64_Phdr) || e.e_phnum > HEADERS_MAX)
                return 0;
        Elf64_Phdr headers[HEADERS_MAX];
        r = core_memory_read(all->memory, m->start + e.e_phoff, headers,
                             e.e_phnum * sizeof *headers);
        for (size_t i = 0; r == 0 && i < e.e_phnum; i++)
                if (headers[i].p_type == PT_LOAD) {
                        low = MIN(low, headers[i].p_vaddr);
                        high = MAX(high, headers[i].p_vaddr + headers[i].p_memsz);
                }
        if (r != 0 || low >= high)
                return MIN(r, 0);
        *ret_span = high - low;
        for (size_t i = 0; i < e.e_phnum && m->build_id.n == 0; i++) {
                uint8_t notes[NOTES_BYTES_MAX];
                const Elf64_Phdr *p = &headers[i];
                if (p->p_type != PT_NOTE || p->p_filesz > sizeof notes)
                        continue;
                r = core_memory_read(all->memory, m->start + (p->p_vaddr - low), notes,
                                     p->p_filesz);
                if (r < 0)
                        return r;
                if (r == 0)
                        build_id_parse(notes, p->p_filesz, p->p_align, &m->build_id);
        }
        return 0;
}

static Module *add(Modules *all, uint64_t start, uint64_t end, const char *path) {
        if (array_grow(&all->items, all->n, sizeof *all->items) < 0)
                return NULL;
        all->items[all->n] = (Module){ .start = start, .end = end, .path = path };
        return &all->items[all->n++];
}

static int add_mapped(Modules *all) {
        const CoreNotes *c = all->memory->notes;
        uint64_t span = 0, entry = core_notes_auxv(c, AT_ENTRY);
        Module *m = NULL;
        for (size_t i = 0; i < c->n_mappings; i++) {
                const CoreMapping *p = &c->mappings[i];
                if (m && strcmp(m->path, p->path) == 0 &&
                    (span == 0 || p->start - m->start < span)) {
                        m->end = p->end;
                        m->n_mappings++;
                        m->is_program = entry >= m->start && entry < m->end;
                        continue;
                }
                if (all->n == MODULES_MAX)
                        continue;
                m = add(all, p->start, p->end, p->path);
                if (!m)
                        return -ENOMEM;
                m->first_mapping = i;
                m->n_mappings = 1;
                m->is_program = entry >= m->start && entry < m->end;
                span = 0;
                int r = p->file_offset == 0 ? read_headers(all, m, &span) : 0;
                if (r < 0)
                        return r;
        }
        return 0;
}

/* The kernel's own library is in no file, but in every core. */
static int add_vdso(Modules *all) {
        uint64_t start = core_notes_auxv(all->memory->notes, AT_SYSINFO_EHDR);
        const CoreSegment *s = start ? core_notes_segment(all->memory->notes, start) : NULL;
        if (!s || s->address != start || s->file_bytes > VDSO_BYTES_MAX)
                return 0;
        _cleanup_free_ char *data = malloc(s->file_bytes + 1);
        if (!data)
                return -ENOMEM;
        int r = core_memory_read(all->memory, start, data, s->file_bytes);
        if (r != 0)
                return MIN(r, 0);
        ElfFile *file = NULL;
        uint64_t address;
        r = elf_file_open_memory(&file, TAKE_PTR(data), s->file_bytes);
        if (r != 0)
                return MIN(r, 0);
        Module *m = elf_file_address(file, 0, CORE_MEMORY_PAGE, &address) == 0
                            ? add(all, start, start + s->memory_bytes, MODULE_VDSO)
                            : NULL;
        if (!m) {
                elf_file_free(file);
                return 0;
        }
        m->file = file;
        m->bias = start - address;
        m->state = MODULE_FOUND;
        m->place = "core";
        return 0;
}

int modules_init(Modules *m, CoreMemory *memory, FileOpen open, void *userdata) {
        *m = (Modules){ .memory = memory, .open = open, .userdata = userdata };
        int r = add_mapped(m);
        if (r == 0)
                r = add_vdso(m);
        if (m->n > 0)
                qsort(m->items, m->n, sizeof *m->items, array_compare_keys);
        return r;
}

void modules_done(Modules *m) {
        for (size_t i = 0; i < m->n; i++) {
                elf_file_free(m->items[i].file);
                elf_file_free(m->items[i].debug);
        }
        free(m->items);
        *m = (Modules){ 0 };
}

Module *modules_at(const Modules *m, uint64_t address) {
        size_t low = array_count_up_to(m->items, m->n, sizeof *m->items, address);
        return low > 0 && address < m->items[low - 1].end ? &m->items[low - 1] : NULL;
}

/* ---- their files ---- */

static bool is_same_id(const BuildId *a, const BuildId *b) {
        return a->n == b->n && memcmp(a->bytes, b->bytes, a->n) == 0;
}

static int set_bias(Modules *all, Module *m, const ElfFile *file, uint64_t page) {
        const CoreMapping *first = &all->memory->notes->mappings[m->first_mapping];
        uint64_t address;
        if (elf_file_address(file, first->file_offset, page, &address) != 0)
                return ELF_FILE_E_NONE;
        m->bias = first->start - address;
        return 0;
}

/* Whether each mapping is where the file's headers would have it, which is all that can be told
 * without a build id. The dynamic linker leaves holes between segments mapped, without access. */
static bool verify_layout(const Modules *all, const Module *m, const ElfFile *file, uint64_t page) {
        const CoreNotes *c = all->memory->notes;
        for (size_t i = 0; i < m->n_mappings; i++) {
                const CoreMapping *p = &c->mappings[m->first_mapping + i];
                const CoreSegment *s = core_notes_segment(c, p->start);
                if ((!s || s->flags != 0) &&
                    !elf_file_maps(file, p->file_offset, page, p->start - m->bias))
                        return false;
        }
        return true;
}

/* @return whether it is the one */
static bool accept(Modules *all, Module *m, ElfFile *file, bool must_be_equal) {
        const BuildId *id = &elf_file_identity(file)->build_id;
        uint64_t page = core_notes_auxv(all->memory->notes, AT_PAGESZ);
        page = page >= CORE_MEMORY_PAGE && (page & (page - 1)) == 0 ? page : CORE_MEMORY_PAGE;
        bool is_comparable = id->n > 0 && m->build_id.n > 0;
        m->state = MODULE_MISMATCH;
        if (elf_file_identity(file)->machine != all->memory->notes->machine ||
            set_bias(all, m, file, page) != 0)
                return false;
        if (is_comparable ? !is_same_id(id, &m->build_id)
                          : must_be_equal || !verify_layout(all, m, file, page))
                return false;
        m->state = is_comparable ? MODULE_FOUND : MODULE_UNVERIFIED;
        m->file = file;
        return true;
}

static bool set_query(FileQuery *q, const char *path, size_t n) {
        if (n >= sizeof q->path)
                return false;
        memcpy(q->path, path, n);
        return true;
}

static void find_file(Modules *all, Module *m) {
        size_t n = strlen(m->path), n_deleted = strlen(DELETED);
        FileQuery q = { .build_id = m->build_id, .is_program = m->is_program };
        FileReply reply;
        if (n > n_deleted && strcmp(m->path + n - n_deleted, DELETED) == 0)
                n -= n_deleted; /* its successor, or itself at another place */
        if (!set_query(&q, m->path, n))
                return;
        for (int fd; (fd = all->open(&q, &reply, &m->place, all->userdata)) >= 0;) {
                ElfFile *file = NULL;
                if (elf_file_open(&file, fd) == 0 && accept(all, m, file, reply.is_other)) {
                        m->place_number = reply.place;
                        return;
                }
                elf_file_free(file);
                q.place = reply.place + 1;
        }
        m->place = NULL;
}

ElfFile *modules_file(Modules *all, Module *m) {
        if (m->state != MODULE_UNUSED)
                return m->file;
        m->state = MODULE_MISSING;
        find_file(all, m);
        return m->file;
}

/* By the build id of the file, which the core may not have. */
static void find_debug(Modules *all, Module *m) {
        const BuildId *id = &elf_file_identity(m->file)->build_id;
        FileQuery q = { .kind = FILE_OF_DEBUG, .build_id = *id };
        FileReply reply;
        const char *place;
        m->has_searched_debug = true;
        for (int fd; id->n > 0 && (fd = all->open(&q, &reply, &place, all->userdata)) >= 0;) {
                ElfFile *debug = NULL;
                if (elf_file_open(&debug, fd) == 0 &&
                    is_same_id(&elf_file_identity(debug)->build_id, id)) {
                        m->debug = debug; /* also of some symbols the names are its own */
                        (void)elf_file_add_symbols(m->file, debug);
                        return;
                }
                elf_file_free(debug);
                q.place = reply.place + 1;
        }
}

/* @return the module that has an address, if its file is here; NULL */
static const Module *find_with_debug(Modules *all, uint64_t address) {
        Module *m = modules_at(all, address);
        if (!m || !modules_file(all, m))
                return NULL;
        if (!m->has_searched_debug)
                find_debug(all, m);
        return m;
}

bool modules_symbol(Modules *all, uint64_t address, ModuleSymbol *ret) {
        const Module *m = find_with_debug(all, address);
        const ElfSymbol *s = m ? elf_file_symbol(m->file, address - m->bias) : NULL;
        if (!s)
                return false;
        (void)snprintf(ret->name, sizeof ret->name, "%.*s", (int)strcspn(s->name, "@"), s->name);
        ret->offset = address - m->bias - s->address;
        return true;
}

size_t modules_lines(Modules *all, uint64_t address, uint64_t end_usec, ElfLine *ret, size_t max) {
        const Module *m = find_with_debug(all, address);
        return m ? elf_file_lines(m->file, m->debug, address - m->bias, end_usec, ret, max) : 0;
}

bool modules_is_code(Modules *all, uint64_t address) {
        const CoreSegment *s = core_notes_segment(all->memory->notes, address);
        if (s)
                return s->flags & PF_X;
        Module *m =
                core_notes_mapping(all->memory->notes, address) ? modules_at(all, address) : NULL;
        ElfFile *file = m ? modules_file(all, m) : NULL;
        return m && (!file || elf_file_flags(file, address - m->bias) & PF_X);
}

int modules_read(Modules *all, uint64_t address, void *data, size_t n) {
        const CoreNotes *c = all->memory->notes;
        int r = core_memory_read(all->memory, address, data, n);
        if (r <= 0)
                return r;
        const CoreSegment *s = core_notes_segment(c, address);
        Module *m = s || core_notes_mapping(c, address) ? modules_at(all, address) : NULL;
        ElfFile *file = m && !(s && s->flags & PF_W) ? modules_file(all, m) : NULL;
        if (!file || elf_file_flags(file, address - m->bias) & PF_W)
                return r;
        return elf_file_read(file, address - m->bias, data, n) == 0 ? 0 : r;
}

static bool is_used(const Module *m) {
        return m->file && strcmp(m->path, MODULE_VDSO) != 0;
}

int modules_find_versions(Modules *m, uint64_t end_usec) {
        _cleanup_free_ VersionItem *items = calloc(m->n + 1, sizeof *items);
        size_t n = 0;
        if (!items)
                return -ENOMEM;
        for (size_t i = 0; i < m->n; i++)
                if (is_used(&m->items[i]))
                        items[n++] =
                                (VersionItem){ .path = m->items[i].path,
                                               .note = elf_file_identity(m->items[i].file)->package,
                                               .place = m->items[i].place_number };
        int r = versions_find(items, n, m->open, m->userdata, end_usec);
        for (size_t i = 0, k = 0; i < m->n; i++)
                if (is_used(&m->items[i]))
                        m->items[i].version = items[k++].version;
        return r;
}

static const char *const state_names[] = { "not needed", "verified", "not verified", "mismatch",
                                           "missing" };

const char *module_state_name(ModuleState state) {
        return state_names[state];
}
