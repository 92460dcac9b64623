/* The report: reads a core with the modules of this folder, and writes what they found, as JSON for
 * programs and as Markdown for people.
 *
 * The order of the work is the order of importance, because what is read of a core and the time are
 * limited: the crashed thread, Python's stacks, the other threads. The report is published then,
 * and written a second time with versions and source lines, because reading debug information may
 * kill this process. Nothing is concluded here: verdict.c has the rules. docs/CRASH-REPORTS.md
 * describes the report. */
#include "collectors/crash/report.h"

#include <elf.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>

#include "collectors/crash/python_stack.h"
#include "collectors/crash/verdict.h"
#include "lib/base/clock.h"
#include "lib/base/digest.h"
#include "lib/base/json_out.h"
#include "lib/base/path.h"
#include "lib/base/redact.h"

enum {
        FRAMES_MAX = 32 << 10, /* of all groups together, which JSON can hold */
        SHORT_FRAMES = 10,     /* … of each group behind them */
        TEXT_GROUPS = 12,      /* Markdown is for people */
        TEXT_FRAMES = 32,
        TEXT_TIDS = 8,
        LINES_MAX = 16, /* functions inlined into one another */
        ID_SIZE = 2 * ELF_BUILD_ID_MAX + 1,
};
#define REPORT_VERSION 1
#define LINES_USEC USEC_PER_SEC
#define VERSIONS_USEC (300 * USEC_PER_MSEC)

struct FrameLines {
        ElfLine items[LINES_MAX];
        size_t n;
};

typedef struct Report {
        const ReportInput *in;
        const CoreNotes *notes;
        CoreMemory *memory;
        Modules *modules;
        const Threads *threads;
        const Fault *fault;
        const PythonStacks *python;
        bool has_all_versions;
        struct FrameLines *lines; /* of the crashed thread's frames; NULL: none is known */
        StrBuf *json, *text;
} Report;

/* Readers of JSON have 63 bits; only a damaged core needs more. */
static void json_count(StrBuf *b, const char *key, uint64_t v) {
        json_out_u64(b, key, MIN(v, (uint64_t)INT64_MAX));
}

/* ---- frames ---- */

static const char *module_name(const Module *m) {
        return m ? path_name(m->path) : NULL;
}

static void find_lines(Report *r) {
        const ThreadGroup *g = r->threads->groups;
        uint64_t end_usec = clock_cpu_usec() + LINES_USEC;
        r->lines = r->threads->n_groups > 0 ? calloc(g->n_frames, sizeof *r->lines) : NULL;
        for (size_t i = 0; r->lines && i < g->n_frames; i++)
                r->lines[i].n = modules_lines(r->modules, unwind_frame_address(&g->frames[i]),
                                              end_usec, r->lines[i].items, LINES_MAX);
}

static void write_lines(Report *r, size_t frame) {
        const ElfLine *lines = r->lines[frame].items;
        size_t n = r->lines[frame].n;
        json_out_array(r->json, "lines");
        for (size_t i = 0; i < n; i++) {
                json_out_object(r->json, NULL);
                json_out_string(r->json, "function", lines[i].function);
                json_out_string(r->json, "file", lines[i].file);
                json_out_i64(r->json, "line", lines[i].line);
                json_out_bool(r->json, "is_inlined", lines[i].is_inlined);
                json_out_end_object(r->json);
        }
        json_out_end_array(r->json);
}

static void write_frame(Report *r, const ThreadGroup *g, size_t number) {
        const UnwindFrame *f = &g->frames[number];
        ModuleSymbol function;
        uint64_t address = unwind_frame_address(f);
        Module *m = modules_at(r->modules, address);
        bool is_known = modules_symbol(r->modules, address, &function);
        json_out_object(r->json, NULL);
        json_out_hex(r->json, "pc", f->pc);
        json_out_string(r->json, "function", is_known ? function.name : NULL);
        if (is_known)
                json_count(r->json, "offset", function.offset + (f->pc - address));
        json_out_string(r->json, "module", module_name(m));
        json_out_string(r->json, "component", m ? verdict_component(m->path) : NULL);
        if (m)
                json_out_hex(r->json, "module_offset", f->pc - (m->file ? m->bias : m->start));
        if (f->is_not_code)
                json_out_bool(r->json, "is_not_code", true);
        if (f->is_signal_frame)
                json_out_bool(r->json, "signal_handler_called", true);
        if (r->lines && g == r->threads->groups)
                write_lines(r, number);
        json_out_end_object(r->json);
}

static void write_tids(Report *r, size_t group, size_t max) {
        json_out_array(r->json, "threads");
        for (size_t i = 0; i < r->notes->n_threads && max > 0; i++)
                if (r->threads->group_of[i] == group) {
                        json_out_u64(r->json, NULL, r->notes->threads[i].tid);
                        max--;
                }
        json_out_end_array(r->json);
}

static void write_groups(Report *r) {
        size_t n_written = 0;
        json_out_array(r->json, "groups");
        for (size_t i = 0; i < r->threads->n_groups; i++) {
                const ThreadGroup *g = &r->threads->groups[i];
                size_t n = n_written + g->n_frames <= FRAMES_MAX
                                   ? g->n_frames
                                   : MIN(g->n_frames, (size_t)SHORT_FRAMES);
                n_written += n;
                json_out_object(r->json, NULL);
                write_tids(r, i, CORE_THREADS_MAX);
                json_out_array(r->json, "frames");
                for (size_t k = 0; k < n; k++)
                        write_frame(r, g, k);
                json_out_end_array(r->json);
                json_out_u64(r->json, "frames_not_listed", g->n_frames - n);
                json_out_string(r->json, "end", unwind_ends[g->end].name);
                json_out_end_object(r->json);
        }
        json_out_end_array(r->json);
}

static void write_threads(Report *r) {
        json_out_object(r->json, "threads");
        json_out_u64(r->json, "count", r->notes->n_threads);
        json_out_u64(r->json, "not_listed", r->notes->n_threads_missing);
        json_out_u64(r->json, "frames", r->threads->n_frames);
        json_out_object(r->json, "chains_by_end");
        for (size_t i = 0; i <= UNWIND_FRAMES_LIMIT; i++)
                if (r->threads->n_ends[i] > 0)
                        json_out_u64(r->json, unwind_ends[i].name, r->threads->n_ends[i]);
        json_out_end_object(r->json);
        write_groups(r);
        json_out_end_object(r->json);
}

/* ---- Python ---- */

static void write_python_thread(const PythonThread *t, StrBuf *b) {
        json_out_object(b, NULL);
        json_out_u64(b, "thread", t->tid);
        json_out_array(b, "frames");
        for (size_t i = 0; i < t->n_frames; i++) {
                json_out_object(b, NULL);
                json_out_string(b, "file", t->frames[i].file);
                if (t->frames[i].line > 0)
                        json_out_i64(b, "line", t->frames[i].line);
                else
                        json_out_null(b, "line");
                json_out_string(b, "function", t->frames[i].function);
                json_out_end_object(b);
        }
        json_out_end_array(b);
        json_out_bool(b, "is_cut", t->is_cut);
        json_out_end_object(b);
}

static void write_python(Report *r) {
        char version[16];
        const PythonStacks *p = r->python;
        if (p->version == 0) {
                json_out_null(r->json, "python");
                return;
        }
        (void)snprintf(version, sizeof version, "%u.%u", p->version >> 8, p->version & 255);
        json_out_object(r->json, "python");
        json_out_string(r->json, "version", version);
        json_out_array(r->json, "threads");
        for (size_t i = 0; i < p->n_threads; i++)
                write_python_thread(&p->threads[i], r->json);
        json_out_end_array(r->json);
        json_out_string(r->json, "fault", p->fault);
        json_out_end_object(r->json);
}

/* ---- modules ---- */

/* Those whose file was requested: they have a frame, or what a frame needs. */
static bool is_shown(const Module *m) {
        return m->state != MODULE_UNUSED;
}

static const char *text_or_null(const char *text) {
        return text[0] != '\0' ? text : NULL;
}

static void write_module(Report *r, const Module *m) {
        char id[ID_SIZE];
        json_out_object(r->json, NULL);
        json_out_path(r->json, "path", m->path);
        json_out_hex(r->json, "start", m->start);
        json_out_hex(r->json, "end", m->end);
        json_out_string(r->json, "build_id",
                        m->build_id.n ? digest_hex(m->build_id.bytes, m->build_id.n, id) : NULL);
        json_out_string(r->json, "file", module_state_name(m->state));
        json_out_string(r->json, "found_in", m->place);
        json_out_string(r->json, "component", verdict_component(m->path));
        json_out_string(r->json, "package", text_or_null(m->version.package));
        json_out_string(r->json, "version", text_or_null(m->version.version));
        json_out_string(r->json, "git", text_or_null(m->version.git));
        json_out_end_object(r->json);
}

static void write_modules(Report *r) {
        json_out_bool(r->json, "has_all_versions", r->has_all_versions);
        json_out_array(r->json, "modules");
        for (size_t i = 0; i < r->modules->n; i++)
                if (is_shown(&r->modules->items[i]))
                        write_module(r, &r->modules->items[i]);
        json_out_end_array(r->json);
}

/* ---- all of it ---- */

static uint64_t missing_bytes(const Report *r) {
        uint64_t end_bytes = 0;
        for (size_t i = 0; i < r->notes->n_segments; i++)
                end_bytes = MAX(end_bytes,
                                r->notes->segments[i].offset + r->notes->segments[i].file_bytes);
        return end_bytes - MIN(end_bytes, r->in->core_bytes);
}

static void write_core(Report *r) {
        const CoreNotes *c = r->notes;
        json_out_object(r->json, "core");
        json_out_path(r->json, "name", r->in->core_name);
        json_count(r->json, "bytes", r->in->core_bytes);
        json_count(r->json, "bytes_missing", missing_bytes(r));
        json_out_bool(r->json, "notes_are_cut", c->is_cut);
        json_out_string(r->json, "left_out", r->in->core_left_out);
        json_out_u64(r->json, "bytes_read", r->memory->n_bytes_read);
        json_out_string(r->json, "machine", c->machine == EM_X86_64 ? "x86_64" : "aarch64");
        json_out_end_object(r->json);
        json_out_object(r->json, "process");
        json_out_u64(r->json, "pid", c->pid);
        json_out_string(r->json, "command", c->command);
        json_out_end_object(r->json);
}

/* ---- for people ---- */

static void text_frame(Report *r, size_t number, const UnwindFrame *f) {
        ModuleSymbol function;
        uint64_t address = unwind_frame_address(f);
        Module *m = modules_at(r->modules, address);
        bool is_known = modules_symbol(r->modules, address, &function);
        strbuf_addf(r->text, "| #%zu | 0x%" PRIx64 " | ", number, f->pc);
        if (f->is_signal_frame)
                strbuf_add(r->text, "*signal handler called*");
        else if (is_known) {
                strbuf_add_code(r->text, function.name);
                strbuf_addf(r->text, "+%" PRIu64, function.offset + (f->pc - address));
        } else
                strbuf_add(r->text, "??");
        strbuf_add(r->text, " | ");
        if (m) {
                strbuf_add_code(r->text, module_name(m));
                strbuf_addf(r->text, "+0x%" PRIx64, f->pc - (m->file ? m->bias : m->start));
        }
        const char *component = m ? verdict_component(m->path) : NULL;
        strbuf_addf(r->text, " | %s |\n", component ? component : "");
}

/* @return how many frames from this one on have the same address: recursion */
static size_t count_repeated(const ThreadGroup *g, size_t at) {
        size_t n = 1;
        while (at + n < g->n_frames && g->frames[at + n].pc == g->frames[at].pc)
                n++;
        return n;
}

/* The source of the crashing thread's frames: `read.c:12 in load, inlined into read.c:40`. */
static void text_lines(Report *r, size_t frame) {
        const ElfLine *lines = r->lines[frame].items;
        size_t n = r->lines[frame].n;
        for (size_t i = 0; i < n; i++) {
                if (!lines[i].file)
                        continue;
                strbuf_add(r->text, "| | | ");
                if (lines[i].function)
                        strbuf_add_code(r->text, lines[i].function);
                strbuf_add(r->text, lines[i].is_inlined ? " (inlined) | " : " | ");
                strbuf_add_code(r->text, lines[i].file);
                strbuf_addf(r->text, ":%d | |\n", lines[i].line);
        }
}

static void text_chain(Report *r, const ThreadGroup *g) {
        size_t i = 0;
        strbuf_add(r->text, "| Frame | Address | Function | Library / Source | Component "
                            "|\n|---|---|---|---|---|\n");
        for (size_t n_lines = 0; i < g->n_frames && n_lines < TEXT_FRAMES; n_lines++) {
                size_t n = count_repeated(g, i);
                text_frame(r, i, &g->frames[i]);
                if (r->lines && g == r->threads->groups)
                        text_lines(r, i);
                if (n > 2)
                        strbuf_addf(r->text, "| … | | %zu times the same | | |\n", n);
                i += n > 2 ? n : 1;
        }
        if (i < g->n_frames)
                strbuf_addf(r->text, "\n… and %zu more.\n", g->n_frames - i);
        if (g->end != UNWIND_COMPLETE)
                strbuf_addf(r->text, "\nThe chain ends at #%zu: %s.\n", g->n_frames - 1,
                            unwind_ends[g->end].text);
        strbuf_add(r->text, "\n");
}

/* The crashing thread's first, then some others. */
static void text_python_thread(Report *r, const PythonThread *t) {
        strbuf_addf(r->text, "Thread %u:\n\n| Line | Function |\n|---|---|\n", t->tid);
        for (size_t i = 0; i < MIN(t->n_frames, (size_t)TEXT_FRAMES); i++) {
                strbuf_add(r->text, "| ");
                strbuf_add_code(r->text, t->frames[i].file);
                if (t->frames[i].line > 0)
                        strbuf_addf(r->text, ":%d", t->frames[i].line);
                strbuf_add(r->text, " | ");
                strbuf_add_code(r->text, t->frames[i].function);
                strbuf_add(r->text, " |\n");
        }
        strbuf_add(r->text,
                   t->is_cut || t->n_frames > TEXT_FRAMES ? "\nThere are more.\n\n" : "\n");
}

static void text_python(Report *r) {
        const PythonStacks *p = r->python;
        size_t n_shown = 0;
        if (p->version == 0)
                return;
        strbuf_addf(r->text, "### Python %u.%u\n\nThreads: %zu.\n\n", p->version >> 8,
                    p->version & 255, p->n_threads);
        if (p->fault)
                strbuf_addf(r->text, "Not complete: %s.\n\n", p->fault);
        for (size_t i = 0; i < p->n_threads; i++)
                if (p->threads[i].tid == r->fault->tid)
                        text_python_thread(r, &p->threads[i]);
        for (size_t i = 0; i < p->n_threads && n_shown < TEXT_GROUPS; i++)
                if (p->threads[i].tid != r->fault->tid) {
                        text_python_thread(r, &p->threads[i]);
                        n_shown++;
                }
}

static void text_others(Report *r) {
        const Threads *t = r->threads;
        strbuf_addf(r->text, "### Other threads\n\nThreads: %zu. Groups of equal chains: %zu.\n\n",
                    r->notes->n_threads - 1, t->n_groups - 1);
        for (size_t i = 1; i < MIN(t->n_groups, (size_t)TEXT_GROUPS + 1); i++) {
                size_t n_shown = 0;
                strbuf_addf(r->text, "**%zu** (", t->groups[i].n_threads);
                for (size_t k = 0; k < r->notes->n_threads && n_shown < TEXT_TIDS; k++)
                        if (t->group_of[k] == i)
                                strbuf_addf(r->text, "%s%u", n_shown++ ? ", " : "",
                                            r->notes->threads[k].tid);
                strbuf_addf(r->text, "%s)\n\n", t->groups[i].n_threads > n_shown ? ", …" : "");
                text_chain(r, &t->groups[i]);
        }
        if (t->n_groups > TEXT_GROUPS + 1)
                strbuf_addf(r->text, "%zu more groups are in crash.json.\n\n",
                            t->n_groups - 1 - TEXT_GROUPS);
}

static const char *id_text(const Module *m, char buf[static ID_SIZE]) {
        return m->build_id.n ? digest_hex(m->build_id.bytes, m->build_id.n, buf) : "none";
}

static void text_version(Report *r, const Version *v) {
        const char *const parts[] = { v->package, v->version, v->git };
        for (size_t i = 0, n = 0; i < ELEMENTSOF(parts); i++)
                if (parts[i][0] != '\0') {
                        strbuf_add(r->text, n++ ? " " : "");
                        strbuf_add_code(r->text, parts[i]);
                }
}

static void text_modules(Report *r) {
        char id[ID_SIZE];
        strbuf_add(r->text, "### Container environment\n\n"
                            "| Component | Program or library | Version | Build id | File |\n"
                            "|---|---|---|---|---|\n");
        for (size_t i = 0; i < r->modules->n; i++) {
                const Module *m = &r->modules->items[i];
                const char *component = verdict_component(m->path);
                if (!is_shown(m))
                        continue;
                strbuf_addf(r->text, "| %s | ", component ? component : "");
                strbuf_add_code(r->text, m->path);
                strbuf_add(r->text, " | ");
                text_version(r, &m->version);
                strbuf_addf(r->text, " | %s | %s%s%s |\n", id_text(m, id),
                            module_state_name(m->state), m->place ? ", " : "",
                            m->place ? m->place : "");
        }
        strbuf_add(r->text, "\n");
}

static void text_head(Report *r, const VerdictText *v) {
        strbuf_add(r->text, "## Coredump Analysis: ");
        strbuf_add_code(r->text, r->in->core_name);
        strbuf_add(r->text, "\n\n**Crash signal:** ");
        fault_add_sentence(r->fault, r->text);
        strbuf_add(r->text, "\\\n**Crashing thread:** ");
        if (r->notes->n_threads > 0)
                strbuf_addf(r->text, "%" PRIu32 " of ", r->fault->tid);
        else
                strbuf_add(r->text, "not in the core, of ");
        strbuf_add_code(r->text, r->notes->command);
        strbuf_addf(r->text, " (pid %" PRIu32 ")\\\n", r->notes->pid);
        if (r->fault->message[0]) {
                _cleanup_(strbuf_done) StrBuf message = STRBUF_INIT;
                redact_text(&message, r->fault->message, strlen(r->fault->message));
                strbuf_add(r->text, "**Abort message:** ");
                strbuf_add_code(r->text, message.text ? message.text : "");
                strbuf_add(r->text, "\\\n");
        }
        strbuf_addf(r->text,
                    "**Crash context:** %s\\\n**Determinism:** %s\\\n**Signature:** %s\n\n",
                    v->context, v->seen.text ? v->seen.text : "",
                    v->signature.text ? v->signature.text : "");
        context_write_job(r->in->context, r->text);
}

/* What the core leaves open, so that nobody takes a part for the whole. */
static void text_limits(Report *r) {
        size_t n_before = r->text->n;
        const CoreNotes *c = r->notes;
        if (r->in->core_left_out)
                strbuf_addf(r->text, "- the core is not used completely: %s\n",
                            r->in->core_left_out);
        if (missing_bytes(r) > 0 || c->is_cut)
                strbuf_addf(r->text, "- the core is cut: %" PRIu64 " bytes of it are missing\n",
                            missing_bytes(r));
        for (size_t i = 1; i <= UNWIND_FRAMES_LIMIT; i++)
                if (r->threads->n_ends[i] > 0)
                        strbuf_addf(r->text, "- chains that end early: %zu, %s\n",
                                    r->threads->n_ends[i], unwind_ends[i].text);
        if (r->python->fault)
                strbuf_addf(r->text, "- Python's stacks: %s\n", r->python->fault);
        if (!r->has_all_versions)
                strbuf_add(r->text, "- versions of packages: not all of their lists were read\n");
        if (r->text->n == n_before)
                strbuf_add(r->text, "- the core is complete, and so are all chains\n");
}

static const char *program_path(const Report *r) {
        for (size_t i = 0; i < r->modules->n; i++)
                if (r->modules->items[i].is_program)
                        return r->modules->items[i].path;
        return "";
}

/* What somebody may copy into a shell: paths are the core's, and so anybody's. */
static void add_word(StrBuf *b, const char *path, const char *otherwise) {
        static const char safe[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                   "/._+-";
        bool is_safe = path[0] != '\0' && path[0] != '-' && path[strspn(path, safe)] == '\0';
        strbuf_add(b, is_safe ? path : otherwise);
}

static void text_next_steps(Report *r, const VerdictText *v) {
        char id[ID_SIZE];
        unsigned n = 1;
        strbuf_add(r->text, "### Recommended next steps\n\n");
        for (size_t i = 0; i < r->modules->n; i++) {
                const Module *m = &r->modules->items[i];
                if (m->state != MODULE_MISSING && m->state != MODULE_MISMATCH)
                        continue;
                strbuf_addf(r->text, "%u. Get ", n++);
                strbuf_add_code(r->text, m->path);
                strbuf_addf(r->text,
                            " with build id %s (`debuginfod-find executable %s`), and give its "
                            "root with --root.\n",
                            id_text(m, id), id_text(m, id));
        }
        if (v->next)
                strbuf_addf(r->text, "%u. %s\n", n++, v->next);
        strbuf_addf(r->text, "%u. `gdb -ex 'thread apply all bt' ", n++);
        add_word(r->text, program_path(r), "PROGRAM");
        strbuf_add(r->text, " ");
        add_word(r->text, r->in->core_name, "CORE");
        strbuf_add(r->text, "` shows arguments and locals where debug information is installed.\n");
        strbuf_addf(r->text, "%u. `eu-unstrip -n --core ", n++);
        add_word(r->text, r->in->core_name, "CORE");
        strbuf_add(r->text, "` lists the build ids of all that was mapped.\n");
        if (r->text->text && strstr(r->text->text, "`_Z"))
                strbuf_addf(r->text, "%u. `c++filt < crash.md` spells the names of C++.\n", n++);
}

static void write_json(Report *r, VerdictText *v) {
        json_out_object(r->json, NULL);
        json_out_u64(r->json, "version", REPORT_VERSION);
        json_out_string(r->json, "confinement", r->in->left_out);
        write_core(r);
        fault_write_json(r->fault, r->modules, r->json);
        verdict_write(&(VerdictInput){ r->fault, r->threads, r->modules, r->in->context }, r->json,
                      v);
        context_write_json(r->in->context, r->json);
        write_threads(r);
        write_python(r);
        write_modules(r);
        json_out_end_object(r->json);
        strbuf_add(r->json, "\n");
}

static void write_text(Report *r, const VerdictText *v) {
        text_head(r, v);
        strbuf_add(r->text, "### Crash call chain\n\n");
        if (r->threads->n_groups > 0)
                text_chain(r, &r->threads->groups[0]);
        else
                strbuf_add(r->text, "The core names no thread.\n\n");
        strbuf_add(r->text, "### Crashing instruction\n\n");
        fault_write_text(r->fault, r->modules, r->text);
        text_modules(r);
        strbuf_addf(r->text, "### Root cause\n\n%s\n### Evidence\n\n%s",
                    v->cause.text ? v->cause.text : "", v->evidence.text ? v->evidence.text : "");
        context_write_kernel(r->in->context, r->text);
        text_limits(r);
        strbuf_add(r->text, "\n### Upstream fix status\n\nNot checked\n\n");
        text_next_steps(r, v);
        strbuf_add(r->text, "\n");
        text_python(r);
        if (r->threads->n_groups > 1)
                text_others(r);
}

static void write_all(Report *r) {
        VerdictText v = { 0 };
        strbuf_clear(r->json);
        strbuf_clear(r->text);
        write_json(r, &v);
        write_text(r, &v);
        verdict_text_done(&v);
}

static int write_twice(Report *r) {
        write_all(r);
        int e = r->in->publish ? r->in->publish(r->json, r->text, r->in->userdata) : 0;
        if (e == 0) { /* what follows reads lists and debug information, which are hostile */
                r->has_all_versions =
                        modules_find_versions(r->modules, clock_cpu_usec() + VERSIONS_USEC) == 0;
                find_lines(r);
                write_all(r);
        }
        free(r->lines);
        return e;
}

static int analyse(Report *r, Modules *modules, Threads *threads) {
        Fault fault;
        PythonStacks python = { 0 };
        int e = threads_unwind_crashed(threads, modules);
        if (e == 0)
                e = fault_inspect(&fault, modules, threads);
        if (e == 0)
                e = python_stacks_read(&python, modules);
        if (e == 0)
                e = threads_unwind_others(threads, modules);
        if (e == 0) {
                r->python = &python;
                r->modules = modules;
                r->threads = threads;
                r->fault = &fault;
                e = write_twice(r);
        }
        python_stacks_done(&python);
        return e;
}

int report_write(const ReportInput *in, StrBuf *json, StrBuf *text) {
        CoreNotes notes;
        CoreMemory memory = { 0 };
        Modules modules = { 0 };
        Threads threads = { 0 };
        Report r = { .in = in, .notes = &notes, .memory = &memory, .json = json, .text = text };
        int e = core_notes_read(&notes, in->read, in->userdata);
        if (e == 0)
                e = core_memory_init(&memory, &notes, in->read, in->userdata);
        if (e == 0)
                e = modules_init(&modules, &memory, in->open, in->userdata);
        if (e == 0)
                e = analyse(&r, &modules, &threads);
        threads_done(&threads);
        modules_done(&modules);
        core_memory_done(&memory);
        core_notes_done(&notes);
        return e;
}
