/* The notes of an ELF file: its build id, and the package that it was built for.
 *
 * The file is hostile: every offset and size is checked before it is used, and only the program
 * headers and notes are read. Cores and files with debug information are read by crash/elf_file.c
 * with elfutils; this file needs no library, so that any collector may use it. */
#include "collectors/host/elf_notes.h"

#include <elf.h>
#include <endian.h>
#include <errno.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"

#define NT_PACKAGE 0xcafe1a7eU /* NT_FDO_PACKAGING_METADATA, in <elf.h> since glibc 2.36 */

typedef struct ElfNote {
        const uint8_t *bytes;
        size_t n;
} ElfNote;

static uint64_t align_up(uint64_t n, uint64_t align) {
        return (n + align - 1) & ~(align - 1);
}

/* @param owner  three letters, as both owners have @param max  longer notes are skipped */
static ElfNote find_note(const uint8_t *notes, size_t n, uint64_t align, const char *owner,
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
                        return (ElfNote){ notes + desc, h.n_descsz };
                at = align_up(end, align);
        }
        return (ElfNote){ NULL, 0 };
}

void build_id_parse(const uint8_t *notes, size_t n, uint64_t align, BuildId *ret) {
        ElfNote note = find_note(notes, n, align, "GNU", NT_GNU_BUILD_ID, ELF_BUILD_ID_MAX);
        if (note.n == 0)
                return;
        memcpy(ret->bytes, note.bytes, note.n);
        ret->n = note.n;
}

void package_note_parse(const uint8_t *notes, size_t n, uint64_t align,
                        char ret[static ELF_PACKAGE_SIZE]) {
        ElfNote note = find_note(notes, n, align, "FDO", NT_PACKAGE, ELF_PACKAGE_SIZE - 1);
        if (note.n == 0)
                return;
        memcpy(ret, note.bytes, note.n);
        ret[note.n] = '\0';
}

enum { SEGMENTS_MAX = 64, NOTE_BYTES_MAX = 16 << 10 };

int build_id_read(int fd, BuildId *ret) {
        Elf64_Ehdr head;
        int r = fs_pread_all(fd, &head, sizeof head, 0);

        if (r == 0 &&
            (memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_ident[EI_CLASS] != ELFCLASS64 ||
             head.e_ident[EI_DATA] != (BYTE_ORDER == LITTLE_ENDIAN ? ELFDATA2LSB : ELFDATA2MSB) ||
             head.e_phoff > INT64_MAX - SEGMENTS_MAX * sizeof(Elf64_Phdr)))
                r = -EBADMSG;
        for (unsigned i = 0; r == 0 && ret->n == 0 && i < MIN(head.e_phnum, (unsigned)SEGMENTS_MAX);
             i++) {
                uint8_t notes[NOTE_BYTES_MAX];
                Elf64_Phdr p;
                r = fs_pread_all(fd, &p, sizeof p, head.e_phoff + i * sizeof p);
                if (r < 0 || p.p_type != PT_NOTE)
                        continue;
                size_t n = MIN(p.p_filesz, sizeof notes);
                r = p.p_offset > INT64_MAX - NOTE_BYTES_MAX
                            ? -EBADMSG
                            : fs_pread_all(fd, notes, n, p.p_offset);
                if (r == 0)
                        build_id_parse(notes, n, p.p_align, ret);
        }
        return r == -ENODATA ? -EBADMSG : r;
}
