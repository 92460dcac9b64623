/* NTFF and the .pb files of a system profile: no schema and no magic number is public, so the one thing to be seen is whether
 * top-level protobuf records can be walked to the end. That is a hint: `suspect`, never more. Payloads are passed over. */
#include <stdarg.h>
#include <stdio.h>

#include "lib/bundle/validate_private.h"

#define VARINT_BYTES_MAX 10 /* of 64 bits */
#define FIELD_NUMBER_MAX ((UINT64_C(1) << 29) - 1)

enum {
        WIRE_VARINT = 0,
        WIRE_FIXED64 = 1,
        WIRE_LENGTH = 2,
        WIRE_FIXED32 = 5
}; /* 3 and 4: groups, long gone */

static void odd(ProtobufCheck *c, const char *fmt, ...) _printf_(2, 3);
static void odd(ProtobufCheck *c, const char *fmt, ...) {
        va_list args;
        va_start(args, fmt);
        (void)vsnprintf(c->odd, sizeof c->odd, fmt, args); /* cut short at worst: it is a hint */
        va_end(args);
        c->state = PROTOBUF_ODD;
}

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
