/* Writes and reads pointers. When the state database is lost, an agent finds a dump again that was
 * delivered before, under its failure's name. It would not get that name now: the job is known from
 * processes and notes, which are gone, and the node's record, which names the object, lies below
 * the job's key. What the agent does know is the dump's own cluster id and date-time, which are in
 * the name of its source. The pointer at the place that these give has the failure's name
 * (failures_names.c reads it).
 *
 * A pointer that is not written when the agent ends is never written. */
#include "agent/failures/failure_pointers.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/json_out.h"
#include "lib/base/log.h"

#define POINTER_SUFFIX ".see.json"
#define POINTERS_MAX 1024
#define POINTER_RETRY_USEC (INT64_C(30) * 1000000)

/* One pointer, at each destination of its bundle in turn. */
typedef struct FailurePointer {
        ListLink link;
        FailurePointers *parent;
        BundleRecord rec; /* a copy */
        size_t next;      /* the delivery at whose destination it is written */
        ObjectCall *call;
        char *text;
        int64_t due_usec;
} FailurePointer;

static void free_pointer(FailurePointer *x) {
        object_call_cancel(x->call);
        list_remove(&x->link);
        x->parent->n--;
        bundle_record_done(&x->rec);
        free(x->text);
        free(x);
}

static int64_t now_usec(const FailurePointers *p) {
        return (int64_t)p->clock->boottime_usec(p->clock);
}

void failure_pointers_add(FailurePointers *p, const BundleRecord *rec) {
        if (!rec->name.cluster_id[0] || !rec->date_time[0])
                return; /* nobody searches for it elsewhere */
        FailurePointer *x = calloc(1, sizeof *x);
        if (!x || bundle_record_copy(&x->rec, rec) < 0) {
                free(x);
                log_warning(-ENOMEM, "%s: no pointer to it is written", rec->id);
                return;
        }
        x->parent = p;
        list_append(&p->all, &x->link);
        if (++p->n > POINTERS_MAX)
                free_pointer(CONTAINER_OF(p->all.next, FailurePointer, link));
}

static char *pointer_format(const FailurePointer *x, const DeliveryRecord *d) {
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

static void on_pointer_written(const ObjectResult *r, void *userdata) {
        FailurePointer *x = userdata;
        x->call = NULL;
        if (r->outcome == OBJECT_UNREACHABLE) {
                x->due_usec = now_usec(x->parent) + POINTER_RETRY_USEC;
                return;
        }
        if (r->outcome != OBJECT_OK)
                log_dump(x->rec.id, LOG_WARNING, 0, "no pointer to it is written at %s: %s",
                         x->rec.deliveries[x->next].destination, r->error);
        x->next++;
}

char *failure_pointers_object_name(Scheduler *s, const char *destination, const BundleRecord *rec) {
        _cleanup_free_ char *directory = objects_bundle_directory(s, destination, rec);
        return directory ? strbuf_format("%s/%s" POINTER_SUFFIX, directory, rec->id) : NULL;
}

/* @return the object's name of a pointer; NULL: the bundle is at that place itself, or no memory */
static char *pointer_other_name(const FailurePointer *x, Scheduler *s, const char *destination) {
        BundleRecord there = x->rec; /* borrowed */
        there.name = (FailureName){ 0 };
        there.s3_prefix = NULL;
        _cleanup_free_ char *from = failure_pointers_object_name(s, destination, &x->rec);
        _cleanup_free_ char *to = failure_pointers_object_name(s, destination, &there);
        return from && to && strcmp(from, to) != 0 ? TAKE_PTR(to) : NULL;
}

static void write_next_pointer(FailurePointer *x, Scheduler *s, int64_t now) {
        const DeliveryRecord *d = &x->rec.deliveries[x->next];
        _cleanup_free_ char *name =
                d->state == DELIVERY_DONE ? pointer_other_name(x, s, d->destination) : NULL;
        if (!name) {
                x->next++;
                return;
        }
        free(x->text);
        x->text = pointer_format(x, d);
        int r = x->text ? object_call_new(&x->call, s,
                                          &(ObjectRequest){ .operation = OBJECT_PUT,
                                                            .destination = d->destination,
                                                            .name = name,
                                                            .data = x->text,
                                                            .n = strlen(x->text),
                                                            .on_done = on_pointer_written,
                                                            .userdata = x })
                        : -ENOMEM;
        if (r < 0)
                x->due_usec = now + POINTER_RETRY_USEC;
}

static bool read_pointer_text(const json_t *object, const char *key, char *buf, size_t size) {
        const char *s = json_string_value(json_object_get(object, key));
        return s && (size_t)snprintf(buf, size, "%s", s) < size;
}

FailureName failure_pointers_parse(const ObjectResult *r) {
        json_t *v = r->outcome == OBJECT_OK ? json_loadb(r->data, r->n, 0, NULL) : NULL;
        FailureName name = { 0 };
        Decision d = { 0 };
        bool is_pointer = read_pointer_text(v, "agreed", name.agreed, sizeof name.agreed) &&
                          agreed_parse(name.agreed, &d.agreed) == 0 &&
                          read_pointer_text(v, "cluster_id", d.cluster_id, sizeof d.cluster_id) &&
                          read_pointer_text(v, "date_time", d.date_time, sizeof d.date_time);
        json_decref(v);
        if (decision_name_is_valid(&d)) { /* else it was delivered under its own name */
                (void)strcpy(name.cluster_id, d.cluster_id);
                (void)strcpy(name.date_time, d.date_time);
        }
        return is_pointer ? name : (FailureName){ 0 };
}

int64_t failure_pointers_step(FailurePointers *p, Scheduler *s) {
        int64_t now = now_usec(p), next = AGREEMENT_NEVER;
        LIST_FOREACH_ITEM_SAFE (FailurePointer, x, link, &p->all) {
                while (s && !x->call && x->due_usec <= now && x->next < x->rec.n_deliveries)
                        write_next_pointer(x, s, now);
                if (x->next >= x->rec.n_deliveries)
                        free_pointer(x);
                else
                        next = MIN(next, x->call ? now + (int64_t)USEC_PER_SEC : x->due_usec);
        }
        return next;
}

void failure_pointers_init(FailurePointers *p, Clock *clock) {
        *p = (FailurePointers){ .clock = clock };
        list_init(&p->all);
}

void failure_pointers_cancel(FailurePointers *p) {
        LIST_FOREACH_ITEM (FailurePointer, x, link, &p->all)
                x->call = object_call_cancel(x->call);
}

void failure_pointers_done(FailurePointers *p) {
        LIST_FOREACH_ITEM_SAFE (FailurePointer, x, link, &p->all)
                free_pointer(x);
}
