#include "agent/delivery/ship.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>

#include "uploaders/uploader.h"

bool ship_end(ShipJob *s, ShipResult result, char *error) {
        s->result = result;
        free(s->error);
        s->error = error;
        return false;
}

bool ship_endf(ShipJob *s, ShipResult result, const char *fmt, ...) {
        va_list ap;
        va_start(ap, fmt);
        char *text = NULL;
        if (vasprintf(&text, fmt, ap) < 0)
                text = NULL;
        va_end(ap);
        return ship_end(s, result, text);
}

bool ship_end_upload(ShipJob *s, int outcome, char *error) {
        s->upload_outcome = MAX(outcome, 0);
        /* A destination that gives back other bytes than it was given is no place for evidence, whatever the bundle. */
        if (outcome == UPLOAD_E_FULL || outcome == UPLOAD_E_AWAY || outcome == UPLOAD_E_DENIED ||
            outcome == UPLOAD_E_MISMATCH)
                return ship_end(s, SHIP_DESTINATION, error);
        if (!error && outcome < 0)
                return ship_endf(s, SHIP_FAILED, "%s", strerror(-outcome));
        return ship_end(s, SHIP_FAILED, error);
}

bool ship_may_go_on(ShipJob *s) {
        return !atomic_load(&s->abort) || ship_endf(s, SHIP_ABORTED, "stopped");
}

static char **copy_labels(char **labels) {
        size_t n = 0;
        while (labels && labels[n])
                n++;
        char **copy = calloc(n + 1, sizeof *copy);
        for (size_t i = 0; copy && i < n; i++)
                copy[i] = strdup(labels[i]);
        return copy;
}

static void copy_held(HeldFiles *to, const HeldFiles *from) {
        to->items = from->n ? calloc(from->n, sizeof *to->items) : NULL;
        for (size_t i = 0; to->items && i < from->n; i++) {
                HeldFile h = { .path = strdup(from->items[i].path),
                               .fd = fcntl(from->items[i].fd, F_DUPFD_CLOEXEC, 0) };
                if (h.path && h.fd >= 0)
                        to->items[to->n++] = h;
                else
                        free(h.path);
        }
        to->all = from->all && to->n == from->n;
}

int ship_job_init(ShipJob *s, const ShipOrder *order) {
        const Bundle *b = order->bundle;
        int r = bundle_record_copy(&s->rec, &b->rec);
        s->terms = order->terms ? source_terms_ref(order->terms) : NULL;
        s->clock = order->clock;
        s->attached_fd = -1;
        copy_held(&s->held, &b->held);
        s->owners = b->owners;
        s->directory = strdup(order->directory);
        s->instance_id = strdup(order->instance_id);
        s->hostname = strdup(order->hostname);
        s->labels = copy_labels(order->labels);
        s->compressors = order->compressors;
        s->limits = order->limits ? limits_ref(order->limits) : NULL;
        s->level = order->level;
        s->memory_bytes = order->memory_bytes;
        s->tolerant = b->tolerant;
        if (r >= 0 && s->directory && s->instance_id && s->hostname && s->labels)
                return 0;
        ship_job_done(s);
        return -ENOMEM;
}

void ship_job_done(ShipJob *s) {
        bundle_record_done(&s->rec);
        source_terms_unref(s->terms);
        held_files_done(&s->held);
        limits_unref(s->limits);
        free(s->shipped);
        if (s->attached_fd >= 0)
                (void)close(s->attached_fd); /* a directory */
        ship_notes_done(&s->notes);
        free(s->directory);
        free(s->instance_id);
        free(s->hostname);
        for (size_t i = 0; s->labels && s->labels[i]; i++)
                free(s->labels[i]);
        free(s->labels);
        free(s->error);
        free(s->incomplete);
        free(s->prints);
        free(s->attached_prints);
}
