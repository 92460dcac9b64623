/* Aborts the uploads that nobody goes on with: one page of ListMultipartUploads after the other, and of each page one upload after the
 * other: is it ours and unknown (the caller's say), old enough (ListParts), then abort. */
#include "uploaders/s3/s3_sweep.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/log.h"
#include "uploaders/uploader.h"

#define TRIES 3

typedef enum SweepState {
        SWEEP_NEW,
        SWEEP_LIST,  /* ListMultipartUploads */
        SWEEP_PAGE,  /* chooses the next upload of the page */
        SWEEP_AGE,   /* ListParts: when did its newest part come? */
        SWEEP_ABORT, /* AbortMultipartUpload */
        SWEEP_ENDED,
        N_SWEEP_STATES
} SweepState;

struct S3Sweep {
        S3Client *client;
        S3SweepOrder order; /* strings are ours */
        SweepState state;
        sd_event_source *start;
        S3Call *call;

        S3UploadList page; /* as listed, or the one upload of the order */
        size_t at;         /* in the page */
        char *key_marker, *id_marker;

        /* of the upload looked at */
        unsigned part_marker;
        uint64_t newest_usec; /* part, or the upload's beginning */
        uint64_t age_usec;

        /* of the last answer */
        S3Verdict verdict;
        char *sentence;

        unsigned n_aborted;
        int outcome; /* the first failure's */
        char *error;
};

static void step(S3Sweep *s);

#define TO(state) (1U << (state))
static const unsigned moves[N_SWEEP_STATES] = {
        [SWEEP_NEW] = TO(SWEEP_LIST) | TO(SWEEP_ABORT) | TO(SWEEP_ENDED),
        [SWEEP_LIST] = TO(SWEEP_PAGE) | TO(SWEEP_ENDED),
        [SWEEP_PAGE] = TO(SWEEP_LIST) | TO(SWEEP_AGE) | TO(SWEEP_ABORT) | TO(SWEEP_ENDED),
        [SWEEP_AGE] = TO(SWEEP_PAGE) | TO(SWEEP_AGE) | TO(SWEEP_ABORT) | TO(SWEEP_ENDED),
        [SWEEP_ABORT] = TO(SWEEP_PAGE) | TO(SWEEP_ENDED),
};

/* @return false: there is no such move, which is a fault of ours; nothing has changed */
static bool set_state(S3Sweep *s, SweepState state) {
        static const char *const names[] = { "new", "list", "page", "age", "abort", "ended" };
        bool may = moves[s->state] & TO(state);

        log_debug("sweep of '%s': %s %s %s", s->order.prefix, names[s->state],
                  may ? "→" : "does not lead to", names[state]);
        if (may)
                s->state = state;
        return may;
}

static const char *error_of(const S3Sweep *s) {
        if (s->outcome == 0)
                return NULL;
        if (s->error)
                return s->error;
        return strerror(s->outcome < 0 ? -s->outcome : ENOMEM); /* for the sentence, then */
}

/* The one way out. */
static void finish(S3Sweep *s) {
        if (set_state(s, SWEEP_ENDED))
                s->order.on_done(s->outcome, error_of(s), s->n_aborted, s->order.userdata);
}

static void note_failure(S3Sweep *s, int outcome, const char *sentence) {
        if (s->outcome != 0)
                return;
        s->outcome = outcome;
        s->error = sentence ? strdup(sentence) : NULL;
}

/* One upload that cannot be looked at or aborted does not keep the others; a store that is away or closed to us does. */
static void after_failure(S3Sweep *s) {
        int outcome = s3_verdict_outcome(s->verdict);

        note_failure(s, outcome, s->sentence);
        if (s->state == SWEEP_LIST || outcome == UPLOAD_E_AWAY || outcome == UPLOAD_E_DENIED) {
                finish(s);
                return;
        }
        s->at++;
        (void)set_state(s, SWEEP_PAGE); /* from AGE or ABORT: there is a way */
        step(s);
}

/* Asking */

static const S3ListedUpload *current(const S3Sweep *s) {
        return &s->page.items[s->at];
}

static void take_page(S3Sweep *s, const S3Result *result) {
        S3UploadList page;
        int r = s3_xml_upload_list(result->body, result->body_bytes, &page);

        if (r < 0) {
                s->verdict = S3_RETRY;
                free(s->sentence);
                s->sentence = strdup("the list of multipart uploads cannot be read");
                return;
        }
        s3_upload_list_done(&s->page);
        s->page = page;
        s->at = 0;
}

static void take_parts(S3Sweep *s, const S3Result *result) {
        S3PartList page;
        unsigned before = s->part_marker;
        int r = s3_xml_part_list(result->body, result->body_bytes, &page);

        s->part_marker = 0;
        if (r < 0) {
                s->verdict = S3_RETRY;
                free(s->sentence);
                s->sentence = strdup("the list of an upload's parts cannot be read");
                return;
        }
        for (size_t i = 0; i < page.n; i++) {
                uint64_t usec = page.items[i].last_modified_usec;

                /* not told: it may be new */
                s->newest_usec = MAX(s->newest_usec, usec ? usec : s3_client_now_usec(s->client));
        }
        if (page.is_truncated && page.next_marker > before)
                s->part_marker = page.next_marker;
        s3_part_list_done(&page);
}

static void on_answer(const S3Result *result, void *userdata) {
        S3Sweep *s = userdata;

        s->call = NULL;
        s->verdict = result->answer->verdict;
        free(s->sentence);
        s->sentence = result->answer->sentence ? strdup(result->answer->sentence) : NULL;
        if (s->verdict == S3_OK && s->state == SWEEP_LIST)
                take_page(s, result);
        else if (s->verdict == S3_OK && s->state == SWEEP_AGE)
                take_parts(s, result);
        step(s);
}

static void ask(S3Sweep *s, SweepState state, S3Order *order) {
        order->max_tries = TRIES;
        order->on_done = on_answer;
        order->userdata = s;
        int r = set_state(s, state) ? s3_call_new(&s->call, s->client, order) : -EPROTO;
        if (r < 0) {
                note_failure(s, r, NULL);
                finish(s);
        }
}

static void ask_list(S3Sweep *s) {
        const SignPair queries[] = {
                { "uploads", "" },
                { "prefix", s->order.prefix },
                { "key-marker", s->key_marker },
                { "upload-id-marker", s->id_marker },
        };
        size_t n = !s->key_marker ? 2 : !s->id_marker ? 3 : 4;

        ask(s, SWEEP_LIST,
            &(S3Order){ .operation = S3_LIST_UPLOADS, .queries = queries, .n_queries = n });
}

static void ask_age(S3Sweep *s) {
        char marker[16];
        const SignPair queries[] = {
                { "uploadId", current(s)->upload_id },
                { "part-number-marker", marker },
        };

        (void)snprintf(marker, sizeof marker, "%u", s->part_marker);
        ask(s, SWEEP_AGE,
            &(S3Order){ .operation = S3_LIST_PARTS,
                        .key = current(s)->key,
                        .queries = queries,
                        .n_queries = s->part_marker ? 2 : 1 });
}

static void ask_abort(S3Sweep *s) {
        const SignPair query = { "uploadId", current(s)->upload_id };

        ask(s, SWEEP_ABORT,
            &(S3Order){ .operation = S3_ABORT_UPLOAD,
                        .key = current(s)->key,
                        .queries = &query,
                        .n_queries = 1 });
}

/* Deciding */

/* Of a time that was not told (0): none. Somebody may be at it. */
static uint64_t age_of(const S3Sweep *s, uint64_t usec) {
        uint64_t now = s3_client_now_usec(s->client);

        return usec > 0 && now > usec ? now - usec : 0;
}

/* Control characters came out as this: it is not the key to ask for. */
static bool is_garbled(const char *key) {
        return strstr(key, "\xef\xbf\xbd") != NULL;
}

/* Whether an upload may be one to abort, as far as the list tells. */
static bool is_wanted(const S3Sweep *s, const S3ListedUpload *upload) {
        const S3SweepOrder *o = &s->order;

        if (o->exact_key ? strcmp(upload->key, o->prefix) != 0
                         : strncmp(upload->key, o->prefix, strlen(o->prefix)) != 0)
                return false; /* a store that takes `prefix` for a hint must not cost somebody his upload */
        if (is_garbled(upload->key + strlen(o->prefix)))
                return false;
        if (o->is_known && o->is_known(upload->key, upload->upload_id, o->userdata))
                return false;
        return age_of(s, upload->initiated_usec) >= o->min_age_usec;
}

static bool next_page(S3Sweep *s) {
        S3UploadList *page = &s->page;

        if (!page->is_truncated)
                return false;
        if (!page->next_key_marker ||
            (s->key_marker && strcmp(s->key_marker, page->next_key_marker) == 0 &&
             strcmp(s->id_marker ? s->id_marker : "",
                    page->next_upload_id_marker ? page->next_upload_id_marker : "") == 0)) {
                note_failure(s, UPLOAD_E_AWAY, "the list of multipart uploads does not go on");
                return false;
        }
        free(s->key_marker);
        free(s->id_marker);
        s->key_marker = TAKE_PTR(page->next_key_marker);
        s->id_marker = TAKE_PTR(page->next_upload_id_marker);
        return true;
}

static void step_page(S3Sweep *s) {
        while (s->at < s->page.n && !is_wanted(s, current(s)))
                s->at++;
        if (s->at < s->page.n) {
                s->part_marker = 0;
                s->newest_usec = current(s)->initiated_usec;
                s->age_usec = age_of(s, s->newest_usec);
                if (s->order.min_age_usec > 0)
                        ask_age(s);
                else
                        ask_abort(s);
        } else if (next_page(s)) {
                ask_list(s);
        } else {
                finish(s);
        }
}

static void go_on(S3Sweep *s) {
        s->at++;
        (void)set_state(s, SWEEP_PAGE); /* from AGE or ABORT: there is a way */
        step_page(s);
}

static void after_age(S3Sweep *s) {
        if (s->verdict == S3_NO_UPLOAD) {
                go_on(s);
                return;
        }
        if (s->verdict != S3_OK) {
                after_failure(s);
                return;
        }
        s->age_usec = age_of(s, s->newest_usec);
        if (s->age_usec < s->order.min_age_usec)
                go_on(s); /* a young part: somebody is at it */
        else if (s->part_marker)
                ask_age(s);
        else
                ask_abort(s);
}

static void after_abort(S3Sweep *s) {
        if (s->verdict != S3_OK && s->verdict != S3_NO_UPLOAD) {
                after_failure(s);
                return;
        }
        if (s->verdict == S3_OK) {
                s->n_aborted++;
                if (s->order.on_abort)
                        s->order.on_abort(current(s)->key, current(s)->upload_id, s->age_usec,
                                          s->order.userdata);
        }
        go_on(s);
}

static void step(S3Sweep *s) {
        switch (s->state) {
        case SWEEP_NEW:
                if (s->page.n > 0)
                        ask_abort(s); /* the one upload that was named */
                else
                        ask_list(s);
                break;
        case SWEEP_LIST:
                if (s->verdict == S3_OK) {
                        (void)set_state(s, SWEEP_PAGE); /* from LIST: there is a way */
                        step_page(s);
                } else {
                        after_failure(s);
                }
                break;
        case SWEEP_PAGE:
                step_page(s);
                break;
        case SWEEP_AGE:
                after_age(s);
                break;
        case SWEEP_ABORT:
                after_abort(s);
                break;
        case SWEEP_ENDED:
        case N_SWEEP_STATES:
                break;
        }
}

static int on_start(sd_event_source *source, void *userdata) {
        (void)source;
        step(userdata);
        return 0;
}

/* The order's one upload, as if it had been listed. */
static int name_upload(S3Sweep *s, const char *upload_id) {
        s->page.items = calloc(1, sizeof *s->page.items);
        if (!s->page.items)
                return -ENOMEM;
        s->page.n = 1;
        s->page.items[0].key = strdup(s->order.prefix);
        s->page.items[0].upload_id = strdup(upload_id);
        s->page.items[0].initiated_usec = s3_client_now_usec(s->client); /* not known: age 0 */
        return s->page.items[0].key && s->page.items[0].upload_id ? 0 : -ENOMEM;
}

int s3_sweep_new(S3Sweep **ret, S3Client *client, const S3SweepOrder *order) {
        _cleanup_(s3_sweep_freep) S3Sweep *s = calloc(1, sizeof *s);
        int r = 0;

        if (!s)
                return -ENOMEM;
        s->client = client;
        s->order = *order;
        s->order.upload_id = NULL;
        s->order.prefix = strdup(order->prefix ? order->prefix : "");
        if (!s->order.prefix)
                return -ENOMEM;
        if (order->exact_key && order->upload_id)
                r = name_upload(s, order->upload_id);
        if (r == 0)
                r = sd_event_add_defer(s3_client_event(client), &s->start, on_start, s);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(s);
        return 0;
}

S3Sweep *s3_sweep_free(S3Sweep *s) {
        if (!s)
                return NULL;
        s3_call_cancel(s->call);
        sd_event_source_disable_unref(s->start);
        s3_upload_list_done(&s->page);
        free((char *)s->order.prefix);
        free(s->key_marker);
        free(s->id_marker);
        free(s->sentence);
        free(s->error);
        free(s);
        return NULL;
}
