/* What is read of cores and libraries has limits, and an error half way leaves nothing dangling.
 * The last test takes this process for a core of itself: an address is its own offset. */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "tests/harness/unit.h"

#include "collectors/crash/modules.h"

#ifdef __aarch64__
#define MACHINE EM_AARCH64
#else
#define MACHINE EM_X86_64
#endif

/* ---- build ids ---- */

static void add_note(uint8_t *notes, size_t *n, uint32_t type, const char *name, uint32_t bytes) {
        Elf64_Nhdr h = { .n_namesz = 4, .n_descsz = bytes, .n_type = type };
        memcpy(notes + *n, &h, sizeof h);
        memcpy(notes + *n + sizeof h, name, 4);
        memset(notes + *n + sizeof h + 4, 0xab, bytes);
        *n += sizeof h + 4 + bytes;
}

static void a_build_id_is_found_among_notes_of_both_alignments(void **state) {
        static const uint64_t alignments[] = { 0, 4, 8, 3, UINT64_MAX };
        for (size_t i = 0; i < ELEMENTSOF(alignments); i++) {
                uint8_t notes[256] = { 0 };
                size_t n = 0;
                BuildId id = { .n = 0 };
                add_note(notes, &n, NT_GNU_ABI_TAG, "GNU", 16);
                add_note(notes, &n, NT_GNU_BUILD_ID, "XYZ", 16);
                add_note(notes, &n, NT_GNU_BUILD_ID, "GNU", 20);
                build_id_parse(notes, n - 1, alignments[i], &id);
                assert_int_equal(id.n, 0);
                build_id_parse(notes, n, alignments[i], &id);
                assert_int_equal(id.n, 20);
                assert_int_equal(id.bytes[19], 0xab);
        }
}

static void sizes_that_a_note_cannot_have_end_the_search(void **state) {
        static const uint32_t sizes[] = { 237, 1 << 20, INT32_MAX, UINT32_MAX - 3, UINT32_MAX };
        for (size_t i = 0; i < 2 * ELEMENTSOF(sizes); i++) {
                uint8_t notes[256] = { 0 };
                Elf64_Nhdr h = { .n_namesz = 4, .n_descsz = 4, .n_type = NT_GNU_BUILD_ID };
                *(i % 2 ? &h.n_namesz : &h.n_descsz) = sizes[i / 2];
                memcpy(notes, &h, sizeof h);
                memcpy(notes + sizeof h, "GNU", 4);
                BuildId id = { .n = 0 };
                build_id_parse(notes, sizeof notes, 4, &id);
                assert_int_equal(id.n, 0);
        }
}

/* ---- a library ---- */

enum { HEADERS = 300, HEADERS_READ = 256, PAGE = 4096 };

static void only_so_many_headers_of_a_library_are_read(void **state) {
        size_t n = sizeof(Elf64_Ehdr) + HEADERS * sizeof(Elf64_Phdr);
        char *data = calloc(1, n);
        assert_non_null(data);
        Elf64_Ehdr e = { .e_type = ET_DYN,
                         .e_machine = EM_X86_64,
                         .e_version = EV_CURRENT,
                         .e_phoff = sizeof e,
                         .e_ehsize = sizeof e,
                         .e_phentsize = sizeof(Elf64_Phdr),
                         .e_phnum = HEADERS };
        memcpy(e.e_ident, ELFMAG, SELFMAG);
        e.e_ident[EI_CLASS] = ELFCLASS64;
        e.e_ident[EI_DATA] = ELFDATA2LSB;
        e.e_ident[EI_VERSION] = EV_CURRENT;
        memcpy(data, &e, sizeof e);
        for (size_t i = 0; i < HEADERS; i++) {
                Elf64_Phdr p = { .p_type = PT_LOAD,
                                 .p_flags = PF_R,
                                 .p_offset = i * PAGE,
                                 .p_vaddr = i * PAGE,
                                 .p_filesz = PAGE,
                                 .p_memsz = PAGE };
                memcpy(data + sizeof e + i * sizeof p, &p, sizeof p);
        }
        ElfFile *f = NULL;
        assert_int_equal(elf_file_open_memory(&f, data, n), 0);
        assert_int_equal(elf_file_flags(f, (HEADERS_READ - 1) * PAGE), PF_R);
        assert_int_equal(elf_file_flags(f, HEADERS_READ * PAGE), 0);
        elf_file_free(f);
}

/* ---- the notes of a core ---- */

enum { NAME_BYTES = 5000 };

typedef struct Core {
        Elf64_Ehdr e;
        Elf64_Phdr notes;
        Elf64_Nhdr head;
        char name[12]; /* what follows is aligned */
        uint64_t n_files, unit, files[2][3];
        char names[NAME_BYTES + 16];
} Core;

static ssize_t read_it(void *data, size_t n, uint64_t offset, void *userdata) {
        const Core *c = userdata;
        n = offset < sizeof *c ? MIN(n, sizeof *c - offset) : 0;
        memcpy(data, (const char *)c + offset, n);
        return (ssize_t)n;
}

static void init_core(Core *c) {
        *c = (Core){ .e = { .e_type = ET_CORE,
                            .e_machine = EM_X86_64,
                            .e_phoff = sizeof c->e,
                            .e_phentsize = sizeof c->notes,
                            .e_phnum = 1 },
                     .notes = { .p_type = PT_NOTE,
                                .p_offset = offsetof(Core, head),
                                .p_filesz = sizeof *c - offsetof(Core, head) },
                     .head = { .n_namesz = sizeof c->name,
                               .n_descsz = sizeof *c - offsetof(Core, n_files),
                               .n_type = NT_FILE },
                     .name = "CORE",
                     .n_files = 2,
                     .unit = PAGE,
                     .files = { { PAGE, 2 * PAGE, 0 }, { 4 * PAGE, 5 * PAGE, 1 } } };
        memcpy(c->e.e_ident, ELFMAG, SELFMAG);
        c->e.e_ident[EI_CLASS] = ELFCLASS64;
        c->e.e_ident[EI_DATA] = ELFDATA2LSB;
}

static void a_path_longer_than_any_is_not_kept(void **state) {
        Core core;
        CoreNotes notes;
        init_core(&core);
        memset(core.names, 'x', NAME_BYTES);
        memcpy(core.names + NAME_BYTES + 1, "/usr/lib/a.so", 14);
        assert_int_equal(core_notes_read(&notes, read_it, &core), 0);
        assert_int_equal(notes.n_mappings, 1);
        assert_string_equal(notes.mappings[0].path, "/usr/lib/a.so");
        core_notes_done(&notes);
}

typedef struct EndlessCore {
        Core core;
        uint64_t end; /* of what was read */
} EndlessCore;

static ssize_t read_endless(void *data, size_t n, uint64_t offset, void *userdata) {
        EndlessCore *c = userdata;
        memset(data, 0, n);
        c->end = MAX(c->end, offset + n);
        if (offset < sizeof c->core)
                (void)read_it(data, n, offset, &c->core);
        return c->end < GIB ? (ssize_t)n : -EIO;
}

static void notes_without_end_are_read_to_a_limit(void **state) {
        EndlessCore c = { .end = 0 };
        CoreNotes notes;
        init_core(&c.core);
        c.core.notes.p_filesz = UINT64_C(1) << 40;
        assert_int_equal(core_notes_read(&notes, read_endless, &c), 0);
        assert_true(notes.is_cut);
        assert_true(c.end <= 257 * MIB);
        core_notes_done(&notes);
}

/* ---- a process's own memory ---- */

int __real_elf_file_add_symbols(ElfFile *f, ElfFile *debug);
int __wrap_elf_file_add_symbols(ElfFile *f, ElfFile *debug);
int __wrap_elf_file_add_symbols(ElfFile *f, ElfFile *debug) {
        assert_int_equal(__real_elf_file_add_symbols(f, debug), 0);
        return -ENOMEM; /* as where memory ends half way */
}

static ssize_t read_own(void *data, size_t n, uint64_t offset, void *userdata) {
        (void)userdata;
        memcpy(data, (const void *)(uintptr_t)offset, n);
        return (ssize_t)n;
}

static int open_own(const FileQuery *q, FileReply *ret, const char **ret_place, void *userdata) {
        (void)userdata;
        *ret_place = "here";
        *ret = (FileReply){ 0 };
        return q->place == 0 ? open("/proc/self/exe", O_RDONLY | O_CLOEXEC) : -ENODATA;
}

extern const char __executable_start[], etext[];

static void symbols_of_a_debug_file_stay_although_memory_ended_half_way(void **state) {
        uint64_t start = (uintptr_t)__executable_start,
                 bytes = ((uintptr_t)etext - start + PAGE) & ~(uint64_t)(PAGE - 1);
        CoreSegment segment = { start, bytes, start, bytes, PF_R | PF_X };
        CoreMapping mapping = { start, start + bytes, 0, "/itself" };
        CoreNotes notes = { .machine = MACHINE,
                            .segments = &segment,
                            .n_segments = 1,
                            .mappings = &mapping,
                            .n_mappings = 1 };
        CoreMemory memory;
        Modules modules;
        ModuleSymbol symbol;
        uint64_t here = (uintptr_t)symbols_of_a_debug_file_stay_although_memory_ended_half_way;
        assert_int_equal(core_memory_init(&memory, &notes, read_own, NULL), 0);
        assert_int_equal(modules_init(&modules, &memory, open_own, NULL), 0);
        assert_true(modules_symbol(&modules, here + 1, &symbol));
        assert_string_equal(symbol.name, __func__);
        assert_non_null(modules.items[0].debug);
        modules_done(&modules);
        core_memory_done(&memory);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_build_id_is_found_among_notes_of_both_alignments),
                cmocka_unit_test(sizes_that_a_note_cannot_have_end_the_search),
                cmocka_unit_test(only_so_many_headers_of_a_library_are_read),
                cmocka_unit_test(a_path_longer_than_any_is_not_kept),
                cmocka_unit_test(notes_without_end_are_read_to_a_limit),
                cmocka_unit_test(symbols_of_a_debug_file_stay_although_memory_ended_half_way),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
