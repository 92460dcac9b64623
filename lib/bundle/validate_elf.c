/* ELF core files: is the file as long as its program headers say? Either class and byte order
 * (elf(5), gABI chapter 4 and 5). Linux writes the section header that counts more than 65,534
 * program headers behind everything else (binfmt_elf.c), which is why their number is learnt last.
 */
#include <elf.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/bundle/validate_private.h"

static void set_fault(ElfCheck *e, const char *fmt, ...) _printf_(2, 3);
static void set_fault(ElfCheck *e, const char *fmt, ...) {
        va_list args;
        if (e->fault[0])
                return; /* the first one is reported */
        va_start(args, fmt);
        (void)vsnprintf(e->fault, sizeof e->fault, fmt, args); /* our own sentences: they fit */
        va_end(args);
}

static void finish_early(ElfCheck *e, Verdict verdict) {
        e->state = ELF_STOPPED;
        e->verdict = verdict;
}

static uint64_t read_number(const ElfCheck *e, const uint8_t *p, size_t n) {
        uint64_t value = 0;
        for (size_t i = 0; i < n; i++)
                value = value << 8 | p[e->is_big_endian ? i : n - 1 - i];
        return value;
}

#define FIELD(e, p, type, name)                                                                    \
        ((e)->is_64 ? read_number((e), (p) + offsetof(Elf64_##type, name),                         \
                                  sizeof(((Elf64_##type *)0)->name))                               \
                    : read_number((e), (p) + offsetof(Elf32_##type, name),                         \
                                  sizeof(((Elf32_##type *)0)->name)))

static void require_bytes(ElfCheck *e, uint64_t bytes) {
        e->needed = MAX(e->needed, bytes);
}

/* @return whether offset + n * entry is a number at all, as *ret */
static bool table_end(uint64_t offset, uint64_t n, uint64_t entry_bytes, uint64_t *ret) {
        uint64_t bytes;
        return !__builtin_mul_overflow(n, entry_bytes, &bytes) &&
               !__builtin_add_overflow(offset, bytes, ret);
}

/* Core files kept by systemd-coredump and others are often compressed: not for us to call them
 * broken. */
static const char *compression_name(const uint8_t ident[static EI_NIDENT]) {
        static const struct {
                const char *name, *magic;
                size_t n;
        } known[] = {
                { "zstd", "\x28\xb5\x2f\xfd", 4 },
                { "lz4", "\x04\x22\x4d\x18", 4 },
                { "xz", "\xfd\x37\x7a\x58\x5a\x00", 6 },
                { "gzip", "\x1f\x8b", 2 },
        };
        for (size_t i = 0; i < ELEMENTSOF(known); i++)
                if (memcmp(ident, known[i].magic, known[i].n) == 0)
                        return known[i].name;
        return NULL;
}

static void read_ident(ElfCheck *e) {
        const uint8_t *ident = e->header;
        if (memcmp(ident, ELFMAG, SELFMAG) != 0) {
                const char *compression = compression_name(ident);
                if (compression)
                        set_fault(e, "compressed (%s), not validated", compression);
                else
                        set_fault(e, "does not begin as an ELF file");
                finish_early(e, compression ? VERDICT_OPAQUE : VERDICT_SUSPECT);
                return;
        }
        if ((ident[EI_CLASS] != ELFCLASS32 && ident[EI_CLASS] != ELFCLASS64) ||
            (ident[EI_DATA] != ELFDATA2LSB && ident[EI_DATA] != ELFDATA2MSB)) {
                set_fault(e, "unknown ELF class %u or byte order %u", ident[EI_CLASS],
                          ident[EI_DATA]);
                finish_early(e, VERDICT_SUSPECT);
                return;
        }
        e->is_64 = ident[EI_CLASS] == ELFCLASS64;
        e->is_big_endian = ident[EI_DATA] == ELFDATA2MSB;
        e->header_bytes = e->is_64 ? sizeof(Elf64_Ehdr) : sizeof(Elf32_Ehdr);
}

/* Section headers: only section 0 is of use, and only when it counts the program headers. */
static void read_sections(ElfCheck *e) {
        const uint64_t offset = FIELD(e, e->header, Ehdr, e_shoff);
        const uint64_t n = FIELD(e, e->header, Ehdr, e_shnum);
        const uint64_t entry_bytes = e->is_64 ? sizeof(Elf64_Shdr) : sizeof(Elf32_Shdr);
        if (n == 0 && !e->is_many)
                return;

        uint64_t end;
        if (FIELD(e, e->header, Ehdr, e_shentsize) != entry_bytes || offset < e->header_bytes ||
            !table_end(offset, MAX(n, UINT64_C(1)), entry_bytes, &end)) {
                set_fault(e, "the section headers cannot lie at offset %llu",
                          (unsigned long long)offset);
                return;
        }
        require_bytes(e, end);
        if (e->is_many)
                e->section0 = (ElfTable){ .begin = offset,
                                          .end = offset + entry_bytes,
                                          .entry_bytes = (uint32_t)entry_bytes };
}

static void read_header(ElfCheck *e) {
        const uint64_t type = FIELD(e, e->header, Ehdr, e_type);
        const uint64_t n = FIELD(e, e->header, Ehdr, e_phnum);
        const uint64_t entry_bytes = e->is_64 ? sizeof(Elf64_Phdr) : sizeof(Elf32_Phdr);
        uint64_t end;

        e->state = ELF_TABLES;
        if (type != ET_CORE)
                set_fault(e, "ELF type %u is not that of a core file (%d)", (unsigned)type,
                          ET_CORE);
        if (n == 0) {
                set_fault(e, "has no program headers");
                return;
        }

        e->phdr_offset = FIELD(e, e->header, Ehdr, e_phoff);
        e->is_many = n == PN_XNUM;
        if (FIELD(e, e->header, Ehdr, e_phentsize) != entry_bytes ||
            e->phdr_offset < e->header_bytes || !table_end(e->phdr_offset, n, entry_bytes, &end)) {
                set_fault(e, "the program headers cannot lie at offset %llu",
                          (unsigned long long)e->phdr_offset);
                return;
        }
        require_bytes(e, end);
        if (e->is_many && !table_end(e->phdr_offset, ELF_PHDRS_MAX, entry_bytes, &end))
                end = UINT64_MAX;
        e->phdrs = (ElfTable){ .begin = e->phdr_offset,
                               .end = end,
                               .entry_bytes = (uint32_t)entry_bytes };
        read_sections(e);
}

static void read_phdr(ElfCheck *e, uint64_t i) {
        const uint8_t *p = e->phdrs.entry;
        const uint64_t offset = FIELD(e, p, Phdr, p_offset), bytes = FIELD(e, p, Phdr, p_filesz);
        uint64_t end;

        if (__builtin_add_overflow(offset, bytes, &end)) {
                if (i < ELF_PHDRS_SURE)
                        set_fault(e, "program header %llu points beyond every file",
                                  (unsigned long long)i);
                end = 0;
        }
        if (bytes == 0)
                end = 0;
        if (i < ELF_PHDRS_SURE) {
                require_bytes(e, end);
                return;
        }

        /* Section 0 decides whether this still is one. */
        const uint64_t k = i - ELF_PHDRS_SURE;
        if (!e->needed_open)
                e->needed_open = calloc(ELF_PHDRS_OPEN, sizeof *e->needed_open);
        if (!e->needed_open)
                return; /* less is known; no reason to fail the bundle */
        e->needed_open[k] = MAX(end, k > 0 ? e->needed_open[k - 1] : 0);
}

static void read_section0(ElfCheck *e) {
        e->n_phdrs_counted = (uint32_t)FIELD(e, e->section0.entry, Shdr, sh_info);
}

typedef struct Piece {
        uint64_t offset, n;  /* in the file */
        const uint8_t *data; /* NULL = zeros */
} Piece;

/* Takes what of the piece lies in the table. */
static void add_table_bytes(ElfCheck *e, ElfTable *t, const Piece *p) {
        uint64_t at = MAX(p->offset, t->begin + t->n_done * t->entry_bytes + t->n_entry);
        const uint64_t end = MIN(p->offset + p->n, t->end);
        while (at < end) {
                size_t n_used = (size_t)MIN(end - at, (uint64_t)(t->entry_bytes - t->n_entry));
                if (p->data)
                        memcpy(t->entry + t->n_entry, p->data + (at - p->offset), n_used);
                else
                        memset(t->entry + t->n_entry, 0, n_used);
                at += n_used;
                t->n_entry += (uint32_t)n_used;
                if (t->n_entry < t->entry_bytes)
                        continue;
                if (t == &e->phdrs)
                        read_phdr(e, t->n_done);
                else
                        read_section0(e);
                t->n_entry = 0;
                t->n_done++;
        }
}

/* @return how much of the input belongs to the header */
static size_t add_header_bytes(ElfCheck *e, const uint8_t *data, uint64_t n) {
        size_t i = 0;
        while (i < n && e->state == ELF_HEADER) {
                if (e->header_bytes == 0)
                        e->header_bytes = EI_NIDENT;
                size_t n_used = (size_t)MIN(n - i, (uint64_t)(e->header_bytes - e->n_header));
                if (data)
                        memcpy(e->header + e->n_header, data + i, n_used);
                else
                        memset(e->header + e->n_header, 0, n_used);
                i += n_used;
                e->n_header += (uint32_t)n_used;
                if (e->n_header < e->header_bytes)
                        continue;
                if (e->header_bytes == EI_NIDENT)
                        read_ident(e);
                else
                        read_header(e);
        }
        return i;
}

static void elf_update(Validator *v, const uint8_t *data, uint64_t n) {
        ElfCheck *e = &v->elf;
        size_t n_header = add_header_bytes(e, data, n);
        if (e->state != ELF_TABLES || n_header == n)
                return;
        const Piece rest = { .offset = v->offset + n_header,
                             .n = n - n_header,
                             .data = data ? data + n_header : NULL };
        add_table_bytes(e, &e->phdrs, &rest);
        add_table_bytes(e, &e->section0, &rest);
}

/* Section 0 has counted them. */
static void resolve_many(ElfCheck *e) {
        uint64_t end;
        if (e->section0.n_done == 0)
                return; /* it lies beyond the end, which `needed` knows, or nowhere, which `fault`
                           says */
        if (e->n_phdrs_counted < PN_XNUM ||
            !table_end(e->phdr_offset, e->n_phdrs_counted, e->phdrs.entry_bytes, &end)) {
                set_fault(e, "section header 0 counts %u program headers, expected %u or more",
                          e->n_phdrs_counted, PN_XNUM);
                return;
        }
        require_bytes(e, end);
        const uint64_t n_open = MIN((uint64_t)e->n_phdrs_counted, e->phdrs.n_done);
        if (n_open > ELF_PHDRS_SURE && e->needed_open)
                require_bytes(e, e->needed_open[n_open - ELF_PHDRS_SURE - 1]);
}

/* @return whether what was read is the beginning of an ELF header, as far as it goes */
static bool has_elf_magic(const ElfCheck *e) {
        return memcmp(e->header, ELFMAG, MIN(e->n_header, (uint32_t)SELFMAG)) == 0;
}

static Verdict elf_finish(Validator *v, StrBuf *detail) {
        ElfCheck *e = &v->elf;
        if (e->state == ELF_HEADER) {
                const bool is_elf = has_elf_magic(e);
                strbuf_addf(detail, "%llu bytes, %s", (unsigned long long)v->size,
                            is_elf ? "shorter than an ELF header"
                                   : "and no beginning of an ELF file");
                return is_elf ? VERDICT_TRUNCATED : VERDICT_SUSPECT;
        }
        if (e->state == ELF_STOPPED) {
                strbuf_add(detail, e->fault);
                return e->verdict;
        }
        if (e->is_many)
                resolve_many(e);
        if (e->needed > v->size) {
                strbuf_addf(detail, "%llu of %llu bytes are missing, by its headers",
                            (unsigned long long)(e->needed - v->size),
                            (unsigned long long)e->needed);
                return VERDICT_TRUNCATED;
        }
        strbuf_add(detail, e->fault);
        return e->fault[0] ? VERDICT_SUSPECT : VERDICT_OK;
}

static Verdict elf_quick(const Validator *v) {
        const ElfCheck *e = &v->elf;
        if (e->state == ELF_HEADER) /* complete, and still no header */
                return v->offset == v->size && has_elf_magic(e) ? VERDICT_TRUNCATED : VERDICT_OK;
        return e->state == ELF_TABLES && e->needed > v->size ? VERDICT_TRUNCATED : VERDICT_OK;
}

/* Tables are read where they lie; what lies before the next one is skipped. */
static uint64_t elf_skippable_bytes(const Validator *v) {
        const ElfCheck *e = &v->elf;
        const ElfTable *tables[] = { &e->phdrs, &e->section0 };
        uint64_t next = UINT64_MAX; /* offset of what is needed */

        if (e->state == ELF_HEADER)
                return 0;
        for (size_t i = 0; e->state == ELF_TABLES && i < ELEMENTSOF(tables); i++)
                if (v->offset < tables[i]->end)
                        next = MIN(next, MAX(v->offset, tables[i]->begin));
        return next == UINT64_MAX ? next : next - v->offset;
}

static void elf_done(Validator *v) {
        free(v->elf.needed_open);
}

const ValidatorOps validator_elf_ops = {
        .update = elf_update,
        .finish = elf_finish,
        .quick = elf_quick,
        .skippable_bytes = elf_skippable_bytes,
        .done = elf_done,
};
