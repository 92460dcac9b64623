/* Reports the findings of `neuron-collect doctor`, as lines or as JSON, and keeps checks from
 * hanging: a check that accesses paths runs in a child, which sends its findings to this process as
 * JSON. What is checked is left to the other files. */
#include "cli/doctor/doctor.h"

#include <errno.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cli/common/guarded.h"
#include "lib/base/cleanup.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"

#define PASSWD_BYTES 4096

static const char *const words[N_FINDINGS] = { "ok", "warning", "FAILED" };

static json_t *finding_json(const char *word, const char *what, const char *detail,
                            const char *remedy) {
        return json_pack("{s:s, s:o, s:o, s:o}", "state", word, "what", cli_json_string(what),
                         "detail", cli_json_string(detail), "remedy", cli_json_string(remedy));
}

void doctor_report(Doctor *d, Finding finding, const char *what, const char *remedy,
                   const char *fmt, ...) {
        va_list ap;
        va_start(ap, fmt);
        _cleanup_free_ char *text = strbuf_vformat(fmt, ap);
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
        (void)fflush(stdout); /* the next check may take long; main() checks for errors */
}

/* ---- checks that access paths ---- */

typedef struct GuardedCheck {
        Doctor *d;
        void (*check)(Doctor *d, const void *subject);
        const void *subject;
} GuardedCheck;

/* Runs in the child. */
static void run_check(FILE *out, void *userdata) {
        const GuardedCheck *s = userdata;
        s->d->findings = json_array();
        s->check(s->d, s->subject);
        (void)json_dumpf(s->d->findings, out, JSON_COMPACT); /* the parent parses it */
}

static bool report_findings(Doctor *d, const char *text) {
        json_auto_t *findings = json_loads(text, 0, NULL);
        size_t i;
        json_t *one;
        json_array_foreach(findings, i, one) {
                const char *remedy = json_string_value(json_object_get(one, "remedy"));
                int finding = parse_word(cli_text(one, "state"), words, N_FINDINGS);
                if (finding >= 0)
                        doctor_report(d, (Finding)finding, cli_text(one, "what"), remedy, "%s",
                                      cli_text(one, "detail"));
        }
        return json_is_array(findings);
}

bool doctor_guarded(Doctor *d, const char *what, const char *path,
                    void (*check)(Doctor *d, const void *subject), const void *subject) {
        _cleanup_free_ char *text = NULL;
        if (cli_is_interrupted())
                return true;
        cli_progress(d->cli, "checking %s", what);
        int r = guarded_run(run_check, &(GuardedCheck){ d, check, subject }, &text);
        cli_progress_end();
        if (r == 0 && !report_findings(d, text))
                r = -EPROTO;
        if (r == -ETIMEDOUT)
                doctor_report(d, FAILED, what, "check its mount: the server may be away",
                              "'%s' did not answer within 10 s", path);
        else if (r < 0 && r != -EINTR)
                doctor_report(d, FAILED, what, NULL, "'%s' cannot be checked: %s", path,
                              strerror(-r));
        return r != -ETIMEDOUT;
}

const char *doctor_user_name(uid_t uid, char buf[static DOCTOR_USER_NAME_SIZE]) {
        char space[PASSWD_BYTES];
        struct passwd pw, *found = NULL;
        if (getpwuid_r(uid, &pw, space, sizeof space, &found) == 0 && found)
                snprintf(buf, DOCTOR_USER_NAME_SIZE, "'%s'", pw.pw_name);
        else
                snprintf(buf, DOCTOR_USER_NAME_SIZE, "uid %u", (unsigned)uid);
        return buf;
}
