/* One request on its way: a connection for large bodies, credentials, signature, answer, and again where that is the answer. What an
 * answer calls for is decided in s3_client_next.c.
 *
 *   NEW → (QUEUED → NEW →) (PAUSING →) (ASKING →) SENT → ENDED
 *          ↑                  │   ↑        ↑      │ │
 *          │                  │   │        └ keys ┘ │     keys that were denied: has their source others?
 *          └ slow down ───────┘   └─────────────────┘ */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/event/timer.h"
#include "uploaders/backoff.h"
#include "uploaders/s3/s3_client_private.h"

#define LARGE_BYTES (64 * KIB) /* a body from here on needs one of the connections for large ones */

/* States */

static bool has_connection(const S3Call *call) {
        return call->is_large && call->state != CALL_NEW && call->state != CALL_QUEUED &&
               call->state != CALL_ENDED;
}

#define TO(state) (1U << (state))
static const unsigned moves[N_CALL_STATES] = {
        [CALL_NEW] = TO(CALL_QUEUED) | TO(CALL_PAUSING) | TO(CALL_ASKING) | TO(CALL_SENT) |
                     TO(CALL_ENDED),
        [CALL_QUEUED] = TO(CALL_NEW) | TO(CALL_ENDED),
        [CALL_ASKING] = TO(CALL_PAUSING) | TO(CALL_SENT) | TO(CALL_ENDED),
        [CALL_SENT] = TO(CALL_SENT) | TO(CALL_ASKING) | TO(CALL_PAUSING) | TO(CALL_ENDED),
        [CALL_PAUSING] = TO(CALL_QUEUED) | TO(CALL_PAUSING) | TO(CALL_ASKING) | TO(CALL_SENT) |
                         TO(CALL_ENDED),
        [CALL_ENDED] = TO(CALL_ENDED), /* told, then freed */
};

static void set_state(S3Call *call, CallState state) {
        bool had_connection = has_connection(call);

        if (!(moves[call->state] & TO(state))) {
                log_debug("%s: state %d does not lead to %d",
                          s3_operation_name(call->order.operation), (int)call->state, (int)state);
                return;
        }
        call->state = state;
        call->client->n_large += has_connection(call) - had_connection;
}

static void count_sent(S3Call *call, uint64_t bytes) {
        call->client->counts.stats.sent_bytes += bytes;
        if (call->order.sent_bytes)
                *call->order.sent_bytes += bytes;
}

S3Call *s3_call_free(S3Call *call) {
        set_state(call, CALL_ENDED);
        list_remove(&call->link);
        sd_event_source_disable_unref(call->timer);
        credentials_waiter_cancel(call->waiter);
        if (call->http)
                count_sent(call, http_call_sent_bytes(call->http));
        s3_call_return_token(call);
        http_call_cancel(call->http);
        s3_call_free_order(call);
        s3_answer_done(&call->denial);
        free(call);
        return NULL;
}

static const char *result_header(const S3Result *r, const char *name) {
        return r->reply ? http_reply_header(r->reply, name) : NULL;
}

/* The one way out: tells, and is gone. */
static void finish(S3Call *call, const S3Answer *answer, const HttpReply *reply) {
        S3Client *c = call->client;
        const S3Result result = {
                .answer = answer,
                .status = reply ? reply->status : call->denial_status,
                .n_tries = call->n_tries,
                .body = reply && reply->body ? reply->body : "",
                .body_bytes = reply && reply->body ? reply->body_bytes : 0,
                .header = result_header,
                .reply = reply,
        };

        set_state(call, CALL_ENDED);
        call->order.on_done(&result, call->order.userdata);
        s3_call_free(call);
        s3_client_admit(c);
}

/* Ends without an answer of the server's. @param text  copied */
static void finish_unsent(S3Call *call, S3Verdict verdict, const char *text) {
        S3Answer answer = { .verdict = verdict, .sentence = strdup(text) };

        finish(call, &answer, NULL);
        s3_answer_done(&answer);
}

static void finish_failure(S3Call *call, int r) {
        char text[256];

        (void)snprintf(text, sizeof text, "%s cannot be asked for: %s",
                       s3_operation_name(call->order.operation), strerror(-r));
        finish_unsent(call, r == -EINVAL ? S3_REFUSED : S3_RETRY, text);
}

/* Doing it */

static int try_now(S3Call *call);

static int on_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        (void)source;
        (void)usec;
        return try_now(userdata);
}

static int arm(S3Call *call, uint64_t usec) {
        return timer_arm(&call->timer, &(TimerOrder){ .event = call->client->event,
                                                      .usec = usec,
                                                      .slack_usec = 1,
                                                      .handler = on_timer,
                                                      .userdata = call });
}

static void pause_call(S3Call *call, const S3Answer *answer) {
        const S3ClientOptions *o = &call->client->options;
        uint64_t wait = backoff_next_usec(MAX(call->n_failures, 1U), o->retry_initial_usec,
                                          o->retry_maximum_usec, s3_client_random(call->client));

        set_state(call, CALL_PAUSING);
        int r = arm(call, MAX(wait, s3_call_retry_after_usec(call, answer)));
        if (r < 0)
                finish_failure(call, r);
}

/* The denial stands. @param error  why the source could not tell; NULL = it has no others */
static void finish_denied(S3Call *call, const char *error) {
        char *sentence;

        if (error && asprintf(&sentence, "%s; and there are no others: %s",
                              call->denial.sentence ? call->denial.sentence : "the keys are denied",
                              error) >= 0) {
                free(call->denial.sentence);
                call->denial.sentence = sentence;
        }
        finish(call, &call->denial, NULL);
}

/* What is held after the source was asked. */
static void on_others(const char *error, void *userdata) {
        S3Call *call = userdata;
        S3Client *c = call->client;

        call->waiter = NULL;
        if (error || credentials_serial(c->credentials) == call->serial) {
                finish_denied(call, error ? error : credentials_error(c->credentials));
                return;
        }
        s3_answer_done(&call->denial);
        call->denial_status = 0;
        c->counts.stats.n_retries++;
        (void)try_now(call); /* it has told what there was to tell */
}

static void ask_for_others(S3Call *call) {
        set_state(call, CALL_ASKING);
        if (credentials_fetch(call->client->credentials, &call->waiter, on_others, call) < 0)
                finish_denied(call, NULL);
}

static void on_reply(const HttpReply *reply, void *userdata) {
        S3Call *call = userdata;
        S3Client *c = call->client;
        S3Answer answer = { .verdict = S3_RETRY };

        call->http = NULL;
        if (reply->status > 0)
                c->asked_usec = c->clock->boottime_usec(c->clock);
        s3_counts_add(&c->counts, call->order.operation, reply);
        count_sent(call, reply->sent_bytes);
        s3_client_heard_date(c, http_reply_header(reply, "date"));
        s3_call_judge(call, reply, &answer);
        s3_call_heard(call, &answer, reply->error ? 0 : reply->status);
        switch (s3_call_decide(call, &answer)) {
        case NEXT_END:
                finish(call, &answer, reply);
                break;
        case NEXT_KEYS:
                call->denial_status = reply->status;
                call->denial = answer;
                answer = (S3Answer){ .verdict = S3_OK };
                ask_for_others(call);
                break;
        case NEXT_AGAIN:
                c->counts.stats.n_retries++;
                (void)try_now(call); /* it has told what there was to tell */
                break;
        case NEXT_PAUSE:
                c->counts.stats.n_retries++;
                pause_call(call, &answer);
                break;
        }
        s3_answer_done(&answer);
}

static int on_reply_data(HttpCall *http, const void *data, size_t n, void *userdata) {
        S3Call *call = userdata;

        (void)http;
        call->was_handed_out = true;
        return call->order.on_data(data, n, call->order.userdata);
}

/* @return 0, -errno: not begun */
static int send_now(S3Call *call, const AwsKeys *keys) {
        S3Client *c = call->client;
        S3Request request;

        call->serial = credentials_serial(c->credentials);
        call->signed_ahead_usec = c->sign_ahead_usec;
        call->signed_usec = c->clock->realtime_usec(c->clock) + (uint64_t)c->sign_ahead_usec;
        int r = s3_request_make(&request, call, keys);
        if (r < 0)
                return r;
        (void)snprintf(call->region, sizeof call->region, "%s", c->place.region);
        const HttpOrder http = {
                .method = request.method,
                .url = request.url,
                .headers = (const char *const *)request.headers,
                .body = call->order.body_bytes > 0 ? call->order.body : NULL,
                .body_bytes = call->order.body_bytes,
                .reply_max_bytes = s3_call_reply_max_bytes(call),
                .on_data = call->order.on_data ? on_reply_data : NULL,
                .never_repeat = call->order.operation == S3_CREATE_UPLOAD, /* two are two uploads */
                .on_done = on_reply,
                .userdata = call,
        };
        s3_call_use_token(call);
        r = http_call_new(&call->http, c->pool, &http);
        call->n_tries += r == 0;
        s3_request_done(&request);
        return r;
}

static void on_credentials(const char *error, void *userdata) {
        S3Call *call = userdata;

        call->waiter = NULL;
        if (error)
                finish_unsent(call, S3_DENIED, error);
        else
                (void)try_now(call); /* it has told what there was to tell */
}

static int ask_for_credentials(S3Call *call) {
        if (call->state == CALL_ASKING) { /* just fetched, and gone already */
                finish_unsent(call, S3_DENIED,
                              "the credentials expire as soon as they are fetched: check this "
                              "machine's clock and their source");
                return 0;
        }
        set_state(call, CALL_ASKING);
        return credentials_fetch(call->client->credentials, &call->waiter, on_credentials, call);
}

/* @return whether it waits until others have ended */
static bool lacks_connection(const S3Call *call) {
        unsigned n_large = call->client->n_large, max = s3_client_large_max(call->client);

        if (!call->is_large)
                return false;
        /* A store that has asked for less meanwhile: who pauses makes room first. */
        return has_connection(call) ? call->state == CALL_PAUSING && n_large > max : n_large >= max;
}

/* One try. The call may be gone when it returns. @return 0 always: nobody else can act on it */
static int try_now(S3Call *call) {
        S3Client *c = call->client;
        AwsKeys keys;
        uint64_t wait;
        int r;

        if (lacks_connection(call)) {
                set_state(call, CALL_QUEUED);
                return 0;
        }
        if (call->order.is_conditional && c->has_no_conditions) {
                finish_unsent(call, S3_UNCONDITIONAL, "this store has no conditional writes");
                return 0;
        }
        wait = s3_call_wait_usec(call);
        if (wait > 0) {
                set_state(call, CALL_PAUSING);
                r = arm(call, wait);
        } else if (credentials_peek(c->credentials, &keys)) {
                set_state(call, CALL_SENT);
                r = send_now(call, &keys);
        } else {
                r = ask_for_credentials(call);
        }
        if (r < 0)
                finish_failure(call, r);
        return 0;
}

void s3_client_admit(S3Client *c) {
        unsigned max = s3_client_large_max(c), n_free = max - MIN(c->n_large, max);

        LIST_FOREACH (link, &c->calls) {
                S3Call *call = CONTAINER_OF(link, S3Call, link);

                if (n_free == 0)
                        break;
                if (call->state != CALL_QUEUED)
                        continue;
                n_free--;
                set_state(call, CALL_NEW);
                if (arm(call, 0) < 0)
                        set_state(call, CALL_QUEUED); /* the next one that ends tries it again */
        }
}

int s3_call_new(S3Call **ret, S3Client *c, const S3Order *order) {
        S3Call *call = calloc(1, sizeof *call);
        int r;

        if (!call)
                return -ENOMEM;
        call->client = c;
        call->is_large = order->on_data || order->body_bytes >= LARGE_BYTES;
        if (list_is_empty(&c->calls))
                c->asked_usec = c->clock->boottime_usec(c->clock);
        list_append(&c->calls, &call->link);
        r = s3_call_copy_order(call, order);
        if (r == 0)
                r = arm(call, 0); /* nothing is told from inside */
        if (r < 0) {
                s3_call_free(call);
                return r;
        }
        if (ret)
                *ret = call;
        return 0;
}

S3Call *s3_call_cancel(S3Call *call) {
        if (!call)
                return NULL;
        S3Client *c = call->client;
        s3_call_free(call);
        s3_client_admit(c);
        return NULL;
}

uint64_t s3_call_sent_bytes(const S3Call *call) {
        return call->http ? http_call_sent_bytes(call->http) : 0;
}

uint64_t s3_client_asked_usec(const S3Client *c) {
        return list_is_empty(&c->calls) ? 0 : c->asked_usec;
}

uint64_t s3_client_sending_bytes(const S3Client *c, const uint64_t *counter) {
        uint64_t sum = 0;

        LIST_FOREACH (link, &c->calls) {
                const S3Call *call = CONTAINER_OF(link, S3Call, link);
                sum += call->order.sent_bytes == counter ? s3_call_sent_bytes(call) : 0;
        }
        return sum;
}
