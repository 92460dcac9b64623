/* See objects.h. Everything is on the loop, but for run_on_volume(). */
#include "agent/delivery/objects.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "agent/delivery/destination.h"
#include "agent/peers/record.h"
#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/list.h"
#include "lib/base/strbuf.h"
#include "lib/event/timer.h"
#include "lib/neuron/names.h"
#include "uploaders/aws/aws_parse.h"
#include "uploaders/s3/s3_client.h"
#include "uploaders/uploader.h"
#include "uploaders/volume/volume.h"

#define TRIES_MAX 3
#define LIST_PAGES_MAX 1000
#define NAME_BYTES_MAX 512
/* On a volume, that were given up and wait behind the one that hangs. */
#define ABANDONED_MAX 64
#define IGNORES_TEXT                                                                               \
        "the store accepts If-None-Match and ignores it, so two nodes could create the same "      \
        "object there; use a store with conditional writes"

typedef struct EntryList {
        ObjectEntry *items;
        size_t n;
} EntryList;

struct ObjectCall {
        ListLink link; /* Objects.calls or .abandoned */
        Objects *objects;
        ObjectRequest request; /* the name is a copy; on a volume the data, too */
        ObjectResult result;
        char *error;            /* of what the thread has done, or of what ends a loop turn later */
        bool is_own_trouble;    /* not the store's: it says nothing of the destination */
        sd_event_source *timer; /* for that, or until a volume has hung for too long */
        EntryList entries;

        /* in a bucket */
        S3Call *s3;
        char *key;         /* or what all keys of a listing begin with */
        bool awaits_probe; /* of conditional writes */
        bool is_written;   /* a CREATE, by what the store has said; now it is compared */
        char *token;       /* of the next page */
        unsigned n_pages;

        /* on a volume; but for the first two, with entries and error, the thread's until it ends */
        bool is_working; /* queued, too: it stays until then, though it is cancelled */
        atomic_bool is_cancelled;
        WorkJob work;
        int outcome; /* of volume_object_write() and the like */
        VolumeWritten written;
        VolumeContent content;
};

/* Whether a bucket's store heeds If-None-Match, rather than to ignore it: the same object is
 * created twice. */
typedef enum Conditions {
        CONDITIONS_UNKNOWN,
        CONDITIONS_FIRST_PROBE,
        CONDITIONS_SECOND_PROBE,
        CONDITIONS_HEEDED,
        CONDITIONS_IGNORED,
} Conditions;

struct Objects { /* of a destination */
        Destination *destination;
        ListLink calls;

        char *prefix; /* of all keys of a bucket */
        char *probe_key;
        S3Call *probe;
        Conditions conditions;

        WorkerPool *pool;
        Volume *volume;
        Clock *clock;
        ListLink abandoned; /* calls that are working still */
        unsigned n_abandoned;
};

/* ---- a call ---- */

static void entries_done(EntryList *l) {
        for (size_t i = 0; i < l->n; i++)
                free(l->items[i].name);
        free(l->items);
        *l = (EntryList){ 0 };
}

/* @return 0, -E2BIG, -ENOMEM */
static int add_entry(EntryList *l, const ObjectEntry *e) {
        if (l->n >= OBJECT_LIST_MAX)
                return -E2BIG;
        char *copy = strdup(e->name);
        if (!copy || array_grow(&l->items, l->n, sizeof *l->items) < 0) {
                free(copy);
                return -ENOMEM;
        }
        l->items[l->n] = *e;
        l->items[l->n++].name = copy;
        return 0;
}

static int compare_entries(const void *a, const void *b) {
        return strcmp(((const ObjectEntry *)a)->name, ((const ObjectEntry *)b)->name);
}

/* @param error  borrowed; NULL where the outcome has none, or for lack of memory */
static void finish(ObjectCall *c, ObjectOutcome outcome, const char *error) {
        bool needs_error =
                outcome != OBJECT_OK && outcome != OBJECT_NOT_FOUND && outcome != OBJECT_EXISTS;
        c->result.outcome = outcome;
        c->result.error = !needs_error ? NULL : error ? error : strerror(ENOMEM);
        list_remove(&c->link); /* nobody else finds it from here on */
        if (!needs_error || (outcome == OBJECT_UNREACHABLE && error && !c->is_own_trouble))
                scheduler_object_done(c->objects->destination, needs_error ? error : NULL);
        c->request.on_done(&c->result, c->request.userdata);
        (void)object_call_cancel(c);
}

static void finish_list(ObjectCall *c) {
        if (c->entries.n > 0)
                qsort(c->entries.items, c->entries.n, sizeof *c->entries.items, compare_entries);
        c->result.entries = c->entries.items;
        c->result.n_entries = c->entries.n;
        finish(c, OBJECT_OK, NULL);
}

static int on_due(sd_event_source *source, void *userdata) {
        ObjectCall *c = userdata;
        (void)source;
        finish(c, c->result.outcome, c->error);
        return 0;
}

/* For what is called by object_call_new(). @param error  copied */
static int finish_later(ObjectCall *c, ObjectOutcome outcome, const char *error) {
        c->result.outcome = outcome;
        c->error = strdup(error);
        return sd_event_add_defer(c->objects->destination->scheduler->context.event, &c->timer,
                                  on_due, c);
}

static void call_free(ObjectCall *c) {
        list_remove(&c->link);
        entries_done(&c->entries);
        if (c->objects->volume)
                free((char *)c->request.data);
        free((char *)c->request.name);
        free(c->content.data);
        free(c->error);
        free(c->key);
        free(c->token);
        free(c);
}

ObjectCall *object_call_cancel(ObjectCall *c) {
        if (!c)
                return NULL;
        s3_call_cancel(c->s3);
        c->timer = sd_event_source_disable_unref(c->timer);
        if (!c->is_working) {
                call_free(c);
                return NULL;
        }
        atomic_store(&c->is_cancelled, true);
        list_remove(&c->link);
        list_append(&c->objects->abandoned, &c->link);
        c->objects->n_abandoned++;
        return NULL;
}

/* @param allows_dots  names that begin with one, but not `.` and `..` */
static bool is_plain_name(const char *s, bool allows_dots) {
        for (;;) {
                size_t n = strcspn(s, "/");
                if (n == 0 || (s[0] == '.' && (!allows_dots || n == 1 || (n == 2 && s[1] == '.'))))
                        return false;
                if (s[n] == '\0')
                        return true;
                s += n + 1;
        }
}

static bool is_valid_request(const ObjectRequest *q) {
        size_t n = strlen(q->name);
        bool is_list = q->operation == OBJECT_LIST;
        if (n == 0 || n > NAME_BYTES_MAX || (q->name[n - 1] == '/') != is_list ||
            q->n > OBJECT_BYTES_MAX)
                return false;
        char name[NAME_BYTES_MAX + 1];
        memcpy(name, q->name, n + 1);
        if (is_list)
                name[n - 1] = '\0';
        return is_plain_name(name, true);
}

/* ---- in a bucket: answers ---- */

static S3Client *client_of(const Objects *o) {
        const char *unused;
        return delivery_s3_client(o->destination, &unused);
}

/* A refusal counts when the store itself has spoken: keys that are not to be had at the moment, or
 * that have expired, are trouble. */
static ObjectOutcome classify_answer(const S3Result *r, S3Operation operation) {
        switch (r->answer->verdict) {
        case S3_OK:
                return OBJECT_OK;
        case S3_NOT_FOUND:
                return operation == S3_GET_OBJECT ? OBJECT_NOT_FOUND : OBJECT_UNREACHABLE;
        case S3_EXISTS:
                return OBJECT_EXISTS;
        case S3_DENIED:
                return r->status == 403 || r->status == 401 ? OBJECT_UNABLE : OBJECT_UNREACHABLE;
        case S3_REFUSED: /* of a 200: a body that is larger than is kept */
                return operation == S3_GET_OBJECT && r->status == 200 ? OBJECT_INVALID
                                                                      : OBJECT_UNABLE;
        case S3_NO_BUCKET:
        case S3_UNCONDITIONAL:
                return OBJECT_UNABLE;
        default:
                return OBJECT_UNREACHABLE;
        }
}

/* @return 0: there is none */
static int64_t time_of(const S3Result *r, const char *header) {
        const char *text = r->header(r, header);
        uint64_t usec;
        return text && http_date_parse(text, &usec) == 0 ? (int64_t)usec : 0;
}

/* Date has whole seconds, and was taken at some moment between request and answer. */
static void learn_clock(ObjectCall *c, const S3Result *r) {
        const int64_t half_sec = USEC_PER_SEC / 2;
        int64_t date = time_of(r, "date"), half = (int64_t)r->duration_usec / 2,
                now = (int64_t)scheduler_boottime_usec(c->objects->destination->scheduler);
        if (date == 0 || (c->result.has_clock && c->result.uncertainty_usec <= half_sec + half))
                return;
        c->result.has_clock = true;
        c->result.clock_offset_usec = date + half_sec - (now - half);
        c->result.uncertainty_usec = half_sec + half;
}

static ObjectOutcome accept_answer(ObjectCall *c, const S3Result *r, S3Operation operation) {
        c->s3 = NULL;
        learn_clock(c, r);
        return classify_answer(r, operation);
}

static void finish_answer(ObjectCall *c, ObjectOutcome outcome, const S3Result *r) {
        _cleanup_free_ char *text = NULL;
        if (outcome == OBJECT_INVALID)
                text = strbuf_format("'s3://%s/%s' is larger than the %zu bytes that it may have",
                                     s3_client_bucket(client_of(c->objects)), c->key,
                                     OBJECT_BYTES_MAX);
        finish(c, outcome, text ? text : r->answer->sentence);
}

/* @return 0; -errno of finish_later() */
static int send_request(ObjectCall *c, const S3RequestOptions *request) {
        S3RequestOptions own = *request;
        own.max_tries = TRIES_MAX;
        own.userdata = c;
        int r = s3_call_new(&c->s3, client_of(c->objects), &own);
        c->is_own_trouble = r < 0;
        return r < 0 ? finish_later(c, OBJECT_UNREACHABLE, strerror(-r)) : 0;
}

/* In an answer there is nobody to return an error to. */
static void send_next(ObjectCall *c, int (*send)(ObjectCall *c)) {
        if (send(c) < 0)
                finish(c, OBJECT_UNREACHABLE, NULL);
}

/* ---- in a bucket: reading ---- */

static void on_got(const S3Result *r, void *userdata) {
        ObjectCall *c = userdata;
        ObjectOutcome outcome = accept_answer(c, r, S3_GET_OBJECT);
        if (outcome == OBJECT_OK) {
                c->result.data = r->body;
                c->result.n = r->body_bytes;
                c->result.modified_usec = time_of(r, "last-modified");
        }
        finish_answer(c, outcome, r);
}

/* What is there after a CREATE: ours, perhaps by a try whose answer was lost; or that of another
 * node, whatever the store has said. And when it was created, which the answer to PUT lacks. */
static void on_compared(const S3Result *r, void *userdata) {
        ObjectCall *c = userdata;
        ObjectOutcome outcome = accept_answer(c, r, S3_GET_OBJECT);
        bool is_ours = outcome == OBJECT_OK && r->body_bytes == c->request.n &&
                       (c->request.n == 0 || memcmp(r->body, c->request.data, r->body_bytes) == 0);
        int64_t modified_usec = time_of(r, "last-modified");
        if (is_ours && modified_usec != 0)
                c->result.modified_usec = modified_usec;
        if (is_ours)
                finish(c, OBJECT_OK, NULL);
        else if (outcome == OBJECT_OK || outcome == OBJECT_INVALID)
                finish(c, OBJECT_EXISTS, NULL);
        else if (c->is_written) /* not permitted to read it */
                finish(c, OBJECT_OK, NULL);
        else if (outcome == OBJECT_NOT_FOUND) {
                c->is_own_trouble = true;
                finish(c, OBJECT_UNREACHABLE, "the object of that name has been removed");
        } else
                finish_answer(c, outcome, r);
}

static int send_get(ObjectCall *c) {
        bool compares = c->request.operation == OBJECT_CREATE;
        return send_request(c, &(S3RequestOptions){ .operation = S3_GET_OBJECT,
                                                    .key = c->key,
                                                    .reply_max_bytes = OBJECT_BYTES_MAX,
                                                    .on_done = compares ? on_compared : on_got });
}

static int add_page(ObjectCall *c, S3ObjectList *page) {
        size_t n_prefix = strlen(c->objects->prefix), n_key = strlen(c->key);
        for (size_t i = 0; i < page->n; i++) {
                const S3ListedObject *o = &page->items[i];
                if (strncmp(o->key, c->key, n_key) != 0 || !is_plain_name(o->key + n_key, false))
                        continue; /* none that we could have written */
                int r = add_entry(&c->entries,
                                  &(ObjectEntry){ .name = o->key + n_prefix,
                                                  .bytes = o->bytes,
                                                  .modified_usec = (int64_t)o->last_modified_usec,
                                                  .is_trusted = true });
                if (r < 0)
                        return r;
        }
        free(c->token);
        c->token = page->is_truncated ? TAKE_PTR(page->next_token) : NULL;
        return page->is_truncated && !c->token              ? -EINVAL
               : c->token && ++c->n_pages >= LIST_PAGES_MAX ? -E2BIG
                                                            : 0;
}

static int send_list(ObjectCall *c);

static void on_page(const S3Result *r, void *userdata) {
        ObjectCall *c = userdata;
        S3ObjectList page = { 0 };
        ObjectOutcome outcome = accept_answer(c, r, S3_LIST_OBJECTS);
        if (outcome != OBJECT_OK) {
                finish_answer(c, outcome, r);
                return;
        }
        int error = s3_xml_object_list(r->body, r->body_bytes, &page);
        if (error == 0)
                error = add_page(c, &page);
        s3_object_list_done(&page);
        if (error == -E2BIG)
                finish(c, OBJECT_INVALID, "there are more names than may be listed");
        else if (error < 0)
                finish(c, OBJECT_UNREACHABLE,
                       error == -ENOMEM ? NULL : "the answer to ListObjectsV2 is not S3's XML");
        else if (c->token)
                send_next(c, send_list);
        else
                finish_list(c);
}

static int send_list(ObjectCall *c) {
        const AwsNameValue queries[] = { { "list-type", "2" },
                                         { "encoding-type", "url" },
                                         { "prefix", c->key },
                                         { "continuation-token", c->token } };
        return send_request(c, &(S3RequestOptions){ .operation = S3_LIST_OBJECTS,
                                                    .queries = queries,
                                                    .n_queries = c->token ? 4 : 3,
                                                    .on_done = on_page });
}

/* ---- in a bucket: writing ---- */

static void on_put(const S3Result *r, void *userdata) {
        ObjectCall *c = userdata;
        ObjectOutcome outcome = accept_answer(c, r, S3_PUT_OBJECT);
        c->is_written = outcome == OBJECT_OK;
        c->result.modified_usec = c->is_written ? time_of(r, "date") : 0;
        if (c->request.operation == OBJECT_CREATE &&
            (c->is_written || (outcome == OBJECT_EXISTS && r->n_tries > 1)))
                send_next(c, send_get);
        else
                finish_answer(c, outcome, r);
}

static int send_put(ObjectCall *c) {
        const AwsNameValue type = { "content-type", "application/json" };
        return send_request(
                c, &(S3RequestOptions){ .operation = S3_PUT_OBJECT,
                                        .key = c->key,
                                        .headers = &type,
                                        .n_headers = 1,
                                        .body = c->request.data,
                                        .body_bytes = c->request.n,
                                        .is_conditional = c->request.operation == OBJECT_CREATE,
                                        .with_object_headers = true,
                                        .on_done = on_put });
}

/* ---- in a bucket: does the store heed If-None-Match? ---- */

static void finish_probe(Objects *o, ObjectOutcome outcome, const char *error) {
        bool found;
        do { /* on_done may cancel any other */
                found = false;
                LIST_FOREACH (link, &o->calls) {
                        ObjectCall *c = CONTAINER_OF(link, ObjectCall, link);
                        if (!c->awaits_probe)
                                continue;
                        found = true;
                        c->awaits_probe = false;
                        if (outcome == OBJECT_OK)
                                send_next(c, send_put);
                        else
                                finish(c, outcome, error);
                        break;
                }
        } while (found);
}

static int send_probe(Objects *o, S3Operation operation);

/* One of an earlier run, which could not be deleted, does as well for the first. */
static void on_probed(const S3Result *r, void *userdata) {
        Objects *o = userdata;
        ObjectOutcome outcome = classify_answer(r, S3_PUT_OBJECT);
        bool has_answered = outcome == OBJECT_OK || outcome == OBJECT_EXISTS;
        o->probe = NULL;
        if (o->conditions >= CONDITIONS_HEEDED)
                return; /* it was deleted, or stays where that is not permitted: one a node */
        if (!has_answered) {
                o->conditions = CONDITIONS_UNKNOWN;
                finish_probe(o, outcome, r->answer->sentence);
        } else if (o->conditions == CONDITIONS_FIRST_PROBE) {
                o->conditions = CONDITIONS_SECOND_PROBE;
                if (send_probe(o, S3_PUT_OBJECT) == 0)
                        return;
                o->conditions = CONDITIONS_UNKNOWN;
                finish_probe(o, OBJECT_UNREACHABLE, NULL);
        } else {
                bool is_heeded = outcome == OBJECT_EXISTS;
                o->conditions = is_heeded ? CONDITIONS_HEEDED : CONDITIONS_IGNORED;
                (void)send_probe(o, S3_DELETE_OBJECT);
                finish_probe(o, is_heeded ? OBJECT_OK : OBJECT_UNABLE, IGNORES_TEXT);
        }
}

static int send_probe(Objects *o, S3Operation operation) {
        static const char body[] = "Does this store heed If-None-Match?\n";
        bool is_put = operation == S3_PUT_OBJECT;
        return s3_call_new(&o->probe, client_of(o),
                           &(S3RequestOptions){ .operation = operation,
                                                .key = o->probe_key,
                                                .body = is_put ? body : NULL,
                                                .body_bytes = is_put ? sizeof body - 1 : 0,
                                                .is_conditional = is_put,
                                                .with_object_headers = is_put,
                                                .max_tries = TRIES_MAX,
                                                .on_done = on_probed,
                                                .userdata = o });
}

static int s3_create(ObjectCall *c) {
        Objects *o = c->objects;
        if (o->conditions == CONDITIONS_HEEDED)
                return send_put(c);
        if (o->conditions == CONDITIONS_IGNORED)
                return finish_later(c, OBJECT_UNABLE, IGNORES_TEXT);
        c->awaits_probe = true;
        if (o->conditions != CONDITIONS_UNKNOWN)
                return 0;
        int r = send_probe(o, S3_PUT_OBJECT);
        o->conditions = r == 0 ? CONDITIONS_FIRST_PROBE : CONDITIONS_UNKNOWN;
        return r;
}

static int s3_start(ObjectCall *c) {
        const char *error;
        if (!delivery_s3_client(c->objects->destination, &error))
                return finish_later(c, OBJECT_UNABLE, error);
        c->key = strbuf_format("%s%s", c->objects->prefix, c->request.name);
        if (!c->key)
                return -ENOMEM;
        switch (c->request.operation) {
        case OBJECT_LIST:
                return send_list(c);
        case OBJECT_GET:
                return send_get(c);
        case OBJECT_CREATE:
                return s3_create(c);
        case OBJECT_PUT:
                return send_put(c);
        default:
                return -EINVAL;
        }
}

/* ---- on a volume ---- */

static int on_file(const VolumeFile *file, void *userdata) {
        return add_entry(userdata, &(ObjectEntry){ .name = (char *)file->relative,
                                                   .bytes = file->bytes,
                                                   .modified_usec = file->modified_usec,
                                                   .is_trusted = file->is_trusted });
}

/* The thread's. */
static void run_on_volume(WorkJob *work) {
        ObjectCall *c = CONTAINER_OF(work, ObjectCall, work);
        const Objects *o = c->objects;
        const ObjectRequest *q = &c->request;
        if (atomic_load(&c->is_cancelled))
                return;
        if (q->operation == OBJECT_LIST) {
                c->outcome = volume_object_clock(o->volume, o->clock, &c->written, &c->error);
                if (c->outcome != 0)
                        return;
                c->outcome = volume_object_list(o->volume,
                                                &(VolumeListing){ .directory = q->name,
                                                                  .n_max = OBJECT_LIST_MAX,
                                                                  .on_file = on_file,
                                                                  .userdata = &c->entries },
                                                &c->error);
        } else if (q->operation == OBJECT_GET)
                c->outcome = volume_object_read(o->volume, q->name, OBJECT_BYTES_MAX, &c->content,
                                                &c->error);
        else
                c->outcome =
                        volume_object_write(o->volume,
                                            &(VolumeWrite){ .relative = q->name,
                                                            .data = q->data,
                                                            .n = q->n,
                                                            .replaces = q->operation == OBJECT_PUT,
                                                            .clock = o->clock },
                                            &c->written, &c->error);
}

static ObjectOutcome classify_volume(int outcome) {
        switch (outcome) {
        case 0:
                return OBJECT_OK;
        case -ENOENT:
                return OBJECT_NOT_FOUND;
        case UPLOAD_E_EXISTS:
                return OBJECT_EXISTS;
        case UPLOAD_E_DENIED:
                return OBJECT_UNABLE;
        case UPLOAD_E_REFUSED:
        case -EINVAL: /* what has no place in a file system, such as a name of 300 bytes */
        case -ENAMETOOLONG:
                return OBJECT_INVALID;
        default:
                return OBJECT_UNREACHABLE;
        }
}

static void finish_volume(ObjectCall *c) {
        bool is_write = c->request.operation == OBJECT_CREATE || c->request.operation == OBJECT_PUT;
        bool is_list = c->request.operation == OBJECT_LIST;
        ObjectOutcome outcome = classify_volume(c->outcome);
        if ((is_write && (outcome == OBJECT_OK || outcome == OBJECT_EXISTS)) ||
            (is_list && outcome == OBJECT_OK)) {
                c->result.has_clock = true;
                c->result.clock_offset_usec = c->written.clock_offset_usec;
                c->result.uncertainty_usec = c->written.uncertainty_usec;
        }
        if (outcome == OBJECT_OK && is_list) {
                finish_list(c);
                return;
        }
        if (outcome == OBJECT_OK)
                c->result.modified_usec =
                        is_write ? c->written.modified_usec : c->content.modified_usec;
        c->result.data = c->content.data;
        c->result.n = c->content.n;
        c->is_own_trouble = c->outcome == -ENOMEM || c->outcome == -EMFILE || c->outcome == -ENFILE;
        finish(c, outcome, c->error ? c->error : c->outcome < 0 ? strerror(-c->outcome) : NULL);
}

static void on_worked(WorkJob *work) {
        ObjectCall *c = CONTAINER_OF(work, ObjectCall, work);
        c->is_working = false;
        if (!atomic_load(&c->is_cancelled)) {
                finish_volume(c);
                return;
        }
        c->objects->n_abandoned--;
        call_free(c);
}

static int on_hung(sd_event_source *source, uint64_t usec, void *userdata) {
        ObjectCall *c = userdata;
        (void)source, (void)usec;
        finish(c, OBJECT_UNREACHABLE, c->objects->destination->type->stall_text);
        return 0;
}

static int volume_start(ObjectCall *c) {
        const Objects *o = c->objects;
        if (o->n_abandoned >= ABANDONED_MAX)
                return finish_later(c, OBJECT_UNREACHABLE, o->destination->type->stall_text);
        int r = timer_arm(&c->timer,
                          &(TimerOptions){ .event = o->destination->scheduler->context.event,
                                           .usec = STALL_TIMEOUT_USEC,
                                           .handler = on_hung,
                                           .userdata = c });
        if (r < 0)
                return r;
        c->work = (WorkJob){ .run = run_on_volume, .done = on_worked };
        r = worker_pool_submit(o->pool, &c->work);
        c->is_working = r == 0;
        return r;
}

/* ---- of a destination ---- */

uint64_t objects_waiting_since_usec(const Destination *d) {
        const Objects *o = d->objects;
        const S3Client *client = o && !o->volume && !list_is_empty(&o->calls) ? client_of(o) : NULL;
        return client ? s3_client_waiting_since_usec(client) : 0;
}

bool objects_are_refused(Scheduler *s, const char *destination) {
        const Destination *d = s ? scheduler_find_destination(s, destination) : NULL;
        return d && d->is_proven && d->objects_failed;
}

static int open_kind(Objects *o) {
        const Destination *d = o->destination;
        const SchedulerContext *context = &d->scheduler->context;
        if (d->config->type == CONFIG_S3) {
                o->prefix = s3_key_prefix(path_template_fixed(d->template));
                if (o->prefix)
                        o->probe_key = strbuf_format("%s%s/.probe-%s", o->prefix,
                                                     INCIDENTS_DIRECTORY, context->instance_id);
                return o->probe_key ? 0 : -ENOMEM;
        }
        o->clock = context->clock;
        int r = delivery_volume_open(d, &o->volume);
        return r < 0 ? r : worker_pool_new(&o->pool, context->event, "nc-object", 1, WORKER_NORMAL);
}

static bool has_running_call(const Objects *o) {
        LIST_FOREACH (link, &o->abandoned)
                if (worker_pool_is_running(&CONTAINER_OF(link, ObjectCall, link)->work))
                        return true;
        return false;
}

void objects_done(Destination *d, uint64_t until_usec) {
        Objects *o = d->objects;
        if (!o)
                return;
        assert(list_is_empty(&o->calls));
        d->objects = NULL;
        s3_call_cancel(o->probe);
        while (has_running_call(o) && scheduler_boottime_usec(d->scheduler) < until_usec)
                (void)usleep(5 * USEC_PER_MSEC); /* the loop is over: there is nothing else to do */
        if (has_running_call(o))                 /* what is queued behind it ends at once */
                worker_pool_abandon(o->pool);
        else
                worker_pool_free(o->pool);
        LIST_FOREACH_SAFE (link, &o->abandoned) {
                ObjectCall *c = CONTAINER_OF(link, ObjectCall, link);
                if (!worker_pool_is_running(&c->work))
                        call_free(c);
        }
        if (!list_is_empty(&o->abandoned))
                return; /* the thread that hangs keeps it */
        if (o->volume)
                volume_free(o->volume);
        free(o->prefix);
        free(o->probe_key);
        free(o);
}

static int objects_new(Destination *d) {
        Objects *o = d->objects = calloc(1, sizeof *o);
        if (!o)
                return -ENOMEM;
        o->destination = d;
        list_init(&o->calls);
        list_init(&o->abandoned);
        int r = open_kind(o);
        if (r < 0)
                objects_done(d, 0);
        return r;
}

static int copy_request(ObjectRequest *to, const ObjectRequest *from, bool with_data) {
        *to = *from;
        to->destination = NULL;
        to->data = with_data ? malloc(from->n + 1) : from->data;
        if (with_data && to->data && from->n > 0)
                memcpy((char *)to->data, from->data, from->n);
        to->name = strdup(from->name);
        return !to->name || (with_data && !to->data) ? -ENOMEM : 0;
}

int object_call_new(ObjectCall **ret, Scheduler *s, const ObjectRequest *request) {
        Destination *d = scheduler_find_destination(s, request->destination);
        if (!d)
                return -ENOENT;
        if (!is_valid_request(request))
                return -EINVAL;
        int r = d->objects ? 0 : objects_new(d);
        if (r < 0)
                return r;
        ObjectCall *c = calloc(1, sizeof *c);
        if (!c)
                return -ENOMEM;
        c->objects = d->objects;
        list_append(&d->objects->calls, &c->link);
        r = copy_request(&c->request, request, d->objects->volume);
        if (r == 0)
                r = d->objects->volume ? volume_start(c) : s3_start(c);
        if (r < 0) {
                (void)object_call_cancel(c);
                return r;
        }
        *ret = c;
        return 0;
}

bool objects_are_shared(Scheduler *s, const char *destination) {
        const Destination *d = scheduler_find_destination(s, destination);
        return d && (d->config->type == CONFIG_S3 || d->config->durable == CONFIG_DURABLE_YES ||
                     fs_path_is_network(path_template_fixed(d->template)));
}

char *objects_failure_directory(Scheduler *s, const char *destination, const char *date_time,
                                const char *cluster_id, const char *kind, const char *source,
                                bool *ret_differs) {
        const Destination *d = scheduler_find_destination(s, destination);
        *ret_differs = false;
        if (!d)
                return NULL;
        for (const char *letter = "hiuptl"; *letter; letter++)
                *ret_differs |= path_template_has(d->template, *letter);
        if (*ret_differs)
                return NULL;
        _cleanup_free_ char *path =
                path_template_expand(d->template, &(ExpandValues){ .date_time = date_time,
                                                                   .cluster_id = cluster_id,
                                                                   .kind = kind,
                                                                   .source = source });
        if (!path)
                return NULL;
        const char *below = path + strlen(path_template_fixed(d->template));
        return strdup(below + strspn(below, "/"));
}

char *objects_bundle_directory(Scheduler *s, const char *destination, const BundleRecord *rec) {
        const Destination *d = scheduler_find_destination(s, destination);
        _cleanup_free_ char *path = d ? scheduler_bundle_directory(d, rec) : NULL;
        if (!path || d->config->type == CONFIG_VOLUME)
                return TAKE_PTR(path);
        const char *fixed = path_template_fixed(d->template);
        fixed += strspn(fixed, "/");
        size_t n = strlen(fixed);
        if (strncmp(path, fixed, n) != 0 || (n > 0 && path[n] != '/'))
                return NULL;
        return strdup(path + n + strspn(path + n, "/"));
}
