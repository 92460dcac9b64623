/* neuron-collect retry, cancel, pin, unpin, flush, scan: one request, and what became of it. */
#include <string.h>

#include "cli/common/cli.h"

/* What was requested may need a moment, so what is reported is where the bundle stands now. */
static void print_outcome(const char *action, const json_t *b) {
        const char *id = cli_text(b, "id"), *state = cli_text(b, "state");
        if (strcmp(action, "pin") == 0)
                cli_line("%s: pinned; retention keeps its source until `neuron-collect unpin` "
                         "(this version deletes nothing by itself)",
                         id);
        else if (strcmp(action, "unpin") == 0)
                cli_line("%s: no longer pinned", id);
        else if (strcmp(action, "retry") == 0 && strcmp(state, "shipping") == 0)
                cli_line("%s: is being shipped", id);
        else if (strcmp(action, "retry") == 0)
                cli_line(
                        "%s: tried again now, it is %s; `neuron-collect wait %s` waits for the end",
                        id, state, id);
        else if (strcmp(state, "cancelled") == 0)
                cli_line("%s: cancelled; its files stay at the source", id);
        else
                cli_line("%s: will be cancelled when the copy that is under way has stopped; it is "
                         "%s",
                         id, state);
}

int cmd_act(const Cli *cli, int argc, char **argv) {
        const char *id;
        json_t *answer = NULL, *b = NULL;
        int code = cli_one_argument(argc, argv, "one bundle id, as `neuron-collect list` prints it",
                                    &id);
        if (code == CLI_YES)
                code = cli_request_bundle(cli, id, argv[0], &answer);
        if (code == CLI_YES)
                code = cli_request_bundle(cli, id, NULL, &b);
        if (code == CLI_YES && cli->json)
                code = cli_print_json(cli, b);
        else if (code == CLI_YES)
                print_outcome(argv[0], b);
        json_decref(answer);
        json_decref(b);
        return code;
}

int cmd_flush(const Cli *cli, int argc, char **argv) {
        bool flush = strcmp(argv[0], "flush") == 0;
        json_t *answer = NULL;
        int code = cli_no_argument(argc, argv);
        if (code == CLI_YES)
                code = cli_request(cli, "POST", flush ? "/v1/flush" : "/v1/scan", &answer);
        if (code == CLI_YES && cli->json)
                code = cli_print_json(cli, answer);
        else if (code == CLI_YES)
                cli_line("scanning all sources now%s; `neuron-collect wait --all` waits for "
                         "the end",
                         flush ? ", without waiting for `settle`" : "");
        json_decref(answer);
        return code;
}
