/* neuron-collect config check, show: does what neuron-collectd --check and --print-config do.
 * Reading, checking and printing a configuration is left to config/. */
#include <errno.h>
#include <string.h>

#include "agent/peers/bus_keys.h"
#include "cli/common/cli.h"
#include "config/config.h"

static json_t *faults_json(const Diags *diags) {
        json_t *list = json_array();
        for (size_t i = 0; i < diags->n; i++) {
                const Diag *d = &diags->items[i];
                json_array_append_new(list,
                                      json_pack("{s:o, s:I, s:o, s:o, s:o}", "file",
                                                cli_json_string(d->file), "line",
                                                (json_int_t)d->line, "key", cli_json_string(d->key),
                                                "fault", cli_json_string(d->fault), "remedy",
                                                cli_json_string(d->remedy)));
        }
        return list;
}

/* @return the number of files that the configuration names and that are faulty */
static size_t check_files(const Config *config, Diags *diags) {
        size_t n = config_check_files(config, diags);
        int r = bus_key_file_verify(config->agreement.key_file, diags);
        if (r == -EACCES)
                cli_error("'%s' (agreement.key_file) cannot be read by this user, and so was not "
                          "checked",
                          config->agreement.key_file);
        return n + (r < 0 && r != -EACCES);
}

/* Prints the faults to stdout, as the answer. @return as cli_load_config() */
static int check_json(const Cli *cli) {
        Diags diags = { 0 };
        _cleanup_(config_freep) Config *config = NULL;
        int r = config_load(&config, cli->config_file, environ, &diags);
        if (r == 0 && check_files(config, &diags) > 0)
                r = CONFIG_E_FAULTY;
        json_t *answer = json_pack("{s:o, s:b, s:o}", "file", cli_json_string(cli->config_file),
                                   "ok", r == 0, "faults", faults_json(&diags));
        diag_done(&diags);
        int code = cli_print_new_json(cli, answer);
        return code != CLI_YES ? code : r == 0 ? CLI_YES : CLI_USAGE;
}

static int check(const Cli *cli) {
        if (cli->json)
                return check_json(cli);
        _cleanup_(config_freep) Config *config = NULL;
        int code = cli_load_config(cli, false, &config);
        if (code == CLI_YES) {
                Diags diags = { 0 };
                config_print_warnings(config, stderr);
                if (check_files(config, &diags) > 0)
                        code = CLI_USAGE;
                diag_print(&diags, stderr);
                diag_done(&diags);
        }
        if (code == CLI_YES) {
                cli_line("'%s': no faults", config->file);
        }
        return code;
}

static int show_json(const Cli *cli, const Config *config) {
        char *text = NULL;
        size_t n;
        FILE *f = open_memstream(&text, &n);
        int r = f ? config_print(config, f) : -ENOMEM;
        if (f && fclose(f) != 0)
                r = -ENOMEM;
        json_t *answer = r < 0 ? NULL
                               : json_pack("{s:o, s:o}", "file", cli_json_string(config->file),
                                           "yaml", cli_json_string(text));
        free(text);
        return cli_print_new_json(cli, answer);
}

static int show(const Cli *cli) {
        _cleanup_(config_freep) Config *config = NULL;
        int code = cli_load_config(cli, false, &config);
        if (code != CLI_YES)
                return code;
        if (cli->json)
                code = show_json(cli, config);
        else if (config_print(config, stdout) < 0)
                code = CLI_NO;
        return code;
}

int cmd_config(const Cli *cli, int argc, char **argv) {
        const char *what;
        int code = cli_one_argument(argc, argv, "`check` or `show`", &what);
        if (code != CLI_YES)
                return code;
        if (strcmp(what, "check") == 0)
                return check(cli);
        if (strcmp(what, "show") == 0)
                return show(cli);
        return cli_usage(argv[0], "requires `check` or `show`, not '%s'", what);
}
