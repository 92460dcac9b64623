/* What is held, when it is asked for anew, and who waits for it. How it is got is the plan's and the run's. */
#include "uploaders/aws/credentials.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/digest.h"
#include "lib/base/list.h"
#include "lib/base/log.h"
#include "lib/event/timer.h"
#include "uploaders/aws/aws_environment.h"
#include "uploaders/aws/credentials_plan.h"
#include "uploaders/aws/credentials_run.h"
#include "uploaders/aws/credentials_secret.h"

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

/* The timer runs on a clock that does not follow the wall's: so it looks at that one now and then. */
#define TIMER_MAX_USEC (10 * USEC_PER_MINUTE)
/* Credentials that served so long were good: a refusal after that is no failure of the source. */
#define SERVED_USEC (5 * USEC_PER_MINUTE)
struct CredentialsWaiter {
        ListLink link;
        void (*on_done)(const char *error, void *userdata);
        void *userdata;
};

/* One fetch and what it works from. */
typedef struct Fetch {
        CredentialsFiles files;
        CredentialsPlan plan;
        CredentialsRun *run;
        bool is_over; /* to be taken down by the next turn: nothing is freed inside its own callback */
} Fetch;

struct Credentials {
        sd_event *event; /* referenced */
        Clock *clock;    /* borrowed */
        char **environment;
        char *profile, *region, *ca_file, *proxy, *home;
        sd_event_source *defer, *timer;

        CredentialsSet set; /* held */
        char *origin;       /* of it; NULL = nothing was found yet */
        uint64_t serial;    /* of it; 0 = nothing was found yet */
        uint64_t fetched_usec, refresh_usec;
        bool is_refused; /* the source is to be asked before it is used again */

        Fetch *fetch; /* underway */
        ListLink waiters;
        CredentialsFilesStat files_stat; /* at the files, before the last fetch */
        char *error;            /* of the last fetch; NULL = it succeeded, or there was none */
        unsigned n_failures;    /* of fetches, in a row */
        unsigned n_refusals;    /* after which the source was asked, each soon after */
        uint64_t next_try_usec; /* after a failure; CLOCK_BOOTTIME */
        uint64_t next_refused_fetch_usec; /* after a refusal; CLOCK_BOOTTIME */
};

static uint64_t now_real(const Credentials *c) {
        return c->clock->realtime_usec(c->clock);
}

static bool is_usable(const Credentials *c) {
        return c->set.access_key && !c->is_refused &&
               credentials_schedule_is_good(c->fetched_usec, c->set.expires_usec, now_real(c));
}

/* What is to happen next is looked at from the loop, never from inside a call of ours. */
static void schedule_check(Credentials *c) {
        (void)sd_event_source_set_enabled(c->defer, SD_EVENT_ONESHOT); /* valid source and state */
}

static Fetch *fetch_free(Fetch *f) {
        if (!f)
                return NULL;
        credentials_run_free(f->run);
        credentials_plan_done(&f->plan);
        credentials_files_done(&f->files);
        free(f);
        return NULL;
}

/* The timer */

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

/* The end of a fetch */

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
        /* Each node has keys of its own: their digest spreads a fleet as well as chance does. */
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
        log_debug("%s", error ? error : "out of memory while looking for AWS credentials");
}

static void end_fetch(Credentials *c) {
        CredentialsSet set;
        char *origin;

        if (credentials_run_result(c->fetch->run, &set, &origin) == 0)
                accept_keys(c, &set, origin);
        else
                record_failure(c, format_sentence("%s", credentials_run_error(c->fetch->run)));
        c->fetch = fetch_free(c->fetch);
        set_timer(c);
}

/* Its beginning */

static void on_run(void *userdata) {
        Credentials *c = userdata;

        c->fetch->is_over = true;
        schedule_check(c);
}

static int create_run(Credentials *c, Fetch *f, char **ret_error) {
        int r = credentials_files_read(&f->files, c->environment, c->home);
        if (r < 0)
                return r;
        r = credentials_plan_new(&f->plan,
                                 &(CredentialsPlanOptions){ .environment = c->environment,
                                                            .files = &f->files,
                                                            .profile = c->profile,
                                                            .region = c->region },
                                 ret_error);
        if (r < 0)
                return r;
        return credentials_run_new(&f->run, &(CredentialsRunOptions){ .event = c->event,
                                                                      .clock = c->clock,
                                                                      .environment = c->environment,
                                                                      .plan = &f->plan,
                                                                      .ca_file = c->ca_file,
                                                                      .proxy = c->proxy,
                                                                      .on_done = on_run,
                                                                      .userdata = c });
}

static void start_fetch(Credentials *c) {
        char *fault = NULL;

        c->files_stat = credentials_files_stat(c->environment, c->home);
        Fetch *f = calloc(1, sizeof *f);
        int r = f ? create_run(c, f, &fault) : -ENOMEM;
        if (r < 0) {
                fetch_free(f);
                record_failure(c, fault);
                set_timer(c);
                return;
        }
        c->fetch = f;
        credentials_run_start(f->run);
}

static bool may_try(const Credentials *c) {
        return c->clock->boottime_usec(c->clock) >= c->next_try_usec;
}

/* Somebody has mended something: that is looked at at once, however often it was looked at in vain. */
static bool have_files_changed(const Credentials *c) {
        CredentialsFilesStat files_stat = credentials_files_stat(c->environment, c->home);

        return !credentials_files_stat_equal(&files_stat, &c->files_stat);
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
        (void)source;
        (void)usec;
        credentials_tick(userdata);
        return 0;
}

/* Who waits */

/* Takes them all off first: one who is told may begin to wait again, or have another one cancelled. */
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
        if (c->fetch && c->fetch->is_over)
                end_fetch(c);
        if (list_is_empty(&c->waiters) || (c->fetch && !is_usable(c)))
                return 0;
        if (is_usable(c)) {
                notify_waiters(c, NULL);
                return 0;
        }
        /* A copy: one who is told may cause the next failure. */
        _cleanup_free_ char *error = c->error ? strdup(c->error) : NULL;
        notify_waiters(c, error ? error : "out of memory while looking for AWS credentials");
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

/* What is held */

bool credentials_peek(const Credentials *c, AwsKeys *ret) {
        if (!is_usable(c))
                return false;
        *ret = credentials_set_keys(&c->set);
        return true;
}

uint64_t credentials_serial(const Credentials *c) {
        return c->serial;
}

bool credentials_refused(Credentials *c, uint64_t serial) {
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
        CredentialsFiles files;

        if (credentials_files_read(&files, c->environment, c->home) < 0)
                return NULL;
        const char *region = credentials_files_region(
                &files, c->environment, credentials_files_profile(c->environment, c->profile));
        char *copy = region ? strdup(region) : NULL;
        credentials_files_done(&files);
        return copy;
}

/* Life */

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
        c->environment = credentials_env_copy(options->environment);
        if (!c->environment || !copy_text(&c->profile, options->profile) ||
            !copy_text(&c->region, options->region) || !copy_text(&c->ca_file, options->ca_file) ||
            !copy_text(&c->proxy, options->proxy) || !copy_text(&c->home, options->home))
                return -ENOMEM;
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
        fetch_free(c->fetch);
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
