/* Reads the documents of S3 (lists of parts, uploads and objects; results of Create and Complete)
 * and writes the one of Complete. Lists are bounded. Walking the XML is left to
 * uploaders/aws/aws_xml.c. */
#include "uploaders/s3/s3_xml.h"

#include <errno.h>
#include <limits.h>
#include <stddef.h>
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
                if (etag[i] <= ' ' || etag[i] >= 0x7f || strchr("\"<>&", etag[i]))
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

typedef enum XmlFieldType {
        FIELD_BOOL,
        FIELD_UNSIGNED,
        FIELD_NUMBER,
        FIELD_TIME,
        FIELD_TEXT,
        FIELD_TEXTS, /* one more of an array, whose number follows its pointer */
        FIELD_ETAG,
} XmlFieldType;

typedef struct ListField {
        const char *path;
        XmlFieldType type;
        size_t offset; /* in the item when it is one of its elements, else in the list */
} ListField;

typedef struct ListForm {
        const char *root, *item;
        size_t item_size;
        const ListField *fields;
        size_t n_fields;
} ListForm;

typedef struct ListDocument {
        const ListForm *form;
        void *list;      /* begins with the items and their number */
        bool is_escaped; /* EncodingType may come behind the keys */
} ListDocument;

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

static size_t *number_behind(void *items_at) {
        return (void *)((char *)items_at + sizeof(void *));
}

static int put_field(void *at, XmlFieldType type, const char *text) {
        uint64_t n = 0;
        int r = 0;
        void *next;

        switch (type) {
        case FIELD_BOOL:
                return parse_bool(text, at) < 0 ? -EINVAL : 0;
        case FIELD_UNSIGNED:
                r = parse_u64_range(text, 0, UINT_MAX, &n);
                *(unsigned *)at = (unsigned)n;
                return r < 0 ? -EINVAL : 0;
        case FIELD_NUMBER:
                return parse_u64(text, at) < 0 ? -EINVAL : 0;
        case FIELD_TIME:
                return xml_put_time(at, text);
        case FIELD_TEXT:
                return xml_put_text(at, text);
        case FIELD_TEXTS:
                next = grow(at, number_behind(at), sizeof(char *), &r);
                return next ? xml_put_text(next, text) : r;
        case FIELD_ETAG:
                return s3_etag_unquote(at, text);
        }
        return 0;
}

static int list_open(void *document, const char *path) {
        const ListDocument *d = document;
        int r = 0;

        if (strcmp(path, d->form->item) == 0)
                (void)grow(d->list, number_behind(d->list), d->form->item_size, &r);
        return r;
}

static int list_leaf(void *document, const char *path, const char *text) {
        ListDocument *d = document;
        const ListForm *form = d->form;
        size_t n_item = strlen(form->item);
        bool is_of_item = strncmp(path, form->item, n_item) == 0 && path[n_item] == '/';
        char *base = d->list;

        if (strcmp(path, "EncodingType") == 0)
                d->is_escaped = strcmp(text, "url") == 0;
        if (is_of_item) { /* of the last one, which has been opened */
                memcpy(&base, d->list, sizeof base);
                base += (*number_behind(d->list) - 1) * form->item_size;
        }
        for (size_t i = 0; i < form->n_fields; i++)
                if (strcmp(path, form->fields[i].path) == 0)
                        return put_field(base + form->fields[i].offset, form->fields[i].type, text);
        return 0;
}

static int read_list(ListDocument *d, const char *text, size_t n) {
        return xml_walk(text, n,
                        &(XmlReader){ .root = d->form->root,
                                      .on_open = list_open,
                                      .on_leaf = list_leaf,
                                      .document = d });
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
        int r = is_escaped ? url_decode(key) : 0;

        return r == 0 && strlen(key) > S3_KEY_MAX ? -EINVAL : r;
}

/* ── ListParts ── */

/* clang-format off */
static const ListField part_fields[] = {
        { "IsTruncated",          FIELD_BOOL,     offsetof(S3PartList, is_truncated) },
        { "NextPartNumberMarker", FIELD_UNSIGNED, offsetof(S3PartList, next_marker) },
        { "Part/PartNumber",      FIELD_UNSIGNED, offsetof(S3ListedPart, number) },
        { "Part/Size",            FIELD_NUMBER,   offsetof(S3ListedPart, bytes) },
        { "Part/LastModified",    FIELD_TIME,     offsetof(S3ListedPart, last_modified_usec) },
        { "Part/ETag",            FIELD_ETAG,     offsetof(S3ListedPart, etag) },
};

/* clang-format on */

static const ListForm parts_form = { "ListPartsResult", "Part", sizeof(S3ListedPart), part_fields,
                                     ELEMENTSOF(part_fields) };

int s3_xml_part_list(const char *text, size_t n, S3PartList *ret) {
        S3PartList l = { 0 };
        int r = read_list(&(ListDocument){ &parts_form, &l, false }, text, n);

        for (size_t i = 0; r == 0 && i < l.n; i++)
                if (l.items[i].etag[0] == '\0')
                        r = -EINVAL;
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

/* clang-format off */
static const ListField upload_fields[] = {
        { "IsTruncated",        FIELD_BOOL, offsetof(S3UploadList, is_truncated) },
        { "NextKeyMarker",      FIELD_TEXT, offsetof(S3UploadList, next_key_marker) },
        { "NextUploadIdMarker", FIELD_TEXT, offsetof(S3UploadList, next_upload_id_marker) },
        { "Upload/Key",         FIELD_TEXT, offsetof(S3ListedUpload, key) },
        { "Upload/UploadId",    FIELD_TEXT, offsetof(S3ListedUpload, upload_id) },
        { "Upload/Initiated",   FIELD_TIME, offsetof(S3ListedUpload, initiated_usec) },
};

/* clang-format on */

static const ListForm uploads_form = { "ListMultipartUploadsResult", "Upload",
                                       sizeof(S3ListedUpload), upload_fields,
                                       ELEMENTSOF(upload_fields) };

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

static int uploads_finish(S3UploadList *l, bool is_escaped) {
        int r = 0;

        uploads_remove_odd(l, is_escaped);
        if (l->next_key_marker && is_escaped) /* of any length: it may be an odd one's */
                r = url_decode(l->next_key_marker);
        if (r == 0 && l->is_truncated && (!l->next_key_marker || l->next_key_marker[0] == '\0'))
                r = -EINVAL;
        return r;
}

int s3_xml_upload_list(const char *text, size_t n, S3UploadList *ret) {
        S3UploadList l = { 0 };
        ListDocument d = { &uploads_form, &l, false };
        int r = read_list(&d, text, n);

        if (r == 0)
                r = uploads_finish(&l, d.is_escaped);
        if (r < 0)
                s3_upload_list_done(&l);
        else
                *ret = l;
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

/* clang-format off */
static const ListField object_fields[] = {
        { "IsTruncated",           FIELD_BOOL,   offsetof(S3ObjectList, is_truncated) },
        { "NextContinuationToken", FIELD_TEXT,   offsetof(S3ObjectList, next_token) },
        { "CommonPrefixes/Prefix", FIELD_TEXTS,  offsetof(S3ObjectList, prefixes) },
        { "Contents/Key",          FIELD_TEXT,   offsetof(S3ListedObject, key) },
        { "Contents/Size",         FIELD_NUMBER, offsetof(S3ListedObject, bytes) },
        { "Contents/LastModified", FIELD_TIME,   offsetof(S3ListedObject, last_modified_usec) },
};

/* clang-format on */

static const ListForm objects_form = { "ListBucketResult", "Contents", sizeof(S3ListedObject),
                                       object_fields, ELEMENTSOF(object_fields) };

static int objects_finish(S3ObjectList *l, bool is_escaped) {
        int r = 0;

        for (size_t i = 0; i < l->n && r == 0; i++)
                r = l->items[i].key ? finish_key(l->items[i].key, is_escaped) : -EINVAL;
        for (size_t i = 0; i < l->n_prefixes && r == 0; i++)
                r = finish_key(l->prefixes[i], is_escaped);
        if (r == 0 && l->is_truncated && (!l->next_token || l->next_token[0] == '\0'))
                r = -EINVAL;
        return r;
}

int s3_xml_object_list(const char *text, size_t n, S3ObjectList *ret) {
        S3ObjectList l = { 0 };
        ListDocument d = { &objects_form, &l, false };
        int r = read_list(&d, text, n);

        if (r == 0)
                r = objects_finish(&l, d.is_escaped);
        if (r < 0)
                s3_object_list_done(&l);
        else
                *ret = l;
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

char *s3_xml_complete_body(const S3CompletePart *parts, size_t n) {
        StrBuf b = STRBUF_INIT;

        strbuf_add(&b,
                   "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
        for (size_t i = 0; i < n; i++) {
                strbuf_addf(&b, "<Part><PartNumber>%u</PartNumber><ETag>&quot;%s&quot;</ETag>",
                            parts[i].number, parts[i].etag);
                if (parts[i].checksum_sha256)
                        strbuf_addf(&b, "<ChecksumSHA256>%s</ChecksumSHA256>",
                                    parts[i].checksum_sha256);
                strbuf_add(&b, "</Part>");
        }
        strbuf_add(&b, "</CompleteMultipartUpload>");
        return strbuf_detach(&b);
}
