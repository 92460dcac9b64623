/* neuron-collect doctor: checks every part of an installation, and reports what does not work with
 * a remedy.
 *
 * This file has the command and the order of the checks. The configuration is first, since without
 * it nothing else can be checked; then the agent's status, which the other checks use; the agent's
 * own state is last. It also checks what a snapshot needs. The other checks are in doctor_*.c;
 * doctor.c prints the findings. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/common/cli.h"
#include "cli/doctor/cores.h"
#include "cli/doctor/doctor.h"
#include "cli/hook/hook_check.h"
#include "config/config.h"
#include "config/keys.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/ids.h"
#include "lib/neuron/record.h"

#define VERSION_BYTES 256

/* ---- the configuration ---- */

static void report_config_error(Doctor *d, const Diag *fault) {
        char where[32] = "";
        if (fault->line)
                snprintf(where, sizeof where, ":%u", fault->line);
        doctor_report(d, FAILED, "configuration", fault->remedy, "%s%s: %s%s%s",
                      fault->file ? fault->file : d->cli->config_file, where,
                      fault->key ? fault->key : "", fault->key ? ": " : "", fault->fault);
}

static int read_configuration(Doctor *d, Config **ret) {
        const Cli *cli = d->cli;
        Diags diags = { 0 };
        int r = config_load(ret, cli->config_file, environ, &diags);
        for (size_t i = 0; i < diags.n; i++)
                report_config_error(d, &diags.items[i]);
        diag_done(&diags);
        if (r == 0)
                doctor_report(d, OK, "configuration", NULL, "'%s' has no faults", cli->config_file);
        return r == 0 ? CLI_YES : CLI_USAGE;
}

static int find_destination(const Doctor *d) {
        _cleanup_(suggest_done) Suggestion near = { .wanted = d->only };
        if (config_find_destination(d->config, d->only))
                return CLI_YES;
        for (size_t i = 0; i < d->config->n_destinations; i++)
                suggest_add(&near, d->config->destinations[i].name);
        return near.name ? cli_usage("doctor", "unknown destination '%s' (did you mean '%s'?)",
                                     d->only, near.name)
                         : cli_usage("doctor", "unknown destination '%s'", d->only);
}

/* ---- what a snapshot needs ---- */

/* @return the driver's version as text, the caller's; NULL: no driver is loaded */
static char *driver_version(const Doctor *d) {
        _cleanup_free_ char *path =
                path_join(d->config->snapshot.sysfs_root, "module/neuron/version");
        char *text = NULL;
        if (!path || fs_read_file(AT_FDCWD, path, VERSION_BYTES, &text, NULL) < 0)
                return NULL;
        text[strcspn(text, "\n")] = '\0';
        return text;
}

static void check_snapshots(Doctor *d) {
        _cleanup_free_ char *version = driver_version(d);
        if (!d->config->snapshot.enabled)
                doctor_report(d, WARNING, "snapshot", "set snapshot.enabled: true",
                              "is switched off: nothing is recorded of the hardware when a job "
                              "fails");
        else
                doctor_report(d, OK, "snapshot", NULL, "%s%s",
                              version ? "the Neuron driver is " : "no Neuron driver is loaded here",
                              version ? version : "");
}

/* @return whether no process listens on a socket: ECONNREFUSED. The type is wrong on purpose, so
 * that a process that listens is not disturbed: the kernel refuses it with EPROTOTYPE. */
static bool is_stale(const char *path) {
        _cleanup_close_ int fd = fs_connect_socket(path, SOCK_STREAM);
        return fd == -ECONNREFUSED;
}

/* Checks the socket on which systemd starts the supervisor of the collectors. Without it the agent
 * runs collectors as its own user, who may read neither devices nor other users' processes. */
static void check_probe(Doctor *d) {
        _cleanup_free_ char *parent = path_parent(d->config->api.socket),
                            *path = parent ? path_join(parent, "probe.sock") : NULL;
        uid_t uid;
        struct stat st;
        if (!path || !d->config->snapshot.enabled || !doctor_agent_uid(d, &uid) || uid == 0)
                return; /* no agent, or one that may read everything itself */
        bool is_there = stat(path, &st) == 0 && S_ISSOCK(st.st_mode);
        if (is_there && !is_stale(path))
                doctor_report(d, OK, "snapshot", NULL, "'%s' exists: snapshots are complete", path);
        else
                doctor_report(d, WARNING, "snapshot",
                              is_there ? "systemctl restart neuron-collectd-probe.socket"
                                       : "systemctl enable --now neuron-collectd-probe.socket",
                              "%s '%s'%s: snapshots have only what the agent's user may read",
                              is_there ? "no process listens on" : "there is no", path,
                              is_there ? ", which is left over" : "");
}

/* Reports hooks whose directory the agent cannot see. The agent counts them since its state
 * directory was created. */
static void check_unseen(Doctor *d) {
        uint64_t n = cli_number(json_object_get(d->agent, "hook"), "unseen");
        if (n > 0)
                doctor_report(d, WARNING, "hook notes",
                              "mount the dump directory of containers from the host",
                              "%llu hooks named a directory that the agent cannot see",
                              (unsigned long long)n);
}

static void check_all_of_hook(Doctor *d, const void *subject) {
        (void)subject;
        hook_check(&(HookCheck){ d->config, d->hook_directory, d->agent, doctor_report, d });
        check_unseen(d);
        check_snapshots(d);
        check_probe(d);
}

/* ---- what becomes of the cores of jobs ---- */

static void check_cores(Doctor *d, const void *subject) {
        (void)subject;
        CoreAdvice advice[CORE_ADVICE_MAX];
        size_t n = cores_check(d->config, advice);
        for (size_t i = 0; i < n; i++) {
                doctor_report(d, advice[i].finding, "process cores", advice[i].remedy, "%s",
                              advice[i].detail ? advice[i].detail : strerror(ENOMEM));
                free(advice[i].detail);
                free(advice[i].remedy);
        }
}

/* ---- the command ---- */

static void find_instance(Doctor *d) {
        const char *origin;
        int r = instance_id_find(d->config->node.instance_id, d->config->snapshot.sysfs_root,
                                 d->instance_id, &origin);
        if (r < 0) {
                snprintf(d->instance_id, sizeof d->instance_id, "unknown-host");
                doctor_report(d, FAILED, "instance id", "set node.instance_id",
                              "cannot be determined: %s", strerror(-r));
        } else
                doctor_report(d, OK, "instance id", NULL, "%s (by %s)", d->instance_id, origin);
}

static void check_everything(Doctor *d) {
        doctor_agent_request_status(d);
        doctor_agent_check_user(d);
        find_instance(d);
        if (!d->only) {
                doctor_agent_check_state_directory(d);
                doctor_sources_check(d);
                (void)doctor_guarded(d, "process cores", "its path", check_cores, NULL);
                (void)doctor_guarded(d, "hook", d->hook_directory, check_all_of_hook, NULL);
        }
        doctor_destinations_check(d);
        if (!d->only)
                doctor_agreement_check(d);
        doctor_agent_check(d);
}

static int finish(const Doctor *d, int code) {
        if (cli_is_interrupted())
                return cli_error("interrupted");
        if (d->findings) {
                int printed =
                        cli_print_new_json(d->cli, json_pack("{s:b, s:O}", "ok", d->n[FAILED] == 0,
                                                             "findings", d->findings));
                if (printed != CLI_YES)
                        return printed;
        }
        return code != CLI_YES ? code : d->n[FAILED] == 0 ? CLI_YES : CLI_NO;
}

int cmd_doctor(const Cli *cli, int argc, char **argv) {
        Doctor d = { .cli = cli, .hook_directory = HOOK_DIRECTORY };
        const CliOption options[] = { { "destination", .value = &d.only },
                                      { "hook-directory", .value = &d.hook_directory },
                                      { 0 } };
        _cleanup_(config_freep) Config *config = NULL;
        int code = cli_options_only(argc, argv, options);
        if (code != CLI_YES)
                return code;
        cli_catch_signals();
        json_auto_t *findings = cli->json ? json_array() : NULL;
        d.findings = findings;
        code = read_configuration(&d, &config);
        d.config = config;
        if (code == CLI_YES && d.only && (code = find_destination(&d)) != CLI_YES)
                return code;
        if (code == CLI_YES)
                d.hangs = calloc(config->n_destinations + 1, sizeof *d.hangs);
        if (code == CLI_YES && d.hangs)
                check_everything(&d);
        else if (code == CLI_YES)
                code = cli_error("%s", strerror(ENOMEM));
        cli_progress_end();
        json_decref(d.agent);
        free(d.hangs);
        return finish(&d, code);
}
