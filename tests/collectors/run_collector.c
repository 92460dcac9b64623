/* Runs one collector in this process, as the supervisor's child would, and prints what it says: for
 * tests that judge a collector from outside.
 *
 *   run_collector NAME [KEY=VALUE]...
 *     sysfs_root= device_directory= proc_root= timeout=5s max_bytes=4MiB since_boot_usec=0
 * raw=DIRECTORY may be repeated: environment=PATTERN process=PID[:START_TICKS] log_file=PATH (of
 * our uid, and the process 0) command=NAME,TIMEOUT,PROGRAM[,ARGUMENT]...
 *
 * NAME is a row of the table, or follow_kmsg. Records go to stdout; the last line of stderr is
 * `result=R cut=0|1 used_bytes=N cpu_usec=N`, the time of CPU with all children that were waited
 * for. Exit 0 when R is 0, 1 otherwise, 2 usage. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "collectors/collector_table.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/parse.h"

enum { WORDS_MAX = 64 };

typedef struct Words {
        char *at[WORDS_MAX + 1];
        size_t n;
} Words;

static void fail(const char *what, const char *argument) {
        (void)fprintf(stderr, "run_collector: %s: %s\n", what, argument);
        exit(2);
}

static void words_add(Words *w, char *word) {
        if (w->n >= WORDS_MAX)
                fail("too many of this kind", word);
        w->at[w->n++] = word;
}

static void add_process_option(CollectRequest *request, char *value) {
        char *colon = strchr(value, ':');
        CollectProcess p = { 0 };
        uint64_t pid;

        if (colon)
                *colon = '\0';
        if (parse_u64_range(value, 1, INT32_MAX, &pid) < 0 ||
            (colon && parse_u64(colon + 1, &p.start_ticks) < 0))
                fail("not PID[:START_TICKS]", value);
        p.pid = (pid_t)pid;
        if (request->n_processes >= COLLECT_PROCESSES_MAX)
                fail("too many processes", value);
        request->processes[request->n_processes++] = p;
}

static void add_command(CollectRequest *request, char *value) {
        CollectCommand c = { .run = calloc(WORDS_MAX + 1, sizeof(char *)) };
        size_t n = 0;
        char *rest = value, *timeout;

        c.name = strsep(&rest, ",");
        timeout = strsep(&rest, ",");
        if (!c.run || !timeout || !rest || parse_duration_usec(timeout, &c.timeout_usec) < 0)
                fail("not NAME,TIMEOUT,PROGRAM[,ARGUMENT]...", value);
        while (rest && n < WORDS_MAX)
                c.run[n++] = strsep(&rest, ",");
        if (request->n_commands >= WORDS_MAX)
                fail("too many commands", value);
        request->commands[request->n_commands++] = c;
}

static int open_raw(const char *path) {
        int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

        if (fd < 0)
                fail(strerror(errno), path);
        return fd;
}

static void set(CollectRequest *request, CollectOut *out, Words *environment, Words *log_files,
                char *argument) {
        char *value = strchr(argument, '=');
        int r = 0;

        if (!value)
                fail("not KEY=VALUE", argument);
        *value++ = '\0';
        if (strcmp(argument, "sysfs_root") == 0)
                request->sysfs_root = value;
        else if (strcmp(argument, "device_directory") == 0)
                request->device_directory = value;
        else if (strcmp(argument, "proc_root") == 0)
                request->proc_root = value;
        else if (strcmp(argument, "timeout") == 0)
                r = parse_duration_usec(value, &request->timeout_usec);
        else if (strcmp(argument, "max_bytes") == 0)
                r = parse_bytes(value, &request->max_bytes);
        else if (strcmp(argument, "since_boot_usec") == 0)
                r = parse_u64(value, &request->since_boot_usec);
        else if (strcmp(argument, "raw") == 0)
                out->dir_fd = open_raw(value);
        else if (strcmp(argument, "environment") == 0)
                words_add(environment, value);
        else if (strcmp(argument, "log_file") == 0)
                words_add(log_files, value);
        else if (strcmp(argument, "process") == 0)
                add_process_option(request, value);
        else if (strcmp(argument, "command") == 0)
                add_command(request, value);
        else
                fail("unknown key", argument);
        if (r < 0)
                fail("not a value of this key", value);
}

static uint64_t cpu_usec(int who) {
        struct rusage u;

        if (getrusage(who, &u) < 0)
                return 0;
        return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * USEC_PER_SEC +
               (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

int main(int argc, char **argv) {
        static CollectProcess processes[COLLECT_PROCESSES_MAX];
        static CollectCommand commands[WORDS_MAX];
        static CollectLogFile logs[WORDS_MAX];
        Words environment = { .n = 0 }, log_files = { .n = 0 };
        CollectOut out = { .fd = STDOUT_FILENO, .dir_fd = -1 };
        CollectRequest request = { .sysfs_root = (char[]){ "/sys" },
                                   .device_directory = (char[]){ "/dev" },
                                   .proc_root = (char[]){ "/proc" },
                                   .timeout_usec = 5 * USEC_PER_SEC,
                                   .max_bytes = 4 * MIB,
                                   .processes = processes,
                                   .commands = commands };
        int (*run)(const CollectRequest *, CollectOut *);
        const Collector *collector;
        int r;

        if (argc < 2)
                fail("usage", "run_collector NAME [KEY=VALUE]...");
        collector = collector_table_find(&collector_table, argv[1]);
        if (!collector && strcmp(argv[1], "follow_kmsg") != 0)
                fail("no such collector", argv[1]);
        for (int i = 2; i < argc; i++)
                set(&request, &out, &environment, &log_files, argv[i]);
        request.environment = environment.at;
        for (size_t i = 0; i < log_files.n; i++)
                logs[i] =
                        (CollectLogFile){ .path = log_files.at[i], .owner = { .uid = geteuid() } };
        request.log_files = logs;
        request.n_log_files = log_files.n;
        out.max_bytes = request.max_bytes;
        run = collector ? collector->run : follow_kmsg;
        r = run(&request, &out);
        (void)fprintf(stderr, "result=%d cut=%d used_bytes=%llu cpu_usec=%llu\n", r, out.is_cut,
                      (unsigned long long)out.used_bytes,
                      (unsigned long long)(cpu_usec(RUSAGE_SELF) + cpu_usec(RUSAGE_CHILDREN)));
        for (size_t i = 0; i < request.n_commands; i++)
                free(commands[i].run);
        return r == 0 ? 0 : 1;
}
