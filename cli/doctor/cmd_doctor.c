/* neuron-collect doctor: tries every part, and says the remedy for what does not work. */
#include <errno.h>
#include <pwd.h>
#include <stdarg.h>
#include <string.h>

#include "cli/doctor/doctor.h"
#include "cli/hook/hook_status.h"
#include "cli/near.h"
#include "lib/neuron/ids.h"

#define PASSWD_BYTES 4096

/* ---- telling ---- */

static const char *const words[N_FINDINGS] = { "ok", "warning", "FAILED" };

static json_t *finding_json(const char *word, const char *what, const char *detail,
                            const char *remedy) {
        return json_pack("{s:s, s:o, s:o, s:o}", "state", word, "what", cli_json_string(what),
                         "detail", cli_json_string(detail), "remedy", cli_json_string(remedy));
}

void doctor_report(Doctor *d, Finding finding, const char *what, const char *remedy,
                   const char *fmt, ...) {
        _cleanup_free_ char *text = NULL;
        va_list ap;
        va_start(ap, fmt);
        if (vasprintf(&text, fmt, ap) < 0)
                text = NULL;
        va_end(ap);
        d->n[finding]++;
        if (d->findings) {
                json_t *one = finding_json(words[finding], what, text ? text : "", remedy);
                if (json_array_append_new(d->findings, one) < 0)
                        cli_error("%s", strerror(ENOMEM));
                return;
        }
        cli_progress_end();
        cli_state(d->cli, words[finding], 8);
        cli_line("%s: %s%s%s", what, text ? text : "", remedy ? "; " : "", remedy ? remedy : "");
        (void)fflush(stdout); /* some parts take their time; main() asks how it went */
}

const char *doctor_user(uid_t uid, char buf[static DOCTOR_USER_SIZE]) {
        char space[PASSWD_BYTES];
        struct passwd pw, *found = NULL;
        if (getpwuid_r(uid, &pw, space, sizeof space, &found) == 0 && found)
                snprintf(buf, DOCTOR_USER_SIZE, "'%s'", pw.pw_name);
        else
                snprintf(buf, DOCTOR_USER_SIZE, "uid %u", (unsigned)uid);
        return buf;
}

/* ---- the configuration ---- */

static void tell_fault(Doctor *d, const Diag *fault) {
        char where[32] = "";
        if (fault->line)
                snprintf(where, sizeof where, ":%u", fault->line);
        doctor_report(d, FINDING_FAILED, "configuration", fault->remedy, "%s%s: %s%s%s",
                      fault->file ? fault->file : d->cli->config_file, where,
                      fault->key ? fault->key : "", fault->key ? ": " : "", fault->fault);
}

static int read_configuration(Doctor *d, Config **ret) {
        const Cli *cli = d->cli;
        Diags diags = { 0 };
        bool is_missing =
                !cli->config_given && access(cli->config_file, F_OK) < 0 && errno == ENOENT;
        int r = is_missing ? config_builtin(ret)
                           : config_load(ret, cli->config_file, environ, &diags);
        for (size_t i = 0; i < diags.n; i++)
                tell_fault(d, &diags.items[i]);
        diag_done(&diags);
        if (r == 0 && is_missing)
                doctor_report(d, FINDING_WARNING, "configuration",
                              "write one, as neuron-collectd.yaml(5) tells",
                              "there is no '%s', so the built-in one counts: the runtime's default "
                              "dump directory, delivered to a directory of this node",
                              cli->config_file);
        else if (r == 0)
                doctor_report(d, FINDING_OK, "configuration", NULL, "'%s' has no faults",
                              cli->config_file);
        return r == 0 ? CLI_YES : CLI_USAGE;
}

static int find_destination(const Doctor *d) {
        _cleanup_(near_done) Near near = near_init(d->only);
        for (size_t i = 0; i < d->config->n_destinations; i++) {
                if (strcmp(d->config->destinations[i].name, d->only) == 0)
                        return CLI_YES;
                near_look(&near, d->config->destinations[i].name);
        }
        _cleanup_free_ char *names = near_text(&near);
        return cli_usage("doctor", "no destination is called '%s'; %s", d->only,
                         names ? names : "");
}

/* ---- the command ---- */

static void find_instance(Doctor *d) {
        const char *origin;
        int r = instance_id_find(d->config->node.instance_id, d->config->snapshot.sysfs_root,
                                 d->instance_id, &origin);
        if (r < 0) {
                snprintf(d->instance_id, sizeof d->instance_id, "unknown-host");
                doctor_report(d, FINDING_FAILED, "instance id", "set node.instance_id",
                              "cannot be told: %s", strerror(-r));
        } else
                doctor_report(d, FINDING_OK, "instance id", NULL, "%s (by %s)", d->instance_id,
                              origin);
}

static void look_at_all(Doctor *d) {
        doctor_ask_agent(d);
        doctor_user_line(d);
        find_instance(d);
        if (!d->only) {
                doctor_state_directory(d);
                doctor_sources(d);
                doctor_hook(d);
        }
        doctor_destinations(d);
        doctor_agent(d);
}

static int finish(const Doctor *d, int code) {
        if (cli_is_interrupted()) {
                cli_error("interrupted");
                return CLI_NO;
        }
        if (d->findings) {
                json_t *answer = json_pack("{s:b, s:O}", "ok", d->n[FINDING_FAILED] == 0,
                                           "findings", d->findings);
                int printed = cli_print_json(d->cli, answer);
                json_decref(answer);
                if (printed != CLI_YES)
                        return printed;
        }
        return code != CLI_YES ? code : d->n[FINDING_FAILED] == 0 ? CLI_YES : CLI_NO;
}

static int parse(int argc, char **argv, Doctor *d) {
        static const struct option options[] = { { "destination", required_argument, NULL, 'd' },
                                                 { "hook-directory", required_argument, NULL, 'h' },
                                                 { 0 } };
        int o;
        while ((o = cli_option(&(CliOptions){ argv[0], ":", options }, argc, argv)) >= 0)
                switch (o) {
                case 'd':
                        d->only = optarg;
                        break;
                case 'h':
                        d->hook_directory = optarg;
                        break;
                default:
                        return CLI_USAGE;
                }
        return optind < argc ? cli_usage(argv[0], "takes only options, not '%s'", argv[optind])
                             : CLI_YES;
}

int cmd_doctor(const Cli *cli, int argc, char **argv) {
        Doctor d = { .cli = cli, .hook_directory = HOOK_DIRECTORY };
        Config *config = NULL;
        int code = parse(argc, argv, &d);
        if (code != CLI_YES)
                return code;
        cli_catch_signals();
        d.findings = cli->json ? json_array() : NULL;
        code = read_configuration(&d, &config);
        d.config = config;
        if (code == CLI_YES && d.only) {
                code = find_destination(&d);
                if (code != CLI_YES) {
                        config_free(config);
                        json_decref(d.findings);
                        return code;
                }
        }
        if (code == CLI_YES)
                look_at_all(&d);
        cli_progress_end();
        code = finish(&d, code);
        json_decref(d.agent);
        json_decref(d.findings);
        config_free(config);
        return code;
}
