/* A bucket as a store of objects. */
#include <errno.h>
#include <string.h>

#include "cli/archive/object_store_private.h"
#include "cli/archive/s3_get.h"
#include "cli/archive/s3_reader.h"
#include "cli/archive/s3_session.h"
#include "config/config.h"
#include "lib/base/parse.h"
#include "uploaders/s3/s3_xml.h"

#define PAGE_KEYS "1000" /* as many as S3 gives out at once */
#define MAX_TRIES 4
#define HEADS_AT_ONCE 16

typedef struct S3Store {
        ObjectStore store;
        S3Session *session;
} S3Store;

static S3Store *s3_store(ObjectStore *s) {
        return (S3Store *)s;
}

/* ---- one request ---- */

typedef struct Ask {
        S3Store *store;
        bool done;
        int outcome;
        void (*on_ok)(struct Ask *ask, const S3Result *result);
        uint64_t bytes;     /* of HEAD */
        S3ObjectList *list; /* of a page */
} Ask;

static void on_asked(const S3Result *result, void *userdata) {
        Ask *ask = userdata;
        const S3Answer *answer = result->answer;
        ask->done = true;
        if (answer->verdict == S3_OK)
                ask->on_ok(ask, result);
        else
                ask->outcome = object_store_fail(
                        &ask->store->store,
                        answer->verdict == S3_NOT_FOUND ? OBJECT_E_NOT_FOUND : OBJECT_E_FAILED,
                        "%s", answer->sentence ? answer->sentence : "the request failed");
}

static int ask_and_wait(Ask *ask, S3Order *order) {
        S3Call *call;
        order->max_tries = MAX_TRIES;
        order->on_done = on_asked;
        order->userdata = ask;
        int r = s3_call_new(&call, s3_session_client(ask->store->session), order);
        if (r == 0)
                r = s3_session_run(ask->store->session, &ask->done);
        if (r < 0 && !ask->done)
                s3_call_cancel(call);
        return r < 0 ? r : ask->outcome;
}

/* ---- one object ---- */

static void on_stat(Ask *ask, const S3Result *result) {
        const char *text = result->header(result, "content-length");
        if (!text || parse_u64(text, &ask->bytes) < 0)
                ask->outcome = object_store_fail(&ask->store->store, OBJECT_E_FAILED,
                                                 "the server does not say how large it is");
}

static int s3_stat(ObjectStore *s, const char *key, uint64_t *ret_bytes) {
        Ask ask = { .store = s3_store(s), .on_ok = on_stat };
        int r = ask_and_wait(&ask, &(S3Order){ .operation = S3_HEAD_OBJECT, .key = key });
        if (r == 0)
                *ret_bytes = ask.bytes;
        return r;
}

static int s3_read(ObjectStore *s, const char *key, size_t max_bytes, ObjectText *ret) {
        S3Session *session = s3_store(s)->session;
        S3Get get = { .key = key, .bytes = max_bytes, .is_whole = true };
        int r = s3_get_start(&get, s3_session_client(session));
        if (r == 0)
                r = s3_session_run(session, &get.done);
        if (r == 0 && get.outcome > 0)
                r = object_store_fail(s, get.outcome, "%s", get.error ? get.error : "");
        else if (r == 0)
                r = get.outcome;
        if (r == 0)
                *ret = (ObjectText){ .text = TAKE_PTR(get.data), .n = get.n };
        s3_get_done(&get);
        return r;
}

static void take_head(ObjectHead *h, S3Get *g) {
        if (g->outcome == 0) {
                h->text = TAKE_PTR(g->data);
                h->n = g->n;
        } else
                h->error = g->error ? TAKE_PTR(g->error) : strdup(strerror(ENOMEM));
        s3_get_done(g);
}

static int heads_run(S3Store *s, ObjectHead *heads, S3Get *gets, size_t n) {
        S3Client *client = s3_session_client(s->session);
        int r = 0;
        size_t i = 0, begun = 0;
        while (r == 0 && i < n) {
                for (; r == 0 && begun < n && begun < i + HEADS_AT_ONCE; begun++) {
                        gets[begun] = (S3Get){ .key = heads[begun].key,
                                               .bytes = heads[begun].max_bytes,
                                               .may_be_short = true };
                        r = s3_get_start(&gets[begun], client);
                }
                if (r == 0)
                        r = s3_session_run(s->session, &gets[i].done);
                if (r == 0)
                        r = gets[i].outcome < 0 ? gets[i].outcome : 0;
                if (r == 0)
                        take_head(&heads[i], &gets[i]);
                i++;
        }
        for (size_t k = 0; k < begun; k++)
                s3_get_done(&gets[k]);
        return r;
}

static int s3_read_heads(ObjectStore *s, ObjectHead *heads, size_t n) {
        if (n == 0)
                return 0;
        _cleanup_free_ S3Get *gets = calloc(n, sizeof *gets);
        return gets ? heads_run(s3_store(s), heads, gets, n) : -ENOMEM;
}

static int s3_reader(ObjectStore *s, const ObjectRange *range, ObjectReader **ret) {
        return s3_reader_new(ret, s, s3_store(s)->session, range);
}

/* ---- listing ---- */

static void on_page(Ask *ask, const S3Result *result) {
        int r = s3_xml_object_list(result->body, result->body_bytes, ask->list);
        if (r == -EINVAL)
                r = object_store_fail(
                        &ask->store->store, OBJECT_E_FAILED,
                        "the answer of '%s' to ListObjectsV2 is not S3's XML; is "
                        "that an S3 server?",
                        s3_client_place(s3_session_client(ask->store->session))->host);
        ask->outcome = r;
}

/* @param token  of the page before; NULL */
static int ask_page(S3Store *s, const ObjectListOrder *order, const char *token,
                    S3ObjectList *ret) {
        SignPair queries[6] = { { "list-type", "2" },
                                { "max-keys", PAGE_KEYS },
                                { "encoding-type", "url" },
                                { "prefix", order->prefix } };
        size_t n = 4;
        if (order->shallow)
                queries[n++] = (SignPair){ "delimiter", "/" };
        if (token)
                queries[n++] = (SignPair){ "continuation-token", token };
        Ask ask = { .store = s, .on_ok = on_page, .list = ret };
        return ask_and_wait(
                &ask,
                &(S3Order){ .operation = S3_LIST_OBJECTS, .queries = queries, .n_queries = n });
}

static bool is_over(const ObjectListOrder *order, size_t n) {
        return order->max_items && n >= order->max_items;
}

/* Objects and common prefixes come in two lists, each in order: they are told as one. */
static int tell_page(const ObjectListOrder *order, const S3ObjectList *page, size_t *n) {
        size_t o = 0, p = 0;
        int r = 0;
        while (r == 0 && (o < page->n || p < page->n_prefixes) && !is_over(order, *n)) {
                bool is_prefix =
                        o >= page->n ||
                        (p < page->n_prefixes && strcmp(page->prefixes[p], page->items[o].key) < 0);
                ObjectItem item = { .is_prefix = is_prefix };
                if (is_prefix)
                        item.key = page->prefixes[p++];
                else {
                        const S3ListedObject *object = &page->items[o++];
                        item.key = object->key;
                        item.bytes = object->bytes;
                        item.modified_usec = object->last_modified_usec;
                }
                ++*n;
                r = order->on_item(&item, order->userdata);
        }
        return r;
}

static int s3_list(ObjectStore *s, const ObjectListOrder *order) {
        _cleanup_free_ char *token = NULL;
        size_t n = 0;
        bool goes_on = true;
        while (goes_on) {
                S3ObjectList page = { 0 };
                int r = ask_page(s3_store(s), order, token, &page);
                if (r == 0)
                        r = tell_page(order, &page, &n);
                goes_on = r == 0 && page.is_truncated && !is_over(order, n);
                if (goes_on && (!page.next_token || (token && strcmp(token, page.next_token) == 0)))
                        r = object_store_fail(s, OBJECT_E_FAILED,
                                              "the server says that the list goes on, but not how");
                free(token);
                token = TAKE_PTR(page.next_token);
                s3_object_list_done(&page);
                if (r != 0)
                        return r;
        }
        return 0;
}

/* ---- the store ---- */

static ObjectStore *s3_free(ObjectStore *s) {
        s3_session_free(s3_store(s)->session);
        free(s);
        return NULL;
}

static const ObjectStoreKind kind = { .list = s3_list,
                                      .stat = s3_stat,
                                      .read = s3_read,
                                      .read_heads = s3_read_heads,
                                      .reader = s3_reader,
                                      .free = s3_free };

static int new_session(S3Store *s, const ObjectUrl *url, const S3Options *options,
                       const Config *config) {
        _cleanup_free_ char *fault = NULL;
        S3SessionOrder order = { .bucket = url->bucket, .options = options };
        if (config)
                order.destination = s3_session_destination(config, url->bucket, url->key);
        int r = s3_session_new(&s->session, &order, &fault);
        if (r == 0)
                return CLI_YES;
        cli_error("cannot ask for 's3://%s': %s", url->bucket, fault ? fault : strerror(-r));
        return r == -EINVAL ? CLI_USAGE : CLI_NO;
}

int object_store_s3_new(ObjectStore **ret, const Cli *cli, const ObjectUrl *url,
                        const S3Options *options) {
        Config *config = NULL;
        int code = s3_session_load_config(cli, options, &config);
        if (code != CLI_YES)
                return code;
        S3Store *s = calloc(1, sizeof *s);
        if (s)
                s->store.kind = &kind;
        if (!s || asprintf(&s->store.url_prefix, "s3://%s/", url->bucket) < 0) {
                free(s);
                config_free(config);
                cli_error("%s", strerror(ENOMEM));
                return CLI_NO;
        }
        code = new_session(s, url, options, config);
        config_free(config);
        if (code != CLI_YES)
                object_store_free(&s->store);
        else
                *ret = &s->store;
        return code;
}
