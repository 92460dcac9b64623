/* The parts of an upload: which are there, which are on their way, which one is wanted next. Knows no request. */
#include <errno.h>
#include <string.h>

#include "uploaders/s3/s3_upload_private.h"

/* Makes room for a number. */
static int reach(UploadParts *p, unsigned number) {
        if (number > p->n_allocated) {
                size_t n = MAX((size_t)number, 2 * p->n_allocated);
                UploadPart *items = reallocarray(p->items, n, sizeof *items);
                if (!items)
                        return -ENOMEM;
                p->items = items;
                p->n_allocated = n;
        }
        while (p->n < number)
                p->items[p->n++] = (UploadPart){ .etag = NULL };
        return 0;
}

static int set_there(UploadParts *p, UploadPart *item, const char *etag) {
        item->etag = strdup(etag);
        if (!item->etag)
                return -ENOMEM;
        p->n_there++;
        p->there_bytes += item->bytes;
        return 0;
}

int upload_parts_init(UploadParts *p, const S3UploadOrder *order) {
        int r = 0;

        *p = (UploadParts){ .cursor = 1 };
        list_init(&p->jobs);
        if (!order->upload_id)
                return 0; /* rows of an upload that was never made say nothing about this one */
        for (size_t i = 0; i < order->n_parts && r == 0; i++) {
                const S3KnownPart *known = &order->parts[i];

                if (known->number != i + 1 || i >= S3_PARTS_MAX)
                        return -EINVAL;
                r = reach(p, known->number);
                if (r < 0)
                        return r;
                UploadPart *item = &p->items[i];
                item->bytes = known->bytes;
                memcpy(item->sha256, known->sha256, sizeof item->sha256);
                if (known->is_last)
                        p->last = known->number;
                if (known->etag[0])
                        r = set_there(p, item, known->etag);
        }
        return r;
}

static void drop_job(UploadParts *p, UploadJob *job) {
        s3_call_cancel(job->call);
        list_remove(&job->link);
        p->n_jobs--;
        job->part->release(job->part);
        free(job);
}

void upload_parts_drop_jobs(UploadParts *p) {
        LIST_FOREACH_SAFE (link, &p->jobs)
                drop_job(p, CONTAINER_OF(link, UploadJob, link));
}

void upload_parts_done(UploadParts *p) {
        if (p->jobs.next)
                upload_parts_drop_jobs(p);
        for (unsigned i = 0; i < p->n; i++)
                free(p->items[i].etag);
        free(p->items);
}

unsigned upload_parts_next(const UploadParts *p, unsigned max_in_flight) {
        unsigned number = p->cursor;

        if (p->wanted || p->n_jobs >= max_in_flight)
                return 0;
        while (number <= p->n && p->items[number - 1].etag)
                number++;
        return p->last && number > p->last ? 0 : number;
}

static int take(UploadParts *p, S3Upload *u, S3Part *part) {
        UploadJob *job;
        int r;

        if (part->number != p->wanted)
                return -EINVAL;
        r = reach(p, part->number);
        if (r < 0)
                return r;
        job = calloc(1, sizeof *job);
        if (!job)
                return -ENOMEM;
        UploadPart *item = &p->items[part->number - 1];
        item->bytes = part->bytes;
        memcpy(item->sha256, part->sha256, sizeof item->sha256);
        if (part->is_last)
                p->last = part->number;
        p->cursor = part->number + 1;
        p->wanted = 0;
        job->upload = u;
        job->part = part;
        list_append(&p->jobs, &job->link);
        p->n_jobs++;
        return 0;
}

int upload_parts_give(UploadParts *p, S3Upload *u, S3Part *part) {
        int r = take(p, u, part);

        if (r < 0)
                part->release(part);
        return r;
}

int upload_parts_arrived(UploadParts *p, UploadJob *job, const char *etag) {
        int r = set_there(p, &p->items[job->part->number - 1], etag);

        drop_job(p, job);
        return r;
}

int upload_parts_compare(UploadParts *p, const S3PartList *page) {
        for (size_t i = 0; i < page->n; i++) {
                const S3ListedPart *listed = &page->items[i];

                if (listed->number == 0 || listed->number > p->n)
                        continue; /* begun after the last row that became durable: sent again under the same number */
                UploadPart *item = &p->items[listed->number - 1];
                if (!item->etag)
                        continue;
                if (item->bytes != listed->bytes || strcmp(item->etag, listed->etag) != 0)
                        return UPLOAD_E_STALE;
                item->was_listed = true;
        }
        return 0;
}

unsigned upload_parts_unlisted(const UploadParts *p) {
        for (unsigned i = 0; i < p->n; i++)
                if (p->items[i].etag && !p->items[i].was_listed)
                        return i + 1;
        return 0;
}

bool upload_parts_are_all_there(const UploadParts *p) {
        return p->last && p->n_there == p->last;
}

uint64_t upload_parts_bytes(const UploadParts *p) {
        uint64_t bytes = 0;

        for (unsigned i = 0; i < p->n; i++)
                bytes += p->items[i].bytes;
        return bytes;
}

static bool is_known(const uint8_t sha256[static SHA256_SIZE]) {
        static const uint8_t none[SHA256_SIZE];

        return memcmp(sha256, none, sizeof none) != 0;
}

char *upload_parts_complete_body(const UploadParts *p, bool with_checksums) {
        _cleanup_free_ S3CompletePart *parts = calloc(p->last, sizeof *parts);
        _cleanup_free_ char(*checksums)[DIGEST_BASE64_SIZE(SHA256_SIZE)] =
                calloc(p->last, sizeof *checksums);

        if (!parts || !checksums)
                return NULL;
        for (unsigned i = 0; i < p->last; i++) {
                const UploadPart *item = &p->items[i];

                parts[i].number = i + 1;
                parts[i].etag = item->etag;
                if (with_checksums && is_known(item->sha256))
                        parts[i].checksum_sha256 =
                                digest_base64(item->sha256, SHA256_SIZE, checksums[i]);
        }
        return s3_xml_complete_body(parts, p->last);
}
