/* What is read was written by a process that crashed: each pointer may lead anywhere, and each list
 * may be endless. A code object and a text count only when their type is the interpreter's own.
 * @see CPython: Python/traceback.c, Objects/locations.md */
#include "collectors/crash/python_stack.h"

#include <errno.h>
#include <fnmatch.h>
#include <string.h>

#include "lib/base/array.h"
#include "lib/base/path.h"

enum {
        INTERPRETERS_MAX = 64,
        THREADS_MAX = 4096,
        LINES_BYTES_MAX = 64 << 10,
        TABLE_BYTES = 1024,
        /* of a location's first byte */
        LOCATION_ONE_LINE = 10,
        LOCATION_NO_COLUMNS = 13,
        LOCATION_LONG = 14,
        LOCATION_NONE = 15,
        CODE_UNIT = 2,
};

typedef struct Offsets {
        uint32_t version;
        uint64_t ascii_bit, kind_unit, non_ascii, cstack_owner;
        bool has_own_table, has_c_frame;
        uint64_t interpreters, interpreter_next, threads, thread_next, thread_interpreter,
                thread_tid, c_frame, current_frame, frame_previous, frame_code, frame_instruction,
                frame_owner, code_file, code_name, code_lines, code_first_line, code_instructions,
                object_type, bytes_size, bytes_data, text_state, text_length, text_data;
} Offsets;

static const Offsets offsets_by_version[] = {
#include "collectors/crash/python_offsets.def"
};

typedef struct Python {
        Modules *modules;
        PythonStacks *stacks;
        Offsets o;
        uint64_t runtime, code_type, text_type;
} Python;

/* All of these: 0, CORE_MEMORY_E_* or what else is no stack, -errno. */
enum { NOT_PYTHON = CORE_MEMORY_E_LIMIT + 1 };

static int read_word(const Python *p, uint64_t address, uint64_t *ret) {
        return modules_read(p->modules, address, ret, sizeof *ret);
}

/* ---- finding the interpreter ---- */

static const char *const file_names[] = { "python3*", "libpython3*.so*", "python" };

static bool may_be_python(const Module *m) {
        for (size_t i = 0; i < ELEMENTSOF(file_names); i++)
                if (fnmatch(file_names[i], path_name(m->path), 0) == 0)
                        return true;
        return false;
}

static uint64_t find_symbol(const Module *m, ElfFile *file, const char *name) {
        uint64_t address = elf_file_find(file, name);
        return address ? m->bias + address : 0;
}

/* 3.13 has most offsets in a table of its own, at the beginning of _PyRuntime; ours are where it
 * has them. */
static int read_own_table(Python *p) {
        uint8_t table[TABLE_BYTES];
        uint64_t *fields = &p->o.interpreters,
                 n = (sizeof p->o - offsetof(Offsets, interpreters)) / sizeof *fields;
        int r = modules_read(p->modules, p->runtime, table, sizeof table);
        if (r != 0)
                return r;
        if (memcmp(table, "xdebugpy", 8) != 0)
                return NOT_PYTHON;
        for (size_t i = 0; i < n; i++) {
                if (&fields[i] == &p->o.c_frame)
                        continue;
                if (fields[i] > sizeof table - sizeof *fields)
                        return NOT_PYTHON;
                memcpy(&fields[i], table + fields[i], sizeof fields[i]);
                if (fields[i] > UINT32_MAX)
                        return NOT_PYTHON;
        }
        return 0;
}

static int set_offsets(Python *p, uint64_t version_address) {
        uint32_t version;
        int r = modules_read(p->modules, version_address, &version, sizeof version);
        if (r != 0)
                return r;
        p->stacks->version = version >> 16;
        for (size_t i = 0; i < ELEMENTSOF(offsets_by_version); i++)
                if (offsets_by_version[i].version == p->stacks->version) {
                        p->o = offsets_by_version[i];
                        return p->o.has_own_table ? read_own_table(p) : 0;
                }
        return NOT_PYTHON;
}

/* @return 0, NOT_PYTHON */
static int find_python(Python *p) {
        for (size_t i = 0; i < p->modules->n; i++) {
                Module *m = &p->modules->items[i];
                ElfFile *file = may_be_python(m) ? modules_file(p->modules, m) : NULL;
                p->runtime = file ? find_symbol(m, file, "_PyRuntime") : 0;
                if (p->runtime == 0)
                        continue;
                p->code_type = find_symbol(m, file, "PyCode_Type");
                p->text_type = find_symbol(m, file, "PyUnicode_Type");
                uint64_t version = find_symbol(m, file, "Py_Version");
                return version ? set_offsets(p, version) : NOT_PYTHON;
        }
        return NOT_PYTHON;
}

/* ---- texts ---- */

/* As UTF-8. */
static size_t add_character(char *to, uint32_t c) {
        static const uint8_t lead[] = { 0, 0xc0, 0xe0, 0xf0 };
        size_t n = (size_t)(c >= 0x80) + (c >= 0x800) + (c >= 0x10000);
        for (size_t i = n; i > 0; i--, c >>= 6)
                to[i] = (char)(0x80 | (c & 0x3f));
        to[0] = (char)(lead[n] | (n == 3 ? c & 7 : c));
        return n + 1;
}

static int check_type(const Python *p, uint64_t object, uint64_t type) {
        uint64_t found;
        int r = read_word(p, object + p->o.object_type, &found);
        return r != 0 ? r : type != 0 && found == type ? 0 : NOT_PYTHON;
}

/* @param object  a str: characters of one, two or four bytes */
static int read_text(const Python *p, uint64_t object, char ret[static PYTHON_TEXT_SIZE]) {
        uint32_t state = 0, data[PYTHON_TEXT_SIZE / 4];
        uint64_t length;
        int r = check_type(p, object, p->text_type);
        if (r == 0)
                r = modules_read(p->modules, object + p->o.text_state, &state, sizeof state);
        if (r == 0)
                r = read_word(p, object + p->o.text_length, &length);
        if (r != 0)
                return r;
        size_t width = state / p->o.kind_unit & 7, n = 0;
        if (width != 1 && width != 2 && width != 4)
                return NOT_PYTHON;
        uint64_t at = object + p->o.text_data + (state & p->o.ascii_bit ? 0 : p->o.non_ascii);
        size_t n_characters = MIN(length, sizeof data / width);
        r = modules_read(p->modules, at, data, n_characters * width);
        for (size_t i = 0; r == 0 && i < n_characters && n + 4 < PYTHON_TEXT_SIZE; i++) {
                uint32_t c = 0;
                memcpy(&c, (const char *)data + i * width, width);
                n += add_character(ret + n, c);
        }
        ret[n] = '\0';
        return r;
}

static int copy_text(const Python *p, uint64_t object, char **ret) {
        char text[PYTHON_TEXT_SIZE];
        int r = read_text(p, object, text);
        if (r != 0)
                return r;
        *ret = strdup(text);
        return *ret ? 0 : -ENOMEM;
}

/* ---- lines ---- */

typedef struct Bytes {
        const uint8_t *p, *end;
} Bytes;

static uint32_t read_varint(Bytes *b) {
        uint32_t v = 0;
        for (unsigned shift = 0; b->p < b->end && shift < 32; shift += 6) {
                uint8_t byte = *b->p++;
                v |= (uint32_t)(byte & 63) << shift;
                if (!(byte & 64))
                        break;
        }
        return v;
}

static int read_signed_varint(Bytes *b) {
        uint32_t v = read_varint(b);
        return v & 1 ? -(int)(v >> 1) : (int)(v >> 1);
}

/* @return the line of an instruction, by its offset in code units; 0 = it has none */
static int find_line(Bytes b, int line, uint64_t unit) {
        for (uint64_t at = 0; b.p < b.end;) {
                uint8_t first = *b.p++, kind = first >> 3 & 15;
                if (!(first & 0x80))
                        return 0;
                if (kind >= LOCATION_ONE_LINE && kind < LOCATION_NO_COLUMNS)
                        line += kind - LOCATION_ONE_LINE;
                else if (kind == LOCATION_NO_COLUMNS || kind == LOCATION_LONG)
                        line += read_signed_varint(&b);
                at += (first & 7) + 1;
                if (unit < at)
                        return kind == LOCATION_NONE ? 0 : line;
                while (b.p < b.end && !(*b.p & 0x80))
                        b.p++; /* columns */
        }
        return 0;
}

static int read_line(const Python *p, uint64_t code, uint64_t instruction, int *ret) {
        uint64_t table, n;
        int32_t first;
        int r = modules_read(p->modules, code + p->o.code_first_line, &first, sizeof first);
        if (r == 0)
                r = read_word(p, code + p->o.code_lines, &table);
        if (r == 0)
                r = read_word(p, table + p->o.bytes_size, &n);
        if (r != 0)
                return r;
        *ret = 0;
        if (n > LINES_BYTES_MAX)
                return 0; /* the frame is there without it */
        _cleanup_free_ uint8_t *data = malloc(n + 1);
        if (!data)
                return -ENOMEM;
        r = modules_read(p->modules, table + p->o.bytes_data, data, n);
        uint64_t begin = code + p->o.code_instructions;
        *ret = instruction < begin ? first /* it has not begun */
                                   : find_line((Bytes){ data, data + n }, first,
                                               (instruction - begin) / CODE_UNIT);
        return r;
}

/* ---- threads ---- */

static int read_frame(const Python *p, uint64_t frame, PythonFrame *ret) {
        uint64_t code, instruction, text;
        int r = read_word(p, frame + p->o.frame_code, &code);
        if (r == 0)
                r = check_type(p, code, p->code_type);
        if (r == 0)
                r = read_word(p, frame + p->o.frame_instruction, &instruction);
        if (r == 0)
                r = read_word(p, code + p->o.code_file, &text);
        if (r == 0)
                r = copy_text(p, text, &ret->file);
        if (r == 0)
                r = read_word(p, code + p->o.code_name, &text);
        if (r == 0)
                r = copy_text(p, text, &ret->function);
        return r != 0 ? r : read_line(p, code, instruction, &ret->line);
}

static void free_frame(PythonFrame *f) {
        free(f->file);
        free(f->function);
}

static int add_frame(const Python *p, PythonThread *t, uint64_t frame) {
        uint8_t owner;
        PythonFrame f = { 0 };
        int r = modules_read(p->modules, frame + p->o.frame_owner, &owner, sizeof owner);
        if (r != 0 || owner == p->o.cstack_owner)
                return r;
        if (t->n_frames == PYTHON_FRAMES_MAX || p->stacks->n_frames == PYTHON_ALL_FRAMES_MAX)
                return NOT_PYTHON;
        r = read_frame(p, frame, &f);
        if (r == 0)
                r = array_grow(&t->frames, t->n_frames, sizeof *t->frames);
        if (r != 0) {
                free_frame(&f);
                return r;
        }
        t->frames[t->n_frames++] = f;
        p->stacks->n_frames++;
        return 0;
}

static int read_frames(const Python *p, uint64_t thread, PythonThread *t) {
        uint64_t frame, holder = thread;
        int r = p->o.has_c_frame ? read_word(p, thread + p->o.c_frame, &holder) : 0;
        if (r == 0)
                r = read_word(p, holder + p->o.current_frame, &frame);
        for (unsigned n = 0; r == 0 && frame != 0 && n < 2 * PYTHON_FRAMES_MAX; n++) {
                r = add_frame(p, t, frame);
                if (r == 0)
                        r = read_word(p, frame + p->o.frame_previous, &frame);
        }
        t->is_cut = r > 0 || (r == 0 && frame != 0);
        return MIN(r, 0);
}

static int add_thread(const Python *p, uint64_t interpreter, uint64_t thread) {
        PythonStacks *s = p->stacks;
        uint64_t tid, owner;
        int r = read_word(p, thread + p->o.thread_interpreter, &owner);
        if (r == 0)
                r = read_word(p, thread + p->o.thread_tid, &tid);
        if (r == 0 && owner != interpreter)
                return NOT_PYTHON;
        if (r != 0)
                return r;
        if (array_grow(&s->threads, s->n_threads, sizeof *s->threads) < 0)
                return -ENOMEM;
        PythonThread *t = &s->threads[s->n_threads++];
        *t = (PythonThread){ .tid = (uint32_t)tid };
        return read_frames(p, thread, t);
}

static int read_interpreter(const Python *p, uint64_t interpreter) {
        uint64_t thread;
        int r = read_word(p, interpreter + p->o.threads, &thread);
        while (r == 0 && thread != 0 && p->stacks->n_threads < THREADS_MAX) {
                r = add_thread(p, interpreter, thread);
                if (r == 0)
                        r = read_word(p, thread + p->o.thread_next, &thread);
        }
        return r;
}

static int read_all(Python *p) {
        uint64_t interpreter = 0;
        int r = read_word(p, p->runtime + p->o.interpreters, &interpreter);
        for (unsigned n = 0; r == 0 && interpreter != 0 && n < INTERPRETERS_MAX; n++) {
                r = read_interpreter(p, interpreter);
                if (r == 0)
                        r = read_word(p, interpreter + p->o.interpreter_next, &interpreter);
        }
        return r;
}

int python_stacks_read(PythonStacks *ret, Modules *modules) {
        Python p = { .modules = modules, .stacks = ret };
        *ret = (PythonStacks){ 0 };
        int r = find_python(&p);
        if (r == 0)
                r = read_all(&p);
        else if (ret->version != 0 && r > 0)
                ret->fault = "this version of Python is not supported";
        if (r > 0 && ret->version != 0 && !ret->fault)
                ret->fault = r == NOT_PYTHON ? "the interpreter's data is damaged"
                             : r == CORE_MEMORY_E_LIMIT
                                     ? "the limit of what is read of a core was reached"
                                     : "the core does not contain all of the interpreter's memory";
        return MIN(r, 0);
}

void python_stacks_done(PythonStacks *p) {
        for (size_t i = 0; i < p->n_threads; i++) {
                for (size_t k = 0; k < p->threads[i].n_frames; k++)
                        free_frame(&p->threads[i].frames[k]);
                free(p->threads[i].frames);
        }
        free(p->threads);
        *p = (PythonStacks){ 0 };
}
