/* The memory of a process as its core has it, by address. Pages that were read are kept in a cache
 * in which each address has one place, and the number of bytes read is limited, so that a core that
 * leads in circles costs no more than another. core_notes.c knows the segments; how bytes of the
 * core are read is the caller's (CoreRead). */
#include "collectors/crash/core/core_memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define EMPTY 1

int core_memory_init(CoreMemory *m, const CoreNotes *notes, CoreRead read, void *userdata) {
        *m = (CoreMemory){ .notes = notes, .read = read, .userdata = userdata };
        m->pages = calloc(CORE_MEMORY_PAGES, sizeof *m->pages);
        if (!m->pages)
                return -ENOMEM;
        for (size_t i = 0; i < CORE_MEMORY_PAGES; i++)
                m->pages[i].address = EMPTY;
        return 0;
}

void core_memory_done(CoreMemory *m) {
        free(m->pages);
        m->pages = NULL;
}

/* Segments begin and end with pages of 4 KiB or of a multiple, so that a page is of one segment. */
static int fill_page(CoreMemory *m, struct CorePage *p, uint64_t address) {
        const CoreSegment *s = core_notes_segment(m->notes, address);
        p->address = EMPTY;
        if (!s)
                return CORE_MEMORY_E_UNMAPPED;
        uint64_t at = address - s->address, offset;
        if (at >= s->file_bytes || __builtin_add_overflow(s->offset, at, &offset) ||
            offset > INT64_MAX)
                return CORE_MEMORY_E_ABSENT;
        if (m->n_bytes_read >= CORE_MEMORY_BYTES_MAX)
                return CORE_MEMORY_E_LIMIT;
        size_t n = MIN(s->file_bytes - at, (uint64_t)CORE_MEMORY_PAGE);
        ssize_t k = m->read(p->data, n, offset, m->userdata);
        if (k < 0)
                return (int)k;
        m->n_bytes_read += (size_t)k;
        p->address = address;
        p->n_bytes = (uint32_t)k;
        return 0;
}

static int read_in_page(CoreMemory *m, uint64_t address, void *data, size_t n) {
        uint64_t page = address & ~(uint64_t)(CORE_MEMORY_PAGE - 1);
        size_t at = address - page;
        struct CorePage *p = &m->pages[page / CORE_MEMORY_PAGE % CORE_MEMORY_PAGES];
        int r = p->address == page ? 0 : fill_page(m, p, page);
        if (r != 0)
                return r;
        if (at + n > p->n_bytes)
                return CORE_MEMORY_E_ABSENT;
        memcpy(data, p->data + at, n);
        return 0;
}

int core_memory_read(CoreMemory *m, uint64_t address, void *data, size_t n) {
        uint64_t end;
        if (__builtin_add_overflow(address, n, &end))
                return CORE_MEMORY_E_UNMAPPED;
        for (uint8_t *to = data; n > 0;) {
                size_t k = MIN(n, CORE_MEMORY_PAGE - address % CORE_MEMORY_PAGE);
                int r = read_in_page(m, address, to, k);
                if (r != 0)
                        return r;
                address += k;
                to += k;
                n -= k;
        }
        return 0;
}

int core_memory_word(CoreMemory *m, uint64_t address, uint64_t *ret) {
        return core_memory_read(m, address, ret, sizeof *ret);
}

int core_memory_string(CoreMemory *m, uint64_t address, char *ret, size_t max_bytes) {
        for (size_t i = 0; i + 1 < max_bytes; i++) {
                int r = core_memory_read(m, address + i, &ret[i], 1);
                if (r != 0)
                        return r;
                if (ret[i] == '\0')
                        return 0;
        }
        ret[max_bytes - 1] = '\0';
        return 0;
}
