/* libdwfl would, where there is no information, follow frame pointers and invent frames. Rules are
 * kept by address: threads wait in few places. */
#include "collectors/crash/unwind.h"

#include <dwarf.h>
#include <elf.h>
#include <errno.h>
#include <string.h>

enum {
        RULES = 4096, /* a power of two */
        STACK_MAX = 32,
        NO_CALLER = UNWIND_FRAMES_LIMIT + 1, /* beside UnwindEnd: the frame is the outermost one */
        X86_64_SP = 7,
        ARM64_LR = 30,
        ARM64_SP = 31,
        ARM64_ADDRESS_BITS = 48, /* above them a return address may be signed */
};

/* Of DWARF's registers 0, 1, …: where the kernel has them in struct user_regs_struct. */
static const uint8_t x86_64_registers[] = { 10, 12, 11, 5, 13, 14, 4, 19, 9, 8, 7, 6, 3, 2, 1, 0 };
enum { X86_64_RIP = 16, ARM64_PC = 32 };

typedef struct CachedRule {
        uint64_t address;
        bool is_set;
        int result; /* of elf_file_rule() */
        UnwindRule rule;
} CachedRule;

struct Unwinder {
        Modules *modules;
        CachedRule *rules;
};

int unwinder_new(Unwinder **ret, Modules *modules) {
        _cleanup_(unwinder_freep) Unwinder *u = calloc(1, sizeof *u);
        if (!u)
                return -ENOMEM;
        u->modules = modules;
        u->rules = calloc(RULES, sizeof *u->rules);
        if (!u->rules)
                return -ENOMEM;
        *ret = TAKE_PTR(u);
        return 0;
}

Unwinder *unwinder_free(Unwinder *u) {
        if (u)
                free(u->rules);
        free(u);
        return NULL;
}

static void set(UnwindState *s, size_t number, uint64_t value) {
        s->registers[number] = value;
        s->known |= UINT64_C(1) << number;
}

static bool is_known(const UnwindState *s, uint64_t number) {
        return number < UNWIND_REGISTERS && (s->known >> number & 1);
}

void unwind_thread_state(const CoreNotes *c, const CoreThread *thread, UnwindState *ret) {
        *ret = (UnwindState){ 0 };
        if (c->machine == EM_X86_64) {
                for (size_t i = 0; i < ELEMENTSOF(x86_64_registers); i++)
                        set(ret, i, thread->registers[x86_64_registers[i]]);
                ret->pc = thread->registers[X86_64_RIP];
                return;
        }
        for (size_t i = 0; i <= ARM64_SP; i++)
                set(ret, i, thread->registers[i]);
        ret->pc = thread->registers[ARM64_PC];
}

static unsigned stack_register(const CoreNotes *c) {
        return c->machine == EM_X86_64 ? X86_64_SP : ARM64_SP;
}

uint64_t unwind_stack_pointer(const CoreNotes *c, const UnwindState *s) {
        return s->registers[stack_register(c)];
}

/* ---- DWARF expressions ---- */

typedef struct Machine {
        Unwinder *u;
        const UnwindState *state;
        uint64_t cfa, stack[STACK_MAX];
        size_t n;
        int error; /* UNWIND_NO_RULE: not to be understood; UNWIND_NO_STACK; negative: -errno */
} Machine;

static uint64_t pop(Machine *m) {
        if (m->n == 0) {
                m->error = UNWIND_NO_RULE;
                return 0;
        }
        return m->stack[--m->n];
}

static void push(Machine *m, uint64_t v) {
        if (m->n == STACK_MAX)
                m->error = UNWIND_NO_RULE;
        else
                m->stack[m->n++] = v;
}

static void push_register(Machine *m, uint64_t number, uint64_t offset) {
        if (!is_known(m->state, number))
                m->error = UNWIND_NO_RULE;
        else
                push(m, m->state->registers[number] + offset);
}

static int read_memory(Unwinder *u, uint64_t address, void *data, size_t n) {
        int r = modules_read(u->modules, address, data, n);
        return r == CORE_MEMORY_E_LIMIT ? UNWIND_READ_LIMIT : r > 0 ? UNWIND_NO_STACK : r;
}

static void push_memory(Machine *m, uint64_t address, size_t n_bytes) {
        uint64_t v = 0;
        if (n_bytes > sizeof v)
                m->error = UNWIND_NO_RULE;
        else if (m->error == 0)
                m->error = read_memory(m->u, address, &v, n_bytes);
        push(m, v);
}

static void push_picked(Machine *m, uint64_t depth) {
        if (depth >= m->n)
                m->error = UNWIND_NO_RULE;
        else
                push(m, m->stack[m->n - 1 - depth]);
}

static uint64_t combine(Machine *m, uint8_t atom, uint64_t a, uint64_t b) {
        int64_t x = (int64_t)a, y = (int64_t)b;
        switch (atom) {
        case DW_OP_plus:
                return a + b;
        case DW_OP_minus:
                return a - b;
        case DW_OP_mul:
                return a * b;
        case DW_OP_and:
                return a & b;
        case DW_OP_or:
                return a | b;
        case DW_OP_xor:
                return a ^ b;
        case DW_OP_shl:
                return b < 64 ? a << b : 0;
        case DW_OP_shr:
                return b < 64 ? a >> b : 0;
        case DW_OP_shra:
                return (uint64_t)(x >> MIN(b, UINT64_C(63)));
        case DW_OP_eq:
                return a == b;
        case DW_OP_ne:
                return a != b;
        case DW_OP_ge:
                return x >= y;
        case DW_OP_gt:
                return x > y;
        case DW_OP_le:
                return x <= y;
        case DW_OP_lt:
                return x < y;
        default: /* branches, calls, what no frame information has */
                m->error = UNWIND_NO_RULE;
                return 0;
        }
}

static void push_of_two(Machine *m, uint8_t atom) {
        uint64_t b = pop(m), a = pop(m);
        if (atom == DW_OP_swap)
                push(m, b);
        push(m, atom == DW_OP_swap ? a : combine(m, atom, a, b));
}

static void execute(Machine *m, const UnwindOp *op) {
        uint8_t a = op->atom;
        if (a >= DW_OP_breg0 && a <= DW_OP_breg31)
                push_register(m, a - DW_OP_breg0, op->number);
        else if (a >= DW_OP_reg0 && a <= DW_OP_reg31)
                push_register(m, a - DW_OP_reg0, 0);
        else if (a >= DW_OP_lit0 && a <= DW_OP_lit31)
                push(m, a - DW_OP_lit0);
        else if (a == DW_OP_bregx)
                push_register(m, op->number, op->number2);
        else if (a == DW_OP_regx)
                push_register(m, op->number, 0);
        else if (a == DW_OP_call_frame_cfa)
                push(m, m->cfa);
        else if (a >= DW_OP_const1u && a <= DW_OP_consts)
                push(m, op->number);
        else if (a == DW_OP_deref)
                push_memory(m, pop(m), sizeof(uint64_t));
        else if (a == DW_OP_deref_size)
                push_memory(m, pop(m), op->number);
        else if (a == DW_OP_plus_uconst)
                push(m, pop(m) + op->number);
        else if (a == DW_OP_dup || a == DW_OP_over || a == DW_OP_pick)
                push_picked(m, a == DW_OP_dup ? 0 : a == DW_OP_over ? 1 : op->number);
        else if (a == DW_OP_drop)
                (void)pop(m);
        else if (a != DW_OP_nop && a != DW_OP_stack_value)
                push_of_two(m, a);
}

/* @return 0, an UnwindEnd, -errno */
static int evaluate(Unwinder *u, const UnwindState *s, uint64_t cfa, const UnwindOp *ops, size_t n,
                    uint64_t *ret) {
        Machine m = { .u = u, .state = s, .cfa = cfa };
        for (size_t i = 0; i < n && m.error == 0; i++)
                execute(&m, &ops[i]);
        *ret = pop(&m);
        return m.error;
}

/* ---- a frame's caller ---- */

/* @return 0, an UnwindEnd */
static int find_rule(Unwinder *u, uint64_t address, const UnwindRule **ret) {
        CachedRule *c = &u->rules[(address ^ address >> 12) % RULES];
        if (!c->is_set || c->address != address) {
                *c = (CachedRule){ .address = address, .is_set = true };
                Module *m = modules_at(u->modules, address);
                ElfFile *file = m ? modules_file(u->modules, m) : NULL;
                if (!modules_is_code(u->modules, address))
                        c->result = UNWIND_NOT_CODE;
                else if (m && !file)
                        c->result = UNWIND_NO_FILE;
                else if (!m || elf_file_rule(file, address - m->bias, &c->rule) != 0)
                        c->result = UNWIND_NO_RULE;
        }
        *ret = &c->rule;
        return c->result;
}

static int find_register(Unwinder *u, const UnwindState *s, const UnwindValue *v, size_t number,
                         uint64_t cfa, UnwindState *to) {
        uint64_t value;
        int r = 0;
        switch (v->how) {
        case UNWIND_UNDEFINED:
                return 0;
        case UNWIND_SAME:
                if (is_known(s, number))
                        set(to, number, s->registers[number]);
                return 0;
        case UNWIND_CFA_PLUS:
                value = cfa + (uint64_t)v->offset;
                break;
        case UNWIND_AT_CFA:
                r = read_memory(u, cfa + (uint64_t)v->offset, &value, sizeof value);
                break;
        case UNWIND_EXPRESSION:
                r = evaluate(u, s, cfa, v->ops, v->n_ops, &value);
                if (r == 0 && v->is_location)
                        r = read_memory(u, value, &value, sizeof value);
                break;
        }
        if (r == 0)
                set(to, number, value);
        return r < 0 || r == UNWIND_READ_LIMIT ? r : 0; /* what cannot be had is not known */
}

static int find_cfa(Unwinder *u, const UnwindState *s, const UnwindRule *rule, uint64_t *ret) {
        if (rule->cfa)
                return evaluate(u, s, 0, rule->cfa, rule->n_cfa, ret);
        if (!is_known(s, rule->cfa_register))
                return UNWIND_NO_RULE;
        *ret = s->registers[rule->cfa_register] + (uint64_t)rule->cfa_offset;
        return 0;
}

/* The return address's column is a register on arm64, and that of rip on x86-64, which has no other
 * use. @return 0, an UnwindEnd, NO_CALLER, -errno */
static int step(Unwinder *u, const UnwindState *s, const UnwindRule *rule, UnwindState *ret) {
        const CoreNotes *c = u->modules->memory->notes;
        const UnwindValue *to_caller = &rule->registers[rule->return_register];
        uint64_t cfa;
        int r = find_cfa(u, s, rule, &cfa);
        if (r != 0)
                return r;
        if (to_caller->how == UNWIND_UNDEFINED)
                return NO_CALLER;
        *ret = (UnwindState){ 0 };
        for (size_t i = 0; i < UNWIND_REGISTERS; i++) {
                r = find_register(u, s, &rule->registers[i], i, cfa, ret);
                if (r != 0)
                        return r;
        }
        if (!is_known(ret, stack_register(c)))
                set(ret, stack_register(c), cfa);
        if (!is_known(ret, rule->return_register))
                return to_caller->how == UNWIND_SAME ? UNWIND_NO_RULE : UNWIND_NO_STACK;
        ret->pc = ret->registers[rule->return_register];
        if (c->machine == EM_AARCH64)
                ret->pc &= (UINT64_C(1) << ARM64_ADDRESS_BITS) - 1;
        return 0;
}

/* Whether what is before an address may be a call: e8, or ff /2. */
static bool is_behind_call(Unwinder *u, uint64_t address) {
        uint8_t b[8];
        if (modules_read(u->modules, address - sizeof b, b, sizeof b) != 0)
                return false;
        const uint8_t *end = b + sizeof b;
        bool is_call = end[-5] == 0xe8;
        for (unsigned n = 2; n <= 7; n++)
                is_call = is_call || (end[-(int)n] == 0xff && (end[1 - (int)n] & 0x38) == 0x10);
        return is_call;
}

/* A call through a bad pointer has left its return address on top of the stack. */
static bool step_bad_call(Unwinder *u, const UnwindState *s, UnwindState *ret) {
        const CoreNotes *c = u->modules->memory->notes;
        *ret = *s;
        if (c->machine == EM_AARCH64)
                ret->pc = s->registers[ARM64_LR];
        else if (read_memory(u, s->registers[X86_64_SP], &ret->pc, sizeof ret->pc) != 0)
                return false;
        if (!modules_is_code(u->modules, ret->pc))
                return false;
        ret->registers[X86_64_SP] += c->machine == EM_X86_64 ? sizeof ret->pc : 0;
        return c->machine == EM_AARCH64 || is_behind_call(u, ret->pc);
}

/* A caller's frame is above, but for those that use no stack, and other stacks behind signals. */
static bool is_growing(const Unwinder *u, const UnwindState *s, const UnwindState *caller,
                       bool is_signal) {
        unsigned sp = stack_register(u->modules->memory->notes);
        if (is_signal)
                return true;
        uint64_t from = s->registers[sp], to = caller->registers[sp];
        return to > from || (to == from && caller->pc != s->pc);
}

uint64_t unwind_frame_address(const UnwindFrame *frame) {
        return frame->pc - (frame->is_return_address && frame->pc > 0);
}

static void add_interrupt(const Unwinder *u, UnwindChain *chain, const UnwindState *handler,
                          const UnwindState *interrupted) {
        if (chain->n_interrupts < UNWIND_INTERRUPTS_MAX)
                chain->interrupts[chain->n_interrupts++] =
                        (UnwindInterrupt){ *interrupted,
                                           unwind_stack_pointer(u->modules->memory->notes, handler),
                                           chain->n };
}

int unwind_chain(Unwinder *u, const UnwindState *thread, UnwindChain *ret) {
        UnwindState state = *thread, caller;
        bool is_return_address = false;
        ret->n = ret->n_interrupts = 0;
        for (;;) {
                UnwindFrame *f = &ret->frames[ret->n++];
                const UnwindRule *rule;
                *f = (UnwindFrame){ .pc = state.pc, .is_return_address = is_return_address };
                int r = find_rule(u, unwind_frame_address(f), &rule);
                if (r == 0) {
                        f->is_signal_frame = rule->is_signal_frame;
                        r = step(u, &state, rule, &caller);
                }
                if (r == UNWIND_NOT_CODE && ret->n == 1 && step_bad_call(u, &state, &caller)) {
                        f->is_not_code = true;
                        r = 0;
                }
                if (r == 0 && caller.pc == 0)
                        r = UNWIND_NO_RETURN;
                else if (r == 0 && !is_growing(u, &state, &caller, f->is_signal_frame))
                        r = UNWIND_NOT_GROWING;
                else if (r == 0 && ret->n == UNWIND_FRAMES_MAX)
                        r = UNWIND_FRAMES_LIMIT;
                else if (r == 0) {
                        is_return_address = !f->is_signal_frame;
                        if (f->is_signal_frame)
                                add_interrupt(u, ret, &state, &caller);
                        state = caller;
                        continue;
                }
                ret->end = r == NO_CALLER ? UNWIND_COMPLETE : (UnwindEnd)MAX(r, 0);
                return MIN(r, 0);
        }
}

const UnwindEndWords unwind_ends[] = {
        [UNWIND_COMPLETE] = { "complete", "" },
        [UNWIND_NO_FILE] = { "no-file", "its program or library was not found" },
        [UNWIND_NO_RULE] = { "no-frame-information", "it has no call frame information" },
        [UNWIND_NOT_CODE] = { "not-code", "its address is outside of code" },
        [UNWIND_NO_STACK] = { "no-stack", "the core does not contain the stack from here on" },
        [UNWIND_READ_LIMIT] = { "read-limit",
                                "the limit of what is read of a core (64 MiB) was reached" },
        [UNWIND_NOT_GROWING] = { "damaged-stack", "its caller is not above it on the stack" },
        [UNWIND_NO_RETURN] = { "no-return-address", "its return address is 0" },
        [UNWIND_FRAMES_LIMIT] = { "limit", "at most 256 frames are read" },
};
