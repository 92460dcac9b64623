/* The build id of a library that a process has mapped. */
#include <elf.h>
#include <endian.h>
#include <errno.h>
#include <string.h>

#include "collectors/host/process_private.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"

enum {
        SEGMENTS_MAX = 64,
        NOTE_BYTES_MAX = 16 << 10,
        ID_BYTES_MAX = (PROCESS_BUILD_ID_SIZE - 1) / 2
};

typedef struct Segment {
        uint64_t offset, size;
} Segment;

/* Reads the n-th program header. @return 1 for a note segment, 0 for another, -errno */
static int read_segment(int fd, bool is_64, uint64_t offset, Segment *ret) {
        Elf64_Phdr p64;
        Elf32_Phdr p32;
        int r = is_64 ? fs_pread_all(fd, &p64, sizeof p64, offset)
                      : fs_pread_all(fd, &p32, sizeof p32, offset);
        if (r < 0)
                return r == -ENODATA ? -EBADMSG : r;
        *ret = is_64 ? (Segment){ .offset = p64.p_offset, .size = p64.p_filesz }
                     : (Segment){ .offset = p32.p_offset, .size = p32.p_filesz };
        return (is_64 ? p64.p_type : p32.p_type) == PT_NOTE;
}

static uint64_t align4(uint64_t n) {
        return (n + 3) & ~UINT64_C(3);
}

/* @return whether the notes hold a build id */
static bool find_id(const uint8_t *notes, size_t n, char *hex) {
        for (size_t at = 0; n - at >= sizeof(Elf64_Nhdr);) {
                Elf64_Nhdr head; /* the same in both word sizes */
                memcpy(&head, notes + at, sizeof head);
                uint64_t name = at + sizeof head, id = name + align4(head.n_namesz),
                         next = id + align4(head.n_descsz);
                if (id + head.n_descsz > n)
                        return false;
                if (head.n_type == NT_GNU_BUILD_ID && head.n_namesz == 4 &&
                    memcmp(notes + name, "GNU", 4) == 0 && head.n_descsz > 0 &&
                    head.n_descsz <= ID_BYTES_MAX) {
                        for (size_t i = 0; i < head.n_descsz; i++)
                                (void)snprintf(hex + 2 * i, 3, "%02x", notes[id + i]);
                        return true;
                }
                if (next > n)
                        return false;
                at = (size_t)next;
        }
        return false;
}

/* @return 1 when the id was in it, 0, -errno */
static int search_segment(int fd, const Segment *s, char *hex) {
        size_t n = (size_t)MIN(s->size, (uint64_t)NOTE_BYTES_MAX);
        _cleanup_free_ uint8_t *notes = malloc(MAX(n, (size_t)1));
        int r;

        if (!notes)
                return -ENOMEM;
        if (s->offset > INT64_MAX - NOTE_BYTES_MAX)
                return -EBADMSG;
        r = fs_pread_all(fd, notes, n, s->offset);
        if (r < 0)
                return r == -ENODATA ? -EBADMSG : r;
        return find_id(notes, n, hex);
}

int process_build_id(int fd, char hex[static PROCESS_BUILD_ID_SIZE]) {
        union {
                unsigned char ident[EI_NIDENT];
                Elf64_Ehdr e64;
                Elf32_Ehdr e32;
        } head;
        int r = fs_pread_all(fd, &head, sizeof head, 0);

        hex[0] = '\0';
        if (r < 0)
                return r == -ENODATA ? -EBADMSG : r;
        bool is_64 = head.ident[EI_CLASS] == ELFCLASS64;
        if (memcmp(head.ident, ELFMAG, SELFMAG) != 0 ||
            (!is_64 && head.ident[EI_CLASS] != ELFCLASS32) ||
            head.ident[EI_DATA] != (BYTE_ORDER == LITTLE_ENDIAN ? ELFDATA2LSB : ELFDATA2MSB))
                return -EBADMSG;
        uint64_t offset = is_64 ? head.e64.e_phoff : head.e32.e_phoff;
        unsigned n = is_64 ? head.e64.e_phnum : head.e32.e_phnum;
        size_t size = is_64 ? sizeof(Elf64_Phdr) : sizeof(Elf32_Phdr);
        if (offset > INT64_MAX - (uint64_t)SEGMENTS_MAX * size)
                return -EBADMSG;
        for (unsigned i = 0; i < MIN(n, (unsigned)SEGMENTS_MAX); i++) {
                Segment s;
                r = read_segment(fd, is_64, offset + i * size, &s);
                if (r > 0)
                        r = search_segment(fd, &s, hex);
                if (r != 0)
                        return MIN(r, 0);
        }
        return 0;
}
