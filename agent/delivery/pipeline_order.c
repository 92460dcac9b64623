/* What a delivery takes along beside the members of the source, and where it goes. Settled before the first delivery of a bundle begins and the same
 * for all that follow, after a crash too: an object that was begun with one plan under one name must never meet another. */
#include <errno.h>
#include <string.h>

#include "agent/delivery/pipeline_private.h"
#include "lib/base/log.h"
#include "lib/neuron/ids.h"

static char *directory_of_template(const Destination *d, const Bundle *b) {
        const PipelineContext *c = &d->pipeline->context;
        _cleanup_free_ char *path =
                bundle_directory(d->template,
                                 &(BundleOrigin){ .kind = b->rec.kind,
                                                  .source = b->rec.source,
                                                  .instance_id = c->instance_id,
                                                  .hostname = c->hostname },
                                 &(BundlePlace){ .date_time = b->rec.date_time,
                                                 .cluster_id = b->rec.cluster_id,
                                                 .oldest_mtime_usec = b->rec.oldest_mtime_usec,
                                                 .uid = b->rec.uid });
        if (!path)
                return NULL;
        const char *below = path + strlen(d->type->root(d));
        while (*below == '/')
                below++;
        return strdup(below);
}

char *pipeline_directory(const Destination *d, const Bundle *b) {
        char *directory = NULL;
        if (b->rec.s3_prefix && d->config->type == CONFIG_S3 &&
            bundle_directory_of_prefix(b->rec.s3_prefix, d->config->bucket,
                                       d->pipeline->context.instance_id, &directory) < 0)
                return NULL;
        return directory ? directory : directory_of_template(d, b);
}

void pipeline_settle_order(Pipeline *p, Bundle *b) {
        const Attachments *a = p->context.attachments;
        const BundleRecord *rec = &b->rec;
        int fd = bundle_has_begun(b) ? attachments_given(a, rec->source, rec->path, rec->id)
                                     : attachments_give(a, rec->source, rec->path, rec->id);
        if (fd >= 0)
                (void)close(fd); /* a directory; each delivery opens its own */
        else if (fd != -ENOENT)
                log_dump(b->rec.id, LOG_WARNING, fd,
                         "cannot add what was collected for it; that follows in a supplement");
}

void pipeline_take_along(Pipeline *p, const Bundle *b, ShipJob *s) {
        if (b->rec.supplement_of[0])
                (void)store_get_earlier_prints(p->context.store, &b->rec, &s->shipped,
                                               &s->n_shipped); /* none: all is new */
        int fd = attachments_given(p->context.attachments, b->rec.source, b->rec.path, b->rec.id);
        if (fd >= 0)
                s->attached_fd = fd;
        int r = ship_notes_read(&s->notes, p->context.store, b);
        if (r < 0)
                log_dump(b->rec.id, LOG_WARNING, r,
                         "cannot read what the hook told of it; the manifest goes without");
}
