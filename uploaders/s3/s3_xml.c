#include "uploaders/s3/s3_xml.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"

enum { XML_ITEMS_MAX = 10000 /* of one page; S3's have 1,000 */ };

/* ── ETags ── */

int s3_etag_unquote(char ret[static S3_ETAG_SIZE], const char *etag) {
        if (strncmp(etag, "W/", 2) == 0)
                etag += 2;
        size_t n = strlen(etag);
        if (n >= 2 && etag[0] == '"' && etag[n - 1] == '"') {
                etag++;
                n -= 2;
        }
        if (n == 0 || n >= S3_ETAG_SIZE)
                return -EINVAL;
        for (size_t i = 0; i < n; i++)
                if (etag[i] <= ' ' || etag[i] >= 0x7f || etag[i] == '"')
                        return -EINVAL;
        memcpy(ret, etag, n);
        ret[n] = '\0';
        return 0;
}

/* ── answers of one word ── */

typedef struct OneWord {
        const char *name;
        char *to;
        size_t size;
} OneWord;

static int one_word_leaf(void *document, const char *path, const char *text) {
        OneWord *w = document;
        size_t n = strlen(text);

        if (strcmp(path, w->name) != 0)
                return 0;
        if (n >= w->size)
                return -EINVAL;
        memcpy(w->to, text, n + 1);
        return 0;
}

int s3_xml_upload_id(const char *text, size_t n, char ret[static S3_UPLOAD_ID_SIZE]) {
        char id[S3_UPLOAD_ID_SIZE] = "";
        OneWord word = { "UploadId", id, sizeof id };
        int r = xml_walk(text, n,
                         &(XmlReader){ .root = "InitiateMultipartUploadResult",
                                       .on_leaf = one_word_leaf,
                                       .document = &word });

        if (r < 0)
                return r;
        if (id[0] == '\0')
                return -EINVAL;
        memcpy(ret, id, sizeof id);
        return 0;
}

int s3_xml_complete_etag(const char *text, size_t n, char ret[static S3_ETAG_SIZE]) {
        char etag[S3_ETAG_SIZE + 4] = ""; /* W/ and quotes */
        OneWord word = { "ETag", etag, sizeof etag };
        int r = xml_walk(text, n,
                         &(XmlReader){ .root = "CompleteMultipartUploadResult",
                                       .on_leaf = one_word_leaf,
                                       .document = &word });

        return r < 0 ? r : s3_etag_unquote(ret, etag);
}

/* ── lists: parts of an upload, uploads, objects; one page each ── */

static int put_number(uint64_t *to, const char *text) {
        return parse_u64(text, to) < 0 ? -EINVAL : 0;
}

static int put_unsigned(unsigned *to, const char *text) {
        uint64_t n;

        if (parse_u64_range(text, 0, UINT_MAX, &n) < 0)
                return -EINVAL;
        *to = (unsigned)n;
        return 0;
}

static int put_bool(bool *to, const char *text) {
        return parse_bool(text, to) < 0 ? -EINVAL : 0;
}

/* Makes room for one more. @param items_at where the array's pointer is, of whatever type. @return
 * the new one, zeroed, or NULL and *ret_error */
static void *grow(void *items_at, size_t *n, size_t size, int *ret_error) {
        char *items;

        *ret_error = *n >= XML_ITEMS_MAX ? -EINVAL : array_grow(items_at, *n, size);
        if (*ret_error < 0)
                return NULL;
        memcpy(&items, items_at, sizeof items);
        return memset(items + (*n)++ * size, 0, size);
}

static bool is_url(const char *encoding) {
        return strcmp(encoding, "url") == 0;
}

/* In place. encoding-type=url writes a blank as `+` (AWS) or `%20` (Ceph, Swift), and a plus
 * always as `%2B`. */
static int url_decode(char *text) {
        char *to = text;

        for (const char *p = text; *p; p++, to++) {
                *to = *p == '+' ? ' ' : *p;
                if (*p != '%')
                        continue;
                const char digits[] = { p[1], p[1] ? p[2] : '\0', '\0' };
                if (parse_hex_bytes(digits, to, 1) < 0 || *to == '\0')
                        return -EINVAL;
                p += 2;
        }
        *to = '\0';
        return 0;
}

static int finish_key(char *key, bool is_escaped) {
        int r = key && is_escaped ? url_decode(key) : 0;

        if (r < 0)
                return r;
        return key && strlen(key) > S3_KEY_MAX ? -EINVAL : 0;
}

/* ── ListParts ── */

static int parts_open(void *document, const char *path) {
        S3PartList *l = document;
        int r = 0;

        if (strcmp(path, "Part") == 0)
                (void)grow(&l->items, &l->n, sizeof *l->items, &r);
        return r;
}

static int parts_leaf(void *document, const char *path, const char *text) {
        S3PartList *l = document;
        S3ListedPart *part = l->n > 0 ? &l->items[l->n - 1] : NULL;

        if (strcmp(path, "IsTruncated") == 0)
                return put_bool(&l->is_truncated, text);
        if (strcmp(path, "NextPartNumberMarker") == 0)
                return put_unsigned(&l->next_marker, text);
        if (strcmp(path, "Part/PartNumber") == 0)
                return put_unsigned(&part->number, text);
        if (strcmp(path, "Part/Size") == 0)
                return put_number(&part->bytes, text);
        if (strcmp(path, "Part/LastModified") == 0)
                return xml_put_time(&part->last_modified_usec, text);
        if (strcmp(path, "Part/ETag") == 0)
                return s3_etag_unquote(part->etag, text);
        return 0;
}

static int parts_close(void *document, const char *path) {
        const S3PartList *l = document;

        return strcmp(path, "Part") == 0 && l->items[l->n - 1].etag[0] == '\0' ? -EINVAL : 0;
}

int s3_xml_part_list(const char *text, size_t n, S3PartList *ret) {
        S3PartList l = { 0 };
        int r = xml_walk(text, n,
                         &(XmlReader){ .root = "ListPartsResult",
                                       .on_open = parts_open,
                                       .on_leaf = parts_leaf,
                                       .on_close = parts_close,
                                       .document = &l });

        if (r == 0 && l.is_truncated && l.next_marker == 0)
                r = -EINVAL; /* a page that leads back to itself */
        if (r < 0)
                s3_part_list_done(&l);
        else
                *ret = l;
        return r;
}

void s3_part_list_done(S3PartList *l) {
        free(l->items);
        *l = (S3PartList){ 0 };
}

/* ── ListMultipartUploads ── */

typedef struct UploadsDocument {
        S3UploadList list;
        bool is_escaped; /* EncodingType may come behind the keys */
} UploadsDocument;

static int uploads_open(void *document, const char *path) {
        S3UploadList *l = &((UploadsDocument *)document)->list;
        int r = 0;

        if (strcmp(path, "Upload") == 0)
                (void)grow(&l->items, &l->n, sizeof *l->items, &r);
        return r;
}

static int uploads_leaf(void *document, const char *path, const char *text) {
        UploadsDocument *d = document;
        S3UploadList *l = &d->list;
        S3ListedUpload *upload = l->n > 0 ? &l->items[l->n - 1] : NULL;

        if (strcmp(path, "EncodingType") == 0)
                d->is_escaped = is_url(text);
        else if (strcmp(path, "IsTruncated") == 0)
                return put_bool(&l->is_truncated, text);
        else if (strcmp(path, "NextKeyMarker") == 0)
                return xml_put_text(&l->next_key_marker, text);
        else if (strcmp(path, "NextUploadIdMarker") == 0)
                return xml_put_text(&l->next_upload_id_marker, text);
        else if (strcmp(path, "Upload/Key") == 0)
                return xml_put_text(&upload->key, text);
        else if (strcmp(path, "Upload/UploadId") == 0)
                return xml_put_text(&upload->upload_id, text);
        else if (strcmp(path, "Upload/Initiated") == 0)
                return xml_put_time(&upload->initiated_usec, text);
        return 0;
}

static bool can_be_named(S3ListedUpload *upload, bool is_escaped) {
        return upload->key && upload->key[0] != '\0' && finish_key(upload->key, is_escaped) == 0 &&
               upload->upload_id && upload->upload_id[0] != '\0' &&
               strlen(upload->upload_id) < S3_UPLOAD_ID_SIZE;
}

static void listed_upload_done(S3ListedUpload *upload) {
        free(upload->key);
        free(upload->upload_id);
}

/* An upload that we could not ask for must not hide the others. */
static void uploads_remove_odd(S3UploadList *l, bool is_escaped) {
        size_t n = 0;

        for (size_t i = 0; i < l->n; i++)
                if (can_be_named(&l->items[i], is_escaped))
                        l->items[n++] = l->items[i];
                else
                        listed_upload_done(&l->items[i]);
        l->n = n;
}

static int uploads_finish(UploadsDocument *d) {
        S3UploadList *l = &d->list;
        int r = 0;

        uploads_remove_odd(l, d->is_escaped);
        if (l->next_key_marker && d->is_escaped) /* of any length: it may be an odd one's */
                r = url_decode(l->next_key_marker);
        if (r == 0 && l->is_truncated && (!l->next_key_marker || l->next_key_marker[0] == '\0'))
                r = -EINVAL;
        return r;
}

int s3_xml_upload_list(const char *text, size_t n, S3UploadList *ret) {
        UploadsDocument d = { 0 };
        int r = xml_walk(text, n,
                         &(XmlReader){ .root = "ListMultipartUploadsResult",
                                       .on_open = uploads_open,
                                       .on_leaf = uploads_leaf,
                                       .document = &d });

        if (r == 0)
                r = uploads_finish(&d);
        if (r < 0)
                s3_upload_list_done(&d.list);
        else
                *ret = d.list;
        return r;
}

void s3_upload_list_done(S3UploadList *l) {
        for (size_t i = 0; i < l->n; i++)
                listed_upload_done(&l->items[i]);
        free(l->items);
        free(l->next_key_marker);
        free(l->next_upload_id_marker);
        *l = (S3UploadList){ 0 };
}

/* ── ListObjectsV2 ── */

typedef struct ObjectsDocument {
        S3ObjectList list;
        bool is_escaped;
} ObjectsDocument;

static int objects_open(void *document, const char *path) {
        S3ObjectList *l = &((ObjectsDocument *)document)->list;
        int r = 0;

        if (strcmp(path, "Contents") == 0)
                (void)grow(&l->items, &l->n, sizeof *l->items, &r);
        return r;
}

static int objects_add_prefix(S3ObjectList *l, const char *text) {
        int r;
        char **prefix = grow(&l->prefixes, &l->n_prefixes, sizeof *prefix, &r);

        return prefix ? xml_put_text(prefix, text) : r;
}

static int objects_leaf(void *document, const char *path, const char *text) {
        ObjectsDocument *d = document;
        S3ObjectList *l = &d->list;
        S3ListedObject *object = l->n > 0 ? &l->items[l->n - 1] : NULL;

        if (strcmp(path, "EncodingType") == 0)
                d->is_escaped = is_url(text);
        else if (strcmp(path, "IsTruncated") == 0)
                return put_bool(&l->is_truncated, text);
        else if (strcmp(path, "NextContinuationToken") == 0)
                return xml_put_text(&l->next_token, text);
        else if (strcmp(path, "CommonPrefixes/Prefix") == 0)
                return objects_add_prefix(l, text);
        else if (strcmp(path, "Contents/Key") == 0)
                return xml_put_text(&object->key, text);
        else if (strcmp(path, "Contents/Size") == 0)
                return put_number(&object->bytes, text);
        else if (strcmp(path, "Contents/LastModified") == 0)
                return xml_put_time(&object->last_modified_usec, text);
        return 0;
}

static int objects_close(void *document, const char *path) {
        const S3ObjectList *l = &((ObjectsDocument *)document)->list;

        return strcmp(path, "Contents") == 0 && !l->items[l->n - 1].key ? -EINVAL : 0;
}

static int objects_finish(ObjectsDocument *d) {
        S3ObjectList *l = &d->list;
        int r = 0;

        for (size_t i = 0; i < l->n && r == 0; i++)
                r = finish_key(l->items[i].key, d->is_escaped);
        for (size_t i = 0; i < l->n_prefixes && r == 0; i++)
                r = finish_key(l->prefixes[i], d->is_escaped);
        if (r == 0 && l->is_truncated && (!l->next_token || l->next_token[0] == '\0'))
                r = -EINVAL;
        return r;
}

int s3_xml_object_list(const char *text, size_t n, S3ObjectList *ret) {
        ObjectsDocument d = { 0 };
        int r = xml_walk(text, n,
                         &(XmlReader){ .root = "ListBucketResult",
                                       .on_open = objects_open,
                                       .on_leaf = objects_leaf,
                                       .on_close = objects_close,
                                       .document = &d });

        if (r == 0)
                r = objects_finish(&d);
        if (r < 0)
                s3_object_list_done(&d.list);
        else
                *ret = d.list;
        return r;
}

void s3_object_list_done(S3ObjectList *l) {
        for (size_t i = 0; i < l->n; i++)
                free(l->items[i].key);
        for (size_t i = 0; i < l->n_prefixes; i++)
                free(l->prefixes[i]);
        free(l->items);
        free(l->prefixes);
        free(l->next_token);
        *l = (S3ObjectList){ 0 };
}

/* ── what we send ── */

static void add_escaped(StrBuf *b, const char *text) {
        for (; *text; text++)
                switch (*text) {
                case '<':
                        strbuf_add(b, "&lt;");
                        break;
                case '>':
                        strbuf_add(b, "&gt;");
                        break;
                case '&':
                        strbuf_add(b, "&amp;");
                        break;
                default:
                        strbuf_add_n(b, text, 1);
                }
}

char *s3_xml_complete_body(const S3CompletePart *parts, size_t n) {
        StrBuf b = STRBUF_INIT;

        strbuf_add(&b,
                   "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
        for (size_t i = 0; i < n; i++) {
                strbuf_addf(&b, "<Part><PartNumber>%u</PartNumber><ETag>&quot;", parts[i].number);
                add_escaped(&b, parts[i].etag);
                strbuf_add(&b, "&quot;</ETag>");
                if (parts[i].checksum_sha256) {
                        strbuf_add(&b, "<ChecksumSHA256>");
                        add_escaped(&b, parts[i].checksum_sha256);
                        strbuf_add(&b, "</ChecksumSHA256>");
                }
                strbuf_add(&b, "</Part>");
        }
        strbuf_add(&b, "</CompleteMultipartUpload>");
        return strbuf_detach(&b);
}
