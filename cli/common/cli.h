/* What all commands share: output, arguments, requests to the agent, signals. All text is printed
 * through these functions, which escape control characters of files' names, peers and the agent. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "lib/base/cleanup.h"

struct Config;

enum { CLI_YES = 0, CLI_NO = 1, CLI_USAGE = 2, CLI_NO_AGENT = 3 };

typedef struct Cli {
        const char *socket;      /* the agent's; NULL for commands that need no agent */
        const char *config_file; /* the configuration; the default file may be missing */
        bool config_given;       /* by --config: the file must exist */
        bool json;               /* --json: output for scripts */
        bool colour;             /* stdout is a terminal that has colours */
        bool terminal;           /* stdout is a terminal */
        bool progress;           /* stderr is a terminal on which progress is drawn */
        uint64_t deadline_usec;  /* CLOCK_BOOTTIME: no request waits longer; 0 = none */
} Cli;

typedef enum CliNeeds { CLI_READS_CONFIG, CLI_NEEDS_AGENT } CliNeeds;

typedef struct CliCommand {
        const char *name, *arguments, *help;
        const char *details; /* more of --help, ends in a newline; may be NULL */
        CliNeeds needs;
        /* argv[0] is the command's name; returns an exit code */
        int (*run)(const Cli *cli, int argc, char **argv);
} CliCommand;

int cmd_status(const Cli *cli, int argc, char **argv);
int cmd_list(const Cli *cli, int argc, char **argv);
int cmd_wait(const Cli *cli, int argc, char **argv);
/* show, explain, retry, cancel, pin, unpin */
int cmd_bundle(const Cli *cli, int argc, char **argv);
int cmd_agent(const Cli *cli, int argc, char **argv); /* flush, scan, resume */
int cmd_redeliver(const Cli *cli, int argc, char **argv);
int cmd_snapshot(const Cli *cli, int argc, char **argv);
int cmd_drain(const Cli *cli, int argc, char **argv);
int cmd_verify(const Cli *cli, int argc, char **argv);
int cmd_estimate(const Cli *cli, int argc, char **argv);
int cmd_config(const Cli *cli, int argc, char **argv);
int cmd_crash(const Cli *cli, int argc, char **argv);
int cmd_key(const Cli *cli, int argc, char **argv);
int cmd_ls(const Cli *cli, int argc, char **argv);
int cmd_report(const Cli *cli, int argc, char **argv);
int cmd_get(const Cli *cli, int argc, char **argv);
int cmd_doctor(const Cli *cli, int argc, char **argv);
int cmd_hook(const Cli *cli, int argc, char **argv);

/* ---- signals ---- */

/** For commands that report what an interruption leaves behind: from here on SIGINT, SIGTERM and
 * SIGHUP only set a flag, which the command checks several times a second, and a closed pipe is an
 * error of write(2). */
void cli_catch_signals(void);
bool cli_is_interrupted(void);
/** At the end of main(): if there was a signal, ends the process by it, so that a shell sees it. */
void cli_raise_caught_signal(void);

/* ---- printing ---- */

/** Writes to stdout; control characters and bytes that are not UTF-8 become `\xNN`.
 * @return the approximate number of columns */
int cli_part(const char *fmt, ...) _printf_(1, 2);
/** The same and ends the line. */
void cli_line(const char *fmt, ...) _printf_(1, 2);
/** Prints `neuron-collect: …` on stderr, escaped the same way. @return CLI_NO */
int cli_error(const char *fmt, ...) _printf_(1, 2);
/** Reports wrong usage, and names the --help to read. @param command  NULL: of neuron-collect
 * itself
 * @return CLI_USAGE */
int cli_usage(const char *command, const char *fmt, ...) _printf_(2, 3);

/** Writes the word of a state, in green, yellow or red by its meaning.
 * @param width  columns that are filled up with blanks; may be 0 */
void cli_state(const Cli *cli, const char *word, int width);

/** `1 file`, `2 files`. @param singular  its plural must end in -s @param buf at least
 * CLI_COUNT_SIZE */
#define CLI_COUNT_SIZE 48
const char *cli_count(char *buf, uint64_t n, const char *singular);
/** Copies a moment of the API without the fraction of a second.
 * @param buf  at least CLI_MOMENT_SIZE  @return buf */
#define CLI_MOMENT_SIZE 40
const char *cli_moment(char *buf, const char *moment);

/** Draws a line of progress on stderr in the place of the last one, if stderr is a terminal. An
 * error message erases it. */
void cli_progress(const Cli *cli, const char *fmt, ...) _printf_(2, 3);
void cli_progress_end(void);
/** `[#####...............]`. @param buf  at least CLI_BAR_SIZE @return buf */
#define CLI_BAR_SIZE 23
const char *cli_bar(char *buf, unsigned percent);

/* ---- arguments ---- */

/* An option, and where its value goes. With both `value` and `is_given` the value is optional. */
typedef struct CliOption {
        const char *name;
        const char **value;
        bool *is_given;
        char letter; /* the same as `-x`; 0 = none */
} CliOption;

enum { CLI_OPTIONS_MAX = 12 };

/** Parses options by a table, and reports faults. The arguments begin at optind afterwards.
 * @param command  NULL: neuron-collect's own options, before the command
 * @param options  at most CLI_OPTIONS_MAX, ends in { 0 }  @return CLI_YES, CLI_USAGE */
int cli_options(const char *command, int argc, char **argv, const CliOption *options);
/** As cli_options() for argv[0], a command without arguments. */
int cli_options_only(int argc, char **argv, const CliOption *options);
/** For commands without options: checks the number of arguments.
 * @param what  the argument, for the message  @return CLI_YES, CLI_USAGE */
int cli_no_argument(int argc, char **argv);
int cli_one_argument(int argc, char **argv, const char *what, const char **ret);
/** Reads the value of an option. @param value  NULL: not given, *ret_usec does not change
 * @param example  for the message  @return CLI_YES, CLI_USAGE */
int cli_duration(const char *command, const char *value, const char *example, uint64_t *ret_usec);

/* ---- requests ---- */

/** Sends a request to the agent. A failure is reported on stderr.
 * @param ret_json  the body of a 2xx answer, to be json_decref'ed; untouched otherwise
 * @return CLI_YES; CLI_NO: refused; CLI_USAGE: an invalid request; CLI_NO_AGENT */
int cli_request(const Cli *cli, const char *method, const char *path, json_t **ret_json);
/** The same about one bundle. @param action  NULL = the bundle itself */
int cli_request_bundle(const Cli *cli, const char *id, const char *action, json_t **ret_json);

/** Reads the configuration as the daemon does. Faults are reported on stderr, unless `quiet`.
 * @return CLI_YES and *ret, CLI_USAGE */
int cli_load_config(const Cli *cli, bool quiet, struct Config **ret);

/** Prints JSON for scripts: indented, keys in the API's order; on a terminal in ASCII, since \u009b
 * is a control character too. Takes a NULL for lack of memory. @return CLI_YES, CLI_NO */
int cli_print_json(const Cli *cli, const json_t *json);
/** The same, and releases the JSON. @param json  stolen */
int cli_print_new_json(const Cli *cli, json_t *json);
/** @return the text as a JSON string, spelled by path_escape() where it is not UTF-8; null for
 * NULL; NULL for lack of memory */
json_t *cli_json_string(const char *text);

/** @return the string at a key, "" when there is none */
const char *cli_text(const json_t *object, const char *key);
unsigned long long cli_number(const json_t *object, const char *key);
bool cli_is_true(const json_t *object, const char *key);
/** @return the object of a list whose key has this value, borrowed; NULL */
const json_t *cli_find(const json_t *list, const char *key, const char *value);
/** @return an array's string, "" when it is none */
const char *cli_string(const json_t *value);
typedef struct CliCopy { /* the progress of a copy; 0: not known */
        uint64_t done_bytes, total_bytes, rate, sent_bytes, eta_seconds;
        bool has_eta;
} CliCopy;
/** Formats the progress of a copy from the API's object: `50 % of 8.0 MiB, 2.0 MiB/s, 2s left, 1.0
 * MiB sent`. @param buf  at least CLI_PROGRESS_SIZE  @return buf; "" when nothing is known yet */
#define CLI_PROGRESS_SIZE 192
const char *cli_progress_text(char *buf, const json_t *shipping);
CliCopy cli_copy(const json_t *shipping);
/** Draws the same behind a bar. @param what  is drawn before the bar; "" */
void cli_draw_copy(const Cli *cli, const char *what, const CliCopy *copy);

/** Formats the failure that hooks reported, from its JSON: `1200 NRT_…, job K, rank 3`.
 * @param buf  at least CLI_FAILURE_SIZE  @return buf; "" for null */
#define CLI_FAILURE_SIZE 256
const char *cli_failure_text(char *buf, const json_t *failure);

/** @return 0 to 100 */
unsigned cli_percent(uint64_t done, uint64_t total);

/* ---- names ---- */

/* Finds the name that is most like one that does not exist, for "did you mean". */
typedef struct Suggestion {
        const char *wanted; /* borrowed */
        char *name;         /* the nearest so far, NULL = none is near; owned */
        unsigned distance;
} Suggestion;

void suggest_add(Suggestion *s, const char *name);
void suggest_done(Suggestion *s);
