/* NTFF and the .pb files of a system profile: no schema and no magic number is public, so the one thing to be seen is whether
 * top-level protobuf records can be walked to the end. That is a hint: `suspect`, never more. Payloads are passed over. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/digest.h"
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
}; /* 3 and 4: groups, long gone */

static void odd(ProtobufCheck *c, const char *fmt, ...) {
        va_list args;
        va_start(args, fmt);
        (void)vsnprintf(c->odd, sizeof c->odd, fmt, args); /* cut short at worst: it is a hint */
        va_end(args);
        c->state = PROTOBUF_ODD;
}

static void skip(ProtobufCheck *c, uint64_t n);

static void tag_read(ProtobufCheck *c) {
        const uint64_t number = c->value >> 3;
        if (number == 0 || number > FIELD_NUMBER_MAX) {
                odd(c, "no protobuf record at offset %llu: field number %llu",
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
                odd(c, "no protobuf record at offset %llu: wire type %u",
                    (unsigned long long)c->record_offset, (unsigned)(c->value & 7));
        }
}

/* @param n_left  bytes of the file behind the length */
static void length_read(ProtobufCheck *c, uint64_t n_left) {
        if (c->value > n_left) {
                odd(c, "the record at offset %llu has %llu bytes by its length, but %llu follow",
                    (unsigned long long)c->record_offset, (unsigned long long)c->value,
                    (unsigned long long)n_left);
                return;
        }
        c->skip = c->value;
        c->state = c->skip > 0 ? PROTOBUF_SKIP : PROTOBUF_TAG;
}

/* One byte of a tag, a value or a length. @param offset  of that byte */
static void varint_take(ProtobufCheck *c, uint8_t byte, uint64_t offset, uint64_t size) {
        if (c->n_varint == 0) {
                c->value = 0;
                if (c->state == PROTOBUF_TAG)
                        c->record_offset = offset;
        }
        if (c->n_varint == VARINT_BYTES_MAX - 1 && byte > 1) { /* the 64th bit is the last */
                odd(c, "no protobuf record at offset %llu: a number of more than 64 bits",
                    (unsigned long long)c->record_offset);
                return;
        }
        c->value |= (uint64_t)(byte & 0x7f) << (7 * c->n_varint);
        c->n_varint++;
        if (byte & 0x80)
                return;

        c->n_varint = 0;
        if (c->state == PROTOBUF_TAG)
                tag_read(c);
        else if (c->state == PROTOBUF_LENGTH)
                length_read(c, size - offset - 1);
        else
                c->state = PROTOBUF_TAG;
}

static void skip(ProtobufCheck *c, uint64_t n) {
        c->skip -= n;
        if (c->skip == 0)
                c->state = PROTOBUF_TAG;
}

static void protobuf_feed(Validator *v, const uint8_t *data, size_t n) {
        ProtobufCheck *c = &v->protobuf;
        size_t i = 0;
        while (i < n && c->state != PROTOBUF_ODD) {
                if (c->state == PROTOBUF_SKIP) {
                        uint64_t n_skip = MIN(c->skip, (uint64_t)(n - i));
                        skip(c, n_skip);
                        i += (size_t)n_skip;
                } else {
                        varint_take(c, data[i], v->offset + i, v->size);
                        i++;
                }
        }
}

/* A zero ends a varint, is no tag, and all else is skipped: at most a few steps. */
static void protobuf_feed_zeros(Validator *v, uint64_t n) {
        ProtobufCheck *c = &v->protobuf;
        uint64_t i = 0;
        while (i < n && c->state != PROTOBUF_ODD) {
                if (c->state == PROTOBUF_SKIP) {
                        uint64_t n_skip = MIN(c->skip, n - i);
                        skip(c, n_skip);
                        i += n_skip;
                } else {
                        varint_take(c, 0, v->offset + i, v->size);
                        i++;
                }
        }
}

static Verdict protobuf_finish(Validator *v, StrBuf *detail) {
        const ProtobufCheck *c = &v->protobuf;
        if (c->state == PROTOBUF_ODD) {
                strbuf_add(detail, c->odd);
                return VERDICT_SUSPECT;
        }
        if (c->state != PROTOBUF_TAG || c->n_varint > 0) {
                strbuf_addf(detail, "ends in the middle of the protobuf record at offset %llu",
                            (unsigned long long)c->record_offset);
                return VERDICT_SUSPECT;
        }
        return VERDICT_OK;
}

static Verdict protobuf_quick(const Validator *v) {
        (void)v;
        return VERDICT_OK; /* a hint is no reason to wait */
}

static uint64_t protobuf_unneeded(const Validator *v) {
        const ProtobufCheck *c = &v->protobuf;
        if (c->state == PROTOBUF_ODD)
                return UINT64_MAX;
        return c->state == PROTOBUF_SKIP ? c->skip : 0;
}

static void protobuf_done(Validator *v) {
        (void)v;
}

const ValidatorOps validator_protobuf_ops = { protobuf_feed,  protobuf_feed_zeros, protobuf_finish,
                                              protobuf_quick, protobuf_unneeded,   protobuf_done };

/* What a set of profile files lacks, by the names that the Neuron documentation gives them. Only numbers are kept, and each
 * directory's name once; members may come in any order. */

#define ENTRIES_MAX 1000000
#define REASONS_MAX 20

/* The files of a system profile: where one is, all four are expected. */
static const char *const trace_names[] = { "ntrace.pb", "trace_info.pb", "cpu_util.pb",
                                           "host_mem.pb" };

#define TRACES_ALL ((1u << ELEMENTSOF(trace_names)) - 1)

typedef struct Entry {
        uint64_t hash;           /* of what identifies it; 0 = free */
        uint64_t number;         /* neffs: `<hash>` of the names */
        uint32_t directory;      /* index into directories' names */
        bool has_ntff, has_neff; /* neffs */
        uint8_t traces;          /* directories: bit per trace_names */
} Entry;

typedef struct Table { /* open addressing, a power of two, at most half full */
        Entry *entries;
        size_t n, n_allocated;
} Table;

struct SetCheck {
        SourceKind source;
        Table directories, neffs;
        char **names; /* of the directories, in order of arrival */
        size_t n_names, n_names_allocated;
        bool is_too_many; /* more than ENTRIES_MAX: what is not known is not complained about */
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
        for (size_t i = 0; i < c->n_names; i++)
                free(c->names[i]);
        free(c->names);
        free(c->directories.entries);
        free(c->neffs.entries);
        free(c);
        return NULL;
}

/* 64 bits of SHA-256: names come from outside, and nobody shall choose them so that they collide. */
static uint64_t hash_of(const void *data, size_t n) {
        uint8_t digest[SHA256_SIZE];
        uint64_t hash;
        sha256_of(data, n, digest);
        memcpy(&hash, digest, sizeof hash);
        return hash ? hash : 1;
}

static Entry *table_place(const Table *t, uint64_t hash) {
        size_t i = (size_t)hash & (t->n_allocated - 1);
        while (t->entries[i].hash != 0 && t->entries[i].hash != hash)
                i = (i + 1) & (t->n_allocated - 1);
        return &t->entries[i];
}

static int table_grow(Table *t) {
        Table bigger = { .n = t->n, .n_allocated = t->n_allocated ? 2 * t->n_allocated : 64 };
        bigger.entries = calloc(bigger.n_allocated, sizeof *bigger.entries);
        if (!bigger.entries)
                return -ENOMEM;
        for (size_t i = 0; i < t->n_allocated; i++)
                if (t->entries[i].hash != 0)
                        *table_place(&bigger, t->entries[i].hash) = t->entries[i];
        free(t->entries);
        *t = bigger;
        return 0;
}

/* Finds an entry or makes one, all zero but the hash. @return 0, SET_E_FULL, -ENOMEM */
enum { SET_E_FULL = 1 };

static int table_get(Table *t, uint64_t hash, Entry **ret) {
        if (2 * (t->n + 1) > t->n_allocated) {
                int r = table_grow(t);
                if (r < 0)
                        return r;
        }
        Entry *e = table_place(t, hash);
        if (e->hash == 0) {
                if (t->n == ENTRIES_MAX)
                        return SET_E_FULL;
                e->hash = hash;
                t->n++;
        }
        *ret = e;
        return 0;
}

static int names_add(SetCheck *c, const char *path, size_t n) {
        if (c->n_names == c->n_names_allocated) {
                size_t n_wanted = c->n_names ? 2 * c->n_names : 16;
                char **names = reallocarray(c->names, n_wanted, sizeof *names);
                if (!names)
                        return -ENOMEM;
                c->names = names;
                c->n_names_allocated = n_wanted;
        }
        c->names[c->n_names] = strndup(path, n);
        if (!c->names[c->n_names])
                return -ENOMEM;
        c->n_names++;
        return 0;
}

/* @param n  length of the directory's part of path, 0 = the bundle's own directory */
static int directory_get(SetCheck *c, const char *path, size_t n, Entry **ret) {
        const size_t n_before = c->directories.n;
        Entry *e;
        int r = table_get(&c->directories, hash_of(path, n), &e);
        if (r != 0)
                return r;
        if (c->directories.n > n_before) {
                e->directory = (uint32_t)c->n_names;
                r = names_add(c, path, n);
                if (r < 0) {
                        e->hash = 0; /* nothing has been placed behind it yet */
                        c->directories.n--;
                        return r;
                }
        }
        *ret = e;
        return 0;
}

static int neff_get(SetCheck *c, uint32_t directory, uint64_t number, Entry **ret) {
        const struct { uint64_t number, directory; } key = { number, directory };
        int r = table_get(&c->neffs, hash_of(&key, sizeof key), ret);
        if (r != 0)
                return r;
        (*ret)->directory = directory;
        (*ret)->number = number;
        return 0;
}

/* Session mode's `neff_<hash>_vnc_<n>.neff` pairs with no single ntff; only model mode's `neff_<hash>.neff` counts. */
static bool is_model_neff(const char *name, const DumpName *parsed) {
        return parsed->kind == MEMBER_NEFF && parsed->has_neff_number && !strstr(name, "_vnc_");
}

static unsigned trace_bit(const char *name) {
        for (unsigned i = 0; i < ELEMENTSOF(trace_names); i++)
                if (strcmp(name, trace_names[i]) == 0)
                        return 1u << i;
        return 0;
}

int set_check_add(SetCheck *c, const char *path, const DumpName *parsed, uint64_t size_bytes) {
        (void)size_bytes; /* zero bytes are normal for some of them; the verdict of the member says so */
        if (c->source != SOURCE_NEURON_PROFILE)
                return 0;

        const char *name = path_name(path);
        const bool is_ntff = parsed->kind == MEMBER_NTFF && parsed->has_neff_number;
        const bool is_neff = is_model_neff(name, parsed);
        const unsigned trace = trace_bit(name);
        if (!is_ntff && !is_neff && trace == 0)
                return 0;

        Entry *directory, *neff;
        int r = directory_get(c, path, name > path ? (size_t)(name - path - 1) : 0, &directory);
        if (r == 0) {
                directory->traces |= (uint8_t)trace;
                if (is_ntff || is_neff) {
                        r = neff_get(c, directory->directory, parsed->neff_number, &neff);
                        if (r == 0) {
                                neff->has_ntff |= is_ntff;
                                neff->has_neff |= is_neff;
                        }
                }
        }
        if (r == SET_E_FULL) {
                c->is_too_many = true;
                return 0;
        }
        return r;
}

typedef struct Reasons {
        void (*on_reason)(const char *reason, void *userdata);
        void *userdata;
        uint64_t n;
} Reasons;

/* Told while there are few, counted afterwards. */
static int reason_tell(Reasons *reasons, StrBuf *text) {
        int r = strbuf_error(text);
        if (r == 0 && reasons->n++ < REASONS_MAX)
                reasons->on_reason(text->text, reasons->userdata);
        strbuf_clear(text);
        return r;
}

static int entry_compare(const void *a, const void *b) {
        const Entry *x = a, *y = b;
        if (x->directory != y->directory)
                return x->directory < y->directory ? -1 : 1;
        return x->number < y->number ? -1 : x->number > y->number;
}

/* By directory and number, so that the same set always says the same; the table is done with. */
static void table_sort(Table *t) {
        size_t n = 0;
        for (size_t i = 0; i < t->n_allocated; i++)
                if (t->entries[i].hash != 0)
                        t->entries[n++] = t->entries[i];
        if (n > 0)
                qsort(t->entries, n, sizeof *t->entries, entry_compare);
}

static int tell_neffs(SetCheck *c, Reasons *reasons, StrBuf *text) {
        for (size_t i = 0; i < c->neffs.n; i++) {
                const Entry *e = &c->neffs.entries[i];
                if (!e->has_ntff || e->has_neff)
                        continue;
                _cleanup_free_ char *name = path_escape(c->names[e->directory]);
                if (!name)
                        return -ENOMEM;
                strbuf_addf(text, "ntff '%s%s%llu_*.ntff' has no neff_%llu.neff beside it", name,
                            name[0] ? "/" : "", (unsigned long long)e->number,
                            (unsigned long long)e->number);
                int r = reason_tell(reasons, text);
                if (r < 0)
                        return r;
        }
        return 0;
}

static int tell_traces(SetCheck *c, Reasons *reasons, StrBuf *text) {
        for (size_t i = 0; i < c->directories.n; i++) {
                const Entry *e = &c->directories.entries[i];
                if (e->traces == 0 || e->traces == TRACES_ALL)
                        continue;
                _cleanup_free_ char *name = path_escape(c->names[e->directory]);
                if (!name)
                        return -ENOMEM;
                strbuf_addf(text, "system profile%s%s%s has no ", name[0] ? " in '" : "", name,
                            name[0] ? "'" : "");
                const char *comma = "";
                for (unsigned k = 0; k < ELEMENTSOF(trace_names); k++)
                        if (!(e->traces & 1u << k)) {
                                strbuf_addf(text, "%s%s", comma, trace_names[k]);
                                comma = ", ";
                        }
                int r = reason_tell(reasons, text);
                if (r < 0)
                        return r;
        }
        return 0;
}

int set_check_finish(SetCheck *c, void (*on_reason)(const char *reason, void *userdata),
                     void *userdata) {
        Reasons reasons = { .on_reason = on_reason, .userdata = userdata };
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;

        if (c->is_too_many)
                return 0; /* a NEFF may be among those not kept */

        table_sort(&c->neffs);
        table_sort(&c->directories);
        int r = tell_neffs(c, &reasons, &text);
        if (r == 0)
                r = tell_traces(c, &reasons, &text);
        if (r < 0)
                return r;
        if (reasons.n > REASONS_MAX) {
                strbuf_addf(&text, "and %llu more", (unsigned long long)(reasons.n - REASONS_MAX));
                r = strbuf_error(&text);
                if (r == 0)
                        on_reason(text.text, userdata);
        }
        return r;
}
