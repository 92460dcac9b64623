#include "agent/failures/pointers.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/json_out.h"
#include "lib/base/list.h"
#include "lib/base/log.h"
#include "lib/base/parse.h"
#include "lib/neuron/record.h"

#define SUFFIX ".see.json"
#define POINTERS_MAX 1024 /* underway; the oldest goes */
#define RETRY_USEC (INT64_C(30) * 1000000)

typedef struct Pointer {
        ListLink link;
        Pointers *pointers;
        BundleRecord rec; /* a copy */
        char key[CLAIM_KEY_SIZE];
        Claim claim;      /* whose failure is waited for, while `name` is not set */
        FailureName name; /* of the place; all "" = the bundle's own */
        bool is_known;
        size_t next; /* delivery */
        ObjectCall *call;
        char *text;
        int64_t due_usec;
} Pointer;

struct Pointers {
        Clock *clock;
        ListLink all;
        size_t n;
};

int pointers_new(Pointers **ret, Clock *clock) {
        *ret = calloc(1, sizeof **ret);
        if (!*ret)
                return -ENOMEM;
        (*ret)->clock = clock;
        list_init(&(*ret)->all);
        return 0;
}

static int64_t boottime_now(const Pointers *p) {
        return (int64_t)p->clock->boottime_usec(p->clock);
}

static void free_pointer(Pointer *x) {
        object_call_cancel(x->call);
        list_remove(&x->link);
        x->pointers->n--;
        bundle_record_done(&x->rec);
        free(x->text);
        free(x);
}

Pointers *pointers_free(Pointers *p) {
        if (!p)
                return NULL;
        LIST_FOREACH_ITEM_SAFE (Pointer, x, link, &p->all)
                free_pointer(x);
        free(p);
        return NULL;
}

void pointers_cancel(Pointers *p) {
        LIST_FOREACH_ITEM (Pointer, x, link, &p->all)
                x->call = object_call_cancel(x->call);
}

void pointers_on_delivered(Pointers *p, const BundleRecord *rec, const char *key,
                           const Claim *claim) {
        bool is_named = rec->name.cluster_id[0] != '\0';
        if (is_named ? !rec->date_time[0] : !claim)
                return; /* nobody would search for it elsewhere */
        Pointer *x = calloc(1, sizeof *x);
        if (!x || bundle_record_copy(&x->rec, rec) < 0) {
                free(x);
                log_warning(-ENOMEM, "%s: no pointer to it is written", rec->id);
                return;
        }
        x->pointers = p;
        x->is_known = is_named;
        (void)snprintf(x->key, sizeof x->key, "%s", key);
        if (claim)
                x->claim = *claim;
        list_append(&p->all, &x->link);
        if (++p->n > POINTERS_MAX)
                free_pointer(CONTAINER_OF(p->all.next, Pointer, link));
}

static char *format(const Pointer *x, const DeliveryRecord *d) {
        StrBuf b = STRBUF_INIT;
        json_out_object(&b, NULL);
        json_out_string(&b, "schema", "neuron-collectd/pointer/1");
        json_out_string(&b, "bundle", x->rec.id);
        json_out_path(&b, "object", d->object);
        json_out_string(&b, "cluster_id", bundle_record_cluster_id(&x->rec));
        json_out_string(&b, "date_time", bundle_record_date_time(&x->rec));
        json_out_string(&b, "agreed", x->rec.name.agreed);
        json_out_end_object(&b);
        strbuf_add(&b, "\n");
        return strbuf_detach(&b);
}

static void on_written(const ObjectResult *r, void *userdata) {
        Pointer *x = userdata;
        x->call = NULL;
        if (r->outcome == OBJECT_UNREACHABLE) {
                x->due_usec = boottime_now(x->pointers) + RETRY_USEC;
                return;
        }
        if (r->outcome != OBJECT_OK)
                log_dump(x->rec.id, LOG_WARNING, 0, "no pointer to it is written at %s: %s",
                         x->rec.deliveries[x->next].destination, r->error);
        x->next++;
}

/* @return where a bundle would be searched for by the names that it has; NULL: nowhere, no memory
 */
static char *pointer_name(Scheduler *s, const char *destination, const BundleRecord *rec) {
        _cleanup_free_ char *directory = objects_bundle_directory(s, destination, rec);
        return directory ? strbuf_format("%s/%s" SUFFIX, directory, rec->id) : NULL;
}

/* @return the name of the pointer; NULL: the bundle lies there already, or no memory */
static char *other_name(const Pointer *x, Scheduler *s, const char *destination) {
        BundleRecord there = x->rec; /* borrowed */
        there.name = x->name;
        there.s3_prefix = NULL;
        _cleanup_free_ char *from = pointer_name(s, destination, &x->rec);
        _cleanup_free_ char *to = pointer_name(s, destination, &there);
        return from && to && strcmp(from, to) != 0 ? TAKE_PTR(to) : NULL;
}

static void write_next(Pointer *x, Scheduler *s, int64_t now) {
        const DeliveryRecord *d = &x->rec.deliveries[x->next];
        _cleanup_free_ char *name =
                d->state == DELIVERY_DONE ? other_name(x, s, d->destination) : NULL;
        if (!name) {
                x->next++;
                return;
        }
        free(x->text);
        x->text = format(x, d);
        int r = x->text ? object_call_new(&x->call, s,
                                          &(ObjectRequest){ .operation = OBJECT_PUT,
                                                            .destination = d->destination,
                                                            .name = name,
                                                            .data = x->text,
                                                            .n = strlen(x->text),
                                                            .on_done = on_written,
                                                            .userdata = x })
                        : -ENOMEM;
        if (r < 0)
                x->due_usec = now + RETRY_USEC;
}

/* @return false: it is not known where it belongs, and will not be */
static bool find_place(Pointer *x, const Agreement *agreement) {
        const Decision *d = agreement_find(agreement, x->key, &x->claim);
        if (!d)
                return agreement_is_pending(agreement, x->key, &x->claim);
        (void)strcpy(x->name.cluster_id, d->cluster_id);
        (void)strcpy(x->name.date_time, d->date_time);
        x->is_known = true;
        return true;
}

int64_t pointers_step(Pointers *p, const Agreement *agreement, Scheduler *s) {
        int64_t now = boottime_now(p), next = AGREEMENT_NEVER;
        LIST_FOREACH_ITEM_SAFE (Pointer, x, link, &p->all) {
                if (!x->is_known && !find_place(x, agreement)) {
                        free_pointer(x);
                        continue;
                }
                while (s && x->is_known && !x->call && x->due_usec <= now &&
                       x->next < x->rec.n_deliveries)
                        write_next(x, s, now);
                if (x->next >= x->rec.n_deliveries)
                        free_pointer(x);
                else if (x->is_known)
                        next = MIN(next, x->call ? now + (int64_t)USEC_PER_SEC : x->due_usec);
        }
        return next;
}

/* ---- reading ---- */

int pointer_get(ObjectCall **ret, Scheduler *s, const char *destination, const BundleRecord *rec,
                void (*on_done)(const ObjectResult *r, void *userdata), void *userdata) {
        _cleanup_free_ char *name = pointer_name(s, destination, rec);
        return name ? object_call_new(ret, s,
                                      &(ObjectRequest){ .operation = OBJECT_GET,
                                                        .destination = destination,
                                                        .name = name,
                                                        .on_done = on_done,
                                                        .userdata = userdata })
                    : -ENOMEM;
}

static bool read_text(const json_t *object, const char *key, char *buf, size_t size) {
        const char *s = json_string_value(json_object_get(object, key));
        return s && (size_t)snprintf(buf, size, "%s", s) < size;
}

FailureName pointer_parse(const ObjectResult *r) {
        json_t *v = r->outcome == OBJECT_OK ? json_loadb(r->data, r->n, 0, NULL) : NULL;
        const char *words[N_AGREED];
        FailureName name = { 0 };
        Decision d = { 0 };
        for (Agreed a = 0; a < N_AGREED; a++)
                words[a] = agreed_name(a);
        bool is_pointer = read_text(v, "agreed", name.agreed, sizeof name.agreed) &&
                          parse_word(name.agreed, words, N_AGREED) >= 0 &&
                          read_text(v, "cluster_id", d.cluster_id, sizeof d.cluster_id) &&
                          read_text(v, "date_time", d.date_time, sizeof d.date_time);
        json_decref(v);
        if (decision_name_is_valid(&d)) { /* else it went under its own */
                (void)strcpy(name.cluster_id, d.cluster_id);
                (void)strcpy(name.date_time, d.date_time);
        }
        return is_pointer ? name : (FailureName){ 0 };
}
