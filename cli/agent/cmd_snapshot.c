/* neuron-collect snapshot: requests a snapshot of the hardware from the agent, waits for it, and
 * prints its directory, or copies its files to one of the caller's. What a snapshot contains is
 * left to the agent and its collectors. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "cli/common/cli.h"
#include "cli/common/client.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"

#define POLL_USEC (100 * USEC_PER_MSEC)
#define WAIT_MAX_USEC                                                                              \
        (15 *                                                                                      \
         USEC_PER_MINUTE) /* commands may take ten minutes each; the agent gives up by itself */
#define NAME_MAX_BYTES 64

/* ---- requests ---- */

static int request_snapshot(const Cli *cli, char ret_name[static NAME_MAX_BYTES]) {
        json_auto_t *answer = NULL;
        int code = cli_request(cli, "POST", "/v1/snapshot", &answer);
        if (code != CLI_YES)
                return code;
        const char *name = cli_text(answer, "name");
        if (!*name || strlen(name) >= NAME_MAX_BYTES ||
            strspn(name, "0123456789T-") != strlen(name))
                return cli_error("the agent gave the snapshot no possible name");
        strcpy(ret_name, name);
        return CLI_YES;
}

static int wait_for_snapshot(const Cli *cli, const char *name, json_t **ret) {
        uint64_t begun = clock_boottime_usec();
        char path[128], span[CLOCK_ISO_SIZE];
        (void)snprintf(path, sizeof path, "/v1/snapshots/%s", name);
        for (;;) {
                json_auto_t *answer = NULL;
                int code = cli_request(cli, "GET", path, &answer);
                uint64_t waited = clock_boottime_usec() - begun;
                if (code != CLI_YES)
                        return code;
                if (cli_is_true(answer, "done")) {
                        cli_progress_end();
                        *ret = TAKE_PTR(answer);
                        return CLI_YES;
                }
                if (cli_is_interrupted() || waited > WAIT_MAX_USEC)
                        return cli_error("%s; the agent continues with '%s'",
                                         cli_is_interrupted() ? "interrupted" : "it takes too long",
                                         name);
                cli_progress(cli, "taking a snapshot, %s", clock_format_duration(span, waited));
                (void)usleep(POLL_USEC); /* or a signal */
        }
}

/* ---- copying ---- */

/* @return whether a name from the agent may become a file of the caller's: one component, and no
 * hidden file */
static bool is_plain(const char *name) {
        return *name && *name != '.' && !strchr(name, '/') && strlen(name) <= 100;
}

typedef struct SnapshotCopy {
        const Cli *cli;
        const char *name; /* of the snapshot */
        const char *to;   /* the directory of dir_fd */
        int dir_fd;
} SnapshotCopy;

/* Copies one file; reports why it cannot. @return CLI_YES, CLI_NO */
static int copy_file(const SnapshotCopy *e, const char *file) {
        _cleanup_(client_reply_done) ClientReply reply = { 0 };
        _cleanup_free_ char *escaped = client_escape(file);
        char path[512];
        if (!escaped)
                return cli_error("cannot fetch '%s': %s", file, strerror(ENOMEM));
        (void)snprintf(path, sizeof path, "/v1/snapshots/%s/%s", e->name, escaped);
        int r = client_request(e->cli->socket, "GET", path, CLIENT_TIMEOUT_MSEC, &reply);
        const char *why = cli_text(json_object_get(reply.json, "error"), "message");
        if (r == 0 && reply.status != 200)
                cli_error("the agent does not give '%s' of the snapshot '%s': %s (HTTP status "
                          "%ld); it keeps only the newest snapshots: if this one is gone, take "
                          "another",
                          file, e->name, *why ? why : "no reason given", reply.status);
        else if (r != 0)
                cli_error("cannot fetch '%s' of the snapshot '%s': %s; it stays on the node, see "
                          "`neuron-collect status` and the agent's log",
                          file, e->name,
                          r == CLIENT_E_NO_AGENT    ? reply.why.text
                          : r == CLIENT_E_TOO_LARGE ? "it has more than 256 MiB"
                                                    : strerror(-r));
        else if ((r = fs_write_file(e->dir_fd, file, reply.body, reply.n_body, 0600)) < 0)
                cli_error("cannot write '%s' to '%s': %s; name another directory with -o", file,
                          e->to, strerror(-r));
        return r == 0 && reply.status == 200 ? CLI_YES : CLI_NO;
}

static int copy_files(const Cli *cli, const char *name, const json_t *answer, const char *to) {
        int r = fs_mkdir_p(to, 0700);
        _cleanup_close_ int dir_fd =
                r < 0 ? -1 : open(to, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (dir_fd < 0)
                return cli_error("cannot write to '%s': %s; name a directory with -o", to,
                                 strerror(r < 0 ? -r : errno));
        const SnapshotCopy copy = { .cli = cli, .name = name, .to = to, .dir_fd = dir_fd };
        size_t i;
        json_t *v;
        json_array_foreach(json_object_get(answer, "files"), i, v) {
                const char *file = cli_string(v);
                if (!is_plain(file))
                        continue;
                int code = copy_file(&copy, file);
                if (code != CLI_YES)
                        return code;
        }
        return CLI_YES;
}

/* ---- printing ---- */

/* Prints a line for each section, with its state. */
static void print_sections(const Cli *cli, const json_t *document) {
        size_t i;
        json_t *s;
        json_array_foreach(json_object_get(document, "sections"), i, s) {
                const char *state = cli_text(s, "state"), *detail = cli_text(s, "detail");
                (void)cli_part("  %-14s ", cli_text(s, "name"));
                cli_state(cli, state, 0);
                if (*detail)
                        cli_line(": %s", detail);
                else
                        cli_line("%s", "");
        }
}

int cmd_snapshot(const Cli *cli, int argc, char **argv) {
        const char *output = NULL;
        const CliOption options[] = { { "output", .value = &output, .letter = 'o' }, { 0 } };
        char name[NAME_MAX_BYTES];
        json_auto_t *answer = NULL;
        int code = cli_options_only(argc, argv, options);
        if (code != CLI_YES)
                return code;
        _cleanup_free_ char *to = output ? fs_absolute_path(output) : NULL;
        cli_catch_signals();
        code = request_snapshot(cli, name);
        if (code == CLI_YES)
                code = wait_for_snapshot(cli, name, &answer);
        if (code != CLI_YES)
                return code;
        const json_t *document = json_object_get(answer, "document");
        if (!json_is_object(document))
                return cli_error("snapshot '%s' failed; see the agent's log", name);
        if (to)
                code = copy_files(cli, name, answer, to);
        if (code != CLI_YES || cli->json)
                return code != CLI_YES ? code : cli_print_json(cli, document);
        cli_line("%s", to ? to : cli_text(answer, "directory"));
        print_sections(cli, document);
        return CLI_YES;
}
