/* NTFF and the .pb files of a system profile: no schema and no magic number is public, so the one
 * thing to be seen is whether top-level protobuf records can be walked to the end. That is a hint:
 * `suspect`, never more. Payloads are passed over. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/path.h"
#include "lib/bundle/validate.h"
#include "lib/bundle/validate_private.h"

#define VARINT_BYTES_MAX 10 /* of 64 bits */
#define FIELD_NUMBER_MAX ((UINT64_C(1) << 29) - 1)

enum {
        WIRE_VARINT = 0,
        WIRE_FIXED64 = 1,
        WIRE_LENGTH = 2,
        WIRE_FIXED32 = 5
}; /* 3 and 4: groups, obsolete */

__attribute__((format(printf, 2, 3))) static void reject(ProtobufCheck *c, const char *fmt, ...) {
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

const ValidatorOps validator_protobuf_ops = {
        .update = protobuf_update,
        .finish = protobuf_finish,
        .skippable_bytes = protobuf_skippable_bytes,
};

/* ---- what a set of profile files lacks, by the names that the Neuron documentation gives them
 * ---- */

#define FILES_MAX 1000000
#define REASONS_MAX 20

/* The files of a system profile: where one is, all four are expected. */
static const char *const trace_names[] = { "ntrace.pb", "trace_info.pb", "cpu_util.pb",
                                           "host_mem.pb" };
#define TRACES_ALL ((1u << ELEMENTSOF(trace_names)) - 1)

enum { HAS_NTFF = 1, HAS_NEFF = 2 };

typedef struct SetFile {
        const char *directory; /* one of SetCheck.directories */
        uint64_t number;       /* `<hash>` of the names of a NEFF and its NTFFs */
        bool is_trace;         /* of a system profile; number is 0 */
        uint8_t bits;          /* what is there: HAS_…, or a bit per trace_names */
} SetFile;

struct SetCheck {
        SourceKind source;
        SetFile *files;
        size_t n_files, n_files_allocated;
        char **directories; /* in order of arrival; consecutive files share one */
        size_t n_directories, n_directories_allocated;
        bool is_too_many; /* more than FILES_MAX: nothing can be reported as missing */
};

int set_check_new(SetCheck **ret, SourceKind source) {
        SetCheck *c = calloc(1, sizeof *c);
        if (!c)
                return -ENOMEM;
        c->source = source;
        *ret = c;
        return 0;
}

SetCheck *set_check_free(SetCheck *c) {
        if (!c)
                return NULL;
        for (size_t i = 0; i < c->n_directories; i++)
                free(c->directories[i]);
        free(c->directories);
        free(c->files);
        free(c);
        return NULL;
}

/* @return the array, with space for one more item; NULL for lack of memory */
static void *reserve_item(void *items, size_t n, size_t *n_allocated, size_t item_bytes) {
        if (n < *n_allocated)
                return items;
        const size_t n_more = MAX(2 * n, (size_t)64);
        void *more = reallocarray(items, n_more, item_bytes);
        if (more)
                *n_allocated = n_more;
        return more;
}

/* @param n  length of the directory's part of path, 0 = the bundle's own directory
 * @return the directory; NULL for lack of memory */
static const char *add_directory(SetCheck *c, const char *path, size_t n) {
        const char *last = c->n_directories > 0 ? c->directories[c->n_directories - 1] : NULL;
        if (last && strncmp(last, path, n) == 0 && last[n] == '\0')
                return last;
        char **more = reserve_item(c->directories, c->n_directories, &c->n_directories_allocated,
                                   sizeof *more);
        if (!more)
                return NULL;
        c->directories = more;
        more[c->n_directories] = strndup(path, n);
        return more[c->n_directories] ? more[c->n_directories++] : NULL;
}

static uint8_t trace_bit(const char *name) {
        for (unsigned i = 0; i < ELEMENTSOF(trace_names); i++)
                if (strcmp(name, trace_names[i]) == 0)
                        return (uint8_t)(1u << i);
        return 0;
}

/* Session mode's `neff_<hash>_vnc_<n>.neff` pairs with no single ntff; only model mode's
 * `neff_<hash>.neff` counts. */
static uint8_t neff_bit(const char *name, const DumpName *parsed) {
        if (parsed->kind == MEMBER_NTFF && parsed->has_neff_number)
                return HAS_NTFF;
        if (parsed->kind == MEMBER_NEFF && parsed->has_neff_number && !strstr(name, "_vnc_"))
                return HAS_NEFF;
        return 0;
}

int set_check_add(SetCheck *c, const char *path, const DumpName *parsed, uint64_t size_bytes) {
        (void)size_bytes; /* zero bytes are normal for some of them; the verdict says so */
        const char *name = path_name(path);
        SetFile file = { .is_trace = trace_bit(name) != 0 };

        file.bits = file.is_trace ? trace_bit(name) : neff_bit(name, parsed);
        if (c->source != SOURCE_NEURON_PROFILE || file.bits == 0)
                return 0;
        if (c->n_files == FILES_MAX) {
                c->is_too_many = true;
                return 0;
        }
        file.number = file.is_trace ? 0 : parsed->neff_number;
        file.directory = add_directory(c, path, name > path ? (size_t)(name - path - 1) : 0);
        SetFile *more = reserve_item(c->files, c->n_files, &c->n_files_allocated, sizeof *more);
        if (more)
                c->files = more;
        if (!file.directory || !more)
                return -ENOMEM;
        c->files[c->n_files++] = file;
        return 0;
}

static int compare_files(const void *a, const void *b) {
        const SetFile *x = a, *y = b;
        if (x->is_trace != y->is_trace)
                return x->is_trace ? 1 : -1;
        const int order = strcmp(x->directory, y->directory);
        if (order != 0)
                return order;
        return x->number < y->number ? -1 : x->number > y->number;
}

/* What the files of one number, or one directory's traces, lack. @return 0 or -ENOMEM */
static int describe_missing(const SetFile *f, StrBuf *text) {
        if (f->is_trace ? f->bits == TRACES_ALL : f->bits != HAS_NTFF)
                return 0;
        _cleanup_free_ char *name = path_escape(f->directory);
        if (!name)
                return -ENOMEM;
        if (!f->is_trace) {
                strbuf_addf(text, "ntff '%s%s%llu_*.ntff' has no neff_%llu.neff beside it", name,
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

int set_check_finish(SetCheck *c, void (*on_reason)(const char *reason, void *userdata),
                     void *userdata) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        uint64_t n_reasons = 0;

        if (c->is_too_many)
                return 0; /* a NEFF may be among those not kept */
        if (c->n_files > 0)
                qsort(c->files, c->n_files, sizeof *c->files, compare_files);
        for (size_t i = 0; i < c->n_files;) {
                SetFile all = c->files[i];
                for (i++; i < c->n_files && compare_files(&all, &c->files[i]) == 0; i++)
                        all.bits |= c->files[i].bits;
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
