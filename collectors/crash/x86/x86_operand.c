/* The memory operand of an x86-64 instruction.
 *
 * It decodes only as much as the question needs: prefixes, REX or VEX, whether the opcode has a
 * ModRM byte, and base, index and displacement. An instruction that it does not understand has no
 * operand; fault.c then guesses from the registers. @see Intel SDM, volume 2, chapter 2 */
#include "collectors/crash/x86/x86_operand.h"

#include <string.h>

/* A bit for each opcode that is followed by a ModRM byte, sixteen a row, the lowest bit first.
 * Volume 2, appendix A, tables. */
static const uint16_t one_byte[16] = {
        0x0f0f, 0x0f0f, 0x0f0f, 0x0f0f, /* add, or, … cmp */
        0,      0,      0x0a08, 0,      /* movslq, imul */
        0x7fff, 0,      0,      0,      /* groups, mov, lea; not 8f: XOP */
        0x00c3, 0xff0f, 0,      0xc0c0, /* shifts, mov, x87, groups */
};
static const uint16_t behind_0f[16] = {
        0xa00f, 0xffff, 0xff0f, 0,      /* sse moves, hint nops */
        0xffff, 0xffff, 0xffff, 0xff7f, /* cmov, sse, mmx */
        0,      0xffff, 0xf838, 0xffff, /* setcc, bt, shld, cmpxchg, movzx */
        0x00ff, 0xffff, 0xffff, 0xffff, /* xadd, mmx */
};

enum { REX_B = 1, REX_X = 2, LEA = 0x8d, VZERO = 0x77, GATHER = 0x90, GATHER_END = 0x93 };

typedef struct Reader {
        const uint8_t *p, *end;
        uint8_t rex;
        bool is_short; /* there was not enough */
} Reader;

static unsigned next(Reader *d) {
        if (d->p == d->end) {
                d->is_short = true;
                return 0;
        }
        return *d->p++;
}

static bool is_in(const uint16_t table[16], unsigned opcode) {
        return table[opcode >> 4] >> (opcode & 15) & 1;
}

/* VEX has the bits of REX inverted, and a number for what is else told by 0f, 0f 38 and 0f 3a. */
static bool skip_vex(Reader *d, unsigned first) {
        unsigned v = next(d), map = 1;
        if (first == 0xc4) {
                d->rex = (uint8_t)(~v >> 5 & 3);
                map = v & 31;
                (void)next(d);
        }
        unsigned opcode = next(d);
        bool is_gather = map == 2 && opcode >= GATHER && opcode <= GATHER_END;
        return map >= 1 && map <= 3 && !(map == 1 && opcode == VZERO) && !is_gather;
}

/* @return whether a ModRM byte comes next */
static bool skip_opcode(Reader *d) {
        static const char prefixes[] = "\x66\xf2\xf3\x2e\x36\x3e\x26\xf0";
        unsigned b = next(d);
        while (b != 0 && strchr(prefixes, (int)b))
                b = next(d);
        if (b == 0xc4 || b == 0xc5)
                return skip_vex(d, b);
        if ((b & 0xf0) == 0x40) {
                d->rex = (uint8_t)(b & 15);
                b = next(d);
        }
        if (b != 0x0f)
                return b != LEA && is_in(one_byte, b);
        b = next(d);
        if (b == 0x38 || b == 0x3a)
                (void)next(d);
        return is_in(behind_0f, b) || b == 0x38 || b == 0x3a;
}

static const uint8_t dwarf_of[] = { 0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15 };

bool x86_operand_decode(const uint8_t *code, size_t n, X86Operand *ret) {
        Reader d = { .p = code, .end = code + n };
        if (!skip_opcode(&d))
                return false;
        unsigned modrm = next(&d), mod = modrm >> 6, base = modrm & 7;
        *ret = (X86Operand){ .index = -1 };
        if (mod == 3 || (mod == 0 && base == 5)) /* a register, or relative to rip */
                return false;
        if (base == 4) {
                unsigned sib = next(&d), index = (sib >> 3 & 7) | (d.rex & REX_X ? 8 : 0);
                base = sib & 7;
                ret->shift = sib >> 6;
                if (mod == 0 && base == 5)
                        return false;
                if (index != 4)
                        ret->index = dwarf_of[index];
        }
        uint32_t displacement = 0;
        if (mod == 1)
                displacement = (uint32_t)(int8_t)next(&d);
        else if (mod == 2)
                for (unsigned i = 0; i < 4; i++)
                        displacement |= next(&d) << 8 * i;
        ret->displacement = (int32_t)displacement;
        ret->base = dwarf_of[base | (d.rex & REX_B ? 8U : 0U)];
        return !d.is_short;
}

/* ff /2 and ff /4, which may have bnd, notrack and REX before them. */
int x86_jump_register(const uint8_t *code, size_t n) {
        Reader d = { .p = code, .end = code + n };
        unsigned b = next(&d);
        while (b == 0xf2 || b == 0x3e)
                b = next(&d);
        if ((b & 0xf0) == 0x40) {
                d.rex = (uint8_t)(b & 15);
                b = next(&d);
        }
        unsigned modrm = next(&d), what = modrm >> 3 & 7;
        if (b != 0xff || modrm >> 6 != 3 || (what != 2 && what != 4) || d.is_short)
                return -1;
        return dwarf_of[(modrm & 7) | (d.rex & REX_B ? 8U : 0U)];
}
