/* What the validators of the single formats share with validate.c; nobody else includes it. */
#pragma once

#include "lib/base/digest.h"
#include "lib/bundle/validate.h"

/** A format's entries. Bytes arrive in order, cut anywhere; v->offset is the content offset of the
 * first one. */
typedef struct ValidatorOps { /* all but finish may be NULL */
        /* @param data  NULL = zeros, which must not take time in proportion to n */
        void (*update)(Validator *v, const uint8_t *data, uint64_t n);
        Verdict (*finish)(Validator *v, StrBuf *detail);
        Verdict (*quick)(const Validator *v); /* from a prefix: VERDICT_OK = nothing against it */
        uint64_t (*skippable_bytes)(const Validator *v); /* see validator_skippable_bytes() */
        void (*done)(Validator *v);
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

/* Of more program headers than this only the first ones are read (4 MiB of a 64-bit table). With
 * e_phnum = PN_XNUM there are at least 65,535 and their number stands behind them in the file, so
 * for those above it the answer is kept open. */
#define ELF_PHDRS_SURE 65535
#define ELF_PHDRS_OPEN 8192
#define ELF_PHDRS_MAX (ELF_PHDRS_SURE + ELF_PHDRS_OPEN)

typedef struct ElfTable {    /* a run of equal entries somewhere in the file */
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
        bool is_64, is_big_endian, is_many /* PN_XNUM */;
        uint64_t phdr_offset;
        ElfTable phdrs, section0;
        uint32_t n_phdrs_counted; /* by section 0 */
        uint64_t needed;          /* bytes the file must have by all that was read so far */
        uint64_t *needed_open;    /* is_many: by program headers 65,535 … i; owned */
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

extern const ValidatorOps validator_neff_ops;
extern const ValidatorOps validator_protobuf_ops;
extern const ValidatorOps validator_elf_ops;
