/* Reads the XML of S3 and STS by expat: one walk that gives each element to its reader, with bounds
 * on depth, length and count and without DTD and entities; and the documents that both services
 * have in common, such as <Error>. What an error means is left to s3_response.c and sts.c. */
#include "uploaders/aws/aws_xml.h"

#include <errno.h>
#include <expat.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/digest.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"
#include "uploaders/aws/aws_parse.h"

enum {
        XML_BYTES_MAX = 32 << 20,
        XML_DEPTH_MAX = 16,
        XML_PATH_SIZE = 512,
        XML_TEXT_MAX = 16 * 1024, /* a session token has some 2 KiB, an escaped key 3 KiB */
};

/* ── the walk ── */

typedef struct XmlWalk {
        const XmlReader *reader;
        XML_Parser parser;
        int error;
        unsigned depth;
        bool is_leaf;             /* the innermost element has no elements inside */
        bool is_cut;              /* its text is longer than XML_TEXT_MAX */
        char path[XML_PATH_SIZE]; /* with the root, which has path_starts[0] = 0 */
        size_t path_starts[XML_DEPTH_MAX], n_path;
        size_t n_text;
        char text[XML_TEXT_MAX + 1];
} XmlWalk;

static void walk_stop(XmlWalk *w, int error) {
        if (w->error == 0)
                w->error = error;
        (void)XML_StopParser(w->parser, XML_FALSE); /* fails only when it has stopped already */
}

static const char *walk_path(const XmlWalk *w) {
        return w->depth > 1 ? w->path + w->path_starts[1] : "";
}

/* `s3:Key` is `Key`: nobody mixes vocabularies in these documents. */
static const char *local_name(const char *name) {
        const char *colon = strrchr(name, ':');

        return colon ? colon + 1 : name;
}

static void XMLCALL walk_open(void *userdata, const XML_Char *name, const XML_Char **attributes) {
        XmlWalk *w = userdata;
        const char *local = local_name(name);
        size_t n = strlen(local), need = w->n_path + (w->depth > 0) + n + 1;
        int r = 0;

        (void)attributes;
        if (w->error != 0)
                return;
        if (w->depth == XML_DEPTH_MAX || n >= sizeof w->path || need > sizeof w->path ||
            (w->depth == 0 && w->reader->root && strcmp(local, w->reader->root) != 0))
                return walk_stop(w, -EINVAL);
        if (w->depth > 0)
                w->path[w->n_path++] = '/';
        w->path_starts[w->depth++] = w->n_path;
        memcpy(w->path + w->n_path, local, n + 1);
        w->n_path += n;
        w->is_leaf = true;
        w->is_cut = false;
        w->n_text = 0;
        if (w->reader->on_open)
                r = w->reader->on_open(w->reader->document, walk_path(w));
        if (r < 0)
                walk_stop(w, r);
}

static void XMLCALL walk_text(void *userdata, const XML_Char *text, int n) {
        XmlWalk *w = userdata;
        size_t room = XML_TEXT_MAX - w->n_text;

        if (w->error != 0 || !w->is_leaf)
                return;
        if ((size_t)n > room) {
                w->is_cut = true;
                n = (int)room;
        }
        memcpy(w->text + w->n_text, text, (size_t)n);
        w->n_text += (size_t)n;
}

static void XMLCALL walk_close(void *userdata, const XML_Char *name) {
        XmlWalk *w = userdata;
        int r = 0;

        (void)name;
        if (w->error != 0)
                return;
        w->text[w->n_text] = '\0';
        /* What is too long is as good as missing: whoever needs it says so at the end. */
        if (w->is_leaf && !w->is_cut && w->reader->on_leaf)
                r = w->reader->on_leaf(w->reader->document, walk_path(w), w->text);
        if (r < 0)
                return walk_stop(w, r);
        w->is_leaf = false;
        w->n_path = w->path_starts[--w->depth];
        w->n_path -= w->n_path > 0; /* the slash */
        w->path[w->n_path] = '\0';
}

/* With no DTD there are no entities but the five of XML itself, and no bomb can be built of
 * those. */
static void XMLCALL walk_doctype(void *userdata, const XML_Char *name, const XML_Char *system_id,
                                 const XML_Char *public_id, int has_internal_subset) {
        (void)name, (void)system_id, (void)public_id, (void)has_internal_subset;
        walk_stop(userdata, -EINVAL);
}

/* Measures, at p, a control character that XML 1.0 does not have: as a byte, or as a reference
 * (`&#x1;`). 0 = there is none; NUL is left to expat, which refuses it. */
static size_t control_size(const char *p, const char *end) {
        size_t n = 2, n_digits = 0;
        char digits[8] = "";

        if (*p > 0 && *p < ' ')
                return strchr("\t\n\r", *p) ? 0 : 1;
        if (end - p < 4 || p[0] != '&' || p[1] != '#')
                return 0;
        bool is_hex = p[n] == 'x';
        n += is_hex;
        for (; p + n < end && p[n] != ';' && n_digits < sizeof digits - 1; n++)
                digits[n_digits++] = p[n];
        if (p + n >= end || p[n] != ';' || n_digits == 0 ||
            strspn(digits, is_hex ? "0123456789abcdefABCDEF" : "0123456789") != n_digits)
                return 0;
        unsigned long value = strtoul(digits, NULL, is_hex ? 16 : 10);
        return value > 0 && value < ' ' && !strchr("\t\n\r", (int)value) ? n + 1 : 0;
}

/* S3 takes keys with control characters, and then lists them in what is no XML any more (Ceph 16.2
 * and AWS do, unless asked for encoding-type=url). One such key of somebody else must not hide all
 * others from us: its characters become U+FFFD.
 * @return what to parse in its place, the caller's; NULL = text is well, or *ret_error is
 * -ENOMEM */
static char *replace_controls(const char *text, size_t *n, int *ret_error) {
        const char *end = text + *n;
        size_t n_found = 0, size;
        char *copy, *to;

        *ret_error = 0;
        for (const char *p = text; p < end; p += size ? size : 1) {
                size = control_size(p, end);
                n_found += size > 0;
        }
        if (n_found == 0)
                return NULL;
        copy = to = malloc(*n + 3 * n_found);
        if (!copy) {
                *ret_error = -ENOMEM;
                return NULL;
        }
        for (const char *p = text; p < end; p += size ? size : 1) {
                size = control_size(p, end);
                if (size > 0)
                        to = mempcpy(to, "\xef\xbf\xbd", 3);
                else
                        *to++ = *p;
        }
        *n = (size_t)(to - copy);
        return copy;
}

static int walk_parse(XmlWalk *w, const char *text, size_t n) {
        int r = 0;

        /* UTF-8 whatever the declaration says; STS answers with keys, so nothing is left in freed
         * memory */
        static const XML_Memory_Handling_Suite wiping = { malloc, digest_wipe_realloc,
                                                          digest_wipe_free };
        w->parser = XML_ParserCreate_MM("UTF-8", &wiping, NULL);
        if (!w->parser)
                return -ENOMEM;
        XML_SetUserData(w->parser, w);
        XML_SetElementHandler(w->parser, walk_open, walk_close);
        XML_SetCharacterDataHandler(w->parser, walk_text);
        XML_SetStartDoctypeDeclHandler(w->parser, walk_doctype);
        if (XML_Parse(w->parser, text, (int)n, XML_TRUE) != XML_STATUS_OK)
                r = XML_GetErrorCode(w->parser) == XML_ERROR_NO_MEMORY ? -ENOMEM : -EINVAL;
        XML_ParserFree(w->parser);
        return w->error != 0 ? w->error : r;
}

int xml_walk(const char *text, size_t n, const XmlReader *reader) {
        XmlWalk *w;
        int r;

        /* While S3 completes an upload it sends blanks to keep the connection, some stores before
         * the XML declaration. */
        for (; n > 0 && *text && strchr(" \t\r\n", *text); text++)
                n--;
        if (n == 0 || n > XML_BYTES_MAX)
                return -EINVAL;
        char *cleaned = replace_controls(text, &n, &r);
        if (r < 0)
                return r;
        w = calloc(1, sizeof *w);
        if (w) {
                w->reader = reader;
                r = walk_parse(w, cleaned ? cleaned : text, n);
                digest_wipe(w->text, sizeof w->text); /* STS sends secrets */
                free(w);
        } else
                r = -ENOMEM;
        if (cleaned)
                digest_wipe(cleaned, n);
        free(cleaned);
        return r;
}

/* ── leaves ── */

int xml_put_text(char **to, const char *text) {
        char *copy = strdup(text);

        if (!copy)
                return -ENOMEM;
        free(*to);
        *to = copy;
        return 0;
}

/* A date that we cannot read is as good as none: only ages are made of it. */
int xml_put_time(uint64_t *to, const char *text) {
        if (aws_time_parse(text, to) < 0)
                *to = 0;
        return 0;
}

/* For people: one line, cut between characters. */
static void put_line(char *to, size_t size, const char *text) {
        size_t left = strlen(text), at = 0;

        while (left > 0) {
                char spelling[UTF8_ESCAPE_SIZE];
                size_t used = utf8_escape(text, left, spelling), n;

                if (strchr("\t\r\n", *text))
                        (void)strcpy(spelling, " ");
                n = strlen(spelling);
                if (at + n >= size)
                        break;
                memcpy(to + at, spelling, n);
                at += n;
                text += used;
                left -= used;
        }
        to[at] = '\0';
}

/* ── <Error> ── */

static int error_leaf(void *document, const char *path, const char *text) {
        AwsError *e = document;
        const struct {
                const char *name;
                char *to;
                size_t size;
        } fields[] = {
                { "Code", e->code, sizeof e->code },
                { "Message", e->message, sizeof e->message },
                { "Region", e->region, sizeof e->region },
                { "Bucket", e->bucket, sizeof e->bucket },
                { "BucketName", e->bucket, sizeof e->bucket }, /* Ceph's name for it */
                { "Endpoint", e->endpoint, sizeof e->endpoint },
                { "ServerTime", e->server_time, sizeof e->server_time },
                { "RequestId", e->request_id, sizeof e->request_id },
        };

        if (strncmp(path, "Error/", 6) == 0) /* of STS */
                path += 6;
        for (size_t i = 0; i < ELEMENTSOF(fields); i++)
                if (strcmp(path, fields[i].name) == 0)
                        put_line(fields[i].to, fields[i].size, text);
        return 0;
}

int aws_xml_error(const char *text, size_t n, AwsError *ret) {
        static const char *const roots[] = { "Error", "ErrorResponse" };
        int r = -EINVAL;

        for (size_t i = 0; i < ELEMENTSOF(roots) && r == -EINVAL; i++) {
                AwsError e = { 0 };

                r = xml_walk(
                        text, n,
                        &(XmlReader){ .root = roots[i], .on_leaf = error_leaf, .document = &e });
                if (r == 0)
                        *ret = e;
        }
        return r;
}
