#include "tests/harness/unit.h"

#include <stdlib.h>
#include <string.h>

#include "cli/doctor/cores.h"
#include "lib/base/cleanup.h"

#define SYSTEMD "/var/lib/systemd/coredump"
#define APPORT "/var/lib/apport/coredump"

static void a_pattern_means_where_how_many_and_by_which_limit(void **state) {
        static const struct {
                const char *text;
                bool has_pid;
                CorePlace place;
                const char *directory, *program;
                bool is_limited, is_unique;
        } cases[] = {
                { "", false, CORE_NOWHERE, NULL, NULL, true, false },
                { "\n", true, CORE_IN_WORKING_DIRECTORY, NULL, NULL, true, true },
                { "core\n", false, CORE_IN_WORKING_DIRECTORY, NULL, NULL, true, false },
                { "core", true, CORE_IN_WORKING_DIRECTORY, NULL, NULL, true, true },
                { "cores/core.%p", false, CORE_IN_WORKING_DIRECTORY, NULL, NULL, true, true },
                { "/dev/null", false, CORE_NOWHERE, NULL, NULL, true, false },
                { "/var/cores/core", false, CORE_IN_DIRECTORY, "/var/cores", NULL, true, false },
                { "/var/cores/core.%e.%P.%t\n", false, CORE_IN_DIRECTORY, "/var/cores", NULL, true,
                  true },
                { "/var/cores/%e/core.%%p", false, CORE_IN_DIRECTORY, "/var/cores", NULL, true,
                  false },
                { "/var//cores/%%%p", false, CORE_IN_DIRECTORY, "/var/cores", NULL, true, true },
                { "/core.%e.%", false, CORE_IN_DIRECTORY, "/", NULL, true, false },
                { "/%p", false, CORE_IN_DIRECTORY, "/", NULL, true, true },
                { "|/lib/systemd/systemd-coredump %P %u %g %s 9223372036854775808 %h", false,
                  CORE_BY_SYSTEMD, SYSTEMD, "/lib/systemd/systemd-coredump", false, true },
                { "|/usr/lib/systemd/systemd-coredump %P %u %g %s %t %c %h", false, CORE_BY_SYSTEMD,
                  SYSTEMD, "/usr/lib/systemd/systemd-coredump", true, true },
                { "|/usr/share/apport/apport -p%p -s%s -c%c -d%d -P%P -u%u -g%g -- %E", false,
                  CORE_BY_APPORT, APPORT, "/usr/share/apport/apport", true, true },
                { "|/usr/libexec/abrt-hook-ccpp %s %%c", false, CORE_BY_PROGRAM, NULL,
                  "/usr/libexec/abrt-hook-ccpp", false, true },
                { "|/bin/false", false, CORE_NOWHERE, NULL, "/bin/false", false, true },
                { "|", false, CORE_BY_PROGRAM, NULL, "", false, true },
                { "@/run/cores.sock", false, CORE_BY_PROGRAM, NULL, "/run/cores.sock", false,
                  true },
        };
        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                CorePattern p;
                assert_int_equal(core_pattern_parse(&p, cases[i].text, cases[i].has_pid), 0);
                if (p.place != cases[i].place || p.is_limited != cases[i].is_limited ||
                    p.is_unique != cases[i].is_unique ||
                    strcmp(p.directory ? p.directory : "-",
                           cases[i].directory ? cases[i].directory : "-") != 0 ||
                    strcmp(p.program ? p.program : "-",
                           cases[i].program ? cases[i].program : "-") != 0)
                        fail_msg("'%s': place %d, '%s', '%s', limited %d, unique %d", cases[i].text,
                                 (int)p.place, p.directory, p.program, p.is_limited, p.is_unique);
                core_pattern_done(&p);
        }
}

static void the_limit_is_found_in_what_the_kernel_writes(void **state) {
#define BEFORE                                                                                     \
        "Limit                     Soft Limit           Hard Limit           Units     \n"         \
        "Max stack size            8388608              unlimited            bytes     \n"
        CoreLimit l = { 7, 7 };
        assert_true(core_limit_parse(
                BEFORE
                "Max core file size        0                    unlimited            bytes\n",
                &l));
        assert_true(l.soft_bytes == 0 && l.hard_bytes == CORE_UNLIMITED);
        assert_true(core_limit_parse(
                BEFORE
                "Max core file size        unlimited            1048576              bytes\n",
                &l));
        assert_true(l.soft_bytes == CORE_UNLIMITED && l.hard_bytes == 1048576);
        assert_false(core_limit_parse("", &l));
        assert_false(core_limit_parse(BEFORE, &l));
        assert_false(core_limit_parse(BEFORE "Max core file size ", &l));
        assert_false(core_limit_parse(BEFORE "Max core file size  -1  0 bytes\n", &l));
        assert_false(
                core_limit_parse(BEFORE "Max core file size  0  99999999999999999999999999\n", &l));
}

typedef struct Case {
        const char *text, *source; /* the fixed part of a source of process cores; NULL = none */
        bool is_read_only;
        const CoreLimit *limits; /* of jobs, or of services; ends with soft above hard */
        bool are_services;
        /* `STATE: words… => words of the remedy…`, in order; `*` = any text */
        const char *says[4];
} Case;

/* `*` in the pattern stands for any text. */
static bool fits(const char *pattern, const char *text) {
        for (; *pattern && *pattern != '*'; pattern++, text++)
                if (*pattern != *text)
                        return false;
        if (!*pattern)
                return !*text;
        for (;; text++)
                if (fits(pattern + 1, text))
                        return true;
                else if (!*text)
                        return false;
}

static void expect(const Case *c) {
        static const char *const words[] = { "ok", "warning", "FAILED" };
        CoreSource source = { "cores", (char *)c->source };
        CoreProcess processes[4] = { { .pid = 0 } };
        CoreSetup f = { .text = c->text,
                        .is_writable = !c->is_read_only,
                        .sources = &source,
                        .n_sources = c->source ? 1 : 0,
                        .processes = processes,
                        .are_jobs = !c->are_services };
        CoreAdvice advice[CORE_ADVICE_MAX];
        for (; c->limits &&
               c->limits[f.n_processes].soft_bytes <= c->limits[f.n_processes].hard_bytes;
             f.n_processes++)
                processes[f.n_processes] = (CoreProcess){ 100 + (pid_t)f.n_processes, "python3",
                                                          c->limits[f.n_processes] };
        assert_int_equal(core_pattern_parse(&f.pattern, c->text, false), 0);
        size_t n = core_advise(&f, advice);
        for (size_t i = 0; i < CORE_ADVICE_MAX; i++) {
                char text[2048] = "";
                if (i < n)
                        (void)snprintf(text, sizeof text, "%s: %s => %s", words[advice[i].finding],
                                       advice[i].detail, advice[i].remedy ? advice[i].remedy : "");
                if (!fits(c->says[i] ? c->says[i] : "", text))
                        fail_msg("'%s', advice %zu:\n%s\nis not\n%s", c->text, i, text,
                                 c->says[i] ? c->says[i] : "(none)");
                if (i < n) {
                        free(advice[i].detail);
                        free(advice[i].remedy);
                }
        }
        core_pattern_done(&f.pattern);
}

#define U CORE_UNLIMITED
#define END                                                                                        \
        { 1, 0 }
#define LIMITS(...) ((const CoreLimit[]){ __VA_ARGS__, END })
#define OUR_RECIPE                                                                                 \
        "write 'kernel.core_pattern=/var/cores/core.%e.%P.%t' to /etc/sysctl.d/99-cores.conf, "    \
        "run "                                                                                     \
        "`sysctl --system` and `install -d -m 1777 /var/cores`, and add a source of kind "         \
        "process-core with that path"
#define NOT_KNOWN "ok: RLIMIT_CORE of jobs is not known*no process that holds*no service* => "
#define COREDUMP "|/lib/systemd/systemd-coredump %P %u %g %s %t %c %h"

static void advice_names_the_pattern_the_place_and_the_remedy(void **state) {
        const Case cases[] = {
                { "core", NULL,
                  .says = { "warning: *'core': *working directory* => " OUR_RECIPE, NOT_KNOWN } },
                { "core", "/scratch/cores",
                  .says = { "warning: *'core'* => write "
                            "'kernel.core_pattern=/scratch/cores/core.*`install -d -m 1777 "
                            "/scratch/cores`",
                            NOT_KNOWN } },
                { "core", SYSTEMD,
                  .says = { "warning: * => install systemd-coredump, *source cores covers",
                            NOT_KNOWN } },
                { "", NULL, .says = { "warning: *'': no core is written => " OUR_RECIPE } },
                { "|/bin/false", "/var/cores",
                  .says = { "warning: *'|/bin/false': no core is written => write *" } },
                { "/var/cores/core.%P", "/var/cores",
                  .says = { "ok: *'/var/cores/core.%P': the kernel writes cores "
                            "(*container) in '/var/cores', which is covered by source cores => ",
                            NOT_KNOWN } },
                { "/var/cores/core.%P", "/var",
                  .says = { "ok: *covered by source cores => ", NOT_KNOWN } },
                { "/var/cores/core.%P", "/var/cores2",
                  .says = { "warning: *no source of kind process-core covers => add a source of "
                            "kind process-core with path /var/cores",
                            NOT_KNOWN } },
                { "/var/cores/core.%P", "/var/cores", .is_read_only = true,
                  .says = { "ok: *",
                            "warning: '/var/cores' is not a directory that every user may write "
                            "to* => "
                            "run `install -d -m 1777 /var/cores`",
                            NOT_KNOWN } },
                { "/var/cores/core", "/var/cores",
                  .says = { "ok: *",
                            "warning: *'/var/cores/core' has no %P: a core replaces * => write "
                            "'kernel.core_pattern=/var/cores/core.%e.%P.%t'*",
                            NOT_KNOWN } },
                { "/var/cores/core", "/var/cores", .is_read_only = true,
                  .says = { "ok: *", "warning: *is not a directory* => write *install -d*",
                            NOT_KNOWN } },
                { COREDUMP, SYSTEMD,
                  .says = { "ok: *systemd-coredump keeps cores*'" SYSTEMD
                            "', which is covered by source cores => ",
                            NOT_KNOWN } },
                { COREDUMP, NULL,
                  .says = { "warning: *systemd-coredump* => add a source * path " SYSTEMD,
                            NOT_KNOWN } },
                { "|/usr/share/apport/apport -p%p -c%c", APPORT,
                  .says = { "warning: *apport keeps cores (none of containers) in '" APPORT
                            "', which is covered* => disable apport.service, write *",
                            NOT_KNOWN } },
                { "|/usr/share/apport/apport -p%p -c%c", NULL,
                  .says = { "warning: *no source* => disable apport.service, " OUR_RECIPE,
                            NOT_KNOWN } },
                { "|/opt/keep %c", NULL,
                  .says = { "warning: *'|/opt/keep %c': its program decides* => " OUR_RECIPE,
                            NOT_KNOWN } },
                { "|/opt/keep %c", "/var/cores",
                  .says = { "ok: *its program decides* => ", NOT_KNOWN } },
        };
        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                expect(&cases[i]);
}

static void advice_names_the_least_limit_and_who_has_it(void **state) {
#define WELL "/var/cores/%P", "/var/cores"
        const Case cases[] = {
                { WELL, .limits = LIMITS({ U, U }, { U, U }),
                  .says = { "ok: *", "ok: RLIMIT_CORE of processes that hold a Neuron device: "
                                     "unlimited in 2 of 2 => " } },
                { WELL, .limits = LIMITS({ U, U }, { 0, U }, { 4096, U }),
                  .says = { "ok: *", "warning: *device: unlimited in 1 of 3; 'python3' (pid 101) "
                                     "has 0 B, at most unlimited: no core => set "
                                     "LimitCORE=infinity * `ulimit -c unlimited` in the job" } },
                { WELL, .limits = LIMITS({ 1 << 20, 1 << 20 }), .are_services = true,
                  .says = { "ok: *",
                            "warning: *services that start jobs: unlimited in 0 of 1; "
                            "*has 1.0 MiB, at most 1.0 MiB: a larger core is cut or dropped => "
                            "*DefaultLimitCORE=infinity *limits.conf" } },
                { COREDUMP, SYSTEMD, .limits = LIMITS({ 0, U }),
                  .says = { "ok: *", "warning: *no core =>*" } },
                { "|/lib/systemd/systemd-coredump %P 9223372036854775808 %h", SYSTEMD,
                  .limits = LIMITS({ 0, 0 }),
                  .says = { "ok: *", "ok: RLIMIT_CORE has no effect: *no %c, which would "
                                     "pass it to '/lib/systemd/systemd-coredump' => " } },
                { "|/bin/false", NULL, .limits = LIMITS({ 0, 0 }), .says = { "warning: *" } },
        };
        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                expect(&cases[i]);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_pattern_means_where_how_many_and_by_which_limit),
                cmocka_unit_test(the_limit_is_found_in_what_the_kernel_writes),
                cmocka_unit_test(advice_names_the_pattern_the_place_and_the_remedy),
                cmocka_unit_test(advice_names_the_least_limit_and_who_has_it),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
