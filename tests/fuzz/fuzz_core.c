/* A core from its first byte to the report: notes, maps, memory, chains, without any other file. */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "collectors/crash/core/core_stream.h"
#include "collectors/crash/report.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

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

static int open_nothing(const FileQuery *q, FileReply *ret, const char **ret_place,
                        void *userdata) {
        (void)q, (void)ret, (void)ret_place, (void)userdata;
        return -ENODATA;
}

static void check(bool holds) {
        if (!holds)
                abort();
}

static void check_notes(Input *in) {
        CoreNotes c;
        if (core_notes_read(&c, read_input, in) == 0) {
                check(c.n_threads <= CORE_THREADS_MAX && c.n_segments <= CORE_SEGMENTS_MAX);
                for (size_t i = 0; i < c.n_segments; i++)
                        check(c.segments[i].file_bytes <= c.segments[i].memory_bytes);
                for (size_t i = 0; i < c.n_mappings; i++)
                        check(strlen(c.mappings[i].path) < CORE_FILES_BYTES_MAX &&
                              c.mappings[i].start < c.mappings[i].end);
        }
        core_notes_done(&c);
}

static void check_report(CoreRead read, void *userdata, uint64_t n) {
        _cleanup_(strbuf_done) StrBuf json = STRBUF_INIT, text = STRBUF_INIT;
        int r = report_write(&(ReportInput){ .core_name = "core",
                                             .core_bytes = n,
                                             .context = &(Context){ 0 },
                                             .read = read,
                                             .open = open_nothing,
                                             .userdata = userdata },
                             &json, &text);
        if (r == 0) { /* whatever is in it, it is JSON */
                json_t *parsed = json_loadb(json.text, json.n, 0, NULL);
                check(parsed != NULL);
                json_decref(parsed);
        }
}

static ssize_t read_stream(void *data, size_t n, uint64_t offset, void *userdata) {
        return core_stream_read(userdata, data, n, offset);
}

/* The same read once, from its beginning, and decompressed when it begins so. */
static void check_stream(const uint8_t *data, size_t n) {
        _cleanup_close_ int fd = memfd_create("core", MFD_CLOEXEC);
        _cleanup_(core_stream_freep) CoreStream *s = NULL;
        check(fd >= 0 && write(fd, data, n) == (ssize_t)n);
        if (core_stream_new(&s, fd, UINT64_MAX) == 0)
                check_report(read_stream, s, core_stream_bytes(s));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        Input in = { data, n };
        check_notes(&in);
        check_report(read_input, &in, n);
        check_stream(data, n);
        return 0;
}
