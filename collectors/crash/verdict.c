/* A rule is a row: it holds or not, and quotes what it saw. The first one that holds is the
 * verdict, so that the order goes from what is certain to what is likely. */
#include "collectors/crash/verdict.h"

#include <elf.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>

#include "lib/base/digest.h"
#include "lib/base/json_out.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/base/redact.h"

enum {
        SIGNATURE_FRAMES = 10,
        SIGNATURE_HEX_BYTES = 8,
        RECURSION_FRAMES = 100, /* of 256: in which a cycle is looked for */
        CYCLE_MAX = 8,
        LOCK_THREADS_MIN = 8,
        LOCKS_MAX = 64,
        X86_64_RDI = 14, /* of struct user_regs_struct: futex(2)'s first argument */
        ARM64_X0 = 0,
        REP = 0xf3, /* of x86-64's instructions */
        REPNE = 0xf2,
        RET = 0xc3,
        RET_POP = 0xc2,
        MUTEX_OWNER = 8, /* of pthread_mutex_t: __lock, __count, __owner. glibc, nptl/ */
};

#define SMASHED "*** stack smashing detected ***" /* glibc, debug/stack_chk_fail.c */

static const struct {
        const char *component, *pattern;
} components[] = {
#include "collectors/crash/components.def"
};

const char *verdict_component(const char *path) {
        for (size_t i = 0; i < ELEMENTSOF(components); i++)
                if (fnmatch(components[i].pattern, path_name(path), 0) == 0)
                        return components[i].component;
        return NULL;
}

typedef struct Case {
        const Fault *fault;
        const Threads *threads;
        Modules *modules;
        const Context *context;
        const ThreadGroup *exiting; /* NULL: no thread is */
        size_t exit_frame;          /* of it */
} Case;

static const ThreadGroup *crashed(const Case *c) {
        static const ThreadGroup none;
        return c->threads->n_groups > 0 ? &c->threads->groups[0] : &none;
}

static bool function_of(const Case *c, const UnwindFrame *f, ModuleSymbol *ret) {
        return modules_symbol(c->modules, unwind_frame_address(f), ret);
}

/* ---- rules ---- */

/* What was corrected is logged as well: only "Memory failure: … Sending SIGBUS to NAME:PID due to
 * hardware memory corruption" is about the process. @see mm/memory-failure.c of Linux */
static const ContextLine *find_memory_failure(const Case *c) {
        char wanted[64];
        (void)snprintf(wanted, sizeof wanted, ":%" PRIu64 " due to hardware memory corruption",
                       c->context->pid);
        for (size_t i = 0; i < c->context->n_lines && c->context->pid != 0; i++)
                if (c->context->lines[i].kind == CONTEXT_MCE &&
                    strncmp(c->context->lines[i].text, "Memory failure: ", 16) == 0 &&
                    strstr(c->context->lines[i].text, wanted))
                        return &c->context->lines[i];
        return NULL;
}

static bool is_machine_check(const Case *c, StrBuf *why) {
        const CoreSignal *s = &c->fault->signal;
        const ContextLine *line = find_memory_failure(c);
        bool is_said = s->code == BUS_MCEERR_AR || s->code == BUS_MCEERR_AO;
        if (s->number != SIGBUS || s->code <= 0 || (!is_said && !line))
                return false;
        strbuf_addf(why, "SIGBUS with code %d at 0x%" PRIx64, s->code, s->address);
        if (line)
                strbuf_addf(why, "; the kernel: %s", line->text);
        return true;
}

/* @return after how many frames the chain repeats itself, 0 = it does not */
static size_t cycle_of(const ThreadGroup *g, size_t first) {
        const UnwindFrame *frames = g->frames + first;
        for (size_t n = 1; n <= CYCLE_MAX && g->n_frames - first > RECURSION_FRAMES + CYCLE_MAX;
             n++) {
                size_t i = 1; /* the first frame may be elsewhere in its function */
                while (i < RECURSION_FRAMES && frames[i].pc == frames[i + n].pc)
                        i++;
                if (i == RECURSION_FRAMES)
                        return n;
        }
        return 0;
}

static void add_stack(const Case *c, StrBuf *why) {
        const Fault *f = c->fault;
        if (f->stack)
                strbuf_addf(why,
                            "the address 0x%" PRIx64
                            " is below the stack, which begins at 0x%" PRIx64 " and has %" PRIu64
                            " KiB",
                            f->signal.address, f->stack->address, f->stack->memory_bytes / KIB);
}

static bool is_recursion(const Case *c, StrBuf *why) {
        ModuleSymbol s;
        size_t first = c->fault->first_frame, n = cycle_of(crashed(c), first);
        if (n == 0 || !c->fault->is_stack_exhausted)
                return false;
        strbuf_addf(why, "%zu frames and more repeat %zu: ", crashed(c)->n_frames, n);
        for (size_t i = 1; i <= n; i++)
                if (function_of(c, &crashed(c)->frames[first + i], &s))
                        strbuf_addf(why, "%s%s", i > 1 ? ", " : "", s.name);
        strbuf_add(why, "; ");
        add_stack(c, why);
        return true;
}

static bool is_stack_exhausted(const Case *c, StrBuf *why) {
        if (!c->fault->is_stack_exhausted)
                return false;
        add_stack(c, why);
        return true;
}

/* What drivers map has no length that somebody could have changed. */
static bool is_of_file(const CoreMapping *m) {
        static const char *const file_systems[] = { "/dev/shm/", "/dev/hugepages/" };
        for (size_t i = 0; i < ELEMENTSOF(file_systems); i++)
                if (strncmp(m->path, file_systems[i], strlen(file_systems[i])) == 0)
                        return true;
        return m->path[0] == '/' && strncmp(m->path, "/dev/", 5) != 0;
}

static bool is_file_cut(const Case *c, StrBuf *why) {
        const CoreSignal *s = &c->fault->signal;
        const CoreMapping *m = core_notes_mapping(c->modules->memory->notes, s->address);
        if (s->number != SIGBUS || s->code != BUS_ADRERR || !m || !is_of_file(m))
                return false;
        strbuf_addf(why, "0x%" PRIx64 " is offset 0x%" PRIx64 " of %s", s->address,
                    m->file_offset + (s->address - m->start), m->path);
        return true;
}

/* How glibc's malloc.c begins its messages. A program's own may have any words in them. */
static const char *const damage_words[] = {
        "free(): ",
        "malloc(): ",
        "malloc_consolidate(): ",
        "realloc(): ",
        "munmap_chunk(): ",
        "mremap_chunk(): ",
        "double free or corruption",
        "corrupted ",
        "corrupted size vs. prev_size",
        "invalid fastbin entry",
        "unaligned fastbin chunk",
        "unaligned tcache chunk",
};

static bool speaks_of_damage(const Case *c) {
        for (size_t i = 0; i < ELEMENTSOF(damage_words); i++)
                if (strncmp(c->fault->message, damage_words[i], strlen(damage_words[i])) == 0)
                        return true;
        return false;
}

static bool add_message(const Case *c, StrBuf *why) {
        const Fault *f = c->fault;
        strbuf_add(why, "the abort message: ");
        redact_text(why, f->message, strlen(f->message));
        return f->signal.number == SIGABRT && f->message[0];
}

static bool is_heap_damaged(const Case *c, StrBuf *why) {
        return speaks_of_damage(c) && add_message(c, why);
}

/* A function that returns to where no address can be. */
static bool is_bad_return(const Case *c) {
        const Fault *f = c->fault;
        uint64_t to, sp = unwind_stack_pointer(c->modules->memory->notes, &f->state);
        size_t at = f->n_code > 1 && (f->code[0] == REP || f->code[0] == REPNE) ? 1 : 0;
        return f->machine == EM_X86_64 && f->signal.number == SIGSEGV &&
               f->signal.code == SI_KERNEL && f->n_code > at &&
               (f->code[at] == RET || f->code[at] == RET_POP) &&
               core_memory_word(c->modules->memory, sp, &to) == 0 &&
               fault_target(f, c->modules, to) == FAULT_NON_CANONICAL;
}

static bool is_stack_damaged(const Case *c, StrBuf *why) {
        if (strncmp(c->fault->message, SMASHED, strlen(SMASHED)) == 0)
                return add_message(c, why);
        if (!is_bad_return(c))
                return false;
        strbuf_add(why,
                   "the instruction is ret, and the value on the stack for it is not an address");
        return true;
}

static bool is_abort_with_message(const Case *c, StrBuf *why) {
        return add_message(c, why);
}

static bool is_arithmetic(const Case *c, StrBuf *why) {
        if (c->fault->signal.number != SIGFPE || c->fault->signal.code <= 0)
                return false;
        fault_add_sentence(c->fault, why);
        return true;
}

/* ud2, brk #1 … : what a compiler puts where nothing may come, and __builtin_trap(). */
static bool is_trap(const Case *c, StrBuf *why) {
        const Fault *f = c->fault;
        char hex[2 * FAULT_CODE_BYTES + 1];
        bool is_ud2 = f->machine == EM_X86_64 && f->n_code >= 2 && f->code[0] == 0x0f &&
                      f->code[1] == 0x0b;
        if (f->signal.number != SIGILL || f->signal.code <= 0 || !is_ud2)
                return false;
        strbuf_addf(why, "the bytes at pc are ud2: %s", digest_hex(f->code, 2, hex));
        return true;
}

static bool is_illegal(const Case *c, StrBuf *why) {
        const Fault *f = c->fault;
        char hex[2 * FAULT_CODE_BYTES + 1];
        if (f->signal.number != SIGILL || f->signal.code <= 0)
                return false;
        strbuf_addf(why, "the bytes at pc are %s",
                    f->n_code ? digest_hex(f->code, f->n_code, hex) : "not in the core");
        return true;
}

/* What freed memory, and no other, is filled with: by jemalloc (and who sets MALLOC_PERTURB_=90),
 * and by CPython's debugging allocator. Other bytes eight times over may be text, or memory that
 * was never set. */
static const uint8_t freed_bytes[] = { 0x5a, 0xdd };

static bool is_filled(uint64_t v) {
        return memchr(freed_bytes, (int)(v & 0xff), sizeof freed_bytes) &&
               v == (v & 0xff) * UINT64_C(0x0101010101010101);
}

static bool is_use_after_free(const Case *c, StrBuf *why) {
        const Fault *f = c->fault;
        if (f->base_register < 0 || !is_filled(f->state.registers[f->base_register]))
                return false;
        strbuf_addf(why, "the pointer is 0x%" PRIx64 ": the byte that freed memory is filled with",
                    f->state.registers[f->base_register]);
        return true;
}

/* Not __cxa_finalize() and what is below it: dlclose(3) calls them as well. */
static const char *const exit_functions[] = { "__run_exit_handlers", "_dl_fini", "Py_FinalizeEx" };
static const char *const load_functions[] = { "_dl_open", "_dl_init", "dlopen", "dl_open_worker",
                                              "_dl_map_object" };

/* @return the number of a thread's first frame that is in one of these functions, SIZE_MAX for none
 */
static size_t find_frame(const Case *c, const ThreadGroup *g, const char *const *names,
                         size_t n_names) {
        ModuleSymbol s;
        for (size_t i = 0; i < g->n_frames; i++) {
                if (!function_of(c, &g->frames[i], &s))
                        continue;
                const char *name = s.name + (strncmp(s.name, "___", 3) == 0 ? 3 : 0);
                if (parse_word(name, names, n_names) >= 0)
                        return i;
        }
        return SIZE_MAX;
}

/* The one that crashed comes first. */
static void find_exiting(Case *c) {
        for (size_t i = 0; i < c->threads->n_groups && !c->exiting; i++) {
                const ThreadGroup *g = &c->threads->groups[i];
                c->exit_frame = find_frame(c, g, exit_functions, ELEMENTSOF(exit_functions));
                if (c->exit_frame != SIZE_MAX)
                        c->exiting = g;
        }
}

static bool is_bad_access(const Fault *f) {
        return (f->signal.number == SIGSEGV || f->signal.number == SIGBUS) && f->signal.code > 0;
}

static bool is_at_exit(const Case *c, StrBuf *why) {
        const ThreadGroup *g = c->exiting;
        ModuleSymbol s;
        if (!g || !is_bad_access(c->fault))
                return false;
        strbuf_addf(why, "frame #%zu of %s %" PRIu32 " is ", c->exit_frame,
                    g == crashed(c) ? "the crashed thread" : "thread",
                    c->modules->memory->notes->threads[g->first_thread].tid);
        strbuf_add(why, function_of(c, &g->frames[c->exit_frame], &s) ? s.name : "");
        return true;
}

static bool is_null_call(const Case *c, StrBuf *why) {
        const Fault *f = c->fault;
        if (f->signal.number != SIGSEGV || f->signal.code <= 0 || f->state.pc >= FAULT_NULL_PAGE)
                return false;
        strbuf_addf(why, "pc is 0x%" PRIx64, f->state.pc);
        return true;
}

static bool is_null_pointer(const Case *c, StrBuf *why) {
        const Fault *f = c->fault;
        if (f->signal.number != SIGSEGV || !f->has_address || f->signal.address >= FAULT_NULL_PAGE)
                return false;
        strbuf_addf(why, "the address is 0x%" PRIx64, f->signal.address);
        fault_add_base(f, why);
        return true;
}

/* The kernel's code, 128, stands for other faults as well: the instruction has to say so. */
static bool is_non_canonical(const Case *c, StrBuf *why) {
        const Fault *f = c->fault;
        if (!is_bad_access(f) || f->signal.code != SI_KERNEL || !f->is_decoded)
                return false;
        strbuf_addf(why, "the instruction uses 0x%" PRIx64, f->effective);
        fault_add_base(f, why);
        return true;
}

/* Threads that wait for a lock are in futex(2), whose first argument is the lock. They are what it
 * is about when somebody ended a process that stood still, not when it crashed. */
static const char *const lock_functions[] = { "__lll_lock_wait", "__lll_lock_wait_private",
                                              "pthread_mutex_lock", "pthread_rwlock_rdlock",
                                              "pthread_rwlock_wrlock" };

static bool is_in_lock(const Case *c, const ThreadGroup *g) {
        const ThreadGroup top = { .frames = g->frames, .n_frames = MIN(g->n_frames, (size_t)3) };
        return find_frame(c, &top, lock_functions, ELEMENTSOF(lock_functions)) != SIZE_MAX;
}

typedef struct WaitedLock {
        uint64_t address;
        size_t n_threads;
} WaitedLock;

static void count_lock(WaitedLock *locks, size_t *n, uint64_t address) {
        for (size_t i = 0; i < *n; i++)
                if (locks[i].address == address) {
                        locks[i].n_threads++;
                        return;
                }
        if (*n < LOCKS_MAX)
                locks[(*n)++] = (WaitedLock){ address, 1 };
}

/* @param ret  gets the thread that holds a mutex, 0 = not known
 * @return whether its memory is there */
static bool find_owner(const Case *c, uint64_t lock, uint32_t *ret) {
        const CoreNotes *notes = c->modules->memory->notes;
        uint32_t owner;
        *ret = 0;
        if (core_memory_read(c->modules->memory, lock + MUTEX_OWNER, &owner, sizeof owner) != 0)
                return false;
        for (size_t i = 0; i < notes->n_threads; i++)
                if (notes->threads[i].tid == owner)
                        *ret = owner;
        return true;
}

static bool is_sent(const Case *c) {
        const CoreSignal *s = &c->fault->signal;
        return s->is_known && s->code == SI_USER &&
               (uint32_t)s->address != c->modules->memory->notes->pid;
}

static bool is_many_in_lock(const Case *c, StrBuf *why) {
        const CoreNotes *notes = c->modules->memory->notes;
        size_t argument = notes->machine == EM_X86_64 ? X86_64_RDI : ARM64_X0, n = 0;
        WaitedLock locks[LOCKS_MAX], *most = NULL;
        if (c->fault->signal.code > 0)
                return false;
        for (size_t i = 0; i < notes->n_threads; i++)
                if (is_in_lock(c, &c->threads->groups[c->threads->group_of[i]]))
                        count_lock(locks, &n, notes->threads[i].registers[argument]);
        for (size_t i = 0; i < n; i++)
                if (!most || locks[i].n_threads > most->n_threads)
                        most = &locks[i];
        if (!most || most->n_threads < LOCK_THREADS_MIN || 2 * most->n_threads < notes->n_threads)
                return false;
        uint32_t owner;
        bool is_readable = find_owner(c, most->address, &owner);
        if (!is_sent(c) && (!is_readable || owner == c->fault->tid))
                return false; /* who gave up may have been about to give the lock back */
        strbuf_addf(why, "%zu of %zu threads wait for the lock at 0x%" PRIx64 " (", most->n_threads,
                    notes->n_threads, most->address);
        fault_add_target(c->fault, c->modules, most->address, why);
        strbuf_add(why, ")");
        if (owner != 0)
                strbuf_addf(why, ", which thread %" PRIu32 " holds", owner);
        return true;
}

static bool is_sent_by_other(const Case *c, StrBuf *why) {
        if (!is_sent(c))
                return false;
        fault_add_sentence(c->fault, why);
        return true;
}

#define LOOK_FOR_WRITE                                                                             \
        "Search for the earlier write: use a build with AddressSanitizer or ThreadSanitizer."

/* clang-format off */
static const struct {
        const char *name, *kind;
        bool (*holds)(const Case *c, StrBuf *why);
        const char *reason, *next; /* next: a step for people, NULL = what the report has is all */
} rules[] = {
        { "machine-check", "cause", is_machine_check,
          "the memory of this machine is broken; the program is not to blame",
          "Take the node out of service, and have its memory tested." },
        { "recursion", "cause", is_recursion,
          "a function calls itself without end, until the stack is used up", NULL },
        { "stack-exhausted", "cause", is_stack_exhausted,
          "a frame did not fit on what was left of the stack", NULL },
        { "mapped-file-cut", "cause", is_file_cut,
          "a file was mapped and then made shorter, or its file system has no space or is gone",
          "Check the file's file system (`df`, `mount`), and which process rewrites the file." },
        { "heap-damaged", "symptom", is_heap_damaged,
          "the C library found its heap damaged; the damage was done earlier", LOOK_FOR_WRITE },
        { "stack-damaged", "symptom", is_stack_damaged,
          "a function found its frame overwritten when it returned: by itself, or by what it "
          "called",
          LOOK_FOR_WRITE },
        { "abort-with-message", "cause", is_abort_with_message,
          "the program gave up with a message", NULL },
        { "arithmetic", "cause", is_arithmetic,
          "the processor refused an operation with numbers", NULL },
        { "trap", "cause", is_trap,
          "the program came to an instruction that is there to stop it", NULL },
        { "illegal-instruction", "unknown", is_illegal,
          "built for another processor, or pc is not where code begins",
          "Compare `lscpu` with what the program was built for." },
        { "use-after-free", "symptom", is_use_after_free,
          "a pointer was read from memory that had been freed", LOOK_FOR_WRITE },
        { "exit-time", "symptom", is_at_exit,
          "it crashed while exiting: destructors run while other threads still use what they "
          "destroy, or find what was damaged before", LOOK_FOR_WRITE },
        { "null-call", "cause", is_null_call,
          "a function was called through a null pointer", NULL },
        { "null-pointer", "cause", is_null_pointer, "a null pointer was used", NULL },
        { "non-canonical", "symptom", is_non_canonical,
          "a pointer was overwritten or is invalid; the write came earlier", LOOK_FOR_WRITE },
        { "many-in-one-lock", "symptom", is_many_in_lock,
          "most threads wait for one lock: its holder is the cause, not the thread that was ended",
          "Inspect what the thread that holds the lock does, and waits for." },
        { "sent", "symptom", is_sent_by_other, "another process sent the signal",
          "Search for the sender of the signal: the job's scheduler, a health check, a person." },
};
/* clang-format on */

/* ---- the signature ---- */

static void add_signature_frame(const Case *c, const UnwindFrame *f, StrBuf *b) {
        ModuleSymbol s;
        const Module *m = modules_at(c->modules, unwind_frame_address(f));
        const char *component = m ? verdict_component(m->path) : NULL;
        strbuf_addf(b, " %s:%s",
                    component ? component
                    : m       ? path_name(m->path)
                              : "?",
                    function_of(c, f, &s) ? s.name : "?");
}

static void write_seen(const Case *c, const char *id, StrBuf *json, StrBuf *text) {
        const char *since;
        uint64_t n = context_seen(c->context, id, &since);
        if (n == 0) {
                json_out_null(json, "seen");
                strbuf_add(text, "unknown (single occurrence)");
                return;
        }
        json_out_object(json, "seen");
        json_out_u64(json, "count", n);
        json_out_string(json, "since", since[0] ? since : NULL);
        json_out_end_object(json);
        strbuf_addf(text, "seen %" PRIu64 " times on this node before, since ", n);
        strbuf_add_code(text, since[0] ? since : "an unknown time");
}

/* Without addresses, which differ from run to run. */
static void write_signature(const Case *c, StrBuf *json, VerdictText *text) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        const ThreadGroup *g = crashed(c);
        size_t first = c->fault->first_frame, last = MIN(g->n_frames, first + SIGNATURE_FRAMES);
        char name[FAULT_SIGNAL_SIZE], hex[2 * SHA256_SIZE + 1];
        uint8_t digest[SHA256_SIZE];
        strbuf_add(&b, fault_signal_name(c->fault, name));
        for (size_t i = first; i < last; i++)
                add_signature_frame(c, &g->frames[i], &b);
        if (strbuf_error(&b) < 0)
                return;
        sha256_of(b.text, b.n, digest);
        digest_hex(digest, SIGNATURE_HEX_BYTES, hex);
        json_out_object(json, "signature");
        json_out_string(json, "id", hex);
        json_out_string(json, "text", b.text);
        write_seen(c, hex, json, &text->seen);
        json_out_end_object(json);
        strbuf_addf(&text->signature, "%s ", hex);
        strbuf_add_code(&text->signature, b.text);
}

/* ---- writing ---- */

static void write_rule(size_t i, const StrBuf *why, StrBuf *json) {
        json_out_object(json, NULL);
        json_out_string(json, "rule", rules[i].name);
        json_out_string(json, "kind", rules[i].kind);
        json_out_string(json, "reason", rules[i].reason);
        json_out_string(json, "evidence", why->text ? why->text : "");
        json_out_end_object(json);
}

static void text_rule(size_t i, const StrBuf *why, VerdictText *text) {
        bool is_first = text->cause.n == 0;
        strbuf_addf(&text->cause, is_first ? "**%s** (%s): %s.\n" : "\nAlso **%s** (%s): %s.\n",
                    rules[i].name, rules[i].kind, rules[i].reason);
        strbuf_addf(&text->evidence, "- %s: ", rules[i].name);
        strbuf_add_code(&text->evidence, why->text ? why->text : "");
        strbuf_add(&text->evidence, "\n");
        text->next = is_first ? rules[i].next : text->next;
}

static const char *find_context(const Case *c) {
        if (c->exiting)
                return "exit-time cleanup";
        size_t i = find_frame(c, crashed(c), load_functions, ELEMENTSOF(load_functions));
        return i != SIZE_MAX ? "module load" : "runtime";
}

static void text_unknown(const Case *c, VerdictText *text) {
        strbuf_add(&text->cause, "Unknown: no rule fits what the core has.\n");
        strbuf_add(&text->evidence, "- the signal: ");
        fault_add_sentence(c->fault, &text->evidence);
        strbuf_add(&text->evidence, "\n");
}

/* What comes behind the first rule that holds would contradict it, or say less. */
void verdict_write(const VerdictInput *in, StrBuf *json, VerdictText *text) {
        Case with_exit = { .fault = in->fault,
                           .threads = in->threads,
                           .modules = in->modules,
                           .context = in->context };
        const Case *c = &with_exit;
        find_exiting(&with_exit);
        text->context = find_context(c);
        json_out_string(json, "context", text->context);
        json_out_array(json, "verdicts");
        for (size_t i = 0; i < ELEMENTSOF(rules); i++) {
                _cleanup_(strbuf_done) StrBuf why = STRBUF_INIT;
                bool may_be_beside = rules[i].holds == is_sent_by_other;
                if ((text->cause.n > 0 && !may_be_beside) || !rules[i].holds(c, &why))
                        continue;
                write_rule(i, &why, json);
                text_rule(i, &why, text);
        }
        json_out_end_array(json);
        if (text->cause.n == 0)
                text_unknown(c, text);
        write_signature(c, json, text);
}

void verdict_text_done(VerdictText *t) {
        strbuf_done(&t->cause);
        strbuf_done(&t->evidence);
        strbuf_done(&t->signature);
        strbuf_done(&t->seen);
}
