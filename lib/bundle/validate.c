/* Checks the format of each member as its bytes pass, and what a set of profile files lacks. First
 * the formats, NEFF, protobuf and ELF, each a set of functions with bounded memory; then the choice
 * of a format by kind and name; then validate_quick() and validate_set(). What a verdict changes
 * for a bundle is left to the callers. */
#include "lib/bundle/validate.h"

#include <elf.h>
#include <endian.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/digest.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/bundle/page_cache.h"

/** A format's entries. Bytes arrive in order, cut anywhere; v->offset is the content offset of the
 * first one. */
typedef struct ValidatorOps { /* all but finish may be NULL */
        /* @param data  NULL = zeros, which must not take time in proportion to n */
        void (*update)(Validator *v, const uint8_t *data, uint64_t n);
        Verdict (*finish)(Validator *v, StrBuf *detail);
        Verdict (*quick)(const Validator *v); /* from a prefix: VERDICT_OK = nothing against it */
        uint64_t (*skippable_bytes)(const Validator *v); /* see validator_skippable_bytes() */
} ValidatorOps;

/* The NEFF header as the Neuron SDK's public documentation has it (work-with-neff-files); it has no
 * magic number. */
#define NEFF_HEADER_BYTES 1024
#define NEFF_START_BYTES 262 /* of the data: `ustar` lies at 257 */

typedef enum NeffDigest { NEFF_DIGEST_NONE, NEFF_DIGEST_SHA256, NEFF_DIGEST_MD5 } NeffDigest;

typedef struct NeffCheck {
        uint8_t header[NEFF_HEADER_BYTES];
        uint8_t start[NEFF_START_BYTES];
        size_t n_header, n_start;
        uint64_t data_size;  /* as the header promises */
        uint64_t n_unhashed; /* bytes of the data still to be hashed */
        uint64_t n_zeros;    /* of a hole, hashed so far */
        NeffDigest digest;   /* which one the hash field could be */
        bool is_digest_skipped;
        union {
                Sha256 sha256;
                Md5 md5;
        };
} NeffCheck;

typedef enum ProtobufState { /* what the next byte belongs to */
                             PROTOBUF_TAG,
                             PROTOBUF_VARINT,
                             PROTOBUF_LENGTH,
                             PROTOBUF_SKIP,
                             PROTOBUF_INVALID, /* for good */
} ProtobufState;

typedef struct ProtobufCheck {
        ProtobufState state;
        uint64_t record_offset; /* of the open record's tag */
        uint64_t value;         /* the varint being read */
        unsigned n_varint;      /* its bytes so far */
        uint64_t skip;          /* payload bytes to pass over */
        char fault[128];        /* what was odd */
} ProtobufCheck;

typedef struct ElfTable {    /* the program headers */
        uint64_t begin, end; /* offsets; begin == end = none */
        uint32_t entry_bytes, n_entry;
        uint64_t n_done; /* entries read */
        uint8_t entry[64];
} ElfTable;

typedef enum ElfState { ELF_HEADER, ELF_TABLES, ELF_STOPPED } ElfState;

typedef struct ElfCheck {
        ElfState state;
        Verdict verdict; /* of ELF_STOPPED */
        char fault[128]; /* its detail, or what is suspect though the walk continues */
        uint8_t header[64];
        uint32_t n_header, header_bytes;
        bool is_64, is_big_endian;
        ElfTable phdrs;
        uint64_t needed; /* bytes the file must have by all that was read so far */
} ElfCheck;

struct Validator {
        const ValidatorOps *ops;
        MemberKind kind;
        uint64_t size;    /* of the member, as planned */
        uint64_t offset;  /* content bytes added */
        const char *note; /* detail of a verdict that needs no look at the content; static */
        union {
                NeffCheck neff;
                ProtobufCheck protobuf;
                ElfCheck elf;
        };
};

/* ---- NEFF: the header against the file's size, the data's magic number, and the hash where it can
 * be checked. All of it from public documentation, which is not settled about the hash: a mismatch
 * is `suspect`, never more ---- */

#define OFFSET_PKG_VERSION 0
#define OFFSET_HEADER_SIZE 8
#define OFFSET_DATA_SIZE 16
#define OFFSET_HASH 172
#define HASH_BYTES 32
#define OFFSET_USTAR 257

/* Hashing a huge hole would cost seconds for a hint; no package of public knowledge has any. */
#define ZEROS_HASHED_MAX (64 * MIB)

static const uint8_t zeros[16 * 1024];

/* Of 64 bits, little-endian. */
static uint64_t field(const NeffCheck *c, size_t offset) {
        uint64_t value;
        memcpy(&value, c->header + offset, sizeof value);
        return le64toh(value);
}

/* Sources conflict on which pkg_version means which digest (and the header documents 32 bytes for
 * either), so the field itself decides: a digest of 16 bytes leaves the other 16 zero. */
static NeffDigest digest_kind(const uint8_t hash[static HASH_BYTES]) {
        if (memcmp(hash, zeros, HASH_BYTES) == 0)
                return NEFF_DIGEST_NONE;
        return memcmp(hash + MD5_SIZE, zeros, HASH_BYTES - MD5_SIZE) == 0 ? NEFF_DIGEST_MD5
                                                                          : NEFF_DIGEST_SHA256;
}

static void neff_read_header(NeffCheck *c, uint64_t size) {
        c->data_size = field(c, OFFSET_DATA_SIZE);
        if (field(c, OFFSET_HEADER_SIZE) != NEFF_HEADER_BYTES ||
            c->data_size > size - NEFF_HEADER_BYTES)
                return; /* the verdict is clear without the digest */

        c->digest = digest_kind(c->header + OFFSET_HASH);
        c->n_unhashed = c->digest == NEFF_DIGEST_NONE ? 0 : c->data_size;
        if (c->digest == NEFF_DIGEST_SHA256)
                sha256_init(&c->sha256);
        else if (c->digest == NEFF_DIGEST_MD5)
                md5_init(&c->md5);
}

static void add_data(NeffCheck *c, const uint8_t *data, size_t n) {
        size_t n_start = MIN(n, NEFF_START_BYTES - c->n_start);
        memcpy(c->start + c->n_start, data, n_start);
        c->n_start += n_start;

        size_t n_hash = (size_t)MIN((uint64_t)n, c->n_unhashed);
        if (n_hash == 0)
                return;
        if (c->digest == NEFF_DIGEST_SHA256)
                sha256_update(&c->sha256, data, n_hash);
        else
                md5_update(&c->md5, data, n_hash);
        c->n_unhashed -= n_hash;
}

static void add_bytes(Validator *v, const uint8_t *data, size_t n) {
        NeffCheck *c = &v->neff;
        if (c->n_header < NEFF_HEADER_BYTES) {
                size_t n_used = MIN(n, NEFF_HEADER_BYTES - c->n_header);
                memcpy(c->header + c->n_header, data, n_used);
                c->n_header += n_used;
                data += n_used;
                n -= n_used;
                if (c->n_header == NEFF_HEADER_BYTES)
                        neff_read_header(c, v->size);
        }
        if (n > 0)
                add_data(c, data, n);
}

/* Counted by the byte, so that the answer does not depend on how a hole is cut into calls. */
static size_t count_zeros(NeffCheck *c, uint64_t n) {
        if (c->n_header < NEFF_HEADER_BYTES)
                return (size_t)MIN(n, (uint64_t)(NEFF_HEADER_BYTES - c->n_header));

        size_t n_used = (size_t)MIN(n, (uint64_t)sizeof zeros);
        c->n_zeros += MIN((uint64_t)n_used, c->n_unhashed);
        if (c->n_zeros > ZEROS_HASHED_MAX) {
                c->n_unhashed = 0;
                c->is_digest_skipped = true;
        }
        return n_used;
}

static bool is_satisfied(const NeffCheck *c) {
        return c->n_header == NEFF_HEADER_BYTES && c->n_start == NEFF_START_BYTES &&
               c->n_unhashed == 0;
}

static void neff_update(Validator *v, const uint8_t *data, uint64_t n) {
        NeffCheck *c = &v->neff;
        if (data)
                add_bytes(v, data, n);
        while (!data && n > 0 && !is_satisfied(c)) {
                const size_t n_zeros = count_zeros(c, n);
                add_bytes(v, zeros, n_zeros);
                n -= n_zeros;
        }
}

static bool data_has_magic(const NeffCheck *c) {
        if (c->n_start >= 2 && c->start[0] == 0x1f && c->start[1] == 0x8b)
                return true;
        return c->n_start >= OFFSET_USTAR + 5 && memcmp(c->start + OFFSET_USTAR, "ustar", 5) == 0;
}

static Verdict digest_verdict(NeffCheck *c, StrBuf *detail) {
        if (c->digest == NEFF_DIGEST_NONE)
                return VERDICT_OK;
        if (c->is_digest_skipped) {
                strbuf_add(detail, "hash not checked, the file is mostly a hole");
                return VERDICT_OK;
        }

        uint8_t found[SHA256_SIZE];
        const bool is_md5 = c->digest == NEFF_DIGEST_MD5;
        if (is_md5)
                md5_final(&c->md5, found);
        else
                sha256_final(&c->sha256, found);

        const char *name = is_md5 ? "md5" : "sha-256";
        if (memcmp(found, c->header + OFFSET_HASH, is_md5 ? MD5_SIZE : SHA256_SIZE) == 0) {
                strbuf_addf(detail, "hash verified (%s)", name);
                return VERDICT_OK;
        }
        strbuf_addf(detail,
                    "the hash field is not the %s of the data, but the meaning of that field is "
                    "not settled",
                    name);
        return VERDICT_SUSPECT;
}

/* Sizes only: by the header alone. */
static Verdict size_verdict(const NeffCheck *c, uint64_t size, StrBuf *detail) {
        if (size < NEFF_HEADER_BYTES) {
                strbuf_addf(detail, "%llu bytes, but the header alone has %d",
                            (unsigned long long)size, NEFF_HEADER_BYTES);
                return VERDICT_TRUNCATED;
        }
        if (field(c, OFFSET_HEADER_SIZE) != NEFF_HEADER_BYTES) {
                strbuf_addf(detail, "header_size %llu is not %d",
                            (unsigned long long)field(c, OFFSET_HEADER_SIZE), NEFF_HEADER_BYTES);
                return VERDICT_SUSPECT;
        }

        const uint64_t n_data = size - NEFF_HEADER_BYTES;
        if (c->data_size != n_data)
                strbuf_addf(detail, "data_size %llu but %llu bytes follow the header",
                            (unsigned long long)c->data_size, (unsigned long long)n_data);
        if (c->data_size > n_data)
                return VERDICT_TRUNCATED;
        return c->data_size < n_data ? VERDICT_SUSPECT : VERDICT_OK;
}

static Verdict neff_finish(Validator *v, StrBuf *detail) {
        NeffCheck *c = &v->neff;
        Verdict verdict = size_verdict(c, v->size, detail);
        if (verdict != VERDICT_OK)
                return verdict;

        const uint64_t pkg_version = field(c, OFFSET_PKG_VERSION);
        if (pkg_version != 1 && pkg_version != 2) {
                strbuf_addf(detail, "pkg_version %llu is neither 1 nor 2",
                            (unsigned long long)pkg_version);
                return VERDICT_SUSPECT;
        }
        if (c->data_size == 0) {
                strbuf_add(detail, "data_size 0, there is nothing behind the header");
                return VERDICT_SUSPECT;
        }
        if (!data_has_magic(c)) {
                strbuf_add(detail, "the data begins neither as gzip nor as tar");
                return VERDICT_SUSPECT;
        }
        return digest_verdict(c, detail);
}

static Verdict neff_quick(const Validator *v) {
        if (v->size >= NEFF_HEADER_BYTES && v->neff.n_header < NEFF_HEADER_BYTES)
                return VERDICT_OK; /* could not be read now */
        StrBuf unused = STRBUF_INIT;
        Verdict verdict = size_verdict(&v->neff, v->size, &unused);
        strbuf_done(&unused);
        return verdict;
}

static uint64_t neff_skippable_bytes(const Validator *v) {
        return is_satisfied(&v->neff) ? UINT64_MAX : 0;
}

static const ValidatorOps neff_ops = {
        .update = neff_update,
        .finish = neff_finish,
        .quick = neff_quick,
        .skippable_bytes = neff_skippable_bytes,
};

/* ---- NTFF and the .pb files of a system profile: no schema and no magic number is public, so the
 * one thing to be seen is whether top-level protobuf records can be walked to the end. That is a
 * hint: `suspect`, never more. Payloads are passed over ---- */

#define VARINT_BYTES_MAX 10 /* of 64 bits */
#define FIELD_NUMBER_MAX ((UINT64_C(1) << 29) - 1)

enum {
        WIRE_VARINT = 0,
        WIRE_FIXED64 = 1,
        WIRE_LENGTH = 2,
        WIRE_FIXED32 = 5
}; /* 3 and 4: groups, obsolete */

_printf_(2, 3) static void reject(ProtobufCheck *c, const char *fmt, ...) {
        va_list args;
        va_start(args, fmt);
        (void)vsnprintf(c->fault, sizeof c->fault, fmt,
                        args); /* cut short at worst: it is a hint */
        va_end(args);
        c->state = PROTOBUF_INVALID;
}

static void read_tag(ProtobufCheck *c) {
        const uint64_t number = c->value >> 3;
        if (number == 0 || number > FIELD_NUMBER_MAX) {
                reject(c, "no protobuf record at offset %llu: field number %llu",
                       (unsigned long long)c->record_offset, (unsigned long long)number);
                return;
        }
        switch (c->value & 7) {
        case WIRE_VARINT:
                c->state = PROTOBUF_VARINT;
                break;
        case WIRE_FIXED64:
                c->state = PROTOBUF_SKIP;
                c->skip = 8;
                break;
        case WIRE_LENGTH:
                c->state = PROTOBUF_LENGTH;
                break;
        case WIRE_FIXED32:
                c->state = PROTOBUF_SKIP;
                c->skip = 4;
                break;
        default:
                reject(c, "no protobuf record at offset %llu: wire type %u",
                       (unsigned long long)c->record_offset, (unsigned)(c->value & 7));
        }
}

/* @param n_left  bytes of the file behind the length */
static void read_length(ProtobufCheck *c, uint64_t n_left) {
        if (c->value > n_left) {
                reject(c, "the record at offset %llu has %llu bytes by its length, but %llu follow",
                       (unsigned long long)c->record_offset, (unsigned long long)c->value,
                       (unsigned long long)n_left);
                return;
        }
        c->skip = c->value;
        c->state = c->skip > 0 ? PROTOBUF_SKIP : PROTOBUF_TAG;
}

/* One byte of a tag, a value or a length. @param offset  of that byte */
static void read_varint(ProtobufCheck *c, uint8_t byte, uint64_t offset, uint64_t size) {
        if (c->n_varint == 0) {
                c->value = 0;
                if (c->state == PROTOBUF_TAG)
                        c->record_offset = offset;
        }
        if (c->n_varint == VARINT_BYTES_MAX - 1 && byte > 1) { /* the 64th bit is the last */
                reject(c, "no protobuf record at offset %llu: a number of more than 64 bits",
                       (unsigned long long)c->record_offset);
                return;
        }
        c->value |= (uint64_t)(byte & 0x7f) << (7 * c->n_varint);
        c->n_varint++;
        if (byte & 0x80)
                return;

        c->n_varint = 0;
        if (c->state == PROTOBUF_TAG)
                read_tag(c);
        else if (c->state == PROTOBUF_LENGTH)
                read_length(c, size - offset - 1);
        else
                c->state = PROTOBUF_TAG;
}

static void skip(ProtobufCheck *c, uint64_t n) {
        c->skip -= n;
        if (c->skip == 0)
                c->state = PROTOBUF_TAG;
}

/* A zero ends a varint, is no tag, and all else is skipped: zeros take at most a few steps. */
static void protobuf_update(Validator *v, const uint8_t *data, uint64_t n) {
        ProtobufCheck *c = &v->protobuf;
        for (uint64_t i = 0; i < n && c->state != PROTOBUF_INVALID;) {
                if (c->state == PROTOBUF_SKIP) {
                        const uint64_t n_skip = MIN(c->skip, n - i);
                        skip(c, n_skip);
                        i += n_skip;
                } else {
                        read_varint(c, data ? data[i] : 0, v->offset + i, v->size);
                        i++;
                }
        }
}

static Verdict protobuf_finish(Validator *v, StrBuf *detail) {
        const ProtobufCheck *c = &v->protobuf;
        if (c->state == PROTOBUF_INVALID) {
                strbuf_add(detail, c->fault);
                return VERDICT_SUSPECT;
        }
        if (c->state != PROTOBUF_TAG || c->n_varint > 0) {
                strbuf_addf(detail, "ends in the middle of the protobuf record at offset %llu",
                            (unsigned long long)c->record_offset);
                return VERDICT_SUSPECT;
        }
        return VERDICT_OK;
}

static uint64_t protobuf_skippable_bytes(const Validator *v) {
        const ProtobufCheck *c = &v->protobuf;
        if (c->state == PROTOBUF_INVALID)
                return UINT64_MAX;
        return c->state == PROTOBUF_SKIP ? c->skip : 0;
}

static const ValidatorOps protobuf_ops = {
        .update = protobuf_update,
        .finish = protobuf_finish,
        .skippable_bytes = protobuf_skippable_bytes,
};

/* ---- ELF core files: is the file as long as its program headers say? Either class and byte order
 * (elf(5), gABI chapter 4 and 5). Of more than 65,534 program headers (PN_XNUM) 65,535 are read:
 * Linux writes the section header that counts them behind everything else (binfmt_elf.c), so a file
 * that is cut lacks it ---- */

_printf_(2, 3) static void set_fault(ElfCheck *e, const char *fmt, ...) {
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

static void read_sections(ElfCheck *e, bool is_many) {
        const uint64_t offset = FIELD(e, e->header, Ehdr, e_shoff);
        const uint64_t n = FIELD(e, e->header, Ehdr, e_shnum);
        const uint64_t entry_bytes = e->is_64 ? sizeof(Elf64_Shdr) : sizeof(Elf32_Shdr);
        if (n == 0 && !is_many)
                return;

        uint64_t end;
        if (FIELD(e, e->header, Ehdr, e_shentsize) != entry_bytes || offset < e->header_bytes ||
            !table_end(offset, MAX(n, UINT64_C(1)), entry_bytes, &end)) {
                set_fault(e, "the section headers cannot lie at offset %llu",
                          (unsigned long long)offset);
                return;
        }
        require_bytes(e, end);
}

static void elf_read_header(ElfCheck *e) {
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

        const uint64_t offset = FIELD(e, e->header, Ehdr, e_phoff);
        if (FIELD(e, e->header, Ehdr, e_phentsize) != entry_bytes || offset < e->header_bytes ||
            !table_end(offset, n, entry_bytes, &end)) {
                set_fault(e, "the program headers cannot lie at offset %llu",
                          (unsigned long long)offset);
                return;
        }
        require_bytes(e, end);
        e->phdrs = (ElfTable){ .begin = offset, .end = end, .entry_bytes = (uint32_t)entry_bytes };
        read_sections(e, n == PN_XNUM);
}

static void read_phdr(ElfCheck *e, uint64_t i) {
        const uint8_t *p = e->phdrs.entry;
        const uint64_t offset = FIELD(e, p, Phdr, p_offset), bytes = FIELD(e, p, Phdr, p_filesz);
        uint64_t end;

        if (__builtin_add_overflow(offset, bytes, &end))
                set_fault(e, "program header %llu points beyond every file", (unsigned long long)i);
        else if (bytes > 0)
                require_bytes(e, end);
}

/* Copies n bytes; data NULL = zeros. */
static void copy_bytes(uint8_t *to, const uint8_t *data, size_t n) {
        if (data)
                memcpy(to, data, n);
        else
                memset(to, 0, n);
}

/* @return how much of the input belongs to the header */
static size_t add_header_bytes(ElfCheck *e, const uint8_t *data, uint64_t n) {
        size_t i = 0;
        while (i < n && e->state == ELF_HEADER) {
                if (e->header_bytes == 0)
                        e->header_bytes = EI_NIDENT;
                size_t n_used = (size_t)MIN(n - i, (uint64_t)(e->header_bytes - e->n_header));
                copy_bytes(e->header + e->n_header, data ? data + i : NULL, n_used);
                i += n_used;
                e->n_header += (uint32_t)n_used;
                if (e->n_header < e->header_bytes)
                        continue;
                if (e->header_bytes == EI_NIDENT)
                        read_ident(e);
                else
                        elf_read_header(e);
        }
        return i;
}

static void elf_update(Validator *v, const uint8_t *data, uint64_t n) {
        ElfCheck *e = &v->elf;
        ElfTable *t = &e->phdrs;
        size_t n_header = add_header_bytes(e, data, n);
        uint64_t at = MAX(v->offset + n_header, t->begin + t->n_done * t->entry_bytes + t->n_entry);
        const uint64_t end = MIN(v->offset + n, t->end);
        while (e->state == ELF_TABLES && at < end) {
                size_t n_used = (size_t)MIN(end - at, (uint64_t)(t->entry_bytes - t->n_entry));
                copy_bytes(t->entry + t->n_entry, data ? data + (at - v->offset) : NULL, n_used);
                at += n_used;
                t->n_entry += (uint32_t)n_used;
                if (t->n_entry == t->entry_bytes) {
                        read_phdr(e, t->n_done++);
                        t->n_entry = 0;
                }
        }
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

/* The table is read where it lies; what lies before it is skipped. */
static uint64_t elf_skippable_bytes(const Validator *v) {
        const ElfCheck *e = &v->elf;

        if (e->state == ELF_HEADER)
                return 0;
        return e->state == ELF_TABLES && v->offset < e->phdrs.end
                       ? MAX(v->offset, e->phdrs.begin) - v->offset
                       : UINT64_MAX;
}

static const ValidatorOps elf_ops = {
        .update = elf_update,
        .finish = elf_finish,
        .quick = elf_quick,
        .skippable_bytes = elf_skippable_bytes,
};

/* ---- which validator checks which member ---- */

/* The note of members whose content is not validated: the runtime's state files have no public
 * format. */
static const char *opaque_note(SourceKind source, MemberKind kind) {
        switch (kind) {
        case MEMBER_NC_STATE:
        case MEMBER_CC_CORE_STATE:
        case MEMBER_NRT_LOG:
                return "format not public";
        case MEMBER_OTHER:
                /* The grammar of names is the runtime's only for its own directory. */
                return source == SOURCE_NEURON_CORE_DUMP ? "name not known" : "";
        default:
                return "";
        }
}

static const char *empty_note(MemberKind kind, const char *name) {
        if (kind == MEMBER_NTFF || strcmp(name, "cpu_util.pb") == 0 ||
            strcmp(name, "host_mem.pb") == 0)
                return "zero bytes are normal for this file in some modes of profiling";
        return "";
}

#define QUICK_BYTES (64 * 1024)

DEFINE_CLEANUP(Validator, validator_free);

static Verdict empty_finish(Validator *v, StrBuf *detail) {
        strbuf_add(detail, v->note);
        return VERDICT_EMPTY;
}

static Verdict opaque_finish(Validator *v, StrBuf *detail) {
        strbuf_add(detail, v->note);
        return VERDICT_OPAQUE;
}

static const ValidatorOps empty_ops = { .finish = empty_finish },
                          opaque_ops = { .finish = opaque_finish };

/* A system trace is protobuf or JSON by its ending: neither has a magic number of public knowledge.
 */
static const ValidatorOps *ops_for(MemberKind kind, const char *name) {
        switch (kind) {
        case MEMBER_NEFF:
                return &neff_ops;
        case MEMBER_NTFF:
                return &protobuf_ops;
        case MEMBER_SYSTEM_TRACE:
                return path_has_suffix(name, ".pb") ? &protobuf_ops : &opaque_ops;
        case MEMBER_ELF_CORE:
                return &elf_ops;
        default:
                return &opaque_ops;
        }
}

int validator_new(Validator **ret, const ValidatorOptions *options) {
        const char *name = path_name(options->name);
        _cleanup_(validator_freep) Validator *v = calloc(1, sizeof *v);
        if (!v)
                return -ENOMEM;

        v->kind = options->kind;
        v->size = options->size_bytes;
        if (options->size_bytes == 0) {
                v->ops = &empty_ops;
                v->note = empty_note(options->kind, name);
        } else {
                v->ops = ops_for(options->kind, name);
                v->note = opaque_note(options->source, options->kind);
        }
        *ret = TAKE_PTR(v);
        return 0;
}

Validator *validator_free(Validator *v) {
        free(v);
        return NULL;
}

void validator_update(Validator *v, const void *data, uint64_t n) {
        n = MIN(n, v->size - v->offset);
        if (n > 0 && v->ops->update)
                v->ops->update(v, data, n);
        v->offset += n;
}

uint64_t validator_skippable_bytes(const Validator *v) {
        return v->ops->skippable_bytes ? v->ops->skippable_bytes(v) : UINT64_MAX;
}

Verdict validator_finish(Validator *v, char **ret_detail) {
        StrBuf detail = STRBUF_INIT;
        Verdict verdict;

        if (v->offset < v->size) {
                verdict = VERDICT_TRUNCATED;
                strbuf_addf(&detail, "only %llu of %llu bytes could be read",
                            (unsigned long long)v->offset, (unsigned long long)v->size);
        } else
                verdict = v->ops->finish(v, &detail);

        *ret_detail = strbuf_detach(&detail);
        strbuf_done(&detail);
        return verdict;
}

Verdict validate_quick(int fd, MemberKind kind, uint64_t size_bytes) {
        if (kind != MEMBER_NEFF && kind != MEMBER_ELF_CORE)
                return VERDICT_OK;
        if (size_bytes == 0)
                return VERDICT_EMPTY;

        _cleanup_(validator_freep) Validator *v = NULL;
        _cleanup_free_ uint8_t *start = malloc(QUICK_BYTES);
        const ValidatorOptions options = {
                .source = SOURCE_DIRECTORY, .kind = kind, .name = "", .size_bytes = size_bytes
        };
        if (!start || validator_new(&v, &options) < 0)
                return VERDICT_OK; /* no evidence against it; it is validated when it is read */

        const size_t wanted = (size_t)MIN(size_bytes, (uint64_t)QUICK_BYTES);
        _cleanup_(page_cache_close) PageCache pages;
        page_cache_open(&pages, fd, size_bytes);
        page_cache_prepare(&pages, 0, wanted);
        const ssize_t n = pread(fd, start, wanted, 0);
        validator_update(v, start, n > 0 ? (uint64_t)n : 0);
        return v->ops->quick ? v->ops->quick(v) : VERDICT_OK;
}

/* ---- what a set of profile files lacks, by the names that the Neuron documentation gives them
 * ---- */

#define REASONS_MAX 20

/* The files of a system profile: where one is, all four are expected. */
static const char *const trace_names[] = { "ntrace.pb", "trace_info.pb", "cpu_util.pb",
                                           "host_mem.pb" };
#define TRACES_ALL ((1u << ELEMENTSOF(trace_names)) - 1)

enum { HAS_NTFF = 1, HAS_NEFF = 2 };

typedef struct SetFile {
        const char *path;   /* the plan's */
        size_t n_directory; /* bytes of it that are its directory; 0 = the bundle's own */
        uint64_t number;    /* `<hash>` of the names of a NEFF and its NTFFs */
        bool is_trace;      /* of a system profile; number is 0 */
        uint8_t bits;       /* what is there: HAS_…, or a bit per trace_names */
} SetFile;

/* Session mode's `neff_<hash>_vnc_<n>.neff` pairs with no single ntff; only model mode's
 * `neff_<hash>.neff` counts. */
static uint8_t neff_bit(const char *name, MemberKind kind) {
        if (kind == MEMBER_NTFF)
                return HAS_NTFF;
        return kind == MEMBER_NEFF && !strstr(name, "_vnc_") ? HAS_NEFF : 0;
}

/* @return whether the member is one of a set */
static bool set_file_init(SetFile *f, const PlanMember *m) {
        const char *name = path_name(m->path);
        const int trace = parse_word(name, trace_names, ELEMENTSOF(trace_names));
        DumpName parsed;

        dump_name_parse(SOURCE_NEURON_PROFILE, name, &parsed);
        *f = (SetFile){ .path = m->path,
                        .n_directory = name > m->path ? (size_t)(name - m->path - 1) : 0,
                        .is_trace = trace >= 0,
                        .bits = trace >= 0 ? (uint8_t)(1u << trace) : 0 };
        if (!f->is_trace && parsed.has_neff_number) {
                f->number = parsed.neff_number;
                f->bits = neff_bit(name, m->kind);
        }
        return f->bits != 0;
}

static int compare_files(const void *a, const void *b) {
        const SetFile *x = a, *y = b;
        if (x->is_trace != y->is_trace)
                return x->is_trace ? 1 : -1;
        const int order = memcmp(x->path, y->path, MIN(x->n_directory, y->n_directory));
        if (order != 0)
                return order;
        if (x->n_directory != y->n_directory)
                return x->n_directory < y->n_directory ? -1 : 1;
        return x->number < y->number ? -1 : x->number > y->number;
}

/* What the files of one number, or one directory's traces, lack. @return 0 or -ENOMEM */
static int describe_missing(const SetFile *f, StrBuf *text) {
        if (f->is_trace ? f->bits == TRACES_ALL : f->bits != HAS_NTFF)
                return 0;
        _cleanup_free_ char *directory = strndup(f->path, f->n_directory);
        _cleanup_free_ char *name = directory ? path_escape(directory) : NULL;
        if (!name)
                return -ENOMEM;
        if (!f->is_trace) {
                strbuf_addf(text, "ntff '%s%s%llu_*.ntff' has no matching neff_%llu.neff", name,
                            name[0] ? "/" : "", (unsigned long long)f->number,
                            (unsigned long long)f->number);
                return 0;
        }
        strbuf_addf(text, "system profile%s%s%s has no ", name[0] ? " in '" : "", name,
                    name[0] ? "'" : "");
        const char *comma = "";
        for (unsigned k = 0; k < ELEMENTSOF(trace_names); k++)
                if (!(f->bits & 1u << k)) {
                        strbuf_addf(text, "%s%s", comma, trace_names[k]);
                        comma = ", ";
                }
        return 0;
}

int validate_set(const Plan *plan, void (*on_reason)(const char *reason, void *userdata),
                 void *userdata) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        uint64_t n_reasons = 0;
        size_t n = 0;
        _cleanup_free_ SetFile *files = calloc(plan_n_members(plan) + 1, sizeof *files);
        if (!files)
                return -ENOMEM;

        for (size_t i = 0; i < plan_n_members(plan); i++)
                n += set_file_init(&files[n], plan_member(plan, i));
        qsort(files, n, sizeof *files, compare_files);
        for (size_t i = 0; i < n;) {
                SetFile all = files[i];
                for (i++; i < n && compare_files(&all, &files[i]) == 0; i++)
                        all.bits |= files[i].bits;
                strbuf_clear(&text);
                int r = describe_missing(&all, &text);
                if (r == 0)
                        r = strbuf_error(&text);
                if (r < 0)
                        return r;
                if (text.n > 0 && n_reasons++ < REASONS_MAX)
                        on_reason(text.text, userdata);
        }
        if (n_reasons > REASONS_MAX) {
                strbuf_clear(&text);
                strbuf_addf(&text, "and %llu more", (unsigned long long)(n_reasons - REASONS_MAX));
                if (strbuf_error(&text) < 0)
                        return -ENOMEM;
                on_reason(text.text, userdata);
        }
        return 0;
}
