/* What happened in the thread that crashed: the signal and its address, what its registers point
 * at, and what the C library had to say. */
#pragma once

#include "collectors/crash/threads.h"
#include "lib/base/strbuf.h"

#define FAULT_CODE_BYTES 16
#define FAULT_MESSAGE_SIZE 1024
#define FAULT_NULL_PAGE 4096

typedef enum FaultTarget { /* where an address points */
                           FAULT_UNMAPPED,
                           FAULT_NULL,
                           FAULT_NON_CANONICAL,
                           FAULT_GUARD, /* mapped without access */
                           FAULT_STACK, /* of the crashing thread */
                           FAULT_HEAP,  /* behind the program: brk(2) */
                           FAULT_MODULE,
                           FAULT_ANONYMOUS,
                           FAULT_OTHER, /* mapped, and neither a file's nor private */
} FaultTarget;

typedef struct Fault {
        CoreSignal signal; /* the first one, if a handler raised it again */
        bool is_behind_handler;
        size_t first_frame; /* of the crashed thread's chain: where it happened */
        bool has_address;   /* signal.address is that of a fault */
        uint32_t tid, pid;
        uint16_t machine;
        UnwindState state; /* when it happened */
        int base_register; /* by DWARF's numbers: base + offset is the faulting address; -1 */
        int64_t base_offset;
        bool is_decoded;    /* … as the instruction says, and not by likeness alone */
        uint64_t effective; /* the address that the instruction makes, when is_decoded */
        uint8_t code[FAULT_CODE_BYTES]; /* at pc */
        size_t n_code;
        const CoreSegment *stack; /* NULL: sp points nowhere */
        bool is_first_stack;      /* the kernel's, which grows to a limit that no core has */
        bool is_stack_exhausted;
        char message[FAULT_MESSAGE_SIZE]; /* of abort(3); "" */
} Fault;

/** @return 0, -errno of the core */
int fault_inspect(Fault *ret, Modules *modules, const Threads *threads);

FaultTarget fault_target(const Fault *f, const Modules *modules, uint64_t address);
/** Adds what an address points at: `heap`, `libc.so.6+0x1234`. */
void fault_add_target(const Fault *f, const Modules *modules, uint64_t address, StrBuf *b);
/** Adds which register made the address: ` = rdi +16`; nothing when it is not known. */
void fault_add_base(const Fault *f, StrBuf *b);
/** Writes `SIGSEGV`. @return buf */
#define FAULT_SIGNAL_SIZE 24
const char *fault_signal_name(const Fault *f, char buf[static FAULT_SIGNAL_SIZE]);
/** Adds the signal in words. */
void fault_add_sentence(const Fault *f, StrBuf *b);

void fault_write_json(const Fault *f, const Modules *modules, StrBuf *b);
/** The crashing instruction and the registers. */
void fault_write_text(const Fault *f, const Modules *modules, StrBuf *b);
