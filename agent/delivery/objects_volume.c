/* Small objects on a volume, by one thread of their own, which a mount that hangs may keep: a call
 * that takes too long ends without it, and when many wait behind a hung one, further calls are
 * refused.
 *
 * run_on_volume() is the thread's, all else is on the loop. What ends a call: object_call.c. */
#include "agent/delivery/objects_private.h"

#include <errno.h>
#include <string.h>

#include "lib/event/timer.h"
#include "uploaders/uploader.h"

static int on_file(const VolumeFile *file, void *userdata) {
        return object_entries_add(userdata, &(ObjectEntry){ .name = (char *)file->relative,
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
                object_call_finish_list(c);
                return;
        }
        if (outcome == OBJECT_OK)
                c->result.modified_usec =
                        is_write ? c->written.modified_usec : c->content.modified_usec;
        c->result.data = c->content.data;
        c->result.n = c->content.n;
        c->is_own_trouble = c->outcome == -ENOMEM || c->outcome == -EMFILE || c->outcome == -ENFILE;
        object_call_finish(c, outcome,
                           c->error         ? c->error
                           : c->outcome < 0 ? strerror(-c->outcome)
                                            : NULL);
}

static void on_worked(WorkJob *work) {
        ObjectCall *c = CONTAINER_OF(work, ObjectCall, work);
        if (c->state == OBJECT_CALL_WORKING) {
                object_call_set_state(c, OBJECT_CALL_ON_LOOP);
                finish_volume(c);
                return;
        }
        c->objects->n_abandoned--;
        object_call_free(c);
}

static int on_hung(sd_event_source *source, uint64_t usec, void *userdata) {
        ObjectCall *c = userdata;
        (void)source, (void)usec;
        object_call_finish(c, OBJECT_UNREACHABLE, c->objects->destination->type->stall_text);
        return 0;
}

int objects_volume_start(ObjectCall *c) {
        const Objects *o = c->objects;
        if (o->n_abandoned >= OBJECTS_ABANDONED_MAX)
                return object_call_finish_later(c, OBJECT_UNREACHABLE,
                                                o->destination->type->stall_text);
        int r = timer_arm(&c->timer,
                          &(TimerOptions){ .event = o->destination->shared->event,
                                           .usec = o->destination->shared->object_timeout_usec,
                                           .handler = on_hung,
                                           .userdata = c });
        if (r < 0)
                return r;
        c->work = (WorkJob){ .run = run_on_volume, .done = on_worked };
        r = worker_pool_submit(o->pool, &c->work);
        if (r == 0)
                object_call_set_state(c, OBJECT_CALL_WORKING);
        return r;
}
