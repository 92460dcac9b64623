/* neuron-collectd: arguments, configuration, signals, sd_notify. */
#include <errno.h>
#include <getopt.h>
#include <malloc.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <systemd/sd-daemon.h>

#include "agent/agent.h"
#include "agent/peers/bus_keys.h"
#include "collectors/probe_listener.h"
#include "collectors/supervisor.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"
#include "lib/base/log.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/base/spawn.h"
#include "lib/event/bus_child.h"
#include "lib/event/timer.h"
#include "lib/http/http.h"

#define DEFAULT_FILE NC_SYSCONFDIR "/neuron-collectd/neuron-collectd.yaml"
#define ONCE_TIMEOUT_USEC (10 * USEC_PER_MINUTE)
/* Abandoned uploads are aborted beside the deliveries, or for so long after the last one. */
#define ONCE_ABORT_USEC (10 * USEC_PER_SEC)
#define ONCE_CHECK_USEC (20 * USEC_PER_MSEC)
/* A daemon that is only busy answers within this long, however short the --timeout is. */
#define ONCE_ANSWER_USEC (5 * USEC_PER_SEC)

enum { EXIT_OK = 0, EXIT_UNDELIVERED = 1, EXIT_USAGE = 2 };

/* Values: the letters of the options. */
typedef enum Mode {
        MODE_AGENT,
        MODE_CHECK = 'k',
        MODE_ONCE = 'o',
        MODE_PRINT_CONFIG = 'p',
        MODE_REMAINS = 'r',
} Mode;

typedef struct Args {
        const char *file;
        Mode mode;
        uint64_t timeout_usec;
} Args;

typedef struct Main {
        sd_event *event;
        Agent *agent;
        Args args;
        uint64_t deadline_usec;
        sd_event_source *once_timer;
        uint64_t idle_usec; /* --once: since when nothing is to be delivered; 0 = something is */
        bool is_stopping;
        int stop_code;
} Main;

static void help(FILE *f) {
        fputs("neuron-collectd [--config FILE] [--check | --once [--timeout T] | --print-config | "
              "--remains]\n"
              "\n"
              "Watches for Neuron core dumps and profiles, packs them, and proves that a copy "
              "arrived.\n"
              "\n"
              "  --config FILE    configuration (default: " DEFAULT_FILE ")\n"
              "  --check          read the configuration, print every error, exit 0 or 2\n"
              "  --print-config   print the effective configuration with the origin of each line\n"
              "  --once           scan once, deliver what is found, exit\n"
              "                   0 all delivered, 1 bundles are undelivered or a source\n"
              "                   cannot be read (a line each), 2 invalid configuration\n"
              "  --timeout T      with --once: retry transient errors for this long (default: "
              "10m)\n"
              "  --remains        for the removal of the agent, when it has stopped: print the\n"
              "                   directories with hard links and the undelivered bundles\n"
              "  --version        print the version\n"
              "  --help           print this\n"
              "\n"
              "Without an option it runs until SIGTERM; SIGHUP reloads the configuration.\n"
              "See neuron-collectd(8), neuron-collectd.yaml(5), neuron-collect(1).\n",
              f);
}

static int usage(const char *fault) {
        fprintf(stderr, "neuron-collectd: %s; see neuron-collectd --help\n", fault);
        return -EINVAL;
}

/* @return 1 continue, 0 done (help, version), negative for wrong usage */
static int parse_args(int argc, char **argv, Args *a) {
        static const struct option options[] = {
                { "config", required_argument, NULL, 'c' },
                { "check", no_argument, NULL, MODE_CHECK },
                { "once", no_argument, NULL, MODE_ONCE },
                { "timeout", required_argument, NULL, 't' },
                { "print-config", no_argument, NULL, MODE_PRINT_CONFIG },
                { "remains", no_argument, NULL, MODE_REMAINS },
                { "version", no_argument, NULL, 'v' },
                { "help", no_argument, NULL, 'h' },
                { 0 },
        };
        *a = (Args){ .file = DEFAULT_FILE, .timeout_usec = ONCE_TIMEOUT_USEC };
        bool timeout_given = false;
        int o;
        while ((o = getopt_long(argc, argv, "c:h", options, NULL)) >= 0)
                switch (o) {
                case 'c':
                        a->file = optarg;
                        break;
                case MODE_CHECK:
                case MODE_ONCE:
                case MODE_PRINT_CONFIG:
                case MODE_REMAINS:
                        if (a->mode != MODE_AGENT && a->mode != (Mode)o)
                                return usage("--check, --once, --print-config and --remains "
                                             "exclude each other");
                        a->mode = (Mode)o;
                        break;
                case 't':
                        if (parse_duration_usec(optarg, &a->timeout_usec) < 0) {
                                fprintf(stderr,
                                        "neuron-collectd: invalid duration '%s' for --timeout; "
                                        "write "
                                        "30s or 10m\n",
                                        optarg);
                                return -EINVAL;
                        }
                        timeout_given = true;
                        break;
                case 'v':
                        puts("neuron-collectd " PACKAGE_VERSION);
                        return 0;
                case 'h':
                        help(stdout);
                        return 0;
                default:
                        return usage("invalid option");
                }
        if (optind < argc)
                return usage("unexpected argument; only options are accepted");
        if (timeout_given && a->mode != MODE_ONCE)
                return usage("--timeout goes with --once");
        return 1;
}

/* @return how many files that the configuration names are at fault */
static size_t check_files(const Config *config) {
        Diags diags = { 0 };
        const char *key_file = config->agreement.key_file;
        size_t n = config_check_files(config, &diags);
        int r = bus_key_file_verify(key_file, &diags);
        if (r == -EACCES)
                fprintf(stderr,
                        "%s: warning: agreement.key_file: '%s' cannot be read by this user, and so "
                        "was not checked\n",
                        config->file, key_file);
        diag_print(&diags, stderr);
        diag_done(&diags);
        return n + (r < 0 && r != -EACCES);
}

static int read_config(const Args *args, Config **ret) {
        Diags diags = { 0 };
        int r = config_load(ret, args->file, environ, &diags);
        diag_print(&diags, stderr);
        diag_done(&diags);
        if (r == -ENOENT)
                fprintf(stderr,
                        "neuron-collectd does not start without a configuration. Write these five "
                        "lines to '%s' and adapt them (all keys: " NC_DOCDIR
                        "/neuron-collectd.yaml, neuron-collectd.yaml(5)):\n%s",
                        args->file, config_minimal);
        return r;
}

/* ---- signals ---- */

static void on_stopped(void *userdata) {
        Main *m = userdata;
        (void)sd_event_exit(m->event, m->stop_code); /* fails only in a loop that has ended */
}

static int on_stop(sd_event_source *source, const struct signalfd_siginfo *info, void *userdata) {
        (void)source;
        log_info("stopping: received SIG%s", sigabbrev_np((int)info->ssi_signo));
        (void)sd_notify(false, "STOPPING=1\nSTATUS=stopping"); /* without systemd it does nothing */
        Main *m = userdata;
        if (m->is_stopping) /* the second signal stops at once */
                return sd_event_exit(m->event, m->stop_code);
        m->is_stopping = true;
        /* An interrupted sweep must not report that all is delivered. */
        m->stop_code = m->args.mode == MODE_ONCE && agent_print_undelivered(m->agent, stdout) > 0
                               ? EXIT_UNDELIVERED
                               : EXIT_OK;
        agent_stop(m->agent, on_stopped, m);
        return 0;
}

/* The log and the status have the result. */
static void on_reloaded(void *userdata) {
        Main *m = userdata;
        (void)sd_notify(false, "READY=1"); /* without systemd it does nothing */
        agent_notify_status(m->agent);
}

static int on_hangup(sd_event_source *source, const struct signalfd_siginfo *info, void *userdata) {
        Main *m = userdata;
        (void)source, (void)info;
        uint64_t now;
        if (sd_event_now(m->event, CLOCK_MONOTONIC, &now) < 0)
                now = 0;
        (void)sd_notifyf(false, "RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)now);
        agent_reload(m->agent, on_reloaded, m);
        return 0;
}

static int add_signals(Main *m) {
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGTERM);
        sigaddset(&set, SIGINT);
        sigaddset(&set, SIGHUP);
        sigaddset(&set, SIGIO); /* broken leases: see fs_check_writer() */
        if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
                return -errno;
        if (signal(SIGPIPE, SIG_IGN) == SIG_ERR)
                return -errno;
        int r = sd_event_add_signal(m->event, NULL, SIGTERM, on_stop, m);
        if (r >= 0)
                r = sd_event_add_signal(m->event, NULL, SIGINT, on_stop, m);
        if (r >= 0)
                r = sd_event_add_signal(m->event, NULL, SIGHUP, on_hangup, m);
        return r;
}

/* ---- once ---- */

static int on_once(sd_event_source *source, uint64_t usec, void *userdata) {
        Main *m = userdata;
        uint64_t now = clock_boottime_usec();
        if (!agent_is_idle(m->agent))
                m->idle_usec = 0;
        else if (m->idle_usec == 0)
                m->idle_usec = now;
        bool waits = m->idle_usec == 0 ||
                     (agent_has_uploads_to_abort(m->agent) && now - m->idle_usec < ONCE_ABORT_USEC);
        if (!waits || now >= m->deadline_usec) {
                size_t n = agent_print_undelivered(m->agent, stdout);
                return sd_event_exit(m->event, n ? EXIT_UNDELIVERED : EXIT_OK);
        }
        (void)usec;
        return timer_rearm(source, ONCE_CHECK_USEC);
}

/* The command line beside this program, in the build tree too. */
static char *find_cli(void) {
        char self[4096];
        ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
        if (n > 0) {
                self[n] = '\0';
                _cleanup_free_ char *dir = path_parent(self);
                char *cli = dir ? path_join(dir, "neuron-collect") : NULL;
                if (cli && access(cli, X_OK) == 0)
                        return cli;
                free(cli);
        }
        return strdup(NC_BINDIR "/neuron-collect");
}

/* @return whether the program ends with 0 before the deadline, at which it is ended */
static bool succeeds_until(pid_t pid, uint64_t deadline_usec) {
        int status;
        pid_t ended;
        while ((ended = waitpid(pid, &status, WNOHANG)) == 0) {
                if (clock_boottime_usec() >= deadline_usec) {
                        (void)kill(pid, SIGKILL); /* a child that was not waited for exists */
                        (void)waitpid(pid, &status, 0);
                        return false;
                }
                (void)usleep(ONCE_CHECK_USEC); /* or a signal */
        }
        return ended == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Sets signals as a program expects them: none blocked, SIGPIPE at its default. Other signals that
 * are ignored stay ignored, as nohup(1) requires. */
static void reset_signals(void) {
        sigset_t none;
        (void)sigemptyset(&none);
        (void)signal(SIGPIPE, SIG_DFL);
        (void)sigprocmask(SIG_SETMASK, &none, NULL); /* what is pending is delivered */
}

/* The daemon has the state directory: requests a scan from it and waits for the deliveries. */
static int once_through_daemon(const Args *args, const char *socket) {
        _cleanup_free_ char *cli = find_cli();
        uint64_t now = clock_boottime_usec(), deadline = now + args->timeout_usec;
        if (!cli)
                return EXIT_UNDELIVERED;
        reset_signals();
        char *scan[] = { cli, (char *)"--socket", (char *)socket, (char *)"scan", NULL };
        pid_t pid;
        /* Not spawn_program(): it stays in the group of this process, and so at its terminal. */
        int r = posix_spawn(&pid, cli, NULL, NULL, scan, environ);
        if (r != 0) {
                fprintf(stderr,
                        "neuron-collectd: another agent has the state directory, and '%s' cannot "
                        "be started to request a scan: %s\n",
                        cli, strerror(r));
                return EXIT_UNDELIVERED;
        }
        if (!succeeds_until(pid, MAX(deadline, now + ONCE_ANSWER_USEC))) {
                fprintf(stderr,
                        "neuron-collectd: another agent has the state directory, but does not "
                        "answer on '%s'\n",
                        socket);
                return EXIT_UNDELIVERED;
        }
        char rest[32];
        now = clock_boottime_usec();
        (void)snprintf(rest, sizeof rest, "%llums",
                       (unsigned long long)(deadline > now ? (deadline - now) / USEC_PER_MSEC : 0));
        char *wait[] = { cli,
                         (char *)"--socket",
                         (char *)socket,
                         (char *)"wait",
                         (char *)"--all",
                         (char *)"--timeout",
                         rest,
                         NULL };
        (void)fflush(NULL); /* exec discards unwritten output */
        execv(cli, wait);
        fprintf(stderr, "neuron-collectd: cannot start '%s': %s\n", cli, strerror(errno));
        return EXIT_UNDELIVERED;
}

/* ---- running ---- */

static int run_agent(Main *m) {
        (void)sd_event_set_watchdog(m->event, true); /* without a watchdog it does nothing */
        if (m->args.mode == MODE_ONCE) {
                m->deadline_usec = clock_boottime_usec() + m->args.timeout_usec;
                int r = sd_event_add_time_relative(m->event, &m->once_timer, CLOCK_MONOTONIC,
                                                   ONCE_CHECK_USEC, USEC_PER_MSEC, on_once, m);
                if (r < 0)
                        return EXIT_UNDELIVERED;
        }
        (void)sd_notify(false, "READY=1"); /* without systemd it does nothing */
        agent_notify_status(m->agent);
        int r = sd_event_loop(m->event);
        sd_event_source_disable_unref(m->once_timer);
        if (r < 0)
                log_error(r, "the event loop failed; stopping");
        return r < 0 ? EXIT_UNDELIVERED : r;
}

static int run(const Args *args, Config *config) {
        Main m = { .args = *args };
        _cleanup_free_ char *socket = strdup(config->api.socket);
        int r = sd_event_default(&m.event);
        if (r >= 0)
                r = add_signals(&m);
        if (r < 0) {
                log_error(r, "cannot set up the event loop");
                config_free(config);
                return EXIT_UNDELIVERED;
        }
        r = agent_new(&m.agent, m.event, config, args->mode == MODE_ONCE);
        int code = EXIT_UNDELIVERED;
        if (r == 0)
                code = run_agent(&m);
        else if (r == AGENT_E_LOCKED && args->mode == MODE_ONCE && socket)
                code = once_through_daemon(args, socket);
        else if (r == AGENT_E_CONFIG)
                code = EXIT_USAGE; /* the unit does not restart then */
        agent_free(m.agent);
        sd_event_unref(m.event);
        return code;
}

/* `--child=NAME`, and for a probe `--own`, or `--config FILE`. */
static int run_child(int argc, char **argv) {
        const char *name = argv[1] + 8, *config = DEFAULT_FILE;
        if (argc == 3 && strcmp(argv[2], "--own") == 0)
                config = NULL;
        else if (argc == 4 && strcmp(argv[2], "--config") == 0)
                config = argv[3];
        else if (argc != 2)
                return EXIT_USAGE;
        if (strcmp(name, "bus") == 0)
                return bus_child_main();
        if (config && strncmp(name, "probe:", 6) == 0)
                return probe_listener_main(name + 6, config);
        return child_main(&collector_table, name, config);
}

int main(int argc, char **argv) {
        /* Two arenas are enough for a loop and for workers that mostly use buffers of their own;
         * glibc's default is eight for each core. */
        (void)mallopt(M_ARENA_MAX, 2);
        /* The threshold is fixed: glibc would raise it to 32 MiB, and then a thread that grows a
         * large block copies it while it holds the arena's lock, for which the loop waits. */
        (void)mallopt(M_MMAP_THRESHOLD, 128 * 1024);
        /* This is a child, see collectors/. Exit handlers of libraries are not permitted in its
         * sandbox. */
        if (argc >= 2 && strncmp(argv[1], "--child=", 8) == 0)
                _exit(run_child(argc, argv));
        Args args;
        int r = parse_args(argc, argv, &args);
        if (r <= 0)
                return r < 0 ? EXIT_USAGE : EXIT_OK;
        _cleanup_(config_freep) Config *config = NULL;
        bool is_agent = args.mode == MODE_AGENT || args.mode == MODE_ONCE;
        _cleanup_free_ char *file = is_agent ? fs_absolute_path(args.file) : NULL;
        if (file) /* status reports it to other processes */
                args.file = file;
        r = read_config(&args, &config);
        if (r != 0)
                return EXIT_USAGE;
        if (args.mode != MODE_PRINT_CONFIG && args.mode != MODE_REMAINS)
                config_print_warnings(config, stderr);
        if (args.mode == MODE_CHECK && check_files(config) > 0)
                return EXIT_USAGE;
        if (args.mode == MODE_CHECK) {
                printf("'%s': no faults\n", args.file);
                return EXIT_OK;
        }
        if (args.mode == MODE_PRINT_CONFIG) {
                r = config_print(config, stdout);
                return r < 0 ? EXIT_UNDELIVERED : EXIT_OK;
        }
        log_setup((LogFormat)config->log.format, config->log.level);
        r = args.mode == MODE_AGENT
                    ? spawn_raise_fd_limit() /* for hundreds of hooks and processes */
                    : 0;
        if (r < 0)
                log_warning(r, "cannot raise the limit of open files; with many hooks at once some "
                               "notes may be lost");
        r = http_global_init();
        if (r < 0) {
                log_error(r, "cannot start libcurl");
                return EXIT_UNDELIVERED;
        }
        if (args.mode == MODE_REMAINS) {
                r = agent_print_remains(config, stdout);
                return r != 0 ? EXIT_UNDELIVERED : EXIT_OK;
        }
        return run(&args, TAKE_PTR(config));
}
