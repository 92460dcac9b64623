/* Small objects at a destination: makes calls, owns those of each destination, and answers where
 * the objects of a failure and of a bundle lie. A destination's part is made by its first call, and
 * closed with the destination.
 *
 * Calls are carried out by objects_s3.c and objects_volume.c and end in object_call.c. Everything
 * here is on the loop. */
#include "agent/delivery/objects.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "agent/delivery/delivery_volume.h"
#include "agent/delivery/objects_private.h"
#include "agent/delivery/scheduler_private.h"
#include "agent/peers/incidents_name.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/bundle_name.h"
#include "lib/neuron/names.h"

/* ---- the calls of a destination ---- */

static uint64_t waiting_since_usec(const Destination *d) {
        const Objects *o = objects_of(d);
        const S3Client *client =
                o && !o->volume && !list_is_empty(&o->calls) ? objects_s3_client(o) : NULL;
        return client ? s3_client_waiting_since_usec(client) : 0;
}

bool objects_are_refused(Scheduler *s, const char *destination) {
        const Destination *d = s ? scheduler_find_destination(s, destination) : NULL;
        return d && d->is_proven && d->objects_failed;
}

static int open_kind(Objects *o) {
        const Destination *d = o->destination;
        const DestinationShared *shared = d->shared;
        if (d->config->type == CONFIG_S3) {
                o->prefix = s3_key_prefix(path_template_fixed(d->template));
                if (o->prefix)
                        o->probe_key = strbuf_format("%s%s/.probe-%s", o->prefix,
                                                     INCIDENTS_DIRECTORY, shared->instance_id);
                return o->probe_key ? 0 : -ENOMEM;
        }
        o->clock = shared->clock;
        int r = delivery_volume_open(d, &o->volume);
        return r < 0 ? r : worker_pool_new(&o->pool, shared->event, "nc-object", 1, WORKER_NORMAL);
}

void objects_free(Objects *o) {
        if (o->volume)
                volume_free(o->volume);
        free(o->prefix);
        free(o->probe_key);
        free(o);
}

static bool has_running_call(const Objects *o) {
        LIST_FOREACH (link, &o->abandoned)
                if (worker_pool_is_running(&CONTAINER_OF(link, ObjectCall, link)->work))
                        return true;
        return false;
}

static void close_objects(Destination *d, uint64_t until_usec) {
        Objects *o = objects_of(d);
        if (!o)
                return;
        assert(list_is_empty(&o->calls));
        d->objects = NULL;
        s3_call_cancel(o->probe);
        while (has_running_call(o) && destination_boottime_usec(d) < until_usec)
                (void)usleep(5 * USEC_PER_MSEC); /* the loop is over: there is nothing else to do */
        if (has_running_call(o))                 /* what is queued behind it ends at once */
                worker_pool_abandon(o->pool);
        else
                worker_pool_free(o->pool);
        LIST_FOREACH_SAFE (link, &o->abandoned) {
                ObjectCall *c = CONTAINER_OF(link, ObjectCall, link);
                if (!worker_pool_is_running(&c->work))
                        object_call_free(c);
        }
        if (!list_is_empty(&o->abandoned))
                return; /* the thread that hangs keeps it */
        objects_free(o);
}

static int objects_new(Destination *d) {
        Objects *o = calloc(1, sizeof *o);
        if (!o)
                return -ENOMEM;
        *o = (Objects){ .base = { .close = close_objects,
                                  .waiting_since_usec = waiting_since_usec },
                        .destination = d };
        d->objects = &o->base;
        list_init(&o->calls);
        list_init(&o->abandoned);
        int r = open_kind(o);
        if (r < 0)
                close_objects(d, 0);
        return r;
}

static bool is_valid_request(const ObjectRequest *q) {
        size_t n = strlen(q->name);
        bool is_list = q->operation == OBJECT_LIST;
        if (n == 0 || n > OBJECT_NAME_BYTES_MAX || (q->name[n - 1] == '/') != is_list ||
            q->n > OBJECT_BYTES_MAX)
                return false;
        char name[OBJECT_NAME_BYTES_MAX + 1];
        memcpy(name, q->name, n + 1);
        if (is_list)
                name[n - 1] = '\0';
        return object_call_is_plain_name(name, true);
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
        Objects *o = c->objects = objects_of(d);
        list_append(&o->calls, &c->link);
        r = copy_request(&c->request, request, o->volume);
        if (r == 0)
                r = o->volume ? objects_volume_start(c) : objects_s3_start(c);
        if (r < 0) {
                (void)object_call_cancel(c);
                return r;
        }
        *ret = c;
        return 0;
}

/* ---- what a destination is ---- */

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
        _cleanup_free_ char *path = d ? destination_bundle_directory(d, rec) : NULL;
        if (!path || d->config->type == CONFIG_VOLUME)
                return TAKE_PTR(path);
        const char *fixed = path_template_fixed(d->template);
        fixed += strspn(fixed, "/");
        size_t n = strlen(fixed);
        if (strncmp(path, fixed, n) != 0 || (n > 0 && path[n] != '/'))
                return NULL;
        return strdup(path + n + strspn(path + n, "/"));
}
