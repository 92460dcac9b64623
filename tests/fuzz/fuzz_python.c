/* The stacks of Python's threads, from memory that anybody may have written. This program is the
 * interpreter: it has the symbols that are looked for, which stand for the input's bytes. */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "collectors/crash/python_stack.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { MEMORY_BYTES = 64 << 10 };
#define MEMORY_ADDRESS UINT64_C(0x10000000)

/* _PyRuntime is the first byte; tests/fuzz/make_corpus.py knows where the others are. */
__asm__(".bss\n"
        ".globl _PyRuntime, Py_Version, PyCode_Type, PyUnicode_Type\n"
        "_PyRuntime: .zero 0x800\n"
        "Py_Version: .zero 0x100\n"
        "PyCode_Type: .zero 0x100\n"
        "PyUnicode_Type: .zero 0x100\n"
        ".text\n");

typedef struct Input {
        const uint8_t *data;
        size_t n;
} Input;

static ssize_t read_input(void *data, size_t n, uint64_t offset, void *userdata) {
        const Input *in = userdata;
        if (offset >= in->n)
                return 0;
        n = MIN(n, in->n - offset);
        memcpy(data, in->data + offset, n);
        return (ssize_t)n;
}

static void check(bool holds) {
        if (!holds)
                abort();
}

static void check_stacks(const PythonStacks *p) {
        size_t n = 0;
        for (size_t i = 0; i < p->n_threads; i++) {
                const PythonThread *t = &p->threads[i];
                check(t->n_frames <= PYTHON_FRAMES_MAX);
                for (size_t k = 0; k < t->n_frames; k++)
                        check(strlen(t->frames[k].file) < PYTHON_TEXT_SIZE &&
                              strlen(t->frames[k].function) < PYTHON_TEXT_SIZE);
                n += t->n_frames;
        }
        check(n == p->n_frames && n <= PYTHON_ALL_FRAMES_MAX);
}

static void read_stacks(CoreMemory *memory, ElfFile *self) {
        Module python = { .start = MEMORY_ADDRESS,
                          .end = MEMORY_ADDRESS + MEMORY_BYTES,
                          .path = "/usr/bin/python3.11",
                          .state = MODULE_FOUND,
                          .file = self };
        python.bias = MEMORY_ADDRESS - elf_file_find(self, "_PyRuntime");
        Modules modules = { .memory = memory, .items = &python, .n = 1 };
        PythonStacks stacks;
        int r = python_stacks_read(&stacks, &modules);
        check(r == 0);
        check_stacks(&stacks);
        python_stacks_done(&stacks);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        static ElfFile *self;
        Input in = { data, n };
        CoreSegment segment = { .address = MEMORY_ADDRESS,
                                .memory_bytes = MEMORY_BYTES,
                                .file_bytes = MEMORY_BYTES,
                                .flags = PF_R | PF_W };
        const CoreNotes notes = { .machine = EM_X86_64, .segments = &segment, .n_segments = 1 };
        CoreMemory memory;
        if (!self)
                check(elf_file_open(&self, open("/proc/self/exe", O_RDONLY | O_CLOEXEC)) == 0);
        check(core_memory_init(&memory, &notes, read_input, &in) == 0);
        read_stacks(&memory, self);
        core_memory_done(&memory);
        return 0;
}
