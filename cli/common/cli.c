/* What all commands share: output, arguments, requests to the agent, signals, and reading the
 * agent's answers.
 *
 * All text that a command prints passes through here and is escaped, so that a file's name, a peer
 * or the agent cannot send control characters to a terminal. Errors name the remedy, and each kind
 * has its exit code. How a request is sent is left to client.c, and what an answer means to the
 * commands. */
#include "cli/common/cli.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <strings.h>

#include "cli/common/client.h"
#include "config/config.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"

/* Whether a line of progress is on the terminal, which the next output must erase first */
static bool progress_is_drawn;

/* ---- signals ---- */

static volatile sig_atomic_t caught_signal;

static void on_signal(int signal) {
        caught_signal = signal;
}

void cli_catch_signals(void) {
        static const int signals[] = { SIGINT, SIGTERM, SIGHUP };
        struct sigaction action = { .sa_handler = on_signal }; /* no SA_RESTART: ends a wait */
        struct sigaction old;
        for (size_t i = 0; i < ELEMENTSOF(signals); i++)
                if (sigaction(signals[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN) /* nohup */
                        (void)sigaction(signals[i], &action, NULL); /* cannot fail */
        (void)signal(SIGPIPE, SIG_IGN);
}

bool cli_is_interrupted(void) {
        return caught_signal != 0;
}

void cli_raise_caught_signal(void) {
        if (!caught_signal)
                return;
        (void)signal(caught_signal, SIG_DFL);
        (void)raise(caught_signal);
}

/* ---- printing ---- */

/* @return the text with control characters escaped, the caller's; NULL for lack of memory */
static _printf_(1, 0) char *format_safe(const char *fmt, va_list ap) {
        _cleanup_free_ char *raw = strbuf_vformat(fmt, ap);
        if (!raw)
                return NULL;
        StrBuf text = STRBUF_INIT;
        strbuf_add_escaped(&text, raw);
        return strbuf_detach(&text);
}

static int columns(const char *text) {
        int n = 0;
        for (const char *s = text; *s; s++)
                n += ((unsigned char)*s & 0xc0) != 0x80;
        return n;
}

int cli_part(const char *fmt, ...) {
        va_list ap;
        va_start(ap, fmt);
        _cleanup_free_ char *text = format_safe(fmt, ap);
        va_end(ap);
        if (!text)
                return 0;
        fputs(text, stdout);
        return columns(text);
}

void cli_line(const char *fmt, ...) {
        va_list ap;
        va_start(ap, fmt);
        _cleanup_free_ char *text = format_safe(fmt, ap);
        va_end(ap);
        puts(text ? text : "");
}

/* Prints an error. stdout is flushed first, so that the order is right where both go to one file.
 */
static void print_error(const char *command, const char *text, const char *hint) {
        (void)fflush(stdout); /* main() checks for errors */
        cli_progress_end();
        fprintf(stderr, "neuron-collect%s%s: %s%s\n", command ? " " : "", command ? command : "",
                text ? text : strerror(ENOMEM), hint);
}

int cli_error(const char *fmt, ...) {
        va_list ap;
        va_start(ap, fmt);
        _cleanup_free_ char *text = format_safe(fmt, ap);
        va_end(ap);
        print_error(NULL, text, "");
        return CLI_NO;
}

int cli_usage(const char *command, const char *fmt, ...) {
        va_list ap;
        va_start(ap, fmt);
        _cleanup_free_ char *text = format_safe(fmt, ap);
        va_end(ap);
        char hint[96];
        snprintf(hint, sizeof hint, "; see neuron-collect %s%s--help", command ? command : "",
                 command ? " " : "");
        print_error(command, text, hint);
        return CLI_USAGE;
}

void cli_state(const Cli *cli, const char *word, int width) {
        static const char *const green[] = { "ok",      "OK",       "delivered", "yes",
                                             "running", "complete", "present" };
        static const char *const red[] = {
                "failing", "quarantined", "no", "NO", "FAILED", "missing"
        };
        static const char *const yellow[] = { "paused",     "evicted",  "vanished",
                                              "cancelled",  "draining", "stopping",
                                              "INCOMPLETE", "warning",  "late" };
        const char *colour = !cli->colour                                        ? NULL
                             : parse_word(word, green, ELEMENTSOF(green)) >= 0   ? "\x1b[32m"
                             : parse_word(word, red, ELEMENTSOF(red)) >= 0       ? "\x1b[31m"
                             : parse_word(word, yellow, ELEMENTSOF(yellow)) >= 0 ? "\x1b[33m"
                                                                                 : NULL;
        if (colour)
                fputs(colour, stdout);
        int n = cli_part("%s", word);
        if (colour)
                fputs("\x1b[0m", stdout);
        for (; n < width; n++)
                putchar(' ');
}

const char *cli_count(char *buf, uint64_t n, const char *singular) {
        snprintf(buf, CLI_COUNT_SIZE, "%llu %s%s", (unsigned long long)n, singular,
                 n == 1 ? "" : "s");
        return buf;
}

const char *cli_moment(char *buf, const char *moment) {
        const char *dot = strchr(moment, '.');
        size_t n = dot ? (size_t)(dot - moment) : strlen(moment);
        snprintf(buf, CLI_MOMENT_SIZE, "%.*s%s", (int)MIN(n, (size_t)(CLI_MOMENT_SIZE - 2)), moment,
                 dot ? "Z" : "");
        return buf;
}

void cli_progress(const Cli *cli, const char *fmt, ...) {
        if (!cli->progress)
                return;
        va_list ap;
        va_start(ap, fmt);
        _cleanup_free_ char *text = format_safe(fmt, ap);
        va_end(ap);
        fprintf(stderr, "\r\x1b[K%s", text ? text : "");
        progress_is_drawn = true;
}

void cli_progress_end(void) {
        if (progress_is_drawn)
                fputs("\r\x1b[K", stderr);
        progress_is_drawn = false;
}

const char *cli_bar(char *buf, unsigned percent) {
        size_t n = CLI_BAR_SIZE - sizeof "[]";
        buf[0] = '[';
        memset(buf + 1, '.', n);
        memset(buf + 1, '#', MIN(percent, 100u) * n / 100);
        strcpy(buf + 1 + n, "]");
        return buf;
}

/* ---- arguments ---- */

static int report_option(const char *command, int o, const char *culprit) {
        bool is_long = culprit[0] == '-' && culprit[1] == '-';
        if (o == ':')
                return cli_usage(command, "option '%s' requires a value", culprit);
        if (is_long && optopt > 0)
                return cli_usage(command, "option '%s' takes no value", culprit);
        if (!is_long && optopt > 0) /* one letter, perhaps of several in one argument */
                return cli_usage(command, "unknown option '-%c'", optopt);
        return cli_usage(command, "unknown option '%s'", culprit);
}

int cli_options(const char *command, int argc, char **argv, const CliOption *options) {
        struct option longs[CLI_OPTIONS_MAX + 1] = { 0 };
        char letters[2 * CLI_OPTIONS_MAX + 3] = "+:", *end = letters + 2;
        const CliOption *of[UCHAR_MAX + 1 + CLI_OPTIONS_MAX] = { 0 };
        bool is_seen[ELEMENTSOF(of)] = { 0 };
        int o;
        for (int i = 0; options[i].name; i++) {
                const CliOption *option = &options[i];
                int value = option->letter ? option->letter : UCHAR_MAX + 1 + i;
                longs[i] = (struct option){ option->name,
                                            !option->value     ? no_argument
                                            : option->is_given ? optional_argument
                                                               : required_argument,
                                            NULL, value };
                of[value] = option;
                if (option->letter)
                        end += sprintf(end, "%c%s", option->letter, option->value ? ":" : "");
        }
        opterr = 0;
        while ((o = getopt_long(argc, argv, letters + (command != NULL), longs, NULL)) >= 0) {
                if (o == ':' || o == '?')
                        return report_option(command, o, argv[optind - 1]);
                if (command && of[o]->value && is_seen[o])
                        return cli_usage(command, "option '--%s' is given twice", of[o]->name);
                is_seen[o] = true;
                if (of[o]->is_given)
                        *of[o]->is_given = true;
                if (of[o]->value)
                        *of[o]->value = optarg;
        }
        return CLI_YES;
}

int cli_options_only(int argc, char **argv, const CliOption *options) {
        int code = cli_options(argv[0], argc, argv, options);
        return code == CLI_YES && optind < argc
                       ? cli_usage(argv[0], "unexpected argument '%s'", argv[optind])
                       : code;
}

int cli_duration(const char *command, const char *value, const char *example, uint64_t *ret_usec) {
        return !value || parse_duration_usec(value, ret_usec) >= 0
                       ? CLI_YES
                       : cli_usage(command, "invalid duration '%s'; write %s", value, example);
}

static int check_arguments(int argc, char **argv, int n, const char *what) {
        int code = cli_options(argv[0], argc, argv, (const CliOption[]){ { 0 } });
        return code == CLI_YES && argc - optind != n ? cli_usage(argv[0], "expects %s", what)
                                                     : code;
}

int cli_no_argument(int argc, char **argv) {
        return check_arguments(argc, argv, 0, "no arguments");
}

int cli_one_argument(int argc, char **argv, const char *what, const char **ret) {
        int code = check_arguments(argc, argv, 1, what);
        if (code != CLI_YES)
                return code;
        if (!argv[optind][0])
                return cli_usage(argv[0], "expects %s, not an empty one", what);
        *ret = argv[optind];
        return CLI_YES;
}

/* ---- requests ---- */

static int report_no_agent(const Cli *cli, const ClientFailure *why) {
        if (why->error == ENOENT || why->error == ECONNREFUSED)
                cli_error("neuron-collectd is not running (socket '%s': %s); start it (see "
                          "systemctl status neuron-collectd), or give its socket with --socket",
                          cli->socket, why->text);
        else if (why->error == EACCES || why->error == EPERM)
                cli_error("permission denied on '%s': join group neuron-collectd, or use sudo",
                          cli->socket);
        else
                cli_error("no response from neuron-collectd on '%s' (%s); %s", cli->socket,
                          why->text,
                          why->timed_out ? "it hangs or is overloaded: see its log"
                                         : "check that this is its socket");
        return CLI_NO_AGENT;
}

/* Reports that the agent refused a request. @param action  what was requested of `id`; NULL */
static int report_refusal(const ClientReply *reply, const char *action, const char *id) {
        const json_t *error = json_object_get(reply->json, "error");
        const char *message = cli_text(error, "message");
        if (*message && action && reply->status == 409)
                cli_error("cannot %s '%s': %s", action, id, message);
        else if (*message)
                cli_error("%s", message);
        else
                cli_error("the agent refused with status %ld and no reason", reply->status);
        return reply->status == 400 ? CLI_USAGE : CLI_NO;
}

typedef struct Question {
        const char *method, *path;
        const char *action, *id; /* for the report of a refusal; NULL */
} Question;

/* A request waits at least this long, even past --timeout: a busy agent that answers late still
 * runs. */
#define TIMEOUT_MIN_MSEC 5000
static long timeout_msec(const Cli *cli) {
        uint64_t now = clock_boottime_usec();
        if (cli->deadline_usec == 0)
                return CLIENT_TIMEOUT_MSEC;
        uint64_t msec = cli->deadline_usec > now ? (cli->deadline_usec - now) / USEC_PER_MSEC : 0;
        return (long)MAX(MIN(msec, (uint64_t)CLIENT_TIMEOUT_MSEC), (uint64_t)TIMEOUT_MIN_MSEC);
}

static int request(const Cli *cli, const Question *q, json_t **ret_json) {
        const char *method = q->method, *path = q->path;
        _cleanup_(client_reply_done) ClientReply reply = { 0 };
        int r = client_request(cli->socket, method, path, timeout_msec(cli), &reply);
        if (r == CLIENT_E_NO_AGENT)
                return report_no_agent(cli, &reply.why);
        if (r == CLIENT_E_TOO_LARGE)
                return cli_error(
                        "the answer of '%s' to %s %s is too large for neuron-collectd; check what "
                        "listens there",
                        cli->socket, method, path);
        if (r < 0)
                return cli_error("cannot query '%s': %s", cli->socket, strerror(-r));
        if (!reply.json)
                return cli_error(
                        "the answer of '%s' to %s %s (status %ld) is not JSON; check what listens "
                        "there",
                        cli->socket, method, path, reply.status);
        if (reply.status < 200 || reply.status > 299)
                return report_refusal(&reply, q->action, q->id);
        *ret_json = json_incref(reply.json);
        return CLI_YES;
}

int cli_request(const Cli *cli, const char *method, const char *path, json_t **ret_json) {
        return request(cli, &(Question){ .method = method, .path = path }, ret_json);
}

int cli_request_bundle(const Cli *cli, const char *id, const char *action, json_t **ret_json) {
        _cleanup_free_ char *escaped = client_escape(id);
        _cleanup_free_ char *path = escaped ? strbuf_format("/v1/bundles/%s%s%s", escaped,
                                                            action ? "/" : "", action ? action : "")
                                            : NULL;
        if (!path)
                return cli_error("%s", strerror(ENOMEM));
        return request(cli,
                       &(Question){ .method = action ? "POST" : "GET",
                                    .path = path,
                                    .action = action,
                                    .id = id },
                       ret_json);
}

int cli_load_config(const Cli *cli, bool quiet, struct Config **ret) {
        Diags diags = { 0 };
        int r = config_load(ret, cli->config_file, environ, &diags);
        if (!quiet)
                diag_print(&diags, stderr);
        diag_done(&diags);
        return r == 0 ? CLI_YES : CLI_USAGE;
}

json_t *cli_json_string(const char *text) {
        json_t *json = text ? json_string(text) : json_null();
        if (json)
                return json;
        _cleanup_free_ char *escaped = path_escape(text);
        return escaped ? json_string(escaped) : NULL;
}

int cli_print_json(const Cli *cli, const json_t *json) {
        size_t flags = JSON_INDENT(2) | JSON_ENCODE_ANY | (cli->terminal ? JSON_ENSURE_ASCII : 0);
        if (!json || json_dumpf(json, stdout, flags) < 0)
                return cli_error("cannot print the answer: %s", strerror(json ? EIO : ENOMEM));
        putchar('\n');
        return CLI_YES;
}

int cli_print_new_json(const Cli *cli, json_t *json) {
        int code = cli_print_json(cli, json);
        json_decref(json);
        return code;
}

const char *cli_text(const json_t *object, const char *key) {
        return cli_string(json_object_get(object, key));
}

const char *cli_string(const json_t *value) {
        const char *text = json_string_value(value);
        return text ? text : "";
}

unsigned long long cli_number(const json_t *object, const char *key) {
        json_int_t n = json_integer_value(json_object_get(object, key));
        return n > 0 ? (unsigned long long)n : 0;
}

bool cli_is_true(const json_t *object, const char *key) {
        return json_is_true(json_object_get(object, key));
}

const json_t *cli_find(const json_t *list, const char *key, const char *value) {
        size_t i;
        json_t *one;
        json_array_foreach(list, i, one) if (strcmp(cli_text(one, key), value) == 0) return one;
        return NULL;
}

CliCopy cli_copy(const json_t *shipping) {
        return (CliCopy){ .done_bytes = cli_number(shipping, "done_bytes"),
                          .total_bytes = cli_number(shipping, "total_bytes"),
                          .rate = cli_number(shipping, "rate"),
                          .sent_bytes = cli_number(shipping, "sent_bytes"),
                          .eta_seconds =
                                  MIN(cli_number(shipping, "eta_seconds"), (uint64_t)UINT32_MAX),
                          .has_eta = json_is_integer(json_object_get(shipping, "eta_seconds")) };
}

static const char *copy_text(char *buf, const CliCopy *c) {
        char size[PARSE_FORMAT_SIZE], span[CLOCK_ISO_SIZE];
        StrBuf text = STRBUF_INIT;
        /* done and total count bytes of files, sent counts compressed bytes */
        if (c->total_bytes > 0)
                strbuf_addf(&text, ", %u %% of %s%s", cli_percent(c->done_bytes, c->total_bytes),
                            parse_format_human(size, c->total_bytes),
                            c->sent_bytes > 0 ? " of files" : "");
        if (c->total_bytes > 0 || c->rate > 0)
                strbuf_addf(&text, ", %s/s", parse_format_human(size, c->rate));
        if (c->has_eta)
                strbuf_addf(&text, ", %s left",
                            clock_format_duration(span, c->eta_seconds * USEC_PER_SEC));
        if (c->sent_bytes > 0)
                strbuf_addf(&text, ", %s compressed sent", parse_format_human(size, c->sent_bytes));
        snprintf(buf, CLI_PROGRESS_SIZE, "%s", text.n > 2 ? text.text + 2 : "");
        strbuf_done(&text);
        return buf;
}

const char *cli_progress_text(char *buf, const json_t *shipping) {
        CliCopy copy = cli_copy(shipping);
        return copy_text(buf, &copy);
}

void cli_draw_copy(const Cli *cli, const char *what, const CliCopy *copy) {
        char bar[CLI_BAR_SIZE], text[CLI_PROGRESS_SIZE];
        cli_progress(cli, "%s%s%s %s", what, *what ? " " : "",
                     cli_bar(bar, cli_percent(copy->done_bytes, copy->total_bytes)),
                     copy_text(text, copy));
}

const char *cli_failure_text(char *buf, const json_t *failure) {
        const json_t *code = json_object_get(failure, "code"),
                     *rank = json_object_get(failure, "rank");
        const char *name = cli_text(failure, "name"), *job = cli_text(failure, "job");
        char number[24] = "", where[40] = "";
        if (json_is_integer(code))
                snprintf(number, sizeof number, "%lld", (long long)json_integer_value(code));
        if (json_is_integer(rank))
                snprintf(where, sizeof where, ", rank %lld", (long long)json_integer_value(rank));
        snprintf(buf, CLI_FAILURE_SIZE, "%s%s%.100s%s%.64s%s", number, *number && *name ? " " : "",
                 name, *job ? ", job " : "", job, where);
        return strncmp(buf, ", ", 2) == 0 ? memmove(buf, buf + 2, strlen(buf + 2) + 1) : buf;
}

unsigned cli_percent(uint64_t done, uint64_t total) {
        if (total == 0)
                return 0;
        return done >= total ? 100 : (unsigned)(100 * ((double)done / (double)total));
}

/* ---- names ---- */

#define FAR UINT_MAX

/* @return the distance of a name from the wanted one; FAR: it is not suggested */
static unsigned rate_name(const char *wanted, const char *name) {
        const char *a = path_name(wanted), *b = path_name(name);
        if (strcasecmp(a, b) == 0)
                return 0; /* the same name in another directory, or with another case */
        size_t n = strlen(wanted);
        if ((*a && strcasestr(b, a)) || (strncmp(name, wanted, n) == 0 && name[n] == '/'))
                return 1; /* the wanted name is a part of it, or its directory */
        unsigned d = parse_distance(a, b), tolerated = 1 + (unsigned)strlen(a) / 4;
        return d <= tolerated ? d + 1 : FAR;
}

void suggest_add(Suggestion *s, const char *name) {
        unsigned d = rate_name(s->wanted, name);
        char *copy = d == FAR || (s->name && d >= s->distance) ? NULL : strdup(name);
        if (!copy)
                return;
        suggest_done(s);
        s->name = copy;
        s->distance = d;
}

void suggest_done(Suggestion *s) {
        free(s->name);
        s->name = NULL;
}
