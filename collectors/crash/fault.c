/* What happened in the thread that crashed.
 *
 * The signal is the first one: where a handler has raised it again, the frame of the handler has
 * the signal that it was called for. The registers and the code at that point tell which address
 * was accessed: the instruction is decoded (x86/x86_operand.c), or the register whose value is
 * nearest to the address is named. What an address points at is decided by the segments of the
 * core. The message of abort(3) is read from the C library.
 *
 * Which conclusion follows is decided in verdict.c; the call chain comes from threads.c. */
#include "collectors/crash/fault.h"

#include <elf.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>

#include "collectors/crash/x86/x86_operand.h"
#include "lib/base/digest.h"
#include "lib/base/json_out.h"
#include "lib/base/path.h"
#include "lib/base/redact.h"

enum {
        SMALL_OFFSET = 4096,
        STACK_REACH = 128 << 10, /* how far from sp what was pushed can be */
        GUARD_BYTES_MAX = 1 << 20,
        FRAME_BYTES_MAX = 64 << 20,
        BRK_GAP_MAX = 1 << 30, /* the kernel's random gap between a program and its heap */
        /* struct rt_sigframe: what lies where from the frame's sp */
        X86_64_SIGINFO = 304,
        X86_64_TRAP = 200, /* uc_mcontext: trapno, oldmask, cr2 */
        ARM64_SIGINFO = 0,
        TRAP_STACK_SEGMENT = 12,
        TRAP_PROTECTION = 13,
        TRAP_PAGE = 14,
        ABORT_TEXT = 4,      /* struct abort_msg_s: a size, then the text. glibc, debug/ */
        X86_64_FS_BASE = 21, /* of struct user_regs_struct */
};

static const char *const x86_64_names[] = {
        "rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp",
        "r8",  "r9",  "r10", "r11", "r12", "r13", "r14", "r15"
};

static const char *register_name(const Fault *f, size_t number, char buf[8]) {
        if (f->machine == EM_X86_64)
                return x86_64_names[number];
        (void)snprintf(buf, 8, number == 31 ? "sp" : "x%zu", number);
        return buf;
}

static size_t n_registers(const Fault *f) {
        return f->machine == EM_X86_64 ? ELEMENTSOF(x86_64_names) : 32;
}

/* ---- where an address points ---- */

/* 48 bits of address, with 5-level page tables 57, of which programs get more only on request.
 * arm64 ignores the uppermost byte, which may be a tag. */
static bool is_canonical(const Fault *f, uint64_t address) {
        uint64_t top = address >> 47;
        if (f->machine != EM_X86_64)
                return (address >> 48 & 0xff) == 0 || address >> 48 == 0xffff;
        return top == 0 || top == 0x1ffff;
}

/* Variables that begin as 0 lie behind what is mapped of a file. */
static const Module *module_of(const Modules *modules, uint64_t address) {
        const Module *m = modules_at(modules, address);
        const CoreSegment *s = m ? NULL : core_notes_segment(modules->memory->notes, address);
        if (!s || s->address == 0)
                return m;
        m = modules_at(modules, s->address - 1);
        return m && m->file && elf_file_flags(m->file, address - m->bias) & PF_W ? m : NULL;
}

static bool is_heap(const Modules *modules, const CoreSegment *s) {
        for (size_t i = 0; i < modules->n; i++) {
                const Module *m = &modules->items[i];
                if (m->is_program) /* what is next to it may be its own, which its file says */
                        return s->address >= m->end + !m->file &&
                               s->address - m->end < BRK_GAP_MAX &&
                               (i + 1 == modules->n || s->address < modules->items[i + 1].start);
        }
        return false;
}

FaultTarget fault_target(const Fault *f, const Modules *modules, uint64_t address) {
        const CoreNotes *c = modules->memory->notes;
        const CoreSegment *s = core_notes_segment(c, address);
        if (address < FAULT_NULL_PAGE)
                return FAULT_NULL;
        if (!is_canonical(f, address))
                return FAULT_NON_CANONICAL;
        if (!s && !core_notes_mapping(c, address))
                return FAULT_UNMAPPED;
        if (s && s == f->stack)
                return FAULT_STACK;
        if (module_of(modules, address))
                return FAULT_MODULE;
        if (!s || s->flags == 0)
                return FAULT_GUARD;
        if (!(s->flags & PF_W))
                return FAULT_OTHER;
        return is_heap(modules, s) ? FAULT_HEAP : FAULT_ANONYMOUS;
}

static const char *const target_names[] = {
        "unmapped", "null page", "non-canonical",    "guard",       "stack",
        "heap",     "library",   "anonymous memory", "other memory"
};

void fault_add_target(const Fault *f, const Modules *modules, uint64_t address, StrBuf *b) {
        FaultTarget t = fault_target(f, modules, address);
        const Module *m = t == FAULT_MODULE ? module_of(modules, address) : NULL;
        if (m) {
                strbuf_add(b, path_name(m->path));
                strbuf_addf(b, "+0x%" PRIx64, address - (m->file ? m->bias : m->start));
        } else
                strbuf_add(b, target_names[t]);
        bool is_memory = t == FAULT_STACK || t == FAULT_HEAP || t == FAULT_ANONYMOUS;
        if (is_memory && address % 8 != 0)
                strbuf_add(b, ", misaligned");
}

/* ---- the address that the instruction used ---- */

/* Of what the kernel gives no address: whether an access there fails as it did. */
static bool is_bad(const Fault *f, const Modules *modules, uint64_t address) {
        FaultTarget t = fault_target(f, modules, address);
        if (f->signal.code == SI_KERNEL)
                return t == FAULT_NON_CANONICAL;
        return t == FAULT_NULL || t == FAULT_NON_CANONICAL || t == FAULT_UNMAPPED;
}

/* An instruction that says where it went is believed when the kernel says the same, or, where that
 * says nothing (an address that is not canonical; a signal that was raised again), when it must
 * have failed there. */
static bool decode(Fault *f, const Modules *modules) {
        const uint64_t *registers = f->state.registers;
        X86Operand o;
        bool may_be = f->signal.number == SIGSEGV || f->signal.number == SIGBUS;
        bool is_hidden = f->signal.code == SI_KERNEL || f->is_behind_handler;
        int jump = x86_jump_register(f->code, f->n_code);
        if (!may_be || f->machine != EM_X86_64)
                return false;
        if (jump >= 0)
                o = (X86Operand){ .base = jump, .index = -1 };
        else if (!x86_operand_decode(f->code, f->n_code, &o))
                return false;
        uint64_t address = registers[o.base] + (uint64_t)(int64_t)o.displacement +
                           (o.index < 0 ? 0 : registers[o.index] << o.shift);
        if (f->has_address ? address > f->signal.address || f->signal.address - address >= 64
                           : !is_hidden || !is_bad(f, modules, address))
                return false;
        f->is_decoded = true;
        f->effective = address;
        f->base_register = o.base;
        f->base_offset = (int64_t)(address - registers[o.base]);
        if (!f->has_address && f->signal.code != SI_KERNEL) {
                f->signal.address = address;
                f->has_address = true;
        }
        return true;
}

/* Without one: the register that is nearest. */
static void find_nearest(Fault *f) {
        uint64_t best = SMALL_OFFSET;
        bool may_be = f->signal.number == SIGSEGV || f->signal.number == SIGBUS;
        for (size_t i = 0; i < n_registers(f) && f->has_address && may_be; i++) {
                uint64_t distance = f->signal.address - f->state.registers[i];
                distance = MIN(distance, -distance);
                if (!(f->state.known >> i & 1) || distance >= best)
                        continue;
                best = distance;
                f->base_register = (int)i;
                f->base_offset = (int64_t)(f->signal.address - f->state.registers[i]);
        }
}

/* ---- inspecting ---- */

/* A handler that raises its signal while that is blocked returns first, to where it came from: not
 * behind a system call, as one would be who raised it himself. Another thread may have sent it as
 * well: decode() decides. */
static int check_raised_on_return(Fault *f, Modules *modules) {
        const CoreNotes *c = modules->memory->notes;
        uint8_t before[2];
        if (c->machine != EM_X86_64 || !f->signal.is_known || f->signal.code > 0 ||
            (uint32_t)f->signal.address != c->pid ||
            (f->signal.number != SIGSEGV && f->signal.number != SIGBUS))
                return 0;
        int r = modules_read(modules, f->state.pc - sizeof before, before, sizeof before);
        f->is_behind_handler = r == 0 && (before[0] != 0x0f || before[1] != 0x05);
        return MIN(r, 0);
}

static int read_siginfo(CoreMemory *memory, const UnwindInterrupt *from, CoreSignal *ret) {
        uint8_t data[24];
        uint64_t at = from->frame_address +
                      (memory->notes->machine == EM_X86_64 ? X86_64_SIGINFO : ARM64_SIGINFO);
        int r = core_memory_read(memory, at, data, sizeof data);
        if (r != 0)
                return r;
        *ret = (CoreSignal){ .is_known = true };
        memcpy(&ret->number, data, sizeof ret->number);
        memcpy(&ret->code, data + 8, sizeof ret->code);
        memcpy(&ret->address, data + 16, sizeof ret->address);
        return 0;
}

/* A handler without SA_SIGINFO gets none, but the processor's reason is kept for all. */
static int read_trap(CoreMemory *memory, const UnwindInterrupt *from, CoreSignal *s) {
        uint64_t trap[3];
        bool may_be = memory->notes->machine == EM_X86_64 &&
                      (s->number == SIGSEGV || s->number == SIGBUS);
        int r = may_be ? core_memory_read(memory, from->frame_address + X86_64_TRAP, trap,
                                          sizeof trap)
                       : CORE_MEMORY_E_ABSENT;
        if (r != 0)
                return r;
        s->is_known = true;
        s->address = trap[2];
        if (trap[0] == TRAP_PROTECTION || trap[0] == TRAP_STACK_SEGMENT)
                s->code = SI_KERNEL;
        else if (trap[0] != TRAP_PAGE)
                return CORE_MEMORY_E_ABSENT;
        else if (s->number == SIGBUS)
                s->code = BUS_ADRERR;
        else
                s->code = core_notes_segment(memory->notes, s->address) ? SEGV_ACCERR : SEGV_MAPERR;
        return 0;
}

/* Handlers may be behind one another. The one of another signal did not raise this one again: it
 * is where it happened. */
static int find_first_signal(Fault *f, Modules *modules, const Threads *t) {
        int number = f->signal.number;
        for (size_t i = 0; i < t->n_interrupts && f->signal.code <= 0; i++) {
                CoreSignal first = { 0 };
                int r = read_siginfo(modules->memory, &t->interrupts[i], &first);
                if (r == 0 && first.number != number) {
                        first = (CoreSignal){ .number = number };
                        r = read_trap(modules->memory, &t->interrupts[i], &first);
                }
                if (r != 0)
                        return MIN(r, 0);
                f->signal = first;
                f->state = t->interrupts[i].state;
                f->first_frame = t->interrupts[i].frame;
                f->is_behind_handler = true;
        }
        return 0;
}

static int set_signal(Fault *f, Modules *modules, const Threads *t) {
        const CoreNotes *c = modules->memory->notes;
        f->signal = c->signal;
        f->state = t->crashed;
        if (!f->signal.is_known)
                f->signal.number = c->n_threads > 0 ? c->threads[0].signal : 0;
        int r = find_first_signal(f, modules, t);
        if (r == 0 && !f->is_behind_handler)
                r = check_raised_on_return(f, modules);
        int n = f->signal.number, code = f->signal.code;
        f->has_address =
                f->signal.is_known && code > 0 && code != SI_KERNEL &&
                (n == SIGSEGV || n == SIGBUS || n == SIGILL || n == SIGFPE || n == SIGTRAP);
        return MIN(r, 0);
}

/* The stack of a frame that did not fit begins above sp. */
static const CoreSegment *find_stack(const CoreNotes *c, uint64_t sp) {
        const CoreSegment *s = core_notes_segment(c, sp);
        for (size_t i = 0; i < c->n_segments && (!s || s->flags == 0); i++)
                if (c->segments[i].address > sp && c->segments[i].flags != 0) {
                        s = &c->segments[i];
                        if (s->address - sp > FRAME_BYTES_MAX)
                                return NULL;
                }
        return s && s->flags & PF_W ? s : NULL;
}

/* The kernel puts AT_RANDOM's bytes on the first thread's stack, the C library what a thread calls
 * its own on those of others. A bad stack pointer is in neither. */
static bool is_own_stack(const CoreNotes *c, const Fault *f) {
        if (c->n_threads == 0)
                return false;
        if (c->threads[0].tid == c->pid)
                return f->is_first_stack;
        if (c->machine != EM_X86_64)
                return true; /* the register is in a note of its own, which is not read */
        uint64_t mark = c->threads[0].registers[X86_64_FS_BASE] - f->stack->address;
        return mark < f->stack->memory_bytes;
}

static void set_stack(Fault *f, const CoreNotes *c) {
        uint64_t sp = unwind_stack_pointer(c, &f->state), at = f->signal.address;
        f->stack = find_stack(c, sp);
        f->is_first_stack = f->stack && core_notes_auxv(c, AT_RANDOM) - f->stack->address <
                                                f->stack->memory_bytes;
        if (!f->stack || !f->has_address || f->signal.number != SIGSEGV ||
            at >= f->stack->address || MIN(at - sp, sp - at) > STACK_REACH || !is_own_stack(c, f))
                return;
        f->is_stack_exhausted = sp < f->stack->address || f->stack->address - at <= GUARD_BYTES_MAX;
}

/* Bytes of code only: pc may be anywhere. */
static int set_code(Fault *f, Modules *modules) {
        uint64_t pc = f->state.pc;
        if (!modules_is_code(modules, pc))
                return 0;
        for (f->n_code = FAULT_CODE_BYTES; f->n_code > 0; f->n_code--) {
                int r = modules_is_code(modules, pc + f->n_code - 1)
                                ? modules_read(modules, pc, f->code, f->n_code)
                                : CORE_MEMORY_E_UNMAPPED;
                if (r <= 0)
                        return r;
        }
        return 0;
}

/* The C library keeps what it printed before abort(3): "free(): double free detected …". */
static int set_message(Fault *f, Modules *modules) {
        for (size_t i = 0; i < modules->n; i++) {
                Module *m = &modules->items[i];
                bool may_have_it =
                        m->is_program || strncmp(path_name(m->path), "libc.so.6", 9) == 0;
                ElfFile *file = may_have_it ? modules_file(modules, m) : NULL;
                uint64_t at = file ? elf_file_find(file, "__abort_msg") : 0, text = 0;
                if (at == 0)
                        continue;
                int r = core_memory_word(modules->memory, m->bias + at, &text);
                if (r == 0 && text != 0)
                        r = core_memory_string(modules->memory, text + ABORT_TEXT, f->message,
                                               sizeof f->message);
                if (r != 0)
                        f->message[0] = '\0';
                if (r < 0)
                        return r;
        }
        f->message[strcspn(f->message, "\n")] = '\0';
        return 0;
}

int fault_inspect(Fault *ret, Modules *modules, const Threads *threads) {
        const CoreNotes *c = modules->memory->notes;
        *ret = (Fault){ .machine = c->machine,
                        .base_register = -1,
                        .tid = c->n_threads > 0 ? c->threads[0].tid : 0,
                        .pid = c->pid };
        int r = set_signal(ret, modules, threads);
        if (r == 0)
                r = set_code(ret, modules);
        if (r < 0)
                return r;
        set_stack(ret, c);
        if (!decode(ret, modules)) {
                ret->is_behind_handler = ret->first_frame > 0;
                find_nearest(ret);
        }
        return set_message(ret, modules);
}

/* ---- in words ---- */

typedef struct Meaning {
        int signal, code;
        const char *text;
} Meaning;

static const Meaning meanings[] = {
        { SIGSEGV, SEGV_MAPERR, "nothing is mapped there" },
        { SIGSEGV, SEGV_ACCERR, "the mapping does not allow it" },
        { SIGSEGV, SEGV_PKUERR, "a protection key does not allow it" },
        { SIGSEGV, SI_KERNEL, "the kernel gives no address: it is not canonical, or not aligned" },
        { SIGBUS, SI_KERNEL, "the kernel gives no address: it is not canonical" },
        { SIGBUS, BUS_ADRALN, "the address is misaligned" },
        { SIGBUS, BUS_ADRERR,
          "there is no memory behind the mapping: a file that was cut, or a "
          "full file system" },
        { SIGBUS, BUS_OBJERR, "the device failed" },
        { SIGBUS, BUS_MCEERR_AR, "the memory is broken (machine check)" },
        { SIGBUS, BUS_MCEERR_AO, "the memory is broken (machine check)" },
        { SIGFPE, FPE_INTDIV, "division of an integer by zero" },
        { SIGFPE, FPE_INTOVF, "overflow of an integer" },
        { SIGFPE, FPE_FLTDIV, "division by zero" },
        { SIGFPE, FPE_FLTINV, "invalid operation with floating point" },
        { SIGILL, ILL_ILLOPC, "the processor does not know the instruction" },
        { SIGILL, ILL_ILLOPN, "the processor does not know the instruction" },
        { SIGTRAP, TRAP_BRKPT, "a breakpoint" },
};

const char *fault_signal_name(const Fault *f, char buf[static FAULT_SIGNAL_SIZE]) {
        const char *name = sigabbrev_np(f->signal.number);
        if (name)
                (void)snprintf(buf, FAULT_SIGNAL_SIZE, "SIG%s", name);
        else
                (void)snprintf(buf, FAULT_SIGNAL_SIZE, "signal %d", f->signal.number);
        return buf;
}

void fault_add_sentence(const Fault *f, StrBuf *b) {
        const char *text = NULL;
        char name[FAULT_SIGNAL_SIZE];
        for (size_t i = 0; i < ELEMENTSOF(meanings); i++)
                if (meanings[i].signal == f->signal.number && meanings[i].code == f->signal.code)
                        text = meanings[i].text;
        strbuf_add(b, fault_signal_name(f, name));
        bool is_sent = f->signal.code == SI_USER || f->signal.code == SI_TKILL;
        if (f->has_address && f->signal.number != SIGILL && f->signal.number != SIGFPE)
                strbuf_addf(b, " at 0x%" PRIx64, f->signal.address);
        if (!f->signal.is_known)
                strbuf_add(b, "; the core has no more information");
        else if (is_sent && !f->has_address && (uint32_t)f->signal.address == f->pid)
                strbuf_add(b, ": sent by the process itself");
        else if (is_sent && !f->has_address && (uint32_t)f->signal.address == 0)
                strbuf_add(b, ": sent from outside of its container");
        else if (is_sent && !f->has_address)
                strbuf_addf(b, ": sent by process %" PRIu32 " of uid %" PRIu32,
                            (uint32_t)f->signal.address, (uint32_t)(f->signal.address >> 32));
        else if (text)
                strbuf_addf(b, ": %s", text);
        if (f->is_behind_handler)
                strbuf_add(b, " (caught by a handler, which raised it again)");
}

void fault_add_base(const Fault *f, StrBuf *b) {
        char buf[8];
        if (f->base_register >= 0)
                strbuf_addf(b, " = %s %+" PRId64, register_name(f, (size_t)f->base_register, buf),
                            f->base_offset);
}

static void json_target(const Fault *f, const Modules *modules, uint64_t address, StrBuf *b) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        fault_add_target(f, modules, address, &text);
        json_out_string(b, "points_to", text.text);
}

static void write_signal(const Fault *f, StrBuf *b) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        char name[FAULT_SIGNAL_SIZE];
        fault_add_sentence(f, &text);
        json_out_object(b, "signal");
        json_out_i64(b, "number", f->signal.number);
        json_out_string(b, "name", fault_signal_name(f, name));
        if (f->signal.is_known)
                json_out_i64(b, "code", f->signal.code);
        if (f->has_address)
                json_out_hex(b, "address", f->signal.address);
        json_out_bool(b, "raised_again_by_handler", f->is_behind_handler);
        json_out_string(b, "text", text.text);
        json_out_end_object(b);
}

static void write_registers(const Fault *f, const Modules *modules, StrBuf *b) {
        char buf[8];
        json_out_array(b, "registers");
        for (size_t i = 0; i < n_registers(f); i++) {
                if (!(f->state.known >> i & 1))
                        continue;
                json_out_object(b, NULL);
                json_out_string(b, "name", register_name(f, i, buf));
                json_out_hex(b, "value", f->state.registers[i]);
                json_target(f, modules, f->state.registers[i], b);
                json_out_end_object(b);
        }
        json_out_end_array(b);
        if (f->base_register < 0)
                return;
        json_out_object(b, "address_is");
        json_out_string(b, "register", register_name(f, (size_t)f->base_register, buf));
        json_out_i64(b, "plus", f->base_offset);
        json_out_string(b, "by", f->is_decoded ? "instruction" : "likeness");
        if (f->is_decoded)
                json_out_hex(b, "address", f->effective);
        json_out_end_object(b);
}

void fault_write_json(const Fault *f, const Modules *modules, StrBuf *b) {
        char code[2 * FAULT_CODE_BYTES + 1];
        uint64_t sp = unwind_stack_pointer(modules->memory->notes, &f->state);
        _cleanup_(strbuf_done) StrBuf message = STRBUF_INIT;
        write_signal(f, b);
        json_out_object(b, "fault");
        json_out_u64(b, "thread", f->tid);
        json_out_hex(b, "pc", f->state.pc);
        json_target(f, modules, f->state.pc, b);
        write_registers(f, modules, b);
        json_out_string(b, "code_bytes", f->n_code ? digest_hex(f->code, f->n_code, code) : NULL);
        if (f->stack) {
                json_out_object(b, "stack");
                json_out_hex(b, "start", f->stack->address);
                json_out_hex(b, "end", f->stack->address + f->stack->memory_bytes);
                if (f->is_first_stack)
                        json_out_null(b, "bytes_left");
                else
                        json_out_i64(b, "bytes_left", (int64_t)(sp - f->stack->address));
                json_out_bool(b, "is_exhausted", f->is_stack_exhausted);
                json_out_end_object(b);
        }
        redact_text(&message, f->message, strlen(f->message));
        json_out_string(b, "abort_message", f->message[0] ? message.text : NULL);
        json_out_end_object(b);
}

/* ---- for people ---- */

static void text_registers(const Fault *f, const Modules *modules, StrBuf *b) {
        char buf[8];
        strbuf_add(b, "| Register | Value | Points at |\n|---|---|---|\n");
        for (size_t i = 0; i < n_registers(f); i++) {
                if (!(f->state.known >> i & 1))
                        continue;
                _cleanup_(strbuf_done) StrBuf target = STRBUF_INIT;
                fault_add_target(f, modules, f->state.registers[i], &target);
                strbuf_addf(b, "| %s | 0x%" PRIx64 " | ", register_name(f, i, buf),
                            f->state.registers[i]);
                strbuf_add_code(b, target.text ? target.text : "");
                strbuf_add(b, " |\n");
        }
        strbuf_add(b, "\n");
}

static void text_stack(const Fault *f, uint64_t sp, StrBuf *b) {
        strbuf_addf(b, "The stack has %" PRIu64 " KiB", f->stack->memory_bytes / KIB);
        if (f->is_stack_exhausted)
                strbuf_add(b, ": it is exhausted.\n");
        else if (f->is_first_stack)
                strbuf_add(b,
                           " so far. It grows until `ulimit -s`, which a core does not record.\n");
        else
                strbuf_addf(b, ", of which %" PRId64 " KiB are left.\n",
                            (int64_t)(sp - f->stack->address) / (int64_t)KIB);
}

static void text_instruction(const Fault *f, const Modules *modules, StrBuf *b) {
        char buf[8], code[2 * FAULT_CODE_BYTES + 1];
        _cleanup_(strbuf_done) StrBuf target = STRBUF_INIT;
        fault_add_target(f, modules, f->state.pc, &target);
        strbuf_addf(b, "At 0x%" PRIx64 " (", f->state.pc);
        strbuf_add_code(b, target.text ? target.text : "");
        strbuf_addf(b, "), bytes `%s`.\n",
                    f->n_code ? digest_hex(f->code, f->n_code, code) : "not known");
        if (f->base_register >= 0)
                strbuf_addf(b, "The address is %s %+" PRId64 "%s.\n",
                            register_name(f, (size_t)f->base_register, buf), f->base_offset,
                            f->is_decoded ? ", according to the instruction" : ", by likeness");
        if (f->stack)
                text_stack(f, unwind_stack_pointer(modules->memory->notes, &f->state), b);
        strbuf_add(b, "\n");
}

void fault_write_text(const Fault *f, const Modules *modules, StrBuf *b) {
        text_instruction(f, modules, b);
        text_registers(f, modules, b);
}
