/* Drives credentials for a test: commands on stdin, a line of JSON on stdout for each, never a key,
 * only its SHA-256. The clock is a fake one that stands at --now (seconds since 1970; default: the
 * system's time at start). fetch [N]      N callers at once (1); answers when all were told peek
 * what is held tick           what the timer does, and waits until nobody is asked any more advance
 * S      both clocks continue by S seconds refuse / refuse-other   the server refused the keys that
 * are held / those before them; `again`: is it worth to fetch? cancel         begins to wait and
 * gives it up region         what credentials_region() tells wait-new       runs the loop until
 * another access key is held, by the module's own timer */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <systemd/sd-event.h>

#include "lib/base/digest.h"
#include "lib/base/parse.h"
#include "lib/http/http.h"
#include "tests/harness/fake_clock.h"
#include "uploaders/aws/credentials.h"

#define PATIENCE_USEC (20 * USEC_PER_SEC)
#define MAX_CALLERS 64

extern char **environ;

typedef struct Driver {
        sd_event *event;
        Credentials *credentials;
        FakeClock clock;
        unsigned n_told;
        char *error; /* what the last caller was told; NULL = nothing wrong */
} Driver;

static void on_reported(const char *error, void *userdata) {
        Driver *d = userdata;

        d->n_told++;
        free(d->error);
        d->error = error ? strdup(error) : NULL;
}

static json_t *digest_of(const char *text) {
        uint8_t sha256[SHA256_SIZE];
        char hex[SHA256_HEX_SIZE];

        if (!text)
                return json_null();
        sha256_of(text, strlen(text), sha256);
        return json_string(digest_hex(sha256, sizeof sha256, hex));
}

/* Prints what is held and what was told. */
static void report(Driver *d, json_t *more) {
        AwsKeys keys = { 0 };
        bool has = credentials_peek(d->credentials, &keys);
        json_t *o = json_pack(
                "{s:b, s:o, s:o, s:o, s:s, s:I, s:I, s:s?, s:s?, s:i}", "has", has, "access_key",
                digest_of(keys.access_key), "secret_key", digest_of(keys.secret_key), "token",
                digest_of(keys.token), "origin", credentials_origin(d->credentials), "expires",
                (json_int_t)(credentials_expire_usec(d->credentials) / USEC_PER_SEC), "serial",
                (json_int_t)credentials_serial(d->credentials), "failure",
                credentials_error(d->credentials), "error", d->error, "told", (int)d->n_told);

        if (more)
                json_object_update(o, more);
        json_decref(more);
        json_dumpf(o, stdout, JSON_ENSURE_ASCII | JSON_SORT_KEYS);
        json_decref(o);
        putchar('\n');
        fflush(stdout);
}

/* @return false when it took too long */
static bool run_until(Driver *d, bool (*is_done)(Driver *d)) {
        uint64_t end_usec, now_usec;

        sd_event_now(d->event, CLOCK_BOOTTIME, &now_usec);
        end_usec = now_usec + PATIENCE_USEC;
        while (!is_done(d)) {
                if (now_usec >= end_usec || sd_event_run(d->event, end_usec - now_usec) < 0)
                        return false;
                sd_event_now(d->event, CLOCK_BOOTTIME, &now_usec);
        }
        return true;
}

static unsigned n_wanted;
static char held[SHA256_HEX_SIZE];

static bool all_reported(Driver *d) {
        return d->n_told >= n_wanted;
}

static bool is_idle(Driver *d) {
        return !credentials_is_fetching(d->credentials);
}

static void held_digest(Driver *d, char buf[static SHA256_HEX_SIZE]) {
        AwsKeys keys = { 0 };
        uint8_t sha256[SHA256_SIZE];

        buf[0] = '\0';
        if (!credentials_peek(d->credentials, &keys))
                return;
        sha256_of(keys.access_key, strlen(keys.access_key), sha256);
        digest_hex(sha256, sizeof sha256, buf);
}

static bool is_new(Driver *d) {
        char now[SHA256_HEX_SIZE];

        held_digest(d, now);
        return now[0] && strcmp(now, held) != 0;
}

static json_t *late(bool in_time) {
        return in_time ? NULL : json_pack("{s:b}", "late", true);
}

static void do_fetch(Driver *d, const char *argument) {
        uint64_t n = 1;

        if (argument)
                (void)parse_u64_range(argument, 1, MAX_CALLERS, &n); /* else 1 */
        d->n_told = 0;
        n_wanted = (unsigned)n;
        d->error = (free(d->error), NULL);
        for (uint64_t i = 0; i < n; i++)
                if (credentials_fetch(d->credentials, NULL, on_reported, d) < 0)
                        exit(1);
        if (d->n_told > 0)
                exit(3); /* told from inside */
        report(d, late(run_until(d, all_reported)));
}

static void do_refuse(Driver *d, bool other) {
        uint64_t serial = credentials_serial(d->credentials);
        bool again = credentials_report_refused(d->credentials, other ? serial - 1 : serial);

        report(d, json_pack("{s:b}", "again", again));
}

static void do_cancel(Driver *d) {
        CredentialsWaiter *w = NULL;

        d->n_told = 0;
        if (credentials_fetch(d->credentials, &w, on_reported, d) < 0)
                exit(1);
        credentials_waiter_cancel(w);
        report(d, late(run_until(d, is_idle)));
}

static void do_region(Driver *d) {
        char *region = credentials_region(d->credentials);

        report(d, json_pack("{s:s?}", "region", region));
        free(region);
}

static void obey(Driver *d, const char *word, const char *argument) {
        uint64_t seconds;

        if (strcmp(word, "fetch") == 0)
                do_fetch(d, argument);
        else if (strcmp(word, "peek") == 0)
                report(d, NULL);
        else if (strcmp(word, "tick") == 0) {
                credentials_tick(d->credentials);
                report(d, late(run_until(d, is_idle)));
        } else if (strcmp(word, "advance") == 0 && argument && parse_u64(argument, &seconds) == 0) {
                fake_clock_advance(&d->clock, seconds * USEC_PER_SEC);
                report(d, NULL);
        } else if (strcmp(word, "refuse") == 0 || strcmp(word, "refuse-other") == 0)
                do_refuse(d, word[6] != '\0');
        else if (strcmp(word, "cancel") == 0)
                do_cancel(d);
        else if (strcmp(word, "region") == 0)
                do_region(d);
        else if (strcmp(word, "wait-new") == 0) {
                held_digest(d, held);
                report(d, late(run_until(d, is_new)));
        } else
                exit(2);
}

static int set_option(CredentialsOptions *o, uint64_t *now_seconds, char **argv) {
        const char *name = argv[0], *value = argv[1];

        if (!value)
                return -1;
        if (strcmp(name, "--profile") == 0)
                o->profile = value;
        else if (strcmp(name, "--region") == 0)
                o->region = value;
        else if (strcmp(name, "--home") == 0)
                o->home = value;
        else if (strcmp(name, "--ca-file") == 0)
                o->ca_file = value;
        else if (strcmp(name, "--proxy") == 0)
                o->proxy = value;
        else if (strcmp(name, "--now") == 0)
                return parse_u64(value, now_seconds);
        else
                return -1;
        return 0;
}

int main(int argc, char **argv) {
        CredentialsOptions options = { .environment = environ };
        uint64_t now_seconds = clock_system()->realtime_usec(clock_system()) / USEC_PER_SEC;
        char line[256];
        Driver d = { 0 };

        for (int i = 1; i < argc; i += 2)
                if (set_option(&options, &now_seconds, argv + i) < 0)
                        return 2;
        d.clock = FAKE_CLOCK(now_seconds * USEC_PER_SEC, 1000 * USEC_PER_SEC);
        options.clock = &d.clock.clock;
        if (http_global_init() < 0 || sd_event_new(&d.event) < 0)
                return 1;
        options.event = d.event;
        if (credentials_new(&d.credentials, &options) < 0)
                return 1;
        while (fgets(line, sizeof line, stdin)) {
                char *save = NULL, *word = strtok_r(line, " \n", &save);

                if (word)
                        obey(&d, word, strtok_r(NULL, " \n", &save));
        }
        credentials_free(d.credentials);
        sd_event_unref(d.event);
        free(d.error);
        return 0;
}
