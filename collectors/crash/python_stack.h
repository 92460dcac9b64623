/* The stacks of Python's threads, from an interpreter's own data: file, line and function. CPython
 * 3.11 to 3.13; needs no debug information. */
#pragma once

#include "collectors/crash/modules.h"

#define PYTHON_FRAMES_MAX 128 /* of a thread */
#define PYTHON_ALL_FRAMES_MAX (128 * KIB)
#define PYTHON_TEXT_SIZE 512

typedef struct PythonFrame {
        char *file, *function; /* UTF-8, cut */
        int line;              /* 0 = not known */
} PythonFrame;

typedef struct PythonThread {
        uint32_t tid;
        PythonFrame *frames; /* innermost first */
        size_t n_frames;
        bool is_cut; /* there are more, or the rest cannot be read */
} PythonThread;

typedef struct PythonStacks {
        uint32_t version; /* 0x030b; 0: there is no interpreter */
        PythonThread *threads;
        size_t n_threads, n_frames;
        const char *fault; /* a sentence: why not all is there; NULL */
} PythonStacks;

/** Finds an interpreter among the modules, and reads the stacks of its threads.
 * @param ret  to be given to python_stacks_done() whatever is returned
 * @return 0, -ENOMEM, -errno of the core */
int python_stacks_read(PythonStacks *ret, Modules *modules);
void python_stacks_done(PythonStacks *p);
