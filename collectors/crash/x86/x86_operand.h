/* The memory operand of an x86-64 instruction. Pure. @see Intel SDM, volume 2, chapter 2 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct X86Operand { /* base + (index << shift) + displacement */
        int base, index;    /* by DWARF's numbers; index: -1 = none */
        unsigned shift;
        int32_t displacement;
} X86Operand;

/** @return whether it is understood and has one with a base register. Not understood: EVEX
 * (AVX-512), the segments FS and GS, addresses of 32 bits, what has its operand by its name
 * (`push`, `movs`) */
bool x86_operand_decode(const uint8_t *code, size_t n, X86Operand *ret);

/** @return the register that a call or a jump goes to, by DWARF's number; -1: it is no such one */
int x86_jump_register(const uint8_t *code, size_t n);
