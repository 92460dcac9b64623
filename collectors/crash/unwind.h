/* The call chain of a thread, by call frame information alone: nothing is guessed, so that a chain
 * may end early, and says why. */
#pragma once

#include "collectors/crash/modules.h"

#define UNWIND_FRAMES_MAX 256
#define UNWIND_INTERRUPTS_MAX 8

typedef enum UnwindEnd {
        UNWIND_COMPLETE,    /* the outermost frame, by what its information says */
        UNWIND_NO_FILE,     /* the last frame's program or library is not here */
        UNWIND_NO_RULE,     /* the last frame has no call frame information */
        UNWIND_NOT_CODE,    /* the last frame's address is outside of code */
        UNWIND_NO_STACK,    /* the core does not contain the stack, or not all of it */
        UNWIND_READ_LIMIT,  /* CORE_MEMORY_BYTES_MAX */
        UNWIND_NOT_GROWING, /* the caller's frame is not above: the stack is damaged */
        UNWIND_NO_RETURN,   /* the return address is 0, and the frame is not said to be the last */
        UNWIND_FRAMES_LIMIT,
} UnwindEnd;

typedef struct UnwindState {
        uint64_t registers[UNWIND_REGISTERS]; /* by DWARF's numbers */
        uint64_t known;                       /* a bit each */
        uint64_t pc;
} UnwindState;

typedef struct UnwindFrame {
        uint64_t pc;
        bool is_return_address; /* pc is behind a call; else it is what is executed */
        bool is_not_code;       /* the first one, which was called through a bad pointer */
        bool is_signal_frame; /* the kernel's, below a signal handler; the next one was interrupted
                               */
} UnwindFrame;

typedef struct UnwindInterrupt { /* what a signal interrupted whose handler was running */
        UnwindState state;
        uint64_t frame_address; /* of what the kernel put on the stack for the handler */
        size_t frame;           /* the number of the frame that was interrupted */
} UnwindInterrupt;

typedef struct UnwindChain {
        UnwindFrame frames[UNWIND_FRAMES_MAX];
        size_t n;
        UnwindEnd end;
        UnwindInterrupt interrupts[UNWIND_INTERRUPTS_MAX]; /* the innermost first */
        size_t n_interrupts;
} UnwindChain;

typedef struct Unwinder Unwinder;

int unwinder_new(Unwinder **ret, Modules *modules);
Unwinder *unwinder_free(Unwinder *u);
DEFINE_CLEANUP(Unwinder, unwinder_free);

/** The state of a thread as the kernel wrote it. */
void unwind_thread_state(const CoreNotes *c, const CoreThread *thread, UnwindState *ret);
/** @return the address of the stack's top; 0 = not known */
uint64_t unwind_stack_pointer(const CoreNotes *c, const UnwindState *s);

/** @return 0, -ENOMEM, -errno of the core */
int unwind_chain(Unwinder *u, const UnwindState *thread, UnwindChain *ret);

/** @return the address by which a frame's function is looked up */
uint64_t unwind_frame_address(const UnwindFrame *frame);
/** By UnwindEnd. */
typedef struct UnwindEndWords {
        const char *name, *text; /* text: a sentence without its end, "" for a complete chain */
} UnwindEndWords;
extern const UnwindEndWords unwind_ends[];
