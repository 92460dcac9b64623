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
#include "lib/base/path.h"

enum {
        SIGNATURE_FRAMES = 10,
        SIGNATURE_HEX_BYTES = 8,
        RECURSION_FRAMES = 100, /* of 256: in which a cycle is looked for */
        CYCLE_MAX = 8,
        LOCK_THREADS_MIN = 8,
        LOCKS_MAX = 64,
        X86_64_RDI = 14, /* of struct user_regs_struct: futex(2)'s first argument */
        ARM64_X0 = 0,
};

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
} Case;

static const ThreadGroup *crashed(const Case *c) {
        static const ThreadGroup none;
        return c->threads->n_groups > 0 ? &c->threads->groups[0] : &none;
}

static bool function_of(const Case *c, const UnwindFrame *f, ModuleSymbol *ret) {
        return modules_symbol(c->modules, unwind_frame_address(f), ret);
}

/* ---- rules ---- */

static bool is_machine_check(const Case *c, StrBuf *why) {
        const CoreSignal *s = &c->fault->signal;
        if (s->number != SIGBUS || (s->code != BUS_MCEERR_AR && s->code != BUS_MCEERR_AO))
                return false;
        strbuf_addf(why, "SIGBUS with code %d at 0x%" PRIx64, s->code, s->address);
        return true;
}

/* @return after how many frames the chain repeats itself, 0 = it does not */
static size_t cycle_of(const ThreadGroup *g) {
        for (size_t n = 1; n <= CYCLE_MAX && g->n_frames > RECURSION_FRAMES + CYCLE_MAX; n++) {
                size_t i = 1; /* the first frame may be elsewhere in its function */
                while (i < RECURSION_FRAMES && g->frames[i].pc == g->frames[i + n].pc)
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
        size_t n = cycle_of(crashed(c));
        if (n == 0 || !c->fault->is_stack_exhausted)
                return false;
        strbuf_addf(why, "%zu frames and more repeat %zu: ", crashed(c)->n_frames, n);
        for (size_t i = 1; i <= n; i++)
                if (function_of(c, &crashed(c)->frames[i], &s))
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

static bool is_file_cut(const Case *c, StrBuf *why) {
        const CoreSignal *s = &c->fault->signal;
        const CoreMapping *m = core_notes_mapping(c->modules->memory->notes, s->address);
        if (s->number != SIGBUS || s->code != BUS_ADRERR || !m)
                return false;
        strbuf_addf(why, "0x%" PRIx64 " is offset 0x%" PRIx64 " of ", s->address,
                    m->file_offset + (s->address - m->start));
        strbuf_add_escaped(why, m->path);
        return true;
}

static const char *const damage_words[] = { "free()",      "malloc",       "corrupt",
                                            "double free", "realloc",      "unlink",
                                            "smashing",    "munmap_chunk", "tcache" };

static bool speaks_of_damage(const Case *c) {
        for (size_t i = 0; i < ELEMENTSOF(damage_words); i++)
                if (strstr(c->fault->message, damage_words[i]))
                        return true;
        return false;
}

static bool add_message(const Case *c, StrBuf *why) {
        strbuf_add(why, "the abort message");
        return c->fault->signal.number == SIGABRT && c->fault->message[0];
}

static bool is_heap_damaged(const Case *c, StrBuf *why) {
        return speaks_of_damage(c) && add_message(c, why);
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
        if (f->signal.number != SIGILL || !is_ud2)
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

/* What allocators and debuggers fill freed memory with: MALLOC_PERTURB_, jemalloc, CPython,
 * Windows' heritage, tcmalloc; any byte eight times over is as unlikely for a pointer. */
static bool is_filled(uint64_t v) {
        uint64_t byte = v & 0xff;
        return byte != 0 && byte != 0xff && v == byte * UINT64_C(0x0101010101010101);
}

static bool is_use_after_free(const Case *c, StrBuf *why) {
        const Fault *f = c->fault;
        if (f->base_register < 0 || !is_filled(f->state.registers[f->base_register]))
                return false;
        strbuf_addf(why, "the pointer is 0x%" PRIx64 ": the byte that freed memory is filled with",
                    f->state.registers[f->base_register]);
        return true;
}

static const char *const exit_functions[] = {
        "__run_exit_handlers",   "__cxa_finalize", "_dl_fini",
        "__do_global_dtors_aux", "Py_FinalizeEx",  "_dl_call_fini"
};
static const char *const load_functions[] = { "_dl_open", "_dl_init", "dlopen", "dl_open_worker",
                                              "_dl_map_object" };

/* @return the number of a thread's first frame that is in one of these functions, SIZE_MAX for none
 */
static size_t find_frame(const Case *c, const ThreadGroup *g, const char *const *names,
                         size_t n_names) {
        ModuleSymbol s;
        for (size_t i = 0; i < g->n_frames; i++)
                for (size_t k = 0; k < n_names; k++)
                        if (function_of(c, &g->frames[i], &s) && strcmp(s.name, names[k]) == 0)
                                return i;
        return SIZE_MAX;
}

static bool is_exiting(const Case *c, const ThreadGroup *g) {
        return find_frame(c, g, exit_functions, ELEMENTSOF(exit_functions)) != SIZE_MAX;
}

/* @return NULL: none. The one that crashed comes first. */
static const ThreadGroup *find_exiting(const Case *c) {
        for (size_t i = 0; i < c->threads->n_groups; i++)
                if (is_exiting(c, &c->threads->groups[i]))
                        return &c->threads->groups[i];
        return NULL;
}

static bool is_at_exit(const Case *c, StrBuf *why) {
        const ThreadGroup *g = c->fault->has_address ? find_exiting(c) : NULL;
        ModuleSymbol s;
        if (!g)
                return false;
        size_t i = find_frame(c, g, exit_functions, ELEMENTSOF(exit_functions));
        strbuf_addf(why, "frame #%zu of %s %" PRIu32 " is ", i,
                    g == crashed(c) ? "the crashed thread" : "thread",
                    c->modules->memory->notes->threads[g->first_thread].tid);
        strbuf_add(why, function_of(c, &g->frames[i], &s) ? s.name : "");
        return true;
}

static bool is_null_call(const Case *c, StrBuf *why) {
        const Fault *f = c->fault;
        if (f->signal.number != SIGSEGV || f->state.pc >= FAULT_NULL_PAGE)
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

static bool is_non_canonical(const Case *c, StrBuf *why) {
        const Fault *f = c->fault;
        if (f->signal.number != SIGSEGV || f->signal.code != SI_KERNEL)
                return false;
        if (f->is_decoded) {
                strbuf_addf(why, "the instruction uses 0x%" PRIx64, f->effective);
                fault_add_base(f, why);
        } else
                strbuf_add(why, "the kernel gives no address (si_code 128)");
        return true;
}

/* Threads that wait for a lock are in futex(2), whose first argument is the lock. They are what it
 * is about when somebody ended a process that stood still, not when it crashed. */
static const char *const lock_functions[] = { "__lll_lock_wait",       "__lll_lock_wait_private",
                                              "pthread_mutex_lock",    "futex_wait",
                                              "pthread_rwlock_rdlock", "pthread_rwlock_wrlock" };

static bool is_in_lock(const Case *c, const ThreadGroup *g) {
        ModuleSymbol s;
        for (size_t i = 0; i < MIN(g->n_frames, (size_t)3); i++) {
                if (!function_of(c, &g->frames[i], &s))
                        continue;
                for (size_t k = 0; k < ELEMENTSOF(lock_functions); k++)
                        if (strcmp(s.name + (strncmp(s.name, "___", 3) == 0 ? 3 : 0),
                                   lock_functions[k]) == 0)
                                return true;
        }
        return false;
}

typedef struct Lock {
        uint64_t address;
        size_t n_threads;
} Lock;

static void count_lock(Lock *locks, size_t *n, uint64_t address) {
        for (size_t i = 0; i < *n; i++)
                if (locks[i].address == address) {
                        locks[i].n_threads++;
                        return;
                }
        if (*n < LOCKS_MAX)
                locks[(*n)++] = (Lock){ address, 1 };
}

static bool is_many_in_lock(const Case *c, StrBuf *why) {
        const CoreNotes *notes = c->modules->memory->notes;
        size_t argument = notes->machine == EM_X86_64 ? X86_64_RDI : ARM64_X0, n = 0;
        Lock locks[LOCKS_MAX], *most = NULL;
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
        strbuf_addf(why, "%zu of %zu threads wait for the lock at 0x%" PRIx64 " (", most->n_threads,
                    notes->n_threads, most->address);
        fault_add_target(c->fault, c->modules, most->address, why);
        strbuf_add(why, ")");
        return true;
}

static bool is_sent_by_other(const Case *c, StrBuf *why) {
        const CoreSignal *s = &c->fault->signal;
        if (!s->is_known || s->code != SI_USER ||
            (uint32_t)s->address == c->modules->memory->notes->pid)
                return false;
        fault_add_sentence(c->fault, why);
        return true;
}

/* clang-format off */
static const struct {
        const char *name, *kind;
        bool (*holds)(const Case *c, StrBuf *why);
        const char *reason;
} rules[] = {
        { "machine-check", "cause", is_machine_check,
          "the memory of this machine is broken; the program is not to blame" },
        { "recursion", "cause", is_recursion,
          "a function calls itself without end, until the stack is used up" },
        { "stack-exhausted", "cause", is_stack_exhausted,
          "a frame did not fit on what was left of the stack" },
        { "mapped-file-cut", "cause", is_file_cut,
          "a file was mapped and then made shorter, or its file system has no space or is gone" },
        { "heap-damaged", "symptom", is_heap_damaged,
          "the C library found its heap damaged; who damaged it did so earlier" },
        { "abort-with-message", "cause", is_abort_with_message,
          "the program gave up, and said why" },
        { "arithmetic", "cause", is_arithmetic, "the processor refused an operation with numbers" },
        { "trap", "cause", is_trap, "the program came to an instruction that is there to stop it" },
        { "illegal-instruction", "unknown", is_illegal,
          "built for another processor, or pc is not where code begins" },
        { "use-after-free", "symptom", is_use_after_free,
          "a pointer was read from memory that had been freed" },
        { "exit-time", "symptom", is_at_exit,
          "it crashed while exiting: destructors run while other threads still use what they "
          "destroy, or find what was damaged before" },
        { "null-call", "cause", is_null_call, "a function was called through a null pointer" },
        { "null-pointer", "cause", is_null_pointer, "a null pointer was used" },
        { "non-canonical", "symptom", is_non_canonical,
          "a pointer was overwritten, or is none; who did so did it earlier" },
        { "many-in-one-lock", "symptom", is_many_in_lock,
          "most threads wait for one lock: who holds it is to be looked for, not who was ended" },
        { "sent", "symptom", is_sent_by_other, "another process sent the signal" },
};
/* clang-format on */

/* ---- the signature ---- */

static size_t first_frame(const ThreadGroup *g) {
        for (size_t i = g->n_frames; i > 0; i--)
                if (g->frames[i - 1].is_signal_frame)
                        return i;
        return 0;
}

static void add_signature_frame(const Case *c, const UnwindFrame *f, StrBuf *b) {
        ModuleSymbol s;
        const Module *m = modules_at(c->modules, unwind_frame_address(f));
        const char *component = m ? verdict_component(m->path) : NULL;
        strbuf_add(b, " ");
        strbuf_add_escaped(b, component ? component : m ? path_name(m->path) : "?");
        strbuf_add(b, ":");
        strbuf_add_escaped(b, function_of(c, f, &s) ? s.name : "?");
}

/* Without addresses, which differ from run to run. */
static void write_signature(const Case *c, StrBuf *json, StrBuf *text) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        const ThreadGroup *g = crashed(c);
        size_t first = first_frame(g), last = MIN(g->n_frames, first + SIGNATURE_FRAMES);
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
        json_out_end_object(json);
        strbuf_addf(text, "%s (%s)", hex, b.text);
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
        strbuf_add_escaped(&text->evidence, why->text ? why->text : "");
        strbuf_add(&text->evidence, "\n");
        text->is_symptom = text->is_symptom || strcmp(rules[i].kind, "symptom") == 0;
}

static const char *find_context(const Case *c) {
        if (find_exiting(c))
                return "exit-time cleanup";
        size_t i = find_frame(c, crashed(c), load_functions, ELEMENTSOF(load_functions));
        return i != SIZE_MAX ? "module load" : "runtime";
}

void verdict_write(const Fault *f, const Threads *threads, Modules *modules, StrBuf *json,
                   VerdictText *text) {
        const Case c = { f, threads, modules };
        text->context = find_context(&c);
        json_out_string(json, "context", text->context);
        json_out_array(json, "verdicts");
        for (size_t i = 0; i < ELEMENTSOF(rules); i++) {
                _cleanup_(strbuf_done) StrBuf why = STRBUF_INIT;
                if (!rules[i].holds(&c, &why))
                        continue;
                write_rule(i, &why, json);
                text_rule(i, &why, text);
        }
        json_out_end_array(json);
        if (text->cause.n == 0)
                strbuf_add(&text->cause, "Unknown: no rule fits what the core has.\n");
        write_signature(&c, json, &text->signature);
}

void verdict_text_done(VerdictText *t) {
        strbuf_done(&t->cause);
        strbuf_done(&t->evidence);
        strbuf_done(&t->signature);
}
