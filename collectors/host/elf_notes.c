#include "collectors/host/elf_notes.h"

#include <elf.h>
#include <string.h>

#define NT_PACKAGE 0xcafe1a7eU /* NT_FDO_PACKAGING_METADATA, in <elf.h> since glibc 2.36 */

typedef struct Note {
        const uint8_t *bytes;
        size_t n;
} Note;

static uint64_t align_up(uint64_t n, uint64_t align) {
        return (n + align - 1) & ~(align - 1);
}

/* @param owner  three letters, as both are  @param max  a longer one is passed over */
static Note find_note(const uint8_t *notes, size_t n, uint64_t align, const char *owner,
                      uint32_t type, size_t max) {
        uint64_t at = 0;
        align = align == 8 ? 8 : 4;
        while (at < n && n - at >= sizeof(Elf64_Nhdr)) {
                Elf64_Nhdr h;
                memcpy(&h, notes + at, sizeof h);
                uint64_t name = at + sizeof h, desc = align_up(name + h.n_namesz, align),
                         end = desc + h.n_descsz;
                if (end > n)
                        break;
                if (h.n_type == type && h.n_namesz == 4 && memcmp(notes + name, owner, 4) == 0 &&
                    h.n_descsz <= max)
                        return (Note){ notes + desc, h.n_descsz };
                at = align_up(end, align);
        }
        return (Note){ NULL, 0 };
}

void build_id_parse(const uint8_t *notes, size_t n, uint64_t align, BuildId *ret) {
        Note note = find_note(notes, n, align, "GNU", NT_GNU_BUILD_ID, ELF_BUILD_ID_MAX);
        if (note.n == 0)
                return;
        memcpy(ret->bytes, note.bytes, note.n);
        ret->n = note.n;
}

void package_note_parse(const uint8_t *notes, size_t n, uint64_t align,
                        char ret[static ELF_PACKAGE_SIZE]) {
        Note note = find_note(notes, n, align, "FDO", NT_PACKAGE, ELF_PACKAGE_SIZE - 1);
        if (note.n == 0)
                return;
        memcpy(ret, note.bytes, note.n);
        ret[note.n] = '\0';
}
