/* The end of a call about a small object: collects what was found, reports success or trouble to
 * the destination, gives the caller its result, and frees the call. A call on a volume whose thread
 * works still cannot be freed: cancelled or given up, it is abandoned until the thread is back.
 *
 * Everything is on the loop. How a call is carried out: objects_s3.c, objects_volume.c. */
#include "agent/delivery/objects_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/array.h"
#include "lib/base/transition.h"

#define TO(state) (1U << (state))
static const StateTable state_table = {
        .machine = "call about an object",
        .names = (const char *const[]){ "on-loop", "awaits-probe", "working", "abandoned" },
        .moves =
                (const unsigned[N_OBJECT_CALL_STATES]){
                        [OBJECT_CALL_ON_LOOP] =
                                TO(OBJECT_CALL_AWAITS_PROBE) | TO(OBJECT_CALL_WORKING),
                        [OBJECT_CALL_AWAITS_PROBE] = TO(OBJECT_CALL_ON_LOOP),
                        [OBJECT_CALL_WORKING] = TO(OBJECT_CALL_ON_LOOP) | TO(OBJECT_CALL_ABANDONED),
                },
        .n_states = N_OBJECT_CALL_STATES,
};

void object_call_set_state(ObjectCall *c, ObjectCallState state) {
        if (transition_check(&state_table, c->state, state, NULL) == 0)
                c->state = state;
}

void object_entries_done(ObjectEntries *l) {
        for (size_t i = 0; i < l->n; i++)
                free(l->items[i].name);
        free(l->items);
        *l = (ObjectEntries){ 0 };
}

int object_entries_add(ObjectEntries *l, const ObjectEntry *e) {
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

void object_call_finish(ObjectCall *c, ObjectOutcome outcome, const char *error) {
        bool needs_error =
                outcome != OBJECT_OK && outcome != OBJECT_NOT_FOUND && outcome != OBJECT_EXISTS;
        c->result.outcome = outcome;
        c->result.error = !needs_error ? NULL : error ? error : strerror(ENOMEM);
        list_remove(&c->link); /* no other call or callback finds it from here on */
        if (!needs_error || (outcome == OBJECT_UNREACHABLE && error && !c->is_own_trouble))
                destination_object_done(c->objects->destination, needs_error ? error : NULL);
        c->request.on_done(&c->result, c->request.userdata);
        (void)object_call_cancel(c);
}

void object_call_finish_list(ObjectCall *c) {
        if (c->entries.n > 0)
                qsort(c->entries.items, c->entries.n, sizeof *c->entries.items, compare_entries);
        c->result.entries = c->entries.items;
        c->result.n_entries = c->entries.n;
        object_call_finish(c, OBJECT_OK, NULL);
}

static int on_due(sd_event_source *source, void *userdata) {
        ObjectCall *c = userdata;
        (void)source;
        object_call_finish(c, c->result.outcome, c->error);
        return 0;
}

int object_call_finish_later(ObjectCall *c, ObjectOutcome outcome, const char *error) {
        c->result.outcome = outcome;
        c->error = strdup(error);
        return sd_event_add_defer(c->objects->destination->shared->event, &c->timer, on_due, c);
}

void object_call_free(ObjectCall *c) {
        list_remove(&c->link);
        object_entries_done(&c->entries);
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
        if (c->state != OBJECT_CALL_WORKING) {
                object_call_free(c);
                return NULL;
        }
        object_call_set_state(c, OBJECT_CALL_ABANDONED);
        atomic_store(&c->is_cancelled, true);
        list_remove(&c->link);
        list_append(&c->objects->abandoned, &c->link);
        c->objects->n_abandoned++;
        return NULL;
}

bool object_call_is_plain_name(const char *s, bool allows_dots) {
        for (;;) {
                size_t n = strcspn(s, "/");
                if (n == 0 || (s[0] == '.' && (!allows_dots || n == 1 || (n == 2 && s[1] == '.'))))
                        return false;
                if (s[n] == '\0')
                        return true;
                s += n + 1;
        }
}
