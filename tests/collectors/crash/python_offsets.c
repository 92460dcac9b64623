/* Prints the row of collectors/crash/python_offsets.def for the interpreter whose headers it is
 * compiled with:
 *   cc -DNDEBUG $(python3.11-config --includes) -I$(dirname Python.h)/internal python_offsets.c
 * For 3.13, whose _PyRuntime begins with such a table, the numbers are where it has them. */
#define Py_BUILD_CORE 1
#include <Python.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <internal/pycore_frame.h>
#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>

#if PY_VERSION_HEX >= 0x030d0000
#define OWN(part, field) offsetof(_Py_DebugOffsets, part.field)
#endif

static void print(const char *name, size_t value) {
        printf("  .%s = %zu,\n", name, value);
}

static void print_state(void) {
        PyASCIIObject ascii, kind;
        unsigned v;
        memset(&ascii, 0, sizeof ascii);
        memset(&kind, 0, sizeof kind);
        ascii.state.ascii = 1;
        kind.state.kind = 1;
        memcpy(&v, (char *)&ascii + offsetof(PyASCIIObject, state), sizeof v);
        print("ascii_bit", v);
        memcpy(&v, (char *)&kind + offsetof(PyASCIIObject, state), sizeof v);
        print("kind_unit", v);
        print("non_ascii", sizeof(PyCompactUnicodeObject) - sizeof(PyASCIIObject));
}

int main(void) {
        printf("{ .version = 0x%04x,\n", PY_VERSION_HEX >> 16);
        print_state();
#if PY_VERSION_HEX >= 0x030d0000
        print("has_own_table", 1);
        print("cstack_owner", FRAME_OWNED_BY_CSTACK);
        print("interpreters", OWN(runtime_state, interpreters_head));
        print("interpreter_next", OWN(interpreter_state, next));
        print("threads", OWN(interpreter_state, threads_head));
        print("thread_next", OWN(thread_state, next));
        print("thread_interpreter", OWN(thread_state, interp));
        print("thread_tid", OWN(thread_state, native_thread_id));
        print("current_frame", OWN(thread_state, current_frame));
        print("frame_previous", OWN(interpreter_frame, previous));
        print("frame_code", OWN(interpreter_frame, executable));
        print("frame_instruction", OWN(interpreter_frame, instr_ptr));
        print("frame_owner", OWN(interpreter_frame, owner));
        print("code_file", OWN(code_object, filename));
        print("code_name", OWN(code_object, name));
        print("code_lines", OWN(code_object, linetable));
        print("code_first_line", OWN(code_object, firstlineno));
        print("code_instructions", OWN(code_object, co_code_adaptive));
        print("object_type", OWN(pyobject, ob_type));
        print("bytes_size", OWN(bytes_object, ob_size));
        print("bytes_data", OWN(bytes_object, ob_sval));
        print("text_state", OWN(unicode_object, state));
        print("text_length", OWN(unicode_object, length));
        print("text_data", OWN(unicode_object, asciiobject_size));
#else
#if PY_VERSION_HEX >= 0x030c0000
        print("cstack_owner", FRAME_OWNED_BY_CSTACK);
#else
        print("cstack_owner", 255);
#endif
        print("interpreters", offsetof(_PyRuntimeState, interpreters.head));
        print("interpreter_next", offsetof(PyInterpreterState, next));
        print("threads", offsetof(PyInterpreterState, threads.head));
        print("thread_next", offsetof(PyThreadState, next));
        print("thread_interpreter", offsetof(PyThreadState, interp));
        print("thread_tid", offsetof(PyThreadState, native_thread_id));
        print("has_c_frame", 1);
        print("c_frame", offsetof(PyThreadState, cframe));
        print("current_frame", offsetof(_PyCFrame, current_frame));
        print("frame_previous", offsetof(_PyInterpreterFrame, previous));
        print("frame_code", offsetof(_PyInterpreterFrame, f_code));
        print("frame_instruction", offsetof(_PyInterpreterFrame, prev_instr));
        print("frame_owner", offsetof(_PyInterpreterFrame, owner));
        print("code_file", offsetof(PyCodeObject, co_filename));
        print("code_name", offsetof(PyCodeObject, co_name));
        print("code_lines", offsetof(PyCodeObject, co_linetable));
        print("code_first_line", offsetof(PyCodeObject, co_firstlineno));
        print("code_instructions", offsetof(PyCodeObject, co_code_adaptive));
        print("object_type", offsetof(PyObject, ob_type));
        print("bytes_size", offsetof(PyVarObject, ob_size));
        print("bytes_data", offsetof(PyBytesObject, ob_sval));
        print("text_state", offsetof(PyASCIIObject, state));
        print("text_length", offsetof(PyASCIIObject, length));
        print("text_data", sizeof(PyASCIIObject));
#endif
        printf("},\n");
        return 0;
}
