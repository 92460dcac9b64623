/* Holds AWS credentials for the code that signs requests: fetches them when a caller waits for
 * them, refreshes them before they expire, and fetches them again, with a backoff, when a fetch
 * failed or the server refused them. Keys stay in use until there are better ones.
 *
 * One fetch runs at a time: credentials_fetch.c. Which source it asks is decided by
 * credentials_plan.c. A fetch that ended is handled in the next turn of the loop (on_check), since
 * nothing may be freed inside its own callback. */
#include "uploaders/aws/credentials.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-event.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/digest.h"
#include "lib/base/list.h"
#include "lib/base/log.h"
#include "lib/base/strbuf.h"
#include "lib/event/timer.h"
#include "uploaders/aws/aws_environment.h"
#include "uploaders/aws/credentials_fetch.h"
#include "uploaders/aws/credentials_plan.h"
#include "uploaders/aws/credentials_secret.h"

struct CredentialsWaiter {
        ListLink link;
        void (*on_done)(const char *error, void *userdata);
        void *userdata;
};

struct Credentials {
        sd_event *event; /* referenced */
        Clock *clock;    /* borrowed */
        char **environment;
        char *profile, *region, *ca_file, *proxy, *home;
        CredentialsPlanOptions plan; /* of these */
        sd_event_source *defer, *timer;

        CredentialsSet set; /* held */
        char *origin;       /* of it; NULL = nothing was found yet */
        uint64_t serial;    /* of it; 0 = nothing was found yet */
        uint64_t fetched_usec, refresh_usec;
        bool is_refused; /* the source is to be asked before it is used again */

        CredentialsFetch *fetch; /* that runs, or has ended in this turn of the loop */
        ListLink waiters;
        char *error;            /* of the last fetch; NULL = it succeeded, or there was none */
        unsigned n_failures;    /* of fetches, in a row */
        uint64_t files_version; /* before the last fetch */
        unsigned n_refusals;    /* after which the source was asked, each soon after */
        uint64_t next_try_usec; /* after a failure; CLOCK_BOOTTIME */
        uint64_t next_refused_fetch_usec; /* after a refusal; CLOCK_BOOTTIME */
};

/* ---- when ---- */

#define EARLY_USEC (5 * USEC_PER_MINUTE)
#define MAX_BACKOFF_USEC USEC_PER_MINUTE

bool credentials_schedule_is_good(uint64_t fetched_usec, uint64_t expires_usec, uint64_t now_usec) {
        if (expires_usec == 0)
                return true;
        if (expires_usec <= now_usec || expires_usec <= fetched_usec)
                return false;
        return expires_usec - now_usec > MIN(USEC_PER_MINUTE, (expires_usec - fetched_usec) / 10);
}

uint64_t credentials_schedule_refresh_usec(uint64_t fetched_usec, uint64_t expires_usec,
                                           uint64_t random) {
        if (expires_usec == 0)
                return USEC_INFINITY;
        uint64_t life = expires_usec > fetched_usec ? expires_usec - fetched_usec : 0;

        if (life <= EARLY_USEC + USEC_PER_MINUTE)
                return fetched_usec + MAX(MIN(life / 2, USEC_PER_MINUTE), USEC_PER_SEC);
        uint64_t jitter = random % (life / 10);
        return MIN(fetched_usec + life / 10 * 8 - jitter, expires_usec - EARLY_USEC);
}

uint64_t credentials_schedule_backoff_usec(unsigned n_failures) {
        if (n_failures == 0)
                return 0;
        return n_failures > 6 ? MAX_BACKOFF_USEC
                              : MIN(USEC_PER_SEC << (n_failures - 1), MAX_BACKOFF_USEC);
}

/* The timer runs on CLOCK_BOOTTIME, and credentials expire by the wall clock, which may be set: so
 * it is read again after so long at the latest. */
#define TIMER_MAX_USEC (10 * USEC_PER_MINUTE)
/* Credentials that served so long were good: a refusal after that is no failure of the source. */
#define SERVED_USEC (5 * USEC_PER_MINUTE)

static uint64_t now_real(const Credentials *c) {
        return c->clock->realtime_usec(c->clock);
}

static bool is_usable(const Credentials *c) {
        return c->set.access_key && !c->is_refused &&
               credentials_schedule_is_good(c->fetched_usec, c->set.expires_usec, now_real(c));
}

/* ---- the timer ---- */

static void set_timer(Credentials *c) {
        uint64_t now_usec = now_real(c), wait_usec = TIMER_MAX_USEC;

        if (c->set.expires_usec == 0 || c->is_refused) {
                (void)sd_event_source_set_enabled(c->timer, SD_EVENT_OFF);
                return;
        }
        if (c->refresh_usec < now_usec + TIMER_MAX_USEC)
                wait_usec = c->refresh_usec > now_usec ? c->refresh_usec - now_usec : 0;
        if (c->n_failures > 0)
                wait_usec = MAX(wait_usec, credentials_schedule_backoff_usec(c->n_failures));
        int r = timer_rearm(c->timer, MAX(wait_usec, USEC_PER_SEC));
        if (r < 0) /* then they are fetched when they are asked for and no good any more */
                log_write(LOG_DEBUG, r, NULL, "no timer to refresh the credentials by");
}

/* ---- a fetch ---- */

static bool is_same_text(const char *a, const char *b) {
        return a && b ? strcmp(a, b) == 0 : a == b;
}

static bool is_same_set(const CredentialsSet *a, const CredentialsSet *b) {
        return is_same_text(a->access_key, b->access_key) &&
               is_same_text(a->secret_key, b->secret_key) && is_same_text(a->token, b->token);
}

static void accept_keys(Credentials *c, CredentialsSet *set, char *origin) {
        uint8_t sha256[SHA256_SIZE];
        uint64_t random;

        c->serial += !is_same_set(&c->set, set);
        credentials_set_done(&c->set);
        free(c->origin);
        c->set = *set;
        c->origin = origin;
        c->fetched_usec = now_real(c);
        c->is_refused = false;
        /* Each node has its own keys, so their digest spreads the nodes of a fleet like a random
         * number. */
        sha256_of(c->set.access_key, strlen(c->set.access_key), sha256);
        memcpy(&random, sha256, sizeof random);
        c->refresh_usec =
                credentials_schedule_refresh_usec(c->fetched_usec, c->set.expires_usec, random);
        free(c->error);
        c->error = NULL;
        c->n_failures = 0;
        c->next_try_usec = 0;
        log_debug("credentials from %s", c->origin);
}

/* @param error  taken; NULL = out of memory */
static void record_failure(Credentials *c, char *error) {
        free(c->error);
        c->error = error;
        c->is_refused = false; /* better than nothing */
        c->n_failures++;
        c->next_try_usec = c->clock->boottime_usec(c->clock) +
                           credentials_schedule_backoff_usec(c->n_failures);
        log_debug("%s", error ? error : CREDENTIALS_NO_MEMORY);
}

static void end_fetch(Credentials *c) {
        CredentialsSet set = { 0 };
        char *origin = NULL;
        const char *error = credentials_fetch_take(c->fetch, &set, &origin);

        if (error)
                record_failure(c, format_sentence("%s", error));
        else
                accept_keys(c, &set, origin);
        c->fetch = credentials_fetch_free(c->fetch);
        set_timer(c);
}

/* What follows is done in the next turn of the loop, never inside a callback. */
static void schedule_check(Credentials *c) {
        (void)sd_event_source_set_enabled(c->defer, SD_EVENT_ONESHOT); /* valid source and state */
}

static void on_over(void *userdata) {
        schedule_check(userdata);
}

static void start_fetch(Credentials *c) {
        char *fault = NULL;

        c->files_version = credentials_files_version(c->environment, c->home);
        int r = credentials_fetch_new(&c->fetch,
                                      &(CredentialsFetchOptions){ .event = c->event,
                                                                  .clock = c->clock,
                                                                  .environment = c->environment,
                                                                  .ca_file = c->ca_file,
                                                                  .proxy = c->proxy,
                                                                  .plan = &c->plan,
                                                                  .on_over = on_over,
                                                                  .userdata = c },
                                      &fault);
        if (r < 0) {
                record_failure(c, fault);
                return set_timer(c);
        }
        credentials_fetch_start(c->fetch);
}

static bool may_try(const Credentials *c) {
        return c->clock->boottime_usec(c->clock) >= c->next_try_usec;
}

/* A changed file is read at once, however many fetches have failed. */
static bool have_files_changed(const Credentials *c) {
        return credentials_files_version(c->environment, c->home) != c->files_version;
}

void credentials_tick(Credentials *c) {
        if (!c->fetch && c->set.access_key && !c->is_refused && may_try(c) &&
            now_real(c) >= c->refresh_usec)
                start_fetch(c);
        set_timer(c);
}

bool credentials_is_fetching(const Credentials *c) {
        return c->fetch != NULL;
}

static int on_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        (void)source, (void)usec;
        credentials_tick(userdata);
        return 0;
}

/* ---- waiting callers ---- */

/* Takes them all off first: a callback may begin to wait again, or have another one
 * cancelled. */
static void notify_waiters(Credentials *c, const char *error) {
        ListLink ready;

        list_init(&ready);
        while (!list_is_empty(&c->waiters)) {
                ListLink *link = c->waiters.next;
                list_remove(link);
                list_append(&ready, link);
        }
        while (!list_is_empty(&ready)) {
                CredentialsWaiter *w = CONTAINER_OF(ready.next, CredentialsWaiter, link);
                list_remove(&w->link);
                w->on_done(error, w->userdata);
                free(w);
        }
}

static int on_check(sd_event_source *source, void *userdata) {
        Credentials *c = userdata;

        (void)source;
        if (c->fetch && credentials_fetch_is_over(c->fetch))
                end_fetch(c);
        if (list_is_empty(&c->waiters) || (c->fetch && !is_usable(c)))
                return 0;
        if (is_usable(c)) {
                notify_waiters(c, NULL);
                return 0;
        }
        /* A copy: a callback may cause the next failure. */
        _cleanup_free_ char *error = c->error ? strdup(c->error) : NULL;
        notify_waiters(c, error ? error : CREDENTIALS_NO_MEMORY);
        return 0;
}

int credentials_fetch(Credentials *c, CredentialsWaiter **ret,
                      void (*on_done)(const char *error, void *userdata), void *userdata) {
        CredentialsWaiter *w = calloc(1, sizeof *w);
        if (!w)
                return -ENOMEM;
        w->on_done = on_done;
        w->userdata = userdata;
        list_append(&c->waiters, &w->link);
        if (!c->fetch && !is_usable(c) && (may_try(c) || have_files_changed(c)))
                start_fetch(c);
        if (!c->fetch || is_usable(c))
                schedule_check(c);
        if (ret)
                *ret = w;
        return 0;
}

CredentialsWaiter *credentials_waiter_cancel(CredentialsWaiter *w) {
        if (!w)
                return NULL;
        list_remove(&w->link);
        free(w);
        return NULL;
}

/* ---- the keys in use ---- */

bool credentials_peek(const Credentials *c, AwsKeys *ret) {
        if (!is_usable(c))
                return false;
        *ret = credentials_set_keys(&c->set);
        return true;
}

uint64_t credentials_serial(const Credentials *c) {
        return c->serial;
}

bool credentials_report_refused(Credentials *c, uint64_t serial) {
        uint64_t now_usec = now_real(c), boottime_usec = c->clock->boottime_usec(c->clock);

        if (serial != c->serial || c->is_refused)
                return true;
        if (!have_files_changed(c) && (boottime_usec < c->next_refused_fetch_usec || !may_try(c)))
                return false;
        if (now_usec >= c->fetched_usec && now_usec - c->fetched_usec >= SERVED_USEC)
                c->n_refusals = 0;
        c->next_refused_fetch_usec =
                boottime_usec + credentials_schedule_backoff_usec(++c->n_refusals);
        c->is_refused = true;
        set_timer(c);
        return true;
}

const char *credentials_error(const Credentials *c) {
        return c->error;
}

const char *credentials_origin(const Credentials *c) {
        return c->origin ? c->origin : "not found yet";
}

uint64_t credentials_expire_usec(const Credentials *c) {
        return c->set.expires_usec;
}

char *credentials_region(const Credentials *c) {
        char *region = NULL;

        (void)credentials_plan_region(&c->plan, &region); /* without memory there is none */
        return region;
}

/* ---- life ---- */

/* Copies a string that may be NULL. @return whether there was memory */
static bool copy_text(char **to, const char *from) {
        *to = from && *from ? strdup(from) : NULL;
        return *to || !from || !*from;
}

int credentials_new(Credentials **ret, const CredentialsOptions *options) {
        _cleanup_(credentials_freep) Credentials *c = calloc(1, sizeof *c);
        if (!c)
                return -ENOMEM;
        c->event = sd_event_ref(options->event);
        c->clock = options->clock;
        list_init(&c->waiters);
        c->environment = aws_environment_copy(options->environment);
        if (!c->environment || !copy_text(&c->profile, options->profile) ||
            !copy_text(&c->region, options->region) || !copy_text(&c->ca_file, options->ca_file) ||
            !copy_text(&c->proxy, options->proxy) || !copy_text(&c->home, options->home))
                return -ENOMEM;
        c->plan = (CredentialsPlanOptions){ .environment = c->environment,
                                            .home = c->home,
                                            .profile = c->profile,
                                            .region = c->region };
        int r = sd_event_add_defer(c->event, &c->defer, on_check, c);
        if (r >= 0)
                r = sd_event_source_set_enabled(c->defer, SD_EVENT_OFF);
        if (r >= 0)
                r = sd_event_add_time_relative(c->event, &c->timer, CLOCK_BOOTTIME, 0, USEC_PER_SEC,
                                               on_timer, c);
        if (r >= 0)
                r = sd_event_source_set_enabled(c->timer, SD_EVENT_OFF);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(c);
        return 0;
}

Credentials *credentials_free(Credentials *c) {
        if (!c)
                return NULL;
        credentials_fetch_free(c->fetch);
        LIST_FOREACH_SAFE (link, &c->waiters)
                free(CONTAINER_OF(link, CredentialsWaiter, link));
        sd_event_source_disable_unref(c->defer);
        sd_event_source_disable_unref(c->timer);
        sd_event_unref(c->event);
        credentials_set_done(&c->set);
        credentials_secret_free(c->environment);
        free(c->profile);
        free(c->region);
        free(c->ca_file);
        free(c->proxy);
        free(c->home);
        free(c->origin);
        free(c->error);
        free(c);
        return NULL;
}
