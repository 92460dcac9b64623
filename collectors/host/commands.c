/* The collector commands: the programs that an operator has configured (snapshot.commands).
 *
 * They run one after the other, without a shell, each with a timeout of its own, as children of
 * this process and in its sandbox. What a program prints becomes a raw file, redacted; how it ended
 * is a record. The request never names a program: supervisor.c replaces its commands by those of
 * the configuration. */
#include <errno.h>
#include <string.h>
#include <sys/wait.h>

#include "collectors/runner/collector.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/json_out.h"
#include "lib/base/redact.h"
#include "lib/event/child.h"

#define FILE_NAME_SIZE 128
#define OUTPUT_MAX (16 * MIB)

/* A program that runs. */
typedef struct CommandRun {
        uint64_t begun_usec;
        const CollectCommand *command;
        CollectOut *out;
        bool is_reported;
        int error; /* of writing its record */
} CommandRun;

/* @param ret_name  of the file @return 0, -EFBIG: it did not fit, -errno */
static int write_output(CollectOut *out, const CollectCommand *c, const ChildResult *result,
                        char ret_name[static FILE_NAME_SIZE]) {
        _cleanup_(strbuf_done) StrBuf clean = STRBUF_INIT;
        (void)snprintf(ret_name, FILE_NAME_SIZE, "command-%s.txt", c->name);
        redact_text(&clean, result->output, result->output_bytes);
        int r = strbuf_error(&clean);
        if (r < 0)
                return r;
        _cleanup_close_ int fd = collect_raw_file(out, ret_name);
        return fd < 0 ? fd : collect_write(out, fd, clean.text ? clean.text : "", clean.n);
}

/* @param error  why it could not be started; 0: it was */
static int emit_record(const CommandRun *run, const ChildResult *result, int error) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT, cmdline = STRBUF_INIT;
        uint64_t duration_usec = clock_boottime_usec() - run->begun_usec;
        const CollectCommand *c = run->command;
        char name[FILE_NAME_SIZE] = "";
        int r = error < 0 || run->out->dir_fd < 0 ? 0 : write_output(run->out, c, result, name);
        for (char **a = c->run; *a; a++)
                strbuf_add_n(&cmdline, *a, strlen(*a) + 1);
        json_out_object(&b, NULL);
        json_out_string(&b, "command", c->name);
        json_out_array(&b, "run");
        redact_cmdline(&b, cmdline.text ? cmdline.text : "", cmdline.n);
        json_out_end_array(&b);
        if (error < 0) {
                json_out_string(&b, "error", strerror(-error));
        } else {
                bool has_ended = !result->is_stuck && result->error != -ECHILD;
                json_out_u64(&b, "duration_ms", duration_usec / USEC_PER_MSEC);
                json_out_bool(&b, "timed_out", result->error == -ETIMEDOUT);
                if (has_ended && WIFEXITED(result->status))
                        json_out_i64(&b, "exit_status", WEXITSTATUS(result->status));
                else if (has_ended && WIFSIGNALED(result->status))
                        json_out_i64(&b, "signal", WTERMSIG(result->status));
                json_out_string(&b, "file", r == 0 && *name ? name : NULL);
                json_out_u64(&b, "bytes", result->output_bytes);
                json_out_bool(&b, "cut", result->is_cut || r == -EFBIG);
                if (r < 0 && r != -EFBIG)
                        json_out_string(&b, "error", strerror(-r));
        }
        json_out_end_object(&b);
        return collect_emit(run->out, &b);
}

static void on_done(const ChildResult *result, void *userdata) {
        CommandRun *run = userdata;
        bool has_run =
                result->error == 0 || result->error == -ETIMEDOUT || result->error == -ECHILD;
        run->is_reported = true;
        run->error = emit_record(run, result, has_run ? 0 : result->error);
}

/* keeps_signals: SIGXFSZ stays ignored, so that a program which writes too large a file gets an
 * error of write(2), as this process does (sandbox.c). */
static int run_one(sd_event *event, const CollectCommand *c, CollectOut *out) {
        _cleanup_(child_freep) Child *child = NULL;
        CommandRun run = { .begun_usec = clock_boottime_usec(), .command = c, .out = out };
        int r = child_new(&child, event,
                          &(ChildOptions){ .argv = c->run,
                                           .merges_errors = true,
                                           .keeps_signals = true,
                                           .timeout_usec = c->timeout_usec,
                                           .output_max_bytes = MIN(out->max_bytes, OUTPUT_MAX),
                                           .cuts_output = true,
                                           .on_done = on_done,
                                           .userdata = &run });
        if (r < 0)
                return emit_record(&run, NULL, r);
        while (r >= 0 && !run.is_reported)
                r = sd_event_run(event, UINT64_MAX);
        return r < 0 ? r : run.error;
}

int collect_commands(const CollectRequest *request, CollectOut *out) {
        sd_event *event = NULL;
        int r = sd_event_new(&event);
        for (size_t i = 0; r >= 0 && i < request->n_commands; i++)
                r = run_one(event, &request->commands[i], out);
        sd_event_unref(event);
        return MIN(r, 0);
}
